//! Builds requests from loaded calls, and decodes their outcomes. The crate `xdb-calls` has the part without a server.
//!
//! ```text
//!   Loaded ── facts ──▶ eligible ──▶ may it be made now, and by which process?
//!   Loaded, attributes ── request ─────────────────▶ CallRequest ── to_worker ──▶ Request ──▶ transport ──▶ worker
//!                │                                                      │ tag                               │
//!                └─ CallRecord (under way) ◀────────────────────────────┘                                   │
//!                      │  with the lease: the fence                                                         │
//!                      │  with ReadSet: what was loaded under locks                                         ▼
//!   Command ◀── command ── Answered ◀── decode ──────────────────────────────────────────────────── CallOutcome
//! ```
//!
//! [`decode`] turns every outcome of a request into an answer or a failed attempt.
//!
//! | file | what it is for |
//! |---|---|
//! | `mod.rs` | what a call depends on; requests and their headers; outcomes as answers |
//! | `record.rs` | what the engine keeps of a call while it is under way |
//!
//! Rules:
//! - Turns, sessions of pull workers and RPCs use this room. Nothing here touches a table or a socket.
//! - The wire format belongs to `xdb-protocol`; how a request travels belongs to the transport (`src/transport.rs`).
//! - A repeated call has the same `callId`. Its `Idempotency-Key` is the same too, unless the request has changed.

mod record;

pub use record::{CallRecord, ReadSet};

use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::{identity, memory, process};
use crate::store::loaded::{Loaded, Meta};
use crate::store::registry::{ProcessType, Worker};
use crate::transport::{CallOutcome, FailureKind, Request};
use std::sync::Arc;
pub use xdb_calls::{
    Answered, Asker, Attributes, CallOf, CallOrigin, CallRequest, Facts, Loads, Maker, Marked, NotCalled, OutgoingCall,
    Paused, Unfit, Verdict, eligible, not_called,
};
use xdb_calls::{Attempt, decode_answer, failed_by_policy, read_answer};
use xdb_engine::*;
use xdb_protocol::*;

/// What a call of this execution depends on, as far as it is loaded.
pub fn facts<'a>(loaded: &'a Loaded, called: CallOf<'a>, now: Timestamp) -> Facts<'a> {
    Facts::new(&loaded.execution, called, loaded.meta.process_type.as_deref().map(ProcessType::facts), now)
}

/// The part of requests that describes an execution. Called in a transaction.
pub fn origin(loaded: &Loaded) -> Result<CallOrigin<'_>> {
    Ok(CallOrigin {
        execution: &loaded.execution,
        owner: identity::role_name(loaded.meta.owner)?,
        database: process::database_name(),
        shard: loaded.meta.chosen_shard(),
    })
}

/// The part of the read attributes that a call gets: see [`Loads::attributes`]. Error: too little memory is free.
pub fn attributes<'v>(
    loads: &Loads,
    global: String,
    local: impl Iterator<Item = (&'v String, &'v String)> + Clone,
) -> Result<Attributes> {
    let local = local.map(|(name, value)| (name.as_str(), value.as_str()));
    memory::room_for(local.clone().map(|(name, value)| name.len() + value.len()).sum())?;
    Ok(loads.attributes(global, local))
}

/// The request of a state's call, with the attributes that were read. The inner error is a failed attempt. Called in a
/// transaction.
pub fn request<'a, 'v>(
    loaded: &'a Loaded,
    state: &'a StateExecution,
    attempt: Attempt,
    (loads, timeout): (&Loads, Duration),
    (global, local): (String, impl Iterator<Item = (&'v String, &'v String)> + Clone),
) -> Result<std::result::Result<CallRequest<'a>, Box<Failure>>> {
    let attributes = attributes(loads, global, local)?;
    Ok(CallRequest::of_state(origin(loaded)?, state, attempt, timeout, attributes, guc::max_request_bytes()))
}

/// The body of a request. Error: too little memory is free.
pub fn body(request: &CallRequest<'_>) -> Result<String> {
    memory::room_for(request.bytes)?;
    Ok(request.encode())
}

/// An HTTP request to a worker, signed with `secrets`.
pub fn to_worker(
    request: &CallRequest<'_>,
    meta: &Meta,
    worker: &Worker,
    secrets: &Arc<[String]>,
    traceparent: Option<&str>,
) -> Result<Request> {
    let url = worker.url.as_deref().ok_or_else(|| PgError::internal("a pull worker is not called"))?;
    let mut headers = worker.headers.clone();
    headers.push(("Idempotency-Key".to_owned(), request.key()));
    headers.extend(traceparent.map(|traceparent| ("traceparent".to_owned(), traceparent.to_owned())));
    headers.extend(meta.chosen_shard().map(|shard| ("Xdb-Shard".to_owned(), shard.to_string())));
    Ok(Request {
        tag: 0,
        url: format!("{}{}", url.trim_end_matches('/'), request.path()),
        headers,
        body: body(request)?.into_bytes(),
        timeout: request.timeout(),
        secrets: secrets.clone(),
    })
}

/// The `context` of the call's request, for functions that its answer calls.
pub fn function_context(loaded: &Loaded, record: &CallRecord) -> Result<String> {
    let state = loaded.execution.states.get(&record.key.1);
    let state = state.ok_or_else(|| PgError::internal("an answer of a state that is not there"))?;
    let timeout = loaded.meta.options_of(state).timeout(record.api);
    Ok(OutgoingCall::of_state(origin(loaded)?, state, record.as_attempt(), timeout).context().encode())
}

/// Reads the answer of a function in the same way as a worker's. `text` None: the function returned NULL.
pub fn of_function(api: Api, text: Option<&str>) -> Answered {
    let invalid = |what: String| failed_by_policy(Failure { status: None, ..invalid_answer(what) });
    let Some(text) = text else { return invalid("the function returned NULL".to_owned()) };
    decode_answer(api, text.as_bytes(), &limits()).unwrap_or_else(invalid)
}

/// Reads the outcome of a request to a worker. The result is an answer or a failed attempt.
pub fn decode(api: Api, outcome: &CallOutcome) -> Answered {
    match outcome {
        CallOutcome::Answer { status, retry_after, body } => read_answer(api, *status, *retry_after, body, &limits()),
        CallOutcome::Failed { kind, message } => failed_by_policy(transport_failure(*kind, message)),
    }
}

/// The size limits of answers, of workers and functions alike. The transport rejects larger bodies already.
pub fn limits() -> AnswerLimits {
    AnswerLimits { max_payload_bytes: guc::max_payload_bytes(), max_answer_bytes: guc::max_response_bytes() }
}

/// What a call that got no answer is, as a failed attempt.
pub fn transport_failure(kind: FailureKind, message: &str) -> Failure {
    let error_type = match kind {
        FailureKind::ConnectTimeout | FailureKind::Timeout => "Timeout",
        FailureKind::Connect => "ConnectionFailed",
        FailureKind::Refused => "HostNotAllowed",
        FailureKind::TooLarge => "AnswerTooLarge",
        FailureKind::Transport | FailureKind::Encoded => "TransportError",
        FailureKind::Invalid | FailureKind::NotTried | FailureKind::Cancelled | FailureKind::Panic => "CallFailed",
    };
    Failure::of(error_type, message.to_owned())
}
