//! Processes with a priority: the order in which their calls are made. Tested with a worker that takes one call at a
//! time.

use xdb_cluster_tests::prelude::*;

/// A worker with one call at a time. Its calls are recorded in their order, each with its process id.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(name, ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.target() {
        "First" => next("Only", json!(null)),
        _ => force_complete(json!("done")),
    });
    app.superuser().run(&format!("SELECT xdb.register_worker('stub', '{}', max_concurrency => 1)", worker.url()));
    app.register("todo", &one_step());
    app.register("chore", &one_step().with("priority", json!(-5)));
    app.register("two", &Definition::starting_with("First").step("First").step("Only"));
    (app, worker)
}

fn called_processes(worker: &Worker) -> Vec<String> {
    worker.calls().iter().map(|call| call.process_id().to_owned()).collect()
}

fn start(db: &mut Db, id: &str, process_type: &str, priority: Option<i64>) {
    let options = priority.map_or(json!({}), |priority| json!({"priority": priority}));
    db.start(id, process_type).options(options).go();
}

/// Seed 4: `SysPriority`.
#[test]
fn todos_are_carried_out_by_sys_priority_and_then_by_their_start_date() {
    let (app, worker) = application("priority_order");
    let mut db = app.db();
    app.pause();
    for (id, process_type, priority) in [
        ("low", "todo", Some(-10)),
        ("chore", "chore", None),
        ("plain-1", "todo", None),
        ("high-1", "todo", Some(3)),
        ("raised", "chore", Some(0)),
        ("high-2", "todo", Some(3)),
        ("top", "todo", Some(10)),
        ("plain-2", "todo", Some(0)),
    ] {
        start(&mut db, id, process_type, priority);
    }
    app.superuser().run("SELECT xdb.resume_engine()");
    db.completes("low");
    let order = ["top", "high-1", "high-2", "plain-1", "raised", "plain-2", "chore", "low"];
    assert_eq!(called_processes(&worker), order);
    assert_eq!(db.json("SELECT xdb.describe_process('top')")["priority"], 10);
    assert_eq!(db.json("SELECT xdb.describe_process('plain-1')")["priority"], json!(null));
    app.done(&[]);
}

#[test]
fn a_guard_has_the_priority_of_its_process() {
    let (app, worker) = application("priority_guard");
    let wait = |queue: &str| {
        let queues = json!([{"queueName": queue}]);
        json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": queues}})
    };
    let guarded = Definition::starting_with("Rest").waiting_step_with("Rest", wait("never"));
    app.register("guarded", &guarded.waiting_step_with("Only", wait("bark")).with("guards", json!(["Only"])));
    let mut db = app.db();
    let ids = [("low", Some(-3)), ("plain", None), ("top", Some(7))];
    ids.iter().for_each(|(id, priority)| start(&mut db, id, "guarded", *priority));
    worker.misbehave(|_| Reply::hang(force_complete(json!("done"))));
    start(&mut db, "busy", "todo", None);
    worker.wait_for("the only place is taken", 10, |call| call.process_id() == "busy");
    ids.iter().for_each(|(id, _)| db.publish(id, "bark", json!(null)));
    wait_until("all guards have triggered", 20, || db.count("xdb.waits WHERE queue_name = 'bark'") == 0);
    worker.heal();
    db.completes("low");
    assert_eq!(called_processes(&worker), ["busy", "top", "plain", "low"]);
    app.done(&[]);
}

#[test]
fn under_overload_urgent_calls_do_not_wait_for_the_rest() {
    let (app, worker) = application("priority_overload");
    let mut db = app.db();
    app.pause();
    for number in 0..300 {
        start(&mut db, &format!("two-{number}"), "two", Some(-1));
    }
    app.superuser().run("SELECT xdb.resume_engine()");
    worker.wait_for_count("the engine is at it", 20, 20, |_| true);
    // Also what follows from an answer gives the place up.
    for number in 0..5 {
        let id = format!("urgent-{number}");
        start(&mut db, &id, "two", Some(5));
        db.completes(&id);
        let calls = called_processes(&worker);
        let (first, last) = (calls.iter().position(|call| *call == id), calls.iter().rposition(|call| *call == id));
        let between = last.zip(first).map(|(last, first)| last - first);
        assert!(between.is_some_and(|between| between <= 3), "{id} had to wait between its calls: {calls:?}");
    }
    assert!(views::with_status(&mut db, "two-%", "RUNNING") > 100, "the rest waits");
    wait_until("all have completed", 120, || views::with_status(&mut db, "two-%", "RUNNING") == 0);
    app.done(&[]);
}

