//! Due calls: taken under a lease, with all that their requests need.

use super::StateKey;
use super::registry::WorkerId;
use super::save::Lease;
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{array, value};
use crate::pg::spi::{Row, Snapshot, Spi};
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{ExecutionId, StateSeq, Timestamp};

/// A due call that this transaction has locked.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub key: StateKey,
    /// The worker that it was found under; its process type may have another one by now.
    pub worker: WorkerId,
    /// Attempts that were begun before.
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
    pub due_at: Timestamp,
}

/// What to claim for a worker.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub worker: WorkerId,
    pub at_most: usize,
    /// Calls that were due before are not looked at.
    pub from: Option<Timestamp>,
}

/// The lane of the scheduler's calls.
pub const SCHEDULERS_LANE: i16 = 0;
/// The lane of the runners' calls.
pub const RUNNERS_LANE: i16 = 1;

/// What a process claims from.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub number: i16,
    /// Of the leases that it gives.
    pub epoch: i64,
}

impl Lane {
    /// Puts into a statement, for `{free}`, that nobody has a good lease on the task `t` at the time `$now`. In the scheduler's
    /// lane a lease of an earlier epoch than its own, `$own`, is void: whoever held it is gone. Runners live side by side, so a
    /// lease is void there when no row has its epoch; one above all that the statement sees is that of a runner which has begun
    /// since.
    fn with_free(self, sql: &str, own: &str, now: &str) -> String {
        let void = match self.number {
            RUNNERS_LANE => "t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) \
                AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch)"
                .to_owned(),
            _ => format!("t.lease_epoch < {own}"),
        };
        sql.replace("{free}", &format!("(t.lease_until IS NULL OR t.lease_until <= {now} OR {void})"))
    }
}

/// Locks due calls, for each worker as many as it has room for. What is due goes by the time of processes, leases by the
/// real one.
pub fn due(
    spi: &Spi,
    lane: Lane,
    wanted: &[Wanted],
    except: &[ExecutionId],
    now: Timestamp,
    real: Timestamp,
) -> Result<Vec<Due>> {
    const SELECT: &str = "SELECT d.execution_id, d.seq, d.attempt, d.first_attempt_at, w.worker_id, d.due_at \
        FROM (SELECT unnest($1::int[]) AS worker_id, unnest($2::bigint[]) AS room, \
            unnest($8::timestamptz[]) AS since) AS w \
        CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.due_at FROM xdb.task t \
            WHERE t.lane = $3 AND t.worker_id = w.worker_id AND t.due_at >= w.since AND t.due_at <= $4 \
                AND {free} AND t.execution_id <> ALL ($6) \
            ORDER BY t.due_at LIMIT w.room FOR UPDATE SKIP LOCKED) AS d";
    let params = [
        array(wanted.iter().map(|w| w.worker)),
        array(wanted.iter().map(|w| w.at_most as i64)),
        value(lane.number),
        value(now),
        value(lane.epoch),
        array(except.iter().copied()),
        value(real),
        array(wanted.iter().map(|w| w.from.unwrap_or(Timestamp::EARLIEST))),
    ];
    let due = spi.rows(&lane.with_free(SELECT, "$5", "$7"), &params, read_due)?;
    #[cfg(feature = "plants")]
    let due = super::planted::behind_cursor(spi, due)?;
    Ok(due)
}

fn read_due(row: &Row) -> Result<Due> {
    Ok(Due {
        key: (row.execution_id(1)?, StateSeq(row.need::<i32>(2)? as u32)),
        attempts: row.need::<i32>(3)? as u32,
        first_attempt_at: row.time(4),
        worker: row.need(5)?,
        due_at: row.need_time(6)?,
    })
}

