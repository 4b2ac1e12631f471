//! Lines of calls, one for each owner at each worker: which levels they have, and when their calls are due. A level has
//! the calls of a line with one priority, and is a range of the index `task_claim` of the table `task`. So all of these
//! statements cost one or two index descents per level.
//!
//! Limitations: the statements lock nothing and claim nothing.

use super::StateKey;
use super::lanes::{Lane, RUNNERS_LANE, SCHEDULERS_LANE, free_for_runners, free_for_scheduler};
use super::registry::{MissingType, NO_WORKER, WITHOUT_TYPE, WorkerId};
use super::table::{Values, batch, record, statements};
use crate::pg::catch::Result;
use crate::pg::param::FromColumn;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::HashSet;
use xdb_engine::{LONGEST_UNREGISTERED_PAUSE, Timestamp};
use xdb_sched::lines::Level;
use xdb_sched::room::{Line, Owner};

/// The condition that the task `t` is in the level that a relation names.
pub(super) fn in_level(level: &str) -> String {
    format!("t.worker_id = {level}.worker_id AND t.owner = {level}.owner AND t.priority = {level}.priority")
}

/// The levels of a lane with the due times of their first calls, leased or not: a relation `level` for `WITH RECURSIVE`.
/// Costs one index descent per level, for any number of calls.
fn levels(lane: &str) -> String {
    const BY: &str = "t.worker_id, t.owner, t.priority";
    format!(
        "level (worker_id, owner, priority, due_at) AS ( \
            (SELECT {BY}, t.due_at FROM xdb.task t WHERE t.lane = {lane} ORDER BY {BY}, t.due_at LIMIT 1) \
            UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( \
                SELECT {BY}, t.due_at FROM xdb.task t \
                WHERE t.lane = {lane} AND ({BY}) > (level.worker_id, level.owner, level.priority) \
                ORDER BY {BY}, t.due_at LIMIT 1) AS n)"
    )
}

/// The first rows of all lines in a table with one line per owner, by this column: a relation `first (owner, at)` in
/// the same way.
pub(super) fn first(table: &str, at: &str) -> String {
    format!(
        "first (owner, at) AS ( \
            (SELECT t.owner, t.{at} FROM xdb.{table} t ORDER BY t.owner, t.{at} LIMIT 1) \
            UNION ALL SELECT n.owner, n.{at} FROM first f CROSS JOIN LATERAL ( \
                SELECT t.owner, t.{at} FROM xdb.{table} t WHERE t.owner > f.owner ORDER BY t.owner, t.{at} LIMIT 1) AS n)"
    )
}

record! {
    /// Due calls of a worker without a valid lease. Those of each owner are counted up to a limit.
    #[derive(Clone, Copy, Debug)]
    pub struct Waiting {
        worker_id: WorkerId,
        calls: i64,
        /// When the first of these calls was due.
        since: Timestamp,
    }

    /// A level, as a parameter.
    pub(super) struct OfLevel { worker_id: WorkerId, owner: pg_sys::Oid, priority: i8 }
}

impl From<Level> for OfLevel {
    fn from(Level { line: Line { worker, owner }, priority }: Level) -> Self {
        Self { worker_id: worker, owner: owner.into(), priority }
    }
}

