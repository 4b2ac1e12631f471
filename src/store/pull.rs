//! Calls of pull workers: the rows of `task` whose worker has no URL.
//!
//! A lease of a pull worker has the epoch 0, which no engine process has. So only `lease_until` decides whether it is
//! valid, and a new scheduler does not make it void. A lease with another epoch is void: an engine process took it when
//! the worker had a URL. Half of a lease's number comes from the sequence `pull_lease`, half is random.

use super::StateKey;
use super::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use super::loaded::{Loaded, Meta};
use super::registry::{Registry, RowVersion, WorkerId};
use super::table::{Record, batch, record, statements};
use super::{claim, execution, instance, state};
use crate::error;
use crate::pg::catch::Result;
use crate::pg::param::{Param, array, value};
use crate::pg::process::random;
use crate::pg::spi::{Row, Spi};
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{Api, Execution, ExecutionId, StateSeq, Timestamp};

/// The lanes that may have calls of a pull worker. The runners' lane has calls from the time when the worker had a URL.
fn lanes() -> String {
    format!("'{{{SCHEDULERS_LANE},{RUNNERS_LANE}}}'::int2[]")
}

/// The condition that the task `t` has a lease of a pull worker, valid or ended.
const PULLED: &str = "t.lease_epoch = 0 AND t.lease_until IS NOT NULL";

/// The version of the row `y` of a process type. The row may be missing.
const TYPE_NOW: &str = "y.type_id AS type_now, y.version, y.xmin::text AS xmin";

/// Of each line, a scan reads this many calls that are not due, to find the next one of its shards. If they are all of
/// other shards, the session polls as if there were none.
const AHEAD: u32 = 100;

/// The condition that the task `t` has no lease of a pull worker.
const FREE: &str = "(t.lease_until IS NULL OR t.lease_epoch <> 0)";

/// The worker named $3.
const WORKER: &str = "worker AS ( \
    SELECT w.worker_id, w.url IS NULL AS pulls, w.role, w.role_name FROM xdb.worker w WHERE w.name = $3)";

record! {
    /// How many calls of a line are claimed, and the due time to begin at.
    pub struct LineShare { lane: i16, owner: pg_sys::Oid, priority: i8, since: Timestamp, room: i64 }
}

record! {
    /// A task and the end of its new lease.
    struct PullLease { execution_id: ExecutionId, seq: StateSeq, lease_until: Timestamp }
}

