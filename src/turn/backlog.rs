//! What waits in a scheduler's memory to be applied, and which executions are left alone for a while.

use super::item::Item;
use super::role::Role;
use crate::store::StateKey;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;
use xdb_sched::backoff::{Backoff, Patience};
use xdb_sched::budget::GUARDS;

/// How long a call whose answer was given up is left alone.
const GIVEN_UP_FOR: Duration = Duration::from_secs(5);

/// An answer of a call with locks that was not tried for so long is not held up any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// So long an answer may be held up, by somebody's transaction, while others wait for the locks of its call.
const HELD_UP: Duration = Duration::from_secs(1);

/// Answers, in the order in which they came, and the executions that somebody else has locked.
#[derive(Default)]
pub struct Backlog {
    waiting: VecDeque<Item>,
    pub executions: Backoff<ExecutionId>,
    /// Calls whose answers were held up and dropped: because others wait for their locks, or because there were too many.
    pub yielding: BTreeSet<StateKey>,
    /// Since when the answers of calls with locks have been held up.
    held_up_since: HashMap<StateKey, Instant>,
}

impl Backlog {
    /// Takes what may be applied now in one transaction; the rest stays in its order.
    pub fn take(&mut self, role: Role) -> Vec<Item> {
        self.take_those(role.items_at_once(), |executions, id| !(role.keeps_risky_apart() && executions.has(id)))
    }

    /// Takes what failed a moment ago and may fail again: it is applied under guards, in a small transaction of its own. Until
    /// then it stays here, so that its call is not claimed again.
    pub fn take_risky(&mut self) -> Vec<Item> {
        self.take_those(GUARDS, Backoff::has)
    }

    fn take_those(&mut self, limit: usize, wanted: impl Fn(&Backoff<ExecutionId>, &ExecutionId) -> bool) -> Vec<Item> {
        let now = Instant::now();
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for item in self.waiting.drain(..) {
            let id = item.execution();
            let may_go = taken.len() < limit && wanted(&self.executions, &id);
            if may_go && !self.executions.is_deferred(&id, now) { taken.push(item) } else { left.push_back(item) }
        }
        self.waiting = left;
        taken
    }

    pub fn push(&mut self, item: Item) {
        self.waiting.push_back(item);
    }

    /// Takes items back that were not tried; what the tables have too is found there again.
    pub fn put_back(&mut self, items: Vec<Item>) {
        for item in items.into_iter().rev() {
            if item.is_in_memory_only() {
                self.waiting.push_front(item);
            }
        }
    }

    /// Keeps an item for a later turn; what the tables have too is found there again.
    pub fn keep(&mut self, item: Item) {
        if item.is_in_memory_only() {
            self.waiting.push_back(item);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.yielding.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + self.yielding.len()
    }

    /// Executions with items that wait here.
    pub fn waiting_for(&self) -> impl Iterator<Item = ExecutionId> {
        self.waiting.iter().map(Item::execution)
    }

    /// Whether an item may be applied now.
    pub fn is_ready(&self) -> bool {
        let now = Instant::now();
        self.waiting.iter().any(|item| !self.executions.is_deferred(&item.execution(), now))
    }

    /// How many items wait because somebody has locked what they need.
    pub fn held_up(&self) -> usize {
        let now = Instant::now();
        self.waiting.iter().filter(|item| self.executions.is_deferred(&item.execution(), now)).count()
    }

    /// Whoever holds a great many rows must not fill the engine with answers that wait for them: the oldest are given
    /// up, and their calls are made again some time later.
    pub fn give_up_beyond(&mut self, most: usize) {
        let now = Instant::now();
        let mut too_many = self.held_up().saturating_sub(most);
        let (executions, yielding) = (&mut self.executions, &mut self.yielding);
        self.waiting.retain(|item| match item {
            Item::Answer(record, _) if too_many > 0 && executions.is_deferred(&record.key.0, now) => {
                too_many -= 1;
                yielding.insert(record.key);
                executions.defer_until(record.key.0, now + GIVEN_UP_FOR);
                false
            }
            _ => true,
        });
    }

    /// The answer of a call with locks is held up. Says whether it is given up, because others have waited too long for the
    /// locks: then the call is made again some time later.
    pub fn yields(&mut self, key: StateKey, is_waited_for: bool) -> bool {
        let now = Instant::now();
        let since = *self.held_up_since.entry(key).or_insert(now);
        let yields = is_waited_for && since + HELD_UP < now;
        if yields {
            self.held_up_since.remove(&key);
            self.executions.defer_until(key.0, now + GIVEN_UP_FOR);
            self.yielding.insert(key);
        }
        yields
    }

    /// The answer of a call was applied.
    pub fn done(&mut self, key: &StateKey) {
        self.held_up_since.remove(key);
    }

    /// Somebody else has locked the execution.
    pub fn defer(&mut self, id: ExecutionId, patience: Patience) {
        self.executions.defer(id, Instant::now(), patience);
    }

    pub fn forget_old(&mut self) {
        self.held_up_since.retain(|_, since| since.elapsed() < FORGOTTEN_AFTER);
        self.executions.forget_old(Instant::now());
    }
}
