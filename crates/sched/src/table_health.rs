//! Which of users' tables are locked, slow or contended, as far as the steps that use them have found out.
//!
//! What goes wrong in a table is a strike; with enough of them the table is set aside, and steps that go well take the strikes
//! back. Beside that the table is left alone for a while each time.

use crate::backoff::{Backoff, Patience};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Where a row is held, the next ones who want a row of that table wait for a short while only, and for so long.
const CONTENDED_FOR: Duration = Duration::from_secs(10);

/// So many waits for rows of a table are enough for one turn.
const WAITS_PER_TURN: u32 = 8;

/// A table with this many strikes is set aside.
const STRIKES_OUT: u32 = 12;
/// A statement that ran into the time limit has cost everybody a quarter of a second: three of them are enough.
const SLOW_STRIKE: u32 = 4;
const LOCKED_STRIKE: u32 = 1;

/// So many deadlocks or serialization failures in a row are the table's refusal.
const CONFLICTS_OUT: u32 = 20;

/// So many quick steps in a row bring a table back.
const GOOD_STEPS: u32 = 3;

/// The oid of a table.
pub type Relation = u32;

/// What is wrong with a table: what has to go well again before it is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    SlowWrites,
    SlowReads,
    Locked,
}

impl Trouble {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SlowWrites => "writes took longer than xdb.apply_timeout",
            Self::SlowReads => "reads took longer than xdb.apply_timeout",
            Self::Locked => "another session kept it locked",
        }
    }

    pub fn parse(text: &str) -> Self {
        [Self::SlowWrites, Self::SlowReads].into_iter().find(|known| known.as_str() == text).unwrap_or(Self::Locked)
    }
}

/// What a table is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Rows are locked, and nothing of a user's code runs.
    Lock,
    Write,
}

/// What a turn has to write down.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub set_aside: Vec<(Relation, Trouble)>,
    pub taken_back: Vec<Relation>,
}

/// See the module.
#[derive(Debug)]
pub struct TableHealth {
    /// This is the scheduler for tables that are set aside.
    aside: bool,
    set_aside: HashMap<Relation, Trouble>,
    to_set_aside: HashMap<Relation, Trouble>,
    strikes: HashMap<Relation, u32>,
    good: HashMap<Relation, u32>,
    conflicts: HashMap<Relation, u32>,
    busy: Backoff<Relation>,
    /// Tables in which somebody held a row a moment ago.
    contended: HashMap<Relation, Instant>,
    /// Waits for rows in this turn.
    waited: HashMap<Relation, u32>,
}

impl TableHealth {
    pub fn new(aside: bool) -> Self {
        Self {
            aside,
            set_aside: HashMap::new(),
            to_set_aside: HashMap::new(),
            strikes: HashMap::new(),
            good: HashMap::new(),
            conflicts: HashMap::new(),
            busy: Backoff::default(),
            contended: HashMap::new(),
            waited: HashMap::new(),
        }
    }

    /// A turn begins, and these tables are set aside. Answers with what the last turns have found out and nobody has written
    /// down yet.
    pub fn begin(&mut self, set_aside: HashMap<Relation, Trouble>) -> Changes {
        self.waited.clear();
        self.set_aside = set_aside;
        self.to_set_aside.retain(|relation, _| !self.set_aside.contains_key(relation));
        let mut changes = Changes::default();
        changes.set_aside.extend(self.to_set_aside.iter().map(|(relation, why)| (*relation, *why)));
        if self.aside {
            let good = &self.good;
            let is_back = |relation: &Relation| good.get(relation).is_some_and(|steps| *steps >= GOOD_STEPS);
            changes.taken_back.extend(self.set_aside.keys().copied().filter(is_back));
            self.set_aside.retain(|relation, _| !is_back(relation));
            self.good.retain(|relation, _| self.set_aside.contains_key(relation));
        }
        changes
    }

    /// A statement in this table could not be cancelled and ended the process before this one.
    pub fn died_in(&mut self, relation: Relation) {
        if !self.aside {
            self.to_set_aside.insert(relation, Trouble::SlowWrites);
        }
    }

    pub fn is_set_aside(&self, relation: Relation) -> bool {
        self.set_aside.contains_key(&relation) || self.to_set_aside.contains_key(&relation)
    }

    /// Until when the table is left alone, or was.
    pub fn busy_until(&self, relation: Relation) -> Option<Instant> {
        self.busy.until(&relation)
    }

    pub fn is_busy(&self, relation: Relation, now: Instant) -> bool {
        self.busy.is_deferred(&relation, now)
    }

    /// The table was in trouble: it is left alone for a while, and set aside if that was too often.
    pub fn strike(&mut self, relation: Relation, why: Trouble, now: Instant) {
        self.busy.defer(relation, now, Patience::Long);
        self.good.remove(&relation);
        let weight = if why == Trouble::Locked { LOCKED_STRIKE } else { SLOW_STRIKE };
        let strikes = self.strikes.entry(relation).or_default();
        *strikes += weight;
        if *strikes >= STRIKES_OUT && !self.aside {
            *strikes = 0;
            self.to_set_aside.insert(relation, why);
        }
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

    /// The table was used without trouble. `quick` is within the limit of the time.
    pub fn went_well(&mut self, relation: Relation, access: Access, quick: bool) {
        if access == Access::Lock {
            // Each write of a call with a lock comes right after one: it must not excuse the writes that are slow.
            return;
        }
        self.busy.clear(&relation);
        self.strikes.remove(&relation);
        self.conflicts.remove(&relation);
        let Some(why) = self.set_aside.get(&relation) else { return };
        // Reading says nothing about a table whose writes are slow.
        if access == Access::Read && *why == Trouble::SlowWrites {
            return;
        }
        if quick {
            *self.good.entry(relation).or_default() += 1;
        } else {
            self.good.remove(&relation);
        }
    }
}
