//! The facts that all phases of a turn know: its settings, and what it read at its begin.

use crate::pg::shmem::Role;
use crate::pg::spi::Spi;
use crate::store::lanes::Lane;
use std::time::Instant;
use xdb_engine::Timestamp;
use xdb_sched::bytes::ByteBudget;

/// Whether each use of the application's tables runs in a subtransaction. A subtransaction costs time, so the first try
/// is made without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Fast,
    Guarded,
}

/// What a transaction does besides applying its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Scan for due timers and messages.
    pub gather: bool,
    /// The most calls to claim.
    pub claim: usize,
    /// Whether uses of tables have guards.
    pub mode: Mode,
}

impl Scope {
    /// The first try of a scheduler's turn.
    pub const ALL: Self = Self { gather: true, claim: usize::MAX, mode: Mode::Fast };
    /// Apply items under guards, and nothing else.
    pub const APPLY: Self = Self { gather: false, claim: 0, mode: Mode::Guarded };
}

/// What every phase of one transaction knows.
pub(super) struct Turn<'a> {
    pub spi: &'a Spi,
    pub role: Role,
    /// The lane of the process, and its epoch.
    pub lane: Lane,
    /// There are slow steps, or may be.
    pub has_slow_steps: bool,
    /// The number of the turn, and of the leases that it gives.
    pub number: i64,
    /// The work of this transaction besides applying its items.
    pub scope: Scope,
    /// No new work is taken up.
    pub paused: bool,
    /// Whether the phases may take large things too.
    pub takes_large: bool,
    /// When the turn began, by the clock of processes.
    pub began: Timestamp,
    /// When the turn began, by a monotonic clock.
    pub began_at: Instant,
    /// The real time, for leases.
    pub real: Timestamp,
    /// No other item waits to be applied or called.
    pub is_alone: bool,
    /// Calls that this transaction decides are prepared by a later one. See [`super::memory::LastTurn::careful_until`].
    /// Also set while a suspect is in hand: a crash must count against the suspect, and not against the calls that
    /// follow from its answer.
    pub is_careful: bool,
}

impl Turn<'_> {
    /// The budget of a phase for large things.
    pub fn bytes(&self) -> ByteBudget {
        ByteBudget::of(self.takes_large)
    }
}

/// A turn that may be made, and what it found at its begin.
pub(super) struct Started<'a> {
    pub turn: Turn<'a>,
    /// Steps wait for global queues, and may be satisfied.
    pub has_global_work: bool,
    /// There are calls in the runners' lane, or something is slow whose calls go there.
    pub has_work_for_runners: bool,
    /// The runners' lane has calls of workers, and nothing is slow any more.
    pub has_mended_calls: bool,
    /// When locks of processes have to be judged. None: not before other rows are written.
    pub judge_at: Option<Timestamp>,
    /// Registrations have changed since the last turn.
    pub registered: bool,
}
