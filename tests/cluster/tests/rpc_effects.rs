//! The effects of an RPC's answer on its process, beside steps, publishers and other RPCs.

use xdb_cluster_tests::prelude::*;

/// A process `p` with at most one step. The step hangs in its call until the worker is released. Then it writes `by`,
/// and ends its thread but not the process. RPCs: `fork` starts two threads of `Part`, and `close` fails the process.
/// `note` writes the same as the step and publishes its input. `slow` hangs.
fn application(name: &str, definition: Definition) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, "fork") => {
            output(json!("forked")).and(next_all(&[("Part", json!("left")), ("Part", json!("right"))])).into()
        }
        (Api::Rpc, "close") => output(json!("closed")).and(force_fail(json!({"by": "rpc"}))).into(),
        (Api::Rpc, "note") => {
            Reply::from(output(json!("noted")).locals(json!({"by": "rpc"})).publish("inbox", call.input().clone()))
        }
        (Api::Rpc, "slow") => Reply::hang(output(json!("at last")).locals(json!({"by": "slow rpc"}))),
        (Api::Rpc, "bad") => Reply::hang(error(500, "Broken", "in the end")),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 4)]).into(),
        (_, "Read") => force_complete(json!(call.messages("m"))).into(),
        (_, "Held") => Reply::hang(dead_end().locals(json!({"by": "step"}))),
        (_, "Part") => Reply::hang(graceful_complete(call.input().clone())),
        _ => Reply::from(force_complete(json!(null))),
    });
    let mut definition = definition;
    for rpc in ["fork", "close", "note", "slow", "bad"] {
        definition = definition.rpc(rpc, json!({}));
    }
    app.register("asked", &definition);
    app.register("by", &one_step());
    app.db().start("p", "asked").go();
    if definition.json()["startingState"] == "Held" {
        // A release does not release calls that come after it.
        worker.wait_for("the step's call", 10, |call| call.executes("Held"));
    }
    (app, worker)
}

fn held() -> Definition {
    Definition::starting_with("Held").step_with("Held", json!({"executeApiTimeoutSeconds": 60})).step("Part")
}

/// When this process has completed, the engine has processed everything before.
fn a_turn_is_made(db: &mut Db, id: &str) {
    db.start(id, "by").go();
    db.completes(id);
}

/// Checks that both threads of `fork` are called and end, and that the process completes with their outputs.
fn forks(db: &mut Db, worker: &Worker) {
    assert_eq!(db.rpc("p", "fork", json!(null)), "forked");
    worker.wait_for_count("both threads", 10, 2, |call| call.executes("Part"));
    let threads = db.json("SELECT jsonb_path_query_array(xdb.describe_process('p'), '$.threads[*].stateExecutionId')");
    assert_eq!(threads, json!(["Part-1", "Part-2"]));
    worker.release();
    let outcome = db.completes("p");
    let mut given: Vec<_> = outcome.results().iter().map(|result| result["output"].clone()).collect();
    given.sort_by_key(Value::to_string);
    assert_eq!(given, ["left", "right"]);
    assert_eq!(outcome.result(), &Value::Null, "of two results none is the one");
}

#[test]
fn threads_start_in_a_process_that_has_none_left() {
    let (app, worker) = application("rpc_no_thread", held());
    let mut db = app.db();
    worker.wait_for("the only step", 10, |call| call.executes("Held"));
    worker.release();
    wait_until("no thread is left", 10, || views::ended_states(&mut db, "p") == 1);
    assert_eq!(db.json("SELECT xdb.describe_process('p')")["liveThreads"], 0);
    forks(&mut db, &worker);
    app.done(&[]);
}

#[test]
fn threads_start_in_a_type_without_a_starting_state() {
    let (app, worker) = application("rpc_no_start", Definition::without_start().step("Part"));
    forks(&mut app.db(), &worker);
    app.done(&[]);
}

#[test]
fn threads_of_an_rpc_that_is_rolled_back_are_never_called() {
    let (app, worker) = application("rpc_no_fork", Definition::without_start().step("Part"));
    let mut db = app.db();
    db.run("BEGIN");
    assert_eq!(db.rpc("p", "fork", json!(null)), "forked");
    db.run("ROLLBACK");
    a_turn_is_made(&mut db, "by");
    assert_eq!(worker.count(|call| call.executes("Part")), 0);
    forks(&mut db, &worker);
    app.done(&[]);
}

