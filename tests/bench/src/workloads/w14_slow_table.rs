//! W14: processes on a table whose trigger is slow, beside others that need no table.

use std::time::{Duration, Instant};

use serde_json::json;

use super::Workload;
use crate::chain::{self, ChainWorker};
use crate::lab::{Lab, Stage, patience};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::{Reply, Request};

pub const WORKLOAD: Workload =
    Workload { name: "W14", about: "processes on a table whose trigger takes 200 ms, and others", measure };

const TABLE: &str = "CREATE TABLE slow (id text PRIMARY KEY, n int NOT NULL);
    CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN new; END';
    CREATE TRIGGER dawdle BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION dawdle();";
const WRITE: &str = r#","writeToGlobalAttributes":{"n":1}"#;
/// Starts of the others in a second.
const RATE: f64 = 25.0;
const SLOW_END: &str = "the last of the slow ones completed after, s";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let processes = lab.options.scaled(300, 30);
    let runs = lab.runs("W14", || beside(&lab.stage(), processes))?;
    Ok(vec![Row {
        workload: "W14 slow table",
        ran: format!("{processes} processes on the slow table; figures of the others"),
        latency: "the time at which a process was to be started to its close",
        runs,
        targets: vec![Target::at_most(figure::P99, 500.0)],
    }])
}

fn beside(stage: &Stage<'_>, processes: u64) -> Result<Run, String> {
    stage.app().run(TABLE);
    let mut definition = chain::definition(1);
    definition["globalAttributes"] = json!([{"table": "public.slow", "primaryKey": "id", "attributes": {"n": "n"}}]);
    let work = ChainWorker::start(stage, processes, 1, |_, request: &Request<'_>, reply: &mut Reply| {
        // Only those on the table are given one of its columns.
        chain::go_on(1, 1, if request.text("\"n\":").is_empty() { "" } else { WRITE }, reply);
    });
    stage.register("fast", &work.worker, &[("slow", &definition), ("quick", &chain::definition(1))]);
    let rows = "jsonb_build_object('global_attribute_pk', 'r-' || i, 'global_attributes', jsonb_build_object('n', 0))";
    stage.start("s-", "slow", 0, processes, rows);
    let meter = Meter::begin(stage, &work.worker);
    let begun = Instant::now();
    let (mut db, mut superuser) = (stage.app(), stage.superuser());
    let mut wanted_at = Vec::new();
    while superuser.count("xdb.processes WHERE process_id LIKE 's-%' AND status = 'RUNNING'") > 0 {
        if begun.elapsed() > patience(processes) + Duration::from_secs(processes) {
            return Err("the slow ones do not complete".to_owned());
        }
        // At its time, whatever became of those before; one that is late is started at once.
        let at = begun + Duration::from_secs_f64(wanted_at.len() as f64 / RATE);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        db.start(&format!("q-{}", wanted_at.len()), "quick").go();
        wanted_at.push(at);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let quick = wanted_at.len() as u64;
    stage.wait_until_closed("q-", patience(quick))?;
    let lateness = chain::closing_times(stage, "q-")?.into_iter().filter_map(|(index, closed)| {
        Some((closed - stage.clock.wall(stage.clock.nanoseconds(*wanted_at.get(index)?))) * 1000.0)
    });
    let mut run = meter.end(quick);
    run.set(figure::STEPS, quick as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(lateness.collect()));
    run.set(SLOW_END, seconds);
    Expected { prefix: "s-", processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    Expected { prefix: "q-", processes: quick, states: quick, output: chain::OUTPUT }.check(stage)?;
    let written = superuser.count("public.slow WHERE n = 1") as u64;
    if written != processes {
        return Err(format!("{written} rows of {processes} were written"));
    }
    verify::at_rest(stage, &[&work.worker])?;
    Ok(run)
}
