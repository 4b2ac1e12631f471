//! Workers that fetch their calls: `claim_calls`, and what they say to a call.
//!
//! A call is known by its token, `<execution>/<seq>/<number>[/<fingerprint>]`: the lease, and what was loaded under locks. A token is
//! no secret: it is worth something to those alone who may claim the worker's calls.

use super::answering::{self, Answering, Executions};
use super::owners_tables::OwnersTables;
use super::pull_claim::{self, Poll};
use super::rpc_locks::Locking;
use super::{Caller, json, name, needed, pull_look};
use crate::calls::{self, CallRecord};
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::identity::{self, TableUse};
use crate::pg::latch;
use crate::pg::process::{self, has_transaction_snapshot};
use crate::pg::shmem::marks::RESPECTED_FOR;
use crate::pg::spi::Spi;
use crate::pg::wake::{self, NewCall, waiter::Registration};
use crate::store::app_functions::Calls;
use crate::store::app_tables::Tables;
use crate::store::attribute::{self, Size};
use crate::store::execution::Lock;
use crate::store::loaded::Loaded;
use crate::store::pull::{self, Leased, OfToken, PullRole};
use crate::store::registry::Registry;
use crate::store::{StateKey, locks, state};
use crate::{clock, error, guc};
use std::collections::BTreeMap;
use std::time::Instant;
use xdb_engine::*;
use xdb_protocol::decode_failure;

/// The longest wait of a function that waits.
pub(super) const LONGEST_WAIT: Duration = Duration(3_600_000_000);

/// How long a claim waits that has met calls which it could not give. Its transaction has locked them, and nobody else gets them
/// before that ends.
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

    /// The call, if the lease is this one still and the caller may have it. Before a process is locked, because nobody may lock one of
    /// which the call is not his; and the lease is looked at again after that, because somebody may have had the last word meanwhile.
    fn find(&self, spi: &Spi, caller: Caller) -> Result<OfToken> {
        let found = pull::of_token(spi, self.leased)?.filter(|found| found.is_leased);
        match found {
            Some(found) if may_claim(caller, found.role.as_ref())? => Ok(found),
            _ => Err(error::call_is_lost()),
        }
    }

    /// The same, of a process that nobody closes before this transaction has ended.
    fn find_open(&self, spi: &Spi, caller: Caller) -> Result<OfToken> {
        self.find(spi, caller)?;
        pull::keep_one_open(spi, self.leased.key.0)?;
        self.find(spi, caller)
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
    if token.fingerprint.is_some() {
        leave_marked(caller, &token)?;
    }
    let locked = caller.on_system_tables(|spi, registry| lock(spi, registry, caller, &token))?;
    let process_id = locked.found.process_id.clone();
    let answered = calls::decode_answer(locked.found.begun.api, text.as_bytes());
    let answered = answered.map_err(|what| error::call_not_applied(&process_id, what))?;
    let loaded = locked.loaded.get(&token.leased.key.0).ok_or_else(error::call_is_lost)?;
    if loaded.meta.definition().strict_answers && !answered.warnings().is_empty() {
        return Err(error::call_not_applied(&process_id, answered.warnings().join("; ")));
    }
    let said = Said { token: &token, queues: answered.queues(), reads: true, command: &|call| answered.command(call) };
    apply(caller, locked, said)?;
    for warning in answered.warnings() {
        pgrx::notice!("xdb: answer to a call of process \"{process_id}\": {warning}");
    }
    Ok(Value::Void)
}

/// Leaves to others what is marked as theirs, of what the call has loaded under locks. Before anything is locked.
fn leave_marked(caller: Caller, token: &Token) -> Result<()> {
    let key = token.leased.key;
    let (found, known) = caller.on_system_tables(|spi, registry| {
        let found = token.find(spi, caller)?;
        let mut known = answering::executions(spi, registry, &[key.0], Lock::None)?;
        state::states(spi, &mut known, &[key])?;
        Ok((found, known))
    })?;
    let loaded = known.get(&key.0).ok_or_else(error::call_is_lost)?;
    respect_marks(caller, loaded, key, found.begun.api)
}

/// What the engine wants for calls that were repeated too often is left alone for a while, as RPCs leave it.
fn respect_marks(caller: Caller, loaded: &Loaded, (execution, seq): StateKey, api: Api) -> Result<()> {
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
    let command = |call: &CallRecord| calls::failed(call, failure.clone(), further);
    let locked = caller.on_system_tables(|spi, registry| lock(spi, registry, caller, &token))?;
    apply(caller, locked, Said { token: &token, queues: Vec::new(), reads: false, command: &command })?;
    Ok(Value::Void)
}

/// Nothing has happened: whoever claims next makes the same attempt.
fn give_back(caller: Caller, token: &Token) -> Result<Value> {
    caller.on_system_tables(|spi, _| {
        let found = token.find_open(spi, caller)?;
        let shard = pull::give_back(spi, token.leased)?.ok_or_else(error::call_is_lost)?;
        crash::point("pull-give-back");
        wake::new_call_at_commit(found.worker, NewCall { shard, is_due: true });
        pull_look::given_back();
        Ok(Value::Void)
    })
}

pub fn extend_call(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.extend_call()")?.outside_engine("extend_call")?;
    let token = Token::of(args)?;
    let lease = lease_length(needed("lease", args.interval(1))?)?;
    let until = clock::real() + lease;
    caller.on_system_tables(|spi, _| {
        token.find_open(spi, caller)?;
        if pull::extend(spi, token.leased, until)? { Ok(()) } else { Err(error::call_is_lost()) }
    })?;
    Ok(Value::of(until))
}

