//! An execution in memory: as it was loaded under its lock, and as it is now. The difference is saved.
//!
//! Limitations: queues are loaded in part. [`super::queue`] loads them, and decisions check that the needed messages
//! are there.

use super::registry::{Mapping, MappingId, NO_WORKER, ProcessType, TypeId, WorkerId};
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::shmem::over::{self, Quota};
use crate::pg::{json, process, timezone};
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use xdb_calls::Maker;
use xdb_engine::*;
use xdb_sched::room::Line;

/// The id of a new execution. Version 7, so that executions started together are close together in the indexes.
pub fn new_id() -> ExecutionId {
    ExecutionId(*uuid::Uuid::now_v7().as_bytes())
}

/// An execution that this transaction has locked: as it was and as it is now.
#[derive(Debug)]
pub struct Loaded {
    pub meta: Meta,
    /// As loaded. Saving compares `execution` with it.
    pub before: Execution,
    pub execution: Execution,
    /// Events since the load, in order. [`Loaded::apply`] adds them, and saving writes them to the history.
    pub events: Vec<(Event, Timestamp)>,
    /// The ids of published messages that their queues have seen before. Read after the inbox was received. Decisions
    /// read them.
    pub published_before: BTreeSet<(String, String)>,
    /// States that were offered messages of global queues when they began to wait. The matcher need not offer these
    /// again.
    pub offered: BTreeSet<StateSeq>,
    /// The role that publishes to global queues. None: the owner.
    pub acting_as: Option<pg_sys::Oid>,
    /// Queues whose first messages are loaded. All other queues are unknown, not empty.
    pub heads: BTreeMap<String, QueueHead>,
    /// The states whose live steps are all loaded, as far as decisions about guards have asked.
    whole: BTreeSet<String>,
}

/// What is loaded of a queue.
#[derive(Debug)]
pub struct QueueHead {
    /// How many of the oldest messages are loaded for decisions that inspect the queue, or all of its messages.
    pub(super) inspected: usize,
    /// How many messages were asked for. Fewer are loaded if the table had no more.
    pub(super) asked: usize,
    pub(super) unread: Option<Unread>,
}

/// Messages that were not read, because every waiting state needs more than there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    /// The most messages that there can be.
    pub count: usize,
    pub waiting: QueueWaiters,
}

/// All states that wait for a queue, taken together.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueWaiters {
    /// The smallest number of messages that serves one of them.
    pub needed: usize,
    /// The most messages that they take.
    pub wanted: usize,
}

/// The parts of an execution that steps don't change, and the current registration of its type.
#[derive(Clone, Debug)]
pub struct Meta {
    pub shard: i16,
    /// The text that the shard was computed from. None: the process id. If set, workers get the shard in their
    /// requests.
    pub shard_key: Option<String>,
    pub type_id: TypeId,
    /// None if the type is no longer registered.
    pub process_type: Option<Arc<ProcessType>>,
    pub owner: pg_sys::Oid,
    pub owner_name: String,
    pub mapping_id: Option<MappingId>,
    pub mapping: Mapping,
    /// For each mapped table, the values of its key columns as text.
    pub keys: Arc<[Vec<String>]>,
    pub history: HistoryPolicy,
    pub traceparent: Option<String>,
    /// Whether the row has a closing mark of an earlier attempt to close.
    pub closing: bool,
}

impl Meta {
    /// The shard, if the application has chosen it.
    pub fn chosen_shard(&self) -> Option<i16> {
        self.shard_key.as_ref().map(|_| self.shard)
    }

    /// The line of the execution's calls to this worker.
    pub fn line_at(&self, worker: WorkerId) -> Line {
        Line { worker, owner: self.owner.to_u32() }
    }

    /// The worker of the line for calls of this maker.
    pub fn worker_of(&self, maker: Maker) -> WorkerId {
        let of_type = || self.process_type.as_ref().map_or(NO_WORKER, |process_type| process_type.worker_id());
        if maker == Maker::Function { NO_WORKER } else { of_type() }
    }

    /// The options of a step: its own, then those of the definition.
    pub fn options_of(&self, state: &StateExecution) -> StateConfig {
        self.definition().options_of(&state.id.state_id, state.config.as_deref())
    }

    /// The pull worker of the type, if it has one.
    pub fn pulled_by(&self) -> Option<WorkerId> {
        self.process_type.as_ref()?.pulled_by()
    }

    /// The definition for decisions. Empty if the type no longer exists.
    pub fn definition(&self) -> Arc<Definition> {
        self.process_type.as_ref().map(|t| t.definition.clone()).unwrap_or_default()
    }
}

