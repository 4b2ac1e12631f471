//! Rust values as parameters of SQL statements.

use pgrx::pg_sys;
use xdb_engine::{ExecutionId, Timestamp};

/// A parameter: its type and its value.
#[derive(Clone, Copy)]
pub struct Param {
    pub(super) oid: pg_sys::Oid,
    pub(super) datum: pg_sys::Datum,
    pub(super) null: bool,
    pub(super) is_array: bool,
}

/// A Rust type that stands for an SQL type.
pub trait ToParam {
    /// The type's oid, and what an array of it needs.
    const TYPE: Element;
    fn datum(&self) -> pg_sys::Datum;
}

/// A type as an element of arrays: `typlen`, `typbyval` and `typalign` as `pg_type` has them.
#[derive(Clone, Copy)]
pub struct Element {
    oid: pg_sys::Oid,
    array: pg_sys::Oid,
    length: i16,
    by_value: bool,
    align: u8,
}

impl Element {
    const fn by_value(oid: pg_sys::Oid, array: pg_sys::Oid, length: i16, align: u8) -> Self {
        Self { oid, array, length, by_value: true, align }
    }

    const fn by_reference(oid: pg_sys::Oid, array: pg_sys::Oid, length: i16, align: u8) -> Self {
        Self { oid, array, length, by_value: false, align }
    }
}

/// Microseconds from the Unix epoch to Postgres' epoch, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

impl ToParam for bool {
    const TYPE: Element = Element::by_value(pg_sys::BOOLOID, pg_sys::BOOLARRAYOID, 1, pg_sys::TYPALIGN_CHAR);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for i16 {
    const TYPE: Element = Element::by_value(pg_sys::INT2OID, pg_sys::INT2ARRAYOID, 2, pg_sys::TYPALIGN_SHORT);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for i32 {
    const TYPE: Element = Element::by_value(pg_sys::INT4OID, pg_sys::INT4ARRAYOID, 4, pg_sys::TYPALIGN_INT);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for i64 {
    const TYPE: Element = Element::by_value(pg_sys::INT8OID, pg_sys::INT8ARRAYOID, 8, pg_sys::TYPALIGN_DOUBLE);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for pg_sys::Oid {
    const TYPE: Element = Element::by_value(pg_sys::OIDOID, pg_sys::OIDARRAYOID, 4, pg_sys::TYPALIGN_INT);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for Timestamp {
    const TYPE: Element =
        Element::by_value(pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZARRAYOID, 8, pg_sys::TYPALIGN_DOUBLE);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(to_postgres(*self))
    }
}

impl ToParam for &str {
    const TYPE: Element = Element::by_reference(pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, -1, pg_sys::TYPALIGN_INT);
    fn datum(&self) -> pg_sys::Datum {
        // SAFETY: copies the bytes into a new text value in the current memory context.
        unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(self.as_ptr().cast(), self.len() as i32)) }
    }
}

impl ToParam for String {
    const TYPE: Element = <&str as ToParam>::TYPE;
    fn datum(&self) -> pg_sys::Datum {
        self.as_str().datum()
    }
}

impl ToParam for ExecutionId {
    const TYPE: Element = Element::by_reference(pg_sys::UUIDOID, pg_sys::UUIDARRAYOID, 16, pg_sys::TYPALIGN_CHAR);
    fn datum(&self) -> pg_sys::Datum {
        // SAFETY: a uuid is 16 bytes; palloc gives room for them.
        unsafe {
            let copy = pg_sys::palloc(16).cast::<u8>();
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), copy, 16);
            pg_sys::Datum::from(copy)
        }
    }
}

/// A value that is not null.
pub fn value<T: ToParam>(value: T) -> Param {
    Param { oid: T::TYPE.oid, datum: value.datum(), null: false, is_array: false }
}

/// A value that may be null.
pub fn nullable<T: ToParam>(value: Option<T>) -> Param {
    match value {
        Some(value) => self::value(value),
        None => Param { oid: T::TYPE.oid, datum: pg_sys::Datum::from(0), null: true, is_array: false },
    }
}

/// A one-dimensional array without nulls.
pub fn array<T: ToParam>(values: impl IntoIterator<Item = T>) -> Param {
    build(values.into_iter().map(Some))
}

/// A one-dimensional array.
pub fn array_of_nullable<T: ToParam>(values: impl IntoIterator<Item = Option<T>>) -> Param {
    build(values.into_iter())
}

/// A column of a batch for [`run_batch`](super::spi::Spi::run_batch): the value itself if the batch has one row, else an array.
/// All columns of a batch have the same length, which is not 0.
pub fn column<T: ToParam>(values: impl IntoIterator<Item = T>) -> Param {
    column_of_nullable(values.into_iter().map(Some))
}

/// The same with values that may be null.
pub fn column_of_nullable<T: ToParam>(values: impl IntoIterator<Item = Option<T>>) -> Param {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (Some(only), None) => nullable(only),
        (first, second) => build(first.into_iter().chain(second).chain(values)),
    }
}

fn build<T: ToParam>(values: impl Iterator<Item = Option<T>>) -> Param {
    let Element { oid, array, length, by_value, align } = T::TYPE;
    let (mut elements, mut nulls): (Vec<_>, Vec<_>) =
        values.map(|value| (value.as_ref().map_or_else(pg_sys::Datum::null, ToParam::datum), value.is_none())).unzip();
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
