//! Subtransactions, timeouts and conditional locks: what keeps one bad table from stopping the engine.

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

/// Runs `body` in a subtransaction: an error takes back what it did, and the transaction goes on.
pub fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: as PL/pgSQL does it for a block with an EXCEPTION clause: memory context and resource owner are put
    // back on both ways out.
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

/// Runs `body` in a subtransaction and takes back what it did, also where it went well: locks that it got are free again.
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

/// A statement that catches its cancellation and goes on is ended with its process after this many time limits.
const HARD_LIMIT: u32 = 3;

/// How many time limits the statement has taken. A timer counts them that fires once for each. One for all of them would fire together
/// with the cancellation after a standstill of the machine, before the statement had any time to end. Firings that a standstill has
/// missed are not made up for (the server's `handle_sig_alarm`): it counts as one limit.
static LIMITS_TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The number of the timer that counts limits, once it is registered.
    static LIMIT_TIMER: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// The table that this process touches for a user, and the role whose step does. The handler of the timer marks them.
static IN_TABLE: AtomicU32 = AtomicU32::new(0);
static FOR_OWNER: AtomicU32 = AtomicU32::new(0);

/// At the last of them, ends the process at its next check for interrupts, as SIGTERM does: no exception handler catches that.
unsafe extern "C-unwind" fn at_limit() {
    if LIMITS_TAKEN.fetch_add(1, Ordering::Relaxed) + 1 != HARD_LIMIT {
        return;
    }
    crate::pg::shmem::slow::ends_process(IN_TABLE.load(Ordering::Relaxed), FOR_OWNER.load(Ordering::Relaxed));
    // SAFETY: what the handler of SIGTERM does, in a handler of a timer.
    unsafe { super::raw::die(0) };
}

/// Runs `body`, which touches this table for this role, and cancels its statement after this many milliseconds. Armed by hand,
/// because a background worker's statements have no timeout of their own. What survives its cancellation for long
/// takes the process with it: the others must not wait for it.
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
    // SAFETY: as above. Disarmed on both ways out, before anybody else's statement runs.
    unsafe {
        catch(|| {
            raw::disable_timeout(STATEMENT_TIMEOUT, false);
            raw::disable_timeout(timer, false);
        })?;
        // It may have fired after the last check for interrupts; the next statement is not the one to cancel.
        pg_sys::QueryCancelPending = 0;
    }
    result
}

/// From here on the statements under [`with_timeout`] touch this table: what goes wrong is put down to it.
pub fn now_in_table(table: u32) {
    IN_TABLE.store(table, Ordering::Relaxed);
}

/// The table that was touched last.
pub fn in_table() -> u32 {
    IN_TABLE.load(Ordering::Relaxed)
}

/// Keeps a table's definition as it is until the end of the transaction, and waits for whoever is changing it.
pub fn lock_table(relation: u32) -> Result<()> {
    let relation = pg_sys::Oid::from(relation);
    // SAFETY: a raw call without destructors; a table that was dropped can be locked too.
    unsafe { catch(|| raw::LockRelationOid(relation, pg_sys::AccessShareLock as c_int)) }
}

/// Takes a lock on what has this number in the extension, in this mode of the server's, until the end of the transaction.
/// Objects of an extension have no sub-objects: a number in their place tells these locks from all others.
pub fn lock_extension_object(object: u32, sub_object: u16, mode: u32) -> Result<()> {
    let (class, object) = (pg_sys::ExtensionRelationId, pg_sys::Oid::from(object));
    // SAFETY: a raw call without destructors; the lock goes with the transaction.
    unsafe { catch(|| raw::LockDatabaseObject(class, object, sub_object, mode as c_int)) }
}

/// Takes a table's lock in this mode of the server's, until the end of the transaction, if that is possible without waiting.
pub fn try_lock_table(relation: u32, mode: u32) -> bool {
    // SAFETY: a table that was dropped can be locked too; using it then fails.
    unsafe { pg_sys::ConditionalLockRelationOid(pg_sys::Oid::from(relation), mode as i32) }
}

/// Whether this transaction may have locked or written rows of a table: locks on tables are kept to its end.
pub fn holds_row_locks_in(relation: u32) -> bool {
    // SAFETY: a look-up in memory of this process.
    unsafe {
        pg_sys::CheckRelationOidLockedByMe(pg_sys::Oid::from(relation), pg_sys::RowShareLock as pg_sys::LOCKMODE, true)
    }
}
