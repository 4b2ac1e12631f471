//! Types and workers are registered, changed and removed while processes of theirs run, wait, or start.

use xdb_cluster_tests::prelude::*;

/// Retries that come late enough for a test to act before.
fn patient() -> Definition {
    let policy = json!({"initialIntervalSeconds": 3, "maximumIntervalSeconds": 3});
    Definition::starting_with("Only").step_with("Only", json!({"executeApiRetryPolicy": policy}))
}

#[test]
fn calls_in_backoff_go_to_the_types_new_worker() {
    let app = App::new("registering_backoff");
    let first = app.worker_named("first", |_| error(500, "Broken", "on purpose"));
    let second = app.worker_named("second", |_| force_complete(json!("by the second")));
    app.register_with("first", "one", &patient());
    let mut db = app.db();
    for n in 0..5 {
        db.start(&format!("p{n}"), "one").go();
    }
    for n in 0..5 {
        wait_until("its call is in backoff", 10, || !views::failures(&mut db, &format!("p{n}")).is_empty());
    }
    let called = first.count(|_| true);
    app.register_with("second", "one", &patient());
    for n in 0..5 {
        assert_eq!(db.completes(&format!("p{n}")).result(), "by the second");
    }
    assert_eq!((first.count(|_| true), second.count(|_| true)), (called, 5));
    assert!(second.calls().iter().all(|call| call.attempt() == 2));
    app.superuser().run("SELECT xdb.unregister_worker('first')");
    app.done(&[]);
}

#[test]
fn calls_that_wait_in_a_pause_go_to_the_types_new_worker() {
    let app = App::new("registering_paused");
    let first = app.worker_named("first", |_| force_complete(json!("by the first")));
    let _second = app.worker_named("second", |_| force_complete(json!("by the second")));
    app.register_with("first", "one", &patient());
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.pause_engine()");
    wait_until("the status shows it", 10, || views::engine(&mut superuser).to_lowercase().contains("pause"));
    let mut db = app.db();
    for n in 0..5 {
        db.start(&format!("p{n}"), "one").go();
    }
    app.register_with("second", "one", &patient());
    superuser.run("SELECT xdb.unregister_worker('first'); SELECT xdb.resume_engine()");
    for n in 0..5 {
        assert_eq!(db.completes(&format!("p{n}")).result(), "by the second");
    }
    assert_eq!(first.count(|_| true), 0);
    app.done(&[]);
}

#[test]
fn a_parked_call_of_an_unregistered_worker_is_sound_and_goes_to_the_types_new_worker() {
    let app = App::new("registering_parked");
    let first = app.worker_named("first", |_| force_complete(json!("by the first")));
    let _second = app.worker_named("second", |_| force_complete(json!("by the second")));
    app.register_with("first", "one", &patient());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    superuser.run("SELECT xdb.pause_process_type('one')");
    db.start("p", "one").go();
    wait_until("it is parked", 10, || superuser.count("xdb.task WHERE lane = 2") == 1);
    app.register_with("second", "one", &patient());
    superuser.run("SELECT xdb.unregister_worker('first')");
    assert_eq!(db.all::<String>("SELECT problem FROM xdb.check_process('p') AS c (problem)"), [""; 0]);
    superuser.run("SELECT xdb.resume_process_type('one')");
    assert_eq!(db.completes("p").result(), "by the second");
    assert_eq!(first.count(|_| true), 0);
    app.done(&[]);
}

#[test]
fn a_call_that_commits_under_an_unregistered_worker_moves_to_the_types_new_worker() {
    let app = App::new("registering_gone");
    let _first = app.worker_named("first", |_| force_complete(json!("by the first")));
    let second = app.worker_named("second", |_| force_complete(json!("by the second")));
    app.register_with("first", "one", &patient());
    let mut starter = app.db();
    starter.run("BEGIN");
    starter.start("p", "one").go();
    app.register_with("second", "one", &patient());
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.unregister_worker('first')");
    starter.run("COMMIT");
    // The engine scans for such calls once a minute, and whenever registrations change.
    superuser.run(&format!("SELECT xdb.register_worker('second', '{}')", second.url()));
    assert_eq!(app.db().completes("p").result(), "by the second");
    app.done(&[]);
}

