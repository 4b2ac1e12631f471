//! Calls that workers fetch with SQL: the rows of `task` of workers without URL.
//!
//! Their leases have the epoch 0, which no process of the engine has, and a number that is half of the sequence `pull_lease`: they go by
//! `lease_until` alone, and no start of a scheduler makes them void. A lease of any epoch at such a worker is void: it is of the time
//! when the worker had a URL. Whoever claims notes the failed attempts first whose leases have ended.

use super::StateKey;
use super::claim::{self, Lease};
use super::lanes::{RUNNERS_LANE, SCHEDULERS_LANE, level_of};
use super::loaded::Loaded;
use super::registry::{Registry, RowVersion, TypeId, WorkerId};
use super::state;
use super::table::{Read, Record, batch, rows, statements};
use super::{execution, instance};
use crate::error;
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{Param, array, value};
use crate::pg::process::random;
use crate::pg::spi::{Row, Spi};
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use xdb_engine::{Api, ExecutionId, Timestamp};

/// The lanes that calls of such a worker can be in: those of priorities, that of all others, and where the engine has put them while
/// the worker had a URL.
fn lanes(spi: &Spi) -> Result<Vec<i16>> {
    let mut lanes = claim::levels(spi)?;
    lanes.extend([SCHEDULERS_LANE, RUNNERS_LANE]);
    Ok(lanes)
}

/// Calls that are read before those that somebody has locked are passed over.
const READ_AHEAD: usize = 16;

/// A task `t` is under the lease of a pull worker, or was until it ended.
const PULLED: &str = "t.lease_epoch = 0 AND t.lease_until IS NOT NULL";

/// It may be claimed.
const FREE: &str = "(t.lease_until IS NULL OR t.lease_epoch <> 0)";

