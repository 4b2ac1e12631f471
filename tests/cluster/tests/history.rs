//! Histories of which only the last events are kept. They stay small, and `xdb.check_process` still finds changes.

use xdb_cluster_tests::prelude::*;

/// `Round` repeats, once for each message, as often as its input says.
fn looping(name: &str, history: Value) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!("seen")).locals(json!({"seen": true})),
        Api::WaitUntil => any_of(&[local_queue("go", "go", 1)]),
        Api::Execute => match call.input().as_u64() {
            Some(1) => graceful_complete(json!("round and round")).locals(json!({"left": 0})),
            Some(left) => next("Round", json!(left - 1)).locals(json!({"left": left - 1})),
            None => dead_end(),
        },
    });
    app.register(
        "loop",
        &Definition::starting_with("Round").waiting_step("Round").rpc("see", json!({})).with("history", history),
    );
    (app, worker)
}

const OWN: &str = "execution_id = (SELECT execution_id FROM xdb.latest_execution WHERE process_id = 'p')";

#[test]
fn a_process_that_loops_stays_small() {
    let (app, _worker) = looping("history_loop", json!({"keepLast": 8}));
    let mut db = app.db();
    let mut superuser = app.superuser();
    db.start("p", "loop").input(json!(150)).go();
    // It is small at every moment, not only at the end.
    for round in 1..=149u32 {
        db.run(&format!("SELECT xdb.publish('p', 'go', '{round}', message_id => 'm{}')", round % 60));
        if round % 60 == 0 {
            // Ids are remembered beyond the snapshot: what was published before is ignored.
            db.run("SELECT xdb.publish('p', 'go', '\"again\"', message_id => 'm1')");
        }
        if round == 75 {
            db.run("SELECT xdb.publish('p', 'kept', '[1.50]', message_id => 'k'), xdb.invoke_rpc('p', 'see')");
        }
        if round % 25 == 0 {
            let problems: Vec<String> = superuser.all("SELECT problem FROM xdb.check_process('p')");
            assert_eq!(problems, Vec::<String>::new(), "after round {round}");
            assert!(superuser.count(&format!("xdb.history_event WHERE {OWN}")) <= 40);
            assert!(superuser.count(&format!("xdb.state_execution WHERE {OWN}")) <= 20);
        }
    }
    // Sixty ids were used, each once. The repeated ones were ignored.
    wait_until("all messages are taken", 30, || {
        superuser.one(&format!(
            "SELECT EXISTS (SELECT FROM xdb.state_execution WHERE {OWN} AND number = 61 AND status = 'WAITING')"
        ))
    });
    let first: String = db.one("SELECT event_type FROM xdb.history WHERE process_id = 'p' ORDER BY event_id LIMIT 1");
    assert_eq!(first, "Snapshot");
    // A state that has ended, and is not kept, is not waited for.
    let waited: Value = db.json("SELECT xdb.wait_for_state('p', 'Round-2', '20 seconds')");
    assert_eq!(waited, json!({"status": null, "processStatus": "RUNNING", "timedOut": false}));
    assert_eq!(db.json("SELECT xdb.wait_for_state('p', 'Round-61', '0')")["timedOut"], true);
    for round in 60..150 {
        db.run(&format!("SELECT xdb.publish('p', 'go', '{round}')"));
    }
    assert_eq!(db.completes("p").result(), "round and round");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"left": 0, "seen": true}));
    views::assert_history_is_whole(&mut db, "p");
    let events = views::events(&mut db, "p");
    assert!((8..30).contains(&events), "{events}");
    assert!(superuser.count(&format!("xdb.state_execution WHERE {OWN}")) <= 8);
    app.done(&[]);
}

#[test]
fn a_start_overrides_how_much_is_kept_and_failures_stay() {
    let app = App::new("history_override");
    let worker = app.worker(|call: &Call| match call.target() {
        "Try" => error(500, "Broken", "it never works"),
        "Mend" => next("Rest", json!(0)).into(),
        _ => Reply::from(match call.input().as_u64() {
            Some(40) => graceful_complete(json!("rested")),
            Some(n) => next("Rest", json!(n + 1)),
            None => dead_end(),
        }),
    });
    let recovery = json!({"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Mend"});
    let failing = json!({"executeApiRetryPolicy": attempts(3), "stateFailureRecoveryOptions": recovery});
    app.register("try", &Definition::starting_with("Try").step_with("Try", failing).step("Mend").step("Rest"));
    let mut db = app.db();
    db.start("p", "try").options(json!({"history": {"keepLast": 2}})).go();
    db.start("full", "try").go();
    db.start("none", "try").options(json!({"history": "none"})).go();
    for process_id in ["p", "full", "none"] {
        assert_eq!(db.completes(process_id).result(), "rested");
    }
    assert!(worker.count(|call| call.process_id() == "p" && call.target() == "Try") == 3);
    assert_eq!(views::events(&mut db, "none"), 0);
    assert!(views::events(&mut db, "full") > 80);
    assert!(views::events(&mut db, "p") < 10);
    // The last failure is shown until the end.
    for process_id in ["p", "full", "none"] {
        let described = db.json(&format!("SELECT xdb.describe_process('{process_id}')"));
        assert_eq!(described["lastFailure"]["stateExecutionId"], "Try-1", "{process_id}: {described}");
        assert!(views::fails_saying(&mut db, process_id, &["it never works"]));
    }
    app.done(&[]);
}

