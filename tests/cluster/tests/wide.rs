//! Processes with very many threads or messages. The cost of a step does not grow with their number. A state that waits
//! for many messages gets them with the last missing one, wherever that comes from.

use xdb_cluster_tests::prelude::*;

fn for_joined(input: &Value) -> Answer {
    let (least, most) = (&input["least"], &input["most"]);
    let command = json!({"commandId": "m", "queueName": "joined", "atLeast": least, "atMost": most});
    all_of(&[json!({ "localQueueCommands": command })])
}

/// The process `p`, which begins without a thread. RPCs: `fork` starts a thread for each `[state, input]` of its input,
/// and `publish` publishes its input to `joined`.
///
/// States:
/// - `Join` waits for `joined` with the bounds of its input, and keeps the messages as the local attribute `name`.
///   `HeldJoin` does so when it is released.
/// - `Mail` waits for a message of the queue that is its input.
/// - `Leaf` publishes its input to `joined`, `HeldLeaf` when it is released.
/// - `Check` and `HeldCheck` close the process if `joined` is empty.
fn application(app: &App) -> Worker {
    let worker = app.worker(|call: &Call| {
        let input = call.input();
        match (call.api, call.target()) {
            (Api::Rpc, "fork") => {
                let threads = input.as_array().expect("a list");
                let threads: Vec<_> =
                    threads.iter().map(|thread| (thread[0].as_str().expect("a state"), thread[1].clone())).collect();
                Reply::from(output(json!(null)).and(next_all(&threads)))
            }
            (Api::Rpc, _) => output(json!(null)).publish("joined", input.clone()).into(),
            (Api::WaitUntil, "Join") => for_joined(input).into(),
            (Api::WaitUntil, "HeldJoin") => Reply::hang(for_joined(input)),
            (Api::WaitUntil, _) => all_of(&[local_queue("m", input.as_str().expect("a queue"), 1)]).into(),
            (_, "Join" | "HeldJoin") => {
                let name = input["name"].as_str().expect("a name");
                dead_end().locals(json!({ name: call.messages("m") })).into()
            }
            (_, "Leaf") => dead_end().publish("joined", input.clone()).into(),
            (_, "HeldLeaf") => Reply::hang(dead_end().publish("joined", input.clone())),
            (_, "Check") => close_if_empty("joined", "NotEmpty").into(),
            (_, "HeldCheck") => Reply::hang(close_if_empty("joined", "NotEmpty")),
            _ => dead_end().into(),
        }
    });
    let mut definition = Definition::without_start()
        .waiting_step("Join")
        .waiting_step("Mail")
        .rpc("fork", json!({}))
        .rpc("publish", json!({}));
    for state in ["Leaf", "Check", "NotEmpty"] {
        definition = definition.step(state);
    }
    for state in ["HeldLeaf", "HeldCheck"] {
        definition = definition.step_with(state, json!({"executeApiTimeoutSeconds": 60}));
    }
    definition = definition.waiting_step_with("HeldJoin", json!({"waitUntilApiTimeoutSeconds": 60}));
    app.register("wide", &definition);
    app.db().start("p", "wide").go();
    worker
}

/// Starts threads of `p`.
fn fork(db: &mut Db, state: &str, inputs: impl IntoIterator<Item = Value>) {
    let threads: Vec<_> = inputs.into_iter().map(|input| json!([state, input])).collect();
    db.rpc("p", "fork", json!(threads));
}

/// Starts one thread that waits for `joined`.
fn join(db: &mut Db, name: &str, least: u32, most: u32) {
    let waiting = views::waits(db, "p").len();
    fork(db, "Join", [json!({"name": name, "least": least, "most": most})]);
    wait_until("it waits", 10, || views::waits(db, "p").len() == waiting + 1);
}

/// Publishes these numbers to `joined`, in one transaction.
fn publish(db: &mut Db, numbers: std::ops::RangeInclusive<u32>) {
    let (first, last) = (numbers.start(), numbers.end());
    db.run(&format!("SELECT count(xdb.publish('p', 'joined', to_jsonb(n))) FROM generate_series({first}, {last}) n"));
}

/// Waits until all messages were received, and this number is left.
fn left(db: &mut Db, count: i64) {
    let left = format!(
        "SELECT count(*) = {count} AND count(*) FILTER (WHERE NOT received) = 0 FROM xdb.queue_messages WHERE process_id = 'p'"
    );
    wait_until(&format!("{count} messages are left"), 20, || db.one(&left));
}

