//! Wake-ups that a transaction sends when it commits: to the engine, to waiting sessions, to the launcher.
//!
//! Notes are kept per subtransaction. A savepoint that is rolled back drops its notes.
//!
//! The callbacks run after the commit, where an error would crash the server. So the callbacks touch only atomics
//! and latches.
//!
//! `PREPARE TRANSACTION` drops the notes, because `COMMIT PREPARED` may run in another session. `COMMIT PREPARED` wakes
//! the engine and all waiting sessions instead.
//!
//! The engine polls, so a lost wake-up only delays it. A waiting session with a place in shared memory does not poll.
//! It scans again only when it is woken, or when its time is over. So every transaction that ends an execution or a
//! state must note that here.
//!
//! The counts for `xdb.metrics()` are kept in the same way, and added at the commit.
//!
//! A new call wakes one of the sessions that wait for calls. `shmem/waiter.rs` says why no call is missed.
use super::crash;
use super::shmem::counters::{self, Count};
pub use super::shmem::waiter::NewCall;
use super::shmem::{self, Role, Slot, Wakeup, call, waiter as places};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use xdb_engine::fnv1a_128;

/// What a transaction has done, or what its commit sets off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Note {
    /// Has written rows that other sessions can't see yet. Must stay the least note: savepoints are split off at it.
    Wrote,
    /// Has locked an execution. Until this transaction ends, the execution can't close.
    Locked([u8; 16]),
    /// An RPC has locked the attributes that it loaded.
    LockedAttributes,
    CallsOver,
    /// Wakes the schedulers.
    Wake(Wakeup),
    /// Wakes sessions that wait for this key: an execution or a state that has ended, or a worker that may have calls.
    WakeWaiters([u8; 16]),
    /// Wakes one session that waits for calls of this worker: this execution and state have a new call.
    WakeForCall(i32, NewCall, ([u8; 16], u32)),
    /// Wakes all sessions that wait.
    WakeAll,
    PokeLauncher,
    Rescan,
    /// A worker was unregistered.
    ForgetWorker(i32),
}

