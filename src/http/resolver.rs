//! Names to permitted addresses: cached, with a deadline, judged anew on every connection.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::hosts::{HostPolicy, literal};
use super::threads::{Threads, Work};
use super::{Failure, FailureKind, lock, wait_until};

const FOUND_FOR: Duration = Duration::from_secs(30);
/// A dead name is not asked for again by each of a thousand calls.
const MISSED_FOR: Duration = Duration::from_secs(1);
/// The system's resolver can hold a thread for half a minute. More than one, so that a name whose server
/// is silent does not keep other names from being found.
const LOOKUP_THREADS: usize = 8;
const CACHED_NAMES: usize = 256;
/// The most addresses that an agent takes.
const MOST_ADDRESSES: usize = 16;

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
    pub fn new(policy: HostPolicy, lookup: Lookup) -> Self {
        let table = Arc::new(Table { entries: Mutex::new(HashMap::new()), arrived: Condvar::new() });
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

    /// The permitted addresses of `host`, at least one. A lookup that is not done at `deadline` goes on,
    /// and who asks again joins it.
    pub fn resolve(&self, host: &str, deadline: Instant) -> Result<Vec<IpAddr>, Failure> {
        let addresses = match literal(host) {
            Some(address) => vec![address],
            None => self.look_up(host, deadline)?,
        };
        self.policy().filter(host, &addresses).map_err(|message| Failure::new(FailureKind::Refused, message))
    }

    fn policy(&self) -> Arc<HostPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn look_up(&self, host: &str, deadline: Instant) -> Result<Vec<IpAddr>, Failure> {
        let mut entries = lock(&self.table.entries);
        loop {
            match entries.get(host) {
                Some(Entry::Known { until, found }) if Instant::now() < *until => {
                    return found.clone();
                }
                Some(Entry::Pending) => {}
                Some(Entry::Known { .. }) | None => {
                    entries.insert(host.to_owned(), Entry::Pending);
                    if let Err(error) = self.threads.submit(host.to_owned()) {
                        entries.remove(host);
                        let message = format!("no thread could look up \"{host}\": {error}");
                        return Err(Failure::new(FailureKind::Connect, message));
                    }
                }
            }
            entries = wait_until(&self.table.arrived, entries, deadline).ok_or_else(|| {
                let message = format!("the name \"{host}\" was not looked up in time");
                Failure::new(FailureKind::Timeout, message)
            })?;
        }
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
    }
}

/// The face that [`Names`] has for the HTTP agent.
pub struct AgentResolver(pub Arc<Names>);

impl Resolver for AgentResolver {
    fn resolve(&self, uri: &Uri, _config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().ok_or(ureq::Error::HostNotFound)?;
        let port = match (uri.port_u16(), uri.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("https")) => 443,
            (None, _) => 80,
        };
        let deadline = super::transport::deadline(timeout);
        let addresses = self.0.resolve(host, deadline).map_err(|failure| ureq::Error::Other(Box::new(failure)))?;
        let mut resolved = self.empty();
        for address in addresses.into_iter().take(MOST_ADDRESSES) {
            resolved.push(SocketAddr::new(address, port));
        }
        Ok(resolved)
    }
}

impl fmt::Debug for AgentResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentResolver")
    }
}
