//! Writes what a turn has decided. Calls that follow from it, and that may be made at once, are leased here and written
//! with their leases. So no scan is needed for them.
//!
//! Limitations: functions, retries and calls that want locks are not leased here. `claim` leases them.

use super::app_tables::AppTables;
use super::attribute_locks::AttributeLocks;
use super::claim::{LeasedCall, config, lease};
use super::decide::Decided;
use super::global_queues::Matching;
use super::item::{Item, ItemOutcome};
use super::next::{Next, Why};
use super::owners::UnfitOwners;
use super::process_locks::Granted;
use super::types::Turn;
use crate::calls::{Loads, Maker, Verdict};
use crate::pg::catch::Result;
use crate::pg::{crash, wake};
use crate::store::claim::{self, Lease};
use crate::store::lanes::RUNNERS_LANE;
use crate::store::loaded::{self, Loaded};
use crate::store::save::{self, SavedBatch};
use crate::store::{StateKey, execution, global_waiter, inbox, lines, timer};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::lines::{Level, Lines};
use xdb_sched::room::{Owner, Room};

/// What was written, and the calls that were leased with it.
pub struct Saved {
    /// One for each item.
    pub outcomes: Vec<ItemOutcome>,
    /// The executions as they are now.
    pub executions: BTreeMap<ExecutionId, Loaded>,
    /// Calls that got their leases here.
    pub dispatched: Vec<LeasedCall>,
    /// Executions with items that are not done. Claiming leaves them out.
    pub not_done: Vec<ExecutionId>,
    /// The earliest due time of what was written.
    pub earliest: Option<Timestamp>,
    /// The earliest due time of each owner's timers that were written.
    pub timers: BTreeMap<Owner, Timestamp>,
    /// The first message that was left in the inbox, because there were too many. None: no message was left.
    pub messages_left: Option<i64>,
    /// Something was left that only a scan from the head may find: an item that waits for the next turn, or a call in
    /// an unknown line.
    pub left_out: bool,
    /// Whether processes with locks have closed.
    pub released: bool,
    /// Whether anything was written besides leases. If not, the commit may be asynchronous.
    pub wrote: bool,
    /// When this phase wants the next turn.
    pub next: Next,
    /// The time of the turn's events.
    pub now: Timestamp,
}

impl Saved {
    /// Adds what was written to grant locks of processes, after this phase.
    pub fn note(&mut self, granted: &Granted) {
        if granted.any {
            self.earliest = Some(self.now);
        }
        self.wrote |= granted.wrote;
        self.next = self.next.min(granted.next);
    }
}

/// Leases calls, and writes the difference between the executions as they were loaded and as they are now.
pub fn save(
    turn: &Turn,
    app: &AppTables,
    matching: &Matching,
    locks: &mut AttributeLocks,
    lines: &Lines,
    room: &mut Room,
    decided: Decided,
) -> Result<Saved> {
    let (leased, above) = (Vec::new(), HashSet::new());
    let mut dispatch = Dispatch { turn, app, lines, above, leased, new_level: false, next: Next::default() };
    dispatch.all(&decided, room)?;
    let Dispatch { leased: dispatched, new_level, mut next, .. } = dispatch;
    release_locks(locks, &decided);
    let leases = dispatched.iter().map(|leased| (leased.key, leased.lease)).collect();
    // Messages that a step took and gave back in this turn are fresh again. So they are written after those that were
    // offered.
    next.now_if(matching.save(turn, &decided)?, Why::Messages);
    let (wrote, SavedBatch { earliest, timers, resumed, released, .. }) = write(turn, app, &decided, &leases)?;
    // The scheduler starts runners for calls that were given back.
    if !turn.role.finds_own_writes() && (earliest.is_some() || !decided.given_away.is_empty()) {
        wake::call_scheduler_at_commit();
    }
    let Decided { items, outcomes, executions, taken_in, now, .. } = decided;
    let not_done = items.iter().zip(&outcomes).filter(|(_, outcome)| **outcome != ItemOutcome::Done);
    let not_done = not_done.map(|(item, _)| item.execution()).collect();
    // An item that was behind another one may be decided at once.
    let left = outcomes
        .iter()
        .any(|outcome| matches!(outcome, ItemOutcome::Behind | ItemOutcome::GivenAway | ItemOutcome::NextTurn));
    next.now_if(left, Why::Answers);
    next.now_if(resumed, Why::Calls);
    next.now_if(taken_in.left_from.is_some(), Why::Messages);
    Ok(Saved {
        outcomes,
        executions,
        dispatched,
        not_done,
        earliest,
        timers,
        messages_left: taken_in.left_from,
        released,
        wrote,
        left_out: left || new_level || resumed,
        next,
        now,
    })
}

/// Releases the locks of calls that are over, before this turn claims calls.
fn release_locks(locks: &mut AttributeLocks, decided: &Decided) {
    for (item, outcome) in decided.items.iter().zip(&decided.outcomes) {
        // A late answer says nothing about the current call.
        if let (Item::Answer(record, _), ItemOutcome::Done | ItemOutcome::GivenAway) = (item, outcome)
            && decided.current.contains(&record.key)
        {
            locks.release(record.key);
        }
    }
    for loaded in decided.executions.values() {
        loaded.aborted().for_each(|seq| locks.release((loaded.execution.id, seq)));
    }
    let closed = decided.executions.values().filter(|l| l.before.is_running() && !l.execution.is_running());
    locks.release_executions(&closed.map(|loaded| loaded.execution.id).collect());
}

