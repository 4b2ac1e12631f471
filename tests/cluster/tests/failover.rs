//! Another server takes over: a promoted standby, and a recovery to a moment in the past.

use xdb_cluster_tests::prelude::*;

/// Counts in the application's row, waits for a message or an hour, and ends. `Slow` hangs in its call until it is
/// released.
fn application(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(name, options);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[timer("t", 3600.0), local_queue("m", "inbox", 1)]).into(),
        (_, "Wait") => graceful_complete(json!(call.messages("m"))).into(),
        (_, "Slow") => Reply::hang(graceful_complete(json!("slow")).globals(json!({"n": n(call) + 1}))),
        _ if n(call) < 3 => Reply::from(next("Count", json!(null)).globals(json!({"n": n(call) + 1}))),
        _ => next("Wait", json!(null)).into(),
    });
    let long = json!({"executeApiTimeoutSeconds": 120});
    for (process_type, definition) in [
        ("counting", Definition::starting_with("Count").step("Count").waiting_step("Wait")),
        ("slow", Definition::starting_with("Slow").step_with("Slow", long)),
    ] {
        app.register(process_type, &definition.maps("public.counters", "id", &["n"]));
    }
    (app, worker)
}

fn n(call: &Call) -> u64 {
    call.global("n").as_u64().unwrap_or_default()
}

fn start(db: &mut Db, process_type: &str, ids: &[String]) {
    for id in ids {
        db.start(id, process_type).key(id).globals(json!({"n": 0})).go();
    }
}

fn ids(kind: &str) -> Vec<String> {
    (0..10).map(|number| format!("{kind}{number}")).collect()
}

fn waiting(db: &mut Db) -> i64 {
    db.count("xdb.state_executions WHERE status = 'WAITING'")
}

/// Checks that all rows agree with the histories of their processes.
fn rows_agree(db: &mut Db) {
    let wrong: Vec<String> = db.all(
        "SELECT format('%s: %s in the row, %s in the history', c.id, c.n, h.n) FROM counters c LEFT JOIN LATERAL (
             SELECT (h.details -> 'attributes' ->> 'n')::int AS n FROM xdb.history h
             WHERE h.process_id = c.id AND h.event_type = 'GlobalAttributesWritten' ORDER BY h.event_id DESC LIMIT 1
         ) h ON true WHERE c.n IS DISTINCT FROM h.n",
    );
    assert_eq!(wrong, Vec::<String>::new());
    let problems: Vec<String> = db.all(
        "SELECT format('%s: %s', p.process_id, c.problem)
         FROM xdb.processes p, xdb.check_process(p.process_id, p.execution_id) c",
    );
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn a_promoted_standby_finishes_the_work_and_late_answers_change_nothing() {
    let (app, worker) = application("failover", ClusterOptions::default());
    let standby = app.cluster().standby();
    let mut db = app.db();
    start(&mut db, "counting", &ids("c"));
    start(&mut db, "slow", &ids("s"));
    worker.wait_for_count("the slow calls are under way", 20, 10, |call| call.target() == "Slow");
    wait_until("the other processes wait", 20, || waiting(&mut db) == 10);
    let position: String = db.one("SELECT pg_current_wal_flush_lsn()::text");
    let mut there = standby.superuser();
    wait_until("the standby has all of it", 20, || {
        there.one(&format!("SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"))
    });
    // The connections of the old primary's engine stay open as long as the worker thinks about its answers: the
    // answers come to a server that has crashed.
    app.cluster().crash();
    there.run("SELECT pg_promote()");
    standby.scheduler(app.database());
    worker.wait_for_count("the slow calls are made again", 30, 20, |call| call.target() == "Slow");
    // A standby that is promoted has had none in hand.
    assert_eq!(standby.connect(app.database(), "postgres").count("xdb.task WHERE crashes > 0"), 0);
    worker.release();
    let mut db = standby.connect(app.database(), "app");
    for id in ids("c") {
        db.publish(&id, "inbox", json!("after"));
        assert_eq!(db.completes(&id).result(), &json!(["after"]));
    }
    for id in ids("s") {
        assert_eq!(db.completes(&id).result(), "slow");
        let calls = worker.calls();
        let calls: Vec<_> = calls.iter().filter(|call| call.process_id() == id).collect();
        assert_eq!(calls.len(), 2);
        assert_eq!(calls[0].call_id(), calls[1].call_id());
        assert_eq!(calls[0].idempotency_key(), calls[1].idempotency_key());
    }
    assert_eq!(db.count("counters WHERE n = 3 AND id LIKE 'c%'"), 10);
    assert_eq!(db.count("counters WHERE n = 1 AND id LIKE 's%'"), 10);
    rows_agree(&mut standby.connect(app.database(), "postgres"));
    let lost_primary =
        ["could not receive data from WAL stream", "could not connect to the primary server", "could not send"];
    assert_eq!(standby.unexplained_errors(&lost_primary), Vec::<String>::new());
}

