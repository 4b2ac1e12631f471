//! A run: rounds of work under faults, each with a restart, a drain and all checks at its end.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xdb_cluster_tests::app::App;
use xdb_cluster_tests::cluster::ClusterOptions;
use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::worker::Worker;

use crate::checks::{self, Findings, Violation};
use crate::clients::{self, COUNTERS, Client, SHARED_ROWS};
use crate::faults::{Kind, Saboteur, Schedule};
use crate::ledger::Ledger;
use crate::log_check;
use crate::mischief::Mischief;
use crate::options::Options;
use crate::proof;
use crate::record::Record;
use crate::shapes::{Hand, Shape, Urgent};
use crate::wal::{self, WalDisk};
use crate::world::World;

/// Clients that work at the same time.
const CLIENTS: usize = 8;
/// Beyond so many running processes, clients wait.
const MOST_RUNNING: u64 = 3000;
/// A process that has not ended so long after the last fault never will.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// What came of a run.
pub struct Report {
    pub rounds: u32,
    pub took: Duration,
    pub started: u64,
    pub calls: u64,
    pub repeated_calls: u64,
    pub repeated_operations: u64,
    pub over_quota: u64,
    pub faults: BTreeMap<Kind, u64>,
    pub fault_time: Duration,
    /// Kinds that can't be done here, and why.
    pub left_out: Vec<(Kind, String)>,
    /// From a restart to the end of the last process.
    pub recoveries: Vec<Duration>,
    pub violations: Vec<Violation>,
    /// What the engine said in the log.
    pub said: BTreeMap<String, usize>,
}

/// Runs until the time is over and the processes are started, or until something is wrong.
pub fn run(options: &Options) -> Report {
    let mounts = wal::own_mounts();
    let rack = Rack::set_up(options, mounts);
    let report = rack.rounds(options);
    rack.leave(report)
}

/// Ends the work of a round, however its faults end: a panic must not leave the clients at work for ever.
struct End<'a>(&'a World);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.mischief.end();
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

struct Rack {
    /// Before the disk of the WAL: it stops the server.
    world: World,
    worker: Worker,
    urgent: Mutex<std::sync::mpsc::Receiver<Urgent>>,
    wal: Option<WalDisk>,
    left_out: Vec<(Kind, String)>,
}

