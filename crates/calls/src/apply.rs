//! Applies an answer: all of it or nothing. Turns, pull workers, RPCs and the simulator all apply answers here. Each of
//! them has a [`Driver`].
//!
//! ```text
//! fence ─▶ warnings? ─▶ decide ─▶ later? ─▶ close: lock, decide again ─▶ too large? ─▶ unchanged? ─▶ tables ─▶ memory
//! ```
//!
//! The driver checks the fence: an answer comes here only under a valid lease, with its execution locked. Every other
//! check comes before the application's tables are written, and the execution changes in memory after that.
//!
//! Commands that are no answers and come from the execution itself go the same way, without the steps for answers:
//! failed attempts, timers, free messages of global queues, the timeout of the process and the end of its pause. In the
//! simulator, commands of callers go this way too.
//!
//! On the server, commands of callers do not come here. A session holds every lock that its command needs. So functions
//! like `xdb.stop_process()`, a registration that makes calls due, and a merged start decide and apply by themselves.
//! Messages are received when an execution is loaded (`src/store/inbox.rs`). A start never comes here: there is no
//! execution yet.
//!
//! Limitations: a driver that returns `Later` or an error after writing to tables has to undo the writes itself.

use std::collections::BTreeMap;
use std::convert::Infallible;
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::{invalid_answer, rejected_answer, with_warnings};

/// Loads, locks and writes for one execution.
pub trait Driver {
    type Error;
    /// Why a command has to be decided later.
    type Later;

    /// Loads what deciding about a command reads, and decides. Called once more after the lock for a close was taken.
    /// Then the driver decides again.
    fn decide(&mut self, command: &Command) -> Result<Result<Vec<Event>, Rejection>, Self::Error>;

    /// Whether an answer with warnings is refused.
    fn is_strict(&self) -> bool {
        false
    }

    /// Why a command that could be applied has to wait. `closes`: it ends the execution with all its threads.
    fn waits(&mut self, closes: bool) -> Option<Self::Later> {
        let _ = closes;
        None
    }

    /// Takes the lock that a close needs, which conflicts with open publishers. Then loads what a close reads.
    fn lock_for_close(&mut self, conditional: bool) -> Result<CloseLock<Self::Later>, Self::Error>;

    /// Why the execution would exceed a limit after these events.
    fn too_large(&mut self, events: &[Event]) -> Result<Option<String>, Self::Error> {
        let _ = events;
        Ok(None)
    }

    /// Whether the values that the call has loaded under locks are unchanged.
    fn is_unchanged(&mut self) -> Result<Used<bool, Self::Later>, Self::Error> {
        Ok(Used::Done(true))
    }

    /// Writes attributes to the application's tables, starts children, and then calls functions.
    fn write_tables(&mut self, written: &Written<'_>) -> Result<Used<(), Self::Later>, Self::Error> {
        let _ = written;
        Ok(Used::Done(()))
    }

    /// Applies events in memory.
    fn apply(&mut self, events: Vec<Event>) -> Result<(), Self::Error>;
}

/// What an answer writes to the application's tables, and the processes that it starts.
#[derive(Clone, Copy)]
pub struct Written<'c> {
    /// New values of global attributes.
    pub attributes: &'c BTreeMap<String, Json>,
    /// Processes to start after that.
    pub children: Option<NewChildren<'c>>,
    /// Functions to call after that, in this order.
    pub functions: &'c [FunctionCall],
}

/// The result of asking for the lock that a close needs.
pub enum CloseLock<L> {
    /// The lock was held before.
    Held,
    /// The lock was taken now. Messages may have come before it, so the command is decided again.
    Taken,
    /// A publisher holds a lock on the execution. Or the lock is taken later, together with the locks of other
    /// executions.
    Missing,
    Later(L),
}

/// The result of using the application's tables.
pub enum Used<T, L> {
    Done(T),
    /// The database refused.
    Refused(Failure),
    Later(L),
}

