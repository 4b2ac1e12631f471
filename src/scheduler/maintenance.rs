//! What a scheduler does besides its turns: what is old goes.

use super::main_loop::in_transaction;
use crate::pg::session::Session;
use crate::pg::{crash, identity};
use crate::store::global_queue::{self as global, KeyCursor};
use crate::store::purge::{self, Cursor};
use crate::store::slow;
use crate::{clock, guc};
use std::time::{Duration, Instant};

/// How often to scan for executions that have become too old, at most.
const SCAN_EVERY: Duration = Duration::from_secs(60);

/// After so many scans, the next one begins at the oldest execution again: what was locked, or came late, is found
/// then. Not every time, because deleted rows that an old snapshot keeps have to be walked over.
const SCANS: u32 = 60;

/// Most executions in one transaction.
const EXECUTIONS: usize = 100;

/// Most rows of one table in one transaction.
const ROWS: i64 = 1_000;

/// While there is more to delete, the scheduler rests from it this many times as long as it took.
const REST: u32 = 4;
const SHORTEST_REST: Duration = Duration::from_millis(50);

/// Keeps to `xdb.retention`, and to the time that messages of global queues have.
pub struct Maintenance {
    scanned: Instant,
    /// How long after the last scan the next one is due, while there is more to delete.
    rest: Option<Duration>,
    after: Cursor,
    after_key: KeyCursor,
    scans: u32,
    /// The offset of the clock at the last scan.
    clock_offset: i64,
}

impl Maintenance {
    pub fn new() -> Self {
        Self {
            scanned: Instant::now(),
            rest: None,
            after: Cursor::START,
            after_key: KeyCursor::start(),
            scans: 0,
            clock_offset: clock::offset(),
        }
    }

    /// When the next batch is due, if there is more to delete.
    pub fn due_in(&self) -> Option<Duration> {
        self.rest.map(|rest| rest.saturating_sub(self.scanned.elapsed()))
    }

    fn begin_again(&mut self) {
        (self.after, self.after_key) = (Cursor::START, KeyCursor::start());
    }

    /// Deletes a batch of what is old if it is time. To be called between turns.
    pub fn look(&mut self, session: &mut Session) {
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
        let done = in_transaction(session, |spi| {
            // A crash brings back at most what is deleted again.
            identity::set_local(c"synchronous_commit", c"off")?;
            let now = clock::now();
            slow::forget(spi)?;
            let expiring = global::expire(spi, now, ROWS)?;
            crash::point("expire");
            let Some(before) = retention.map(|kept| clock::behind().before(kept)) else {
                return Ok((self.after, self.after_key.clone(), expiring));
            };
            let left = purge::sweep(spi, ROWS)?;
            if left {
                crash::point("sweep");
            }
            let batch = purge::batch(spi, before, self.after, EXECUTIONS, Some(ROWS))?;
            let (key, keys) = global::forget_keys(spi, before, &self.after_key, ROWS)?;
            if batch.purged > 0 {
                crash::point("retention");
            }
            Ok((batch.reached, key, expiring || left || batch.left || batch.more || keys))
        });
        self.scanned = Instant::now();
        let more = match done {
            Some((reached, key, more)) => {
                (self.after, self.after_key) = (reached, key);
                more
            }
            None => false,
        };
        if !more {
            self.scans += 1;
            if self.scans >= SCANS {
                self.scans = 0;
                self.begin_again();
            }
        }
        self.rest = more.then(|| ((self.scanned - began) * REST).max(SHORTEST_REST));
    }
}
