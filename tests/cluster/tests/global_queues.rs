//! Queues that all processes share. Each message goes to exactly one process, in the order of waiting. An unused
//! message returns to its place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use xdb_cluster_tests::prelude::*;

/// A command on a global queue, with or without a key.
fn keyed(command: &str, queue: &str, key: Value, at_least: u32, at_most: u32) -> Value {
    json!({"globalQueueCommands":
        {"commandId": command, "queueName": queue, "key": key, "atLeast": at_least, "atMost": at_most}})
}

/// Waits as its input says, `{"queue", "key", "atLeast", "atMost"}`. Completes with the payloads.
fn taking(call: &Call) -> Answer {
    let wanted = call.input();
    let bound = |name: &str| wanted[name].as_u64().unwrap_or(1) as u32;
    let queue = wanted["queue"].as_str().unwrap_or("jobs");
    match call.api {
        Api::WaitUntil => any_of(&[keyed("m", queue, wanted["key"].clone(), bound("atLeast"), bound("atMost"))]),
        _ => force_complete(json!(call.messages("m"))),
    }
}

/// An application whose processes take from `jobs`, or from the queue of their input.
fn takers(name: &str) -> (App, Worker) {
    takers_in(App::new(name))
}

fn takers_in(app: App) -> (App, Worker) {
    let worker = app.worker(taking);
    app.register("take", &mailbox());
    (app, worker)
}

/// Starts many processes at once, and returns when all of them wait.
fn all_wait(db: &mut Db, name: &str, count: usize, wanted: &Value) {
    db.run("BEGIN");
    (0..count).for_each(|n| drop(db.start(&format!("{name}{n}"), "take").input(wanted.clone()).go()));
    db.run("COMMIT");
    let waiting = format!("xdb.waits WHERE process_id LIKE '{name}%'");
    wait_until("all of them wait", 30, || db.count(&waiting) == count as i64);
}

fn publish(db: &mut Db, payload: Value) {
    db.run(&format!("SELECT xdb.publish_global('jobs', '{payload}')"));
}

fn publish_with_key(db: &mut Db, key: &str, payload: Value) {
    db.run(&format!("SELECT xdb.publish_global('jobs', '{payload}', key => '{key}')"));
}

/// Starts a process, and returns when it waits.
fn waits(db: &mut Db, id: &str, wanted: Value) {
    db.start(id, "take").input(wanted).go();
    wait_until(&format!("{id} waits"), 10, || !views::waits(db, id).is_empty());
}

/// Free messages of `jobs`, in their order.
fn left(app: &App) -> Vec<Value> {
    let left = "SELECT coalesce(jsonb_agg(payload ORDER BY position), '[]') FROM xdb.queue_messages
                WHERE queue_name = 'jobs' AND process_id IS NULL";
    app.superuser().json(left).as_array().cloned().expect("an array")
}

#[test]
fn a_message_waits_for_a_waiter() {
    let (app, worker) = takers("global_before");
    let mut db = app.db();
    publish(&mut db, json!("first"));
    db.run("BEGIN");
    publish(&mut db, json!("second"));
    publish(&mut db, json!({"number": 1.5}));
    db.run("COMMIT");
    db.start("p", "take").input(json!({"atMost": 2})).go();
    assert_eq!(db.completes("p").result(), &json!(["first", "second"]));
    db.start("q", "take").go();
    assert_eq!(db.completes("q").result(), &json!([{"number": 1.5}]));
    let call = worker.wait_for("execute of p", 10, |call| call.process_id() == "p" && call.executes("Read"));
    assert_eq!(
        call.body["commandResults"]["globalQueueResults"],
        json!([{"commandId": "m", "queueName": "jobs", "status": "COMPLETED_COMMAND", "messages": [
            {"messageId": null, "key": null, "payload": "first"}, {"messageId": null, "key": null, "payload": "second"}
        ]}])
    );
    assert_eq!(app.superuser().count("xdb.global_message"), 0, "consumed messages are deleted");
    app.done(&[]);
}

