//! A cache: values that are expensive to get, and can be read again.
//!
//! Limitations: weights are the caller's estimates. A single value that is too heavy is kept all the same.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Values with a weight each. While their sum exceeds the limit, the least recently used value is removed. The value
/// that was inserted last stays, whatever its weight.
#[derive(Debug)]
pub struct Kept<K, V> {
    most: usize,
    weight: usize,
    entries: HashMap<K, KeptValue<V>>,
    /// Keys by their last use, counted in uses.
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

#[derive(Debug)]
struct KeptValue<V> {
    value: V,
    weight: usize,
    used: u64,
}

impl<K: Copy + Eq + Hash, V> Kept<K, V> {
    /// An empty cache for values that weigh up to `most` together.
    pub fn of_at_most(most: usize) -> Self {
        Self { most, weight: 0, entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// A value. This counts as a use.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *key);
        Some(&entry.value)
    }

    /// Inserts a value in place of an earlier one. Returns the values that were removed because of the limit.
    pub fn insert(&mut self, key: K, value: V, weight: usize) -> Vec<V> {
        self.remove(&key);
        self.uses += 1;
        self.weight += weight;
        self.entries.insert(key, KeptValue { value, weight, used: self.uses });
        self.by_use.insert(self.uses, key);
        let mut evicted = Vec::new();
        while self.weight > self.most
            && self.entries.len() > 1
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            evicted.extend(self.remove(&oldest));
        }
        evicted
    }

    /// Removes a value. None: it is not kept.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.by_use.remove(&entry.used);
        self.weight -= entry.weight;
        Some(entry.value)
    }
}