/// What these executions have that a look at what is due would find, had it not left them out: the earliest call, the earliest
/// timer, the first message.
pub fn left_out(
    spi: &Spi,
    lane: Lane,
    ids: &[ExecutionId],
    now: Timestamp,
    real: Timestamp,
) -> Result<(Option<Timestamp>, Option<Timestamp>, Option<i64>)> {
    // Offset 0: else the planner takes walking through the index of due times for a way to the least of them.
    const SELECT: &str = "SELECT (SELECT min(o.due_at) FROM (SELECT t.due_at FROM xdb.task t \
                WHERE t.execution_id = ANY ($1) AND t.lane = $2 AND t.due_at <= $3 \
                    AND {free} OFFSET 0) AS o), \
            (SELECT min(o.fire_at) FROM (SELECT t.fire_at FROM xdb.timer t \
                WHERE t.execution_id = ANY ($1) AND t.fire_at <= $3 OFFSET 0) AS o), \
            (SELECT min(o.inbox_id) FROM (SELECT i.inbox_id FROM xdb.inbox i \
                WHERE i.execution_id = ANY ($1) OFFSET 0) AS o)";
    if ids.is_empty() {
        return Ok((None, None, None));
    }
    let params = [array(ids.iter().copied()), value(lane.number), value(now), value(lane.epoch), value(real)];
    let select = lane.with_free(SELECT, "$4", "$5");
    let found = spi.first(&select, &params, |row| Ok((row.time(1), row.time(2), row.get(3))))?;
    Ok(found.unwrap_or_default())
}

/// Writes the leases of calls that were locked by [`due`] and go out after the commit.
pub fn lease(spi: &Spi, leases: &HashMap<StateKey, Lease>, now: Timestamp) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET attempt = t.attempt + 1, \
        first_attempt_at = COALESCE(t.first_attempt_at, $1), lease_epoch = v.lease_epoch, \
        lease_number = v.lease_number, lease_until = v.lease_until \
        FROM (SELECT unnest($2::uuid[]) AS execution_id, unnest($3::int[]) AS seq, \
            unnest($4::bigint[]) AS lease_epoch, unnest($5::bigint[]) AS lease_number, \
            unnest($6::timestamptz[]) AS lease_until) AS v \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq";
    if leases.is_empty() {
        return Ok(());
    }
    let params = [
        value(now),
        array(leases.keys().map(|k| k.0)),
        array(leases.keys().map(|k| k.1.0 as i32)),
        array(leases.values().map(|l| l.epoch)),
        array(leases.values().map(|l| l.number)),
        array(leases.values().map(|l| l.until)),
    ];
    spi.run(UPDATE, &params)?;
    Ok(())
}

/// Gives calls to another lane, without a lease: those that [`due`] has locked, or the caller's own.
pub fn move_to_lane(spi: &Spi, keys: &[StateKey], lane: i16) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET lane = $1, lease_epoch = 0, lease_number = 0, lease_until = NULL \
        FROM (SELECT unnest($2::uuid[]) AS execution_id, unnest($3::int[]) AS seq) AS k \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
    if keys.is_empty() {
        return Ok(());
    }
    let params = [value(lane), array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    spi.run(UPDATE, &params)?;
    Ok(())
}

/// How many calls runners could claim now, counted up to a bound.
pub fn for_runners(spi: &Spi, workers: &[WorkerId], now: Timestamp, real: Timestamp, at_most: usize) -> Result<usize> {
    const SELECT: &str = "SELECT count(*) FROM (SELECT FROM (SELECT unnest($1::int[]) AS worker_id) AS w CROSS JOIN LATERAL ( \
            SELECT FROM xdb.task t WHERE t.lane = $2 AND t.worker_id = w.worker_id AND t.due_at <= $3 AND {free} \
            ORDER BY t.due_at LIMIT $5) AS d LIMIT $5) AS due";
    let lane = Lane { number: RUNNERS_LANE, epoch: 0 };
    let params = [array(workers.iter().copied()), value(lane.number), value(now), value(real), value(at_most as i64)];
    let count = spi.first(&lane.with_free(SELECT, "0", "$4"), &params, |row| row.need::<i64>(1))?;
    Ok(count.unwrap_or_default() as usize)
}

/// Whether any call waits for a runner, whatever its worker.
pub fn wait_for_runners(spi: &Spi, now: Timestamp, real: Timestamp) -> Result<bool> {
    const SELECT: &str = "SELECT EXISTS (SELECT FROM xdb.task t WHERE t.lane = $1 AND t.due_at <= $2 AND {free})";
    let lane = Lane { number: RUNNERS_LANE, epoch: 0 };
    let params = [value(lane.number), value(now), value(real)];
    Ok(spi.first(&lane.with_free(SELECT, "0", "$3"), &params, |row| row.need(1))?.unwrap_or(false))
}

