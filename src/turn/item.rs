//! What a turn decides about, and what became of it.

use crate::calls::{Answered, CallRecord};
use crate::pg::shmem::held_up::LockOn;
use crate::store::StateKey;
use crate::store::timer::DueTimer;
use xdb_engine::ExecutionId;

/// Something to be decided about.
// Most of them are answers: a box around each costs more than the room in the others.
#[expect(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Item {
    /// Messages are in the inbox.
    Arrivals(ExecutionId),
    Timer(DueTimer),
    /// There may be messages of global queues for this state.
    Waiter(StateKey),
    Answer(CallRecord, Answered),
    /// The process can't go on.
    Fail {
        execution: ExecutionId,
        reason: &'static str,
    },
}

impl Item {
    pub fn execution(&self) -> ExecutionId {
        match self {
            Self::Arrivals(id) | Self::Fail { execution: id, .. } => *id,
            Self::Timer(timer) => timer.execution_id,
            Self::Answer(record, _) => record.key.0,
            Self::Waiter(key) => key.0,
        }
    }

    /// The state execution that it is about.
    pub fn state(&self) -> Option<StateKey> {
        match self {
            Self::Arrivals(_) | Self::Fail { .. } => None,
            Self::Timer(timer) => Some((timer.execution_id, timer.seq)).filter(|(_, seq)| seq.0 > 0),
            Self::Answer(record, _) => Some(record.key),
            Self::Waiter(key) => Some(*key),
        }
    }

    /// The call that it answers.
    pub fn record(&self) -> Option<&CallRecord> {
        let Self::Answer(record, _) = self else { return None };
        Some(record)
    }

    /// The call that it answers, where the server may die of that.
    pub fn suspect(&self) -> Option<StateKey> {
        match self {
            Self::Answer(record, _) if record.is_suspect => Some(record.key),
            _ => None,
        }
    }

    /// Whether a function is to be called for it yet.
    pub fn is_uncalled(&self) -> bool {
        matches!(self, Self::Answer(_, Answered::Uncalled))
    }

    /// Whether deciding about it uses a user's table or function.
    pub fn uses_tables(&self) -> bool {
        let Self::Answer(record, answered) = self else { return false };
        let writes = answered
            .effects()
            .is_some_and(|effects| !effects.write_global_attributes.is_empty() || !effects.call_functions.is_empty());
        writes || record.reads.as_ref().is_some_and(|reads| reads.global.locks())
    }
}

/// What became of an item, if its transaction commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    Done,
    /// Somebody else has locked the execution, or publishes to it while it wants to close.
    Locked,
    /// Another session has locked a row in this table of the application, or what using the row needs.
    RowLocked(u32),
    /// It comes after another item of its execution that has to wait.
    Behind,
    /// A user's table is busy.
    TableBusy(u32),
    /// The turn has spent its time in users' tables.
    OverBudget,
    /// The turn has enough to read or to write: the next one decides.
    NextTurn,
    /// Its lease is given up, and the call is made again: by a runner, or later.
    GivenAway,
}

impl ItemOutcome {
    /// What another session has locked that the item needs, and the oid of its table.
    pub fn held_up_by(self) -> Option<(LockOn, u32)> {
        match self {
            Self::Locked => Some((LockOn::Process, 0)),
            Self::RowLocked(relation) => Some((LockOn::Row, relation)),
            Self::TableBusy(relation) => Some((LockOn::Table, relation)),
            _ => None,
        }
    }
}
