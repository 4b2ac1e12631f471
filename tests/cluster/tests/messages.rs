//! Queues: in order, each message once, for exactly one.

use std::collections::BTreeSet;

use xdb_cluster_tests::prelude::*;

/// One local queue command with bounds instead of a count.
fn between(command: &str, queue: &str, at_least: u32, at_most: u32) -> Value {
    json!({"localQueueCommands":
        {"commandId": command, "queueName": queue, "atLeast": at_least, "atMost": at_most}})
}

/// Reads messages of `inbox` one at a time into the local attribute `seen`, and completes with all of them when there are as many
/// as the input says.
fn reading(call: &Call) -> Answer {
    if call.api == Api::WaitUntil {
        return any_of(&[between("m", "inbox", 1, 10)]);
    }
    let mut seen = call.local("seen").as_array().cloned().unwrap_or_default();
    seen.extend(call.messages("m"));
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
fn a_message_may_come_before_anybody_waits_and_a_step_may_publish() {
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
fn nobody_publishes_to_a_process_that_is_closed() {
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
