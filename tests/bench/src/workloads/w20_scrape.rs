//! W20: scrapes of the metrics of many types and workers, while W1 runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use xdb_cluster_tests::db::Db;

use super::Workload;
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage};
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::worker::{Reply, Request};

pub const WORKLOAD: Workload = Workload { name: "W20", about: "scrapes of metrics while W1 runs", measure };

/// All types that have samples of their own, and a worker for some of them each.
const TYPES: u64 = 200;
const WORKERS: u64 = 64;
const STATES: u64 = 5;

/// Between two scrapes. Prometheus usually waits for some seconds.
const PAUSE: Duration = Duration::from_millis(100);

const SCRAPES: &str = "scrapes";
const SIZE: &str = "kB of a scrape";
const LONGEST: &str = "longest scrape, ms";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(20_000, 200);
    let runs = lab.runs("W20", || scraped(&lab.stage(), processes))?;
    Ok(vec![Row {
        workload: "W20 scrapes",
        ran: format!("{processes} processes of {STATES} states, beside {TYPES} types and {WORKERS} workers"),
        latency: "a scrape, as the client sees it",
        runs,
        targets: vec![Target::at_most(figure::P99, 20.0)],
    }])
}

fn scraped(stage: &Stage<'_>, processes: u64) -> Result<Run, String> {
    let answer = |number, _: &Request<'_>, reply: &mut Reply| chain::go_on(number, STATES, "", reply);
    let chain = ChainWorker::start(stage, processes, STATES, answer);
    let definition = chain::definition(STATES);
    // One program has all the names. Each worker and type has been used, so all their samples are there.
    for worker in 0..WORKERS {
        let types: Vec<_> = (0..TYPES).filter(|number| number % WORKERS == worker).map(type_name).collect();
        let types: Vec<_> = types.iter().map(|name| (name.as_str(), &definition)).collect();
        stage.register(&format!("worker-{worker}"), &chain.worker, &types);
    }
    for number in 0..TYPES {
        stage.start("used-", &type_name(number), number, number + 1, "'{}'");
    }
    stage.wait_until_closed("used-", Duration::from_secs(60))?;

    let over = AtomicBool::new(false);
    let (run, scrapes) = std::thread::scope(|scope| {
        let scrapes = scope.spawn(|| scrape_until(&mut stage.superuser(), &over));
        let run = chain::drain(stage, &chain, &type_name(0), "p-", processes, STATES, "'{}'");
        over.store(true, Ordering::Relaxed);
        (run, scrapes.join().map_err(|_| "the scrapes panicked".to_owned()))
    });
    let (mut run, (taken, size)) = (run?, scrapes??);
    let taken = Distribution::of(taken);
    if taken.count() == 0 {
        return Err("no scrape was made while the engine worked".to_owned());
    }
    chain::set_percentiles(&mut run, &taken);
    run.set(SCRAPES, taken.count() as f64);
    run.set(SIZE, size as f64 / 1024.0);
    run.set(LONGEST, taken.percentile(100.0));
    Ok(run)
}

fn type_name(number: u64) -> String {
    format!("type-{number}")
}

/// Milliseconds of each scrape while the engine has work, and the size of the last one.
fn scrape_until(db: &mut Db, over: &AtomicBool) -> Result<(Vec<f64>, usize), String> {
    let (mut taken, mut size) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let row = db.client().query_one("SELECT xdb.openmetrics()", &[]).map_err(|error| error.to_string())?;
        let milliseconds = asked.elapsed().as_secs_f64() * 1000.0;
        let text: &str = row.get(0);
        let works = |line: &str| text.lines().any(|other| other == line);
        if works("xdb_engine_state{state=\"running\"} 1") && !works("xdb_calls_due 0") {
            taken.push(milliseconds);
            size = text.len();
        }
        std::thread::sleep(PAUSE);
    }
    Ok((taken, size))
}
