//! One poll for calls of a pull worker: scans for calls, records the failed attempts whose leases have ended, leases
//! due calls, and makes their requests. A poll that finds no calls is one statement, or three if the poll before it found
//! some. A poll that finds calls is four, and more for what the calls load.
//!
//! A claim locks its tasks, as a turn does, and no step waits for these locks. The transaction of a claim may stay open
//! for long. So the claim also takes a publisher's lock on the executions, which keeps them from being closed. A claim
//! skips what another session has locked.

use super::answering;
use super::caller::Caller;
use super::owners_tables::OwnersTables;
use super::pull;
use super::pull_scan::{DueLines, ScanMemory, in_turn};
use crate::calls::{self, Asker, CallOf, CallRecord, Facts, Loads, Maker, Paused, Verdict, eligible};
use crate::pg::catch::{LOCK_NOT_AVAILABLE, PgError, Result};
use crate::pg::commit::leasing;
use crate::pg::crash;
use crate::pg::function::Value;
use crate::pg::identity::{self, TableUse};
use crate::pg::process::random;
use crate::pg::spi::Spi;
use crate::pg::subxact::guarded;
use crate::pg::wake::{self, waiter::Registration};
use crate::store::app_tables::Tables;
use crate::store::attribute::{self, LocalAttributes, Versioned};
use crate::store::children::parents_about_to_close;
use crate::store::claim;
use crate::store::execution::{self, Lock};
use crate::store::lanes::RUNNERS_LANE;
use crate::store::loaded::{self, Loaded};
use crate::store::parked::{self, OfPausedTypes};
use crate::store::pull::{self as store, Begun, DueCall, Leased, LineShare, Shares, Sight, Wanted};
use crate::store::registry::{Registry, WorkerId};
use crate::store::{StateKey, deciding, executions_of, state};
use crate::turn::{refused, why_unfit};
use crate::{clock, error, guc};
use pgrx::pg_sys;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::time::{self, Instant};
use xdb_calls::{CloseLock, Driver, Outcome, Used};
use xdb_engine::*;
use xdb_sched::bytes::ByteBudget;
use xdb_sched::lines::Level;

/// The most rounds of a claim, and the most calls that a later round scans for. After a round with calls that can't be
/// claimed, the next round scans for twice as many. The calls of all rounds stay locked until the transaction ends.
const ROUNDS: u32 = 16;
const IN_A_ROUND: usize = 64;

/// How long a claim waits for the locks of an owner's tables.
const TABLES_LOCKED: time::Duration = time::Duration::from_millis(100);

/// If reading the columns for one call takes longer, this owner's other calls wait for another claim.
const SLOW_TABLES: time::Duration = time::Duration::from_secs(1);

/// A call that is not made, or whose lease has ended, and the command that fails its attempt or its process.
type FailedCall = (StateKey, Command);

/// The arguments of `xdb.claim_calls`.
pub(super) struct Poll {
    pub caller: Caller,
    pub worker: String,
    pub at_most: usize,
    /// The length of the leases. None: the timeout of each call.
    pub lease: Option<Duration>,
    pub shards: (i16, i16),
}

/// What a poll found.
#[derive(Default)]
pub(super) struct Seen {
    pub worker: WorkerId,
    pub calls: Vec<Claimed>,
    /// The poll wrote more than leases. The caller returns, because this counts only when the transaction commits.
    pub wrote: bool,
    /// When the next call comes due.
    pub next_due: Option<Timestamp>,
    /// When to scan for calls behind the session's cursors.
    pub behind_at: Option<Instant>,
    /// The poll locked calls, perhaps more than it claimed. The locks last until the transaction ends.
    pub has_locks: bool,
    /// Owners whose tables are locked or slow. A claim waits for each of them once.
    busy: HashSet<pg_sys::Oid>,
}

/// A claimed call.
pub(super) struct Claimed {
    token: String,
    call_id: String,
    api: Api,
    request: String,
    lease_until: Timestamp,
}

