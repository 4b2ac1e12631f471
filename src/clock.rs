//! The one clock: every moment that the engine compares or stores comes from here.
//!
//! There are two times. [`now`] is that of processes: events, timers, backoff, process timeouts, `start_at`.
//! `xdb.now` shifts it, so that days can be tested in milliseconds. [`real`] is that of what happens outside of
//! processes, and nothing shifts it: leases, and what the breakers of workers show. What is deleted for good because it is old
//! goes by [`behind`].

use crate::pg::{clock_offset, param::from_postgres, raw};
use xdb_engine::Timestamp;

/// The time of processes, not that of the transaction's start. The same in every session of the server at any moment;
/// it steps, also back, when `xdb.now` is changed.
pub fn now() -> Timestamp {
    Timestamp(real().0.saturating_add(offset()))
}

/// How far it is from the real one, in microseconds.
pub fn offset() -> i64 {
    clock_offset::current()
}

/// The time on the wall.
pub fn real() -> Timestamp {
    from_postgres(raw::now_micros())
}

/// The earlier one of the two times: what is not old by both is not old. The setting is the server's, and a test that moves it
/// forward must not delete what other databases keep.
pub fn behind() -> Timestamp {
    now().min(real())
}

/// ISO 8601 in UTC. Civil date by the days-from-civil algorithm.
pub fn iso8601(at: Timestamp) -> String {
    let (seconds, micros) = (at.0.div_euclid(1_000_000), at.0.rem_euclid(1_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}
