//! Functions that change running processes, wait for their states, and purge closed ones.

use xdb_cluster_tests::prelude::*;

/// `timers` waits for two timers of an hour, `mail` for a message. `one` completes at once.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = answering(&app);
    (app, worker)
}

fn answering(app: &App) -> Worker {
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Sleep") => all_of(&[timer("long", 7200.0), timer("short", 3600.0), local_queue("m", "q", 1)]),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => next("Last", json!(null)),
        (_, "Sleep") => force_complete(call.body["commandResults"]["timerResults"].clone()),
        _ => force_complete(json!(call.local("k"))),
    });
    app.register("timers", &Definition::starting_with("Sleep").waiting_step("Sleep"));
    app.register("mail", &mailbox().step("Last"));
    app.register("one", &one_step());
    worker
}

#[test]
fn skipped_timers_end_the_wait_and_the_worker_sees_them() {
    let (app, _worker) = application("manage_skip");
    let mut db = app.db();
    db.start("p", "timers").go();
    wait_until("p waits", 10, || views::timers(&mut db, "p") == 2);
    db.run("SELECT xdb.skip_timer('p', 'Sleep-1')");
    assert_eq!(db.all::<String>("SELECT command_id FROM xdb.timers WHERE process_id = 'p'"), ["long"]);
    let error = db.refused(codes::NOT_WAITING, "SELECT xdb.skip_timer('p', 'Sleep-1', 'short')");
    assert!(error.message.contains("short"), "{error:?}");
    // Published before the skip, so taken before it.
    db.run("BEGIN; SELECT xdb.publish('p', 'q', '1'); SELECT xdb.skip_timer('p', 'Sleep-1', 'long'); COMMIT");
    let results = db.completes("p").result().clone();
    let statuses: Vec<_> = results.as_array().into_iter().flatten().map(|timer| &timer["status"]).collect();
    assert_eq!(statuses, ["SKIPPED_COMMAND", "SKIPPED_COMMAND"], "{results}");
    views::assert_history_is_whole(&mut db, "p");
    db.refused(codes::NOT_RUNNING, "SELECT xdb.skip_timer('p', 'Sleep-1')");
    app.done(&[]);
}

#[test]
fn timers_of_many_are_skipped_and_their_calls_made_at_once() {
    let app = App::new("manage_many");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[timer("long", 3600.0), local_queue("m", "q", 1)]),
        _ => force_complete(json!([call.fired("long"), call.messages("m")])),
    });
    let slow = json!({"initialIntervalSeconds": 3000, "maximumIntervalSeconds": 3000});
    let sleep = Definition::starting_with("Sleep").waiting_step_with("Sleep", json!({"executeApiRetryPolicy": slow}));
    app.register("timers", &sleep.with("localQueues", json!(["q"])));
    let mut db = app.db();
    let ids = ["p1", "p2", "p3"];
    for id in ids {
        db.start(id, "timers").go();
    }
    wait_until("all wait", 10, || ids.iter().all(|id| views::timers(&mut db, id) == 1));
    worker.misbehave(|_| error(500, "Broken", "not now"));
    // What was published before ends the wait by itself: there is no timer to skip any more.
    db.run("BEGIN; SELECT xdb.publish('p3', 'q', '1')");
    let skipped = db
        .rows("SELECT process_id, skipped, error_code FROM xdb.skip_timer(ARRAY['p3', 'p1', 'p2'], 'Sleep-1', 'long')");
    db.run("COMMIT");
    let row = |id: &str, skipped: bool, code: Value| json!({"process_id": id, "skipped": skipped, "error_code": code});
    assert_eq!(skipped, [row("p3", false, json!("XD019")), row("p1", true, json!(null)), row("p2", true, json!(null))]);
    wait_until("all are in backoff", 10, || ids.iter().all(|id| views::fails_saying(&mut db, id, &["not now"])));
    worker.heal();
    let retried: i64 = db.one("SELECT sum(retried) FROM xdb.retry_now(ARRAY['p1', 'p2', 'p3'], 'Sleep-1')");
    assert_eq!(retried, 3);
    for id in ids {
        let result = db.completes(id).result().clone();
        assert_eq!(result[1], if id == "p3" { json!([1]) } else { json!([]) }, "{id}: {result}");
        views::assert_history_is_whole(&mut db, id);
    }
    app.done(&[]);
}

