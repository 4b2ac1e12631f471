//! Checks worker URLs, and the hosts and addresses that they may lead to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use ureq_proto::http::Uri;

/// The setting that [`HostPolicy`] is read from, for messages.
pub const SETTING: &str = "xdb.allowed_worker_hosts";

/// Longest worker URL, in characters. With a path of the protocol, the first line of a request stays far below
/// [`HEADER_LIMIT`].
///
/// [`HEADER_LIMIT`]: super::HEADER_LIMIT
const LONGEST_URL: usize = 8192;

/// Well-known addresses of cloud metadata services outside the link-local ranges.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// The hosts that `xdb.allowed_worker_hosts` permits. Each connection is checked, by the address it goes to. So a name
/// that changes its addresses can't evade the policy.
///
/// Entries are separated by commas or spaces. Only what an entry names is permitted:
///
/// - An **address** or a **CIDR block** permits its addresses, by any name. An IPv4 address mapped into IPv6 counts as
///   the IPv4 address. `::/0` contains no IPv4 address.
/// - A **name** permits the addresses that this name resolves to. The superuser trusts the owner of the name.
/// - A **pattern** `*.suffix` permits the addresses of names below the suffix, but not of the suffix itself. Such names
///   may belong to many parties. So loopback addresses are excluded, unless the suffix is `localhost`.
///
/// `:port` after an entry permits only this port; the default is every port. An IPv6 address with a port has brackets,
/// `[::1]:8080` or `[fd00::/8]:8080`, because `::1:8080` is an address.
///
/// Names and patterns never permit special addresses, which attackers use and workers don't have: link-local, metadata,
/// multicast, unspecified and reserved ones. Only an address or a CIDR block can permit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    names: Vec<(String, Port)>,
    /// With the leading dot.
    suffixes: Vec<(String, Port)>,
    networks: Vec<(IpNet, Port)>,
}

/// One port; None: every port.
type Port = Option<u16>;

fn permit(permitted: Port, port: Port) -> bool {
    permitted.is_none() || port.is_none() || permitted == port
}

/// Which entries can permit an address.
#[derive(PartialEq, Eq)]
enum Reach {
    Ordinary,
    Loopback,
    /// Only an address or a CIDR block.
    Special,
}

impl HostPolicy {
    /// Parses the setting. The message names the invalid entry.
    pub fn parse(text: &str) -> Result<HostPolicy, String> {
        let mut policy = HostPolicy::default();
        let entries = text.split(|c: char| c == ',' || c.is_whitespace());
        for entry in entries.filter(|entry| !entry.is_empty()) {
            policy
                .add(entry)
                .map_err(|reason| format!("\"{entry}\" is not a host name, pattern or address: {reason}"))?;
        }
        Ok(policy)
    }

    fn add(&mut self, entry: &str) -> Result<(), String> {
        let (host, port) = split_port(entry)?;
        // Brackets may surround a whole block too.
        let host = if host.contains('/') { unbracketed(host) } else { host };
        if let Some(suffix) = host.strip_prefix("*.") {
            let suffix = valid_name(suffix)?;
            self.suffixes.push((format!(".{suffix}"), port));
        } else if host.contains('*') {
            return Err(
                "\"*\" is only allowed at the start of a pattern such as \"*.example.com\"; use 0.0.0.0/0, ::/0 for every address"
                    .to_owned(),
            );
        } else if let Some((address, prefix)) = host.split_once('/') {
            self.networks.push((network(address, prefix)?, port));
        } else if let Some(address) = literal(host) {
            self.networks.push((address.into(), port));
        } else {
            self.names.push((valid_name(host)?, port));
        }
        Ok(())
    }

    /// Whether a connection to this port of `address` is permitted for a URL with this `host`.
    pub fn permits(&self, host: &str, address: IpAddr, port: u16) -> bool {
        self.permits_at(host, address.to_canonical(), Some(port))
    }

    fn permits_at(&self, host: &str, address: IpAddr, port: Port) -> bool {
        if self.networks.iter().any(|(network, permitted)| permit(*permitted, port) && network.contains(&address)) {
            return true;
        }
        // An address in a URL is not a name, so entries with names don't apply.
        if literal(host).is_some() {
            return false;
        }
        let host = normal(host);
        let has_name = || self.names.iter().any(|(name, permitted)| *name == host && permit(*permitted, port));
        let has_suffix = || {
            let is_below = |suffix: &str| host.len() > suffix.len() && host.ends_with(suffix);
            self.suffixes.iter().any(|(suffix, permitted)| is_below(suffix) && permit(*permitted, port))
        };
        match class(address) {
            Reach::Special => false,
            Reach::Loopback => has_name() || (host.ends_with(".localhost") && has_suffix()),
            Reach::Ordinary => has_name() || has_suffix(),
        }
    }

    /// The addresses that are permitted at this port. IPv4 addresses have their own form. The error lists the refused
    /// addresses.
    pub fn filter(&self, host: &str, addresses: &[IpAddr], port: u16) -> Result<Vec<IpAddr>, String> {
        let (permitted, refused): (Vec<_>, Vec<_>) =
            addresses.iter().map(IpAddr::to_canonical).partition(|address| self.permits_at(host, *address, Some(port)));
        if !permitted.is_empty() {
            return Ok(permitted);
        }
        let elsewhere = refused.iter().any(|address| self.permits_at(host, *address, None));
        let at = if elsewhere { format!(" at port {port}") } else { String::new() };
        let refused: Vec<_> = refused.iter().map(IpAddr::to_string).collect();
        Err(if literal(host).is_some() {
            format!("the worker address {host} is not permitted{at} by {SETTING}")
        } else {
            let refused = refused.join(", ");
            format!("the worker host \"{host}\" resolves to {refused}, which is not permitted{at} by {SETTING}")
        })
    }
}

