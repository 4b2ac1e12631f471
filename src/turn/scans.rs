//! Where the scans for due work begin, how far they came, and when no scan is needed.
//!
//! Each scan begins at a cursor; `xdb_sched::due_scan` says why, and why nothing behind the cursor is lost. As often as
//! its cost permits, it begins at the head. After a scan that left nothing, no scan is made for 100 ms, unless the
//! process is woken.

use super::next::Next;
use crate::guc;
use crate::store::StateKey;
use crate::store::claim::TaskPlace;
use crate::store::parked::Walk;
use crate::store::registry::WorkerId;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use xdb_engine::Timestamp;
use xdb_sched::due_owners::DueOwners;
use xdb_sched::due_scan::DueScan;
use xdb_sched::lines::Level;
use xdb_sched::room::Owner;

/// The longest time without a scan, if the process is not woken.
const QUIET_FOR: Duration = Duration::from_millis(100);

/// The scans of a scheduler.
#[derive(Default)]
pub struct Scans {
    /// Until this moment scans are left out, unless the process is woken. None: the last scan may have left something.
    quiet_until: Option<Instant>,
    /// Due calls, by worker, owner and priority.
    pub calls: DueScan<Level, Timestamp>,
    pub timers: ScanByOwner<Timestamp>,
    /// Messages in the inbox, by their ids.
    pub messages: ScanByOwner<i64>,
    /// The only call that is being claimed. If the claim fails, the call is deferred.
    pub claimed_alone: Option<StateKey>,
    /// Whether the last claim of a runner was for functions.
    pub claimed_functions: bool,
    /// The owner of the functions that a runner claimed last.
    pub functions_of: Option<Owner>,
    /// When calls of unregistered workers were adopted last. None: more may be left.
    pub adopted: Option<Instant>,
    /// Pauses of process types, and the walk through parked calls.
    pub pauses: Pauses,
    /// Pull workers whose calls are still to be checked: the type of a call may have moved to another worker.
    pub pull_workers: Vec<PullScan>,
}

/// How far the calls of a pull worker were checked for process types that have another worker by now.
#[derive(Clone, Copy, Debug)]
pub struct PullScan {
    pub worker: WorkerId,
    /// The last call that was checked. None: begin at the head.
    pub after: Option<TaskPlace>,
    /// Check all calls, and not only the first slice.
    pub to_the_end: bool,
}

/// The work that pauses of process types leave.
#[derive(Default)]
pub struct Pauses {
    /// When the next pause ends by itself. Some(None): none does. None: not read yet.
    pub next_end: Option<Option<Timestamp>>,
    /// The walk through parked calls, for calls whose pause is over.
    pub walk: Walk,
}

/// A scan whose rows are in one line per owner.
#[derive(Default)]
pub struct ScanByOwner<T> {
    /// The cursors of the owners.
    pub due: DueScan<Owner, T>,
    /// The owners that have rows.
    pub owners: DueOwners<T>,
}

impl<T: Ord + Copy> ScanByOwner<T> {
    /// Where to begin for this owner. Dead rows at the head of the index are passed once.
    pub fn since(&self, owner: Owner, from_head: bool) -> Option<T> {
        match from_head {
            true => self.owners.first(owner),
            false => self.owners.since(owner, self.due.from(&owner)),
        }
    }

    /// Advances the cursors, after the turn that began at `began` has committed.
    fn settle(&mut self, ends: HashMap<Owner, End<T>>, began: Instant, held: impl Fn(T) -> T) {
        let now = Instant::now();
        for (owner, End { to, first, any }) in ends {
            to.into_iter().for_each(|to| self.due.advance(owner, held(to), began));
            self.owners.taken(owner, first, any, now);
        }
    }
}

/// How far the scans of a turn came. Phases write it, and it is applied after the commit.
#[derive(Debug, Default)]
pub struct ScanEnds {
    /// Where the scan of each level ended.
    pub calls: HashMap<Level, Timestamp>,
    pub timers: HashMap<Owner, End<Timestamp>>,
    pub messages: HashMap<Owner, End<i64>>,
    /// The earliest due time of the calls that the turn has found and left, by level.
    left: HashMap<Level, Timestamp>,
    /// The earliest due time of what the turn has written, or left in an unknown line.
    earliest: Option<Timestamp>,
    /// Something was left that the next turn has to find.
    pub left_out: bool,
}

/// How far the scan came for one owner.
#[derive(Clone, Copy, Debug)]
pub struct End<T> {
    /// Everything before this was found and is taken. None: unknown.
    pub to: Option<T>,
    /// The first row that is left, or that comes due later.
    pub first: Option<T>,
    /// Whether the scan found any rows.
    pub any: bool,
}

