//! XDB's processes in memory with a virtual clock, for tests of workers.
//!
//! ```text
//!   a line of JSON ─▶ command ─▶ Simulator ─▶ engine: decide ─▶ events ─▶ Run: apply, history
//!                                   │  ▲                           ├─▶ GlobalQueues
//!   calls, to be answered ◀─────────┘  └──── the answers           └─▶ Tables
//! ```
//!
//! Engine and wire format are those of the server: `xdb-engine`, `xdb-calls` and `xdb-protocol` make the decisions,
//! judge calls, write requests, read answers, and have the texts of errors. This crate has substitutes for the rest:
//!
//! | in the server | here |
//! |---|---|
//! | the application's tables | rows as JSON values |
//! | the clock | a number that the command `advance` moves |
//! | the scheduler | a list of due calls and timers |
//! | HTTP | the commands `calls` and `answer` |
//!
//! There is one thread, no I/O and no clock, so the same commands always give the same lines. README.md describes the
//! commands.
//!
//! Limitations: one role and one worker. README.md lists all differences from a server.

mod answers;
mod calls;
mod clock;
mod global;
mod line;
mod locks;
mod look;
mod manage;
mod pauses;
mod register;
mod rpc;
mod run;
mod start;
mod tables;

use calls::OpenCall;
use global::GlobalQueues;
use line::{AnswerArguments, Given};
use run::Run;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tables::Tables;
use xdb_engine::*;
use xdb_protocol::Limits;
use xdb_protocol::refusal::{self, Refusal};

/// The result of a command. Error: why it is refused. A refused command changes nothing.
type Result<T> = std::result::Result<T, Refusal>;

/// The names of the only role and of the database.
const OWNER: &str = "simulator";
const DATABASE: &str = "simulator";

/// The limits of a server with default settings, except those of messages in queues.
const QUOTAS: Quotas = Quotas {
    commands: 1000,
    threads: 20_000,
    retry_interval: Duration(100_000),
    call_timeout: Duration(3_600_000_000),
    ..Quotas::NONE
};
const LIMITS: Limits = Limits { max_payload_bytes: 1024 * 1024, max_answer_bytes: usize::MAX };

/// A function call that a server would have made in its database.
#[derive(Serialize)]
struct CalledFunction {
    process_id: String,
    #[serde(flatten)]
    call: FunctionCall,
}

/// All state of the simulator: processes, process types, tables, queues, and the clock.
#[derive(Default)]
pub struct Simulator {
    now: Timestamp,
    types: BTreeMap<String, Arc<Definition>>,
    /// The pauses of process types, including pauses whose time is over.
    paused_types: BTreeMap<String, Pause>,
    tables: Tables,
    queues: GlobalQueues,
    /// The executions, in the order of their starts, which is the order of the ids.
    runs: BTreeMap<ExecutionId, Run>,
    /// The first answers of RPCs, by execution and idempotency key.
    rpc_answers: BTreeMap<(ExecutionId, String), rpc::FirstAnswer>,
    /// Calls that the tests have got and not answered yet, by number.
    open: BTreeMap<u64, OpenCall>,
    /// Function calls since the last command `called`.
    called: Vec<CalledFunction>,
    last_call: u64,
    last_id: u64,
}

impl Simulator {
    /// An empty simulator at this time.
    pub fn new(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// A UUID of version 7, as on the server, with a counter in place of random bits.
    fn new_id(&mut self) -> ExecutionId {
        self.last_id += 1;
        let millis = self.now.0.max(0) / 1000;
        let mut id = [0; 16];
        id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        id[6] = 0x70;
        id[8..].copy_from_slice(&self.last_id.to_be_bytes());
        id[8] = 0x80;
        ExecutionId(id)
    }

    /// Reads the last arguments of a command: the process id, and perhaps the execution id. Without the latter, finds
    /// the latest execution.
    fn process(&self, given: &mut Given) -> Result<ExecutionId> {
        let (process_id, execution) = (given.name("process_id")?, given.take::<String>("execution_id")?);
        given.end()?;
        let is_named = |id: ExecutionId| execution.as_ref().is_none_or(|name| *name.to_lowercase() == id.to_string());
        let is_it = |run: &&Run| run.execution.process_id == process_id && is_named(run.execution.id);
        let found = self.runs.values().rev().find(is_it).map(|run| run.execution.id);
        found.ok_or_else(|| refusal::unknown_process(&process_id))
    }

    /// The run of an existing execution.
    fn run(&self, id: ExecutionId) -> &Run {
        &self.runs[&id]
    }

    /// The definition of a process type.
    fn process_type(&self, name: &str) -> Result<&Arc<Definition>> {
        self.types.get(name).ok_or_else(|| refusal::unknown_process_type(name))
    }

    /// The definition of the execution's type, as registered now.
    fn definition(&self, run: &Run) -> Arc<Definition> {
        // No command unregisters a type.
        self.types[&run.execution.process_type].clone()
    }

    /// The events that follow from a command.
    fn decide(&self, id: ExecutionId, command: &Command) -> std::result::Result<Vec<Event>, Rejection> {
        let run = self.run(id);
        let offered = match command {
            Command::WaitUntilAnswered { .. } | Command::GlobalMessagesArrived { .. } => self.queues.free(self.now),
            _ => Vec::new(),
        };
        run.decide(command, &self.definition(run), self.now, &offered)
    }

    /// Applies events, and then offers free messages of global queues.
    fn apply(&mut self, id: ExecutionId, events: Vec<Event>) {
        self.apply_alone(id, events);
        self.ask_waiting();
    }

    /// Offers free messages of global queues to waiting states, longest waiting first. One pass is enough: consumed
    /// messages never help a state that was asked before.
    fn ask_waiting(&mut self) {
        for (id, seq) in self.queues.waiting.clone() {
            // A state that no longer waits refuses the command.
            if let Ok(events) = self.decide(id, &Command::GlobalMessagesArrived { seq }) {
                self.apply_alone(id, events);
            }
        }
    }

    fn apply_alone(&mut self, id: ExecutionId, events: Vec<Event>) {
        for event in events {
            self.queues.follow(id, &event, self.now);
            let Some(run) = self.runs.get_mut(&id) else { return };
            if matches!(event, Event::ProcessClosed { .. }) {
                self.open.retain(|_, call| !call.is_state_of(id));
            }
            run.apply(event, self.now);
        }
    }

    /// Applies a command of a caller to an execution. Returns how many events followed.
    fn command(&mut self, id: ExecutionId, command: &Command) -> Result<usize> {
        let rejected = |rejection| refusal::rejected(&self.run(id).execution.process_id, &rejection);
        let events = self.decide(id, command).map_err(rejected)?;
        let count = events.len();
        self.apply(id, events);
        Ok(count)
    }
}
