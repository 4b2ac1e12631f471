//! Calls that are under way, and the room that is left for more: in all, at a worker, and there for an owner.
//!
//! **An owner gets a place while its calls under way are fewer than [`SHARE`] times the places that are free** (the dynamic
//! threshold of shared-buffer switches). So nobody is stopped, and nobody gets everything:
//!
//! - An owner alone gets `SHARE` of `SHARE + 1` places; a room of `SHARE` places or fewer wholly.
//! - In a larger room a place is left for whoever has none, however long the calls of the others take.
//! - Those who want more than there is get equal parts: who has more than the others has to wait until they have as much.
//!
//! The same holds for the calls of an owner in all, so that an owner with many workers does not get everything either.
//!
//! A free place goes to the owner with the fewest calls there; of those with as few, to the one whose last call went out first.
//! In rooms that are too small for a free place it is this order by which owners take turns.
//!
//! **A large request takes several places** of those in all, so that the memory of what is under way is bounded, and shared
//! likewise ([`places_of_request`]). How large a request is, is known when it is made: it goes while its owner has any place left.

use crate::breaker::Admission;
use std::collections::HashMap;

/// A worker, as the tables number them.
pub type WorkerId = i32;

/// The oid of a role that owns processes.
pub type Owner = u32;

/// The calls of one owner's processes to one worker: they stand in one line, in the order of their due times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    pub worker: WorkerId,
    pub owner: Owner,
}

/// An owner may have so many calls for each place that is free. More leave less for newcomers, fewer waste room while an owner
/// is alone.
pub const SHARE: usize = 8;

/// When more lines are remembered, those without a call are forgotten: who had its turn last does not matter then.
const REMEMBERED: usize = 1000;

/// A request takes a place for each of these bytes that it begins.
const PLACE: usize = 128 * 1024;

/// How many places a request takes: no more than a sixteenth of them, so that some go out at a time, whatever their size.
pub fn places_of_request(bytes: usize, max_calls: usize) -> usize {
    bytes.div_ceil(PLACE).min(max_calls / 16).max(1)
}

/// How many more calls an owner may have that has `calls` of them, while so many places are free and nobody else takes any.
fn fair(calls: usize, free: usize) -> usize {
    (SHARE * free).saturating_sub(calls).div_ceil(SHARE + 1)
}

/// How many calls a worker with this limit has at one time. While there are several, none gets more than half of the calls, nor of
/// the connections that there can be: one that is slow or dead must not hold up the others.
pub fn places(max_concurrency: usize, max_calls: usize, max_connections: usize, workers: usize) -> usize {
    let share = if workers > 1 { max_calls.min(max_connections).div_ceil(2) } else { max_calls };
    share.min(max_concurrency)
}

/// Whether so many calls leave no place of these for one more, if they are all of one owner; if they are of several, for one more of
/// the owner that has most.
pub fn is_full(calls: usize, places: usize) -> bool {
    fair(calls, places.saturating_sub(calls)) == 0
}

/// What owners have.
#[derive(Clone, Debug, Default)]
struct Shares {
    lines: HashMap<Line, Share>,
    /// Places of the calls to all workers.
    owners: HashMap<Owner, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    calls: usize,
    /// The tag of the last call that went out.
    last: u64,
}

impl Shares {
    fn of(&self, line: Line) -> Share {
        self.lines.get(&line).copied().unwrap_or_default()
    }

    fn of_owner(&self, owner: Owner) -> usize {
        self.owners.get(&owner).copied().unwrap_or(0)
    }