#[test]
fn waiters_are_served_in_order_of_waiting_for_any_number_of_messages() {
    let (app, _worker) = takers("global_order");
    let mut db = app.db();
    waits(&mut db, "eur-1", json!({"key": "EUR"}));
    waits(&mut db, "any-1", json!({}));
    waits(&mut db, "usd", json!({"key": "USD"}));
    waits(&mut db, "eur-2", json!({"key": "EUR"}));
    waits(&mut db, "any-2", json!({}));
    let wait = db.rows(
        "SELECT kind, queue_name, key, at_least, at_most, since IS NOT NULL AS since
                        FROM xdb.waits WHERE process_id = 'usd'",
    );
    let expected = json!({"kind": "GLOBAL_QUEUE", "queue_name": "jobs", "key": "USD", "at_least": 1, "at_most": 1,
                          "since": true});
    assert_eq!(wait, [expected]);
    let described = db.json("SELECT xdb.describe_process('usd') #> '{threads,0,waitingFor,0}'");
    assert_eq!(
        (&described["queueName"], &described["key"], &described["global"]),
        (&json!("jobs"), &json!("USD"), &json!(true))
    );

    db.run("BEGIN");
    publish_with_key(&mut db, "GBP", json!(1));
    publish_with_key(&mut db, "EUR", json!(2));
    publish_with_key(&mut db, "EUR", json!(3));
    publish(&mut db, json!(4));
    db.run("COMMIT");
    for (id, taken) in [("any-1", 1), ("eur-1", 2), ("eur-2", 3), ("any-2", 4)] {
        assert_eq!(db.completes(id).result(), &json!([taken]), "{id}");
    }
    assert_eq!(db.status("usd"), "RUNNING");
    publish_with_key(&mut db, "USD", json!(5));
    assert_eq!(db.completes("usd").result(), &json!([5]));
    app.done(&[]);
}

#[test]
fn messages_that_are_too_few_for_one_waiter_serve_the_next() {
    let (app, _worker) = takers("global_bounds");
    let mut db = app.db();
    waits(&mut db, "three", json!({"atLeast": 3, "atMost": 4}));
    waits(&mut db, "two", json!({"atLeast": 2, "atMost": 2}));
    publish(&mut db, json!(1));
    publish(&mut db, json!(2));
    assert_eq!(db.completes("two").result(), &json!([1, 2]));
    db.run("BEGIN");
    (3..=7).for_each(|n| publish(&mut db, json!(n)));
    db.run("COMMIT");
    assert_eq!(db.completes("three").result(), &json!([3, 4, 5, 6]));
    assert_eq!(left(&app), [json!(7)]);
    app.done(&[]);
}

/// Waits for a message and for a timer of an hour. Then it fails or hangs.
fn holding(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (Api::WaitUntil, "Hold") => all_of(&[timer("t", 3600.0), global_queue("m", "jobs", 2)]).into(),
        (Api::WaitUntil, _) => any_of(&[global_queue("m", "jobs", 1)]).into(),
        (_, "Fail") => error(500, "Broken", "always"),
        (_, "Hang") => Reply::hang(dead_end()),
        (_, "Split") => next_all(&[("Hold", json!(null)), ("Close", json!(null))]).into(),
        (_, "Close") => Reply::hang(force_fail(json!("enough"))),
        _ => force_complete(json!(call.messages("m"))).into(),
    }
}

