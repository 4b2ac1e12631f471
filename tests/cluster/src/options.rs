//! Options of the exploring programs, read from the environment.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number in a variable. An empty variable counts as absent: `make` passes on every variable.
pub fn number<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match std::env::var(name).ok().filter(|value| !value.is_empty()) {
        None => Ok(default),
        Some(value) => value.parse().map_err(|_| format!("{name}={value} is not a number")),
    }
}

/// A seed from the clock, short enough to be typed.
pub fn clock_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000
}
