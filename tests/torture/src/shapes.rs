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
        }
    }

    /// The statuses in which its processes may end.
    pub fn ends(self) -> &'static [&'static str] {
        match self {
            Shape::Fail => &["FAILED"],
            Shape::Timeout => &["TIMEOUT"],
            Shape::Stop => &["TERMINATED"],
            Shape::Reuse => &["COMPLETED", "TERMINATED"],
            _ => &["COMPLETED"],
        }
    }

    /// Whether its result contains the number of steps.
    pub fn counts(self) -> bool {
        matches!(self, Shape::Chain | Shape::Reuse | Shape::Steps | Shape::Claimed)
    }

    /// The worker that it is registered with. Functions need none.
    pub fn worker(self) -> Option<&'static str> {
        match self {
            Shape::Steps | Shape::Letters => None,
            Shape::Claimed | Shape::Parcels => Some(PULL_WORKER),
            _ => Some("stub"),
        }
    }

    /// The definition that is registered.
    pub fn definition(self) -> Definition {
        let poke = match self {
            Shape::Letters | Shape::Steps => json!({"function": "public.poke_of"}),
            _ => json!({"timeoutSeconds": 5}),
        };
        let definition = self.states().maps("public.work", "id", &["n", "effect"]).rpc("poke", poke);
        match self {
            Shape::Steps | Shape::Letters | Shape::Claimed | Shape::Tally => {
                definition.with("functions", json!({"tally": "public.add_to_tally"}))
            }
            _ => definition,
        }
    }

    fn states(self) -> Definition {
        match self {
            Shape::Chain | Shape::Reuse => step("Step"),
            Shape::Timer => waiting("Sleep"),
            Shape::Mailbox | Shape::Rpc | Shape::Timeout | Shape::Stop | Shape::Parcels => waiting("Read"),
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
            Shape::Steps => Definition::starting_with("Call").step_with("Call", of_function()),
            Shape::Letters => {
                let mut config = of_function();
                config["waitUntilFunction"] = json!("public.wait_of");
                Definition::starting_with("Open").waiting_step_with("Open", config)
            }
            Shape::Claimed => step("Work").step_with("Count", of_function()),
            Shape::Tally => step("Tally"),
            Shape::Merge => step("Gather"),
            Shape::Incident => {
                Definition::starting_with("Mend").step_with("Mend", spent(json!({"policy": "RAISE_INCIDENT"})))
            }
            Shape::Delayed => step("Later"),
        }
    }
}

/// The name of the pull worker.
pub const PULL_WORKER: &str = "hands";

/// The time of a call of a state.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);

fn quick() -> Value {
    json!({"waitUntilApiTimeoutSeconds": CALL_TIMEOUT.as_secs(), "executeApiTimeoutSeconds": CALL_TIMEOUT.as_secs()})
}

fn of_function() -> Value {
    let mut config = quick();
    config["executeFunction"] = json!("public.step_of");
    config
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
