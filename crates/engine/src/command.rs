//! Everything that an execution can be asked to do: commands, and the answers that they carry.

use crate::types::names;
use crate::*;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What happened, or what a caller asks for: the input of [`decide`](crate::decide()).
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Start(Box<Start>),
    /// Merges another start into this execution: new input, and a new time for the first call. The sender has checked
    /// that the first call has not begun.
    MergeStart {
        /// The new input of the first state.
        input: Option<Json>,
        /// When the first call is due now.
        not_before: Timestamp,
    },
    /// A handler answered `waitUntil`.
    WaitUntilAnswered {
        seq: StateSeq,
        answer: WaitUntilAnswer,
    },
    /// A handler answered `execute`.
    ExecuteAnswered {
        seq: StateSeq,
        answer: ExecuteAnswer,
    },
    /// An attempt failed: no answer, an invalid answer, or one that the application's tables refused. Or the handler
    /// asked for another attempt.
    CallFailed(CallFailed),
    /// The values that a call had loaded under a lock have changed since. Nothing of its answer is applied, and the
    /// call is made again.
    CallRepeated {
        seq: StateSeq,
        api: Api,
    },
    /// A timer command of a waiting state is due.
    TimerFired {
        seq: StateSeq,
        /// The position of the command in the wait.
        command: u32,
    },
    /// The process timeout is due.
    ProcessTimeout,
    /// Messages published by clients, other processes or triggers, in the order of publishing.
    MessagesArrived(Vec<Publish>),
    /// Free messages of global queues are offered to a waiting state. The context holds the messages.
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
    /// A caller completes a timer command of a waiting state at once: the one with this id, else the one that would
    /// fire first.
    SkipTimer {
        seq: StateSeq,
        /// None: the timer that would fire first.
        command_id: Option<String>,
    },
    /// A caller asks for the calls of these states that are in backoff to be made at once.
    RetryNow(Vec<StateSeq>),
    /// A caller ends a live step, and starts these states in its place.
    MoveState {
        seq: StateSeq,
        /// Empty: the thread ends.
        next: Vec<StateMovement>,
        reason: Option<String>,
    },
    /// A caller pauses the process, or changes its pause.
    Pause(Pause),
    /// A caller ends the pause.
    Resume,
    /// The end of the pause is due.
    PauseEnds,
    /// A caller stops the process.
    Stop {
        stop_type: StopType,
        reason: Option<String>,
    },
    /// The engine can't run the process any further, whatever its handlers answer.
    Fail {
        reason: String,
    },
}

impl Command {
    /// What an answer does besides its decision. None if the command is no answer, or a failed attempt without effects.
    pub fn effects(&self) -> Option<&Effects> {
        match self {
            Self::WaitUntilAnswered { answer, .. } => Some(&answer.effects),
            Self::ExecuteAnswered { answer, .. } => Some(&answer.effects),
            Self::RpcAnswered { answer, .. } => Some(&answer.effects),
            Self::CallFailed(failed) => failed.applied.as_deref(),
            _ => None,
        }
    }

    /// The functions of the database that the command calls, in order.
    pub fn function_calls(&self) -> &[FunctionCall] {
        match self {
            Self::Start(start) => &start.call_functions,
            _ => self.effects().map_or(&[], |effects| &effects.call_functions),
        }
    }

    /// The processes that the command starts, in order.
    pub fn children(&self) -> &[ChildStart] {
        self.effects().map_or(&[], |effects| &effects.start_processes)
    }

    /// The step whose answer, or failed attempt, the command is.
    pub fn answering(&self) -> Option<StateSeq> {
        match self {
            Self::WaitUntilAnswered { seq, .. }
            | Self::ExecuteAnswered { seq, .. }
            | Self::CallFailed(CallFailed { seq, .. }) => Some(*seq),
            _ => None,
        }
    }

    /// Whether the command aborts this step, if the step is live.
    pub fn aborts(&self, state: &StateExecution) -> bool {
        if let Self::MoveState { seq, .. } = self {
            return *seq == state.seq;
        }
        self.effects().is_some_and(|effects| effects.abort(state, self.answering()))
    }

    /// Whether the command closes the execution only if queues are empty.
    pub fn is_conditional_close(&self) -> bool {
        let Self::ExecuteAnswered { answer, .. } = self else { return false };
        matches!(answer.decision, Decision::ConditionalClose { .. })
    }

    /// Messages for local queues that the command brings. Message ids received before are not filtered out.
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
    SkipTimer, RetryNow, MoveState,
} }

