//! RPCs with locks on attributes: they stand in line with states, and plain SQL sees them as it sees any transaction.

use xdb_cluster_tests::prelude::*;

const EXCLUSIVE: &str = "EXCLUSIVE_LOCK";

fn locking(lock: &str) -> Value {
    json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}})
}

fn add(call: &Call) -> Answer {
    let n = call.global("n").as_i64().unwrap_or_default() + 1;
    match call.api {
        Api::Rpc => output(json!(n)).globals(json!({"n": n})),
        _ => force_complete(json!(n)).globals(json!({"n": n})),
    }
}

/// A type whose one state adds to a row, one that waits and can be asked to, and a row `r`; `asked` waits.
fn application(name: &str, handler: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> (App, Worker) {
    let app = App::new(name);
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

/// States of `count` hang; all else adds.
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
    db.count("xdb.attribute_locks WHERE NOT granted")
}

/// Fifty states, eight sessions with ten RPCs each, and if wanted four with ten plain updates each, all in one row.
fn crowd(name: &str, plain: bool) {
    let (app, worker) = application(name, adding);
    let mut db = app.db();
    for number in 0..8 {
        db.start(&format!("asked{number}"), "asked").key("r").go();
    }
    at_once(if plain { 13 } else { 9 }, |number| {
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
    assert_eq!(n(&mut db), 130 + if plain { 40 } else { 0 });
    if !plain {
        assert_eq!((repeats(&mut db), worker.count(|_| true)), (0, 130));
    }
    let database = format!("|{}|", app.database());
    let deadlock = |line: &&str| line.contains("deadlock detected") && line.contains(&database);
    assert_eq!(app.cluster().log().lines().find(deadlock), None);
    assert_eq!(app.superuser().count("xdb.attribute_lock"), 0);
    app.done(&[]);
}

#[test]
fn states_rpcs_and_plain_writers_in_one_row_lose_no_update() {
    crowd("locks_crowd_plain", true);
}

#[test]
fn states_and_rpcs_in_one_row_do_not_conflict() {
    crowd("locks_crowd", false);
}

#[test]
fn threads_and_rpcs_count_in_one_local_key() {
    let app = App::new("locks_rpc_local");
    let worker = app.worker(|call: &Call| {
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
    assert_eq!((repeats(&mut db), worker.count(|_| true)), (0, 61));
    app.done(&[]);
}

#[test]
fn an_rpc_waits_for_a_state_and_a_state_for_an_rpc() {
    let (app, worker) = application("locks_rpc_line", states_hang);
    let mut db = app.db();
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 10, |call| call.api == Api::Execute);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut db = app.db();
            db.run("BEGIN");
            let answer = db.rpc("asked", "add", json!(null));
            (db, answer)
        });
        wait_until("the RPC stands in line", 10, || {
            db.count("pg_locks WHERE locktype = 'advisory' AND objsubid = 30820 AND granted") == 1
        });
        assert_eq!(worker.count(|call| call.api == Api::Rpc), 0, "it is not called before it has its locks");
        worker.release();
        assert_eq!(db.completes("p").result(), 1);
        let (mut asking, answer) = asking.join().expect("no panic");
        assert_eq!(answer, 2);
        // Its transaction goes on, and so it has the lock.
        db.start("q", "count").key("r").go();
        wait_until("the next state waits in line", 10, || waiting(&mut db) == 1);
        let (took, ()) = timed(|| {
            asking.run("COMMIT");
            worker.wait_for("the next state's call", 10, |call| call.process_id() == "q");
        });
        assert!(took < Duration::from_millis(900), "nobody was woken: {took:?}");
    });
    worker.release();
    assert_eq!(db.completes("q").result(), 3);
    assert_eq!(repeats(&mut db), 0);
    app.done(&[]);
}

