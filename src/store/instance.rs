//! Which database this is, and whether the processes in it are its own.
//!
//! A database is (system identifier, oid). `xdb.instances` goes along in dumps and in copies of the files, so a copy
//! finds an identity there that is not its own: then nothing runs until somebody says that it shall. The tables `instances`,
//! `registry` and `registration_count`.

use super::subscription;
use super::table::{statements, table};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{Param, value};
use crate::pg::process;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use xdb_engine::Timestamp;

/// This database: the identifier of the server's files, as `pg_control_system()` shows it, and its oid.
pub fn here() -> (i64, pg_sys::Oid) {
    (process::system_identifier(), process::database())
}

fn params_of_here() -> [Param; 2] {
    let (system, database) = here();
    [value(system), value(database)]
}

/// Whose the processes of this database are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody has registered anything yet, or a dump is being restored: there is nothing to run.
    Unused,
    Own,
    /// They are those of this other database; of this one, as a dump has brought them back.
    Copy {
        system_identifier: i64,
        database: pg_sys::Oid,
    },
}

impl Ownership {
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

table! {
    /// The database whose processes these are: this one, or in a copy the one it was copied from.
    pub struct Instance in "instances" {
        key { system_identifier: i64, database: pg_sys::Oid }
        other { since: Timestamp, superseded_at: Option<Timestamp> }
    }
}

table! {
    /// The generation, and whether the database is in use, which is not dumped.
    pub struct Registrations in "registry" {
        key { singleton: bool }
        other { generation: i64, in_use: bool }
    }
}

table! {
    /// How often something was registered. Whoever finds a row locked counts in another one.
    pub struct RegistrationCount in "registration_count" {
        key { slot: i32 }
        other { registrations: i64 }
    }
}

/// Grows when what is registered has changed: schedulers then look at it again. A sum of rows, of which each registration has one to
/// itself until it commits. What commits adds to what was seen, in whichever order.
pub(super) const GENERATION: &str = "r.generation + COALESCE((SELECT pg_catalog.sum(c.registrations)::bigint \
    FROM xdb.registration_count c), 0)";

/// The instance that the processes belong to, if there is one. Its parameters are what [`here`] gives.
pub(super) const OF_PROCESSES: &str = "SELECT i.system_identifier, i.database FROM xdb.instances i \
    WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1";

/// The row that tells the ownership, if there is one.
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

/// Reads a row of [`ownership_row`]; nulls stand for no instance.
pub(super) fn read_ownership(row: &Row) -> Result<Ownership> {
    let Some(system_identifier) = row.get("system_identifier")? else { return Ok(Ownership::Unused) };
    let database = row.get("database")?;
    let is_own = (system_identifier, database) == here() && row.get("in_use")?;
    Ok(if is_own { Ownership::Own } else { Ownership::Copy { system_identifier, database } })
}

pub fn ownership(spi: &Spi) -> Result<Ownership> {
    Ok(spi.first(&OWNERSHIP_NOW, &params_of_here(), read_ownership)?.unwrap_or(Ownership::Unused))
}

/// Takes an unused database into use.
pub fn take_into_use(spi: &Spi) -> Result<()> {
    // What these bring is another database's, also if its identity has not come yet.
    if !subscription::writers(spi)?.is_empty() {
        return Ok(());
    }
    if spi.run(&TAKE_INTO_USE, &params_of_here())? > 0 { is_in_use(spi) } else { Ok(()) }
}

/// Makes this database the one whose processes these are.
pub(super) fn become_own(spi: &Spi) -> Result<()> {
    spi.run(&SUPERSEDE, &params_of_here())?;
    if spi.run(&ADOPT, &params_of_here())? != 1 {
        return Err(PgError::internal("xdb.instances did not take this database"));
    }
    is_in_use(spi)
}

/// Tells every scheduler, and every worker that waits for calls, that registrations changed, when the transaction commits.
pub(super) fn bump(spi: &Spi) -> Result<()> {
    spi.run(&BUMP, &[])?;
    crate::pg::crash::point("register");
    crate::pg::wake::wake_everybody_at_commit();
    Ok(())
}
