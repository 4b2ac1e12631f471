//! The wire formats: requests to workers, answers of workers, and the JSON documents of the SQL functions.
//!
//! ```text
//!   Execution, Attributes ──▶ request ──▶ body ──▶ worker ──▶ body ──▶ answer ──▶ CommandRequest, Decision, Effects
//!                                     (decode_error: status other than 200; decode_failure: a pull worker's failure)
//!   definition, options of a start ──────────────────────────────────▶ definition ──▶ Definition, StartOptions
//! ```
//!
//! Input from outside is checked here. It becomes values of the engine's types, or a message with the place and a
//! predicate, as in `stateDecision.nextStates[0].stateId is empty`. Three rules apply to all input:
//!
//! - Payloads of the application stay the text that they came as. They are checked, so that `jsonb` accepts them, and
//!   never decoded.
//! - The cost of an input is in proportion to its length. The depth is checked before anything is built, recursion is
//!   bounded, and memory is in proportion to the text (`tests/bounded.rs`).
//! - Null means the same as an absent key. An unknown key in a worker's answer changes nothing and gives a warning,
//!   because workers may be newer than the engine. In a document of a SQL function an unknown key is an error, because
//!   it is a typing error.
//!
//! | file | what it is for |
//! |---|---|
//! | `scan.rs` | checks JSON text: grammar, depth, and what `jsonb` refuses |
//! | `payload.rs` | checks a payload |
//! | `fields.rs` | reads the fields of an object, with messages that name the place |
//! | `unknown.rs` | unknown keys of an answer, as warnings |
//! | `config.rs`, `functions.rs` | options of states and calls of functions, in definitions and answers |
//! | `definition.rs`, `merge.rs` | definitions, and the options of starts |
//! | `answer.rs` | answers of workers |
//! | `arguments.rs`, `start.rs` | the other arguments of SQL functions, and those of a start |
//! | `request.rs` | requests to workers |
//! | `refusal.rs` | errors for callers: SQLSTATEs and texts |
//!
//! Limitations: nothing here reads a clock, does I/O or knows which tables exist.

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
