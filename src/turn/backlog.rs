//! What waits in the memory of a scheduler or runner until it can be applied: answers that have come, and the executions
//! whose last try has failed and that are deferred.
//!
//! **Order.** Answers of one execution are applied in the order in which they came. If one answer is blocked, the later
//! answers of its execution wait too. So an answer keeps its number while it waits, and the first answer of each
//! execution is taken first. Items that are no answers may pass. Between executions, order is kept only until one of
//! them is blocked. An execution never waits for a lock that conflicts with another execution alone. An execution that
//! was blocked is tried again after the executions that came meanwhile.
//!
//! **Lack of time.** If a turn has spent its time in the application's tables, its remaining items are *late*.
//! 1. A turn takes late items after the items that came meanwhile. So items that need no table always fit into a turn.
//! 2. Of the taken items, a turn applies the oldest first. So no item that came later overtakes a late one.
//! 3. A late item rests a little before a turn takes it again. In between, turns without tables serve processes that map
//!    no table. Without the rest, each step of these processes would wait for two turns with tables.
//!
//! **Turns.** A runner applies one answer at a time, or calls functions. Both may take seconds. The runner takes one
//! item per owner in turn, and alternates between answers and functions. Of one owner's quick functions it takes
//! several together.
//!
//! Limitations: the backlog is in memory and may be lost. Then the leases are void, and the calls are made again.

use super::item::Item;
use super::role::{Role, functions_at_once};
use crate::pg::in_hand;
use crate::pg::shmem::marks::RESPECTED_FOR;
use crate::store::StateKey;
use crate::store::registry::Registry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;
use xdb_sched::backoff::{Backoff, Patience};
use xdb_sched::budget::GUARDED_ITEMS;
use xdb_sched::room::{Line, Owner};

/// How long a call is deferred after its answer was given up.
const GIVEN_UP_FOR: Duration = Duration::from_secs(5);

/// After this time without a try, the engine forgets that an answer of a call with locks was blocked.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// After an answer has been blocked by row locks for this long, its rows are marked, and RPCs and functions avoid them.
/// Until then, repeated short locks of other transactions leave gaps that are long enough for the answer.
const LEFT_TO_IT_AFTER: Duration = Duration::from_millis(100);

/// How long another transaction may block an answer while other calls wait for the locks of its call.
const HELD_UP: Duration = Duration::from_secs(1);

/// How long an answer has been blocked.
#[derive(Clone, Copy)]
struct HeldUp {
    since: Instant,
    /// Since when every try has been blocked by a row lock of another transaction. None: the last try was blocked by
    /// something else.
    by_a_row_since: Option<Instant>,
}

/// Answers in the order in which they came, and the executions that other transactions have locked.
#[derive(Default)]
pub struct Backlog {
    /// Items by number.
    waiting: BTreeMap<u64, Item>,
    /// The last number that was given: to an item, a place or a turn.
    last: u64,
    /// Positions of executions that were blocked, on the same scale as the numbers of items.
    places: HashMap<ExecutionId, u64>,
    /// Positions of executions that the turn had no time for.
    postponed: HashMap<ExecutionId, u64>,
    /// Until this moment, executions in `postponed` rest.
    rest_until: Option<Instant>,
    /// Executions that are deferred, because of a lock or a failure. Phases of the turn write it. Scans leave these
    /// executions out.
    pub executions: Backoff<ExecutionId>,
    /// Calls whose answers were blocked and dropped: because other calls wait for their locks, or because too many
    /// answers waited. `gather` releases their leases.
    pub yielding: BTreeSet<StateKey>,
    /// When answers of calls with locks began to be blocked.
    held_up_answers: HashMap<StateKey, HeldUp>,
    /// The last turn of each owner, as a number: for answers (false) and for functions (true). Only used where owners
    /// take turns.
    turns: HashMap<(Owner, bool), u64>,
    /// The last transaction applied an answer that was taken in turn.
    took_in_turn: bool,
}

impl Backlog {
    /// Takes the items that one transaction may apply now.
    pub fn take(&mut self, role: Role, functions_are_slow: bool) -> Vec<Item> {
        if role.takes_turns() {
            return self.take_in_turn(functions_at_once(functions_are_slow));
        }
        self.take_where(role.items_at_once(), |executions, id| !(role.keeps_risky_apart() && executions.has(id)))
    }

