//! Limits of one process. An answer that exceeds one can't be applied. Things that were stored under other limits stay
//! valid.

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
        Err(Rejection::OverQuota(what)) => assert!(what.contains(words), "{what}"),
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
    // The limit is reached: a thread may begin only if another one ends.
    refused(world.decide(&execute(2, Decision::NextStates(movements(2)))), "4 threads");
    refused(world.decide(&rpc(1)), "4 threads");
    world.execute(2, Decision::NextStates(movements(1)));
    // The same is true if the limit was lowered meanwhile.
    world.quotas.threads = 1;
    world.execute(3, Decision::NextStates(movements(1)));
    refused(world.decide(&execute(4, Decision::NextStates(movements(2)))), "4 threads");
}

#[test]
fn a_process_has_no_more_locks_than_it_may() {
    let locks =
        |names: std::ops::Range<usize>, mode| -> ProcessLocks { names.map(|n| (n.to_string(), mode)).collect() };
    let mut definition = definition(&[("A", skipping())]);
    definition.locks = locks(0..20, LockMode::Exclusive);
    let mut world = World::new(definition);
    let start = |locks: ProcessLocks| match start() {
        Command::Start(start) => Command::Start(Box::new(Start { locks, ..*start })),
        other => other,
    };
    refused(world.decide(&start(locks(19..33, LockMode::Share))), "33 locks");
    world.run(start(locks(19..32, LockMode::Share))).unwrap();
    let expected = [locks(0..20, LockMode::Exclusive), locks(20..32, LockMode::Share)].into_iter().flatten().collect();
    assert_eq!(world.execution.locks, expected, "the stronger mode counts");
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

#[test]
fn an_execution_has_no_more_timers_than_it_may() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.quotas = Quotas { threads: 5, ..Quotas::NONE };
    let wait = |commands: Vec<RequestedCommand>| {
        let request = CommandRequest { waiting_type: WaitingType::All, commands, combinations: Vec::new() };
        Command::WaitUntilAnswered {
            seq: StateSeq(1),
            answer: WaitUntilAnswer { request, effects: Effects::default() },
        }
    };
    refused(world.decide(&wait(vec![timer(1); 6])), "6 timers; the limit is 5");
    // The timers of its other states count too.
    world.execution.timers = 4;
    refused(world.decide(&wait(vec![timer(1); 2])), "6 timers");
    assert!(world.decide(&wait(vec![timer(1)])).is_ok());
    // Too many timers are no reason to refuse an answer without timers.
    world.execution.timers = 100;
    assert!(world.decide(&wait(vec![from_queue("q", 1, 1)])).is_ok());
}

#[test]
fn a_full_queue_accepts_no_messages_of_answers() {
    let mut world = world(Quotas { queue_messages: 2, queue_bytes: 100, ..Quotas::NONE });
    let publishes = |local: &[&str], globals: &[&str]| {
        let global = |queue: &&str| GlobalPublish {
            queue: (*queue).to_owned(),
            key: None,
            message_id: None,
            payload: None,
            ttl: None,
        };
        let effects = Effects {
            publish_to_local_queue: local.iter().map(|queue| message(queue, None, "1")).collect(),
            publish_to_global_queue: globals.iter().map(global).collect(),
            ..Effects::default()
        };
        Command::RpcAnswered { rpc_name: "r".to_owned(), answer: RpcAnswer { output: None, decision: None, effects } }
    };
    world.run(publishes(&["full"], &[])).unwrap();
    assert!(world.decide(&publishes(&["full"], &[])).is_ok());
    // Messages of callers were accepted when they were published.
    world.run(Command::MessagesArrived(vec![message("full", None, "1")])).unwrap();
    refused(
        world.decide(&publishes(&["other", "full"], &[])),
        "local queue \"full\" is full: xdb.max_queue_messages is 2",
    );
    // Empty queues accept messages up to twice the limit.
    world.run(publishes(&["other"], &["any"])).unwrap();
    refused(world.decide(&publishes(&["other"], &[])), "local queue \"other\" is full");
    world.run(publishes(&["another"], &[])).unwrap();
    refused(world.decide(&publishes(&["yet another"], &[])), "local queue \"yet another\" is full");
    assert_eq!(world.execution.queued, QueuedTotal { messages: 4, bytes: 4 });
    world.quotas = Quotas { queue_bytes: 4, ..Quotas::NONE };
    refused(world.decide(&publishes(&["full"], &[])), "with 4 bytes together");
    world.quotas = Quotas { queue_bytes: 8, ..Quotas::NONE };
    world.global_queues_full = true;
    refused(world.decide(&publishes(&[], &["any"])), "with 8 bytes together");
    assert!(world.decide(&publishes(&["full"], &[])).is_ok());
}

#[test]
fn no_options_ask_for_a_longer_call_than_there_may_be() {
    let slow = |seconds| StateConfig { execute_api_timeout_seconds: Some(seconds), ..StateConfig::default() };
    let within = |options: StateConfig| StateConfig {
        state_failure_recovery_options: Some(FailureRecovery {
            policy: FailurePolicy::ProceedToConfiguredState,
            state_failure_proceed_state_id: Some("A".to_owned()),
            state_failure_proceed_state_config: Some(Box::new(options)),
        }),
        ..StateConfig::default()
    };
    // Options that are registered already stay valid.
    let mut world = World::started(definition(&[("A", skipping()), ("B", slow(7200.0))]));
    world.quotas = Quotas { call_timeout: Duration(3600 * SECOND), ..Quotas::NONE };
    let to = |options| {
        let config = Some(Box::new(options));
        execute(1, Decision::NextStates(vec![StateMovement { config, ..movement("B") }]))
    };
    refused(world.decide(&to(slow(3600.1))), "executeApiTimeoutSeconds is 3600.1 seconds; the limit is 3600");
    refused(world.decide(&to(slow(1e300))), "is 1e300 seconds");
    let path = "stateFailureRecoveryOptions.stateFailureProceedStateConfig.executeApiTimeoutSeconds";
    refused(world.decide(&to(within(slow(3601.0)))), path);
    assert!(world.decide(&to(within(slow(3600.0)))).is_ok());
    assert!(world.decide(&execute(1, next(&["B"]))).is_ok());

    let limit = world.quotas.call_timeout;
    let longer = |definition: &Definition| definition.longer_call(limit).map(|longer| longer.to_string());
    assert!(longer(&world.definition).unwrap().starts_with("states.B.executeApiTimeoutSeconds is 7200 seconds"));
    let ask = RpcConfig { timeout_seconds: Some(3601.0), ..RpcConfig::default() };
    let rpcs = Some([("ask".to_owned(), ask)].into());
    let with_rpc = Definition { rpcs, ..definition(&[("A", plain())]) };
    assert!(longer(&with_rpc).unwrap().starts_with("rpcs.ask.timeoutSeconds is 3601 seconds"));
    assert_eq!(longer(&definition(&[("A", within(slow(3600.0)))])), None);
}
