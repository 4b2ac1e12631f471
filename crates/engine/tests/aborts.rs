//! Threads that an answer or a caller ends: `abortStates` and `xdb.move_state`.

mod common;

use common::*;
use xdb_engine::StateStatus::{Aborted, Completed, Execute, WaitUntil, Waiting};
use xdb_engine::*;

fn named(names: &[&str]) -> Option<AbortStates> {
    Some(AbortStates::Named(names.iter().map(|name| (*name).to_owned()).collect()))
}

fn aborting(seq: u32, abort_states: Option<AbortStates>, decision: Decision) -> Command {
    let effects = Effects { abort_states, ..Effects::default() };
    Command::ExecuteAnswered { seq: StateSeq(seq), answer: ExecuteAnswer { decision, effects } }
}

fn by_rpc(abort_states: Option<AbortStates>, decision: Option<Decision>) -> Command {
    let effects = Effects { abort_states, ..Effects::default() };
    Command::RpcAnswered { rpc_name: "cancel".to_owned(), answer: RpcAnswer { output: None, decision, effects } }
}

fn moved(seq: u32, next: &[&str]) -> Command {
    let next = next.iter().map(|state_id| movement(state_id)).collect();
    Command::MoveState { seq: StateSeq(seq), next, reason: Some("by hand".to_owned()) }
}

/// A process with the threads `Lead-1`, `Pack-1`, `Pack-2` and `Pay-1`, in the order of their numbers.
fn with_four_threads() -> World {
    let mut world = World::started(definition(&[
        ("Lead", skipping()),
        ("Pack", plain()),
        ("Pay", skipping()),
        ("End", skipping()),
    ]));
    world.execute(1, next(&["Lead", "Pack", "Pack", "Pay"]));
    world
}

fn statuses(world: &World) -> [StateStatus; 4] {
    [2, 3, 4, 5].map(|seq| world.status(seq))
}

#[test]
fn an_answer_ends_the_named_steps_and_all_steps_of_the_named_states() {
    for (names, expected) in [
        (named(&["Pack"]), [Completed, Aborted, Aborted, Execute]),
        (named(&["Pack-2", "Pay-1"]), [Completed, WaitUntil, Aborted, Aborted]),
        (named(&["Lead", "Pay"]), [Completed, WaitUntil, WaitUntil, Aborted]),
        (named(&["Pack-9", "End"]), [Completed, WaitUntil, WaitUntil, Execute]),
        (Some(AbortStates::All), [Completed, Aborted, Aborted, Aborted]),
    ] {
        let mut world = with_four_threads();
        world.run(aborting(2, names, next(&["End"]))).unwrap();
        assert_eq!(statuses(&world), expected);
        assert_eq!(world.status(6), Execute, "the answering step goes on");
        let live = expected.iter().filter(|status| status.is_live()).count() as u32 + 1;
        assert_eq!(world.execution.live_threads, live);
        assert_eq!(world.replayed(), world.execution);
    }
}

#[test]
fn an_aborted_step_has_no_call_and_no_timer_any_more() {
    let mut world = with_four_threads();
    world.wait_until(3, WaitingType::All, vec![timer(10), timer(20)]);
    assert_eq!(world.execution.timers, 2);
    world.run(aborting(2, named(&["Pack", "Pay"]), next(&["Lead"]))).unwrap();
    assert_eq!(world.execution.timers, 0);
    world.pass(30);
    assert_eq!(world.fire(3, 0), Err(Rejection::Stale));
    assert_eq!(world.run(execute(5, next(&["End"]))), Err(Rejection::Stale));
    assert_eq!(world.run(failed(5, Api::Execute, 1, world.now)), Err(Rejection::Stale));
}

