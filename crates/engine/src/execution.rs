//! An execution: what its events have led to, from its own row down to states, waits, calls and messages.

use crate::words;
use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The range of a process's priority.
pub const PRIORITIES: std::ops::RangeInclusive<i8> = -10..=10;

/// One run of a process id, or the loaded part of it.
///
/// Counters and flags are always complete. `states`, `queues`, `message_ids`, `local_attributes` and `results` hold
/// what was loaded or has been added since. In replay they are complete too.
///
/// A copy shares its states and messages with the original until one of them changes. Each decision works on a copy,
/// and the loaded part of a wide process may be large.
///
/// A [`Snapshot`] stores the fields that can't be found elsewhere.
// Wide because this is the whole of what a history gives back: each field is a column or a table of the schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Execution {
    #[serde(skip)]
    pub id: ExecutionId,
    pub process_id: String,
    pub process_type: String,
    #[serde(skip, default = "running")]
    pub status: ProcessStatus,
    pub started_at: Timestamp,
    #[serde(skip)]
    pub closed_at: Option<Timestamp>,
    /// When the process times out.
    pub timeout_at: Option<Timestamp>,
    /// Why the process was stopped or failed.
    #[serde(skip)]
    pub reason: Option<String>,
    /// Number of the next event, from 1.
    #[serde(skip)]
    pub next_event: u64,
    /// Ordinal of the next step, from 1.
    pub next_state: u32,
    /// Number of the next message received, from 1. Numbers give the FIFO order within the execution.
    pub next_message: u64,
    /// The last number used, for each state id.
    pub state_numbers: BTreeMap<String, u32>,
    /// Threads that have not ended. A guard that waits is no thread.
    #[serde(skip)]
    pub live_threads: u32,
    /// Guards that wait.
    #[serde(skip)]
    pub waiting_guards: u32,
    /// Messages that were received and not yet consumed.
    #[serde(skip)]
    pub queued: QueuedTotal,
    /// Open timer commands of its states.
    #[serde(skip)]
    pub timers: u32,
    /// A graceful completion was requested. A request can't be withdrawn.
    pub completing: bool,
    pub states: BTreeMap<StateSeq, Arc<StateExecution>>,
    /// Messages received and not yet consumed, oldest first.
    pub queues: BTreeMap<String, VecDeque<Arc<Message>>>,
    /// (queue, message id) of received messages.
    #[serde(skip)]
    pub message_ids: BTreeSet<(String, String)>,
    pub local_attributes: BTreeMap<String, Json>,
    pub results: Vec<ProcessResult>,
    /// The current pause.
    pub pause: Option<Pause>,
    /// What a compensation undoes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compensation: Compensation,
    /// Orders the due calls of one owner to one worker: the highest first. Within [`PRIORITIES`].
    pub priority: i8,
    /// The process whose answer started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<StartedBy>>,
    /// An answer of this process has started others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub has_children: bool,
    /// The locks that the process asks for. Until it has them all, none of its calls is made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub locks: ProcessLocks,
}

fn running() -> ProcessStatus {
    ProcessStatus::Running
}

impl Execution {
    /// When the pause ends by itself. None: it has no end, or there is no pause.
    pub fn pause_ends_at(&self) -> Option<Timestamp> {
        self.pause.as_ref()?.until
    }

    /// An execution before its first event.
    pub fn new(id: ExecutionId) -> Self {
        Self {
            id,
            process_id: String::new(),
            process_type: String::new(),
            status: ProcessStatus::Running,
            started_at: Timestamp(0),
            closed_at: None,
            timeout_at: None,
            reason: None,
            next_event: 1,
            next_state: 1,
            next_message: 1,
            state_numbers: BTreeMap::new(),
            live_threads: 0,
            waiting_guards: 0,
            queued: QueuedTotal::default(),
            timers: 0,
            completing: false,
            states: BTreeMap::new(),
            queues: BTreeMap::new(),
            message_ids: BTreeSet::new(),
            local_attributes: BTreeMap::new(),
            results: Vec::new(),
            pause: None,
            compensation: Compensation::default(),
            priority: 0,
            parent: None,
            has_children: false,
            locks: BTreeMap::new(),
        }
    }

