//! Decisions of states: threads, ends, and the values that are passed on.

use std::collections::BTreeSet;
use std::sync::Mutex;

use xdb_cluster_tests::prelude::*;

/// Three threads. The thread of state `A` hangs until the worker is released. `others` answers the other threads, once
/// `A` has been called.
fn forking(name: &str, others: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> (App, Worker) {
    let app = App::new(name);
    let called = Mutex::new(BTreeSet::new());
    let worker = app.worker(move |call: &Call| {
        let mut called = called.lock().expect("never poisoned");
        match call.target() {
            "Fork" => next_all(&[("A", json!(1)), ("B", json!(2)), ("B", json!(3))]).into(),
            "A" => {
                called.insert(call.process_id().to_owned());
                Reply::hang(graceful_complete(json!("a")).locals(json!({"late": true})))
            }
            _ if called.contains(call.process_id()) => others(call).into(),
            _ => error(503, "TooEarly", "A has not been called"),
        }
    });
    app.register("fork", &Definition::starting_with("Fork").step("Fork").step("A").step("B"));
    (app, worker)
}

#[test]
fn a_graceful_complete_waits_for_the_last_thread() {
    let (app, worker) = forking("decide_graceful", |call| graceful_complete(call.input().clone()));
    let mut db = app.db();
    db.start("p", "fork").go();
    wait_until("two threads have ended", 10, || views::ended_states(&mut db, "p") >= 3);
    assert_eq!(db.status("p"), "RUNNING");
    worker.release();
    let outcome = db.completes("p");
    let given: Vec<&Value> = outcome.results().iter().collect();
    assert_eq!(given.len(), 3, "{given:?}");
    for (by, output) in [("A-1", json!("a")), ("B-1", json!(2)), ("B-2", json!(3))] {
        let text = output.to_string();
        let found = given.iter().any(|result| {
            let result = result.to_string();
            result.contains(by) && result.contains(&text)
        });
        assert!(found, "{by} gave {text}: {given:?}");
    }
    app.done(&[]);
}

#[test]
fn a_forced_complete_aborts_the_other_threads() {
    let (app, worker) = forking("decide_force", |call| match call.input().as_u64() {
        Some(2) => force_complete(json!("enough")),
        _ => dead_end(),
    });
    let mut db = app.db();
    db.start("p", "fork").go();
    worker.wait_for("A is under way", 10, |call| call.target() == "A");
    assert_eq!(db.completes("p").result(), "enough");
    worker.release();
    db.start("q", "fork").go();
    worker.wait_for("another process is under way", 10, |call| call.process_id() == "q" && call.target() == "A");
    assert_eq!(db.status("p"), "COMPLETED");
    assert_eq!(worker.count(|call| call.process_id() == "p" && call.target() == "A"), 1);
    worker.release();
    db.completes("q");
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_forced_fail_keeps_its_output() {
    let (app, worker) = forking("decide_fail", |call| match call.input().as_u64() {
        Some(3) => force_fail(json!({"reason": "no stock"})),
        _ => dead_end(),
    });
    let mut db = app.db();
    db.start("p", "fork").go();
    worker.wait_for("A is under way", 10, |call| call.target() == "A");
    let outcome = db.outcome("p");
    assert_eq!(outcome.status(), "FAILED");
    assert_eq!(outcome.result(), &json!({"reason": "no stock"}));
    app.done(&[]);
}

#[test]
fn a_dead_end_leaves_the_process_running_for_rpcs() {
    let app = App::new("decide_dead_end");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("going")).and(next("End", call.input().clone())),
        (_, "End") => force_complete(call.input().clone()),
        _ => dead_end(),
    });
    app.register("patient", &one_step().step("End").rpc("go", json!({})));
    let mut db = app.db();
    db.start("p", "patient").go();
    worker.wait_for("its only step", 10, |_| true);
    wait_until("no thread is left", 10, || views::ended_states(&mut db, "p") == 1);
    assert_eq!(db.status("p"), "RUNNING");
    assert_eq!(db.rpc("p", "go", json!("home")), "going");
    assert_eq!(db.completes("p").result(), "home");
    app.done(&[]);
}

