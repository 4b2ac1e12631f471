//! RPCs with locks on attributes: they lock rows and the process, like any transaction. States detect their changes by
//! the values, and go first after too many repeats.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use xdb_cluster_tests::prelude::*;

const EXCLUSIVE: &str = "EXCLUSIVE_LOCK";

fn locking(lock: &str) -> Value {
    json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}})
}

fn add(call: &Call) -> Answer {
    let n = call.global("n").as_i64().unwrap_or_default() + 1;
    match call.api {
        Api::Rpc if call.target() == "read" => output(json!(n)),
        Api::Rpc => output(json!(n)).globals(json!({"n": n})),
        _ => force_complete(json!(n)).globals(json!({"n": n})),
    }
}

/// A type whose only state adds to a row, and a type `asked` that waits and has an RPC. The row is `r`.
fn application(name: &str, handler: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> (App, Worker) {
    set_up(App::new(name), handler)
}

fn set_up(app: App, handler: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> (App, Worker) {
    let worker = app.worker(handler);
    let table = |definition: Definition| definition.maps("public.counters", "id", &["n"]);
    app.register("count", &table(Definition::starting_with("Add").step_with("Add", locking(EXCLUSIVE))));
    let asked = Definition::without_start()
        .step_with("Add", locking(EXCLUSIVE))
        .rpc("add", locking(EXCLUSIVE))
        .rpc("slow", locking(EXCLUSIVE))
        .rpc("read", locking("SHARE_LOCK"));
    app.register("asked", &table(asked));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("asked", "asked").key("r").go();
    (app, worker)
}

fn adding(call: &Call) -> Reply {
    add(call).into()
}

/// The calls of states hang. RPCs add to the row.
fn states_hang(call: &Call) -> Reply {
    match call.api {
        Api::Execute => Reply::hang(add(call)),
        _ => add(call).into(),
    }
}

fn n(db: &mut Db) -> i32 {
    db.one("SELECT n FROM counters WHERE id = 'r'")
}

fn repeats(db: &mut Db) -> i64 {
    db.count("xdb.history WHERE event_type = 'CallRepeated'")
}

fn waiting(db: &mut Db) -> i64 {
    db.count("xdb.attribute_locks")
}

fn no_deadlock(app: &App) {
    let database = format!("|{}|", app.database());
    let deadlock = |line: &&str| line.contains("deadlock detected") && line.contains(&database);
    assert_eq!(app.cluster().log().lines().find(deadlock), None);
}

/// Waits until no call waits for a lock.
fn nothing_waits(app: &App) {
    let mut db = app.superuser();
    wait_until("nothing waits", 10, || waiting(&mut db) == 0);
}

/// Fifty states, eight sessions with ten RPCs each, and four sessions with ten plain updates each, all in one row.
#[test]
fn states_rpcs_and_plain_writers_in_one_row_lose_no_update() {
    let (app, _worker) = application("locks_crowd", adding);
    let mut db = app.db();
    for number in 0..8 {
        db.start(&format!("asked{number}"), "asked").key("r").go();
    }
    at_once(13, |number| {
        let mut db = app.db();
        match number {
            0..8 => {
                for _ in 0..10 {
                    db.rpc(&format!("asked{number}"), "add", json!(null));
                }
            }
            8 => {
                for number in 0..50 {
                    db.start(&format!("p{number}"), "count").key("r").go();
                }
            }
            _ => {
                for _ in 0..10 {
                    db.run("UPDATE counters SET n = n + 1 WHERE id = 'r'");
                }
            }
        }
    });
    for number in 0..50 {
        db.completes(&format!("p{number}"));
    }
    assert_eq!(n(&mut db), 50 + 80 + 40);
    no_deadlock(&app);
    nothing_waits(&app);
    app.done(&[]);
}

/// Eight sessions call RPCs on one row without a pause. States that lock the same row still get their turn.
#[test]
fn sessions_that_call_rpcs_without_a_pause_starve_no_state() {
    const STATES: i32 = 10;
    // A use of the table that a busy machine makes slow would leave its steps to runners, which mark nothing.
    let app = App::alone("locks_starve", ClusterOptions::default().set("xdb.apply_timeout", "1min"));
    let (app, worker) = set_up(app, adding);
    let mut db = app.db();
    for number in 0..8 {
        db.start(&format!("asked{number}"), "asked").key("r").go();
    }
    let (stop, rpcs) = (AtomicBool::new(false), AtomicI32::new(0));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (app, stop, rpcs) = (&app, &stop, &rpcs);
            scope.spawn(move || {
                let mut db = app.db();
                while !stop.load(Ordering::SeqCst) {
                    db.rpc(&format!("asked{number}"), "add", json!(null));
                    rpcs.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // However this thread ends, the other threads end too.
        let _stop = Stop(&stop);
        worker.wait_for_count("all of them call", 20, 50, |call| call.api == Api::Rpc);
        for number in 0..STATES {
            db.start(&format!("p{number}"), "count").key("r").go();
        }
        let (took, ()) = timed(|| (0..STATES).for_each(|number| drop(db.completes(&format!("p{number}")))));
        assert!(took < Duration::from_secs(45), "{took:?}");
        let before = rpcs.load(Ordering::SeqCst);
        wait_until("the other processes continue", 10, || rpcs.load(Ordering::SeqCst) > before);
    });
    assert_eq!(n(&mut db), STATES + rpcs.load(Ordering::SeqCst));
    assert_eq!(db.count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    no_deadlock(&app);
    nothing_waits(&app);
    app.done(&[]);
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The process `p` of `count` was repeated often enough to go first. It is called, and its call hangs.
fn marked(app: App, lock: &str) -> (App, Worker) {
    let (app, worker) = set_up(app, states_hang);
    let mut db = app.db();
    let count = Definition::starting_with("Add").step_with("Add", locking(lock));
    app.register("count", &count.maps("public.counters", "id", &["n"]));
    db.start("p", "count").key("r").go();
    for count in 1..=REPEATS {
        worker.wait_for_count("the state's call", 20, count, |call| call.api == Api::Execute);
        // Another value each time, and in the end what it was.
        db.run(&format!("UPDATE counters SET n = {}", REPEATS - count));
        worker.release();
    }
    worker.wait_for_count("the last call", 20, REPEATS + 1, |call| call.api == Api::Execute);
    assert_eq!(repeats(&mut db), REPEATS as i64);
    (app, worker)
}

/// After this number of repeats a call goes first.
const REPEATS: usize = 3;

/// How long an RPC avoids marked objects, in milliseconds.
const RESPECTED: u64 = 5000;

/// Counts the RPCs that avoid marked objects.
const AVOIDS_MARKED_ROW: &str = "pg_stat_activity WHERE query LIKE '%invoke_rpc%' AND wait_event_type = 'Extension'
    AND datname = current_database()";

#[test]
fn rpcs_avoid_the_rows_of_a_state_that_was_repeated_too_often_until_it_completes() {
    let (app, worker) = marked(App::new("locks_mark"), EXCLUSIVE);
    let mut db = app.db();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| timed(|| app.db().rpc("asked", "add", json!(null))));
        wait_until("the RPC waits", 10, || app.superuser().count(AVOIDS_MARKED_ROW) == 1);
        assert_eq!(worker.count(|call| call.api == Api::Rpc), 0);
        worker.release();
        assert_eq!(db.completes("p").result(), 1);
        let (took, answer) = asking.join().expect("no panic");
        assert_eq!(answer, 2);
        assert!(took < Duration::from_millis(RESPECTED), "no session was woken: {took:?}");
    });
    assert_eq!(repeats(&mut db), REPEATS as i64);
    let (took, _) = timed(|| db.rpc("asked", "add", json!(null)));
    assert!(took < Duration::from_secs(2), "the mark has ended: {took:?}");
    app.done(&[]);
}

#[test]
fn rpcs_avoid_the_rows_of_a_state_that_was_repeated_too_often_for_a_limited_time() {
    let (app, worker) = marked(App::new("locks_mark_bound"), EXCLUSIVE);
    let mut db = app.db();
    let (took, _) = timed(|| db.rpc("asked", "add", json!(null)));
    let bounds = Duration::from_millis(RESPECTED)..Duration::from_millis(RESPECTED + 4000);
    assert!(bounds.contains(&took), "{took:?}");
    // A shorter limit of the session holds during this wait too.
    db.run("SET statement_timeout = '300 ms'");
    db.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')");
    db.run("SET statement_timeout = 0");
    let (took, _) = timed(|| db.run("SELECT xdb.invoke_rpc('asked', 'add', timeout => '1 s')"));
    assert!(took < Duration::from_millis(RESPECTED), "{took:?}");
    worker.misbehave(adding);
    worker.release();
    assert_eq!(db.completes("p").result(), 3);
    app.done(&[]);
}

/// An answer first waits for a row, which RPCs then avoid. After that it waits for its process. Meanwhile it is useless
/// to avoid the row.
#[test]
fn a_row_is_left_to_an_answer_only_while_it_waits_for_that() {
    let (app, worker) = set_up(App::new("locks_mark_of_held_up"), states_hang);
    let mut db = app.db();
    let count = Definition::starting_with("Add").step_with("Add", locking(EXCLUSIVE));
    app.register("count", &count.maps("public.counters", "id", &["n"]));
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 20, |call| call.api == Api::Execute);
    let (mut has_row, mut has_process) = (app.db(), app.db());
    has_row.run("BEGIN; SELECT FROM counters FOR UPDATE");
    worker.release();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&enough);
        // An RPC that begins before the row is marked waits for the row itself.
        scope.spawn(|| {
            let mut asking = app.db();
            asking.run("SET statement_timeout = '500 ms'");
            while !enough.load(Ordering::SeqCst) {
                asking.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')");
            }
        });
        wait_until("an RPC avoids the row", 20, || app.superuser().count(AVOIDS_MARKED_ROW) == 1);
    });
    has_process.run(r#"BEGIN; SELECT xdb.set_local_attributes('p', '{"k": 1}')"#);
    has_row.run("COMMIT");
    let (took, answer) = timed(|| app.db().rpc("asked", "add", json!(null)));
    assert_eq!(answer, 1);
    assert!(
        took < Duration::from_millis(RESPECTED),
        "the RPC avoided the row of the state that waits for its process: {took:?}"
    );
    has_process.run("COMMIT");
    worker.misbehave(adding);
    worker.release();
    db.completes("p");
    app.done(&[]);
}

