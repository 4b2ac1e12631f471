//! Incidents: a state whose retries are spent stays at its call until an operator retries it.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

fn incident() -> Value {
    json!({"policy": "RAISE_INCIDENT"})
}

/// The state `Ship`, with two attempts and then an incident.
fn shipping() -> Definition {
    let options = json!({"executeApiRetryPolicy": attempts(2), "stateFailureRecoveryOptions": incident()});
    Definition::starting_with("Ship").step_with("Ship", options).maps("public.counters", "id", &["n"])
}

fn incidents(db: &mut Db) -> Vec<Value> {
    db.rows("SELECT process_id, state_execution_id, api, attempt, http_status, error_type, detail FROM xdb.incidents ORDER BY 1, 2")
}

fn wait_for_incidents(db: &mut Db, count: usize) {
    wait_until("the incidents are there", 15, || incidents(db).len() == count);
}

fn ships_with_address(call: &Call) -> Reply {
    match call.global("n").as_i64() {
        Some(0) | None => error(422, "NoAddress", "where to?"),
        Some(n) => force_complete(json!([n, call.local("why")])).into(),
    }
}

/// Seed 5: "incident at job failure; variables are mended, then `Resolve` continues at the same place".
#[test]
fn after_an_incident_variables_are_mended_and_resolve_continues_at_the_same_place() {
    let app = App::new("incident_resolved");
    let worker = app.worker(ships_with_address);
    app.register("shipping", &shipping());
    let mut db = app.db();
    db.start("p", "shipping").key("p").globals(json!({"n": 0})).go();
    wait_for_incidents(&mut db, 1);
    let expected = json!({"process_id": "p", "state_execution_id": "Ship-1", "api": "EXECUTE_API", "attempt": 2,
        "http_status": 422, "error_type": "NoAddress", "detail": "where to?"});
    assert_eq!(incidents(&mut db), [expected]);
    assert_eq!(db.status("p"), "RUNNING");
    assert_eq!(app.superuser().count("xdb.task"), 0, "nothing is due");
    let described = db.json("SELECT xdb.describe_process('p')");
    assert_eq!(described["threads"][0]["incident"], true, "{described}");
    assert_eq!(described["threads"][0]["nextAttemptAt"], Value::Null, "{described}");
    let shown = "xdb.state_executions s JOIN xdb.failures f USING (execution_id, state_execution_id)
        WHERE s.next_attempt_at IS NULL AND f.next_attempt_at IS NULL AND f.detail = 'where to?'";
    assert_eq!(db.count(shown), 1);
    // What is mended and then taken back is not seen by any attempt.
    db.run("BEGIN; UPDATE counters SET n = 9 WHERE id = 'p'; SELECT xdb.retry_now('p'); ROLLBACK");
    assert_eq!(incidents(&mut db).len(), 1);
    db.run("BEGIN; UPDATE counters SET n = 7 WHERE id = 'p'; SELECT xdb.set_local_attributes('p', '{\"why\": \"mended\"}')");
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p', 'Ship-1')"), 1);
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p', 'Ship-1')"), 0, "it is resolved");
    db.run("COMMIT");
    assert_eq!(db.completes("p").result(), &json!([7, "mended"]));
    let calls = worker.calls();
    assert_eq!(calls.iter().map(Call::attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_ne!(calls[1].idempotency_key(), calls[2].idempotency_key(), "a worker must not answer from memory");
    let events = "SELECT event_type FROM xdb.history WHERE process_id = 'p' ORDER BY event_id";
    let shown = [
        "ProcessStarted",
        "GlobalAttributesWritten",
        "StateStarted",
        "AttemptFailed",
        "IncidentRaised",
        "LocalAttributesWritten",
        "RetryRequested",
        "ResultGiven",
        "StateCompleted",
        "ProcessClosed",
    ];
    assert_eq!(db.all::<String>(events), shown);
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

/// Each way to fail: the state stays at the failed call, and continues from there after the retry.
#[test]
fn every_way_to_fail_raises_an_incident_and_continues_after_a_retry() {
    let app = App::new("incident_ways");
    let worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (Api::WaitUntil, "waiting") => error(422, "NoPatience", "how long?"),
        (Api::WaitUntil, _) => no_command().into(),
        (_, "garbage") => Reply::Raw(200, b"garbage".to_vec()),
        (_, "refused") => force_complete(json!("refused")).globals(json!({"n": -1})).into(),
        (_, id) => force_complete(json!(id)).into(),
    });
    let mut db = app.db();
    db.run(
        "ALTER TABLE counters ADD CONSTRAINT not_negative CHECK (n >= 0);
         CREATE TABLE mended (id int);
         CREATE FUNCTION breaks(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             IF NOT EXISTS (SELECT FROM public.mended) THEN RAISE EXCEPTION 'not mended' USING ERRCODE = 'SH001'; END IF;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;",
    );
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let once = json!({"executeApiRetryPolicy": attempts(1), "waitUntilApiRetryPolicy": attempts(1),
        "stateFailureRecoveryOptions": incident()});
    let with = |more: Value| {
        let mut config = once.clone();
        config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        config
    };
    let one = |config: Value| Definition::starting_with("Only").waiting_step_with("Only", config);
    app.register("plain", &one(once.clone()).maps("public.counters", "id", &["n"]));
    app.register("function", &one(with(json!({"skipWaitUntil": true, "executeFunction": "public.breaks"}))));
    app.register_with("pull", "for_pull", &one(with(json!({"skipWaitUntil": true}))));
    for id in ["waiting", "garbage", "refused"] {
        db.start(id, "plain").key(id).globals(json!({"n": 0})).go();
    }
    db.start("function", "function").go();
    db.start("for_pull", "for_pull").go();
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')");
    db.run(&format!("SELECT xdb.fail_call('{token}', '{{\"errorType\": \"Busy\"}}')"));
    wait_for_incidents(&mut db, 5);
    let shown =
        "SELECT process_id, api, error_type, sql_state, table_name, constraint_name FROM xdb.incidents ORDER BY 1";
    let incident = |id: &str, api: &str, error_type: &str, of_table: [Value; 3]| {
        let [sql_state, table, constraint] = of_table;
        json!({"process_id": id, "api": api, "error_type": error_type, "sql_state": sql_state, "table_name": table,
            "constraint_name": constraint})
    };
    let none = || [Value::Null, Value::Null, Value::Null];
    let expected = [
        incident("for_pull", "EXECUTE_API", "Busy", none()),
        incident("function", "EXECUTE_API", "SH001", none()),
        incident("garbage", "EXECUTE_API", "InvalidAnswer", none()),
        incident(
            "refused",
            "EXECUTE_API",
            "AppDatabaseError",
            [json!("23514"), json!("counters"), json!("not_negative")],
        ),
        incident("waiting", "WAIT_UNTIL_API", "NoPatience", none()),
    ];
    assert_eq!(db.rows(shown), expected);
    worker.misbehave(|call| match call.api {
        Api::WaitUntil => no_command(),
        _ => force_complete(json!("mended")),
    });
    db.run("INSERT INTO mended VALUES (1)");
    assert_eq!(db.one::<i64>("SELECT sum(xdb.retry_now(process_id)) FROM xdb.incidents"), 5);
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', wait => '20 s')");
    db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(null)).json())));
    for id in ["for_pull", "function", "garbage", "refused", "waiting"] {
        db.completes(id);
        views::assert_history_is_whole(&mut db, id);
    }
    app.done(&[]);
}

