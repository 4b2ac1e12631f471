//! The one clock: every moment that the engine compares or stores comes from here.
//!
//! There are two times. [`now`] is that of processes: events, timers, backoff, process timeouts, `start_at`, retention.
//! `xdb.now` shifts it, so that days can be tested in milliseconds. [`real`] is that of what happens outside of
//! processes, and nothing shifts it: leases, and what the breakers of workers show.

pub mod shift;

use crate::pg::{param::from_postgres, raw, shift::current};
use xdb_engine::Timestamp;

/// The time of processes, not that of the transaction's start. The same in every session of the server at any moment;
/// it steps, also back, when `xdb.now` is changed.
pub fn now() -> Timestamp {
    Timestamp(real().0.saturating_add(shifted_by()))
}

/// How far it is from the real one, in microseconds.
pub fn shifted_by() -> i64 {
    current()
}

/// The time on the wall.
pub fn real() -> Timestamp {
    from_postgres(raw::now_micros())
}
