//! Calls under way, and the *places* for more: in all, for each worker, and for each owner.
//!
//! **An owner gets a place while its calls under way are fewer than [`SHARE`] times the free places.** (Switches with
//! shared buffers call this a dynamic threshold.) So every owner gets places, and none gets all of them:
//!
//! - A single owner gets `SHARE` of `SHARE + 1` places. Of `SHARE` places or fewer, it gets all.
//! - With more places, one place stays free for an owner without calls, even if the other calls take very long.
//! - Owners that want more than there is get fair shares: an owner with more calls than another waits until they are
//!   equal.
//!
//! The same rule applies to all calls of an owner together. So an owner with many workers does not get all places
//! either.
//!
//! A free place goes to the owner with the fewest calls under way at that worker. Of owners with equally few, it goes to
//! the one that has *got* the fewest calls there. So owners take turns at a single place. If places can't be divided
//! equally, owners take turns at having one more. An owner that had no calls for a while has got few. It counts as at
//! most [`BEHIND`] behind the others, so it gets that many calls more at most.
//!
//! **A large request takes several places** of the total ([`places_of_request`]). So the memory of requests under way
//! is bounded, and shared in the same way. The size of a request is known only when it is made. So it goes if its owner
//! has any free place.
//!
//! Limitations: places bound one scheduler or runner, and not all processes of a server together.

use crate::breaker::Admission;
use std::collections::HashMap;

/// The key of a registered worker. Zero stands for none.
pub type WorkerId = i32;

/// The oid of a role that owns processes.
pub type Owner = u32;

/// The calls of one owner's processes to one worker: by priority, then by due time. Owners share places whatever their
/// priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    pub worker: WorkerId,
    pub owner: Owner,
}

/// The most calls of an owner for each free place. A higher number leaves less for new owners. A lower number wastes
/// places while an owner is alone.
pub const SHARE: usize = 8;

/// How many calls an owner may count as behind the others. With a lower number, an owner that has one place more by chance
/// keeps it for longer. A higher number gives more to an owner that was away.
pub const BEHIND: u64 = 4;

/// Above this number of lines, lines without calls are forgotten. Then it no longer matters how many they have got.
const REMEMBERED: usize = 1000;

/// The bytes of one place. A request takes a place for each begun multiple.
const PLACE: usize = 128 * 1024;

/// How many places a request takes. At most a sixteenth of all, so that several large requests can be under way at a
/// time.
pub fn places_of_request(bytes: usize, max_calls: usize) -> usize {
    bytes.div_ceil(PLACE).min(max_calls / 16).max(1)
}

/// How many more calls an owner with `calls` calls may have, if `free` places are free and no other owner takes any.
fn fair(calls: usize, free: usize) -> usize {
    (SHARE * free).saturating_sub(calls).div_ceil(SHARE + 1)
}

/// The most calls of a worker at a time. If there are several workers, none gets more than half of the calls or
/// connections. So a slow or dead worker does not delay calls to other workers.
pub fn places(max_concurrency: usize, max_calls: usize, max_connections: usize, workers: usize) -> usize {
    let share = if workers > 1 { max_calls.min(max_connections).div_ceil(2) } else { max_calls };
    share.min(max_concurrency)
}

/// Whether no place is left for one more call of the owner that has all these calls. If several owners have them, it
/// means the owner with the most.
pub fn is_full(calls: usize, places: usize) -> bool {
    fair(calls, places.saturating_sub(calls)) == 0
}

/// The places that owners have taken.
#[derive(Clone, Debug, Default)]
struct OwnerShares {
    lines: HashMap<Line, Share>,
    /// Places of the calls to all workers.
    owners: HashMap<Owner, usize>,
    /// The most calls that an owner has got at each worker.
    most: HashMap<WorkerId, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    calls: usize,
    /// How many calls the owner has got. [`OwnerShares::got`] reads it.
    got: u64,
}

impl OwnerShares {
    fn of(&self, line: Line) -> Share {
        self.lines.get(&line).copied().unwrap_or_default()
    }

