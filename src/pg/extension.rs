//! The installed extension: its oid and version in the catalog of this database.

use super::catch::or_throw;
use super::raw::text;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

pub const EXTENSION: &CStr = c"xdb";

/// The table whose lock a turn takes first. It exists in each version of the schema.
const GATE_TABLE: &CStr = c"engine";

const EXTENSION_VERSION: NonZeroUsize = NonZeroUsize::new(pg_sys::Anum_pg_extension_extversion as usize).unwrap();

/// The extension's row in `pg_extension`.
#[derive(Default)]
pub struct Installed {
    pub oid: pg_sys::Oid,
    pub version: String,
}

mod raw {
    use pgrx::pg_sys;
    use std::ffi::{c_char, c_int};
    unsafe extern "C-unwind" {
        pub fn get_namespace_oid(name: *const c_char, missing_ok: bool) -> pg_sys::Oid;
        pub fn get_relname_relid(name: *const c_char, schema: pg_sys::Oid) -> pg_sys::Oid;
        pub fn table_open(table: pg_sys::Oid, lock: c_int) -> pg_sys::Relation;
        pub fn systable_beginscan(
            table: pg_sys::Relation,
            index: pg_sys::Oid,
            index_ok: bool,
            snapshot: pg_sys::Snapshot,
            keys: c_int,
            key: *mut pg_sys::ScanKeyData,
        ) -> pg_sys::SysScanDesc;
        pub fn systable_getnext(scan: pg_sys::SysScanDesc) -> pg_sys::HeapTuple;
    }
}

/// Reads the extension's row. The server has a function for the oid, but none for the version. Can raise an error.
///
/// # Safety
/// Call it in a transaction.
pub unsafe fn installed() -> Option<Installed> {
    // SAFETY: the lock on the catalog is held by the caller or taken here. The results are copied before the scan ends.
    unsafe {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let mut key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &mut key,
            pg_sys::Anum_pg_extension_extname as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::F_NAMEEQ.into(),
            pg_sys::Datum::from(EXTENSION.as_ptr()),
        );
        let (relation, scan, tuple) = or_throw(|| {
            let relation = raw::table_open(pg_sys::ExtensionRelationId, lock);
            let index = pg_sys::Oid::from(pg_sys::ExtensionNameIndexId);
            let scan = raw::systable_beginscan(relation, index, true, std::ptr::null_mut(), 1, &raw mut key);
            (relation, scan, raw::systable_getnext(scan))
        });
        let installed = (!tuple.is_null()).then(|| {
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_extension>();
            let version = pgrx::htup::heap_getattr_raw(tuple, EXTENSION_VERSION, (*relation).rd_att)
                .and_then(|version| text(pg_sys::text_to_cstring(version.cast_mut_ptr())));
            Installed { oid: (*form).oid, version: version.unwrap_or_default() }
        });
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
        installed
    }
}

/// The table whose lock a turn takes first; invalid if it does not exist. Can raise an error.
///
/// # Safety
/// Call it in a transaction.
pub unsafe fn gate_table() -> pg_sys::Oid {
    // SAFETY: catalog reads.
    unsafe {
        or_throw(|| {
            let schema = raw::get_namespace_oid(EXTENSION.as_ptr(), true);
            if schema == pg_sys::InvalidOid { schema } else { raw::get_relname_relid(GATE_TABLE.as_ptr(), schema) }
        })
    }
}

thread_local! {
    /// The extension as this session read it last. Valid until [`forget`]. Without the extension: an invalid oid and no
    /// version.
    static KNOWN: RefCell<Option<Installed>> = const { RefCell::new(None) };
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}

/// The gate table of the known extension. All sessions get an invalidation of this table when the extension is updated
/// or dropped.
static GATE: AtomicU32 = AtomicU32::new(0);

/// Passes the installed version to `body`. The version is read once, and again after the extension was changed. Can
/// raise an error.
pub fn with_version<T>(body: impl FnOnce(&str) -> T) -> T {
    with_known(|known| body(&known.version))
}

/// The extension's oid. It changes when the extension is dropped and created again. Invalid without the extension. Can
/// raise an error.
pub fn current() -> pg_sys::Oid {
    with_known(|known| known.oid)
}

fn with_known<T>(body: impl FnOnce(&Installed) -> T) -> T {
    KNOWN.with(|known| {
        if known.borrow().is_none() {
            // SAFETY: SQL functions run in a transaction. The callback is registered once, and lives as long as the
            // process.
            let installed = unsafe {
                if !LISTENS.replace(true) {
                    pg_sys::CacheRegisterRelcacheCallback(Some(forget), pg_sys::Datum::from(0));
                }
                // Reading one value may process invalidations that make the other one outdated.
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

/// Called while the server processes invalidations. Never allocates and never raises an error.
unsafe extern "C-unwind" fn forget(_: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || relation.to_u32() == GATE.load(Ordering::Relaxed) {
        KNOWN.with(|known| {
            if let Ok(mut known) = known.try_borrow_mut() {
                *known = None;
            }
        });
    }
}

/// Notifies all sessions, when this transaction commits, that the extension has changed. Can raise an error.
///
/// # Safety
/// Call it in a transaction.
pub unsafe fn notify_sessions() {
    // SAFETY: the table exists in this transaction's view.
    unsafe {
        let gate = gate_table();
        if gate != pg_sys::InvalidOid {
            pg_sys::CacheInvalidateRelcacheByRelid(gate);
        }
    }
}