#[test]
fn a_session_that_holds_locks_ignores_marked_rows() {
    let (app, worker) = marked(App::new("locks_mark_holder"), EXCLUSIVE);
    let mut db = app.db();
    // By plain SQL, by driving the process, and by an RPC of the same transaction.
    let drive = r#"SELECT xdb.set_local_attributes('asked', '{"k": 1}')"#;
    for first in ["UPDATE counters SET n = 0", "SELECT FROM counters FOR UPDATE", drive] {
        db.run("BEGIN");
        db.run(first);
        let (took, _) = timed(|| (db.rpc("asked", "add", json!(null)), db.rpc("asked", "add", json!(null))));
        assert!(took < Duration::from_millis(RESPECTED), "{first}: {took:?}");
        db.run("ROLLBACK");
    }
    // What was rolled back is locked no more.
    db.run("BEGIN; SAVEPOINT s; UPDATE counters SET n = 0; ROLLBACK TO s");
    db.run("SET statement_timeout = '1 s'");
    db.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')");
    db.run("ROLLBACK");
    worker.release();
    db.completes("p");
    app.done(&[]);
}

#[test]
fn rpcs_may_share_a_marked_row_that_a_state_shares() {
    let (app, worker) = marked(App::new("locks_mark_share"), "SHARE_LOCK");
    let mut db = app.db();
    let (took, _) = timed(|| db.rpc("asked", "read", json!(null)));
    assert!(took < Duration::from_millis(RESPECTED), "{took:?}");
    db.run("SET statement_timeout = '1 s'");
    db.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')");
    worker.release();
    app.db().completes("p");
    assert_eq!(repeats(&mut app.db()), REPEATS as i64, "an RPC that only reads changes nothing");
    app.done(&[]);
}

