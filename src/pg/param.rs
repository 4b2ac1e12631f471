//! Rust values as parameters and columns of SQL statements.

use super::catch::{PgError, Result, or_throw};
use super::memory;
use super::raw::{self, text};
use pgrx::pg_sys;
use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::fmt::Display;
use xdb_engine::{Api, ExecutionId, Json, LockMode, PauseMode, ProcessStatus, StateSeq, StateStatus, Timestamp};

// Declared here because `or_throw` needs the functions themselves, not pgrx's wrappers.
unsafe extern "C-unwind" {
    fn cstring_to_text_with_len(bytes: *const c_char, length: c_int) -> *mut pg_sys::text;
    fn construct_md_array(
        elements: *mut pg_sys::Datum,
        nulls: *mut bool,
        dimensions: c_int,
        lengths: *mut c_int,
        lower_bounds: *mut c_int,
        element_type: pg_sys::Oid,
        element_length: c_int,
        by_value: bool,
        align: c_char,
    ) -> *mut pg_sys::ArrayType;
}

/// A parameter of a statement: its type and its value.
#[derive(Clone, Copy)]
pub struct Param {
    pub(super) oid: pg_sys::Oid,
    pub(super) datum: pg_sys::Datum,
    pub(super) null: bool,
    pub(super) is_array: bool,
}

/// A Rust type for an SQL type: as a parameter, and as an element of an array.
pub trait SqlValue {
    const TYPE: SqlType;
    /// Whether the value may be null.
    const NULLABLE: bool = false;
    /// None is null.
    fn datum(&self) -> Option<pg_sys::Datum>;
}

/// A Rust type for reading a column of a result or an argument of a function. Hazard: a datum does not know its type.
/// Reading a number as a text would follow it as a pointer.
pub trait FromColumn<'r>: Sized {
    /// The only SQL type that it can be read from.
    const OID: pg_sys::Oid;

    /// # Safety
    /// The datum must be of that type, and live for `'r`.
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self>;

    /// The value for null.
    fn null() -> Result<Self> {
        Err(unexpected_null())
    }
}

/// An SQL type for parameters, arrays and columns. For elements of arrays it has `typlen`, `typbyval` and `typalign` of
/// `pg_type`.
#[derive(Clone, Copy, Debug)]
pub struct SqlType {
    /// The name of the parameter's type.
    pub name: &'static str,
    /// The name of the column's type. Values are cast to it.
    pub column: &'static str,
    pub(super) oid: pg_sys::Oid,
    /// The array type; invalid if there is none.
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
const FLOAT8: SqlType =
    SqlType::by_value("float8", pg_sys::FLOAT8OID, pg_sys::FLOAT8ARRAYOID, 8, pg_sys::TYPALIGN_DOUBLE);
const OID: SqlType = SqlType::by_value("oid", pg_sys::OIDOID, pg_sys::OIDARRAYOID, 4, pg_sys::TYPALIGN_INT);
const TEXT: SqlType = SqlType::by_reference("text", pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, -1, pg_sys::TYPALIGN_INT);
const TIMESTAMPTZ: SqlType =
    SqlType::by_value("timestamptz", pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZARRAYOID, 8, pg_sys::TYPALIGN_DOUBLE);
const INTERVAL: SqlType =
    SqlType::by_reference("interval", pg_sys::INTERVALOID, pg_sys::INTERVALARRAYOID, 16, pg_sys::TYPALIGN_DOUBLE);
const UUID: SqlType = SqlType::by_reference("uuid", pg_sys::UUIDOID, pg_sys::UUIDARRAYOID, 16, pg_sys::TYPALIGN_CHAR);

/// Microseconds from the Unix epoch to Postgres' epoch, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// The error for a value of an unexpected type: the schema is not the one that this library expects.
pub(super) fn other_type(what: impl Display, found: pg_sys::Oid, wanted: pg_sys::Oid) -> PgError {
    PgError::internal(format!("{what} has type {} instead of {}", type_name(found), type_name(wanted)))
}

fn type_name(oid: pg_sys::Oid) -> String {
    // SAFETY: a text for every oid: "???" for one that is no type's.
    unsafe { text(pg_sys::format_type_be(oid)) }.unwrap_or_default()
}

fn unexpected_null() -> PgError {
    PgError::internal("a column that can't be null is")
}

/// The oid of a table, in a column that shows the table's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regclass(pub u32);

/// Types whose values fit into datums, with both conversions. Unsigned numbers are stored as signed ones, because the
/// server has no unsigned type.
macro_rules! by_value {
    ($($rust:ty = $sql:expr, $to:expr, $from:expr;)+) => { $(
        impl SqlValue for $rust {
            const TYPE: SqlType = $sql;
            fn datum(&self) -> Option<pg_sys::Datum> {
                let to: fn(Self) -> _ = $to;
                Some(pg_sys::Datum::from(to(*self)))
            }
        }
        impl FromColumn<'_> for $rust {
            const OID: pg_sys::Oid = $sql.oid;
            unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
                let from: fn(usize) -> Self = $from;
                Ok(from(datum.value()))
            }
        }
    )+ };
}

