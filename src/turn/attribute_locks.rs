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
use crate::pg::shmem::{Role, Slot, attribute_locks as shared};
use crate::pg::spi::Spi;
use crate::store::StateKey;
use crate::store::locks::{self, WantedLocks};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::lock_table::LockTable;
use xdb_sched::room::Line;

pub use xdb_sched::lock_table::LockResult;

/// A call that was repeated so often, because what it had loaded was changed by others, goes before all who wait.
const REPEATS: u32 = 3;

/// Entries that are shown at most: a call has at least one.
const SHOWN: usize = 256;

/// A busy scheduler shows them no more often.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// Objects that are marked at most.
const MARKS: usize = 64;

/// When more calls leave something alone, those that have done so for long are forgotten.
const LEAVING: usize = 1000;

/// The locks of the scheduler's calls. What a turn changes is kept when it has committed, else undone.
#[derive(Default)]
pub struct AttributeLocks {
    table: LockTable<StateKey>,
    /// What the calls want, for people, and since when they are due.
    wanted: HashMap<StateKey, LockRequest>,
    /// Lines without room, in which calls have stepped aside.
    without_room: HashMap<StateKey, Line>,
    /// Sessions have ended calls, and no turn has committed that looked for them.
    calls_over: bool,
    /// Calls of functions that leave what they want to others, and since when.
    leaving: HashMap<StateKey, Instant>,
    /// Something may be other than what is shown.
    is_changed: bool,
    shown_at: Option<Instant>,
}

#[derive(Debug)]
struct LockRequest {
    wants: WantedLocks,
    due: Timestamp,
    goes_first: bool,
    /// Its answer is, by others who lock the rows.
    is_held_up: bool,
}

impl LockRequest {
    fn is_marked(&self) -> bool {
        self.goes_first || self.is_held_up
    }
}

impl AttributeLocks {
    /// Asks for everything that a call wants, in the order of due times. `repeats`: how often it was repeated because of
    /// changed values.
    pub fn request(&mut self, key: StateKey, due: Timestamp, repeats: u32, wants: &WantedLocks) -> LockResult {
        let went_first = repeats > 0 && self.wanted.get(&key).is_some_and(LockRequest::is_marked);
        let goes_first = repeats >= REPEATS || went_first;
        self.is_changed = true;
        self.wanted.insert(key, LockRequest { wants: wants.clone(), due, goes_first, is_held_up: false });
        self.table.request(key, due, goes_first, wants.objects.as_slice().into())
    }

    /// Says whether the answer of a call that has its locks is held up by others who have locked its rows: then these leave them
    /// alone, as for a call that was repeated too often. It still goes first if it has to be repeated.
    pub fn held_up(&mut self, key: &StateKey, is_held_up: bool) {
        if let Some(wanted) = self.wanted.get_mut(key) {
            self.is_changed |= wanted.is_held_up != is_held_up;
            wanted.is_held_up = is_held_up;
        }
    }

    /// Whether a call, which locks rows itself, leaves what it wants to those that were repeated too often: as RPCs do, for a bounded time.
    pub fn leaves_alone(&mut self, key: StateKey, wants: &WantedLocks) -> bool {
        let database = database();
        let is_marked = || wants.objects.iter().any(|(object, mode)| shared::is_marked(database, object, *mode as u32));
        if !shared::has_marks(database) || !is_marked() {
            self.leaving.remove(&key);
            return false;
        }
        let now = Instant::now();
        // Of calls that are over.
        if self.leaving.len() >= LEAVING {
            self.leaving.retain(|_, since| now.duration_since(*since) < 2 * shared::RESPECTED_FOR);
        }
        let leaves = now.duration_since(*self.leaving.entry(key).or_insert(now)) < shared::RESPECTED_FOR;
        if !leaves {
            self.leaving.remove(&key);
        }
        leaves
    }

    /// Gives up what a call has or waits for.
    pub fn release(&mut self, key: StateKey) {
        self.is_changed |= self.wanted.contains_key(&key);
        self.table.release(key);
    }

    /// Gives up what calls have that sessions have ended. Who waits and is over is found when its turn comes. Says whether sessions may
    /// have ended any.
    pub fn release_over(&mut self, spi: &Spi) -> Result<bool> {
        self.calls_over |= shared::take_calls_over(database());
        if self.calls_over && self.table.holders() > 0 {
            let holders: Vec<_> = self.table.holding().copied().collect();
            locks::over(spi, &holders)?.into_iter().for_each(|key| self.release(key));
        }
        Ok(self.calls_over)
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
        self.is_changed = true;
        self.table.undo();
    }

    /// Shows people who has locks and who waits, and marks for sessions what calls want that go first. `is_busy`: there is
    /// more to do at once.
    pub fn show(&mut self, session: &Session, is_busy: bool) {
        // Another process of the database has no locks to show, and leaves those of the scheduler alone.
        if session.role != Role::Scheduler || !self.is_changed {
            return;
        }
        self.mark(session.slot);
        if is_busy && self.shown_at.is_some_and(|at| at.elapsed() < SHOWN_EVERY) {
            return;
        }
        (self.is_changed, self.shown_at) = (false, Some(Instant::now()));
        let table = &self.table;
        self.without_room.retain(|key, _| table.waits(key));
        if self.wanted.len() > 2 * (table.holders() + table.waiters()) + SHOWN {
            self.wanted.retain(|key, _| table.has(key) || table.waits(key));
        }
        let mut shown = Vec::new();
        let mut waiting = 0;
        for entry in table.entries().take(SHOWN) {
            let Some(wanted) = self.wanted.get(&entry.key) else { continue };
            waiting += usize::from(!entry.has);
            shown.extend(wanted.wants.shown(entry.key, wanted.due, entry.has));
        }
        shared::show(session.slot, &shown, table.waiters().saturating_sub(waiting));
    }

    /// Marks what calls want that go first, while they wait and while they have it.
    fn mark(&self, slot: Slot) {
        let first_of = |key: &StateKey| self.wanted.get(key).filter(|wanted| wanted.is_marked());
        // Of those who wait, they are at the beginning.
        let waiting = self.table.entries().map_while(|entry| first_of(&entry.key).filter(|_| !entry.has));
        let holding = self.table.holding().filter_map(first_of);
        let objects = holding.chain(waiting).flat_map(|wanted| &wanted.wants.objects);
        let marks: Vec<_> = objects.take(MARKS).map(|(object, mode)| (*object, *mode as u32)).collect();
        shared::set_marks(slot, &marks);
    }
}
