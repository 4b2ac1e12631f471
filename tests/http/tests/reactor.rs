//! The tasks of a reactor: thousands of calls in one thread, a line for calls without a connection, and a loop that
//! survives panics.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xdb_http_tests::gate::Gate;
use xdb_http_tests::http::{Connections, Lookup, Means};
use xdb_http_tests::rig::{PATIENCE, Rig, answer, call, eventually, failure, local, policy};
use xdb_http_tests::stub::{Stub, never_accepting};
use xdb_http_tests::transport::FailureKind;

/// A timeout for calls that must time out.
const SHORT: Duration = Duration::from_millis(300);
/// Far longer than SHORT, far shorter than a stub's wait.
const SOON: Duration = Duration::from_secs(5);

/// The names of the threads of `src/http` in this process.
fn threads() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        fs::read_to_string(task.unwrap().path().join("comm")).ok().map(|name| name.trim().to_owned())
    });
    names.filter(|name| name.starts_with("xdb ")).collect()
}

/// Accepts connections without a thread for each. Answers all of them on request.
struct Sleeper {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Sleeper {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let accepted = streams.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                accepted.lock().unwrap().push(stream.unwrap());
            }
        });
        Sleeper { address, streams }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn accepted(&self) -> usize {
        self.streams.lock().unwrap().len()
    }

    /// Reads the request of every connection, and answers it.
    fn answer_all(&self) {
        for stream in &mut *self.streams.lock().unwrap() {
            let mut head = Vec::new();
            let mut bytes = [0; 4096];
            while !head.ends_with(b"\r\n\r\n{}") {
                let amount = stream.read(&mut bytes).unwrap();
                assert!(amount > 0);
                head.extend_from_slice(&bytes[..amount]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        }
    }
}

#[test]
fn thousands_of_calls_take_one_thread() {
    const CALLS: usize = 2500;
    // Both ends of each connection are here.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a whole limit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(20_000);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    let sleeper = Sleeper::start();
    let rig = Rig::new(10_000);
    let calls = (0..CALLS as u64).map(|tag| call(tag, sleeper.url(), PATIENCE));
    rig.reactor.submit(calls.collect());
    eventually("all calls are open", || sleeper.accepted() == CALLS);
    eventually("the reactor knows", || rig.reactor.connections() == Connections { open: CALLS, waiting: 0 });
    let names: Vec<_> = threads();
    assert!(names.iter().filter(|name| *name == "xdb http").count() <= engines_of_other_tests() + 1, "{names:?}");
    sleeper.answer_all();
    let tags: HashSet<_> = rig
        .collect(CALLS)
        .into_iter()
        .map(|reply| {
            assert_eq!(reply.outcome, answer(200, "{}"));
            reply.tag
        })
        .collect();
    assert_eq!(tags.len(), CALLS);
}

/// Tests of this file run at the same time, each with a reactor or two.
fn engines_of_other_tests() -> usize {
    32
}

#[test]
fn calls_beyond_the_connections_queue_up() {
    let (sender, arrived) = channel();
    let sender = Mutex::new(sender);
    let gate = Arc::new(Gate::default());
    let stub = Stub::start({
        let gate = Arc::clone(&gate);
        move |mut connection, _| {
            while connection.request().is_some() {
                sender.lock().unwrap().send(()).unwrap();
                gate.pass();
                connection.answer(200, "{}");
            }
        }
    });
    let rig = Rig::new(2);
    let calls = (0..6).map(|tag| call(tag, stub.url("/"), PATIENCE));
    rig.reactor.submit(calls.collect());
    eventually("four wait", || rig.reactor.connections() == Connections { open: 2, waiting: 4 });
    gate.open();
    for reply in rig.collect(6) {
        assert_eq!(reply.outcome, answer(200, "{}"));
    }
    assert_eq!(arrived.iter().take(6).count(), 6);
    assert_eq!(stub.accepted(), 2);
}

#[test]
fn a_call_that_never_got_a_connection_was_not_tried() {
    let stub = Stub::start(|mut connection, _| connection.hang());
    let rig = Rig::new(1);
    rig.reactor.submit(vec![call(0, stub.url("/"), SHORT * 2), call(1, stub.url("/"), SHORT)]);
    let mut replies = rig.collect(2);
    let second = replies.remove(1);
    let message = failure(second.outcome, FailureKind::NotTried);
    assert_eq!(message, "timed out after 300 ms without being sent: the engine has no connection left");
    assert_eq!(second.elapsed, Duration::ZERO);
    failure(replies.remove(0).outcome, FailureKind::Timeout);
    assert_eq!(stub.accepted(), 1);
}

#[test]
fn more_connections_may_be_permitted_and_fewer() {
    let stub = Stub::start(|mut connection, _| connection.hang());
    let rig = Rig::new(0);
    rig.reactor.submit((0..3).map(|tag| call(tag, stub.url("/"), PATIENCE)).collect());
    eventually("all wait", || rig.reactor.connections().waiting == 3);
    rig.reactor.set_max_connections(2);
    eventually("two are open", || rig.reactor.connections() == Connections { open: 2, waiting: 1 });
    // What is open stays.
    rig.reactor.set_max_connections(1);
    rig.reactor.submit(vec![call(3, stub.url("/"), PATIENCE)]);
    eventually("none begins", || rig.reactor.connections() == Connections { open: 2, waiting: 2 });
}

#[test]
fn an_idle_connection_gives_way_to_another_worker() {
    let stubs = [Stub::answering(200, "{}"), Stub::answering(200, "{}")];
    let rig = Rig::new(1);
    for stub in stubs.iter().chain(&stubs) {
        assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
        assert_eq!(rig.reactor.connections().open, 1);
    }
    assert_eq!(stubs[0].accepted(), 2);
}

#[test]
fn an_idle_connection_is_closed_in_time() {
    let (sender, closed) = channel();
    let sender = Mutex::new(sender);
    let stub = Stub::start(move |mut connection, _| {
        while connection.request().is_some() {
            connection.answer(200, "{}");
        }
        sender.lock().unwrap().send(Instant::now()).unwrap();
    });
    let rig = Rig::new(1);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    let begin = Instant::now();
    let took = closed.recv_timeout(PATIENCE).unwrap() - begin;
    assert!(took > Duration::from_millis(3500) && took < Duration::from_millis(4900), "{took:?}");
    eventually("it is not counted", || rig.reactor.connections().open == 0);
}

/// A worker sends bytes on an idle connection.
#[test]
fn unrequested_bytes_are_no_answer() {
    let stub = Stub::start(|mut connection, _| {
        while connection.request().is_some() {
            let text = |body| format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{body}");
            connection.send(&(text("good") + &text("evil")));
        }
    });
    let rig = Rig::new(1);
    for _ in 0..20 {
        assert_eq!(rig.get(stub.url("/")), answer(200, "good"));
    }
    assert_eq!(stub.accepted(), 20);
}

#[test]
fn a_worker_that_closes_is_not_kept() {
    for head in ["HTTP/1.1 200 OK\r\nConnection: close\r\n", "HTTP/1.0 200 OK\r\n"] {
        let stub = Stub::start(move |mut connection, _| {
            connection.request();
            connection.send(&format!("{head}Content-Length: 2\r\n\r\n{{}}"));
            connection.hang();
        });
        let rig = Rig::new(1);
        for number in 1..=3 {
            assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
            assert_eq!(stub.accepted(), number);
        }
    }
}

#[test]
fn interim_answers_are_passed_over() {
    let stub = Stub::start(|mut connection, _| {
        while connection.request().is_some() {
            connection
                .send("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 ");
            connection.dawdle(Duration::from_millis(20));
            connection.send("Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        }
    });
    let rig = Rig::new(1);
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    assert_eq!(rig.get(stub.url("/")), answer(200, "{}"));
    assert_eq!(stub.accepted(), 1);
}

#[test]
fn headers_that_just_fit_fit() {
    let stub = Stub::start(|mut connection, _| {
        while connection.request().is_some() {
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: \r\n\r\n";
            let filling = "x".repeat(16_384 - head.len());
            connection.send(&format!("{}{filling}\r\n\r\n{{}}", head.trim_end()));
        }
    });
    assert_eq!(Rig::new(1).get(stub.url("/")), answer(200, "{}"));
}

/// The answer comes byte by byte, so its pieces differ from the worker's writes.
#[test]
fn an_answer_may_come_in_any_pieces() {
    let texts = [
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
    ];
    for text in texts {
        let stub = Stub::start(move |mut connection, _| {
            connection.stream.set_nodelay(true).unwrap();
            while connection.request().is_some() {
                for at in 0..text.len() {
                    connection.send(&text[at..=at]);
                    std::thread::yield_now();
                }
            }
        });
        let rig = Rig::new(1);
        for _ in 0..3 {
            assert_eq!(rig.get(stub.url("/")), answer(200, "abcde"));
        }
        assert_eq!(stub.accepted(), 1, "{text}");
    }
}

/// A worker that never stops sending takes only its turn and its time.
#[test]
fn an_endless_answer_blocks_no_other_call() {
    let flood = Stub::start(|mut connection, _| {
        connection.request();
        let text = "HTTP/1.1 100 Continue\r\n\r\n".repeat(10_000);
        while connection.send(&text) {}
    });
    let other = Stub::answering(200, "{}");
    let rig = Rig::new(4);
    rig.reactor.submit(vec![call(1, flood.url("/"), PATIENCE), call(2, flood.url("/"), PATIENCE)]);
    eventually("it floods", || flood.accepted() == 2);
    for _ in 0..20 {
        let begin = Instant::now();
        assert_eq!(rig.get(other.url("/")), answer(200, "{}"));
        assert!(begin.elapsed() < SOON);
    }
    let begin = Instant::now();
    failure(rig.run(call(3, flood.url("/"), SHORT)).outcome, FailureKind::Timeout);
    assert!(begin.elapsed() < SHORT + SOON);
}

/// A lookup that always waits at the gate.
fn stuck(gate: &Arc<Gate>) -> Lookup {
    let gate = gate.clone();
    Arc::new(move |_| {
        gate.pass();
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    })
}

/// One call in each state, in the order of their tags.
struct EveryState {
    rig: Rig,
    gate: Arc<Gate>,
    _kept: (Vec<Stub>, TcpListener, Vec<TcpStream>),
}

const STATES: [&str; 6] = [
    "while looking up",
    "while connecting to",
    "while agreeing on TLS with",
    "while sending the request to",
    "while waiting for the answer of",
    "while receiving the answer of",
];

impl EveryState {
    fn new(timeout: Duration) -> Self {
        let gate = Arc::new(Gate::default());
        let rig = Rig::with_lookup(policy("127.0.0.1, stuck.test"), 6, stuck(&gate));
        let (never, listener, queued) = never_accepting();
        let hangs = Stub::start(|mut connection, _| {
            connection.request();
            connection.hang();
        });
        // It reads nothing, so that not even the request gets through.
        let (_open, closed) = channel::<()>();
        let closed = Mutex::new(closed);
        let deaf = Stub::start(move |connection, _| {
            let _ = closed.lock().unwrap().recv_timeout(PATIENCE);
            drop(connection);
        });
        let silent = Stub::start(|mut connection, _| connection.hang());
        let begins = Stub::start(|mut connection, _| {
            connection.request();
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx");
            connection.hang();
        });
        let mut large = call(3, deaf.url("/"), timeout);
        large.body = vec![b' '; 64 << 20];
        rig.reactor.submit(vec![
            call(0, "http://stuck.test/", timeout),
            call(1, format!("http://{never}/"), timeout),
            call(2, format!("https://{}/", silent.address), timeout),
            large,
            call(4, hangs.url("/"), timeout),
            call(5, begins.url("/"), timeout),
            call(6, hangs.url("/"), timeout),
        ]);
        eventually("all have begun", || {
            silent.accepted() + hangs.accepted() + begins.accepted() == 3
                && rig.reactor.connections() == Connections { open: 6, waiting: 1 }
        });
        std::mem::forget(_open);
        EveryState { rig, gate, _kept: (vec![hangs, deaf, silent, begins], listener, queued) }
    }
}

#[test]
fn time_runs_out_in_every_state() {
    let begin = Instant::now();
    let every = EveryState::new(Duration::from_secs(1));
    let mut replies = every.rig.collect(7);
    assert!(begin.elapsed() < SOON + Duration::from_secs(1));
    let in_line = replies.pop().unwrap();
    failure(in_line.outcome, FailureKind::NotTried);
    for (reply, state) in replies.into_iter().zip(STATES) {
        let kind = if reply.tag < 3 { FailureKind::ConnectTimeout } else { FailureKind::Timeout };
        let message = failure(reply.outcome, kind);
        assert!(message.starts_with("timed out after 1 s ") && message.contains(state), "{message}");
    }
    eventually("nothing is left", || every.rig.reactor.connections() == Connections::default());
    // The result of the lookup comes to a call that no longer exists.
    every.gate.open();
    let other = Stub::answering(200, "{}");
    assert_eq!(every.rig.get(other.url("/")), answer(200, "{}"));
    assert!(!every.rig.readable_within(Duration::ZERO));
}

#[test]
fn the_thread_ends_from_every_state() {
    let every = EveryState::new(PATIENCE);
    let begin = Instant::now();
    every.rig.end();
    assert!(begin.elapsed() < SOON);
    every.gate.open();
}

/// Means that call `mischief` once when armed: at the begin of the next connection.
fn exploding(mischief: fn() -> ()) -> (Means, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let system = Means::system();
    let (dial, is_armed) = (system.dial.clone(), armed.clone());
    let dial = Arc::new(move |address| {
        if is_armed.swap(false, Ordering::SeqCst) {
            mischief();
        }
        dial(address)
    });
    (Means { dial, ..system }, armed)
}

#[test]
fn a_panic_ends_its_own_call_alone() {
    let (means, armed) = exploding(|| panic!("of one call"));
    let rig = Rig::with(local(), 10, means);
    let (sender, go_on) = channel();
    let go_on = Mutex::new(go_on);
    let slow = Stub::start(move |mut connection, _| {
        connection.request();
        go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        connection.answer(200, "{}");
    });
    let other = Stub::answering(200, "{}");
    rig.reactor.submit(vec![call(1, slow.url("/"), PATIENCE)]);
    eventually("one is under way", || slow.accepted() == 1);
    armed.store(true, Ordering::SeqCst);
    let message = failure(rig.get(other.url("/")), FailureKind::Panic);
    assert_eq!(message, "the code that makes calls panicked: of one call");
    assert_eq!(rig.get(other.url("/")), answer(200, "{}"));
    sender.send(()).unwrap();
    assert_eq!(rig.collect(1).remove(0).outcome, answer(200, "{}"));
}

/// Panics with a value that panics again when it is dropped, outside of the code that catches the call's panic.
fn twice() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("of the loop");
        }
    }
    std::panic::panic_any(Bomb);
}

