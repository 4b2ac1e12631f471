//! Operators manage processes with psql: they pause, stop, wait, retry and purge. Real processes and a worker.

use xdb_cluster_tests::prelude::*;

/// `mail` waits for a message, `sleep` for an hour. `one` completes at once.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Sleep") => any_of(&[timer("t", 3600.0)]),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => force_complete(json!(call.messages("m"))),
        _ => force_complete(json!({"fired": call.fired("t"), "k": call.local("k")})),
    });
    app.register("mail", &mailbox());
    app.register("sleep", &Definition::starting_with("Sleep").waiting_step("Sleep"));
    app.register("one", &one_step());
    (app, worker)
}

#[test]
fn a_paused_engine_makes_no_call() {
    let (app, worker) = application("admin_pause");
    let mut db = app.db();
    db.start("before", "one").go();
    db.completes("before");
    app.superuser().run("SELECT xdb.pause_engine()");
    let mut superuser = app.superuser();
    wait_until("the status shows it", 10, || views::engine(&mut superuser).to_lowercase().contains("pause"));
    db.start("p", "one").go();
    let waited = db.json("SELECT xdb.wait_for_process('p', '2 seconds')");
    assert_eq!(waited["timedOut"], true, "{waited}");
    assert_eq!(waited["status"], "RUNNING", "{waited}");
    assert_eq!(worker.count(|call| call.process_id() == "p"), 0);
    app.superuser().run("SELECT xdb.resume_engine()");
    db.completes("p");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn no_start_is_missed_by_an_engine_that_is_resumed() {
    // A paused engine isn't woken for a start, and doesn't poll by itself soon enough.
    let app = App::alone("admin_resume", ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut superuser, mut db) = (app.superuser(), app.db());
    superuser.run("SELECT xdb.pause_engine()");
    // In its first second it still wakes up for its figures.
    let rests = "SELECT state = 'paused' AND clock_timestamp() - started_at > '2 s' FROM xdb.status()";
    wait_until("the engine rests", 10, || superuser.one(rests));
    let last_turn = "SELECT state_change::text FROM pg_stat_activity WHERE backend_type = 'xdb scheduler' AND datname = current_database()";
    let before = superuser.text(last_turn);
    for id in ["p", "q"] {
        db.start(id, "one").go();
    }
    assert_eq!(superuser.text(last_turn), before, "the engine has polled");
    superuser.run("SELECT xdb.resume_engine()");
    for id in ["p", "q"] {
        db.completes(id);
    }
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn the_backlog_is_counted_when_it_is_looked_at() {
    // The engine wakes up for nothing by itself, and may not have to.
    let app = App::alone("admin_backlog", ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut db = app.db();
    let mut superuser = app.superuser();
    let mut figures = move || {
        superuser.json(
            "SELECT jsonb_build_object('backlog', backlog, 'due', oldest_due <= clock_timestamp(), 'calling', in_flight,
                                       'resting', calls_per_second = 0) FROM xdb.status()",
        )
    };
    let nothing = json!({"backlog": 0, "due": null, "calling": 0, "resting": true});
    assert_eq!(figures(), nothing);
    db.run("SELECT count(xdb.start_process('p' || n, 'one')) FROM generate_series(1, 50) n");
    for n in 1..=50 {
        db.completes(&format!("p{n}"));
    }
    wait_until("nothing is shown any more", 10, || figures() == nothing);

    // Calls under way, paused processes and processes that a caller stops. None of these wakes the engine only to show
    // a figure.
    worker.misbehave(|_| Reply::hang(force_complete(json!(null))));
    db.start("called", "one").go();
    worker.wait_for("its call", 10, |call| call.process_id() == "called");
    assert_eq!(figures()["backlog"], 1);
    app.pause();
    db.run("SELECT count(xdb.start_process('q' || n, 'one')) FROM generate_series(1, 7) n");
    db.run("SELECT xdb.start_process('later', 'one', start_at => now() + interval '1 hour')");
    let standing = figures();
    assert_eq!((&standing["backlog"], &standing["due"]), (&json!(8), &json!(true)));
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE status = 'RUNNING'");
    worker.release();
    wait_until("nothing is left", 10, || figures() == nothing);
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn the_next_turn_is_shown_and_logged_with_its_reason() {
    // So nothing but what is due gives the engine a turn.
    let options = ClusterOptions::default().set("xdb.test_poll_interval", "1h").set("log_min_messages", "debug1");
    let app = App::alone("admin_next_turn", options);
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    let mut shows = |why: &str, minutes: u32| {
        let next = format!(
            "SELECT (next_turn_why = '{why}' AND next_turn_at BETWEEN clock_timestamp() + interval '{} minutes'
                    AND clock_timestamp() + interval '{minutes} minutes') IS TRUE FROM xdb.status()",
            minutes - 1
        );
        wait_until(&format!("the next turn is for {why}"), 10, || superuser.one::<bool>(&next));
        let is_logged = |line: &str| line.contains("xdb: the next turn is due in ") && line.ends_with(why);
        wait_until("that is in the log", 10, || app.cluster().log().lines().any(is_logged));
    };
    shows("poll", 60);
    db.run("SELECT xdb.start_process('later', 'one', start_at => now() + interval '30 minutes')");
    shows("calls", 30);
    app.superuser().run("SELECT xdb.pause_process_type('one', until => now() + interval '20 minutes')");
    shows("pauses", 20);
    db.run("SELECT xdb.pause_process('later', until => now() + interval '10 minutes')");
    shows("timers", 10);
    app.done(&[]);
}

#[test]
fn a_pause_lets_answers_of_calls_under_way_be_applied() {
    let (app, worker) = application("admin_under_way");
    worker.misbehave(|_| Reply::hang(force_complete(json!("under way"))));
    let mut db = app.db();
    db.start("p", "one").go();
    worker.wait_for("the call", 10, |_| true);
    app.superuser().run("SELECT xdb.pause_engine()");
    worker.release();
    assert_eq!(db.completes("p").result(), "under way");
    app.superuser().run("SELECT xdb.resume_engine()");
    app.done(&[]);
}

#[test]
fn any_end_of_a_process_wakes_waiting_sessions() {
    let (app, _worker) = application("admin_wait");
    let mut db = app.db();
    for (id, ending) in [
        ("completed", "SELECT xdb.publish('completed', 'inbox', '1')"),
        ("terminated", "SELECT xdb.stop_process('terminated')"),
        ("failed", "SELECT xdb.stop_process('failed', 'FAIL', 'gone')"),
    ] {
        db.start(id, "mail").go();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut db = app.db();
                // A waiter above READ COMMITTED sees the end as well.
                db.run("SET default_transaction_isolation = 'repeatable read'");
                let outcome = db.outcome(id);
                (outcome.status().to_owned(), Instant::now())
            });
            let mut superuser = app.superuser();
            wait_until(&format!("a session waits for {id}"), 10, || {
                superuser.count("pg_stat_activity WHERE query LIKE '%wait_for_process%' AND pid <> pg_backend_pid() AND state = 'active'") == 1
            });
            db.run(ending);
            let ended = Instant::now();
            let (status, woken) = waiting.join().expect("no panic");
            assert_eq!(status.to_lowercase(), id);
            let took = woken.saturating_duration_since(ended);
            assert!(took < Duration::from_secs(2), "{id}: woken after {took:?}");
        });
    }
    app.done(&[]);
}