/// Makes a session report its statistics of reads now.
fn report(db: &mut Db) {
    db.run("SELECT pg_stat_force_next_flush()");
}

/// The messages that a `Join` has kept. Null while it waits.
fn got(db: &mut Db, name: &str) -> Value {
    db.json("SELECT xdb.get_local_attributes('p')")[name].clone()
}

/// The messages that a `Join` keeps in the end.
fn gets(db: &mut Db, name: &str) -> Vec<u64> {
    wait_until(&format!("{name} has its messages"), 20, || !got(db, name).is_null());
    got(db, name).as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number")).collect()
}

fn numbers(range: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    range.collect()
}

/// Runs `work` while the engine can't get the lock of `p`. So one turn has all of it.
fn in_one_turn(app: &App, db: &mut Db, worker: &Worker, work: impl FnOnce(&mut Db)) {
    let mut superuser = app.superuser();
    superuser.run("BEGIN; SELECT FROM xdb.process_execution WHERE process_id = 'p' FOR NO KEY UPDATE");
    work(db);
    worker.release();
    wait_until("the engine has the answers", 20, || superuser.one::<i32>("SELECT in_flight FROM xdb.status()") == 0);
    superuser.run("COMMIT");
}

/// Rows and index entries of a table that were read, once this number of rows was written. The scheduler reports its
/// reads together with its writes, or before.
fn read(app: &App, table: &str, written: &str, at_least: i64) -> (i64, i64) {
    let mut superuser = app.superuser();
    let written = format!("SELECT {written} FROM pg_stat_user_tables WHERE relid = 'xdb.{table}'::regclass");
    wait_until("it is reported", 20, || {
        // Whatever turn: figures that wait for the next one are reported by it.
        app.db().run("SELECT xdb.publish_global('unread', '1', ttl => '1 hour')");
        superuser.one::<i64>(&written) >= at_least
    });
    let read = format!(
        "SELECT t.seq_tup_read + (SELECT sum(i.idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
         FROM pg_stat_user_tables t WHERE t.relid = 'xdb.{table}'::regclass"
    );
    (superuser.one(&read), superuser.one(&written))
}

#[test]
fn messages_that_are_still_too_few_are_not_read() {
    const THERE: u32 = 1500;
    let app = App::new("wide_messages");
    let _worker = application(&app);
    let mut db = app.db();
    join(&mut db, "all", THERE + 101, THERE + 101);
    publish(&mut db, 1..=THERE);
    left(&mut db, i64::from(THERE));
    report(&mut db);
    let (before, _) = read(&app, "queue_message", "n_tup_ins", i64::from(THERE));
    fork(&mut db, "Leaf", (1..=50).map(|n| json!(THERE + n)));
    wait_until("the leaves are done", 20, || views::ended_states(&mut app.superuser(), "p") == 50);
    for n in 51..=100 {
        db.publish("p", "joined", json!(THERE + n));
    }
    let (after, _) = read(&app, "queue_message", "n_tup_ins", i64::from(THERE) + 100);
    assert!(after - before < i64::from(THERE) / 2, "{} rows were read for a hundred messages", after - before);
    assert_eq!(got(&mut db, "all"), Value::Null);
    db.publish("p", "joined", json!(THERE + 101));
    let mut all = gets(&mut db, "all");
    assert_eq!(all[..THERE as usize], numbers(1..=u64::from(THERE)));
    // The leaves end in no order.
    all.sort_unstable();
    assert_eq!(all, numbers(1..=u64::from(THERE) + 101));
    left(&mut db, 0);
    app.done(&[]);
}

#[test]
fn threads_that_wait_for_other_queues_are_not_read() {
    const THREADS: i64 = 400;
    let app = App::new("wide_threads");
    let worker = application(&app);
    let mut db = app.db();
    fork(&mut db, "Mail", (0..THREADS).map(|n| json!(format!("q{n}"))));
    let mut watcher = app.superuser();
    wait_until("all of them wait", 20, || views::waits(&mut watcher, "p").len() as i64 == THREADS);
    report(&mut watcher);
    // Each was written when its thread began, and when it began to wait.
    let (before, written) = read(&app, "state_execution", "n_tup_upd", THREADS);
    for n in 100..110 {
        db.publish("p", &format!("q{n}"), json!(n));
        worker.wait_for("the thread goes on", 20, |call| {
            call.executes("Mail") && call.input() == &json!(format!("q{n}"))
        });
    }
    // When it stopped waiting, and when it ended.
    let (after, _) = read(&app, "state_execution", "n_tup_upd", written + 20);
    assert!(after - before < 2 * THREADS, "{} rows were read for ten messages", after - before);
    app.done(&[]);
}

