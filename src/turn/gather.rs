//! Gathers what there is to decide about, besides the answers that have come in: due timers, messages, and states that may
//! take messages of global queues.

use super::attribute_locks::AttributeLocks;
use super::backlog::Backlog;
use super::global_queues::Matching;
use super::item::Item;
use super::memory::{OpenCalls, Seen};
use super::scans::{ScanEnds, Scans, poll_interval};
use super::transaction::{Started, Turn};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::store::claim::{RUNNERS_LANE, SCHEDULERS_LANE, TaskPlace};
use crate::store::registry::{Registry, WorkerId};
use crate::store::{StateKey, claim, global_queue, lines, load};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;

/// How often to look for calls of workers that are gone, besides when registrations change.
const ADOPT_EVERY: Duration = Duration::from_secs(60);

/// What was found.
pub struct Work {
    /// How far the scans came.
    pub ends: ScanEnds,
    /// A scan for due calls would find nothing.
    pub nothing_due: bool,
    /// There is more to do at once.
    pub more: bool,
    /// Calls whose leases were given up.
    pub yielded: Vec<StateKey>,
    pub moved: Moved,
    /// Ids of the registered workers.
    pub workers: Vec<WorkerId>,
}

/// What followed registrations in this turn. It counts once the turn has committed.
#[derive(Default)]
pub struct Moved {
    /// Calls of workers that are gone were looked for, and these are all.
    pub adopted: Option<bool>,
    /// How far calls that wait for workers which can't be reached were looked through; None: to the end.
    pub looked_through: Vec<(WorkerId, Option<TaskPlace>)>,
}

/// The parts of a scheduler's memory that gathering reads and writes.
pub struct Gathering<'m> {
    pub registry: &'m mut Registry,
    pub backlog: &'m mut Backlog,
    pub matching: &'m mut Matching,
    pub scans: &'m mut Scans,
    pub seen: &'m mut Seen,
    pub locks: &'m mut AttributeLocks,
    pub calls: &'m OpenCalls,
}

