//! How much of its time a turn may spend in users' tables.
//!
//! One use of a table has a limit of its own; but a turn has many uses, in one transaction, while everybody else waits. So all
//! of them together get the limit that one has. What is left waits for the next turn, and what needs no table goes first:
//! no slow table costs a step that does not use it more than the rest of one use.
//!
//! ```text
//!   items of a turn:  [ need no table ...... ][ need a table ............ ]
//!                       all of them            until the budget is over    │ the rest: next turn
//! ```

use std::time::Duration;

/// So many uses of tables are guarded by subtransactions of their own in one transaction, at most: more than 64 of them slow
/// down every snapshot of the server.
pub const GUARDS: usize = 32;

/// Less time is none.
const SHORTEST_USE: Duration = Duration::from_millis(1);

/// What a turn may still spend.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: Duration,
    left: Duration,
    guards: usize,
}

impl Budget {
    /// The budget of a turn that begins: `limit` is that of one use too.
    pub fn new(limit: Duration) -> Self {
        Self { limit, left: limit, guards: GUARDS }
    }

    /// A table was used for so long.
    pub fn spent(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// How long the next use may take. None once half of the time is spent: a use that is cut short for lack of time was
    /// made in vain, so it is better begun in the next turn. Who is the first in this turn has all of the time for all of its
    /// uses: it would not get more in any other turn.
    pub fn next_use(&self, is_first: bool) -> Option<Duration> {
        (is_first || self.left * 2 > self.limit).then_some(self.left.max(SHORTEST_USE))
    }

    /// Nothing was spent yet: what runs out of time now has nobody else to blame.
    pub fn is_untouched(&self) -> bool {
        self.left == self.limit
    }

    /// Takes one of the guards of the transaction, if there is one left.
    pub fn take_guard(&mut self) -> bool {
        let has_one = self.guards > 0;
        self.guards = self.guards.saturating_sub(1);
        has_one
    }
}
