//! Executions under their locks, in batches and in part.

mod queues;

pub use queues::{Demand, queues};

use super::registry::{Mapping, MappingId, ProcessType, Registry, TypeId};
use super::{StateKey, from_json};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{array, nullable, value};
use crate::pg::spi::{Row, Snapshot, Spi};
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use xdb_engine::*;

/// An execution that this transaction has locked, as it was and as it has become.
#[derive(Debug)]
pub struct Loaded {
    pub meta: Meta,
    /// As loaded; what is saved is the difference.
    pub before: Execution,
    pub execution: Execution,
    /// What happened since, in order.
    pub events: Vec<(Event, Timestamp)>,
    /// Message ids on record, of those that the answers publish. Read after the inbox was taken in.
    pub published_before: BTreeSet<(String, String)>,
    /// States that were asked what they take of global queues as they began to wait.
    pub offered: BTreeSet<StateSeq>,
    /// Who publishes to global queues; None: the owner does.
    pub acting_as: Option<pg_sys::Oid>,
    /// Queues of which the head is known. All others are unknown rather than empty.
    pub heads: BTreeMap<String, queues::Head>,
}

/// What belongs to an execution and never changes, and where its type stands now.
#[derive(Clone, Debug)]
pub struct Meta {
    pub shard: i16,
    pub type_id: TypeId,
    /// None when the type is no longer registered.
    pub process_type: Option<Arc<ProcessType>>,
    pub owner: pg_sys::Oid,
    pub owner_name: String,
    pub mapping_id: Option<MappingId>,
    pub mapping: Mapping,
    /// Per mapped table the values of its key columns, as text.
    pub keys: Arc<[Vec<String>]>,
    pub history: HistoryPolicy,
    pub traceparent: Option<String>,
    /// The row carries a closing mark of an earlier attempt to close.
    pub closing: bool,
}

impl Meta {
    /// The definition to decide with; an empty one when the type is gone.
    pub fn definition(&self) -> Arc<Definition> {
        self.process_type.as_ref().map(|t| t.definition.clone()).unwrap_or_default()
    }
}

impl Loaded {
    /// Decides about a command without applying it.
    pub fn decide(&self, command: &Command, now: Timestamp, jitter: f64) -> std::result::Result<Vec<Event>, Rejection> {
        self.decide_with(command, now, jitter, &[])
    }

    /// The same, with messages of global queues that the command's state may take.
    pub fn decide_with(
        &self,
        command: &Command,
        now: Timestamp,
        jitter: f64,
        global_messages: &[GlobalMessage],
    ) -> std::result::Result<Vec<Event>, Rejection> {
        assert!(self.is_prepared(command), "a queue was not loaded");
        let definition = self.meta.definition();
        decide(
            &self.execution,
            command,
            Context {
                now,
                jitter,
                definition: &definition,
                mapping: &self.meta.mapping,
                published_before: &self.published_before,
                global_messages,
            },
        )
    }

    /// Takes messages in that arrived from clients, in events of a bounded size. A closed execution takes none.
    pub fn receive(&mut self, spi: &Spi, arrivals: Vec<Arrival>, now: Timestamp) -> Result<()> {
        let mut arrivals = arrivals.into_iter().peekable();
        while arrivals.peek().is_some() {
            let mut bytes = 0;
            let mut publishes = Vec::new();
            while let Some(arrival) =
                arrivals.next_if(|next| publishes.is_empty() || bytes + next.bytes() <= ARRIVED_BYTES_PER_EVENT)
            {
                bytes += arrival.bytes();
                publishes.push(arrival.publish);
            }
            let command = Command::MessagesArrived(publishes);
            self.prepare(spi, &command)?;
            if let Ok(events) = self.decide(&command, now, 0.0) {
                self.apply(events, now);
            }
        }
        Ok(())
    }

    /// States that are not as they were loaded, each with what it was; a new one without.
    pub fn changed_states(&self) -> impl Iterator<Item = (Option<&StateExecution>, &StateExecution)> {
        let changed = self.execution.states.values().filter(|state| self.has_changed(state));
        changed.map(|state| (self.before.states.get(&state.seq).map(Arc::as_ref), state.as_ref()))
    }

