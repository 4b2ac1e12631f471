//! Rust values as parameters and columns of SQL statements.

use super::catch::{PgError, Result};
use pgrx::pg_sys;
use std::borrow::Cow;
use std::fmt::Display;
use xdb_engine::{Api, ExecutionId, Json, ProcessStatus, StateSeq, StateStatus, Timestamp};

/// A parameter: its type and its value.
#[derive(Clone, Copy)]
pub struct Param {
    pub(super) oid: pg_sys::Oid,
    pub(super) datum: pg_sys::Datum,
    pub(super) null: bool,
    pub(super) is_array: bool,
}

/// A Rust type that stands for an SQL type: as a parameter, as an element of an array, and as JSON.
pub trait SqlValue {
    const TYPE: SqlType;
    /// Whether there may be no value.
    const NULLABLE: bool = false;
    /// None is null.
    fn datum(&self) -> Option<pg_sys::Datum>;
    /// Appends the value as JSON, as `check_process` compares it.
    fn json(&self, text: &mut String);
}

/// A Rust type that a column of a result, or an argument of a function, is read as. A datum does not know its type: to read a number
/// as a text is to follow it to wherever it points.
pub trait FromColumn<'r>: Sized {
    /// The one SQL type that it can be read from.
    const OID: pg_sys::Oid;

    /// # Safety
    /// The datum, if it is not null, is of that type, and lives for `'r`.
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self>;
}

/// An SQL type as parameters, arrays and columns have it. As an element of arrays it has `typlen`, `typbyval` and `typalign` of
/// `pg_type`.
#[derive(Clone, Copy, Debug)]
pub struct SqlType {
    /// The name of the parameter's type.
    pub name: &'static str,
    /// The name of the column's type: values are cast to it.
    pub column: &'static str,
    oid: pg_sys::Oid,
    /// The type of arrays of it; invalid if there are none.
    array: pg_sys::Oid,
    length: i16,
    by_value: bool,
    align: u8,
}

impl SqlType {
    const fn by_value(name: &'static str, oid: pg_sys::Oid, array: pg_sys::Oid, length: i16, align: u8) -> Self {
        Self { name, column: name, oid, array, length, by_value: true, align }
    }

    const fn by_reference(name: &'static str, oid: pg_sys::Oid, array: pg_sys::Oid, length: i16, align: u8) -> Self {
        Self { name, column: name, oid, array, length, by_value: false, align }
    }

    const fn stored_as(self, column: &'static str) -> Self {
        Self { column, ..self }
    }
}

const BOOL: SqlType = SqlType::by_value("bool", pg_sys::BOOLOID, pg_sys::BOOLARRAYOID, 1, pg_sys::TYPALIGN_CHAR);
const INT2: SqlType = SqlType::by_value("int2", pg_sys::INT2OID, pg_sys::INT2ARRAYOID, 2, pg_sys::TYPALIGN_SHORT);
const INT4: SqlType = SqlType::by_value("int4", pg_sys::INT4OID, pg_sys::INT4ARRAYOID, 4, pg_sys::TYPALIGN_INT);
const INT8: SqlType = SqlType::by_value("int8", pg_sys::INT8OID, pg_sys::INT8ARRAYOID, 8, pg_sys::TYPALIGN_DOUBLE);
const OID: SqlType = SqlType::by_value("oid", pg_sys::OIDOID, pg_sys::OIDARRAYOID, 4, pg_sys::TYPALIGN_INT);
const TEXT: SqlType = SqlType::by_reference("text", pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, -1, pg_sys::TYPALIGN_INT);
const TIMESTAMPTZ: SqlType =
    SqlType::by_value("timestamptz", pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZARRAYOID, 8, pg_sys::TYPALIGN_DOUBLE);
const INTERVAL: SqlType =
    SqlType::by_reference("interval", pg_sys::INTERVALOID, pg_sys::INTERVALARRAYOID, 16, pg_sys::TYPALIGN_DOUBLE);
const UUID: SqlType = SqlType::by_reference("uuid", pg_sys::UUIDOID, pg_sys::UUIDARRAYOID, 16, pg_sys::TYPALIGN_CHAR);

/// Microseconds from the Unix epoch to Postgres' epoch, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// Something has another type than the one it is read as: the schema is not what this library expects.
pub(super) fn other_type(what: impl Display, found: pg_sys::Oid, wanted: pg_sys::Oid) -> PgError {
    let (found, wanted) = (found.to_u32(), wanted.to_u32());
    PgError::internal(format!("{what} has the type with oid {found} instead of {wanted}"))
}

