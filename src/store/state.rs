//! Steps: the table `state_execution`.

use super::claim::Task;
use super::inbox::Inbox;
use super::loaded::Loaded;
use super::phases::phase_parts;
use super::table::{Gives, Read, Record, Table, batch, insert, select, select_but, statements, table, update_but};
use super::{StateKey, from_json, to_json};
use crate::pg::catch::{PgError, Result};
use crate::pg::json::StoredJsonb;
use crate::pg::param::{Jsonb, value};
use crate::pg::spi::{Row, Spi};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use xdb_engine::*;
use xdb_sched::bytes::ByteBudget;

table! {
    /// A step: input, options, its current call, its wait, its last failure.
    pub struct State<'a> in "state_execution" {
        key { execution_id: ExecutionId, seq: StateSeq }
        compared {
            shard: i16,
            state_id: &'a str,
            number: u32,
            status: StateStatus,
            started_at: Timestamp,
            ended_at: Option<Timestamp>,
            input: Option<Jsonb<'a>>,
            config: Option<Jsonb<'a>>,
            recovery: Option<Jsonb<'a>>,
            call: Option<Jsonb<'a>>,
            wait: Option<Jsonb<'a>>,
            last_failure: Option<Jsonb<'a>>,
        }
    }
}

/// Columns that never change.
pub(super) const UNCHANGING: &[&str] = &["shard", "state_id", "number", "started_at", "input", "config", "recovery"];

/// The columns of `s` from which a [`State`] is read.
pub(super) fn columns() -> String {
    select::<State>("s")
}

/// The columns that [`read_within`] reads. Values that may be large are not decompressed.
fn as_stored() -> String {
    format!(
        "{}, NULL::text AS input, NULL::text AS wait, s.input AS stored_input, s.wait AS stored_wait",
        select_but::<State>("s", &["input", "wait"])
    )
}

statements! {
    INSERT = insert::<State>();
    UPDATE = update_but::<State>(UNCHANGING);
    OF_KEYS = format!("SELECT {} FROM {} JOIN xdb.state_execution s ON s.execution_id = v.execution_id AND s.seq = v.seq",
        as_stored(), batch::<StateKey>());
    ALL_OF_ONE = format!("SELECT {} FROM xdb.state_execution s WHERE s.execution_id = $1 ORDER BY s.seq", columns());
    // One statement, because nearly every turn begins with it.
    ANSWERED = format!("SELECT {}, t.lease_epoch, t.lease_number, \
            NOT EXISTS (SELECT FROM xdb.{inbox} i WHERE i.execution_id = v.execution_id) AS without_arrivals \
        FROM {} JOIN xdb.state_execution s ON s.execution_id = v.execution_id AND s.seq = v.seq \
        LEFT JOIN xdb.{task} t ON t.execution_id = v.execution_id AND t.seq = v.seq",
        as_stored(), batch::<StateKey>(), inbox = Inbox::NAME, task = Task::NAME);
    WITH_UNRECORDED_ATTEMPTS = "SELECT execution_id, seq FROM xdb.state_execution \
        WHERE execution_id = ANY ($1) AND ended_at IS NULL AND (call ->> 'failedAttempts')::int > $2"
        => fn with_more_attempts(ids: &[ExecutionId], than: u32) -> Vec<StateKey>;
    // Only states that were not loaded are still live.
    /// Ends the live states of closed executions.
    ABORT = "UPDATE xdb.state_execution SET status = 'ABORTED', ended_at = $2, \
        last_failure = COALESCE(call -> 'lastFailure', last_failure), wait = NULL, \
        call = CASE WHEN call IS NOT NULL THEN pg_catalog.jsonb_build_object( \
            'attempt', (call ->> 'failedAttempts')::int + 1, 'repeats', COALESCE((call ->> 'repeats')::int, 0)) END \
        WHERE execution_id = ANY ($1) AND ended_at IS NULL"
        => pub(super) fn abort(ids: &[ExecutionId], now: Timestamp) -> ();
    BY_NAME = "SELECT seq, status FROM xdb.state_execution WHERE execution_id = $1 AND state_id = $2 AND number = $3";
    STANDING = "SELECT seq FROM xdb.state_execution \
        WHERE execution_id = $1 AND ($2::int IS NULL OR seq = $2) AND ended_at IS NULL \
            AND (call ->> 'failedAttempts')::int + COALESCE((call ->> 'repeats')::int, 0) > 0 \
            AND ((call ->> 'notBefore')::bigint > $3 OR call ? 'incident') ORDER BY seq";
    LIVE = "SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND ended_at IS NULL ORDER BY seq"
        => pub(super) fn live(id: ExecutionId) -> Vec<StateKey>;
    /// The live steps whose states, or that themselves, are among the names. All states are listed beside the names.
    LIVE_NAMED = "SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND state_id = ANY ($2) \
        AND (state_id = ANY ($3) OR state_id || '-' || number = ANY ($3)) AND ended_at IS NULL ORDER BY seq"
        => fn live_named(id: ExecutionId, states: Vec<String>, names: Vec<String>) -> Vec<StateKey>;
    /// The live steps of these states.
    LIVE_OF = "SELECT execution_id, seq FROM xdb.state_execution \
        WHERE execution_id = $1 AND ended_at IS NULL AND state_id = ANY ($2) ORDER BY seq"
        => pub(super) fn live_of(id: ExecutionId, state_ids: Vec<String>) -> Vec<StateKey>;
    /// One more live step of these states, if there is one.
    ONE_LIVE = "SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND ended_at IS NULL \
        AND state_id = ANY ($2) AND seq <> ALL ($3) LIMIT 1"
        => pub(super) fn one_live(id: ExecutionId, state_ids: Vec<String>, except: &[StateSeq]) -> Vec<StateKey>;
    /// Deletes states that ended in events which are no longer kept.
    FORGET = "DELETE FROM xdb.state_execution WHERE execution_id = $1 AND seq = ANY ($2)"
        => pub(super) fn forget(id: ExecutionId, ended: &[StateSeq]) -> ();
}

