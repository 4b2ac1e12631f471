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
use std::collections::{HashMap, HashSet};
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::lock_table::LockTable;

pub use xdb_sched::lock_table::Answer;

/// A call that was repeated so often, because what it had loaded was changed by others, goes before all who wait.
const REPEATS: u32 = 3;

/// The locks of the main scheduler's calls. What a turn changes is kept when it has committed, else undone.
#[derive(Default)]
pub struct AttributeLocks {
    table: LockTable<StateKey>,
    /// What is locked, for people.
    names: HashMap<StateKey, String>,
    /// Calls whose tasks somebody has locked: in nobody's way until they are tried again.
    aside: HashSet<StateKey>,
}

impl AttributeLocks {
    /// Asks for everything that a call wants, in the order of due times. `repeats`: how often it was repeated because of
    /// changed versions.
    pub fn request(&mut self, key: StateKey, due: Timestamp, repeats: u32, wants: &Wants) -> Answer {
        self.names.insert(key, wants.names());
        self.table.request(key, due, repeats >= REPEATS, wants.objects.as_slice().into())
    }

    /// Gives up what a call has or waits for.
    pub fn release(&mut self, key: StateKey) {
        self.table.release(key);
    }

    /// The same, for all calls of these executions.
    pub fn release_executions(&mut self, ids: &HashSet<ExecutionId>) {
        if ids.is_empty() || self.table.holders() + self.table.waiters() == 0 {
            return;
        }
        let keys: Vec<_> = self.table.entries().map(|entry| entry.key).filter(|key| ids.contains(&key.0)).collect();
        keys.into_iter().for_each(|key| self.release(key));
    }

    /// Whether a call waits.
    pub fn waits(&self, key: &StateKey) -> bool {
        self.table.waits(key)
    }

    /// Calls that wait and could have all they want now, those that have waited longest first. `is_put_off`: its execution is
    /// left alone for now.
    pub fn ready(&mut self, limit: usize, is_put_off: impl Fn(&StateKey) -> bool) -> Vec<StateKey> {
        let again: Vec<_> = self.aside.iter().copied().filter(|key| !is_put_off(key)).collect();
        for key in again {
            self.aside.remove(&key);
            self.table.park_again(key);
        }
        self.table.ready(limit)
    }

    /// Somebody has locked the task of a call that waits. It keeps its place, and is in nobody's way until it is tried again.
    pub fn step_aside(&mut self, key: StateKey) {
        self.table.step_aside(key);
        self.aside.insert(key);
    }

    /// Whether others wait for something that this call has.
    pub fn is_waited_for(&self, key: &StateKey) -> bool {
        self.table.is_waited_for(key)
    }

    /// The turn has committed.
    pub fn settle(&mut self) {
        self.table.settle();
    }

    /// The turn has failed, and with it what it wrote about tasks.
    pub fn undo(&mut self) {
        self.table.undo();
    }

    /// Shows people who has locks and who waits.
    pub fn show(&mut self, _session: &Session) {
        let table = &self.table;
        self.names.retain(|key, _| table.has(key) || table.waits(key));
    }
}
