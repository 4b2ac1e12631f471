//! The processes of a copied database become its own.

use super::table::statements;
use super::{claim, engine, instance, slow};
use crate::pg::catch::Result;
use crate::pg::spi::Spi;

statements! {
    MISSING_OWNERS = "SELECT DISTINCT p.owner_name FROM xdb.process_execution p WHERE p.status = 'RUNNING' \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = p.owner_name) ORDER BY 1 LIMIT 20";
    OWNERS = "UPDATE xdb.process_execution p SET owner = r.oid FROM pg_catalog.pg_roles r \
        WHERE r.rolname = p.owner_name AND r.oid <> p.owner";
    // One whose publisher is not there is for administrators to see, and nobody else.
    PUBLISHERS = "UPDATE xdb.global_message m \
        SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = m.owner_name), 0)";
}

/// Names of roles that own running processes and are not there.
pub fn missing_owners(spi: &Spi) -> Result<Vec<String>> {
    spi.rows(&MISSING_OWNERS, &[], |row| row.get("owner_name"))
}

/// Makes the processes of a copy this database's own. Leases are those of the other one, and so are, in another system,
/// the oids of roles: there the names count.
pub fn adopt(spi: &Spi, roles_by_name: bool) -> Result<()> {
    // Keeps a scheduler from beginning before this commits.
    engine::close_gate(spi)?;
    if roles_by_name {
        spi.run(&OWNERS, &[])?;
        spi.run(&PUBLISHERS, &[])?;
    }
    claim::take_owners(spi)?;
    claim::forget_leases(spi)?;
    slow::forget_all(spi)?;
    instance::become_own(spi)?;
    // A scheduler has been there since before the dump was restored.
    instance::bump(spi)
}
