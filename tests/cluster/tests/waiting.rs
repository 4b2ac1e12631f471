//! Waiting sessions and processes. The end of a wait wakes the session, and waiting processes hold no lock and no
//! connection.

use xdb_cluster_tests::prelude::*;

/// `one` hangs in its call until the worker is released, and then ends as its id says. `mail` waits for a message or a
/// day. `by` completes at once. Nothing polls: only wake-ups wake the engine and sessions.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let worker = app.worker(|call: &Call| match (call.api, call.target(), call.process_id()) {
        (Api::Rpc, ..) => Reply::from(output(json!(null)).and(force_complete(json!("by rpc")))),
        (Api::WaitUntil, ..) => any_of(&[local_queue("m", "inbox", 1), timer("t", 86_400.0)]).into(),
        (_, "Read", _) => force_complete(json!("read")).into(),
        (_, "Last", _) => force_complete(json!(null)).into(),
        (_, _, "completes") => Reply::hang(force_complete(json!(1))),
        (_, _, "ends-gracefully") => Reply::hang(graceful_complete(json!(1))),
        (_, _, "fails") => Reply::hang(force_fail(json!(1))),
        (_, _, "is-spent") => Reply::hang(error(500, "Broken", "for good")),
        (_, _, "finds-its-queue-empty") => Reply::hang(close_if_empty("inbox", "Last")),
        _ => Reply::hang(dead_end()),
    });
    let held = json!({"executeApiTimeoutSeconds": 60, "executeApiRetryPolicy": attempts(1)});
    app.register(
        "one",
        &Definition::starting_with("Only").step_with("Only", held).step("Last").rpc("close", json!({})),
    );
    app.register("mail", &mailbox());
    app.register("by", &Definition::starting_with("Last").step("Last"));
    (app, worker)
}

/// Sessions that wait in a function of this name.
fn waiting(db: &mut Db, function: &str) -> i64 {
    db.count(&format!(
        "pg_stat_activity WHERE query LIKE '%{function}%' AND wait_event = 'Extension' AND pid <> pg_backend_pid()"
    ))
}

#[test]
#[ignore = "needs the build for tests"]
fn any_close_of_a_process_wakes_sessions_that_wait_for_it_and_for_its_states() {
    let (app, worker) = application("waiting_woken");
    let mut db = app.db();
    let cases: [(&str, &str, &str); 9] = [
        ("completes", "", "COMPLETED"),
        ("ends-gracefully", "", "COMPLETED"),
        ("finds-its-queue-empty", "", "COMPLETED"),
        ("fails", "", "FAILED"),
        ("is-spent", "", "FAILED"),
        ("is-stopped", "SELECT xdb.stop_process('is-stopped')", "TERMINATED"),
        ("is-asked", "SELECT xdb.invoke_rpc('is-asked', 'close')", "COMPLETED"),
        (
            "is-replaced",
            "SELECT xdb.start_process('is-replaced', 'one', id_reuse_policy => 'TERMINATE_IF_RUNNING')",
            "TERMINATED",
        ),
        ("times-out", "", "TIMEOUT"),
    ];
    for (id, ending, status) in cases {
        let start = db.start(id, "one");
        let execution = if id == "times-out" { start.timeout("2 seconds").go() } else { start.go() };
        worker.wait_for("its call", 10, |call| call.process_id() == id);
        std::thread::scope(|scope| {
            let waits = |function: &'static str| {
                let app = &app;
                let sql = format!("SELECT xdb.{function}, '60 s', '{execution}')");
                move || (app.db().json(&sql.replace("ID", id)), Instant::now())
            };
            let for_process = scope.spawn(waits("wait_for_process('ID'"));
            let for_state = scope.spawn(waits("wait_for_state('ID', 'Only-1'"));
            let for_nothing = scope.spawn(waits("wait_for_state('ID', 'Only-7'"));
            wait_until("all three wait", 10, || waiting(&mut db, "SELECT xdb.wait_for") == 3);
            match (ending, status) {
                ("", "TIMEOUT") => {}
                ("", _) => worker.release(),
                (sql, _) => db.run(sql),
            }
            let begun = Instant::now();
            let (answer, woken) = for_process.join().expect("no panic");
            assert_eq!((&answer["status"], &answer["timedOut"]), (&json!(status), &json!(false)), "{id}: {answer}");
            let took = woken.saturating_duration_since(begun);
            assert!(took < Duration::from_secs(10), "{id}: woken after {took:?}");
            for waiter in [for_state, for_nothing] {
                let (answer, _) = waiter.join().expect("no panic");
                assert_eq!(answer["timedOut"], false, "{id}: {answer}");
                assert_eq!(answer["processStatus"], status, "{id}: {answer}");
            }
        });
    }
    worker.release();
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_wait_ends_at_once_when_it_is_cancelled_or_its_session_is() {
    let (app, _worker) = application("waiting_cancelled");
    let mut superuser = app.superuser();
    app.db().start("p", "mail").go();
    for function in ["wait_for_process('p'", "wait_for_state('p', 'Read-1'"] {
        for (end, codes) in
            [("pg_cancel_backend", &[codes::QUERY_CANCELED][..]), ("pg_terminate_backend", &["57P01", "08006"][..])]
        {
            let mut db = app.db();
            let pid: i32 = db.one("SELECT pg_backend_pid()");
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| db.try_run(&format!("SELECT xdb.{function}, '1 hour')")));
                wait_until("it waits", 10, || waiting(&mut superuser, "SELECT xdb.wait_for") == 1);
                let (took, answer) = timed(|| {
                    superuser.run(&format!("SELECT {end}({pid})"));
                    waiter.join().expect("no panic")
                });
                let error = answer.expect_err("it was ended");
                assert!(codes.contains(&error.code.as_str()), "{error:?}");
                assert!(took < Duration::from_secs(3), "{end} of {function} took {took:?}");
            });
        }
    }
    app.done(&["terminating connection due to administrator command"]);
}

