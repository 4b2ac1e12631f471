//! The wire formats: what workers are asked, what they answer, and the JSON documents of the SQL functions.
//!
//! ```text
//!   Execution, Attributes ──▶ request ──▶ body ──▶ worker ──▶ body ──▶ answer ──▶ CommandRequest, Decision, Effects
//!                                                                    (decode_error, decode_failure, if the status is not 200)
//!   definition, options of a start ──────────────────────────────────▶ definition ──▶ Definition, StartOptions
//! ```
//!
//! Whatever comes from outside is checked here and becomes the engine's types, or a message that says what is wrong and
//! where: a path and a predicate, as in `stateDecision.nextStates[0].stateId is empty`. Three rules hold for all of it:
//!
//! - User payloads pass through as the text they came in. They are checked, so that `jsonb` takes them, and never decoded.
//! - No input costs more than its length: the depth is checked before anything is built, nothing recurses without a bound,
//!   and memory is in proportion to the text (`tests/bounded.rs`).
//! - Null is as good as an absent key. A worker's answer may have keys that nobody knows, since workers may be newer than
//!   the engine: they change nothing, and are told. In a document of a SQL function they are errors, since they are typing
//!   errors.
//!
//! From below: `scan.rs` walks over JSON, `payload.rs` says what a payload is, `fields.rs` takes objects apart and notes in
//! `unknown.rs` what nobody asks for; `config.rs` reads the options of states, and `functions.rs` the calls of functions, which
//! stand in definitions and in answers; `definition.rs` and `answer.rs` read whole documents (`merge.rs` a part of them),
//! `arguments.rs` the other arguments of the functions. `request.rs` writes, and `refusal.rs` has the words of errors.

mod answer;
pub mod arguments;
mod config;
mod definition;
mod fields;
mod functions;
mod merge;
mod payload;
pub mod refusal;
mod request;
mod scan;
mod start;
mod unknown;

pub use answer::{
    Executed, Limits, MAX_DETAIL_CHARS, Retried, decode_error, decode_execute, decode_failure, decode_rpc,
    decode_wait_until, invalid_answer, parse_moment, rejected_answer, retry_after_seconds, unlisted_state,
    unregistered, with_warnings,
};
pub use definition::{
    ConflictMode, Correlation, MAX_DEFINITION_BYTES, MAX_STATES, StartOptions, is_traceparent, not_a_traceparent,
    parse_definition, parse_start_options,
};
pub use fields::MAX_NAME_BYTES;
pub use functions::MAX_FUNCTION_CALLS;
pub use payload::{MAX_PAYLOAD_DEPTH, check_payload};
pub use request::{
    CallContext, EXECUTE_PATH, Handler, RPC_PATH, RequestBody, StartContext, WAIT_UNTIL_PATH, call_id, fingerprint,
    object, request_key, rpc_call_id, token_fingerprint,
};
pub use scan::PayloadError;
pub use start::{GivenStart, StartRequest};
