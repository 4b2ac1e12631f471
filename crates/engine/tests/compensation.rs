//! Undo in reverse: what completed steps did is undone, the latest first.

mod common;

use common::*;
use xdb_engine::StateStatus::*;
use xdb_engine::*;

fn undone_by(state_id: &str) -> StateConfig {
    StateConfig { compensation_state_id: Some(state_id.to_owned()), ..skipping() }
}

/// `Reserve`, then `Charge`, then `Ship`. `Free` and `Refund` undo the first two.
fn saga() -> Definition {
    let fails = FailureRecovery { policy: FailurePolicy::Compensate, ..FailureRecovery::default() };
    let ship = StateConfig { skip_wait_until: Some(true), state_failure_recovery_options: Some(fails), ..attempts(1) };
    definition(&[
        ("Reserve", undone_by("Free")),
        ("Charge", undone_by("Refund")),
        ("Ship", ship),
        ("Free", skipping()),
        ("Refund", skipping()),
    ])
}

fn with_input(state_id: &str, input: &str) -> Decision {
    Decision::NextStates(vec![StateMovement { input: Some(json(input)), ..movement(state_id) }])
}

/// `Ship-1` is the third step.
fn to_ship() -> World {
    let mut world = World::started(saga());
    world.execute(1, with_input("Charge", "7"));
    world.execute(2, next(&["Ship"]));
    world
}

