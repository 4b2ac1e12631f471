//! W16: a thousand sessions of pull workers wait for a call. Then eight sessions, while another session keeps an old
//! snapshot.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use super::Workload;
use super::w8_idle::{Idle, SERVER, SERVERS_OWN};
use super::w15_pull::{self, COMPLETE, Completed};
use crate::chain;
use crate::lab::{Lab, Stage, wait_for};
use crate::report::{Row, Run, Target, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};

pub const WORKLOAD: Workload =
    Workload { name: "W16", about: "1,000 sessions that wait for calls; pull workers beside an old snapshot", measure };

const CLAIM: &str = "SELECT token, request ->> 'stateId' FROM xdb.claim_calls('pull', wait => '1 hour')";
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'Extension' AND query LIKE '%claim_calls(%wait%'";
/// The time between two calls that become due.
const APART: Duration = Duration::from_millis(20);
const REACHED: &str = "call committed to worker, p99 ms";
const KEPT: &str = "with a snapshot held against without, steps";

fn measure(lab: &Lab) -> Result<Vec<Row>, String> {
    let sessions = lab.options.scaled(1_000, 50) as usize;
    let calls = lab.options.scaled(1_000, 50);
    let length = lab.options.scaled_time(Duration::from_secs(30), Duration::from_secs(3));
    let idle = Row {
        workload: "W16 pull, idle",
        ran: format!(
            "{sessions} sessions wait for calls of one worker; {} s of nothing to do, then {calls} calls",
            length.as_secs()
        ),
        latency: "start committed to the claim's row, as the clients see them",
        runs: lab.runs("W16 idle", || idle(&lab.stage(), sessions, calls, length))?,
        targets: vec![Target::at_most(SERVER, 2.0), Target::at_most(REACHED, 10.0)],
    };
    let processes = lab.options.scaled(20_000, 200);
    let held = Row {
        workload: "W16 pull, old snapshot",
        ran: format!("W15 with {processes} processes and eight connections, while another session holds a snapshot"),
        latency: "the statement that completes, as the client sees it",
        runs: lab.runs("W16 old snapshot", || old_snapshot(lab, processes))?,
        targets: vec![Target::at_least(KEPT, 0.9)],
    };
    Ok(vec![idle, held])
}

fn idle(stage: &Stage<'_>, sessions: usize, calls: u64, length: Duration) -> Result<Run, String> {
    w15_pull::register(stage, &chain::definition(1));
    let (claimed, arrivals) = channel();
    std::thread::scope(|scope| {
        for _ in 0..sessions {
            let claimed = claimed.clone();
            scope.spawn(move || wait_and_work(stage, &claimed));
        }
        let measured = (|| -> Result<Run, String> {
            let waiting = || Ok(stage.superuser().one::<i64>(WAITING) == sessions as i64);
            wait_for("all sessions wait", Duration::from_secs(300), waiting)?;
            // What the sessions did when they connected would be counted.
            stage.come_to_rest(SERVERS_OWN)?;
            let mut run = Idle::over(stage, length);
            let (mut latencies, mut db) = (Vec::new(), stage.app());
            for number in 0..calls {
                crate::lab::start(&mut db, "p-", "chain", number, number + 1, "'{}'");
                let started = Instant::now();
                let arrived: Instant = arrivals
                    .recv_timeout(Duration::from_secs(30))
                    .map_err(|_| format!("call {number} reaches no session"))?;
                latencies.push(arrived.saturating_duration_since(started).as_secs_f64() * 1000.0);
                std::thread::sleep(APART);
            }
            let latencies = Distribution::of(latencies);
            run.set(REACHED, latencies.percentile(99.0));
            chain::set_percentiles(&mut run, &latencies);
            stage.wait_until_closed("p-", Duration::from_secs(60))?;
            Ok(run)
        })();
        stage.superuser().run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE query LIKE '%claim_calls(%wait%' AND pid <> pg_backend_pid()",
        );
        let run = measured?;
        Expected { prefix: "p-", processes: calls, states: calls, output: chain::OUTPUT }.check(stage)?;
        verify::at_rest(stage, &[])?;
        Ok(run)
    })
}

/// Claims calls and completes them, until the session is ended.
fn wait_and_work(stage: &Stage<'_>, claimed: &Sender<Instant>) {
    let mut db = stage.app();
    while let Ok(calls) = db.client().query(CLAIM, &[]) {
        if calls.is_empty() {
            continue;
        }
        let at = Instant::now();
        let Ok((tokens, answers)) = w15_pull::answered(&calls, 1) else { return };
        if db.client().execute(COMPLETE, &[&tokens, &answers]).is_err() || claimed.send(at).is_err() {
            return;
        }
    }
}

fn old_snapshot(lab: &Lab, processes: u64) -> Result<Run, String> {
    let without = w15_pull::pull(&lab.stage(), 8, Completed::EachAlone, processes)?;
    let stage = lab.stage();
    let mut holder = stage.superuser();
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM xdb.task");
    let mut run = w15_pull::pull(&stage, 8, Completed::EachAlone, processes)?;
    if !holder.one::<bool>("SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = pg_backend_pid()") {
        return Err("the snapshot was not held".into());
    }
    let rates = run.get(figure::STEPS).zip(without.get(figure::STEPS)).ok_or("W15 gave no rate")?;
    run.set(KEPT, rates.0 / rates.1);
    Ok(run)
}
