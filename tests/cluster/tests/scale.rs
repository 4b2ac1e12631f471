//! Many children, generations, messages and ticks, and sessions that hold families. Each test has a small form for
//! `make test`, and a large one, which `scripts/large` runs. The large form prints figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::options::small_or_large;
use xdb_cluster_tests::prelude::*;
use xdb_cluster_tests::random::Random;

const QUEUE_STARTS: &str = include_str!("../../../examples/queue-starts/setup.sql");

fn waits_for(queue: &str, count: usize) -> Value {
    json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"commandId": "m", "queueName": queue, "count": count}]}})
}

/// No process that has closed or waits disagrees with its history.
fn are_sound(db: &mut Db, condition: &str) {
    let sql = format!(
        "SELECT format('%s: %s', p.process_id, c) FROM xdb.processes AS p,
             xdb.check_process(p.process_id, p.execution_id) AS c WHERE {condition} LIMIT 20"
    );
    assert_eq!(db.all::<String>(&sql), [""; 0]);
}

/// "10,000 children of one parent joined by a queue". An answer starts a thousand at most.
#[test]
fn children_of_one_parent_are_joined_by_a_queue() {
    let count = small_or_large(1500, 10_000);
    let app = App::alone("scale_children", ClusterOptions::default());
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let _worker = app.forgetful_worker(move |call: &Call| match call.target() {
        "Begin" => {
            let left = call.input().as_u64().unwrap_or_default();
            let some = left.min(1000);
            let children =
                (0..some).map(|n| json!({"processType": "child", "input": left - n, "onClose": "ended"})).collect();
            match left - some {
                0 => next("Join", json!(null)).starting(children),
                left => next("Begin", json!(left)).starting(children),
            }
        }
        "Join" => {
            let numbers: Vec<_> = call.messages("m").iter().filter_map(|of| of["result"].as_u64()).collect();
            force_complete(json!({"count": numbers.len(), "sum": numbers.iter().sum::<u64>()}))
        }
        _ => {
            counted.fetch_add(1, Ordering::Relaxed);
            force_complete(call.input().clone())
        }
    });
    let parent = Definition::starting_with("Begin").step("Begin").waiting_step_with("Join", waits_for("ended", count));
    app.register("parent", &parent);
    app.register("child", &one_step());
    let mut db = app.db();
    let (took, ()) = timed(|| {
        db.start("p", "parent").input(json!(count)).go();
        wait_until("they are joined", small_or_large(90, 900), || db.status("p") != "RUNNING");
    });
    let sum: usize = (1..=count).sum();
    assert_eq!(db.completes("p").result(), &json!({"count": count, "sum": sum}));
    assert_eq!(calls.load(Ordering::Relaxed), count, "each child is called once");
    assert_eq!(db.count("xdb.processes WHERE status = 'COMPLETED'"), count as i64 + 1);
    assert_eq!(app.superuser().count("xdb.timer") + app.superuser().count("xdb.inbox"), 0);
    println!("{count} children of one parent were started and joined in {took:.1?}");
    are_sound(&mut db, "p.process_id = 'p'");
    app.done(&[]);
}

/// "64 generations": each process starts the next one and waits for it. The results come back through all of them, and the
/// end of the first one ends all.
#[test]
fn sixty_four_generations_of_processes_return_their_results_and_end_together() {
    const GENERATIONS: u64 = 64;
    let app = App::new("scale_generations");
    let _worker = app.worker(|call: &Call| match (call.target(), call.input().as_u64().unwrap_or_default()) {
        ("Begin", 1) => next("Last", json!(null)),
        ("Begin", left) => next("Join", json!(null)).starting(json!([{"processType": "generation", "input": left - 1,
            "processId": format!("{}+", call.process_id()), "onClose": "ended"}])),
        ("Join", _) => force_complete(json!(call.messages("m")[0]["result"].as_u64().unwrap_or_default() + 1)),
        _ => force_complete(json!(1)),
    });
    let definition = Definition::starting_with("Begin")
        .step("Begin")
        .waiting_step_with("Join", waits_for("ended", 1))
        .waiting_step_with("Last", waits_for("go", 1));
    app.register("generation", &definition);
    let mut db = app.db();
    let last_waits = "xdb.waits WHERE queue_name = 'go'";
    let plus = "+".repeat(GENERATIONS as usize - 1);
    let (took, ()) = timed(|| {
        db.start("a", "generation").input(json!(GENERATIONS)).go();
        wait_until("the last one waits", 60, || db.count(last_waits) == 1);
        db.publish(&format!("a{plus}"), "go", json!(1));
        assert_eq!(db.completes("a").result(), GENERATIONS);
    });
    println!("{GENERATIONS} generations began and returned in {took:.1?}");
    db.start("b", "generation").input(json!(GENERATIONS)).go();
    wait_until("the last one waits", 60, || db.count(last_waits) == 1);
    let (took, ()) = timed(|| {
        db.run("SELECT xdb.stop_process('b')");
        wait_until("all have ended", 60, || views::with_status(&mut db, "%", "RUNNING") == 0);
    });
    println!("the end of the first one ended {GENERATIONS} generations in {took:.1?}");
    let statuses: Vec<String> = db.all("SELECT DISTINCT status FROM xdb.processes WHERE process_id LIKE 'b%'");
    assert_eq!(statuses, ["TERMINATED"]);
    assert_eq!(views::with_status(&mut db, "b%", "TERMINATED"), GENERATIONS as i64);
    app.done(&[]);
}

