//! Claims due calls: as many as there are places for their owners, and with the locks that they want.
//!
//! Limitations: one turn claims at most 256 calls. Retries, functions and calls with locks are leased only
//! here.

use super::app_tables::AppTables;
use super::attribute_locks::{AttributeLocks, LockResult};
use super::backlog::Backlog;
use super::gather::Work;
use super::item::Item;
use super::memory::OpenCalls;
use super::next::{Next, Why};
use super::owners::UnfitOwners;
use super::role::{RUNNERS_CALLS, Role, function_runners, lane_of, max_runners};
use super::save::Saved;
use super::scans::{ScanEnds, Scans, poll_interval};
use super::types::Turn;
use crate::calls::{Loads, Maker, Paused, Verdict};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::descriptors::Descriptors;
use crate::pg::in_hand;
use crate::pg::shmem::Slot;
use crate::store::claim::{self, Due, Lease, LevelClaim};
use crate::store::execution::{self, Lock};
use crate::store::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use crate::store::loaded::Loaded;
use crate::store::locks::{self, KeyTypes};
use crate::store::parked::{self, OfPausedTypes};
use crate::store::registry::{NO_WORKER, Registry, TypeId, WorkerId};
use crate::store::{StateKey, executions_of, lines, state};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::time::Instant;
use xdb_engine::*;
use xdb_sched::backoff::Patience;
use xdb_sched::lines::{Level, Lines};
use xdb_sched::room::{Line, Room};

/// A lease outlives its call's own timeout by this: time to hand it over and to take the answer in.
const LEASE_GRACE: Duration = Duration(30_000_000);

/// A call that waits is judged again after this time at the latest.
const KEPT_FOR: std::time::Duration = std::time::Duration::from_secs(5);

/// For how long the objects of a call are marked before it is made, if functions have not avoided them. Functions that
/// were claimed before should have ended then.
const MARKED_BEFORE: std::time::Duration = std::time::Duration::from_secs(1);

/// A call with its lease. Its request is submitted after the commit.
pub struct LeasedCall {
    pub key: StateKey,
    /// The line in which the call takes its places: of its worker, or of functions.
    pub line: Line,
    /// When the call came due. Calls are prepared in this order.
    pub due_at: Timestamp,
    /// From 1.
    pub attempt: u32,
    /// When the first attempt of this call began.
    pub first_attempt_at: Timestamp,
    pub lease: Lease,
    /// Why the attempt fails before the call is made, and what follows.
    pub unfit: Option<(Failure, Further)>,
    /// The server crashed while the call was in hand.
    pub is_suspect: bool,
}

/// What was claimed.
#[derive(Default)]
pub struct Claims {
    /// Calls with new leases.
    pub leased: Vec<LeasedCall>,
    /// The executions of the claimed calls.
    pub executions: BTreeMap<ExecutionId, Loaded>,
    /// Processes that can't go on.
    pub failed: Vec<Item>,
    /// Levels in which every due call has a lease. None: this turn has not scanned.
    pub drained: Option<BTreeSet<Level>>,
    /// How far the scans came, including those of gathering.
    pub ends: ScanEnds,
    /// When this phase wants the next turn.
    pub next: Next,
}

/// The parts of a process's memory that claiming reads and writes.
pub struct Claiming<'t, 'a> {
    pub turn: &'t Turn<'a>,
    pub registry: &'t mut Registry,
    pub backlog: &'t mut Backlog,
    pub locks: &'t mut AttributeLocks,
    pub scans: &'t mut Scans,
    pub lines: &'t mut Lines,
    pub app: &'t AppTables<'a>,
}

/// What a scan has found.
#[derive(Default)]
struct Found {
    /// Due calls, their tasks locked.
    due: Vec<Due>,
    /// Lines in which more calls may be due.
    unfinished: Vec<Line>,
    /// Lines turned out to be empty, so lines that were passed over may get their places.
    emptied: bool,
    /// How many more calls to read of each line.
    places: HashMap<Line, usize>,
    /// Levels in which no other call is due.
    drained: BTreeSet<Level>,
    /// Where the scan of each level ended.
    ends: HashMap<Level, Timestamp>,
}