impl Claimed {
    /// As a row of the function's table.
    pub fn row(self) -> Vec<Value> {
        let Self { token, call_id, api, request, lease_until } = self;
        vec![Value::of(token), Value::of(call_id), Value::of(api), Value::Json(request), Value::of(lease_until)]
    }
}

/// Due calls of one round, their tasks locked.
#[derive(Default)]
struct Round {
    due: Vec<DueCall>,
    executions: BTreeMap<ExecutionId, Loaded>,
    local: Option<LocalAttributes<Versioned>>,
    aside: SetAside,
}

/// Calls of a round that this worker does not make now, by what is written about them.
#[derive(Default)]
struct SetAside {
    keys: HashSet<StateKey>,
    /// Calls whose process types are now at other workers.
    moved: Vec<(StateKey, WorkerId)>,
    for_functions: Vec<StateKey>,
    of_processes: Vec<StateKey>,
    of_types: OfPausedTypes,
    /// Calls that fail before they are made.
    failed: Vec<FailedCall>,
}

/// A call of a round.
struct Call<'r> {
    due: DueCall,
    loaded: &'r Loaded,
    state: &'r StateExecution,
    api: Api,
    config: StateConfig,
}

/// The request of a call, and the length of its lease.
struct Made {
    request: String,
    call_id: String,
    fingerprint: Option<u64>,
    lease: Duration,
}

impl Poll {
    /// Polls once. `place` is where the session waits for calls. The session gives it up when it finds calls, because
    /// what follows may wait for the application's tables.
    pub fn once(&self, place: &mut Option<Registration>) -> Result<Seen> {
        let mut seen = Seen::default();
        loop {
            let began = Instant::now();
            let waits = place.is_some() && !seen.wrote;
            let sight = self.scan(&mut seen, waits)?;
            if sight.leases_ended && !seen.wrote && self.note_over(&mut seen)? {
                continue;
            }
            let found = self.claim_due(&sight, &mut seen, place)?;
            let Some(line) = sight.unread else { break };
            ScanMemory::of(&self.key(), |memory| memory.claimed(line, found, began));
            if found.is_some() {
                break;
            }
        }
        if seen.wrote {
            wake::note_uncommitted_write();
        }
        Ok(seen)
    }

    fn key(&self) -> (String, (i16, i16)) {
        (self.worker.clone(), self.shards)
    }

    /// Scans for due calls, without locks. While the engine is paused, the result has none.
    fn scan(&self, seen: &mut Seen, waits: bool) -> Result<Sight> {
        let key = self.key();
        let mut again = false;
        loop {
            let plan = ScanMemory::of(&key, |memory| memory.plan(again, waits));
            let (began, now) = (Instant::now(), clock::now());
            let wanted = Wanted {
                worker: &self.worker,
                at_most: self.at_most,
                shards: self.shards,
                lines: &plan.lines,
                leases: plan.leases,
            };
            let mut sight = self.on_system_tables(seen, |spi, _, _| {
                let sight = store::scan(spi, &wanted, now, clock::real())?;
                let role = sight.worker.role.as_ref();
                if !sight.worker.pulls {
                    return Err(error::worker_has_url(&self.worker));
                }
                if !pull::may_claim(self.caller, role)? {
                    return Err(error::may_not_claim(&self.worker, role.map(|role| role.name.as_str())));
                }
                Ok(sight)
            })?;
            seen.worker = sight.worker.id;
            again = ScanMemory::of(&key, |memory| {
                let is_good = memory.seen(&plan, &sight, (began, now));
                seen.behind_at = memory.behind_at();
                !is_good
            });
            if !again {
                if !sight.may_be_made {
                    (sight.lines, sight.leases_ended) = (Vec::new(), false);
                }
                seen.next_due = sight.lines.iter().filter_map(|line| line.next).min();
                return Ok(sight);
            }
        }
    }

    /// Runs `body` as the engine. As long as the transaction has written only leases, its commit does not wait for a
    /// flush of the WAL.
    fn on_system_tables<T>(
        &self,
        seen: &mut Seen,
        body: impl FnOnce(&Spi, &mut Registry, &mut Seen) -> Result<T>,
    ) -> Result<T> {
        leasing(|| {
            let done = self.caller.on_system_tables(|spi, registry| body(spi, registry, seen))?;
            Ok((done, !seen.wrote))
        })
    }

