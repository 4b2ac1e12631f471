//! Marks of slow things in a database: tables, functions, and roles whose steps have ended an engine process.
//!
//! - [`MarkKind::Slow`]: the scheduler sets it if one use of a table exceeded `xdb.apply_timeout`. For ten minutes, steps
//!   of the table run in a runner.
//! - [`MarkKind::Deadly`]: an engine process that can't be cancelled in a table sets it, and ends. For ten minutes, no
//!   process uses the table.
//! - [`MarkKind::Killer`]: the same process sets it. For an hour, all steps of the role that use tables run in a runner.
//!
//! A runner is the first process that uses a deadly table again. If the table ends the runner, the runner sets both
//! marks again. So each role ends the scheduler at most once, even with several such tables. No process has to wait for
//! the tables of a role.
//!
//! The marks are in shared memory, by the slot of the database's scheduler. They outlive the process that sets them.
//!
//! Limitations: marks may be lost at any moment. Then the scheduler has to find the slow tables again.
use super::slot::{Role, Slot};
use super::{clock_offset, shared};
use crate::pg::raw;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Most marks of one database. If all are in use, a new mark replaces the oldest mark of the first [`MarkKind`] that has
/// one. So marks of slow tables never replace the other kinds.
pub const PLACES: usize = 64;

const MINUTE: i64 = 60_000_000;

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MarkKind {
    /// A table or a function took too long.
    Slow = 1,
    /// A process could not be cancelled in this table or function.
    Deadly = 2,
    /// The role whose step could not be cancelled.
    Killer = 3,
}

impl MarkKind {
    const ALL: [Self; 3] = [Self::Slow, Self::Deadly, Self::Killer];

    fn lasts(self) -> i64 {
        if self == Self::Killer { 60 * MINUTE } else { 10 * MINUTE }
    }
}

/// A mark of a table, a function or a role. Limitation: a table and a function may have the same oid. Then both are
/// marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlowMark {
    pub kind: MarkKind,
    pub oid: u32,
}

#[repr(C)]
pub(super) struct SlowMarks([MarkPlace; PLACES]);

#[repr(C)]
struct MarkPlace {
    /// Kind and oid. Zero: free. Written last.
    mark: AtomicU64,
    /// Process time, which `xdb.now` may shift. Zero: free.
    since: AtomicI64,
}

impl MarkPlace {
    /// The mark in this place, unless it has expired. Setting the clock back by more than the mark's age ends it too.
    fn mark(&self, now: i64) -> Option<SlowMark> {
        let word = self.mark.load(Ordering::SeqCst);
        let kind = MarkKind::ALL.into_iter().find(|kind| *kind as u64 == word >> 32)?;
        let age = now.saturating_sub(self.since.load(Ordering::SeqCst));
        (0..kind.lasts()).contains(&age).then_some(SlowMark { kind, oid: word as u32 })
    }
}

fn now() -> i64 {
    raw::now_micros().saturating_add(clock_offset())
}

fn places(database: pg_sys::Oid) -> Option<&'static [MarkPlace]> {
    let slot = Slot::find(database, Role::Scheduler)?;
    Some(&shared()?.slow[slot.index()].0)
}

/// Sets a mark in this database. Can't fail.
pub fn mark(database: pg_sys::Oid, mark: SlowMark) {
    let Some(places) = places(database) else { return };
    let now = now();
    let same = places.iter().find(|place| place.mark(now) == Some(mark));
    let kind = |place: &MarkPlace| place.mark(now).map(|mark| mark.kind as u32);
    let least = || places.iter().min_by_key(|place| (kind(place), place.since.load(Ordering::SeqCst)));
    if let Some(place) = same.or_else(least) {
        place.mark.store(0, Ordering::SeqCst);
        place.since.store(now, Ordering::SeqCst);
        place.mark.store((mark.kind as u64) << 32 | u64::from(mark.oid), Ordering::SeqCst);
    }
}

/// Records that this process ends because it can't be cancelled in this table, in a step of this role. `owner` is zero
/// if the scheduler never runs such a step. Called by a signal handler.
pub fn ends_process(table: u32, owner: u32) {
    let Some(slot) = Slot::mine() else { return };
    mark(slot.database(), SlowMark { kind: MarkKind::Deadly, oid: table });
    if owner != 0 {
        mark(slot.database(), SlowMark { kind: MarkKind::Killer, oid: owner });
    }
}

/// The current marks of this database.
pub fn marks(database: pg_sys::Oid) -> impl Iterator<Item = SlowMark> {
    let now = now();
    places(database).unwrap_or_default().iter().filter_map(move |place| place.mark(now))
}

/// Clears the marks of this slot's database. Can't fail.
pub(super) fn clear(slot: usize) {
    for place in shared().into_iter().filter_map(|shared| shared.slow.get(slot)).flat_map(|marks| &marks.0) {
        place.mark.store(0, Ordering::SeqCst);
        place.since.store(0, Ordering::SeqCst);
    }
}
