//! Where the scans for due work begin, how far they came, and when none is made.
//!
//! Each scan begins at a cursor (`xdb_sched::due_scan` says why, and why nothing is lost behind it), and as often as its cost
//! permits at the head. While nobody says that there is something, none is made at all for a tenth of a second.

use super::next::Next;
use crate::guc;
use crate::store::StateKey;
use crate::store::claim::TaskPlace;
use crate::store::held::Walk;
use crate::store::registry::WorkerId;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use xdb_engine::Timestamp;
use xdb_sched::due_owners::DueOwners;
use xdb_sched::due_scan::DueScan;
use xdb_sched::room::{Line, Owner};

/// How long nothing is scanned for, at most, while nobody says that there is something.
const QUIET_FOR: Duration = Duration::from_millis(100);

/// The scans of a scheduler.
#[derive(Default)]
pub struct Scans {
    /// Until then there is nothing to be found, unless somebody says so.
    quiet_until: Option<Instant>,
    /// Due calls, by worker and owner.
    pub calls: DueScan<Line, Timestamp>,
    /// Due timers.
    pub timers: ScanByOwner<Timestamp>,
    /// Messages in the inbox, by their ids.
    pub messages: ScanByOwner<i64>,
    /// The call that alone is being claimed: if that fails, it is left alone.
    pub claimed_alone: Option<StateKey>,
    /// What a runner has claimed last were calls that functions answer.
    pub claimed_functions: bool,
    /// The owner whose functions a runner has claimed last.
    pub functions_of: Option<Owner>,
    /// When calls of workers that are gone were looked for last.
    pub adopted: Option<Instant>,
    pub pauses: Pauses,
    /// Workers that fetch their calls, and have some left to be looked through.
    pub fetched: Vec<Fetched>,
}

/// How far calls that wait for a worker which fetches them were looked through, for those of process types that have another one by now.
#[derive(Clone, Copy, Debug)]
pub struct Fetched {
    pub worker: WorkerId,
    pub after: Option<TaskPlace>,
    /// All of them are to be, and not the first alone.
    pub to_the_end: bool,
}

/// What follows from pauses of process types.
#[derive(Default)]
pub struct Pauses {
    /// When the next one ends by itself, if one does; None: nobody has looked.
    pub next_end: Option<Option<Timestamp>>,
    /// Through the calls that are held, for those that nothing holds any more.
    pub walk: Walk,
}

/// A scan for what stands in lines of owners.
#[derive(Default)]
pub struct ScanByOwner<T> {
    pub due: DueScan<Owner, T>,
    pub owners: DueOwners<T>,
}

impl<T: Ord + Copy> ScanByOwner<T> {
    /// Where to look from on for what is this owner's. What is dead at the head is walked over once.
    pub fn since(&self, owner: Owner, from_head: bool) -> Option<T> {
        match from_head {
            true => self.owners.first(owner),
            false => self.owners.since(owner, self.due.from(&owner)),
        }
    }

    /// The turn that began then has committed.
    fn settle(&mut self, ends: HashMap<Owner, End<T>>, began: Instant, held: impl Fn(T) -> T) {
        let now = Instant::now();
        for (owner, End { to, first, any }) in ends {
            to.into_iter().for_each(|to| self.due.advance(owner, held(to), began));
            self.owners.taken(owner, first, any, now);
        }
    }
}

/// How far the scans of a turn came. It counts once the turn has committed.
#[derive(Debug, Default)]
pub struct ScanEnds {
    pub calls: Vec<(Line, Timestamp)>,
    pub timers: HashMap<Owner, End<Timestamp>>,
    pub messages: HashMap<Owner, End<i64>>,
    /// The earliest due time of what the turn has found and left, by line.
    left: HashMap<Line, Timestamp>,
    /// The same of what it has written, and of what may be in any line.
    earliest: Option<Timestamp>,
    /// Something was left that the next turn is to find.
    pub left_out: bool,
}

