//! Workers that misbehave in many ways. The engine survives, names the problem, and goes on.

use xdb_cluster_tests::prelude::*;

/// A call that takes longer than a second times out.
fn impatient() -> Definition {
    Definition::starting_with("Only").step_with("Only", json!({"executeApiTimeoutSeconds": 1}))
}

/// One process meets a worker that misbehaves. The failure contains one of these words, and the call is retried. When
/// the worker is healed, the process completes.
fn survives<R: Into<Reply>>(name: &str, words: &[&str], mischief: impl Fn(&Call) -> R + Send + Sync + 'static) {
    let app = App::new(name);
    let worker = app.worker(|_| force_complete(json!("healed")));
    app.register("one", &impatient());
    worker.misbehave(mischief);
    let mut db = app.db();
    db.start("p", "one").go();
    worker.wait_for_count("a second attempt", 20, 2, |call| call.executes("Only"));
    wait_until(&format!("a failure says one of {words:?}"), 10, || views::fails_saying_one_of(&mut db, "p", words));
    assert_eq!(db.status("p"), "RUNNING");
    worker.heal();
    assert_eq!(db.completes("p").result(), "healed");
    app.done(&[]);
}

#[test]
fn one_that_refuses_connections() {
    let app = App::new("bad_refuses");
    let worker = app.worker(|_| force_complete(json!("healed")));
    app.register("one", &impatient());
    worker.go_away();
    let mut db = app.db();
    db.start("p", "one").go();
    wait_until("the failure shows it", 10, || views::fails_saying_one_of(&mut db, "p", &["refused", "connect"]));
    worker.come_back();
    assert_eq!(db.completes("p").result(), "healed");
    app.done(&[]);
}

#[test]
fn one_that_hangs() {
    survives("bad_hangs", &["timeout", "timed out"], |_| Reply::hang(force_complete(json!("healed"))));
}

#[test]
fn one_that_drips() {
    survives("bad_drips", &["timeout", "timed out"], |_| Reply::Drip(Duration::from_millis(100)));
}

#[test]
fn one_that_answers_500() {
    survives("bad_500", &["payment service is down"], |_| error(500, "Unavailable", "the payment service is down"));
}

#[test]
fn a_worker_answers_500_without_a_body() {
    survives("bad_mute", &["500"], |_| Reply::Raw(500, Vec::new()));
}

#[test]
fn one_that_answers_garbage() {
    survives("bad_garbage", &["utf-8"], |_| Reply::Raw(200, b"<html>\xff\x00 hello".to_vec()));
}

#[test]
fn one_that_answers_a_web_page() {
    survives("bad_html", &["not json"], |_| Reply::Raw(200, b"<html>Welcome</html>".to_vec()));
}

#[test]
fn one_that_answers_without_end() {
    let nested = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    survives("bad_nested", &["deep"], move |_| Reply::Raw(200, nested.clone()));
}

#[test]
fn one_that_decides_nothing() {
    survives("bad_nothing", &["decision"], |_| Reply::Json(200, json!({})));
}

#[test]
fn one_that_names_an_unknown_state() {
    survives("bad_state", &["nowhere"], |_| next("Nowhere", json!(null)));
}

#[test]
fn one_that_writes_an_unknown_attribute() {
    survives("bad_attribute", &["shoe_size"], |_| dead_end().globals(json!({"shoe_size": 42})));
}

#[test]
fn one_that_answers_fifty_megabytes() {
    survives("bad_huge", &["large", "size", "limit", "bytes"], |_| Reply::Huge(50_000_000));
}

#[test]
fn one_that_closes_in_the_middle() {
    survives("bad_cut", &["closed", "eof", "end", "connection", "incomplete", "body"], |_| Reply::CloseMidBody);
}

#[test]
fn a_workers_answer_does_not_fit_into_any_database() {
    survives("bad_nul", &["nul", "u0000", "jsonb", "character"], |_| force_complete(json!("a\u{0}b")));
}

#[test]
fn one_that_redirects() {
    survives("bad_redirect", &["302"], |_| Reply::Raw(302, Vec::new()));
}

