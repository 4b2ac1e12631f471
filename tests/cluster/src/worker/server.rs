//! The HTTP server of a worker. It has one thread for each connection, and records every call in a ledger.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::{Call, Reply};

type Handler = Arc<dyn Fn(&Call) -> Reply + Send + Sync>;

/// A running worker. It stops when dropped.
pub struct Worker {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Keeps the port while the worker does not listen.
    _place: Socket,
}

/// The calls and errors that a worker has seen.
pub struct Ledger(Arc<Shared>);

impl Ledger {
    /// Requests that were not of the protocol. A test that ends well has none.
    pub fn complaints(&self) -> Vec<String> {
        self.0.state().complaints.clone()
    }
}

struct Shared {
    state: Mutex<State>,
    /// Signalled at every new call, at a release, and at the end.
    changed: Condvar,
}

struct State {
    handler: Handler,
    /// Whether calls are recorded in the ledger.
    remembers: bool,
    /// The handler while the worker is broken.
    mischief: Option<Handler>,
    calls: Vec<Call>,
    /// The problems of requests that are not of the protocol.
    complaints: Vec<String>,
    /// Grows with every release.
    releases: u64,
    connections: HashMap<u64, TcpStream>,
    accepted: u64,
    listening: bool,
    /// Grows when the worker stops listening. An accept loop of an older generation ends.
    generation: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("handlers run without the lock, so it is never poisoned")
    }
}

impl Worker {
    /// Listens on a free port of 127.0.0.1.
    pub fn start<R: Into<Reply>>(handler: impl Fn(&Call) -> R + Send + Sync + 'static) -> Worker {
        Worker::start_with(true, Arc::new(move |call| handler(call).into()))
    }

    /// A worker that records no calls, for a handler with a ledger of its own.
    pub fn start_forgetful<R: Into<Reply>>(handler: impl Fn(&Call) -> R + Send + Sync + 'static) -> Worker {
        Worker::start_with(false, Arc::new(move |call| handler(call).into()))
    }

