//! A new version is deployed while processes run. For a while, workers, the registration and processes have different
//! versions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// Options with one attempt, and then the refund.
fn once() -> Value {
    let recovery = json!({"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Refund"});
    json!({"executeApiRetryPolicy": {"maximumAttempts": 1}, "stateFailureRecoveryOptions": recovery})
}

/// `Pay` waits for a message.
fn old_version() -> Definition {
    let definition = Definition::starting_with("Pay").waiting_step_with("Pay", once()).step("Refund");
    definition.with("localQueues", json!(["go"])).with("localAttributes", json!(["paid"])).rpc("ask", json!({}))
}

/// The old version, with the state `Pack` after `Pay`.
fn new_version() -> Definition {
    old_version().step_with("Pack", once()).with("localAttributes", json!(["paid", "packed"]))
}

fn refund(call: &Call) -> Reply {
    graceful_complete(json!(["refunded", call.body["context"]["recoverFromError"]["errorType"]])).into()
}

/// A worker of the old version. It does not know `Pack`, and its answer shows so.
fn old_instance(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "go", 1)]).into(),
        (_, "Pay") => graceful_complete(json!("old")).locals(json!({"paid": 1})).into(),
        (_, "Refund") => refund(call),
        _ => Reply::Unavailable(1),
    }
}

/// A worker of the new version.
fn new_instance(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "go", 1)]).into(),
        (_, "Pay") => next("Pack", json!(null)).locals(json!({"paid": 1})).into(),
        (_, "Pack") => graceful_complete(json!("new")).locals(json!({"packed": 1})).into(),
        _ => refund(call),
    }
}

fn failed_attempts(db: &mut Db) -> i64 {
    db.count("xdb.history WHERE event_type IN ('AttemptFailed', 'AttemptsFolded', 'StateFailed', 'IncidentRaised')")
}

fn start_all(db: &mut Db, count: usize) {
    db.run(&format!("SELECT count(xdb.start_process('p' || n, 'deploy')) FROM generate_series(1, {count}) n"));
    let waiting = "xdb.waits WHERE queue_name = 'go'";
    wait_until("all wait", 60, || db.count(waiting) == count as i64);
}

fn publish_to_all(db: &mut Db, count: usize) {
    db.run(&format!("SELECT count(xdb.publish('p' || n, 'go', '1')) FROM generate_series(1, {count}) n"));
}

fn all_end(db: &mut Db, count: usize) {
    wait_until("all have ended", 90, || views::with_status(db, "p%", "RUNNING") == 0);
    assert_eq!(views::with_status(db, "p%", "COMPLETED"), count as i64);
    assert_eq!(failed_attempts(db), 0);
    assert_eq!(db.count("xdb.processes WHERE result::text LIKE '%refunded%'"), 0);
}

const COUNT: usize = 100;

#[test]
fn a_rolling_deployment_has_no_failed_attempt_if_additions_are_registered_first() {
    let app = App::new("deploying_rolling");
    // Behind one address calls go to the one and to the other in turns, until all instances are new.
    let (rolled, calls) = (std::sync::Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let all_new = rolled.clone();
    let worker = app.worker(move |call: &Call| {
        let is_new = all_new.load(Ordering::SeqCst) || calls.fetch_add(1, Ordering::SeqCst) % 2 == 0;
        if is_new { new_instance(call) } else { old_instance(call) }
    });
    app.register("deploy", &old_version());
    let mut db = app.db();
    start_all(&mut db, COUNT);
    app.register("deploy", &new_version());
    publish_to_all(&mut db, COUNT);
    worker.wait_for("some have met the new version", 60, |call| call.executes("Pack"));
    rolled.store(true, Ordering::SeqCst);
    all_end(&mut db, COUNT);
    let results = db.all::<String>("SELECT DISTINCT result #>> '{}' FROM xdb.processes ORDER BY 1");
    assert_eq!(results, ["new", "old"], "both have answered");
    app.done(&[]);
}

#[test]
fn a_rolling_deployment_has_no_failed_attempt_if_workers_are_first() {
    let app = App::new("deploying_worker_first");
    let calls = AtomicUsize::new(0);
    let worker = app.worker(move |call: &Call| {
        if calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) { new_instance(call) } else { old_instance(call) }
    });
    app.register("deploy", &old_version());
    let mut db = app.db();
    start_all(&mut db, COUNT);
    publish_to_all(&mut db, COUNT);
    wait_until("some wait for the registration", 60, || {
        db.count("xdb.failures WHERE error_type = 'NotRegistered'") > 10
    });
    app.register("deploy", &new_version());
    all_end(&mut db, COUNT);
    let most = db.one::<i64>(
        "SELECT max(n) FROM (SELECT count(*) AS n FROM xdb.history WHERE event_type = 'CallRepeated'
             AND details -> 'failure' ->> 'errorType' = 'NotRegistered' GROUP BY execution_id) AS of_each",
    );
    assert!(most <= 2, "a call is not asked for again and again: {most} times");
    assert!(worker.count(|call| call.executes("Pay")) <= 3 * COUNT);
    app.done(&[]);
}

