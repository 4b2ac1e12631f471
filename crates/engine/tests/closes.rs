//! Stories in memory about less common cases. These are graceful conditional closes, unrecorded attempts in a close,
//! timers at a moment, timeouts of later starts, and default options.

mod common;

use common::*;
use xdb_engine::CommandStatus::{Completed, Waiting};
use xdb_engine::*;

fn conditional(queue: &str) -> Decision {
    Decision::ConditionalClose {
        close_type: CloseType::GracefulComplete,
        queues: vec![queue.to_owned()],
        output: Some(json("\"empty\"")),
        otherwise: vec![movement("Drain")],
    }
}

#[test]
fn a_graceful_conditional_close_waits_for_the_other_threads() {
    let mut world = World::started(definition(&[("Drain", skipping()), ("B", plain())]));
    world.execute(1, next(&["Drain", "B"]));
    world.publish("q", &["1"]);
    world.execute(2, conditional("q"));
    assert_eq!((world.status(4), world.execution.completing), (StateStatus::Execute, false), "a message is left");
    world.execute(4, conditional("other"));
    assert!(world.execution.is_running() && world.execution.completing, "a thread is left");
    assert_eq!(world.execution.results.len(), 1);
    assert_eq!(world.queued("q"), ["1"]);
    world.wait_until(3, WaitingType::Empty, vec![]);
    world.execute(3, close(CloseType::DeadEnd));
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    assert_eq!(world.replayed(), world.execution);
}

/// The numbers of the states whose attempts are folded, in the order of the history. A close is 0.
fn folded(events: &[Event]) -> Vec<u32> {
    let number = |event: &Event| match event {
        Event::AttemptsFolded { seq, .. } => Some(seq.0),
        Event::ProcessClosed { .. } => Some(0),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

#[test]
fn attempts_of_the_closing_call_are_recorded_before_those_that_the_close_cuts_off() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", attempts(13)), ("C", skipping())]));
    world.execute(1, next(&["C", "C", "B", "C"]));
    for (seq, api) in [(5, Api::Execute), (4, Api::WaitUntil), (3, Api::Execute), (2, Api::Execute)] {
        for attempt in 1..=12 {
            world.fail(seq, api, attempt);
        }
    }
    let finally = |command: Command| world.decide(&command).unwrap();
    let failed = finally(failed(4, Api::WaitUntil, 13, world.now));
    assert_eq!(names(&failed)[..2], ["AttemptsFolded", "StateFailed"], "what led to the close comes first");
    assert_eq!(folded(&failed), [4, 2, 3, 5, 0]);
    let answered = finally(execute(3, close(CloseType::ForceComplete)));
    assert_eq!(names(&answered)[..2], ["AttemptsFolded", "StateCompleted"]);
    assert_eq!(folded(&answered), [3, 2, 4, 5, 0]);
    assert_eq!(folded(&finally(Command::Stop { stop_type: StopType::Terminate, reason: None })), [2, 3, 4, 5, 0]);
}

#[test]
fn a_timer_for_a_moment_fires_then_and_one_for_the_past_at_once() {
    let mut world = World::started(definition(&[("A", plain())]));
    let at = |seconds: i64| RequestedCommand {
        command_id: None,
        kind: RequestedKind::TimerAt(world.now + Duration(seconds * SECOND)),
    };
    let commands = vec![at(-5), at(10), at(11)];
    world.wait_until(1, WaitingType::All, commands);
    let statuses = |world: &World| world.results(1).into_iter().map(|(status, _)| status).collect::<Vec<_>>();
    assert_eq!(statuses(&world), [Completed, Waiting, Waiting]);
    world.now.0 += 10 * SECOND - 1;
    assert_eq!(world.fire(1, 1), Err(Rejection::Stale), "never early, not by a microsecond");
    world.now.0 += 1;
    world.fire(1, 1).unwrap();
    assert_eq!(statuses(&world), [Completed, Completed, Waiting]);
    world.pass(1);
    world.fire(1, 2).unwrap();
    assert_eq!(world.status(1), StateStatus::Execute);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn the_timeout_of_a_start_for_later_runs_from_then() {
    let mut world = World::new(definition(&[("A", plain())]));
    let Command::Start(start) = start() else { unreachable!() };
    let later = world.now + Duration(3600 * SECOND);
    let timeout = Some(Duration(60 * SECOND));
    world.run(Command::Start(Box::new(Start { start_at: Some(later), timeout, ..*start }))).unwrap();
    assert_eq!(world.execution.timeout_at, Some(later + Duration(60 * SECOND)));
}

#[test]
fn options_that_are_not_set_have_defaults() {
    let config = plain();
    for api in [Api::WaitUntil, Api::Execute] {
        assert_eq!(config.timeout(api), Duration(10 * SECOND));
        let policy = config.retry_policy(api);
        assert_eq!((policy.initial_interval_seconds, policy.backoff_coefficient), (1.0, 2.0));
        assert_eq!((policy.maximum_interval_seconds, policy.maximum_attempts), (100.0, 0));
        assert_eq!(policy.maximum_attempts_duration_seconds, 0.0);
        assert_eq!(config.load_global(api).policy, LoadPolicy::All);
        assert_eq!(config.load_local(api).policy, LoadPolicy::All);
    }
    assert_eq!(FailureRecovery::default().policy, FailurePolicy::FailProcess);

    let mut world = World::started(definition(&[("A", plain())]));
    assert_eq!(world.status(1), StateStatus::WaitUntil, "waitUntil is not skipped");
    for attempt in 1..=50 {
        world.fail(1, Api::WaitUntil, attempt);
        world.pass(1_000_000);
    }
    assert!(world.execution.is_running(), "it is called for ever");
}
