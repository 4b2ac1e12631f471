//! A second, naive model of an execution. It is made from the specification of the programming model and the types of
//! commands alone, not from the code of the engine.
//!
//! The model is as simple as possible, and slow. It keeps logs of all received messages, written attributes and
//! failures of calls. It deletes nothing, and finds the present state by reading the logs.
//!
//! Where the specification leaves something open, a comment that begins with "Open:" names the choice.

pub mod compare;
pub mod ops;
pub mod recovery;
pub mod run;
mod steps;
mod waits;

use xdb_engine::*;

/// An execution, as logs of everything that happened.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub begun: Option<Begun>,
    pub closed: Option<Closed>,
    /// A graceful completion was requested.
    pub completing: bool,
    /// All steps, in the order of their starts. The first one has the number 1.
    pub states: Vec<State>,
    /// All messages that local queues have received.
    pub received: Vec<Received>,
    /// All messages consumed from global queues, each with its state and command.
    pub taken_globally: Vec<(StateSeq, u32, GlobalMessage)>,
    /// All writes of local attributes.
    pub written: Vec<(String, Json)>,
    pub results: Vec<(Option<StateSeq>, Json)>,
    /// All writes of global attributes, which the engine's caller executes.
    pub global_writes: Vec<(String, Json)>,
    pub global_publishes: Vec<PublishedGlobally>,
    /// All processes that answers have started.
    pub children: Vec<Child>,
    pub pause: Option<Pause>,
    /// Completed steps that a compensation undoes, each with the state that does so.
    pub noted: Vec<(StateSeq, String)>,
    pub compensating: bool,
    /// The step that is being undone.
    pub undoes: Option<StateExecutionId>,
    waits_begun: u64,
}

#[derive(Clone, Debug)]
pub struct Begun {
    pub process_id: String,
    pub process_type: String,
    pub at: Timestamp,
    pub timeout_at: Option<Timestamp>,
    pub priority: i8,
    pub parent: Option<Box<StartedBy>>,
    pub locks: ProcessLocks,
}

#[derive(Clone, Debug)]
pub struct Closed {
    pub status: ProcessStatus,
    pub at: Timestamp,
    /// None: the specification does not define the reason.
    pub reason: Option<Option<String>>,
}

#[derive(Clone, Debug)]
pub struct Received {
    pub queue: String,
    pub message_id: Option<String>,
    pub payload: Option<Json>,
    pub taken: Option<(StateSeq, u32)>,
}

#[derive(Clone, Debug)]
pub struct State {
    pub state_id: String,
    pub number: u32,
    pub input: Option<Json>,
    pub config: Option<Box<StateConfig>>,
    pub recovery: Option<Recovery>,
    pub started_at: Timestamp,
    pub place: Place,
    /// The step has started as a guard.
    pub guard: bool,
    /// What the guard guarded when its wait ended.
    pub guards: Option<StateExecutionId>,
    /// The wait, also after it is over.
    pub wait: Option<Waiting>,
    pub ended: Option<(StateStatus, Timestamp)>,
}

#[derive(Clone, Debug)]
pub enum Place {
    /// A static wait begins at this time.
    ToBegin(Timestamp),
    Call(Api, Call),
    Waiting,
}

/// A call, with all its failures.
#[derive(Clone, Debug)]
pub struct Call {
    pub not_before: Timestamp,
    pub failures: Vec<LastFailure>,
    /// Since the last failure: the answer that named something unregistered.
    pub unregistered: Option<Box<LastFailure>>,
    pub repeats: u32,
    /// The repeats with the same request.
    pub same_requests: u32,
    /// How many failed attempts had effects.
    pub applied: u32,
    /// How many merged starts have changed the input.
    pub merged: u32,
    /// The call has an incident that is not resolved.
    pub stands: bool,
    /// For each resolved incident, the number of failures before it was resolved.
    pub resolved: Vec<usize>,
}

impl Call {
    pub fn new(not_before: Timestamp) -> Self {
        Self {
            not_before,
            failures: Vec::new(),
            unregistered: None,
            repeats: 0,
            same_requests: 0,
            applied: 0,
            merged: 0,
            stands: false,
            resolved: Vec::new(),
        }
    }

    /// The failures since the last resolved incident.
    pub fn since_resolved(&self) -> &[LastFailure] {
        &self.failures[self.resolved.last().copied().unwrap_or(0)..]
    }

    /// The retry policy counts attempts after this one.
    pub fn counted_after(&self) -> u32 {
        let last = self.resolved.last().and_then(|count| self.failures.get(count.checked_sub(1)?));
        last.map_or(0, |failure| failure.attempt)
    }
}

#[derive(Clone, Debug)]
pub struct Waiting {
    /// The number of the wait within the execution.
    pub turn: u64,
    pub since: Timestamp,
    pub request: CommandRequest,
    pub fire_at: Vec<Option<Timestamp>>,
    pub status: Vec<CommandStatus>,
}

