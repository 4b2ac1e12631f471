//! Calls that are under way, and the room that is left for more.

use super::breaker::{Admission, Ticket};
use crate::store::StateKey;
use crate::store::registry::WorkerId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use xdb_engine::{Api, Loading, Timestamp};

/// A call that was handed to a thread.
#[derive(Clone, Debug)]
pub struct CallRecord {
    pub key: StateKey,
    pub api: Api,
    /// From 1.
    pub attempt: u32,
    pub first_attempt_at: Timestamp,
    /// With the scheduler's epoch: the fence.
    pub lease_number: i64,
    pub worker_id: WorkerId,
    pub bytes: usize,
    /// What it loaded under a lock.
    pub held: Option<Arc<Held>>,
}

/// What a call has loaded under locks: it has to be the same when the answer is applied.
#[derive(Debug)]
pub struct Held {
    pub global: Loading,
    pub rows: Vec<Option<String>>,
    pub local: Loading,
    pub keys: BTreeMap<String, String>,
}

/// The calls of one scheduler.
#[derive(Default)]
pub struct InFlight {
    calls: HashMap<u64, (CallRecord, Ticket)>,
    per_worker: HashMap<WorkerId, usize>,
    bytes: usize,
    next_tag: u64,
}

impl InFlight {
    pub fn insert(&mut self, record: CallRecord, ticket: Ticket) -> u64 {
        self.next_tag += 1;
        *self.per_worker.entry(record.worker_id).or_default() += 1;
        self.bytes += record.bytes;
        self.calls.insert(self.next_tag, (record, ticket));
        self.next_tag
    }

    pub fn remove(&mut self, tag: u64) -> Option<(CallRecord, Ticket)> {
        let (record, ticket) = self.calls.remove(&tag)?;
        if let Some(count) = self.per_worker.get_mut(&record.worker_id) {
            *count -= 1;
        }
        self.bytes -= record.bytes;
        Some((record, ticket))
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).copied().unwrap_or(0)
    }
}

/// How many more calls may go out now, in all and per worker.
#[derive(Clone, Debug)]
pub struct Room {
    total: usize,
    per_worker: HashMap<WorkerId, usize>,
}

impl Room {
    /// `workers` gives each worker's own limit, and `admits` what its breaker says. While there are several, none gets
    /// more than half of the threads: one that is slow or dead must not hold up the others.
    pub fn new(
        in_flight: &InFlight,
        max_calls: usize,
        max_bytes: usize,
        workers: &[(WorkerId, usize)],
        mut admits: impl FnMut(WorkerId) -> Admission,
    ) -> Self {
        let total = if in_flight.bytes() >= max_bytes { 0 } else { max_calls.saturating_sub(in_flight.len()) };
        let share = if workers.len() > 1 { max_calls.div_ceil(2) } else { max_calls };
        let room = |(id, limit): &(WorkerId, usize)| {
            let room = match admits(*id) {
                Admission::All => share.min(*limit).saturating_sub(in_flight.of_worker(*id)),
                // Beside those that hang since before the breaker opened.
                Admission::Probe => 1,
                Admission::None => 0,
            };
            (*id, room)
        };
        Self { total, per_worker: workers.iter().map(room).collect() }
    }

    /// Whether there is a place for a call to this worker.
    pub fn has(&self, worker: WorkerId) -> bool {
        self.total > 0 && self.per_worker.get(&worker).is_some_and(|room| *room > 0)
    }

    /// Takes a place for a call to this worker, if there is one.
    pub fn take(&mut self, worker: WorkerId) -> bool {
        match self.per_worker.get_mut(&worker) {
            Some(room) if *room > 0 && self.total > 0 => {
                *room -= 1;
                self.total -= 1;
                true
            }
            _ => false,
        }
    }

    /// Per worker, how many due calls to look for.
    pub fn wanted(&self, at_most: usize) -> Vec<(WorkerId, usize)> {
        let bound = self.total.min(at_most);
        self.per_worker.iter().map(|(id, room)| (*id, (*room).min(bound))).filter(|(_, room)| *room > 0).collect()
    }
}
