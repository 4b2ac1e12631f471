//! Which database this is, and whether the processes in it are its own.
//!
//! A database is (system identifier, oid). `xdb.instances` goes along in dumps and in copies of the files, so a copy
//! finds an identity there that is not its own: then nothing runs until somebody says that it shall.

use crate::pg::catch::{PgError, Result};
use crate::pg::param::value;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;

/// This database: the identifier of the server's files, as `pg_control_system()` shows it, and its oid.
pub fn here() -> (i64, pg_sys::Oid) {
    // SAFETY: both are set before any statement runs.
    unsafe { (pg_sys::GetSystemIdentifier() as i64, pg_sys::MyDatabaseId) }
}

/// Whose the processes of this database are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has registered anything yet, or a dump is being restored: there is nothing to run.
    Unused,
    Own,
    /// They are those of this other database; of this one, as a dump has brought them back.
    Copy {
        system_identifier: i64,
        database: pg_sys::Oid,
    },
}

impl Standing {
    /// Why nothing runs, if this is why.
    pub fn reason(self) -> Option<String> {
        match self {
            Self::Unused | Self::Own => None,
            Self::Copy { system_identifier, database } if (system_identifier, database) == here() => Some(
                "what is in this database was restored from a dump: its processes run after xdb.adopt()".to_owned(),
            ),
            Self::Copy { system_identifier, database } => Some(format!(
                "this database is a copy of the one with oid {} in the system {system_identifier}: its processes run \
                 after xdb.adopt()",
                database.to_u32()
            )),
        }
    }

    /// Whether roles are known by their oids here.
    pub fn knows_roles(self) -> bool {
        match self {
            Self::Unused | Self::Own => true,
            Self::Copy { system_identifier, .. } => system_identifier == here().0,
        }
    }
}

/// The row that tells the standing, if there is one. Its parameters are what [`here`] gives.
pub(super) const STANDING: &str = "SELECT i.system_identifier, i.database, r.in_use FROM xdb.instances i, xdb.registry r \
    WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1";

/// Reads a row of [`STANDING`], which begins with this column; nulls stand for no row.
pub(super) fn read_standing(row: &Row, column: usize) -> Result<Standing> {
    let Some(system_identifier) = row.get(column) else { return Ok(Standing::Unused) };
    let database = row.need(column + 1)?;
    let is_own = (system_identifier, database) == here() && row.need::<bool>(column + 2)?;
    Ok(if is_own { Standing::Own } else { Standing::Copy { system_identifier, database } })
}

pub fn standing(spi: &Spi) -> Result<Standing> {
    let (system, oid) = here();
    let found = spi.first(STANDING, &[value(system), value(oid)], |row| read_standing(row, 1))?;
    Ok(found.unwrap_or(Standing::Unused))
}

/// Takes an unused database into use.
pub fn take_into_use(spi: &Spi) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.instances (system_identifier, database) \
        SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM xdb.instances) ON CONFLICT DO NOTHING";
    let (system, oid) = here();
    if spi.run(INSERT, &[value(system), value(oid)])? > 0 {
        spi.run(IN_USE, &[])?;
    }
    Ok(())
}

const IN_USE: &str = "UPDATE xdb.registry SET in_use = true";

/// Names of roles that own running processes and are not there.
pub fn missing_owners(spi: &Spi) -> Result<Vec<String>> {
    const SELECT: &str = "SELECT DISTINCT p.owner_name FROM xdb.process_execution p WHERE p.status = 'RUNNING' \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = p.owner_name) ORDER BY 1 LIMIT 20";
    spi.rows(SELECT, &[], |row| row.need(1))
}

/// Makes the processes of a copy this database's own. Leases and locks are those of the other one, and so are, in another
/// system, the oids of roles: there the names count.
pub fn adopt(spi: &Spi, roles_by_name: bool) -> Result<()> {
    // Keeps a scheduler from beginning before this commits.
    const GATE: &str = "SELECT 1 FROM xdb.engine ORDER BY lane FOR UPDATE";
    const OWNERS: &str = "UPDATE xdb.process_execution p SET owner = r.oid FROM pg_catalog.pg_roles r \
        WHERE r.rolname = p.owner_name AND r.oid <> p.owner";
    // One whose publisher is not there is for administrators to see, and nobody else.
    const PUBLISHERS: &str = "UPDATE xdb.global_message m \
        SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = m.owner_name), 0)";
    const LEASES: &str = "UPDATE xdb.task SET lane = 0, lease_epoch = 0, lease_number = 0, lease_until = NULL \
        WHERE lane <> 0 OR lease_epoch <> 0";
    const LOCKS: &str = "DELETE FROM xdb.attribute_lock";
    const RELEASES: &str = "DELETE FROM xdb.attribute_lock_release";
    const SUPERSEDE: &str = "UPDATE xdb.instances SET superseded_at = pg_catalog.clock_timestamp() \
        WHERE superseded_at IS NULL AND (system_identifier, database) <> ($1, $2)";
    const INSERT: &str = "INSERT INTO xdb.instances (system_identifier, database) VALUES ($1, $2) \
        ON CONFLICT (system_identifier, database) \
        DO UPDATE SET since = pg_catalog.clock_timestamp(), superseded_at = NULL";
    spi.rows(GATE, &[], |_| Ok(()))?;
    if roles_by_name {
        spi.run(OWNERS, &[])?;
        spi.run(PUBLISHERS, &[])?;
    }
    spi.run(LEASES, &[])?;
    spi.run(LOCKS, &[])?;
    spi.run(RELEASES, &[])?;
    super::slow::forget_all(spi)?;
    let (system, oid) = here();
    spi.run(SUPERSEDE, &[value(system), value(oid)])?;
    if spi.run(INSERT, &[value(system), value(oid)])? != 1 {
        return Err(PgError::internal("xdb.instances did not take this database"));
    }
    spi.run(IN_USE, &[])?;
    // A scheduler has been there since before the dump was restored.
    super::registry::bump(spi)
}
