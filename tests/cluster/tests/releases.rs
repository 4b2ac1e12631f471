//! Servers whose library is replaced, by a later release or an earlier one, while databases have processes half-way.
//!
//! These tests install into a throwaway copy of Postgres, one test at a time: `scripts/upgrade` makes it and runs them.
#![cfg(feature = "releases")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use xdb_cluster_tests::catalog::schema;
use xdb_cluster_tests::half_way::HalfWay;
use xdb_cluster_tests::prelude::*;

/// The throwaway copy of Postgres, and what can be installed there.
struct Installation {
    _alone: MutexGuard<'static, ()>,
    postgres: PathBuf,
    stages: PathBuf,
}

impl Installation {
    fn new() -> Installation {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let path =
            |name| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is set by scripts/upgrade")));
        Installation { _alone: alone, postgres: path("XDB_POSTGRES"), stages: path("XDB_STAGES") }
    }

    /// Released versions, from the oldest.
    fn releases(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.stages).expect("a directory of the script's");
        let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("a version"));
        let mut releases: Vec<_> = names.filter(|name| name != "now").collect();
        assert!(!releases.is_empty());
        releases.sort_by_key(|release| {
            release.split('.').map(|part| part.parse().expect("a number")).collect::<Vec<u32>>()
        });
        releases
    }

    /// Puts a build in the place of the one before, as an installation of a package does.
    fn install(&self, stage: &str) {
        let from = fs::canonicalize(self.stages.join(stage)).expect("a build");
        let mut files = Vec::new();
        list(&from, &mut files);
        assert!(files.len() >= 3, "{files:?}");
        for old in self.scripts() {
            fs::remove_file(old).expect("a file of the copy");
        }
        for file in files {
            let target = self.postgres.join(file.strip_prefix(&from).expect("within"));
            let new = target.with_extension("new");
            // A running server has the old library mapped: its file is replaced, not written to.
            fs::copy(&file, &new).and_then(|_| fs::rename(&new, &target)).expect("the copy is ours");
        }
    }

    fn scripts(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        list(&self.postgres, &mut files);
        files.retain(|file| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("xdb--") && name.ends_with(".sql")
        });
        files
    }

    /// Adds a script of an update, next to the others.
    fn add_script(&self, name: &str, text: &str) {
        let directory = self.scripts()[0].parent().expect("it is in a directory").to_owned();
        fs::write(directory.join(name), text).expect("the copy is ours");
    }
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.expect("readable").path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

/// The server gets the library that is installed now.
fn restart(app: &App) {
    app.cluster().stop();
    app.cluster().launch();
}

fn status(app: &App) -> (String, Option<String>) {
    let mut db = app.superuser();
    (db.one("SELECT state FROM xdb.status()"), db.one("SELECT reason FROM xdb.status()"))
}

fn version(app: &App) -> String {
    app.superuser().one("SELECT extversion FROM pg_extension WHERE extname = 'xdb'")
}

/// What a sudden end of a server leaves in the log of the next one.
const AFTER_RESTART: &[&str] = &["terminating connection", "the database system is"];

#[test]
fn processes_of_each_release_are_finished_by_the_library_of_now() {
    let installation = Installation::new();
    for (number, release) in installation.releases().into_iter().enumerate() {
        installation.install(&release);
        let app = App::alone(&format!("released_{number}"), ClusterOptions::default());
        assert_eq!(version(&app), release);
        let half_way = HalfWay::start(&app);
        installation.install("now");
        // The old library goes on as long as the server runs, whatever is on disk.
        half_way.start_more(&mut app.db(), "old");
        // Half of the servers are not even stopped properly.
        if number % 2 == 0 {
            app.cluster().crash();
        } else {
            app.cluster().stop();
        }
        app.cluster().launch();
        // The new one goes on with the old schema, or says what it waits for.
        let (state, reason) = {
            wait_until("the engine is there", 20, || status(&app).0 != "stopped" && status(&app).0 != "starting");
            status(&app)
        };
        let goes_on = state == "running";
        if goes_on {
            half_way.start_more(&mut app.db(), "between");
        } else {
            assert_eq!(state, "waiting for update");
            assert!(reason.is_some_and(|reason| reason.contains("ALTER EXTENSION xdb UPDATE")));
        }
        app.superuser().run("ALTER EXTENSION xdb UPDATE");
        assert_ne!(version(&app), release);
        half_way.start_more(&mut app.db(), "new");
        let suffixes: &[&str] = if goes_on { &["", "old", "between", "new"] } else { &["", "old", "new"] };
        half_way.finish(&mut app.db(), suffixes);
        app.done(AFTER_RESTART);
    }
}

#[test]
fn an_update_before_the_restart_is_refused_and_harms_nothing() {
    let installation = Installation::new();
    for (number, release) in installation.releases().into_iter().enumerate() {
        installation.install(&release);
        let app = App::alone(&format!("too_early_{number}"), ClusterOptions::default());
        let half_way = HalfWay::start(&app);
        installation.install("now");
        let error = app.superuser().try_run("ALTER EXTENSION xdb UPDATE").expect_err("the old library is loaded");
        assert!(error.message.contains("older version of xdb"), "{error:?}");
        assert_eq!(version(&app), release);
        let error = app.cluster().superuser().try_run("CREATE EXTENSION xdb").expect_err("it is as old everywhere");
        assert!(error.message.contains("older version of xdb"), "{error:?}");
        half_way.finish(&mut app.db(), &[""]);
        restart(&app);
        app.superuser().run("ALTER EXTENSION xdb UPDATE");
        app.db().start("last", "timed").go();
        app.done(AFTER_RESTART);
    }
}

