//! W3: one process at a time, on an idle machine.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use xdb_cluster_tests::db::Db;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload = Workload { name: "W3", about: "latency of one process at a time", measure };

/// From the answer to the start's COMMIT until the worker has the first request.
const FIRST: &str = "start committed to first request, p50 ms";
const FIRST_P99: &str = "start committed to first request, p99 ms";
/// From the start's COMMIT being sent until the worker has the first request.
const FROM_COMMIT: &str = "COMMIT sent to first request, p50 ms";
/// Between two requests of a process.
const STEP: &str = "further step, p50 ms";
/// An ordinary synchronous commit on this machine, at this time.
const COMMIT: &str = "one synchronous commit, p50 ms";
const BEYOND: &str = "further step beyond a commit, p50 ms";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(1000, 50);
    let mut rows = Vec::new();
    for (workload, states) in [("W3 1 state", 1), ("W3 5 states", 5)] {
        let runs = lab.runs(workload, || one_at_a_time(&lab.stage(), processes, states))?;
        let mut targets = vec![Target::at_most(FIRST, 2.0)];
        if states > 1 {
            targets.push(Target::at_most(BEYOND, 1.0));
        }
        rows.push(Row {
            workload,
            ran: format!("{processes} processes of {states} states, one at a time"),
            latency: "COMMIT of the start sent to the process's close seen by a waiting session",
            runs,
            targets,
        });
    }
    Ok(rows)
}

fn one_at_a_time(stage: &Stage<'_>, processes: u64, states: u64) -> Result<Run, String> {
    let (requests, arrivals) = channel::<Instant>();
    let worker = stage.worker(move |request, reply| {
        // The other side goes away when a run has failed, which it says itself.
        let _sent = requests.send(request.at);
        chain::go_on(chain::state_number(request), states, "", reply);
    });
    stage.register("fast", &worker, &[("chain", &chain::definition(states))]);
    let mut db = stage.app();
    let commit = synchronous_commit(&mut db, processes.min(200))?;
    let meter = Meter::begin(stage, &worker);
    let mut times = Times::default();
    for number in 0..processes {
        times.add_process(&mut db, number, states, &arrivals)?;
    }
    let seconds = meter.elapsed();
    drop(db);
    let steps = processes * states;
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(times.whole));
    let first = Distribution::of(times.first);
    run.set(FIRST, first.percentile(50.0));
    run.set(FIRST_P99, first.percentile(99.0));
    run.set(FROM_COMMIT, Distribution::of(times.from_commit).percentile(50.0));
    run.set(COMMIT, commit);
    if states > 1 {
        let step = Distribution::of(times.further).percentile(50.0);
        run.set(STEP, step);
        run.set(BEYOND, step - commit);
    }
    Expected { prefix: "p-", processes, states: steps, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

/// Times in milliseconds.
#[derive(Default)]
struct Times {
    first: Vec<f64>,
    from_commit: Vec<f64>,
    further: Vec<f64>,
    whole: Vec<f64>,
}

impl Times {
    fn add_process(
        &mut self,
        db: &mut Db,
        number: u64,
        states: u64,
        arrivals: &Receiver<Instant>,
    ) -> Result<(), String> {
        let process_id = format!("p-{number}");
        db.run(&format!("BEGIN; SELECT xdb.start_process('{process_id}', 'chain')"));
        let sent = Instant::now();
        db.run("COMMIT");
        let committed = Instant::now();
        let mut last = None;
        for _ in 0..states {
            let request = arrivals.recv_timeout(Duration::from_secs(30)).map_err(|error| error.to_string())?;
            match last {
                None => {
                    // It may be there before the client has read that its start is committed.
                    self.first.push(milliseconds(committed, request));
                    self.from_commit.push(milliseconds(sent, request));
                }
                Some(last) => self.further.push(milliseconds(last, request)),
            }
            last = Some(request);
        }
        db.completes(&process_id);
        self.whole.push(milliseconds(sent, Instant::now()));
        match arrivals.try_recv() {
            Ok(_) => Err(format!("{process_id} was called more than {states} times")),
            Err(_) => Ok(()),
        }
    }
}

/// From one moment to the other. Negative if the other was first.
fn milliseconds(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(time) => time.as_secs_f64() * 1000.0,
        None => -(from.duration_since(to).as_secs_f64() * 1000.0),
    }
}

/// The median time of an update of one small row.
fn synchronous_commit(db: &mut Db, times: u64) -> Result<f64, String> {
    db.run("CREATE TABLE commits (n int); INSERT INTO commits VALUES (0)");
    let update = db.client().prepare("UPDATE commits SET n = n + 1").map_err(|error| error.to_string())?;
    let mut taken = Vec::new();
    for _ in 0..times {
        let begun = Instant::now();
        db.client().execute(&update, &[]).map_err(|error| error.to_string())?;
        taken.push(milliseconds(begun, Instant::now()));
    }
    Ok(Distribution::of(taken).percentile(50.0))
}
