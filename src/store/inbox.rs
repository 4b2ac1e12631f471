//! Messages that were published and not taken in yet, and the message ids that queues have seen: the tables `inbox` and
//! `message_key`.

use super::lines::{firsts_of, read_first};
use super::loaded::Loaded;
use super::table::{
    Gives, Read, Record, batch, delete, insert, insert_but, record, run, run_but, select, statements, table,
};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, value};
use crate::pg::process::random;
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use xdb_engine::*;
use xdb_sched::bytes::{OF_A_PHASE, ROW};
use xdb_sched::room::Owner;

table! {
    /// A message in the inbox. The row itself is the task "messages arrived". Inserted under `KEY SHARE`, never updated.
    pub struct Inbox<'a> in "inbox" {
        key { execution_id: ExecutionId, inbox_id: i64 }
        other {
            shard: i16,
            queue_name: &'a str,
            message_id: Option<&'a str>,
            payload: Option<Jsonb<'a>>,
            bytes: i32,
            published_at: Timestamp,
            /// The process's, so that each owner's messages stand in a line of their own in the index.
            owner: pg_sys::Oid,
        }
    }
}

record! {
    /// Names a message in the inbox.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct InboxKey of Inbox<'static> { execution_id: ExecutionId, inbox_id: i64 }

    /// What of a message is taken in.
    struct TakenMessage<'a> of Inbox<'a> {
        queue_name: &'a str,
        message_id: Option<&'a str>,
        payload: Option<Jsonb<'a>>,
    }

    /// Executions whose messages are taken in, and their owners.
    struct Receiver { execution_id: ExecutionId, owner: pg_sys::Oid }

    /// Whose messages to look for, and from which one on.
    struct ArrivedFor { owner: pg_sys::Oid, since: i64 }

    /// A message that has arrived.
    #[derive(Clone, Copy, Debug)]
    pub struct Arrived {
        execution_id: ExecutionId,
        inbox_id: i64,
        /// In whose line it stands.
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
    // By execution, so that nobody takes walking through the whole inbox in its order for a way to these. Of each owner the first
    // kilobyte, then of each the second and so on, until there are enough. Whose first ones are large would wait for all who send
    // small ones. So a message counts with what comes before it, and those of different owners that begin at the same place are
    // shuffled ($5). Nothing is looked up of those that don't go.
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
    /// Whether the queue has seen this message id: a message with it changes nothing.
    IS_KNOWN = "SELECT EXISTS (SELECT FROM xdb.message_key \
        WHERE execution_id = $1 AND queue_name = $2 AND message_id = $3) AS known"
        => pub fn is_known(id: ExecutionId, queue: &str, message_id: &str) -> bool;
    /// Queue and message id of all that an execution has on record, as the active snapshot shows them.
    ALL_KEYS = "SELECT queue_name, message_id FROM xdb.message_key WHERE execution_id = $1"
        => pub(super) fn all_keys(id: ExecutionId) -> Vec<(String, String)>;
    /// The same of the messages in its inbox.
    KEYS_IN_INBOX = "SELECT queue_name, message_id FROM xdb.inbox \
        WHERE execution_id = $1 AND message_id IS NOT NULL ORDER BY inbox_id"
        => pub(super) fn keys_in_inbox(id: ExecutionId) -> Vec<(String, String)>;
}

/// Puts a message into the inbox, which gives it a number. With a message id that the queue has seen, nothing happens.
pub fn publish(spi: &Spi, message: Inbox) -> Result<()> {
    if let Some(message_id) = message.message_id {
        let key = MessageKey { execution_id: message.execution_id, queue_name: message.queue_name, message_id };
        if run(spi, &USE_KEY, &[key])? == 0 {
            return Ok(());
        }
    }
    run_but(spi, &INSERT, &[message], &["inbox_id"])?;
    Ok(())
}

/// The queues and message ids of what an execution publishes to itself.
pub fn ids_of(id: ExecutionId, publishes: &[Publish]) -> impl Iterator<Item = (ExecutionId, String, String)> {
    publishes.iter().filter_map(move |publish| Some((id, publish.queue.clone(), publish.message_id.clone()?)))
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

/// A message that waits in the inbox.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub key: InboxKey,
    pub publish: Publish,
}

impl Arrival {
    /// Size of the payload.
    pub fn bytes(&self) -> usize {
        self.publish.payload.as_ref().map_or(0, |payload| payload.as_str().len())
    }
}

/// What was read from the inbox.
#[derive(Default)]
pub struct Arrivals {
    pub arrivals: Vec<Arrival>,
    /// Executions of which there is more.
    pub left: BTreeSet<ExecutionId>,
    /// Nothing before this was left.
    pub left_from: Option<i64>,
}

/// So many messages of each execution are looked at, if there are many executions; and of one alone, as many as a turn takes in.
const LOOKED_AT: usize = 64;

/// Messages that arrived for these executions, with their owners; oldest first, and not more than one turn takes in, of each owner an
/// equal part. Read in a statement that begins after the executions were locked.
pub fn arrivals(spi: &Spi, of: &[(ExecutionId, pg_sys::Oid)]) -> Result<Arrivals> {
    let most = OF_A_PHASE / ROW;
    let of_each = (most / of.len().max(1)).max(LOOKED_AT);
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
                self.apply(events, now)?;
            }
        }
        Ok(())
    }
}

/// Whether there are messages in the inbox that the transaction's own snapshot does not show: in this queue of the
/// execution, or in any. To be asked when those that it shows were taken in.
pub fn has_unseen_arrivals(spi: &Spi, id: ExecutionId, queue: Option<&str>) -> Result<bool> {
    spi.with_latest_snapshot(|spi| Gives::of(spi, &UNSEEN, &[value(id), value(queue)]))
}

/// The first message of each owner's processes.
pub fn firsts(spi: &Spi) -> Result<Vec<(Owner, i64)>> {
    spi.rows(&FIRSTS, &[], read_first)
}

/// Messages in the inbox for processes of these owners, with this id or higher ones; of each owner so many, the oldest first.
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

pub fn delete_arrivals(spi: &Spi, keys: &[InboxKey]) -> Result<()> {
    run(spi, &DELETE, keys)?;
    Ok(())
}