/// Gives calls of the runners that nobody has a lease on back to the scheduler, because nothing is slow any more. True when
/// there may be more.
pub fn take_back_from_runners(spi: &Spi, real: Timestamp) -> Result<bool> {
    const AT_ONCE: i64 = 1000;
    const MOVE: &str = "WITH back AS MATERIALIZED (SELECT t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lane = $1 AND {free} LIMIT $4 FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET lane = $2, lease_epoch = 0, lease_number = 0, lease_until = NULL FROM back \
        WHERE t.execution_id = back.execution_id AND t.seq = back.seq";
    let lane = Lane { number: RUNNERS_LANE, epoch: 0 };
    let params = [value(lane.number), value(SCHEDULERS_LANE), value(real), value(AT_ONCE)];
    Ok(spi.run(&lane.with_free(MOVE, "0", "$3"), &params)? >= AT_ONCE as u64)
}

/// Leases calls that [`due`] has locked without an end: they wait for locks in their scheduler's memory, which is no attempt.
/// When the scheduler is gone the lease is void, and the calls are due again.
pub fn park(spi: &Spi, lane: Lane, number: i64, keys: &[StateKey]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET lease_epoch = $1, lease_number = $2, lease_until = 'infinity' \
        FROM (SELECT unnest($3::uuid[]) AS execution_id, unnest($4::int[]) AS seq) AS k \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
    if keys.is_empty() {
        return Ok(());
    }
    let params =
        [value(lane.epoch), value(number), array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    spi.run(UPDATE, &params)?;
    Ok(())
}

/// Takes the leases of calls that are parked back.
pub fn unpark(spi: &Spi, keys: &[StateKey]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET lease_epoch = 0, lease_number = 0, lease_until = NULL \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq AND t.lease_until = 'infinity'";
    if keys.is_empty() {
        return Ok(());
    }
    spi.run(UPDATE, &[array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))])?;
    Ok(())
}

/// Locks those of these calls that this scheduler has parked. What somebody else has locked is left out.
pub fn parked(spi: &Spi, lane: Lane, keys: &[StateKey]) -> Result<Vec<Due>> {
    const SELECT: &str = "SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.worker_id, t.due_at \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
        JOIN xdb.task t ON t.execution_id = k.execution_id AND t.seq = k.seq \
        WHERE t.lane = $3 AND t.lease_epoch = $4 AND t.lease_until = 'infinity' FOR UPDATE OF t SKIP LOCKED";
    let params = [
        array(keys.iter().map(|k| k.0)),
        array(keys.iter().map(|k| k.1.0 as i32)),
        value(lane.number),
        value(lane.epoch),
    ];
    spi.rows(SELECT, &params, read_due)
}

/// Puts tasks that [`due`] has locked under other workers.
pub fn move_to_workers(spi: &Spi, tasks: &[(StateKey, WorkerId)]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET worker_id = v.worker_id \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
            unnest($3::int[]) AS worker_id) AS v \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq";
    if tasks.is_empty() {
        return Ok(());
    }
    let params = [
        array(tasks.iter().map(|t| t.0.0)),
        array(tasks.iter().map(|t| t.0.1.0 as i32)),
        array(tasks.iter().map(|t| t.1)),
    ];
    spi.run(UPDATE, &params)?;
    Ok(())
}

/// The place of a task among those of its worker.
pub type TaskPlace = (Timestamp, ExecutionId, StateSeq);

/// Before every task.
const FIRST_PLACE: TaskPlace = (Timestamp::EARLIEST, ExecutionId([0; 16]), StateSeq(0));

