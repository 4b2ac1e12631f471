//! The transaction of a turn, and its retries: if it fails, its items are applied in smaller transactions, then one at
//! a time.
//!
//! Limitations: retries take at most `xdb.apply_timeout` at a time, except for items that are applied one at a time.
//! The rest waits.

use super::app_tables::AppTables;
use super::item::Item;
use super::memory::{Memory, Submit};
use super::next::{Next, Progress, Why};
use super::role::{SLOW_FUNCTION, apply_timeout};
use super::settle::TurnOutcome;
use super::types::{Scope, Started, Turn};
use super::{claim, decide, gather, load, prepare, process_locks, save};
use crate::calls::Answered;
use crate::pg::catch::{PgError, Result, debug, log_error, run_caught};
use crate::pg::session::{BeginOutcome, Session};
use crate::pg::shmem::ExitReason;
use crate::pg::{crash, identity, in_hand, spi};
use crate::store::engine;
use crate::store::instance::Ownership;
use crate::store::registry::NO_WORKER;
use std::time::{Duration, Instant};
use xdb_engine::{Failure, Further};
use xdb_sched::backoff::Patience;
use xdb_sched::budget::GUARDED_ITEMS;
use xdb_sched::bytes::LONG;

/// How long a call is deferred if its claim fails even alone.
const DEFERRED_FOR: Duration = Duration::from_secs(10);

/// The result of a transaction that did not fail.
enum Transacted {
    Done(Box<TurnOutcome>),
    /// No turn was made. The progress says when to try again, or why the process ends.
    Not(Progress),
}

/// Makes a turn. `submit` hands requests to the transport, after the commit.
pub fn take_turn(memory: &mut Memory, session: &mut Session, submit: &mut Submit<'_>) -> Progress {
    // When the deferral of an execution has ended, the scans look for it again, from the head.
    if memory.backlog.executions.next(memory.seen.began_at).is_some_and(|until| until <= Instant::now()) {
        memory.woken();
    }
    let mut items = memory.backlog.take(memory.role, memory.seen.functions_are_slow);
    let scope = memory.role.scope(!items.is_empty(), memory.seen.functions_are_slow);
    let (began, calls) = (Instant::now(), items.iter().any(Item::is_uncalled));
    let mut progress = match transact(memory, session, &mut items, scope) {
        Ok(Transacted::Done(outcome)) => {
            if calls {
                crash::point("function-committed");
                memory.seen.functions_are_slow = began.elapsed() > SLOW_FUNCTION;
            }
            let mut next = memory.settle(session, items, *outcome, submit);
            // Due calls that were not claimed yet are claimed at once.
            next.now_if(scope.claim == 0, Why::Calls);
            Ok(next)
        }
        Ok(Transacted::Not(progress)) => {
            memory.backlog.keep_all(items);
            return progress;
        }
        Err(error) => {
            debug(|| format!("a turn with {} items failed and is retried in smaller parts: {error}", items.len()));
            crash::point("turn-again");
            memory.scans.failed();
            if let Some(progress) = apply_guarded(memory, session, items, GUARDED_ITEMS, submit) {
                return progress;
            }
            claim_in_parts(memory, session, submit)
        }
    };
    memory.seen.takes_large = !memory.seen.takes_large || began.elapsed() <= LONG;
    if memory.role.calls_functions() && !memory.backlog.lines().any(|line| line.worker == NO_WORKER) {
        session.slot.end_functions();
    }
    if memory.role.keeps_risky_apart() && progress.is_ok() {
        let risky = memory.backlog.take_risky();
        if !risky.is_empty() {
            progress =
                apply_guarded(memory, session, risky, GUARDED_ITEMS, submit).unwrap_or(Ok(Next::now(Why::Answers)));
        }
    }
    progress
}

