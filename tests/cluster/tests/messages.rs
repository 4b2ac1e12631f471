//! Local queues: messages are consumed in order, each once, by exactly one step.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use xdb_cluster_tests::prelude::*;

/// One local queue command with bounds instead of a count.
fn between(command: &str, queue: &str, at_least: u32, at_most: u32) -> Value {
    json!({"localQueueCommands":
        {"commandId": command, "queueName": queue, "atLeast": at_least, "atMost": at_most}})
}

/// The messages that the process has kept, and the messages of this call.
fn seen(call: &Call) -> Vec<Value> {
    let mut seen = call.local("seen").as_array().cloned().unwrap_or_default();
    seen.extend(call.messages("m"));
    seen
}

/// Reads messages of `inbox` one at a time into the local attribute `seen`. Completes with all of them when there are
/// as many as the input says.
fn reading(call: &Call) -> Answer {
    if call.api == Api::WaitUntil {
        return any_of(&[between("m", "inbox", 1, 10)]);
    }
    let seen = seen(call);
    if seen.len() as u64 >= call.input().as_u64().unwrap_or_default() {
        force_complete(json!(seen))
    } else {
        next("Read", call.input().clone()).locals(json!({"seen": seen}))
    }
}

#[test]
fn a_message_id_makes_a_publish_idempotent() {
    let app = App::new("message_id");
    let _worker = app.worker(reading);
    app.register("read", &mailbox());
    let mut db = app.db();
    db.start("p", "read").input(json!(3)).go();
    db.run(r#"SELECT xdb.publish('p', 'inbox', '"first"', message_id => 'm1')"#);
    db.run(r#"SELECT xdb.publish('p', 'inbox', '"again"', message_id => 'm1')"#);
    wait_until("the first is taken", 10, || views::messages(&mut db, "p") == 0);
    // Also when the first has been taken long ago, and when it is another session's turn.
    app.db().run(r#"SELECT xdb.publish('p', 'inbox', '"and again"', message_id => 'm1')"#);
    db.run(r#"SELECT xdb.publish('p', 'inbox', '"second"', message_id => 'm2')"#);
    db.run(r#"SELECT xdb.publish('p', 'inbox', '"third"')"#);
    assert_eq!(db.completes("p").result(), &json!(["first", "second", "third"]));
    app.done(&[]);
}

#[test]
fn a_queue_is_first_in_first_out() {
    let app = App::new("message_fifo");
    let _worker = app.worker(reading);
    app.register("read", &mailbox());
    let mut db = app.db();
    db.start("p", "read").input(json!(40)).go();
    for n in 0..20 {
        db.publish("p", "inbox", json!(n));
    }
    db.run("BEGIN");
    for n in 20..40 {
        db.publish("p", "inbox", json!(n));
    }
    db.run("COMMIT");
    assert_eq!(db.completes("p").result(), &json!((0..40).collect::<Vec<_>>()));
    app.done(&[]);
}

#[test]
fn five_hundred_messages_from_eight_sessions_are_read_once_each() {
    let app = App::new("message_many");
    let _worker = app.worker(reading);
    app.register("read", &mailbox());
    let mut db = app.db();
    for n in 0..20 {
        db.start(&format!("p{n}"), "read").input(json!(25)).go();
    }
    at_once(8, |session| {
        let mut db = app.db();
        for n in (session..500).step_by(8) {
            db.publish(&format!("p{}", n % 20), "inbox", json!(n));
        }
    });
    let mut read: Vec<Value> = Vec::new();
    for n in 0..20 {
        read.extend(db.completes(&format!("p{n}")).result().as_array().cloned().unwrap_or_default());
    }
    assert_eq!(read.len(), 500);
    let distinct: BTreeSet<u64> = read.iter().filter_map(Value::as_u64).collect();
    assert_eq!(distinct.len(), 500);
    app.done(&[]);
}

#[test]
fn a_message_may_arrive_before_a_wait_and_a_step_may_publish() {
    let app = App::new("message_before");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => all_of(&[local_queue("mine", "mine", 1), local_queue("theirs", "theirs", 2)]),
        (_, "Only") => next("Read", json!(null)).publish("mine", json!("to myself")),
        _ => force_complete(json!([call.messages("mine"), call.messages("theirs")])),
    });
    app.register("chain", &one_step().waiting_step("Read"));
    let mut db = app.db();
    db.run("BEGIN");
    db.start("p", "chain").go();
    db.publish("p", "theirs", json!(1));
    db.run("COMMIT");
    db.publish("p", "theirs", json!(2));
    assert_eq!(db.completes("p").result(), &json!([["to myself"], [1, 2]]));
    app.done(&[]);
}

#[test]
fn the_first_satisfied_combination_ends_the_wait() {
    let app = App::new("message_combination");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_combination(
            &[local_queue("a", "a", 1), local_queue("b", "b", 1), timer("t", call.input().as_f64().unwrap_or(3600.0))],
            json!([["a", "b"], ["t"]]),
        ),
        _ => force_complete(json!([call.messages("a"), call.messages("b"), call.fired("t")])),
    });
    app.register("both", &mailbox());
    let mut db = app.db();
    db.start("p", "both").go();
    db.publish("p", "a", json!("A"));
    worker.wait_for("it is asked what it waits for", 10, |_| true);
    assert_eq!(db.status("p"), "RUNNING");
    db.publish("p", "b", json!("B"));
    assert_eq!(db.completes("p").result(), &json!([["A"], ["B"], false]));

    db.start("q", "both").input(json!(0.2)).go();
    assert_eq!(db.completes("q").result(), &json!([[], [], true]));
    app.done(&[]);
}

#[test]
fn at_least_and_at_most() {
    let app = App::new("message_bounds");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[between("m", "inbox", 2, 3)]),
        _ => force_complete(json!(call.messages("m"))),
    });
    app.register("bounded", &mailbox());
    let mut db = app.db();
    db.run("BEGIN");
    db.start("p", "bounded").go();
    for n in 1..=5 {
        db.publish("p", "inbox", json!(n));
    }
    db.run("COMMIT");
    assert_eq!(db.completes("p").result(), &json!([1, 2, 3]));

    db.start("q", "bounded").go();
    worker.wait_for("q is asked", 10, |call| call.process_id() == "q");
    db.publish("q", "inbox", json!("one"));
    wait_until("q waits on", 10, || !views::waits(&mut db, "q").is_empty());
    db.publish("q", "inbox", json!("two"));
    assert_eq!(db.completes("q").result(), &json!(["one", "two"]));
    app.done(&[]);
}

