//! `xdb doctor`, on servers that are set up well and on others.

mod common;

use common::{Printed, Serving, is_golden, program, run, set_version, xdb};
use std::net::TcpListener;
use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::prelude::*;

/// What the doctor prints, without what differs from run to run.
fn normal(cluster: &Cluster, text: &str) -> String {
    let text = text.replace(&cluster.data_directory().display().to_string(), "<data>");
    let mut shown = String::new();
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while let Some((before, after)) =
            ["processes: ", "line ", "127.0.0.1:", "schema ", "library ", "oid ", "system ", "Postgres ", "version "]
                .iter()
                .filter_map(|mark| rest.find(mark).map(|at| rest.split_at(at + mark.len())))
                .min_by_key(|(before, _)| before.len())
        {
            let end = after.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(after.len());
            shown.push_str(before);
            shown.push_str(if end > 0 { "N" } else { "" });
            rest = &after[end..];
        }
        shown.push_str(rest);
    }
    shown
}

fn doctor(app: &App, role: &str) -> Printed {
    xdb(app, role, &["doctor"])
}

/// The doctor's lines, with what it should find.
fn finds(app: &App, role: &str, code: i32, golden: &str) {
    let mut printed = doctor(app, role);
    wait_until(&format!("{golden}: exit code {code}"), 30, || {
        printed = doctor(app, role);
        printed.code == code
    });
    is_golden(golden, &normal(app.cluster(), &printed.out));
    assert_eq!(printed.err, "");
}

/// Waits for a state of the engine.
fn engine_is(app: &App, state: &str) {
    let mut db = app.superuser();
    wait_until(&format!("the engine is {state}"), 30, || db.text("SELECT state FROM xdb.status()") == state);
}

/// A port of this machine at which no program listens.
fn unused_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

#[test]
fn a_server_without_problems_and_one_with_many() {
    let app = App::alone("doctor", ClusterOptions::default());
    let _worker = app.worker(|_: &Call| force_complete(json!("done")));
    let mut superuser = app.superuser();
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    engine_is(&app, "running");
    finds(&app, "postgres", 0, "doctor-well.txt");
    finds(&app, "app", 0, "doctor-app.txt");

    // In JSON.
    let printed = xdb(&app, "postgres", &["doctor", "--json"]);
    assert_eq!((printed.code, &*printed.err), (0, ""));
    let document: Value = serde_json::from_str(&printed.out).expect("it is JSON");
    assert_eq!(document["status"], "ok", "{document:#}");
    let checks: Vec<_> = document["checks"].as_array().expect("a list").iter().map(|check| &check["check"]).collect();
    assert_eq!(checks, ["preload", "versions", "engine", "worker processes", "worker", "worker", "roles"]);

    // A worker that does not run, a role that can't start processes, a paused engine.
    let url = format!("http://127.0.0.1:{}", unused_port());
    superuser.run(&format!("SELECT xdb.register_worker('absent', {})", literal(&url)));
    superuser.run("CREATE ROLE \"half 'way\" LOGIN; GRANT USAGE ON SCHEMA xdb TO \"half 'way\"");
    app.pause();
    finds(&app, "postgres", 1, "doctor-problems.txt");
    let printed = xdb(&app, "postgres", &["doctor", "--json"]);
    assert_eq!((printed.code, &*printed.err), (1, ""));
    let document: Value = serde_json::from_str(&printed.out).expect("it is JSON");
    assert_eq!(document["status"], "problem", "{document:#}");
    let problems = || document["checks"].as_array().into_iter().flatten().filter(|check| check["status"] == "problem");
    assert_eq!(problems().map(|check| &check["check"]).collect::<Vec<_>>(), ["engine", "worker", "roles"]);
    assert!(problems().all(|check| check["fix"].is_string()), "{document:#}");
    app.resume();
    superuser.run("SELECT xdb.unregister_worker('absent'); DROP OWNED BY \"half 'way\"; DROP ROLE \"half 'way\"");
    app.cluster().set("xdb.allowed_worker_hosts", "worker.example");
    finds(&app, "postgres", 1, "doctor-hosts.txt");
    app.cluster().set("xdb.allowed_worker_hosts", "localhost, 127.0.0.1");

    // Roles without rights.
    finds(&app, "stranger", 1, "doctor-stranger.txt");

    // A copy of the database. No session may be in the original.
    engine_is(&app, "running");
    drop(superuser);
    app.cluster().superuser().run("CREATE DATABASE doctor_copy TEMPLATE doctor");
    let mut copy = app.cluster().connect("doctor_copy", "postgres");
    wait_until("the copy waits", 30, || copy.text("SELECT state FROM xdb.status()") == "waiting for adopt");
    let mut command = program(app.cluster(), "doctor_copy", "postgres");
    command.arg("doctor");
    let printed = run(command);
    assert_eq!(printed.code, 1);
    is_golden("doctor-copy.txt", &normal(app.cluster(), &printed.out));

    // A database without the extension, and no server.
    let mut command = program(app.cluster(), "postgres", "postgres");
    command.arg("doctor");
    let printed = run(command);
    assert_eq!(printed.code, 1);
    is_golden("doctor-no-extension.txt", &normal(app.cluster(), &printed.out));
    let printed = xdb(&app, "postgres", &["doctor", "--host", "/nowhere"]);
    assert_eq!((printed.code, &*printed.out), (2, ""));
    assert_eq!(xdb(&app, "postgres", &["doctor", "--fix"]).code, 2, "an unknown option");
}

