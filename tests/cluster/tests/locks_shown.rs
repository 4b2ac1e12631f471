//! Who has locks on attributes and who waits for them: what is shown, to whom, and how many can wait.

use xdb_cluster_tests::prelude::*;

/// What is shown of one database.
const SHOWN: i64 = 256;

/// Calls that wait in the engine's memory; further ones stay where they are until there is a place.
const REMEMBERED: i64 = 10_000;

fn locking(lock: &str) -> Definition {
    let config = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}, "executeApiTimeoutSeconds": 300});
    Definition::starting_with("Add").step_with("Add", config).maps("public.counters", "id", &["n"])
}

/// `holder` has the row `r` alone, and is at its call. Who wants it under `lock`, of the type `wait`, waits.
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

/// Starts the processes of these numbers, in transactions of a thousand.
fn start_waiting(app: &App, from: i64, to: i64) {
    let mut db = app.db();
    for first in (from..to).step_by(1000) {
        let last = to.min(first + 1000) - 1;
        db.run(&format!(
            "SELECT count(*) FROM xdb.start_processes((SELECT jsonb_agg(jsonb_build_object('process_id', 'w' || n,
                 'process_type', 'wait', 'global_attribute_pk', 'r')) FROM generate_series({first}, {last}) n))"
        ));
    }
}

fn not_shown(app: &App) -> i64 {
    app.superuser().one("SELECT lock_waits_not_shown FROM xdb.status()")
}

#[test]
fn who_waits_is_shown_first_and_the_rest_is_counted() {
    const WAITING: i64 = 300;
    let (app, worker) = held("locks_shown_bound", "SHARE_LOCK");
    let mut db = app.db();
    assert_eq!(db.count("xdb.attribute_locks WHERE granted AND process_id = 'holder'"), 1);
    start_waiting(&app, 0, 10);
    wait_until("all are shown", 20, || db.count("xdb.attribute_locks") == 11);
    assert_eq!(not_shown(&app), 0);
    let rows = db.rows(
        "SELECT DISTINCT l.locked, l.lock_type, l.granted, l.object = h.object AS same, l.state_execution_id,
             l.due_at > now() - interval '5 minutes' AND l.due_at < now() AS due, l.ticket > h.ticket AS later
         FROM xdb.attribute_locks l, xdb.attribute_locks h WHERE l.process_id <> 'holder' AND h.process_id = 'holder'",
    );
    let row = json!({"locked": "table public.counters key id = r", "lock_type": "SHARE_LOCK", "granted": false,
                     "same": true, "state_execution_id": "Add-1", "due": true, "later": true});
    assert_eq!(rows, vec![row]);
    let of_one = db.json("SELECT xdb.describe_process('w3')->'threads'->0->'waitingForLocks'");
    assert_eq!(of_one, json!(["table public.counters key id = r"]));

    start_waiting(&app, 10, WAITING);
    wait_until("the rest is counted", 30, || not_shown(&app) == WAITING - SHOWN);
    assert_eq!(db.count("xdb.attribute_locks WHERE NOT granted"), SHOWN);
    worker.release();
    for number in 0..WAITING {
        db.completes(&format!("w{number}"));
    }
    wait_until("nothing is shown", 10, || db.count("xdb.attribute_locks") == 0 && not_shown(&app) == 0);
    app.done(&[]);
}

#[test]
fn locks_are_shown_to_whoever_may_see_the_process() {
    let (app, worker) = held("locks_shown_rights", "EXCLUSIVE_LOCK");
    start_waiting(&app, 0, 2);
    let mut db = app.db();
    wait_until("all are shown", 20, || db.count("xdb.attribute_locks") == 3);
    assert_eq!(app.session("other").count("xdb.attribute_locks"), 0);
    assert_eq!(app.session("other").json("SELECT xdb.attribute_lock_figures()"), json!([]), "and not behind the view");
    assert_eq!(app.session("boss").count("xdb.attribute_locks"), 3);
    assert_eq!(app.superuser().count("xdb.attribute_locks"), 3);
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT FROM xdb.attribute_locks");
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.attribute_lock_figures()");
    // Of another database nothing is seen.
    let next = App::new("locks_shown_next");
    assert_eq!((next.superuser().count("xdb.attribute_locks"), not_shown(&next)), (0, 0));
    next.done(&[]);
    worker.release();
    (0..2).for_each(|number| drop(db.completes(&format!("w{number}"))));
    app.done(&[]);
}

#[test]
fn what_is_shown_is_of_one_moment() {
    const PROCESSES: usize = 200;
    let app = App::new("locks_shown_moment");
    let worker = app.worker(|call: &Call| force_complete(call.global("n").clone()));
    app.register("wait", &locking("EXCLUSIVE_LOCK"));
    app.db().run("INSERT INTO counters VALUES ('r', 0)");
    let done = || worker.count(|_| true) == PROCESSES;
    let looked = at_once(3, |number| {
        if number == 0 {
            start_waiting(&app, 0, PROCESSES as i64);
        }
        let (mut db, mut looked) = (app.db(), 0);
        let until = Instant::now() + Duration::from_secs(60);
        while !done() && Instant::now() < until {
            let rows = db.json("SELECT xdb.attribute_lock_figures()");
            let rows = rows.as_array().expect("an array");
            looked += usize::from(!rows.is_empty());
            let granted = rows.iter().filter(|row| row["granted"] == true).count();
            assert!(granted <= 1, "a row that one alone can have: {rows:?}");
            let torn =
                rows.iter().find(|row| row["locked"] != "table public.counters key id = r" || row["mode"] != "X");
            assert_eq!(torn, None);
            let calls: std::collections::BTreeSet<_> = rows.iter().map(|row| row["execution_id"].to_string()).collect();
            assert_eq!(calls.len(), rows.len(), "each call once");
        }
        looked
    });
    assert!(done() && looked.iter().any(|looked| *looked > 0), "{looked:?}");
    let mut db = app.db();
    (0..PROCESSES).for_each(|number| drop(db.completes(&format!("w{number}"))));
    app.done(&[]);
}

#[test]
fn who_finds_no_place_in_memory_is_called_later() {
    const TOO_MANY: i64 = REMEMBERED + 50;
    let (app, worker) = held("locks_shown_many", "SHARE_LOCK");
    start_waiting(&app, 0, TOO_MANY);
    let mut superuser = app.superuser();
    wait_until("all places are taken", 60, || not_shown(&app) == REMEMBERED - SHOWN);
    let unclaimed = "xdb.task WHERE lease_epoch = 0";
    wait_until("the rest stays where it is", 10, || superuser.count(unclaimed) == TOO_MANY - REMEMBERED);
    // Nobody else is held up.
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('s', 0)");
    db.start("other", "wait").key("s").go();
    db.completes("other");
    assert_eq!(worker.count(|call| call.process_id() != "holder" && call.process_id() != "other"), 0);
    worker.release();
    db.completes("holder");
    wait_until("all have completed", 80, || views::with_status(&mut superuser, "w%", "COMPLETED") == TOO_MANY);
    assert_eq!(worker.count(|call| call.attempt() > 1), 0, "to wait is no attempt");
    wait_until("nothing is shown", 10, || superuser.count("xdb.attribute_locks") == 0 && not_shown(&app) == 0);
    app.done(&[]);
}