impl<'a> State<'a> {
    /// The row of a step.
    pub fn of(id: ExecutionId, shard: i16, state: &'a StateExecution) -> Result<Self> {
        let (call, wait, last_failure) = phase_parts(state);
        let call = match &state.phase {
            Phase::Ended { call, .. } => json(call.as_ref())?,
            _ => json(call)?,
        };
        Ok(Self {
            execution_id: id,
            seq: state.seq,
            shard,
            state_id: &state.id.state_id,
            number: state.id.number,
            status: state.status(),
            started_at: state.started_at,
            ended_at: state.ended_at,
            input: state.input.as_ref().map(Jsonb::from),
            config: json(state.config.as_deref())?,
            recovery: json(state.recovery.as_ref())?,
            call,
            wait: json(wait)?,
            last_failure: json(last_failure)?,
        })
    }

    /// The step of this row.
    fn read_back(self) -> Result<(ExecutionId, StateExecution)> {
        fn parse<T: DeserializeOwned>(json: Option<Jsonb>) -> Result<Option<T>> {
            json.map(|json| from_json(&json.0)).transpose()
        }
        let missing = || PgError::internal("a step lacks what its status needs");
        let phase = match self.status {
            StateStatus::WaitUntil => Phase::WaitUntil(parse(self.call)?.ok_or_else(missing)?),
            StateStatus::Waiting => Phase::Waiting(parse(self.wait)?.ok_or_else(missing)?),
            StateStatus::Execute => {
                Phase::Execute { call: parse(self.call)?.ok_or_else(missing)?, results: parse(self.wait)? }
            }
            status @ (StateStatus::Completed | StateStatus::Failed | StateStatus::Aborted) => {
                Phase::Ended { status, last_failure: parse(self.last_failure)?, call: parse(self.call)? }
            }
        };
        let state = StateExecution {
            seq: self.seq,
            id: StateExecutionId { state_id: self.state_id.to_owned(), number: self.number },
            input: self.input.map(|input| input.to_json()).transpose()?,
            config: parse(self.config)?,
            recovery: parse(self.recovery)?,
            started_at: self.started_at,
            ended_at: self.ended_at,
            phase,
        };
        Ok((self.execution_id, state))
    }
}

