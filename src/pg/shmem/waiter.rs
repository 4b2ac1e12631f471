//! Places of waiting sessions: for an execution to close or to move, or for calls of a worker. Each process has
//! [`PLACES`] places of its own, so no process can use up another's places.
//!
//! **No event is missed.** A session publishes its place and *then* looks, with a new snapshot. The transaction that
//! makes the event commits and *then* looks for waiting sessions. The later of the two sees the other. A latch alone is
//! not enough: while a session looks, the server may wait and reset the latch. So a wake-up is recorded at the place
//! too.
//!
//! All sessions that wait for an execution are woken together. Each new call of a worker wakes one session that waits
//! for calls of its shard. So a wake-up must not be lost with its session:
//!
//! ```text
//!                 a commit                  the session looks               it has found calls, or none
//!    asleep ─────────────────▶ woken ─────────────────────────▶ looking ─────────────────────────────────▶ asleep
//!                                └────────────── the place is given back: passed on ┘
//! ```
//!
//! 1. A place has one word: whether the place is taken, its position in the drawing above, and how often it was taken.
//!    A wake-up exchanges this word. Either the exchange reaches the session that was seen there, or it fails and
//!    another session gets the wake-up.
//! 2. A *line* is all sessions that wait for the same worker and shards. A place that is given back in `woken` or
//!    `looking` passes its wake-up on to another session of the line. This covers a session that is cancelled, that
//!    ends, or that may no longer claim. It also covers a session that leaves with calls after another commit has woken
//!    it.
//! 3. The first place of a line *watches*: its session looks once per poll interval, and when the next call comes due.
//!    It finds calls that no commit wakes a session for: calls that a rollback or an expired lease made free. A place
//!    that is given back wakes the new first place. The other sessions of the line wait without looking. A call that is
//!    due later wakes the session that watches.
//! 4. A session with calls gives its place back before it waits for anything else.
//!
//! So a due call waits at most one poll interval for a free session of its line, whatever fails.
use super::{Shared, shared};
use crate::pg::raw;
use pgrx::pg_sys;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// How many things one process may wait for at the same time. `wait_for_state` takes two places, and code that a claim
/// runs may wait too.
pub const PLACES: usize = 4;

/// The bits for the state of the session at a place: asleep (0), woken, or looking.
const STANDS: u32 = 3;
const WOKEN: u32 = 1;
const LOOKING: u32 = 2;
const TAKEN: u32 = 4;
/// The bits from this one up count how often the place was taken.
const TIMES: u32 = 8;

/// The shards of a session that does not wait for calls.
const NO_SHARDS: u32 = u32::MAX;

#[repr(C)]
pub(super) struct WaiterCell {
    word: AtomicU32,
    database: AtomicU32,
    key: [AtomicU64; 2],
    /// The first and the last shard that the session waits for, in one word.
    shards: AtomicU32,
}

/// What the session at a place waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SessionLine {
    database: u32,
    key: [u8; 16],
    shards: u32,
}

/// A call that sessions may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewCall {
    pub shard: i16,
    pub is_due: bool,
}

impl SessionLine {
    fn has(&self, call: &NewCall) -> bool {
        let shard = call.shard as u32;
        self.shards != NO_SHARDS && self.shards >> 16 <= shard && shard <= self.shards & 0xffff
    }
}

/// Bytes of all places.
pub(super) fn size() -> usize {
    count() * size_of::<WaiterCell>()
}

/// How many places there are. Call it when libraries may ask for shared memory, or later.
pub(super) fn count() -> usize {
    // SAFETY: set once, before any process asks for shared memory.
    unsafe { pg_sys::MaxBackends as usize * PLACES }
}

/// An id as two words, for two atomics.
pub(super) fn words(id: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_be_bytes(*id);
    [(whole >> 64) as u64, whole as u64]
}

impl WaiterCell {
    /// The word of a taken place, and the line of its session. Both belong together only if the word is still the same
    /// when it is exchanged.
    fn read(&self) -> Option<(u32, SessionLine)> {
        let word = self.word.load(Ordering::SeqCst);
        if word & TAKEN == 0 {
            return None;
        }
        let [high, low] = self.key.each_ref().map(|word| u128::from(word.load(Ordering::SeqCst)));
        let (database, shards) = (self.database.load(Ordering::SeqCst), self.shards.load(Ordering::SeqCst));
        Some((word, SessionLine { database, key: (high << 64 | low).to_be_bytes(), shards }))
    }

    /// Changes the state of the session at this place. Does nothing if the state is not `from`.
    fn turn(&self, from: u32, to: u32) -> bool {
        let turned = |word: u32| (word & STANDS == from).then_some(word & !STANDS | to);
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, turned).is_ok()
    }
}

impl Shared {
    /// The places that have ever been taken.
    fn used(&self) -> &[WaiterCell] {
        &self.waiters()[..self.waiters_until.load(Ordering::SeqCst) as usize]
    }

    /// Wakes the session that was seen at a place. False if the session has left or is already woken.
    fn wake(&self, index: usize, seen: u32) -> bool {
        let is_asleep = |word: u32| word / TAKEN == seen / TAKEN && word & STANDS != WOKEN;
        let woken = |word: u32| is_asleep(word).then_some(word & !STANDS | WOKEN);
        let cell = &self.waiters()[index];
        let is_woken = cell.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, woken).is_ok();
        if is_woken {
            raw::set_latch_of((index / PLACES) as i32);
        }
        is_woken
    }

    /// The places of a line.
    fn of_line(&self, line: SessionLine) -> impl DoubleEndedIterator<Item = (usize, u32)> {
        let of_line = move |(index, cell): (usize, &WaiterCell)| {
            let (word, its) = cell.read()?;
            (its == line).then_some((index, word))
        };
        self.used().iter().enumerate().filter_map(of_line)
    }

    /// Passes on the duties of a session that waited for calls at this place: its wake-up, and watching the line.
    fn pass_on(&self, index: usize, line: SessionLine, was_woken: bool) {
        if was_woken {
            self.of_line(line).rev().any(|(other, word)| self.wake(other, word));
        }
        if let Some((first, word)) = self.of_line(line).next().filter(|(first, _)| *first > index) {
            self.wake(first, word);
        }
    }
}