/// Even with the tables in opposite orders: an RPC locks tables in one order.
#[test]
fn rpcs_that_lock_two_tables_do_not_deadlock() {
    let app = App::new("locks_rpc_orders");
    let mut db = app.db();
    db.run(
        "CREATE TABLE red (id text PRIMARY KEY, a int); INSERT INTO red VALUES ('r', 0);
         CREATE TABLE blue (id text PRIMARY KEY, b int); INSERT INTO blue VALUES ('r', 0);",
    );
    let _worker = app.worker(|call: &Call| {
        let plus = |name: &str| call.global(name).as_i64().unwrap_or_default() + 1;
        output(json!(null)).globals(json!({"a": plus("a"), "b": plus("b")}))
    });
    let base = || Definition::without_start().rpc("add", locking(EXCLUSIVE));
    app.register("there", &base().maps("public.red", "id", &["a"]).maps("public.blue", "id", &["b"]));
    app.register("back", &base().maps("public.blue", "id", &["b"]).maps("public.red", "id", &["a"]));
    for number in 0..8 {
        db.start(&format!("p{number}"), if number % 2 == 0 { "there" } else { "back" })
            .keys(&[("public.red", "id"), ("public.blue", "id")], "r")
            .go();
    }
    at_once(8, |number| {
        let mut db = app.db();
        (0..20).for_each(|_| drop(db.rpc(&format!("p{number}"), "add", json!(null))));
    });
    assert_eq!(db.one::<i32>("SELECT a + b FROM red, blue"), 320);
    no_deadlock(&app);
    app.done(&[]);
}

