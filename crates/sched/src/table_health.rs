//! Which of the application's tables are locked or contended, as the steps that use them have found out.
//!
//! After trouble, a table is deferred for a while, each time longer, up to half a second. Its steps are kept meanwhile,
//! and no other step waits for it. A deferred table is not marked as slow.
//!
//! Limitations: only the tables used by this process are known. All of it is in memory.

use crate::backoff::{Backoff, Patience};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// After a wait for a row, other waits for rows of the table are short for this time.
const CONTENDED_FOR: Duration = Duration::from_secs(10);

/// The most waits for rows of one table in a turn.
const WAITS_PER_TURN: u32 = 8;

/// After this many deadlocks or serialization failures in a row, the error counts as a refusal of the table.
const CONFLICTS_OUT: u32 = 20;

/// The oid of a table or function.
pub type Relation = u32;

/// The kind of use of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Rows are locked, and no code of the application runs.
    Lock,
    Write,
}

/// See the module.
#[derive(Debug, Default)]
pub struct TableHealth {
    /// Deadlocks and serialization failures in a row.
    conflicts: HashMap<Relation, u32>,
    /// Tables that are deferred after trouble.
    busy: Backoff<Relation>,
    /// When a row of the table was last found locked.
    contended: HashMap<Relation, Instant>,
    /// The number of waits for rows in this turn.
    waited: HashMap<Relation, u32>,
}

impl TableHealth {
    /// Begins a turn: its waits for rows are counted from zero.
    pub fn begin_turn(&mut self) {
        self.waited.clear();
    }

    /// Until when the table is or was deferred.
    pub fn busy_until(&self, relation: Relation) -> Option<Instant> {
        self.busy.until(&relation)
    }

    /// Whether the table is deferred now.
    pub fn is_busy(&self, relation: Relation, now: Instant) -> bool {
        self.busy.is_deferred(&relation, now)
    }

    /// Defers the table: it was locked or in trouble.
    pub fn defer(&mut self, relation: Relation, now: Instant) {
        self.busy.defer(relation, now, Patience::Long);
    }

    /// Counts a conflict with another transaction. Returns false after so large a number that the table itself must be
    /// the cause.
    pub fn conflict(&mut self, relation: Relation) -> bool {
        let conflicts = self.conflicts.entry(relation).or_default();
        *conflicts += 1;
        if *conflicts < CONFLICTS_OUT {
            return true;
        }
        *conflicts = 0;
        false
    }

    /// Records that a row was locked, after a wait for it.
    pub fn row_was_held(&mut self, relation: Relation, now: Instant) {
        self.contended.insert(relation, now);
        *self.waited.entry(relation).or_default() += 1;
    }

    /// Whether a row was locked a moment ago. Then the next wait should be short.
    pub fn is_contended(&self, relation: Relation, now: Instant) -> bool {
        self.contended.get(&relation).is_some_and(|at| now.saturating_duration_since(*at) < CONTENDED_FOR)
    }

    /// Whether this turn may still wait for rows of the table.
    pub fn may_wait(&self, relation: Relation) -> bool {
        self.waited.get(&relation).is_none_or(|waits| *waits < WAITS_PER_TURN)
    }

    /// The table was used without trouble.
    pub fn went_well(&mut self, relation: Relation, access: Access) {
        // An answer under locks first locks its rows and then writes. The success of the lock must not hide the
        // failures of the write.
        if access != Access::Lock {
            self.busy.clear(&relation);
            self.conflicts.remove(&relation);
        }
    }
}
