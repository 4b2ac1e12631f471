//! Calls that workers fetch with SQL: the rows of `task` of workers without URL.
//!
//! Their leases have the epoch 0, which no process of the engine has, and a number that is half of the sequence `pull_lease`: they go by
//! `lease_until` alone, and no start of a scheduler makes them void. A lease of any epoch at such a worker is void: it is of the time
//! when the worker had a URL. A claim first notes the failed attempts whose leases have ended.

use super::StateKey;
use super::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use super::loaded::Loaded;
use super::registry::{Registry, RowVersion, WorkerId};
use super::table::{Record, batch, record, statements};
use super::{claim, execution, instance, state};
use crate::error;
use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::process::random;
use crate::pg::spi::{Row, Spi};
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use xdb_engine::{Api, ExecutionId, StateSeq, Timestamp};

/// The lanes that calls of such a worker can be in. The engine has put calls into the runners' lane while the worker had
/// a URL.
fn lanes() -> String {
    format!("'{{{SCHEDULERS_LANE},{RUNNERS_LANE}}}'::int2[]")
}

/// A task `t` is under the lease of a pull worker, or was until it ended.
const PULLED: &str = "t.lease_epoch = 0 AND t.lease_until IS NOT NULL";

/// The version of the row `y` of a process type, which may be missing, beside columns of other tables.
const TYPE_NOW: &str = "y.type_id AS type_now, y.version, y.xmin::text AS xmin";

/// It may be claimed.
const FREE: &str = "(t.lease_until IS NULL OR t.lease_epoch <> 0)";

record! {
    /// How many calls of a line are wanted that are due since then.
    pub struct LineShare { lane: i16, owner: pg_sys::Oid, priority: i8, since: Timestamp, room: i64 }
}

record! {
    /// A task and when the lease ends that it gets.
    struct PullLease { execution_id: ExecutionId, seq: StateSeq, lease_until: Timestamp }
}

statements! {
    // In one statement, because an idle worker asks for nothing else.
    LOOK = look_statement();
    // Judged as it is when it is locked. A session that has locked its execution to close it keeps it.
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
    // Half of a number is of the sequence. See `Leased`.
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
    /// Calls under leases of this worker, counted up to a bound: for people.
    LEASED = format!("SELECT count(*) AS leased FROM (SELECT FROM xdb.task t \
        WHERE t.lane = ANY ({}) AND t.worker_id = $1 AND {PULLED} AND t.lease_until > $2 LIMIT 10000) AS l", lanes())
        => pub fn leased(worker: WorkerId, real: Timestamp) -> i64;
    LOOK_OF_TOKEN = under_token("");
    // The lease is looked at again when the lock is there.
    STEP_OF_TOKEN = under_token(" FOR NO KEY UPDATE OF p");
    OPEN_OF_TOKEN = under_token(" FOR KEY SHARE OF p");
    // In one statement, because every step begins with it.
    UNDER_LEASE = format!("SELECT {}, {TYPE_NOW}, \
            NOT EXISTS (SELECT FROM xdb.inbox i WHERE i.execution_id = $1) AS without_arrivals \
        FROM xdb.task t JOIN xdb.state_execution s ON s.execution_id = t.execution_id AND s.seq = t.seq \
            LEFT JOIN xdb.process_type y ON y.process_type = $4 \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED}", state::columns());
    GIVE_BACK = format!("UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), {} \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED} RETURNING t.shard", claim::NO_LEASE);
    /// Notes when attempts begin that get no lease, because they fail before.
    BEGIN = format!("UPDATE xdb.task t SET first_attempt_at = $3 FROM {} \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq AND t.first_attempt_at IS NULL", batch::<StateKey>())
        => pub fn begin_attempts(keys: [StateKey], now: Timestamp) -> ();
    EXTEND = format!("UPDATE xdb.task t SET lease_until = $4 \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED}");
}

