//! The locks on attributes that calls want: a table in the scheduler's memory.
//!
//! ```text
//!  due call ──▶ request ──▶ granted ──▶ leased, called ──▶ answer applied ──▶ released
//!                  │           ▲
//!                  ▼           │ all that it wants is free, and its task could be locked
//!               parked ────────┘   (its task has a lease without an end; no attempt, no place)
//! ```
//!
//! Locks only keep calls from conflicting with each other. The optimistic check ensures that an answer fits the values
//! from which it was computed. So the table may be lost: the leases of the previous scheduler are void, and its calls
//! request their locks again.
//!
//! Limitations: sessions and runners take no part. They see only marks, and respect them for a bounded time.

use crate::pg::catch::Result;
use crate::pg::process::database;
use crate::pg::session::Session;
use crate::pg::shmem::Slot;
use crate::pg::shmem::marks::{self, LockMark, MARKS, RESPECTED_FOR};
use crate::pg::spi::Spi;
use crate::store::StateKey;
use crate::store::locks::{self, WantedLocks};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;
use xdb_engine::{ExecutionId, REPEATS_AT_ONCE, Timestamp};
use xdb_sched::lock_table::LockTable;
use xdb_sched::room::Line;

pub use xdb_sched::lock_table::LockResult;

/// After this number of repeats a call goes before all waiting calls. A call is repeated if other transactions changed
/// what it had loaded.
const REPEATS: u32 = 3;

/// Above this number, entries of calls that are over are removed from `favoured` and `marked_since`.
const REMEMBERED: usize = 1000;

/// The locks of the scheduler's calls. Changes are kept when their turn commits, and undone when it fails.
#[derive(Default)]
pub struct AttributeLocks {
    table: LockTable<StateKey>,
    /// Calls whose objects are marked, and which go first when they are repeated. Either they were repeated too often,
    /// or other transactions block the rows of their answers.
    favoured: BTreeSet<StateKey>,
    /// The marks that sessions see now.
    marks: Vec<LockMark>,
    /// Lines without a free place, by the call that stepped aside because of that.
    without_room: HashMap<StateKey, Line>,
    /// Sessions have ended calls, and no turn has committed since that released their locks.
    calls_over: bool,
    /// Calls of functions that wait because their objects are marked, and since when.
    marked_since: HashMap<StateKey, Instant>,
}

impl AttributeLocks {
    /// Requests everything that a call wants. Calls are ordered by due time. `repeats`: how often the call was repeated
    /// because values had changed.
    pub fn request(&mut self, key: StateKey, due: Timestamp, repeats: u32, wants: &WantedLocks) -> LockResult {
        let was_favoured = self.favoured.remove(&key);
        let goes_first = repeats >= REPEATS || repeats > 0 && was_favoured;
        if goes_first {
            self.favoured.insert(key);
        }
        self.table.request(key, due, goes_first, wants.objects.clone())
    }

    /// Whether a call that has its locks should be made a moment later, when its objects are marked. It comes after a
    /// pause without marks, so functions are under way that would change what it loads.
    pub fn is_unmarked(&self, repeats: u32, wants: &WantedLocks) -> bool {
        repeats > REPEATS_AT_ONCE
            && self.marks.len() < MARKS
            && wants.objects.iter().any(|wanted| !self.marks.contains(wanted))
    }

    /// Records whether other transactions block the rows of an answer whose call has its locks. If they do, the rows
    /// are marked, as for a call that was repeated too often. If the call has to be repeated, it still goes first.
    pub fn held_up(&mut self, key: StateKey, is_held_up: bool) {
        if is_held_up && self.table.has(&key) {
            self.favoured.insert(key);
        } else if !self.table.goes_first(&key) {
            self.favoured.remove(&key);
        }
    }