impl Found {
    /// Adds what was read of these levels.
    fn read(&mut self, wanted: Vec<LevelClaim>, due: Vec<Due>, now: Timestamp) {
        let mut read = HashMap::<_, (usize, Timestamp)>::new();
        for due in &due {
            let (count, last) = read.entry(due.level()).or_insert((0, due.due_at));
            (*count, *last) = (*count + 1, due.due_at.max(*last));
        }
        for LevelClaim { level, at_most, .. } in wanted {
            let (count, last) = read.get(&level).copied().unwrap_or((0, now));
            self.places.insert(level.line, at_most - count);
            if count < at_most {
                self.drain(level, now);
            } else {
                self.unfinished.push(level.line);
                self.ends.insert(level, last);
            }
        }
        self.due.extend(due);
    }

    fn drain(&mut self, level: Level, now: Timestamp) {
        self.drained.insert(level);
        self.ends.insert(level, now);
    }
}

/// The results for the found calls. [`Claiming::write`] and [`Claiming::park_paused`] write them.
#[derive(Default)]
struct Verdicts {
    leases: HashMap<StateKey, Lease>,
    /// Calls that wait for locks, under a lease without an end, each with the names of what it waits for.
    parked: HashMap<StateKey, String>,
    /// Calls that were parked and are not any more, and are not made.
    unparked: Vec<StateKey>,
    /// Calls of paused processes.
    paused: Vec<StateKey>,
    /// Calls of functions whose types are paused.
    paused_functions: Vec<(StateKey, TypeId)>,
    of_paused_types: OfPausedTypes,
    /// Calls that belong to the other lane: a table became slow, or is not slow any more.
    moved: Vec<StateKey>,
    /// Calls whose process type has moved to this worker, and that are not made now. In their old line they would block
    /// calls that the other worker could take.
    elsewhere: Vec<(StateKey, WorkerId)>,
    /// Levels with calls that get no place now.
    without_room: Vec<Level>,
}

impl Claiming<'_, '_> {
    /// Leases due calls, of each owner and worker as many as there are places.
    pub fn claim(&mut self, room: &mut Room, work: &mut Work, saved: &Saved) -> Result<Claims> {
        let mut claims = Claims { ends: std::mem::take(&mut work.ends), ..Claims::default() };
        // Calls that this turn has made due, and that were not leased yet, are claimed at once.
        let made_due = saved.earliest.is_some_and(|due| due <= saved.now);
        let idle = work.nothing_due && !made_due && self.scans.are_idle();
        let limit = if idle { 0 } else { self.turn.scope.claim.min(guc::CLAIM_BATCH.get() as usize) };
        if limit > 0 {
            // Without a place, nothing is known of a line.
            claims.drained = Some(BTreeSet::new());
        }
        if self.turn.scope.claim == 0 || self.turn.paused {
            return Ok(claims);
        }
        let ready = if room.has_any() { self.ready(limit.max(1), room)? } else { Vec::new() };
        let mut busy = self.busy(saved);
        if self.turn.is_careful && !saved.executions.is_empty() {
            busy.extend(saved.executions.keys());
            claims.ends.left_out = true;
            claims.next.now_if(true, Why::Calls);
        }
        let knew_functions = knows_functions(self.lines);
        // Also without places: when some become free, it has to be known which owners have due calls.
        let found = if limit > 0 { self.scan(room, limit, &busy, saved.now, &mut claims)? } else { Found::default() };
        claims.next.now_if(found.emptied && found.unfinished.iter().any(|line| room.has(*line)), Why::Calls);
        // The next turn's room has places for them.
        let runners_call = self.turn.role.calls_functions() && !knew_functions && knows_functions(self.lines);
        claims.next.now_if(runners_call, Why::Calls);
        if ready.is_empty() && found.due.is_empty() {
            return Ok(claims);
        }
        let mut candidates = in_turn(room, ready, found.due);
        if self.turn.role.calls_functions() {
            self.take_one_kind(&mut candidates, &mut claims);
        }
        // A single call is claimed to find out which one is at fault.
        candidates.truncate(if limit == 1 { 1 } else { usize::MAX });
        if let [(only, _)] = candidates.as_slice() {
            self.scans.claimed_alone = Some(only.key);
        }
        let candidates = self.one_suspect(candidates, &mut claims);
        in_hand::take(candidates.iter().map(|(due, _)| due.key));
        let candidates = self.load(candidates, &mut claims)?;
        self.judge(candidates, room, saved.now, &found.unfinished, claims)
    }

