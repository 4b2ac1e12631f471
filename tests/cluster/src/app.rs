//! The application of one test: a database with the extension, ordinary roles, tables, workers.

use std::ops::Deref;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, ClusterOptions};
use crate::db::{Db, SqlError, jsonb, literal};
use crate::definition::{Definition, one_step};
use crate::wait::wait_until;
use crate::worker::{Call, Ledger, Reply, Worker, force_complete};
use crate::{log, views};

/// The shared cluster of the test binary, or a cluster of the test's own.
enum Home {
    Shared(&'static Cluster),
    Own(Cluster),
}

/// Default privileges that a database may have before the extension is created. New objects give rights to `app` and
/// `stranger`, and none to PUBLIC.
const DEFAULT_PRIVILEGES: &str = "
    ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO app, stranger;
    ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app, stranger;
    ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO app, stranger WITH GRANT OPTION;
    ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO app, stranger;
    ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO app, stranger;
    ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM PUBLIC;
    ALTER DEFAULT PRIVILEGES REVOKE ALL ON TYPES FROM PUBLIC;";

/// Settings of a hostile database. Every transaction is serializable, no object is found without its schema, and values
/// have other formats.
const HOSTILE_SETTINGS: &[(&str, &str)] = &[
    ("default_transaction_isolation", "'serializable'"),
    ("search_path", "''"),
    ("datestyle", "'SQL, DMY'"),
    ("intervalstyle", "'sql_standard'"),
    ("timezone", "'Asia/Kolkata'"),
];

/// One database and everything that belongs to it. `app` and `other` may use the extension, `boss` may administer it,
/// `stranger` may not.
///
/// A test ends with [`App::done`]. If a test panics, the state of the engine and the end of the log are printed.
pub struct App {
    home: Home,
    database: String,
    /// The ledgers of all registered workers.
    ledgers: Mutex<Vec<Ledger>>,
}

impl App {
    /// How many hours after now it is about noon in UTC. At night, steps of a day meet changes of the clock.
    pub fn hours_to_noon(&self) -> i32 {
        self.db().one("SELECT (36 - extract(hour FROM clock_timestamp() AT TIME ZONE 'UTC')::int) % 24")
    }

    /// A database of this name in the cluster that the tests of a binary share.
    pub fn new(name: &str) -> App {
        App::set_up(Home::Shared(Cluster::shared()), name, "")
    }

    /// A database that [`App::make_hostile_database`] makes, in the shared cluster. A test names its tables with their
    /// schemas there.
    pub fn hostile(name: &str) -> App {
        App::set_up_hostile(Home::Shared(Cluster::shared()), name, "")
    }

    /// A hostile database in a cluster of its own.
    pub fn hostile_alone(name: &str, options: ClusterOptions) -> App {
        App::set_up_hostile(Home::Own(Cluster::start(options)), name, "")
    }

    /// A hostile database with the schema of this version of the extension, in the shared cluster.
    pub fn hostile_of_version(name: &str, version: &str) -> App {
        let cluster = Cluster::start(ClusterOptions::default());
        App::set_up_hostile(Home::Own(cluster), name, &format!("VERSION '{version}'"))
    }

    /// A database in a cluster of its own, for tests that kill, stop or configure the server.
    pub fn alone(name: &str, options: ClusterOptions) -> App {
        App::set_up(Home::Own(Cluster::start(options)), name, "")
    }

    /// A database with the schema of this version of the extension, in the shared cluster.
    pub fn of_version(name: &str, version: &str) -> App {
        let cluster = Cluster::start(ClusterOptions::default());
        App::set_up(Home::Own(cluster), name, &format!("VERSION '{version}'"))
    }

    fn set_up(home: Home, name: &str, version: &str) -> App {
        let app = App { home, database: name.to_owned(), ledgers: Mutex::default() };
        // From template0, because no session can connect to it.
        app.cluster().superuser().run(&format!("CREATE DATABASE {name} TEMPLATE template0"));
        app.with_extension(version)
    }

    fn set_up_hostile(home: Home, name: &str, version: &str) -> App {
        let app = App { home, database: name.to_owned(), ledgers: Mutex::default() };
        app.make_hostile_database(name);
        app.with_extension(version)
    }

    /// Makes a database without the extension. It has the default privileges and settings of other owners. If the
    /// server has ICU, the database compares texts as ICU does.
    pub fn make_hostile_database(&self, name: &str) {
        let mut superuser = self.cluster().superuser();
        let has_icu = superuser.one("SELECT EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i')");
        let locale = if has_icu { "LOCALE_PROVIDER icu ICU_LOCALE 'de-u-kn-true-ks-level2'" } else { "" };
        superuser.run(&format!("CREATE DATABASE {name} TEMPLATE template0 {locale}"));
        self.cluster().connect(name, "postgres").run(DEFAULT_PRIVILEGES);
        for (setting, value) in HOSTILE_SETTINGS {
            superuser.run(&format!("ALTER DATABASE {name} SET {setting} = {value}"));
        }
    }