by_value! {
    bool = BOOL, |value| value, |datum| datum != 0;
    i8 = INT2, |value| i16::from(value), |datum| datum as i8;
    i16 = INT2, |value| value, |datum| datum as i16;
    i32 = INT4, |value| value, |datum| datum as i32;
    u32 = INT4, |value| value as i32, |datum| datum as u32;
    i64 = INT8, |value| value, |datum| datum as i64;
    u64 = INT8, |value| value as i64, |datum| datum as u64;
    f64 = FLOAT8, |value| value.to_bits() as i64, |datum| f64::from_bits(datum as u64);
    StateSeq = INT4, |value| value.0 as i32, |datum| StateSeq(datum as u32);
    pg_sys::Oid = OID, |value| value, |datum| pg_sys::Oid::from(datum as u32);
    Regclass = OID.stored_as("regclass"), |value| pg_sys::Oid::from(value.0), |datum| Regclass(datum as u32);
    Timestamp = TIMESTAMPTZ, to_postgres, |datum| from_postgres(datum as i64);
}

/// Enums that are stored as their words.
macro_rules! words {
    ($($name:ty),+ $(,)?) => { $(
        impl SqlValue for $name {
            const TYPE: SqlType = TEXT;
            fn datum(&self) -> Option<pg_sys::Datum> {
                self.as_str().datum()
            }
        }
        impl FromColumn<'_> for $name {
            const OID: pg_sys::Oid = TEXT.oid;
            unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
                // SAFETY: as here.
                let word = unsafe { <&str>::read(datum)? };
                let unknown = || PgError::internal(format!("a system table holds the unknown word \"{word}\""));
                Self::parse(word).ok_or_else(unknown)
            }
        }
    )+ };
}

words! { ProcessStatus, StateStatus, Api, LockMode, PauseMode }

/// A length of time, in a column of intervals.
#[derive(Clone, Copy, Debug)]
pub struct Interval(pub std::time::Duration);

impl SqlValue for Interval {
    const TYPE: SqlType = INTERVAL;
    fn datum(&self) -> Option<pg_sys::Datum> {
        // SAFETY: a new value in the current memory context.
        unsafe {
            let interval = or_throw(|| raw::palloc0(size_of::<pg_sys::Interval>())).cast::<pg_sys::Interval>();
            (*interval).time = self.0.as_micros() as i64;
            Some(pg_sys::Datum::from(interval))
        }
    }
}

impl SqlValue for str {
    const TYPE: SqlType = TEXT;
    fn datum(&self) -> Option<pg_sys::Datum> {
        // SAFETY: copies the bytes into a new text value in the current memory context.
        let text = unsafe { or_throw(|| cstring_to_text_with_len(self.as_ptr().cast(), self.len() as i32)) };
        Some(pg_sys::Datum::from(text))
    }
}

impl<'r> FromColumn<'r> for &'r str {
    const OID: pg_sys::Oid = TEXT.oid;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: a text, which lives for 'r.
        unsafe { pgrx::FromDatum::from_polymorphic_datum(datum, false, Self::OID) }.ok_or_else(unexpected_null)
    }
}

/// The text of a `jsonb`. The value is sent and read as text, and the server converts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jsonb<'a>(pub Cow<'a, str>);

impl<'a> From<&'a Json> for Jsonb<'a> {
    fn from(json: &'a Json) -> Self {
        Self(Cow::Borrowed(json.as_str()))
    }
}

impl Jsonb<'_> {
    pub fn to_json(&self) -> Result<Json> {
        memory::room_for(self.0.len())?;
        Ok(Json::from_trusted(self.0.as_ref()))
    }
}

impl SqlValue for Jsonb<'_> {
    const TYPE: SqlType = TEXT.stored_as("jsonb");
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.0.as_ref().datum()
    }
}

impl<'r> FromColumn<'r> for Jsonb<'r> {
    const OID: pg_sys::Oid = TEXT.oid;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: as here.
        Ok(Self(Cow::Borrowed(unsafe { <&'r str>::read(datum)? })))
    }
}

impl SqlValue for ExecutionId {
    const TYPE: SqlType = UUID;
    fn datum(&self) -> Option<pg_sys::Datum> {
        // SAFETY: a uuid is 16 bytes; palloc gives room for them.
        unsafe {
            let copy = or_throw(|| raw::palloc(16)).cast::<u8>();
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), copy, 16);
            Some(pg_sys::Datum::from(copy))
        }
    }
}

impl FromColumn<'_> for ExecutionId {
    const OID: pg_sys::Oid = UUID.oid;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        let mut id = [0; 16];
        // SAFETY: a uuid datum points to 16 bytes.
        unsafe { std::ptr::copy_nonoverlapping(datum.cast_mut_ptr::<u8>(), id.as_mut_ptr(), 16) };
        Ok(Self(id))
    }
}

