//! Messages that were published and not yet received, and the message ids that queues have seen. The tables `inbox` and
//! `message_key`.

use super::deciding;
use super::lines::{firsts_of, read_first};
use super::loaded::Loaded;
use super::table::{
    Gives, Read, Record, batch, delete, insert, insert_but, record, run, run_but, select, statements, table,
};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, value};
use crate::pg::process::random;
use crate::pg::shmem::counters::{Count, OfMessages};
use crate::pg::spi::Spi;
use crate::pg::wake;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use xdb_engine::*;
use xdb_sched::bytes::{OF_A_PHASE, ROW};
use xdb_sched::room::Owner;

table! {
    /// A message in the inbox. The row is also the task to receive the message. Inserted under `KEY SHARE`, never
    /// updated.
    pub struct Inbox<'a> in "inbox" {
        key { execution_id: ExecutionId, inbox_id: i64 }
        other {
            shard: i16,
            queue_name: &'a str,
            message_id: Option<&'a str>,
            payload: Option<Jsonb<'a>>,
            bytes: i32,
            published_at: Timestamp,
            /// The process's owner, so that the messages of each owner have their own line in the index.
            owner: pg_sys::Oid,
        }
    }
}

record! {
    /// The key of a message in the inbox.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct InboxKey of Inbox<'static> { execution_id: ExecutionId, inbox_id: i64 }

    /// The columns of a message that are received.
    struct TakenMessage<'a> of Inbox<'a> {
        queue_name: &'a str,
        message_id: Option<&'a str>,
        payload: Option<Jsonb<'a>>,
    }

    /// An execution that receives messages, and its owner.
    struct Receiver { execution_id: ExecutionId, owner: pg_sys::Oid }

    /// The owner whose messages to find, and the first id to consider.
    struct ArrivedFor { owner: pg_sys::Oid, since: i64 }

