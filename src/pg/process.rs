//! The plumbing of an engine process: its signals, its connection, its end.

use super::shmem::{self, Slot, call};
use super::{compat, identity, in_hand, raw, settings};
use pgrx::pg_sys;
use std::cell::{Cell, OnceCell};
use std::ffi::{CStr, c_int};
use std::rc::Rc;

/// Installs the handlers that every process of the engine has, and lets signals in.
///
/// SIGTERM interrupts the statement that runs and ends the process at its next check for interrupts.
pub fn accept_signals() {
    // SAFETY: both handlers are the server's own, without pgrx's boundary, and safe in a signal.
    unsafe {
        compat::pqsignal(pg_sys::SIGTERM as c_int, Some(raw::die));
        compat::pqsignal(pg_sys::SIGHUP as c_int, Some(raw::SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
        // A SIGHUP that came before the handler was there has been lost.
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

/// Takes over the slot that the launcher has reserved for this process; `None` when it has given this start up. The slot is
/// given back when the process ends. To be called first, while signals are still blocked.
pub fn claim_slot(argument: pg_sys::Datum) -> Option<Slot> {
    let slot = Slot::claim(argument.value() as u64)?;
    // SAFETY: signals are still blocked, so nothing comes between the claim and this registration. The callback runs after the
    // process has left the process array, because it is registered before the process has entered it: who sees the slot empty
    // finds no connection.
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

/// Marks this process as the engine's, pins its settings, lets signals in and connects it to its database.
pub fn connect(database: pg_sys::Oid) {
    identity::begin_engine();
    settings::pin_before_connection();
    keep_memory();
    accept_signals();
    // SAFETY: the first and only connection of this process; without a user it is the superuser of the cluster.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
        // `ALTER DATABASE … SET session_authorization` has made it another role's; its name can't be pinned before there is a
        // transaction to look it up in.
        pg_sys::SetSessionAuthorization(pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID), true);
    }
    settings::pin_after_connection();
}

/// Marks this process as the launcher, lets signals in, and connects it to no database: only the shared catalogs can be read. To be
/// called first, while signals are still blocked.
pub fn connect_launcher() {
    shmem::launcher_started();
    // SAFETY: signals are still blocked, so nothing comes between the mark and this registration. The first and only connection of
    // this process; without a user it is the superuser of the cluster.
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

/// Keeps what a turn has freed for the next one, up to this. By itself the C library gives it back to the system after each
/// turn, and the next turn waits for every page of it to be given again and emptied.
const MEMORY_KEPT: c_int = 16 << 20;

/// Allocations of this size or larger are given back as soon as they are freed all the same.
const GIVEN_BACK: c_int = 4 << 20;

fn keep_memory() {
    // SAFETY: the options of the C library's allocator, in the one thread that there is yet.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, MEMORY_KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK);
    }
}

/// Ends this process.
pub fn exit(code: c_int) -> ! {
    // SAFETY: ends the process in the server's way. The caller has no destructor pending.
    unsafe { pg_sys::proc_exit(code) }
}

/// When this process read the configuration last: another moment after each reload.
pub fn configuration_read_at() -> i64 {
    // SAFETY: a number that this process alone writes.
    unsafe { pg_sys::PgReloadTime }
}

/// The name of the database that this process is connected to; it can't be renamed meanwhile. To be called in a transaction.
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

/// The identifier of the server's files, as `pg_control_system()` shows it.
pub fn system_identifier() -> i64 {
    // SAFETY: set before any statement runs.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

/// Whether this server is a standby, or recovers from a crash.
pub fn is_in_recovery() -> bool {
    // SAFETY: reads a flag of the server.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Whether this transaction goes on after the client's statement.
pub fn is_in_transaction_block() -> bool {
    // SAFETY: reads the state of this transaction.
    unsafe { pg_sys::IsTransactionBlock() }
}

/// Whether this transaction goes on seeing what it saw first: it is above `READ COMMITTED`.
pub fn has_transaction_snapshot() -> bool {
    // SAFETY: reads the isolation level of this transaction.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// Takes note of what others have committed to the catalog. In a statement that waits, which does so by itself only where it locks a
/// table for the first time.
pub fn accept_invalidations() {
    // SAFETY: a transaction is open, and no look-up is under way.
    unsafe { pg_sys::AcceptInvalidationMessages() }
}

/// Refuses to go on in a read-only transaction, by an error. `function` is for the message.
pub fn refuse_if_read_only(function: &CStr) {
    // SAFETY: the name outlives the call.
    unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) }
}

/// Whether the library is loaded by the postmaster, to run processes: not by pg_upgrade, which moves the files, so that no
/// process may run and nothing may be kept out of its way.
pub fn is_server_start() -> bool {
    // SAFETY: flags of the server, set before libraries are loaded.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade }
}

thread_local! {
    static IN_STEP_OF: Cell<Option<[u8; 16]>> = const { Cell::new(None) };
}

/// The execution of which a function answers a call right now.
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

/// A random number in 0..1, for what needs no secrecy. For the main thread alone.
pub fn random() -> f64 {
    // SAFETY: the server's generator; used on the main thread alone.
    let random = unsafe { pg_sys::pg_prng_double(&raw mut pg_sys::pg_global_prng_state) };
    random.clamp(0.0, 1.0)
}
