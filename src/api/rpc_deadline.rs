//! The deadline of an RPC. The RPC's waits and its call share the time until then.
//!
//! Limitations: after the answer, the deadline ends no wait. `lock_timeout` does.

use crate::error;
use crate::pg::catch::{LOCK_NOT_AVAILABLE, PgError, Result};
use crate::pg::identity;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shorter waits are not named in an error.
const SHORTEST_NAMED: Duration = Duration::from_millis(10);

/// When an RPC must have ended, and what used up its time.
pub(super) struct Deadline {
    at: Instant,
    /// How long the finished waits took, by the thing that they waited for. [`Deadline::wait`] writes it, and errors
    /// show it.
    waits: BTreeMap<&'static str, Duration>,
}

impl Deadline {
    pub fn after(timeout: Duration) -> Self {
        Self { at: Instant::now() + timeout, waits: BTreeMap::new() }
    }

    pub fn at(&self) -> Instant {
        self.at
    }

    /// Runs `body`, which waits for `what`, at most until the deadline.
    pub fn wait<T>(&mut self, what: &'static str, body: impl FnOnce(Instant) -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let done = body(self.at).map_err(|error| self.explain(error))?;
        *self.waits.entry(what).or_default() += begun.elapsed();
        Ok(done)
    }

    /// The time left for the call. An error if there is none.
    pub fn left_for_call(&self, rpc_name: &str) -> Result<Duration> {
        match left(self.at) {
            Duration::ZERO => Err(self.explain(error::no_time_to_call(rpc_name))),
            left => Ok(left),
        }
    }

    /// If the deadline has passed, adds to the error which waits used up the time.
    pub fn explain(&self, error: PgError) -> PgError {
        let named = self.waits.iter().filter(|(_, took)| **took >= SHORTEST_NAMED);
        let named: Vec<_> = named.map(|(what, took)| format!("{:.2} s for {what}", took.as_secs_f64())).collect();
        if named.is_empty() || !is_over(self.at) {
            return error;
        }
        let detail =
            error.detail.as_ref().map(|detail| format!("{}. ", detail.trim_end_matches('.'))).unwrap_or_default();
        error.detail(format!("{detail}Before that, the RPC waited {}.", named.join(" and ")))
    }
}

/// Runs `body`, which waits for locks until the deadline. `what` names the locks for an error.
pub(super) fn locked_by<T>(
    deadline: Instant,
    rpc_name: &str,
    what: impl FnOnce() -> String,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    identity::with_lock_timeout(left(deadline), body).map_err(|error| match error.code {
        LOCK_NOT_AVAILABLE if is_over(deadline) => error::locks_not_granted(rpc_name, &what()),
        _ => error,
    })
}

/// The moment at which half of the time until the deadline has passed.
pub(super) fn halfway(deadline: Instant) -> Instant {
    Instant::now() + left(deadline) / 2
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Postgres counts whole milliseconds, so a wait may end up to one millisecond before the deadline.
fn is_over(deadline: Instant) -> bool {
    left(deadline) <= Duration::from_millis(1)
}