#[test]
#[ignore = "needs the build for tests"]
fn the_commit_of_a_prepared_transaction_wakes_waiting_sessions() {
    // The engine does not poll.
    let options = ClusterOptions::default().set("max_prepared_transactions", "5").set("xdb.test_poll_interval", "1h");
    let app = App::alone("waiting_prepared", options);
    let worker = app.worker(|_: &Call| Reply::hang(force_complete(json!("called"))));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("stopped", "one").go();
    worker.wait_for("the call", 20, |_| true);
    db.run("BEGIN; SELECT xdb.stop_process('stopped')");
    db.start("prepared", "one").go();
    db.run("PREPARE TRANSACTION 'both'");
    let waits = |sql: &'static str| {
        let app = &app;
        move || app.db().json(sql)
    };
    std::thread::scope(|scope| {
        let of_process = scope.spawn(waits("SELECT xdb.wait_for_process('stopped', '60 s')"));
        let of_state = scope.spawn(waits("SELECT xdb.wait_for_state('stopped', 'Only-1', '60 s')"));
        wait_until("both wait", 10, || waiting(&mut db, "SELECT xdb.wait_for") == 2);
        let (took, answers) = timed(|| {
            app.db().run("COMMIT PREPARED 'both'");
            [of_process, of_state].map(|waiter| waiter.join().expect("no panic"))
        });
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert_eq!((&answers[0]["status"], &answers[1]["status"]), (&json!("TERMINATED"), &json!("ABORTED")));
    });
    worker.wait_for("the call of what was started", 20, |call| call.process_id() == "prepared");
    worker.release();
    assert_eq!(db.completes("prepared").result(), "called");
    app.done(&[]);
}

