//! The server that is measured, and the databases of the runs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use xdb_cluster_tests::cluster::{Cluster, ClusterOptions};
use xdb_cluster_tests::db::{Db, jsonb, literal};

use crate::machine;
use crate::meter;
use crate::options::Options;
use crate::report::{Run, figure};
use crate::worker::{Reply, Request, Worker};

/// One moment by two clocks: the clock of the worker and the clients, and the clock of the server.
#[derive(Clone, Copy)]
pub struct Clock {
    instant: Instant,
    wall: f64,
}

impl Clock {
    fn now() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Clock { instant: Instant::now(), wall }
    }

    /// Nanoseconds of a moment since the clock was set. Earlier moments count as zero.
    pub fn nanoseconds(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.instant).as_nanos() as u64
    }

    /// The server's time of a moment, in seconds since 1970.
    pub fn wall(&self, nanoseconds: u64) -> f64 {
        self.wall + nanoseconds as f64 / 1e9
    }
}

/// The settings that the benchmark changes. All others are the defaults of Postgres and XDB. The harness adds
/// connections and places.
const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    // This number of sessions waits in W16.
    ("max_connections", "1200"),
    ("max_worker_processes", "8"),
    ("max_wal_size", "8GB"),
    // For W13; Postgres grants a third of it to connections.
    ("max_files_per_process", "70000"),
];

/// The server, shared by all workloads.
pub struct Lab {
    pub options: Options,
    pub cluster: Cluster,
    /// A session in the database `postgres`, so that reading the figures does not change them.
    observer: Mutex<Db>,
}

impl Lab {
    pub fn start(options: Options) -> Lab {
        machine::raise_open_files();
        // A quarter of the memory, as Postgres' manual advises for a server of its own.
        let shared_buffers = format!("{}MB", (machine::megabytes() / 4).max(128));
        let own = SETTINGS.iter().copied().chain([("shared_buffers", shared_buffers.as_str())]);
        let given = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let settings = own.chain(given).fold(ClusterOptions::default(), |all, (name, value)| all.set(name, value));
        let cluster = Cluster::start(settings);
        let observer = Mutex::new(cluster.superuser());
        Lab { options, cluster, observer }
    }

    /// A session that belongs to no run.
    pub fn observe<T>(&self, look: impl FnOnce(&mut Db) -> T) -> T {
        // A measurement that panicked is the end of its workload, and the session is as good as before.
        look(&mut self.observer.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// All settings of the server that are not the defaults, and its version.
    pub fn settings(&self) -> Value {
        self.observe(|db| {
            db.json(
                "SELECT json_build_object('version', version(), 'settings', json_object_agg(name, current_setting(name)
                     ORDER BY name))
                 FROM pg_settings WHERE source = 'configuration file' AND boot_val IS DISTINCT FROM reset_val
                     AND name !~ '^(lc_|log_|unix_|listen|port|config|data_dir|hba|ident|DateStyle|default_text|TimeZone)'
                     OR name IN ('fsync', 'synchronous_commit', 'full_page_writes')",
            )
        })
    }

    /// Measures as often as the options say. Records the load before each measurement.
    pub fn runs(&self, title: &str, mut body: impl FnMut() -> Result<Run, String>) -> Result<Vec<Run>, String> {
        (1..=self.options.runs)
            .map(|number| {
                if let Some(quiet) = self.options.quiet {
                    machine::wait_for_quiet(quiet)?;
                }
                let load = machine::load();
                let begun = Instant::now();
                let mut run = body().map_err(|problem| format!("{title}: {problem}"))?;
                run.set(figure::LOAD, load[0]);
                eprintln!("{title}: run {number}, {:.0} s, {run}", begun.elapsed().as_secs_f64());
                Ok(run)
            })
            .collect()
    }

