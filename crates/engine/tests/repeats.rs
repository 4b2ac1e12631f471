//! Calls that are made again without counting as attempts: repeats after changed values, a busy worker, or a missing
//! registration.

mod common;

use common::*;
use xdb_engine::*;

fn repeated(seq: u32, api: Api) -> Command {
    Command::CallRepeated { seq: StateSeq(seq), api }
}

/// The worker wants the same attempt made again after two seconds.
fn repeated_later(seq: u32, attempt: u32, first_attempt_at: Timestamp) -> Command {
    let mut command = failed(seq, Api::WaitUntil, attempt, first_attempt_at);
    if let Command::CallFailed(failed) = &mut command {
        failed.further = Further::Repeat(Duration(2 * SECOND));
    }
    command
}

fn call(world: &World) -> &CallState {
    world.state(1).call(Api::Execute).expect("it is at execute")
}

#[test]
fn a_repeat_is_no_attempt_and_has_a_new_request() {
    let mut world = World::started(definition(&[("A", skipping())]));
    world.fail(1, Api::Execute, 1);
    let before = call(&world).clone();
    world.pass(30);
    assert_eq!(names(&world.run(repeated(1, Api::Execute)).unwrap()), ["CallRepeated"]);
    let after = call(&world);
    assert_eq!((after.repeats, after.generation), (1, before.generation + 1));
    assert_eq!((after.failed_attempts, &after.last_failure), (1, &before.last_failure));
    assert_eq!(after.not_before, world.now, "it is made again at once");
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn repeats_beyond_ten_back_off_and_can_be_hurried() {
    let mut world = World::started(definition(&[("A", attempts(1)), ("B", plain())]));
    for _ in 0..10 {
        world.run(repeated(1, Api::WaitUntil)).unwrap();
        assert_eq!(world.state(1).call(Api::WaitUntil).unwrap().not_before, world.now);
    }
    world.run(repeated(1, Api::WaitUntil)).unwrap();
    let call = world.state(1).call(Api::WaitUntil).unwrap();
    assert_eq!(call.not_before.since(world.now), SECOND);
    assert_eq!(world.status(1), StateStatus::WaitUntil, "repeats spend no attempts");
    assert_eq!(names(&world.run(Command::RetryNow(vec![StateSeq(1)])).unwrap()), ["RetryRequested"]);
    assert_eq!(world.state(1).call(Api::WaitUntil).unwrap().not_before, world.now);
}

#[test]
fn a_worker_that_asks_for_time_gets_the_same_request() {
    let mut world = World::started(definition(&[("A", attempts(1)), ("B", plain())]));
    for repeat in 1..=12 {
        assert_eq!(names(&world.run(repeated_later(1, 1, world.now)).unwrap()), ["CallRepeated"]);
        let call = world.state(1).call(Api::WaitUntil).unwrap();
        assert_eq!((call.repeats, call.generation, call.failed_attempts), (repeat, 0, 0));
        assert_eq!(call.not_before.since(world.now), 2 * SECOND);
    }
    for _ in 0..2 {
        world.run(repeated_later(1, 1, world.now)).unwrap();
    }
    let call = world.state(1).call(Api::WaitUntil).unwrap();
    assert_eq!(call.not_before.since(world.now), 8 * SECOND, "the policy's interval, once it is longer");
    assert_eq!(names(&world.run(Command::RetryNow(vec![StateSeq(1)])).unwrap()), ["RetryRequested"]);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn the_time_for_all_attempts_ends_repeats_too() {
    let policy = RetryPolicy { maximum_attempts_duration_seconds: 5.0, ..RetryPolicy::default() };
    let bounded = StateConfig { wait_until_api_retry_policy: Some(policy), ..StateConfig::default() };
    let mut world = World::started(definition(&[("A", bounded)]));
    let first = world.now;
    world.run(repeated_later(1, 1, first)).unwrap();
    world.pass(4);
    assert_eq!(names(&world.run(repeated_later(1, 1, first)).unwrap()), ["StateFailed", "ProcessClosed"]);
    assert_eq!(world.execution.status, ProcessStatus::Failed);
    assert_eq!(world.replayed(), world.execution);
}

/// An answer to the attempt names something unregistered.
fn unregistered(seq: u32, attempt: u32, now: Timestamp) -> Command {
    let mut command = failed(seq, Api::Execute, attempt, now);
    if let Command::CallFailed(failed) = &mut command {
        failed.further = Further::WhenRegistered;
        failed.failure = Failure::of(NOT_REGISTERED, "unknown state \"B\"".to_owned());
    }
    command
}

#[test]
fn an_unregistered_state_costs_no_attempt_for_ten_minutes() {
    let policy = RetryPolicy { maximum_attempts: 1, initial_interval_seconds: 3_600.0, ..RetryPolicy::default() };
    let once = StateConfig { execute_api_retry_policy: Some(policy), ..skipping() };
    let mut world = World::started(definition(&[("A", once)]));
    let first = world.now;
    let mut pauses = Vec::new();
    while world.now.since(first) < 600 * SECOND {
        let events = world.run(unregistered(1, 1, first)).unwrap();
        assert_eq!(names(&events), ["CallRepeated"]);
        let call = call(&world).clone();
        let last = call.last_failure.as_ref().expect("people see what is wrong");
        assert_eq!((last.attempt, last.at, last.failure.error_type.as_deref()), (1, first, Some(NOT_REGISTERED)));
        assert_eq!((call.failed_attempts, call.generation), (0, 0), "the same request, and no attempt");
        pauses.push(call.not_before.since(world.now) / SECOND);
        world.now = call.not_before;
    }
    assert_eq!(pauses, [10, 10, 20, 40, 60, 60, 60, 60, 60, 60, 60, 60, 60], "whatever the policy's intervals are");
    assert_eq!(world.replayed(), world.execution);
    let events = world.run(unregistered(1, 1, first)).unwrap();
    assert_eq!(names(&events), ["StateFailed", "ProcessClosed"]);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn each_attempt_has_its_ten_minutes_and_earlier_attempts_are_recorded() {
    let mut world = World::started(definition(&[("A", skipping())]));
    for attempt in 1..=12 {
        world.fail(1, Api::Execute, attempt);
    }
    world.pass(3_600);
    let events = world.run(unregistered(1, 13, world.now)).unwrap();
    assert_eq!(names(&events), ["AttemptsFolded", "CallRepeated"]);
    assert!(matches!(events[0], Event::AttemptsFolded { count: 2, last_attempt: 12, .. }), "{events:?}");
    assert_eq!(world.replayed(), world.execution);
    assert_eq!(names(&world.run(unregistered(1, 13, world.now)).unwrap()), ["CallRepeated"]);
    // Another failure begins a new attempt, and with it another ten minutes.
    world.pass(599);
    world.fail(1, Api::Execute, 13);
    world.pass(599);
    assert_eq!(names(&world.run(unregistered(1, 14, world.now)).unwrap()), ["AttemptsFolded", "CallRepeated"]);
    assert_eq!(call(&world).unregistered_since(), Some(world.now));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_call_that_waits_for_a_registration_can_be_retried_now_and_ends_like_other_calls() {
    let mut world = World::started(definition(&[("A", skipping())]));
    world.run(unregistered(1, 1, world.now)).unwrap();
    assert_eq!(names(&world.run(Command::RetryNow(vec![StateSeq(1)])).unwrap()), ["RetryRequested"]);
    assert_eq!(call(&world).not_before, world.now);
    world.execute(1, close(CloseType::GracefulComplete));
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    let Phase::Ended { last_failure, .. } = &world.state(1).phase else { panic!("it has ended") };
    assert_eq!(last_failure, &None, "it went well in the end");
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn the_time_for_all_attempts_ends_the_wait_for_a_registration_too() {
    let policy = RetryPolicy { maximum_attempts_duration_seconds: 15.0, ..RetryPolicy::default() };
    let bounded = StateConfig { execute_api_retry_policy: Some(policy), ..skipping() };
    let mut world = World::started(definition(&[("A", bounded)]));
    let first = world.now;
    assert_eq!(names(&world.run(unregistered(1, 1, first)).unwrap()), ["CallRepeated"]);
    world.pass(10);
    assert_eq!(names(&world.run(unregistered(1, 1, first)).unwrap()), ["StateFailed", "ProcessClosed"]);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_final_failure_gets_no_other_attempt() {
    let mut world = World::started(definition(&[("A", plain())]));
    let mut command = failed(1, Api::WaitUntil, 1, world.now);
    if let Command::CallFailed(failed) = &mut command {
        failed.further = Further::Never;
    }
    assert_eq!(names(&world.run(command).unwrap()), ["StateFailed", "ProcessClosed"]);
}

#[test]
fn the_next_call_counts_its_repeats_from_zero() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.run(repeated(1, Api::WaitUntil)).unwrap();
    world.wait_until(1, WaitingType::Empty, vec![]);
    assert_eq!((call(&world).repeats, call(&world).generation), (0, 0));
}

#[test]
fn only_the_current_call_of_a_running_process_is_repeated() {
    let mut world = World::started(definition(&[("A", skipping())]));
    assert_eq!(world.run(repeated(1, Api::WaitUntil)), Err(Rejection::Stale));
    assert_eq!(world.run(repeated(2, Api::Execute)), Err(Rejection::Stale));
    world.execute(1, close(CloseType::ForceComplete));
    assert_eq!(world.run(repeated(1, Api::Execute)), Err(Rejection::NotRunning(ProcessStatus::Completed)));
}

#[test]
fn calls_without_repeats_are_stored_as_before() {
    let stored = serde_json::to_string(&CallState::default()).unwrap();
    assert!(!stored.contains("repeats"), "{stored}");
    let loading = serde_json::to_string(&Loading::default()).unwrap();
    assert!(!loading.contains("lock"), "{loading}");
}

/// A failed attempt that writes the attribute `n` all the same.
fn applied(attempt: u32, now: Timestamp, further: Further) -> Command {
    let Command::CallFailed(failed) = failed(1, Api::Execute, attempt, now) else { unreachable!() };
    let written = [("n".to_owned(), Json::from_trusted(attempt.to_string()))];
    let effects = Effects { write_local_attributes: written.into(), ..Effects::default() };
    Command::CallFailed(CallFailed { further, applied: Some(Box::new(effects)), ..failed })
}

#[test]
fn an_attempt_that_failed_may_have_changed_something_and_is_always_recorded() {
    let mut world = World::started(definition(&[("A", skipping())]));
    world.run(applied(1, world.now, Further::ByPolicy)).unwrap();
    assert_eq!((call(&world).failed_attempts, call(&world).generation), (1, 1), "another request comes next");
    for attempt in 2..=12 {
        world.fail(1, Api::Execute, attempt);
    }
    let events = world.run(applied(13, world.now, Further::After(Duration(3 * SECOND)))).unwrap();
    assert_eq!(names(&events), ["AttemptsFolded", "LocalAttributesWritten", "AttemptFailed"]);
    assert!(events.iter().all(Event::is_recorded));
    assert!(matches!(events[0], Event::AttemptsFolded { count: 2, last_attempt: 12, .. }), "{events:?}");
    assert_eq!(call(&world).not_before.since(world.now), 3 * SECOND);
    assert_eq!(call(&world).generation, 2);
    assert_eq!(world.replayed(), world.execution, "nothing is left to be recorded");
    world.fail(1, Api::Execute, 14);
    let events = world.run(applied(15, world.now, Further::Never)).unwrap();
    let expected = ["AttemptsFolded", "LocalAttributesWritten", "StateFailed", "ProcessClosed"];
    assert_eq!(names(&events), expected, "what it did is applied, though it was the last");
    assert!(matches!(events[0], Event::AttemptsFolded { count: 1, last_attempt: 14, .. }), "{events:?}");
    assert_eq!(world.execution.local_attributes["n"].as_str(), "15");
    assert_eq!(world.replayed(), world.execution);
}