#[test]
fn threads_and_rpcs_count_in_one_local_key() {
    let app = App::new("locks_rpc_local");
    let _worker = app.worker(|call: &Call| {
        let k = call.local("k").as_i64().unwrap_or_default() + 1;
        match (call.api, call.target()) {
            (Api::Rpc, "begin") => output(json!(0)).and(next_all(&vec![("Add", json!(null)); 30])),
            (Api::Rpc, _) => output(json!(k)).locals(json!({"k": k})),
            _ => dead_end().locals(json!({"k": k})),
        }
    });
    let exclusive = json!({"loadLocalAttributes": {"policy": "PARTIAL", "names": ["k"], "lockType": EXCLUSIVE}});
    let definition = Definition::without_start().step_with("Add", exclusive.clone());
    app.register("threads", &definition.rpc("begin", json!({})).rpc("add", exclusive));
    let mut db = app.db();
    db.start("p", "threads").go();
    db.rpc("p", "begin", json!(null));
    at_once(6, |_| {
        let mut db = app.db();
        for _ in 0..5 {
            db.rpc("p", "add", json!(null));
        }
    });
    wait_until("all threads have ended", 30, || views::ended_states(&mut db, "p") == 30);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"k": 60}));
    app.done(&[]);
}

#[test]
fn an_rpc_waits_for_no_state_and_its_transaction_delays_states_with_the_same_row() {
    let (app, worker) = application("locks_rpc_state", states_hang);
    let (mut db, mut asking) = (app.db(), app.db());
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 10, |call| call.api == Api::Execute);
    asking.run("BEGIN");
    let (took, answer) = timed(|| asking.rpc("asked", "add", json!(null)));
    assert_eq!(answer, 1);
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(asking.rpc("asked", "add", json!(null)), 2, "it does not wait for itself");
    worker.misbehave(adding);
    worker.release();
    // The row blocks no other process.
    db.run("INSERT INTO counters VALUES ('s', 0)");
    db.start("q", "count").key("s").go();
    assert_eq!(db.completes("q").result(), 1);
    assert_eq!(db.status("p"), "RUNNING");
    asking.run("COMMIT");
    assert_eq!(db.completes("p").result(), 3);
    assert!(worker.calls().iter().all(|call| call.attempt() == 1));
    app.done(&[]);
}

