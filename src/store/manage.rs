//! State executions as functions look for them.

use super::load::parse_word;
use crate::pg::catch::Result;
use crate::pg::param::{nullable, value};
use crate::pg::spi::{Row, Snapshot, Spi};
use xdb_engine::{ExecutionId, StateExecutionId, StateSeq, StateStatus, Timestamp};

/// A state execution, if there is one of that id.
pub fn state(
    spi: &Spi,
    id: ExecutionId,
    state: &StateExecutionId,
    snapshot: Snapshot,
) -> Result<Option<(StateSeq, StateStatus)>> {
    const SELECT: &str = "SELECT seq, status FROM xdb.state_execution \
        WHERE execution_id = $1 AND state_id = $2 AND number = $3";
    let params = [value(id), value(state.state_id.as_str()), value(i64::from(state.number))];
    let read = |row: &Row| {
        let status = parse_word(&row.need::<String>(2)?, StateStatus::parse)?;
        Ok((StateSeq(row.need::<i32>(1)? as u32), status))
    };
    spi.first_with(snapshot, SELECT, &params, read)
}

/// Whether there has been a state execution of that id, though it may be gone: where not the whole history is kept,
/// those that have ended are not kept either.
pub fn state_has_been(spi: &Spi, id: ExecutionId, state: &StateExecutionId, snapshot: Snapshot) -> Result<bool> {
    const SELECT: &str = "SELECT COALESCE((state_numbers ->> $2)::bigint >= $3, false) \
        FROM xdb.process_execution WHERE execution_id = $1";
    let params = [value(id), value(state.state_id.as_str()), value(i64::from(state.number))];
    Ok(spi.first_with(snapshot, SELECT, &params, |row| row.need(1))?.unwrap_or(false))
}

/// Whether there can be an execution of this state: its process type lists it, or there has been one.
pub fn state_can_be(spi: &Spi, id: ExecutionId, state_id: &str, snapshot: Snapshot) -> Result<bool> {
    const SELECT: &str = "SELECT p.state_numbers ? $2 OR EXISTS (SELECT FROM xdb.process_type t \
            WHERE t.process_type = p.process_type AND t.definition -> 'states' ? $2) \
        FROM xdb.process_execution p WHERE p.execution_id = $1";
    let params = [value(id), value(state_id)];
    Ok(spi.first_with(snapshot, SELECT, &params, |row| row.need(1))?.unwrap_or(false))
}

/// States of an execution whose calls are in backoff; only the named one, if it is.
pub fn in_backoff(spi: &Spi, id: ExecutionId, only: Option<StateSeq>, now: Timestamp) -> Result<Vec<StateSeq>> {
    const SELECT: &str = "SELECT seq FROM xdb.state_execution \
        WHERE execution_id = $1 AND ($2::int IS NULL OR seq = $2) AND ended_at IS NULL \
            AND (call ->> 'failedAttempts')::int + COALESCE((call ->> 'repeats')::int, 0) > 0 \
            AND (call ->> 'notBefore')::bigint > $3 ORDER BY seq";
    let params = [value(id), nullable(only.map(|seq| seq.0 as i32)), value(now.0)];
    spi.rows(SELECT, &params, |row| Ok(StateSeq(row.need::<i32>(1)? as u32)))
}
