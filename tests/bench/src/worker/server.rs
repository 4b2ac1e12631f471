//! The server behind the worker: a few threads, each with its own connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::poll::{Poll, Ready};
use super::{Api, Reply, Request, http};
use crate::machine;

type Handler = dyn Fn(&Request<'_>, &mut Reply) + Send + Sync;

/// A running worker. It ends when dropped.
pub struct Worker {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Closing these ends the threads.
    ends: Vec<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    handler: Box<Handler>,
    calls: AtomicU64,
    /// Requests that were not of the protocol, and other errors.
    complaints: Mutex<Vec<String>>,
    polls: Vec<Poll>,
    /// Connections that their threads have not seen yet. Threads take them by their descriptors.
    accepted: Mutex<Vec<TcpStream>>,
    /// The kernel's ids of the threads.
    threads: Vec<AtomicI32>,
}

impl Worker {
    /// Listens on a free port of 127.0.0.1.
    pub fn start(threads: usize, handler: impl Fn(&Request<'_>, &mut Reply) + Send + Sync + 'static) -> Worker {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        listener.set_nonblocking(true).expect("a socket of ours");
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            calls: AtomicU64::new(0),
            complaints: Mutex::default(),
            polls: (0..threads).map(|_| Poll::new().expect("a descriptor is free")).collect(),
            accepted: Mutex::default(),
            threads: (0..threads).map(|_| AtomicI32::new(0)).collect(),
        });
        let mut worker = Worker { shared, address, ends: Vec::new(), threads: Vec::new() };
        let mut listener = Some(listener);
        for number in 0..threads {
            let (end, other) = UnixStream::pair().expect("descriptors are free");
            let shared = Arc::clone(&worker.shared);
            // The first one accepts for all.
            let listener = listener.take();
            let body = move || {
                // SAFETY: no preconditions.
                shared.threads[number].store(unsafe { libc::gettid() }, Ordering::Relaxed);
                if let Err(error) = Server::new(&shared, number, listener).serve(&other) {
                    shared.complain(format!("the worker's thread {number} ended: {error}"));
                }
            };
            worker.ends.push(end);
            let thread = thread::Builder::new().name(format!("worker {number}")).spawn(body);
            worker.threads.push(thread.expect("a thread can be started"));
        }
        worker
    }

    /// The URL for `register_worker`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of requests so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// CPU seconds of the worker's threads so far.
    pub fn cpu(&self) -> f64 {
        self.shared.threads.iter().map(|thread| machine::cpu_of_thread(thread.load(Ordering::Relaxed))).sum()
    }

    /// The complaints so far. A run that ends well has none.
    pub fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().expect("never poisoned").clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ends.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("a thread of the worker has panicked");
            }
        }
    }
}

impl Shared {
    fn complain(&self, complaint: String) {
        let mut complaints = self.complaints.lock().expect("never poisoned");
        // Twenty complaints are enough: more are of the same kinds.
        if complaints.len() < 20 {
            complaints.push(complaint);
        }
    }
}

/// The state of one thread.
struct Server<'a> {
    shared: &'a Shared,
    number: usize,
    listener: Option<TcpListener>,
    /// The connections, by descriptor.
    connections: Vec<Option<Connection>>,
    accepted: usize,
    /// Answers that are given later, the earliest first.
    later: BinaryHeap<Reverse<Later>>,
    reply: Reply,
}

