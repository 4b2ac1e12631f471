//! Guards: what waits beside a state or beside the process, and ends it.

mod common;

use common::*;
use xdb_engine::StateStatus::*;
use xdb_engine::*;

fn any(commands: Vec<RequestedCommand>) -> StateConfig {
    let request = CommandRequest { waiting_type: WaitingType::Any, commands, combinations: vec![] };
    StateConfig { command_request: Some(Box::new(request)), ..StateConfig::default() }
}

fn guarded(guards: &[&str]) -> StateConfig {
    let guards = guards.iter().map(|guard| (*guard).to_owned()).collect();
    StateConfig { guards: Some(guards), ..skipping() }
}

/// `Ship` has two guards: `Nag` reminds after a day and does not interrupt, `Recall` interrupts. `Cancelled` guards the
/// process.
fn order() -> Definition {
    let nag = StateConfig { interrupting: Some(false), ..any(vec![timer(86_400)]) };
    let states = [
        ("Ship", guarded(&["Nag", "Recall"])),
        ("Nag", nag),
        ("Recall", any(vec![from_queue("recall", 1, 1)])),
        ("Cancelled", any(vec![from_queue("cancel", 1, 1)])),
        ("Done", skipping()),
    ];
    Definition { guards: vec!["Cancelled".to_owned()], ..definition(&states) }
}

// Ship-1 is 1, Nag-1 is 2, Recall-1 is 3, Cancelled-1 is 4.
fn shipping() -> World {
    World::started(order())
}

fn counts(world: &World) -> (u32, u32) {
    (world.execution.live_threads, world.execution.waiting_guards)
}

