//! Pull workers: `claim_calls`, and the functions that answer a call.
//!
//! A call is known by its token, `<execution>/<seq>/<number>[/<fingerprint>]`: the lease, and what was loaded under locks. A token is
//! no secret: it is worth something to those alone who may claim the worker's calls.

use super::answering::{self, Answering, Executions, TablesInSession};
use super::owners_tables::OwnersTables;
use super::pull_claim::{self, Poll};
use super::rpc_locks::Locking;
use super::{Caller, json, name, needed, pull_look};
use crate::calls::{self, CallRecord};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::identity::{self, TableUse};
use crate::pg::latch;
use crate::pg::process::{self, has_transaction_snapshot};
use crate::pg::shmem::marks::{self, RESPECTED_FOR};
use crate::pg::spi::Spi;
use crate::pg::wake::{self, NewCall, waiter::Registration};
use crate::store::app_functions::FunctionCalls;
use crate::store::app_tables::Tables;
use crate::store::attribute;
use crate::store::execution::Lock;
use crate::store::loaded::Loaded;
use crate::store::pull::{self, Holder, Leased, OfToken, PullRole, TokenLock};
use crate::store::registry::Registry;
use crate::store::{locks, state};
use crate::{clock, error, guc};
use std::time::Instant;
use xdb_calls::{Outcome, Written, decode_answer};
use xdb_engine::*;
use xdb_protocol::{decode_failure, invalid_answer, token_fingerprint};

/// The longest wait of a function that waits.
pub(super) const LONGEST_WAIT: Duration = Duration(3_600_000_000);

/// How long a claim waits that has met calls which it could not give. Its transaction has locked them, and no other session
/// gets them before that ends.
const LOCKS_KEPT: std::time::Duration = std::time::Duration::from_millis(200);

/// The longest lease.
const LONGEST_LEASE: Duration = Duration(86_400_000_000);

/// Most calls that are claimed at a time.
const MOST_CALLS: i32 = 1000;

/// The numbers of shards.
const SHARDS: (i16, i16) = (0, 1023);

/// A call, its lease, and what it has loaded under locks.
struct Token {
    leased: Leased,
    fingerprint: Option<u64>,
}

pub(super) fn token_of(Leased { key: (execution, seq), number }: Leased, fingerprint: Option<u64>) -> String {
    match fingerprint {
        Some(fingerprint) => format!("{execution}/{}/{number}/{fingerprint:016x}", seq.0),
        None => format!("{execution}/{}/{number}", seq.0),
    }
}

impl Token {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let execution = ExecutionId(*uuid::Uuid::try_parse(parts.next()?).ok()?.as_bytes());
        let seq = StateSeq(parts.next()?.parse().ok()?);
        let number = parts.next()?.parse().ok()?;
        let fingerprint = parts.next().map(|text| u64::from_str_radix(text, 16)).transpose().ok()?;
        let leased = Leased { key: (execution, seq), number };
        parts.next().is_none().then_some(Self { leased, fingerprint })
    }

    fn of(args: &Args) -> Result<Self> {
        Self::parse(&needed("token", args.text(0))?).ok_or_else(error::call_is_lost)
    }

    /// The call with its execution, if the lease is this one still and the caller may have it.
    fn find(&self, spi: &Spi, registry: &mut Registry, caller: Caller, lock: TokenLock) -> Result<OfToken> {
        let may_all = identity::is_superuser(caller.role);
        if !may_all && !super::knows_roles()? {
            return Err(error::call_is_lost());
        }
        let found = pull::of_token(spi, registry, self.leased, Holder { role: caller.role, may_all }, lock)?;
        found.ok_or_else(error::call_is_lost)
    }
}

/// Whether the caller is a member of the worker's role. A copy does not know its roles before it is adopted.
pub(super) fn may_claim(caller: Caller, role: Option<&PullRole>) -> Result<bool> {
    let is_member = |role: &PullRole| identity::has_privileges_of(caller.role, role.oid);
    Ok(identity::is_superuser(caller.role) || role.is_some_and(is_member) && super::knows_roles()?)
}

