//! One turn of a scheduler: one transaction that applies what has come in and claims what is due.

use super::apply::{Batch, Item, Mode, Settled, jitter};
use super::breakers::Breakers;
use super::calls::{self, Answered};
use super::deferred::{Deferred, Patience};
use super::global::Matching;
use super::in_flight::{CallRecord, InFlight, Room};
use super::lifecycle::{Context, Turn};
use super::locks::Watch;
use super::looks::{Ends, Looks};
use super::user_tables::Strikes;
use crate::http::Call;
use crate::pg::catch::run_caught;
use crate::pg::catch::{
    DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, PgError, QUERY_CANCELED, Result, SERIALIZATION_FAILURE, UNIQUE_VIOLATION,
    log_error,
};
use crate::pg::plant::{self, Plant};
use crate::pg::{crash, identity, spi};
use crate::store::claim::{self, Lane};
use crate::store::instance::Standing;
use crate::store::registry::{Registry, WorkerId};
use crate::store::{StateKey, engine, global, locks};
use crate::{clock, guc};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, Failure, Timestamp};

/// What a scheduler keeps between its turns. All of it may be lost at any moment: the tables hold everything.
pub struct Scheduler {
    pub lane: Lane,
    pub registry: Registry,
    pub in_flight: InFlight,
    pub breakers: Breakers,
    /// Answers that wait to be applied, in the order in which they came.
    pub waiting: VecDeque<Item>,
    /// Executions that somebody else has locked.
    pub executions: Deferred<ExecutionId>,
    /// Users' tables that are locked or slow.
    pub tables: Strikes,
    /// Calls whose attributes could not be loaded: the attempt fails with this.
    pub load_failures: HashMap<StateKey, Failure>,
    /// Messages of global queues that wait to be handed out.
    pub matching: Matching,
    /// Number of the turn, and of the leases that it gives.
    pub number: i64,
    /// Nothing new is taken up: because somebody said so, or because of the standing.
    pub paused: bool,
    pub standing: Standing,
    /// Calls wait in the lane of tables that are set aside.
    pub other_lane_has_tasks: bool,
    /// Calls have locks on attributes, or wait for some, since before this turn.
    pub any_locks: bool,
    /// When the next call or timer comes due, as the last turn saw it.
    pub next_due: Option<Timestamp>,
    /// The execution whose call alone is being claimed.
    pub suspect: Option<ExecutionId>,
    /// When calls of workers that are gone were looked for last.
    adopted: Option<Instant>,
    /// Calls whose answers were held up and dropped: because others wait for their locks, or because there were too many.
    pub yielding: BTreeSet<StateKey>,
    /// Since when the answers of calls with locks have been held up.
    pub held_up_since: HashMap<StateKey, Instant>,
    /// Locks that are to be handed on.
    pub watch: Watch,
    pub looks: Looks,
    /// Workers for which the last look has found all calls that were due. To the others a call that has just become due must
    /// not go before those that wait.
    pub drained: BTreeSet<WorkerId>,
    /// Threads of the pool, as it was made.
    threads: usize,
    failing: Deferred<()>,
}

/// What a transaction does besides applying its items.
#[derive(Clone, Copy)]
struct Work {
    /// Look for due timers and for messages.
    gather: bool,
    /// Claim so many calls per worker at most.
    claim: usize,
}

impl Work {
    const ALL: Self = Self { gather: true, claim: usize::MAX };
    const APPLY: Self = Self { gather: false, claim: 0 };
}

/// How long a call whose answer was given up is left alone.
const GIVEN_UP_FOR: Duration = Duration::from_secs(5);

/// An answer of a call with locks that was not tried for so long is not held up any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// How often to look for calls of workers that are gone, besides when registrations change.
const ADOPT_EVERY: Duration = Duration::from_secs(60);

/// How long a call whose claim fails by itself is left alone.
const SUSPECT_FOR: Duration = Duration::from_secs(10);