/// The call of the lease $3, and its execution, if the role $4 may have it: one that is of the worker's role, or with $5 any.
fn under_token(lock: &str) -> String {
    format!(
        "SELECT {}, t.seq, t.api, t.attempt, t.first_attempt_at, t.worker_id \
        FROM xdb.task t JOIN xdb.worker w ON w.worker_id = t.worker_id \
            JOIN xdb.process_execution p ON p.execution_id = t.execution_id \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED} AND w.url IS NULL \
            AND ($5::bool OR pg_catalog.pg_has_role($4::oid, w.role, 'USAGE')){lock}",
        execution::columns()
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

/// The task `t` stands in this line of the worker.
fn of_line(line: &str, worker: &str) -> String {
    format!(
        "t.lane = {line}.lane AND t.worker_id = {worker} AND t.owner = {line}.owner AND t.priority = {line}.priority"
    )
}

/// The worker named $3, whether its calls may be claimed at all, and its lines: those of $4 to $7, or if $8 all that there are, each
/// from its first call on. Of each how many calls are due for the shards $11 to $12, counted up to $13, the first of them, and when the next one
/// comes due. From the head also whether a lease has ended, if $14 or if nothing is due.
fn look_statement() -> String {
    let of_line = of_line("l", "w.worker_id");
    format!(
        "WITH worker AS MATERIALIZED ( \
            SELECT w.worker_id, w.url IS NULL AS pulls, w.role, w.role_name FROM xdb.worker w WHERE w.name = $3), \
        line AS MATERIALIZED ( \
            SELECT v.* FROM unnest($4::int2[], $5::oid[], $6::int2[], $7::timestamptz[]) AS v (lane, owner, priority, since) \
            UNION ALL SELECT o.* FROM worker w CROSS JOIN LATERAL ({}) AS o WHERE $8), \
        found AS MATERIALIZED (SELECT l.lane, l.owner, l.priority, f.due, f.first, n.due_at AS next FROM worker w CROSS JOIN line l \
            CROSS JOIN LATERAL (SELECT count(*) AS due, min(d.due_at) AS first FROM (SELECT t.due_at FROM xdb.task t \
                WHERE {of_line} AND t.due_at >= l.since AND t.due_at <= $9 AND {FREE} AND t.shard BETWEEN $11 AND $12 \
                ORDER BY t.due_at LIMIT $13) AS d) AS f \
            LEFT JOIN LATERAL (SELECT t.due_at FROM xdb.task t WHERE {of_line} AND t.due_at > $9 ORDER BY t.due_at LIMIT 1) AS n ON true) \
        SELECT w.*, e.paused, i.*, f.*, $8 AND ($14 OR NOT EXISTS (SELECT FROM found WHERE due > 0)) \
            AND EXISTS (SELECT FROM worker w CROSS JOIN line l CROSS JOIN LATERAL (SELECT FROM xdb.task t \
                WHERE {of_line} AND t.due_at >= l.since AND t.due_at <= $9 AND {PULLED} AND t.lease_until <= $10 LIMIT 1) AS o) AS leases_ended \
        FROM worker w LEFT JOIN xdb.engine e ON e.lane = 0 LEFT JOIN LATERAL ({}) AS i ON true LEFT JOIN found f ON true",
        lines("w.worker_id"),
        instance::ownership_row()
    )
}

/// The role whose members may claim a worker's calls.
#[derive(Clone, Debug)]
pub struct PullRole {
    pub oid: pg_sys::Oid,
    /// Its name when the worker was registered.
    pub name: String,
}

impl PullRole {
    fn read(row: &Row) -> Result<Option<Self>> {
        let (oid, name) = (row.get::<Option<pg_sys::Oid>>("role")?, row.get::<Option<String>>("role_name")?);
        Ok(oid.zip(name).map(|(oid, name)| Self { oid, name }))
    }
}

/// A worker, as a session that claims its calls finds it.
pub struct PullWorker {
    pub id: WorkerId,
    /// It has no URL.
    pub pulls: bool,
    pub role: Option<PullRole>,
}

/// Calls of an owner that stand in the order of their due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PullLine {
    pub lane: i16,
    pub owner: pg_sys::Oid,
    pub priority: i8,
}

/// What is looked for.
pub struct Wanted<'a> {
    pub worker: &'a str,
    pub at_most: usize,
    /// The first and the last one, of 0 to 1023.
    pub shards: (i16, i16),
    /// Lines, and since when their calls may be due. None: all lines, from the head.
    pub lines: Option<&'a [(PullLine, Timestamp)]>,
    /// Leases that have ended are looked for though calls are due.
    pub leases: bool,
}

/// What a line has.
#[derive(Clone, Copy, Debug)]
pub struct LineSeen {
    pub line: PullLine,
    /// How many of its calls are due, counted up to as many as are wanted.
    pub due: usize,
    /// The first of them.
    pub first: Option<Timestamp>,
    /// When the next call comes due.
    pub next: Option<Timestamp>,
}

