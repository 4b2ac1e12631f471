//! A slow trigger, an open transaction or a lock of one role delays only the processes that it affects, and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use xdb_cluster_tests::prelude::*;

/// How long twenty unaffected processes may take. On a quiet machine it is a fraction of a second.
const HARDLY_NOTICED: Duration = Duration::from_secs(10);

/// An application with the table `troubled` and four process types. `troubled` counts in this table, and `bystander`
/// counts in another one. `mail` reads one message. The call of `held` hangs until the worker is released.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    app.db().run(
        "CREATE TABLE troubled (id text PRIMARY KEY, n int NOT NULL);
         INSERT INTO troubled SELECT 't' || n, 0 FROM generate_series(1, 100) n;",
    );
    let worker = app.worker(|call: &Call| {
        let counted = || force_complete(json!(null)).globals(json!({"n": call.global("n").as_i64().unwrap_or(0) + 1}));
        match (call.api, call.target()) {
            (Api::Rpc, _) => output(json!("told")).publish("inbox", call.input().clone()).into(),
            (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
            (_, "Read") => force_complete(json!(call.messages("m"))).into(),
            (_, "Held") => Reply::hang(force_complete(json!("released"))),
            (_, "Plain") => force_complete(json!(null)).into(),
            _ => Reply::from(counted()),
        }
    });
    app.register("troubled", &one_step().maps("public.troubled", "id", &["n"]));
    app.register("bystander", &one_step().maps("public.counters", "id", &["n"]));
    app.register("mail", &mailbox().rpc("tell", json!({})));
    app.register("held", &Definition::starting_with("Held").step_with("Held", json!({"executeApiTimeoutSeconds": 60})));
    (app, worker)
}

/// Checks that twenty unaffected processes start and complete in the usual time.
fn bystanders_hardly_notice(app: &App, round: &str) {
    let mut db = app.db();
    let (took, ()) = timed(|| {
        for n in 0..20 {
            let id = format!("by-{round}-{n}");
            db.start(&id, "bystander").key(&id).globals(json!({"n": 0})).go();
        }
        for n in 0..20 {
            db.completes(&format!("by-{round}-{n}"));
        }
    });
    assert!(took < HARDLY_NOTICED, "{round}: twenty bystanders took {took:?}");
    assert_eq!(db.count(&format!("counters WHERE id LIKE 'by-{round}-%' AND n = 1")), 20);
}

#[test]
fn a_hundred_steps_into_a_trigger_that_sleeps_for_an_hour() {
    let (app, worker) = application("isolation_trigger");
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(3600); RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON troubled FOR EACH ROW EXECUTE FUNCTION sleep();",
    );
    for n in 1..=100 {
        db.start(&format!("t{n}"), "troubled").key(&format!("t{n}")).go();
    }
    worker.wait_for("the first answer on its way into the trigger", 10, |call| call.process_id().starts_with('t'));
    bystanders_hardly_notice(&app, "at first");
    let mut superuser = app.superuser();
    wait_until("the table is slow", 30, || views::engine(&mut superuser).contains("public.troubled: "));
    bystanders_hardly_notice(&app, "slow");
    assert_eq!(views::with_status(&mut db, "t%", "RUNNING"), 100);

    db.run("DROP TRIGGER sleep ON troubled");
    wait_until("the hundred complete", 60, || views::with_status(&mut db, "t%", "COMPLETED") == 100);
    assert_eq!(db.count("troubled WHERE n = 1"), 100);
    app.done(&["troubled"]);
}

#[test]
fn three_hundred_rows_held_by_one_open_transaction() {
    let (app, worker) = application("isolation_rows");
    let mut db = app.db();
    db.run("INSERT INTO troubled SELECT 'r' || n, 0 FROM generate_series(1, 300) n");
    let mut holder = app.db();
    holder.run("BEGIN; UPDATE troubled SET n = n");
    for n in 1..=300 {
        db.start(&format!("r{n}"), "troubled").key(&format!("r{n}")).go();
    }
    // More answers than the engine has threads: they must not fill it.
    worker.wait_for_count("all three hundred answers", 30, 300, |call| call.process_id().starts_with('r'));
    bystanders_hardly_notice(&app, "rows");
    assert_eq!(views::with_status(&mut db, "r%", "RUNNING"), 300);
    holder.run("COMMIT");
    wait_until("all three hundred complete", 60, || views::with_status(&mut db, "r%", "COMPLETED") == 300);
    assert_eq!(db.count("troubled WHERE id LIKE 'r%' AND n = 1"), 300);
    app.done(&["troubled"]);
}

