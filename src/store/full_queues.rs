//! Local queues that take no more messages: the column `full_queues` of `process_execution`. Publishers find it in the row that they
//! lock anyway, and answers in the row that they are decided with.
//!
//! No row has the sums, so they are counted now and then: by whoever takes messages in, when there may have come a hundredth of a
//! limit since the last time; and by the scheduler, while queues are marked. What comes in between is accepted.

use super::loaded::Loaded;
use super::table::statements;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::param::value;
use crate::pg::process::random;
use crate::pg::spi::Spi;
use xdb_engine::{Event, Execution, ExecutionId, Quotas, is_full};

statements! {
    // The sizes as they are stored: nobody unpacks a payload for this.
    COUNT = "SELECT q.queue_name, count(*) AS messages, COALESCE(sum(q.bytes), 0)::bigint AS bytes \
        FROM (SELECT m.queue_name, pg_column_size(m.payload) AS bytes FROM xdb.queue_message m \
            WHERE m.execution_id = $1 LIMIT $2) AS q GROUP BY q.queue_name ORDER BY q.queue_name";
    MARK = "UPDATE xdb.process_execution SET full_queues = $2::text[] WHERE execution_id = $1";
    NEXT = "SELECT execution_id, full_queues FROM xdb.process_execution \
        WHERE full_queues IS NOT NULL AND execution_id > $1 ORDER BY execution_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED";
}

/// A hundredth of a limit is so many messages at most: a queue is not counted for each message.
const COUNTED_AGAIN_AFTER: usize = 1000;

/// From so many times the limit on, all queues of the execution are full: else one could go on with ever new names.
const ALL_ARE_FULL: usize = 2;

/// Whether it is time to count. Nobody remembers when that was done last: numbers of messages tell it for them, and chance for bytes.
fn is_due(before: &Execution, now: &Execution, bytes: usize, quotas: &Quotas) -> bool {
    let (had, has) = (before.next_message - 1, now.next_message - 1);
    let every = (quotas.queue_messages / 100).clamp(1, COUNTED_AGAIN_AFTER) as u64;
    let by_number = has >= quotas.queue_messages as u64 && had / every != has / every;
    let most_bytes = (has as usize).saturating_mul(guc::max_payload_bytes());
    let share = bytes as f64 * 100.0 / quotas.queue_bytes as f64;
    by_number || most_bytes >= quotas.queue_bytes && (share >= 1.0 || random() < share)
}

/// The queues of an execution that are full.
fn of_one(spi: &Spi, id: ExecutionId, quotas: &Quotas) -> Result<Vec<String>> {
    let enough = quotas.queue_messages.saturating_mul(ALL_ARE_FULL);
    let counted = spi.rows(&COUNT, &[value(id), value(enough as i64)], |row| {
        let (messages, bytes) = (row.get::<i64>("messages")?, row.get::<i64>("bytes")?);
        Ok((row.get::<String>("queue_name")?, messages.max(0) as usize, bytes.max(0) as usize))
    })?;
    let messages: usize = counted.iter().map(|(_, messages, _)| messages).sum();
    let bytes: usize = counted.iter().map(|(_, _, bytes)| bytes).sum();
    let reaches = |times: usize| messages >= quotas.queue_messages * times || bytes >= quotas.queue_bytes * times;
    Ok(match (reaches(ALL_ARE_FULL), reaches(1)) {
        (true, _) => vec![String::new()],
        (false, true) => counted.into_iter().map(|(queue, ..)| queue).collect(),
        (false, false) => Vec::new(),
    })
}

fn write(spi: &Spi, id: ExecutionId, full: &[String]) -> Result<()> {
    let full = (!full.is_empty()).then(|| full.to_vec());
    spi.run(&MARK, &[value(id), value(full)])?;
    Ok(())
}

/// Marks the queues that are full of those that have just been saved, under their locks.
pub(super) fn mark(spi: &Spi, saved: &[&Loaded]) -> Result<()> {
    let quotas = guc::quotas();
    for Loaded { meta, before, execution, events, .. } in saved {
        if before.next_message == execution.next_message || !execution.is_running() {
            continue;
        }
        let received = events.iter().flat_map(|(event, _)| match event {
            Event::MessagesReceived { messages, .. } => &messages[..],
            _ => &[],
        });
        let open: Vec<_> = received.filter(|message| !is_full(&meta.full_queues, &message.queue)).collect();
        let bytes =
            open.iter().filter_map(|message| message.payload.as_ref()).map(|payload| payload.as_str().len()).sum();
        // Those that are marked were counted, and are counted again by the scheduler.
        if open.is_empty() || !is_due(before, execution, bytes, &quotas) {
            continue;
        }
        let full = of_one(spi, execution.id, &quotas)?;
        if !full.is_empty() && full != meta.full_queues {
            write(spi, execution.id, &full)?;
        }
    }
    Ok(())
}

/// Counts the next execution behind this one that has a mark, and takes the mark off what is not full any more. Gives the one that it
/// counted; None: there is no more. One that somebody has locked is left for another time.
pub fn look_again(spi: &Spi, after: ExecutionId) -> Result<Option<ExecutionId>> {
    let next = spi.first(&NEXT, &[value(after)], |row| {
        Ok((row.get::<ExecutionId>("execution_id")?, row.get::<Vec<String>>("full_queues")?))
    })?;
    let Some((id, marked)) = next else { return Ok(None) };
    let full = of_one(spi, id, &guc::quotas())?;
    if full != marked {
        write(spi, id, &full)?;
    }
    Ok(Some(id))
}
