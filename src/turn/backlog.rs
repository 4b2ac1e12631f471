//! What waits in a scheduler's memory to be applied, and which executions are left alone for a while.
//!
//! **Order.** Answers of one execution are applied in the order in which they came, whatever keeps one of them from it: those
//! behind it wait too. So an answer keeps its number for as long as it waits, and what is taken from here is, of each execution,
//! what has come first. Whatever is no answer may pass. Between executions there is no order once one of them is held up:
//! nobody waits for a lock that is in another one's way, and who was held up is tried again after those who came meanwhile.
//!
//! **Lack of time.** What was put off because the turn had spent its time in users' tables is *taken* after what came meanwhile, so
//! that it keeps nothing out of a turn that needs no table. Of what is taken the oldest is the first all the same: it is not
//! overtaken. And it rests a little before it is taken again, so that whoever needs no table is called, and answers, in between:
//! else each of their steps would wait for two turns in tables.
//!
//! **Turns.** A runner applies one answer at a time, or calls functions, which may take seconds. It takes one of each owner, and of each
//! of the two, in turn. Of one owner's functions that are quick it takes several together.

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

/// How long a call whose answer was given up is left alone.
const GIVEN_UP_FOR: Duration = Duration::from_secs(5);

/// An answer of a call with locks that was not tried for so long is not held up any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// So long others may have the rows of an answer before they shall leave them to it: who locks them again and again leaves them free
/// for moments only, and a try waits for no longer.
const LEFT_TO_IT_AFTER: Duration = Duration::from_millis(100);

/// So long an answer may be held up, by somebody's transaction, while others wait for the locks of its call.
const HELD_UP: Duration = Duration::from_secs(1);

/// How long an answer has been held up.
#[derive(Clone, Copy)]
struct HeldUp {
    since: Instant,
    /// Since when the last thing in its way has been a row that somebody else has locked.
    by_a_row_since: Option<Instant>,
}

/// Answers, in the order in which they came, and the executions that somebody else has locked.
#[derive(Default)]
pub struct Backlog {
    /// By number.
    waiting: BTreeMap<u64, Item>,
    /// The last number that was given.
    last: u64,
    /// Places in line of executions that were held up, among the numbers.
    places: HashMap<ExecutionId, u64>,
    /// The same of those that were put off for lack of time.
    put_off: HashMap<ExecutionId, u64>,
    /// Until when these are left alone.
    rest_until: Option<Instant>,
    pub executions: Backoff<ExecutionId>,
    /// Calls whose answers were held up and dropped: because others wait for their locks, or because there were too many.
    pub yielding: BTreeSet<StateKey>,
    /// The answers of calls with locks that are held up.
    held_up_answers: HashMap<StateKey, HeldUp>,
    /// When each owner's answer was taken last, and when a function was called for it, where they take turns: a number.
    turns: HashMap<(Owner, bool), u64>,
    /// One was taken in turn, and nothing else was done since.
    took_in_turn: bool,
}

impl Backlog {
    /// Takes what may be applied now in one transaction; the rest stays.
    pub fn take(&mut self, role: Role, functions_are_slow: bool) -> Vec<Item> {
        if role.takes_turns() {
            return self.take_in_turn(functions_at_once(functions_are_slow));
        }
        self.take_those(role.items_at_once(), |executions, id| !(role.keeps_risky_apart() && executions.has(id)))
    }

