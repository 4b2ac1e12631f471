//! W14: functions of the database answer the calls of states. The functions do nothing.

use std::time::{Duration, Instant};

use serde_json::json;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload = Workload { name: "W14", about: "states that functions of the database answer", measure };

const STATES: u64 = 5;

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let (one, many) = (lab.options.scaled(500, 20), lab.options.scaled(2000, 50));
    let alone = lab.runs("W14 one at a time", || run(&lab.stage(), one, true))?;
    let together = lab.runs("W14 together", || run(&lab.stage(), many, false))?;
    let row = |workload, ran, latency, runs, target| Row { workload, ran, latency, runs, targets: vec![target] };
    Ok(vec![
        row(
            "W14 one at a time",
            format!("{one} processes of {STATES} no-op function states, one at a time"),
            "COMMIT of the start sent to the process's close seen by a waiting session",
            alone,
            Target::at_most(figure::P50, 3.0),
        ),
        row(
            "W14 together",
            format!("{many} processes of {STATES} no-op function states, started at once"),
            "none: only the rate is measured",
            together,
            Target::at_least(figure::STEPS, 12_000.0),
        ),
    ])
}

fn run(stage: &Stage<'_>, processes: u64, one_at_a_time: bool) -> Result<Run, String> {
    // The meter reads one; it gets no requests.
    let worker = stage.worker(|_, reply| chain::end(reply));
    stage.register("fast", &worker, &[("idle", &chain::definition(1))]);
    register(stage);
    let mut latencies = Vec::new();
    let meter = Meter::begin(stage, &worker);
    if one_at_a_time {
        let mut db = stage.app();
        for number in 0..processes {
            let begun = Instant::now();
            db.run(&format!("SELECT xdb.start_process('p-{number}', 'functions')"));
            db.completes(&format!("p-{number}"));
            latencies.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
    } else {
        stage.start("p-", "functions", 0, processes, "'{}'");
        stage.wait_until_closed("", Duration::from_secs(300))?;
    }
    let (seconds, steps) = (meter.elapsed(), processes * STATES);
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    if one_at_a_time {
        chain::set_percentiles(&mut run, &Distribution::of(latencies));
    }
    Expected { prefix: "p-", processes, states: steps, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

/// Registers states that all have one function. The function goes on to the next state.
fn register(stage: &Stage<'_>) {
    let options = json!({"skipWaitUntil": true, "executeFunction": "public.go_on"});
    let states: serde_json::Map<_, _> = (1..=STATES).map(|number| (format!("S{number}"), options.clone())).collect();
    let definition = json!({"startingState": "S1", "states": states});
    stage.superuser().run(&format!(
        "CREATE FUNCTION public.go_on(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
         DECLARE n CONSTANT int := substr(request->>'stateId', 2)::int; BEGIN
             IF n < {STATES} THEN
                 RETURN jsonb_build_object('stateDecision', jsonb_build_object('nextStates',
                     jsonb_build_array(jsonb_build_object('stateId', 'S' || n + 1))));
             END IF;
             RETURN '{{\"stateDecision\": {{\"threadCloseDecision\": {{\"closeType\": \"GRACEFUL_COMPLETE_PROCESS\", \"closeInput\": \"done\"}}}}}}';
         END $$;
         SELECT xdb.register_process_type('functions', NULL, '{definition}')"
    ));
}