/// The checked parameters of a start.
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
    /// Overrides the options of the starting state.
    pub starting_state_config: Option<Box<StateConfig>>,
    /// When the first state starts, if that is in the future.
    pub start_at: Option<Timestamp>,
    /// Overrides the priority of the definition.
    pub priority: Option<i8>,
    /// The parent, if an answer of another process starts this one.
    pub started_by: Option<Box<StartedBy>>,
    /// Locks besides those of the definition.
    pub locks: ProcessLocks,
}

/// A failed attempt of a state's call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallFailed {
    pub seq: StateSeq,
    pub api: Api,
    /// Number of the failed attempt, from 1.
    pub attempt: u32,
    /// When the first attempt was made. The policy's time for all attempts counts from here.
    pub first_attempt_at: Timestamp,
    pub failure: Failure,
    pub further: Further,
    /// Effects that are applied although the attempt failed. None if there are none.
    pub applied: Option<Box<Effects>>,
}

/// What a handler asks for when it fails an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Further {
    /// Nothing: the retry policy decides.
    #[default]
    ByPolicy,
    /// The next attempt, if the policy allows one, is made after this time instead of the policy's interval.
    After(Duration),
    /// No further attempt.
    Never,
    /// This attempt does not count: the same call is made again after this time. The policy's time for all attempts
    /// still applies.
    Repeat(Duration),
    /// The answer names something that is not registered, and a deployment may be about to register it. The engine
    /// makes the same call again with growing pauses. After [`REGISTERED_WITHIN`](crate::REGISTERED_WITHIN) the answer
    /// is an ordinary failed attempt.
    WhenRegistered,
}

/// A message to be published to a local queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    pub queue: String,
    /// The queue ignores an id that it has received before.
    pub message_id: Option<String>,
    pub payload: Option<Json>,
}

/// A message to be published to a global queue.
#[derive(Clone, Debug, PartialEq)]
pub struct GlobalPublish {
    pub queue: String,
    /// States can wait for messages with this key.
    pub key: Option<String>,
    pub message_id: Option<String>,
    pub payload: Option<Json>,
    /// How long the message can be consumed. None: for ever.
    pub ttl: Option<Duration>,
}

/// A call of a function of the database. It runs where the attributes are written, after them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionCall {
    /// The name of the function in the definition.
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
    /// Processes to start, as children of this one.
    pub start_processes: Vec<ChildStart>,
    pub call_functions: Vec<FunctionCall>,
    /// The threads that the answer ends, after its other effects.
    pub abort_states: Option<AbortStates>,
    /// Warnings about the answer, one sentence each. The event of the answer stores them.
    pub warnings: Vec<String>,
}

impl Effects {
    /// Whether the answer changes nothing besides its decision. Warnings don't count.
    pub fn is_empty(&self) -> bool {
        self.payloads().next().is_none() && self.write_global_attributes.is_empty() && self.abort_states.is_none()
    }

    /// The payload of each thing that the answer writes to XDB's tables, or has to call.
    pub fn payloads(&self) -> impl Iterator<Item = Option<&Json>> {
        // The compiler reports a new field here.
        let Self {
            publish_to_local_queue,
            publish_to_global_queue,
            write_local_attributes,
            write_global_attributes: _,
            start_processes,
            call_functions,
            abort_states: _,
            warnings: _,
        } = self;
        let local = publish_to_local_queue.iter().map(|publish| publish.payload.as_ref());
        let global = publish_to_global_queue.iter().map(|publish| publish.payload.as_ref());
        let calls = call_functions.iter().map(|call| call.argument.as_ref());
        let children = start_processes.iter().flat_map(ChildStart::payloads);
        write_local_attributes.values().map(Some).chain(local).chain(global).chain(calls).chain(children)
    }

    /// Whether the answer aborts this step, if the step is live. The answering step itself goes on.
    pub fn abort(&self, state: &StateExecution, answering: Option<StateSeq>) -> bool {
        Some(state.seq) != answering && self.abort_states.as_ref().is_some_and(|named| named.includes(&state.id))
    }
}

/// The live steps that an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortStates {
    All,
    /// Each name is a state, or one step of it.
    Named(BTreeSet<String>),
}

impl AbortStates {
    /// Whether a step is meant.
    pub fn includes(&self, id: &StateExecutionId) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(&id.state_id) || names.contains(&id.to_string()),
        }
    }
}

/// A decoded answer to `waitUntil`.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitUntilAnswer {
    pub request: CommandRequest,
    pub effects: Effects,
}

/// A decoded answer to `execute`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecuteAnswer {
    pub decision: Decision,
    pub effects: Effects,
}

