//! Events in the life of servers and databases besides work: no free process, many databases at once, altered tables,
//! and roles that are dropped.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

fn write(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (_, "Only") => force_complete(json!("only")).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        (_, "Read") => next("Write", json!(null)).into(),
        _ => graceful_complete(json!("done")).globals(json!({"n": 7})).into(),
    }
}

fn writing() -> Definition {
    mailbox().step("Write").maps("public.counters", "id", &["n"])
}

#[test]
fn the_engine_reports_a_lack_of_worker_processes_and_retries() {
    // The launcher takes one, and the server's own launcher of logical replication.
    let app = App::alone("lives_first", ClusterOptions::default().set("max_worker_processes", "3"));
    app.scheduler();
    let mut superuser = app.cluster().superuser();
    superuser.run("CREATE DATABASE lives_second TEMPLATE template0");
    let mut second = app.cluster().connect("lives_second", "postgres");
    second.run("CREATE EXTENSION xdb");
    wait_until("the second engine says why it does not run", 30, || {
        second
            .one::<String>("SELECT concat_ws(': ', state, last_error) FROM xdb.status()")
            .contains("max_worker_processes")
    });
    assert_eq!(second.one::<Option<i32>>("SELECT engine_pid FROM xdb.status()"), None);
    let worker = app.worker(write);
    app.register("writing", &writing());
    second.run(&format!("SELECT xdb.register_worker('stub', '{}'); SELECT xdb.grant_usage('app')", worker.url()));
    second.run(&format!("SELECT xdb.register_process_type('one', 'stub', {})", jsonb(one_step().json())));
    // The first one is not disturbed by that.
    let mut db = app.db();
    db.start("p", "writing").key("p").globals(json!({"n": 0})).go();
    db.publish("p", "inbox", json!(1));
    db.completes("p");
    app.superuser().run("DROP EXTENSION xdb");
    let shown = |db: &mut Db| db.one::<String>("SELECT s::text FROM xdb.status() s");
    wait_until("the second engine runs", 30, || shown(&mut second).contains(",running,"));
    let mut user = app.cluster().connect("lives_second", "app");
    user.start("p", "one").go();
    user.completes("p");
    app.done(&["max_worker_processes", "background worker"]);
}

#[test]
fn an_engine_that_cannot_begin_reports_the_reason_and_retries() {
    let app = App::new("lives_begin");
    let _worker = app.worker(write);
    app.register("one", &one_step());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    let scheduler = app.scheduler();
    superuser.run(&format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no epoch today'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON xdb.engine FOR EACH ROW EXECUTE FUNCTION refuse();
         SELECT pg_terminate_backend({scheduler})"
    ));
    wait_until("it says why it does not run", 20, || {
        let shown = superuser.text("SELECT concat_ws(': ', state, last_error) FROM xdb.status()");
        shown.starts_with("backing off: ") && shown.contains("no epoch today")
    });
    superuser.run("DROP TRIGGER refuse ON xdb.engine; DROP FUNCTION refuse()");
    db.start("p", "one").go();
    db.completes("p");
    app.done(&["no epoch today"]);
}

#[test]
fn thirty_databases_at_once() {
    let app = App::alone("lives_of_many", ClusterOptions::default().set("max_worker_processes", "60"));
    let worker = app.worker(write);
    app.register("writing", &writing());
    let names: Vec<String> = (0..30).map(|number| format!("lives_{number}")).collect();
    let mut superuser = app.cluster().superuser();
    for name in &names {
        superuser.run(&format!("CREATE DATABASE {name} TEMPLATE template0"));
        app.cluster().connect(name, "postgres").run(&format!(
            "CREATE EXTENSION xdb; SELECT xdb.grant_usage('app');
             CREATE TABLE public.counters (id text PRIMARY KEY, n int); GRANT ALL ON public.counters TO app;
             SELECT xdb.register_worker('stub', '{}');
             SELECT xdb.register_process_type('writing', 'stub', {})",
            worker.url(),
            jsonb(writing().json()),
        ));
    }
    let mut sessions: Vec<Db> = names.iter().map(|name| app.cluster().connect(name, "app")).collect();
    for db in &mut sessions {
        for id in ["a", "b", "c"] {
            db.start(id, "writing").key(id).globals(json!({"n": 0})).go();
            db.publish(id, "inbox", json!(1));
        }
    }
    for db in &mut sessions {
        for id in ["a", "b", "c"] {
            assert_eq!(db.completes(id).result(), "done");
        }
        assert_eq!(db.count("counters WHERE n = 7"), 3);
    }
    drop(sessions);
    for name in &names {
        superuser.drop_database(name, "WITH (FORCE)");
    }
    app.done(&[]);
}