pub fn claim_calls(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.claim_calls()")?.outside_engine("claim_calls")?;
    let poll = Poll {
        caller,
        worker: name("worker", args.text(0))?,
        at_most: at_most(args.int(1))?,
        lease: lease_given(args.interval(3))?,
        shards: shards(args.range(4))?,
    };
    let wait = length("wait", needed("wait", args.interval(2))?, LONGEST_WAIT, "one hour")?.as_std();
    if !wait.is_zero() && wake::has_uncommitted_writes() {
        return Err(error::own_writes());
    }
    if has_transaction_snapshot() {
        return Err(error::needs_read_committed("xdb.claim_calls()"));
    }
    let deadline = Instant::now() + wait;
    let mut place: Option<Registration> = None;
    loop {
        let seen = poll.once(&mut place)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if !seen.calls.is_empty() || seen.wrote || left.is_zero() {
            return Ok(Value::Rows(seen.calls.into_iter().map(pull_claim::Claimed::row).collect()));
        }
        if seen.has_locks {
            args.sleep(|| latch::wait_for_latch(left.min(LOCKS_KEPT).as_millis() as i64));
            return Ok(Value::Rows(Vec::new()));
        }
        match &place {
            Some(place) if place.is_for(seen.worker) => {
                place.served();
                let milliseconds = |due: Timestamp| due.since(clock::now()).max(0) / 1000;
                let until_due = seen.next_due.map_or(i64::MAX, milliseconds);
                let until_look = until_due.min(guc::POLL_INTERVAL_MS.get().into());
                let until_behind = seen.behind_at.map_or(left, |at| at.saturating_duration_since(Instant::now()));
                let left = left.min(until_behind).as_millis() as i64;
                args.sleep(|| place.wait_for_calls(left + 1, until_look + 1));
                // A statement that goes on has locked all that it uses, and hears nothing of grants that were revoked meanwhile.
                process::accept_invalidations();
            }
            // In this order: what becomes due after the poll that follows wakes this session.
            _ => place = Some(Registration::register_worker(seen.worker, poll.shards)),
        }
    }
}

fn at_most(number: Option<i32>) -> Result<usize> {
    match needed("max_calls", number)? {
        calls @ 1..=MOST_CALLS => Ok(calls as usize),
        _ => Err(error::invalid_argument("max_calls", format_args!("it must be from 1 to {MOST_CALLS}"))),
    }
}

/// A length of time that is neither negative nor longer than this.
pub(super) fn length(argument: &str, given: Option<Duration>, most: Duration, in_words: &str) -> Result<Duration> {
    match given {
        Some(length) if length <= most => Ok(length),
        Some(_) => Err(error::invalid_argument(argument, format_args!("it must be at most {in_words}"))),
        None => Err(error::invalid_argument(argument, "it must not be negative")),
    }
}

fn lease_length(given: Option<Duration>) -> Result<Duration> {
    match given {
        None | Some(Duration(0)) => Err(error::invalid_argument("lease", "it must be positive")),
        given => length("lease", given, LONGEST_LEASE, "one day"),
    }
}

fn lease_given(argument: Option<Option<Duration>>) -> Result<Option<Duration>> {
    argument.map(lease_length).transpose()
}

/// The first and the last one.
#[allow(clippy::type_complexity)]
fn shards(range: Option<Option<(Option<i32>, Option<i32>)>>) -> Result<(i16, i16)> {
    let wrong = || error::invalid_argument("shards", "it must be a range of numbers from 0 to 1023, and not empty");
    let Some(range) = range else { return Ok(SHARDS) };
    let (first, last) = range.ok_or_else(wrong)?;
    let number = |given: Option<i32>, without: i16| given.map_or(Ok(without), i16::try_from).map_err(|_| wrong());
    match (number(first, SHARDS.0)?, number(last, SHARDS.1)?) {
        (first, last) if SHARDS.0 <= first && first <= last && last <= SHARDS.1 => Ok((first, last)),
        _ => Err(wrong()),
    }
}