#[test]
fn exactly_enough_messages_suffice_from_any_sender() {
    let app = App::new("wide_enough");
    let _worker = application(&app);
    let mut db = app.db();
    join(&mut db, "by a thread", 150, 150);
    publish(&mut db, 1..=149);
    left(&mut db, 149);
    assert_eq!(got(&mut db, "by a thread"), Value::Null);
    fork(&mut db, "Leaf", [json!(150)]);
    assert_eq!(gets(&mut db, "by a thread"), numbers(1..=150));

    join(&mut db, "by an rpc", 150, 200);
    publish(&mut db, 1..=149);
    left(&mut db, 149);
    db.rpc("p", "publish", json!(150));
    assert_eq!(gets(&mut db, "by an rpc"), numbers(1..=150));

    join(&mut db, "by a client", 150, 200);
    publish(&mut db, 1..=149);
    // From their numbers alone, there may be enough.
    db.run("SELECT count(xdb.publish('p', 'other', '0')) FROM generate_series(1, 60)");
    left(&mut db, 149 + 60);
    db.run("SELECT xdb.publish('p', 'other', '0')");
    left(&mut db, 149 + 61);
    // More than is taken: the rest stays.
    publish(&mut db, 150..=210);
    assert_eq!(gets(&mut db, "by a client"), numbers(1..=200));
    left(&mut db, 10 + 61);

    // Messages that exist when the wait begins are read at once.
    fork(&mut db, "Join", [json!({"name": "the rest", "least": 10, "most": 1000})]);
    assert_eq!(gets(&mut db, "the rest"), numbers(201..=210));
    app.done(&[]);
}

#[test]
fn arrivals_and_answers_of_one_turn_come_behind_earlier_messages() {
    let app = App::new("wide_mixed");
    let worker = application(&app);
    let mut db = app.db();
    join(&mut db, "all", 300, 300);
    publish(&mut db, 1..=200);
    left(&mut db, 200);
    fork(&mut db, "HeldLeaf", (281..=300).map(|n| json!(n)));
    worker.wait_for_count("the leaves", 20, 20, |call| call.executes("HeldLeaf"));
    in_one_turn(&app, &mut db, &worker, |db| publish(db, 201..=280));
    let mut all = gets(&mut db, "all");
    assert_eq!(all[..280], numbers(1..=280), "the clients' messages come before those of answers of the same turn");
    all.sort_unstable();
    assert_eq!(all, numbers(1..=300));
    left(&mut db, 0);
    app.done(&[]);
}

#[test]
fn a_wait_for_fewer_messages_is_served_earlier_and_the_longest_wait_first() {
    let app = App::new("wide_two");
    let worker = application(&app);
    let mut db = app.db();
    join(&mut db, "large", 400, 400);
    join(&mut db, "small", 200, 250);
    publish(&mut db, 1..=199);
    left(&mut db, 199);
    assert_eq!((got(&mut db, "large"), got(&mut db, "small")), (Value::Null, Value::Null));
    fork(&mut db, "HeldLeaf", [json!(211)]);
    worker.wait_for("the leaf", 20, |call| call.executes("HeldLeaf"));
    in_one_turn(&app, &mut db, &worker, |db| publish(db, 200..=210));
    assert_eq!(gets(&mut db, "small"), numbers(1..=210));
    left(&mut db, 1);
    publish(&mut db, 212..=610);
    assert_eq!(gets(&mut db, "large"), numbers(211..=610));
    left(&mut db, 0);

    // Both can, at the same moment.
    join(&mut db, "older", 200, 200);
    join(&mut db, "younger", 150, 150);
    publish(&mut db, 1..=149);
    left(&mut db, 149);
    publish(&mut db, 150..=340);
    assert_eq!(gets(&mut db, "older"), numbers(1..=200));
    left(&mut db, 140);
    assert_eq!(got(&mut db, "younger"), Value::Null);
    publish(&mut db, 341..=350);
    assert_eq!(gets(&mut db, "younger"), numbers(201..=350));
    left(&mut db, 0);
    app.done(&[]);
}

