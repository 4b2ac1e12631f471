//! Pauses: the same three columns in `process_execution` and `process_type`. This file writes the columns of types. A
//! change counts as a registration, so the engine reads the type again in its next turn.

use super::instance::bump;
use super::registry::TypeId;
use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::param::{Param, value};
use crate::pg::spi::{Row, Spi, Statement};
use pgrx::pg_sys;
use xdb_engine::{Pause, PauseMode, Timestamp};

/// The columns of the type `t` that [`read`] reads.
pub(super) const COLUMNS: &str = "t.pause_mode, t.paused_until, t.pause_reason";

statements! {
    /// The type to pause or resume, and its owner. The row stays locked until this transaction ends.
    TO_PAUSE = "SELECT t.type_id, t.owner FROM xdb.process_type t WHERE t.process_type = $1 FOR NO KEY UPDATE"
        => pub fn type_to_pause(name: &str) -> Option<(TypeId, pg_sys::Oid)>;
    PUT = "UPDATE xdb.process_type SET pause_mode = $2::text, paused_until = $3, pause_reason = $4, version = version + 1 \
        WHERE type_id = $1 AND ($2::text IS NOT NULL OR pause_mode IS NOT NULL)";
    /// When the next pause of a type ends at its set time.
    NEXT_END = "SELECT min(t.paused_until) AS next FROM xdb.process_type t WHERE t.pause_mode IS NOT NULL"
        => pub fn next_end() -> Option<Option<Timestamp>>;
    END = "UPDATE xdb.process_type SET pause_mode = NULL, paused_until = NULL, pause_reason = NULL, version = version + 1 \
        WHERE type_id = ANY (ARRAY(SELECT t.type_id FROM xdb.process_type t \
            WHERE t.pause_mode IS NOT NULL AND t.paused_until <= $1 ORDER BY t.type_id FOR NO KEY UPDATE SKIP LOCKED))";
}

/// Reads the pause of a process or of a type.
pub(super) fn read(row: &Row) -> Result<Option<Pause>> {
    let Some(mode) = row.get("pause_mode")? else { return Ok(None) };
    Ok(Some(Pause { mode, until: row.get("paused_until")?, reason: row.get("pause_reason")? }))
}

/// The values of the columns.
pub(super) fn columns(pause: Option<&Pause>) -> (Option<PauseMode>, Option<Timestamp>, Option<&str>) {
    pause.map_or((None, None, None), |pause| (Some(pause.mode), pause.until, pause.reason.as_deref()))
}

/// Pauses a type, changes its pause, or ends it.
pub fn put(spi: &Spi, id: TypeId, pause: Option<&Pause>) -> Result<()> {
    let (mode, until, reason) = columns(pause);
    changed(spi, &PUT, &[value(id), value(mode), value(until), value(reason)]).map(drop)
}

/// Ends the pauses of types whose time has passed. Rows that another transaction has locked are skipped. True if there
/// were any.
pub fn end(spi: &Spi, now: Timestamp) -> Result<bool> {
    changed(spi, &END, &[value(now)])
}

fn changed(spi: &Spi, statement: &'static Statement, params: &[Param]) -> Result<bool> {
    let any = spi.run(statement, params)? > 0;
    if any {
        bump(spi)?;
    }
    Ok(any)
}
