//! Locks on local attributes, against sessions that take no such locks. Also locks of `waitUntil`.

use xdb_cluster_tests::prelude::*;

fn loading(lock: &str) -> Value {
    json!({"policy": "PARTIAL", "names": ["k"], "lockType": lock})
}

fn k(call: &Call) -> i64 {
    call.local("k").as_i64().unwrap_or_default()
}

fn repeats(db: &mut Db) -> i64 {
    db.count("xdb.history WHERE event_type = 'CallRepeated'")
}

/// The attribute `k` is changed during a call that has this lock on it. The answer finds the change.
fn disturbed(name: &str, lock: &str) {
    let app = App::new(name);
    let worker =
        app.worker(|call: &Call| Reply::hang(force_complete(json!(k(call))).locals(json!({"k": k(call) + 1}))));
    let config = json!({"loadLocalAttributes": loading(lock), "executeApiTimeoutSeconds": 60});
    app.register("count", &Definition::starting_with("Add").step_with("Add", config));
    let mut db = app.db();
    db.start("p", "count").locals(json!({"k": 1, "l": 1})).go();
    let call = |count: usize| worker.wait_for_count("the call", 20, count, |_| true).swap_remove(count - 1);
    let first = call(1);
    db.run(r#"SELECT xdb.set_local_attributes('p', '{"k": 10}')"#);
    worker.release();
    let second = call(2);
    assert_eq!((k(&first), k(&second)), (1, 10));
    assert_eq!((first.attempt(), second.attempt()), (1, 1), "a repeat is no attempt");
    assert_eq!(first.call_id(), second.call_id());
    assert_ne!(first.idempotency_key(), second.idempotency_key());
    assert_eq!(db.one::<i32>("SELECT repeats FROM xdb.state_executions"), 1);
    // It has nothing to do with other keys.
    db.run(r#"SELECT xdb.set_local_attributes('p', '{"l": 10}')"#);
    worker.release();
    assert_eq!(db.completes("p").result(), 10);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"k": 11, "l": 10}));
    assert_eq!(repeats(&mut db), 1);
    app.done(&[]);
}

#[test]
fn a_caller_that_writes_an_exclusively_locked_attribute_causes_a_repeat() {
    disturbed("locks_local_exclusive", "EXCLUSIVE_LOCK");
}

#[test]
fn a_caller_that_writes_a_share_locked_attribute_causes_a_repeat() {
    disturbed("locks_local_share", "SHARE_LOCK");
}

#[test]
fn a_caller_that_writes_an_unlocked_attribute_causes_no_repeat() {
    let app = App::new("locks_local_none");
    let worker = app.worker(|call: &Call| Reply::hang(force_complete(json!(k(call)))));
    app.register("count", &one_step());
    let mut db = app.db();
    db.start("p", "count").locals(json!({"k": 1})).go();
    worker.wait_for("the call", 20, |_| true);
    db.run(r#"SELECT xdb.set_local_attributes('p', '{"k": 10}')"#);
    worker.release();
    assert_eq!(db.completes("p").result(), 1);
    assert_eq!((repeats(&mut db), worker.count(|_| true)), (0, 1));
    app.done(&[]);
}

#[test]
fn shared_locks_of_a_key_run_at_once_and_an_exclusive_lock_waits() {
    let app = App::new("locks_local_sharers");
    let worker = app.worker(|call: &Call| match call.target() {
        "Begin" => next_all(&[("Read", json!(null)), ("Read", json!(null)), ("Read", json!(null))]).into(),
        "Read" => Reply::hang(graceful_complete(json!(k(call)))),
        _ => graceful_complete(json!(k(call))).locals(json!({"k": k(call) + 1})).into(),
    });
    let config = |lock: &str| json!({"loadLocalAttributes": loading(lock), "executeApiTimeoutSeconds": 60});
    let definition = Definition::starting_with("Begin")
        .step("Begin")
        .step_with("Read", config("SHARE_LOCK"))
        .step_with("Write", config("EXCLUSIVE_LOCK"))
        .rpc("write", json!({}));
    app.register("threads", &definition);
    let mut db = app.db();
    db.start("p", "threads").locals(json!({"k": 5})).go();
    worker.wait_for_count("three readers at once", 20, 3, |call| call.target() == "Read");
    worker.misbehave(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)).and(next("Write", json!(null))),
        _ => graceful_complete(json!(k(call))).locals(json!({"k": k(call) + 1})),
    });
    db.rpc("p", "write", json!(null));
    wait_until("the writer waits in line", 20, || {
        db.count("xdb.attribute_locks WHERE state_execution_id = 'Write-1'") > 0
    });
    assert_eq!(worker.count(|call| call.target() == "Write"), 0);
    worker.release();
    let outcome = db.completes("p");
    let outputs: Vec<_> = outcome.results().iter().map(|result| result["output"].clone()).collect();
    assert_eq!(outputs, vec![json!(5); 4]);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"k": 6}));
    assert_eq!(repeats(&mut db), 0);
    wait_until("nothing waits", 10, || db.count("xdb.attribute_locks") == 0);
    app.done(&[]);
}

#[test]
fn load_call_and_write_of_wait_until_are_one_too() {
    const PROCESSES: i64 = 20;
    let app = App::new("locks_wait_until");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => no_command().globals(json!({"n": call.global("n").as_i64().unwrap_or_default() + 1})),
        _ => force_complete(call.global("n").clone()),
    });
    let exclusive = json!({"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"});
    let definition = Definition::starting_with("Only")
        .waiting_step_with("Only", json!({"waitUntilLoadGlobalAttributes": exclusive}))
        .maps("public.counters", "id", &["n"]);
    app.register("count", &definition);
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.run("BEGIN");
    for number in 0..PROCESSES {
        db.start(&format!("p{number}"), "count").key("r").go();
    }
    db.run("COMMIT");
    for number in 0..PROCESSES {
        db.completes(&format!("p{number}"));
    }
    assert_eq!(i64::from(db.one::<i32>("SELECT n FROM counters")), PROCESSES);
    assert_eq!((repeats(&mut db), worker.count(|_| true)), (0, 2 * PROCESSES as usize));

    // A plain writer in between: asked again what it waits for, with the new value.
    worker.misbehave(|call: &Call| match call.api {
        Api::WaitUntil => {
            Reply::hang(no_command().globals(json!({"n": call.global("n").as_i64().unwrap_or_default() + 1})))
        }
        _ => force_complete(call.global("n").clone()).into(),
    });
    db.start("last", "count").key("r").go();
    let mine = |call: &Call| call.process_id() == "last" && call.api == Api::WaitUntil;
    worker.wait_for("it is asked", 20, mine);
    db.run("UPDATE counters SET n = n + 100");
    worker.release();
    worker.wait_for_count("it is asked again", 20, 2, mine);
    worker.release();
    db.completes("last");
    assert_eq!(i64::from(db.one::<i32>("SELECT n FROM counters")), PROCESSES + 101);
    assert_eq!(repeats(&mut db), 1);
    app.done(&[]);
}
