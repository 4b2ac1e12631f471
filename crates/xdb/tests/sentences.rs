//! One test for each answer to "why is it where it is", from documents of `xdb.describe_process`.

use serde_json::{Value, json};
use std::collections::HashSet;
use xdb_tools::sentence::{Case, Explanation, explain, last_failure};

const NOW: &str = "2026-11-27T12:00:00Z";

fn explained(process: &Value) -> Vec<Explanation> {
    explain(process, NOW.parse().expect("a moment"))
}

/// A running process, with more keys.
fn process(more: Value) -> Value {
    let mut process = json!({
        "processId": "transfer-7", "processExecutionId": "01a1f8a5-0000-7000-8000-000000000000", "processType": "MoneyTransfer",
        "owner": "app", "status": "RUNNING", "startedAt": "2026-11-27T11:56:00+00:00", "liveThreads": 1, "results": [],
        "threads": []
    });
    merge(&mut process, more);
    process
}

/// A process with one thread, which is at a call that is due, with more keys of the thread.
fn at_call(more: Value) -> Value {
    let mut thread = json!({
        "stateExecutionId": "credit-1", "status": "EXECUTE", "startedAt": "2026-11-27T11:57:00+00:00", "api": "EXECUTE_API",
        "worker": "pay", "attempt": 1, "nextAttemptAt": "2026-11-27T11:59:56+00:00"
    });
    merge(&mut thread, more);
    process(json!({"threads": [thread]}))
}

/// A process with one thread that waits for these commands.
fn waits(waiting_type: &str, commands: Value) -> Value {
    process(json!({"threads": [{
        "stateExecutionId": "verify-3", "status": "WAITING", "startedAt": "2026-11-25T12:00:00+00:00",
        "waitingType": waiting_type, "waitingSince": "2026-11-25T11:00:00+00:00", "waitingFor": commands
    }]}))
}

/// Adds keys. A null takes a key away.
fn merge(object: &mut Value, more: Value) {
    let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) else { panic!("no objects") };
    for (key, value) in more {
        match value {
            Value::Null => object.remove(&key),
            value => object.insert(key, value),
        };
    }
}

fn with(mut process: Value, more: Value) -> Value {
    merge(&mut process, more);
    process
}

fn failed() -> Value {
    json!({
        "at": "2026-11-27T11:59:51+00:00", "attempt": 3, "api": "EXECUTE_API",
        "failure": {"status": 503, "errorType": "BankDown", "detail": "maintenance"}
    })
}

