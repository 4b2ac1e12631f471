use crate::types::names;
use crate::*;
use serde::Serialize;
use std::collections::BTreeMap;

/// Something that happened or is asked for, to be decided about.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Start(Box<Start>),
    /// Another start is merged into this execution, whose first call has not begun, as whoever says this has made sure: it gets
    /// this input, and this is when its first call is due.
    MergeStart {
        input: Option<Json>,
        not_before: Timestamp,
    },
    /// A worker answered `waitUntil`.
    WaitUntilAnswered {
        seq: StateSeq,
        answer: WaitUntilAnswer,
    },
    /// A worker answered `execute`.
    ExecuteAnswered {
        seq: StateSeq,
        answer: ExecuteAnswer,
    },
    /// An attempt of a state's call failed: no answer, a wrong one, or one that the user's tables refused. Or its worker
    /// wants it made again.
    CallFailed(CallFailed),
    /// A call was answered, and what it had loaded under a lock has changed meanwhile: nothing of the answer is applied,
    /// and the call is made again.
    CallRepeated {
        seq: StateSeq,
        api: Api,
    },
    /// The timer command of a waiting state came due.
    TimerFired {
        seq: StateSeq,
        command: u32,
    },
    /// The process timeout came due.
    ProcessTimeout,
    /// Messages from outside, in the order of their publishing.
    MessagesArrived(Vec<Publish>),
    /// Free messages of global queues are offered to a waiting state; they are in the context.
    GlobalMessagesArrived {
        seq: StateSeq,
    },
    RpcAnswered {
        rpc_name: String,
        answer: RpcAnswer,
    },
    /// A caller writes local attributes.
    SetLocalAttributes(BTreeMap<String, Json>),
    /// A caller lets a timer command of a waiting state count as completed: the one with this id, else the one that
    /// would fire first.
    SkipTimer {
        seq: StateSeq,
        command_id: Option<String>,
    },
    /// A caller wants the calls of these states that are in backoff made at once.
    RetryNow(Vec<StateSeq>),
    /// A caller wants no calls made for a while.
    Pause(Pause),
    Resume,
    /// The end of the pause came due.
    PauseEnds,
    Stop {
        stop_type: StopType,
        reason: Option<String>,
    },
    /// The engine can't run the process any further, whatever its workers say.
    Fail {
        reason: String,
    },
}

impl Command {
    /// What an answer does besides its decision. None for what is no answer, and for an attempt that changes nothing.
    pub fn effects(&self) -> Option<&Effects> {
        match self {
            Self::WaitUntilAnswered { answer, .. } => Some(&answer.effects),
            Self::ExecuteAnswered { answer, .. } => Some(&answer.effects),
            Self::RpcAnswered { answer, .. } => Some(&answer.effects),
            Self::CallFailed(failed) => failed.applied.as_deref(),
            _ => None,
        }
    }

    /// Functions that it calls, in their order.
    pub fn function_calls(&self) -> &[FunctionCall] {
        match self {
            Self::Start(start) => &start.call_functions,
            _ => self.effects().map_or(&[], |effects| &effects.call_functions),
        }
    }

    /// Whether it closes the execution only if there are no messages.
    pub fn is_conditional_close(&self) -> bool {
        let Self::ExecuteAnswered { answer, .. } = self else { return false };
        matches!(answer.decision, Decision::ConditionalClose { .. })
    }

    /// Messages that it brings into local queues, unless their ids were received before.
    pub fn publishes(&self) -> &[Publish] {
        match self {
            Self::MessagesArrived(publishes) => publishes,
            _ => self.effects().map_or(&[], |effects| &effects.publish_to_local_queue),
        }
    }
}

names! { Command {
    Start, MergeStart, WaitUntilAnswered, ExecuteAnswered, CallFailed, CallRepeated, TimerFired, ProcessTimeout,
    MessagesArrived, GlobalMessagesArrived, RpcAnswered, Pause, Resume, PauseEnds, Stop, Fail, SetLocalAttributes,
    SkipTimer, RetryNow,
} }

