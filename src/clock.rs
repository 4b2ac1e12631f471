//! The one clock: every moment that the engine compares or stores comes from here.
//!
//! There are two times. [`now`] is that of processes: events, timers, backoff, process timeouts, `start_at`.
//! `xdb.now` shifts it, so that days can be tested in milliseconds. [`real`] is that of what happens outside of
//! processes, and nothing shifts it: leases, and what the breakers of workers show. What is deleted for good because it is old
//! goes by [`behind`].

use crate::pg::{param::from_postgres, raw, shmem};
use std::time::{Duration, Instant};
use xdb_engine::Timestamp;

/// The time of processes, not that of the transaction's start. The same in every session of the server at any moment;
/// it steps, also back, when `xdb.now` is changed.
pub fn now() -> Timestamp {
    Timestamp(real().0.saturating_add(offset()))
}

/// How far it is from the real one, in microseconds.
pub fn offset() -> i64 {
    shmem::clock_offset()
}

/// The time on the wall.
pub fn real() -> Timestamp {
    from_postgres(raw::now_micros())
}

/// When that moment is, on the wall.
pub fn on_the_wall(at: Instant) -> Timestamp {
    let (now, micros) = (Instant::now(), |time: Duration| time.as_micros() as i64);
    Timestamp(real().0 + micros(at.saturating_duration_since(now)) - micros(now.saturating_duration_since(at)))
}

/// The earlier one of the two times: what is not old by both is not old. The setting is the server's, and a test that moves it
/// forward must not delete what other databases keep.
pub fn behind() -> Timestamp {
    now().min(real())
}