    /// Records the failed attempts of calls whose leases have ended. Returns whether it recorded any.
    fn note_over(&self, seen: &mut Seen) -> Result<bool> {
        self.on_system_tables(seen, |spi, registry, seen| {
            let over = store::over(spi, seen.worker, clock::now(), clock::real())?;
            if over.is_empty() {
                return Ok(false);
            }
            seen.has_locks = true;
            let wrote = note_over(spi, registry, seen.worker, over)?;
            seen.wrote |= wrote;
            Ok(wrote)
        })
    }

    /// Claims due calls. Returns the first due time of the calls that it found.
    fn claim_due(&self, sight: &Sight, seen: &mut Seen, place: &mut Option<Registration>) -> Result<Option<Timestamp>> {
        let key = self.key();
        let mut due = DueLines::new(&sight.lines, self.at_most);
        // Calls of these executions can't be claimed now, and come before other calls.
        let (mut passed_over, mut bytes, mut first) = (BTreeSet::new(), 0, None);
        for round in 0..ROUNDS {
            let left = self.at_most - seen.calls.len();
            let wanted = left.saturating_mul(1 << round).min(left.max(IN_A_ROUND));
            let rooms = ScanMemory::of(&key, |memory| due.shared(memory, wanted, |owner| seen.busy.contains(&owner)));
            if rooms.is_empty() {
                break;
            }
            let find = |spi: &Spi, registry: &mut Registry, seen: &mut Seen| {
                self.find(spi, registry, seen, &rooms, &passed_over, place)
            };
            let round = self.on_system_tables(seen, find)?;
            due.taken(&rooms, &round.due);
            first = first.into_iter().chain(round.due.iter().map(|due| due.due_at)).min();
            passed_over.extend(round.due.iter().map(|due| due.key.0));
            self.claim(round, seen, &mut bytes)?;
            if seen.calls.len() >= self.at_most || bytes >= guc::max_request_bytes() {
                break;
            }
        }
        Ok(first)
    }

    /// Locks due calls and loads their executions and states. Sets aside calls that can't be claimed.
    fn find(
        &self,
        spi: &Spi,
        registry: &mut Registry,
        seen: &mut Seen,
        rooms: &[LineShare],
        passed_over: &BTreeSet<ExecutionId>,
        place: &mut Option<Registration>,
    ) -> Result<Round> {
        let except: Vec<_> = passed_over.iter().copied().collect();
        let shares = Shares { worker: seen.worker, shards: self.shards, lines: rooms, except: &except };
        let (mut due, executions) = store::due(spi, registry, &shares, clock::now())?;
        if due.is_empty() {
            return Ok(Round::default());
        }
        seen.has_locks = true;
        if let Some(place) = place.take() {
            place.served();
        }
        in_turn(rooms, &mut due);
        let mut round = Round { due, executions, ..Round::default() };
        let keys: Vec<_> = round.due.iter().map(|due| due.key).collect();
        state::states_in(spi, &mut round.executions, &keys, &mut ByteBudget::default())?;
        self.judge(spi, &mut round, seen)?;
        let wants_local = |call: &Call<'_>| call.due.has_locals && call.wants_local();
        let with_local: BTreeSet<_> = round.calls().filter(wants_local).map(|call| call.due.key.0).collect();
        let with_local: Vec<_> = with_local.into_iter().collect();
        round.local = Some(attribute::with_versions(spi, &with_local, ByteBudget::default())?);
        Ok(round)
    }