    /// Whether this runner calls functions, and does not leave them to other runners.
    fn serves_functions(&self) -> bool {
        !self.turn.has_slow_steps || self.turn.role.serves(true, max_runners())
    }

    /// Keeps calls of one kind: the kind that was not claimed last, if there is any. Either several calls that
    /// functions answer, or one call of a worker. Preparing the latter may take all the time of a step.
    fn take_one_kind(&mut self, candidates: &mut Vec<(Due, bool)>, claims: &mut Claims) {
        let is_function = |(due, _): &(Due, bool)| due.line.worker == NO_WORKER;
        let any = |functions: bool| candidates.iter().any(|call| is_function(call) == functions);
        let (functions, other) = (any(true), any(false));
        let takes_functions = functions && !(other && self.scans.claimed_functions);
        self.scans.claimed_functions = takes_functions;
        claims.next.now_if(functions && other, Why::Calls);
        candidates.retain(|call| is_function(call) == takes_functions);
        if takes_functions {
            claims.next.now_if(self.take_one_owner(candidates, &mut claims.drained), Why::Calls);
        } else {
            candidates.truncate(1);
        }
    }

    /// Keeps the functions of one owner, each owner's in turn. So a function that hangs delays no leased call of
    /// another owner. Returns whether this runner may also call functions of other owners.
    fn take_one_owner(&mut self, candidates: &mut Vec<(Due, bool)>, drained: &mut Option<BTreeSet<Level>>) -> bool {
        let owners: BTreeSet<_> = candidates.iter().map(|(due, _)| due.line.owner).collect();
        let after = self.scans.functions_of.map_or(Bound::Unbounded, Bound::Excluded);
        let in_turn = owners.range((after, Bound::Unbounded)).chain(owners.iter());
        let most = function_runners(self.turn.has_slow_steps);
        let taken =
            in_turn.copied().find(|owner| Slot::mine().is_none_or(|mine| mine.begin_functions_of(*owner, most)));
        candidates.retain(|(due, _)| Some(due.line.owner) == taken);
        if let Some(drained) = drained {
            drained.retain(|Level { line, .. }| line.worker != NO_WORKER || Some(line.owner) == taken);
        }
        self.scans.functions_of = taken.or(self.scans.functions_of);
        taken.is_some() && owners.len() > 1
    }

    /// Whether this runner may call functions of the line's owner; see [`Slot::may_call_functions_of`].
    fn serves_owner(&self, line: Line) -> bool {
        let most = function_runners(self.turn.has_slow_steps);
        Slot::mine().is_none_or(|mine| mine.may_call_functions_of(line.owner, most))
    }

