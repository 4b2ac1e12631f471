//! The shared memory of the extension: which processes run, which sessions wait, and figures to show.
//!
//! It exists only if the library is preloaded. Memory of zeros is the valid empty state.
//!
//! Commit callbacks, exit callbacks and wake-ups of other processes read only atomics. So none of these paths can wait
//! or fail. One lock protects the rest: error texts, the allocation of call statistics, the places of locks that block
//! processes, and which runners call functions.
//!
//! Limitations, if an array is full:
//! - A database gets no slot. The launcher logs this and retries.
//! - A session that waits for too many things at a time polls.
//! - A role without a place counts as below its quotas.
//! - A worker without a place has no statistics.
//! - A database is not blocked. The statement that needs it fails if the engine is connected to the database.
use super::{compat, raw};
use pgrx::{pg_guard, pg_sys};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU32, Ordering};

pub mod call;
pub mod counters;
pub mod held_up;
pub mod marks;
pub mod over;
pub mod slot;
pub mod slow;
pub mod waiter;

pub use slot::{EngineState, ExitReason, RUNNERS, Role, SCHEDULERS, Slot, SlotPhase, SlotStatus, Wakeup};

const NAME: &CStr = c"xdb";
const POKES: usize = 16;
const BLOCKS: usize = 16;

/// How long a block keeps the engine out of a database if it is not released.
pub const BLOCK_MICROS: i64 = 30_000_000;

// Wide because it is the whole shared memory: one part for each of its users.
#[repr(C)]
pub(crate) struct Shared {
    launcher_pid: AtomicI32,
    /// Number of the launcher's process plus one. Zero: no launcher runs.
    launcher_procno: AtomicI32,
    rescan: AtomicU32,
    poke_all: AtomicU32,
    /// Offset of the processes' clock from the real clock, in microseconds (`xdb.now`). Written only by the postmaster.
    clock_offset: AtomicI64,
    pokes: [AtomicU32; POKES],
    blocks: [Block; BLOCKS],
    slots: [slot::SlotCell; slot::SLOTS],
    calls: [call::CallCell; call::CALLS],
    /// How many places of waiting sessions are taken, the end of the places that were ever taken, and how many places
    /// there are. The places stand behind this struct.
    waiters_in_use: AtomicU32,
    waiters_until: AtomicU32,
    waiters: AtomicU32,
    over_in_use: AtomicU32,
    over: over::Cells,
    /// One entry for the slot of each scheduler.
    marks: [marks::Marks; SCHEDULERS],
    /// One entry for the slot of each scheduler.
    slow: [slow::SlowMarks; SCHEDULERS],
    held_up: UnderLock<held_up::WaitPlaces>,
    /// One entry for the slot of each scheduler.
    counters: [counters::DatabaseCounters; SCHEDULERS],
}

#[repr(C)]
struct Block {
    /// The process that blocks the database. Claimed first and released last.
    pid: AtomicI32,
    database: AtomicU32,
    until: AtomicI64,
}

