//! A request and its answer as bytes, without a socket.

use std::mem;
use std::time::{SystemTime, UNIX_EPOCH};

use ureq_proto::client::state::{RecvBody, RecvResponse};
use ureq_proto::client::{Call, RecvBodyResult, RecvResponseResult, SendRequestResult};
use ureq_proto::http::{HeaderValue, StatusCode, header};
use ureq_proto::{BodyMode, Error, http};

use super::phase::Problem;
use crate::http::hosts::WorkerUrl;
use crate::http::signature::signature;
use crate::http::{HEADER_LIMIT, HttpFailure};
use crate::transport::{FailureKind, Request};
use xdb_protocol::retry_after_seconds;

/// What is reserved for an answer that announces its size; more only when it arrives.
const TRUSTED_LENGTH: u64 = 64 * 1024;
const USER_AGENT: &str = concat!("xdb/", env!("CARGO_PKG_VERSION"));

/// The answer to one request, as far as it has come.
pub struct Exchange {
    state: ReceiveState,
    /// Received, but not yet enough to be made sense of.
    pending: Vec<u8>,
    /// How the body of an answer that is no success is encoded: it is not read.
    unread: Option<String>,
}

enum ReceiveState {
    Head(Call<RecvResponse>),
    Body {
        call: Call<RecvBody>,
        status: Status,
        body: Vec<u8>,
        limit: usize,
        /// Only the end of the connection ends it.
        until_close: bool,
    },
    /// The answer has no body.
    Empty {
        status: Status,
        close: bool,
    },
    /// Nothing more can come of it.
    Over,
}

/// What counts of the head of an answer.
#[derive(Clone, Copy)]
pub struct Status {
    pub code: u16,
    /// The seconds that `Retry-After` asks for.
    pub retry_after: Option<u64>,
}

impl Status {
    fn of(response: &http::Response<()>) -> Self {
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let retry_after = text(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| retry_after_seconds(value, text(header::DATE), now));
        Self { code: response.status().as_u16(), retry_after }
    }
}

/// The longest name of an encoding that a message repeats.
const SHOWN_ENCODING: usize = 40;

/// How the body is encoded, if it is not sent as it stands.
fn encoding(response: &http::Response<()>) -> Option<String> {
    let encoding = response.headers().get(header::CONTENT_ENCODING)?.to_str().unwrap_or("unknown").trim();
    let is_encoded = !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity");
    is_encoded.then(|| encoding.chars().take(SHOWN_ENCODING).collect())
}

/// A whole answer.
pub struct Answer {
    pub status: Status,
    pub body: Vec<u8>,
    /// The connection may be used again.
    pub reusable: bool,
}

/// The bytes of a request up to its body, and what reads its answer. `space` is room to write in, of
/// [`HEADER_LIMIT`] bytes.
pub fn encode(request: &Request, url: &WorkerUrl, space: &mut [u8]) -> Result<(Vec<u8>, Exchange), HttpFailure> {
    let signature = signature(request)?;
    let mut message = http::Request::post(&request.url).header(header::CONTENT_TYPE, "application/json");
    for (name, value) in &request.headers {
        message = message.header(name, value);
    }
    if let Some(signature) = signature {
        message = message
            .header("webhook-id", signature.id)
            .header("webhook-timestamp", signature.timestamp)
            .header("webhook-signature", signature.signature);
    }
    let own = [
        (header::CONTENT_LENGTH, HeaderValue::from(request.body.len())),
        (header::USER_AGENT, HeaderValue::from_static(USER_AGENT)),
        (header::ACCEPT, HeaderValue::from_static("application/json")),
    ];
    if let Some(headers) = message.headers_mut() {
        // What the worker's own headers say takes precedence.
        own.into_iter().for_each(|(name, value)| _ = headers.entry(name).or_insert(value));
    }
    // What a request is refused for may quote its headers: nothing of it is told.
    let unwritable =
        || HttpFailure::new(FailureKind::Invalid, format!("the request to {} can't be written", url.authority()));
    let message = message.body(()).map_err(|_| unwritable())?;
    let (head, call) = write(message, request.body.len(), space).map_err(|_| unwritable())?.ok_or_else(unwritable)?;
    Ok((head, Exchange { state: ReceiveState::Head(call), pending: Vec::new(), unread: None }))
}

/// The head of a request, and what reads the answer.
type WrittenHead = (Vec<u8>, Call<RecvResponse>);

fn write(message: http::Request<()>, body: usize, space: &mut [u8]) -> Result<Option<WrittenHead>, Error> {
    let mut call = Call::new(message)?.proceed();
    let mut head = Vec::with_capacity(512);
    while !call.can_proceed() {
        let written = call.write(space)?;
        head.extend_from_slice(&space[..written]);
    }
    let call = match call.proceed()? {
        Some(SendRequestResult::RecvResponse(call)) => Some(call),
        Some(SendRequestResult::SendBody(mut call)) => {
            call.consume_direct_write(body)?;
            call.proceed()
        }
        // No request asks for leave to send its body.
        Some(SendRequestResult::Await100(_)) | None => None,
    };
    Ok(call.map(|call| (head, call)))
}

