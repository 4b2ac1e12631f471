//! Roles that have used up a quota which no row has the sum of. The scheduler of a database counts from time to time, and says here
//! who is over; functions and answers look here alone.
//!
//! Only the scheduler of a database writes the places of its roles, and clears them when it ends. A place is found by database and
//! role in one word, and says nothing until a limit stands in it: whoever reads while it changes hands sees nobody over.
use super::{Shared, shared};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Roles of all databases together that can be over.
pub const PLACES: usize = 512;

/// What there is too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Running processes.
    Running,
    /// Messages in global queues, or bytes of them.
    Messages,
}

const KINDS: usize = 2;

#[repr(C)]
pub(super) struct Cell {
    /// Database and role; zero: free.
    key: AtomicU64,
    /// The limit that has been reached, by kind; zero: it has not.
    limits: [AtomicU32; KINDS],
}

fn key(database: pg_sys::Oid, role: pg_sys::Oid) -> u64 {
    u64::from(database.to_u32()) << 32 | u64::from(role.to_u32())
}

/// The limit that this role has reached, if it has reached one of this kind.
pub fn limit(database: pg_sys::Oid, role: pg_sys::Oid, kind: Kind) -> Option<u32> {
    let shared = shared()?;
    if shared.over_in_use.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let key = key(database, role);
    let cell = shared.over.iter().find(|cell| cell.key.load(Ordering::SeqCst) == key)?;
    Some(cell.limits[kind as usize].load(Ordering::SeqCst)).filter(|limit| *limit > 0)
}

/// These roles of the database have reached their limits of this kind, and no others. For its scheduler alone.
pub fn set(database: pg_sys::Oid, kind: Kind, over: &[(pg_sys::Oid, u32)]) {
    let Some(shared) = shared() else { return };
    for cell in of(shared, database) {
        let role = cell.key.load(Ordering::SeqCst) as u32;
        if over.iter().all(|(other, _)| other.to_u32() != role) {
            cell.limits[kind as usize].store(0, Ordering::SeqCst);
            free_if_unused(shared, cell);
        }
    }
    for (role, limit) in over {
        let key = key(database, *role);
        let known = of(shared, database).find(|cell| cell.key.load(Ordering::SeqCst) == key);
        let taken = known.or_else(|| {
            let free = |cell: &&Cell| cell.key.compare_exchange(0, key, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            let cell = shared.over.iter().find(free)?;
            shared.over_in_use.fetch_add(1, Ordering::SeqCst);
            Some(cell)
        });
        // Without a place nobody is told of it. Those behind may have one, of the other kind.
        if let Some(cell) = taken {
            cell.limits[kind as usize].store(*limit, Ordering::SeqCst);
        }
    }
}

/// Nobody of this database is over. Cannot fail.
pub fn clear(database: pg_sys::Oid) {
    let Some(shared) = shared() else { return };
    for cell in of(shared, database) {
        cell.limits.iter().for_each(|limit| limit.store(0, Ordering::SeqCst));
        free_if_unused(shared, cell);
    }
}

fn of(shared: &'static Shared, database: pg_sys::Oid) -> impl Iterator<Item = &'static Cell> {
    shared.over.iter().filter(move |cell| cell.key.load(Ordering::SeqCst) >> 32 == u64::from(database.to_u32()))
}

fn free_if_unused(shared: &Shared, cell: &Cell) {
    if cell.limits.iter().all(|limit| limit.load(Ordering::SeqCst) == 0) {
        cell.key.store(0, Ordering::SeqCst);
        shared.over_in_use.fetch_sub(1, Ordering::SeqCst);
    }
}