#[test]
fn the_loop_outlives_a_panic_of_its_own() {
    let (means, armed) = exploding(twice);
    let rig = Rig::with(local(), 10, means);
    let slow = Stub::start(|mut connection, _| connection.hang());
    for _ in 0..3 {
        // Without a connection that could be used again.
        let other = Stub::answering(200, "{}");
        let before = slow.accepted();
        rig.reactor.submit(vec![call(1, slow.url("/"), PATIENCE)]);
        eventually("one is under way", || slow.accepted() > before);
        armed.store(true, Ordering::SeqCst);
        rig.reactor.submit(vec![call(2, other.url("/"), PATIENCE)]);
        // The state of the other calls is unknown.
        for (reply, reason) in rig.collect(2).into_iter().zip(["of the loop", "a panic without a message"]) {
            let message = failure(reply.outcome, FailureKind::Panic);
            assert_eq!(message, format!("the code that makes calls panicked: {reason}"));
        }
        assert_eq!(rig.get(other.url("/")), answer(200, "{}"));
    }
    rig.end();
}

/// The policy is checked again before each further address, because it may have changed meanwhile.
#[test]
fn an_address_is_judged_when_it_is_connected_to() {
    let lookup: Lookup = Arc::new(|_| Ok(vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])]));
    let (dialled, dials) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let dial = Arc::new(move |address: SocketAddr| {
        dialled.send(address.ip()).unwrap();
        may_go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
    });
    let rig = Rig::with(policy("127.0.0.0/8"), 4, Means { lookup, dial, ..Means::system() });
    rig.reactor.submit(vec![call(0, "http://both.test:1/", PATIENCE)]);
    assert_eq!(dials.recv_timeout(PATIENCE).unwrap(), IpAddr::from([127, 0, 0, 1]));
    rig.reactor.set_policy(policy("127.0.0.1"));
    go_on.send(()).unwrap();
    let message = failure(rig.collect(1).remove(0).outcome, FailureKind::Refused);
    assert!(message.contains("127.0.0.2"), "{message}");
    assert!(dials.try_recv().is_err(), "no connection went there");
}

