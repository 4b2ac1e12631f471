//! A worker may ask for very many things. The cost of a decision must be proportional to their number.

mod common;

use common::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdb_engine::*;

/// The result and the time of the fastest of five runs, so that other load of the machine does not count.
fn fastest<T>(body: impl Fn() -> T) -> (T, Duration) {
    let timed = || {
        let began = Instant::now();
        (body(), began.elapsed())
    };
    std::iter::repeat_with(timed).take(5).min_by_key(|(_, took)| *took).expect("five runs")
}

#[test]
fn commands_are_served_in_proportion_to_their_number() {
    let many = 10_000;
    let mut world = World::started(definition(&[("A", plain())]));
    // The commands of a queue without messages come before the commands that are served.
    let mut commands = vec![from_queue("silent", 1, 1); many];
    commands.extend(vec![from_queue("busy", 1, 1); many]);
    let began = Instant::now();
    world.wait_until(1, WaitingType::All, commands);
    let to_wait = began.elapsed();

    let messages = (0..many).map(|_| Publish { queue: "busy".to_owned(), message_id: None, payload: None }).collect();
    let command = Command::MessagesArrived(messages);
    let (events, to_serve) = fastest(|| world.decide(&command).unwrap());
    assert_eq!(events.len(), 1 + many, "one received them all, and each command took one");
    // Both decisions pass all commands once. One pass for each message would take hundreds of times as long.
    assert!(to_serve < 20 * to_wait, "{to_wait:?} to begin waiting, {to_serve:?} to be served");
}

#[test]
fn consuming_global_messages_takes_time_in_proportion_to_their_number() {
    let many = 100_000;
    let mut world = World::started(definition(&[("A", plain())]));
    world.wait_until(1, WaitingType::All, vec![from_global("g", None, many, many), timer(60)]);
    world.free = (0..u64::from(many)).map(|number| global_message(number, "g", None, "1")).collect();
    let began = Instant::now();
    let copy = world.free.clone();
    let to_copy = began.elapsed();

    let (events, to_take) = fastest(|| world.decide(&Command::GlobalMessagesArrived { seq: StateSeq(1) }).unwrap());
    assert_eq!(events, [Event::GlobalMessagesTaken { seq: StateSeq(1), command: 0, messages: copy }]);
    // Comparing all pairs would take hundreds of times as long.
    assert!(to_take < 50 * to_copy, "{to_copy:?} to copy them, {to_take:?} to take them");
}

/// Steps with a static wait, steps that have the guard `G`, and steps of the guard `G` without anything to guard.
#[test]
fn next_states_begin_to_wait_in_proportion_to_their_number() {
    let many = 10_000;
    let waiting = |guards: &[&str]| {
        let request =
            CommandRequest { waiting_type: WaitingType::Any, commands: vec![timer(60)], combinations: vec![] };
        let guards = guards.iter().map(|guard| (*guard).to_owned()).collect();
        StateConfig { command_request: Some(Box::new(request)), guards: Some(guards), ..StateConfig::default() }
    };
    let states = [
        ("A", skipping()),
        ("Leaf", skipping()),
        ("Static", waiting(&[])),
        ("Kept", waiting(&["G"])),
        ("G", waiting(&[])),
    ];
    let world = World::started(definition(&states));
    let fan = |state| fastest(|| world.decide(&execute(1, next(&vec![state; many]))).unwrap());
    let (_, to_start) = fan("Leaf");
    for (state, guards) in [("Static", 0), ("Kept", 1), ("G", 0)] {
        let (events, to_wait) = fan(state);
        assert_eq!(events.len(), 1 + 2 * (many + guards), "each started, and began to wait");
        // One pass through all steps for each would take thousands of times as long.
        assert!(to_wait < 50 * to_start, "{to_start:?} to start, {to_wait:?} to wait in {state}");
    }
}

#[test]
fn timers_that_come_due_together_fire_together() {
    let many = 10_000;
    let mut world = World::started(definition(&[("A", plain())]));
    let mut commands = vec![timer(60); many];
    commands.push(timer(61));
    world.wait_until(1, WaitingType::All, commands);
    world.pass(60);
    // One decision completes all timers. One decision for each would copy all commands each time.
    assert_eq!(world.fire(1, 7).unwrap().len(), many);
    assert_eq!(world.status(1), StateStatus::Waiting, "the last one is not due");
    for command in 0..many as u32 {
        assert_eq!(world.fire(1, command), Err(Rejection::Stale));
    }
    world.pass(1);
    assert_eq!(names(&world.fire(1, many as u32).unwrap()), ["CommandCompleted", "WaitCompleted"]);
    assert_eq!(world.replayed(), world.execution);
}

/// Every decision works on a copy, and a process with many threads may have many states loaded.
#[test]
fn a_copy_shares_unchanged_parts() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", skipping())]));
    world.execute(1, next(&["B"; 100]));
    world.publish("q", &["1"; 100]);
    let before = world.execution.clone();
    world.execute(2, close(CloseType::DeadEnd));
    world.publish("q", &["2"]);
    let now = &world.execution;
    let same = |seq: &StateSeq| Arc::ptr_eq(&before.states[seq], &now.states[seq]);
    let changed: Vec<_> = before.states.keys().filter(|seq| !same(seq)).collect();
    assert_eq!(changed, [&StateSeq(2)]);
    assert_eq!(before.states[&StateSeq(2)].status(), StateStatus::Execute, "the copy stays as it was");
    let messages = before.queues["q"].iter().zip(&now.queues["q"]);
    assert_eq!(messages.filter(|(old, new)| Arc::ptr_eq(old, new)).count(), 100);
    assert_eq!((before.queues["q"].len(), now.queues["q"].len()), (100, 101));
}
