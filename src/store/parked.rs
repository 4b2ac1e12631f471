//! Calls that are parked because their process or its type is paused, or because their process waits for its locks
//! ([`super::process_lock`]). They are in a lane of the table `task` from which
//! no process claims, so they don't slow down other calls.
//!
//! * The scheduler checks a call when it claims or dispatches the call, and then moves the call to this lane. A runner
//!   does the same with calls that functions answer, and gives workers' calls back to the scheduler.
//! * A transaction that moves a call to this lane has locked the row with the pause. So a transaction that ends the
//!   pause waits for it, and then sees the call.
//! * The end of a process's pause resumes its calls at once, under the lock of the execution.
//! * After the end of a type's pause, the scheduler walks through the lane in slices. A new scheduler does so too.
//!
//! For pauses, the lane is only an optimisation: a call that is resumed too early is found and parked again. For locks
//! it is the only thing that keeps a call from being made: nothing here moves a call whose process waits for them.

use super::StateKey;
use super::claim::{FIRST_PLACE, NO_LEASE, TaskPlace};
use super::lanes::{PARKED_LANE, SCHEDULERS_LANE, own_place};
use super::lines::{OfLevel, in_level, parameters};
use super::process_lock::waits;
use super::registry::{TypeId, WorkerId};
use super::table::{Gives, Record, batch, rows, statements};
use crate::error;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::identity::is_engine;
use crate::pg::param::{array, value};
use crate::pg::process::has_transaction_snapshot;
use crate::pg::spi::Spi;
use std::collections::BTreeSet;
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::lines::Level;

/// The most calls that one statement moves, of each level.
const SLICE: i64 = 1000;

/// The columns of a call's position among the parked calls, in the order of the index.
const PLACE: [&str; 6] = ["t.worker_id", "t.owner", "t.priority", "t.due_at", "t.execution_id", "t.seq"];

/// The condition that the type `y` is paused.
fn is_paused(now: &str) -> String {
    format!("y.pause_mode IS NOT NULL AND (y.paused_until IS NULL OR y.paused_until > {now})")
}

statements! {
    PARK_OF_PROCESSES = format!("WITH paused AS MATERIALIZED (SELECT p.execution_id FROM xdb.process_execution p \
            WHERE p.execution_id = ANY ($1) AND p.pause_mode IS NOT NULL ORDER BY p.execution_id FOR NO KEY UPDATE SKIP LOCKED) \
        UPDATE xdb.task t SET lane = {PARKED_LANE}, {NO_LEASE} FROM {} JOIN paused USING (execution_id) \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq RETURNING t.execution_id, t.seq", batch::<StateKey>())
        => fn park_paused(keys: [StateKey]) -> Vec<StateKey>;
    // Parks the found calls, which are locked, and the first calls of each level, of any type. So at most one slice of
    // each level is read.
    PARK_OF_TYPES = format!("WITH paused AS MATERIALIZED (SELECT y.type_id FROM xdb.process_type y \
            WHERE y.type_id = ANY ($4) AND {} ORDER BY y.type_id FOR SHARE SKIP LOCKED), \
        slice AS MATERIALIZED (SELECT s.execution_id, s.seq, false AS is_found FROM {} CROSS JOIN LATERAL ( \
            SELECT t.execution_id, t.seq FROM xdb.task t WHERE t.lane = {SCHEDULERS_LANE} AND {} \
                AND t.due_at <= $6 ORDER BY t.due_at LIMIT $5) AS s \
            UNION ALL SELECT f.execution_id, f.seq, true FROM unnest($9::uuid[], $10::integer[]) AS f (execution_id, seq)), \
        free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM slice s \
            JOIN xdb.process_execution p ON p.execution_id = s.execution_id JOIN paused y ON y.type_id = p.type_id \
            JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq \
            WHERE s.is_found OR t.lane = {SCHEDULERS_LANE} AND (t.lease_until IS NULL OR CASE WHEN $7 = 0 THEN t.lease_epoch <> 0 \
                ELSE t.lease_epoch < $7 OR t.lease_until <= $8 END) \
            FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET lane = {PARKED_LANE}, {NO_LEASE} FROM free f \
        WHERE t.execution_id = f.execution_id AND t.seq = f.seq RETURNING t.execution_id, t.seq", is_paused("$6"), batch::<OfLevel>(), in_level("v"));
    STILL_PARKED = format!("SELECT p.process_id FROM xdb.task t JOIN xdb.process_execution p USING (execution_id) \
        WHERE t.execution_id = ANY ($1) AND t.lane = {PARKED_LANE} AND NOT {} LIMIT 1", waits("t"))
        => fn still_parked(ids: &[ExecutionId]) -> Option<String>;
    RESUME = format!("UPDATE xdb.task t SET {} \
        WHERE t.execution_id = ANY ($1) AND t.lane = {PARKED_LANE} AND NOT {}", own_place(), waits("t"))
        => fn own_places(ids: &[ExecutionId]) -> ();
    // From the end of the index, so that an owner's calls with a high priority are resumed first.
    WALK = format!("WITH slice AS MATERIALIZED (SELECT {by} FROM xdb.task t \
            WHERE t.lane = {PARKED_LANE} AND ({by}) < ($1, $2, $3, $4, $5, $6) ORDER BY {desc} LIMIT {SLICE}), \
        free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM slice s \
            JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq \
            JOIN xdb.process_execution p ON p.execution_id = s.execution_id \
            LEFT JOIN xdb.process_type y ON y.type_id = p.type_id AND {is_paused} \
            WHERE t.lane = {PARKED_LANE} AND y.type_id IS NULL AND p.pause_mode IS NULL AND NOT {waits}), \
        locked AS MATERIALIZED (SELECT t.execution_id, t.seq FROM free f \
            JOIN xdb.task t ON t.execution_id = f.execution_id AND t.seq = f.seq FOR UPDATE OF t SKIP LOCKED), \
        moved AS (UPDATE xdb.task t SET {own_place} FROM locked l \
            WHERE t.execution_id = l.execution_id AND t.seq = l.seq) \
        SELECT worker_id, owner, priority, due_at, execution_id, seq, (SELECT count(*) FROM slice) = {SLICE} AS more, \
            (SELECT count(*) FROM free) AS free, (SELECT count(*) FROM locked) AS moved FROM slice \
        ORDER BY worker_id, owner, priority, due_at, execution_id, seq LIMIT 1",
        by = PLACE.join(", "), desc = PLACE.join(" DESC, ") + " DESC", is_paused = is_paused("$7"), own_place = own_place(), waits = waits("t"));
}

