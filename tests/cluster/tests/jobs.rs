//! Small options that make a process a job: immediate next steps, and retention of complete jobs.

use xdb_cluster_tests::prelude::*;

/// Seconds from the request of a step to its end.
fn took(db: &mut Db, process_id: &str, state_execution_id: &str) -> f64 {
    db.one(&format!(
        "SELECT extract(epoch FROM ended_at - started_at)::float8 FROM xdb.state_executions
         WHERE process_id = '{process_id}' AND state_execution_id = '{state_execution_id}'"
    ))
}

fn later(state: &str, begin: Value) -> Answer {
    let mut movement = json!({"stateId": state, "stateInput": null});
    movement.as_object_mut().expect("an object").extend(begin.as_object().expect("an object").clone());
    Answer::deciding(json!({"nextStates": [movement]}))
}

/// Seed 3: "control whether to execute the next step immediately": of states, RPCs and conditional closes.
#[test]
fn control_whether_to_execute_the_next_step_immediately() {
    let app = App::new("jobs_later");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("later")).and(later("Last", json!({"delayInSeconds": 1.0}))),
        (_, "First") => later("Second", json!({"delayInSeconds": 1.25})),
        (_, "Second") => close_if_empty("q", "Third").publish("q", json!(1)).delayed(json!({"delayInSeconds": 0.75})),
        (_, "Third") => later("Last", json!({"startAt": "2020-01-01T00:00:00Z"})),
        _ => graceful_complete(json!("done")),
    });
    let definition = Definition::starting_with("First").step("First").step("Second").step("Third").step("Last");
    app.register("later", &definition.clone());
    app.register("idle", &Definition::without_start().step("Last"));
    let mut db = app.db();
    db.start("p", "later").go();
    db.start("i", "idle").go();
    assert_eq!(db.rpc("i", "any", json!(null)), json!("later"));
    db.completes("p");
    db.completes("i");
    let second = took(&mut db, "p", "Second-1");
    assert!((1.25..10.0).contains(&second), "{second} s");
    let third = took(&mut db, "p", "Third-1");
    assert!((0.75..10.0).contains(&third), "{third} s");
    let by_rpc = took(&mut db, "i", "Last-1");
    assert!((1.0..10.0).contains(&by_rpc), "{by_rpc} s");
    assert_eq!(worker.count(|call| call.executes("Last")), 2);
    app.done(&[]);
}

#[test]
fn a_movement_that_waits_is_seen_survives_a_kill_and_is_not_hurried() {
    let app = App::alone("jobs_kill", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.target() {
        "First" => later("Second", json!({"delayInSeconds": 8.0})),
        _ => graceful_complete(json!("done")),
    });
    app.register("later", &Definition::starting_with("First").step("First").step("Second"));
    let mut db = app.db();
    db.start("p", "later").go();
    let due = "SELECT xdb.describe_process('p') -> 'threads' -> 0 ->> 'nextAttemptAt' FROM xdb.state_executions
        WHERE process_id = 'p' AND state_execution_id = 'Second-1' AND status = 'EXECUTE'";
    wait_until("it waits", 10, || db.try_maybe::<String>(due).is_ok_and(|due| due.is_some()));
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 0, "it is in no backoff");
    app.kill_scheduler();
    db = app.db();
    db.completes("p");
    let second = took(&mut db, "p", "Second-1");
    assert!((8.0..30.0).contains(&second), "{second} s");
    assert_eq!(worker.count(|call| call.executes("Second")), 1);
    app.done(&[]);
}

/// Seed 4: "the Complete flag signals the runtime to discard the instance after successful execution".
#[test]
fn complete_signals_the_runtime_to_discard_the_instance_at_once_later_or_never() {
    let app = App::alone("jobs_retention", ClusterOptions::default().set("xdb.retention", "1s"));
    let _worker = app.worker(|_: &Call| force_complete(json!("done")));
    app.register("ever", &one_step().with("retentionSeconds", json!(-1)));
    app.register("job", &one_step().with("retentionSeconds", json!(0)));
    app.register("day", &one_step().with("retentionSeconds", json!(86400)));
    app.register("other", &one_step());
    let mut db = app.db();
    for n in 0..150 {
        db.start(&format!("job-{n}"), "job").go();
    }
    for process_type in ["ever", "day", "other"] {
        db.start(process_type, process_type).go();
        db.completes(process_type);
    }
    // The latest execution of an id goes last, however short it is kept.
    db.start("again", "day").go();
    db.completes("again");
    db.start("again", "job").go();
    db.completes("again");
    let left = "xdb.processes WHERE process_type IN ('job', 'other') AND process_id <> 'again'";
    wait_until("jobs are deleted, and rows that the setting is for", 90, || db.count(left) == 0);
    let mut kept = db.all::<String>("SELECT process_type FROM xdb.processes ORDER BY 1");
    kept.dedup();
    assert_eq!(kept, ["day", "ever", "job"]);
    assert_eq!(db.one::<i64>("SELECT count(*) FROM xdb.processes WHERE process_id = 'again'"), 2);
    app.done(&[]);
}
