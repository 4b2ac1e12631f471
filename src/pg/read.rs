//! What a value is read as. A datum does not know its type: to read a number as a text is to follow it to wherever it points.

use super::catch::PgError;
use pgrx::{FromDatum, pg_sys};
use std::fmt::Display;

/// A Rust type that a column of a result, or an argument of a function, is read as.
pub trait Read: FromDatum {
    /// The one SQL type that it can be read from.
    const TYPE: pg_sys::Oid;
}

impl Read for bool {
    const TYPE: pg_sys::Oid = pg_sys::BOOLOID;
}

impl Read for i16 {
    const TYPE: pg_sys::Oid = pg_sys::INT2OID;
}

impl Read for i32 {
    const TYPE: pg_sys::Oid = pg_sys::INT4OID;
}

impl Read for i64 {
    const TYPE: pg_sys::Oid = pg_sys::INT8OID;
}

impl Read for pg_sys::Oid {
    const TYPE: pg_sys::Oid = pg_sys::OIDOID;
}

impl Read for String {
    const TYPE: pg_sys::Oid = pg_sys::TEXTOID;
}

impl Read for Vec<String> {
    const TYPE: pg_sys::Oid = pg_sys::TEXTARRAYOID;
}

impl Read for Vec<Option<String>> {
    const TYPE: pg_sys::Oid = pg_sys::TEXTARRAYOID;
}

/// Something has another type than the one it is read as: the schema is not what this library expects.
pub(super) fn other_type(what: impl Display, found: pg_sys::Oid, wanted: pg_sys::Oid) -> PgError {
    let (found, wanted) = (found.to_u32(), wanted.to_u32());
    PgError::internal(format!("{what} has the type with oid {found} instead of {wanted}"))
}
