//! Servers whose library is replaced by a later or an earlier release, while databases have processes half-way. Also
//! the changes that an update makes to the schema.
//!
//! These tests install into a throwaway copy of Postgres, one test at a time: `scripts/upgrade` makes the copy and runs
//! them.
#![cfg(feature = "releases")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use xdb_cluster_tests::catalog::schema;
use xdb_cluster_tests::half_way::HalfWay;
use xdb_cluster_tests::prelude::*;

/// The throwaway copy of Postgres, and the versions that can be installed there.
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

    /// Installs a build over the one before, as the installation of a package does.
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

    /// A database of this release with processes half-way. The server's library is the current one.
    fn half_way(&self, name: &str, release: &str) -> (App, HalfWay) {
        self.install(release);
        let app = App::alone(name, ClusterOptions::default());
        assert_eq!(version(&app), release);
        let half_way = HalfWay::start(&app);
        self.install("now");
        restart(&app);
        (app, half_way)
    }
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.expect("readable").path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

/// Restarts the server, so that it loads the library that is installed now.
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

/// Lines that a sudden end of a server leaves in the next server's log.
const AFTER_RESTART: &[&str] = &["terminating connection", "the database system is"];

#[test]
fn processes_of_each_release_are_finished_by_the_library_of_now() {
    let installation = Installation::new();
    for (number, release) in installation.releases().into_iter().enumerate() {
        installation.install(&release);
        let app = App::alone(&format!("released_{number}"), ClusterOptions::default());
        let half_way = HalfWay::start(&app);
        installation.install("now");
        // The old library stays loaded while the server runs, whatever is on disk. It refuses statements that come too
        // early.
        for (mut db, statement) in
            [(app.superuser(), "ALTER EXTENSION xdb UPDATE"), (app.cluster().superuser(), "CREATE EXTENSION xdb")]
        {
            let error = db.try_run(statement).expect_err("the old library is loaded");
            assert!(error.message.contains("older version of xdb"), "{error:?}");
        }
        assert_eq!(version(&app), release);
        half_way.start_more(&mut app.db(), "old");
        // The first server, and then every other one, is not even stopped properly.
        if number % 2 == 0 {
            app.cluster().crash();
            app.cluster().launch();
        } else {
            restart(&app);
        }
        waits_saying(&app, "ALTER EXTENSION xdb UPDATE");
        let calls = half_way.worker.calls().len();
        app.superuser().run("BEGIN; ALTER EXTENSION xdb UPDATE; ROLLBACK");
        assert_eq!((version(&app), status(&app).0.as_str()), (release.clone(), "waiting for update"));
        app.superuser().run("ALTER EXTENSION xdb UPDATE");
        half_way.worker.wait_for_count("calls are made again", 20, calls + 1, |_| true);
        half_way.start_more(&mut app.db(), "new");
        // An older library changes nothing in the schema.
        installation.install(&release);
        restart(&app);
        waits_saying(&app, "restart the server");
        installation.install("now");
        restart(&app);
        half_way.finish(&mut app.db(), &["", "old", "new"]);
        app.done(AFTER_RESTART);
    }
}

/// Checks that the engine waits, that it shows what to do, and that functions refuse to work.
fn waits_saying(app: &App, what: &str) {
    wait_until("the engine waits", 20, || status(app).0 == "waiting for update");
    let reason = status(app).1.expect("there is one");
    assert!(reason.contains(what) && reason.contains(&version(app)), "{reason}");
    let error = app.db().refused(codes::OTHER_SCHEMA, "SELECT xdb.publish('counting0', 'inbox')");
    assert!(error.hint.contains(what), "{error:?}");
}

#[test]
fn a_schema_that_was_updated_is_that_of_a_new_installation() {
    let installation = Installation::new();
    installation.install("now");
    let new = App::new("schema_new");
    let expected = schema(&mut new.superuser());
    assert!(expected.len() > 500, "{}", expected.len());
    for (number, release) in installation.releases().into_iter().enumerate() {
        let app = App::of_version(&format!("schema_updated_{number}"), &release);
        app.superuser().run("ALTER EXTENSION xdb UPDATE");
        // As the update's message says: new objects are not granted to any role yet.
        app.superuser()
            .run("SELECT xdb.grant_usage('boss', admin => true), xdb.grant_usage('app'), xdb.grant_usage('other')");
        let now = schema(&mut app.superuser());
        let missing: Vec<_> = expected.difference(&now).collect();
        let left: Vec<_> = now.difference(&expected).collect();
        assert!(missing.is_empty() && left.is_empty(), "after {release}, missing: {missing:#?}, left: {left:#?}");
        app.done(&[]);
    }
    new.done(&[]);
}

