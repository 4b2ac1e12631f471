//! The batch of a turn: what came in is decided and saved, and what comes next is claimed and prepared.

use super::calls::{self, Answered, Attempt};
use super::in_flight::{CallRecord, Room};
use super::turn::{Outcome, Scheduler};
use super::user_tables::{Used, refused};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use crate::store::load::{self, DueTimer, Loaded, Lock};
use crate::store::process;
use crate::store::save::{self, Lease};
use crate::store::tables::{Tables, object};
use crate::store::{StateKey, claim};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use xdb_engine::*;

/// A lease outlives its call's own timeout by this: time to hand it over and to take the answer in.
const LEASE_GRACE: Duration = Duration(30_000_000);

/// Whether users' tables are used with a net under them. A net costs a subtransaction each, so the first try goes
/// without.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Fast,
    Guarded,
}

/// Something to be decided about.
#[derive(Clone, Debug)]
pub enum Item {
    /// Messages are in the inbox.
    Arrivals(ExecutionId),
    Timer(DueTimer),
    Answer(CallRecord, Answered),
    /// The process can't go on.
    Fail {
        execution: ExecutionId,
        reason: &'static str,
    },
}

impl Item {
    pub fn execution(&self) -> ExecutionId {
        match self {
            Self::Arrivals(id) | Self::Fail { execution: id, .. } => *id,
            Self::Timer(timer) => timer.execution_id,
            Self::Answer(record, _) => record.key.0,
        }
    }

    /// Whether it would be forgotten if nobody kept it: the rest is found in the tables again.
    pub fn is_in_memory_only(&self) -> bool {
        matches!(self, Self::Answer(..) | Self::Fail { .. })
    }
}

/// What became of an item, if its transaction commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// Somebody else has locked the execution, or publishes to it while it wants to close.
    Locked,
    /// It comes after another item of its execution that has to wait.
    Behind,
    /// A user's table is busy.
    Table(u32),
    /// The other lane makes the call again.
    GivenAway,
}

/// A command that closes its execution: it needs a stronger lock first.
struct Closing {
    item: usize,
    command: Command,
    conditional: bool,
}

pub struct Batch<'a> {
    scheduler: &'a mut Scheduler,
    spi: &'a Spi,
    mode: Mode,
    now: Timestamp,
    loaded: BTreeMap<ExecutionId, Loaded>,
    /// Executions that exist and could not be locked.
    locked: BTreeSet<ExecutionId>,
    /// Leases of the answered calls, as the tasks have them.
    held: HashMap<StateKey, (i64, i64)>,
    tables: Tables,
    demand: load::Demand,
    settled: Vec<Settled>,
    closing: BTreeMap<ExecutionId, Closing>,
    still_closing: Vec<(ExecutionId, bool)>,
    taken_in: Vec<i64>,
    stale_timers: Vec<DueTimer>,
    given_away: Vec<StateKey>,
    leases: HashMap<StateKey, Lease>,
    dispatched: Vec<(StateKey, u32, Timestamp)>,
    claimed: BTreeMap<ExecutionId, Loaded>,
    claims: Vec<(StateKey, u32, Timestamp)>,
    failed: Vec<Item>,
    moved: bool,
}

impl<'a> Batch<'a> {
    pub fn new(scheduler: &'a mut Scheduler, spi: &'a Spi, mode: Mode, now: Timestamp) -> Self {
        Self {
            scheduler,
            spi,
            mode,
            now,
            loaded: BTreeMap::new(),
            locked: BTreeSet::new(),
            held: HashMap::new(),
            tables: Tables::default(),
            demand: load::Demand::new(),
            settled: Vec::new(),
            closing: BTreeMap::new(),
            still_closing: Vec::new(),
            taken_in: Vec::new(),
            stale_timers: Vec::new(),
            given_away: Vec::new(),
            leases: HashMap::new(),
            dispatched: Vec::new(),
            claimed: BTreeMap::new(),
            claims: Vec::new(),
            failed: Vec::new(),
            moved: false,
        }
    }

    /// Decides about the items, in order.
    pub fn process(&mut self, items: &[Item]) -> Result<()> {
        self.settled = vec![Settled::Done; items.len()];
        if items.is_empty() {
            return Ok(());
        }
        self.load(items)?;
        let running: Vec<_> = self.loaded.values().filter(|l| l.before.is_running()).map(|l| l.before.id).collect();
        self.take_in(&running)?;
        for (number, item) in items.iter().enumerate() {
            let id = item.execution();
            if self.locked.contains(&id) {
                self.settled[number] = Settled::Locked;
            } else if self.closing.contains_key(&id) {
                self.settled[number] = Settled::Behind;
            } else if self.loaded.contains_key(&id) {
                self.item(number, item)?;
            } else {
                // The execution is gone, and all that belonged to it.
                self.forget(item);
            }
        }
        self.close(items)
    }

