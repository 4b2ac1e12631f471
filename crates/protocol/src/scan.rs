//! Checks JSON text without building values and without recursion. serde checks the grammar. The rest are numbers,
//! escapes and the depth.

use serde::de::IgnoredAny;
use std::fmt;

/// Why a text is not a payload. The message is a predicate that follows the name of the value: "input is nested deeper
/// than 128 levels".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadError {
    TooLarge {
        bytes: usize,
        max: usize,
    },
    /// `jsonb` writes numbers out: the few bytes of `1e131071` become a hundred thousand.
    TooLargeWrittenOut {
        bytes: usize,
        max: usize,
    },
    TooDeep {
        max: usize,
    },
    /// An error of serde.
    Syntax(String),
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
            Self::Syntax(what) => write!(f, "is not JSON: {what}"),
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

/// The checks besides the grammar.
pub(crate) struct Rules {
    pub max_depth: usize,
    /// Check what only `jsonb` refuses: `\u0000`, half surrogate pairs, numbers beyond `numeric`.
    pub jsonb: bool,
}

/// Checks that the text is one JSON value. Returns its length, with numbers written out as `numeric` does.
pub(crate) fn scan(text: &str, rules: &Rules) -> Result<usize, PayloadError> {
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| PayloadError::Syntax(error.to_string()))?;
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut length) = (0, 0, text.len());
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' if depth >= rules.max_depth => return Err(PayloadError::TooDeep { max: rules.max_depth }),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => at = end_of_string(text, at, rules.jsonb)?,
            b'-' | b'0'..=b'9' if rules.jsonb => {
                let number = &text[at..];
                let number = &number[..number.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(number.len())];
                let written_out = digits_of(number).ok_or(PayloadError::NumberOutOfRange { at })?;
                length = length.saturating_add(written_out.saturating_sub(number.len()));
                at += number.len() - 1;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(length)
}

/// The position of the closing quote of the string that begins at `at`.
fn end_of_string(text: &str, mut at: usize, jsonb: bool) -> Result<usize, PayloadError> {
    let bytes = text.as_bytes();
    // The code unit after `\u`. The grammar check has made sure of four digits.
    let unit = |at: usize| {
        let is_one = bytes[at..].starts_with(b"\\u");
        is_one.then(|| u32::from_str_radix(&text[at + 2..at + 6], 16).unwrap_or_default())
    };
    at += 1;
    loop {
        match bytes[at] {
            b'"' => return Ok(at),
            b'\\' => match unit(at).filter(|_| jsonb) {
                None => at += 2,
                Some(0) => return Err(PayloadError::NulCharacter { at }),
                Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
                Some(0xd800..=0xdfff) => return Err(PayloadError::UnpairedSurrogate { at }),
                Some(_) => at += 6,
            },
            _ => at += 1,
        }
    }
}

/// Digits that `numeric` can hold before and after the decimal point.
const MAX_INTEGER_DIGITS: i64 = 131_072;
const MAX_SCALE: i64 = 16_383;
/// `numeric` refuses exponents of this size and above, even if the number is zero.
const EXPONENT_BOUND: u64 = 1_073_741_823;

/// The length of a number as `numeric` writes it. None: out of range.
fn digits_of(number: &str) -> Option<usize> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = whole.trim_start_matches('-');
    // An exponent that does not fit into an `i64` is out of range too.
    let exponent = exponent.parse::<i64>().ok().filter(|exponent| exponent.unsigned_abs() < EXPONENT_BOUND)?;
    // The power of ten of the first digit that is not zero. None: the number is zero.
    let leading = match digits {
        "0" => fraction.find(|digit| digit != '0').map(|zeros| exponent - 1 - zeros as i64),
        _ => Some(digits.len() as i64 - 1 + exponent),
    };
    let scale = (fraction.len() as i64 - exponent).max(0);
    if scale > MAX_SCALE || leading.is_some_and(|power| power >= MAX_INTEGER_DIGITS) {
        return None;
    }
    let sign_and_point = (whole.len() - digits.len()) as i64 + i64::from(scale > 0);
    Some((sign_and_point + leading.unwrap_or(0).max(0) + 1 + scale) as usize)
}