fn holders(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(holding);
    let short = json!({"executeApiRetryPolicy": attempts(2)});
    let proceeding = json!({"executeApiRetryPolicy": attempts(2), "stateFailureRecoveryOptions":
        {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Take"}});
    app.register("hold", &Definition::starting_with("Hold").waiting_step("Hold"));
    app.register("hang", &Definition::starting_with("Hang").waiting_step("Hang"));
    app.register("fail", &Definition::starting_with("Fail").waiting_step_with("Fail", short));
    app.register(
        "proceed",
        &Definition::starting_with("Fail").waiting_step_with("Fail", proceeding).waiting_step("Take"),
    );
    app.register("take", &Definition::starting_with("Take").waiting_step("Take"));
    app.register("split", &Definition::starting_with("Split").step("Split").waiting_step("Hold").step("Close"));
    (app, worker)
}

/// How many messages the process has taken.
fn held(app: &App, id: &str) -> i64 {
    app.superuser().count(&format!(
        "xdb.global_message g JOIN xdb.process_execution p ON p.execution_id = g.taken_by WHERE p.process_id = '{id}'"
    ))
}

#[test]
fn a_closing_process_gives_back_its_unused_messages() {
    let (app, worker) = holders("global_closed");
    let mut db = app.db();
    (1..=3).for_each(|n| publish(&mut db, json!(n)));
    // It takes its messages at once, although the timer is far away.
    db.start("p", "hold").go();
    wait_until("p has them", 10, || held(&app, "p") == 2);
    assert_eq!(left(&app), [json!(3)]);
    assert_eq!(views::waits(&mut db, "p").len(), 2);
    db.run("BEGIN");
    db.run("SELECT xdb.stop_process('p')");
    assert_eq!(left(&app), [json!(3)]);
    db.run("COMMIT");
    assert_eq!(left(&app), [json!(1), json!(2), json!(3)]);

    // By another start of the id, by another thread, by the timeout, by the end of a state at a call.
    db.start("p", "hold").go();
    wait_until("the second p has them", 10, || held(&app, "p") == 2);
    db.start("p", "hold").reuse("TERMINATE_IF_RUNNING").go();
    wait_until("the third p has them", 10, || held(&app, "p") == 2);
    assert_eq!(left(&app), [json!(3)]);
    db.run("SELECT xdb.stop_process('p', 'FAIL')");

    db.start("s", "split").go();
    wait_until("a thread of s has them", 10, || held(&app, "s") == 2);
    worker.wait_for("the other thread is asked", 10, |call| call.executes("Close"));
    worker.release();
    assert_eq!(db.outcome("s").status(), "FAILED");
    assert_eq!(left(&app), [json!(1), json!(2), json!(3)]);

    db.start("t", "hold").timeout("500 ms").go();
    assert_eq!(db.outcome("t").status(), "TIMEOUT");
    assert_eq!(left(&app), [json!(1), json!(2), json!(3)]);

    db.start("h", "hang").go();
    worker.wait_for("h is asked to execute", 10, |call| call.executes("Hang"));
    assert_eq!(left(&app), [json!(2), json!(3)]);
    db.run("SELECT xdb.stop_process('h')");
    for n in 1..=3 {
        db.start(&format!("q{n}"), "take").go();
        assert_eq!(db.completes(&format!("q{n}")).result(), &json!([n]));
    }
    app.done(&[]);
}

#[test]
fn a_failed_state_gives_back_its_messages() {
    let (app, _worker) = holders("global_failed");
    let mut db = app.db();
    publish(&mut db, json!(1));
    publish(&mut db, json!(2));
    db.start("f", "fail").go();
    assert_eq!(db.outcome("f").status(), "FAILED");
    assert_eq!(left(&app), [json!(1), json!(2)]);
    // The state to recover in waits for the same queue.
    db.start("p", "proceed").go();
    assert_eq!(db.completes("p").result(), &json!([1]));
    assert_eq!(left(&app), [json!(2)]);
    app.done(&[]);
}

#[test]
fn the_longest_waiter_gets_the_messages_that_are_given_back() {
    let (app, _worker) = holders("global_back");
    let mut db = app.db();
    publish(&mut db, json!(1));
    publish(&mut db, json!(2));
    db.start("p", "hold").go();
    wait_until("p has them", 10, || held(&app, "p") == 2);
    for id in ["q", "r"] {
        db.start(id, "take").go();
        wait_until(&format!("{id} waits"), 10, || !views::waits(&mut db, id).is_empty());
    }
    db.run("BEGIN; SELECT xdb.stop_process('p')");
    publish(&mut app.db(), json!(3));
    // Until the commit, q takes the present messages.
    assert_eq!(app.db().completes("q").result(), &json!([3]));
    db.run("COMMIT");
    assert_eq!(db.completes("r").result(), &json!([1]));
    assert_eq!(left(&app), [json!(2)]);
    app.done(&[]);
}

#[test]
fn a_locked_waiter_is_passed_over_and_served_later() {
    let (app, _worker) = takers("global_locked");
    let mut db = app.db();
    waits(&mut db, "p", json!({}));
    waits(&mut db, "q", json!({}));
    waits(&mut db, "eur", json!({"key": "EUR"}));
    let mut holder = app.db();
    holder.run("BEGIN; SELECT xdb.stop_process('p')");
    publish(&mut db, json!(1));
    assert_eq!(db.completes("q").result(), &json!([1]));
    // Only process p can take this message. Other processes go on.
    publish(&mut db, json!(2));
    publish_with_key(&mut db, "EUR", json!(3));
    assert_eq!(db.completes("eur").result(), &json!([3]));
    assert_eq!(left(&app), [json!(2)]);
    wait_until("p is noted", 10, || app.superuser().count("xdb.global_passed_over") == 1);
    holder.run("ROLLBACK");
    assert_eq!(db.completes("p").result(), &json!([2]));

    // If the session that holds p closes it, the next process gets the message.
    waits(&mut db, "p", json!({}));
    holder.run("BEGIN; SELECT xdb.stop_process('p')");
    publish(&mut db, json!(4));
    wait_until("p is noted again", 10, || app.superuser().count("xdb.global_passed_over") == 1);
    holder.run("COMMIT");
    db.start("r", "take").go();
    assert_eq!(db.completes("r").result(), &json!([4]));
    wait_until("no waiter is recorded any more", 10, || app.superuser().count("xdb.global_passed_over") == 0);
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn no_waiter_overtakes_waiters_that_a_turn_did_not_reach() {
    const WAITERS: usize = 200;
    const LATE: usize = 40;
    let app = App::alone("global_overtaking", ClusterOptions::default().set("xdb.test_claim_batch", "4"));
    let (app, worker) = takers_in(app);
    let mut db = app.db();
    all_wait(&mut db, "early", WAITERS, &json!({}));
    worker.misbehave(|call: &Call| Reply::hang(taking(call)));
    for n in 0..LATE {
        db.start(&format!("late{n}"), "take").go();
    }
    let is_late = |call: &Call| call.process_id().starts_with("late");
    worker.wait_for_count("the late ones are asked what they wait for", 20, LATE, is_late);
    worker.heal();
    std::thread::scope(|scope| {
        scope.spawn(|| worker.release());
        db.run(&format!("SELECT count(xdb.publish_global('jobs', '1')) FROM generate_series(1, {WAITERS})"));
    });
    wait_until("all messages are used up", 30, || app.superuser().count("xdb.global_message") == 0);
    assert_eq!(db.count("xdb.processes WHERE process_id LIKE 'early%' AND status = 'RUNNING'"), 0);
    assert_eq!(db.count("xdb.processes WHERE process_id LIKE 'late%' AND status <> 'RUNNING'"), 0);
    app.done(&[]);
}

#[test]
fn a_waiter_that_is_stopped_as_it_is_found_leaves_the_message_to_the_next() {
    let (app, _worker) = takers("global_gone");
    let mut db = app.db();
    // The engine never offers messages to these waiters. Reading them takes a while.
    app.superuser().run(
        "INSERT INTO xdb.global_waiter (execution_id, seq, command, queue_name, key, at_least)
         SELECT gen_random_uuid(), 1, 0, 'jobs', 'k' || n, 1000 FROM generate_series(1, 900) n",
    );
    for round in 0..20 {
        let [first, second, key] = ["p", "q", "a"].map(|name| format!("{name}{round}"));
        waits(&mut db, &first, json!({"key": key}));
        waits(&mut db, &second, json!({"key": key}));
        let mut stopper = app.db();
        let published = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                published.wait();
                let until = Instant::now() + Duration::from_millis(round * 2);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                // It may have taken the message and be over.
                stopper.try_run(&format!("SELECT xdb.stop_process('{first}')"))
            });
            db.run(
                "BEGIN; SELECT count(xdb.publish_global('jobs', '1', key => 'k' || n)) FROM generate_series(1, 900) n",
            );
            publish_with_key(&mut db, &key, json!(1));
            published.wait();
            db.run("COMMIT");
        });
        if db.outcome(&first).status() == "TERMINATED" {
            assert_eq!(db.completes(&second).result(), &json!([1]), "round {round}");
        } else {
            db.run(&format!("SELECT xdb.stop_process('{second}')"));
        }
        app.superuser().run("DELETE FROM xdb.global_message WHERE key LIKE 'k%'");
    }
    app.superuser().run("DELETE FROM xdb.global_waiter WHERE key LIKE 'k%'");
    app.done(&[]);
}

