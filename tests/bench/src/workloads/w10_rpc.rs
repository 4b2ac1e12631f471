//! W10: sessions call an RPC that does nothing.

use std::time::{Duration, Instant};

use serde_json::json;
use xdb_cluster_tests::wait::at_once;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload = Workload { name: "W10", about: "sessions that call a no-op RPC", measure };

const SESSIONS: usize = 8;
const RATE: &str = "RPCs/s";
const CLOSE: &str = r#"{"output":"ok","stateDecision":{"threadCloseDecision":{"closeType":"FORCE_COMPLETE_PROCESS","closeInput":"done"}}}"#;

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let length = lab.options.scaled_time(Duration::from_secs(10), Duration::from_secs(1));
    let runs = lab.runs("W10", || call(&lab.stage(), length))?;
    Ok(vec![Row {
        workload: "W10 RPC",
        ran: format!(
            "{SESSIONS} sessions, each with a process of its own, for {:.0} s; a step is an RPC",
            length.as_secs_f64()
        ),
        latency: "the statement, as the client sees it",
        runs,
        targets: vec![Target::at_least(RATE, 3000.0)],
    }])
}

fn call(stage: &Stage<'_>, length: Duration) -> Result<Run, String> {
    let worker = stage.worker(|request, reply| {
        reply.push(if request.target() == "close" { CLOSE } else { r#"{"output":"ok"}"# });
    });
    stage.register("fast", &worker, &[("rpc", &json!({"states": {}}))]);
    stage.start("p-", "rpc", 0, SESSIONS as u64, "'{}'");
    let meter = Meter::begin(stage, &worker);
    let latencies = at_once(SESSIONS, |session| one_session(stage, session, length));
    let seconds = meter.elapsed();
    let latencies: Vec<f64> =
        latencies.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect();
    let calls = latencies.len() as u64;
    let mut run = meter.end(calls);
    run.set(figure::STEPS, calls as f64 / seconds);
    run.set(RATE, calls as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(latencies));
    if worker.calls() < calls {
        return Err(format!("{calls} RPCs were answered, and the worker was called {} times", worker.calls()));
    }
    let mut db = stage.app();
    for session in 0..SESSIONS {
        db.run(&format!("SELECT xdb.invoke_rpc('p-{session}', 'close')"));
    }
    Expected { prefix: "p-", processes: SESSIONS as u64, states: 0, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

/// Milliseconds of each call.
fn one_session(stage: &Stage<'_>, session: usize, length: Duration) -> Result<Vec<f64>, String> {
    let mut db = stage.app();
    let failed = |error: postgres::Error| format!("invoke_rpc: {error}");
    let statement = db.client().prepare("SELECT xdb.invoke_rpc($1, 'noop')::text").map_err(failed)?;
    let process_id = format!("p-{session}");
    let mut taken = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < length {
        let asked = Instant::now();
        let row = db.client().query_one(&statement, &[&process_id]).map_err(failed)?;
        taken.push(asked.elapsed().as_secs_f64() * 1000.0);
        let output: &str = row.get(0);
        if output != r#""ok""# {
            return Err(format!("invoke_rpc returned {output}"));
        }
    }
    Ok(taken)
}
