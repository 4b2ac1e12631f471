//! `xdb show`, with processes of a real server.

mod common;

use common::{digits, is_golden, normal, program, run, with_long_numbers, xdb};
use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::prelude::*;

/// A name that a careless program would let a terminal obey.
const HOSTILE: &str = "p\u{1b}[2J\u{202e}\"><script>alert(1)</script>";

/// What the worker answers, by process and state.
fn answers(call: &Call) -> Reply {
    match (call.process_id(), call.api, call.target()) {
        ("waiting", Api::WaitUntil, _) => {
            let box_of_two = local_queue("box", "box", 2);
            any_of(&[box_of_two, global_queue("jobs", "jobs", 1), timer("late", 90_000.0)]).into()
        }
        (_, Api::WaitUntil, _) => any_of(&[local_queue("m", "box", 1)]).into(),
        (_, _, "Free") | ("calling" | "holder" | "guarded", ..) => Reply::hang(dead_end()),
        ("retrying" | "spent" | "held" | HOSTILE, ..) => error(503, "BankDown", "maintenance \u{9b}31m"),
        ("compensating", _, "Pay") => next("Ship", json!(null)).into(),
        ("compensating", ..) => compensate(json!("out of stock")).into(),
        ("parent", ..) => {
            let child = json!({"processType": "mailbox", "processId": "child"});
            next("Wait", json!(null)).starting(json!([child])).into()
        }
        ("no-thread", ..) => dead_end().into(),
        (_, _, "Split") => next_all(&[("End", json!(null)), ("Wait", json!(null))]).into(),
        (_, _, "End") => graceful_complete(json!("done")).into(),
        ("held-up", ..) => next("Wait", json!(null)).globals(json!({"n": 1})).into(),
        ("failed", ..) => force_fail(json!("no money")).into(),
        _ => force_complete(json!("done")).into(),
    }
}

/// One step. A failed attempt is followed by the next one after a quarter of an hour.
fn pays() -> Definition {
    let slowly = json!({"initialIntervalSeconds": 1000, "maximumIntervalSeconds": 1000});
    Definition::starting_with("Pay")
        .step_with("Pay", json!({"executeApiTimeoutSeconds": 300, "executeApiRetryPolicy": slowly}))
}

fn register(app: &App) {
    let locking = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}, "executeApiTimeoutSeconds": 300});
    let spent =
        json!({"executeApiRetryPolicy": attempts(2), "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    app.register("payment", &pays());
    app.register("paused-payment", &pays());
    app.register("splitting", &Definition::starting_with("Split").step("Split").step("End").waiting_step("Wait"));
    app.register("lost", &Definition::starting_with("Wait").waiting_step("Wait"));
    app.register("spending", &Definition::starting_with("Pay").step_with("Pay", spent));
    app.register("mailbox", &Definition::starting_with("Wait").waiting_step("Wait"));
    app.register(
        "locking",
        &Definition::starting_with("Add").step_with("Add", locking).maps("public.counters", "id", &["n"]),
    );
    let writes = Definition::starting_with("Wait").waiting_step("Wait").maps("public.counters", "id", &["n"]);
    app.register("writing", &writes);
    let saga = Definition::starting_with("Pay")
        .step_with("Pay", json!({"compensationStateId": "Free"}))
        .step("Ship")
        .step_with("Free", json!({"executeApiTimeoutSeconds": 300}));
    app.register("saga", &saga);
    app.register("parent", &Definition::starting_with("Begin").step("Begin").waiting_step("Wait"));
    let recall = json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"commandId": "m", "queueName": "recall"}]}});
    let guarded = Definition::starting_with("Ship")
        .step_with("Ship", json!({"guards": ["Recall"], "executeApiTimeoutSeconds": 300}))
        .waiting_step_with("Recall", recall);
    app.register("guarded", &guarded);
    // A role sees of a worker of its own that it is a pull worker.
    app.superuser().run("SELECT xdb.grant_usage('app', deployer => true)");
    app.db().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
}