impl Loaded {
    /// An execution with only its own row loaded.
    pub fn new(meta: Meta, execution: Execution) -> Self {
        Self {
            meta,
            before: execution.clone(),
            execution,
            events: Vec::new(),
            published_before: BTreeSet::new(),
            offered: BTreeSet::new(),
            acting_as: None,
            heads: BTreeMap::new(),
            whole: BTreeSet::new(),
        }
    }

    /// Decides about a command, without applying the decision.
    pub fn decide(&self, command: &Command, now: Timestamp, jitter: f64) -> std::result::Result<Vec<Event>, Rejection> {
        self.decide_with(command, now, jitter, &[])
    }

    /// Decides with messages of global queues that the command's state may take. Does not apply the decision.
    pub fn decide_with(
        &self,
        command: &Command,
        now: Timestamp,
        jitter: f64,
        global_messages: &[GlobalMessage],
    ) -> std::result::Result<Vec<Event>, Rejection> {
        assert!(self.is_prepared(command), "a queue was not loaded");
        let definition = self.meta.definition();
        let ids: Vec<_> = command.children().iter().map(|_| new_id()).collect();
        decide(
            &self.execution,
            command,
            Context {
                now,
                jitter,
                definition: &definition,
                mapping: &self.meta.mapping,
                published_before: &self.published_before,
                global_messages,
                child_ids: &ids,
                quotas: guc::quotas(),
                global_queues_full: over::limit(process::database(), self.publishes_as(), Quota::Messages).is_some(),
                next_tick: timezone::next_tick,
            },
        )
    }

    /// The role that publishes to global queues.
    pub fn publishes_as(&self) -> pg_sys::Oid {
        self.acting_as.unwrap_or(self.meta.owner)
    }

    /// States that differ from the loaded ones, each with its loaded version. New states have none.
    pub fn changed_states(&self) -> impl Iterator<Item = (Option<&StateExecution>, &StateExecution)> {
        let changed = self.execution.states.values().filter(|state| self.has_changed(state));
        changed.map(|state| (self.before.states.get(&state.seq).map(Arc::as_ref), state.as_ref()))
    }

    /// Whether a state is new, or differs from the loaded one.
    pub fn has_changed(&self, state: &Arc<StateExecution>) -> bool {
        let old = self.before.states.get(&state.seq);
        old.is_none_or(|old| !Arc::ptr_eq(old, state) && old != state)
    }

    /// Whether the execution had live states that were not loaded.
    pub fn has_other_threads(&self) -> bool {
        self.before.loaded_threads_and_guards() != (self.before.live_threads, self.before.waiting_guards)
    }

    /// Live steps that these events depend on, and that are not loaded.
    pub(super) fn lacking_steps(&self, events: &[Event]) -> Option<Unloaded> {
        let definition = self.meta.process_type.as_deref().map(|process_type| &process_type.definition)?;
        let is_partial = self.has_other_threads() || !self.execution.compensation.noted.is_empty();
        match self.before.exists() && is_partial {
            true => self.execution.unloaded(events, definition, &self.whole),
            false => None,
        }
    }

    /// Records that these steps are loaded. `all`: there are no others of these states.
    pub(super) fn have_loaded(&mut self, steps: Unloaded, all: bool) {
        match steps {
            Unloaded::Of(ids) => self.whole.extend(ids),
            Unloaded::OneOf(ids) if all => self.whole.extend(ids),
            Unloaded::OneOf(_) | Unloaded::Every | Unloaded::Ended(_) => {}
        }
    }

    /// The steps that were aborted while the process went on.
    pub fn aborted(&self) -> impl Iterator<Item = StateSeq> {
        self.events.iter().filter_map(|(event, _)| match event {
            Event::StateAborted { seq, .. } => Some(*seq),
            _ => None,
        })
    }

    /// Applies events. Payloads of messages in answers are converted to the text that the table stores. So the same
    /// number of bytes is counted when a message is received and when it is taken.
    pub fn apply(&mut self, events: Vec<Event>, now: Timestamp) -> Result<()> {
        for mut event in events {
            if let Event::MessagesReceived { publisher, messages } = &mut event
                && *publisher != Publisher::Client
            {
                for payload in messages.iter_mut().filter_map(|message| message.payload.as_mut()) {
                    *payload = Json::from_trusted(json::as_stored(payload.as_str())?);
                }
            }
            self.execution.apply(&event, now);
            self.events.push((event, now));
        }
        Ok(())
    }