thread_local! {
    /// By subtransaction. Later subtransactions have higher numbers, so the notes of the innermost one stand last.
    static NOTES: RefCell<BTreeSet<(pg_sys::SubTransactionId, Note)>> = const { RefCell::new(BTreeSet::new()) };
    /// What the transaction has counted, by subtransaction.
    static COUNTS: RefCell<BTreeMap<(pg_sys::SubTransactionId, Count), u64>> = const { RefCell::new(BTreeMap::new()) };
    static BLOCKING: Cell<bool> = const { Cell::new(false) };
    static WAITING: Cell<bool> = const { Cell::new(false) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// The callbacks stay registered for the life of the process. Registering twice would run them twice.
fn ensure_registered() {
    if !REGISTERED.get() {
        // SAFETY: both callbacks have the expected signature and live as long as the library, which is never unloaded.
        unsafe {
            pg_sys::RegisterXactCallback(Some(at_transaction_event), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(at_subtransaction_event), std::ptr::null_mut());
            pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::null());
        }
        REGISTERED.set(true);
    }
}

fn current_subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads a counter of the current transaction.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

fn note(note: Note) {
    ensure_registered();
    NOTES.with_borrow_mut(|notes| notes.insert((current_subtransaction(), note)));
}

/// Counts this when the transaction commits.
pub fn count_at_commit(count: Count, number: u64) {
    ensure_registered();
    if let Count::Call(worker, ..) | Count::Repeat(worker) | Count::Rejected(worker) = count {
        // SAFETY: set once at the start of the process.
        call::make(unsafe { pg_sys::MyDatabaseId }, worker);
    }
    COUNTS.with_borrow_mut(|counts| *counts.entry((current_subtransaction(), count)).or_default() += number);
}

fn is_noted(wanted: impl Fn(&Note) -> bool) -> bool {
    NOTES.with_borrow(|notes| notes.iter().any(|(_, note)| wanted(note)))
}

/// Wakes this database's engine when the transaction commits. The engine then reads all due rows.
pub fn wake_scheduler_at_commit() {
    note(Note::Wake(Wakeup::Anything));
}

/// Wakes this database's engine when the transaction commits, because there is work.
pub fn call_scheduler_at_commit() {
    note(Note::Wake(Wakeup::Work));
}

/// Wakes the engine and all waiting sessions of this database when the transaction commits. For changes whose notes
/// this transaction does not have.
pub fn wake_all_at_commit() {
    [Note::Wake(Wakeup::Anything), Note::WakeAll, Note::CallsOver].into_iter().for_each(note);
}

/// Wakes the sessions that wait for this execution when the transaction commits.
pub fn processes_closed_at_commit(execution: [u8; 16]) {
    note(Note::WakeWaiters(execution));
}

/// Wakes the sessions that wait for this step when the transaction commits.
pub fn state_ended_at_commit(execution: [u8; 16], state_execution_id: &str) {
    note(Note::WakeWaiters(state_key(&execution, state_execution_id)));
}

/// Wakes the sessions that wait for calls of this worker when the transaction commits.
pub fn call_worker_at_commit(worker: i32) {
    note(Note::WakeWaiters(worker_key(worker)));
}

/// Wakes one session that waits for calls of this worker when the transaction commits. `of`: the execution and state
/// that have the new call.
pub fn new_call_at_commit(worker: i32, call: NewCall, of: ([u8; 16], u32)) {
    note(Note::WakeForCall(worker, call, of));
}

/// The key under which sessions wait for calls of a worker.
pub(super) fn worker_key(worker: i32) -> [u8; 16] {
    fnv1a_128(b"worker".iter().copied().chain(worker.to_be_bytes())).to_be_bytes()
}

/// The key under which sessions wait for a step. If two states have the same key, one wakes the other's
/// sessions for nothing.
fn state_key(execution: &[u8; 16], state_execution_id: &str) -> [u8; 16] {
    (u128::from_be_bytes(*execution) ^ fnv1a_128(state_execution_id.bytes())).to_be_bytes()
}

/// Notes that this transaction has written rows that other sessions can't see yet.
pub fn note_uncommitted_write() {
    note(Note::Wrote);
}

/// Whether this transaction has written rows that other sessions can't see yet. Waiting for their effects would never
/// end.
pub fn has_uncommitted_writes() -> bool {
    is_noted(|note| *note == Note::Wrote)
}

/// Notes that this transaction has locked an execution, with the lock of a publisher or a stronger one.
pub fn note_locked(execution: [u8; 16]) {
    note(Note::Locked(execution));
}

/// Whether this transaction has locked an execution.
pub fn has_locked(execution: &[u8; 16]) -> bool {
    is_noted(|note| *note == Note::Locked(*execution))
}

/// Notifies the scheduler at commit that calls have ended. The scheduler may know of locks that these calls hold or
/// wait for.
pub fn calls_over_at_commit() {
    [Note::CallsOver, Note::Wake(Wakeup::Work)].into_iter().for_each(note);
}

/// Like [`calls_over_at_commit`], but does not wake the scheduler. For calls whose locks the scheduler may not know.
pub fn calls_over_quietly_at_commit() {
    note(Note::CallsOver);
}

/// Notes that an RPC of this transaction is about to lock the attributes that it loads.
pub fn note_locked_attributes() {
    note(Note::LockedAttributes);
}

/// Whether this transaction has locked any execution, or attributes for an RPC. Other sessions may wait for these
/// locks.
pub fn has_locked_anything() -> bool {
    is_noted(|note| matches!(note, Note::Locked(_) | Note::LockedAttributes))
}

/// Notifies the launcher at commit that this database may have the extension now.
pub fn poke_launcher_at_commit() {
    note(Note::PokeLauncher);
}

/// Notifies the launcher at commit that the list of databases has changed.
pub fn rescan_at_commit() {
    note(Note::Rescan);
}

/// Deletes the figures of a worker when the transaction that unregisters the worker commits.
pub fn forget_worker_at_commit(worker: i32) {
    note(Note::ForgetWorker(worker));
}

/// Releases this process's blocks of databases when the transaction commits or rolls back.
pub(super) fn release_blocks_at_end() {
    ensure_registered();
    BLOCKING.set(true);
}

unsafe extern "C-unwind" fn at_transaction_event(event: pg_sys::XactEvent::Type, _: *mut c_void) {
    use pg_sys::XactEvent::{
        XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PARALLEL_ABORT, XACT_EVENT_PARALLEL_COMMIT, XACT_EVENT_PREPARE,
    };
    let committed = match event {
        XACT_EVENT_COMMIT | XACT_EVENT_PARALLEL_COMMIT => true,
        XACT_EVENT_ABORT | XACT_EVENT_PARALLEL_ABORT | XACT_EVENT_PREPARE => false,
        _ => return,
    };
    // A panic must not leave this function. The engine finds by polling what the panic cut off. Waiting sessions don't
    // poll and would sleep until their time is over. So all waiting sessions of this database look again.
    if catch_unwind(AssertUnwindSafe(|| transaction_ended(committed))).is_err() && committed {
        // SAFETY: set once at the start of the process.
        places::wake(unsafe { pg_sys::MyDatabaseId }, None);
    }
}

fn transaction_ended(committed: bool) {
    if committed && has_uncommitted_writes() {
        crash::point("caller-committed");
    }
    if WAITING.replace(false) {
        places::give_back_all();
    }
    let counts = COUNTS.take();
    let notes: BTreeSet<_> = NOTES.take().into_iter().map(|(_, note)| note).collect();
    if committed {
        carry_out(&notes);
        if !counts.is_empty() {
            // SAFETY: set once at the start of the process.
            let database = unsafe { pg_sys::MyDatabaseId };
            counters::count_all(database, counts.into_iter().map(|((_, count), number)| (count, number)));
        }
    }
    // After the wake-ups: the launcher may look at once, and must see everything.
    if BLOCKING.replace(false) {
        shmem::release_blocks();
    }
}

fn carry_out(notes: &BTreeSet<Note>) {
    // SAFETY: set once at the start of the process.
    let database = unsafe { pg_sys::MyDatabaseId };
    let (mut waited_for, mut calls) = (BTreeSet::new(), BTreeMap::<_, Vec<_>>::new());
    for note in notes {
        match *note {
            Note::Wrote | Note::Locked(_) | Note::LockedAttributes => {}
            Note::CallsOver => Slot::find(database, Role::Scheduler).into_iter().for_each(Slot::note_calls_over),
            Note::Wake(wakeup) => Slot::of_database(database).for_each(|slot| slot.wake(wakeup)),
            Note::WakeWaiters(key) => _ = waited_for.insert(key),
            Note::WakeForCall(worker, call, _) => calls.entry(worker).or_default().push(call),
            Note::WakeAll => places::wake(database, None),
            Note::PokeLauncher => shmem::poke(database),
            Note::Rescan => shmem::request_rescan(),
            Note::ForgetWorker(worker) => call::forget_worker(database, worker),
        }
    }
    if !waited_for.is_empty() {
        places::wake(database, Some(&waited_for));
    }
    for (worker, calls) in &calls {
        places::wake_for_calls(database, &worker_key(*worker), calls);
    }
}

unsafe extern "C-unwind" fn at_subtransaction_event(
    event: pg_sys::SubXactEvent::Type,
    subtransaction: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _: *mut c_void,
) {
    use pg_sys::SubXactEvent::{SUBXACT_EVENT_ABORT_SUB, SUBXACT_EVENT_COMMIT_SUB};
    // As above. At worst a panic here leaves a surplus note, which wakes a process for nothing.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let of_level = |notes: &mut BTreeSet<_>| notes.split_off(&(subtransaction, Note::Wrote));
        NOTES.with_borrow_mut(|notes| match event {
            SUBXACT_EVENT_ABORT_SUB => drop(of_level(notes)),
            SUBXACT_EVENT_COMMIT_SUB => {
                let ended = of_level(notes);
                notes.extend(ended.into_iter().map(|(_, note)| (parent, note)));
            }
            _ => {}
        });
        COUNTS.with_borrow_mut(|counts| match event {
            SUBXACT_EVENT_ABORT_SUB => drop(counts.split_off(&(subtransaction, Count::LEAST))),
            SUBXACT_EVENT_COMMIT_SUB => {
                for ((_, count), number) in counts.split_off(&(subtransaction, Count::LEAST)) {
                    *counts.entry((parent, count)).or_default() += number;
                }
            }
            _ => {}
        });
    }));
}

