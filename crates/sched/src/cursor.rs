//! Where a scan for due work begins.
//!
//! What was taken stays in an index until vacuum may remove it, and one old snapshot is enough to keep it there: a scan that
//! begins at the head walks over all of it. So a scan begins at the cursor, behind which nothing was left the last time;
//! whoever adds something behind it says so. A scan from the head is made all the same, as often as its cost permits: it finds
//! what came back without a word, as after the rollback of somebody who had a row locked.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Scans from the head take no more than one part in so many of the time.
const SHARE: u32 = 20;

/// Cursors of the scans of one kind, each with a key, in an order that `T` gives.
#[derive(Debug)]
pub struct Cursors<K, T> {
    from: HashMap<K, T>,
    /// When a scan may begin at the head again.
    head_at: Option<Instant>,
}

impl<K, T> Default for Cursors<K, T> {
    fn default() -> Self {
        Self { from: HashMap::new(), head_at: None }
    }
}

impl<K: Eq + Hash, T: Ord + Copy> Cursors<K, T> {
    /// Whether the next scan is to begin at the head.
    pub fn from_head(&self, now: Instant) -> bool {
        self.head_at.is_none_or(|at| at <= now)
    }

    /// Where the next scan of this key begins, if not at the head: `None` is the head all the same.
    pub fn from(&self, key: &K) -> Option<T> {
        self.from.get(key).copied()
    }

    /// A scan from the head ended now and took so long.
    pub fn scanned(&mut self, now: Instant, took: Duration) {
        self.head_at = Some(now + took * SHARE);
    }

    /// Nothing is left behind `to`. Only when the transaction that scanned has committed: what it took is there again after
    /// a rollback.
    pub fn advance(&mut self, key: K, to: T) {
        self.from.insert(key, to);
    }

    /// There is something at `to`, or later.
    pub fn lower(&mut self, to: T) {
        self.from.values_mut().filter(|from| **from > to).for_each(|from| *from = to);
    }
}