/// Brings a process into each situation that needs no other session.
fn start(app: &App, db: &mut Db) {
    db.run("INSERT INTO counters VALUES ('r', 0)");
    for (id, process_type) in [
        ("calling", "payment"),
        ("retrying", "payment"),
        (HOSTILE, "payment"),
        ("spent", "spending"),
        ("waiting", "mailbox"),
        ("closing", "mailbox"),
        ("compensating", "saga"),
        ("parent", "parent"),
        ("guarded", "guarded"),
        ("pulled", "pulled"),
        ("no-thread", "payment"),
        ("held", "payment"),
        ("completing", "splitting"),
        ("lost", "lost"),
        ("completed", "payment"),
        ("failed", "payment"),
        ("stopped", "mailbox"),
    ] {
        db.start(id, process_type).go();
    }
    db.run("SELECT xdb.start_process('later', 'payment', start_at => now() + interval '90000 s')");
    db.run("SELECT xdb.start_process('timed-out', 'mailbox', timeout => '1 s')");
    db.start("holder", "locking").key("r").go();
    wait_until("the holder is called", 20, || {
        !db.json("SELECT xdb.describe_process('holder') #> '{threads,0,callUntil}'").is_null()
    });
    db.start("attribute-locks", "locking").key("r").go();
    let locks =
        |id: &str| format!("SELECT xdb.start_process('{id}', 'mailbox', options => '{{\"locks\": [\"account-1\"]}}')");
    db.run(&locks("has-lock"));
    wait_until("it holds the lock", 20, || db.count("xdb.locks WHERE granted") == 1);
    db.run(&locks("waits-for-lock"));
    db.run("BEGIN; SELECT xdb.start_process('paused', 'payment'), xdb.pause_process('paused', reason => 'bank holiday'); COMMIT");
    app.superuser().run("SELECT xdb.pause_process_type('paused-payment', until => now() + interval '90000 s')");
    db.start("type-paused", "paused-payment").go();
    db.run("SELECT xdb.stop_process('stopped', reason => 'enough')");
}