    /// Whether a state is new, or not as it was loaded.
    pub fn has_changed(&self, state: &Arc<StateExecution>) -> bool {
        let old = self.before.states.get(&state.seq);
        old.is_none_or(|old| !Arc::ptr_eq(old, state) && old != state)
    }

    /// Whether it had live states that were not loaded.
    pub fn has_other_threads(&self) -> bool {
        let known = self.before.states.values().filter(|state| state.status().is_live());
        self.before.live_threads as usize > known.count()
    }

    pub fn apply(&mut self, events: Vec<Event>, now: Timestamp) {
        for event in events {
            self.execution.apply(&event, now);
            self.events.push((event, now));
        }
    }
}

/// How executions are locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// The engine: rows that somebody else has locked are left out.
    StepOrSkip,
    /// A caller's RPC: waits, under the caller's timeouts.
    Step,
    /// A caller's stop: waits for open publishers too.
    Close,
    /// Looks without locking, with the statement's snapshot.
    None,
}

pub(super) const SELECT_EXECUTIONS: &str = "SELECT execution_id, shard, process_id, type_id, process_type, owner, owner_name, \
    status, closing IS NOT NULL, started_at, closed_at, timeout_at, reason, next_event, next_state, next_message, \
    live_threads, completing, state_numbers::text, mapping_id, attribute_keys::text, history_limit, traceparent \
    FROM xdb.process_execution WHERE execution_id = ANY ($1) ORDER BY execution_id";

/// Loads the executions' own rows. With [`Lock::StepOrSkip`] what is missing is locked by others, or gone.
pub fn executions(
    spi: &Spi,
    registry: &mut Registry,
    ids: &[ExecutionId],
    lock: Lock,
) -> Result<BTreeMap<ExecutionId, Loaded>> {
    let suffix = match lock {
        Lock::StepOrSkip => " FOR NO KEY UPDATE SKIP LOCKED",
        Lock::Step => " FOR NO KEY UPDATE",
        Lock::Close => " FOR UPDATE",
        Lock::None => "",
    };
    let sql = format!("{SELECT_EXECUTIONS}{suffix}");
    let rows = spi.rows(&sql, &[array(ids.iter().copied())], read_execution)?;
    let mut loaded = BTreeMap::new();
    for (mut meta, execution) in rows {
        meta.process_type = registry.process_type(spi, meta.type_id)?;
        meta.mapping = registry.mapping(spi, meta.mapping_id)?;
        let entry = Loaded {
            meta,
            before: execution.clone(),
            execution,
            events: Vec::new(),
            published_before: BTreeSet::new(),
            offered: BTreeSet::new(),
            acting_as: None,
            heads: BTreeMap::new(),
        };
        loaded.insert(entry.execution.id, entry);
    }
    Ok(loaded)
}

pub(super) fn read_execution(row: &Row) -> Result<(Meta, Execution)> {
    let mut execution = Execution::new(row.execution_id(1)?);
    execution.process_id = row.need(3)?;
    execution.process_type = row.need(5)?;
    execution.status = parse_word(&row.need::<String>(8)?, ProcessStatus::parse)?;
    execution.started_at = row.need_time(10)?;
    execution.closed_at = row.time(11);
    execution.timeout_at = row.time(12);
    execution.reason = row.get(13);
    execution.next_event = row.need::<i64>(14)? as u64;
    execution.next_state = row.need::<i32>(15)? as u32;
    execution.next_message = row.need::<i64>(16)? as u64;
    execution.live_threads = row.need::<i32>(17)? as u32;
    execution.completing = row.need(18)?;
    execution.state_numbers = from_json(&row.need::<String>(19)?)?;
    let keys: Vec<Vec<String>> = match row.get::<String>(21) {
        Some(text) => from_json(&text)?,
        None => Vec::new(),
    };
    let meta = Meta {
        shard: row.need(2)?,
        type_id: row.need(4)?,
        process_type: None,
        owner: row.need(6)?,
        owner_name: row.need(7)?,
        mapping_id: row.get(20),
        mapping: Arc::from([]),
        keys: keys.into(),
        history: super::history::column::policy(row.get(22)),
        traceparent: row.get(23),
        closing: row.need(9)?,
    };
    Ok((meta, execution))
}

pub(crate) fn parse_word<T>(word: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    parse(word).ok_or_else(|| PgError::internal(format!("a system table holds the unknown word \"{word}\"")))
}

