//! Places of the sessions that wait for an execution to close or to move.
//!
//! Nothing is missed: a waiter publishes its place and *then* reads the execution with a new snapshot; a closer commits and
//! *then* looks for waiters. Whichever comes second sees the other. Reading a place while it changes hands can wake somebody
//! for nothing, no more.
//!
//! A latch alone is not enough: reading may wait inside the server, which resets it. So a wake-up is written down at the place too.
use super::{shared, with_lock};
use crate::pg::raw;
use pgrx::pg_sys;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// Sessions that can wait at the same time without polling.
pub const WAITERS: usize = 1024;

/// Places of one role.
pub const WAITERS_OF_ROLE: usize = 128;

#[repr(C)]
pub(super) struct WaiterCell {
    /// The waiting process; zero: the place is free. Written last when the place is taken, and first when it is given back.
    pid: AtomicI32,
    /// Number of the waiting process.
    procno: AtomicI32,
    /// For whom the place is taken.
    role: AtomicU32,
    database: AtomicU32,
    execution: [AtomicU64; 2],
    /// Somebody has woken this waiter since it asked last.
    woken: AtomicU32,
}

/// An id as two atomics hold it.
pub(super) fn words(id: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_be_bytes(*id);
    [(whole >> 64) as u64, whole as u64]
}

/// Takes a place for this process, which waits as this role; `None` when all are taken, or as many as a role may have, or there is
/// no shared memory.
pub(crate) fn take(database: pg_sys::Oid, role: pg_sys::Oid, execution: &[u8; 16]) -> Option<usize> {
    let shared = shared()?;
    let procno = raw::my_procno()?;
    let is_free = |cell: &WaiterCell| cell.pid.load(Ordering::SeqCst) == 0;
    let is_of_role = |cell: &&WaiterCell| !is_free(cell) && cell.role.load(Ordering::SeqCst) == role.to_u32();
    with_lock(true, || {
        if shared.waiters.iter().filter(is_of_role).count() >= WAITERS_OF_ROLE {
            return None;
        }
        let index = shared.waiters.iter().position(is_free)?;
        let cell = &shared.waiters[index];
        shared.waiters_in_use.fetch_add(1, Ordering::SeqCst);
        cell.procno.store(procno, Ordering::SeqCst);
        cell.role.store(role.to_u32(), Ordering::SeqCst);
        cell.database.store(database.to_u32(), Ordering::SeqCst);
        cell.execution.iter().zip(words(execution)).for_each(|(to, word)| to.store(word, Ordering::SeqCst));
        cell.woken.store(0, Ordering::SeqCst);
        cell.pid.store(std::process::id() as i32, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(index)
    })
}

/// Whether this place was woken since this was asked last. To be asked *before* the execution is read.
pub(crate) fn take_woken(index: usize) -> bool {
    shared().is_some_and(|shared| shared.waiters[index].woken.swap(0, Ordering::SeqCst) != 0)
}

/// Gives a place of this process back; one that was given back already is left alone. Cannot fail.
pub(crate) fn give_back(index: usize) {
    let Some(shared) = shared() else { return };
    let pid = &shared.waiters[index].pid;
    let own = std::process::id() as i32;
    if pid.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        shared.waiters_in_use.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Gives every place of this process back. Cannot fail.
pub(crate) fn give_back_all() {
    (0..WAITERS).for_each(give_back);
}

/// Wakes those who wait for one of these executions of this database; for `None`, everybody who waits in it. Cannot fail.
///
/// To be called after the commit.
pub(crate) fn wake(database: pg_sys::Oid, executions: Option<&BTreeSet<[u8; 16]>>) {
    let Some(shared) = shared() else { return };
    fence(Ordering::SeqCst);
    if shared.waiters_in_use.load(Ordering::SeqCst) == 0 {
        return;
    }
    for cell in &shared.waiters {
        if cell.pid.load(Ordering::SeqCst) == 0 || cell.database.load(Ordering::SeqCst) != database.to_u32() {
            continue;
        }
        let [high, low] = cell.execution.each_ref().map(|word| u128::from(word.load(Ordering::SeqCst)));
        if executions.is_none_or(|ids| ids.contains(&(high << 64 | low).to_be_bytes())) {
            cell.woken.store(1, Ordering::SeqCst);
            raw::set_latch_of(cell.procno.load(Ordering::SeqCst));
        }
    }
}