    fn start_with(remembers: bool, handler: Handler) -> Worker {
        let (address, place) = keep_port();
        let state = State {
            handler,
            remembers,
            mischief: None,
            calls: Vec::new(),
            complaints: Vec::new(),
            releases: 0,
            connections: HashMap::new(),
            accepted: 0,
            listening: false,
            generation: 0,
        };
        let worker = Worker {
            shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }),
            address,
            _place: place,
        };
        worker.listen(TcpListener::bind(address).expect("a port that is kept"));
        worker
    }

    /// The URL for `register_worker`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers every call by this handler from now on.
    pub fn misbehave<R: Into<Reply>>(&self, mischief: impl Fn(&Call) -> R + Send + Sync + 'static) {
        self.shared.state().mischief = Some(Arc::new(move |call| mischief(call).into()));
    }

    /// Answers by the original handler again, and releases calls that hang.
    pub fn heal(&self) {
        self.shared.state().mischief = None;
        self.release();
    }

    /// Answers the calls that hang now.
    pub fn release(&self) {
        self.shared.state().releases += 1;
        self.shared.changed.notify_all();
    }

    /// Stops listening and closes all connections. New connections are refused.
    pub fn go_away(&self) {
        let mut state = self.shared.state();
        if !std::mem::replace(&mut state.listening, false) {
            return;
        }
        state.generation += 1;
        for (_, connection) in state.connections.drain() {
            hang_up(&connection);
        }
        drop(state);
        self.release();
        // The listener's thread waits in `accept`. This connection ends the wait, and is never served.
        if let Ok(stream) = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)) {
            // The thread closes the listener, and with it this connection: then nothing listens any more.
            let closed = (&stream).read(&mut [0]);
            assert!(!matches!(closed, Ok(1..)), "no worker answers here");
        }
    }

    /// Listens again, on the same port.
    pub fn come_back(&self) {
        let mut listener = None;
        // The one before may not be closed yet.
        crate::wait::wait_until("no worker listens any more", 20, || {
            listener = TcpListener::bind(self.address).ok();
            listener.is_some()
        });
        self.listen(listener.expect("just bound"));
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// How many callers have closed their connections while their calls hang.
    pub fn abandoned(&self) -> usize {
        let state = self.shared.state();
        let is_closed = |connection: &TcpStream| {
            let mut byte = [std::mem::MaybeUninit::uninit()];
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            matches!(socket2::SockRef::from(connection).recv_with_flags(&mut byte, flags), Ok(0))
        };
        state.connections.values().filter(|connection| is_closed(connection)).count()
    }

    /// How many calls so far fulfil the condition.
    pub fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        self.shared.state().calls.iter().filter(|call| which(call)).count()
    }

    /// The ledger, which can be read after the worker was dropped.
    pub fn ledger(&self) -> Ledger {
        Ledger(Arc::clone(&self.shared))
    }

    /// Waits at most `seconds` for the first call that fulfils the condition.
    pub fn wait_for(&self, what: &str, seconds: u64, which: impl Fn(&Call) -> bool) -> Call {
        self.wait_for_count(what, seconds, 1, which).remove(0)
    }

    /// Waits at most `seconds` for the first `count` calls that fulfil the condition.
    pub fn wait_for_count(&self, what: &str, seconds: u64, count: usize, which: impl Fn(&Call) -> bool) -> Vec<Call> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let mut state = self.shared.state();
        loop {
            let found: Vec<Call> = state.calls.iter().filter(|call| which(call)).take(count).cloned().collect();
            if found.len() == count {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seen = found.len();
                // The panic must not poison what the worker's own threads use.
                drop(state);
                panic!("timed out after {seconds} s: {what}: {seen} of {count} calls");
            }
            state = self.shared.changed.wait_timeout(state, left).expect("never poisoned").0;
        }
    }

    fn listen(&self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        let generation = {
            let mut state = shared.state();
            state.listening = true;
            state.generation
        };
        thread::spawn(move || {
            loop {
                let stream = listener.accept();
                let mut state = shared.state();
                if state.generation != generation {
                    // The listener first: a caller that sees the connection end can't connect again.
                    drop(listener);
                    return;
                }
                let Ok((stream, _)) = stream else { continue };
                let Ok(copy) = stream.try_clone() else {
                    continue;
                };
                let number = state.accepted;
                state.accepted += 1;
                state.connections.insert(number, copy);
                drop(state);
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    if let Err(complaint) = serve(&shared, stream) {
                        shared.state().complaints.push(complaint);
                    }
                    if let Some(connection) = shared.state().connections.remove(&number) {
                        hang_up(&connection);
                    }
                });
            }
        });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.go_away();
    }
}

/// A port of 127.0.0.1, and a socket that is bound to it and never listens. Other programs can't get the port.
/// Connections are refused until the worker listens.
fn keep_port() -> (SocketAddr, Socket) {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let place = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    // The listener's socket has the same option, and shares the port with this socket.
    place.set_reuse_address(true).expect("a socket that is not bound yet");
    place.bind(&any.into()).expect("a free port");
    let address = place.local_addr().expect("a bound socket").as_socket().expect("an address of the internet");
    (address, place)
}

fn hang_up(connection: &TcpStream) {
    match connection.shutdown(Shutdown::Both) {
        Ok(()) => {}
        // The other side was first.
        Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
        Err(error) => eprintln!("worker: {error}"),
    }
}

