//! Lists the databases of the server, for a process without a database.

use super::raw::text;
use pgrx::pg_sys;

/// A database that may have a scheduler.
pub struct Database {
    pub oid: pg_sys::Oid,
    pub name: String,
}

/// The databases that accept connections and are not templates. A scheduler in a template would block each copy of the
/// template.
pub fn read() -> Vec<Database> {
    let mut databases = Vec::new();
    // SAFETY: a transaction around a scan of a shared catalog. All results are copied.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::GetTransactionSnapshot();
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            // A database whose DROP was interrupted has a connection limit of -2.
            if (*form).datallowconn && !(*form).datistemplate && (*form).datconnlimit != -2 {
                let name = text((*form).datname.data.as_ptr()).unwrap_or_default();
                databases.push(Database { oid: (*form).oid, name });
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(relation, lock);
        pg_sys::CommitTransactionCommand();
    }
    databases
}