unsafe extern "C-unwind" fn at_exit(_code: std::ffi::c_int, _: pg_sys::Datum) {
    if WAITING.replace(false) {
        places::give_back_all();
    }
    if BLOCKING.replace(false) {
        shmem::release_blocks();
    }
}

/// Waits for an execution or for calls, in a client's session.
pub mod waiter {
    use super::{WAITING, ensure_registered, places};
    use crate::pg::latch;
    use pgrx::pg_sys;

    /// How often a session without a place looks.
    const POLL_MS: i64 = 1000;

    /// A place of a waiting session. It is given back when dropped, at the end of the transaction, or at the end of the
    /// process, whichever comes first.
    ///
    /// Register *first* and scan *then*, with a new snapshot. Everything that commits after the scan wakes this
    /// session.
    pub struct Registration {
        place: Option<usize>,
        /// The worker whose calls this session waits for.
        worker: Option<i32>,
    }

    impl Registration {
        /// Takes a place to wait for an execution. Without a place, waiting means polling: all places of this process
        /// are taken, or the library is not preloaded.
        pub fn register(execution: &[u8; 16]) -> Registration {
            Self { place: Self::take(execution, None), worker: None }
        }

        /// Takes a place to wait for the end of one step.
        pub fn register_state(execution: &[u8; 16], state_execution_id: &str) -> Registration {
            Self::register(&super::state_key(execution, state_execution_id))
        }