statements! {
    // One statement, because it is all that an idle pull worker runs.
    SCAN_FROM_HEAD = scan_statement(true);
    SCAN_FROM_CURSORS = scan_statement(false);
    READ_WORKER = format!("WITH {WORKER} SELECT w.*, e.paused, i.*, NULL::int2 AS lane, false AS leases_ended {}", worker_now());
    // The conditions hold for the locked row. Skips executions that another session has locked for a close.
    DUE = format!("SELECT {}, {TYPE_NOW}, d.seq, d.lane, d.due_at, d.attempt, d.first_attempt_at, \
            EXISTS (SELECT FROM xdb.local_attribute a WHERE a.execution_id = d.execution_id) AS has_locals \
        FROM {} CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.lane, t.due_at, t.attempt, t.first_attempt_at FROM xdb.task t \
            WHERE {} AND t.due_at >= v.since AND t.due_at <= $7 AND {FREE} \
                AND t.shard BETWEEN $8 AND $9 AND t.execution_id <> ALL ($10) \
            ORDER BY t.due_at LIMIT v.room FOR UPDATE SKIP LOCKED) AS d \
        JOIN xdb.process_execution p ON p.execution_id = d.execution_id \
        LEFT JOIN xdb.process_type y ON y.process_type = p.process_type \
        FOR KEY SHARE OF p SKIP LOCKED",
        execution::columns(), batch::<LineShare>(), of_line("v", "$6"));
    // `Leased` explains the number.
    LEASE = format!("UPDATE xdb.task t SET attempt = t.attempt + 1, first_attempt_at = COALESCE(t.first_attempt_at, $4), \
            waits_for = NULL, lease_epoch = 0, lease_until = v.lease_until, \
            lease_number = ((pg_catalog.nextval('xdb.pull_lease') & 2147483647) << 32) | $5 \
        FROM {} WHERE t.execution_id = v.execution_id AND t.seq = v.seq RETURNING t.execution_id, t.seq, t.lease_number",
        batch::<PullLease>())
        => fn lease_until(calls: [PullLease], now: Timestamp, drawn: i64) -> HashMap<StateKey, i64>;
    OVER = format!("SELECT d.execution_id, d.seq FROM ({}) AS l CROSS JOIN LATERAL ( \
            SELECT t.execution_id, t.seq, t.due_at FROM xdb.task t \
            WHERE {} AND t.due_at <= $2 AND {PULLED} AND t.lease_until <= $4 ORDER BY t.due_at LIMIT $3) AS d \
        ORDER BY d.due_at, d.execution_id, d.seq LIMIT $3", lines("$1"), of_line("l", "$1"))
        => fn over_in(worker: WorkerId, now: Timestamp, at_most: i64, real: Timestamp) -> Vec<StateKey>;
    STILL_OVER = format!("SELECT t.execution_id, t.seq, t.api, t.attempt, t.first_attempt_at \
        FROM {} JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq \
        WHERE t.worker_id = $3 AND {PULLED} AND t.lease_until <= $4 FOR UPDATE OF t SKIP LOCKED", batch::<StateKey>());
    /// The number of calls with valid leases of this worker, counted up to 10,000. Only views show it.
    LEASED = format!("SELECT count(*) AS leased FROM (SELECT FROM xdb.task t \
        WHERE t.lane = ANY ({}) AND t.worker_id = $1 AND {PULLED} AND t.lease_until > $2 LIMIT 10000) AS l", lanes())
        => pub fn leased(worker: WorkerId, real: Timestamp) -> i64;
    LOOK_OF_TOKEN = format!("SELECT {} {}", execution::columns(), under_token());
    STEP_OF_TOKEN = format!("SELECT {} {} FOR NO KEY UPDATE OF p", execution::columns(), under_token());
    KEEP_OPEN = format!("SELECT t.worker_id {} FOR KEY SHARE OF p", under_token());
    // The lease is checked again, under the lock. One statement for the lock and for this would join all columns of
    // both tables, and takes longer than two.
    UNDER_LEASE = format!("SELECT {}, t.api, t.attempt, t.first_attempt_at, {TYPE_NOW}, \
            NOT EXISTS (SELECT FROM xdb.inbox i WHERE i.execution_id = $1) AS without_arrivals \
        FROM xdb.task t JOIN xdb.state_execution s ON s.execution_id = t.execution_id AND s.seq = t.seq \
            LEFT JOIN xdb.process_type y ON y.process_type = $4 \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED}", state::columns());
    GIVE_BACK = format!("UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), {} \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED} RETURNING t.shard", claim::NO_LEASE);
    /// Records the begin of attempts that fail before they get a lease.
    BEGIN = format!("UPDATE xdb.task t SET first_attempt_at = $3 FROM {} \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq AND t.first_attempt_at IS NULL", batch::<StateKey>())
        => pub fn begin_attempts(keys: [StateKey], now: Timestamp) -> ();
    EXTEND = format!("UPDATE xdb.task t SET lease_until = $4 \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED}");
}

/// The task `t` with the lease $3, and its execution `p`. The role $4 must be a member of the worker's role, unless $5.
fn under_token() -> String {
    format!(
        "FROM xdb.task t JOIN xdb.worker w ON w.worker_id = t.worker_id \
            JOIN xdb.process_execution p ON p.execution_id = t.execution_id \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED} AND w.url IS NULL \
            AND ($5::bool OR pg_catalog.pg_has_role($4::oid, w.role, 'USAGE'))"
    )
}

/// The row of [`WORKER`], whether the engine is paused, and which database the processes belong to.
fn worker_now() -> String {
    format!(
        "FROM worker w LEFT JOIN xdb.engine e ON e.lane = 0 LEFT JOIN LATERAL ({}) AS i ON true",
        instance::ownership_row()
    )
}

