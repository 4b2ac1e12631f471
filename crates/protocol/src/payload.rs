//! Payloads: JSON values of the application that the engine stores and forwards.

use crate::scan::{PayloadError, Rules, scan};
use xdb_engine::Json;

/// How deep the arrays and objects of a payload may be nested.
pub const MAX_PAYLOAD_DEPTH: usize = 128;

/// Checks a payload. `jsonb` must accept it, its depth is at most [`MAX_PAYLOAD_DEPTH`], and its length at most
/// `max_bytes`, also with its numbers written out. The text is kept unchanged.
pub fn check_payload(text: &str, max_bytes: usize) -> Result<Json, PayloadError> {
    if text.len() > max_bytes {
        return Err(PayloadError::TooLarge { bytes: text.len(), max: max_bytes });
    }
    let written_out = scan(text, &Rules { max_depth: MAX_PAYLOAD_DEPTH, jsonb: true })?;
    if written_out > max_bytes {
        return Err(PayloadError::TooLargeWrittenOut { bytes: written_out, max: max_bytes });
    }
    Ok(Json::from_trusted(text))
}
