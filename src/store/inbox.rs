//! Messages that were published and not taken in yet, and the message ids that queues have seen: the tables `inbox` and
//! `message_key`.

use super::loaded::Loaded;
use super::table::{Read, Record, batch, insert, record, run, select, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, array, value};
use crate::pg::spi::Spi;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::*;

table! {
    /// A message in the inbox. The row itself is the task "messages arrived". Inserted under `KEY SHARE`, never updated.
    pub struct Inbox<'a> in "inbox" {
        key { inbox_id: i64 }
        other {
            execution_id: ExecutionId,
            shard: i16,
            queue_name: &'a str,
            message_id: Option<&'a str>,
            payload: Option<Jsonb<'a>>,
            bytes: i32,
            published_at: Timestamp,
        }
    }
}

record! {
    /// A message on its way into the inbox.
    pub struct NewMessage<'a> of Inbox<'a> {
        execution_id: ExecutionId,
        shard: i16,
        queue_name: &'a str,
        message_id: Option<&'a str>,
        payload: Option<Jsonb<'a>>,
        bytes: i32,
        published_at: Timestamp,
    }
}

record! {
    /// What of a message is taken in.
    struct TakenMessage<'a> of Inbox<'a> {
        inbox_id: i64,
        execution_id: ExecutionId,
        queue_name: &'a str,
        message_id: Option<&'a str>,
        payload: Option<Jsonb<'a>>,
    }
}

table! {
    /// A message id that was used in a queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct MessageKey<'a> in "message_key" {
        key { execution_id: ExecutionId, queue_name: &'a str, message_id: &'a str }
    }
}

statements! {
    INSERT = insert::<NewMessage>();
    USE_KEY = format!("{} ON CONFLICT DO NOTHING", insert::<MessageKey>());
    KEYS = insert::<MessageKey>();
    // By execution, so that nobody takes walking through the whole inbox in its order for a way to these.
    ARRIVALS = format!("SELECT {} FROM (SELECT o.inbox_id, o.bytes, sum(o.bytes) OVER (ORDER BY o.inbox_id) AS total \
            FROM (SELECT DISTINCT unnest($1::uuid[]) AS id) AS k \
            CROSS JOIN LATERAL (SELECT n.inbox_id, n.bytes FROM xdb.inbox n WHERE n.execution_id = k.id \
                ORDER BY n.inbox_id LIMIT $2) AS o \
            ORDER BY o.inbox_id LIMIT $2) AS head \
        JOIN xdb.inbox i USING (inbox_id) WHERE head.total - head.bytes < $3 ORDER BY i.inbox_id",
        select::<TakenMessage>("i"));
    UNSEEN = "SELECT EXISTS (SELECT FROM xdb.inbox WHERE execution_id = $1 \
        AND queue_name = COALESCE($2, queue_name)) AS unseen";
    EXECUTIONS = "SELECT execution_id, inbox_id FROM xdb.inbox \
        WHERE inbox_id >= $3 AND execution_id <> ALL ($1) ORDER BY inbox_id LIMIT $2";
    DELETE = "DELETE FROM xdb.inbox WHERE inbox_id = ANY ($1)";
    DELETE_ALL = "DELETE FROM xdb.inbox WHERE execution_id = ANY ($1)";
    DELETE_ALL_KEYS = "DELETE FROM xdb.message_key WHERE execution_id = ANY ($1)";
    KNOWN_KEYS = format!("SELECT {} FROM {} JOIN xdb.message_key m USING (execution_id, queue_name, message_id)",
        select::<MessageKey>("m"), batch::<MessageKey>());
    IS_KNOWN = "SELECT EXISTS (SELECT FROM xdb.message_key \
        WHERE execution_id = $1 AND queue_name = $2 AND message_id = $3) AS known";
    ALL_KEYS = format!("SELECT {} FROM xdb.message_key m WHERE execution_id = $1", select::<MessageKey>("m"));
    KEYS_IN_INBOX = "SELECT queue_name, message_id FROM xdb.inbox \
        WHERE execution_id = $1 AND message_id IS NOT NULL ORDER BY inbox_id";
}

