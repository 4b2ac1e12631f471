//! The history of executions, and how it is cut: events are replayed, and a snapshot takes their place. The table
//! `history_event`.

use super::state;
use super::table::{insert, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::Jsonb;
use crate::pg::spi::Spi;
use xdb_engine::{ExecutionId, Replay, Timestamp};

table! {
    /// A complete event. Events are only appended. With `keepLast`, the oldest events are cut off.
    pub struct HistoryEvent<'a> in "history_event" {
        key { execution_id: ExecutionId, event_id: u64 }
        other { event_time: Timestamp, event_type: &'a str, details: Jsonb<'a> }
    }
}

statements! {
    INSERT = insert::<HistoryEvent>();
    SLICE = "SELECT event_id, event_time, event_type, details::text FROM xdb.history_event \
        WHERE execution_id = $1 AND event_id > $2 AND event_id <= $3 ORDER BY event_id LIMIT 1000"
        => fn slice(id: ExecutionId, after: i64, up_to: i64) -> Vec<(i64, Timestamp, String, String)>;
    OLDEST = "SELECT event_id, pg_catalog.pg_column_size(details) AS bytes FROM xdb.history_event \
        WHERE execution_id = $1 ORDER BY event_id LIMIT 1" => fn oldest(id: ExecutionId) -> Option<(i64, i32)>;
    PUT_SNAPSHOT = "UPDATE xdb.history_event SET event_type = $3, details = $4::text::jsonb \
        WHERE execution_id = $1 AND event_id = $2"
        => fn put_snapshot(id: ExecutionId, event: u64, name: &str, details: &str) -> ();
    CUT = "DELETE FROM xdb.history_event WHERE execution_id = $1 AND event_id < $2"
        => fn cut_before(id: ExecutionId, event: u64) -> ();
    /// The number of an execution's events, in the active snapshot.
    COUNT = "SELECT pg_catalog.count(*) AS events FROM xdb.history_event WHERE execution_id = $1"
        => pub(super) fn count(id: ExecutionId) -> i64;
}

/// Why events can't be replayed, in words.
pub type Broken = String;

/// Replays an execution's events up to a number. Reads them in slices, with the caller's snapshot.
pub fn replay(spi: &Spi, id: ExecutionId, up_to: u64) -> Result<std::result::Result<Replay, Broken>> {
    let mut replay = Replay::new(id);
    let mut last = i64::MIN;
    let up_to = i64::try_from(up_to).unwrap_or(i64::MAX);
    loop {
        let slice = slice(spi, id, last, up_to)?;
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

/// A snapshot is written only if it replaces at least one event for each this many bytes of the last snapshot.
/// Otherwise a process with very many threads, messages or attributes would write them all again after every few
/// events.
const BYTES_PER_EVENT: u64 = 4096;

/// Replaces an execution's events up to this number by a snapshot, and deletes the states that ended in them. The
/// caller has locked the execution. A history that can't be replayed stays: `xdb.check_process` reports the problem.
pub fn cut(spi: &Spi, id: ExecutionId, up_to: u64) -> Result<()> {
    let Some((oldest, bytes)) = oldest(spi, id)? else { return Ok(()) };
    if up_to.saturating_sub(oldest.max(0) as u64).saturating_mul(BYTES_PER_EVENT) < bytes.max(0) as u64 {
        return Ok(());
    }
    let Ok(replay) = replay(spi, id, up_to)? else { return Ok(()) };
    if replay.execution.next_event != up_to + 1 {
        return Ok(());
    }
    let Some((event, ended)) = replay.snapshot() else { return Ok(()) };
    let (name, details) = event.to_parts();
    put_snapshot(spi, id, up_to, name, details.as_str())?;
    cut_before(spi, id, up_to)?;
    state::forget(spi, id, &ended)
}

/// The column `history_limit`: null for all events, 0 for none, else how many are kept.
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