    fn load(&mut self, items: &[Item]) -> Result<()> {
        let ids: BTreeSet<_> = items.iter().map(Item::execution).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        self.loaded = load::executions(self.spi, &mut self.scheduler.registry, &ids, Lock::StepOrSkip)?;
        let missing: Vec<_> = ids.iter().copied().filter(|id| !self.loaded.contains_key(id)).collect();
        if !missing.is_empty() {
            self.locked = load::existing(self.spi, &missing)?;
        }
        let mut states = Vec::new();
        let mut answered = Vec::new();
        let mut queues = Vec::new();
        let mut published = Vec::new();
        for item in items {
            match item {
                Item::Timer(timer) if timer.seq.0 > 0 => states.push((timer.execution_id, timer.seq)),
                Item::Answer(record, answer) => {
                    states.push(record.key);
                    answered.push(record.key);
                    let looked_into = answer.queues();
                    if answer.publishes() || !looked_into.is_empty() {
                        queues.push(record.key.0);
                    }
                    for (queue, wanted) in looked_into {
                        *self.demand.entry((record.key.0, queue)).or_default() += wanted;
                    }
                    let publishes = answer.effects().map_or(&[][..], |effects| &effects.publish_to_local_queue);
                    let with_id =
                        publishes.iter().filter_map(|p| Some((record.key.0, p.queue.clone(), p.message_id.clone()?)));
                    published.extend(with_id);
                }
                _ => {}
            }
        }
        if !answered.is_empty() {
            self.held = load::leases(self.spi, &answered)?;
        }
        load::states(self.spi, &mut self.loaded, &states)?;
        if !queues.is_empty() {
            queues.sort_unstable();
            queues.dedup();
            load::queues(self.spi, &mut self.loaded, &queues, &self.demand)?;
        }
        load::message_ids(self.spi, &mut self.loaded, &published)
    }

    /// Takes messages in that arrived for these executions. What was published before comes before what the
    /// answers of this turn publish.
    fn take_in(&mut self, ids: &[ExecutionId]) -> Result<bool> {
        let arrivals = load::arrivals(self.spi, ids)?;
        let all = arrivals.len() < load::ARRIVALS_PER_TURN;
        let mut new: BTreeMap<ExecutionId, Vec<Publish>> = BTreeMap::new();
        let seen: BTreeSet<_> = self.taken_in.iter().copied().collect();
        for arrival in arrivals.into_iter().filter(|arrival| !seen.contains(&arrival.inbox_id)) {
            self.taken_in.push(arrival.inbox_id);
            new.entry(arrival.execution_id).or_default().push(arrival.publish);
        }
        let without_queues: Vec<_> =
            new.keys().copied().filter(|id| self.loaded.get(id).is_some_and(|loaded| !loaded.queues_loaded)).collect();
        if !without_queues.is_empty() {
            load::queues(self.spi, &mut self.loaded, &without_queues, &self.demand)?;
        }
        for (id, publishes) in new {
            if let Some(loaded) = self.loaded.get_mut(&id)
                && let Ok(events) = loaded.decide(&Command::MessagesArrived(publishes), self.now, jitter())
            {
                loaded.apply(events, self.now);
            }
        }
        Ok(all)
    }

    fn item(&mut self, number: usize, item: &Item) -> Result<()> {
        let command = match item {
            Item::Arrivals(_) => return Ok(()),
            Item::Timer(timer) if timer.seq.0 == 0 => Command::ProcessTimeout,
            Item::Timer(timer) => Command::TimerFired { seq: timer.seq, command: timer.command },
            Item::Fail { reason, .. } => Command::Fail { reason: (*reason).to_owned() },
            Item::Answer(record, answered) => {
                let lease = (self.scheduler.lane.epoch, record.lease_number);
                if self.held.get(&record.key) != Some(&lease) {
                    // Late, doubled or stolen: nothing is applied.
                    return Ok(());
                }
                answered.command(record)
            }
        };
        self.decide(number, item, command, false)
    }

