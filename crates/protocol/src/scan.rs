//! Walks over JSON text without building anything and without recursion.

use std::fmt;

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

/// What is checked besides the grammar.
pub(crate) struct Rules {
    pub max_depth: usize,
    /// Also refuse what only `jsonb` refuses: `\u0000`, half surrogate pairs, numbers beyond `numeric`.
    pub jsonb: bool,
}

/// Checks that the text is one JSON value. Answers with its length, numbers counted as `numeric` writes them out.
pub(crate) fn scan(text: &str, rules: &Rules) -> Result<usize, PayloadError> {
    let mut scanner = Scanner { text, bytes: text.as_bytes(), at: 0, rules, extra: 0 };
    scanner.document()?;
    Ok(text.len().saturating_add(scanner.extra))
}

/// Digits that `numeric` holds before and after the decimal point.
const MAX_INTEGER_DIGITS: i64 = 131_072;
const MAX_SCALE: i64 = 16_383;
/// `numeric` refuses exponents from here on, also those of a zero.
const EXPONENT_BOUND: i64 = 1_073_741_823;

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    rules: &'a Rules,
    /// Bytes that written-out numbers take more than they do in the text.
    extra: usize,
}

impl Scanner<'_> {
    fn document(&mut self) -> Result<(), PayloadError> {
        // The closing brackets that are still to come.
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some(bracket @ (b'{' | b'[')) => {
                    if open.len() >= self.rules.max_depth {
                        return Err(PayloadError::TooDeep { max: self.rules.max_depth });
                    }
                    self.at += 1;
                    self.skip_space();
                    let close = if bracket == b'{' { b'}' } else { b']' };
                    if self.peek() != Some(close) {
                        open.push(close);
                        if bracket == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                }
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                _ => return Err(self.unexpected("a value")),
            }
            loop {
                self.skip_space();
                let Some(close) = open.last().copied() else {
                    return if self.at == self.bytes.len() { Ok(()) } else { Err(self.unexpected("the end")) };
                };
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        if close == b'}' {
                            self.key()?;
                        }
                        break;
                    }
                    Some(byte) if byte == close => {
                        self.at += 1;
                        open.pop();
                    }
                    _ if close == b'}' => return Err(self.unexpected("',' or '}'")),
                    _ => return Err(self.unexpected("',' or ']'")),
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), PayloadError> {
        self.skip_space();
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a key"));
        }
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("':'"));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), PayloadError> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(0x20..) => self.at += 1,
                Some(_) | None => return Err(self.unexpected("the rest of a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), PayloadError> {
        let at = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                let unit = self.code_unit()?;
                if !self.rules.jsonb {
                    return Ok(());
                }
                match unit {
                    0 => return Err(PayloadError::NulCharacter { at }),
                    0xd800..=0xdbff => {
                        let paired = self.bytes[self.at..].starts_with(b"\\u") && {
                            self.at += 1;
                            matches!(self.code_unit()?, 0xdc00..=0xdfff)
                        };
                        if !paired {
                            return Err(PayloadError::UnpairedSurrogate { at });
                        }
                    }
                    0xdc00..=0xdfff => return Err(PayloadError::UnpairedSurrogate { at }),
                    _ => {}
                }
            }
            _ => return Err(self.unexpected("an escape")),
        }
        Ok(())
    }

    /// The four digits after the `u` that stands here.
    fn code_unit(&mut self) -> Result<u32, PayloadError> {
        self.at += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(16)) else {
                return Err(self.unexpected("a hexadecimal digit"));
            };
            unit = unit * 16 + digit;
            self.at += 1;
        }
        Ok(unit)
    }

    fn number(&mut self) -> Result<(), PayloadError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.at;
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let whole_digits = (self.at - whole) as i64;
        let starts_with_zero = self.bytes[whole] == b'0';
        let mut fraction: &[u8] = &[];
        if self.peek() == Some(b'.') {
            self.at += 1;
            let from = self.at;
            self.digits()?;
            fraction = &self.bytes[from..self.at];
        }
        let mut exponent = 0_i64;
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            let negative = self.peek() == Some(b'-');
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            let from = self.at;
            self.digits()?;
            for digit in &self.bytes[from..self.at] {
                exponent = (exponent * 10 + i64::from(digit - b'0')).min(EXPONENT_BOUND);
            }
            if negative {
                exponent = -exponent;
            }
        }
        if !self.rules.jsonb {
            return Ok(());
        }
        // Power of ten of the first digit that is not zero; None for zero itself.
        let leading = match starts_with_zero {
            false => Some(whole_digits - 1 + exponent),
            true => fraction.iter().position(|digit| *digit != b'0').map(|zeros| exponent - 1 - zeros as i64),
        };
        let scale = (fraction.len() as i64 - exponent).max(0);
        if exponent.abs() >= EXPONENT_BOUND
            || scale > MAX_SCALE
            || leading.is_some_and(|power| power >= MAX_INTEGER_DIGITS)
        {
            return Err(PayloadError::NumberOutOfRange { at: start });
        }
        let sign_and_point = (whole - start) as i64 + i64::from(scale > 0);
        let written_out = (sign_and_point + leading.unwrap_or(0).max(0) + 1 + scale) as usize;
        self.extra = self.extra.saturating_add(written_out.saturating_sub(self.at - start));
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), PayloadError> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.unexpected("a digit"));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), PayloadError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.unexpected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn unexpected(&self, expected: &str) -> PayloadError {
        // Every place where this is called stands at a character's first byte, as all that was consumed is ASCII or
        // whole strings; `get` keeps a mistake about that from being a panic.
        let found = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => format!("{found:?}"),
            None => "the end".to_owned(),
        };
        PayloadError::Syntax { at: self.at, what: format!("{found} instead of {expected}") }
    }
}
