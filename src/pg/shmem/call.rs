//! Statistics of calls, for each worker of each database.
//!
//! A worker is found without a lock, and all processes of the database write to the same entry. New entries are made
//! under the lock. Limitations: if all entries are in use, further workers have no statistics. The calls don't depend
//! on them.
use super::counters::{self, CallKind, CountedCalls, OfWorker};
use super::{shared, slot::Role, with_lock};
use crate::pg::raw;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

/// Workers that can have statistics at the same time.
pub const CALLS: usize = 256;

/// The entry of one worker. Written by all engine processes of its database, read by status functions.
#[repr(C)]
pub(super) struct CallCell {
    /// Zero: the entry is free. Written last.
    database: AtomicU32,
    worker: AtomicI32,
    /// By role, so that the end of a process resets only its own calls.
    in_flight: [AtomicI32; Role::COUNT],
    calls: AtomicI64,
    failures: AtomicI64,
    consecutive_failures: AtomicI64,
    total_latency_us: AtomicI64,
    last_error_at: AtomicI64,
    /// By role: since when the breaker is open, or zero. Written last when it opens and first when it closes.
    open_since: [AtomicI64; Role::COUNT],
    /// By role: when the next probe may be made; zero during a probe.
    next_probe_at: [AtomicI64; Role::COUNT],
    counters: OfWorker,
}

/// The breaker of a worker that can't be reached. Times as in [`CallStatistics`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenBreaker {
    pub since: i64,
    /// None during a probe.
    pub next_probe: Option<i64>,
}

/// A copy of the statistics of one worker. Times are microseconds since the server's epoch; zero means never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStatistics {
    pub worker: i32,
    pub in_flight: i32,
    pub calls: i64,
    pub failures: i64,
    pub consecutive_failures: i64,
    pub total_latency_us: i64,
    pub last_error_at: i64,
    /// None: the breaker is closed.
    pub open: Option<OpenBreaker>,
}

fn find(database: pg_sys::Oid, worker: i32) -> Option<&'static CallCell> {
    shared()?.calls.iter().find(|cell| {
        cell.database.load(Ordering::Acquire) == database.to_u32() && cell.worker.load(Ordering::Acquire) == worker
    })
}

fn find_or_make(database: pg_sys::Oid, worker: i32) -> Option<&'static CallCell> {
    if let Some(cell) = find(database, worker) {
        return Some(cell);
    }
    let shared = shared()?;
    with_lock(true, || {
        if let Some(cell) = find(database, worker) {
            return Some(cell);
        }
        let cell = shared.calls.iter().find(|c| c.database.load(Ordering::Acquire) == 0)?;
        cell.in_flight.iter().for_each(|own| own.store(0, Ordering::Relaxed));
        cell.open_since.iter().chain(&cell.next_probe_at).for_each(|own| own.store(0, Ordering::Relaxed));
        for counter in
            [&cell.calls, &cell.failures, &cell.consecutive_failures, &cell.total_latency_us, &cell.last_error_at]
        {
            counter.store(0, Ordering::Relaxed);
        }
        cell.counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        cell.worker.store(worker, Ordering::Release);
        cell.database.store(database.to_u32(), Ordering::Release);
        Some(cell)
    })
}

impl CallCell {
    fn ended(&self, role: Role) {
        let in_flight = &self.in_flight[role.index()];
        if in_flight.fetch_sub(1, Ordering::Relaxed) <= 0 {
            in_flight.store(0, Ordering::Relaxed);
        }
    }
}

/// Makes an entry for a worker, so that calls may be counted where nothing may fail.
pub fn make(database: pg_sys::Oid, worker: i32) {
    find_or_make(database, worker);
}

/// The counters of a worker with an entry. Can't fail.
pub(super) fn counters_of(database: pg_sys::Oid, worker: i32) -> Option<&'static OfWorker> {
    find(database, worker).map(|cell| &cell.counters)
}

/// The counters of all workers of a database, by worker.
pub fn counted(database: pg_sys::Oid) -> Vec<(i32, CountedCalls)> {
    let all = shared().into_iter().flat_map(|shared| &shared.calls);
    let own = all.filter(|cell| cell.database.load(Ordering::Acquire) == database.to_u32());
    own.map(|cell| (cell.worker.load(Ordering::Acquire), CountedCalls::of(&cell.counters))).collect()
}