/// The result of a command. Except for `Applied`, nothing of the command is applied.
#[derive(Debug, PartialEq)]
pub enum Outcome<L> {
    Applied,
    /// The values that the call has loaded under locks have changed: the call has to be made again.
    Repeat,
    /// The answer can't be applied: its attempt fails.
    Failed(Failure, Further),
    /// The answer is late, doubled or stolen. Or the command is not an answer, and is refused.
    Over(Rejection),
    /// The lock for a close is missing.
    Closing {
        conditional: bool,
    },
    Later(L),
}

impl<L> Outcome<L> {
    fn rejected(command: &Command, rejection: Rejection) -> Self {
        if command.effects().is_none() || rejection.is_late() {
            return Self::Over(rejection);
        }
        let (failure, further) = rejected_answer(&rejection);
        Self::Failed(warned(command, failure), further)
    }
}

impl Outcome<Infallible> {
    /// The result for the caller of an RPC. An RPC waits for the lock of a close, so it never gets `Closing`.
    pub fn of_rpc(self, process_id: &str, rpc_name: &str) -> Result<(), Refusal> {
        match self {
            Self::Applied => Ok(()),
            Self::Repeat => Err(refusal::local_attributes_changed(rpc_name)),
            Self::Failed(failure, _) => Err(refusal::rpc_not_applied(rpc_name, failure)),
            Self::Over(rejection) => Err(refusal::rejected(process_id, &rejection)),
            Self::Closing { .. } => Err(Refusal::internal("an RPC waits for the lock of a close")),
        }
    }
}

/// Adds the warnings of an answer to the failure of its attempt.
fn warned(command: &Command, failure: Failure) -> Failure {
    Failure { detail: with_warnings(failure.detail, warnings(command)), ..failure }
}

fn warnings(command: &Command) -> &[String] {
    command.effects().map_or(&[], |effects| &effects.warnings)
}

/// Decides about a command, and applies its events.
// Long because it is a sequence of steps, and each of them may end it.
pub fn apply<D: Driver>(driver: &mut D, command: &Command) -> Result<Outcome<D::Later>, D::Error> {
    if !warnings(command).is_empty() && driver.is_strict() {
        return Ok(Outcome::Failed(invalid_answer(warnings(command).join("; ")), Further::ByPolicy));
    }
    let mut events = match driver.decide(command)? {
        Ok(events) => events,
        Err(rejection) => return Ok(Outcome::rejected(command, rejection)),
    };
    let closes = Event::closes(&events);
    if let Some(later) = driver.waits(closes) {
        return Ok(Outcome::Later(later));
    }
    if closes {
        let conditional = command.is_conditional_close();
        match driver.lock_for_close(conditional)? {
            CloseLock::Held => {}
            CloseLock::Taken => match driver.decide(command)? {
                Ok(again) => events = again,
                Err(rejection) => return Ok(Outcome::rejected(command, rejection)),
            },
            CloseLock::Missing => return Ok(Outcome::Closing { conditional }),
            CloseLock::Later(later) => return Ok(Outcome::Later(later)),
        }
    }
    if let Some(what) = driver.too_large(&events)? {
        return Ok(Outcome::rejected(command, Rejection::InvalidAnswer(what)));
    }
    if command.effects().is_some() {
        match driver.is_unchanged()? {
            Used::Done(true) => {}
            Used::Done(false) => return Ok(Outcome::Repeat),
            Used::Refused(failure) => return Ok(Outcome::Failed(warned(command, failure), Further::ByPolicy)),
            Used::Later(later) => return Ok(Outcome::Later(later)),
        }
        let (attributes, nothing) = (Event::written_globally(&events), BTreeMap::new());
        let children = NewChildren::of(command, &events);
        let (written, functions) = (attributes.unwrap_or(&nothing), command.function_calls());
        if attributes.is_some() || children.is_some() || !functions.is_empty() {
            let written = Written { attributes: written, children, functions };
            match driver.write_tables(&written)? {
                Used::Done(()) => {}
                Used::Refused(failure) => return Ok(Outcome::Failed(warned(command, failure), Further::ByPolicy)),
                Used::Later(later) => return Ok(Outcome::Later(later)),
            }
        }
    }
    driver.apply(events)?;
    Ok(Outcome::Applied)
}