#[test]
fn messages_of_an_aborted_step_go_back_to_their_places_and_serve_the_next_waiting_step() {
    let mut world = with_four_threads();
    world.wait_until(3, WaitingType::All, vec![from_queue("q", 2, 2), timer(60)]);
    world.publish("q", &["1", "2", "3"]);
    assert_eq!(world.queued("q"), ["3"]);
    world.wait_until(4, WaitingType::All, vec![from_queue("q", 3, 3)]);
    assert_eq!(world.status(4), Waiting, "there is one message");
    world.run(aborting(2, named(&["Pack-1"]), next(&["Lead"]))).unwrap();
    assert_eq!(world.status(4), Execute);
    assert_eq!(world.results(4)[0].1, ["1", "2", "3"]);
    assert_eq!(world.execution.queued, QueuedTotal::default());
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn messages_of_a_step_whose_wait_is_over_go_back_too() {
    let mut world = with_four_threads();
    world.wait_until(3, WaitingType::All, vec![from_queue("q", 1, 2), from_global("G", None, 1, 1)]);
    world.publish("q", &["1", "2"]);
    world.free.push(global_message(7, "G", None, "\"g\""));
    world.offer(3).unwrap();
    assert_eq!(world.status(3), Execute);
    world.publish("q", &["3"]);
    let held: Vec<u64> = world.state(3).held_global_messages().map(|(_, message)| message.number).collect();
    assert_eq!(held, [7]);
    world.run(aborting(2, named(&["Pack-1"]), next(&["Lead"]))).unwrap();
    assert_eq!(world.queued("q"), ["1", "2", "3"]);
    assert_eq!(world.execution.queued.messages, 3);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn an_rpc_ends_steps_and_the_last_one_completes_a_process_that_was_to_complete() {
    let mut world = with_four_threads();
    world.execute(2, close(CloseType::GracefulComplete));
    world.run(by_rpc(named(&["Pack"]), None)).unwrap();
    assert!(world.execution.is_running() && world.execution.live_threads == 1);
    world.run(by_rpc(Some(AbortStates::All), None)).unwrap();
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    let mut world = with_four_threads();
    world.run(by_rpc(Some(AbortStates::All), Some(next(&["End"])))).unwrap();
    assert_eq!((statuses(&world), world.status(6)), ([Aborted; 4], Execute));
    let mut world = with_four_threads();
    world.run(by_rpc(Some(AbortStates::All), None)).unwrap();
    assert!(world.execution.is_running(), "nothing asked for its completion");
}

#[test]
fn names_that_the_definition_does_not_have_are_refused() {
    for name in ["Nowhere", "Nowhere-1", "*", "Pack-", "Pack-0", ""] {
        let world = with_four_threads();
        let refused = world.decide(&aborting(2, named(&["Pay", name]), next(&["End"])));
        let message = format!("unknown state \"{name}\" in abortStates: known are End, Lead, Pack, Pay");
        assert_eq!(refused.map_err(|rejection| rejection.to_string()), Err(message));
    }
    let mut world = with_four_threads();
    world.execute(2, next(&["End"]));
    let late = aborting(2, named(&["Nowhere"]), next(&["End"]));
    assert_eq!(world.decide(&late), Err(Rejection::Stale), "a late answer is late, whatever it says");
}

#[test]
fn aborted_threads_make_room_for_new_ones() {
    let mut world = with_four_threads();
    world.quotas.threads = 4;
    let wide = next(&["End", "End", "End", "End"]);
    assert!(matches!(world.decide(&aborting(2, None, wide.clone())), Err(Rejection::OverQuota(_))));
    world.run(aborting(2, named(&["Pack", "Pay"]), wide)).unwrap();
    assert_eq!(world.execution.live_threads, 4);
}

#[test]
fn a_step_is_moved_and_its_incident_ends() {
    let mut world = World::started(definition(&[("A", raising(attempts(1))), ("B", skipping())]));
    world.fail(1, Api::WaitUntil, 1);
    assert!(world.state(1).current_call().is_some_and(|(_, call)| call.incident));
    let events = world.run(moved(1, &["B", "A"])).unwrap();
    assert_eq!(names(&events), ["StateAborted", "StateStarted", "StateStarted"]);
    assert_eq!((world.status(1), world.status(2), world.status(3)), (Aborted, Execute, WaitUntil));
    assert_eq!(world.decide(&moved(1, &["B"])), Err(Rejection::Stale), "it has ended");
    assert!(matches!(world.decide(&moved(2, &["Nowhere"])), Err(Rejection::UnknownState { .. })));
    world.run(moved(2, &[])).unwrap();
    assert_eq!((world.status(2), world.execution.live_threads), (Aborted, 1));
    assert!(world.execution.is_running());
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn attempts_that_were_not_recorded_are_summed_up_before_the_step_is_aborted() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", attempts(99))]));
    world.execute(1, next(&["A", "B"]));
    for attempt in 1..=12 {
        world.fail(3, Api::WaitUntil, attempt);
    }
    let events = world.decide(&aborting(2, named(&["B"]), next(&["A"]))).unwrap();
    assert_eq!(names(&events), ["AttemptsFolded", "StateAborted", "StateCompleted", "StateStarted"]);
}
