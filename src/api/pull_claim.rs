//! One poll for calls of a worker that fetches them: looks for them, notes attempts whose leases have ended, leases due calls, and makes
//! their requests. If there are none, it is one statement; else four, but for what calls load.
//!
//! No step waits for a claim: the lock on its task is enough, as in a turn. But a claim may be open for long, so its executions are kept from
//! being closed meanwhile, as a publisher does. Whatever somebody else has locked is passed over.

use super::answering;
use super::owners_tables::OwnersTables;
use super::pull_look::{Due, Looks, Room, in_turn};
use super::{Caller, process, pull};
use crate::calls::{self, Attempt, CallRecord};
use crate::pg::catch::{DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, PgError, Result, SERIALIZATION_FAILURE};
use crate::pg::commit::leasing;
use crate::pg::crash;
use crate::pg::function::Value;
use crate::pg::identity::{self, TableUse};
use crate::pg::memory;
use crate::pg::process::random;
use crate::pg::spi::Spi;
use crate::pg::subxact::guarded;
use crate::pg::wake::{self, waiter::Registration};
use crate::store::app_tables::{Tables, object};
use crate::store::attribute::{self, Found, LocalAttributes, Versioned};
use crate::store::claim;
use crate::store::execution::{self, Lock};
use crate::store::held::{self, OfPausedTypes};
use crate::store::lanes::{Lane, RUNNERS_LANE, SCHEDULERS_LANE};
use crate::store::loaded::{self, Loaded};
use crate::store::pull::{self as store, Begun, DueCall, Leased, Shares, Sight, Wanted};
use crate::store::registry::{NO_WORKER, Registry, WorkerId};
use crate::store::{StateKey, executions_of, locks, state};
use crate::turn::{refused, why_unfit};
use crate::{clock, error, guc};
use pgrx::pg_sys;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{self, Instant};
use xdb_engine::*;
use xdb_protocol::unlisted_state;
use xdb_sched::bytes::ByteBudget;
use xdb_sched::room::Line;

/// How often calls are looked for again, behind those that can't be claimed, and for how many then at most: for twice as many each
/// time, because what is found and not wanted is locked all the same until the transaction ends.
const ROUNDS: u32 = 16;
const IN_A_ROUND: usize = 64;

/// So long a claim waits for the locks of an owner's tables.
const TABLES_LOCKED: time::Duration = time::Duration::from_millis(100);

/// Who takes longer to read one call's columns has the others read in another claim.
const SLOW_TABLES: time::Duration = time::Duration::from_secs(1);

/// A call that is not made, or that no worker has completed, and what follows from that.
type FailedCall = (Begun, Failure, Further);

/// What is looked for.
pub(super) struct Poll {
    pub caller: Caller,
    pub worker: String,
    pub at_most: usize,
    /// None: as long as each call may take.
    pub lease: Option<Duration>,
    pub shards: (i16, i16),
}

/// What was found.
#[derive(Default)]
pub(super) struct Seen {
    pub worker: WorkerId,
    pub calls: Vec<Claimed>,
    /// Something was written but leases: it counts when the transaction commits.
    pub wrote: bool,
    /// When the next call comes due.
    pub next_due: Option<Timestamp>,
    /// When to look for what may stand behind the session's cursors.
    pub behind_at: Option<Instant>,
    /// It met calls that it could not give, and keeps locks of them until the transaction ends.
    pub has_locks: bool,
    /// Owners whose tables are locked or slow: nobody waits for them twice in a claim.
    busy: HashSet<pg_sys::Oid>,
}

/// A call that was claimed.
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
    /// Attempts that fail before anybody gets their calls.
    failed: Vec<FailedCall>,
}

/// A call of a round.
struct Call<'r> {
    due: DueCall,
    loaded: &'r Loaded,
    state: &'r StateExecution,
    api: Api,
    current: &'r CallState,
    config: StateConfig,
}

