//! Reads fields of JSON documents. Errors name the place and say what is wrong there.

use crate::payload::check_payload;
use crate::unknown::{Step, Unknown};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use xdb_engine::{Json, Timestamp};

/// Longest name of a state, queue, attribute, command or message, in bytes. Two such names fit into an index entry.
pub const MAX_NAME_BYTES: usize = 1024;

/// How much of a number a message repeats.
const SHOWN_DIGITS: usize = 40;

/// What is wrong with a document, and where. `what` is a predicate that follows the path or the document's name.
#[derive(Debug)]
pub(crate) struct Fault {
    path: String,
    what: String,
}

impl Fault {
    pub fn new(what: impl Into<String>) -> Self {
        Self { path: String::new(), what: what.into() }
    }

    /// Puts a key before the path.
    pub fn at(self, key: &str) -> Self {
        self.under(&cut(key, 100).escape_debug().to_string())
    }

    fn at_index(self, index: usize) -> Self {
        self.under(&format!("[{index}]"))
    }

    /// Puts a step before the path. `step` must be printable.
    pub fn under(mut self, step: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
        self
    }

    /// The message for a fault; `document` is the name of the document.
    pub fn message(&self, document: &str) -> String {
        let subject = if self.path.is_empty() { document } else { &self.path };
        format!("{subject} {}", self.what)
    }
}

pub(crate) type Parsed<T> = Result<T, Fault>;

/// A text in quotes for a message, shortened and printable.
pub(crate) fn quote(text: &str) -> String {
    let short = cut(text, 100);
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}

/// At most the first `chars` characters.
pub(crate) fn cut(text: &str, chars: usize) -> &str {
    match text.char_indices().nth(chars) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// How unknown keys are treated. A worker may be newer than the engine, but a typing error in a registration should be
/// found at once.
#[derive(Clone, Copy)]
pub(crate) enum UnknownKeys<'u> {
    Refused,
    Ignored,
    /// Recorded by [`Object::knowing`].
    Noted(&'u Unknown),
}

impl UnknownKeys<'_> {
    fn within<T>(self, step: Step, read: impl FnOnce() -> T) -> T {
        if let Self::Noted(unknown) = self { unknown.within(step, read) } else { read() }
    }
}

/// The fields of an object. If a key occurs twice, its last value counts, as in `jsonb`.
pub(crate) struct Object<'a> {
    fields: BTreeMap<String, &'a RawValue>,
    unknown_keys: UnknownKeys<'a>,
    /// The keys that were read. Used only if unknown keys are refused.
    known: Vec<&'static str>,
}

impl<'a> Object<'a> {
    /// Reads an object. [`Object::finish`] refuses or ignores the fields that were not read.
    pub fn read(text: &'a str, unknown_keys: UnknownKeys<'a>) -> Parsed<Self> {
        if !text.trim_start().starts_with('{') {
            return Err(Fault::new("must be an object"));
        }
        let fields = serde_json::from_str(text).map_err(|error| Fault::new(format!("is not valid: {error}")))?;
        Ok(Self { fields, unknown_keys, known: Vec::new() })
    }

    /// Declares all keys of the object, if unknown keys are recorded. So unknown keys are recorded even if reading the
    /// object fails later.
    pub fn knowing(self, known: &'static [&'static str]) -> Self {
        if let UnknownKeys::Noted(unknown) = self.unknown_keys {
            unknown.note(self.fields.keys(), known);
        }
        self
    }

    /// Reads a field. Null counts as absent.
    pub fn optional<T>(&mut self, key: &'static str, read: impl FnOnce(&'a str) -> Parsed<T>) -> Parsed<Option<T>> {
        if matches!(self.unknown_keys, UnknownKeys::Refused) {
            self.known.push(key);
        }
        match self.fields.remove(key).map(RawValue::get) {
            None | Some("null") => Ok(None),
            Some(text) => {
                let value = self.unknown_keys.within(Step::Key(key), || read(text));
                value.map(Some).map_err(|fault| fault.at(key))
            }
        }
    }

    /// Whether one of these fields exists and is not null.
    pub fn has_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.fields.get(*key).is_some_and(|value| value.get() != "null"))
    }

    /// Reads a required field.
    pub fn required<T>(&mut self, key: &'static str, read: impl FnOnce(&'a str) -> Parsed<T>) -> Parsed<T> {
        self.optional(key, read)?.ok_or_else(|| Fault::new("is missing").at(key))
    }

    /// Reads a required field that has one of the known words.
    pub fn required_word<T>(
        &mut self,
        key: &'static str,
        known: &[&str],
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Parsed<T> {
        let missing = || Fault::new(format!("is missing; known are {}", known.join(", "))).at(key);
        self.optional(key, |text| word(text, known, parse))?.ok_or_else(missing)
    }

    /// Reads an array. An absent array is empty.
    pub fn list_of<T>(&mut self, key: &'static str, mut read: impl FnMut(&'a str) -> Parsed<T>) -> Parsed<Vec<T>> {
        let (unknown_keys, mut items) = (self.unknown_keys, 0..);
        let read_one = |text| unknown_keys.within(Step::Item(items.next().unwrap_or_default()), || read(text));
        Ok(self.optional(key, |text| list(text, read_one))?.unwrap_or_default())
    }

    /// Like [`list_of`](Self::list_of), with at most this many elements.
    pub fn list_of_at_most<T>(
        &mut self,
        most: usize,
        key: &'static str,
        read: impl FnMut(&'a str) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let items = self.list_of(key, read)?;
        match items.len() > most {
            true => Err(Fault::new(format!("has {} entries; at most {most} are allowed", items.len())).at(key)),
            false => Ok(items),
        }
    }

    /// Reads an object with free keys. An absent object is empty.
    pub fn map_of<T>(
        &mut self,
        key: &'static str,
        read: impl FnMut(&'a str) -> Parsed<T>,
    ) -> Parsed<BTreeMap<String, T>> {
        Ok(self.optional(key, |text| map(text, read))?.unwrap_or_default())
    }

    /// Returns `made`, unless unknown keys are refused and some fields were not read.
    pub fn finish<T>(self, made: T) -> Parsed<T> {
        match self.fields.keys().next() {
            Some(key) if matches!(self.unknown_keys, UnknownKeys::Refused) => {
                let known = self.known.join(", ");
                Err(Fault::new(format!("has the unknown key {}; known are {known}", quote(key))))
            }
            _ => Ok(made),
        }
    }
}

pub(crate) fn list<'a, T>(text: &'a str, mut read: impl FnMut(&'a str) -> Parsed<T>) -> Parsed<Vec<T>> {
    if !text.starts_with('[') {
        return Err(Fault::new("must be an array"));
    }
    let items: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| Fault::new(format!("is not valid: {error}")))?;
    items.iter().enumerate().map(|(index, item)| read(item.get()).map_err(|fault| fault.at_index(index))).collect()
}

