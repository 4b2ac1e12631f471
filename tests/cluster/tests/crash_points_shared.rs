//! The server is stopped at the named points that concern several processes: locks on attributes, global queues, slow
//! tables and their runners, registrations, the launcher. Nothing is lost or done twice.
//!
//! As in `crash_points.rs`, these tests need a build of the extension with crash points.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// An application in a server of its own, which records every write of `counters.n`.
fn application(name: &str) -> App {
    let app = App::alone(&format!("shared_{}", name.replace('-', "_")), ClusterOptions::default());
    app.db().run(
        "CREATE TABLE audit (id text, n int);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.audit VALUES (new.id, new.n); RETURN new; END $$;
         CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note();",
    );
    app
}

/// Adds one to the row.
fn add(call: &Call) -> Answer {
    let n = json!(call.global("n").as_i64().unwrap_or_default() + 1);
    match call.api {
        Api::Rpc => output(n.clone()).globals(json!({"n": n})),
        _ => force_complete(n.clone()).globals(json!({"n": n})),
    }
}

/// A process type on the table `counters`, with these options of the state and of the RPC `add`.
fn adding(config: Value) -> Definition {
    Definition::starting_with("Add")
        .step_with("Add", config.clone())
        .maps("public.counters", "id", &["n"])
        .rpc("add", config)
}

fn exclusive() -> Value {
    json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}})
}

/// Starts a process, and repeats the start after crashes.
fn start(app: &App, id: &str, process_type: &str, key: &str) {
    let request = json!({"requestId": id});
    while app.db().start(id, process_type).key(key).options(request.clone()).try_go().is_err() {}
}

/// Checks that the writes of the row were 1, 2, and so on, each once.
fn wrote(app: &App, key: &str, count: i32) {
    let written = app.db().all::<i32>(&format!("SELECT n FROM audit WHERE id = '{key}' ORDER BY n"));
    assert_eq!(written, (1..=count).collect::<Vec<_>>(), "{key}");
}

/// The result of the query. None: the server has crashed meanwhile.
fn now<T: postgres::types::FromSqlOwned>(app: &App, sql: &str) -> Option<T> {
    let within = Duration::from_secs(5);
    app.cluster().try_connect(app.database(), "postgres", within).ok()?.try_one(sql).ok()
}

// --- slow tables -----------------------------------------------------------------------------------------------------

