//! Deletes old rows between a scheduler's turns: executions after their retention, expired messages of global queues,
//! and old message ids.
//!
//! Limitations: one transaction deletes up to 100 executions and 1,000 rows of a table. A locked execution is deleted
//! by a later scan.

use crate::pg::catch::Result;
use crate::pg::session::Session;
use crate::pg::spi::Spi;
use crate::pg::{crash, identity};
use crate::store::global_queue::{self as global, KeyCursor};
use crate::store::purge::{self, Cursor, Old};
use crate::{clock, guc};
use std::time::{Duration, Instant};

/// The longest time between two scans. With a retention that is shorter, it is the retention.
const SCAN_EVERY: Duration = Duration::from_secs(60);

/// After the time of this many scans, the next scan begins at the oldest execution again. It finds executions that were
/// locked, or closed late. Not every scan does so, because it has to pass deleted rows that an old snapshot keeps.
const SCANS: u32 = 60;

/// How often the scan of executions with a retention of their own begins again. Such executions may be deleted as soon
/// as they close.
const OVERDUE_AGAIN: Duration = SCAN_EVERY;

/// The most executions in one transaction.
const EXECUTIONS: usize = 100;

/// The most rows of one table in one transaction.
const ROWS: i64 = 1_000;

/// While there is more to delete, the pause after a batch is this many times the time of the batch.
const REST: u32 = 4;

/// While executions with a retention of their own are deleted, the next scan follows after this time.
const SCAN_AGAIN: Duration = Duration::from_secs(1);
const SHORTEST_REST: Duration = Duration::from_millis(50);

/// Applies `xdb.retention`, the retention of process types, and the expiry of messages in global queues.
pub struct Maintenance {
    scanned: Instant,
    /// How long after the last scan the next one is due. None: the usual time.
    rest: Option<Duration>,
    /// Where the next scans begin.
    after: Cursors,
    /// When the scans of closed executions and of message ids last began at the oldest row.
    begun: Instant,
    /// When the scan of executions with a retention of their own last began at the oldest row.
    begun_overdue: Instant,
    /// The offset of the clock at the last scan. If it changes, the scans begin again.
    clock_offset: i64,
}

impl Maintenance {
    pub fn new() -> Self {
        Self {
            scanned: Instant::now(),
            rest: None,
            after: Cursors { closed: Cursor::START, overdue: Cursor::START, key: KeyCursor::start() },
            begun: Instant::now(),
            begun_overdue: Instant::now(),
            clock_offset: clock::offset(),
        }
    }

    /// When the next batch is due, if it is due before the usual time.
    pub fn due_in(&self) -> Option<Duration> {
        self.rest.map(|rest| rest.saturating_sub(self.scanned.elapsed()))
    }

    fn begin_again(&mut self) {
        (self.after.closed, self.after.key, self.begun) = (Cursor::START, KeyCursor::start(), Instant::now());
        self.begin_overdue_again();
    }

    fn begin_overdue_again(&mut self) {
        (self.after.overdue, self.begun_overdue) = (Cursor::START, Instant::now());
    }

    fn scan(&self, spi: &Spi, retention: Option<xdb_engine::Duration>) -> Result<Scan> {
        // After a crash, lost deletions are made again.
        identity::set_local(c"synchronous_commit", c"off")?;
        let now = clock::now();
        let expiring = global::expire(spi, now, ROWS)?;
        crash::point("expire");
        let left = purge::sweep(spi, ROWS)?;
        if left {
            crash::point("sweep");
        }
        let overdue = Old::Overdue(clock::behind());
        let overdue = purge::batch(spi, overdue, self.after.overdue, EXECUTIONS, Some(ROWS))?;
        let mut scan = Scan {
            reached: Cursors { overdue: overdue.reached, ..self.after.clone() },
            purged_overdue: overdue.purged > 0,
            more: expiring || left || overdue.left || overdue.more,
        };
        let mut purged = overdue.purged;
        if let Some(before) = retention.map(|kept| clock::behind().before(kept)) {
            let batch = purge::batch(spi, Old::Closed(before), self.after.closed, EXECUTIONS, Some(ROWS))?;
            let (key, keys) = global::forget_keys(spi, before, &self.after.key, ROWS)?;
            (scan.reached.closed, scan.reached.key) = (batch.reached, key);
            scan.more |= batch.left || batch.more || keys;
            purged += batch.purged;
        }
        if purged > 0 {
            crash::point("retention");
        }
        Ok(scan)
    }

    /// Deletes a batch of old rows if it is time. Called between turns.
    pub fn poll(&mut self, session: &mut Session) {
        let retention = guc::retention();
        let every = retention.map_or(SCAN_EVERY, |kept| kept.as_std().clamp(Duration::from_secs(1), SCAN_EVERY));
        let clock_offset = clock::offset();
        if clock_offset != self.clock_offset {
            self.clock_offset = clock_offset;
            self.begin_again();
        } else if self.scanned.elapsed() < self.rest.unwrap_or(every) {
            return;
        }
        let began = Instant::now();
        let done = session.between_turns(|spi| self.scan(spi, retention));
        self.scanned = Instant::now();
        let (more, again) = match done {
            Some(scan) => {
                self.after = scan.reached;
                (scan.more, scan.purged_overdue)
            }
            None => (false, false),
        };
        if !more && self.begun.elapsed() >= every * SCANS {
            self.begin_again();
        } else if !more && self.begun_overdue.elapsed() >= OVERDUE_AGAIN {
            self.begin_overdue_again();
        }
        self.rest = match more {
            true => Some(((self.scanned - began) * REST).max(SHORTEST_REST)),
            false => again.then_some(SCAN_AGAIN),
        };
    }
}

/// How far the scans came.
#[derive(Clone)]
struct Cursors {
    closed: Cursor,
    /// Among executions with a retention of their own.
    overdue: Cursor,
    key: KeyCursor,
}

/// The result of a scan.
struct Scan {
    reached: Cursors,
    purged_overdue: bool,
    more: bool,
}
