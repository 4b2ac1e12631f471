//! Names and their addresses, and the policy for both. Tested with a lookup that a gate can stop.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use xdb_http_tests::gate::Gate;
use xdb_http_tests::http::Lookup;
use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, failure, policy};
use xdb_http_tests::stub::Stub;
use xdb_http_tests::transport::FailureKind;

const SHORT: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(5);

/// Lookups of "stuck.test" wait at the gate.
fn lookup(gate: Arc<Gate>, asked: Arc<AtomicUsize>) -> Lookup {
    Arc::new(move |host| {
        asked.fetch_add(1, Ordering::SeqCst);
        let addresses: &[&str] = match host {
            "worker.test" => &["127.0.0.1"],
            "both.test" => &["127.0.0.1", "127.0.0.2"],
            "dead-first.test" => &["127.0.0.3", "127.0.0.1"],
            "private.test" => &["10.1.2.3", "169.254.169.254"],
            "many.test" => &["127.0.0.1"; 40],
            "empty.test" => &[],
            "panic.test" => panic!("no name like {host}"),
            "stuck.test" => {
                gate.pass();
                &["127.0.0.1"]
            }
            _ => return Err(io::Error::other("no such name")),
        };
        Ok(addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect())
    })
}

struct Setup {
    rig: Rig,
    gate: Arc<Gate>,
    asked: Arc<AtomicUsize>,
}

fn setup(entries: &str) -> Setup {
    let gate = Arc::new(Gate::default());
    let asked = Arc::new(AtomicUsize::new(0));
    let rig = Rig::with_lookup(policy(entries), 4, lookup(gate.clone(), asked.clone()));
    Setup { rig, gate, asked }
}

fn url(host: &str, stub: &Stub) -> String {
    format!("http://{host}:{}/", stub.address.port())
}

