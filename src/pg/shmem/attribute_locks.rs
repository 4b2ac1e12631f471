//! Locks on attributes as the scheduler of a database shows them, and the objects that it asks sessions to leave alone.
//!
//! Nothing depends on what stands here: the lock table is in the scheduler's memory, and the optimistic check decides. The slot
//! of each scheduler has a *lock status*. Who has the slot writes it, and clears it before the slot may be somebody else's; so a
//! counter that is odd during a change is enough for readers to see all of a change or nothing of it. Entries come from a pool
//! that all of them share.
//!
//! Full arrays: who is not shown is counted; an object without a mark has none, and a state waits longer for it.
use super::shared;
use super::slot::{EngineState, Role, Slot};
use super::waiter::{self, words};
use pgrx::pg_sys;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use xdb_sched::lock_table::LockMode;

/// One for the slot of each scheduler.
pub const LOCK_STATUSES: usize = super::slot::SCHEDULERS;
/// Entries of all databases together.
pub const ENTRIES: usize = 1024;
/// Entries of one database.
const ENTRIES_OF_DATABASE: usize = 256;
/// Marks of one database.
const MARKS: usize = 64;

/// So long who locks rows leaves marked ones alone. The states they are marked for may be held up by others, or by a worker.
pub const RESPECTED_FOR: Duration = Duration::from_secs(5);

const NAME_WORDS: usize = NAME_BYTES / 8;
/// Object, execution, due, state and mode, granted, name.
const WORDS: usize = 2 + 2 + 1 + 1 + 1 + NAME_WORDS;

/// How often a reader begins again. A change takes microseconds, and readers let others run between two attempts, so only a
/// scheduler that was stopped in the middle of one makes them give up.
const ATTEMPTS: usize = 1000;

#[repr(C)]
pub(super) struct LockStatus {
    /// Not zero: sessions have ended calls.
    calls_over: AtomicU32,
    shown: Version,
    unshown: AtomicU64,
    marked: Version,
    marks: AtomicU32,
    mark: [Mark; MARKS],
}

#[repr(C)]
struct Mark {
    object: [AtomicU64; 2],
    mode: AtomicU32,
}

#[repr(C)]
pub(super) struct Entry {
    /// Index of the scheduler's slot plus one; zero when it is free.
    slot: AtomicU32,
    /// Place in the list of the slot.
    place: AtomicU32,
    words: [AtomicU64; WORDS],
}

/// Counts changes; odd while there is one.
#[repr(C)]
struct Version(AtomicU64);

impl Version {
    fn change(&self, change: impl FnOnce()) {
        let number = self.0.load(Ordering::SeqCst) | 1;
        self.0.store(number, Ordering::SeqCst);
        change();
        self.0.store(number + 1, Ordering::SeqCst);
    }

    fn read<T>(&self, read: impl Fn() -> T) -> Option<T> {
        (0..ATTEMPTS).find_map(|attempt| {
            if attempt > 0 {
                std::thread::yield_now();
            }
            let before = self.0.load(Ordering::SeqCst);
            let value = before.is_multiple_of(2).then(&read)?;
            (self.0.load(Ordering::SeqCst) == before).then_some(value)
        })
    }
}

/// Bytes of a name that is shown.
pub const NAME_BYTES: usize = 96;

/// What is locked, for people: cut between characters, filled up with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// The beginning of a name that is too long.
    pub fn new(text: &str) -> Self {
        let length = text.floor_char_boundary(NAME_BYTES);
        let mut bytes = [0; NAME_BYTES];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self(bytes)
    }

    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        std::str::from_utf8(&self.0[..length]).unwrap_or_default()
    }
}

/// A lock that a call has or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub object: [u8; 16],
    pub execution: [u8; 16],
    pub state_seq: u32,
    /// The place of the mode in `LockMode::ALL`.
    pub mode: u32,
    pub granted: bool,
    /// Since when the call is due, in microseconds since the server's epoch.
    pub due: i64,
    pub name: Name,
}

fn bytes([high, low]: [u64; 2]) -> [u8; 16] {
    ((u128::from(high) << 64) | u128::from(low)).to_be_bytes()
}

