//! Which owners have timers or messages, and how many of each owner a turn takes.
//!
//! The rows of each owner are a range of an index, in the order in which they come due or came in. So a turn takes fair
//! shares, and a scan for one owner passes no rows of another. A scan from the head ([`crate::due_scan`]) finds out
//! which owners there are. The other scans use what that one has found, and what turns have written since.
//!
//! For timers, the earliest due time of each owner is known. Until then, no scan is made for that owner. Messages are
//! scanned for all owners that had some recently, because the sender does not notify the engine of their owner.
//!
//! Limitations: a new owner is found by the next scan from the head, or when a turn writes a row of that owner.

use crate::room::Owner;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// An owner is forgotten after this time without rows.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The owners that are known. `T` is the order in which rows are taken: a due time or an id.
#[derive(Debug)]
pub struct DueOwners<T> {
    known: BTreeMap<Owner, KnownDue<T>>,
}

#[derive(Debug)]
struct KnownDue<T> {
    /// The owner has no row before this one. None: no row at all.
    first: Option<T>,
    /// When the owner had a row for the last time.
    seen: Instant,
}

impl<T> Default for DueOwners<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> DueOwners<T> {
    /// A scan from the head has found these owners, each with its first row.
    pub fn found(&mut self, heads: impl IntoIterator<Item = (Owner, T)>, now: Instant) {
        for (owner, first) in heads {
            self.known.insert(owner, KnownDue { first: Some(first), seen: now });
        }
        self.known.retain(|_, known| now.saturating_duration_since(known.seen) <= FORGOTTEN_AFTER);
    }

    /// A turn has written a row of this owner.
    pub fn note(&mut self, owner: Owner, at: T, now: Instant) {
        let known = self.known.entry(owner).or_insert(KnownDue { first: None, seen: now });
        known.first = Some(known.first.map_or(at, |first| first.min(at)));
        known.seen = now;
    }

    /// A scan of this owner was committed: the rows before `first` are taken. `first` None: no other row is left.
    /// `any`: the scan found rows.
    pub fn taken(&mut self, owner: Owner, first: Option<T>, any: bool, now: Instant) {
        if let Some(known) = self.known.get_mut(&owner) {
            known.first = first;
            known.seen = if any { now } else { known.seen };
        }
    }

    /// The owner has no row before this one.
    pub fn first(&self, owner: Owner) -> Option<T> {
        self.known.get(&owner).and_then(|known| known.first)
    }

    /// Where a scan for this owner begins, if all visible rows before `cursor` were taken. A row that was written since
    /// may come before the cursor, if the clock was set back.
    pub fn since(&self, owner: Owner, cursor: Option<T>) -> Option<T> {
        cursor.map(|cursor| self.first(owner).map_or(cursor, |first| first.min(cursor)))
    }

    /// All known owners.
    pub fn all(&self) -> impl Iterator<Item = Owner> + '_ {
        self.known.keys().copied()
    }

    /// Owners that may have a row up to `now`.
    pub fn due(&self, now: T) -> impl Iterator<Item = Owner> + '_ {
        let due = move |known: &KnownDue<T>| known.first.is_some_and(|first| first <= now);
        self.known.iter().filter(move |(_, known)| due(known)).map(|(owner, _)| *owner)
    }

    /// The earliest row that may exist after `now`.
    pub fn next(&self, now: T) -> Option<T> {
        self.known.values().filter_map(|known| known.first).filter(|first| *first > now).min()
    }
}

/// How many rows to read of each owner, if this number of owners have some. The sum may exceed the limit: [`in_turns`]
/// applies it.
pub fn share(limit: usize, owners: usize) -> usize {
    limit.div_ceil(owners.max(1))
}

/// The rows that a turn takes, and the first row of each owner that it leaves.
pub struct InTurns<I, T> {
    /// In the order in which the turn takes them.
    pub taken: Vec<I>,
    /// The first row that each owner has left over.
    pub left: HashMap<Owner, T>,
}

/// Takes up to `limit` rows: of each owner the first, then of each the second, and so on. The rows of one owner keep
/// their order. The order of the owners changes with each turn: if a turn has bytes for one large row only, it is
/// another owner's each time.
pub fn in_turns<I, T: Ord + Copy>(
    found: Vec<I>,
    limit: usize,
    turn: i64,
    of: impl Fn(&I) -> (Owner, T),
) -> InTurns<I, T> {
    let mut places = HashMap::<Owner, (usize, u64)>::new();
    let nth = |item: &I| {
        let (owner, _) = of(item);
        let (nth, shuffled) = places.entry(owner).or_insert_with(|| (0, shuffled(owner, turn)));
        *nth += 1;
        (*nth, *shuffled)
    };
    let places: Vec<_> = found.iter().map(nth).collect();
    let mut taken: Vec<_> = places.into_iter().zip(found).collect();
    taken.sort_by_key(|(place, _)| *place);
    let cut = taken.split_off(limit.min(taken.len()));
    let mut left = HashMap::new();
    for (_, item) in cut {
        let (owner, at) = of(&item);
        let first = left.entry(owner).or_insert(at);
        *first = at.min(*first);
    }
    InTurns { taken: taken.into_iter().map(|(_, item)| item).collect(), left }
}

fn shuffled(owner: Owner, turn: i64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (owner, turn).hash(&mut hasher);
    hasher.finish()
}
