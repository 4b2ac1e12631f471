//! The shapes of processes: their definitions, and what the worker does for them.
//!
//! Every answer to an `execute` or to an RPC carries a number that no other answer has, in a write to the user's row. A
//! trigger of the table keeps each such write as an effect: so it can be seen which answers were applied, and how often.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use serde_json::{Value, json};
use xdb_cluster_tests::definition::{Definition, attempts};
use xdb_cluster_tests::worker::{
    Answer, Api, Call, Reply, all_of, any_of, close_if_empty, dead_end, error, force_complete, global_queue,
    graceful_complete, local_queue, next, next_all, output, timer,
};

use crate::ledger::{Ledger, input, messages};
use crate::mischief::{Mischief, Mood};
use xdb_cluster_tests::random::Random;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    /// Steps in a row, each reading what the one before wrote.
    Chain,
    /// Timers in a row.
    Timer,
    /// So many messages of a client, one after the other.
    Mailbox,
    /// Threads that report to a queue, and one that waits for all of them.
    Fan,
    /// Messages until there are none: a conditional close against publishers.
    Conditional,
    /// RPCs that write and publish.
    Rpc,
    /// A state that always fails, and one that recovers from it.
    Recover,
    /// A state that always fails.
    Fail,
    /// Waits until its time is over.
    Timeout,
    /// Waits until it is stopped.
    Stop,
    /// The same id started again and again.
    Reuse,
    /// Many processes write the same few rows.
    Shared,
    /// Its first answer is refused by the table.
    Refused,
    /// Many processes count in the same few rows, under an exclusive lock.
    Counter,
    /// Takes one message of a queue that it shares with many.
    Pool,
}

impl Shape {
    /// All of them.
    pub const ALL: &[Shape] = &[
        Shape::Chain,
        Shape::Timer,
        Shape::Mailbox,
        Shape::Fan,
        Shape::Conditional,
        Shape::Rpc,
        Shape::Recover,
        Shape::Fail,
        Shape::Timeout,
        Shape::Stop,
        Shape::Reuse,
        Shape::Shared,
        Shape::Refused,
        Shape::Counter,
        Shape::Pool,
    ];

    /// The process type, and the beginning of the process ids.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Chain => "chain",
            Shape::Timer => "timer",
            Shape::Mailbox => "mailbox",
            Shape::Fan => "fan",
            Shape::Conditional => "conditional",
            Shape::Rpc => "rpc",
            Shape::Recover => "recover",
            Shape::Fail => "fail",
            Shape::Timeout => "timeout",
            Shape::Stop => "stop",
            Shape::Reuse => "reuse",
            Shape::Shared => "shared",
            Shape::Refused => "refused",
            Shape::Counter => "counter",
            Shape::Pool => "pool",
        }
    }

    /// How its processes end.
    pub fn ends(self) -> &'static [&'static str] {
        match self {
            Shape::Fail => &["FAILED"],
            Shape::Timeout => &["TIMEOUT"],
            Shape::Stop => &["TERMINATED"],
            Shape::Reuse => &["COMPLETED", "TERMINATED"],
            _ => &["COMPLETED"],
        }
    }

    /// What it is registered with.
    pub fn definition(self) -> Definition {
        let step = |state| Definition::starting_with(state).step_with(state, quick());
        let waiting = |state| Definition::starting_with(state).waiting_step_with(state, quick());
        let spent = |options: Value| {
            let mut config = quick();
            config["executeApiRetryPolicy"] = attempts(2);
            config["stateFailureRecoveryOptions"] = options;
            config
        };
        let definition = match self {
            Shape::Chain | Shape::Reuse => step("Step"),
            Shape::Timer => waiting("Sleep"),
            Shape::Mailbox | Shape::Rpc | Shape::Timeout | Shape::Stop => waiting("Read"),
            Shape::Conditional => waiting("Take"),
            Shape::Fan => step("Split").step_with("Branch", quick()).waiting_step_with("Join", quick()),
            Shape::Recover => {
                let options = json!({"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Good"});
                Definition::starting_with("Bad").step_with("Bad", spent(options)).step_with("Good", quick())
            }
            Shape::Fail => Definition::starting_with("Bad")
                .step_with("Bad", spent(json!({"policy": "FAIL_PROCESS_ON_STATE_FAILURE"}))),
            Shape::Shared => step("Share"),
            Shape::Refused => step("Refuse"),
            Shape::Counter => {
                let mut config = quick();
                config["loadGlobalAttributes"] = json!({"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"});
                Definition::starting_with("Add").step_with("Add", config)
            }
            Shape::Pool => waiting("Fetch"),
        };
        definition.maps("public.work", "id", &["n", "effect"]).rpc("poke", json!({"timeoutSeconds": 5}))
    }
}

/// The time of a call of a state.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);