#[test]
fn a_superuser_who_empties_a_system_table_harms_only_its_rows() {
    let app = App::new("lives_truncated");
    let worker = app.worker(write);
    app.register("writing", &writing());
    let mut db = app.db();
    let mut superuser = app.superuser();
    let tables: Vec<String> = superuser.all(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'xdb'::regnamespace AND relkind = 'r'
             AND relname NOT IN ('engine', 'registry', 'instances', 'worker', 'process_type', 'mapped_table')
         ORDER BY 1",
    );
    assert!(tables.len() > 10, "{tables:?}");
    for (number, table) in tables.iter().enumerate() {
        let (before, after) = (format!("before{number}"), format!("after{number}"));
        db.start(&before, "writing")
            .key(&before)
            .globals(json!({"n": 0}))
            .timeout("1 day")
            .locals(json!({"k": 1}))
            .go();
        wait_until("it waits", 20, || !views::waits(&mut db, &before).is_empty());
        superuser.run(&format!("TRUNCATE xdb.{table}"));
        // Whatever becomes of it, nothing of it is internal trouble for the caller.
        let _ = db.try_run(&format!("SELECT xdb.publish('{before}', 'inbox', '1', message_id => 'm')"));
        let _ = db.try_run(&format!("SELECT xdb.stop_process('{before}')"));
        db.start(&after, "writing").key(&after).globals(json!({"n": 0})).go();
        db.publish(&after, "inbox", json!(1));
        assert_eq!(db.completes(&after).result(), "done", "after TRUNCATE {table}");
        assert_eq!(
            superuser.all::<String>(&format!("SELECT problem FROM xdb.check_process('{after}')")),
            Vec::<String>::new()
        );
    }
    superuser.run("DELETE FROM xdb.process_execution");
    let _ = worker;
    app.done(&[]);
}

#[test]
fn a_mapped_table_is_altered_and_dropped_while_processes_run() {
    let app = App::new("lives_altered");
    let _worker = app.worker(write);
    app.register("writing", &writing());
    let mut db = app.db();
    let ids: Vec<String> = (0..6).map(|number| format!("p{number}")).collect();
    for id in &ids {
        db.start(id, "writing").key(id).globals(json!({"n": 0})).go();
    }
    wait_until("all wait", 20, || db.count("xdb.state_executions WHERE status = 'WAITING'") == 6);
    // Another type that the values still fit, another name, another column: it goes on.
    db.run("ALTER TABLE counters ALTER COLUMN n TYPE numeric(10, 2)");
    db.publish("p0", "inbox", json!(1));
    db.completes("p0");
    assert_eq!(db.one::<String>("SELECT n::text FROM counters WHERE id = 'p0'"), "7.00");
    db.run("ALTER TABLE counters RENAME TO abacus; ALTER TABLE abacus ADD COLUMN more text NOT NULL DEFAULT 'x'");
    db.publish("p1", "inbox", json!(1));
    db.completes("p1");
    // A constraint that the write violates: the worker gets the error, and the process completes once the constraint is
    // dropped.
    db.run("ALTER TABLE abacus ADD CONSTRAINT small CHECK (n < 5) NOT VALID");
    db.publish("p2", "inbox", json!(1));
    wait_until("the refusal is shown", 10, || views::fails_saying(&mut db, "p2", &["small"]));
    db.run("ALTER TABLE abacus DROP CONSTRAINT small");
    db.completes("p2");
    // A missing column is an error of the table, until the column exists again.
    db.run("ALTER TABLE abacus RENAME COLUMN n TO m");
    db.publish("p3", "inbox", json!(1));
    wait_until("the missing column is shown", 10, || views::fails_saying(&mut db, "p3", &["42703"]));
    db.run("ALTER TABLE abacus RENAME COLUMN m TO n");
    db.completes("p3");
    // A dropped table is not replaced by another table of the same name.
    db.run("DROP TABLE abacus");
    db.publish("p4", "inbox", json!(1));
    wait_until("the missing table is shown", 10, || views::fails_saying(&mut db, "p4", &["42P01"]));
    db.run("SELECT xdb.stop_process('p4'), xdb.stop_process('p5')");
    app.done(&[]);
}

