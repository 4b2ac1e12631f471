//! Locks on attributes: load, call and write of a state are one unit, and conflicting calls queue up.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

fn locking(lock: &str) -> Value {
    json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock},
           "loadLocalAttributes": {"policy": "NONE"}})
}

/// A state that adds one to the row's `n`, under this lock.
fn counter(lock: &str) -> Definition {
    Definition::starting_with("Add").step_with("Add", locking(lock)).maps("public.counters", "id", &["n"])
}

fn add(call: &Call) -> Answer {
    let n = call.global("n").as_i64().unwrap_or_default() + 1;
    force_complete(json!(n)).globals(json!({"n": n}))
}

/// How often calls of these processes were repeated, by their histories.
fn repeats(db: &mut Db, pattern: &str) -> i64 {
    db.count(&format!("xdb.history WHERE process_id LIKE '{pattern}' AND event_type = 'CallRepeated'"))
}

fn n(db: &mut Db, id: &str) -> i32 {
    db.one(&format!("SELECT n FROM counters WHERE id = '{id}'"))
}

/// Whether Postgres has ended a deadlock in this database.
fn deadlocked(app: &App) -> bool {
    let database = format!("|{}|", app.database());
    app.cluster().log().lines().any(|line| line.contains("deadlock detected") && line.contains(&database))
}

/// Waits until no call waits for a lock.
fn nothing_waits(app: &App) {
    let mut db = app.superuser();
    wait_until("nothing waits", 10, || db.count("xdb.attribute_locks") == 0);
}

