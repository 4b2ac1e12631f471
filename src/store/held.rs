//! Calls that are held because their process or its type is paused. They stand in a lane of the table `task` that nobody claims from,
//! and so cost the other calls nothing.
//!
//! The scheduler judges a call when it claims or dispatches it, and moves it here as it finds it; so does a runner with a call that a
//! function answers, and it gives a worker's call back to the scheduler. Whoever moves a call in has locked the row that says why, so who takes the reason away has to wait for that, and then
//! sees the call. The end of a process's pause moves its calls back at once, under the lock of the execution; that of a type's pause
//! has the scheduler walk through the lane, in slices. So does its start. The lane is an optimisation: what is moved back too early is
//! found and held again.

use super::StateKey;
use super::claim::{NO_LEASE, TaskPlace};
use super::lanes::{HELD_LANE, Lane, SCHEDULERS_LANE, own_place};
use super::lines::OfLine;
use super::registry::{TypeId, WorkerId};
use super::table::{Record, batch, rows, statements};
use crate::error;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::identity::is_engine;
use crate::pg::param::{array, value};
use crate::pg::process::has_transaction_snapshot;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::BTreeSet;
use xdb_engine::{ExecutionId, StateSeq, Timestamp};
use xdb_sched::room::Line;

/// So many calls are moved at once, of each line.
const SLICE: i64 = 1000;

/// That the type `y` is paused.
fn is_paused(now: &str) -> String {
    format!("y.pause_mode IS NOT NULL AND (y.paused_until IS NULL OR y.paused_until > {now})")
}

statements! {
    HOLD_OF_PROCESSES = format!("WITH paused AS MATERIALIZED (SELECT p.execution_id FROM xdb.process_execution p \
            WHERE p.execution_id = ANY ($1) AND p.pause_mode IS NOT NULL ORDER BY p.execution_id FOR NO KEY UPDATE SKIP LOCKED) \
        UPDATE xdb.task t SET lane = {HELD_LANE}, {NO_LEASE} FROM {} JOIN paused USING (execution_id) \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq RETURNING t.execution_id, t.seq", batch::<StateKey>())
        => fn hold_paused(keys: [StateKey]) -> Vec<StateKey>;
    // Those that were found, which are locked, and the first of each line, whatever their types: of what else is due no more than a
    // slice is walked over.
    // Whoever has no epoch fetches calls, and leaves those with a lease of its kind alone: when that has ended, a failed attempt is still
    // to be noted.
    HOLD_OF_TYPES = format!("WITH paused AS MATERIALIZED (SELECT y.type_id FROM xdb.process_type y \
            WHERE y.type_id = ANY ($3) AND {} ORDER BY y.type_id FOR SHARE SKIP LOCKED), \
        slice AS MATERIALIZED (SELECT s.execution_id, s.seq, false AS is_found FROM {} CROSS JOIN LATERAL ( \
            SELECT t.execution_id, t.seq FROM unnest($8::smallint[]) AS l (lane) CROSS JOIN LATERAL ( \
                SELECT t.execution_id, t.seq FROM xdb.task t WHERE t.lane = l.lane \
                AND t.worker_id = v.worker_id AND t.owner = v.owner AND t.due_at <= $5 ORDER BY t.due_at LIMIT $4) AS t) AS s \
            UNION ALL SELECT f.execution_id, f.seq, true FROM unnest($9::uuid[], $10::integer[]) AS f (execution_id, seq)), \
        free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM slice s \
            JOIN xdb.process_execution p ON p.execution_id = s.execution_id JOIN paused y ON y.type_id = p.type_id \
            JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq \
            WHERE s.is_found OR t.lane = ANY ($8) AND (t.lease_until IS NULL OR CASE WHEN $6 = 0 THEN t.lease_epoch <> 0 \
                ELSE t.lease_epoch < $6 OR t.lease_until <= $7 END) \
            FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET lane = {HELD_LANE}, {NO_LEASE} FROM free f \
        WHERE t.execution_id = f.execution_id AND t.seq = f.seq RETURNING t.execution_id, t.seq", is_paused("$5"), batch::<OfLine>());
    STILL_HELD = format!("SELECT EXISTS (SELECT FROM xdb.task t \
        WHERE t.execution_id = ANY ($1) AND t.lane = {HELD_LANE}) AS is_held")
        => fn still_held(ids: &[ExecutionId]) -> bool;
    LET_GO = format!("UPDATE xdb.task t SET {} \
        WHERE t.execution_id = ANY ($1) AND t.lane = {HELD_LANE}", own_place())
        => fn own_places(ids: &[ExecutionId]) -> ();
    WALK = format!("WITH slice AS MATERIALIZED (SELECT t.worker_id, t.owner, t.due_at, t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lane = {HELD_LANE} AND (t.worker_id, t.owner, t.due_at, t.execution_id, t.seq) > ($1, $2, $3, $4, $6) \
            ORDER BY t.worker_id, t.owner, t.due_at, t.execution_id, t.seq LIMIT {SLICE}), \
        free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM slice s \
            JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq \
            JOIN xdb.process_execution p ON p.execution_id = s.execution_id \
            LEFT JOIN xdb.process_type y ON y.type_id = p.type_id AND {} \
            WHERE t.lane = {HELD_LANE} AND y.type_id IS NULL AND p.pause_mode IS NULL), \
        locked AS MATERIALIZED (SELECT t.execution_id, t.seq FROM free f \
            JOIN xdb.task t ON t.execution_id = f.execution_id AND t.seq = f.seq FOR UPDATE OF t SKIP LOCKED), \
        moved AS (UPDATE xdb.task t SET {} FROM locked l \
            WHERE t.execution_id = l.execution_id AND t.seq = l.seq) \
        SELECT worker_id, owner, due_at, execution_id, seq, (SELECT count(*) FROM slice) = {SLICE} AS more, \
            (SELECT count(*) FROM free) AS free, (SELECT count(*) FROM locked) AS moved FROM slice \
        ORDER BY worker_id DESC, owner DESC, due_at DESC, execution_id DESC, seq DESC LIMIT 1", is_paused("$5"), own_place())
        => fn walk_slice(worker: WorkerId, owner: pg_sys::Oid, due_at: Timestamp, id: ExecutionId, now: Timestamp, seq: StateSeq)
            -> Option<(HeldPlace, bool, (i64, i64))>;
}