const FAMILIES: u64 = 4;

/// What a session of the test below does in its transactions, until the time is over. Returns the numbers of errors.
fn holds_families(app: &App, number: usize, until: Instant) -> BTreeMap<String, usize> {
    let mut random = Random::new(number as u64, "families");
    let (mut db, mut errors) = (app.db(), BTreeMap::new());
    while Instant::now() < until {
        let mut transaction = |db: &mut Db| -> Result<(), SqlError> {
            db.try_run("BEGIN")?;
            for _ in 0..random.between(1, 3) {
                let parent = format!("p{}", random.below(FAMILIES));
                // A parent, or one of its children.
                let id = match random.below(2) {
                    0 => parent.clone(),
                    _ => format!("{parent}/{}", random.below(3)),
                };
                let sql = match random.below(10) {
                    0..=2 => format!("SELECT xdb.set_local_attributes('{id}', '{{\"k\": {}}}')", random.below(9)),
                    3 | 4 => format!("SELECT xdb.publish('{id}', 'go', '1')"),
                    5 => format!("SELECT xdb.stop_process('{id}')"),
                    6 => format!("SELECT xdb.stop_process('{parent}')"),
                    7 | 8 => format!("SELECT xdb.start_process('{parent}', 'parent', '\"{parent}\"')"),
                    _ => format!("SELECT xdb.pause_process('{id}'); SELECT xdb.resume_process('{id}')"),
                };
                db.try_run(&sql)?;
                // It holds what it has, for a while.
                db.try_run(&format!("SELECT pg_sleep({})", random.below(20) as f64 / 1000.0))?;
            }
            db.try_run(if random.permille(300) { "ROLLBACK" } else { "COMMIT" })
        };
        if let Err(error) = transaction(&mut db) {
            let met = [codes::NOT_RUNNING, codes::UNKNOWN_PROCESS, codes::ALREADY_STARTED, "40P01"];
            assert!(met.contains(&&*error.code), "{error:?}");
            *errors.entry(error.code).or_default() += 1;
            db.run("ROLLBACK");
        }
    }
    errors
}

