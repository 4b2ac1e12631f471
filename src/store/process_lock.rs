//! Locks of processes: the table `process_lock`. `xdb_sched::process_locks` has the rule by which they are granted.
//!
//! ```text
//!    start            the scheduler's turn        close, in any transaction     the scheduler's turn
//!   ───────▶ WAITING ────────────────────▶ GRANTED ──────────────────▶ RELEASED ──────────────────▶ deleted
//! ```
//!
//! * A session only inserts its rows, and marks them as released. Only the scheduler grants.
//! * Each row is its own note: the scheduler reads it when `judge_at` has come.
//! * Until the grant, all calls of the process are parked. The grant resumes them.
//! * Other transactions lock the rows of an execution before its tasks, so the scheduler never waits for either.
//! * A row that another transaction has locked is passed over: it delays no other process.

use super::claim::NO_LEASE;
use super::lanes::{PARKED_LANE, own_place};
use super::lines::first;
use super::loaded::Loaded;
use super::registry::{NO_WORKER, WorkerId};
use super::table::{batch, insert, record, run, statements, table};
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::identity::is_engine;
use crate::pg::param::{array, value};
use crate::pg::spi::{Row, Spi};
use crate::pg::wake::{self, NewCall};
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::{Execution, ExecutionId, LockMode, ProcessLocks, StateSeq, Timestamp};
use xdb_sched::process_locks::{NamedLock, Place};

table! {
    /// A lock that a process asks for or has.
    pub struct ProcessLock<'a> in "process_lock" {
        key { execution_id: ExecutionId, name: &'a str }
        compared {
            mode: LockMode,
            /// The process's owner, so that the locks of each owner have their own line in the index.
            owner: pg_sys::Oid,
        }
        other {
            /// WAITING, GRANTED or RELEASED.
            status: &'a str,
            /// When the process asks for it: when its first step is due. Requests are granted in this order.
            due_at: Timestamp,
            granted_at: Option<Timestamp>,
            /// When the scheduler has to look at the row. Null: other rows decide about it.
            judge_at: Option<Timestamp>,
        }
    }
}

record! {
    /// A row that the scheduler had to look at.
    pub struct Noted {
        execution_id: ExecutionId,
        name: String,
        mode: LockMode,
        is_released: bool,
        /// The request has moved to another place in the order.
        has_moved: bool,
        is_due: bool,
        /// This turn reads no more rows of this owner. There may be more.
        may_have_more: bool,
    }

    /// A lock of a request that may be granted.
    struct AskedLock { execution_id: ExecutionId, name: String, mode: LockMode, due_at: Timestamp, is_free: bool }

    /// Shared requests for a lock, after one place and before another.
    struct SharedAfter { name: String, after_at: Timestamp, after_id: ExecutionId, before_at: Timestamp, before_id: ExecutionId }

    /// A call that a grant has resumed.
    struct Resumed { execution_id: ExecutionId, seq: StateSeq, worker_id: WorkerId, shard: i16, is_due: bool }

    /// A lock that a process waits for, and a process that has it.
    pub struct Missing { name: String, holder: Option<String>, owner: Option<pg_sys::Oid> }
}

/// The execution `e` waits for its locks.
pub(super) fn waits(e: &str) -> String {
    format!("EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = {e}.execution_id AND l.status = 'WAITING')")
}

/// The first request for the lock `v.name` in this mode that is due, or the first one of these that can be locked.
fn first_of(mode: LockMode, lock: &str) -> String {
    format!(
        "(SELECT l.due_at, l.execution_id FROM xdb.process_lock l \
            WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = '{mode}' AND l.due_at <= $2 \
                AND l.execution_id <> ALL ($3) \
            ORDER BY l.due_at, l.execution_id LIMIT 1{lock})"
    )
}

