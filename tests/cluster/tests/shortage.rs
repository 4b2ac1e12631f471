//! Shortages of the engine itself, of descriptors or threads, cost no worker an attempt.

use std::collections::HashSet;
use xdb_cluster_tests::cluster::limit_files;
use xdb_cluster_tests::prelude::*;

/// The lowest number that the next descriptor of a process can get.
fn next_descriptor(pid: i32) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let open: HashSet<u64> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    (0..).find(|number| !open.contains(number)).expect("there is one")
}

fn worker_row(app: &App) -> Value {
    app.superuser().rows("SELECT calls, failures, breaker FROM xdb.workers WHERE name = 'stub'").remove(0)
}

#[test]
fn a_shortage_of_the_engine_is_not_the_workers_fault() {
    let app = App::new("shortage_of_descriptors");
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    let hasty = json!({"executeApiTimeoutSeconds": 3, "executeApiRetryPolicy": attempts(3)});
    app.register("step", &Definition::starting_with("Only").step_with("Only", hasty));
    let mut db = app.db();
    let scheduler = app.scheduler();
    let before = limit_files(scheduler, next_descriptor(scheduler));
    db.run("SELECT count(xdb.start_process('p' || n, 'step')) FROM generate_series(1, 30) n");
    // Longer than the calls and their retries may take. Postgres opens and closes files meanwhile, so a call may get
    // through.
    let began = Instant::now();
    wait_until("all are done, or the time is over", 20, || {
        began.elapsed() > Duration::from_secs(7) || views::with_status(&mut db, "p%", "COMPLETED") == 30
    });
    assert_eq!(views::with_status(&mut db, "p%", "FAILED"), 0);
    assert_eq!(worker_row(&app)["breaker"], "closed");
    limit_files(scheduler, before);
    wait_until("all are done", 20, || views::with_status(&mut db, "p%", "COMPLETED") == 30);
    assert_eq!(worker.count(|call| call.attempt() != 1), 0, "what was not made was no attempt");
    assert_eq!(worker_row(&app)["failures"], 0);
    app.done(&[]);
}

#[test]
fn calls_beyond_the_descriptors_queue_up() {
    const CALLS: i64 = 100;
    // Of which a third is less than half of the calls.
    let app = App::alone("shortage_in_line", ClusterOptions::default().set("max_files_per_process", "150"));
    let worker = app.worker(|_: &Call| Reply::hang(force_complete(json!(null))));
    app.superuser().run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 1000)", worker.url()));
    app.register_with(
        "stub",
        "slow",
        &Definition::starting_with("Only").step_with("Only", json!({"executeApiTimeoutSeconds": 60})),
    );
    let mut db = app.db();
    db.run(&format!("SELECT count(xdb.start_process('p' || n, 'slow')) FROM generate_series(1, {CALLS}) n"));
    let mut status = app.superuser();
    wait_until("all are under way", 20, || status.one::<i32>("SELECT in_flight FROM xdb.status()") == CALLS as i32);
    wait_until("status says what to raise", 20, || {
        let reason: Option<String> = status.one("SELECT reason FROM xdb.status()");
        reason.is_some_and(|reason| reason.contains("max_files_per_process"))
    });
    wait_until("some of them are open", 20, || worker.count(|_| true) >= 10);
    let open = worker.count(|_| true);
    assert!(open < CALLS as usize / 2, "{open} calls are open");
    worker.misbehave(|_| force_complete(json!(null)));
    worker.release();
    wait_until("all are done", 20, || views::with_status(&mut db, "p%", "COMPLETED") == CALLS);
    wait_until("nothing waits", 20, || status.one::<Option<String>>("SELECT reason FROM xdb.status()").is_none());
    assert_eq!(worker.count(|call| call.attempt() != 1), 0);
    app.done(&[]);
}
