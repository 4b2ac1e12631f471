//! W15: pull workers, over one connection and over eight. Steps are claimed in batches. They are completed either in a
//! transaction each, or all steps of a batch in one transaction.

use std::time::{Duration, Instant};

use serde_json::Value;
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::wait::at_once;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload = Workload { name: "W15", about: "pull workers", measure };

/// Calls that are claimed at once.
const BATCH: i32 = 10;
/// States of each process. All but the last one lead to the next.
pub const STATES: u64 = 5;

const CLAIM: &str = "SELECT token, request ->> 'stateId' FROM xdb.claim_calls('pull', $1)";
pub const COMPLETE: &str = "SELECT xdb.complete_call(t, a::jsonb) FROM unnest($1::text[], $2::text[]) AS u (t, a)";

/// How many calls are completed in one transaction.
#[derive(Clone, Copy)]
pub enum Completed {
    EachAlone,
    BatchAtOnce,
}

impl Completed {
    fn at_once(self) -> usize {
        match self {
            Completed::EachAlone => 1,
            Completed::BatchAtOnce => BATCH as usize,
        }
    }

    fn about(self) -> &'static str {
        match self {
            Completed::EachAlone => "each completed in a transaction of its own",
            Completed::BatchAtOnce => "all of them completed in one statement",
        }
    }
}

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (name, connections, completed, processes) in [
        ("W15 pull, one", 1, Completed::EachAlone, 3_000),
        ("W15 pull, eight", 8, Completed::EachAlone, 10_000),
        ("W15 pull in batches, one", 1, Completed::BatchAtOnce, 6_000),
        ("W15 pull in batches, eight", 8, Completed::BatchAtOnce, 10_000),
    ] {
        let processes = lab.options.scaled(processes, 100);
        let runs = lab.runs(name, || pull(&lab.stage(), connections, completed, processes))?;
        let about = completed.about();
        rows.push(Row {
            workload: name,
            ran: format!("{processes} processes of {STATES} no-op states from a backlog, {connections} connections, {BATCH} calls in a claim, {about}"),
            latency: "the statement that completes, as the client sees it",
            runs,
            targets: vec![Target::at_least(figure::STEPS, if connections == 1 { 1_500.0 } else { 6_000.0 })],
        });
    }
    Ok(rows)
}

/// Works through a backlog.
pub fn pull(stage: &Stage<'_>, connections: usize, completed: Completed, processes: u64) -> Result<Run, String> {
    register(stage, &chain::definition(STATES));
    stage.pause();
    stage.start("p-", "chain", 0, processes, "'{}'");
    stage.come_to_rest(Duration::from_secs(1))?;
    stage.resume();
    // No worker is called: this measures the server and its sessions.
    let nobody = stage.worker(|_, reply| chain::end(reply));
    let meter = Meter::begin(stage, &nobody);
    let begun = Instant::now();
    let worked =
        at_once(connections, |_| one_connection(stage, completed)).into_iter().collect::<Result<Vec<_>, String>>()?;
    // Until the last completion: a session that finds no call scans a little longer.
    let ended = worked.iter().map(|(_, ended)| *ended).max().ok_or("no worker did any work")?;
    let seconds = ended.saturating_duration_since(begun).as_secs_f64();
    let latencies = worked.into_iter().flat_map(|(latencies, _)| latencies).collect();
    let steps = processes * STATES;
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(latencies));
    Expected { prefix: "p-", processes, states: steps, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[])?;
    Ok(run)
}

/// Registers the process type, and its worker.
pub fn register(stage: &Stage<'_>, definition: &Value) {
    stage.superuser().run(&format!(
        "SELECT xdb.register_worker('pull', NULL, role => 'app');
         SELECT xdb.register_process_type({}, 'pull', {})",
        literal("chain"),
        jsonb(definition)
    ));
}

/// Works until no call can be claimed. Returns the milliseconds of each statement that completes, and the time of the
/// last one.
fn one_connection(stage: &Stage<'_>, completed: Completed) -> Result<(Vec<f64>, Instant), String> {
    let mut db = stage.app();
    let failed = |error: postgres::Error| format!("a pull worker: {error}");
    let claim = db.client().prepare(CLAIM).map_err(failed)?;
    let complete = db.client().prepare(COMPLETE).map_err(failed)?;
    let (mut taken, mut ended) = (Vec::new(), Instant::now());
    loop {
        let calls = db.client().query(&claim, &[&BATCH]).map_err(failed)?;
        if calls.is_empty() {
            // Other workers may have all due calls, and bring the next steps.
            if ended.elapsed() > Duration::from_millis(200) {
                return Ok((taken, ended));
            }
            continue;
        }
        for batch in calls.chunks(completed.at_once()) {
            let (tokens, answers) = answered(batch, STATES)?;
            let begun = Instant::now();
            db.client().execute(&complete, &[&tokens, &answers]).map_err(failed)?;
            ended = Instant::now();
            taken.push((ended - begun).as_secs_f64() * 1000.0);
        }
    }
}

/// The tokens of claimed calls, of processes with this number of states, and the answer to each.
pub fn answered(calls: &[postgres::Row], states: u64) -> Result<(Vec<&str>, Vec<String>), String> {
    calls
        .iter()
        .map(|call| {
            let (token, state): (&str, &str) = (call.get(0), call.get(1));
            let number = state[1..].parse().map_err(|_| format!("an unknown state {state}"))?;
            Ok((token, chain::answer(number, states)))
        })
        .collect()
}