/// Starts processes whose due calls are not made, for one reason each. Returns the workers.
fn start_unmade(app: &App, db: &mut Db) -> [Worker; 2] {
    // The only place is taken.
    let narrow = app.worker_named("narrow", |_: &Call| Reply::hang(dead_end()));
    let mut superuser = app.superuser();
    superuser.run(&format!("SELECT xdb.register_worker('narrow', {}, max_concurrency => 1)", literal(&narrow.url())));
    app.register_with("narrow", "queuing", &pays());
    db.start("busy", "queuing").go();
    narrow.wait_for("the first call", 20, |call| call.process_id() == "busy");
    db.start("due", "queuing").go();

    // The engine tests the worker with calls that came due before.
    let dead = app.worker_named("dead", |_: &Call| dead_end());
    app.register_with("dead", "stuck", &pays());
    dead.go_away();
    db.run("SELECT count(xdb.start_process('stuck-' || n, 'stuck')) FROM generate_series(1, 300) n");
    wait_until("the breaker is open", 20, || {
        superuser.count("xdb.workers WHERE name = 'dead' AND breaker <> 'closed'") == 1
    });
    db.start("unreachable", "stuck").go();

    // The only runner is busy.
    db.run(
        "CREATE TABLE slow (id text PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO slow VALUES ('slow-table');
         CREATE TABLE gate (); INSERT INTO gate DEFAULT VALUES;
         CREATE FUNCTION waits(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
             WHILE EXISTS (SELECT FROM public.gate) LOOP PERFORM pg_sleep(0.05); END LOOP;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$",
    );
    app.make_slow("app", "public.slow", "id", json!({"n": 0}));
    app.register("slow-table", &one_step().maps("public.slow", "id", &["n"]));
    let waits = json!({"executeFunction": "public.waits", "executeApiTimeoutSeconds": 600});
    app.register("waits", &Definition::starting_with("Only").step_with("Only", waits));
    db.start("function", "waits").go();
    let asleep = "pg_stat_activity WHERE backend_type = 'xdb runner' AND wait_event = 'PgSleep'";
    wait_until("the runner is busy", 30, || superuser.count(asleep) == 1);
    db.start("no-runner", "waits").go();
    db.start("slow-table", "slow-table").key("slow-table").go();
    [narrow, dead]
}

/// Waits until `xdb show` says this about a process. Returns the whole text.
fn shown(app: &App, id: &str, says: &str) -> String {
    let mut text = String::new();
    wait_until(&format!("xdb show {id} says {says:?}"), 30, || {
        let printed = xdb(app, "app", &["show", id]);
        assert_eq!(printed.code, 0, "{}", printed.err);
        text = printed.out;
        text.contains(says)
    });
    text
}

#[test]
fn each_process_is_explained() {
    let app = App::alone("show", ClusterOptions::default().set("xdb.runners", "1"));
    let worker = app.worker(answers);
    register(&app);
    let mut db = app.db();
    start(&app, &mut db);
    let mut golden = String::new();
    let mut note = |text: String| golden.push_str(&format!("{}\n", normal(&text)));
    for (id, says) in [
        ("calling", "handles the execute call"),
        ("retrying", "again in"),
        (HOSTILE, "again in"),
        ("spent", "Its retries are spent"),
        ("waiting", "It waits for"),
        ("later", "planned for later"),
        ("attribute-locks", "waits for locks on attributes"),
        ("waits-for-lock", "waits for the lock"),
        ("paused", "the process is paused"),
        ("type-paused", "is paused; the pause ends"),
        ("compensating", "undoing its completed steps"),
        ("parent", "child process runs"),
        ("child", "Child of"),
        ("guarded", "It is a guard"),
        ("pulled", "no session of the pull worker"),
        ("no-thread", "No thread is left"),
        ("completing", "when its last thread ends"),
        ("completed", "completed"),
        ("failed", "The process failed"),
        ("stopped", "was stopped"),
        ("timed-out", "reached its timeout"),
    ] {
        note(shown(&app, id, says));
    }

    // With other sessions.
    db.start("held-up", "writing").key("held-up").globals(json!({"n": 0})).go();
    shown(&app, "held-up", "It waits for");
    let mut other = app.db();
    other.run("BEGIN; UPDATE counters SET n = 5 WHERE id = 'held-up'");
    db.publish("held-up", "box", json!(1));
    note(shown(&app, "held-up", "Another session has locked"));
    other.run("ROLLBACK");

    shown(&app, "closing", "It waits for");
    other.run("BEGIN; SELECT xdb.publish('closing', 'late', '1')");
    db.publish("closing", "box", json!(1));
    note(shown(&app, "closing", "has locked the process itself"));
    other.run("ROLLBACK");

    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE leaver LOGIN; SELECT xdb.grant_usage('leaver'); GRANT leaver TO app");
    app.session("leaver").start("left", "mailbox").go();
    shown(&app, "left", "It waits for");
    superuser.run("ALTER ROLE leaver SUPERUSER");
    note(shown(&app, "left", "can't run as its owner"));

    // As after three crashes during this call.
    shown(&app, "held", "again in");
    superuser.run(
        "UPDATE xdb.task t SET lane = 3, crashes = 3 FROM xdb.process_execution p
         WHERE p.execution_id = t.execution_id AND p.process_id = 'held'",
    );
    note(shown(&app, "held", "The server crashed three times"));

    // As a restore leaves it that has lost a type.
    shown(&app, "lost", "It waits for");
    superuser.run(
        "DELETE FROM xdb.process_type WHERE process_type = 'lost'; UPDATE xdb.registry SET generation = generation + 1",
    );
    db.publish("lost", "box", json!(1));
    note(shown(&app, "lost", "is not made: the process type"));

    let _workers = start_unmade(&app, &mut db);
    for (id, says) in [
        ("due", "was not made yet"),
        ("unreachable", "could not be reached"),
        ("no-runner", "none makes it"),
        ("slow-table", "a table of the process is slow"),
    ] {
        note(shown(&app, id, says));
    }
    db.run("DELETE FROM gate");
    db.completes("no-runner");

    app.pause();
    db.start("unmade", "payment").go();
    note(shown(&app, "unmade", "The engine of this database is paused"));
    app.resume();

    // A copy of the database. No session may be in the original.
    drop((db, other, superuser));
    app.cluster().superuser().run("CREATE DATABASE show_copy TEMPLATE show");
    let mut copy = app.cluster().connect("show_copy", "app");
    wait_until("the copy waits", 30, || copy.text("SELECT state FROM xdb.status()") == "waiting for adopt");
    let mut command = program(app.cluster(), "show_copy", "app");
    command.args(["show", "due"]);
    note(run(command).out);
    is_golden("show.txt", &golden);
    worker.release();
}

#[test]
fn programs_get_json_and_exit_codes() {
    let app = App::alone("show_codes", ClusterOptions::default());
    let _worker = app.worker(answers);
    register(&app);
    let mut db = app.db();
    let first = db.start("waiting", "mailbox").go();
    shown(&app, "waiting", "It waits for");
    db.run("SELECT xdb.stop_process('waiting')");
    db.start("waiting", "mailbox").go();
    shown(&app, "waiting", "It waits for");

    let printed = xdb(&app, "app", &["show", "waiting", "--json"]);
    assert_eq!((printed.code, &*printed.err), (0, ""));
    let document: Value = serde_json::from_str(&printed.out).expect("it is JSON");
    let sentence = &document["sentences"][0];
    assert_eq!(
        (&sentence["stateExecutionId"], &sentence["why"]),
        (&json!("Wait-1"), &json!("WAITING")),
        "{document:#}"
    );
    assert_eq!(document["process"]["processId"], "waiting");
    assert_eq!(document["engine"], Value::Null, "{document:#}");

    let earlier = xdb(&app, "app", &["show", "waiting", "--execution", &first]);
    assert_eq!(earlier.code, 0, "{}", earlier.err);
    assert!(earlier.out.contains("The process was stopped"), "{}", earlier.out);

    let missing = xdb(&app, "app", &["show", "nothing"]);
    assert_eq!((missing.code, &*missing.out), (1, ""));
    assert_eq!(missing.err, "xdb: unknown process \"nothing\"\n");
    assert_eq!(xdb(&app, "other", &["show", "waiting"]).code, 1, "to another role it does not exist");
    assert_eq!(xdb(&app, "app", &["show"]).code, 2);
    assert_eq!(xdb(&app, "app", &["show", "waiting", "--execution", "x"]).code, 2);
    assert_eq!(xdb(&app, "nobody", &["show", "waiting"]).code, 2);

    let mut elsewhere = program(app.cluster(), "postgres", "app");
    elsewhere.args(["show", "waiting"]);
    let elsewhere = run(elsewhere);
    assert_eq!(elsewhere.code, 2);
    assert_eq!(
        elsewhere.err,
        "xdb: the database \"postgres\" does not have the extension xdb\nHINT: Choose another database, or run CREATE EXTENSION xdb.\n"
    );
    let nowhere = xdb(&app, "app", &["show", "waiting", "-h", "/nowhere"]);
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.err.starts_with("xdb: error connecting to server"), "{}", nowhere.err);
    assert!(nowhere.err.contains("Does the server run at "), "{}", nowhere.err);
    let stranger = xdb(&app, "stranger", &["show", "waiting"]);
    assert_eq!(stranger.code, 2);
    assert_eq!(
        stranger.err,
        "xdb: permission denied for schema xdb\n\
         HINT: If the role may not use XDB yet, run SELECT xdb.grant_usage('stranger'), as a superuser.\n"
    );
    app.done(&["role \"nobody\" does not exist"]);
}

