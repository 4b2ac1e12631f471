//! A waiting session releases its statement's snapshot if possible, so that vacuum can remove dead rows.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// `mail` waits for a message. `wait_in_plpgsql` waits for its close in a function of the application.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]).into(),
        _ => Reply::from(force_complete(json!("read"))),
    });
    app.register("mail", &mailbox());
    app.superuser().run(
        "CREATE FUNCTION wait_in_plpgsql(id text) RETURNS jsonb LANGUAGE plpgsql AS $$
         BEGIN RETURN xdb.wait_for_process(id, '60 s'); END $$;
         CREATE FUNCTION wait_in_sql(id text) RETURNS jsonb LANGUAGE sql VOLATILE AS $$
         SELECT xdb.wait_for_process(id, '60 s') $$;
         CREATE FUNCTION peek() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT count(*) FROM pg_class $$;
         CREATE VIEW waits AS SELECT xdb.wait_for_process('p', '60 s') AS answer;
         GRANT SELECT ON waits TO app",
    );
    (app, worker)
}

const PID: &str = "SELECT pg_backend_pid()";

/// Whether a session that sleeps in a wait prevents vacuum from removing dead rows.
fn holds(superuser: &mut Db, pid: i32) -> bool {
    let state = format!(
        "SELECT COALESCE(wait_event = 'Extension', false), backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = {pid}"
    );
    let mut look = || {
        let row = superuser.client().query_one(&state, &[]).expect("the session is there");
        (row.get::<_, bool>(0), row.get::<_, bool>(1))
    };
    wait_until("it sleeps", 20, || look().0);
    // Woken for nothing, it reads with a snapshot, and sleeps again.
    (0..20).all(|_| {
        std::thread::yield_now();
        look().1
    })
}

/// Starts the process and runs `wait` in a session of its own. Returns whether that session holds a snapshot meanwhile,
/// and ends the wait.
fn held_while<T: Send>(app: &App, db: &mut Db, wait: impl FnOnce(&mut Db) -> T + Send) -> (bool, T) {
    let mut superuser = app.superuser();
    db.start("p", "mail").go();
    wait_until("the process waits", 20, || superuser.count("xdb.waits WHERE process_id = 'p'") == 1);
    let mut session = app.db();
    let pid: i32 = session.one(PID);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || wait(&mut session));
        let held = holds(&mut superuser, pid);
        // A wake-up for nothing, after which it sleeps again.
        superuser.run("BEGIN; SELECT xdb.stop_process('p'); ROLLBACK");
        assert_eq!(holds(&mut superuser, pid), held);
        db.publish("p", "inbox", json!(1));
        (held, waiter.join().expect("no panic"))
    })
}

#[test]
fn a_statement_that_only_waits_holds_nothing_back() {
    let (app, _worker) = application("snapshot_given_back");
    let mut db = app.db();
    for sql in [
        "SELECT xdb.wait_for_process('p', '60 s')",
        "SELECT * FROM xdb.wait_for_process('p', '60 s')",
        "SELECT answer FROM xdb.wait_for_process('p', '60 s') AS answer",
        "SELECT answer ->> 'status', answer -> 'result' FROM xdb.wait_for_process('p', '60 s') AS answer",
        "SELECT xdb.wait_for_process('p', '60 s') ->> 'status'",
        "SELECT (xdb.wait_for_process('p', '60 s') -> 'timedOut')::bool",
        "SELECT 1, xdb.wait_for_process(process_id => 'p', timeout => '60 s') AS answer, 'two'",
        "SELECT xdb.wait_for_state('p', 'Read-1', '60 s')",
        "SELECT * FROM xdb.wait_for_state('p', 'Read-1', '60 s')",
        "SELECT wait_in_sql('p')",
        "SELECT * FROM waits",
        "SELECT count(*) FROM users; SELECT xdb.wait_for_process('p', '60 s')",
        "BEGIN; SELECT count(*) FROM users; SELECT xdb.wait_for_process('p', '60 s'); SELECT count(*) FROM users; COMMIT",
        "BEGIN; SAVEPOINT a; SELECT xdb.wait_for_process('p', '60 s'); ROLLBACK TO a; SELECT count(*) FROM users; COMMIT",
        "BEGIN; DECLARE c CURSOR FOR SELECT xdb.wait_for_process('p', '60 s'); FETCH c; FETCH c; SELECT 1; COMMIT",
    ] {
        let (held, ended) = held_while(&app, &mut db, |session| session.try_run(sql));
        ended.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        assert!(!held, "{sql}");
    }
    app.done(&[]);
}

#[test]
fn so_does_a_prepared_one_that_is_asked_row_by_row() {
    let (app, _worker) = application("snapshot_prepared");
    let mut db = app.db();
    let sql = "SELECT xdb.wait_for_process($1, '60 s') ->> 'status'";
    // Six times: the server's plan is a general one then.
    for _ in 0..6 {
        let (held, status) = held_while(&app, &mut db, |session| {
            session.client().query_one(sql, &[&"p"]).map(|row| row.get::<_, String>(0))
        });
        assert_eq!((held, status.expect("an answer").as_str()), (false, "COMPLETED"));
    }
    let (held, rows) = held_while(&app, &mut db, |session| {
        let mut transaction = session.client().transaction()?;
        let portal = transaction.bind(sql, &[&"p"])?;
        let mut rows = transaction.query_portal(&portal, 1)?.len();
        rows += transaction.query_portal(&portal, 1)?.len();
        let users: i64 = transaction.query_one("SELECT count(*) FROM users", &[])?.get(0);
        transaction.commit()?;
        Ok::<_, postgres::Error>((rows, users))
    });
    assert_eq!((held, rows.expect("an answer")), (false, (1, 0)));
    app.done(&[]);
}