impl Shown {
    fn to_words(self) -> [u64; WORDS] {
        let mut all = [0; WORDS];
        all[..2].copy_from_slice(&words(&self.object));
        all[2..4].copy_from_slice(&words(&self.execution));
        all[4] = self.due as u64;
        all[5] = (u64::from(self.state_seq) << 32) | u64::from(self.mode);
        all[6] = u64::from(self.granted);
        for (word, bytes) in all[7..].iter_mut().zip(self.name.0.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        all
    }

    fn from_words(all: [u64; WORDS]) -> Self {
        let mut name = [0; NAME_BYTES];
        for (bytes, word) in name.as_chunks_mut::<8>().0.iter_mut().zip(&all[7..]) {
            *bytes = word.to_ne_bytes();
        }
        Self {
            object: bytes([all[0], all[1]]),
            execution: bytes([all[2], all[3]]),
            due: all[4] as i64,
            state_seq: (all[5] >> 32) as u32,
            mode: all[5] as u32,
            granted: all[6] != 0,
            name: Name(name),
        }
    }
}

/// The slot of the database's scheduler, and its lock status.
fn find(database: pg_sys::Oid) -> Option<(Slot, &'static LockStatus)> {
    let slot = Slot::find(database, Role::Scheduler)?;
    Some((slot, status_of(slot)?))
}

fn status_of(slot: Slot) -> Option<&'static LockStatus> {
    shared()?.lock_statuses.get(slot.index())
}

/// What entries say of their slot.
fn number_of(slot: Slot) -> u32 {
    slot.index() as u32 + 1
}

/// Replaces what is shown of this database; `waiting_unshown` counts calls that wait and are not among the entries. Of more
/// than 256 entries those who wait come first, in the order in which they are given; who finds no place is counted.
///
/// Only for the scheduler whose slot it is. Never waits.
pub fn show(slot: Slot, entries: &[Shown], waiting_unshown: usize) {
    let (Some(status), Some(shared)) = (status_of(slot), shared()) else { return };
    let number = number_of(slot);
    let has = |entry: &Entry| entry.slot.load(Ordering::SeqCst) == number;
    let take = |entry: &Entry| entry.slot.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let wanted = entries.len().min(ENTRIES_OF_DATABASE);
    status.shown.change(|| {
        let mut places: Vec<_> = shared.entries.iter().filter(|entry| has(entry)).collect();
        let missing = wanted.saturating_sub(places.len());
        places.extend(shared.entries.iter().filter(|entry| take(entry)).take(missing));
        let wait_first = entries.iter().filter(|entry| !entry.granted).chain(entries.iter().filter(|e| e.granted));
        let mut all = wait_first.take(ENTRIES_OF_DATABASE).zip(0..);
        for place in places {
            match all.next() {
                Some((shown, number)) => {
                    place.place.store(number, Ordering::SeqCst);
                    place.words.iter().zip(shown.to_words()).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
                }
                None => place.slot.store(0, Ordering::SeqCst),
            }
        }
        let first_unplaced = all.next().map_or(wanted, |(_, number)| number as usize);
        let call = |entry: &Shown| (entry.execution, entry.state_seq);
        let mut waiting = entries.iter().filter(|entry| !entry.granted);
        let placed: HashSet<_> = waiting.by_ref().take(first_unplaced).map(call).collect();
        let unplaced: HashSet<_> = waiting.map(call).filter(|call| !placed.contains(call)).collect();
        let unshown = waiting_unshown + unplaced.len();
        status.unshown.store(unshown as u64, Ordering::SeqCst);
    });
}

/// What the scheduler of this database shows, those who wait first, and how many more calls wait.
pub fn shown(database: pg_sys::Oid) -> (Vec<Shown>, usize) {
    let (Some((slot, status)), Some(shared)) = (find(database), shared()) else { return Default::default() };
    let number = number_of(slot);
    let read = || {
        // Again: meanwhile the slot may have become that of another database.
        if slot.database() != database {
            return Default::default();
        }
        let mine = shared.entries.iter().filter(|entry| entry.slot.load(Ordering::SeqCst) == number);
        let copy = |entry: &Entry| {
            let words = entry.words.each_ref().map(|word| word.load(Ordering::SeqCst));
            (entry.place.load(Ordering::SeqCst), Shown::from_words(words))
        };
        let entries: Vec<_> = mine.map(copy).collect();
        (entries, status.unshown.load(Ordering::SeqCst) as usize)
    };
    let (mut entries, unshown) = status.shown.read(read).unwrap_or_default();
    entries.sort_unstable_by_key(|(place, _)| *place);
    (entries.into_iter().map(|(_, shown)| shown).collect(), unshown)
}

