//! Calls to workers over HTTP: a pool of threads that knows nothing of Postgres.
//!
//! A thread that isn't the main one must never touch the server: no memory contexts, no logging, no
//! settings. So nothing in this room imports the server's bindings; what it needs from settings is
//! handed in, and what it has to tell comes back as a [`Finished`] and a readable [`Notifier`].

mod client;
mod hosts;
mod notifier;
mod pool;
mod resolver;
mod signature;
mod threads;
mod transport;

pub use client::{Call, Outcome, validate_headers};
pub use hosts::{HostPolicy, WorkerUrl, validate_url};
pub use notifier::Notifier;
pub use pool::{Finished, Pool, PoolConfig};
pub use resolver::Lookup;
pub use signature::{Signature, check_secret, sign};
pub use threads::{Threads, Work};

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The URL, a header or the secret can't be used: no attempt will be better until it is changed.
    Invalid,
    /// The name or its address is not permitted by the setting.
    Refused,
    /// The name was not found, or no address of it accepted a connection.
    Connect,
    /// The time of the call was over before there was a connection.
    ConnectTimeout,
    /// The time of the call was over after it was connected, or before anything was tried.
    Timeout,
    /// The answer is larger than the limit.
    TooLarge,
    /// The connection broke, or what came back is not HTTP.
    Transport,
    /// The engine gave the call up.
    Aborted,
    /// The code of the call panicked.
    Panic,
}

/// What went wrong, for a program and for a person. Never holds header values or secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For a program.
    pub kind: FailureKind,
    /// For a person.
    pub message: String,
}

impl Failure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Locks without caring for poison: every critical section of this room leaves its data whole at each
/// point where it could panic, and a panic of one call must not end all others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on a condition until `deadline`; `None` when it has passed.
fn wait_until<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>, deadline: Instant) -> Option<MutexGuard<'a, T>> {
    let left = deadline.checked_duration_since(Instant::now())?;
    if left.is_zero() {
        return None;
    }
    let (guard, _) = condition.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    Some(guard)
}

/// A duration as a person writes it.
fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
