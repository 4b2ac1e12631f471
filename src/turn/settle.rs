//! The work after the commit: submits requests, keeps items that wait, moves the cursors, and says when the next turn
//! is due.
//!
//! Limitations: nothing here is in the tables. If the process ends before the requests are submitted, the leases become
//! void.

use super::gather::Work;
use super::item::{Item, ItemOutcome};
use super::memory::{LastTurn, Memory, OpenCalls, Submit};
use super::next::{Next, Why};
use super::prepare::{Prepared, Requests};
use super::role::{Role, max_in_flight, max_runners, runners_for};
use super::save::Saved;
use super::scans::PullScan;
use super::types::Started;
use crate::calls::{Answered, CallRecord};
use crate::clock;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::process;
use crate::pg::session::Session;
use crate::pg::shmem::counters::{self, OfEngine};
use crate::pg::shmem::{self, Slot, held_up, held_up::LockOn};
use crate::store::StateKey;
use crate::store::lines::{self, ForRunners};
use crate::store::loaded::Loaded;
use crate::store::registry::{NO_WORKER, Registry};
use crate::transport::Request;
use std::collections::HashSet;
use std::time::Instant;
use xdb_engine::{Duration, Timestamp};
use xdb_sched::backoff::Patience;
use xdb_sched::lines::Lines;
use xdb_sched::room::places_of_request;

/// Answers for which a turn had no time rest for one part in `REST` of the turn's time for tables. In this time another
/// call can be made and answered.
const REST: u32 = 10;

/// What a transaction did. [`Memory::settle`] reads it after the commit.
pub struct TurnOutcome {
    work: Work,
    saved: Saved,
    /// With the ends of all scans.
    prepared: Prepared,
    /// When the next call is due.
    due: Next,
    /// The time up to which timers were scanned for.
    began: Timestamp,
    /// The runners that should run for waiting calls.
    for_runners: Vec<Role>,
}

impl TurnOutcome {
    /// Sums up a turn, and reads when the next call is due.
    pub fn of(
        started: &Started,
        seen: &LastTurn,
        lines: &Lines,
        work: Work,
        saved: Saved,
        mut prepared: Prepared,
    ) -> Result<Self> {
        let turn = &started.turn;
        if let Some(left) = saved.messages_left {
            prepared.ends.messages.values_mut().for_each(|end| end.left(left));
        }
        prepared.ends.left_out |= saved.left_out;
        let idle = work.nothing_due && prepared.drained.is_none();
        let due = match turn.paused {
            true => Next::default(),
            false if idle => seen.due.min(Next::due(saved.earliest, Why::Calls)),
            false => {
                let next = lines::next_due(turn.spi, turn.role.lane(), lines.levels(), saved.now)?;
                Next::due(next, Why::Calls)
            }
        };
        let most = max_runners();
        let waiting = match started.has_work_for_runners && turn.role.gathers() && !turn.paused {
            true => {
                let workers: Vec<_> = work.workers.iter().copied().chain([NO_WORKER]).collect();
                lines::for_runners(turn.spi, &workers, (saved.now, turn.real), most)?
            }
            false => ForRunners::default(),
        };
        // A runner in a function can't call another one meanwhile.
        let busy = Slot::mine().map_or(0, |mine| mine.owners_of_functions().count());
        let functions = if waiting.functions > 0 { waiting.functions + busy } else { 0 };
        let for_runners = runners_for(waiting.workers, functions, turn.has_slow_steps, most);
        let due = due.min(Next::due(waiting.next, Why::Calls));
        let began = turn.began;
        Ok(Self { work, saved, prepared, due, began, for_runners })
    }
}

