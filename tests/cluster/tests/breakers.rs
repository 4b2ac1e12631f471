//! A worker that can't be reached is only probed until it can be reached again. Tested with a worker that stops
//! listening.

use xdb_cluster_tests::prelude::*;

/// The row of a worker in `xdb.workers`, as its owner sees it.
fn row(app: &App, worker: &str) -> Value {
    app.superuser().rows(&format!("SELECT * FROM xdb.workers WHERE name = '{worker}'")).remove(0)
}

fn calls(app: &App, worker: &str) -> i64 {
    app.superuser().one(&format!("SELECT calls FROM xdb.workers WHERE name = '{worker}'"))
}

fn breaker(app: &App, worker: &str) -> String {
    app.superuser().text(&format!("SELECT breaker FROM xdb.workers WHERE name = '{worker}'"))
}

/// The worker `dead` does not listen, and `count` processes of the type `stuck` need it. Returns when its breaker is
/// open and no call is under way.
fn stuck(app: &App, count: u32) -> Worker {
    let dead = app.worker_named("dead", |_| force_complete(json!("back")));
    // With retries this quick, ten attempts would be spent in two seconds.
    let definition =
        Definition::starting_with("Only").step_with("Only", json!({"executeApiRetryPolicy": attempts(10)}));
    app.register_with("dead", "stuck", &definition);
    dead.go_away();
    let mut db = app.db();
    db.run(&format!("SELECT count(xdb.start_process('stuck-' || n, 'stuck')) FROM generate_series(1, {count}) n"));
    wait_until("the breaker is open", 20, || {
        let worker = row(app, "dead");
        worker["breaker"] != "closed" && worker["in_flight"] == 0
    });
    dead
}

#[test]
fn an_unreachable_worker_is_probed_and_costs_neither_the_other_workers_nor_its_calls_anything() {
    let app = App::new("breaker_dead");
    let lively = app.worker_named("lively", |_| force_complete(json!(null)));
    app.register_with("lively", "quick", &one_step());
    assert_eq!(breaker(&app, "lively"), "closed");
    let dead = stuck(&app, 500);
    let mut db = app.db();
    let first = calls(&app, "dead");
    assert!(first < 150, "{first} calls before the breaker opened");

    let (took, ()) = timed(|| {
        for n in 0..20 {
            let id = format!("quick-{n}");
            db.start(&id, "quick").go();
            db.completes(&id);
        }
    });
    // Half a second each is a busy machine. A process that waits for a poll takes a whole second.
    assert!(took < Duration::from_secs(10), "twenty processes of a lively worker took {took:?}");
    assert_eq!(lively.count(|_| true), 20);

    // One call at a time, and ever more rarely.
    let begun = calls(&app, "dead");
    let (took, ()) = timed(|| wait_until("two probes were made", 20, || calls(&app, "dead") >= begun + 2));
    assert!(took > Duration::from_millis(1500), "two probes in {took:?}");
    assert!(calls(&app, "dead") <= first + 5, "{} calls, {first} at first", calls(&app, "dead"));
    let worker = row(&app, "dead");
    assert!(worker["breaker"] == "open" || worker["breaker"] == "half-open", "{worker}");
    assert!(worker["breaker_open_since"].is_string(), "{worker}");
    wait_until("the next probe is shown", 5, || row(&app, "dead")["next_probe_at"].is_string());
    assert_eq!(breaker(&app, "lively"), "closed");
    let attempts = db.one::<i64>("SELECT coalesce(sum(attempt), 0)::int8 FROM xdb.failures");
    assert!(attempts <= calls(&app, "dead"), "{attempts} attempts were counted");

    dead.come_back();
    let (took, ()) = timed(|| {
        wait_until("all of them complete", 40, || views::with_status(&mut db, "stuck-%", "COMPLETED") == 500);
    });
    assert!(took < Duration::from_secs(25), "it took {took:?} after the worker was back");
    let worker = row(&app, "dead");
    assert_eq!(worker["breaker"], "closed");
    assert_eq!((&worker["breaker_open_since"], &worker["next_probe_at"]), (&Value::Null, &Value::Null));
    app.done(&[]);
}

