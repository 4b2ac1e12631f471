//! Calls on their way out: leased, prepared, handed over.

use super::apply::{Batch, Item};
use super::calls::{self, Answered, Attempt};
use super::in_flight::{CallRecord, Held};
use super::owners;
use super::turn::{Outcome, Scheduler};
use super::user_tables::{Used, refused};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::{crash, plant};
use crate::store::load::{self, Loaded, Lock};
use crate::store::locks::{self, Versioned};
use crate::store::save::{self, Lease};
use crate::store::tables::object;
use crate::store::{StateKey, claim};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use xdb_engine::*;
use xdb_sched::backoff::Patience;
use xdb_sched::room::Room;

/// A lease outlives its call's own timeout by this: time to hand it over and to take the answer in.
const LEASE_GRACE: Duration = Duration(30_000_000);

impl Batch<'_> {
    /// Leases the calls that were decided in this turn and can go out right after it, without being looked for.
    pub fn dispatch(&mut self, room: &mut Room) -> Result<()> {
        if self.scheduler.paused {
            return Ok(());
        }
        let changed = self.loaded.values().filter(|loaded| !loaded.events.is_empty());
        let owners: HashSet<_> = changed.map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect();
        if owners.is_empty() {
            return Ok(());
        }
        let unfit = owners::unfit(owners)?;
        let answered: HashSet<_> = self.held.keys().map(|key| key.0).collect();
        for loaded in self.loaded.values().filter(|loaded| !loaded.events.is_empty()) {
            if unfit.contains_key(&(loaded.meta.owner, loaded.meta.owner_name.clone())) {
                // Claiming it says what is wrong.
                continue;
            }
            let Some(process_type) = &loaded.meta.process_type else { continue };
            if self.scheduler.tables.lane_of(&loaded.meta) != self.scheduler.lane.number {
                continue;
            }
            let worker = process_type.worker.id;
            if !self.scheduler.drained.contains(&worker) && !answered.contains(&loaded.execution.id) {
                // Others may have been due for longer. What goes on after an answer has the place of the call that was answered;
                // all else is claimed later in this transaction, in the order of due times.
                continue;
            }
            for (seq, state) in &loaded.execution.states {
                let Some((api, call)) = save::current_call(state) else { continue };
                if call.failed_attempts > 0 {
                    // A repeat knows how many attempts there were from its task: it is claimed.
                    self.more |= call.not_before <= self.now;
                    continue;
                }
                let config = config(loaded, state);
                if wants_locks(&config, api) {
                    // Granting locks is the claim's business, which comes later in this transaction.
                    continue;
                }
                let known = process_type.definition.states.contains_key(&state.id.state_id);
                if !loaded.has_changed(state) || call.not_before > self.now || !known || !room.take(worker) {
                    continue;
                }
                let key = (loaded.execution.id, *seq);
                let timeout = config.timeout(api);
                self.leases.insert(key, self.scheduler.lease(self.real, timeout));
                self.dispatched.push((key, 1, self.now));
            }
        }
        Ok(())
    }

    /// Claims due calls from the tables.
    pub fn claim(&mut self, room: &mut Room, limit: usize) -> Result<()> {
        let limit = limit.min(guc::CLAIM_BATCH.get() as usize);
        let wanted = room.wanted(limit);
        if limit > 0 {
            // Of a worker without room nothing is known.
            self.drained = Some(BTreeSet::new());
        }
        if self.scheduler.paused || wanted.is_empty() {
            return Ok(());
        }
        let lane = self.scheduler.lane;
        // The other lane makes one call at a time, but gives back at once what is no longer its own.
        let at_most = if lane.number == 0 { usize::MAX } else { 1 };
        let due = self.look_for_calls(&wanted)?;
        if due.is_empty() {
            return Ok(());
        }
        self.more |= due.len() >= limit;
        if let [only] = due.as_slice() {
            self.scheduler.suspect = Some(only.key.0);
        }
        let ids: BTreeSet<_> = due.iter().map(|d| d.key.0).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let keys: Vec<_> = due.iter().map(|d| d.key).collect();
        self.claimed = load::executions(self.spi, &mut self.scheduler.registry, &ids, Lock::None)?;
        load::states(self.spi, &mut self.claimed, &keys)?;
        let unfit = owners::unfit(self.claimed.values().map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect())?;
        let mut leases = HashMap::new();
        let mut moved = Vec::new();
        let mut asking = Vec::new();
        let mut elsewhere = Vec::new();
        // Workers under which calls were found that get no place now.
        let mut left = Vec::new();
        for due in due {
            let Some(loaded) = self.claimed.get(&due.key.0) else { continue };
            let Some(process_type) = &loaded.meta.process_type else { continue };
            let Some(state) = loaded.execution.states.get(&due.key.1) else { continue };
            let Some((api, _)) = save::current_call(state) else { continue };
            if self.scheduler.tables.lane_of(&loaded.meta) != lane.number {
                moved.push(due.key);
                continue;
            }
            let owner = (loaded.meta.owner, loaded.meta.owner_name.clone());
            if let Some(unfit) = unfit.get(&owner).filter(|unfit| unfit.for_good) {
                self.scheduler.executions.defer(due.key.0, std::time::Instant::now(), Patience::Short);
                self.failed.push(Item::Fail { execution: due.key.0, reason: unfit.why });
                continue;
            }
            let known = process_type.definition.states.contains_key(&state.id.state_id);
            if known && !unfit.contains_key(&owner) && wants_locks(&config(loaded, state), api) {
                asking.push(due);
                continue;
            }
            if self.claims.len() >= at_most || !room.take(process_type.worker.id) {
                left.push(due.worker);
                if process_type.worker.id != due.worker {
                    // Left where they are, they would stand in the way of calls that this worker could take.
                    elsewhere.push((due.key, process_type.worker.id));
                }
                continue;
            }
            if let Some(unfit) = unfit.get(&owner) {
                let failure = Failure { detail: unfit.why.to_owned(), ..Failure::default() };
                self.scheduler.load_failures.insert(due.key, failure);
            } else if !known {
                let detail = format!("unknown state \"{}\": the process type does not list it", state.id.state_id);
                self.scheduler.load_failures.insert(due.key, Failure { detail, ..Failure::default() });
            }
            leases.insert(due.key, self.scheduler.lease(self.real, config(loaded, state).timeout(api)));
            self.claims.push((due.key, due.attempts + 1, due.first_attempt_at.unwrap_or(self.now)));
        }
        let granted = self.grant(asking, room, at_most)?;
        for due in granted.calls {
            let Some(loaded) = self.claimed.get(&due.key.0) else { continue };
            let Some(state) = loaded.execution.states.get(&due.key.1) else { continue };
            let Some((api, _)) = save::current_call(state) else { continue };
            leases.insert(due.key, self.scheduler.lease(self.real, config(loaded, state).timeout(api)));
            self.claims.push((due.key, due.attempts + 1, due.first_attempt_at.unwrap_or(self.now)));
        }
        left.extend(granted.without_room.iter().map(|(due, _)| due.worker));
        if let Some(drained) = &mut self.drained {
            drained.retain(|worker| !left.contains(worker));
        }
        let gone_elsewhere = granted.without_room.into_iter().filter(|(due, worker)| *worker != due.worker);
        elsewhere.extend(gone_elsewhere.map(|(due, worker)| (due.key, worker)));
        claim::move_to_workers(self.spi, &elsewhere)?;
        self.more |= !elsewhere.is_empty();
        claim::move_to_lane(self.spi, &moved, 1 - lane.number)?;
        if !moved.is_empty() {
            crash::point("turn-change-lane");
            self.more = true;
            crate::pg::wake::wake_scheduler_at_commit();
        }
        claim::lease(self.spi, &leases, self.now)?;
        crash::point("turn-claim");
        self.leases.extend(leases);
        Ok(())
    }

    /// Prepares the requests of all leased calls and hands over what the turn leaves to be done.
    pub fn finish(mut self, outcome: &mut Outcome) -> Result<()> {
        let mut released = Vec::new();
        let claims = std::mem::take(&mut self.claims);
        let dispatched = std::mem::take(&mut self.dispatched);
        let local = self.local_attributes(&claims, &dispatched)?;
        let locked: Vec<_> = self.wanted.keys().map(|key| key.0).collect();
        let locked = locks::local_attributes(self.spi, &locked)?;
        let (loaded, claimed) = (std::mem::take(&mut self.loaded), std::mem::take(&mut self.claimed));
        let sources = dispatched.iter().map(|c| (&loaded, c)).chain(claims.iter().map(|c| (&claimed, c)));
        for (source, (key, attempt, first_at)) in sources {
            let Some((loaded, state)) = source.get(&key.0).and_then(|l| Some((l, l.execution.states.get(&key.1)?)))
            else {
                continue;
            };
            let Some(lease) = self.leases.get(key).copied() else { continue };
            match self.prepare(
                loaded,
                state,
                *attempt,
                *first_at,
                lease,
                local.get(&key.0),
                locked.get(&key.0),
                outcome,
            )? {
                true => {}
                false => released.push(*key),
            }
        }
        claim::release(self.spi, &released)?;
        released.iter().for_each(|key| {
            self.leases.remove(key);
        });
        outcome.ends = self.end_looks()?;
        let objects = locks::release(self.spi, &released)?;
        // Who was let ask and was not claimed is in nobody's way: the next ones are let ask in the next turn.
        self.more |= !objects.is_empty() || self.offered.iter().any(|key| !self.wanted.contains_key(key));
        self.released(objects)?;
        outcome.watch = Some(self.watch);
        outcome.settled = self.settled;
        outcome.failed.extend(self.failed);
        outcome.more |= self.more;
        Ok(())
    }

    /// Prepares one call. False if a user's table is busy: the lease is given back and nothing has happened.
    #[allow(clippy::too_many_arguments)]
    fn prepare(
        &mut self,
        loaded: &Loaded,
        state: &StateExecution,
        attempt: u32,
        first_at: Timestamp,
        lease: Lease,
        local: Option<&BTreeMap<String, String>>,
        locked: Option<&BTreeMap<String, Versioned>>,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let (Some(process_type), Some((api, _))) = (&loaded.meta.process_type, save::current_call(state)) else {
            return Ok(false);
        };
        let key = (loaded.execution.id, state.seq);
        let config = config(loaded, state);
        let worker = &process_type.worker;
        let mut record = CallRecord {
            key,
            api,
            attempt,
            first_attempt_at: first_at,
            lease_number: lease.number,
            worker_id: worker.id,
            bytes: 0,
            held: None,
        };
        if let Some(failure) = self.scheduler.load_failures.remove(&key) {
            outcome.failed.push(Item::Answer(record, Answered::Failed(failure)));
            return Ok(true);
        }
        let loading = config.load_global(api);
        let user_tables = &mut self.scheduler.tables;
        let global = match user_tables.read(self.spi, &mut self.tables, &loaded.meta, &loading, self.mode)? {
            Used::Done(rows) => rows,
            Used::Busy(relation) => {
                let until = user_tables.health.busy_until(relation).unwrap_or_else(std::time::Instant::now);
                self.scheduler.executions.defer_until(key.0, until);
                return Ok(false);
            }
            Used::Locked => {
                self.scheduler.executions.defer(key.0, std::time::Instant::now(), Patience::Long);
                return Ok(false);
            }
            Used::Refused(error) => {
                outcome.failed.push(Item::Answer(record, Answered::Failed(refused(&error))));
                return Ok(true);
            }
        };
        let wanted = config.load_local(api);
        // Values and versions of what is locked were read in one statement.
        let local = match wanted.locks() {
            true => members(&wanted, locked.into_iter().flatten().map(|(name, entry)| (name, &entry.value))),
            false => members(&wanted, local.into_iter().flatten()),
        };
        let values = self.wanted.get(&key).map(|_| {
            record.held = Some(Arc::new(Held {
                global: loading,
                rows: global.versions,
                keys: locks::versions_of(&wanted, locked),
                local: wanted,
            }));
            locks::fingerprint(&global.object, &local)
        });
        let attempt = Attempt {
            number: attempt,
            first_at,
            timeout: config.timeout(api),
            global_attributes: &global.object,
            local_attributes: &local,
            values,
        };
        let Some(call) = calls::request(loaded, state, worker, &attempt) else { return Ok(false) };
        record.bytes = call.body.len();
        outcome.calls.push((call, record));
        Ok(true)
    }

    /// Local attributes of the executions whose calls want any.
    fn local_attributes(
        &self,
        claims: &[(StateKey, u32, Timestamp)],
        dispatched: &[(StateKey, u32, Timestamp)],
    ) -> Result<HashMap<ExecutionId, BTreeMap<String, String>>> {
        let wants = |source: &BTreeMap<ExecutionId, Loaded>, key: &StateKey| {
            source
                .get(&key.0)
                .and_then(|loaded| Some((loaded, loaded.execution.states.get(&key.1)?)))
                .and_then(|(loaded, state)| Some((config(loaded, state), save::current_call(state)?.0)))
                .is_some_and(|(config, api)| config.load_local(api).policy != LoadPolicy::None)
        };
        let from_claims = claims.iter().filter(|c| wants(&self.claimed, &c.0));
        let from_loaded = dispatched.iter().filter(|c| wants(&self.loaded, &c.0));
        let ids: BTreeSet<_> = from_claims.chain(from_loaded).map(|c| c.0.0).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        claim::local_attributes(self.spi, &ids)
    }
}

impl Scheduler {
    fn lease(&self, real: Timestamp, timeout: Duration) -> Lease {
        Lease { epoch: self.lane.epoch, number: self.number, until: real + timeout + plant::lease_grace(LEASE_GRACE) }
    }
}

fn wants_locks(config: &StateConfig, api: Api) -> bool {
    config.load_global(api).locks() || config.load_local(api).locks()
}

/// Local attributes that a call gets, as the text of a JSON object.
fn members<'a>(wanted: &Loading, all: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let members = all.filter(|(name, _)| wanted.wants(name));
    object(members.map(|(name, value)| (name.as_str(), value.as_str())))
}

/// Options of a state execution: its own over the registered ones.
pub(super) fn config(loaded: &Loaded, state: &StateExecution) -> StateConfig {
    let definition: Arc<Definition> = loaded.meta.definition();
    let registered = definition.states.get(&state.id.state_id).cloned().unwrap_or_default();
    match &state.config {
        Some(own) => registered.overridden_by(own),
        None => registered,
    }
}
