//! Subscriptions of this database that write into the tables of XDB: logical replication of all tables of another
//! database with XDB.
//!
//! The replicated rows are a copy, like those restored from a dump: `instances` says which database they belong to. A
//! subscription leaves out the same tables as a dump. The apply worker skips changes of tables that are not in the
//! subscription's list.

use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::spi::Spi;

/// The condition that a table of XDB is in the list of a subscription of this database.
const OURS: &str = "r.srrelid = c.oid AND c.relnamespace = 'xdb'::pg_catalog.regnamespace AND r.srsubid = s.oid \
    AND s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())";

statements! {
    // Each database has its own rows in these tables. The copy's rows are of no use here.
    LEAVE_OUT_OWN = format!("DELETE FROM pg_catalog.pg_subscription_rel r \
        USING pg_catalog.pg_class c, pg_catalog.pg_subscription s \
        WHERE {OURS} AND c.relname IN ('engine', 'registry', 'registration_count')") => fn leave_out_own() -> ();
    LEAVE_OUT_ALL = format!("DELETE FROM pg_catalog.pg_subscription_rel r \
        USING pg_catalog.pg_class c, pg_catalog.pg_subscription s \
        WHERE {OURS} AND (SELECT in_use FROM xdb.registry)") => fn leave_out_all() -> u64;
    /// The names of subscriptions that write into the tables of XDB.
    WRITERS = format!("SELECT DISTINCT s.subname::text AS name \
        FROM pg_catalog.pg_subscription_rel r, pg_catalog.pg_class c, pg_catalog.pg_subscription s WHERE {OURS} ORDER BY 1")
        => pub fn writers() -> Vec<String>;
}

/// Removes tables from the lists of subscriptions: always the tables with each database's own rows. If this database
/// runs its own processes, all tables of XDB are removed. Returns whether that was the case.
pub fn leave_out(spi: &Spi) -> Result<bool> {
    leave_out_own(spi)?;
    Ok(leave_out_all(spi)? > 0)
}
