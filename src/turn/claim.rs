//! Claims due calls: within the room that there is, and with the locks that they want.

use super::app_tables::AppTables;
use super::attribute_locks::{Answer, AttributeLocks};
use super::backlog::Backlog;
use super::gather::Work;
use super::item::Item;
use super::memory::OpenCalls;
use super::owners::{self, Owner, Unfit};
use super::role::Role;
use super::save::Saved;
use super::scans::{ScanEnds, Scans, poll_interval};
use super::slow_tables::Kept;
use super::transaction::Turn;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::descriptors::Descriptors;
use crate::store::StateKey;
use crate::store::claim::{self, Due, RUNNERS_LANE, SCHEDULERS_LANE, Wanted};
use crate::store::load::{self, Loaded, Lock};
use crate::store::locks::{self, KeyTypes};
use crate::store::registry::{Registry, WorkerId};
use crate::store::save::{Lease, current_call};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;
use xdb_engine::*;
use xdb_sched::backoff::Patience;
use xdb_sched::room::Room;

/// A lease outlives its call's own timeout by this: time to hand it over and to take the answer in.
const LEASE_GRACE: Duration = Duration(30_000_000);

/// A call whose table nobody may use is looked at again after this at the latest.
const KEPT_FOR: std::time::Duration = std::time::Duration::from_secs(5);

/// A call with its lease: it goes out after the commit.
pub struct Leased {
    pub key: StateKey,
    pub due_at: Timestamp,
    /// From 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    pub lease: Lease,
    /// Why the attempt fails before its call is made.
    pub unfit: Option<Failure>,
}

/// What was claimed.
pub struct Claims {
    pub leased: Vec<Leased>,
    pub executions: BTreeMap<ExecutionId, Loaded>,
    /// Processes that can't go on.
    pub failed: Vec<Item>,
    /// Workers without any due call that nobody has, if this turn has scanned.
    pub drained: Option<BTreeSet<WorkerId>>,
    pub ends: ScanEnds,
    /// Calls that were found due and got no lease, and since when they are due.
    pub left: BTreeMap<StateKey, Timestamp>,
    pub more: bool,
}

/// The parts of a scheduler's memory that claiming reads and writes.
pub struct Claiming<'t, 'a> {
    pub turn: &'t Turn<'a>,
    pub registry: &'t mut Registry,
    pub backlog: &'t mut Backlog,
    pub locks: &'t mut AttributeLocks,
    pub scans: &'t mut Scans,
    pub app: &'t AppTables<'a>,
}

/// What a scan has found, and what becomes of it.
#[derive(Default)]
struct Verdicts {
    leases: HashMap<StateKey, Lease>,
    /// Calls that wait for locks, under a lease that has no end.
    parked: Vec<StateKey>,
    /// Calls of the other lane: a table became slow, or is not any more.
    moved: Vec<StateKey>,
    /// Calls without a place now, whose process type has moved to this worker: left where they are, they would stand in the
    /// way of calls that the other worker could take.
    elsewhere: Vec<(StateKey, WorkerId)>,
    /// Workers under which calls were found that get no place now.
    without_room: Vec<WorkerId>,
}