statements! {
    INSERT = insert::<ProcessLock>();
    /// Marks the locks of executions that close.
    RELEASE = "UPDATE xdb.process_lock SET status = 'RELEASED', judge_at = '-infinity' WHERE execution_id = ANY ($1)"
        => pub(super) fn release(ids: &[ExecutionId]) -> ();
    /// Moves a request: the first call of its process is due at another time.
    MOVE = "UPDATE xdb.process_lock SET due_at = $2, judge_at = '-infinity' WHERE execution_id = $1 AND status = 'WAITING'"
        => pub(super) fn move_request(id: ExecutionId, due_at: Timestamp) -> ();
    // Waits for the turn that is granting them.
    LOCK = "SELECT l.execution_id FROM xdb.process_lock l WHERE l.execution_id = ANY ($1) AND l.status = 'WAITING' \
            ORDER BY l.execution_id, l.name FOR UPDATE"
        => fn lock(ids: &[ExecutionId]) -> BTreeSet<ExecutionId>;
    /// Rows to look at, in equal shares of the owners.
    NOTES = format!("WITH RECURSIVE {}, due AS MATERIALIZED (SELECT f.owner FROM first f WHERE f.at <= $1), \
        noted AS MATERIALIZED (SELECT l.* FROM due CROSS JOIN LATERAL ( \
            SELECT l.* FROM xdb.process_lock l WHERE l.owner = due.owner AND l.judge_at <= $1 \
            ORDER BY l.judge_at LIMIT {share} FOR UPDATE SKIP LOCKED) AS l), \
        gone AS (DELETE FROM xdb.process_lock l USING noted n \
            WHERE l.execution_id = n.execution_id AND l.name = n.name AND n.status = 'RELEASED'), \
        seen AS (UPDATE xdb.process_lock l SET judge_at = CASE WHEN n.due_at > $1 THEN n.due_at END FROM noted n \
            WHERE l.execution_id = n.execution_id AND l.name = n.name AND n.status <> 'RELEASED') \
        SELECT n.execution_id, n.name, n.mode, n.status = 'RELEASED' AS is_released, n.judge_at < n.due_at AS has_moved, \
            n.due_at <= $1 AS is_due, count(*) OVER (PARTITION BY n.owner) = {share} AS may_have_more FROM noted n",
        first("process_lock", "judge_at"), share = share()) => pub fn notes(now: Timestamp) -> Vec<Noted>;
    /// Notes requests that are not due any more, because the clock was set back or is that of another server.
    NOTE_AGAIN = "UPDATE xdb.process_lock SET judge_at = due_at \
            WHERE name = ANY ($1) AND status = 'WAITING' AND judge_at IS NULL AND due_at > $2"
        => pub fn note_again(names: Vec<String>, now: Timestamp) -> ();
    WAITED_FOR = format!("WITH RECURSIVE names (name) AS ( \
            (SELECT l.name FROM xdb.process_lock l WHERE l.name > $1 ORDER BY l.name LIMIT 1) \
            UNION ALL SELECT (SELECT l.name FROM xdb.process_lock l WHERE l.name > n.name ORDER BY l.name LIMIT 1) \
            FROM names n WHERE n.name IS NOT NULL) \
        SELECT name FROM names WHERE name IS NOT NULL LIMIT {AT_ONCE}")
        => pub fn names_after(name: &str) -> Vec<String>;
    QUEUES = format!("SELECT v.name, (SELECT g.mode FROM xdb.process_lock g WHERE g.name = v.name AND g.status = 'GRANTED' LIMIT 1), \
            x.due_at, x.execution_id, s.due_at, s.execution_id, \
            (x.execution_id, s.execution_id) IS DISTINCT FROM (fx.execution_id, fs.execution_id) \
        FROM unnest($1::text[]) AS v (name) LEFT JOIN LATERAL {} AS fx ON true LEFT JOIN LATERAL {} AS fs ON true \
            LEFT JOIN LATERAL {} AS x ON true LEFT JOIN LATERAL {} AS s ON true",
        first_of(LockMode::Exclusive, ""), first_of(LockMode::Share, ""),
        first_of(LockMode::Exclusive, SKIP), first_of(LockMode::Share, SKIP));
    SHARED = format!("SELECT v.name, l.due_at, l.execution_id FROM {} CROSS JOIN LATERAL ( \
            SELECT l.due_at, l.execution_id FROM xdb.process_lock l \
            WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = '{}' \
                AND (l.due_at, l.execution_id) > (v.after_at, v.after_id) AND (l.due_at, l.execution_id) < (v.before_at, v.before_id) \
            ORDER BY l.due_at, l.execution_id LIMIT $6) AS l", batch::<SharedAfter>(), LockMode::Share)
        => fn shared(after: [SharedAfter], of_each: i64) -> Vec<(String, Place)>;
    ASKED = format!("WITH free AS MATERIALIZED (SELECT l.execution_id, l.name, l.due_at FROM xdb.process_lock l \
            WHERE l.execution_id = ANY ($1) AND l.status = 'WAITING' ORDER BY l.execution_id, l.name FOR UPDATE SKIP LOCKED), \
        calls AS MATERIALIZED (SELECT t.execution_id FROM xdb.task t \
            WHERE t.execution_id = ANY ($1) AND t.lane = {PARKED_LANE} FOR UPDATE SKIP LOCKED) \
        SELECT l.execution_id, l.name, l.mode, COALESCE(f.due_at, l.due_at) AS due_at, f.name IS NOT NULL \
            AND (SELECT count(*) FROM xdb.task t WHERE t.execution_id = l.execution_id AND t.lane = {PARKED_LANE}) \
                = (SELECT count(*) FROM calls c WHERE c.execution_id = l.execution_id) AS is_free \
        FROM xdb.process_lock l LEFT JOIN free f ON f.execution_id = l.execution_id AND f.name = l.name \
        WHERE l.execution_id = ANY ($1)") => fn asked(ids: &[ExecutionId]) -> Vec<AskedLock>;
    GRANT = "UPDATE xdb.process_lock SET status = 'GRANTED', granted_at = $2, judge_at = NULL WHERE execution_id = ANY ($1)"
        => fn put_granted(ids: &[ExecutionId], now: Timestamp) -> ();
    RESUME = format!("UPDATE xdb.task t SET {}, {NO_LEASE} WHERE t.execution_id = ANY ($1) AND t.lane = {PARKED_LANE} \
        RETURNING t.execution_id, t.seq, t.worker_id, t.shard, t.due_at <= $2 AS is_due", own_place())
        => fn resume(ids: &[ExecutionId], now: Timestamp) -> Vec<Resumed>;
    MISSING = "SELECT l.name, p.process_id AS holder, p.owner FROM xdb.process_lock l \
            LEFT JOIN LATERAL (SELECT g.execution_id FROM xdb.process_lock g \
                WHERE g.name = l.name AND g.status = 'GRANTED' AND (g.mode = 'EXCLUSIVE' OR l.mode = 'EXCLUSIVE') LIMIT 1) AS g ON true \
            LEFT JOIN xdb.process_execution p ON p.execution_id = g.execution_id \
        WHERE l.execution_id = $1 AND l.status = 'WAITING' ORDER BY p.process_id IS NULL, l.name LIMIT 1"
        => pub fn missing(id: ExecutionId) -> Option<Missing>;
}

