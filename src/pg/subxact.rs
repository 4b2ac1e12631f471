//! Subtransactions, timeouts and conditional locks: what keeps one bad table from stopping the engine.

use super::catch::{Result, catch};
use pgrx::pg_sys;
use std::ffi::{c_char, c_int};

mod raw {
    use std::ffi::{c_char, c_int};
    unsafe extern "C-unwind" {
        pub fn BeginInternalSubTransaction(name: *const c_char);
        pub fn ReleaseCurrentSubTransaction();
        pub fn RollbackAndReleaseCurrentSubTransaction();
        pub fn enable_timeout_after(id: c_int, delay_ms: c_int);
        pub fn disable_timeout(id: c_int, keep_indicator: bool);
    }
}

/// Postgres' number of its statement timeout, the same in all supported versions.
const STATEMENT_TIMEOUT: c_int = 3;

/// Runs `body` in a subtransaction: an error takes back what it did, and the transaction goes on.
pub fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: as PL/pgSQL does it for a block with an EXCEPTION clause: memory context and resource owner are put
    // back on both ways out.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        catch(|| raw::BeginInternalSubTransaction(std::ptr::null::<c_char>()))?;
        pg_sys::MemoryContextSwitchTo(context);
        let result = run_caught(body).and_then(|value| {
            catch(|| raw::ReleaseCurrentSubTransaction())?;
            Ok(value)
        });
        if result.is_err() {
            pg_sys::MemoryContextSwitchTo(context);
            catch(|| raw::RollbackAndReleaseCurrentSubTransaction())?;
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// Runs `body` and makes a panic (an ERROR that came through pgrx) an error like any other.
pub fn run_caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => Err(super::catch::PgError::from_panic(panic)),
    }
}

/// Runs `body` and cancels its statement after this many milliseconds. Armed by hand, because a background worker's
/// statements have no timeout of their own.
pub fn with_timeout<T>(milliseconds: i32, body: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: the timeout is registered in every process with a database connection.
    unsafe { catch(|| raw::enable_timeout_after(STATEMENT_TIMEOUT, milliseconds))? };
    let result = run_caught(body);
    // SAFETY: as above. Disarmed on both ways out, before anybody else's statement runs.
    unsafe {
        catch(|| raw::disable_timeout(STATEMENT_TIMEOUT, false))?;
        // It may have fired after the last check for interrupts; the next statement is not the one to cancel.
        pg_sys::QueryCancelPending = 0;
    }
    result
}

/// Takes a table's lock for writing its rows, until the end of the transaction, if that is possible without waiting.
pub fn try_lock_table(relation: u32) -> bool {
    // SAFETY: a table that was dropped can be locked too; using it then fails.
    unsafe { pg_sys::ConditionalLockRelationOid(pg_sys::Oid::from(relation), pg_sys::RowExclusiveLock as i32) }
}