impl Memory {
    /// Settles a committed turn. Returns when the next one is due.
    pub(super) fn settle(
        &mut self,
        session: &Session,
        items: Vec<Item>,
        outcome: TurnOutcome,
        submit: &mut Submit<'_>,
    ) -> Next {
        let TurnOutcome { work, saved, mut prepared, due, began, for_runners } = outcome;
        self.note_useless(&work.over, &saved);
        self.seen.for_runners = for_runners;
        for (item, outcome) in items.iter().zip(&saved.outcomes) {
            if let (Item::Timer(timer), ItemOutcome::NextTurn) = (item, outcome) {
                prepared.ends.timers.entry(timer.owner.to_u32()).and_modify(|end| end.left(timer.fire_at));
            }
        }
        self.scans.settle(prepared.ends, saved.timers, self.seen.began_at);
        // The clock may have been set back meanwhile.
        let now = began.min(clock::now());
        // Without a scan, a timer may be due: the clock may have been set forward since the last one.
        let scanned_up_to = if work.nothing_due { Timestamp(i64::MIN) } else { now };
        let next_timer = self.scans.timers.owners.next(scanned_up_to).filter(|_| !self.seen.paused);
        let pause_ends = self.scans.pauses.next_end.flatten().filter(|at| *at > now && !self.seen.paused);
        self.seen.due = due.min(Next::due(next_timer, Why::Timers)).min(Next::due(pause_ends, Why::Pauses));
        let all_taken = saved.not_done.is_empty() && prepared.requests.released.is_empty();
        let nothing_left = prepared.drained.map(|drained| self.calls.lines.drained(&drained) && all_taken);
        work.yielded.iter().for_each(|key| {
            self.backlog.yielding.remove(key);
        });
        if let Some(all) = work.moved.adopted {
            self.scans.adopted = all.then(Instant::now);
        }
        if let Some(to_judge) = work.moved.to_judge {
            self.to_judge = to_judge;
        }
        if let Some(walk) = work.moved.parked {
            self.scans.pauses.walk = walk;
        }
        for (worker, up_to) in work.moved.checked {
            self.calls.breakers.checked(worker, up_to);
        }
        if let Some(up_to) = work.moved.pull_worker
            && let Some(scan) = self.scans.pull_workers.pop()
        {
            let left = up_to.filter(|_| scan.to_the_end).map(|place| PullScan { after: Some(place), ..scan });
            self.scans.pull_workers.extend(left);
        }
        let mut next = work.next.min(saved.next).min(prepared.next);
        let calls = self.keep_prepared(prepared.requests, !items.is_empty());
        next.now_if(self.keep_waiting(items, saved.outcomes), Why::Calls);
        self.backlog.give_up_beyond(max_in_flight().div_ceil(2));
        self.backlog.forget_old();
        next.now_if(self.backlog.is_ready(), Why::Answers);
        // Before the requests go out: after that, a session may lock what a call wants.
        self.locks.mark(session);
        self.calls.submit(session, self.role, &self.registry, calls, submit);
        let nothing_waits = self.backlog.is_empty() && self.backlog.executions.next(Instant::now()).is_none();
        let next = next.min(self.next());
        self.scans.rest(nothing_left.filter(|nothing_left| nothing_waits || !nothing_left), next);
        next
    }

    /// Records the calls under way that are over: sessions have ended them, or this turn has closed their processes or
    /// aborted their steps.
    fn note_useless(&mut self, over: &HashSet<StateKey>, saved: &Saved) {
        let closed = |loaded: &Loaded| loaded.before.is_running() && !loaded.execution.is_running();
        let aborts = |loaded: &Loaded| loaded.aborted().next().is_some();
        if over.is_empty() && !saved.executions.values().any(|loaded| closed(loaded) || aborts(loaded)) {
            return;
        }
        let has_ended = |(id, seq): &StateKey| {
            saved.executions.get(id).is_some_and(|loaded| {
                let step = loaded.execution.states.get(seq);
                closed(loaded) || step.is_some_and(|step| !step.status().is_live())
            })
        };
        let is_useless = |key: &StateKey| over.contains(key) || has_ended(key);
        let OpenCalls { in_flight, useless, .. } = &mut self.calls;
        useless.extend(in_flight.iter().filter(|(_, (record, _))| is_useless(&record.key)).map(|(tag, _)| tag));
    }

