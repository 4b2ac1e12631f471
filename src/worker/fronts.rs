//! Where looks for due work begin.
//!
//! What was taken stays in an index until vacuum may remove it, and one old snapshot is enough to keep it there: a look that
//! begins at the beginning walks over all of it. So a look begins at the front, behind which nothing was left the last time;
//! whoever adds something behind it says so. A look at everything is made all the same, as often as its cost permits: it finds
//! what came back without a word, as after the rollback of somebody who had a row locked.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Looks at everything take no more than one part in so many of the time.
const SHARE: u32 = 20;

/// Fronts of the looks of one kind, each with a key, in an order that `T` gives.
#[derive(Debug)]
pub struct Fronts<K, T> {
    from: HashMap<K, T>,
    /// When everything may be looked at again.
    full_at: Option<Instant>,
}

impl<K, T> Default for Fronts<K, T> {
    fn default() -> Self {
        Self { from: HashMap::new(), full_at: None }
    }
}

impl<K: Eq + Hash, T: Ord + Copy> Fronts<K, T> {
    /// Whether the next look is to be one at everything.
    pub fn full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|at| at <= now)
    }

    /// Where the next look of this key begins, if it is not at everything: `None` is the beginning.
    pub fn from(&self, key: &K) -> Option<T> {
        self.from.get(key).copied()
    }

    /// A look at everything ended now and took so long.
    pub fn looked(&mut self, now: Instant, took: Duration) {
        self.full_at = Some(now + took * SHARE);
    }

    /// Nothing is left behind `to`. Only when the transaction that looked has committed: what it took is there again after
    /// a rollback.
    pub fn advance(&mut self, key: K, to: T) {
        self.from.insert(key, to);
    }

    /// There is something at `to`, or later.
    pub fn lower(&mut self, to: T) {
        self.from.values_mut().filter(|from| **from > to).for_each(|from| *from = to);
    }
}