/// Errors that pass by themselves: a lock, a conflict with another transaction, no memory, no disk.
fn is_passing(error: &PgError) -> bool {
    let state = error.sqlstate();
    matches!(
        error.code,
        LOCK_NOT_AVAILABLE | DEADLOCK_DETECTED | SERIALIZATION_FAILURE | QUERY_CANCELED | UNIQUE_VIOLATION
    ) || state.starts_with("53")
        || state.starts_with("58")
}

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do at once.
    More,
    /// Nothing until something happens.
    Idle,
    Gone,
    Changed,
    /// Somebody is at work on the extension, or the turn failed: try again soon.
    Later,
}

/// What a transaction did, to be followed up after its commit.
#[derive(Default)]
pub struct Outcome {
    pub settled: Vec<Settled>,
    pub calls: Vec<(Call, CallRecord)>,
    /// Attempts that failed before their calls were made, and processes that can't go on.
    pub failed: Vec<Item>,
    pub more: bool,
    /// What is to be looked after from now on.
    pub watch: Option<Watch>,
    /// Calls whose leases and locks were taken back.
    pub yielded: Vec<StateKey>,
    /// Calls whose answers have been held up for long, while others wait for their locks.
    pub waited_for: BTreeSet<StateKey>,
    pub ends: Ends,
    /// Its looks have found all that there was.
    pub nothing_left: bool,
    /// Workers without any due call that nobody has, if the turn has looked.
    pub drained: Option<BTreeSet<WorkerId>>,
}

enum Transacted {
    Done(Box<Outcome>),
    Not(Progress),
}

impl Scheduler {
    pub fn new(lane: Lane, threads: usize) -> Self {
        Self {
            lane,
            registry: Registry::default(),
            in_flight: InFlight::default(),
            breakers: Breakers::default(),
            waiting: VecDeque::new(),
            executions: Deferred::new(),
            tables: Strikes::new(lane.number == 1),
            load_failures: HashMap::new(),
            matching: Matching::default(),
            number: 0,
            paused: false,
            standing: Standing::Unused,
            other_lane_has_tasks: false,
            any_locks: true,
            next_due: None,
            suspect: None,
            adopted: None,
            yielding: BTreeSet::new(),
            held_up_since: HashMap::new(),
            watch: Watch::default(),
            looks: Looks::default(),
            drained: BTreeSet::new(),
            threads,
            failing: Deferred::new(),
        }
    }

    /// Makes a turn. `submit` hands a call to the pool; it is called after the commit.
    pub fn turn(&mut self, context: &mut Context, submit: &mut dyn FnMut(Call)) -> Progress {
        let mut items = self.take_waiting();
        // What failed a moment ago may fail again: then a net is cheaper than a second transaction.
        let risky = items.iter().any(|item| self.executions.has(&item.execution()));
        let mode = if risky || self.lane.number == 1 { Mode::Guarded } else { Mode::Fast };
        let first = self.transact(context, &mut items, Work::ALL, mode);
        let outcome = match first {
            Ok(Transacted::Done(outcome)) => outcome,
            Ok(Transacted::Not(progress)) => {
                self.put_back(items);
                return progress;
            }
            Err(error) => {
                pgrx::debug1!("xdb: a turn with {} items failed and is made again in parts: {error}", items.len());
                return self.in_parts(context, items, submit);
            }
        };
        self.follow_up(context, items, outcome, submit)
    }

    /// A turn failed, and nobody knows which part of it is at fault. What came in is applied without claiming anything
    /// new, then what is due is claimed by itself; each as a whole under guards, or else one by one.
    fn in_parts(&mut self, context: &mut Context, mut items: Vec<Item>, submit: &mut dyn FnMut(Call)) -> Progress {
        crash::point("turn-again");
        self.looks.look_again();
        match self.transact(context, &mut items, Work::APPLY, Mode::Guarded) {
            Ok(Transacted::Done(outcome)) => {
                self.follow_up(context, items, outcome, submit);
            }
            Ok(Transacted::Not(progress)) => {
                self.put_back(items);
                return progress;
            }
            Err(error) if items.len() <= 1 => self.failed_alone(context, items, &error),
            Err(_) => {
                for item in items {
                    let mut alone = vec![item];
                    match self.transact(context, &mut alone, Work::APPLY, Mode::Guarded) {
                        Ok(Transacted::Done(outcome)) => {
                            self.follow_up(context, alone, outcome, submit);
                        }
                        Ok(Transacted::Not(_)) => self.put_back(alone),
                        Err(error) => self.failed_alone(context, alone, &error),
                    }
                }
            }
        }
        self.claim_in_parts(context, submit)
    }