    /// Whether the call of a function should wait because what it wants is marked. The function locks rows itself, so
    /// it respects marks as RPCs do, for a bounded time.
    pub fn waits_for_marks(&mut self, key: StateKey, wants: &WantedLocks) -> bool {
        if !wants.objects.iter().any(|wanted| marks::is_marked(database(), wanted)) {
            self.marked_since.remove(&key);
            return false;
        }
        let now = Instant::now();
        if self.marked_since.len() >= REMEMBERED {
            self.marked_since.retain(|_, since| now.duration_since(*since) < 2 * RESPECTED_FOR);
        }
        let waits = now.duration_since(*self.marked_since.entry(key).or_insert(now)) < RESPECTED_FOR;
        if !waits {
            self.marked_since.remove(&key);
        }
        waits
    }

    /// Releases what a call holds or waits for.
    pub fn release(&mut self, key: StateKey) {
        self.table.release(key);
    }

    /// Releases the locks of calls that sessions have ended. A waiting call that is over is found when its turn comes.
    /// Returns whether sessions may have ended any call.
    pub fn release_over(&mut self, spi: &Spi) -> Result<bool> {
        self.calls_over |= Slot::mine().is_some_and(Slot::take_calls_over);
        let holders: Vec<_> = self.table.holding().filter(|_| self.calls_over).copied().collect();
        if !holders.is_empty() {
            locks::over(spi, &holders)?.into_iter().for_each(|key| self.release(key));
        }
        Ok(self.calls_over)
    }

    /// Releases all calls of these executions.
    pub fn release_executions(&mut self, ids: &HashSet<ExecutionId>) {
        if ids.is_empty() {
            return;
        }
        let keys: Vec<_> = self.table.keys().filter(|key| ids.contains(&key.0)).collect();
        keys.into_iter().for_each(|key| self.release(key));
    }

    pub fn waits(&self, key: &StateKey) -> bool {
        self.table.waits(key)
    }

    /// Calls that stepped aside queue up again, unless they are deferred or their line still has no free place.
    pub fn queue_up_again(&mut self, is_deferred: impl Fn(&StateKey) -> bool, has_room: impl Fn(Line) -> bool) {
        let waits_for_room = |key: &StateKey| self.without_room.get(key).is_some_and(|line| !has_room(*line));
        let again = |key: &&StateKey| !is_deferred(key) && !waits_for_room(key);
        let again: Vec<_> = self.table.aside().filter(again).copied().collect();
        for key in again {
            self.without_room.remove(&key);
            self.table.park_again(key);
        }
    }

    /// Waiting calls that could get all their locks now, the longest wait first.
    pub fn ready(&mut self, limit: usize) -> Vec<StateKey> {
        self.table.ready(limit)
    }

    /// A waiting call can't be made now: another transaction has locked its task, or it failed a moment ago, or its
    /// line has no free place. The call keeps its position, and blocks no other call until it queues up again.
    pub fn step_aside(&mut self, key: StateKey, without_room: Option<Line>) {
        self.table.step_aside(key);
        self.without_room.extend(without_room.map(|line| (key, line)));
    }

    /// Whether another call waits for a lock of this call.
    pub fn is_waited_for(&self, key: &StateKey) -> bool {
        self.table.is_waited_for(key)
    }

    /// Keeps the changes: the turn has committed.
    pub fn settle(&mut self) {
        self.calls_over = false;
        self.table.settle();
    }

    /// Undoes the changes: the turn has failed, and its writes on tasks were rolled back.
    pub fn undo(&mut self) {
        self.table.undo();
    }

    /// Marks the objects of favoured calls, while these wait and while they hold their locks. If there are too few
    /// marks, some objects stay unmarked.
    pub fn mark(&mut self, session: &Session) {
        let table = &self.table;
        self.without_room.retain(|key, _| table.waits(key));
        if self.favoured.is_empty() && self.marks.is_empty() {
            return;
        }
        if self.favoured.len() > REMEMBERED {
            self.favoured.retain(|key| table.wants(key).is_some());
        }
        let wanted: BTreeSet<_> = self.favoured.iter().filter_map(|key| table.wants(key)).flatten().copied().collect();
        let marks: Vec<_> = wanted.into_iter().take(MARKS).collect();
        if marks != self.marks {
            marks::replace(session.slot, &self.marks, &marks);
            self.marks = marks;
        }
    }
}
