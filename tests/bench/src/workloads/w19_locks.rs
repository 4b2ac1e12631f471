//! W19: locks of processes. Many processes wait for one lock, and single processes start with a lock that is free.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage, patience};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload = Workload { name: "W19", about: "locks of processes", measure };

/// From the request of one holder to the request of the next one.
const HAND_OVER: &str = "hand-over, p99 ms";
const HAND_OVER_P50: &str = "hand-over, p50 ms";
/// From the answer to the start's COMMIT until the worker has the first request.
const FIRST: &str = "start committed to first request, p50 ms";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let (waiting, alone) = (lab.options.scaled(10_000, 100), lab.options.scaled(1000, 50));
    let queue = lab.runs("W19 one lock", || one_lock(&lab.stage(), waiting))?;
    let free = lab.runs("W19 free locks", || free_locks(&lab.stage(), alone))?;
    Ok(vec![
        Row {
            workload: "W19 one lock",
            ran: format!("{waiting} processes of one state that wait for one lock"),
            latency: "none: only the hand-overs are measured",
            runs: queue,
            targets: vec![Target::at_most(HAND_OVER, 5.0)],
        },
        Row {
            workload: "W19 free locks",
            ran: format!("{alone} processes of one state, one at a time, each with a free lock"),
            latency: "none: only the time to the first request is measured",
            runs: free,
            targets: vec![Target::at_most(FIRST, 3.0)],
        },
    ])
}

fn one_lock(stage: &Stage<'_>, processes: u64) -> Result<Run, String> {
    let (requests, arrivals) = channel::<Instant>();
    let worker = stage.worker(move |request, reply| {
        // The other side goes away when a run has failed, which it says itself.
        let _sent = requests.send(request.at);
        chain::end(reply);
    });
    let mut locked = chain::definition(1);
    locked["locks"] = json!(["one"]);
    stage.register("fast", &worker, &[("locked", &locked)]);
    stage.superuser().run("SELECT xdb.register_process_type('manual', NULL, '{\"locks\": [\"one\"]}')");
    let mut db = stage.app();
    db.run("SELECT xdb.start_process('holder', 'manual')");
    stage.start("p-", "locked", 0, processes, "'{}'");
    let meter = Meter::begin(stage, &worker);
    db.run("SELECT xdb.stop_process('holder')");
    let mut last = next(&arrivals)?;
    let mut hand_overs = Vec::new();
    for _ in 1..processes {
        let request = next(&arrivals)?;
        hand_overs.push(request.saturating_duration_since(last).as_secs_f64() * 1000.0);
        last = request;
    }
    stage.wait_until_closed("p-", patience(processes))?;
    drop(db);
    let seconds = meter.elapsed();
    let mut run = meter.end(processes);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    let hand_overs = Distribution::of(hand_overs);
    run.set(HAND_OVER_P50, hand_overs.percentile(50.0));
    run.set(HAND_OVER, hand_overs.percentile(99.0));
    Expected { prefix: "p-", processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

fn free_locks(stage: &Stage<'_>, processes: u64) -> Result<Run, String> {
    let (requests, arrivals) = channel::<Instant>();
    let worker = stage.worker(move |request, reply| {
        let _sent = requests.send(request.at);
        chain::end(reply);
    });
    stage.register("fast", &worker, &[("chain", &chain::definition(1))]);
    let mut db = stage.app();
    let meter = Meter::begin(stage, &worker);
    let mut first = Vec::new();
    for number in 0..processes {
        let options = json!({"locks": [format!("free-{number}")]});
        db.run(&format!("SELECT xdb.start_process('p-{number}', 'chain', options => '{options}')"));
        let committed = Instant::now();
        first.push(next(&arrivals)?.saturating_duration_since(committed).as_secs_f64() * 1000.0);
        db.completes(&format!("p-{number}"));
    }
    drop(db);
    let seconds = meter.elapsed();
    let mut run = meter.end(processes);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    run.set(FIRST, Distribution::of(first).percentile(50.0));
    Expected { prefix: "p-", processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

fn next(arrivals: &Receiver<Instant>) -> Result<Instant, String> {
    arrivals.recv_timeout(Duration::from_secs(30)).map_err(|error| error.to_string())
}
