//! The rack: many processes of every shape under a schedule of faults. Afterwards everything is checked.
//!
//! See `docs/internals/torture.md`. Options come from the environment. Exit codes: 1 for a violation, 2 for wrong
//! options.

mod beside;
mod checks;
mod clients;
mod faults;
mod hand;
mod ledger;
mod log_check;
mod mending;
mod mischief;
mod options;
mod pauses;
mod proof;
mod pull_workers;
mod rack;
mod record;
mod schema;
mod session;
mod shapes;
mod sql_checks;
mod wal;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use options::Options;
use rack::Report;

fn main() -> ExitCode {
    let options = match Options::from_env() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    println!("SEED={} ({:?})", options.seed, options);
    let report = rack::run(&options);
    print(&options, &report);
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(options: &Options, report: &Report) {
    let mut recoveries = report.recoveries.clone();
    recoveries.sort_unstable();
    let worst = recoveries.last().copied().unwrap_or_default();
    let median = recoveries.get(recoveries.len() / 2).copied().unwrap_or_default();
    let faults: u64 = report.faults.values().sum();
    let minutes = report.fault_time.as_secs_f64() / 60.0;
    println!("\n=== Summary: SEED={}, {} rounds in {:.0} s", options.seed, report.rounds, report.took.as_secs_f64());
    println!("{:>8}  processes started, and known to be", report.started);
    println!("{:>8}  calls of the worker, {} of them repeated", report.calls, report.repeated_calls);
    println!("{:>8}  calls that were claimed", report.claimed_calls);
    for (what, count) in &report.figures {
        println!("{count:>8}  {what}");
    }
    println!("{:>8}  operations of clients that were repeated", report.repeated_operations);
    println!("{:>8}  times a quota refused one", report.over_quota);
    println!("{faults:>8}  faults, {:.1} a minute:", faults as f64 / minutes.max(0.001));
    for (kind, count) in &report.faults {
        println!("{count:>8}      {kind}");
    }
    for (kind, why) in &report.left_out {
        println!("       -      {kind}: not possible here, {why}");
    }
    println!("From a restart to the end of the last process: median {}, worst {}", seconds(median), seconds(worst));
    for (words, count) in &report.engine_lines {
        println!("{count:>8}  times in the log: {words}");
    }
    if report.violations.is_empty() {
        println!("No violation.");
    } else {
        println!("VIOLATIONS, to be had again perhaps with SEED={}:", options.seed);
        report.violations.iter().for_each(|violation| println!("  {violation}"));
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