statements! {
    WORKER = "SELECT w.worker_id, w.url IS NULL AS pulls, w.role, w.role_name FROM xdb.worker w WHERE w.name = $1";
    GATE = format!("SELECT e.paused, s.* FROM xdb.engine e LEFT JOIN LATERAL ({}) AS s ON true WHERE e.lane = 0",
        instance::ownership_row());
    LINES = format!("SELECT l.lane, l.owner FROM {} WHERE l.owner <> ALL ($3)", lines());
    // Judged as it is when it is locked.
    LOCK_IN_LINE = format!("SELECT t.execution_id, t.seq, t.lane, t.attempt, t.first_attempt_at FROM xdb.task t \
        WHERE t.lane = $1 AND t.owner = $2 AND t.worker_id = $3 AND t.due_at <= $4 AND {FREE} \
            AND t.shard BETWEEN $6 AND $7 AND t.execution_id <> ALL ($8) \
        ORDER BY t.due_at LIMIT $5 FOR UPDATE OF t SKIP LOCKED");
    DUE = due_where(FREE, "t.shard BETWEEN $5 AND $6 AND t.execution_id <> ALL ($7) AND l.owner <> ALL ($8)");
    KEEP_OPEN = "SELECT p.execution_id FROM xdb.process_execution p WHERE p.execution_id = ANY ($1) \
        ORDER BY p.execution_id FOR KEY SHARE SKIP LOCKED";
    LOCK = format!("SELECT t.execution_id, t.seq, t.lane, t.attempt, t.first_attempt_at \
        FROM {} JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq \
        WHERE t.worker_id = $3 AND t.lane = ANY ($4) AND t.due_at <= $5 AND {FREE} \
        ORDER BY {}, t.due_at, t.execution_id, t.seq LIMIT $6 FOR UPDATE OF t SKIP LOCKED", batch::<StateKey>(), level_of("t"));
    OVER = due_where(PULLED, "t.lease_until <= $5");
    STILL_OVER = format!("SELECT t.execution_id, t.seq, t.api, t.attempt, t.first_attempt_at \
        FROM {} JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq \
        WHERE t.worker_id = $3 AND {PULLED} AND t.lease_until <= $4 FOR UPDATE OF t SKIP LOCKED", batch::<StateKey>());
    // One descent in the index for each line.
    NEXT_DUE = format!("SELECT min(n.due_at) AS next FROM {} CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t \
            WHERE t.lane = l.lane AND t.worker_id = $1 AND t.owner = l.owner AND t.due_at > $3 ORDER BY t.due_at LIMIT 1) AS n",
        lines());
    LEASED = format!("SELECT count(*) AS leased FROM (SELECT FROM xdb.task t \
        WHERE t.lane = ANY ($2) AND t.worker_id = $1 AND {PULLED} AND t.lease_until > $3 LIMIT 10000) AS l");
    NUMBER = "SELECT pg_catalog.nextval('xdb.pull_lease') AS number";
    LOOK_OF_TOKEN = under_token("");
    // The lease is looked at again when the lock is there.
    STEP_OF_TOKEN = under_token(" FOR NO KEY UPDATE OF p");
    OPEN_OF_TOKEN = under_token(" FOR KEY SHARE OF p");
    // In one statement, because every step begins with it.
    UNDER_LEASE = format!("SELECT {}, y.type_id, y.version, y.xmin::text AS xmin, \
            NOT EXISTS (SELECT FROM xdb.inbox i WHERE i.execution_id = $1) AS without_arrivals \
        FROM xdb.task t JOIN xdb.state_execution s ON s.execution_id = t.execution_id AND s.seq = t.seq \
            LEFT JOIN xdb.process_type y ON y.process_type = $4 \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED}", state::columns());
    GIVE_BACK = format!("UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), {} \
        WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND {PULLED}", claim::NO_LEASE);
    BEGIN = format!("UPDATE xdb.task t SET first_attempt_at = $3 FROM {} \
        WHERE t.execution_id = v.execution_id AND t.seq = v.seq AND t.first_attempt_at IS NULL", batch::<StateKey>());
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

/// The lines of the worker $1 in the lanes $2: a relation `l`.
fn lines() -> String {
    "(SELECT a.lane, o.owner FROM unnest($2::int2[]) AS a (lane) CROSS JOIN LATERAL ( \
        WITH RECURSIVE line (owner) AS ( \
            (SELECT t.owner FROM xdb.task t WHERE t.lane = a.lane AND t.worker_id = $1 ORDER BY t.owner LIMIT 1) \
            UNION ALL SELECT n.owner FROM line CROSS JOIN LATERAL (SELECT t.owner FROM xdb.task t \
                WHERE t.lane = a.lane AND t.worker_id = $1 AND t.owner > line.owner ORDER BY t.owner LIMIT 1) AS n) \
        SELECT owner FROM line) AS o) AS l"
        .to_owned()
}

/// The keys of the first $4 due calls of the worker $1 in the lanes $2 for which `state` and `which` hold: by priority, then by due
/// time.
fn due_where(state: &str, which: &str) -> String {
    format!(
        "SELECT d.execution_id, d.seq FROM {} CROSS JOIN LATERAL ( \
            SELECT t.execution_id, t.seq, t.due_at FROM xdb.task t \
            WHERE t.lane = l.lane AND t.worker_id = $1 AND t.owner = l.owner AND t.due_at <= $3 AND {state} AND {which} \
            ORDER BY t.due_at LIMIT $4) AS d \
        ORDER BY {}, d.due_at, d.execution_id, d.seq LIMIT $4",
        lines(),
        level_of("l")
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

/// A worker, as whoever claims its calls finds it.
pub struct PullWorker {
    pub id: WorkerId,
    /// It has no URL.
    pub pulls: bool,
    pub role: Option<PullRole>,
}

pub fn worker(spi: &Spi, name: &str) -> Result<PullWorker> {
    let read =
        |row: &Row| Ok(PullWorker { id: row.get("worker_id")?, pulls: row.get("pulls")?, role: PullRole::read(row)? });
    spi.first(&WORKER, &[value(name)], read)?.ok_or_else(|| error::unknown_worker(name))
}

/// Whether calls may be made at all: the engine is not paused, and the processes are this database's own.
pub fn may_be_made(spi: &Spi) -> Result<bool> {
    let (system, database) = instance::here();
    let read = |row: &Row| Ok(!row.get::<bool>("paused")? && instance::read_ownership(row)?.reason().is_none());
    Ok(spi.first(&GATE, &[value(system), value(database)], read)?.unwrap_or(false))
}

/// What to claim.
pub struct Wanted<'a> {
    pub worker: WorkerId,
    pub at_most: usize,
    /// The first and the last one, of 0 to 1023.
    pub shards: (i16, i16),
    /// Executions that are left out, and owners.
    pub except: &'a [ExecutionId],
    pub except_of: &'a [pg_sys::Oid],
    pub now: Timestamp,
}

/// A due call that this transaction has locked.
#[derive(Clone, Copy, Debug)]
pub struct DueCall {
    pub key: StateKey,
    pub lane: i16,
    /// Attempts that were begun before.
    pub attempts: u32,
    pub first_attempt_at: Option<Timestamp>,
}

/// Locks due calls. What others have locked is passed over, however much of it stands in front.
pub fn due(spi: &Spi, wanted: &Wanted<'_>) -> Result<Vec<DueCall>> {
    let lanes = lanes(spi)?;
    let lanes = || array(lanes.iter().copied());
    let read = |row: &Row| Ok((row.get::<i16>("lane")?, row.get::<pg_sys::Oid>("owner")?));
    match spi.rows(&LINES, &[value(wanted.worker), lanes(), array(wanted.except_of)], read)?[..] {
        [] => Ok(Vec::new()),
        [line] => due_in(spi, wanted, line),
        _ => due_of_several_lines(spi, wanted, lanes),
    }
}

fn read_due(row: &Row) -> Result<DueCall> {
    let (lane, attempts) = (row.get("lane")?, row.get("attempt")?);
    Ok(DueCall { key: StateKey::read(row)?, lane, attempts, first_attempt_at: row.get("first_attempt_at")? })
}

/// In one line the first calls that can be locked are those that are wanted.
fn due_in(spi: &Spi, wanted: &Wanted<'_>, (lane, owner): (i16, pg_sys::Oid)) -> Result<Vec<DueCall>> {
    let mut params = vec![value(lane), value(owner), value(wanted.worker), value(wanted.now)];
    params.extend([value(wanted.at_most as i64), value(wanted.shards.0), value(wanted.shards.1), array(wanted.except)]);
    spi.rows(&LOCK_IN_LINE, &params, read_due)
}

/// The first calls of all lines together are looked for before any is locked, so that none is which this claim does not take.
fn due_of_several_lines(spi: &Spi, wanted: &Wanted<'_>, lanes: impl Fn() -> Param) -> Result<Vec<DueCall>> {
    let mut looked_at = wanted.at_most + READ_AHEAD;
    loop {
        let mut params = vec![value(wanted.worker), lanes(), value(wanted.now), value(looked_at as i64)];
        params.extend([value(wanted.shards.0), value(wanted.shards.1), array(wanted.except), array(wanted.except_of)]);
        let keys: Vec<StateKey> = rows(spi, &DUE, &params)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut params = StateKey::arrays(&keys);
        params.extend([value(wanted.worker), lanes(), value(wanted.now), value(wanted.at_most as i64)]);
        let locked = spi.rows(&LOCK, &params, read_due)?;
        if locked.len() >= wanted.at_most || keys.len() < looked_at {
            return Ok(locked);
        }
        looked_at *= 4;
    }
}

/// Sees to it that nobody closes these executions before this transaction has ended. Whoever fetches calls may keep it open for as long as
/// he works: the engine passes them over, as if somebody published to them, where it would wait for the locks on their tasks. Steps go on.
/// Those that somebody is closing are left out.
pub fn keep_open(spi: &Spi, ids: &BTreeSet<ExecutionId>) -> Result<Vec<ExecutionId>> {
    let kept: Vec<ExecutionId> = spi.rows(&KEEP_OPEN, &[array(ids)], |row| row.get("execution_id"))?;
    kept.iter().for_each(|id| wake::note_locked(id.0));
    Ok(kept)
}

/// Leases calls that [`due`] has locked.
pub fn lease(spi: &Spi, calls: &[(DueCall, Lease)], now: Timestamp) -> Result<()> {
    let elsewhere = calls.iter().filter(|(call, _)| call.lane == RUNNERS_LANE);
    let elsewhere: Vec<_> = elsewhere.map(|(call, _)| call.key).collect();
    // Who takes calls back from the runners' lane makes its leases void.
    claim::move_to_lane(spi, &elsewhere, SCHEDULERS_LANE)?;
    let leases: HashMap<_, _> = calls.iter().map(|(call, lease)| (call.key, *lease)).collect();
    claim::lease(spi, &leases, now)
}

/// Notes when attempts begin that nobody gets a lease for, because they fail before.
pub fn begin_attempts(spi: &Spi, keys: &[StateKey], now: Timestamp) -> Result<()> {
    if !keys.is_empty() {
        let mut params = StateKey::arrays(keys);
        params.push(value(now));
        spi.run(&BEGIN, &params)?;
    }
    Ok(())
}

/// A number for leases, which none has had: not even one that a crash has taken back together with what the sequence has counted, and
/// of which somebody has a token still. So half of it is drawn.
pub fn number(spi: &Spi) -> Result<i64> {
    let next: Option<i64> = spi.first(&NUMBER, &[], |row| row.get("number"))?;
    let next = next.ok_or_else(|| PgError::internal("a sequence has no number"))?;
    Ok(((next & 0x7fff_ffff) << 32) | (random() * f64::from(u32::MAX)) as i64)
}

/// When the next call of a worker comes due.
pub fn next_due(spi: &Spi, worker: WorkerId, now: Timestamp) -> Result<Option<Timestamp>> {
    let params = [value(worker), array(lanes(spi)?), value(now)];
    Ok(spi.first(&NEXT_DUE, &params, |row| row.get("next"))?.flatten())
}

/// Calls under leases of this worker, counted up to a bound: for people.
pub fn leased(spi: &Spi, worker: WorkerId, real: Timestamp) -> Result<i64> {
    let params = [value(worker), array(lanes(spi)?), value(real)];
    Ok(spi.first(&LEASED, &params, |row| row.get("leased"))?.unwrap_or(0))
}

/// Attempts whose leases have ended that are noted at one time.
const OVER_AT_ONCE: i64 = 100;

/// Calls whose leases have ended, the longest due first.
pub fn over(spi: &Spi, worker: WorkerId, now: Timestamp, real: Timestamp) -> Result<Vec<StateKey>> {
    let params = [value(worker), array(lanes(spi)?), value(now), value(OVER_AT_ONCE), value(real)];
    rows(spi, &OVER, &params)
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
    Ok(Begun { key: (row.get("execution_id")?, row.get("seq")?), api, attempt, first_attempt_at: row.get("first_attempt_at")? })
}

/// Those of these calls whose leases have ended still, their tasks locked. To be called under the locks of their executions.
pub fn still_over(spi: &Spi, worker: WorkerId, keys: &[StateKey], real: Timestamp) -> Result<Vec<Begun>> {
    let mut params = StateKey::arrays(keys);
    params.extend([value(worker), value(real)]);
    spi.rows(&STILL_OVER, &params, read_begun)
}

/// A call and the lease that somebody has a token of.
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
    /// Nobody closes it.
    Open,
    Step,
}

/// The call of a token, if the lease is this one still and the role may have it, with its execution: in one statement, because nobody
/// may lock an execution of which the call is another's.
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
    let read = |row: &Row| {
        let version = row.get::<Option<TypeId>>("type_id")?.map(|_| RowVersion::read(row)).transpose()?;
        Ok((state::read_state(row)?, version, row.get("without_arrivals")?))
    };
    let params = [value(execution), value(seq), value(number), value(&*name)];
    let Some(((id, state), version, without_arrivals)) = spi.first(&UNDER_LEASE, &params, read)? else {
        return Ok(None);
    };
    entry.meta.process_type = registry.process_type_of(spi, &name, version)?;
    state::put_in(loaded, id, state);
    Ok(Some(without_arrivals))
}

/// Gives a call back: the same attempt is made again. False if the lease is another one.
pub fn give_back(spi: &Spi, Leased { key: (execution, seq), number }: Leased) -> Result<bool> {
    Ok(spi.run(&GIVE_BACK, &[value(execution), value(seq), value(number)])? > 0)
}

/// Has a lease end later, or earlier. False if it is another one.
pub fn extend(spi: &Spi, Leased { key: (execution, seq), number }: Leased, until: Timestamp) -> Result<bool> {
    Ok(spi.run(&EXTEND, &[value(execution), value(seq), value(number), value(until)])? > 0)
}