/// Writes the batch. Returns whether anything was written, and its due times.
fn write(
    turn: &Turn,
    app: &AppTables,
    decided: &Decided,
    leases: &HashMap<StateKey, Lease>,
) -> Result<(bool, SavedBatch)> {
    let Decided { executions, taken_in, stale, still_closing, given_away, now, .. } = decided;
    let spi = turn.spi;
    let closing: BTreeSet<_> = still_closing.iter().map(|(id, _)| *id).collect();
    // An execution that does not close any more loses its mark with the save.
    let marked = |loaded: &Loaded| loaded.meta.closing && !closing.contains(&loaded.before.id);
    let changed: Vec<_> = executions.values().filter(|loaded| !loaded.events.is_empty() || marked(loaded)).collect();
    let nothing = changed.is_empty()
        && still_closing.is_empty()
        && taken_in.keys.is_empty()
        && stale.timers.is_empty()
        && stale.inboxes.is_empty()
        && stale.waiters.is_empty()
        && given_away.is_empty();
    if nothing {
        return Ok((false, SavedBatch::default()));
    }
    let lane = |meta: &loaded::Meta| app.lane_of(meta);
    let saved = save::save_batch(spi, changed.into_iter(), leases, &lane, *now)?;
    if saved.calls_over && !turn.role.grants_locks() {
        // The scheduler may hold locks for these calls.
        wake::calls_over_at_commit();
    }
    inbox::delete_arrivals(spi, &taken_in.keys)?;
    save::delete_arrivals_of(spi, &stale.inboxes)?;
    global_waiter::delete_waiters(spi, &stale.waiters)?;
    timer::delete_timers(spi, &stale.timers, *now)?;
    if !given_away.is_empty() {
        // Nothing has failed: the runner makes the call as the same attempt.
        claim::release(spi, given_away, turn.lane.epoch)?;
        claim::move_to_lane(spi, given_away, RUNNERS_LANE)?;
        crash::point("turn-give-away");
    }
    if !still_closing.is_empty() {
        execution::mark_closing(spi, still_closing)?;
        crash::point("turn-closing");
    }
    Ok((true, saved))
}

/// Leases the calls that were decided in this turn.
struct Dispatch<'t> {
    turn: &'t Turn<'t>,
    app: &'t AppTables<'t>,
    lines: &'t Lines,
    /// Levels with due calls that come before others of their line.
    above: HashSet<Level>,
    leased: Vec<LeasedCall>,
    /// A call is in a level that the process does not know yet.
    new_level: bool,
    next: Next,
}

impl Dispatch<'_> {
    fn all(&mut self, decided: &Decided, room: &mut Room) -> Result<()> {
        if self.turn.paused || self.turn.is_careful {
            return Ok(());
        }
        let changed = || decided.executions.values().filter(|loaded| !loaded.events.is_empty());
        let owners: HashSet<_> = changed().map(|l| (l.meta.owner, l.meta.owner_name.as_str())).collect();
        if owners.is_empty() {
            return Ok(());
        }
        let unfit = UnfitOwners::among(owners)?;
        let answered: HashSet<_> = decided.items.iter().filter_map(answered_execution).collect();
        let times = (decided.now, self.turn.real);
        self.above = lines::with_due_calls(self.turn.spi, self.turn.lane, self.lines.above_another(), times)?;
        for loaded in changed() {
            self.of_execution(loaded, answered.contains(&loaded.execution.id), &unfit, decided.now, room);
        }
        Ok(())
    }

    fn of_execution(&mut self, loaded: &Loaded, answered: bool, unfit: &UnfitOwners, now: Timestamp, room: &mut Room) {
        let Some(process_type) = &loaded.meta.process_type else { return };
        let line = loaded.meta.line_at(process_type.worker_id());
        let level = Level { line, priority: loaded.execution.priority };
        let comes_first = |above: &Level| above.line == line && above.priority > level.priority;
        let has_place = answered && !self.above.iter().any(comes_first);
        // A call that follows an answer takes the place of the answered call, unless its line has a call that comes
        // first. Any other call is leased here only if no call waits for its worker. Else claiming chooses, in the
        // order of calls.
        // Whether a process has its locks is in its rows. An answered one has them.
        let has_locks = answered || loaded.execution.locks.is_empty();
        let may_go = has_locks && (has_place || self.lines.is_drained(line.worker));
        for (seq, state) in &loaded.execution.states {
            let Some((api, call)) = state.open_call() else { continue };
            let (maker, verdict) = self.app.verdict(loaded, state, api, unfit.of(&loaded.meta), now);
            if verdict != Verdict::MayBeMade {
                // Claiming decides what becomes of it.
                continue;
            }
            self.new_level |= !self.lines.has(&level);
            if !may_go || call.not_before > now {
                continue;
            }
            if call.failed_attempts > 0 || maker == Maker::Function {
                // The task of a retry has the number of its attempts, so it has to be read. Runners claim the calls
                // that functions answer.
                self.next.now_if(true, Why::Calls);
                continue;
            }
            if !loaded.has_changed(state) {
                continue;
            }
            let config = config(loaded, state);
            if Loads::of(&config, api).locks() {
                // Claiming grants locks, later in this transaction.
                continue;
            }
            // If another owner with fewer calls may wait, this owner gives up the place. Claiming finds out whether the
            // other owner waits.
            if self.lines.waiting(line.worker).any(|other| room.goes_before(other, line)) || !room.take(line) {
                continue;
            }
            self.leased.push(LeasedCall {
                key: (loaded.execution.id, *seq),
                line,
                due_at: call.not_before,
                attempt: 1,
                first_attempt_at: now,
                lease: lease(self.turn, config.timeout(api)),
                unfit: None,
                is_suspect: false,
            });
        }
    }
}

fn answered_execution(item: &Item) -> Option<ExecutionId> {
    match item {
        Item::Answer(record, _) => Some(record.key.0),
        _ => None,
    }
}