    /// Loads what is needed to judge these calls. Calls that are too large for this turn step aside without a lease.
    fn load(&mut self, candidates: Vec<(Due, bool)>, claims: &mut Claims) -> Result<Vec<(Due, bool)>> {
        let keys: Vec<_> = candidates.iter().map(|(due, _)| due.key).collect();
        claims.executions = execution::executions(self.turn.spi, self.registry, &executions_of(&keys), Lock::None)?;
        let left_out = state::states_in(self.turn.spi, &mut claims.executions, &keys, &mut self.turn.bytes())?;
        let (candidates, aside): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|(due, _)| !left_out.contains(&due.key));
        self.leave(aside, claims);
        Ok(candidates)
    }

    /// Returns the calls that may be claimed while at most one suspect is in hand.
    fn one_suspect(&mut self, candidates: Vec<(Due, bool)>, claims: &mut Claims) -> Vec<(Due, bool)> {
        let Some(first) = candidates.iter().find(|(due, _)| due.is_suspect).map(|(due, _)| due.key) else {
            return candidates;
        };
        let taken = in_hand::take_suspect().then_some(first);
        let may_go = |due: &Due| !due.is_suspect || taken == Some(due.key);
        let (candidates, aside): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|(due, _)| may_go(due));
        if taken.is_none() {
            aside.iter().for_each(|(due, _)| self.backlog.defer(due.key.0, Patience::Short));
        }
        self.leave(aside, claims);
        candidates
    }

    /// Leaves calls without a lease to a later turn.
    fn leave(&mut self, aside: Vec<(Due, bool)>, claims: &mut Claims) {
        for (due, _) in aside {
            self.locks.step_aside(due.key, None);
            claims.next.now_if(true, Why::Calls);
            claims.ends.left(due.level(), due.due_at);
            if let Some(drained) = &mut claims.drained {
                drained.remove(&due.level());
            }
        }
    }

    /// The executions that a scan leaves out.
    fn busy(&self, saved: &Saved) -> Vec<ExecutionId> {
        let mut busy = self.backlog.executions.keys(Instant::now());
        // An execution with items in memory is left out even if the lease of its call has ended.
        busy.extend(self.backlog.waiting_for());
        busy.extend(&saved.not_done);
        busy
    }

    /// Locks due calls, of each line as many as there are places, those with the highest priority first. A scan from the
    /// head reads first which levels there are, and where each begins. So dead rows at the head are passed once, and
    /// levels without due calls are not scanned.
    fn scan(
        &mut self,
        room: &Room,
        limit: usize,
        busy: &[ExecutionId],
        now: Timestamp,
        claims: &mut Claims,
    ) -> Result<Found> {
        let began = Instant::now();
        let from_head = !self.turn.role.has_cursors() || self.scans.calls.from_head(began);
        let heads = if from_head { Some(self.heads()?) } else { None };
        let begins = |level: &Level| match &heads {
            Some(heads) => heads.get(level).copied(),
            None => self.scans.calls.from(level),
        };
        let is_due = |level: &Level| heads.is_none() || begins(level).is_some_and(|first| first <= now);
        let wanted_lines = room.wanted(self.lines.iter(), limit);
        let mut lines: Vec<_> = wanted_lines.lines.iter().map(|(line, _)| self.lines.levels_of(*line)).collect();
        let places = wanted_lines.lines.into_iter().collect();
        let mut found = Found { places, unfinished: wanted_lines.passed_over, ..Found::default() };
        loop {
            // The next level of each line, while the levels above have left places.
            let wanted = lines.iter_mut().filter_map(|levels| {
                let level = levels.find(|level| {
                    let is_due = is_due(level);
                    if !is_due {
                        found.drain(*level, now);
                    }
                    is_due
                })?;
                Some(LevelClaim { level, at_most: found.places[&level.line], from: begins(&level) })
            });
            let wanted: Vec<_> = wanted.filter(|claim| claim.at_most > 0).collect();
            if wanted.is_empty() {
                break;
            }
            let due = claim::due(self.turn.spi, self.turn.lane, &wanted, busy, now, self.turn.real)?;
            found.read(wanted, due, now);
        }
        found.due.sort_by_key(|due| (Reverse(due.priority), due.due_at));
        if from_head {
            let ended = Instant::now();
            self.scans.calls.scanned_from_head(ended, ended - began, poll_interval());
            // The scan read none of the other levels, so calls may be behind their cursors.
            self.scans.calls.retain(|level| found.ends.contains_key(level));
        }
        let is_empty = |line| found.places.get(&line).is_some_and(|left| *left > 0);
        found.emptied = self.lines.iter().any(|(line, waits)| waits && is_empty(line));
        claims.ends.calls = std::mem::take(&mut found.ends);
        claims.drained = Some(std::mem::take(&mut found.drained));
        Ok(found)
    }

    /// The existing levels, with the due times of their first calls. Those of unregistered workers and of pull workers
    /// are left out: they block no other line.
    fn heads(&mut self) -> Result<HashMap<Level, Timestamp>> {
        let mut heads: HashMap<_, _> = lines::heads(self.turn.spi, self.turn.lane.number)?.into_iter().collect();
        if self.turn.role.calls_functions() {
            let is_due = |(Level { line, .. }, first): (&Level, &Timestamp)| {
                line.worker == NO_WORKER && *first <= self.turn.began
            };
            let functions = heads.iter().any(is_due);
            let serves_workers = !functions || self.turn.role.serves(false, max_runners());
            heads.retain(|Level { line, .. }, _| match line.worker {
                NO_WORKER => self.serves_functions() && self.serves_owner(*line),
                worker => serves_workers && self.registry.is_called(worker),
            });
        } else {
            heads.retain(|level, _| self.registry.is_called(level.line.worker));
        }
        self.lines.found(heads.keys().copied(), Instant::now());
        Ok(heads)
    }

    /// Calls that have waited for locks and can get them now, their tasks locked. If one steps aside, others may come
    /// forward. That is done in this turn, because nothing may wake the scheduler for them.
    fn ready(&mut self, limit: usize, room: &Room) -> Result<Vec<Due>> {
        let mut ready: Vec<Due> = Vec::new();
        let now = Instant::now();
        let backlog = &self.backlog;
        self.locks.queue_up_again(|key| backlog.executions.is_deferred(&key.0, now), |line| room.has(line));
        loop {
            let known: BTreeSet<_> = ready.iter().map(|due| due.key).collect();
            let keys = self.locks.ready(limit);
            let (deferred, keys): (Vec<_>, Vec<_>) = keys
                .into_iter()
                .filter(|key| !known.contains(key))
                .partition(|key| self.backlog.executions.is_deferred(&key.0, now));
            deferred.iter().for_each(|key| self.locks.step_aside(*key, None));
            if keys.is_empty() && deferred.is_empty() {
                return Ok(ready);
            }
            let due = claim::parked(self.turn.spi, &keys, self.turn.lane.number, self.turn.lane.epoch)?;
            let found: BTreeSet<_> = due.iter().map(|due| due.key).collect();
            ready.extend(due);
            let missing: Vec<_> = keys.into_iter().filter(|key| !found.contains(key)).collect();
            if missing.is_empty() && deferred.is_empty() {
                return Ok(ready);
            }
            let leases = claim::leases(self.turn.spi, &missing)?;
            for key in missing {
                match leases.get(&key) {
                    // Another transaction has locked its task.
                    Some((epoch, _)) if *epoch == self.turn.lane.epoch => {
                        self.backlog.defer(key.0, Patience::Short);
                        self.locks.step_aside(key, None);
                    }
                    // It does not wait any more.
                    _ => self.locks.release(key),
                }
            }
        }
    }

    fn judge(
        &mut self,
        candidates: Vec<(Due, bool)>,
        room: &mut Room,
        now: Timestamp,
        unfinished: &[Line],
        mut claims: Claims,
    ) -> Result<Claims> {
        let owners = claims.executions.values().map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect();
        let unfit = UnfitOwners::among(owners)?;
        let types = self.key_types(&candidates, &claims.executions)?;
        let mut verdicts = Verdicts::default();
        let found: Vec<_> = candidates.iter().filter(|(_, was_parked)| !was_parked).map(|(due, _)| *due).collect();
        for (due, was_parked) in candidates {
            let call = Candidate { due, was_parked, now };
            match self.verdict(&call, room, &unfit, &types, &mut claims, &mut verdicts) {
                Some(leased) => {
                    verdicts.leases.insert(leased.key, leased.lease);
                    claims.leased.push(leased);
                }
                None if was_parked && !self.locks.waits(&due.key) => self.locks.release(due.key),
                None => {}
            }
        }
        // Without progress, the same calls are not scanned for again at once.
        let progress = claims.leased.len() + verdicts.parked.len() + verdicts.moved.len() > 0;
        claims.next.now_if(progress && unfinished.iter().any(|line| room.has(*line)), Why::Calls);
        self.write(&verdicts, &mut claims, now)?;
        let paused = self.park_paused(&verdicts, &found, &mut claims, now)?;
        let is_taken = |key: &StateKey| {
            verdicts.leases.contains_key(key) || verdicts.parked.contains_key(key) || paused.contains(key)
        };
        found.iter().filter(|due| !is_taken(&due.key)).for_each(|due| claims.ends.left(due.level(), due.due_at));
        // In the line of the other worker, the call may be behind the cursor.
        let went = |due: &&Due| verdicts.elsewhere.iter().any(|(key, _)| *key == due.key);
        claims.ends.note(found.iter().filter(went).map(|due| due.due_at).min());
        Ok(claims)
    }

    /// Judges one call: returns its lease, or records the result in the verdicts.
    // Long because each verdict ends the claim in its own way. Places and locks are taken after the verdict.
    fn verdict(
        &mut self,
        call: &Candidate,
        room: &mut Room,
        unfit: &UnfitOwners,
        types: &KeyTypes,
        claims: &mut Claims,
        verdicts: &mut Verdicts,
    ) -> Option<LeasedCall> {
        let Candidate { due, was_parked, now } = *call;
        if self.registry.is_deferred(due.key.0) {
            self.backlog.defer_as_registered(due.key.0, self.registry);
            self.locks.step_aside(due.key, None);
            return None;
        }
        let loaded = claims.executions.get(&due.key.0)?;
        let state = loaded.execution.states.get(&due.key.1)?;
        let (api, current) = state.current_call()?;
        let (maker, verdict) = self.app.verdict(loaded, state, api, unfit.of(&loaded.meta), now);
        let (worker, is_for_function) = (loaded.meta.worker_of(maker), maker == Maker::Function);
        let unfit = match verdict {
            Verdict::MayBeMade => None,
            Verdict::Fails(failure, further) => Some((failure, further)),
            Verdict::Elsewhere => {
                self.locks.release(due.key);
                match self.turn.role.lane() == lane_of(maker) {
                    true => verdicts.unparked.extend(was_parked.then_some(due.key)),
                    false => verdicts.moved.push(due.key),
                }
                // Until the type is registered again, its calls have no worker, and block no other calls.
                if maker != Maker::Unregistered && worker != due.line.worker {
                    verdicts.elsewhere.push((due.key, worker));
                }
                return None;
            }
            Verdict::Parked(paused) => {
                self.locks.release(due.key);
                let (is_runners, type_id) = (due.line.worker == NO_WORKER, loaded.meta.type_id);
                match paused {
                    // Only the scheduler parks calls of workers.
                    _ if !self.turn.role.gathers() && !is_runners => verdicts.moved.push(due.key),
                    Paused::Type(_) if is_runners => verdicts.paused_functions.push((due.key, type_id)),
                    Paused::Process(_) => {
                        verdicts.unparked.extend(was_parked.then_some(due.key));
                        verdicts.paused.push(due.key);
                    }
                    Paused::Type(_) => {
                        verdicts.unparked.extend(was_parked.then_some(due.key));
                        verdicts.of_paused_types.types.insert(type_id);
                        verdicts.of_paused_types.levels.insert(due.level());
                        verdicts.of_paused_types.found.push(due.key);
                    }
                }
                return None;
            }
            Verdict::Waits(_) => {
                self.backlog.executions.defer_until(due.key.0, Instant::now() + KEPT_FOR);
                self.locks.step_aside(due.key, None);
                return None;
            }
            Verdict::Closes(reason) => {
                self.locks.release(due.key);
                self.backlog.defer(due.key.0, Patience::Short);
                claims.failed.push(Item::Fail { execution: due.key.0, reason });
                return None;
            }
        };
        let line = loaded.meta.line_at(worker);
        if claims.leased.len() >= self.turn.scope.claim || !room.has(line) {
            if was_parked {
                self.locks.step_aside(due.key, Some(line));
                return None;
            }
            verdicts.without_room.push(due.level());
            if line.worker != due.line.worker {
                verdicts.elsewhere.push((due.key, line.worker));
            }
            return None;
        }
        let config = config(loaded, state);
        let takes_locks = self.turn.role.grants_locks() || is_for_function;
        let loads = Loads::of(&config, api);
        let wants = (takes_locks && unfit.is_none() && loads.locks())
            .then(|| locks::wants(&loaded.meta, due.key.0, &loads, types));
        match wants {
            // The function locks the rows itself.
            Some(wants) if is_for_function => {
                if self.locks.waits_for_marks(due.key, &wants) {
                    self.backlog.defer(due.key.0, Patience::Short);
                    claims.next.now_if(true, Why::Calls);
                    return None;
                }
            }
            Some(wants) => match self.locks.request(due.key, due.due_at, current.repeats, &wants) {
                LockResult::Granted if !was_parked && self.locks.is_unmarked(current.repeats, &wants) => {
                    self.backlog.executions.defer_until(due.key.0, Instant::now() + MARKED_BEFORE);
                    claims.next.now_if(true, Why::Calls);
                    return None;
                }
                LockResult::Granted => {}
                LockResult::Waits => {
                    if !was_parked {
                        verdicts.parked.insert(due.key, wants.names());
                    }
                    // The place that was meant for it is free for another call.
                    claims.next.now_if(true, Why::Calls);
                    return None;
                }
                LockResult::Full => {
                    self.backlog.defer(due.key.0, Patience::Long);
                    verdicts.without_room.push(due.level());
                    return None;
                }
            },
            None => self.locks.release(due.key),
        }
        room.take(line);
        Some(LeasedCall {
            key: due.key,
            line,
            due_at: due.due_at,
            attempt: due.attempts + 1,
            first_attempt_at: due.first_attempt_at.unwrap_or(now),
            lease: lease(self.turn, config.timeout(api)),
            unfit,
            is_suspect: due.is_suspect,
        })
    }

    /// The types of the key columns of tables whose rows are wanted under locks.
    fn key_types(&self, candidates: &[(Due, bool)], executions: &BTreeMap<ExecutionId, Loaded>) -> Result<KeyTypes> {
        let locking = candidates.iter().filter_map(|(due, _)| {
            let loaded = executions.get(&due.key.0)?;
            let state = loaded.execution.states.get(&due.key.1)?;
            let (api, _) = state.current_call()?;
            config(loaded, state).load_global(api).locks().then_some(loaded)
        });
        KeyTypes::read(self.turn.spi, locking.flat_map(|loaded| loaded.meta.mapping.iter()))
    }

    /// Parks calls of paused processes and types. If another transaction has locked the process or type, the call is
    /// deferred.
    fn park_paused(
        &mut self,
        verdicts: &Verdicts,
        found: &[Due],
        claims: &mut Claims,
        now: Timestamp,
    ) -> Result<HashSet<StateKey>> {
        let spi = self.turn.spi;
        let mut parked: HashSet<_> = parked::park_of_processes(spi, &verdicts.paused)?.into_iter().collect();
        let of_types = &verdicts.of_paused_types;
        parked.extend(parked::park_of_types(spi, self.turn.lane.epoch, of_types, now, self.turn.real)?);
        let functions = &verdicts.paused_functions;
        parked.extend(parked::park_functions(spi, functions, now)?);
        functions
            .iter()
            .filter(|(key, _)| !parked.contains(key))
            .for_each(|(key, _)| self.backlog.defer(key.0, Patience::Short));
        // A call that is not parked any more may be behind the cursor.
        claims.ends.left_out |= verdicts.unparked.iter().any(|key| !parked.contains(key));
        if verdicts.paused.is_empty() && of_types.types.is_empty() && functions.is_empty() {
            return Ok(parked);
        }
        // These lines may have more paused calls, which come before others.
        claims.next.now_if(!parked.is_empty(), Why::Pauses);
        let is_paused = |due: &&Due| verdicts.paused.contains(&due.key) || of_types.found.contains(&due.key);
        for due in found.iter().filter(is_paused).filter(|due| !parked.contains(&due.key)) {
            self.backlog.defer(due.key.0, Patience::Short);
        }
        Ok(parked)
    }

    fn write(&mut self, verdicts: &Verdicts, claims: &mut Claims, now: Timestamp) -> Result<()> {
        let (spi, lane) = (self.turn.spi, self.turn.lane);
        if let Some(drained) = &mut claims.drained {
            drained.retain(|level| !verdicts.without_room.contains(level));
        }
        claim::move_to_workers(spi, &verdicts.elsewhere)?;
        // The calls may be in a line that the process does not know yet.
        claims.ends.left_out |= !verdicts.elsewhere.is_empty();
        claims.next.now_if(!verdicts.elsewhere.is_empty(), Why::Registrations);
        let other = if lane.number == RUNNERS_LANE { SCHEDULERS_LANE } else { RUNNERS_LANE };
        claim::move_to_lane(spi, &verdicts.moved, other)?;
        if !verdicts.moved.is_empty() {
            crash::point("turn-change-lane");
            claims.next.now_if(true, Why::Registrations);
            crate::pg::wake::wake_scheduler_at_commit();
        }
        claim::unpark(spi, &verdicts.unparked)?;
        claim::park(spi, lane, self.turn.number, &verdicts.parked)?;
        if !verdicts.parked.is_empty() {
            crash::point("turn-park");
        }
        claim::lease(spi, &verdicts.leases, now)?;
        crash::point("turn-claim");
        Ok(())
    }
}

