//! The local queues of executions: the waiting states, and as many messages as they can take. The tables
//! `queue_message` and `queue_waiter`.
//!
//! Limitations: a queue is never read as a whole, except by `xdb.check_process`. A queue that was not loaded is
//! unknown, not empty.

use super::StateKey;
use super::loaded::{Loaded, QueueHead, QueueWaiters, Unread};
use super::state::states;
use super::table::{Read, Record, batch, delete, insert, record, select, statements, table};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, value};
use crate::pg::spi::{Row, Spi};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use xdb_engine::*;

table! {
    /// A message that was received, and that no state has taken yet.
    pub struct QueueMessage<'a> in "queue_message" {
        key { execution_id: ExecutionId, queue_name: &'a str, number: u64 }
        compared { shard: i16, message_id: Option<&'a str>, payload: Option<Jsonb<'a>>, received_at: Timestamp }
    }
}

record! {
    /// The key of a message.
    pub struct MessageNumber<'a> of QueueMessage<'a> { execution_id: ExecutionId, queue_name: &'a str, number: u64 }

    /// A message as a state takes it.
    struct LoadedMessage<'a> of QueueMessage<'a> {
        execution_id: ExecutionId,
        queue_name: &'a str,
        number: u64,
        message_id: Option<&'a str>,
        payload: Option<Jsonb<'a>>,
    }
}

table! {
    /// A waiting state and a queue that it waits for, with its position in the order of waiting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct QueueWaiter<'a> in "queue_waiter" {
        key { execution_id: ExecutionId, queue_name: &'a str, wait_order: u64, seq: StateSeq }
    }
}

record! {
    /// A queue to count, up to `needed` messages.
    struct ToCount<'a> { execution_id: ExecutionId, queue_name: &'a str, needed: i64 }

    /// A queue to read: messages after a number, at most `wanted`.
    struct ToRead<'a> { execution_id: ExecutionId, queue_name: &'a str, after: u64, wanted: i64 }

    /// The key of a queue.
    struct Queue<'a> { execution_id: ExecutionId, queue_name: &'a str }
}

statements! {
    INSERT = insert::<QueueMessage>();
    DELETE = delete::<QueueMessage, MessageNumber>();
    NEW_WAITERS = insert::<QueueWaiter>();
    OLD_WAITERS = delete::<QueueWaiter, StateKey>();
    WAITERS = format!("SELECT DISTINCT w.execution_id, w.seq FROM {} \
        JOIN xdb.queue_waiter w ON w.execution_id = v.execution_id AND w.queue_name = v.queue_name", batch::<Queue>())
        => fn waiters(queues: [Queue]) -> Vec<StateKey>;
    /// How many messages are in queues, counted up to `needed`.
    COUNT = format!("SELECT v.execution_id, v.queue_name, (SELECT count(*) FROM (SELECT FROM xdb.queue_message q \
            WHERE q.execution_id = v.execution_id AND q.queue_name = v.queue_name LIMIT v.needed) AS counted) AS count \
        FROM {}", batch::<ToCount>()) => fn count(queues: [ToCount]) -> HashMap<(ExecutionId, String), i64>;
    READ = format!("SELECT {} FROM {} CROSS JOIN LATERAL (SELECT * FROM xdb.queue_message q \
            WHERE q.execution_id = v.execution_id AND q.queue_name = v.queue_name AND q.number > v.after \
            ORDER BY q.number LIMIT v.wanted) AS m \
        ORDER BY m.execution_id, m.queue_name, m.number", select::<LoadedMessage>("m"), batch::<ToRead>());
    /// Whether a queue has received messages.
    HAS_MESSAGES = "SELECT EXISTS (SELECT FROM xdb.queue_message WHERE execution_id = $1 AND queue_name = $2) AS has_messages"
        => pub fn has_messages(id: ExecutionId, queue: &str) -> bool;
    ALL_OF_ONE = format!("SELECT {} FROM xdb.queue_message m WHERE m.execution_id = $1 ORDER BY m.number",
        select::<LoadedMessage>("m"));
}

impl<'a> QueueMessage<'a> {
    /// The row of a message.
    pub fn of(execution_id: ExecutionId, shard: i16, message: &'a Message, received_at: Timestamp) -> Self {
        Self {
            execution_id,
            queue_name: &message.queue,
            number: message.number,
            shard,
            message_id: message.message_id.as_deref(),
            payload: message.payload.as_ref().map(Jsonb::from),
            received_at,
        }
    }
}