#[test]
fn every_attempt_is_the_same_call_and_the_last_failure_is_kept() {
    let app = App::new("bad_spent");
    let worker = app.worker(|_| error(503, "Overloaded", "come back tomorrow"));
    app.register(
        "one",
        &Definition::starting_with("Only").step_with("Only", json!({"executeApiRetryPolicy": attempts(3)})),
    );
    let mut db = app.db();
    db.start("p", "one").go();
    assert_eq!(db.outcome("p").status(), "FAILED");

    let calls = worker.calls();
    let numbers: Vec<u64> = calls.iter().map(Call::attempt).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(calls.iter().all(|call| !call.call_id().is_empty() && call.call_id() == calls[0].call_id()));
    assert!(
        calls
            .iter()
            .all(|call| { !call.idempotency_key().is_empty() && call.idempotency_key() == calls[0].idempotency_key() })
    );
    assert!(views::fails_saying(&mut db, "p", &["come back tomorrow"]), "{:?}", views::failures(&mut db, "p"));
    assert!(db.text("SELECT xdb.describe_process('p')").contains("come back tomorrow"));
    app.done(&[]);
}

/// Fails in the given API. The state `Rescue` recovers, and completes with its input.
fn rescued(name: &str, failing: Api, api_name: &str) {
    let app = App::new(name);
    let worker = app.worker(move |call: &Call| match (call.api, call.target()) {
        (_, "Rescue") => force_complete(call.input().clone()).into(),
        (api, _) if api == failing => error(500, "Broken", "beyond repair"),
        _ => Reply::from(no_command()),
    });
    let fragile = json!({
        "executeApiRetryPolicy": attempts(2),
        "waitUntilApiRetryPolicy": attempts(2),
        "stateFailureRecoveryOptions":
            {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Rescue"},
    });
    app.register("fragile", &Definition::starting_with("Fragile").waiting_step_with("Fragile", fragile).step("Rescue"));
    let mut db = app.db();
    db.start("p", "fragile").input(json!({"order": 7})).go();
    assert_eq!(db.completes("p").result(), &json!({"order": 7}));

    let rescue = worker.wait_for("the rescue", 1, |call| call.executes("Rescue"));
    let context = &rescue.body["context"];
    assert_eq!(context["recoverFromStateExecutionId"], "Fragile-1");
    assert_eq!(context["recoverFromApi"], api_name);
    assert_eq!(context["recoverFromError"]["status"], 500);
    assert_eq!(context["recoverFromError"]["errorType"], "Broken");
    assert_eq!(context["recoverFromError"]["detail"], "beyond repair");
    assert_eq!(worker.count(|call| call.api == failing && call.target() == "Fragile"), 2);
    app.done(&[]);
}

#[test]
fn spent_retries_of_execute_proceed_to_the_configured_state() {
    rescued("bad_rescue_execute", Api::Execute, "EXECUTE_API");
}

#[test]
fn spent_retries_of_wait_until_proceed_to_the_configured_state() {
    rescued("bad_rescue_wait", Api::WaitUntil, "WAIT_UNTIL_API");
}

#[test]
fn a_process_times_out_and_a_late_answer_changes_nothing() {
    let app = App::new("bad_timeout");
    let worker = app.worker(|call: &Call| match call.process_id() {
        "late" => Reply::hang(force_complete(json!("too late")).globals(json!({"n": 99}))),
        _ => force_complete(json!("in time")).into(),
    });
    app.register("one", &one_step().maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    db.start("late", "one").key("late").globals(json!({"n": 1})).timeout("1 second").go();
    worker.wait_for("the call", 5, |call| call.process_id() == "late");
    assert_eq!(db.outcome("late").status(), "TIMEOUT");

    worker.release();
    // By the time that a process started after the release completes, the late answer has been seen.
    db.start("next", "one").key("next").go();
    db.completes("next");
    assert_eq!(db.status("late"), "TIMEOUT");
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'late'"), 1);
    assert_eq!(worker.count(|call| call.process_id() == "late"), 1);
    app.done(&[]);
}

#[test]
fn a_dead_worker_costs_the_other_workers_nothing() {
    let app = App::new("bad_neighbour");
    let dead = app.worker_named("dead", |_| Reply::hang(dead_end()));
    let lively = app.worker_named("lively", |_| force_complete(json!(null)));
    app.register_with("dead", "stuck", &one_step());
    app.register_with("lively", "quick", &one_step());
    let mut db = app.db();
    for n in 0..300 {
        db.start(&format!("stuck-{n}"), "stuck").go();
    }
    dead.wait_for_count("the dead worker has as much as it may", 10, 32, |_| true);
    let (took, ()) = timed(|| {
        for n in 0..20 {
            let id = format!("quick-{n}");
            db.start(&id, "quick").go();
            db.completes(&id);
        }
    });
    assert!(took < Duration::from_secs(5), "twenty processes of a lively worker took {took:?}");
    assert_eq!(lively.count(|_| true), 20);
    app.done(&[]);
}