fn quick() -> Value {
    json!({"waitUntilApiTimeoutSeconds": CALL_TIMEOUT.as_secs(), "executeApiTimeoutSeconds": CALL_TIMEOUT.as_secs()})
}

/// A message that the worker wants published at this very moment, by a client.
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
        let mut random = Random::new(self.seed, &format!("{} {arrival}", call.call_id()));
        if call.target() == "Bad" {
            return error(500, "Bad", "it always is");
        }
        if call.api == Api::Rpc {
            self.mischief.pass();
        } else if arrival == 0 && random.permille(30) {
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
        let good = |surplus| Box::new(Reply::from(self.decide(call, arrival, after, surplus, random_of(self, call))));
        match mood {
            None => *good(false),
            Some(Mood::Hang | Mood::Late) => Reply::Late(after, good(false)),
            Some(Mood::Drip) => Reply::Pieces(after, good(false)),
            Some(Mood::Reset) => Reply::CloseMidBody,
            Some(Mood::Double) => Reply::Twice(good(false), good(true)),
        }
    }

    fn decide(&self, call: &Call, arrival: usize, after: Duration, surplus: bool, mut random: Random) -> Answer {
        let delay = (call.api == Api::WaitUntil && call.target() == "Sleep")
            .then(|| Duration::from_millis(input(call, "milliseconds")));
        let nonce = self.ledger.gives(call, arrival, after, delay, surplus);
        let uids = messages(call);
        let effect = json!({"call": call.call_id(), "nonce": nonce, "messages": uids});
        let left = input(call, "left");
        let writes = |answer: Answer| answer.globals(json!({"effect": effect})).locals(json!({"last": nonce}));
        let on = |state: &str| {
            let mut input = call.input().clone();
            input["left"] = json!(left.saturating_sub(1));
            input["nonce"] = json!(nonce);
            next(state, input)
        };
        match (call.api, call.target()) {
            (Api::WaitUntil, "Sleep") => {
                any_of(&[timer(&format!("t{nonce}"), delay.unwrap_or_default().as_secs_f64())])
            }
            (Api::WaitUntil, "Join") => all_of(&[local_queue(&format!("q{nonce}"), "done", left as u32)]),
            (Api::WaitUntil, "Fetch") => any_of(&[global_queue(&format!("q{nonce}"), "pool", 1)]),
            (Api::WaitUntil, _) => any_of(&[local_queue(&format!("q{nonce}"), "inbox", 1)]),
            (Api::Execute, "Step") => {
                let n = call.global("n").as_u64().unwrap_or_default() + 1;
                let decision = if left > 1 { on("Step") } else { force_complete(json!({"n": n, "nonce": nonce})) };
                decision.globals(json!({"n": n, "effect": effect})).locals(json!({"last": nonce}))
            }
            (Api::Execute, "Add") => {
                let n = call.global("n").as_u64().unwrap_or_default() + 1;
                graceful_complete(json!(n)).globals(json!({"n": n, "effect": effect}))
            }
            (Api::Execute, "Split") => {
                let mut states = vec![("Join", json!({"left": left, "nonce": nonce}))];
                states.extend((0..left).map(|branch| ("Branch", json!({"branch": branch, "nonce": nonce}))));
                writes(next_all(&states))
            }
            (Api::Execute, "Branch") => {
                let uid = format!("{}/{}", call.process_id(), call.input()["branch"]);
                writes(dead_end()).publish("done", json!({"uid": uid}))
            }
            (Api::Execute, "Take") => {
                // Somebody publishes at the very moment in which the process decides whether to close.
                if !surplus && random.permille(600) && nth(call) < 8 {
                    let uid = format!("{}/urgent-{nonce}", call.process_id());
                    let urgent = Urgent { process_id: call.process_id().to_owned(), uid };
                    // Nobody listens any more at the end of a run.
                    drop(self.urgent.send(urgent));
                }
                writes(close_if_empty("inbox", "Take"))
            }
            (Api::Execute, "Refuse") if call.refused_write().is_null() => {
                writes(graceful_complete(json!(nonce))).globals(json!({"n": -1, "effect": effect}))
            }
            (Api::Execute, "Sleep" | "Read") if left > 1 => writes(on(call.target())),
            (Api::Execute, _) => writes(graceful_complete(json!({"nonce": nonce}))),
            (Api::Rpc, _) => {
                let uid = call.input()["uid"].clone();
                writes(output(json!({"nonce": nonce}))).publish("inbox", json!({"uid": uid}))
            }
        }
    }
}

/// Both answers to a request are made by the same choices.
fn random_of(hand: &Hand, call: &Call) -> Random {
    Random::new(hand.seed, &format!("decide {}", call.call_id()))
}

/// The number of a state execution among those of its state.
fn nth(call: &Call) -> u64 {
    call.state_execution_id().rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}
