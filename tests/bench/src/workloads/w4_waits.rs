//! W4: very many processes that wait for a timer of a day or a message. Measures their costs, and how soon a message
//! wakes one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use xdb_cluster_tests::random::Random;
use xdb_cluster_tests::wait::at_once;

use super::Workload;
use super::w8_idle::{self, Idle};
use crate::chain::{self, Arrivals};
use crate::lab::{Lab, Stage, fill, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, counts};
use crate::worker::{Api, Worker};

pub const WORKLOAD: Workload = Workload { name: "W4", about: "processes that wait for a day or a message", measure };

const SESSIONS: usize = 8;
/// Publishes per second.
const RATE: f64 = 2000.0;
/// The limit of the p99, in milliseconds.
const SLOWEST: f64 = 50.0;
const ACHIEVED: &str = "publishes/s achieved";
const HIGHEST: &str = "highest publishes/s with p99 under 50 ms";

const WAIT: &str = r#"{"commandRequest":{"waitingType":"AnyOfCompletion","timerCommands":[{"commandId":"day","delayInSeconds":86400}],"localQueueCommands":[{"commandId":"message","queueName":"go"}]}}"#;

/// The waiting processes, and which of them have no message yet.
struct Crowd<'a> {
    stage: &'a Stage<'a>,
    worker: &'a Worker,
    woken: &'a Arrivals,
    /// The numbers of the processes, in the order in which they are woken.
    order: Vec<usize>,
    next: usize,
}

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let stage = lab.stage();
    let wanted = lab.options.scaled(1_000_000, 5000);
    let (woken, waiting) = (Arrivals::of(wanted), Arc::new(AtomicU64::new(0)));
    let worker = {
        let (clock, woken, waiting) = (stage.clock, Arc::clone(&woken), Arc::clone(&waiting));
        stage.worker(move |request, reply| match request.api {
            Api::WaitUntil => {
                waiting.fetch_add(1, Ordering::Relaxed);
                reply.push(WAIT);
            }
            Api::Execute | Api::Rpc => {
                woken.note(request.index(), clock.nanoseconds(request.at));
                chain::end(reply);
            }
        })
    };
    stage.register("fast", &worker, &[("wait", &json!({"startingState": "Wait", "states": {"Wait": {}}}))]);
    let begun = Instant::now();
    let done = || waiting.load(Ordering::Relaxed);
    let crowd = fill(&stage, ("p-", "wait"), 0, wanted, begun + lab.options.fill, done)?;
    let mut db = stage.superuser();
    wait_for("all wait", patience(10_000), || Ok(db.count("xdb.timer") as u64 == crowd))?;
    drop(db);
    let ran = format!("{crowd} processes wait, of {wanted} wanted, made in {:.0} s", begun.elapsed().as_secs_f64());
    println!("W4: {ran}");

    let mut order: Vec<usize> = (0..crowd as usize).collect();
    Random::new(lab.options.seed, "woken").shuffle(&mut order);
    let mut crowd = Crowd { stage: &stage, worker: &worker, woken: &woken, order, next: 0 };
    let mut rows = vec![idle(lab, &stage, &ran)?];
    rows.push(at_rate(lab, &mut crowd, &ran)?);
    rows.push(highest(lab, &mut crowd, &ran)?);
    crowd.check()?;
    Ok(rows)
}

fn idle(lab: &Lab, stage: &Stage<'_>, ran: &str) -> Result<Row, String> {
    let length = lab.options.scaled_time(Duration::from_secs(10), Duration::from_secs(2));
    stage.come_to_rest(Duration::from_secs(1))?;
    let runs = lab.runs("W4 idle", || Ok(Idle::over(stage, length)))?;
    Ok(Row {
        workload: "W4 idle",
        ran: format!("{ran}; {} s of nothing to do", length.as_secs()),
        latency: "",
        runs,
        targets: vec![
            Target::at_most(w8_idle::ENGINE, w8_idle::HARDLY_ANY),
            Target::at_most(w8_idle::SERVER, 5.0 * w8_idle::HARDLY_ANY),
        ],
    })
}

fn at_rate(lab: &Lab, crowd: &mut Crowd<'_>, ran: &str) -> Result<Row, String> {
    // At most half of the waiting processes, so that enough are left for the search.
    let most = crowd.order.len() as u64 / 2 / lab.options.runs as u64;
    let length = lab.options.scaled_time(Duration::from_secs(5), Duration::from_secs(1));
    let count = ((RATE * length.as_secs_f64()) as u64).min(most);
    let runs = lab.runs("W4 publish", || {
        let meter = Meter::begin(crowd.stage, crowd.worker);
        let probe = crowd.wake(count as usize, RATE)?;
        let mut run = meter.end(count);
        chain::set_percentiles(&mut run, &probe.milliseconds);
        run.set(figure::STEPS, probe.woken_per_second);
        run.set(ACHIEVED, probe.achieved);
        Ok(run)
    })?;
    Ok(Row {
        workload: "W4 publish",
        ran: format!("{ran}; {count} single publishes by {SESSIONS} sessions, {RATE} a second"),
        latency: LATENCY,
        runs,
        targets: vec![Target::at_most(figure::P99, SLOWEST)],
    })
}

const LATENCY: &str = "publish committed to the execute call";