struct Connection {
    stream: TcpStream,
    /// A descriptor may be used again, this number is not.
    number: u64,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The kernel's buffer is full: the thread waits until it can continue to write.
    stuck: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Later {
    due: Instant,
    descriptor: RawFd,
    connection: u64,
    body: Vec<u8>,
}

/// The most bytes that are read at once.
const PIECE: usize = 16 * 1024;

impl<'a> Server<'a> {
    fn new(shared: &'a Shared, number: usize, listener: Option<TcpListener>) -> Server<'a> {
        let (connections, later) = (Vec::new(), BinaryHeap::new());
        Server { shared, number, listener, connections, accepted: 0, later, reply: Reply::default() }
    }

    /// Serves connections until the other side of `end` is closed.
    fn serve(&mut self, end: &UnixStream) -> Result<(), Error> {
        let shared = self.shared;
        let poll = &shared.polls[self.number];
        poll.add(end)?;
        if let Some(listener) = &self.listener {
            poll.add(listener)?;
        }
        let listening = self.listener.as_ref().map(AsRawFd::as_raw_fd);
        let mut ready = Ready::new();
        loop {
            let pause = self.later.peek().map(|Reverse(next)| next.due.saturating_duration_since(Instant::now()));
            poll.wait(&mut ready, pause)?;
            for descriptor in ready.iter() {
                if descriptor == end.as_raw_fd() {
                    return Ok(());
                }
                if Some(descriptor) == listening {
                    self.accept()?;
                } else {
                    self.turn(descriptor);
                }
            }
            self.send_due_answers();
        }
    }

    fn accept(&mut self) -> Result<(), Error> {
        let listener = self.listener.as_ref().expect("only the thread with the listener is woken for it");
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            // Small answers must not wait for an acknowledgement.
            stream.set_nodelay(true)?;
            let poll = &self.shared.polls[self.accepted % self.shared.polls.len()];
            self.accepted += 1;
            // The lock is held until the stream is there: its thread may wake at once.
            let mut accepted = self.shared.accepted.lock().expect("never poisoned");
            poll.add(&stream)?;
            accepted.push(stream);
        }
    }

    /// Makes progress on a connection. A connection that ended or broke is closed: callers may do that.
    fn turn(&mut self, descriptor: RawFd) {
        let place = descriptor as usize;
        if self.connections.len() <= place {
            self.connections.resize_with(place + 1, || None);
        }
        let mut connection = match self.connections[place].take() {
            Some(connection) => connection,
            None => match self.take_over(descriptor) {
                Some(connection) => connection,
                None => return,
            },
        };
        match self.exchange(&mut connection) {
            Ok(true) => self.connections[place] = Some(connection),
            Ok(false) => {}
            Err(complaint) => self.shared.complain(complaint),
        }
    }

    fn take_over(&mut self, descriptor: RawFd) -> Option<Connection> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut accepted = self.shared.accepted.lock().expect("never poisoned");
        let place = accepted.iter().position(|stream| stream.as_raw_fd() == descriptor)?;
        let stream = accepted.swap_remove(place);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Some(Connection { stream, number, inbox: Vec::new(), outbox: Vec::new(), stuck: false })
    }

    /// Reads requests and answers them. False: the connection has ended.
    fn exchange(&mut self, connection: &mut Connection) -> Result<bool, String> {
        let mut begin = 0;
        loop {
            let filled = connection.inbox.len();
            connection.inbox.resize(filled + PIECE, 0);
            let read = connection.stream.read(&mut connection.inbox[filled..]);
            connection.inbox.truncate(filled + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Ok(false),
            }
            while let Some(message) = http::parse(&connection.inbox[begin..])? {
                self.answer(connection, begin, &message)?;
                begin += message.body.1;
            }
            // A read that has not filled its buffer has taken all there was.
            if connection.inbox.len() < filled + PIECE {
                break;
            }
        }
        connection.inbox.drain(..begin);
        Ok(self.flush(connection))
    }

    fn answer(&mut self, connection: &mut Connection, from: usize, message: &http::Message) -> Result<(), String> {
        let buffer = &connection.inbox[from..];
        let path = &buffer[message.subject.0..message.subject.1];
        let api = Api::of_path(path).ok_or_else(|| format!("no such path: {}", String::from_utf8_lossy(path)))?;
        let request = Request { api, body: &buffer[message.body.0..message.body.1], at: Instant::now() };
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        self.reply.body.clear();
        self.reply.after = std::time::Duration::ZERO;
        (self.shared.handler)(&request, &mut self.reply);
        if self.reply.after.is_zero() {
            enclose(&self.reply.body, &mut connection.outbox);
        } else {
            self.later.push(Reverse(Later {
                due: request.at + self.reply.after,
                descriptor: connection.stream.as_raw_fd(),
                connection: connection.number,
                body: self.reply.body.clone(),
            }));
        }
        Ok(())
    }

