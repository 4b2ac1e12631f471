//! A worker says what follows a failed attempt: when the next one is made, that there is none, or that the attempt does
//! not count.

use xdb_cluster_tests::prelude::*;

/// A process type with the state `Only`, whose `execute` has this policy, and a state `Rescue` for recovery.
fn with_policy(policy: Value) -> Definition {
    let recovery = json!({"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Rescue"});
    let options = json!({"executeApiRetryPolicy": policy, "stateFailureRecoveryOptions": recovery});
    Definition::starting_with("Only").step_with("Only", options).step("Rescue")
}

/// A policy whose next attempt comes only after the end of a test.
fn hourly() -> Value {
    json!({"initialIntervalSeconds": 3600, "maximumIntervalSeconds": 3600})
}

fn error_from(call: &Call) -> Value {
    call.body["context"]["recoverFromError"].clone()
}

/// The calls of `Only`, each with its attempt and its key.
fn attempts_of(worker: &Worker) -> Vec<(u64, String)> {
    let calls = worker.calls();
    let calls = calls.iter().filter(|call| call.target() == "Only");
    calls.map(|call| (call.attempt(), call.idempotency_key().to_owned())).collect()
}

#[test]
fn a_worker_sets_the_time_of_the_next_attempt_or_that_there_is_none() {
    let app = App::new("further_said");
    let worker = app.worker(|call: &Call| match (call.target(), call.attempt()) {
        ("Only", 1) => Reply::Json(429, json!({"errorType": "Busy", "retryAfterSeconds": 1.5})),
        ("Only", 2) => Reply::Json(500, json!({"errorType": "Busy", "retryAfterSeconds": 0})),
        ("Only", _) => Reply::Json(422, json!({"errorType": "Refused", "detail": "no such card", "final": true})),
        _ => graceful_complete(error_from(call)).into(),
    });
    app.register("error", &with_policy(hourly()));
    let mut db = app.db();
    db.start("p", "error").go();
    let end = db.completes("p");
    assert_eq!(end.result(), &json!({"status": 422, "errorType": "Refused", "detail": "no such card"}));
    assert_eq!(attempts_of(&worker).iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let pauses = db.all::<i64>(
        "SELECT (details ->> 'nextAttemptAt')::bigint - (extract(epoch FROM event_time) * 1000000)::bigint
         FROM xdb.history WHERE event_type = 'AttemptFailed' ORDER BY event_id",
    );
    assert_eq!(pauses, [1_500_000, 100_000], "as asked for, and never at once");
    app.done(&[]);
}

#[test]
fn an_invalid_retry_request_changes_nothing_and_causes_a_warning() {
    let app = App::new("further_wrong");
    let _worker = app.worker(|_: &Call| Reply::Json(500, json!({"detail": "no", "retryAfterSeconds": -1, "final": 1})));
    app.register("wrong", &with_policy(hourly()));
    let mut db = app.db();
    db.start("p", "wrong").go();
    wait_until("it has failed", 10, || !views::failures(&mut db, "p").is_empty());
    let failure = views::failures(&mut db, "p").remove(0);
    assert_eq!(failure["detail"], "no; retryAfterSeconds is -1; it must not be negative; final must be true or false");
    app.done(&[]);
}

#[test]
fn a_worker_that_accepts_no_call_now_costs_no_attempt() {
    let app = App::new("further_unavailable");
    let worker = app.worker(|_: &Call| Reply::from(force_complete(json!("at last"))));
    app.register("drained", &with_policy(json!({"maximumAttempts": 1})));
    worker.misbehave(|_| Reply::Unavailable(1));
    let mut db = app.db();
    db.start("p", "drained").go();
    let repeats = "xdb.history WHERE event_type = 'CallRepeated' AND (details ->> 'sameRequest')::boolean";
    wait_until("it was repeated twice", 15, || db.count(repeats) >= 2);
    assert!(views::failures(&mut db, "p").is_empty(), "nothing has failed");
    assert_eq!(app.superuser().text("SELECT breaker FROM xdb.workers"), "closed");
    worker.heal();
    assert_eq!(db.completes("p").result(), "at last");
    let attempts = attempts_of(&worker);
    assert!(attempts.len() >= 3, "{attempts:?}");
    assert!(attempts.iter().all(|attempt| *attempt == attempts[0] && attempt.0 == 1), "one attempt: {attempts:?}");
    app.done(&[]);
}

#[test]
fn the_time_for_all_attempts_bounds_uncounted_attempts_too() {
    let app = App::new("further_bounded");
    let worker = app.worker(|call: &Call| match call.target() {
        "Only" => Reply::Unavailable(2),
        _ => graceful_complete(error_from(call)).into(),
    });
    app.register("bounded", &with_policy(json!({"maximumAttemptsDurationSeconds": 3})));
    let mut db = app.db();
    db.start("p", "bounded").go();
    assert_eq!(db.completes("p").result()["status"], 503);
    assert_eq!(attempts_of(&worker).len(), 2, "the first, and the one that is due within three seconds");
    app.done(&[]);
}

#[test]
fn an_rpc_is_repeated_by_its_caller_alone() {
    let app = App::new("further_rpc");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => Reply::Unavailable(1),
        _ => dead_end().into(),
    });
    app.register("asked", &one_step().rpc("ask", json!({})));
    let mut db = app.db();
    db.start("p", "asked").go();
    db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'ask')");
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 1);
    app.done(&[]);
}