/// Puts a message into the inbox. With a message id that the queue has seen, nothing happens.
pub fn publish(spi: &Spi, message: NewMessage) -> Result<()> {
    if let Some(message_id) = message.message_id {
        let key = MessageKey { execution_id: message.execution_id, queue_name: message.queue_name, message_id };
        if run(spi, &USE_KEY, &[key])? == 0 {
            return Ok(());
        }
    }
    run(spi, &INSERT, &[message])?;
    Ok(())
}

/// Whether the queue has seen this message id: a message with it changes nothing.
pub fn is_known(spi: &Spi, id: ExecutionId, queue: &str, message_id: &str) -> Result<bool> {
    let params = [value(id), value(queue), value(message_id)];
    Ok(spi.first(&IS_KNOWN, &params, |row| row.get("known"))?.unwrap_or(false))
}

/// Writes message ids down that states have used.
pub(super) fn write_keys(spi: &Spi, keys: &[MessageKey]) -> Result<()> {
    run(spi, &KEYS, keys)?;
    Ok(())
}

/// Loads which of these message ids are on record for their queues. To be called after the inbox was taken in: a
/// message that came in between is in the inbox still, and is received later.
pub fn message_ids(
    spi: &Spi,
    loaded: &mut BTreeMap<ExecutionId, Loaded>,
    published: &[(ExecutionId, String, String)],
) -> Result<()> {
    if published.is_empty() {
        return Ok(());
    }
    let keys = published.iter();
    let keys = keys.map(|(id, queue_name, message_id)| MessageKey { execution_id: *id, queue_name, message_id });
    let keys: Vec<_> = keys.collect();
    let known = spi.rows(&KNOWN_KEYS, &MessageKey::arrays(&keys), |row| {
        let key = MessageKey::read(row)?;
        Ok((key.execution_id, (key.queue_name.to_owned(), key.message_id.to_owned())))
    })?;
    for (id, key) in known {
        if let Some(entry) = loaded.get_mut(&id) {
            entry.published_before.insert(key);
        }
    }
    Ok(())
}

/// Queue and message id of all that an execution has on record, as the active snapshot shows them.
pub(super) fn all_keys(spi: &Spi, id: ExecutionId) -> Result<Vec<(String, String)>> {
    spi.rows(&ALL_KEYS, &[value(id)], |row| Ok((row.get("queue_name")?, row.get("message_id")?)))
}

/// The same of the messages in its inbox.
pub(super) fn keys_in_inbox(spi: &Spi, id: ExecutionId) -> Result<Vec<(String, String)>> {
    let read = |row: &crate::pg::spi::Row| Ok((row.get("queue_name")?, row.get("message_id")?));
    spi.rows(&KEYS_IN_INBOX, &[value(id)], read)
}

/// A message that waits in the inbox.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub inbox_id: i64,
    pub execution_id: ExecutionId,
    pub publish: Publish,
}

impl Arrival {
    /// Size of the payload.
    pub fn bytes(&self) -> usize {
        self.publish.payload.as_ref().map_or(0, |payload| payload.as_str().len())
    }
}

/// What was read from the inbox.
pub struct Arrivals {
    pub arrivals: Vec<Arrival>,
    /// There is no more.
    pub all: bool,
}

/// Most messages, and most bytes of them, that one turn takes in.
const ARRIVALS_PER_TURN: usize = 5000;
const ARRIVED_BYTES_PER_TURN: i64 = 16 * 1024 * 1024;