fn json<T: Serialize>(value: Option<&T>) -> Result<Option<Jsonb<'static>>> {
    Ok(value.map(to_json).transpose()?.map(|text| Jsonb(text.into())))
}

/// Reads a step with its execution's id. An error if the row is not valid.
pub(super) fn read_state(row: &Row) -> Result<(ExecutionId, StateExecution)> {
    State::read(row)?.read_back()
}

/// All states of an execution in their order, in the active snapshot. States that can't be read come with the error.
pub(super) fn all(spi: &Spi, id: ExecutionId) -> Result<Vec<(i32, Result<StateExecution>)>> {
    spi.rows(&ALL_OF_ONE, &[value(id)], |row| Ok((row.get("seq")?, read_state(row).map(|(_, state)| state))))
}

/// A state, or the key of a state that exceeds the budget.
type ReadState = std::result::Result<(ExecutionId, StateExecution), StateKey>;

/// Reads a row if it fits into the budget. Inputs and results of waits may be large.
fn read_within(row: &Row, budget: &mut ByteBudget, with_input: bool) -> Result<ReadState> {
    let state = State::read(row)?;
    let input = if with_input { row.get::<Option<StoredJsonb>>("stored_input")? } else { None };
    let wait = row.get::<Option<StoredJsonb>>("stored_wait")?;
    let size = [&input, &wait].into_iter().flatten().map(StoredJsonb::size).sum();
    if !budget.take(size) {
        return Ok(Err((state.execution_id, state.seq)));
    }
    let text = |stored: StoredJsonb| -> Result<Jsonb> { Ok(Jsonb(stored.text()?.into())) };
    let state = State { input: input.map(text).transpose()?, wait: wait.map(text).transpose()?, ..state };
    Ok(Ok(state.read_back()?))
}

/// States that are not loaded yet, each once, even if several of its timers are due.
fn unknown(loaded: &BTreeMap<ExecutionId, Loaded>, keys: &[StateKey]) -> Vec<StateKey> {
    let is_unknown = |(id, seq): &&StateKey| loaded.get(id).is_some_and(|entry| !entry.before.states.contains_key(seq));
    each_once(keys.iter().filter(is_unknown))
}

/// Each key once, in the order of first occurrence. A large state that is read twice would count twice, and might be
/// left out.
fn each_once<'a>(keys: impl Iterator<Item = &'a StateKey>) -> Vec<StateKey> {
    let mut seen = HashSet::new();
    keys.copied().filter(|key| seen.insert(*key)).collect()
}

/// Loads these steps into their executions.
pub fn states(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, keys: &[StateKey]) -> Result<()> {
    load(spi, loaded, keys, |row| read_within(row, &mut ByteBudget::unlimited(), true)).map(drop)
}

/// Like [`states`], without inputs. Inputs may be large, and no update writes them.
pub fn states_without_inputs(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, keys: &[StateKey]) -> Result<()> {
    load(spi, loaded, keys, |row| read_within(row, &mut ByteBudget::unlimited(), false)).map(drop)
}

/// Like [`states`], but large states only within the budget. Returns the states that were left out.
pub fn states_in(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    keys: &[StateKey],
    budget: &mut ByteBudget,
) -> Result<BTreeSet<StateKey>> {
    load(spi, loaded, keys, |row| read_within(row, budget, true))
}

fn load(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    keys: &[StateKey],
    read: impl FnMut(&Row) -> Result<ReadState>,
) -> Result<BTreeSet<StateKey>> {
    let (wanted, mut left_out) = (unknown(loaded, keys), BTreeSet::new());
    if !wanted.is_empty() {
        let states = spi.rows(&OF_KEYS, &StateKey::arrays(&wanted), read)?;
        left_out.extend(states.into_iter().filter_map(|state| put_in_or(loaded, state)));
    }
    Ok(left_out)
}

/// Adds a state to its execution. Returns the key of a state that was left out.
fn put_in_or(loaded: &mut BTreeMap<ExecutionId, Loaded>, state: ReadState) -> Option<StateKey> {
    state.map(|(id, state)| put_in(loaded, id, state)).err()
}

