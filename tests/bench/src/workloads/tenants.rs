//! Tenants: one role, the neighbour, makes a load that is allowed. Measures how long the processes of another role take
//! meanwhile.
//!
//! In each case the neighbour makes its load first. Then the other role starts quick processes of one state at fixed
//! times. It does so for some seconds at least, and until a load with an end is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xdb_cluster_tests::db::Db;

use super::Workload;
use crate::chain;
use crate::lab::{self, Lab, Stage, patience, wait_for};
use crate::machine;
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::{Api, Reply, Request, Worker};

pub const WORKLOAD: Workload =
    Workload { name: "tenants", about: "what one role asks for, and what the processes of another then take", measure };

/// Starts of quick processes per second.
const RATE: f64 = 25.0;

/// Read with each start. The peak in the table includes the touched part of `shared_buffers`.
const MEMORY: &str = "scheduler's own memory, most MB";

/// The least time for which quick processes are started.
const LENGTH: Duration = Duration::from_secs(10);

/// One kind of load, and the limit for the other role's p99.
struct Case {
    workload: &'static str,
    about: &'static str,
    milliseconds: f64,
    /// The most megabytes of the scheduler.
    memory: Option<f64>,
    run: fn(&Stage<'_>) -> Result<Run, String>,
}

const CASES: &[Case] = &[
    Case {
        workload: "tenants: hanging calls",
        about: "300 calls that hang, at the worker of the quick ones",
        milliseconds: 1000.0,
        memory: None,
        run: hanging,
    },
    Case {
        workload: "tenants: timers",
        about: "20 answers with 1,000 timers each, all due at one moment",
        milliseconds: 1000.0,
        memory: None,
        run: timers,
    },
    Case {
        workload: "tenants: next states",
        about: "20 answers with 20,000 next states each",
        milliseconds: 1000.0,
        memory: None,
        run: next_states,
    },
    Case {
        workload: "tenants: failures",
        about: "1,000 processes that fail again and again, retried after 0.1 s",
        milliseconds: 250.0,
        memory: None,
        run: failures,
    },
    Case {
        workload: "tenants: attributes",
        about: "50 processes with 15 MB of local attributes each, called all the time",
        milliseconds: 1000.0,
        memory: Some(1000.0),
        run: attributes,
    },
    Case {
        workload: "tenants: slow table",
        about: "300 processes on a table whose trigger takes 0.2 s, at the worker of the quick ones",
        milliseconds: 500.0,
        memory: None,
        run: slow_table,
    },
    Case {
        workload: "tenants: waiters",
        about: "500 sessions that wait for one process, which is sent 60,000 messages",
        milliseconds: 500.0,
        memory: None,
        run: waiters,
    },
];

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let scale = lab.options.scale;
    let sizes = if scale < 1.0 { format!(" (sizes times {scale})") } else { String::new() };
    let row = |case: &Case| {
        let runs = lab.runs(case.workload, || {
            let stage = lab.stage();
            stage.superuser().run("SELECT xdb.grant_usage('other'); GRANT CREATE ON SCHEMA public TO other");
            (case.run)(&stage)
        })?;
        let mut targets = vec![Target::at_most(figure::P99, case.milliseconds)];
        targets.extend(case.memory.map(|megabytes| Target::at_most(MEMORY, megabytes)));
        Ok(Row {
            workload: case.workload,
            ran: format!("{}{sizes}; figures of the quick ones, {RATE:.0} a second", case.about),
            latency: "the time at which a process was to be started to its close",
            runs,
            targets,
        })
    };
    CASES.iter().map(row).collect()
}

const QUICK: &str = "q-";
const NOISY: &str = "n-";

/// A worker that ends quick processes at once. `noise` answers all other calls.
fn worker(stage: &Stage<'_>, noise: impl Fn(&Request<'_>, &mut Reply) + Send + Sync + 'static) -> Worker {
    stage.worker(move |request, reply| if request.target() == "S1" { chain::end(reply) } else { noise(request, reply) })
}

/// A process type with one state.
fn noise(state: &Value) -> Value {
    json!({"startingState": "Noise", "states": {"Noise": state, "Leaf": {"skipWaitUntil": true}}})
}

