//! Logical replication of a database with XDB, with all of its tables.

use xdb_cluster_tests::prelude::*;

fn logical() -> ClusterOptions {
    ClusterOptions::default().set("wal_level", "logical").set("max_worker_processes", "16")
}

/// Counts in the application's row, then waits for a message.
fn handler(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        (_, "Count") => next("Wait", json!(null)).globals(json!({"n": 1})).into(),
        _ => graceful_complete(json!(call.messages("m"))).globals(json!({"n": 2})).into(),
    }
}

fn counting() -> Definition {
    Definition::starting_with("Count").step("Count").waiting_step("Wait").maps("public.counters", "id", &["n"])
}

fn publisher(name: &str) -> (App, Worker) {
    let app = App::alone(name, logical());
    let worker = app.worker(handler);
    app.register("counting", &counting());
    app.superuser().run("CREATE PUBLICATION everything FOR ALL TABLES");
    (app, worker)
}

fn start(app: &App, ids: &[&str]) {
    let mut db = app.db();
    for id in ids {
        db.start(id, "counting").key(id).globals(json!({"n": 0})).go();
    }
    wait_until("they wait", 20, || ids.iter().all(|id| db.count(&format!("xdb.waits WHERE process_id = '{id}'")) == 1));
}

/// A database in another server with the application's tables, and with XDB if `extension` is true.
fn subscriber(app: &App, extension: bool) -> (Cluster, Db) {
    let there = Cluster::start_elsewhere(logical());
    there.superuser().run(&format!("CREATE DATABASE {} TEMPLATE template0", app.database()));
    let mut db = there.connect(app.database(), "postgres");
    if extension {
        db.run("CREATE EXTENSION xdb; SELECT xdb.grant_usage('app')");
    }
    db.run(
        "CREATE TABLE users (user_id text PRIMARY KEY, form jsonb, status text, source text);
         CREATE TABLE counters (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
         GRANT ALL ON users, counters TO app",
    );
    (there, db)
}

fn subscribe(app: &App, db: &mut Db) {
    db.run(&format!(
        "CREATE SUBSCRIPTION sub CONNECTION '{}' PUBLICATION everything",
        app.cluster().conninfo(app.database())
    ));
    wait_until("all tables are copied", 60, || db.one("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"));
}

/// Waits until the subscriber has all changes of the publisher.
fn caught_up(app: &App) {
    let mut publisher = app.superuser();
    let position: String = publisher.one("SELECT pg_current_wal_lsn()::text");
    wait_until("the subscriber has all of it", 30, || {
        publisher.one(&format!(
            "SELECT count(*) = 1 AND bool_and(confirmed_flush_lsn >= '{position}') FROM pg_replication_slots"
        ))
    });
}

#[test]
fn every_table_has_a_replica_identity() {
    let app = App::new("publications_keys");
    let without: Vec<String> = app.superuser().all(
        "SELECT relname::text FROM pg_class AS c WHERE relnamespace = 'xdb'::regnamespace AND relkind = 'r'
         AND (relreplident <> 'd' OR NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary))",
    );
    assert_eq!(without, Vec::<String>::new());
    app.done(&[]);
}

#[test]
fn a_subscriber_of_all_tables_has_a_quiet_copy_that_can_be_adopted() {
    let (app, worker) = publisher("publications_copy");
    start(&app, &["p", "q"]);
    let (there, mut db) = subscriber(&app, true);
    subscribe(&app, &mut db);
    let mut here = app.db();
    here.publish("p", "inbox", json!("word"));
    here.completes("p");
    start(&app, &["r"]);
    // The engine's own rows change, and stay where they are.
    app.superuser().run("SELECT xdb.pause_engine()");
    let scheduler = app.scheduler();
    app.superuser().run(&format!("SELECT pg_terminate_backend({scheduler})"));
    wait_until("another scheduler is there", 20, || {
        app.cluster().find_scheduler(app.database()).is_some_and(|pid| pid != scheduler)
    });
    app.superuser().run("SELECT xdb.resume_engine()");
    start(&app, &["s"]);
    caught_up(&app);

    let of_status = "SELECT state || ': ' || reason FROM xdb.status()";
    let shown = db.text(of_status);
    assert!(shown.starts_with("waiting for adopt: this database is a copy of the one with oid "), "{shown}");
    let to_do = "; a subscription replicates into the tables of xdb: sub; drop it before xdb.adopt()";
    assert!(shown.ends_with(to_do), "{shown}");
    let rows = "SELECT format('%s %s %s', p.process_id, p.status, c.n) FROM xdb.processes p JOIN counters c ON c.id = p.process_id
                ORDER BY p.process_id";
    let copied: Vec<String> = db.all(rows);
    assert_eq!(copied, ["p COMPLETED 2", "q RUNNING 1", "r RUNNING 1", "s RUNNING 1"]);
    assert_eq!(copied, app.superuser().all::<String>(rows));
    let error = db.refused("XD021", "SELECT xdb.adopt()");
    assert_eq!(error.message, "a subscription replicates into the tables of xdb");
    // Two calls of each, and the `waitUntil` calls, all of them made once.
    let calls = worker.count(|_| true);
    assert_eq!((calls, worker.count(|call| call.attempt() == 1)), (9, 9));
    assert_eq!(there.unexplained_errors(&["a subscription replicates", "STATEMENT"]), Vec::<String>::new());

    // It takes the place of the other one.
    db.run("DROP SUBSCRIPTION sub");
    app.cluster().crash();
    db.run("SELECT xdb.adopt()");
    let mut user = there.connect(app.database(), "app");
    user.publish("q", "inbox", json!("there"));
    assert_eq!(user.completes("q").result(), &json!(["there"]));
    user.start("new", "counting").key("new").globals(json!({"n": 0})).go();
    user.publish("new", "inbox", json!("too"));
    user.completes("new");
    db.run(&format!("SELECT xdb.register_worker('another', '{}')", worker.url()));
    db.run(&format!("SELECT xdb.register_process_type('another', 'another', '{}')", counting().json()));
    assert_eq!(
        db.one::<i64>("SELECT count(*) FROM xdb.processes p, xdb.check_process(p.process_id, p.execution_id)"),
        0
    );
}

