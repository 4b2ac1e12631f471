//! Global queues: their messages, and the states that wait for them.

use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::*;

/// How long a used message id is remembered: the default of `xdb.retention`.
const RETENTION: Duration = Duration(7 * 86_400_000_000);

#[derive(Default)]
pub(crate) struct GlobalQueues {
    messages: BTreeMap<u64, StoredMessage>,
    last_message: u64,
    /// Last use of each (queue, message id): when, and for which message.
    ids: BTreeMap<(String, String), (Timestamp, u64)>,
    /// Waiting states, longest waiting first.
    pub waiting: Vec<StateKey>,
}

struct StoredMessage {
    message: GlobalMessage,
    expires_at: Option<Timestamp>,
    /// The message was not offered to the waiting states yet. Until then it does not expire.
    fresh: bool,
    /// The state that has taken the message, and when.
    taken: Option<(StateKey, Timestamp)>,
}

impl GlobalQueues {
    /// Publishes a message, unless its queue remembers its id.
    pub fn publish(&mut self, published: &PublishedGlobally, now: Timestamp) {
        let PublishedGlobally { queue, key, message_id, payload, expires_at } = published.clone();
        let number = self.last_message + 1;
        if let Some(id) = &message_id {
            let used = self.ids.entry((queue.clone(), id.clone())).or_insert((now, number));
            if used.1 != number && (now.before(RETENTION) < used.0 || self.messages.contains_key(&used.1)) {
                return;
            }
            *used = (now, number);
        }
        self.last_message = number;
        let message = GlobalMessage { number, queue, key, message_id, payload };
        self.messages.insert(number, StoredMessage { message, expires_at, fresh: true, taken: None });
    }

    /// Messages that were neither taken nor have expired.
    pub fn free(&self, now: Timestamp) -> Vec<GlobalMessage> {
        let is_free = |stored: &&StoredMessage| {
            stored.taken.is_none() && (stored.fresh || stored.expires_at.is_none_or(|at| at > now))
        };
        self.messages.values().filter(is_free).map(|stored| stored.message.clone()).collect()
    }

    /// All free messages were offered to all waiting states. Expired messages are deleted.
    pub fn offered(&mut self, now: Timestamp) {
        self.messages.retain(|_, stored| stored.taken.is_some() || stored.expires_at.is_none_or(|at| at > now));
        self.messages.values_mut().for_each(|stored| stored.fresh = false);
    }

    /// Applies an event of an execution to the queues.
    pub fn follow(&mut self, id: ExecutionId, event: &Event, now: Timestamp) {
        match event {
            Event::GlobalMessagesPublished { messages, .. } => {
                messages.iter().for_each(|message| self.publish(message, now));
            }
            Event::WaitStarted { seq, commands, .. } => {
                let waits = commands.iter().any(|command| command.kind.global_demand().is_some());
                self.waiting.extend(waits.then_some((id, *seq)));
            }
            Event::GlobalMessagesTaken { seq, messages, .. } => {
                for message in messages {
                    if let Some(stored) = self.messages.get_mut(&message.number) {
                        stored.taken = Some(((id, *seq), now));
                    }
                }
            }
            Event::WaitCompleted { seq, .. } => self.waiting.retain(|waiting| *waiting != (id, *seq)),
            Event::StateCompleted { seq, .. } => {
                self.messages.retain(|_, stored| stored.taken.is_none_or(|(by, _)| by != (id, *seq)));
            }
            Event::StateFailed { seq, .. } | Event::StateAborted { seq, .. } => {
                self.waiting.retain(|waiting| *waiting != (id, *seq));
                self.give_back(now, |by| by == (id, *seq));
            }
            Event::ProcessClosed { .. } => {
                self.waiting.retain(|waiting| waiting.0 != id);
                self.give_back(now, |by| by.0 == id);
            }
            _ => {}
        }
    }

    /// Returns taken messages to the queues. The time while they were taken does not count for their expiry.
    fn give_back(&mut self, now: Timestamp, by: impl Fn(StateKey) -> bool) {
        for stored in self.messages.values_mut() {
            if let Some((_, at)) = stored.taken.take_if(|(taken_by, _)| by(*taken_by)) {
                stored.expires_at = stored.expires_at.map(|expires| expires + Duration(now.since(at).max(0)));
                stored.fresh = true;
            }
        }
    }

    /// Numbers of the messages that an execution has taken and not yet processed.
    pub fn taken_by(&self, id: ExecutionId) -> BTreeSet<u64> {
        let taken = self.messages.iter().filter(|(_, stored)| stored.taken.is_some_and(|(by, _)| by.0 == id));
        taken.map(|(number, _)| *number).collect()
    }
}
