//! Heavyweight locks of a class of our own, which no user's advisory lock can meet. Held until the transaction ends.

use super::catch::{Result, catch};
use pgrx::pg_sys;
use std::ffi::c_int;

mod raw {
    use pgrx::pg_sys;
    use std::ffi::c_int;
    unsafe extern "C-unwind" {
        pub fn LockAcquire(tag: *const pg_sys::LOCKTAG, mode: c_int, session: bool, dont_wait: bool) -> c_int;
    }
}

/// The server uses 1 and 2 for the advisory locks of users.
const CLASS: u16 = 0x7864;

fn tag(key: u64) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: set once at the start of the process.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: (key >> 32) as u32,
        locktag_field3: key as u32,
        locktag_field4: CLASS,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
    }
}

/// Takes the lock exclusively if it is free.
pub fn try_acquire(key: u64) -> Result<bool> {
    /// LOCKACQUIRE_NOT_AVAIL.
    const NOT_AVAILABLE: c_int = 0;
    let (tag, mode) = (tag(key), pg_sys::AccessExclusiveLock as c_int);
    let tag = &raw const tag;
    // SAFETY: a raw call; the tag outlives it.
    Ok(unsafe { catch(|| raw::LockAcquire(tag, mode, false, true))? } != NOT_AVAILABLE)
}
