use crate::words;
use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The lowest and the highest priority of a process.
pub const PRIORITIES: std::ops::RangeInclusive<i8> = -10..=10;

/// One run of a process id, or the part of it that was loaded.
///
/// Counters and flags are always whole. `states`, `queues`, `message_ids`, `local_attributes` and `results` hold
/// what was loaded or came about since; in replay they are whole too.
///
/// A copy shares its states and messages with the original until one of them changes: every decision works on a copy, and
/// of a wide process much may be loaded.
///
/// What is stored of it in a [`Snapshot`] is what can't be had from elsewhere.
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
    /// Why it was stopped or failed.
    #[serde(skip)]
    pub reason: Option<String>,
    /// Number of the event that comes next, from 1.
    #[serde(skip)]
    pub next_event: u64,
    /// Ordinal of the state execution that comes next, from 1.
    pub next_state: u32,
    /// Number of the message that is received next, from 1: FIFO order within the execution.
    pub next_message: u64,
    /// Last number given out per state id.
    pub state_numbers: BTreeMap<String, u32>,
    /// Threads that have not ended.
    #[serde(skip)]
    pub live_threads: u32,
    /// Messages that were received and not yet taken.
    #[serde(skip)]
    pub queued: Queued,
    /// Timers that states wait for.
    #[serde(skip)]
    pub timers: u32,
    /// A graceful completion was requested; it stays requested.
    pub completing: bool,
    pub states: BTreeMap<StateSeq, Arc<StateExecution>>,
    /// Received and not yet taken, oldest first.
    pub queues: BTreeMap<String, VecDeque<Arc<Message>>>,
    /// (queue, message id) of messages that were received.
    #[serde(skip)]
    pub message_ids: BTreeSet<(String, String)>,
    pub local_attributes: BTreeMap<String, Json>,
    pub results: Vec<ProcessResult>,
    /// The pause that it is in.
    pub pause: Option<Pause>,
    /// The order of its due calls among those of its owner to the same worker: the highest first. Within [`PRIORITIES`].
    pub priority: i8,
}

fn running() -> ProcessStatus {
    ProcessStatus::Running
}

impl Execution {
    /// The timer that ends the pause.
    pub fn pause_ends_at(&self) -> Option<Timestamp> {
        self.pause.as_ref()?.until
    }

    /// Before its first event.
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
            queued: Queued::default(),
            timers: 0,
            completing: false,
            states: BTreeMap::new(),
            queues: BTreeMap::new(),
            message_ids: BTreeSet::new(),
            local_attributes: BTreeMap::new(),
            results: Vec::new(),
            pause: None,
            priority: 0,
        }
    }

    /// Whether it was started, that is, has had its first event.
    pub fn exists(&self) -> bool {
        self.next_event > 1
    }

    /// Whether it has not closed.
    pub fn is_running(&self) -> bool {
        self.status == ProcessStatus::Running
    }

    /// Whether a queue holds no message, as far as loaded.
    pub fn queue_is_empty(&self, queue: &str) -> bool {
        self.queues.get(queue).is_none_or(VecDeque::is_empty)
    }

    /// Counts threads, messages and timers of an execution that is loaded as a whole.
    pub fn count_anew(&mut self) {
        let live = self.states.values().filter(|state| state.status().is_live());
        self.live_threads = live.count() as u32;
        self.timers = self.states.values().flat_map(|state| state.open_timers()).count() as u32;
        self.queued = Queued::of(self.queues.values().flatten());
    }

    /// Loaded waiting states, longest waiting first.
    pub(crate) fn waiting_in_order(&self) -> Vec<StateSeq> {
        let mut waiting: Vec<_> = self
            .states
            .values()
            .filter_map(|state| match &state.phase {
                Phase::Waiting(wait) => Some((wait.order, state.seq)),
                _ => None,
            })
            .collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, seq)| seq).collect()
    }
}

words! {
    /// What becomes of the requests of callers during a pause.
    PauseMode {
        /// They are accepted, and what follows of them waits.
        Wait = "WAIT",
        /// They are refused.
        Reject = "REJECT",
    }
}

/// A pause of a process or of a process type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    pub mode: PauseMode,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Pause {
    /// Whether it is over by itself.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// The messages in all local queues of an execution together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    pub messages: u32,
    /// Of their payloads.
    pub bytes: u64,
}