/// An object whose keys are free names.
pub(crate) fn map<'a, T>(text: &'a str, mut read: impl FnMut(&'a str) -> Parsed<T>) -> Parsed<BTreeMap<String, T>> {
    let object = Object::read(text, UnknownKeys::Ignored)?;
    let read_one = |(key, value): (String, &'a RawValue)| {
        check_name(&key).map_err(|fault| Fault::new(format!("has a key that {}", fault.what)))?;
        let value = read(value.get()).map_err(|fault| fault.at(&key))?;
        Ok((key, value))
    };
    object.fields.into_iter().map(read_one).collect()
}

pub(crate) fn string(text: &str) -> Parsed<String> {
    if !text.starts_with('"') {
        return Err(Fault::new("must be a string"));
    }
    serde_json::from_str(text).map_err(|error| Fault::new(format!("is not valid: {error}")))
}

pub(crate) fn moment(text: &str) -> Parsed<Timestamp> {
    parse_moment(&string(text)?).map_err(Fault::new)
}

/// A moment in RFC 3339, rounded up to microseconds, so that a timer never fires early. The error is a predicate.
pub fn parse_moment(text: &str) -> Result<Timestamp, String> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|error| format!("{} is not a time in RFC 3339: {error}", quote(text)))?;
    let microseconds = parsed.unix_timestamp_nanos().div_euclid(1000);
    let rounding = i128::from(parsed.unix_timestamp_nanos().rem_euclid(1000) > 0);
    i64::try_from(microseconds + rounding).map(Timestamp).map_err(|_| "is too far away".to_owned())
}

/// A name: not empty, at most [`MAX_NAME_BYTES`] long, without NUL.
pub(crate) fn name(text: &str) -> Parsed<String> {
    let name = string(text)?;
    check_name(&name)?;
    Ok(name)
}

fn check_name(name: &str) -> Parsed<()> {
    if name.is_empty() {
        return Err(Fault::new("is empty"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(Fault::new(format!("is {} bytes long; at most {MAX_NAME_BYTES} are allowed", name.len())));
    }
    if name.contains('\0') {
        return Err(Fault::new("contains a NUL character"));
    }
    Ok(())
}

pub(crate) fn boolean(text: &str) -> Parsed<bool> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Fault::new("must be true or false")),
    }
}

/// The fault of a number: its text, shortened, and what the number must be.
pub(crate) fn wrong_number(text: &str, must: impl std::fmt::Display) -> Fault {
    let short = cut(text, SHOWN_DIGITS);
    let more = if short.len() < text.len() { "…" } else { "" };
    Fault::new(format!("is {short}{more}; it must {must}"))
}

/// A finite number, at least 0.
pub(crate) fn seconds(text: &str) -> Parsed<f64> {
    let number = number(text)?;
    if number < 0.0 {
        return Err(wrong_number(text, "not be negative"));
    }
    Ok(number)
}

/// The largest accepted number. `jsonb` writes numbers out, and some readers can't read larger ones again.
const MAX_NUMBER: f64 = 1e300;

pub(crate) fn number(text: &str) -> Parsed<f64> {
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return Err(Fault::new("must be a number"));
    }
    match text.parse::<f64>() {
        Ok(number) if number.abs() <= MAX_NUMBER => Ok(number),
        Ok(_) => Err(wrong_number(text, format_args!("be from -{MAX_NUMBER:e} to {MAX_NUMBER:e}"))),
        Err(error) => Err(Fault::new(format!("is not valid: {error}"))),
    }
}

/// A whole number within SQL's `int`; `1.0` is one.
pub(crate) fn whole(text: &str) -> Parsed<u32> {
    let number = number(text)?;
    if number < 0.0 {
        return Err(wrong_number(text, "not be negative"));
    }
    if number.fract() != 0.0 {
        return Err(wrong_number(text, "be a whole number"));
    }
    if number > f64::from(i32::MAX) {
        return Err(wrong_number(text, format_args!("be at most {}", i32::MAX)));
    }
    Ok(number as u32)
}

/// One of the known words.
pub(crate) fn word<T>(text: &str, known: &[&str], parse: impl FnOnce(&str) -> Option<T>) -> Parsed<T> {
    let word = string(text)?;
    parse(&word).ok_or_else(|| Fault::new(format!("{} is unknown; known are {}", quote(&word), known.join(", "))))
}

/// A value of the application.
pub(crate) fn payload(text: &str, max_bytes: usize) -> Parsed<Json> {
    check_payload(text, max_bytes).map_err(|error| Fault::new(error.to_string()))
}
