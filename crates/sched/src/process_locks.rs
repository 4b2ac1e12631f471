//! Which processes get their locks. A process gets all of its locks at once, or none.
//!
//! The order of requests is that of their places. A request is granted if at each of its locks
//! 1. no process holds the lock in a mode that conflicts, and
//! 2. no earlier request waits for the lock in a mode that conflicts.
//!
//! So no request overtakes an earlier one that it conflicts with. A process that has its locks asks for no others, so
//! locks alone never deadlock.
//!
//! Limitations: requests that are not due yet take no part.

use std::collections::BTreeMap;
use xdb_engine::{ExecutionId, LockMode, ProcessLocks, Timestamp};

/// The place of a request in the order: when it was due, and its execution.
pub type Place = (Timestamp, ExecutionId);

/// What decides about requests for one lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedLock {
    /// The mode in which processes hold the lock.
    pub granted: Option<LockMode>,
    /// The first request that waits to hold the lock alone.
    pub first_exclusive: Option<Place>,
    /// The first request that waits to share the lock.
    pub first_shared: Option<Place>,
}

impl NamedLock {
    /// Whether the lock can be granted to the request at this place.
    pub fn admits(&self, mode: LockMode, place: Place) -> bool {
        let is_behind = |first: Option<Place>| first.is_some_and(|first| first < place);
        let conflicts = self.granted.is_some_and(|granted| granted.conflicts(mode));
        let overtakes = is_behind(self.first_exclusive) || mode == LockMode::Exclusive && is_behind(self.first_shared);
        !conflicts && !overtakes
    }
}

/// The requests that are granted, in their order. `queues` has each lock of the requests, and is up to date afterwards
/// except for the first requests. A second call with the same requests would grant nothing.
pub fn grants(queues: &mut BTreeMap<String, NamedLock>, requests: &BTreeMap<Place, ProcessLocks>) -> Vec<ExecutionId> {
    let mut granted = Vec::new();
    for (place, locks) in requests {
        let admits =
            |(name, mode): (&String, &LockMode)| queues.get(name).is_some_and(|queue| queue.admits(*mode, *place));
        if locks.iter().all(admits) {
            for (name, mode) in locks {
                queues.entry(name.clone()).or_default().granted = Some(*mode);
            }
            granted.push(place.1);
        }
    }
    granted
}
