//! The pool: calls in, finished calls out.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ureq::Agent;

use super::agent::Client;
use super::hosts::HostPolicy;
use super::request::{Outcome, Reply, Request};
use super::resolver::{Lookup, Names, system_lookup};
use super::threads::{Threads, Work};
use super::{Failure, FailureKind, LONGEST, Notifier, lock, span};

/// What a [`Pool`] is made of.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Calls that are made at a time; the threads start as they are needed.
    pub max_threads: usize,
    /// The `User-Agent` of every request.
    pub user_agent: String,
    /// The largest body of an answer.
    pub max_response_bytes: usize,
    /// The hosts that may be called.
    pub policy: HostPolicy,
}

/// Threads that call workers.
///
/// Every call that is submitted is given back exactly once by [`drain`](Pool::drain), whatever happens to
/// it: an answer, a failure, the end of its time, [`abort_all`](Pool::abort_all),
/// [`shutdown`](Pool::shutdown) or a panic. Its time runs from [`submit`](Pool::submit), so a lease given
/// for a little more than its timeout covers a wait for a free thread, too.
pub struct Pool {
    names: Arc<Names>,
    shared: Arc<Shared>,
    threads: Threads<Calls>,
    next_id: AtomicU64,
}

struct Shared {
    client: Client,
    notifier: Arc<Notifier>,
    connections: Mutex<Connections>,
    board: Mutex<Board>,
}

/// The connections of the calls since the last [`Pool::abort_all`].
struct Connections {
    generation: u64,
    agent: Agent,
}

#[derive(Default)]
struct Board {
    /// The calls that are neither finished nor given up.
    open: HashMap<u64, Open>,
    finished: Vec<Reply>,
    closed: bool,
}

struct Open {
    tag: u64,
    started: Option<Instant>,
}

struct Job {
    id: u64,
    generation: u64,
    call: Request,
    deadline: Instant,
}

impl Pool {
    /// A pool without threads and connections as yet. Fails for a user agent that can't be sent.
    pub fn new(config: PoolConfig, notifier: Arc<Notifier>) -> io::Result<Self> {
        Self::with_lookup(config, notifier, system_lookup())
    }

    /// The same with another way to look names up.
    pub fn with_lookup(config: PoolConfig, notifier: Arc<Notifier>, lookup: Lookup) -> io::Result<Self> {
        let names = Arc::new(Names::new(config.policy, lookup, Box::new(|| {})));
        let client =
            Client::new(names.clone(), &config.user_agent, config.max_threads.max(1), config.max_response_bytes)?;
        let agent = client.agent();
        let shared = Arc::new(Shared {
            client,
            notifier,
            connections: Mutex::new(Connections { generation: 0, agent }),
            board: Mutex::default(),
        });
        let threads = Threads::new("xdb call", config.max_threads, Calls(shared.clone()));
        Ok(Pool { names, shared, threads, next_id: AtomicU64::new(0) })
    }

