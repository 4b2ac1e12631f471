//! W5: very many timers come due at nearly the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::Workload;
use crate::chain::{self, Arrivals};
use crate::lab::{Lab, Stage, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::Api;

pub const WORKLOAD: Workload = Workload { name: "W5", about: "timers that come due within some seconds", measure };

const CALL_P50: &str = "due to the execute call, p50 ms";
const CALL_P99: &str = "due to the execute call, p99 ms";
const LEAST: &str = "least lateness, ms";

/// The timers are set to a day later. When all processes wait, the clock of processes is set forward. The first timer
/// then fires after this number of seconds.
const AHEAD: u64 = 2;

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let timers = lab.options.scaled(100_000, 500);
    let within = lab.options.scaled_time(Duration::from_secs(10), Duration::from_secs(1));
    let runs = lab.runs("W5", || {
        let stage = lab.stage();
        let run = all_fire(&stage, timers, within);
        // The setting is the server's, also for the workloads that follow.
        lab.cluster.set("xdb.now", "");
        run
    })?;
    Ok(vec![Row {
        workload: "W5 timers",
        ran: format!("{timers} timers due within {:.1} s", within.as_secs_f64()),
        latency: "due to fired, by the server's clock",
        runs,
        targets: vec![Target::at_most(figure::P99, 100.0), Target::at_least(LEAST, 0.0)],
    }])
}

fn all_fire(stage: &Stage<'_>, timers: u64, within: Duration) -> Result<Run, String> {
    let (fired, counts) = (Arrivals::of(timers), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
    let worker = {
        let (clock, fired, counts) = (stage.clock, Arc::clone(&fired), Arc::clone(&counts));
        stage.worker(move |request, reply| {
            if request.api == Api::WaitUntil {
                counts[0].fetch_add(1, Ordering::Relaxed);
                reply.push(r#"{"commandRequest":{"waitingType":"AllOfCompletion","timerCommands":[{"fireAt":""#);
                reply.push(request.text(r#""stateInput":""#));
                reply.push(r#""}]}}"#);
            } else {
                fired.note(request.index(), clock.nanoseconds(request.at));
                counts[1].fetch_add(1, Ordering::Relaxed);
                chain::end(reply);
            }
        })
    };
    stage.register("fast", &worker, &[("timer", &json!({"startingState": "Timer", "states": {"Timer": {}}}))]);
    let base = now() + 86_400_000_000;
    let seed = stage.lab.options.seed as i64;
    // A moment of the time in question, by chance; the input of the process is the time, as the worker should send it.
    let due = format!(
        "to_timestamp({base} / 1e6) AT TIME ZONE 'UTC'
         + ((hashint8extended(i, {seed}) & 1073741823) % {}) * interval '1 microsecond'",
        within.as_micros()
    );
    let more = format!(r#"jsonb_build_object('input', to_char({due}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))"#);
    stage.start("p-", "timer", 0, timers, &more);
    let load = |place: usize| counts[place].load(Ordering::Relaxed);
    wait_for("all are asked what they wait for", patience(timers), || Ok(load(0) >= timers))?;
    let mut db = stage.superuser();
    wait_for("all timers are set", patience(timers), || Ok(db.count("xdb.timer") as u64 == timers))?;

    let meter = Meter::begin(stage, &worker);
    let shift = base - AHEAD as i64 * 1_000_000 - now();
    stage.lab.cluster.set("xdb.now", &format!("{shift} us"));
    if now() + shift >= base {
        return Err(format!("the clock was not set in {AHEAD} s"));
    }
    wait_for("all are called", patience(timers), || Ok(load(1) >= timers))?;
    stage.wait_until_closed("", patience(timers))?;
    // The seconds before the first one is due are no work.
    let seconds = (now() + shift - base) as f64 / 1e6;
    let mut run = meter.end(timers);
    run.set(figure::STEPS, timers as f64 / seconds);
    let lateness = lateness(stage)?;
    if lateness.count() as u64 != timers {
        return Err(format!("{} timers have fired, of {timers}", lateness.count()));
    }
    chain::set_percentiles(&mut run, &lateness);
    run.set(LEAST, lateness.least());
    let calls = calls_after_due(stage, &fired, shift)?;
    run.set(CALL_P50, calls.percentile(50.0));
    run.set(CALL_P99, calls.percentile(99.0));
    // The clocks of server and worker are the same one, but are read in two ways.
    if lateness.least() < 0.0 || calls.least() < -1.0 {
        return Err(format!("early by {} ms, called by {} ms", -lateness.least(), -calls.least()));
    }
    Expected { prefix: "p-", processes: timers, states: timers, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

/// Milliseconds from the time for which each timer was set to its firing, both by the clock of processes.
fn lateness(stage: &Stage<'_>) -> Result<Distribution, String> {
    let sql = "SELECT extract(epoch FROM e.event_time - (s.input #>> '{}')::timestamptz)::float8 * 1000
         FROM xdb.history_event e JOIN xdb.state_execution s USING (execution_id)
         WHERE e.event_type = 'CommandCompleted'";
    let late = stage.superuser().try_all(sql).map_err(|error| format!("{error:?}"))?;
    Ok(Distribution::of(late))
}

fn calls_after_due(stage: &Stage<'_>, fired: &Arrivals, shift: i64) -> Result<Distribution, String> {
    let sql = "SELECT substr(p.process_id, 3)::int8, extract(epoch FROM (s.input #>> '{}')::timestamptz)::float8
         FROM xdb.process_execution p JOIN xdb.state_execution s USING (execution_id)";
    let rows = stage.superuser().client().query(sql, &[]).map_err(|error| error.to_string())?;
    let late = rows.iter().filter_map(|row| {
        let called = stage.clock.wall(fired.get(row.get::<_, i64>(0) as usize)?);
        Some((called + shift as f64 / 1e6 - row.get::<_, f64>(1)) * 1000.0)
    });
    Ok(Distribution::of(late.collect()))
}

/// Microseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64
}
