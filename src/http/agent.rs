//! One call at a time, in the thread that makes it: from a request to an answer or to a failure that a person can read.

use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::{HeaderValue, Uri};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::{Agent, Error};

use super::hosts::{WorkerUrl, validate_url};
use super::phase::{self, Phase};
use super::request::{Outcome, Request, signature, validate_headers};
use super::resolver::Names;
use super::transport::{self, Dialer, Progress, progress, reset_progress};
use super::{Failure, FailureKind, HEADER_LIMIT, IDLE_AGE, MOST_ADDRESSES, TRUSTED_LENGTH};

/// The face that [`Names`] has for the agent.
struct AgentResolver(Arc<Names>);

impl Resolver for AgentResolver {
    fn resolve(&self, uri: &Uri, _config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().ok_or(Error::HostNotFound)?;
        let port = match (uri.port_u16(), uri.scheme_str()) {
            (Some(port), _) => port,
            (None, Some("https")) => 443,
            (None, _) => 80,
        };
        let deadline = transport::deadline(timeout);
        let addresses = self.0.resolve(host, deadline).map_err(|failure| Error::Other(Box::new(failure)))?;
        let mut resolved = self.empty();
        for address in addresses.into_iter().take(MOST_ADDRESSES) {
            resolved.push(SocketAddr::new(address, port));
        }
        Ok(resolved)
    }
}

impl fmt::Debug for AgentResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentResolver")
    }
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
            .input_buffer_size(HEADER_LIMIT)
            .output_buffer_size(HEADER_LIMIT)
            .max_response_header_size(HEADER_LIMIT)
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
    pub fn call(&self, agent: &Agent, call: &Request, deadline: Instant) -> Outcome {
        match self.try_call(agent, call, deadline) {
            Ok((status, body)) => Outcome::Answer { status, body },
            Err(failure) => failure.into(),
        }
    }

    fn try_call(&self, agent: &Agent, call: &Request, deadline: Instant) -> Result<(u16, Vec<u8>), Failure> {
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
            Problem::TooLarge(limit) => phase::body_too_large(&url, limit),
            Problem::Http(error) => describe(error, progress(), &url, call.timeout),
        })
    }

    fn attempt(
        &self,
        agent: &Agent,
        call: &Request,
        reuse: bool,
        deadline: Instant,
    ) -> Result<(u16, Vec<u8>), Problem> {
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
        if let Some(signature) = signature(call).map_err(Problem::Known)? {
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

fn lost_when_reused(progress: Progress) -> bool {
    progress.lost && !progress.fresh && progress.phase != Phase::Receiving
}

/// What to tell about an error of the agent.
fn describe(error: Error, progress: Progress, url: &WorkerUrl, timeout: Duration) -> Failure {
    let target = phase::target(url, progress.peer);
    let timed_out = || phase::timed_out(progress.phase, &target, timeout);
    match error {
        Error::Timeout(_) => timed_out(),
        Error::Other(inner) => match inner.downcast::<Failure>() {
            Ok(failure) if failure.kind == FailureKind::Timeout => timed_out(),
            Ok(failure) => *failure,
            Err(other) => phase::failed(&target, &other.to_string()),
        },
        Error::LargeResponseHeader(..) => phase::headers_too_large(&target, HEADER_LIMIT),
        Error::Protocol(_) | Error::Http(_) if !matches!(progress.phase, Phase::Waiting | Phase::Receiving) => {
            phase::unwritable(&target)
        }
        Error::Protocol(error) => phase::not_http(&target, &error),
        error if progress.phase == Phase::Handshaking => phase::no_tls(&target, &reason(error)),
        error if progress.phase == Phase::Connecting => phase::not_connected(&target, &reason(error)),
        _ if progress.lost => phase::lost(progress.phase, &target),
        error => phase::failed(&target, &reason(error)),
    }
}

/// The reason without the layers that it came through.
fn reason(error: Error) -> String {
    match error {
        Error::Io(error) => phase::reason(&error),
        Error::Rustls(error) => error.to_string(),
        error => error.to_string(),
    }
}