    /// Keeps failed attempts and functions in the backlog, and returns the calls to submit. `after_items`: the turn has
    /// applied items.
    fn keep_prepared(&mut self, requests: Requests, after_items: bool) -> Vec<(Request, CallRecord)> {
        let Requests { calls, functions, failed, released, .. } = requests;
        if !calls.is_empty() || !functions.is_empty() {
            crash::point(if after_items { "commit-dispatch" } else { "claim-call" });
        }
        released.iter().for_each(|key| self.locks.release(*key));
        self.locks.settle();
        self.backlog.keep_all(failed);
        self.backlog.keep_all(functions.into_iter().map(|record| Item::Answer(record, Answered::Uncalled)).collect());
        calls
    }

    /// Keeps the items that wait. Returns whether answers were given up, whose calls are to be made again.
    fn keep_waiting(&mut self, items: Vec<Item>, outcomes: Vec<ItemOutcome>) -> bool {
        let (mut given_up, mut had_no_time) = (false, false);
        for (item, outcome) in items.into_iter().zip(outcomes) {
            let id = item.execution();
            let held_up = outcome.held_up_by();
            if let Some((lock, table)) = held_up.filter(|_| !self.registry.is_deferred(id)) {
                held_up::note(id.0, lock, table);
            }
            if let (Some((lock, _)), Item::Answer(record, _)) = (held_up, &item)
                && record.reads.is_some()
            {
                let by_a_row = lock == LockOn::Row;
                self.locks.held_up(record.key, self.backlog.is_left_to(record.key, by_a_row));
                if self.backlog.yields(record.key, self.locks.is_waited_for(&record.key)) {
                    given_up = true;
                    continue;
                }
            }
            match outcome {
                ItemOutcome::Done => {
                    match &item {
                        Item::Answer(record, _) => self.backlog.done(&record.key),
                        Item::Timer(timer) => {
                            let late = Duration(clock::now().since(timer.fire_at)).as_std();
                            counters::count_time(process::database(), OfEngine::Timers, late);
                        }
                        _ => {}
                    }
                    self.backlog.went_well(&id);
                    continue;
                }
                ItemOutcome::GivenAway => continue,
                ItemOutcome::Behind => {}
                ItemOutcome::Locked => self.backlog.defer_as_registered(id, &self.registry),
                ItemOutcome::OverBudget | ItemOutcome::NextTurn => {
                    had_no_time |= outcome == ItemOutcome::OverBudget;
                    self.backlog.postpone(id);
                }
                ItemOutcome::RowLocked(_) => self.backlog.defer(id, Patience::Long),
                ItemOutcome::TableBusy(relation) => {
                    let until = self.tables.health.busy_until(relation).unwrap_or_else(Instant::now);
                    self.backlog.defer_until(id, until);
                }
            }
            self.backlog.keep(item);
        }
        // A turn within such a rest has spent no time in tables, so no rest follows it.
        if had_no_time && !self.backlog.rests(self.seen.began_at) {
            self.backlog.rest(Instant::now() + self.role.time_in_tables() / REST);
        }
        given_up
    }
}

impl OpenCalls {
    /// Hands requests to the transport, all at once, and records them as under way.
    pub fn submit(
        &mut self,
        session: &Session,
        role: Role,
        registry: &Registry,
        calls: Vec<(Request, CallRecord)>,
        submit: &mut Submit<'_>,
    ) {
        if calls.is_empty() {
            return;
        }
        session.slot.add_calls(calls.len() as i64);
        let requests = calls.into_iter().map(|(mut request, record)| {
            shmem::call::started(session.database, session.role, record.worker_id);
            let ticket = self.breakers.begin(record.worker_id, registry);
            let places = places_of_request(request.body.len(), role.calls_at_once());
            request.tag = self.in_flight.insert(record.line(), places, (record, ticket));
            request
        });
        let requests = requests.collect();
        submit(requests, self.in_flight.len());
    }
}
