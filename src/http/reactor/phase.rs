//! How far an attempt got, and what to tell about its end.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::http::Failure;
use crate::http::hosts::WorkerUrl;
use crate::transport::FailureKind;

/// However long a call may take, a worker that is there accepts it sooner.
pub const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// How far an attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Resolving,
    Connecting,
    Handshaking,
    Sending,
    Waiting,
    Receiving,
}

/// The worker as messages name it: with the address that was connected to, unless the URL has it.
pub fn target(url: &WorkerUrl, peer: Option<SocketAddr>) -> String {
    match peer {
        Some(peer) if peer.ip().to_string() != url.host => format!("{} ({})", url.authority(), peer.ip()),
        _ => url.authority(),
    }
}

/// The time of a call is over.
pub fn timed_out(phase: Phase, target: &str, timeout: Duration) -> Failure {
    let doing = match phase {
        Phase::Resolving => "looking up",
        Phase::Connecting => "connecting to",
        Phase::Handshaking => "agreeing on TLS with",
        Phase::Sending => "sending the request to",
        Phase::Waiting => "waiting for the answer of",
        Phase::Receiving => "receiving the answer of",
    };
    let (kind, time) = match phase {
        Phase::Connecting => (FailureKind::ConnectTimeout, timeout.min(LONGEST_CONNECT)),
        Phase::Resolving | Phase::Handshaking => (FailureKind::ConnectTimeout, timeout),
        Phase::Sending | Phase::Waiting | Phase::Receiving => (FailureKind::Timeout, timeout),
    };
    Failure::new(kind, format!("timed out after {} while {doing} {target}", span(time)))
}

/// The peer went away.
pub fn lost(phase: Phase, target: &str) -> Failure {
    let message = match phase {
        Phase::Receiving => format!("{target} closed the connection in the middle of its answer"),
        Phase::Sending => format!("{target} closed the connection while the request was sent"),
        _ => format!("{target} closed the connection without an answer"),
    };
    Failure::new(FailureKind::Transport, message)
}

/// There is no TLS with it.
pub fn no_tls(target: &str, reason: &str) -> Failure {
    Failure::new(FailureKind::Transport, format!("{target} and the engine could not agree on TLS: {reason}"))
}

/// No address accepted a connection.
pub fn not_connected(target: &str, reason: &str) -> Failure {
    Failure::new(FailureKind::Connect, format!("could not connect to {target}: {reason}"))
}

/// What came back is something else.
pub fn not_http(target: &str, reason: &dyn std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Transport, format!("the answer of {target} is not HTTP: {reason}"))
}

/// What a request is refused for may quote its headers: nothing of it is told.
pub fn unwritable(target: &str) -> Failure {
    Failure::new(FailureKind::Invalid, format!("the request to {target} can't be written"))
}

pub fn headers_too_large(target: &str, limit: usize) -> Failure {
    Failure::new(FailureKind::TooLarge, format!("the answer of {target} has headers larger than {limit} bytes"))
}

pub fn body_too_large(url: &WorkerUrl, limit: usize) -> Failure {
    Failure::new(FailureKind::TooLarge, format!("the answer of {} is larger than {limit} bytes", url.authority()))
}

/// Anything else.
pub fn failed(target: &str, reason: &str) -> Failure {
    Failure::new(FailureKind::Transport, format!("the call to {target} failed: {reason}"))
}

/// The reason of an error without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(_) => text[..text.find(" (os error").unwrap_or(text.len())].to_lowercase(),
        None => text,
    }
}

/// Whether the error says that the peer is gone.
pub fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// A duration as a person writes it.
pub fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
