//! A run: rounds of work under faults. Each round ends with a restart, a drain and all checks.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xdb_cluster_tests::app::App;
use xdb_cluster_tests::cluster::ClusterOptions;
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::worker::Worker;

use crate::beside::{self, FORWARD};
use crate::checks::{self, Findings, Violation};
use crate::clients::{self, Client};
use crate::faults::{Kind, Planned, Saboteur, Schedule};
use crate::hand::{Hand, Urgent};
use crate::ledger::Ledger;
use crate::log_check;
use crate::mending;
use crate::mischief::Mischief;
use crate::options::Options;
use crate::pauses;
use crate::proof;
use crate::pull_workers::PullWorker;
use crate::record::Record;
use crate::schema;
use crate::shapes::{PULL_WORKER, Shape};
use crate::sql_checks;
use crate::wal::{self, WalDisk};
use crate::world::World;

/// Clients that work at the same time.
const CLIENTS: usize = 8;
/// Sessions of pull workers.
const PULL_WORKERS: usize = 4;
/// With more running processes than this, clients wait.
const MOST_RUNNING: u64 = 3000;
/// How long the engine is alone before the last fault of a round.
const ALONE: Duration = Duration::from_millis(300);
/// A process that has not ended this long after the last fault never will.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// The results of a run.
#[derive(Default)]
pub struct Report {
    pub rounds: u32,
    pub took: Duration,
    pub started: u64,
    pub calls: u64,
    pub repeated_calls: u64,
    pub claimed_calls: u64,
    /// What the processes have done, by kind.
    pub figures: BTreeMap<&'static str, i64>,
    pub repeated_operations: u64,
    pub over_quota: u64,
    pub faults: BTreeMap<Kind, u64>,
    pub fault_time: Duration,
    /// Kinds of faults that are impossible on this machine, and why.
    pub left_out: Vec<(Kind, String)>,
    /// The times from a restart to the end of the last process.
    pub recoveries: Vec<Duration>,
    pub violations: Vec<Violation>,
    /// The engine's lines in the log, with their numbers.
    pub engine_lines: BTreeMap<String, usize>,
}

/// Runs until the time is over and the processes are started, or until something is wrong.
pub fn run(options: &Options) -> Report {
    let mounts = wal::own_mounts();
    let rack = Rack::set_up(options, mounts);
    let report = rack.rounds(options);
    rack.leave(report)
}

/// Ends the work of a round even after a panic of its faults. Otherwise the clients would work for ever.
struct End<'a>(&'a World);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.mischief.end();
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Ends the work of pull workers, however the round ends.
struct PullWorkersEnd<'a>(&'a World);

impl Drop for PullWorkersEnd<'_> {
    fn drop(&mut self) {
        self.0.pull_workers_end.store(true, Ordering::Relaxed);
    }
}

struct Rack {
    /// Declared before the disk of the WAL, so that the server stops first.
    world: World,
    worker: Worker,
    hand: Arc<Hand>,
    urgent: Mutex<std::sync::mpsc::Receiver<Urgent>>,
    wal: Option<WalDisk>,
    left_out: Vec<(Kind, String)>,
}

