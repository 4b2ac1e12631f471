//! Resolves names to permitted addresses, with a cache. Addresses are checked again for each connection.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::hosts::{HostPolicy, literal};
use super::threads::{panic_message, spawn};
use super::{HttpFailure, lock};
use crate::transport::FailureKind;

/// The system's resolver can block a thread for half a minute. With several threads, one silent name server does not
/// delay other names.
const THREADS: usize = 8;
const STACK: usize = 256 * 1024;
const FOUND_FOR: Duration = Duration::from_secs(5);
/// How long a failure is cached, so that a thousand calls don't each look up a dead name.
const MISSED_FOR: Duration = Duration::from_secs(1);
const CACHED_NAMES: usize = 256;

/// Resolves a name. Outside of tests it is the system's resolver.
pub type Lookup = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// The system's resolver.
pub fn system_lookup() -> Lookup {
    Arc::new(|host| {
        let addresses = (host, 0).to_socket_addrs()?;
        Ok(addresses.map(|address| address.ip()).collect())
    })
}

/// Resolves hosts and checks their addresses.
pub struct Names {
    policy: RwLock<Arc<HostPolicy>>,
    resolver: Arc<Resolver>,
}

/// State shared between the callers and the resolver's threads.
struct Resolver {
    lookup: Lookup,
    /// Called after each lookup, by the thread that made it.
    on_arrival: Box<dyn Fn() + Send + Sync>,
    table: Mutex<NameTable>,
}

#[derive(Default)]
struct NameTable {
    entries: HashMap<String, NameEntry>,
    /// Names that no thread has taken yet.
    queue: VecDeque<String>,
    /// Running threads. A thread ends when it finds the queue empty.
    threads: usize,
}

enum NameEntry {
    /// A lookup is in progress, and all callers wait for its result.
    Pending,
    Known {
        until: Instant,
        found: Result<Vec<IpAddr>, HttpFailure>,
    },
}

impl Names {
    /// `on_arrival` is called after each lookup, by a thread of the resolver.
    pub fn new(policy: HostPolicy, lookup: Lookup, on_arrival: Box<dyn Fn() + Send + Sync>) -> Self {
        let resolver = Resolver { lookup, on_arrival, table: Mutex::default() };
        Names { policy: RwLock::new(Arc::new(policy)), resolver: Arc::new(resolver) }
    }

    /// Sets the policy from now on.
    pub fn set_policy(&self, policy: HostPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// Checks whether a connection to `address` for `host` is permitted. The error says why not.
    pub fn check(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        self.policy().filter(host, &[address.ip()], address.port()).map(drop)
    }

    /// The addresses of `host` that are permitted at this port, at least one. `None`: the name is being looked up, by
    /// this call or an earlier one. If no thread can be started, the failure is [`FailureKind::NotTried`].
    pub fn resolve(&self, host: &str, port: u16) -> Option<Result<Vec<IpAddr>, HttpFailure>> {
        let found = match literal(host) {
            Some(address) => Ok(vec![address]),
            None => self.resolver.find(host)?,
        };
        let refused = |message| HttpFailure::new(FailureKind::Refused, message);
        Some(found.and_then(|addresses| self.policy().filter(host, &addresses, port).map_err(refused)))
    }

    fn policy(&self) -> Arc<HostPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        lock(&self.resolver.table).queue.clear();
    }
}

impl Resolver {
    fn find(self: &Arc<Self>, host: &str) -> Option<Result<Vec<IpAddr>, HttpFailure>> {
        let mut table = lock(&self.table);
        match table.entries.get(host) {
            Some(NameEntry::Known { until, found }) if Instant::now() < *until => return Some(found.clone()),
            Some(NameEntry::Pending) => return None,
            Some(NameEntry::Known { .. }) | None => {}
        }
        if table.threads < THREADS {
            let resolver = self.clone();
            // The thread waits for the table's lock before it takes a name.
            match spawn("xdb resolver", STACK, move || resolver.serve()) {
                Ok(()) => table.threads += 1,
                Err(error) if table.threads == 0 => {
                    let message = format!("no thread could look up \"{host}\": {error}");
                    return Some(Err(HttpFailure::new(FailureKind::NotTried, message)));
                }
                // A running thread will take the name.
                Err(_) => {}
            }
        }
        table.entries.insert(host.to_owned(), NameEntry::Pending);
        table.queue.push_back(host.to_owned());
        None
    }

    /// The body of a thread.
    fn serve(&self) {
        while let Some(host) = self.next() {
            let found = catch_unwind(AssertUnwindSafe(|| self.look_up(&host))).unwrap_or_else(|panic| {
                let message = format!("looking up \"{host}\" panicked: {}", panic_message(panic.as_ref()));
                Err(HttpFailure::new(FailureKind::Panic, message))
            });
            self.answer(host, found);
        }
    }

    /// The next name to look up. None: the thread is not counted any more and must end.
    fn next(&self) -> Option<String> {
        let mut table = lock(&self.table);
        let host = table.queue.pop_front();
        if host.is_none() {
            table.threads -= 1;
        }
        host
    }

    fn look_up(&self, host: &str) -> Result<Vec<IpAddr>, HttpFailure> {
        let missed = |reason: &dyn fmt::Display| {
            let message = format!("the worker host \"{host}\" was not found: {reason}");
            HttpFailure::new(FailureKind::Connect, message)
        };
        match (self.lookup)(host) {
            Ok(addresses) if addresses.is_empty() => Err(missed(&"it has no address")),
            found => found.map_err(|error| missed(&error)),
        }
    }

    fn answer(&self, host: String, found: Result<Vec<IpAddr>, HttpFailure>) {
        let now = Instant::now();
        let until = now + if found.is_ok() { FOUND_FOR } else { MISSED_FOR };
        let mut table = lock(&self.table);
        if table.entries.len() >= CACHED_NAMES {
            table.entries.retain(|_, entry| match entry {
                NameEntry::Pending => true,
                NameEntry::Known { until, .. } => now < *until,
            });
        }
        table.entries.insert(host, NameEntry::Known { until, found });
        drop(table);
        (self.on_arrival)();
    }
}
