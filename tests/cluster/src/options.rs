//! Options of the programs that explore, from the environment.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// An empty variable is none: `make` passes on what was not given.
pub fn number<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match std::env::var(name).ok().filter(|value| !value.is_empty()) {
        None => Ok(default),
        Some(value) => value.parse().map_err(|_| format!("{name}={value} is not a number")),
    }
}

/// A seed that nobody chose, short enough to be typed again.
pub fn clock_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 % 1_000_000
}