/// Each case: a document, and the case and sentence of its first explanation.
fn cases() -> Vec<(Value, Case, &'static str)> {
    vec![
        (
            at_call(
                json!({"nextAttemptAt": null, "callUntil": "2026-11-27T12:00:50+00:00", "firstAttemptAt": "2026-11-27T11:59:56+00:00"}),
            ),
            Case::Calling,
            "Worker \"pay\" handles the execute call, attempt 1. The engine gives up at the latest in 50 s. The first attempt began 4 s ago.",
        ),
        (
            at_call(
                json!({"nextAttemptAt": null, "worker": null, "api": "WAIT_UNTIL_API", "callUntil": "2026-11-27T12:00:50+00:00", "repeats": 2}),
            ),
            Case::Calling,
            "A function of the database handles the waitUntil call, attempt 1, repeated 2 times. The engine gives up at the latest in 50 s.",
        ),
        (
            at_call(json!({"nextAttemptAt": null, "callUntil": "2026-11-27T11:59:59+00:00"})),
            Case::Calling,
            "Worker \"pay\" handles the execute call, attempt 1. Its time is over, and the engine is about to repeat the call.",
        ),
        (
            at_call(json!({"nextAttemptAt": "2026-11-27T12:00:06+00:00", "attempt": 4, "lastFailure": failed()})),
            Case::Retrying,
            "The engine calls worker \"pay\" again in 6 s (attempt 4). Attempt 3 failed 9 s ago with HTTP 503 BankDown \"maintenance\".",
        ),
        (
            at_call(json!({"nextAttemptAt": "2026-11-28T13:00:00+00:00"})),
            Case::Later,
            "The call of worker \"pay\" (execute) is planned for later: it is due in 1 d 1 h (2026-11-28 13:00:00 UTC).",
        ),
        (
            at_call(json!({})),
            Case::Due,
            "The call of worker \"pay\" (execute) has been due for 4 s, and was not made yet: the worker has no free place, no program claims its calls, \
             or the engine has a backlog.",
        ),
        (
            at_call(json!({"pulls": true, "attempt": 4, "lastFailure": failed()})),
            Case::NotClaimed,
            "The call of worker \"pay\" (execute) has been due for 4 s, and no session of the pull worker has claimed the call. \
             Attempt 3 failed 9 s ago with HTTP 503 BankDown \"maintenance\".",
        ),
        (
            waits(
                "AnyOfCompletion",
                json!([
                    {"commandId": "v", "status": "WAITING_COMMAND", "queueName": "verified", "atLeast": 1, "atMost": 1, "messagesInQueue": 0},
                    {"commandId": "t", "status": "WAITING_COMMAND", "fireAt": "2026-11-28T02:00:00+00:00"}
                ]),
            ),
            Case::Waiting,
            "It waits for a message of queue \"verified\" or a timer that fires in 14 h (2026-11-28 02:00:00 UTC). \
             It has waited for 2 d 1 h (since 2026-11-25 11:00:00 UTC).",
        ),
        (
            waits(
                "AllOfCompletion",
                json!([
                    {"commandId": "a", "status": "COMPLETED_COMMAND", "queueName": "box", "atLeast": 1, "messagesInQueue": 0},
                    {"commandId": "b", "status": "WAITING_COMMAND", "queueName": "box", "atLeast": 3, "messagesInQueue": 2},
                    {"commandId": "c", "status": "WAITING_COMMAND", "queueName": "jobs", "global": true, "key": "k1", "atLeast": 1},
                    {"commandId": "d", "status": "WAITING_COMMAND", "queueName": "jobs", "global": true, "atLeast": 1},
                    {"commandId": "e", "status": "WAITING_COMMAND", "fireAt": "2026-11-27T11:59:59+00:00"}
                ]),
            ),
            Case::Waiting,
            "It waits for 3 messages of queue \"box\", which has 2, a message with the key \"k1\" of the global queue \"jobs\", \
             a message of the global queue \"jobs\" and a timer that is due since 2026-11-27 11:59:59 UTC. \
             It has waited for 2 d 1 h (since 2026-11-25 11:00:00 UTC).",
        ),
        (
            waits(
                "AnyOfCombination",
                json!([
                    {"commandId": "a", "status": "WAITING_COMMAND", "queueName": "a", "atLeast": 1},
                    {"commandId": "b", "status": "WAITING_COMMAND", "queueName": "b", "atLeast": 1}
                ]),
            ),
            Case::Waiting,
            "It waits for one of its combinations of a message of queue \"a\" and a message of queue \"b\". \
             It has waited for 2 d 1 h (since 2026-11-25 11:00:00 UTC).",
        ),
        (
            process(json!({"threads": [{
                "stateExecutionId": "Recall-1", "status": "WAITING", "waitingType": "AnyOfCompletion", "guard": true,
                "waitingFor": [{"commandId": "m", "status": "WAITING_COMMAND", "queueName": "recall", "atLeast": 1}]
            }]})),
            Case::Waiting,
            "It is a guard, and waits for a message of queue \"recall\".",
        ),
        (waits("AnyOfCompletion", Value::Null), Case::Waiting, "Its wait has not begun yet."),
        (
            at_call(json!({"nextAttemptAt": "infinity", "waitingForLocks": "table public.users key user_id = 7"})),
            Case::AttributeLocks,
            "The call of worker \"pay\" (execute) waits for locks on attributes, \"table public.users key user_id = 7\": xdb.attribute_locks shows the calls that wait.",
        ),
        (
            at_call(
                json!({"nextAttemptAt": null, "api": null, "worker": null, "incident": true, "attempt": 4, "lastFailure": failed()}),
            ),
            Case::Incident,
            "Its retries are spent after 3 attempts: the engine makes no further attempt until xdb.retry_now(). \
             Attempt 3 failed 9 s ago with HTTP 503 BankDown \"maintenance\".",
        ),
        (
            at_call(json!({"nextAttemptAt": null, "held": "three times the server crashed …"})),
            Case::Held,
            "The server crashed three times during the execute call: the engine holds the call until xdb.retry_now().",
        ),
        (
            at_call(json!({"notCalled": {"why": "BREAKER", "since": "2026-11-27T11:58:00+00:00"}})),
            Case::Breaker,
            "Worker \"pay\" could not be reached for 2 min: the engine makes one call now and then to test it, and all others when it answers.",
        ),
        (
            at_call(json!({"notCalled": {"why": "ENGINE", "since": "2026-11-27T11:58:00+00:00"}})),
            Case::Engine,
            "The call of worker \"pay\" (execute) is not made, because the engine has made no calls for 2 min: xdb.status() says why.",
        ),
        (
            at_call(json!({"notCalled": {"why": "SLOW_TABLE", "since": "2026-11-27T11:58:00+00:00"}})),
            Case::SlowTable,
            "The call of worker \"pay\" (execute) waits for a runner for 2 min, because a table of the process is slow: xdb.status() names the table.",
        ),
        (
            at_call(json!({"worker": null, "notCalled": {"why": "NO_RUNNER"}})),
            Case::NoRunner,
            "The call of a function (execute) waits for a runner, and none makes it: runner_error of xdb.status() may say why.",
        ),
        (
            with(
                at_call(json!({})),
                json!({"pause": {"mode": "WAIT", "reason": "bank holiday", "until": "2026-11-27T12:10:00+00:00"}}),
            ),
            Case::Paused,
            "The call of worker \"pay\" (execute) is not made: the process is paused (\"bank holiday\"); the pause ends in 10 min.",
        ),
        (
            with(at_call(json!({})), json!({"typePause": {"mode": "REJECT"}})),
            Case::Paused,
            "The call of worker \"pay\" (execute) is not made: the process type \"MoneyTransfer\" is paused until xdb.resume_process_type().",
        ),
        (
            with(
                at_call(json!({})),
                json!({"waitingForProcessLocks": [{"name": "account-1", "mode": "EXCLUSIVE"}, {"name": "system", "mode": "SHARE"}]}),
            ),
            Case::ProcessLocks,
            "The call of worker \"pay\" (execute) is not made: the process waits for the locks \"account-1\" and \"system\" (shared); xdb.locks shows the holders.",
        ),
        (
            with(at_call(json!({})), json!({"ownerProblem": "the role that owns the process no longer exists"})),
            Case::Owner,
            "The call of worker \"pay\" (execute) is not made: the process can't run as its owner \"app\" \
             (the role that owns the process no longer exists); \
             xdb.reassign_owned() gives it to another role.",
        ),
        (
            with(at_call(json!({})), json!({"typeMissing": true})),
            Case::TypeMissing,
            "The execute call is not made: the process type \"MoneyTransfer\" is not registered; register it again.",
        ),
        (
            process(json!({"status": "COMPLETED", "closedAt": "2026-11-27T11:59:00+00:00"})),
            Case::Closed,
            "The process completed 1 min ago.",
        ),
        (
            process(
                json!({"status": "FAILED", "closedAt": "2026-11-27T11:59:00+00:00", "reason": "credit-1: no \u{1b}[31mmoney"}),
            ),
            Case::Closed,
            "The process failed 1 min ago: \"credit-1: no \\u{1b}[31mmoney\".",
        ),
        (
            process(json!({"status": "TIMEOUT", "closedAt": "2026-11-27T12:30:00+00:00"})),
            Case::Closed,
            "The process reached its timeout 0 s ago (the clock was set back).",
        ),
        (
            process(json!({"status": "TERMINATED", "reason": "enough"})),
            Case::Closed,
            "The process was stopped: \"enough\".",
        ),
        (process(json!({})), Case::NoThread, "No thread is left: the process goes on when an RPC starts one."),
        (
            process(json!({"closing": "UNCONDITIONAL"})),
            Case::Closing,
            "The process closes when open transactions that publish to it have ended.",
        ),
        (
            process(json!({"closing": "CONDITIONAL"})),
            Case::Closing,
            "The process closes when open transactions that publish to it have ended, unless they publish messages to it.",
        ),
        (
            process(json!({"heldUpBy": [
                {"lock": "row", "table": "public.users", "since": "2026-11-27T11:59:57+00:00"},
                {"lock": "table", "table": "public.accounts"}, {"lock": "process", "since": "2026-11-27T11:59:58+00:00"}
            ]})),
            Case::HeldUp,
            "Another session has locked a row of table public.users for 3 s, table public.accounts and the process itself for 2 s: \
             the process goes on when the lock is released.",
        ),
        (process(json!({"compensating": true})), Case::Compensating, "The process is undoing its completed steps."),
        (process(json!({"completing": true})), Case::Completing, "The process completes when its last thread ends."),
        (
            with(
                waits("AnyOfCompletion", json!([])),
                json!({"children": [
                    {"processId": "ship-1"}, {"processId": "ship-2"}, {"processId": "ship-3"}, {"processId": "ship-4"}, {"processId": "ship-5"}
                ]}),
            ),
            Case::Waiting,
            "Its wait has not begun yet.",
        ),
    ]
}