#[test]
fn a_statement_that_does_more_keeps_its_snapshot() {
    let (app, _worker) = application("snapshot_kept");
    let mut db = app.db();
    for sql in [
        "SELECT xdb.wait_for_process('p', '60 s'), count(*) FROM users",
        "SELECT xdb.wait_for_process('p', '60 s'), (SELECT count(*) FROM users)",
        "SELECT xdb.wait_for_process('p', '60 s'), peek()",
        "SELECT peek(), answer FROM xdb.wait_for_process('p', '60 s') AS answer",
        "SELECT xdb.wait_for_process('p', '60 s'), xdb.wait_for_process('p', '60 s')",
        "SELECT * FROM xdb.wait_for_process('p', '60 s'), generate_series(1, 2)",
        "WITH a AS MATERIALIZED (SELECT xdb.wait_for_process('p', '60 s')) SELECT * FROM a",
        "CREATE TEMP TABLE kept AS SELECT xdb.wait_for_process('p', '60 s')",
        "SELECT wait_in_plpgsql('p')",
        "DO $$ BEGIN PERFORM xdb.wait_for_process('p', '60 s'); END $$",
        "PREPARE w AS SELECT xdb.wait_for_process('p', '60 s'); EXECUTE w",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT xdb.wait_for_process('p', '60 s'); COMMIT",
        "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT xdb.wait_for_process('p', '60 s'); COMMIT",
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM users; SELECT xdb.wait_for_process('p', '60 s'); FETCH c; COMMIT",
    ] {
        let (held, ended) = held_while(&app, &mut db, |session| session.try_run(sql));
        ended.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        assert!(held, "{sql}");
    }
    app.done(&[]);
}

#[test]
fn a_wait_that_is_ended_early_leaves_its_session_whole() {
    let (app, _worker) = application("snapshot_ended");
    let mut superuser = app.superuser();
    let mut db = app.db();
    db.start("p", "mail").go();
    let mut session = app.db();
    let pid: i32 = session.one(PID);
    let cancel_it = |superuser: &mut Db| {
        assert!(!holds(superuser, pid));
        superuser.run(&format!("SELECT pg_cancel_backend({pid})"));
    };
    for (before, after) in [
        ("", "SELECT count(*) FROM users"),
        ("BEGIN; SELECT count(*) FROM users;", "ROLLBACK"),
        (
            "BEGIN; INSERT INTO users (user_id) VALUES ('a'); SAVEPOINT a;",
            "ROLLBACK TO a; SELECT count(*) FROM users; COMMIT",
        ),
    ] {
        for call in ["SELECT", "SELECT * FROM"] {
            let sql =
                format!("{} {call} xdb.wait_for_process('p', '60 s')", before.replace("'a'", &format!("'{call}'")));
            let cancelled = std::thread::scope(|scope| {
                let waiter = scope.spawn(|| session.try_run(&sql));
                cancel_it(&mut superuser);
                waiter.join().expect("no panic")
            });
            assert_eq!(cancelled.expect_err("cancelled").code, codes::QUERY_CANCELED, "{sql}");
            session.run(after);
            assert_eq!(session.count("users"), db.count("users"), "{sql}");
        }
        let timed_out = session
            .try_run(&format!("SET statement_timeout = '300ms'; {}", "SELECT xdb.wait_for_process('p', '60 s')"));
        assert_eq!(timed_out.expect_err("timed out").code, codes::QUERY_CANCELED);
        session.run("RESET statement_timeout");
    }
    assert_eq!(session.json("SELECT xdb.wait_for_process('p', '0.2 s')")["timedOut"], true);
    // The next statement sees what was committed during the wait.
    session.run("BEGIN");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| session.json("SELECT xdb.wait_for_process('p', '60 s')"));
        assert!(!holds(&mut superuser, pid));
        db.run("INSERT INTO users (user_id) VALUES ('z')");
        db.publish("p", "inbox", json!(1));
        assert_eq!(waiter.join().expect("no panic")["status"], "COMPLETED");
    });
    assert_eq!(session.count("users WHERE user_id = 'z'"), 1);
    session.run("COMMIT");
    app.done(&[]);
}

#[test]
fn a_waiting_pull_worker_holds_no_snapshot() {
    let app = App::new("snapshot_calls");
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &Definition::starting_with("Only").step("Only"));
    let mut db = app.db();
    for (n, (sql, held)) in [
        ("SELECT token FROM xdb.claim_calls('pull', wait => '60 s')", false),
        ("SELECT token, (SELECT count(*) FROM users) FROM xdb.claim_calls('pull', wait => '60 s')", true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut session = app.db();
        let pid: i32 = session.one(PID);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || session.one::<String>(sql));
            assert_eq!(holds(&mut superuser, pid), held, "{sql}");
            db.start(&format!("p{n}"), "pulled").go();
            let token = waiter.join().expect("no panic");
            db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(n)).json())));
        });
        db.completes(&format!("p{n}"));
    }
    app.done(&[]);
}
