//! The options of a run, read from the environment.

use std::time::Duration;
use xdb_cluster_tests::options::{clock_seed, number};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// The least length of a run.
    pub length: Duration,
    /// The least number of processes. The run continues until they are started, but at most for twice its length.
    pub processes: u64,
    /// The length of one round of work and faults, without its drain and its checks.
    pub round: Duration,
    /// Mean time between two faults.
    pub between_faults: Duration,
}

impl Options {
    /// Reads `SEED`, `MINUTES`, `PROCESSES`, `ROUND_SECONDS` and `FAULT_SECONDS`.
    pub fn from_env() -> Result<Options, String> {
        let seconds = |name: &str, default: f64| -> Result<Duration, String> {
            Duration::try_from_secs_f64(number(name, default)?).map_err(|error| format!("{name}: {error}"))
        };
        let minutes: f64 = number("MINUTES", 20.0)?;
        Ok(Options {
            seed: number("SEED", clock_seed())?,
            length: Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| format!("MINUTES: {error}"))?,
            processes: number("PROCESSES", 100_000)?,
            round: seconds("ROUND_SECONDS", 45.0)?,
            between_faults: seconds("FAULT_SECONDS", 1.6)?.max(Duration::from_millis(10)),
        })
    }
}
