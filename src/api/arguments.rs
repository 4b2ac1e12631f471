//! The arguments of SQL functions: JSON within its limits. Names and needed values are checked as everywhere
//! (`xdb_protocol::arguments`).

use crate::error;
use crate::guc;
use crate::pg;
use crate::pg::catch::Result;
use crate::pg::function::Args;
use std::collections::BTreeMap;
use xdb_engine::Json;
use xdb_protocol::PayloadError;
use xdb_protocol::arguments;

pub(super) use xdb_protocol::arguments::{name, name_if_given, needed};

/// Memory for parsed JSON in small parts, in bytes for each byte of the text.
const PARSED: usize = 10;

/// The text of a `jsonb` argument, at most as large as a request to a worker.
pub(super) fn json(args: &Args, number: usize, name: &str) -> Result<Option<String>> {
    json_of(args, number, name, guc::max_request_bytes())
}

pub(super) fn json_of(args: &Args, number: usize, name: &str, most: usize) -> Result<Option<String>> {
    let text = args.json(number, most)?;
    if let Ok(Some(text)) = &text {
        pg::memory::room_for(text.len().saturating_mul(PARSED))?;
    }
    text.map_err(|bytes| error::payload(name, PayloadError::TooLarge { bytes, max: most }))
}

/// A payload from a caller. SQL NULL and JSON null both mean none.
pub(super) fn payload(name: &str, text: Option<String>) -> Result<Option<Json>> {
    Ok(arguments::payload(name, text.as_deref(), guc::max_payload_bytes())?)
}

/// A JSON object of payloads.
pub(super) fn object(argument: &str, text: Option<String>) -> Result<BTreeMap<String, Json>> {
    Ok(arguments::payloads(argument, text.as_deref(), guc::max_payload_bytes())?)
}