#[test]
#[ignore = "needs the build for tests"]
fn more_messages_than_a_turn_reads_reach_waiters_for_many() {
    let app = App::alone("global_many", ClusterOptions::default().set("xdb.test_claim_batch", "60"));
    let (app, _worker) = takers_in(app);
    let mut db = app.db();
    for queue in ["a", "b"] {
        all_wait(&mut db, queue, 60, &json!({"queue": queue, "atMost": 1000}));
    }
    db.run("SELECT count(xdb.publish_global(CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END, '1')) FROM generate_series(1, 30000) n");
    wait_until("all messages are used up", 60, || app.superuser().count("xdb.global_message") == 0);
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE status = 'RUNNING'");
    app.done(&[]);
}

#[test]
fn a_locked_message_is_not_overtaken_and_blocks_no_other_queue() {
    let (app, worker) = takers("global_row");
    worker.misbehave(|call: &Call| match (call.api, call.process_id()) {
        (Api::WaitUntil, "bystander") => any_of(&[keyed("m", "others", json!(null), 1, 1)]),
        _ => taking(call),
    });
    let mut db = app.db();
    publish_with_key(&mut db, "EUR", json!(1));
    let mut holder = app.superuser();
    holder.run("BEGIN; SELECT FROM xdb.global_message FOR UPDATE");
    publish_with_key(&mut db, "EUR", json!(2));
    db.start("p", "take").input(json!({"key": "EUR"})).go();
    db.start("q", "take").input(json!({"key": "EUR"})).go();
    worker.wait_for_count("both are asked", 10, 2, |call| call.api == Api::WaitUntil);
    db.run("SELECT xdb.publish_global('others', '3')");
    db.start("bystander", "take").go();
    assert_eq!(db.completes("bystander").result(), &json!([3]));
    assert_eq!(app.superuser().count("xdb.global_message WHERE taken_by IS NOT NULL"), 0);
    holder.run("ROLLBACK");
    let taken = ["p", "q"].map(|id| db.completes(id).result().to_string());
    assert!(taken == ["[1]", "[2]"] || taken == ["[2]", "[1]"], "{taken:?}");
    app.done(&[]);
}