/// The decision `retry` with effects.
fn retry(error: Value, effects: Value) -> Reply {
    let mut answer = json!({"stateDecision": {"retry": error}});
    answer.as_object_mut().expect("an object").extend(effects.as_object().expect("an object").clone());
    Reply::Json(200, answer)
}

#[test]
fn a_failed_attempt_keeps_its_effects_if_it_asks_for_it() {
    let app = App::new("further_applied");
    let worker = app.worker(|call: &Call| match (call.target(), call.attempt()) {
        ("Only", 1) => retry(
            json!({"errorType": "Halfway", "detail": "one of two", "retryAfterSeconds": 0.2}),
            json!({"writeToLocalAttributes": {"done": 1}, "writeToGlobalAttributes": {"n": 1},
                   "publishToLocalQueue": [{"queueName": "inbox", "payload": "halfway"}]}),
        ),
        ("Only", 2) => retry(
            json!({}),
            json!({"writeToGlobalAttributes": {"n": "no number"}, "writeToLocalAttributes": {"done": 9}}),
        ),
        ("Only", _) => retry(json!({"final": true}), json!({"writeToGlobalAttributes": {"n": 3}})),
        _ => force_complete(json!([call.local("done"), call.global("n"), error_from(call)["status"]])).into(),
    });
    let definition = with_policy(quick_retries()).maps("public.counters", "id", &["n"]);
    app.register("applied", &definition);
    let mut db = app.db();
    db.start("p", "applied").key("p").globals(json!({"n": 0})).go();
    assert_eq!(db.completes("p").result(), &json!([1, 3, 200]), "what was refused is not applied");
    let attempts = attempts_of(&worker);
    let keys: Vec<_> = attempts.iter().map(|(_, key)| key.rsplit('/').next().unwrap_or_default()).collect();
    assert_eq!((keys, attempts.len()), (vec!["0", "1", "2"], 3), "each is another request");
    let seen: Vec<_> =
        worker.calls().iter().filter(|call| call.target() == "Only").map(|call| call.local("done").clone()).collect();
    assert_eq!(seen, [json!(null), json!(1), json!(1)]);
    let failed = db.all::<String>(
        "SELECT concat_ws(' ', details -> 'failure' ->> 'errorType', details ->> 'applied') FROM xdb.history
         WHERE event_type = 'AttemptFailed' ORDER BY event_id",
    );
    assert_eq!(failed, ["Halfway true", "AppDatabaseError"]);
    let received = db.count("xdb.history WHERE event_type = 'MessagesReceived' AND details ->> 'publisher' = 'State'");
    assert_eq!(received, 1, "published once");
    app.done(&[]);
}
