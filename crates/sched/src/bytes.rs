//! How many bytes one phase of a turn reads or writes, so that a process that comes next does not wait for long.
//!
//! **What is small always goes. Large things go while there are bytes left**: so the first one goes however large it is, and the rest stays
//! where it is, in the backlog or in the tables, for the turns that follow. One answer that begins 20,000 threads takes as long as hundreds
//! of others, and so does one request with 16 MB of attributes: a few of them in one turn would be seconds for everybody.
//!
//! Each phase has a budget of its own: with one for all, answers that come all the time would leave nothing to what comes after them.
//!
//! A turn takes all that is small, and one budget of what is large. So a small step waits for three turns at most: for the one that is
//! under way, for the one that claims its call, and for the one that applies its answer. While turns are short that is enough. One very
//! large thing makes them long: **after a turn that took longer than [`LONG`], the next one takes nothing large**, and the small ones are
//! through with it at once. Nothing else is remembered. Among large things the order is fair, because each phase gives owners turns or
//! goes by age, and the first one goes.

use std::time::Duration;

/// What has more bytes is large.
pub const LARGE: usize = 64 * 1024;

/// The bytes that a row counts for which is written.
pub const ROW: usize = 1024;

/// What one phase takes, and the last thing more. It is about 40 ms of reading and writing JSON, or 80 ms of writing rows.
pub const OF_A_PHASE: usize = 4 * 1024 * 1024;

/// A turn that takes longer has had something large, or was slow otherwise.
pub const LONG: Duration = Duration::from_millis(100);

/// What is left to a phase.
#[derive(Clone, Copy, Debug)]
pub struct ByteBudget {
    left: usize,
}

impl Default for ByteBudget {
    fn default() -> Self {
        Self::of(true)
    }
}

impl ByteBudget {
    /// Of a turn that takes what is large, or does not.
    pub fn of(takes_large: bool) -> Self {
        Self { left: if takes_large { OF_A_PHASE } else { 0 } }
    }

    /// Whatever is large goes.
    pub fn unlimited() -> Self {
        Self { left: usize::MAX }
    }

    /// Takes something of this size, if it may still go.
    pub fn take(&mut self, bytes: usize) -> bool {
        let goes = bytes <= LARGE || !self.is_spent();
        if goes && bytes > LARGE {
            self.spend(bytes);
        }
        goes
    }

    /// These bytes were read, large or not.
    pub fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Nothing large goes any more.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }
}