/// "A session that holds a child, a parent, both; parent and child closed at once". Each parent that completes has one
/// message of each child, no child outlives its parent, and the engine is never cancelled.
#[test]
fn sessions_hold_children_parents_and_both_in_any_order() {
    let options = ClusterOptions::default().set("deadlock_timeout", "20ms");
    let app = App::alone("scale_families", options);
    let _worker = app.forgetful_worker(|call: &Call| match call.target() {
        "Begin" => {
            let child = |n: u32| json!({"processType": "child", "processId": format!("{}/{n}", call.process_id()), "onClose": "ended"});
            next("Join", json!(null)).starting((0..3).map(child).collect())
        }
        "Join" => force_complete(json!(call.messages("m"))),
        _ => force_complete(json!(1)),
    });
    let parent = Definition::starting_with("Begin").step("Begin").waiting_step_with("Join", waits_for("ended", 3));
    app.register("parent", &parent);
    // A child ends by a message alone. So one whose parent has closed goes on for ever, unless the close ends it too.
    let child = json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "go", "count": 1}]}});
    app.register("child", &Definition::starting_with("Work").waiting_step_with("Work", child));
    // No session touches this family. So at least one parent completes, however slow the machine is.
    app.db().start("alone", "parent").go();
    let until = Instant::now() + Duration::from_secs(small_or_large(5, 120));
    let mut errors = BTreeMap::new();
    for of_session in at_once(8, |number| holds_families(&app, number, until)) {
        of_session.into_iter().for_each(|(code, count)| *errors.entry(code).or_insert(0) += count);
    }
    let mut db = app.superuser();
    wait_until("all have closed", 60, || {
        let told = db.try_run(
            "SELECT xdb.publish(c.process_id, 'go', '1', execution_id => c.execution_id)
             FROM xdb.processes AS c JOIN xdb.processes AS p ON p.execution_id = c.parent_execution_id
             WHERE c.status = 'RUNNING' AND p.status = 'RUNNING'",
        );
        // Some of them may have closed meanwhile.
        assert!(told.is_ok() || told.is_err_and(|error| error.code == codes::NOT_RUNNING));
        db.count("xdb.processes WHERE status = 'RUNNING'") == 0
    });
    assert_eq!(db.count("xdb.timer") + db.count("xdb.inbox") + db.count("xdb.task"), 0);
    let wrong = "xdb.processes AS p WHERE process_type = 'parent' AND status = 'COMPLETED' AND (
        SELECT array_agg(m ->> 'processExecutionId' ORDER BY m ->> 'processExecutionId') FROM jsonb_array_elements(result) AS m)
        IS DISTINCT FROM (SELECT array_agg(c.execution_id::text ORDER BY c.execution_id::text) FROM xdb.processes AS c
            WHERE c.parent_execution_id = p.execution_id)";
    assert_eq!(db.count(wrong), 0, "each message once");
    let late = "xdb.processes AS c JOIN xdb.processes AS p ON p.execution_id = c.parent_execution_id
        WHERE c.closed_at > p.closed_at AND c.status = 'TERMINATED' AND c.reason <> 'its parent closed'";
    let closed_later = db.count(late);
    let numbers: Vec<String> = db.all(
        "SELECT format('%s %s %s', process_type, lower(status), count(*)) FROM xdb.processes GROUP BY process_type, status ORDER BY 1",
    );
    println!("{numbers:?}; {closed_later} children were stopped by a session after their parent; errors {errors:?}");
    let completed = db.count("xdb.processes WHERE process_type = 'parent' AND status = 'COMPLETED'");
    assert!(completed > 0, "no parent has completed");
    let engine = |line: &&str| line.contains("<xdb") && (line.contains("deadlock") || line.contains("40P01"));
    assert_eq!(app.cluster().log().lines().find(engine), None);
    app.done(&[]);
}

/// "100,000 messages of 1,000 keys that start processes, with clashes and kills": one running process for each key at any
/// moment, in the order of the messages.
#[test]
fn messages_start_processes_one_at_a_time_for_each_key() {
    let (count, keys, slice) = small_or_large((2000, 50, 500), (100_000, 1000, 2000));
    let options = ClusterOptions::default().set("xdb.max_queue_messages", "1000000");
    let app = App::alone("scale_messages", options);
    app.superuser().run(QUEUE_STARTS);
    app.superuser().run("GRANT ALL ON public.orders TO PUBLIC");
    let mut db = app.db();
    db.start("orders", "Orders").go();
    let begun = Instant::now();
    // Each tenth message has the number of an earlier one.
    for (n, from) in (0..count).step_by(slice).enumerate() {
        let to = from + slice - 1;
        db.run(&format!(
            "SELECT xdb.publish_global('orders', jsonb_build_object('number', CASE WHEN n % 10 = 9 THEN n - 9 ELSE n END,
                'customer', 'c' || n % {keys}), key => 'c' || n % {keys}, message_id => 'm' || n) FROM generate_series({from}, {to}) AS n"
        ));
        if n % 12 == 2 {
            app.kill_scheduler();
            db = app.db();
        }
    }
    let published = begun.elapsed();
    let within = small_or_large(120, 3600);
    let left = || app.superuser().count("xdb.global_message WHERE queue_name = 'orders'");
    wait_until("all are taken", within, || left() == 0);
    let refused = (count / 10) as i64;
    let expected = count as i64 - refused;
    wait_until("all orders are written", within, || db.count("public.orders") >= expected);
    wait_until("all have closed", within, || {
        db.count("xdb.processes WHERE process_type = 'Order' AND status = 'RUNNING'") == 0
    });
    println!(
        "{count} messages of {keys} keys: published in {published:.1?}, all processes have closed after {:.1?}",
        begun.elapsed()
    );
    assert_eq!(db.count("public.orders"), expected);
    assert_eq!(db.count("xdb.queue_messages WHERE queue_name = 'orders.refused'"), refused);
    assert_eq!(db.count("xdb.processes WHERE process_type = 'Order' AND status = 'COMPLETED'"), expected);
    assert_eq!(views::orders_begun_too_early(&mut db), 0);
    wait_until("no lock is left", 10, || app.superuser().count("xdb.process_lock") == 0);
    db.run("SELECT xdb.stop_process('orders')");
    app.done(AFTER_A_CRASH);
}