#[test]
fn a_graceful_complete_stays_requested_when_the_last_thread_is_a_dead_end() {
    let app = App::new("decide_requested");
    let worker = app.worker(|call: &Call| match call.target() {
        "Fork" => next_all(&[("A", json!(null)), ("B", json!(null))]).into(),
        "A" => Reply::hang(dead_end()),
        _ => Reply::from(graceful_complete(json!("b"))),
    });
    app.register("fork", &Definition::starting_with("Fork").step("Fork").step("A").step("B"));
    let mut db = app.db();
    db.start("p", "fork").go();
    worker.wait_for_count("both threads are called", 10, 2, |call| call.target() != "Fork");
    wait_until("B has ended", 10, || views::ended_states(&mut db, "p") == 2);
    worker.release();
    assert_eq!(db.completes("p").result(), "b");
    app.done(&[]);
}

#[test]
fn a_process_without_a_starting_state_waits_for_rpcs() {
    let app = App::new("decide_no_start");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)).and(force_complete(json!("by rpc"))),
        _ => dead_end(),
    });
    app.register("passive", &Definition::without_start().rpc("close", json!({})));
    let mut db = app.db();
    db.start("p", "passive").go();
    assert_eq!(db.status("p"), "RUNNING");
    db.rpc("p", "close", json!(null));
    assert_eq!(db.completes("p").result(), "by rpc");
    app.done(&[]);
}

#[test]
fn a_state_movement_brings_its_own_options() {
    let app = App::new("decide_options");
    let worker = app.worker(|call: &Call| match call.target() {
        "Only" => Reply::Json(
            200,
            json!({"stateDecision": {"nextStates": [{"stateId": "Fragile", "stateInput": 1,
            "stateConfig": {"skipWaitUntil": true, "executeApiRetryPolicy": {"maximumAttempts": 1}}}]}}),
        ),
        _ => error(500, "Broken", "once is enough"),
    });
    app.register("one", &one_step().step("Fragile"));
    let mut db = app.db();
    db.start("p", "one").go();
    assert_eq!(db.outcome("p").status(), "FAILED");
    assert_eq!(worker.count(|call| call.target() == "Fragile"), 1);
    app.done(&[]);
}

/// A worker that returns its input unchanged.
fn echo(call: &Call) -> Reply {
    let from = call.raw.find("\"stateInput\"").map_or(0, |at| at + "\"stateInput\"".len());
    let text = call.raw[from..].trim_start().trim_start_matches(':').trim_start();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let parsed = values.next().is_some_and(|value| value.is_ok());
    let input = if parsed { &text[..values.byte_offset()] } else { "null" };
    let body = format!(
        r#"{{"stateDecision":{{"threadCloseDecision":{{"closeType":"FORCE_COMPLETE_PROCESS","closeInput":{input}}}}}}}"#
    );
    Reply::Raw(200, body.into_bytes())
}

#[test]
fn any_json_goes_in_and_comes_out_as_it_was() {
    let app = App::new("decide_values");
    let _worker = app.worker(echo);
    app.register("echo", &one_step());
    let mut db = app.db();
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let values = [
        "null",
        "false",
        "\"\"",
        "\"grüße, 世界 🌍 \\u2028 \\\" \\\\ \\n\"",
        "123456789012345678901234567890",
        "-0.123456789012345678901234567890",
        "1e300",
        "{}",
        "[]",
        r#"{"a": [1, {"b": null}], "": "empty key", "ключ": true}"#,
        &deep,
    ];
    for (n, value) in values.iter().enumerate() {
        db.run(&format!("SELECT xdb.start_process('p{n}', 'echo', '{value}')"));
        db.completes(&format!("p{n}"));
        let same = format!(
            "SELECT coalesce(xdb.wait_for_process('p{n}', '1 second')->'result', 'null')::text = ('{value}'::jsonb)::text"
        );
        assert!(
            db.one::<bool>(&same),
            "{value} became {}",
            db.text(&format!("SELECT xdb.wait_for_process('p{n}', '1 second')"))
        );
    }
    app.done(&[]);
}

#[test]
fn a_value_that_is_too_large_or_no_jsonb_is_refused_where_it_enters() {
    let app = App::new("decide_refused");
    let _worker = app.worker(echo);
    app.register("echo", &one_step());
    let mut db = app.db();
    db.refused(
        codes::PAYLOAD_REFUSED,
        "SELECT xdb.start_process('large', 'echo', to_jsonb(repeat('x', 2 * 1024 * 1024)))",
    );
    db.refused(
        codes::PAYLOAD_REFUSED,
        "SELECT xdb.start_process('deep', 'echo', (repeat('[', 200) || repeat(']', 200))::jsonb)",
    );
    assert_eq!(db.count("xdb.processes"), 0);
    app.done(&[]);
}
