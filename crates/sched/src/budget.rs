//! How much of its time a turn may spend in the application's tables.
//!
//! One use of a table has a time limit. But a turn is one transaction with many uses, and all other processes wait for
//! it. So all uses together get the limit of one. What is left waits for the next turn, and items without tables come
//! first. So a slow table costs other steps at most the rest of one use.
//!
//! ```text
//!   items of a turn:  [ need no table ...... ][ need a table ............ ]
//!                       all of them            until the budget is spent   │ the rest: next turn
//! ```
//!
//! A turn uses tables in three [parts](TurnPart), one after the other. Each part begins with the item that has waited
//! longest. If the time is too short for a part, one of the next turns begins with that part ([`Parts`]). The parts
//! before it wait for a turn. So no part waits forever, and a slow use comes first at some time. Then it reaches a
//! limit that no other use has used up.
//!
//! Limitations: time is only checked before a use. The caller limits each use with a statement timeout.

use std::time::Duration;

/// The most items in one transaction in which each use of a table has its own subtransaction. An answer uses tables at
/// most twice: to lock the rows that its call has read, and to write. That makes 32 subtransactions. More than 64 slow
/// down every snapshot of the server.
pub const GUARDED_ITEMS: usize = 16;

/// The shortest time limit of a use.
const SHORTEST_USE: Duration = Duration::from_millis(1);

/// The parts of a turn that use tables, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnPart {
    /// Answers are applied.
    Answers,
    /// Answers that close their executions are applied: these need another lock first.
    Closing,
    /// The attributes of calls are read.
    Calls,
}

impl TurnPart {
    pub const ALL: [TurnPart; 3] = [TurnPart::Answers, TurnPart::Closing, TurnPart::Calls];
}

/// Which part of the next turn is the first to use tables. It outlasts the turns.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    first: TurnPart,
    /// The parts for which the time was too short since then.
    short: [bool; TurnPart::ALL.len()],
}

impl Default for Parts {
    fn default() -> Self {
        Self { first: TurnPart::Answers, short: [false; TurnPart::ALL.len()] }
    }
}

impl Parts {
    /// Begins a turn, and returns its first part. Parts whose time was too short take turns.
    pub fn begin_turn(&mut self) -> TurnPart {
        let after = |step: usize| TurnPart::ALL[(self.first as usize + step) % TurnPart::ALL.len()];
        let next = (1..=TurnPart::ALL.len()).map(after).find(|part| self.short[*part as usize]);
        *self = Self { first: next.unwrap_or(TurnPart::Answers), ..Self::default() };
        self.first
    }

    /// Begins a turn in which answers get no time. Its first part is `Calls`, which has had its turn then. The order of
    /// the other parts stays.
    pub fn begin_rest(&mut self) -> TurnPart {
        self.short[TurnPart::Calls as usize] = false;
        TurnPart::Calls
    }

    /// The time was too short for a use in this part.
    pub fn was_short(&mut self, part: TurnPart) {
        self.short[part as usize] = true;
    }
}

/// The time that a turn may still spend.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: Duration,
    left: Duration,
    /// Parts before this one get no time.
    first: TurnPart,
    part: TurnPart,
}

impl Budget {
    /// The budget of a turn. `limit` is the time limit of one use too.
    pub fn new(limit: Duration, first: TurnPart) -> Self {
        Self { limit, left: limit, first, part: TurnPart::Answers }
    }

    /// The uses that follow belong to this part.
    pub fn begin_part(&mut self, part: TurnPart) {
        self.part = part;
    }

    /// The part that was begun last.
    pub fn part(&self) -> TurnPart {
        self.part
    }

    /// A use took this time.
    pub fn spent(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// The time limit of the next use. None: a part before the first one, or half of the time is spent. A use that is
    /// cut short was made in vain, so it is better begun in the next turn. The first item of a turn may use all of the
    /// time: no other turn would give it more.
    pub fn next_use(&self, is_first: bool) -> Option<Duration> {
        let has_time = is_first || self.left * 2 > self.limit;
        (self.part >= self.first && has_time).then_some(self.left.max(SHORTEST_USE))
    }

    /// Whether no time was spent yet. Then a use that reaches the limit is slow itself.
    pub fn is_untouched(&self) -> bool {
        self.left == self.limit
    }
}