    fn add(&mut self, line: Line, places: usize) -> &mut Share {
        *self.owners.entry(line.owner).or_default() += places;
        let share = self.lines.entry(line).or_default();
        share.calls += 1;
        share
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

/// The calls of one scheduler that are under way, each with what is known of it.
#[derive(Debug)]
pub struct InFlight<C> {
    calls: HashMap<u64, CountedCall<C>>,
    per_worker: HashMap<WorkerId, usize>,
    shares: Shares,
    /// Places that all of them take.
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
        Self { calls, per_worker, shares: Shares::default(), places: 0, next_tag: 0 }
    }
}

impl<C> InFlight<C> {
    /// A call goes out that takes this number of places. Answers with the tag by which it comes back.
    pub fn insert(&mut self, line: Line, places: usize, what: C) -> u64 {
        self.next_tag += 1;
        *self.per_worker.entry(line.worker).or_default() += 1;
        self.shares.add(line, places).last = self.next_tag;
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

    /// All of them, each with its tag.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &C)> {
        self.calls.iter().map(|(tag, call)| (*tag, &call.what))
    }

    pub fn len(&self) -> usize {
        self.calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).copied().unwrap_or(0)
    }
}

/// How many more calls may go out now: in all, per worker, and per owner.
#[derive(Clone, Debug, Default)]
pub struct Room {
    total: usize,
    per_worker: HashMap<WorkerId, Places>,
    shares: Shares,
}

/// The places of a worker.
#[derive(Clone, Copy, Debug)]
struct Places {
    free: usize,
    /// For a probe alone. Whoever is first makes it: it is no share of anything.
    is_probe: bool,
}

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// So many due calls of each of these.
    pub lines: Vec<(Line, usize)>,
    /// There is room for calls of these too, but others come first.
    pub passed_over: Vec<Line>,
}

impl Room {
    /// `workers` gives each worker's own limit, and `admits` what its breaker says. See [`places`].
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
                // Beside those that hang since before the breaker opened.
                Admission::Probe => 1,
                Admission::None => 0,
            };
            (*id, Places { free, is_probe: matches!(admission, Admission::Probe) })
        };
        Self { total, per_worker: workers.iter().map(places).collect(), shares: in_flight.shares.clone() }
    }

    /// How many more calls may go out in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many more calls may go out to this worker, whoever's they are.
    pub fn of_worker(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).map_or(0, |places| places.free).min(self.total)
    }

    /// How many more calls of this owner may go out to this worker, if nobody else's do.
    pub fn of_line(&self, line: Line) -> usize {
        let free = self.of_worker(line.worker);
        if self.per_worker.get(&line.worker).is_none_or(|places| places.is_probe) {
            return free;
        }
        let at_worker = fair(self.shares.of(line).calls, free);
        at_worker.min(fair(self.shares.of_owner(line.owner), self.total))
    }

    /// Whether any call may go out.
    pub fn has_any(&self) -> bool {
        self.total > 0 && self.per_worker.values().any(|places| places.free > 0)
    }

    /// Whether there is a place for a call of this owner to this worker.
    pub fn has(&self, line: Line) -> bool {
        self.of_line(line) > 0
    }

    /// Counts a call of this line as one that has a place, and leaves the place to others.
    pub fn count(&mut self, line: Line) {
        self.shares.add(line, 1);
    }

    /// Takes a place for a call of this owner to this worker, if there is one.
    pub fn take(&mut self, line: Line) -> bool {
        self.take_places(line, 1)
    }

    /// The same for a call that takes several: it goes if one is free, and takes those that are.
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

    /// The order in which lines get places, those with the lowest rank first. `nth`: of the calls of the line that want one, from 0.
    pub fn rank(&self, line: Line, nth: usize) -> (usize, u64) {
        let share = self.shares.of(line);
        (share.calls + nth, share.last)
    }

    /// Whether the next call of `other` goes before the next one of `line`, if both want a place.
    pub fn goes_before(&self, other: Line, line: Line) -> bool {
        other.worker == line.worker && other != line && self.rank(other, 0).0 <= self.rank(line, 0).0
    }

    /// Per line, how many due calls to look for. `lines` says of each whether calls may have been left in it: these share out
    /// what is looked for, twice, because a call that was found need not go out. Where they are more than that, those that come
    /// last are passed over. (Without that, hundreds of owners would each have as many calls looked for as there are places for
    /// one of them, and thousands one each.)
    pub fn wanted(&self, lines: impl IntoIterator<Item = (Line, bool)>, at_most: usize) -> Wanted {
        let mut wanted = Wanted::default();
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
