//! How the room for calls is shared: fairly among workers, and among the owners of a worker's calls.
//!
//! Places are given out one at a time. Each goes to the worker with the fewest calls under way that wants one and has room
//! for it, and there to the owner with the fewest; among equals, to the one that was served longest ago. So whoever has
//! less than others gets the next place that becomes free, owners take turns where there are fewer places than owners, and
//! no place stays free that somebody wants.
//!
//! ```text
//!   under way   a ■■■■■■      a place becomes free:     a ■■■■■
//!               b ■■          it is b's                 b ■■■
//!               c ■■■   wants none                      c ■■■
//! ```
//!
//! Nobody is stopped: what was under way when a newcomer came goes on.

use crate::room::{InFlight, Owner, Room, WorkerId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// So many calls of an owner wait for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub worker: WorkerId,
    pub owner: Owner,
    pub calls: usize,
}

/// Who was served when: the less, the longer ago.
type Turn = u64;

/// The shares of a turn. Between turns it remembers who was served last; that may be lost.
#[derive(Debug, Default)]
pub struct Shares {
    room: Room,
    /// Calls under way, with those that were given a place in this turn.
    of_owner: BTreeMap<(WorkerId, Owner), usize>,
    of_worker: BTreeMap<WorkerId, usize>,
    /// Places that were given out by the last division and not taken yet.
    quota: BTreeMap<(WorkerId, Owner), usize>,
    owner_served: HashMap<(WorkerId, Owner), Turn>,
    worker_served: HashMap<WorkerId, Turn>,
    turn: Turn,
}

/// A worker while places are given out.
struct Line {
    room: usize,
    /// Owners with the places that they want more, the next one first.
    owners: BTreeSet<(usize, Turn, Owner, Reverse<usize>)>,
}

impl Shares {
    /// A turn begins with so much room.
    pub fn begin_turn<C>(&mut self, room: Room, in_flight: &InFlight<C>) {
        self.room = room;
        self.quota.clear();
        self.of_owner = in_flight.per_owner().collect();
        self.of_worker.clear();
        for ((worker, _), calls) in &self.of_owner {
            *self.of_worker.entry(*worker).or_default() += calls;
        }
    }

    /// Divides the room that is left among these wishes, one for each worker and owner. What the last division has given and
    /// nobody has taken is divided anew.
    pub fn divide(&mut self, wishes: &[Wish]) {
        self.forget_who_is_gone(wishes);
        self.quota.clear();
        let mut lines: BTreeMap<WorkerId, Line> = BTreeMap::new();
        for wish in wishes.iter().filter(|wish| wish.calls > 0) {
            let key = (wish.worker, wish.owner);
            let served = self.owner_served.get(&key).copied().unwrap_or(0);
            let line = lines
                .entry(wish.worker)
                .or_insert_with(|| Line { room: self.room.of_worker(wish.worker), owners: BTreeSet::new() });
            line.owners.insert((self.calls_of(key), served, wish.owner, Reverse(wish.calls)));
        }
        let place = |(id, line): (&WorkerId, &Line)| {
            let calls = self.of_worker.get(id).copied().unwrap_or(0);
            (line.room > 0).then(|| (calls, self.worker_served.get(id).copied().unwrap_or(0), *id))
        };
        let mut workers: BTreeSet<(usize, Turn, WorkerId)> = lines.iter().filter_map(place).collect();
        for _ in 0..self.room.total() {
            let Some((calls, served, worker)) = workers.pop_first() else { break };
            let Some(line) = lines.get_mut(&worker) else { break };
            let Some((of_owner, owner_served, owner, Reverse(wanted))) = line.owners.pop_first() else { continue };
            *self.quota.entry((worker, owner)).or_default() += 1;
            line.room -= 1;
            if wanted > 1 {
                line.owners.insert((of_owner + 1, owner_served, owner, Reverse(wanted - 1)));
            }
            if line.room > 0 && !line.owners.is_empty() {
                workers.insert((calls + 1, served, worker));
            }
        }
    }

    /// Takes a place for a call, if the last division has given one to this owner.
    pub fn take(&mut self, worker: WorkerId, owner: Owner) -> bool {
        let key = (worker, owner);
        let Some(left) = self.quota.get_mut(&key).filter(|left| **left > 0) else { return false };
        if !self.room.take(worker) {
            return false;
        }
        *left -= 1;
        *self.of_owner.entry(key).or_default() += 1;
        *self.of_worker.entry(worker).or_default() += 1;
        self.turn += 1;
        self.owner_served.insert(key, self.turn);
        self.worker_served.insert(worker, self.turn);
        true
    }

    /// What the last division has given and nobody has taken: how many calls to claim for each worker and owner.
    pub fn left(&self) -> impl Iterator<Item = Wish> {
        let wish = |((worker, owner), calls): (&(WorkerId, Owner), &usize)| Wish {
            worker: *worker,
            owner: *owner,
            calls: *calls,
        };
        self.quota.iter().filter(|(_, calls)| **calls > 0).map(wish)
    }

    fn calls_of(&self, key: (WorkerId, Owner)) -> usize {
        self.of_owner.get(&key).copied().unwrap_or(0)
    }

    /// Whoever has nothing under way and wants nothing is a newcomer the next time.
    fn forget_who_is_gone(&mut self, wishes: &[Wish]) {
        let wanting: BTreeSet<_> = wishes.iter().map(|wish| (wish.worker, wish.owner)).collect();
        let workers: BTreeSet<_> = wishes.iter().map(|wish| wish.worker).collect();
        let (of_owner, of_worker) = (&self.of_owner, &self.of_worker);
        self.owner_served.retain(|key, _| wanting.contains(key) || of_owner.contains_key(key));
        self.worker_served.retain(|id, _| workers.contains(id) || of_worker.contains_key(id));
    }
}