    /// The parent that gets a message when the execution closes.
    pub fn parent_to_inform(&self) -> Option<ExecutionId> {
        let parent = self.parent.as_ref().filter(|parent| parent.on_close.is_some())?;
        Some(parent.process_execution_id)
    }

    /// Whether the execution was started, that is, has had its first event.
    pub fn exists(&self) -> bool {
        self.next_event > 1
    }

    pub fn is_running(&self) -> bool {
        self.status == ProcessStatus::Running
    }

    /// Whether a queue has no loaded message.
    pub fn queue_is_empty(&self, queue: &str) -> bool {
        self.queues.get(queue).is_none_or(VecDeque::is_empty)
    }

    /// Counts threads, messages and timers. The execution must be loaded as a whole.
    pub fn recount(&mut self) {
        (self.live_threads, self.waiting_guards) = self.loaded_threads_and_guards();
        self.timers = self.states.values().flat_map(|state| state.open_timers()).count() as u32;
        self.queued = QueuedTotal::of(self.queues.values().flatten());
    }

    /// How many threads are loaded, and how many guards that wait.
    pub fn loaded_threads_and_guards(&self) -> (u32, u32) {
        let live = || self.states.values().filter(|state| state.status().is_live());
        let guards = live().filter(|state| state.is_waiting_guard()).count();
        ((live().count() - guards) as u32, guards as u32)
    }

    /// The loaded waiting states, longest waiting first.
    pub(crate) fn waiting_in_order(&self) -> Vec<StateSeq> {
        let waiting = self.states.values().filter_map(|state| Some((state.wait_order()?, state.seq)));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, seq)| seq).collect()
    }
}

words! {
    /// What happens to requests of callers during a pause.
    PauseMode {
        /// Requests are accepted. The work that follows waits for the end of the pause.
        Wait = "WAIT",
        /// Requests are rejected.
        Reject = "REJECT",
    }
}

/// A pause of a process or of a process type, written by a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    pub mode: PauseMode,
    /// When the pause ends by itself. None: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Pause {
    /// Whether the pause has ended by itself.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Whether starts, messages and RPCs are refused at this time.
    pub fn rejects(&self, now: Timestamp) -> bool {
        self.mode == PauseMode::Reject && !self.is_over(now)
    }
}

/// The completed steps that a compensation undoes, and how far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Compensation {
    /// In the order of their completion. The last one is undone first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub noted: Vec<NotedStep>,
    /// The compensation has begun.
    #[serde(skip_serializing_if = "is_default")]
    pub begun: bool,
    /// The step that is being undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<StateExecutionId>,
}

/// A completed step, and the state that undoes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotedStep {
    pub seq: StateSeq,
    pub of: StateExecutionId,
    pub state_id: String,
}

/// Counts the messages in all local queues of an execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedTotal {
    pub messages: u32,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl QueuedTotal {
    /// Counts these messages.
    pub fn of<'a>(messages: impl IntoIterator<Item = &'a Arc<Message>>) -> Self {
        let mut queued = Self::default();
        messages.into_iter().for_each(|message| queued.add(message));
        queued
    }

    pub(crate) fn add(&mut self, message: &Message) {
        self.messages = self.messages.saturating_add(1);
        self.bytes += message.bytes();
    }

    pub(crate) fn remove(&mut self, message: &Message) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(message.bytes());
    }
}

/// The output of a thread that closed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessResult {
    /// None if an RPC closed the process.
    pub state_execution_id: Option<StateExecutionId>,
    pub output: Json,
}

/// A message that was received into a local queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The message's place in the FIFO order of the execution.
    pub number: u64,
    pub queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

impl Message {
    fn bytes(&self) -> u64 {
        self.payload.as_ref().map_or(0, |payload| payload.as_str().len() as u64)
    }
}