    /// A new database with the extension and an ordinary role that may use it.
    pub fn stage(&self) -> Stage<'_> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let database = format!("bench_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.observe(|db| db.run(&format!("CREATE DATABASE {database} TEMPLATE template0")));
        let stage = Stage { lab: self, database, clock: Clock::now() };
        stage.superuser().run(
            "CREATE EXTENSION xdb;
             SELECT xdb.grant_usage('app');
             GRANT CREATE ON SCHEMA public TO app;",
        );
        // Runs begin alike: with nothing that a checkpoint would have to write.
        self.observe(|db| db.run("CHECKPOINT"));
        self.cluster.scheduler(&stage.database);
        stage
    }
}

/// The database of a run. Dropped at the end of the run.
pub struct Stage<'a> {
    pub lab: &'a Lab,
    pub database: String,
    pub clock: Clock,
}

impl Stage<'_> {
    pub fn superuser(&self) -> Db {
        self.session("postgres")
    }

    /// A session of the application.
    pub fn app(&self) -> Db {
        self.session("app")
    }

    /// Makes the server do its pending maintenance now. Waits until it has written no WAL for `quiet`.
    pub fn come_to_rest(&self, quiet: Duration) -> Result<(), String> {
        self.superuser().run("VACUUM ANALYZE");
        self.lab.observe(|db| db.run("CHECKPOINT"));
        let mut last = (f64::NAN, Instant::now());
        wait_for("the server is at rest", Duration::from_secs(300), || {
            let vacuums = "SELECT count(*)::float8 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'";
            let vacuums: f64 = self.lab.observe(|db| db.one(vacuums));
            let wal = meter::wal(self);
            if wal != last.0 || vacuums > 0.0 {
                last = (wal, Instant::now());
            }
            Ok(last.1.elapsed() > quiet)
        })
    }

    /// A session of another role. Without grants, the role uses nothing.
    pub fn other(&self) -> Db {
        self.session("other")
    }

    fn session(&self, role: &str) -> Db {
        let mut db = self.lab.cluster.connect(&self.database, role);
        // The harness's limit is for tests; deadlines here depend on the sizes.
        db.run("SET statement_timeout = 0");
        db
    }

    /// Starts a worker, without registering it.
    pub fn worker(&self, handler: impl Fn(&Request<'_>, &mut Reply) + Send + Sync + 'static) -> Worker {
        Worker::start(self.lab.options.worker_threads, handler)
    }

    /// Registers a worker with the concurrency of the options, and process types with it.
    pub fn register(&self, name: &str, worker: &Worker, types: &[(&str, &Value)]) {
        let mut db = self.superuser();
        let (name, url) = (literal(name), literal(&worker.url()));
        let concurrency = self.lab.options.concurrency;
        db.run(&format!("SELECT xdb.register_worker({name}, {url}, max_concurrency => {concurrency})"));
        for (process_type, definition) in types {
            let (process_type, definition) = (literal(process_type), jsonb(definition));
            db.run(&format!("SELECT xdb.register_process_type({process_type}, {name}, {definition})"));
        }
    }

    pub fn pause(&self) {
        self.superuser().run("SELECT xdb.pause_engine()");
    }

    pub fn resume(&self) {
        self.superuser().run("SELECT xdb.resume_engine()");
    }

    /// Starts the processes `<prefix><from>` to below `<prefix><to>`, some thousand in a transaction. `more` is an SQL
    /// expression for further parameters of each start. It may contain `i`, the number.
    pub fn start(&self, prefix: &str, process_type: &str, from: u64, to: u64, more: &str) {
        start(&mut self.app(), prefix, process_type, from, to, more);
    }

    /// Waits until no process runs whose id begins with `prefix`.
    pub fn wait_until_closed(&self, prefix: &str, within: Duration) -> Result<(), String> {
        let mut db = self.superuser();
        let running = format!(
            "SELECT EXISTS (SELECT FROM xdb.process_execution WHERE status = 'RUNNING' AND starts_with(process_id, {}))",
            literal(prefix)
        );
        let running = db.client().prepare(&running).map_err(|error| error.to_string())?;
        wait_for("no process runs", within, || {
            let row = db.client().query_one(&running, &[]).map_err(|error| error.to_string())?;
            Ok(!row.get::<_, bool>(0))
        })
    }

    /// The pids of the schedulers.
    pub fn schedulers(&self) -> Vec<i32> {
        let database = literal(&self.database);
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = {database} AND backend_type LIKE 'xdb %scheduler%'"
        );
        self.lab.observe(|db| db.all(&sql))
    }
}

