//! What is left alone for a moment, because somebody else is at it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(500);

/// How long to leave something alone at most, before the next try.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// A try costs next to nothing.
    Short,
    /// A try costs the engine a wait.
    Long,
}

impl Patience {
    fn longest(self) -> Duration {
        match self {
            Self::Short => LONGEST / 10,
            Self::Long => LONGEST,
        }
    }
}

/// Keys that are left alone until a moment that moves away each time.
#[derive(Debug)]
pub struct Backoff<K> {
    until: HashMap<K, (Instant, Duration)>,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self { until: HashMap::new() }
    }
}

impl<K: Eq + Hash + Copy> Backoff<K> {
    /// Leaves `key` alone for a while, each time longer.
    pub fn defer(&mut self, key: K, now: Instant, patience: Patience) {
        let next = self.until.get(&key).map_or(FIRST, |(_, last)| (*last * 2).min(patience.longest()));
        self.until.insert(key, (now + next, next));
    }

    /// Leaves `key` alone until then.
    pub fn defer_until(&mut self, key: K, until: Instant) {
        self.until.insert(key, (until, LONGEST));
    }

    pub fn is_deferred(&self, key: &K, now: Instant) -> bool {
        self.until.get(key).is_some_and(|(until, _)| *until > now)
    }

    /// Until when `key` is left alone, or was.
    pub fn until(&self, key: &K) -> Option<Instant> {
        self.until.get(key).map(|(until, _)| *until)
    }

    /// Whether `key` was deferred and nothing has gone well since.
    pub fn has(&self, key: &K) -> bool {
        self.until.contains_key(key)
    }

    /// It went well.
    pub fn clear(&mut self, key: &K) {
        self.until.remove(key);
    }

    /// Keys that are left alone now.
    pub fn keys(&self, now: Instant) -> Vec<K> {
        self.until.iter().filter(|(_, (until, _))| *until > now).map(|(key, _)| *key).collect()
    }

    /// When the next key may be tried again.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.until.values().map(|(until, _)| *until).filter(|until| *until > now).min()
    }

    /// Forgets keys whose time came long ago: nobody asks for them any more.
    pub fn forget_old(&mut self, now: Instant) {
        self.until.retain(|_, (until, _)| *until + 20 * LONGEST > now);
    }
}
