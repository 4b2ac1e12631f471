//! Which requests the console answers at all, and the headers of all answers.

use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};

/// Headers of every answer.
pub const HEADERS: [(&str, &str); 4] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
];

/// The only `Host` of a request, in small letters. A page of another site that has its name resolved to this address
/// has another one.
pub fn host(headers: &HeaderMap) -> Option<String> {
    let mut all = headers.get_all(HOST).iter();
    let host = all.next()?.to_str().ok()?;
    all.next().is_none().then(|| host.to_ascii_lowercase())
}

/// Whether a request that changes something comes from a page of the console.
///
/// Every browser of today sends `Sec-Fetch-Site`. If it is absent, `Origin` must be there. Beside it, `Origin` says
/// nothing: under the policy `no-referrer`, it is `null` for forms of the console too.
pub fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    match (headers.get("sec-fetch-site"), headers.get(ORIGIN)) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => origin.to_str().is_ok_and(|origin| {
            let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
        }),
        (None, None) => false,
    }
}

/// Whether a host is this machine, so that cookies need no TLS.
pub fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn only_pages_of_the_console_change_something() {
        let host = "127.0.0.1:7433";
        for (sent, expected) in [
            (vec![("sec-fetch-site", "same-origin")], true),
            (vec![("sec-fetch-site", "same-origin"), ("origin", "null")], true),
            (vec![("sec-fetch-site", "same-site")], false),
            (vec![("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:7433")], false),
            (vec![("origin", "http://127.0.0.1:7433")], true),
            (vec![("origin", "https://127.0.0.1:7433")], true),
            (vec![("origin", "http://127.0.0.1:7434")], false),
            (vec![("origin", "null")], false),
            (vec![("origin", "http://evil.example")], false),
            (vec![], false),
        ] {
            assert_eq!(is_same_origin(&headers(&sent), host), expected, "{sent:?}");
        }
    }

    #[test]
    fn a_loopback_host_is_known_by_its_name_or_address() {
        for host in ["localhost", "localhost:1", "127.0.0.1:7433", "127.9.9.9", "[::1]:7433"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.evil.example", "10.0.0.1", "[fe80::1]:1", "", "127.0.0.1.evil.example"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
