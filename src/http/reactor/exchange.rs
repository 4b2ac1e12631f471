//! Turns a request into bytes, and bytes into its answer. Limitations: no sockets here.

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

/// Bytes reserved at once for an answer that announces its size. More is reserved as data arrives.
const TRUSTED_LENGTH: u64 = 64 * 1024;
const USER_AGENT: &str = concat!("xdb/", env!("CARGO_PKG_VERSION"));

/// The part of an answer that has arrived.
pub struct Exchange {
    state: ReceiveState,
    /// Received bytes that can't be parsed yet.
    pending: Vec<u8>,
    /// The `Content-Encoding` of an answer without success. Its body is not decoded.
    unread: Option<String>,
}

enum ReceiveState {
    Head(Call<RecvResponse>),
    Body {
        call: Call<RecvBody>,
        status: Status,
        body: Vec<u8>,
        limit: usize,
        /// Only the end of the connection ends the body.
        until_close: bool,
    },
    /// The answer has no body.
    Empty {
        status: Status,
        close: bool,
    },
    /// The answer was returned, or reading it failed.
    Over,
}

/// The relevant parts of an answer's head.
#[derive(Clone, Copy)]
pub struct Status {
    pub code: u16,
    /// The seconds in `Retry-After`.
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

/// How many characters of an encoding's name a message repeats.
const SHOWN_ENCODING: usize = 40;

/// The encoding of the body; None if the body is sent as it is.
fn encoding(response: &http::Response<()>) -> Option<String> {
    let encoding = response.headers().get(header::CONTENT_ENCODING)?.to_str().unwrap_or("unknown").trim();
    let is_encoded = !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity");
    is_encoded.then(|| encoding.chars().take(SHOWN_ENCODING).collect())
}

/// A complete answer.
pub struct Answer {
    pub status: Status,
    pub body: Vec<u8>,
    /// The connection may be used again.
    pub reusable: bool,
}

/// The bytes of a request up to its body, and the reader of its answer. `space` is a buffer of at least
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
        // The worker's own headers take precedence.
        own.into_iter().for_each(|(name, value)| _ = headers.entry(name).or_insert(value));
    }
    // The error may quote headers, so its text is not used.
    let unwritable =
        || HttpFailure::new(FailureKind::Invalid, format!("the request to {} can't be written", url.authority()));
    let message = message.body(()).map_err(|_| unwritable())?;
    let mut head = Vec::with_capacity(512);
    let call =
        write(message, request.body.len(), space, &mut head).map_err(|_| unwritable())?.ok_or_else(unwritable)?;
    Ok((head, Exchange { state: ReceiveState::Head(call), pending: Vec::new(), unread: None }))
}

/// Writes the head of a request, and gives the reader of its answer.
fn write(
    message: http::Request<()>,
    body: usize,
    space: &mut [u8],
    head: &mut Vec<u8>,
) -> Result<Option<Call<RecvResponse>>, Error> {
    let mut call = Call::new(message)?.proceed();
    while !call.can_proceed() {
        let written = call.write(space)?;
        head.extend_from_slice(&space[..written]);
    }
    Ok(match call.proceed()? {
        Some(SendRequestResult::RecvResponse(call)) => Some(call),
        Some(SendRequestResult::SendBody(mut call)) => {
            call.consume_direct_write(body)?;
            call.proceed()
        }
        // No request uses `Expect: 100-continue`.
        Some(SendRequestResult::Await100(_)) | None => None,
    })
}

impl Exchange {
    /// Processes received bytes. `limit` is the largest body in bytes, `space` is a buffer.
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
        // The end of a line between chunks, or of a trailer, does not come.
        if answer.is_none() && self.pending.len() > HEADER_LIMIT {
            return Err(Problem::HeadersTooLarge);
        }
        Ok(answer)
    }

    /// The peer has closed its side in good order.
    pub fn end(&mut self) -> Result<Answer, Problem> {
        self.answer(true)?.ok_or(Problem::Lost)
    }

    fn process(&mut self, input: &[u8], limit: usize, space: &mut [u8]) -> Result<usize, Problem> {
        let mut used = 0;
        while let ReceiveState::Head(call) = &mut self.state {
            let (taken, response) = call.try_response(&input[used..], false)?;
            // If nothing was taken, the headers are not complete yet.
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
                // An interim answer may have been taken, and the final answer may follow it.
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

    /// The answer, if it is complete. `ended`: no more bytes will come.
    fn answer(&mut self, ended: bool) -> Result<Option<Answer>, Problem> {
        let whole = match &self.state {
            ReceiveState::Empty { .. } => true,
            ReceiveState::Body { until_close: true, .. } => ended,
            // If the connection ends right after the last chunk, its end mark may be missing.
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