/// Doubles the rate until it is not achieved. Then halves the distance three times.
fn highest(lab: &Lab, crowd: &mut Crowd<'_>, ran: &str) -> Result<Row, String> {
    let length = lab.options.scaled_time(Duration::from_secs(5), Duration::from_millis(500)).as_secs_f64();
    let mut left = lab.options.runs;
    let runs = lab.runs("W4 highest rate", || {
        let (mut held, mut missed, mut rate) = (0.0, f64::INFINITY, 250.0);
        let mut spare = (crowd.order.len() - crowd.next) / left;
        left -= 1;
        let mut refinements = 3;
        let mut run = Run::default();
        while refinements > 0 {
            let count = (rate * length) as usize;
            if count > spare {
                run.set("ended because too few wait", 1.0);
                break;
            }
            spare -= count;
            let probe = crowd.wake(count, rate)?;
            if probe.milliseconds.percentile(99.0) < SLOWEST && probe.achieved > 0.95 * rate {
                held = rate;
                chain::set_percentiles(&mut run, &probe.milliseconds);
            } else {
                missed = rate;
            }
            if missed.is_finite() {
                refinements -= 1;
                rate = (held + missed) / 2.0;
            } else {
                rate *= 2.0;
            }
        }
        run.set(HIGHEST, held);
        Ok(run)
    })?;
    Ok(Row {
        workload: "W4 highest rate",
        ran: format!("{ran}; probes of {length} s"),
        latency: LATENCY,
        runs,
        targets: Vec::new(),
    })
}

struct Probe {
    milliseconds: Distribution,
    achieved: f64,
    woken_per_second: f64,
}

impl Crowd<'_> {
    /// Publishes to the next processes at this rate, each in a transaction of its own. Waits until all are called.
    fn wake(&mut self, count: usize, rate: f64) -> Result<Probe, String> {
        let targets = &self.order[self.next..self.next + count];
        self.next += count;
        let stage = self.stage;
        let begun = Instant::now();
        let committed = at_once(SESSIONS, |session| publish(stage, targets, session, rate));
        let committed: Vec<(usize, Instant)> =
            committed.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect();
        let first_due = committed.iter().map(|(_, at)| *at).min().unwrap_or(begun);
        let published = committed.iter().map(|(_, at)| *at).max().unwrap_or(begun) - first_due;
        let is_woken = |(index, _): &(usize, Instant)| self.woken.get(*index).is_some();
        wait_for("all that got a message are called", patience(count as u64), || Ok(committed.iter().all(is_woken)))?;
        let milliseconds = committed.iter().filter_map(|(index, at)| {
            Some((self.woken.get(*index)? as f64 - stage.clock.nanoseconds(*at) as f64) / 1e6)
        });
        let milliseconds = Distribution::of(milliseconds.collect());
        let last = committed.iter().filter_map(|(index, _)| self.woken.get(*index)).max().unwrap_or_default();
        let woken_in = (last.saturating_sub(stage.clock.nanoseconds(first_due))) as f64 / 1e9;
        let mut db = stage.superuser();
        wait_for("what was called is over", patience(count as u64), || Ok(db.count("xdb.task") == 0))?;
        Ok(Probe {
            milliseconds,
            // The first one is published at the beginning, so there is one interval less.
            achieved: (count.max(2) - 1) as f64 / published.as_secs_f64().max(1e-6),
            woken_per_second: count as f64 / woken_in.max(1e-6),
        })
    }

    /// Checks that processes with a message have completed, and that all others wait.
    fn check(&self) -> Result<(), String> {
        let (all, woken) = (self.order.len() as i64, self.next as i64);
        let sql = "SELECT 'timers', count(*) FROM xdb.timer UNION ALL
             SELECT 'running', count(*) FROM xdb.process_execution WHERE status = 'RUNNING' UNION ALL
             SELECT 'completed', count(*) FROM xdb.processes WHERE status = 'COMPLETED' AND result = '\"done\"' UNION ALL
             SELECT 'tasks', count(*) FROM xdb.task UNION ALL
             SELECT 'messages', (SELECT count(*) FROM xdb.inbox) + (SELECT count(*) FROM xdb.queue_message)";
        let found = counts(&mut self.stage.superuser(), sql);
        let expected =
            [("timers", all - woken), ("running", all - woken), ("completed", woken), ("tasks", 0), ("messages", 0)];
        for (name, count) in expected {
            if found[name] != count {
                return Err(format!("{name}: {} where {count} were expected", found[name]));
            }
        }
        verify::sound(self.stage, "p-")?;
        verify::no_complaints(&[self.worker])
    }
}

/// The publishes of one session, each at its time, or at once if the session is late. Returns the time of each commit.
fn publish(stage: &Stage<'_>, targets: &[usize], session: usize, rate: f64) -> Result<Vec<(usize, Instant)>, String> {
    let mut db = stage.app();
    let failed = |error: postgres::Error| format!("publish: {error}");
    let statement = db.client().prepare("SELECT xdb.publish($1, 'go', '1')").map_err(failed)?;
    // The first use of a function in a session loads what it needs: that is not what is measured.
    db.run("SELECT xdb.describe_process('p-0')");
    let begun = Instant::now();
    let own = targets.iter().enumerate().skip(session).step_by(SESSIONS);
    own.map(|(place, index)| {
        let due = begun + Duration::from_secs_f64(place as f64 / rate);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        db.client().execute(&statement, &[&format!("p-{index}")]).map_err(failed)?;
        Ok((*index, Instant::now()))
    })
    .collect()
}