/// What there is of a worker.
pub struct Sight {
    pub worker: PullWorker,
    /// The engine is not paused, and the processes are this database's own.
    pub may_be_made: bool,
    pub lines: Vec<LineSeen>,
    pub leases_ended: bool,
}

/// Looks for due calls of a worker. Nothing is locked.
pub fn look(spi: &Spi, wanted: &Wanted<'_>, now: Timestamp, real: Timestamp) -> Result<Sight> {
    let ((system, database), lines) = (instance::here(), wanted.lines.unwrap_or_default());
    let mut params = vec![value(system), value(database), value(wanted.worker)];
    params.push(array(lines.iter().map(|(line, _)| line.lane)));
    params.push(array(lines.iter().map(|(line, _)| line.owner)));
    params.push(array(lines.iter().map(|(line, _)| line.priority)));
    params.extend([array(lines.iter().map(|(_, since)| *since)), value(wanted.lines.is_none())]);
    params.extend([value(now), value(real), value(wanted.shards.0), value(wanted.shards.1)]);
    params.extend([value(wanted.at_most as i64), value(wanted.leases)]);
    let seen = spi.rows(&LOOK, &params, |row| {
        let is_open = row.get::<Option<bool>>("paused")? == Some(false);
        let sight = Sight {
            worker: PullWorker { id: row.get("worker_id")?, pulls: row.get("pulls")?, role: PullRole::read(row)? },
            may_be_made: is_open && instance::read_ownership(row)?.reason().is_none(),
            lines: Vec::new(),
            leases_ended: row.get("leases_ended")?,
        };
        Ok((sight, read_line(row)?))
    })?;
    let mut seen = seen.into_iter();
    let (mut sight, first) = seen.next().ok_or_else(|| error::unknown_worker(wanted.worker))?;
    sight.lines.extend(first.into_iter().chain(seen.filter_map(|(_, line)| line)));
    Ok(sight)
}

fn read_line(row: &Row) -> Result<Option<LineSeen>> {
    let Some(lane) = row.get::<Option<i16>>("lane")? else { return Ok(None) };
    let line = PullLine { lane, owner: row.get("owner")?, priority: row.get("priority")? };
    let (first, next) = (row.get("first")?, row.get("next")?);
    Ok(Some(LineSeen { line, due: row.get::<i64>("due")? as usize, first, next }))
}

/// A due call that this transaction has locked.
#[derive(Clone, Copy, Debug)]
pub struct DueCall {
    pub key: StateKey,
    pub line: PullLine,
    pub due_at: Timestamp,
    /// Attempts that were begun before.
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
    /// Its execution has local attributes.
    pub has_locals: bool,
}

/// What to claim: calls of these lines, but not those of these executions.
pub struct Shares<'a> {
    pub worker: WorkerId,
    pub shards: (i16, i16),
    pub lines: &'a [LineShare],
    pub except: &'a [ExecutionId],
}

/// Locks due calls, and keeps their executions open until this transaction ends. A pull worker may keep the transaction open while it
/// works. Where the engine would wait for the locks on the tasks, it passes the executions over, as if a session published to them. Steps
/// go on. Calls that other sessions have locked are passed over, however many stand in front.
///
/// The executions come with their types as they are registered now, and without states.
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
    for (call, (mut meta, execution), version) in spi.rows(&DUE, &params, read)? {
        calls.push(call);
        let id = execution.id;
        wake::note_locked(id.0);
        if let Entry::Vacant(new) = executions.entry(id) {
            meta.process_type = registry.process_type_of(spi, &execution.process_type, version)?;
            meta.mapping = registry.mapping(spi, meta.mapping_id)?;
            new.insert(Loaded::new(meta, execution));
        }
    }
    Ok((calls, executions))
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

/// Leases calls that [`due`] has locked until then. Gives the numbers of the leases.
pub fn lease(spi: &Spi, calls: &[(DueCall, Timestamp)], now: Timestamp) -> Result<HashMap<StateKey, i64>> {
    let elsewhere = calls.iter().filter(|(call, _)| call.line.lane == RUNNERS_LANE);
    let elsewhere: Vec<_> = elsewhere.map(|(call, _)| call.key).collect();
    // Who takes calls back from the runners' lane makes its leases void.
    claim::move_to_lane(spi, &elsewhere, SCHEDULERS_LANE)?;
    let leases = calls.iter().map(|(call, until)| {
        let (execution_id, seq) = call.key;
        PullLease { execution_id, seq, lease_until: *until }
    });
    lease_until(spi, &leases.collect::<Vec<_>>(), now, (random() * f64::from(u32::MAX)) as i64)
}

