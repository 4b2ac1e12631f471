//! Finds the work of a turn besides the answers that have come in: due timers, messages, and steps that messages of
//! global queues may satisfy. Also moves calls after registrations and pauses.
//!
//! Limitations: a turn gathers at most 256 items of each kind. Runners gather nothing.

use super::attribute_locks::AttributeLocks;
use super::backlog::Backlog;
use super::global_queues::Matching;
use super::item::Item;
use super::memory::{LastTurn, OpenCalls};
use super::next::{Next, Why};
use super::process_locks::ToJudge;
use super::scans::{End, PullScan, ScanEnds, Scans, poll_interval};
use super::types::{Started, Turn};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::store::claim::{self, TaskPlace};
use crate::store::lanes::{RUNNERS_LANE, SCHEDULERS_LANE};
use crate::store::parked::{self, Walk};
use crate::store::registry::{NO_WORKER, Registry, WorkerId};
use crate::store::{StateKey, execution, global_waiter, inbox, lines, locks, pauses, timer};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;
use xdb_sched::due_owners::{InTurns, in_turns, share};
use xdb_sched::room::Owner;

/// How often calls of unregistered workers are adopted, besides after each change of registrations.
const ADOPT_EVERY: Duration = Duration::from_secs(60);

/// The work that gathering has found. The later phases read it.
#[derive(Default)]
pub struct Work {
    /// How far the scans came.
    pub ends: ScanEnds,
    /// A scan for due calls would find nothing.
    pub nothing_due: bool,
    /// When this phase wants the next turn.
    pub next: Next,
    /// Calls whose leases were given up. `settle` removes them from the backlog.
    pub yielded: Vec<StateKey>,
    /// Calls under way that sessions have ended. `settle` cancels their requests.
    pub over: HashSet<StateKey>,
    /// The calls that were moved.
    pub moved: Moved,
    /// Ids of the registered workers.
    pub workers: Vec<WorkerId>,
}

/// Progress of the work after registrations and pauses in this turn. It counts once the turn has committed.
#[derive(Default)]
pub struct Moved {
    /// Calls of unregistered workers were adopted. True: none are left.
    pub adopted: Option<bool>,
    /// How far the walk through parked calls came.
    pub parked: Option<Walk>,
    /// How far the calls of each worker that can't be reached were checked for a new worker. None: to the end.
    pub checked: Vec<(WorkerId, Option<TaskPlace>)>,
    /// How far the calls of the last pull worker of [`Scans::pull_workers`] were checked. None: to the end.
    pub pull_worker: Option<Option<TaskPlace>>,
    /// Locks of processes that are left to judge.
    pub to_judge: Option<ToJudge>,
}

/// The parts of a process's memory that gathering reads and writes.
pub struct Gathering<'m> {
    pub registry: &'m mut Registry,
    pub backlog: &'m mut Backlog,
    pub matching: &'m mut Matching,
    pub scans: &'m mut Scans,
    pub seen: &'m mut LastTurn,
    pub locks: &'m mut AttributeLocks,
    pub calls: &'m OpenCalls,
}

