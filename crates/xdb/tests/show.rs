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
        ("retrying" | "spent" | HOSTILE, ..) => error(503, "BankDown", "maintenance \u{9b}31m"),
        ("compensating", _, "Pay") => next("Ship", json!(null)).into(),
        ("compensating", ..) => compensate(json!("out of stock")).into(),
        ("parent", ..) => {
            let child = json!({"processType": "mailbox", "processId": "child"});
            next("Wait", json!(null)).starting(json!([child])).into()
        }
        ("no-thread", ..) => dead_end().into(),
        ("held-up", ..) => next("Wait", json!(null)).globals(json!({"n": 1})).into(),
        ("failed", ..) => force_fail(json!("no money")).into(),
        _ => force_complete(json!("done")).into(),
    }
}

fn register(app: &App) {
    let slowly = json!({"initialIntervalSeconds": 1000, "maximumIntervalSeconds": 1000});
    let locking = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}, "executeApiTimeoutSeconds": 300});
    let spent =
        json!({"executeApiRetryPolicy": attempts(2), "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    let pays = Definition::starting_with("Pay")
        .step_with("Pay", json!({"executeApiTimeoutSeconds": 300, "executeApiRetryPolicy": slowly}));
    app.register("payment", &pays);
    app.register("paused-payment", &pays);
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
        .step("Free");
    app.register("saga", &saga);
    app.register("parent", &Definition::starting_with("Begin").step("Begin").waiting_step("Wait"));
    let recall = json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"commandId": "m", "queueName": "recall"}]}});
    let guarded = Definition::starting_with("Ship")
        .step_with("Ship", json!({"guards": ["Recall"]}))
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
    let app = App::alone("show", ClusterOptions::default());
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
        ("guarded", "It waits for"),
        ("pulled", "no session of the pull worker"),
        ("no-thread", "No thread is left"),
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
    note(shown(&app, "closing", "The process closes when"));
    other.run("ROLLBACK");

    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE leaver LOGIN; SELECT xdb.grant_usage('leaver'); GRANT leaver TO app");
    app.session("leaver").start("left", "mailbox").go();
    shown(&app, "left", "It waits for");
    superuser.run("ALTER ROLE leaver SUPERUSER");
    note(shown(&app, "left", "can't run as its owner"));

    app.pause();
    db.start("unmade", "payment").go();
    note(shown(&app, "unmade", "The engine of this database is paused"));
    app.resume();
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