/// Registers both types with one worker.
fn register_together(stage: &Stage<'_>, worker: &Worker, definition: &Value) {
    stage.register("both", worker, &[("noise", definition), ("quick", &chain::definition(1))]);
}

/// Registers the neighbour's type with a worker of its own. Returns the worker of the quick processes.
fn register_apart(stage: &Stage<'_>, noisy: &Worker, definition: &Value) -> Worker {
    let quick = stage.worker(|_, reply| chain::end(reply));
    stage.register("noisy", noisy, &[("noise", definition)]);
    stage.register("quick", &quick, &[("quick", &chain::definition(1))]);
    quick
}

/// Starts the neighbour's processes.
fn start(stage: &Stage<'_>, processes: u64, more: &str) {
    lab::start(&mut stage.other(), NOISY, "noise", 0, processes, more);
}

/// Starts quick processes at their times until `is_over`, and measures how late each was closed.
fn quick_ones(
    stage: &Stage<'_>,
    worker: &Worker,
    mut is_over: impl FnMut(Duration) -> Result<bool, String>,
) -> Result<Run, String> {
    let meter = Meter::begin(stage, worker);
    let begun = Instant::now();
    let mut db = stage.app();
    let (mut wanted_at, mut memory) = (Vec::new(), 0.0_f64);
    let schedulers = stage.schedulers();
    while !is_over(begun.elapsed())? {
        // One that is late is started at once.
        let at = begun + Duration::from_secs_f64(wanted_at.len() as f64 / RATE);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        db.start(&format!("{QUICK}{}", wanted_at.len()), "quick").go();
        wanted_at.push(at);
        let own = schedulers.iter().filter_map(|pid| machine::memory_of(*pid, "RssAnon")).sum::<f64>();
        memory = memory.max(own / 1e6);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let quick = wanted_at.len() as u64;
    stage.wait_until_closed(QUICK, patience(quick) * 5)?;
    let lateness = chain::closing_times(stage, QUICK)?.into_iter().filter_map(|(index, closed)| {
        Some((closed - stage.clock.wall(stage.clock.nanoseconds(*wanted_at.get(index)?))) * 1000.0)
    });
    let lateness = lateness.collect();
    drop(db);
    let mut run = meter.end(quick);
    run.set(figure::STEPS, quick as f64 / seconds);
    chain::set_percentiles(&mut run, &Distribution::of(lateness));
    run.set(MEMORY, memory);
    Expected { prefix: QUICK, processes: quick, states: quick, output: chain::OUTPUT }.check(stage)?;
    Ok(run)
}

/// Over after the least time of a measurement.
fn for_a_while(stage: &Stage<'_>) -> impl FnMut(Duration) -> Result<bool, String> {
    let length = stage.lab.options.scaled_time(LENGTH, Duration::from_secs(1));
    move |elapsed| Ok(elapsed >= length)
}

/// Over when no process of the neighbour runs.
fn until_done(stage: &Stage<'_>, within: Duration) -> impl FnMut(Duration) -> Result<bool, String> {
    let mut superuser = stage.superuser();
    move |elapsed| {
        if elapsed > within {
            return Err("the neighbour's processes do not complete".to_owned());
        }
        Ok(running(&mut superuser) == 0)
    }
}

fn running(superuser: &mut Db) -> i64 {
    superuser.count(&format!("xdb.processes WHERE process_id LIKE '{NOISY}%' AND status = 'RUNNING'"))
}

/// Stops the neighbour's processes that would never end.
fn stop(stage: &Stage<'_>) -> Result<(), String> {
    let (mut superuser, mut other) = (stage.superuser(), stage.other());
    wait_for("the neighbour's processes are stopped", Duration::from_secs(300), || {
        // One may be at work, and wait for the next poll.
        other.run(&format!(
            "SELECT xdb.stop_process(process_id) FROM xdb.processes
             WHERE process_id LIKE '{NOISY}%' AND status = 'RUNNING' LIMIT 10"
        ));
        Ok(running(&mut superuser) == 0)
    })?;
    verify::sound(stage, NOISY)
}

fn hanging(stage: &Stage<'_>) -> Result<Run, String> {
    let processes = stage.lab.options.scaled(300, 30);
    let hurries = Arc::new(AtomicBool::new(false));
    let worker = {
        let hurries = Arc::clone(&hurries);
        worker(stage, move |_, reply| {
            chain::end(reply);
            reply.after = if hurries.load(Ordering::Relaxed) { Duration::ZERO } else { LENGTH + LENGTH };
        })
    };
    register_together(stage, &worker, &noise(&json!({"skipWaitUntil": true, "executeApiTimeoutSeconds": 60})));
    start(stage, processes, "'{}'");
    let most = processes.min(u64::from(stage.lab.options.concurrency) / 2);
    wait_for("calls hang", patience(processes), || Ok(worker.calls() >= most))?;
    let run = quick_ones(stage, &worker, for_a_while(stage))?;
    hurries.store(true, Ordering::Relaxed);
    stage.wait_until_closed("", patience(processes) + 3 * LENGTH)?;
    Expected { prefix: NOISY, processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&worker])?;
    Ok(run)
}

