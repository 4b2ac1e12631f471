//! Checks which headers a worker may be registered with.

use ureq_proto::http::{HeaderName, HeaderValue};

use super::HEADER_LIMIT;

/// Headers of the message itself and its target, and the headers of the signature.
const RESERVED: [&str; 15] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// Checks the headers when a worker is registered, and again before a call. Messages name headers but never contain
/// their values.
pub fn validate_headers(headers: &[(String, String)]) -> Result<(), String> {
    for (name, value) in headers {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(format!("{name:?} is not a valid header name"));
        }
        if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!("the header \"{name}\" is set by the engine"));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(format!("the header \"{name}\" has characters that a header can't have"));
        }
        if name.len() + value.len() + 4 > HEADER_LIMIT {
            return Err(format!("the header \"{name}\" is larger than {HEADER_LIMIT} bytes"));
        }
    }
    Ok(())
}