#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub process_id: String,
    pub process_type: String,
    pub input: Option<Json>,
    pub local_attributes: BTreeMap<String, Json>,
    pub global_attributes: BTreeMap<String, Json>,
    pub call_functions: Vec<FunctionCall>,
    /// Overrides the timeout of the definition; zero = none.
    pub timeout: Option<Duration>,
    /// In place of the definition's.
    pub starting_state: Option<String>,
    pub starting_state_config: Option<Box<StateConfig>>,
    /// The first state starts then, if that is in the future.
    pub start_at: Option<Timestamp>,
    /// Overrides the priority of the definition.
    pub priority: Option<i8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CallFailed {
    pub seq: StateSeq,
    pub api: Api,
    /// Which attempt failed, from 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    pub failure: Failure,
    pub further: Further,
    /// What the worker did all the same. None for an attempt that changes nothing.
    pub applied: Option<Box<Effects>>,
}

/// What a worker says about further attempts, when it fails one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Further {
    /// Nothing: the retry policy decides.
    #[default]
    ByPolicy,
    /// The next one, if there is one, is made after this time, in place of the policy's interval.
    After(Duration),
    /// There are none.
    Never,
    /// This was none: the same call is made again after this time. The time for all attempts ends it nevertheless.
    Repeat(Duration),
    /// The answer names what is not registered. A deployment may be about to register it: the same call is made again, with a growing
    /// pause. After [`REGISTERED_WITHIN`](crate::REGISTERED_WITHIN) it is a failed attempt like another.
    WhenRegistered,
}

/// A message on its way into a local queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    pub queue: String,
    pub message_id: Option<String>,
    pub payload: Option<Json>,
}

/// A message on its way into a global queue.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalPublish {
    pub queue: String,
    pub key: Option<String>,
    pub message_id: Option<String>,
    pub payload: Option<Json>,
    /// How long it waits to be taken; None: for ever.
    pub ttl: Option<Duration>,
}

/// A function of the database that is called where the attributes are written, after them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionCall {
    /// Its name in the definition.
    pub function: String,
    pub argument: Option<Json>,
}

/// What every answer may do besides its decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    pub publish_to_local_queue: Vec<Publish>,
    pub publish_to_global_queue: Vec<GlobalPublish>,
    pub write_local_attributes: BTreeMap<String, Json>,
    pub write_global_attributes: BTreeMap<String, Json>,
    pub call_functions: Vec<FunctionCall>,
    /// What in it changes nothing, a sentence each: told in the answer's event.
    pub warnings: Vec<String>,
}

