//! A reactor under test, with its notifier and helpers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::http::{HostPolicy, Lookup, Means, Notifier, Reactor};
use crate::transport::{CallOutcome, FailureKind, Reply, Request};

/// A time limit that is longer than anything that works.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A reactor, and the descriptor it notifies.
pub struct Rig {
    /// The reactor under test.
    pub reactor: Reactor,
    notifier: Arc<Notifier>,
}

/// The policy of most tests: local addresses only.
pub fn local() -> HostPolicy {
    policy("localhost, 127.0.0.1, ::1")
}

/// A policy from a text that must be valid.
pub fn policy(text: &str) -> HostPolicy {
    HostPolicy::parse(text).expect("a valid policy")
}

/// A POST of an empty object.
pub fn call(tag: u64, url: impl Into<String>, timeout: Duration) -> Request {
    Request {
        tag,
        url: url.into(),
        headers: vec![("Idempotency-Key".to_owned(), format!("call-{tag}"))],
        body: b"{}".to_vec(),
        timeout,
        secrets: Arc::from([]),
    }
}

impl Rig {
    /// A reactor with at most this number of connections.
    pub fn new(connections: usize) -> Self {
        Self::with(local(), connections, Means::system())
    }

    /// A reactor with this policy, whose names are resolved by `lookup`.
    pub fn with_lookup(policy: HostPolicy, connections: usize, lookup: Lookup) -> Self {
        Self::with(policy, connections, Means { lookup, ..Means::system() })
    }

    /// A reactor with this policy and these means.
    pub fn with(policy: HostPolicy, connections: usize, means: Means) -> Self {
        let notifier = Arc::new(Notifier::new().expect("an eventfd"));
        let reactor = Reactor::with_means(notifier.clone(), means).expect("a reactor");
        reactor.set_policy(policy);
        reactor.set_max_connections(connections);
        reactor.set_max_response_bytes(1 << 20);
        Rig { reactor, notifier }
    }

    /// Drops the reactor, and waits for the end of its thread. The thread holds the notifier while it runs.
    pub fn end(self) {
        drop(self.reactor);
        eventually("the thread has ended", || Arc::strong_count(&self.notifier) == 1);
    }

    /// Waits, on the descriptor alone, until `count` calls have finished.
    pub fn collect(&self, count: usize) -> Vec<Reply> {
        let deadline = Instant::now() + PATIENCE;
        let mut finished = Vec::new();
        while finished.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(self.readable_within(left), "{} of {count} calls finished in time", finished.len());
            self.notifier.clear();
            self.reactor.drain(&mut finished);
        }
        finished.sort_by_key(|finished| finished.tag);
        finished
    }

    /// Whether the descriptor becomes readable in this time.
    pub fn readable_within(&self, time: Duration) -> bool {
        let mut entry = libc::pollfd { fd: self.notifier.raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is passed, and the count says so.
        unsafe { libc::poll(&mut entry, 1, time.as_millis() as i32) == 1 }
    }

    /// Submits a call.
    pub fn submit(&self, request: Request) {
        self.reactor.submit(vec![request]);
    }

    /// Makes one call and returns its reply.
    pub fn run(&self, request: Request) -> Reply {
        self.submit(request);
        self.collect(1).remove(0)
    }

    /// Makes one call to `url` with a long timeout.
    pub fn get(&self, url: impl Into<String>) -> CallOutcome {
        self.run(call(0, url, PATIENCE)).outcome
    }
}

/// The outcome of an answer with this status and body.
pub fn answer(status: u16, body: &str) -> CallOutcome {
    CallOutcome::Answer { status, retry_after: None, body: body.as_bytes().to_vec() }
}

/// The message of a failure that must be of this kind.
pub fn failure(outcome: CallOutcome, expected: FailureKind) -> String {
    match outcome {
        CallOutcome::Failed { kind, message } if kind == expected => message,
        other => panic!("expected a failure of kind {expected:?}, got {other:?}"),
    }
}

/// Waits until the condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out after {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}