#[test]
fn changes_by_hand_behind_a_snapshot_are_found() {
    let (app, _worker) = looping("history_tampered", json!({"keepLast": 1}));
    let mut db = app.db();
    let mut superuser = app.superuser();
    db.start("p", "loop").input(json!(9)).locals(json!({"a": 1})).go();
    for round in 1..=5 {
        db.run(&format!("SELECT xdb.publish('p', 'go', '{round}', message_id => 'm{round}')"));
    }
    db.run("SELECT xdb.publish('p', 'kept', '[1.50]')");
    wait_until("the messages are taken", 10, || {
        superuser.one(&format!(
            "SELECT count(*) = 1 FROM xdb.state_execution s, xdb.queue_message m
             WHERE s.{OWN} AND m.{OWN} AND s.number = 6 AND s.status = 'WAITING'"
        ))
    });
    assert_eq!(superuser.count(&format!("xdb.history_event WHERE {OWN} AND event_type = 'Snapshot'")), 1);
    for (change, expected) in [
        ("DELETE FROM xdb.message_key WHERE $OWN AND message_id = 'm1'", "holds 4 ids"),
        ("UPDATE xdb.message_key SET message_id = 'other' WHERE $OWN AND message_id = 'm1'", "holds other ids"),
        ("UPDATE xdb.local_attribute SET value = '2' WHERE $OWN AND key = 'a'", "local_attribute"),
        ("UPDATE xdb.queue_message SET payload = '[2]' WHERE $OWN", "queue_message"),
        ("UPDATE xdb.queue_message SET received_at = received_at - interval '1 day' WHERE $OWN", "received_at"),
        ("UPDATE xdb.state_execution SET input = '77' WHERE $OWN", "state_execution"),
        ("UPDATE xdb.process_execution SET next_state = 9 WHERE $OWN", "next_state"),
        ("UPDATE xdb.process_execution SET history_limit = 0 WHERE $OWN", "history_event"),
        (
            "UPDATE xdb.history_event SET details = jsonb_set(details, '{execution,nextState}', '1') WHERE $OWN AND event_type = 'Snapshot'",
            "next_state",
        ),
        ("DELETE FROM xdb.history_event WHERE $OWN AND event_type = 'Snapshot'", "history_event"),
    ] {
        superuser.run("BEGIN");
        superuser.run(&change.replace("$OWN", OWN));
        let problems: Vec<String> = superuser.all("SELECT problem FROM xdb.check_process('p')");
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{change}\n{expected}\n{problems:#?}");
        superuser.run("ROLLBACK");
    }
    app.done(&[]);
}

#[test]
fn a_process_that_holds_much_does_not_write_it_down_with_every_event() {
    let app = App::new("history_much");
    let _worker = app.worker(|_: &Call| any_of(&[timer("t", 3600.0)]));
    app.register("hold", &mailbox().with("history", json!({"keepLast": 1})));
    let mut db = app.db();
    db.start("p", "hold").go();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());
    // A megabyte that can't be compressed much.
    db.run(
        "SELECT count(xdb.publish('p', 'held', to_jsonb((SELECT string_agg(md5(random()::text), '')
                                                         FROM generate_series(1, 30 + 0 * n)))))
         FROM generate_series(1, 1000) n",
    );
    wait_until("all are taken in", 10, || app.superuser().count("xdb.queue_message") == 1000);
    let written = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    let before: i64 = app.superuser().one(written);
    for n in 0..200 {
        db.run(&format!("SELECT xdb.set_local_attributes('p', '{{\"n\": {n}}}')"));
    }
    let megabytes = (app.superuser().one::<i64>(written) - before) / 1_000_000;
    assert!(megabytes < 60, "{megabytes} MB were written for 200 small events");
    let snapshots = "xdb.history WHERE process_id = 'p' AND event_type = 'Snapshot'";
    wait_until("there is a snapshot again", 60, || {
        db.run("SELECT xdb.set_local_attributes('p', '{\"n\": 0}')");
        views::events(&mut db, "p") < 20
    });
    assert_eq!(db.count(snapshots), 1);
    app.done(&[]);
}