/// All messages of an execution, in the active snapshot.
pub(super) fn all(spi: &Spi, id: ExecutionId) -> Result<Vec<Message>> {
    spi.rows(&ALL_OF_ONE, &[value(id)], |row| Ok(read_message(row)?.1))
}

fn read_message(row: &Row) -> Result<(ExecutionId, Message)> {
    let LoadedMessage { execution_id, queue_name, number, message_id, payload } = LoadedMessage::read(row)?;
    let message = Message {
        queue: queue_name.to_owned(),
        number,
        message_id: message_id.map(str::to_owned),
        payload: payload.map(|payload| payload.to_json()).transpose()?,
    };
    Ok((execution_id, message))
}

/// The queues that a decision publishes to or inspects, by execution. Each has the most messages that the decision
/// takes from it.
pub type QueueDemand = BTreeMap<ExecutionId, BTreeMap<String, usize>>;

/// The demand of a decision: queues with the number of messages that it may take, and queues that it publishes to.
pub fn demand(
    queues: impl IntoIterator<Item = (String, usize)>,
    publishes: &[Publish],
) -> impl Iterator<Item = (String, usize)> {
    queues.into_iter().chain(publishes.iter().map(|publish| (publish.queue.clone(), 0)))
}

/// Up to this many needed messages, reading them is as fast as counting them.
const READ_UNCOUNTED: usize = 100;

/// Loads the states that wait for these queues, and the first messages of the queues, unless they are loaded already.
/// Reads only as many messages as can be taken. If every waiting state needs more than there are, [`Loaded::prepare`]
/// reads the messages when they may suffice.
///
/// A loaded state may also wait for queues that are not loaded. These queues need not be loaded: they served the state
/// when their messages came in.
pub fn queues(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, demand: &QueueDemand) -> Result<()> {
    read_further(spi, loaded, demand)?;
    let (mut new, quotas) = (Vec::new(), guc::quotas());
    for (id, queues) in demand {
        let Some(entry) = loaded.get(id) else { continue };
        // At the limit, an execution accepts messages only for queues without messages. So at least one message is
        // loaded.
        let at_least = usize::from(entry.before.queued.reaches(1, &quotas));
        let unknown = queues.iter().filter(|(queue, _)| !entry.heads.contains_key(*queue));
        new.extend(unknown.map(|(queue, inspected)| (*id, queue.as_str(), at_least.max(*inspected))));
    }
    if new.is_empty() {
        return Ok(());
    }
    let unknown: Vec<_> = new.iter().map(|(id, queue, _)| Queue { execution_id: *id, queue_name: queue }).collect();
    states(spi, loaded, &waiters(spi, &unknown)?)?;

    let waiting = waiting_for(loaded, demand);
    let mut to_count: Vec<ToCount> = Vec::new();
    let mut counted: HashMap<(ExecutionId, String), i64> = HashMap::new();
    for (id, queue, _) in &new {
        let (Some(entry), Some(QueueWaiters { needed, .. })) = (loaded.get(id), waiting.get(&(*id, *queue))) else {
            continue;
        };
        let at_most = entry.before.queued.messages as usize;
        if *needed <= READ_UNCOUNTED {
            continue;
        }
        if at_most < *needed {
            counted.insert((*id, (*queue).to_owned()), at_most as i64);
        } else {
            to_count.push(ToCount { execution_id: *id, queue_name: queue, needed: *needed as i64 });
        }
    }
    counted.extend(count(spi, &to_count)?);

    let mut to_read = Vec::new();
    for (id, queue, inspected) in &new {
        let Some(entry) = loaded.get_mut(id) else { continue };
        let waiting = waiting.get(&(*id, *queue)).copied();
        let count = counted.get(&(*id, (*queue).to_owned())).map(|count| *count as usize);
        let unread = waiting.zip(count).filter(|(waiting, count)| *count < waiting.needed);
        let unread = unread.map(|(waiting, count)| Unread { count: count.saturating_sub(*inspected), waiting });
        let taken = waiting.filter(|_| unread.is_none()).map_or(0, |waiting| waiting.wanted);
        if entry.before.queued.messages > 0 {
            to_read.push(ToRead::new(*id, queue, 0, inspected.saturating_add(taken)));
        }
        let asked = inspected.saturating_add(taken);
        entry.heads.insert((*queue).to_owned(), QueueHead { inspected: *inspected, asked, unread });
    }
    for ((id, queue), messages) in read(spi, to_read)? {
        if let Some(entry) = loaded.get_mut(&id) {
            entry.put_in(queue, messages);
        }
    }
    Ok(())
}