#[test]
fn a_table_locked_by_an_open_alter_table() {
    let (app, _worker) = application("isolation_ddl");
    let mut ddl = app.db();
    let mut db = app.db();
    // Started before the lock: a start reads and writes the table in its caller's transaction.
    db.run("BEGIN");
    for n in 1..=10 {
        db.start(&format!("t{n}"), "troubled").key(&format!("t{n}")).go();
    }
    std::thread::scope(|scope| {
        let alter = scope.spawn(|| ddl.run("BEGIN; ALTER TABLE troubled ADD COLUMN later text"));
        // The ALTER TABLE queues up for the lock, so it gets the lock before the engine sees the ten processes.
        let mut superuser = app.superuser();
        wait_until("the ALTER TABLE is next", 10, || {
            superuser.count("pg_stat_activity WHERE query LIKE '%ADD COLUMN%' AND pid <> pg_backend_pid()") == 1
        });
        db.run("COMMIT");
        alter.join().expect("no panic");
    });
    bystanders_hardly_notice(&app, "altered");
    ddl.run("COMMIT");
    for n in 1..=10 {
        db.completes(&format!("t{n}"));
    }
    assert_eq!(db.count("troubled WHERE n = 1"), 10);
    app.done(&["troubled"]);
}

#[test]
fn an_index_that_is_locked_by_an_open_reindex() {
    let (app, _worker) = application("isolation_reindex");
    app.register("plain", &Definition::starting_with("Plain").step("Plain"));
    let mut locker = app.db();
    locker.run("BEGIN; REINDEX INDEX troubled_pkey");
    let mut db = app.db();
    db.run("SELECT xdb.start_process('t' || n, 'troubled', global_attribute_pk => 't' || n) FROM generate_series(1, 100) n");
    // Two hundred that use no table: a turn that waits for the index is a turn in which none of them gets on.
    let mut other = app.session("other");
    let (took, ()) = timed(|| {
        other.run("SELECT xdb.start_process('by-' || n, 'plain') FROM generate_series(1, 200) n");
        wait_until("they complete", 60, || views::with_status(&mut other, "by-%", "COMPLETED") == 200);
    });
    assert!(took < Duration::from_secs(12), "two hundred bystanders took {took:?}");
    locker.run("COMMIT");
    for n in 1..=100 {
        db.completes(&format!("t{n}"));
    }
    app.done(&["troubled"]);
}

#[test]
fn a_row_of_the_application_is_locked_by_an_open_transaction() {
    let (app, _worker) = application("isolation_row");
    let mut locker = app.db();
    locker.run("BEGIN; SELECT FROM troubled WHERE id = 't1' FOR UPDATE");
    let mut db = app.db();
    for n in 1..=10 {
        db.start(&format!("t{n}"), "troubled").key(&format!("t{n}")).go();
    }
    bystanders_hardly_notice(&app, "locked");
    wait_until("its neighbours in the table complete", 20, || views::with_status(&mut db, "t%", "COMPLETED") == 9);
    assert_eq!(db.status("t1"), "RUNNING");
    locker.run("COMMIT");
    db.completes("t1");
    app.done(&["troubled"]);
}

#[test]
fn an_open_transaction_that_holds_a_processs_row() {
    let (app, worker) = application("isolation_process");
    let mut db = app.db();
    db.start("p", "held").go();
    worker.wait_for("its call", 10, |call| call.process_id() == "p");

    let mut locker = app.superuser();
    locker.run("BEGIN; SELECT FROM xdb.process_execution WHERE process_id = 'p' FOR UPDATE");
    worker.release();
    bystanders_hardly_notice(&app, "process locked");
    assert_eq!(db.status("p"), "RUNNING");
    locker.run("COMMIT");
    assert_eq!(db.completes("p").result(), "released");
    assert_eq!(worker.count(|call| call.process_id() == "p"), 1, "an answer in hand was thrown away");
    app.done(&[]);
}

#[test]
fn a_stop_that_is_not_committed() {
    let (app, _worker) = application("isolation_stop");
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());

    let mut stopper = app.db();
    stopper.run("BEGIN; SELECT xdb.stop_process('p')");
    bystanders_hardly_notice(&app, "stopping");
    assert_eq!(db.status("p"), "RUNNING");
    stopper.run("ROLLBACK");
    db.publish("p", "inbox", json!("still here"));
    assert_eq!(db.completes("p").result(), &json!(["still here"]));
    app.done(&[]);
}

