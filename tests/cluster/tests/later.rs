//! What the model has and this version has not: the tests are there, and are run with `--ignored` by whoever adds it.
//! `errors.rs` has the test that nothing of this is accepted silently.

use xdb_cluster_tests::prelude::*;

/// `mail` waits for a message; `sleep` for an hour; `one` completes at once.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Sleep") => any_of(&[timer("t", 3600.0)]),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => force_complete(json!(call.messages("m"))),
        _ => force_complete(json!({"fired": call.fired("t"), "k": call.local("k")})),
    });
    app.register("mail", &mailbox());
    app.register("sleep", &Definition::starting_with("Sleep").waiting_step("Sleep"));
    app.register("one", &one_step());
    (app, worker)
}

#[test]
#[ignore = "durable locks"]
fn nobody_loses_an_update_under_an_exclusive_lock() {
    let app = App::new("table_exclusive");
    let _worker = app.worker(|call: &Call| {
        let left = call.input().as_u64().unwrap_or_default();
        let n = call.global("n").as_i64().unwrap_or_default() + 1;
        let decision = if left > 1 { next("Only", json!(left - 1)) } else { force_complete(json!(null)) };
        decision.globals(json!({"n": n}))
    });
    let exclusive = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}});
    app.register(
        "count",
        &Definition::starting_with("Only").step_with("Only", exclusive).maps("public.counters", "id", &["n"]),
    );
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('shared', 0)");
    for n in 0..8 {
        db.start(&format!("p{n}"), "count").key("shared").input(json!(5)).go();
    }
    // A plain writer takes part.
    for _ in 0..20 {
        db.run("UPDATE counters SET n = n + 1 WHERE id = 'shared'");
    }
    for n in 0..8 {
        db.completes(&format!("p{n}"));
    }
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'shared'"), 8 * 5 + 20);
    app.done(&[]);
}

#[test]
#[ignore = "global queues"]
fn a_global_queue_serves_its_waiters_in_order() {
    let app = App::new("message_global");
    let _worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (Api::WaitUntil, "euro") => any_of(&[json!({"globalQueueCommands":
            {"commandId": "g", "queueName": "prices", "key": "EUR"}})]),
        (Api::WaitUntil, _) => any_of(&[global_queue("g", "jobs", 1)]),
        _ => force_complete(json!(call.messages("g"))),
    });
    app.register("taker", &mailbox());
    let mut db = app.db();
    for id in ["first", "second", "euro"] {
        db.start(id, "taker").go();
        wait_until(&format!("{id} waits"), 10, || !views::waits(&mut db, id).is_empty());
    }
    db.run(r#"SELECT xdb.publish_global('jobs', '"a"'); SELECT xdb.publish_global('jobs', '"b"')"#);
    assert_eq!(db.completes("first").result(), &json!(["a"]));
    assert_eq!(db.completes("second").result(), &json!(["b"]));

    db.run("SELECT xdb.publish_global('prices', '1.1', key => 'USD'); SELECT xdb.publish_global('prices', '1.2', key => 'EUR')");
    assert_eq!(db.completes("euro").result(), &json!([1.2]));
    app.done(&[]);
}

#[test]
#[ignore = "global queues"]
fn a_message_of_a_global_queue_goes_back_when_its_taker_ends_without_having_used_it() {
    let app = App::new("message_back");
    let worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (Api::WaitUntil, _) => any_of(&[global_queue("g", "jobs", 1)]).into(),
        (_, "careless") => Reply::hang(force_complete(json!(null))),
        _ => Reply::from(force_complete(json!(call.messages("g")))),
    });
    app.register("taker", &mailbox());
    let mut db = app.db();
    db.run(r#"SELECT xdb.publish_global('jobs', '"a"'); SELECT xdb.publish_global('jobs', '"b"')"#);
    db.start("careless", "taker").go();
    worker.wait_for("it has taken one", 10, |call| call.api == Api::Execute);
    db.run("SELECT xdb.stop_process('careless')");
    db.start("careful", "taker").go();
    assert_eq!(db.completes("careful").result(), &json!(["a"]));
    app.done(&[]);
}