    /// Decides about a command and applies what follows. One that closes the execution waits for its lock, unless
    /// that is held already.
    fn decide(&mut self, number: usize, item: &Item, command: Command, locked_for_close: bool) -> Result<()> {
        let Some(loaded) = self.loaded.get(&item.execution()) else { return Ok(()) };
        let decided = loaded.decide(&command, self.now, jitter());
        let (command, events) = match (decided, item) {
            (Ok(events), _) => (command, events),
            (Err(Rejection::Stale | Rejection::NotRunning(_)), _) => {
                self.forget(item);
                return Ok(());
            }
            (Err(rejection), Item::Answer(record, _)) => {
                // The worker's answer can't be applied: its attempt failed.
                let command = calls::failed(record, calls::invalid_answer(rejection.to_string()));
                match loaded.decide(&command, self.now, jitter()) {
                    Ok(events) => (command, events),
                    Err(_) => return Ok(()),
                }
            }
            (Err(_), _) => return Ok(()),
        };
        let closes = events.iter().any(|event| matches!(event, Event::ProcessClosed { .. }));
        if closes && !locked_for_close {
            let conditional = matches!(
                &command,
                Command::ExecuteAnswered {
                    answer: ExecuteAnswer { decision: Decision::ConditionalClose { .. }, .. },
                    ..
                }
            );
            self.closing.insert(item.execution(), Closing { item: number, command, conditional });
            return Ok(());
        }
        match self.write_tables(item, &events)? {
            Used::Done(()) => {
                if let Some(loaded) = self.loaded.get_mut(&item.execution()) {
                    loaded.apply(events, self.now);
                }
                Ok(())
            }
            Used::Busy(relation) => {
                self.settled[number] = match item {
                    Item::Answer(record, _)
                        if self.scheduler.lane.number == 0 && self.scheduler.tables.is_set_aside(relation) =>
                    {
                        self.given_away.push(record.key);
                        Settled::GivenAway
                    }
                    _ => Settled::Table(relation),
                };
                Ok(())
            }
            Used::Locked => {
                self.settled[number] = Settled::Locked;
                Ok(())
            }
            Used::Refused(error) => match item {
                // Nothing of the refused answer is applied; the failed attempt can't be refused again.
                Item::Answer(record, _) => {
                    self.decide(number, item, calls::failed(record, refused(&error)), locked_for_close)
                }
                _ => Err(error),
            },
        }
    }

    fn write_tables(&mut self, item: &Item, events: &[Event]) -> Result<Used<()>> {
        let Some(loaded) = self.loaded.get(&item.execution()) else { return Ok(Used::Done(())) };
        for event in events {
            let Event::GlobalAttributesWritten { attributes } = event else { continue };
            if self.scheduler.lane.number == 0
                && let Some(table) = loaded.meta.mapping.iter().find(|t| self.scheduler.tables.is_set_aside(t.relation))
            {
                return Ok(Used::Busy(table.relation));
            }
            let tables = &mut self.tables;
            match self.scheduler.tables.write(self.spi, tables, &loaded.meta, attributes, self.mode)? {
                Used::Done(()) => {}
                other => return Ok(other),
            }
        }
        Ok(Used::Done(()))
    }

    /// Closes what can be closed now. The lock is taken in a statement of its own, and the queues are read in a
    /// later one: a message that was published before the lock is seen, and none can be published after it.
    fn close(&mut self, items: &[Item]) -> Result<()> {
        if self.closing.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = self.closing.keys().copied().collect();
        let obtained = load::lock_for_close(self.spi, &ids)?;
        let closing = std::mem::take(&mut self.closing);
        let conditional: Vec<_> =
            closing.iter().filter(|(id, c)| c.conditional && obtained.contains(id)).map(|(id, _)| *id).collect();
        let obtained_ids: Vec<_> = obtained.iter().copied().collect();
        load::states_with_unrecorded_attempts(self.spi, &mut self.loaded, &obtained_ids)?;
        let all_taken_in = conditional.is_empty() || self.take_in(&conditional)?;
        for (id, Closing { item, command, conditional }) in closing {
            if !obtained.contains(&id) {
                self.still_closing.push((id, conditional));
                self.settled[item] = Settled::Locked;
            } else if conditional && !all_taken_in {
                self.settled[item] = Settled::Behind;
            } else {
                self.decide(item, &items[item], command, true)?;
            }
        }
        Ok(())
    }

    /// What belongs to an item that nobody wants any more.
    fn forget(&mut self, item: &Item) {
        if let Item::Timer(timer) = item {
            self.stale_timers.push(*timer);
        }
    }

