//! W18: many schedules that tick each second, and start a process at each tick.

use std::time::Duration;

use super::Workload;
use crate::chain;
use crate::lab::{Lab, Stage, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify;

pub const WORKLOAD: Workload = Workload { name: "W18", about: "schedules that tick each second", measure };

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let schedules = lab.options.scaled(1000, 20);
    let lasting = lab.options.scaled_time(Duration::from_secs(20), Duration::from_secs(3));
    let runs = lab.runs("W18", || run(&lab.stage(), schedules, lasting))?;
    Ok(vec![Row {
        workload: "W18 schedules",
        ran: format!("{schedules} schedules with @every 1 second, for {} s", lasting.as_secs()),
        latency: "due to fired, by the server's clock",
        runs,
        // A tick counts from the begin of its wait, so late ones make this a target that can't quite be reached.
        targets: vec![Target::at_least(figure::STEPS, schedules as f64), Target::at_most(figure::P99, 1000.0)],
    }])
}

fn run(stage: &Stage<'_>, schedules: u64, lasting: Duration) -> Result<Run, String> {
    // The meter reads one; it gets no requests.
    let worker = stage.worker(|_, reply| chain::end(reply));
    stage.register("fast", &worker, &[("idle", &chain::definition(1))]);
    stage.superuser().run(
        r#"CREATE FUNCTION public.report(request jsonb) RETURNS jsonb LANGUAGE sql AS
         $$ SELECT '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}'::jsonb $$;
         SELECT xdb.register_process_type('report', NULL,
             '{"startingState": "R", "states": {"R": {"skipWaitUntil": true, "executeFunction": "public.report"}}}');
         SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick":
             {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}}')"#,
    );
    let mut db = stage.app();
    db.run(&format!(
        r#"SELECT xdb.schedule('s-' || i, '@every 1 second', '{{"process_type": "report"}}') FROM generate_series(1, {schedules}) AS i"#
    ));
    let mut superuser = stage.superuser();
    let ticked = "xdb.history_event WHERE event_type = 'CommandCompleted'";
    wait_for("all have ticked", patience(schedules), || Ok(superuser.count(ticked) as u64 >= schedules))?;

    let meter = Meter::begin(stage, &worker);
    let before = superuser.count(ticked);
    std::thread::sleep(lasting);
    let ticks = (superuser.count(ticked) - before) as u64;
    let seconds = meter.elapsed();
    let mut run = meter.end(ticks);
    run.set(figure::STEPS, ticks as f64 / seconds);
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE process_type = 'Schedule'");
    wait_for("all reports are made", patience(ticks), || {
        Ok(superuser.count("xdb.processes WHERE status = 'RUNNING'") == 0)
    })?;
    let late = "SELECT extract(epoch FROM c.event_time)::float8 * 1000
            - (w.details #>> '{commands,0,kind,timer,fireAt}')::float8 / 1000
        FROM xdb.history_event AS c JOIN xdb.history_event AS w
            ON w.execution_id = c.execution_id AND w.event_type = 'WaitStarted' AND w.details['seq'] = c.details['seq']
        WHERE c.event_type = 'CommandCompleted'";
    let late = superuser.try_all(late).map_err(|error| format!("{error:?}"))?;
    chain::set_percentiles(&mut run, &Distribution::of(late));
    // Each tick has started a process, except those whose step the stop has aborted.
    let completed = superuser.count(
        "xdb.history WHERE event_type = 'StateCompleted' AND execution_id IN
        (SELECT execution_id FROM xdb.processes WHERE process_type = 'Schedule')",
    );
    let reports = superuser.count("xdb.processes WHERE process_type = 'report'");
    if completed != reports {
        return Err(format!("{completed} ticks have started {reports} processes"));
    }
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}
