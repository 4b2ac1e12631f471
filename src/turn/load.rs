//! Loads what the items of a turn need, under the row locks of their executions.
//!
//! Limitations: an execution that another transaction has locked is left out. No lock is waited for.

use super::global_queues::{Free, Matching};
use super::item::Item;
use super::types::Turn;
use crate::calls::Answered;
use crate::clock;
use crate::pg::catch::Result;
use crate::store::execution::{self, Lock};
use crate::store::inbox::{self, Arrival, InboxKey};
use crate::store::loaded::Loaded;
use crate::store::queue::{self, QueueDemand};
use crate::store::registry::Registry;
use crate::store::{StateKey, attribute, state};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use xdb_engine::{ExecutionId, Timestamp};

/// Versions of executions' local attributes, by key.
pub type LocalVersions = HashMap<ExecutionId, BTreeMap<String, String>>;

/// The locked executions of a turn, with what deciding about its items needs.
#[derive(Default)]
pub struct Batch<'i> {
    pub items: &'i [Item],
    /// The executions that could be locked.
    pub executions: BTreeMap<ExecutionId, Loaded>,
    /// Executions that exist and could not be locked.
    pub locked: BTreeSet<ExecutionId>,
    /// Steps that are too large for this turn.
    pub left_out: BTreeSet<StateKey>,
    /// Leases of the answered calls as the tasks have them: epoch and number.
    pub leases: HashMap<StateKey, (i64, i64)>,
    /// Local attributes of executions whose answered calls have locked some.
    pub local: LocalVersions,
    /// Messages that were read from the inbox.
    pub taken_in: TakenIn,
    /// Free messages of global queues.
    pub free: Free,
    /// Read under the locks. So the times of events are in their order, even if a session changed the execution last.
    pub now: Timestamp,
}

/// Messages that were read from the inbox. `save` deletes them.
#[derive(Default)]
pub struct TakenIn {
    pub keys: Vec<InboxKey>,
    /// The first message that was left in the inbox, because there were too many. None: no message was left.
    pub left_from: Option<i64>,
}

/// What the items of a turn refer to.
#[derive(Default)]
struct Named {
    answered: Vec<StateKey>,
    states: Vec<StateKey>,
    /// States of due timers, in the order of the items.
    with_timers: Vec<StateKey>,
    with_locked_keys: Vec<ExecutionId>,
    queues: QueueDemand,
    message_ids: Vec<(ExecutionId, String, String)>,
}

/// Locks and loads the executions of the items. Locked ones are left out.
pub fn load<'i>(turn: &Turn, registry: &mut Registry, matching: &Matching, items: &'i [Item]) -> Result<Batch<'i>> {
    let mut batch = Batch { items, now: turn.began, ..Batch::default() };
    if items.is_empty() {
        return Ok(batch);
    }
    let named = Named::by(items);
    let ids: BTreeSet<_> = items.iter().map(Item::execution).collect();
    let ids: Vec<_> = ids.into_iter().collect();
    batch.executions = execution::executions(turn.spi, registry, &ids, Lock::StepOrSkip)?;
    let missing: Vec<_> = ids.iter().copied().filter(|id| !batch.executions.contains_key(id)).collect();
    if !missing.is_empty() {
        batch.locked = execution::existing(turn.spi, &missing)?;
    }
    let mut answered = state::answered(turn.spi, &mut batch.executions, &named.answered, &mut turn.bytes())?;
    batch.left_out.append(&mut answered.left_out);
    batch.leases = answered.leases;
    batch.local = attribute::versions(turn.spi, &named.with_locked_keys)?;
    for keys in [&named.states, &named.with_timers] {
        let mut left_out = state::states_in(turn.spi, &mut batch.executions, keys, &mut turn.bytes())?;
        batch.left_out.append(&mut left_out);
    }
    queue::queues(turn.spi, &mut batch.executions, &named.queues)?;
    batch.now = clock::now();
    let may_have_arrivals =
        |loaded: &&Loaded| loaded.before.is_running() && !answered.without_arrivals.contains(&loaded.before.id);
    let ids: Vec<_> = batch.executions.values().filter(may_have_arrivals).map(|l| l.before.id).collect();
    take_in(turn, &mut batch.executions, &mut batch.taken_in, &ids, batch.now)?;
    inbox::message_ids(turn.spi, &mut batch.executions, &named.message_ids)?;
    batch.free = matching.list_free(turn, &batch.executions, items, batch.now)?;
    Ok(batch)
}

impl Named {
    fn by(items: &[Item]) -> Self {
        let mut named = Self::default();
        for item in items {
            match item {
                Item::Timer(timer) if timer.seq.0 > 0 => named.with_timers.push((timer.execution_id, timer.seq)),
                Item::Waiter(key) => named.states.push(*key),
                Item::Answer(record, answer) => {
                    let id = record.key.0;
                    named.answered.push(record.key);
                    if matches!(answer, Answered::Uncalled) {
                        // The whole state, for the request of the function.
                        named.states.push(record.key);
                    }
                    if record.reads.as_ref().is_some_and(|reads| reads.loads.local.locks()) {
                        named.with_locked_keys.push(id);
                    }
                    for (queue, wanted) in queue::demand(answer.queues(), answer.publishes()) {
                        *named.queues.entry(id).or_default().entry(queue).or_default() += wanted;
                    }
                    named.message_ids.extend(inbox::ids_of(id, answer.publishes()));
                }
                Item::Timer(_) | Item::Arrivals(_) | Item::Fail { .. } => {}
            }
        }
        named
    }
}

/// Receives the messages that have arrived for these executions. A message that was published earlier comes before the
/// messages of this turn's answers. Returns the executions that have more messages.
pub fn take_in(
    turn: &Turn,
    executions: &mut BTreeMap<ExecutionId, Loaded>,
    taken_in: &mut TakenIn,
    ids: &[ExecutionId],
    now: Timestamp,
) -> Result<BTreeSet<ExecutionId>> {
    let of: Vec<_> = ids.iter().filter_map(|id| Some((*id, executions.get(id)?.meta.owner))).collect();
    if of.is_empty() {
        return Ok(BTreeSet::new());
    }
    let inbox::Arrivals { arrivals, left, left_from } = inbox::arrivals(turn.spi, &of)?;
    taken_in.left_from = taken_in.left_from.into_iter().chain(left_from).min();
    let mut new: BTreeMap<ExecutionId, Vec<Arrival>> = BTreeMap::new();
    let seen: BTreeSet<_> = taken_in.keys.iter().copied().collect();
    let mut queues = QueueDemand::new();
    for arrival in arrivals.into_iter().filter(|arrival| !seen.contains(&arrival.key)) {
        let id = arrival.key.execution_id;
        taken_in.keys.push(arrival.key);
        queues.entry(id).or_default().entry(arrival.publish.queue.clone()).or_default();
        new.entry(id).or_default().push(arrival);
    }
    queue::queues(turn.spi, executions, &queues)?;
    for (id, arrivals) in new {
        inbox::receive(turn.spi, executions, id, arrivals, now)?;
    }
    Ok(left)
}
