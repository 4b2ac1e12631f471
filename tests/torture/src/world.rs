//! The state that all parts of the rack share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xdb_cluster_tests::app::App;
use xdb_cluster_tests::cluster::Cluster;
use xdb_cluster_tests::db::Db;

use crate::ledger::Ledger;
use crate::mischief::Mischief;
use crate::record::Record;

/// The server, the worker's ledger, the clients' log.
pub struct World {
    pub app: App,
    pub seed: u64,
    pub ledger: Arc<Ledger>,
    pub mischief: Arc<Mischief>,
    pub record: Record,
    /// Clients begin nothing new.
    pub stop: AtomicBool,
    /// Processes that were started in the run so far.
    pub started: AtomicU64,
    /// Clients fall behind their plan, and start many processes at once.
    pub behind: AtomicBool,
    /// Clients are ahead of their plan, and wait.
    pub ahead: AtomicBool,
    pace: Mutex<Pace>,
    repeats: AtomicU64,
    over_quota: AtomicU64,
    /// Backends of clients that are in an RPC.
    pub in_rpc: Pids,
    /// Backends of workers between the claim of a call and its answer.
    pub with_calls: Pids,
    /// Pull workers have stopped.
    pub pull_workers_end: AtomicBool,
    /// Pull workers do nothing for now.
    pub pull_workers_rest: AtomicBool,
    /// Processes that were killed with SIGKILL by the rack.
    killed: Mutex<HashSet<i32>>,
    /// Ids of processes that were started recently, for the threads that watch.
    recent: Mutex<Vec<String>>,
}

/// The number of processes to start, and the time for that.
#[derive(Default)]
struct Pace {
    from: u64,
    share: u64,
    length: Duration,
}

const RECENT_KEPT: usize = 200;

/// Processes of the server that are in the middle of some work.
#[derive(Default)]
pub struct Pids(Mutex<HashSet<i32>>);

/// Keeps a process in the list until it is dropped.
pub struct Known<'p>(&'p Pids, i32);

impl Pids {
    pub fn know(&self, pid: i32) -> Known<'_> {
        self.0.lock().expect("never poisoned").insert(pid);
        Known(self, pid)
    }

    pub fn all(&self) -> Vec<i32> {
        self.0.lock().expect("never poisoned").iter().copied().collect()
    }
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.0.0.lock().expect("never poisoned").remove(&self.1);
    }
}

impl World {
    pub fn new(app: App, seed: u64, ledger: Arc<Ledger>, mischief: Arc<Mischief>, record: Record) -> World {
        World {
            app,
            seed,
            ledger,
            mischief,
            record,
            stop: AtomicBool::new(false),
            started: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            ahead: AtomicBool::new(false),
            pace: Mutex::default(),
            repeats: AtomicU64::new(0),
            over_quota: AtomicU64::new(0),
            in_rpc: Pids::default(),
            with_calls: Pids::default(),
            pull_workers_end: AtomicBool::new(false),
            pull_workers_rest: AtomicBool::new(false),
            killed: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    pub fn cluster(&self) -> &Cluster {
        self.app.cluster()
    }

    pub fn database(&self) -> &str {
        self.app.database()
    }

    /// A session of the superuser in the database, if one can be made in this time.
    pub fn superuser(&self, within: Duration) -> Option<Db> {
        self.cluster().try_connect(self.database(), "postgres", within).ok()
    }

    /// Sets how many processes clients should start in a round of this length.
    pub fn pace(&self, share: u64, length: Duration) {
        let from = self.started.load(Ordering::Relaxed);
        *self.pace.lock().expect("never poisoned") = Pace { from, share, length };
    }

    /// Makes clients hurry or wait, until the round is over.
    pub fn keep_pace(&self, most_running: u64) {
        let begun = Instant::now();
        let mut db = None;
        while !self.stopping() {
            if db.is_none() {
                db = self.superuser(Duration::from_secs(2));
            }
            let running = "SELECT count(*) FROM xdb.process_execution WHERE status = 'RUNNING'";
            // A lost session is made again. Until then the last figure holds.
            let running = db.take().and_then(|mut held| held.try_one::<i64>(running).ok().map(|n| (held, n)));
            let (held, count) = running.map_or((None, 0), |(held, n)| (Some(held), n as u64));
            db = held;
            let due = {
                let pace = self.pace.lock().expect("never poisoned");
                let part = (begun.elapsed().as_secs_f64() / pace.length.as_secs_f64()).min(1.0);
                pace.from + (pace.share as f64 * part) as u64
            };
            let started = self.started.load(Ordering::Relaxed);
            self.ahead.store(count > most_running || started > due + 20, Ordering::Relaxed);
            self.behind.store(started + 50 < due, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn count_repeat(&self) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations that were repeated because their result was unknown or could change.
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    pub fn count_over_quota(&self) {
        self.over_quota.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations that a quota refused. Repeats count again.
    pub fn over_quota(&self) -> u64 {
        self.over_quota.load(Ordering::Relaxed)
    }

    /// Kills a process of the server, if it still exists.
    pub fn kill(&self, pid: i32) -> bool {
        self.killed.lock().expect("never poisoned").insert(pid);
        send(pid, libc::SIGKILL)
    }

    pub fn was_killed(&self, pid: i32) -> bool {
        self.killed.lock().expect("never poisoned").contains(&pid)
    }

    /// Offers this process to threads that watch.
    pub fn offer(&self, process_id: &str) {
        let mut recent = self.recent.lock().expect("never poisoned");
        if recent.len() >= RECENT_KEPT {
            recent.clear();
        }
        recent.push(process_id.to_owned());
    }

    /// The process that was started last and that no thread watches.
    pub fn to_watch(&self) -> Option<String> {
        self.recent.lock().expect("never poisoned").pop()
    }

    pub fn forget_recent(&self) {
        self.recent.lock().expect("never poisoned").clear();
    }
}

/// Sends a signal to a process of the server. False: the process no longer exists.
pub fn send(pid: i32, signal: i32) -> bool {
    // SAFETY: kill has no preconditions; the pid was a process of the rack's own server a moment ago.
    unsafe { libc::kill(pid, signal) == 0 }
}
