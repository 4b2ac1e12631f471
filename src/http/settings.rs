//! What a reactor has from settings, which may be reloaded.

use super::{Authorities, HostPolicy, Reactor};

/// The settings as a reactor has them.
#[derive(Debug, Default)]
pub struct FollowedSettings {
    /// What the policy was read from. As the reactor begins: no host is permitted.
    hosts: String,
    /// The file of authorities, and when the configuration was loaded as it was read.
    authorities: Option<(String, i64)>,
}

/// Why settings can't be used: told when they are found so, and not again while they stay as they are.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unusable {
    /// The list of hosts.
    pub hosts: Option<String>,
    /// The file of authorities.
    pub authorities: Option<String>,
}

impl FollowedSettings {
    /// Tells the reactor what has changed. A list of hosts that can't be read permits nothing, and without the authorities nothing
    /// is called over TLS. Their file is read when it is another one, or may be, for the configuration was `loaded` again.
    pub fn follow(
        &mut self,
        reactor: &Reactor,
        hosts: &str,
        authorities: &str,
        loaded: i64,
        max_response_bytes: usize,
    ) -> Unusable {
        reactor.set_max_response_bytes(max_response_bytes);
        let mut unusable = Unusable::default();
        if hosts != self.hosts {
            let policy = HostPolicy::parse(hosts).unwrap_or_else(|why| {
                unusable.hosts = Some(why);
                HostPolicy::default()
            });
            reactor.set_policy(policy);
            hosts.clone_into(&mut self.hosts);
        }
        if self.authorities.as_ref().is_none_or(|(file, at)| file != authorities || *at != loaded) {
            unusable.authorities = reactor.set_authorities(Authorities::read(authorities)).err();
            self.authorities = Some((authorities.to_owned(), loaded));
        }
        unusable
    }
}
