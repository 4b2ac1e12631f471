//! Lines of calls, one for each owner at each worker: which lines exist, and when their calls are due. A line is a
//! range of the index `task_claim` of the table `task`. So all of these statements cost one or two index descents per
//! line.
//!
//! Limitations: the statements lock nothing and claim nothing.

use super::StateKey;
use super::lanes::{
    FIRST_FUNCTIONS_LANE, FIRST_PRIORITY_LANE, HELD_LANE, LAST_FUNCTIONS_LANE, LAST_PRIORITY_LANE, Lane, RUNNERS_LANE,
    comes_first, free_for_runners, free_for_scheduler,
};
use super::registry::{MissingType, NO_WORKER, WITHOUT_TYPE, WorkerId};
use super::table::{Gives, Values, batch, record, statements};
use crate::pg::catch::Result;
use crate::pg::param::{FromColumn, array, value};
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::HashSet;
use xdb_engine::{LONGEST_UNREGISTERED_PAUSE, Timestamp};
use xdb_sched::room::{Line, Owner};

/// The condition that the task `t` is in the line that a relation names.
pub(super) fn in_line(line: &str) -> String {
    format!("t.worker_id = {line}.worker_id AND t.owner = {line}.owner")
}

/// The lines of a lane with the due times of their first calls, leased or not: a relation `line` for `WITH RECURSIVE`.
/// Costs one index descent per line, for any number of calls.
fn lines(lane: &str) -> String {
    format!(
        "line (worker_id, owner, due_at) AS ( \
            (SELECT t.worker_id, t.owner, t.due_at FROM xdb.task t WHERE t.lane = {lane} \
                ORDER BY t.worker_id, t.owner, t.due_at LIMIT 1) \
            UNION ALL SELECT n.worker_id, n.owner, n.due_at FROM line CROSS JOIN LATERAL ( \
                SELECT t.worker_id, t.owner, t.due_at FROM xdb.task t \
                WHERE t.lane = {lane} AND (t.worker_id, t.owner) > (line.worker_id, line.owner) \
                ORDER BY t.worker_id, t.owner, t.due_at LIMIT 1) AS n)"
    )
}

/// The first rows of all lines in a table with one line per owner, by this column: a relation `first (owner, at)` in
/// the same way.
fn first(table: &str, at: &str) -> String {
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

    /// A line, as a parameter.
    pub(super) struct OfLine { worker_id: WorkerId, owner: pg_sys::Oid }
}

impl From<Line> for OfLine {
    fn from(Line { worker, owner }: Line) -> Self {
        Self { worker_id: worker, owner: owner.into() }
    }
}

