//! What only a session's way of calling does.

use std::time::Duration;

use xdb_http_tests::http::{FailureKind, Pool};
use xdb_http_tests::rig::{Rig, call, failure};
use xdb_http_tests::stub::Stub;

#[test]
fn calls_beyond_the_threads_wait_within_their_time() {
    const SHORT: Duration = Duration::from_millis(400);
    let stub = Stub::start(|mut connection, _| connection.hang());
    let rig = Rig::<Pool>::new(1);
    rig.submit(call(0, stub.url("/"), SHORT));
    rig.submit(call(1, stub.url("/"), SHORT / 2));
    let second = rig.collect(2).remove(1);
    assert_eq!(failure(second.outcome, FailureKind::Timeout), "timed out after 200 ms while waiting for a free thread");
    assert_eq!(second.elapsed, Duration::ZERO);
    assert_eq!(stub.accepted(), 1);
}
