//! One call on its way through the reactor.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use super::connection::Origin;
use super::exchange::Exchange;
use super::phase::{self, Phase, span};
use crate::http::Failure;
use crate::http::hosts::WorkerUrl;
use crate::transport::{FailureKind, Request};

/// A call that the reactor has.
pub struct Call {
    pub id: u64,
    pub request: Request,
    pub url: WorkerUrl,
    pub origin: Rc<Origin>,
    pub deadline: Instant,
    /// The entry in the table of timers.
    pub timer: Instant,
    /// When it first left the line.
    pub started: Option<Instant>,
    /// Not over an idle connection: one was lost already.
    pub needs_new: bool,
    pub place: Place,
}

/// Where it is.
pub enum Place {
    InLine {
        /// How far it got before it came here again.
        tried: Option<Phase>,
    },
    Resolving,
    Connecting {
        connection: usize,
        rest: VecDeque<SocketAddr>,
        until: Instant,
    },
    Handshaking {
        connection: usize,
    },
    Exchanging {
        connection: usize,
        /// The connection was made for this call.
        fresh: bool,
        phase: Phase,
        /// Empty once the whole request is sent.
        head: Vec<u8>,
        /// Of head and body together.
        sent: usize,
        exchange: Box<Exchange>,
    },
}

impl Call {
    pub fn connection(&self) -> Option<usize> {
        match &self.place {
            Place::InLine { .. } | Place::Resolving => None,
            Place::Connecting { connection, .. }
            | Place::Handshaking { connection }
            | Place::Exchanging { connection, .. } => Some(*connection),
        }
    }

    /// How far it is; none for one that has not begun.
    pub fn phase(&self) -> Option<Phase> {
        match &self.place {
            Place::InLine { tried } => *tried,
            Place::Resolving => Some(Phase::Resolving),
            Place::Connecting { .. } => Some(Phase::Connecting),
            Place::Handshaking { .. } => Some(Phase::Handshaking),
            Place::Exchanging { phase, .. } => Some(*phase),
        }
    }

    /// Its time is over.
    pub fn timed_out(&self, peer: Option<SocketAddr>) -> Failure {
        match self.phase() {
            Some(phase) => phase::timed_out(phase, &phase::target(&self.url, peer), self.request.timeout),
            None => {
                let time = span(self.request.timeout);
                let message = format!("not tried in {time}: no connection more could be opened");
                Failure::new(FailureKind::NotTried, message)
            }
        }
    }
}

/// Whether an error tells of a shortage of our own: nothing is known of the worker.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::ENOSPC | libc::EAGAIN)
    )
}
