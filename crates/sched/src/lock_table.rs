//! Locks on attributes: which calls hold which ones, and which calls wait for them.
//!
//! Locks only keep calls from conflicting with each other. The optimistic check ensures that an answer fits the values
//! from which it was computed. So this table may be lost at any moment: then calls request their locks again.
//!
//! ```text
//!              granted at once
//!   request ───────────────────────────────► HAS ── release ──► removed
//!      │                                      ▲
//!      │ it is blocked                        │ request again
//!      ▼                                      │
//!    WAITS ── ready() lists it when nothing blocks it any more
//!      │  ▲
//!      │  │ park_again
//!      ▼  │ step_aside: it could have its objects, but can't be called now
//!    ASIDE    keeps its position, and blocks no other request
//! ```
//!
//! A request names all its objects at once, and gets all of them or none. A waiting request holds nothing, so there are
//! no deadlocks. Requests have positions in one order: calls that were repeated too often come first, then earlier due
//! times. A request is *blocked* at an object if a conflicting request holds that object, or waits for it with an
//! earlier position. So no later request overtakes a request that it conflicts with. A request without such conflicts
//! passes. A position depends only on the request: a call that is released and requests again gets the same position.
//!
//! The changes of a turn are undone if its transaction fails: see [`LockTable::undo`].
//!
//! **Cost.** Each waiting request is noted at one object where it is blocked. When a request leaves an object, only the
//! requests noted there that are not blocked there any more are checked. So the cost of a release depends on how many
//! requests can then go on, and not on how many wait.
//!
//! Limitations: at most [`CAPACITY`] requests wait. There is no timeout. Calls that end release their locks.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;
use xdb_engine::Timestamp;

/// What is locked: a hash. Two things with the same hash only wait for each other.
pub type LockObject = [u8; 16];

/// How an object is locked. The intention modes announce locks on parts of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectMode {
    IntentionShared,
    IntentionExclusive,
    Shared,
    Exclusive,
}

impl ObjectMode {
    pub const ALL: [ObjectMode; 4] =
        [ObjectMode::IntentionShared, ObjectMode::IntentionExclusive, ObjectMode::Shared, ObjectMode::Exclusive];

    /// Whether two requests with these modes can't hold the same object at the same time.
    pub fn conflicts(self, other: ObjectMode) -> bool {
        use ObjectMode::*;
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => true,
            (IntentionExclusive, Shared) | (Shared, IntentionExclusive) => true,
            (IntentionShared | IntentionExclusive, IntentionShared | IntentionExclusive) => false,
            (Shared | IntentionShared, Shared | IntentionShared) => false,
        }
    }
}

/// What a call wants: objects and modes.
pub type Wants = Arc<[(LockObject, ObjectMode)]>;

/// The most requests that wait. Calls beyond that stay unclaimed and are found again by a scan.
pub const CAPACITY: usize = 10_000;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockResult {
    /// The call holds all its objects.
    Granted,
    /// The call waits, and holds nothing.
    Waits,
    /// The call would have to wait, and too many calls wait. The table knows nothing of it.
    Full,
}

/// The position of a request. The smallest position comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinePlace<K> {
    goes_first: Reverse<bool>,
    due: Timestamp,
    key: K,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    /// It holds all its objects.
    Has,
    /// Some: it is noted at this object, where it is blocked. None: it is in `ready`.
    Waits(Option<(LockObject, ObjectMode)>),
    /// It waits and has stepped aside.
    Aside,
}

#[derive(Clone, Debug)]
struct LockRequest<K> {
    place: LinePlace<K>,
    wants: Wants,
    state: LockState,
}

/// The requests for one object, by mode.
#[derive(Debug)]
struct LockQueue<K> {
    /// How many requests hold the object.
    granted: [usize; 4],
    /// Waiting requests, which block later ones. Requests that stepped aside are not here.
    waiting: [BTreeSet<LinePlace<K>>; 4],
    /// Waiting requests that are noted here. Each is blocked here: a change that unblocks it moves it out of here.
    noted: [BTreeSet<LinePlace<K>>; 4],
}

impl<K> Default for LockQueue<K> {
    fn default() -> Self {
        Self { granted: [0; 4], waiting: [const { BTreeSet::new() }; 4], noted: [const { BTreeSet::new() }; 4] }
    }
}

impl<K: Copy + Ord> LockQueue<K> {
    fn is_blocked(&self, mode: ObjectMode, place: &LinePlace<K>) -> bool {
        ObjectMode::ALL.into_iter().filter(|other| mode.conflicts(*other)).any(|other| {
            self.granted[other as usize] > 0 || self.waiting[other as usize].first().is_some_and(|first| first < place)
        })
    }