#[test]
fn an_rpc_that_is_rolled_back_hands_on() {
    let (app, _worker) = application("locks_rpc_rollback", adding);
    let (mut db, mut asking) = (app.db(), app.db());
    asking.run("BEGIN");
    assert_eq!(asking.rpc("asked", "add", json!(null)), 1);
    assert_eq!(asking.rpc("asked", "add", json!(null)), 2, "it does not wait for itself");
    db.start("p", "count").key("r").go();
    wait_until("the state waits in line", 10, || waiting(&mut db) == 1);
    asking.run("ROLLBACK");
    assert_eq!(db.completes("p").result(), 1);
    assert_eq!(repeats(&mut db), 0);
    app.done(&[]);
}

#[test]
fn an_rpc_that_waits_obeys_its_caller_and_leaves_the_line() {
    let (app, worker) = application("locks_rpc_cancel", states_hang);
    let mut db = app.db();
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 10, |_| true);
    let mut asking = app.db();
    let (took, error) = timed(|| {
        asking.refused(codes::LOCKS_NOT_GRANTED, "SELECT xdb.invoke_rpc('asked', 'add', timeout => '300 ms')")
    });
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(error.detail.contains("counters"), "{error:?}");
    asking.run("SET statement_timeout = '300 ms'");
    asking.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')");
    asking.run("SET statement_timeout = 0");
    let pid: i32 = asking.one("SELECT pg_backend_pid()");
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| asking.refused(codes::QUERY_CANCELED, "SELECT xdb.invoke_rpc('asked', 'add')"));
        wait_until("it stands in line", 10, || {
            db.count("pg_locks WHERE locktype = 'advisory' AND objsubid = 30820 AND granted") == 1
        });
        app.superuser().run(&format!("SELECT pg_cancel_backend({pid})"));
        caller.join().expect("no panic");
    });
    db.start("q", "count").key("r").go();
    worker.misbehave(adding);
    worker.release();
    assert_eq!(db.completes("p").result(), 1);
    assert_eq!(db.completes("q").result(), 2);
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 0);
    app.done(&[]);
}

#[test]
fn who_holds_the_row_and_asks_gets_what_a_state_has() {
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
fn who_holds_the_process_and_asks_gets_what_its_state_has() {
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
fn rpcs_work_while_the_engine_is_paused_or_gone() {
    let (app, worker) = application("locks_rpc_paused", states_hang);
    let mut db = app.db();
    db.start("p", "count").key("r").go();
    worker.wait_for("the state's call", 10, |_| true);
    db.start("q", "count").key("r").go();
    wait_until("another one waits", 10, || waiting(&mut db) == 1);
    app.session("boss").run("SELECT xdb.pause()");
    worker.misbehave(adding);
    worker.release();
    // The answer is still applied, and then nobody is let in.
    assert_eq!(db.completes("p").result(), 1);
    let (took, answer) = timed(|| db.rpc("asked", "add", json!(null)));
    assert_eq!(answer, 2);
    assert!(took < Duration::from_secs(3), "{took:?}");
    app.session("boss").run("SELECT xdb.resume()");
    assert_eq!(db.completes("q").result(), 3);
    app.done(&[]);
}

#[test]
fn locks_of_an_engine_that_is_switched_off_count_for_nothing() {
    let app = App::alone("locks_rpc_off", ClusterOptions::default());
    let worker = app.worker(states_hang);
    let table = |definition: Definition| definition.maps("public.counters", "id", &["n"]);
    let count = Definition::starting_with("Add").step_with("Add", locking(EXCLUSIVE));
    app.register("count", &table(count.rpc("add", locking(EXCLUSIVE))));
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('r', 0)");
    db.start("p", "count").key("r").go();
    db.start("other", "count").key("r").go();
    worker.wait_for("the state's call", 10, |_| true);
    app.cluster().set("xdb.enabled", "off");
    wait_until("the engine is gone", 20, || app.cluster().find_scheduler(app.database()).is_none());
    let (took, answer) = timed(|| db.rpc("p", "add", json!(null)));
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
fn what_an_rpc_shares_is_unchanged_when_it_writes() {
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
