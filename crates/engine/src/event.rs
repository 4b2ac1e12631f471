//! Everything that can happen to an execution: the events of its history, and their stored form.

use crate::types::names;
use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change of an execution. Applying its events in order to a new execution gives its state.
///
/// Later versions read the stored form of events. So variants and fields may be added, but never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum Event {
    ProcessStarted {
        process_id: String,
        process_type: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "is_default")]
        priority: i8,
        /// The parent, if an answer of another process started this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        started_by: Option<Box<StartedBy>>,
        /// The locks of the start, and those of its process type.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        locks: ProcessLocks,
    },
    StateStarted {
        seq: StateSeq,
        state_execution_id: StateExecutionId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Json>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        config: Option<Box<StateConfig>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recovery: Option<Recovery>,
        skip_wait_until: bool,
        /// The options say what the state waits for. The wait begins at `not_before`.
        #[serde(default, skip_serializing_if = "is_default")]
        static_wait: bool,
        /// The step waits beside what it guards, and is no thread.
        #[serde(default, skip_serializing_if = "is_default")]
        guard: bool,
        /// The step that this one undoes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compensates: Option<StateExecutionId>,
        not_before: Timestamp,
    },
    /// Another start was merged into this execution, whose first call had not begun.
    StartMerged {
        /// The new input of the first state. Absent: its input has not changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Json>,
        /// The first state has no input now.
        #[serde(default, skip_serializing_if = "is_default")]
        without_input: bool,
        not_before: Timestamp,
        /// When the process times out. Its distance from the beginning has not changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<Timestamp>,
    },
    /// `waitUntil` was answered, or a static wait has begun: the state waits.
    WaitStarted {
        seq: StateSeq,
        waiting_type: WaitingType,
        commands: Vec<WaitCommand>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        combinations: Vec<Vec<u32>>,
        /// Warnings about the answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// A command of a waiting state completed: a timer fired, or a local queue delivered the messages with these
    /// numbers.
    CommandCompleted {
        seq: StateSeq,
        command: u32,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        messages: Vec<u64>,
    },
    /// A command of a waiting state completed: a global queue delivered these messages.
    GlobalMessagesTaken {
        seq: StateSeq,
        command: u32,
        messages: Vec<GlobalMessage>,
    },
    /// A caller skipped a timer command of a waiting state.
    TimerSkipped {
        seq: StateSeq,
        command: u32,
    },
    /// The wait is over, and `execute` is called next. A guard is a thread from now on.
    WaitCompleted {
        seq: StateSeq,
        /// A step that the guard guards. None: it guards the process, or is no guard.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guards: Option<StateExecutionId>,
    },
    /// `execute` was answered: the thread went on or ended.
    StateCompleted {
        seq: StateSeq,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        close_type: Option<CloseType>,
        /// Warnings about the answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    AttemptFailed {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
        next_attempt_at: Timestamp,
        /// The effects of the failed attempt were applied: see the events before this one.
        #[serde(default, skip_serializing_if = "is_default")]
        applied: bool,
    },
    /// Failed attempts that were not recorded one by one, summed up.
    AttemptsFolded {
        seq: StateSeq,
        api: Api,
        /// How many attempts.
        count: u32,
        last_attempt: u32,
        /// When the last attempt failed.
        at: Timestamp,
        failure: Failure,
    },
    /// The call is made again, and its attempt does not count. Either values that it had loaded under a lock have
    /// changed: the next request has the new values. Or the worker could not accept the call, or its answer named
    /// something that is not registered: the request stays the same.
    CallRepeated {
        seq: StateSeq,
        api: Api,
        next_call_at: Timestamp,
        /// The request is the same. False: the values under the lock have changed.
        #[serde(default, skip_serializing_if = "is_default")]
        same_request: bool,
        /// The answer that could not be applied, because it names something that is not registered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// A caller requested a call that was in backoff or had an incident. The request resolves the incident.
    RetryRequested {
        seq: StateSeq,
        api: Api,
        /// The call had an incident, which is resolved.
        #[serde(default, skip_serializing_if = "is_default")]
        resolves: bool,
    },
    /// The retries of a state were spent. The state stays at its call until a retry is requested.
    IncidentRaised {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
    },
    /// The retries of a state were spent, and the state failed.
    StateFailed {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
    },
    /// An answer or a caller ended the step before it ended itself. The messages that it had received go back to their
    /// places.
    StateAborted {
        seq: StateSeq,
        /// None: an answer ended the step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    LocalAttributesWritten {
        attributes: BTreeMap<String, Json>,
    },
    /// Columns of the application's tables were written.
    GlobalAttributesWritten {
        attributes: BTreeMap<String, Json>,
    },
    /// An answer started other processes, with this one as their parent.
    ChildrenStarted {
        children: Vec<Child>,
    },
    /// Messages came into local queues.
    MessagesReceived {
        publisher: Publisher,
        messages: Vec<Message>,
    },
    /// Messages were published to global queues, in this order. A global queue ignores message ids that it has received
    /// before.
    GlobalMessagesPublished {
        publisher: Publisher,
        messages: Vec<PublishedGlobally>,
    },
    RpcApplied {
        rpc_name: String,
        /// Warnings about the answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// The process completes when its last thread ends.
    CompletionRequested {},
    /// A thread or an RPC gave an output of the process.
    ResultGiven {
        /// None: an RPC.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<StateSeq>,
        output: Json,
    },
    /// No call of the process's states begins until `ProcessResumed`.
    ProcessPaused {
        mode: PauseMode,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    ProcessResumed {},
    /// A step completes with the next event. A compensation undoes it by this state, with the step's input.
    CompensationAdded {
        seq: StateSeq,
        /// The step.
        of: StateExecutionId,
        state_id: String,
    },
    /// The completed steps are undone, the latest first. Then the process fails.
    CompensationStarted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    ProcessClosed {
        status: ProcessStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A command was refused and nothing changed: the answer was late, doubled or stolen.
    CommandRejected {
        /// See [`Command::name`].
        command: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<StateSeq>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        reason: String,
    },
    /// Stands for all events up to this number, if only a part of the history is kept.
    Snapshot(Box<Snapshot>),
}

/// Where a published message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Publisher {
    /// A caller of `publish`.
    Client,
    /// The answer of a state.
    State,
    /// The answer of an RPC.
    Rpc,
}

/// A message that was published to a global queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedGlobally {
    pub queue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl Event {
    /// Whether these events close the process.
    pub fn closes(events: &[Event]) -> bool {
        events.iter().any(|event| matches!(event, Event::ProcessClosed { .. }))
    }

    /// The global attributes that these events write.
    pub fn written_globally<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<&'a BTreeMap<String, Json>> {
        events.into_iter().find_map(|event| match event {
            Event::GlobalAttributesWritten { attributes } => Some(attributes),
            _ => None,
        })
    }

    /// Whether the event is part of the history and has a number. An event that is not recorded is summed up by a later
    /// [`Event::AttemptsFolded`].
    pub fn is_recorded(&self) -> bool {
        !matches!(self, Event::AttemptFailed { attempt, applied: false, .. } if *attempt > RECORDED_ATTEMPTS)
    }

    /// Whether the event is published to the queue that the definition names in `changes`.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Event::ProcessStarted { .. }
                | Event::StateStarted { .. }
                | Event::StateCompleted { .. }
                | Event::StateFailed { .. }
                | Event::StateAborted { .. }
                | Event::IncidentRaised { .. }
                | Event::ProcessClosed { .. }
        )
    }

    /// The name of the event and its details as JSON, as stored.
    pub fn to_parts(&self) -> (&'static str, String) {
        let name = self.name();
        // An event serialises as `{"<name>":<details>}`. Serialising can't fail: keys are strings, numbers are checked
        // to be finite, and payloads are valid JSON by their type.
        let whole = serde_json::to_string(self).expect("an event is JSON");
        let details = &whole[name.len() + 4..whole.len() - 1];
        (name, details.to_owned())
    }

    /// The event with this name and these details, or what is wrong with them.
    pub fn from_parts(name: &str, details: &str) -> Result<Event, String> {
        if !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return Err(format!("unknown event {name:?}"));
        }
        serde_json::from_str(&format!("{{\"{name}\":{details}}}")).map_err(|error| format!("event {name}: {error}"))
    }
}

names! { Event {
    ProcessStarted, StateStarted, StartMerged, WaitStarted, CommandCompleted, GlobalMessagesTaken, TimerSkipped,
    WaitCompleted, StateCompleted, AttemptFailed, AttemptsFolded, CallRepeated, RetryRequested, IncidentRaised,
    StateFailed, StateAborted, LocalAttributesWritten, GlobalAttributesWritten, ChildrenStarted, MessagesReceived,
    GlobalMessagesPublished, RpcApplied, CompletionRequested, ResultGiven, ProcessPaused, ProcessResumed,
    CompensationAdded, CompensationStarted, ProcessClosed, CommandRejected, Snapshot,
} }