/// What `xdb metrics` answers on a server.
fn scrape(cluster: &Cluster, database: &str) -> String {
    let mut command = program(cluster, database, "postgres");
    command.args(["metrics", "--listen", "127.0.0.1:0"]);
    Serving::start(command).get("/metrics").body
}

#[test]
fn a_standby_is_no_problem_and_processes_are_shown_on_the_primary() {
    let app = App::alone("doctor_standby", ClusterOptions::default());
    engine_is(&app, "running");
    let standby = app.cluster().standby();
    let mut command = program(&standby, app.database(), "postgres");
    command.arg("doctor");
    let printed = run(command);
    assert_eq!((printed.code, &*printed.err), (0, ""), "{}", printed.out);
    is_golden("doctor-standby.txt", &normal(&standby, &printed.out));
    let mut command = program(&standby, app.database(), "app");
    command.args(["show", "mine"]);
    let printed = run(command);
    assert_eq!(printed.code, 2);
    assert_eq!(
        printed.err,
        "xdb: this server is a standby\nHINT: Connect to the primary. On a standby, the list of the console works.\n"
    );
    let metrics = scrape(&standby, app.database());
    assert!(metrics.contains("\nxdb_engine_info{") && metrics.contains("\nxdb_scrape_error 0\n"), "{metrics}");
}

#[test]
fn a_schema_of_another_version_is_named_by_each_command() {
    let app = App::alone("doctor_version", ClusterOptions::default());
    engine_is(&app, "running");
    let now = app.superuser().text("SELECT xdb.library_version()");
    for (schema, golden, remedy) in [
        ("0.0.9", "doctor-old-schema.txt", "Run ALTER EXTENSION xdb UPDATE in this database."),
        ("99.1.0", "doctor-new-schema.txt", "Install version 99.1.0 of xdb and restart the server."),
    ] {
        set_version(&app, schema);
        let reason = format!("the server runs version {now} of xdb, which can't run version {schema} of its schema");
        // The one that knew another version ends first. While the scheduler is started again, that is a reason too.
        let knows = format!("no process runs in this database: {reason}");
        wait_until("the scheduler knows this version", 30, || app.cluster().log().contains(&knows));
        let mut db = app.superuser();
        let status = "SELECT concat_ws(': ', state, reason) FROM xdb.status()";
        wait_until("the engine waits", 30, || db.text(status) == format!("waiting for update: {reason}. {remedy}"));
        finds(&app, "postgres", 1, golden);
        let printed = xdb(&app, "app", &["show", "mine"]);
        assert_eq!(printed.code, 2);
        assert_eq!(printed.err, format!("xdb: {reason}\nHINT: {remedy}\n"));
        let metrics = scrape(app.cluster(), app.database());
        assert!(metrics.contains("\nxdb_scrape_error 1\n"), "{metrics}");
    }
}

#[test]
fn the_line_that_keeps_the_library_out_is_named() {
    let app = App::alone("doctor_preload", ClusterOptions::default());
    let cluster = app.cluster();
    engine_is(&app, "running");
    cluster.superuser().run("ALTER SYSTEM SET shared_preload_libraries = 'auto_explain'");
    finds(&app, "postgres", 1, "doctor-line-wins-soon.txt");
    cluster.stop();
    cluster.launch();
    finds(&app, "postgres", 1, "doctor-line-wins.txt");
    cluster.superuser().run("ALTER SYSTEM RESET shared_preload_libraries");
    finds(&app, "postgres", 1, "doctor-restart.txt");
    cluster.stop();
    cluster.launch();
    engine_is(&app, "running");
    finds(&app, "postgres", 0, "doctor-mended.txt");
}

#[test]
fn a_server_without_the_library_gets_the_line_for_its_configuration() {
    let cluster = Cluster::start(ClusterOptions::default().not_preloaded());
    cluster.superuser().run("CREATE DATABASE shop");
    let mut command = program(&cluster, "shop", "postgres");
    command.arg("doctor");
    let printed = run(command);
    assert_eq!(printed.code, 1, "{}", printed.err);
    is_golden("doctor-not-preloaded.txt", &normal(&cluster, &printed.out));
}

#[test]
fn a_server_without_free_worker_processes_is_found() {
    // The launcher takes one, the server's own launcher of logical replication another, and the first engine the last.
    let app = App::alone("doctor_slots", ClusterOptions::default().set("max_worker_processes", "3"));
    app.scheduler();
    app.cluster().superuser().run("CREATE DATABASE doctor_second TEMPLATE template0");
    let mut second = app.cluster().connect("doctor_second", "postgres");
    second.run("CREATE EXTENSION xdb");
    wait_until("the second engine has no process", 30, || {
        second.text("SELECT state FROM xdb.status()") == "backing off"
    });
    let mut command = program(app.cluster(), "doctor_second", "postgres");
    command.arg("doctor");
    let printed = run(command);
    assert_eq!(printed.code, 1, "{}", printed.err);
    is_golden("doctor-slots.txt", &normal(app.cluster(), &printed.out));
}
