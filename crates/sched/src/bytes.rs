//! How many bytes one phase of a turn reads or writes, so that turns stay short.
//!
//! **Small things always go. Large things go while bytes are left.** So the first large thing goes whatever its size.
//! The rest stays in the backlog or in the tables, for later turns. One answer that begins 20,000 threads takes as long
//! as hundreds of other answers. So does one request with 16 MB of attributes. A few large things in one turn would
//! delay all processes for seconds.
//!
//! Each phase has its own budget. With a common one, a steady flow of answers would leave nothing for the later phases.
//!
//! A turn takes everything small, and one budget of large things. So a small step waits for at most three turns: the
//! one under way, the one that claims its call, and the one that applies its answer. While turns are short, that is
//! enough. One very large thing makes them long. So **after a turn that took longer than [`LONG`], the next one takes
//! nothing large**, and small steps get through. Nothing else is remembered. The order among large things is fair: each
//! phase gives owners turns or goes by age, and the first one goes.
//!
//! Limitations: sizes are estimates of the callers, made before the work.

use std::time::Duration;

/// A thing with more bytes than this is large.
pub const LARGE: usize = 64 * 1024;

/// How many bytes a written row counts.
pub const ROW: usize = 1024;

/// The budget of one phase. The last large thing may exceed it. The budget is about 40 ms of reading and writing JSON,
/// or 80 ms of writing rows.
pub const OF_A_PHASE: usize = 4 * 1024 * 1024;

/// A turn that took longer had something large, or was slow for another reason.
pub const LONG: Duration = Duration::from_millis(100);

/// What is left for a phase.
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
    /// The budget in a turn that takes large things, or in one that does not.
    pub fn of(takes_large: bool) -> Self {
        Self { left: if takes_large { OF_A_PHASE } else { 0 } }
    }

    /// A budget without a limit.
    pub fn unlimited() -> Self {
        Self { left: usize::MAX }
    }

    /// Takes a thing of this size. Returns whether it may go.
    pub fn take(&mut self, bytes: usize) -> bool {
        let goes = bytes <= LARGE || !self.is_spent();
        if goes && bytes > LARGE {
            self.spend(bytes);
        }
        goes
    }

    /// Spends bytes that were read or written, large or not.
    pub fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Whether nothing large may go any more.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }
}
