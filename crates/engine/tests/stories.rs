//! Processes from their start to their end, as stories in memory: each command, and the events that follow.

mod common;

use common::*;
use std::collections::BTreeMap;
use xdb_engine::CommandStatus::{Completed, Skipped, Waiting};
use xdb_engine::*;

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn a_sign_up_reminds_until_the_address_is_verified() {
    let mut definition = definition(&[("Submit", skipping()), ("Verify", plain())]);
    definition.timeout_seconds = Some(86_400.0);
    let mut world = World::started(definition);
    assert_eq!(world.execution.timeout_at, Some(world.now + Duration(86_400 * SECOND)));
    assert_eq!(world.state(1).id.to_string(), "Submit-1");
    assert_eq!(world.state(1).input, Some(json("{\"n\":1.50}")));
    assert_eq!(world.status(1), StateStatus::Execute);

    world.execute(1, next(&["Verify"]));
    for reminder in 0..2 {
        let seq = 2 + reminder;
        assert_eq!(world.state(seq).id.to_string(), format!("Verify-{}", reminder + 1));
        world.wait_until(seq, WaitingType::Any, vec![timer(3600), from_queue("verified", 1, 1)]);
        assert_eq!(world.fire(seq, 0), Err(Rejection::Stale), "a timer never fires early");
        world.pass(3600);
        assert_eq!(names(&world.fire(seq, 0).unwrap()), ["CommandCompleted", "WaitCompleted"]);
        assert_eq!(world.fire(seq, 0), Err(Rejection::Stale), "and fires once");
        assert_eq!(world.results(seq), [(Completed, vec![]), (Waiting, vec![])]);
        world.execute(seq, next(&["Verify"]));
    }
    world.wait_until(4, WaitingType::Any, vec![timer(3600), from_queue("verified", 1, 1)]);
    world.publish("verified", &["\"yes\""]);
    assert_eq!(world.results(4), [(Waiting, vec![]), (Completed, strings(&["\"yes\""]))]);
    let output = Some(json("\"welcome\""));
    world.execute(4, Decision::Close { close_type: CloseType::GracefulComplete, output });

    assert_eq!(world.execution.status, ProcessStatus::Completed);
    assert_eq!(world.execution.closed_at, Some(world.now));
    assert_eq!(world.execution.results.len(), 1);
    assert_eq!(world.execution.results[0].state_execution_id.as_ref().unwrap().to_string(), "Verify-3");
    assert_eq!(world.execution.results[0].output, json("\"welcome\""));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_rejection_is_noted_and_changes_nothing() {
    let mut world = World::started(definition(&[("A", skipping())]));
    let before = world.execution.clone();
    let command = execute(7, close(CloseType::DeadEnd));
    assert_eq!(world.run(command.clone()), Err(Rejection::Stale));
    let rejected = Event::CommandRejected {
        command: command.name().to_owned(),
        seq: Some(StateSeq(7)),
        attempt: Some(2),
        reason: "late".to_owned(),
    };
    let (name, details) = rejected.to_parts();
    assert_eq!(
        (name, details.as_str()),
        ("CommandRejected", r#"{"command":"ExecuteAnswered","seq":7,"attempt":2,"reason":"late"}"#)
    );
    assert_eq!(Event::from_parts(name, &details), Ok(rejected.clone()));
    assert!(rejected.is_recorded());
    world.execution.apply(&rejected, world.now);
    assert_eq!(world.execution, Execution { next_event: before.next_event + 1, ..before });
}

#[test]
fn parallel_threads_are_joined_by_a_queue() {
    let mut world = World::started(definition(&[("Split", skipping()), ("Part", skipping()), ("Join", plain())]));
    world.execute(1, next(&["Join", "Part", "Part", "Part"]));
    assert_eq!(world.execution.live_threads, 4);
    world.wait_until(2, WaitingType::All, vec![from_queue("done", 3, 3)]);
    for seq in [4, 3, 5] {
        let effects =
            Effects { publish_to_local_queue: vec![message("done", None, &format!("{seq}"))], ..Effects::default() };
        let answer = ExecuteAnswer { decision: close(CloseType::DeadEnd), effects };
        world.run(Command::ExecuteAnswered { seq: StateSeq(seq), answer }).unwrap();
    }
    assert_eq!(world.results(2), [(Completed, strings(&["4", "3", "5"]))]);
    assert_eq!(world.status(2), StateStatus::Execute);
    world.execute(2, close(CloseType::GracefulComplete));
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn failed_attempts_are_repeated_and_folded_after_ten() {
    let mut world = World::started(definition(&[("A", plain())]));
    for attempt in 1..=13 {
        let events = world.fail(1, Api::WaitUntil, attempt);
        assert_eq!(names(&events), ["AttemptFailed"]);
        assert_eq!(events[0].is_recorded(), attempt <= RECORDED_ATTEMPTS);
        let call = world.state(1).call(Api::WaitUntil).unwrap();
        assert_eq!(call.failed_attempts, attempt);
        assert!(call.not_before > world.now);
        world.pass(100);
    }
    assert_eq!(world.execution.next_event, 13, "two events of the start, ten attempts");
    assert_eq!(world.run(failed(1, Api::WaitUntil, 13, world.now)), Err(Rejection::Stale), "reported twice");
    world.wait_until(1, WaitingType::Empty, vec![]);
    match &world.history[12].0 {
        Event::AttemptsFolded { count, last_attempt, failure, .. } => {
            assert_eq!((*count, *last_attempt, &*failure.detail), (3, 13, "attempt 13"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.state(1).call(Api::Execute).unwrap().failed_attempts, 0);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_stop_records_the_unrecorded_attempts() {
    let mut world = World::started(definition(&[("A", plain())]));
    for attempt in 1..=12 {
        world.fail(1, Api::WaitUntil, attempt);
    }
    let reason = Some("enough".to_owned());
    let events = world.run(Command::Stop { stop_type: StopType::Terminate, reason: reason.clone() }).unwrap();
    assert_eq!(names(&events), ["AttemptsFolded", "ProcessClosed"]);
    assert_eq!((world.execution.status, &world.execution.reason), (ProcessStatus::Terminated, &reason));
    match &world.state(1).phase {
        Phase::Ended { status: StateStatus::Aborted, last_failure: Some(last), call } => {
            assert_eq!((last.attempt, *call), (12, Some(EndedCall { attempt: 13, repeats: 0 })));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn spent_retries_fail_the_process() {
    let mut world = World::started(definition(&[("A", attempts(2)), ("B", plain())]));
    world.fail(1, Api::WaitUntil, 1);
    assert_eq!(names(&world.fail(1, Api::WaitUntil, 2)), ["StateFailed", "ProcessClosed"]);
    assert_eq!(world.execution.status, ProcessStatus::Failed);
    assert_eq!(world.execution.reason.as_deref(), Some("step A-1 failed at attempt 2: attempt 2"));
    assert_eq!(world.status(1), StateStatus::Failed);
}

#[test]
fn a_recovery_state_takes_over() {
    let mut failing = attempts(1);
    failing.state_failure_recovery_options = Some(FailureRecovery {
        policy: FailurePolicy::ProceedToConfiguredState,
        state_failure_proceed_state_id: Some("Undo".to_owned()),
        state_failure_proceed_state_config: Some(Box::new(skipping())),
    });
    let definition = definition(&[("Pay", failing), ("Undo", plain())]);
    let mut world = World::started(definition.clone());
    world.wait_until(1, WaitingType::Empty, vec![]);
    assert_eq!(names(&world.fail(1, Api::Execute, 1)), ["StateFailed", "StateStarted"]);
    assert_eq!((world.status(1), world.status(2)), (StateStatus::Failed, StateStatus::Execute));
    let undo = world.state(2);
    assert_eq!(undo.input, Some(json("{\"n\":1.50}")), "the input of the failed state");
    let recovery = undo.recovery.as_ref().unwrap();
    assert_eq!((recovery.state_execution_id.to_string(), recovery.api), ("Pay-1".to_owned(), Api::Execute));
    assert_eq!(recovery.failure.detail, "attempt 1");
    world.execute(2, close(CloseType::ForceFail));
    assert_eq!(world.execution.status, ProcessStatus::Failed);
    assert_eq!(world.replayed(), world.execution);

    let mut world = World::started(definition);
    world.definition.states.remove("Undo");
    world.fail(1, Api::WaitUntil, 1);
    assert_eq!(world.execution.status, ProcessStatus::Failed, "a removed state can't take over");
}

#[test]
fn every_further_attempt_gets_the_error_of_a_refused_write() {
    let mut world = World::started(definition(&[("A", skipping())]));
    let error = AppDatabaseError { sql_state: "23505".to_owned(), ..AppDatabaseError::default() };
    let refused = |attempt, error: Option<&AppDatabaseError>, now| {
        let failure = Failure { app_database_error: error.cloned(), ..Failure::default() };
        let mut command = failed(1, Api::Execute, attempt, now);
        if let Command::CallFailed(failed) = &mut command {
            failed.failure = failure;
        }
        command
    };
    world.run(refused(1, Some(&error), world.now)).unwrap();
    world.run(refused(2, None, world.now)).unwrap();
    let call = world.state(1).call(Api::Execute).unwrap();
    assert_eq!((call.generation, call.app_database_error.as_ref()), (1, Some(&error)));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_timeout_aborts_waiting_states() {
    let mut definition = definition(&[("A", plain())]);
    definition.timeout_seconds = Some(10.0);
    let mut world = World::started(definition);
    world.wait_until(1, WaitingType::Any, vec![from_queue("q", 1, 1)]);
    world.pass(9);
    assert_eq!(world.run(Command::ProcessTimeout), Err(Rejection::Stale));
    world.pass(1);
    world.run(Command::ProcessTimeout).unwrap();
    assert_eq!(world.execution.status, ProcessStatus::Timeout);
    assert_eq!((world.status(1), world.execution.live_threads), (StateStatus::Aborted, 0));

    let mut own = World::new(world.definition.clone());
    let Command::Start(start) = start() else { unreachable!() };
    own.run(Command::Start(Box::new(Start { timeout: Some(Duration(0)), ..*start }))).unwrap();
    assert_eq!(own.execution.timeout_at, None, "zero overrides the timeout of the definition by none");
}

#[test]
fn a_graceful_completion_waits_for_the_other_threads() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", skipping())]));
    world.execute(1, next(&["B", "B", "B"]));
    world.execute(2, close(CloseType::GracefulComplete));
    assert!(world.execution.is_running() && world.execution.completing);
    world.execute(3, next(&["B"]));
    world.execute(4, close(CloseType::GracefulComplete));
    assert!(world.execution.is_running());
    let events = world.run(execute(5, close(CloseType::DeadEnd))).unwrap();
    assert_eq!(names(&events), ["StateCompleted", "ProcessClosed"]);
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    let requested = world.history.iter().filter(|(event, _)| matches!(event, Event::CompletionRequested {})).count();
    assert_eq!(requested, 1);
}

#[test]
fn forced_closes_abort_the_other_threads() {
    for (close_type, status) in
        [(CloseType::ForceComplete, ProcessStatus::Completed), (CloseType::ForceFail, ProcessStatus::Failed)]
    {
        let mut world = World::started(definition(&[("A", skipping()), ("B", plain())]));
        world.execute(1, next(&["A", "B", "B"]));
        world.wait_until(3, WaitingType::Any, vec![timer(1)]);
        world.execute(2, close(close_type));
        assert_eq!(world.execution.status, status);
        let statuses: Vec<_> = (1..=4).map(|seq| world.status(seq)).collect();
        use StateStatus::*;
        assert_eq!(statuses, [Completed, Completed, Aborted, Aborted]);
        assert_eq!(world.replayed(), world.execution);
    }
}

#[test]
fn a_dead_end_leaves_the_process_to_its_rpcs() {
    let mut world = World::started(definition(&[("A", skipping())]));
    world.execute(1, close(CloseType::DeadEnd));
    assert!(world.execution.is_running());
    assert_eq!(world.execution.live_threads, 0);
}

#[test]
fn a_process_without_states_waits_for_rpcs_that_start_threads() {
    let mut definition = definition(&[("A", skipping())]);
    definition.starting_state = None;
    let mut world = World::started(definition);
    assert_eq!((world.execution.next_state, world.execution.live_threads), (1, 0));
    let rpc = |decision| Command::RpcAnswered {
        rpc_name: "go".to_owned(),
        answer: RpcAnswer { decision, output: Some(json("1")), ..RpcAnswer::default() },
    };
    assert_eq!(world.run(rpc(None)), Ok(vec![]), "reading leaves no trace");
    let events = world.run(rpc(Some(next(&["A", "A"])))).unwrap();
    assert_eq!(names(&events), ["RpcApplied", "StateStarted", "StateStarted"]);
    assert_eq!(world.execution.live_threads, 2);
    world.run(rpc(Some(close(CloseType::GracefulComplete)))).unwrap();
    assert!(world.execution.is_running());
    world.execute(1, close(CloseType::DeadEnd));
    let output = Some(json("2"));
    let last = Decision::Close { close_type: CloseType::GracefulComplete, output };
    world.execute(2, last.clone());
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    assert_eq!(world.replayed(), world.execution);
    assert_eq!(world.run(rpc(Some(last))), Err(Rejection::NotRunning(ProcessStatus::Completed)));
    assert_eq!(world.run(rpc(None)), Ok(vec![]), "reading a closed process is welcome");

    let mut world = World::started(Definition { starting_state: None, ..world.definition });
    world.run(rpc(Some(close(CloseType::GracefulComplete)))).unwrap();
    assert_eq!(world.execution.status, ProcessStatus::Completed, "there is no thread to wait for");
}

#[test]
fn a_conditional_close_checks_the_queues() {
    let mut world = World::started(definition(&[("Drain", skipping())]));
    let decision = |output: &str| Decision::ConditionalClose {
        close_type: CloseType::ForceComplete,
        queues: vec!["a".to_owned(), "b".to_owned()],
        output: Some(json(output)),
        otherwise: vec![movement("Drain")],
    };
    world.publish("b", &["1"]);
    world.execute(1, decision("1"));
    assert!(world.execution.is_running(), "a message is left");
    assert_eq!(world.status(2), StateStatus::Execute);
    assert_eq!(world.execution.results, []);
    world.execution.queues.clear();
    let effects = Effects { publish_to_local_queue: vec![message("a", None, "2")], ..Effects::default() };
    let answer = ExecuteAnswer { decision: decision("2"), effects };
    world.run(Command::ExecuteAnswered { seq: StateSeq(2), answer }).unwrap();
    assert!(world.execution.is_running(), "the answer's own message counts too");
    world.execution.queues.clear();
    world.execute(3, decision("3"));
    assert_eq!(world.execution.status, ProcessStatus::Completed);
    assert_eq!(world.execution.results[0].output, json("3"));

    for (close_type, queues) in [(CloseType::DeadEnd, &["q"][..]), (CloseType::ForceComplete, &[])] {
        let mut world = World::started(definition(&[("A", skipping())]));
        let queues = strings(queues);
        let decision = Decision::ConditionalClose { close_type, queues, output: None, otherwise: vec![movement("A")] };
        assert!(matches!(world.run(execute(1, decision)), Err(Rejection::InvalidAnswer(_))));
    }
}

#[test]
fn an_all_of_wait_consumes_messages_while_other_commands_wait() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.publish("q", &["1"]);
    world.wait_until(1, WaitingType::All, vec![timer(5), from_queue("q", 1, 1), from_queue("q", 2, 2)]);
    assert_eq!(world.results(1), [(Waiting, vec![]), (Completed, strings(&["1"])), (Waiting, vec![])]);
    world.publish("q", &["2"]);
    assert_eq!(world.queued("q"), ["2"], "too few for the third");
    world.pass(5);
    world.fire(1, 0).unwrap();
    assert_eq!(world.status(1), StateStatus::Waiting);
    world.publish("q", &["3", "4"]);
    assert_eq!(world.status(1), StateStatus::Execute);
    assert_eq!(world.results(1)[2], (Completed, strings(&["2", "3"])));
    assert_eq!(world.queued("q"), ["4"]);
}

#[test]
fn any_of_completion_completes_all_that_can_at_that_moment() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.publish("q", &["1"]);
    world.publish("r", &["2", "3"]);
    let commands = vec![timer(0), timer(5), from_queue("q", 1, 1), from_queue("r", 1, 1), from_queue("s", 1, 1)];
    world.wait_until(1, WaitingType::Any, commands);
    let statuses: Vec<_> = world.results(1).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [Completed, Waiting, Completed, Completed, Waiting]);
    assert_eq!(world.queued("r"), ["3"]);

    let mut world = World::started(definition(&[("A", plain())]));
    world.wait_until(1, WaitingType::Any, vec![timer(5), timer(6), timer(9), from_queue("q", 1, 1)]);
    world.pass(7);
    world.fire(1, 0).unwrap();
    let statuses: Vec<_> = world.results(1).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [Completed, Completed, Waiting, Waiting], "the second timer is due too");
    assert_eq!(world.fire(1, 1), Err(Rejection::Stale));

    let mut world = World::started(definition(&[("A", plain())]));
    world.wait_until(1, WaitingType::Any, vec![timer(5), from_queue("q", 1, 1)]);
    world.pass(5);
    world.publish("q", &["1"]);
    assert_eq!(world.results(1), [(Completed, vec![]), (Completed, strings(&["1"]))]);
}

#[test]
fn any_of_combination_ends_with_the_first_that_is_whole() {
    let mut world = World::started(definition(&[("A", plain())]));
    let commands = vec![timer(5), from_queue("q", 1, 1), from_queue("r", 1, 1)];
    world.answer_wait_until(
        1,
        CommandRequest {
            waiting_type: WaitingType::AnyCombination,
            commands,
            combinations: vec![vec![0, 1], vec![1, 2]],
        },
    );
    world.publish("r", &["1"]);
    assert_eq!(world.status(1), StateStatus::Waiting);
    world.publish("q", &["2"]);
    assert_eq!(world.results(1), [(Waiting, vec![]), (Completed, strings(&["2"])), (Completed, strings(&["1"]))]);
    assert_eq!(world.status(1), StateStatus::Execute);
}

#[test]
fn a_command_consumes_between_at_least_and_at_most() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.publish("q", &["1", "2"]);
    world.wait_until(1, WaitingType::Any, vec![from_queue("q", 3, 4)]);
    assert_eq!(world.queued("q"), ["1", "2"]);
    world.publish("q", &["3", "4", "5"]);
    assert_eq!(world.results(1), [(Completed, strings(&["1", "2", "3", "4"]))]);
    assert_eq!(world.queued("q"), ["5"]);
}

#[test]
fn the_state_that_waited_longest_is_served_first() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", plain())]));
    world.execute(1, next(&["B", "B"]));
    world.wait_until(3, WaitingType::Any, vec![from_queue("q", 2, 2)]);
    world.wait_until(2, WaitingType::Any, vec![from_queue("q", 1, 1)]);
    world.publish("q", &["1"]);
    assert_eq!(
        world.results(2),
        [(Completed, strings(&["1"]))],
        "messages that are too few for the first state serve another"
    );
    world.publish("q", &["2", "3"]);
    assert_eq!(world.results(3), [(Completed, strings(&["2", "3"]))]);
}

#[test]
fn a_message_id_counts_once_per_queue() {
    let mut world = World::started(definition(&[("A", plain())]));
    let messages = vec![message("q", Some("m"), "1"), message("q", Some("m"), "2"), message("r", Some("m"), "3")];
    world.run(Command::MessagesArrived(messages.clone())).unwrap();
    assert_eq!((world.queued("q"), world.queued("r")), (strings(&["1"]), strings(&["3"])));
    world.wait_until(1, WaitingType::Any, vec![from_queue("q", 1, 1)]);
    assert_eq!(world.run(Command::MessagesArrived(messages)), Ok(vec![]), "also after it was taken");
    assert_eq!(world.execution.next_message, 3);
}

#[test]
fn names_that_the_definition_does_not_list_are_refused() {
    let mut definition = definition(&[("A", plain())]);
    definition.local_queues = Some(["q".to_owned()].into());
    definition.local_attributes = Some(["k".to_owned()].into());
    let mut world = World::started(definition);
    let request = CommandRequest { waiting_type: WaitingType::Empty, commands: vec![], combinations: vec![] };
    let answer = |request: &CommandRequest, effects| Command::WaitUntilAnswered {
        seq: StateSeq(1),
        answer: WaitUntilAnswer { request: request.clone(), effects },
    };
    let value = || BTreeMap::from([("x".to_owned(), json("1"))]);
    let publishing = Effects { publish_to_local_queue: vec![message("x", None, "1")], ..Effects::default() };
    let local = Effects { write_local_attributes: value(), ..Effects::default() };
    let global = Effects { write_global_attributes: value(), ..Effects::default() };
    let x = || "x".to_owned();
    let unknown_queue = || Rejection::UnknownQueue { name: x(), within: None, known: "q".to_owned() };
    for (effects, rejection) in [
        (publishing, unknown_queue()),
        (local, Rejection::UnknownLocalAttribute(x())),
        (global, Rejection::UnknownGlobalAttribute(x())),
    ] {
        assert_eq!(world.run(answer(&request, effects)), Err(rejection));
    }
    let waiting = CommandRequest { commands: vec![from_queue("x", 1, 1)], ..request.clone() };
    assert_eq!(world.run(answer(&waiting, Effects::default())), Err(unknown_queue()));
    world.answer_wait_until(1, request);
    let unknown_state = Rejection::UnknownState { name: x(), within: None, known: world.definition.listed_states() };
    assert_eq!(world.run(execute(1, next(&["x"]))), Err(unknown_state));
    assert!(matches!(world.run(execute(1, next(&[]))), Err(Rejection::InvalidAnswer(_))));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn before_its_start_and_after_its_end_an_execution_refuses_everything() {
    let mut commands = vec![
        Command::WaitUntilAnswered {
            seq: StateSeq(1),
            answer: WaitUntilAnswer {
                request: CommandRequest { waiting_type: WaitingType::Empty, commands: vec![], combinations: vec![] },
                effects: Effects::default(),
            },
        },
        execute(1, close(CloseType::DeadEnd)),
        failed(1, Api::Execute, 1, Timestamp(0)),
        Command::TimerFired { seq: StateSeq(1), command: 0 },
        Command::ProcessTimeout,
        Command::MessagesArrived(vec![message("q", None, "1")]),
        Command::RpcAnswered {
            rpc_name: "r".to_owned(),
            answer: RpcAnswer { decision: Some(next(&["A"])), ..RpcAnswer::default() },
        },
        Command::Stop { stop_type: StopType::Fail, reason: None },
        Command::Fail { reason: "x".to_owned() },
    ];
    let world = World::new(definition(&[("A", skipping())]));
    for command in &commands {
        assert_eq!(world.decide(command), Err(Rejection::Stale), "{command:?}");
    }
    let mut world = World::started(world.definition);
    assert_eq!(world.decide(&start()), Err(Rejection::Stale), "an execution starts once");
    world.run(Command::Stop { stop_type: StopType::Fail, reason: None }).unwrap();
    commands.push(start());
    for command in &commands {
        assert_eq!(world.decide(command), Err(Rejection::NotRunning(ProcessStatus::Failed)), "{command:?}");
    }
}

#[test]
fn a_start_in_the_future_holds_the_first_state_back() {
    let mut world = World::new(definition(&[("A", plain())]));
    let Command::Start(start) = start() else { unreachable!() };
    let later = world.now + Duration(60 * SECOND);
    world.run(Command::Start(Box::new(Start { start_at: Some(later), ..*start.clone() }))).unwrap();
    assert_eq!(world.state(1).call(Api::WaitUntil).unwrap().not_before, later);
    let mut world = World::new(world.definition);
    world.run(Command::Start(Box::new(Start { start_at: Some(Timestamp(5)), ..*start }))).unwrap();
    assert_eq!(world.state(1).call(Api::WaitUntil).unwrap().not_before, world.now);
}

#[test]
fn a_start_may_begin_in_another_state() {
    let Command::Start(start) = start() else { unreachable!() };
    let at =
        |state: &str| Command::Start(Box::new(Start { starting_state: Some(state.to_owned()), ..(*start).clone() }));
    let mut world = World::new(definition(&[("A", plain()), ("B", skipping())]));
    world.run(at("B")).unwrap();
    assert_eq!(world.state(1).id.to_string(), "B-1");
    assert_eq!(world.state(1).input, start.input, "it gets the input");
    let unknown = Rejection::UnknownState { name: "C".to_owned(), within: None, known: "A, B".to_owned() };
    assert_eq!(unknown.to_string(), "unknown state \"C\": known are A, B");
    assert_eq!(World::new(world.definition.clone()).run(at("C")), Err(unknown));
    // A start may name a starting state even if the definition has none.
    let mut world = World::new(Definition { starting_state: None, ..world.definition });
    world.run(at("A")).unwrap();
    assert_eq!(world.state(1).id.to_string(), "A-1");
}

fn merge(input: Option<&str>, not_before: Timestamp) -> Command {
    Command::MergeStart { input: input.map(json), not_before }
}

#[test]
fn a_start_is_merged_into_one_that_has_not_begun() {
    let Command::Start(start) = start() else { unreachable!() };
    let mut world = World::new(definition(&[("A", plain())]));
    let (soon, later) = (world.now + Duration(60 * SECOND), world.now + Duration(90 * SECOND));
    let timeout = Some(Duration(5 * SECOND));
    world.run(Command::Start(Box::new(Start { start_at: Some(soon), timeout, ..*start }))).unwrap();
    world.run(merge(Some("7"), later)).unwrap();
    let state = world.state(1);
    let call = state.call(Api::WaitUntil).unwrap();
    assert_eq!((state.input.clone(), call.not_before, call.generation), (Some(json("7")), later, 1));
    let timeout_at = world.execution.timeout_at;
    assert_eq!(timeout_at, Some(later + Duration(5 * SECOND)), "its time runs from its beginning");
    // A merge that changes nothing does not change the request.
    world.run(merge(Some("7"), later)).unwrap();
    assert_eq!(world.state(1).call(Api::WaitUntil).unwrap().generation, 1);
    world.run(merge(None, soon)).unwrap();
    assert_eq!(world.state(1).input, None);
    assert_eq!(world.execution.timeout_at, Some(soon + Duration(5 * SECOND)));
}

#[test]
fn no_start_is_merged_into_a_process_that_has_begun() {
    let tried = |step: fn(&mut World)| {
        let mut world = World::started(definition(&[("A", plain()), ("B", plain())]));
        step(&mut world);
        world.decide(&merge(Some("7"), world.now))
    };
    assert_eq!(
        tried(|world| { world.run(failed(1, Api::WaitUntil, 1, world.now)).map(drop).unwrap() }),
        Err(Rejection::Stale)
    );
    let answered = |world: &mut World| {
        let request = CommandRequest { waiting_type: WaitingType::Empty, commands: vec![], combinations: vec![] };
        let answer = WaitUntilAnswer { request, effects: Effects::default() };
        world.run(Command::WaitUntilAnswered { seq: StateSeq(1), answer }).map(drop).unwrap();
    };
    assert_eq!(tried(answered), Err(Rejection::Stale), "it is at its second call");
    let stopped = |world: &mut World| {
        world.run(Command::Stop { stop_type: StopType::Fail, reason: None }).map(drop).unwrap();
    };
    assert_eq!(tried(stopped), Err(Rejection::NotRunning(ProcessStatus::Failed)));
}

#[test]
fn a_movement_may_begin_later() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", plain())]));
    let (later, past) = (world.now + Duration(5 * SECOND), Timestamp(5));
    let begins = [Begin::After(Duration(1_500_000)), Begin::At(later), Begin::At(past), Begin::AtOnce];
    let next = begins.map(|begin| StateMovement { begin, ..movement("B") }).to_vec();
    world.run(execute(1, Decision::NextStates(next))).unwrap();
    let not_before = |seq| world.state(seq).call(Api::WaitUntil).unwrap().not_before;
    let soon = world.now + Duration(1_500_000);
    assert_eq!([2, 3, 4, 5].map(not_before), [soon, later, world.now, world.now]);
    // A delayed start is no backoff, so a retry does not shorten it.
    world.run(Command::RetryNow((2..=5).map(StateSeq).collect())).unwrap();
    assert_eq!(world.state(3).call(Api::WaitUntil).unwrap().not_before, later);
}

fn named_timer(id: &str, seconds: i64) -> RequestedCommand {
    RequestedCommand { command_id: Some(id.to_owned()), ..timer(seconds) }
}

fn skip(seq: u32, command_id: Option<&str>) -> Command {
    Command::SkipTimer { seq: StateSeq(seq), command_id: command_id.map(str::to_owned) }
}

#[test]
fn a_skipped_timer_counts_as_completed() {
    let mut world = World::started(definition(&[("A", plain()), ("B", plain())]));
    assert_eq!(world.run(skip(1, None)), Err(Rejection::NoTimer("timer".to_owned())), "it does not wait yet");
    let commands =
        vec![named_timer("late", 100), from_queue("q", 1, 1), named_timer("soon", 10), named_timer("mid", 50)];
    world.wait_until(1, WaitingType::All, commands);
    let unknown = Err(Rejection::NoTimer("timer \"other\"".to_owned()));
    assert_eq!(world.run(skip(1, Some("other"))), unknown);
    assert_eq!(names(&world.run(skip(1, Some("mid"))).unwrap()), ["TimerSkipped"]);
    assert_eq!(world.run(skip(1, Some("mid"))), Err(Rejection::NoTimer("timer \"mid\"".to_owned())), "it is skipped");
    world.run(skip(1, None)).unwrap();
    assert_eq!(world.results(1)[2].0, Skipped, "without an id, the one that would fire first");
    world.publish("q", &["1"]);
    assert_eq!(world.status(1), StateStatus::Waiting);
    assert_eq!(names(&world.run(skip(1, None)).unwrap()), ["TimerSkipped", "WaitCompleted"]);
    let taken = (Completed, strings(&["1"]));
    assert_eq!(world.results(1), [(Skipped, vec![]), taken, (Skipped, vec![]), (Skipped, vec![])]);
    assert_eq!(world.run(skip(1, None)), Err(Rejection::NoTimer("timer".to_owned())));
    world.pass(1000);
    assert_eq!(world.fire(1, 0), Err(Rejection::Stale), "what was skipped does not fire");
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_skip_ends_a_wait_for_any_and_a_combination() {
    let mut world = World::started(definition(&[("A", plain())]));
    world.wait_until(1, WaitingType::Any, vec![from_queue("q", 1, 1), timer(100)]);
    assert_eq!(names(&world.run(skip(1, None)).unwrap()), ["TimerSkipped", "WaitCompleted"]);
    world.execute(1, next(&["A"]));
    let commands = vec![named_timer("t", 100), named_timer("u", 200)];
    let request =
        CommandRequest { waiting_type: WaitingType::AnyCombination, commands, combinations: vec![vec![0, 1]] };
    world.answer_wait_until(2, request);
    assert_eq!(names(&world.run(skip(2, Some("u"))).unwrap()), ["TimerSkipped"]);
    assert_eq!(names(&world.run(skip(2, Some("t"))).unwrap()), ["TimerSkipped", "WaitCompleted"]);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn calls_in_backoff_are_made_at_once() {
    let mut world = World::started(definition(&[("A", skipping()), ("B", plain()), ("C", plain())]));
    world.execute(1, next(&["B", "B", "C"]));
    let all = || Command::RetryNow((0..9).map(StateSeq).collect());
    assert_eq!(world.run(all()), Ok(vec![]), "nothing has failed");
    world.fail(2, Api::WaitUntil, 1);
    world.wait_until(3, WaitingType::Empty, vec![]);
    world.fail(3, Api::Execute, 1);
    world.fail(4, Api::WaitUntil, 1);
    world.pass(50);
    world.fail(3, Api::Execute, 2);
    world.fail(2, Api::WaitUntil, 2);
    let events = world.run(all()).unwrap();
    assert_eq!(names(&events), ["RetryRequested", "RetryRequested"], "the third is due already");
    for (seq, api) in [(2, Api::WaitUntil), (3, Api::Execute)] {
        let call = world.state(seq).call(api).unwrap();
        assert_eq!((call.not_before, call.failed_attempts), (world.now, 2));
    }
    assert_eq!(world.replayed(), world.execution);
    assert_eq!(names(&world.fail(2, Api::WaitUntil, 3)), ["AttemptFailed"], "backoff goes on from there");
}

#[test]
fn a_caller_writes_local_attributes() {
    let set = |key: &str| Command::SetLocalAttributes([(key.to_owned(), json("[1.50]"))].into());
    let definition =
        Definition { local_attributes: Some(["known".to_owned()].into()), ..definition(&[("A", plain())]) };
    let mut world = World::started(definition);
    assert_eq!(world.run(set("other")), Err(Rejection::UnknownLocalAttribute("other".to_owned())));
    assert_eq!(names(&world.run(set("known")).unwrap()), ["LocalAttributesWritten"]);
    assert_eq!(world.execution.local_attributes["known"], json("[1.50]"));
    assert_eq!(world.replayed(), world.execution);
    world.run(Command::Stop { stop_type: StopType::Terminate, reason: None }).unwrap();
    assert_eq!(world.run(set("known")), Err(Rejection::NotRunning(ProcessStatus::Terminated)));
    assert_eq!(world.run(skip(1, None)), Err(Rejection::NotRunning(ProcessStatus::Terminated)));
}

#[test]
fn a_cron_timer_fires_at_the_first_tick_after_the_begin_of_the_wait() {
    let mut world = World::started(definition(&[("A", plain())]));
    let cron = |timezone: Option<&str>| RequestedCommand {
        command_id: None,
        kind: RequestedKind::TimerCron(Cron { expression: "*".to_owned(), timezone: timezone.map(str::to_owned) }),
    };
    let wait = |commands| {
        let request = CommandRequest { waiting_type: WaitingType::All, commands, combinations: vec![] };
        let answer = WaitUntilAnswer { request, effects: Effects::default() };
        Command::WaitUntilAnswered { seq: StateSeq(1), answer }
    };
    let unknown = world.run(wait(vec![cron(Some("nowhere"))])).unwrap_err();
    assert_eq!(unknown.to_string(), "a timer's timezone is unknown: \"nowhere\"");
    world.run(wait(vec![cron(None)])).unwrap();
    let tick = Timestamp(1_002 * SECOND);
    assert_eq!(world.state(1).open_timers().collect::<Vec<_>>(), [(0, tick)]);
    assert_eq!(world.fire(1, 0), Err(Rejection::Stale));
    world.pass(2);
    world.fire(1, 0).unwrap();
    assert_eq!(world.status(1), StateStatus::Execute);
    // Replay knows no time zones.
    assert_eq!(world.replayed(), world.execution);
}