/// The lines of a worker, each with the due time of its first call.
fn lines(worker: &str) -> String {
    let of_lane = format!("t.lane = a.lane AND t.worker_id = {worker}");
    format!(
        "SELECT a.lane, o.* FROM unnest({}) AS a (lane) CROSS JOIN LATERAL ( \
            WITH RECURSIVE head (owner, priority, since) AS ( \
                (SELECT t.owner, t.priority, t.due_at FROM xdb.task t WHERE {of_lane} \
                    ORDER BY t.owner, t.priority, t.due_at LIMIT 1) \
                UNION ALL SELECT n.* FROM head CROSS JOIN LATERAL (SELECT t.owner, t.priority, t.due_at FROM xdb.task t \
                    WHERE {of_lane} AND (t.owner, t.priority) > (head.owner, head.priority) \
                    ORDER BY t.owner, t.priority, t.due_at LIMIT 1) AS n) \
            SELECT * FROM head) AS o",
        lanes()
    )
}

/// The condition that the task `t` is in this line of the worker.
fn of_line(line: &str, worker: &str) -> String {
    format!(
        "t.lane = {line}.lane AND t.worker_id = {worker} AND t.owner = {line}.owner AND t.priority = {line}.priority"
    )
}

/// Reads the worker named $3, whether its calls may be claimed, and its lines. For each line and the shards $5 to $6: the
/// number of calls due at $4, counted up to $7, the first due time, and when the next call comes due. From the head,
/// reads all lines, and whether a lease has ended at $8, if $9 or if no call is due. Otherwise reads the lines of $8 to
/// $11.
fn scan_statement(from_head: bool) -> String {
    let of_line = of_line("l", "w.worker_id");
    let (lines, leases_ended) = if from_head {
        let ended = format!(
            "($9 OR NOT EXISTS (SELECT FROM found WHERE due > 0)) \
                AND EXISTS (SELECT FROM worker w CROSS JOIN line l CROSS JOIN LATERAL (SELECT FROM xdb.task t \
                    WHERE {of_line} AND t.due_at >= l.since AND t.due_at <= $4 AND {PULLED} AND t.lease_until <= $8 \
                    LIMIT 1) AS o)"
        );
        (format!("SELECT o.* FROM worker w CROSS JOIN LATERAL ({}) AS o", lines("w.worker_id")), ended)
    } else {
        let cursors = "SELECT v.* FROM unnest($8::int2[], $9::oid[], $10::int2[], $11::timestamptz[]) \
            AS v (lane, owner, priority, since)";
        (cursors.to_owned(), "false".to_owned())
    };
    format!(
        "WITH {WORKER}, \
        line AS MATERIALIZED ({lines}), \
        found AS MATERIALIZED (SELECT l.lane, l.owner, l.priority, f.due, f.first, n.due_at AS next FROM worker w CROSS JOIN line l \
            CROSS JOIN LATERAL (SELECT count(*) AS due, min(d.due_at) AS first FROM (SELECT t.due_at FROM xdb.task t \
                WHERE {of_line} AND t.due_at >= l.since AND t.due_at <= $4 AND {FREE} AND t.shard BETWEEN $5 AND $6 \
                ORDER BY t.due_at LIMIT $7) AS d) AS f \
            LEFT JOIN LATERAL (SELECT a.due_at FROM (SELECT t.due_at, t.shard FROM xdb.task t \
                    WHERE {of_line} AND t.due_at > $4 ORDER BY t.due_at LIMIT {AHEAD}) AS a \
                WHERE a.shard BETWEEN $5 AND $6 ORDER BY a.due_at LIMIT 1) AS n ON true) \
        SELECT w.*, e.paused, i.*, f.*, {leases_ended} AS leases_ended {} LEFT JOIN found f ON true",
        worker_now()
    )
}

/// The role whose members may claim the calls of a worker.
#[derive(Clone, Debug)]
pub struct PullRole {
    pub oid: pg_sys::Oid,
    /// The role's name when the worker was registered.
    pub name: String,
}

impl PullRole {
    fn read(row: &Row) -> Result<Option<Self>> {
        let (oid, name) = (row.get::<Option<pg_sys::Oid>>("role")?, row.get::<Option<String>>("role_name")?);
        Ok(oid.zip(name).map(|(oid, name)| Self { oid, name }))
    }
}

/// A worker, as a scan finds it.
pub struct PullWorker {
    pub id: WorkerId,
    /// The worker has no URL.
    pub pulls: bool,
    pub role: Option<PullRole>,
}