/// "A schedule whose starts are refused", for a year of nights in steps of the clock, with kills: each tick starts one
/// process, or is skipped and told.
#[test]
fn a_schedule_whose_starts_are_refused_skips_these_ticks_alone() {
    let nights = small_or_large(10, 366);
    let app = App::alone("scale_refused", ClusterOptions::default());
    app.superuser().run(
        r#"CREATE FUNCTION public.report(request jsonb) RETURNS jsonb LANGUAGE sql AS
               $$ SELECT '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}'::jsonb $$;
           SELECT xdb.register_process_type('Report', NULL, '{"startingState": "Write",
               "states": {"Write": {"skipWaitUntil": true, "executeFunction": "public.report"}}}');
           SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick": {
               "waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}, "history": {"keepLast": 100}}')"#,
    );
    let (mut db, mut boss) = (app.db(), app.superuser());
    // About noon. In the night, a change of the clock would leave one step without a tick.
    let noon = app.hours_to_noon();
    let shift_clock = |day| app.cluster().set("xdb.now", &format!("{day} days {noon} hours"));
    shift_clock(0);
    let start = literal(r#"{"process_type": "Report", "process_id": "night-{time}"}"#);
    db.run(&format!("SELECT xdb.schedule('nightly', '30 2 * * *', {start}::jsonb, 'Europe/Berlin')"));
    let tick = |db: &mut Db| {
        db.try_maybe::<String>("SELECT to_char(fire_at AT TIME ZONE 'UTC', 'YYYYMMDD\"T\"HH24MISS\"Z\"') FROM xdb.timers WHERE process_id = 'nightly'")
    };
    let (mut expected, mut skipped) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for day in 1..=nights {
        let mut due = None;
        wait_until("it waits", 60, || {
            due = tick(&mut db).unwrap_or_default();
            due.is_some()
        });
        let due = due.expect("just seen");
        let refuses = day % 3 == 0;
        if refuses {
            boss.run("SELECT xdb.pause_process_type('Report', 'REJECT', reason => 'year end')");
        }
        shift_clock(day);
        if day % 60 == 5 {
            app.kill_scheduler();
            (db, boss) = (app.db(), app.superuser());
        }
        wait_until("it has ticked", 60, || tick(&mut db).is_ok_and(|next| next.is_some_and(|next| next != due)));
        if refuses {
            let told = db.json("SELECT xdb.get_local_attributes('nightly')")["lastError"].take();
            assert_eq!((&told["sqlState"], &told["tick"]), (&json!("XD023"), &json!(due)), "{told}");
            boss.run("SELECT xdb.resume_process_type('Report')");
            skipped.push(due);
        } else {
            expected.push(format!("night-{due}"));
        }
    }
    wait_until("all reports have closed", 60, || {
        db.count("xdb.processes WHERE process_id LIKE 'night-%' AND status = 'RUNNING'") == 0
    });
    let reports: Vec<String> =
        db.all("SELECT process_id FROM xdb.processes WHERE process_id LIKE 'night-%' ORDER BY 1");
    assert_eq!(reports, expected);
    println!(
        "{} ticks, of which {} were refused, in {:.1?}",
        expected.len() + skipped.len(),
        skipped.len(),
        begun.elapsed()
    );
    assert_eq!(db.status("nightly"), "RUNNING");
    app.done(AFTER_A_CRASH);
}