impl Claiming<'_, '_> {
    /// Leases due calls, for each worker as many as it has room for.
    pub fn claim(&mut self, room: &mut Room, work: &Work, saved: &Saved) -> Result<Claims> {
        let mut claims = Claims {
            leased: Vec::new(),
            executions: BTreeMap::new(),
            failed: Vec::new(),
            drained: None,
            ends: ScanEnds::new(self.turn.began_at),
            left: BTreeMap::new(),
            more: false,
        };
        // What this turn itself has made due is to be claimed at once, if it was not dispatched.
        let made_due = saved.earliest.is_some_and(|due| due <= saved.now);
        let idle = work.nothing_due && !made_due && self.scans.are_idle();
        let limit = if idle { 0 } else { self.turn.scope.claim.min(guc::CLAIM_BATCH.get() as usize) };
        let wanted = room.wanted(limit.max(1));
        if limit > 0 {
            // Of a worker without room nothing is known.
            claims.drained = Some(BTreeSet::new());
        }
        if self.turn.scope.claim == 0 || self.turn.paused || wanted.is_empty() {
            return Ok(claims);
        }
        let ready = self.ready(limit.max(1))?;
        let busy = self.busy(saved);
        let due = if limit > 0 { self.scan(&wanted, &busy, saved.now, &mut claims)? } else { Vec::new() };
        if ready.is_empty() && due.is_empty() {
            return Ok(claims);
        }
        claims.more |= due.len() >= limit && limit > 0;
        if let ([only], true) = (due.as_slice(), ready.is_empty()) {
            self.scans.suspect = Some(only.key.0);
        }
        let candidates: Vec<_> =
            ready.into_iter().map(|due| (due, true)).chain(due.into_iter().map(|d| (d, false))).collect();
        let ids: BTreeSet<_> = candidates.iter().map(|(due, _)| due.key.0).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let keys: Vec<_> = candidates.iter().map(|(due, _)| due.key).collect();
        claims.executions = load::executions(self.turn.spi, self.registry, &ids, Lock::None)?;
        load::states(self.turn.spi, &mut claims.executions, &keys)?;
        self.judge(candidates, room, saved.now, claims)
    }

    /// Executions that a scan leaves out.
    fn busy(&self, saved: &Saved) -> Vec<ExecutionId> {
        let mut busy = self.backlog.executions.keys(Instant::now());
        // What waits in memory to be applied is not asked for again, also when its lease ends meanwhile.
        busy.extend(self.backlog.waiting_for());
        busy.extend(&saved.put_off);
        busy
    }