#[test]
fn an_rpc_that_is_rolled_back_causes_no_repeat() {
    let (app, worker) = application("locks_rpc_rollback", states_hang);
    let (mut db, mut asking) = (app.db(), app.db());
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 10, |call| call.api == Api::Execute);
    asking.run("BEGIN");
    assert_eq!(asking.rpc("asked", "add", json!(null)), 1);
    worker.release();
    asking.run("ROLLBACK");
    assert_eq!(db.completes("p").result(), 1);
    assert_eq!(repeats(&mut db), 0);
    app.done(&[]);
}

#[test]
fn an_rpc_that_waits_for_a_row_or_a_process_obeys_its_caller() {
    let (app, worker) = application("locks_rpc_cancel", adding);
    let (mut holding, mut asking) = (app.db(), app.db());
    let drive = r#"SELECT xdb.set_local_attributes('asked', '{"k": 1}')"#;
    for (hold, named) in [("UPDATE counters SET n = n + 10", "counters"), (drive, "process \"asked\"")] {
        holding.run("BEGIN");
        holding.run(hold);
        let (took, error) = timed(|| {
            asking.refused(codes::LOCKS_NOT_GRANTED, "SELECT xdb.invoke_rpc('asked', 'add', timeout => '300 ms')")
        });
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert!(error.detail.contains(named), "{error:?}");
        asking.run("SET lock_timeout = '100 ms'");
        asking.refused("55P03", "SELECT xdb.invoke_rpc('asked', 'add')");
        asking.run("SET lock_timeout = 0; SET statement_timeout = '300 ms'");
        asking.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')");
        asking.run("SET statement_timeout = 0");
        let pid: i32 = asking.one("SELECT pg_backend_pid()");
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| asking.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')"));
            let mut superuser = app.superuser();
            wait_until("it waits", 10, || superuser.count(&format!("pg_locks WHERE pid = {pid} AND NOT granted")) == 1);
            superuser.run(&format!("SELECT pg_cancel_backend({pid})"));
            caller.join().expect("no panic");
        });
        holding.run("ROLLBACK");
    }
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 0, "it is not called before it has its locks");
    assert_eq!(asking.rpc("asked", "add", json!(null)), 1);
    app.done(&[]);
}

/// A pause ends late, locks are held, and the worker does not answer. With a timeout for each of these, the RPC would
/// take three times as long.
#[test]
fn the_waits_of_an_rpc_and_its_call_have_one_deadline() {
    let hanging = |call: &Call| match call.target() {
        "slow" => Reply::hang(add(call)),
        _ => add(call).into(),
    };
    let (app, worker) = application("locks_rpc_deadline", hanging);
    let (mut holding, mut superuser) = (app.db(), app.superuser());
    let row_held = "UPDATE counters SET n = n + 10";
    let process_held = r#"SELECT xdb.set_local_attributes('asked', '{"k": 1}')"#;
    for (held, ends_at, code) in [
        (row_held, Some(4), codes::WORKER_FAILED),
        (row_held, None, codes::LOCKS_NOT_GRANTED),
        (process_held, None, codes::LOCKS_NOT_GRANTED),
    ] {
        holding.run("SELECT xdb.pause_process('asked', until => now() + interval '2 s')");
        holding.run("BEGIN");
        holding.run(held);
        let mut asking = app.db();
        let pid: i32 = asking.one("SELECT pg_backend_pid()");
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let asks = scope.spawn(move || {
                timed(|| asking.refused(code, "SELECT xdb.invoke_rpc('asked', 'slow', timeout => '6 s')"))
            });
            if let Some(seconds) = ends_at {
                let locked = format!("pg_locks WHERE pid = {pid} AND NOT granted");
                wait_until("it waits for the lock", 5, || superuser.count(&locked) == 1);
                wait_until("it has waited", 5, || begun.elapsed() > Duration::from_secs(seconds));
                holding.run("ROLLBACK");
            }
            let (took, error) = asks.join().expect("no panic");
            let bounds = Duration::from_millis(5900)..Duration::from_millis(7500);
            assert!(bounds.contains(&took), "{held}: {took:?}: {error:?}");
            assert!(error.detail.contains("s for the end of a pause"), "{error:?}");
            assert_eq!(error.detail.contains("s for locks and"), ends_at.is_some(), "{error:?}");
        });
        holding.run("ROLLBACK");
    }
    let timeouts: Vec<_> = worker.calls().iter().map(|call| call.body["context"]["timeoutSeconds"].as_f64()).collect();
    assert!(matches!(timeouts[..], [Some(seconds)] if seconds > 0.0 && seconds < 3.0), "{timeouts:?}");
    worker.release();
    app.done(&[]);
}

