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
//! by the optimistic check. So the table may be lost: the leases of a scheduler that is gone are void, and its calls ask again.

use crate::pg::catch::Result;
use crate::pg::process::database;
use crate::pg::session::Session;
use crate::pg::shmem::Slot;
use crate::pg::shmem::marks::{self, MARKS, Mark, RESPECTED_FOR};
use crate::pg::spi::Spi;
use crate::store::StateKey;
use crate::store::locks::{self, WantedLocks};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::lock_table::LockTable;
use xdb_sched::room::Line;

pub use xdb_sched::lock_table::LockResult;

/// A call that was repeated this often, because other transactions changed what it had loaded, goes before all calls that wait.
const REPEATS: u32 = 3;

/// When more calls leave something alone, or are favoured, those that are over are forgotten.
const REMEMBERED: usize = 1000;

/// The locks of the scheduler's calls. What a turn changes is kept when it has committed, else undone.
#[derive(Default)]
pub struct AttributeLocks {
    table: LockTable<StateKey>,
    /// Calls whose objects are marked, and which go first if they are repeated: they were repeated too often, or other transactions keep
    /// their answers from their rows.
    favoured: BTreeSet<StateKey>,
    /// As sessions see them.
    marks: Vec<Mark>,
    /// Lines without room, in which calls have stepped aside.
    without_room: HashMap<StateKey, Line>,
    /// Sessions have ended calls, and no turn has committed that looked for them.
    calls_over: bool,
    /// Calls of functions that leave what they want to others, and since when.
    leaving: HashMap<StateKey, Instant>,
}

impl AttributeLocks {
    /// Asks for everything that a call wants, in the order of due times. `repeats`: how often it was repeated because of
    /// changed values.
    pub fn request(&mut self, key: StateKey, due: Timestamp, repeats: u32, wants: &WantedLocks) -> LockResult {
        let was_favoured = self.favoured.remove(&key);
        let goes_first = repeats >= REPEATS || repeats > 0 && was_favoured;
        if goes_first {
            self.favoured.insert(key);
        }
        self.table.request(key, due, goes_first, wants.objects.clone())
    }

    /// Says whether other transactions keep the answer of a call that has its locks from its rows: then they leave the rows alone, as
    /// for a call that was repeated too often. The call still goes first if it has to be repeated.
    pub fn held_up(&mut self, key: StateKey, is_held_up: bool) {
        if is_held_up && self.table.has(&key) {
            self.favoured.insert(key);
        } else if !self.table.goes_first(&key) {
            self.favoured.remove(&key);
        }
    }

    /// Whether a call, which locks rows itself, leaves what it wants to those that were repeated too often: as RPCs do, for a bounded time.
    pub fn leaves_alone(&mut self, key: StateKey, wants: &WantedLocks) -> bool {
        if !wants.objects.iter().any(|wanted| marks::is_marked(database(), wanted)) {
            self.leaving.remove(&key);
            return false;
        }
        let now = Instant::now();
        if self.leaving.len() >= REMEMBERED {
            self.leaving.retain(|_, since| now.duration_since(*since) < 2 * RESPECTED_FOR);
        }
        let leaves = now.duration_since(*self.leaving.entry(key).or_insert(now)) < RESPECTED_FOR;
        if !leaves {
            self.leaving.remove(&key);
        }
        leaves
    }

    /// Gives up what a call has or waits for.
    pub fn release(&mut self, key: StateKey) {
        self.table.release(key);
    }

    /// Gives up what calls have that sessions have ended. Who waits and is over is found when its turn comes. Says whether sessions may
    /// have ended any.
    pub fn release_over(&mut self, spi: &Spi) -> Result<bool> {
        self.calls_over |= Slot::mine().is_some_and(Slot::take_calls_over);
        let holders: Vec<_> = self.table.holding().filter(|_| self.calls_over).copied().collect();
        if !holders.is_empty() {
            locks::over(spi, &holders)?.into_iter().for_each(|key| self.release(key));
        }
        Ok(self.calls_over)
    }

    /// The same, for all calls of these executions.
    pub fn release_executions(&mut self, ids: &HashSet<ExecutionId>) {
        if ids.is_empty() {
            return;
        }
        let keys: Vec<_> = self.table.keys().filter(|key| ids.contains(&key.0)).collect();
        keys.into_iter().for_each(|key| self.release(key));
    }

    /// Whether a call waits.
    pub fn waits(&self, key: &StateKey) -> bool {
        self.table.waits(key)
    }

    /// Calls that have stepped aside stand in line again, unless they are put off, or there is no room for them still.
    pub fn stand_in_line(&mut self, is_put_off: impl Fn(&StateKey) -> bool, has_room: impl Fn(Line) -> bool) {
        let waits_for_room = |key: &StateKey| self.without_room.get(key).is_some_and(|line| !has_room(*line));
        let again = |key: &&StateKey| !is_put_off(key) && !waits_for_room(key);
        let again: Vec<_> = self.table.aside().filter(again).copied().collect();
        for key in again {
            self.without_room.remove(&key);
            self.table.park_again(key);
        }
    }

    /// Calls that wait and could have all they want now, those that have waited longest first.
    pub fn ready(&mut self, limit: usize) -> Vec<StateKey> {
        self.table.ready(limit)
    }

    /// A call that waits can't be made for now: somebody has locked its task, or it failed a moment ago, or there is no
    /// room. It keeps its place, and is in nobody's way until it stands in line again.
    pub fn step_aside(&mut self, key: StateKey, without_room: Option<Line>) {
        self.table.step_aside(key);
        self.without_room.extend(without_room.map(|line| (key, line)));
    }

    /// Whether others wait for something that this call has.
    pub fn is_waited_for(&self, key: &StateKey) -> bool {
        self.table.is_waited_for(key)
    }

    /// The turn has committed.
    pub fn settle(&mut self) {
        self.calls_over = false;
        self.table.settle();
    }

    /// The turn has failed, and with it what it wrote about tasks.
    pub fn undo(&mut self) {
        self.table.undo();
    }

    /// Marks what favoured calls want, while they wait and while they have it. If it is more than there are marks for, some of it is marked.
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