/// Serves one connection until it ends. A caller may break the connection. A request that is not HTTP is an error.
fn serve(shared: &Shared, stream: TcpStream) -> Result<(), String> {
    // Small answers must not wait for an acknowledgement, or latencies could not be judged.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let Ok(copy) = stream.try_clone() else {
        return Ok(());
    };
    let mut reader = BufReader::new(copy);
    let mut stream = stream;
    while let Some((path, headers, body)) = read_request(&mut reader)? {
        let call = match Call::new(path, headers, body) {
            Ok(call) => call,
            Err(complaint) => {
                if answer(&mut stream, 404, complaint.as_bytes()).is_err() {
                    return Ok(());
                }
                return Err(complaint);
            }
        };
        let (handler, releases) = {
            let mut state = shared.state();
            if state.remembers {
                state.calls.push(call.clone());
                shared.changed.notify_all();
            }
            let handler = state.mischief.clone().unwrap_or_else(|| Arc::clone(&state.handler));
            (handler, state.releases)
        };
        if give(shared, &mut stream, handler(&call), releases).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

type Request = (String, HashMap<String, String>, String);

fn read_request(reader: &mut impl BufRead) -> Result<Option<Request>, String> {
    let mut first = String::new();
    match reader.read_line(&mut first) {
        Ok(0) | Err(_) => return Ok(None),
        Ok(_) => {}
    }
    let mut words = first.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "POST" {
        return Err(format!("not a POST: {first:?}"));
    }
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) => {}
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| format!("not a header field: {line:?}"))?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse::<usize>().ok());
    let length = length.ok_or_else(|| format!("no content-length: {headers:?}"))?;
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return Ok(None);
    }
    let body = String::from_utf8(body).map_err(|error| error.to_string())?;
    Ok(Some((path.to_owned(), headers, body)))
}

