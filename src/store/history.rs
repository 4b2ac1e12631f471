//! Histories of which not everything is kept: what is cut off is replayed, and a snapshot takes its place.

use crate::pg::catch::Result;
use crate::pg::param::{array, value};
use crate::pg::spi::{Snapshot, Spi};
use xdb_engine::{ExecutionId, Replay};

/// Why events can't be replayed.
pub type Broken = String;

/// The replay of an execution's events up to a number, read in slices with a snapshot of the caller's choice.
pub fn replay(
    spi: &Spi,
    snapshot: Snapshot,
    id: ExecutionId,
    up_to: u64,
) -> Result<std::result::Result<Replay, Broken>> {
    const SELECT: &str = "SELECT event_id, event_time, event_type, details::text FROM xdb.history_event \
        WHERE execution_id = $1 AND event_id > $2 AND event_id <= $3 ORDER BY event_id LIMIT 1000";
    let mut replay = Replay::new(id);
    let mut last = i64::MIN;
    let up_to = i64::try_from(up_to).unwrap_or(i64::MAX);
    loop {
        let params = [value(id), value(last), value(up_to)];
        let slice = spi.rows_with(snapshot, SELECT, &params, |row| {
            Ok((row.need::<i64>(1)?, row.need_time(2)?, row.need::<String>(3)?, row.need::<String>(4)?))
        })?;
        let Some((newest, ..)) = slice.last() else { return Ok(Ok(replay)) };
        last = *newest;
        for (number, at, name, details) in slice {
            let number = number.max(0) as u64;
            if let Err(broken) = replay.event(number, at, &name, &details) {
                return Ok(Err(broken));
            }
        }
    }
}

/// Puts a snapshot in the place of an execution's events up to this number, and deletes the states that ended in them.
/// Under the execution's lock. A history that can't be replayed stays as it is: `check_process` says what is wrong
/// with it.
pub fn cut(spi: &Spi, id: ExecutionId, up_to: u64) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.history_event SET event_type = $3, details = $4::jsonb \
        WHERE execution_id = $1 AND event_id = $2";
    const DELETE: &str = "DELETE FROM xdb.history_event WHERE execution_id = $1 AND event_id < $2";
    const STATES: &str = "DELETE FROM xdb.state_execution WHERE execution_id = $1 AND seq = ANY ($2)";
    let Ok(replay) = replay(spi, Snapshot::Fresh, id, up_to)? else { return Ok(()) };
    if replay.execution.next_event != up_to + 1 {
        return Ok(());
    }
    let Some((event, ended)) = replay.snapshot() else { return Ok(()) };
    let (name, details) = event.to_parts();
    spi.run(UPDATE, &[value(id), value(up_to as i64), value(name), value(details.as_str())])?;
    spi.run(DELETE, &[value(id), value(up_to as i64)])?;
    spi.run(STATES, &[value(id), array(ended.iter().map(|seq| seq.0 as i32))])?;
    Ok(())
}

/// As the execution's row has the policy: null for everything, 0 for nothing, else how many events.
pub mod column {
    use xdb_engine::HistoryPolicy;

    pub fn of(policy: HistoryPolicy) -> Option<i32> {
        match policy {
            HistoryPolicy::Full => None,
            HistoryPolicy::None => Some(0),
            HistoryPolicy::KeepLast(events) => Some(i32::try_from(events).unwrap_or(i32::MAX)),
        }
    }

    pub fn policy(column: Option<i32>) -> HistoryPolicy {
        match column {
            None => HistoryPolicy::Full,
            Some(0) => HistoryPolicy::None,
            Some(events) => HistoryPolicy::KeepLast(events.unsigned_abs()),
        }
    }
}
