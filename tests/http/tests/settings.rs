//! Settings that are passed to a reactor.

use xdb_http_tests::http::{FollowedSettings, HostPolicy, Means, Unusable};
use xdb_http_tests::rig::{Rig, answer, failure};
use xdb_http_tests::stub::Stub;
use xdb_http_tests::transport::FailureKind;

const ENOUGH: usize = 1 << 20;

#[test]
fn unreadable_hosts_permit_nothing_and_are_reported_once() {
    let (rig, stub) = (Rig::with(HostPolicy::default(), 1, Means::system()), Stub::answering(200, "{}"));
    let mut settings = FollowedSettings::default();
    let mut follow = |hosts| settings.follow(&rig.reactor, hosts, "", 1, ENOUGH);
    assert_eq!(follow("127.0.0.1"), Unusable::default());
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    assert!(follow("127.0.0.1, 300.0.0.0/8").hosts.is_some());
    failure(rig.get(stub.url("/")), FailureKind::Refused);
    assert_eq!(follow("127.0.0.1, 300.0.0.0/8"), Unusable::default());
    failure(rig.get(stub.url("/")), FailureKind::Refused);
    assert_eq!(follow("127.0.0.1"), Unusable::default());
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
}

#[test]
fn a_file_of_authorities_is_read_again_with_the_configuration() {
    let rig = Rig::new(1);
    let mut settings = FollowedSettings::default();
    let mut follow = |file, loaded| settings.follow(&rig.reactor, "", file, loaded, ENOUGH).authorities.is_some();
    assert!(follow("/nowhere/at/all.pem", 1));
    assert!(!follow("/nowhere/at/all.pem", 1));
    assert!(follow("/nowhere/at/all.pem", 2));
    assert!(!follow("", 2));
    assert!(follow("/nowhere/at/all.pem", 2));
}

#[test]
fn the_largest_answer_is_followed() {
    let (rig, stub) = (Rig::new(1), Stub::answering(200, "{\"a\": 1}"));
    let mut settings = FollowedSettings::default();
    settings.follow(&rig.reactor, "127.0.0.1", "", 1, 4);
    failure(rig.get(stub.url("/")), FailureKind::TooLarge);
    settings.follow(&rig.reactor, "127.0.0.1", "", 1, ENOUGH);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{\"a\": 1}"));
}
