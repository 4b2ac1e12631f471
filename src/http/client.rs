//! One call over HTTP: from a request to an answer or to a failure that a person can read.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ureq::config::Config;
use ureq::http::{HeaderName, HeaderValue};
use ureq::{Agent, Error};

use super::hosts::{WorkerUrl, validate_url};
use super::resolver::{AgentResolver, Names};
use super::signature::sign;
use super::transport::{Dialer, LONGEST_CONNECT, Phase, Progress, progress, reset_progress};
use super::{Failure, FailureKind, span};

/// Below the five seconds after which common servers close what is idle.
const IDLE_AGE: Duration = Duration::from_secs(4);
/// Two of these per connection, also of the idle ones. The headers of an answer, and each header of a
/// request, must fit into one.
const BUFFER: usize = 16 * 1024;
/// What is reserved for an answer that announces its size; more only when it arrives.
const TRUSTED_LENGTH: u64 = 64 * 1024;
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
pub struct Call {
    /// Given back with what came of it.
    pub tag: u64,
    /// The URL of the worker with the path of the call.
    pub url: String,
    /// Further headers; `Content-Type` and the signature are added.
    pub headers: Vec<(String, String)>,
    /// JSON.
    pub body: Vec<u8>,
    /// For everything from the hand-over to a thread to the last byte of the answer.
    pub timeout: Duration,
    /// Signs the request, which then needs an `Idempotency-Key` among its headers.
    pub secret: Option<String>,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The worker answered, with whatever status.
    Answer {
        /// The HTTP status; a redirect is not followed.
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
        if name.len() + value.len() + 4 > BUFFER {
            return Err(format!("the header \"{name}\" is larger than {BUFFER} bytes"));
        }
    }
    Ok(())
}

/// Makes calls; any number of threads at a time.
pub struct Client {
    config: Config,
    names: Arc<Names>,
    max_response_bytes: AtomicUsize,
}

impl Client {
    pub fn new(names: Arc<Names>, user_agent: &str, connections: usize, max_response_bytes: usize) -> io::Result<Self> {
        // The agent would panic over it, in every call.
        if HeaderValue::from_str(user_agent).is_err() {
            let message = "the user agent holds characters that no header can hold";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Or else what is in the environment of the server would be asked.
            .proxy(None)
            .user_agent(user_agent)
            .accept("application/json")
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .max_idle_age(IDLE_AGE)
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER)
            .max_response_header_size(BUFFER)
            .build();
        Ok(Client { config, names, max_response_bytes: AtomicUsize::new(max_response_bytes) })
    }

    /// A new set of connections. What is shut down is the agent: it ends all of its calls, and makes no
    /// others.
    pub fn agent(&self) -> Agent {
        let dialer = Dialer::new(self.names.clone());
        let resolver = AgentResolver(self.names.clone());
        Agent::with_parts(self.config.clone(), dialer, resolver)
    }

    pub fn set_max_response_bytes(&self, bytes: usize) {
        self.max_response_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Makes the call, to be over at `deadline`.
    pub fn call(&self, agent: &Agent, call: &Call, deadline: Instant) -> Outcome {
        match self.try_call(agent, call, deadline) {
            Ok((status, body)) => Outcome::Answer { status, body },
            Err(failure) => failure.into(),
        }
    }

    fn try_call(&self, agent: &Agent, call: &Call, deadline: Instant) -> Result<(u16, Vec<u8>), Failure> {
        let invalid = |message| Failure::new(FailureKind::Invalid, message);
        let url = validate_url(&call.url).map_err(invalid)?;
        validate_headers(&call.headers).map_err(invalid)?;
        let attempt = |reuse| {
            reset_progress();
            self.attempt(agent, call, reuse, deadline)
        };
        let result = match attempt(true) {
            // A server may close a connection that was kept alive at the very moment that it is used
            // again. As not a byte of an answer came, the request is sent once more, over a connection
            // that is new; should the worker have done the work all the same, it knows the request by
            // its idempotency key.
            Err(Problem::Http(_)) if lost_when_reused(progress()) => attempt(false),
            result => result,
        };
        result.map_err(|problem| match problem {
            Problem::Known(failure) => failure,
            Problem::TooLarge(limit) => Failure::new(
                FailureKind::TooLarge,
                format!("the answer of {} is larger than {limit} bytes", url.authority()),
            ),
            Problem::Http(error) => describe(error, progress(), &url, call.timeout),
        })
    }

    fn attempt(&self, agent: &Agent, call: &Call, reuse: bool, deadline: Instant) -> Result<(u16, Vec<u8>), Problem> {
        let left = deadline
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
            .ok_or(Problem::Http(Error::Timeout(ureq::Timeout::Global)))?;
        let mut request = agent
            .post(&call.url)
            .config()
            .timeout_global(Some(left))
            .max_idle_age(if reuse { IDLE_AGE } else { Duration::ZERO })
            .build()
            .header("content-type", "application/json");
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        if let Some(secret) = &call.secret {
            let signature = signature(secret, call)?;
            request = request
                .header("webhook-id", signature.id)
                .header("webhook-timestamp", signature.timestamp)
                .header("webhook-signature", signature.signature);
        }
        let response = request.send(call.body.as_slice())?;

        let status = response.status().as_u16();
        let limit = self.max_response_bytes.load(Ordering::Relaxed);
        let mut body = response.into_body();
        let announced = body.content_length().unwrap_or(0);
        if announced > limit as u64 {
            return Err(Problem::TooLarge(limit));
        }
        let mut answer = Vec::with_capacity(announced.min(TRUSTED_LENGTH) as usize);
        // One byte more than permitted tells what is too large from what just fits.
        body.as_reader().take((limit as u64).saturating_add(1)).read_to_end(&mut answer).map_err(Error::from)?;
        if answer.len() > limit {
            return Err(Problem::TooLarge(limit));
        }
        Ok((status, answer))
    }
}

enum Problem {
    Http(Error),
    TooLarge(usize),
    Known(Failure),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem::Http(error)
    }
}