fn unexpected_null() -> PgError {
    PgError::internal("a column that can't be null is")
}

/// Types that are a number of a fixed size to the server. What it has no unsigned numbers for is stored in signed ones.
macro_rules! numbers {
    ($($rust:ty = $sql:ident ($stored:ty)),+ $(,)?) => { $(
        impl SqlValue for $rust {
            const TYPE: SqlType = $sql;
            fn datum(&self) -> Option<pg_sys::Datum> {
                Some(pg_sys::Datum::from(*self as $stored))
            }
            fn json(&self, text: &mut String) {
                text.push_str(&(*self as $stored).to_string());
            }
        }
        impl FromColumn<'_> for $rust {
            const OID: pg_sys::Oid = $sql.oid;
            unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
                Ok(datum.ok_or_else(unexpected_null)?.value() as $stored as Self)
            }
        }
    )+ };
}

numbers! { i16 = INT2 (i16), i32 = INT4 (i32), u32 = INT4 (i32), i64 = INT8 (i64), u64 = INT8 (i64) }

impl SqlValue for StateSeq {
    const TYPE: SqlType = INT4;
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.0.datum()
    }
    fn json(&self, text: &mut String) {
        self.0.json(text);
    }
}

impl FromColumn<'_> for StateSeq {
    const OID: pg_sys::Oid = INT4.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: as here.
        Ok(Self(unsafe { u32::read(datum)? }))
    }
}

/// Enums that are stored as their words.
macro_rules! words {
    ($($name:ty),+ $(,)?) => { $(
        impl SqlValue for $name {
            const TYPE: SqlType = TEXT;
            fn datum(&self) -> Option<pg_sys::Datum> {
                self.as_str().datum()
            }
            fn json(&self, text: &mut String) {
                self.as_str().json(text);
            }
        }
        impl FromColumn<'_> for $name {
            const OID: pg_sys::Oid = TEXT.oid;
            unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
                // SAFETY: as here.
                let word = unsafe { <&str>::read(datum)? };
                let unknown = || PgError::internal(format!("a system table holds the unknown word \"{word}\""));
                Self::parse(word).ok_or_else(unknown)
            }
        }
    )+ };
}

words! { ProcessStatus, StateStatus, Api }

impl SqlValue for bool {
    const TYPE: SqlType = BOOL;
    fn datum(&self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(*self))
    }
    fn json(&self, text: &mut String) {
        text.push_str(if *self { "true" } else { "false" });
    }
}

impl FromColumn<'_> for bool {
    const OID: pg_sys::Oid = BOOL.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        Ok(datum.ok_or_else(unexpected_null)?.value() != 0)
    }
}

impl SqlValue for pg_sys::Oid {
    const TYPE: SqlType = OID;
    fn datum(&self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(*self))
    }
    /// As Postgres writes it: a text.
    fn json(&self, text: &mut String) {
        text.push_str(&format!("\"{}\"", self.to_u32()));
    }
}

impl FromColumn<'_> for pg_sys::Oid {
    const OID: pg_sys::Oid = OID.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        Ok(Self::from(datum.ok_or_else(unexpected_null)?.value() as u32))
    }
}

/// The oid of a table, in a column that shows its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation(pub u32);

impl SqlValue for Relation {
    const TYPE: SqlType = OID.stored_as("regclass");
    fn datum(&self) -> Option<pg_sys::Datum> {
        pg_sys::Oid::from(self.0).datum()
    }
    fn json(&self, text: &mut String) {
        pg_sys::Oid::from(self.0).json(text);
    }
}

impl FromColumn<'_> for Relation {
    const OID: pg_sys::Oid = OID.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: as here.
        Ok(Self(unsafe { pg_sys::Oid::read(datum)? }.to_u32()))
    }
}

/// A length of time, in a column of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub std::time::Duration);

impl SqlValue for Interval {
    const TYPE: SqlType = INTERVAL;
    fn datum(&self) -> Option<pg_sys::Datum> {
        // SAFETY: a new value in the current memory context.
        unsafe {
            let interval = pg_sys::palloc0(size_of::<pg_sys::Interval>()).cast::<pg_sys::Interval>();
            (*interval).time = self.0.as_micros() as i64;
            Some(pg_sys::Datum::from(interval))
        }
    }
    fn json(&self, text: &mut String) {
        text.push_str(&self.0.as_micros().to_string());
    }
}