/// A decoded answer to an RPC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RpcAnswer {
    /// The result for the caller.
    pub output: Option<Json>,
    /// Starts threads, or closes the process.
    pub decision: Option<Decision>,
    pub effects: Effects,
}

impl RpcAnswer {
    /// Whether applying the answer changes nothing. A read-only answer is accepted by a closed process too.
    pub fn is_read_only(&self) -> bool {
        self.decision.is_none() && self.effects.is_empty()
    }
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
    /// Closes if the named queues are empty when the decision is applied, else goes on with `otherwise`.
    ConditionalClose {
        close_type: CloseType,
        queues: Vec<String>,
        output: Option<Json>,
        otherwise: Vec<StateMovement>,
    },
}

impl Decision {
    /// How many states the decision starts at most.
    pub fn most_next_states(&self) -> usize {
        match self {
            Self::NextStates(next) | Self::ConditionalClose { otherwise: next, .. } => next.len(),
            Self::Close { .. } => 0,
        }
    }
}

/// A next state, with its input and its options.
#[derive(Clone, Debug, PartialEq)]
pub struct StateMovement {
    pub state_id: String,
    pub input: Option<Json>,
    /// Overrides the registered options.
    pub config: Option<Box<StateConfig>>,
    pub begin: Begin,
}

/// The earliest time of a state's first call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    #[default]
    AtOnce,
    After(Duration),
    At(Timestamp),
}

impl Begin {
    /// The earliest time of the call as a moment, at least `now`.
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
    /// The step is not at this call any more: the answer is late, doubled or stolen.
    Stale,
    /// The answer, or what a start or a movement by hand asks for, can't be applied, with the reason.
    InvalidAnswer(String),
    /// The command asks for more than a process may have, with the limit.
    OverQuota(String),
    /// State options of a movement or a start name something unknown, so that a registration could make them valid.
    InvalidOptions(String),
    /// A start has an input but no starting state that would get it.
    UnusedInput,
    /// The definition has no such state. `within`: the part of the answer that names it, if it is not the decision.
    UnknownState { name: String, within: Option<&'static str>, known: String },
    /// The definition lists its local queues, and this one is not among them. `within`: the part of the answer that
    /// names it, if it is not a message or a condition.
    UnknownQueue { name: String, within: Option<&'static str>, known: String },
    /// The definition lists its global queues, and this one is not among them.
    UnknownGlobalQueue(String),
    /// The definition lists its local attributes, and this one is not among them.
    UnknownLocalAttribute(String),
    /// The mapping of the execution has no global attribute of this name.
    UnknownGlobalAttribute(String),
    /// The definition does not list this function.
    UnknownFunction(String),
    /// The step has no such open timer, with the timer that was asked for.
    NoTimer(String),
}

impl Rejection {
    /// Whether the answer is late, doubled or stolen. The answer may be valid, but its call is over.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Stale | Self::NotRunning(_))
    }

    /// Whether the answer names something that is not registered. Deployments cause such answers: worker and
    /// registration have different versions. For global attributes, the registration at the start of the execution
    /// counts.
    pub fn is_unregistered(&self) -> bool {
        match self {
            Self::UnknownState { .. }
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
            Self::Stale => f.write_str("the step is not waiting for this"),
            Self::InvalidAnswer(what) | Self::OverQuota(what) | Self::InvalidOptions(what) => f.write_str(what),
            Self::UnusedInput => f.write_str("the process type has no starting state, so an input can't be used"),
            Self::UnknownState { name, within, known } => {
                write!(f, "unknown state \"{name}\"{}: known are {known}", place(*within))
            }
            Self::UnknownQueue { name, within, known } if known.is_empty() => {
                write!(f, "unknown local queue \"{name}\"{}: the process type lists none", place(*within))
            }
            Self::UnknownQueue { name, within, known } => {
                write!(f, "unknown local queue \"{name}\"{}: known are {known}", place(*within))
            }
            Self::UnknownGlobalQueue(name) => write!(f, "unknown global queue \"{name}\""),
            Self::UnknownLocalAttribute(name) => write!(f, "unknown local attribute \"{name}\""),
            Self::UnknownGlobalAttribute(name) => write!(f, "unknown global attribute \"{name}\""),
            Self::UnknownFunction(name) => write!(f, "unknown function \"{name}\""),
            Self::NoTimer(which) => write!(f, "the step waits for no {which}"),
        }
    }
}

fn place(within: Option<&'static str>) -> String {
    within.map(|within| format!(" in {within}")).unwrap_or_default()
}