/// One call at a time: the next call of an answered process keeps its place, unless a waiting call has a higher
/// priority.
#[test]
fn a_process_continues_while_no_call_with_a_higher_priority_waits() {
    let (app, worker) = application("priority_place");
    let mut db = app.db();
    // It has a call, which is due much later.
    db.run("SELECT xdb.start_process('later', 'todo', start_at => now() + interval '1 day', options => '{\"priority\": 5}')");
    // These processes start after all others.
    app.pause();
    start(&mut db, "low", "two", Some(-5));
    for id in ["a", "b", "c", "d"] {
        start(&mut db, id, "two", None);
    }
    app.superuser().run("SELECT xdb.resume_engine()");
    db.completes("low");
    assert_eq!(called_processes(&worker), ["a", "a", "b", "b", "c", "c", "d", "d", "low", "low"]);
    // A process with a priority starts while a process without one is at its first call. The engine knows since `later`
    // that there are calls with this priority. Otherwise it might scan for them only after the answer.
    worker.misbehave(|call| match call.process_id() {
        "e" if call.target() == "First" => Reply::hang(next("Only", json!(null))),
        _ => force_complete(json!("done")).into(),
    });
    start(&mut db, "e", "two", None);
    worker.wait_for("its first call", 20, |call| call.process_id() == "e");
    start(&mut db, "urgent", "todo", Some(5));
    worker.heal();
    db.completes("e");
    assert_eq!(called_processes(&worker)[10..], ["e", "urgent", "e"]);
    db.run("SELECT xdb.stop_process('later')");
    app.done(&[]);
}

/// After a pause, no parked call is made before all parked calls with a higher priority are resumed too.
#[test]
fn calls_resumed_by_the_end_of_a_pause_are_made_in_the_order_of_their_priorities() {
    let (app, worker) = application("priority_freed");
    let (mut db, mut boss) = (app.db(), app.session("boss"));
    boss.run("SELECT xdb.pause_process_type('todo')");
    for (id, priority) in [("low", Some(-4)), ("plain", None), ("high", Some(4)), ("top", Some(9))] {
        start(&mut db, id, "todo", priority);
    }
    wait_until("all are parked", 15, || app.superuser().count("xdb.task WHERE lane = 2") == 4);
    boss.run("SELECT xdb.resume_process_type('todo')");
    db.completes("low");
    assert_eq!(called_processes(&worker), ["top", "high", "plain", "low"]);
    app.done(&[]);
}

/// Pauses, backoff and crashes do not change the order of priorities.
#[test]
fn priorities_outlast_pauses_backoff_and_crashes() {
    let (app, worker) = application("priority_kept");
    let mut db = app.db();
    app.session("boss").run("SELECT xdb.pause_process_type('todo')");
    start(&mut db, "plain", "todo", None);
    start(&mut db, "high", "todo", Some(4));
    start(&mut db, "paused", "todo", Some(9));
    db.run("SELECT xdb.pause_process('paused')");
    wait_until("all are parked", 15, || app.superuser().count("xdb.task WHERE lane = 2") == 3);
    app.cluster().crash();
    app.cluster().launch();
    let mut db = app.db();
    db.run("SELECT 1");
    app.pause();
    db.run("SELECT xdb.resume_process('paused')");
    app.session("boss").run("SELECT xdb.resume_process_type('todo')");
    app.session("boss").run("SELECT xdb.resume_engine()");
    db.completes("plain");
    assert_eq!(called_processes(&worker).last().map(String::as_str), Some("plain"), "{:?}", called_processes(&worker));
    // A call in backoff that comes due stands where it stood, and wakes the engine by itself.
    worker.misbehave(|_| error(500, "Broken", "not now"));
    start(&mut db, "again", "todo", Some(4));
    worker.wait_for("it fails", 10, |call| call.process_id() == "again");
    worker.heal();
    db.completes("again");
    app.done(&[]);
}

#[test]
fn an_invalid_priority_is_refused() {
    let (app, _worker) = application("priority_refused");
    let mut db = app.db();
    for wrong in ["11", "-11", "1.5", "\"high\"", "null", "1e1"] {
        let sql = format!("SELECT xdb.start_process('p', 'todo', options => '{{\"priority\": {wrong}}}')");
        let error = db.try_run(&sql);
        match wrong {
            "null" => assert!(error.is_ok()),
            // `jsonb` writes it as 10.
            "1e1" => assert_eq!(error.expect_err("it runs").code, codes::ALREADY_STARTED),
            _ => {
                let error = error.expect_err("it is no priority");
                let message = "invalid value for options: priority must be a whole number from -10 to 10";
                assert_eq!(
                    (error.code.as_str(), error.message.as_str()),
                    (codes::INVALID_ARGUMENT, message),
                    "{wrong}"
                );
            }
        }
    }
    db.completes("p");
    app.done(&[]);
}
