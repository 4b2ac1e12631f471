//! The hosts, addresses and URLs that the policy permits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use xdb_http_tests::http::{HostPolicy, validate_url};
use xdb_http_tests::rig::policy;

fn permits(entries: &str, host: &str, address: &str) -> bool {
    permits_at(entries, host, address, 80)
}

fn permits_at(entries: &str, host: &str, address: &str, port: u16) -> bool {
    policy(entries).permits(host, address.parse().expect("an address"), port)
}

#[test]
fn hosts_are_permitted_by_the_list() {
    let default = "localhost, 127.0.0.1, ::1";
    let table = [
        (default, "localhost", "127.0.0.1", true),
        (default, "LOCALHOST.", "::1", true),
        (default, "127.0.0.1", "127.0.0.1", true),
        (default, "127.0.0.2", "127.0.0.2", false),
        (default, "[::1]", "::1", true),
        (default, "::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
        (default, "127.0.0.1", "::ffff:127.0.0.1", true),
        (default, "evil.example", "127.0.0.1", true),
        (default, "evil.example", "10.0.0.1", false),
        (default, "169.254.169.254", "169.254.169.254", false),
        ("", "localhost", "127.0.0.1", false),
        // An exact name is trusted with private, public and loopback addresses.
        ("db.example", "db.example", "10.0.0.1", true),
        ("db.example", "DB.Example", "8.8.8.8", true),
        ("db.example", "db.example", "127.0.1.1", true),
        ("db.example", "db.example", "fd00::1", true),
        ("db.example", "sub.db.example", "10.0.0.1", false),
        ("db.example.", "db.example", "10.0.0.1", true),
        // But never with these, which a block has to name.
        ("db.example", "db.example", "169.254.169.254", false),
        ("db.example", "db.example", "::ffff:169.254.169.254", false),
        ("db.example", "db.example", "64:ff9b::a9fe:a9fe", false),
        ("db.example", "db.example", "2002:a9fe:a9fe::1", false),
        ("db.example", "db.example", "::169.254.169.254", false),
        ("db.example", "db.example", "fe80::1", false),
        ("db.example", "db.example", "fd00:ec2::254", false),
        ("db.example", "db.example", "100.100.100.200", false),
        ("db.example", "db.example", "0.0.0.0", false),
        ("db.example", "db.example", "::", false),
        ("db.example", "db.example", "224.0.0.1", false),
        ("db.example", "db.example", "255.255.255.255", false),
        ("db.example", "db.example", "ff02::1", false),
        ("db.example 169.254.0.0/16", "db.example", "169.254.169.254", true),
        ("fe80::/10", "fe80::1", "fe80::1", true),
        // Patterns.
        ("*.example", "a.example", "10.0.0.1", true),
        ("*.example", "a.b.EXAMPLE", "10.0.0.1", true),
        ("*.example", "example", "10.0.0.1", false),
        ("*.example", "anexample", "10.0.0.1", false),
        ("*.example", ".example", "10.0.0.1", false),
        ("*.example", "a.example", "127.0.0.1", false),
        ("*.example", "a.example", "::1", false),
        ("*.example", "a.example", "64:ff9b::7f00:1", false),
        ("*.example 127.0.0.0/8", "a.example", "127.0.0.1", true),
        ("*.localhost", "a.localhost", "127.0.0.1", true),
        ("*.localhost", "localhost", "127.0.0.1", false),
        // Blocks.
        ("10.0.0.0/8", "10.255.255.255", "10.255.255.255", true),
        ("10.0.0.0/8", "11.0.0.0", "11.0.0.0", false),
        ("10.0.0.0/8", "any.name", "10.1.2.3", true),
        ("10.0.0.0/8", "any.name", "::ffff:10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "any.name", "10.1.2.3", true),
        ("fd00::/8", "any.name", "fdff::1", true),
        ("fd00::/8", "any.name", "fc00::1", false),
        ("[fd00::]/8", "any.name", "fdff::1", true),
        ("0.0.0.0/0", "any.name", "1.2.3.4", true),
        ("0.0.0.0/0", "any.name", "::1", false),
        ("::/0", "any.name", "::1", true),
        ("::/0", "any.name", "::ffff:1.2.3.4", false),
        ("192.168.1.1/32", "any.name", "192.168.1.2", false),
        // A name entry says nothing of addresses that look like it.
        ("db.example", "10.0.0.1", "10.0.0.1", false),
    ];
    for (entries, host, address, expected) in table {
        assert_eq!(permits(entries, host, address), expected, "{entries:?} {host} {address}");
    }
}

#[test]
fn an_entry_may_permit_one_port() {
    let table = [
        ("localhost:8080", "localhost", "127.0.0.1", true),
        ("LOCALHOST.:8080", "localhost.", "::1", true),
        ("127.0.0.1:8080", "any.name", "127.0.0.1", true),
        ("127.0.0.1:8080", "any.name", "::ffff:127.0.0.1", true),
        ("10.0.0.0/8:8080", "any.name", "10.1.2.3", true),
        ("*.example:8080", "a.example", "10.1.2.3", true),
        ("*.example:8080", "example", "10.1.2.3", false),
        ("[::1]:8080", "::1", "::1", true),
        ("[::1]:8080", "any.name", "::1", true),
        ("[fd00::]/8:8080", "any.name", "fdff::1", true),
        ("[fd00::/8]:8080", "any.name", "fdff::1", true),
        ("[fd00::/8]:8080", "any.name", "fc00::1", false),
        ("[fd00::/8]", "any.name", "fdff::1", true),
        ("fd00::/8:8080", "any.name", "fdff::1", true),
        // One entry with a port does not bound another one without.
        ("localhost:1, localhost", "localhost", "127.0.0.1", true),
        ("localhost:1, 127.0.0.0/8:8080", "localhost", "127.0.0.1", true),
        // What looks like a port is the end of an address.
        ("::1:8080", "any.name", "::1:8080", true),
        ("::1:8080", "any.name", "::1", false),
        // The trust in a name stays as far as it reaches without a port.
        ("db.example:8080", "db.example", "169.254.169.254", false),
        ("*.example:8080", "a.example", "127.0.0.1", false),
    ];
    for (entries, host, address, expected) in table {
        assert_eq!(permits_at(entries, host, address, 8080), expected, "{entries:?} {host} {address}");
        if !entries.contains(", ") && entries != "::1:8080" && entries != "[fd00::/8]" {
            assert!(!permits_at(entries, host, address, 8081), "{entries:?} {host} {address}");
        }
    }
    assert!(permits_at("localhost:1, localhost", "localhost", "127.0.0.1", 8081));
    assert!(permits_at("localhost:1, localhost:8081", "localhost", "127.0.0.1", 8081));
    assert!(!permits_at("localhost:1, 127.0.0.0/8:8080", "localhost", "127.0.0.1", 8081));
}

#[test]
fn garbage_is_refused_with_its_name() {
    for entry in [
        "*",
        "a.*.example",
        "*example",
        "*.",
        "http://x",
        "host:",
        "host:0",
        "host:65536",
        "host:+80",
        "host:http",
        "host:80:80",
        "[host]",
        "[host]:80",
        "[::1]:",
        "[::1]:0",
        "[::1:80",
        "10.0.0.0/8:",
        "10.0.0.0/8:x",
        "10.0.0.0:80/8",
        ":80",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0/8",
        "10.1.2.3/8",
        "fd00::1/8",
        "256.1.1.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "a..b",
        ".a",
        "-a",
        "fe80::1%eth0",
        "user@host",
        "b\u{fc}cher.example",
        "/8",
        "a;b",
        "*.127",
    ] {
        let message = HostPolicy::parse(&format!("localhost, {entry}")).expect_err(entry);
        assert!(message.contains(entry), "{entry}: {message}");
    }
    for separators in ["", " ", ",", " , ,, \t\n"] {
        assert_eq!(HostPolicy::parse(separators), Ok(HostPolicy::default()));
    }
}

#[test]
fn a_refusal_names_the_refused_host() {
    let addresses: Vec<IpAddr> = ["10.0.0.1", "::ffff:169.254.169.254"].map(|a| a.parse().unwrap()).to_vec();
    let message = policy("localhost").filter("db.example", &addresses, 80).unwrap_err();
    assert_eq!(
        message,
        "the worker host \"db.example\" resolves to 10.0.0.1, 169.254.169.254, which is not permitted by xdb.allowed_worker_hosts"
    );
    let kept = policy("10.0.0.0/8").filter("db.example", &addresses, 80);
    assert_eq!(kept, Ok(vec!["10.0.0.1".parse().unwrap()]));
    // Only the port is refused here.
    let elsewhere = policy("10.0.0.0/8:443").filter("db.example", &addresses[..1], 80).unwrap_err();
    assert_eq!(
        elsewhere,
        "the worker host \"db.example\" resolves to 10.0.0.1, which is not permitted at port 80 by xdb.allowed_worker_hosts"
    );
    let elsewhere = policy("10.0.0.1:443").filter("10.0.0.1", &addresses[..1], 80).unwrap_err();
    assert_eq!(elsewhere, "the worker address 10.0.0.1 is not permitted at port 80 by xdb.allowed_worker_hosts");
}

#[test]
fn urls() {
    for (text, https, host, port, path) in [
        ("http://localhost", false, "localhost", 80, "/"),
        ("HTTPS://LocalHost:8443/a/b", true, "localhost", 8443, "/a/b"),
        ("https://a.example.", true, "a.example", 443, "/"),
        ("http://127.0.0.1:1/", false, "127.0.0.1", 1, "/"),
        ("http://[::1]:80/x", false, "::1", 80, "/x"),
        ("http://my_service:9000/", false, "my_service", 9000, "/"),
    ] {
        let url = validate_url(text).expect(text);
        assert_eq!((url.https, url.host.as_str(), url.port, url.path.as_str()), (https, host, port, path), "{text}");
    }
    for text in [
        "",
        "localhost",
        "/path",
        "ftp://localhost",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://:80",
        "http://user@localhost",
        "http://user:secret@localhost/",
        "http://localhost:80@evil.example",
        "http://localhost\\@evil.example",
        "http://localhost/a b",
        "http://localhost/\r\nHost: x",
        "http://localhost\n",
        "http://localhost?x=1",
        "http://localhost/?x=1",
        "http://localhost/#x",
        "http://localhost:0",
        "http://localhost:99999",
        "http://localhost:x",
        "http://localhost:",
        "http://[::1",
        "http://[::1]x",
        "http://2130706433",
        "http://0x7f000001",
        "http://127.1",
        "http://0177.0.0.1.",
        "http://b\u{fc}cher.example",
        "http://*.example",
        "http://[fe80::1%25eth0]/",
        "http://a..b",
        "javascript:alert(1)",
    ] {
        let message = validate_url(text).expect_err(text);
        assert!(!message.contains("secret"), "{message}");
    }
}

proptest! {
    #[test]
    fn blocks_are_their_bits_v4(address: u32, length in 0u32..=32, other: u32) {
        let mask = u64::from(u32::MAX) << (32 - length) & u64::from(u32::MAX);
        let start = Ipv4Addr::from_bits(address & mask as u32);
        let policy = policy(&format!("{start}/{length}"));
        let expected = u64::from(other ^ address) & mask == 0;
        prop_assert_eq!(policy.permits("a.example", Ipv4Addr::from_bits(other).into(), 80), expected);
        let inside = Ipv4Addr::from_bits(address & mask as u32 | other & !mask as u32);
        prop_assert!(policy.permits("a.example", inside.into(), 80));
        prop_assert!(policy.permits("a.example", inside.to_ipv6_mapped().into(), 80));
    }

    #[test]
    fn blocks_are_their_bits_v6(address: u128, length in 1u32..=128, other: u128) {
        let mask = u128::MAX << (128 - length);
        let start = Ipv6Addr::from_bits(address & mask);
        let inside = Ipv6Addr::from_bits(address & mask | other & !mask);
        prop_assume!(inside.to_ipv4_mapped().is_none() && start.to_ipv4_mapped().is_none());
        let policy = policy(&format!("{start}/{length}"));
        prop_assert!(policy.permits("a.example", inside.into(), 80));
        let outside = Ipv6Addr::from_bits(inside.to_bits() ^ 1 << (128 - length));
        prop_assume!(outside.to_ipv4_mapped().is_none());
        prop_assert!(!policy.permits("a.example", outside.into(), 80));
    }

    /// An entry with a port permits at that port what it permits everywhere without a port, and nothing at other ports.
    #[test]
    fn a_port_bounds_an_entry(
        entry in prop_oneof![
            "[a-z]{1,8}(\\.[a-z]{1,8}){0,2}",
            "\\*\\.[a-z]{1,8}",
            any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).to_string()),
            any::<u8>().prop_map(|first| format!("{first}.0.0.0/8")),
            any::<u128>().prop_map(|bits| format!("[{}]", Ipv6Addr::from_bits(bits))),
            any::<u8>().prop_map(|first| format!("[{first:x}00::]/8")),
            any::<u8>().prop_map(|first| format!("[{first:x}00::/8]")),
        ],
        port in 1u16..,
        other in 1u16..,
        address: IpAddr,
    ) {
        let (everywhere, there) = (policy(&entry), policy(&format!("{entry}:{port}")));
        let host = entry.replace('*', "a");
        let name = host.trim_matches(['[', ']']).split('/').next().unwrap_or_default();
        // What the entry names itself, and anything.
        for address in [name.parse().unwrap_or(address), address] {
            for host in [name, "any.name"] {
                prop_assert_eq!(there.permits(host, address, port), everywhere.permits(host, address, port));
                prop_assert_eq!(everywhere.permits(host, address, other), everywhere.permits(host, address, port));
                prop_assert!(other == port || !there.permits(host, address, other));
            }
        }
    }

    #[test]
    fn no_text_breaks_the_parsers(text in "\\PC{0,40}", like in "[a-z0-9.:/*@%\\[\\],-]{0,40}") {
        for text in [&text, &like] {
            let _ = HostPolicy::parse(text);
            let _ = validate_url(text);
            let _ = validate_url(&format!("http://{text}"));
        }
    }

    #[test]
    fn an_accepted_url_means_the_same_to_the_http_library(rest in "[a-zA-Z0-9.:/@%\\[\\]_-]{1,30}") {
        let text = format!("http://{rest}");
        if let Ok(url) = validate_url(&text) {
            let uri: ureq_proto::http::Uri = text.parse().expect("the library reads it");
            let host = uri.host().expect("a host").trim_matches(['[', ']']).trim_end_matches('.');
            let same = match host.parse::<IpAddr>() {
                Ok(address) => address.to_string() == url.host,
                Err(_) => host.eq_ignore_ascii_case(&url.host),
            };
            prop_assert!(same, "{} {}", host, url.host);
            prop_assert_eq!(uri.port_u16().unwrap_or(80), url.port);
            prop_assert!(!text.contains('@') || url.path.contains('@'));
        }
    }
}