#[test]
fn guards_start_with_their_state_and_are_no_threads() {
    let world = shipping();
    let started: Vec<_> = world.history.iter().map(|(event, _)| event.name()).collect();
    let guard = ["StateStarted", "WaitStarted"];
    assert_eq!(started, [&["ProcessStarted", "StateStarted"][..], &guard, &guard, &guard].concat());
    assert_eq!(counts(&world), (1, 3));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn an_interrupting_boundary_timer_ends_the_state_that_it_guards() {
    let mut states = order();
    states.states.get_mut("Nag").unwrap().interrupting = None;
    let mut world = World::started(states);
    world.pass(86_400);
    let events = world.fire(2, 0).unwrap();
    assert_eq!(names(&events), ["CommandCompleted", "WaitCompleted", "StateAborted", "StateAborted"]);
    assert_eq!([1, 2, 3, 4].map(|seq| world.status(seq)), [Aborted, Execute, Aborted, Waiting]);
    assert_eq!(counts(&world), (1, 1));
    assert_eq!(world.decide(&execute(1, next(&["Done"]))), Err(Rejection::Stale), "its answer comes too late");
    let Phase::Execute { results: Some(wait), .. } = &world.state(2).phase else { panic!("it is at execute") };
    assert_eq!(wait.guards.as_ref().map(ToString::to_string).as_deref(), Some("Ship-1"));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn the_answer_that_comes_first_ends_the_guards_before_its_next_states_start() {
    let mut world = shipping();
    let events = world.run(execute(1, next(&["Done"]))).unwrap();
    assert_eq!(names(&events), ["StateCompleted", "StateAborted", "StateAborted", "StateStarted"]);
    assert_eq!(counts(&world), (1, 1), "the guard of the process waits on");
    world.pass(86_400);
    assert_eq!(world.fire(2, 0), Err(Rejection::Stale));
    world.publish("recall", &["1"]);
    assert_eq!(world.queued("recall"), ["1"]);
}

#[test]
fn a_guard_that_does_not_interrupt_runs_beside_and_starts_again_as_a_guard() {
    let mut world = shipping();
    world.pass(86_400);
    assert_eq!(names(&world.fire(2, 0).unwrap()), ["CommandCompleted", "WaitCompleted"]);
    assert_eq!(counts(&world), (2, 2));
    world.execute(2, next(&["Nag"]));
    assert_eq!((world.status(5), counts(&world)), (Waiting, (1, 3)), "Ship-1 lives");
    world.execute(1, next(&["Nag"]));
    assert_eq!([5, 6].map(|seq| world.status(seq)), [Aborted, Waiting]);
    assert_eq!(counts(&world), (1, 1), "nothing lists it that lives, so it is an ordinary thread");
}

#[test]
fn a_guard_of_the_process_ends_all_other_threads_and_guards() {
    let mut world = shipping();
    world.execute(1, next(&["Ship", "Ship", "Done"]));
    assert_eq!(counts(&world), (3, 3), "both steps of Ship have one set of guards");
    world.publish("cancel", &["1"]);
    assert_eq!(counts(&world), (1, 0));
    assert_eq!(world.status(4), Execute);
    let Phase::Execute { results: Some(wait), .. } = &world.state(4).phase else { panic!("it is at execute") };
    assert_eq!(wait.guards, None, "it guards the process");
    world.execute(4, next(&["Cancelled"]));
    assert_eq!(counts(&world), (0, 1), "it is a guard of the process again");
    assert!(world.execution.is_running());
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn the_first_of_two_guards_wins_and_the_message_of_the_other_stays() {
    let mut definition = order();
    definition.states.insert("Nag".to_owned(), any(vec![from_queue("nag", 1, 1)]));
    let mut world = World::started(definition);
    let both = vec![message("recall", None, "1"), message("nag", None, "2")];
    world.run(Command::MessagesArrived(both)).unwrap();
    assert_eq!([1, 2, 3].map(|seq| world.status(seq)), [Aborted, Execute, Aborted], "Nag has waited longer");
    assert_eq!(world.queued("recall"), ["1"]);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_guard_is_served_before_the_state_that_waits_for_the_same_queue() {
    let pay = StateConfig { guards: Some(vec!["Recall".to_owned()]), ..any(vec![from_queue("recall", 1, 1)]) };
    let mut definition = order();
    definition.states.insert("Pay".to_owned(), pay);
    let mut world = World::started(definition);
    world.execute(1, next(&["Pay"]));
    // Pay-1 is 5, and its Recall-2 is 6.
    assert_eq!([5, 6].map(|seq| world.status(seq)), [Waiting, Waiting]);
    world.publish("recall", &["1"]);
    assert_eq!([5, 6].map(|seq| world.status(seq)), [Aborted, Execute]);
}

#[test]
fn a_message_that_the_answer_of_a_state_publishes_to_its_own_guard_stays() {
    let mut world = shipping();
    let effects = Effects { publish_to_local_queue: vec![message("recall", None, "1")], ..Effects::default() };
    let answer = ExecuteAnswer { decision: next(&["Done"]), effects };
    world.run(Command::ExecuteAnswered { seq: StateSeq(1), answer }).unwrap();
    assert_eq!([1, 3, 5].map(|seq| world.status(seq)), [Completed, Aborted, Execute]);
    assert_eq!(world.queued("recall"), ["1"], "the state has ended before the guard");
}

#[test]
fn a_message_that_an_answer_publishes_to_a_guard_of_the_process_ends_what_follows() {
    let mut world = shipping();
    let effects = Effects { publish_to_local_queue: vec![message("cancel", None, "1")], ..Effects::default() };
    let answer = ExecuteAnswer { decision: next(&["Done"]), effects };
    world.run(Command::ExecuteAnswered { seq: StateSeq(1), answer }).unwrap();
    assert_eq!([1, 4, 5].map(|seq| world.status(seq)), [Completed, Execute, Aborted]);
}

#[test]
fn a_graceful_completion_does_not_wait_for_guards() {
    let mut world = shipping();
    let events = world.run(execute(1, close(CloseType::GracefulComplete))).unwrap();
    let aborts = ["StateAborted", "StateAborted"];
    assert_eq!(names(&events), [&["StateCompleted"][..], &aborts, &["CompletionRequested", "ProcessClosed"]].concat());
    assert_eq!((world.execution.status, world.status(4)), (ProcessStatus::Completed, Aborted));
    assert_eq!(counts(&world), (0, 0));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn timers_of_guards_count_from_when_their_state_may_start() {
    let mut definition = order();
    definition.states.insert("Go".to_owned(), skipping());
    definition.starting_state = Some("Go".to_owned());
    let mut world = World::started(definition);
    let begin = Begin::After(Duration(10 * SECOND));
    world.execute(1, Decision::NextStates(vec![StateMovement { begin, ..movement("Ship") }]));
    let fires: Vec<_> = world.state(4).open_timers().collect();
    assert_eq!(fires, [(0, world.now + Duration(86_410 * SECOND))]);
    world.publish("recall", &["1"]);
    assert_eq!([3, 5].map(|seq| world.status(seq)), [Aborted, Execute], "it waits from the start on");
}

#[test]
fn a_state_with_an_incident_is_ended_by_its_guard() {
    let mut definition = order();
    definition
        .states
        .insert("Ship".to_owned(), StateConfig { guards: guarded(&["Recall"]).guards, ..raising(attempts(1)) });
    let mut world = World::started(definition);
    world.fail(1, Api::WaitUntil, 1);
    assert_eq!(counts(&world), (1, 2), "its guards wait on");
    world.publish("recall", &["1"]);
    assert_eq!([1, 2].map(|seq| world.status(seq)), [Aborted, Execute]);
}
