//! The shapes of processes, and their definitions.

use std::time::Duration;

use serde_json::{Value, json};
use xdb_cluster_tests::definition::{Definition, attempts};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    /// Steps in a row. Each reads what the step before it wrote.
    Chain,
    /// Timers in a row.
    Timer,
    /// A number of messages of a client, one after the other.
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
    /// Waits until its timeout.
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
    /// Steps in a row that functions of the database answer.
    Steps,
    /// Messages and RPCs that functions answer.
    Letters,
    /// Steps of a pull worker, and between them steps of functions.
    Claimed,
    /// Messages that a pull worker's step waits for.
    Parcels,
    /// Its answer calls a function that counts.
    Tally,
    /// Starts that are merged.
    Merge,
    /// Fails until the operator has repaired it.
    Incident,
    /// Steps that begin later.
    Delayed,
    /// A step with a guard that reminds and one that recalls it, and a guard of the process.
    Guarded,
    /// Threads that fan out, and a guard of the process that may end all of them.
    Watched,
    /// Threads of which the first one ends the others.
    Race,
    /// Steps that are undone by a decision, a failure or a guard of the process.
    Saga,
    /// Starts other processes. Waits for them, closes before them, or is stopped.
    Parent,
    /// Messages, as in a mailbox. An operator moves its steps.
    Moved,
    /// What schedules start.
    Tick,
}

impl Shape {
    /// All shapes.
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
        Shape::Steps,
        Shape::Letters,
        Shape::Claimed,
        Shape::Parcels,
        Shape::Tally,
        Shape::Merge,
        Shape::Incident,
        Shape::Delayed,
        Shape::Guarded,
        Shape::Watched,
        Shape::Race,
        Shape::Saga,
        Shape::Parent,
        Shape::Moved,
        Shape::Tick,
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
            Shape::Steps => "steps",
            Shape::Letters => "letters",
            Shape::Claimed => "claimed",
            Shape::Parcels => "parcels",
            Shape::Tally => "tally",
            Shape::Merge => "merge",
            Shape::Incident => "incident",
            Shape::Delayed => "delayed",
            Shape::Guarded => "guarded",
            Shape::Watched => "watched",
            Shape::Race => "race",
            Shape::Saga => "saga",
            Shape::Parent => "parent",
            Shape::Moved => "moved",
            Shape::Tick => "tick",
        }
    }

    /// The shape of the process with this id. None: a child, or a process of the rack itself.
    fn of(process_id: &str) -> Option<Shape> {
        let begins = |shape: &Shape| process_id.strip_prefix(shape.name()).is_some_and(|rest| rest.starts_with('-'));
        Shape::ALL.iter().copied().find(begins)
    }

    /// What its processes may do. The end of a process id says which one it does.
    pub fn ways(self) -> &'static [&'static str] {
        match self {
            Shape::Guarded => &["alone", "ship", "recall", "cancel", "any"],
            Shape::Watched => &["all", "halt", "branch"],
            Shape::Saga => &["complete", "compensate", "fail", "cancel"],
            Shape::Parent => &["await", "close", "stop"],
            _ => &[],
        }
    }

    /// Whether a second process type has the same definition, and a pull worker instead of the worker: the shapes whose
    /// steps may end before they are answered, by another answer, a guard, a parent or an operator.
    pub fn has_twin(self) -> bool {
        use Shape::*;
        matches!(self, Guarded | Watched | Race | Saga | Parent | Moved)
    }

    /// Whether steps of the process with this id may end before they are answered. Children end with their parents.
    pub fn may_abort(process_id: &str) -> bool {
        Shape::of(process_id).map_or(process_id.starts_with("child-"), Shape::has_twin)
    }

    /// The process type of the twin.
    pub fn twin(self) -> String {
        format!("{}-claimed", self.name())
    }

    /// Its process types, each with its worker.
    pub fn types(self) -> impl Iterator<Item = (String, Option<&'static str>)> {
        let twin = self.has_twin().then(|| (self.twin(), Some(PULL_WORKER)));
        std::iter::once((self.name().to_owned(), self.worker())).chain(twin)
    }

    /// The statuses in which its processes may end that go this way.
    pub fn ends(self, way: &str) -> &'static [&'static str] {
        match self {
            Shape::Saga => match way {
                "complete" => &["COMPLETED"],
                "cancel" => &["COMPLETED", "FAILED"],
                _ => &["FAILED"],
            },
            Shape::Parent if way == "stop" => &["TERMINATED"],
            Shape::Fail => &["FAILED"],
            Shape::Timeout => &["TIMEOUT"],
            Shape::Stop => &["TERMINATED"],
            Shape::Reuse => &["COMPLETED", "TERMINATED"],
            _ => &["COMPLETED"],
        }
    }

    /// Whether its result contains the number of steps.
    pub fn counts(self) -> bool {
        matches!(self, Shape::Chain | Shape::Reuse | Shape::Steps | Shape::Claimed | Shape::Saga)
    }

    /// The worker that it is registered with. Functions need none.
    pub fn worker(self) -> Option<&'static str> {
        match self {
            Shape::Steps | Shape::Letters | Shape::Tick => None,
            Shape::Claimed | Shape::Parcels => Some(PULL_WORKER),
            _ => Some("stub"),
        }
    }

    /// The definition that is registered.
    pub fn definition(self) -> Definition {
        let poke = match self {
            Shape::Letters | Shape::Steps | Shape::Tick => json!({"function": "public.poke_of"}),
            _ => json!({"timeoutSeconds": 5}),
        };
        let consumed = if self == Shape::Pool { json!(["pool"]) } else { json!([]) };
        let definition = self.states().maps("public.work", "id", &["n", "effect"]).rpc("poke", poke);
        let definition = definition.with("globalQueues", consumed).with("changes", json!(CHANGES));
        let definition = match self {
            Shape::Guarded => definition.with("guards", json!(["Cancelled"])),
            Shape::Watched => definition.with("guards", json!(["Halt"])),
            Shape::Saga => definition.with("guards", json!(["Cancel"])),
            _ => definition,
        };
        match self {
            Shape::Steps
            | Shape::Letters
            | Shape::Claimed
            | Shape::Tally
            | Shape::Guarded
            | Shape::Watched
            | Shape::Tick => definition.with("functions", json!({"tally": "public.add_to_tally"})),
            _ => definition,
        }
    }

    fn states(self) -> Definition {
        match self {
            Shape::Chain | Shape::Reuse => step("Step"),
            Shape::Timer => waiting("Sleep"),
            Shape::Mailbox | Shape::Rpc | Shape::Timeout | Shape::Stop | Shape::Parcels | Shape::Moved => {
                waiting("Read")
            }
            Shape::Conditional => waiting("Take"),
            Shape::Fan => fan(),
            Shape::Watched => fan().step_with("Halt", guard("halt", "public.step_of")),
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
            Shape::Steps => Definition::starting_with("Call").step_with("Call", of_function("public.step_of")),
            Shape::Tick => Definition::starting_with("Strike").step_with("Strike", of_function("public.step_of")),
            Shape::Letters => {
                let mut config = of_function("public.step_of");
                config["waitUntilFunction"] = json!("public.wait_of");
                Definition::starting_with("Open").waiting_step_with("Open", config)
            }
            Shape::Claimed => step("Work").step_with("Count", of_function("public.step_of")),
            Shape::Tally => step("Tally"),
            Shape::Merge => step("Gather"),
            Shape::Incident => {
                Definition::starting_with("Mend").step_with("Mend", spent(json!({"policy": "RAISE_INCIDENT"})))
            }
            Shape::Delayed => step("Later"),
            Shape::Guarded => {
                let mut ship = quick();
                ship["guards"] = json!(["Nag", "Recall"]);
                let mut nag = quick();
                nag["interrupting"] = json!(false);
                nag["skipWaitUntil"] = json!(false);
                nag["commandRequest"] =
                    json!({"waitingType": "AnyOfCompletion", "timerCommands": [{"delayInSeconds": 0.3}]});
                Definition::starting_with("Ship")
                    .waiting_step_with("Ship", ship)
                    .step_with("Nag", nag)
                    .step_with("Recall", guard("recall", "public.step_of"))
                    .step_with("Cancelled", guard("cancel", ""))
            }
            Shape::Race => step("Line")
                .step_with("Runner", quick())
                .step_with("Racer", of_function("public.race_of"))
                .step_with("Finish", quick()),
            Shape::Saga => {
                let mut book = quick();
                book["compensationStateId"] = json!("Undo");
                Definition::starting_with("Book")
                    .step_with("Book", book)
                    .step_with("Undo", quick())
                    .step_with("Decide", quick())
                    .step_with("Break", spent(json!({"policy": "COMPENSATE_PROCESS"})))
                    .step_with("Cancel", guard("cancel", ""))
            }
            Shape::Parent => step("Begin")
                .step_with("Beget", of_function("public.beget_of"))
                .waiting_step_with("Await", quick())
                .step_with("Done", quick()),
        }
    }
}