/// Seed 4: "send to reject queue for later consideration".
#[test]
fn a_todo_that_fails_is_sent_to_the_reject_queue_for_later_consideration() {
    let app = App::new("incident_rejects");
    let worker = app.worker(ships_with_address);
    app.register("shipping", &shipping());
    let mut db = app.db();
    for id in ["a", "b", "c"] {
        db.start(id, "shipping").key(id).globals(json!({"n": i32::from(id == "b")})).go();
    }
    assert_eq!(db.completes("b").result(), &json!([1, null]), "the other processes continue");
    wait_for_incidents(&mut db, 2);
    let rejected = "SELECT process_id FROM xdb.incidents WHERE error_type = 'NoAddress' ORDER BY process_id";
    assert_eq!(db.all::<String>(rejected), ["a", "c"]);
    assert_eq!(app.session("other").count("xdb.incidents"), 0, "they are their owner's");
    // Later an operator lists all of them at once, and rejects one for good.
    db.run("UPDATE counters SET n = 2 WHERE id = 'a'; SELECT xdb.stop_process('c', 'FAIL', 'no address')");
    assert_eq!(db.one::<i64>("SELECT sum(xdb.retry_now(process_id)) FROM xdb.incidents"), 1);
    assert_eq!(db.completes("a").result(), &json!([2, null]));
    assert_eq!(db.status("c"), "FAILED");
    assert_eq!(incidents(&mut db), Vec::<Value>::new());
    assert_eq!(worker.count(|call| call.process_id() == "c"), 2, "it was not called again");
    views::assert_history_is_whole(&mut db, "c");
    app.done(&[]);
}

#[test]
fn the_policy_counts_from_zero_and_may_raise_another_incident() {
    let app = App::new("incident_again");
    let worker = app.worker(ships_with_address);
    app.register("shipping", &shipping());
    let mut db = app.db();
    db.start("p", "shipping").key("p").globals(json!({"n": 0})).go();
    for round in 1..=6 {
        wait_until("it stands", 15, || {
            db.count(&format!("xdb.incidents WHERE process_id = 'p' AND attempt = {}", 2 * round)) == 1
        });
        // The first ten attempts are in the history one by one, and each that raises an incident.
        assert_eq!(app.superuser().count("xdb.check_process('p')"), 0, "after {round}");
        assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 1);
    }
    wait_for_incidents(&mut db, 1);
    db.run("SELECT xdb.stop_process('p')");
    assert_eq!(worker.count(|_| true), 14);
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn an_incident_outlasts_a_crash_and_ends_with_the_timeout() {
    let app = App::alone("incident_crash", ClusterOptions::default().own_clock());
    let worker = app.worker(ships_with_address);
    app.register("shipping", &shipping().with("timeoutSeconds", json!(3600)));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("p", "shipping").key("p").globals(json!({"n": 0})).go();
    wait_for_incidents(&mut db, 1);
    app.cluster().crash();
    app.cluster().launch();
    let mut db = app.db();
    assert_eq!(incidents(&mut db).len(), 1);
    worker.misbehave(|_| force_complete(json!(null)));
    db.start("other", "one").go();
    db.completes("other");
    assert_eq!(worker.count(|call| call.process_id() == "p"), 2, "nothing calls it");
    app.cluster().set_clock(3700.0);
    wait_until("it has timed out", 15, || db.status("p") == "TIMEOUT");
    assert_eq!(incidents(&mut db), Vec::<Value>::new());
    app.done(&[]);
}