impl Queued {
    /// Counts the messages of some queues.
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

/// An output that a thread left when it closed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessResult {
    /// None when an RPC closed the process.
    pub state_execution_id: Option<StateExecutionId>,
    pub output: Json,
}

/// A message that was received into a local queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
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

/// A message of a global queue, as a state takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GlobalMessage {
    /// Its place in the order of all global messages.
    pub number: u64,
    pub queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

/// One run of an async state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateExecution {
    pub seq: StateSeq,
    pub id: StateExecutionId,
    pub input: Option<Json>,
    /// Options that came with the movement and override the registered ones.
    pub config: Option<Box<StateConfig>>,
    /// Which failed state execution this one recovers from.
    pub recovery: Option<Recovery>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub phase: Phase,
}

impl StateExecution {
    /// Where it stands, in a word.
    pub fn status(&self) -> StateStatus {
        match &self.phase {
            Phase::WaitUntil(_) => StateStatus::WaitUntil,
            Phase::Waiting(_) => StateStatus::Waiting,
            Phase::Execute { .. } => StateStatus::Execute,
            Phase::Ended { status, .. } => *status,
        }
    }

    /// The commands that the state still waits for, by position.
    pub fn open_commands(&self) -> impl Iterator<Item = (u32, &WaitCommand)> {
        let commands: &[WaitCommand] = match &self.phase {
            Phase::Waiting(wait) => &wait.commands,
            _ => &[],
        };
        (0u32..).zip(commands).filter(|(_, command)| command.status == CommandStatus::Waiting)
    }

    /// Queues that the state waits for, each with the least and the most messages that it takes at once.
    pub fn wanted_messages(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.open_commands().filter_map(|(_, command)| match &command.kind {
            WaitKind::LocalQueue { queue, at_least, at_most } => {
                Some((queue.as_str(), *at_least, taken_at_once(*at_least, *at_most)))
            }
            WaitKind::Timer { .. } | WaitKind::GlobalQueue { .. } => None,
        })
    }

    /// Timer commands that the state waits for: the position of each, and when it fires.
    pub fn open_timers(&self) -> impl Iterator<Item = (u32, Timestamp)> {
        self.open_commands().filter_map(|(position, command)| match command.kind {
            WaitKind::Timer { fire_at } => Some((position, fire_at)),
            WaitKind::LocalQueue { .. } | WaitKind::GlobalQueue { .. } => None,
        })
    }

    /// The call that the state is at, with its API.
    pub fn current_call(&self) -> Option<(Api, &CallState)> {
        match &self.phase {
            Phase::WaitUntil(call) => Some((Api::WaitUntil, call)),
            Phase::Execute { call, .. } => Some((Api::Execute, call)),
            Phase::Waiting(_) | Phase::Ended { .. } => None,
        }
    }

    /// The same, if it is to be made, now or later: nothing makes a call with an incident.
    pub fn open_call(&self) -> Option<(Api, &CallState)> {
        self.current_call().filter(|(_, call)| !call.incident)
    }

    /// The call that is to be made or repeated, if the state is at one.
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

/// Where a state execution stands, with all that belongs to that place and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    WaitUntil(CallState),
    Waiting(Wait),
    Execute {
        call: CallState,
        /// None when `waitUntil` was skipped.
        results: Option<Wait>,
    },
    Ended {
        status: StateStatus,
        last_failure: Option<LastFailure>,
        /// None when it was at no call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<EndedCall>,
    },
}

impl Phase {
    /// The same, ended.
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

/// What is kept of the call that a state was at when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCall {
    /// The attempt that ended it, or that was next when its process closed.
    pub attempt: u32,
    pub repeats: u32,
}

