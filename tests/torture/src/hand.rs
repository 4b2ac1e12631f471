//! The answers of the workers, for HTTP calls and for claimed calls.
//!
//! Every answer to an `execute` or to an RPC carries a unique number, in a write to the application's row. A trigger of
//! the table records each such write as an effect. So the effects show which answers were applied, and how often.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use serde_json::{Value, json};
use xdb_cluster_tests::random::Random;
use xdb_cluster_tests::worker::{
    Answer, Api, Call, Reply, all_of, any_of, close_if_empty, compensate, dead_end, error, force_complete,
    global_queue, graceful_complete, local_queue, next, next_all, output, timer,
};

use crate::ledger::{Ledger, Order, input, messages};
use crate::mischief::{Mischief, Mood};
use crate::schema::TALLIES;
use crate::shapes::CALL_TIMEOUT;

/// A message that a client should publish at this very moment, because the worker wants it.
pub struct Urgent {
    pub process_id: String,
    pub uid: String,
}

/// The rack's worker.
pub struct Hand {
    pub seed: u64,
    pub ledger: Arc<Ledger>,
    pub mischief: Arc<Mischief>,
    pub urgent: Sender<Urgent>,
}

impl Hand {
    /// Answers a call, well or badly.
    pub fn answer(&self, call: &Call) -> Reply {
        let arrival = self.ledger.arrived(call);
        let mut random = Random::new(self.seed, &format!("{} {}", call.call_id(), arrival.number()));
        if matches!(call.target(), "Bad" | "Break") {
            return error(500, "Bad", "it always is");
        }
        if call.target() == "Mend" && call.local("mended") != true {
            return error(422, "Unmended", "an operator has to mend it");
        }
        if call.api == Api::Rpc {
            self.mischief.pass();
        } else if arrival.number() == 0 && random.permille(30) {
            return error(503, "Busy", "by chance");
        }
        let moods = self.mischief.now();
        // Four calls in ten suffer, under one of the moods.
        let mood = (!moods.is_empty() && random.permille(400)).then(|| *random.pick(&moods));
        let time = CALL_TIMEOUT.as_millis() as u64;
        let after = match mood {
            Some(Mood::Hang) => Duration::from_millis(random.between(time + 300, time + 1500)),
            Some(Mood::Late) => Duration::from_millis(random.between(time / 4, time + 200)),
            // In pieces: together shorter or longer than the call's time.
            Some(Mood::Drip) => Duration::from_millis(random.between(200, time * 5 / 4)),
            _ => Duration::ZERO,
        };
        let good = |surplus| {
            let nonce = self.ledger.gives(call, arrival, after, delay(call), surplus);
            Box::new(Reply::from(self.decide(call, nonce, surplus, json!({}))))
        };
        match mood {
            None => *good(false),
            Some(Mood::Hang | Mood::Late) => Reply::Late(after, good(false)),
            Some(Mood::Drip) => Reply::Pieces(after, good(false)),
            Some(Mood::Reset) => Reply::CloseMidBody,
            Some(Mood::Double) => Reply::Twice(good(false), good(true)),
        }
    }

    /// The answer to a call that was claimed under this lease, and the answer's number.
    pub fn claimed(&self, call: &Call, lease: Order) -> (u64, Answer) {
        let nonce = self.ledger.gives(call, lease, Duration::ZERO, delay(call), false);
        (nonce, self.decide(call, nonce, false, json!({"by": "claimed"})))
    }

    fn decide(&self, call: &Call, nonce: u64, surplus: bool, mut effect: Value) -> Answer {
        effect["call"] = json!(call.call_id());
        effect["nonce"] = json!(nonce);
        effect["messages"] = json!(messages(call));
        match call.api {
            Api::WaitUntil => waits_for(call, nonce),
            Api::Execute => {
                if call.target() == "Take" && !surplus {
                    self.wants_published(call, nonce);
                }
                executes(call, nonce, effect)
            }
            Api::Rpc => {
                let uid = call.input()["uid"].clone();
                let answer = output(json!({"nonce": nonce})).publish("inbox", json!({"uid": uid}));
                answer.globals(json!({"effect": effect})).locals(json!({"last": nonce}))
            }
        }
    }

    /// Makes a client publish at the very moment in which the process decides whether to close.
    fn wants_published(&self, call: &Call, nonce: u64) {
        // Both answers to a request are made by the same choices.
        let mut random = Random::new(self.seed, &format!("decide {}", call.call_id()));
        if random.permille(600) && nth(call) < 8 {
            let uid = format!("{}/urgent-{nonce}", call.process_id());
            let urgent = Urgent { process_id: call.process_id().to_owned(), uid };
            // At the end of a run no client receives it.
            drop(self.urgent.send(urgent));
        }
    }
}

/// The delay that the answer to a call gives its next states.
fn delay(call: &Call) -> Option<Duration> {
    let sleeps = call.api == Api::WaitUntil && call.target() == "Sleep";
    let moves_later = call.executes("Later") && input(call, "left") > 1;
    (sleeps || moves_later).then(|| Duration::from_millis(input(call, "milliseconds")))
}

