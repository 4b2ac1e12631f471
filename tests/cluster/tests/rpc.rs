//! RPCs run synchronously in the caller's transaction, and never longer than the caller's timeout.

use xdb_cluster_tests::prelude::*;

/// A process that waits for messages and has RPCs. `add` counts in the application's row, `note` publishes, `slow`
/// hangs, `bad` fails.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, "add") => {
            let n = call.global("n").as_i64().unwrap_or_default() + call.input().as_i64().unwrap_or_default();
            output(json!(n)).globals(json!({"n": n})).locals(json!({"last": n})).into()
        }
        (Api::Rpc, "note") => output(json!("noted")).publish("inbox", call.input().clone()).into(),
        (Api::Rpc, "slow") => Reply::hang(output(json!("at last"))),
        (Api::Rpc, "bad") => error(422, "Rejected", "the basket is empty"),
        (Api::Rpc, "odd") => Reply::Raw(200, b"not json".to_vec()),
        (Api::Rpc, _) => output(call.body["loadedGlobalAttributes"].clone()).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        _ => Reply::from(force_complete(json!(call.messages("m")))),
    });
    let mut definition = mailbox().maps("public.counters", "id", &["n"]);
    for rpc in ["add", "note", "slow", "bad", "odd", "look"] {
        definition = definition.rpc(rpc, json!({}));
    }
    app.register("asked", &definition);
    app.db().start("p", "asked").key("p").globals(json!({"n": 0})).go();
    (app, worker)
}

#[test]
fn an_rpc_is_part_of_its_callers_transaction() {
    let (app, _worker) = application("rpc_transaction");
    let mut db = app.db();
    db.run("BEGIN");
    assert_eq!(db.rpc("p", "add", json!(5)), 5);
    assert_eq!(db.one::<i32>("SELECT n FROM counters"), 5);
    assert_eq!(db.rpc("p", "note", json!("never")), "noted");
    db.run("ROLLBACK");
    assert_eq!(db.one::<i32>("SELECT n FROM counters"), 0);
    assert_eq!(db.status("p"), "RUNNING");

    assert_eq!(db.rpc("p", "add", json!(7)), 7);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p', '{last}')"), json!({"last": 7}));
    assert_eq!(db.rpc("p", "note", json!("hello")), "noted");
    assert_eq!(db.completes("p").result(), &json!(["hello"]));
    app.done(&[]);
}

#[test]
fn a_workers_failure_is_the_callers_error_and_nothing_is_applied() {
    let (app, worker) = application("rpc_failure");
    let mut db = app.db();
    let refused = db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'bad')");
    assert!(format!("{refused:?}").contains("the basket is empty"), "{refused:?}");
    assert!(format!("{refused:?}").contains("422"), "{refused:?}");
    assert_eq!(refused.datatype, "Rejected", "a program need not read what is for people");
    let refused = db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'odd')");
    assert_eq!(refused.datatype, "", "no word of the worker's");
    worker.misbehave(|_| output(json!(1)).globals(json!({"shoe_size": 42})));
    db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'look')");
    worker.go_away();
    db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'look')");
    assert_eq!(db.status("p"), "RUNNING");
    app.done(&[]);
}

#[test]
fn an_rpc_takes_no_longer_than_its_caller_wants() {
    let (app, worker) = application("rpc_slow");
    let mut db = app.db();
    let (took, error) =
        timed(|| db.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('p', 'slow', timeout => '1 second')"));
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(4), "{took:?}: {error:?}");

    db.run("SET statement_timeout = '500 ms'");
    let (took, _) = timed(|| db.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('p', 'slow')"));
    assert!(took < Duration::from_secs(3), "the statement timeout took {took:?}");
    db.run("RESET statement_timeout");

    let pid: i32 = db.one("SELECT pg_backend_pid()");
    let before = worker.count(|call| call.target() == "slow");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| db.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('p', 'slow')"));
        worker.wait_for_count("the call", 10, before + 1, |call| call.target() == "slow");
        let cancelled = Instant::now();
        app.superuser().run(&format!("SELECT pg_cancel_backend({pid})"));
        caller.join().expect("no panic");
        assert!(cancelled.elapsed() < Duration::from_secs(5), "the cancel took {:?}", cancelled.elapsed());
    });
    app.done(&[]);
}

#[test]
fn a_slow_rpc_blocks_no_session_before_its_answer() {
    let (app, worker) = application("rpc_patient");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| app.db().rpc("p", "slow", json!(null)));
        worker.wait_for("the call", 10, |call| call.target() == "slow");
        let mut db = app.db();
        db.publish("p", "inbox", json!("meanwhile"));
        assert_eq!(db.completes("p").result(), &json!(["meanwhile"]));
        worker.release();
        // It writes nothing, so it may answer although the process has closed.
        assert_eq!(asking.join().expect("no panic"), "at last");
    });
    app.done(&[]);
}

#[test]
fn a_repeated_rpc_gets_the_first_answer_without_a_call() {
    let (app, worker) = application("rpc_repeated");
    let mut db = app.db();
    let add = "SELECT xdb.invoke_rpc('p', 'add', '3', idempotency_key => 'once')";
    assert_eq!(db.json(add), 3);
    assert_eq!(db.json(add), 3);
    assert_eq!(db.one::<i32>("SELECT n FROM counters"), 3);
    assert_eq!(worker.count(|call| call.target() == "add"), 1);
    app.done(&[]);
}

#[test]
fn a_closed_process_may_be_read_but_not_written() {
    let (app, _worker) = application("rpc_closed");
    let mut db = app.db();
    db.publish("p", "inbox", json!("bye"));
    db.completes("p");
    assert_eq!(db.rpc("p", "look", json!(null)), json!({"n": 0}));
    db.refused(codes::NOT_RUNNING, "SELECT xdb.invoke_rpc('p', 'add', '1')");
    assert_eq!(db.one::<i32>("SELECT n FROM counters"), 0);
    app.done(&[]);
}
