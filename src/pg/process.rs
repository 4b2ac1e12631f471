//! Services for an engine process: its signals, its connection, its end, and facts about server and transaction.

use super::shmem::{self, Slot, call};
use super::{compat, identity, in_hand, raw, settings};
use pgrx::pg_sys;
use std::cell::{Cell, OnceCell};
use std::ffi::{CStr, c_int};
use std::rc::Rc;

/// Installs the signal handlers of an engine process, and unblocks signals.
///
/// SIGTERM interrupts the running statement. The process ends at its next check for interrupts.
pub fn accept_signals() {
    // SAFETY: both handlers are the server's own, without pgrx's boundary, and safe in a signal.
    unsafe {
        compat::pqsignal(pg_sys::SIGTERM as c_int, Some(raw::die));
        compat::pqsignal(pg_sys::SIGHUP as c_int, Some(raw::SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
        // A SIGHUP before the handler was installed has been lost.
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

/// Takes the slot that the launcher has reserved for this process. `None`: the launcher has given up this start. The
/// slot is released when the process ends. Call it first, while signals are still blocked.
pub fn claim_slot(argument: pg_sys::Datum) -> Option<Slot> {
    let slot = Slot::claim(argument.value() as u64)?;
    // SAFETY: signals are still blocked, so nothing happens between the claim and this registration. The callback is
    // registered before the process enters the process array, so it runs after the process has left it. If a slot is
    // empty, its process has no connection any more.
    unsafe { pg_sys::on_shmem_exit(Some(at_exit), argument) };
    Some(slot)
}

unsafe extern "C-unwind" fn at_exit(_code: c_int, argument: pg_sys::Datum) {
    let index = (argument.value() & 0xff) as u8;
    if let Some(slot) = Slot::by_index(index) {
        in_hand::end();
        call::reset_role(slot.database(), slot.role());
        slot.vacate();
    }
}

/// Marks this process as an engine process, pins its settings, unblocks signals, and connects to the database.
pub fn connect(database: pg_sys::Oid) {
    identity::begin_engine();
    settings::pin_before_connection();
    keep_memory();
    accept_signals();
    // SAFETY: the first and only connection of this process. Without a user it is the superuser of the cluster.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
        // `ALTER DATABASE … SET session_authorization` may have changed the role. It can't be pinned before: looking up
        // a role name needs a transaction.
        pg_sys::SetSessionAuthorization(pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID), true);
    }
    settings::pin_after_connection();
}

/// Marks this process as the launcher, unblocks signals, and connects to no database: it can read shared catalogs only.
/// Call it first, while signals are still blocked.
pub fn connect_launcher() {
    shmem::launcher_started();
    // SAFETY: signals are still blocked, so nothing happens between the mark and this registration. The first and only
    // connection of this process; without a user it is the superuser of the cluster.
    unsafe {
        pg_sys::on_shmem_exit(Some(launcher_at_exit), pg_sys::Datum::null());
        settings::pin_before_connection();
        accept_signals();
        pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
        pg_sys::pgstat_report_appname(c"xdb launcher".as_ptr());
    }
}

unsafe extern "C-unwind" fn launcher_at_exit(_code: c_int, _: pg_sys::Datum) {
    shmem::launcher_ended();
}

/// Bytes of freed memory that are kept for the next turn. By default the C library returns memory to the system after
/// each turn, and the next turn waits for each page again.
const MEMORY_KEPT: c_int = 16 << 20;

/// Allocations of at least this many bytes are returned to the system when they are freed.
const GIVEN_BACK: c_int = 4 << 20;

fn keep_memory() {
    // SAFETY: options of the C library's allocator, while this process has one thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, MEMORY_KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK);
    }
}

/// Ends this process in the server's way. The caller must have no destructor pending.
pub fn exit(code: c_int) -> ! {
    // SAFETY: ends the process in the server's way. The caller has no destructor pending.
    unsafe { compat::proc_exit(code) }
}

/// When this process last read the configuration. Changes with each reload.
pub fn configuration_read_at() -> i64 {
    // SAFETY: a number that only this process writes.
    unsafe { pg_sys::PgReloadTime }
}

/// The name of this process's database, which can't be renamed meanwhile. Call it in a transaction.
pub fn database_name() -> Rc<str> {
    thread_local! {
        static NAME: OnceCell<Rc<str>> = const { OnceCell::new() };
    }
    NAME.with(|known| {
        known
            .get_or_init(|| {
                // SAFETY: reads the catalog.
                unsafe { raw::text(pg_sys::get_database_name(pg_sys::MyDatabaseId)) }.unwrap_or_default().into()
            })
            .clone()
    })
}

/// The database that this process is connected to.
pub fn database() -> pg_sys::Oid {
    // SAFETY: set once at the start of the process.
    unsafe { pg_sys::MyDatabaseId }
}

/// The identifier of the server's files, as in `pg_control_system()`.
pub fn system_identifier() -> i64 {
    // SAFETY: set before any statement runs.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

/// Whether this server is a standby, or is recovering from a crash.
pub fn is_in_recovery() -> bool {
    // SAFETY: reads a flag of the server.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Whether this transaction continues after the client's statement.
pub fn is_in_transaction_block() -> bool {
    // SAFETY: reads the state of this transaction.
    unsafe { pg_sys::IsTransactionBlock() }
}

/// Whether all statements of this transaction see the same snapshot: its isolation level is above `READ COMMITTED`.
pub fn has_transaction_snapshot() -> bool {
    // SAFETY: reads the isolation level of this transaction.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// Processes invalidations of the catalog. For a statement that waits: by itself, it would only do so when it first
/// locks a table.
pub fn accept_invalidations() {
    // SAFETY: a transaction is open, and no look-up is in progress.
    unsafe { pg_sys::AcceptInvalidationMessages() }
}

/// Raises an error in a read-only transaction. `function` is for the message.
pub fn refuse_if_read_only(function: &CStr) {
    // SAFETY: the name outlives the call.
    unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) }
}

/// Whether the postmaster loads the library to run processes. False under pg_upgrade, which moves the files: no process
/// may run then, and nothing needs to be kept away from it.
pub fn is_server_start() -> bool {
    // SAFETY: flags of the server, set before libraries are loaded.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade }
}

thread_local! {
    /// Written by [`as_step_of`], read by functions that a function's code calls.
    static IN_STEP_OF: Cell<Option<[u8; 16]>> = const { Cell::new(None) };
}

/// The execution whose call a function answers right now.
pub fn in_step_of() -> Option<[u8; 16]> {
    IN_STEP_OF.get()
}

/// Runs a function that answers a call of this execution.
pub fn as_step_of<T>(execution: [u8; 16], body: impl FnOnce() -> T) -> T {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            IN_STEP_OF.set(None);
        }
    }
    IN_STEP_OF.set(Some(execution));
    let _over = Over;
    body()
}

/// A random number in 0..1, for uses without secrecy. Main thread only.
pub fn random() -> f64 {
    // SAFETY: the server's generator, used on the main thread only.
    let random = unsafe { pg_sys::pg_prng_double(&raw mut pg_sys::pg_global_prng_state) };
    random.clamp(0.0, 1.0)
}
