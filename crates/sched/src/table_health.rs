//! Which of users' tables are locked or contended, as far as the steps that use them have found out.
//!
//! A table in which something goes wrong is left alone for a while, each time longer, up to half a second; its steps are kept
//! meanwhile, and no other step waits for it. Nothing of this makes a table slow.

use crate::backoff::{Backoff, Patience};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Where a row is held, the next ones who want a row of that table wait for a short while only, and for so long.
const CONTENDED_FOR: Duration = Duration::from_secs(10);

/// So many waits for rows of a table are enough for one turn.
const WAITS_PER_TURN: u32 = 8;

/// So many deadlocks or serialization failures in a row are the table's refusal.
const CONFLICTS_OUT: u32 = 20;

/// The oid of a table.
pub type Relation = u32;

/// What a table is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Rows are locked, and nothing of a user's code runs.
    Lock,
    Write,
}

/// See the module.
#[derive(Debug, Default)]
pub struct TableHealth {
    conflicts: HashMap<Relation, u32>,
    busy: Backoff<Relation>,
    /// Tables in which somebody held a row a moment ago.
    contended: HashMap<Relation, Instant>,
    /// Waits for rows in this turn.
    waited: HashMap<Relation, u32>,
}

impl TableHealth {
    pub fn begin_turn(&mut self) {
        self.waited.clear();
    }

    /// Until when the table is left alone, or was.
    pub fn busy_until(&self, relation: Relation) -> Option<Instant> {
        self.busy.until(&relation)
    }

    pub fn is_busy(&self, relation: Relation, now: Instant) -> bool {
        self.busy.is_deferred(&relation, now)
    }

    /// The table was locked or in trouble: it is left alone for a while.
    pub fn leave_alone(&mut self, relation: Relation, now: Instant) {
        self.busy.defer(relation, now, Patience::Long);
    }

    /// Counts a conflict with another transaction. False when there were so many that it must be the table's own
    /// doing.
    pub fn conflict(&mut self, relation: Relation) -> bool {
        let conflicts = self.conflicts.entry(relation).or_default();
        *conflicts += 1;
        if *conflicts < CONFLICTS_OUT {
            return true;
        }
        *conflicts = 0;
        false
    }

    /// Somebody held a row that was waited for.
    pub fn row_was_held(&mut self, relation: Relation, now: Instant) {
        self.contended.insert(relation, now);
        *self.waited.entry(relation).or_default() += 1;
    }

    /// Whether somebody held a row a moment ago: then the next wait is to be a short one.
    pub fn is_contended(&self, relation: Relation, now: Instant) -> bool {
        self.contended.get(&relation).is_some_and(|at| now.saturating_duration_since(*at) < CONTENDED_FOR)
    }

    /// Whether rows of the table may still be waited for in this turn.
    pub fn may_wait(&self, relation: Relation) -> bool {
        self.waited.get(&relation).is_none_or(|waits| *waits < WAITS_PER_TURN)
    }

    /// The table was used without trouble.
    pub fn went_well(&mut self, relation: Relation, access: Access) {
        // Each write of a call with a lock comes right after a lock: that must not excuse the writes.
        if access != Access::Lock {
            self.busy.clear(&relation);
            self.conflicts.remove(&relation);
        }
    }
}
