//! A crash at any moment: the stored events give the execution back, and it goes on as without the crash.

use super::run::*;
use super::*;
use proptest::test_runner::TestCaseError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An event as it is stored.
struct Stored {
    number: u64,
    at: Timestamp,
    name: &'static str,
    details: String,
}

/// A moment at which the server may have crashed: after a number of steps, or between the events of one.
struct Moment {
    /// How many steps are over.
    steps: usize,
    /// How many events are stored.
    stored: usize,
    execution: Execution,
}

/// Replays each beginning of the run's history, and each end of it from a snapshot.
pub fn check(run: &Run) -> Result<(), TestCaseError> {
    let mut live = Execution::new(ID);
    let mut replay = Replay::new(ID);
    let mut history: Vec<Stored> = Vec::new();
    let mut snapshots: Vec<(Moment, Replay)> = Vec::new();
    for (at, step) in run.steps.iter().enumerate() {
        for event in step.outcome.iter().flatten() {
            let (name, details) = event.to_parts();
            let read = Event::from_parts(name, &details);
            expect(read.as_ref() == Ok(event), || format!("{name} {details} is read as {read:?}"))?;
            if event.is_recorded() {
                let stored = Stored { number: live.next_event, at: step.now, name, details };
                feed(&mut replay, &stored)?;
                history.push(stored);
            }
            live.apply(event, step.now);
            same(&with_uncounted(&replay.execution, &live), &live, "replayed", run)?;
            let moment = Moment { steps: at, stored: history.len(), execution: live.clone() };
            snapshots.extend(from_snapshot(&replay, moment, run)?);
        }
        let moment = Moment { steps: at + 1, stored: history.len(), execution: live.clone() };
        if let Some((moment, snapshot)) = from_snapshot(&replay, moment, run)? {
            go_on(run, &moment, snapshot, &live)?;
        }
    }
    for (moment, mut snapshot) in snapshots {
        for stored in &history[moment.stored..] {
            feed(&mut snapshot, stored)?;
        }
        same(&without_the_ended(&snapshot.execution), &without_the_ended(&replay.execution), "from a snapshot", run)?;
    }
    Ok(())
}

fn feed(replay: &mut Replay, stored: &Stored) -> Result<(), TestCaseError> {
    replay
        .event(stored.number, stored.at, stored.name, &stored.details)
        .map_err(|error| TestCaseError::fail(format!("{} {} is not replayed: {error}", stored.name, stored.details)))
}

fn same(one: &Execution, other: &Execution, what: &str, run: &Run) -> Result<(), TestCaseError> {
    expect(one == other, || format!("{what}: {}\nis not {}\n{run}", ops::brief(one), ops::brief(other)))
}

/// Restores a snapshot of this moment, and compares it with the execution, without the ended states that it may drop.
fn from_snapshot(replay: &Replay, moment: Moment, run: &Run) -> Result<Option<(Moment, Replay)>, TestCaseError> {
    let Some((event, left_out)) = replay.snapshot() else {
        let closed = replay.execution.status != ProcessStatus::Running || !replay.execution.exists();
        expect(closed, || format!("no snapshot of what runs\n{run}"))?;
        return Ok(None);
    };
    let (name, details) = event.to_parts();
    let stored = Stored { number: replay.execution.next_event - 1, at: moment.execution.started_at, name, details };
    let mut back = Replay::new(ID);
    feed(&mut back, &stored)?;
    let mut kept = replay.execution.clone();
    kept.states.retain(|seq, _| !left_out.contains(seq));
    same(&without_ids(&back.execution), &without_ids(&kept), "a snapshot", run)?;
    let ids = replay.execution.message_ids.len() as u64;
    expect(back.earlier_message_ids.count == ids, || format!("{:?} ids of {ids}\n{run}", back.earlier_message_ids))?;
    let failed = replay.execution.states.values().filter_map(|state| match &state.phase {
        Phase::Ended { last_failure: Some(last), .. } => Some((last.at, state.seq)),
        _ => None,
    });
    let failed_last = failed.max().map(|(_, seq)| seq);
    for (seq, state) in &replay.execution.states {
        let is_noted = replay.execution.compensation.noted.iter().any(|noted| noted.seq == *seq);
        let kept = state.status().is_live() || failed_last == Some(*seq) || is_noted;
        expect(kept != left_out.contains(seq), || format!("{seq:?} is kept or left out of a snapshot\n{run}"))?;
    }
    Ok(Some((moment, back)))
}

/// Applies the rest of the commands to the execution that a snapshot gave back.
fn go_on(run: &Run, moment: &Moment, snapshot: Replay, live: &Execution) -> Result<(), TestCaseError> {
    let mut execution = with_uncounted(&snapshot.execution, live);
    let earlier: BTreeSet<(String, String)> = live.message_ids.clone();
    for step in &run.steps[moment.steps..] {
        let mut step = step.clone();
        step.published_before.extend(earlier.iter().cloned());
        // The message of a caller is compared with earlier ones when it is published.
        if let Command::MessagesArrived(messages) = &mut step.command {
            messages.retain(|message| {
                message.message_id.as_ref().is_none_or(|id| !earlier.contains(&(message.queue.clone(), id.clone())))
            });
        }
        let outcome = decide(&execution, &step.command, step.context(&run.definitions, &run.mapping));
        let expected = &step.outcome;
        expect(outcome == *expected, || {
            format!("after a crash {:?} comes to {outcome:?}, not {expected:?}\n{run}", step.command)
        })?;
        for event in outcome.iter().flatten() {
            execution.apply(event, step.now);
        }
    }
    Ok(())
}

fn without_ids(execution: &Execution) -> Execution {
    Execution { message_ids: BTreeSet::new(), ..execution.clone() }
}

fn without_the_ended(execution: &Execution) -> Execution {
    let mut without = without_ids(execution);
    without.states.retain(|_, state| state.status().is_live());
    without
}

/// The execution, with the unrecorded failed attempts as in the tables: the history has them only after they are
/// folded.
fn with_uncounted(execution: &Execution, tables: &Execution) -> Execution {
    let mut execution = execution.clone();
    for (seq, state) in &mut execution.states {
        let uncounted = |there: &&Arc<StateExecution>| {
            let call = there.call(Api::WaitUntil).or(there.call(Api::Execute));
            call.is_some_and(|call| call.failed_attempts > RECORDED_ATTEMPTS)
        };
        if let Some(there) = tables.states.get(seq).filter(uncounted)
            && there.status() == state.status()
        {
            Arc::make_mut(state).phase = there.phase.clone();
        }
    }
    execution
}