/// Applies items in transactions of up to `size` items, under guards. If one fails, its items are applied one at a
/// time. Claims no calls. Returns the progress if no turn can be made.
fn apply_guarded(
    memory: &mut Memory,
    session: &mut Session,
    items: Vec<Item>,
    size: usize,
    submit: &mut Submit<'_>,
) -> Option<Progress> {
    let began = Instant::now();
    let mut keeps_from_it = None;
    let mut left = items.into_iter().peekable();
    // Other due work waits no longer than this. Of items that failed together, each one is tried.
    while left.peek().is_some() && keeps_from_it.is_none() && (size == 1 || began.elapsed() <= apply_timeout()) {
        let mut some = memory.backlog.hold_back(left.by_ref().take(size).collect());
        if some.is_empty() {
            continue;
        }
        match transact(memory, session, &mut some, Scope::APPLY) {
            Ok(Transacted::Done(outcome)) => {
                memory.settle(session, some, *outcome, submit);
            }
            Ok(Transacted::Not(progress)) => {
                memory.backlog.keep_all(some);
                keeps_from_it = Some(progress);
            }
            Err(error) if some.len() <= 1 => failed_alone(memory, session, some, &error),
            Err(_) => keeps_from_it = apply_guarded(memory, session, some, 1, submit),
        }
    }
    memory.backlog.keep_all(left.collect());
    keeps_from_it
}

/// A turn has failed, and its faulty part is unknown. Due calls are claimed apart from everything else: a few calls
/// under guards, or else one.
fn claim_in_parts(memory: &mut Memory, session: &mut Session, submit: &mut Submit<'_>) -> Progress {
    for limit in [GUARDED_ITEMS.min(memory.role.scope(false, true).claim), 1] {
        memory.scans.claimed_alone = None;
        let scope = Scope { claim: limit, ..Scope::APPLY };
        match transact(memory, session, &mut Vec::new(), scope) {
            Ok(Transacted::Done(outcome)) => {
                memory.settle(session, Vec::new(), *outcome, submit);
                return Ok(Next::now(Why::Calls));
            }
            Ok(Transacted::Not(progress)) => return progress,
            Err(error) if limit == 1 => {
                // The only call that was read is deferred. The next turn finds the others.
                if let Some(alone) = memory.scans.claimed_alone.take() {
                    memory.backlog.executions.defer_until(alone.0, Instant::now() + DEFERRED_FOR);
                }
                failed_alone(memory, session, Vec::new(), &error);
            }
            Err(_) => {}
        }
    }
    Ok(Next::retry())
}

/// A transaction has failed with at most one item in it. The item's attempt fails. An item that is no attempt is
/// deferred.
fn failed_alone(memory: &mut Memory, session: &Session, items: Vec<Item>, error: &PgError) {
    session.slot.record_error(&error.to_string());
    if !memory.failing.is_deferred(&(), Instant::now()) {
        log_error("a turn of the scheduler failed", error);
        memory.failing.defer_until((), Instant::now() + Duration::from_secs(1));
    }
    let passing = error.passes(true).is_some();
    for item in items {
        memory.backlog.defer(item.execution(), Patience::Long);
        match item {
            Item::Answer(..) if passing => memory.backlog.keep(item),
            Item::Answer(record, answered) => {
                let (detail, further) = match &answered {
                    // Even the failure can't be written. It is tried again later.
                    Answered::Failed(_, further) => (error.to_string(), *further),
                    _ => (format!("the answer could not be applied: {error}"), Further::ByPolicy),
                };
                let failure = answered.warn(Failure::of(error.sqlstate(), detail));
                memory.backlog.keep(Item::Answer(record, Answered::Failed(failure, further)));
            }
            Item::Fail { .. } => memory.backlog.keep(item),
            // These are in the tables and are found again.
            Item::Arrivals(_) | Item::Timer(_) | Item::Waiter(_) => {}
        }
    }
}

/// Makes one transaction. Suspects that have to wait are moved from the items to the backlog.
fn transact(memory: &mut Memory, session: &mut Session, items: &mut Vec<Item>, scope: Scope) -> Result<Transacted> {
    crate::pg::memory::replenish()?;
    *items = memory.backlog.one_suspect(std::mem::take(items));
    in_hand::take(items.iter().filter(|item| matches!(item, Item::Answer(..))).filter_map(Item::state));
    let done = transaction(memory, session, items, scope);
    in_hand::release();
    done
}

fn transaction(memory: &mut Memory, session: &mut Session, items: &mut Vec<Item>, scope: Scope) -> Result<Transacted> {
    let begun = run_caught(|| Ok(session.begin()));
    if begun.is_err() {
        session.abort();
    }
    match begun? {
        BeginOutcome::Ready => {}
        BeginOutcome::Dropped => return Ok(Transacted::Not(Err(ExitReason::Dropped))),
        BeginOutcome::Changed => return Ok(Transacted::Not(Err(ExitReason::Restart))),
        BeginOutcome::Busy => return Ok(Transacted::Not(Ok(Next::retry()))),
    }
    let done = run_caught(|| spi::connect(|spi| phases(memory, spi, items, scope))).and_then(|outcome| {
        if matches!(outcome, Transacted::Done(_)) {
            if items.iter().any(|item| matches!(item, Item::Answer(..))) {
                crash::point("answer-commit");
            }
            run_caught(|| {
                session.commit();
                Ok(())
            })?;
        } else {
            session.abort();
        }
        Ok(outcome)
    });
    if done.is_err() {
        session.abort();
    }
    match done {
        Ok(Transacted::Done(_)) => memory.locks.settle(),
        _ => {
            memory.locks.undo();
            memory.registry.undo();
        }
    }
    done
}