/// Which of these executions exist, whoever has locked them.
pub fn existing(spi: &Spi, ids: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>> {
    const SELECT: &str = "SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1)";
    Ok(spi.rows(SELECT, &[array(ids.iter().copied())], |row| row.execution_id(1))?.into_iter().collect())
}

/// Which of these executions can be closed now: no publisher and nobody else holds them. In a statement of its own,
/// because a lock taken together with the decision would be decided from an old row.
pub fn lock_for_close(spi: &Spi, ids: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>> {
    const SELECT: &str = "SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1) \
        ORDER BY execution_id FOR UPDATE SKIP LOCKED";
    Ok(spi.rows(SELECT, &[array(ids.iter().copied())], |row| row.execution_id(1))?.into_iter().collect())
}

/// Marks executions whose close waits for open publishers, so that what they wait for only shrinks.
pub fn mark_closing(spi: &Spi, ids: &[(ExecutionId, bool)]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.process_execution p \
        SET closing = CASE WHEN m.conditional THEN 'CONDITIONAL' ELSE 'UNCONDITIONAL' END \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::bool[]) AS conditional) AS m \
        WHERE p.execution_id = m.execution_id AND p.closing IS NULL";
    spi.run(UPDATE, &[array(ids.iter().map(|m| m.0)), array(ids.iter().map(|m| m.1))])?;
    Ok(())
}

/// Takes back closing marks: those that a scheduler left when it ended, whose answers are asked for again, or those of these
/// executions, whose closes are given up for now. One that somebody has locked keeps its mark until that one saves it.
pub fn unmark_closing(spi: &Spi, ids: Option<&[ExecutionId]>) -> Result<()> {
    let these = if ids.is_some() { "execution_id = ANY ($1) AND" } else { "" };
    let sql = format!(
        "WITH marked AS MATERIALIZED (SELECT execution_id FROM xdb.process_execution \
         WHERE {these} closing IS NOT NULL ORDER BY execution_id FOR NO KEY UPDATE SKIP LOCKED) \
         UPDATE xdb.process_execution p SET closing = NULL FROM marked WHERE p.execution_id = marked.execution_id"
    );
    let params: Vec<_> = ids.map(|ids| array(ids.iter().copied())).into_iter().collect();
    spi.run(&sql, &params)?;
    Ok(())
}

pub(crate) const STATE_COLUMNS: &str = "s.execution_id, s.seq, s.state_id, s.number, s.status, s.input::text, \
    s.config::text, s.recovery::text, s.started_at, s.ended_at, s.call::text, s.wait::text, s.last_failure::text";

pub(crate) fn read_state(row: &Row) -> Result<(ExecutionId, StateExecution)> {
    fn json<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> Result<Option<T>> {
        row.get::<String>(column).map(|text| from_json(&text)).transpose()
    }
    let status = parse_word(&row.need::<String>(5)?, StateStatus::parse)?;
    let missing = || PgError::internal("a state execution lacks what its status needs");
    let phase = match status {
        StateStatus::WaitUntil => Phase::WaitUntil(json(row, 11)?.ok_or_else(missing)?),
        StateStatus::Waiting => Phase::Waiting(json(row, 12)?.ok_or_else(missing)?),
        StateStatus::Execute => Phase::Execute { call: json(row, 11)?.ok_or_else(missing)?, results: json(row, 12)? },
        StateStatus::Completed | StateStatus::Failed | StateStatus::Aborted => {
            Phase::Ended { status, last_failure: json(row, 13)? }
        }
    };
    let state = StateExecution {
        seq: StateSeq(row.need::<i32>(2)? as u32),
        id: StateExecutionId { state_id: row.need(3)?, number: row.need::<i32>(4)? as u32 },
        input: row.get::<String>(6).map(Json::from_trusted),
        config: json(row, 7)?,
        recovery: json(row, 8)?,
        started_at: row.need_time(9)?,
        ended_at: row.time(10),
        phase,
    };
    Ok((row.execution_id(1)?, state))
}