/// The states that wait for each of these queues, taken together.
fn waiting_for<'d>(
    loaded: &BTreeMap<ExecutionId, Loaded>,
    demand: &'d QueueDemand,
) -> HashMap<(ExecutionId, &'d str), QueueWaiters> {
    let mut waiting = HashMap::new();
    for (id, queues) in demand {
        let Some(entry) = loaded.get(id) else { continue };
        for (queue, at_least, at_most) in entry.before.states.values().flat_map(|state| state.wanted_messages()) {
            let Some((queue, _)) = queues.get_key_value(queue) else { continue };
            let all = waiting.entry((*id, queue.as_str())).or_insert(QueueWaiters { needed: usize::MAX, wanted: 0 });
            all.needed = all.needed.min(at_least as usize);
            all.wanted = all.wanted.saturating_add(at_most as usize);
        }
    }
    waiting
}

/// Reads further messages of loaded queues of which the decision takes more than are loaded. The loaded part of a queue
/// is only as long as earlier decisions needed.
fn read_further(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, demand: &QueueDemand) -> Result<()> {
    let mut to_read = Vec::new();
    for (id, queues) in demand {
        let Some(entry) = loaded.get_mut(id) else { continue };
        for (queue, inspected) in queues {
            let head = entry.heads.get_mut(queue).filter(|head| head.inspected < *inspected);
            let Some(head) = head else { continue };
            let more = *inspected - head.inspected;
            head.inspected = *inspected;
            head.asked = head.asked.saturating_add(more);
            if let Some(unread) = &mut head.unread {
                unread.count = unread.count.saturating_sub(more);
            }
            let last = entry.before.queues.get(queue).and_then(VecDeque::back).map_or(0, |message| message.number);
            to_read.push(ToRead::new(*id, queue, last, more));
        }
    }
    for ((id, queue), messages) in read(spi, to_read)? {
        if let Some(entry) = loaded.get_mut(&id) {
            entry.put_in(queue, messages);
        }
    }
    Ok(())
}

type Messages = BTreeMap<(ExecutionId, String), Vec<Arc<Message>>>;

impl<'a> ToRead<'a> {
    fn new(execution_id: ExecutionId, queue_name: &'a str, after: u64, at_most: usize) -> Self {
        Self { execution_id, queue_name, after, wanted: i64::try_from(at_most).unwrap_or(i64::MAX) }
    }
}

/// Reads messages of queues.
fn read(spi: &Spi, mut queues: Vec<ToRead>) -> Result<Messages> {
    queues.retain(|queue| queue.wanted > 0);
    let mut messages = Messages::new();
    if queues.is_empty() {
        return Ok(messages);
    }
    for (id, message) in spi.rows(&READ, &ToRead::arrays(&queues), read_message)? {
        messages.entry((id, message.queue.clone())).or_default().push(Arc::new(message));
    }
    Ok(messages)
}

impl Loaded {
    /// How many of the oldest messages of a queue were loaded for decisions that inspect it, taken since or not.
    pub fn inspected(&self, queue: &str) -> usize {
        self.heads.get(queue).map_or(0, |head| head.inspected)
    }

    /// Call it before a decision. Reads messages that were left unread, of queues that may serve a waiting state
    /// together with what the command publishes.
    pub fn prepare(&mut self, spi: &Spi, command: &Command) -> Result<()> {
        let due: Vec<_> = self.due(command).into_iter().map(str::to_owned).collect();
        for queue in due {
            let Some(head) = self.heads.get_mut(&queue) else { continue };
            let Some(unread) = head.unread.take() else { continue };
            head.asked = head.asked.saturating_add(unread.waiting.wanted);
            let last = self.before.queues.get(&queue).and_then(VecDeque::back).map_or(0, |message| message.number);
            let wanted = ToRead::new(self.before.id, &queue, last, unread.waiting.wanted);
            for (_, messages) in read(spi, vec![wanted])? {
                self.put_in(queue.clone(), messages);
            }
        }
        Ok(())
    }
}
