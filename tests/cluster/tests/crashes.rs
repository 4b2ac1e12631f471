//! The scheduler, the server, the extension or the database ends in the middle of the work. Tested with counting
//! processes.

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

const STEPS: u64 = 5;

/// A process that counts to [`STEPS`] in the application's row and in a local attribute, one step each.
fn counting(call: &Call) -> Answer {
    let n = call.global("n").as_u64().unwrap_or_default() + 1;
    let decision = if n < STEPS { next("Count", json!(null)) } else { force_complete(json!(n)) };
    decision.globals(json!({"n": n})).locals(json!({"k": call.local("k").as_u64().unwrap_or_default() + 1}))
}

fn counter() -> Definition {
    Definition::starting_with("Count").step("Count").maps("public.counters", "id", &["n"])
}

/// Starts all counters at once. Every write to their rows is recorded.
fn start_counters(db: &mut Db, count: usize) {
    db.run(
        "CREATE TABLE audit (id text, n int);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.audit VALUES (new.id, new.n); RETURN new; END $$;
         CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note();",
    );
    db.run("BEGIN");
    for n in 0..count {
        let id = format!("c{n}");
        db.start(&id, "counter").key(&id).globals(json!({"n": 0})).go();
    }
    db.run("COMMIT");
}

/// Checks that every counter has completed, and that every step has counted exactly once.
fn all_counted_once(app: &App, count: usize) {
    let mut db = app.db();
    for n in 0..count {
        assert_eq!(db.completes(&format!("c{n}")).result(), STEPS);
        views::assert_history_is_whole(&mut db, &format!("c{n}"));
    }
    let steps = (count as u64 * STEPS) as i64;
    assert_eq!(db.count(&format!("counters WHERE n = {STEPS}")), count as i64);
    assert_eq!(db.count("audit"), steps, "a step wrote twice, or not at all");
    assert_eq!(db.count("(SELECT DISTINCT id, n FROM audit) writes"), steps);
    assert_eq!(db.count("xdb.state_executions WHERE process_id LIKE 'c%'"), steps);
}

#[test]
fn a_terminated_scheduler_is_restarted_and_work_continues() {
    let app = App::new("crash_terminate");
    let worker = app.worker(counting);
    app.register("counter", &counter());
    let mut superuser = app.superuser();
    start_counters(&mut app.db(), 50);
    for round in 1..=3 {
        let calls = worker.count(|_| true);
        let pid = app.scheduler();
        superuser.run(&format!("SELECT pg_terminate_backend({pid})"));
        wait_until("another scheduler runs", 20, || {
            app.cluster().find_scheduler(app.database()).is_some_and(|other| other != pid)
        });
        // Kill it in the middle of work, as long as there is some.
        wait_until(&format!("round {round}: work goes on"), 20, || {
            worker.count(|_| true) > calls || views::with_status(&mut superuser, "c%", "RUNNING") == 0
        });
    }
    all_counted_once(&app, 50);
    app.done(&[]);
}

#[test]
fn a_killed_scheduler_with_fifty_calls_under_way() {
    let app = App::alone("crash_kill", ClusterOptions::default());
    let worker = app.worker(counting);
    app.register("counter", &counter());
    // All fifty hang in their third step when the scheduler is killed.
    worker.misbehave(|call: &Call| {
        let answer = counting(call);
        if call.global("n") == 2 { Reply::hang(answer) } else { answer.into() }
    });
    start_counters(&mut app.db(), 50);
    worker.wait_for_count("fifty calls are under way", 20, 50, |call| call.global("n") == 2);
    app.kill_scheduler();
    worker.heal();
    all_counted_once(&app, 50);
    let attempts = worker.count(|call| call.global("n") == 2);
    assert!(attempts >= 100, "fifty answers were lost, so fifty calls came again: {attempts}");
    app.done(AFTER_A_CRASH);
}