impl Gathering<'_> {
    /// Adds the due work to `items`. Steps that messages of global queues may satisfy come first: they have waited
    /// longer than a step that begins to wait in this turn. Items that use the application's tables come last, so that
    /// they don't delay the rest.
    pub fn gather(&mut self, started: &Started, items: &mut Vec<Item>) -> Result<Work> {
        let turn = &started.turn;
        let workers: Vec<_> = self.registry.workers().iter().map(|worker| worker.0).collect();
        let mut work = Work { workers, ..Work::default() };
        if !turn.paused {
            work.next = Next::due(started.judge_at.filter(|at| *at > turn.began), Why::Locks);
        }
        let may_be_idle = turn.scope.gather && !started.has_global_work && !started.has_work_for_runners;
        work.nothing_due = may_be_idle && (self.scans.are_idle() || self.nothing_is_due(turn, &work.workers)?);
        self.matching.begin_turn(turn.scope.gather);
        if turn.scope.gather && !work.nothing_due && !turn.paused {
            let busy = self.backlog.executions.keys(Instant::now());
            let limit = guc::CLAIM_BATCH.get() as usize;
            self.scan(turn, &busy, limit, items, &mut work)?;
            if started.has_global_work {
                let gathered = global_waiter::gather(turn.spi, turn.began, &busy, limit)?;
                items.splice(0..0, gathered.states.iter().map(|key| Item::Waiter(*key)));
                self.matching.gathered(gathered);
            }
        }
        tables_last(items);
        self.follow_registrations(turn, started.registered, &mut work)?;
        if turn.scope.gather && started.has_mended_calls && !turn.paused {
            let taken = claim::take_back_from_runners(turn.spi, turn.real)?;
            work.next.now_if(taken >= claim::AT_ONCE, Why::Registrations);
            crash::point("turn-take-back");
            self.scans.reset();
        }
        self.yield_calls(turn, &mut work)?;
        // Sessions don't notify runners of calls that they end. A runner has few calls, so it always reads them.
        let any_over = if turn.role.grants_locks() { self.locks.release_over(turn.spi)? } else { true };
        if any_over && !self.calls.in_flight.is_empty() {
            let keys: Vec<_> = self.calls.in_flight.iter().map(|(_, (record, _))| record.key).collect();
            work.over = locks::over(turn.spi, &keys)?.into_iter().collect();
        }
        Ok(work)
    }

    /// Whether one statement, in place of one for each scan, shows that nothing is due. Used while the engine is idle.
    fn nothing_is_due(&mut self, turn: &Turn, workers: &[WorkerId]) -> Result<bool> {
        let began = Instant::now();
        let may_scan = self.scans.may_scan_all(began) && self.scans.are_quiet();
        if turn.paused || !may_scan || self.seen.due.at <= turn.began {
            return Ok(false);
        }
        let earliest = lines::earliest(turn.spi, turn.lane, workers)?;
        let first_timer = earliest.timers.iter().map(|(_, at)| *at).min();
        let first = Next::due(first_timer, Why::Timers).min(Next::due(earliest.call, Why::Calls));
        if earliest.any_messages || first.at <= turn.began {
            // The scans that follow must begin at the head, as this statement did.
            return Ok(false);
        }
        self.scans.scanned_all(began);
        self.scans.timers.owners.found(earliest.timers, began);
        self.seen.due = first;
        Ok(true)
    }

    /// Adds due timers, and executions with messages in the inbox, in fair shares of the owners.
    fn scan(
        &mut self,
        turn: &Turn,
        busy: &[ExecutionId],
        limit: usize,
        items: &mut Vec<Item>,
        work: &mut Work,
    ) -> Result<()> {
        let timers = self.timers(turn, busy, limit, work)?;
        let arrived = self.messages(turn, busy, limit, work)?;
        let mut seen = HashSet::new();
        let executions = arrived.into_iter().map(|arrived| arrived.execution_id).filter(|id| seen.insert(*id));
        items.extend(executions.map(Item::Arrivals));
        items.extend(timers.into_iter().map(Item::Timer));
        Ok(())
    }

    fn timers(
        &mut self,
        turn: &Turn,
        busy: &[ExecutionId],
        limit: usize,
        work: &mut Work,
    ) -> Result<Vec<timer::DueTimer>> {
        let scan = &mut self.scans.timers;
        let began = Instant::now();
        let from_head = scan.due.from_head(began);
        if from_head {
            scan.owners.found(timer::firsts(turn.spi)?, began);
        }
        let owners: Vec<_> = scan.owners.due(turn.began).collect();
        let of_each = share(limit, owners.len());
        let mut found = Vec::new();
        if !owners.is_empty() {
            let since = owners.iter().map(|owner| (*owner, scan.since(*owner, from_head)));
            found = timer::due_timers(turn.spi, turn.began, since, busy, of_each)?;
        }
        if from_head {
            let ended = Instant::now();
            scan.due.scanned_from_head(ended, ended - began, poll_interval());
        }
        let of = |timer: &timer::DueTimer| (timer.owner.to_u32(), timer.fire_at);
        let mut ends = ends(owners, Some(turn.began), of_each, &found, of);
        let taken = take(turn, found, limit, &mut ends, of);
        let all = ends.iter().filter(|(_, end)| end.first.is_none()).map(|(owner, _)| *owner);
        for (owner, next) in timer::next_timers(turn.spi, turn.began, all.collect::<Vec<_>>())? {
            ends.entry(owner).and_modify(|end| end.first = Some(next));
        }
        let more = ends.values().any(|end| end.first.is_some_and(|first| first <= turn.began));
        work.next.now_if(more, Why::Timers);
        work.ends.timers = ends;
        Ok(taken)
    }

    fn messages(
        &mut self,
        turn: &Turn,
        busy: &[ExecutionId],
        limit: usize,
        work: &mut Work,
    ) -> Result<Vec<inbox::Arrived>> {
        let scan = &mut self.scans.messages;
        let began = Instant::now();
        let from_head = scan.due.from_head(began);
        if from_head {
            scan.owners.found(inbox::firsts(turn.spi)?, began);
        }
        let of_each = share(limit, scan.owners.due(i64::MAX).count());
        let owners: Vec<_> = match from_head {
            true => scan.owners.due(i64::MAX).collect(),
            false => scan.owners.all().collect(),
        };
        let mut found = Vec::new();
        if !owners.is_empty() {
            let since = owners.iter().map(|owner| (*owner, scan.since(*owner, from_head)));
            found = inbox::arrived(turn.spi, since, busy, of_each)?;
        }
        if from_head {
            let ended = Instant::now();
            scan.due.scanned_from_head(ended, ended - began, poll_interval());
        }
        let of = |message: &inbox::Arrived| (message.owner.to_u32(), message.inbox_id);
        let last = found.last().map(|last| last.inbox_id);
        let mut ends = ends(owners, last, of_each, &found, of);
        let taken = take(turn, found, limit, &mut ends, of);
        work.next.now_if(ends.values().any(|end| end.first.is_some()), Why::Messages);
        work.ends.messages = ends;
        Ok(taken)
    }

    /// Moves calls of process types that were registered with another worker.
    fn follow_registrations(&mut self, turn: &Turn, registered: bool, work: &mut Work) -> Result<()> {
        if registered || self.scans.adopted.is_none_or(|at| at.elapsed() > ADOPT_EVERY) {
            let mut more = false;
            if turn.role.gathers() {
                // A call may be committed for a worker that was unregistered meanwhile.
                let mut registered = self.registry.registered_workers();
                more |= claim::adopt_orphans(turn.spi, SCHEDULERS_LANE, &registered)?;
                registered.push(NO_WORKER);
                more |= claim::adopt_orphans(turn.spi, RUNNERS_LANE, &registered)?;
            }
            work.next.now_if(more, Why::Registrations);
            work.moved.adopted = Some(!more);
            self.scans.reset();
            if turn.role.gathers() {
                // For a periodic check, the first calls of each worker are enough: the calls behind them wait for a
                // worker that works.
                let of = |worker| PullScan { worker, after: None, to_the_end: registered };
                self.scans.pull_workers = self.registry.pulling_workers().map(of).collect();
            }
        }
        self.follow_pauses(turn, registered, work)?;
        if turn.scope.claim == 0 || turn.paused {
            return Ok(());
        }
        // While the breaker of a worker is open, its calls are not claimed. So a call whose process type has moved
        // would not be found.
        let lane = turn.lane.number;
        for (worker, after) in self.calls.breakers.to_check() {
            let up_to = claim::follow_types(turn.spi, lane, worker, after, turn.real)?;
            work.next.now_if(up_to.is_some(), Why::Registrations);
            self.scans.reset();
            work.moved.checked.push((worker, up_to));
        }
        // The same holds for calls of a pull worker that claims none any more.
        if let Some(PullScan { worker, after, .. }) = self.scans.pull_workers.last().copied() {
            let up_to = claim::follow_types(turn.spi, lane, worker, after, turn.real)?;
            work.next.now_if(true, Why::Registrations);
            self.scans.reset();
            work.moved.pull_worker = Some(up_to);
        }
        Ok(())
    }

    /// Resumes parked calls whose pause is over, slice by slice. A scheduler also does so at its start.
    fn follow_pauses(&mut self, turn: &Turn, registered: bool, work: &mut Work) -> Result<()> {
        if !turn.role.gathers() {
            return Ok(());
        }
        let pauses = &mut self.scans.pauses;
        if registered || pauses.next_end.is_none() {
            pauses.next_end = Some(pauses::next_end(turn.spi)?.flatten());
            pauses.walk = Walk::Begins;
        }
        if turn.paused || !turn.scope.gather {
            return Ok(());
        }
        if pauses.next_end.flatten().is_some_and(|at| at <= turn.began) {
            // The end of a pause counts as a registration: its consequences belong to the next turn.
            work.next.now_if(pauses::end(turn.spi, turn.began)?, Why::Pauses);
        }
        if let Some(walked) = parked::walk(turn.spi, pauses.walk, turn.began)? {
            work.next.now_if(matches!(walked, Walk::After { .. }), Why::Pauses);
            work.moved.parked = Some(walked);
            self.scans.reset();
        }
        Ok(())
    }

    /// Gives up the leases of calls whose answers were dropped. The calls are made again, as the same attempt. A call
    /// whose task is locked is left for the next turn.
    fn yield_calls(&mut self, turn: &Turn, work: &mut Work) -> Result<()> {
        if self.backlog.yielding.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = self.backlog.yielding.iter().copied().collect();
        claim::release(turn.spi, &keys, turn.lane.epoch)?;
        crash::point("turn-yield");
        let leased = claim::leases(turn.spi, &keys)?;
        let is_left = |key: &StateKey| leased.get(key).is_some_and(|(epoch, _)| *epoch == turn.lane.epoch);
        work.yielded = keys.into_iter().filter(|key| !is_left(key)).collect();
        // The dropped answers no longer close these executions, so no session should wait for a close.
        let ids: Vec<_> = work.yielded.iter().map(|key| key.0).collect();
        execution::unmark_closing(turn.spi, &ids)?;
        work.yielded.iter().for_each(|key| self.locks.release(*key));
        self.scans.reset();
        Ok(())
    }
}

