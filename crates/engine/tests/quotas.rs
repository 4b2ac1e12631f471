//! What one process may ask for: an answer that asks for more can't be applied, and what was stored under other quotas goes on.

mod common;

use common::*;
use xdb_engine::*;

fn world(quotas: Quotas) -> World {
    let mut world = World::started(definition(&[("A", skipping()), ("B", skipping())]));
    world.quotas = quotas;
    world
}

fn movements(count: usize) -> Vec<StateMovement> {
    vec![movement("B"); count]
}

fn refused(decided: Result<Vec<Event>, Rejection>, words: &str) {
    match decided {
        Err(Rejection::InvalidAnswer(what)) => assert!(what.contains(words), "{what}"),
        other => panic!("{words}: {other:?}"),
    }
}

fn rpc(next: usize) -> Command {
    let decision = Some(Decision::NextStates(movements(next)));
    let answer = RpcAnswer { output: None, decision, effects: Effects::default() };
    Command::RpcAnswered { rpc_name: "r".to_owned(), answer }
}

#[test]
fn an_answer_begins_no_more_threads_than_there_may_be() {
    let mut world = world(Quotas { threads: 3, ..Quotas::NONE });
    refused(world.decide(&execute(1, Decision::NextStates(movements(4)))), "4 threads");
    let conditional = |next: usize| Decision::ConditionalClose {
        close_type: CloseType::ForceComplete,
        output: None,
        queues: vec!["q".to_owned()],
        otherwise: movements(next),
    };
    refused(world.decide(&execute(1, conditional(4))), "4 threads");
    refused(world.decide(&rpc(3)), "4 threads");
    world.execute(1, Decision::NextStates(movements(3)));
    // It is full: one ends where one begins.
    refused(world.decide(&execute(2, Decision::NextStates(movements(2)))), "4 threads");
    refused(world.decide(&rpc(1)), "4 threads");
    world.execute(2, Decision::NextStates(movements(1)));
    // So it is where the limit was lowered meanwhile.
    world.quotas.threads = 1;
    world.execute(3, Decision::NextStates(movements(1)));
    refused(world.decide(&execute(4, Decision::NextStates(movements(2)))), "4 threads");
}

#[test]
fn a_wait_has_no_more_commands_than_it_may() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.quotas = Quotas { commands: 2, ..Quotas::NONE };
    let wait = |count: usize| {
        let request = CommandRequest {
            waiting_type: WaitingType::All,
            commands: vec![timer(1); count],
            combinations: Vec::new(),
        };
        Command::WaitUntilAnswered {
            seq: StateSeq(1),
            answer: WaitUntilAnswer { request, effects: Effects::default() },
        }
    };
    refused(world.decide(&wait(3)), "3 commands");
    world.run(wait(2)).unwrap();
}

#[test]
fn attempts_are_no_closer_than_they_may_be() {
    let hasty = RetryPolicy { initial_interval_seconds: 0.0, ..RetryPolicy::default() };
    let config = StateConfig { execute_api_retry_policy: Some(hasty), ..skipping() };
    let mut world = World::started(definition(&[("A", config)]));
    world.quotas = Quotas { retry_interval: Duration(SECOND), ..Quotas::NONE };
    let events = world.fail(1, Api::Execute, 1);
    let next = events.iter().find_map(|event| match event {
        Event::AttemptFailed { next_attempt_at, .. } => Some(*next_attempt_at),
        _ => None,
    });
    assert_eq!(next, Some(world.now + Duration(SECOND)));
}