#[test]
fn a_stop_of_many_that_is_not_committed() {
    // More answers are blocked than the engine keeps. A single owner has sixteen of eighteen places.
    let app = App::alone("isolation_stops", ClusterOptions::default().set("xdb.max_in_flight", "18"));
    let worker = app.worker(|call: &Call| match call.process_id().starts_with("held") {
        true => Reply::hang(force_complete(json!(null))),
        false => force_complete(json!(null)).into(),
    });
    app.register("step", &one_step());
    let mut db = app.db();
    for n in 0..16 {
        db.start(&format!("held{n}"), "step").go();
    }
    worker.wait_for_count("all are called", 20, 16, |_| true);
    let mut holder = app.db();
    holder.run("BEGIN; SELECT xdb.stop_process('held' || n) FROM generate_series(0, 7) n");
    let mut other = app.db();
    other.run("BEGIN; SELECT xdb.stop_process('held' || n) FROM generate_series(8, 15) n");
    worker.release();
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(3) {
        let id = format!("other{number}");
        db.start(&id, "step").go();
        let (took, _) = timed(|| db.completes(&id));
        assert!(took < Duration::from_secs(2), "{took:?}");
        number += 1;
    }
    holder.run("COMMIT");
    other.run("ROLLBACK");
    worker.misbehave(|_| force_complete(json!(null)));
    for n in 8..16 {
        db.completes(&format!("held{n}"));
    }
    assert_eq!(views::with_status(&mut db, "held%", "TERMINATED"), 8);
    app.done(&[]);
}

#[test]
fn an_rpc_that_is_not_committed() {
    let (app, _worker) = application("isolation_rpc");
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());

    let mut caller = app.db();
    caller.run("BEGIN");
    assert_eq!(caller.rpc("p", "tell", json!("by rpc")), "told");
    bystanders_hardly_notice(&app, "rpc");
    assert_eq!(db.status("p"), "RUNNING");
    caller.run("COMMIT");
    assert_eq!(db.completes("p").result(), &json!(["by rpc"]));
    app.done(&[]);
}

#[test]
fn a_publish_that_is_not_committed() {
    let (app, _worker) = application("isolation_publish");
    let mut db = app.db();
    db.start("p", "mail").go();
    let mut publisher = app.db();
    publisher.run("BEGIN");
    publisher.publish("p", "inbox", json!("early"));
    wait_until("p waits although a session publishes", 10, || !views::waits(&mut db, "p").is_empty());
    bystanders_hardly_notice(&app, "publishing");
    assert_eq!(db.status("p"), "RUNNING");
    publisher.run("COMMIT");
    assert_eq!(db.completes("p").result(), &json!(["early"]));
    app.done(&[]);
}

#[test]
fn a_close_waits_for_open_publishers_alone() {
    let (app, worker) = application("isolation_close");
    let mut db = app.db();
    db.start("p", "held").go();
    worker.wait_for("its call", 10, |call| call.process_id() == "p");
    let mut publisher = app.db();
    publisher.run("BEGIN");
    publisher.publish("p", "inbox", json!("in between"));
    worker.release();
    bystanders_hardly_notice(&app, "closing");
    publisher.run("COMMIT");
    assert_eq!(db.completes("p").result(), "released");
    app.done(&[]);
}