    fn claim_in_parts(&mut self, context: &mut Context, submit: &mut dyn FnMut(Call)) -> Progress {
        for limit in [guc::CLAIM_BATCH.get() as usize, 1] {
            self.suspect = None;
            match self.transact(context, &mut Vec::new(), Work { gather: false, claim: limit }, Mode::Guarded) {
                Ok(Transacted::Done(outcome)) => {
                    self.follow_up(context, Vec::new(), outcome, submit);
                    return Progress::More;
                }
                Ok(Transacted::Not(progress)) => return progress,
                Err(error) if limit == 1 => {
                    // The one call that was looked at is left alone for a while; the next turn finds the others.
                    if let Some(suspect) = self.suspect.take() {
                        self.executions.defer_until(suspect, Instant::now() + SUSPECT_FOR);
                    }
                    self.failed_alone(context, Vec::new(), &error);
                }
                Err(_) => {}
            }
        }
        Progress::Later
    }

    /// A transaction failed with one item or none in it. The item's attempt fails; what is no attempt is left alone
    /// for a while.
    fn failed_alone(&mut self, context: &Context, items: Vec<Item>, error: &PgError) {
        context.slot.record_error(&error.to_string());
        if !self.failing.is_deferred(&(), Instant::now()) {
            log_error("a turn of the scheduler failed", error);
            self.failing.defer_until((), Instant::now() + Duration::from_secs(1));
        }
        let passing = is_passing(error);
        for item in items {
            self.executions.defer(item.execution(), Instant::now(), Patience::Long);
            match item {
                Item::Answer(..) if passing => self.waiting.push_back(item),
                Item::Answer(record, Answered::Failed(_)) => {
                    // Even its failure can't be written: only time helps.
                    let failure = Failure { detail: error.to_string(), ..Failure::default() };
                    self.waiting.push_back(Item::Answer(record, Answered::Failed(failure)));
                }
                Item::Answer(record, _) => {
                    let detail = format!("the answer could not be applied: {error}");
                    let failure = Failure { detail, ..Failure::default() };
                    self.waiting.push_back(Item::Answer(record, Answered::Failed(failure)));
                }
                Item::Fail { .. } => self.waiting.push_back(item),
                // They are in the tables and are found again.
                Item::Arrivals(_) | Item::Timer(_) | Item::Waiter(_) => {}
            }
        }
    }

    fn take_waiting(&mut self) -> Vec<Item> {
        let now = Instant::now();
        let limit = self.batch_limit();
        let mut taken = Vec::new();
        let mut left = VecDeque::new();
        for item in self.waiting.drain(..) {
            if taken.len() < limit && !self.executions.is_deferred(&item.execution(), now) {
                taken.push(item);
            } else {
                left.push_back(item);
            }
        }
        self.waiting = left;
        taken
    }

    fn put_back(&mut self, items: Vec<Item>) {
        for item in items.into_iter().rev() {
            if item.is_in_memory_only() {
                self.waiting.push_front(item);
            }
        }
    }

    /// Tables that are set aside are served one step at a time.
    fn batch_limit(&self) -> usize {
        if self.lane.number == 0 { guc::CLAIM_BATCH.get() as usize } else { 1 }
    }

