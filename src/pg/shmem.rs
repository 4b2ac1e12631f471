//! The shared memory of the extension: who runs, whom to wake, what to show.
//!
//! It exists only when the library is preloaded. Everything that a commit callback, an exit callback or another process's
//! wake-up reads is an atomic, so that no such path can wait or fail; the one lock protects error texts and the allocation of
//! call statistics. All-zero memory is the valid empty state.
//!
//! Full arrays: a database without a slot is logged and retried by the launcher; a session that waits for too much at a time polls; a role without a
//! place is not over its quotas; a worker
//! without a place has no statistics; a hold without a place is not placed, and the statement meets the engine's connection as it would meet any other.
use super::{compat, raw};
use pgrx::{pg_guard, pg_sys};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU32, Ordering};

pub mod call;
pub mod held_up;
pub mod marks;
pub mod over;
pub mod slot;
pub mod slow;
pub mod waiter;

pub use slot::{EngineState, ExitReason, RUNNERS, Role, SCHEDULERS, Slot, SlotPhase, SlotStatus, Wakeup};

const NAME: &CStr = c"xdb";
const POKES: usize = 16;
const HOLDS: usize = 16;

/// How long a hold keeps the engine out of a database if it is not released.
pub const HOLD_MICROS: i64 = 30_000_000;

// Wide because it is all of the shared memory, a piece for each who uses it.
#[repr(C)]
pub(crate) struct Shared {
    launcher_pid: AtomicI32,
    /// Number of the launcher's process plus one; zero when there is none.
    launcher_procno: AtomicI32,
    rescan: AtomicU32,
    poke_all: AtomicU32,
    /// How far `xdb.now` puts the clock of processes from the real one. Written by the postmaster alone.
    clock_offset: AtomicI64,
    pokes: [AtomicU32; POKES],
    holds: [Hold; HOLDS],
    slots: [slot::SlotCell; slot::SLOTS],
    calls: [call::CallCell; call::CALLS],
    /// How many places of sessions that wait are taken, up to where any ever was, and how many there are: they stand behind all this.
    waiters_in_use: AtomicU32,
    waiters_until: AtomicU32,
    waiters: AtomicU32,
    over_in_use: AtomicU32,
    over: over::Cells,
    /// One for the slot of each scheduler.
    marks: [marks::Marks; SCHEDULERS],
    /// Likewise.
    slow: [slow::SlowMarks; SCHEDULERS],
    held_up: UnderLock<held_up::WaitPlaces>,
}

#[repr(C)]
struct Hold {
    /// Owner of the entry; claimed first and given up last.
    pid: AtomicI32,
    database: AtomicU32,
    until: AtomicI64,
}

/// The offset of the clock as this process has read it: what counts in a server that has not preloaded the library, and what a
/// new shared memory begins with.
static OWN_CLOCK_OFFSET: AtomicI64 = AtomicI64::new(0);

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// Asks for the shared memory. Only while the server loads its `shared_preload_libraries`.
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
    // SAFETY: called by the server once the segment exists; the memory is aligned to a cache line and zero is its empty state.
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
    /// The places of sessions that wait.
    fn waiters(&self) -> &[waiter::WaiterCell] {
        // SAFETY: this many stand behind `self` in the segment, which begins zeroed: a valid state of atomics.
        unsafe {
            std::slice::from_raw_parts((&raw const *self).add(1).cast(), self.waiters.load(Ordering::SeqCst) as usize)
        }
    }
}

/// Whether the library was loaded through `shared_preload_libraries`, so that there is an engine.
pub fn is_preloaded() -> bool {
    shared().is_some()
}

/// How far the clock of processes is from the real one, in microseconds.
pub fn clock_offset() -> i64 {
    shared().map_or(&OWN_CLOCK_OFFSET, |shared| &shared.clock_offset).load(Ordering::SeqCst)
}

/// Notes the offset that this process has read from its configuration. From the postmaster it holds for all processes.
pub(super) fn set_clock_offset(micros: i64, is_postmaster: bool) {
    OWN_CLOCK_OFFSET.store(micros, Ordering::SeqCst);
    if let Some(shared) = shared().filter(|_| is_postmaster) {
        shared.clock_offset.store(micros, Ordering::SeqCst);
    }
}

/// A value that is read and written under the lock of the shared memory only.
#[repr(transparent)]
struct UnderLock<T>(UnsafeCell<T>);

// SAFETY: the value is only touched inside `with_lock`.
unsafe impl<T> Sync for UnderLock<T> {}

impl<T: Copy> UnderLock<T> {
    fn read(&self) -> T {
        // SAFETY: under the lock.
        with_lock(false, || unsafe { *self.0.get() })
    }

    /// As [`with_lock`].
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

/// Says that this process is the launcher.
pub fn launcher_started() {
    let (Some(shared), Some(procno)) = (shared(), raw::my_procno()) else {
        return;
    };
    shared.launcher_procno.store(procno + 1, Ordering::SeqCst);
    shared.launcher_pid.store(std::process::id() as i32, Ordering::SeqCst);
}

/// Says that the launcher has ended. Called while it exits: cannot fail.
pub fn launcher_ended() {
    let Some(shared) = shared() else { return };
    shared.launcher_pid.store(0, Ordering::SeqCst);
    shared.launcher_procno.store(0, Ordering::SeqCst);
}

/// Whether there is a launcher now.
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

/// Tells the launcher to read the list of databases again. Cannot fail.
pub fn request_rescan() {
    let Some(shared) = shared() else { return };
    shared.rescan.store(1, Ordering::SeqCst);
    wake_launcher();
}

/// Tells the launcher that this database may have got the extension. Cannot fail: when the list is full, every database is
/// looked at again.
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

/// What the launcher was told since it last asked.
pub struct Pokes {
    /// The list of databases has to be read again.
    pub rescan: bool,
    /// Every database has to be looked at again.
    pub all: bool,
    /// These databases have to be looked at again.
    pub databases: Vec<pg_sys::Oid>,
}

/// Takes what the launcher was told.
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

/// Keeps the engine from starting in this database until released by this process, or for [`HOLD_MICROS`].
///
/// The hold is published before the caller looks for running schedulers, and a scheduler looks for holds after it has published
/// itself: one of the two sees the other.
pub fn hold(database: pg_sys::Oid) -> bool {
    let Some(shared) = shared() else { return false };
    let pid = std::process::id() as i32;
    let Some(entry) =
        shared.holds.iter().find(|h| h.pid.compare_exchange(0, pid, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    else {
        return false;
    };
    entry.until.store(raw::now_micros() + HOLD_MICROS, Ordering::SeqCst);
    entry.database.store(database.to_u32(), Ordering::SeqCst);
    true
}

/// Releases the holds of this process and tells the launcher. Cannot fail.
pub fn release_holds() {
    let Some(shared) = shared() else { return };
    let pid = std::process::id() as i32;
    for entry in shared.holds.iter().filter(|h| h.pid.load(Ordering::SeqCst) == pid) {
        entry.database.store(0, Ordering::SeqCst);
        entry.pid.store(0, Ordering::SeqCst);
    }
    request_rescan();
}

/// Whether a session keeps the engine out of this database, and until when at most.
pub fn held_until(database: pg_sys::Oid) -> Option<i64> {
    let now = raw::now_micros();
    shared()?
        .holds
        .iter()
        .filter(|h| h.database.load(Ordering::SeqCst) == database.to_u32())
        .map(|h| h.until.load(Ordering::SeqCst))
        .filter(|until| *until > now)
        .max()
}