#[test]
fn no_session_publishes_to_a_closed_process() {
    let app = App::new("message_closed");
    let _worker = app.worker(reading);
    app.register("read", &mailbox());
    let mut db = app.db();
    db.start("p", "read").input(json!(1)).go();
    db.publish("p", "inbox", json!("last"));
    db.completes("p");
    db.refused(codes::NOT_RUNNING, "SELECT xdb.publish('p', 'inbox', '1')");
    app.done(&[]);
}

/// Publishes to its own queue, by a state or an RPC. Then it reads until the message `end`. The result is all messages
/// that it has read.
fn sends_and_reads_to_the_end(call: &Call) -> Reply {
    let sends = json!([{"queueName": "inbox", "messageId": "m", "payload": "of the process"}]);
    match (call.api, call.target()) {
        (Api::Rpc, _) => Reply::Json(200, json!({"output": "sent", "publishToLocalQueue": sends})),
        (_, "Send") => Reply::hang(Reply::Json(
            200,
            json!({"stateDecision": {"nextStates": [{"stateId": "Read"}]}, "publishToLocalQueue": sends}),
        )),
        (Api::WaitUntil, _) => any_of(&[between("m", "inbox", 1, 10)]).into(),
        _ => {
            let mut seen = call.local("seen").as_array().cloned().unwrap_or_default();
            seen.extend(call.messages("m"));
            match seen.last() == Some(&json!("end")) {
                true => force_complete(json!(seen)).into(),
                false => next("Read", json!(null)).locals(json!({"seen": seen})).into(),
            }
        }
    }
}