#[test]
fn the_timeout_of_an_rpc_covers_the_wait_for_its_idempotency_key() {
    let (app, worker) = application("locks_rpc_key", adding);
    let (mut first, mut second) = (app.db(), app.db());
    let add = "SELECT xdb.invoke_rpc('asked', 'add', timeout => '500 ms', idempotency_key => 'k')";
    first.run("BEGIN");
    assert_eq!(first.json(add), 1);
    second.run("SET statement_timeout = '10 s'");
    let (took, error) = timed(|| second.refused(codes::LOCKS_NOT_GRANTED, add));
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(error.detail.contains("idempotency key \"k\""), "{error:?}");
    first.run("COMMIT");
    assert_eq!(second.json(add), 1);
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 1);
    app.done(&[]);
}

#[test]
fn an_rpc_of_a_session_that_holds_the_row_gets_the_lock_of_a_state() {
    let (app, worker) = application("locks_rpc_yield", states_hang);
    let (mut db, mut asking) = (app.db(), app.db());
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 10, |_| true);
    asking.run("BEGIN; UPDATE counters SET n = n + 10");
    worker.misbehave(adding);
    worker.release();
    let (took, answer) = timed(|| asking.rpc("asked", "add", json!(null)));
    assert_eq!(answer, 11);
    assert!(took < Duration::from_secs(5), "{took:?}");
    asking.run("COMMIT");
    assert_eq!(db.completes("p").result(), 12);
    let state = worker.calls().into_iter().filter(|call| call.api == Api::Execute).collect::<Vec<_>>();
    assert!(state.iter().all(|call| call.attempt() == 1), "to yield is no attempt");
    assert_ne!(state[0].idempotency_key(), state[state.len() - 1].idempotency_key());
    app.done(&[]);
}

