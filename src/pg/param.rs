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
    /// The type's oid, and what an array of it needs: that of the array, and how its elements are aligned.
    const TYPE: Element;
    fn datum(&self) -> pg_sys::Datum;
    /// Appends the value as an array holds it, without what fills up to the next one.
    fn append(&self, elements: &mut Vec<u8>);
}

#[derive(Clone, Copy)]
pub struct Element {
    oid: pg_sys::Oid,
    array: pg_sys::Oid,
    align: usize,
}

impl Element {
    const fn new(oid: pg_sys::Oid, array: pg_sys::Oid, align: usize) -> Self {
        Self { oid, array, align }
    }
}

/// Microseconds from the Unix epoch to Postgres' epoch, 2000-01-01.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

impl ToParam for bool {
    const TYPE: Element = Element::new(pg_sys::BOOLOID, pg_sys::BOOLARRAYOID, 1);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.push(u8::from(*self));
    }
}

impl ToParam for i16 {
    const TYPE: Element = Element::new(pg_sys::INT2OID, pg_sys::INT2ARRAYOID, 2);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(self.to_ne_bytes());
    }
}

impl ToParam for i32 {
    const TYPE: Element = Element::new(pg_sys::INT4OID, pg_sys::INT4ARRAYOID, 4);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(self.to_ne_bytes());
    }
}

impl ToParam for i64 {
    const TYPE: Element = Element::new(pg_sys::INT8OID, pg_sys::INT8ARRAYOID, 8);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(self.to_ne_bytes());
    }
}

impl ToParam for pg_sys::Oid {
    const TYPE: Element = Element::new(pg_sys::OIDOID, pg_sys::OIDARRAYOID, 4);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(*self)
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(self.to_u32().to_ne_bytes());
    }
}

impl ToParam for Timestamp {
    const TYPE: Element = Element::new(pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZARRAYOID, 8);
    fn datum(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(to_postgres(*self))
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(to_postgres(*self).to_ne_bytes());
    }
}

impl ToParam for &str {
    const TYPE: Element = Element::new(pg_sys::TEXTOID, pg_sys::TEXTARRAYOID, 4);
    fn datum(&self) -> pg_sys::Datum {
        // SAFETY: copies the bytes into a new text value in the current memory context.
        unsafe { pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(self.as_ptr().cast(), self.len() as i32)) }
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(length_word(size_of::<u32>() + self.len()).to_ne_bytes());
        elements.extend(self.as_bytes());
    }
}

impl ToParam for String {
    const TYPE: Element = <&str as ToParam>::TYPE;
    fn datum(&self) -> pg_sys::Datum {
        self.as_str().datum()
    }
    fn append(&self, elements: &mut Vec<u8>) {
        self.as_str().append(elements);
    }
}

impl ToParam for ExecutionId {
    const TYPE: Element = Element::new(pg_sys::UUIDOID, pg_sys::UUIDARRAYOID, 1);
    fn datum(&self) -> pg_sys::Datum {
        // SAFETY: a uuid is 16 bytes; palloc gives room for them.
        unsafe {
            let copy = pg_sys::palloc(16).cast::<u8>();
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), copy, 16);
            pg_sys::Datum::from(copy)
        }
    }
    fn append(&self, elements: &mut Vec<u8>) {
        elements.extend(self.0);
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

/// What stands before the elements: total length, dimensions, where the elements begin if there are nulls, their type; and
/// the length and lower bound of the one dimension.
const HEADER: usize = 24;
/// An array without elements has no dimension.
const EMPTY: usize = 16;

/// Writes the array as the server lays it out: with an allocation for each element and a copy of each, arrays took a good part
/// of what saving costs.
fn build<T: ToParam>(values: impl Iterator<Item = Option<T>>) -> Param {
    let Element { oid, array, align, .. } = T::TYPE;
    let (mut elements, mut present, mut count) = (Vec::new(), Vec::new(), 0);
    let mut any_null = false;
    for value in values {
        if count % 8 == 0 {
            present.push(0u8);
        }
        match value {
            Some(value) => {
                present[count / 8] |= 1 << (count % 8);
                value.append(&mut elements);
                elements.resize(elements.len().next_multiple_of(align), 0);
            }
            None => any_null = true,
        }
        count += 1;
    }
    let begin = match (count, any_null) {
        (0, _) => EMPTY,
        (_, false) => HEADER,
        (_, true) => (HEADER + present.len()).next_multiple_of(pg_sys::MAXIMUM_ALIGNOF as usize),
    };
    let length = begin + elements.len();
    let offset = if any_null { begin as i32 } else { 0 };
    let mut header = Vec::with_capacity(begin);
    header.extend(length_word(length).to_ne_bytes());
    header.extend(i32::from(count > 0).to_ne_bytes());
    header.extend(offset.to_ne_bytes());
    header.extend(oid.to_u32().to_ne_bytes());
    if count > 0 {
        header.extend((count as i32).to_ne_bytes());
        header.extend(1i32.to_ne_bytes());
    }
    if any_null {
        header.extend(&present);
    }
    header.resize(begin, 0);
    // SAFETY: both parts are written into the room that was allocated for them; a length beyond the server's limit is its error.
    let datum = unsafe {
        let place = pg_sys::palloc(length).cast::<u8>();
        std::ptr::copy_nonoverlapping(header.as_ptr(), place, begin);
        std::ptr::copy_nonoverlapping(elements.as_ptr(), place.add(begin), elements.len());
        pg_sys::Datum::from(place)
    };
    Param { oid: array, datum, null: false, is_array: true }
}

/// The first word of a value of variable length that is neither compressed nor short.
fn length_word(length: usize) -> u32 {
    if cfg!(target_endian = "little") { (length as u32) << 2 } else { length as u32 & 0x3fff_ffff }
}

/// As Postgres counts a `timestamptz`.
pub fn to_postgres(at: Timestamp) -> i64 {
    at.0.saturating_sub(POSTGRES_EPOCH)
}

/// From Postgres' count.
pub fn from_postgres(at: i64) -> Timestamp {
    Timestamp(at.saturating_add(POSTGRES_EPOCH)).min(Timestamp::LAST)
}
