//! When the next turn is due, and why. Each phase of a turn states it, and the earliest counts.
//!
//! How far the scans of a turn came is another question: [`super::scans`] has the cursors. What a turn leaves behind a
//! cursor is found by the next scan from the head, whose time comes here as [`Why::Scan`].

use crate::clock;
use crate::pg::shmem::ExitReason;
use std::time::{Duration, Instant};
use xdb_engine::{Timestamp, words};

/// How long to wait after a turn that could not be made.
pub const RETRY: Duration = Duration::from_millis(50);

words! {
    /// The reason for a turn, as `xdb.status()` shows it. docs/reference/administration.md explains each word.
    Why {
        Answers = "answers", Timers = "timers", Calls = "calls", Messages = "messages", Pauses = "pauses",
        Registrations = "registrations", Locks = "locks", Workers = "workers", Scan = "scan", Secrets = "secrets",
        Poll = "poll", Retry = "retry",
    }
}

/// When the next turn is due, or why the process ends.
pub type Progress = Result<Next, ExitReason>;

/// When the next turn is due, unless this process is woken before, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Next {
    /// By the clock of processes.
    pub at: Timestamp,
    pub why: Why,
}

impl Default for Next {
    /// Nothing is due.
    fn default() -> Self {
        Self { at: Timestamp(i64::MAX), why: Why::Poll }
    }
}

impl Next {
    /// At once.
    pub const fn now(why: Why) -> Self {
        Self { at: Timestamp(i64::MIN), why }
    }

    /// At this time of the clock of processes. None: nothing is due.
    pub fn due(at: Option<Timestamp>, why: Why) -> Self {
        at.map_or(Self::default(), |at| Self { at, why })
    }

    /// At this moment of the monotonic clock. None: nothing is due.
    pub fn at(at: Option<Instant>, why: Why) -> Self {
        let by_their_clock = |at: Instant| Timestamp(clock::on_the_wall(at).0.saturating_add(clock::offset()));
        Self::due(at.map(by_their_clock), why)
    }

    /// After a turn that could not be made.
    pub fn retry() -> Self {
        Self::at(Some(Instant::now() + RETRY), Why::Retry)
    }

    /// At once, if `holds`.
    pub fn now_if(&mut self, holds: bool, why: Why) {
        if holds {
            *self = (*self).min(Self::now(why));
        }
    }

    /// Whether the turn is due at once.
    pub fn is_now(self) -> bool {
        self.at == Self::now(self.why).at
    }

    /// How long it is until then. Zero if the time has passed.
    pub fn wait(self) -> Duration {
        Duration::from_micros(self.at.since(clock::now()).max(0) as u64)
    }
}
