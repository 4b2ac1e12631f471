//! Subscriptions of this database that write the tables of XDB: logical replication of all tables of another database with XDB.
//!
//! What arrives is a copy like one that was restored from a dump: `instances` says whose it is. What a dump leaves out, a
//! subscription does too. The apply worker skips the changes of tables that the subscription has not in its list.

use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::spi::Spi;

/// The tables of XDB in the list of a subscription of this database.
const OURS: &str = "r.srrelid = c.oid AND c.relnamespace = 'xdb'::pg_catalog.regnamespace AND r.srsubid = s.oid \
    AND s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())";

statements! {
    // Each database has rows of its own in these, and nothing of them is the copy's.
    LEAVE_OUT_OWN = format!("DELETE FROM pg_catalog.pg_subscription_rel r \
        USING pg_catalog.pg_class c, pg_catalog.pg_subscription s \
        WHERE {OURS} AND c.relname IN ('engine', 'registry', 'registration_count')") => fn leave_out_own() -> ();
    LEAVE_OUT_ALL = format!("DELETE FROM pg_catalog.pg_subscription_rel r \
        USING pg_catalog.pg_class c, pg_catalog.pg_subscription s \
        WHERE {OURS} AND (SELECT in_use FROM xdb.registry)") => fn leave_out_all() -> u64;
    /// The names of subscriptions that write the tables of XDB.
    WRITERS = format!("SELECT DISTINCT s.subname::text AS name \
        FROM pg_catalog.pg_subscription_rel r, pg_catalog.pg_class c, pg_catalog.pg_subscription s WHERE {OURS} ORDER BY 1")
        => pub fn writers() -> Vec<String>;
}

/// Takes tables out of the lists of subscriptions: those that tell one engine from another, and all where processes run that
/// are this database's own. Says whether it did the latter.
pub fn leave_out(spi: &Spi) -> Result<bool> {
    leave_out_own(spi)?;
    Ok(leave_out_all(spi)? > 0)
}
