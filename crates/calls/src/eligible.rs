//! May a call be made now, and which process makes it?
//!
//! | checked in this order | if not |
//! |---|---|
//! | The process type is registered. | `Elsewhere` |
//! | A pull worker's call is judged for a session of that worker, every other call for another asker. | `Elsewhere` |
//! | Neither the process nor its type is paused. | `Parked` |
//! | The process has its locks. | `Waits` |
//! | The asker makes calls of this kind. | `Elsewhere` |
//! | The process uses no table and no function in which a process of the engine could not be cancelled. | `Waits` |
//! | The owner may own running processes. | `Closes`, or `Fails` if that may change |
//! | The type lists the state, and has a worker or a function for it. | `Fails` |
//! | | `MayBeMade` |
//!
//! The order has reasons:
//! - A pull worker's call leaves the engine's lines before its pause is checked: the worker's own sessions park it.
//! - A pause comes before the marks of tables: a parked call is not moved between the scheduler and the runners.
//! - On the server, the calls of a process that waits for its locks are parked from the start. So only the simulator
//!   judges them.
//! - An asker that does not make the call does not check the owner: the maker records the failure.
//! - The owner comes before the definition: if the owner was dropped, the process ends, whatever its type lists.
//!
//! Limitations: places and locks are not judged here. The asker takes them after the verdict, so that nothing is taken
//! for a call that is not made.
//!
//! To add a reason why a call may not be made, add a check to [`eligible`]. It reads the execution, the state and the
//! definition, or a new fact. [`Facts::new`] gives a new fact a default, and its result is one of these verdicts. So
//! only the asker that knows the new fact has to change.

use std::fmt;
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::{unlisted_state, unregistered};

/// The process or session that would make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Scheduler,
    Runner,
    /// A session that claims calls of this worker.
    PullWorker(i32),
    /// A session that calls an RPC.
    Session,
}

/// The process or session that makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// None, until the process type is registered again.
    Unregistered,
    /// A runner calls a function, or finds out that there is none. For an RPC, the session calls the function.
    Function,
    /// The scheduler calls a worker. If the process has a slow table, a runner calls it. For an RPC, the session sends
    /// the request.
    Worker { is_slow: bool },
    /// This worker claims the call.
    PullWorker(i32),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locks => "the process waits for its locks",
            Self::DeadlyTable => "a statement in a table or function of the process could not be cancelled, so the engine process ended itself",
        })
    }
}

impl Asker {
    fn makes(self, maker: Maker) -> bool {
        match (self, maker) {
            (Self::PullWorker(asks), Maker::PullWorker(makes)) => asks == makes,
            (Self::Scheduler, Maker::Worker { is_slow }) => !is_slow,
            (Self::Runner, Maker::Worker { is_slow }) => is_slow,
            (Self::Runner | Self::Session, Maker::Function) | (Self::Session, Maker::Worker { .. }) => true,
            _ => false,
        }
    }

    fn pulls(self) -> bool {
        matches!(self, Self::PullWorker(_))
    }
}

/// The judgement about a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict<'a> {
    /// The asker makes the call now.
    MayBeMade,
    /// Another process or session makes the call.
    Elsewhere,
    /// The call leaves the due calls until the pause ends.
    Parked(Paused<'a>),
    /// The call stays where it is, and is judged again later.
    Waits(Reason),
    /// The attempt fails before the call is made.
    Fails(Failure, Further),
    /// The process can't go on, and fails with this reason.
    Closes(&'static str),
}

impl Verdict<'_> {
    /// Refuses an RPC, unless this session makes it now or at the end of a pause.
    pub fn refuse_rpc(&self, rpc_name: &str) -> Result<(), Refusal> {
        match self {
            Self::MayBeMade | Self::Parked(_) => Ok(()),
            Self::Elsewhere => Err(refusal::worker_is_not_called(rpc_name)),
            Self::Fails(..) => Err(refusal::no_worker_for_rpc(rpc_name)),
            Self::Waits(reason) => Err(refusal::worker_failed(rpc_name, reason.to_string())),
            Self::Closes(why) => Err(refusal::worker_failed(rpc_name, why)),
        }
    }
}

/// Why a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The process waits for its locks.
    Locks,
    /// A process of the engine could not be cancelled in a table or function of the process, and has ended itself.
    DeadlyTable,
}