    fn transact(&mut self, context: &mut Context, items: &mut Vec<Item>, work: Work, mode: Mode) -> Result<Transacted> {
        let begun = run_caught(|| Ok(context.begin_turn()));
        if begun.is_err() {
            context.abort_turn();
        }
        match begun? {
            Turn::Ready => {}
            Turn::Gone => return Ok(Transacted::Not(Progress::Gone)),
            Turn::Changed => return Ok(Transacted::Not(Progress::Changed)),
            Turn::Busy => return Ok(Transacted::Not(Progress::Later)),
        }
        let done = run_caught(|| spi::connect(|spi| self.body(spi, items, work, mode))).and_then(|outcome| {
            if matches!(outcome, Transacted::Done(_)) {
                if items.iter().any(|item| matches!(item, Item::Answer(..))) {
                    crash::point("answer-commit");
                }
                run_caught(|| {
                    context.commit_turn();
                    Ok(())
                })?;
            } else {
                context.abort_turn();
            }
            Ok(outcome)
        });
        if done.is_err() {
            context.abort_turn();
        }
        done
    }

    fn body(&mut self, spi: &spi::Spi, items: &mut Vec<Item>, work: Work, mode: Mode) -> Result<Transacted> {
        let now = clock::now();
        self.number += 1;
        let state = engine::state(spi, self.lane.number)?;
        if state.epoch != self.lane.epoch {
            // Another scheduler has begun; every lease of this one is void.
            return Ok(Transacted::Not(Progress::Changed));
        }
        let registered = self.registry.refresh(spi, state.generation)?;
        self.breakers.follow(&self.registry);
        self.standing = state.standing;
        self.paused = state.paused || self.standing != Standing::Own;
        self.other_lane_has_tasks = state.other_lane_has_tasks;
        self.any_locks = state.any_locks;
        self.tables.begin(spi, state.set_aside)?;
        let mut outcome = Outcome::default();
        let mut ends = Ends::default();
        let limit = self.batch_limit();
        let may_be_vain = work.gather && self.lane.number == 0 && !state.global_work;
        let vain = may_be_vain && (self.looks.are_vain() || self.nothing_is_due(spi, now)?);
        if work.gather && !vain && !self.paused && self.lane.number == 0 {
            let busy = self.executions.keys(Instant::now());
            (ends, outcome.more) = self.gather(spi, now, &busy, limit, items)?;
            self.matching = Matching::default();
            if state.global_work {
                let gathered = global::gather(spi, now, &busy, limit)?;
                // Before everything else: who begins to wait in this turn comes after those who wait.
                items.splice(0..0, gathered.states.iter().map(|key| Item::Waiter(*key)));
                self.matching = Matching { gathered, is_new: true };
            }
        } else if work.gather {
            self.matching = Matching::default();
        } else {
            self.matching.is_new = false;
        }
        let workers = self.registry.workers();
        if registered || self.adopted.is_none_or(|at| at.elapsed() > ADOPT_EVERY) {
            // A call may commit under a worker that was unregistered meanwhile.
            let known: Vec<_> = workers.iter().map(|w| w.0).collect();
            let more = claim::adopt_orphans(spi, self.lane, &known)?;
            outcome.more |= more;
            self.adopted = if more { None } else { Some(Instant::now()) };
            self.looks.reset();
        }
        let mut released = Vec::new();
        outcome.waited_for = self.waited_for(spi, items)?;
        if !self.yielding.is_empty() {
            let (yielded, objects) = self.yield_locks(spi)?;
            outcome.yielded = yielded;
            released.extend(objects);
            self.looks.reset();
        }
        if state.locks_released && self.lane.number == 0 {
            released.extend(locks::take_released(spi)?);
            crash::point("turn-take-released");
        }
        // Answers that are held up count too: they are in memory. There are never more than half as many as threads.
        let max_calls = (guc::MAX_IN_FLIGHT.get() as usize).min(self.threads).saturating_sub(self.held_up().count());
        let max_bytes = guc::MAX_IN_FLIGHT_KB.get() as usize * 1024;
        let instant = Instant::now();
        let admits = |worker| self.breakers.admits(worker, instant);
        let mut room = Room::new(&self.in_flight, max_calls, max_bytes, &workers, admits);
        if work.claim > 0 && !self.paused {
            self.look_through(spi, &mut outcome)?;
        }
        let mut batch = Batch::new(self, spi, mode, now, ends);
        batch.released(released)?;
        batch.process(items)?;
        batch.dispatch(&mut room)?;
        let wrote = batch.save()?;
        batch.save_matching(items)?;
        if work.claim > 0 {
            batch.offer_locks(&room)?;
        }
        let earliest = batch.ends.earliest;
        // What this turn itself has made due is to be claimed at once, if it was not dispatched.
        let own = earliest.is_some_and(|due| due <= batch.now) || !batch.offered.is_empty();
        let vain = vain && !own && batch.scheduler.looks.are_vain();
        batch.claim(&mut room, if vain { 0 } else { work.claim })?;
        let now = batch.now;
        outcome.drained = batch.drained.take();
        let all_drained = outcome.drained.as_ref().is_some_and(|drained| drained.len() == workers.len());
        outcome.nothing_left = all_drained && batch.unsettled.is_empty();
        batch.finish(&mut outcome)?;
        if !wrote || plant::is(Plant::AsyncResults) {
            // Leases and attempt counters alone: losing them in a crash costs an attempt that is allowed anyway.
            identity::set_local(c"synchronous_commit", c"off")?;
        }
        let ids: Vec<_> = workers.iter().map(|w| w.0).collect();
        self.next_due = match self.paused {
            true => None,
            false if vain => earliest.into_iter().chain(self.next_due).min(),
            false => claim::next_due(spi, self.lane, &ids, now)?,
        };
        Ok(Transacted::Done(Box::new(outcome)))
    }