    /// Takes out the noted requests that are not blocked here any more.
    fn take_unblocked(&mut self) -> Vec<LinePlace<K>> {
        let mut free = Vec::new();
        for mode in ObjectMode::ALL {
            while let Some(first) = self.noted[mode as usize].first().copied() {
                // What blocks a request also blocks all later ones of its mode.
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
    objects: HashMap<LockObject, LockQueue<K>>,
    requests: HashMap<K, LockRequest<K>>,
    /// Calls that hold their objects.
    has: BTreeSet<K>,
    /// All waiting requests in order, including requests that stepped aside.
    line: BTreeSet<LinePlace<K>>,
    /// Waiting requests that were not blocked when they were checked last, and that have not stepped aside.
    ready: BTreeSet<LinePlace<K>>,
    /// Requests that have stepped aside.
    aside: BTreeSet<LinePlace<K>>,
    /// The values from before this turn, of everything that the turn has changed.
    before: Vec<(K, Option<LockRequest<K>>)>,
}

impl<K: Copy + Ord + Hash> Default for LockTable<K> {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl<K: Copy + Ord + Hash> LockTable<K> {
    /// A table in which up to `capacity` requests may wait.
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

    /// Requests objects for a call. `first`: the call was repeated too often, so it goes before all others. An earlier
    /// request of the same call is released.
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

    /// Releases what a call holds or waits for: the call is over, or will not be made. Does nothing if the table has no
    /// request of the call.
    pub fn release(&mut self, key: K) {
        if let Some(request) = self.take(key) {
            self.before.push((key, Some(request)));
        }
    }

    /// The first waiting requests that are not blocked, in order. All of them can be granted together, by requesting
    /// again. Until then they wait and block later ones, unless they are released or step aside.
    pub fn ready(&mut self, limit: usize) -> Vec<K> {
        let mut listed: Vec<K> = Vec::new();
        let mut from = self.ready.first().copied();
        while let Some(place) = from.filter(|_| listed.len() < limit) {
            // An earlier request may have come since this one became ready.
            let wants = self.requests.get(&place.key).map(|request| request.wants.clone());
            match wants.and_then(|wants| self.blocked_at(&wants, &place)) {
                None => listed.push(place.key),
                Some(at) => self.note(place, at),
            }
            from = self.ready.range((Bound::Excluded(place), Bound::Unbounded)).next().copied();
        }
        listed
    }

    /// A waiting request can't be granted for its own reasons: another transaction has locked its task, or its worker
    /// can't be reached. It keeps its position, blocks no other request, and is not listed as ready until it is parked
    /// again.
    pub fn step_aside(&mut self, key: K) {
        if self.requests.get(&key).is_some_and(|request| matches!(request.state, LockState::Waits(_))) {
            self.change(key, LockState::Aside);
        }
    }

    /// A request that has stepped aside queues up again.
    pub fn park_again(&mut self, key: K) {
        if self.requests.get(&key).is_some_and(|request| request.state == LockState::Aside) {
            self.change(key, LockState::Waits(None));
        }
    }

    /// Calls that have stepped aside, in order.
    pub fn aside(&self) -> impl Iterator<Item = &K> {
        self.aside.iter().map(|place| &place.key)
    }

    /// The turn's transaction has committed: its changes stay.
    pub fn settle(&mut self) {
        self.before.clear();
    }

    /// The turn's transaction has failed: the table is as it was after the last [`LockTable::settle`].
    pub fn undo(&mut self) {
        for (key, request) in std::mem::take(&mut self.before).into_iter().rev() {
            self.take(key);
            if let Some(request) = request {
                self.put(request);
            }
        }
    }

    /// Whether the call holds its objects.
    pub fn has(&self, key: &K) -> bool {
        self.has.contains(key)
    }

    /// Whether the call waits for its objects. True also if it has stepped aside.
    pub fn waits(&self, key: &K) -> bool {
        self.requests.get(key).is_some_and(|request| request.state != LockState::Has)
    }

    /// Whether another call waits for an object that the call holds.
    pub fn is_waited_for(&self, key: &K) -> bool {
        let Some(request) = self.requests.get(key).filter(|request| request.state == LockState::Has) else {
            return false;
        };
        let is_wanted = |(object, mode): &(LockObject, ObjectMode)| {
            let queue = self.objects.get(object);
            queue.is_some_and(|q| {
                ObjectMode::ALL.iter().any(|o| mode.conflicts(*o) && !q.waiting[*o as usize].is_empty())
            })
        };
        request.wants.iter().any(is_wanted)
    }

    /// The calls that hold their objects.
    pub fn holding(&self) -> impl Iterator<Item = &K> {
        self.has.iter()
    }

    /// What the call holds or waits for.
    pub fn wants(&self, key: &K) -> Option<&[(LockObject, ObjectMode)]> {
        self.requests.get(key).map(|request| &*request.wants)
    }

    /// Whether the call goes before all others, because it was repeated too often.
    pub fn goes_first(&self, key: &K) -> bool {
        self.requests.get(key).is_some_and(|request| request.place.goes_first.0)
    }

    /// All calls: first the waiting ones in order, then the ones with their objects.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.line.iter().map(|place| place.key).chain(self.has.iter().copied())
    }

    /// One of the objects where such a request is blocked.
    fn blocked_at(&self, wants: &[(LockObject, ObjectMode)], place: &LinePlace<K>) -> Option<(LockObject, ObjectMode)> {
        let is_blocked = |(object, mode): &&(LockObject, ObjectMode)| {
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

    /// Inserts a request into the sets of its state.
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

    /// Removes a request, and checks the requests that it may have blocked.
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

    /// Notes a waiting request at an object where it is blocked.
    fn note(&mut self, place: LinePlace<K>, at: (LockObject, ObjectMode)) {
        self.ready.remove(&place);
        self.objects.entry(at.0).or_default().noted[at.1 as usize].insert(place);
        if let Some(request) = self.requests.get_mut(&place.key) {
            request.state = LockState::Waits(Some(at));
        }
    }

    /// Lists a waiting request as ready: it is not blocked.
    fn make_ready(&mut self, place: LinePlace<K>) {
        self.ready.insert(place);
        if let Some(request) = self.requests.get_mut(&place.key) {
            request.state = LockState::Waits(None);
        }
    }
}