impl Effects {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.publish_to_local_queue.is_empty()
            && self.publish_to_global_queue.is_empty()
            && self.write_local_attributes.is_empty()
            && self.write_global_attributes.is_empty()
            && self.call_functions.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct WaitUntilAnswer {
    pub request: CommandRequest,
    pub effects: Effects,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ExecuteAnswer {
    pub decision: Decision,
    pub effects: Effects,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RpcAnswer {
    pub output: Option<Json>,
    pub decision: Option<Decision>,
    pub effects: Effects,
}

impl RpcAnswer {
    /// Whether applying it changes anything: a read-only answer is welcome on a closed process too.
    pub fn is_read_only(&self) -> bool {
        self.decision.is_none() && self.effects.is_empty()
    }
}

/// What a state waits for. Commands stand in the order of the request: timers, local queues, global
/// queues.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandRequest {
    pub waiting_type: WaitingType,
    pub commands: Vec<RequestedCommand>,
    /// Positions in `commands`, for `AnyCombination`.
    pub combinations: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RequestedCommand {
    pub command_id: Option<String>,
    pub kind: RequestedKind,
}

impl RequestedCommand {
    /// Whether it waits for a time.
    pub fn is_timer(&self) -> bool {
        matches!(self.kind, RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum RequestedKind {
    TimerAfter(Duration),
    TimerAt(Timestamp),
    LocalQueue {
        queue: String,
        at_least: u32,
        at_most: u32,
    },
    /// Without a key, messages of every key and of none.
    GlobalQueue {
        queue: String,
        key: Option<String>,
        at_least: u32,
        at_most: u32,
    },
}

/// Where a thread goes after `execute`.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// At least one; each starts a thread.
    NextStates(Vec<StateMovement>),
    Close {
        close_type: CloseType,
        output: Option<Json>,
    },
    /// Close if the named queues are empty at that very moment, else go on.
    ConditionalClose {
        close_type: CloseType,
        queues: Vec<String>,
        output: Option<Json>,
        otherwise: Vec<StateMovement>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct StateMovement {
    pub state_id: String,
    pub input: Option<Json>,
    pub config: Option<Box<StateConfig>>,
    pub begin: Begin,
}

/// When the first call of a state may be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    #[default]
    AtOnce,
    After(Duration),
    At(Timestamp),
}

impl Begin {
    /// Never before `now`.
    pub fn not_before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::AtOnce => now,
            Self::After(delay) => now + delay,
            Self::At(at) => at.max(now),
        }
    }
}

/// Why a command was refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The execution is closed.
    NotRunning(ProcessStatus),
    /// The state execution is not where the command thinks: a late, doubled or stolen result.
    Stale,
    /// The answer can't be applied; says what is wrong with it.
    InvalidAnswer(String),
    /// It asks for more than a process may have; says what of.
    OverQuota(String),
    /// State options that came with a movement or a start name what is not there.
    InvalidOptions(String),
    /// A start has an input, and there is no state that gets it.
    UnusedInput,
    /// The definition has no such state.
    UnknownState(String),
    /// The definition lists its local queues, and this one is not there.
    UnknownQueue { name: String, known: String },
    /// The definition lists its global queues, and this one is not there.
    UnknownGlobalQueue(String),
    /// The definition lists its local attributes, and this one is not there.
    UnknownLocalAttribute(String),
    /// The mapping of the execution has no such global attribute.
    UnknownGlobalAttribute(String),
    /// The definition lists no function of this name.
    UnknownFunction(String),
    /// The state execution waits for no such timer; says which one was meant.
    NoTimer(String),
}

impl Rejection {
    /// Whether it is late, doubled or stolen: nothing is wrong with it, and the call that it answers is over.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Stale | Self::NotRunning(_))
    }

    /// Whether it names something that is not registered. A deployment makes such answers: the worker is of another version than the
    /// registration, or than the start of the execution, from which its global attributes are.
    pub fn is_unregistered(&self) -> bool {
        match self {
            Self::UnknownState(_)
            | Self::UnknownQueue { .. }
            | Self::UnknownGlobalQueue(_)
            | Self::UnknownLocalAttribute(_)
            | Self::UnknownGlobalAttribute(_)
            | Self::UnknownFunction(_)
            | Self::InvalidOptions(_) => true,
            Self::NotRunning(_)
            | Self::Stale
            | Self::InvalidAnswer(_)
            | Self::OverQuota(_)
            | Self::UnusedInput
            | Self::NoTimer(_) => false,
        }
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRunning(status) => write!(f, "process is not running: its status is {status}"),
            Self::Stale => f.write_str("the state execution is not waiting for this"),
            Self::InvalidAnswer(what) | Self::OverQuota(what) | Self::InvalidOptions(what) => f.write_str(what),
            Self::UnusedInput => f.write_str("the process type has no starting state, and so no use for an input"),
            Self::UnknownState(name) => write!(f, "unknown state \"{name}\""),
            Self::UnknownQueue { name, known } if known.is_empty() => {
                write!(f, "unknown local queue \"{name}\": the process type lists none")
            }
            Self::UnknownQueue { name, known } => write!(f, "unknown local queue \"{name}\": known are {known}"),
            Self::UnknownGlobalQueue(name) => write!(f, "unknown global queue \"{name}\""),
            Self::UnknownLocalAttribute(name) => write!(f, "unknown local attribute \"{name}\""),
            Self::UnknownGlobalAttribute(name) => write!(f, "unknown global attribute \"{name}\""),
            Self::UnknownFunction(name) => write!(f, "unknown function \"{name}\""),
            Self::NoTimer(which) => write!(f, "the state execution waits for no {which}"),
        }
    }
}
