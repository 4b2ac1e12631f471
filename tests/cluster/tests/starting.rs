//! Starts: each happens once, in its caller's transaction, or not at all.

use std::sync::Mutex;

use xdb_cluster_tests::prelude::*;

/// A process type `one` that completes at once, and `mail` that waits for a message.
fn application(name: &str) -> (App, Worker) {
    application_in(App::new(name))
}

fn application_in(app: App) -> (App, Worker) {
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => force_complete(json!(call.messages("m"))),
        _ => force_complete(json!("done")),
    });
    app.register("one", &one_step());
    app.register("mail", &mailbox());
    (app, worker)
}

#[test]
fn of_two_hundred_sessions_exactly_one_wins() {
    let (app, worker) = application("start_race");
    let sessions: Vec<Mutex<Db>> = (0..200).map(|_| Mutex::new(app.db())).collect();
    let answers = at_once(200, |n| {
        let mut db = sessions[n].lock().expect("no other thread has it");
        db.start("the-one", "mail").try_go()
    });
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1);
    let winner = won.into_iter().find_map(Result::ok).expect("one");
    for error in lost.into_iter().filter_map(Result::err) {
        assert_eq!(error.code, codes::ALREADY_STARTED, "{error:?}");
        assert!(format!("{error:?}").contains(&winner), "the error names the running execution: {error:?}");
    }
    let mut db = app.db();
    assert_eq!(db.count("xdb.processes WHERE process_id = 'the-one'"), 1);
    db.publish("the-one", "inbox", json!("hello"));
    db.completes("the-one");
    assert_eq!(worker.count(|call| call.api == Api::WaitUntil), 1);
    app.done(&[]);
}

#[test]
fn a_repeated_request_gets_the_first_answer_under_every_policy() {
    let (app, worker) = application("start_request_id");
    let mut db = app.db();
    let request = json!({"requestId": "request-1"});
    let first = db.start("p", "one").options(request.clone()).go();
    for policy in ["ALLOW_IF_NO_RUNNING", "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY", "DISALLOW_REUSE", "TERMINATE_IF_RUNNING"]
    {
        assert_eq!(db.start("p", "one").options(request.clone()).reuse(policy).go(), first, "{policy}");
    }
    db.completes("p");
    assert_eq!(db.start("p", "one").options(request).go(), first);
    let second = db.start("p", "one").options(json!({"requestId": "request-2"})).go();
    assert_ne!(second, first);
    db.completes("p");
    assert_eq!(worker.count(|_| true), 2);
    app.done(&[]);
}

#[test]
fn an_id_is_used_again_as_its_policy_allows() {
    let (app, _worker) = application("start_reuse");
    let mut db = app.db();
    let first = db.start("p", "mail").go();
    for policy in ["ALLOW_IF_NO_RUNNING", "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY", "DISALLOW_REUSE"] {
        let error = db.start("p", "mail").reuse(policy).refused(codes::ALREADY_STARTED);
        assert!(format!("{error:?}").contains(&first), "{policy}: {error:?}");
    }

    let second = db.start("p", "mail").reuse("TERMINATE_IF_RUNNING").go();
    assert_ne!(first, second);
    let of_first = format!("SELECT xdb.describe_process('p', execution_id => '{first}')->>'status'");
    assert_eq!(db.text(&of_first), "TERMINATED");
    assert_eq!(db.status("p"), "RUNNING");

    db.run("SELECT xdb.stop_process('p', 'FAIL', 'on purpose')");
    db.start("p", "one").reuse("ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY").go();
    db.completes("p");
    db.start("p", "one").reuse("ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY").refused(codes::ALREADY_STARTED);
    db.start("p", "one").reuse("DISALLOW_REUSE").refused(codes::ALREADY_STARTED);
    db.start("p", "one").reuse("ALLOW_IF_NO_RUNNING").go();
    db.completes("p");
    assert_eq!(db.count("xdb.processes WHERE process_id = 'p'"), 4);
    app.done(&[]);
}