    /// Calls that wait for a worker that can't be reached, but whose process types have moved to another one, would not
    /// be found as long as the breaker is open.
    fn look_through(&mut self, spi: &spi::Spi, outcome: &mut Outcome) -> Result<()> {
        for (worker, after) in self.breakers.to_look_through() {
            let up_to = claim::follow_types(spi, self.lane, worker, after)?;
            outcome.more |= up_to.is_some();
            self.looks.reset();
            self.breakers.looked_through(worker, up_to);
        }
        Ok(())
    }

    fn follow_up(
        &mut self,
        context: &mut Context,
        items: Vec<Item>,
        outcome: Box<Outcome>,
        submit: &mut dyn FnMut(Call),
    ) -> Progress {
        if !outcome.calls.is_empty() {
            crash::point(if items.is_empty() { "claim-call" } else { "commit-dispatch" });
        }
        let now = Instant::now();
        let mut more = false;
        self.looks.settle(outcome.ends);
        if let Some(watch) = outcome.watch {
            self.watch = watch;
        }
        let looked = outcome.drained.is_some();
        if let Some(drained) = outcome.drained {
            self.drained = drained;
        }
        outcome.yielded.iter().for_each(|key| {
            self.yielding.remove(key);
        });
        let mut settled = outcome.settled;
        settled.resize(items.len(), Settled::Done);
        self.held_up_since.retain(|_, since| since.elapsed() < FORGOTTEN_AFTER);
        for (item, settled) in items.into_iter().zip(settled) {
            let id = item.execution();
            if matches!(settled, Settled::Locked | Settled::RowLocked | Settled::Table(_))
                && let Some(key) = self.must_yield(&item, &outcome.waited_for)
            {
                more |= self.yielding.insert(key);
                continue;
            }
            match settled {
                Settled::Done => {
                    if let Item::Answer(record, _) = &item {
                        self.held_up_since.remove(&record.key);
                    }
                    self.executions.clear(&id);
                }
                Settled::Locked | Settled::Behind => {
                    if settled == Settled::Locked {
                        self.executions.defer(id, now, Patience::Short);
                    }
                    if item.is_in_memory_only() {
                        self.waiting.push_back(item);
                    }
                }
                Settled::RowLocked => {
                    self.executions.defer(id, now, Patience::Long);
                    self.waiting.push_back(item);
                }
                Settled::Table(relation) => {
                    self.executions.defer_until(id, self.tables.busy_until(relation).unwrap_or(now));
                    if item.is_in_memory_only() {
                        self.waiting.push_back(item);
                    }
                }
                // The other lane makes the call again.
                Settled::GivenAway => {}
            }
        }
        more |= outcome.more || !outcome.failed.is_empty();
        self.waiting.extend(outcome.failed);
        let calls = outcome.calls.len() as i64;
        for (mut call, record) in outcome.calls {
            crate::pg::shmem::call::started(context.database, context.lane, record.worker_id);
            let ticket = self.breakers.begin(record.worker_id, &self.registry);
            call.tag = self.in_flight.insert(record, ticket);
            submit(call);
        }
        self.give_up_what_is_too_much();
        let now = Instant::now();
        more |= self.waiting.iter().any(|item| !self.executions.is_deferred(&item.execution(), now));
        if self.other_lane_has_tasks && self.lane.number == 0 {
            context.request_set_aside();
        }
        self.executions.forget_old(now);
        context.slot.add_calls(calls);
        let nothing_waits = self.waiting.is_empty() && self.yielding.is_empty() && self.executions.next(now).is_none();
        if outcome.nothing_left && nothing_waits && !more {
            self.looks.nothing_left();
        } else if more || (looked && !outcome.nothing_left) {
            self.looks.look_again();
        }
        self.looks.until(self.next_due.map(|at| Duration::from_micros(at.since(clock::now()).max(0) as u64)));
        if more { Progress::More } else { Progress::Idle }
    }

