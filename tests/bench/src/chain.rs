//! Processes of several no-op states, one after the other. Most workloads are made of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xdb_cluster_tests::db::literal;

use crate::lab::{Stage, patience, wait_for};
use crate::meter::Meter;
use crate::report::{Run, figure};
use crate::stats::Distribution;
use crate::verify::{self, Expected};
use crate::worker::{Reply, Request, Worker};

/// The states `S1` to `S<states>`, none of which waits.
pub fn definition(states: u64) -> Value {
    let configs: serde_json::Map<String, Value> =
        (1..=states).map(|number| (format!("S{number}"), json!({"skipWaitUntil": true}))).collect();
    json!({"startingState": "S1", "states": configs})
}

const DONE_BUT_FOR_ITS_END: &str =
    r#"{"stateDecision":{"threadCloseDecision":{"closeType":"GRACEFUL_COMPLETE_PROCESS","closeInput":"done"}}"#;

/// Ends a process. Every process of the benchmark ends in this way.
pub fn end(reply: &mut Reply) {
    go_on(1, 1, "", reply);
}

/// The result of such a process.
pub const OUTPUT: &str = r#""done""#;

/// When the first request of each process came.
pub struct Arrivals(Vec<AtomicU64>);

const NEVER: u64 = u64::MAX;

impl Arrivals {
    pub fn of(processes: u64) -> Arc<Arrivals> {
        Arc::new(Arrivals((0..processes).map(|_| AtomicU64::new(NEVER)).collect()))
    }