    /// Sets aside the calls that this worker does not make now. Calls follow their process types to other workers.
    /// Calls of paused processes and types are parked, as the scheduler parks them. A process whose owner no longer
    /// exists fails.
    fn judge(&self, spi: &Spi, round: &mut Round, seen: &mut Seen) -> Result<()> {
        let (mut aside, now) = (SetAside::default(), clock::now());
        for call in round.calls() {
            let (meta, key) = (&call.loaded.meta, call.due.key);
            let owner = why_unfit(meta.owner, &meta.owner_name)?;
            let called = CallOf::State(call.state, call.api);
            let facts = Facts { owner: owner.as_ref(), ..calls::facts(call.loaded, called, now) };
            match eligible(Asker::PullWorker(seen.worker), &facts) {
                (_, Verdict::MayBeMade) => continue,
                // The calls of a type that is not registered wait until it is.
                (Maker::Unregistered, _) | (_, Verdict::Waits(_)) => {}
                (maker, Verdict::Elsewhere) => {
                    aside.moved.push((key, meta.worker_of(maker)));
                    aside.for_functions.extend((maker == Maker::Function).then_some(key));
                }
                (_, Verdict::Parked(Paused::Process(_))) => aside.of_processes.push(key),
                (_, Verdict::Parked(Paused::Type(_))) => {
                    aside.of_types.types.insert(meta.type_id);
                    aside
                        .of_types
                        .levels
                        .insert(Level { line: meta.line_at(seen.worker), priority: call.due.line.priority });
                    aside.of_types.found.push(key);
                }
                (_, Verdict::Fails(failure, further)) => aside.failed.push(call.begun().failed(failure, further)),
                (_, Verdict::Closes(why)) => aside.failed.push((key, Command::Fail { reason: why.to_owned() })),
            }
            aside.keys.insert(key);
        }
        aside.write(spi, seen)?;
        round.aside = aside;
        Ok(())
    }

    /// Makes the requests of a round, leases their calls, and records the attempts that failed before their calls.
    fn claim(&self, mut round: Round, seen: &mut Seen, bytes: &mut usize) -> Result<()> {
        let (mut made, mut failed) = (Vec::new(), std::mem::take(&mut round.aside.failed));
        let mut owners = HashMap::new();
        for call in round.calls() {
            if *bytes >= guc::max_request_bytes() || seen.calls.len() + made.len() >= self.at_most {
                // The next claim takes the rest.
                break;
            }
            match self.request(&round, &call, &mut owners, &mut seen.busy)? {
                Some(Ok(request)) => {
                    *bytes += request.request.len();
                    made.push((call.due, call.api, request));
                }
                Some(Err(failure)) => failed.push(call.begun().failed(failure, Further::ByPolicy)),
                None => {}
            }
        }
        let (now, real) = (clock::now(), clock::real());
        self.on_system_tables(seen, |spi, registry, seen| {
            if !made.is_empty() {
                let leases: Vec<_> = made.iter().map(|(due, _, made)| (*due, real + made.lease)).collect();
                let numbers = store::lease(spi, &leases, now)?;
                crash::point("pull-claim");
                for (due, api, made) in made {
                    let number = numbers.get(&due.key).ok_or_else(|| PgError::internal("a call was not leased"))?;
                    seen.calls.push(Claimed {
                        token: pull::token_of(Leased { key: due.key, number: *number }, made.fingerprint),
                        call_id: made.call_id,
                        api,
                        request: made.request,
                        lease_until: real + made.lease,
                    });
                }
            }
            let begun: Vec<_> = failed.iter().map(|(key, _)| *key).collect();
            store::begin_attempts(spi, &begun, now)?;
            seen.wrote |= fail(spi, registry, failed)?;
            Ok(())
        })
    }

