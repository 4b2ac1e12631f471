//! The connections of a reactor: when they are reused, and when they end.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, eventually, failure};
use xdb_http_tests::stub::{Stub, never_accepting};
use xdb_http_tests::transport::FailureKind;

/// A timeout for calls that must time out.
const SHORT: Duration = Duration::from_millis(400);
/// Far longer than SHORT, far shorter than a stub's wait.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_connection_that_is_never_accepted_runs_out_of_time() {
    let (address, _listener, _queued) = never_accepting();
    let rig = Rig::new(1);
    let finished = rig.run(call(0, format!("http://{address}/"), SHORT));
    let message = failure(finished.outcome, FailureKind::ConnectTimeout);
    assert_eq!(message, format!("timed out after 400 ms while connecting to {address}"));
}

#[test]
fn a_closed_connection_that_was_kept_alive_is_replaced_once() {
    for by_reset in [false, true] {
        let stub = Stub::start(move |mut connection, number| {
            connection.request();
            connection.answer(200, "first");
            if connection.request().is_none() {
                return;
            }
            if number > 0 {
                connection.answer(200, "second");
                connection.hang();
            } else if by_reset {
                connection.reset();
            }
        });
        let rig = Rig::new(1);
        assert_eq!(rig.get(stub.url("/")), answer(200, "first"));
        assert_eq!(rig.get(stub.url("/")), answer(200, "first"));
        assert_eq!(stub.accepted(), 2);
        assert_eq!(rig.get(stub.url("/")), answer(200, "second"));
        assert_eq!(stub.accepted(), 2);
    }
}

/// The worker was restarted: all idle connections are dead.
#[test]
fn the_second_try_does_not_take_another_old_connection() {
    let both = std::sync::Barrier::new(2);
    let stub = Stub::start(move |mut connection, number| {
        connection.request();
        if number < 2 {
            both.wait();
            connection.answer(200, "old");
            connection.request();
        } else {
            connection.answer(200, "new");
            connection.hang();
        }
    });
    let rig = Rig::new(2);
    rig.submit(call(0, stub.url("/"), PATIENCE));
    rig.submit(call(1, stub.url("/"), PATIENCE));
    for finished in rig.collect(2) {
        assert_eq!(finished.outcome, answer(200, "old"));
    }
    assert_eq!(rig.get(stub.url("/")), answer(200, "new"));
    assert_eq!(stub.accepted(), 3);
}

#[test]
fn a_request_with_a_partial_answer_is_not_repeated() {
    let stub = Stub::start(|mut connection, _| {
        connection.request();
        connection.answer(200, "{}");
        connection.request();
        connection.send("HTTP/1.1 2");
    });
    let rig = Rig::new(1);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    failure(rig.get(stub.url("/")), FailureKind::Transport);
    assert_eq!(stub.accepted(), 1);
}

#[test]
fn the_second_try_has_no_time_of_its_own() {
    const TIME: Duration = Duration::from_secs(2);
    let stub = Stub::start(|mut connection, number| {
        connection.request();
        if number == 0 {
            connection.answer(200, "{}");
            connection.request();
            connection.dawdle(TIME * 3 / 4);
        } else {
            connection.hang();
        }
    });
    let rig = Rig::new(1);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    let finished = rig.run(call(0, stub.url("/"), TIME));
    failure(finished.outcome, FailureKind::Timeout);
    assert_eq!(stub.accepted(), 2);
    // Its time runs from the moment in which it was handed over, which is a little earlier.
    assert!(finished.elapsed > TIME * 9 / 10 && finished.elapsed < TIME * 3 / 2, "{:?}", finished.elapsed);
}

/// A request that can't be written fails only once there is a connection for it.
#[test]
fn a_request_that_can_not_be_written_keeps_no_connection() {
    let stub = Stub::answering(200, "{}");
    let other = Stub::answering(200, "{}");
    let rig = Rig::new(1);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    let long = call(1, stub.url(&format!("/{}", "x".repeat(20_000))), PATIENCE);
    let mut many = call(1, stub.url("/"), PATIENCE);
    many.headers.extend((0..40_000).map(|number| (format!("X-{number}"), String::new())));
    for request in [long, many] {
        // Over an idle connection, and over a new one.
        for _ in 0..2 {
            let message = failure(rig.run(request.clone()).outcome, FailureKind::Invalid);
            assert_eq!(message, format!("the request to {} can't be written", stub.address));
            eventually("the connection is closed", || rig.reactor.connections().open == 0);
        }
        assert_eq!(rig.get(other.url("/")), answer(200, "{}"));
        assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    }
}

#[test]
fn connections_are_kept_alive_and_shared() {
    const THREADS: usize = 16;
    const CALLS: u64 = 2000;
    let stub = Stub::answering(200, "{}");
    let rig = Rig::new(THREADS);
    for tag in 0..CALLS {
        rig.submit(call(tag, stub.url("/"), PATIENCE));
    }
    let finished = rig.collect(CALLS as usize);
    for (tag, finished) in finished.into_iter().enumerate() {
        assert_eq!((finished.tag, finished.outcome), (tag as u64, answer(200, "{}")));
    }
    assert!(stub.accepted() <= THREADS, "{} connections", stub.accepted());
}

#[test]
fn dropping_a_reactor_hangs_up() {
    let (sender, hung_up) = channel();
    let sender = Mutex::new(sender);
    let stub = Stub::start(move |mut connection, _| {
        connection.request();
        connection.hang();
        sender.lock().unwrap().send(()).unwrap();
    });
    let rig = Rig::new(1);
    rig.submit(call(0, stub.url("/"), PATIENCE));
    eventually("the call has connected", || stub.accepted() == 1);
    let begin = Instant::now();
    drop(rig);
    hung_up.recv_timeout(SOON).unwrap();
    assert!(begin.elapsed() < SOON);
}