#[test]
fn a_rolled_back_start_leaves_nothing() {
    let (app, worker) = application("start_rollback");
    let mut db = app.db();
    db.start("reader", "mail").go();

    db.run("BEGIN");
    db.start("ghost", "one").go();
    db.publish("reader", "inbox", json!("from a ghost"));
    db.run("ROLLBACK");

    db.run("BEGIN");
    db.start("kept", "one").go();
    db.run("SAVEPOINT s");
    db.start("phantom", "one").go();
    db.publish("reader", "inbox", json!("from a phantom"));
    db.run("ROLLBACK TO s");
    db.run("COMMIT");

    db.completes("kept");
    db.publish("reader", "inbox", json!("real"));
    assert_eq!(db.completes("reader").result(), &json!(["real"]));
    for id in ["ghost", "phantom"] {
        db.refused(codes::UNKNOWN_PROCESS, &format!("SELECT xdb.describe_process('{id}')"));
        assert_eq!(worker.count(|call| call.process_id() == id), 0);
    }
    app.done(&[]);
}

#[test]
fn a_start_in_a_kept_savepoint_wakes_the_engine() {
    let (app, _worker) = application("start_savepoint");
    let mut db = app.db();
    db.run("BEGIN; SAVEPOINT s");
    db.start("p", "one").go();
    db.run("RELEASE s; COMMIT");
    db.completes("p");
    app.done(&[]);
}

#[test]
fn the_second_wins_when_the_first_rolls_back() {
    let (app, _worker) = application("start_second");
    let mut first = app.db();
    first.run("BEGIN");
    first.start("p", "one").go();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| app.db().start("p", "one").try_go());
        let mut superuser = app.superuser();
        wait_until("the second waits for the first", 10, || {
            superuser.count("pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") > 0
        });
        first.run("ROLLBACK");
        let answer = second.join().expect("no panic");
        assert!(answer.is_ok(), "{answer:?}");
    });
    first.completes("p");
    app.done(&[]);
}

#[test]
fn the_second_loses_when_the_first_commits() {
    let (app, _worker) = application("start_loses");
    let mut first = app.db();
    first.run("BEGIN");
    first.start("p", "mail").go();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| app.db().start("p", "mail").try_go());
        let mut superuser = app.superuser();
        wait_until("the second waits for the first", 10, || {
            superuser.count("pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") > 0
        });
        first.run("COMMIT");
        let error = second.join().expect("no panic").expect_err("only one may win");
        assert_eq!(error.code, codes::ALREADY_STARTED);
    });
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn a_start_that_commits_after_many_later_ones_is_not_forgotten() {
    // The engine does not poll, so only the commit can make it find the start.
    let options = ClusterOptions::default().set("xdb.test_poll_interval", "1h");
    let (app, worker) = application_in(App::alone("start_late", options));
    let mut late = app.db();
    late.run("BEGIN");
    late.start("late", "one").go();

    let mut db = app.db();
    for n in 0..200 {
        db.start(&format!("later-{n}"), "one").go();
    }
    wait_until("all that came later are done", 30, || views::with_status(&mut db, "later-%", "COMPLETED") == 200);

    late.run("COMMIT");
    worker.wait_for("the first call of the late one", 20, |call| call.process_id() == "late");
    db.completes("late");
    app.done(&[]);
}

#[test]
fn a_start_for_later_starts_later() {
    let (app, worker) = application("start_at");
    let mut db = app.db();
    let begun = Instant::now();
    db.run("SELECT xdb.start_process('p', 'one', start_at => clock_timestamp() + interval '1 second')");
    let call = worker.wait_for("the first call", 10, |_| true);
    assert!(call.at - begun >= Duration::from_millis(990), "called after {:?}", call.at - begun);
    db.completes("p");
    app.done(&[]);
}

