//! The workers' own ledger: every call that came or was fetched, and every answer that was given.
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
    order: Order,
    /// It left the worker at this moment or later.
    sent: Instant,
    /// Of the timer that it asks for.
    delay: Option<Duration>,
    /// It was the second answer to its request: nobody may make anything of it.
    surplus: bool,
}

/// Which of the arrivals of a call is meant. Those of the same call are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// Since when the server had run without a crash; 0 for what the engine calls. A crash may undo a claim, and its lease with it:
    /// then the numbers of leases begin again, too.
    since: i64,
    /// Of its lease: two sessions that fetch a call may get around to say so in another order than they got it.
    number: i64,
}

impl Order {
    fn of_request(number: usize) -> Order {
        Order { since: 0, number: number as i64 }
    }

    /// Of a call that was fetched with this token, which ends with the number of the lease; its lower half is drawn.
    pub fn of_lease(token: &str, runs_since: i64) -> Option<Order> {
        let lease: i64 = token.split('/').nth(2)?.parse().ok()?;
        Some(Order { since: runs_since, number: lease >> 32 })
    }

    pub fn number(self) -> i64 {
        self.number
    }

    /// Whether a crash of the server lies between: the earlier lease is gone if it was not on disk.
    pub fn is_before_a_crash(self, runs_since: i64) -> bool {
        self.since != runs_since
    }
}

/// A call that came, or was fetched.
struct Arrival {
    order: Order,
    at: Instant,
}

/// Until then nobody else may get the call.
struct Lease {
    order: Order,
    until: Instant,
}

struct Calls {
    request: String,
    arrivals: Vec<Arrival>,
    lease: Option<Lease>,
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
    fetched: u64,
}

/// What the worker has seen and done in this round.
#[derive(Default)]
pub struct Ledger(Mutex<State>);

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics with the lock")
    }

    /// Notes a call that the engine made, and gives its number among those with its id.
    pub fn arrived(&self, call: &Call) -> Order {
        let mut state = self.state();
        let known = seen(&mut state, call);
        let order = Order::of_request(known.arrivals.len());
        known.arrivals.push(Arrival { order, at: call.at });
        state.count += 1;
        state.repeated += u64::from(order.number > 0);
        order
    }

    /// Notes what was fetched in a transaction that is not committed: it may be fetched again.
    pub fn looked_at(&self, call: &Call) {
        seen(&mut self.state(), call);
    }

    /// Notes a call that was fetched under this lease, and that nobody else may get before `until`, but after a crash.
    pub fn fetched(&self, call: &Call, order: Order, until: Instant) {
        let mut state = self.state();
        state.fetched += 1;
        let known = seen(&mut state, call);
        let at = call.at;
        known.arrivals.push(Arrival { order, at });
        let before =
            known.lease.as_ref().filter(|before| before.order < order && !before.order.is_before_a_crash(order.since));
        let early = before.and_then(|before| before.until.checked_duration_since(at + CLOCK_TOLERANCE));
        if known.lease.as_ref().is_none_or(|lease| lease.order < order) {
            known.lease = Some(Lease { order, until });
        }
        if let Some(early) = early {
            let id = call.call_id();
            let what = format!("{id} was given to somebody else {early:?} before its lease had ended");
            state.complaints.push(what);
        }
    }

    /// This lease ends then.
    pub fn lease_ends(&self, call: &Call, order: Order, until: Instant) {
        let mut state = self.state();
        let lease = state.calls.get_mut(call.call_id()).and_then(|known| known.lease.as_mut());
        if let Some(lease) = lease.filter(|lease| lease.order == order) {
            lease.until = until;
        }
    }

    /// Notes an answer that is about to be given, and gives the number that it carries.
    pub fn gives(&self, call: &Call, order: Order, after: Duration, delay: Option<Duration>, surplus: bool) -> u64 {
        let mut state = self.state();
        state.next_nonce += 1;
        let nonce = state.next_nonce;
        let given = Given { call: call.call_id().to_owned(), order, sent: Instant::now() + after, delay, surplus };
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
        let arrivals = state.calls.get(call).map_or(&[][..], |calls| &calls.arrivals);
        if let Some(later) = arrivals.iter().find(|later| later.order > given.order && later.at < given.sent) {
            let gap = (given.sent - later.at).as_millis();
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

    /// Calls that the engine made, those of them that were repeated, and calls that were fetched.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.state();
        (state.count, state.repeated, state.fetched)
    }

    /// Forgets everything but the numbers of answers, which stay unique, and the counts.
    pub fn turn_the_page(&self) {
        let mut state = self.state();
        let State { next_nonce, count, repeated, fetched, .. } = *state;
        *state = State { next_nonce, count, repeated, fetched, ..State::default() };
    }
}

/// Compares a call with what came before.
fn seen<'s>(state: &'s mut State, call: &Call) -> &'s mut Calls {
    let request = match call.api {
        Api::Execute => format!("{} {}", call.body["stateInput"], call.body["commandResults"]),
        _ => call.input().to_string(),
    };
    check_times(state, call);
    let id = call.call_id();
    for uid in messages(call) {
        let first = state.delivered.entry(uid.clone()).or_insert_with(|| id.to_owned()).clone();
        if first != id {
            state.complaints.push(format!("message {uid} was given to {first} and to {id}"));
        }
    }
    let new = || Calls { request: request.clone(), arrivals: Vec::new(), lease: None };
    let known = state.calls.entry(id.to_owned()).or_insert_with(new);
    if known.request != request {
        let before = &known.request;
        state.complaints.push(format!(
            "{id} came with the request {before} and again with {request}: a decision that was dispatched was undone"
        ));
    }
    known
}

/// A timer that is reported as fired, and a step that was to begin later, has had its time since the answer that asked for it.
fn check_times(state: &mut State, call: &Call) {
    let timers = call.body["commandResults"]["timerResults"].as_array();
    let fired = timers.into_iter().flatten().filter(|result| result["status"] == "COMPLETED_COMMAND");
    let of_timer = |result: &Value| result["commandId"].as_str().and_then(|id| id.strip_prefix('t')?.parse().ok());
    let mut waited_for: Vec<Option<u64>> = fired.map(of_timer).collect();
    let moved = call.input()["nonce"].as_u64().filter(|_| call.executes("Later"));
    waited_for.extend(moved.map(Some));
    for nonce in waited_for {
        let id = call.call_id();
        let asked = nonce.and_then(|nonce| state.given.get(&nonce)).and_then(|given| Some((given.sent, given.delay?)));
        let Some((sent, delay)) = asked else {
            state.complaints.push(format!("{id} has waited for a time that nobody asked for: answer {nonce:?}"));
            continue;
        };
        if call.at + CLOCK_TOLERANCE < sent + delay {
            let early = (sent + delay - call.at).as_millis();
            state.complaints.push(format!("the timer of {delay:?} of {id} fired {early} ms early"));
        }
    }
}

/// The messages that a call brings, by the ids in their payloads; and the starts that were merged into this one.
pub fn messages(call: &Call) -> Vec<String> {
    let results = ["localQueueResults", "globalQueueResults"].map(|kind| call.body["commandResults"][kind].as_array());
    let messages = results.into_iter().flatten().flatten().filter_map(|result| result["messages"].as_array()).flatten();
    let starts = call.input()["uids"].as_array().into_iter().flatten();
    let uids = messages.map(|message| &message["payload"]["uid"]).chain(starts);
    uids.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A field of a call's input.
pub fn input(call: &Call, field: &str) -> u64 {
    call.input().get(field).and_then(Value::as_u64).unwrap_or_default()
}
