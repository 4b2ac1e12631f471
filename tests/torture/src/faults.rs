//! The faults, their schedule, and how each is made.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use xdb_cluster_tests::cluster::signal;
use xdb_cluster_tests::db::{Db, literal};
use xdb_cluster_tests::worker::Worker;

use crate::mischief::Mood;
use crate::pauses;
use crate::wal::WalDisk;
use crate::world::{World, send};
use xdb_cluster_tests::random::Random;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillScheduler,
    TerminateScheduler,
    KillRpcBackend,
    TerminateRpcBackend,
    KillBackend,
    TerminateBackend,
    KillPostmaster,
    TerminatePostmaster,
    StopImmediate,
    StopFast,
    TerminateAll,
    WorkerCrash,
    WorkerHang,
    WorkerDrip,
    WorkerReset,
    WorkerDouble,
    WorkerLate,
    IdleInTransaction,
    Pause,
    StatementTimeout,
    Quotas,
    WalFull,
    KillRunner,
    TerminateRunner,
    KillPullWorker,
    PauseTypes,
    StandStill,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Kind] = &[
        Kind::KillScheduler,
        Kind::TerminateScheduler,
        Kind::KillRpcBackend,
        Kind::TerminateRpcBackend,
        Kind::KillBackend,
        Kind::TerminateBackend,
        Kind::KillPostmaster,
        Kind::TerminatePostmaster,
        Kind::StopImmediate,
        Kind::StopFast,
        Kind::TerminateAll,
        Kind::WorkerCrash,
        Kind::WorkerHang,
        Kind::WorkerDrip,
        Kind::WorkerReset,
        Kind::WorkerDouble,
        Kind::WorkerLate,
        Kind::IdleInTransaction,
        Kind::Pause,
        Kind::StatementTimeout,
        Kind::Quotas,
        Kind::WalFull,
        Kind::KillRunner,
        Kind::TerminateRunner,
        Kind::KillPullWorker,
        Kind::PauseTypes,
        Kind::StandStill,
    ];

    /// Whether the server loses what it has not flushed.
    fn crashes_the_server(self) -> bool {
        matches!(
            self,
            Kind::KillScheduler
                | Kind::KillRpcBackend
                | Kind::KillBackend
                | Kind::KillPostmaster
                | Kind::StopImmediate
                | Kind::KillRunner
                | Kind::KillPullWorker
                | Kind::WalFull
        )
    }

    /// The kinds that end every round. Interrupted processes have to complete after them.
    pub const RESTARTS: &[Kind] =
        &[Kind::KillScheduler, Kind::KillPostmaster, Kind::StopImmediate, Kind::StopFast, Kind::TerminateScheduler];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::KillScheduler => "kill -9 of the scheduler",
            Kind::TerminateScheduler => "SIGTERM of the scheduler",
            Kind::KillRpcBackend => "kill -9 of a session in mid-RPC",
            Kind::TerminateRpcBackend => "SIGTERM of a session in mid-RPC",
            Kind::KillBackend => "kill -9 of any server process",
            Kind::TerminateBackend => "SIGTERM of any backend",
            Kind::KillPostmaster => "kill -9 of the postmaster",
            Kind::TerminatePostmaster => "SIGTERM of the postmaster",
            Kind::StopImmediate => "immediate stop, and start",
            Kind::StopFast => "fast stop, and start",
            Kind::TerminateAll => "SIGTERM of all backends",
            Kind::WorkerCrash => "worker stopped",
            Kind::WorkerHang => "worker hangs",
            Kind::WorkerDrip => "worker answers in drops",
            Kind::WorkerReset => "worker hangs up in mid-answer",
            Kind::WorkerDouble => "worker answers twice",
            Kind::WorkerLate => "worker answers late",
            Kind::IdleInTransaction => "session idle in transaction",
            Kind::Pause => "pause and resume",
            Kind::StatementTimeout => "statement timeout everywhere",
            Kind::Quotas => "quotas that are too small",
            Kind::WalFull => "disk full for the WAL",
            Kind::KillRunner => "kill -9 of a runner in a function",
            Kind::TerminateRunner => "SIGTERM of a runner in a function",
            Kind::KillPullWorker => "kill -9 of a session with claimed calls",
            Kind::PauseTypes => "pauses of process types",
            Kind::StandStill => "standstill of a server process",
        })
    }
}

