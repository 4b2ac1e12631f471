//! The calls of a process: one thread, all of them open at a time.

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
use crate::transport::{FailureKind, Outcome, Reply, Request};
pub use phase::reason;
use round::ReactorRound;

const STACK: usize = 512 * 1024;
/// Beyond this, a timeout is no different from none, and sums of times can't overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// After a panic of the loop itself; one that comes again at once must not take a processor.
const AFTER_PANIC: Duration = Duration::from_millis(100);
/// The event of the waker; those of connections have higher numbers.
const WAKE: Token = Token(0);

/// How a connection is begun, without waiting for it.
pub type Dial = Arc<dyn Fn(SocketAddr) -> io::Result<TcpStream> + Send + Sync>;

/// What the reactor has from its surroundings.
#[derive(Clone)]
pub struct Means {
    /// How a name becomes addresses.
    pub lookup: Lookup,
    /// How a connection is begun.
    pub dial: Dial,
    /// Whose certificates are always trusted.
    pub roots: Arc<RootCertStore>,
}

impl Means {
    /// The system's resolver and sockets, and the authorities that browsers trust.
    pub fn system() -> Self {
        let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        Means { lookup: system_lookup(), dial: Arc::new(TcpStream::connect), roots: Arc::new(roots) }
    }
}

/// The connections of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Those that there are, with the idle ones and those that are being made.
    pub open: usize,
    /// Calls that wait until there may be one more.
    pub waiting: usize,
}

/// Makes calls, all at the same time.
///
/// Every request that is submitted is given back exactly once by [`drain`](Reactor::drain), whatever happens to
/// it: an answer, a failure, the end of its time or a panic. Its time runs from [`submit`](Reactor::submit), so a
/// lease given for a little more than its timeout covers a wait in line, too.
pub struct Reactor {
    shared: Arc<ReactorShared>,
}

struct ReactorShared {
    names: Names,
    notifier: Arc<Notifier>,
    waker: Arc<Waker>,
    /// A name has been looked up.
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
    /// A connection that was made under another one is not used any more.
    number: u64,
    /// Or why nobody is trusted.
    client: Result<Arc<ClientConfig>, String>,
}

/// What goes from thread to thread, under one lock.
#[derive(Default)]
struct SharedState {
    next_id: u64,
    /// The calls that are not finished.
    open: HashMap<u64, OpenRequest>,
    /// Those of them that the reactor has not yet seen.
    submitted: Vec<Job>,
    /// Tags of calls that are of no use any more.
    cancelled: Vec<u64>,
    finished: Vec<Reply>,
    /// The thread is to end.
    stop: bool,
}

struct OpenRequest {
    tag: u64,
    since: Instant,
}

/// A request on its way into the reactor.
struct Job {
    id: u64,
    request: Request,
    deadline: Instant,
}

/// A call on its way out.
struct Done {
    id: u64,
    outcome: Outcome,
    elapsed: Duration,
}

impl Reactor {
    /// Starts the thread; fails without one, or without descriptors. No connection is permitted yet: neither a host nor
    /// any number of them, and no answer is small enough.
    pub fn new(notifier: Arc<Notifier>) -> io::Result<Self> {
        Self::with_means(notifier, Means::system())
    }

    /// The same with other means.
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

    /// Takes calls on. It never waits, and what can't be done is told by [`drain`](Reactor::drain).
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

    /// Ends the calls with these tags, those that have not ended, as [`FailureKind::Cancelled`]. Their connections are closed, by which
    /// their workers can find out.
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

    /// Appends all calls that have finished since the last time. The notifier is to be cleared before.
    pub fn drain(&self, into: &mut Vec<Reply>) {
        into.append(&mut lock(&self.shared.state).finished);
    }

    /// The connections that there are now, or were a moment ago.
    pub fn connections(&self) -> Connections {
        Connections {
            open: self.shared.open.load(Ordering::Acquire),
            waiting: self.shared.waiting.load(Ordering::Acquire),
        }
    }

    /// The most connections at a time from now on, with the idle ones. More than that are left until they end.
    pub fn set_max_connections(&self, connections: usize) {
        if self.shared.max_connections.swap(connections, Ordering::AcqRel) != connections {
            wake(&self.shared.waker);
        }
    }

    /// From now on, no connection is made or used again that `policy` does not permit.
    pub fn set_policy(&self, policy: HostPolicy) {
        self.shared.names.set_policy(policy);
    }

    /// From now on, these are trusted besides those that always are, and no connection is used again that was made before.
    /// Without them, which is an error that is given back, no call is made over TLS: it ends as
    /// [`FailureKind::NotTried`], for the worker is not the one to mend that.
    pub fn set_authorities(&self, authorities: Result<Authorities, String>) -> Result<(), String> {
        let client = authorities.and_then(|authorities| authorities.client(&self.shared.roots));
        let told = client.as_ref().map(drop).map_err(String::clone);
        let mut trust = self.shared.trust.write().unwrap_or_else(PoisonError::into_inner);
        *trust = Trust { number: trust.number + 1, client };
        told
    }

    /// Holds for answers that begin from now on.
    pub fn set_max_response_bytes(&self, bytes: usize) {
        self.shared.max_response_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reactor {
    /// The thread ends, and nobody hears of the calls that it had.
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        wake(&self.shared.waker);
    }
}

impl SharedState {
    /// Ends all open calls; whether there were any.
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
    /// What was submitted, and what was cancelled; None: the thread is to end.
    fn take_submitted(&self) -> Option<(Vec<Job>, Vec<u64>)> {
        let mut state = lock(&self.state);
        (!state.stop).then(|| (mem::take(&mut state.submitted), mem::take(&mut state.cancelled)))
    }

    /// What connections are made with over TLS.
    fn client(&self) -> Result<Arc<ClientConfig>, HttpFailure> {
        self.trust().client.map_err(|why| HttpFailure::new(FailureKind::NotTried, why))
    }

    fn trust(&self) -> Trust {
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands over what has ended: one lock, and one wake-up.
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

/// Writing to an eventfd that is open fails only when it is full, and then it is readable already.
fn wake(waker: &Waker) {
    let _ = waker.wake();
}

/// The thread. What panics outside of a single call takes all calls with it that there are; a new round of the same thread goes on
/// with those that come then.
fn serve(shared: &ReactorShared, poll: &mut Poll, registry: &Registry) {
    let mut done = Vec::new();
    loop {
        let round = AssertUnwindSafe(|| ReactorRound::new(shared, poll, registry, &mut done).run());
        let message = match catch_unwind(round) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("the thread that makes calls failed: {error}"),
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                // Its destructor may panic in turn.
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
