//! W17: processes that start very many children in one answer, and join them by a queue.

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

pub const WORKLOAD: Workload =
    Workload { name: "W17", about: "children that one answer starts, joined by a queue", measure };

const SHARE: &str = "share of W2 with as many processes";
const SHARE_WITH_STARTS: &str = "share of W2 if its starts count too";
const SINGLES: &str = "W2 with as many processes, processes/s";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let (parents, children) = (lab.options.scaled(10, 2), lab.options.scaled(1000, 50));
    let runs = lab.runs("W17", || {
        let processes = parents * (children + 1);
        let plain = chain::plain(&lab.stage(), processes, 1)?;
        let rate = |run: &Run, name| run.get(name).ok_or("no rate");
        let (singles, with_starts) = (rate(&plain, figure::PROCESSES)?, rate(&plain, chain::WITH_STARTS)?);
        let mut run = families(&lab.stage(), parents, children)?;
        let families = rate(&run, figure::PROCESSES)?;
        run.set(SINGLES, singles);
        run.set(SHARE, families / singles);
        // The start of each child is part of the time, and in W2 no start is.
        run.set(SHARE_WITH_STARTS, families / with_starts);
        Ok(run)
    })?;
    Ok(vec![Row {
        workload: "W17 children",
        ran: format!("{parents} processes, each with {children} children of one answer, joined by a queue"),
        latency: "",
        runs,
        targets: vec![Target::at_least(SHARE, 0.7)],
    }])
}

fn families(stage: &Stage<'_>, parents: u64, children: u64) -> Result<Run, String> {
    let child = r#"{"processType":"child","onClose":"closed"}"#;
    let start = format!(
        r#"{{"startProcesses":[{}],"stateDecision":{{"nextStates":[{{"stateId":"Join"}}]}}}}"#,
        vec![child; children as usize].join(",")
    );
    let join = format!(
        r#"{{"commandRequest":{{"waitingType":"AllOfCompletion","localQueueCommands":[{{"commandId":"all","queueName":"closed","count":{children}}}]}}}}"#
    );
    let joined = Arc::new(AtomicU64::new(0));
    let last = Arc::clone(&joined);
    let worker = stage.worker(move |request, reply| match (request.api, request.target()) {
        (Api::Execute, "Start") => reply.push(&start),
        (Api::WaitUntil, _) => reply.push(&join),
        (_, target) => {
            if target == "Join" {
                last.fetch_add(1, Ordering::Relaxed);
            }
            chain::end(reply);
        }
    });
    let skip = json!({"skipWaitUntil": true});
    let parent = json!({"startingState": "Start", "states": {"Start": skip, "Join": {}}, "localQueues": ["closed"]});
    stage.register("fast", &worker, &[("parent", &parent), ("child", &chain::definition(1))]);
    stage.pause();
    stage.start("p-", "parent", 0, parents, "'{}'");
    let (processes, steps) = (parents * (children + 1), parents * (children + 2));
    let meter = Meter::begin(stage, &worker);
    stage.resume();
    wait_for("the last calls are made", patience(steps), || Ok(joined.load(Ordering::Relaxed) >= parents))?;
    stage.wait_until_closed("", patience(steps))?;
    let seconds = meter.elapsed();
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    Expected { prefix: "", processes, states: steps, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}