        /// Takes a place to wait for calls of one worker in these shards, both ends included.
        pub fn register_worker(worker: i32, shards: (i16, i16)) -> Registration {
            Self { place: Self::take(&super::worker_key(worker), Some(shards)), worker: Some(worker) }
        }

        fn take(key: &[u8; 16], shards: Option<(i16, i16)>) -> Option<usize> {
            ensure_registered();
            // Set before the place is taken, so that no error can come between.
            WAITING.set(true);
            // SAFETY: set once at the start of the process.
            places::take(unsafe { pg_sys::MyDatabaseId }, key, shards)
        }

        /// Whether this session has a place.
        #[cfg(feature = "pg_test")]
        pub fn has_place(&self) -> bool {
            self.place.is_some()
        }

        #[cfg(feature = "pg_test")]
        pub fn place(&self) -> Option<usize> {
            self.place
        }

        /// Whether this session waits for calls of this worker.
        pub fn is_for(&self, worker: i32) -> bool {
            self.worker == Some(worker)
        }

        /// The wake-up has served its purpose: this session or another one has found the call. The wake-up is not
        /// passed on.
        pub fn served(&self) {
            self.place.into_iter().for_each(places::served);
        }

        /// Waits until this session is woken, but at most this long. Returns at once if the session was woken since the
        /// last wait. Interrupts are obeyed. The caller looks again afterwards: a wake-up only says that something may
        /// have changed.
        pub fn wait(&self, timeout_ms: i64) {
            wait_for_any([self], timeout_ms);
        }

        /// Like [`Self::wait`], for calls. The session that watches its line waits at most `until_poll_ms`: it looks
        /// for calls that no commit wakes it for.
        pub fn wait_for_calls(&self, timeout_ms: i64, until_poll_ms: i64) {
            let watches = self.place.is_none_or(places::watches);
            self.wait(if watches { timeout_ms.min(until_poll_ms) } else { timeout_ms });
        }
    }

    /// Like [`Registration::wait`], for several places at a time.
    pub fn wait_for_any<const N: usize>(places: [&Registration; N], timeout_ms: i64) {
        let woken =
            || places.iter().filter_map(|one| one.place).fold(false, |any, place| any | places::take_woken(place));
        if woken() {
            return;
        }
        let is_polling = places.iter().any(|one| one.place.is_none());
        latch::wait_for_latch(if is_polling { timeout_ms.min(POLL_MS) } else { timeout_ms });
        // Clears the wake-ups: the next scan serves them.
        woken();
    }

    impl Drop for Registration {
        fn drop(&mut self) {
            if let Some(place) = self.place {
                places::give_back(place);
            }
        }
    }
}
