//! Passes changed settings to a reactor.

use super::{Authorities, HostPolicy, Reactor};

/// The settings that a reactor has now.
#[derive(Debug, Default)]
pub struct FollowedSettings {
    /// The text of the current policy. Empty at first: no host is permitted.
    hosts: String,
    /// The file of authorities, and the load time of the configuration when it was read.
    authorities: Option<(String, i64)>,
}

/// Why settings can't be used. Reported once, until the settings change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unusable {
    /// Problem of the list of hosts.
    pub hosts: Option<String>,
    /// Problem of the file of authorities.
    pub authorities: Option<String>,
}

impl FollowedSettings {
    /// Passes changed settings to the reactor. An invalid list of hosts permits no host. Without valid authorities no
    /// call over TLS is made. Their file is read again if its name has changed, or if the configuration was `loaded`
    /// again.
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