/// A fault at its time.
pub struct Planned {
    pub after: Duration,
    pub kind: Kind,
}

/// Draws kinds from a bag that holds each of them once. An empty bag is filled again, so no kind is missing for long.
pub struct Schedule {
    random: Random,
    kinds: Vec<Kind>,
    bag: Vec<Kind>,
}

impl Schedule {
    pub fn new(seed: u64, kinds: Vec<Kind>) -> Schedule {
        Schedule { random: Random::new(seed, "schedule"), kinds, bag: Vec::new() }
    }

    /// The faults of a round.
    pub fn round(&mut self, length: Duration, mean: Duration) -> Vec<Planned> {
        let mean = mean.as_millis() as u64;
        let mut planned = Vec::new();
        let mut after = Duration::ZERO;
        loop {
            after += Duration::from_millis(self.random.between(mean * 3 / 5, mean * 7 / 5));
            if after >= length {
                return planned;
            }
            if self.bag.is_empty() {
                self.bag = self.kinds.clone();
                self.random.shuffle(&mut self.bag);
            }
            if let Some(kind) = self.bag.pop() {
                planned.push(Planned { after, kind });
            }
        }
    }
}

/// How long the server may take to accept connections again.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// How long a fast shutdown may take on a busy machine.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// The engine counts what roles have stored every ten seconds. A limit that lasts for a shorter time may have no
/// effect.
const COUNTED_WITHIN: Duration = Duration::from_secs(11);

/// Makes faults, and counts them.
pub struct Saboteur<'a> {
    world: &'a World,
    worker: &'a Worker,
    wal: Option<&'a WalDisk>,
    random: Random,
    pub counts: BTreeMap<Kind, u64>,
    /// Faults that found nothing to break.
    pub idle: u64,
}

impl<'a> Saboteur<'a> {
    pub fn new(world: &'a World, worker: &'a Worker, wal: Option<&'a WalDisk>) -> Saboteur<'a> {
        let random = Random::new(world.seed, "saboteur");
        Saboteur { world, worker, wal, random, counts: BTreeMap::new(), idle: 0 }
    }

    /// Makes the faults of a round at their times. Lasting faults run in threads of `scope`.
    pub fn run<'scope>(&mut self, planned: &[Planned], length: Duration, scope: &'scope Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        let begun = Instant::now();
        for Planned { after, kind } in planned {
            if begun.elapsed() > length {
                break;
            }
            thread::sleep(after.saturating_sub(begun.elapsed()));
            self.world.record.note(&format!("FAULT {kind}"));
            if self.fault(*kind, Some(scope)) {
                *self.counts.entry(*kind).or_default() += 1;
            } else {
                self.world.record.note(&format!("FAULT {kind}: nothing to break"));
                self.idle += 1;
            }
        }
        thread::sleep(length.saturating_sub(begun.elapsed()));
    }