    /// How many calls the owner has got at the worker: at most [`BEHIND`] fewer than the owner that has got the most.
    fn got(&self, line: Line) -> u64 {
        let most = self.most.get(&line.worker).copied().unwrap_or(0);
        self.of(line).got.max(most.saturating_sub(BEHIND))
    }

    fn of_owner(&self, owner: Owner) -> usize {
        self.owners.get(&owner).copied().unwrap_or(0)
    }

    fn add(&mut self, line: Line, places: usize) {
        let got = self.got(line) + 1;
        let most = self.most.entry(line.worker).or_default();
        *most = got.max(*most);
        *self.owners.entry(line.owner).or_default() += places;
        let share = self.lines.entry(line).or_default();
        (share.calls, share.got) = (share.calls + 1, got);
    }

    fn remove(&mut self, line: Line, places: usize) {
        if let Some(share) = self.lines.get_mut(&line) {
            share.calls -= 1;
        }
        if let Some(has) = self.owners.get_mut(&line.owner) {
            *has -= places;
        }
        if self.lines.len() > REMEMBERED {
            self.lines.retain(|_, share| share.calls > 0);
            self.owners.retain(|_, has| *has > 0);
        }
    }
}

/// The calls of one process that are under way, each with what is known of it.
#[derive(Debug)]
pub struct InFlight<C> {
    calls: HashMap<u64, CountedCall<C>>,
    per_worker: HashMap<WorkerId, usize>,
    shares: OwnerShares,
    /// The places that all calls take.
    places: usize,
    next_tag: u64,
}

#[derive(Debug)]
struct CountedCall<C> {
    line: Line,
    places: usize,
    what: C,
}

impl<C> Default for InFlight<C> {
    fn default() -> Self {
        let (calls, per_worker) = (HashMap::new(), HashMap::new());
        Self { calls, per_worker, shares: OwnerShares::default(), places: 0, next_tag: 0 }
    }
}

impl<C> InFlight<C> {
    /// A call is submitted that takes this number of places. Returns the tag by which its answer comes back. Calls of a
    /// turn come in the order of their claims. If all calls of one owner came first, [`BEHIND`] would cut off what the
    /// other owners lack.
    pub fn insert(&mut self, line: Line, places: usize, what: C) -> u64 {
        self.next_tag += 1;
        *self.per_worker.entry(line.worker).or_default() += 1;
        self.shares.add(line, places);
        self.places += places;
        self.calls.insert(self.next_tag, CountedCall { line, places, what });
        self.next_tag
    }

    /// A call has ended.
    pub fn remove(&mut self, tag: u64) -> Option<C> {
        let call = self.calls.remove(&tag)?;
        if let Some(count) = self.per_worker.get_mut(&call.line.worker) {
            *count -= 1;
        }
        self.shares.remove(call.line, call.places);
        self.places -= call.places;
        Some(call.what)
    }

    /// All calls, each with its tag.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &C)> {
        self.calls.iter().map(|(tag, call)| (*tag, &call.what))
    }

    /// How many calls are under way.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether no call is under way.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// How many calls to this worker are under way.
    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).copied().unwrap_or(0)
    }
}

/// How many more calls may be made now: in all, for each worker, and for each owner.
#[derive(Clone, Debug, Default)]
pub struct Room {
    total: usize,
    per_worker: HashMap<WorkerId, Places>,
    shares: OwnerShares,
}

/// The places of a worker.
#[derive(Clone, Copy, Debug)]
struct Places {
    free: usize,
    /// For a probe only. Any owner may make it, and it counts in no share.
    is_probe: bool,
}

/// The lines to scan.
#[derive(Clone, Debug, Default)]
pub struct LinesToScan {
    /// Lines, each with the most due calls to read.
    pub lines: Vec<(Line, usize)>,
    /// Lines that have places too, but come after the lines above.
    pub passed_over: Vec<Line>,
}