#[test]
fn no_message_is_lost_between_a_publish_and_a_close() {
    const PROCESSES: usize = 12;
    const SESSIONS: usize = 8;
    const LEAST_PUBLISHED: usize = 4000;
    const LEAST_REFUSED: usize = 200;
    // On average fewer unread messages for each process than one call reads. If commits do not wait for a disk,
    // publishers without this bound would keep every queue filled.
    const MOST_UNREAD: usize = 300;
    let app = App::new("isolation_lost");
    let all_read = Arc::new(AtomicUsize::new(0));
    // Reads the present messages and asks to close at once if none is left. So every answer races with the publishers.
    let worker = app.worker({
        let all_read = Arc::clone(&all_read);
        move |call: &Call| match call.api {
            Api::WaitUntil => any_of(&[
                json!({"localQueueCommands": {"commandId": "m", "queueName": "inbox", "atLeast": 1, "atMost": 50}}),
                timer("first", 0.02),
            ]),
            _ => {
                all_read.fetch_add(call.messages("m").len(), Ordering::Relaxed);
                close_if_empty("inbox", "Read")
            }
        }
    });
    app.register("drain", &mailbox());
    // A session that finds the process closed starts it again. So it closes many times in the middle of messages, until
    // the publishers have met enough closes.
    let (all_published, all_refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let enough = || {
        all_published.load(Ordering::Relaxed) >= LEAST_PUBLISHED && all_refused.load(Ordering::Relaxed) >= LEAST_REFUSED
    };
    let deadline = Instant::now() + Duration::from_secs(80);
    let published: Vec<Vec<(String, String)>> = at_once(SESSIONS, |session| {
        let mut db = app.db();
        let mut accepted = Vec::new();
        while !enough() {
            assert!(Instant::now() < deadline, "the closes are too slow: {all_published:?} {all_refused:?}");
            let n = accepted.len();
            let (process, message) = (format!("p{}", (n * 7 + session) % PROCESSES), format!("{session}-{n}"));
            let publish = format!("SELECT xdb.publish('{process}', 'inbox', '\"{message}\"')");
            loop {
                match db.try_run(&publish) {
                    Ok(()) => break,
                    Err(error) if error.code == codes::NOT_RUNNING => {
                        all_refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => assert_eq!(error.code, codes::UNKNOWN_PROCESS, "{error:?}"),
                }
                if let Err(error) = db.start(&process, "drain").try_go() {
                    assert_eq!(error.code, codes::ALREADY_STARTED, "{error:?}");
                }
            }
            accepted.push((process, message));
            all_published.fetch_add(1, Ordering::Relaxed);
            wait_until("the messages are read", 60, || {
                let read = all_read.load(Ordering::Relaxed);
                all_published.load(Ordering::Relaxed).saturating_sub(read) < MOST_UNREAD
            });
        }
        accepted
    });
    let mut accepted: Vec<(String, String)> = published.into_iter().flatten().collect();
    let mut db = app.db();
    for n in 0..PROCESSES {
        db.completes(&format!("p{n}"));
    }

    // Each message was read once, by the process that it was published to, and none is left. A repeated call would
    // count its messages twice, but no call here is repeated.
    let mut consumed: Vec<(String, String)> = Vec::new();
    for call in worker.calls().iter().filter(|call| call.api == Api::Execute) {
        assert_eq!(call.attempt(), 1, "{:?}", call.body);
        let messages = call.messages("m").into_iter().filter_map(|message| message.as_str().map(str::to_owned));
        consumed.extend(messages.map(|message| (call.process_id().to_owned(), message)));
    }
    consumed.sort_unstable();
    accepted.sort_unstable();
    let lost: Vec<_> = accepted.iter().filter(|message| consumed.binary_search(message).is_err()).collect();
    assert!(lost.is_empty(), "{} of {} messages are lost: {lost:?}", lost.len(), accepted.len());
    assert_eq!(consumed.len(), accepted.len(), "messages were read twice");
    assert_eq!(db.count("xdb.queue_messages"), 0);
    app.done(&[]);
}

#[test]
fn a_message_between_the_check_of_the_queues_and_the_close_is_read() {
    const CLOSERS: usize = 8;
    let app = App::alone("isolation_between", ClusterOptions::default().set("xdb.apply_timeout", "5s"));
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        (_, "Close") => Reply::hang(close_if_empty("inbox", "Read")),
        (_, "Read") => force_complete(json!(call.messages("m"))).into(),
        _ if call.global("n") == 1 => force_complete(json!(null)).into(),
        // No close: a closing answer writes its tables after the check, under the lock.
        _ if call.process_id() == "second" => Reply::hang(next("Only", json!(null)).globals(json!({"n": 1}))),
        _ => Reply::from(next("Only", json!(null)).globals(json!({"n": 1}))),
    });
    app.register("drain", &Definition::starting_with("Close").step("Close").waiting_step("Read"));
    app.register("slow", &one_step().maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    db.run(
        "INSERT INTO counters VALUES ('first', 0), ('second', 0);
         CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN new; END $$;
         CREATE TRIGGER dawdle BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION dawdle();",
    );
    db.start("second", "slow").key("second").go();
    for n in 0..CLOSERS {
        db.start(&format!("p{n}"), "drain").go();
    }
    worker.wait_for_count("all of them hang", 10, CLOSERS + 1, |_| true);

    // While the engine is in the slow table for the first time, the other answers come in, so they are one turn. When
    // the engine is in the table for the second time, it has read the queues, and has closed nothing.
    db.start("first", "slow").key("first").go();
    let mut superuser = app.superuser();
    let scheduler = app.scheduler();
    let mut in_slow_table = |what: &str| {
        let sql =
            format!("SELECT xact_start::text FROM pg_stat_activity WHERE pid = {scheduler} AND wait_event = 'PgSleep'");
        let mut begun = None;
        wait_until(what, 10, || {
            begun = superuser.try_maybe::<String>(&sql).expect("it can be asked").filter(|begun| begun != what);
            begun.is_some()
        });
        begun.expect("just found")
    };
    let first_turn = in_slow_table("the engine is in the slow table");
    worker.release();
    in_slow_table(&first_turn);
    let accepted: Vec<usize> = (0..CLOSERS)
        .filter(|n| match db.try_run(&format!("SELECT xdb.publish('p{n}', 'inbox', '{n}')")) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.code, codes::NOT_RUNNING, "{error:?}");
                false
            }
        })
        .collect();
    for n in 0..CLOSERS {
        let outcome = db.completes(&format!("p{n}"));
        let expected = if accepted.contains(&n) { json!([n]) } else { Value::Null };
        assert_eq!(outcome.result(), &expected, "p{n}");
    }
    assert!(!accepted.is_empty(), "everything was closed before any session could publish");
    db.completes("second");
    app.done(&[]);
}