    /// Makes one fault now. False: it found nothing to break.
    pub fn fault<'scope>(&mut self, kind: Kind, scope: Option<&'scope Scope<'scope, '_>>) -> bool
    where
        'a: 'scope,
    {
        let world = self.world;
        if kind.crashes_the_server() {
            world.ledger.crashing(|| self.make(kind, scope))
        } else {
            self.make(kind, scope)
        }
    }

    fn make<'scope>(&mut self, kind: Kind, scope: Option<&'scope Scope<'scope, '_>>) -> bool
    where
        'a: 'scope,
    {
        let length = Duration::from_millis(self.random.between(500, 3000));
        match kind {
            Kind::KillScheduler => self.scheduler().is_some_and(|pid| self.kill(pid)),
            Kind::TerminateScheduler => self.scheduler().is_some_and(terminate),
            Kind::KillRpcBackend => self.in_mid_rpc(|this, pid| this.kill(pid)),
            Kind::TerminateRpcBackend => self.in_mid_rpc(|_, pid| terminate(pid)),
            Kind::KillBackend => self.anyone("true").is_some_and(|pid| self.kill(pid)),
            Kind::TerminateBackend => self
                .anyone("backend_type IN ('client backend', 'xdb launcher', 'autovacuum worker')")
                .is_some_and(terminate),
            Kind::KillPostmaster => {
                self.world.cluster().kill();
                self.launch()
            }
            Kind::TerminatePostmaster => self.smart_stop(),
            Kind::StopImmediate => {
                self.world.cluster().crash();
                self.launch()
            }
            Kind::StopFast => self.stop_fast(),
            Kind::TerminateAll => self.terminate_all(),
            Kind::WorkerCrash => {
                self.worker.go_away();
                thread::sleep(length / 2);
                self.worker.come_back();
                true
            }
            Kind::WorkerHang => self.mood(Mood::Hang, length),
            Kind::WorkerDrip => self.mood(Mood::Drip, length),
            Kind::WorkerReset => self.mood(Mood::Reset, length),
            Kind::WorkerDouble => self.mood(Mood::Double, length),
            Kind::WorkerLate => self.mood(Mood::Late, length),
            Kind::Quotas => self.meanwhile(scope, move |world, _| small_quotas(world, length + COUNTED_WITHIN)),
            Kind::IdleInTransaction => {
                self.meanwhile(scope, move |world, random| idle_in_transaction(world, random, length))
            }
            Kind::PauseTypes => self.meanwhile(scope, move |world, random| pauses::of_types(world, random, length)),
            Kind::KillRunner => self.runner_in_function().is_some_and(|pid| self.kill(pid)),
            Kind::TerminateRunner => self.runner_in_function().is_some_and(terminate),
            Kind::KillPullWorker => self.with_calls().is_some_and(|pid| self.kill(pid)),
            // Engine processes most of the time: of all the server's processes they are few.
            Kind::StandStill => {
                let which = if self.random.below(4) > 0 {
                    "backend_type LIKE 'xdb %'"
                } else {
                    "backend_type = 'client backend'"
                };
                self.anyone(which).is_some_and(|pid| stand_still(pid, length / 2))
            }
            Kind::Pause => self.pause(length / 2),
            Kind::StatementTimeout => self.statement_timeout(length),
            Kind::WalFull => self.wal.is_some_and(|disk| {
                let full = disk.fill();
                thread::sleep(length / 2);
                disk.clear();
                // Without room to end its recovery the server has given up.
                full && (self.back(Duration::from_secs(3)) || self.launch())
            }),
        }
    }

    /// Starts a fault that lasts while other faults happen. It makes its own random choices.
    fn meanwhile<'scope>(
        &mut self,
        scope: Option<&'scope Scope<'scope, '_>>,
        work: impl FnOnce(&'a World, Random) + Send + 'scope,
    ) -> bool
    where
        'a: 'scope,
    {
        let (world, random) = (self.world, Random::new(self.random.below(u64::MAX), "meanwhile"));
        match scope {
            Some(scope) => drop(scope.spawn(move || work(world, random))),
            None => work(world, random),
        }
        true
    }

    fn mood(&self, mood: Mood, length: Duration) -> bool {
        self.world.mischief.begin(mood, length);
        true
    }

    fn superuser(&self) -> Option<Db> {
        self.world.cluster().try_connect("postgres", "postgres", BACK_WITHIN).ok()
    }

    /// Whether the server accepts connections in this time.
    fn back(&self, within: Duration) -> bool {
        self.world.cluster().try_connect("postgres", "postgres", within).is_ok()
    }

    /// Starts the server again. Until children of a killed postmaster have noticed its death, they can prevent the
    /// start.
    fn launch(&self) -> bool {
        // What runs still is stopped, or it would be forgotten.
        self.world.cluster().crash();
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            match self.world.cluster().try_launch() {
                Ok(()) => return true,
                Err(problem) if Instant::now() > deadline => {
                    self.world.record.complain(format!("the server does not start again: {problem}"));
                    return false;
                }
                Err(problem) => self.world.record.note(&format!("not started yet: {problem}")),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn kill(&self, pid: i32) -> bool {
        if !self.world.kill(pid) {
            return false;
        }
        // Until the postmaster has noticed, it takes connections that it is about to cut.
        let deadline = Instant::now() + BACK_WITHIN;
        // Signal 0 only asks whether the process exists.
        while send(pid, 0) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.back(BACK_WITHIN)
    }

    fn scheduler(&self) -> Option<i32> {
        self.one_pid("backend_type LIKE 'xdb scheduler%'", BACK_WITHIN)
    }

    fn anyone(&mut self, which: &str) -> Option<i32> {
        let pids = self.pids(which)?;
        (!pids.is_empty()).then(|| *self.random.pick(&pids))
    }

    fn one_pid(&self, which: &str, within: Duration) -> Option<i32> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(pid) = self.pids(which).and_then(|pids| pids.first().copied()) {
                return Some(pid);
            }
            if Instant::now() > deadline {
                self.world.record.complain(format!("no process of the server with {which} for {within:?}"));
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The pids of these processes, in a fixed order. So the same random number picks the same kind of process again.
    fn pids(&self, which: &str) -> Option<Vec<i32>> {
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE {which} AND pid <> pg_backend_pid() ORDER BY backend_type, pid"
        );
        self.superuser()?.try_all(&sql).ok()
    }

    /// Makes the worker hold RPCs until a session is in one. Then does something to that session.
    fn in_mid_rpc(&mut self, then: impl FnOnce(&mut Self, i32) -> bool) -> bool {
        let held = self.world.mischief.hold_rpcs(Duration::from_secs(2));
        let pids = self.world.in_rpc.all();
        let done = held && !pids.is_empty() && {
            let pid = *self.random.pick(&pids);
            then(self, pid)
        };
        self.world.mischief.release_rpcs();
        done
    }

    /// A runner whose function has done its deed and has not answered yet. After a while, any runner.
    fn runner_in_function(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            if let Some(pid) = self.anyone("backend_type LIKE 'xdb runner%' AND wait_event = 'PgSleep'") {
                return Some(pid);
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.anyone("backend_type LIKE 'xdb runner%'")
    }

    /// A session between the claim of a call and its answer.
    fn with_calls(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            let pids: Vec<_> = self.world.with_calls.all().iter().map(i32::to_string).collect();
            let which = format!("pid = ANY ('{{{}}}')", pids.join(","));
            if !pids.is_empty()
                && let Some(pid) = self.anyone(&which)
            {
                return Some(pid);
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// A smart shutdown waits for the clients, which continue. So a fast one follows.
    fn smart_stop(&self) -> bool {
        self.back(BACK_WITHIN);
        let Some(pid) = self.world.cluster().postmaster() else { return false };
        signal(pid, libc::SIGTERM);
        thread::sleep(Duration::from_millis(300));
        self.stop()
    }

    /// Makes a fast shutdown, which waits for no client. Not in the middle of crash recovery: PostgreSQL 15 does not
    /// shut down fast then, because its checkpointer stays.
    fn stop_fast(&self) -> bool {
        self.back(BACK_WITHIN);
        self.stop()
    }

    fn stop(&self) -> bool {
        if !self.world.cluster().try_stop(STOPPED_WITHIN) {
            let left = self.children();
            self.world.record.complain(format!("the server has not stopped {STOPPED_WITHIN:?} after SIGINT: {left}"));
        }
        self.launch()
    }

    /// The processes that the postmaster waits for, for a reader.
    fn children(&self) -> String {
        let Some(pid) = self.world.cluster().postmaster() else { return "no postmaster".to_owned() };
        let listed = Command::new("ps").args(["-o", "pid,stat,wchan:20,args", "--ppid", &pid.to_string()]).output();
        listed.map_or_else(|error| error.to_string(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn terminate_all(&self) -> bool {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
            WHERE pid <> pg_backend_pid() AND (backend_type IN ('client backend', 'autovacuum worker') \
                OR backend_type LIKE 'xdb %')";
        self.superuser().is_some_and(|mut db| db.try_one::<i64>(sql).is_ok_and(|count| count > 0))
    }

    fn pause(&self, length: Duration) -> bool {
        let run = |sql: &str| {
            let db = self.world.superuser(BACK_WITHIN);
            db.is_some_and(|mut db| db.try_run(sql).is_ok())
        };
        let paused = run("SELECT xdb.pause_engine()");
        thread::sleep(length);
        if !run("SELECT xdb.resume_engine()") {
            self.world.record.complain("the engine could not be resumed".to_owned());
        }
        paused
    }

    /// A statement timeout for all clients, and for the engine, which must ignore it wherever it is set.
    fn statement_timeout(&mut self, length: Duration) -> bool {
        let milliseconds = self.random.between(5, 60);
        let done = self.set_everywhere("statement_timeout", Some(&format!("{milliseconds}ms")));
        self.world.mischief.set_statement_timeout(milliseconds);
        // A new connection takes up the settings of databases and roles.
        let restarted = self.scheduler().is_some_and(terminate);
        thread::sleep(length);
        self.world.mischief.set_statement_timeout(0);
        if !self.set_everywhere("statement_timeout", None) {
            self.world.record.complain("statement_timeout could not be taken back".to_owned());
        }
        done && restarted
    }

    /// Sets a parameter for the server, the database, and the roles that the engine runs as and acts for, or resets it.
    /// The rack's own sessions have values of their own.
    fn set_everywhere(&self, name: &str, value: Option<&str>) -> bool {
        let database = self.world.app.database();
        let places = [
            "SYSTEM".to_owned(),
            format!("DATABASE {database}"),
            "ROLE postgres".to_owned(),
            "ROLE app".to_owned(),
            format!("ROLE postgres IN DATABASE {database}"),
        ];
        let Some(mut db) = self.superuser() else { return false };
        let mut all = true;
        for place in places {
            let sql = match value {
                Some(value) => format!("ALTER {place} SET {name} = '{value}'"),
                None => format!("ALTER {place} RESET {name}"),
            };
            all &= db.try_run(&sql).is_ok();
        }
        all && db.try_run("SELECT pg_reload_conf()").is_ok()
    }
}

fn terminate(pid: i32) -> bool {
    send(pid, libc::SIGTERM)
}

/// As on a machine that was suspended: the clock goes on, and the process stands still.
fn stand_still(pid: i32, length: Duration) -> bool {
    send(pid, libc::SIGSTOP) && {
        thread::sleep(length);
        send(pid, libc::SIGCONT)
    }
}

/// Sets limits that are always exceeded, until the time or the round is over. Clients and the engine retry the refused
/// work.
fn small_quotas(world: &World, length: Duration) {
    let run = |sql: &[&str]| {
        let db = world.superuser(BACK_WITHIN);
        db.is_some_and(|mut db| sql.iter().all(|sql| db.try_run(sql).is_ok()))
    };
    let reload = "SELECT pg_reload_conf()";
    let until = Instant::now() + length;
    let set = run(&[
        "ALTER ROLE app SET xdb.max_running_processes = 10",
        "ALTER SYSTEM SET xdb.max_queue_messages = 1",
        "ALTER SYSTEM SET xdb.test_max_threads = 2",
        reload,
    ]);
    world.record.note(&format!("small quotas are set: {set}"));
    while Instant::now() < until && !world.stopping() {
        thread::sleep(Duration::from_millis(50));
    }
    // Other faults hit this session too.
    let deadline = Instant::now() + BACK_WITHIN;
    let usual = [
        "ALTER ROLE app RESET xdb.max_running_processes",
        "ALTER SYSTEM RESET xdb.max_queue_messages",
        "ALTER SYSTEM RESET xdb.test_max_threads",
        reload,
    ];
    while !run(&usual) {
        if Instant::now() > deadline {
            return world.record.complain("small quotas could not be taken back".to_owned());
        }
    }
}

/// Publishes to some processes, writes attributes of others, and locks rows of a third group. Then the session is idle
/// for a while. No process reads its messages.
fn idle_in_transaction(world: &World, mut random: Random, length: Duration) {
    let Some(mut db) = world.superuser(Duration::from_secs(2)) else { return };
    let running =
        "SELECT process_id FROM xdb.process_execution WHERE status = 'RUNNING' ORDER BY execution_id DESC LIMIT 12";
    let Ok(ids) = db.try_all::<String>(running) else { return };
    let mut held = 0;
    if db.try_run("BEGIN; SET LOCAL lock_timeout = '500ms'").is_err() {
        return;
    }
    for (number, id) in ids.iter().enumerate() {
        let id = literal(id);
        let sql = match number % 3 {
            0 => format!("SELECT xdb.publish({id}, 'noise', '1')"),
            1 => format!("SELECT xdb.set_local_attributes({id}, '{{\"held\": true}}')"),
            _ => format!("SELECT FROM work WHERE id = {id} FOR UPDATE"),
        };
        // The process may have ended meanwhile.
        let done = db.try_run(&format!("SAVEPOINT one; {sql}"));
        if done.is_ok() {
            held += 1;
        } else if db.try_run("ROLLBACK TO SAVEPOINT one").is_err() {
            return;
        }
    }
    world.record.note(&format!("idle in transaction with {held} rows for {length:?}"));
    thread::sleep(length);
    let end = if random.permille(500) { "COMMIT" } else { "ROLLBACK" };
    let outcome = db.try_run(end);
    world.record.note(&format!("idle in transaction: {end} {:?}", outcome.err().map(|error| error.code)));
}