    /// Records the time of a process's first request. A repeated call is later, and changes nothing.
    pub fn note(&self, index: usize, nanoseconds: u64) {
        if let Some(place) = self.0.get(index) {
            place.fetch_min(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Nanoseconds by the clock of the stage.
    pub fn get(&self, index: usize) -> Option<u64> {
        self.0.get(index).map(|place| place.load(Ordering::Relaxed)).filter(|time| *time != NEVER)
    }
}

/// A worker that sends each process through its states. It counts the processes that it has sent to their end.
pub struct ChainWorker {
    pub worker: Worker,
    arrivals: Arc<Arrivals>,
    ended: Arc<AtomicU64>,
}

impl ChainWorker {
    /// `answer` gets the number of the called state, from 1, and the request.
    pub fn start(
        stage: &Stage<'_>,
        processes: u64,
        states: u64,
        answer: impl Fn(u64, &Request<'_>, &mut Reply) + Send + Sync + 'static,
    ) -> ChainWorker {
        let (arrivals, ended) = (Arrivals::of(processes), Arc::new(AtomicU64::new(0)));
        let worker = {
            let (clock, arrivals, ended) = (stage.clock, Arc::clone(&arrivals), Arc::clone(&ended));
            stage.worker(move |request: &Request<'_>, reply: &mut Reply| {
                let number = state_number(request);
                if number == 1 {
                    arrivals.note(request.index(), clock.nanoseconds(request.at));
                }
                answer(number, request, reply);
                if number == states {
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        ChainWorker { worker, arrivals, ended }
    }

    /// Waits until the last answers of this number of processes were given. Repeated answers count again. Then waits
    /// until no process runs.
    pub fn wait_for_end(&self, stage: &Stage<'_>, ended: u64, within: Duration) -> Result<(), String> {
        wait_for("the last calls are made", within, || Ok(self.ended() >= ended))?;
        stage.wait_until_closed("", within)
    }

    /// How many last answers were given.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Milliseconds from the first request of each process to its close. Only processes whose ids begin with `prefix`.
    pub fn latencies(&self, stage: &Stage<'_>, prefix: &str) -> Result<Vec<f64>, String> {
        let closes = closing_times(stage, prefix)?;
        let latency = |(index, closed): &(usize, f64)| {
            self.latency(stage, *index, *closed).ok_or(format!("{prefix}{index} was closed without a call"))
        };
        closes.iter().map(latency).collect()
    }

    /// Milliseconds from the first request of one process to this moment of the server's clock.
    pub fn latency(&self, stage: &Stage<'_>, index: usize, closed: f64) -> Option<f64> {
        Some((closed - stage.clock.wall(self.arrivals.get(index)?)) * 1000.0)
    }
}

/// The number of the called state `S<number>`.
pub fn state_number(request: &Request<'_>) -> u64 {
    request.target().get(1..).and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

/// The answer of the state with this number, in a process of `states` states: the next state, or the end. `more` are
/// further fields of the answer.
pub fn go_on(number: u64, states: u64, more: &str, reply: &mut Reply) {
    if number < states {
        reply.push(r#"{"stateDecision":{"nextStates":[{"stateId":"S"#);
        // There are fewer than ten states.
        reply.body.push(b'1' + (number % 10) as u8);
        reply.push(r#""}]}"#);
    } else {
        reply.push(DONE_BUT_FOR_ITS_END);
    }
    reply.push(more);
    reply.push("}");
}

/// The answer of the state with this number, for tests that answer without HTTP.
pub fn answer(number: u64, states: u64) -> String {
    match number < states {
        true => format!(r#"{{"stateDecision":{{"nextStates":[{{"stateId":"S{}"}}]}}}}"#, number + 1),
        false => format!("{DONE_BUT_FOR_ITS_END}}}"),
    }
}

/// The number of each closed process, and when it closed, in seconds since 1970 by the server's clock.
pub fn closing_times(stage: &Stage<'_>, prefix: &str) -> Result<Vec<(usize, f64)>, String> {
    let sql = format!(
        "SELECT substr(process_id, {})::int8, extract(epoch FROM closed_at)::float8
         FROM xdb.process_execution WHERE process_id LIKE {} AND closed_at IS NOT NULL",
        prefix.len() + 1,
        literal(&format!("{prefix}%"))
    );
    let rows = stage.superuser().client().query(&sql, &[]).map_err(|error| error.to_string())?;
    Ok(rows.iter().map(|row| (row.get::<_, i64>(0) as usize, row.get(1))).collect())
}

/// Sets the usual percentiles.
pub fn set_percentiles(run: &mut Run, milliseconds: &Distribution) {
    run.set(figure::P50, milliseconds.percentile(50.0));
    run.set(figure::P95, milliseconds.percentile(95.0));
    run.set(figure::P99, milliseconds.percentile(99.0));
}

/// The rate of [`drain`] if the time of the starts counts too.
pub const WITH_STARTS: &str = "with their starts, processes/s";

/// Starts processes while the engine is paused. Measures from the end of the pause until the last process has closed.
pub fn drain(
    stage: &Stage<'_>,
    chain: &ChainWorker,
    process_type: &str,
    prefix: &str,
    processes: u64,
    states: u64,
    more: &str,
) -> Result<Run, String> {
    stage.pause();
    let starting = Instant::now();
    stage.start(prefix, process_type, 0, processes, more);
    let starts = starting.elapsed().as_secs_f64();
    let ended = chain.ended();
    let meter = Meter::begin(stage, &chain.worker);
    let begun = Instant::now();
    stage.resume();
    let steps = processes * states;
    chain.wait_for_end(stage, ended + processes, patience(steps))?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut run = meter.end(steps);
    run.set(figure::STEPS, steps as f64 / seconds);
    run.set(figure::PROCESSES, processes as f64 / seconds);
    run.set(WITH_STARTS, processes as f64 / (starts + seconds));
    let latencies = chain.latencies(stage, prefix)?;
    set_percentiles(&mut run, &Distribution::of(latencies));
    Expected { prefix, processes, states: steps, output: OUTPUT }.check(stage)?;
    verify::at_rest(stage, &[&chain.worker])?;
    Ok(run)
}

/// Runs the chain in a database of its own. Other workloads are compared with the result.
pub fn plain(stage: &Stage<'_>, processes: u64, states: u64) -> Result<Run, String> {
    let answer = move |number, _: &Request<'_>, reply: &mut Reply| go_on(number, states, "", reply);
    let chain = ChainWorker::start(stage, processes, states, answer);
    stage.register("fast", &chain.worker, &[("chain", &definition(states))]);
    drain(stage, &chain, "chain", "p-", processes, states, "'{}'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Api;

    #[test]
    fn the_first_arrival_of_each_process_is_kept() {
        let arrivals = Arrivals::of(2);
        for (index, time) in [(1, 7), (1, 5), (1, 9), (5, 1), (usize::MAX, 1)] {
            arrivals.note(index, time);
        }
        assert_eq!((arrivals.get(0), arrivals.get(1), arrivals.get(5)), (None, Some(5), None));
    }

    #[test]
    fn answers_are_json_and_lead_to_the_next_state() {
        let answer = |number, more: &str| -> Value {
            let mut reply = Reply::default();
            go_on(number, 3, more, &mut reply);
            serde_json::from_slice(&reply.body).expect("JSON")
        };
        assert_eq!(answer(2, "")["stateDecision"]["nextStates"][0]["stateId"], "S3");
        assert_eq!(answer(3, "")["stateDecision"]["threadCloseDecision"]["closeInput"], "done");
        assert_eq!(answer(3, r#","x":1"#)["x"], 1);
        let request = Request { api: Api::Execute, body: br#"{"stateId":"S4"}"#, at: Instant::now() };
        assert_eq!(state_number(&request), 4);
    }
}