#[test]
fn a_subscriber_with_its_own_processes_consumes_no_message_of_another() {
    let (app, worker) = publisher("publications_own");
    start(&app, &["p", "q"]);
    let (there, mut db) = subscriber(&app, true);
    db.run("ALTER TABLE counters RENAME TO own_counters; CREATE TABLE counters (id text PRIMARY KEY, n int)");
    db.run("GRANT ALL ON own_counters TO app");
    let own = Worker::start(handler);
    let mapped = counting().json().to_string().replace("public.counters", "public.own_counters");
    db.run(&format!(
        "SELECT xdb.register_worker('stub', '{}'); SELECT xdb.register_process_type('counting', 'stub', '{mapped}')",
        own.url()
    ));
    let mut user = there.connect(app.database(), "app");
    user.start("p", "counting").key("p").globals(json!({"n": 0})).go();
    wait_until("it waits", 20, || user.count("xdb.waits") == 1);
    subscribe(&app, &mut db);
    let notice = "NOTICE: xdb: the tables of xdb were removed from the subscription, because this database runs processes of its own";
    assert!(db.notices().iter().any(|heard| heard == notice));
    let mut here = app.db();
    here.publish("p", "inbox", json!("here"));
    here.completes("p");
    caught_up(&app);
    // A refresh takes them in no more than the beginning did.
    db.run("ALTER SUBSCRIPTION sub REFRESH PUBLICATION");
    start(&app, &["r"]);
    caught_up(&app);

    let tables: Vec<String> = db.all("SELECT srrelid::regclass::text FROM pg_subscription_rel ORDER BY 1");
    assert_eq!(tables, ["counters", "users"]);
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'p'"), 2);
    assert_eq!(db.all::<String>("SELECT process_id || ' ' || status FROM xdb.processes"), ["p RUNNING"]);
    user.publish("p", "inbox", json!("there"));
    assert_eq!(user.completes("p").result(), &json!(["there"]));
    assert_eq!(db.text("SELECT concat_ws(': ', state, reason) FROM xdb.status()"), "running");
    assert_eq!((worker.count(|_| true), own.count(|_| true)), (7, 3));
    assert_eq!(there.unexplained_errors(&[]), Vec::<String>::new());
    db.run("DROP SUBSCRIPTION sub");
    app.done(&[]);
}

/// The error of a subscriber without XDB, and its remedy.
#[test]
fn a_subscriber_needs_the_tables() {
    let (app, worker) = publisher("publications_none");
    let (there, mut db) = subscriber(&app, false);
    let error = db
        .try_run(&format!(
            "CREATE SUBSCRIPTION sub CONNECTION '{}' PUBLICATION everything",
            app.cluster().conninfo(app.database())
        ))
        .expect_err("there are no such tables");
    assert_eq!((&*error.code, &*error.message), ("3F000", "schema \"xdb\" does not exist"));
    // The publisher creates XDB while a subscription exists.
    app.superuser().run("DROP EXTENSION xdb");
    subscribe(&app, &mut db);
    let mut superuser = app.superuser();
    superuser.run("CREATE EXTENSION xdb");
    superuser.run(&format!("SELECT xdb.grant_usage('app'); SELECT xdb.register_worker('stub', '{}')", worker.url()));
    app.register("counting", &counting());
    wait_until("nothing arrives", 30, || there.log().contains("logical replication target relation \"xdb."));
    db.run("CREATE EXTENSION xdb");
    start(&app, &["p"]);
    caught_up(&app);
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'p'"), 1);
    assert_eq!(db.count("xdb.processes"), 0);
    db.run("DROP SUBSCRIPTION sub");
    app.done(&[]);
}