#[test]
fn a_process_may_wait_for_the_same_queue_twice() {
    let app = App::new("global_twice");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Both") => all_of(&[global_queue("a", "jobs", 2), keyed("b", "jobs", json!("k"), 1, 1)]),
        (Api::WaitUntil, _) => any_of(&[global_queue("a", "jobs", 1)]),
        (_, "Split") => next_all(&[("One", json!(null)), ("One", json!(null)), ("Both", json!(null))]),
        (_, "Both") => dead_end().locals(json!({"a": call.messages("a"), "b": call.messages("b")})),
        _ => dead_end().locals(json!({call.state_execution_id(): call.messages("a")})),
    });
    let definition = Definition::starting_with("Split").step("Split").waiting_step("One").waiting_step("Both");
    app.register("both", &definition);
    let mut db = app.db();
    db.start("p", "both").go();
    wait_until("three states wait", 10, || views::waits(&mut db, "p").len() == 4);
    db.run("BEGIN");
    for n in 1..=5 {
        publish_with_key(&mut db, "k", json!(n));
    }
    db.run("COMMIT");
    wait_until("all have ended", 10, || views::ended_states(&mut db, "p") == 4);
    let attributes = db.json("SELECT xdb.get_local_attributes('p')");
    let mut all: Vec<u64> = attributes
        .as_object()
        .expect("an object")
        .values()
        .flat_map(|messages| messages.as_array().expect("an array").iter().filter_map(Value::as_u64))
        .collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4, 5], "{attributes}");
    assert_eq!(attributes["a"].as_array().map(Vec::len), Some(2), "{attributes}");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn local_and_global_commands_that_can_complete_do() {
    let app = App::new("global_any");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_combination(
            &[
                timer("t", 3600.0),
                local_queue("l", "mine", 1),
                global_queue("g", "jobs", 1),
                global_queue("h", "none", 1),
            ],
            json!([["l", "h"], ["l", "g"]]),
        ),
        (_, "Only") => next("Read", json!(null)).publish("mine", json!("local")),
        _ => force_complete(json!([call.messages("l"), call.messages("g"), call.messages("h"), call.fired("t")])),
    });
    app.register("any", &one_step().waiting_step("Read"));
    let mut db = app.db();
    publish(&mut db, json!("global"));
    db.start("p", "any").go();
    assert_eq!(db.completes("p").result(), &json!([["local"], ["global"], [], false]));
    app.done(&[]);
}

