//! A call as a value, as far as it needs the server: what is pure of it is the crate `xdb-calls`.
//!
//! ```text
//!   Loaded ── facts ──▶ eligible ──▶ may it be made now, and by which process?
//!   Loaded, attributes ── origin ──▶ OutgoingCall ──▶ CallRequest ── to_worker ──▶ Request ──▶ transport ──▶ worker
//!                │                                                      │ tag                               │
//!                └─ CallRecord (in flight) ◀────────────────────────────┘                                   │
//!                      │  with the lease: the fence                                                         │
//!                      │  with ReadSet: what was loaded under locks                                         ▼
//!   Command ◀── command ── Answered ◀── decode ──────────────────────────────────────────────────────── Outcome
//! ```
//!
//! Whatever a worker answers, or fails to answer, [`decode`] makes it an answer or a failed attempt; there is nothing else.
//!
//! | file | what it is for |
//! |---|---|
//! | `mod.rs` | what a call depends on; requests and their headers; outcomes as answers |
//! | `record.rs` | what the engine keeps of a call while it is under way |
//!
//! Rules:
//! - Used by the turn, by pull workers' sessions and by RPCs. Nothing here touches a table or a socket.
//! - The wire format itself is `xdb-protocol`'s; how a request travels is the transport's (`src/transport.rs`).
//! - A call that is made again has the same `callId`. Its `Idempotency-Key` is the same too, unless the request is another one.

mod record;

pub use record::{CallRecord, ReadSet};

use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::{identity, memory, process};
use crate::store::loaded::{Loaded, Meta};
use crate::store::registry::{ProcessType, Worker};
use crate::transport::{FailureKind, Outcome, Request};
use std::sync::Arc;
pub use xdb_calls::{
    Answered, Asker, Attributes, CallOf, CallRequest, Facts, Loads, Maker, Marked, Origin, OutgoingCall, Paused, Unfit,
    Verdict, eligible, too_large,
};
use xdb_calls::{decode_answer, failed_by_policy, read_answer};
use xdb_engine::*;
use xdb_protocol::*;

/// What a call of this execution depends on, as far as that is loaded.
pub fn facts<'a>(loaded: &'a Loaded, called: CallOf<'a>, now: Timestamp) -> Facts<'a> {
    Facts::new(&loaded.execution, called, loaded.meta.process_type.as_deref().map(ProcessType::facts), now)
}

/// What requests say of an execution. To be called in a transaction.
pub fn origin(loaded: &Loaded) -> Result<Origin<'_>> {
    Ok(Origin {
        execution: &loaded.execution,
        owner: identity::role_name(loaded.meta.owner)?,
        database: process::database_name(),
        shard: loaded.meta.chosen_shard(),
    })
}

/// What a call gets of the attributes that were read for it: see [`Loads::attributes`].
pub fn attributes<'v>(
    loads: &Loads,
    global: String,
    local: impl Iterator<Item = (&'v String, &'v String)> + Clone,
) -> Result<Attributes> {
    let local = local.map(|(name, value)| (name.as_str(), value.as_str()));
    memory::room_for(local.clone().map(|(name, value)| name.len() + value.len()).sum())?;
    Ok(loads.attributes(global, local))
}

/// The body of a request, if there is memory for it.
pub fn body(request: &CallRequest<'_>) -> Result<String> {
    memory::room_for(request.bytes)?;
    Ok(request.encode())
}

/// A request to a worker that is called, which is signed with the secrets.
pub fn to_worker(
    request: &CallRequest<'_>,
    meta: &Meta,
    worker: &Worker,
    secrets: &Arc<[String]>,
    traceparent: Option<&str>,
) -> Result<Request> {
    let url = worker.url.as_deref().ok_or_else(|| PgError::internal("a worker without a URL is not called"))?;
    let mut headers = worker.headers.clone();
    headers.push(("Idempotency-Key".to_owned(), request.key()));
    headers.extend(traceparent.map(|traceparent| ("traceparent".to_owned(), traceparent.to_owned())));
    headers.extend(meta.chosen_shard().map(|shard| ("Xdb-Shard".to_owned(), shard.to_string())));
    Ok(Request {
        tag: 0,
        url: format!("{}{}", url.trim_end_matches('/'), request.path),
        headers,
        body: body(request)?.into_bytes(),
        timeout: request.timeout(),
        secrets: secrets.clone(),
    })
}

/// What functions that an answer calls are told of the call: the `context` of its request.
pub fn function_context(loaded: &Loaded, record: &CallRecord) -> Result<String> {
    let state = loaded.execution.states.get(&record.key.1);
    let state = state.ok_or_else(|| PgError::internal("an answer of a state that is not there"))?;
    let timeout = loaded.meta.options_of(state).timeout(record.api);
    Ok(OutgoingCall::of_state(&origin(loaded)?, state, record.as_attempt(), timeout).context().encode())
}

/// Reads what a function has answered, in the same way.
pub fn of_function(api: Api, text: Option<&str>) -> Answered {
    let invalid = |what: String| failed_by_policy(Failure { status: None, ..invalid_answer(what) });
    let Some(text) = text else { return invalid("the function has answered with NULL".to_owned()) };
    decode_answer(api, text.as_bytes(), &limits()).unwrap_or_else(invalid)
}

/// Reads a worker's answer. Whatever it is, the result is an answer or a failed attempt.
pub fn decode(api: Api, outcome: &Outcome) -> Answered {
    match outcome {
        Outcome::Answer { status, retry_after, body } => read_answer(api, *status, *retry_after, body, &limits()),
        Outcome::Failed { kind, message } => failed_by_policy(transport_failure(*kind, message)),
    }
}

/// What answers may not exceed, of workers and functions alike. More than that does not even come in over HTTP.
pub fn limits() -> Limits {
    Limits { max_payload_bytes: guc::max_payload_bytes(), max_answer_bytes: guc::max_response_bytes() }
}

fn transport_failure(kind: FailureKind, message: &str) -> Failure {
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