#[test]
fn an_unregistered_state_is_reported_waits_and_is_called_at_once_when_registered() {
    let app = App::new("deploying_told");
    let worker = app.worker(new_instance);
    app.register("deploy", &old_version());
    app.register("bystander", &old_version());
    let mut db = app.db();
    db.start("p1", "deploy").go();
    db.start("other", "bystander").go();
    for process_id in ["p1", "other"] {
        wait_until("it waits", 20, || !views::waits(&mut db, process_id).is_empty());
        db.publish(process_id, "go", json!(1));
        wait_until("it is reported", 20, || !views::failures(&mut db, process_id).is_empty());
    }
    let [failure] = views::failures(&mut db, "p1").try_into().expect("one");
    assert_eq!(failure["error_type"], "NotRegistered");
    assert_eq!(failure["detail"], "unknown state \"Pack\": known are Pay, Refund");
    assert_eq!((&failure["attempt"], &failure["state_status"]), (&json!(1), &json!("EXECUTE")));
    assert!(failure["next_attempt_at"].is_string(), "{failure}");
    let described = db.json("SELECT xdb.describe_process('p1')");
    assert_eq!(described["lastFailure"]["failure"]["errorType"], "NotRegistered", "{described}");
    assert_eq!(described["threads"][0]["attempt"], 1, "{described}");
    assert!(described["threads"][0]["nextAttemptAt"].is_string(), "{described}");
    assert_eq!(
        db.one::<i64>("SELECT (xdb.get_local_attributes('p1') ? 'paid')::int::int8"),
        0,
        "nothing of it is applied"
    );
    let pause = db.one::<i64>(
        "SELECT ((details ->> 'nextCallAt')::bigint / 1000000 - extract(epoch FROM event_time))::int8
         FROM xdb.history WHERE process_id = 'p1' AND event_type = 'CallRepeated'",
    );
    assert!((9..=10).contains(&pause), "{pause} s");

    // Another type's registration is none of its business; a transaction that is rolled back is none.
    pause_has_begun(&mut db, "other");
    app.register("bystander", &old_version());
    app.superuser().run(&format!(
        "BEGIN; SELECT xdb.register_process_type('deploy', 'stub', {}); ROLLBACK",
        jsonb(new_version().json())
    ));
    let asked = |process: &str| db_count(&app, process, "RetryRequested");
    assert_eq!((asked("p1"), asked("other")), (0, 1));
    pause_has_begun(&mut db, "p1");
    app.register("deploy", &new_version());
    assert_eq!(asked("p1"), 1, "at once, and not after its pause");
    assert_eq!(db.completes("p1").result(), "new");
    let pays = worker.calls().into_iter().filter(|call| call.process_id() == "p1" && call.executes("Pay"));
    let keys: Vec<_> = pays.map(|call| (call.attempt(), call.idempotency_key().to_owned())).collect();
    let is_same = keys.iter().all(|key| *key == keys[0] && key.0 == 1);
    assert!(keys.len() >= 2 && is_same, "the same request, and the same attempt: {keys:?}");
    assert_eq!(failed_attempts(&mut db), 0);
    db.run("SELECT xdb.stop_process('other')");
    app.done(&[]);
}

/// Waits until the pause before the next call has just begun. So the following actions happen within the pause.
fn pause_has_begun(db: &mut Db, process_id: &str) {
    let paused = format!("xdb.failures WHERE process_id = '{process_id}' AND next_attempt_at > now() + interval '5 s'");
    wait_until("a pause has just begun", 30, || db.count(&paused) == 1);
}

fn db_count(app: &App, process_id: &str, event: &str) -> i64 {
    app.db().count(&format!("xdb.history WHERE process_id = '{process_id}' AND event_type = '{event}'"))
}