fn ends_compensated(world: &World) {
    assert_eq!(
        (world.execution.status, world.execution.reason.as_deref()),
        (ProcessStatus::Failed, Some("compensated"))
    );
    assert_eq!(world.execution.compensation, Compensation::default());
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn backward_movement_undoes_the_completed_steps_in_reverse() {
    let mut world = to_ship();
    let noted: Vec<_> = world.execution.compensation.noted.iter().map(|noted| noted.of.to_string()).collect();
    assert_eq!(noted, ["Reserve-1", "Charge-1"]);
    let events = world.run(execute(3, close(CloseType::Compensate))).unwrap();
    assert_eq!(names(&events), ["StateCompleted", "CompensationStarted", "StateStarted"]);
    assert_eq!(world.state(4).id.to_string(), "Refund-1");
    assert_eq!(world.state(4).input, Some(json("7")), "it gets the input of what it undoes");
    assert_eq!(world.execution.compensation.of.as_ref().map(ToString::to_string).as_deref(), Some("Charge-1"));
    world.execute(4, close(CloseType::GracefulComplete));
    assert!(world.execution.is_running() && !world.execution.completing, "it ends its thread alone");
    assert_eq!(world.state(5).id.to_string(), "Free-1");
    assert_eq!(world.state(5).input, world.state(1).input);
    world.execute(5, close(CloseType::DeadEnd));
    ends_compensated(&world);
}

#[test]
fn an_undo_and_a_recovery_are_threads_although_their_state_guards_the_process() {
    let request =
        CommandRequest { waiting_type: WaitingType::Any, commands: vec![from_queue("go", 1, 1)], combinations: vec![] };
    let asks = StateConfig { command_request: Some(Box::new(request)), ..StateConfig::default() };
    let proceeds = FailureRecovery {
        policy: FailurePolicy::ProceedToConfiguredState,
        state_failure_proceed_state_id: Some("Ask".to_owned()),
        ..FailureRecovery::default()
    };
    let ship =
        StateConfig { skip_wait_until: Some(true), state_failure_recovery_options: Some(proceeds), ..attempts(1) };
    let states = definition(&[("Reserve", undone_by("Ask")), ("Ship", ship), ("Ask", asks)]);
    let guarded = Definition { guards: vec!["Ask".to_owned()], ..states };

    let mut world = World::started(guarded.clone());
    world.execute(1, next(&["Ship"]));
    world.execute(3, close(CloseType::Compensate));
    assert_eq!((world.state(4).id.to_string().as_str(), world.state(4).is_waiting_guard()), ("Ask-2", false));
    assert_eq!(world.execution.live_threads, 1);
    world.publish("go", &["1"]);
    world.execute(4, next(&["Ask"]));
    assert_eq!((world.state(5).id.to_string().as_str(), world.state(5).is_waiting_guard()), ("Ask-3", false));
    world.publish("go", &["2"]);
    world.execute(5, close(CloseType::DeadEnd));
    ends_compensated(&world);

    let mut world = World::started(guarded);
    world.execute(1, next(&["Ship"]));
    world.fail(3, Api::Execute, 1);
    assert_eq!((world.state(4).id.to_string().as_str(), world.state(4).is_waiting_guard()), ("Ask-2", false));
    assert_eq!(world.execution.live_threads, 1);
}

#[test]
fn a_state_whose_retries_are_spent_begins_the_compensation_by_its_policy() {
    let mut world = to_ship();
    let events = world.fail(3, Api::Execute, 1);
    assert_eq!(names(&events), ["StateFailed", "CompensationStarted", "StateStarted"]);
    let Event::CompensationStarted { reason } = &events[1] else { panic!("{events:?}") };
    assert_eq!(reason.as_deref(), Some("step Ship-1 failed at attempt 1: attempt 1"));
    world.execute(4, next(&["Ship"]));
    assert_eq!(world.execution.compensation.noted.len(), 1, "what an undo starts belongs to it");
    let events = world.fail(5, Api::Execute, 1);
    assert_eq!(names(&events), ["StateFailed", "StateStarted"], "the next one is undone");
    world.execute(6, close(CloseType::DeadEnd));
    ends_compensated(&world);
}

#[test]
fn all_threads_end_and_with_nothing_noted_the_process_fails_at_once() {
    let mut world = World::started(definition(&[("Split", skipping()), ("Nap", plain())]));
    world.execute(1, next(&["Nap", "Nap", "Split"]));
    let events = world.run(execute(4, close(CloseType::Compensate))).unwrap();
    let expected = ["StateCompleted", "CompensationStarted", "StateAborted", "StateAborted", "ProcessClosed"];
    assert_eq!(names(&events), expected);
    ends_compensated(&world);
}

#[test]
fn a_forced_close_ends_a_compensation_and_an_rpc_can_begin_one() {
    let mut world = to_ship();
    let answer = RpcAnswer { decision: Some(close(CloseType::Compensate)), ..RpcAnswer::default() };
    let events = world.run(Command::RpcAnswered { rpc_name: "r".to_owned(), answer }).unwrap();
    assert_eq!(names(&events), ["RpcApplied", "CompensationStarted", "StateAborted", "StateStarted"]);
    assert_eq!(world.status(3), Aborted);
    world.execute(4, close(CloseType::ForceComplete));
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_step_that_is_moved_or_aborted_is_not_undone_and_the_next_undo_follows_a_move() {
    let mut world = World::started(saga());
    let moved = |seq, next: Vec<StateMovement>| Command::MoveState { seq: StateSeq(seq), next, reason: None };
    world.run(moved(1, vec![movement("Charge")])).unwrap();
    assert_eq!(world.execution.compensation, Compensation::default());
    world.execute(2, next(&["Ship"]));
    world.execute(3, close(CloseType::Compensate));
    world.run(moved(4, vec![])).unwrap();
    ends_compensated(&world);
}

#[test]
fn a_thousand_steps_can_be_undone_and_no_more() {
    let mut world = World::started(definition(&[("A", undone_by("A"))]));
    for seq in 1..=1000 {
        world.execute(seq, next(&["A"]));
    }
    let refused = world.decide(&execute(1001, next(&["A"]))).unwrap_err();
    assert_eq!(refused.to_string(), "the process would have more than 1000 compensations");
    world.execute(1001, close(CloseType::Compensate));
    assert_eq!(world.state(1002).id.to_string(), "A-1002");
    assert_eq!(world.execution.compensation.of.as_ref().map(ToString::to_string).as_deref(), Some("A-1000"));
}
