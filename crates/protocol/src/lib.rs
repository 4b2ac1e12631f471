//! The wire formats: requests to workers, answers of workers, and the JSON documents of the SQL functions.
//!
//! ```text
//!   Execution, Attributes ──▶ request ──▶ body ──▶ worker ──▶ body ──▶ answer ──▶ CommandRequest, Decision, Effects
//!                                                     (decode_error, decode_failure, if the status is not 200)
//!   definition, options of a start ──────────────────────────────────▶ definition ──▶ Definition, StartOptions
//! ```
//!
//! Input from outside is checked here. It becomes the engine's types, or a message that says what is wrong and where: a
//! path and a predicate, as in `stateDecision.nextStates[0].stateId is empty`. Three rules hold for all input:
//!
//! - Payloads of the application stay the text they came in. They are checked, so that `jsonb` accepts them, and never
//!   decoded.
//! - The cost of reading is proportional to the length of the text (`tests/bounded.rs`). The depth is checked before
//!   anything is built, so recursion is bounded.
//! - Null counts as an absent key. Unknown keys in a worker's answer change nothing and become warnings, because
//!   workers may be newer than the engine. In a document of a SQL function they are errors, because they are typing
//!   errors.
//!
//! Limitations: this crate knows no database, no sockets and no clock.
//!
//! | file | what it has |
//! |---|---|
//! | `scan.rs`, `payload.rs` | checks the JSON grammar and depth; what a payload is |
//! | `fields.rs`, `unknown.rs` | read objects, with places in errors; record unknown keys |
//! | `config.rs`, `functions.rs`, `merge.rs` | read parts of documents: options of states, function calls, merges |
//! | `wait.rs` | reads what a state asks to wait for |
//! | `children.rs` | reads the starts in an answer, and writes them for `xdb.start_processes` |
//! | `cron.rs` | when a cron expression has its next tick |
//! | `definition.rs`, `answer.rs` | read whole documents |
//! | `arguments.rs`, `start.rs` | check the other arguments of SQL functions, and all parameters of a start |
//! | `request.rs` | writes requests |
//! | `refusal.rs` | errors: SQLSTATEs and messages |

mod answer;
pub mod arguments;
mod children;
mod config;
mod cron;
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
mod wait;

pub use answer::{
    AnswerLimits, Executed, MAX_DETAIL_CHARS, Retried, decode_error, decode_execute, decode_failure, decode_rpc,
    decode_wait_until, invalid_answer, rejected_answer, retry_after_seconds, unlisted_state, unregistered,
    with_warnings,
};
pub use children::{CHILDREN, MAX_CHILDREN, bulk_start, refused_child};
pub use cron::next_tick;
pub use definition::{
    ConflictMode, Correlation, MAX_DEFINITION_BYTES, MAX_STATES, StartOptions, check_tables, is_traceparent,
    not_a_traceparent, parse_definition, parse_start_options,
};
pub use fields::{MAX_NAME_BYTES, parse_moment};
pub use functions::MAX_FUNCTION_CALLS;
pub use payload::{MAX_PAYLOAD_DEPTH, check_payload};
pub use request::{
    CallContext, EXECUTE_PATH, Handler, RPC_PATH, RequestBody, StartContext, WAIT_UNTIL_PATH, call_id, fingerprint,
    object, request_key, rpc_call_id, token_fingerprint,
};
pub use scan::PayloadError;
pub use start::{GivenStart, StartRequest};