#[test]
fn calls_in_backoff_are_made_at_once() {
    let app = App::new("manage_retry");
    let worker = app.worker(|_: &Call| force_complete(json!("done")));
    let slow = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3000, "maximumIntervalSeconds": 3000}});
    app.register("slow", &Definition::starting_with("Only").step_with("Only", slow));
    worker.misbehave(|_| error(500, "Broken", "not now"));
    let mut db = app.db();
    db.start("p", "slow").go();
    wait_until("the failure is shown", 10, || views::fails_saying(&mut db, "p", &["not now"]));
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p', 'Only-1')"), 1);
    worker.wait_for_count("the second attempt", 10, 2, |_| true);
    wait_until("it failed too", 10, || {
        db.count(
            "xdb.failures WHERE process_id = 'p' AND attempt = 2 AND next_attempt_at > now() + interval '1 hour' / 2",
        ) == 1
    });
    worker.heal();
    let equal = "xdb.task t JOIN xdb.state_executions s USING (execution_id) WHERE t.due_at = s.next_attempt_at";
    assert_eq!(app.superuser().count(equal), 1);
    db.run("BEGIN");
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 1);
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 0, "it is due");
    db.run("ROLLBACK");
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 1);
    assert_eq!(db.completes("p").result(), "done");
    assert_eq!(worker.calls().iter().map(Call::attempt).collect::<Vec<_>>(), [1, 2, 3]);
    views::assert_history_is_whole(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_caller_writes_attributes_that_the_next_step_reads() {
    let (app, _worker) = application("manage_attributes");
    let mut db = app.db();
    db.start("p", "mail").locals(json!({"k": "old"})).go();
    db.run("BEGIN; SELECT xdb.set_local_attributes('p', '{\"k\": \"never\"}'); ROLLBACK");
    db.run("SELECT xdb.set_local_attributes('p', '{\"k\": {\"n\": 1.50}, \"l\": null}')");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"k": {"n": 1.50}, "l": null}));
    db.publish("p", "inbox", json!(1));
    assert_eq!(db.completes("p").result(), &json!({"n": 1.50}));
    views::assert_history_is_whole(&mut db, "p");
    db.refused(codes::NOT_RUNNING, "SELECT xdb.set_local_attributes('p', '{}')");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_session_that_waits_for_a_state_is_woken_when_the_state_ends() {
    // The engine does not poll.
    let app = App::alone("manage_wait", ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let worker = answering(&app);
    let mut db = app.db();
    db.start("p", "mail").go();
    worker.wait_for("p is asked", 10, |_| true);
    let waiting = |sql: &'static str, isolation: &'static str| {
        let app = &app;
        move || {
            let mut db = app.db();
            db.run(&format!("SET default_transaction_isolation = '{isolation}'"));
            db.json(sql)
        }
    };
    std::thread::scope(|scope| {
        let read = scope.spawn(waiting("SELECT xdb.wait_for_state('p', 'Read-1')", "repeatable read"));
        let last = scope.spawn(waiting("SELECT xdb.wait_for_state('p', 'Last-1')", "read committed"));
        let never = scope.spawn(waiting("SELECT xdb.wait_for_state('p', 'Last-2')", "serializable"));
        wait_until("all wait", 10, || {
            db.count("pg_stat_activity WHERE query LIKE 'SELECT xdb.wait_for_state%' AND wait_event = 'Extension'") == 3
        });
        worker.misbehave(|call| match call.target() {
            "Last" => Reply::hang(force_complete(json!(1))),
            _ => next("Last", json!(null)).into(),
        });
        db.publish("p", "inbox", json!(1));
        let ended = read.join().expect("no panic");
        assert_eq!(ended, json!({"status": "COMPLETED", "processStatus": "RUNNING", "timedOut": false}));
        worker.wait_for("the last call", 10, |call| call.target() == "Last");
        let now = db.json("SELECT xdb.wait_for_state('p', 'Last-1', '0.01 s')");
        assert_eq!(now, json!({"status": "EXECUTE", "processStatus": "RUNNING", "timedOut": true}));
        let never_yet = db.json("SELECT xdb.wait_for_state('p', 'Last-7', '0 s')");
        assert_eq!(never_yet, json!({"status": null, "processStatus": "RUNNING", "timedOut": true}));
        worker.release();
        let completed = json!({"status": "COMPLETED", "processStatus": "COMPLETED", "timedOut": false});
        assert_eq!(last.join().expect("no panic"), completed);
        let nothing = json!({"status": null, "processStatus": "COMPLETED", "timedOut": false});
        assert_eq!(never.join().expect("no panic"), nothing);
    });
    app.done(&[]);
}

#[test]
fn a_wait_for_a_state_obeys_cancel_and_refuses_its_own_writes() {
    let (app, _worker) = application("manage_cancel");
    let mut db = app.db();
    db.start("p", "mail").go();
    db.run("SET statement_timeout = '200ms'");
    let (took, error) =
        timed(|| db.refused(codes::QUERY_CANCELED, "SELECT xdb.wait_for_state('p', 'Read-1', '1 hour')"));
    assert!(took < Duration::from_secs(5), "{took:?}: {error:?}");
    db.run("RESET statement_timeout; BEGIN; SELECT xdb.publish('p', 'inbox', '1')");
    db.refused(codes::WOULD_WAIT_FOR_ITSELF, "SELECT xdb.wait_for_state('p', 'Read-1')");
    db.run("ROLLBACK");
    app.done(&[]);
}

/// Counts the rows of every table that belong to no execution.
const LEFTOVERS: &str = "SELECT count(*) FROM (
    SELECT execution_id FROM xdb.latest_execution UNION ALL SELECT execution_id FROM xdb.state_execution
    UNION ALL SELECT execution_id FROM xdb.task UNION ALL SELECT execution_id FROM xdb.timer
    UNION ALL SELECT execution_id FROM xdb.inbox UNION ALL SELECT execution_id FROM xdb.message_key
    UNION ALL SELECT execution_id FROM xdb.queue_message UNION ALL SELECT execution_id FROM xdb.queue_waiter
    UNION ALL SELECT execution_id FROM xdb.rpc_answer UNION ALL SELECT execution_id FROM xdb.local_attribute
    UNION ALL SELECT execution_id FROM xdb.process_lock
    UNION ALL SELECT execution_id FROM xdb.history_event UNION ALL SELECT execution_id FROM xdb.purged
) AS rows WHERE NOT EXISTS (SELECT FROM xdb.process_execution p WHERE p.execution_id = rows.execution_id)";