    /// Takes a call on. It never waits, and what can't be done is told by [`drain`](Pool::drain).
    pub fn submit(&self, call: Request) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let tag = call.tag;
        {
            let mut board = lock(&self.shared.board);
            board.open.insert(id, Open { tag, started: None });
            if board.closed {
                drop(board);
                let failure = Failure::new(FailureKind::Aborted, "the engine is stopping");
                return self.shared.finish(id, failure.into());
            }
        }
        let job = Job {
            id,
            generation: lock(&self.shared.connections).generation,
            deadline: Instant::now() + call.timeout.min(LONGEST),
            call,
        };
        if let Err(error) = self.threads.submit(job) {
            let message = format!("no thread could be started for the call: {error}");
            let failure = Failure::new(FailureKind::NotTried, message);
            self.shared.finish(id, failure.into());
        }
    }

    /// Appends all calls that have finished since the last time. The notifier is to be cleared before.
    pub fn drain(&self, into: &mut Vec<Reply>) {
        into.append(&mut lock(&self.shared.board).finished);
    }

    /// From now on, no connection is made or used again that `policy` does not permit.
    pub fn set_policy(&self, policy: HostPolicy) {
        self.names.set_policy(policy);
    }

    /// Holds for calls that begin from now on.
    pub fn set_max_response_bytes(&self, bytes: usize) {
        self.shared.client.set_max_response_bytes(bytes);
    }

    /// Gives up all calls: they are finished as aborted when this returns, which it does at once. The
    /// threads follow as soon as their connections have been torn down; one that is connecting keeps its
    /// thread until its time is over. The pool can be used further.
    pub fn abort_all(&self) {
        self.give_up("the call was given up", false);
    }

    /// Gives up all calls, takes no others, and waits for the threads to end, for `patience` at most.
    /// Whether they all did; a thread that did not is left behind, harmless.
    pub fn shutdown(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience.min(LONGEST);
        self.stop();
        self.threads.wait_ended(deadline)
    }

    fn stop(&self) {
        self.give_up("the engine is stopping", true);
        self.threads.stop();
    }

    fn give_up(&self, reason: &str, close: bool) {
        let dropped = self.threads.take_queue();
        let old = {
            let mut connections = lock(&self.shared.connections);
            connections.generation += 1;
            std::mem::replace(&mut connections.agent, self.shared.client.agent())
        };
        let aborted = {
            let mut board = lock(&self.shared.board);
            board.closed |= close;
            let open = std::mem::take(&mut board.open);
            let aborted = !open.is_empty();
            let finished = open.into_values().map(|open| Reply {
                tag: open.tag,
                outcome: Failure::new(FailureKind::Aborted, reason).into(),
                elapsed: open.started.map_or(Duration::ZERO, |started| started.elapsed()),
            });
            board.finished.extend(finished);
            aborted
        };
        if aborted {
            self.shared.notifier.notify();
        }
        old.shutdown();
        drop(dropped);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Nothing for a call that has been given up already.
    fn finish(&self, id: u64, outcome: Outcome) {
        {
            let mut board = lock(&self.board);
            let Some(open) = board.open.remove(&id) else {
                return;
            };
            board.finished.push(Reply {
                tag: open.tag,
                outcome,
                elapsed: open.started.map_or(Duration::ZERO, |started| started.elapsed()),
            });
        }
        self.notifier.notify();
    }

    /// The connections for a job; none when it has been given up. Under one lock with what gives it up,
    /// so that a job never outlives that with connections that nobody tears down.
    fn connections_for(&self, job: &Job) -> Option<Agent> {
        let connections = lock(&self.connections);
        (connections.generation == job.generation).then(|| connections.agent.clone())
    }
}

struct Calls(Arc<Shared>);

impl Work for Calls {
    type Job = Job;

    fn run(&self, job: &mut Job) {
        let Some(agent) = self.0.connections_for(job) else {
            return;
        };
        let now = Instant::now();
        if now >= job.deadline {
            let timeout = span(job.call.timeout);
            let message = format!("timed out after {timeout} while waiting for a free thread");
            let failure = Failure::new(FailureKind::Timeout, message);
            return self.0.finish(job.id, failure.into());
        }
        if let Some(open) = lock(&self.0.board).open.get_mut(&job.id) {
            open.started = Some(now);
        }
        let outcome = self.0.client.call(&agent, &job.call, job.deadline);
        self.0.finish(job.id, outcome);
    }

    fn panicked(&self, job: Job, message: String) {
        // The agent locks its connections in a way that fails for ever after a panic inside.
        let mut connections = lock(&self.0.connections);
        if connections.generation == job.generation {
            connections.agent = self.0.client.agent();
        }
        drop(connections);
        let message = format!("the code that makes calls panicked: {message}");
        self.0.finish(job.id, Failure::new(FailureKind::Panic, message).into());
    }
}
