//! The costs of a run: CPU time, WAL, commits, memory, dead rows.

use std::time::{Duration, Instant};

use crate::lab::Stage;
use crate::machine;
use crate::report::{Run, figure};
use crate::worker::Worker;

/// A measurement that has begun.
pub struct Meter<'a> {
    stage: &'a Stage<'a>,
    worker: &'a Worker,
    begun: Reading,
    commits: Commits,
    since: Instant,
}

/// Figures that can be read at any moment.
struct Reading {
    server: f64,
    schedulers: f64,
    worker: f64,
    wal: f64,
}

/// Figures that processes of the server report some time later.
#[derive(Clone, Copy, PartialEq)]
struct Commits {
    commits: f64,
    syncs: f64,
}

/// How long to wait for figures that a process of the server has not reported yet.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

impl<'a> Meter<'a> {
    /// Reads all figures, once the server is at rest.
    pub fn begin(stage: &'a Stage<'a>, worker: &'a Worker) -> Meter<'a> {
        let commits = Commits::settled(stage);
        Meter { stage, worker, begun: Reading::take(stage, worker), commits, since: Instant::now() }
    }

    /// Seconds since the beginning.
    pub fn elapsed(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    /// The costs since the beginning, of this number of steps. Sessions that took part must be closed: open sessions
    /// may not have reported their figures.
    pub fn end(self, steps: u64) -> Run {
        let ended = Reading::take(self.stage, self.worker);
        let commits = Commits::settled(self.stage);
        let (steps, thousands) = (steps as f64, steps as f64 / 1000.0);
        let schedulers = ended.schedulers - self.begun.schedulers;
        let mut run = Run::default();
        run.set(figure::WAL, (ended.wal - self.begun.wal) / steps);
        run.set(figure::COMMITS, (commits.commits - self.commits.commits) / steps);
        run.set("WAL syncs/step", (commits.syncs - self.commits.syncs) / steps);
        run.set(figure::SCHEDULER, schedulers / thousands);
        // Each process's time is cut to ticks: of next to nothing, less than nothing may be left.
        run.set(figure::BACKENDS, (ended.server - self.begun.server - schedulers).max(0.0) / thousands);
        run.set(figure::WORKER, (ended.worker - self.begun.worker) / thousands);
        let dead = "SELECT coalesce(sum(n_dead_tup), 0)::float8 FROM pg_stat_user_tables WHERE schemaname = 'xdb'";
        run.set(figure::DEAD, self.stage.superuser().one(dead));
        let memory = |name: &str| -> f64 {
            self.stage.schedulers().into_iter().filter_map(|pid| machine::memory_of(pid, name)).sum::<f64>() / 1e6
        };
        run.set(figure::PEAK, memory("VmHWM"));
        run.set("scheduler private MB at the end", memory("RssAnon"));
        run
    }
}

impl Reading {
    fn take(stage: &Stage<'_>, worker: &Worker) -> Reading {
        let schedulers = stage.schedulers();
        let postmaster = stage.lab.cluster.postmaster().expect("the server runs");
        Reading {
            server: machine::cpu_of_tree(postmaster),
            schedulers: schedulers.into_iter().filter_map(machine::cpu_of).sum(),
            worker: worker.cpu(),
            wal: wal(stage),
        }
    }
}

/// The end of the server's WAL.
pub fn wal(stage: &Stage<'_>) -> f64 {
    stage.lab.observe(|db| db.one("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8"))
}

impl Commits {
    fn take(stage: &Stage<'_>) -> Commits {
        let figures: Vec<f64> = stage.lab.observe(|db| {
            db.all(&format!(
                "SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = '{}'
                 UNION ALL SELECT wal_sync::float8 FROM pg_stat_wal",
                stage.database
            ))
        });
        Commits { commits: figures[0], syncs: figures[1] }
    }

    /// Reads the figures until they are the same several times in a row. Then all processes at rest have reported.
    fn settled(stage: &Stage<'_>) -> Commits {
        let deadline = Instant::now() + REPORTED_WITHIN;
        let mut last = Commits::take(stage);
        let mut same = 0;
        while same < 3 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            let next = Commits::take(stage);
            same = if next == last { same + 1 } else { 0 };
            last = next;
        }
        last
    }
}