/// What is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused<'a> {
    Process(&'a Pause),
    Type(&'a Pause),
}

impl<'a> Paused<'a> {
    pub fn pause(self) -> &'a Pause {
        let (Self::Process(pause) | Self::Type(pause)) = self;
        pause
    }

    /// The error for a caller whose request the pause rejects, or who has waited for the end of the pause.
    pub fn refusal(self, execution: &Execution) -> Refusal {
        let what = match self {
            Self::Process(_) => format!("process \"{}\"", execution.process_id),
            Self::Type(_) => format!("process type \"{}\"", execution.process_type),
        };
        refusal::paused(&what, self.pause())
    }
}

/// Why a role may not own running processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The text for the history and for errors.
    pub why: &'static str,
    /// The reason can't go away, so the process fails. Else the attempt fails.
    pub for_good: bool,
}

/// How the tables of a process are marked, and the functions that its answers and states call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marked {
    #[default]
    Not,
    Slow,
    /// A process of the engine could not be cancelled in one of them, and has ended itself.
    Deadly,
}

/// A process type as it is registered now.
#[derive(Clone, Copy, Debug)]
pub struct TypeFacts<'a> {
    pub definition: &'a Definition,
    pub worker: TypeWorker,
    /// The pause of the type. Its end may have passed already.
    pub pause: Option<&'a Pause>,
}

/// The kind of worker that answers the calls without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeWorker {
    None,
    Called,
    Pulls(i32),
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub enum CallOf<'a> {
    State(&'a StateExecution, Api),
    /// An RPC that the type lists, with the function that answers it.
    Rpc(Option<&'a str>),
}

impl CallOf<'_> {
    /// The error message if neither a function nor a worker can answer.
    fn lacks(&self) -> String {
        match self {
            Self::State(state, api) => {
                let key = if *api == Api::Execute { "executeFunction" } else { "waitUntilFunction" };
                format!("state \"{}\" has no {key}, and its process type has no worker", state.id.state_id)
            }
            Self::Rpc(_) => "the RPC has no function, and the process type has no worker".to_owned(),
        }
    }
}

/// What a call depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub execution: &'a Execution,
    pub called: CallOf<'a>,
    /// None: the type is not registered.
    pub process_type: Option<TypeFacts<'a>>,
    /// By the clock of processes.
    pub now: Timestamp,
    /// None: the owner may own running processes, or the call is a caller's RPC.
    pub owner: Option<&'a Unfit>,
    /// Sessions use tables in their own transactions: for them, no table is marked.
    pub tables: Marked,
    /// The process waits for its locks.
    pub waits_for_locks: bool,
}

impl<'a> Facts<'a> {
    /// The facts of a call whose owner is fit, whose tables are not marked, and whose process has its locks.
    pub fn new(
        execution: &'a Execution,
        called: CallOf<'a>,
        process_type: Option<TypeFacts<'a>>,
        now: Timestamp,
    ) -> Self {
        Self { execution, called, process_type, now, owner: None, tables: Marked::Not, waits_for_locks: false }
    }

    /// The pauses that the call is in. The first one decides whether the call is made.
    pub fn pauses(self, asker: Asker) -> impl Iterator<Item = Paused<'a>> {
        let is_on = |pause: &&Pause| !pause.is_over(self.now);
        // A timer ends the pause of a process. An RPC does not wait for the timer.
        let of_process = self.execution.pause.as_ref().filter(|pause| asker != Asker::Session || is_on(pause));
        let of_type = self.process_type.and_then(|of| of.pause).filter(is_on).filter(|_| self.execution.is_running());
        of_process.map(Paused::Process).into_iter().chain(of_type.map(Paused::Type))
    }

    /// The process or session that makes the call.
    pub fn maker(&self) -> Maker {
        let of_type = |of: TypeFacts<'_>| self.maker_at(of.worker, self.listed(of.definition).1);
        self.process_type.map_or(Maker::Unregistered, of_type)
    }

    fn maker_at(&self, worker: TypeWorker, function: Option<&str>) -> Maker {
        match (worker, function) {
            (TypeWorker::None, _) | (_, Some(_)) => Maker::Function,
            (TypeWorker::Called, None) => Maker::Worker { is_slow: self.tables != Marked::Not },
            (TypeWorker::Pulls(worker), None) => Maker::PullWorker(worker),
        }
    }

    /// Whether the type lists what is called, and the function that answers it.
    fn listed(&self, definition: &'a Definition) -> (bool, Option<&'a str>) {
        match self.called {
            CallOf::Rpc(function) => (true, function),
            CallOf::State(state, api) => {
                let options = definition.states.get(&state.id.state_id);
                (options.is_some(), options.and_then(|options| options.function(api)))
            }
        }
    }
}