impl<T: Ord + Copy> End<T> {
    /// Records that the turn has left a row at this position.
    pub fn left(&mut self, at: T) {
        self.to = self.to.map(|to| to.min(at));
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
    }
}

impl ScanEnds {
    /// Records that the turn has found and left a call of this level, with its due time.
    pub fn left(&mut self, level: Level, due: Timestamp) {
        let left = self.left.entry(level).or_insert(due);
        *left = due.min(*left);
    }

    /// Records the due time of something that the turn has written, or has left in an unknown line.
    pub fn note(&mut self, due: Option<Timestamp>) {
        self.earliest = self.earliest.into_iter().chain(due).min();
    }
}

impl Scans {
    /// The process was woken, or the deferral of an execution has ended: there may be something behind the cursors.
    pub fn woken(&mut self) {
        self.quiet_until = None;
        self.may_be_behind();
    }

    /// A turn has failed: everything that its scans have found is still there.
    pub fn failed(&mut self) {
        self.quiet_until = None;
        self.calls.from_head_again();
        self.timers.due.from_head_again();
        self.messages.due.from_head_again();
    }

    fn may_be_behind(&mut self) {
        self.calls.may_be_behind();
        self.timers.due.may_be_behind();
        self.messages.due.may_be_behind();
    }

    /// Whether a scan would find nothing. This ends with time, or when the process is woken.
    pub fn are_idle(&self) -> bool {
        self.quiet_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the last scan has left nothing, and the process was not woken since.
    pub fn are_quiet(&self) -> bool {
        self.quiet_until.is_some()
    }

    /// A turn has committed. If its scans have left nothing, no scan is made for a while. None: they were not made, or
    /// have left nothing while something waits in memory. `next`: when the next turn is due.
    pub fn rest(&mut self, nothing_left: Option<bool>, next: Next) {
        let now = Instant::now();
        if next.is_now() || nothing_left == Some(false) {
            self.quiet_until = None;
        } else if nothing_left == Some(true) {
            self.quiet_until = Some(now + QUIET_FOR);
        }
        self.quiet_until = self.quiet_until.map(|until| until.min(now + next.wait()));
    }

    /// Forgets all cursors: there may be something anywhere.
    pub fn reset(&mut self) {
        self.quiet_until = None;
        self.calls.forget_all();
        self.timers.due.forget_all();
        self.messages.due.forget_all();
    }

    /// When to scan from the head for what may be behind the cursors. None: nothing is behind them, or the turn that
    /// began at `began` could have scanned and did not, for lack of places. An answer frees places, and brings the next
    /// turn.
    pub fn head_at(&self, began: Instant) -> Option<Instant> {
        let behind = [self.calls.behind_at(), self.timers.due.behind_at(), self.messages.due.behind_at()];
        behind.into_iter().flatten().filter(|at| *at > began).min()
    }

    /// Whether all scans may begin at the head now.
    pub fn may_scan_all(&self, now: Instant) -> bool {
        self.calls.from_head(now) && self.timers.due.from_head(now) && self.messages.due.from_head(now)
    }

    /// All scans were made from the head, in one statement, and found nothing.
    pub fn scanned_all(&mut self, began: Instant) {
        let (now, took) = (Instant::now(), began.elapsed());
        self.quiet_until = Some(now + QUIET_FOR);
        self.calls.scanned_from_head(now, took, poll_interval());
        self.timers.due.scanned_from_head(now, took, poll_interval());
        self.messages.due.scanned_from_head(now, took, poll_interval());
    }

    /// The turn that began at `began` has committed. `timers`: the earliest timer of each owner that the turn has
    /// written.
    pub fn settle(&mut self, ends: ScanEnds, timers: BTreeMap<Owner, Timestamp>, began: Instant) {
        // A cursor does not pass what the turn is known to have left.
        let held = |to: Timestamp| ends.earliest.map_or(to, |earliest| to.min(earliest));
        for (level, to) in ends.calls {
            let left = ends.left.get(&level).copied();
            self.calls.advance(level, held(left.map_or(to, |left| to.min(left))), began);
        }
        self.timers.settle(ends.timers, began, held);
        self.messages.settle(ends.messages, began, |to| to);
        let now = Instant::now();
        timers.into_iter().for_each(|(owner, at)| self.timers.owners.note(owner, at, now));
        if ends.left_out {
            self.may_be_behind();
        }
    }
}

/// The longest time between two scans from the head.
pub fn poll_interval() -> Duration {
    Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64)
}
