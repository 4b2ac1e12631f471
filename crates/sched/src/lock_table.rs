//! Locks on attributes: which calls have which ones, and which calls wait for them.
//!
//! They only keep calls from conflicting with each other. That an answer is applied to what it was computed from is seen to by
//! the optimistic check when it is applied, so this table may be lost at any moment: calls then ask again.
//!
//! ```text
//!              granted at once
//!   request ───────────────────────────────► HAS ── release ──► gone
//!      │                                      ▲
//!      │ something is in the way              │ request again
//!      ▼                                      │
//!    WAITS ── ready() lists it when nothing is in its way any more
//!      │  ▲
//!      │  │ park_again
//!      ▼  │ step_aside: it could have its objects, but can't be called now
//!    ASIDE    keeps its place, is in nobody's way
//! ```
//!
//! A request names all of its objects at once and gets all of them or none: who waits holds nothing, so nothing deadlocks.
//! Requests have places in one order: calls that had to be repeated come first, then the earlier due time. In the way of
//! a request is whatever conflicts with it at one of its objects and either has that object or waits for it with an earlier
//! place. So nobody is overtaken by a later one that conflicts with it; those who conflict with nobody before them pass. A place
//! depends on nothing but the request: who is released and asks again gets the one it had.
//!
//! What a turn changes is undone when its transaction fails: see [`LockTable::undo`].
//!
//! **Cost.** Each waiting request is noted at one object where something is in its way. When something goes from an object, only
//! those noted there are looked at whose way is free there now. So a release costs as many steps as there are requests
//! that it lets go on, however many wait.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;
use xdb_engine::Timestamp;

/// What is locked: a hash. Two things of the same hash only wait for each other.
pub type Object = [u8; 16];

/// How something is locked. The intention modes announce locks on parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    IntentionShared,
    IntentionExclusive,
    Shared,
    Exclusive,
}

impl LockMode {
    pub const ALL: [LockMode; 4] =
        [LockMode::IntentionShared, LockMode::IntentionExclusive, LockMode::Shared, LockMode::Exclusive];

    /// Whether two requests can't have the same object at the same time.
    pub fn conflicts(self, other: LockMode) -> bool {
        use LockMode::*;
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => true,
            (IntentionExclusive, Shared) | (Shared, IntentionExclusive) => true,
            (IntentionShared | IntentionExclusive, IntentionShared | IntentionExclusive) => false,
            (Shared | IntentionShared, Shared | IntentionShared) => false,
        }
    }
}

/// What a call wants: objects, and how.
pub type Wants = Arc<[(Object, LockMode)]>;

/// So many requests wait at most. Calls beyond that stay unclaimed and are found again by a scan.
pub const CAPACITY: usize = 10_000;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockResult {
    /// It has all of its objects.
    Granted,
    Waits,
    /// It would have to wait, and too many wait. Nothing is known of it.
    Full,
}

/// Whoever is less comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinePlace<K> {
    goes_first: Reverse<bool>,
    due: Timestamp,
    key: K,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    Has,
    /// Noted as blocked there, or else among those that are ready.
    Waits(Option<(Object, LockMode)>),
    Aside,
}

#[derive(Clone, Debug)]
struct LockRequest<K> {
    place: LinePlace<K>,
    wants: Wants,
    state: LockState,
}

/// What there is at one object, by mode.
#[derive(Debug)]
struct LockQueue<K> {
    /// How many requests have it.
    granted: [usize; 4],
    /// Who waits and is in the way of later ones.
    waiting: [BTreeSet<LinePlace<K>>; 4],
    /// Those who wait and are noted here. Each of them has something in its way here: whatever takes that away wakes it.
    noted: [BTreeSet<LinePlace<K>>; 4],
}

impl<K> Default for LockQueue<K> {
    fn default() -> Self {
        Self { granted: [0; 4], waiting: [const { BTreeSet::new() }; 4], noted: [const { BTreeSet::new() }; 4] }
    }
}

impl<K: Copy + Ord> LockQueue<K> {
    fn is_blocked(&self, mode: LockMode, place: &LinePlace<K>) -> bool {
        LockMode::ALL.into_iter().filter(|other| mode.conflicts(*other)).any(|other| {
            self.granted[other as usize] > 0 || self.waiting[other as usize].first().is_some_and(|first| first < place)
        })
    }

    /// Takes out those noted here whose way is free.
    fn take_unblocked(&mut self) -> Vec<LinePlace<K>> {
        let mut free = Vec::new();
        for mode in LockMode::ALL {
            while let Some(first) = self.noted[mode as usize].first().copied() {
                // What blocks one blocks all later ones of its mode too.
                if self.is_blocked(mode, &first) {
                    break;
                }
                self.noted[mode as usize].pop_first();
                free.push(first);
            }
        }
        free
    }