#[test]
fn a_worker_that_is_registered_again_gets_a_new_chance_at_once() {
    let app = App::new("breaker_again");
    let _dead = stuck(&app, 200);
    let mut db = app.db();
    let begun = calls(&app, "dead");
    // From here on the next probe is two seconds away, or more.
    wait_until("a probe was made", 20, || calls(&app, "dead") > begun);
    let moved = Worker::start(|_| force_complete(json!("moved")));
    app.superuser().run(&format!("SELECT xdb.register_worker('dead', '{}')", moved.url()));
    wait_until("all of them complete", 20, || views::with_status(&mut db, "stuck-%", "COMPLETED") == 200);
    assert_eq!(breaker(&app, "dead"), "closed");
    app.done(&[]);
}

#[test]
fn calls_follow_their_type_to_another_worker_even_if_the_old_one_is_unreachable() {
    let app = App::new("breaker_moved");
    let dead = stuck(&app, 1500);
    let definition = Definition::starting_with("Only").step("Only");
    app.register_with("dead", "moving", &definition);
    let mut db = app.db();
    db.run("SELECT count(xdb.start_process('moving-' || n, 'moving')) FROM generate_series(1, 100) n");
    let other = app.worker_named("other", |_| force_complete(json!("moved")));
    app.register_with("other", "moving", &definition);
    wait_until("all that moved complete", 20, || views::with_status(&mut db, "moving-%", "COMPLETED") == 100);
    assert_eq!(other.count(|_| true), 100);
    assert_eq!(views::with_status(&mut db, "stuck-%", "RUNNING"), 1500);
    assert_ne!(breaker(&app, "dead"), "closed");
    dead.come_back();
    wait_until("the other processes complete", 60, || views::with_status(&mut db, "stuck-%", "COMPLETED") == 1500);
    app.done(&[]);
}

#[test]
fn calls_that_move_to_an_unreachable_worker_do_not_block_other_calls() {
    let app = App::new("breaker_in_the_way");
    let lively = app.worker_named("lively", |_| force_complete(json!(null)));
    app.register_with("lively", "quick", &one_step());
    app.register_with("lively", "leaving", &one_step());
    let dead = stuck(&app, 100);
    let mut db = app.db();
    app.pause();
    db.run("SELECT count(xdb.start_process('leaving-' || n, 'leaving')) FROM generate_series(1, 300) n");
    db.run("SELECT count(xdb.start_process('quick-' || n, 'quick')) FROM generate_series(1, 20) n");
    app.register_with("dead", "leaving", &one_step());
    app.superuser().run("SELECT xdb.resume_engine()");
    wait_until("what stays completes", 10, || views::with_status(&mut db, "quick-%", "COMPLETED") == 20);
    assert_eq!(lively.count(|_| true), 20);
    assert_eq!(views::with_status(&mut db, "leaving-%", "RUNNING"), 300);
    dead.come_back();
    wait_until("what has left completes", 40, || views::with_status(&mut db, "leaving-%", "COMPLETED") == 300);
    app.done(&[]);
}

#[test]
fn a_worker_that_answers_errors_is_reachable() {
    let app = App::new("breaker_errors");
    let worker = app.worker_named("grumpy", |call: &Call| match call.attempt() {
        1..=3 => error(500, "Grumpy", "not yet"),
        _ => force_complete(json!(null)).into(),
    });
    app.register_with("grumpy", "one", &one_step());
    let mut db = app.db();
    db.run("SELECT count(xdb.start_process('p-' || n, 'one')) FROM generate_series(1, 60) n");
    wait_until("all of them complete", 20, || views::with_status(&mut db, "p-%", "COMPLETED") == 60);
    assert_eq!(worker.count(|_| true), 240);
    assert_eq!(breaker(&app, "grumpy"), "closed");
    app.done(&[]);
}

#[test]
fn one_process_with_quick_retries_spends_its_attempts() {
    let app = App::new("breaker_alone");
    let unreachable = app.worker_named("unreachable", |_| force_complete(json!(null)));
    let policy = json!({"executeApiRetryPolicy": attempts(12)});
    app.register_with("unreachable", "one", &Definition::starting_with("Only").step_with("Only", policy));
    unreachable.go_away();
    let mut db = app.db();
    db.start("p", "one").go();
    assert_eq!(db.outcome("p").status(), "FAILED");
    assert_eq!(calls(&app, "unreachable"), 12);
    assert_eq!(breaker(&app, "unreachable"), "closed");
    app.done(&[]);
}