/// Runs the phases. Each takes the value of the phase before.
fn phases(memory: &mut Memory, spi: &spi::Spi, items: &mut Vec<Item>, scope: Scope) -> Result<Transacted> {
    let Some(started) = begin(memory, spi, scope, items)? else {
        // Another scheduler has begun; every lease of this one is void.
        return Ok(Transacted::Not(Err(ExitReason::Restart)));
    };
    let Memory { registry, calls, backlog, tables, matching, locks, to_judge, scans, seen, .. } = memory;
    let mut gathering = gather::Gathering { registry, backlog, matching, scans, seen, locks, calls };
    let mut work = gathering.gather(&started, items)?;
    let turn = &started.turn;
    let mut app = AppTables::new(turn, tables, backlog.rests(turn.began_at));
    let mut room = calls.room(turn.role, registry, backlog);
    let free = room.clone();
    let batch = load::load(turn, registry, matching, items)?;
    let decided = decide::decide(turn, &mut app, &matching.gathered, batch)?;
    let mut saved = save::save(turn, &app, matching, locks, &calls.lines, &mut room, decided)?;
    let noted = saved.released || started.judge_at.is_some_and(|at| at <= saved.now);
    let granted = process_locks::grant(turn, to_judge, noted, saved.now)?;
    saved.note(&granted);
    if granted.any {
        // The calls of the new holders may have been due before the cursors.
        scans.reset();
    }
    work.moved.to_judge = granted.left;
    let mut claiming = claim::Claiming { turn, registry, backlog, locks, scans, lines: &mut calls.lines, app: &app };
    let claims = claiming.claim(&mut room, &mut work, &saved)?;
    let prepared = prepare::prepare(turn, &mut app, backlog, free, &saved, claims)?;
    if !saved.wrote {
        // Leases and attempt counters alone: losing them in a crash costs an attempt that is allowed anyway.
        identity::set_local(c"synchronous_commit", c"off")?;
    }
    let outcome = TurnOutcome::of(&started, seen, &calls.lines, work, saved, prepared)?;
    Ok(Transacted::Done(Box::new(outcome)))
}

/// Reads what every turn begins with. None: another scheduler has begun.
fn begin<'a>(memory: &mut Memory, spi: &'a spi::Spi, scope: Scope, items: &[Item]) -> Result<Option<Started<'a>>> {
    let (began, began_at) = (crate::clock::now(), Instant::now());
    memory.number += 1;
    let state = engine::turn_input(spi, memory.role)?;
    if state.epoch != memory.lane.epoch {
        return Ok(None);
    }
    let registered = memory.registry.refresh(spi, state.generation)?;
    memory.calls.breakers.follow(&memory.registry);
    memory.seen.began_at = began_at;
    memory.seen.ownership = state.ownership;
    memory.seen.paused = state.paused || state.ownership != Ownership::Own;
    memory.tables.health.begin_turn();
    memory.tables.slow.begin_turn(spi, memory.role)?;
    let any_slow = memory.tables.slow.is_any();
    let turn = Turn {
        spi,
        role: memory.role,
        lane: memory.lane,
        has_slow_steps: any_slow || state.workers_calls_are_runners,
        number: memory.number,
        scope,
        paused: memory.seen.paused,
        takes_large: memory.seen.takes_large,
        began,
        began_at,
        real: crate::clock::real(),
        is_alone: items.len() <= 1 && memory.backlog.is_empty(),
        is_careful: memory.seen.careful_until.is_some_and(|until| began_at < until)
            || items.iter().any(|item| item.suspect().is_some()),
    };
    Ok(Some(Started {
        turn,
        has_global_work: state.global_work,
        judge_at: state.judge_at,
        has_work_for_runners: any_slow || state.runners_have_calls,
        has_mended_calls: state.workers_calls_are_runners && !any_slow,
        registered,
    }))
}
