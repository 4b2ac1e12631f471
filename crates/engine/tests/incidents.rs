//! Incidents: a state whose retries are spent stays at its call until a caller retries it. Stories in memory.

mod common;

use common::*;
use xdb_engine::*;

/// A process type whose state makes `most` attempts and then raises an incident.
fn process_type(most: u32) -> Definition {
    definition(&[("A", raising(StateConfig { skip_wait_until: Some(true), ..attempts(most) }))])
}

fn retry_now(world: &mut World) -> Vec<Event> {
    world.run(Command::RetryNow(vec![StateSeq(1)])).unwrap()
}

fn call(world: &World) -> &CallState {
    world.state(1).call(Api::Execute).unwrap()
}

/// Seed 5: the job fails without retries, and an incident is raised. The variables are corrected, the incident is
/// resolved, and the job goes on at the same place.
#[test]
fn a_job_without_retries_creates_an_incident_and_resolving_it_continues_at_the_same_place() {
    let mut world = World::started(process_type(2));
    let input = world.state(1).input.clone();
    assert_eq!(names(&world.fail(1, Api::Execute, 1)), ["AttemptFailed"]);
    assert_eq!(names(&world.fail(1, Api::Execute, 2)), ["IncidentRaised"]);
    assert!(call(&world).incident && world.execution.is_running());
    assert_eq!((world.state(1).open_call(), world.execution.live_threads), (None, 1));
    let mended = [("order".to_owned(), json("7"))].into();
    world.run(Command::SetLocalAttributes(mended)).unwrap();
    let generation = call(&world).generation;
    let events = retry_now(&mut world);
    assert_eq!(events, [Event::RetryRequested { seq: StateSeq(1), api: Api::Execute, resolves: true }]);
    let resolved = call(&world);
    assert_eq!((resolved.incident, resolved.not_before, resolved.failed_attempts), (false, world.now, 2));
    assert!(resolved.generation > generation, "a worker must not answer from memory");
    assert_eq!((world.state(1).id.number, &world.state(1).input), (1, &input));
    let done = Decision::Close { close_type: CloseType::GracefulComplete, output: None };
    world.execute(1, done);
    assert_eq!(world.execution.status, ProcessStatus::Completed);
}

#[test]
fn a_retried_incident_gets_all_attempts_of_the_policy_again() {
    let mut world = World::started(process_type(2));
    for round in 0..8 {
        let first = 2 * round + 1;
        let events = world.fail(1, Api::Execute, first);
        let Some(Event::AttemptFailed { next_attempt_at, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(next_attempt_at.since(world.now), SECOND, "the first interval");
        assert_eq!(names(&world.fail(1, Api::Execute, first + 1)).last(), Some(&"IncidentRaised"));
        assert_eq!(names(&retry_now(&mut world)), ["RetryRequested"]);
    }
}

#[test]
fn final_failures_raise_incidents_too() {
    let mut world = World::started(process_type(0));
    let Command::CallFailed(failed) = failed(1, Api::Execute, 1, world.now) else { unreachable!() };
    let failed = CallFailed { further: Further::Never, ..failed };
    assert_eq!(names(&world.run(Command::CallFailed(failed)).unwrap()), ["IncidentRaised"]);
}

#[test]
fn answers_to_a_call_with_an_incident_are_late() {
    let mut world = World::started(process_type(1));
    world.fail(1, Api::Execute, 1);
    let done = Decision::Close { close_type: CloseType::GracefulComplete, output: None };
    for late in [
        execute(1, done),
        failed(1, Api::Execute, 2, world.now),
        Command::CallRepeated { seq: StateSeq(1), api: Api::Execute },
    ] {
        assert_eq!(world.run(late), Err(Rejection::Stale));
    }
}

#[test]
fn a_stop_ends_an_incident() {
    let mut world = World::started(process_type(1));
    world.fail(1, Api::Execute, 1);
    world.run(Command::Stop { stop_type: StopType::Terminate, reason: None }).unwrap();
    let Phase::Ended { status, last_failure, .. } = &world.state(1).phase else { panic!("it has ended") };
    assert_eq!((*status, last_failure.as_ref().map(|last| last.attempt)), (StateStatus::Aborted, Some(1)));
}

#[test]
fn events_of_earlier_releases_resolve_nothing() {
    let stored = Event::from_parts("RetryRequested", r#"{"seq":1,"api":"EXECUTE_API"}"#);
    assert_eq!(stored, Ok(Event::RetryRequested { seq: StateSeq(1), api: Api::Execute, resolves: false }));
    let (_, details) = stored.unwrap().to_parts();
    assert_eq!(details, r#"{"seq":1,"api":"EXECUTE_API"}"#);
}
