//! A call as a value: from a state that is at a call to the request, and from the answer back to the engine's words.
//!
//! ```text
//!   Execution, state, attributes ── request ──▶ Request ──▶ transport ──▶ worker
//!                │                                │ tag                     │
//!                └─ CallRecord (in flight) ◀──────┘                         │
//!                      │  with the lease: the fence                         │
//!                      │  with ReadSet: what was loaded under locks         ▼
//!   Command ◀── command ── Answered ◀── decode ──────────────────────── Outcome
//! ```
//!
//! Whatever a worker answers, or fails to answer, [`decode`] makes it an answer or a failed attempt; there is nothing else.
//!
//! | file | what it is for |
//! |---|---|
//! | `mod.rs` | requests and their headers; outcomes as answers, answers as commands |
//! | `record.rs` | what the engine keeps of a call while it is under way |
//!
//! Rules:
//! - Used by the turn and by sessions' RPCs alike. Nothing here touches a table or a socket.
//! - The wire format itself is `xdb-protocol`'s; how a request travels is the transport's (`src/transport.rs`).
//! - A call that is made again has the same `callId`. Its `Idempotency-Key` is the same too, unless the request is another one.

mod record;

pub use record::{CallRecord, ReadSet};

use crate::error;
use crate::guc;
use crate::pg::catch::{PgError, Result};
use crate::pg::{identity, memory, process};
use crate::store::loaded::Loaded;
use crate::store::registry::Worker;
use crate::transport::{FailureKind, Outcome, Request};
use std::rc::Rc;
use std::sync::Arc;
pub use xdb_calls::Answered;
use xdb_calls::{decode_answer, failed_by_policy, read_answer};
use xdb_engine::*;
use xdb_protocol::*;

/// Where a path of the protocol is at a worker. One that fetches its calls is not called.
pub fn url(worker: &Worker, path: &str) -> Result<String> {
    let url = worker.url.as_deref().ok_or_else(|| PgError::internal("a worker without a URL is not called"))?;
    Ok(format!("{}{path}", url.trim_end_matches('/')))
}

/// Headers of a call, besides those that are set for every request.
pub fn headers(
    worker: &Worker,
    idempotency_key: String,
    shard: Option<i16>,
    traceparent: Option<&str>,
) -> Vec<(String, String)> {
    let mut headers = worker.headers.clone();
    headers.push(("Idempotency-Key".to_owned(), idempotency_key));
    if let Some(traceparent) = traceparent {
        headers.push(("traceparent".to_owned(), traceparent.to_owned()));
    }
    if let Some(shard) = shard {
        headers.push(("Xdb-Shard".to_owned(), shard.to_string()));
    }
    headers
}

/// A call of a state, with what is told of it.
pub struct Attempt<'a> {
    loaded: &'a Loaded,
    state: &'a StateExecution,
    pub call_id: String,
    /// The process's owner and database, by their names of now.
    owner: Option<String>,
    database: Rc<str>,
    number: u32,
    first_at: Timestamp,
    timeout: Duration,
}

impl<'a> Attempt<'a> {
    /// To be called in a transaction.
    pub fn of(loaded: &'a Loaded, state: &'a StateExecution, record: &CallRecord, timeout: Duration) -> Result<Self> {
        Ok(Self {
            loaded,
            state,
            call_id: call_id(loaded.execution.id, &state.id, record.api),
            owner: identity::role_name(loaded.meta.owner)?,
            database: process::database_name(),
            number: record.attempt,
            first_at: record.first_attempt_at,
            timeout,
        })
    }

    fn context(&self) -> CallContext<'_> {
        let execution = &self.loaded.execution;
        CallContext {
            process_id: &execution.process_id,
            execution: execution.id,
            owner: self.owner.as_deref(),
            database: &self.database,
            process_started_at: execution.started_at,
            state_execution_id: Some(&self.state.id),
            attempt: self.number,
            call_id: &self.call_id,
            first_attempt_at: self.first_at,
            timeout: self.timeout.as_std(),
            shard: self.loaded.meta.chosen_shard(),
            recovery: self.state.recovery.as_ref(),
        }
    }

    /// What the worker is told by this call. The attributes are JSON objects.
    pub fn body<'b>(&'b self, call: &'b CallState, global: &'b str, local: &'b str) -> StateRequest<'b> {
        let results = match &self.state.phase {
            Phase::Execute { results, .. } => Some(results.as_ref().map_or(&[][..], |wait| &wait.commands)),
            _ => None,
        };
        StateRequest {
            context: self.context(),
            process_type: &self.loaded.execution.process_type,
            state_id: &self.state.id.state_id,
            state_input: self.state.input.as_ref(),
            loaded_global_attributes: global,
            loaded_local_attributes: local,
            results,
            app_database_error: call.app_database_error.as_ref(),
        }
    }

    /// The request of this call, which is signed with the secrets. `values` stands for the values that were loaded, if some of them
    /// are locked.
    pub fn request(
        &self,
        call: &CallState,
        worker: &Worker,
        secrets: &Arc<[String]>,
        values: Option<u64>,
        body: &StateRequest<'_>,
    ) -> Result<Request> {
        memory::room_for(body.payload_bytes())?;
        let meta = &self.loaded.meta;
        let path = if body.results.is_some() { EXECUTE_PATH } else { WAIT_UNTIL_PATH };
        let key = request_key(&self.call_id, call.generation, values);
        Ok(Request {
            tag: 0,
            url: url(worker, path)?,
            headers: headers(worker, key, meta.chosen_shard(), meta.traceparent.as_deref()),
            body: body.encode().into_bytes(),
            timeout: self.timeout.as_std(),
            secrets: secrets.clone(),
        })
    }
}

/// What functions that an answer calls are told of the call: the `context` of its request.
pub fn function_context(loaded: &Loaded, record: &CallRecord) -> Result<String> {
    let state = loaded.execution.states.get(&record.key.1);
    let state = state.ok_or_else(|| PgError::internal("an answer of a state that is not there"))?;
    let timeout = loaded.meta.options_of(state).timeout(record.api);
    Ok(Attempt::of(loaded, state, record, timeout)?.context().encode())
}

/// An error if a request with so many bytes of payloads and attributes is too large.
pub fn check_size(bytes: usize) -> Result<()> {
    let most = guc::max_request_bytes();
    if bytes > most { Err(error::request_too_large(bytes, most)) } else { Ok(()) }
}

/// An attempt that failed because what its call would send is too large.
pub fn request_too_large(error: &PgError) -> Failure {
    Failure::of("RequestTooLarge", error.message.clone())
}

/// Where RPCs go.
pub fn rpc_url(worker: &Worker) -> Result<String> {
    url(worker, RPC_PATH)
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
