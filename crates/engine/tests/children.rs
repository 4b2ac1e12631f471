//! Processes that an answer starts: what the parent and its children know of each other.

mod common;

use common::*;
use xdb_engine::*;

fn starting(start_processes: Vec<ChildStart>) -> Effects {
    Effects { start_processes, ..Effects::default() }
}

fn executed(seq: u32, start_processes: Vec<ChildStart>) -> Command {
    let answer = ExecuteAnswer { decision: next(&["Wait"]), effects: starting(start_processes) };
    Command::ExecuteAnswered { seq: StateSeq(seq), answer }
}

fn world() -> World {
    let states = [("Begin", skipping()), ("Wait", plain())];
    World::started(Definition { local_queues: Some(["shipped".to_owned()].into()), ..definition(&states) })
}

#[test]
fn an_answer_starts_children_and_the_history_names_them() {
    let mut world = world();
    assert!(!world.execution.has_children);
    let named = ChildStart { process_id: Some("ship-7".to_owned()), ..child("Shipping") };
    let command = executed(1, vec![named, child("Mail")]);
    let events = world.run(command.clone()).unwrap();
    let of = |process_id: &str, id: ExecutionId, process_type: &str| Child {
        process_id: process_id.to_owned(),
        process_execution_id: id,
        process_type: process_type.to_owned(),
    };
    let [first, second] = CHILD_IDS;
    let children = vec![of("ship-7", first, "Shipping"), of(&second.to_string(), second, "Mail")];
    assert_eq!(events[0], Event::ChildrenStarted { children });
    assert!(world.execution.has_children);
    assert_eq!(world.replayed(), world.execution);
    // The driver starts them, and tells them their parent.
    let links = NewChildren::of(&command, &events).unwrap().links(&world.execution);
    assert_eq!(links.iter().map(|(id, _)| *id).collect::<Vec<_>>(), CHILD_IDS);
    let StartedBy { process_id, state_execution_id, .. } = &links[0].1;
    assert_eq!((process_id.as_str(), state_execution_id.as_ref().unwrap().to_string()), ("p", "Begin-1".to_owned()));
}

#[test]
fn each_answer_may_start_children_also_a_failed_attempt_with_effects() {
    let mut world = world();
    let Command::CallFailed(failed) = failed(1, Api::Execute, 1, world.now) else { unreachable!() };
    let applied = Some(Box::new(starting(vec![child("Mail")])));
    let events = world.run(Command::CallFailed(CallFailed { applied, ..failed })).unwrap();
    assert!(matches!(events[0], Event::ChildrenStarted { .. }), "{events:?}");
    let answer = RpcAnswer { effects: starting(vec![child("Mail")]), ..RpcAnswer::default() };
    assert!(!answer.is_read_only());
    let command = Command::RpcAnswered { rpc_name: "go".to_owned(), answer };
    let events = world.run(command.clone()).unwrap();
    let links = NewChildren::of(&command, &events).unwrap().links(&world.execution);
    assert_eq!(links[0].1.state_execution_id, None, "an RPC has no step");
}

#[test]
fn the_queue_for_the_end_of_a_child_must_be_listed() {
    let mut world = world();
    let to = |queue: &str| ChildStart { on_close: Some(queue.to_owned()), ..child("Shipping") };
    let refused = world.run(executed(1, vec![to("shipped"), to("lost")]));
    let message = "unknown local queue \"lost\" in onClose: known are shipped".to_owned();
    assert_eq!(refused.map_err(|rejection| rejection.to_string()), Err(message));
    world.run(executed(1, vec![to("shipped")])).unwrap();
}

#[test]
fn a_child_knows_its_parent_also_after_a_snapshot() {
    let Command::Start(start) = start() else { unreachable!() };
    let parent = Box::new(StartedBy {
        process_id: "order-7".to_owned(),
        process_execution_id: ExecutionId([9; 16]),
        state_execution_id: Some(StateExecutionId { state_id: "Ship".to_owned(), number: 2 }),
        on_close: Some("shipped".to_owned()),
        when_parent_closes: WhenParentCloses::Leave,
    });
    let mut world = World::new(definition(&[("Begin", skipping())]));
    world.run(Command::Start(Box::new(Start { started_by: Some(parent.clone()), ..*start }))).unwrap();
    assert_eq!(world.execution.parent, Some(parent));
    assert_eq!(world.replayed(), world.execution);
    world.run(executed_to_itself()).unwrap();
    assert!(world.execution.has_children);
    let mut replay = Replay::new(world.execution.id);
    for (number, (event, at)) in (1..).zip(&world.history) {
        let (name, details) = event.to_parts();
        replay.event(number, *at, name, &details).unwrap();
    }
    let (snapshot, _) = replay.snapshot().unwrap();
    let mut again = Execution::new(world.execution.id);
    again.next_event = world.execution.next_event - 1;
    let (name, details) = snapshot.to_parts();
    again.apply(&Event::from_parts(name, &details).unwrap(), world.now);
    assert_eq!((again.parent, again.has_children), (world.execution.parent.clone(), true));
}

fn executed_to_itself() -> Command {
    let answer = ExecuteAnswer { decision: next(&["Begin"]), effects: starting(vec![child("Mail")]) };
    Command::ExecuteAnswered { seq: StateSeq(1), answer }
}
