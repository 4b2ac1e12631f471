//! The one clock: every moment that the engine compares or stores comes from here.

use crate::pg::param::from_postgres;
use pgrx::pg_sys;
use xdb_engine::Timestamp;

/// The time now, not that of the transaction's start.
pub fn now() -> Timestamp {
    // SAFETY: reads the system clock.
    from_postgres(unsafe { pg_sys::GetCurrentTimestamp() })
}
