//! One call on its way through the reactor.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use super::connection::Origin;
use super::exchange::Exchange;
use super::phase::{self, AttemptPhase, span};
use crate::http::HttpFailure;
use crate::http::hosts::WorkerUrl;
use crate::transport::{FailureKind, Request};

/// A call that the reactor has.
pub struct PendingCall {
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
    pub place: CallPlace,
}

/// Where it is.
pub enum CallPlace {
    InLine {
        /// How far it got before it came here again.
        tried: Option<AttemptPhase>,
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
        phase: AttemptPhase,
        /// Empty once the whole request is sent.
        head: Vec<u8>,
        /// Of head and body together.
        sent: usize,
        exchange: Box<Exchange>,
    },
}

impl PendingCall {
    pub fn connection(&self) -> Option<usize> {
        match &self.place {
            CallPlace::InLine { .. } | CallPlace::Resolving => None,
            CallPlace::Connecting { connection, .. }
            | CallPlace::Handshaking { connection }
            | CallPlace::Exchanging { connection, .. } => Some(*connection),
        }
    }

    /// How far it is; none for one that has not begun.
    pub fn phase(&self) -> Option<AttemptPhase> {
        match &self.place {
            CallPlace::InLine { tried } => *tried,
            CallPlace::Resolving => Some(AttemptPhase::Resolving),
            CallPlace::Connecting { .. } => Some(AttemptPhase::Connecting),
            CallPlace::Handshaking { .. } => Some(AttemptPhase::Handshaking),
            CallPlace::Exchanging { phase, .. } => Some(*phase),
        }
    }

    /// Its time is over.
    pub fn timed_out(&self, peer: Option<SocketAddr>) -> HttpFailure {
        match self.phase() {
            Some(phase) => phase::timed_out(phase, &phase::target(&self.url, peer), self.request.timeout),
            None => {
                let time = span(self.request.timeout);
                let message = format!("not tried in {time}: no connection more could be opened");
                HttpFailure::new(FailureKind::NotTried, message)
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