#[test]
#[ignore = "start_processes"]
fn many_start_in_one_call_and_come_back_in_order() {
    let (app, _worker) = application("start_bulk");
    let mut db = app.db();
    let ids: Vec<String> = (0..50).rev().map(|n| format!("bulk-{n}")).collect();
    let list: Vec<Value> = ids.iter().map(|id| json!({"process_id": id, "process_type": "one"})).collect();
    let list = json!(list);
    let executions: Vec<String> = db.all(&format!(
        "SELECT e::text FROM xdb.start_processes('{list}'::jsonb) WITH ORDINALITY AS s(e, n) ORDER BY n"
    ));
    assert_eq!(executions.len(), 50);
    for (id, execution) in ids.iter().zip(&executions) {
        db.text(&format!("SELECT xdb.describe_process('{id}', execution_id => '{execution}')"));
        db.completes(id);
    }

    // One bad start is none at all.
    let list = json!([{"process_id": "good", "process_type": "one"}, {"process_id": "bad", "process_type": "no such"}]);
    db.refused(codes::UNKNOWN_PROCESS_TYPE, &format!("SELECT xdb.start_processes('{list}'::jsonb)"));
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('good')");
    app.done(&[]);
}

#[test]
#[ignore = "wait_for_state"]
fn one_state_can_be_waited_for() {
    let (app, _worker) = application("admin_state");
    let mut db = app.db();
    db.start("p", "mail").go();
    let early = db.json("SELECT xdb.wait_for_state('p', 'Read-1', '200 ms')");
    assert_eq!(early["timedOut"], true, "{early}");
    db.publish("p", "inbox", json!(1));
    let answer = db.json("SELECT xdb.wait_for_state('p', 'Read-1', '10 seconds')");
    assert_ne!(answer["timedOut"], true, "{answer}");
    app.done(&[]);
}

#[test]
#[ignore = "set_local_attributes, skip_timer"]
fn a_timer_is_seen_and_can_be_skipped() {
    let (app, _worker) = application("admin_timer");
    let mut db = app.db();
    db.start("p", "sleep").locals(json!({"k": 1})).go();
    wait_until("the timer is there", 10, || views::timers(&mut db, "p") == 1);
    db.run(r#"SELECT xdb.set_local_attributes('p', '{"k": [2, "two"]}')"#);
    db.run("SELECT xdb.skip_timer('p', 'Sleep-1')");
    assert_eq!(db.completes("p").result(), &json!({"fired": true, "k": [2, "two"]}));
    assert_eq!(views::timers(&mut db, "p"), 0);
    app.done(&[]);
}

#[test]
#[ignore = "retry_now"]
fn a_call_in_backoff_can_be_made_now() {
    let (app, worker) = application("admin_retry");
    let slow = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 600, "maximumIntervalSeconds": 600}});
    app.register("one", &Definition::starting_with("Only").step_with("Only", slow));
    worker.misbehave(|_| error(500, "Broken", "for now"));
    let mut db = app.db();
    db.start("p", "one").go();
    wait_until("the failure shows", 10, || views::fails_saying(&mut db, "p", &["for now"]));
    worker.heal();
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 1);
    db.completes("p");
    app.done(&[]);
}

#[test]
#[ignore = "purge"]
fn what_is_closed_can_be_purged_and_what_runs_cannot() {
    let (app, _worker) = application("admin_purge");
    let mut db = app.db();
    for n in 0..5 {
        db.start(&format!("done-{n}"), "one").go();
        db.completes(&format!("done-{n}"));
    }
    db.start("running", "mail").go();
    assert_eq!(app.session("boss").one::<i64>("SELECT xdb.purge('0 seconds')"), 5);
    assert_eq!(db.count("xdb.processes"), 1);
    assert!(views::events(&mut db, "done-0") == 0 && views::events(&mut db, "running") > 0);
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('done-0')");
    db.publish("running", "inbox", json!(1));
    db.completes("running");
    app.done(&[]);
}

#[test]
#[ignore = "history with keepLast"]
fn a_process_that_loops_keeps_as_much_history_as_it_was_told() {
    let app = App::new("later_history");
    let _worker = app.worker(|call: &Call| match call.input().as_u64().unwrap_or_default() {
        0 => force_complete(json!("round and round")),
        left => next("Only", json!(left - 1)),
    });
    app.register("loop", &one_step());
    let mut db = app.db();
    for (id, history) in [("full", json!("full")), ("some", json!({"keepLast": 10})), ("none", json!("none"))] {
        db.start(id, "loop").input(json!(30)).options(json!({"history": history})).go();
        assert_eq!(db.completes(id).result(), "round and round");
    }
    assert!(views::events(&mut db, "full") > 31);
    assert!(views::events(&mut db, "some") <= 20, "{} events", views::events(&mut db, "some"));
    assert_eq!(views::events(&mut db, "none"), 0);
    app.done(&[]);
}