/// Replaces the marks of this database: sessions that are about to lock one of these objects, in a mode that conflicts with
/// the one given, leave it alone for a while. Who waits for what is marked no longer is woken. Of more than 64 the first ones
/// count.
///
/// Only for the scheduler whose slot it is. Never waits; cheap when nothing has changed.
pub fn set_marks(slot: Slot, objects: &[([u8; 16], u32)]) {
    let objects = &objects[..objects.len().min(MARKS)];
    let Some(status) = status_of(slot) else { return };
    // Nobody else writes them.
    let before = status.marks();
    if before == objects {
        return;
    }
    status.marked.change(|| {
        for (mark, (object, mode)) in status.mark.iter().zip(objects) {
            mark.object.iter().zip(words(object)).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
            mark.mode.store(*mode, Ordering::SeqCst);
        }
        status.marks.store(objects.len() as u32, Ordering::SeqCst);
    });
    let gone: BTreeSet<_> = before.into_iter().filter(|mark| !objects.contains(mark)).map(|(object, _)| object).collect();
    if !gone.is_empty() {
        waiter::wake(slot.database(), Some(&gone));
    }
}

impl LockStatus {
    fn marks(&self) -> Vec<([u8; 16], u32)> {
        let count = self.marks.load(Ordering::SeqCst) as usize;
        let read = |mark: &Mark| {
            let object = mark.object.each_ref().map(|word| word.load(Ordering::SeqCst));
            (bytes(object), mark.mode.load(Ordering::SeqCst))
        };
        self.mark.iter().take(count).map(read).collect()
    }
}

/// The scheduler of a database that has marks, and is at work: what one has left that is not counts no more.
fn with_marks(database: pg_sys::Oid) -> Option<(Slot, &'static LockStatus)> {
    find(database)
        .filter(|(slot, status)| status.marks.load(Ordering::SeqCst) > 0 && slot.state() == EngineState::Running)
}

/// Whether there are marks in this database.
pub fn has_marks(database: pg_sys::Oid) -> bool {
    with_marks(database).is_some()
}

/// Whether an object is marked for somebody whom this mode would be in the way of.
pub fn is_marked(database: pg_sys::Oid, object: &[u8; 16], mode: u32) -> bool {
    let known = |number: u32| LockMode::ALL.get(number as usize);
    let conflicts = |marked: u32| known(mode).zip(known(marked)).is_some_and(|(mode, other)| mode.conflicts(*other));
    let Some((slot, status)) = with_marks(database) else { return false };
    let read = || match slot.database() == database {
        true => status.marks(),
        false => Vec::new(),
    };
    let marks = status.marked.read(read).unwrap_or_default();
    marks.iter().any(|(other, marked)| other == object && conflicts(*marked))
}

/// A session has ended calls: what they have is to be given to others. To be called after the commit, and before the scheduler is
/// woken. Without a scheduler nobody has anything. Cannot fail.
pub(crate) fn note_calls_over(database: pg_sys::Oid) {
    if let Some((_, status)) = find(database) {
        status.calls_over.store(1, Ordering::SeqCst);
    }
}

/// Whether sessions have ended calls since this was asked last. To be asked *before* the tables are read.
pub fn take_calls_over(database: pg_sys::Oid) -> bool {
    find(database).is_some_and(|(_, status)| status.calls_over.swap(0, Ordering::SeqCst) != 0)
}

/// Clears the lock status of a scheduler that ends, and wakes who waits for a mark. Before its slot is given up: the next
/// one to have it may write at once. Cannot fail.
pub(super) fn clear(slot: Slot) {
    let (Some(status), Some(shared)) = (status_of(slot), shared()) else { return };
    let number = number_of(slot);
    let was_marked = status.marks.load(Ordering::SeqCst) > 0;
    status.marked.change(|| {
        status.shown.change(|| {
            status.calls_over.store(0, Ordering::SeqCst);
            status.marks.store(0, Ordering::SeqCst);
            status.unshown.store(0, Ordering::SeqCst);
            for entry in shared.entries.iter().filter(|entry| entry.slot.load(Ordering::SeqCst) == number) {
                entry.slot.store(0, Ordering::SeqCst);
            }
        });
    });
    if was_marked {
        waiter::wake(slot.database(), None);
    }
}
