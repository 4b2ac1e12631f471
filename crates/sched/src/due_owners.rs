//! Whose timers, or messages, a turn looks for, and how many of each owner's it takes.
//!
//! Each owner's stand in a range of an index of their own, in the order in which they come due or came in. So nobody's are walked over
//! for those of another, and a turn takes equal parts of all that there are. The scan from the head ([`crate::due_scan`]) finds out
//! whose there are; the others go by what that one has found, and by what the turns have written since.
//!
//! Of timers it is known when the first of each owner comes due, at the earliest: until then nothing is looked for. Messages are looked
//! for among all owners who had some a while ago, since whoever sends them tells nobody whose they are.

use crate::room::Owner;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// So long after there was something of an owner for the last time the owner is forgotten.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The owners that are known. `T` is the order in which theirs are taken: a due time or an id.
#[derive(Debug)]
pub struct DueOwners<T> {
    known: BTreeMap<Owner, KnownDue<T>>,
}

#[derive(Debug)]
struct KnownDue<T> {
    /// There is nothing before this. None: nothing at all.
    first: Option<T>,
    seen: Instant,
}

impl<T> Default for DueOwners<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> DueOwners<T> {
    /// The firsts of all owners who have any now.
    pub fn found(&mut self, heads: impl IntoIterator<Item = (Owner, T)>, now: Instant) {
        for (owner, first) in heads {
            self.known.insert(owner, KnownDue { first: Some(first), seen: now });
        }
        self.known.retain(|_, known| now.saturating_duration_since(known.seen) <= FORGOTTEN_AFTER);
    }

    /// One of this owner's was written.
    pub fn note(&mut self, owner: Owner, at: T, now: Instant) {
        let known = self.known.entry(owner).or_insert(KnownDue { first: None, seen: now });
        known.first = Some(known.first.map_or(at, |first| first.min(at)));
        known.seen = now;
    }

    /// What was before this one of the owner's is taken, if there was any. None: and there is no other.
    pub fn taken(&mut self, owner: Owner, first: Option<T>, any: bool, now: Instant) {
        if let Some(known) = self.known.get_mut(&owner) {
            known.first = first;
            known.seen = if any { now } else { known.seen };
        }
    }

    /// There is nothing of this owner before it.
    pub fn first(&self, owner: Owner) -> Option<T> {
        self.known.get(&owner).and_then(|known| known.first)
    }

    /// Where to look from on for what is this owner's, if all that could be seen before `cursor` was taken: what was written since
    /// may come before that, when a clock was set back.
    pub fn since(&self, owner: Owner, cursor: Option<T>) -> Option<T> {
        cursor.map(|cursor| self.first(owner).map_or(cursor, |first| first.min(cursor)))
    }

    /// Everybody.
    pub fn all(&self) -> impl Iterator<Item = Owner> + '_ {
        self.known.keys().copied()
    }

    /// Those who may have something up to `now`.
    pub fn due(&self, now: T) -> impl Iterator<Item = Owner> + '_ {
        let due = move |known: &KnownDue<T>| known.first.is_some_and(|first| first <= now);
        self.known.iter().filter(move |(_, known)| due(known)).map(|(owner, _)| *owner)
    }

    /// The first that may be there after `now`.
    pub fn next(&self, now: T) -> Option<T> {
        self.known.values().filter_map(|known| known.first).filter(|first| *first > now).min()
    }
}

/// How many to look for of each owner, if so many owners have some. More than one of all is a guess: [`in_turns`] holds the limit.
pub fn share(limit: usize, owners: usize) -> usize {
    limit.div_ceil(owners.max(1))
}

/// What was taken, and the first of each owner that was left.
pub struct InTurns<I, T> {
    pub taken: Vec<I>,
    pub left: HashMap<Owner, T>,
}

/// Takes so many at most, of each owner the first, then the second of each and so on. Those of one owner keep their order. Who comes
/// first among owners is another one in each turn: there may be room for one large item alone, and it shall not be the same owner's
/// each time.
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