    fn with_extension(self, version: &str) -> App {
        let app = self;
        app.superuser().run(&format!(
            "CREATE EXTENSION xdb SCHEMA public {version};
             SELECT xdb.grant_usage('app');
             SELECT xdb.grant_usage('other');
             SELECT xdb.grant_usage('boss', admin => true);
             GRANT CREATE ON SCHEMA public TO app, other;"
        ));
        app.db().run(
            "CREATE TABLE public.users (user_id text PRIMARY KEY, form jsonb, status text, source text);
             CREATE TABLE public.counters (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);",
        );
        app
    }

    /// The server.
    pub fn cluster(&self) -> &Cluster {
        match &self.home {
            Home::Shared(cluster) => cluster,
            Home::Own(cluster) => cluster,
        }
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// A session of the application.
    pub fn db(&self) -> Db {
        self.session("app")
    }

    /// A session of any role.
    pub fn session(&self, role: &str) -> Db {
        self.cluster().connect(&self.database, role)
    }

    /// A session of the superuser, in this database.
    pub fn superuser(&self) -> Db {
        self.session("postgres")
    }

    /// Starts a worker and registers it under the name `stub`.
    pub fn worker<R: Into<Reply>>(&self, handler: impl Fn(&Call) -> R + Send + Sync + 'static) -> Worker {
        self.worker_named("stub", handler)
    }

    /// Starts a worker and registers it.
    pub fn worker_named<R: Into<Reply>>(
        &self,
        name: &str,
        handler: impl Fn(&Call) -> R + Send + Sync + 'static,
    ) -> Worker {
        self.registered(name, Worker::start(handler))
    }

    /// Starts a worker that records no calls, and registers it under the name `stub`. For tests with very many calls.
    pub fn forgetful_worker<R: Into<Reply>>(&self, handler: impl Fn(&Call) -> R + Send + Sync + 'static) -> Worker {
        self.registered("stub", Worker::start_forgetful(handler))
    }

    fn registered(&self, name: &str, worker: Worker) -> Worker {
        self.ledgers.lock().expect("never poisoned").push(worker.ledger());
        self.superuser().run(&format!("SELECT xdb.register_worker({}, {})", literal(name), literal(&worker.url())));
        worker
    }

    /// Registers a process type with the worker `stub`.
    pub fn register(&self, process_type: &str, definition: &Definition) {
        self.register_with("stub", process_type, definition);
    }

    /// Registers a process type with a worker.
    pub fn register_with(&self, worker: &str, process_type: &str, definition: &Definition) {
        self.superuser().run(&format!(
            "SELECT xdb.register_process_type({}, {}, {})",
            literal(process_type),
            literal(worker),
            jsonb(definition.json())
        ));
    }

    /// Marks a table as slow: a step of this role exceeds `xdb.apply_timeout` in the table. So its steps run in a
    /// runner for ten minutes. `row` has a value for each column that a new row needs, except the key. The step writes
    /// these values.
    pub fn make_slow(&self, role: &str, table: &str, key: &str, row: Value) {
        let columns: Vec<_> = row.as_object().into_iter().flatten().map(|(column, _)| column.as_str()).collect();
        let mut superuser = self.superuser();
        superuser.run(&format!(
            "CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
                 IF new.{key} <> 'dawdler' THEN RETURN new; END IF;
                 PERFORM pg_sleep(60) FROM pg_stat_activity
                     WHERE pid = pg_backend_pid() AND backend_type = 'xdb scheduler';
                 RETURN NULL; END $$;
             CREATE TRIGGER \"0\" BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION public.dawdle();
             INSERT INTO {table} ({key}, {0}) SELECT 'dawdler', {0} FROM jsonb_populate_record(NULL::{table}, {1})",
            columns.join(", "),
            jsonb(&row)
        ));
        let globals = row.clone();
        let worker = self.worker_named("dawdles", move |_: &Call| force_complete(Value::Null).globals(globals.clone()));
        self.register_with("dawdles", "dawdles", &one_step().maps(table, key, &columns));
        let mut owner = self.session(role);
        let process_id = format!("dawdler in {table}");
        owner.start(&process_id, "dawdles").key("dawdler").go();
        let named = format!("{table}: took longer than xdb.apply_timeout");
        wait_until(&format!("{table} is slow"), 20, || views::engine(&mut superuser).contains(&named));
        // A runner may have carried out the step meanwhile.
        owner.run(&format!(
            "DO $$ BEGIN PERFORM xdb.stop_process({}); EXCEPTION WHEN SQLSTATE 'XD007' THEN NULL; END $$",
            literal(&process_id)
        ));
        superuser.run(&format!(
            "DROP FUNCTION public.dawdle() CASCADE; DELETE FROM {table} WHERE {key} = 'dawdler';
             SELECT xdb.unregister_process_type('dawdles'); SELECT xdb.unregister_worker('dawdles')"
        ));
        drop(worker);
    }

    /// Makes marks that last ten minutes expire. Marks that last an hour stay.
    pub fn ten_minutes_pass(&self) {
        self.cluster().set("xdb.now", "10 min 30 s");
    }

    /// Kills the scheduler. The whole server restarts because of that. Returns when another scheduler runs.
    pub fn kill_scheduler(&self) {
        let killed = self.scheduler();
        self.cluster().kill_process(killed);
        wait_until("another scheduler is there", 30, || {
            self.cluster().find_scheduler(&self.database).is_some_and(|pid| pid != killed)
        });
    }

    /// Pauses the engine, and waits until no earlier turn is under way. Such a turn continues with what it has read,
    /// and may claim calls of processes that are started after the pause.
    pub fn pause(&self) {
        let mut superuser = self.superuser();
        let mut is_paused = || superuser.text("SELECT state FROM xdb.status()") == "paused";
        // It is the state of the last turn, which may have been in a pause before this one.
        wait_until("the engine has gone on after a pause before", 20, || !is_paused());
        self.superuser().run("SELECT xdb.pause_engine()");
        wait_until("the engine has paused", 20, is_paused);
    }

    /// Ends the engine's pause.
    pub fn resume(&self) {
        self.superuser().run("SELECT xdb.resume_engine()");
    }

    /// Makes held calls due again. A test that kills schedulers repeatedly may hit the same call each time.
    pub fn let_held_calls_go(&self) {
        let held = "SELECT xdb.retry_now(process_id, state_execution_id, execution_id) FROM xdb.failures
            WHERE error_type = 'CallHeld'";
        self.superuser().all::<i32>(held);
    }

    /// The scheduler's pid, as soon as there is one.
    pub fn scheduler(&self) -> i32 {
        self.cluster().scheduler(&self.database)
    }

    /// Does work during which the server crashes at the crash point.
    pub fn crash_at(&self, point: &str, work: impl FnOnce() -> Result<(), SqlError>) {
        self.cluster().arm(point);
        let error = work().expect_err("the server crashes under it");
        assert!(matches!(&*error.code, "08006" | "57P02" | "57P01"), "{error:?}");
        self.cluster().wait_for_crash(point);
    }

    /// Lines of trouble in the log that concern this database and have no explanation.
    pub fn unexplained_errors(&self, allowed: &[&str]) -> Vec<String> {
        log::unexplained(&self.cluster().log(), Some(&self.database), allowed)
    }

    /// The problems that `xdb.check_process` finds in all executions of the database.
    fn unsound(&self) -> Vec<String> {
        // A test may have dropped or renamed the database, or dropped the extension.
        let exists = format!("SELECT EXISTS (SELECT FROM pg_database WHERE datname = {})", literal(&self.database));
        if !self.cluster().superuser().one::<bool>(&exists) {
            return Vec::new();
        }
        let mut superuser = self.superuser();
        if superuser.one("SELECT to_regclass('xdb.process_execution') IS NULL") {
            return Vec::new();
        }
        superuser.run("SET statement_timeout = '1 h'");
        superuser.all(
            "SELECT format('%s (%s): %s', p.process_id, p.execution_id, c.problem)
             FROM xdb.process_execution p, LATERAL xdb.check_process(p.process_id, p.execution_id) c
             ORDER BY p.execution_id LIMIT 100",
        )
    }

    /// Ends a test. All requests must be of the protocol, every process must agree with its history, the log must have
    /// only allowed trouble. The database must be droppable.
    pub fn done(self, allowed: &[&str]) {
        for ledger in &*self.ledgers.lock().expect("never poisoned") {
            assert_eq!(ledger.complaints(), Vec::<String>::new(), "requests that are not of the protocol");
        }
        let unsound = self.unsound();
        assert!(unsound.is_empty(), "processes are not what their histories say:\n{}", unsound.join("\n"));
        let unexplained = self.unexplained_errors(allowed);
        assert!(unexplained.is_empty(), "the log has trouble that nothing explains:\n{}", unexplained.join("\n"));
        self.cluster().superuser().drop_database(&self.database, "WITH (FORCE)");
    }

    /// All facts that may explain why a test failed.
    fn report(&self) -> String {
        let state = match self.cluster().try_connect(&self.database, "postgres", Duration::from_secs(3)) {
            Ok(mut db) => views::dump(&mut db),
            Err(error) => format!("no connection: {error:?}\n"),
        };
        let log = log::tail(&self.cluster().log(), 60);
        format!("=== {} ===\n{state}--- the end of the server's log ---\n{log}", self.database)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cluster().keep();
            eprintln!("{}", self.report());
        }
    }
}

/// The application of the example `examples/signup`, ready to sign up users.
pub struct SignupApp {
    app: App,
    /// Its worker.
    pub worker: Worker,
}

impl SignupApp {
    /// A database with the process type `signup` of [`crate::signup`].
    pub fn new(name: &str) -> SignupApp {
        let app = App::new(name);
        let worker = app.worker(crate::signup::handler);
        app.register("signup", &crate::signup::definition());
        SignupApp { app, worker }
    }

    /// See [`App::done`].
    pub fn done(self, allowed: &[&str]) {
        self.app.done(allowed);
    }
}

impl Deref for SignupApp {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}