/// The offset of the clock that this process has read from its configuration. It counts if the library is not
/// preloaded. A new shared memory begins with it.
static OWN_CLOCK_OFFSET: AtomicI64 = AtomicI64::new(0);

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Requests the shared memory. Call it only while the server loads its `shared_preload_libraries`.
pub fn register() {
    // SAFETY: _PG_init runs in the postmaster, before any other process or thread exists.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: called by the server at the moment when libraries may ask for shared memory.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        pg_sys::RequestAddinShmemSpace(size_of::<Shared>() + waiter::size());
        pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), 1);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: called by the server once the segment exists. The memory is aligned to a cache line, and zero is its
    // empty state.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            pg_sys::ffi::pg_guard_ffi_boundary(|| previous());
        }
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(compat::ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let size = size_of::<Shared>() + waiter::size();
        let memory = pg_sys::ShmemInitStruct(NAME.as_ptr(), size, &mut found).cast::<Shared>();
        if !found {
            memory.cast::<u8>().write_bytes(0, size);
            (*memory).waiters.store(waiter::count() as u32, Ordering::SeqCst);
            (*memory).clock_offset.store(OWN_CLOCK_OFFSET.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        SHARED.store(memory, Ordering::Release);
        pg_sys::LWLockRelease(lock);
    }
}

pub(crate) fn shared() -> Option<&'static Shared> {
    // SAFETY: the pointer is null or points to the segment, which outlives the process.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

impl Shared {
    /// The places of waiting sessions.
    fn waiters(&self) -> &[waiter::WaiterCell] {
        // SAFETY: this many places stand behind `self` in the segment. The segment begins zeroed, a valid state of
        // atomics.
        unsafe {
            std::slice::from_raw_parts((&raw const *self).add(1).cast(), self.waiters.load(Ordering::SeqCst) as usize)
        }
    }
}

/// Whether the library was loaded through `shared_preload_libraries`. Only then is there an engine.
pub fn is_preloaded() -> bool {
    shared().is_some()
}

/// The offset of the processes' clock from the real clock, in microseconds.
pub fn clock_offset() -> i64 {
    shared().map_or(&OWN_CLOCK_OFFSET, |shared| &shared.clock_offset).load(Ordering::SeqCst)
}

/// Records the offset that this process has read from its configuration. The postmaster's offset holds for all
/// processes.
pub(super) fn set_clock_offset(micros: i64, is_postmaster: bool) {
    OWN_CLOCK_OFFSET.store(micros, Ordering::SeqCst);
    if let Some(shared) = shared().filter(|_| is_postmaster) {
        shared.clock_offset.store(micros, Ordering::SeqCst);
    }
}

/// A value that is read and written only under the lock of the shared memory.
#[repr(transparent)]
struct UnderLock<T>(UnsafeCell<T>);

// SAFETY: the value is only touched inside `with_lock`.
unsafe impl<T> Sync for UnderLock<T> {}

impl<T: Copy> UnderLock<T> {
    fn read(&self) -> T {
        // SAFETY: under the lock.
        with_lock(false, || unsafe { *self.0.get() })
    }

    /// Changes the value under the lock. `f` must neither raise an error nor panic.
    fn change(&self, f: impl FnOnce(&mut T)) {
        // SAFETY: under the lock, exclusively.
        with_lock(true, || f(unsafe { &mut *self.0.get() }));
    }
}

/// Runs `f` under the lock. `f` must neither raise an error nor panic: it copies and compares.
pub(crate) fn with_lock<R>(exclusive: bool, f: impl FnOnce() -> R) -> R {
    let mode = if exclusive { pg_sys::LWLockMode::LW_EXCLUSIVE } else { pg_sys::LWLockMode::LW_SHARED };
    // SAFETY: callers hold a reference to the shared memory, so the tranche has been allocated.
    unsafe {
        let lock = &raw mut (*pg_sys::GetNamedLWLockTranche(NAME.as_ptr())).lock;
        pg_sys::LWLockAcquire(lock, mode);
        let result = f();
        pg_sys::LWLockRelease(lock);
        result
    }
}

/// Records this process as the launcher.
pub fn launcher_started() {
    let (Some(shared), Some(procno)) = (shared(), raw::my_procno()) else {
        return;
    };
    shared.launcher_procno.store(procno + 1, Ordering::SeqCst);
    shared.launcher_pid.store(std::process::id() as i32, Ordering::SeqCst);
}

/// Records that the launcher has ended. Called while it exits: cannot fail.
pub fn launcher_ended() {
    let Some(shared) = shared() else { return };
    shared.launcher_pid.store(0, Ordering::SeqCst);
    shared.launcher_procno.store(0, Ordering::SeqCst);
}

/// Whether a launcher runs now.
pub fn has_launcher() -> bool {
    shared().is_some_and(|shared| shared.launcher_pid.load(Ordering::SeqCst) != 0)
}

/// Sets the launcher's latch. Cannot fail.
pub fn wake_launcher() {
    let Some(shared) = shared() else { return };
    let procno = shared.launcher_procno.load(Ordering::SeqCst);
    if procno > 0 {
        raw::set_latch_of(procno - 1);
    }
}

/// Makes the launcher read the list of databases again. Cannot fail.
pub fn request_rescan() {
    let Some(shared) = shared() else { return };
    shared.rescan.store(1, Ordering::SeqCst);
    wake_launcher();
}

/// Notifies the launcher that this database may have the extension now. Cannot fail. If the list is full, the launcher
/// checks every database again.
pub fn poke(database: pg_sys::Oid) {
    let Some(shared) = shared() else { return };
    let oid = database.to_u32();
    let placed = shared.pokes.iter().any(|entry| {
        entry.load(Ordering::SeqCst) == oid
            || entry.compare_exchange(0, oid, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    });
    if !placed {
        shared.poke_all.store(1, Ordering::SeqCst);
    }
    request_rescan();
}

/// Notifications for the launcher since it last took them.
pub struct Pokes {
    /// The launcher must read the list of databases again.
    pub rescan: bool,
    /// The launcher must check every database again.
    pub all: bool,
    /// The launcher must check these databases again.
    pub databases: Vec<pg_sys::Oid>,
}

/// Takes the notifications for the launcher.
pub fn take_pokes() -> Pokes {
    let Some(shared) = shared() else {
        return Pokes { rescan: false, all: false, databases: Vec::new() };
    };
    Pokes {
        rescan: shared.rescan.swap(0, Ordering::SeqCst) != 0,
        all: shared.poke_all.swap(0, Ordering::SeqCst) != 0,
        databases: shared
            .pokes
            .iter()
            .map(|entry| entry.swap(0, Ordering::SeqCst))
            .filter(|oid| *oid != 0)
            .map(pg_sys::Oid::from)
            .collect(),
    }
}

/// Keeps the engine from starting in this database, until this process releases the block or [`BLOCK_MICROS`] have
/// passed. Returns false if there is no free place.
///
/// The block is published before the caller looks for running schedulers. A scheduler publishes itself before it looks
/// for blocks. So one of the two sees the other.
pub fn block(database: pg_sys::Oid) -> bool {
    let Some(shared) = shared() else { return false };
    let pid = std::process::id() as i32;
    let Some(entry) =
        shared.blocks.iter().find(|b| b.pid.compare_exchange(0, pid, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    else {
        return false;
    };
    entry.until.store(raw::now_micros() + BLOCK_MICROS, Ordering::SeqCst);
    entry.database.store(database.to_u32(), Ordering::SeqCst);
    true
}

/// Releases the blocks of this process and wakes the launcher. Cannot fail.
pub fn release_blocks() {
    let Some(shared) = shared() else { return };
    let pid = std::process::id() as i32;
    for entry in shared.blocks.iter().filter(|b| b.pid.load(Ordering::SeqCst) == pid) {
        entry.database.store(0, Ordering::SeqCst);
        entry.pid.store(0, Ordering::SeqCst);
    }
    request_rescan();
}

/// Until when a session may keep the engine out of this database, if any does.
pub fn blocked_until(database: pg_sys::Oid) -> Option<i64> {
    let now = raw::now_micros();
    shared()?
        .blocks
        .iter()
        .filter(|b| b.database.load(Ordering::SeqCst) == database.to_u32())
        .map(|b| b.until.load(Ordering::SeqCst))
        .filter(|until| *until > now)
        .max()
}
