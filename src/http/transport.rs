//! Sockets of calls. ureq's own would do, but for four things: what became of a call must be known to
//! judge whether it may be repeated, a peer that reads slowly must not stretch the time of a call, an
//! answer without a length that ends by a reset must not pass for a whole one, and an idle connection
//! must not outlive the permission for its address.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, RustlsConnector, Transport,
};
use ureq::{Error, Timeout};

use super::phase::{self, Phase};
use super::resolver::Names;
use super::{LONGEST, LONGEST_CONNECT, SHORTEST_CONNECT};

/// What became of the attempt that the current thread makes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub phase: Phase,
    /// A connection was made for this attempt, rather than taken from those kept alive.
    pub fresh: bool,
    /// The address tried or connected to last, where a connection was made.
    pub peer: Option<SocketAddr>,
    /// The peer went away.
    pub lost: bool,
}

const NOTHING: Progress = Progress { phase: Phase::Resolving, fresh: false, peer: None, lost: false };

thread_local! {
    /// A call is made by one thread from its start to its end, so what the layers below the agent see
    /// reaches the code above it through here.
    static PROGRESS: Cell<Progress> = const { Cell::new(NOTHING) };
}

/// To be called at the start of an attempt.
pub fn reset_progress() {
    PROGRESS.set(NOTHING);
}

/// How far the attempt of this thread got.
pub fn progress() -> Progress {
    PROGRESS.get()
}

fn note(change: impl FnOnce(&mut Progress)) {
    let mut progress = PROGRESS.get();
    change(&mut progress);
    PROGRESS.set(progress);
}

/// The point in time that a timeout of the agent stands for.
pub fn deadline(timeout: NextTimeout) -> Instant {
    Instant::now() + (*timeout.after).min(LONGEST)
}

/// The time until `deadline`; `None` when it has passed.
fn left(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// Connects, and adds TLS where the URL wants it.
pub struct Dialer {
    names: Arc<Names>,
    tls: RustlsConnector,
}

impl Dialer {
    pub fn new(names: Arc<Names>) -> Self {
        Dialer { names, tls: RustlsConnector::default() }
    }
}

impl Connector<()> for Dialer {
    type Out = Connection;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Connection>, Error> {
        note(|progress| {
            progress.phase = Phase::Connecting;
            progress.fresh = true;
        });
        let stream = dial(&details.addrs, details.timeout)?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.ip();
        let stream = Arc::new(stream);
        let handle: Weak<TcpStream> = Arc::downgrade(&stream);
        (details.register_shutdown)(handle)?;
        let socket = Socket {
            stream,
            buffers: LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size()),
        };
        // The TLS layer keeps its state (the trusted roots, the sessions to resume) only for requests
        // that are configured by their agent. Every call has a timeout of its own, and nothing else, so
        // theirs are as good.
        let details = ConnectionDetails {
            uri: details.uri,
            addrs: details.addrs.clone(),
            config: details.config,
            request_level: false,
            resolver: details.resolver,
            now: details.now,
            timeout: details.timeout,
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        if details.needs_tls() {
            note(|progress| progress.phase = Phase::Handshaking);
        }
        let inner = self.tls.connect(&details, Some(socket))?;
        Ok(inner.map(|inner| Connection {
            inner: Box::new(inner) as Box<dyn Transport>,
            names: self.names.clone(),
            host: details.uri.host().unwrap_or_default().to_owned(),
            peer,
        }))
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}

/// Tries the addresses in turn; each gets an equal share of the time that is left.
fn dial(addresses: &[SocketAddr], timeout: NextTimeout) -> Result<TcpStream, Error> {
    let deadline = deadline(timeout).min(Instant::now() + LONGEST_CONNECT);
    let mut last = Error::ConnectionFailed;
    for (tried, address) in addresses.iter().enumerate() {
        note(|progress| progress.peer = Some(*address));
        let Some(left) = left(deadline) else {
            return Err(Error::Timeout(timeout.reason));
        };
        let share = left / (addresses.len() - tried) as u32;
        match TcpStream::connect_timeout(address, share.max(SHORTEST_CONNECT)) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                last = Error::Timeout(Timeout::Connect);
            }
            Err(error) => last = Error::Io(error),
        }
    }
    Err(last)
}

/// A TCP connection whose every wait ends at the deadline of its call.
struct Socket {
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
}

impl Transport for Socket {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let deadline = deadline(timeout);
        let mut rest = &self.buffers.output()[..amount];
        let mut stream = &*self.stream;
        while !rest.is_empty() {
            // Anew for every write: a peer that takes a few bytes at a time gets no new time for each.
            let left = left(deadline).ok_or(Error::Timeout(timeout.reason))?;
            stream.set_write_timeout(Some(left))?;
            match stream.write(rest) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(sent) => rest = &rest[sent..],
                Err(error) => retry_or_fail(error)?,
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let deadline = deadline(timeout);
        let mut stream = &*self.stream;
        let room = self.buffers.input_append_buf();
        loop {
            let left = left(deadline).ok_or(Error::Timeout(timeout.reason))?;
            stream.set_read_timeout(Some(left))?;
            match stream.read(room) {
                Ok(amount) => {
                    self.buffers.input_appended(amount);
                    return Ok(amount > 0);
                }
                Err(error) => retry_or_fail(error)?,
            }
        }
    }

    fn is_open(&mut self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the descriptor is open as long as the stream lives, and one byte may be written to.
        let received = unsafe {
            libc::recv(self.stream.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT)
        };
        // Bytes that nobody asked for are as bad as an end.
        received < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }
}

/// Nothing for an error that the loop above meets with another look at the clock.
fn retry_or_fail(error: io::Error) -> Result<(), Error> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error.into()),
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

/// A connection as the agent sees it: above TLS, so that what is counted as received is HTTP.
pub struct Connection {
    inner: Box<dyn Transport>,
    names: Arc<Names>,
    host: String,
    peer: IpAddr,
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        note(|progress| progress.phase = Phase::Sending);
        self.inner.transmit_output(amount, timeout).map_err(watch)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        note(|progress| {
            if progress.phase != Phase::Receiving {
                progress.phase = Phase::Waiting;
            }
        });
        let size = {
            let buffers = self.inner.buffers();
            let waiting = buffers.input().len();
            if buffers.input_append_buf().is_empty() {
                return Err(Error::LargeResponseHeader(waiting, waiting));
            }
            waiting
        };
        let progressed = self.inner.await_input(timeout).map_err(watch)?;
        let received = self.inner.buffers().input().len() > size;
        note(|progress| {
            if received {
                progress.phase = Phase::Receiving;
            }
            progress.lost |= !progressed;
        });
        Ok(progressed)
    }

    fn is_open(&mut self) -> bool {
        self.names.permits(&self.host, self.peer) && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// Notes a lost connection, and hides its kind: the agent takes a reset for the end of a body that has
/// no length, and what was cut off would pass for whole.
fn watch(error: Error) -> Error {
    match error {
        Error::Io(error) if phase::is_lost(&error) => {
            note(|progress| progress.lost = true);
            Error::Io(io::Error::other(error.to_string()))
        }
        other => other,
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.peer)
    }
}