#[test]
fn names_are_looked_up_once_and_cached() {
    let Setup { rig, asked, .. } = setup("127.0.0.1");
    let stub = Stub::answering(200, "{}");
    for tag in 0..50 {
        rig.submit(call(tag, url("worker.test", &stub), PATIENCE));
    }
    for finished in rig.collect(50) {
        assert_eq!(finished.outcome, answer(200, "{}"));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // Addresses need no lookup.
    assert_eq!(rig.get(url("127.0.0.1", &stub)), answer(200, "{}"));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn an_unknown_host_name_is_reported() {
    let Setup { rig, .. } = setup("127.0.0.1");
    assert_eq!(
        failure(rig.get("http://nowhere.test/"), FailureKind::Connect),
        "the worker host \"nowhere.test\" was not found: no such name"
    );
    assert_eq!(
        failure(rig.get("http://empty.test/"), FailureKind::Connect),
        "the worker host \"empty.test\" was not found: it has no address"
    );
}

#[test]
fn a_lookup_that_panics_harms_only_itself() {
    let Setup { rig, .. } = setup("127.0.0.1");
    let stub = Stub::answering(200, "{}");
    let message = failure(rig.get("http://panic.test/"), FailureKind::Panic);
    assert!(message.contains("panic.test"), "{message}");
    assert_eq!(rig.get(url("worker.test", &stub)), answer(200, "{}"));
}

/// Each round can only end when all its names are looked up at the same time. No name may wait for another one while
/// another thread may be started.
#[test]
fn names_never_wait_while_there_may_be_a_thread_more() {
    const AT_ONCE: usize = 8;
    let meet = Barrier::new(AT_ONCE);
    let rig = Rig::with_lookup(
        policy("127.0.0.1"),
        AT_ONCE,
        Arc::new(move |_| {
            meet.wait();
            Err(io::Error::other("no such name"))
        }),
    );
    for round in 0..100 {
        for name in 0..AT_ONCE {
            rig.submit(call(0, format!("http://name{name}.round{round}.test/"), PATIENCE));
        }
        for reply in rig.collect(AT_ONCE) {
            failure(reply.outcome, FailureKind::Connect);
        }
    }
}

#[test]
fn a_stuck_lookup_delays_no_call_beyond_its_timeout() {
    let Setup { rig, gate, asked } = setup("127.0.0.1");
    let stub = Stub::answering(200, "{}");
    for tag in 0..3 {
        rig.submit(call(tag, url("stuck.test", &stub), SHORT));
    }
    // Other names are found meanwhile.
    let begin = Instant::now();
    rig.submit(call(3, url("worker.test", &stub), PATIENCE));
    let mut finished = rig.collect(4);
    assert_eq!(finished.pop().unwrap().outcome, answer(200, "{}"));
    for finished in finished {
        let port = stub.address.port();
        assert_eq!(
            failure(finished.outcome, FailureKind::ConnectTimeout),
            format!("timed out after 300 ms while looking up stuck.test:{port}")
        );
    }
    assert!(begin.elapsed() < SOON);

    gate.open();
    assert_eq!(rig.get(url("stuck.test", &stub)), answer(200, "{}"));
    // All of them waited for the same one.
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[test]
fn the_policy_is_asked_about_addresses() {
    let Setup { rig, .. } = setup("private.test");
    rig.reactor.set_policy(policy("other.test"));
    let expected = "the worker host \"private.test\" resolves to 10.1.2.3, 169.254.169.254, which is not permitted by xdb.allowed_worker_hosts";
    assert_eq!(failure(rig.get("http://private.test/"), FailureKind::Refused), expected);
    for address in ["169.254.169.254", "[::ffff:10.0.0.1]", "[fe80::1]"] {
        let message = failure(rig.get(format!("http://{address}/")), FailureKind::Refused);
        assert!(message.contains("not permitted by xdb.allowed_worker_hosts"), "{message}");
    }
}

#[test]
fn a_mapped_address_is_connected_to_as_ipv4() {
    let Setup { rig, .. } = setup("127.0.0.0/8");
    let stub = Stub::answering(200, "{}");
    assert_eq!(rig.get(url("[::ffff:127.0.0.1]", &stub)), answer(200, "{}"));
}

#[test]
fn an_idle_connection_does_not_outlive_its_permission() {
    let (sender, targets) = channel();
    let sender = Mutex::new(sender);
    let stub = Stub::start_on("0.0.0.0", move |mut connection, _| {
        let target = connection.stream.local_addr().unwrap().ip().to_string();
        while connection.request().is_some() {
            sender.lock().unwrap().send(target.clone()).unwrap();
            connection.answer(200, "{}");
        }
    });
    let Setup { rig, .. } = setup("127.0.0.0/8");
    let target = || {
        assert_eq!(rig.get(url("both.test", &stub)), answer(200, "{}"));
        targets.recv_timeout(PATIENCE).unwrap()
    };
    assert_eq!(target(), "127.0.0.1");
    assert_eq!(target(), "127.0.0.1");
    assert_eq!(stub.accepted(), 1);
    rig.reactor.set_policy(policy("127.0.0.2"));
    assert_eq!(target(), "127.0.0.2");
    assert_eq!(stub.accepted(), 2);
    rig.reactor.set_policy(policy("10.0.0.0/8"));
    failure(rig.get(url("both.test", &stub)), FailureKind::Refused);
}

/// A worker at another port of the same host is another worker: its connections are checked with its own port.
#[test]
fn a_port_is_judged_when_it_is_connected_to_and_at_each_reuse() {
    let Setup { rig, .. } = setup("127.0.0.0/8");
    let (one, other) = (Stub::answering(200, "{}"), Stub::answering(200, "{}"));
    let port = one.address.port();
    let both = || [&one, &other].map(|stub| rig.get(url("both.test", stub)));
    assert_eq!(both(), [answer(200, "{}"), answer(200, "{}")]);
    // Now there are idle connections to both of them.
    rig.reactor.set_policy(policy(&format!("127.0.0.1:{port}")));
    let [permitted, refused] = both();
    assert_eq!(permitted, answer(200, "{}"));
    let message = failure(refused, FailureKind::Refused);
    let expected = format!("which is not permitted at port {} by xdb.allowed_worker_hosts", other.address.port());
    assert!(message.ends_with(&expected), "{message}");
    assert_eq!((one.accepted(), other.accepted()), (1, 1));
    rig.reactor.set_policy(policy("both.test:1"));
    let _ = both().map(|refused| failure(refused, FailureKind::Refused));
}

#[test]
fn further_addresses_are_tried() {
    let Setup { rig, .. } = setup("127.0.0.0/8");
    let stub = Stub::answering(200, "{}");
    for host in ["dead-first.test", "many.test"] {
        assert_eq!(rig.get(url(host, &stub)), answer(200, "{}"));
    }
}
