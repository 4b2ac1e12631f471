//! Counts running processes whose owner is gone. They end at their next step, which may be far away: until then nobody else
//! notices.

use super::main_loop::in_transaction;
use crate::pg::roles;
use crate::pg::session::Session;
use crate::store::owners::count_ownerless;
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;

/// Executions that are looked at in one transaction.
const SLICE: i64 = 1_000;

/// The pause between two of them.
const REST: Duration = Duration::from_millis(100);

/// As long as there are any, they are counted again: they end, or are given to somebody.
const AGAIN: Duration = Duration::from_secs(10);

/// The count, which goes through the table in slices after roles have changed.
pub struct Ownerless {
    /// How far it came. None: it is at the end.
    after: Option<ExecutionId>,
    counted: i64,
    looked: Instant,
}

impl Ownerless {
    pub fn new() -> Self {
        roles::listen();
        Self { after: None, counted: 0, looked: Instant::now() }
    }

    /// When the next poll is due, if one is.
    pub fn due_in(&self) -> Option<Duration> {
        let pause = match self.after {
            Some(_) => REST,
            None => (self.counted != 0).then_some(AGAIN)?,
        };
        Some(pause.saturating_sub(self.looked.elapsed()))
    }

    /// Counts a slice, if it is time. To be called between turns.
    pub fn poll(&mut self, session: &mut Session) {
        let changed = self.after.is_none() && roles::have_changed();
        if !changed && self.due_in().is_none_or(|left| !left.is_zero()) {
            return;
        }
        if self.after.is_none() {
            self.counted = 0;
        }
        let after = self.after.unwrap_or(ExecutionId([0; 16]));
        match in_transaction(session, |spi| count_ownerless(spi, after, SLICE)) {
            Some(slice) => {
                self.counted += slice.ownerless;
                self.after = slice.more_after;
                if self.after.is_none() {
                    session.slot.set_ownerless(self.counted);
                }
            }
            // From the beginning, in a while.
            None => (self.after, self.counted) = (None, -1),
        }
        self.looked = Instant::now();
    }
}
