//! The calls to make: the table `task`. Claims due calls under leases, with everything that their requests need.
//!
//! Limitations: calls of pull workers are claimed in [`super::pull`]. Which lane a call belongs to is in
//! [`super::lanes`].

use super::StateKey;
use super::lanes::{
    CRASHED_LANE, Lane, PARKED_LANE, RUNNERS_LANE, SCHEDULERS_LANE, free_for_runners, free_for_scheduler, lane_at,
    own_place,
};
use super::lines::in_level;
use super::process_lock::waits;
use super::registry::{NO_WORKER, WorkerId};
use super::table::{
    Gives, Read, Record, batch, batch_but, delete, insert_but, record, run, set_to_v, statements, table,
};
use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::spi::{Row, Spi};
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::HashMap;
use xdb_engine::{Api, Execution, ExecutionId, StateSeq, Timestamp};
use xdb_sched::lines::Level;
use xdb_sched::room::Line;

table! {
    /// A call to make: due time, worker, owner, priority, lane, attempt, lease. Narrow; inserted and deleted often.
    // Wide because each field is a column.
    pub struct Task in "task" {
        key { execution_id: ExecutionId, seq: StateSeq }
        compared {
            shard: i16,
            api: Api,
            due_at: Timestamp,
            /// The process's owner, so that the calls of each owner have their own line in the index.
            owner: pg_sys::Oid,
            /// The process's priority, which orders the calls of a line.
            priority: i8,
        }
        other {
            /// Which engine process may claim the call: see [`super::lanes`].
            lane: i16,
            worker_id: WorkerId,
            /// The number of attempts that have begun.
            attempt: u32,
            first_attempt_at: Option<Timestamp>,
            /// The epoch of the engine process that has the lease. 0 for a pull worker, or without a lease.
            lease_epoch: i64,
            /// With the epoch, it identifies the lease. An answer counts only with both.
            lease_number: i64,
            /// The end of the lease, in real time. Infinite: the call is parked. None: there is no lease.
            lease_until: Option<Timestamp>,
            /// How often the call was in hand when the server crashed. `crashes.rs` writes and reads it.
            crashes: i16,
            /// What a parked call waits to lock. The scheduler writes it; people read it.
            waits_for: Option<String>,
        }
    }
}

record! {
    /// A task and its new lease.
    struct TaskLease of Task {
        execution_id: ExecutionId,
        seq: StateSeq,
        lease_epoch: i64,
        lease_number: i64,
        lease_until: Option<Timestamp>,
    }

    /// A task and what its call waits to lock.
    struct ParkedTask<'a> of Task { execution_id: ExecutionId, seq: StateSeq, waits_for: &'a str }

    /// A task and its new worker.
    struct TaskMove of Task { execution_id: ExecutionId, seq: StateSeq, worker_id: WorkerId }

    /// How many calls of a level may be claimed, and from which due time on.
    struct LevelRoom { worker_id: WorkerId, owner: pg_sys::Oid, priority: i8, room: i64, since: Timestamp }
}

const LEASE: &[&str] = &["lease_epoch", "lease_number", "lease_until"];
/// Columns that no decision writes. A new task has their defaults.
pub(super) const NOT_DECIDED: &[&str] = &["crashes", "waits_for"];
/// Removes the lease of a task, in a SET clause.
pub(super) const NO_LEASE: &str = "lease_epoch = 0, lease_number = 0, lease_until = NULL";

/// The most calls that one statement moves.
pub const AT_ONCE: u64 = 1000;