#[test]
fn grants_of_administrators_and_objects_of_applications_survive_an_update() {
    let installation = Installation::new();
    for (number, release) in installation.releases().into_iter().enumerate() {
        let (app, half_way) = installation.half_way(&format!("kept_{number}"), &release);
        let mut admin = app.superuser();
        admin.run(
            "CREATE ROLE reader; GRANT USAGE ON SCHEMA xdb TO reader; GRANT SELECT ON xdb.timers TO reader WITH GRANT OPTION;
             GRANT SELECT (name) ON xdb.worker TO reader; GRANT EXECUTE ON FUNCTION xdb.purge(interval) TO reader;
             GRANT SELECT ON xdb.history TO PUBLIC; REVOKE EXECUTE ON FUNCTION xdb.library_version() FROM pg_monitor;
             CREATE VIEW mine AS SELECT process_id, status FROM xdb.processes;
             CREATE VIEW all_of_it AS SELECT * FROM xdb.waits",
        );
        let privileges = |db: &mut Db| {
            let mut facts = schema(db);
            facts.retain(|fact| fact.starts_with("privilege") && !NEW.iter().any(|name| fact.contains(name)));
            facts
        };
        let before = privileges(&mut admin);
        admin.run("ALTER EXTENSION xdb UPDATE");
        assert_eq!(privileges(&mut admin), before);
        assert!(admin.one::<i64>("SELECT count(*) FROM mine") > 0);
        // A dump has them still, as what was granted and not as what the extension brings, and the processes too.
        let dump = app.cluster().dump(app.database(), &[]);
        app.cluster().restore("kept_copy", &dump);
        let mut restored = app.cluster().connect("kept_copy", "postgres");
        let after = privileges(&mut restored);
        let lost: Vec<_> = before.difference(&after).collect();
        let more: Vec<_> = after.difference(&before).collect();
        assert!(lost.is_empty() && more.is_empty(), "lost: {lost:#?}, more: {more:#?}");
        let processes = "SELECT count(*) FROM xdb.processes";
        assert_eq!(restored.one::<i64>(processes), admin.one::<i64>(processes));
        half_way.finish(&mut app.db(), &[""]);
        app.done(AFTER_RESTART);
    }
}

/// Parts of the names of objects that are new in this release, or have other columns or parameters. The update's
/// message says that they need grants.
const NEW: &[&str] = &["metrics", "move_state", "process_lock", "xdb.locks", "xdb.schedule", "xdb.transitions"];

#[test]
fn an_update_does_not_wait_long_and_may_be_made_by_another_superuser() {
    let installation = Installation::new();
    installation.install("now");
    for (number, release) in installation.releases().into_iter().enumerate() {
        let app = App::of_version(&format!("late_{number}"), &release);
        app.superuser().run("CREATE ROLE another SUPERUSER LOGIN");
        // Reads, and leaves its transaction open.
        let mut open = app.db();
        open.run("BEGIN; SELECT count(*) FROM xdb.processes");
        let error = app.superuser().try_run("ALTER EXTENSION xdb UPDATE").expect_err("a session uses it");
        assert_eq!(error.code, "55P03");
        assert_eq!(version(&app), release);
        // It has not even asked them to leave.
        open.run("COMMIT");
        app.session("another").run("ALTER EXTENSION xdb UPDATE");
        let owners = "SELECT count(DISTINCT proowner) FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace";
        assert_eq!(app.superuser().one::<i64>(owners), 1);
        app.done(&[]);
    }
}

