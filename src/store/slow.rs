//! Describes the marks of slow tables, functions and roles, for `xdb.status()` and the log: each with its name from the
//! catalog and its reason. The marks are in shared memory, and [`crate::pg::shmem::slow`] sets and ends them.
//!
//! Limitations: a mark has only an oid. If the object was dropped, its name is a number.

use super::children::parent_of_tables;
use super::registry::TypeId;
use super::table::statements;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::process::database;
use crate::pg::shmem::slow::{MarkKind, SlowMark, marks};
use crate::pg::spi::Spi;
use pgrx::pg_sys;

statements! {
    CHILDREN = "SELECT 'children of ' || t.process_type AS name FROM xdb.process_type t WHERE t.type_id = $1"
        => fn children_of(parent: TypeId) -> Option<String>;
    NAME = "SELECT CASE WHEN $2::bool THEN $1::oid::regrole::text \
        WHEN EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid = $1) \
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1) THEN $1::oid::regprocedure::text \
        ELSE $1::oid::regclass::text END AS name" => fn name_of(oid: pg_sys::Oid, is_role: bool) -> Option<String>;
}

/// Why a table or function, or all tables of a role's processes, are marked.
const NOT_CANCELLED: &str = "a statement could not be cancelled, so the engine process ended itself";

/// One line for each mark of this database: the object's name and the reason.
pub fn names(spi: &Spi) -> Result<Vec<String>> {
    marks(database()).map(|mark| describe(spi, mark)).collect()
}

/// The name of the marked object, and why it is marked.
fn describe(spi: &Spi, mark: SlowMark) -> Result<String> {
    let name = name(spi, mark)?;
    Ok(match mark.kind {
        MarkKind::Slow => format!("{name}: took longer than xdb.apply_timeout"),
        MarkKind::Deadly => format!("{name}: {NOT_CANCELLED}"),
        MarkKind::Killer => format!("all tables of processes of {name}: {NOT_CANCELLED}"),
    })
}

/// What a new mark does, and why it was set, for the server log.
pub fn announce(spi: &Spi, mark: SlowMark) -> Result<String> {
    let (name, limit) = (name(spi, mark)?, guc::APPLY_TIMEOUT_MS.get());
    Ok(match mark.kind {
        MarkKind::Slow => format!(
            "{name} is slow (one use took longer than xdb.apply_timeout, {limit} ms); its steps run in a runner for ten minutes"
        ),
        MarkKind::Deadly => format!("{name} is not used for ten minutes: {NOT_CANCELLED}"),
        MarkKind::Killer => format!("steps of {name} that use tables run in a runner for an hour: {NOT_CANCELLED}"),
    })
}

fn name(spi: &Spi, mark: SlowMark) -> Result<String> {
    let parent = parent_of_tables(mark.oid).filter(|_| mark.kind != MarkKind::Killer);
    if let Some(name) = parent.map_or(Ok(None), |parent| children_of(spi, parent))? {
        return Ok(name);
    }
    Ok(name_of(spi, mark.oid.into(), mark.kind == MarkKind::Killer)?.unwrap_or_default())
}
