//! W11: starts while the engine is paused, many in a statement and one in each. Compares their cost with plain INSERTs
//! of the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use xdb_cluster_tests::db::Db;
use xdb_cluster_tests::wait::at_once;

use super::Workload;
use super::by_hand::{self, Template};
use crate::chain;
use crate::lab::{Lab, Stage, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::Worker;

pub const WORKLOAD: Workload = Workload { name: "W11", about: "starts, while the engine is paused", measure };

const SESSIONS: u64 = 8;
const STARTS: &str = "starts/s";
const BY_HAND: &str = "hand-written transactions/s";
const IN_ONE: &str = "the same rows in one statement, per s";
const ONE_ROW: &str = "one-row inserts/s";
const OF_BY_HAND: &str = "share of a hand-written transaction";
const OF_IN_ONE: &str = "share of the same rows in one statement";
const OF_ONE_ROW: &str = "share of a one-row insert";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let each = lab.options.scaled(40_000, 1600) / SESSIONS;
    let batch = each.min(1000);
    let bulk = lab.runs("W11 bulk", || {
        starts(&lab.stage(), each / batch, batch, |stage, session| bulk_session(stage, session, each, batch))
    })?;
    let each_single = lab.options.scaled(20_000, 800) / SESSIONS;
    let single = lab.runs("W11 single", || {
        let mut run =
            starts(&lab.stage(), each_single, 1, |stage, session| single_session(stage, session, each_single))?;
        let starts = run.get(STARTS).ok_or("no rate")?;
        compare(&lab.stage(), each_single, starts, &mut run)?;
        Ok(run)
    })?;
    let row = |workload, ran, latency, runs, targets| Row { workload, ran, latency, runs, targets };
    Ok(vec![
        row(
            "W11 bulk",
            format!("{} starts by {SESSIONS} sessions, {batch} in a statement; a step is a start", each * SESSIONS),
            "a statement",
            bulk,
            vec![Target::at_least(STARTS, 30_000.0)],
        ),
        row(
            "W11 single",
            format!("{} starts by {SESSIONS} sessions, a transaction for each", each_single * SESSIONS),
            "a statement",
            single,
            vec![Target::at_least(OF_BY_HAND, 0.8), Target::at_least(OF_ONE_ROW, 0.35)],
        ),
    ])
}

type Latencies = Result<Vec<f64>, String>;