impl Rack {
    fn set_up(options: &Options, mounts: Result<(), String>) -> Rack {
        let settings = ClusterOptions::default()
            .set("max_wal_size", "96MB")
            .set("min_wal_size", "32MB")
            // A crash loses asynchronous commits, unless another session's commit has flushed them.
            .set("wal_writer_delay", "10s");
        let app = App::alone("torture", settings);
        let (wal, left_out) = match mounts.and_then(|()| move_wal(&app)) {
            Ok(wal) => (Some(wal), Vec::new()),
            Err(why) => (None, vec![(Kind::WalFull, why)]),
        };
        let (sender, urgent) = channel();
        let (ledger, mischief) = (Arc::new(Ledger::default()), Arc::new(Mischief::default()));
        let hand = Hand { seed: options.seed, ledger: ledger.clone(), mischief: mischief.clone(), urgent: sender };
        let hand = Arc::new(hand);
        let of_worker = hand.clone();
        let worker = Worker::start_forgetful(move |call| of_worker.answer(call));
        app.superuser().run(&format!("SELECT xdb.register_worker('stub', {})", literal(&worker.url())));
        app.superuser().run(&format!("SELECT xdb.register_worker('{PULL_WORKER}', NULL, role => 'app')"));
        app.db().run(&schema::tables());
        app.superuser().run(schema::RUNS_SINCE);
        register(&app, Shape::ALL, true);
        beside::registrations().iter().for_each(|sql| app.superuser().run(sql));
        app.superuser().run(&schema::shared_rows());
        let log = app.cluster().directory().join("clients.log");
        let record = Record::create(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let world = World::new(app, options.seed, ledger, mischief, record);
        Rack { world, worker, hand, urgent: Mutex::new(urgent), wal, left_out }
    }

    fn rounds(&self, options: &Options) -> Report {
        let world = &self.world;
        let kinds: Vec<_> =
            Kind::ALL.iter().copied().filter(|kind| self.left_out.iter().all(|(out, _)| out != kind)).collect();
        let mut schedule = Schedule::new(options.seed, kinds);
        let mut saboteur = Saboteur::new(world, &self.worker, self.wal.as_ref());
        let mut report = Report { left_out: self.left_out.clone(), ..Report::default() };
        let mut log_end = 0;
        let begun = Instant::now();
        while report.violations.is_empty() {
            let elapsed = begun.elapsed();
            let enough = elapsed >= options.length && world.started.load(Ordering::Relaxed) >= options.processes;
            if enough || elapsed >= options.length * 2 {
                break;
            }
            let last = options.length.saturating_sub(elapsed);
            let length = options.round.min(last.max(options.round / 3));
            let planned = schedule.round(length, options.between_faults);
            self.plan(options, elapsed, length);
            log_end = self.round(&planned, length, &mut saboteur, &mut report, log_end);
            if report.violations.is_empty() {
                self.clear(&mut report.violations);
            }
        }
        report.took = begun.elapsed();
        report.started = world.started.load(Ordering::Relaxed);
        (report.calls, report.repeated_calls, report.claimed_calls) = world.ledger.counts();
        report.repeated_operations = world.repeats();
        report.over_quota = world.over_quota();
        report.faults = saboteur.counts;
        report.engine_lines = log_check::engine_lines(world);
        report
    }

    /// Work, a restart, and the checks. Returns the end of the log that was checked.
    fn round(
        &self,
        planned: &[Planned],
        length: Duration,
        saboteur: &mut Saboteur<'_>,
        report: &mut Report,
        log_end: usize,
    ) -> usize {
        let (world, round) = (&self.world, report.rounds);
        report.rounds += 1;
        let text: Vec<_> = planned.iter().map(|p| format!("{:.1} {}", p.after.as_secs_f64(), p.kind)).collect();
        println!("round {round}, {:.0} s: {}", length.as_secs_f64(), text.join("; "));
        let mut findings = Findings::default();
        let restart = Kind::RESTARTS[round as usize % Kind::RESTARTS.len()];
        if self
            .with_pull_workers(round, || self.work_and_drain(planned, length, saboteur, restart, report, &mut findings))
        {
            // A change that is published wakes the engine too.
            register(&world.app, proof::SHAPES, false);
            proof::wake_ups(world, &self.hand, round, &mut findings);
            register(&world.app, proof::SHAPES, true);
        }
        let page = world.record.turn_the_page();
        let checking = Instant::now();
        if let Some(mut db) = world.superuser(Duration::from_secs(60)) {
            checks::check(world, &mut db, &page, &mut findings);
            for (what, count) in sql_checks::figures(&mut db) {
                *report.figures.entry(what).or_default() += count;
            }
        } else {
            findings.add("server", "it takes no connections");
        }
        let log_end = log_check::check(world, log_end, self.wal.is_some(), &mut findings);
        report.violations = findings.into_violations();
        println!(
            "round {round}: {} processes so far; the last one ended {:.1} s after: {restart}; checks took {:.1} s; {}",
            world.started.load(Ordering::Relaxed),
            report.recoveries.last().map_or(0.0, Duration::as_secs_f64),
            checking.elapsed().as_secs_f64(),
            if report.violations.is_empty() { "sound" } else { "VIOLATIONS" },
        );
        log_end
    }

    /// Runs `work` while pull workers claim calls.
    fn with_pull_workers<T>(&self, round: u32, work: impl FnOnce() -> T) -> T {
        let world = &self.world;
        world.pull_workers_end.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let _end = PullWorkersEnd(world);
            for number in 0..PULL_WORKERS {
                let worker = PullWorker::new(world, &self.hand, &format!("{round}-{number}"));
                scope.spawn(move || worker.run());
            }
            work()
        })
    }

    /// Whether all processes have ended.
    fn work_and_drain(
        &self,
        planned: &[Planned],
        length: Duration,
        saboteur: &mut Saboteur<'_>,
        restart: Kind,
        report: &mut Report,
        findings: &mut Findings,
    ) -> bool {
        let forward = format!("forward-{}", report.rounds - 1);
        beside::begin_to_forward(&self.world, &forward);
        let worked = Instant::now();
        self.work(report.rounds - 1, planned, length, saboteur);
        report.fault_time += worked.elapsed();
        // For a moment the engine is alone: no other session's commit flushes the engine's commits.
        self.world.pull_workers_rest.store(true, Ordering::Relaxed);
        std::thread::sleep(ALONE);
        let restarted = Instant::now();
        self.world.record.note(&format!("LAST FAULT {restart}"));
        if saboteur.fault(restart, None) {
            *saboteur.counts.entry(restart).or_default() += 1;
        }
        self.world.pull_workers_rest.store(false, Ordering::Relaxed);
        let drained = self.drain(findings);
        report.recoveries.push(restarted.elapsed());
        if drained {
            beside::forward_all(&self.world, &forward, findings);
        }
        drained
    }

    /// Sets how fast to start processes, so that enough are started in the end.
    fn plan(&self, options: &Options, elapsed: Duration, length: Duration) {
        let left = options.processes.saturating_sub(self.world.started.load(Ordering::Relaxed));
        // A drain and the checks take about as long as half of a round.
        let rounds = (options.length.saturating_sub(elapsed).as_secs_f64() / (length.as_secs_f64() * 1.5)).max(1.0);
        let share = (left as f64 / rounds).ceil() as u64;
        self.world.pace(share, length);
    }

    fn work(&self, round: u32, planned: &[Planned], length: Duration, saboteur: &mut Saboteur<'_>) {
        let world = &self.world;
        world.stop.store(false, Ordering::Relaxed);
        // What the worker wanted published while the last round came to its end.
        while self.urgent.lock().expect("never poisoned").try_recv().is_ok() {}
        std::thread::scope(|scope| {
            let _end = End(world);
            for number in 0..CLIENTS {
                let client = Client::new(world, format!("{round}-{number}"), round.is_multiple_of(2));
                scope.spawn(move || client.run());
            }
            for _ in 0..2 {
                scope.spawn(|| clients::publish_urgently(world, &self.urgent));
                scope.spawn(|| clients::watch(world));
            }
            for name in ["a", "b"] {
                scope.spawn(move || mending::resolve(world, &format!("{round}-{name}")));
                scope.spawn(move || pauses::go_on(world, &format!("{round}-{name}")));
            }
            scope.spawn(move || mending::move_steps(world, &round.to_string()));
            scope.spawn(move || beside::schedules(world, round));
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
                mending::release_held(&mut db);
                // What forwards changes runs until it is stopped.
                let running = format!("xdb.process_execution WHERE status = 'RUNNING' AND process_type <> '{FORWARD}'");
                let left = db.try_one::<i64>(&format!("SELECT count(*) FROM {running}"));
                if left == Ok(0) {
                    return true;
                }
                if Instant::now() > deadline {
                    findings
                        .add("not ended", format!("{left:?} processes run {DRAINED_WITHIN:?} after the last fault"));
                    let which = format!(
                        "SELECT xdb.describe_process(process_id)::text FROM {running} ORDER BY started_at LIMIT 5"
                    );
                    for process in db.try_all::<String>(&which).unwrap_or_default() {
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

    /// Purges everything, and checks that nothing is left.
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
            "correlated_start",
            "state_execution",
            "task",
            "timer",
            "inbox",
            "queue_message",
            "queue_waiter",
            "message_key",
            "local_attribute",
            "process_lock",
            "rpc_answer",
            "history_event",
            "purged",
        ] {
            let left = db.count(&format!("xdb.{table}"));
            if left > 0 {
                violations.push(format!("not purged: {left} rows of {table}"));
            }
        }
        db.run(&schema::cleared());
        self.world.ledger.turn_the_page();
    }

    /// Ends the run. If something was wrong, keeps the files that a reader may need.
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

/// Registers the types of these shapes, with or without changes.
fn register(app: &App, shapes: &[Shape], changes: bool) {
    let mut superuser = app.superuser();
    for shape in shapes {
        let mut definition = shape.definition().json().clone();
        if !changes {
            definition["changes"].take();
        }
        let definition = jsonb(&definition);
        for (name, worker) in shape.types() {
            let worker = worker.map_or("NULL".to_owned(), literal);
            superuser.run(&format!("SELECT xdb.register_process_type('{name}', {worker}, {definition})"));
        }
    }
}

/// Moves the WAL to a disk of its own.
fn move_wal(app: &App) -> Result<WalDisk, String> {
    app.cluster().stop();
    let moved = WalDisk::for_cluster(app.cluster().directory());
    app.cluster().launch();
    moved
}