fn timers(stage: &Stage<'_>) -> Result<Run, String> {
    let (processes, each) = (stage.lab.options.scaled(20, 2), stage.lab.options.scaled(1000, 10));
    // A little later than all of them are set.
    const AHEAD: i64 = 5;
    let due: String = stage.superuser().one(&format!(
        "SELECT to_char((clock_timestamp() + interval '{AHEAD} s') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    ));
    let timers = vec![format!(r#"{{"fireAt":"{due}"}}"#); each as usize].join(",");
    let wait = format!(r#"{{"commandRequest":{{"waitingType":"AllOfCompletion","timerCommands":[{timers}]}}}}"#);
    let noisy = worker(
        stage,
        move |request, reply| if request.api == Api::WaitUntil { reply.push(&wait) } else { chain::end(reply) },
    );
    let quick = register_apart(stage, &noisy, &noise(&json!({})));
    start(stage, processes, "'{}'");
    let run = quick_ones(stage, &quick, until_done(stage, patience(processes * each)))?;
    Expected { prefix: NOISY, processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&noisy, &quick])?;
    Ok(run)
}

fn next_states(stage: &Stage<'_>) -> Result<Run, String> {
    let (processes, each) = (stage.lab.options.scaled(20, 2), stage.lab.options.scaled(20_000, 100));
    let leaves = vec![r#"{"stateId":"Leaf"}"#; each as usize].join(",");
    let fan = format!(r#"{{"stateDecision":{{"nextStates":[{leaves}]}}}}"#);
    let noisy = worker(stage, move |request, reply| match request.target() {
        "Leaf" => reply.push(r#"{"stateDecision":{"threadCloseDecision":{"closeType":"DEAD_END"}}}"#),
        _ => reply.push(&fan),
    });
    let quick = register_apart(stage, &noisy, &noise(&json!({"skipWaitUntil": true})));
    start(stage, processes, "'{}'");
    let run = quick_ones(stage, &quick, for_a_while(stage))?;
    stop(stage)?;
    verify::no_complaints(&[&noisy, &quick])?;
    Ok(run)
}

fn failures(stage: &Stage<'_>) -> Result<Run, String> {
    let processes = stage.lab.options.scaled(1000, 50);
    let noisy = worker(stage, |_, reply| reply.push("no answer"));
    let again = json!({"initialIntervalSeconds": 0.1, "backoffCoefficient": 1, "maximumIntervalSeconds": 0.1});
    let quick = register_apart(stage, &noisy, &noise(&json!({"skipWaitUntil": true, "executeApiRetryPolicy": again})));
    start(stage, processes, "'{}'");
    let run = quick_ones(stage, &quick, for_a_while(stage))?;
    stop(stage)?;
    verify::at_rest(stage, &[&noisy, &quick])?;
    Ok(run)
}

fn attributes(stage: &Stage<'_>) -> Result<Run, String> {
    let (processes, each) = (stage.lab.options.scaled(50, 5), stage.lab.options.scaled(1500, 10));
    let noisy = worker(stage, |_, reply| reply.push(r#"{"stateDecision":{"nextStates":[{"stateId":"Noise"}]}}"#));
    let quick = register_apart(stage, &noisy, &noise(&json!({"skipWaitUntil": true})));
    let mut other = stage.other();
    // Ten thousand bytes each, which do not compress.
    other.run(&format!(
        "CREATE TABLE large AS SELECT jsonb_object_agg('a' || n, v) AS attributes FROM (
             SELECT n, string_agg(md5(n || '-' || m), '') AS v
             FROM generate_series(1, {each}) n, generate_series(1, 312) m GROUP BY n) a"
    ));
    for number in 0..processes {
        other.run(&format!(
            "SELECT xdb.start_process('{NOISY}{number}', 'noise', local_attributes => attributes) FROM large"
        ));
    }
    wait_for("all have been called", patience(processes), || Ok(noisy.calls() >= processes))?;
    let run = quick_ones(stage, &quick, for_a_while(stage))?;
    stop(stage)?;
    verify::at_rest(stage, &[&noisy, &quick])?;
    Ok(run)
}

fn slow_table(stage: &Stage<'_>) -> Result<Run, String> {
    const TABLE: &str = "CREATE TABLE slow (id text PRIMARY KEY, n int NOT NULL);
        CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN new; END';
        CREATE TRIGGER dawdle BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION dawdle();";
    let processes = stage.lab.options.scaled(300, 30);
    stage.other().run(TABLE);
    let mut definition = noise(&json!({"skipWaitUntil": true}));
    definition["globalAttributes"] = json!([{"table": "public.slow", "primaryKey": "id", "attributes": {"n": "n"}}]);
    let both = worker(stage, |_, reply| chain::go_on(1, 1, r#","writeToGlobalAttributes":{"n":1}"#, reply));
    register_together(stage, &both, &definition);
    start(
        stage,
        processes,
        "jsonb_build_object('global_attribute_pk', 'r-' || i, 'global_attributes', jsonb_build_object('n', 0))",
    );
    let run = quick_ones(stage, &both, until_done(stage, patience(processes) + Duration::from_secs(processes)))?;
    Expected { prefix: NOISY, processes, states: processes, output: chain::OUTPUT }.check(stage)?;
    let written = stage.superuser().count("public.slow WHERE n = 1") as u64;
    if written != processes {
        return Err(format!("{written} rows of {processes} were written"));
    }
    verify::at_rest(stage, &[&both])?;
    Ok(run)
}

fn waiters(stage: &Stage<'_>) -> Result<Run, String> {
    let (sessions, messages) = (stage.lab.options.scaled(500, 20), stage.lab.options.scaled(60_000, 100));
    const AT_ONCE: u64 = 100;
    let wait = r#"{"commandRequest":{"waitingType":"AllOfCompletion","localQueueCommands":[{"commandId":"end","queueName":"never"}]}}"#;
    let noisy = worker(stage, move |_, reply| reply.push(wait));
    let quick = register_apart(stage, &noisy, &noise(&json!({})));
    start(stage, 1, "'{}'");
    let published = AtomicU64::new(0);
    let run =
        std::thread::scope(|scope| {
            let waiter = |_| {
                let mut db = stage.other();
                scope
                    .spawn(move || db.run(&format!("SELECT xdb.wait_for_process('{NOISY}0', timeout => '10 minutes')")))
            };
            let waiters: Vec<_> = (0..sessions).map(waiter).collect();
            let published = &published;
            scope.spawn(move || {
                let mut db = stage.other();
                while published.load(Ordering::Relaxed) < messages {
                    db.run(&format!(
                        "SELECT xdb.publish('{NOISY}0', 'sent', to_jsonb(n)) FROM generate_series(1, {AT_ONCE}) n"
                    ));
                    published.fetch_add(AT_ONCE, Ordering::Relaxed);
                }
            });
            let mut at_least = for_a_while(stage);
            let run = quick_ones(stage, &quick, |elapsed| {
                Ok(at_least(elapsed)? && published.load(Ordering::Relaxed) >= messages)
            });
            // Even after an error, the waiting threads must be notified.
            published.fetch_max(messages, Ordering::Relaxed);
            let stopped = stop(stage);
            let ended = waiters.into_iter().all(|waiter| waiter.join().is_ok());
            let run = run?;
            stopped?;
            if ended { Ok(run) } else { Err("a session has lost what it waited for".to_owned()) }
        })?;
    verify::at_rest(stage, &[&noisy, &quick])?;
    Ok(run)
}
