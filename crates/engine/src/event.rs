//! Events: everything that changes an execution. Most of them are rows of the history.
//!
//! Limitations: the serialized form is stored and read by later versions, so it can only be extended.

use crate::types::names;
use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change of an execution. Applied in order, the events of an execution rebuild it from nothing.
///
/// The serialized form is stored. Variants and fields may be added, but never changed.
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
        not_before: Timestamp,
    },
    /// Another start was merged into this execution before its first call began.
    StartMerged {
        /// The new input of the first state. None: the input is unchanged, or `without_input` is set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Json>,
        /// The input was removed.
        #[serde(default, skip_serializing_if = "is_default")]
        without_input: bool,
        not_before: Timestamp,
        /// When the process times out now. It moves together with the start of the first state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_at: Option<Timestamp>,
    },
    /// `waitUntil` was answered: the state waits.
    WaitStarted {
        seq: StateSeq,
        waiting_type: WaitingType,
        commands: Vec<WaitCommand>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        combinations: Vec<Vec<u32>>,
        /// Sentences about parts of the answer that changed nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// A command of a waiting state completed: a timer fired, or a queue gave these messages.
    CommandCompleted {
        seq: StateSeq,
        command: u32,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        messages: Vec<u64>,
    },
    /// A command of a waiting state completed: a global queue gave these messages.
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
    /// The wait is over: `execute` is called next.
    WaitCompleted {
        seq: StateSeq,
    },
    /// `execute` was answered and its thread went on or ended.
    StateCompleted {
        seq: StateSeq,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        close_type: Option<CloseType>,
        /// Sentences about parts of the answer that changed nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    AttemptFailed {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
        next_attempt_at: Timestamp,
        /// Effects of the attempt were applied, in the events before this one.
        #[serde(default, skip_serializing_if = "is_default")]
        applied: bool,
    },
    /// Stands for failed attempts that were not recorded one by one.
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
    /// A call is made again, and its attempt does not count. Reasons: values that it loaded under a lock have changed,
    /// or the worker could not take the call, or the answer names something unregistered.
    CallRepeated {
        seq: StateSeq,
        api: Api,
        next_call_at: Timestamp,
        /// The request is the same. False: the values under the lock have changed.
        #[serde(default, skip_serializing_if = "is_default")]
        same_request: bool,
        /// Why the answer could not be applied, if it names something unregistered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// A caller made a call due now that was in backoff or had an incident.
    RetryRequested {
        seq: StateSeq,
        api: Api,
        /// The call had an incident, which is resolved.
        #[serde(default, skip_serializing_if = "is_default")]
        resolves: bool,
    },
    /// The retries of a state were spent, and the state stays at its call until a caller retries it.
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
    LocalAttributesWritten {
        attributes: BTreeMap<String, Json>,
    },
    /// Columns of the application's tables were written.
    GlobalAttributesWritten {
        attributes: BTreeMap<String, Json>,
    },
    /// Messages came into local queues.
    MessagesReceived {
        publisher: Publisher,
        messages: Vec<Message>,
    },
    /// Messages were published to global queues, in this order. The queue ignores messages with a known id.
    GlobalMessagesPublished {
        publisher: Publisher,
        messages: Vec<PublishedGlobally>,
    },
    RpcApplied {
        rpc_name: String,
        /// Sentences about parts of the answer that changed nothing.
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
    ProcessClosed {
        status: ProcessStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A late, doubled or stolen answer was refused. It changed nothing.
    CommandRejected {
        /// See [`Command::name`].
        command: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<StateSeq>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        reason: String,
    },
    /// Stands for all earlier events and has the number of the last one, if only a part of the history is kept.
    Snapshot(Box<Snapshot>),
}

/// Where a message comes from.
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

    /// The global attributes that these events write, if any.
    pub fn written_globally<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<&'a BTreeMap<String, Json>> {
        events.into_iter().find_map(|event| match event {
            Event::GlobalAttributesWritten { attributes } => Some(attributes),
            _ => None,
        })
    }

    /// Whether the event has a number and is recorded in the history. A later [`Event::AttemptsFolded`] stands for
    /// events that are not recorded.
    pub fn is_recorded(&self) -> bool {
        !matches!(self, Event::AttemptFailed { attempt, applied: false, .. } if *attempt > RECORDED_ATTEMPTS)
    }

    /// The name of the event and its details, as the history stores them.
    pub fn to_parts(&self) -> (&'static str, String) {
        let name = self.name();
        // An event serializes as `{"<name>":<details>}`. This can't fail: all keys of maps are strings, all numbers
        // were checked to be finite, and a `Json` is valid JSON.
        let whole = serde_json::to_string(self).expect("an event is JSON");
        let details = &whole[name.len() + 4..whole.len() - 1];
        (name, details.to_owned())
    }

    /// Reads an event from its name and details. Error: what is wrong with them.
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
    StateFailed, LocalAttributesWritten, GlobalAttributesWritten, MessagesReceived, GlobalMessagesPublished,
    RpcApplied, CompletionRequested, ResultGiven, ProcessPaused, ProcessResumed, ProcessClosed, CommandRejected,
    Snapshot,
} }
