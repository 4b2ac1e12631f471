//! Roles that have reached a quota whose sum is in no row. The scheduler of a database counts from time to time, and
//! writes here which roles have reached a limit. Functions and answers only read.
//!
//! Only the scheduler of a database writes the places of its roles, and clears them when it ends. A place is found by
//! one word of database and role. A role counts only while its place has a limit.
use super::{Shared, shared};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most roles of all databases together, for each quota.
pub const PLACES: usize = 512;

/// Which quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Running processes.
    Running,
    /// Messages in global queues, or their bytes.
    Messages,
}

pub(super) type Cells = [[OverCell; PLACES]; 2];

#[repr(C)]
pub(super) struct OverCell {
    /// Database and role; zero: free.
    key: AtomicU64,
    /// The limit that the role has reached.
    limit: AtomicU32,
}

fn key(database: pg_sys::Oid, role: pg_sys::Oid) -> u64 {
    u64::from(database.to_u32()) << 32 | u64::from(role.to_u32())
}

/// The limit of this quota that the role has reached, if any.
pub fn limit(database: pg_sys::Oid, role: pg_sys::Oid, quota: Quota) -> Option<u32> {
    let shared = shared()?;
    if shared.over_in_use.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let cell = find(shared, quota, key(database, role))?;
    Some(cell.limit.load(Ordering::SeqCst)).filter(|limit| *limit > 0)
}

/// Sets which roles of the database have reached their limits of this quota. Only its scheduler may call it.
pub fn set(database: pg_sys::Oid, quota: Quota, over: &[(pg_sys::Oid, u32)]) {
    let Some(shared) = shared() else { return };
    for cell in &shared.over[quota as usize] {
        let of = cell.key.load(Ordering::SeqCst);
        if of >> 32 == u64::from(database.to_u32()) && over.iter().all(|(role, _)| key(database, *role) != of) {
            cell.limit.store(0, Ordering::SeqCst);
            cell.key.store(0, Ordering::SeqCst);
            shared.over_in_use.fetch_sub(1, Ordering::SeqCst);
        }
    }
    for (role, limit) in over {
        let key = key(database, *role);
        let taken = find(shared, quota, key).or_else(|| {
            let free = |cell: &&OverCell| cell.key.compare_exchange(0, key, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            let cell = shared.over[quota as usize].iter().find(free)?;
            shared.over_in_use.fetch_add(1, Ordering::SeqCst);
            Some(cell)
        });
        // A role without a place is not refused.
        if let Some(cell) = taken {
            cell.limit.store(*limit, Ordering::SeqCst);
        }
    }
}

/// Clears the places of this database. Can't fail.
pub fn clear(database: pg_sys::Oid) {
    set(database, Quota::Running, &[]);
    set(database, Quota::Messages, &[]);
}

fn find(shared: &'static Shared, quota: Quota, key: u64) -> Option<&'static OverCell> {
    shared.over[quota as usize].iter().find(|cell| cell.key.load(Ordering::SeqCst) == key)
}