#[test]
fn a_registration_waits_for_no_process_at_any_isolation_level() {
    let app = App::new("deploying_isolation");
    let _worker = app.worker(new_instance);
    app.register("deploy", &old_version());
    let mut db = app.db();
    for process_id in ["p1", "parked"] {
        db.start(process_id, "deploy").go();
        wait_until("it waits", 20, || !views::waits(&mut db, process_id).is_empty());
        db.publish(process_id, "go", json!(1));
        wait_until("it is reported", 20, || !views::failures(&mut db, process_id).is_empty());
    }
    pause_has_begun(&mut db, "parked");
    let mut holder = app.db();
    holder.run("BEGIN; SELECT xdb.set_local_attributes('parked', '{\"paid\": 2}')");
    let mut deployer = app.superuser();
    deployer.run("SET default_transaction_isolation = serializable");
    deployer.run("SET statement_timeout = '20 s'");
    deployer.run(&format!("SELECT xdb.register_process_type('deploy', 'stub', {})", jsonb(new_version().json())));
    assert_eq!(db.completes("p1").result(), "new");
    assert_eq!(db_count(&app, "parked", "RetryRequested"), 0);
    holder.run("COMMIT");
    assert_eq!(db.completes("parked").result(), "new", "after its pause");
    assert_eq!(failed_attempts(&mut db), 0);
    app.done(&[]);
}