#[test]
fn a_scheduler_killed_again_and_again() {
    let app = App::alone("crash_again", ClusterOptions::default());
    let worker = app.worker(counting);
    app.register("counter", &counter());
    start_counters(&mut app.db(), 50);
    for _ in 0..4 {
        let calls = worker.count(|_| true);
        app.kill_scheduler();
        wait_until("it calls again", 30, || {
            worker.count(|_| true) > calls || views::with_status(&mut app.superuser(), "c%", "RUNNING") == 0
        });
    }
    // A call that crashes the last scheduler is held only when the next one has begun.
    let mut superuser = app.superuser();
    wait_until("all complete", 60, || {
        app.let_held_calls_go();
        views::with_status(&mut superuser, "c%", "COMPLETED") == 50
    });
    all_counted_once(&app, 50);
    app.done(AFTER_A_CRASH);
}

#[test]
fn a_power_cut_loses_nothing_and_an_overdue_timer_fires_at_once() {
    let app = App::alone("crash_power", ClusterOptions::default().own_clock());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Read") => any_of(&[local_queue("m", "inbox", 1)]),
        (Api::WaitUntil, _) => any_of(&[timer("t", 3600.0)]),
        (_, "Read") => force_complete(json!(call.messages("m"))),
        _ => force_complete(json!({"fired": call.fired("t")})),
    });
    app.register("sleeper", &Definition::starting_with("Sleep").waiting_step("Sleep"));
    app.register("mail", &mailbox());
    let mut db = app.db();
    db.start("sleeper", "sleeper").go();
    db.start("reader", "mail").go();
    wait_until("both wait", 10, || {
        !views::waits(&mut db, "sleeper").is_empty() && !views::waits(&mut db, "reader").is_empty()
    });
    db.publish("reader", "inbox", json!("durable"));
    app.cluster().crash();
    app.cluster().set_clock(3700.0);
    app.cluster().launch();
    let mut db = app.db();
    assert_eq!(db.completes("sleeper").result(), &json!({"fired": true}));
    assert_eq!(db.completes("reader").result(), &json!(["durable"]));
    assert_eq!(worker.count(|call| call.process_id() == "sleeper" && call.fired("t")), 1);
    app.done(AFTER_A_CRASH);
}

#[test]
fn a_shutdown_does_not_wait_for_workers() {
    let app = App::alone("crash_shutdown", ClusterOptions::default());
    let worker = app.worker(|_| Reply::hang(force_complete(json!("after all"))));
    app.register("one", &Definition::starting_with("Only").step_with("Only", json!({"executeApiTimeoutSeconds": 600})));
    app.db().start("p", "one").go();
    worker.wait_for("the call", 10, |_| true);
    let took = app.cluster().stop();
    assert!(took < Duration::from_secs(5), "the shutdown took {took:?}");
    worker.misbehave(|_| force_complete(json!("after all")));
    app.cluster().launch();
    assert_eq!(app.db().completes("p").result(), "after all");
    app.done(&[]);
}

/// An application with a hundred processes under way. Half of them hang in a call, and half of them wait.
fn busy(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[timer("t", 0.2), local_queue("m", "inbox", 1)]).into(),
        _ if call.target() == "Read" => next("Read", json!(null)).into(),
        _ => Reply::hang(force_complete(json!(null))),
    });
    app.register("one", &one_step());
    app.register("mail", &mailbox());
    let mut db = app.db();
    for n in 0..50 {
        db.start(&format!("hang-{n}"), "one").go();
        db.start(&format!("wait-{n}"), "mail").go();
    }
    worker.wait_for_count("calls that hang", 20, 30, |call| call.executes("Only"));
    (app, worker)
}

