//! Shortages of the engine itself: descriptors, threads, ports. Each runs in a process of its own with a limit.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use xdb_http_tests::http::Means;
use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, failure, local};
use xdb_http_tests::stub::Stub;
use xdb_http_tests::transport::FailureKind;

const CHILD: &str = "XDB_TEST_CHILD";

/// Runs a test of this file, which is ignored otherwise, in a process of its own. Limits hold for a whole process.
fn in_child(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

fn set_limit(of: libc::__rlimit_resource_t, limit: libc::rlim_t) -> libc::rlim_t {
    let mut all = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a whole limit.
    unsafe {
        assert_eq!(libc::getrlimit(of, &mut all), 0);
        let before = std::mem::replace(&mut all.rlim_cur, limit);
        assert_eq!(libc::setrlimit(of, &all), 0);
        before
    }
}

/// The lowest number that a new descriptor could get.
fn next_descriptor() -> libc::rlim_t {
    // SAFETY: a descriptor is copied and closed again.
    unsafe {
        let copy = libc::dup(0);
        assert!(copy >= 0);
        libc::close(copy);
        copy as libc::rlim_t
    }
}

#[test]
fn a_call_waits_for_a_descriptor_and_is_made() {
    in_child("without_descriptors");
}

#[test]
#[ignore = "is run by another test, in a process of its own"]
fn without_descriptors() {
    assert!(std::env::var_os(CHILD).is_some());
    let stub = Stub::answering(200, "{}");
    let rig = Rig::new(100);
    let before = set_limit(libc::RLIMIT_NOFILE, next_descriptor());
    rig.reactor.submit((0..10).map(|tag| call(tag, stub.url("/"), PATIENCE)).collect());
    rig.reactor.submit(vec![call(10, stub.url("/"), Duration::from_millis(300))]);
    // The call with little time was not tried, and the other calls have not failed.
    let late = rig.collect(1).remove(0);
    assert_eq!(late.tag, 10, "{:?}", late.outcome);
    failure(late.outcome, FailureKind::NotTried);
    assert!(!rig.readable_within(Duration::from_millis(200)));
    set_limit(libc::RLIMIT_NOFILE, before);
    for reply in rig.collect(10) {
        assert_eq!(reply.outcome, answer(200, "{}"));
    }
}

#[test]
fn a_call_waits_for_a_thread_of_the_resolver() {
    in_child("without_threads");
}

/// The system's limit on threads does not hold for its administrator, so an administrator becomes another user.
#[test]
#[ignore = "is run by another test, in a process of its own"]
fn without_threads() {
    assert!(std::env::var_os(CHILD).is_some());
    // A worker that needs no thread more for its one connection.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1000];
        assert!(stream.read(&mut head).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    });
    let rig = Rig::new(100);
    // SAFETY: no arguments that could be wrong. The number belongs to no user, so the limit counts no other threads.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(unsafe { libc::setuid(61_234) }, 0);
    }
    let before = set_limit(libc::RLIMIT_NPROC, 0);
    let by_name = format!("http://localhost:{port}/");
    let late = rig.run(call(1, &by_name, Duration::from_millis(300)));
    failure(late.outcome, FailureKind::NotTried);
    rig.reactor.submit(vec![call(2, &by_name, PATIENCE)]);
    assert!(!rig.readable_within(Duration::from_millis(200)));
    set_limit(libc::RLIMIT_NPROC, before);
    assert_eq!(rig.collect(1).remove(0).outcome, answer(200, "{}"));
}

#[test]
fn every_shortage_of_our_own_is_waited_for() {
    for error in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
        let left = Arc::new(AtomicUsize::new(3));
        let system = Means::system();
        let (count, dial) = (left.clone(), system.dial.clone());
        let dial = Arc::new(move |address| {
            let is_short = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if is_short { Err(io::Error::from_raw_os_error(error)) } else { dial(address) }
        });
        let rig = Rig::with(local(), 4, Means { dial, ..system });
        let stub = Stub::answering(200, "{}");
        let begin = Instant::now();
        assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
        assert_eq!(left.load(Ordering::SeqCst), 0);
        // It does not try without a pause.
        assert!(begin.elapsed() >= Duration::from_millis(100));
    }
}

/// Without a free port the system gives the same error as for an address that it does not have.
#[test]
fn the_last_port_is_a_shortage_and_a_missing_address_is_none() {
    let system = Means::system();
    let dialled = Arc::new(AtomicUsize::new(0));
    let (count, dial) = (dialled.clone(), system.dial.clone());
    let dial = Arc::new(move |address| match count.fetch_add(1, Ordering::SeqCst) {
        0 => dial(address),
        1..4 => Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
        _ => dial(address),
    });
    let rig = Rig::with(local(), 4, Means { dial, ..system });
    let stub = Stub::start(|mut connection, number| {
        connection.request();
        if number == 0 {
            connection.hang();
        }
        connection.answer(200, "{}");
    });
    rig.reactor.submit(vec![call(7, stub.url("/"), Duration::from_secs(5))]);
    xdb_http_tests::rig::eventually("the first is open", || stub.accepted() == 1);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    assert_eq!(dialled.load(Ordering::SeqCst), 5);

    let missing =
        Means { dial: Arc::new(|_| Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))), ..Means::system() };
    let rig = Rig::with(local(), 4, missing);
    let message = failure(rig.get(stub.url("/")), FailureKind::Connect);
    assert!(message.ends_with("cannot assign requested address"), "{message}");
}