/// Why a command is refused, without the text for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    NotRunning(ProcessStatus),
    Stale,
    InvalidAnswer,
    InvalidOptions,
    UnusedInput,
    UnknownState(String),
    UnknownQueue(String),
    UnknownGlobalQueue(String),
    UnknownLocalAttribute(String),
    UnknownGlobalAttribute(String),
    UnknownFunction(String),
    NoTimer,
}

impl From<&Rejection> for Refusal {
    fn from(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::NotRunning(status) => Self::NotRunning(*status),
            Rejection::Stale => Self::Stale,
            // The model has no limits.
            Rejection::InvalidAnswer(_) | Rejection::OverQuota(_) => Self::InvalidAnswer,
            Rejection::InvalidOptions(_) => Self::InvalidOptions,
            Rejection::UnusedInput => Self::UnusedInput,
            Rejection::UnknownState { name, .. } => Self::UnknownState(name.clone()),
            Rejection::UnknownQueue { name, .. } => Self::UnknownQueue(name.clone()),
            Rejection::UnknownGlobalQueue(name) => Self::UnknownGlobalQueue(name.clone()),
            Rejection::UnknownLocalAttribute(name) => Self::UnknownLocalAttribute(name.clone()),
            Rejection::UnknownGlobalAttribute(name) => Self::UnknownGlobalAttribute(name.clone()),
            Rejection::UnknownFunction(name) => Self::UnknownFunction(name.clone()),
            Rejection::NoTimer(_) => Self::NoTimer,
        }
    }
}

impl Model {
    pub fn status(&self) -> ProcessStatus {
        self.closed.as_ref().map_or(ProcessStatus::Running, |closed| closed.status)
    }

    pub fn seqs(&self) -> Vec<StateSeq> {
        (1..=self.states.len() as u32).map(StateSeq).collect()
    }

    pub fn state(&self, seq: StateSeq) -> Option<&State> {
        self.states.get((seq.0 as usize).checked_sub(1)?)
    }

    fn state_mut(&mut self, seq: StateSeq) -> &mut State {
        &mut self.states[seq.0 as usize - 1]
    }

    pub fn live(&self) -> Vec<StateSeq> {
        self.seqs().into_iter().filter(|seq| self.state(*seq).is_some_and(|state| state.ended.is_none())).collect()
    }

    /// Whether the step is a guard that waits.
    pub fn waits_as_guard(&self, seq: StateSeq) -> bool {
        let state = self.state(seq);
        state.is_some_and(|state| state.guard && state.ended.is_none() && !matches!(state.place, Place::Call(..)))
    }

    /// The threads that have not ended: live steps, except guards that wait.
    pub fn threads(&self) -> usize {
        self.live().into_iter().filter(|seq| !self.waits_as_guard(*seq)).count()
    }

    /// The call of this API, if the state is at it and it has no incident.
    pub fn call(&self, seq: StateSeq, api: Api) -> Option<&Call> {
        match self.state(seq) {
            Some(State { place: Place::Call(at, call), ended: None, .. }) if *at == api && !call.stands => Some(call),
            _ => None,
        }
    }

    fn call_mut(&mut self, seq: StateSeq) -> &mut Call {
        match &mut self.state_mut(seq).place {
            Place::Call(_, call) => call,
            Place::ToBegin(_) | Place::Waiting => panic!("{seq:?} is at no call"),
        }
    }

    pub fn waiting(&self, seq: StateSeq) -> Option<&Waiting> {
        match self.state(seq) {
            Some(State { place: Place::Waiting, ended: None, wait, .. }) => wait.as_ref(),
            _ => None,
        }
    }

    /// The positions in the log of the messages in a queue, oldest first.
    pub fn in_queue(&self, queue: &str) -> Vec<usize> {
        (0..self.received.len())
            .filter(|at| self.received[*at].queue == queue && self.received[*at].taken.is_none())
            .collect()
    }

    pub fn attribute(&self, key: &str) -> Option<&Json> {
        self.written.iter().rev().find(|(written, _)| written == key).map(|(_, value)| value)
    }

    /// The id of a step, as people see it.
    pub fn id(&self, seq: StateSeq) -> StateExecutionId {
        let state = self.state(seq).expect("there is such a state");
        StateExecutionId { state_id: state.state_id.clone(), number: state.number }
    }
}

/// An option of a state: that of its movement, or else the registered one.
pub fn option<T: Clone>(
    definition: &Definition,
    state_id: &str,
    own: Option<&StateConfig>,
    pick: impl Fn(&StateConfig) -> Option<T>,
) -> Option<T> {
    own.and_then(&pick).or_else(|| definition.states.get(state_id).and_then(&pick))
}
