//! The types of a turn's items (answers, timers, messages), and the result of each.
//!
//! Limitations: only answers and `Fail` stay in the backlog. The other items are in the tables and are found again.

use crate::calls::{Answered, CallRecord};
use crate::pg::shmem::held_up::LockOn;
use crate::store::StateKey;
use crate::store::timer::DueTimer;
use xdb_engine::ExecutionId;

/// A thing to decide about.
// Most items are answers: a box for each would cost more than the unused bytes of the others.
#[expect(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Item {
    /// Messages are in the inbox of this execution.
    Arrivals(ExecutionId),
    Timer(DueTimer),
    /// Messages of global queues may satisfy this step.
    Waiter(StateKey),
    /// The answer to a call, or its failed attempt.
    Answer(CallRecord, Answered),
    /// The process can't go on, and fails with this reason.
    Fail {
        execution: ExecutionId,
        reason: &'static str,
    },
}

impl Item {
    /// The execution of the item.
    pub fn execution(&self) -> ExecutionId {
        match self {
            Self::Arrivals(id) | Self::Fail { execution: id, .. } => *id,
            Self::Timer(timer) => timer.execution_id,
            Self::Answer(record, _) => record.key.0,
            Self::Waiter(key) => key.0,
        }
    }

    /// The step of the item.
    pub fn state(&self) -> Option<StateKey> {
        match self {
            Self::Arrivals(_) | Self::Fail { .. } => None,
            Self::Timer(timer) => Some((timer.execution_id, timer.seq)).filter(|(_, seq)| seq.0 > 0),
            Self::Answer(record, _) => Some(record.key),
            Self::Waiter(key) => Some(*key),
        }
    }

    /// The call that the item answers.
    pub fn record(&self) -> Option<&CallRecord> {
        let Self::Answer(record, _) = self else { return None };
        Some(record)
    }

    /// The call that the item answers, if it is a suspect: the server crashed while it was in hand.
    pub fn suspect(&self) -> Option<StateKey> {
        match self {
            Self::Answer(record, _) if record.is_suspect => Some(record.key),
            _ => None,
        }
    }

    /// Whether a function still has to be called for the item.
    pub fn is_uncalled(&self) -> bool {
        matches!(self, Self::Answer(_, Answered::Uncalled))
    }

    /// Whether deciding about the item uses a table or function of the application.
    pub fn uses_tables(&self) -> bool {
        let Self::Answer(record, answered) = self else { return false };
        let writes = answered
            .effects()
            .is_some_and(|effects| !effects.write_global_attributes.is_empty() || !effects.call_functions.is_empty());
        writes || record.reads.as_ref().is_some_and(|reads| reads.loads.global.locks())
    }
}

/// The result of an item, if its transaction commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    Done,
    /// Another transaction has locked the execution, or publishes to it while it wants to close.
    Locked,
    /// Another session has locked a row in this table of the application, or a row that the use needs.
    RowLocked(u32),
    /// An earlier item of its execution waits, so this one waits too.
    Behind,
    /// A table of the application is busy.
    TableBusy(u32),
    /// The turn has spent its time in the application's tables.
    OverBudget,
    /// The turn has read or written enough. The next turn decides.
    NextTurn,
    /// The lease is given up, and the call is made again: by a runner, or later.
    GivenAway,
}

impl ItemOutcome {
    /// Which lock of another session blocks the item, and the oid of its table.
    pub fn held_up_by(self) -> Option<(LockOn, u32)> {
        match self {
            Self::Locked => Some((LockOn::Process, 0)),
            Self::RowLocked(relation) => Some((LockOn::Row, relation)),
            Self::TableBusy(relation) => Some((LockOn::Table, relation)),
            _ => None,
        }
    }
}
