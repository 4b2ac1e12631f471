//! Marks on objects that calls of states want to lock. RPCs, functions and pull workers avoid a marked object for a
//! while, so that the state gets its lock.
//!
//! A mark is a hint: the lock table is in the scheduler's memory, and the optimistic check decides. Each mark is one
//! word, a hash of the object and the mode that the state wants, so a reader never sees half a mark. Only the scheduler
//! writes the marks of its slot. It clears them before another process may get the slot. Limitations: a call whose
//! object has no mark waits longer.

use super::shared;
use super::slot::{EngineState, Role, Slot};
use super::waiter::{self, words};
use pgrx::pg_sys;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use xdb_sched::lock_table::{LockObject, ObjectMode};

/// Marks of one database.
pub const MARKS: usize = 64;

/// How long a session or function avoids a marked object. Other transactions or a worker may delay the state that the
/// mark belongs to.
pub const RESPECTED_FOR: Duration = Duration::from_secs(5);

/// An object, and the mode in which a state wants to lock it.
pub type LockMark = (LockObject, ObjectMode);

/// The marks of a scheduler. Zero ends them.
pub(super) type Marks = [AtomicU64; MARKS];

/// The word of a mark, which is never zero.
fn word((object, mode): &LockMark) -> u64 {
    words(object)[1] << 3 | (*mode as u64) << 1 | 1
}

/// The marks of a database's scheduler. None if the scheduler makes no turns.
fn of(database: pg_sys::Oid) -> impl Iterator<Item = u64> {
    let slot = Slot::find(database, Role::Scheduler).filter(|slot| slot.state() == EngineState::Running);
    let marks = slot.and_then(|slot| shared()?.marks.get(slot.index()));
    marks.into_iter().flatten().map(|mark| mark.load(Ordering::SeqCst)).take_while(|word| *word != 0)
}

/// Whether anything in this database is marked.
pub fn are_any(database: pg_sys::Oid) -> bool {
    of(database).next().is_some()
}

/// Whether an object is marked in a mode that conflicts with this one.
pub fn is_marked(database: pg_sys::Oid, (object, mode): &LockMark) -> bool {
    let words = ObjectMode::ALL.map(|other| if mode.conflicts(other) { word(&(*object, other)) } else { 0 });
    of(database).any(|mark| words.contains(&mark))
}

/// Replaces the marks of a scheduler, and wakes the sessions that wait for the end of one. Only the scheduler of the
/// slot may call it.
pub fn replace(slot: Slot, before: &[LockMark], marks: &[LockMark]) {
    let Some(shared) = shared() else { return };
    let words = marks.iter().map(word).chain(std::iter::repeat(0));
    shared.marks[slot.index()].iter().zip(words).for_each(|(mark, word)| mark.store(word, Ordering::SeqCst));
    let removed: BTreeSet<_> = before.iter().filter(|mark| !marks.contains(mark)).map(|(object, _)| *object).collect();
    if !removed.is_empty() {
        waiter::wake(slot.database(), Some(&removed));
    }
}

/// Clears the marks of a scheduler that ends, and wakes the sessions that wait in its database. Can't fail.
pub(super) fn clear(slot: Slot) {
    let Some(shared) = shared() else { return };
    let words = shared.marks[slot.index()].iter().map(|mark| mark.swap(0, Ordering::SeqCst));
    if words.fold(false, |any, word| any | (word != 0)) {
        waiter::wake(slot.database(), None);
    }
}