impl Rack {
    fn set_up(options: &Options, mounts: Result<(), String>) -> Rack {
        let settings = ClusterOptions::default().set("max_wal_size", "96MB").set("min_wal_size", "32MB");
        let app = App::alone("torture", settings);
        let (wal, left_out) = match mounts.and_then(|()| move_wal(&app)) {
            Ok(wal) => (Some(wal), Vec::new()),
            Err(why) => (None, vec![(Kind::WalFull, why)]),
        };
        let (sender, urgent) = channel();
        let (ledger, mischief) = (Arc::new(Ledger::default()), Arc::new(Mischief::default()));
        let hand = Hand { seed: options.seed, ledger: ledger.clone(), mischief: mischief.clone(), urgent: sender };
        let worker = Worker::start_forgetful(move |call| hand.answer(call));
        app.superuser().run(&format!("SELECT xdb.register_worker('stub', {})", literal(&worker.url())));
        app.db().run(
            "CREATE TABLE orders (request text PRIMARY KEY, process_id text NOT NULL);
             CREATE TABLE work (id text PRIMARY KEY, n int CHECK (n >= 0), effect jsonb);
             CREATE TABLE effects (number bigserial PRIMARY KEY, row_id text, effect jsonb NOT NULL);
             CREATE FUNCTION note_effect() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO public.effects (row_id, effect) VALUES (new.id, new.effect); RETURN NULL; END $$;
             CREATE TRIGGER note_effect AFTER INSERT OR UPDATE OF effect ON work
                 FOR EACH ROW WHEN (new.effect IS NOT NULL) EXECUTE FUNCTION note_effect();",
        );
        for shape in Shape::ALL {
            app.register(shape.name(), &shape.definition());
        }
        app.superuser().run(&shared_rows());
        let log = app.cluster().directory().join("clients.log");
        let record = Record::create(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let world = World::new(app, options.seed, ledger, mischief, record);
        Rack { world, worker, urgent: Mutex::new(urgent), wal, left_out }
    }

    fn rounds(&self, options: &Options) -> Report {
        let world = &self.world;
        let kinds: Vec<_> =
            Kind::ALL.iter().copied().filter(|kind| self.left_out.iter().all(|(out, _)| out != kind)).collect();
        let mut schedule = Schedule::new(options.seed, kinds);
        let mut saboteur = Saboteur::new(world, &self.worker, self.wal.as_ref());
        let mut report = Report {
            rounds: 0,
            took: Duration::ZERO,
            started: 0,
            calls: 0,
            repeated_calls: 0,
            repeated_operations: 0,
            over_quota: 0,
            faults: BTreeMap::new(),
            fault_time: Duration::ZERO,
            left_out: self.left_out.clone(),
            recoveries: Vec::new(),
            violations: Vec::new(),
            said: BTreeMap::new(),
        };
        let mut log_end = 0;
        let begun = Instant::now();
        loop {
            let elapsed = begun.elapsed();
            let enough = elapsed >= options.length && world.started.load(Ordering::Relaxed) >= options.processes;
            if enough || elapsed >= options.length * 2 {
                break;
            }
            let round = report.rounds;
            report.rounds += 1;
            let last = options.length.saturating_sub(elapsed);
            let length = options.round.min(last.max(options.round / 3));
            let planned = schedule.round(length, options.between_faults);
            let text: Vec<_> = planned.iter().map(|p| format!("{:.1} {}", p.after.as_secs_f64(), p.kind)).collect();
            println!("round {round}, {:.0} s: {}", length.as_secs_f64(), text.join("; "));
            self.plan(options, elapsed, length);
            let mut findings = Findings::default();
            let worked = Instant::now();
            self.work(round, &planned, length, &mut saboteur);
            report.fault_time += worked.elapsed();
            let restart = Kind::RESTARTS[round as usize % Kind::RESTARTS.len()];
            let restarted = Instant::now();
            world.record.note(&format!("LAST FAULT {restart}"));
            if saboteur.fault(restart, None) {
                *saboteur.counts.entry(restart).or_default() += 1;
            }
            let drained = self.drain(&mut findings);
            report.recoveries.push(restarted.elapsed());
            if drained {
                proof::wake_ups(world, round, &mut findings);
            }
            let page = world.record.turn_the_page();
            let checking = Instant::now();
            if let Some(mut db) = world.superuser(Duration::from_secs(60)) {
                checks::check(world, &mut db, &page, &mut findings);
            } else {
                findings.add("server", "it takes no connections");
            }
            log_end = log_check::check(world, log_end, self.wal.is_some(), &mut findings);
            report.violations = findings.into_violations();
            println!(
                "round {round}: {} processes so far; the last one ended {:.1} s after: {restart}; checks took {:.1} s; {}",
                world.started.load(Ordering::Relaxed),
                report.recoveries.last().map_or(0.0, Duration::as_secs_f64),
                checking.elapsed().as_secs_f64(),
                if report.violations.is_empty() { "sound".to_owned() } else { "VIOLATIONS".to_owned() },
            );
            if !report.violations.is_empty() {
                break;
            }
            self.clear(&mut report.violations);
            if !report.violations.is_empty() {
                break;
            }
        }
        report.took = begun.elapsed();
        report.started = world.started.load(Ordering::Relaxed);
        (report.calls, report.repeated_calls) = world.ledger.counts();
        report.repeated_operations = world.repeats();
        report.over_quota = world.over_quota();
        report.faults = saboteur.counts;
        report.said = log_check::engine_says(world);
        report
    }

    /// How fast to start processes, so that there are enough in the end.
    fn plan(&self, options: &Options, elapsed: Duration, length: Duration) {
        let left = options.processes.saturating_sub(self.world.started.load(Ordering::Relaxed));
        // A drain and the checks take about as long as half of a round.
        let rounds = (options.length.saturating_sub(elapsed).as_secs_f64() / (length.as_secs_f64() * 1.5)).max(1.0);
        let share = (left as f64 / rounds).ceil() as u64;
        self.world.pace(share, length);
    }

    fn work(&self, round: u32, planned: &[crate::faults::Planned], length: Duration, saboteur: &mut Saboteur<'_>) {
        let world = &self.world;
        world.stop.store(false, Ordering::Relaxed);
        // What the worker wanted published while the last round came to its end.
        while self.urgent.lock().expect("never poisoned").try_recv().is_ok() {}
        std::thread::scope(|scope| {
            let _end = End(world);
            for number in 0..CLIENTS {
                let client = Client::new(world, format!("{round}-{number}"));
                scope.spawn(move || client.run());
            }
            for _ in 0..2 {
                scope.spawn(|| clients::publish_urgently(world, &self.urgent));
                scope.spawn(|| clients::watch(world));
            }
            scope.spawn(|| world.keep_pace(MOST_RUNNING));
            saboteur.run(planned, length, scope);
        });
        world.forget_recent();
    }

    /// Waits until no process runs.
    fn drain(&self, findings: &mut Findings) -> bool {
        let deadline = Instant::now() + DRAINED_WITHIN;
        loop {
            if let Some(mut db) = self.world.superuser(Duration::from_secs(30)) {
                // A fault may have come twice in the moment in which a call was made.
                let held = "SELECT xdb.retry_now(process_id, state_execution_id, execution_id) FROM xdb.failures \
                    WHERE error_type = 'CallHeld'";
                // A process that has ended meanwhile fails it, and the next look does the rest.
                let _ = db.try_all::<i32>(held);
                let running = "SELECT count(*) FROM xdb.process_execution WHERE status = 'RUNNING'";
                let left = db.try_one::<i64>(running);
                if left == Ok(0) {
                    return true;
                }
                if Instant::now() > deadline {
                    findings
                        .add("not ended", format!("{left:?} processes run {DRAINED_WITHIN:?} after the last fault"));
                    let which = "SELECT xdb.describe_process(process_id)::text FROM xdb.process_execution \
                        WHERE status = 'RUNNING' ORDER BY started_at LIMIT 5";
                    for process in db.try_all::<String>(which).unwrap_or_default() {
                        findings.add("not ended", process);
                    }
                    return false;
                }
            } else if Instant::now() > deadline {
                findings.add("not ended", "the server takes no connections");
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Purges everything; nothing may be left.
    fn clear(&self, violations: &mut Vec<Violation>) {
        let mut db = self.world.app.superuser();
        db.run("SET statement_timeout = '5min'");
        let deadline = Instant::now() + Duration::from_secs(60);
        while db.count("xdb.process_execution") > 0 && Instant::now() < deadline {
            db.run("SELECT xdb.purge('0 s')");
        }
        // Not of any execution: kept as long as `xdb.retention` says.
        db.run("DELETE FROM xdb.global_message_key");
        for table in [
            "process_execution",
            "latest_execution",
            "state_execution",
            "task",
            "timer",
            "inbox",
            "queue_message",
            "queue_waiter",
            "message_key",
            "local_attribute",
            "rpc_answer",
            "history_event",
            "purged",
        ] {
            let left = db.count(&format!("xdb.{table}"));
            if left > 0 {
                violations.push(format!("not purged: {left} rows of {table}"));
            }
        }
        db.run("TRUNCATE orders, work, effects");
        db.run(&shared_rows());
        self.world.ledger.turn_the_page();
    }

    /// Ends it all; what a reader may want is kept when something was wrong.
    fn leave(self, report: Report) -> Report {
        let Rack { world, worker, wal, .. } = self;
        drop(worker);
        if !report.violations.is_empty() {
            world.cluster().keep();
            println!(
                "\nThe server's directory with its log and the clients' log: {}",
                world.cluster().directory().display()
            );
        }
        world.cluster().crash();
        drop(wal);
        drop(world);
        report
    }
}

/// The rows that processes share are there before them.
fn shared_rows() -> String {
    format!(
        "INSERT INTO work SELECT 's' || n FROM generate_series(0, {}) n
         UNION ALL SELECT 'x' || n FROM generate_series(0, {}) n",
        SHARED_ROWS - 1,
        COUNTERS - 1
    )
}

/// Puts the WAL onto a disk of its own.
fn move_wal(app: &App) -> Result<WalDisk, String> {
    app.cluster().stop();
    let moved = WalDisk::for_cluster(app.cluster().directory());
    app.cluster().launch();
    moved
}
