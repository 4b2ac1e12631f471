//! Runs processes in memory, with a virtual clock, for tests of workers.
//!
//! ```text
//!   a line of JSON ─▶ command ─▶ Simulator ─▶ engine: decide ─▶ events ─▶ Run: apply, history
//!                                   │  ▲                           ├─▶ GlobalQueues
//!   calls, to be answered ◀─────────┘  └──── the answers           └─▶ Tables
//! ```
//!
//! The simulator uses the server's own engine and wire formats. Decisions, requests, answers and error messages come
//! from `xdb-engine`, `xdb-calls` and `xdb-protocol`. This crate replaces the rest:
//!
//! | on the server | here |
//! |---|---|
//! | the application's tables | rows as JSON |
//! | the clock | a number that the command `advance` moves |
//! | the scheduler | a list of due work |
//! | HTTP | the commands `calls` and `answer` |
//!
//! The same commands always give the same lines. README.md describes the commands.
//!
//! Limitations: one thread, no I/O, no real clock. Functions of the database are not called, only recorded.

mod answers;
mod calls;
mod children;
mod clock;
mod given;
mod global;
mod line;
mod locks;
mod look;
mod manage;
mod run;
mod start;
mod tables;

use calls::OpenCall;
use given::{Given, Result};
use global::GlobalQueues;
use locks::Locks;
use run::Run;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tables::TablesInMemory;
use xdb_engine::*;
use xdb_protocol::refusal;

/// The role that owns all processes, and the name of the database.
const OWNER: &str = "simulator";
const DATABASE: &str = "simulator";

/// A recorded call of a function. A database would have called the function.
#[derive(Serialize)]
struct CalledFunction {
    process_id: String,
    #[serde(flatten)]
    call: FunctionCall,
}

/// All processes, process types, tables, queues, and the clock. Commands write it, one at a time.
#[derive(Default)]
pub struct Simulator {
    now: Timestamp,
    types: BTreeMap<String, Arc<Definition>>,
    /// Pauses of process types. A pause that has ended by itself stays here.
    paused_types: BTreeMap<String, Pause>,
    tables: TablesInMemory,
    queues: GlobalQueues,
    locks: Locks,
    /// Executions by id, which is the order of their starts.
    runs: BTreeMap<ExecutionId, Run>,
    /// First RPCs and their outputs, by execution and idempotency key.
    rpc_answers: BTreeMap<(ExecutionId, String), (calls::Asked, Option<Json>)>,
    /// Open calls by number: handed out and not answered.
    open: BTreeMap<u64, OpenCall>,
    /// Function calls since the last command `called`.
    called: Vec<CalledFunction>,
    /// Executions that have closed, and whose parents and children are still to be informed.
    closed: VecDeque<ExecutionId>,
    last_call: u64,
    last_id: u64,
}

impl Simulator {
    /// An empty simulator at this time.
    pub fn new(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// A UUID of version 7, as on the server. A counter replaces the random part, so ids are reproducible.
    fn new_id(&mut self) -> ExecutionId {
        self.last_id += 1;
        self.id(self.last_id)
    }

    /// The id with this number.
    fn id(&self, number: u64) -> ExecutionId {
        let millis = self.now.0.max(0) / 1000;
        let mut id = [0; 16];
        id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        id[6] = 0x70;
        id[8..].copy_from_slice(&number.to_be_bytes());
        id[8] = 0x80;
        ExecutionId(id)
    }

    /// The process that the last arguments of a command name: the latest execution of its id, or the named execution.
    fn process(&self, given: &mut Given) -> Result<ExecutionId> {
        let (process_id, execution) = (given.name("process_id")?, given.take::<String>("execution_id")?);
        given.end()?;
        let is_named = |id: ExecutionId| execution.as_ref().is_none_or(|name| *name.to_lowercase() == id.to_string());
        let is_it = |run: &&Run| run.execution.process_id == process_id && is_named(run.execution.id);
        let found = self.runs.values().rev().find(is_it).map(|run| run.execution.id);
        found.ok_or_else(|| refusal::unknown_process(&process_id))
    }

    /// The run of a known execution.
    fn run(&self, id: ExecutionId) -> &Run {
        &self.runs[&id]
    }

    /// The definition of a process type.
    fn process_type(&self, name: &str) -> Result<&Arc<Definition>> {
        self.types.get(name).ok_or_else(|| refusal::unknown_process_type(name))
    }

    /// The definition of an execution's type, as registered now.
    fn definition(&self, run: &Run) -> Arc<Definition> {
        // The simulator never unregisters a type.
        self.types[&run.execution.process_type].clone()
    }

    /// The events that follow from a command.
    fn decide(&self, id: ExecutionId, command: &Command) -> std::result::Result<Vec<Event>, Rejection> {
        let run = self.run(id);
        let offered = match command {
            Command::WaitUntilAnswered { .. } | Command::GlobalMessagesArrived { .. } => self.queues.free(self.now),
            _ => Vec::new(),
        };
        run.decide(command, &self.definition(run), self.now, &offered, &self.child_ids(command))
    }

    /// Applies the events of an execution, to it and to what else is in memory.
    fn record(&mut self, id: ExecutionId, events: Vec<Event>) {
        for event in events {
            self.queues.follow(id, &event, self.now);
            let Some(run) = self.runs.get_mut(&id) else { return };
            if matches!(event, Event::ProcessClosed { .. }) {
                self.open.retain(|_, open| open.state().is_none_or(|(of, _)| of != id));
                self.closed.push_back(id);
            }
            let is_change = event.is_change();
            run.apply(event, self.now);
            let queue = Some(&self.types[&run.execution.process_type]).filter(|_| is_change);
            if let Some(queue) = queue.and_then(|definition| definition.changes.as_ref()) {
                self.queues.publish(&run.last_change(queue), self.now);
            }
        }
        if let Some(run) = self.runs.get(&id) {
            self.locks.follow(&run.execution, self.now);
        }
    }
}
