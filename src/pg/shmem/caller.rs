//! Places of sessions whose RPCs stand in line with states for locks on attributes.
//!
//! Schedulers read the places when they grant locks; nothing of a state is wrong if one is missed. A place is taken before
//! its session waits for the turns that have begun, so that a later turn sees it. Reading a place while it changes hands can
//! make a state wait for one more turn, no more. When all are taken, an RPC goes on without.
use super::{Shared, Slot, Wakeup, shared};
use crate::pg::raw;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// Objects that RPCs can have or wait for at the same time.
pub const PLACES: usize = 1024;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const PUBLISHED: u32 = 2;

const WAITING: u32 = 0;
/// Its session looks for the last time whether a state has come before it.
const CONFIRMING: u32 = 1;
const SETTLED: u32 = 2;

#[repr(C)]
pub(super) struct Cell {
    in_use: AtomicU32,
    database: AtomicU32,
    object: [AtomicU64; 2],
    mode: AtomicU32,
    stage: AtomicU32,
    ticket: AtomicI64,
    procno: AtomicI32,
    pid: AtomicI32,
}

/// A copy of a place.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub object: [u8; 16],
    /// A number of the caller's.
    pub mode: u32,
    pub ticket: i64,
    /// The session has the object, or is about to.
    pub granted: bool,
}

fn words(object: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_be_bytes(*object);
    [(whole >> 64) as u64, whole as u64]
}

/// Takes a place for this process in this database; `None` when all are taken or there is no shared memory.
pub fn take(object: &[u8; 16], mode: u32, ticket: i64) -> Option<usize> {
    let shared = shared()?;
    let procno = raw::my_procno()?;
    let index = shared
        .callers
        .iter()
        .position(|cell| cell.in_use.compare_exchange(FREE, CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_ok())?;
    shared.callers_in_use.fetch_add(1, Ordering::SeqCst);
    let cell = &shared.callers[index];
    let [high, low] = words(object);
    // SAFETY: set once at the start of the process.
    let database = unsafe { pg_sys::MyDatabaseId };
    cell.database.store(database.to_u32(), Ordering::SeqCst);
    cell.object[0].store(high, Ordering::SeqCst);
    cell.object[1].store(low, Ordering::SeqCst);
    cell.mode.store(mode, Ordering::SeqCst);
    cell.stage.store(WAITING, Ordering::SeqCst);
    cell.ticket.store(ticket, Ordering::SeqCst);
    cell.procno.store(procno, Ordering::SeqCst);
    cell.pid.store(std::process::id() as i32, Ordering::SeqCst);
    cell.in_use.store(PUBLISHED, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    Some(index)
}

fn set_stage(places: &[usize], stage: u32) {
    if let Some(shared) = shared() {
        places.iter().for_each(|place| shared.callers[*place].stage.store(stage, Ordering::SeqCst));
        fence(Ordering::SeqCst);
    }
}

/// The session waits at these places of its own.
pub fn wait_at(places: &[usize]) {
    set_stage(places, WAITING);
}

/// The session has these places, if it finds nobody there once more.
pub fn confirm(places: &[usize]) {
    set_stage(places, CONFIRMING);
}

/// The session has these places until its transaction ends.
pub fn settle(places: &[usize]) {
    set_stage(places, SETTLED);
}

/// Gives these places of this process back. Cannot fail.
pub fn give_back(places: &[usize]) {
    if let Some(shared) = shared() {
        give_back_each(shared, places.iter().map(|place| &shared.callers[*place]));
    }
}

/// Gives every place of this process back. Cannot fail.
pub(crate) fn give_back_all() {
    if let Some(shared) = shared() {
        give_back_each(shared, shared.callers.iter());
    }
}

/// Wakes the schedulers too, which may have states that wait for the places.
fn give_back_each<'a>(shared: &Shared, cells: impl Iterator<Item = &'a Cell>) {
    let pid = std::process::id() as i32;
    let mut any = false;
    for cell in cells {
        if cell.in_use.load(Ordering::SeqCst) == PUBLISHED && cell.pid.load(Ordering::SeqCst) == pid {
            cell.pid.store(0, Ordering::SeqCst);
            shared.callers_in_use.fetch_sub(1, Ordering::SeqCst);
            cell.in_use.store(FREE, Ordering::SeqCst);
            any = true;
        }
    }
    if any {
        // SAFETY: set once at the start of the process.
        let database = unsafe { pg_sys::MyDatabaseId };
        Slot::of_database(database).for_each(|slot| slot.wake(Wakeup::NONE));
    }
}

fn published(database: pg_sys::Oid) -> impl Iterator<Item = &'static Cell> {
    fence(Ordering::SeqCst);
    let cells = shared().filter(|shared| shared.callers_in_use.load(Ordering::SeqCst) > 0);
    cells.into_iter().flat_map(|shared| &shared.callers).filter(move |cell| {
        cell.in_use.load(Ordering::SeqCst) == PUBLISHED && cell.database.load(Ordering::SeqCst) == database.to_u32()
    })
}

fn copy(cell: &Cell) -> Place {
    let [high, low] = cell.object.each_ref().map(|word| word.load(Ordering::SeqCst));
    Place {
        object: ((u128::from(high) << 64) | u128::from(low)).to_be_bytes(),
        mode: cell.mode.load(Ordering::SeqCst),
        ticket: cell.ticket.load(Ordering::SeqCst),
        granted: cell.stage.load(Ordering::SeqCst) != WAITING,
    }
}

/// The places that are taken in a database.
pub fn of_database(database: pg_sys::Oid) -> Vec<Place> {
    published(database).map(copy).collect()
}

/// What this session has: the places that its transaction has settled at.
pub fn mine() -> Vec<Place> {
    let pid = std::process::id() as i32;
    // SAFETY: set once at the start of the process.
    let database = unsafe { pg_sys::MyDatabaseId };
    let settled = |cell: &&Cell| cell.pid.load(Ordering::SeqCst) == pid && cell.stage.load(Ordering::SeqCst) == SETTLED;
    published(database).filter(settled).map(copy).collect()
}

/// Wakes the sessions that wait for states, or for the end of a turn. Cannot fail.
pub(crate) fn wake(database: pg_sys::Oid) {
    for cell in published(database).filter(|cell| cell.stage.load(Ordering::SeqCst) != SETTLED) {
        raw::set_latch_of(cell.procno.load(Ordering::SeqCst));
    }
}