#[test]
fn a_wait_obeys_its_timeout_and_a_cancel() {
    let (app, _worker) = application("admin_timeout");
    let mut db = app.db();
    db.start("p", "mail").go();
    let (took, answer) = timed(|| db.json("SELECT xdb.wait_for_process('p', '500 ms')"));
    assert_eq!(answer["timedOut"], true);
    assert!(took >= Duration::from_millis(490) && took < Duration::from_secs(3), "{took:?}");
    db.run("SET statement_timeout = '300 ms'");
    let (took, _) = timed(|| db.refused(codes::QUERY_CANCELED, "SELECT xdb.wait_for_process('p', '1 minute')"));
    assert!(took < Duration::from_secs(3), "{took:?}");
    app.done(&[]);
}

#[test]
fn a_stop_has_a_kind_and_a_reason() {
    let (app, _worker) = application("admin_stop");
    let mut db = app.db();
    for (id, kind, status) in [("t", "TERMINATE", "TERMINATED"), ("f", "FAIL", "FAILED")] {
        db.start(id, "mail").go();
        wait_until("it waits", 10, || !views::waits(&mut db, id).is_empty());
        db.run(&format!("SELECT xdb.stop_process('{id}', '{kind}', 'the customer has left')"));
        assert_eq!(db.outcome(id).status(), status);
        assert!(db.text(&format!("SELECT xdb.describe_process('{id}')")).contains("the customer has left"));
        assert!(views::waits(&mut db, id).is_empty(), "a closed process waits for something");
        views::assert_history_is_whole(&mut db, id);
    }
    app.done(&[]);
}