#[test]
fn an_rpc_that_closes_its_process_aborts_the_threads() {
    let (app, worker) = application("rpc_closes", held());
    let mut db = app.db();
    worker.wait_for("the step", 10, |call| call.executes("Held"));
    db.run("BEGIN");
    assert_eq!(db.rpc("p", "close", json!(null)), "closed");
    db.run("ROLLBACK");
    assert_eq!(db.status("p"), "RUNNING");
    assert_eq!(db.rpc("p", "close", json!(null)), "closed");
    let outcome = db.outcome("p");
    assert_eq!((outcome.status(), outcome.result()), ("FAILED", &json!({"by": "rpc"})));
    assert_eq!(outcome.results()[0]["stateExecutionId"], Value::Null, "no state has given it");
    worker.release();
    a_turn_is_made(&mut db, "by");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({}), "a late answer was applied");
    assert_eq!(db.text("SELECT status FROM xdb.state_executions WHERE process_id = 'p'"), "ABORTED");
    app.done(&[]);
}

#[test]
fn a_step_waits_for_an_rpc_of_its_process_to_be_committed_or_rolled_back() {
    for (name, ending, values) in [("rpc_step_commit", "COMMIT", 1), ("rpc_step_abort", "ROLLBACK", 0)] {
        let (app, worker) = application(name, held());
        let mut db = app.db();
        worker.wait_for("the step", 10, |call| call.executes("Held"));
        let mut caller = app.db();
        caller.run("BEGIN");
        assert_eq!(caller.rpc("p", "note", json!(1)), "noted");
        worker.release();
        a_turn_is_made(&mut db, "by-1");
        a_turn_is_made(&mut db, "by-2");
        assert_eq!(views::ended_states(&mut db, "p"), 0, "the step did not wait");
        assert_eq!(caller.json("SELECT xdb.get_local_attributes('p')"), json!({"by": "rpc"}));
        caller.run(ending);
        wait_until("the step is applied", 10, || views::ended_states(&mut db, "p") == 1);
        assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"by": "step"}));
        assert_eq!(views::messages(&mut db, "p"), values);
        assert_eq!(worker.count(|call| call.executes("Held")), 1, "an answer in hand was thrown away");
        app.done(&[]);
    }
}

#[test]
fn an_rpc_of_a_terminated_session_ends_at_once() {
    let (app, worker) = application("rpc_terminated", held());
    let mut db = app.db();
    let pid: i32 = db.one("SELECT pg_backend_pid()");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| db.try_run("SELECT xdb.invoke_rpc('p', 'slow')"));
        worker.wait_for("the call", 10, |call| call.target() == "slow");
        let (took, answer) = timed(|| {
            app.superuser().run(&format!("SELECT pg_terminate_backend({pid})"));
            caller.join().expect("no panic")
        });
        let error = answer.expect_err("the session has ended");
        assert!(["57P01", "08006"].contains(&error.code.as_str()), "{error:?}");
        assert!(took < Duration::from_secs(3), "it took {took:?}");
    });
    worker.release();
    let mut db = app.db();
    wait_until("the step goes on", 10, || views::ended_states(&mut db, "p") == 1);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"by": "step"}));
    app.done(&["terminating connection due to administrator command"]);
}

#[test]
fn of_two_sessions_with_one_idempotency_key_the_second_gets_the_answer_of_the_first() {
    let (app, worker) = application("rpc_key", Definition::without_start());
    let asks = |rpc: &'static str, key: &'static str| {
        let app = &app;
        move || {
            app.db()
                .try_one::<String>(&format!("SELECT xdb.invoke_rpc('p', '{rpc}', idempotency_key => '{key}')::text"))
        }
    };
    let calls = |key: &str| worker.count(|call| call.call_id().ends_with(&format!("/{key}")));
    let second_waits = || {
        app.superuser().count("pg_stat_activity WHERE query LIKE '%idempotency_key%' AND wait_event_type = 'Lock'") == 1
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(asks("slow", "k"));
        wait_until("the first is called", 10, || calls("k") == 1);
        let second = scope.spawn(asks("slow", "k"));
        wait_until("the second waits for the first", 10, second_waits);
        worker.release();
        for session in [first, second] {
            assert_eq!(session.join().expect("no panic").expect("an answer"), "\"at last\"");
        }
        assert_eq!(calls("k"), 1);
    });
    // One that failed leaves the key to the next.
    std::thread::scope(|scope| {
        let first = scope.spawn(asks("bad", "l"));
        wait_until("the first is called", 10, || calls("l") == 1);
        let second = scope.spawn(asks("note", "l"));
        wait_until("the second waits for the first", 10, second_waits);
        worker.release();
        assert_eq!(first.join().expect("no panic").expect_err("it is bad").code, codes::WORKER_FAILED);
        assert_eq!(second.join().expect("no panic").expect("an answer"), "\"noted\"");
        assert_eq!(calls("l"), 2);
    });
    // One that asks something else with the key of a call that is under way is refused once that call is over.
    std::thread::scope(|scope| {
        let first = scope.spawn(asks("slow", "m"));
        wait_until("the first is called", 10, || calls("m") == 1);
        let second = scope.spawn(asks("note", "m"));
        wait_until("the second waits for the first", 10, second_waits);
        worker.release();
        assert_eq!(first.join().expect("no panic").expect("an answer"), "\"at last\"");
        assert_eq!(second.join().expect("no panic").expect_err("it is another RPC").code, codes::KEY_REUSED);
        assert_eq!(calls("m"), 1);
    });
    app.done(&[]);
}

