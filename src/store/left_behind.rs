//! What code of others may leave in a client's session, and find there: cursors and temporary objects. Everybody's name for a thing
//! in `pg_temp` comes first, and whoever fetches from a cursor runs what its query calls.

use super::catalog::quote;
use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::BTreeSet;

statements! {
    CURSORS = "SELECT c.name FROM pg_catalog.pg_cursors c";
    TEMPORARY = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = $1 AND ($2::oid IS NULL OR c.relowner = $2)) \
        OR EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.typnamespace = $1 AND ($2::oid IS NULL OR t.typowner = $2)) \
        OR EXISTS (SELECT FROM pg_catalog.pg_proc f WHERE f.pronamespace = $1 AND ($2::oid IS NULL OR f.proowner = $2)) \
        OR EXISTS (SELECT FROM pg_catalog.pg_operator o WHERE o.oprnamespace = $1 AND ($2::oid IS NULL OR o.oprowner = $2)) AS any";
}

/// The cursors that are open now.
pub fn cursors(spi: &Spi) -> Result<BTreeSet<String>> {
    Ok(spi.rows(&CURSORS, &[], |row| row.get("name"))?.into_iter().collect())
}

/// Closes those that were not there before.
pub fn close_new_cursors(spi: &Spi, before: &BTreeSet<String>) -> Result<()> {
    cursors(spi)?.difference(before).try_for_each(|name| spi.utility(&format!("CLOSE {}", quote(name))))
}

/// Whether anything is in the schema of temporary objects; only what belongs to this role, if one is given.
pub fn has_temporary_objects(spi: &Spi, schema: pg_sys::Oid, of: Option<pg_sys::Oid>) -> Result<bool> {
    Ok(spi.first(&TEMPORARY, &[value(schema), value(of)], |row| row.get("any"))?.unwrap_or(false))
}