/// What a call gets, and for how long.
struct Made {
    request: String,
    call_id: String,
    fingerprint: Option<u64>,
    lease: Duration,
}

impl Poll {
    /// `place`: where the session waits for calls. It is given up when there are some, because what follows may wait for tables of owners.
    pub fn once(&self, place: &mut Option<Registration>) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut sight = self.look(&mut seen, place.is_some())?;
        if sight.leases_ended && self.note_over(&mut seen)? {
            sight = self.look(&mut seen, false)?;
        }
        self.claim_due(&sight, &mut seen, place)?;
        if seen.wrote {
            wake::note_uncommitted_write();
        }
        Ok(seen)
    }

    /// Looks for calls that are due. Nothing is there while none may be made.
    fn look(&self, seen: &mut Seen, waits: bool) -> Result<Sight> {
        let key = (self.worker.clone(), self.shards);
        let mut again = false;
        loop {
            let plan = Looks::of(&key, |looks| looks.plan(again, waits));
            let (began, now) = (Instant::now(), clock::now());
            let wanted = Wanted {
                worker: &self.worker,
                at_most: self.at_most,
                shards: self.shards,
                lines: plan.lines.as_deref(),
                leases: plan.leases,
            };
            let mut sight = self.on_system_tables(seen, |spi, _, _| {
                let sight = store::look(spi, &wanted, now, clock::real())?;
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
            again = Looks::of(&key, |looks| {
                let is_good = looks.seen(&plan, &sight, (began, now));
                seen.behind_at = looks.behind_at();
                !is_good
            });
            if !again {
                if !sight.may_be_made {
                    (sight.lines, sight.leases_ended) = (Vec::new(), false);
                }
                // What has come due since then was not looked for.
                seen.next_due = sight.lines.iter().filter_map(|line| line.next).min();
                return Ok(sight);
            }
        }
    }

    /// As the engine. What it writes needs no flush of its own while there are leases alone in the transaction.
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

    /// Notes the failed attempts of calls whose leases have ended. Says whether there were any.
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

    /// Claims calls that are due.
    fn claim_due(&self, sight: &Sight, seen: &mut Seen, place: &mut Option<Registration>) -> Result<()> {
        let key = (self.worker.clone(), self.shards);
        let mut due = Due::new(&sight.lines, self.at_most);
        // These can't be claimed now, and stand in front of others.
        let (mut passed_over, mut bytes) = (BTreeSet::new(), 0);
        for round in 0..ROUNDS {
            let left = self.at_most - seen.calls.len();
            let wanted = left.saturating_mul(1 << round).min(left.max(IN_A_ROUND));
            let rooms = Looks::of(&key, |looks| due.shared(looks, wanted, |owner| seen.busy.contains(&owner.into())));
            if rooms.is_empty() {
                break;
            }
            let find = |spi: &Spi, registry: &mut Registry, seen: &mut Seen| {
                self.find(spi, registry, seen, &rooms, &passed_over, place)
            };
            let round = self.on_system_tables(seen, find)?;
            due.taken(&rooms, &round.due);
            passed_over.extend(round.due.iter().map(|due| due.key.0));
            self.claim(round, seen, &mut bytes)?;
            if seen.calls.len() >= self.at_most || bytes >= guc::max_request_bytes() {
                break;
            }
        }
        Ok(())
    }

    /// Locks due calls and loads what there is to know of them. Whoever can't be claimed is dealt with here.
    fn find(
        &self,
        spi: &Spi,
        registry: &mut Registry,
        seen: &mut Seen,
        rooms: &[Room],
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
        let with_locals = state::states_of_calls(spi, &mut round.executions, &keys)?;
        self.move_elsewhere(spi, &mut round, seen)?;
        self.hold_paused(spi, &mut round, seen)?;
        self.refuse_unfit(spi, registry, &mut round, seen)?;
        let wanted = round.calls().filter(|call| call.wants_local()).map(|call| call.due.key.0);
        let wanted: BTreeSet<_> = wanted.filter(|id| with_locals.contains(id)).collect();
        let with_local: Vec<_> = wanted.into_iter().collect();
        round.local = Some(attribute::with_versions(spi, &with_local, ByteBudget::default())?);
        Ok(round)
    }

    /// Calls follow their process types to other workers.
    fn move_elsewhere(&self, spi: &Spi, round: &mut Round, seen: &mut Seen) -> Result<()> {
        let worker_of = |key: &StateKey| {
            let loaded = round.executions.get(&key.0)?;
            let (process_type, state) = (loaded.meta.process_type.as_ref()?, loaded.execution.states.get(&key.1)?);
            let is_for_function = process_type.is_for_function(&state.id.state_id, state.current_call()?.0);
            Some(if is_for_function { NO_WORKER } else { process_type.worker_id() })
        };
        let moved = round.due.iter().filter_map(|due| Some((due.key, worker_of(&due.key)?)));
        let moved: Vec<_> = moved.filter(|(_, worker)| *worker != seen.worker).collect();
        let for_functions: Vec<_> =
            moved.iter().filter(|(_, worker)| *worker == NO_WORKER).map(|(key, _)| *key).collect();
        claim::move_to_workers(spi, &moved)?;
        claim::move_to_lane(spi, &for_functions, RUNNERS_LANE)?;
        moved.iter().for_each(|(key, _)| drop(round.executions.remove(&key.0)));
        if !moved.is_empty() {
            seen.wrote = true;
            wake::call_scheduler_at_commit();
        }
        Ok(())
    }

    /// Calls of what is paused are held, as the scheduler holds them, and what somebody else has locked is left out.
    fn hold_paused(&self, spi: &Spi, round: &mut Round, seen: &mut Seen) -> Result<()> {
        let (now, real) = (clock::now(), clock::real());
        let (mut keys, mut of_types) = (Vec::new(), OfPausedTypes::default());
        for call in round.calls() {
            let meta = &call.loaded.meta;
            if call.loaded.execution.pause.is_some() {
                keys.push(call.due.key);
            } else if meta.process_type.as_ref().is_some_and(|process_type| process_type.pause(now).is_some()) {
                of_types.types.insert(meta.type_id);
                of_types.lines.insert(Line { worker: seen.worker, owner: meta.owner.into() });
                of_types.found.push(call.due.key);
            }
        }
        let lane = Lane { number: SCHEDULERS_LANE, epoch: 0 };
        seen.wrote |= !held::hold_of_processes(spi, &keys)?.is_empty();
        if !of_types.types.is_empty() {
            let mut lanes = claim::levels(spi)?;
            lanes.push(RUNNERS_LANE);
            seen.wrote |= !held::hold_of_types(spi, lane, &lanes, &of_types, now, real)?.is_empty();
        }
        keys.iter().for_each(|key| drop(round.executions.remove(&key.0)));
        round.executions.retain(|_, loaded| !of_types.types.contains(&loaded.meta.type_id));
        Ok(())
    }

    /// Processes whose owner is gone fail. What can't be called at all is a failed attempt.
    fn refuse_unfit(&self, spi: &Spi, registry: &mut Registry, round: &mut Round, seen: &mut Seen) -> Result<()> {
        let mut failed = Vec::new();
        let mut closed = Vec::new();
        for call in round.calls() {
            let (meta, id) = (&call.loaded.meta, call.due.key.0);
            let unfit = why_unfit(meta.owner, &meta.owner_name)?;
            let state_id = &call.state.id.state_id;
            if let Some(unfit) = unfit.as_ref().filter(|unfit| unfit.for_good) {
                closed.push((id, call.loaded.before.process_id.clone(), unfit.why));
            } else if let Some(unfit) = unfit {
                failed.push(call.fails(Failure { detail: unfit.why.to_owned(), ..Failure::default() }));
            } else if !meta.definition().states.contains_key(state_id) {
                let (failure, further) = unlisted_state(state_id);
                failed.push((call.begun(), failure, further));
            }
        }
        for (id, process_id, why) in closed {
            round.executions.remove(&id);
            if !execution::lock_for_close(spi, &[id])?.is_empty() {
                process::close(spi, registry, &process_id, id, Command::Fail { reason: why.to_owned() })?;
                seen.wrote = true;
            }
        }
        failed.iter().for_each(|(begun, ..)| drop(round.executions.remove(&begun.key.0)));
        round.failed = failed;
        Ok(())
    }

    /// Makes the requests of a round, leases their calls, and notes the attempts that fail before.
    fn claim(&self, mut round: Round, seen: &mut Seen, bytes: &mut usize) -> Result<()> {
        let (mut made, mut failed) = (Vec::new(), std::mem::take(&mut round.failed));
        let mut owners = HashMap::new();
        for call in round.calls() {
            if *bytes >= guc::max_request_bytes() || seen.calls.len() + made.len() >= self.at_most {
                // In the next claim.
                break;
            }
            match self.request(&round, &call, &mut owners, &mut seen.busy)? {
                Some(Ok(request)) => {
                    *bytes += request.request.len();
                    made.push((call.due, call.api, request));
                }
                Some(Err(failure)) => failed.push(call.fails(failure)),
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
            let begun: Vec<_> = failed.iter().map(|(begun, ..)| begun.key).collect();
            store::begin_attempts(spi, &begun, now)?;
            seen.wrote |= fail(spi, registry, failed)?;
            Ok(())
        })
    }

    /// The request of a call; None: not now.
    fn request(
        &self,
        round: &Round,
        call: &Call<'_>,
        owners: &mut Owners,
        busy: &mut HashSet<pg_sys::Oid>,
    ) -> Result<Option<std::result::Result<Made, Failure>>> {
        let (meta, id) = (&call.loaded.meta, call.due.key.0);
        let (loading, wanted) = (call.config.load_global(call.api), call.config.load_local(call.api));
        let (mut members, mut keys) = ("{}".to_owned(), BTreeMap::new());
        if call.wants_local() {
            match round.local.as_ref().map(|local| local.of(id)) {
                Some(Found::All(_, all)) => {
                    let of_call = all.iter().filter(|(name, _)| wanted.wants(name));
                    members = object(of_call.map(|(name, entry)| (name.as_str(), entry.value.as_str())))?;
                    keys = locks::versions_of(&wanted, all.iter().map(|(name, entry)| (name, &entry.version)));
                }
                Some(Found::TooLarge(size)) => {
                    return Ok(Some(Err(calls::request_too_large(&attribute::too_large(size)))));
                }
                Some(Found::LeftOut) | None => return Ok(None),
            }
        }
        let global = match self.read(meta, &loading, owners, busy)? {
            Ok(global) => global,
            Err(error) if is_passing(&error) => return Ok(None),
            Err(error) => return Ok(Some(Err(refused(&error)))),
        };
        let locks = loading.locks() || wanted.locks();
        let locked = if loading.locks() { global.as_str() } else { "" };
        let fingerprint = locks.then(|| pull::fingerprint(locked, &keys));
        let lease = self.lease.unwrap_or_else(|| call.config.timeout(call.api));
        let attempt = Attempt::of(call.loaded, call.state, &call.begun().record(0), lease)?;
        let body = attempt.body(call.current, &global, &members);
        if let Err(error) = calls::check_size(body.payload_bytes()) {
            return Ok(Some(Err(calls::request_too_large(&error))));
        }
        memory::room_for(body.payload_bytes())?;
        let request = body.encode();
        Ok(Some(Ok(Made { request, call_id: attempt.call_id, fingerprint, lease })))
    }

    /// Global attributes, as the owner; or why they can't be read.
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
        if read.as_ref().is_err_and(is_passing) || began.elapsed() > SLOW_TABLES {
            busy.insert(meta.owner);
        }
        match read {
            Err(error) if error.cancelled => Err(error),
            read => Ok(read),
        }
    }
}