    /// The request of a call. None: another claim makes it.
    fn request(
        &self,
        round: &Round,
        call: &Call<'_>,
        owners: &mut Owners,
        busy: &mut HashSet<pg_sys::Oid>,
    ) -> Result<Option<std::result::Result<Made, Failure>>> {
        let (meta, id) = (&call.loaded.meta, call.due.key.0);
        let loads = Loads::of(&call.config, call.api);
        let nothing = BTreeMap::new();
        let local = match round.local.as_ref().map(|local| local.of(id).for_call(())) {
            _ if !call.wants_local() => &nothing,
            Some(Used::Done((_, all))) => all,
            Some(Used::Refused(failure)) => return Ok(Some(Err(failure))),
            Some(Used::Later(())) | None => return Ok(None),
        };
        let global = match self.read(meta, &loads.global, owners, busy)? {
            Ok(global) => global,
            // Another claim makes the call. This one goes on with its other calls.
            Err(error) if error.passes(false).is_some() => return Ok(None),
            Err(error) => return Ok(Some(Err(refused(&error)))),
        };
        let fingerprint = loads.fingerprint(&global, local.iter().map(|(name, entry)| (name, &entry.version)));
        let lease = self.lease.unwrap_or_else(|| call.config.timeout(call.api));
        let (attempt, values) = (call.begun().record(0).as_attempt(), local.iter().map(|(name, of)| (name, &of.value)));
        match calls::request(call.loaded, call.state, attempt, (&loads, lease), (global, values))? {
            Ok(request) => {
                let body = calls::body(&request)?;
                Ok(Some(Ok(Made { request: body, call_id: request.call.id, fingerprint, lease })))
            }
            Err(failure) => Ok(Some(Err(*failure))),
        }
    }

    /// Reads global attributes, as the owner. The inner error says why they can't be read.
    fn read(
        &self,
        meta: &loaded::Meta,
        loading: &Loading,
        owners: &mut Owners,
        busy: &mut HashSet<pg_sys::Oid>,
    ) -> Result<std::result::Result<String, PgError>> {
        let is_used = meta.mapping.iter().any(|table| table.attributes.keys().any(|name| loading.wants(name)));
        if !is_used {
            return Ok(Ok("{}".to_owned()));
        }
        if busy.contains(&meta.owner) {
            return Ok(Err(PgError::new(LOCK_NOT_AVAILABLE, "the owner's tables were busy")));
        }
        let owners = match owners.entry(meta.owner) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(OwnersTables::of(self.caller, meta.owner, &meta.owner_name)?),
        };
        let mut tables = Tables::default();
        let of_owner = Caller { role: meta.owner };
        let began = Instant::now();
        let read = || {
            of_owner.look_up(&mut tables, &meta.mapping, TableUse::Select, |name| loading.wants(name))?;
            owners.read(|spi| tables.load(spi, meta, loading, LockType::NoLocking))
        };
        let read = guarded(|| identity::with_lock_timeout(TABLES_LOCKED, read));
        if read.as_ref().is_err_and(|error| error.passes(false).is_some()) || began.elapsed() > SLOW_TABLES {
            busy.insert(meta.owner);
        }
        match read {
            Err(error) if error.cancelled => Err(error),
            read => Ok(read),
        }
    }
}

impl SetAside {
    /// Writes what was set aside. Skips rows that another session has locked.
    fn write(&self, spi: &Spi, seen: &mut Seen) -> Result<()> {
        claim::move_to_workers(spi, &self.moved)?;
        claim::move_to_lane(spi, &self.for_functions, RUNNERS_LANE)?;
        if !self.moved.is_empty() {
            seen.wrote = true;
            wake::call_scheduler_at_commit();
        }
        seen.wrote |= !parked::park_of_processes(spi, &self.of_processes)?.is_empty();
        seen.wrote |= !parked::park_of_types(spi, 0, &self.of_types, clock::now(), clock::real())?.is_empty();
        Ok(())
    }
}

/// The owners whose tables a claim has read.
type Owners = HashMap<pg_sys::Oid, OwnersTables>;

impl Round {
    /// The calls that were not set aside.
    fn calls(&self) -> impl Iterator<Item = Call<'_>> {
        self.due.iter().filter(|due| !self.aside.keys.contains(&due.key)).filter_map(|due| {
            let loaded = self.executions.get(&due.key.0)?;
            let state = loaded.execution.states.get(&due.key.1)?;
            let (api, _) = state.current_call()?;
            Some(Call { due: *due, loaded, state, api, config: loaded.meta.options_of(state) })
        })
    }
}

