//! Where rows of users' tables are that steps could not lock: a session that asks what holds a process up looks there who has.
//!
//! Hints, and no more: whoever reads one looks who has locked the row now. The newest take the places of the oldest.
use super::{shared, with_lock};
use crate::pg::raw;
use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::hash::{DefaultHasher, Hash, Hasher};

const PLACES: usize = 64;

/// Where a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RowPlace {
    /// The table, or the partition, by its oid.
    pub table: u32,
    pub block: u32,
    pub offset: u16,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Noted {
    /// Zero: nothing is noted here.
    database: u32,
    /// As it is mapped.
    relation: u32,
    key: u64,
    place: RowPlace,
    writes_key: bool,
    at: i64,
}

/// A row that could not be locked.
#[derive(Clone, Copy, Debug)]
pub struct LockedRow {
    pub place: RowPlace,
    /// A column of one of its keys was to be written.
    pub writes_key: bool,
    /// How long ago that was, in microseconds.
    pub ago: i64,
}

/// Read and written under the lock of the shared memory only.
#[repr(C)]
pub(super) struct Places(UnsafeCell<[Noted; PLACES]>);

// SAFETY: the content is only touched inside `with_lock`.
unsafe impl Sync for Places {}

fn hash(key: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// Notes that the row with this key could not be locked just now.
pub fn note(database: pg_sys::Oid, relation: u32, key: &[String], place: RowPlace, writes_key: bool) {
    let Some(shared) = shared() else { return };
    let new = Noted { database: database.to_u32(), relation, key: hash(key), place, writes_key, at: raw::now_micros() };
    let is_same = |old: &Noted| (old.database, old.relation, old.key) == (new.database, new.relation, new.key);
    with_lock(true, || {
        // SAFETY: under the lock, exclusively.
        let noted = unsafe { &mut *shared.row_places.0.get() };
        let same = noted.iter().position(is_same);
        let oldest = || noted.iter().enumerate().min_by_key(|(_, old)| old.at).map_or(0, |(index, _)| index);
        let index = same.unwrap_or_else(oldest);
        noted[index] = new;
    });
}

/// This row as it was when it could not be locked last.
pub fn last(database: pg_sys::Oid, relation: u32, key: &[String]) -> Option<LockedRow> {
    let shared = shared()?;
    let key = hash(key);
    let noted = with_lock(false, || {
        // SAFETY: under the lock.
        unsafe { *shared.row_places.0.get() }
    });
    let found =
        noted.iter().find(|noted| (noted.database, noted.relation, noted.key) == (database.to_u32(), relation, key))?;
    Some(LockedRow { place: found.place, writes_key: found.writes_key, ago: raw::now_micros() - found.at })
}
