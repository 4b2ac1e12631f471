//! A pool with what a test needs around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::http::{Call, FailureKind, Finished, HostPolicy, Lookup, Notifier, Outcome, Pool, PoolConfig};

/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A pool and the descriptor it notifies.
pub struct Rig {
    /// The pool under test.
    pub pool: Pool,
    notifier: Arc<Notifier>,
}

/// What most tests use.
pub fn config(max_threads: usize) -> PoolConfig {
    PoolConfig {
        max_threads,
        user_agent: "xdb-test".to_owned(),
        max_response_bytes: 1 << 20,
        policy: policy("localhost, 127.0.0.1, ::1"),
    }
}

/// A policy that is known to be valid.
pub fn policy(text: &str) -> HostPolicy {
    HostPolicy::parse(text).expect("a valid policy")
}

/// A POST of an empty object.
pub fn call(tag: u64, url: impl Into<String>, timeout: Duration) -> Call {
    Call {
        tag,
        url: url.into(),
        headers: vec![("Idempotency-Key".to_owned(), format!("call-{tag}"))],
        body: b"{}".to_vec(),
        timeout,
        secret: None,
    }
}

impl Rig {
    /// A pool of `max_threads`.
    pub fn new(max_threads: usize) -> Self {
        Self::with(config(max_threads))
    }

    /// A pool of a configuration.
    pub fn with(config: PoolConfig) -> Self {
        let notifier = Arc::new(Notifier::new().expect("an eventfd"));
        let pool = Pool::new(config, notifier.clone()).expect("a pool");
        Rig { pool, notifier }
    }

    /// A pool that looks names up its own way.
    pub fn with_lookup(config: PoolConfig, lookup: Lookup) -> Self {
        let notifier = Arc::new(Notifier::new().expect("an eventfd"));
        let pool = Pool::with_lookup(config, notifier.clone(), lookup).expect("a pool");
        Rig { pool, notifier }
    }

    /// Waits, on the descriptor alone, until `count` calls have finished.
    pub fn collect(&self, count: usize) -> Vec<Finished> {
        let deadline = Instant::now() + PATIENCE;
        let mut finished = Vec::new();
        while finished.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(self.readable_within(left), "{} of {count} calls finished in time", finished.len());
            self.notifier.clear();
            self.pool.drain(&mut finished);
        }
        finished.sort_by_key(|finished| finished.tag);
        finished
    }

    /// Whether the descriptor gets readable in time.
    pub fn readable_within(&self, time: Duration) -> bool {
        let mut entry = libc::pollfd { fd: self.notifier.raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is passed, as told.
        unsafe { libc::poll(&mut entry, 1, time.as_millis() as i32) == 1 }
    }

    /// Makes one call.
    pub fn run(&self, call: Call) -> Finished {
        self.pool.submit(call);
        self.collect(1).remove(0)
    }

    /// Makes one call to `url` with a patient timeout.
    pub fn get(&self, url: impl Into<String>) -> Outcome {
        self.run(call(0, url, PATIENCE)).outcome
    }
}

/// What an answer looks like.
pub fn answer(status: u16, body: &str) -> Outcome {
    Outcome::Answer { status, body: body.as_bytes().to_vec() }
}

/// The message of a failure that must be of this kind.
pub fn failure(outcome: Outcome, expected: FailureKind) -> String {
    match outcome {
        Outcome::Failed { kind, message } if kind == expected => message,
        other => panic!("expected a failure of kind {expected:?}, got {other:?}"),
    }
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
    }
}