impl FromColumn<'_> for Interval {
    const OID: pg_sys::Oid = INTERVAL.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        const DAY: i64 = 86_400_000_000;
        let interval = datum.ok_or_else(unexpected_null)?.cast_mut_ptr::<pg_sys::Interval>();
        // SAFETY: a value of that type. Somebody may have written months into it, which have no length.
        let micros = unsafe { (*interval).time + DAY * i64::from((*interval).day) };
        Ok(Self(std::time::Duration::from_micros(micros.max(0) as u64)))
    }
}

impl SqlValue for Timestamp {
    const TYPE: SqlType = TIMESTAMPTZ;
    fn datum(&self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from(to_postgres(*self)))
    }
    fn json(&self, text: &mut String) {
        text.push_str(&self.0.to_string());
    }
}

impl FromColumn<'_> for Timestamp {
    const OID: pg_sys::Oid = TIMESTAMPTZ.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        Ok(from_postgres(datum.ok_or_else(unexpected_null)?.value() as i64))
    }
}

impl SqlValue for str {
    const TYPE: SqlType = TEXT;
    fn datum(&self) -> Option<pg_sys::Datum> {
        // SAFETY: copies the bytes into a new text value in the current memory context.
        Some(unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(self.as_ptr().cast(), self.len() as i32)) })
    }
    fn json(&self, text: &mut String) {
        // A string always has a JSON form.
        text.push_str(&serde_json::to_string(self).unwrap_or_default());
    }
}

impl<'r> FromColumn<'r> for &'r str {
    const OID: pg_sys::Oid = TEXT.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: a text, which lives for 'r.
        unsafe { pgrx::FromDatum::from_polymorphic_datum(datum.ok_or_else(unexpected_null)?, false, Self::OID) }
            .ok_or_else(unexpected_null)
    }
}

/// The text of a `jsonb`. It is a text on the way to the server, which makes a `jsonb` of it, and on the way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jsonb<'a>(pub Cow<'a, str>);

impl<'a> From<&'a Json> for Jsonb<'a> {
    fn from(json: &'a Json) -> Self {
        Self(Cow::Borrowed(json.as_str()))
    }
}

impl Jsonb<'_> {
    pub fn to_json(&self) -> Json {
        Json::from_trusted(self.0.as_ref())
    }
}

impl SqlValue for Jsonb<'_> {
    const TYPE: SqlType = TEXT.stored_as("jsonb");
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.0.as_ref().datum()
    }
    fn json(&self, text: &mut String) {
        text.push_str(&self.0);
    }
}

impl<'r> FromColumn<'r> for Jsonb<'r> {
    const OID: pg_sys::Oid = TEXT.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: as here.
        Ok(Self(Cow::Borrowed(unsafe { <&'r str>::read(datum)? })))
    }
}

impl SqlValue for ExecutionId {
    const TYPE: SqlType = UUID;
    fn datum(&self) -> Option<pg_sys::Datum> {
        // SAFETY: a uuid is 16 bytes; palloc gives room for them.
        unsafe {
            let copy = pg_sys::palloc(16).cast::<u8>();
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), copy, 16);
            Some(pg_sys::Datum::from(copy))
        }
    }
    fn json(&self, text: &mut String) {
        text.push_str(&format!("\"{self}\""));
    }
}

impl FromColumn<'_> for ExecutionId {
    const OID: pg_sys::Oid = UUID.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        let datum = datum.ok_or_else(unexpected_null)?;
        let mut id = [0; 16];
        // SAFETY: a uuid datum points to 16 bytes.
        unsafe { std::ptr::copy_nonoverlapping(datum.cast_mut_ptr::<u8>(), id.as_mut_ptr(), 16) };
        Ok(Self(id))
    }
}

/// An array as a single value. There are no arrays of arrays of different lengths: a batch of these has one row.
impl SqlValue for Vec<String> {
    const TYPE: SqlType =
        SqlType { name: "text[]", column: "text[]", oid: TEXT.array, array: pg_sys::InvalidOid, ..TEXT };
    fn datum(&self) -> Option<pg_sys::Datum> {
        Some(array(self.iter().map(String::as_str)).datum)
    }
    fn json(&self, text: &mut String) {
        text.push_str(&serde_json::to_string(self).unwrap_or_default());
    }
}

