//! Functions of users in the catalog, by their names.

use super::catch::{Result, catch};
use super::compat;
use pgrx::pg_sys;
use std::ffi::{CString, c_int};

/// The oid of a function that takes so many values of `jsonb`. The name has its schema and is quoted as in SQL. None if there is no
/// such function.
pub fn of_jsonb(name: &str, arguments: usize) -> Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let types = vec![pg_sys::JSONBOID; arguments];
    // SAFETY: the name and the types outlive the look-up.
    let found = unsafe {
        catch(|| {
            let list = compat::qualified_name(&name);
            pg_sys::LookupFuncName(list, arguments as c_int, types.as_ptr(), true)
        })?
    };
    Ok((found != pg_sys::InvalidOid).then(|| found.to_u32()))
}