/// An array as a single value. Limitation: there are no arrays of arrays of different lengths, so a batch of arrays has
/// one row.
impl SqlValue for Vec<String> {
    const TYPE: SqlType =
        SqlType { name: "text[]", column: "text[]", oid: TEXT.array, array: pg_sys::InvalidOid, ..TEXT };
    fn datum(&self) -> Option<pg_sys::Datum> {
        Some(array(self.iter().map(String::as_str)).datum)
    }
}

impl FromColumn<'_> for Vec<String> {
    const OID: pg_sys::Oid = TEXT.array;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: an array of texts, which are copied.
        unsafe { pgrx::FromDatum::from_polymorphic_datum(datum, false, Self::OID) }.ok_or_else(unexpected_null)
    }
}

impl FromColumn<'_> for Vec<Option<String>> {
    const OID: pg_sys::Oid = TEXT.array;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: as here.
        unsafe { pgrx::FromDatum::from_polymorphic_datum(datum, false, Self::OID) }.ok_or_else(unexpected_null)
    }
}

impl SqlValue for String {
    const TYPE: SqlType = TEXT;
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.as_str().datum()
    }
}

impl FromColumn<'_> for String {
    const OID: pg_sys::Oid = TEXT.oid;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: as here; the text is copied.
        memory::owned(unsafe { <&str>::read(datum)? })
    }
}

impl<T: SqlValue + ?Sized> SqlValue for &T {
    const TYPE: SqlType = T::TYPE;
    const NULLABLE: bool = T::NULLABLE;
    fn datum(&self) -> Option<pg_sys::Datum> {
        (**self).datum()
    }
}

impl<T: SqlValue> SqlValue for Option<T> {
    const TYPE: SqlType = T::TYPE;
    const NULLABLE: bool = true;
    fn datum(&self) -> Option<pg_sys::Datum> {
        self.as_ref().and_then(SqlValue::datum)
    }
}

impl<'r, T: FromColumn<'r>> FromColumn<'r> for Option<T> {
    const OID: pg_sys::Oid = T::OID;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        // SAFETY: as here.
        unsafe { T::read(datum) }.map(Some)
    }

    fn null() -> Result<Self> {
        Ok(None)
    }
}

/// A value; null if it is None.
pub fn value<T: SqlValue>(value: T) -> Param {
    value_of(&T::TYPE, value.datum())
}

pub fn array<T: SqlValue>(values: impl IntoIterator<Item = T>) -> Param {
    let mut elements = Elements::default();
    elements.push_all(values);
    elements.array(&T::TYPE)
}

/// A column of a batch for [`run_batch`](super::spi::Spi::run_batch): the value itself if the batch has one row, else
/// an array. All columns of a batch have the same length, which is not 0.
pub fn column<T: SqlValue>(values: impl IntoIterator<Item = T>) -> Param {
    let mut values = values.into_iter();
    // Most batches have one row, so no list is made for it.
    let first = values.next().and_then(|only| only.datum());
    let Some(second) = values.next() else { return value_of(&T::TYPE, first) };
    let mut elements = Elements::default();
    elements.push(first);
    elements.push(second.datum());
    elements.push_all(values);
    elements.array(&T::TYPE)
}

fn value_of(of: &SqlType, datum: Option<pg_sys::Datum>) -> Param {
    Param { oid: of.oid, datum: datum.unwrap_or(pg_sys::Datum::null()), null: datum.is_none(), is_array: false }
}

/// The elements of an array. The compiler makes a copy of the functions with type parameters for each place that calls
/// them, so all else is in functions without.
#[derive(Default)]
struct Elements {
    datums: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
}

impl Elements {
    /// Adds an element; None is null.
    fn push(&mut self, datum: Option<pg_sys::Datum>) {
        self.datums.push(datum.unwrap_or(pg_sys::Datum::null()));
        self.nulls.push(datum.is_none());
    }

    fn push_all<T: SqlValue>(&mut self, values: impl IntoIterator<Item = T>) {
        let values = values.into_iter();
        self.datums.reserve(values.size_hint().0);
        self.nulls.reserve(values.size_hint().0);
        for value in values {
            self.push(value.datum());
        }
    }

    fn array(mut self, of: &SqlType) -> Param {
        assert_ne!(of.array, pg_sys::InvalidOid, "an array in an array");
        let (mut count, mut first) = (self.datums.len() as i32, 1);
        // SAFETY: this number of elements of this type, and as many flags.
        let datum = unsafe {
            or_throw(|| {
                construct_md_array(
                    self.datums.as_mut_ptr(),
                    self.nulls.as_mut_ptr(),
                    1,
                    &raw mut count,
                    &raw mut first,
                    of.oid,
                    i32::from(of.length),
                    of.by_value,
                    of.align as c_char,
                )
            })
        };
        Param { oid: of.array, datum: pg_sys::Datum::from(datum), null: false, is_array: true }
    }
}

/// A time as Postgres counts a `timestamptz`.
pub fn to_postgres(at: Timestamp) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH)
}

/// A time from Postgres' count.
pub fn from_postgres(at: i64) -> Timestamp {
    Timestamp(at.saturating_add(POSTGRES_EPOCH)).min(Timestamp::LAST)
}