    /// Whether everything in queues that the decision reads is loaded. Otherwise the decision would take a queue for
    /// empty.
    fn is_prepared(&self, command: &Command) -> bool {
        let seen = |queue: &String| self.heads.get(queue).is_some_and(|head| head.inspected > 0);
        let closes_if_empty = match command {
            Command::ExecuteAnswered { answer, .. } => match &answer.decision {
                Decision::ConditionalClose { queues, .. } => &queues[..],
                _ => &[],
            },
            _ => &[],
        };
        !self.execution.is_running()
            || self.filled(command).all(|queue| self.heads.contains_key(queue))
                && closes_if_empty.iter().all(seen)
                && self.due(command).is_empty()
    }

    /// Local queues of waits that these events begin, and of messages that go back, as far as they are not loaded: each
    /// with the most messages to load.
    pub(super) fn lacking_queues(&self, events: &[Event]) -> BTreeMap<String, usize> {
        if !self.before.exists() {
            // It is started in this transaction. So its queues are in memory.
            return BTreeMap::new();
        }
        let mut wanted: BTreeMap<&str, usize> = BTreeMap::new();
        for event in events {
            match event {
                Event::WaitStarted { commands, .. } => {
                    let queues = commands.iter().filter_map(|command| command.kind.queue()).filter(|of| !of.is_global);
                    for queue in queues {
                        *wanted.entry(queue.name).or_default() += taken_at_once(queue.at_least, queue.at_most) as usize;
                    }
                }
                Event::StateAborted { seq, .. } => {
                    let state = self.execution.states.get(seq);
                    for message in state.into_iter().flat_map(|state| state.taken_messages()) {
                        wanted.entry(&message.queue).or_default();
                    }
                }
                _ => {}
            }
        }
        let lacking = wanted.into_iter().filter_map(|(queue, wanted)| {
            let Some(head) = self.heads.get(queue) else { return Some((queue.to_owned(), wanted)) };
            let (read, now) = (self.before.queues.get(queue), self.execution.queues.get(queue));
            // Messages that went back may belong behind messages that are not loaded, so they don't count.
            let here = |message: &&Arc<Message>| {
                now.is_some_and(|now| now.binary_search_by_key(&message.number, |message| message.number).is_ok())
            };
            let left = read.map_or(0, |read| read.iter().filter(here).count());
            let has_more = read.map_or(0, VecDeque::len) >= head.asked;
            (left < wanted && has_more).then(|| (queue.to_owned(), head.inspected + wanted - left))
        });
        lacking.collect()
    }

    /// The queue of each message that the command publishes, or that goes back when the command aborts a step.
    pub(super) fn filled<'a>(&'a self, command: &'a Command) -> impl Iterator<Item = &'a str> {
        let aborted = self.execution.states.values().filter(|state| state.status().is_live() && command.aborts(state));
        let back = aborted.flat_map(|state| state.taken_messages()).map(|message| message.queue.as_str());
        command.publishes().iter().map(|publish| publish.queue.as_str()).chain(back)
    }

    /// Queues with unread messages that may serve a waiting state, together with the messages that the command puts
    /// into them.
    pub(super) fn due<'a>(&'a self, command: &'a Command) -> Vec<&'a str> {
        let mut published: BTreeMap<&str, usize> = BTreeMap::new();
        for queue in self.filled(command) {
            *published.entry(queue).or_default() += 1;
        }
        let suffices = |(queue, new): &(&str, usize)| {
            let unread = self.heads.get(*queue).and_then(|head| head.unread);
            let in_memory = self.execution.queues.get(*queue).map_or(0, VecDeque::len);
            unread.is_some_and(|unread| unread.count + in_memory + new >= unread.waiting.needed)
        };
        let running = self.execution.is_running();
        published.into_iter().filter(|queue| running && suffices(queue)).map(|(queue, _)| queue).collect()
    }

    /// Inserts messages behind the ones that were read before, and before the ones that were received since.
    pub(super) fn put_in(&mut self, queue: String, messages: Vec<Arc<Message>>) {
        let next = self.before.next_message;
        let queued = self.execution.queues.entry(queue.clone()).or_default();
        let received = queued.split_off(queued.partition_point(|message| message.number < next));
        queued.extend(messages.iter().cloned());
        // A message that went back from an aborted step may belong behind them.
        queued.make_contiguous().sort_unstable_by_key(|message| message.number);
        queued.extend(received);
        self.before.queues.entry(queue).or_default().extend(messages);
    }
}
