//! Keys that are deferred after a failed try, because of a lock or an error: the backoff grows with each try.
//!
//! Limitations: keys that were not deferred again for 10 seconds are forgotten, and begin with the shortest backoff.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(500);

/// How long the backoff may grow.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// A try costs next to nothing. Up to 50 ms.
    Short,
    /// A try makes the engine wait. Up to 500 ms.
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

/// Keys, until when each is deferred, and its last backoff.
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
    /// Defers `key`, with twice its last backoff.
    pub fn defer(&mut self, key: K, now: Instant, patience: Patience) {
        let next = self.until.get(&key).map_or(FIRST, |(_, last)| (*last * 2).min(patience.longest()));
        self.until.insert(key, (now + next, next));
    }

    /// Defers `key` until this moment. The next backoff is the longest one.
    pub fn defer_until(&mut self, key: K, until: Instant) {
        self.until.insert(key, (until, LONGEST));
    }

    /// Whether `key` is deferred now.
    pub fn is_deferred(&self, key: &K, now: Instant) -> bool {
        self.until.get(key).is_some_and(|(until, _)| *until > now)
    }

    /// Until when `key` is or was deferred.
    pub fn until(&self, key: &K) -> Option<Instant> {
        self.until.get(key).map(|(until, _)| *until)
    }

    /// Whether `key` was deferred and not cleared since.
    pub fn has(&self, key: &K) -> bool {
        self.until.contains_key(key)
    }

    /// Forgets `key` after a success.
    pub fn clear(&mut self, key: &K) {
        self.until.remove(key);
    }

    /// Keys that are deferred now.
    pub fn keys(&self, now: Instant) -> Vec<K> {
        self.until.iter().filter(|(_, (until, _))| *until > now).map(|(key, _)| *key).collect()
    }

    /// When the next deferred key may be tried again.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.until.values().map(|(until, _)| *until).filter(|until| *until > now).min()
    }

    /// Forgets keys whose deferral ended long ago: they have no use any more.
    pub fn forget_old(&mut self, now: Instant) {
        self.until.retain(|_, (until, _)| *until + 20 * LONGEST > now);
    }
}