#[test]
fn a_message_id_of_a_client_and_of_a_state_is_one_message() {
    let app = App::new("message_both");
    let worker = app.worker(sends_and_reads_to_the_end);
    app.register("send", &Definition::starting_with("Send").step("Send").waiting_step("Read"));
    let mut db = app.db();
    for round in 0..5 {
        let id = format!("p{round}");
        db.start(&id, "send").go();
        worker.wait_for("its call", 10, |call| call.process_id() == id);
        // So that the message is taken in together with the answer.
        app.pause();
        db.run(&format!(r#"SELECT xdb.publish('{id}', 'inbox', '"of a client"', message_id => 'm')"#));
        worker.release();
        wait_until("the answer is applied", 10, || views::ended_states(&mut db, &id) == 1);
        app.superuser().run("SELECT xdb.resume_engine()");
        db.publish(&id, "inbox", json!("end"));
        assert_eq!(db.completes(&id).result(), &json!(["of a client", "end"]));
    }
    app.done(&[]);
}

#[test]
fn a_message_id_of_a_client_and_of_an_rpc_is_one_message() {
    let app = App::new("message_rpc");
    let _worker = app.worker(sends_and_reads_to_the_end);
    app.register("read", &mailbox().rpc("send", json!({})));
    let mut db = app.db();
    let client = |id: &str| format!(r#"SELECT xdb.publish('{id}', 'inbox', '"of a client"', message_id => 'm')"#);

    // It has been read, it waits to be read, or it is not even committed.
    db.start("read", "read").go();
    db.run(&client("read"));
    wait_until("it is read", 10, || views::messages(&mut db, "read") == 0);
    db.rpc("read", "send", json!(null));

    app.pause();
    db.start("unread", "read").go();
    db.run(&client("unread"));
    db.rpc("unread", "send", json!(null));
    app.superuser().run("SELECT xdb.resume_engine()");

    db.start("same", "read").go();
    db.run("BEGIN");
    db.run(&client("same"));
    db.rpc("same", "send", json!(null));
    db.run("COMMIT");
    for id in ["read", "unread", "same"] {
        db.publish(id, "inbox", json!("end"));
        assert_eq!(db.completes(id).result(), &json!(["of a client", "end"]), "{id}");
    }

    // The other way round.
    db.start("rpc", "read").go();
    db.rpc("rpc", "send", json!(null));
    db.run(&client("rpc"));
    db.publish("rpc", "inbox", json!("end"));
    assert_eq!(db.completes("rpc").result(), &json!(["of the process", "end"]));
    app.done(&[]);
}

#[test]
fn a_stop_that_waited_for_publishers_leaves_nothing_that_blocks_the_next_start() {
    let app = App::new("message_stopped");
    let _worker = app.worker(reading);
    app.register("read", &mailbox());
    let mut db = app.db();
    db.start("p", "read").input(json!(1000)).go();
    db.start("q", "read").input(json!(20)).go();
    wait_until("both wait", 10, || !views::waits(&mut db, "p").is_empty() && !views::waits(&mut db, "q").is_empty());
    let mut publisher = app.db();
    publisher.run("BEGIN");
    publisher.run("SELECT xdb.publish('p', 'inbox', to_jsonb(n)) FROM generate_series(1, 300) n");
    let mut stopper = app.db();
    stopper.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users");
    let pid: i32 = stopper.one("SELECT pg_backend_pid()");
    let stopped = std::thread::scope(|scope| {
        let stop = scope.spawn(|| stopper.try_run("SELECT xdb.stop_process('p')"));
        let mut superuser = app.superuser();
        wait_until("the stop waits for the publisher", 10, || {
            superuser.count(&format!("pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'")) == 1
        });
        publisher.run("COMMIT");
        stop.join().expect("no panic")
    });
    match stopped {
        Ok(()) => stopper.run("COMMIT"),
        Err(error) => {
            assert_eq!(error.code, "40001", "{error:?}");
            stopper.run("ROLLBACK");
            db.run("SELECT xdb.stop_process('p')");
        }
    }
    assert_eq!(db.status("p"), "TERMINATED");
    for n in 0..20 {
        db.publish("q", "inbox", json!(n));
    }
    assert_eq!(db.completes("q").result(), &json!((0..20).collect::<Vec<_>>()));
    let mut superuser = app.superuser();
    wait_until("no message is left for a closed process", 20, || {
        superuser.count("xdb.inbox JOIN xdb.process_execution USING (execution_id) WHERE status <> 'RUNNING'") == 0
    });
    app.done(&[]);
}

/// A process `p` that wants to close if `inbox` is empty. A session blocks the close, because it has published 1 in an
/// open transaction. `before` runs while the process runs and no close is requested.
fn held_up(app: &App, before: impl FnOnce()) -> (Worker, Db) {
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Close") => Reply::hang(close_if_empty("inbox", "Read")),
        (Api::WaitUntil, _) => reading(call).into(),
        // It never closes with a message left behind, however many come while it reads.
        _ => Reply::from(close_if_empty("inbox", "Read").locals(json!({"seen": seen(call)}))),
    });
    app.register("drain", &Definition::starting_with("Close").step("Close").waiting_step("Read"));
    app.db().start("p", "drain").go();
    worker.wait_for("the call that is to close it", 10, |_| true);
    before();
    let mut publisher = app.db();
    publisher.run("SET statement_timeout = '20 s'; BEGIN");
    publisher.publish("p", "inbox", json!(1));
    worker.release();
    let mut superuser = app.superuser();
    wait_until("the close waits for the publisher", 10, || {
        superuser.count("xdb.process_execution WHERE closing = 'CONDITIONAL'") == 1
    });
    (worker, publisher)
}

#[test]
fn a_session_that_blocks_a_close_may_publish_again() {
    let app = App::new("message_again");
    let (_worker, mut publisher) = held_up(&app, || {});
    publisher.publish("p", "inbox", json!(2));
    publisher.run("COMMIT");
    app.db().completes("p");
    assert_eq!(app.db().json("SELECT xdb.get_local_attributes('p')"), json!({"seen": [1, 2]}));
    app.done(&[]);
}

/// Two conflicting row locks may both be granted, if one transaction raises its lock while another gets the weaker one.
/// The test tries often, because that moment is short.
#[test]
fn no_session_publishes_to_a_process_that_another_session_has_locked_for_a_close() {
    const OF_P: &str = "FROM xdb.process_execution WHERE process_id = 'p'";
    const SHARED: &str = "ELSE EXISTS (SELECT FROM pg_get_multixact_members(xmax) AS m WHERE m.mode = 'keysh') END";
    let app = App::new("message_race");
    let _worker = app.worker(reading);
    app.register("read", &mailbox());
    app.pause();
    app.db().start("p", "read").input(json!(1)).go();
    let (is_over, deadline) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(60));
    at_once(3, |session| {
        if session > 0 {
            let mut publisher = app.db();
            publisher.run("SET synchronous_commit = off");
            while !is_over.load(Ordering::Relaxed) && Instant::now() < deadline {
                publisher.publish("p", "inbox", json!(session));
            }
            return;
        }
        let mut closer = app.superuser();
        let mut published = 0;
        for _ in 0..6000 {
            closer.run(&format!("BEGIN; SELECT {OF_P} FOR NO KEY UPDATE"));
            if closer.count(&format!("(SELECT {OF_P} FOR UPDATE SKIP LOCKED) AS locked")) == 1 {
                let last: i64 = closer.one("SELECT COALESCE(max(inbox_id), 0) FROM xdb.inbox");
                if closer.one::<bool>(&format!(
                    "SELECT CASE WHEN xmax = pg_current_xact_id()::xid THEN false {SHARED} {OF_P}"
                )) {
                    // Enough time to publish for a session that got its lock.
                    closer.run("SELECT pg_sleep(0.02)");
                }
                published += closer.count(&format!("xdb.inbox WHERE inbox_id > {last}"));
            }
            closer.run("ROLLBACK");
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(published, 0, "under the lock");
    });
    app.superuser().run("SELECT xdb.stop_process('p'), xdb.resume_engine()");
    app.done(&[]);
}

#[test]
fn a_publisher_with_an_old_snapshot_does_not_hang_at_a_close() {
    const BEGIN: &str =
        "SET statement_timeout = '20 s'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users";
    let app = App::new("message_snapshot");
    let (mut before, mut after) = (app.db(), app.db());
    let (_worker, mut publisher) = held_up(&app, || before.run(BEGIN));
    after.run(BEGIN);
    let mut published = 1;
    for (who, session) in [("before", &mut before), ("after", &mut after)] {
        match session.try_run("SELECT xdb.publish('p', 'inbox', '0')") {
            Ok(()) => {
                session.run("COMMIT");
                published += 1;
            }
            Err(error) => {
                assert_eq!(error.code, "40001", "{who}: {error:?}");
                session.run("ROLLBACK");
            }
        }
    }
    publisher.run("COMMIT");
    app.db().completes("p");
    let attributes = app.db().json("SELECT xdb.get_local_attributes('p')");
    assert_eq!(attributes["seen"].as_array().map(Vec::len), Some(published), "{attributes}");
    app.done(&[]);
}

#[test]
fn sixty_large_messages_are_received_in_several_turns() {
    const SIZE: usize = 900_000;
    let app = App::new("message_great");
    let worker = app.worker(|call: &Call| {
        if call.process_id() == "by" {
            return force_complete(json!(null));
        }
        if call.api == Api::WaitUntil {
            return any_of(&[between("m", "inbox", 1, 5)]);
        }
        let mut seen = call.local("seen").as_array().cloned().unwrap_or_default();
        seen.extend(call.messages("m").iter().map(|message| message["n"].clone()));
        match seen.len() {
            60 => force_complete(json!(seen)),
            _ => next("Read", json!(null)).locals(json!({"seen": seen})),
        }
    });
    app.register("read", &mailbox());
    app.register("one", &one_step());
    let mut db = app.db();
    let scheduler = app.scheduler();
    db.run("BEGIN");
    db.start("p", "read").go();
    db.run(&format!(
        "SELECT xdb.publish('p', 'inbox', jsonb_build_object('n', n, 'filling', repeat('x', {SIZE})))
         FROM generate_series(1, 60) n"
    ));
    db.run("COMMIT");
    let (took, _) = timed(|| {
        db.start("by", "one").go();
        db.completes("by");
    });
    assert!(took < Duration::from_secs(10), "another owner's process took {took:?}");
    assert_eq!(db.completes("p").result(), &json!((1..=60).collect::<Vec<_>>()));
    assert!(worker.calls().iter().all(|call| call.messages("m").len() <= 5));
    assert_eq!(app.scheduler(), scheduler, "the scheduler was restarted");
    let peak = peak_memory(scheduler);
    assert!(peak < 600_000, "the scheduler needed {peak} kB");
    app.done(&[]);
}

/// The peak memory of a process, in kB.
fn peak_memory(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has memory");
    line.trim_end_matches("kB").trim().parse().expect("a number")
}
