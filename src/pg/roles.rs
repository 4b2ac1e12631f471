//! Whether roles were made, changed or dropped since somebody asked last.

use pgrx::pg_sys;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// At first nobody has looked at any.
static CHANGED: AtomicBool = AtomicBool::new(true);

/// From here on this process hears of changes, whenever it begins a transaction. Once in the life of a process.
pub fn listen() {
    // SAFETY: the callback lives as long as the process.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::AUTHOID as c_int;
        pg_sys::CacheRegisterSyscacheCallback(cache, Some(note), pg_sys::Datum::from(0));
    }
}

/// Whether there was a change since the last time.
pub fn have_changed() -> bool {
    CHANGED.swap(false, Ordering::Relaxed)
}

/// Called while the server takes in what others changed. Neither allocates nor raises anything.
unsafe extern "C-unwind" fn note(_: pg_sys::Datum, _: c_int, _: u32) {
    CHANGED.store(true, Ordering::Relaxed);
}