statements! {
    INSERT = insert_but::<Task>(NOT_DECIDED);
    // `first_attempt_at` belongs to one call. It starts again when the state goes on to its other API.
    UPDATE = format!("UPDATE xdb.task t SET {}, {}, first_attempt_at = CASE WHEN v.api <> t.api THEN v.first_attempt_at \
            ELSE t.first_attempt_at END, crashes = 0 \
        FROM {} WHERE t.execution_id = v.execution_id AND t.seq = v.seq",
        set_to_v(&["lane", "worker_id", "api", "due_at", "attempt"]), set_to_v(LEASE), batch_but::<Task>(NOT_DECIDED));
    DELETE = delete::<Task, StateKey>();
    DUE = due_where(&free_for_scheduler("$8", "$9"));
    DUE_FOR_RUNNERS = due_where(&free_for_runners("$8", "$9"));
    /// Whether any call waits for a runner, of any worker.
    ANY_FOR_RUNNERS = format!("SELECT EXISTS (SELECT FROM xdb.task t WHERE t.lane = {RUNNERS_LANE} AND t.due_at <= $1 AND {}) AS any",
        free_for_runners("0", "$2")) => pub fn wait_for_runners(now: Timestamp, real: Timestamp) -> bool;
    /// Gives the runners' calls without a lease back to the scheduler, because no table is slow any more. If it returns
    /// [`AT_ONCE`], there may be more.
    TAKE_BACK = format!("WITH back AS MATERIALIZED (SELECT t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lane = {RUNNERS_LANE} AND t.worker_id > {NO_WORKER} AND {} LIMIT {AT_ONCE} FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET lane = {SCHEDULERS_LANE}, {NO_LEASE} FROM back \
        WHERE t.execution_id = back.execution_id AND t.seq = back.seq", free_for_runners("0", "$1"))
        => pub fn take_back_from_runners(real: Timestamp) -> u64;
    /// Locks those of these calls that this scheduler has parked. Rows that another transaction has locked are skipped.
    PARKED = format!("SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.worker_id, t.owner, t.priority, t.due_at, t.crashes \
        FROM {} JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq \
        WHERE t.lane = $3 AND t.lease_epoch = $4 AND t.lease_until = 'infinity' FOR UPDATE OF t SKIP LOCKED",
        batch::<StateKey>()) => pub fn parked(keys: [StateKey], lane: i16, epoch: i64) -> Vec<Due>;
    PARK = format!("UPDATE xdb.task t SET lease_epoch = $4, lease_number = $5, lease_until = 'infinity', waits_for = v.waits_for \
        FROM {} WHERE t.execution_id = v.execution_id AND t.seq = v.seq", batch::<ParkedTask>())
        => fn park_tasks(tasks: [ParkedTask], epoch: i64, number: i64) -> ();
    LEASE_CALLS = format!("UPDATE xdb.task t SET attempt = t.attempt + 1, \
            first_attempt_at = COALESCE(t.first_attempt_at, $6), waits_for = NULL, {} \
        FROM {} WHERE t.execution_id = v.execution_id AND t.seq = v.seq", set_to_v(LEASE), batch::<TaskLease>())
        => fn lease_tasks(tasks: [TaskLease], now: Timestamp) -> ();
    /// The leases of these tasks.
    LEASES = format!("SELECT t.execution_id, t.seq, t.lease_epoch, t.lease_number \
        FROM {} JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq", batch::<StateKey>())
        => pub fn leases(keys: [StateKey]) -> HashMap<StateKey, (i64, i64)>;
    /// Ends the parking of these calls: they are due like all others.
    UNPARK = format!("UPDATE xdb.task t SET {NO_LEASE} \
        FROM {} WHERE t.execution_id = v.execution_id AND t.seq = v.seq", batch::<StateKey>())
        => pub fn unpark(keys: [StateKey]) -> ();
    /// Gives calls to the scheduler or to the runners, without a lease. The caller has locked the calls with [`due`], or
    /// has them under its own lease.
    MOVE_TO_LANE = format!("UPDATE xdb.task t SET lane = $3, {NO_LEASE} \
        FROM {} WHERE t.execution_id = v.execution_id AND t.seq = v.seq", batch::<StateKey>())
        => pub fn move_to_lane(keys: [StateKey], lane: i16) -> ();
    MOVE_TO_WORKERS = super::table::update::<TaskMove>();
    // In the order of the index, so that the scan reads only one slice.
    FOLLOW_TYPES = format!("WITH slice AS MATERIALIZED (SELECT t.owner, t.priority, t.due_at, t.execution_id, t.seq FROM xdb.task t \
            WHERE t.lane = $1 AND t.worker_id = $2 \
                AND (t.owner, t.priority, t.due_at, t.execution_id, t.seq) > ($3, $4, $5, $6, $7) \
            ORDER BY t.owner, t.priority, t.due_at, t.execution_id, t.seq LIMIT {AT_ONCE}), \
        moved AS MATERIALIZED (SELECT k.execution_id, k.seq, COALESCE(y.worker_id, {NO_WORKER}) AS worker_id FROM slice s \
            JOIN xdb.process_execution p ON p.execution_id = s.execution_id \
            JOIN xdb.process_type y ON y.type_id = p.type_id \
            JOIN xdb.task k ON k.execution_id = s.execution_id AND k.seq = s.seq \
            WHERE COALESCE(y.worker_id, {NO_WORKER}) <> $2 \
                AND (k.lease_epoch <> 0 OR k.lease_until IS NULL OR k.lease_until <= $8) FOR UPDATE OF k SKIP LOCKED), \
        given AS (UPDATE xdb.task k SET worker_id = m.worker_id, lane = {} \
            FROM moved m WHERE k.execution_id = m.execution_id AND k.seq = m.seq) \
        SELECT owner, priority, due_at, execution_id, seq, (SELECT count(*) FROM slice) = {AT_ONCE} AS more FROM slice \
        ORDER BY owner DESC, priority DESC, due_at DESC, execution_id DESC, seq DESC LIMIT 1",
        lane_at("m.worker_id", "k.lane"));
    /// Gives up the leases of this epoch on calls that were not made, or whose answers were dropped. The calls are made
    /// again, as the same attempt. Rows that another transaction has locked are skipped.
    RELEASE = format!("WITH held AS MATERIALIZED (SELECT t.execution_id, t.seq \
            FROM {} JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq \
            WHERE t.lease_epoch = $3 FOR UPDATE OF t SKIP LOCKED) \
        UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), {NO_LEASE} FROM held \
        WHERE t.execution_id = held.execution_id AND t.seq = held.seq", batch::<StateKey>())
        => pub fn release(keys: [StateKey], epoch: i64) -> ();
    // One index descent per worker, for any number of calls.
    WORKERS_GONE = "WITH RECURSIVE ids (worker_id) AS ( \
            (SELECT worker_id FROM xdb.task WHERE lane = $1 ORDER BY worker_id LIMIT 1) \
            UNION ALL SELECT (SELECT k.worker_id FROM xdb.task k \
                WHERE k.lane = $1 AND k.worker_id > ids.worker_id ORDER BY k.worker_id LIMIT 1) \
            FROM ids WHERE ids.worker_id IS NOT NULL) \
        SELECT worker_id FROM ids WHERE worker_id IS NOT NULL AND worker_id <> ALL ($2)"
        => fn unregistered_workers(lane: i16, known: &[WorkerId]) -> Vec<WorkerId>;
    ADOPT = format!("WITH orphan AS MATERIALIZED (SELECT k.execution_id, k.seq FROM xdb.task k \
            WHERE k.lane = $1 AND k.worker_id = ANY ($2) LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED) \
        UPDATE xdb.task k SET worker_id = COALESCE(t.worker_id, {NO_WORKER}), lane = {} \
        FROM orphan JOIN xdb.process_execution p USING (execution_id) JOIN xdb.process_type t USING (type_id) \
        WHERE k.execution_id = orphan.execution_id AND k.seq = orphan.seq", lane_at(&format!("COALESCE(t.worker_id, {NO_WORKER})"), "k.lane"))
        => fn adopt(lane: i16, workers: &[WorkerId]) -> u64;
    // Calls that functions answer stay with the runners.
    /// Makes all leases void, also those of pull workers. Gives all calls to the scheduler, except those that functions
    /// answer, and those of processes that wait for their locks.
    FORGET_LEASES = format!("UPDATE xdb.task t SET {}, {NO_LEASE}, crashes = 0 \
        WHERE (t.lane IN ({RUNNERS_LANE}, {PARKED_LANE}, {CRASHED_LANE}) OR t.lease_until IS NOT NULL OR t.crashes > 0) AND NOT {}", own_place(), waits("t"))
        => pub(super) fn forget_leases() -> ();
}

