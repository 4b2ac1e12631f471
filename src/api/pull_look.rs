//! Where a session looks for the calls of a worker, and how many of whose it claims.
//!
//! A look is one statement. From the head it finds all lines of the worker, and leases that have ended; from the cursors of this session
//! it passes what was taken before, which an old snapshot keeps in the index, and the backlog of other shards (`xdb_sched::due_scan` says
//! why nothing is lost). While a look from the head is cheap, nothing waits for one: it follows a look that has led to nothing, and a claim
//! that comes after one with nothing begins there.
//!
//! Owners take turns at a worker (`xdb_sched::turns`), in the order of their oids. A session goes on behind the owner that came last; its first
//! claim begins anywhere. An owner's own calls come by priority, then by due time.

use crate::guc;
use crate::pg::process::{is_in_transaction_block, random};
use crate::store::pull::{DueCall, LineSeen, LineShare, PullLine, Sight};
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

/// While one of the last two looks from the head took no longer, one is made whenever it may find something. (The first look of a session
/// is planned.)
const CHEAP: Duration = Duration::from_millis(10);

/// While there are calls to claim, a session looks for leases that have ended once in this time: it walks over all due calls for that.
const LEASES_EVERY: Duration = Duration::from_secs(1);

/// And it spends at most one part in ten of its time on that.
const LEASES_SHARE: u32 = 10;

/// Workers, with other shards, that a session remembers.
const REMEMBERED: usize = 100;

thread_local! {
    static LOOKS: RefCell<HashMap<Key, Looks>> = RefCell::default();
}

/// A worker's name, and the shards of which calls are claimed.
type Key = (String, (i16, i16));

/// What a session remembers of its looks at a worker.
#[derive(Default)]
pub(super) struct Looks {
    worker: WorkerId,
    /// The lines that the last look from the head has found.
    lines: Vec<PullLine>,
    scan: DueScan<PullLine, Timestamp>,
    was_slow: bool,
    is_expensive: bool,
    found_nothing: bool,
    /// When leases that have ended are looked for though calls are due. At once, if never.
    leases_at: Option<Instant>,
    /// Who has got the last place.
    last: Option<Owner>,
}

/// How a look is made.
pub(super) struct Plan {
    /// The lines, and since when their calls may be due. None: from the head.
    pub lines: Option<Vec<(PullLine, Timestamp)>>,
    pub leases: bool,
}

/// This session has given calls back: they stand behind its cursors.
pub(super) fn given_back() {
    LOOKS.with_borrow_mut(|all| all.values_mut().for_each(|looks| looks.scan.from_head_again()));
}

impl Looks {
    /// Runs `body` on what the session remembers.
    pub fn of<T>(key: &Key, body: impl FnOnce(&mut Self) -> T) -> T {
        LOOKS.with_borrow_mut(|all| {
            if all.len() >= REMEMBERED && !all.contains_key(key) {
                all.clear();
            }
            body(all.entry(key.clone()).or_default())
        })
    }

    /// The next look. `again`: it is made once more. `waits`: a wake-up may have led to it, and something is there from the cursors on.
    pub fn plan(&self, again: bool, waits: bool) -> Plan {
        let now = Instant::now();
        let is_tried = !self.is_expensive && (again || self.found_nothing && !waits);
        let from_head = is_tried || self.scan.from_head(now);
        let since = |line: &PullLine| (*line, self.scan.from(line).unwrap_or(Timestamp::EARLIEST));
        // A session that claims and works in one transaction keeps the locks of what it notes.
        let leases = !is_in_transaction_block() && self.leases_at.is_none_or(|at| at <= now);
        Plan { lines: (!from_head).then(|| self.lines.iter().map(since).collect()), leases }
    }

    /// A look has been made that began at `began`, and looked for what was due `now`. False: it is to be made again, because the worker is
    /// another one, or because there may be something behind the cursors.
    pub fn seen(&mut self, plan: &Plan, sight: &Sight, (began, now): (Instant, Timestamp)) -> bool {
        let ended = Instant::now();
        let took = ended - began;
        if self.worker != sight.worker.id {
            let is_whole = plan.lines.is_none();
            *self = Self { worker: sight.worker.id, last: self.last, ..Self::default() };
            if !is_whole {
                return false;
            }
        }
        if plan.lines.is_none() {
            self.is_expensive = self.was_slow && took > CHEAP;
            self.was_slow = took > CHEAP;
            self.lines = sight.lines.iter().map(|seen| seen.line).collect();
            let lines = &self.lines;
            self.scan.retain(|line| lines.contains(line));
            let poll_interval = Duration::from_millis(guc::POLL_INTERVAL_MS.get() as u64);
            self.scan.scanned_from_head(ended, took, poll_interval);
        }
        if plan.leases && plan.lines.is_none() {
            self.leases_at = Some(ended + LEASES_EVERY.max(took * LEASES_SHARE));
        }
        for seen in &sight.lines {
            self.scan.advance(seen.line, seen.first.unwrap_or(now), began);
        }
        self.found_nothing = sight.lines.iter().all(|seen| seen.due == 0);
        if self.found_nothing && plan.lines.is_some() {
            self.scan.may_be_behind();
            return self.is_expensive;
        }
        true
    }

    /// When to look from the head for what may be behind the cursors.
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
    /// How many calls may be due.
    due: usize,
    /// None is due before.
    since: Timestamp,
}

impl DueLines {
    /// `counted`: up to how many calls of each line were.
    pub fn new(seen: &[LineSeen], counted: usize) -> Self {
        let due = |seen: &LineSeen| if seen.due < counted { seen.due } else { usize::MAX };
        let of_line = |seen: &LineSeen| Some(DueLine { line: seen.line, due: due(seen), since: seen.first? });
        let mut lines: Vec<_> = seen.iter().filter_map(of_line).collect();
        lines.sort_by_key(|due| (due.line.owner.to_u32(), Reverse(due.line.priority)));
        Self { lines }
    }

    /// How many calls of which lines are claimed, of all but these owners.
    pub fn shared(&self, looks: &mut Looks, places: usize, except: impl Fn(Oid) -> bool) -> Vec<LineShare> {
        let mut owners: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for due in self.lines.iter().filter(|due| due.due > 0 && !except(due.line.owner)) {
            owners.entry(due.line.owner.to_u32()).or_default().push(due);
        }
        let any = || owners.keys().nth((random() * owners.len() as f64) as usize).copied();
        let Some(last) = looks.last.or_else(any) else { return Vec::new() };
        let in_turn: Vec<_> =
            owners.range((Bound::Excluded(last), Bound::Unbounded)).chain(owners.range(..=last)).collect();
        let due = |lines: &Vec<&DueLine>| lines.iter().fold(0, |sum: usize, line| sum.saturating_add(line.due));
        let (shares, served) = shares(&in_turn.iter().map(|(_, lines)| due(lines)).collect::<Vec<_>>(), places);
        looks.last = served.map(|served| *in_turn[served].0);
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

    /// These were found: of a line with fewer than were looked for there are no others.
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

/// Puts calls into the order in which they are given out: the first of each owner, then the second ones. `rooms` has the owners in turn.
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
