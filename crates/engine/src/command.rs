//! Commands: everything that the engine decides about, and why it refuses a command.
//!
//! Limitations: sizes and types of JSON values are checked before, where the values come in (crate `xdb-protocol`).

use crate::types::names;
use crate::*;
use serde::Serialize;
use std::collections::BTreeMap;

/// Something that happened, or that a caller requests. [`decide`] returns the events that follow.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Start(Box<Start>),
    /// Another start is merged into this execution. The sender of the command has checked under a lock that the first
    /// call has not begun.
    MergeStart {
        /// The new input of the first state.
        input: Option<Json>,
        /// When the first call is due now.
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
    /// An attempt of a state's call failed: there was no answer, or a wrong one, or the application's tables refused
    /// it. Or the worker asked for a retry.
    CallFailed(CallFailed),
    /// Values that a call loaded under a lock have changed before its answer was applied. Nothing of the answer is
    /// applied, and the call is made again.
    CallRepeated {
        seq: StateSeq,
        api: Api,
    },
    /// The timer command of a waiting state came due.
    TimerFired {
        seq: StateSeq,
        /// The position of the command in the wait.
        command: u32,
    },
    /// The process timeout came due.
    ProcessTimeout,
    /// Messages of local queues from callers, in the order in which they were published.
    MessagesArrived(Vec<Publish>),
    /// Free messages of global queues, which are in the context, are offered to a waiting state.
    GlobalMessagesArrived {
        seq: StateSeq,
    },
    /// A worker or function answered an RPC.
    RpcAnswered {
        rpc_name: String,
        answer: RpcAnswer,
    },
    /// A caller writes local attributes.
    SetLocalAttributes(BTreeMap<String, Json>),
    /// A caller skips a timer command of a waiting state.
    SkipTimer {
        seq: StateSeq,
        /// None: the timer that would fire first.
        command_id: Option<String>,
    },
    /// A caller wants the calls of these states made now, if they are in backoff or have an incident.
    RetryNow(Vec<StateSeq>),
    /// A caller pauses the process, or changes the pause.
    Pause(Pause),
    /// A caller ends the pause.
    Resume,
    /// The time of the pause is over.
    PauseEnds,
    /// A caller stops the process.
    Stop {
        stop_type: StopType,
        reason: Option<String>,
    },
    /// The engine can't run the process any further.
    Fail {
        reason: String,
    },
}

impl Command {
    /// The effects of an answer besides its decision. None: the command is no answer, or a failed attempt without
    /// effects.
    pub fn effects(&self) -> Option<&Effects> {
        match self {
            Self::WaitUntilAnswered { answer, .. } => Some(&answer.effects),
            Self::ExecuteAnswered { answer, .. } => Some(&answer.effects),
            Self::RpcAnswered { answer, .. } => Some(&answer.effects),
            Self::CallFailed(failed) => failed.applied.as_deref(),
            _ => None,
        }
    }

    /// The functions of the database to call, in order.
    pub fn function_calls(&self) -> &[FunctionCall] {
        match self {
            Self::Start(start) => &start.call_functions,
            _ => self.effects().map_or(&[], |effects| &effects.call_functions),
        }
    }

    /// Whether it is a decision to close the execution only if queues are empty.
    pub fn is_conditional_close(&self) -> bool {
        let Self::ExecuteAnswered { answer, .. } = self else { return false };
        matches!(answer.decision, Decision::ConditionalClose { .. })
    }

    /// The messages for local queues. Messages whose ids were received before are ignored.
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

/// The start of an execution, checked by the caller.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub process_id: String,
    pub process_type: String,
    pub input: Option<Json>,
    pub local_attributes: BTreeMap<String, Json>,
    pub global_attributes: BTreeMap<String, Json>,
    pub call_functions: Vec<FunctionCall>,
    /// Overrides the timeout of the definition. Zero: no timeout.
    pub timeout: Option<Duration>,
    /// Overrides the starting state of the definition.
    pub starting_state: Option<String>,
    /// Overrides the registered options of the first state.
    pub starting_state_config: Option<Box<StateConfig>>,
    /// When the first state starts. None or in the past: now.
    pub start_at: Option<Timestamp>,
    /// Overrides the priority of the definition.
    pub priority: Option<i8>,
}

/// A failed attempt of a state's call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallFailed {
    pub seq: StateSeq,
    pub api: Api,
    /// The attempt that failed, from 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    pub failure: Failure,
    pub further: Further,
    /// Effects that are applied although the attempt failed. None: there are none.
    pub applied: Option<Box<Effects>>,
}

/// What a worker says about further attempts when one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Further {
    /// Nothing: the retry policy decides.
    #[default]
    ByPolicy,
    /// The next attempt is made after this time instead of the policy's interval. The policy's limits apply.
    After(Duration),
    /// No further attempt is made.
    Never,
    /// The attempt does not count: the same call is made again after this time. The policy's limit on the time of all
    /// attempts applies.
    Repeat(Duration),
    /// The answer names something unregistered, and a deployment may register it soon. The same call is repeated with a
    /// growing pause. After [`REGISTERED_WITHIN`](crate::REGISTERED_WITHIN) the attempt fails by the policy.
    WhenRegistered,
}

/// A message to publish to a local queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    pub queue: String,
    pub message_id: Option<String>,
    pub payload: Option<Json>,
}