impl FromColumn<'_> for Vec<String> {
    const OID: pg_sys::Oid = TEXT.array;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: an array of texts, which are copied.
        unsafe { pgrx::FromDatum::from_polymorphic_datum(datum.ok_or_else(unexpected_null)?, false, Self::OID) }
            .ok_or_else(unexpected_null)
    }
}

impl FromColumn<'_> for Vec<Option<String>> {
    const OID: pg_sys::Oid = TEXT.array;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: as here.
        unsafe { pgrx::FromDatum::from_polymorphic_datum(datum.ok_or_else(unexpected_null)?, false, Self::OID) }
            .ok_or_else(unexpected_null)
    }
}

impl SqlValue for String {
    const TYPE: SqlType = TEXT;
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.as_str().datum()
    }
    fn json(&self, text: &mut String) {
        self.as_str().json(text);
    }
}

impl FromColumn<'_> for String {
    const OID: pg_sys::Oid = TEXT.oid;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: as here; the text is copied.
        Ok(unsafe { <&str>::read(datum)? }.to_owned())
    }
}

impl<T: SqlValue + ?Sized> SqlValue for &T {
    const TYPE: SqlType = T::TYPE;
    const NULLABLE: bool = T::NULLABLE;
    fn datum(&self) -> Option<pg_sys::Datum> {
        (**self).datum()
    }
    fn json(&self, text: &mut String) {
        (**self).json(text);
    }
}

impl<T: SqlValue> SqlValue for Option<T> {
    const TYPE: SqlType = T::TYPE;
    const NULLABLE: bool = true;
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.as_ref().and_then(SqlValue::datum)
    }
    fn json(&self, text: &mut String) {
        match self {
            Some(value) => value.json(text),
            None => text.push_str("null"),
        }
    }
}

impl<'r, T: FromColumn<'r>> FromColumn<'r> for Option<T> {
    const OID: pg_sys::Oid = T::OID;
    unsafe fn read(datum: Option<pg_sys::Datum>) -> Result<Self> {
        // SAFETY: as here.
        datum.map(|datum| unsafe { T::read(Some(datum)) }).transpose()
    }
}

/// A value, null if it is None.
pub fn value<T: SqlValue>(value: T) -> Param {
    let datum = value.datum();
    let null = datum.is_none();
    Param { oid: T::TYPE.oid, datum: datum.unwrap_or(pg_sys::Datum::null()), null, is_array: false }
}

/// A one-dimensional array.
pub fn array<T: SqlValue>(values: impl IntoIterator<Item = T>) -> Param {
    array_of(values.into_iter())
}

/// A column of a batch for [`run_batch`](super::spi::Spi::run_batch): the value itself if the batch has one row, else an array.
/// All columns of a batch have the same length, which is not 0.
pub fn column<T: SqlValue>(values: impl IntoIterator<Item = T>) -> Param {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (Some(only), None) => value(only),
        (first, second) => array_of(first.into_iter().chain(second).chain(values)),
    }
}

fn array_of<T: SqlValue>(values: impl Iterator<Item = T>) -> Param {
    let SqlType { oid, array, length, by_value, align, .. } = T::TYPE;
    assert_ne!(array, pg_sys::InvalidOid, "an array in an array");
    let datums = values.map(|value| value.datum());
    let (mut elements, mut nulls): (Vec<_>, Vec<_>) =
        datums.map(|datum| (datum.unwrap_or(pg_sys::Datum::null()), datum.is_none())).unzip();
    let (mut count, mut first) = (elements.len() as i32, 1);
    // SAFETY: so many elements of this type, and as many flags.
    let datum = unsafe {
        pg_sys::Datum::from(pg_sys::construct_md_array(
            elements.as_mut_ptr(),
            nulls.as_mut_ptr(),
            1,
            &raw mut count,
            &raw mut first,
            oid,
            i32::from(length),
            by_value,
            align as std::ffi::c_char,
        ))
    };
    Param { oid: array, datum, null: false, is_array: true }
}

/// As Postgres counts a `timestamptz`.
pub fn to_postgres(at: Timestamp) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH)
}

/// From Postgres' count.
pub fn from_postgres(at: i64) -> Timestamp {
    Timestamp(at.saturating_add(POSTGRES_EPOCH)).min(Timestamp::LAST)
}