/// Ten steps write to a table with a slow trigger. When the table is marked as slow, the trigger is repaired. So calls
/// move to the runners and back.
fn a_table_is_slow_for_a_while(point: &str) {
    const PROCESSES: usize = 10;
    let app = application(point);
    let worker = app.worker(add);
    app.register("add", &adding(json!({})));
    app.db().run(
        "INSERT INTO counters SELECT 'k' || n, 0 FROM generate_series(0, 9999) n;
         CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(0.4); RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION sleep();",
    );
    // The answers come together, so that most of them are there when the table is found to be slow.
    worker.misbehave(|call: &Call| Reply::hang(add(call)));
    (0..PROCESSES).for_each(|n| start(&app, &format!("p{n}"), "add", &format!("k{n}")));
    worker.wait_for_count("all calls", 20, PROCESSES, |_| true);
    app.cluster().arm(point);
    worker.heal();
    let is_slow = "SELECT cardinality(slow_objects) > 0 FROM xdb.status()";
    wait_until("the table is slow", 30, || now(&app, is_slow) == Some(true));
    // Found in the scheduler's lane, and moved.
    start(&app, "late", "add", "k20");
    let mend = "CREATE OR REPLACE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$";
    while app.db().try_run(mend).is_err() {}
    let mut more = 0;
    wait_until("another turn finds it", 60, || {
        for n in more..more + 10 {
            start(&app, &format!("more{n}"), "add", &format!("k{}", 100 + n));
        }
        more += 10;
        !app.cluster().is_armed()
    });
    app.cluster().wait_for_crash(point);
    let mut db = app.db();
    for n in 0..more {
        db.completes(&format!("more{n}"));
        wrote(&app, &format!("k{}", 100 + n), 1);
    }
    for n in 0..PROCESSES {
        db.completes(&format!("p{n}"));
        wrote(&app, &format!("k{n}"), 1);
    }
    db.completes("late");
    wrote(&app, "k20", 1);
    assert_eq!(app.superuser().count("xdb.task"), 0);
    start(&app, "last", "add", "k19");
    db.completes("last");
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_that_gives_calls_to_the_runners() {
    a_table_is_slow_for_a_while("turn-give-away");
}

#[test]
fn in_a_turn_that_finds_calls_of_the_other_lane() {
    a_table_is_slow_for_a_while("turn-change-lane");
}

#[test]
fn in_a_turn_that_takes_calls_back_from_the_runners() {
    let app = application("turn-take-back");
    let worker = app.worker(add);
    worker.misbehave(|_: &Call| error(500, "Unfit", "not now"));
    // Longer than the ten minutes that pass.
    let patient = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 3600, "maximumIntervalSeconds": 3600}});
    let definition = Definition::starting_with("Add").step_with("Add", patient).maps("public.counters", "id", &["n"]);
    app.register("add", &definition);
    app.db().run("INSERT INTO counters VALUES ('k', 0)");
    app.make_slow("app", "public.counters", "id", json!({"n": 0}));
    start(&app, "p", "add", "k");
    let waiting = "xdb.task WHERE lane = 1 AND attempt = 1 AND lease_until IS NULL AND due_at > now()";
    wait_until("its call waits for the next attempt", 20, || app.superuser().count(waiting) == 1);
    worker.heal();
    app.cluster().arm("turn-take-back");
    app.ten_minutes_pass();
    app.cluster().wait_for_crash("turn-take-back");
    app.db().run("SELECT xdb.retry_now('p')");
    app.db().completes("p");
    wrote(&app, "k", 1);
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn while_the_leases_of_a_runner_become_void() {
    let app = application("retire-runner");
    let worker = app.worker(add);
    worker.misbehave(|call: &Call| Reply::hang(add(call)));
    app.register("add", &adding(json!({})));
    app.db().run("INSERT INTO counters SELECT 'k' || n, 0 FROM generate_series(0, 9) n");
    app.make_slow("app", "public.counters", "id", json!({"n": 0}));
    (0..10).for_each(|n| start(&app, &format!("p{n}"), "add", &format!("k{n}")));
    worker.wait_for_count("all calls", 20, 10, |_| true);
    app.cluster().arm("retire-runner");
    app.cluster().ask_to_end("backend_type = 'xdb runner'");
    app.cluster().wait_for_crash("retire-runner");
    worker.heal();
    let mut db = app.db();
    for n in 0..10 {
        db.completes(&format!("p{n}"));
        wrote(&app, &format!("k{n}"), 1);
    }
    drop(worker);
    app.done(AFTER_A_CRASH);
}

// --- locks on attributes ---------------------------------------------------------------------------------------------

/// Several processes count in one row. The first one has its lock, and the others queue up.
fn in_line(point: &str) -> (App, Worker) {
    let app = application(point);
    let worker = app.worker(add);
    worker.misbehave(|call: &Call| Reply::hang(add(call)));
    app.register("add", &adding(exclusive()));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    for (waiting, id) in (0i64..).zip(["a", "b", "c", "d"]) {
        start(&app, id, "add", "r");
        worker.wait_for("the first one's call", 20, |_| true);
        wait_until(&format!("{id} stands in line"), 20, || db.count("xdb.attribute_locks") == waiting);
    }
    (app, worker)
}