    /// Takes the first item of the owner whose turn it is, and up to `functions` functions of that owner. So a slow
    /// function delays only calls of its own owner. After an answer it takes nothing once, so that a call is claimed in
    /// between.
    fn take_in_turn(&mut self, functions: usize) -> Vec<Item> {
        if std::mem::take(&mut self.took_in_turn) {
            return Vec::new();
        }
        let mut taken: Vec<_> = self.take_first(|_, _| true).into_iter().collect();
        let Some(first) = taken.first() else { return taken };
        let (turn, is_function) = (turn_of(first), first.is_uncalled());
        // A turn that leases functions leases as many as there are places, and calls them in later turns.
        self.took_in_turn = !is_function;
        // A function that was blocked may be blocked again, so it is called alone.
        if is_function && !self.executions.has(&first.execution()) {
            let fits = |executions: &Backoff<ExecutionId>, item: &Item| {
                turn_of(item) == turn && !executions.has(&item.execution())
            };
            let others = std::iter::from_fn(|| self.take_first(fits));
            taken.extend(others.take(functions.saturating_sub(1)));
        }
        self.last += 1;
        self.turns.insert(turn, self.last);
        taken
    }

    /// Takes the first item that fits, of the owner whose turn it is.
    fn take_first(&mut self, fits: impl Fn(&Backoff<ExecutionId>, &Item) -> bool) -> Option<Item> {
        let now = Instant::now();
        let may_go = |item: &Item| fits(&self.executions, item) && self.may_be_taken(item.execution(), now);
        let ready = self.waiting.iter().filter(|(_, item)| may_go(item));
        let place = |(number, item): (&u64, &Item)| {
            let id = item.execution();
            let turn = self.turns.get(&turn_of(item)).copied().unwrap_or(0);
            let place = self.places.get(&id).copied().unwrap_or(*number);
            (turn, self.postponed.get(&id).copied().unwrap_or(place), place, *number)
        };
        let (_, _, _, number) = ready.map(place).min()?;
        self.waiting.remove(&number)
    }