const SKIP: &str = " FOR UPDATE SKIP LOCKED";

/// The most rows that one statement reads for a turn.
const AT_ONCE: usize = 1000;

/// How many rows of each owner a turn looks at.
fn share() -> String {
    format!("(SELECT greatest({AT_ONCE} / count(*), 1) FROM due)")
}

/// The place before all others.
pub const FIRST: Place = (Timestamp::EARLIEST, ExecutionId([0; 16]));

/// Whether as many names were read as one turn reads, so that there may be more.
pub fn may_have_more(names: usize) -> bool {
    names >= AT_ONCE
}

/// The requests of an execution that starts.
pub(in crate::store) fn requests(execution: &Execution, owner: pg_sys::Oid) -> impl Iterator<Item = ProcessLock<'_>> {
    let due_at = execution.first_is_due().unwrap_or(execution.started_at);
    execution.locks.iter().map(move |(name, mode)| ProcessLock {
        execution_id: execution.id,
        name,
        mode: *mode,
        owner,
        status: "WAITING",
        due_at,
        granted_at: None,
        judge_at: Some(due_at),
    })
}

/// Those of these executions that wait for their locks. They get none before this transaction ends. The caller has
/// locked them. Executions without locks cost nothing.
pub fn waiting<'a>(spi: &Spi, of: impl IntoIterator<Item = &'a Loaded>) -> Result<BTreeSet<ExecutionId>> {
    let with_locks = |loaded: &&Loaded| !loaded.execution.locks.is_empty();
    let ids: Vec<_> = of.into_iter().filter(with_locks).map(|loaded| loaded.execution.id).collect();
    if ids.is_empty() { Ok(BTreeSet::new()) } else { lock(spi, &ids) }
}

