//! Where a scan for due work begins: at a cursor with a margin of time, or at the head.
//!
//! What was taken stays in an index until vacuum may remove it, and one old snapshot is enough to keep all of it there: a scan
//! from the head walks over it. So a scan begins where the cursor was a margin of time ago.
//!
//! ```text
//!   head                       a margin ago      cursor       now
//!   │ taken, dead, not yet gone │ ............... │ due, free │
//!   └── from the head ──────────┴── from the cursor ──────────►
//! ```
//!
//! Correctness never depends on the cursor. A scan from the head finds whatever is there, and is made at least once per poll
//! interval, and more often as long as these scans take no more than a twentieth of the time: while nothing is dead in the
//! index, that is nearly every time. (One that takes longer than the poll interval leaves as much time to others as it took.)
//! So all that a cursor can cost is a wait of one poll interval.
//!
//! What gets behind a cursor, and who brings it to light:
//!
//! - **What commits later than others that are due later.** Due times and ids are given out before the commit. Within the
//!   margin the next scan sees it, as it begins where the cursor was when they were given out, or before. What was open for
//!   longer, the head finds. Nobody has to tell due times along with a wake-up.
//! - **What a scan found and left**, because there was no room or its table was busy: the caller knows it, and advances the
//!   cursor no further than that ([`DueScan::advance`]).
//! - **What a scan stopped before**, because it had found enough: the cursor stays at the last that it found.
//! - **What a scan left out or passed over**: executions in backoff, rows that others had locked and gave back by a
//!   rollback, leases that ended. The head finds it. Nothing is asked about them, in SQL or otherwise.
//! - **What a turn took that fails.** A cursor is advanced after the commit alone.
//! - **What a scan from the head did not look for**, because there was no room under its key: the caller forgets that cursor
//!   ([`DueScan::retain`]).
//! - **What is put under another key, or back to an earlier time**: calls that move to another worker or lane. Whoever moves
//!   them forgets the cursors ([`DueScan::forget_all`]).
//! - **What is the first under a key**: keys are known from the head. Until it is asked, nothing is scanned under a new one.
//! - **Due times of a clock that was set back.** The first scan after that puts the cursor back to where the clock is; what
//!   was written before that scan and lies further back, the head finds.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Scans from the head take no more than one part in so many of the time, unless the poll interval asks for it.
const SHARE: u32 = 20;

/// What has a commit to wait for takes less, nearly always; and what is taken in so much time is walked over again by every
/// scan.
pub const MARGIN: Duration = Duration::from_millis(50);

/// A place that moves on, and remembers where it was.
#[derive(Clone, Copy, Debug)]
struct ScanCursor<T> {
    at: T,
    /// Where it was at `marked_at`, or further back. None is the head.
    mark: Option<T>,
    marked_at: Instant,
    /// Where it was a margin before `marked_at`, or further back.
    behind: Option<T>,
}

/// The scans of one kind: calls, timers or messages. `K` is what each has a cursor for, a worker and an owner; `T` is
/// the order of the scan, a due time or an id.
#[derive(Debug)]
pub struct DueScan<K, T> {
    cursors: HashMap<K, ScanCursor<T>>,
    /// When the next scan from the head is to be made. At once, if never.
    head_at: Option<Instant>,
    /// Something may be behind a cursor.
    is_behind: bool,
}

impl<K, T> Default for DueScan<K, T> {
    fn default() -> Self {
        Self { cursors: HashMap::new(), head_at: None, is_behind: false }
    }
}

impl<K: Eq + Hash, T: Ord + Copy> DueScan<K, T> {
    /// Whether the next scan is to begin at the head, for all keys.
    pub fn from_head(&self, now: Instant) -> bool {
        self.head_at.is_none_or(|at| at <= now)
    }

    /// The next scan begins at the head.
    pub fn from_head_again(&mut self) {
        self.head_at = None;
    }

    /// Something may be behind a cursor: the next scan from the head is waited for.
    pub fn may_be_behind(&mut self) {
        self.is_behind = true;
    }

    /// When to scan from the head because something may be behind a cursor. None: nothing is, or the next scan begins there
    /// anyhow.
    pub fn behind_at(&self) -> Option<Instant> {
        self.head_at.filter(|_| self.is_behind)
    }

    /// Where a scan for this key begins, itself included, if not at the head. None: at the head too.
    pub fn from(&self, key: &K) -> Option<T> {
        self.cursors.get(key).and_then(|cursor| cursor.behind)
    }

    /// A scan from the head has ended now and took so long. Also if its transaction fails later: the time is spent.
    pub fn scanned_from_head(&mut self, now: Instant, took: Duration, poll_interval: Duration) {
        self.is_behind = false;
        self.head_at = Some(now + (took * SHARE).min(poll_interval.max(took)));
    }

    /// The transaction of a scan has committed that began at `began`: nothing that it could see and that is free is left
    /// before `to`. That is the last that it found, if it stopped there because that was enough; else the time up to which
    /// it looked, or the last id that it saw. And it is no more than the first that it found and left.
    pub fn advance(&mut self, key: K, to: T, began: Instant) {
        let new = || ScanCursor { at: to, mark: None, marked_at: began, behind: None };
        let cursor = self.cursors.entry(key).or_insert_with(new);
        if began.saturating_duration_since(cursor.marked_at) >= MARGIN {
            cursor.behind = cursor.mark;
            cursor.mark = Some(cursor.at);
            cursor.marked_at = began;
        }
        cursor.at = to;
        cursor.mark = cursor.mark.min(Some(to));
        cursor.behind = cursor.behind.min(Some(to));
    }

    /// Forgets the cursors of all other keys: the next scans for these begin at the head.
    pub fn retain(&mut self, is_kept: impl Fn(&K) -> bool) {
        self.cursors.retain(|key, _| is_kept(key));
    }

    /// There may be anything anywhere: the next scan begins at the head.
    pub fn forget_all(&mut self) {
        self.cursors.clear();
        self.head_at = None;
    }
}