#[test]
fn the_extension_is_dropped_and_created_again_while_processes_run() {
    let (app, worker) = busy("crash_drop_extension");
    let mut superuser = app.superuser();
    for round in 1..=3 {
        let (took, ()) = timed(|| superuser.run("SET statement_timeout = '20 s'; DROP EXTENSION xdb"));
        assert!(took < Duration::from_secs(5), "round {round}: DROP EXTENSION took {took:?}");
        superuser.run("CREATE EXTENSION xdb; SELECT xdb.grant_usage('app')");
        assert_eq!(superuser.count("xdb.processes"), 0);
        let (name, url) = ("stub", worker.url());
        superuser.run(&format!("SELECT xdb.register_worker('{name}', '{url}')"));
        app.register("one", &one_step());
        worker.misbehave(|_| force_complete(json!("a new life")));
        let mut db = app.db();
        db.start("p", "one").go();
        assert_eq!(db.completes("p").result(), "a new life");
    }
    app.done(&[]);
}

#[test]
fn the_database_is_dropped_while_processes_run() {
    let (app, _worker) = busy("crash_drop_database");
    let mut superuser = app.cluster().superuser();
    // Sessions of a disconnected client may stay for a moment. The engine itself must not prevent the statement.
    wait_until("our own sessions have ended", 10, || {
        superuser.count("pg_stat_activity WHERE datname = 'crash_drop_database' AND backend_type = 'client backend'")
            == 0
    });
    let (took, ()) = timed(|| superuser.drop_database("crash_drop_database", ""));
    assert!(took < Duration::from_secs(6), "DROP DATABASE took {took:?}");
    app.done(&[]);
}

#[test]
fn a_database_of_the_same_name_is_another_one() {
    let (app, _worker) = busy("crash_same_name");
    let mut superuser = app.cluster().superuser();
    superuser.drop_database("crash_same_name", "WITH (FORCE)");
    superuser.run("CREATE DATABASE crash_same_name TEMPLATE template0");
    app.superuser().run("CREATE EXTENSION xdb");
    app.scheduler();
    assert_eq!(app.superuser().count("xdb.processes"), 0);
    app.done(&[]);
}

#[test]
fn a_renamed_database_keeps_running() {
    let (app, worker) = busy("crash_rename");
    worker.misbehave(|_| force_complete(json!("renamed")));
    let mut superuser = app.cluster().superuser();
    wait_until("the database can be renamed", 30, || {
        superuser.try_run("ALTER DATABASE crash_rename RENAME TO crash_renamed").is_ok()
    });
    let mut db = app.cluster().connect("crash_renamed", "app");
    db.start("p", "one").go();
    assert_eq!(db.completes("p").result(), "renamed");
    drop(db);
    superuser.drop_database("crash_renamed", "WITH (FORCE)");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn nothing_waits_for_a_poll() {
    let app = App::alone("crash_latency", ClusterOptions::default().set("xdb.test_poll_interval", "1h"));
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) if call.process_id() == "by-message" => any_of(&[local_queue("m", "inbox", 1)]),
        (Api::WaitUntil, _) => any_of(&[timer("t", 0.5)]),
        (_, "Only") => next("Read", json!(null)),
        _ => force_complete(json!(null)),
    });
    app.register("chain", &one_step().waiting_step("Read"));
    let mut db = app.db();
    db.start("warm-up", "chain").go();
    db.completes("warm-up");

    let started = Instant::now();
    db.start("by-timer", "chain").go();
    let first = worker.wait_for("the first call", 20, |call| call.process_id() == "by-timer");
    assert!(first.at - started < Duration::from_secs(15), "the first call came after {:?}", first.at - started);
    db.completes("by-timer");
    assert!(started.elapsed() < Duration::from_secs(30), "steps and timer took {:?}", started.elapsed());

    db.start("by-message", "chain").go();
    wait_until("it waits", 20, || !views::waits(&mut db, "by-message").is_empty());
    let published = Instant::now();
    db.publish("by-message", "inbox", json!("now"));
    let read =
        worker.wait_for("the message is read", 20, |call| call.process_id() == "by-message" && call.executes("Read"));
    assert!(read.at - published < Duration::from_secs(15), "read after {:?}", read.at - published);
    app.done(&[]);
}
