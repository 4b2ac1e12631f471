//! What is known of a URL at the registration of its worker.

use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use xdb_http_tests::http::{FailureKind, HostCheck, Lookup, Notifier};
use xdb_http_tests::rig::{PATIENCE, policy};

fn lookup(address: &'static str) -> Lookup {
    Arc::new(move |_| Ok(vec![address.parse::<IpAddr>().unwrap()]))
}

fn checked(url: &str, entries: &str) -> Option<FailureKind> {
    let notifier = Arc::new(Notifier::new().unwrap());
    let check = HostCheck::with_lookup(url, policy(entries), notifier.clone(), lookup("10.1.2.3")).unwrap();
    loop {
        if let Some(result) = check.result() {
            return result.err().map(|failure| failure.kind);
        }
        assert!(readable(&notifier, PATIENCE.as_millis() as i32));
        notifier.clear();
    }
}

fn readable(notifier: &Notifier, milliseconds: i32) -> bool {
    let mut entry = libc::pollfd { fd: notifier.raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is passed, as told.
    unsafe { libc::poll(&mut entry, 1, milliseconds) == 1 }
}

#[test]
fn a_name_is_judged_by_what_it_leads_to() {
    assert_eq!(checked("http://private.test", "private.test"), None);
    assert_eq!(checked("http://private.test", "other.test"), Some(FailureKind::Refused));
    assert_eq!(checked("http://10.1.2.4", "10.1.2.3"), Some(FailureKind::Refused));
    assert_eq!(checked("http://10.1.2.4", "10.0.0.0/8"), None);
}

#[test]
fn a_wrong_url_is_told_at_once() {
    let notifier = Arc::new(Notifier::new().unwrap());
    let made = HostCheck::with_lookup("ftp://x", policy(""), notifier, lookup("10.1.2.3"));
    assert_eq!(made.err().map(|failure| failure.kind), Some(FailureKind::Invalid));
}

/// Who asks is not held up, and is told when there is an answer.
#[test]
fn nobody_waits_for_a_name_server() {
    let (go_on, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let stuck: Lookup = Arc::new(move |_| {
        gate.lock().unwrap().recv_timeout(PATIENCE).map_err(std::io::Error::other)?;
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    });
    let notifier = Arc::new(Notifier::new().unwrap());
    let check = HostCheck::with_lookup("http://stuck.test", policy("127.0.0.1"), notifier.clone(), stuck).unwrap();
    assert!(!check.is_address());
    assert_eq!(check.result(), None);
    assert!(!readable(&notifier, 0));
    go_on.send(()).unwrap();
    assert!(readable(&notifier, PATIENCE.as_millis() as i32));
    assert_eq!(check.result(), Some(Ok(())));
}