/// A message of a global queue, as a state consumes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GlobalMessage {
    /// The message's place in the order of all global messages.
    pub number: u64,
    pub queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

/// A step: one execution of a state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateExecution {
    pub seq: StateSeq,
    pub id: StateExecutionId,
    pub input: Option<Json>,
    /// Options that came with the movement. They override the registered options.
    pub config: Option<Box<StateConfig>>,
    /// The failed step that this one recovers from.
    pub recovery: Option<Recovery>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub phase: Phase,
}

impl StateExecution {
    /// Where the step stands.
    pub fn status(&self) -> StateStatus {
        match &self.phase {
            Phase::WaitUntil(_) => StateStatus::WaitUntil,
            Phase::Waiting(_) => StateStatus::Waiting,
            Phase::Execute { .. } => StateStatus::Execute,
            Phase::Ended { status, .. } => *status,
        }
    }

    /// The commands that the state still waits for, each with its position.
    pub fn open_commands(&self) -> impl Iterator<Item = (u32, &WaitCommand)> {
        let commands: &[WaitCommand] = match &self.phase {
            Phase::Waiting(wait) => &wait.commands,
            _ => &[],
        };
        (0u32..).zip(commands).filter(|(_, command)| command.status == CommandStatus::Waiting)
    }

    /// The messages of local queues that the step has taken and not yet processed.
    pub fn taken_messages(&self) -> impl Iterator<Item = &Message> {
        let commands: &[WaitCommand] = match &self.phase {
            Phase::Waiting(wait) | Phase::Execute { results: Some(wait), .. } => &wait.commands,
            _ => &[],
        };
        commands.iter().flat_map(|command| &command.messages)
    }

    /// Local queues that the state waits for, each with the minimum and maximum of messages consumed at once.
    pub fn wanted_messages(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.open_commands().filter_map(|(_, command)| match &command.kind {
            WaitKind::LocalQueue { queue, at_least, at_most } => {
                Some((queue.as_str(), *at_least, taken_at_once(*at_least, *at_most)))
            }
            WaitKind::Timer { .. } | WaitKind::GlobalQueue { .. } => None,
        })
    }

    /// Open timer commands, with position and due time. A static wait that has not begun has one, [`STATE_BEGINS`].
    pub fn open_timers(&self) -> impl Iterator<Item = (u32, Timestamp)> {
        let commands = self.open_commands().filter_map(|(position, command)| match command.kind {
            WaitKind::Timer { fire_at, .. } => Some((position, fire_at)),
            WaitKind::LocalQueue { .. } | WaitKind::GlobalQueue { .. } => None,
        });
        self.begins_at().map(|at| (STATE_BEGINS, at)).into_iter().chain(commands)
    }

    /// See [`Wait::order`]. None: the step does not wait.
    pub fn wait_order(&self) -> Option<u64> {
        if let Phase::Waiting(wait) = &self.phase { Some(wait.order) } else { None }
    }

    /// Whether the step is a guard that waits.
    pub fn is_waiting_guard(&self) -> bool {
        matches!(&self.phase, Phase::Waiting(wait) if wait.guard)
    }

    /// When the static wait begins, if it has not begun.
    pub fn begins_at(&self) -> Option<Timestamp> {
        if let Phase::Waiting(wait) = &self.phase { wait.begins_at } else { None }
    }

    /// The call that the state is at, including a call with an incident.
    pub fn current_call(&self) -> Option<(Api, &CallState)> {
        match &self.phase {
            Phase::WaitUntil(call) => Some((Api::WaitUntil, call)),
            Phase::Execute { call, .. } => Some((Api::Execute, call)),
            Phase::Waiting(_) | Phase::Ended { .. } => None,
        }
    }

    /// The current call, unless it has an incident. The engine makes no call with an incident.
    pub fn open_call(&self) -> Option<(Api, &CallState)> {
        self.current_call().filter(|(_, call)| !call.incident)
    }

