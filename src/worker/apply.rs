//! The batch of a turn: what came in is decided about and saved.

use super::calls::{self, Answered};
use super::global::Free;
use super::in_flight::CallRecord;
use super::locks::{LocalNow, Watch};
use super::looks::Ends;
use super::turn::Scheduler;
use super::user_tables::{Used, refused};
use crate::clock;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::plant::{self, Plant};
use crate::pg::spi::Spi;
use crate::store::load::{self, Arrival, DueTimer, Loaded, Lock};
use crate::store::locks::{self, Wants};
use crate::store::registry::WorkerId;
use crate::store::save::{self, Lease};
use crate::store::tables::Tables;
use crate::store::{StateKey, claim, global};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use xdb_engine::*;

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
    /// There may be messages of global queues for this state.
    Waiter(StateKey),
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
            Self::Waiter(key) => key.0,
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
    /// Somebody has locked a row of the user's that the answer writes.
    RowLocked,
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

/// What a turn works on.
pub struct Batch<'a> {
    pub(super) scheduler: &'a mut Scheduler,
    pub(super) spi: &'a Spi,
    pub(super) mode: Mode,
    /// The time of processes, and the real one for leases.
    pub(super) now: Timestamp,
    pub(super) real: Timestamp,
    pub(super) loaded: BTreeMap<ExecutionId, Loaded>,
    /// Executions that exist and could not be locked.
    pub(super) locked: BTreeSet<ExecutionId>,
    /// Leases of the answered calls, as the tasks have them.
    pub(super) held: HashMap<StateKey, (i64, i64)>,
    /// Executions that had no message in the inbox when they were loaded, under their locks.
    without_arrivals: BTreeSet<ExecutionId>,
    pub(super) tables: Tables,
    pub(super) settled: Vec<Settled>,
    closing: BTreeMap<ExecutionId, Closing>,
    pub(super) still_closing: Vec<(ExecutionId, bool)>,
    pub(super) taken_in: Vec<i64>,
    pub(super) stale_timers: Vec<DueTimer>,
    orphaned: Vec<ExecutionId>,
    pub(super) free: Free,
    pub(super) stale_waiters: Vec<StateKey>,
    pub(super) given_away: Vec<StateKey>,
    pub(super) leases: HashMap<StateKey, Lease>,
    pub(super) dispatched: Vec<(StateKey, u32, Timestamp)>,
    pub(super) claimed: BTreeMap<ExecutionId, Loaded>,
    pub(super) claims: Vec<(StateKey, u32, Timestamp)>,
    pub(super) unsettled: Vec<ExecutionId>,
    pub(super) failed: Vec<Item>,
    pub(super) more: bool,
    pub(super) watch: Watch,
    pub(super) ends: Ends,
    /// Calls that were found due, and since when they are.
    pub(super) looked_for_calls: Vec<(StateKey, Timestamp)>,
    /// No message was left in the inbox because there were too many.
    pub(super) all_taken_in: bool,
    /// Workers without any due call that nobody has, if this turn has looked.
    pub(super) drained: Option<BTreeSet<WorkerId>>,
    /// Calls that were let ask for their locks again in this turn.
    pub(super) offered: HashSet<StateKey>,
    /// What the calls that were granted in this turn have locked.
    pub(super) wanted: HashMap<StateKey, Arc<Wants>>,
    /// Local attributes of executions whose answers come from calls that have locked some, under the executions' locks.
    pub(super) local_now: LocalNow,
}

