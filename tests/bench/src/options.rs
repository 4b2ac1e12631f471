//! The options of a benchmark, read from the environment.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The options of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The names of the workloads, in upper case. Empty: all workloads.
    pub workloads: BTreeSet<String>,
    /// Measurements of each row.
    pub runs: usize,
    /// Fraction of the full sizes.
    pub scale: f64,
    pub seed: u64,
    /// How long a workload that needs very many processes may take to make them.
    pub fill: Duration,
    /// The worker's `max_concurrency`.
    pub concurrency: u32,
    pub worker_threads: usize,
    /// How many processes of each run `check_process` checks.
    pub sample: u64,
    /// Lines for `postgresql.conf` besides the benchmark's own.
    pub settings: Vec<(String, String)>,
    /// The load average to wait for before each run.
    pub quiet: Option<f64>,
    /// Where the JSON goes.
    pub json: PathBuf,
}

impl Options {
    /// Reads the variables that `docs/internals/benchmarks.md` lists.
    pub fn from_env() -> Result<Options, String> {
        Options::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Options, String> {
        // An empty variable is none: `make` passes on what was not given.
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        let quick = text("QUICK").is_some_and(|value| value != "0");
        let workloads = text("WORKLOADS").unwrap_or_default();
        let options = Options {
            workloads: words(&workloads).map(str::to_uppercase).collect(),
            runs: number("RUNS", text("RUNS"), if quick { 2 } else { 5 })?,
            scale: number("SCALE", text("SCALE"), if quick { 0.02 } else { 1.0 })?,
            seed: number("SEED", text("SEED"), 1)?,
            fill: minutes("FILL_MINUTES", text("FILL_MINUTES"), if quick { 0.1 } else { 10.0 })?,
            concurrency: number("CONCURRENCY", text("CONCURRENCY"), 96)?,
            worker_threads: number("WORKER_THREADS", text("WORKER_THREADS"), 1)?,
            sample: number("SAMPLE", text("SAMPLE"), if quick { 20 } else { 200 })?,
            settings: settings(&text("SETTINGS").unwrap_or_default())?,
            quiet: text("QUIET").map(|value| number("QUIET", Some(value), 0.0)).transpose()?,
            json: text("JSON").map_or_else(default_json, PathBuf::from),
        };
        if !(options.scale > 0.0 && options.scale <= 1.0) {
            return Err(format!("SCALE={} is not a fraction", options.scale));
        }
        if options.runs == 0 || options.concurrency == 0 || options.worker_threads == 0 {
            return Err("RUNS, CONCURRENCY and WORKER_THREADS are at least 1".into());
        }
        Ok(options)
    }

    /// A size, multiplied by the scale, and at least `least`.
    pub fn scaled(&self, full: u64, least: u64) -> u64 {
        ((full as f64 * self.scale).round() as u64).max(least)
    }

    /// A length of time, multiplied by the scale, and at least `least`.
    pub fn scaled_time(&self, full: Duration, least: Duration) -> Duration {
        full.mul_f64(self.scale).max(least)
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ']).filter(|word| !word.is_empty())
}

fn number<T: FromStr>(name: &str, given: Option<String>, default: T) -> Result<T, String> {
    match given {
        None => Ok(default),
        Some(value) => value.parse().map_err(|_| format!("{name}={value} is not such a number")),
    }
}

fn minutes(name: &str, given: Option<String>, default: f64) -> Result<Duration, String> {
    let minutes = number(name, given, default)?;
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| format!("{name}={minutes}: {error}"))
}

/// Reads pairs `name=value`, separated by semicolons. Values of settings may contain commas and spaces.
fn settings(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split(';')
        .filter(|pair| !pair.trim().is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or_else(|| format!("SETTINGS: {pair} is not name=value"))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

fn default_json() -> PathBuf {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    PathBuf::from(format!("target/bench/{}.json", crate::machine::utc_stamp(since.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Options, String> {
        Options::read(|name| given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_short_form_is_only_another_default() {
        let full = read(&[("QUICK", "")]).expect("defaults are good");
        let quick = read(&[("QUICK", "1"), ("RUNS", "4")]).expect("good options");
        assert!(quick.scale < full.scale && quick.fill < full.fill);
        assert_eq!((full.runs, quick.runs), (5, 4));
    }

    #[test]
    fn names_and_settings_are_lists() {
        let options = read(&[("WORKLOADS", "w1, W3,growth"), ("SETTINGS", "xdb.max_in_flight=512; a.b = x, y")])
            .expect("good options");
        assert_eq!(options.workloads.iter().map(String::as_str).collect::<Vec<_>>(), ["GROWTH", "W1", "W3"]);
        let settings: Vec<(&str, &str)> =
            options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(settings, [("xdb.max_in_flight", "512"), ("a.b", "x, y")]);
    }

    #[test]
    fn an_unknown_option_is_refused() {
        for wrong in [("RUNS", "0"), ("RUNS", "x"), ("SCALE", "0"), ("SCALE", "2"), ("SCALE", "nan"), ("SETTINGS", "a")]
        {
            assert!(read(&[wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_scale_down_to_the_least() {
        let options = read(&[("SCALE", "0.1")]).expect("good options");
        assert_eq!(options.scaled(20_000, 100), 2000);
        assert_eq!(options.scaled(100, 50), 50);
        assert_eq!(options.scaled_time(Duration::from_secs(10), Duration::from_secs(2)), Duration::from_secs(2));
    }
}