/// Loads these state executions into their executions.
pub fn states(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, keys: &[StateKey]) -> Result<()> {
    let sql = format!(
        "SELECT {STATE_COLUMNS} FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
         JOIN xdb.state_execution s ON s.execution_id = k.execution_id AND s.seq = k.seq"
    );
    let wanted: Vec<_> = keys
        .iter()
        .filter(|(id, seq)| loaded.get(id).is_some_and(|entry| !entry.before.states.contains_key(seq)))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let params = [array(wanted.iter().map(|k| k.0)), array(wanted.iter().map(|k| k.1.0 as i32))];
    for (id, state) in spi.rows(&sql, &params, read_state)? {
        put_in(loaded, id, state);
    }
    Ok(())
}

fn put_in(loaded: &mut BTreeMap<ExecutionId, Loaded>, id: ExecutionId, state: StateExecution) {
    if let Some(entry) = loaded.get_mut(&id) {
        let state = Arc::new(state);
        entry.before.states.insert(state.seq, state.clone());
        entry.execution.states.insert(state.seq, state);
    }
}

/// What there is about calls that were answered, besides their states, which are loaded.
#[derive(Debug, Default)]
pub struct Answered {
    /// The leases that their tasks have.
    pub leases: HashMap<StateKey, (i64, i64)>,
    /// Those of their executions that have no message in the inbox.
    pub without_arrivals: BTreeSet<ExecutionId>,
}

/// Loads the states whose calls were answered into their executions, which are locked.
pub fn answered(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, keys: &[StateKey]) -> Result<Answered> {
    // In one statement, because nearly every turn begins with it.
    let sql = format!(
        "SELECT {STATE_COLUMNS}, t.lease_epoch, t.lease_number, \
            NOT EXISTS (SELECT FROM xdb.inbox i WHERE i.execution_id = k.execution_id) \
         FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
         JOIN xdb.state_execution s ON s.execution_id = k.execution_id AND s.seq = k.seq \
         LEFT JOIN xdb.task t ON t.execution_id = k.execution_id AND t.seq = k.seq"
    );
    let mut answered = Answered::default();
    let locked: Vec<_> = keys.iter().filter(|(id, _)| loaded.contains_key(id)).collect();
    if locked.is_empty() {
        return Ok(answered);
    }
    let params = [array(locked.iter().map(|k| k.0)), array(locked.iter().map(|k| k.1.0 as i32))];
    let read = |row: &Row| {
        let lease = row.get(14).map(|epoch| Ok((epoch, row.need(15)?))).transpose()?;
        Ok((read_state(row)?, lease, row.need::<bool>(16)?))
    };
    for ((id, state), lease, without_arrivals) in spi.rows(&sql, &params, read)? {
        answered.leases.extend(lease.map(|lease| ((id, state.seq), lease)));
        if without_arrivals {
            answered.without_arrivals.insert(id);
        }
        put_in(loaded, id, state);
    }
    Ok(answered)
}

/// Loads the live states whose failed attempts were not all recorded: a close sums them up. Those that are loaded are known.
pub fn states_with_unrecorded_attempts(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    ids: &[ExecutionId],
) -> Result<()> {
    const SELECT: &str = "SELECT execution_id, seq FROM xdb.state_execution \
        WHERE execution_id = ANY ($1) AND ended_at IS NULL AND (call ->> 'failedAttempts')::int > $2";
    let with_others = |id: &&ExecutionId| loaded.get(id).is_some_and(Loaded::has_other_threads);
    let ids: Vec<_> = ids.iter().filter(with_others).copied().collect();
    if ids.is_empty() {
        return Ok(());
    }
    let params = [array(ids), value(RECORDED_ATTEMPTS as i32)];
    let keys = spi.rows(SELECT, &params, |row| Ok((row.execution_id(1)?, StateSeq(row.need::<i32>(2)? as u32))))?;
    states(spi, loaded, &keys)
}

