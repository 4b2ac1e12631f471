//! The benchmark: runs workloads against a throwaway server, and prints one table of results.
//!
//! See `docs/internals/benchmarks.md`. Options come from the environment. Exit codes: 1 if the check of a run fails, 2
//! for wrong options. A missed target is shown and is no failure, because the speed depends on the machine.

mod chain;
mod lab;
mod machine;
mod meter;
mod options;
mod report;
mod stats;
mod verify;
mod worker;
mod workloads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use lab::Lab;
use options::Options;
use report::Row;
use worker::{Worker, ceiling};
use workloads::{WORKLOADS, Workload};

/// Lines in Postgres' log when a database is dropped, or vacuumed by hand, while autovacuum works there.
const EXPLAINED: &[&str] =
    &["terminating autovacuum process due to administrator command", "canceling autovacuum task"];

fn main() -> ExitCode {
    let chosen = Options::from_env().and_then(|options| Ok((choose(&options)?, options)));
    let (workloads, options) = match chosen {
        Ok(chosen) => chosen,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let lab = Lab::start(options);
    let mut about = about(&lab);
    println!("{about:#}");
    let mut violations = Vec::new();
    match measure_ceiling(&lab.options) {
        Ok(ceiling) => {
            println!(
                "The worker alone, with {} connections that ask in a closed loop: {:.0} requests/s, {:.4} CPU s/1000",
                ceiling.connections, ceiling.requests_per_second, ceiling.cpu
            );
            about["worker alone"] =
                json!({"requests/s": ceiling.requests_per_second, "CPU s/1000 requests": ceiling.cpu});
        }
        Err(problem) => violations.push(problem),
    }
    let mut rows = Vec::new();
    for workload in workloads {
        match measure(&lab, workload) {
            Ok(measured) => rows.extend(measured),
            Err(violation) => {
                eprintln!("VIOLATION: {}: {violation}", workload.name);
                violations.push(format!("{}: {violation}", workload.name));
            }
        }
    }
    violations.extend(lab.cluster.unexplained_errors(EXPLAINED).into_iter().map(|line| format!("in the log: {line}")));
    let seconds = begun.elapsed().as_secs_f64();
    about["seconds"] = json!(seconds);
    println!("\n{}\nAll of it took {seconds:.0} s.", report::table(&rows));
    if let Err(error) = write(&lab.options.json, &report::json(about, &rows, &violations)) {
        violations.push(format!("{}: {error}", lab.options.json.display()));
    } else {
        println!("In JSON: {}", lab.options.json.display());
    }
    if violations.is_empty() {
        println!("No violation.");
        ExitCode::SUCCESS
    } else {
        println!("VIOLATIONS:");
        violations.iter().for_each(|violation| println!("  {violation}"));
        ExitCode::FAILURE
    }
}

/// The workloads that the options name, in the order of the table.
fn choose(options: &Options) -> Result<Vec<&'static Workload>, String> {
    let is_known = |name: &&String| WORKLOADS.iter().any(|workload| workload.name.eq_ignore_ascii_case(name));
    if let Some(unknown) = options.workloads.iter().find(|name| !is_known(name)) {
        let names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
        return Err(format!("WORKLOADS: {unknown} is none of {}", names.join(", ")));
    }
    let is_chosen = |workload: &&Workload| {
        options.workloads.is_empty() || options.workloads.contains(&workload.name.to_uppercase())
    };
    Ok(WORKLOADS.iter().filter(is_chosen).collect())
}

/// The rows of a workload. A panic counts as a violation: the harness panics when a statement fails.
fn measure(lab: &Lab, workload: &Workload) -> Result<Vec<Row>, String> {
    println!("{}: {}", workload.name, workload.about);
    let begun = Instant::now();
    let rows = catch_unwind(AssertUnwindSafe(|| (workload.measure)(lab))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned())
    })?;
    println!("{} took {:.0} s", workload.name, begun.elapsed().as_secs_f64());
    Ok(rows)
}

fn measure_ceiling(options: &Options) -> Result<ceiling::Ceiling, String> {
    let worker = Worker::start(options.worker_threads, |_, reply| chain::end(reply));
    let length = options.scaled_time(Duration::from_secs(5), Duration::from_secs(1));
    ceiling::measure(&worker, options.concurrency as usize, length)
}

fn about(lab: &Lab) -> Value {
    let options = &lab.options;
    json!({
        "machine": machine::description(),
        "server": lab.settings(),
        "commit": std::env::var("BENCH_COMMIT").ok().filter(|commit| !commit.is_empty()),
        "load": machine::load(),
        "seed": options.seed,
        "scale": options.scale,
        "runs": options.runs,
        "concurrency of the worker": options.concurrency,
        "threads of the worker": options.worker_threads,
        "processes checked in each run": options.sample,
    })
}

fn write(path: &Path, value: &Value) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, format!("{value:#}\n"))
}