impl Gathering<'_> {
    /// Adds what is due to `items`. States that messages of global queues may satisfy come first: who begins to wait in this
    /// turn comes after those who wait. What uses users' tables comes last, so that it does not hold up the rest.
    pub fn gather(&mut self, started: &Started, items: &mut Vec<Item>) -> Result<Work> {
        let turn = &started.turn;
        let workers: Vec<_> = self.registry.workers().iter().map(|worker| worker.0).collect();
        let mut work = Work {
            ends: ScanEnds::new(turn.began_at),
            nothing_due: false,
            more: false,
            yielded: Vec::new(),
            moved: Moved::default(),
            workers,
        };
        let may_be_idle = turn.scope.gather && !started.has_global_work && !started.has_work_for_runners;
        work.nothing_due = may_be_idle && (self.scans.are_idle() || self.nothing_is_due(turn, &work.workers)?);
        self.matching.begin_turn(turn.scope.gather);
        if turn.scope.gather && !work.nothing_due && !turn.paused {
            let busy = self.backlog.executions.keys(Instant::now());
            let limit = guc::CLAIM_BATCH.get() as usize;
            self.scan(turn, &busy, limit, items, &mut work)?;
            if started.has_global_work {
                let gathered = global_queue::gather(turn.spi, turn.began, &busy, limit)?;
                items.splice(0..0, gathered.states.iter().map(|key| Item::Waiter(*key)));
                self.matching.gathered(gathered);
            }
        }
        tables_last(items);
        self.follow_registrations(turn, started.registered, &mut work)?;
        if turn.scope.gather && started.has_mended_calls && !turn.paused {
            work.more |= claim::take_back_from_runners(turn.spi, turn.real)?;
            crash::point("turn-take-back");
            self.scans.reset();
        }
        self.yield_calls(turn, &mut work)?;
        if turn.role.grants_locks() {
            self.locks.release_over(turn.spi)?;
        }
        Ok(work)
    }

    /// Whether one statement in place of one for each scan shows that there is nothing. For idle engines.
    fn nothing_is_due(&mut self, turn: &Turn, workers: &[WorkerId]) -> Result<bool> {
        let began = Instant::now();
        let may_scan = self.scans.may_scan_all(began) && self.scans.are_quiet();
        if turn.paused || !may_scan || self.seen.next_due.is_some_and(|due| due <= turn.began) {
            return Ok(false);
        }
        let (earliest, any_messages) = lines::earliest(turn.spi, turn.lane, workers)?;
        if any_messages || earliest.is_some_and(|due| due <= turn.began) {
            // The scans that follow are to be made from the head, as this one was.
            return Ok(false);
        }
        self.scans.scanned_all(began);
        self.scans.nothing_left(turn.began_at);
        self.seen.next_due = earliest;
        Ok(true)
    }

    /// Adds due timers, and executions with messages in the inbox.
    fn scan(
        &mut self,
        turn: &Turn,
        busy: &[ExecutionId],
        limit: usize,
        items: &mut Vec<Item>,
        work: &mut Work,
    ) -> Result<()> {
        let began = Instant::now();
        let from_head = self.scans.timers.from_head(began);
        let from = self.scans.timers.from(&()).filter(|_| !from_head);
        let timers = load::due_timers(turn.spi, turn.began, busy, limit, from)?;
        let after_timers = Instant::now();
        if from_head {
            self.scans.timers.scanned_from_head(after_timers, after_timers - began, poll_interval());
        }
        let from_head = self.scans.messages.from_head(after_timers);
        let from = self.scans.messages.from(&()).filter(|_| !from_head);
        let arrived = load::executions_with_arrivals(turn.spi, busy, limit, from)?;
        if from_head {
            let ended = Instant::now();
            self.scans.messages.scanned_from_head(ended, ended - after_timers, poll_interval());
        }
        let last_timer = timers.last().filter(|_| timers.len() == limit);
        work.ends.timers = Some(last_timer.map_or(turn.began, |last| last.fire_at));
        work.ends.messages = arrived.last;
        work.more |= timers.len() == limit || arrived.more;
        items.extend(arrived.executions.into_iter().map(Item::Arrivals));
        items.extend(timers.into_iter().map(Item::Timer));
        Ok(())
    }

    /// Calls follow their process types to other workers.
    fn follow_registrations(&mut self, turn: &Turn, registered: bool, work: &mut Work) -> Result<()> {
        if registered || self.scans.adopted.is_none_or(|at| at.elapsed() > ADOPT_EVERY) {
            let mut more = false;
            if turn.role.gathers() {
                // A call may commit under a worker that was unregistered meanwhile.
                more |= claim::adopt_orphans(turn.spi, SCHEDULERS_LANE, &work.workers)?;
                more |= claim::adopt_orphans(turn.spi, RUNNERS_LANE, &work.workers)?;
            }
            work.more |= more;
            work.moved.adopted = Some(!more);
            self.scans.reset();
        }
        if turn.scope.claim == 0 || turn.paused {
            return Ok(());
        }
        // What waits for a worker that can't be reached, and whose process type has moved to another one, would not be found
        // as long as the breaker is open.
        for (worker, after) in self.calls.breakers.to_look_through() {
            let up_to = claim::follow_types(turn.spi, turn.lane, worker, after)?;
            work.more |= up_to.is_some();
            self.scans.reset();
            work.moved.looked_through.push((worker, up_to));
        }
        Ok(())
    }

    /// Gives up the leases of calls whose answers were dropped: the calls are made again, as the same attempt. A call whose
    /// task somebody has locked is left for the next turn.
    fn yield_calls(&mut self, turn: &Turn, work: &mut Work) -> Result<()> {
        if self.backlog.yielding.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = self.backlog.yielding.iter().copied().collect();
        claim::release(turn.spi, turn.lane.epoch, &keys)?;
        crash::point("turn-yield");
        let leased = load::leases(turn.spi, &keys)?;
        let is_left = |key: &StateKey| leased.get(key).is_some_and(|(epoch, _)| *epoch == turn.lane.epoch);
        work.yielded = keys.into_iter().filter(|key| !is_left(key)).collect();
        // What they would have closed is not about to close any more: nobody shall wait for it.
        let ids: Vec<_> = work.yielded.iter().map(|key| key.0).collect();
        load::unmark_closing(turn.spi, Some(&ids))?;
        work.yielded.iter().for_each(|key| self.locks.release(*key));
        self.scans.reset();
        Ok(())
    }
}

/// Puts items that use users' tables behind all others. The items of one execution keep their order.
fn tables_last(items: &mut [Item]) {
    let with_tables: HashSet<_> = items.iter().filter(|item| item.uses_tables()).map(Item::execution).collect();
    if !with_tables.is_empty() {
        items.sort_by_cached_key(|item| with_tables.contains(&item.execution()));
    }
}
