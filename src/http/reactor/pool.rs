//! The connections of a reactor: how many there are, and which are idle.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use slab::Slab;

use super::connection::{Connection, Origin};
use crate::http::resolver::Names;

/// An idle connection is closed after this time. Common servers close theirs after five seconds, so this is shorter.
const IDLE_AGE: Duration = Duration::from_secs(4);

/// The token for events of connection `index`.
pub fn token(index: usize) -> Token {
    Token(index + 1)
}

/// The reverse of [`token`]; None for the waker's token.
pub fn index(token: Token) -> Option<usize> {
    token.0.checked_sub(1)
}

/// All connections of a reactor. Used by the reactor's thread only.
pub struct Pool<'a> {
    all: Slab<Connection>,
    /// Idle connections by origin, the last used at the end.
    idle: HashMap<Rc<Origin>, Vec<usize>>,
    /// When connections became idle, oldest first. Entries of connections used since are skipped.
    order: VecDeque<(Instant, usize)>,
    registry: &'a Registry,
}

impl<'a> Pool<'a> {
    pub fn new(registry: &'a Registry) -> Self {
        Pool { all: Slab::new(), idle: HashMap::new(), order: VecDeque::new(), registry }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&mut self, index: usize) -> Option<&mut Connection> {
        self.all.get_mut(index)
    }

    /// Whether there is a connection to this address.
    pub fn leads_to(&self, address: SocketAddr) -> bool {
        self.all.iter().any(|(_, connection)| connection.peer == address)
    }

    /// Adds a new connection that is not established yet.
    pub fn add(
        &mut self,
        mut stream: TcpStream,
        origin: Rc<Origin>,
        peer: SocketAddr,
        call: usize,
    ) -> io::Result<usize> {
        let entry = self.all.vacant_entry();
        let index = entry.key();
        self.registry.register(&mut stream, token(index), Interest::READABLE | Interest::WRITABLE)?;
        entry.insert(Connection::new(stream, origin, peer, call));
        Ok(index)
    }

    pub fn close(&mut self, index: usize) {
        let Some(mut connection) = self.all.try_remove(index) else { return };
        if connection.idle_since.is_some() {
            self.forget_idle(&connection.origin, index);
        }
        // Closing deregisters too, but only when no copy of the descriptor is left.
        let _ = self.registry.deregister(connection.stream());
    }

    fn forget_idle(&mut self, origin: &Rc<Origin>, index: usize) {
        if let Some(idle) = self.idle.get_mut(origin) {
            idle.retain(|other| *other != index);
            if idle.is_empty() {
                self.idle.remove(origin);
            }
        }
    }

    /// An idle connection that is open and still permitted. Other idle connections of the origin are closed on the way.
    pub fn take_idle(&mut self, origin: &Rc<Origin>, names: &Names, now: Instant, space: &mut [u8]) -> Option<usize> {
        loop {
            let index = *self.idle.get(origin)?.last()?;
            let connection = self.all.get_mut(index)?;
            let fresh = connection.idle_since.is_some_and(|since| now.duration_since(since) < IDLE_AGE);
            if fresh && names.check(&origin.host, connection.peer).is_ok() && connection.is_quiet(space) {
                connection.idle_since = None;
                self.forget_idle(origin, index);
                return Some(index);
            }
            self.close(index);
        }
    }

    /// The call is over: keeps its connection for another call.
    pub fn keep(&mut self, index: usize, now: Instant) {
        let Some(connection) = self.all.get_mut(index) else { return };
        if connection.hung_up {
            return self.close(index);
        }
        connection.call = None;
        connection.idle_since = Some(now);
        let origin = connection.origin.clone();
        self.idle.entry(origin).or_default().push(index);
        self.order.push_back((now, index));
    }

    /// The connection that has been idle longest, and since when.
    fn oldest_idle(&mut self) -> Option<(Instant, usize)> {
        while let Some((since, index)) = self.order.front().copied() {
            if self.all.get(index).is_some_and(|connection| connection.idle_since == Some(since)) {
                return Some((since, index));
            }
            self.order.pop_front();
        }
        None
    }

    /// When the next idle connection is to be closed.
    pub fn next_expiry(&mut self) -> Option<Instant> {
        self.oldest_idle().map(|(since, _)| since + IDLE_AGE)
    }

    /// Closes connections that were idle for too long.
    pub fn close_expired(&mut self, now: Instant) {
        while let Some((since, index)) = self.oldest_idle()
            && since + IDLE_AGE <= now
        {
            self.close(index);
        }
    }

    /// Closes the connection that has been idle longest. Returns whether there was one.
    pub fn close_oldest_idle(&mut self) -> bool {
        let oldest = self.oldest_idle();
        oldest.into_iter().for_each(|(_, index)| self.close(index));
        oldest.is_some()
    }
}