fn signature(secret: &str, call: &Call) -> Result<super::Signature, Problem> {
    let id = call
        .headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY))
        .map(|(_, value)| value.as_str())
        .ok_or_else(|| "a request without an Idempotency-Key can't be signed".to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| "the clock stands before 1970".to_owned());
    id.and_then(|id| sign(secret, id, now?.as_secs(), &call.body))
        .map_err(|message| Problem::Known(Failure::new(FailureKind::Invalid, message)))
}

fn lost_when_reused(progress: Progress) -> bool {
    progress.lost && !progress.fresh && progress.phase != Phase::Receiving
}

/// What to tell about an error of the agent.
fn describe(error: Error, progress: Progress, url: &WorkerUrl, timeout: Duration) -> Failure {
    let target = match progress.peer {
        Some(peer) if peer.ip().to_string() != url.host => {
            format!("{} ({})", url.authority(), peer.ip())
        }
        _ => url.authority(),
    };
    let timed_out = || {
        let doing = match progress.phase {
            Phase::Resolving => "looking up",
            Phase::Connecting => "connecting to",
            Phase::Handshaking => "agreeing on TLS with",
            Phase::Sending => "sending the request to",
            Phase::Waiting => "waiting for the answer of",
            Phase::Receiving => "receiving the answer of",
        };
        let (kind, time) = match progress.phase {
            Phase::Connecting => (FailureKind::ConnectTimeout, timeout.min(LONGEST_CONNECT)),
            Phase::Resolving | Phase::Handshaking => (FailureKind::ConnectTimeout, timeout),
            Phase::Sending | Phase::Waiting | Phase::Receiving => (FailureKind::Timeout, timeout),
        };
        Failure::new(kind, format!("timed out after {} while {doing} {target}", span(time)))
    };
    let transport = |message| Failure::new(FailureKind::Transport, message);
    match error {
        Error::Timeout(_) => timed_out(),
        Error::Other(inner) => match inner.downcast::<Failure>() {
            Ok(failure) if failure.kind == FailureKind::Timeout => timed_out(),
            Ok(failure) => *failure,
            Err(other) => transport(format!("the call to {target} failed: {other}")),
        },
        Error::LargeResponseHeader(..) => Failure::new(
            FailureKind::TooLarge,
            format!("the answer of {target} has headers larger than {BUFFER} bytes"),
        ),
        // What a request is refused for may quote its headers.
        Error::Protocol(_) | Error::Http(_) if !matches!(progress.phase, Phase::Waiting | Phase::Receiving) => {
            Failure::new(FailureKind::Invalid, format!("the request to {target} can't be written"))
        }
        Error::Protocol(error) => transport(format!("the answer of {target} is not HTTP: {error}")),
        error if progress.phase == Phase::Handshaking => {
            transport(format!("{target} and the engine could not agree on TLS: {}", reason(error)))
        }
        error if progress.phase == Phase::Connecting => {
            Failure::new(FailureKind::Connect, format!("could not connect to {target}: {}", reason(error)))
        }
        _ if progress.lost => transport(match progress.phase {
            Phase::Receiving => {
                format!("{target} closed the connection in the middle of its answer")
            }
            Phase::Sending => format!("{target} closed the connection while the request was sent"),
            _ => format!("{target} closed the connection without an answer"),
        }),
        error => transport(format!("the call to {target} failed: {}", reason(error))),
    }
}

/// The reason without the layers that it came through.
fn reason(error: Error) -> String {
    match error {
        Error::Io(error) if error.raw_os_error().is_some() => {
            let text = error.to_string();
            let end = text.find(" (os error").unwrap_or(text.len());
            text[..end].to_lowercase()
        }
        Error::Io(error) => error.to_string(),
        Error::Rustls(error) => error.to_string(),
        error => error.to_string(),
    }
}
