//! What makes calls, with what a test needs around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::http::{
    FailureKind, HostPolicy, Lookup, Means, Notifier, Outcome, Pool, PoolConfig, Reactor, ReactorConfig, Reply, Request,
};

/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A way to make calls: an engine's or a session's.
pub trait Caller: Sized {
    /// With so many calls, or connections, at a time.
    fn make(config: Config, at_a_time: usize, notifier: Arc<Notifier>, means: Means) -> std::io::Result<Self>;
    fn submit(&self, request: Request);
    fn drain(&self, into: &mut Vec<Reply>);
    fn set_policy(&self, policy: HostPolicy);
    fn set_max_response_bytes(&self, bytes: usize);
    fn abort_all(&self);
    fn shutdown(&self, patience: Duration) -> bool;
}

impl Caller for Reactor {
    fn make(config: Config, at_a_time: usize, notifier: Arc<Notifier>, means: Means) -> std::io::Result<Self> {
        let Config { user_agent, max_response_bytes, policy } = config;
        let config = ReactorConfig { user_agent, max_response_bytes, max_connections: at_a_time, policy };
        Reactor::with_means(config, notifier, means)
    }

    fn submit(&self, request: Request) {
        Reactor::submit(self, vec![request]);
    }

    fn drain(&self, into: &mut Vec<Reply>) {
        Reactor::drain(self, into);
    }

    fn set_policy(&self, policy: HostPolicy) {
        Reactor::set_policy(self, policy);
    }

    fn set_max_response_bytes(&self, bytes: usize) {
        Reactor::set_max_response_bytes(self, bytes);
    }

    fn abort_all(&self) {
        Reactor::abort_all(self);
    }

    fn shutdown(&self, patience: Duration) -> bool {
        Reactor::shutdown(self, patience)
    }
}

impl Caller for Pool {
    fn make(config: Config, at_a_time: usize, notifier: Arc<Notifier>, means: Means) -> std::io::Result<Self> {
        let Config { user_agent, max_response_bytes, policy } = config;
        let config = PoolConfig { max_threads: at_a_time, user_agent, max_response_bytes, policy };
        Pool::with_lookup(config, notifier, means.lookup)
    }

    fn submit(&self, request: Request) {
        Pool::submit(self, request);
    }

    fn drain(&self, into: &mut Vec<Reply>) {
        Pool::drain(self, into);
    }

    fn set_policy(&self, policy: HostPolicy) {
        Pool::set_policy(self, policy);
    }

    fn set_max_response_bytes(&self, bytes: usize) {
        Pool::set_max_response_bytes(self, bytes);
    }

    fn abort_all(&self) {
        Pool::abort_all(self);
    }

    fn shutdown(&self, patience: Duration) -> bool {
        Pool::shutdown(self, patience)
    }
}

/// What makes calls, and the descriptor it notifies.
pub struct Rig<C: Caller> {
    /// What is under test.
    pub caller: C,
    notifier: Arc<Notifier>,
}

/// How calls are made.
pub struct Config {
    pub user_agent: String,
    pub max_response_bytes: usize,
    pub policy: HostPolicy,
}

/// What most tests use.
pub fn config() -> Config {
    Config {
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
pub fn call(tag: u64, url: impl Into<String>, timeout: Duration) -> Request {
    Request {
        tag,
        url: url.into(),
        headers: vec![("Idempotency-Key".to_owned(), format!("call-{tag}"))],
        body: b"{}".to_vec(),
        timeout,
        secret: None,
    }
}

impl<C: Caller> Rig<C> {
    /// With so many calls, or connections, at a time.
    pub fn new(at_a_time: usize) -> Self {
        Self::with(config(), at_a_time, Means::system())
    }

    /// The same that looks names up its own way.
    pub fn with_lookup(config: Config, at_a_time: usize, lookup: Lookup) -> Self {
        Self::with(config, at_a_time, Means { lookup, ..Means::system() })
    }

    /// The same with means of its own.
    pub fn with(config: Config, at_a_time: usize, means: Means) -> Self {
        let notifier = Arc::new(Notifier::new().expect("an eventfd"));
        let caller = C::make(config, at_a_time, notifier.clone(), means).expect("a caller");
        Rig { caller, notifier }
    }

    /// Waits, on the descriptor alone, until `count` calls have finished.
    pub fn collect(&self, count: usize) -> Vec<Reply> {
        let deadline = Instant::now() + PATIENCE;
        let mut finished = Vec::new();
        while finished.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(self.readable_within(left), "{} of {count} calls finished in time", finished.len());
            self.notifier.clear();
            self.caller.drain(&mut finished);
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

    /// Hands a call over.
    pub fn submit(&self, request: Request) {
        self.caller.submit(request);
    }

    /// Makes one call.
    pub fn run(&self, request: Request) -> Reply {
        self.caller.submit(request);
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