/// Claims due calls: of each level at most as many as there is room for.
fn due_where(free: &str) -> String {
    format!(
        "SELECT d.execution_id, d.seq, d.attempt, d.first_attempt_at, v.worker_id, v.owner, v.priority, d.due_at, d.crashes \
        FROM {} CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.due_at, t.crashes FROM xdb.task t \
            WHERE t.lane = $6 AND {} AND t.due_at >= v.since AND t.due_at <= $7 \
                AND {free} AND t.execution_id <> ALL ($10) \
            ORDER BY t.due_at LIMIT v.room FOR UPDATE SKIP LOCKED) AS d",
        batch::<LevelRoom>(),
        in_level("v")
    )
}

/// A lease that a task gets when it is written, because its call goes out right after the commit.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub epoch: i64,
    pub number: i64,
    pub until: Timestamp,
}

impl Task {
    /// The task of a state at a call, as far as the state determines it.
    pub fn of(
        execution: &Execution,
        seq: StateSeq,
        shard: i16,
        owner: pg_sys::Oid,
        api: Api,
        due_at: Timestamp,
    ) -> Self {
        Self {
            execution_id: execution.id,
            seq,
            shard,
            api,
            due_at,
            owner,
            priority: execution.priority,
            lane: 0,
            worker_id: 0,
            attempt: 0,
            first_attempt_at: None,
            lease_epoch: 0,
            lease_number: 0,
            lease_until: None,
            crashes: 0,
            waits_for: None,
        }
    }

