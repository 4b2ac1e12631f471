//! W6: work at half load while another session keeps an old snapshot. So no dead row can be removed.

use std::time::{Duration, Instant};

use super::{Workload, w1_chain};
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage, patience, start};
use crate::machine;
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload =
    Workload { name: "W6", about: "W1 at half load while another session holds a snapshot", measure };

const STATES: u64 = 5;
/// The time is cut into this number of windows.
const WINDOWS: usize = 10;
const HELD_UP: &str = "last tenth against the first, steps";
/// The time between two statements that start processes. Each starts all processes that are due.
const TICK: Duration = Duration::from_millis(50);

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    if let Some(quiet) = lab.options.quiet {
        machine::wait_for_quiet(quiet)?;
    }
    let load = machine::load();
    let full = chain::plain(&lab.stage(), lab.options.scaled(4000, 200), STATES)?;
    let rate = full.get(figure::PROCESSES).ok_or("W1 gave no rate")? / 2.0;
    let length = lab.options.scaled_time(Duration::from_secs(600), Duration::from_secs(6));
    let mut runs = half_load(&lab.stage(), rate, length)?;
    runs[0].set(figure::LOAD, load[0]);
    Ok(vec![Row {
        workload: "W6 old snapshot",
        ran: format!(
            "{:.0} processes of {STATES} states started a second, for {:.0} s with a snapshot held; each of the runs is a tenth",
            rate,
            length.as_secs_f64()
        ),
        latency: w1_chain::LATENCY,
        runs,
        targets: vec![Target::at_least(HELD_UP, 0.9)],
    }])
}

fn half_load(stage: &Stage<'_>, rate: f64, length: Duration) -> Result<Vec<Run>, String> {
    let most = (rate * (length + TICK).as_secs_f64()) as u64 + 1;
    let answer = |number, _: &crate::worker::Request<'_>, reply: &mut crate::worker::Reply| {
        chain::go_on(number, STATES, "", reply)
    };
    let work = ChainWorker::start(stage, most, STATES, answer);
    stage.register("fast", &work.worker, &[("chain", &chain::definition(STATES))]);
    let mut holder = stage.superuser();
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM xdb.task");
    let meter = Meter::begin(stage, &work.worker);
    let first = stage.clock.nanoseconds(Instant::now());
    let started = start_evenly(stage, rate, length);
    work.wait_for_end(stage, started, patience(started * STATES))?;
    if !holder.one::<bool>("SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = pg_backend_pid()") {
        return Err("the snapshot was not held".into());
    }
    let costs = meter.end(started * STATES);
    holder.run("COMMIT");
    Expected { prefix: "p-", processes: started, states: started * STATES, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&work.worker])?;

    let begun = stage.clock.wall(first);
    let window = length.as_secs_f64() / WINDOWS as f64;
    let mut closed = vec![0_u64; WINDOWS];
    let mut latencies = vec![Vec::new(); WINDOWS];
    for (index, at) in chain::closing_times(stage, "p-")? {
        // What is closed after the end is not throughput of it.
        let place = ((at - begun) / window) as usize;
        if place < WINDOWS {
            closed[place] += 1;
            latencies[place].extend(work.latency(stage, index, at));
        }
    }
    let mut runs: Vec<Run> = std::iter::zip(&closed, latencies)
        .map(|(count, latencies)| {
            let mut run = Run::default();
            run.set(figure::PROCESSES, *count as f64 / window);
            run.set(figure::STEPS, (count * STATES) as f64 / window);
            chain::set_percentiles(&mut run, &Distribution::of(latencies));
            run
        })
        .collect();
    runs[0].take(costs);
    runs[0].set(HELD_UP, closed[WINDOWS - 1] as f64 / closed[0] as f64);
    Ok(runs)
}

/// Starts processes at this rate, without waiting for their ends. Returns how many.
fn start_evenly(stage: &Stage<'_>, rate: f64, length: Duration) -> u64 {
    let mut db = stage.app();
    let begun = Instant::now();
    let mut started = 0;
    loop {
        let passed = begun.elapsed().min(length);
        let due = (rate * passed.as_secs_f64()) as u64;
        start(&mut db, "p-", "chain", started, due.max(started), "'{}'");
        started = due.max(started);
        if passed == length {
            return started;
        }
        std::thread::sleep(TICK);
    }
}