#[test]
fn no_digit_of_a_result_is_lost() {
    let (app, _worker) = with_long_numbers("show_numbers");
    for id in ["40", "400"] {
        let text = xdb(&app, "app", &["show", id]);
        assert!(text.code == 0 && text.out.contains("It waits for a message"), "{}{}", text.out, text.err);
        let printed = xdb(&app, "app", &["show", id, "--json"]);
        assert_eq!((printed.code, &*printed.err), (0, ""));
        assert!(printed.out.contains(&format!(r#""output": {}, "#, digits(id))), "{}", printed.out);
        assert!(printed.out.contains(r#""why":"WAITING""#), "{}", printed.out);
    }
}

#[test]
fn a_service_file_names_the_server() {
    let app = App::new("show_service");
    let _worker = app.worker(answers);
    register(&app);
    app.db().start("waiting", "mailbox").go();
    let path = std::env::temp_dir().join(format!("xdb-show-{}", std::process::id()));
    let host = app.cluster().socket_directory();
    let content = format!("[shop]\nhost={}\nport=5432\nuser=app\ndbname={}\n", host.display(), app.database());
    std::fs::write(&path, content).expect("a file");
    let mut command = program(app.cluster(), "nothing", "nobody");
    for name in ["PGHOST", "PGPORT", "PGDATABASE", "PGUSER"] {
        command.env_remove(name);
    }
    command.env("PGSERVICE", "shop").env("PGSERVICEFILE", &path).args(["show", "waiting"]);
    let printed = run(command);
    std::fs::remove_file(&path).expect("our file");
    assert_eq!(printed.code, 0, "{}", printed.err);
    // Every role is an ordinary one here: the program shows no more than the role may see.
    assert_eq!(app.session("other").count(&format!("xdb.processes WHERE process_id = {}", literal("waiting"))), 0);
    app.done(&[]);
}