    /// Begins an attempt, because the call is about to be made. It counts as the first attempt of this call, unless the
    /// row says otherwise.
    pub(super) fn begin(&mut self, lease: Lease, now: Timestamp) {
        self.attempt += 1;
        self.first_attempt_at = Some(now);
        self.lease_epoch = lease.epoch;
        self.lease_number = lease.number;
        self.lease_until = Some(lease.until);
    }
}

/// A due call that this transaction has locked.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub key: StateKey,
    /// The line in which the call was found. Its process type may have another worker by now.
    pub line: Line,
    pub priority: i8,
    /// The number of earlier attempts.
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
    pub due_at: Timestamp,
    /// Whether the call was in hand when the server crashed.
    pub is_suspect: bool,
}

/// What to claim from a level.
#[derive(Clone, Copy, Debug)]
pub struct LevelClaim {
    pub level: Level,
    pub at_most: usize,
    /// Calls that were due earlier are skipped.
    pub from: Option<Timestamp>,
}

/// Locks due calls: of each level at most `at_most`. Due times are compared with the time of processes, leases with the
/// real time.
pub fn due(
    spi: &Spi,
    lane: Lane,
    wanted: &[LevelClaim],
    except: &[ExecutionId],
    now: Timestamp,
    real: Timestamp,
) -> Result<Vec<Due>> {
    let rows: Vec<_> = wanted
        .iter()
        .map(|w| LevelRoom {
            worker_id: w.level.line.worker,
            owner: w.level.line.owner.into(),
            priority: w.level.priority,
            room: w.at_most as i64,
            since: w.from.unwrap_or(Timestamp::EARLIEST),
        })
        .collect();
    let mut params = LevelRoom::arrays(&rows);
    params.extend([value(lane.number), value(now), value(lane.epoch), value(real), array(except)]);
    let statement = if lane.number == RUNNERS_LANE { &DUE_FOR_RUNNERS } else { &DUE };
    Gives::of(spi, statement, &params)
}

