//! The differences between the major versions of Postgres. All other code of this library is the same for all versions.
//!
//! The server's enumeration values that the bindings lack are here too: a new major version may change them.

use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

#[cfg(not(feature = "pg18"))]
pub use pg_sys::pqsignal;
#[cfg(feature = "pg18")]
pub use pg_sys::pqsignal_be as pqsignal;

/// Index of the server's `AddinShmemInitLock` in `MainLWLockArray`: the same in 15 to 18 (`lwlocknames`).
pub const ADDIN_SHMEM_INIT_LOCK: usize = 21;

/// The server's statement timeout: the same in 15 to 18 (`TimeoutId` in utils/timeout.h).
pub const STATEMENT_TIMEOUT: c_int = 3;

/// The first timer id that is free for extensions (`USER_TIMEOUT` in utils/timeout.h).
pub const FIRST_USER_TIMEOUT: c_int = if cfg!(any(feature = "pg17", feature = "pg18")) { 13 } else { 12 };

/// Settings of later versions only, which an engine process pins before it connects.
pub const MORE_SETTINGS: &[(&CStr, &CStr)] =
    if cfg!(any(feature = "pg17", feature = "pg18")) { &[(c"transaction_timeout", c"0")] } else { &[] };

/// Settings with which a statement of any role can end its process.
pub const DEADLY_SETTINGS: &[&CStr] = if cfg!(any(feature = "pg17", feature = "pg18")) {
    &[c"exit_on_error", c"transaction_timeout"]
} else {
    &[c"exit_on_error"]
};

/// A new wait set for this number of events, which lives as long as the process.
pub fn new_wait_event_set(events: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: memory that lives as long as the process, and no resource owner that would free it earlier.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, events);
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return pg_sys::CreateWaitEventSet(std::ptr::null_mut(), events);
    }
}

/// Ends this process in the server's way. The bindings of 18 do not say that the server's function never returns.
///
/// # Safety
/// No destructor may be pending.
pub unsafe fn proc_exit(code: c_int) -> ! {
    // SAFETY: no destructor is pending.
    unsafe { pg_sys::proc_exit(code) };
    #[cfg(feature = "pg18")]
    std::process::abort()
}

/// Runs `body` for each setting that this process knows.
pub fn each_setting(mut body: impl FnMut(&mut pg_sys::config_generic)) {
    // SAFETY: the list has as many entries as the server says, and the entries stay. The list itself is freed if it was
    // made for this call.
    unsafe {
        #[cfg(feature = "pg15")]
        let (all, count) = (pg_sys::get_guc_variables(), pg_sys::GetNumConfigOptions());
        #[cfg(not(feature = "pg15"))]
        let (all, count) = {
            let mut count: c_int = 0;
            (pg_sys::get_guc_variables(&raw mut count), count)
        };
        std::slice::from_raw_parts(all, count as usize).iter().for_each(|setting| body(&mut **setting));
        #[cfg(not(feature = "pg15"))]
        pg_sys::pfree(all.cast());
    }
}

/// Whether a role owns a database. Call it in a transaction.
pub fn owns_database(database: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: a look-up in the catalog.
    unsafe {
        #[cfg(feature = "pg15")]
        return pg_sys::pg_database_ownercheck(database, role);
        #[cfg(not(feature = "pg15"))]
        return pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, role);
    }
}

/// A name with its schema, as the server's look-ups need it. The name must be valid.
pub fn qualified_name(name: &CStr) -> *mut pg_sys::List {
    // SAFETY: the text is copied. A name that can't be parsed raises an error.
    unsafe {
        #[cfg(feature = "pg15")]
        return pg_sys::stringToQualifiedNameList(name.as_ptr());
        #[cfg(not(feature = "pg15"))]
        return pg_sys::stringToQualifiedNameList(name.as_ptr(), std::ptr::null_mut());
    }
}

/// Whether a role may call a function. Call it in a transaction.
pub fn may_execute(function: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    let mode = pg_sys::ACL_EXECUTE as pg_sys::AclMode;
    // SAFETY: a look-up in the catalog.
    let answer = unsafe {
        #[cfg(feature = "pg15")]
        let answer = pg_sys::pg_proc_aclcheck(function, role, mode);
        #[cfg(not(feature = "pg15"))]
        let answer = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, role, mode);
        answer
    };
    answer == pg_sys::AclResult::ACLCHECK_OK
}

/// Whether a role may use a schema. Call it in a transaction.
pub fn may_use_schema(schema: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    let mode = pg_sys::ACL_USAGE as pg_sys::AclMode;
    // SAFETY: a look-up in the catalog.
    let answer = unsafe {
        #[cfg(feature = "pg15")]
        let answer = pg_sys::pg_namespace_aclcheck(schema, role, mode);
        #[cfg(not(feature = "pg15"))]
        let answer = pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, role, mode);
        answer
    };
    answer == pg_sys::AclResult::ACLCHECK_OK
}

/// The attributes of a row description, in order.
///
/// # Safety
/// The description must be valid for `'a`.
pub unsafe fn attributes<'a>(description: pg_sys::TupleDesc) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: the description has as many attributes as it says. In 18 they follow a shorter form of all attributes.
    unsafe {
        let count = (*description).natts as usize;
        #[cfg(not(feature = "pg18"))]
        let first = (*description).attrs.as_ptr();
        #[cfg(feature = "pg18")]
        let first = (*description).compact_attrs.as_ptr().add(count).cast::<pg_sys::FormData_pg_attribute>();
        std::slice::from_raw_parts(first, count)
    }
}
