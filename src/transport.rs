//! The interface to a transport, which carries calls to workers: a [`Request`] goes in, and one [`Reply`] comes out.
//!
//! The code that makes calls and the transports know these values, and not each other. A transport takes requests
//! without waiting. It gives back exactly one reply for each request, also after a failure. The scheduler's loop and a
//! session's RPC code each choose their transport.

use std::sync::Arc;
use std::time::Duration;

/// A call to a worker. The code that makes the call writes it, and the transport reads it.
#[derive(Clone)]
pub struct Request {
    /// Chosen by the caller. The reply has the same tag.
    pub tag: u64,
    /// The URL of the worker with the path of the call.
    pub url: String,
    /// Headers of the request: name and value. A transport adds those of its protocol.
    pub headers: Vec<(String, String)>,
    /// JSON text.
    pub body: Vec<u8>,
    /// Time limit from the submission to the last byte of the answer.
    pub timeout: Duration,
    /// Each secret adds a signature to the request, which then needs an `Idempotency-Key` among its headers. Empty: the
    /// request is not signed.
    pub secrets: Arc<[String]>,
}

/// The end of a call. The transport writes it, and the code that made the call reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The tag of the request.
    pub tag: u64,
    /// The answer, or why there is none.
    pub outcome: CallOutcome,
    /// Time since the transport began the call. Zero if it never began.
    pub elapsed: Duration,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The worker answered, with any status.
    Answer {
        /// The HTTP status. 200 means success.
        status: u16,
        /// Seconds that the worker asks callers to wait.
        retry_after: Option<u64>,
        /// The whole body.
        body: Vec<u8>,
    },
    /// There is no answer.
    Failed {
        /// The kind of failure, for code.
        kind: FailureKind,
        /// The failure in words, for people. Never contains header values or secrets.
        message: String,
    },
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The address, a header or the secret is invalid. Retries fail too until it is changed.
    Invalid,
    /// The setting `xdb.allowed_worker_hosts` does not allow the name or its address.
    Refused,
    /// The name was not found, or no address of it accepted a connection.
    Connect,
    /// The timeout passed before there was a connection.
    ConnectTimeout,
    /// The timeout passed after the connection was made, or before an attempt could begin.
    Timeout,
    /// The answer is larger than the limit.
    TooLarge,
    /// The answer has a `Content-Encoding`. The engine reads only plain answers.
    Encoded,
    /// The connection broke, or the bytes received are not a valid answer.
    Transport,
    /// The engine lacked a resource of its own, for instance descriptors, until the timeout. The worker did not receive
    /// the call, so this failure says nothing about the worker.
    NotTried,
    /// The code that made the call cancelled it, and its connection was closed.
    Cancelled,
    /// The code that carries the call panicked.
    Panic,
}