#[test]
fn a_type_is_not_unregistered_under_an_open_start() {
    let app = App::new("registering_open");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("mail", &mailbox());
    let mut starter = app.db();
    for (ending, refused) in [("COMMIT", true), ("ROLLBACK", false)] {
        starter.run("BEGIN");
        starter.start(ending, "mail").go();
        std::thread::scope(|scope| {
            let unregister = scope.spawn(|| app.superuser().try_run("SELECT xdb.unregister_process_type('mail')"));
            let mut superuser = app.superuser();
            wait_until("it waits for the start", 10, || {
                superuser.count("pg_stat_activity WHERE query LIKE '%unregister_process%' AND wait_event_type = 'Lock'")
                    == 1
            });
            starter.run(ending);
            match unregister.join().expect("no panic") {
                Ok(()) => assert!(!refused, "a type was unregistered that has a process"),
                Err(error) => {
                    assert_eq!(error.code, codes::STILL_IN_USE, "{error:?}");
                    assert!(refused, "{error:?}");
                }
            }
        });
        if refused {
            starter.run(&format!("SELECT xdb.stop_process('{ending}')"));
        }
    }
    starter.start("late", "mail").refused(codes::UNKNOWN_PROCESS_TYPE);
    app.done(&[]);
}

#[test]
fn a_definition_that_was_rolled_back_is_not_remembered() {
    let app = App::new("registering_rolled_back");
    let _worker = app.worker(|call: &Call| force_complete(json!(call.target())));
    let only = |state: &str| Definition::starting_with(state).step(state);
    let register = |state: &str| {
        let definition = xdb_cluster_tests::db::jsonb(only(state).json());
        format!("SELECT xdb.register_process_type('t', 'stub', {definition})")
    };
    app.register("t", &only("First"));
    let mut db = app.superuser();
    for (round, state) in [(0, "First"), (1, "Third")] {
        db.run("BEGIN");
        db.run(&register("Second"));
        db.run("SET LOCAL ROLE app");
        db.start("never", "t").go();
        db.run("ROLLBACK");
        if round == 1 {
            // Its version has the number that the one had that was rolled back.
            app.register("t", &only("Third"));
        }
        db.run("SET ROLE app");
        let id = format!("p{round}");
        db.start(&id, "t").go();
        assert_eq!(db.completes(&id).result(), state);
        db.run("RESET ROLE");
    }
    app.done(&[]);
}

#[test]
fn retries_without_an_interval_are_made_at_once() {
    let app = App::new("registering_interval");
    let worker = app.worker(|call: &Call| match call.attempt() {
        ..4 => error(500, "Broken", "three times"),
        _ => force_complete(json!("the fourth")).into(),
    });
    let policy = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 0}});
    app.register("one", &Definition::starting_with("Only").step_with("Only", policy));
    let mut db = app.db();
    let (took, ()) = timed(|| {
        db.start("p", "one").go();
        assert_eq!(db.completes("p").result(), "the fourth");
    });
    assert!(took < Duration::from_secs(5), "{took:?}");
    let attempts: Vec<u64> = worker.calls().iter().map(Call::attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
    app.done(&[]);
}

#[test]
fn a_worker_whose_unregistration_is_rolled_back_keeps_its_figures() {
    let app = App::new("registering_figures");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    for id in ["p", "q"] {
        db.start(id, "one").go();
        db.completes(id);
    }
    let calls = "SELECT calls::text FROM xdb.workers WHERE name = 'stub'";
    assert_eq!(superuser.text(calls), "2");
    let unregister = "SELECT xdb.unregister_process_type('one'); SELECT xdb.unregister_worker('stub')";
    superuser.run(&format!("BEGIN; {unregister}; ROLLBACK"));
    assert_eq!(superuser.text(calls), "2");
    superuser.run(&format!("BEGIN; SAVEPOINT s; {unregister}; ROLLBACK TO s; COMMIT"));
    assert_eq!(superuser.text(calls), "2");
    superuser.run(unregister);
    app.done(&[]);
}