/// The calls of one lane and owner at a worker, ordered by due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PullLine {
    pub lane: i16,
    pub owner: pg_sys::Oid,
    pub priority: i8,
}

/// The parameters of a scan.
pub struct Wanted<'a> {
    pub worker: &'a str,
    pub at_most: usize,
    /// The first and the last shard, from 0 to 1023.
    pub shards: (i16, i16),
    pub lines: &'a ScanFrom,
    /// Scan for leases that have ended, although calls are due.
    pub leases: bool,
}

/// Where a scan begins.
pub enum ScanFrom {
    /// All lines, from the head.
    Head,
    /// These lines, each from this due time.
    Cursors(Vec<(PullLine, Timestamp)>),
    /// Only the worker. A claim takes what it finds in this line from this due time on.
    Unread(PullLine, Timestamp),
}

/// What a scan finds in a line.
#[derive(Clone, Copy, Debug)]
pub struct LineSeen {
    pub line: PullLine,
    /// The number of due calls, counted up to `Wanted::at_most`.
    pub due: usize,
    /// The first due time.
    pub first: Option<Timestamp>,
    /// When the next call of the shards comes due.
    pub next: Option<Timestamp>,
}

/// The result of a scan.
pub struct Sight {
    pub worker: PullWorker,
    /// The engine is not paused, and the database is not a copy that waits for `xdb.adopt()`.
    pub may_be_made: bool,
    pub lines: Vec<LineSeen>,
    /// The line of [`ScanFrom::Unread`]. It stands among `lines`, as if it were full of due calls.
    pub unread: Option<PullLine>,
    pub leases_ended: bool,
}

/// Scans for due calls of a worker, without locks.
pub fn scan(spi: &Spi, wanted: &Wanted<'_>, now: Timestamp, real: Timestamp) -> Result<Sight> {
    let (system, database) = instance::here();
    let mut params = vec![value(system), value(database), value(wanted.worker)];
    let mut unread: Option<LineSeen> = None;
    let counted = || [value(now), value(wanted.shards.0), value(wanted.shards.1), value(wanted.at_most as i64)];
    let statement = match wanted.lines {
        ScanFrom::Head => {
            params.extend(counted());
            params.extend([value(real), value(wanted.leases)]);
            &SCAN_FROM_HEAD
        }
        &ScanFrom::Unread(line, since) => {
            unread = Some(LineSeen { line, due: wanted.at_most, first: Some(since), next: None });
            &READ_WORKER
        }
        ScanFrom::Cursors(lines) => {
            params.extend(counted());
            params.push(array(lines.iter().map(|(line, _)| line.lane)));
            params.push(array(lines.iter().map(|(line, _)| line.owner)));
            params.push(array(lines.iter().map(|(line, _)| line.priority)));
            params.push(array(lines.iter().map(|(_, since)| *since)));
            &SCAN_FROM_CURSORS
        }
    };
    let seen = spi.rows(statement, &params, |row| {
        let is_open = row.get::<Option<bool>>("paused")? == Some(false);
        let sight = Sight {
            worker: PullWorker { id: row.get("worker_id")?, pulls: row.get("pulls")?, role: PullRole::read(row)? },
            may_be_made: is_open && instance::read_ownership(row)?.reason().is_none(),
            lines: Vec::new(),
            unread: unread.map(|seen| seen.line),
            leases_ended: row.get("leases_ended")?,
        };
        Ok((sight, read_line(row)?))
    })?;
    let mut seen = seen.into_iter();
    let (mut sight, first) = seen.next().ok_or_else(|| error::unknown_worker(wanted.worker))?;
    sight.lines.extend(first.into_iter().chain(seen.filter_map(|(_, line)| line)).chain(unread));
    Ok(sight)
}

fn read_line(row: &Row) -> Result<Option<LineSeen>> {
    let Some(lane) = row.get::<Option<i16>>("lane")? else { return Ok(None) };
    let line = PullLine { lane, owner: row.get("owner")?, priority: row.get("priority")? };
    let (first, next) = (row.get("first")?, row.get("next")?);
    Ok(Some(LineSeen { line, due: row.get::<i64>("due")? as usize, first, next }))
}

/// A due call whose task this transaction has locked.
#[derive(Clone, Copy, Debug)]
pub struct DueCall {
    pub key: StateKey,
    pub line: PullLine,
    pub due_at: Timestamp,
    /// The number of attempts that have begun.
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
    /// The execution has local attributes.
    pub has_locals: bool,
}