fn waits_for(call: &Call, nonce: u64) -> Answer {
    match call.target() {
        "Sleep" => any_of(&[timer(&format!("t{nonce}"), delay(call).unwrap_or_default().as_secs_f64())]),
        "Join" => all_of(&[local_queue(&format!("q{nonce}"), "done", input(call, "left") as u32)]),
        "Await" => all_of(&[local_queue(&format!("q{nonce}"), "ended", input(call, "count") as u32)]),
        "Fetch" => any_of(&[global_queue(&format!("q{nonce}"), "pool", 1)]),
        _ => any_of(&[local_queue(&format!("q{nonce}"), "inbox", 1)]),
    }
}

fn executes(call: &Call, nonce: u64, mut effect: Value) -> Answer {
    let left = input(call, "left");
    let counted = call.global("n").as_u64().unwrap_or_default() + 1;
    let on = |state: &str| {
        let mut input = call.input().clone();
        input["left"] = json!(left.saturating_sub(1));
        input["nonce"] = json!(nonce);
        next(state, input)
    };
    let writes =
        |answer: Answer, effect: &Value| answer.globals(json!({"effect": effect})).locals(json!({"last": nonce}));
    let counts = |answer: Answer, effect: &Value| answer.globals(json!({"n": counted, "effect": effect}));
    let done = || graceful_complete(json!({"nonce": nonce}));
    let counted_all = || force_complete(json!({"n": counted, "nonce": nonce}));
    let tally = format!("t{}", nonce % TALLIES);
    if matches!(call.target(), "Tally" | "Work") {
        effect["tally"] = json!(tally);
    }
    let tallies = |answer: Answer| answer.calls(&[("tally", json!({"row": tally}))]);
    match call.target() {
        "Step" => {
            let decision = if left > 1 { on("Step") } else { counted_all() };
            counts(decision, &effect).locals(json!({"last": nonce}))
        }
        "Work" => tallies(counts(if left > 1 { on("Count") } else { counted_all() }, &effect)),
        "Tally" => tallies(writes(done(), &effect)),
        "Add" => counts(graceful_complete(json!(counted)), &effect),
        "Split" => {
            let mut states = vec![("Join", json!({"left": left, "nonce": nonce}))];
            states.extend((0..left).map(|branch| ("Branch", json!({"branch": branch, "nonce": nonce}))));
            writes(next_all(&states), &effect)
        }
        "Branch" if way(call) == "branch" && call.input()["branch"] == 0 => {
            writes(dead_end(), &effect).publish("halt", json!({"uid": format!("{}/halt", call.process_id())}))
        }
        "Branch" => {
            let uid = format!("{}/{}", call.process_id(), call.input()["branch"]);
            writes(dead_end(), &effect).publish("done", json!({"uid": uid}))
        }
        "Line" => {
            let threads = |state| (0..left).map(move |_| (state, json!({"nonce": nonce})));
            writes(next_all(&threads("Runner").chain(threads("Racer")).collect::<Vec<_>>()), &effect)
        }
        "Runner" => {
            let others: &[&str] = if nonce.is_multiple_of(2) { &["*"] } else { &["Runner", "Racer"] };
            writes(next("Finish", json!({"nonce": nonce})).aborting(others), &effect)
        }
        "Nag" if nth(call) == 1 => writes(next("Nag", json!(null)), &effect),
        // Nothing else ends what it guards.
        "Nag" if way(call) == "alone" => {
            writes(done(), &effect).publish("inbox", json!({"uid": format!("{}/nag", call.process_id())}))
        }
        "Cancelled" => writes(force_complete(json!({"nonce": nonce})), &effect),
        "Book" if left > 1 => counts(on("Book"), &effect),
        "Book" => counts(on(if way(call) == "fail" { "Break" } else { "Decide" }), &effect),
        "Decide" if way(call) == "complete" || way(call) == "cancel" => {
            writes(force_complete(json!({"n": counted.saturating_sub(1), "nonce": nonce})), &effect)
        }
        "Decide" | "Cancel" => writes(compensate(json!({"nonce": nonce})), &effect),
        "Undo" => {
            effect["undoes"] = call.body["context"]["compensates"].clone();
            done().globals(json!({"n": counted.saturating_sub(2), "effect": effect}))
        }
        "Begin" => {
            effect["children"] = call.input()["born"].clone();
            let follows = next(
                call.input()["then"].as_str().unwrap_or_default(),
                json!({"count": input(call, "count"), "nonce": nonce}),
            );
            let delay = call.input()["delay"].as_f64().unwrap_or_default();
            let follows = follows.delayed(json!({"delayInSeconds": delay}));
            writes(follows.starting(call.input()["children"].clone()), &effect)
        }
        "Take" => writes(close_if_empty("inbox", "Take"), &effect),
        "Refuse" if call.refused_write().is_null() => done().globals(json!({"n": -1, "effect": effect})),
        "Later" if left > 1 => {
            let later = json!({"delayInSeconds": delay(call).unwrap_or_default().as_secs_f64()});
            writes(on("Later").delayed(later), &effect)
        }
        "Sleep" | "Read" if left > 1 => writes(on(call.target()), &effect),
        _ => writes(done(), &effect),
    }
}

/// The way of a process: see [`crate::shapes::Shape::ways`].
fn way(call: &Call) -> &str {
    call.process_id().rsplit('-').next().unwrap_or_default()
}

/// The number of a step among those of its state.
fn nth(call: &Call) -> u64 {
    call.state_execution_id().rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}