#[test]
fn everything_of_an_owner_is_dropped_while_its_processes_run() {
    let app = App::new("lives_owner");
    let worker = app.worker(write);
    app.register("writing", &writing());
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE leaver LOGIN; SELECT xdb.grant_usage('leaver'); GRANT ALL ON counters TO leaver");
    let mut db = app.session("leaver");
    for id in ["a", "b"] {
        db.start(id, "writing").key(id).globals(json!({"n": 0})).go();
    }
    wait_until("both wait", 20, || db.count("xdb.state_executions WHERE status = 'WAITING'") == 2);
    // Without its privileges, its steps are refused by the table.
    superuser.run("DROP OWNED BY leaver");
    superuser.run("SELECT xdb.publish('a', 'inbox')");
    wait_until("the refusal is shown", 10, || views::fails_saying(&mut superuser, "a", &["42501"]));
    superuser.run("GRANT ALL ON counters TO leaver");
    assert_eq!(superuser.completes("a").result(), "done");
    superuser.run("DROP OWNED BY leaver");
    drop(db);
    wait_until("it can be dropped", 10, || superuser.try_run("DROP ROLE leaver").is_ok());
    superuser.run("SELECT xdb.publish('b', 'inbox')");
    let outcome = superuser.outcome("b");
    assert_eq!(outcome.status(), "FAILED");
    let reason: String = superuser.one("SELECT reason FROM xdb.processes WHERE process_id = 'b'");
    assert!(reason.contains("no longer exists"), "{reason}");
    assert_eq!(worker.count(|call| call.process_id() == "b" && call.target() == "Write"), 0);
    app.done(&[]);
}

#[test]
fn the_objects_of_an_owner_are_reassigned_while_its_processes_run() {
    let app = App::new("lives_reassigned");
    let _worker = app.worker(write);
    let mut superuser = app.superuser();
    superuser.run(
        "CREATE ROLE parting LOGIN; SELECT xdb.grant_usage('parting');
         CREATE TABLE partings (id text PRIMARY KEY, n int); ALTER TABLE partings OWNER TO parting",
    );
    app.register("parting", &mailbox().step("Write").maps("public.partings", "id", &["n"]));
    let mut db = app.session("parting");
    for id in ["a", "b"] {
        db.start(id, "parting").key(id).globals(json!({"n": 0})).go();
    }
    wait_until("both wait", 20, || db.count("xdb.state_executions WHERE status = 'WAITING'") == 2);
    // Postgres gives the role's table to another role, but not its processes. The table refuses their steps, and the
    // failure says so.
    superuser.run("REASSIGN OWNED BY parting TO other");
    assert_eq!(superuser.count("xdb.processes WHERE owner = 'parting' AND status = 'RUNNING'"), 2);
    db.publish("a", "inbox", json!(1));
    wait_until("the refusal is shown", 10, || views::fails_saying(&mut db, "a", &["42501"]));
    superuser.run("GRANT ALL ON partings TO parting");
    assert_eq!(db.completes("a").result(), "done");
    // The extension's own function moves the processes. Then nothing prevents dropping the role.
    superuser.run("SELECT xdb.reassign_owned('parting', 'other'); DROP OWNED BY parting");
    drop(db);
    wait_until("it can be dropped", 10, || superuser.try_run("DROP ROLE parting").is_ok());
    let mut other = app.session("other");
    other.publish("b", "inbox", json!(1));
    assert_eq!(other.completes("b").result(), "done");
    assert_eq!(other.all::<i32>("SELECT n FROM partings ORDER BY id"), [7, 7]);
    app.done(&[]);
}
