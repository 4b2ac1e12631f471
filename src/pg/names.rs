//! Reads lists of names in settings.

use super::raw::{elements, text};
use pgrx::pg_sys;
use std::ffi::{CString, c_char};

/// Reads a list of names separated by commas, written as in SQL: quoted names stay unchanged, other names are folded to
/// lower case. `None` if the text is not such a list.
pub fn split(list: &str) -> Option<Vec<String>> {
    let mut list = CString::new(list).unwrap_or_default().into_bytes_with_nul();
    let mut found: *mut pg_sys::List = std::ptr::null_mut();
    // SAFETY: the text ends with a NUL character and is overwritten. The names point into it until they are copied.
    unsafe {
        let is_list = pg_sys::SplitIdentifierString(list.as_mut_ptr().cast(), b',' as c_char, &raw mut found);
        let names = elements::<c_char>(found).filter_map(|name| text(name)).collect();
        pg_sys::list_free(found);
        is_list.then_some(names)
    }
}