#[test]
fn a_publisher_to_a_closing_process_learns_how_it_ended() {
    let app = App::new("isolation_closing");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1), timer("quiet", 0.05)]).into(),
        _ if call.messages("m").is_empty() => Reply::hang(close_if_empty("inbox", "Read")),
        _ => close_if_empty("inbox", "Read").into(),
    });
    app.register("drain", &mailbox());
    let mut db = app.db();
    db.start("p", "drain").go();
    worker.wait_for("the call that is to close it", 10, |call| call.api == Api::Execute);
    // The close finds this publisher, which then commits. So the condition fails, the message is read, and the process
    // goes on.
    let mut publisher = app.db();
    publisher.run("BEGIN");
    publisher.publish("p", "inbox", json!("just in time"));
    worker.release();
    let mut superuser = app.superuser();
    wait_until("the close waits for the publisher", 10, || {
        superuser.count("xdb.process_execution WHERE closing IS NOT NULL") == 1
    });
    publisher.run("COMMIT");
    worker.wait_for("the message is read", 10, |call| call.messages("m") == [json!("just in time")]);
    worker.heal();
    wait_until("it closes in the end", 20, || {
        worker.release();
        db.status("p") == "COMPLETED"
    });
    app.done(&[]);
}

#[test]
fn no_publisher_waits_for_a_close_whose_answer_was_given_up() {
    // With two calls at a time, one answer may wait for sessions that block its process. Further answers are given up.
    let app = App::alone("close_given_up", ClusterOptions::default().set("xdb.max_in_flight", "2"));
    let worker = app.worker(|_: &Call| Reply::hang(close_if_empty("inbox", "Close")));
    app.register(
        "closing",
        &Definition::starting_with("Close").step_with("Close", json!({"executeApiTimeoutSeconds": 60})),
    );
    let mut db = app.db();
    for id in ["a", "b"] {
        db.start(id, "closing").go();
    }
    worker.wait_for_count("both calls", 10, 2, |_| true);
    let mut publishers = [app.db(), app.db()];
    for (publisher, id) in publishers.iter_mut().zip(["a", "b"]) {
        publisher.run(&format!("BEGIN; SELECT xdb.publish('{id}', 'side', '1')"));
    }
    // So that what is given up is not called again.
    app.pause();
    worker.release();
    let mut superuser = app.superuser();
    wait_until("one is given up", 20, || superuser.count("xdb.task WHERE lease_until IS NULL") == 1);
    assert_eq!(superuser.count("xdb.process_execution WHERE closing IS NOT NULL"), 1);
    let free = "SELECT process_id FROM xdb.process_execution WHERE closing IS NULL";
    let id: String = superuser.one(free);
    db.run("SET statement_timeout = '20 s'");
    db.run(&format!("SELECT xdb.publish('{id}', 'side', '2')"));
    for publisher in &mut publishers {
        publisher.run("COMMIT");
    }
    app.session("boss").run("SELECT xdb.resume_engine()");
    worker.wait_for_count("the call is made again", 20, 3, |_| true);
    worker.release();
    for id in ["a", "b"] {
        db.completes(id);
    }
    app.done(&[]);
}
