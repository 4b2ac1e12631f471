//! Lets a transaction commit without waiting for disk or standby, if it wrote only leases of calls. If a crash loses a
//! lease, the lease never existed: the fence rejects an answer under it, as after its end.
//!
//! The end of the transaction's last WAL record shows what it has written. Leases count as long as each write begins
//! where the last one ended. Any other write in between, by any code, ends that.

use super::identity;
use crate::pg::catch::Result;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Up to this WAL position, this transaction has written only leases. 0: its first write was not a lease, or it has
    /// written nothing.
    static LEASES_END: Cell<pg_sys::XLogRecPtr> = const { Cell::new(0) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// The end of this transaction's last WAL record. 0: it has none.
fn written() -> pg_sys::XLogRecPtr {
    // SAFETY: reads a counter of this process, which the server resets at the end of each transaction.
    unsafe { pg_sys::XactLastRecEnd }
}

/// Runs code that may lease calls, or only reads. `body` returns whether it has written nothing else.
pub fn leasing<T>(body: impl FnOnce() -> Result<(T, bool)>) -> Result<T> {
    ensure_registered();
    let only_leases_before = LEASES_END.get() == written();
    let (done, only_leases) = body()?;
    if only_leases_before && only_leases {
        LEASES_END.set(written());
    }
    Ok(done)
}

/// The callback stays registered for the life of the process. Registering it twice would run it twice.
fn ensure_registered() {
    if !REGISTERED.replace(true) {
        // SAFETY: the callback has the expected signature. It lives as long as the library, which is never unloaded.
        unsafe { pg_sys::RegisterXactCallback(Some(at_transaction_event), std::ptr::null_mut()) };
    }
}

unsafe extern "C-unwind" fn at_transaction_event(event: pg_sys::XactEvent::Type, _: *mut c_void) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PRE_COMMIT, XACT_EVENT_PREPARE};
    match event {
        XACT_EVENT_PRE_COMMIT if LEASES_END.get() != 0 && LEASES_END.get() == written() => {
            // A panic must not leave this function. If the setting fails, the commit only waits.
            let _ = catch_unwind(AssertUnwindSafe(|| identity::set_local(c"synchronous_commit", c"off")));
        }
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => LEASES_END.set(0),
        _ => {}
    }
}
