//! The reactor: one thread with all calls of its process open at once. This file has its interface; `round.rs` has its
//! loop.

mod call;
mod connection;
mod exchange;
mod phase;
mod pool;
mod round;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use mio::net::TcpStream;
use mio::{Poll, Registry, Token, Waker};
use rustls::{ClientConfig, RootCertStore};

use super::hosts::HostPolicy;
use super::resolver::{Lookup, Names, system_lookup};
use super::threads::{panic_message, spawn};
use super::{Authorities, HttpFailure, Notifier, lock};
use crate::transport::{CallOutcome, FailureKind, Reply, Request};
pub use phase::reason;
use round::ReactorRound;

const STACK: usize = 512 * 1024;
/// Longest timeout. A longer one makes no difference, and sums of times can't overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Pause after a panic of the loop. A panic that repeats at once must not use up a processor.
const AFTER_PANIC: Duration = Duration::from_millis(100);
/// The token of the waker; tokens of connections are higher.
const WAKE: Token = Token(0);

/// Begins a connection without waiting for it.
pub type Dial = Arc<dyn Fn(SocketAddr) -> io::Result<TcpStream> + Send + Sync>;

/// What the reactor needs from outside. Tests replace it.
#[derive(Clone)]
pub struct Means {
    /// Resolves names to addresses.
    pub lookup: Lookup,
    /// Begins connections.
    pub dial: Dial,
    /// Certificate authorities that are always trusted.
    pub roots: Arc<RootCertStore>,
}

impl Means {
    /// The system's resolver and sockets, and the authorities that browsers trust.
    pub fn system() -> Self {
        let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        Means { lookup: system_lookup(), dial: Arc::new(TcpStream::connect), roots: Arc::new(roots) }
    }
}

/// How many connections a reactor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Existing connections, including idle ones and connections that are being made.
    pub open: usize,
    /// Calls that wait until another connection is allowed.
    pub waiting: usize,
}

/// Makes calls, all at once.
///
/// [`drain`](Reactor::drain) returns each submitted request exactly once: answered, failed, timed out, cancelled or
/// after a panic. The timeout counts from [`submit`](Reactor::submit), so it includes the wait in line. A lease needs
/// to be only a little longer than the timeout.
pub struct Reactor {
    shared: Arc<ReactorShared>,
}

struct ReactorShared {
    names: Names,
    notifier: Arc<Notifier>,
    waker: Arc<Waker>,
    /// A name was resolved. Written by threads of the resolver, cleared by the reactor's thread.
    arrived: Arc<AtomicBool>,
    dial: Dial,
    roots: Arc<RootCertStore>,
    trust: RwLock<Trust>,
    max_response_bytes: AtomicUsize,
    max_connections: AtomicUsize,
    open: AtomicUsize,
    waiting: AtomicUsize,
    state: Mutex<SharedState>,
}

/// Whom the reactor trusts over TLS.
#[derive(Clone)]
struct Trust {
    /// A connection made under another number is not used again.
    number: u64,
    /// The client configuration, or why TLS can't be used.
    client: Result<Arc<ClientConfig>, String>,
}

/// State shared between threads, under one lock.
#[derive(Default)]
struct SharedState {
    next_id: u64,
    /// Calls that have not finished.
    open: HashMap<u64, OpenRequest>,
    /// New calls that the reactor's thread has not taken yet.
    submitted: Vec<Job>,
    /// Tags of calls to cancel.
    cancelled: Vec<u64>,
    finished: Vec<Reply>,
    /// The thread must end.
    stop: bool,
}

struct OpenRequest {
    tag: u64,
    since: Instant,
}

/// A request on its way to the reactor's thread.
struct Job {
    id: u64,
    request: Request,
    deadline: Instant,
}

/// A finished call.
struct Done {
    id: u64,
    outcome: CallOutcome,
    elapsed: Duration,
}

impl Reactor {
    /// Starts the thread. Errors: no thread or no descriptor. Before the first settings no host, no connection and no
    /// answer is permitted.
    pub fn new(notifier: Arc<Notifier>) -> io::Result<Self> {
        Self::with_means(notifier, Means::system())
    }

    /// Starts the thread with other [`Means`].
    pub fn with_means(notifier: Arc<Notifier>, means: Means) -> io::Result<Self> {
        let mut poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Arc::new(Waker::new(&registry, WAKE)?);
        let arrived = Arc::new(AtomicBool::new(false));
        let on_arrival = {
            let (waker, arrived) = (waker.clone(), arrived.clone());
            Box::new(move || {
                arrived.store(true, Ordering::Release);
                wake(&waker);
            })
        };
        let client = Authorities::default().client(&means.roots).map_err(io::Error::other)?;
        let shared = Arc::new(ReactorShared {
            names: Names::new(HostPolicy::default(), means.lookup, on_arrival),
            notifier,
            waker,
            arrived,
            dial: means.dial,
            trust: RwLock::new(Trust { number: 0, client: Ok(client) }),
            roots: means.roots,
            max_response_bytes: AtomicUsize::default(),
            max_connections: AtomicUsize::default(),
            open: AtomicUsize::default(),
            waiting: AtomicUsize::default(),
            state: Mutex::default(),
        });
        let served = shared.clone();
        spawn("xdb http", STACK, move || serve(&served, &mut poll, &registry))?;
        Ok(Reactor { shared })
    }

