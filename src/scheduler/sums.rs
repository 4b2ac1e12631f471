//! Counts what roles have, for quotas that no row has the sum of. A round counts in slices: first running processes of
//! roles with a limit, then messages of roles in global queues. Roles that have reached a limit are written to shared
//! memory. Functions and answers read them there.
//!
//! Limitations: counts are up to a round old, so a role can exceed its quota meanwhile.

use crate::guc;
use crate::pg::catch::Result;
use crate::pg::session::Session;
use crate::pg::shmem::over::{self, Quota};
use crate::pg::spi::Spi;
use crate::store::quotas::{self, RunningLimits, Sums};
use pgrx::pg_sys;
use std::time::{Duration, Instant};

/// The rows that are counted in one transaction.
const SLICE: i64 = 2_000;

/// The shortest time between the begins of two rounds.
const EVERY: Duration = Duration::from_secs(10);

/// The pause after a slice is this many times the time of the slice.
const REST: u32 = 4;
const SHORTEST_REST: Duration = Duration::from_millis(50);

/// The progress of the round.
pub struct Counting {
    quota: Quota,
    sums: Sums,
    /// The row that was counted last.
    after: String,
    /// When the round began.
    began: Instant,
    /// When the next slice is due.
    due: Instant,
}

impl Counting {
    /// The first round begins at once: a restart of the server has cleared shared memory.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { quota: Quota::Running, sums: Sums::new(), after: String::new(), began: now, due: now }
    }

    /// When the next slice is due.
    pub fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Counts a slice if it is time. Called between turns.
    pub fn poll(&mut self, session: &mut Session) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        let database = session.database;
        let is_over = session.between_turns(|spi| self.slice(spi, database));
        self.due = Instant::now() + (now.elapsed() * REST).max(SHORTEST_REST);
        if is_over != Some(false) {
            // After an error too, the next round counts from the beginning.
            let due = self.due.max(self.began + EVERY);
            *self = Self { began: due, due, ..Self::new() };
        }
    }

    /// Counts the next rows. Returns whether the round is over.
    fn slice(&mut self, spi: &Spi, database: pg_sys::Oid) -> Result<bool> {
        if self.quota == Quota::Running {
            let limits = RunningLimits::read(spi, guc::MAX_RUNNING_PROCESSES.get())?;
            if limits.has_any() && self.add(spi)? {
                return Ok(false);
            }
            let counted = self.sums.drain().map(|(owner, sum)| (owner, limits.of(owner), sum.count));
            let reached = counted.filter(|(_, limit, running)| *limit > 0 && *running >= i64::from(*limit));
            let reached: Vec<_> = reached.map(|(owner, limit, _)| (owner, limit as u32)).collect();
            over::set(database, Quota::Running, &reached);
            (self.quota, self.after) = (Quota::Messages, String::new());
        }
        if self.add(spi)? {
            return Ok(false);
        }
        let (messages, bytes) = (guc::quotas().queue_messages, guc::quotas().queue_bytes);
        let reached = self.sums.iter().filter(|(_, sum)| sum.count >= messages as i64 || sum.bytes >= bytes as i64);
        let reached: Vec<_> = reached.map(|(owner, _)| (*owner, messages as u32)).collect();
        over::set(database, Quota::Messages, &reached);
        Ok(true)
    }

    /// Adds the next rows. Returns whether there may be more.
    fn add(&mut self, spi: &Spi) -> Result<bool> {
        let last = quotas::add(spi, self.quota, &mut self.sums, &self.after, SLICE)?;
        let has_more = last.is_some();
        self.after = last.unwrap_or_default();
        Ok(has_more)
    }
}
