//! Reads `jsonb` values as text.

use super::catch::{PgError, Result, catch};
use super::memory;
use super::param::FromColumn;
use super::raw;
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;

/// A `jsonb` in a row. It is neither read nor copied before its text is asked for.
pub struct StoredJsonb<'r> {
    datum: pg_sys::Datum,
    row: PhantomData<&'r ()>,
}

impl<'r> FromColumn<'r> for StoredJsonb<'r> {
    const OID: pg_sys::Oid = pg_sys::JSONBOID;
    unsafe fn read(datum: pg_sys::Datum) -> Result<Self> {
        Ok(Self { datum, row: PhantomData })
    }
}

impl StoredJsonb<'_> {
    /// Bytes of the value, about as many as its text has.
    pub fn size(&self) -> usize {
        // SAFETY: as below; this reads the head of the value.
        unsafe { pg_sys::toast_raw_datum_size(self.datum) }
    }

    /// The text, with all digits.
    pub fn text(&self) -> Result<String> {
        // SAFETY: the value lives as long as the row.
        unsafe { with_text(self.datum, memory::owned) }
    }
}

/// The text of a JSON value after storing: `jsonb` writes spaces, numbers and escapes in its own way.
pub fn as_stored(text: &str) -> Result<String> {
    let text = CString::new(text).map_err(|_| PgError::internal("a JSON text with a zero byte"))?;
    // SAFETY: the function reads the text up to its end, and makes a `jsonb`.
    unsafe {
        let text = pg_sys::Datum::from(text.as_ptr());
        with_text_of(|| raw::DirectFunctionCall1Coll(raw::jsonb_in, pg_sys::InvalidOid, text), memory::owned)
    }
}

/// Passes the text of a `jsonb` to `read`. The memory for making the text is freed afterwards.
///
/// # Safety
/// The datum must be a `jsonb`.
pub(super) unsafe fn with_text<T>(datum: pg_sys::Datum, read: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    // SAFETY: as the caller says.
    unsafe { with_text_of(|| datum, read) }
}

/// # Safety
/// `make` must return a `jsonb`.
unsafe fn with_text_of<T>(make: impl FnOnce() -> pg_sys::Datum, read: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    // SAFETY: as the caller says. After an error the transaction is aborted, which deletes the context.
    unsafe {
        let context = pg_sys::AllocSetContextCreateExtended(
            pg_sys::CurrentMemoryContext,
            c"text of a jsonb".as_ptr(),
            pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
            pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        let before = pg_sys::MemoryContextSwitchTo(context);
        let text = catch(|| raw::DirectFunctionCall1Coll(raw::jsonb_out, pg_sys::InvalidOid, make()));
        pg_sys::MemoryContextSwitchTo(before);
        let value = text.and_then(|text| {
            let text = CStr::from_ptr(text.cast_mut_ptr::<c_char>());
            // This check works on whole words. The lossy conversion, which searches for the faults, would be many times
            // slower.
            match text.to_str() {
                Ok(text) => read(text),
                Err(_) => read(&text.to_string_lossy()),
            }
        });
        pg_sys::MemoryContextDelete(context);
        value
    }
}