/// The lease that a task is under.
pub fn leases(spi: &Spi, keys: &[StateKey]) -> Result<HashMap<StateKey, (i64, i64)>> {
    const SELECT: &str = "SELECT t.execution_id, t.seq, t.lease_epoch, t.lease_number \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
        JOIN xdb.task t ON t.execution_id = k.execution_id AND t.seq = k.seq";
    let params = [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    let rows = spi.rows(SELECT, &params, |row| {
        Ok(((row.execution_id(1)?, StateSeq(row.need::<i32>(2)? as u32)), (row.need(3)?, row.need(4)?)))
    })?;
    Ok(rows.into_iter().collect())
}

/// Loads which of these message ids are on record for their queues. To be called after the inbox was taken in: a
/// message that came in between is in the inbox still, and is received later.
pub fn message_ids(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    published: &[(ExecutionId, String, String)],
) -> Result<()> {
    const SELECT: &str = "SELECT m.execution_id, m.queue_name, m.message_id \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, \
            unnest($3::text[]) AS message_id) AS k \
        JOIN xdb.message_key m USING (execution_id, queue_name, message_id)";
    if published.is_empty() {
        return Ok(());
    }
    let params = [
        array(published.iter().map(|p| p.0)),
        array(published.iter().map(|p| p.1.as_str())),
        array(published.iter().map(|p| p.2.as_str())),
    ];
    for (id, key) in spi.rows(SELECT, &params, |row| Ok((row.execution_id(1)?, (row.need(2)?, row.need(3)?))))? {
        if let Some(entry) = loaded.get_mut(&id) {
            entry.published_before.insert(key);
        }
    }
    Ok(())
}

/// A message that waits in the inbox.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub inbox_id: i64,
    pub execution_id: ExecutionId,
    pub publish: Publish,
}

impl Arrival {
    /// Size of the payload.
    pub fn bytes(&self) -> usize {
        self.publish.payload.as_ref().map_or(0, |payload| payload.as_str().len())
    }
}

/// What was read from the inbox.
pub struct Arrivals {
    pub arrivals: Vec<Arrival>,
    /// There is no more.
    pub all: bool,
}

/// Most messages, and most bytes of them, that one turn takes in.
const ARRIVALS_PER_TURN: usize = 5000;
const ARRIVED_BYTES_PER_TURN: i64 = 16 * 1024 * 1024;

/// Most bytes of messages in one event.
const ARRIVED_BYTES_PER_EVENT: usize = 4 * 1024 * 1024;

/// Messages that arrived for these executions, oldest first; not more than a turn takes in. Read in a statement that
/// begins after the executions were locked.
pub fn arrivals(spi: &Spi, ids: &[ExecutionId]) -> Result<Arrivals> {
    // By execution, so that nobody takes walking through the whole inbox in its order for a way to these.
    const SELECT: &str = "SELECT i.inbox_id, i.execution_id, i.queue_name, i.message_id, i.payload::text \
        FROM (SELECT o.inbox_id, o.bytes, sum(o.bytes) OVER (ORDER BY o.inbox_id) AS total \
            FROM (SELECT DISTINCT unnest($1::uuid[]) AS id) AS k \
            CROSS JOIN LATERAL (SELECT n.inbox_id, n.bytes FROM xdb.inbox n WHERE n.execution_id = k.id \
                ORDER BY n.inbox_id LIMIT $2) AS o \
            ORDER BY o.inbox_id LIMIT $2) AS head \
        JOIN xdb.inbox i USING (inbox_id) WHERE head.total - head.bytes < $3 ORDER BY i.inbox_id";
    let params = [array(ids.iter().copied()), value(ARRIVALS_PER_TURN as i64), value(ARRIVED_BYTES_PER_TURN)];
    let arrivals = spi.rows(SELECT, &params, |row| {
        Ok(Arrival {
            inbox_id: row.need(1)?,
            execution_id: row.execution_id(2)?,
            publish: Publish {
                queue: row.need(3)?,
                message_id: row.get(4),
                payload: row.get::<String>(5).map(Json::from_trusted),
            },
        })
    })?;
    let bytes: usize = arrivals.iter().map(Arrival::bytes).sum();
    let all = arrivals.len() < ARRIVALS_PER_TURN && bytes < ARRIVED_BYTES_PER_TURN as usize;
    Ok(Arrivals { arrivals, all })
}

/// Whether there are messages in the inbox that the transaction's own snapshot does not show: in this queue of the
/// execution, or in any. To be asked when those that it shows were taken in.
pub fn has_unseen_arrivals(spi: &Spi, id: ExecutionId, queue: Option<&str>) -> Result<bool> {
    const SELECT: &str = "SELECT EXISTS (SELECT FROM xdb.inbox WHERE execution_id = $1 \
        AND queue_name = COALESCE($2, queue_name))";
    let params = [value(id), nullable(queue)];
    let unseen =
        spi.with_latest_snapshot(|spi| spi.first_with(Snapshot::Active, SELECT, &params, |row| row.need(1)))?;
    Ok(unseen.unwrap_or(false))
}

