//! The wire formats: what workers are asked, what they answer, and the JSON documents of the SQL functions; and
//! the setting `xdb.now`.
//!
//! Whatever comes from outside is checked here and becomes the engine's types, or a message that says exactly what
//! is wrong with it. User payloads pass through as the text they came in: they are checked, never decoded.

mod answer;
mod clock_offset;
mod config;
mod definition;
mod fields;
mod payload;
mod request;
mod scan;

pub use answer::{Limits, MAX_DETAIL_CHARS, decode_error, decode_execute, decode_rpc, decode_wait_until};
pub use clock_offset::parse_clock_offset;
pub use definition::{ConflictMode, StartOptions, parse_definition, parse_start_options};
pub use fields::MAX_NAME_BYTES;
pub use payload::{MAX_PAYLOAD_DEPTH, PayloadError, check_payload};
pub use request::{
    Attributes, CallContext, ExecuteRequest, RpcRequest, WaitUntilRequest, call_id, idempotency_key, rpc_call_id,
};