#[test]
fn fifty_processes_count_in_one_row_and_none_of_them_conflicts() {
    let app = App::new("locks_fifty");
    let worker = app.worker(add);
    app.register("count", &counter("EXCLUSIVE_LOCK"));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.run("BEGIN");
    for number in 0..50 {
        db.start(&format!("p{number}"), "count").key("r").go();
    }
    db.run("COMMIT");
    let mut results: Vec<_> = (0..50).map(|number| db.completes(&format!("p{number}")).result().as_i64()).collect();
    results.sort_unstable();
    assert_eq!(results, (1..=50).map(Some).collect::<Vec<_>>());
    assert_eq!(n(&mut db, "r"), 50);
    assert_eq!((repeats(&mut db, "p%"), worker.count(|_| true)), (0, 50));
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn threads_of_a_process_count_in_one_local_key() {
    let app = App::new("locks_local");
    let worker = app.worker(|call: &Call| match call.target() {
        "Begin" => next_all(&vec![("Add", json!("k")); 20]),
        _ => {
            let k = call.local("k").as_i64().unwrap_or_default() + 1;
            graceful_complete(json!(k)).locals(json!({"k": k}))
        }
    });
    let exclusive = json!({"loadLocalAttributes": {"policy": "PARTIAL", "names": ["k"], "lockType": "EXCLUSIVE_LOCK"}});
    app.register("threads", &Definition::starting_with("Begin").step("Begin").step_with("Add", exclusive));
    let mut db = app.db();
    db.start("p", "threads").go();
    db.completes("p");
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"k": 20}));
    assert_eq!((repeats(&mut db, "p"), worker.count(|_| true)), (0, 21));
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_lock_on_all_local_attributes_excludes_a_lock_on_one() {
    let app = App::new("locks_local_all");
    let worker = app.worker(|call: &Call| match call.target() {
        "Begin" => next_all(&[("All", json!(null)), ("One", json!(null)), ("Other", json!(null))]).into(),
        "All" => Reply::hang(graceful_complete(json!("all")).locals(json!({"k": 1, "new": 1}))),
        "One" => graceful_complete(json!("one")).locals(json!({"k": 2})).into(),
        _ => graceful_complete(json!("other")).locals(json!({"other": 2})).into(),
    });
    let lock = |policy: Value| json!({"loadLocalAttributes": policy, "executeApiTimeoutSeconds": 60});
    let part = |name: &str| json!({"policy": "PARTIAL", "names": [name], "lockType": "EXCLUSIVE_LOCK"});
    let definition = Definition::starting_with("Begin")
        .step("Begin")
        .step_with("All", lock(json!({"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"})))
        .step_with("One", lock(part("k")))
        .step_with("Other", lock(part("other")));
    app.register("threads", &definition);
    let mut db = app.db();
    db.start("p", "threads").go();
    worker.wait_for("the call that locks all", 10, |call| call.target() == "All");
    let waiting = "SELECT jsonb_object_agg(state_execution_id, waits_for) FROM xdb.attribute_locks";
    let both = json!({"One-1": "local attribute k", "Other-1": "local attribute other"});
    wait_until("the other processes queue up", 10, || db.json(waiting) == both);
    assert_eq!(worker.count(|call| call.target() != "Begin" && call.target() != "All"), 0);
    let threads = db.json("SELECT xdb.describe_process('p')->'threads'").to_string();
    assert!(threads.contains(r#""waitingForLocks":"local attribute k""#), "{threads}");
    worker.release();
    db.completes("p");
    assert_eq!(repeats(&mut db, "p"), 0);
    app.done(&[]);
}

#[test]
fn shared_locks_run_at_once_and_an_exclusive_lock_alone() {
    let app = App::new("locks_share");
    let worker = app.worker(|call: &Call| match call.body["processType"].as_str() {
        Some("read") => Reply::hang(force_complete(call.global("n").clone())),
        _ => add(call).into(),
    });
    app.register("read", &counter("SHARE_LOCK"));
    app.register("count", &counter("EXCLUSIVE_LOCK"));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    for number in 0..10 {
        db.start(&format!("r{number}"), "read").key("r").go();
    }
    worker.wait_for_count("ten readers at once", 10, 10, |_| true);
    db.start("w", "count").key("r").go();
    wait_until("the writer waits in line", 10, || db.count("xdb.attribute_locks") == 1);
    db.start("late", "read").key("r").go();
    wait_until("a later reader waits behind it", 10, || db.count("xdb.attribute_locks") == 2);
    assert_eq!(worker.count(|_| true), 10);
    worker.release();
    db.completes("w");
    for number in 0..10 {
        assert_eq!(db.completes(&format!("r{number}")).result(), 0);
    }
    worker.release();
    worker.wait_for("the later reader", 10, |call| call.process_id() == "late");
    worker.release();
    assert_eq!(db.completes("late").result(), 1, "it read what the writer wrote");
    assert_eq!(repeats(&mut db, "%"), 0);
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn of_two_sharers_that_write_the_second_repeats() {
    let app = App::new("locks_share_write");
    let worker = app.worker(|call: &Call| Reply::hang(add(call)));
    app.register("count", &counter("SHARE_LOCK"));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("a", "count").key("r").go();
    db.start("b", "count").key("r").go();
    worker.wait_for_count("both at once", 10, 2, |_| true);
    worker.misbehave(add);
    worker.release();
    db.completes("a");
    db.completes("b");
    assert_eq!((n(&mut db, "r"), repeats(&mut db, "%")), (2, 1));
    app.done(&[]);
}

/// A counting process whose calls hang until they are released. Tests change its row meanwhile.
struct Disturbed {
    app: App,
    worker: Worker,
}

impl Disturbed {
    fn new(name: &str) -> Disturbed {
        let app = App::new(name);
        let worker = app.worker(|call: &Call| Reply::hang(add(call)));
        app.register("count", &counter("EXCLUSIVE_LOCK"));
        app.db().run("INSERT INTO counters VALUES ('r', 0)");
        app.db().start("p", "count").key("r").go();
        Disturbed { app, worker }
    }

    /// Waits for the request with this number.
    fn call(&self, count: usize) -> Call {
        self.worker.wait_for_count("the call", 20, count, |call| call.process_id() == "p").swap_remove(count - 1)
    }
}

#[test]
fn a_plain_writer_causes_a_repeat_with_fresh_values() {
    let test = Disturbed::new("locks_repeat");
    let mut db = test.app.db();
    let first = test.call(1);
    db.run("UPDATE counters SET n = n + 100");
    test.worker.release();
    let second = test.call(2);
    assert_eq!((first.global("n"), second.global("n")), (&json!(0), &json!(100)));
    assert_eq!(second.call_id(), first.call_id());
    assert_ne!(second.idempotency_key(), first.idempotency_key());
    assert_eq!((first.attempt(), second.attempt()), (1, 1), "a repeat is no attempt");
    assert_eq!(db.one::<i32>("SELECT repeats FROM xdb.state_executions"), 1);
    assert_eq!(db.one::<i32>("SELECT attempt FROM xdb.state_executions"), 1);
    assert_eq!(db.json("SELECT xdb.describe_process('p')->'threads'->0->'repeats'"), 1);
    assert_eq!(views::failures(&mut db, "p"), Vec::<Value>::new());
    test.worker.release();
    assert_eq!(db.completes("p").result(), 101);
    assert_eq!((n(&mut db, "r"), repeats(&mut db, "p")), (101, 1));
    test.app.done(&[]);
}

#[test]
fn a_value_written_back_unchanged_has_not_changed() {
    let test = Disturbed::new("locks_same");
    let mut db = test.app.db();
    test.call(1);
    db.run("UPDATE counters SET n = n + 1");
    db.run("UPDATE counters SET n = n - 1");
    test.worker.release();
    assert_eq!(db.completes("p").result(), 1, "as if the call had been made now");
    assert_eq!((n(&mut db, "r"), repeats(&mut db, "p")), (1, 0));
    test.app.done(&[]);
}

#[test]
fn a_row_that_comes_or_goes_has_changed() {
    let test = Disturbed::new("locks_row");
    let mut db = test.app.db();
    test.call(1);
    db.run("DELETE FROM counters");
    test.worker.release();
    assert_eq!(test.call(2).global("n"), &json!(null));
    db.run("INSERT INTO counters VALUES ('r', 5)");
    test.worker.release();
    assert_eq!(test.call(3).global("n"), &json!(5));
    test.worker.release();
    assert_eq!(db.completes("p").result(), 6);
    assert_eq!(repeats(&mut db, "p"), 2);
    test.app.done(&[]);
}

#[test]
fn a_state_that_locks_nothing_causes_a_repeat_too() {
    let test = Disturbed::new("locks_rude");
    let mut db = test.app.db();
    test.call(1);
    test.app.register("rude", &counter("NO_LOCKING"));
    test.worker.misbehave(add);
    db.start("rude", "rude").key("r").go();
    assert_eq!(db.completes("rude").result(), 1, "it waits for no other call");
    test.worker.release();
    assert_eq!(db.completes("p").result(), 2);
    assert_eq!(repeats(&mut db, "p"), 1);
    test.app.done(&[]);
}

#[test]
fn after_ten_repeats_it_backs_off() {
    let app = App::new("locks_backoff");
    let db = Mutex::new(app.db());
    db.lock().unwrap().run("INSERT INTO counters VALUES ('r', 0)");
    let disturbing = Mutex::new(app.db());
    // Every call finds its row changed when it answers, until the test has seen enough repeats.
    let enough = std::sync::Arc::new(AtomicUsize::new(0));
    let stop = enough.clone();
    let worker = app.worker(move |call: &Call| {
        if stop.load(Ordering::SeqCst) == 0 {
            disturbing.lock().unwrap().run("UPDATE counters SET n = n + 1");
        }
        add(call)
    });
    let slow = json!({"initialIntervalSeconds": 600, "maximumIntervalSeconds": 600});
    let mut config = locking("EXCLUSIVE_LOCK");
    config["executeApiRetryPolicy"] = slow;
    app.register(
        "count",
        &Definition::starting_with("Add").step_with("Add", config).maps("public.counters", "id", &["n"]),
    );
    let mut db = db.lock().unwrap();
    db.start("p", "count").key("r").go();
    wait_until("eleven repeats", 20, || repeats(&mut db, "p") == 11);
    assert!(db.one::<bool>("SELECT next_attempt_at > now() + '8 minutes' FROM xdb.state_executions"));
    assert_eq!(worker.count(|_| true), 11);
    assert!(worker.calls().iter().all(|call| call.attempt() == 1));
    nothing_waits(&app);
    enough.store(1, Ordering::SeqCst);
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('p')"), 1);
    assert_eq!(db.completes("p").result(), 12);
    app.done(&[]);
}

#[test]
fn two_tables_in_opposite_orders_do_not_deadlock() {
    let app = App::new("locks_orders");
    let mut db = app.db();
    db.run(
        "CREATE TABLE red (id text PRIMARY KEY, a int); INSERT INTO red VALUES ('r', 0);
         CREATE TABLE blue (id text PRIMARY KEY, b int); INSERT INTO blue VALUES ('r', 0);",
    );
    let worker = app.worker(|call: &Call| {
        let plus = |name: &str| call.global(name).as_i64().unwrap_or_default() + 1;
        force_complete(json!(null)).globals(json!({"a": plus("a"), "b": plus("b")}))
    });
    let base = || Definition::starting_with("Add").step_with("Add", locking("EXCLUSIVE_LOCK"));
    app.register("there", &base().maps("public.red", "id", &["a"]).maps("public.blue", "id", &["b"]));
    app.register("back", &base().maps("public.blue", "id", &["b"]).maps("public.red", "id", &["a"]));
    for number in 0..40 {
        db.start(&format!("p{number}"), if number % 2 == 0 { "there" } else { "back" })
            .keys(&[("public.red", "id"), ("public.blue", "id")], "r")
            .go();
    }
    for number in 0..40 {
        db.completes(&format!("p{number}"));
    }
    assert_eq!(db.one::<i32>("SELECT a + b FROM red, blue"), 80);
    assert_eq!((repeats(&mut db, "%"), worker.count(|_| true)), (0, 40));
    assert!(!deadlocked(&app));
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn two_spellings_of_a_key_are_one_row() {
    let app = App::new("locks_spelling");
    let mut db = app.db();
    db.run("CREATE TABLE tally (id int PRIMARY KEY, n int); INSERT INTO tally VALUES (7, 0)");
    let _worker = app.worker(add);
    let definition = Definition::starting_with("Add").step_with("Add", locking("EXCLUSIVE_LOCK"));
    app.register("count", &definition.maps("public.tally", "id", &["n"]));
    db.run("BEGIN");
    for number in 0..20 {
        db.start(&format!("p{number}"), "count").key(if number % 2 == 0 { "7" } else { "007" }).go();
    }
    db.run("COMMIT");
    for number in 0..20 {
        db.completes(&format!("p{number}"));
    }
    assert_eq!((db.one::<i32>("SELECT n FROM tally"), repeats(&mut db, "%")), (20, 0));
    app.done(&[]);
}

#[test]
fn a_row_of_a_partition_is_locked_as_any() {
    let app = App::new("locks_partition");
    let mut db = app.db();
    db.run(
        "CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
         CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
         INSERT INTO parts VALUES (1, 0);",
    );
    let worker = app.worker(|call: &Call| Reply::hang(add(call)));
    let definition = Definition::starting_with("Add").step_with("Add", locking("EXCLUSIVE_LOCK"));
    app.register("count", &definition.maps("public.parts", "id", &["n"]));
    db.start("p", "count").key("1").go();
    worker.wait_for("the call", 10, |_| true);
    db.run("UPDATE parts SET n = 10");
    worker.misbehave(add);
    worker.release();
    assert_eq!(db.completes("p").result(), 11);
    assert_eq!(repeats(&mut db, "p"), 1);
    app.done(&[]);
}

/// One process that holds the lock of `r`, and two that wait for it.
fn queue_of_three(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker =
        app.worker(|call: &Call| if call.process_id() == "a" { Reply::hang(add(call)) } else { add(call).into() });
    app.register("count", &counter("EXCLUSIVE_LOCK"));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("a", "count").key("r").go();
    worker.wait_for("the first call", 10, |_| true);
    db.start("b", "count").key("r").go();
    wait_until("it waits", 10, || db.count("xdb.attribute_locks") == 1);
    db.start("c", "count").key("r").go();
    wait_until("both wait", 10, || db.count("xdb.attribute_locks") == 2);
    (app, worker)
}

#[test]
fn a_holder_that_is_stopped_hands_on() {
    let (app, worker) = queue_of_three("locks_stop_holder");
    let mut db = app.db();
    let (took, _) = timed(|| {
        db.run("SELECT xdb.stop_process('a')");
        (db.completes("b"), db.completes("c"))
    });
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(n(&mut db, "r"), 2);
    worker.release();
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_waiter_that_is_stopped_hands_on() {
    let (app, worker) = queue_of_three("locks_stop_waiter");
    let mut db = app.db();
    assert_eq!(db.count("xdb.attribute_locks"), 2);
    db.run("SELECT xdb.stop_process('b')");
    worker.release();
    assert_eq!(db.completes("a").result(), 1);
    assert_eq!(db.completes("c").result(), 2);
    assert_eq!(db.status("b"), "TERMINATED");
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_waiter_with_an_uncommitted_stop_blocks_no_other() {
    let (app, worker) = queue_of_three("locks_stop_open");
    let (mut db, mut stopping) = (app.db(), app.db());
    stopping.run("BEGIN; SELECT xdb.stop_process('b')");
    worker.release();
    assert_eq!(db.completes("a").result(), 1);
    assert_eq!(db.completes("c").result(), 2);
    stopping.run("ROLLBACK");
    assert_eq!(db.completes("b").result(), 3);
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_blocked_holder_does_not_block_other_holders() {
    let (app, worker) = queue_of_three("locks_held_up");
    let (mut db, mut touching) = (app.db(), app.db());
    touching.run("BEGIN");
    touching.run(r#"SELECT xdb.set_local_attributes('a', '{"k": 1}')"#);
    worker.release();
    let (took, _) = timed(|| (db.completes("b"), db.completes("c")));
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(n(&mut db, "r"), 2);
    touching.run("COMMIT");
    worker.misbehave(add);
    worker.release();
    assert_eq!(db.completes("a").result(), 3);
    assert!(worker.calls().iter().all(|call| call.attempt() == 1));
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_failed_attempt_holds_no_lock_while_it_backs_off() {
    let app = App::new("locks_failed");
    let worker = app.worker(|call: &Call| match call.process_id() {
        "a" => error(500, "Broken", "not today"),
        _ => add(call).into(),
    });
    let mut config = locking("EXCLUSIVE_LOCK");
    config["executeApiRetryPolicy"] = json!({"initialIntervalSeconds": 600, "maximumIntervalSeconds": 600});
    app.register(
        "count",
        &Definition::starting_with("Add").step_with("Add", config).maps("public.counters", "id", &["n"]),
    );
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("a", "count").key("r").go();
    worker.wait_for("the call that fails", 10, |_| true);
    db.start("b", "count").key("r").go();
    assert_eq!(db.completes("b").result(), 1);
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_call_of_a_dead_worker_at_the_head_blocks_no_other_call() {
    let app = App::new("locks_dead_worker");
    let alive =
        app.worker(|call: &Call| if call.process_id() == "first" { Reply::hang(add(call)) } else { add(call).into() });
    let dead = app.worker_named("dead", add);
    app.register("count", &counter("EXCLUSIVE_LOCK"));
    app.register_with("dead", "doomed", &counter("EXCLUSIVE_LOCK"));
    app.register_with("dead", "nowhere", &one_step());
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    dead.go_away();
    db.start("first", "count").key("r").go();
    alive.wait_for("the first call", 10, |_| true);
    for number in 0..3 {
        db.start(&format!("d{number}"), "doomed").key("r").go();
    }
    wait_until("the doomed wait", 10, || db.count("xdb.attribute_locks") == 3);
    db.start("last", "count").key("r").go();
    wait_until("the last waits behind them", 10, || db.count("xdb.attribute_locks") == 4);
    // Its breaker opens, so that it has no room.
    for number in 0..40 {
        db.start(&format!("n{number}"), "nowhere").go();
    }
    wait_until("the breaker is open", 20, || {
        app.superuser().one::<bool>("SELECT breaker <> 'closed' FROM xdb.workers WHERE name = 'dead'")
    });
    alive.release();
    assert_eq!(db.completes("first").result(), 1);
    db.completes("last");
    dead.come_back();
    for number in 0..3 {
        db.completes(&format!("d{number}"));
    }
    assert_eq!(n(&mut db, "r"), 5);
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn a_slow_table_loses_no_update() {
    let app = App::new("locks_aside");
    let mut db = app.db();
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int); INSERT INTO mine VALUES ('r', 0);
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(0.5); RETURN new; END $$;
         CREATE TRIGGER slow BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION slow();",
    );
    let _worker = app.worker(add);
    let definition = Definition::starting_with("Add").step_with("Add", locking("EXCLUSIVE_LOCK"));
    app.register("count", &definition.maps("public.mine", "id", &["n"]));
    for number in 0..4 {
        db.start(&format!("p{number}"), "count").key("r").go();
    }
    for number in 0..4 {
        db.completes(&format!("p{number}"));
    }
    assert!(views::engine(&mut app.superuser()).contains("public.mine: "), "the steps were not those of a slow table");
    // Runners do not queue up for locks: a call that comes too late is made again.
    assert_eq!(db.one::<i32>("SELECT n FROM mine"), 4);
    nothing_waits(&app);
    app.done(&[]);
}

#[test]
fn no_transaction_is_open_while_a_state_has_its_locks() {
    let app = App::new("locks_no_transaction");
    let looking = Mutex::new(app.superuser());
    // Of the engine: the session that waits for the process has its own.
    let open = "SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type LIKE 'xdb%' \
        AND a.datname = current_database() AND (a.xact_start IS NOT NULL \
            OR EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid'))";
    let _worker = app.worker(move |call: &Call| {
        let mut db = looking.lock().unwrap();
        // A turn may be under way that has nothing to do with the call; it ends.
        wait_until("no transaction is open", 10, || db.one::<i64>(open) == 0);
        add(call)
    });
    app.register("count", &counter("EXCLUSIVE_LOCK"));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("p", "count").key("r").go();
    assert_eq!(db.completes("p").result(), 1);
    app.done(&[]);
}

#[test]
fn a_killed_scheduler_leaves_no_call_waiting() {
    let app = App::alone("locks_kill", ClusterOptions::default());
    let worker = app.worker(|call: &Call| Reply::hang(add(call)));
    app.register("count", &counter("EXCLUSIVE_LOCK"));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0), ('s', 0)");
    for number in 0..20 {
        db.start(&format!("p{number}"), "count").key(if number % 2 == 0 { "r" } else { "s" }).go();
    }
    worker.wait_for_count("two have the locks", 10, 2, |_| true);
    wait_until("the other processes wait", 10, || db.count("xdb.attribute_locks") == 18);
    app.kill_scheduler();
    worker.misbehave(add);
    let mut db = app.db();
    for number in 0..20 {
        db.completes(&format!("p{number}"));
    }
    assert_eq!((n(&mut db, "r"), n(&mut db, "s")), (10, 10));
    nothing_waits(&app);
    app.done(AFTER_A_CRASH);
}
