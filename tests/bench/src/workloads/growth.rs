//! Growth: runs W1 with more and more completed processes in the tables.

use std::time::{Duration, Instant};

use super::{Workload, w1_chain};
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage, fill, patience};
use crate::report::{Row, Run, Target, figure};
use crate::verify::{self, Expected};
use crate::worker::{Reply, Request};

pub const WORKLOAD: Workload =
    Workload { name: "growth", about: "W1 with more and more processes that have completed and are kept", measure };

const LEVELS: [u64; 4] = [1000, 10_000, 100_000, 1_000_000];
const STATES: u64 = 5;
const FLAT: &str = "share of the first level's steps/s";
const FIRST: &str = "the first level, just before, steps/s";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let stage = lab.stage();
    let processes = lab.options.scaled(4000, 100);
    let mut rows: Vec<Row> = Vec::new();
    let mut kept = Kept::new(&stage, lab.options.scaled(LEVELS[LEVELS.len() - 1], 4000));
    // Another database stays at the first level: so each run is compared with one of the same minute.
    let small = lab.stage();
    let first_level = lab.options.scaled(LEVELS[0], 500);
    Kept::new(&small, first_level).fill_to(first_level, Instant::now() + lab.options.fill)?;
    let mut left = lab.options.fill;
    for (place, (title, full)) in TITLES.into_iter().zip(LEVELS).enumerate() {
        let level = lab.options.scaled(full, 500 << place);
        let begun = Instant::now();
        let there = kept.fill_to(level, begun + left)?;
        let made_in = begun.elapsed();
        left = left.saturating_sub(made_in);
        stage.come_to_rest(Duration::from_secs(1))?;
        let mut ran = format!("{there} kept, made in {:.0} s", made_in.as_secs_f64());
        if there < level {
            ran = format!("{ran}; {level} were wanted, the time for making them was over");
        }
        let mut number = 0;
        let runs = lab.runs(title, || {
            number += 1;
            let prefix = format!("m{place}-{number}-");
            if place == 0 {
                return chains(&stage, &prefix, processes);
            }
            let first = chains(&small, &prefix, processes)?.get(figure::STEPS).ok_or("no rate")?;
            let mut run = chains(&stage, &prefix, processes)?;
            run.set(FIRST, first);
            run.set(FLAT, run.get(figure::STEPS).ok_or("no rate")? / first);
            Ok(run)
        })?;
        rows.push(Row {
            workload: title,
            ran: format!("{processes} processes of {STATES} states, {ran}"),
            latency: w1_chain::LATENCY,
            runs,
            targets: if place == 0 { Vec::new() } else { vec![Target::at_least(FLAT, 0.9)] },
        });
        if there < level {
            break;
        }
    }
    kept.check()?;
    Ok(rows)
}

const TITLES: [&str; 4] = ["growth 1", "growth 2", "growth 3", "growth 4"];

fn chains(stage: &Stage<'_>, prefix: &str, processes: u64) -> Result<Run, String> {
    let work = ChainWorker::start(stage, processes, STATES, plain(STATES));
    stage.register("fast", &work.worker, &[("chain", &chain::definition(STATES))]);
    chain::drain(stage, &work, "chain", prefix, processes, STATES, "'{}'")
}

fn plain(states: u64) -> impl Fn(u64, &Request<'_>, &mut Reply) + Send + Sync + 'static {
    move |number, _, reply| chain::go_on(number, states, "", reply)
}

/// Completed processes of one state that stay in the tables.
struct Kept<'a> {
    stage: &'a Stage<'a>,
    work: ChainWorker,
    there: u64,
}

impl<'a> Kept<'a> {
    fn new(stage: &'a Stage<'a>, most: u64) -> Kept<'a> {
        let work = ChainWorker::start(stage, most, 1, plain(1));
        stage.register("kept", &work.worker, &[("kept", &chain::definition(1))]);
        Kept { stage, work, there: 0 }
    }

    /// Runs processes until there are `level` of them, or until the time is over.
    fn fill_to(&mut self, level: u64, deadline: Instant) -> Result<u64, String> {
        self.there = fill(self.stage, ("k-", "kept"), self.there, level, deadline, || self.work.ended())?;
        self.work.wait_for_end(self.stage, self.there, patience(self.there))?;
        Ok(self.there)
    }

    fn check(&self) -> Result<(), String> {
        let (processes, states) = (self.there, self.there);
        Expected { prefix: "k-", processes, states, output: chain::OUTPUT }.check(self.stage)?;
        verify::at_rest(self.stage, &[&self.work.worker])
    }
}