statements! {
    /// The levels of a lane with the due times of their first calls, leased or not.
    LEVELS = format!("WITH RECURSIVE {} SELECT l.worker_id, l.owner, l.priority, l.due_at FROM level l", levels("$1"))
        => pub fn heads(lane: i16) -> Vec<(Level, Timestamp)>;
    FOR_RUNNERS = format!("WITH RECURSIVE {}, l AS MATERIALIZED (SELECT * FROM level WHERE worker_id = ANY ($1)) \
        SELECT {} AS workers, {} AS functions, \
            (SELECT min(n.due_at) FROM l CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t \
                WHERE t.lane = {RUNNERS_LANE} AND {} AND t.due_at > $2 ORDER BY t.due_at LIMIT 1) AS n) AS next",
        levels(&RUNNERS_LANE.to_string()), due_of("<>"), due_of("="), in_level("l"))
        => fn count_for_runners(workers: &[WorkerId], now: Timestamp, real: Timestamp, at_most: i64)
            -> Option<(i64, i64, Option<Timestamp>)>;
    FREE_IN = format!("SELECT v.worker_id, v.owner, v.priority FROM {} WHERE EXISTS (SELECT FROM xdb.task t \
            WHERE t.lane = $4 AND {} AND t.due_at <= $5 AND {})",
        batch::<OfLevel>(), in_level("v"), free_for_scheduler("$6", "$7"))
        => fn free_in(levels: [OfLevel], lane: i16, now: Timestamp, epoch: i64, real: Timestamp) -> HashSet<Level>;
    NEXT_DUE = format!("SELECT min(n.due_at) AS next FROM {} CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t \
            WHERE t.lane = $4 AND {} AND t.due_at > $5 ORDER BY t.due_at LIMIT 1) AS n",
        batch::<OfLevel>(), in_level("v"))
        => fn next_of(levels: [OfLevel], lane: i16, now: Timestamp) -> Option<Option<Timestamp>>;
    EARLIEST = format!("WITH RECURSIVE {}, {} \
        SELECT NULL::oid AS owner, min(l.due_at) AS due_at, EXISTS (SELECT FROM xdb.inbox) AS messages \
            FROM level l WHERE l.worker_id = ANY ($1) \
        UNION ALL SELECT f.owner, f.at, false FROM first f",
        levels("$2"), first("timer", "fire_at"))
        => fn firsts(workers: &[WorkerId], lane: i16) -> Vec<(Option<pg_sys::Oid>, Option<Timestamp>, bool)>;
    // By level, so that calls that are due later are not read.
    /// How many calls are due or under way, counted up to a limit, and since when the oldest one waits. For people. Run
    /// it with the latest snapshot.
    BACKLOG = format!("WITH all_levels AS MATERIALIZED ({}) \
        SELECT (SELECT count(*) FROM (SELECT FROM all_levels l CROSS JOIN LATERAL ( \
                SELECT FROM xdb.task t WHERE t.lane = l.lane AND {in_level} AND t.due_at <= $1 \
                LIMIT 10000) AS due LIMIT 10000) AS counted) AS calls, \
            (SELECT min(o.due_at) FROM all_levels l CROSS JOIN LATERAL ( \
                SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND {in_level} AND t.due_at <= $1 \
                ORDER BY t.due_at LIMIT 1) AS o) AS oldest",
        all_levels(), in_level = in_level("l")) => pub fn backlog(now: Timestamp) -> Option<(i64, Option<Timestamp>)>;
    /// The workers that calls wait for. For people. Run it with the latest snapshot.
    WAITING = format!("WITH all_levels AS MATERIALIZED ({}), \
        waits AS MATERIALIZED (SELECT l.worker_id, d.due_at FROM all_levels l CROSS JOIN LATERAL ( \
            SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND {} AND t.due_at <= $1 \
                AND (t.lease_until IS NULL OR t.lease_until <= $2) ORDER BY t.due_at LIMIT 1000) AS d) \
        SELECT w.worker_id, count(*) AS calls, min(w.due_at) AS since FROM waits w GROUP BY w.worker_id",
        all_levels(), in_level("l")) => pub fn waiting(now: Timestamp, real: Timestamp) -> Vec<Waiting>;
    UNREGISTERED = format!("WITH all_levels AS MATERIALIZED ({}) \
        SELECT d.execution_id, d.seq FROM all_levels l \
            CROSS JOIN LATERAL (SELECT t.execution_id, t.seq FROM xdb.task t \
                WHERE t.lane = l.lane AND {} AND t.due_at > $2 AND t.due_at <= $3) AS d \
            JOIN xdb.process_execution p ON p.execution_id = d.execution_id \
            JOIN xdb.state_execution s ON s.execution_id = d.execution_id AND s.seq = d.seq \
        WHERE p.process_type = $1 AND p.status = 'RUNNING' \
            AND (s.last_failure ->> 'attempt')::int > (s.call ->> 'failedAttempts')::int LIMIT 1000",
        all_levels(), in_level("l"))
        => fn waits_for_registration(process_type: &str, now: Timestamp, until: Timestamp) -> Vec<StateKey>;
    /// Types of due calls that are not registered. For people. Run it with the latest snapshot.
    MISSING_TYPES = format!("WITH all_levels AS MATERIALIZED ({}), \
        head AS MATERIALIZED (SELECT DISTINCT h.execution_id FROM all_levels l CROSS JOIN LATERAL ( \
            SELECT t.execution_id FROM xdb.task t WHERE t.lane = l.lane AND {} AND t.due_at <= $1 \
            ORDER BY t.due_at LIMIT {INSPECTED}) AS h) \
        SELECT p.process_type, pg_catalog.count(*) AS running FROM head JOIN xdb.process_execution p USING (execution_id) \
        WHERE {WITHOUT_TYPE} GROUP BY p.process_type ORDER BY p.process_type LIMIT 20",
        all_levels(), in_level("l")) => pub fn missing_types(now: Timestamp) -> Vec<MissingType>;
}