/// The parameters of a claim. `except`: executions whose calls are left out.
pub struct Shares<'a> {
    pub worker: WorkerId,
    pub shards: (i16, i16),
    pub lines: &'a [LineShare],
    pub except: &'a [ExecutionId],
}

/// Locks due calls, and takes a publisher's lock on their executions until this transaction ends. A pull worker may
/// work in this transaction. Meanwhile other steps of the processes go on, and the engine defers what would need the
/// locks. Skips calls that other sessions have locked, however many come first.
///
/// The executions have the current registrations of their types, and no states.
pub fn due(
    spi: &Spi,
    registry: &mut Registry,
    shares: &Shares<'_>,
    now: Timestamp,
) -> Result<(Vec<DueCall>, BTreeMap<ExecutionId, Loaded>)> {
    let mut params = LineShare::arrays(shares.lines);
    params.extend([
        value(shares.worker),
        value(now),
        value(shares.shards.0),
        value(shares.shards.1),
        array(shares.except),
    ]);
    let read = |row: &Row| Ok((read_due(row)?, execution::read_execution(row)?, read_type_now(row)?));
    let (mut calls, mut executions) = (Vec::new(), BTreeMap::new());
    for (call, execution, version) in spi.rows(&DUE, &params, read)? {
        calls.push(call);
        let id = execution.1.id;
        wake::note_locked(id.0);
        if let Entry::Vacant(new) = executions.entry(id) {
            new.insert(with_type_now(spi, registry, execution, version)?);
        }
    }
    Ok((calls, executions))
}

/// An execution with this version of its type.
fn with_type_now(
    spi: &Spi,
    registry: &mut Registry,
    (mut meta, execution): (Meta, Execution),
    version: Option<RowVersion>,
) -> Result<Loaded> {
    meta.process_type = registry.process_type_of(spi, &execution.process_type, version)?;
    meta.mapping = registry.mapping(spi, meta.mapping_id)?;
    Ok(Loaded::new(meta, execution))
}

fn read_type_now(row: &Row) -> Result<Option<RowVersion>> {
    let Some(type_id) = row.get("type_now")? else { return Ok(None) };
    Ok(Some(RowVersion { type_id, version: row.get("version")?, xmin: row.get("xmin")? }))
}

fn read_due(row: &Row) -> Result<DueCall> {
    Ok(DueCall {
        key: (row.get("execution_id")?, row.get("seq")?),
        line: PullLine { lane: row.get("lane")?, owner: row.get("owner")?, priority: row.get("priority")? },
        due_at: row.get("due_at")?,
        attempts: row.get("attempt")?,
        first_attempt_at: row.get("first_attempt_at")?,
        has_locals: row.get("has_locals")?,
    })
}

/// Leases calls that [`due`] has locked, each until the given time. Returns the numbers of the leases.
pub fn lease(spi: &Spi, calls: &[(DueCall, Timestamp)], now: Timestamp) -> Result<HashMap<StateKey, i64>> {
    let elsewhere = calls.iter().filter(|(call, _)| call.line.lane == RUNNERS_LANE);
    let elsewhere: Vec<_> = elsewhere.map(|(call, _)| call.key).collect();
    // Whatever moves calls out of the runners' lane makes their leases void.
    claim::move_to_lane(spi, &elsewhere, SCHEDULERS_LANE)?;
    let leases = calls.iter().map(|(call, until)| {
        let (execution_id, seq) = call.key;
        PullLease { execution_id, seq, lease_until: *until }
    });
    lease_until(spi, &leases.collect::<Vec<_>>(), now, (random() * f64::from(u32::MAX)) as i64)
}

/// The most attempts whose leases have ended that one poll records.
const OVER_AT_ONCE: i64 = 100;

/// Calls whose leases have ended, the earliest due first.
pub fn over(spi: &Spi, worker: WorkerId, now: Timestamp, real: Timestamp) -> Result<Vec<StateKey>> {
    over_in(spi, worker, now, OVER_AT_ONCE, real)
}

/// An attempt that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    pub key: StateKey,
    pub api: Api,
    pub attempt: u32,
    pub first_attempt_at: Option<Timestamp>,
}

