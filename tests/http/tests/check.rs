//! The checks of a host when its worker is registered.

use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use xdb_http_tests::http::{Lookup, Names, Notifier};
use xdb_http_tests::rig::{PATIENCE, policy};
use xdb_http_tests::transport::FailureKind;

fn lookup(address: &'static str) -> Lookup {
    Arc::new(move |_| Ok(vec![address.parse::<IpAddr>().unwrap()]))
}

fn names(entries: &str, notifier: &Arc<Notifier>, lookup: Lookup) -> Names {
    let waker = notifier.clone();
    Names::new(policy(entries), lookup, Box::new(move || waker.notify()))
}

fn checked(host: &str, entries: &str) -> Option<FailureKind> {
    let notifier = Arc::new(Notifier::new().unwrap());
    let names = names(entries, &notifier, lookup("10.1.2.3"));
    loop {
        if let Some(result) = names.resolve(host, 80) {
            return result.err().map(|failure| failure.kind);
        }
        assert!(readable(&notifier, PATIENCE.as_millis() as i32));
        notifier.clear();
    }
}

fn readable(notifier: &Notifier, milliseconds: i32) -> bool {
    let mut entry = libc::pollfd { fd: notifier.raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is passed, and the count says so.
    unsafe { libc::poll(&mut entry, 1, milliseconds) == 1 }
}

#[test]
fn a_host_name_is_checked_by_its_addresses() {
    assert_eq!(checked("private.test", "private.test"), None);
    assert_eq!(checked("private.test", "other.test"), Some(FailureKind::Refused));
    assert_eq!(checked("10.1.2.4", "10.1.2.3"), Some(FailureKind::Refused));
    assert_eq!(checked("10.1.2.4", "10.0.0.0/8"), None);
}

/// The caller does not wait, and is notified when there is a result.
#[test]
fn no_caller_waits_for_a_name_server() {
    let (go_on, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let stuck: Lookup = Arc::new(move |_| {
        gate.lock().unwrap().recv_timeout(PATIENCE).map_err(std::io::Error::other)?;
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    });
    let notifier = Arc::new(Notifier::new().unwrap());
    let names = names("127.0.0.1", &notifier, stuck);
    assert_eq!(names.resolve("stuck.test", 80), None);
    assert!(!readable(&notifier, 0));
    go_on.send(()).unwrap();
    assert!(readable(&notifier, PATIENCE.as_millis() as i32));
    assert_eq!(names.resolve("stuck.test", 80), Some(Ok(vec![IpAddr::from([127, 0, 0, 1])])));
}