/// Calls in the order in which they get places, each with whether it was parked. Parked calls have waited longest.
fn in_turn(room: &Room, ready: Vec<Due>, due: Vec<Due>) -> Vec<(Due, bool)> {
    let mut nth = HashMap::<Line, usize>::new();
    let all = ready.into_iter().map(|due| (due, true)).chain(due.into_iter().map(|due| (due, false)));
    let ranked = all.map(|(due, was_parked)| {
        let nth = nth.entry(due.line).or_default();
        *nth += 1;
        (room.rank(due.line, *nth - 1), due, was_parked)
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, due, was_parked)| (*rank, !was_parked, due.due_at));
    ranked.into_iter().map(|(_, due, was_parked)| (due, was_parked)).collect()
}

/// A due call that was found.
struct Candidate {
    due: Due,
    /// It was parked, and has waited for its locks.
    was_parked: bool,
    now: Timestamp,
}

impl OpenCalls {
    /// The places that are free for more calls. Answers that are blocked also take places: they use memory.
    pub fn room(&mut self, role: Role, registry: &Registry, backlog: &Backlog) -> Room {
        let takes_turns = role.takes_turns();
        let held_up = if takes_turns { 0 } else { backlog.held_up() };
        let max_calls = role.calls_at_once().saturating_sub(held_up);
        let now = Instant::now();
        let breakers = &mut self.breakers;
        let admits = |worker| breakers.admits(worker, now);
        let mut workers = registry.workers();
        // If no functions wait, workers get all places.
        workers.extend((role.calls_functions() && knows_functions(&self.lines)).then_some((NO_WORKER, RUNNERS_CALLS)));
        let mut room = Room::new(&self.in_flight, max_calls, Descriptors::most(), &workers, admits);
        // Where answers are applied one at a time, all of them take places, each for its owner.
        for line in backlog.lines().filter(|_| takes_turns) {
            room.take(line);
        }
        room
    }
}

/// Whether calls wait that functions answer.
fn knows_functions(lines: &Lines) -> bool {
    lines.levels().any(|level| level.line.worker == NO_WORKER)
}

/// A lease of this turn, for a call with this timeout.
pub fn lease(turn: &Turn, timeout: Duration) -> Lease {
    Lease { epoch: turn.lane.epoch, number: turn.number, until: turn.real + timeout + LEASE_GRACE }
}

/// The options of a step: its own override the registered ones.
pub fn config(loaded: &Loaded, state: &StateExecution) -> StateConfig {
    loaded.meta.options_of(state)
}