/// Holds those of these due calls, which are locked, whose processes are paused. One whose process somebody else has locked is
/// left. Gives those that are held now.
pub fn hold_of_processes(spi: &Spi, keys: &[StateKey]) -> Result<Vec<StateKey>> {
    Ok(held_now(hold_paused(spi, keys)?))
}

/// Due calls of paused types that were found, and the lines in which they were: there may be more.
#[derive(Default)]
pub struct OfPausedTypes {
    pub types: BTreeSet<TypeId>,
    pub lines: BTreeSet<Line>,
    pub found: Vec<StateKey>,
}

/// Holds due calls of paused types, in the scheduler's lane and these `levels` of priority: those that were found, and those that stand
/// first in their lines, so that however many there are, nobody else waits for long. Gives those that are held now.
pub fn hold_of_types(
    spi: &Spi,
    lane: Lane,
    levels: &[i16],
    OfPausedTypes { types, lines, found }: &OfPausedTypes,
    now: Timestamp,
    real: Timestamp,
) -> Result<Vec<StateKey>> {
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let mut params = OfLine::arrays(&lines.iter().copied().map(OfLine::from).collect::<Vec<_>>());
    params.extend([array(types.iter().copied()), value(SLICE), value(now), value(lane.epoch), value(real)]);
    params.push(array(levels.iter().copied().chain([SCHEDULERS_LANE])));
    params.extend(StateKey::arrays(found));
    Ok(held_now(rows(spi, &HOLD_OF_TYPES, &params)?))
}

/// Holds those of these due calls, which are locked, whose types are paused: calls that functions answer, which a runner has found.
/// Gives those that are held now.
pub fn hold_functions(spi: &Spi, calls: &[(StateKey, TypeId)], now: Timestamp) -> Result<Vec<StateKey>> {
    let (found, types) = calls.iter().copied().unzip();
    let nothing_else = Lane { number: SCHEDULERS_LANE, epoch: 0 };
    hold_of_types(spi, nothing_else, &[], &OfPausedTypes { types, lines: BTreeSet::new(), found }, now, now)
}

fn held_now(keys: Vec<StateKey>) -> Vec<StateKey> {
    if !keys.is_empty() {
        crash::point(if is_engine() { "turn-hold" } else { "claim-hold" });
    }
    keys
}

/// Lets the calls of executions go whose pause is over, under their locks. Above `READ COMMITTED` the transaction may be older than the
/// hold of one, and can't move that.
pub(super) fn let_go(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    own_places(spi, ids)?;
    if has_transaction_snapshot() && spi.with_latest_snapshot(|spi| still_held(spi, ids))? {
        return Err(error::could_not_serialize("a call of the process was put aside meanwhile"));
    }
    Ok(())
}

/// The place of a call among those that are held.
pub type HeldPlace = (WorkerId, TaskPlace);

const FIRST: HeldPlace = (i32::MIN, (pg_sys::InvalidOid, Timestamp::EARLIEST, ExecutionId([0; 16]), StateSeq(0)));

/// How far a walk through the held calls has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walk {
    /// At its beginning. It begins again when somebody had locked a call that is to go.
    #[default]
    Begins,
    /// What comes after this is to be looked through.
    After {
        place: HeldPlace,
        left_some: bool,
    },
    Done,
}

/// Lets the next slice of calls go that nothing holds any more. None when that is [`Walk::Done`].
pub fn walk(spi: &Spi, walk: Walk, now: Timestamp) -> Result<Option<Walk>> {
    let (after, left_some) = match walk {
        Walk::Begins => (FIRST, false),
        Walk::After { place, left_some } => (place, left_some),
        Walk::Done => return Ok(None),
    };
    let (worker, (owner, due_at, execution, seq)) = after;
    let end = walk_slice(spi, worker, owner, due_at, execution, now, seq)?;
    if end.is_some_and(|(.., (_, moved))| moved > 0) {
        crash::point("turn-walk-held");
        // Whoever fetches calls may find some now.
        crate::pg::wake::wake_everybody_at_commit();
    }
    let left_some = left_some || end.is_some_and(|(.., (free, moved))| free > moved);
    Ok(Some(match end {
        Some((place, true, _)) => Walk::After { place, left_some },
        _ if left_some => Walk::Begins,
        _ => Walk::Done,
    }))
}