#[test]
#[ignore = "adopt"]
fn a_copied_database_waits_until_it_is_adopted() {
    let (app, worker) = application("later_original");
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("it waits", 10, || !views::waits(&mut db, "p").is_empty());
    drop(db);

    let mut superuser = app.cluster().superuser();
    wait_until("the database can be copied", 30, || {
        superuser.try_run("CREATE DATABASE later_copy TEMPLATE later_original").is_ok()
    });
    let mut copy = app.cluster().connect("later_copy", "app");
    let mut engine = app.cluster().connect("later_copy", "postgres");
    wait_until("its status says why it waits", 20, || views::engine(&mut engine).to_lowercase().contains("adopt"));
    copy.publish("p", "inbox", json!("to the copy"));
    app.db().publish("p", "inbox", json!("to the original"));
    assert_eq!(app.db().completes("p").result(), &json!(["to the original"]));
    assert_eq!(copy.status("p"), "RUNNING");

    engine.run("SELECT xdb.adopt()");
    assert_eq!(copy.completes("p").result(), &json!(["to the copy"]));
    assert_eq!(worker.count(|call| call.api == Api::Execute), 2);
    drop((copy, engine));
    superuser.drop_database("later_copy", "WITH (FORCE)");
    app.done(&[]);
}

#[test]
#[ignore = "durable locks"]
fn rpcs_under_an_exclusive_lock_lose_no_update() {
    let app = App::new("later_rpc");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => {
            let n = call.global("n").as_i64().unwrap_or_default() + 1;
            output(json!(n)).globals(json!({"n": n}))
        }
    });
    let exclusive = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}});
    app.register("asked", &mailbox().maps("public.counters", "id", &["n"]).rpc("add", exclusive));
    app.db().start("p", "asked").key("p").globals(json!({"n": 0})).go();
    at_once(8, |_| {
        let mut db = app.db();
        for _ in 0..10 {
            db.rpc("p", "add", json!(1));
        }
    });
    assert_eq!(app.db().one::<i32>("SELECT n FROM counters"), 80);
    app.done(&[]);
}

#[test]
#[ignore = "wait_for_state, skip_timer, set_local_attributes, retry_now, check_process"]
fn what_drives_a_process_by_hand_knows_states_owners_and_ends() {
    let (app, _worker) = application("later_errors");
    let mut db = app.db();
    db.start("p", "mail").go();
    let state = db.refused(codes::UNKNOWN_STATE, "SELECT xdb.wait_for_state('p', 'Nowhere-1', '1 second')");
    assert!(state.message.contains("Nowhere"), "{state:?}");
    db.refused(codes::UNKNOWN_STATE, "SELECT xdb.skip_timer('p', 'Nowhere-1')");
    db.refused(codes::INVALID_ARGUMENT, "SELECT xdb.wait_for_state('p', 'Read-1', '2 hours')");
    db.refused(codes::INVALID_ARGUMENT, r#"SELECT xdb.set_local_attributes('p', '[1]')"#);
    db.run("BEGIN");
    db.publish("p", "inbox", json!(1));
    db.refused(codes::WOULD_WAIT_FOR_ITSELF, "SELECT xdb.wait_for_state('p', 'Read-1', '1 second')");
    db.run("ROLLBACK");

    let mut other = app.session("other");
    for sql in [
        "SELECT xdb.wait_for_state('p', 'Read-1', '1 second')",
        r#"SELECT xdb.set_local_attributes('p', '{"k": 1}')"#,
        "SELECT xdb.skip_timer('p', 'Read-1')",
        "SELECT xdb.retry_now('p')",
        "SELECT xdb.check_process('p')",
    ] {
        other.refused(codes::UNKNOWN_PROCESS, sql);
    }
    db.run("SELECT xdb.stop_process('p')");
    db.refused(codes::NOT_RUNNING, r#"SELECT xdb.set_local_attributes('p', '{"k": 1}')"#);
    assert_eq!(db.all::<String>("SELECT problem FROM xdb.check_process('p')"), Vec::<String>::new());
    app.done(&[]);
}