#[test]
fn a_session_that_an_update_waits_for_is_not_cancelled_for_it() {
    let installation = Installation::new();
    installation.install("now");
    for (number, release) in installation.releases().into_iter().enumerate() {
        let app = App::of_version(&format!("around_{number}"), &release);
        let mut reader = app.db();
        // Until an update has come in between: it gives up after a while, on a busy machine before the session goes on.
        while version(&app) == release {
            reader.run("BEGIN; SELECT count(*) FROM xdb.history");
            let result = std::thread::scope(|scope| {
                let update = scope.spawn(|| app.superuser().try_run("ALTER EXTENSION xdb UPDATE"));
                let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'ALTER EXTENSION%' AND state = 'active'
                             AND wait_event IS NOT NULL)";
                wait_until("it is under way", 20, || app.superuser().one::<bool>(waits) || update.is_finished());
                // Holds what the update wants, and wants what the update holds.
                reader.run("SELECT count(*) FROM xdb.processes; COMMIT");
                update.join().expect("no panic").err()
            });
            assert!(result.as_ref().is_none_or(|error| error.code == "55P03"), "{result:?}");
        }
        app.done(&[]);
    }
}

#[test]
fn objects_that_an_update_adds_are_private_and_a_warning_lists_the_grants() {
    let installation = Installation::new();
    installation.install("now");
    for (number, release) in installation.releases().into_iter().enumerate() {
        let app = App::hostile_of_version(&format!("hostile_{number}"), &release);
        let mut superuser = app.superuser();
        // As if it were new.
        superuser.run(
            "CREATE ROLE ops; CREATE ROLE dev; SELECT xdb.grant_usage('ops', operator => true), xdb.grant_usage('dev', deployer => true);
             ALTER EXTENSION xdb DROP FUNCTION xdb.purge(interval); DROP FUNCTION xdb.purge(interval);
             ALTER EXTENSION xdb UPDATE",
        );
        let log = app.cluster().log();
        for grant in ["('app')", "('ops', operator => true)", "('dev', deployer => true)", "('boss', admin => true)"] {
            assert!(log.contains(&format!("SELECT xdb.grant_usage{grant};")), "{grant}: {log}");
        }
        let granted = "SELECT count(*) FROM pg_proc p, LATERAL aclexplode(proacl) AS a
                       WHERE p.oid = 'xdb.purge(interval)'::regprocedure AND a.grantee <> p.proowner";
        assert_eq!(superuser.one::<i64>(granted), 0);
        app.done(&[]);
    }
}

#[test]
fn a_script_takes_over_no_object_of_another_role() {
    let installation = Installation::new();
    installation.install("now");
    let app = App::new("squatted");
    let mut db = app.superuser();
    db.run("DROP EXTENSION xdb CASCADE; CREATE SCHEMA xdb AUTHORIZATION app");
    assert_eq!(db.try_run("CREATE EXTENSION xdb").expect_err("the schema exists already").code, "42P06");
    app.cluster().superuser().drop_database("squatted", "WITH (FORCE)");
    for (number, release) in installation.releases().into_iter().enumerate() {
        let app = App::of_version(&format!("squatted_{number}"), &release);
        let mut db = app.superuser();
        // As if the objects were new in this version, and a role had the right to create objects in the schema.
        for (object, foreign) in [
            (
                "FUNCTION xdb.purge(interval)",
                "FUNCTION xdb.purge(older_than interval) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
            ),
            ("VIEW xdb.timers", "VIEW xdb.timers AS SELECT 'x' AS process_id, gen_random_uuid() AS execution_id, 'x' AS state_execution_id,
                 'x' AS command_id, 'x' AS kind, now() AS fire_at"),
            (
                "FUNCTION xdb.library_version()",
                "FUNCTION xdb.library_version() RETURNS text LANGUAGE sql AS 'SELECT ''0.0.1''::text'",
            ),
        ] {
            db.run(&format!(
                "BEGIN; ALTER EXTENSION xdb DROP {object}; DROP {object}; GRANT CREATE ON SCHEMA xdb TO app;
                 SET LOCAL ROLE app; CREATE {foreign}; RESET ROLE; COMMIT"
            ));
            let error = db.try_run("ALTER EXTENSION xdb UPDATE").expect_err("it is not of the extension");
            assert_eq!(error.code, "55000", "{error:?}");
            assert!(error.message.contains("is not a member of extension"), "{error:?}");
            assert_eq!(version(&app), release);
            db.run(&format!("DROP {object}"));
        }
        app.cluster().superuser().drop_database(&format!("squatted_{number}"), "WITH (FORCE)");
    }
}