/// Locks of processes, guards, schedules, and a parent whose children are about to end.
#[test]
fn a_promoted_standby_grants_locks_triggers_guards_and_ends_children() {
    let app = App::alone("failover_together", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.target() {
        "Begin" => next("Join", json!(null)).starting(json!([{"processType": "rests", "processId": "child"},
            {"processType": "rests", "processId": "heir", "whenParentCloses": "LEAVE"}])),
        target => force_complete(json!(target)),
    });
    let waits = |queue: &str| {
        json!({"commandRequest": {"waitingType": "AnyOfCompletion",
            "localQueueCommands": [{"commandId": "m", "queueName": queue}]}})
    };
    let rests = Definition::starting_with("Rest").waiting_step_with("Rest", waits("go"));
    app.register(
        "rests",
        &rests.clone().waiting_step_with("Recall", waits("recall")).with("guards", json!(["Recall"])),
    );
    app.register("parent", &Definition::starting_with("Begin").step("Begin").waiting_step_with("Join", waits("go")));
    let standby = app.cluster().standby();
    let mut db = app.db();
    for id in ["a", "b", "c"] {
        db.start(id, "rests").options(json!({"locks": ["name"]})).go();
        wait_until("a has the lock", 20, || db.count("xdb.locks WHERE granted") == 1);
    }
    db.start("p", "parent").go();
    wait_until("all wait", 20, || waiting(&mut db) == 11);
    // The engine does not see the ends of the holder and of the parent any more.
    app.pause();
    db.run("SELECT xdb.stop_process('a'); SELECT xdb.stop_process('p'); SELECT xdb.publish('heir', 'recall', '1')");
    let position: String = db.one("SELECT pg_current_wal_flush_lsn()::text");
    let mut there = standby.superuser();
    wait_until("the standby has all of it", 20, || {
        there.one(&format!("SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"))
    });
    app.cluster().crash();
    there.run("SELECT pg_promote()");
    standby.scheduler(app.database());
    let mut boss = standby.connect(app.database(), "postgres");
    boss.run("SELECT xdb.resume_engine()");
    let mut db = standby.connect(app.database(), "app");
    wait_until("b has the lock", 20, || db.count("xdb.locks WHERE granted AND process_id = 'b'") == 1);
    assert_eq!(db.count("xdb.locks"), 2);
    assert_eq!(db.completes("heir").result(), "Recall");
    wait_until("the child has ended", 20, || db.status("child") == "TERMINATED");
    for id in ["b", "c"] {
        db.publish(id, "go", json!(1));
        assert_eq!(db.completes(id).result(), "Rest");
    }
    wait_until("no lock is left", 20, || boss.count("xdb.process_lock") == 0);
    let problems: Vec<String> = boss.all(
        "SELECT format('%s: %s', p.process_id, c.problem)
         FROM xdb.processes p, xdb.check_process(p.process_id, p.execution_id) c",
    );
    assert_eq!(problems, Vec::<String>::new());
    drop(worker);
}

#[test]
fn a_recovery_to_a_moment_brings_rows_and_processes_back_together() {
    let archive = std::env::temp_dir().join(format!("xdb-test-archive-{}", std::process::id()));
    let (app, worker) = application("recovered", Cluster::archiving(&archive));
    let mut db = app.db();
    let mut superuser = app.superuser();
    let backup = app.cluster().base_backup();
    start(&mut db, "counting", &ids("before"));
    start(&mut db, "slow", &ids("s"));
    worker.wait_for_count("the slow calls are under way", 20, 10, |call| call.target() == "Slow");
    // Somewhere in the middle of it.
    start(&mut db, "counting", &ids("during"));
    superuser.run("SELECT pg_create_restore_point('there')");
    wait_until("all wait", 20, || waiting(&mut db) == 20);
    start(&mut db, "counting", &ids("after"));
    for id in ids("before") {
        db.publish(&id, "inbox", json!("afterwards"));
        db.completes(&id);
    }
    let segment: String = superuser.one("SELECT pg_walfile_name(pg_switch_wal())");
    wait_until("the WAL is archived", 30, || {
        superuser
            .one(&format!("SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver WHERE archived_count > 0"))
    });
    app.cluster().crash();
    let recovered = Cluster::recover(&backup, &archive, "there");
    let mut db = recovered.connect(app.database(), "app");
    assert_eq!(db.count("xdb.processes WHERE process_id LIKE 'after%'"), 0);
    assert_eq!(db.count("counters WHERE id LIKE 'after%'"), 0);
    assert_eq!(db.count("xdb.processes WHERE status = 'RUNNING'"), 30);
    wait_until("all wait again", 30, || waiting(&mut db) == 20);
    worker.wait_for_count("the slow calls are made again", 30, 20, |call| call.target() == "Slow");
    worker.release();
    for id in ids("s") {
        assert_eq!(db.completes(&id).result(), "slow");
    }
    for id in ids("before").iter().chain(&ids("during")) {
        db.publish(id, "inbox", json!("another life"));
        assert_eq!(db.completes(id).result(), &json!(["another life"]));
    }
    assert_eq!(db.count("counters WHERE n = 3"), 20);
    assert_eq!(db.count("counters WHERE n = 1 AND id LIKE 's%'"), 10);
    rows_agree(&mut recovered.connect(app.database(), "postgres"));
    assert_eq!(recovered.unexplained_errors(&[]), Vec::<String>::new());
    let removed = std::fs::remove_dir_all(&archive);
    assert!(removed.is_ok(), "{removed:?}");
}
