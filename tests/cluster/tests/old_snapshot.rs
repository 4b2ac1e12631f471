//! A session with an old snapshot keeps every row that was taken since in its index. Scans do not pass these rows.
//! Tested with counts of read rows.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

const DEAD: i64 = 100_000;

/// Three steps: the first waits for nothing, the second for a message, the third for a timer.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "message") => any_of(&[local_queue("m", "news", 1)]),
        (Api::WaitUntil, _) => any_of(&[timer("t", 0.01)]),
        (_, "first") => next("message", json!(null)),
        (_, "message") => next("timer", json!(null)),
        _ => force_complete(json!("done")),
    });
    let definition = Definition::starting_with("first").step("first").waiting_step("message").waiting_step("timer");
    app.register("three", &definition);
    (app, worker)
}

/// Leaves rows that were due long ago and are deleted. Only this session's snapshot still shows them.
fn leave_dead_rows(app: &App) -> Db {
    let mut keeper = app.superuser();
    keeper.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    keeper.one::<i64>("SELECT count(*) FROM xdb.engine");
    app.superuser().run(&format!(
        "BEGIN;
         INSERT INTO xdb.task (execution_id, seq, shard, worker_id, api, due_at, owner)
         SELECT gen_random_uuid(), 1, 0, w.worker_id, 'EXECUTE_API', now() - interval '1 hour', 'app'::regrole
         FROM xdb.worker w, generate_series(1, {DEAD});
         INSERT INTO xdb.timer (execution_id, seq, command, shard, kind, fire_at, owner)
         SELECT execution_id, 1, 0, 0, 'TIMER_COMMAND', due_at, owner FROM xdb.task WHERE shard = 0 AND seq = 1;
         INSERT INTO xdb.inbox (execution_id, shard, queue_name, bytes, published_at, owner)
         SELECT execution_id, 0, 'news', 0, due_at, owner FROM xdb.task WHERE shard = 0 AND seq = 1;
         DELETE FROM xdb.inbox; DELETE FROM xdb.timer; DELETE FROM xdb.task;
         COMMIT"
    ));
    keeper
}

fn run_one(db: &mut Db, worker: &Worker, id: &str) {
    db.start(id, "three").go();
    let is_asked = |call: &Call| call.process_id() == id && call.api == Api::WaitUntil && call.target() == "message";
    worker.wait_for(&format!("{id} is asked"), 10, is_asked);
    db.publish(id, "news", json!(1));
    assert_eq!(db.completes(id).result(), &json!("done"));
}

#[test]
fn scans_do_not_visit_the_dead_rows_of_taken_work() {
    const INDEXES: [&str; 3] = ["task_claim", "timer_due", "inbox_arrived"];
    const PROCESSES: i64 = 40;
    let (app, worker) = application("old_walks");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    run_one(&mut db, &worker, "before");
    let keeper = leave_dead_rows(&app);
    let used = |superuser: &mut Db, index: &str, figure: &str| {
        superuser.one::<i64>(&format!("SELECT {figure} FROM pg_stat_user_indexes WHERE indexrelname = '{index}'"))
    };
    let before =
        INDEXES.map(|index| (used(&mut superuser, index, "idx_scan"), used(&mut superuser, index, "idx_tup_read")));
    for number in 0..PROCESSES {
        run_one(&mut db, &worker, &format!("p-{number}"));
    }
    for (index, (scans_before, read_before)) in INDEXES.into_iter().zip(before) {
        wait_until("the scans are reported", 20, || {
            used(&mut superuser, index, "idx_scan") >= scans_before + PROCESSES
        });
        let read = used(&mut superuser, index, "idx_tup_read") - read_before;
        // All rows are scanned now and then; but not for each process, which takes about ten scans.
        assert!(read < PROCESSES * DEAD, "{read} entries of {index} were read for {PROCESSES} processes");
    }
    drop(keeper);
    app.done(&[]);
}

#[test]
fn work_that_is_committed_late_is_found() {
    let (app, worker) = application("old_late");
    let (mut db, mut late) = (app.db(), app.db());
    let keeper = leave_dead_rows(&app);
    late.run("BEGIN");
    late.start("late", "three").go();
    // Another process is due later, and is taken before.
    run_one(&mut db, &worker, "other");
    late.run("COMMIT");
    wait_until("it waits", 10, || !views::waits(&mut db, "late").is_empty());
    late.run("BEGIN");
    late.publish("late", "news", json!(1));
    run_one(&mut db, &worker, "another");
    assert_eq!(db.status("late"), "RUNNING");
    late.run("COMMIT");
    assert_eq!(db.completes("late").result(), &json!("done"));
    drop(keeper);
    app.done(&[]);
}

#[test]
fn work_that_a_rollback_returns_is_found_without_a_wake_up() {
    let (app, worker) = application("old_rollback");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    run_one(&mut db, &worker, "before");
    let mut holder = app.superuser();
    db.run("SELECT xdb.start_process('p', 'three', start_at => clock_timestamp() + interval '3 s')");
    holder.run("BEGIN; SELECT FROM xdb.task FOR UPDATE");
    // The engine scans when it is due, and each second after that.
    let scanned = "SELECT clock_timestamp() > due_at + interval '2 s' FROM xdb.task";
    wait_until("the engine has scanned and found nothing", 20, || superuser.one(scanned));
    assert_eq!(worker.count(|call| call.process_id() == "p"), 0);
    holder.run("ROLLBACK");
    worker.wait_for("the call", 20, |call| call.process_id() == "p");
    db.publish("p", "news", json!(1));
    db.completes("p");
    app.done(&[]);
}

#[test]
fn claims_do_not_visit_the_dead_rows_of_claimed_calls() {
    const PROCESSES: i64 = 40;
    let app = App::new("old_pulled");
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "plain", &one_step());
    let keeper = leave_dead_rows(&app);
    let (mut db, mut worker, mut superuser) = (app.db(), app.db(), app.superuser());
    let mut read = |worker: &mut Db| {
        worker.run("SELECT pg_stat_force_next_flush()");
        superuser.one::<i64>("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'task_claim'")
    };
    let answer = jsonb(&force_complete(json!(null)).json());
    let complete =
        format!("SELECT count(xdb.complete_call(token, {answer})) FROM xdb.claim_calls('pull', wait => '20 s')");
    let before = read(&mut worker);
    for number in 0..PROCESSES {
        db.start(&format!("p-{number}"), "plain").go();
        assert_eq!(worker.one::<i64>(&complete), 1);
    }
    let read = read(&mut worker) - before;
    assert!(read < PROCESSES * DEAD, "{read} entries were read for {PROCESSES} processes");
    drop(keeper);
    app.done(&[]);
}
