//! Where a session scans for the calls of a pull worker, and how many calls of each owner it claims.
//!
//! A scan is one statement. A scan *from the head* reads each line of the worker from its first entry. It finds all
//! lines, and leases that have ended. Other scans begin at this session's cursors. So they pass the entries of calls
//! that are done, which an old snapshot keeps in the index, and the calls of other shards. `xdb_sched::due_scan`
//! explains why no call is lost behind a cursor. As long as a scan from the head is cheap, a session makes one after
//! each scan that found nothing.
//!
//! If a session knows one line only, and found calls in it, its next claim needs no scan: it takes what it finds at the
//! cursor. If it finds nothing, a scan follows.
//!
//! Owners take turns at a worker, in the order of their oids (`xdb_sched::turns`). A session continues after the owner
//! that it served last. Its first claim begins at a random owner. Priority and due time order the calls of one owner.
//!
//! Limitations: a session remembers a hundred workers with their shards. With more, it begins at the head again.

use crate::guc;
use crate::pg::process::{is_in_transaction_block, random};
use crate::store::pull::{DueCall, LineSeen, LineShare, PullLine, ScanFrom, Sight};
use crate::store::registry::WorkerId;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};
use xdb_engine::Timestamp;
use xdb_sched::due_scan::DueScan;
use xdb_sched::room::Owner;
use xdb_sched::turns::shares;

/// Scans from the head are cheap if one of the last two took no longer. (The time of a session's first scan includes
/// planning.)
const CHEAP: Duration = Duration::from_millis(10);

/// How often a session with calls to claim scans for leases that have ended. Such a scan reads all due calls.
const LEASES_EVERY: Duration = Duration::from_secs(1);

/// The session spends at most one tenth of its time on such scans.
const LEASES_SHARE: u32 = 10;

/// The most pairs of worker and shards that a session remembers.
const REMEMBERED: usize = 100;

thread_local! {
    static MEMORIES: RefCell<HashMap<Key, ScanMemory>> = RefCell::default();
}

/// A worker's name, and the shards whose calls are claimed.
type Key = (String, (i16, i16));

/// What a session remembers about its scans of a worker.
#[derive(Default)]
pub(super) struct ScanMemory {
    worker: WorkerId,
    /// The lines that the last scan from the head found.
    lines: Vec<PullLine>,
    scan: DueScan<PullLine, Timestamp>,
    was_slow: bool,
    is_expensive: bool,
    found_nothing: bool,
    /// When to scan for leases that have ended although calls are due. None: now.
    leases_at: Option<Instant>,
    /// The owner that was served last.
    last: Option<Owner>,
}

/// How a scan is made.
pub(super) struct Plan {
    pub lines: ScanFrom,
    pub leases: bool,
}

/// Makes the next scans begin at the head: this session gave calls back, which may be behind its cursors.
pub(super) fn given_back() {
    MEMORIES.with_borrow_mut(|all| all.values_mut().for_each(|memory| memory.scan.from_head_again()));
}

impl ScanMemory {
    /// Runs `body` on what the session remembers about a worker.
    pub fn of<T>(key: &Key, body: impl FnOnce(&mut Self) -> T) -> T {
        MEMORIES.with_borrow_mut(|all| {
            if all.len() >= REMEMBERED && !all.contains_key(key) {
                all.clear();
            }
            body(all.entry(key.clone()).or_default())
        })
    }

    /// Plans the next scan. `again`: the last scan is repeated. `waits`: a commit may have woken the session, so there
    /// may be a call after the cursors.
    pub fn plan(&self, again: bool, waits: bool) -> Plan {
        let now = Instant::now();
        let is_tried = !self.is_expensive && (again || self.found_nothing && !waits);
        let from_head = is_tried || self.scan.from_head(now);
        let since = |line: &PullLine| self.scan.from(line).unwrap_or(Timestamp::EARLIEST);
        // In a transaction block, the locks for recording attempts would last as long as the session works.
        let leases = !is_in_transaction_block() && self.leases_at.is_none_or(|at| at <= now);
        let lines = match self.lines[..] {
            _ if from_head => ScanFrom::Head,
            [line] if !again && !self.found_nothing => ScanFrom::Unread(line, since(&line)),
            _ => ScanFrom::Cursors(self.lines.iter().map(|line| (*line, since(line))).collect()),
        };
        Plan { lines, leases }
    }