    /// A message that has arrived.
    #[derive(Clone, Copy, Debug)]
    pub struct Arrived {
        execution_id: ExecutionId,
        inbox_id: i64,
        /// The owner in whose line the message is.
        owner: pg_sys::Oid,
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
    INSERT = insert_but::<Inbox>(&["inbox_id"]);
    USE_KEY = format!("{} ON CONFLICT DO NOTHING", insert::<MessageKey>());
    KEYS = insert::<MessageKey>();
    // * Lateral, by execution: this keeps the planner from a scan of the whole inbox in its order.
    // * Fair share: first the first kilobyte of each owner, then the second of each, and so on, until there is enough.
    // * A message's position is the weight of its owner's messages before it, without its own. Otherwise an owner with
    //   a large first message would wait for all small messages of other owners.
    // * Owners with the same position are shuffled ($5).
    // * The outer join reads only the messages that are received (`goes`).
    ARRIVALS = format!("SELECT h.execution_id, h.inbox_id, h.goes, {} FROM ( \
            SELECT o.execution_id, o.inbox_id, sum(o.weight) OVER taken - o.weight <= $4 AS goes \
            FROM (SELECT v.execution_id, n.inbox_id, n.weight, \
                    sum(n.weight) OVER (PARTITION BY v.owner ORDER BY n.inbox_id) AS of_owner, \
                    pg_catalog.hashoidextended(v.owner, $5) AS shuffled \
                FROM {} CROSS JOIN LATERAL (SELECT i.inbox_id, 1 + i.bytes / 1024 AS weight FROM xdb.inbox i \
                    WHERE i.execution_id = v.execution_id ORDER BY i.inbox_id LIMIT $3) AS n) AS o \
            WINDOW taken AS (ORDER BY o.of_owner - o.weight, o.shuffled, o.inbox_id)) AS h \
        LEFT JOIN xdb.inbox i ON i.execution_id = CASE WHEN h.goes THEN h.execution_id END AND i.inbox_id = h.inbox_id ORDER BY h.inbox_id",
        select::<TakenMessage>("i"), batch::<Receiver>());
    UNSEEN = "SELECT EXISTS (SELECT FROM xdb.inbox WHERE execution_id = $1 \
        AND queue_name = COALESCE($2, queue_name)) AS unseen";
    FIRSTS = firsts_of("inbox", "inbox_id");
    ARRIVED = format!("SELECT a.execution_id, a.inbox_id, v.owner FROM {} CROSS JOIN LATERAL ( \
            SELECT t.execution_id, t.inbox_id FROM xdb.inbox t \
            WHERE t.owner = v.owner AND t.inbox_id >= v.since AND t.execution_id <> ALL ($3) ORDER BY t.inbox_id LIMIT $4) AS a \
        ORDER BY a.inbox_id", batch::<ArrivedFor>())
        => fn arrived_of(owners: [ArrivedFor], except: &[ExecutionId], of_each: i64) -> Vec<Arrived>;
    DELETE = delete::<Inbox, InboxKey>();
    KNOWN_KEYS = format!("SELECT {} FROM {} JOIN xdb.message_key m USING (execution_id, queue_name, message_id)",
        select::<MessageKey>("m"), batch::<MessageKey>());
    /// Whether the queue has seen this message id. If so, publishing the message again changes nothing.
    IS_KNOWN = "SELECT EXISTS (SELECT FROM xdb.message_key \
        WHERE execution_id = $1 AND queue_name = $2 AND message_id = $3) AS known"
        => pub fn is_known(id: ExecutionId, queue: &str, message_id: &str) -> bool;
    /// Queue and message id of all keys of an execution, in the active snapshot.
    ALL_KEYS = "SELECT queue_name, message_id FROM xdb.message_key WHERE execution_id = $1"
        => pub(super) fn all_keys(id: ExecutionId) -> Vec<(String, String)>;
    /// Queue and message id of the messages in an execution's inbox that have an id, in the active snapshot.
    KEYS_IN_INBOX = "SELECT queue_name, message_id FROM xdb.inbox \
        WHERE execution_id = $1 AND message_id IS NOT NULL ORDER BY inbox_id"
        => pub(super) fn keys_in_inbox(id: ExecutionId) -> Vec<(String, String)>;
}

/// Puts a message into the inbox, which numbers it. If the queue has seen its message id, nothing happens.
pub fn publish(spi: &Spi, message: Inbox) -> Result<()> {
    if let Some(message_id) = message.message_id {
        let key = MessageKey { execution_id: message.execution_id, queue_name: message.queue_name, message_id };
        if run(spi, &USE_KEY, &[key])? == 0 {
            return Ok(());
        }
    }
    run_but(spi, &INSERT, &[message], &["inbox_id"])?;
    wake::count_at_commit(Count::Messages(OfMessages::PublishedLocal), 1);
    Ok(())
}

/// The queues and message ids of the messages that an execution publishes to itself.
pub fn ids_of(id: ExecutionId, publishes: &[Publish]) -> impl Iterator<Item = (ExecutionId, String, String)> {
    publishes.iter().filter_map(move |publish| Some((id, publish.queue.clone(), publish.message_id.clone()?)))
}

/// Loads which of these message ids their queues have seen. Call it after the inbox was received: a message that
/// arrives in between stays in the inbox, and is received later.
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

/// A message in the inbox.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub key: InboxKey,
    pub publish: Publish,
}

impl Arrival {
    /// Bytes of the payload.
    pub fn bytes(&self) -> usize {
        self.publish.payload.as_ref().map_or(0, |payload| payload.as_str().len())
    }
}

/// What was read from the inbox.
#[derive(Default)]
pub struct Arrivals {
    pub arrivals: Vec<Arrival>,
    /// Executions that have more messages.
    pub left: BTreeSet<ExecutionId>,
    /// The first message that was not read. No earlier message is left.
    pub left_from: Option<i64>,
}

/// The most messages of each execution that are read if there are many executions. A single execution gets all that one
/// turn receives.
const AT_LEAST_OF_EACH: usize = 64;