    /// Leases the calls that were decided in this turn and can go out right after it, without being looked for.
    pub fn dispatch(&mut self, room: &mut Room) -> Result<()> {
        if self.scheduler.paused {
            return Ok(());
        }
        let changed = self.loaded.values().filter(|loaded| !loaded.events.is_empty());
        let owners: HashMap<_, _> = changed.map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect();
        if owners.is_empty() {
            return Ok(());
        }
        let owners: Vec<_> = owners.into_iter().collect();
        let unfit = process::unfit_owners(self.spi, &owners)?;
        for loaded in self.loaded.values().filter(|loaded| !loaded.events.is_empty()) {
            if unfit.contains_key(&loaded.meta.owner) {
                // Claiming it says what is wrong.
                continue;
            }
            let Some(process_type) = &loaded.meta.process_type else { continue };
            if self.scheduler.tables.lane_of(&loaded.meta) != self.scheduler.lane.number {
                continue;
            }
            for (seq, state) in &loaded.execution.states {
                let Some((api, call)) = save::current_call(state) else { continue };
                let unchanged = loaded.before.states.get(seq) == Some(state);
                let known = process_type.definition.states.contains_key(&state.id.state_id);
                if unchanged || call.not_before > self.now || !known || !room.take(process_type.worker.id) {
                    continue;
                }
                let key = (loaded.execution.id, *seq);
                let timeout = config(loaded, state).timeout(api);
                self.leases.insert(key, self.scheduler.lease(self.now, timeout));
                self.dispatched.push((key, 1, self.now));
            }
        }
        Ok(())
    }

    /// Writes everything that was decided. Says whether there was anything.
    pub fn save(&mut self) -> Result<bool> {
        let still_closing: BTreeSet<_> = self.still_closing.iter().map(|(id, _)| *id).collect();
        let marked = |loaded: &Loaded| loaded.meta.closing && !still_closing.contains(&loaded.before.id);
        let changed: Vec<_> =
            self.loaded.values().filter(|loaded| !loaded.events.is_empty() || marked(loaded)).collect();
        let wrote = !(changed.is_empty()
            && self.still_closing.is_empty()
            && self.taken_in.is_empty()
            && self.stale_timers.is_empty()
            && self.given_away.is_empty());
        if wrote {
            let strikes = &self.scheduler.tables;
            let lane = |meta: &load::Meta| strikes.lane_of(meta);
            save::save(self.spi, changed.into_iter(), &self.leases, &lane, self.now)?;
            load::delete_arrivals(self.spi, &self.taken_in)?;
            load::delete_timers(self.spi, &self.stale_timers)?;
            claim::move_to_lane(self.spi, &self.given_away, 1)?;
            if !self.still_closing.is_empty() {
                load::mark_closing(self.spi, &self.still_closing)?;
            }
        }
        Ok(wrote)
    }

    /// Claims due calls from the tables.
    pub fn claim(&mut self, room: &mut Room, limit: usize) -> Result<()> {
        let wanted = room.wanted(limit);
        if self.scheduler.paused || wanted.is_empty() {
            return Ok(());
        }
        let lane = self.scheduler.lane;
        // The other lane makes one call at a time, but gives back at once what is no longer its own.
        let at_most = if lane.number == 0 { usize::MAX } else { 1 };
        let busy = self.scheduler.executions.keys(std::time::Instant::now());
        let due = claim::due(self.spi, lane, &wanted, &busy, self.now)?;
        if due.is_empty() {
            return Ok(());
        }
        let ids: BTreeSet<_> = due.iter().map(|d| d.key.0).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let keys: Vec<_> = due.iter().map(|d| d.key).collect();
        self.claimed = load::executions(self.spi, &mut self.scheduler.registry, &ids, Lock::None)?;
        load::states(self.spi, &mut self.claimed, &keys)?;
        let owners: HashMap<_, _> = self.claimed.values().map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect();
        let owners: Vec<_> = owners.into_iter().collect();
        let unfit = process::unfit_owners(self.spi, &owners)?;
        let mut leases = HashMap::new();
        let mut moved = Vec::new();
        for due in due {
            let Some(loaded) = self.claimed.get(&due.key.0) else { continue };
            let Some(process_type) = &loaded.meta.process_type else { continue };
            let Some(state) = loaded.execution.states.get(&due.key.1) else { continue };
            let Some((api, _)) = save::current_call(state) else { continue };
            if self.scheduler.tables.lane_of(&loaded.meta) != lane.number {
                moved.push(due.key);
                continue;
            }
            if let Some(unfit) = unfit.get(&loaded.meta.owner).filter(|unfit| unfit.for_good) {
                self.scheduler.executions.defer(due.key.0, std::time::Instant::now());
                self.failed.push(Item::Fail { execution: due.key.0, reason: unfit.why });
                continue;
            }
            if self.claims.len() >= at_most || !room.take(process_type.worker.id) {
                continue;
            }
            if let Some(unfit) = unfit.get(&loaded.meta.owner) {
                let failure = Failure { detail: unfit.why.to_owned(), ..Failure::default() };
                self.scheduler.load_failures.insert(due.key, failure);
            } else if !process_type.definition.states.contains_key(&state.id.state_id) {
                let detail = format!("unknown state \"{}\": the process type does not list it", state.id.state_id);
                self.scheduler.load_failures.insert(due.key, Failure { detail, ..Failure::default() });
            }
            leases.insert(due.key, self.scheduler.lease(self.now, config(loaded, state).timeout(api)));
            self.claims.push((due.key, due.attempts + 1, due.first_attempt_at.unwrap_or(self.now)));
        }
        claim::move_to_lane(self.spi, &moved, 1 - lane.number)?;
        if !moved.is_empty() {
            self.moved = true;
            crate::pg::wake::wake_scheduler_at_commit();
        }
        claim::lease(self.spi, &leases, self.now)?;
        self.leases.extend(leases);
        Ok(())
    }