    /// Submits calls. Never blocks. Failures come back through [`drain`](Reactor::drain).
    pub fn submit(&self, requests: Vec<Request>) {
        let now = Instant::now();
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let was_empty = state.submitted.is_empty();
        for request in requests {
            state.next_id += 1;
            let id = state.next_id;
            state.open.insert(id, OpenRequest { tag: request.tag, since: now });
            state.submitted.push(Job { id, deadline: now + request.timeout.min(LONGEST), request });
        }
        let is_new = was_empty && !state.submitted.is_empty();
        drop(state);
        if is_new {
            wake(&shared.waker);
        }
    }

    /// Cancels the open calls with these tags: they end as [`FailureKind::Cancelled`]. Their connections are closed, so
    /// their workers can notice.
    pub fn cancel(&self, tags: impl IntoIterator<Item = u64>) {
        let mut state = lock(&self.shared.state);
        let before = state.cancelled.len();
        state.cancelled.extend(tags);
        let any = state.cancelled.len() > before;
        drop(state);
        if any {
            wake(&self.shared.waker);
        }
    }

    /// Moves all calls that have finished since the last time to `into`. Clear the notifier first.
    pub fn drain(&self, into: &mut Vec<Reply>) {
        into.append(&mut lock(&self.shared.state).finished);
    }

    /// How many connections there are, at the end of the last loop.
    pub fn connections(&self) -> Connections {
        Connections {
            open: self.shared.open.load(Ordering::Acquire),
            waiting: self.shared.waiting.load(Ordering::Acquire),
        }
    }

    /// Sets the most connections at a time, including idle ones. Connections in use above the limit stay until their
    /// calls end.
    pub fn set_max_connections(&self, connections: usize) {
        if self.shared.max_connections.swap(connections, Ordering::AcqRel) != connections {
            wake(&self.shared.waker);
        }
    }

    /// Sets the host policy. From now on it is checked before each connection is made or used again.
    pub fn set_policy(&self, policy: HostPolicy) {
        self.shared.names.set_policy(policy);
    }

    /// Sets the trusted authorities, in addition to the built-in ones. No connection made before is used again.
    /// With an error, which is returned, all calls over TLS end as [`FailureKind::NotTried`]: the worker can't repair
    /// it.
    pub fn set_authorities(&self, authorities: Result<Authorities, String>) -> Result<(), String> {
        let client = authorities.and_then(|authorities| authorities.client(&self.shared.roots));
        let result = client.as_ref().map(drop).map_err(String::clone);
        let mut trust = self.shared.trust.write().unwrap_or_else(PoisonError::into_inner);
        *trust = Trust { number: trust.number + 1, client };
        result
    }

    /// Sets the largest answer. Applies to answers that begin from now on.
    pub fn set_max_response_bytes(&self, bytes: usize) {
        self.shared.max_response_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reactor {
    /// Ends the thread. Its open calls are dropped without replies.
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        wake(&self.shared.waker);
    }
}

impl SharedState {
    /// Ends all open calls. Returns whether there were any.
    fn fail_open(&mut self, reason: &str) -> bool {
        self.submitted.clear();
        let failed = mem::take(&mut self.open);
        let any = !failed.is_empty();
        self.finished.extend(failed.into_values().map(|open| Reply {
            tag: open.tag,
            outcome: HttpFailure::new(FailureKind::Panic, reason).into(),
            elapsed: open.since.elapsed(),
        }));
        any
    }
}

impl ReactorShared {
    /// New and cancelled calls. None: the thread must end.
    fn take_submitted(&self) -> Option<(Vec<Job>, Vec<u64>)> {
        let mut state = lock(&self.state);
        (!state.stop).then(|| (mem::take(&mut state.submitted), mem::take(&mut state.cancelled)))
    }

    /// The client configuration for TLS.
    fn client(&self) -> Result<Arc<ClientConfig>, HttpFailure> {
        self.trust().client.map_err(|why| HttpFailure::new(FailureKind::NotTried, why))
    }

    fn trust(&self) -> Trust {
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Delivers finished calls with one lock and one wake-up.
    fn deliver(&self, done: &mut Vec<Done>) {
        if done.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        let before = state.finished.len();
        for Done { id, outcome, elapsed } in done.drain(..) {
            if let Some(open) = state.open.remove(&id) {
                state.finished.push(Reply { tag: open.tag, outcome, elapsed });
            }
        }
        let any = state.finished.len() > before;
        drop(state);
        if any {
            self.notifier.notify();
        }
    }
}

/// Writing to an open eventfd fails only when it is full, and then it is readable already.
fn wake(waker: &Waker) {
    let _ = waker.wake();
}

/// The reactor's thread. A panic outside of a single call ends all current calls. The thread then continues with a new
/// round for new calls.
fn serve(shared: &ReactorShared, poll: &mut Poll, registry: &Registry) {
    let mut done = Vec::new();
    loop {
        let round = AssertUnwindSafe(|| ReactorRound::new(shared, poll, registry, &mut done).run());
        let message = match catch_unwind(round) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("the thread that makes calls failed: {error}"),
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                // The destructor of the panic may panic too.
                mem::forget(panic);
                format!("the code that makes calls panicked: {message}")
            }
        };
        shared.deliver(&mut done);
        if lock(&shared.state).fail_open(&message) {
            shared.notifier.notify();
        }
        thread::sleep(AFTER_PANIC);
    }
}
