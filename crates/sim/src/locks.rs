//! The locks of processes: which processes have theirs, and which wait.

use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_sched::process_locks::{NamedLock, Place, grants};

#[derive(Default)]
pub(crate) struct Locks {
    granted: BTreeMap<ExecutionId, ProcessLocks>,
    /// Requests in the order in which they are granted, due or not.
    waiting: BTreeMap<Place, ProcessLocks>,
}

impl Locks {
    /// Follows an execution whose events were applied. Then grants what can be granted.
    pub fn follow(&mut self, execution: &Execution, now: Timestamp) {
        if execution.locks.is_empty() {
            return;
        }
        let id = execution.id;
        if !execution.is_running() {
            self.granted.remove(&id);
            self.waiting.retain(|place, _| place.1 != id);
        } else if !self.granted.contains_key(&id) {
            // A merge moves the first call. Without one, the request keeps its place.
            let before = self.waiting.keys().find(|place| place.1 == id).map_or(execution.started_at, |place| place.0);
            let due = execution.first_is_due().unwrap_or(before);
            self.waiting.retain(|place, _| place.1 != id);
            self.waiting.insert((due, id), execution.locks.clone());
        }
        self.grant(now);
    }

    /// Grants what can be granted at this time.
    pub fn grant(&mut self, now: Timestamp) {
        let due = self.waiting.range(..=(now, ExecutionId([u8::MAX; 16])));
        let due: BTreeMap<_, _> = due.map(|(place, locks)| (*place, locks.clone())).collect();
        let mut queues = BTreeMap::<String, NamedLock>::new();
        for (name, mode) in self.granted.values().flatten() {
            queues.entry(name.clone()).or_default().granted = Some(*mode);
        }
        for (place, locks) in &due {
            for (name, mode) in locks {
                let queue = queues.entry(name.clone()).or_default();
                let first = match mode {
                    LockMode::Exclusive => &mut queue.first_exclusive,
                    LockMode::Share => &mut queue.first_shared,
                };
                first.get_or_insert(*place);
            }
        }
        for id in grants(&mut queues, &due) {
            if let Some(place) = due.keys().find(|place| place.1 == id)
                && let Some(locks) = self.waiting.remove(place)
            {
                self.granted.insert(id, locks);
            }
        }
    }

    /// When the next request is due.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        self.waiting.keys().map(|place| place.0).find(|at| *at > now)
    }

    /// Whether a process waits for its locks.
    pub fn waits(&self, id: ExecutionId) -> bool {
        self.waiting.keys().any(|place| place.1 == id)
    }

    /// A lock that a process waits for, and a process that has it.
    pub fn missing(&self, locks: &ProcessLocks) -> Option<(String, Option<ExecutionId>)> {
        let holder = |(name, mode): (&String, &LockMode)| {
            let has = |of: &ProcessLocks| of.get(name).is_some_and(|has| has.conflicts(*mode));
            let (id, _) = self.granted.iter().find(|(_, of)| has(of))?;
            Some((name.clone(), Some(*id)))
        };
        locks.iter().find_map(holder).or_else(|| locks.keys().next().map(|name| (name.clone(), None)))
    }
}