/// Gives a reply. An error means the end of the connection, intended or not. `releases` was counted when the call
/// entered the ledger. So a release by a test that has seen the call there always counts.
fn give(shared: &Shared, stream: &mut TcpStream, reply: Reply, releases: u64) -> std::io::Result<()> {
    match reply {
        Reply::Json(status, body) => answer(stream, status, body.to_string().as_bytes()),
        Reply::Raw(status, body) => answer(stream, status, &body),
        Reply::Unavailable(seconds) => {
            write!(stream, "HTTP/1.1 503 X\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n")
        }
        Reply::Hang(wish) => {
            let state = shared.state();
            drop(shared.changed.wait_while(state, |state| state.releases == releases).expect("never poisoned"));
            give(shared, stream, *wish, releases)
        }
        Reply::Late(pause, wish) => {
            thread::sleep(pause);
            give(shared, stream, *wish, releases)
        }
        Reply::Pieces(length, wish) => {
            let whole = encoded(*wish);
            let pieces = whole.chunks(whole.len().div_ceil(PIECES).max(1));
            let pause = length / pieces.len().max(1) as u32;
            for piece in pieces {
                thread::sleep(pause);
                stream.write_all(piece)?;
            }
            Ok(())
        }
        Reply::Twice(first, second) => stream.write_all(&[encoded(*first), encoded(*second)].concat()),
        Reply::Drip(pause) => {
            let body = br#"{"stateDecision":{"threadCloseDecision":{"closeType":"DEAD_END"}}}"#;
            head(stream, 200, body.len())?;
            for byte in body {
                stream.write_all(&[*byte])?;
                thread::sleep(pause);
            }
            Ok(())
        }
        Reply::Huge(bytes) => {
            let (before, after) = (br#"{"output":""#, br#""}"#);
            let filling = bytes.saturating_sub(before.len() + after.len());
            head(stream, 200, before.len() + filling + after.len())?;
            stream.write_all(before)?;
            let chunk = [b'x'; 64 * 1024];
            let mut left = filling;
            while left > 0 {
                let now = left.min(chunk.len());
                stream.write_all(&chunk[..now])?;
                left -= now;
            }
            stream.write_all(after)
        }
        Reply::CloseMidBody => {
            let body = br#"{"stateDecision":"#;
            head(stream, 200, body.len() * 2)?;
            stream.write_all(body)?;
            Err(std::io::ErrorKind::ConnectionAborted.into())
        }
    }
}

/// The number of pieces of an answer.
const PIECES: usize = 10;

/// An answer with its body, as bytes. Empty for a reply that is more than an answer.
fn encoded(reply: Reply) -> Vec<u8> {
    let (status, body) = match reply {
        Reply::Json(status, body) => (status, body.to_string().into_bytes()),
        Reply::Raw(status, body) => (status, body),
        _ => return Vec::new(),
    };
    [head_of(status, body.len()).into_bytes(), body].concat()
}

fn head_of(status: u16, length: usize) -> String {
    format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
}

fn head(stream: &mut TcpStream, status: u16, length: usize) -> std::io::Result<()> {
    stream.write_all(head_of(status, length).as_bytes())
}

fn answer(stream: &mut TcpStream, status: u16, body: &[u8]) -> std::io::Result<()> {
    head(stream, status, body.len())?;
    stream.write_all(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{dead_end, error};

    const EXECUTE: &str = "/api/v1/xdb/worker/async-state/execute";

    fn ask(stream: &mut TcpStream, path: &str) -> std::io::Result<String> {
        let body = r#"{"context": {"processId": "p", "attempt": 1}, "stateId": "S"}"#;
        write!(stream, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut status, mut line) = (String::new(), String::new());
        reader.read_line(&mut status)?;
        let mut length = 0;
        while reader.read_line(&mut line)? > 2 {
            if let Some(value) = line.trim_end().strip_prefix("Content-Length: ") {
                length = value.parse().map_err(std::io::Error::other)?;
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        Ok(format!("{} {}", status.trim_end(), String::from_utf8_lossy(&body)))
    }

    fn connect(worker: &Worker) -> TcpStream {
        TcpStream::connect(worker.address).expect("it listens")
    }

    #[test]
    fn a_connection_serves_many_calls_and_the_ledger_has_them_all() {
        let worker = Worker::start(|_| dead_end());
        let mut stream = connect(&worker);
        for _ in 0..3 {
            assert!(ask(&mut stream, EXECUTE).expect("an answer").contains("DEAD_END"));
        }
        assert_eq!(worker.count(|call| call.executes("S") && call.process_id() == "p"), 3);
    }

    #[test]
    fn a_hanging_call_is_answered_when_it_is_released() {
        let worker = Worker::start(|_| Reply::hang(dead_end()));
        let mut stream = connect(&worker);
        thread::scope(|scope| {
            let answer = scope.spawn(|| ask(&mut stream, EXECUTE));
            worker.wait_for("the call", 5, |_| true);
            worker.release();
            assert!(answer.join().expect("no panic").expect("an answer").contains("200"));
        });
    }

    #[test]
    fn one_that_went_away_refuses_and_comes_back_on_the_same_port() {
        let worker = Worker::start(|_| dead_end());
        worker.go_away();
        assert!(TcpStream::connect(worker.address).is_err());
        worker.come_back();
        assert!(ask(&mut connect(&worker), EXECUTE).is_ok());
    }

    #[test]
    fn mischief_lasts_until_it_is_healed() {
        let worker = Worker::start(|_| dead_end());
        worker.misbehave(|_| error(500, "Broken", "on purpose"));
        assert!(ask(&mut connect(&worker), EXECUTE).expect("an answer").contains("on purpose"));
        worker.misbehave(|_| Reply::CloseMidBody);
        assert!(ask(&mut connect(&worker), EXECUTE).is_err());
        worker.misbehave(|_| Reply::Huge(1_000_000));
        assert!(ask(&mut connect(&worker), EXECUTE).expect("an answer").len() > 999_999);
        worker.heal();
        assert!(ask(&mut connect(&worker), EXECUTE).expect("an answer").contains("DEAD_END"));
    }

    #[test]
    fn a_forgetful_one_gives_answers_late_in_pieces_and_twice() {
        let worker = Worker::start_forgetful(|_| dead_end());
        let pause = Duration::from_millis(2);
        for reply in
            [Reply::Late(pause, Box::new(dead_end().into())), Reply::Pieces(pause, Box::new(dead_end().into()))]
        {
            worker.misbehave(move |_| reply.clone());
            assert!(ask(&mut connect(&worker), EXECUTE).expect("an answer").contains("DEAD_END"));
        }
        worker.misbehave(|_| Reply::Twice(Box::new(dead_end().into()), Box::new(error(500, "Second", "answer"))));
        let mut stream = connect(&worker);
        assert!(ask(&mut stream, EXECUTE).expect("an answer").contains("DEAD_END"));
        assert_eq!(worker.calls().len(), 0);
    }

    #[test]
    fn a_request_outside_the_protocol_is_a_complaint() {
        let worker = Worker::start(|_| dead_end());
        assert!(ask(&mut connect(&worker), "/elsewhere").expect("an answer").contains("404"));
        while worker.ledger().complaints().is_empty() {
            thread::yield_now();
        }
    }
}