/// Takes a place of this process. `None` if all are taken, or if there is no shared memory. `shards`: only for sessions
/// that wait for calls.
pub(crate) fn take(database: pg_sys::Oid, key: &[u8; 16], shards: Option<(i16, i16)>) -> Option<usize> {
    let shared = shared()?;
    let first = raw::my_procno()? as usize * PLACES;
    let own = shared.waiters().get(first..first + PLACES)?;
    let nth = own.iter().position(|cell| cell.word.load(Ordering::SeqCst) & TAKEN == 0)?;
    let cell = &own[nth];
    cell.database.store(database.to_u32(), Ordering::SeqCst);
    cell.key.iter().zip(words(key)).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
    let shards = shards.map_or(NO_SHARDS, |(first, last)| (first as u32) << 16 | last as u32);
    cell.shards.store(shards, Ordering::SeqCst);
    shared.waiters_until.fetch_max((first + nth + 1) as u32, Ordering::SeqCst);
    shared.waiters_in_use.fetch_add(1, Ordering::SeqCst);
    cell.word.fetch_or(TAKEN, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    Some(first + nth)
}

fn at<T>(index: usize, body: impl FnOnce(&'static Shared, &'static WaiterCell) -> T) -> Option<T> {
    let shared = shared()?;
    Some(body(shared, shared.waiters().get(index)?))
}

/// Whether this place was woken since the last call. Call it *before* reading the rows that the session waits for.
pub(crate) fn take_woken(index: usize) -> bool {
    at(index, |_, cell| cell.turn(WOKEN, LOOKING)).unwrap_or(false)
}

/// Ends the scan that a wake-up started. The session has found calls, or there are none.
pub(crate) fn served(index: usize) {
    at(index, |_, cell| cell.turn(LOOKING, 0));
}

/// Whether the session of this place watches its line.
pub(crate) fn watches(index: usize) -> bool {
    let is_first = |shared: &'static Shared, cell: &'static WaiterCell| {
        let first = cell.read().and_then(|(_, line)| shared.of_line(line).next());
        first.is_none_or(|(first, _)| first >= index)
    };
    at(index, is_first).unwrap_or(true)
}

/// Gives a place of this process back. Does nothing if the place was given back before. Cannot fail.
pub(crate) fn give_back(index: usize) {
    at(index, |shared, cell| {
        let Some((_, line)) = cell.read() else { return };
        // From here on the word differs, even if this process takes the place again.
        let free = |word: u32| Some((word / TIMES).wrapping_add(1) * TIMES);
        let before = cell.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).unwrap_or_default();
        shared.waiters_in_use.fetch_sub(1, Ordering::SeqCst);
        if line.shards != NO_SHARDS {
            shared.pass_on(index, line, before & STANDS != 0);
        }
    });
}

/// Gives every place of this process back. Cannot fail.
pub(crate) fn give_back_all() {
    if let Some(procno) = raw::my_procno() {
        let first = procno as usize * PLACES;
        (first..first + PLACES).for_each(give_back);
    }
}

/// The places, if any is in use. Call it after the commit of the event that sessions may wait for.
fn in_use() -> Option<&'static Shared> {
    fence(Ordering::SeqCst);
    shared().filter(|shared| shared.waiters_in_use.load(Ordering::SeqCst) > 0)
}

/// Wakes the sessions of this database that wait for one of these keys. `None`: wakes all its waiting sessions. Cannot
/// fail.
///
/// Call it after the commit.
pub(crate) fn wake(database: pg_sys::Oid, keys: Option<&BTreeSet<[u8; 16]>>) {
    let Some(shared) = in_use() else { return };
    for (index, cell) in shared.used().iter().enumerate() {
        if let Some((word, line)) = cell.read()
            && line.database == database.to_u32()
            && keys.is_none_or(|keys| keys.contains(&line.key))
        {
            shared.wake(index, word);
        }
    }
}

/// Wakes one waiting session for each of these calls. For calls that are due later, it wakes a session that watches.
/// Cannot fail.
///
/// Call it after the commit.
pub(crate) fn wake_for_calls(database: pg_sys::Oid, key: &[u8; 16], calls: &[NewCall]) {
    let Some(shared) = in_use() else { return };
    let waits = |(index, cell): (usize, &WaiterCell)| {
        let (word, line) = cell.read()?;
        (line.database == database.to_u32() && line.key == *key).then_some((index, word, line))
    };
    let places = || shared.used().iter().enumerate().filter_map(waits);
    let (mut due, mut later): (Vec<_>, Vec<_>) = calls.iter().partition(|call| call.is_due);
    // From the end: sessions that watch stand in front.
    for (index, word, line) in places().rev() {
        let Some(nth) = due.iter().position(|call| line.has(call)) else { continue };
        if shared.wake(index, word) {
            due.swap_remove(nth);
        }
        if due.is_empty() {
            break;
        }
    }
    for (index, word, line) in places() {
        let left = later.len();
        later.retain(|call| !line.has(call));
        if later.len() < left {
            shared.wake(index, word);
        }
        if later.is_empty() {
            break;
        }
    }
}
