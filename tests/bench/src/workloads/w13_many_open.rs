//! W13: ten thousand calls are under way to a worker that sleeps, while another worker is fast.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Workload, w1_chain};
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage, patience, wait_for};
use crate::machine;
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::{Reply, Request};

pub const WORKLOAD: Workload = Workload {
    name: "W13",
    about: "10,000 calls under way to a worker that sleeps 20 s, and processes on a fast one",
    measure,
};

const STATES: u64 = 5;
/// States of each sleeping process. They sleep for the whole measurement, even on a slow machine.
const NAPS: u64 = 6;
const SLEEP: Duration = Duration::from_secs(20);
const SHARE: &str = "fast worker, share of its rate alone";
const ALONE: &str = "fast worker alone, steps/s";
const OPEN: &str = "calls under way to the sleeping worker";
const THREADS: &str = "threads of the scheduler";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(10_000, 200);
    // A third of the descriptors is for connections, and half of these for one of two workers: see "Many calls at a
    // time" in docs/settings.md. If the system permits fewer, fewer processes sleep: one owner has eight ninths of the
    // places.
    let most = (machine::raise_open_files() / 3).saturating_sub(100) / 2;
    let sleepers = lab.options.scaled(10_000, 500).min(most * 8 / 9);
    lab.observe(|db| {
        db.run(&format!("ALTER SYSTEM SET xdb.max_in_flight = {}", 2 * places(sleepers)));
        db.run("SELECT pg_reload_conf()");
    });
    let runs = lab.runs("W13", || {
        let alone = chain::plain(&lab.stage(), processes, STATES)?.get(figure::STEPS).ok_or("no rate")?;
        let mut run = together(&lab.stage(), processes, sleepers)?;
        run.set(ALONE, alone);
        run.set(SHARE, run.get(figure::STEPS).ok_or("no rate")? / alone);
        Ok(run)
    });
    lab.observe(|db| {
        db.run("ALTER SYSTEM RESET xdb.max_in_flight");
        db.run("SELECT pg_reload_conf()");
    });
    Ok(vec![Row {
        workload: "W13 many calls under way",
        ran: format!("{sleepers} calls that sleep, {processes} processes of {STATES} states; figures of the latter"),
        latency: w1_chain::LATENCY,
        runs: runs?,
        targets: vec![Target::at_least(SHARE, 0.9), Target::at_most(figure::PEAK, 300.0)],
    }])
}

/// The places that the worker needs so that one owner gets a place for each sleeper.
fn places(sleepers: u64) -> u64 {
    sleepers + sleepers.div_ceil(8)
}

fn together(stage: &Stage<'_>, processes: u64, sleepers: u64) -> Result<Run, String> {
    let fast = ChainWorker::start(stage, processes, STATES, |number, _: &Request<'_>, reply: &mut Reply| {
        chain::go_on(number, STATES, "", reply);
    });
    let hurries = Arc::new(AtomicBool::new(false));
    let slow = {
        let hurries = Arc::clone(&hurries);
        ChainWorker::start(stage, sleepers, NAPS, move |number, _, reply| {
            chain::go_on(number, NAPS, "", reply);
            reply.after = if hurries.load(Ordering::Relaxed) { Duration::ZERO } else { SLEEP };
        })
    };
    stage.register("fast", &fast.worker, &[("fast", &chain::definition(STATES))]);
    let mut patient = chain::definition(NAPS);
    for (_, state) in patient["states"].as_object_mut().into_iter().flatten() {
        state["executeApiTimeoutSeconds"] = json!(120);
    }
    stage.register("slow", &slow.worker, &[("slow", &patient)]);
    let url = xdb_cluster_tests::db::literal(&slow.worker.url());
    let most = places(sleepers);
    stage.superuser().run(&format!("SELECT xdb.register_worker('slow', {url}, max_concurrency => {most})"));
    stage.start("s-", "slow", 0, sleepers, "'{}'");
    wait_for("all sleepers are called", patience(sleepers), || Ok(slow.worker.calls() >= sleepers))?;
    stage.pause();
    stage.start("f-", "fast", 0, processes, "'{}'");
    let meter = Meter::begin(stage, &fast.worker);
    let begun = Instant::now();
    stage.resume();
    let steps = processes * STATES;
    wait_for("the fast worker's processes are called", patience(steps), || Ok(fast.ended() >= processes))?;
    stage.wait_until_closed("f-", patience(steps))?;
    let seconds = begun.elapsed().as_secs_f64();
    let threads = stage.schedulers().into_iter().filter_map(machine::threads_of).sum::<usize>();
    let open: i32 = stage.superuser().one("SELECT in_flight FROM xdb.status()");
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(fast.latencies(stage, "f-")?));
    run.set(OPEN, f64::from(open));
    run.set(THREADS, threads as f64);
    hurries.store(true, Ordering::Relaxed);
    slow.wait_for_end(stage, sleepers, patience(steps + sleepers * NAPS) + SLEEP)?;
    Expected { prefix: "f-", processes, states: steps, output: chain::OUTPUT }.check(stage)?;
    Expected { prefix: "s-", processes: sleepers, states: sleepers * NAPS, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&fast.worker, &slow.worker])?;
    Ok(run)
}