/// The name of the pull worker.
pub const PULL_WORKER: &str = "hands";

/// The queue of the changes of all processes.
pub const CHANGES: &str = "changes";

/// The time of a call of a state.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);

fn quick() -> Value {
    json!({"waitUntilApiTimeoutSeconds": CALL_TIMEOUT.as_secs(), "executeApiTimeoutSeconds": CALL_TIMEOUT.as_secs()})
}

fn of_function(function: &str) -> Value {
    let mut config = quick();
    config["executeFunction"] = json!(function);
    config
}

/// A guard that waits for a message. Without a function, the worker answers.
fn guard(queue: &str, function: &str) -> Value {
    let mut config = if function.is_empty() { quick() } else { of_function(function) };
    config["skipWaitUntil"] = json!(false);
    config["commandRequest"] = json!({"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": queue}]});
    config
}

/// Threads, and one that waits for all of them.
fn fan() -> Definition {
    step("Split").step_with("Branch", quick()).waiting_step_with("Join", quick())
}

/// Options with two attempts, and then this.
fn spent(options: Value) -> Value {
    let mut config = quick();
    config["executeApiRetryPolicy"] = attempts(2);
    config["stateFailureRecoveryOptions"] = options;
    config
}

fn step(state: &str) -> Definition {
    Definition::starting_with(state).step_with(state, quick())
}

fn waiting(state: &str) -> Definition {
    Definition::starting_with(state).waiting_step_with(state, quick())
}