#[test]
fn an_rpc_of_a_session_that_holds_the_process_gets_the_lock_of_its_state() {
    let app = App::new("locks_rpc_process");
    let worker = app.worker(|call: &Call| {
        let k = call.local("k").as_i64().unwrap_or_default() + 1;
        match call.api {
            Api::Rpc => Reply::from(output(json!(k)).locals(json!({"k": k}))),
            _ => Reply::hang(force_complete(json!(k)).locals(json!({"k": k}))),
        }
    });
    let exclusive = json!({"loadLocalAttributes": {"policy": "ALL", "lockType": EXCLUSIVE}});
    let definition = Definition::starting_with("Add").step_with("Add", exclusive.clone());
    app.register("both", &definition.rpc("add", exclusive));
    let (mut db, mut asking) = (app.db(), app.db());
    db.start("p", "both").go();
    worker.wait_for("the state's call", 10, |_| true);
    asking.run("BEGIN");
    asking.run(r#"SELECT xdb.set_local_attributes('p', '{"k": 10}')"#);
    worker.release();
    let (took, answer) = timed(|| asking.rpc("p", "add", json!(null)));
    assert_eq!(answer, 11);
    assert!(took < Duration::from_secs(5), "{took:?}");
    asking.run("COMMIT");
    worker.wait_for_count("the state's call again", 10, 2, |call| call.api == Api::Execute);
    worker.release();
    assert_eq!(db.completes("p").result(), 12);
    app.done(&[]);
}

#[test]
fn rpcs_work_while_the_engine_is_paused_or_stopped() {
    let (app, worker) = marked(App::new("locks_rpc_paused"), EXCLUSIVE);
    let mut db = app.db();
    db.start("q", "count").key("r").go();
    wait_until("another one waits", 10, || waiting(&mut db) == 1);
    app.session("boss").run("SELECT xdb.pause_engine()");
    wait_until("the engine is paused", 10, || views::engine(&mut app.superuser()).contains("paused"));
    // The paused engine begins no call, so the RPC does not wait.
    let (took, answer) = timed(|| db.rpc("asked", "add", json!(null)));
    assert_eq!(answer, 1);
    assert!(took < Duration::from_secs(3), "{took:?}");
    worker.misbehave(adding);
    worker.release();
    app.session("boss").run("SELECT xdb.resume_engine()");
    db.completes("p");
    db.completes("q");
    assert_eq!(n(&mut db), 3);
    app.done(&[]);
}

#[test]
fn marks_of_an_engine_that_is_switched_off_count_for_nothing() {
    let (app, worker) = marked(App::alone("locks_rpc_off", ClusterOptions::default()), EXCLUSIVE);
    let mut db = app.db();
    db.start("other", "count").key("r").go();
    app.cluster().set("xdb.enabled", "off");
    wait_until("the engine has ended", 20, || app.cluster().find_scheduler(app.database()).is_none());
    let (took, answer) = timed(|| db.rpc("asked", "add", json!(null)));
    assert_eq!(answer, 1);
    assert!(took < Duration::from_secs(3), "{took:?}");
    worker.misbehave(adding);
    worker.release();
    app.cluster().set("xdb.enabled", "on");
    db.completes("p");
    db.completes("other");
    assert_eq!(n(&mut db), 3);
    app.done(&[]);
}

#[test]
fn rpcs_in_opposite_orders_are_a_deadlock_that_postgres_ends() {
    let (app, _worker) = application("locks_rpc_deadlock", adding);
    let (mut one, mut two) = (app.db(), app.db());
    one.run("INSERT INTO counters VALUES ('s', 0)");
    one.start("other", "asked").key("s").go();
    one.run("BEGIN");
    one.rpc("asked", "add", json!(null));
    two.run("BEGIN");
    two.rpc("other", "add", json!(null));
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let done = one.try_run("SELECT xdb.invoke_rpc('other', 'add')");
            one.run("ROLLBACK");
            done
        });
        let second = two.try_run("SELECT xdb.invoke_rpc('asked', 'add')");
        two.run("ROLLBACK");
        (first.join().expect("no panic"), second)
    });
    let errors: Vec<_> = [first, second].into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.iter().map(|error| error.code.as_str()).collect::<Vec<_>>(), ["40P01"], "{errors:?}");
    app.done(&[]);
}

#[test]
fn a_writing_rpc_conflicts_with_a_change_of_its_share_locked_attribute() {
    let app = App::new("locks_rpc_share");
    let worker = app.worker(|call: &Call| match call.target() {
        "look" => Reply::hang(output(call.local("k").clone())),
        _ => Reply::hang(output(json!(1)).locals(json!({"seen": call.local("k")}))),
    });
    let share = json!({"loadLocalAttributes": {"policy": "PARTIAL", "names": ["k"], "lockType": "SHARE_LOCK"}});
    app.register("p", &Definition::without_start().rpc("look", share.clone()).rpc("copy", share));
    let mut db = app.db();
    db.start("p", "p").locals(json!({"k": 1})).go();
    for (rpc, code) in [("copy", Some(codes::SERIALIZATION_FAILURE)), ("look", None)] {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| app.db().try_run(&format!("SELECT xdb.invoke_rpc('p', '{rpc}')")));
            worker.wait_for("the call", 10, |call| call.target() == rpc);
            db.run(r#"SELECT xdb.set_local_attributes('p', '{"k": 2}')"#);
            worker.release();
            let error = asking.join().expect("no panic").err();
            assert_eq!(error.map(|error| error.code).as_deref(), code, "{rpc}");
        });
    }
    app.done(&[]);
}

#[test]
fn an_rpc_that_locks_needs_the_privilege_to_update() {
    let (app, worker) = application("locks_rpc_privilege", adding);
    app.superuser().run("ALTER TABLE counters OWNER TO postgres; GRANT SELECT ON counters TO app");
    let mut db = app.db();
    db.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.invoke_rpc('asked', 'read')");
    assert_eq!(worker.count(|_| true), 0);
    app.done(&[]);
}