#[test]
fn a_purge_deletes_closed_processes_and_waits_for_no_lock() {
    let (app, _worker) = application("manage_purge");
    let mut db = app.db();
    db.start("old", "one").go();
    db.completes("old");
    let again = db.start("old", "mail").go();
    for n in 0..20 {
        db.start(&format!("p{n}"), "one").locals(json!({"k": 1})).go();
        db.completes(&format!("p{n}"));
    }
    let mut superuser = app.superuser();
    assert_eq!(superuser.one::<i64>("SELECT xdb.purge('1 hour')"), 0);
    // A session is about to use an id again.
    let mut open = app.db();
    open.run("BEGIN");
    open.start("p7", "one").go();
    assert_eq!(superuser.one::<i64>("SELECT xdb.purge('0')"), 20, "19, and the first execution of `old`");
    open.run("ROLLBACK");
    assert_eq!(superuser.one::<i64>("SELECT xdb.purge('0')"), 1);
    assert_eq!(superuser.one::<i64>(LEFTOVERS), 0);
    assert_eq!(db.text("SELECT execution_id FROM xdb.processes"), again, "what runs stays");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('p1')");
    db.start("p1", "one").reuse("DISALLOW_REUSE").go();
    db.completes("p1");
    db.publish("old", "inbox", json!(1));
    db.completes("old");
    app.done(&[]);
}

#[test]
fn closed_executions_go_after_the_retention() {
    let app = App::alone("manage_retention", ClusterOptions::default());
    let _worker = answering(&app);
    let mut db = app.db();
    app.superuser().run(
        "CREATE TABLE deleted (transaction bigint, executions bigint);
         CREATE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO public.deleted SELECT pg_catalog.txid_current(), pg_catalog.count(*) FROM gone; RETURN NULL; END';
         CREATE TRIGGER counting AFTER DELETE ON xdb.process_execution REFERENCING OLD TABLE AS gone
            FOR EACH STATEMENT EXECUTE FUNCTION count_deleted();",
    );
    db.start("stays", "mail").go();
    db.run("BEGIN");
    for n in 0..350 {
        db.start(&format!("p{n}"), "one").locals(json!({"k": 1})).go();
    }
    db.run("COMMIT");
    // More rows than one transaction deletes of a table.
    app.superuser().run(
        "INSERT INTO xdb.history_event (execution_id, event_id, event_time, event_type, details)
         SELECT execution_id, 1000 + n, now(), 'CompletionRequested', '{}'
         FROM xdb.latest_execution, generate_series(1, 25000) n WHERE process_id = 'p0'",
    );
    app.cluster().set("xdb.retention", "1");
    wait_until("they are purged", 60, || db.count("xdb.processes") == 1);
    let mut superuser = app.superuser();
    wait_until("and all that belonged to them", 30, || {
        superuser.one::<i64>(LEFTOVERS) == 0 && superuser.count("xdb.purged") == 0
    });
    assert_eq!(db.status("stays"), "RUNNING");
    // In small batches, each in a transaction of its own.
    let in_one = "SELECT max(sum)::bigint FROM (SELECT sum(executions) FROM deleted GROUP BY transaction) AS each";
    let most: i64 = superuser.one(in_one);
    assert!(most <= 100, "{most} executions were deleted in one transaction");
    assert_eq!(superuser.one::<i64>("SELECT sum(executions)::bigint FROM deleted"), 350);
    app.done(&[]);
}