/// How far a scan came that read up to `of_each` rows of each of these owners, due up to `to`. An owner with that many
/// may have more.
fn ends<I, T: Ord + Copy>(
    owners: Vec<Owner>,
    to: Option<T>,
    of_each: usize,
    found: &[I],
    of: impl Fn(&I) -> (Owner, T),
) -> HashMap<Owner, End<T>> {
    let mut counts = HashMap::<Owner, usize>::new();
    let mut ends: HashMap<_, _> =
        owners.into_iter().map(|owner| (owner, End { to, first: None, any: false })).collect();
    for item in found {
        let (owner, at) = of(item);
        let count = counts.entry(owner).or_default();
        *count += 1;
        if let Some(end) = ends.get_mut(&owner) {
            end.any = true;
            if *count == of_each {
                end.left(at);
            }
        }
    }
    ends
}

/// What the turn takes of the found rows, of each owner in turn. The position of the first row that is left goes into
/// `ends`.
fn take<I, T: Ord + Copy>(
    turn: &Turn,
    found: Vec<I>,
    limit: usize,
    ends: &mut HashMap<Owner, End<T>>,
    of: impl Fn(&I) -> (Owner, T),
) -> Vec<I> {
    let InTurns { taken, left } = in_turns(found, limit, turn.number, of);
    for (owner, at) in left {
        if let Some(end) = ends.get_mut(&owner) {
            end.left(at);
        }
    }
    taken
}

/// Moves items that use the application's tables behind all others. The items of one execution keep their order.
fn tables_last(items: &mut [Item]) {
    let with_tables: HashSet<_> = items.iter().filter(|item| item.uses_tables()).map(Item::execution).collect();
    if !with_tables.is_empty() {
        items.sort_by_cached_key(|item| with_tables.contains(&item.execution()));
    }
}
