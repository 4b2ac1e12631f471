//! The local queues of executions: who waits for them, and of their messages as many as somebody can take.

use super::{Loaded, states};
use crate::pg::catch::Result;
use crate::pg::param::array;
use crate::pg::spi::Spi;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use xdb_engine::*;

/// Queues that are published to or looked into, by execution, each with the most messages that those who look into it
/// take.
pub type Demand = BTreeMap<ExecutionId, BTreeMap<String, usize>>;

/// What is known of a queue of a loaded execution.
#[derive(Debug)]
pub struct Head {
    /// For those who look into the queue so many of the oldest messages are loaded, or all.
    looked_into: usize,
    unread: Option<Unread>,
}

/// Messages that were not read, because all who wait for the queue need more than there are.
#[derive(Clone, Copy, Debug)]
struct Unread {
    /// There are at most so many.
    count: usize,
    waiting: Waiting,
}

/// Those who wait for a queue, taken together.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// With less messages nobody is served.
    needed: usize,
    /// More are not taken.
    wanted: usize,
}

/// Where so many messages or less are needed, reading them is as quick as counting them.
const READ_UNCOUNTED: usize = 100;

/// Loads, as far as that was not done before, the states that wait for these queues, and the heads of the queues: as many
/// messages as can be taken, and no more, however many there are. Where all who wait need more than there are,
/// [`Loaded::prepare`] reads what they take once it may suffice.
///
/// That other queues are not known of a state that waits for them too changes nothing: it was served from them
/// as their messages came in.
pub fn queues(spi: &Spi, loaded: &mut BTreeMap<ExecutionId, Loaded>, demand: &Demand) -> Result<()> {
    const WAITERS: &str = "SELECT DISTINCT w.execution_id, w.seq \
        FROM unnest($1::uuid[], $2::text[]) AS k (execution_id, queue_name) \
        JOIN xdb.queue_waiter w ON w.execution_id = k.execution_id AND w.queue_name = k.queue_name";
    let mut new = Vec::new();
    for (id, queues) in demand {
        let Some(entry) = loaded.get(id) else { continue };
        let unknown = queues.iter().filter(|(queue, _)| !entry.heads.contains_key(*queue));
        new.extend(unknown.map(|(queue, looked_into)| (*id, queue.as_str(), *looked_into)));
    }
    if new.is_empty() {
        return Ok(());
    }
    let params = [array(new.iter().map(|n| n.0)), array(new.iter().map(|n| n.1))];
    let waiters = spi.rows(WAITERS, &params, |row| Ok((row.execution_id(1)?, StateSeq(row.need::<i32>(2)? as u32))))?;
    states(spi, loaded, &waiters)?;

    let mut waiting: HashMap<(ExecutionId, &str), Waiting> = HashMap::new();
    let mut to_count = Vec::new();
    for (id, queues) in demand {
        let Some(entry) = loaded.get(id) else { continue };
        for (queue, at_least, at_most) in entry.before.states.values().flat_map(|state| state.wanted_messages()) {
            let Some((queue, _)) = queues.get_key_value(queue) else { continue };
            let all = waiting.entry((*id, queue)).or_insert(Waiting { needed: usize::MAX, wanted: 0 });
            all.needed = all.needed.min(at_least as usize);
            all.wanted = all.wanted.saturating_add(at_most as usize);
        }
    }
    for (id, queue, _) in &new {
        let (Some(entry), Some(waiting)) = (loaded.get(id), waiting.get(&(*id, *queue))) else { continue };
        if waiting.needed > READ_UNCOUNTED {
            to_count.push((*id, *queue, entry.before.next_message, waiting.needed));
        }
    }
    let counted = count(spi, &to_count)?;

    let mut to_read = Vec::new();
    for (id, queue, looked_into) in &new {
        let Some(entry) = loaded.get_mut(id) else { continue };
        let waiting = waiting.get(&(*id, *queue)).copied();
        let count = counted.get(&(*id, (*queue).to_owned())).copied();
        let unread = waiting.zip(count).filter(|(waiting, count)| *count < waiting.needed);
        let unread = unread.map(|(waiting, count)| Unread { count: count.saturating_sub(*looked_into), waiting });
        let taken = waiting.filter(|_| unread.is_none()).map_or(0, |waiting| waiting.wanted);
        to_read.push((*id, *queue, 0, looked_into.saturating_add(taken)));
        entry.heads.insert((*queue).to_owned(), Head { looked_into: *looked_into, unread });
    }
    for ((id, queue), messages) in read(spi, &to_read)? {
        if let Some(entry) = loaded.get_mut(&id) {
            entry.put_in(queue, messages);
        }
    }
    Ok(())
}