/// Takes messages, up to three at a time, without end, and keeps them.
fn collecting(call: &Call) -> Answer {
    if call.api == Api::WaitUntil {
        return any_of(&[keyed("m", "jobs", json!(null), 1, 3)]);
    }
    let mut seen = call.local("seen").as_array().cloned().unwrap_or_default();
    seen.extend(call.messages("m"));
    next("Read", json!(null)).locals(json!({"seen": seen}))
}

#[test]
fn each_message_is_for_exactly_one_also_when_the_scheduler_is_killed() {
    const MESSAGES: usize = 600;
    const WAITERS: usize = 30;
    let app = App::alone("global_crash", ClusterOptions::default());
    let _worker = app.worker(collecting);
    app.register("collect", &mailbox());
    let mut db = app.db();
    for n in 0..WAITERS {
        db.start(&format!("c{n}"), "collect").go();
    }
    // Until then there is work, however fast it is done.
    let both_kills_are_over = AtomicBool::new(false);
    let publishing = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let mut published: Vec<usize> = Vec::new();
            let mut db = None;
            let deadline = Instant::now() + Duration::from_secs(60);
            while published.len() < MESSAGES || !both_kills_are_over.load(Ordering::Relaxed) {
                assert!(Instant::now() < deadline, "publishing takes too long");
                let connect = || app.cluster().try_connect(app.database(), "app", Duration::from_secs(5)).ok();
                let Some(session) = db.take().or_else(connect) else { continue };
                let mut session: Db = session;
                // A lost answer may have been a commit: the id makes the repeat harmless.
                let n = published.len();
                if session.try_run(&format!("SELECT xdb.publish_global('jobs', '{n}', message_id => 'm{n}')")).is_ok() {
                    published.push(n);
                    db = Some(session);
                }
            }
            published.len()
        });
        for _ in 0..2 {
            let mut superuser = app.superuser();
            let taken = "SELECT count(*) FROM xdb.history WHERE event_type = 'GlobalMessagesTaken'";
            let before: i64 = superuser.one(taken);
            wait_until("work goes on", 20, || superuser.one::<i64>(taken) > before + 20);
            app.kill_scheduler();
        }
        both_kills_are_over.store(true, Ordering::Relaxed);
        publisher.join().expect("no panic")
    });
    assert!(publishing >= MESSAGES);
    let mut db = app.superuser();
    wait_until("all messages are used up", 60, || {
        app.let_held_calls_go();
        db.count("xdb.global_message") == 0
    });
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    for n in 0..WAITERS {
        let all = db.json(&format!("SELECT coalesce(xdb.get_local_attributes('c{n}') -> 'seen', '[]')"));
        for message in all.as_array().expect("an array") {
            *seen.entry(message.as_u64().expect("a number")).or_default() += 1;
        }
        db.run(&format!("SELECT xdb.stop_process('c{n}')"));
    }
    assert!(seen.values().all(|times| *times == 1), "taken twice: {seen:?}");
    assert_eq!(seen.len(), publishing);
    app.done(xdb_cluster_tests::log::AFTER_A_CRASH);
}