/// Messages that arrived for these executions, oldest first; not more than a turn takes in. Read in a statement that
/// begins after the executions were locked.
pub fn arrivals(spi: &Spi, ids: &[ExecutionId]) -> Result<Arrivals> {
    let params = [array(ids), value(ARRIVALS_PER_TURN as i64), value(ARRIVED_BYTES_PER_TURN)];
    let arrivals = spi.rows(&ARRIVALS, &params, |row| {
        let TakenMessage { inbox_id, execution_id, queue_name, message_id, payload } = TakenMessage::read(row)?;
        let publish = Publish {
            queue: queue_name.to_owned(),
            message_id: message_id.map(str::to_owned),
            payload: payload.map(|payload| payload.to_json()).transpose()?,
        };
        Ok(Arrival { inbox_id, execution_id, publish })
    })?;
    let bytes: usize = arrivals.iter().map(Arrival::bytes).sum();
    let all = arrivals.len() < ARRIVALS_PER_TURN && bytes < ARRIVED_BYTES_PER_TURN as usize;
    Ok(Arrivals { arrivals, all })
}

/// Most bytes of messages in one event.
const ARRIVED_BYTES_PER_EVENT: usize = 4 * 1024 * 1024;

impl Loaded {
    /// Takes messages in that arrived from clients, in events of a bounded size. A closed execution takes none.
    pub fn receive(&mut self, spi: &Spi, arrivals: Vec<Arrival>, now: Timestamp) -> Result<()> {
        let mut arrivals = arrivals.into_iter().peekable();
        while arrivals.peek().is_some() {
            let mut bytes = 0;
            let mut publishes = Vec::new();
            while let Some(arrival) =
                arrivals.next_if(|next| publishes.is_empty() || bytes + next.bytes() <= ARRIVED_BYTES_PER_EVENT)
            {
                bytes += arrival.bytes();
                publishes.push(arrival.publish);
            }
            let command = Command::MessagesArrived(publishes);
            self.prepare(spi, &command)?;
            if let Ok(events) = self.decide(&command, now, 0.0) {
                self.apply(events, now);
            }
        }
        Ok(())
    }
}

/// Whether there are messages in the inbox that the transaction's own snapshot does not show: in this queue of the
/// execution, or in any. To be asked when those that it shows were taken in.
pub fn has_unseen_arrivals(spi: &Spi, id: ExecutionId, queue: Option<&str>) -> Result<bool> {
    let params = [value(id), value(queue)];
    let unseen = spi.with_latest_snapshot(|spi| spi.first(&UNSEEN, &params, |row| row.get("unseen")))?;
    Ok(unseen.unwrap_or(false))
}

/// Executions with messages in the inbox.
#[derive(Debug, Default)]
pub struct WithArrivals {
    pub executions: Vec<ExecutionId>,
    /// There may be more.
    pub more: bool,
    /// The last message that was looked at.
    pub last: Option<i64>,
}

/// Executions with messages in the inbox, those of the oldest messages first. Looks at messages with the id `from` and higher
/// ones.
pub fn executions_with_arrivals(
    spi: &Spi,
    except: &[ExecutionId],
    limit: usize,
    from: Option<i64>,
) -> Result<WithArrivals> {
    let params = [array(except), value(limit as i64), value(from.unwrap_or(i64::MIN))];
    let mut seen = BTreeSet::new();
    let read = |row: &crate::pg::spi::Row| Ok((row.get("execution_id")?, row.get::<i64>("inbox_id")?));
    let rows = spi.rows(&EXECUTIONS, &params, read)?;
    Ok(WithArrivals {
        more: rows.len() == limit,
        last: rows.last().map(|row| row.1),
        executions: rows.into_iter().map(|row| row.0).filter(|id| seen.insert(*id)).collect(),
    })
}

/// Deletes messages, and their ids, of executions that take none any more: a close at a higher isolation level may not
/// have seen them.
pub fn delete_arrivals_of(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    if !ids.is_empty() {
        spi.run(&DELETE_ALL, &[array(ids)])?;
        spi.run(&DELETE_ALL_KEYS, &[array(ids)])?;
    }
    Ok(())
}

pub fn delete_arrivals(spi: &Spi, inbox_ids: &[i64]) -> Result<()> {
    if !inbox_ids.is_empty() {
        spi.run(&DELETE, &[array(inbox_ids)])?;
    }
    Ok(())
}