/// Executions with messages in the inbox, those of the oldest messages first. Looks at messages with the id `from` and higher
/// ones.
pub fn executions_with_arrivals(
    spi: &Spi,
    except: &[ExecutionId],
    limit: usize,
    from: Option<i64>,
) -> Result<WithArrivals> {
    const SELECT: &str = "SELECT execution_id, inbox_id FROM xdb.inbox \
        WHERE inbox_id >= $3 AND execution_id <> ALL ($1) ORDER BY inbox_id LIMIT $2";
    let params = [array(except.iter().copied()), value(limit as i64), value(from.unwrap_or(i64::MIN))];
    let mut seen = BTreeSet::new();
    let rows = spi.rows(SELECT, &params, |row| Ok((row.execution_id(1)?, row.need::<i64>(2)?)))?;
    Ok(WithArrivals {
        more: rows.len() == limit,
        last: rows.last().map(|row| row.1),
        executions: rows.into_iter().map(|row| row.0).filter(|id| seen.insert(*id)).collect(),
    })
}

/// Executions with messages in the inbox.
#[derive(Debug, Default)]
pub struct WithArrivals {
    pub executions: Vec<ExecutionId>,
    /// There may be more.
    pub more: bool,
    /// The last message that was looked at.
    pub last: Option<i64>,
}

/// Deletes messages, and their ids, of executions that take none any more: a close at a higher isolation level may not
/// have seen them.
pub fn delete_arrivals_of(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    if !ids.is_empty() {
        let ids = [array(ids.iter().copied())];
        spi.run("DELETE FROM xdb.inbox WHERE execution_id = ANY ($1)", &ids)?;
        spi.run("DELETE FROM xdb.message_key WHERE execution_id = ANY ($1)", &ids)?;
    }
    Ok(())
}

pub fn delete_arrivals(spi: &Spi, inbox_ids: &[i64]) -> Result<()> {
    if !inbox_ids.is_empty() {
        spi.run("DELETE FROM xdb.inbox WHERE inbox_id = ANY ($1)", &[array(inbox_ids.iter().copied())])?;
    }
    Ok(())
}

/// A timer that came due. Sequence 0 stands for the process timeout.
#[derive(Clone, Copy, Debug)]
pub struct DueTimer {
    pub execution_id: ExecutionId,
    pub seq: StateSeq,
    pub command: u32,
    pub fire_at: Timestamp,
}

/// Timers that are due, and have been at `from` or later; those that have been for longest first.
pub fn due_timers(
    spi: &Spi,
    now: Timestamp,
    except: &[ExecutionId],
    limit: usize,
    from: Option<Timestamp>,
) -> Result<Vec<DueTimer>> {
    const SELECT: &str = "SELECT execution_id, seq, command, fire_at FROM xdb.timer \
        WHERE fire_at <= $1 AND fire_at >= $4 AND execution_id <> ALL ($2) ORDER BY fire_at LIMIT $3";
    let from = from.unwrap_or(Timestamp::EARLIEST);
    spi.rows(SELECT, &[value(now), array(except.iter().copied()), value(limit as i64), value(from)], |row| {
        Ok(DueTimer {
            execution_id: row.execution_id(1)?,
            seq: StateSeq(row.need::<i32>(2)? as u32),
            command: row.need::<i32>(3)? as u32,
            fire_at: row.need_time(4)?,
        })
    })
}

/// Deletes timers that no execution wants any more: leftovers that must not come due for ever.
pub fn delete_timers(spi: &Spi, timers: &[DueTimer], now: Timestamp) -> Result<()> {
    const DELETE: &str = "DELETE FROM xdb.timer t \
        USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
            unnest($3::int[]) AS command) AS k \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq AND t.command = k.command AND t.fire_at <= $4";
    if timers.is_empty() {
        return Ok(());
    }
    let params = [
        array(timers.iter().map(|t| t.execution_id)),
        array(timers.iter().map(|t| t.seq.0 as i32)),
        array(timers.iter().map(|t| t.command as i32)),
        value(now),
    ];
    spi.run(DELETE, &params)?;
    Ok(())
}
