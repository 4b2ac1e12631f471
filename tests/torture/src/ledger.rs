//! The workers' own ledger: every call that was received or claimed, and every answer that was given.
//!
//! The ledger knows which answers were sent when, which the engine may not know. A committed transaction decides the
//! content of a call. So a repeated call with another request shows that a decision was undone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use xdb_cluster_tests::worker::{Api, Call};

use crate::shapes::Shape;

/// Timers follow the server's clock, these measurements the monotonic clock.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(5);

/// Longer than any crash with the restart after it.
const NO_CRASH_LASTS: Duration = Duration::from_secs(3600);

/// An answer that was given.
pub struct Given {
    /// The call's id.
    pub call: String,
    /// The arrival of the call that it answers.
    order: Order,
    /// The answer left the worker at this moment or later.
    sent: Instant,
    /// The delay of the timer that it asks for.
    delay: Option<Duration>,
    /// The answer was the second one to its request, and must have no effect.
    surplus: bool,
}

/// Identifies one of the arrivals of a call. Arrivals of the same call are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// Since when the server had run without a crash. 0 for HTTP calls. A crash may undo a claim and its lease. Then
    /// the numbers of leases begin again, too.
    since: i64,
    /// The number of the lease. Two sessions that claim the same call may record their arrivals in the other order.
    number: i64,
}

impl Order {
    fn of_request(number: usize) -> Order {
        Order { since: 0, number: number as i64 }
    }

    /// The order of a call that was claimed with this token. The token ends with the number of the lease, whose lower
    /// half is random.
    pub fn of_lease(token: &str, runs_since: i64) -> Option<Order> {
        let lease: i64 = token.split('/').nth(2)?.parse().ok()?;
        Some(Order { since: runs_since, number: lease >> 32 })
    }

    pub fn number(self) -> i64 {
        self.number
    }

    /// Whether the server has crashed since. Then the earlier lease was lost, if it was not on disk.
    pub fn is_before_a_crash(self, runs_since: i64) -> bool {
        self.since != runs_since
    }
}

/// An arrival of a call: received over HTTP, or claimed.
struct Arrival {
    order: Order,
    at: Instant,
}

/// A lease. Until its end no other worker may get the call.
struct Lease {
    order: Order,
    until: Instant,
}

struct Calls {
    request: String,
    /// When this request came first.
    since: Instant,
    /// The key of the request, empty if it was claimed.
    key: String,
    /// The starts that the request's input was merged from.
    starts: Vec<String>,
    arrivals: Vec<Arrival>,
    lease: Option<Lease>,
}

#[derive(Default)]
struct State {
    calls: HashMap<String, Calls>,
    given: HashMap<u64, Given>,
    /// The call that got each message.
    delivered: HashMap<String, String>,
    complaints: Vec<String>,
    /// The end of the last crash. In the future while the server may crash at any moment.
    crashed: Option<Instant>,
    next_nonce: u64,
    count: u64,
    repeated: u64,
    claimed: u64,
}

