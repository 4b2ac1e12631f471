//! Locks of other sessions that blocked executions when the engine last tried. Written by the engine. Read only by
//! functions that describe processes.
//!
//! A place belongs to an execution and a lock. Limitations: if no place is free, the newest entry replaces the oldest.
use super::shared;
use crate::pg::process;
use crate::pg::raw;

const PLACES: usize = 256;

/// How long an entry is shown, in microseconds. The engine tries again twice a second, or later if it has much to try.
const SHOWN_FOR: i64 = 3_000_000;
/// A lock held for a shorter time than this, in microseconds, is not shown.
const SHOWN_AFTER: i64 = 100_000;

/// The thing that another session has locked. The first variant is the value in new shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LockOn {
    /// The execution's own row.
    #[default]
    Process,
    /// A row of an application's table, or something that using the row needs.
    Row,
    /// An application's table.
    Table,
}

impl LockOn {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Row => "row",
            Self::Table => "table",
        }
    }
}

/// An execution, and the lock that blocks it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct LockWait {
    /// Zero: the place is free.
    database: u32,
    execution: [u8; 16],
    lock: LockOn,
    /// The oid of the table.
    table: u32,
}

/// An entry: a lock wait, and when it began. Written and read under the lock.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct WaitPlace {
    wait: LockWait,
    since: i64,
    /// When the engine tried last.
    at: i64,
}

/// A lock that blocks an execution.
#[derive(Clone, Copy, Debug)]
pub struct BlockingLock {
    pub lock: LockOn,
    /// The oid of the table; zero if there is none.
    pub table: u32,
    /// In microseconds since the server's epoch.
    pub since: i64,
}

pub(super) type WaitPlaces = [WaitPlace; PLACES];

/// Records that a lock blocked an execution just now.
pub fn note(execution: [u8; 16], lock: LockOn, table: u32) {
    let Some(shared) = shared() else { return };
    let (wait, now) = (LockWait { database: process::database().to_u32(), execution, lock, table }, raw::now_micros());
    shared.held_up.change(|places| {
        let own_or_oldest = |place: &&mut WaitPlace| if place.wait == wait { i64::MIN } else { place.at };
        if let Some(place) = places.iter_mut().min_by_key(own_or_oldest) {
            let goes_on = place.wait == wait && now - place.at < SHOWN_FOR;
            *place = WaitPlace { wait, since: if goes_on { place.since } else { now }, at: now };
        }
    });
}

/// The locks that block an execution of this database.
pub fn of(execution: [u8; 16]) -> Vec<BlockingLock> {
    let Some(shared) = shared() else { return Vec::new() };
    let (database, now) = (process::database().to_u32(), raw::now_micros());
    let is_shown = |place: &&WaitPlace| {
        let WaitPlace { wait, since, at } = place;
        wait.database == database && wait.execution == execution && now - at < SHOWN_FOR && at - since >= SHOWN_AFTER
    };
    let places = shared.held_up.read();
    let shown = places.iter().filter(is_shown);
    shown
        .map(|WaitPlace { wait, since, .. }| BlockingLock { lock: wait.lock, table: wait.table, since: *since })
        .collect()
}