statements! {
    /// The lines of a lane with the due times of their first calls, leased or not.
    LINES = format!("WITH RECURSIVE {} SELECT l.worker_id, l.owner, l.due_at FROM line l", lines("$1"))
        => pub fn heads(lane: i16) -> Vec<(Line, Timestamp)>;
    FOR_RUNNERS = format!("WITH l AS MATERIALIZED ({} WHERE o.worker_id = ANY ($1)) \
        SELECT {} AS workers, {} AS functions, \
            (SELECT min(n.due_at) FROM l CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t \
                WHERE t.lane = l.lane AND {} AND t.due_at > $2 ORDER BY t.due_at LIMIT 1) AS n) AS next",
        lines_of_lanes("unnest($6::smallint[])"), due_of("<>"), due_of("="), in_line("l"));
    DUE_FIRST = format!("WITH l AS MATERIALIZED ({} WHERE o.due_at <= $2) \
        SELECT DISTINCT l.worker_id, l.owner FROM l WHERE EXISTS (SELECT FROM xdb.task t \
            WHERE t.lane = l.lane AND {} AND t.due_at <= $2 AND {})",
        lines_of_lanes("unnest($1::smallint[])"), in_line("l"), free_for_scheduler("$3", "$4"))
        => fn due_in(lanes: &[i16], now: Timestamp, epoch: i64, real: Timestamp) -> HashSet<Line>;
    NEXT_DUE = format!("SELECT min(n.due_at) AS next FROM {} CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t \
            WHERE t.lane = $3 AND {} AND t.due_at > $4 ORDER BY t.due_at LIMIT 1) AS n",
        batch::<OfLine>(), in_line("v"))
        => fn next_of(lines: [OfLine], lane: i16, now: Timestamp) -> Option<Option<Timestamp>>;
    EARLIEST = format!("WITH RECURSIVE {}, {} \
        SELECT NULL::oid AS owner, min(l.due_at) AS due_at, EXISTS (SELECT FROM xdb.inbox) AS messages \
            FROM line l WHERE l.worker_id = ANY ($1) \
        UNION ALL SELECT f.owner, f.at, false FROM first f",
        lines("$2"), first("timer", "fire_at"))
        => fn firsts(workers: &[WorkerId], lane: i16) -> Vec<(Option<pg_sys::Oid>, Option<Timestamp>, bool)>;
    // By line, so that calls that are due later are not read.
    /// How many calls are due or under way, counted up to a limit, and since when the oldest one waits. For people. Run
    /// it with the latest snapshot.
    BACKLOG = format!("WITH all_lines AS MATERIALIZED ({}) \
        SELECT (SELECT count(*) FROM (SELECT FROM all_lines l CROSS JOIN LATERAL ( \
                SELECT FROM xdb.task t WHERE t.lane = l.lane AND {in_line} AND t.due_at <= $1 \
                LIMIT 10000) AS due LIMIT 10000) AS counted) AS calls, \
            (SELECT min(o.due_at) FROM all_lines l CROSS JOIN LATERAL ( \
                SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND {in_line} AND t.due_at <= $1 \
                ORDER BY t.due_at LIMIT 1) AS o) AS oldest",
        all_lines(), in_line = in_line("l")) => pub fn backlog(now: Timestamp) -> Option<(i64, Option<Timestamp>)>;
    /// The workers that calls wait for. For people. Run it with the latest snapshot.
    WAITING = format!("WITH all_lines AS MATERIALIZED ({}), \
        waits AS MATERIALIZED (SELECT l.worker_id, d.due_at FROM all_lines l CROSS JOIN LATERAL ( \
            SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND {} AND t.due_at <= $1 \
                AND (t.lease_until IS NULL OR t.lease_until <= $2) ORDER BY t.due_at LIMIT 1000) AS d) \
        SELECT w.worker_id, count(*) AS calls, min(w.due_at) AS since FROM waits w GROUP BY w.worker_id",
        all_lines(), in_line("l")) => pub fn waiting(now: Timestamp, real: Timestamp) -> Vec<Waiting>;
    UNREGISTERED = format!("WITH all_lines AS MATERIALIZED ({}) \
        SELECT d.execution_id, d.seq FROM all_lines l \
            CROSS JOIN LATERAL (SELECT t.execution_id, t.seq FROM xdb.task t \
                WHERE t.lane = l.lane AND {} AND t.due_at > $2 AND t.due_at <= $3) AS d \
            JOIN xdb.process_execution p ON p.execution_id = d.execution_id \
            JOIN xdb.state_execution s ON s.execution_id = d.execution_id AND s.seq = d.seq \
        WHERE p.process_type = $1 AND p.status = 'RUNNING' \
            AND (s.last_failure ->> 'attempt')::int > (s.call ->> 'failedAttempts')::int LIMIT 1000",
        all_lines(), in_line("l"))
        => fn waits_for_registration(process_type: &str, now: Timestamp, until: Timestamp) -> Vec<StateKey>;
    /// Types of due calls that are not registered. For people. Run it with the latest snapshot.
    MISSING_TYPES = format!("WITH all_lines AS MATERIALIZED ({}), \
        head AS MATERIALIZED (SELECT DISTINCT h.execution_id FROM all_lines l CROSS JOIN LATERAL ( \
            SELECT t.execution_id FROM xdb.task t WHERE t.lane = l.lane AND {} AND t.due_at <= $1 \
            ORDER BY t.due_at LIMIT {LOOKED_AT}) AS h) \
        SELECT p.process_type, pg_catalog.count(*) AS running FROM head JOIN xdb.process_execution p USING (execution_id) \
        WHERE {WITHOUT_TYPE} GROUP BY p.process_type ORDER BY p.process_type LIMIT 20",
        all_lines(), in_line("l")) => pub fn missing_types(now: Timestamp) -> Vec<MissingType>;
}

