//! The seam to whatever carries calls to workers: a [`Request`] goes in, and one [`Reply`] comes out.
//!
//! Who makes a call and who carries it know these values, and not each other. A transport takes requests without waiting for
//! them, and gives back each of them once, whatever happens to it. It is chosen where it is made: in the scheduler's loop, and
//! in a session's RPCs.

use std::sync::Arc;
use std::time::Duration;

/// A call to a worker.
#[derive(Clone)]
pub struct Request {
    /// Given back with what came of it.
    pub tag: u64,
    /// The URL of the worker with the path of the call.
    pub url: String,
    /// What goes with the body, by name. A transport adds what it needs itself.
    pub headers: Vec<(String, String)>,
    /// JSON.
    pub body: Vec<u8>,
    /// For everything from the submission to the last byte of the answer.
    pub timeout: Duration,
    /// Each signs the request, which then needs an `Idempotency-Key` among its headers. None: it is not signed.
    pub secrets: Arc<[String]>,
}

/// A call that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The tag of the request.
    pub tag: u64,
    /// What came of it.
    pub outcome: Outcome,
    /// From the moment that the call was taken up; zero for one that never was.
    pub elapsed: Duration,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The worker answered, with whatever status.
    Answer {
        /// One of the worker protocol, as the worker gives it: 200 is success.
        status: u16,
        /// Seconds that the worker wants callers to wait.
        retry_after: Option<u64>,
        /// The whole body.
        body: Vec<u8>,
    },
    /// There is no answer.
    Failed {
        /// For a program.
        kind: FailureKind,
        /// For a person. Never holds header values or secrets.
        message: String,
    },
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The address, a header or the secret can't be used: no attempt will be better until it is changed.
    Invalid,
    /// The name or its address is not permitted by the setting.
    Refused,
    /// The name was not found, or no address of it accepted a connection.
    Connect,
    /// The time of the call was over before there was a connection.
    ConnectTimeout,
    /// The time of the call was over after it was connected, or before there was any to try it in.
    Timeout,
    /// The answer is larger than the limit.
    TooLarge,
    /// The answer has a `Content-Encoding`, which the engine does not read.
    Encoded,
    /// The connection broke, or what came back is no answer.
    Transport,
    /// The engine was short of something of its own, such as descriptors, until the time of the call was over.
    /// The worker has never heard of it, and nothing is known of the worker.
    NotTried,
    /// Who had made the call has no use for it any more: its connection was closed.
    Cancelled,
    /// The code of the call panicked.
    Panic,
}