/// How far the scan for what is an owner's came.
#[derive(Clone, Copy, Debug)]
pub struct End<T> {
    /// All before this was found and is taken. None: nothing is known of it.
    pub to: Option<T>,
    /// The first that is there still, or comes later.
    pub first: Option<T>,
    /// Any were found.
    pub any: bool,
}

impl<T: Ord + Copy> End<T> {
    /// The turn has left this one.
    pub fn left(&mut self, at: T) {
        self.to = self.to.map(|to| to.min(at));
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
    }
}

impl ScanEnds {
    /// The turn has found a call of this line that is due at this time, and has left it.
    pub fn left(&mut self, line: Line, due: Timestamp) {
        let left = self.left.entry(line).or_insert(due);
        *left = due.min(*left);
    }

    /// The turn has written something that is due at this time, or has left it in some line.
    pub fn note(&mut self, due: Option<Timestamp>) {
        self.earliest = self.earliest.into_iter().chain(due).min();
    }
}

impl Scans {
    /// There may be something that a scan has passed or left out: somebody has woken the scheduler, or a pause is over.
    pub fn woken(&mut self) {
        self.quiet_until = None;
        self.may_be_behind();
    }

    /// A turn has failed: whatever its scans have found is there still.
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

    /// Whether a scan would find nothing.
    pub fn are_idle(&self) -> bool {
        self.quiet_until.is_some_and(|until| Instant::now() < until)
    }

    /// The last scan has left nothing, and nobody has said since that there is something.
    pub fn are_quiet(&self) -> bool {
        self.quiet_until.is_some()
    }

    /// A turn has committed, and the next one is due then. If its scans have `left` nothing, and nothing waits in memory, none is made
    /// for a while. None: the turn says nothing of that.
    pub fn rest(&mut self, left: Option<bool>, next: Next) {
        let now = Instant::now();
        if next.is_now() || left == Some(true) {
            self.quiet_until = None;
        } else if left == Some(false) {
            self.quiet_until = Some(now + QUIET_FOR);
        }
        self.quiet_until = self.quiet_until.map(|until| until.min(now + next.wait()));
    }

    /// There may be anything anywhere.
    pub fn reset(&mut self) {
        self.quiet_until = None;
        self.calls.forget_all();
        self.timers.due.forget_all();
        self.messages.due.forget_all();
    }

    /// When to scan from the head for what may be behind the cursors. None: nothing is, or the turn that began then could have
    /// scanned and did not, for lack of room: that comes with an answer.
    pub fn head_at(&self, began: Instant) -> Option<Instant> {
        let behind = [self.calls.behind_at(), self.timers.due.behind_at(), self.messages.due.behind_at()];
        behind.into_iter().flatten().filter(|at| *at > began).min()
    }

    /// Whether all scans may be made from the head.
    pub fn may_scan_all(&self, now: Instant) -> bool {
        self.calls.from_head(now) && self.timers.due.from_head(now) && self.messages.due.from_head(now)
    }

    /// All scans were made from the head, together, and have found nothing.
    pub fn scanned_all(&mut self, began: Instant) {
        let (now, took) = (Instant::now(), began.elapsed());
        self.quiet_until = Some(now + QUIET_FOR);
        self.calls.scanned_from_head(now, took, poll_interval());
        self.timers.due.scanned_from_head(now, took, poll_interval());
        self.messages.due.scanned_from_head(now, took, poll_interval());
    }

    /// The turn that began then has committed. `timers`: the first of each owner's that it has written.
    pub fn settle(&mut self, ends: ScanEnds, timers: BTreeMap<Owner, Timestamp>, began: Instant) {
        // What is known to be left is not passed.
        let held = |to: Timestamp| ends.earliest.map_or(to, |earliest| to.min(earliest));
        for (line, to) in ends.calls {
            let left = ends.left.get(&line).copied();
            self.calls.advance(line, held(left.map_or(to, |left| to.min(left))), began);
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

/// Longest time between two scans from the head.
pub fn poll_interval() -> Duration {
    Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64)
}