/// Checks that these processes have counted, each once, and that nothing waits for a lock.
fn counted(app: App, worker: Worker, ids: &[&str]) {
    worker.heal();
    ids.iter().for_each(|id| drop(app.db().completes(id)));
    wrote(&app, "r", ids.len() as i32);
    wait_until("nothing waits", 20, || now(&app, "SELECT count(*) FROM xdb.attribute_locks") == Some(0i64));
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_in_which_calls_begin_to_wait() {
    let app = application("turn-park");
    let worker = app.worker(add);
    app.register("add", &adding(exclusive()));
    app.db().run("INSERT INTO counters VALUES ('r', 0)");
    app.cluster().arm("turn-park");
    worker.misbehave(|call: &Call| Reply::hang(add(call)));
    ["a", "b", "c", "d"].iter().for_each(|id| start(&app, id, "add", "r"));
    app.cluster().wait_for_crash("turn-park");
    counted(app, worker, &["a", "b", "c", "d"]);
}

#[test]
fn in_a_turn_that_hands_a_lock_on() {
    let (app, worker) = in_line("turn-claim");
    app.cluster().arm("turn-claim");
    worker.heal();
    app.cluster().wait_for_crash("turn-claim");
    counted(app, worker, &["a", "b", "c", "d"]);
}

#[test]
fn in_a_turn_that_makes_a_call_give_its_lock_up() {
    let (app, worker) = in_line("turn-yield");
    let mut touching = app.db();
    touching.run("BEGIN; SELECT xdb.set_local_attributes('a', '{\"k\": 1}')");
    app.cluster().arm("turn-yield");
    worker.heal();
    app.cluster().wait_for_crash("turn-yield");
    counted(app, worker, &["a", "b", "c", "d"]);
}

#[test]
fn in_a_turn_that_releases_the_lock_of_a_stopped_process() {
    let (app, worker) = in_line("turn-claim");
    app.cluster().arm("turn-claim");
    let stopped = app.db().try_run("SELECT xdb.stop_process('a')");
    app.cluster().wait_for_crash("turn-claim");
    if stopped.is_err() && app.db().status("a") == "RUNNING" {
        app.db().run("SELECT xdb.stop_process('a')");
    }
    assert_eq!(app.db().status("a"), "TERMINATED");
    counted(app, worker, &["b", "c", "d"]);
}

#[test]
fn in_an_rpc_that_has_its_locks() {
    let app = application("rpc-locked");
    let worker = app.worker(add);
    app.register("add", &adding(exclusive()));
    app.register("idle", &Definition::without_start().maps("public.counters", "id", &["n"]).rpc("add", exclusive()));
    app.db().run("INSERT INTO counters VALUES ('r', 0)");
    start(&app, "rpc", "idle", "r");
    let rpc = "SELECT xdb.invoke_rpc('rpc', 'add', idempotency_key => 'k')::text";
    app.crash_at("rpc-locked", || app.db().try_run(rpc));
    // No process waits for a session that has ended.
    start(&app, "a", "add", "r");
    app.db().completes("a");
    assert_eq!(app.db().one::<String>(rpc), "2");
    wrote(&app, "r", 2);
    app.db().run("SELECT xdb.stop_process('rpc')");
    drop(worker);
    app.done(AFTER_A_CRASH);
}

// --- global queues ---------------------------------------------------------------------------------------------------

/// `take` takes a message of `jobs` and completes with it. `hold` takes one, and then waits for a message that never
/// comes.
fn taking(point: &str) -> (App, Worker) {
    let app = application(point);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Hold") => all_of(&[global_queue("m", "jobs", 1), local_queue("n", "never", 1)]),
        (Api::WaitUntil, _) => any_of(&[global_queue("m", "jobs", 1)]),
        _ => force_complete(json!(call.messages("m"))),
    });
    app.register("take", &mailbox());
    app.register("hold", &Definition::starting_with("Hold").waiting_step("Hold"));
    (app, worker)
}

fn waits(app: &App, id: &str) {
    wait_until(&format!("{id} waits"), 20, || !views::waits(&mut app.db(), id).is_empty());
}

/// Publishes a message, and repeats that after crashes.
fn publish(app: &App, n: usize) {
    let sql = format!("SELECT xdb.publish_global('jobs', '{n}', message_id => 'm{n}')");
    while app.db().try_run(&sql).is_err() {}
}

/// Checks that each message was taken by one of the processes, and that nothing is left.
fn all_taken(app: App, worker: Worker, ids: &[String]) {
    let mut taken: Vec<_> =
        ids.iter().map(|id| app.db().completes(id).result()[0].as_u64().expect("a message")).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..ids.len() as u64).collect::<Vec<_>>());
    assert_eq!(app.superuser().count("xdb.global_message"), 0);
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_that_gives_messages_out() {
    let (app, worker) = taking("turn-give-out");
    let ids: Vec<_> = (0..5).map(|n| format!("p{n}")).collect();
    for id in &ids {
        app.db().start(id, "take").go();
        waits(&app, id);
    }
    app.cluster().arm("turn-give-out");
    (0..5).for_each(|n| publish(&app, n));
    app.cluster().wait_for_crash("turn-give-out");
    all_taken(app, worker, &ids);
}

