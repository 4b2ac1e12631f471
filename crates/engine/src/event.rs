use crate::types::names;
use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A change of a process execution. The events of an execution, applied in order to nothing, give its state.
///
/// The serialised form is stored and read by later versions: variants and fields are added, never changed.
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
    /// Another start was merged into this one, whose first call had not begun.
    StartMerged {
        /// The first state has this input now. Absent: it has the one that it had.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Json>,
        /// It has none now.
        #[serde(default, skip_serializing_if = "is_default")]
        without_input: bool,
        not_before: Timestamp,
        /// When the process times out, which is as long after its beginning as before.
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
        /// Of the answer: what in it has changed nothing.
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
        /// Of the answer: what in it has changed nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    AttemptFailed {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
        next_attempt_at: Timestamp,
        /// What the worker did besides was applied: see the events before this one.
        #[serde(default, skip_serializing_if = "is_default")]
        applied: bool,
    },
    /// Stands for failed attempts that were too many to record one by one.
    AttemptsFolded {
        seq: StateSeq,
        api: Api,
        count: u32,
        last_attempt: u32,
        at: Timestamp,
        failure: Failure,
    },
    /// A call is made again, and its attempt does not count. What it had loaded under a lock had changed when its answer came,
    /// and it gets new values; or its worker could not take it, or has answered with what is not registered, and gets the same request.
    CallRepeated {
        seq: StateSeq,
        api: Api,
        next_call_at: Timestamp,
        #[serde(default, skip_serializing_if = "is_default")]
        same_request: bool,
        /// The answer could not be applied, because it names what is not registered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// A caller wants a call made at once that is in backoff, or stands still because of an incident, which that resolves.
    RetryRequested {
        seq: StateSeq,
        api: Api,
        #[serde(default, skip_serializing_if = "is_default")]
        resolves: bool,
    },
    /// The retries of a state were spent, and it stays at its call: no attempt is made until somebody requests one.
    IncidentRaised {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
    },
    /// The retries of a state were spent.
    StateFailed {
        seq: StateSeq,
        api: Api,
        attempt: u32,
        failure: Failure,
    },
    LocalAttributesWritten {
        attributes: BTreeMap<String, Json>,
    },
    GlobalAttributesWritten {
        attributes: BTreeMap<String, Json>,
    },
    MessagesReceived {
        publisher: Publisher,
        messages: Vec<Message>,
    },
    /// Messages were sent to global queues, in this order. One whose id its queue has seen is ignored there.
    GlobalMessagesPublished {
        publisher: Publisher,
        messages: Vec<PublishedGlobally>,
    },
    RpcApplied {
        rpc_name: String,
        /// Of the answer: what in it has changed nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// From now on the process completes when its last thread ends.
    CompletionRequested {},
    ResultGiven {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<StateSeq>,
        output: Json,
    },
    /// From now on no call of its states begins.
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
    /// A command was refused and nothing changed: a late, doubled or stolen answer.
    CommandRejected {
        /// See [`Command::name`].
        command: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<StateSeq>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        reason: String,
    },
    /// Stands for all events up to this number, where not the whole history is kept.
    Snapshot(Box<Snapshot>),
}

/// Who published a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Publisher {
    Client,
    State,
    Rpc,
}

/// A message that was sent to a global queue.
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
    /// Whether a process closes with these.
    pub fn closes(events: &[Event]) -> bool {
        events.iter().any(|event| matches!(event, Event::ProcessClosed { .. }))
    }

    /// The global attributes that are written with these.
    pub fn written_globally<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<&'a BTreeMap<String, Json>> {
        events.into_iter().find_map(|event| match event {
            Event::GlobalAttributesWritten { attributes } => Some(attributes),
            _ => None,
        })
    }

    /// Whether the event is part of the history and has a number. What is not is summed up by a later
    /// [`Event::AttemptsFolded`].
    pub fn is_recorded(&self) -> bool {
        !matches!(self, Event::AttemptFailed { attempt, applied: false, .. } if *attempt > RECORDED_ATTEMPTS)
    }

    /// The name of the event and its details, as they are stored.
    pub fn to_parts(&self) -> (&'static str, String) {
        let name = self.name();
        // An event serialises as `{"<name>":<details>}`. That can't fail: no map has keys other than strings, no
        // number is infinite where it was checked, and payloads are JSON by their type's promise.
        let whole = serde_json::to_string(self).expect("an event is JSON");
        let details = &whole[name.len() + 4..whole.len() - 1];
        (name, details.to_owned())
    }

    /// The event of this name with these details, or what is wrong with them.
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