impl<'a> Batch<'a> {
    pub fn new(scheduler: &'a mut Scheduler, spi: &'a Spi, mode: Mode, now: Timestamp, ends: Ends) -> Self {
        // What a transaction that failed had found out is found out again.
        scheduler.load_failures.clear();
        let watch = scheduler.watch.clone();
        Self {
            scheduler,
            spi,
            mode,
            now,
            real: clock::real(),
            loaded: BTreeMap::new(),
            locked: BTreeSet::new(),
            held: HashMap::new(),
            without_arrivals: BTreeSet::new(),
            tables: Tables::default(),
            settled: Vec::new(),
            closing: BTreeMap::new(),
            still_closing: Vec::new(),
            taken_in: Vec::new(),
            stale_timers: Vec::new(),
            orphaned: Vec::new(),
            free: Free::default(),
            stale_waiters: Vec::new(),
            given_away: Vec::new(),
            leases: HashMap::new(),
            dispatched: Vec::new(),
            claimed: BTreeMap::new(),
            claims: Vec::new(),
            unsettled: Vec::new(),
            failed: Vec::new(),
            more: false,
            watch,
            ends,
            looked_for_calls: Vec::new(),
            all_taken_in: true,
            drained: None,
            offered: HashSet::new(),
            wanted: HashMap::new(),
            local_now: LocalNow::new(),
        }
    }