/// Messages that arrived for these executions, oldest first, at most as many as one turn receives. Each owner gets a
/// fair share. Call it in a statement that begins after the executions were locked.
pub fn arrivals(spi: &Spi, of: &[(ExecutionId, pg_sys::Oid)]) -> Result<Arrivals> {
    let most = OF_A_PHASE / ROW;
    let of_each = (most / of.len().max(1)).max(AT_LEAST_OF_EACH);
    let receiver =
        |(execution_id, owner): &(ExecutionId, pg_sys::Oid)| Receiver { execution_id: *execution_id, owner: *owner };
    let mut params = Receiver::arrays(&of.iter().map(receiver).collect::<Vec<_>>());
    let shuffle = (random() * i64::MAX as f64) as i64;
    params.extend([value(of_each as i64), value(most as i64), value(shuffle)]);
    let found = spi.rows(&ARRIVALS, &params, |row| {
        let key = InboxKey::read(row)?;
        if !row.get::<bool>("goes")? {
            return Ok((key, None));
        }
        let TakenMessage { queue_name, message_id, payload } = TakenMessage::read(row)?;
        let publish = Publish {
            queue: queue_name.to_owned(),
            message_id: message_id.map(str::to_owned),
            payload: payload.map(|payload| payload.to_json()).transpose()?,
        };
        Ok((key, Some(Arrival { key, publish })))
    })?;
    let mut read = Arrivals::default();
    let mut counts = HashMap::<ExecutionId, usize>::new();
    for (key, arrival) in found {
        let count = counts.entry(key.execution_id).or_default();
        *count += 1;
        if arrival.is_none() || *count == of_each {
            read.left.insert(key.execution_id);
            read.left_from.get_or_insert(key.inbox_id);
        }
        read.arrivals.extend(arrival);
    }
    Ok(read)
}

/// The most bytes of messages in one event.
const ARRIVED_BYTES_PER_EVENT: usize = 4 * 1024 * 1024;

/// Receives messages from clients, in events of limited size. A closed execution receives none.
pub fn receive(
    spi: &Spi,
    executions: &mut BTreeMap<ExecutionId, Loaded>,
    id: ExecutionId,
    arrivals: Vec<Arrival>,
    now: Timestamp,
) -> Result<()> {
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
        let decided = deciding::decide_with_tables(spi, executions, id, &command, (now, 0.0), &[])?;
        if let (Ok(events), Some(entry)) = (decided, executions.get_mut(&id)) {
            entry.apply(events, now)?;
        }
    }
    Ok(())
}

/// Whether the inbox has messages that the transaction's own snapshot does not show: in this queue of the execution, or
/// in any. Call it after the visible messages were received.
pub fn has_unseen_arrivals(spi: &Spi, id: ExecutionId, queue: Option<&str>) -> Result<bool> {
    spi.with_latest_snapshot(|spi| Gives::of(spi, &UNSEEN, &[value(id), value(queue)]))
}

/// The id of the first message for each owner's processes.
pub fn firsts(spi: &Spi) -> Result<Vec<(Owner, i64)>> {
    spi.rows(&FIRSTS, &[], read_first)
}

/// Messages in the inbox for processes of these owners, from this id on. At most `of_each` for each owner, the oldest
/// first.
pub fn arrived(
    spi: &Spi,
    of: impl IntoIterator<Item = (Owner, Option<i64>)>,
    except: &[ExecutionId],
    of_each: usize,
) -> Result<Vec<Arrived>> {
    let arrived_for =
        |(owner, since): (Owner, Option<i64>)| ArrivedFor { owner: owner.into(), since: since.unwrap_or(i64::MIN) };
    arrived_of(spi, &of.into_iter().map(arrived_for).collect::<Vec<_>>(), except, of_each as i64)
}

/// Deletes messages from the inbox, after they were received.
pub fn delete_arrivals(spi: &Spi, keys: &[InboxKey]) -> Result<()> {
    run(spi, &DELETE, keys)?;
    Ok(())
}
