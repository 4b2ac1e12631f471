//! What all phases of a turn know.

use crate::pg::catch::Result;
use crate::pg::shmem::Role;
use crate::pg::spi::Spi;
use crate::store::claim;
use crate::store::lanes::Lane;
use crate::store::lines;
use std::collections::HashSet;
use std::time::Instant;
use xdb_engine::Timestamp;
use xdb_sched::bytes::ByteBudget;
use xdb_sched::room::Line;

/// Whether users' tables are used with a net under them. A net costs a subtransaction each, so the first try goes
/// without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Fast,
    Guarded,
}

/// What a transaction does besides applying its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Look for due timers and for messages.
    pub gather: bool,
    /// Claim so many calls at most.
    pub claim: usize,
    pub mode: Mode,
}

impl Scope {
    pub const ALL: Self = Self { gather: true, claim: usize::MAX, mode: Mode::Fast };
    pub const APPLY: Self = Self { gather: false, claim: 0, mode: Mode::Guarded };
}

/// What every phase of one transaction knows.
pub(super) struct Turn<'a> {
    pub spi: &'a Spi,
    pub role: Role,
    pub lane: Lane,
    /// Lanes of its role's that hold calls of processes with a priority, the highest first.
    pub levels: Vec<i16>,
    /// Lines in which a call waits that comes before those of processes without a priority.
    pub due_first: HashSet<Line>,
    /// There are steps of what is slow, or may be.
    pub has_slow_steps: bool,
    /// Of the leases that it gives.
    pub number: i64,
    pub scope: Scope,
    pub paused: bool,
    /// What is large, too.
    pub takes_large: bool,
    /// When it began, by the clock of processes.
    pub began: Timestamp,
    /// The same, by a clock that nobody sets.
    pub began_at: Instant,
    /// The real time, for leases.
    pub real: Timestamp,
    /// Nothing else waits to be applied or called.
    pub is_alone: bool,
    /// No call is prepared that this transaction decides: see [`super::memory::Seen::careful_until`]. The same where it has a suspect in
    /// hand, which must not be taken for what follows from its answer.
    pub is_careful: bool,
}

impl Turn<'_> {
    /// What a phase may take of what is large.
    pub fn bytes(&self) -> ByteBudget {
        ByteBudget::of(self.takes_large)
    }

    /// Looks again which priorities there are calls of: without this, what was held and has a high one would be called after the rest.
    pub fn calls_were_freed(&mut self) -> Result<()> {
        self.levels = claim::levels(self.spi)?;
        self.due_first = lines::due_first(self.spi, &self.levels, self.lane.epoch, (self.began, self.real))?;
        Ok(())
    }
}

/// A turn that may be made, and what it found at its begin.
pub(super) struct Started<'a> {
    pub turn: Turn<'a>,
    pub has_global_work: bool,
    /// There are calls in the runners' lanes, or something is slow whose calls go there.
    pub has_work_for_runners: bool,
    /// The runners' lanes that hold calls of processes with a priority, if this is the scheduler.
    pub runners_levels: Vec<i16>,
    /// There are workers' calls in the runners' lane, and nothing is slow any more.
    pub has_mended_calls: bool,
    /// Registrations have changed since the last turn.
    pub registered: bool,
}
