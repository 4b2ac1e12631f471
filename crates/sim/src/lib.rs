//! XDB's processes in memory, with a virtual clock: what tests of workers run them on.
//!
//! ```text
//!   a line of JSON ─▶ command ─▶ Simulator ─▶ engine: decide ─▶ events ─▶ Run: apply, history
//!                                   │  ▲                           ├─▶ GlobalQueues
//!   calls, to be answered ◀─────────┘  └──── the answers           └─▶ Tables
//! ```
//!
//! It is the server's own engine and wire format: what is decided, what a worker is asked and what its answer means come from
//! `xdb-engine` and `xdb-protocol`, and so do the words of errors. What is here stands for the rest: for tables, rows as JSON; for
//! the clock, a number that [`Simulator::advance`] moves; for the scheduler, a list of what is due; for HTTP, whoever asks for
//! [`Simulator::calls`] and gives each to [`Simulator::answer`]. One thread, no I/O, no clock, and the same commands give the same
//! results for ever.
//!
//! | file | what it has |
//! |---|---|
//! | `line.rs`, `command.rs` | lines of JSON: what may be asked, and what is answered (README.md) |
//! | `run.rs` | an execution with its history, and the events that follow from a command |
//! | `register.rs`, `start.rs`, `manage.rs` | what callers do to processes |
//! | `pauses.rs` | pauses of processes and types, and incidents |
//! | `calls.rs`, `answers.rs`, `rpc.rs` | calls that are due, given out, and answered |
//! | `clock.rs` | what comes due as time goes by |
//! | `tables.rs` | rows for global attributes |
//! | `functions.rs` | calls of functions that a database would have |
//! | `global.rs` | global queues, and who waits for them |
//! | `locks.rs` | what calls have locked, and whether it has changed |
//! | `look.rs` | descriptions, histories, and whether both agree |

mod answers;
mod calls;
mod clock;
mod command;
mod functions;
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

pub use answers::Answered;
pub use calls::Call;
pub use clock::Advanced;
pub use command::*;
pub use functions::CalledFunction;
pub use look::{Description, HistoryEvent};
pub use pauses::Incident;
pub use rpc::RpcCall;

use calls::OpenCall;
use global::GlobalQueues;
use register::ProcessType;
use run::Run;
use std::collections::BTreeMap;
use std::sync::Arc;
use tables::Tables;
use xdb_engine::*;
use xdb_protocol::Limits;
use xdb_protocol::refusal::{self, Refusal};

/// What a command gives, or why it is refused: then nothing has changed.
pub type Result<T> = std::result::Result<T, Refusal>;

/// The role that owns everything here, and the database it is in.
pub const OWNER: &str = "simulator";
pub const DATABASE: &str = "simulator";

/// What the server allows if nobody has changed its settings. What is counted in queues is not counted here.
const QUOTAS: Quotas = Quotas {
    commands: 1000,
    threads: 20_000,
    retry_interval: Duration(100_000),
    call_timeout: Duration(3_600_000_000),
    ..Quotas::NONE
};
const LIMITS: Limits = Limits { max_payload_bytes: 1024 * 1024, max_answer_bytes: usize::MAX };

/// Where a server has its ids and times: processes, their types, tables, queues, and the clock.
pub struct Simulator {
    now: Timestamp,
    types: BTreeMap<String, Arc<ProcessType>>,
    tables: Tables,
    runs: BTreeMap<ExecutionId, Run>,
    /// The latest execution of each process id.
    latest: BTreeMap<String, ExecutionId>,
    /// Executions by process id and request id.
    requests: BTreeMap<(String, String), ExecutionId>,
    /// First answers of RPCs by their idempotency keys.
    rpc_answers: BTreeMap<(ExecutionId, String), rpc::FirstAnswer>,
    queues: GlobalQueues,
    /// Calls that were given out and not answered, by number.
    open: BTreeMap<u64, OpenCall>,
    called: Vec<CalledFunction>,
    last_call: u64,
    last_id: u64,
    /// The latest start of each process type and correlation key.
    correlated: BTreeMap<(String, String), ExecutionId>,
    /// Pauses of process types, also those that are over.
    paused_types: BTreeMap<String, Pause>,
}