/// Splits an entry into host and port. The colons of an IPv6 address are not taken for a port, unless the address has
/// brackets or a prefix length.
fn split_port(entry: &str) -> Result<(&str, Port), String> {
    let Some((host, port)) = entry.rsplit_once(':') else { return Ok((entry, None)) };
    if host.contains(':') && !host.ends_with(']') && !host.contains('/') {
        return Ok((entry, None));
    }
    let port = valid_port(port).ok_or_else(|| format!("\"{port}\" is not a port"))?;
    Ok((host, Some(port)))
}

fn valid_port(digits: &str) -> Option<u16> {
    let digits = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).filter(|port| *port > 0)
}

fn network(address: &str, prefix: &str) -> Result<IpNet, String> {
    let unmapped: IpAddr = unbracketed(address).parse().map_err(|_| format!("\"{address}\" is not an address"))?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("\"{prefix}\" is not a prefix length"));
    }
    let width = if unmapped.is_ipv4() { 32 } else { 128 };
    let too_long = || format!("the prefix is longer than {width}");
    let length: u8 = prefix.parse().map_err(|_| too_long())?;
    let network = match (unmapped, unmapped.to_canonical()) {
        (IpAddr::V6(_), mapped @ IpAddr::V4(_)) if (96..=128).contains(&length) => IpNet::new(mapped, length - 96),
        _ => IpNet::new(unmapped, length),
    };
    let network = network.map_err(|_| too_long())?;
    // A typing error that would permit more than intended.
    if network.network() != network.addr() {
        return Err(format!("it has bits set behind its prefix; the block starts at {}", network.network()));
    }
    Ok(network)
}

fn class(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(v4) => class_v4(v4),
        IpAddr::V6(v6) => class_v6(v6),
    }
}

fn class_v4(v4: Ipv4Addr) -> Reach {
    let first = v4.octets()[0];
    if v4.is_loopback() {
        Reach::Loopback
    } else if first == 0 || first >= 224 || v4.is_link_local() || METADATA_V4.contains(&v4) {
        Reach::Special
    } else {
        Reach::Ordinary
    }
}

fn class_v6(v6: Ipv6Addr) -> Reach {
    let segments = v6.segments();
    if v6.is_loopback() {
        return Reach::Loopback;
    }
    if v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local() || v6 == METADATA_V6 {
        return Reach::Special;
    }
    // Translators and tunnels lead to the inner IPv4 address: NAT64, 6to4, the old compatible form.
    let inner = match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0, 0, high, low] => Some((high, low)),
        [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    match inner {
        Some((high, low)) => class_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
        None => Reach::Ordinary,
    }
}

/// The parts of a worker URL that passed [`validate_url`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerUrl {
    pub https: bool,
    /// The name in small letters, or the address without brackets.
    pub host: String,
    /// The port of the URL, or of its scheme.
    pub port: u16,
    /// The path; `/` if the URL has none.
    pub path: String,
}

impl WorkerUrl {
    /// `host:port` as in a URL.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Checks a worker URL without resolving its name. A path is appended to it later, so a query is refused. Messages
/// never quote a part that could be a password.
pub fn validate_url(url: &str) -> Result<WorkerUrl, String> {
    if url.len() > LONGEST_URL {
        return Err(format!("a worker URL has at most {LONGEST_URL} characters"));
    }
    read_url(url)
}

/// Checks the URL of a call: a worker URL with an appended path.
pub fn read_url(url: &str) -> Result<WorkerUrl, String> {
    if !url.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("a worker URL can only have ASCII characters, and no spaces or line breaks".to_owned());
    }
    let (scheme, rest) = url.split_once("://").ok_or("a worker URL must start with http:// or https://")?;
    let https = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err("a worker URL must start with http:// or https://".to_owned()),
    };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or(rest);
    if authority.contains('@') {
        return Err("a worker URL can't have a user name or password; use the headers of the worker".to_owned());
    }
    if url.contains(['?', '#', '\\']) {
        return Err("a worker URL can't have \"?\", \"#\" or \"\\\"".to_owned());
    }
    let uri: Uri = url.parse().map_err(|e| format!("the worker URL can't be read: {e}"))?;
    let written = uri.host().unwrap_or_default();
    let host = unbracketed(written);
    if host.is_empty() {
        return Err("the worker URL has no host".to_owned());
    }
    let host = match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => valid_name(host).map_err(|reason| format!("the worker URL has no valid host: {reason}"))?,
    };
    // Nothing after the host may be ignored: an invalid port would become the default port.
    let port = match authority.strip_prefix(written) {
        Some("") if https => 443,
        Some("") => 80,
        Some(port) => port.strip_prefix(':').and_then(valid_port).ok_or("the worker URL has no valid port")?,
        None => return Err("the worker URL has no valid host".to_owned()),
    };
    Ok(WorkerUrl { https, host, port, path: uri.path().to_owned() })
}

/// The address if `host` is written as an address.
pub fn literal(host: &str) -> Option<IpAddr> {
    unbracketed(host).parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host)
}

fn normal(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn valid_name(name: &str) -> Result<String, String> {
    let name = normal(name);
    if name.len() > 253 {
        return Err("a host name has at most 253 characters".to_owned());
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 || label.starts_with('-') || !label.bytes().all(allowed) {
            return Err(format!(
                "\"{label}\" is not a valid part of a host name (letters, digits, \"-\" and \"_\", at most 63)"
            ));
        }
    }
    // Resolvers read 127.1, 0x7f.1 and 2130706433 as addresses, but people don't recognise them.
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    if hexadecimal || last.bytes().all(|b| b.is_ascii_digit()) {
        return Err("an IPv4 address must be four numbers with dots".to_owned());
    }
    Ok(name)
}
