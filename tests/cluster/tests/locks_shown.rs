//! Calls that wait for locks on attributes: what views show of them, to which roles, and how many can wait.

use xdb_cluster_tests::prelude::*;

/// The most calls that wait in the engine's memory. Further calls stay unclaimed until there is a place.
const REMEMBERED: i64 = 10_000;

fn locking(lock: &str) -> Definition {
    let config = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}, "executeApiTimeoutSeconds": 300});
    Definition::starting_with("Add").step_with("Add", config).maps("public.counters", "id", &["n"])
}

/// `holder` holds the row `r` exclusively and is at its call. Processes of the type `wait`, which need the row under
/// `lock`, wait.
fn held(name: &str, lock: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.process_id() {
        "holder" => Reply::hang(force_complete(call.global("n").clone())),
        _ => force_complete(call.global("n").clone()).into(),
    });
    app.register("hold", &locking("EXCLUSIVE_LOCK"));
    app.register("wait", &locking(lock));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("holder", "hold").key("r").go();
    worker.wait_for("the holder's call", 10, |_| true);
    (app, worker)
}

/// Starts this many processes, in transactions of a thousand.
fn start_waiting(app: &App, count: i64) {
    let mut db = app.db();
    for first in (0..count).step_by(1000) {
        let last = count.min(first + 1000) - 1;
        db.run(&format!(
            "SELECT count(*) FROM xdb.start_processes((SELECT jsonb_agg(jsonb_build_object('process_id', 'w' || n,
                 'process_type', 'wait', 'global_attribute_pk', 'r')) FROM generate_series({first}, {last}) n))"
        ));
    }
}

#[test]
fn waiting_calls_are_shown_with_the_attributes_they_wait_for() {
    const WAITING: i64 = 300;
    let (app, worker) = held("locks_shown", "SHARE_LOCK");
    let mut db = app.db();
    assert_eq!(db.count("xdb.attribute_locks"), 0, "the holder waits for nothing");
    start_waiting(&app, WAITING);
    wait_until("all are shown", 30, || db.count("xdb.attribute_locks") == WAITING);
    let rows = db.rows(
        "SELECT DISTINCT waits_for, state_execution_id, due_at > now() - interval '5 minutes' AND due_at < now() AS due
         FROM xdb.attribute_locks",
    );
    let row = json!({"waits_for": "table public.counters key id = r", "state_execution_id": "Add-1", "due": true});
    assert_eq!(rows, vec![row]);
    let waits_for = |db: &mut Db, process: &str| {
        db.json(&format!("SELECT xdb.describe_process('{process}')->'threads'->0->'waitingForLocks'"))
    };
    assert_eq!(waits_for(&mut db, "w3"), "table public.counters key id = r");
    assert_eq!(waits_for(&mut db, "holder"), Value::Null);
    worker.release();
    for number in 0..WAITING {
        db.completes(&format!("w{number}"));
    }
    wait_until("nothing waits", 10, || db.count("xdb.attribute_locks") == 0);
    app.done(&[]);
}

#[test]
fn locks_are_shown_to_roles_that_may_see_the_process() {
    let (app, worker) = held("locks_shown_rights", "EXCLUSIVE_LOCK");
    start_waiting(&app, 2);
    let mut db = app.db();
    wait_until("all are shown", 20, || db.count("xdb.attribute_locks") == 2);
    assert_eq!(app.session("other").count("xdb.attribute_locks"), 0);
    let behind = "SELECT count(waits_for) FROM xdb.task";
    assert_eq!(app.session("other").one::<i64>(behind), 0, "and not behind the view");
    app.session("other").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT lease_number FROM xdb.task");
    assert_eq!(app.session("boss").count("xdb.attribute_locks"), 2);
    assert_eq!(app.superuser().count("xdb.attribute_locks"), 2);
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT FROM xdb.attribute_locks");
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, behind);
    worker.release();
    (0..2).for_each(|number| drop(db.completes(&format!("w{number}"))));
    app.done(&[]);
}

#[test]
fn a_call_without_a_place_in_memory_is_made_later() {
    const TOO_MANY: i64 = REMEMBERED + 50;
    let (app, worker) = held("locks_shown_many", "SHARE_LOCK");
    start_waiting(&app, TOO_MANY);
    let mut superuser = app.superuser();
    wait_until("all places are taken", 60, || superuser.count("xdb.attribute_locks") == REMEMBERED);
    let unclaimed = "xdb.task WHERE lease_epoch = 0";
    wait_until("the rest stays where it is", 10, || superuser.count(unclaimed) == TOO_MANY - REMEMBERED);
    // No other process is blocked.
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('s', 0)");
    db.start("other", "wait").key("s").go();
    db.completes("other");
    assert_eq!(worker.count(|call| call.process_id() != "holder" && call.process_id() != "other"), 0);
    worker.release();
    db.completes("holder");
    wait_until("all have completed", 80, || views::with_status(&mut superuser, "w%", "COMPLETED") == TOO_MANY);
    assert_eq!(worker.count(|call| call.attempt() > 1), 0, "to wait is no attempt");
    wait_until("nothing waits", 10, || superuser.count("xdb.attribute_locks") == 0);
    app.done(&[]);
}