/// See [`Stage::start`].
pub fn start(db: &mut Db, prefix: &str, process_type: &str, from: u64, to: u64, more: &str) {
    let (prefix, process_type) = (literal(prefix), literal(process_type));
    for (first, last) in batches(from, to) {
        let started: i64 = db.one(&format!(
            "SELECT count(*) FROM xdb.start_processes((
                 SELECT jsonb_agg(jsonb_build_object('process_id', {prefix} || i, 'process_type', {process_type})
                                  || ({more})::jsonb)
                 FROM generate_series({first}, {last}) i))"
        ));
        assert_eq!(started as u64, last - first + 1, "every start gives an execution");
    }
}

/// Starts processes from the number `from` on while the engine works, until there are `to` of them or the time is over.
/// Returns how many there are. `done` returns how many the engine has processed.
pub fn fill(
    stage: &Stage<'_>,
    (prefix, process_type): (&str, &str),
    from: u64,
    to: u64,
    deadline: Instant,
    done: impl Fn() -> u64,
) -> Result<u64, String> {
    // Enough that the engine has always work, and few enough that it is soon at rest when the time is over.
    const AHEAD: u64 = 10_000;
    let mut db = stage.app();
    let mut started = from;
    while started < to && Instant::now() < deadline {
        let next = to.min(started + AHEAD / 4);
        start(&mut db, prefix, process_type, started, next, "'{}'");
        started = next;
        wait_for("the engine keeps up", patience(AHEAD), || Ok(done() + AHEAD > started))?;
    }
    wait_for("the engine has caught up", patience(AHEAD), || Ok(done() >= started))?;
    Ok(started)
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.database);
        if let Err(error) = self.lab.observe(|db| db.try_run(&sql)) {
            eprintln!("{}: {error:?}", self.database);
        }
    }
}

/// Ranges that one transaction takes, both ends included.
fn batches(from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    const BATCH: u64 = 5000;
    (from..to).step_by(BATCH as usize).map(move |first| (first, (first + BATCH).min(to) - 1))
}

/// Checks every few milliseconds until the condition holds. Error: the time is over.
pub fn wait_for(what: &str, within: Duration, mut is_so: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let deadline = Instant::now() + within;
    while !is_so()? {
        if Instant::now() > deadline {
            return Err(format!("timed out after {} s: {what}", within.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A time limit for this number of steps on the slowest machine. A run that takes longer counts as stuck.
pub fn patience(steps: u64) -> Duration {
    Duration::from_secs(60 + steps / 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_the_range_and_no_more() {
        assert_eq!(batches(0, 12_000).collect::<Vec<_>>(), [(0, 4999), (5000, 9999), (10_000, 11_999)]);
        assert_eq!(batches(7, 8).collect::<Vec<_>>(), [(7, 7)]);
        assert_eq!(batches(7, 7).count(), 0);
    }

    #[test]
    fn waiting_ends_with_the_condition_the_deadline_or_an_error() {
        let mut left = 3;
        let counted = wait_for("it is counted down", Duration::from_secs(20), || {
            left -= 1;
            Ok(left == 0)
        });
        assert_eq!(counted, Ok(()));
        assert!(wait_for("never", Duration::ZERO, || Ok(false)).is_err());
        assert_eq!(wait_for("never", Duration::from_secs(20), || Err("x".into())), Err("x".to_owned()));
    }
}