#[test]
fn any_name_in_an_answer_that_a_registration_can_add_waits_for_it() {
    let app = App::new("deploying_kinds");
    let _worker = app.worker(|call: &Call| {
        if call.target() == "Next" {
            return Reply::from(force_complete(json!("there")));
        }
        let to_next = || next("Next", json!(null));
        let with_options =
            |options: Value| Answer::deciding(json!({"nextStates": [{"stateId": "Next", "stateConfig": options}]}));
        Reply::from(match (call.api, call.process_id()) {
            (Api::WaitUntil, "waits-local") => any_of(&[timer("t", 0.0), local_queue("m", "added", 1)]),
            (Api::WaitUntil, "waits-global") => any_of(&[timer("t", 0.0), global_queue("m", "wide", 1)]),
            (Api::WaitUntil, _) => no_command(),
            (_, "publishes") => to_next().publish("added", json!(1)),
            (_, "publishes-globally") => to_next().publish_global("wide", json!(1)),
            (_, "writes") => to_next().locals(json!({"added": 1})),
            (_, "calls") => to_next().calls(&[("added", json!(1))]),
            (_, "loads") => with_options(json!({"loadLocalAttributes": {"policy": "PARTIAL", "names": ["added"]}})),
            (_, "recovers") => with_options(json!({"stateFailureRecoveryOptions":
                {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Added"}})),
            (_, "closes") => close_if_empty("added", "Next"),
            (_, "retries") if call.attempt() == 1 => Answer::deciding(json!({"retry": {}})).locals(json!({"added": 1})),
            _ => to_next(),
        })
    });
    app.db().run(
        "CREATE FUNCTION added(context jsonb, argument jsonb) RETURNS void LANGUAGE sql AS '';
         GRANT EXECUTE ON FUNCTION added TO PUBLIC",
    );
    let only = json!({"executeApiRetryPolicy": {"maximumAttempts": 2, "initialIntervalSeconds": 0.1}});
    let old = Definition::starting_with("Only").waiting_step_with("Only", only).step("Next");
    let old = old.with("localQueues", json!([])).with("localAttributes", json!([])).with("globalQueues", json!([]));
    let new = old.clone().step("Added").with("localQueues", json!(["added"])).with("localAttributes", json!(["added"]));
    let new = new.with("globalQueues", json!(["wide"])).with("functions", json!({"added": "public.added"}));
    app.register("kinds", &old);
    let mut db = app.db();
    let all = [
        "waits-local",
        "waits-global",
        "publishes",
        "publishes-globally",
        "writes",
        "calls",
        "loads",
        "recovers",
        "closes",
        "retries",
    ];
    for process_id in all {
        db.start(process_id, "kinds").go();
    }
    for process_id in all {
        let is_told =
            |db: &mut Db| views::failures(db, process_id).iter().any(|shown| shown["error_type"] == "NotRegistered");
        wait_until(process_id, 20, || is_told(&mut db));
    }
    assert_eq!(failed_attempts(&mut db), 0);
    app.register("kinds", &new);
    for process_id in all {
        let end = db.completes(process_id);
        if process_id != "closes" {
            assert_eq!(end.result(), "there", "{process_id}");
        }
    }
    assert_eq!(failed_attempts(&mut db), 1, "that of the decision alone");
    app.done(&[]);
}

#[test]
fn a_function_that_answers_with_an_unregistered_name_is_rolled_back_and_called_again() {
    let app = App::new("deploying_functions");
    let mut db = app.db();
    db.run(
        "CREATE TABLE ledger (what text);
         CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.ledger VALUES ('charged');
             RETURN '{\"stateDecision\": {\"nextStates\": [{\"stateId\": \"Pack\"}]}}';
         END $$;
         CREATE FUNCTION pack(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\", \"closeInput\": \"packed\"}}}'::jsonb $$",
    );
    let register = |definition: &Definition| {
        app.superuser().run(&format!("SELECT xdb.register_process_type('shop', NULL, {})", jsonb(definition.json())));
    };
    let with = |name: &str| json!({"executeFunction": format!("public.{name}"), "executeApiRetryPolicy": {"maximumAttempts": 1}});
    let old = Definition::starting_with("Pay").step_with("Pay", with("pay"));
    register(&old);
    db.start("p", "shop").go();
    wait_until("it is reported", 30, || !views::failures(&mut db, "p").is_empty());
    assert_eq!(
        db.text("SELECT error_type || ': ' || detail FROM xdb.failures"),
        "NotRegistered: unknown state \"Pack\": known are Pay"
    );
    assert_eq!(db.count("ledger"), 0);
    register(&old.step_with("Pack", with("pack")));
    assert_eq!(db.completes("p").result(), "packed");
    assert_eq!(db.count("ledger"), 1);
    assert_eq!(failed_attempts(&mut db), 0);
    app.done(&[]);
}

#[test]
fn after_ten_minutes_it_is_a_failed_attempt() {
    let app = App::alone("deploying_late", ClusterOptions::default());
    let _worker = app.worker(new_instance);
    app.register("deploy", &old_version());
    let mut db = app.db();
    db.start("p", "deploy").go();
    wait_until("it waits", 20, || !views::waits(&mut db, "p").is_empty());
    db.publish("p", "go", json!(1));
    wait_until("it is reported", 20, || !views::failures(&mut db, "p").is_empty());
    app.cluster().set("xdb.now", "9 min");
    wait_until("it was made again", 30, || db_count(&app, "p", "CallRepeated") == 2);
    assert_eq!(db.status("p"), "RUNNING");
    app.cluster().set("xdb.now", "11 min");
    assert_eq!(db.completes("p").result(), &json!(["refunded", "NotRegistered"]));
    assert_eq!(db_count(&app, "p", "StateFailed"), 1);
    app.done(&[]);
}

#[test]
fn the_caller_of_an_rpc_gets_the_error_and_a_registration_during_the_call_counts() {
    let app = App::new("deploying_rpc");
    let worker = app.worker(|call: &Call| match (call.api, call.input().as_str()) {
        (Api::Rpc, Some("later")) => Reply::hang(output(json!("applied")).and(next("Pack", json!(null)))),
        (Api::Rpc, Some("queue")) => output(json!(1)).publish("wrods", json!(1)).into(),
        (Api::Rpc, Some("attribute")) => output(json!(1)).locals(json!({"packed": 1})).into(),
        (Api::Rpc, _) => output(json!("applied")).and(next("Pack", json!(null))).into(),
        _ => new_instance(call),
    });
    app.register("deploy", &old_version());
    let mut db = app.db();
    db.start("p", "deploy").go();
    for (input, what) in
        [("now", "state \"Pack\""), ("queue", "local queue \"wrods\""), ("attribute", "attribute \"packed\"")]
    {
        let error = db.refused(codes::WORKER_FAILED, &format!("SELECT xdb.invoke_rpc('p', 'ask', '\"{input}\"')"));
        assert_eq!(error.datatype, "NotRegistered", "{error:?}");
        assert!(error.detail.contains(what), "{error:?}");
        assert!(error.hint.starts_with("Register the worker's version"), "{error:?}");
    }
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| app.db().rpc("p", "ask", json!("later")));
        worker.wait_for("the call is under way", 20, |call| call.input() == "later");
        app.register("deploy", &new_version());
        worker.release();
        assert_eq!(caller.join().expect("it was answered"), "applied");
    });
    assert_eq!(db.rpc("p", "ask", json!("now")), "applied");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn a_pull_worker_gets_the_warning_and_loses_no_attempt() {
    let app = App::new("deploying_pull");
    app.superuser().run("SELECT xdb.register_worker('pull', url => NULL, role => 'app')");
    let state = json!({"executeApiRetryPolicy": {"maximumAttempts": 1}});
    let old = Definition::starting_with("Pay").step_with("Pay", state.clone());
    app.register_with("pull", "shop", &old);
    let mut db = app.db();
    db.start("p", "shop").go();
    let claim = "SELECT token FROM xdb.claim_calls('pull', wait => '10 s')";
    let token = db.text(claim);
    let complete =
        |token: &str, answer: &Answer| format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()));
    let to_pack = next("Pack", json!(null));
    let error = db.refused("XD010", &complete(&token, &to_pack));
    assert_eq!(error.datatype, "NotRegistered", "{error:?}");
    assert!(error.detail.contains("nknown state \"Pack\"") && error.hint.contains("xdb.fail_call()"), "{error:?}");
    // The call is the worker's still.
    let other = db.refused(
        "XD010",
        &complete(&token, &force_complete(json!(1)).publish("q", json!(1)).calls(&[("f", json!(1))])),
    );
    assert_eq!(other.datatype, "NotRegistered", "{other:?}");
    db.run(&format!(
        "SELECT xdb.fail_call('{token}', '{{\"errorType\": \"NotRegistered\", \"detail\": \"no Pack\"}}')"
    ));
    assert_eq!(db.text("SELECT error_type || ': ' || detail FROM xdb.failures"), "NotRegistered: no Pack");
    assert_eq!(db.count("xdb.claim_calls('pull', wait => '1 ms')"), 0, "it has a pause");
    app.register_with("pull", "shop", &old.clone().step_with("Pack", state));
    let again = db.rows(
        "SELECT token, request -> 'context' ->> 'attempt' AS attempt FROM xdb.claim_calls('pull', wait => '5 s')",
    );
    assert_eq!((again.len(), &again[0]["attempt"]), (1, &json!("1")), "{again:?}");
    db.run(&complete(again[0]["token"].as_str().expect("a text"), &to_pack));
    // A registration that lacks the state that a call is of: the call is not given out, and costs no attempt either.
    app.register_with("pull", "shop", &old);
    assert_eq!(db.count("xdb.claim_calls('pull', wait => '1 ms')"), 0);
    assert_eq!(db.text("SELECT error_type FROM xdb.failures"), "NotRegistered");
    app.register_with("pull", "shop", &old.step_with("Pack", json!({})));
    let token = db.text(claim);
    // A failure with more keys is an ordinary failure.
    let final_failure = r#"{"errorType": "NotRegistered", "final": true}"#;
    db.run(&format!("SELECT xdb.fail_call('{token}', '{final_failure}')"));
    assert_eq!(db.outcome("p").status(), "FAILED");
    app.done(&[]);
}

/// Calls that hang, one of each of these processes. Each process has two threads, and the other one waits for a
/// message.
fn hanging(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(null)).and(force_complete(json!("closed"))).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "go", 1)]).into(),
        (_, "Hang") => Reply::hang(force_complete(json!("never"))),
        (_, "Close") => force_complete(json!("closed")).into(),
        _ => next_all(&[("Hang", json!(null)), ("Close", json!(null))]).into(),
    }
}

