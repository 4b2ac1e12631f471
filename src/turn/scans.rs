//! Where the scans for due work begin, and how far they came.
//!
//! A scan that begins at the head of an index walks over everything that was taken and not vacuumed away yet. So each scan
//! begins at a cursor, behind which the last one left nothing. Who commits something that is due behind a cursor says so with
//! the wake-up. What nobody says (a rollback of who had a row locked) is found by a scan from the head, which is made as often
//! as its cost permits. No promise depends on a cursor.

use crate::pg::shmem::Wakeup;
use crate::store::registry::WorkerId;
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::cursor::Cursors;

/// How long nothing is scanned for, at most, while nobody says that there is something.
const QUIET_FOR: Duration = Duration::from_millis(100);

/// The cursors of a scheduler.
#[derive(Default)]
pub struct Scans {
    /// Until then there is nothing to be found, unless somebody says so.
    quiet_until: Option<Instant>,
    /// Due calls, by worker.
    pub calls: Cursors<WorkerId, Timestamp>,
    pub timers: Cursors<(), Timestamp>,
    /// Messages in the inbox, by their ids.
    pub messages: Cursors<(), i64>,
    /// The execution whose call alone is being claimed: if that fails, it is left alone.
    pub suspect: Option<ExecutionId>,
}

/// How far the scans of a turn came. It counts once the turn has committed.
#[derive(Debug, Default)]
pub struct ScanEnds {
    pub calls: Vec<(WorkerId, Timestamp)>,
    pub timers: Option<Timestamp>,
    pub messages: Option<i64>,
    /// The earliest due time of what the turn has written, or has found and left.
    pub earliest: Option<Timestamp>,
}

impl ScanEnds {
    /// Takes the ends back to what was left.
    pub fn hold(&mut self, call: Option<Timestamp>, timer: Option<Timestamp>, message: Option<i64>) {
        hold(self.calls.iter_mut().map(|end| &mut end.1), call);
        hold(self.timers.iter_mut(), timer);
        hold(self.messages.iter_mut(), message);
    }

    /// The turn has written, or has found and left, something that is due at this time.
    pub fn note(&mut self, due: Option<Timestamp>) {
        self.earliest = self.earliest.into_iter().chain(due).min();
    }
}

fn hold<'a, T: Ord + Copy + 'a>(ends: impl Iterator<Item = &'a mut T>, at: Option<T>) {
    if let Some(at) = at {
        ends.for_each(|end| *end = at.min(*end));
    }
}

impl Scans {
    /// Somebody has woken the scheduler.
    pub fn woken(&mut self, wakeup: Wakeup) {
        self.quiet_until = None;
        self.lower(Some(Timestamp(wakeup.due)));
        self.messages.lower(wakeup.message);
    }

    /// A call or a timer is due at this time or later.
    pub fn lower(&mut self, due: Option<Timestamp>) {
        if let Some(due) = due {
            self.calls.lower(due);
            self.timers.lower(due);
        }
    }

    /// Whether a scan would find nothing.
    pub fn are_idle(&self) -> bool {
        self.quiet_until.is_some_and(|until| Instant::now() < until)
    }

    /// The last scan has left nothing, and nobody has said since that there is something.
    pub fn are_quiet(&self) -> bool {
        self.quiet_until.is_some()
    }

    /// The last scan has left nothing.
    pub fn nothing_left(&mut self) {
        self.quiet_until = Some(Instant::now() + QUIET_FOR);
    }

    /// The next call or timer comes due in so long.
    pub fn until(&mut self, next_due_in: Option<Duration>) {
        let due = next_due_in.map(|due_in| Instant::now() + due_in);
        self.quiet_until = self.quiet_until.map(|until| due.map_or(until, |due| until.min(due)));
    }

    /// There may be something again.
    pub fn scan_again(&mut self) {
        self.quiet_until = None;
    }

    /// There may be anything anywhere.
    pub fn reset(&mut self) {
        self.woken(Wakeup::ANY);
    }

    /// Whether all scans may be made from the head.
    pub fn may_scan_all(&self, now: Instant) -> bool {
        self.calls.from_head(now) && self.timers.from_head(now) && self.messages.from_head(now)
    }

    /// All scans were made from the head, together, and this is what they cost.
    pub fn scanned_all(&mut self, ended: Instant, took: Duration) {
        self.calls.scanned(ended, took);
        self.timers.scanned(ended, took);
        self.messages.scanned(ended, took);
    }

    /// The turn has committed.
    pub fn settle(&mut self, ends: ScanEnds) {
        for (worker, to) in ends.calls {
            self.calls.advance(worker, to);
        }
        ends.timers.into_iter().for_each(|to| self.timers.advance((), to));
        ends.messages.into_iter().for_each(|to| self.messages.advance((), to));
        self.lower(ends.earliest);
    }
}