/// Looks through a slice of the calls that wait for a worker, due or not, and gives those to their process type's worker
/// of now that have another one. Answers how far it came; `None` when that was the end.
pub fn follow_types(spi: &Spi, lane: Lane, worker: WorkerId, after: Option<TaskPlace>) -> Result<Option<TaskPlace>> {
    const SLICE: i64 = 1000;
    const UPDATE: &str = "WITH slice AS MATERIALIZED (SELECT t.due_at, t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lane = $1 AND t.worker_id = $2 AND t.due_at >= $3 \
                AND (t.due_at, t.execution_id, t.seq) > ($3, $4, $5) \
            ORDER BY t.due_at, t.execution_id, t.seq LIMIT $6), \
        moved AS MATERIALIZED (SELECT k.execution_id, k.seq, y.worker_id FROM slice s \
            JOIN xdb.process_execution p ON p.execution_id = s.execution_id \
            JOIN xdb.process_type y ON y.type_id = p.type_id \
            JOIN xdb.task k ON k.execution_id = s.execution_id AND k.seq = s.seq \
            WHERE y.worker_id <> $2 FOR UPDATE OF k SKIP LOCKED), \
        given AS (UPDATE xdb.task k SET worker_id = m.worker_id FROM moved m \
            WHERE k.execution_id = m.execution_id AND k.seq = m.seq) \
        SELECT due_at, execution_id, seq, (SELECT count(*) FROM slice) = $6 FROM slice \
        ORDER BY due_at DESC, execution_id DESC, seq DESC LIMIT 1";
    let (due_at, execution, seq) = after.unwrap_or(FIRST_PLACE);
    let params =
        [value(lane.number), value(worker), value(due_at), value(execution), value(seq.0 as i32), value(SLICE)];
    let last = spi.first(UPDATE, &params, |row| {
        let place = (row.need_time(1)?, row.execution_id(2)?, StateSeq(row.need::<i32>(3)? as u32));
        Ok((place, row.need::<bool>(4)?))
    })?;
    Ok(last.and_then(|(place, more)| more.then_some(place)))
}

/// Takes leases back before their calls were made.
pub fn release(spi: &Spi, keys: &[StateKey]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), lease_epoch = 0, \
        lease_number = 0, lease_until = NULL FROM (SELECT unnest($1::uuid[]) AS execution_id, \
            unnest($2::int[]) AS seq) AS k \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
    if keys.is_empty() {
        return Ok(());
    }
    spi.run(UPDATE, &[array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))])?;
    Ok(())
}

/// Takes the leases of this epoch back from calls whose answers were dropped: the calls are made again, as the same attempt.
/// What somebody else has locked is left.
pub fn release_free(spi: &Spi, epoch: i64, keys: &[StateKey]) -> Result<()> {
    const UPDATE: &str = "WITH held AS MATERIALIZED (SELECT t.execution_id, t.seq \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
            JOIN xdb.task t ON t.execution_id = k.execution_id AND t.seq = k.seq \
            WHERE t.lease_epoch = $3 FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), lease_epoch = 0, lease_number = 0, \
            lease_until = NULL FROM held WHERE t.execution_id = held.execution_id AND t.seq = held.seq";
    let params = [array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32)), value(epoch)];
    spi.run(UPDATE, &params)?;
    Ok(())
}

/// Moves calls that wait under workers which are no longer registered to the workers of their types. What somebody
/// else has locked is left for the next time. True when there may be more.
pub fn adopt_orphans(spi: &Spi, lane: i16, known: &[WorkerId]) -> Result<bool> {
    // One look into the index per worker, however many calls there are.
    const WORKERS: &str = "WITH RECURSIVE ids (worker_id) AS ( \
            (SELECT worker_id FROM xdb.task WHERE lane = $1 ORDER BY worker_id LIMIT 1) \
            UNION ALL SELECT (SELECT k.worker_id FROM xdb.task k \
                WHERE k.lane = $1 AND k.worker_id > ids.worker_id ORDER BY k.worker_id LIMIT 1) \
            FROM ids WHERE ids.worker_id IS NOT NULL) \
        SELECT worker_id FROM ids WHERE worker_id IS NOT NULL AND worker_id <> ALL ($2)";
    const MOVE: &str = "WITH orphan AS MATERIALIZED (SELECT k.execution_id, k.seq FROM xdb.task k \
            WHERE k.lane = $1 AND k.worker_id = ANY ($2) LIMIT $3 FOR UPDATE SKIP LOCKED) \
        UPDATE xdb.task k SET worker_id = t.worker_id \
        FROM orphan JOIN xdb.process_execution p USING (execution_id) JOIN xdb.process_type t USING (type_id) \
        WHERE k.execution_id = orphan.execution_id AND k.seq = orphan.seq";
    const AT_ONCE: i64 = 1000;
    let gone = spi.rows(WORKERS, &[value(lane), array(known.iter().copied())], |row| row.need::<WorkerId>(1))?;
    if gone.is_empty() {
        return Ok(false);
    }
    let moved = spi.run(MOVE, &[value(lane), array(gone), value(AT_ONCE)])?;
    Ok(moved >= AT_ONCE as u64)
}

