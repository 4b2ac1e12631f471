//! Deletes closed executions with everything that belongs to them.
//!
//! Nothing here waits for a lock: rows that another transaction has locked are deleted next time. An execution is
//! deleted when its own row is.
//!
//! Limitations: further rows of a deleted execution may be deleted later. `xdb.purged` lists such executions.

use super::table::{insert, rows as rows_of, run, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::spi::Spi;
use std::collections::BTreeSet;
use xdb_engine::{ExecutionId, Timestamp};

table! {
    /// A purged execution that still has rows. Sweeps delete these rows in slices.
    pub struct Purged in "purged" {
        key { execution_id: ExecutionId }
    }
}

/// Tables with rows of an execution, besides `process_execution` and `latest_execution`. The scheduler deletes rows of
/// `process_lock`: they tell it that the locks are free.
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

/// Deletes rows of executions from all of these tables, at most $2 from each.
fn some_rows() -> String {
    let some_of = |table| {
        format!(
            "{table} AS (DELETE FROM xdb.{table} WHERE ctid = ANY (ARRAY( \
            SELECT ctid FROM xdb.{table} WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true)"
        )
    };
    let is_cut = TABLES.map(|table| format!("(SELECT count(*) FROM {table})")).join(", ");
    format!("WITH {} SELECT COALESCE(GREATEST({is_cut}) >= $2, false) AS left", TABLES.map(some_of).join(", "))
}

/// Executions that fulfil the condition `which`, in the order of a column.
fn old(column: &str, which: &str) -> String {
    format!(
        "SELECT p.execution_id, NULLIF(p.{column}, 'infinity') AS at, p.process_id, l.process_id IS NOT NULL AS is_latest \
        FROM xdb.process_execution p LEFT JOIN xdb.latest_execution l \
            ON l.process_id = p.process_id AND l.execution_id = p.execution_id \
        WHERE {which} AND (p.{column}, p.execution_id) > (COALESCE($2, 'infinity'::timestamptz), $3) \
        ORDER BY p.{column}, p.execution_id LIMIT $4"
    )
}

statements! {
    CLOSED = old("closed_at", "p.closed_at <= $1 AND p.purge_at IS NULL");
    OVERDUE = old("purge_at", "p.purge_at <= $1");
    RETAINED = old("purge_at", "p.purge_at IS NOT NULL AND p.closed_at <= $1");
    /// Locks the given process ids whose latest executions these are.
    LOCK_LATEST = "SELECT l.execution_id FROM xdb.latest_execution l \
        JOIN unnest($1::text[], $2::uuid[]) AS k (process_id, execution_id) \
            ON l.process_id = k.process_id AND l.execution_id = k.execution_id \
        ORDER BY l.process_id FOR UPDATE OF l SKIP LOCKED"
        => fn lock_latest(process_ids: &[&str], ids: &[ExecutionId]) -> BTreeSet<ExecutionId>;
    CORRELATED = "SELECT c.execution_id FROM xdb.correlated_start c WHERE c.execution_id = ANY ($1)"
        => fn correlated(ids: &[ExecutionId]) -> BTreeSet<ExecutionId>;
    LOCK_CORRELATED = "SELECT c.execution_id FROM xdb.correlated_start c WHERE c.execution_id = ANY ($1) \
        ORDER BY c.type_id, c.owner, c.correlation_key FOR UPDATE SKIP LOCKED"
        => fn lock_correlated(ids: &BTreeSet<ExecutionId>) -> BTreeSet<ExecutionId>;
    LOCK = "SELECT execution_id FROM xdb.process_execution \
        WHERE execution_id = ANY ($1) AND closed_at IS NOT NULL ORDER BY execution_id FOR UPDATE SKIP LOCKED"
        => fn lock(ids: &[ExecutionId]) -> BTreeSet<ExecutionId>;
    /// The given process ids that have further executions.
    OUTLIVED = "SELECT DISTINCT process_id FROM xdb.process_execution \
        WHERE process_id = ANY ($1) AND execution_id <> ALL ($2)"
        => fn outlived(process_ids: &[&str], going: &BTreeSet<ExecutionId>) -> BTreeSet<String>;
    NOTE = insert::<Purged>();
    /// Deletes rows of these executions. True if a limit was reached, so that there may be more.
    SOME_ROWS = some_rows() => fn delete_rows(ids: &[ExecutionId], limit: Option<i64>) -> bool;
    NOTED = format!("SELECT execution_id FROM xdb.purged ORDER BY execution_id LIMIT {SWEPT} FOR UPDATE SKIP LOCKED")
        => fn noted() -> Vec<ExecutionId>;
    FORGET = "DELETE FROM xdb.purged WHERE execution_id = ANY ($1)" => fn forget(ids: &[ExecutionId]) -> ();
    FORGET_CORRELATED = "DELETE FROM xdb.correlated_start WHERE execution_id = ANY ($1)"
        => fn forget_correlated(ids: &[ExecutionId]) -> ();
    DELETE_LATEST = "DELETE FROM xdb.latest_execution WHERE process_id = ANY ($1)"
        => fn delete_latest(process_ids: &[&str]) -> ();
    DELETE = "DELETE FROM xdb.process_execution WHERE execution_id = ANY ($1)"
        => fn delete_executions(ids: &[ExecutionId]) -> ();
}

/// The most executions whose remaining rows are deleted in one sweep.
const SWEPT: usize = 100;

/// Which executions are old enough to purge.
#[derive(Clone, Copy, Debug)]
pub enum Old {
    /// Executions that closed until then, and have no retention of their own.
    Closed(Timestamp),
    /// Executions whose own retention ended until then.
    Overdue(Timestamp),
    /// Executions that closed until then, and have any retention of their own.
    Retained(Timestamp),
}

/// A cursor in the order of closing, or of purging. None stands for infinity.
#[derive(Clone, Copy, Debug)]
pub struct Cursor(Option<Timestamp>, ExecutionId);

impl Cursor {
    /// The position before all executions.
    pub const START: Self = Self(Some(Timestamp(i64::MIN)), ExecutionId([0; 16]));
}

/// The result of a batch.
pub struct PurgedBatch {
    /// How many executions were deleted.
    pub purged: usize,
    /// Where the next batch begins.
    pub reached: Cursor,
    /// Whether there may be more.
    pub more: bool,
    /// Whether rows are left for [`sweep`].
    pub left: bool,
}

/// Deletes old executions, the oldest first, at most `limit`. `rows` is the most rows of one table that are deleted at
/// once.
pub fn batch(spi: &Spi, old: Old, after: Cursor, limit: usize, rows: Option<i64>) -> Result<PurgedBatch> {
    let (statement, until) = match old {
        Old::Closed(until) => (&CLOSED, until),
        Old::Overdue(until) => (&OVERDUE, until),
        Old::Retained(until) => (&RETAINED, until),
    };
    let params = [value(until), value(after.0), value(after.1), value(limit as i64)];
    let closed: Vec<(ExecutionId, Option<Timestamp>, String, bool)> = rows_of(spi, statement, &params)?;
    let reached = closed.last().map_or(after, |(id, at, ..)| Cursor(*at, *id));
    // An execution is found by its process id as long as it exists. So the latest execution of an id is deleted last.
    let (process_ids, latest): (Vec<_>, Vec<_>) = closed
        .iter()
        .filter(|(.., is_latest)| *is_latest)
        .map(|(id, _, process_id, _)| (process_id.as_str(), *id))
        .unzip();
    let ids: Vec<_> = closed.iter().map(|(id, ..)| *id).collect();
    let latest_locked = lock_latest(spi, &process_ids, &latest)?;
    let held = held_by_starts(spi, &ids)?;
    let free =
        closed.iter().filter(|(id, .., is_latest)| !held.contains(id) && (!is_latest || latest_locked.contains(id)));
    let mut locked = lock(spi, &free.map(|(id, ..)| *id).collect::<Vec<_>>())?;
    let outlived = outlived(spi, &process_ids, &locked)?;
    let going = process_ids
        .iter()
        .zip(&latest)
        .filter(|(process_id, id)| locked.contains(id) && !outlived.contains(**process_id));
    let (process_ids, going): (Vec<_>, BTreeSet<_>) = going.map(|(process_id, id)| (*process_id, *id)).unzip();
    locked.retain(|id| !latest_locked.contains(id) || going.contains(id));
    let ids: Vec<_> = locked.into_iter().collect();
    let left = delete(spi, &ids, &process_ids, rows)?;
    Ok(PurgedBatch { purged: ids.len(), reached, more: closed.len() == limit, left })
}

/// Locks the correlation keys whose latest starts these are. Returns the executions whose keys another transaction has
/// locked, because it is starting a process.
fn held_by_starts(spi: &Spi, ids: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>> {
    let held = correlated(spi, ids)?;
    Ok(if held.is_empty() { held } else { &held - &lock_correlated(spi, &held)? })
}

/// Deletes locked executions. True if they have rows left.
fn delete(spi: &Spi, ids: &[ExecutionId], process_ids: &[&str], rows: Option<i64>) -> Result<bool> {
    if ids.is_empty() {
        return Ok(false);
    }
    let left = delete_rows(spi, ids, rows)?;
    if left {
        run(spi, &NOTE, &ids.iter().map(|id| Purged { execution_id: *id }).collect::<Vec<_>>())?;
    }
    delete_latest(spi, process_ids)?;
    forget_correlated(spi, ids)?;
    delete_executions(spi, ids)?;
    Ok(left)
}

/// Deletes remaining rows of purged executions. True if there may be more.
pub fn sweep(spi: &Spi, rows: i64) -> Result<bool> {
    let ids = noted(spi)?;
    if ids.is_empty() {
        return Ok(false);
    }
    if delete_rows(spi, &ids, Some(rows))? {
        return Ok(true);
    }
    forget(spi, &ids)?;
    Ok(ids.len() == SWEPT)
}