/// A call that is under its lease, its execution locked.
struct Locked {
    loaded: Executions,
    found: OfToken,
    without_arrivals: bool,
}

/// What a worker says to a call.
struct Said<'a> {
    token: &'a Token,
    queues: Vec<(String, usize)>,
    /// It stands on what the call has loaded.
    reads: bool,
    command: &'a dyn Fn(&CallRecord) -> Command,
}

/// Applies it under the execution's lock: attributes are written as the process's owner, in the caller's transaction.
fn apply(caller: Caller, locked: Locked, said: Said<'_>) -> Result<()> {
    let (token, key) = (said.token, said.token.leased.key);
    let Locked { mut loaded, found, without_arrivals } = locked;
    let mut tables = Tables::default();
    let owners = |loaded: &Executions| {
        let meta = loaded.get(&key.0).map(|entry| (entry.meta.owner, entry.meta.owner_name.clone()));
        let (owner, name) = meta.ok_or_else(error::call_is_lost)?;
        OwnersTables::of(caller, owner, &name)
    };
    if said.reads && fingerprint_now(caller, &owners, &mut tables, &loaded, key)? != token.fingerprint {
        return Err(error::call_has_changed(&found.process_id));
    }
    let record = found.begun.record(token.leased.number);
    let command = (said.command)(&record);
    let functions = command.function_calls();
    let (now, context) = caller.on_system_tables(|spi, registry| {
        let now = clock::now();
        let context = match loaded.get(&key.0) {
            Some(entry) if !functions.is_empty() => calls::function_context(entry, &record)?,
            _ => String::new(),
        };
        let (lock, local_size) = (Lock::Step, None::<Size>);
        let answering =
            Answering { id: key.0, command: &command, queues: said.queues, lock, local_size, without_arrivals };
        match answering.decide(spi, registry, &mut loaded, now)? {
            Ok(()) => Ok((now, context)),
            Err(Rejection::Stale | Rejection::NotRunning(_)) => Err(error::call_is_lost()),
            Err(rejection) if rejection.is_unregistered() => {
                Err(error::call_not_registered(&found.process_id, &rejection))
            }
            Err(other) => Err(error::call_not_applied(&found.process_id, other.to_string())),
        }
    })?;
    // Before the user's triggers run: what waits in them would wait for this very transaction.
    wake::note_uncommitted_write();
    let entry = loaded.get(&key.0).ok_or_else(error::call_is_lost)?;
    let written = Event::written_globally(entry.events.iter().map(|(event, _)| event));
    if written.is_some() || !functions.is_empty() {
        let (meta, nothing) = (&entry.meta, BTreeMap::new());
        let attributes = written.unwrap_or(&nothing);
        let of_owner = Caller { role: meta.owner };
        of_owner.look_up(&mut tables, &meta.mapping, TableUse::Update, |name| attributes.contains_key(name))?;
        let definition = meta.definition();
        let look_up = || Calls::look_up(&definition, functions, || Ok(context));
        let calls = caller.on_system_tables(|_, _| look_up())?;
        owners(&loaded)?.write(|spi| {
            tables.update(spi, meta, attributes)?;
            calls.run()
        })?;
    }
    caller.on_system_tables(|spi, _| answering::save_fetched(spi, &loaded, now))?;
    crash::point("pull-answer");
    Ok(())
}

/// Locks the execution of a call whose lease is this one still, with the state that has made it.
fn lock(spi: &Spi, registry: &mut Registry, caller: Caller, token: &Token) -> Result<Locked> {
    let found = token.find(spi, caller)?;
    let mut loaded = answering::lock(spi, registry, &found.process_id, token.leased.key.0, Lock::Step)?;
    match pull::load_under_lease(spi, &mut loaded, token.leased)? {
        Some(without_arrivals) => Ok(Locked { loaded, found, without_arrivals }),
        None => Err(error::call_is_lost()),
    }
}

/// Stands for what a call would load now under locks, which are taken here; none if it loads nothing so.
fn fingerprint_now(
    caller: Caller,
    owners: &dyn Fn(&Executions) -> Result<OwnersTables>,
    tables: &mut Tables,
    loaded: &Executions,
    key: (ExecutionId, StateSeq),
) -> Result<Option<u64>> {
    let entry = loaded.get(&key.0).ok_or_else(error::call_is_lost)?;
    let state = entry.execution.states.get(&key.1).ok_or_else(error::call_is_lost)?;
    let (api, _) = state.current_call().ok_or_else(error::call_is_lost)?;
    let config = entry.meta.options_of(state);
    let (global, local) = (config.load_global(api), config.load_local(api));
    if !global.locks() && !local.locks() {
        return Ok(None);
    }
    let mut values = String::new();
    if global.locks() {
        let meta = &entry.meta;
        Caller { role: meta.owner }.look_up(tables, &meta.mapping, TableUse::Select, |name| global.wants(name))?;
        values = owners(loaded)?.write(|spi| tables.load(spi, meta, &global, global.lock_type))?;
    }
    let keys = caller.on_system_tables(|spi, _| attribute::versions(spi, &[key.0]))?;
    let keys = locks::versions_of(&local, keys.get(&key.0).into_iter().flatten());
    Ok(Some(fingerprint(&values, &keys)))
}

/// Stands for global attributes and the versions of local ones, as far as they are locked.
pub(super) fn fingerprint(values: &str, keys: &BTreeMap<String, String>) -> u64 {
    xdb_protocol::fingerprint(values, &format!("{keys:?}"))
}