#[test]
fn initial_attributes_meet_an_existing_row_according_to_the_mode() {
    let (app, _worker) = application("start_conflict");
    app.register("user", &one_step().maps("public.users", "user_id", &["status"]));
    let mut db = app.db();
    db.run("INSERT INTO users (user_id, status) VALUES ('u', 'old')");
    let status = "SELECT status FROM users WHERE user_id = 'u'";
    let mode = |mode: &str| json!({"globalAttributeConflictMode": mode});

    db.start("ignores", "user").key("u").globals(json!({"status": "new"})).options(mode("IGNORE_CONFLICT")).go();
    assert_eq!(db.text(status), "old");
    let returned = mode("RETURN_ERROR_ON_CONFLICT");
    assert!(db.start("refused", "user").key("u").globals(json!({"status": "new"})).options(returned).try_go().is_err());
    assert_eq!(db.text(status), "old");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('refused')");
    db.start("overrides", "user").key("u").globals(json!({"status": "new"})).go();
    assert_eq!(db.text(status), "new");
    app.done(&[]);
}

#[test]
fn starts_over_a_row_need_nothing_of_a_new_one() {
    let app = App::new("start_over");
    app.superuser().run(
        "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text, customer text NOT NULL);
         INSERT INTO orders (status, customer) SELECT 'old', 'ada' FROM generate_series(1, 4);
         GRANT SELECT (id, status), UPDATE (status) ON orders TO app;",
    );
    let _worker = app.worker(|call: &Call| {
        force_complete(json!(call.global("status"))).globals(json!({"status": format!("by {}", call.process_id())}))
    });
    app.register("order", &one_step().maps("public.orders", "id", &["status"]));
    let mut db = app.db();
    db.start("overrides", "order").key("1").globals(json!({"status": "new"})).go();
    let mode = |mode: &str| json!({"globalAttributeConflictMode": mode});
    db.start("ignores", "order").key("2").globals(json!({"status": "new"})).options(mode("IGNORE_CONFLICT")).go();
    let refusing = db.start("refused", "order").key("3").globals(json!({"status": "new"}));
    refusing.options(mode("RETURN_ERROR_ON_CONFLICT")).refused(codes::UNIQUE_VIOLATION);
    let in_bulk = json!([{"process_id": "bulk", "process_type": "order", "global_attribute_pk": "4", "global_attributes": {"status": "new"}}]);
    db.run(&format!("SELECT xdb.start_processes('{in_bulk}')"));
    // What is started goes on as any process.
    for (process, loaded) in [("overrides", "new"), ("ignores", "old"), ("bulk", "new")] {
        assert_eq!(db.completes(process).result(), loaded, "{process}");
    }
    let rows = "SELECT string_agg(id || ' ' || status || ' ' || customer, ', ' ORDER BY id) FROM orders";
    let written = "1 by overrides ada, 2 by ignores ada, 3 old ada, 4 by bulk ada";
    assert_eq!(app.superuser().text(rows), written);
    // A row that is not there is another matter.
    db.start("absent", "order").key("5").globals(json!({"status": "new"})).refused("428C9");
    app.done(&[]);
}

#[test]
fn of_many_starts_over_an_absent_row_one_inserts_it_and_the_other_starts_find_it() {
    let (app, _worker) = application("start_absent");
    app.register("passive", &Definition::without_start().maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    db.run(
        "CREATE TABLE made (id text);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO made VALUES (NEW.id); RETURN NEW; END';
         CREATE TRIGGER note AFTER INSERT ON counters FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let sessions: Vec<Mutex<Db>> = (0..20).map(|_| Mutex::new(app.db())).collect();
    for row in 0..10 {
        let key = format!("row {row}");
        let answers = at_once(sessions.len(), |n| {
            let mut db = sessions[n].lock().expect("no other thread has it");
            let mode = if n % 2 == 0 { "OVERRIDE_ON_CONFLICT" } else { "IGNORE_CONFLICT" };
            let start = db.start(&format!("{row} {n}"), "passive").key(&key).globals(json!({"n": n}));
            start.options(json!({"globalAttributeConflictMode": mode})).try_go()
        });
        let failures: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        assert!(failures.is_empty(), "{failures:?}");
    }
    assert_eq!(db.text("SELECT count(*) || ' of ' || count(DISTINCT id) FROM made"), "10 of 10");
    assert_eq!(db.count("counters"), 10);
    assert_eq!(views::with_status(&mut db, "%", "RUNNING"), 200);
    app.done(&[]);
}
