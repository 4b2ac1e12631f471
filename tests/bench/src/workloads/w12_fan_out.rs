//! W12: a process starts very many threads at once, and joins them by a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::verify::{self, Expected};
use crate::worker::Api;

pub const WORKLOAD: Workload = Workload { name: "W12", about: "fan-out, and join by a queue", measure };

const SHARE: &str = "share of W1 with as many steps";
const CHAINS: &str = "W1 with as many steps, steps/s";
const LEAF: &str = r#"{"stateDecision":{"threadCloseDecision":{"closeType":"DEAD_END"}},"publishToLocalQueue":[{"queueName":"joined","payload":1}]}"#;

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let few = (1, lab.options.scaled(10_000, 200));
    let many = (lab.options.scaled(100, 2), 100);
    let mut rows = Vec::new();
    for (workload, (processes, width)) in [("W12 one wide", few), ("W12 many", many)] {
        let runs = lab.runs(workload, || {
            let steps = steps(processes, width);
            let chains = chain::plain(&lab.stage(), steps.div_ceil(5), 5)?.get(figure::STEPS).ok_or("no rate")?;
            let mut run = fan_out(&lab.stage(), processes, width)?;
            run.set(CHAINS, chains);
            run.set(SHARE, run.get(figure::STEPS).ok_or("no rate")? / chains);
            Ok(run)
        })?;
        rows.push(Row {
            workload,
            ran: format!("{processes} processes with {width} parallel threads, joined by a queue"),
            latency: "",
            runs,
            targets: vec![Target::at_least(SHARE, 0.7)],
        });
    }
    Ok(rows)
}

/// The number of steps: the first one, the threads, and the one that joins them.
fn steps(processes: u64, width: u64) -> u64 {
    processes * (width + 2)
}

fn fan_out(stage: &Stage<'_>, processes: u64, width: u64) -> Result<Run, String> {
    let threads = vec![r#"{"stateId":"Leaf"}"#; width as usize].join(",");
    let fan = format!(r#"{{"stateDecision":{{"nextStates":[{{"stateId":"Join"}},{threads}]}}}}"#);
    let join = format!(
        r#"{{"commandRequest":{{"waitingType":"AllOfCompletion","localQueueCommands":[{{"commandId":"all","queueName":"joined","count":{width}}}]}}}}"#
    );
    let ended = Arc::new(AtomicU64::new(0));
    let last = Arc::clone(&ended);
    let worker = stage.worker(move |request, reply| match (request.api, request.target()) {
        (Api::Execute, "Leaf") => reply.push(LEAF),
        (Api::Execute, "Fan") => reply.push(&fan),
        (Api::WaitUntil, _) => reply.push(&join),
        _ => {
            last.fetch_add(1, Ordering::Relaxed);
            chain::end(reply);
        }
    });
    let skip = json!({"skipWaitUntil": true});
    let definition = json!({"startingState": "Fan", "states": {"Fan": skip, "Leaf": skip, "Join": {}}});
    stage.register("fast", &worker, &[("fan", &definition)]);
    stage.pause();
    stage.start("p-", "fan", 0, processes, "'{}'");
    let steps = steps(processes, width);
    let meter = Meter::begin(stage, &worker);
    stage.resume();
    wait_for("the last calls are made", patience(steps), || Ok(ended.load(Ordering::Relaxed) >= processes))?;
    stage.wait_until_closed("", patience(steps))?;
    let seconds = meter.elapsed();
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    Expected { prefix: "p-", processes, states: steps, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}