fn read_begun(row: &Row) -> Result<Begun> {
    let (api, attempt) = (row.get("api")?, row.get("attempt")?);
    Ok(Begun {
        key: (row.get("execution_id")?, row.get("seq")?),
        api,
        attempt,
        first_attempt_at: row.get("first_attempt_at")?,
    })
}

/// Locks the tasks of those calls whose leases have still ended. The caller has locked the executions.
pub fn still_over(spi: &Spi, worker: WorkerId, keys: &[StateKey], real: Timestamp) -> Result<Vec<Begun>> {
    let mut params = StateKey::arrays(keys);
    params.extend([value(worker), value(real)]);
    spi.rows(&STILL_OVER, &params, read_begun)
}

/// The call and the lease that a token names. The number of each lease is unique. A crash may take back a lease and the
/// last numbers of the sequence, while a session still has the token. So half of the number is random.
#[derive(Clone, Copy, Debug)]
pub struct Leased {
    pub key: StateKey,
    pub number: i64,
}

/// The role that uses a token.
#[derive(Clone, Copy)]
pub struct Holder {
    pub role: pg_sys::Oid,
    /// The role may use the calls of all workers.
    pub may_all: bool,
}

impl Holder {
    fn params(self, Leased { key: (execution, seq), number }: Leased) -> [Param; 5] {
        [value(execution), value(seq), value(number), value(self.role), value(self.may_all)]
    }
}

/// The call of a token, and its execution with the state that made the call.
pub struct OfToken {
    pub begun: Begun,
    pub executions: BTreeMap<ExecutionId, Loaded>,
    /// The inbox of the execution is empty.
    pub without_arrivals: bool,
}

/// The call of a token, with the current registration of its type. `lock`: waits for the lock of a step. None: the call
/// has another lease now, or the role may not use the call. One statement checks the role and locks, because a role may
/// lock only the executions of its own calls.
pub fn of_token(
    spi: &Spi,
    registry: &mut Registry,
    leased: Leased,
    holder: Holder,
    lock: bool,
) -> Result<Option<OfToken>> {
    let statement = if lock { &STEP_OF_TOKEN } else { &LOOK_OF_TOKEN };
    let Some(execution) = spi.first(statement, &holder.params(leased), execution::read_execution)? else {
        return Ok(None);
    };
    let Leased { key: (id, seq), number } = leased;
    if lock {
        wake::note_locked(id.0);
    }
    let params = [value(id), value(seq), value(number), value(&*execution.1.process_type)];
    let read = |row: &Row| {
        let (_, state) = state::read_state(row)?;
        Ok((state, read_begun(row)?, read_type_now(row)?, row.get("without_arrivals")?))
    };
    let Some((state, begun, version, without_arrivals)) = spi.first(&UNDER_LEASE, &params, read)? else {
        return Ok(None);
    };
    let mut executions = BTreeMap::from([(id, with_type_now(spi, registry, execution, version)?)]);
    state::put_in(&mut executions, id, state);
    Ok(Some(OfToken { begun, executions, without_arrivals }))
}

/// Takes a publisher's lock on the execution of a call, and returns the worker of the call. None as for [`of_token`].
/// The lock and the check are one statement, because a role may lock only the executions of its own calls.
pub fn keep_open(spi: &Spi, leased: Leased, holder: Holder) -> Result<Option<WorkerId>> {
    let worker = spi.first(&KEEP_OPEN, &holder.params(leased), |row| row.get("worker_id"))?;
    if worker.is_some() {
        wake::note_locked(leased.key.0.0);
    }
    Ok(worker)
}

/// Gives a call back, so that the same attempt is made again. Returns the shard. None: the call has another lease now.
pub fn give_back(spi: &Spi, Leased { key: (execution, seq), number }: Leased) -> Result<Option<i16>> {
    spi.first(&GIVE_BACK, &[value(execution), value(seq), value(number)], |row| row.get("shard"))
}

/// Changes the end of a lease. False: the call has another lease now.
pub fn extend(spi: &Spi, Leased { key: (execution, seq), number }: Leased, until: Timestamp) -> Result<bool> {
    Ok(spi.run(&EXTEND, &[value(execution), value(seq), value(number), value(until)])? > 0)
}
