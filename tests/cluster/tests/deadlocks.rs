//! Rings of transactions that wait for each other. Sessions may be cancelled, the engine never is, and every deadlock
//! is detected.

use std::sync::Mutex;

use xdb_cluster_tests::prelude::*;

/// The answer of a process that drains its inbox. The process closes when the inbox is empty.
fn draining(call: &Call) -> Answer {
    match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1), timer("quiet", 0.05)]),
        _ => close_if_empty("inbox", "Read"),
    }
}

/// An application of draining processes. Their closes are delayed until [`closes_wait`].
fn drains(app: App) -> (App, Worker) {
    let worker = app.worker(draining);
    worker.misbehave(|call: &Call| match call.api {
        Api::WaitUntil => draining(call).into(),
        _ => Reply::hang(draining(call)),
    });
    app.register("drain", &mailbox());
    (app, worker)
}

/// Starts a process, and returns when it is about to close.
fn about_to_close(app: &App, worker: &Worker, id: &str) {
    app.db().start(id, "drain").go();
    worker.wait_for("the call that is to close it", 10, |call| call.api == Api::Execute && call.process_id() == id);
}

/// Lets the closes begin, and returns when `count` of them wait for publishers.
fn closes_wait(app: &App, worker: &Worker, count: i64) {
    worker.heal();
    worker.release();
    let mut superuser = app.superuser();
    let marked = "xdb.process_execution WHERE closing = 'CONDITIONAL'";
    wait_until("the closes wait for the publishers", 20, || superuser.count(marked) == count);
}

/// A session with an open transaction that has run this. A wait without an end soon fails the test.
fn in_transaction(app: &App, sql: &str) -> Db {
    let mut db = app.db();
    db.run("SET statement_timeout = '20 s'");
    db.run("BEGIN");
    db.run(sql);
    db
}

