//! A connection to a worker that never blocks.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// Reads of one connection before it is another one's turn.
pub const READS: usize = 16;

/// What connections are shared by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The number of the trust over TLS; none without TLS.
    pub trust: Option<u64>,
    pub host: String,
    pub port: u16,
}

/// One socket, with TLS where the URL wants it.
///
/// Its events come once for each change, so whether there may be something to read is kept here.
pub struct Connection {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    pub origin: Rc<Origin>,
    pub peer: SocketAddr,
    /// The call that has it; none while it is idle.
    pub call: Option<usize>,
    pub idle_since: Option<Instant>,
    /// There may be something to read.
    pub readable: bool,
    /// The peer has ended its side.
    pub hung_up: bool,
}

impl Connection {
    pub fn new(stream: TcpStream, origin: Rc<Origin>, peer: SocketAddr, call: usize) -> Self {
        Connection {
            stream,
            tls: None,
            origin,
            peer,
            call: Some(call),
            idle_since: None,
            readable: false,
            hung_up: false,
        }
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Whether the connection stands; an error if it never will.
    pub fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn begin_tls(&mut self, config: Arc<ClientConfig>) -> io::Result<()> {
        let name = ServerName::try_from(self.origin.host.clone()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Goes on with the handshake; `WouldBlock` until it is done.
    pub fn handshake(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        // A part of what the peer says is taken in without an error, although there is more to come.
        while tls.is_handshaking() {
            tls.complete_io(&mut self.stream)?;
        }
        Ok(())
    }

    /// Writes some of what these parts have together. `WouldBlock` when nothing can be written now.
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        // What TLS has kept back may be as much as it takes: it would take nothing more.
        self.flush()?;
        let Some(tls) = &mut self.tls else {
            return uninterrupted(|| self.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]));
        };
        let written = tls.writer().write_vectored(&[IoSlice::new(first), IoSlice::new(second)])?;
        match self.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && written > 0 => Ok(written),
            Err(error) => Err(error),
            Ok(()) => Ok(written),
        }
    }

    /// Hands what TLS has kept back to the system; `WouldBlock` when it does not take all of it now.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            uninterrupted(|| tls.write_tls(&mut self.stream))?;
        }
        Ok(())
    }

    /// Reads some; nothing is the orderly end. `WouldBlock` when there is nothing now, `Interrupted` when there may be
    /// more behind what only TLS is concerned with, of which a peer can send without end.
    pub fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let result = match &mut self.tls {
            None => uninterrupted(|| self.stream.read(space)),
            Some(tls) => read_tls(tls, &mut self.stream, space),
        };
        match &result {
            // What came together with an end is read up to the end.
            Ok(amount) if self.tls.is_none() && *amount < space.len() && !self.hung_up => self.readable = false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            _ => {}
        }
        result
    }

    /// Whether an idle connection can be used again. Bytes that nobody asked for are as bad as an end.
    pub fn is_quiet(&mut self, space: &mut [u8]) -> bool {
        for _ in 0..READS {
            match self.read(space) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            }
        }
        false
    }
}

fn read_tls(tls: &mut ClientConnection, stream: &mut TcpStream, space: &mut [u8]) -> io::Result<usize> {
    match tls.reader().read(space) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        result => return result,
    }
    uninterrupted(|| tls.read_tls(stream))?;
    tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    match tls.reader().read(space) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::Interrupted.into()),
        result => result,
    }
}

fn uninterrupted<T>(mut body: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match body() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