    /// Locks due calls, for each worker at most so many.
    fn scan(
        &mut self,
        wanted: &[(WorkerId, usize)],
        busy: &[ExecutionId],
        now: Timestamp,
        claims: &mut Claims,
    ) -> Result<Vec<Due>> {
        let began = Instant::now();
        let from_head = !self.turn.role.has_cursors() || self.scans.calls.from_head(began);
        let cursor = |worker: &WorkerId| self.scans.calls.from(worker).filter(|_| !from_head);
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(worker, at_most)| Wanted { worker: *worker, at_most: *at_most, from: cursor(worker) })
            .collect();
        let mut due = claim::due(self.turn.spi, self.turn.lane, &wanted, busy, now, self.turn.real)?;
        due.sort_by_key(|due| due.due_at);
        if from_head {
            let ended = Instant::now();
            self.scans.calls.scanned_from_head(ended, ended - began, poll_interval());
        }
        let mut drained = BTreeSet::new();
        for Wanted { worker, at_most, .. } in wanted {
            let found = due.iter().filter(|due| due.worker == worker);
            let last = found.clone().map(|due| due.due_at).max().filter(|_| found.count() == at_most);
            if last.is_none() {
                drained.insert(worker);
            }
            claims.ends.calls.push((worker, last.unwrap_or(now)));
        }
        claims.drained = Some(drained);
        claims.left.extend(due.iter().map(|due| (due.key, due.due_at)));
        Ok(due)
    }

    /// Calls that have waited for locks and can have them now, their tasks locked. Who steps aside lets others come forward, in
    /// this turn: nothing may wake the scheduler for them.
    fn ready(&mut self, limit: usize) -> Result<Vec<Due>> {
        let mut ready: Vec<Due> = Vec::new();
        loop {
            let (backlog, now) = (&self.backlog, Instant::now());
            let known: BTreeSet<_> = ready.iter().map(|due| due.key).collect();
            let keys = self.locks.ready(limit, |key| backlog.executions.is_deferred(&key.0, now));
            let keys: Vec<_> = keys.into_iter().filter(|key| !known.contains(key)).collect();
            if keys.is_empty() {
                return Ok(ready);
            }
            let due = claim::parked(self.turn.spi, self.turn.lane, &keys)?;
            let found: BTreeSet<_> = due.iter().map(|due| due.key).collect();
            ready.extend(due);
            let missing: Vec<_> = keys.into_iter().filter(|key| !found.contains(key)).collect();
            if missing.is_empty() {
                return Ok(ready);
            }
            let leases = load::leases(self.turn.spi, &missing)?;
            for key in missing {
                match leases.get(&key) {
                    // Somebody has locked its task.
                    Some((epoch, _)) if *epoch == self.turn.lane.epoch => {
                        self.backlog.defer(key.0, Patience::Short);
                        self.locks.step_aside(key);
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
        mut claims: Claims,
    ) -> Result<Claims> {
        let owners = claims.executions.values().map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect();
        let unfit = owners::unfit(owners)?;
        let types = self.key_types(&candidates, &claims.executions)?;
        let mut verdicts = Verdicts::default();
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
        self.write(&verdicts, &mut claims, now)?;
        Ok(claims)
    }

    /// What becomes of one call: its lease, or a note in the verdicts.
    // Long because each check ends the claim in its own way, and their order matters: nothing that takes room or locks comes
    // before what may refuse the call.
    fn verdict(
        &mut self,
        call: &Candidate,
        room: &mut Room,
        unfit: &HashMap<Owner, Unfit>,
        types: &KeyTypes,
        claims: &mut Claims,
        verdicts: &mut Verdicts,
    ) -> Option<Leased> {
        let Candidate { due, was_parked, now } = *call;
        let loaded = claims.executions.get(&due.key.0)?;
        let process_type = loaded.meta.process_type.as_ref()?;
        let state = loaded.execution.states.get(&due.key.1)?;
        let (api, current) = current_call(state)?;
        if self.app.lane_of(&loaded.meta) != self.turn.role.lane() {
            self.locks.release(due.key);
            verdicts.moved.push(due.key);
            return None;
        }
        if let Some((_, Kept::Until(until))) = self.app.kept_from(&loaded.meta) {
            // Somebody may have mended the table before.
            self.backlog.executions.defer_until(due.key.0, until.min(Instant::now() + KEPT_FOR));
            return None;
        }
        let unfit = unfit.get(&(loaded.meta.owner, loaded.meta.owner_name.clone()));
        if let Some(unfit) = unfit.filter(|unfit| unfit.for_good) {
            self.locks.release(due.key);
            self.backlog.defer(due.key.0, Patience::Short);
            claims.failed.push(Item::Fail { execution: due.key.0, reason: unfit.why });
            return None;
        }
        let known = process_type.definition.states.contains_key(&state.id.state_id);
        let unfit = match (unfit, known) {
            (Some(unfit), _) => Some(unfit.why.to_owned()),
            (None, true) => None,
            (None, false) => {
                Some(format!("unknown state \"{}\": the process type does not list it", state.id.state_id))
            }
        };
        let worker = process_type.worker.id;
        if claims.leased.len() >= self.turn.scope.claim || !room.has(worker) {
            if !was_parked {
                verdicts.without_room.push(due.worker);
                if worker != due.worker {
                    verdicts.elsewhere.push((due.key, worker));
                }
            }
            return None;
        }
        let config = config(loaded, state);
        if self.turn.role.grants_locks() && unfit.is_none() && wants_locks(&config, api) {
            let (global, local) = (config.load_global(api), config.load_local(api));
            let wants = locks::wants(&loaded.meta, due.key.0, &global, &local, types);
            match self.locks.request(due.key, due.due_at, current.repeats, &wants) {
                Answer::Granted => {}
                Answer::Waits => {
                    if !was_parked {
                        verdicts.parked.push(due.key);
                    }
                    // The room that was meant for it is there for others.
                    claims.more = true;
                    return None;
                }
                Answer::Full => {
                    verdicts.without_room.push(due.worker);
                    return None;
                }
            }
        } else {
            self.locks.release(due.key);
        }
        room.take(worker);
        Some(Leased {
            key: due.key,
            due_at: due.due_at,
            attempt: due.attempts + 1,
            first_attempt_at: due.first_attempt_at.unwrap_or(now),
            lease: lease(self.turn, config.timeout(api)),
            unfit: unfit.map(|detail| Failure { detail, ..Failure::default() }),
        })
    }

    /// The types of the key columns of tables whose rows are wanted under locks.
    fn key_types(&self, candidates: &[(Due, bool)], executions: &BTreeMap<ExecutionId, Loaded>) -> Result<KeyTypes> {
        let locking = candidates.iter().filter_map(|(due, _)| {
            let loaded = executions.get(&due.key.0)?;
            let state = loaded.execution.states.get(&due.key.1)?;
            let (api, _) = current_call(state)?;
            config(loaded, state).load_global(api).locks().then_some(loaded)
        });
        KeyTypes::read(self.turn.spi, locking.flat_map(|loaded| loaded.meta.mapping.iter()))
    }

    fn write(&mut self, verdicts: &Verdicts, claims: &mut Claims, now: Timestamp) -> Result<()> {
        let (spi, lane) = (self.turn.spi, self.turn.lane);
        if let Some(drained) = &mut claims.drained {
            drained.retain(|worker| !verdicts.without_room.contains(worker));
        }
        claim::move_to_workers(spi, &verdicts.elsewhere)?;
        claims.more |= !verdicts.elsewhere.is_empty();
        let other = if lane.number == RUNNERS_LANE { SCHEDULERS_LANE } else { RUNNERS_LANE };
        claim::move_to_lane(spi, &verdicts.moved, other)?;
        if !verdicts.moved.is_empty() {
            crash::point("turn-change-lane");
            claims.more = true;
            crate::pg::wake::wake_scheduler_at_commit();
        }
        claim::park(spi, lane, self.turn.number, &verdicts.parked)?;
        if !verdicts.parked.is_empty() {
            crash::point("turn-park");
        }
        claim::lease(spi, &verdicts.leases, now)?;
        crash::point("turn-claim");
        let is_taken = |key: &StateKey| verdicts.leases.contains_key(key) || verdicts.parked.contains(key);
        claims.left.retain(|key, _| !is_taken(key));
        Ok(())
    }
}

/// A due call that was found.
struct Candidate {
    due: Due,
    /// It has waited for its locks.
    was_parked: bool,
    now: Timestamp,
}

impl OpenCalls {
    /// The room that there is for more calls. Answers that are held up count too: they are in memory.
    pub fn room(&mut self, role: Role, registry: &Registry, backlog: &Backlog) -> Room {
        let max_calls = role.calls_at_once().saturating_sub(backlog.held_up());
        let max_bytes = guc::MAX_IN_FLIGHT_KB.get() as usize * 1024;
        let now = Instant::now();
        let breakers = &mut self.breakers;
        let admits = |worker| breakers.admits(worker, now);
        Room::new(&self.in_flight, max_calls, Descriptors::most(), max_bytes, &registry.workers(), admits)
    }
}

/// A lease of this turn for a call with this timeout.
pub fn lease(turn: &Turn, timeout: Duration) -> Lease {
    Lease { epoch: turn.lane.epoch, number: turn.number, until: turn.real + timeout + LEASE_GRACE }
}

/// Whether a call loads anything under a lock.
pub fn wants_locks(config: &StateConfig, api: Api) -> bool {
    config.load_global(api).locks() || config.load_local(api).locks()
}

/// Options of a state execution: its own over the registered ones.
pub fn config(loaded: &Loaded, state: &StateExecution) -> StateConfig {
    let definition: Arc<Definition> = loaded.meta.definition();
    let registered = definition.states.get(&state.id.state_id).cloned().unwrap_or_default();
    match &state.config {
        Some(own) => registered.overridden_by(own),
        None => registered,
    }
}
