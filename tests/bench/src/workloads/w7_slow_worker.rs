//! W7: half of the processes have a worker that takes two seconds for every call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Workload, w1_chain};
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::{Reply, Request};

pub const WORKLOAD: Workload =
    Workload { name: "W7", about: "half of the processes on a worker that takes 2 s, the rest on a fast one", measure };

const STATES: u64 = 5;
const SLOW: Duration = Duration::from_secs(2);
const SHARE: &str = "fast half, share of its rate alone";
const ALONE: &str = "fast half alone, steps/s";
const SLOW_CALLS: &str = "calls of the slow worker meanwhile";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let half = lab.options.scaled(10_000, 200);
    let runs = lab.runs("W7", || {
        let alone = chain::plain(&lab.stage(), half, STATES)?.get(figure::STEPS).ok_or("no rate")?;
        let mut run = together(&lab.stage(), half)?;
        run.set(ALONE, alone);
        run.set(SHARE, run.get(figure::STEPS).ok_or("no rate")? / alone);
        Ok(run)
    })?;
    Ok(vec![Row {
        workload: "W7 slow worker",
        ran: format!("{half} processes of {STATES} states on each worker; figures of the fast half"),
        latency: w1_chain::LATENCY,
        runs,
        targets: vec![Target::at_least(SHARE, 0.9)],
    }])
}

fn together(stage: &Stage<'_>, half: u64) -> Result<Run, String> {
    let plain = |number, _: &Request<'_>, reply: &mut Reply| chain::go_on(number, STATES, "", reply);
    let fast = ChainWorker::start(stage, half, STATES, plain);
    let hurries = Arc::new(AtomicBool::new(false));
    let slow = {
        let hurries = Arc::clone(&hurries);
        ChainWorker::start(stage, half, STATES, move |number, _, reply| {
            chain::go_on(number, STATES, "", reply);
            reply.after = if hurries.load(Ordering::Relaxed) { Duration::ZERO } else { SLOW };
        })
    };
    stage.register("fast", &fast.worker, &[("fast", &chain::definition(STATES))]);
    stage.register("slow", &slow.worker, &[("slow", &chain::definition(STATES))]);
    stage.pause();
    // The slow ones first: they are due first.
    stage.start("s-", "slow", 0, half, "'{}'");
    stage.start("f-", "fast", 0, half, "'{}'");
    let meter = Meter::begin(stage, &fast.worker);
    let begun = Instant::now();
    stage.resume();
    let steps = half * STATES;
    wait_for("the fast half is called", patience(steps), || Ok(fast.ended() >= half))?;
    stage.wait_until_closed("f-", patience(steps))?;
    let seconds = begun.elapsed().as_secs_f64();
    let slow_calls = slow.worker.calls();
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, half as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(fast.latencies(stage, "f-")?));
    run.set(SLOW_CALLS, slow_calls as f64);
    // What is left of the slow half has been measured enough.
    hurries.store(true, Ordering::Relaxed);
    slow.wait_for_end(stage, half, patience(steps))?;
    for prefix in ["f-", "s-"] {
        Expected { prefix, processes: half, states: steps, output: chain::OUTPUT }.check(stage)?;
    }
    verify::at_rest(stage, &[&fast.worker, &slow.worker])?;
    Ok(run)
}