/// A call and what became of its attempts so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallState {
    /// The call is not made before this moment: a start in the future, or backoff.
    pub not_before: Timestamp,
    pub failed_attempts: u32,
    /// Up to this one they are in the history, and the first [`RECORDED_ATTEMPTS`] anyway.
    #[serde(skip_serializing_if = "is_default")]
    pub recorded_attempts: u32,
    /// Grows when the content of the request changes, so that a worker that keeps answers by key never replays an
    /// answer that was computed from an older request.
    pub generation: u32,
    /// How often the call was made again because what it had loaded under a lock had changed, its worker could not take it, or its answer
    /// named what is not registered.
    #[serde(skip_serializing_if = "is_default")]
    pub repeats: u32,
    /// Of an attempt that has not failed, where its answers name what is not registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// Told to the worker with every further attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_database_error: Option<AppDatabaseError>,
    /// The retries are spent: the call is not made until somebody resolves that.
    #[serde(skip_serializing_if = "is_default")]
    pub incident: bool,
    /// Attempts up to the last incident that was resolved. The bounds of the retry policy don't count them.
    #[serde(skip_serializing_if = "is_default")]
    pub resolved_attempts: u32,
}

/// Failed attempts of one call that are recorded one by one; later ones are folded into a count, unless they have changed something.
pub const RECORDED_ATTEMPTS: u32 = 10;

impl CallState {
    /// Failed attempts of which the history does not know yet.
    pub fn unrecorded_attempts(&self) -> u32 {
        self.failed_attempts.saturating_sub(self.recorded_attempts.max(RECORDED_ATTEMPTS))
    }

    /// Since when the answers to this attempt have named what is not registered. The attempt has not failed yet.
    pub fn unregistered_since(&self) -> Option<Timestamp> {
        let last = self.last_failure.as_ref().filter(|last| last.attempt > self.failed_attempts);
        last.map(|last| last.at)
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failure {
    /// HTTP status of the answer, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The worker's word for the kind of its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// What a person should read.
    pub detail: String,
    /// The functions of the database that ran, innermost first, each with its line. For the owner of the process; no worker is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_database_error: Option<AppDatabaseError>,
}

impl Failure {
    /// One of this kind, which comes with no status.
    pub fn of(error_type: impl Into<String>, detail: String) -> Self {
        Self { error_type: Some(error_type.into()), detail, ..Self::default() }
    }
}

/// The error type of an answer that names what is not registered.
pub const NOT_REGISTERED: &str = "NotRegistered";

/// A write or read that the user's tables refused.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    pub api: Api,
    pub attempt: u32,
    pub at: Timestamp,
    pub failure: Failure,
}

/// What a state waits for, or waited for: then it is the command results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// Number of the event that began the wait: waiters are served in this order.
    pub order: u64,
    pub since: Timestamp,
    pub waiting_type: WaitingType,
    pub commands: Vec<WaitCommand>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub combinations: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitCommand {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    pub kind: WaitKind,
    pub status: CommandStatus,
    /// What a completed command took from a local queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// What a completed command took from a global queue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub global_messages: Vec<GlobalMessage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    #[serde(rename_all = "camelCase")]
    Timer { fire_at: Timestamp },
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

/// Most messages that a command takes unless it insists on more: a request has to be carried and kept in one piece.
const MOST_AT_ONCE: u32 = 1000;

/// How many messages a command with these bounds takes at most.
pub fn taken_at_once(at_least: u32, at_most: u32) -> u32 {
    at_most.min(at_least.max(MOST_AT_ONCE))
}

/// A queue that a command waits for.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedQueue<'a> {
    pub name: &'a str,
    pub is_global: bool,
    pub key: Option<&'a str>,
    pub at_least: u32,
    pub at_most: u32,
}

impl WaitKind {
    /// When it completes by itself, if it is a timer.
    pub fn fire_at(&self) -> Option<Timestamp> {
        match self {
            Self::Timer { fire_at } => Some(*fire_at),
            Self::LocalQueue { .. } | Self::GlobalQueue { .. } => None,
        }
    }

    /// The queue whose messages complete it.
    pub fn queue(&self) -> Option<AwaitedQueue<'_>> {
        let (name, key, at_least, at_most) = match self {
            Self::Timer { .. } => return None,
            Self::LocalQueue { queue, at_least, at_most } => (queue, None, *at_least, *at_most),
            Self::GlobalQueue { queue, key, at_least, at_most } => (queue, key.as_deref(), *at_least, *at_most),
        };
        Some(AwaitedQueue { name, is_global: matches!(self, Self::GlobalQueue { .. }), key, at_least, at_most })
    }
}

/// What a recovery state is told about the state execution whose retries were spent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    pub state_execution_id: StateExecutionId,
    pub api: Api,
    pub failure: Failure,
}