#[test]
fn a_schema_that_the_library_does_not_know_is_left_alone() {
    let installation = Installation::new();
    installation.install("now");
    let app = App::alone("unknown_schema", ClusterOptions::default());
    let now = version(&app);
    installation.add_script(&format!("xdb--{now}--99.1.0.sql"), "ALTER TABLE xdb.task RENAME TO task_99;");
    installation.add_script(&format!("xdb--99.1.0--{now}.sql"), "ALTER TABLE xdb.task_99 RENAME TO task;");
    let half_way = HalfWay::start(&app);
    let mut before = app.db();
    app.superuser().run("ALTER EXTENSION xdb UPDATE TO '99.1.0'");
    wait_until("the engine waits", 20, || status(&app).0 == "waiting for update");
    let reason = status(&app).1.expect("there is one");
    assert!(reason.contains("99.1.0") && reason.contains(&now) && reason.contains("restart"), "{reason}");
    // Sessions that have been there hear of it as well as new ones.
    for db in [&mut before, &mut app.db()] {
        for statement in [
            "SELECT xdb.start_process('x', 'timed')",
            "SELECT xdb.publish('counting0', 'inbox')",
            "SELECT xdb.describe_process('counting0')",
            "SELECT xdb.wait_for_process('counting0')",
        ] {
            let error = db.refused(codes::OTHER_SCHEMA, statement);
            assert!(error.message.contains("99.1.0"), "{error:?}");
        }
    }
    let calls = half_way.worker.calls().len();
    restart(&app);
    wait_until("the engine waits again", 20, || status(&app).0 == "waiting for update");
    app.superuser().run(&format!("ALTER EXTENSION xdb UPDATE TO '{now}'"));
    half_way.worker.wait_for_count("calls are made again", 20, calls + 1, |_| true);
    half_way.finish(&mut app.db(), &[""]);
    app.done(AFTER_RESTART);
}

/// An update without anything of its own: how each begins, and what each repeats.
fn empty_update(installation: &Installation, now: &str) -> String {
    let suffix = format!("--{now}.sql");
    let update = installation.scripts().into_iter().find(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.matches("--").count() == 2 && name.ends_with(&suffix)
    });
    let script = fs::read_to_string(update.expect("there is an update to it")).expect("readable");
    let (begin, rest) = script.split_once("-- sql/updates/0").expect("the update's own part");
    let (_, always) = rest.split_once("-- sql/always/").expect("what is repeated");
    format!("{begin}\n-- {always}")
}

#[test]
fn what_every_update_repeats_changes_nothing_when_it_is_repeated() {
    let installation = Installation::new();
    installation.install("now");
    let app = App::alone("repeated", ClusterOptions::default());
    let now = version(&app);
    let script = empty_update(&installation, &now);
    let half_way = HalfWay::start(&app);
    let mut db = app.superuser();
    db.run("GRANT SELECT ON xdb.timers TO app WITH GRANT OPTION; GRANT EXECUTE ON FUNCTION xdb.purge(interval) TO app");
    let before = schema(&mut db);
    // There and back, twice. A version that is later than that of the library would be refused.
    for version in ["0.0.98", "0.0.99"] {
        installation.add_script(&format!("xdb--{now}--{version}.sql"), &script);
        installation.add_script(&format!("xdb--{version}--{now}.sql"), &script);
        db.run(&format!("ALTER EXTENSION xdb UPDATE TO '{version}'; ALTER EXTENSION xdb UPDATE TO '{now}'"));
        let after = schema(&mut db);
        let (lost, more): (Vec<_>, Vec<_>) = (before.difference(&after).collect(), after.difference(&before).collect());
        assert!(lost.is_empty() && more.is_empty(), "lost: {lost:#?}, more: {more:#?}");
    }
    half_way.finish(&mut app.db(), &[""]);
    app.done(AFTER_RESTART);
}

#[test]
fn a_library_that_is_older_than_the_schema_waits() {
    let installation = Installation::new();
    for (number, release) in installation.releases().into_iter().enumerate() {
        installation.install("now");
        let app = App::alone(&format!("went_back_{number}"), ClusterOptions::default());
        let half_way = HalfWay::start(&app);
        installation.install(&release);
        restart(&app);
        wait_until("the engine waits", 20, || status(&app).0 == "waiting for update");
        let reason = status(&app).1.expect("there is one");
        assert!(reason.contains(&version(&app)) && reason.contains(&release), "{reason}");
        app.db().refused(codes::OTHER_SCHEMA, "SELECT xdb.publish('counting0', 'inbox')");
        installation.install("now");
        restart(&app);
        half_way.finish(&mut app.db(), &[""]);
        app.done(AFTER_RESTART);
    }
}