#[test]
fn a_new_wait_consumes_messages_that_are_too_few_for_another() {
    let app = App::new("wide_beside");
    let worker = application(&app);
    let mut db = app.db();
    join(&mut db, "large", 300, 300);
    publish(&mut db, 1..=200);
    left(&mut db, 200);
    fork(&mut db, "HeldLeaf", [json!(298), json!(299)]);
    fork(&mut db, "HeldJoin", [json!({"name": "small", "least": 1, "most": 3})]);
    worker.wait_for_count("three calls", 20, 3, |call| call.target().starts_with("Held"));
    in_one_turn(&app, &mut db, &worker, |db| publish(db, 201..=297));
    assert_eq!(gets(&mut db, "small"), numbers(1..=3));
    left(&mut db, 296);
    publish(&mut db, 300..=303);
    let mut large = gets(&mut db, "large");
    large.sort_unstable();
    assert_eq!(large, numbers(4..=303));
    left(&mut db, 0);

    // Now there comes enough for both, in the turn in which the wait begins; the leaves end before or after that.
    join(&mut db, "larger", 300, 300);
    publish(&mut db, 1..=290);
    left(&mut db, 290);
    fork(&mut db, "HeldLeaf", (296..=315).map(|n| json!(n)));
    fork(&mut db, "HeldJoin", [json!({"name": "smaller", "least": 3, "most": 3})]);
    worker.wait_for_count("the leaves", 20, 2 + 20, |call| call.executes("HeldLeaf"));
    worker.wait_for("the state that begins to wait", 20, |call| call.input()["name"] == "smaller");
    in_one_turn(&app, &mut db, &worker, |db| publish(db, 291..=295));
    let (larger, smaller) = (gets(&mut db, "larger"), gets(&mut db, "smaller"));
    left(&mut db, 12);
    if smaller == numbers(1..=3) {
        assert_eq!(larger[..292], numbers(4..=295));
    } else {
        assert_eq!(larger[..295], numbers(1..=295));
    }
    let mut both = [larger, smaller].concat();
    both.sort_unstable();
    both.dedup();
    assert_eq!(both.len(), 303);
    app.done(&[]);
}

#[test]
fn a_queue_with_unread_messages_is_not_empty() {
    let app = App::new("wide_conditional");
    let worker = application(&app);
    let mut db = app.db();
    join(&mut db, "all", 200, 200);
    publish(&mut db, 1..=120);
    left(&mut db, 120);
    fork(&mut db, "Check", [json!(null)]);
    worker.wait_for("it is not empty", 20, |call| call.executes("NotEmpty"));
    // Beside answers that publish, before and after.
    fork(&mut db, "HeldLeaf", [json!(122)]);
    fork(&mut db, "HeldCheck", [json!(null)]);
    fork(&mut db, "HeldLeaf", [json!(123)]);
    worker.wait_for_count("three calls", 20, 3, |call| call.target().starts_with("Held"));
    in_one_turn(&app, &mut db, &worker, |db| publish(db, 121..=121));
    worker.wait_for_count("it is not empty again", 20, 2, |call| call.executes("NotEmpty"));
    left(&mut db, 123);
    publish(&mut db, 124..=200);
    let mut all = gets(&mut db, "all");
    all.sort_unstable();
    assert_eq!(all, numbers(1..=200));
    fork(&mut db, "Check", [json!(null)]);
    assert_eq!(db.outcome("p").status(), "COMPLETED");
    app.done(&[]);
}

#[test]
fn a_crash_does_not_change_a_wait_for_many_messages() {
    let app = App::alone("wide_crash", ClusterOptions::default());
    let _worker = application(&app);
    let mut db = app.db();
    join(&mut db, "all", 200, 200);
    publish(&mut db, 1..=150);
    left(&mut db, 150);
    app.cluster().crash();
    app.cluster().launch();
    let mut db = app.db();
    publish(&mut db, 151..=199);
    left(&mut db, 199);
    assert_eq!(got(&mut db, "all"), Value::Null);
    fork(&mut db, "Leaf", [json!(200)]);
    assert_eq!(gets(&mut db, "all"), numbers(1..=200));
    app.done(&[]);
}
