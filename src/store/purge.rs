//! Closed executions are deleted, with everything that belongs to them.
//!
//! Nothing here waits for a lock: what somebody holds is left for the next time. An execution is gone when its own
//! row is; rows that belong to it may follow later, and `xdb.purged` says which.

use crate::pg::catch::Result;
use crate::pg::param::{array, nullable, value};
use crate::pg::spi::Spi;
use std::collections::BTreeSet;
use xdb_engine::{ExecutionId, Timestamp};

/// Tables with rows of an execution, besides its own and that of its process id.
const TABLES: [&str; 11] = [
    "history_event",
    "state_execution",
    "local_attribute",
    "rpc_answer",
    "message_key",
    "queue_message",
    "queue_waiter",
    "global_waiter",
    "inbox",
    "timer",
    "task",
];

/// Most executions whose left rows are deleted in one sweep.
const SWEPT: i64 = 100;

/// A place in the order of closing.
#[derive(Clone, Copy, Debug)]
pub struct Cursor(Timestamp, ExecutionId);

impl Cursor {
    /// Before all executions.
    pub const START: Self = Self(Timestamp(i64::MIN), ExecutionId([0; 16]));
}

/// What became of a batch.
pub struct Batch {
    /// How many executions were deleted.
    pub purged: usize,
    /// How far it came.
    pub reached: Cursor,
    /// There may be more behind that.
    pub more: bool,
    /// Rows were left that [`sweep`] deletes.
    pub left: bool,
}

/// Deletes executions that closed until `before`, the oldest first, at most `limit` of them. `rows` is the most rows
/// of one table that are deleted at once.
pub fn batch(spi: &Spi, before: Timestamp, after: Cursor, limit: usize, rows: Option<i64>) -> Result<Batch> {
    const CLOSED: &str = "SELECT p.execution_id, p.closed_at, p.process_id, l.process_id IS NOT NULL \
        FROM xdb.process_execution p LEFT JOIN xdb.latest_execution l \
            ON l.process_id = p.process_id AND l.execution_id = p.execution_id \
        WHERE p.closed_at <= $1 AND (p.closed_at, p.execution_id) > ($2, $3) \
        ORDER BY p.closed_at, p.execution_id LIMIT $4";
    let params = [value(before), value(after.0), value(after.1), value(limit as i64)];
    let closed = spi.rows(CLOSED, &params, |row| {
        let (process_id, latest) = (row.need::<String>(3)?, row.need::<bool>(4)?);
        Ok((row.execution_id(1)?, row.need_time(2)?, latest.then_some(process_id)))
    })?;
    let reached = closed.last().map_or(after, |(id, closed_at, _)| Cursor(*closed_at, *id));
    let latest: Vec<_> = closed.iter().filter_map(|(id, _, latest)| Some((latest.as_deref()?, *id))).collect();
    let latest_locked = lock_latest(spi, &latest)?;
    let free = closed.iter().filter(|(id, _, latest)| latest.is_none() || latest_locked.contains(id));
    let mut locked = lock(spi, free.map(|(id, ..)| *id))?;
    // An execution is found by its process id as long as it exists: the latest one goes last.
    let latest: Vec<_> = latest.into_iter().filter(|(_, id)| locked.contains(id)).collect();
    let outlived = outlived(spi, &latest, &locked)?;
    let latest: Vec<_> = latest.into_iter().filter(|(process_id, _)| !outlived.contains(*process_id)).collect();
    locked.retain(|id| !latest_locked.contains(id) || latest.iter().any(|(_, latest)| latest == id));
    let ids: Vec<_> = locked.into_iter().collect();
    let left = delete(spi, &ids, &latest, rows)?;
    Ok(Batch { purged: ids.len(), reached, more: closed.len() == limit, left })
}

