//! Locks on attributes: what is locked, and how.

/// What is locked: a hash. Two things of the same hash only wait for each other.
pub type Object = [u8; 16];

/// How something is locked. The intention modes announce locks on parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    IntentionShared,
    IntentionExclusive,
    Shared,
    Exclusive,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::IntentionShared, Mode::IntentionExclusive, Mode::Shared, Mode::Exclusive];

    /// As it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::IntentionShared => "IS",
            Mode::IntentionExclusive => "IX",
            Mode::Shared => "S",
            Mode::Exclusive => "X",
        }
    }

    pub fn parse(text: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// Whether who has this mode needs no other one for `wanted`.
    pub fn covers(self, wanted: Mode) -> bool {
        use Mode::*;
        match self {
            Exclusive => true,
            Shared => matches!(wanted, Shared | IntentionShared),
            IntentionExclusive => matches!(wanted, IntentionExclusive | IntentionShared),
            IntentionShared => wanted == IntentionShared,
        }
    }

    /// Whether two requests can't have the same object at the same time.
    pub fn conflicts(self, other: Mode) -> bool {
        use Mode::*;
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) => true,
            (IntentionExclusive, Shared) | (Shared, IntentionExclusive) => true,
            (IntentionShared | IntentionExclusive, IntentionShared | IntentionExclusive) => false,
            (Shared | IntentionShared, Shared | IntentionShared) => false,
        }
    }
}

/// Where a request stands: those with lower places go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// False sorts before true: what was repeated too often goes before all others.
    in_line: bool,
    due: Timestamp,
}

/// A request as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    order: Order,
    granted: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has all of its objects.
    Granted,
    /// It has none, and its place in line.
    Waits,
    /// It has neither: too many wait.
    Full,
}

use std::collections::BTreeMap;
use xdb_engine::Timestamp;

#[derive(Debug)]
pub struct LockTable<K> { capacity: usize, all: BTreeMap<K, (Place, Vec<(Object, Mode)>)> }

impl<K: Copy + Ord> LockTable<K> {
    pub fn new(capacity: usize) -> Self { Self { capacity, all: BTreeMap::new() } }
    fn free(&self, key: &K, order: Order, wants: &[(Object, Mode)]) -> bool {
        !self.all.iter().any(|(other, (place, objects))| {
            other != key && (place.granted || (place.order, *other) < (order, *key))
                && objects.iter().any(|(o, m)| wants.iter().any(|(p, n)| o == p && m.conflicts(*n)))
        })
    }
    pub fn request(&mut self, key: K, due: Timestamp, first: bool, wants: &[(Object, Mode)]) -> Verdict {
        self.all.remove(&key);
        let order = Order { in_line: !first, due };
        let granted = self.free(&key, order, wants);
        if !granted && self.all.values().filter(|e| !e.0.granted).count() >= self.capacity { return Verdict::Full; }
        self.all.insert(key, (Place { order, granted }, wants.to_vec()));
        if granted { Verdict::Granted } else { Verdict::Waits }
    }
    pub fn release(&mut self, key: &K) { self.all.remove(key); }
    pub fn waits(&self, key: &K) -> bool { self.all.get(key).is_some_and(|e| !e.0.granted) }
    pub fn place(&self, key: &K) -> Option<Place> { self.all.get(key).map(|e| e.0) }
    pub fn restore(&mut self, key: K, place: Place, wants: &[(Object, Mode)]) { self.all.insert(key, (place, wants.to_vec())); }
    pub fn is_waited_for(&self, key: &K) -> bool {
        let Some((_, wants)) = self.all.get(key) else { return false };
        self.all.values().any(|(place, objects)| !place.granted && objects.iter().any(|(o, m)| wants.iter().any(|(p, n)| o == p && m.conflicts(*n))))
    }
    pub fn ready(&self, limit: usize, may_go: impl Fn(&K) -> bool) -> Vec<K> {
        let mut waiting: Vec<_> = self.all.iter().filter(|(_, e)| !e.0.granted).map(|(k, e)| (e.0.order, *k)).collect();
        waiting.sort();
        waiting.into_iter().map(|(_, k)| k).filter(|k| may_go(k) && self.free(k, self.all[k].0.order, &self.all[k].1)).take(limit).collect()
    }
}
