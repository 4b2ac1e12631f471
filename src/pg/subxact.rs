//! Subtransactions, time limits and conditional locks. They keep one faulty table from stopping the engine.

use super::catch::{PgError, Result, catch, run_caught};
use super::compat::{FIRST_USER_TIMEOUT, STATEMENT_TIMEOUT};
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

mod raw {
    use std::ffi::c_int;
    unsafe extern "C-unwind" {
        pub fn enable_timeout_after(id: c_int, delay_ms: c_int);
        pub fn enable_timeout_every(id: c_int, first: i64, delay_ms: c_int);
        pub fn disable_timeout(id: c_int, keep_indicator: bool);
        pub fn RegisterTimeout(id: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
        pub fn LockRelationOid(relation: pgrx::pg_sys::Oid, mode: c_int);
        pub fn LockDatabaseObject(class: pgrx::pg_sys::Oid, object: pgrx::pg_sys::Oid, sub_object: u16, mode: c_int);
    }
}

/// Runs `body` in a subtransaction. After an error its changes are undone, and the transaction continues.
pub fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: as PL/pgSQL does it for a block with an EXCEPTION clause: memory context and resource owner are restored
    // on both ways out.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = run_caught(|| {
            let value = body()?;
            pg_sys::ReleaseCurrentSubTransaction();
            Ok(value)
        });
        if result.is_err() {
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// Runs `body` in a subtransaction and always undoes its changes. So its locks are free again.
pub fn undone<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut value = None;
    let ended = guarded(|| -> Result<()> {
        value = Some(body()?);
        Err(PgError::internal("taken back"))
    });
    match (value, ended) {
        (Some(value), _) => Ok(value),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(PgError::internal("a subtransaction ended without a value")),
    }
}

/// If a statement catches its cancellation and continues, its process is ended after this number of time limits.
const HARD_LIMIT: u32 = 3;

/// How many time limits the statement has used. A timer fires once for each limit. A single timer for all limits would
/// fire together with the cancellation after the machine stood still, and leave the statement no time to end. Firings
/// missed in a standstill are not repeated (the server's `handle_sig_alarm`), so a standstill counts as one limit.
static LIMITS_TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The id of the timer that counts limits, once it is registered.
    static LIMIT_TIMER: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// The table that this process uses now, and the role whose step uses it. Written before each use, read by the timer's
/// handler, which marks them.
static IN_TABLE: AtomicU32 = AtomicU32::new(0);
static FOR_OWNER: AtomicU32 = AtomicU32::new(0);

/// At the last limit, ends the process at its next check for interrupts, as SIGTERM does: no exception handler catches
/// that.
unsafe extern "C-unwind" fn at_limit() {
    if LIMITS_TAKEN.fetch_add(1, Ordering::Relaxed) + 1 != HARD_LIMIT {
        return;
    }
    crate::pg::shmem::slow::ends_process(IN_TABLE.load(Ordering::Relaxed), FOR_OWNER.load(Ordering::Relaxed));
    // SAFETY: what the handler of SIGTERM does, in a handler of a timer.
    unsafe { super::raw::die(0) };
}

/// Runs `body`, which uses this table for this role, and cancels its statement after this number of milliseconds. The
/// timer is set here because statements of background workers have no timeout of their own. If code survives its
/// cancellation for long, the process is ended, because other processes must not wait for it.
pub fn with_timeout<T>(
    milliseconds: i32,
    table: u32,
    owner: pg_sys::Oid,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    IN_TABLE.store(table, Ordering::Relaxed);
    FOR_OWNER.store(owner.to_u32(), Ordering::Relaxed);
    // SAFETY: the statement timeout is registered in every process with a database connection, the other one here.
    let timer = unsafe {
        let timer = match LIMIT_TIMER.get() {
            Some(timer) => timer,
            None => catch(|| raw::RegisterTimeout(FIRST_USER_TIMEOUT, at_limit))?,
        };
        LIMIT_TIMER.set(Some(timer));
        catch(|| {
            raw::enable_timeout_after(STATEMENT_TIMEOUT, milliseconds);
            LIMITS_TAKEN.store(0, Ordering::Relaxed);
            let first = pg_sys::GetCurrentTimestamp() + i64::from(milliseconds) * 1000;
            raw::enable_timeout_every(timer, first, milliseconds);
        })?;
        timer
    };
    let result = run_caught(body);
    // SAFETY: as above. Disarmed on both ways out, before any other statement runs.
    unsafe {
        catch(|| {
            raw::disable_timeout(STATEMENT_TIMEOUT, false);
            raw::disable_timeout(timer, false);
        })?;
        // The timeout may have fired after the last check for interrupts. It must not cancel the next statement.
        pg_sys::QueryCancelPending = 0;
    }
    result
}

/// From now on, code under [`with_timeout`] uses this table: problems are attributed to it.
pub fn now_in_table(table: u32) {
    IN_TABLE.store(table, Ordering::Relaxed);
}

/// The table that was used last.
pub fn in_table() -> u32 {
    IN_TABLE.load(Ordering::Relaxed)
}

/// Keeps a table's definition unchanged until the end of the transaction. Waits for a transaction that is changing it.
pub fn lock_table(relation: u32) -> Result<()> {
    let relation = pg_sys::Oid::from(relation);
    // SAFETY: a raw call without destructors; a table that was dropped can be locked too.
    unsafe { catch(|| raw::LockRelationOid(relation, pg_sys::AccessShareLock as c_int)) }
}

/// Locks a number within the extension, in this lock mode of the server, until the end of the transaction. Extensions
/// have no sub-objects, so a sub-object number keeps these locks apart from all other locks.
pub fn lock_extension_object(object: u32, sub_object: u16, mode: u32) -> Result<()> {
    let (class, object) = (pg_sys::ExtensionRelationId, pg_sys::Oid::from(object));
    // SAFETY: a raw call without destructors; the lock is released with the transaction.
    unsafe { catch(|| raw::LockDatabaseObject(class, object, sub_object, mode as c_int)) }
}

/// Locks a table in this lock mode of the server, until the end of the transaction, if that is possible without
/// waiting.
pub fn try_lock_table(relation: u32, mode: u32) -> bool {
    // SAFETY: a table that was dropped can be locked too; using it then fails.
    unsafe { pg_sys::ConditionalLockRelationOid(pg_sys::Oid::from(relation), mode as i32) }
}

/// Whether this transaction may have locked or written rows of a table. Locks on tables are kept until its end.
pub fn holds_row_locks_in(relation: u32) -> bool {
    // SAFETY: a look-up in memory of this process.
    unsafe {
        pg_sys::CheckRelationOidLockedByMe(pg_sys::Oid::from(relation), pg_sys::RowShareLock as pg_sys::LOCKMODE, true)
    }
}