    /// Items that wait because somebody has locked what they need.
    fn held_up(&self) -> impl Iterator<Item = &Item> {
        let now = Instant::now();
        self.waiting.iter().filter(move |item| self.executions.is_deferred(&item.execution(), now))
    }

    /// Whoever holds a great many rows must not fill the engine with answers that wait for them: the oldest are given
    /// up, and their calls are made again some time later.
    fn give_up_what_is_too_much(&mut self) {
        let now = Instant::now();
        let mut too_many = self.held_up().count().saturating_sub(self.threads.div_ceil(2));
        let (executions, yielding) = (&mut self.executions, &mut self.yielding);
        self.waiting.retain(|item| match item {
            Item::Answer(record, _) if too_many > 0 && executions.is_deferred(&record.key.0, now) => {
                too_many -= 1;
                yielding.insert(record.key);
                executions.defer_until(record.key.0, now + GIVEN_UP_FOR);
                false
            }
            _ => true,
        });
    }

    /// Notes what a worker answered.
    pub fn answered(&mut self, context: &Context, finished: crate::http::Finished) {
        let Some((record, ticket)) = self.in_flight.remove(finished.tag) else { return };
        self.breakers.end(record.worker_id, ticket, &finished.outcome, jitter());
        let answered = calls::decode(record.api, &finished.outcome);
        let succeeded = !matches!(answered, Answered::Failed(_));
        let latency = finished.elapsed.as_micros() as i64;
        crate::pg::shmem::call::finished(context.database, context.lane, record.worker_id, succeeded, latency);
        self.waiting.push_back(Item::Answer(record, answered));
    }

    /// Nothing new is taken up, and nothing of what was is left to be done.
    pub fn is_paused_and_done(&self) -> bool {
        let in_hand = self.in_flight.len() + self.waiting.len() + self.yielding.len() + self.watch.objects.len();
        self.paused && in_hand == 0
    }

    /// How long there is nothing to do, if nobody wakes the scheduler.
    pub fn idle_for(&self) -> Duration {
        let poll = Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64);
        let now = Instant::now();
        let deferred = self.executions.next(now).map(|at| at - now);
        let due = self.next_due.map(|at| Duration::from_micros(at.since(clock::now()).max(0) as u64));
        let breakers = self.breakers.next_change(now).map(|at| at - now);
        [Some(poll), deferred, due, breakers].into_iter().flatten().min().unwrap_or(poll)
    }
}