#[test]
fn in_a_turn_that_passes_over_a_locked_waiter() {
    let (app, worker) = taking("turn-pass-over");
    app.db().start("p", "take").go();
    waits(&app, "p");
    let mut holder = app.db();
    holder.run("BEGIN; SELECT xdb.stop_process('p')");
    app.cluster().arm("turn-pass-over");
    publish(&app, 0);
    app.cluster().wait_for_crash("turn-pass-over");
    // The stop went with the server.
    all_taken(app, worker, &["p".to_owned()]);
}

#[test]
fn in_a_turn_that_gives_a_message_back() {
    let (app, worker) = taking("turn-give-back");
    publish(&app, 0);
    app.db().start("h", "hold").timeout("10 s").go();
    let held = "xdb.global_message WHERE taken_by IS NOT NULL";
    wait_until("it is held", 10, || app.superuser().count(held) == 1);
    app.cluster().arm("turn-give-back");
    app.cluster().wait_for_crash("turn-give-back");
    assert_eq!(app.db().outcome("h").status(), "TIMEOUT");
    app.db().start("p", "take").go();
    all_taken(app, worker, &["p".to_owned()]);
}

#[test]
fn in_a_stop_that_gives_a_message_back() {
    let (app, worker) = taking("caller-give-back");
    publish(&app, 0);
    app.db().start("h", "hold").go();
    let held = "xdb.global_message WHERE taken_by IS NOT NULL";
    wait_until("it is held", 10, || app.superuser().count(held) == 1);
    app.db().start("p", "take").go();
    waits(&app, "p");
    app.crash_at("caller-give-back", || app.db().try_run("SELECT xdb.stop_process('h')"));
    assert_eq!((app.superuser().count(held), app.db().status("h")), (1, "RUNNING".to_owned()));
    app.db().run("SELECT xdb.stop_process('h')");
    all_taken(app, worker, &["p".to_owned()]);
}

#[test]
fn in_a_publish_for_all() {
    let (app, worker) = taking("publish-global");
    app.db().start("p", "take").go();
    waits(&app, "p");
    let sql = "SELECT xdb.publish_global('jobs', '0', message_id => 'm0')";
    app.crash_at("publish-global", || app.db().try_run(sql));
    let mut superuser = app.superuser();
    assert_eq!(superuser.count("xdb.global_message") + superuser.count("xdb.global_message_key"), 0);
    publish(&app, 0);
    all_taken(app, worker, &["p".to_owned()]);
}

// --- deleting old rows -----------------------------------------------------------------------------------------------

