//! The planted fault that needs statements of its own.

use super::StateKey;
use super::claim::Due;
use crate::pg::catch::Result;
use crate::pg::param::array;
use crate::pg::plant::{self, Plant};
use crate::pg::spi::Spi;
use std::cell::Cell;
use std::collections::HashMap;
use xdb_engine::Timestamp;

thread_local! {
    /// The due time of the last call that was claimed.
    static CURSOR: Cell<Timestamp> = const { Cell::new(Timestamp(i64::MIN)) };
}

/// Leaves out calls that came due before the last one that was claimed, as if the claim went on from there.
pub fn behind_cursor(spi: &Spi, due: Vec<Due>) -> Result<Vec<Due>> {
    const SELECT: &str = "SELECT t.execution_id, t.seq, t.due_at FROM xdb.task t \
        JOIN unnest($1::uuid[], $2::int[]) AS k (execution_id, seq) USING (execution_id, seq)";
    if !plant::is(Plant::Cursor) || due.is_empty() {
        return Ok(due);
    }
    let params = [array(due.iter().map(|d| d.key.0)), array(due.iter().map(|d| d.key.1.0 as i32))];
    let times: HashMap<StateKey, Timestamp> =
        spi.rows(SELECT, &params, |row| Ok(((row.at(0)?, row.at(1)?), row.at(2)?)))?.into_iter().collect();
    let from = CURSOR.get();
    CURSOR.set(times.values().copied().max().unwrap_or(from).max(from));
    Ok(due.into_iter().filter(|d| times.get(&d.key).is_some_and(|at| *at >= from)).collect())
}