    /// Takes the first of the owner whose turn it is, and of functions up to so many of that owner: whoever holds up a transaction with
    /// one of them, for as long as he likes, holds up nobody else's. After an answer nothing, once: then a call is claimed.
    fn take_in_turn(&mut self, functions: usize) -> Vec<Item> {
        if std::mem::take(&mut self.took_in_turn) {
            return Vec::new();
        }
        let mut taken: Vec<_> = self.take_first(|_, _| true).into_iter().collect();
        let Some(first) = taken.first() else { return taken };
        let (turn, is_function) = (turn_of(first), first.is_uncalled());
        // What leases functions takes as many as there is room for: it waits until they are called.
        self.took_in_turn = !is_function;
        // What was held up may be again, and is called alone.
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

    /// Takes the first of these, of the owner whose turn it is.
    fn take_first(&mut self, fits: impl Fn(&Backoff<ExecutionId>, &Item) -> bool) -> Option<Item> {
        let now = Instant::now();
        let may_go = |item: &Item| fits(&self.executions, item) && self.may_be_taken(item.execution(), now);
        let ready = self.waiting.iter().filter(|(_, item)| may_go(item));
        let place = |(number, item): (&u64, &Item)| {
            let id = item.execution();
            let turn = self.turns.get(&turn_of(item)).copied().unwrap_or(0);
            let place = self.places.get(&id).copied().unwrap_or(*number);
            (turn, self.put_off.get(&id).copied().unwrap_or(place), place, *number)
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

    /// Takes what failed a moment ago and may fail again: it is applied under guards, in a small transaction of its own. Until
    /// then it stays here, so that its call is not claimed again.
    pub fn take_risky(&mut self) -> Vec<Item> {
        self.take_those(GUARDED_ITEMS, Backoff::has)
    }

    fn take_those(&mut self, limit: usize, wanted: impl Fn(&Backoff<ExecutionId>, &ExecutionId) -> bool) -> Vec<Item> {
        let now = Instant::now();
        let may_go = |id: ExecutionId| wanted(&self.executions, &id) && self.may_be_taken(id, now);
        let place = |id: ExecutionId, number: u64| self.places.get(&id).copied().unwrap_or(number);
        let ready = self.waiting.iter().map(|(number, item)| (item.execution(), *number)).filter(|(id, _)| may_go(*id));
        let mut ready: Vec<_> = ready.map(|(id, number)| (id, (place(id, number), number))).collect();
        if ready.len() > limit {
            ready.sort_unstable_by_key(|(id, order)| (self.put_off.get(id).copied().unwrap_or(order.0), *order));
            ready.truncate(limit);
        }
        ready.sort_unstable_by_key(|(_, order)| *order);
        ready.iter().filter_map(|(_, (_, number))| self.waiting.remove(number)).collect()
    }

    /// Keeps an item for a later turn, an answer in its place; what the tables have too is found there again.
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

    pub fn keep_all(&mut self, items: Vec<Item>) {
        items.into_iter().for_each(|item| self.keep(item));
    }

    /// Of items that were taken, those that may still go: an answer does not, and is kept, if one of its execution that came before
    /// it waits here again.
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

    /// Of items that were taken, those that may go while one suspect is in hand at a time: the others' answers are kept.
    pub fn one_suspect(&mut self, items: Vec<Item>) -> Vec<Item> {
        let Some(first) = items.iter().find_map(Item::suspect) else { return items };
        let taken = in_hand::take_suspect().then_some(first);
        let may_go = |item: &Item| item.suspect().is_none_or(|suspect| taken == Some(suspect));
        let (items, aside): (Vec<_>, Vec<_>) = items.into_iter().partition(may_go);
        for item in &aside {
            // Many suspects leave room for others.
            self.put_off(item.execution());
            if taken.is_none() {
                self.defer(item.execution(), Patience::Short);
            }
        }
        self.keep_all(aside);
        self.hold_back(items)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.yielding.is_empty()
    }

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
        let rests = self.rests(now) && self.put_off.contains_key(&id);
        !rests && !self.executions.is_deferred(&id, now)
    }

    /// Whether answers that need tables rest, also those that come now.
    pub fn rests(&self, now: Instant) -> bool {
        self.rest_until.is_some_and(|until| now < until)
    }

    pub fn rest(&mut self, until: Instant) {
        self.rest_until = Some(until);
    }

    /// When something of what waits may be applied, if nothing may be now.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let rest = self.rest_until.filter(|_| self.rests(now) && !self.put_off.is_empty());
        [rest, self.executions.next(now)].into_iter().flatten().min()
    }

    /// How many items wait because somebody has locked what they need, or because there was no time for their tables.
    pub fn held_up(&self) -> usize {
        let now = Instant::now();
        self.count(|id| self.executions.is_deferred(&id, now) || self.put_off.contains_key(&id))
    }

    /// How many items of such executions wait.
    fn count(&self, counts: impl Fn(ExecutionId) -> bool) -> usize {
        self.waiting.values().filter(|item| counts(item.execution())).count()
    }

    /// Whoever holds a great many rows must not fill the engine with answers that wait for them: the oldest are given up, and their
    /// calls are made again some time later. Those that were put off are not: their turn comes, and as long as it does not, they
    /// leave less room for calls.
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

    /// The answer of a call with locks is held up, by others who have its rows or by something else. Says whether they shall leave
    /// these to it now; not for ever, because who has them may be somebody who does not ask.
    pub fn is_left_to(&mut self, key: StateKey, by_a_row: bool) -> bool {
        let now = Instant::now();
        let held_up = self.held_up_answer(key, now);
        held_up.by_a_row_since = by_a_row.then(|| held_up.by_a_row_since.unwrap_or(now));
        let is_time = |since| (LEFT_TO_IT_AFTER..LEFT_TO_IT_AFTER + RESPECTED_FOR).contains(&(now - since));
        held_up.by_a_row_since.is_some_and(is_time)
    }

    /// The answer of a call with locks is held up. Says whether it is given up, because others have waited too long for the
    /// locks: then the call is made again some time later.
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

    /// The answer of a call was applied.
    pub fn done(&mut self, key: &StateKey) {
        self.held_up_answers.remove(key);
        self.put_off.remove(&key.0);
    }

    fn held_up_answer(&mut self, key: StateKey, now: Instant) -> &mut HeldUp {
        self.held_up_answers.entry(key).or_insert(HeldUp { since: now, by_a_row_since: None })
    }

    /// Something of this execution was applied. What waits here keeps its backoff: it was held up by something else.
    pub fn went_well(&mut self, id: &ExecutionId) {
        if self.executions.has(id) && !self.waiting_for().any(|waiting| waiting == *id) {
            self.executions.clear(id);
        }
    }

    /// Somebody else has locked the execution.
    pub fn defer(&mut self, id: ExecutionId, patience: Patience) {
        self.executions.defer(id, Instant::now(), patience);
        self.goes_behind(id);
    }

    /// Somebody else has locked the execution, or its definition is to be read in another turn.
    pub fn defer_put_off(&mut self, id: ExecutionId, registry: &Registry) {
        match registry.put_off_until(id) {
            Some(until) => self.defer_until(id, until),
            None => self.defer(id, Patience::Short),
        }
    }

    /// A table of the execution is left alone until then.
    pub fn defer_until(&mut self, id: ExecutionId, until: Instant) {
        self.executions.defer_until(id, until);
        self.goes_behind(id);
    }

    /// The turn had no time left for the tables of the execution.
    pub fn put_off(&mut self, id: ExecutionId) {
        self.last += 1;
        self.put_off.insert(id, self.last);
    }

    fn goes_behind(&mut self, id: ExecutionId) {
        self.last += 1;
        self.places.insert(id, self.last);
    }

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
        if !self.put_off.is_empty() {
            let waiting: HashSet<_> = self.waiting.values().map(Item::execution).collect();
            self.put_off.retain(|id, _| waiting.contains(id));
        }
    }
}

/// Whose turn an item is. What is no answer takes no time.
fn turn_of(item: &Item) -> (Owner, bool) {
    match item {
        Item::Answer(record, _) => (record.owner, item.is_uncalled()),
        _ => (0, false),
    }
}
