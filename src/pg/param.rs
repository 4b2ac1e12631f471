//! Rust values as parameters of SQL statements.

use pgrx::pg_sys;
use xdb_engine::{ExecutionId, Timestamp};

/// A parameter: its type and its value.
#[derive(Clone, Copy)]
pub struct Param {
    pub(super) oid: pg_sys::Oid,
    pub(super) datum: pg_sys::Datum,
    pub(super) null: bool,
}

/// A Rust type that stands for an SQL type.
pub trait ToParam {
    /// The type's oid, its length, whether it is passed by value, and its alignment: what an array of it needs.
    const TYPE: Element;
    fn datum(&self) -> pg_sys::Datum;
}

#[derive(Clone, Copy)]
pub struct Element {
    oid: pg_sys::Oid,
    array: pg_sys::Oid,
    length: i32,
    by_value: bool,
    align: u8,
}

impl Element {
    const fn new(oid: pg_sys::Oid, array: pg_sys::Oid, length: i32, by_value: bool, align: u8) -> Self {
        Self { oid, array, length, by_value, align }
    }
}

/// Microseconds from the Unix epoch to Postgres' epoch, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

impl ToParam for bool {
    const TYPE: Element = Element::new(pg_sys::BOOLOID, pg_sys::BOOLARRAYOID, 1, true, b'c');
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for i16 {
    const TYPE: Element = Element::new(pg_sys::INT2OID, pg_sys::INT2ARRAYOID, 2, true, b's');
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for i32 {
    const TYPE: Element = Element::new(pg_sys::INT4OID, pg_sys::INT4ARRAYOID, 4, true, b'i');
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for i64 {
    const TYPE: Element = Element::new(pg_sys::INT8OID, pg_sys::INT8ARRAYOID, 8, true, b'd');
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for pg_sys::Oid {
    const TYPE: Element = Element::new(pg_sys::OIDOID, pg_sys::OIDARRAYOID, 4, true, b'i');
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
}

impl ToParam for Timestamp {
    const TYPE: Element = Element::new(pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZARRAYOID, 8, true, b'd');
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(to_postgres(*self))
    }
}

impl ToParam for &str {
    const TYPE: Element = Element::new(pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, -1, false, b'i');
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
    const TYPE: Element = Element::new(pg_sys::UUIDOID, pg_sys::UUIDARRAYOID, 16, false, b'c');
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
    Param { oid: T::TYPE.oid, datum: value.datum(), null: false }
}

/// A value that may be null.
pub fn nullable<T: ToParam>(value: Option<T>) -> Param {
    match value {
        Some(value) => self::value(value),
        None => Param { oid: T::TYPE.oid, datum: pg_sys::Datum::from(0), null: true },
    }
}

/// A one-dimensional array without nulls.
pub fn array<T: ToParam>(values: impl IntoIterator<Item = T>) -> Param {
    build(T::TYPE, values.into_iter().map(|value| (value.datum(), false)))
}

/// A one-dimensional array whose elements may be null.
pub fn array_of_nullable<T: ToParam>(values: impl IntoIterator<Item = Option<T>>) -> Param {
    build(
        T::TYPE,
        values.into_iter().map(|value| match value {
            Some(value) => (value.datum(), false),
            None => (pg_sys::Datum::from(0), true),
        }),
    )
}

fn build(element: Element, values: impl Iterator<Item = (pg_sys::Datum, bool)>) -> Param {
    let (mut datums, mut nulls): (Vec<_>, Vec<_>) = values.unzip();
    let mut length = datums.len() as i32;
    let mut lower_bound = 1;
    // SAFETY: the vectors hold `length` elements of the type that `element` describes; the result is palloc'd.
    let datum = unsafe {
        pg_sys::construct_md_array(
            datums.as_mut_ptr(),
            nulls.as_mut_ptr(),
            if length == 0 { 0 } else { 1 },
            &raw mut length,
            &raw mut lower_bound,
            element.oid,
            element.length,
            element.by_value,
            element.align as _,
        )
    };
    Param { oid: element.array, datum: pg_sys::Datum::from(datum), null: false }
}

/// As Postgres counts a `timestamptz`.
pub fn to_postgres(at: Timestamp) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH)
}

/// From Postgres' count.
pub fn from_postgres(at: i64) -> Timestamp {
    Timestamp(at.saturating_add(POSTGRES_EPOCH)).min(Timestamp::LAST)
}