/// A trigger of the application registers a worker, in a step.
#[test]
fn the_engine_waits_for_no_name_server_when_a_step_registers_a_worker() {
    let options = ClusterOptions::default().own_clock().set("xdb.allowed_worker_hosts", "127.0.0.1, *.silent.test");
    let app = App::alone("registering_silent", options);
    let worker = app.worker(|_: &Call| force_complete(json!(null)).globals(json!({"status": "done"})));
    let mut boss = app.session("boss");
    app.superuser().run("GRANT CREATE ON SCHEMA public TO boss");
    boss.run(
        "CREATE TABLE own (user_id text PRIMARY KEY, status text);
         CREATE FUNCTION enlist() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF new.status = 'done' THEN
                     PERFORM xdb.register_worker('far', 'http://worker.silent.test/');
                 END IF;
                 RETURN new;
             END $$;
         CREATE TRIGGER enlist BEFORE INSERT OR UPDATE ON own FOR EACH ROW EXECUTE FUNCTION enlist();",
    );
    app.register("writes", &one_step().maps("public.own", "user_id", &["status"]));
    let (took, ()) = timed(|| {
        boss.start("p", "writes").key("u1").globals(json!({"status": "new"})).go();
        boss.completes("p");
    });
    assert!(took < Duration::from_secs(4), "a step waited {took:?} for a name server");
    assert_eq!(worker.count(|_| true), 1, "it was done at once");
    assert_eq!(boss.count("xdb.workers WHERE name = 'far'"), 1);

    // A session waits for a while, and can be cancelled meanwhile.
    boss.run("SET statement_timeout = '300ms'");
    let (took, _) = timed(|| boss.refused("57014", "SELECT xdb.register_worker('slow', 'http://other.silent.test/')"));
    assert!(took < Duration::from_secs(3), "{took:?}");
    app.done(&[]);
}

#[test]
fn a_host_that_does_not_resolve_is_registered_with_a_notice() {
    let hosts = "127.0.0.1, *.absent.test, *.silent.test";
    let app =
        App::alone("registering_absent", ClusterOptions::default().own_clock().set("xdb.allowed_worker_hosts", hosts));
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.register_worker('near', 'http://127.0.0.1:9')");
    assert_eq!(superuser.notices(), Vec::<String>::new());
    for (host, why) in [
        ("worker.absent.test", "the worker host \"worker.absent.test\" was not found: "),
        ("worker.silent.test", "the worker host \"worker.silent.test\" could not be looked up within 5 seconds"),
    ] {
        superuser.run(&format!("SELECT xdb.register_worker('far', 'http://{host}/')"));
        let notices = superuser.notices();
        let beginning = format!("NOTICE: the host of worker \"far\" can't be resolved now; {why}");
        assert!(notices.len() == 1 && notices[0].starts_with(&beginning), "{notices:?}");
        assert_eq!(superuser.text("SELECT url FROM xdb.workers WHERE name = 'far'"), format!("http://{host}/"));
    }
    app.done(&[]);
}

#[test]
fn states_and_waits_of_running_processes_can_be_counted() {
    let app = App::new("registering_usage");
    let _worker = app.worker(|call: &Call| match call.target() {
        "Read" => Reply::from(any_of(&[
            local_queue("m", "inbox", 1),
            local_queue("n", "inbox", 2),
            global_queue("g", "prices", 1),
            global_queue("h", "prices", 2),
        ])),
        _ => error(500, "Broken", "on purpose"),
    });
    let definition = mailbox().step("Other").with("globalQueues", json!(["prices"]));
    app.register("used", &definition);
    app.register("fails", &patient());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    let mut usage = |process_type: &str| {
        superuser.all::<String>(&format!(
            "SELECT concat_ws(' ', kind, name, live) FROM xdb.process_type_usage('{process_type}')"
        ))
    };
    assert_eq!(usage("used"), [""; 0]);
    for id in ["p", "q"] {
        db.start(id, "used").go();
        wait_until("it waits", 10, || views::waits(&mut db, id).len() == 4);
    }
    db.start("r", "fails").go();
    assert_eq!(usage("used"), ["GLOBAL_QUEUE prices 2", "LOCAL_QUEUE inbox 2", "STATE Read 2"], "each state once");
    assert_eq!(usage("fails"), ["STATE Only 1"]);
    db.run("SELECT xdb.stop_process('p')");
    assert_eq!(usage("used"), ["GLOBAL_QUEUE prices 1", "LOCAL_QUEUE inbox 1", "STATE Read 1"]);
    db.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT * FROM xdb.process_type_usage('used')");
    app.done(&[]);
}

