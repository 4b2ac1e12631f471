//! The worker's own ledger: every call that came and every answer that was given.
//!
//! It knows what the engine may not know: which answers were sent when. What a call carries was decided by a committed
//! transaction, so a call that comes again with another request shows that a decision was taken back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use xdb_cluster_tests::worker::{Api, Call};

/// Timers go by the server's clock, these measurements by the monotonic one.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(5);

/// An answer that was given.
pub struct Given {
    /// The call's id.
    pub call: String,
    /// Which arrival of the call it answers.
    arrival: usize,
    /// It left the worker at this moment or later.
    sent: Instant,
    /// Of the timer that it asks for.
    delay: Option<Duration>,
    /// It was the second answer to its request: nobody may make anything of it.
    surplus: bool,
}

struct Calls {
    request: String,
    arrivals: Vec<Instant>,
}

#[derive(Default)]
struct State {
    calls: HashMap<String, Calls>,
    given: HashMap<u64, Given>,
    /// By message, the call that got it.
    delivered: HashMap<String, String>,
    complaints: Vec<String>,
    next_nonce: u64,
    count: u64,
    repeated: u64,
}

/// What the worker has seen and done in this round.
#[derive(Default)]
pub struct Ledger(Mutex<State>);

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics with the lock")
    }

    /// Notes a call, compares it with what came before, and gives its number among those with its id.
    pub fn arrived(&self, call: &Call) -> usize {
        let request = match call.api {
            Api::Execute => format!("{} {}", call.body["stateInput"], call.body["commandResults"]),
            _ => call.input().to_string(),
        };
        let mut state = self.state();
        state.count += 1;
        check_timers(&mut state, call);
        for uid in messages(call) {
            let first = state.delivered.entry(uid.clone()).or_insert_with(|| call.call_id().to_owned()).clone();
            if first != call.call_id() {
                state.complaints.push(format!("message {uid} was given to {first} and to {}", call.call_id()));
            }
        }
        let known = state
            .calls
            .entry(call.call_id().to_owned())
            .or_insert_with(|| Calls { request: request.clone(), arrivals: Vec::new() });
        known.arrivals.push(call.at);
        let arrival = known.arrivals.len() - 1;
        let before = (known.request != request).then(|| known.request.clone());
        state.repeated += u64::from(arrival > 0);
        if let Some(before) = before {
            let id = call.call_id();
            state.complaints.push(format!(
                "{id} came with the request {before} and again with {request}: a decision that was dispatched was undone"
            ));
        }
        arrival
    }

    /// Notes an answer that is about to be given, and gives the number that it carries.
    pub fn gives(&self, call: &Call, arrival: usize, after: Duration, delay: Option<Duration>, surplus: bool) -> u64 {
        let mut state = self.state();
        state.next_nonce += 1;
        let nonce = state.next_nonce;
        let given = Given { call: call.call_id().to_owned(), arrival, sent: Instant::now() + after, delay, surplus };
        state.given.insert(nonce, given);
        nonce
    }

    /// What is wrong with the answer of this number having been applied for this call.
    pub fn objection(&self, nonce: u64, call: &str) -> Option<String> {
        let state = self.state();
        let Some(given) = state.given.get(&nonce) else {
            return Some(format!("answer {nonce} was applied for {call}, and never given"));
        };
        if given.call != call {
            return Some(format!("answer {nonce} to {} was applied for {call}", given.call));
        }
        if given.surplus {
            return Some(format!("answer {nonce}, the second one to a request of {call}, was applied"));
        }
        let later = state.calls.get(call).and_then(|calls| calls.arrivals.get(given.arrival + 1));
        if let Some(later) = later.filter(|later| **later < given.sent) {
            let gap = (given.sent - *later).as_millis();
            return Some(format!(
                "answer {nonce} to {call} was applied, though the call had been made again {gap} ms before it was given"
            ));
        }
        None
    }

    /// What was seen that must not be.
    pub fn complaints(&self) -> Vec<String> {
        self.state().complaints.clone()
    }

    /// Calls in all, and those of them that were repeated.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.count, state.repeated)
    }

    /// Forgets everything but the numbers of answers, which stay unique, and the counts.
    pub fn turn_the_page(&self) {
        let mut state = self.state();
        let State { next_nonce, count, repeated, .. } = *state;
        *state = State { next_nonce, count, repeated, ..State::default() };
    }
}

/// A timer that is reported as fired has had its time since the answer that asked for it.
fn check_timers(state: &mut State, call: &Call) {
    let Some(results) = call.body["commandResults"]["timerResults"].as_array() else { return };
    for result in results.iter().filter(|result| result["status"] == "COMPLETED_COMMAND") {
        let nonce = result["commandId"].as_str().and_then(|id| id.strip_prefix('t')?.parse::<u64>().ok());
        let Some((sent, delay)) =
            nonce.and_then(|nonce| state.given.get(&nonce)).and_then(|g| Some((g.sent, g.delay?)))
        else {
            let id = call.call_id();
            state.complaints.push(format!("{id} reports a timer that nobody asked for: {result}"));
            continue;
        };
        if call.at + CLOCK_TOLERANCE < sent + delay {
            let early = (sent + delay - call.at).as_millis();
            let id = call.call_id();
            state.complaints.push(format!("the timer of {delay:?} of {id} fired {early} ms early"));
        }
    }
}

/// The messages that a call brings, by the ids in their payloads.
pub fn messages(call: &Call) -> Vec<String> {
    let results = ["localQueueResults", "globalQueueResults"].map(|kind| call.body["commandResults"][kind].as_array());
    let messages = results.into_iter().flatten().flatten().filter_map(|result| result["messages"].as_array()).flatten();
    messages.filter_map(|message| message["payload"]["uid"].as_str()).map(str::to_owned).collect()
}

/// A field of a call's input.
pub fn input(call: &Call, field: &str) -> u64 {
    call.input().get(field).and_then(Value::as_u64).unwrap_or_default()
}