#[test]
fn a_connection_is_closed_when_its_call_is_of_no_use_any_more() {
    let app = App::new("deploying_useless");
    let worker = app.worker(hanging);
    let definition = Definition::starting_with("Fork").step("Fork").step("Hang").waiting_step("Close");
    app.register("hangs", &definition.rpc("close", json!({})).with("localQueues", json!(["go"])));
    let mut db = app.db();
    let ways: [(&str, &str); 5] = [
        ("stop", "SELECT xdb.stop_process('stop')"),
        ("fail", "SELECT xdb.stop_process('fail', 'FAIL')"),
        ("rpc", "SELECT xdb.invoke_rpc('rpc', 'close')"),
        ("thread", "SELECT xdb.publish('thread', 'go', '1')"),
        ("again", "SELECT xdb.start_process('again', 'hangs', id_reuse_policy => 'TERMINATE_IF_RUNNING')"),
    ];
    for (way, _) in ways {
        db.start(way, "hangs").go();
    }
    db.start("timeout", "hangs").timeout("8 s").go();
    db.start("goes-on", "hangs").go();
    let hangs = |way: &str| worker.count(|call| call.executes("Hang") && call.process_id() == way);
    for way in ways.map(|(way, _)| way).into_iter().chain(["timeout", "goes-on"]) {
        wait_until(way, 30, || hangs(way) == 1);
    }
    let waits = "xdb.waits WHERE process_id = 'thread'";
    wait_until("its other thread waits", 20, || db.count(waits) == 1);
    assert_eq!(db.outcome("timeout").status(), "TIMEOUT");
    wait_until("a timeout closes it", 20, || worker.abandoned() == 1);
    for (number, (way, sql)) in ways.into_iter().enumerate() {
        db.run(sql);
        wait_until(way, 20, || worker.abandoned() == number + 2);
    }
    // One that is paused takes its answer.
    db.run("SELECT xdb.pause_process('goes-on')");
    wait_until("places are free", 20, || app.superuser().one::<i32>("SELECT in_flight FROM xdb.workers") == 2);
    wait_until("no other is closed", 20, || worker.abandoned() == 6);
    assert_eq!(app.superuser().text("SELECT failures || ' ' || breaker FROM xdb.workers"), "0 closed");
    worker.release();
    assert_eq!(db.completes("goes-on").result(), "never");
    db.completes("again");
    app.done(&[]);
}

