//! How much of what is large one turn takes, so that whoever is behind it does not wait for long.
//!
//! What is small always goes. Of what is large the first one does, and as much more as the portion has room for; the rest is for the
//! turns that follow. One answer that begins 20,000 threads takes as long as hundreds of others, and so does one request with 16 MB of
//! attributes: a few of them in one turn would be seconds for everybody. After a turn with anything large comes one without: whoever
//! came meanwhile is through with it at once.

use crate::bytes::LARGE;

/// What is left of a turn's portion.
#[derive(Clone, Debug)]
pub struct Portion {
    small: usize,
    /// None: nothing large.
    most: Option<usize>,
    taken: usize,
}

impl Portion {
    /// For answers, and timers: rows that they write, a kilobyte counted as one. 4,096 take about 80 ms.
    pub fn of_rows() -> Self {
        Self { small: 32, most: Some(Self::ROWS), taken: 0 }
    }

    /// For states whose timers are due: their bytes. A timer takes about a hundred, so these are as many timers as rows.
    pub fn of_waits() -> Self {
        Self { small: 16 * 1024, most: Some(512 * 1024), taken: 0 }
    }

    /// For messages that are taken in, counted as rows: so many at most in one turn.
    pub fn of_messages(takes_large: bool) -> usize {
        if takes_large { Self::ROWS } else { Self::FEW_MESSAGES }
    }

    /// A turn that takes in more messages than these has taken something large.
    pub const FEW_MESSAGES: usize = Self::ROWS / 4;

    /// See [`Portion::of_rows`].
    pub const ROWS: usize = 4096;

    /// For requests: their bytes. 4 MB take about 40 ms to be read and written.
    pub fn of_bytes() -> Self {
        Self { small: LARGE, most: Some(Self::BYTES), taken: 0 }
    }

    /// With nothing large, unless `takes_large`.
    pub fn or_none(self, takes_large: bool) -> Self {
        Self { most: self.most.filter(|_| takes_large), ..self }
    }

    /// See [`Portion::of_bytes`].
    pub const BYTES: usize = 4 * 1024 * 1024;

    /// Takes something of this size, if it may still go.
    pub fn take(&mut self, size: usize) -> bool {
        if size <= self.small {
            return true;
        }
        let goes = self.most.is_some_and(|most| self.taken == 0 || self.taken + size <= most);
        if goes {
            self.taken += size;
        }
        goes
    }

    /// Takes more for something that has taken `before` already: as if it had asked for all at once. Where it can't, what it had
    /// is there again for others.
    pub fn take_more(&mut self, before: usize, more: usize) -> bool {
        if before > self.small {
            self.taken -= before;
        }
        self.take(before + more)
    }

    /// Whether anything large was taken.
    pub fn has_taken(&self) -> bool {
        self.taken > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_twice_gets_what_it_would_have_got_at_once() {
        let mut portion = Portion { small: 2, most: Some(10), taken: 0 };
        assert!(portion.take(3) && portion.take_more(3, 20), "the first, whatever its size");
        assert!(!portion.take(3));
        let mut portion = Portion { small: 2, most: Some(10), taken: 0 };
        assert!(portion.take(4) && portion.take(3) && portion.take_more(3, 3), "all of it");
        let mut portion = Portion { small: 2, most: Some(10), taken: 0 };
        assert!(
            portion.take(4) && portion.take(3) && !portion.take_more(3, 4) && portion.take(6),
            "others go in its place"
        );
        let mut portion = Portion { small: 2, most: Some(10), taken: 0 };
        assert!(portion.take(2) && portion.take_more(2, 0) && !portion.has_taken());
        assert!(portion.take_more(2, 1) && portion.has_taken());
    }

    #[test]
    fn what_is_small_always_goes_and_of_what_is_large_the_first_and_what_fits() {
        let mut portion = Portion { small: 2, most: Some(10), taken: 0 };
        assert!(portion.take(2) && portion.take(11), "the first, whatever its size");
        assert!(!portion.take(3) && portion.take(1));
        let mut portion = Portion { small: 2, most: Some(10), taken: 0 };
        assert!(portion.take(2) && !portion.has_taken());
        assert!(portion.take(4) && !portion.take(7) && portion.take(6) && !portion.take(3) && portion.take(2));
        let mut none = Portion { small: 2, most: Some(10), taken: 0 }.or_none(false);
        assert!(portion.has_taken() && none.take(2) && !none.take(3) && !none.has_taken());
    }
}
