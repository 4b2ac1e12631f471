//! Options of the exploring programs and of large tests, read from the environment.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number in a variable. An empty variable counts as absent: `make` passes on every variable.
pub fn number<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match std::env::var(name).ok().filter(|value| !value.is_empty()) {
        None => Ok(default),
        Some(value) => value.parse().map_err(|_| format!("{name}={value} is not a number")),
    }
}

/// The size of a test that `scripts/large` runs with `LARGE=1`, and `make test` in a small form.
pub fn small_or_large<T>(small: T, large: T) -> T {
    match std::env::var("LARGE").as_deref() {
        Ok("1") => large,
        _ => small,
    }
}

/// A seed from the clock, short enough to be typed.
pub fn clock_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000
}
