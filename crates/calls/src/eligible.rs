//! May a call be made now, and who makes it?
//!
//! | checked in this order | if not |
//! |---|---|
//! | The process type is registered. | `Elsewhere` |
//! | A pull worker's call is judged for a session of that worker, every other call for another asker. | `Elsewhere` |
//! | Neither the process nor its type is paused. | `Held` |
//! | The asker makes calls of this kind. | `Elsewhere` |
//! | The process uses no table and no function that has ended a process of the engine. | `Waits` |
//! | The owner may own running processes. | `Closes`, or `Fails` if that may change |
//! | The type lists the state, and has a worker or a function for it. | `Fails` |
//! | | `MayBeMade` |
//!
//! The order has reasons:
//! - A pull worker's call leaves the engine's lines before a pause is looked at: the worker's own sessions hold it.
//! - A pause comes before the marks of tables: a held call is not moved between the scheduler and the runners.
//! - An asker that does not make the call says nothing of the owner: the maker notes the failure.
//! - The owner comes before the definition: if the owner is gone, the process ends, whatever its type lists.
//!
//! What takes room or a lock comes after the verdict and stays with the asker: nothing is taken for a call that is not made.
//!
//! A further reason why a call may not be made is one more check in [`eligible`]. It reads the execution, the state and the definition,
//! or a fact of its own, for which [`Facts::new`] has a default. What follows from a reason is one of these few verdicts. So the askers
//! need no change, except for the one that knows a new fact.

use std::fmt;
use xdb_engine::*;
use xdb_protocol::{unlisted_state, unregistered};

/// Who would make a call, if it may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Scheduler,
    Runner,
    /// A session that claims calls of this worker.
    PullWorker(i32),
    /// A session that calls an RPC.
    Session,
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// None, until the process type is registered again.
    Unregistered,
    /// A runner calls a function, or it finds out that there is none. An RPC's function is called by its session.
    Function,
    /// The scheduler calls a worker; a runner does, if the process has a slow table. An RPC is sent by its session.
    Worker { is_slow: bool },
    /// This worker claims the call.
    PullWorker(i32),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlyTable => "the use of a table or function of the process has ended a process of the engine",
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

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict<'a> {
    /// The asker makes it now.
    MayBeMade,
    /// Another maker makes it.
    Elsewhere,
    /// It leaves the due calls until the pause ends.
    Held(Paused<'a>),
    /// It stays where it is, and is judged again later.
    Waits(Reason),
    /// Its attempt fails before the call is made.
    Fails(Failure, Further),
    /// Its process can't go on, and fails with this reason.
    Closes(&'static str),
}

/// Why a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Using a table or a function of the process has ended a process of the engine.
    DeadlyTable,
}

/// What is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused<'a> {
    Process(&'a Pause),
    Type(&'a Pause),
}

/// Why a role can't own running processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    pub why: &'static str,
    /// It will not get better: the process fails.
    pub for_good: bool,
}

/// How the tables of a process are marked, and the functions that its answers and states call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marked {
    #[default]
    Not,
    Slow,
    /// Their use has ended a process of the engine.
    Deadly,
}

/// A process type as it is registered now.
#[derive(Clone, Copy, Debug)]
pub struct TypeFacts<'a> {
    pub definition: &'a Definition,
    pub worker: TypeWorker,
    /// It may be over by itself.
    pub pause: Option<&'a Pause>,
}

/// Who answers the calls of a process type that no function answers.
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
    /// What is said where neither a function answers nor a worker.
    fn lacks(&self) -> String {
        match self {
            Self::State(state, api) => {
                let key = if *api == Api::Execute { "executeFunction" } else { "waitUntilFunction" };
                format!("state \"{}\" has no {key}, and its process type no worker", state.id.state_id)
            }
            Self::Rpc(_) => "the RPC has no function, and the process type no worker".to_owned(),
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
    pub now: Timestamp,
    /// None: the owner may own running processes, or a caller takes the owner's place.
    pub owner: Option<&'a Unfit>,
    /// Sessions use tables in transactions of their own: for them, no table is marked.
    pub tables: Marked,
}

impl<'a> Facts<'a> {
    /// Nothing is wrong with the owner, and no table is marked.
    pub fn new(
        execution: &'a Execution,
        called: CallOf<'a>,
        process_type: Option<TypeFacts<'a>>,
        now: Timestamp,
    ) -> Self {
        Self { execution, called, process_type, now, owner: None, tables: Marked::Not }
    }

    /// The pause that the call is in.
    pub fn paused(&self, asker: Asker) -> Option<Paused<'a>> {
        let is_on = |pause: &&Pause| !pause.is_over(self.now);
        // A timer ends the pause of a process. An RPC does not wait for the timer.
        let of_process = self.execution.pause.as_ref().filter(|pause| asker != Asker::Session || is_on(pause));
        let of_type = || self.process_type?.pause.filter(is_on).filter(|_| self.execution.is_running());
        of_process.map(Paused::Process).or_else(|| of_type().map(Paused::Type))
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

/// Judges a call: who makes it, and what becomes of it if this one asks.
pub fn eligible<'a>(asker: Asker, facts: &Facts<'a>) -> (Maker, Verdict<'a>) {
    let Some(TypeFacts { definition, worker, .. }) = facts.process_type else {
        return (Maker::Unregistered, Verdict::Elsewhere);
    };
    let (is_listed, function) = facts.listed(definition);
    let maker = match worker {
        TypeWorker::Called if function.is_none() => Maker::Worker { is_slow: facts.tables != Marked::Not },
        TypeWorker::Pulls(worker) if function.is_none() => Maker::PullWorker(worker),
        _ => Maker::Function,
    };
    let is_elsewhere = !asker.makes(maker);
    if is_elsewhere && (asker.pulls() || matches!(maker, Maker::PullWorker(_))) {
        return (maker, Verdict::Elsewhere);
    }
    if let Some(paused) = facts.paused(asker) {
        return (maker, Verdict::Held(paused));
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
