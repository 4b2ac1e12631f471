use crate::scan::{Rules, scan};
use std::fmt;
use xdb_engine::Json;

/// How deep arrays and objects of a payload may be nested.
pub const MAX_PAYLOAD_DEPTH: usize = 128;

/// Why a text is no payload. Its message is a predicate: it follows the name of the value that it is about, as in
/// "input is nested deeper than 128 levels".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadError {
    TooLarge {
        bytes: usize,
        max: usize,
    },
    /// `jsonb` writes numbers out: a few bytes such as `1e131071` become a hundred thousand.
    TooLargeWrittenOut {
        bytes: usize,
        max: usize,
    },
    TooDeep {
        max: usize,
    },
    Syntax {
        at: usize,
        what: String,
    },
    NulCharacter {
        at: usize,
    },
    UnpairedSurrogate {
        at: usize,
    },
    NumberOutOfRange {
        at: usize,
    },
}

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max } => write!(f, "is {bytes} bytes long; at most {max} are allowed"),
            Self::TooLargeWrittenOut { bytes, max } => {
                write!(f, "is {bytes} bytes long with its numbers written out; at most {max} are allowed")
            }
            Self::TooDeep { max } => write!(f, "is nested deeper than {max} levels"),
            Self::Syntax { at, what } => write!(f, "is not JSON: {what} at byte {at}"),
            Self::NulCharacter { at } => {
                write!(f, "has the escape \\u0000 at byte {at}: Postgres can't store NUL characters")
            }
            Self::UnpairedSurrogate { at } => write!(f, "has half of a surrogate pair at byte {at}"),
            Self::NumberOutOfRange { at } => {
                write!(f, "has a number at byte {at} that is out of the range of numeric")
            }
        }
    }
}

impl std::error::Error for PayloadError {}

/// Accepts a text as a payload if `jsonb` would accept it, it is not nested deeper than [`MAX_PAYLOAD_DEPTH`], and it
/// is not longer than `max_bytes`, neither as it stands nor with its numbers written out. The text is kept as it is.
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