impl Room {
    /// `workers` gives each worker's own limit, and `admits` the decision of its breaker. See [`places`].
    pub fn new<C>(
        in_flight: &InFlight<C>,
        max_calls: usize,
        max_connections: usize,
        workers: &[(WorkerId, usize)],
        mut admits: impl FnMut(WorkerId) -> Admission,
    ) -> Self {
        let total = max_calls.saturating_sub(in_flight.places);
        let of_worker = |limit: &usize| places(*limit, max_calls, max_connections, workers.len());
        let places = |(id, limit): &(WorkerId, usize)| {
            let admission = admits(*id);
            let free = match admission {
                Admission::All => of_worker(limit).saturating_sub(in_flight.of_worker(*id)),
                // Besides calls that have been hanging since before the breaker opened.
                Admission::Probe => 1,
                Admission::None => 0,
            };
            (*id, Places { free, is_probe: matches!(admission, Admission::Probe) })
        };
        Self { total, per_worker: workers.iter().map(places).collect(), shares: in_flight.shares.clone() }
    }

    /// How many more calls may be made in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many more calls may be made to this worker, of all owners.
    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).map_or(0, |places| places.free).min(self.total)
    }

    /// How many more calls of this owner may be made to this worker, if no other owner makes any.
    pub fn of_line(&self, line: Line) -> usize {
        let free = self.of_worker(line.worker);
        if self.per_worker.get(&line.worker).is_none_or(|places| places.is_probe) {
            return free;
        }
        let at_worker = fair(self.shares.of(line).calls, free);
        at_worker.min(fair(self.shares.of_owner(line.owner), self.total))
    }

    /// Whether any call may be made.
    pub fn has_any(&self) -> bool {
        self.total > 0 && self.per_worker.values().any(|places| places.free > 0)
    }

    /// Whether there is a place for a call of this line.
    pub fn has(&self, line: Line) -> bool {
        self.of_line(line) > 0
    }

    /// Counts a call of this line as one that has a place, and leaves the place to other calls.
    pub fn count(&mut self, line: Line) {
        self.shares.add(line, 1);
    }

    /// Takes a place for a call of this line, if there is one.
    pub fn take(&mut self, line: Line) -> bool {
        self.take_places(line, 1)
    }

    /// Like [`Room::take`], for a call with several places. If one place is free, the call gets it and takes as many as
    /// are free.
    pub fn take_places(&mut self, line: Line, taken: usize) -> bool {
        if !self.has(line) {
            return false;
        }
        if let Some(places) = self.per_worker.get_mut(&line.worker) {
            places.free -= 1;
        }
        self.total = self.total.saturating_sub(taken);
        self.shares.add(line, taken);
        true
    }

    /// The order in which lines get places: the lowest rank first. `nth`: the position of the call in its line, from 0.
    pub fn rank(&self, line: Line, nth: usize) -> (usize, u64) {
        let share = self.shares.of(line);
        (share.calls + nth, self.shares.got(line))
    }

    /// Whether the next call of `other` goes before the next one of `line`, if both want a place.
    pub fn goes_before(&self, other: Line, line: Line) -> bool {
        other.worker == line.worker && other != line && self.rank(other, 0).0 <= self.rank(line, 0).0
    }

    /// How many due calls to read of each line. `lines` says of each line whether it may have due calls. At each
    /// worker, the lines that may share twice the places, because a found call may not be made. Lines beyond that
    /// number are passed over. (Else each of hundreds of owners would have as many calls read as it may have places.)
    pub fn wanted(&self, lines: impl IntoIterator<Item = (Line, bool)>, at_most: usize) -> LinesToScan {
        let mut wanted = LinesToScan::default();
        let mut waiting = HashMap::<_, Vec<_>>::new();
        for (line, waits) in lines {
            match self.of_line(line).min(at_most) {
                0 => {}
                places if waits => waiting.entry(line.worker).or_default().push((self.rank(line, 0), line, places)),
                places => wanted.lines.push((line, places)),
            }
        }
        for (worker, mut lines) in waiting {
            let calls = 2 * self.of_worker(worker).min(at_most);
            lines.sort_unstable();
            wanted.passed_over.extend(lines.drain(calls.min(lines.len())..).map(|(_, line, _)| line));
            let of_each = calls.div_ceil(lines.len());
            wanted.lines.extend(lines.into_iter().map(|(_, line, places)| (line, places.min(of_each))));
        }
        wanted
    }
}