pub fn complete_call(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.complete_call()")?.outside_engine("complete_call")?;
    let token = Token::of(args)?;
    let text = needed("answer", json(args, 1, "answer")?)?;
    if token.fingerprint.is_some() && marks::are_any(process::database()) {
        leave_marked(caller, &token)?;
    }
    let locked = caller.on_system_tables(|spi, registry| lock(spi, registry, caller, &token))?;
    let process_id = locked.process_id.clone();
    let answered = decode_answer(locked.call.api, text.as_bytes(), &calls::limits());
    let answered = answered.map_err(|what| error::call_not_applied(&process_id, invalid_answer(what)))?;
    let command = answered.command(locked.call.as_attempt());
    apply(caller, locked, &token, &command, answered.queues())?;
    for warning in answered.warnings() {
        pgrx::notice!("xdb: answer to a call of process \"{process_id}\": {warning}");
    }
    Ok(Value::Void)
}

/// Leaves alone for a while what the engine wants for calls that were repeated too often, as RPCs leave it: of what the call has loaded
/// under locks, and before anything is locked.
fn leave_marked(caller: Caller, token: &Token) -> Result<()> {
    let (execution, seq) = token.leased.key;
    let (api, known) = caller.on_system_tables(|spi, registry| {
        let OfToken { begun, mut executions, .. } = token.find(spi, registry, caller, TokenLock::None)?;
        state::states(spi, &mut executions, &[token.leased.key])?;
        Ok((begun.api, executions))
    })?;
    let loaded = known.get(&execution).ok_or_else(error::call_is_lost)?;
    let Some(state) = loaded.execution.states.get(&seq) else { return Ok(()) };
    let config = loaded.meta.options_of(state);
    let (global, local) = (config.load_global(api), config.load_local(api));
    let deadline = Instant::now() + RESPECTED_FOR;
    Locking { rpc_name: "", meta: &loaded.meta, execution, global: &global, local: &local, deadline }
        .respect_marks(caller)
}

pub fn fail_call(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.fail_call()")?.outside_engine("fail_call")?;
    let token = Token::of(args)?;
    let Some(text) = json(args, 1, "failure")?.filter(|text| text != "null") else {
        return give_back(caller, &token);
    };
    let (failure, further) = decode_failure(&text).map_err(|what| error::invalid_argument("failure", what))?;
    let locked = caller.on_system_tables(|spi, registry| lock(spi, registry, caller, &token))?;
    let command = locked.call.as_attempt().failed(failure, further);
    apply(caller, locked, &token, &command, Vec::new())?;
    Ok(Value::Void)
}

/// Nothing has happened: the next claim makes the same attempt.
fn give_back(caller: Caller, token: &Token) -> Result<Value> {
    caller.on_system_tables(|spi, registry| {
        let found = token.find(spi, registry, caller, TokenLock::Open)?;
        let shard = pull::give_back(spi, token.leased)?.ok_or_else(error::call_is_lost)?;
        crash::point("pull-give-back");
        let (execution, seq) = token.leased.key;
        wake::new_call_at_commit(found.worker, NewCall { shard, is_due: true }, (execution.0, seq.0));
        pull_look::given_back();
        Ok(Value::Void)
    })
}

pub fn extend_call(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.extend_call()")?.outside_engine("extend_call")?;
    let token = Token::of(args)?;
    let lease = lease_length(needed("lease", args.interval(1))?)?;
    let until = clock::real() + lease;
    caller.on_system_tables(|spi, registry| {
        token.find(spi, registry, caller, TokenLock::Open)?;
        if pull::extend(spi, token.leased, until)? { Ok(()) } else { Err(error::call_is_lost()) }
    })?;
    Ok(Value::of(until))
}

/// A call that is under its lease, its execution locked.
struct Locked {
    executions: Executions,
    process_id: String,
    call: CallRecord,
    without_arrivals: bool,
}

/// Locks the execution of a call whose lease is this one still, with the state that has made it.
fn lock(spi: &Spi, registry: &mut Registry, caller: Caller, token: &Token) -> Result<Locked> {
    let OfToken { begun, mut executions, .. } = token.find(spi, registry, caller, TokenLock::Step)?;
    let without_arrivals = pull::load_under_lease(spi, registry, &mut executions, token.leased)?;
    let without_arrivals = without_arrivals.ok_or_else(error::call_is_lost)?;
    let process_id = executions.values().map(|entry| entry.before.process_id.clone()).collect();
    Ok(Locked { executions, process_id, call: begun.record(token.leased.number), without_arrivals })
}