#[test]
fn while_expired_messages_are_deleted() {
    let (app, worker) = taking("expire");
    app.db().run("SELECT xdb.publish_global('jobs', '0', message_id => 'm0', ttl => '1 ms')");
    app.cluster().arm("expire");
    app.cluster().set("xdb.retention", "1");
    app.cluster().wait_for_crash("expire");
    let mut superuser = app.superuser();
    wait_until("message and id are deleted after all", 30, || {
        superuser.count("xdb.global_message") + superuser.count("xdb.global_message_key") == 0
    });
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn while_rows_are_deleted_that_an_execution_has_left() {
    let app = application("sweep");
    let worker = app.worker(add);
    app.register("add", &adding(json!({})));
    app.db().start("p", "add").key("k").globals(json!({"n": 0})).go();
    app.db().completes("p");
    // More than go at a time.
    app.superuser().run(
        "INSERT INTO xdb.local_attribute SELECT e.execution_id, 'k' || n, '1'
         FROM xdb.process_execution e, generate_series(1, 3500) n",
    );
    app.cluster().arm("sweep");
    app.cluster().set("xdb.retention", "1");
    app.cluster().wait_for_crash("sweep");
    let mut superuser = app.superuser();
    wait_until("all rows are deleted after all", 30, || {
        superuser.count("xdb.local_attribute") + superuser.count("xdb.purged") == 0
    });
    assert_eq!(superuser.count("xdb.process_execution"), 0);
    drop(worker);
    app.done(AFTER_A_CRASH);
}

// --- processes of the engine -----------------------------------------------------------------------------------------

/// The engine's processes end at a point of their start, and start again.
fn an_engine_starts(point: &str) {
    let app = application(point);
    let worker = app.worker(add);
    app.register("add", &adding(json!({})));
    app.db().start("before", "add").key("k").globals(json!({"n": 0})).go();
    app.db().completes("before");
    app.cluster().arm(point);
    let pid = app.scheduler();
    app.cluster().ask_to_end(&format!("pid = {pid}"));
    app.cluster().wait_for_crash(point);
    start(&app, "after", "add", "k");
    app.db().completes("after");
    wrote(&app, "k", 2);
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn between_finding_a_database_and_starting_its_scheduler() {
    an_engine_starts("launcher-found");
}

#[test]
fn between_starting_a_scheduler_and_taking_note_of_it() {
    an_engine_starts("launcher-started");
}

#[test]
fn when_a_scheduler_has_connected() {
    an_engine_starts("connected");
}

#[test]
fn between_a_turn_that_failed_and_its_parts() {
    let app = application("turn-again");
    app.db().run("ALTER TABLE counters ADD CHECK (n >= 0)");
    let worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => force_complete(json!(null)).globals(json!({"n": -1})),
        _ => force_complete(json!(null)).globals(json!({"n": 1})),
    });
    app.register("add", &adding(json!({})));
    app.db().run("INSERT INTO counters VALUES ('k', 0)");
    app.cluster().arm("turn-again");
    start(&app, "p", "add", "k");
    app.cluster().wait_for_crash("turn-again");
    app.db().completes("p");
    wrote(&app, "k", 1);
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_an_adoption() {
    let app = application("adopt");
    let worker = app.worker(add);
    app.register("add", &adding(json!({})));
    worker.misbehave(|call: &Call| Reply::hang(add(call)));
    app.db().start("p", "add").key("k").globals(json!({"n": 0})).go();
    worker.wait_for("the call", 10, |_| true);
    app.cluster().superuser().run(&format!("CREATE DATABASE copy_of TEMPLATE {}", app.database()));
    let copy = |role: &str| app.cluster().connect("copy_of", role);
    app.crash_at("adopt", || copy("boss").try_run("SELECT xdb.adopt()"));
    let reason = "SELECT reason IS NOT NULL FROM xdb.status()";
    assert!(copy("boss").one::<bool>(reason), "it is a copy still");
    assert_eq!(copy("postgres").count("xdb.instances"), 1);
    copy("boss").run("SELECT xdb.adopt()");
    assert!(!copy("boss").one::<bool>(reason));
    worker.heal();
    for mut db in [copy("app"), app.db()] {
        db.completes("p");
        assert_eq!(db.all::<i32>("SELECT n FROM audit"), [1]);
    }
    app.cluster().superuser().drop_database("copy_of", "WITH (FORCE)");
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_everything_that_changes_registrations() {
    let app = application("register");
    let worker = app.worker(add);
    app.register("add", &adding(json!({})));
    app.register("unused", &adding(json!({})));
    let registered = "SELECT string_agg(process_type, ' ' ORDER BY process_type) || ' ' ||
        (SELECT string_agg(name, ' ' ORDER BY name) FROM xdb.worker) FROM xdb.process_type";
    let spare = "SELECT xdb.register_worker('spare', 'http://127.0.0.1:1')";
    for (sql, after) in [
        (spare, "add unused spare stub"),
        ("SELECT xdb.unregister_process_type('unused')", "add spare stub"),
        ("SELECT xdb.unregister_worker('spare')", "add stub"),
    ] {
        let before: String = app.superuser().one(registered);
        app.crash_at("register", || app.superuser().try_run(sql));
        assert_eq!(app.superuser().one::<String>(registered), before, "{sql}");
        app.superuser().run(sql);
        assert_eq!(app.superuser().one::<String>(registered), after, "{sql}");
    }
    app.db().start("p", "add").key("k").globals(json!({"n": 0})).go();
    app.db().completes("p");
    wrote(&app, "k", 1);
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_the_end_of_a_pause() {
    let app = application("resume");
    let worker = app.worker(add);
    app.register("add", &adding(json!({})));
    app.pause();
    app.db().start("p", "add").key("k").globals(json!({"n": 0})).go();
    app.crash_at("pause", || app.superuser().try_run("SELECT xdb.resume_engine()"));
    assert!(app.superuser().one::<bool>("SELECT bool_and(paused) FROM xdb.engine"));
    app.superuser().run("SELECT xdb.resume_engine()");
    app.db().completes("p");
    wrote(&app, "k", 1);
    drop(worker);
    app.done(AFTER_A_CRASH);
}
