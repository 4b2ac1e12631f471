//! The identity of this database, and whether its processes are its own. The tables `instances`, `registry` and
//! `registration_count`.
//!
//! A database is identified by the server's system identifier and its oid. `xdb.instances` is part of dumps and of
//! copies of the files. So a copy finds another identity there, and runs nothing until `xdb.adopt()` is called.
//!
//! Limitations: a copy of the whole server has the same identity as a promoted standby, and runs its processes.

use super::subscription;
use super::table::{statements, table};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{Param, value};
use crate::pg::process;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use xdb_engine::Timestamp;

/// This database: the system identifier of the server, as in `pg_control_system()`, and the database's oid.
pub fn here() -> (i64, pg_sys::Oid) {
    (process::system_identifier(), process::database())
}

fn params_of_here() -> [Param; 2] {
    let (system, database) = here();
    [value(system), value(database)]
}

/// Which database the processes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// No registration exists yet, or a dump is being restored. There is nothing to run.
    Unused,
    Own,
    /// The processes belong to this other database. It may also be this database, if they were restored from its dump.
    Copy {
        system_identifier: i64,
        database: pg_sys::Oid,
    },
}

impl Ownership {
    /// Why nothing runs, if the ownership is the reason.
    pub fn reason(self) -> Option<String> {
        match self {
            Self::Unused | Self::Own => None,
            Self::Copy { system_identifier, database } if (system_identifier, database) == here() => {
                Some("this database was restored from a dump: run xdb.adopt() to start processing".to_owned())
            }
            Self::Copy { system_identifier, database } => Some(format!(
                "this database is a copy of the one with oid {} in the system {system_identifier}: run xdb.adopt() to start processing",
                database.to_u32()
            )),
        }
    }

    /// Whether the oids of roles in the tables are valid in this server.
    pub fn knows_roles(self) -> bool {
        match self {
            Self::Unused | Self::Own => true,
            Self::Copy { system_identifier, .. } => system_identifier == here().0,
        }
    }
}

table! {
    /// The database that the processes belong to: this one, or in a copy the original.
    pub struct Instance in "instances" {
        key { system_identifier: i64, database: pg_sys::Oid }
        other { since: Timestamp, superseded_at: Option<Timestamp> }
    }
}

table! {
    /// The generation, and whether the database is in use. Dumps leave this table out.
    pub struct Registrations in "registry" {
        key { singleton: bool }
        other { generation: i64, in_use: bool }
    }
}

table! {
    /// Counts registrations. A session that finds one row locked counts in another row.
    pub struct RegistrationCount in "registration_count" {
        key { slot: i32 }
        other { registrations: i64 }
    }
}

/// The generation. It grows with each change of registrations, and schedulers then read the registrations again. The
/// generation is a sum of rows: each registration has one row to itself until it commits. So each commit increases the
/// sum, in any order.
pub(super) const GENERATION: &str = "r.generation + COALESCE((SELECT pg_catalog.sum(c.registrations)::bigint \
    FROM xdb.registration_count c), 0)";

/// The instance that the processes belong to, if any. The parameters are the values of [`here`].
pub(super) const OF_PROCESSES: &str = "SELECT i.system_identifier, i.database FROM xdb.instances i \
    WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1";

/// The row that determines the ownership, if any.
pub(super) fn ownership_row() -> String {
    format!("SELECT i.*, r.in_use FROM ({OF_PROCESSES}) AS i CROSS JOIN xdb.registry r")
}

statements! {
    OWNERSHIP_NOW = ownership_row();
    TAKE_INTO_USE = "INSERT INTO xdb.instances (system_identifier, database) \
        SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM xdb.instances) ON CONFLICT DO NOTHING";
    IN_USE = "UPDATE xdb.registry SET in_use = true" => fn is_in_use() -> ();
    BUMP = "WITH free AS MATERIALIZED (SELECT c.slot FROM xdb.registration_count c ORDER BY c.slot LIMIT 1 \
            FOR NO KEY UPDATE SKIP LOCKED), \
        counted AS (UPDATE xdb.registration_count c SET registrations = c.registrations + 1 FROM free \
            WHERE c.slot = free.slot RETURNING c.slot) \
        INSERT INTO xdb.registration_count (registrations) SELECT 1 WHERE NOT EXISTS (SELECT FROM counted)";
    SUPERSEDE = "UPDATE xdb.instances SET superseded_at = pg_catalog.clock_timestamp() \
        WHERE superseded_at IS NULL AND (system_identifier, database) <> ($1, $2)";
    ADOPT = "INSERT INTO xdb.instances (system_identifier, database) VALUES ($1, $2) \
        ON CONFLICT (system_identifier, database) \
        DO UPDATE SET since = pg_catalog.clock_timestamp(), superseded_at = NULL";
}

/// Reads a row of [`ownership_row`]. Nulls mean that there is no instance.
pub(super) fn read_ownership(row: &Row) -> Result<Ownership> {
    let Some(system_identifier) = row.get("system_identifier")? else { return Ok(Ownership::Unused) };
    let database = row.get("database")?;
    let is_own = (system_identifier, database) == here() && row.get("in_use")?;
    Ok(if is_own { Ownership::Own } else { Ownership::Copy { system_identifier, database } })
}

/// Which database the processes of this database belong to.
pub fn ownership(spi: &Spi) -> Result<Ownership> {
    Ok(spi.first(&OWNERSHIP_NOW, &params_of_here(), read_ownership)?.unwrap_or(Ownership::Unused))
}

/// Takes an unused database into use.
pub fn take_into_use(spi: &Spi) -> Result<()> {
    // The rows that these subscriptions write belong to another database, even if its identity has not arrived yet.
    if !subscription::writers(spi)?.is_empty() {
        return Ok(());
    }
    if spi.run(&TAKE_INTO_USE, &params_of_here())? > 0 { is_in_use(spi) } else { Ok(()) }
}

/// Makes this database the owner of the processes.
pub(super) fn become_own(spi: &Spi) -> Result<()> {
    spi.run(&SUPERSEDE, &params_of_here())?;
    if spi.run(&ADOPT, &params_of_here())? != 1 {
        return Err(PgError::internal("xdb.instances did not take this database"));
    }
    is_in_use(spi)
}

/// At commit, notifies all schedulers and all waiting pull workers that registrations have changed.
pub(super) fn bump(spi: &Spi) -> Result<()> {
    spi.run(&BUMP, &[])?;
    crate::pg::crash::point("register");
    crate::pg::wake::wake_all_at_commit();
    Ok(())
}
