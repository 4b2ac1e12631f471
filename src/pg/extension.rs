//! The extension as the catalog of this database has it.

use super::raw::text;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of this extension.
pub const EXTENSION: &CStr = c"xdb";

/// The table whose lock a turn takes first. Every version of the schema has it.
const GATE_TABLE: &CStr = c"engine";

const EXTENSION_VERSION: NonZeroUsize = NonZeroUsize::new(pg_sys::Anum_pg_extension_extversion as usize).unwrap();

/// What `pg_extension` says.
#[derive(Default)]
pub struct Installed {
    pub oid: pg_sys::Oid,
    pub version: String,
}

/// Looks the extension up, by itself: the server's function for it has no version. Can raise an error.
///
/// # Safety
/// In a transaction.
pub unsafe fn installed() -> Option<Installed> {
    // SAFETY: the lock on the catalog is held by the caller or taken here; what is returned is copied before the scan ends.
    unsafe {
        let relation = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let mut key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &mut key,
            pg_sys::Anum_pg_extension_extname as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::F_NAMEEQ.into(),
            pg_sys::Datum::from(EXTENSION.as_ptr()),
        );
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::ExtensionNameIndexId.into(),
            true,
            std::ptr::null_mut(),
            1,
            &mut key,
        );
        let tuple = pg_sys::systable_getnext(scan);
        let installed = (!tuple.is_null()).then(|| {
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_extension>();
            let version = pgrx::htup::heap_getattr_raw(tuple, EXTENSION_VERSION, (*relation).rd_att)
                .and_then(|version| text(pg_sys::text_to_cstring(version.cast_mut_ptr())));
            Installed { oid: (*form).oid, version: version.unwrap_or_default() }
        });
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        installed
    }
}

/// The table whose lock a turn takes first; invalid if there is none. Can raise an error.
///
/// # Safety
/// In a transaction.
pub unsafe fn gate_table() -> pg_sys::Oid {
    // SAFETY: catalog reads.
    unsafe {
        let schema = pg_sys::get_namespace_oid(EXTENSION.as_ptr(), true);
        if schema == pg_sys::InvalidOid {
            return pg_sys::InvalidOid;
        }
        pg_sys::get_relname_relid(GATE_TABLE.as_ptr(), schema)
    }
}

thread_local! {
    /// What this session read last; it holds until [`forget`]. Without the extension, an invalid oid and no version.
    static KNOWN: RefCell<Option<Installed>> = const { RefCell::new(None) };
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}

/// The gate table of the extension that the session knows. Everybody hears of an update, and of the end of it, by its
/// invalidation.
static GATE: AtomicU32 = AtomicU32::new(0);

/// Gives the installed version to `body`. It is read once, and again after the extension was changed. Can raise an error.
pub fn with_version<T>(body: impl FnOnce(&str) -> T) -> T {
    with_known(|known| body(&known.version))
}

/// The extension's oid: another one after it was dropped and created again. Invalid where there is none. Can raise an error.
pub fn current() -> pg_sys::Oid {
    with_known(|known| known.oid)
}

fn with_known<T>(body: impl FnOnce(&Installed) -> T) -> T {
    KNOWN.with(|known| {
        if known.borrow().is_none() {
            // SAFETY: SQL functions run in a transaction; the callback is registered once, and lives as long as the process.
            let installed = unsafe {
                if !LISTENS.replace(true) {
                    pg_sys::CacheRegisterRelcacheCallback(Some(forget), pg_sys::Datum::from(0));
                }
                // Taking in what others have changed can make the one outdated while the other is read.
                loop {
                    let gate = gate_table();
                    GATE.store(gate.to_u32(), Ordering::Relaxed);
                    let installed = installed();
                    if gate_table() == gate {
                        break installed;
                    }
                }
            };
            *known.borrow_mut() = Some(installed.unwrap_or_default());
        }
        match &*known.borrow() {
            Some(known) => body(known),
            None => body(&Installed::default()),
        }
    })
}

/// Called while the server takes in what others changed. Neither allocates nor raises anything.
unsafe extern "C-unwind" fn forget(_: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || relation.to_u32() == GATE.load(Ordering::Relaxed) {
        KNOWN.with(|known| {
            if let Ok(mut known) = known.try_borrow_mut() {
                *known = None;
            }
        });
    }
}

/// Tells all sessions, when this transaction commits, that the extension has changed. Can raise an error.
///
/// # Safety
/// In a transaction.
pub unsafe fn tell_sessions() {
    // SAFETY: the table is there, in this transaction's view.
    unsafe {
        let gate = gate_table();
        if gate != pg_sys::InvalidOid {
            pg_sys::CacheInvalidateRelcacheByRelid(gate);
        }
    }
}
