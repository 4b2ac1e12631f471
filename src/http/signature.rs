//! Signatures of requests, according to Standard Webhooks.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::HttpFailure;
use crate::transport::{FailureKind, Request};

const PREFIX: &str = "whsec_";

/// The header whose value is the id of the signed message.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// People paste secrets, so missing padding is accepted.
const SECRET_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The values of the three headers of a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// `webhook-id`
    pub id: String,
    /// `webhook-timestamp`, Unix seconds
    pub timestamp: String,
    /// `webhook-signature`
    pub signature: String,
}

/// Signs `body` as request `id` at `timestamp` (Unix seconds). The key is the base64 after `whsec_` in `secret`, or
/// else the bytes of `secret`.
pub fn sign(secret: &str, id: &str, timestamp: u64, body: &[u8]) -> Result<Signature, String> {
    let key = key(secret)?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|e| e.to_string())?;
    let timestamp = timestamp.to_string();
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    let signature = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    Ok(Signature { id: id.to_owned(), timestamp, signature })
}

/// Checks a secret when a worker is registered. The message never contains the secret.
pub fn check_secret(secret: &str) -> Result<(), String> {
    key(secret).map(drop)
}

fn key(secret: &str) -> Result<Vec<u8>, String> {
    let key = match secret.strip_prefix(PREFIX) {
        Some(encoded) => SECRET_BASE64
            .decode(encoded.trim())
            // The decoder's own message quotes a byte of the secret.
            .map_err(|_| "the worker's secret is not base64 after \"whsec_\"".to_owned())?,
        None => secret.as_bytes().to_vec(),
    };
    if key.is_empty() {
        return Err("the worker's secret is empty".to_owned());
    }
    Ok(key)
}

const UNNAMED: &str = "a request without an Idempotency-Key can't be signed";

/// Checks before connecting whether a request can be signed, if it has secrets.
pub fn check_signable(request: &Request) -> Result<(), String> {
    if request.secrets.is_empty() {
        return Ok(());
    }
    idempotency_key(request).ok_or(UNNAMED)?;
    request.secrets.iter().try_for_each(|secret| check_secret(secret))
}

fn idempotency_key(request: &Request) -> Option<&str> {
    let mut headers = request.headers.iter();
    headers.find(|(name, _)| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY)).map(|(_, value)| value.as_str())
}

/// The signature of a request at this moment. None: it has no secrets. With several secrets, the header has a signature
/// for each, separated by blanks.
pub fn signature(request: &Request) -> Result<Option<Signature>, HttpFailure> {
    if request.secrets.is_empty() {
        return Ok(None);
    }
    let id = idempotency_key(request).ok_or_else(|| UNNAMED.to_owned());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| "the clock stands before 1970".to_owned());
    let signed = id.and_then(|id| {
        let now = now?.as_secs();
        let signatures = request.secrets.iter().map(|secret| sign(secret, id, now, &request.body));
        signatures.collect::<Result<Vec<_>, _>>()
    });
    let signed = signed.map_err(|message| HttpFailure::new(FailureKind::Invalid, message))?;
    let all = signed.iter().map(|each| each.signature.as_str()).collect::<Vec<_>>().join(" ");
    Ok(signed.into_iter().next().map(|first| Signature { signature: all, ..first }))
}