/// Whose tables a claim has read.
type Owners = HashMap<pg_sys::Oid, OwnersTables>;

impl Round {
    /// Its calls, as far as they may be made.
    fn calls(&self) -> impl Iterator<Item = Call<'_>> {
        self.due.iter().filter_map(|due| {
            let loaded = self.executions.get(&due.key.0)?;
            // Until the type is registered again, its calls wait.
            loaded.meta.process_type.as_ref()?;
            let state = loaded.execution.states.get(&due.key.1)?;
            let (api, current) = state.current_call()?;
            Some(Call { due: *due, loaded, state, api, current, config: loaded.meta.options_of(state) })
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

    fn fails(&self, failure: Failure) -> FailedCall {
        (self.begun(), failure, Further::ByPolicy)
    }
}

/// Errors that say nothing of the call: a lock, a conflict with others, a server in trouble. It is left for another claim, and keeps
/// nobody else's from this one.
fn is_passing(error: &PgError) -> bool {
    matches!(error.code, LOCK_NOT_AVAILABLE | DEADLOCK_DETECTED | SERIALIZATION_FAILURE) || error.is_server_trouble()
}

/// Notes the failed attempts of calls whose leases have ended, as far as nobody has locked them. Says whether it wrote anything.
fn note_over(spi: &Spi, registry: &mut Registry, worker: WorkerId, over: Vec<StateKey>) -> Result<bool> {
    let locked = execution::executions(spi, registry, &executions_of(&over), Lock::StepOrSkip)?;
    let over: Vec<_> = over.into_iter().filter(|key| locked.contains_key(&key.0)).collect();
    let ended = Failure::of("Timeout", "the lease ended before anybody had completed the call".to_owned());
    let over = store::still_over(spi, worker, &over, clock::real())?;
    let noted = fail(spi, registry, over.into_iter().map(|begun| (begun, ended.clone(), Further::ByPolicy)).collect())?;
    crash::point("pull-note");
    Ok(noted)
}

/// Applies failed attempts, as far as nobody has locked their executions. Says whether it wrote anything.
fn fail(spi: &Spi, registry: &mut Registry, attempts: Vec<FailedCall>) -> Result<bool> {
    if attempts.is_empty() {
        return Ok(false);
    }
    let keys: Vec<_> = attempts.iter().map(|(begun, ..)| begun.key).collect();
    let mut loaded = answering::executions(spi, registry, &executions_of(&keys), Lock::StepOrSkip)?;
    loaded.retain(|_, entry| entry.before.is_running());
    state::states(spi, &mut loaded, &keys)?;
    let now = clock::now();
    for (begun, failure, further) in attempts {
        let id = begun.key.0;
        let Some(entry) = loaded.get(&id) else { continue };
        let command = calls::failed(&begun.record(0), failure, further);
        let Ok(mut events) = entry.decide(&command, now, random()) else { continue };
        if Event::closes(&events) {
            if execution::lock_for_close(spi, &[id])?.is_empty() {
                // Somebody publishes to it: in a later claim.
                loaded.remove(&id);
                continue;
            }
            state::states_with_unrecorded_attempts(spi, &mut loaded, &[id])?;
            let decided = loaded.get(&id).map(|entry| entry.decide(&command, now, random()));
            let Some(Ok(again)) = decided else { continue };
            events = again;
        }
        if let Some(entry) = loaded.get_mut(&id) {
            entry.apply(events, now)?;
        }
    }
    answering::save_fetched(spi, &loaded, now)?;
    Ok(loaded.values().any(|entry| !entry.events.is_empty()))
}

impl Begun {
    /// As the record of a call.
    pub(super) fn record(&self, lease_number: i64) -> CallRecord {
        let first_attempt_at = self.first_attempt_at.unwrap_or_else(clock::now);
        CallRecord { lease_number, ..CallRecord::of(self.key, self.api, self.attempt, first_attempt_at) }
    }
}
