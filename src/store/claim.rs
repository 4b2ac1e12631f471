//! Due calls: taken under a lease, with all that their requests need.

use super::StateKey;
use super::registry::WorkerId;
use super::save::Lease;
use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::spi::Spi;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{ExecutionId, StateSeq, Timestamp};

/// A due call that this transaction has locked.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub key: StateKey,
    /// Attempts that were begun before.
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
}

/// What a scheduler claims from.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub number: i16,
    /// Leases of earlier epochs are void: whoever held them is gone.
    pub epoch: i64,
}

/// Locks due calls, for each worker as many as it has room for.
pub fn due(
    spi: &Spi,
    lane: Lane,
    room: &[(WorkerId, usize)],
    except: &[ExecutionId],
    now: Timestamp,
) -> Result<Vec<Due>> {
    const SELECT: &str = "SELECT d.execution_id, d.seq, d.attempt, d.first_attempt_at \
        FROM unnest($1::int[], $2::bigint[]) AS w (worker_id, room) \
        CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at FROM xdb.task t \
            WHERE t.lane = $3 AND t.worker_id = w.worker_id AND t.due_at <= $4 \
                AND (t.lease_until IS NULL OR t.lease_epoch < $5 OR t.lease_until <= $4) \
                AND t.execution_id <> ALL ($6) \
            ORDER BY t.due_at LIMIT w.room FOR UPDATE SKIP LOCKED) AS d";
    let params = [
        array(room.iter().map(|r| r.0)),
        array(room.iter().map(|r| r.1 as i64)),
        value(lane.number),
        value(now),
        value(lane.epoch),
        array(except.iter().copied()),
    ];
    spi.rows(SELECT, &params, |row| {
        Ok(Due {
            key: (row.execution_id(1)?, StateSeq(row.need::<i32>(2)? as u32)),
            attempts: row.need::<i32>(3)? as u32,
            first_attempt_at: row.time(4),
        })
    })
}

/// Writes the leases of calls that were locked by [`due`] and go out after the commit.
pub fn lease(spi: &Spi, leases: &HashMap<StateKey, Lease>, now: Timestamp) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET attempt = t.attempt + 1, \
        first_attempt_at = COALESCE(t.first_attempt_at, $1), lease_epoch = v.lease_epoch, \
        lease_number = v.lease_number, lease_until = v.lease_until \
        FROM unnest($2::uuid[], $3::int[], $4::bigint[], $5::bigint[], $6::timestamptz[]) \
        AS v (execution_id, seq, lease_epoch, lease_number, lease_until) \
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

/// Gives tasks to the other lane, without a lease.
pub fn move_to_lane(spi: &Spi, keys: &[StateKey], lane: i16) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET lane = $1, lease_epoch = 0, lease_number = 0, lease_until = NULL \
        FROM unnest($2::uuid[], $3::int[]) AS k (execution_id, seq) \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
    if keys.is_empty() {
        return Ok(());
    }
    let params = [value(lane), array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))];
    spi.run(UPDATE, &params)?;
    Ok(())
}

/// Takes leases back before their calls were made.
pub fn release(spi: &Spi, keys: &[StateKey]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), lease_epoch = 0, \
        lease_number = 0, lease_until = NULL FROM unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
    if keys.is_empty() {
        return Ok(());
    }
    spi.run(UPDATE, &[array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))])?;
    Ok(())
}

/// Takes leases back whose answers were given up: the calls are made again.
pub fn give_up(spi: &Spi, keys: &[StateKey]) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.task t SET lease_epoch = 0, lease_number = 0, lease_until = NULL \
        FROM unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) \
        WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
    if keys.is_empty() {
        return Ok(());
    }
    spi.run(UPDATE, &[array(keys.iter().map(|k| k.0)), array(keys.iter().map(|k| k.1.0 as i32))])?;
    Ok(())
}

/// When the next call or timer comes due after `now`.
pub fn next_due(spi: &Spi, lane: Lane, workers: &[WorkerId], now: Timestamp) -> Result<Option<Timestamp>> {
    const SELECT: &str = "SELECT LEAST( \
        (SELECT min(n.due_at) FROM unnest($1::int[]) AS w (worker_id) CROSS JOIN LATERAL ( \
            SELECT t.due_at FROM xdb.task t WHERE t.lane = $2 AND t.worker_id = w.worker_id AND t.due_at > $3 \
            ORDER BY t.due_at LIMIT 1) AS n), \
        (SELECT fire_at FROM xdb.timer WHERE $2 = 0 AND fire_at > $3 ORDER BY fire_at LIMIT 1))";
    let params = [array(workers.iter().copied()), value(lane.number), value(now)];
    Ok(spi.first(SELECT, &params, |row| Ok(row.time(1)))?.flatten())
}

/// How many calls are due or under way, and since when the oldest waits: for people, counted up to a bound.
pub fn backlog(spi: &Spi, now: Timestamp) -> Result<(i64, Option<Timestamp>)> {
    const SELECT: &str = "SELECT count(*), min(b.due_at) FROM \
        (SELECT due_at FROM xdb.task WHERE due_at <= $1 ORDER BY lane, worker_id, due_at LIMIT 10000) AS b";
    Ok(spi.first(SELECT, &[value(now)], |row| Ok((row.need(1)?, row.time(2))))?.unwrap_or((0, None)))
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
