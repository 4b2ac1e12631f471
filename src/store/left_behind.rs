//! What code of others may leave in a client's session, and find there: cursors and temporary objects. Everybody's name for a thing
//! in `pg_temp` comes first, and whoever fetches from a cursor runs what its query calls.

use super::catalog::quote;
use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};

statements! {
    /// The cursors that are open now.
    CURSORS = "SELECT c.name, c::pg_catalog.text AS described FROM pg_catalog.pg_cursors c"
        => pub fn cursors() -> Cursors;
    // Functions and operators are found there by their whole names alone.
    /// What is in the schema of temporary objects.
    TEMPORARY = "SELECT 'r' || c.oid AS object FROM pg_catalog.pg_class c WHERE c.relnamespace = $1 \
        UNION ALL SELECT 't' || t.oid FROM pg_catalog.pg_type t WHERE t.typnamespace = $1 \
        UNION ALL SELECT 'f' || f.oid FROM pg_catalog.pg_proc f WHERE f.pronamespace = $1 \
        UNION ALL SELECT 'o' || o.oid FROM pg_catalog.pg_operator o WHERE o.oprnamespace = $1"
        => pub fn temporary_objects(schema: pg_sys::Oid) -> BTreeSet<String>;
}

/// The cursors that are open now: name and description. One that takes the place of another has another description.
pub type Cursors = BTreeMap<String, String>;

/// Closes those that were not there before.
pub fn close_new_cursors(spi: &Spi, before: &Cursors) -> Result<()> {
    let now = cursors(spi)?;
    let new = now.iter().filter(|(name, described)| before.get(*name) != Some(described));
    new.map(|(name, _)| name).try_for_each(|name| spi.utility(&format!("CLOSE {}", quote(name))))
}
