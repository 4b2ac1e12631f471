//! Global queues, as one execution sees them. Free messages are offered to its states in memory.

mod common;

use common::*;
use xdb_engine::CommandStatus::{Completed, Waiting};
use xdb_engine::*;

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn waiting() -> World {
    World::started(definition(&[("A", plain()), ("B", skipping())]))
}

#[test]
fn a_wait_for_any_consumes_all_messages_available_at_that_moment() {
    let mut world = waiting();
    world.publish("local", &["1"]);
    world.free = vec![global_message(7, "g", None, "2"), global_message(9, "g", Some("k"), "3")];
    world.wait_until(
        1,
        WaitingType::Any,
        vec![
            timer(60),
            from_queue("local", 1, 1),
            from_global("g", None, 1, 1),
            from_global("g", Some("k"), 1, 5),
            from_global("h", None, 1, 1),
        ],
    );
    assert_eq!(world.status(1), StateStatus::Execute);
    assert_eq!(
        world.results(1),
        [
            (Waiting, vec![]),
            (Completed, strings(&["1"])),
            (Completed, strings(&["2"])),
            (Completed, strings(&["3"])),
            (Waiting, vec![]),
        ]
    );
    assert_eq!(world.free, []);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn commands_are_evaluated_in_request_order() {
    let mut world = waiting();
    world.wait_until(1, WaitingType::All, vec![from_global("g", Some("k"), 2, 2), from_global("g", None, 1, 3)]);
    world.free = vec![global_message(1, "g", Some("k"), "1"), global_message(2, "g", Some("l"), "2")];
    // There are too few messages for the first command, so the second one consumes them.
    assert_eq!(names(&world.offer(1).unwrap()), ["GlobalMessagesTaken"]);
    assert_eq!(world.results(1), [(Waiting, vec![]), (Completed, strings(&["1", "2"]))]);
    assert_eq!(world.offer(1).unwrap(), []);
    world.free = vec![global_message(3, "g", Some("k"), "3"), global_message(4, "g", Some("k"), "4")];
    assert_eq!(names(&world.offer(1).unwrap()), ["GlobalMessagesTaken", "WaitCompleted"]);
    assert_eq!(world.offer(1), Err(Rejection::Stale));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_wait_for_all_keeps_its_messages_while_other_commands_wait() {
    let mut world = waiting();
    world.wait_until(1, WaitingType::All, vec![timer(60), from_global("g", None, 1, 2)]);
    world.free = (1..=3).map(|n| global_message(n, "g", None, &n.to_string())).collect();
    world.offer(1).unwrap();
    let held: Vec<u64> = world.state(1).held_global_messages().map(|(_, message)| message.number).collect();
    assert_eq!((held, world.state(1).global_demands().count(), world.free.len()), (vec![1, 2], 0, 1));
    world.pass(60);
    assert_eq!(names(&world.fire(1, 0).unwrap()), ["CommandCompleted", "WaitCompleted"]);
    assert_eq!(world.state(1).held_global_messages().count(), 2);
    world.execute(1, close(CloseType::DeadEnd));
    assert_eq!(world.state(1).held_global_messages().count(), 0);
}

#[test]
fn a_message_of_a_local_queue_does_not_make_other_states_consume_global_messages() {
    let mut world = World::started(definition(&[("B", skipping()), ("A", plain())]));
    world.execute(1, next(&["A", "A"]));
    world.wait_until(2, WaitingType::Any, vec![from_global("g", None, 1, 1)]);
    world.free = vec![global_message(1, "g", None, "1")];
    // The message is offered to the state that begins to wait. States that wait longer were asked before.
    world.wait_until(3, WaitingType::Any, vec![from_global("g", None, 1, 1)]);
    assert_eq!((world.status(2), world.status(3)), (StateStatus::Waiting, StateStatus::Execute));
}

#[test]
fn a_global_publish_is_an_event_with_the_whole_message() {
    let mut world = waiting();
    let publish = |queue: &str, ttl: Option<Duration>| GlobalPublish {
        queue: queue.to_owned(),
        key: Some("k".to_owned()),
        message_id: Some("m".to_owned()),
        payload: Some(json("1.50")),
        ttl,
    };
    let effects = Effects {
        publish_to_global_queue: vec![publish("g", Some(Duration(5))), publish("h", None)],
        ..Effects::default()
    };
    let request = CommandRequest { waiting_type: WaitingType::Empty, commands: vec![], combinations: vec![] };
    let answer = WaitUntilAnswer { request, effects: effects.clone() };
    let events = world.run(Command::WaitUntilAnswered { seq: StateSeq(1), answer }).unwrap();
    let Event::GlobalMessagesPublished { publisher: Publisher::State, messages } = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(messages[0].expires_at, Some(world.now + Duration(5)));
    assert_eq!((messages[1].queue.as_str(), messages[1].expires_at), ("h", None));
    let (name, details) = events[0].to_parts();
    assert_eq!(Event::from_parts(name, &details), Ok(events[0].clone()));

    let rpc = RpcAnswer { effects: effects.clone(), ..RpcAnswer::default() };
    assert!(!rpc.is_read_only());
    let events = world.run(Command::RpcAnswered { rpc_name: "r".to_owned(), answer: rpc }).unwrap();
    assert_eq!(names(&events), ["RpcApplied", "GlobalMessagesPublished"]);

    world.definition.global_queues = ["g".to_owned()].into();
    let answer = ExecuteAnswer { decision: next(&["B"]), effects };
    let refused = world.run(Command::ExecuteAnswered { seq: StateSeq(1), answer });
    assert_eq!(refused, Err(Rejection::UnknownGlobalQueue("h".to_owned())));
    world.execute(1, next(&["A"]));
    let commands = vec![from_global("h", None, 1, 1)];
    let request = CommandRequest { waiting_type: WaitingType::Any, commands, combinations: vec![] };
    let answer = WaitUntilAnswer { request, effects: Effects::default() };
    let refused = world.run(Command::WaitUntilAnswered { seq: StateSeq(2), answer });
    assert_eq!(refused, Err(Rejection::UnknownGlobalQueue("h".to_owned())));
}
