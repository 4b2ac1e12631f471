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
//!
//! A turn uses tables in three [parts](Part), one after the other. Each part begins with what has waited longest. Where the
//! time is too short for a part, that part is the first to use tables in one of the next turns ([`Parts`]); those before it wait
//! for a turn. So nothing waits forever because of what comes before it; and what is slow comes first some time, and runs into a
//! limit that nobody else has used up.

use std::time::Duration;

/// So many items are applied in one transaction where each use of a table is guarded by a subtransaction of its own. An answer
/// uses tables twice at most, to lock the rows that its call has read and to write: that makes 32 subtransactions. More than 64
/// slow down every snapshot of the server.
pub const GUARDED_ITEMS: usize = 16;

/// Less time is none.
const SHORTEST_USE: Duration = Duration::from_millis(1);

/// The parts of a turn that use tables, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Answers are applied.
    Answers,
    /// Answers that close their executions: these need another lock first.
    Closing,
    /// The attributes of calls are read.
    Calls,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Answers, Part::Closing, Part::Calls];
}

/// Which part of the next turn is the first to use tables. It outlasts the turns.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    first: Part,
    /// For these the time was too short since then.
    short: [bool; Part::ALL.len()],
}

impl Default for Parts {
    fn default() -> Self {
        Self { first: Part::Answers, short: [false; Part::ALL.len()] }
    }
}

impl Parts {
    /// A turn begins: the part that is its first one. They take turns, as far as their time was too short.
    pub fn begin_turn(&mut self) -> Part {
        let after = |step: usize| Part::ALL[(self.first as usize + step) % Part::ALL.len()];
        let next = (1..=Part::ALL.len()).map(after).find(|part| self.short[*part as usize]);
        *self = Self { first: next.unwrap_or(Part::Answers), ..Self::default() };
        self.first
    }

    /// A turn begins in which answers get no time: its first part is that of the calls, which have had their turn then. Whose turn
    /// comes next stays as it is.
    pub fn begin_rest(&mut self) -> Part {
        self.short[Part::Calls as usize] = false;
        Part::Calls
    }

    /// The time was too short for something in this part.
    pub fn was_short(&mut self, part: Part) {
        self.short[part as usize] = true;
    }
}

/// What a turn may still spend.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: Duration,
    left: Duration,
    /// Nothing is for the parts before this one.
    first: Part,
    part: Part,
}

impl Budget {
    /// The budget of a turn that begins: `limit` is that of one use too.
    pub fn new(limit: Duration, first: Part) -> Self {
        Self { limit, left: limit, first, part: Part::Answers }
    }

    /// The uses that follow are those of this part.
    pub fn begin_part(&mut self, part: Part) {
        self.part = part;
    }

    /// The part that was begun last.
    pub fn part(&self) -> Part {
        self.part
    }

    /// A table was used for so long.
    pub fn spent(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// How long the next use may take. None before the first part of this turn. None once half of the time is spent: a use that
    /// is cut short for lack of time was made in vain, so it is better begun in the next turn. Who is the first in this turn has
    /// all of the time for all of its uses: it would not get more in any other turn.
    pub fn next_use(&self, is_first: bool) -> Option<Duration> {
        let has_time = is_first || self.left * 2 > self.limit;
        (self.part >= self.first && has_time).then_some(self.left.max(SHORTEST_USE))
    }

    /// Nothing was spent yet: what runs out of time now has nobody else to blame.
    pub fn is_untouched(&self) -> bool {
        self.left == self.limit
    }
}