impl Exchange {
    /// Takes in what was received. `limit` is the largest body, `space` room to work in.
    pub fn receive(&mut self, data: &[u8], limit: usize, space: &mut [u8]) -> Result<Option<Answer>, Problem> {
        if self.pending.is_empty() {
            let used = self.process(data, limit, space)?;
            self.pending.extend_from_slice(&data[used..]);
        } else {
            let mut pending = mem::take(&mut self.pending);
            pending.extend_from_slice(data);
            let used = self.process(&pending, limit, space)?;
            pending.drain(..used);
            self.pending = pending;
        }
        let answer = self.answer(false)?;
        // A line between chunks, or a trailer, whose end does not come.
        if answer.is_none() && self.pending.len() > HEADER_LIMIT {
            return Err(Problem::HeadersTooLarge);
        }
        Ok(answer)
    }

    /// The peer has sent its last byte, in good order.
    pub fn end(&mut self) -> Result<Answer, Problem> {
        self.answer(true)?.ok_or(Problem::Lost)
    }

    fn process(&mut self, input: &[u8], limit: usize, space: &mut [u8]) -> Result<usize, Problem> {
        let mut used = 0;
        while let ReceiveState::Head(call) = &mut self.state {
            let (taken, response) = call.try_response(&input[used..], false)?;
            // What has not been taken is the beginning of headers.
            let size = if taken > 0 { taken } else { input.len() - used };
            if size > HEADER_LIMIT {
                return Err(Problem::HeadersTooLarge);
            }
            used += taken;
            match response {
                Some(response) => {
                    match encoding(&response) {
                        Some(encoding) if response.status() == StatusCode::OK => {
                            return Err(Problem::Encoded(encoding));
                        }
                        encoding => self.unread = encoding,
                    }
                    self.begin_body(Status::of(&response), limit)?;
                }
                // An interim answer may have been taken in; the one that counts may be behind it.
                None if taken == 0 => return Ok(used),
                None => {}
            }
        }
        let ReceiveState::Body { call, body, limit, .. } = &mut self.state else { return Ok(used) };
        loop {
            let (taken, given) = call.read(&input[used..], space)?;
            used += taken;
            body.try_reserve(given).map_err(|_| Problem::BodyTooLarge(body.len()))?;
            body.extend_from_slice(&space[..given]);
            if body.len() > *limit {
                return Err(Problem::BodyTooLarge(*limit));
            }
            if taken == 0 && given == 0 {
                return Ok(used);
            }
        }
    }

    /// The headers are complete.
    fn begin_body(&mut self, status: Status, limit: usize) -> Result<(), Problem> {
        let ReceiveState::Head(call) = mem::replace(&mut self.state, ReceiveState::Over) else { return Ok(()) };
        self.state = match call.proceed() {
            Some(RecvResponseResult::RecvBody(call)) => {
                let mode = call.body_mode();
                let announced = if let BodyMode::LengthDelimited(length) = mode { length } else { 0 };
                if announced > limit as u64 {
                    return Err(Problem::BodyTooLarge(limit));
                }
                let body = Vec::with_capacity(announced.min(TRUSTED_LENGTH) as usize);
                ReceiveState::Body { call, status, body, limit, until_close: mode == BodyMode::CloseDelimited }
            }
            Some(RecvResponseResult::Cleanup(call)) => {
                ReceiveState::Empty { status, close: call.must_close_connection() }
            }
            Some(RecvResponseResult::Redirect(call)) => {
                ReceiveState::Empty { status, close: call.must_close_connection() }
            }
            None => ReceiveState::Over,
        };
        Ok(())
    }

    /// The answer, if it is whole. `ended` says that nothing more comes.
    fn answer(&mut self, ended: bool) -> Result<Option<Answer>, Problem> {
        let whole = match &self.state {
            ReceiveState::Empty { .. } => true,
            ReceiveState::Body { until_close: true, .. } => ended,
            // The last chunk may lack its end when the connection ends right there.
            ReceiveState::Body { call, .. } => call.can_proceed() || ended && call.is_ended_chunked(),
            ReceiveState::Head(_) | ReceiveState::Over => false,
        };
        if !whole {
            return Ok(None);
        }
        let clean = !ended && self.pending.is_empty();
        Ok(match mem::replace(&mut self.state, ReceiveState::Over) {
            ReceiveState::Empty { status, close } => {
                Some(Answer { status, body: Vec::new(), reusable: clean && !close })
            }
            ReceiveState::Body { call, status, body, .. } => {
                let close = match call.proceed() {
                    Some(RecvBodyResult::Cleanup(call)) => call.must_close_connection(),
                    Some(RecvBodyResult::Redirect(call)) => call.must_close_connection(),
                    None => true,
                };
                let unread = self.unread.take().map(|encoding| format!("a body with Content-Encoding {encoding}"));
                Some(Answer { status, body: unread.map_or(body, String::into_bytes), reusable: clean && !close })
            }
            ReceiveState::Head(_) | ReceiveState::Over => None,
        })
    }
}