#[test]
fn a_type_registered_again_is_the_new_one_from_the_next_call() {
    let (app, _worker) = application("admin_again");
    let second = app.worker_named("second", |call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!("by the second worker")),
    });
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("it waits", 10, || !views::waits(&mut db, "p").is_empty());
    app.register_with("second", "mail", &mailbox());
    db.publish("p", "inbox", json!(1));
    assert_eq!(db.completes("p").result(), "by the second worker");
    assert_eq!(second.count(|_| true), 1);

    // A worker that moves is registered again under its name.
    let third = Worker::start(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!("by the third")),
    });
    app.superuser().run(&format!("SELECT xdb.register_worker('second', '{}')", third.url()));
    db.start("q", "mail").go();
    db.publish("q", "inbox", json!(1));
    assert_eq!(db.completes("q").result(), "by the third");
    app.done(&[]);
}

#[test]
fn a_disabled_engine_does_nothing_and_continues_when_enabled() {
    let app = App::alone("admin_enabled", ClusterOptions::default());
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    app.cluster().set("xdb.enabled", "off");
    wait_until("nothing runs", 20, || app.cluster().find_scheduler(app.database()).is_none());
    let mut db = app.db();
    db.start("p", "one").go();
    assert_eq!(db.status("p"), "RUNNING");
    app.cluster().set("xdb.enabled", "on");
    db.completes("p");
    app.done(&[]);
}

#[test]
fn timers_and_local_attributes_can_be_seen() {
    let (app, _worker) = application("admin_seen");
    let mut db = app.db();
    db.start("p", "sleep").locals(json!({"k": [1, "one"], "l": null})).go();
    wait_until("the timer is there", 10, || views::timers(&mut db, "p") == 1);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"k": [1, "one"], "l": null}));
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p', '{k,missing}')"), json!({"k": [1, "one"]}));
    db.run("SELECT xdb.stop_process('p')");
    assert_eq!(views::timers(&mut db, "p"), 0);
    app.done(&[]);
}

#[test]
fn attributes_are_found_among_a_million_keys() {
    let app = App::new("admin_keys");
    let _worker = app.worker(|_: &Call| any_of(&[local_queue("m", "inbox", 1)]));
    app.register("mail", &mailbox());
    let mut db = app.db();
    let many: Value = (0..10_000).map(|n| (format!("k{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
    db.start("p", "mail").locals(many).go();
    let began = Instant::now();
    let found = db.json(
        "SELECT xdb.get_local_attributes('p', (SELECT array_agg('none' || n) FROM generate_series(1, 2000000) n) || '{k7,NULL}'::text[])",
    );
    assert_eq!(found, json!({"k7": 7}));
    // Each of them compared with each takes minutes.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    app.done(&[]);
}

#[test]
fn history_is_kept_according_to_the_start() {
    let (app, _worker) = application("admin_history");
    let mut db = app.db();
    for history in ["full", "none"] {
        db.start(history, "one").options(json!({"history": history})).go();
        db.completes(history);
    }
    views::assert_history_is_whole(&mut db, "full");
    assert_eq!(views::events(&mut db, "none"), 0);
    app.done(&[]);
}

#[test]
fn an_installed_build_has_none_of_the_hooks_of_tests() {
    let app = App::alone("admin_hooks", ClusterOptions::default());
    let mut superuser = app.superuser();
    assert_eq!(superuser.one::<Option<String>>("SELECT to_regnamespace('xdb_tests')::text"), None);
    let of_tests = "CREATE FUNCTION store_problems() RETURNS jsonb LANGUAGE c AS '$libdir/xdb', 'xdb_store_problems'";
    superuser.refused(codes::UNDEFINED_FUNCTION, of_tests);
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    app.cluster().arm("start");
    app.db().start("p", "one").go();
    app.db().completes("p");
    assert!(app.cluster().is_armed(), "no process checks for crash points");
    app.done(&[]);
}