/// What decides about requests for these locks, and whether other transactions have locked requests, which are passed
/// over. So are those of `locked` executions.
pub fn queues(
    spi: &Spi,
    names: &[&str],
    locked: &BTreeSet<ExecutionId>,
    now: Timestamp,
) -> Result<BTreeMap<String, (NamedLock, bool)>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let params = [array(names.iter().copied()), value(now), array(locked.iter().copied())];
    let read = |row: &Row| {
        let place = |at: usize| -> Result<Option<Place>> {
            let due: Option<Timestamp> = row.at(at)?;
            due.map(|due| Ok((due, row.at(at + 1)?))).transpose()
        };
        let queue = NamedLock { granted: row.at(1)?, first_exclusive: place(2)?, first_shared: place(4)? };
        Ok((row.at::<String>(0)?, (queue, row.at(6)?)))
    };
    Ok(spi.rows(&QUEUES, &params, read)?.into_iter().collect())
}

/// Shared requests for these locks, each lock with the place after which they begin and the place before which they
/// end. Returns also how many of each are read at most.
pub fn shared_requests(
    spi: &Spi,
    locks: &BTreeMap<String, (Place, Place)>,
) -> Result<(BTreeMap<String, Vec<Place>>, usize)> {
    let of_each = (AT_ONCE / locks.len().max(1)).max(1);
    let after = locks.iter().map(|(name, (after, before))| SharedAfter {
        name: name.clone(),
        after_at: after.0,
        after_id: after.1,
        before_at: before.0,
        before_id: before.1,
    });
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for (name, place) in shared(spi, &after.collect::<Vec<_>>(), of_each as i64)? {
        found.entry(name).or_default().push(place);
    }
    Ok((found, of_each))
}

/// A process that asks for its locks.
pub struct AskingProcess {
    pub place: Place,
    pub locks: ProcessLocks,
    /// This transaction has locked all of its rows, and its calls.
    pub is_free: bool,
}

/// Locks these requests and their calls, if they are free.
pub fn take_requests(spi: &Spi, ids: &BTreeSet<ExecutionId>) -> Result<BTreeMap<ExecutionId, AskingProcess>> {
    let mut requests = BTreeMap::<_, AskingProcess>::new();
    if ids.is_empty() {
        return Ok(requests);
    }
    for AskedLock { execution_id, name, mode, due_at, is_free } in asked(spi, &ids.iter().copied().collect::<Vec<_>>())?
    {
        let place = (due_at, execution_id);
        let request =
            requests.entry(execution_id).or_insert_with(|| AskingProcess { place, locks: BTreeMap::new(), is_free });
        request.is_free &= is_free;
        request.locks.insert(name, mode);
    }
    Ok(requests)
}

/// Grants the locks of these requests, which [`take_requests`] has locked, and resumes their calls. Returns whether a
/// function answers one of these calls.
pub fn grant(spi: &Spi, ids: &[ExecutionId], now: Timestamp) -> Result<bool> {
    put_granted(spi, ids, now)?;
    let resumed = resume(spi, ids, now)?;
    for call in &resumed {
        let of = (call.execution_id.0, call.seq.0);
        wake::new_call_at_commit(call.worker_id, NewCall { shard: call.shard, is_due: call.is_due }, of);
    }
    // RPCs wait for the grant.
    ids.iter().for_each(|id| wake::processes_closed_at_commit(id.0));
    Ok(resumed.iter().any(|call| call.worker_id == NO_WORKER))
}

/// Inserts the requests of executions that start.
pub(super) fn insert_requests(spi: &Spi, requests: &[ProcessLock<'_>]) -> Result<()> {
    if run(spi, &INSERT, requests)? > 0 && !is_engine() {
        crash::point("start-locks");
    }
    Ok(())
}