    /// Takes in the result of a scan that began at `began` for calls due at `now`. False: the scan must be
    /// repeated, because the name belongs to another worker now, or because calls may be behind the cursors.
    pub fn seen(&mut self, plan: &Plan, sight: &Sight, (began, now): (Instant, Timestamp)) -> bool {
        let ended = Instant::now();
        let took = ended - began;
        let is_from_head = matches!(plan.lines, ScanFrom::Head);
        if self.worker != sight.worker.id {
            *self = Self { worker: sight.worker.id, last: self.last, ..Self::default() };
            if !is_from_head {
                return false;
            }
        }
        if let ScanFrom::Unread(..) = plan.lines {
            return true;
        }
        if is_from_head {
            self.is_expensive = self.was_slow && took > CHEAP;
            self.was_slow = took > CHEAP;
            self.lines = sight.lines.iter().map(|seen| seen.line).collect();
            let lines = &self.lines;
            self.scan.retain(|line| lines.contains(line));
            let poll_interval = Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64);
            self.scan.session_scanned_from_head(ended, took, poll_interval);
        }
        if plan.leases && is_from_head {
            self.leases_at = Some(ended + LEASES_EVERY.max(took * LEASES_SHARE));
        }
        for seen in &sight.lines {
            self.scan.advance(seen.line, seen.first.unwrap_or(now), began);
        }
        self.found_nothing = sight.lines.iter().all(|seen| seen.due == 0);
        if self.found_nothing && !is_from_head {
            self.scan.may_be_behind();
            return self.is_expensive;
        }
        true
    }

    /// Takes in what a claim without a scan found first in this line.
    pub fn claimed(&mut self, line: PullLine, first: Option<Timestamp>, began: Instant) {
        self.found_nothing = first.is_none();
        if let Some(first) = first {
            self.scan.advance(line, first, began);
        }
    }

    /// When to scan from the head for calls behind the cursors.
    pub fn behind_at(&self) -> Option<Instant> {
        self.scan.behind_at()
    }
}

/// Due calls of a worker, by line.
#[derive(Default)]
pub(super) struct DueLines {
    lines: Vec<DueLine>,
}

struct DueLine {
    line: PullLine,
    /// An upper bound for the number of due calls.
    due: usize,
    /// The first due time.
    since: Timestamp,
}

impl DueLines {
    /// `counted`: the number at which the scan stopped counting the calls of a line.
    pub fn new(seen: &[LineSeen], counted: usize) -> Self {
        let due = |seen: &LineSeen| if seen.due < counted { seen.due } else { usize::MAX };
        let of_line = |seen: &LineSeen| Some(DueLine { line: seen.line, due: due(seen), since: seen.first? });
        let mut lines: Vec<_> = seen.iter().filter_map(of_line).collect();
        lines.sort_by_key(|due| (due.line.owner.to_u32(), Reverse(due.line.priority)));
        Self { lines }
    }

    /// Shares `places` among the lines. `except`: owners that get none.
    pub fn shared(&self, memory: &mut ScanMemory, places: usize, except: impl Fn(Oid) -> bool) -> Vec<LineShare> {
        let mut owners: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for due in self.lines.iter().filter(|due| due.due > 0 && !except(due.line.owner)) {
            owners.entry(due.line.owner.to_u32()).or_default().push(due);
        }
        let any = || owners.keys().nth((random() * owners.len() as f64) as usize).copied();
        let Some(last) = memory.last.or_else(any) else { return Vec::new() };
        let in_turn: Vec<_> =
            owners.range((Bound::Excluded(last), Bound::Unbounded)).chain(owners.range(..=last)).collect();
        let due = |lines: &Vec<&DueLine>| lines.iter().fold(0, |sum: usize, line| sum.saturating_add(line.due));
        let (shares, served) = shares(&in_turn.iter().map(|(_, lines)| due(lines)).collect::<Vec<_>>(), places);
        memory.last = served.map(|served| *in_turn[served].0).or(memory.last);
        let mut rooms = Vec::new();
        for ((_, lines), mut share) in in_turn.into_iter().zip(shares) {
            for due in lines {
                let room = share.min(due.due);
                share -= room;
                let PullLine { lane, owner, priority } = due.line;
                let wanted = LineShare { lane, owner, priority, since: due.since, room: room as i64 };
                rooms.extend((room > 0).then_some(wanted));
            }
        }
        rooms
    }

    /// Takes off the calls that were found. A line with fewer calls than its share has no more.
    pub fn taken(&mut self, rooms: &[LineShare], found: &[DueCall]) {
        for LineShare { lane, owner, priority, room, .. } in rooms {
            let line = PullLine { lane: *lane, owner: *owner, priority: *priority };
            let taken = found.iter().filter(|call| call.line == line).count();
            for due in self.lines.iter_mut().filter(|due| due.line == line) {
                due.due = if (taken as i64) < *room { 0 } else { due.due - taken };
            }
        }
    }
}

/// Sorts calls in the order in which they are claimed: the first call of each owner, then the second ones. `rooms` has
/// the owners in their order.
pub(super) fn in_turn(rooms: &[LineShare], calls: &mut Vec<DueCall>) {
    calls.sort_by_key(|call| (Reverse(call.line.priority), call.due_at, call.key));
    let mut owners = HashMap::<_, usize>::new();
    let place = |call: DueCall| {
        let nth = owners.entry(call.line.owner).or_default();
        *nth += 1;
        (*nth, rooms.iter().position(|share| share.owner == call.line.owner), call)
    };
    let mut placed: Vec<_> = calls.drain(..).map(place).collect();
    placed.sort_by_key(|(nth, turn, _)| (*nth, *turn));
    calls.extend(placed.into_iter().map(|(.., call)| call));
}