/// Attempts whose leases have ended that are noted at one time.
const OVER_AT_ONCE: i64 = 100;

/// Calls whose leases have ended, the longest due first.
pub fn over(spi: &Spi, worker: WorkerId, now: Timestamp, real: Timestamp) -> Result<Vec<StateKey>> {
    over_in(spi, worker, now, OVER_AT_ONCE, real)
}

/// An attempt that was begun.
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

/// Those of these calls whose leases have ended still, their tasks locked. To be called under the locks of their executions.
pub fn still_over(spi: &Spi, worker: WorkerId, keys: &[StateKey], real: Timestamp) -> Result<Vec<Begun>> {
    let mut params = StateKey::arrays(keys);
    params.extend([value(worker), value(real)]);
    spi.rows(&STILL_OVER, &params, read_begun)
}

/// A call and the lease that a token names. No other lease has its number. A crash may take back a lease together with the sequence's
/// last numbers, while a session still has the token. So half of the number is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Leased {
    pub key: StateKey,
    pub number: i64,
}

/// The role that has a token.
#[derive(Clone, Copy)]
pub struct Holder {
    pub role: pg_sys::Oid,
    /// It may have every worker's calls.
    pub may_all: bool,
}

/// What there is under a token.
pub struct OfToken {
    pub begun: Begun,
    pub worker: WorkerId,
    pub executions: BTreeMap<ExecutionId, Loaded>,
}

/// How the execution of a token is locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TokenLock {
    None,
    /// No other session closes it.
    Open,
    Step,
}

/// The call of a token, if the lease is this one still and the role may have it, with its execution: in one statement, because no role
/// may lock an execution whose call is not its own.
pub fn of_token(
    spi: &Spi,
    registry: &mut Registry,
    Leased { key: (execution, seq), number }: Leased,
    holder: Holder,
    lock: TokenLock,
) -> Result<Option<OfToken>> {
    let statement = match lock {
        TokenLock::None => &LOOK_OF_TOKEN,
        TokenLock::Open => &OPEN_OF_TOKEN,
        TokenLock::Step => &STEP_OF_TOKEN,
    };
    let params = [value(execution), value(seq), value(number), value(holder.role), value(holder.may_all)];
    let read = |row: &Row| Ok((read_begun(row)?, row.get("worker_id")?, execution::read_execution(row)?));
    let Some((begun, worker, found)) = spi.first(statement, &params, read)? else { return Ok(None) };
    if lock != TokenLock::None {
        wake::note_locked(execution.0);
    }
    Ok(Some(OfToken { begun, worker, executions: execution::with_types(spi, registry, vec![found])? }))
}

/// Loads the state of a call into its execution, which is locked, with its type as it is registered now, and says whether the inbox of
/// the execution is empty. None: the lease is another one.
pub fn load_under_lease(
    spi: &Spi,
    registry: &mut Registry,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    Leased { key: (execution, seq), number }: Leased,
) -> Result<Option<bool>> {
    let Some(entry) = loaded.get_mut(&execution) else { return Ok(None) };
    let name = entry.before.process_type.clone();
    let read = |row: &Row| Ok((state::read_state(row)?, read_type_now(row)?, row.get("without_arrivals")?));
    let params = [value(execution), value(seq), value(number), value(&*name)];
    let Some(((id, state), version, without_arrivals)) = spi.first(&UNDER_LEASE, &params, read)? else {
        return Ok(None);
    };
    entry.meta.process_type = registry.process_type_of(spi, &name, version)?;
    state::put_in(loaded, id, state);
    Ok(Some(without_arrivals))
}

/// Gives a call back: the same attempt is made again. Its shard; None if the lease is another one.
pub fn give_back(spi: &Spi, Leased { key: (execution, seq), number }: Leased) -> Result<Option<i16>> {
    spi.first(&GIVE_BACK, &[value(execution), value(seq), value(number)], |row| row.get("shard"))
}

/// Has a lease end later, or earlier. False if it is another one.
pub fn extend(spi: &Spi, Leased { key: (execution, seq), number }: Leased, until: Timestamp) -> Result<bool> {
    Ok(spi.run(&EXTEND, &[value(execution), value(seq), value(number), value(until)])? > 0)
}
