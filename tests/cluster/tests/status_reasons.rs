//! `xdb.status()` gives the reason whenever the engine does not run.

use xdb_cluster_tests::prelude::*;

/// Waits until the engine is in this state for this reason.
fn shows(db: &mut Db, state: &str, reason: &str) {
    let shown = "SELECT concat_ws(': ', state, reason) FROM xdb.status()";
    let expected = if reason.is_empty() { state.to_owned() } else { format!("{state}: {reason}") };
    wait_until(&expected, 30, || db.text(shown) == expected);
}

fn works(app: &App, id: &str) {
    let mut db = app.db();
    db.start(id, "one").go();
    db.completes(id);
}

#[test]
fn status_names_the_settings_that_stop_the_engine() {
    let app = App::alone("reasons_set", ClusterOptions::default());
    let _worker = app.worker(|_: &Call| force_complete(json!("done")));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    shows(&mut superuser, "running", "");
    let cluster = app.cluster();
    let mut elsewhere = cluster.superuser();
    let next_turn =
        "SELECT concat_ws(' ', next_turn_why, next_turn_at <= clock_timestamp() + interval '1 s') FROM xdb.status()";
    wait_until("the engine has nothing to do", 10, || superuser.text(next_turn) == "poll t");

    cluster.set("xdb.enabled", "off");
    shows(&mut superuser, "stopped", "xdb.enabled is off");
    assert_eq!(superuser.text(next_turn), "", "no turn follows");
    cluster.set("xdb.enabled", "on");
    shows(&mut superuser, "running", "");

    cluster.set("xdb.databases", "postgres, others");
    shows(&mut superuser, "stopped", "xdb.databases does not name this database");
    cluster.set("xdb.databases", "\"reasons_set");
    shows(&mut superuser, "stopped", "xdb.databases can't be read: \"reasons_set");
    cluster.set("xdb.databases", "postgres, reasons_set");
    shows(&mut superuser, "running", "");

    elsewhere.run("ALTER DATABASE reasons_set ALLOW_CONNECTIONS false");
    let closed = "this database allows no connections: ALTER DATABASE ... ALLOW_CONNECTIONS true";
    shows(&mut superuser, "stopped", closed);
    elsewhere.run("ALTER DATABASE reasons_set ALLOW_CONNECTIONS true IS_TEMPLATE true");
    shows(&mut superuser, "stopped", "this database is a template: no engine runs in one");
    elsewhere.run("ALTER DATABASE reasons_set IS_TEMPLATE false");
    shows(&mut superuser, "running", "");

    superuser.run("SELECT xdb.pause_engine()");
    shows(&mut superuser, "paused", "xdb.pause_engine() was called: no work starts before xdb.resume_engine()");
    superuser.run("SELECT xdb.resume_engine()");
    shows(&mut superuser, "running", "");

    // The engine is a superuser, and connection limits do not hold for superusers.
    elsewhere.run("ALTER DATABASE reasons_set CONNECTION LIMIT 0");
    let scheduler = app.scheduler();
    superuser.run(&format!("SELECT pg_terminate_backend({scheduler})"));
    wait_until("another one runs", 20, || cluster.find_scheduler("reasons_set").is_some_and(|pid| pid != scheduler));
    shows(&mut superuser, "running", "");
    elsewhere.run("ALTER DATABASE reasons_set CONNECTION LIMIT -1");
    works(&app, "p");
    app.done(&["terminating", "no engine runs"]);
}

#[test]
fn status_shows_a_standby() {
    let app = App::alone("reasons_standby", ClusterOptions::default());
    let standby = app.cluster().standby();
    let mut there = standby.connect("reasons_standby", "postgres");
    shows(&mut there, "stopped", "this server is a standby: the engine starts when it is promoted");
    app.cluster().crash();
    there.run("SELECT pg_promote()");
    shows(&mut there, "running", "");
}

#[test]
fn a_shortage_of_worker_processes_is_named_in_each_database() {
    // The launcher takes one, the server's own launcher of logical replication another, and the first engine the last.
    let app = App::alone("reasons_shortage", ClusterOptions::default().set("max_worker_processes", "3"));
    app.scheduler();
    let mut superuser = app.cluster().superuser();
    let mut others: Vec<Db> = ["reasons_second", "reasons_third"]
        .into_iter()
        .map(|name| {
            superuser.run(&format!("CREATE DATABASE {name} TEMPLATE template0"));
            let mut db = app.cluster().connect(name, "postgres");
            db.run("CREATE EXTENSION xdb");
            db
        })
        .collect();
    for db in &mut others {
        shows(db, "backing off", "all 3 worker processes of max_worker_processes are in use");
    }
    app.superuser().run("DROP EXTENSION xdb");
    let running = |db: &mut Db| db.one::<bool>("SELECT state = 'running' AND reason IS NULL FROM xdb.status()");
    wait_until("one of them runs", 30, || others.iter_mut().filter_map(|db| running(db).then_some(())).count() == 1);
}

#[test]
fn an_engine_that_cannot_begin_reports_the_reason() {
    let app = App::new("reasons_begin");
    let _worker = app.worker(|_: &Call| force_complete(json!("done")));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    let scheduler = app.scheduler();
    superuser.run(&format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no epoch today'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON xdb.engine FOR EACH ROW EXECUTE FUNCTION refuse();
         SELECT pg_terminate_backend({scheduler})"
    ));
    wait_until("it shows why it does not run", 20, || {
        let shown = superuser.text("SELECT concat_ws(': ', state, reason) FROM xdb.status()");
        shown.starts_with("backing off: ") && shown.contains("no epoch today")
    });
    superuser.run("DROP TRIGGER refuse ON xdb.engine; DROP FUNCTION refuse()");
    shows(&mut superuser, "running", "");

    // A session is changing the extension.
    let mut other = app.superuser();
    other.run("BEGIN; LOCK TABLE xdb.engine IN ACCESS EXCLUSIVE MODE");
    let scheduler = app.scheduler();
    app.cluster().superuser().run(&format!("SELECT pg_terminate_backend({scheduler})"));
    let waits = "an engine process is being started; it waits while another session has locked the extension";
    shows(&mut superuser, "starting", waits);
    other.run("COMMIT");
    shows(&mut superuser, "running", "");
    works(&app, "p");
    app.done(&["no epoch today", "terminating"]);
}