/// The calls and answers of the workers in this round.
#[derive(Default)]
pub struct Ledger(Mutex<State>);

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics with the lock")
    }

    /// Records that the server may crash at any moment until the end of `crash`, and returns what that returns.
    pub fn crashing<T>(&self, crash: impl FnOnce() -> T) -> T {
        self.state().crashed = Some(Instant::now() + NO_CRASH_LASTS);
        let done = crash();
        self.state().crashed = Some(Instant::now());
        done
    }

    /// Records a call that the engine made. Returns its number among the calls with its id.
    pub fn arrived(&self, call: &Call) -> Order {
        let mut state = self.state();
        let known = seen(&mut state, call);
        let order = Order::of_request(known.arrivals.len());
        known.arrivals.push(Arrival { order, at: call.at });
        state.count += 1;
        state.repeated += u64::from(order.number > 0);
        order
    }

    /// Records a call that was claimed in an uncommitted transaction. It may be claimed again.
    pub fn looked_at(&self, call: &Call) {
        seen(&mut self.state(), call);
    }

    /// Records a call that was claimed under this lease. Without a crash, no other worker may get the call before
    /// `until`.
    pub fn claimed(&self, call: &Call, order: Order, until: Instant) {
        let mut state = self.state();
        state.claimed += 1;
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
            let what = format!("{id} was given to another worker {early:?} before its lease had ended");
            state.complaints.push(what);
        }
    }

    /// Records a new end of this lease.
    pub fn lease_ends(&self, call: &Call, order: Order, until: Instant) {
        let mut state = self.state();
        let lease = state.calls.get_mut(call.call_id()).and_then(|known| known.lease.as_mut());
        if let Some(lease) = lease.filter(|lease| lease.order == order) {
            lease.until = until;
        }
    }

    /// Records an answer that is about to be given. Returns the number that the answer carries.
    pub fn gives(&self, call: &Call, order: Order, after: Duration, delay: Option<Duration>, surplus: bool) -> u64 {
        let mut state = self.state();
        state.next_nonce += 1;
        let nonce = state.next_nonce;
        let given = Given { call: call.call_id().to_owned(), order, sent: Instant::now() + after, delay, surplus };
        state.given.insert(nonce, given);
        nonce
    }

    /// Why the answer with this number must not have been applied for this call. None: it may have been.
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

    /// The violations that the ledger has seen.
    pub fn complaints(&self) -> Vec<String> {
        self.state().complaints.clone()
    }

    /// The numbers of calls that the engine made, of calls that it repeated, and of claimed calls.
    pub fn counts(&self) -> (u64, u64, u64) {
        let state = self.state();
        (state.count, state.repeated, state.claimed)
    }

    /// Forgets everything except the counts and the last number of an answer. Numbers stay unique.
    pub fn turn_the_page(&self) {
        let mut state = self.state();
        let State { crashed, next_nonce, count, repeated, claimed, .. } = *state;
        *state = State { crashed, next_nonce, count, repeated, claimed, ..State::default() };
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
        if first != id && Shape::may_abort(call.process_id()) {
            // The message of a step that was aborted goes back to its place.
            state.delivered.insert(uid, id.to_owned());
        } else if first != id {
            state.complaints.push(format!("message {uid} was given to {first} and to {id}"));
        }
    }
    let (key, starts) = (call.idempotency_key(), starts(call));
    let new = || Calls {
        request: request.clone(),
        since: call.at,
        key: key.to_owned(),
        starts: starts.clone(),
        arrivals: Vec::new(),
        lease: None,
    };
    let crashed = state.crashed;
    let known = state.calls.entry(id.to_owned()).or_insert_with(new);
    // A lease that was lost in a crash prevents no merge. The next request has more starts, and another key.
    let is_merged = !known.starts.is_empty() && starts.len() > known.starts.len() && starts.starts_with(&known.starts);
    let was_lost = crashed.is_some_and(|crashed| known.since < crashed);
    if is_merged && was_lost && (key.is_empty() || key != known.key) {
        (known.request, known.since, known.key, known.starts) = (request, call.at, key.to_owned(), starts);
    } else if known.request != request {
        let before = &known.request;
        state.complaints.push(format!(
            "{id} came with the request {before} and again with {request}: a decision that was dispatched was undone"
        ));
    }
    known
}

/// Checks times: a timer that fired, and a step with a delayed start, must have waited since the answer that asked for
/// them.
fn check_times(state: &mut State, call: &Call) {
    let timers = call.body["commandResults"]["timerResults"].as_array();
    let fired = timers.into_iter().flatten().filter(|result| result["status"] == "COMPLETED_COMMAND");
    // No answer has asked for the timer of a static wait, which has no name.
    let fired = fired.filter(|result| !result["commandId"].is_null());
    let of_timer = |result: &Value| result["commandId"].as_str().and_then(|id| id.strip_prefix('t')?.parse().ok());
    let mut waited_for: Vec<Option<u64>> = fired.map(of_timer).collect();
    let moved = call.input()["nonce"].as_u64().filter(|_| call.executes("Later"));
    waited_for.extend(moved.map(Some));
    for nonce in waited_for {
        let id = call.call_id();
        let asked = nonce.and_then(|nonce| state.given.get(&nonce)).and_then(|given| Some((given.sent, given.delay?)));
        let Some((sent, delay)) = asked else {
            state.complaints.push(format!("{id} has waited for an unrequested time: answer {nonce:?}"));
            continue;
        };
        if call.at + CLOCK_TOLERANCE < sent + delay {
            let early = (sent + delay - call.at).as_millis();
            state.complaints.push(format!("the timer of {delay:?} of {id} fired {early} ms early"));
        }
    }
}

/// The messages in a call, by the ids in their payloads. The message about a child has the child's id. Also the starts
/// that were merged into this one.
pub fn messages(call: &Call) -> Vec<String> {
    let results = ["localQueueResults", "globalQueueResults"].map(|kind| call.body["commandResults"][kind].as_array());
    let messages = results.into_iter().flatten().flatten().filter_map(|result| result["messages"].as_array()).flatten();
    let uid = |payload: &'_ Value| ["uid", "processId"].iter().find_map(|key| payload[key].as_str()).map(str::to_owned);
    let uids = messages.filter_map(|message| uid(&message["payload"]));
    uids.chain(starts(call)).collect()
}

/// The starts that a call's input was merged from.
fn starts(call: &Call) -> Vec<String> {
    let uids = call.input()["uids"].as_array().into_iter().flatten();
    uids.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A field of a call's input.
pub fn input(call: &Call, field: &str) -> u64 {
    call.input().get(field).and_then(Value::as_u64).unwrap_or_default()
}
