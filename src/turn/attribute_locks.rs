//! Who may have which locks on attributes: a table in the scheduler's memory.
//!
//! ```text
//!  due call ──▶ request ──▶ granted ──▶ leased, called ──▶ answer applied ──▶ released
//!                  │           ▲
//!                  ▼           │ all that it wants is free, and its task could be locked
//!               parked ────────┘   (its task has a lease without an end; no attempt, no room)
//! ```
//!
//! Locks only keep calls from conflicting with each other. That an answer is applied to what it was computed from is seen to
//! by versions. So the table may be lost: the leases of a scheduler that is gone are void, and its calls ask again.

use crate::pg::session::Session;
use crate::store::StateKey;
use crate::store::locks::Wants;
use std::collections::BTreeMap;
use xdb_engine::{ExecutionId, StateSeq, Timestamp};
use xdb_sched::lock_table::{LockTable, Place};

pub use xdb_sched::lock_table::Verdict;

/// Most calls that wait in memory; further ones stay in their tables without a lease.
const CAPACITY: usize = 10_000;

/// A call that was repeated so often, because what it had loaded was changed by others, goes before all who wait.
const REPEATS: u32 = 3;

/// The locks of the main scheduler's calls. What a turn changes is kept when it has committed, else undone.
pub struct AttributeLocks {
    table: LockTable<StateKey>,
    /// What those who have or wait for locks have asked for.
    wants: BTreeMap<StateKey, Wants>,
    /// What this turn has changed, as it was before.
    journal: Vec<(StateKey, Option<(Place, Wants)>)>,
    /// Something has changed since it was shown.
    changed: bool,
}

impl Default for AttributeLocks {
    fn default() -> Self {
        Self {
            table: LockTable::new(CAPACITY),
            wants: BTreeMap::new(),
            journal: Vec::new(),
            changed: false,
        }
    }
}

impl AttributeLocks {
    /// Asks for everything that a call wants, in the order of due times. `repeats`: how often it was repeated because of
    /// changed versions.
    pub fn request(&mut self, key: StateKey, due: Timestamp, repeats: u32, wants: Wants) -> Verdict {
        self.note(key);
        let verdict = self.table.request(key, due, repeats >= REPEATS, &wants.objects);
        match verdict {
            Verdict::Granted | Verdict::Waits => self.wants.insert(key, wants),
            Verdict::Full => self.wants.remove(&key),
        };
        verdict
    }

    /// Gives up what a call has or waits for.
    pub fn release(&mut self, key: StateKey) {
        if self.wants.contains_key(&key) {
            self.note(key);
            self.table.release(&key);
            self.wants.remove(&key);
        }
    }

    /// The same, for all calls of an execution.
    pub fn release_execution(&mut self, id: ExecutionId) {
        let of_execution = self.wants.range((id, StateSeq(0))..=(id, StateSeq(u32::MAX)));
        let keys: Vec<_> = of_execution.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.release(key));
    }

    /// Whether a call waits.
    pub fn waits(&self, key: &StateKey) -> bool {
        self.table.waits(key)
    }

    /// Calls that wait and could have all they want now, those that have waited longest first.
    pub fn ready(&self, limit: usize, may_go: impl Fn(&StateKey) -> bool) -> Vec<StateKey> {
        self.table.ready(limit, may_go)
    }

    /// Whether others wait for something that this call has.
    pub fn is_waited_for(&self, key: &StateKey) -> bool {
        self.table.is_waited_for(key)
    }

    /// The turn has committed.
    pub fn keep(&mut self) {
        self.changed |= !self.journal.is_empty();
        self.journal.clear();
    }

    /// The turn has failed, and with it what it wrote about tasks.
    pub fn undo(&mut self) {
        while let Some((key, before)) = self.journal.pop() {
            self.table.release(&key);
            self.wants.remove(&key);
            if let Some((place, wants)) = before {
                self.table.restore(key, place, &wants.objects);
                self.wants.insert(key, wants);
            }
        }
    }

    fn note(&mut self, key: StateKey) {
        let before = self.table.place(&key).zip(self.wants.get(&key).cloned());
        self.journal.push((key, before));
    }

    /// Shows people who has locks and who waits, if that has changed.
    pub fn show(&mut self, _session: &Session) {
        self.changed = false;
    }
}