/// How many calls runners could claim now in the levels `l`: calls of workers (`<>`), or of functions (`=`).
fn due_of(is_worker: &str) -> String {
    format!(
        "(SELECT count(*) FROM (SELECT FROM l CROSS JOIN LATERAL (SELECT FROM xdb.task t \
                WHERE t.lane = {RUNNERS_LANE} AND {} AND t.due_at <= $2 AND {} ORDER BY t.due_at LIMIT $4) AS d \
            WHERE l.worker_id {is_worker} {NO_WORKER} LIMIT $4) AS due)",
        in_level("l"),
        free_for_runners("0", "$3")
    )
}

/// How many calls of each level are checked. A call without a type is never made, so it soon is the first of its level.
const INSPECTED: u32 = 100;

/// The levels of both lanes from which calls are claimed, each with its lane.
fn all_levels() -> String {
    format!(
        "SELECT a.lane, o.* FROM unnest('{{{SCHEDULERS_LANE},{RUNNERS_LANE}}}'::int2[]) AS a (lane) \
            CROSS JOIN LATERAL (WITH RECURSIVE {} SELECT * FROM level) AS o",
        levels("a.lane")
    )
}

/// A query of the first rows of all lines in a table with one line per owner, by this column.
pub(super) fn firsts_of(table: &str, at: &str) -> String {
    format!("WITH RECURSIVE {} SELECT f.owner, f.at FROM first f", first(table, at))
}

/// Reads a row of [`firsts_of`].
pub(super) fn read_first<T: for<'r> FromColumn<'r>>(row: &Row) -> Result<(Owner, T)> {
    Ok((row.get::<pg_sys::Oid>("owner")?.to_u32(), row.get("at")?))
}

impl<'r> Values<'r> for Level {
    const COUNT: usize = 3;
    fn read_from(row: &Row<'r>, place: usize) -> Result<Self> {
        let (worker, owner, priority) = <(_, pg_sys::Oid, _)>::read_from(row, place)?;
        Ok(Self { line: Line { worker, owner: owner.to_u32() }, priority })
    }
}

/// Calls that runners could claim now, each kind counted up to a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForRunners {
    /// Steps of slow tables.
    pub workers: usize,
    /// Calls that functions answer.
    pub functions: usize,
    /// When the next call of either kind is due.
    pub next: Option<Timestamp>,
}

/// Counts the calls for runners.
pub fn for_runners(
    spi: &Spi,
    workers: &[WorkerId],
    (now, real): (Timestamp, Timestamp),
    at_most: usize,
) -> Result<ForRunners> {
    let (workers, functions, next) = count_for_runners(spi, workers, now, real, at_most as i64)?.unwrap_or_default();
    Ok(ForRunners { workers: workers as usize, functions: functions as usize, next })
}

/// Those of these levels that have a due call without a lease. In a runner, leases of other runners count as none.
pub fn with_due_calls(
    spi: &Spi,
    lane: Lane,
    levels: impl IntoIterator<Item = Level>,
    (now, real): (Timestamp, Timestamp),
) -> Result<HashSet<Level>> {
    free_in(spi, &parameters(levels), lane.number, now, lane.epoch, real)
}

/// When the next call of these levels is due after `now`.
pub fn next_due(
    spi: &Spi,
    lane: i16,
    levels: impl IntoIterator<Item = Level>,
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    Ok(next_of(spi, &parameters(levels), lane, now)?.flatten())
}

/// These levels, as parameters.
pub(super) fn parameters(levels: impl IntoIterator<Item = Level>) -> Vec<OfLevel> {
    levels.into_iter().map(OfLevel::from).collect()
}

/// Everything that an idle scheduler has to watch for.
#[derive(Debug, Default)]
pub struct Earliest {
    /// When the earliest call is or was due.
    pub call: Option<Timestamp>,
    /// The same for the first timer of each owner.
    pub timers: Vec<(Owner, Timestamp)>,
    pub any_messages: bool,
}

/// Reads all of it in one statement.
pub fn earliest(spi: &Spi, lane: Lane, workers: &[WorkerId]) -> Result<Earliest> {
    let mut earliest = Earliest::default();
    for (owner, due_at, messages) in firsts(spi, workers, lane.number)? {
        match owner {
            Some(owner) => earliest.timers.extend(due_at.map(|at| (owner.to_u32(), at))),
            None => (earliest.call, earliest.any_messages) = (due_at, messages),
        }
    }
    Ok(earliest)
}

/// Calls of this type that wait because their answers have named something that is not registered. At most 1,000,
/// because one transaction locks their processes. The others are retried after their pauses.
pub fn unregistered(spi: &Spi, process_type: &str, now: Timestamp) -> Result<Vec<StateKey>> {
    waits_for_registration(spi, process_type, now, now + LONGEST_UNREGISTERED_PAUSE)
}
