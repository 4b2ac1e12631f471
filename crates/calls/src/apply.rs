//! What follows from an answer, whoever brings it. An answer is applied as a whole, or nothing of it is.
//!
//! ```text
//!   fence ─▶ warnings? ─▶ decide ─▶ later? ─▶ close: lock, decide again ─▶ too large? ─▶ unchanged? ─▶ tables, functions ─▶ memory
//! ```
//!
//! The fence is the driver's: an answer comes here only under its lease, with its execution locked. Everything that may refuse an
//! answer stands before the application's tables. Only they are written before the execution changes in memory.
//! What is no answer (a timer, a failed attempt, a command of a caller) goes the same way, past what concerns answers alone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use xdb_engine::*;
use xdb_protocol::refusal::{self, Refusal};
use xdb_protocol::{invalid_answer, rejected_answer, with_warnings};

/// Who has the tables: it loads, locks and writes for one execution.
pub trait Driver {
    type Error;
    /// Why something has to be decided about later.
    type Later;

    /// Loads what deciding about a command looks at, and decides. Asked again under the lock for a close, it decides anew.
    fn decide(&mut self, command: &Command) -> Result<Result<Vec<Event>, Rejection>, Self::Error>;

    /// Whether an answer with warnings is refused.
    fn is_strict(&self) -> bool {
        false
    }

    /// Why a command waits that could be applied. `closes`: it ends the execution with all its threads.
    fn waits(&mut self, closes: bool) -> Option<Self::Later> {
        let _ = closes;
        None
    }

    /// Takes the lock that a close needs, behind everybody who publishes, and loads what a close looks at.
    fn lock_for_close(&mut self, conditional: bool) -> Result<CloseLock<Self::Later>, Self::Error>;

    /// Why the execution may not have what it would have after these events.
    fn too_large(&mut self, events: &[Event]) -> Result<Option<String>, Self::Error> {
        let _ = events;
        Ok(None)
    }

    /// Whether what the call has loaded under locks is still what is there.
    fn is_unchanged(&mut self) -> Result<Used<bool, Self::Later>, Self::Error> {
        Ok(Used::Done(true))
    }

    /// Writes attributes to the application's tables, and then calls functions.
    fn write_tables(&mut self, written: &Written<'_>) -> Result<Used<(), Self::Later>, Self::Error> {
        let _ = written;
        Ok(Used::Done(()))
    }

    /// Applies events in memory.
    fn apply(&mut self, events: Vec<Event>) -> Result<(), Self::Error>;
}

/// What an answer brings to the application's tables.
#[derive(Clone, Copy)]
pub struct Written<'c> {
    pub attributes: &'c BTreeMap<String, Json>,
    pub functions: &'c [FunctionCall],
}

/// What became of the lock that a close needs.
pub enum CloseLock<L> {
    /// It was held before.
    Held,
    /// It was taken now: messages may have come before it.
    Taken,
    /// Somebody publishes to the execution, or it is taken later, together with the locks of others.
    Missing,
    Later(L),
}

/// What became of a use of the application's tables.
pub enum Used<T, L> {
    Done(T),
    /// They refuse it.
    Refused(Failure),
    Later(L),
}

/// What became of a command. But for the first one, nothing of it is applied.
#[derive(Debug, PartialEq)]
pub enum Outcome<L> {
    Applied,
    /// What the call has loaded under locks has changed: the call has to be made again.
    Repeat,
    /// The answer can't be applied: it is a failed attempt.
    Failed(Failure, Further),
    /// It is late, doubled or stolen, or was no answer and is refused.
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
    /// What the caller of an RPC is told of its answer. Where it waits, it has the lock for a close.
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

/// A failure of an attempt that was answered so, with what was odd about the answer.
fn warned(command: &Command, failure: Failure) -> Failure {
    Failure { detail: with_warnings(failure.detail, warnings(command)), ..failure }
}

fn warnings(command: &Command) -> &[String] {
    command.effects().map_or(&[], |effects| &effects.warnings)
}

/// Why an answer with warnings is refused, where the process type is strict.
pub(crate) fn refused_strictly(warnings: &[String], is_strict: impl FnOnce() -> bool) -> Option<Failure> {
    (!warnings.is_empty() && is_strict()).then(|| invalid_answer(warnings.join("; ")))
}

/// Decides about a command, and applies what follows.
// Long because it is one way down, and each of its steps may end it.
pub fn apply<D: Driver>(driver: &mut D, command: &Command) -> Result<Outcome<D::Later>, D::Error> {
    if let Some(failure) = refused_strictly(warnings(command), || driver.is_strict()) {
        return Ok(Outcome::Failed(failure, Further::ByPolicy));
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
        let written = Written { attributes: attributes.unwrap_or(&nothing), functions: command.function_calls() };
        if attributes.is_some() || !written.functions.is_empty() {
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