#[test]
fn messages_published_before_an_rpc_come_before_those_of_its_answer() {
    let (app, _worker) = application("rpc_order", mailbox());
    let mut db = app.db();
    // So that only the RPC receives messages.
    app.pause();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        db.start("p", "asked").reuse("TERMINATE_IF_RUNNING").go();
        db.publish("p", "inbox", json!(1));
        let mut caller = app.db();
        caller.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM users"));
        db.publish("p", "inbox", json!(2));
        match caller.try_one::<String>("SELECT xdb.invoke_rpc('p', 'note', '3')::text") {
            Ok(_) => caller.run("COMMIT"),
            Err(error) => {
                assert_eq!((error.code.as_str(), level == "READ COMMITTED"), ("40001", false), "{level}: {error:?}");
                caller.run("ROLLBACK");
                assert_eq!(db.rpc("p", "note", json!(3)), "noted", "{level}: it can be repeated");
            }
        }
        db.publish("p", "inbox", json!(4));
        app.superuser().run("SELECT xdb.resume_engine()");
        assert_eq!(db.completes("p").result(), &json!([1, 2, 3, 4]), "{level}");
        app.pause();
    }
    app.done(&[]);
}

#[test]
fn messages_keep_their_order_while_an_rpc_holds_the_process() {
    let (app, _worker) = application("rpc_held", mailbox());
    let mut db = app.db();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());
    let mut caller = app.db();
    caller.run("BEGIN");
    assert_eq!(caller.rpc("p", "note", json!("rpc")), "noted");
    for n in 1..=3 {
        db.publish("p", "inbox", json!(n));
    }
    a_turn_is_made(&mut db, "by");
    assert_eq!(db.status("p"), "RUNNING");
    caller.run("COMMIT");
    assert_eq!(db.completes("p").result(), &json!(["rpc", 1, 2, 3]));
    app.done(&[]);
}

#[test]
fn a_key_whose_answer_is_deleted_while_it_is_read_is_claimed_again() {
    let app = App::new("rpc_vanishing_key");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!("answer")),
        _ => any_of(&[local_queue("m", "inbox", 1)]),
    });
    app.register("mail", &mailbox().rpc("ask", json!({})));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.start("p", "mail").go();
    let ask = "SELECT xdb.invoke_rpc('p', 'ask', idempotency_key => 'k')::text";
    assert_eq!(db.text(ask), "\"answer\"");

    // Delays a session between its attempt to claim a key and its read of the stored answer.
    superuser.run(
        "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(14); RETURN NULL; END $$;
         CREATE TRIGGER hold_up AFTER INSERT ON xdb.rpc_answer FOR EACH STATEMENT EXECUTE FUNCTION hold_up();
         SELECT pg_advisory_lock(14)",
    );
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| db.text(ask));
        wait_until("it is held up", 10, || {
            app.superuser().count("pg_stat_activity WHERE query LIKE '%invoke_rpc%' AND wait_event = 'advisory'") == 1
        });
        superuser.run("DELETE FROM xdb.rpc_answer");
        superuser.run("SELECT pg_advisory_unlock(14)");
        assert_eq!(asking.join().expect("no panic"), "\"answer\"");
    });
    assert_eq!(superuser.text("SELECT string_agg(output::text, ',') FROM xdb.rpc_answer"), "\"answer\"");
    assert_eq!(db.text(ask), "\"answer\"");
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 2, "the third has the answer of the second");
    superuser.run("DROP TRIGGER hold_up ON xdb.rpc_answer; DROP FUNCTION hold_up()");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}