#[test]
fn a_registration_waits_for_no_other_and_is_followed_whichever_commits_first() {
    let app = App::new("registering_side_by_side");
    let first = app.worker_named("first", |_| force_complete(json!("by the first")));
    let second = app.worker_named("second", |_| force_complete(json!("by the second")));
    app.register_with("first", "one", &patient());
    app.register_with("first", "other", &patient());
    let mut db = app.db();
    db.start("before", "one").go();
    assert_eq!(db.completes("before").result(), "by the first");
    let definition = patient().json().to_string();
    let mut open: Vec<_> = ["one", "other"].iter().map(|process_type| (app.superuser(), process_type)).collect();
    for (session, process_type) in &mut open {
        session.run("SET statement_timeout = '10s'; BEGIN");
        session.run(&format!("SELECT xdb.register_process_type('{process_type}', 'second', '{definition}')"));
    }
    for number in 0..3 {
        let mut session = app.superuser();
        session.run("SET statement_timeout = '10s'");
        session.run(&format!("SELECT xdb.register_worker('more{number}', '{}')", first.url()));
        // The engine has seen that one when this is done.
        let id = format!("between{number}");
        db.start(&id, "one").go();
        assert_eq!(db.completes(&id).result(), "by the first");
    }
    // Neither in the order in which they began, nor all at once.
    while let Some((mut session, process_type)) = open.pop() {
        session.run("COMMIT");
        db.start(process_type, process_type).go();
        assert_eq!(db.completes(process_type).result(), "by the second");
    }
    assert_eq!(second.count(|_| true), 2);
    let rows = "(SELECT count(*) BETWEEN 1 AND 3 AND sum(registrations) >= 9 FROM xdb.registration_count)";
    assert!(app.superuser().one::<bool>(&format!("SELECT {rows}")));
    app.done(&[]);
}

#[test]
fn a_registration_makes_no_session_read_the_other_types() {
    let app = App::new("registering_many");
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    superuser.run(
        "INSERT INTO xdb.process_type (process_type, worker_id, definition)
             SELECT 'other' || n, worker_id, definition FROM xdb.process_type, generate_series(1, 2000) n",
    );
    superuser.run("VACUUM ANALYZE xdb.process_type");
    let mut db = app.db();
    let mut round = |number: usize| {
        app.register("one", &one_step());
        let id = format!("p{number}");
        db.start(&id, "one").go();
        db.completes(&id);
    };
    (0..3).for_each(&mut round);
    let read = "SELECT (seq_tup_read + COALESCE(idx_tup_fetch, 0))::int8 FROM pg_stat_all_tables WHERE relid = 'xdb.process_type'::regclass";
    let turns = "SELECT sum(n_tup_upd + seq_scan + COALESCE(idx_scan, 0))::int8 FROM pg_stat_all_tables WHERE schemaname = 'xdb' AND relname = 'engine'";
    let mut at_rest = || {
        // A process reports its statistics of reads after it has been idle for a while.
        let before: i64 = superuser.one(turns);
        wait_until("turns were made", 30, || {
            superuser.run("SELECT pg_stat_clear_snapshot()");
            superuser.one::<i64>(turns) > before + 2
        });
        superuser.one::<i64>(read)
    };
    let before = at_rest();
    (3..13).for_each(&mut round);
    let after = at_rest();
    assert!(after - before < 2000, "{} rows were read", after - before);
    app.done(&[]);
}