impl Simulator {
    /// Nothing is there, and it is this time.
    pub fn new(now: Timestamp) -> Self {
        Self {
            now,
            types: BTreeMap::new(),
            tables: Tables::default(),
            runs: BTreeMap::new(),
            latest: BTreeMap::new(),
            requests: BTreeMap::new(),
            rpc_answers: BTreeMap::new(),
            queues: GlobalQueues::default(),
            open: BTreeMap::new(),
            called: Vec::new(),
            last_call: 0,
            last_id: 0,
            correlated: BTreeMap::new(),
            paused_types: BTreeMap::new(),
        }
    }

    /// The time of processes.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The ids of all executions, in the order of their starts.
    pub fn executions(&self) -> impl Iterator<Item = ExecutionId> {
        self.runs.keys().copied()
    }

    fn new_id(&mut self) -> ExecutionId {
        let id = self.next_id();
        self.last_id += 1;
        id
    }

    /// What [`Simulator::new_id`] gives. Version 7, as the server's: the time, and a number in place of chance.
    fn next_id(&self) -> ExecutionId {
        let number = self.last_id + 1;
        let millis = self.now.0.max(0) / 1000;
        let mut id = [0; 16];
        id[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        id[6] = 0x70;
        id[8..].copy_from_slice(&number.to_be_bytes());
        id[8] = 0x80;
        ExecutionId(id)
    }

    /// The latest execution of a process id, or the one that is named.
    fn find(&self, process_id: &str, execution: Option<&str>) -> Result<ExecutionId> {
        let found = match execution {
            None => self.latest.get(process_id).copied(),
            Some(name) => {
                let is_it = |(id, run): &(&ExecutionId, &Run)| {
                    run.execution.process_id == process_id && id.to_string() == name.to_ascii_lowercase()
                };
                self.runs.iter().find(is_it).map(|(id, _)| *id)
            }
        };
        found.ok_or_else(|| refusal::unknown_process(process_id))
    }

    /// The run of an execution that was found.
    fn run(&self, id: ExecutionId) -> &Run {
        &self.runs[&id]
    }

    /// The definition of an execution's type, as it is registered now.
    fn definition(&self, run: &Run) -> Arc<Definition> {
        // A type is never unregistered here.
        self.types[&run.execution.process_type].definition.clone()
    }

    /// The events that follow from a command.
    fn decide(&self, id: ExecutionId, command: &Command) -> std::result::Result<Vec<Event>, Rejection> {
        let run = self.run(id);
        let offered = match command {
            Command::WaitUntilAnswered { answer, .. } => {
                let demands = answer.request.commands.iter().filter_map(|command| command.kind.global_demand());
                self.queues.free(demands, self.now)
            }
            Command::GlobalMessagesArrived { seq } => {
                let demands = run.execution.states.get(seq).into_iter().flat_map(|state| state.global_demands());
                self.queues.free(demands.map(|(_, demand)| demand), self.now)
            }
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
        for key in self.queues.waiting() {
            let arrived = Command::GlobalMessagesArrived { seq: key.1 };
            match self.decide(key.0, &arrived) {
                Ok(events) => self.apply_alone(key.0, events),
                Err(_) => self.queues.waits_no_more(key),
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

    /// Gives an execution a command of a caller.
    fn command(&mut self, process_id: &str, id: ExecutionId, command: &Command) -> Result<usize> {
        let events = self.decide(id, command).map_err(|rejection| refusal::rejected(process_id, &rejection))?;
        let count = events.len();
        self.apply(id, events);
        Ok(count)
    }
}