    /// The current call, if it is one of this API.
    pub fn call(&self, api: Api) -> Option<&CallState> {
        self.current_call().filter(|(at, _)| *at == api).map(|(_, call)| call)
    }

    pub(crate) fn call_mut(&mut self, api: Api) -> Option<&mut CallState> {
        match (&mut self.phase, api) {
            (Phase::WaitUntil(call), Api::WaitUntil) | (Phase::Execute { call, .. }, Api::Execute) => Some(call),
            _ => None,
        }
    }
}

/// Where a step stands, with the data of that place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    WaitUntil(CallState),
    Waiting(Wait),
    Execute {
        call: CallState,
        /// None if `waitUntil` was skipped.
        results: Option<Wait>,
    },
    Ended {
        status: StateStatus,
        last_failure: Option<LastFailure>,
        /// None if the state was at no call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<EndedCall>,
    },
}

impl Phase {
    /// The ended phase that follows this one.
    pub(crate) fn ended(&self, status: StateStatus, last_failure: Option<LastFailure>) -> Self {
        let call = match self {
            Self::WaitUntil(call) | Self::Execute { call, .. } => {
                let spent = last_failure.as_ref().filter(|_| status == StateStatus::Failed);
                let attempt = spent.map_or(call.failed_attempts.saturating_add(1), |last| last.attempt);
                Some(EndedCall { attempt, repeats: call.repeats })
            }
            Self::Waiting(_) | Self::Ended { .. } => None,
        };
        Self::Ended { status, last_failure, call }
    }
}

/// The call that a state was at when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCall {
    /// The attempt that ended the state, or the next one if the process closed.
    pub attempt: u32,
    /// See [`CallState::repeats`].
    pub repeats: u32,
}

/// A call and the results of its attempts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallState {
    /// When the call may be made: a start in the future, or the end of backoff.
    pub not_before: Timestamp,
    /// Number of the last failed attempt. Attempts count from 1.
    pub failed_attempts: u32,
    /// Attempts up to this number are in the history. The first [`RECORDED_ATTEMPTS`] are there anyway.
    #[serde(skip_serializing_if = "is_default")]
    pub recorded_attempts: u32,
    /// Grows when the content of the request changes. So a worker that stores answers by key never returns one for an
    /// older request.
    pub generation: u32,
    /// How often the call was made again without counting an attempt. Reasons: values loaded under a lock had changed,
    /// the worker could not accept the call, or the answer named something that is not registered.
    #[serde(skip_serializing_if = "is_default")]
    pub repeats: u32,
    /// The last failed attempt. Or the current attempt, if its answers name something that is not registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// Sent to the worker with each further attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_database_error: Option<AppDatabaseError>,
    /// The retries are spent: the call is not made until an operator resolves the incident.
    #[serde(skip_serializing_if = "is_default")]
    pub incident: bool,
    /// Number of attempts at the last resolved incident. The limits of the retry policy don't count these attempts.
    #[serde(skip_serializing_if = "is_default")]
    pub resolved_attempts: u32,
}

/// The first failed attempts of a call are recorded one by one. Later ones are folded into a count, unless they had
/// effects.
pub const RECORDED_ATTEMPTS: u32 = 10;

impl CallState {
    /// Failed attempts that are not in the history yet.
    pub fn unrecorded_attempts(&self) -> u32 {
        self.failed_attempts.saturating_sub(self.recorded_attempts.max(RECORDED_ATTEMPTS))
    }

