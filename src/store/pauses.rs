//! Pauses: the same three columns of `process_execution` and of `process_type`. Here those of types are written. Such a change counts as a
//! registration, so the engine reads the type again in its next turn.

use super::instance::bump;
use super::registry::TypeId;
use super::table::statements;
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use xdb_engine::{Pause, Timestamp};

/// The columns of the type `t` that [`read`] reads.
pub(super) const COLUMNS: &str = "t.pause_mode, t.paused_until, t.pause_reason";

const NO_PAUSE: &str = "pause_mode = NULL, paused_until = NULL, pause_reason = NULL, version = version + 1";

statements! {
    /// A type that is to be paused or resumed, and its owner: it stays as it is until this transaction ends.
    TO_PAUSE = "SELECT t.type_id, t.owner FROM xdb.process_type t WHERE t.process_type = $1 FOR NO KEY UPDATE"
        => pub fn type_to_pause(name: &str) -> Option<(TypeId, pg_sys::Oid)>;
    PAUSE = "UPDATE xdb.process_type SET pause_mode = $2, paused_until = $3, pause_reason = $4, version = version + 1 \
        WHERE type_id = $1";
    RESUME = format!("UPDATE xdb.process_type SET {NO_PAUSE} WHERE type_id = $1 AND pause_mode IS NOT NULL");
    /// When the next pause of a type ends by itself.
    NEXT_END = "SELECT min(t.paused_until) AS next FROM xdb.process_type t WHERE t.pause_mode IS NOT NULL"
        => pub fn next_end() -> Option<Option<Timestamp>>;
    END = format!("UPDATE xdb.process_type SET {NO_PAUSE} WHERE type_id = ANY (ARRAY( \
        SELECT t.type_id FROM xdb.process_type t \
        WHERE t.pause_mode IS NOT NULL AND t.paused_until <= $1 ORDER BY t.type_id FOR NO KEY UPDATE SKIP LOCKED))");
}

/// The pause of a process or of a type.
pub(super) fn read(row: &Row) -> Result<Option<Pause>> {
    let Some(mode) = row.get("pause_mode")? else { return Ok(None) };
    Ok(Some(Pause { mode, until: row.get("paused_until")?, reason: row.get("pause_reason")? }))
}

/// Pauses a type, or changes its pause.
pub fn pause(spi: &Spi, id: TypeId, Pause { mode, until, reason }: &Pause) -> Result<()> {
    spi.run(&PAUSE, &[value(id), value(*mode), value(*until), value(reason.as_deref())])?;
    bump(spi)
}

/// Ends the pause of a type, if it is in one.
pub fn resume(spi: &Spi, id: TypeId) -> Result<()> {
    if spi.run(&RESUME, &[value(id)])? > 0 {
        bump(spi)?;
    }
    Ok(())
}

/// Ends the pauses that are over by themselves. What somebody has locked is left. Says whether there were any.
pub fn end(spi: &Spi, now: Timestamp) -> Result<bool> {
    let any = spi.run(&END, &[value(now)])? > 0;
    if any {
        bump(spi)?;
    }
    Ok(any)
}
