//! What was counted of many things where counting costs: how often it is counted again, and how many in one turn.
//!
//! Between two counts what comes is added, and what goes is not taken off. So a count says how many there are at most. Whoever would
//! be over a limit by it is counted again, but not at once after the last time, and not together with many others.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A count is not repeated before.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// After this it is, also of what is within the limit: others may have added something.
const TRUSTED_FOR: Duration = Duration::from_secs(10);

/// So many are counted in one turn.
const AT_ONCE: usize = 4;

/// When more are remembered, all are forgotten.
const REMEMBERED: usize = 10_000;

/// The counts of things, by their keys.
#[derive(Debug)]
pub struct Counted<K> {
    counts: HashMap<K, Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    at_most: usize,
    at: Instant,
}

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<K: Eq + Hash + Copy> Counted<K> {
    /// Which of these, each with what is to be added to it, are to be counted now. Those that never were come first, then those
    /// that were counted longest ago.
    pub fn due(&self, now: Instant, asked: &[(K, usize)], limit: usize) -> Vec<K> {
        let is_due = |known: &Count, new: usize| {
            let age = now.saturating_duration_since(known.at);
            age >= TRUSTED_FOR || age >= AGAIN_AFTER && known.at_most.saturating_add(new) > limit
        };
        let known = asked.iter().map(|(key, new)| (*key, *new, self.counts.get(key)));
        let due = known.filter(|(_, new, known)| known.is_none_or(|known| is_due(known, *new)));
        let mut due: Vec<_> = due.map(|(key, _, known)| (known.map(|known| known.at), key)).collect();
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().take(AT_ONCE).map(|(_, key)| key).collect()
    }

    /// So many there are.
    pub fn counted(&mut self, key: K, count: usize, now: Instant) {
        if self.counts.len() >= REMEMBERED && !self.counts.contains_key(&key) {
            self.counts.clear();
        }
        self.counts.insert(key, Count { at_most: count, at: now });
    }

    /// How many there are at most. None: nobody knows yet.
    pub fn at_most(&self, key: &K) -> Option<usize> {
        self.counts.get(key).map(|known| known.at_most)
    }

    /// So many there are at most, as some were added.
    pub fn added_to(&mut self, key: &K, at_most: usize) {
        if let Some(known) = self.counts.get_mut(key) {
            known.at_most = at_most;
        }
    }
}