/// When the next call of these lanes comes due after `now`, or the next timer, where the scheduler's lane is one of them.
pub fn next_due(spi: &Spi, lanes: &[i16], workers: &[WorkerId], now: Timestamp) -> Result<Option<Timestamp>> {
    const SELECT: &str = "SELECT LEAST( \
        (SELECT min(n.due_at) FROM (SELECT unnest($1::int[]) AS worker_id) AS w \
            CROSS JOIN (SELECT unnest($2::smallint[]) AS lane) AS l CROSS JOIN LATERAL ( \
            SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = w.worker_id AND t.due_at > $3 \
            ORDER BY t.due_at LIMIT 1) AS n), \
        (SELECT fire_at FROM xdb.timer WHERE 0 = ANY ($2) AND fire_at > $3 ORDER BY fire_at LIMIT 1))";
    let params = [array(workers.iter().copied()), array(lanes.iter().copied()), value(now)];
    Ok(spi.first(SELECT, &params, |row| Ok(row.time(1)))?.flatten())
}

/// When the earliest call or timer comes due or came due, and whether there are messages: everything that a scheduler with no
/// call under way has to look for.
pub fn earliest(spi: &Spi, lane: Lane, workers: &[WorkerId]) -> Result<(Option<Timestamp>, bool)> {
    const SELECT: &str = "SELECT LEAST( \
            (SELECT min(n.due_at) FROM (SELECT unnest($1::int[]) AS worker_id) AS w CROSS JOIN LATERAL ( \
                SELECT t.due_at FROM xdb.task t WHERE t.lane = $2 AND t.worker_id = w.worker_id \
                ORDER BY t.due_at LIMIT 1) AS n), \
            (SELECT fire_at FROM xdb.timer ORDER BY fire_at LIMIT 1)), \
        EXISTS (SELECT FROM xdb.inbox)";
    let params = [array(workers.iter().copied()), value(lane.number)];
    let found = spi.first(SELECT, &params, |row| Ok((row.time(1), row.need(2)?)))?;
    found.ok_or_else(|| PgError::internal("a glance found no row"))
}

/// How many calls are due or under way, counted up to a bound, and since when the oldest waits: for people. By worker,
/// as in [`next_due`], so that calls that are due later are not walked over.
pub fn backlog(spi: &Spi, now: Timestamp) -> Result<(i64, Option<Timestamp>)> {
    const SELECT: &str = "WITH line AS (SELECT l.lane, w.worker_id FROM unnest('{0,1}'::smallint[]) AS l (lane), xdb.worker w) \
        SELECT (SELECT count(*) FROM (SELECT FROM line l CROSS JOIN LATERAL ( \
                SELECT FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.due_at <= $1 \
                LIMIT 10000) AS due LIMIT 10000) AS counted), \
            (SELECT min(o.due_at) FROM line l CROSS JOIN LATERAL ( \
                SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.due_at <= $1 \
                ORDER BY t.due_at LIMIT 1) AS o)";
    let read = |row: &Row| Ok((row.need(1)?, row.time(2)));
    Ok(spi.first_with(Snapshot::Active, SELECT, &[value(now)], read)?.unwrap_or((0, None)))
}

/// Local attributes of these executions, by key, as JSON text.
pub fn local_attributes(spi: &Spi, ids: &[ExecutionId]) -> Result<HashMap<ExecutionId, BTreeMap<String, String>>> {
    const SELECT: &str = "SELECT execution_id, key, value::text FROM xdb.local_attribute WHERE execution_id = ANY ($1)";
    let mut attributes: HashMap<ExecutionId, BTreeMap<String, String>> = HashMap::new();
    if ids.is_empty() {
        return Ok(attributes);
    }
    let rows =
        spi.rows(SELECT, &[array(ids.iter().copied())], |row| Ok((row.execution_id(1)?, row.need(2)?, row.need(3)?)))?;
    for (id, key, value) in rows {
        attributes.entry(id).or_default().insert(key, value);
    }
    Ok(attributes)
}