impl<'r> Read<'r> for Due {
    fn read(row: &Row<'r>) -> Result<Self> {
        let (key, (attempts, first_attempt_at), level, due_at, crashes): (_, _, Level, _, i16) = Read::read(row)?;
        let Level { line, priority } = level;
        Ok(Self { key, line, priority, attempts, first_attempt_at, due_at, is_suspect: crashes > 0 })
    }
}

impl Due {
    /// The level in which the call was found.
    pub fn level(&self) -> Level {
        Level { line: self.line, priority: self.priority }
    }
}

/// Writes the leases of calls that [`due`] has locked. The calls go out after the commit.
pub fn lease(spi: &Spi, leases: &HashMap<StateKey, Lease>, now: Timestamp) -> Result<()> {
    let rows = leases.iter().map(|((execution_id, seq), lease)| TaskLease {
        execution_id: *execution_id,
        seq: *seq,
        lease_epoch: lease.epoch,
        lease_number: lease.number,
        lease_until: Some(lease.until),
    });
    lease_tasks(spi, &rows.collect::<Vec<_>>(), now)
}

/// Parks calls that [`due`] has locked: they get a lease without an end, and wait for locks in the memory of their
/// scheduler. Parking is not an attempt. When the scheduler ends, the lease is void and the calls are due again. Each
/// call has a text for people about what it waits for.
pub fn park<'a>(spi: &Spi, lane: Lane, number: i64, calls: &'a HashMap<StateKey, String>) -> Result<()> {
    let row = |((execution_id, seq), waits_for): (&StateKey, &'a String)| ParkedTask {
        execution_id: *execution_id,
        seq: *seq,
        waits_for,
    };
    park_tasks(spi, &calls.iter().map(row).collect::<Vec<_>>(), lane.epoch, number)
}

/// Gives tasks that [`due`] has locked to other workers.
pub fn move_to_workers(spi: &Spi, tasks: &[(StateKey, WorkerId)]) -> Result<()> {
    let moved = |(key, worker): &(StateKey, _)| TaskMove { execution_id: key.0, seq: key.1, worker_id: *worker };
    run(spi, &MOVE_TO_WORKERS, &tasks.iter().map(moved).collect::<Vec<_>>())?;
    tasks.iter().for_each(|(_, worker)| wake::call_worker_at_commit(*worker));
    Ok(())
}

/// The position of a task among those of its worker.
pub type TaskPlace = (pg_sys::Oid, i8, Timestamp, ExecutionId, StateSeq);

/// The position before every task.
pub(super) const FIRST_PLACE: TaskPlace =
    (pg_sys::InvalidOid, i8::MIN, Timestamp::EARLIEST, ExecutionId([0; 16]), StateSeq(0));

/// Reads a slice of the calls of a worker, due or not. Gives each call to the current worker of its process type, if
/// that is another one. Calls that a pull worker has claimed are skipped. Returns where the slice ended, or `None` at
/// the end.
pub fn follow_types(
    spi: &Spi,
    lane: i16,
    worker: WorkerId,
    after: Option<TaskPlace>,
    real: Timestamp,
) -> Result<Option<TaskPlace>> {
    let (owner, priority, due_at, execution, seq) = after.unwrap_or(FIRST_PLACE);
    let place = [value(owner), value(priority), value(due_at), value(execution), value(seq)];
    let params = [&[value(lane), value(worker)], &place[..], &[value(real)]].concat();
    let last: Option<(TaskPlace, bool)> = Gives::of(spi, &FOLLOW_TYPES, &params)?;
    Ok(last.and_then(|(place, more)| more.then_some(place)))
}

/// Moves calls of workers that are no longer registered to the workers of their types. Rows that another transaction
/// has locked are moved next time. True if there may be more.
pub fn adopt_orphans(spi: &Spi, lane: i16, known: &[WorkerId]) -> Result<bool> {
    let unregistered = unregistered_workers(spi, lane, known)?;
    Ok(!unregistered.is_empty() && adopt(spi, lane, &unregistered)? >= AT_ONCE)
}