/// Adds a state to its execution, as loaded and as current. If the execution is not loaded, nothing happens.
pub(super) fn put_in(loaded: &mut BTreeMap<ExecutionId, Loaded>, id: ExecutionId, state: StateExecution) {
    if let Some(entry) = loaded.get_mut(&id) {
        let state = Arc::new(state);
        entry.before.states.insert(state.seq, state.clone());
        entry.execution.states.insert(state.seq, state);
    }
}

/// What was read about answered calls, besides their states.
#[derive(Debug, Default)]
pub struct AnsweredCalls {
    /// The leases of their tasks.
    pub leases: HashMap<StateKey, (i64, i64)>,
    /// Those of their executions without messages in the inbox.
    pub without_arrivals: BTreeSet<ExecutionId>,
    /// States that were not loaded, because they are large and exceed the budget.
    pub left_out: BTreeSet<StateKey>,
}

/// Loads the states of answered calls into their executions, which are locked.
pub fn answered(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    keys: &[StateKey],
    budget: &mut ByteBudget,
) -> Result<AnsweredCalls> {
    let mut answered = AnsweredCalls::default();
    let locked = each_once(keys.iter().filter(|(id, _)| loaded.contains_key(id)));
    if locked.is_empty() {
        return Ok(answered);
    }
    let read = |row: &Row| {
        let state = read_within(row, budget, true)?;
        let epoch: Option<i64> = row.get("lease_epoch")?;
        let number: Option<i64> = row.get("lease_number")?;
        Ok((state, epoch.zip(number), row.get::<bool>("without_arrivals")?))
    };
    for (state, lease, without_arrivals) in spi.rows(&ANSWERED, &StateKey::arrays(&locked), read)? {
        let key = match &state {
            Ok((id, state)) => (*id, state.seq),
            Err(key) => *key,
        };
        answered.leases.extend(lease.map(|lease| (key, lease)));
        if without_arrivals {
            answered.without_arrivals.insert(key.0);
        }
        answered.left_out.extend(put_in_or(loaded, state));
    }
    Ok(answered)
}

/// Loads the live states whose failed attempts were not all recorded, because a close sums them up. States that are
/// loaded already are skipped.
pub fn states_with_unrecorded_attempts(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    ids: &[ExecutionId],
) -> Result<()> {
    let with_other_threads = |id: &&ExecutionId| loaded.get(id).is_some_and(Loaded::has_other_threads);
    let ids: Vec<_> = ids.iter().filter(with_other_threads).copied().collect();
    if ids.is_empty() {
        return Ok(());
    }
    let keys = with_more_attempts(spi, &ids, RECORDED_ATTEMPTS)?;
    // These states end, or stay as they are.
    states_without_inputs(spi, loaded, &keys)
}

/// Loads the live steps that an answer aborts. Large ones are loaded only as far as a phase's budget goes. Returns
/// whether all are loaded.
pub(super) fn to_abort(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    id: ExecutionId,
    effects: Option<&Effects>,
) -> Result<bool> {
    let keys = match effects.and_then(|effects| effects.abort_states.as_ref()) {
        Some(_) if !loaded.get(&id).is_some_and(Loaded::has_other_threads) => return Ok(true),
        Some(AbortStates::All) => live(spi, id)?,
        Some(AbortStates::Named(names)) => {
            let of_step = |name: &String| name.parse().map_or(name.clone(), |id: StateExecutionId| id.state_id);
            let states = names.iter().map(of_step).chain(names.iter().cloned()).collect();
            live_named(spi, id, states, names.iter().cloned().collect())?
        }
        None => return Ok(true),
    };
    Ok(states_in(spi, loaded, &keys, &mut ByteBudget::default())?.is_empty())
}

/// The step with this name, if there is one.
pub fn by_name(spi: &Spi, id: ExecutionId, state: &StateExecutionId) -> Result<Option<(StateSeq, StateStatus)>> {
    Gives::of(spi, &BY_NAME, &[value(id), value(state.state_id.as_str()), value(i64::from(state.number))])
}

/// States of an execution whose calls are in backoff or have an incident. With `only`, just this one.
pub fn standing(spi: &Spi, id: ExecutionId, only: Option<StateSeq>, now: Timestamp) -> Result<Vec<StateSeq>> {
    Gives::of(spi, &STANDING, &[value(id), value(only), value(now.0)])
}