    fn is_empty(&self) -> bool {
        self.granted == [0; 4] && self.waiting.iter().all(BTreeSet::is_empty)
    }
}

/// See the module. `K` names a call.
#[derive(Debug)]
pub struct LockTable<K> {
    capacity: usize,
    objects: HashMap<Object, LockQueue<K>>,
    requests: HashMap<K, LockRequest<K>>,
    has: BTreeSet<K>,
    /// All who wait, in order, also those who have stepped aside.
    line: BTreeSet<LinePlace<K>>,
    /// Those who wait, had nothing in their way when they were last looked at, and have not stepped aside.
    ready: BTreeSet<LinePlace<K>>,
    aside: BTreeSet<LinePlace<K>>,
    /// What this turn has changed, as it was before.
    before: Vec<(K, Option<LockRequest<K>>)>,
}

impl<K: Copy + Ord + Hash> Default for LockTable<K> {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl<K: Copy + Ord + Hash> LockTable<K> {
    /// A table in which so many requests may wait.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            objects: HashMap::new(),
            requests: HashMap::new(),
            has: BTreeSet::new(),
            line: BTreeSet::new(),
            ready: BTreeSet::new(),
            aside: BTreeSet::new(),
            before: Vec::new(),
        }
    }

    /// A call wants these objects. `due` is its due time, and `first` says that it was repeated so often that it goes
    /// before all others. An earlier request of the same call is forgotten.
    pub fn request(&mut self, key: K, due: Timestamp, first: bool, wants: Wants) -> LockResult {
        self.release(key);
        let place = LinePlace { goes_first: Reverse(first), due, key };
        let state = match self.blocked_at(&wants, &place) {
            None => LockState::Has,
            Some(_) if self.line.len() >= self.capacity => return LockResult::Full,
            Some(at) => LockState::Waits(Some(at)),
        };
        self.before.push((key, None));
        self.put(LockRequest { place, wants, state });
        if state == LockState::Has { LockResult::Granted } else { LockResult::Waits }
    }

    /// The call is over, or will not be made: what it has is free, and what it waits for it waits for no longer. Nothing if
    /// the table knows no request of it.
    pub fn release(&mut self, key: K) {
        if let Some(request) = self.take(key) {
            self.before.push((key, Some(request)));
        }
    }

    /// The first requests that wait and have nothing in their way, in order. They may all have their objects together, by
    /// asking again. They wait on, and are in the way of later ones, until then, or until they are released or step aside.
    pub fn ready(&mut self, limit: usize) -> Vec<K> {
        let mut listed: Vec<K> = Vec::new();
        let mut from = self.ready.first().copied();
        while let Some(place) = from.filter(|_| listed.len() < limit) {
            // Since it got ready an earlier one may have come.
            let wants = self.requests.get(&place.key).map(|request| request.wants.clone());
            match wants.and_then(|wants| self.blocked_at(&wants, &place)) {
                None => listed.push(place.key),
                Some(at) => self.note(place, at),
            }
            from = self.ready.range((Bound::Excluded(place), Bound::Unbounded)).next().copied();
        }
        listed
    }

    /// A request that waits can't be granted for reasons of its own: somebody has locked its task, its worker can't be
    /// reached. It keeps its place, is in nobody's way, and is not listed as ready until it is parked again.
    pub fn step_aside(&mut self, key: K) {
        if self.requests.get(&key).is_some_and(|request| matches!(request.state, LockState::Waits(_))) {
            self.change(key, LockState::Aside);
        }
    }

    /// A request that has stepped aside stands in line again.
    pub fn park_again(&mut self, key: K) {
        if self.requests.get(&key).is_some_and(|request| request.state == LockState::Aside) {
            self.change(key, LockState::Waits(None));
        }
    }

    /// Who has stepped aside, in order.
    pub fn aside(&self) -> impl Iterator<Item = &K> {
        self.aside.iter().map(|place| &place.key)
    }

    /// The turn's transaction has committed: what it has changed stays.
    pub fn settle(&mut self) {
        self.before.clear();
    }

    /// The turn's transaction has failed: everything is as it was when the last turn settled.
    pub fn undo(&mut self) {
        for (key, request) in std::mem::take(&mut self.before).into_iter().rev() {
            self.take(key);
            if let Some(request) = request {
                self.put(request);
            }
        }
    }

    /// Whether the call has its objects.
    pub fn has(&self, key: &K) -> bool {
        self.has.contains(key)
    }

    /// Whether the call waits for its objects, also if it has stepped aside.
    pub fn waits(&self, key: &K) -> bool {
        self.requests.get(key).is_some_and(|request| request.state != LockState::Has)
    }

    /// Whether somebody waits for what the call has.
    pub fn is_waited_for(&self, key: &K) -> bool {
        let Some(request) = self.requests.get(key).filter(|request| request.state == LockState::Has) else {
            return false;
        };
        let is_wanted = |(object, mode): &(Object, LockMode)| {
            let queue = self.objects.get(object);
            queue
                .is_some_and(|q| LockMode::ALL.iter().any(|o| mode.conflicts(*o) && !q.waiting[*o as usize].is_empty()))
        };
        request.wants.iter().any(is_wanted)
    }

    /// The calls that have their objects.
    pub fn holding(&self) -> impl Iterator<Item = &K> {
        self.has.iter()
    }

    /// What the call has or waits for.
    pub fn wants(&self, key: &K) -> Option<&[(Object, LockMode)]> {
        self.requests.get(key).map(|request| &*request.wants)
    }

    /// Whether the call goes before all others, because it was repeated too often.
    pub fn goes_first(&self, key: &K) -> bool {
        self.requests.get(key).is_some_and(|request| request.place.goes_first.0)
    }

    /// All calls: first those that wait, in order, then those that have their objects.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.line.iter().map(|place| place.key).chain(self.has.iter().copied())
    }

    /// One of the objects where something is in the way of such a request.
    fn blocked_at(&self, wants: &[(Object, LockMode)], place: &LinePlace<K>) -> Option<(Object, LockMode)> {
        let is_blocked = |(object, mode): &&(Object, LockMode)| {
            self.objects.get(object).is_some_and(|queue| queue.is_blocked(*mode, place))
        };
        wants.iter().find(is_blocked).copied()
    }

    fn change(&mut self, key: K, state: LockState) {
        if let Some(request) = self.take(key) {
            self.put(LockRequest { state, ..request.clone() });
            self.before.push((key, Some(request)));
        }
    }

    /// Puts a request where its state says.
    fn put(&mut self, request: LockRequest<K>) {
        let (place, state) = (request.place, request.state);
        for (object, mode) in request.wants.iter() {
            let queue = match state {
                LockState::Aside => break,
                _ => self.objects.entry(*object).or_default(),
            };
            match state {
                LockState::Has => queue.granted[*mode as usize] += 1,
                _ => _ = queue.waiting[*mode as usize].insert(place),
            }
        }
        match state {
            LockState::Has => self.has.insert(place.key),
            _ => self.line.insert(place),
        };
        if state == LockState::Aside {
            self.aside.insert(place);
        }
        let wants = request.wants.clone();
        self.requests.insert(place.key, request);
        if matches!(state, LockState::Waits(_)) {
            match self.blocked_at(&wants, &place) {
                Some(at) => self.note(place, at),
                None => self.make_ready(place),
            }
        }
    }

    /// Takes a request out, and looks at those whose way may be free now.
    fn take(&mut self, key: K) -> Option<LockRequest<K>> {
        let request = self.requests.remove(&key)?;
        self.has.remove(&key);
        self.line.remove(&request.place);
        self.ready.remove(&request.place);
        self.aside.remove(&request.place);
        if let LockState::Waits(Some((object, mode))) = request.state
            && let Some(queue) = self.objects.get_mut(&object)
        {
            queue.noted[mode as usize].remove(&request.place);
        }
        let mut unblocked = Vec::new();
        for (object, mode) in request.wants.iter().filter(|_| request.state != LockState::Aside) {
            let Some(queue) = self.objects.get_mut(object) else { continue };
            match request.state {
                LockState::Has => queue.granted[*mode as usize] -= 1,
                _ => _ = queue.waiting[*mode as usize].remove(&request.place),
            }
            unblocked.extend(queue.take_unblocked());
            if queue.is_empty() {
                self.objects.remove(object);
            }
        }
        for place in unblocked {
            let wants = self.requests.get(&place.key).map(|request| request.wants.clone());
            match wants.and_then(|wants| self.blocked_at(&wants, &place)) {
                Some(at) => self.note(place, at),
                None => self.make_ready(place),
            }
        }
        Some(request)
    }

    /// Something is in the way of a waiting request at this object.
    fn note(&mut self, place: LinePlace<K>, at: (Object, LockMode)) {
        self.ready.remove(&place);
        self.objects.entry(at.0).or_default().noted[at.1 as usize].insert(place);
        if let Some(request) = self.requests.get_mut(&place.key) {
            request.state = LockState::Waits(Some(at));
        }
    }

    /// Nothing is in the way of a waiting request.
    fn make_ready(&mut self, place: LinePlace<K>) {
        self.ready.insert(place);
        if let Some(request) = self.requests.get_mut(&place.key) {
            request.state = LockState::Waits(None);
        }
    }
}
