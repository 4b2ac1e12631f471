//! The time that one turn may spend in users' tables.

use std::time::Duration;

#[derive(Debug)]
pub struct Budget { limit: Duration, spent: Duration }

impl Budget {
    pub fn new(limit: Duration) -> Self { Self { limit, spent: Duration::ZERO } }
    pub fn limit(&self) -> Duration { self.limit }
    pub fn spent(&mut self, took: Duration) { self.spent += took; }
    /// The longest time of the next use; None: it is put off.
    pub fn next_use(&self) -> Option<Duration> {
        (self.spent * 2 < self.limit || self.spent.is_zero()).then(|| self.limit - self.spent)
    }
}