    /// Decides about the items, in order.
    pub fn process(&mut self, items: &[Item]) -> Result<()> {
        self.settled = vec![Settled::Done; items.len()];
        if items.is_empty() {
            return Ok(());
        }
        let published = self.load(items)?;
        // Under the locks: the times of events are in their order, whoever changed an execution last.
        self.now = clock::now();
        let may_have_arrivals =
            |loaded: &&Loaded| loaded.before.is_running() && !self.without_arrivals.contains(&loaded.before.id);
        let ids: Vec<_> = self.loaded.values().filter(may_have_arrivals).map(|l| l.before.id).collect();
        self.take_in(&ids)?;
        load::message_ids(self.spi, &mut self.loaded, &published)?;
        self.list_free(items)?;
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
                self.orphaned(item);
            }
        }
        self.close(items)?;
        let unsettled = items.iter().zip(&self.settled).filter(|(_, settled)| **settled != Settled::Done);
        self.unsettled = unsettled.map(|(item, _)| item.execution()).collect();
        // What came behind another item may be decided about at once.
        self.more |= self.settled.contains(&Settled::Behind);
        Ok(())
    }

    /// Loads what the items need, and gives the message ids that their answers publish.
    fn load(&mut self, items: &[Item]) -> Result<Vec<(ExecutionId, String, String)>> {
        let ids: BTreeSet<_> = items.iter().map(Item::execution).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        self.loaded = load::executions(self.spi, &mut self.scheduler.registry, &ids, Lock::StepOrSkip)?;
        let missing: Vec<_> = ids.iter().copied().filter(|id| !self.loaded.contains_key(id)).collect();
        if !missing.is_empty() {
            self.locked = load::existing(self.spi, &missing)?;
        }
        let mut states = Vec::new();
        let mut answered = Vec::new();
        let mut demand = load::Demand::new();
        let mut published = Vec::new();
        let mut locked_keys = Vec::new();
        for item in items {
            match item {
                Item::Timer(timer) if timer.seq.0 > 0 => states.push((timer.execution_id, timer.seq)),
                Item::Waiter(key) => states.push(*key),
                Item::Answer(record, answer) => {
                    answered.push(record.key);
                    if record.held.as_ref().is_some_and(|held| held.local.locks()) {
                        locked_keys.push(record.key.0);
                    }
                    let publishes = answer.effects().map_or(&[][..], |effects| &effects.publish_to_local_queue);
                    let published_to = publishes.iter().map(|publish| (publish.queue.clone(), 0));
                    for (queue, wanted) in answer.queues().into_iter().chain(published_to) {
                        *demand.entry(record.key.0).or_default().entry(queue).or_default() += wanted;
                    }
                    let with_id =
                        publishes.iter().filter_map(|p| Some((record.key.0, p.queue.clone(), p.message_id.clone()?)));
                    published.extend(with_id);
                }
                _ => {}
            }
        }
        let found = load::answered(self.spi, &mut self.loaded, &answered)?;
        self.held = found.leases;
        self.without_arrivals = found.without_arrivals;
        self.local_now = locks::local_attributes(self.spi, &locked_keys)?;
        load::states(self.spi, &mut self.loaded, &states)?;
        load::queues(self.spi, &mut self.loaded, &demand)?;
        Ok(published)
    }

    /// Takes messages in that arrived for these executions. What was published before comes before what the
    /// answers of this turn publish.
    fn take_in(&mut self, ids: &[ExecutionId]) -> Result<bool> {
        if ids.is_empty() {
            return Ok(true);
        }
        let load::Arrivals { arrivals, all } = load::arrivals(self.spi, ids)?;
        self.more |= !all;
        self.all_taken_in &= all;
        let mut new: BTreeMap<ExecutionId, Vec<Arrival>> = BTreeMap::new();
        let seen: BTreeSet<_> = self.taken_in.iter().copied().collect();
        let mut demand = load::Demand::new();
        for arrival in arrivals.into_iter().filter(|arrival| !seen.contains(&arrival.inbox_id)) {
            self.taken_in.push(arrival.inbox_id);
            demand.entry(arrival.execution_id).or_default().entry(arrival.publish.queue.clone()).or_default();
            new.entry(arrival.execution_id).or_default().push(arrival);
        }
        load::queues(self.spi, &mut self.loaded, &demand)?;
        for (id, arrivals) in new {
            if let Some(loaded) = self.loaded.get_mut(&id) {
                loaded.receive(self.spi, arrivals, self.now)?;
            }
        }
        Ok(all)
    }

    fn item(&mut self, number: usize, item: &Item) -> Result<()> {
        let command = match item {
            Item::Arrivals(id) => {
                if self.loaded.get(id).is_some_and(|loaded| !loaded.before.is_running()) {
                    self.orphaned(item);
                }
                return Ok(());
            }
            Item::Timer(timer) if timer.seq.0 == 0 => Command::ProcessTimeout,
            Item::Timer(timer) => Command::TimerFired { seq: timer.seq, command: timer.command },
            Item::Waiter(key) => Command::GlobalMessagesArrived { seq: key.1 },
            Item::Fail { reason, .. } => Command::Fail { reason: (*reason).to_owned() },
            Item::Answer(record, answered) => {
                let lease = (self.scheduler.lane.epoch, record.lease_number);
                if self.held.get(&record.key) != Some(&lease) && !plant::is(Plant::NoFence) {
                    self.reject(
                        record,
                        &answered.command(record),
                        "its lease is gone: the call was made again or is over",
                    );
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
        let offered = self.offer(item.execution(), &command)?;
        if offered.is_none() && matches!(item, Item::Waiter(_)) {
            self.settled[number] = Settled::Behind;
            return Ok(());
        }
        let Some(loaded) = self.loaded.get_mut(&item.execution()) else { return Ok(()) };
        loaded.prepare(self.spi, &command)?;
        let decided = loaded.decide_with(&command, self.now, jitter(), offered.as_deref().unwrap_or_default());
        let (command, events) = match (decided, item) {
            (Ok(mut events), Item::Timer(_)) if plant::is(Plant::TimerTwice) => {
                events.extend(events.iter().find(|event| matches!(event, Event::CommandCompleted { .. })).cloned());
                (command, events)
            }
            (Ok(events), _) => (command, events),
            (Err(rejection @ (Rejection::Stale | Rejection::NotRunning(_))), _) => {
                self.forget(item);
                if let Item::Answer(record, _) = item {
                    self.reject(record, &command, &rejection.to_string());
                }
                return Ok(());
            }
            (Err(rejection), Item::Answer(record, _)) => {
                // The worker's answer can't be applied: its attempt failed.
                let command = calls::failed(record, calls::invalid_answer(rejection.to_string()));
                match loaded.decide(&command, self.now, jitter()) {
                    Ok(events) => (command, events),
                    Err(rejection) => {
                        self.reject(record, &command, &rejection.to_string());
                        return Ok(());
                    }
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
        let used = match self.is_unchanged(item, &command)? {
            Used::Done(true) => self.write_tables(item, &events)?,
            Used::Done(false) => {
                let Item::Answer(record, _) = item else { return Ok(()) };
                let again = Command::CallRepeated { seq: record.key.1, api: record.api };
                return self.decide(number, item, again, locked_for_close);
            }
            Used::Busy(relation) => Used::Busy(relation),
            Used::Locked => Used::Locked,
            Used::Refused(error) => Used::Refused(error),
        };
        match used {
            Used::Done(()) => {
                crash::point("turn-tables");
                self.take_offered(&events);
                if let Some(loaded) = self.loaded.get_mut(&item.execution()) {
                    if let (Command::WaitUntilAnswered { seq, .. }, Some(_)) = (&command, &offered) {
                        loaded.offered.insert(*seq);
                    }
                    loaded.apply(events, self.now);
                }
                Ok(())
            }
            Used::Busy(relation) => {
                self.settled[number] = match item {
                    Item::Answer(record, _)
                        if self.scheduler.lane.number == 0 && self.scheduler.tables.health.is_set_aside(relation) =>
                    {
                        self.given_away.push(record.key);
                        Settled::GivenAway
                    }
                    _ => Settled::Table(relation),
                };
                Ok(())
            }
            Used::Locked => {
                self.settled[number] = Settled::RowLocked;
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

    /// Notes in the history that an answer was not applied: late, doubled or stolen. What is closed has had its last
    /// event.
    fn reject(&mut self, record: &CallRecord, command: &Command, reason: &str) {
        let Some(loaded) = self.loaded.get_mut(&record.key.0) else { return };
        if loaded.meta.history.keeps_events() && loaded.execution.is_running() {
            let event = Event::CommandRejected {
                command: command.name().to_owned(),
                seq: Some(record.key.1),
                attempt: Some(record.attempt),
                reason: reason.to_owned(),
            };
            loaded.apply(vec![event], self.now);
        }
    }

    fn write_tables(&mut self, item: &Item, events: &[Event]) -> Result<Used<()>> {
        let Some(loaded) = self.loaded.get(&item.execution()) else { return Ok(Used::Done(())) };
        for event in events {
            let Event::GlobalAttributesWritten { attributes } = event else { continue };
            if self.scheduler.lane.number == 0
                && let Some(table) =
                    loaded.meta.mapping.iter().find(|t| self.scheduler.tables.health.is_set_aside(t.relation))
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
        let all_taken_in = conditional.is_empty() || plant::is(Plant::BlindClose) || self.take_in(&conditional)?;
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

    /// Messages that nobody receives any more.
    fn orphaned(&mut self, item: &Item) {
        if let Item::Arrivals(id) = item {
            self.orphaned.push(*id);
        }
    }

    /// What belongs to an item that nobody wants any more.
    fn forget(&mut self, item: &Item) {
        if let Item::Timer(timer) = item {
            self.stale_timers.push(*timer);
        }
        if let Item::Waiter(key) = item {
            self.stale_waiters.push(*key);
        }
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
            && self.orphaned.is_empty()
            && self.stale_waiters.is_empty()
            && self.given_away.is_empty());
        if wrote {
            let (strikes, any_locks) = (&self.scheduler.tables, self.scheduler.any_locks);
            let lane = |meta: &load::Meta| strikes.lane_of(meta);
            let saved =
                save::save_and_release(self.spi, changed.into_iter(), &self.leases, &lane, any_locks, self.now)?;
            self.ends.earliest = saved.earliest;
            self.scheduler.looks.lower(saved.earliest);
            load::delete_arrivals(self.spi, &self.taken_in)?;
            load::delete_arrivals_of(self.spi, &self.orphaned)?;
            global::delete_waiters(self.spi, &self.stale_waiters)?;
            load::delete_timers(self.spi, &self.stale_timers, self.now)?;
            if !self.given_away.is_empty() {
                claim::move_to_lane(self.spi, &self.given_away, 1)?;
                crash::point("turn-give-away");
            }
            let given_away = locks::release(self.spi, &self.given_away)?;
            self.released(saved.released)?;
            self.released(given_away)?;
            if !self.still_closing.is_empty() {
                load::mark_closing(self.spi, &self.still_closing)?;
                crash::point("turn-closing");
            }
        }
        Ok(wrote)
    }
}

/// A random number in 0..1.
pub(super) fn jitter() -> f64 {
    // SAFETY: the server's generator for things that need no secrecy; used on the main thread alone.
    let random = unsafe { pgrx::pg_sys::pg_prng_double(&raw mut pgrx::pg_sys::pg_global_prng_state) };
    random.clamp(0.0, 1.0)
}