fn lock_latest(spi: &Spi, latest: &[(&str, ExecutionId)]) -> Result<BTreeSet<ExecutionId>> {
    const LOCK: &str = "SELECT l.execution_id FROM xdb.latest_execution l \
        JOIN unnest($1::text[], $2::uuid[]) AS k (process_id, execution_id) \
            ON l.process_id = k.process_id AND l.execution_id = k.execution_id \
        ORDER BY l.process_id FOR UPDATE OF l SKIP LOCKED";
    if latest.is_empty() {
        return Ok(BTreeSet::new());
    }
    let params = [array(latest.iter().map(|l| l.0)), array(latest.iter().map(|l| l.1))];
    Ok(spi.rows(LOCK, &params, |row| row.execution_id(1))?.into_iter().collect())
}

fn lock(spi: &Spi, ids: impl Iterator<Item = ExecutionId>) -> Result<BTreeSet<ExecutionId>> {
    const LOCK: &str = "SELECT execution_id FROM xdb.process_execution \
        WHERE execution_id = ANY ($1) AND closed_at IS NOT NULL ORDER BY execution_id FOR UPDATE SKIP LOCKED";
    Ok(spi.rows(LOCK, &[array(ids)], |row| row.execution_id(1))?.into_iter().collect())
}

/// Process ids of these latest executions that keep another one.
fn outlived(spi: &Spi, latest: &[(&str, ExecutionId)], going: &BTreeSet<ExecutionId>) -> Result<BTreeSet<String>> {
    const SELECT: &str = "SELECT DISTINCT process_id FROM xdb.process_execution \
        WHERE process_id = ANY ($1) AND execution_id <> ALL ($2)";
    if latest.is_empty() {
        return Ok(BTreeSet::new());
    }
    let params = [array(latest.iter().map(|l| l.0)), array(going.iter().copied())];
    Ok(spi.rows(SELECT, &params, |row| row.need(1))?.into_iter().collect())
}

/// Deletes executions that are locked. True when rows of them are left.
fn delete(spi: &Spi, ids: &[ExecutionId], latest: &[(&str, ExecutionId)], rows: Option<i64>) -> Result<bool> {
    if ids.is_empty() {
        return Ok(false);
    }
    let left = delete_rows(spi, ids, rows)?;
    let params = [array(ids.iter().copied())];
    if left {
        spi.run("INSERT INTO xdb.purged (execution_id) SELECT unnest($1::uuid[])", &params)?;
    }
    const LATEST: &str = "DELETE FROM xdb.latest_execution WHERE process_id = ANY ($1)";
    if !latest.is_empty() {
        spi.run(LATEST, &[array(latest.iter().map(|l| l.0))])?;
    }
    spi.run("DELETE FROM xdb.process_execution WHERE execution_id = ANY ($1)", &params)?;
    Ok(left)
}

/// Deletes rows that belong to these executions. True when a limit was reached, so that there may be more.
fn delete_rows(spi: &Spi, ids: &[ExecutionId], rows: Option<i64>) -> Result<bool> {
    let mut left = false;
    for table in TABLES {
        let sql = format!(
            "DELETE FROM xdb.{table} WHERE ctid = ANY (ARRAY( \
             SELECT ctid FROM xdb.{table} WHERE execution_id = ANY ($1) LIMIT $2))"
        );
        let deleted = spi.run(&sql, &[array(ids.iter().copied()), nullable(rows)])?;
        left |= rows.is_some_and(|rows| deleted >= rows as u64);
    }
    Ok(left)
}

/// Deletes rows that executions have left. True when there may be more.
pub fn sweep(spi: &Spi, rows: i64) -> Result<bool> {
    const SELECT: &str = "SELECT execution_id FROM xdb.purged ORDER BY execution_id LIMIT $1 FOR UPDATE SKIP LOCKED";
    let ids = spi.rows(SELECT, &[value(SWEPT)], |row| row.execution_id(1))?;
    if ids.is_empty() {
        return Ok(false);
    }
    if delete_rows(spi, &ids, Some(rows))? {
        return Ok(true);
    }
    spi.run("DELETE FROM xdb.purged WHERE execution_id = ANY ($1)", &[array(ids.iter().copied())])?;
    Ok(ids.len() as i64 == SWEPT)
}