/// Counts a call that begins.
pub fn started(database: pg_sys::Oid, role: Role, worker: i32) {
    if let Some(cell) = find_or_make(database, worker) {
        cell.in_flight[role.index()].fetch_add(1, Ordering::Relaxed);
        cell.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a call that ends.
pub fn finished(database: pg_sys::Oid, role: Role, worker: i32, kind: CallKind, succeeded: bool, time: Duration) {
    let Some(cell) = find(database, worker) else {
        return;
    };
    cell.ended(role);
    cell.total_latency_us.fetch_add(time.as_micros() as i64, Ordering::Relaxed);
    counters::observe_call(&cell.counters, kind, time);
    if succeeded {
        cell.consecutive_failures.store(0, Ordering::Relaxed);
    } else {
        cell.failures.fetch_add(1, Ordering::Relaxed);
        cell.consecutive_failures.fetch_add(1, Ordering::Relaxed);
        cell.last_error_at.store(raw::now_micros(), Ordering::Relaxed);
    }
}

/// Undoes [`started`]: the call was not made.
pub fn not_made(database: pg_sys::Oid, role: Role, worker: i32) {
    let Some(cell) = find(database, worker) else {
        return;
    };
    cell.ended(role);
    cell.calls.fetch_sub(1, Ordering::Relaxed);
}

/// Shows the state of a worker's breaker in one process.
pub fn show_breaker(database: pg_sys::Oid, role: Role, worker: i32, open: Option<OpenBreaker>) {
    let Some(cell) = find(database, worker) else { return };
    let (open_since, next_probe_at) = (&cell.open_since[role.index()], &cell.next_probe_at[role.index()]);
    match open {
        None => open_since.store(0, Ordering::Release),
        Some(open) => {
            next_probe_at.store(open.next_probe.unwrap_or(0), Ordering::Relaxed);
            open_since.store(open.since, Ordering::Release);
        }
    }
}

/// Resets the number of calls under way and the breakers of a process that has ended. Can't fail.
pub fn reset_role(database: pg_sys::Oid, role: Role) {
    let Some(shared) = shared() else { return };
    for cell in &shared.calls {
        if cell.database.load(Ordering::Acquire) == database.to_u32() {
            cell.in_flight[role.index()].store(0, Ordering::Relaxed);
            cell.open_since[role.index()].store(0, Ordering::Release);
        }
    }
}

/// The statistics of the workers of a database.
pub struct CountedWorkers {
    with_entry: Vec<CallStatistics>,
    /// Whether a further worker would get an entry.
    has_room: bool,
}

impl CountedWorkers {
    pub fn of_database(database: pg_sys::Oid) -> Self {
        let of = |cell: &CallCell| cell.database.load(Ordering::Acquire);
        let all = || shared().into_iter().flat_map(|shared| &shared.calls);
        let own = all().filter(|cell| of(cell) == database.to_u32());
        Self { with_entry: own.map(snapshot).collect(), has_room: all().any(|cell| of(cell) == 0) }
    }

    /// The statistics of one worker: zeros if it was never called, none if its calls are not counted.
    pub fn get(&self, worker: i32) -> Option<CallStatistics> {
        let counted = self.with_entry.iter().find(|counted| counted.worker == worker).cloned();
        counted.or_else(|| self.has_room.then(CallStatistics::default))
    }

    /// Counted calls that are under way.
    pub fn in_flight(&self) -> usize {
        self.with_entry.iter().map(|of| of.in_flight as usize).sum()
    }
}

/// Removes a worker that is no longer registered. Can't fail.
pub(crate) fn forget_worker(database: pg_sys::Oid, worker: i32) {
    if let Some(cell) = find(database, worker) {
        cell.database.store(0, Ordering::Release);
    }
}

/// Removes the workers of a database that has no engine any more.
pub fn forget_database(database: pg_sys::Oid) {
    let Some(shared) = shared() else { return };
    with_lock(true, || {
        for cell in &shared.calls {
            if cell.database.load(Ordering::Acquire) == database.to_u32() {
                cell.database.store(0, Ordering::Release);
            }
        }
    });
}

/// The open breaker of a worker: the first one, if several processes have one.
fn open(cell: &CallCell) -> Option<OpenBreaker> {
    cell.open_since.iter().zip(&cell.next_probe_at).find_map(|(since, next_probe)| {
        let since = since.load(Ordering::Acquire);
        let next_probe = next_probe.load(Ordering::Relaxed);
        (since != 0).then_some(OpenBreaker { since, next_probe: (next_probe != 0).then_some(next_probe) })
    })
}

fn snapshot(cell: &CallCell) -> CallStatistics {
    CallStatistics {
        worker: cell.worker.load(Ordering::Acquire),
        in_flight: cell.in_flight.iter().map(|own| own.load(Ordering::Relaxed).max(0)).sum(),
        calls: cell.calls.load(Ordering::Relaxed),
        failures: cell.failures.load(Ordering::Relaxed),
        consecutive_failures: cell.consecutive_failures.load(Ordering::Relaxed),
        total_latency_us: cell.total_latency_us.load(Ordering::Relaxed),
        last_error_at: cell.last_error_at.load(Ordering::Relaxed),
        open: open(cell),
    }
}
