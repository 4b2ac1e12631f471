//! The locks of a process: names that it asks for at its start, gets all at once, and has until it closes.
//!
//! Limitations: an execution only knows which locks it asks for. Which processes have which locks is beside the engine:
//! a grant is no event.

use crate::words;
use std::collections::BTreeMap;

/// The most locks of one process.
pub const MOST_LOCKS: usize = 32;

words! {
    /// How a process has a lock.
    LockMode {
        /// No other process holds the lock.
        Exclusive = "EXCLUSIVE",
        /// Other processes may share the lock.
        Share = "SHARE",
    }
}

impl LockMode {
    /// Whether two processes can't have one lock in these modes at the same time.
    pub fn conflicts(self, other: Self) -> bool {
        (self, other) != (Self::Share, Self::Share)
    }
}

/// The locks of a process: each name with its mode.
pub type ProcessLocks = BTreeMap<String, LockMode>;

/// The locks of both lists. If a name is in both, the stronger mode counts.
pub(crate) fn both(one: &ProcessLocks, other: &ProcessLocks) -> ProcessLocks {
    let mut all = one.clone();
    for (name, mode) in other {
        let of_name = all.entry(name.clone()).or_insert(*mode);
        *of_name = (*mode).min(*of_name);
    }
    all
}
