//! The SQL functions of pull workers: `claim_calls`, and the functions that answer a call.
//!
//! A token names a call: `<execution>/<seq>/<number>[/<fingerprint>]`. The number is that of the lease. The fingerprint
//! stands for what the call loaded under locks. A token is no secret: only roles that may claim the worker's calls can
//! use it.
//!
//! Limitations: claims need `READ COMMITTED`, because a claim could not see which calls have come due since its
//! snapshot.

use super::answering::{self, Answering, TablesInSession};
use super::arguments::{json, name, needed};
use super::caller::{Caller, knows_roles};
use super::owners_tables::OwnersTables;
use super::pull_claim::{self, Poll};
use super::pull_scan;
use super::rpc_locks::Locking;
use crate::calls::{self, CallRecord, Loads};
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
use crate::store::children::Starts;
use crate::store::execution::Lock;
use crate::store::loaded::Loaded;
use crate::store::pull::{self, Holder, Leased, OfToken, PullRole};
use crate::store::registry::{Registry, WorkerId};
use crate::{clock, error, guc};
use std::time::Instant;
use xdb_calls::{Outcome, Written, decode_answer};
use xdb_engine::*;
use xdb_protocol::{decode_failure, invalid_answer};

/// The longest `wait` argument.
pub(super) const LONGEST_WAIT: Duration = Duration(3_600_000_000);

/// How long a claim waits that locked calls and could claim none of them. Other sessions skip these calls until the
/// transaction ends.
const LOCKS_KEPT: std::time::Duration = std::time::Duration::from_millis(200);

/// The longest lease.
const LONGEST_LEASE: Duration = Duration(86_400_000_000);

/// The most calls that one claim returns.
const MOST_CALLS: i32 = 1000;

/// The first and the last shard.
const SHARDS: (i16, i16) = (0, 1023);

/// The parts of a token.
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

    /// The call and its execution. An error if the lease is not valid, or if the caller may not use the call.
    fn find(&self, spi: &Spi, registry: &mut Registry, caller: Caller, lock: bool) -> Result<OfToken> {
        let found = pull::of_token(spi, registry, self.leased, holder(caller)?, lock)?;
        found.ok_or_else(error::call_is_lost)
    }

    /// Keeps the execution from being closed, and returns the worker of the call. Errors as for [`Self::find`].
    fn keep_open(&self, spi: &Spi, caller: Caller) -> Result<WorkerId> {
        pull::keep_open(spi, self.leased, holder(caller)?)?.ok_or_else(error::call_is_lost)
    }
}

fn holder(caller: Caller) -> Result<Holder> {
    let may_all = identity::is_superuser(caller.role);
    if may_all || knows_roles()? { Ok(Holder { role: caller.role, may_all }) } else { Err(error::call_is_lost()) }
}

/// Whether the caller is a superuser or a member of the worker's role. A copy does not know its roles before it is
/// adopted.
pub(super) fn may_claim(caller: Caller, role: Option<&PullRole>) -> Result<bool> {
    let is_member = |role: &PullRole| identity::has_privileges_of(caller.role, role.oid);
    Ok(identity::is_superuser(caller.role) || role.is_some_and(is_member) && knows_roles()?)
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
                let until_poll = until_due.min(guc::POLL_INTERVAL_MS.get().into());
                let until_behind = seen.behind_at.map_or(left, |at| at.saturating_duration_since(Instant::now()));
                let left = left.min(until_behind).as_millis() as i64;
                args.sleep(|| place.wait_for_calls(left + 1, until_poll + 1));
                // A running statement has all its locks, so nothing else makes it see revoked grants.
                process::accept_invalidations();
            }
            // The next poll comes after this. So a call that becomes due after that poll wakes this session.
            _ => place = Some(Registration::register_worker(seen.worker, poll.shards)),
        }
    }
}

