//! One call in the reactor: its request, its deadline, and where it is.

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

/// A call that has not finished. Only the thread of the reactor uses it.
pub struct PendingCall {
    /// The call's number in the reactor. An index may be used again, a number is not.
    pub id: u64,
    pub request: Request,
    pub url: WorkerUrl,
    pub origin: Rc<Origin>,
    pub deadline: Instant,
    /// When the call's timer fires: its key in the table of timers.
    pub timer: Instant,
    /// When the call first left the line.
    pub started: Option<Instant>,
    /// An idle connection was lost: use a new connection.
    pub needs_new: bool,
    pub place: CallPlace,
}

/// Where a call is.
pub enum CallPlace {
    InLine {
        /// The phase that the call reached before it returned to the line.
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
        /// The rest of the head; empty once the whole request is sent.
        head: Vec<u8>,
        /// Bytes of head and body that were sent.
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

    /// The phase that the call has reached; None if it has not begun.
    pub fn phase(&self) -> Option<AttemptPhase> {
        match &self.place {
            CallPlace::InLine { tried } => *tried,
            CallPlace::Resolving => Some(AttemptPhase::Resolving),
            CallPlace::Connecting { .. } => Some(AttemptPhase::Connecting),
            CallPlace::Handshaking { .. } => Some(AttemptPhase::Handshaking),
            CallPlace::Exchanging { phase, .. } => Some(*phase),
        }
    }

    /// The failure of a call that timed out.
    pub fn timed_out(&self, peer: Option<SocketAddr>) -> HttpFailure {
        match self.phase() {
            Some(phase) => phase::timed_out(phase, &phase::target(&self.url, peer), self.request.timeout),
            None => {
                let time = span(self.request.timeout);
                let message = format!("timed out after {time} without being sent: the engine has no connection left");
                HttpFailure::new(FailureKind::NotTried, message)
            }
        }
    }
}

/// Whether an error means that this machine lacks resources. Such an error says nothing about the worker.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::ENOSPC | libc::EAGAIN)
    )
}
