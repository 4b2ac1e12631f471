//! Where a scan for due work begins: at a cursor with a margin of time, or at the head.
//!
//! Taken rows stay in an index until vacuum may remove them, and one old snapshot keeps all of them there. A scan from
//! the head passes all of them. So a scan begins where the cursor was a margin of time ago.
//!
//! ```text
//!   head                      a margin ago       cursor      now
//!   │ taken, dead, not vacuumed │ ............... │ due, free │
//!   └── from the head ──────────┴── from the cursor ──────────►
//! ```
//!
//! Correctness never depends on the cursor. A scan from the head finds every row. Such a scan is made at least once per
//! poll interval. It is made more often while these scans take at most a twentieth of the time, or a two-hundredth in
//! the session of a pull worker. Without dead rows in the index, that is nearly every time. (If a scan takes longer than
//! the poll interval, the next one follows after the same time.) So a cursor costs a wait of one poll interval at most.
//!
//! How rows get behind a cursor, and what finds them:
//!
//! - **A row commits later than rows that are due later.** Due times and ids are assigned before the commit. Within the
//!   margin, the next scan sees the row, because it begins where the cursor was when the due time was assigned, or
//!   before. Rows of longer transactions are found from the head. So a wake-up need not carry due times.
//! - **A scan found a row and left it**, because there was no place or its table was busy. The caller knows the row,
//!   and advances the cursor no further than that row ([`DueScan::advance`]).
//! - **A scan stopped before a row**, because it had found enough. The cursor stays at the last row that it found.
//! - **A scan left out or passed a row**: an execution in backoff, a row whose lock another transaction released by a
//!   rollback, a lease that ended. A scan from the head finds it. No statement is made for these rows.
//! - **A turn took a row and failed.** A cursor is advanced only after the commit.
//! - **A scan from the head did not cover a key**, because there were no places under it. The caller forgets that
//!   cursor ([`DueScan::retain`]).
//! - **A row moves to another key, or to an earlier time**: a call moves to another worker or lane. The code that moves
//!   it forgets the cursors ([`DueScan::forget_all`]).
//! - **A row is the first one of its key.** Keys are known from scans from the head. Until the next one, nothing is
//!   scanned under a new key.
//! - **The clock was set back.** The first scan after that moves the cursor back to the clock. Rows that were written
//!   before that scan, and are due even earlier, are found from the head.
//!
//! Limitations: a row behind a cursor waits for up to one poll interval.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Scans from the head take at most one part in `SHARE` of the time, unless the poll interval requires more.
const SHARE: u32 = 20;

/// The same for a session of a pull worker. Many of them may scan at once, and a session waits for most of its time.
const SESSIONS_SHARE: u32 = 200;

/// Nearly all commits take less than this. Every scan passes again what was taken within this time.
pub const MARGIN: Duration = Duration::from_millis(50);

/// A position that advances, and remembers where it was.
#[derive(Clone, Copy, Debug)]
struct ScanCursor<T> {
    /// Where the last scan ended.
    at: T,
    /// Where the cursor was at `marked_at`, or further back. None: at the head.
    mark: Option<T>,
    marked_at: Instant,
    /// Where the cursor was a margin before `marked_at`, or further back. Scans begin here.
    behind: Option<T>,
}

/// The scans of one kind: calls, timers or messages. `K` has a cursor each: a line or an owner. `T` is the order of the
/// scan: a due time or an id.
#[derive(Debug)]
pub struct DueScan<K, T> {
    cursors: HashMap<K, ScanCursor<T>>,
    /// When the next scan from the head is due. None: at once.
    head_at: Option<Instant>,
    /// A row may be behind a cursor.
    is_behind: bool,
}

impl<K, T> Default for DueScan<K, T> {
    fn default() -> Self {
        Self { cursors: HashMap::new(), head_at: None, is_behind: false }
    }
}

impl<K: Eq + Hash, T: Ord + Copy> DueScan<K, T> {
    /// Whether the next scan begins at the head, for all keys.
    pub fn from_head(&self, now: Instant) -> bool {
        self.head_at.is_none_or(|at| at <= now)
    }

    /// Makes the next scan begin at the head.
    pub fn from_head_again(&mut self) {
        self.head_at = None;
    }

    /// Records that a row may be behind a cursor, so that the next scan from the head is awaited.
    pub fn may_be_behind(&mut self) {
        self.is_behind = true;
    }

    /// When to scan from the head because a row may be behind a cursor. None: no row may be, or the next scan begins
    /// there anyway.
    pub fn behind_at(&self) -> Option<Instant> {
        self.head_at.filter(|_| self.is_behind)
    }

    /// Where a scan for this key begins, inclusive. None: at the head.
    pub fn from(&self, key: &K) -> Option<T> {
        self.cursors.get(key).and_then(|cursor| cursor.behind)
    }

    /// A scan from the head has ended and took this time. It counts even if its transaction fails later: the time is
    /// spent.
    pub fn scanned_from_head(&mut self, now: Instant, took: Duration, poll_interval: Duration) {
        self.scan_again(now, took, took * SHARE, poll_interval);
    }

    /// [`DueScan::scanned_from_head`] in a session of a pull worker.
    pub fn session_scanned_from_head(&mut self, now: Instant, took: Duration, poll_interval: Duration) {
        self.scan_again(now, took, took * SESSIONS_SHARE, poll_interval);
    }

    fn scan_again(&mut self, now: Instant, took: Duration, after: Duration, poll_interval: Duration) {
        self.is_behind = false;
        self.head_at = Some(now + after.min(poll_interval.max(took)));
    }

    /// A scan that began at `began` has committed. Of the rows that it could see, no free one is left before `to`. If
    /// the scan stopped early, `to` is the last row that it found. Else it is the time up to which it scanned, or the
    /// last id that it saw. `to` never passes the first row that the turn found and left.
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

    /// Forgets the cursors of all other keys: their next scans begin at the head.
    pub fn retain(&mut self, is_kept: impl Fn(&K) -> bool) {
        self.cursors.retain(|key, _| is_kept(key));
    }

    /// Forgets all cursors: rows may be anywhere, and the next scan begins at the head.
    pub fn forget_all(&mut self) {
        self.cursors.clear();
        self.head_at = None;
    }
}
