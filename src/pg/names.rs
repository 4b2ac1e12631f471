//! Lists of names in settings.

use super::catch::{Result, catch};
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char};

mod raw {
    use pgrx::pg_sys;
    use std::ffi::c_char;
    unsafe extern "C-unwind" {
        pub fn SplitIdentifierString(list: *mut c_char, separator: c_char, names: *mut *mut pg_sys::List) -> bool;
        pub fn list_free(list: *mut pg_sys::List);
        pub fn pfree(memory: *mut std::ffi::c_void);
        pub fn pstrdup(text: *const c_char) -> *mut c_char;
    }
}

/// Reads a list of names, separated by commas, that are written as in SQL: in double quotes they are taken as they are, and
/// without they are folded to lower case. `None` if it is no such list.
pub fn split(list: &str) -> Result<Option<Vec<String>>> {
    let list = CString::new(list).unwrap_or_default();
    let list = list.as_ptr();
    // SAFETY: raw calls. The names point into the copy of the list, which lives until they are copied.
    unsafe {
        let copy = catch(|| raw::pstrdup(list))?;
        let mut found: *mut pg_sys::List = std::ptr::null_mut();
        let to = &raw mut found;
        let is_list = catch(|| raw::SplitIdentifierString(copy, b',' as c_char, to))?;
        let names = super::raw::elements::<c_char>(found);
        let names = names.map(|name| CStr::from_ptr(name).to_string_lossy().into_owned()).collect();
        catch(|| {
            raw::list_free(found);
            raw::pfree(copy.cast());
        })?;
        Ok(is_list.then_some(names))
    }
}
