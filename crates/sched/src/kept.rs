//! What is kept because it was expensive to get, and can be had again.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Values with a weight each. While all together weigh too much, those that were used least recently go; what has just come stays,
/// whatever its weight.
#[derive(Debug)]
pub struct Kept<K, V> {
    most: usize,
    weight: usize,
    entries: HashMap<K, KeptValue<V>>,
    /// By when each was used last, counted in uses.
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
    /// Empty. What is kept will weigh so much at most, but for a single value that weighs more.
    pub fn of_at_most(most: usize) -> Self {
        Self { most, weight: 0, entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// A value, which is used by that.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, *key);
        Some(&entry.value)
    }

    /// Keeps a value, in place of the one that was there. Gives back what goes because of it.
    pub fn insert(&mut self, key: K, value: V, weight: usize) -> Vec<V> {
        self.remove(&key);
        self.uses += 1;
        self.weight += weight;
        self.entries.insert(key, KeptValue { value, weight, used: self.uses });
        self.by_use.insert(self.uses, key);
        let mut gone = Vec::new();
        while self.weight > self.most
            && self.entries.len() > 1
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            gone.extend(self.remove(&oldest));
        }
        gone
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.by_use.remove(&entry.used);
        self.weight -= entry.weight;
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_least_recently_goes_and_what_has_just_come_stays() {
        let mut kept = Kept::of_at_most(10);
        assert!(kept.insert(1, "a", 4).is_empty() && kept.insert(2, "b", 4).is_empty());
        assert_eq!(kept.get(&1), Some(&"a"));
        assert_eq!(kept.insert(3, "c", 4), ["b"]);
        assert_eq!([1, 2, 3].map(|key| kept.get(&key).copied()), [Some("a"), None, Some("c")]);
        assert_eq!(kept.insert(4, "large", 100), ["a", "c"]);
        assert_eq!(kept.get(&4), Some(&"large"));
        assert_eq!(kept.insert(5, "d", 1), ["large"]);
    }

    #[test]
    fn a_value_takes_the_place_of_its_predecessor_and_of_its_weight() {
        let mut kept = Kept::of_at_most(10);
        for weight in [3, 9, 2] {
            assert!(kept.insert(1, weight, weight).is_empty());
        }
        assert!(kept.insert(2, 0, 8).is_empty(), "the first one weighs 2 now");
        assert_eq!(kept.remove(&1), Some(2));
        assert_eq!(kept.remove(&1), None);
        assert!(kept.insert(3, 0, 2).is_empty());
    }
}