/// Judges a call: which process or session makes it, and what becomes of it if this one asks.
pub fn eligible<'a>(asker: Asker, facts: &Facts<'a>) -> (Maker, Verdict<'a>) {
    let Some(TypeFacts { definition, worker, .. }) = facts.process_type else {
        return (Maker::Unregistered, Verdict::Elsewhere);
    };
    let (is_listed, function) = facts.listed(definition);
    let maker = facts.maker_at(worker, function);
    let is_elsewhere = !asker.makes(maker);
    if is_elsewhere && (asker.pulls() || matches!(maker, Maker::PullWorker(_))) {
        return (maker, Verdict::Elsewhere);
    }
    if let Some(paused) = facts.pauses(asker).next() {
        return (maker, Verdict::Parked(paused));
    }
    if facts.waits_for_locks {
        return (maker, Verdict::Waits(Reason::Locks));
    }
    if is_elsewhere {
        return (maker, Verdict::Elsewhere);
    }
    if facts.tables == Marked::Deadly {
        return (maker, Verdict::Waits(Reason::DeadlyTable));
    }
    match facts.owner {
        Some(Unfit { why, for_good: true }) => return (maker, Verdict::Closes(why)),
        Some(Unfit { why, .. }) => {
            let failure = Failure { detail: (*why).to_owned(), ..Failure::default() };
            return (maker, Verdict::Fails(failure, Further::ByPolicy));
        }
        None => {}
    }
    let unanswered = match facts.called {
        CallOf::State(state, _) if !is_listed => Some(unlisted_state(&state.id.state_id)),
        _ if maker == Maker::Function && function.is_none() => Some(unregistered(facts.called.lacks())),
        _ => None,
    };
    (maker, unanswered.map_or(Verdict::MayBeMade, |(failure, further)| Verdict::Fails(failure, further)))
}

/// Why a due call is not made now, as `xdb.describe_process()` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCalled {
    /// Calls to the worker have not reached it.
    Breaker,
    /// The engine does not run, or is paused.
    Engine,
    /// A table or function of the process is slow. The call waits for a runner, or for the end of the mark.
    SlowTable,
    /// A function answers, and no runner is free for it.
    NoRunner,
}

impl NotCalled {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Breaker => "BREAKER",
            Self::Engine => "ENGINE",
            Self::SlowTable => "SLOW_TABLE",
            Self::NoRunner => "NO_RUNNER",
        }
    }
}

/// Why a due call that has no lease is not made now. `runs` tells whether calls of a maker are made at all, and
/// `is_open` whether the breaker of the call's worker is open.
///
/// None: the call is about to be made, or waits for a place or for a pull worker. Or another fact holds it back: a
/// pause, the locks of the process, a type that is not registered.
pub fn not_called(facts: &Facts<'_>, runs: impl Fn(Maker) -> bool, is_open: bool) -> Option<NotCalled> {
    let maker = facts.maker();
    let asker = match maker {
        Maker::Unregistered => return None,
        Maker::Function | Maker::Worker { is_slow: true } => Asker::Runner,
        Maker::Worker { is_slow: false } => Asker::Scheduler,
        Maker::PullWorker(worker) => Asker::PullWorker(worker),
    };
    match (eligible(asker, facts).1, maker) {
        (Verdict::Parked(_) | Verdict::Waits(Reason::Locks) | Verdict::Elsewhere, _) => None,
        _ if !runs(maker) => Some(NotCalled::Engine),
        (Verdict::Waits(Reason::DeadlyTable), _) | (_, Maker::Worker { is_slow: true }) => Some(NotCalled::SlowTable),
        (_, Maker::Function) => Some(NotCalled::NoRunner),
        (_, Maker::Worker { .. }) if is_open => Some(NotCalled::Breaker),
        _ => None,
    }
}