fn at_most(number: Option<i32>) -> Result<usize> {
    match needed("max_calls", number)? {
        calls @ 1..=MOST_CALLS => Ok(calls as usize),
        calls => {
            Err(error::invalid_argument("max_calls", format_args!("it is {calls}; it must be from 1 to {MOST_CALLS}")))
        }
    }
}

/// An argument that is a length of time, from zero to `most`.
pub(super) fn length(argument: &str, given: Option<Duration>, most: Duration, in_words: &str) -> Result<Duration> {
    match given {
        Some(length) if length <= most => Ok(length),
        Some(longer) => {
            let seconds = longer.as_std().as_secs_f64();
            let what = format_args!("it is {seconds} seconds; it must be at most {in_words}");
            Err(error::invalid_argument(argument, what))
        }
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

/// The first and the last shard of the argument `shards`.
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
    let mut warnings = Vec::new();
    let process_id = apply(caller, &token, |locked| {
        let answered = decode_answer(locked.call.api, text.as_bytes(), &calls::limits());
        let answered = answered.map_err(|what| error::call_not_applied(&locked.process_id, invalid_answer(what)))?;
        warnings = answered.warnings().to_vec();
        Ok((answered.command(locked.call.as_attempt()), answered.queues()))
    })?;
    for warning in warnings {
        pgrx::notice!("xdb: answer to a call of process \"{process_id}\": {warning}");
    }
    Ok(Value::Void)
}

/// Waits while the engine has marks on attributes that the call loaded under locks, as RPCs do (`pg/shmem/marks.rs`).
/// This happens before the session locks anything. So while there are marks, the call is found and loaded twice.
fn leave_marked(caller: Caller, token: &Token) -> Result<()> {
    let (execution, seq) = token.leased.key;
    let known = caller.on_system_tables(|spi, registry| token.find(spi, registry, caller, false))?;
    let (api, loaded) = (known.begun.api, known.executions.get(&execution).ok_or_else(error::call_is_lost)?);
    let Some(state) = loaded.execution.states.get(&seq) else { return Ok(()) };
    let config = loaded.meta.options_of(state);
    let (loads, deadline) = (Loads::of(&config, api), Instant::now() + RESPECTED_FOR);
    Locking { rpc_name: "", meta: &loaded.meta, execution, loads: &loads, deadline }.respect_marks(caller)
}

pub fn fail_call(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.fail_call()")?.outside_engine("fail_call")?;
    let token = Token::of(args)?;
    let Some(text) = json(args, 1, "failure")?.filter(|text| text != "null") else {
        return give_back(caller, &token);
    };
    let (failure, further) = decode_failure(&text).map_err(|what| error::invalid_argument("failure", what))?;
    apply(caller, &token, |locked| Ok((locked.call.as_attempt().failed(failure, further), Vec::new())))?;
    Ok(Value::Void)
}

/// Gives the call back: the next claim makes the same attempt.
fn give_back(caller: Caller, token: &Token) -> Result<Value> {
    caller.on_system_tables(|spi, _| {
        let worker = token.keep_open(spi, caller)?;
        let shard = pull::give_back(spi, token.leased)?.ok_or_else(error::call_is_lost)?;
        crash::point("pull-give-back");
        let (execution, seq) = token.leased.key;
        wake::new_call_at_commit(worker, NewCall { shard, is_due: true }, (execution.0, seq.0));
        pull_scan::given_back();
        Ok(Value::Void)
    })
}

pub fn extend_call(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.extend_call()")?.outside_engine("extend_call")?;
    let token = Token::of(args)?;
    let lease = lease_length(needed("lease", args.interval(1))?)?;
    let until = clock::real() + lease;
    caller.on_system_tables(|spi, _| {
        token.keep_open(spi, caller)?;
        if pull::extend(spi, token.leased, until)? { Ok(()) } else { Err(error::call_is_lost()) }
    })?;
    Ok(Value::of(until))
}

/// A call with a valid lease. Its execution is locked.
struct Locked {
    process_id: String,
    call: CallRecord,
}

/// Locks the execution of a call, and applies an answer or a failure in the caller's transaction. The application's tables
/// are written as the process's owner. `answer` gives the command, and the queues that its decision inspects, each with
/// the most messages that it takes. Returns the process.
fn apply(
    caller: Caller,
    token: &Token,
    answer: impl FnOnce(&Locked) -> Result<(Command, Vec<(String, usize)>)>,
) -> Result<String> {
    let mut given = None;
    let (mut answering, process_id) = caller.on_system_tables(|spi, registry| {
        let OfToken { begun, executions, without_arrivals } = token.find(spi, registry, caller, true)?;
        let process_id = executions.values().map(|entry| entry.before.process_id.clone()).collect();
        let locked = Locked { process_id, call: begun.record(token.leased.number) };
        let (command, queues) = answer(&locked)?;
        let Locked { process_id, call } = locked;
        let mut answering = Answering {
            caller,
            id: token.leased.key.0,
            loaded: executions,
            command: given.insert(command),
            queues,
            lock: Lock::Step,
            local_size: None,
            now: clock::now(),
            tables: WorkersTables { caller, call, fingerprint: token.fingerprint, tables: Tables::default() },
        };
        answering.load(spi, without_arrivals)?;
        Ok((answering, process_id))
    })?;
    let command = answering.command;
    match xdb_calls::apply(&mut answering, command)? {
        Outcome::Applied => {}
        Outcome::Repeat => return Err(error::call_has_changed(&process_id)),
        Outcome::Failed(failure, _) => return Err(error::call_not_applied(&process_id, failure)),
        Outcome::Over(_) => return Err(error::call_is_lost()),
        Outcome::Closing { .. } => return Err(PgError::internal("a session waits for the lock")),
    }
    caller.on_system_tables(|spi, _| answering::save_claimed(spi, &answering.loaded, answering.now))?;
    crash::point("pull-answer");
    Ok(process_id)
}

/// How the answer of a pull worker uses the application's tables.
struct WorkersTables {
    caller: Caller,
    call: CallRecord,
    /// The fingerprint of the token.
    fingerprint: Option<u64>,
    tables: Tables,
}

impl WorkersTables {
    /// Access as the owner of the process.
    fn owners(&self, loaded: &Loaded) -> Result<OwnersTables> {
        OwnersTables::of(self.caller, loaded.meta.owner, &loaded.meta.owner_name)
    }
}

impl TablesInSession for WorkersTables {
    /// Loads under locks what the call would load now.
    fn reads(&mut self, loaded: &Loaded) -> Result<(Loads, String, Option<u64>)> {
        let meta = &loaded.meta;
        let state = loaded.execution.states.get(&self.call.key.1).ok_or_else(error::call_is_lost)?;
        let loads = Loads::of(&meta.options_of(state), self.call.api);
        let (global, mut values) = (&loads.global, String::new());
        if global.locks() {
            let of_owner = Caller { role: meta.owner };
            of_owner.look_up(&mut self.tables, &meta.mapping, TableUse::Select, |name| global.wants(name))?;
            values = self.owners(loaded)?.write(|spi| self.tables.load(spi, meta, global, global.lock_type))?;
        }
        Ok((loads, values, self.fingerprint))
    }

    fn write(&mut self, loaded: &Loaded, written: &Written<'_>) -> Result<()> {
        let (meta, Written { attributes, children, functions }) = (&loaded.meta, *written);
        let of_owner = Caller { role: meta.owner };
        of_owner.look_up(&mut self.tables, &meta.mapping, TableUse::Update, |name| attributes.contains_key(name))?;
        let context = || calls::function_context(loaded, &self.call);
        let look_up = || FunctionCalls::look_up(&meta.definition(), functions, context);
        let calls = self.caller.on_system_tables(|_, _| look_up())?;
        let calls = calls.after(children.as_ref().map(|children| Starts::of(loaded, children)));
        self.owners(loaded)?.write(|spi| {
            self.tables.update(spi, meta, attributes)?;
            calls.run()
        })
    }
}