/// How many calls runners could claim now in the lines `l`: calls of workers (`<>`), or of functions (`=`).
fn due_of(is_worker: &str) -> String {
    format!(
        "(SELECT count(*) FROM (SELECT FROM l CROSS JOIN LATERAL (SELECT FROM xdb.task t \
                WHERE t.lane = l.lane AND {} AND t.due_at <= $2 AND {} ORDER BY t.due_at LIMIT $5) AS d \
            WHERE l.worker_id {is_worker} {NO_WORKER} LIMIT $5) AS due)",
        in_line("l"),
        free_for_runners("$3", "$4")
    )
}

/// How many calls of each line are checked. A call without a type is never made, so it soon is the first of its line.
const LOOKED_AT: u32 = 100;

/// The lines of all lanes from which calls are claimed.
fn all_lines() -> String {
    let lanes = format!(
        "(SELECT n::smallint FROM pg_catalog.generate_series(0, {LAST_FUNCTIONS_LANE}) AS n \
            WHERE n < {HELD_LANE} OR n BETWEEN {FIRST_PRIORITY_LANE} AND {LAST_PRIORITY_LANE} OR n >= {FIRST_FUNCTIONS_LANE})"
    );
    lines_of_lanes(&lanes)
}

/// The lines `o` of the lanes in a relation with one column, each with its lane. A condition may follow.
fn lines_of_lanes(lanes: &str) -> String {
    format!(
        "SELECT a.lane, o.* FROM {lanes} AS a (lane) CROSS JOIN LATERAL (WITH RECURSIVE {} SELECT * FROM line) AS o",
        lines("a.lane")
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

impl<'r> Values<'r> for Line {
    const COUNT: usize = 2;
    fn read_from(row: &Row<'r>, place: usize) -> Result<Self> {
        let (worker, owner) = <(_, pg_sys::Oid)>::read_from(row, place)?;
        Ok(Self { worker, owner: owner.to_u32() })
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

/// Counts the calls for runners. `levels`: the lanes of priorities with calls that functions answer.
pub fn for_runners(
    spi: &Spi,
    workers: &[WorkerId],
    levels: &[i16],
    (now, real): (Timestamp, Timestamp),
    at_most: usize,
) -> Result<ForRunners> {
    let mut params = vec![array(workers), value(now), value(0i64), value(real), value(at_most as i64)];
    params.push(array(levels.iter().copied().chain([RUNNERS_LANE])));
    let (workers, functions, next): (i64, i64, _) = <Option<_>>::of(spi, &FOR_RUNNERS, &params)?.unwrap_or_default();
    Ok(ForRunners { workers: workers as usize, functions: functions as usize, next })
}

/// The lines with a due call that comes before calls of processes without a priority. `levels`: the lanes of priorities
/// with calls.
pub fn due_first(spi: &Spi, levels: &[i16], epoch: i64, (now, real): (Timestamp, Timestamp)) -> Result<HashSet<Line>> {
    let first: Vec<_> = levels.iter().copied().filter(|lane| comes_first(*lane)).collect();
    if first.is_empty() {
        return Ok(HashSet::new());
    }
    due_in(spi, &first, now, epoch, real)
}

/// When the next call of these lines is due after `now`.
pub fn next_due(
    spi: &Spi,
    lane: i16,
    lines: impl IntoIterator<Item = Line>,
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    Ok(next_of(spi, &lines.into_iter().map(OfLine::from).collect::<Vec<_>>(), lane, now)?.flatten())
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