    /// The lines of the calls whose answers wait here.
    pub fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        self.waiting.values().filter_map(|item| match item {
            Item::Answer(record, _) => Some(record.line()),
            _ => None,
        })
    }

    /// Takes the items that failed recently and may fail again, for a small transaction of their own, under guards.
    /// Until then they stay here, so that their calls are not claimed again.
    pub fn take_risky(&mut self) -> Vec<Item> {
        self.take_where(GUARDED_ITEMS, Backoff::has)
    }

    fn take_where(&mut self, limit: usize, wanted: impl Fn(&Backoff<ExecutionId>, &ExecutionId) -> bool) -> Vec<Item> {
        let now = Instant::now();
        let may_go = |id: ExecutionId| wanted(&self.executions, &id) && self.may_be_taken(id, now);
        let place = |id: ExecutionId, number: u64| self.places.get(&id).copied().unwrap_or(number);
        let ready = self.waiting.iter().map(|(number, item)| (item.execution(), *number)).filter(|(id, _)| may_go(*id));
        let mut ready: Vec<_> = ready.map(|(id, number)| (id, (place(id, number), number))).collect();
        if ready.len() > limit {
            ready.sort_unstable_by_key(|(id, order)| (self.postponed.get(id).copied().unwrap_or(order.0), *order));
            ready.truncate(limit);
        }
        ready.sort_unstable_by_key(|(_, order)| *order);
        ready.iter().filter_map(|(_, (_, number))| self.waiting.remove(number)).collect()
    }

    /// Keeps an item for a later turn. An answer keeps its number. Items that are also in the tables are dropped and
    /// found again.
    pub fn keep(&mut self, mut item: Item) {
        let number = match &mut item {
            Item::Answer(record, _) if record.answer_number > 0 => record.answer_number,
            Item::Answer(record, _) => {
                self.last += 1;
                record.answer_number = self.last;
                self.last
            }
            Item::Fail { .. } => {
                self.last += 1;
                self.last
            }
            Item::Arrivals(_) | Item::Timer(_) | Item::Waiter(_) => return,
        };
        self.waiting.insert(number, item);
    }

    /// Keeps items as [`Backlog::keep`] does.
    pub fn keep_all(&mut self, items: Vec<Item>) {
        items.into_iter().for_each(|item| self.keep(item));
    }

    /// Returns the taken items that may still be applied. An answer is kept if an earlier answer of its execution waits
    /// here again.
    pub fn hold_back(&mut self, items: Vec<Item>) -> Vec<Item> {
        let mut first = HashMap::new();
        for (number, item) in &self.waiting {
            first.entry(item.execution()).or_insert(*number);
        }
        let may_go = |item: &Item| match item {
            Item::Answer(record, _) => first.get(&record.key.0).is_none_or(|first| record.answer_number < *first),
            _ => true,
        };
        let (may_go, held_back) = items.into_iter().partition(may_go);
        self.keep_all(held_back);
        may_go
    }

    /// Returns the taken items that may be applied while at most one suspect is in hand. Other suspects are kept.
    pub fn one_suspect(&mut self, items: Vec<Item>) -> Vec<Item> {
        let Some(first) = items.iter().find_map(Item::suspect) else { return items };
        let taken = in_hand::take_suspect().then_some(first);
        let may_go = |item: &Item| item.suspect().is_none_or(|suspect| taken == Some(suspect));
        let (items, aside): (Vec<_>, Vec<_>) = items.into_iter().partition(may_go);
        for item in &aside {
            // Suspects go behind the other items, so that many of them don't fill a transaction.
            self.postpone(item.execution());
            if taken.is_none() {
                self.defer(item.execution(), Patience::Short);
            }
        }
        self.keep_all(aside);
        self.hold_back(items)
    }

    /// Whether no item waits, and no lease is to be given up.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.yielding.is_empty()
    }

    /// How many items wait, plus the leases to give up.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.yielding.len()
    }

    /// Executions with items that wait here.
    pub fn waiting_for(&self) -> impl Iterator<Item = ExecutionId> {
        self.waiting.values().map(Item::execution)
    }

    /// Whether an item may be applied now.
    pub fn is_ready(&self) -> bool {
        let now = Instant::now();
        self.waiting.values().any(|item| self.may_be_taken(item.execution(), now))
    }

    fn may_be_taken(&self, id: ExecutionId, now: Instant) -> bool {
        let rests = self.rests(now) && self.postponed.contains_key(&id);
        !rests && !self.executions.is_deferred(&id, now)
    }

    /// Whether answers that need tables rest, including answers that come now.
    pub fn rests(&self, now: Instant) -> bool {
        self.rest_until.is_some_and(|until| now < until)
    }

    /// Lets answers that need tables rest until this moment.
    pub fn rest(&mut self, until: Instant) {
        self.rest_until = Some(until);
    }

    /// When the next waiting item may be applied, if none may be now.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let rest = self.rest_until.filter(|_| self.rests(now) && !self.postponed.is_empty());
        [rest, self.executions.next(now)].into_iter().flatten().min()
    }

    /// How many items wait for a lock of another transaction, or for time in the application's tables.
    pub fn held_up(&self) -> usize {
        let now = Instant::now();
        self.count(|id| self.executions.is_deferred(&id, now) || self.postponed.contains_key(&id))
    }

    /// How many waiting items belong to executions that count.
    fn count(&self, counts: impl Fn(ExecutionId) -> bool) -> usize {
        self.waiting.values().filter(|item| counts(item.execution())).count()
    }

    /// Drops the oldest answers that wait for locks, down to `most`. Their calls are made again some time later. So a
    /// transaction that holds many row locks can't fill the engine with answers. Answers that wait for time in tables
    /// stay: their turn comes, and until then they leave fewer places for calls.
    pub fn give_up_beyond(&mut self, most: usize) {
        let now = Instant::now();
        let mut too_many = self.count(|id| self.executions.is_deferred(&id, now)).saturating_sub(most);
        let (executions, yielding) = (&mut self.executions, &mut self.yielding);
        self.waiting.retain(|_, item| match item {
            Item::Answer(record, _) if too_many > 0 && executions.is_deferred(&record.key.0, now) => {
                too_many -= 1;
                yielding.insert(record.key);
                executions.defer_until(record.key.0, now + GIVEN_UP_FOR);
                false
            }
            _ => true,
        });
    }

    /// Records that the answer of a call with locks is blocked, by a row lock or by something else. Returns whether
    /// RPCs and functions should avoid its rows now. They avoid the rows for a limited time, because the holder of the
    /// row lock may ignore marks.
    pub fn is_left_to(&mut self, key: StateKey, by_a_row: bool) -> bool {
        let now = Instant::now();
        let held_up = self.held_up_answer(key, now);
        held_up.by_a_row_since = by_a_row.then(|| held_up.by_a_row_since.unwrap_or(now));
        let is_time = |since| (LEFT_TO_IT_AFTER..LEFT_TO_IT_AFTER + RESPECTED_FOR).contains(&(now - since));
        held_up.by_a_row_since.is_some_and(is_time)
    }

    /// Records that the answer of a call with locks is blocked. Returns whether it is given up, because other calls
    /// have waited too long for the locks. Then the call is made again some time later.
    pub fn yields(&mut self, key: StateKey, is_waited_for: bool) -> bool {
        let now = Instant::now();
        let since = self.held_up_answer(key, now).since;
        let yields = is_waited_for && since + HELD_UP < now;
        if yields {
            self.held_up_answers.remove(&key);
            self.executions.defer_until(key.0, now + GIVEN_UP_FOR);
            self.yielding.insert(key);
        }
        yields
    }

    /// Records that the answer of a call was applied.
    pub fn done(&mut self, key: &StateKey) {
        self.held_up_answers.remove(key);
        self.postponed.remove(&key.0);
    }

    fn held_up_answer(&mut self, key: StateKey, now: Instant) -> &mut HeldUp {
        self.held_up_answers.entry(key).or_insert(HeldUp { since: now, by_a_row_since: None })
    }

    /// An item of this execution was applied. If other items of the execution wait here, the backoff stays: they were
    /// blocked by something else.
    pub fn went_well(&mut self, id: &ExecutionId) {
        if self.executions.has(id) && !self.waiting_for().any(|waiting| waiting == *id) {
            self.executions.clear(id);
        }
    }

    /// Defers an execution that another transaction has locked.
    pub fn defer(&mut self, id: ExecutionId, patience: Patience) {
        self.executions.defer(id, Instant::now(), patience);
        self.goes_behind(id);
    }

    /// Defers an execution that another transaction has locked, or whose definition is read in a later turn.
    pub fn defer_as_registered(&mut self, id: ExecutionId, registry: &Registry) {
        match registry.deferred_until(id) {
            Some(until) => self.defer_until(id, until),
            None => self.defer(id, Patience::Short),
        }
    }

    /// Defers an execution until a table may be used again.
    pub fn defer_until(&mut self, id: ExecutionId, until: Instant) {
        self.executions.defer_until(id, until);
        self.goes_behind(id);
    }

    /// Moves an execution behind the others, because the turn had no time left for its tables.
    pub fn postpone(&mut self, id: ExecutionId) {
        self.last += 1;
        self.postponed.insert(id, self.last);
    }

    fn goes_behind(&mut self, id: ExecutionId) {
        self.last += 1;
        self.places.insert(id, self.last);
    }

    /// Forgets the state of executions and calls that no longer wait.
    pub fn forget_old(&mut self) {
        if !self.held_up_answers.is_empty() {
            let answers = self.waiting.values().filter_map(|item| match item {
                Item::Answer(record, _) => Some(record.key),
                _ => None,
            });
            let waiting: HashSet<_> = answers.collect();
            let is_kept = |key: &StateKey, since: Instant| since.elapsed() < FORGOTTEN_AFTER || waiting.contains(key);
            self.held_up_answers.retain(|key, held_up| is_kept(key, held_up.since));
        }
        self.executions.forget_old(Instant::now());
        self.places.retain(|id, _| self.executions.has(id));
        if self.waiting.is_empty() {
            self.turns.clear();
        }
        if !self.postponed.is_empty() {
            let waiting: HashSet<_> = self.waiting.values().map(Item::execution).collect();
            self.postponed.retain(|id, _| waiting.contains(id));
        }
    }
}

/// Whose turn an item takes. Items that are no answers take no time, and share one turn.
fn turn_of(item: &Item) -> (Owner, bool) {
    match item {
        Item::Answer(record, _) => (record.owner, item.is_uncalled()),
        _ => (0, false),
    }
}