#[test]
fn a_statement_that_is_cancelled_closes_the_connection_of_its_rpc() {
    let app = App::new("deploying_cancelled");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => Reply::hang(output(json!(null))),
        _ => dead_end().into(),
    });
    app.register("asked", &one_step().rpc("ask", json!({})));
    let mut db = app.db();
    db.start("p", "asked").go();
    for (number, setting) in ["statement_timeout = '500 ms'", "xdb.rpc_timeout = '500 ms'"].into_iter().enumerate() {
        db.run(&format!("SET {setting}"));
        assert!(db.try_run("SELECT xdb.invoke_rpc('p', 'ask')").is_err(), "{setting}");
        db.run("RESET statement_timeout");
        wait_until(setting, 20, || worker.abandoned() == number + 1);
    }
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn status_shows_where_calls_wait_for_places_and_which_limit_to_raise() {
    let app = App::alone("deploying_places", ClusterOptions::default().set("xdb.max_in_flight", "8"));
    let worker = app.worker(|_: &Call| Reply::hang(force_complete(json!("done"))));
    app.register("slow", &one_step());
    let mut superuser = app.superuser();
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 3)", worker.url()));
    let mut db = app.db();
    for n in 0..8 {
        db.start(&format!("p{n}"), "slow").go();
    }
    worker.wait_for_count("it is full", 20, 3, |_| true);
    let waiting = "SELECT waiting || ' ' || (waiting_since < now()) FROM xdb.workers WHERE name = 'stub'";
    wait_until("they wait", 20, || superuser.text(waiting) == "5 true");
    let reason = |db: &mut Db| db.text("SELECT coalesce(reason, '') FROM xdb.status()");
    let shows = |words: &str| {
        let mut boss = app.session("boss");
        wait_until(words, 20, || reason(&mut boss).contains(words));
        reason(&mut boss)
    };
    let shown = shows("5 calls wait for a place at worker \"stub\"");
    assert!(shown.contains("its max_concurrency is 3: raise it") && shown.contains("a worker of their own"), "{shown}");
    // Another role sees nothing of it.
    let seen = app.session("other").text("SELECT coalesce(waiting::text, 'null') FROM xdb.workers WHERE name = 'stub'");
    assert_eq!(seen, "null");

    // With another worker beside it, it has half.
    superuser.run("SELECT xdb.register_worker('beside', 'http://127.0.0.1:9')");
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 100)", worker.url()));
    worker.wait_for_count("it has half", 20, 4, |_| true);
    let shown = shows("4 calls wait for a place at worker \"stub\"");
    assert!(shown.contains("it may have 4 calls under way, half of the engine's limit for all workers"), "{shown}");
    // Alone it has all, of which one role gets eight ninths.
    superuser.run("SELECT xdb.unregister_worker('beside')");
    worker.wait_for_count("it has all", 20, 8, |_| true);
    worker.heal();
    worker.misbehave(|_| force_complete(json!("done")));
    worker.release();
    for n in 0..8 {
        db.completes(&format!("p{n}"));
    }
    wait_until("no call waits", 20, || {
        superuser.text("SELECT waiting || coalesce(waiting_since::text, '') FROM xdb.workers") == "0"
    });
    assert_eq!(reason(&mut superuser), "");
    app.done(&[]);
}
