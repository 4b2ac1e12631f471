//! A connection to a worker. It never blocks.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// Reads on one connection before other connections get their turn.
pub const READS: usize = 4;

/// Calls with the same origin may share connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The number of the TLS trust; None without TLS.
    pub trust: Option<u64>,
    pub host: String,
    pub port: u16,
}

/// One socket, with TLS if the URL says so.
///
/// The system reports each change once. So the connection stores whether data may be waiting.
pub struct Connection {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    pub origin: Rc<Origin>,
    pub peer: SocketAddr,
    /// The call that uses the connection; None while it is idle.
    pub call: Option<usize>,
    /// None while a call uses the connection.
    pub idle_since: Option<Instant>,
    /// There may be data to read.
    pub readable: bool,
    /// The peer has closed its side.
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

    /// Whether the connection is established. An error if it has failed.
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

    /// Continues the handshake; `WouldBlock` until it is complete.
    pub fn handshake(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        // `complete_io` may return Ok before the handshake is complete.
        while tls.is_handshaking() {
            tls.complete_io(&mut self.stream)?;
        }
        Ok(())
    }

    /// Writes a part of both slices. `WouldBlock` if nothing can be written now.
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        // TLS accepts nothing more once its buffer is full, so the buffer is sent first.
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

    /// Sends the buffer of TLS. `WouldBlock` if the system does not accept all of it now.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            uninterrupted(|| tls.write_tls(&mut self.stream))?;
        }
        Ok(())
    }

    /// Reads some bytes; zero is an orderly end. `WouldBlock`: no data now. `Interrupted`: TLS has read messages of its
    /// own, and more data may follow. A peer can send such messages without end.
    pub fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let result = match &mut self.tls {
            None => uninterrupted(|| self.stream.read(space)),
            Some(tls) => read_tls(tls, &mut self.stream, space),
        };
        match &result {
            // If the peer has hung up, reading continues until the end.
            Ok(amount) if self.tls.is_none() && *amount < space.len() && !self.hung_up => self.readable = false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            _ => {}
        }
        result
    }

    /// Whether an idle connection can be used again. Unexpected bytes rule it out, like an end.
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