    /// Since when the answers to the current attempt have named something that is not registered. The attempt has not
    /// failed yet.
    pub fn unregistered_since(&self) -> Option<Timestamp> {
        let last = self.last_failure.as_ref().filter(|last| last.attempt > self.failed_attempts);
        last.map(|last| last.at)
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// HTTP status of the answer, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The worker's name for the kind of its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// The problem in words, for a person.
    pub detail: String,
    /// The functions of the database that ran, innermost first, with their lines. Shown to the owner of the process,
    /// never sent to workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The error, if the application's tables refused the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_database_error: Option<AppDatabaseError>,
}

impl Failure {
    /// A failure of this type, without a status.
    pub fn of(error_type: impl Into<String>, detail: String) -> Self {
        Self { error_type: Some(error_type.into()), detail, ..Self::default() }
    }
}

/// The error type of an answer that names something that is not registered.
pub const NOT_REGISTERED: &str = "NotRegistered";

/// An error of a write or read in the application's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppDatabaseError {
    pub sql_state: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
}

/// The last failure of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    pub api: Api,
    pub attempt: u32,
    pub at: Timestamp,
    pub failure: Failure,
}

/// What a state waits for. After the wait, its commands are the results that `execute` gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// Number of the event that began the wait. Waiting states are served in this order.
    pub order: u64,
    pub since: Timestamp,
    pub waiting_type: WaitingType,
    pub commands: Vec<WaitCommand>,
    /// Positions in `commands`, for `AnyCombination`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub combinations: Vec<Vec<u32>>,
    /// When a static wait begins, and gets its commands. None: the wait has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_at: Option<Timestamp>,
    /// The wait of a guard.
    #[serde(default, skip_serializing_if = "is_default")]
    pub guard: bool,
    /// A step that the guard guarded when its wait ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guards: Option<StateExecutionId>,
}

/// The command number of the timer that begins a static wait. No command of a wait has it.
pub const STATE_BEGINS: u32 = i32::MAX as u32;

/// One command of a wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitCommand {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    pub kind: WaitKind,
    pub status: CommandStatus,
    /// Messages of a local queue that a completed command took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Messages of a global queue that a completed command took.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub global_messages: Vec<GlobalMessage>,
}

/// What a command waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    #[serde(rename_all = "camelCase")]
    Timer {
        fire_at: Timestamp,
        /// The time is a tick of a cron expression. Then the result of the timer has it.
        #[serde(default, skip_serializing_if = "is_default")]
        cron: bool,
    },
    #[serde(rename_all = "camelCase")]
    LocalQueue { queue: String, at_least: u32, at_most: u32 },
    #[serde(rename_all = "camelCase")]
    GlobalQueue {
        queue: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        at_least: u32,
        at_most: u32,
    },
}

/// Most messages that a command takes at once, unless its minimum is higher. A request must be sent and stored in one
/// piece.
const MOST_AT_ONCE: u32 = 1000;

/// The most messages that a command with these bounds takes at once.
pub fn taken_at_once(at_least: u32, at_most: u32) -> u32 {
    at_most.min(at_least.max(MOST_AT_ONCE))
}

/// A local or global queue that a command waits for.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedQueue<'a> {
    pub name: &'a str,
    pub is_global: bool,
    /// None: messages with any key and without one.
    pub key: Option<&'a str>,
    pub at_least: u32,
    pub at_most: u32,
}

impl WaitKind {
    /// The due time, if this is a timer.
    pub fn fire_at(&self) -> Option<Timestamp> {
        match self {
            Self::Timer { fire_at, .. } => Some(*fire_at),
            Self::LocalQueue { .. } | Self::GlobalQueue { .. } => None,
        }
    }

    /// The queue whose messages complete the command.
    pub fn queue(&self) -> Option<AwaitedQueue<'_>> {
        let (name, key, at_least, at_most) = match self {
            Self::Timer { .. } => return None,
            Self::LocalQueue { queue, at_least, at_most } => (queue, None, *at_least, *at_most),
            Self::GlobalQueue { queue, key, at_least, at_most } => (queue, key.as_deref(), *at_least, *at_most),
        };
        Some(AwaitedQueue { name, is_global: matches!(self, Self::GlobalQueue { .. }), key, at_least, at_most })
    }
}

/// What a recovery state gets about the step whose retries were spent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    pub state_execution_id: StateExecutionId,
    pub api: Api,
    pub failure: Failure,
}