/// Measures the starts of all sessions. Then the engine runs the started processes.
fn starts(
    stage: &Stage<'_>,
    statements: u64,
    batch: u64,
    session: impl Fn(&Stage<'_>, u64) -> Latencies + Sync,
) -> Result<Run, String> {
    let ended = Arc::new(AtomicU64::new(0));
    let worker = counting_worker(stage, &ended);
    stage.pause();
    let processes = statements * batch * SESSIONS;
    let meter = Meter::begin(stage, &worker);
    let begun = Instant::now();
    let latencies = at_once(SESSIONS as usize, |number| session(stage, number as u64));
    let seconds = begun.elapsed().as_secs_f64();
    let mut run = meter.end(processes);
    let latencies = latencies.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect();
    chain::set_percentiles(&mut run, &Distribution::of(latencies));
    run.set(figure::PROCESSES, processes as f64 / seconds);
    run.set(STARTS, processes as f64 / seconds);
    stage.resume();
    wait_for("what was started is called", patience(processes), || Ok(ended.load(Ordering::Relaxed) >= processes))?;
    stage.wait_until_closed("", patience(processes))?;
    Expected { prefix: "p-", processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

fn counting_worker(stage: &Stage<'_>, ended: &Arc<AtomicU64>) -> Worker {
    let ended = Arc::clone(ended);
    let worker = stage.worker(move |_, reply| {
        ended.fetch_add(1, Ordering::Relaxed);
        chain::end(reply);
    });
    stage.register("fast", &worker, &[("one", &chain::definition(1))]);
    worker
}

fn process_id(session: u64, number: u64) -> String {
    format!("p-{session}-{number}")
}

fn bulk_session(stage: &Stage<'_>, session: u64, each: u64, batch: u64) -> Latencies {
    let texts: Vec<String> = (0..each / batch)
        .map(|part| {
            let one = |number| format!(r#"{{"process_id":"{}","process_type":"one"}}"#, process_id(session, number));
            let starts: Vec<String> = (part * batch..(part + 1) * batch).map(one).collect();
            format!("[{}]", starts.join(","))
        })
        .collect();
    let mut db = stage.app();
    let failed = |error: postgres::Error| format!("start_processes: {error}");
    let sql = "SELECT count(*) FROM xdb.start_processes($1::text::jsonb)";
    let statement = db.client().prepare(sql).map_err(failed)?;
    timed(texts, |text| db.client().query_one(&statement, &[&text]).map(drop).map_err(failed))
}

fn single_session(stage: &Stage<'_>, session: u64, each: u64) -> Latencies {
    let mut db = stage.app();
    let failed = |error: postgres::Error| format!("start_process: {error}");
    let statement = db.client().prepare("SELECT xdb.start_process($1, 'one')::text").map_err(failed)?;
    timed(0..each, |number| {
        db.client().query_one(&statement, &[&process_id(session, number)]).map(drop).map_err(failed)
    })
}

/// Milliseconds of each run of `body`.
fn timed<T>(items: impl IntoIterator<Item = T>, mut body: impl FnMut(T) -> Result<(), String>) -> Latencies {
    let one = |item| {
        let begun = Instant::now();
        body(item)?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    };
    items.into_iter().map(one).collect()
}

/// Writes the same rows by plain INSERTs. The database's engine is paused, and the database is dropped afterwards.
fn compare(stage: &Stage<'_>, each: u64, starts: f64, run: &mut Run) -> Result<(), String> {
    let worker = counting_worker(stage, &Arc::new(AtomicU64::new(0)));
    stage.pause();
    stage.app().run(&format!(
        "SELECT xdb.start_process('{}', 'one'); CREATE TABLE plain (id text PRIMARY KEY, note text)",
        by_hand::TEMPLATE
    ));
    let template = Template::read(&mut stage.superuser())?;
    let per_second = |session: &(dyn Fn(u64) -> Result<(), String> + Sync)| -> Result<f64, String> {
        let begun = Instant::now();
        at_once(SESSIONS as usize, |number| session(number as u64)).into_iter().collect::<Result<(), String>>()?;
        Ok((each * SESSIONS) as f64 / begun.elapsed().as_secs_f64())
    };
    let by_hand = per_second(&|session| {
        let mut db = stage.superuser();
        let statements = template.prepare(&mut db)?;
        (0..each).try_for_each(|number| statements.insert(&mut db, &format!("h-{session}-{number}")))
    })?;
    let in_one = per_second(&|session| {
        let mut db = stage.superuser();
        let statement = template.prepare_in_one(&mut db)?;
        (0..each).try_for_each(|number| statement.insert_in_one(&mut db, &format!("o-{session}-{number}")))
    })?;
    let one_row = per_second(&|session| one_row_session(&mut stage.app(), session, each))?;
    for (rate, share, value) in
        [(BY_HAND, OF_BY_HAND, by_hand), (IN_ONE, OF_IN_ONE, in_one), (ONE_ROW, OF_ONE_ROW, one_row)]
    {
        run.set(rate, value);
        run.set(share, starts / value);
    }
    // If they are the rows of a process, they are what a start would have written.
    for (prefix, count) in [("h-", each * SESSIONS), ("o-", each * SESSIONS)] {
        let found =
            stage.superuser().count(&format!("xdb.process_execution WHERE starts_with(process_id, '{prefix}')"));
        if found as u64 != count {
            return Err(format!("{found} processes were written by hand, of {count}"));
        }
        // But for the hash of the process id, which is the template's: another number would cost the same.
        let problems = verify::problems(stage, prefix);
        if let Some(problem) = problems.iter().find(|problem| !problem.contains(": shard is ")) {
            return Err(format!("by hand: {problem}"));
        }
    }
    verify::no_complaints(&[&worker])
}

fn one_row_session(db: &mut Db, session: u64, each: u64) -> Result<(), String> {
    let failed = |error: postgres::Error| format!("insert: {error}");
    let statement = db.client().prepare("INSERT INTO plain VALUES ($1, 'a note')").map_err(failed)?;
    (0..each).try_for_each(|number| {
        db.client().execute(&statement, &[&process_id(session, number)]).map(drop).map_err(failed)
    })
}