    /// Prepares the requests of all leased calls and hands over what the turn leaves to be done.
    pub fn finish(mut self, outcome: &mut Outcome) -> Result<()> {
        let mut released = Vec::new();
        let claims = std::mem::take(&mut self.claims);
        let dispatched = std::mem::take(&mut self.dispatched);
        let local = self.local_attributes(&claims, &dispatched)?;
        let (loaded, claimed) = (std::mem::take(&mut self.loaded), std::mem::take(&mut self.claimed));
        let sources = dispatched.iter().map(|c| (&loaded, c)).chain(claims.iter().map(|c| (&claimed, c)));
        for (source, (key, attempt, first_at)) in sources {
            let Some((loaded, state)) = source.get(&key.0).and_then(|l| Some((l, l.execution.states.get(&key.1)?)))
            else {
                continue;
            };
            let Some(lease) = self.leases.get(key).copied() else { continue };
            match self.prepare(loaded, state, *attempt, *first_at, lease, local.get(&key.0), outcome)? {
                true => {}
                false => released.push(*key),
            }
        }
        claim::release(self.spi, &released)?;
        outcome.settled = self.settled;
        outcome.failed.extend(self.failed);
        outcome.more |= self.moved;
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
        };
        if let Some(failure) = self.scheduler.load_failures.remove(&key) {
            outcome.failed.push(Item::Answer(record, Answered::Failed(failure)));
            return Ok(true);
        }
        let loading = config.load_global(api);
        let strikes = &mut self.scheduler.tables;
        let global = match strikes.read(self.spi, &mut self.tables, &loaded.meta, &loading, self.mode)? {
            Used::Done(text) => text,
            Used::Busy(relation) => {
                let until = strikes.busy_until(relation).unwrap_or_else(std::time::Instant::now);
                self.scheduler.executions.defer_until(key.0, until);
                return Ok(false);
            }
            Used::Locked => {
                self.scheduler.executions.defer(key.0, std::time::Instant::now());
                return Ok(false);
            }
            Used::Refused(error) => {
                outcome.failed.push(Item::Answer(record, Answered::Failed(refused(&error))));
                return Ok(true);
            }
        };
        let wanted = config.load_local(api);
        let members = local.into_iter().flatten().filter(|(name, _)| wanted.wants(name));
        let local = object(members.map(|(name, value)| (name.as_str(), value.as_str())));
        let attempt = Attempt {
            number: attempt,
            first_at,
            timeout: config.timeout(api),
            global_attributes: &global,
            local_attributes: &local,
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
    fn lease(&self, now: Timestamp, timeout: Duration) -> Lease {
        Lease { epoch: self.lane.epoch, number: self.number, until: now + timeout + LEASE_GRACE }
    }
}

/// Options of a state execution: its own over the registered ones.
fn config(loaded: &Loaded, state: &StateExecution) -> StateConfig {
    let definition: Arc<Definition> = loaded.meta.definition();
    let registered = definition.states.get(&state.id.state_id).cloned().unwrap_or_default();
    match &state.config {
        Some(own) => registered.overridden_by(own),
        None => registered,
    }
}

/// A random number in 0..1.
fn jitter() -> f64 {
    // SAFETY: the server's generator for things that need no secrecy; used on the main thread alone.
    let random = unsafe { pgrx::pg_sys::pg_prng_double(&raw mut pgrx::pg_sys::pg_global_prng_state) };
    random.clamp(0.0, 1.0)
}
