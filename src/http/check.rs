//! Whether a worker may be called at a URL, before it ever is.

use std::sync::Arc;

use super::hosts::{HostPolicy, literal, validate_url};
use super::resolver::{Lookup, Names, system_lookup};
use super::{Failure, FailureKind, Notifier};

/// Looks at what a URL leads to now, without waiting for it.
pub struct HostCheck {
    names: Names,
    host: String,
}

impl HostCheck {
    /// The notifier gets readable when the name has been looked up.
    pub fn new(url: &str, policy: HostPolicy, notifier: Arc<Notifier>) -> Result<Self, Failure> {
        Self::with_lookup(url, policy, notifier, system_lookup())
    }

    /// The same with another way to look names up.
    pub fn with_lookup(
        url: &str,
        policy: HostPolicy,
        notifier: Arc<Notifier>,
        lookup: Lookup,
    ) -> Result<Self, Failure> {
        let url = validate_url(url).map_err(|message| Failure::new(FailureKind::Invalid, message))?;
        let names = Names::new(policy, lookup, Box::new(move || notifier.notify()));
        Ok(HostCheck { names, host: url.host })
    }

    /// Whether the host is an address: then it is judged without looking anything up.
    pub fn is_address(&self) -> bool {
        literal(&self.host).is_some()
    }

    /// What is known; `None` until the name has been looked up.
    pub fn result(&self) -> Option<Result<(), Failure>> {
        self.names.resolve(&self.host).map(|found| found.map(drop))
    }
}