#[test]
fn a_session_that_waits_for_a_state_learns_that_its_retries_are_spent() {
    let app = App::new("waiting_spent");
    let worker = app.worker(|call: &Call| match call.target() {
        "Bad" => Reply::hang(error(500, "Broken", "always")),
        _ => Reply::hang(force_complete(json!("mended"))),
    });
    let recovery = json!({"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Mend"});
    let bad = json!({"executeApiRetryPolicy": attempts(1), "stateFailureRecoveryOptions": recovery});
    app.register("bad", &Definition::starting_with("Bad").step_with("Bad", bad).step("Mend"));
    let mut db = app.db();
    db.start("p", "bad").go();
    worker.wait_for("the call", 20, |_| true);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| app.db().json("SELECT xdb.wait_for_state('p', 'Bad-1', '60 s')"));
        wait_until("it waits", 10, || waiting(&mut db, "SELECT xdb.wait_for") == 1);
        let (took, answer) = timed(|| {
            worker.release();
            waiter.join().expect("no panic")
        });
        assert_eq!(answer, json!({"status": "FAILED", "processStatus": "RUNNING", "timedOut": false}));
        assert!(took < Duration::from_secs(20), "{took:?}");
    });
    worker.wait_for("the next state", 20, |call| call.target() == "Mend");
    worker.release();
    assert_eq!(db.completes("p").result(), "mended");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn processes_that_wait_hold_nothing() {
    let (app, worker) = application("waiting_idle");
    let mut db = app.db();
    db.run("SELECT count(xdb.start_process('p' || n, 'mail')) FROM generate_series(1, 300) n");
    wait_until("all of them wait", 30, || db.count("xdb.waits WHERE kind = 'LOCAL_QUEUE'") == 300);
    let mut superuser = app.superuser();
    let scheduler = app.scheduler();
    wait_until("the engine is at rest", 10, || {
        superuser.one(&format!(
            "SELECT s.in_flight = 0 AND a.xact_start IS NULL AND a.backend_xmin IS NULL
                AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype IN ('relation', 'tuple', 'transactionid', 'virtualxid'))
             FROM xdb.status() s, pg_stat_activity a WHERE a.pid = {scheduler}"
        ))
    });
    assert_eq!(
        superuser.count("pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"),
        2
    );
    assert_eq!(worker.count(|_| true), 300);
    db.publish("p7", "inbox", json!(1));
    assert_eq!(db.completes("p7").result(), "read");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_rollback_to_a_savepoint_cancels_no_other_wake_up() {
    let (app, worker) = application("waiting_savepoint");
    let mut db = app.db();
    for (id, sql) in [
        ("before", "BEGIN; $START; SAVEPOINT a; $GHOST; ROLLBACK TO a; COMMIT"),
        ("after", "BEGIN; SAVEPOINT a; $GHOST; ROLLBACK TO a; $START; COMMIT"),
        ("inside", "BEGIN; SAVEPOINT a; $START; SAVEPOINT b; $GHOST; ROLLBACK TO b; RELEASE a; COMMIT"),
        ("again", "BEGIN; SAVEPOINT a; $GHOST; ROLLBACK TO a; $START; SAVEPOINT b; RELEASE a; COMMIT"),
    ] {
        let start = |id: &str| format!("SELECT xdb.start_process('{id}', 'by')");
        db.run(&sql.replace("$START", &start(id)).replace("$GHOST", &start(&format!("ghost-{id}"))));
        db.completes(id);
    }
    assert_eq!(worker.count(|call| call.process_id().starts_with("ghost")), 0);
    // What a savepoint has taken back is not waited for either: the transaction has written nothing.
    db.start("p", "mail").go();
    worker.wait_for("p is asked", 10, |call| call.process_id() == "p");
    db.run("BEGIN; SAVEPOINT a; SELECT xdb.publish('p', 'inbox', '1')");
    db.refused(codes::WOULD_WAIT_FOR_ITSELF, "SELECT xdb.wait_for_process('p', '1 s')");
    db.run("ROLLBACK TO a");
    assert_eq!(db.json("SELECT xdb.wait_for_process('p', '0')")["timedOut"], true);
    db.run("COMMIT");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_timer_is_not_skipped_past_a_message_that_was_published_before() {
    let (app, _worker) = application("waiting_skip");
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("p waits", 10, || views::timers(&mut db, "p") == 1);
    // So that the message is not received.
    app.pause();
    let mut late = app.db();
    late.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users");
    db.publish("p", "inbox", json!(1));
    late.refused("40001", "SELECT xdb.skip_timer('p', 'Read-1')");
    late.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ");
    let error = late.refused(codes::NOT_WAITING, "SELECT xdb.skip_timer('p', 'Read-1')");
    assert!(error.message.contains("no timer"), "the message ends the wait before the timer could: {error:?}");
    late.run("ROLLBACK");
    app.superuser().run("SELECT xdb.resume_engine()");
    assert_eq!(db.completes("p").result(), "read");
    app.done(&[]);
}