    fn send_due_answers(&mut self) {
        let now = Instant::now();
        while self.later.peek().is_some_and(|Reverse(next)| next.due <= now) {
            let Some(Reverse(later)) = self.later.pop() else { return };
            let place = later.descriptor as usize;
            // The caller may have closed the connection meanwhile.
            let Some(mut connection) = self.connections[place].take() else { continue };
            if connection.number == later.connection {
                enclose(&later.body, &mut connection.outbox);
                if !self.flush(&mut connection) {
                    continue;
                }
            }
            self.connections[place] = Some(connection);
        }
    }

    /// Writes as much as the kernel accepts. False: the connection has ended.
    fn flush(&self, connection: &mut Connection) -> bool {
        let mut written = 0;
        let mut full = false;
        while written < connection.outbox.len() && !full {
            match connection.stream.write(&connection.outbox[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => full = true,
                Err(_) => return false,
            }
        }
        connection.outbox.drain(..written);
        let was_stuck = std::mem::replace(&mut connection.stuck, full);
        was_stuck == full || self.shared.polls[self.number].writes(&connection.stream, full).is_ok()
    }
}

fn enclose(body: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ");
    write!(into, "{}", body.len()).expect("a vector takes everything");
    into.extend_from_slice(b"\r\n\r\n");
    into.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ask(stream: &mut TcpStream, path: &str, body: &str) -> std::io::Result<String> {
        write!(stream, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        receive(stream)
    }

    fn receive(stream: &mut TcpStream) -> std::io::Result<String> {
        let mut buffer = Vec::new();
        loop {
            if let Some(message) = http::parse(&buffer).map_err(Error::other)? {
                return Ok(String::from_utf8_lossy(&buffer[message.body.0..message.body.1]).into_owned());
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => buffer.extend_from_slice(&piece[..count]),
            }
        }
    }

    const EXECUTE: &str = "/api/v1/xdb/worker/async-state/execute";

    fn connect(worker: &Worker) -> TcpStream {
        let stream = TcpStream::connect(worker.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket of ours");
        stream
    }

    #[test]
    fn every_thread_has_connections_and_each_serves_many_calls() {
        let worker = Worker::start(2, |request, reply| reply.push(request.target()));
        let mut streams: Vec<TcpStream> = (0..4).map(|_| connect(&worker)).collect();
        for round in 0..3 {
            for stream in &mut streams {
                let body = format!(r#"{{"stateId":"S{round}"}}"#);
                assert_eq!(ask(stream, EXECUTE, &body).expect("an answer"), format!("S{round}"));
            }
        }
        assert_eq!(worker.calls(), 12);
        assert_eq!(worker.complaints(), Vec::<String>::new());
    }

    #[test]
    fn a_request_in_pieces_and_a_large_answer_come_through() {
        let worker = Worker::start(1, |request, reply| reply.body.resize(request.body.len() * 8, b'x'));
        let mut stream = connect(&worker);
        let body = vec![b'a'; 2_000_000];
        write!(stream, "POST {EXECUTE} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len()).expect("it listens");
        for piece in body.chunks(700_000) {
            stream.write_all(piece).expect("it reads");
        }
        assert_eq!(receive(&mut stream).expect("an answer").len(), 16_000_000);
        assert_eq!(ask(&mut stream, EXECUTE, "{}").expect("an answer").len(), 16);
    }

    #[test]
    fn a_late_answer_comes_after_the_quick_ones() {
        let late = Duration::from_millis(30);
        let worker = Worker::start(1, move |request, reply| {
            reply.push("x");
            reply.after = if request.target() == "Late" { late } else { Duration::ZERO };
        });
        let (mut slow, mut quick) = (connect(&worker), connect(&worker));
        let begun = Instant::now();
        let waiter = thread::spawn(move || ask(&mut slow, EXECUTE, r#"{"stateId":"Late"}"#).map(|_| begun.elapsed()));
        assert_eq!(ask(&mut quick, EXECUTE, "{}").expect("an answer"), "x");
        assert!(waiter.join().expect("no panic").expect("an answer") >= late);
    }

    #[test]
    fn a_request_outside_the_protocol_is_a_complaint_and_ends_the_connection() {
        let worker = Worker::start(1, |_, reply| reply.push("x"));
        assert!(ask(&mut connect(&worker), "/elsewhere", "{}").is_err());
        assert_eq!(worker.complaints(), ["no such path: /elsewhere"]);
    }
}
