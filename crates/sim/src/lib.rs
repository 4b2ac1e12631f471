//! XDB's processes in memory, with a virtual clock: what tests of workers run them on.
//!
//! ```text
//!   a line of JSON ─▶ command ─▶ Simulator ─▶ engine: decide ─▶ events ─▶ Run: apply, history
//!                                   │  ▲                           ├─▶ GlobalQueues
//!   calls, to be answered ◀─────────┘  └──── the answers           └─▶ Tables
//! ```
//!
//! It is the server's own engine and wire format: what is decided, which calls may be made, what a worker is asked and what its
//! answer means come from `xdb-engine`, `xdb-calls` and `xdb-protocol`, and so do the words of errors. What is here stands for the
//! rest: for tables, rows as JSON; for the clock, a number that the command `advance` moves; for the scheduler, a list of what is due;
//! for HTTP, the commands `calls` and `answer`. One thread, no I/O, no clock: the same commands always give the same lines. README.md
//! describes the commands.

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

/// What a command gives, or why it is refused: then nothing has changed.
type Result<T> = std::result::Result<T, Refusal>;

/// The role that owns everything here, and the database it is in.
const OWNER: &str = "simulator";
const DATABASE: &str = "simulator";

/// The limits of a server with default settings. Messages in queues are not counted here.
const QUOTAS: Quotas = Quotas {
    commands: 1000,
    threads: 20_000,
    retry_interval: Duration(100_000),
    call_timeout: Duration(3_600_000_000),
    ..Quotas::NONE
};
const LIMITS: Limits = Limits { max_payload_bytes: 1024 * 1024, max_answer_bytes: usize::MAX };

/// A call of a function that a database would have made.
#[derive(Serialize)]
struct CalledFunction {
    process_id: String,
    #[serde(flatten)]
    call: FunctionCall,
}

/// Where a server has its ids and times: processes, their types, tables, queues, and the clock.
#[derive(Default)]
pub struct Simulator {
    now: Timestamp,
    types: BTreeMap<String, Arc<Definition>>,
    /// Pauses of process types, also those that are over.
    paused_types: BTreeMap<String, Pause>,
    tables: Tables,
    queues: GlobalQueues,
    /// By their ids, which is the order of their starts.
    runs: BTreeMap<ExecutionId, Run>,
    /// First answers of RPCs by their idempotency keys.
    rpc_answers: BTreeMap<(ExecutionId, String), rpc::FirstAnswer>,
    /// Calls that were given out and not answered, by number.
    open: BTreeMap<u64, OpenCall>,
    called: Vec<CalledFunction>,
    last_call: u64,
    last_id: u64,
}

impl Simulator {
    /// Nothing is there, and it is this time.
    pub fn new(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// Version 7, as the server's: the time, and a number in place of chance.
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

    /// The process that a command names last: the latest execution of its id, or the one that is named too.
    fn process(&self, given: &mut Given) -> Result<ExecutionId> {
        let (process_id, execution) = (given.name("process_id")?, given.take::<String>("execution_id")?);
        given.end()?;
        let is_named = |id: ExecutionId| execution.as_ref().is_none_or(|name| *name.to_lowercase() == id.to_string());
        let is_it = |run: &&Run| run.execution.process_id == process_id && is_named(run.execution.id);
        let found = self.runs.values().rev().find(is_it).map(|run| run.execution.id);
        found.ok_or_else(|| refusal::unknown_process(&process_id))
    }

    /// The run of an execution that was found.
    fn run(&self, id: ExecutionId) -> &Run {
        &self.runs[&id]
    }

    /// The definition of a process type.
    fn process_type(&self, name: &str) -> Result<&Arc<Definition>> {
        self.types.get(name).ok_or_else(|| refusal::unknown_process_type(name))
    }

    /// The definition of an execution's type, as it is registered now.
    fn definition(&self, run: &Run) -> Arc<Definition> {
        // A type is never unregistered here.
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

    /// Applies events, with what follows from them outside of their execution.
    fn apply(&mut self, id: ExecutionId, events: Vec<Event>) {
        self.apply_alone(id, events);
        self.ask_waiting();
    }

    /// Offers free messages of global queues to those who wait, the longest waiting first. What one takes leaves no more to those
    /// before it.
    fn ask_waiting(&mut self) {
        for (id, seq) in self.queues.waiting.clone() {
            // One that waits no more takes none.
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

    /// Gives an execution a command of a caller, and says how many events followed.
    fn command(&mut self, id: ExecutionId, command: &Command) -> Result<usize> {
        let rejected = |rejection| refusal::rejected(&self.run(id).execution.process_id, &rejection);
        let events = self.decide(id, command).map_err(rejected)?;
        let count = events.len();
        self.apply(id, events);
        Ok(count)
    }
}