/// The sessions run their statements at the same time, and end their transactions. Returns their SQLSTATEs.
fn go_on(sessions: Vec<(Db, &str)>) -> Vec<String> {
    let sessions: Vec<_> = sessions.into_iter().map(Mutex::new).collect();
    at_once(sessions.len(), |number| {
        let (db, sql) = &mut *sessions[number].lock().unwrap();
        let outcome = db.try_run(sql);
        db.run(if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" });
        outcome.map_or_else(|error| error.code, |()| "00000".to_owned())
    })
}

/// Checks that exactly one session was cancelled for the deadlock. The other one went on, but its process may be
/// closed.
fn one_was_cancelled(mut outcomes: Vec<String>) {
    outcomes.sort();
    let other = outcomes.iter().find(|code| *code != "40P01");
    assert!(
        outcomes.iter().filter(|code| *code == "40P01").count() == 1
            && other.is_some_and(|code| code == "00000" || code == codes::NOT_RUNNING),
        "{outcomes:?}"
    );
}

#[test]
fn publishers_wait_for_closes_that_wait_for_the_publishers() {
    let (app, worker) = drains(App::new("deadlocks_closes"));
    ["a", "b"].iter().for_each(|id| about_to_close(&app, &worker, id));
    let first = in_transaction(&app, "SELECT xdb.publish('a', 'noise', '1')");
    let second = in_transaction(&app, "SELECT xdb.publish('b', 'noise', '1')");
    closes_wait(&app, &worker, 2);
    let outcomes = go_on(vec![
        (first, "SELECT xdb.publish('b', 'inbox', '1')"),
        (second, "SELECT xdb.publish('a', 'inbox', '1')"),
    ]);
    one_was_cancelled(outcomes);
    ["a", "b"].iter().for_each(|id| drop(app.db().completes(id)));
    app.done(&[]);
}

#[test]
fn a_publisher_holds_a_row_that_another_publisher_needs_before_the_close() {
    let (app, worker) = drains(App::new("deadlocks_row"));
    app.db().run("INSERT INTO counters VALUES ('r', 0)");
    about_to_close(&app, &worker, "p");
    let row = "UPDATE counters SET n = n + 1 WHERE id = 'r'";
    let first = in_transaction(&app, row);
    let second = in_transaction(&app, "SELECT xdb.publish('p', 'noise', '1')");
    closes_wait(&app, &worker, 1);
    let outcomes = go_on(vec![(first, "SELECT xdb.publish('p', 'inbox', '1')"), (second, row)]);
    one_was_cancelled(outcomes);
    app.db().completes("p");
    app.done(&[]);
}

#[test]
fn a_session_that_holds_a_closing_process_publishes_to_it() {
    let (app, worker) = drains(App::new("deadlocks_own"));
    about_to_close(&app, &worker, "p");
    let mut publisher = in_transaction(&app, "SELECT xdb.publish('p', 'noise', '1')");
    closes_wait(&app, &worker, 1);
    // There is nothing to be retried: the process is locked, and nothing of it is written.
    let mut holder = in_transaction(&app, "SELECT xdb.retry_now('p')");
    publisher.run("COMMIT");
    holder.run("SELECT xdb.publish('p', 'inbox', '\"in time\"'); COMMIT");
    app.db().completes("p");
    assert_eq!(worker.count(|call| call.messages("m") == [json!("in time")]), 1);
    app.done(&[]);
}

#[test]
fn no_publisher_waits_for_the_close_of_a_killed_engine() {
    let (app, worker) = drains(App::alone("deadlocks_gone", ClusterOptions::default()));
    about_to_close(&app, &worker, "p");
    let mut publisher = in_transaction(&app, "SELECT xdb.publish('p', 'noise', '1')");
    closes_wait(&app, &worker, 1);
    app.cluster().set("xdb.enabled", "off");
    wait_until("the engine has ended", 20, || app.cluster().find_scheduler(app.database()).is_none());
    let mut other = in_transaction(&app, "SELECT xdb.publish('p', 'inbox', '\"meanwhile\"')");
    other.run("COMMIT");
    publisher.run("COMMIT");
    app.cluster().set("xdb.enabled", "on");
    app.db().completes("p");
    assert_eq!(worker.count(|call| call.messages("m") == [json!("meanwhile")]), 1);
    app.done(&[]);
}

/// One step that adds one to the row's `n`.
fn add(call: &Call) -> Answer {
    force_complete(json!(null)).globals(json!({"n": call.global("n").as_i64().unwrap_or_default() + 1}))
}

fn adding(table: &str) -> Definition {
    one_step().maps(table, "id", &["n"])
}

/// Events of attempts that were spent.
const SPENT: &str = "xdb.history WHERE event_type IN ('AttemptFailed', 'AttemptsFolded', 'StateFailed')";

/// The session that holds a step's row locks the step's process repeatedly, and gets the lock each time. With the usual
/// `deadlock_timeout` no session is cancelled: the step gives up its locks long before.
fn gets_the_process(holder: &mut Db, mut before: impl FnMut()) {
    for round in 0..4 {
        before();
        holder.run(&format!("SAVEPOINT s; SELECT xdb.set_local_attributes('p', '{{\"round\": {round}}}')"));
        // The process is free again, and the step can be tried once more.
        holder.run("ROLLBACK TO SAVEPOINT s");
    }
    holder.run("COMMIT");
}

#[test]
fn a_step_gives_way_to_a_session_that_holds_its_row_and_wants_its_process() {
    let app = App::new("deadlocks_step");
    let worker = app.worker(add);
    worker.misbehave(|call: &Call| Reply::hang(add(call)));
    app.register("add", &adding("public.counters"));
    app.db().start("p", "add").key("p").globals(json!({"n": 0})).go();
    worker.wait_for("the call", 10, |_| true);
    let mut holder = in_transaction(&app, "UPDATE counters SET n = n + 10 WHERE id = 'p'");
    worker.heal();
    let mut superuser = app.superuser();
    let waits = "pg_stat_activity WHERE backend_type = 'xdb scheduler' AND datname = current_database()
        AND wait_event_type = 'Lock'";
    let mut first = true;
    gets_the_process(&mut holder, || {
        // Later waits for a row of a table in which one is held are too short to be seen.
        if std::mem::take(&mut first) {
            wait_until("the step waits for the row", 20, || superuser.count(waits) > 0);
        }
    });
    app.db().completes("p");
    assert_eq!(app.superuser().count(SPENT), 0, "no attempt was spent");
    assert_eq!(app.db().one::<i32>("SELECT n FROM counters"), 1, "what the call had loaded, plus one");
    app.done(&[]);
}

#[test]
fn a_step_of_a_slow_table_gives_way_too() {
    let app = App::new("deadlocks_aside");
    let mut db = app.db();
    db.run(
        "CREATE TABLE slow (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
         CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF current_setting('test.quick', true) IS DISTINCT FROM 'on' THEN PERFORM pg_sleep(0.4); END IF;
             RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION sleep();
         INSERT INTO slow VALUES ('p'), ('a'), ('b'), ('c');",
    );
    let _worker = app.worker(add);
    app.register("add", &adding("public.slow"));
    for id in ["a", "b", "c"] {
        db.start(id, "add").key(id).go();
    }
    ["a", "b", "c"].iter().for_each(|id| drop(db.completes(id)));
    assert!(views::engine(&mut app.superuser()).contains("public.slow: "));
    let mut holder = in_transaction(&app, "SET LOCAL test.quick = 'on'; UPDATE slow SET n = n + 10 WHERE id = 'p'");
    db.start("p", "add").key("p").go();
    let mut superuser = app.superuser();
    let waits = "pg_stat_activity WHERE backend_type = 'xdb runner' AND datname = current_database()
        AND wait_event_type = 'Lock'";
    gets_the_process(&mut holder, || {
        wait_until("the step waits for the row", 20, || superuser.count(waits) > 0);
    });
    db.completes("p");
    assert_eq!(app.superuser().count(SPENT), 0, "no attempt was spent");
    app.done(&[]);
}

/// Two sessions write the rows of two tables. A third session holds the row that both need first. If one of them locked
/// the rows in the order of its mapping, it would hold the other row by then.
fn writers_of_two_tables(name: &str, prepare: &[(&str, &str)], statements: [&str; 2]) {
    let app = App::new(name);
    let mut db = app.db();
    db.run(
        "CREATE TABLE red (id text PRIMARY KEY, a int); INSERT INTO red VALUES ('r', 0);
         CREATE TABLE blue (id text PRIMARY KEY, b int); INSERT INTO blue VALUES ('r', 0);",
    );
    let _worker = app.worker(|_: &Call| output(json!(null)).globals(json!({"a": 1, "b": 1})));
    let base = || Definition::without_start().rpc("write", json!({}));
    app.register("there", &base().maps("public.red", "id", &["a"]).maps("public.blue", "id", &["b"]));
    app.register("back", &base().maps("public.blue", "id", &["b"]).maps("public.red", "id", &["a"]));
    prepare.iter().for_each(|(process, of_type)| {
        drop(db.start(process, of_type).keys(&[("public.red", "id"), ("public.blue", "id")], "r").go())
    });
    let mut holder = in_transaction(&app, "UPDATE red SET a = 2 WHERE id = 'r'");
    let mut superuser = app.superuser();
    let outcomes = std::thread::scope(|scope| {
        let mut waiting = 0;
        let sessions = statements.map(|sql| {
            let mut session = in_transaction(&app, "SELECT 1");
            let session = scope.spawn(move || {
                let outcome = session.try_run(sql);
                session.run(if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" });
                outcome.map_or_else(|error| error.code, |()| "00000".to_owned())
            });
            waiting += 1;
            wait_until("one more waits for a row", 10, || {
                superuser.count("pg_stat_activity WHERE datname = current_database() AND usename = 'app' AND wait_event_type = 'Lock'") == waiting
            });
            session
        });
        holder.run("COMMIT");
        sessions.map(|session| session.join().expect("it says how it went"))
    });
    assert_eq!(outcomes, ["00000", "00000"]);
    app.done(&[]);
}

#[test]
fn rpcs_that_write_two_tables_do_so_in_the_same_order() {
    let calls = ["SELECT xdb.invoke_rpc('there', 'write')", "SELECT xdb.invoke_rpc('back', 'write')"];
    writers_of_two_tables("deadlocks_rpc_order", &[("there", "there"), ("back", "back")], calls);
}

#[test]
fn starts_that_write_two_tables_do_so_in_the_same_order() {
    let start = |of_type: &str| {
        format!(
            "SELECT xdb.start_process('{of_type}', '{of_type}', global_attributes => '{{\"a\": 1, \"b\": 1}}',
                 options => '{{\"globalAttributeKeys\": {{\"public.red\": {{\"id\": \"r\"}}, \"public.blue\": {{\"id\": \"r\"}}}}}}')"
        )
    };
    writers_of_two_tables("deadlocks_start_order", &[], [&start("there"), &start("back")]);
}