/// Parks those of these due, locked calls whose processes are paused. Calls whose process another transaction has
/// locked are skipped. Returns the parked calls.
pub fn park_of_processes(spi: &Spi, keys: &[StateKey]) -> Result<Vec<StateKey>> {
    Ok(parked_now(park_paused(spi, keys)?))
}

/// Due calls of paused types that were found, and the levels in which they were found. The levels may have more.
#[derive(Default)]
pub struct OfPausedTypes {
    pub types: BTreeSet<TypeId>,
    pub levels: BTreeSet<Level>,
    pub found: Vec<StateKey>,
}

/// Parks due calls of paused types: the found calls, and the first calls of their levels in the scheduler's lane. So
/// even many such calls don't delay the calls of other types for long. `epoch`: of the scheduler, or 0 for a session.
/// Returns the parked calls.
pub fn park_of_types(
    spi: &Spi,
    epoch: i64,
    OfPausedTypes { types, levels, found }: &OfPausedTypes,
    now: Timestamp,
    real: Timestamp,
) -> Result<Vec<StateKey>> {
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let mut params = OfLevel::arrays(&parameters(levels.iter().copied()));
    params.extend([array(types.iter().copied()), value(SLICE), value(now), value(epoch), value(real)]);
    params.extend(StateKey::arrays(found));
    Ok(parked_now(rows(spi, &PARK_OF_TYPES, &params)?))
}

/// Parks those of these due, locked calls whose types are paused. They are calls that functions answer, and that a
/// runner has found. Returns the parked calls.
pub fn park_functions(spi: &Spi, calls: &[(StateKey, TypeId)], now: Timestamp) -> Result<Vec<StateKey>> {
    let (found, types) = calls.iter().copied().unzip();
    park_of_types(spi, 0, &OfPausedTypes { types, levels: BTreeSet::new(), found }, now, now)
}

fn parked_now(keys: Vec<StateKey>) -> Vec<StateKey> {
    if !keys.is_empty() {
        crash::point(if is_engine() { "turn-park-paused" } else { "claim-park-paused" });
    }
    keys
}

/// Resumes the calls of executions whose pause has ended, under the locks of the executions: moves them back to their
/// lanes. Above `READ COMMITTED`, a call may have been parked after the transaction's snapshot. The transaction can't
/// move such a call, and fails.
pub(super) fn resume(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    own_places(spi, ids)?;
    if has_transaction_snapshot()
        && let Some(process_id) = spi.with_latest_snapshot(|spi| still_parked(spi, ids))?
    {
        let why = format_args!("a call of process \"{process_id}\" was parked after this transaction's snapshot");
        return Err(error::could_not_serialize(why));
    }
    Ok(())
}

/// The position of a call among the parked calls.
pub type ParkedPlace = (WorkerId, TaskPlace);

/// How far a walk through the parked calls has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walk {
    /// At the beginning. The walk begins again if a call to move was locked.
    #[default]
    Begins,
    /// The calls beyond this position are still to be read.
    After {
        place: ParkedPlace,
        left_some: bool,
    },
    Done,
}

/// Resumes the next slice of calls whose pauses are over. None if the walk is [`Walk::Done`].
pub fn walk(spi: &Spi, walk: Walk, now: Timestamp) -> Result<Option<Walk>> {
    let (after, left_some) = match walk {
        Walk::Begins => ((WorkerId::MAX, FIRST_PLACE), false),
        Walk::After { place, left_some } => (place, left_some),
        Walk::Done => return Ok(None),
    };
    let (worker, (owner, priority, due_at, execution, seq)) = after;
    let place = [value(worker), value(owner), value(priority), value(due_at), value(execution), value(seq)];
    let end: Option<(ParkedPlace, bool, (i64, i64))> = Gives::of(spi, &WALK, &[&place[..], &[value(now)]].concat())?;
    if end.is_some_and(|(.., (_, moved))| moved > 0) {
        crash::point("turn-walk-parked");
        // Pull workers may find calls now.
        crate::pg::wake::wake_all_at_commit();
    }
    let left_some = left_some || end.is_some_and(|(.., (free, moved))| free > moved);
    Ok(Some(match end {
        Some((place, true, _)) => Walk::After { place, left_some },
        _ if left_some => Walk::Begins,
        _ => Walk::Done,
    }))
}