#[test]
fn a_cancelled_call_ends_in_every_state_and_its_connection_closes() {
    let every = EveryState::new(PATIENCE);
    let begin = Instant::now();
    // Tags of calls that are over, or never were, mean nothing.
    every.rig.reactor.cancel([0, 1, 2, 3, 4, 5, 6, 7, 1000]);
    for reply in every.rig.collect(7) {
        failure(reply.outcome, FailureKind::Cancelled);
    }
    assert!(begin.elapsed() < SOON);
    eventually("nothing is left", || every.rig.reactor.connections() == Connections::default());
    every.gate.open();
}

#[test]
fn a_cancelled_call_closes_its_connection_and_no_other() {
    let (sender, closed) = channel();
    let sender = Mutex::new(sender);
    let stub = Stub::start(move |mut connection, number| {
        connection.request();
        connection.hang();
        sender.lock().unwrap().send(number).unwrap();
    });
    let rig = Rig::new(2);
    rig.submit(call(1, stub.url("/"), PATIENCE));
    eventually("the first is there", || stub.accepted() == 1);
    rig.submit(call(2, stub.url("/"), PATIENCE));
    eventually("both are there", || stub.accepted() == 2);
    rig.reactor.cancel([2]);
    failure(rig.collect(1).remove(0).outcome, FailureKind::Cancelled);
    closed.recv_timeout(SOON).expect("its worker has seen the end of the connection");
    assert_eq!(rig.reactor.connections().open, 1);
    assert!(closed.try_recv().is_err(), "the other call goes on");
    rig.reactor.cancel([]);
    assert!(!rig.readable_within(Duration::ZERO));
}