/// A message to publish to a global queue.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalPublish {
    pub queue: String,
    pub key: Option<String>,
    pub message_id: Option<String>,
    pub payload: Option<Json>,
    /// The message expires after this time. None: never.
    pub ttl: Option<Duration>,
}

/// A function of the database to call, in the same transaction as the writes of attributes and after them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionCall {
    /// The name that the definition gives to the function.
    pub function: String,
    pub argument: Option<Json>,
}

/// The effects of an answer besides its decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    pub publish_to_local_queue: Vec<Publish>,
    pub publish_to_global_queue: Vec<GlobalPublish>,
    pub write_local_attributes: BTreeMap<String, Json>,
    pub write_global_attributes: BTreeMap<String, Json>,
    pub call_functions: Vec<FunctionCall>,
    /// Sentences about parts of the answer that change nothing. They are recorded in the event of the answer.
    pub warnings: Vec<String>,
}

impl Effects {
    /// Whether there are no effects. Warnings are none.
    pub fn is_empty(&self) -> bool {
        self.publish_to_local_queue.is_empty()
            && self.publish_to_global_queue.is_empty()
            && self.write_local_attributes.is_empty()
            && self.write_global_attributes.is_empty()
            && self.call_functions.is_empty()
    }
}

/// The answer to `waitUntil`.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitUntilAnswer {
    pub request: CommandRequest,
    pub effects: Effects,
}

/// The answer to `execute`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecuteAnswer {
    pub decision: Decision,
    pub effects: Effects,
}

/// The answer to an RPC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RpcAnswer {
    /// The result for the caller.
    pub output: Option<Json>,
    /// Starts threads, or closes the process.
    pub decision: Option<Decision>,
    pub effects: Effects,
}

impl RpcAnswer {
    /// Whether the answer changes nothing. A closed process accepts a read-only answer too.
    pub fn is_read_only(&self) -> bool {
        self.decision.is_none() && self.effects.is_empty()
    }
}

/// What a state waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandRequest {
    pub waiting_type: WaitingType,
    /// In the order of the request: timers, local queues, global queues.
    pub commands: Vec<RequestedCommand>,
    /// Positions in `commands`, for `AnyCombination`.
    pub combinations: Vec<Vec<u32>>,
}

/// One command of a wait, as the worker requests it.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedCommand {
    pub command_id: Option<String>,
    pub kind: RequestedKind,
}

impl RequestedCommand {
    /// Whether the command is a timer.
    pub fn is_timer(&self) -> bool {
        matches!(self.kind, RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_))
    }
}

/// What a command waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestedKind {
    /// A time, counted from the answer.
    TimerAfter(Duration),
    TimerAt(Timestamp),
    LocalQueue {
        queue: String,
        at_least: u32,
        at_most: u32,
    },
    GlobalQueue {
        queue: String,
        /// Only messages with this key. None: all messages.
        key: Option<String>,
        at_least: u32,
        at_most: u32,
    },
}

/// How a thread goes on after `execute`. `Close` ends the thread, and perhaps the process.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The thread goes on. Each next state, at least one, starts a thread.
    NextStates(Vec<StateMovement>),
    Close {
        close_type: CloseType,
        output: Option<Json>,
    },
    /// Closes if these local queues are empty when the answer is applied. Otherwise the thread goes on.
    ConditionalClose {
        close_type: CloseType,
        queues: Vec<String>,
        output: Option<Json>,
        otherwise: Vec<StateMovement>,
    },
}

/// A next state, with its input.
#[derive(Clone, Debug, PartialEq)]
pub struct StateMovement {
    pub state_id: String,
    pub input: Option<Json>,
    /// Overrides the registered options of the state.
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
    /// The moment, but not before `now`.
    pub fn not_before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::AtOnce => now,
            Self::After(delay) => now + delay,
            Self::At(at) => at.max(now),
        }
    }
}

/// Why a command was refused. A refused command changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The execution is closed.
    NotRunning(ProcessStatus),
    /// The state execution is no longer at this call or wait: the answer is late, doubled or stolen.
    Stale,
    /// The answer can't be applied. The text says what is wrong with it.
    InvalidAnswer(String),
    /// The command exceeds a quota or limit. The text says which one.
    OverQuota(String),
    /// The state options of a movement or a start name something that does not exist.
    InvalidOptions(String),
    /// A start has an input, but the process type has no starting state.
    UnusedInput,
    /// The definition has no such state.
    UnknownState(String),
    /// The definition does not list this local queue. `known` lists the others.
    UnknownQueue { name: String, known: String },
    /// The definition does not list this global queue.
    UnknownGlobalQueue(String),
    /// The definition does not list this local attribute.
    UnknownLocalAttribute(String),
    /// The mapping of the execution does not have this global attribute.
    UnknownGlobalAttribute(String),
    /// The definition does not list this function.
    UnknownFunction(String),
    /// The state execution does not wait for this timer. The text names the timer.
    NoTimer(String),
}

impl Rejection {
    /// Whether the answer is late, doubled or stolen: its call is over, so its attempt does not fail.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Stale | Self::NotRunning(_))
    }

    /// Whether the answer names something unregistered. This happens during a deployment: the worker has another
    /// version than the registered definition, or than the mapping of global attributes, which is kept from the start.
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
            Self::UnusedInput => f.write_str("the process type has no starting state, so an input can't be used"),
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
