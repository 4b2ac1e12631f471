//! What goes in and what comes out: a request to a worker, and the reply that ends it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ureq_proto::http::{HeaderName, HeaderValue};

use super::signature::{Signature, check_secret, sign};
use super::{Failure, FailureKind, HEADER_LIMIT};

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The headers that make up the message itself, and those of the signature.
const RESERVED: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// A request to a worker.
#[derive(Clone)]
pub struct Request {
    /// Given back with what came of it.
    pub tag: u64,
    /// The URL of the worker with the path of the call.
    pub url: String,
    /// Further headers; `Content-Type` and the signature are added.
    pub headers: Vec<(String, String)>,
    /// JSON.
    pub body: Vec<u8>,
    /// For everything from the submission to the last byte of the answer.
    pub timeout: Duration,
    /// Signs the request, which then needs an `Idempotency-Key` among its headers.
    pub secret: Option<String>,
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
        /// The status as the worker gives it; a redirect is not followed.
        status: u16,
        /// The whole body.
        body: Vec<u8>,
    },
    /// There is no answer.
    Failed {
        /// For a program.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
}

impl From<Failure> for Outcome {
    fn from(Failure { kind, message }: Failure) -> Self {
        Outcome::Failed { kind, message }
    }
}

/// Whether the headers can be sent; to be asked when a worker is registered. Messages name headers, and
/// never hold a value.
pub fn validate_headers(headers: &[(String, String)]) -> Result<(), String> {
    for (name, value) in headers {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(format!("{name:?} is no name of a header"));
        }
        if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!("the header \"{name}\" is set by the engine alone"));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(format!("the header \"{name}\" holds characters that no header can hold"));
        }
        if name.len() + value.len() + 4 > HEADER_LIMIT {
            return Err(format!("the header \"{name}\" is larger than {HEADER_LIMIT} bytes"));
        }
    }
    Ok(())
}

const UNNAMED: &str = "a request without an Idempotency-Key can't be signed";

/// Whether a request can be signed, if it is to be; before anybody connects for it.
pub fn check_signable(request: &Request) -> Result<(), String> {
    let Some(secret) = &request.secret else { return Ok(()) };
    idempotency_key(request).ok_or(UNNAMED)?;
    check_secret(secret)
}

fn idempotency_key(request: &Request) -> Option<&str> {
    let mut headers = request.headers.iter();
    headers.find(|(name, _)| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY)).map(|(_, value)| value.as_str())
}

/// The signature of a request at this moment, if it is to be signed.
pub fn signature(request: &Request) -> Result<Option<Signature>, Failure> {
    let Some(secret) = &request.secret else { return Ok(None) };
    let id = idempotency_key(request).ok_or_else(|| UNNAMED.to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| "the clock stands before 1970".to_owned());
    id.and_then(|id| sign(secret, id, now?.as_secs(), &request.body))
        .map(Some)
        .map_err(|message| Failure::new(FailureKind::Invalid, message))
}