/// Applies what a worker says to a call: attributes are written as the process's owner, in the caller's transaction. `queues`: those
/// that deciding about it looks into.
fn apply(caller: Caller, locked: Locked, token: &Token, command: &Command, queues: Vec<(String, usize)>) -> Result<()> {
    let Locked { executions, process_id, call, without_arrivals } = locked;
    let mut answering = Answering {
        caller,
        id: token.leased.key.0,
        loaded: executions,
        command,
        queues,
        lock: Lock::Step,
        local_size: None,
        now: clock::now(),
        tables: WorkersTables { caller, call: &call, fingerprint: token.fingerprint, tables: Tables::default() },
    };
    caller.on_system_tables(|spi, _| answering.load(spi, without_arrivals))?;
    match xdb_calls::apply(&mut answering, command)? {
        Outcome::Applied => {}
        Outcome::Repeat => return Err(error::call_has_changed(&process_id)),
        Outcome::Failed(failure, _) => return Err(error::call_not_applied(&process_id, failure)),
        Outcome::Over(_) => return Err(error::call_is_lost()),
        Outcome::Closing { .. } => return Err(PgError::internal("a session waits for the lock")),
    }
    caller.on_system_tables(|spi, _| answering::save_fetched(spi, &answering.loaded, answering.now))?;
    crash::point("pull-answer");
    Ok(())
}

/// The application's tables, for the answer of a pull worker.
struct WorkersTables<'a> {
    caller: Caller,
    call: &'a CallRecord,
    /// Of the token.
    fingerprint: Option<u64>,
    tables: Tables,
}

impl WorkersTables<'_> {
    /// As the owner of the process.
    fn owners(&self, loaded: &Loaded) -> Result<OwnersTables> {
        OwnersTables::of(self.caller, loaded.meta.owner, &loaded.meta.owner_name)
    }
}

impl TablesInSession for WorkersTables<'_> {
    /// The fingerprint stands for what the call would load now under locks, which are taken here.
    fn is_unchanged(&mut self, loaded: &Loaded) -> Result<bool> {
        let (meta, (id, seq)) = (&loaded.meta, self.call.key);
        let state = loaded.execution.states.get(&seq).ok_or_else(error::call_is_lost)?;
        let config = meta.options_of(state);
        let (global, local) = (config.load_global(self.call.api), config.load_local(self.call.api));
        if !global.locks() && !local.locks() {
            return Ok(self.fingerprint.is_none());
        }
        let mut values = String::new();
        if global.locks() {
            let of_owner = Caller { role: meta.owner };
            of_owner.look_up(&mut self.tables, &meta.mapping, TableUse::Select, |name| global.wants(name))?;
            values = self.owners(loaded)?.write(|spi| self.tables.load(spi, meta, &global, global.lock_type))?;
        }
        let keys = self.caller.on_system_tables(|spi, _| attribute::versions(spi, &[id]))?;
        let keys = locks::versions_of(&local, keys.get(&id).into_iter().flatten());
        Ok(self.fingerprint == Some(token_fingerprint(&values, &keys)))
    }

    fn write(&mut self, loaded: &Loaded, written: &Written<'_>) -> Result<()> {
        let (meta, Written { attributes, functions }) = (&loaded.meta, *written);
        let of_owner = Caller { role: meta.owner };
        of_owner.look_up(&mut self.tables, &meta.mapping, TableUse::Update, |name| attributes.contains_key(name))?;
        let context = || calls::function_context(loaded, self.call);
        let look_up = || FunctionCalls::look_up(&meta.definition(), functions, context);
        let calls = self.caller.on_system_tables(|_, _| look_up())?;
        self.owners(loaded)?.write(|spi| {
            self.tables.update(spi, meta, attributes)?;
            calls.run()
        })
    }
}
