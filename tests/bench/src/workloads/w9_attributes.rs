//! W9: W1 with a row of an application's table that every step reads and writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::{Workload, w1_chain};
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage};
use crate::report::{Row, Run, Target, figure};

pub const WORKLOAD: Workload =
    Workload { name: "W9", about: "W1 with a global attribute row read and written in each step", measure };

const STATES: u64 = 5;
const SHARE: &str = "share of the same without attributes";
const WITHOUT: &str = "the same without attributes, steps/s";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(10_000, 200);
    let runs = lab.runs("W9", || {
        let without = chain::plain(&lab.stage(), processes, STATES)?.get(figure::STEPS).ok_or("no rate")?;
        let mut run = with_rows(&lab.stage(), processes)?;
        run.set(WITHOUT, without);
        run.set(SHARE, run.get(figure::STEPS).ok_or("no rate")? / without);
        Ok(run)
    })?;
    Ok(vec![Row {
        workload: "W9 attributes",
        ran: format!("{processes} processes of {STATES} states, a row for each"),
        latency: w1_chain::LATENCY,
        runs,
        targets: vec![Target::at_least(SHARE, 0.6)],
    }])
}

fn with_rows(stage: &Stage<'_>, processes: u64) -> Result<Run, String> {
    stage.app().run("CREATE TABLE counters (id text PRIMARY KEY, n int NOT NULL, note text)");
    let mut definition = chain::definition(STATES);
    definition["globalAttributes"] =
        json!([{"table": "public.counters", "primaryKey": "id", "attributes": {"n": "n", "note": "note"}}]);
    let wrong = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&wrong);
    let work = ChainWorker::start(stage, processes, STATES, move |number, request, reply| {
        // What the step before has written is what this one reads.
        if request.text("\"n\":").trim_start().bytes().next() != Some(b'0' + (number - 1) as u8) {
            seen.fetch_add(1, Ordering::Relaxed);
        }
        chain::go_on(number, STATES, WRITES[number as usize % WRITES.len()], reply);
    });
    stage.register("fast", &work.worker, &[("chain", &definition)]);
    let more = "jsonb_build_object('global_attribute_pk', 'r-' || i,
                                   'global_attributes', jsonb_build_object('n', 0, 'note', 'a note'))";
    let run = chain::drain(stage, &work, "chain", "p-", processes, STATES, more)?;
    let wrong = wrong.load(Ordering::Relaxed);
    let last = stage.superuser().count(&format!("public.counters WHERE n = {STATES}")) as u64;
    if wrong > 0 || last != processes {
        return Err(format!("{wrong} calls had another value than was written, and {last} rows have the last one"));
    }
    Ok(run)
}

/// The part that each state adds to its answer, by its number.
const WRITES: [&str; 6] = [
    r#","writeToGlobalAttributes":{"n":0}"#,
    r#","writeToGlobalAttributes":{"n":1}"#,
    r#","writeToGlobalAttributes":{"n":2}"#,
    r#","writeToGlobalAttributes":{"n":3}"#,
    r#","writeToGlobalAttributes":{"n":4}"#,
    r#","writeToGlobalAttributes":{"n":5}"#,
];
