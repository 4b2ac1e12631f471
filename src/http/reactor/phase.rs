//! How far an attempt got, and the message about its failure.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ureq_proto::Error;

use crate::http::hosts::WorkerUrl;
use crate::http::{HEADER_LIMIT, HttpFailure};
use crate::transport::FailureKind;

/// Longest time to connect, even if the call has a longer timeout. A running worker accepts connections sooner.
pub const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// How far an attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptPhase {
    Resolving,
    Connecting,
    Handshaking,
    Sending,
    Waiting,
    Receiving,
}

/// Why an attempt ended without an answer.
pub enum Problem {
    Known(HttpFailure),
    Io(io::Error),
    NotHttp(Error),
    HeadersTooLarge,
    BodyTooLarge(usize),
    /// The body is encoded, according to `Content-Encoding`, although requests accept no encoding.
    Encoded(String),
    /// The connection ended in the middle of the answer.
    Lost,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem::NotHttp(error)
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Problem::Io(error)
    }
}

impl Problem {
    /// Whether the connection was lost.
    pub fn is_lost(&self) -> bool {
        match self {
            Problem::Io(error) => is_lost(error),
            problem => matches!(problem, Problem::Lost),
        }
    }

    /// The failure with its message.
    pub fn failure(self, phase: AttemptPhase, target: &str, url: &WorkerUrl) -> HttpFailure {
        use FailureKind::{TooLarge, Transport};
        let is_lost = self.is_lost();
        let (kind, message) = match self {
            Problem::Known(failure) => return failure,
            Problem::NotHttp(error) => (Transport, format!("the answer of {target} is not HTTP: {error}")),
            Problem::HeadersTooLarge => {
                (TooLarge, format!("the answer of {target} has headers larger than {HEADER_LIMIT} bytes"))
            }
            Problem::BodyTooLarge(limit) => {
                (TooLarge, format!("the answer of {} is larger than {limit} bytes", url.authority()))
            }
            Problem::Encoded(encoding) => {
                let what = "the engine reads only uncompressed answers";
                let whose = "the worker, or a proxy before it, must not compress them";
                (
                    FailureKind::Encoded,
                    format!("the answer of {target} has Content-Encoding {encoding}: {what}; {whose}"),
                )
            }
            Problem::Io(error) if phase == AttemptPhase::Handshaking => {
                (Transport, format!("{target} and the engine could not agree on TLS: {}", reason(&error)))
            }
            Problem::Io(error) if !is_lost => (Transport, format!("the call to {target} failed: {}", reason(&error))),
            Problem::Io(_) | Problem::Lost => {
                let when = match phase {
                    AttemptPhase::Receiving => "in the middle of its answer",
                    AttemptPhase::Sending => "while the request was sent",
                    _ => "without an answer",
                };
                (Transport, format!("{target} closed the connection {when}"))
            }
        };
        HttpFailure::new(kind, message)
    }
}

/// The worker's name in messages: with the address of the connection, unless the URL contains it.
pub fn target(url: &WorkerUrl, peer: Option<SocketAddr>) -> String {
    match peer {
        Some(peer) if peer.ip().to_string() != url.host => format!("{} ({})", url.authority(), peer.ip()),
        _ => url.authority(),
    }
}

/// The failure of a call that timed out in this phase.
pub fn timed_out(phase: AttemptPhase, target: &str, timeout: Duration) -> HttpFailure {
    let doing = match phase {
        AttemptPhase::Resolving => "looking up",
        AttemptPhase::Connecting => "connecting to",
        AttemptPhase::Handshaking => "agreeing on TLS with",
        AttemptPhase::Sending => "sending the request to",
        AttemptPhase::Waiting => "waiting for the answer of",
        AttemptPhase::Receiving => "receiving the answer of",
    };
    let (kind, time) = match phase {
        AttemptPhase::Connecting => (FailureKind::ConnectTimeout, timeout.min(LONGEST_CONNECT)),
        AttemptPhase::Resolving | AttemptPhase::Handshaking => (FailureKind::ConnectTimeout, timeout),
        AttemptPhase::Sending | AttemptPhase::Waiting | AttemptPhase::Receiving => (FailureKind::Timeout, timeout),
    };
    HttpFailure::new(kind, format!("timed out after {} while {doing} {target}", span(time)))
}

/// The failure of a call whose worker accepted no connection.
pub fn not_connected(target: &str, reason: &str) -> HttpFailure {
    HttpFailure::new(FailureKind::Connect, format!("could not connect to {target}: {reason}"))
}

/// The text of an error without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(_) => text[..text.find(" (os error").unwrap_or(text.len())].to_lowercase(),
        None => text,
    }
}

/// Whether the error means that the connection was lost.
pub fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// A duration for a message.
pub fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