#[test]
fn each_case_has_its_sentence() {
    for (process, why, sentence) in cases() {
        let found = explained(&process);
        let first = found.first().unwrap_or_else(|| panic!("no sentence for {process}"));
        assert_eq!((first.why, &*first.sentence), (why, sentence), "{process:#}");
        // A sentence about a thread names its step.
        assert_eq!(first.step.is_some(), process["threads"].as_array().is_some_and(|threads| !threads.is_empty()));
    }
}

#[test]
fn no_case_is_without_a_test() {
    let seen: HashSet<_> =
        cases().iter().flat_map(|(process, ..)| explained(process)).map(|one| one.why.to_string()).collect();
    let missing: Vec<_> = Case::ALL.iter().map(Case::to_string).filter(|why| !seen.contains(why)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn facts_about_the_process_follow_the_threads_and_are_said_once() {
    let paused = with(
        waits("AnyOfCompletion", json!([{"status": "WAITING_COMMAND", "queueName": "a", "atLeast": 1}])),
        json!({"pause": {"mode": "WAIT"}, "children": [{"processId": "ship-1"}], "completing": true}),
    );
    let found: Vec<_> = explained(&paused).into_iter().map(|one| (one.step, one.sentence)).collect();
    let about = |sentence: &str| (None, sentence.to_owned());
    assert_eq!(
        found[1..],
        [
            about("The process is paused until xdb.resume_process()."),
            about("The process completes when its last thread ends."),
            about("1 child process runs: \"ship-1\"."),
        ]
    );
    let parked = with(at_call(json!({})), json!({"pause": {"mode": "WAIT"}}));
    assert_eq!(explained(&parked).len(), 1, "the pause is said once");
    let five: Vec<_> = (1..=5).map(|number| json!({"processId": format!("ship-{number}")})).collect();
    let family = explained(&process(json!({"children": five})));
    assert_eq!(
        family.last().map(|one| &*one.sentence),
        Some("5 child processes run: \"ship-1\", \"ship-2\", \"ship-3\" and 2 others.")
    );
}

#[test]
fn each_thread_has_one_sentence() {
    let mut both = at_call(json!({}));
    let waiting = waits("AnyOfCompletion", json!([]))["threads"][0].clone();
    both["threads"].as_array_mut().expect("threads").push(waiting);
    let steps: Vec<_> = explained(&both).into_iter().map(|one| one.step).collect();
    assert_eq!(steps, [Some("credit-1".to_owned()), Some("verify-3".to_owned())]);
}

#[test]
fn a_document_of_another_shape_gives_no_panic() {
    for document in [
        json!(null),
        json!([]),
        json!({}),
        json!({"status": "RUNNING", "threads": [1, null, {}], "pause": 3, "heldUpBy": [7]}),
    ] {
        explained(&document);
    }
}

#[test]
fn the_last_failure_names_its_step() {
    let shown =
        with(process(json!({})), json!({"lastFailure": with(failed(), json!({"stateExecutionId": "credit-1"}))}));
    assert_eq!(
        last_failure(&shown, NOW.parse().expect("a moment")).as_deref(),
        Some("credit-1: Attempt 3 failed 9 s ago with HTTP 503 BankDown \"maintenance\".")
    );
    assert_eq!(last_failure(&process(json!({})), NOW.parse().expect("a moment")), None);
}
