//! Calls that are under way, and the room that is left for more.

use crate::breaker::Admission;
use std::collections::HashMap;

/// A worker, as the tables number them.
pub type WorkerId = i32;

/// The calls of one scheduler that are under way, each with what is known of it.
#[derive(Debug)]
pub struct InFlight<C> {
    calls: HashMap<u64, Call<C>>,
    per_worker: HashMap<WorkerId, usize>,
    bytes: usize,
    next_tag: u64,
}

#[derive(Debug)]
struct Call<C> {
    worker: WorkerId,
    bytes: usize,
    what: C,
}

impl<C> Default for InFlight<C> {
    fn default() -> Self {
        Self { calls: HashMap::new(), per_worker: HashMap::new(), bytes: 0, next_tag: 0 }
    }
}

impl<C> InFlight<C> {
    /// A call goes out. Answers with the tag by which it comes back.
    pub fn insert(&mut self, worker: WorkerId, bytes: usize, what: C) -> u64 {
        self.next_tag += 1;
        *self.per_worker.entry(worker).or_default() += 1;
        self.bytes += bytes;
        self.calls.insert(self.next_tag, Call { worker, bytes, what });
        self.next_tag
    }

    /// A call has ended.
    pub fn remove(&mut self, tag: u64) -> Option<C> {
        let call = self.calls.remove(&tag)?;
        if let Some(count) = self.per_worker.get_mut(&call.worker) {
            *count -= 1;
        }
        self.bytes -= call.bytes;
        Some(call.what)
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).copied().unwrap_or(0)
    }
}

/// How many more calls may go out now, in all and per worker.
#[derive(Clone, Debug, Default)]
pub struct Room {
    total: usize,
    per_worker: HashMap<WorkerId, usize>,
}

impl Room {
    /// `workers` gives each worker's own limit, and `admits` what its breaker says. While there are several, none gets
    /// more than half of the calls, nor of the connections that there can be: one that is slow or dead must not hold
    /// up the others.
    pub fn new<C>(
        in_flight: &InFlight<C>,
        max_calls: usize,
        max_connections: usize,
        max_bytes: usize,
        workers: &[(WorkerId, usize)],
        mut admits: impl FnMut(WorkerId) -> Admission,
    ) -> Self {
        let total = if in_flight.bytes() >= max_bytes { 0 } else { max_calls.saturating_sub(in_flight.len()) };
        let share = if workers.len() > 1 { max_calls.min(max_connections).div_ceil(2) } else { max_calls };
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

    /// How many more calls may go out in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many more calls may go out to this worker, if it were alone.
    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).copied().unwrap_or(0).min(self.total)
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
