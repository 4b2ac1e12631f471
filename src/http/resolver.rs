//! Names to permitted addresses: cached, with a deadline, judged anew on every connection.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::hosts::{HostPolicy, literal};
use super::threads::{Threads, Work};
use super::{Failure, FailureKind, LOOKUP_THREADS, lock, wait_until};

const FOUND_FOR: Duration = Duration::from_secs(5);
/// A dead name is not asked for again by each of a thousand calls.
const MISSED_FOR: Duration = Duration::from_secs(1);
const CACHED_NAMES: usize = 256;

/// How a name becomes addresses; the system's way outside of tests.
pub type Lookup = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// The system's resolver.
pub fn system_lookup() -> Lookup {
    Arc::new(|host| {
        let addresses = (host, 0).to_socket_addrs()?;
        Ok(addresses.map(|address| address.ip()).collect())
    })
}

/// Finds and judges the addresses of hosts.
pub struct Names {
    policy: RwLock<Arc<HostPolicy>>,
    table: Arc<Table>,
    threads: Threads<Lookups>,
}

struct Table {
    entries: Mutex<HashMap<String, Entry>>,
    arrived: Condvar,
    /// Called after each lookup, by the thread that made it.
    on_arrival: Box<dyn Fn() + Send + Sync>,
}

enum Entry {
    /// Somebody asked already; all wait for the same answer.
    Pending,
    Known {
        until: Instant,
        found: Result<Vec<IpAddr>, Failure>,
    },
}

impl Names {
    /// `on_arrival` is called, by a thread of the resolver, when a name has been looked up.
    pub fn new(policy: HostPolicy, lookup: Lookup, on_arrival: Box<dyn Fn() + Send + Sync>) -> Self {
        let table = Arc::new(Table { entries: Mutex::new(HashMap::new()), arrived: Condvar::new(), on_arrival });
        let work = Lookups { lookup, table: table.clone() };
        Names {
            policy: RwLock::new(Arc::new(policy)),
            table,
            threads: Threads::new("xdb resolver", LOOKUP_THREADS, work),
        }
    }

    pub fn set_policy(&self, policy: HostPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// Whether a connection to `address` for `host` may (still) be used.
    pub fn permits(&self, host: &str, address: IpAddr) -> bool {
        self.policy().permits(host, address)
    }

    /// The same, with what to tell when it is not permitted.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), String> {
        self.policy().filter(host, &[address]).map(drop)
    }

    /// The permitted addresses of `host`, at least one. A lookup that is not done at `deadline` goes on,
    /// and who asks again joins it.
    pub fn resolve(&self, host: &str, deadline: Instant) -> Result<Vec<IpAddr>, Failure> {
        let mut entries = lock(&self.table.entries);
        loop {
            if let Some(found) = self.find(&mut entries, host) {
                return found;
            }
            entries = wait_until(&self.table.arrived, entries, deadline).ok_or_else(|| {
                let message = format!("the name \"{host}\" was not looked up in time");
                Failure::new(FailureKind::Timeout, message)
            })?;
        }
    }

    /// The same without waiting: `None` while the name is being looked up, which this begins if nobody has.
    /// Without a thread for it the failure is [`FailureKind::NotTried`].
    pub fn resolve_now(&self, host: &str) -> Option<Result<Vec<IpAddr>, Failure>> {
        self.find(&mut lock(&self.table.entries), host)
    }

    fn policy(&self) -> Arc<HostPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, entries: &mut HashMap<String, Entry>, host: &str) -> Option<Result<Vec<IpAddr>, Failure>> {
        let found = match (literal(host), entries.get(host)) {
            (Some(address), _) => Ok(vec![address]),
            (None, Some(Entry::Known { until, found })) if Instant::now() < *until => found.clone(),
            (None, Some(Entry::Pending)) => return None,
            (None, Some(Entry::Known { .. }) | None) => {
                entries.insert(host.to_owned(), Entry::Pending);
                let error = self.threads.submit(host.to_owned()).err()?;
                entries.remove(host);
                let message = format!("no thread could look up \"{host}\": {error}");
                Err(Failure::new(FailureKind::NotTried, message))
            }
        };
        let refused = |message| Failure::new(FailureKind::Refused, message);
        Some(found.and_then(|addresses| self.policy().filter(host, &addresses).map_err(refused)))
    }
}

struct Lookups {
    lookup: Lookup,
    table: Arc<Table>,
}

impl Work for Lookups {
    type Job = String;

    fn run(&self, host: &mut String) {
        let missed = |reason: &dyn fmt::Display| {
            let message = format!("the worker host \"{host}\" was not found: {reason}");
            Failure::new(FailureKind::Connect, message)
        };
        let found = match (self.lookup)(host) {
            Ok(addresses) if addresses.is_empty() => Err(missed(&"it has no address")),
            Ok(addresses) => Ok(addresses),
            Err(error) => Err(missed(&error)),
        };
        self.table.answer(host, found);
    }

    fn panicked(&self, host: String, message: String) {
        let message = format!("looking up \"{host}\" panicked: {message}");
        self.table.answer(&host, Err(Failure::new(FailureKind::Panic, message)));
    }
}

impl Table {
    fn answer(&self, host: &str, found: Result<Vec<IpAddr>, Failure>) {
        let now = Instant::now();
        let until = now + if found.is_ok() { FOUND_FOR } else { MISSED_FOR };
        let mut entries = lock(&self.entries);
        if entries.len() >= CACHED_NAMES {
            entries.retain(|_, entry| match entry {
                Entry::Pending => true,
                Entry::Known { until, .. } => now < *until,
            });
        }
        entries.insert(host.to_owned(), Entry::Known { until, found });
        drop(entries);
        self.arrived.notify_all();
        (self.on_arrival)();
    }
}