impl Call<'_> {
    fn wants_local(&self) -> bool {
        self.config.load_local(self.api).policy != LoadPolicy::None
    }

    fn begun(&self) -> Begun {
        let DueCall { key, attempts, first_attempt_at, .. } = self.due;
        Begun { key, api: self.api, attempt: attempts + 1, first_attempt_at }
    }
}

/// Records the failed attempts of calls whose leases have ended, but skips locked executions. Returns whether it wrote
/// anything.
fn note_over(spi: &Spi, registry: &mut Registry, worker: WorkerId, over: Vec<StateKey>) -> Result<bool> {
    let locked = execution::executions(spi, registry, &executions_of(&over), Lock::StepOrSkip)?;
    let over: Vec<_> = over.into_iter().filter(|key| locked.contains_key(&key.0)).collect();
    let ended = Failure::of("Timeout", "the lease expired before the call was completed".to_owned());
    let over = store::still_over(spi, worker, &over, clock::real())?;
    let failed = over.into_iter().map(|begun| begun.failed(ended.clone(), Further::ByPolicy));
    let noted = fail(spi, registry, failed.collect())?;
    crash::point("pull-note");
    Ok(noted)
}

/// Fails attempts and processes, but skips locked executions. Returns whether it wrote anything.
fn fail(spi: &Spi, registry: &mut Registry, calls: Vec<FailedCall>) -> Result<bool> {
    if calls.is_empty() {
        return Ok(false);
    }
    let keys: Vec<_> = calls.iter().map(|(key, _)| *key).collect();
    let mut loaded = answering::executions(spi, registry, &executions_of(&keys), Lock::StepOrSkip)?;
    loaded.retain(|_, entry| entry.before.is_running());
    state::states(spi, &mut loaded, &keys)?;
    let now = clock::now();
    for ((id, _), command) in calls {
        if loaded.contains_key(&id) {
            let outcome = xdb_calls::apply(&mut Failing { spi, loaded: &mut loaded, id, now }, &command)?;
            if matches!(outcome, Outcome::Closing { .. }) {
                // Another session publishes to the process, or closes its parent. A later claim fails this call.
                loaded.remove(&id);
            }
        }
    }
    answering::save_claimed(spi, &loaded, now)?;
    Ok(loaded.values().any(|entry| !entry.events.is_empty()))
}

/// Fails an attempt, or the process, of an execution that the claim has locked.
struct Failing<'a> {
    spi: &'a Spi,
    loaded: &'a mut BTreeMap<ExecutionId, Loaded>,
    id: ExecutionId,
    now: Timestamp,
}

impl Driver for Failing<'_> {
    type Error = PgError;
    type Later = Infallible;

    fn decide(&mut self, command: &Command) -> Result<std::result::Result<Vec<Event>, Rejection>> {
        deciding::decide_with_tables(self.spi, self.loaded, self.id, command, (self.now, random()), &[])
    }

    fn lock_for_close(&mut self, _: bool) -> Result<CloseLock<Infallible>> {
        let parent = self.loaded.get(&self.id).and_then(|entry| entry.execution.parent_to_inform());
        if execution::lock_for_close(self.spi, &[self.id])?.is_empty()
            || !parents_about_to_close(self.spi, &parent.into_iter().collect())?.is_empty()
        {
            return Ok(CloseLock::Missing);
        }
        parent.into_iter().for_each(|parent| wake::note_locked(parent.0));
        state::states_with_unrecorded_attempts(self.spi, self.loaded, &[self.id])?;
        Ok(CloseLock::Taken)
    }

    fn apply(&mut self, events: Vec<Event>) -> Result<()> {
        self.loaded.get_mut(&self.id).map_or(Ok(()), |entry| entry.apply(events, self.now))
    }
}

impl Begun {
    fn failed(self, failure: Failure, further: Further) -> FailedCall {
        (self.key, self.record(0).as_attempt().failed(failure, further))
    }

    /// The record of the call.
    pub(super) fn record(&self, lease_number: i64) -> CallRecord {
        let first_attempt_at = self.first_attempt_at.unwrap_or_else(clock::now);
        CallRecord { lease_number, ..CallRecord::of(self.key, self.api, self.attempt, first_attempt_at) }
    }
}