/// Upper bounds of the numbers of messages in queues: (execution, queue, the execution's next message number, how many are
/// needed). Where the bound is as high as that, there are as many.
fn count(spi: &Spi, queues: &[(ExecutionId, &str, u64, usize)]) -> Result<HashMap<(ExecutionId, String), usize>> {
    // The first message alone tells, as long as few were received since.
    const SELECT: &str = "SELECT d.execution_id, d.queue_name, \
            CASE WHEN d.next_number - head.number < d.needed THEN d.next_number - head.number \
            ELSE (SELECT count(*) FROM (SELECT FROM xdb.queue_message q \
                WHERE q.execution_id = d.execution_id AND q.queue_name = d.queue_name LIMIT d.needed) AS counted) END \
        FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) \
            AS d (execution_id, queue_name, next_number, needed) \
        CROSS JOIN LATERAL (SELECT q.number FROM xdb.queue_message q \
            WHERE q.execution_id = d.execution_id AND q.queue_name = d.queue_name ORDER BY q.number LIMIT 1) AS head";
    if queues.is_empty() {
        return Ok(HashMap::new());
    }
    let params = [
        array(queues.iter().map(|q| q.0)),
        array(queues.iter().map(|q| q.1)),
        array(queues.iter().map(|q| q.2 as i64)),
        array(queues.iter().map(|q| q.3 as i64)),
    ];
    let found = spi.rows(SELECT, &params, |row| {
        Ok(((row.execution_id(1)?, row.need::<String>(2)?), row.need::<i64>(3)?.max(0) as usize))
    })?;
    let mut counted: HashMap<_, _> = queues.iter().map(|q| ((q.0, q.1.to_owned()), 0)).collect();
    counted.extend(found);
    Ok(counted)
}

type Messages = BTreeMap<(ExecutionId, String), Vec<Arc<Message>>>;

/// Messages of queues: (execution, queue, the number that they come after, how many at most).
fn read(spi: &Spi, queues: &[(ExecutionId, &str, u64, usize)]) -> Result<Messages> {
    const SELECT: &str = "SELECT m.execution_id, m.queue_name, m.number, m.message_id, m.payload::text \
        FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) AS d (execution_id, queue_name, after, wanted) \
        CROSS JOIN LATERAL (SELECT * FROM xdb.queue_message q \
            WHERE q.execution_id = d.execution_id AND q.queue_name = d.queue_name AND q.number > d.after \
            ORDER BY q.number LIMIT d.wanted) AS m \
        ORDER BY m.execution_id, m.queue_name, m.number";
    let queues: Vec<_> = queues.iter().filter(|(.., wanted)| *wanted > 0).collect();
    let mut messages = Messages::new();
    if queues.is_empty() {
        return Ok(messages);
    }
    let params = [
        array(queues.iter().map(|q| q.0)),
        array(queues.iter().map(|q| q.1)),
        array(queues.iter().map(|q| q.2 as i64)),
        array(queues.iter().map(|q| i64::try_from(q.3).unwrap_or(i64::MAX))),
    ];
    let rows = spi.rows(SELECT, &params, |row| {
        let message = Message {
            queue: row.need(2)?,
            number: row.need::<i64>(3)? as u64,
            message_id: row.get(4),
            payload: row.get::<String>(5).map(Json::from_trusted),
        };
        Ok((row.execution_id(1)?, message))
    })?;
    for (id, message) in rows {
        messages.entry((id, message.queue.clone())).or_default().push(Arc::new(message));
    }
    Ok(messages)
}

impl Loaded {
    /// To be called before a decision: reads messages that were left unread, of queues from which somebody who waits may be
    /// served with what the command publishes.
    pub fn prepare(&mut self, spi: &Spi, command: &Command) -> Result<()> {
        let due: Vec<_> = self.due(command).into_iter().map(str::to_owned).collect();
        for queue in due {
            let Some(unread) = self.heads.get_mut(&queue).and_then(|head| head.unread.take()) else { continue };
            let last = self.before.queues.get(&queue).and_then(VecDeque::back).map_or(0, |message| message.number);
            for (_, messages) in read(spi, &[(self.before.id, &queue, last, unread.waiting.wanted)])? {
                self.put_in(queue.clone(), messages);
            }
        }
        Ok(())
    }

    /// Whether all is loaded that a decision about the command looks at in queues. Where it is not, a queue would
    /// be taken for empty.
    pub(super) fn is_prepared(&self, command: &Command) -> bool {
        let known = |publish: &Publish| self.heads.contains_key(&publish.queue);
        let seen = |queue: &String| self.heads.get(queue).is_some_and(|head| head.looked_into > 0);
        let closes_if_empty = match command {
            Command::ExecuteAnswered { answer, .. } => match &answer.decision {
                Decision::ConditionalClose { queues, .. } => &queues[..],
                _ => &[],
            },
            _ => &[],
        };
        !self.execution.is_running()
            || command.publishes().iter().all(known) && closes_if_empty.iter().all(seen) && self.due(command).is_empty()
    }

    /// Queues with unread messages that may suffice for somebody, together with those that the command publishes.
    fn due<'a>(&self, command: &'a Command) -> Vec<&'a str> {
        let mut published: BTreeMap<&str, usize> = BTreeMap::new();
        for publish in command.publishes() {
            *published.entry(&publish.queue).or_default() += 1;
        }
        let suffices = |(queue, new): &(&str, usize)| {
            let unread = self.heads.get(*queue).and_then(|head| head.unread);
            let in_memory = self.execution.queues.get(*queue).map_or(0, VecDeque::len);
            unread.is_some_and(|unread| unread.count + in_memory + new >= unread.waiting.needed)
        };
        let running = self.execution.is_running();
        published.into_iter().filter(|queue| running && suffices(queue)).map(|(queue, _)| queue).collect()
    }

    /// Puts messages that were read behind those that were read before, and in front of those that came in since.
    fn put_in(&mut self, queue: String, messages: Vec<Arc<Message>>) {
        let next = self.before.next_message;
        let queued = self.execution.queues.entry(queue.clone()).or_default();
        let received = queued.split_off(queued.partition_point(|message| message.number < next));
        queued.extend(messages.iter().cloned());
        queued.extend(received);
        self.before.queues.entry(queue).or_default().extend(messages);
    }
}
