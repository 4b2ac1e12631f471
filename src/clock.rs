//! The one clock: every moment that the engine compares or stores comes from here.
//!
//! There are two times:
//! * [`now`] is the time of processes: events, timers, backoff, process timeouts, `start_at`. The setting `xdb.now`
//!   shifts it, so that tests can run through days in milliseconds.
//! * [`real`] is the time outside of processes: leases, and what the breakers of workers show. No setting shifts it.
//!
//! [`behind`] decides what is old enough to be purged.

use crate::pg::{param::from_postgres, raw, shmem};
use std::time::{Duration, Instant};
use xdb_engine::Timestamp;

/// The time of processes at this moment, not at the start of the transaction. All sessions of the server see the same
/// time. A change of `xdb.now` makes the time jump, forward or back.
pub fn now() -> Timestamp {
    Timestamp(real().0.saturating_add(offset()))
}

/// The shift of [`now`] against [`real`], in microseconds.
pub fn offset() -> i64 {
    shmem::clock_offset()
}

/// The time of the operating system's clock.
pub fn real() -> Timestamp {
    from_postgres(raw::now_micros())
}

/// Converts an `Instant` to the real time.
pub fn on_the_wall(at: Instant) -> Timestamp {
    let (now, micros) = (Instant::now(), |time: Duration| time.as_micros() as i64);
    Timestamp(real().0 + micros(at.saturating_duration_since(now)) - micros(now.saturating_duration_since(at)))
}

/// The earlier one of the two times: data is purged only if it is old by both. A test can shift the time of the whole
/// server forward, and must not make other databases purge their data.
pub fn behind() -> Timestamp {
    now().min(real())
}
