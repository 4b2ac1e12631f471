//! Finds what another role's code may leave in a client's session: cursors and temporary objects. Both are dangerous.
//! Names are looked up in `pg_temp` first, and FETCH from a cursor runs the functions of its query.
//!
//! Limitations: this file finds cursors and temporary objects only. It closes the cursors. The caller raises an error
//! about temporary objects.

use super::catalog::quote;
use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};

statements! {
    /// The open cursors.
    CURSORS = "SELECT c.name, c::pg_catalog.text AS described FROM pg_catalog.pg_cursors c"
        => pub fn cursors() -> SqlCursors;
    // Functions and operators there are found only by their full names.
    /// The objects in the schema of temporary objects.
    TEMPORARY = "SELECT 'r' || c.oid AS object FROM pg_catalog.pg_class c WHERE c.relnamespace = $1 \
        UNION ALL SELECT 't' || t.oid FROM pg_catalog.pg_type t WHERE t.typnamespace = $1 \
        UNION ALL SELECT 'f' || f.oid FROM pg_catalog.pg_proc f WHERE f.pronamespace = $1 \
        UNION ALL SELECT 'o' || o.oid FROM pg_catalog.pg_operator o WHERE o.oprnamespace = $1"
        => pub fn temporary_objects(schema: pg_sys::Oid) -> BTreeSet<String>;
}

/// The open cursors: name and description. A cursor that replaces another one has another description.
pub type SqlCursors = BTreeMap<String, String>;

/// Closes the cursors that were not open before.
pub fn close_new_cursors(spi: &Spi, before: &SqlCursors) -> Result<()> {
    let now = cursors(spi)?;
    let new = now.iter().filter(|(name, described)| before.get(*name) != Some(described));
    new.map(|(name, _)| name).try_for_each(|name| spi.utility(&format!("CLOSE {}", quote(name))))
}
