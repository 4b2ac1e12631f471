//! What a worker has said, in the transaction of whoever brings it: the caller of an RPC, or a worker that has fetched its call.
//!
//! ```text
//!   lock ──▶ load ──▶ xdb_calls::apply ──▶ save
//! ```
//!
//! The execution's lock is waited for, under the caller's timeouts, and kept until the transaction ends.

use super::Caller;
use crate::error;
use crate::pg::catch::{PgError, Result};
use crate::pg::process::{has_transaction_snapshot, random};
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::store::attribute::{self, Size};
use crate::store::execution::{self, Lock};
use crate::store::loaded::Loaded;
use crate::store::registry::Registry;
use crate::store::{inbox, queue, save, state};
use pgrx::pg_sys;
use std::collections::BTreeMap;
use std::convert::Infallible;
use xdb_calls::{CloseLock, Driver, Used, Written};
use xdb_engine::*;

pub(super) type Executions = BTreeMap<ExecutionId, Loaded>;

/// Locks an execution, with its type as it is registered now.
pub(super) fn lock(
    spi: &Spi,
    registry: &mut Registry,
    process_id: &str,
    id: ExecutionId,
    lock: Lock,
) -> Result<Executions> {
    let loaded = executions(spi, registry, &[id], lock)?;
    wake::note_locked(id.0);
    if loaded.is_empty() { Err(error::unknown_process(process_id)) } else { Ok(loaded) }
}

/// Loads executions, with their types as they are registered now. (A session may have read a type some time ago.) Those that are locked
/// for a close come with what a close sums up.
pub(super) fn executions(spi: &Spi, registry: &mut Registry, ids: &[ExecutionId], lock: Lock) -> Result<Executions> {
    let mut loaded = execution::executions(spi, registry, ids, lock)?;
    let mut types = BTreeMap::new();
    for entry in loaded.values_mut() {
        let name = &entry.before.process_type;
        if !types.contains_key(name) {
            types.insert(name.clone(), registry.process_type_by_name(spi, name)?);
        }
        entry.meta.process_type = types[name].clone();
    }
    if lock == Lock::Close {
        state::states_with_unrecorded_attempts(spi, &mut loaded, ids)?;
    }
    Ok(loaded)
}

/// How a session uses the application's tables for an answer: a worker as the process's owner, the caller of an RPC as itself.
pub(super) trait TablesInSession {
    /// Whether what was loaded under locks is what is there now.
    fn is_unchanged(&mut self, loaded: &Loaded) -> Result<bool>;

    /// Writes attributes, and calls functions after that.
    fn write(&mut self, loaded: &Loaded, written: &Written<'_>) -> Result<()>;
}

/// An answer that a session brings to an execution that it has locked. What is wrong with it is an error, and undoes what else the
/// transaction has done.
pub(super) struct Answering<'a, T> {
    pub caller: Caller,
    pub id: ExecutionId,
    pub loaded: Executions,
    pub command: &'a Command,
    /// Queues that deciding about it looks into, each with the most messages that it takes.
    pub queues: Vec<(String, usize)>,
    /// How it is locked. With the weaker lock the stronger one is taken when the process is to close.
    pub lock: Lock,
    /// The local attributes that it had a moment ago, as far as anybody knows.
    pub local_size: Option<Size>,
    /// Read under the lock: the times of events are in their order.
    pub now: Timestamp,
    pub tables: T,
}

impl<T: TablesInSession> Answering<'_, T> {
    /// Loads what deciding looks at. What was published before comes first, unless nothing was in the inbox when somebody looked
    /// under the lock.
    pub fn load(&mut self, spi: &Spi, without_arrivals: bool) -> Result<()> {
        let Self { id, command, now, ref queues, ref mut loaded, .. } = *self;
        if loaded.get(&id).is_some_and(|entry| entry.before.is_running()) {
            if !without_arrivals {
                take_in(spi, loaded, id, now)?;
            }
            refuse_unseen_in(spi, id, queues, command)?;
            let mut demand = BTreeMap::new();
            for (queue, wanted) in queue::demand(queues.iter().cloned(), command.publishes()) {
                *demand.entry(queue).or_default() += wanted;
            }
            queue::queues(spi, loaded, &queue::QueueDemand::from([(id, demand)]))?;
        }
        inbox::message_ids(spi, loaded, &inbox::ids_of(id, command.publishes()).collect::<Vec<_>>())
    }

    fn entry(&mut self) -> Result<&mut Loaded> {
        self.loaded.get_mut(&self.id).ok_or_else(|| PgError::internal("an execution was not loaded"))
    }
}

impl<T: TablesInSession> Driver for Answering<'_, T> {
    type Error = PgError;
    /// A session waits.
    type Later = Infallible;

    fn decide(&mut self, command: &Command) -> Result<std::result::Result<Vec<Event>, Rejection>> {
        let (caller, now) = (self.caller, self.now);
        let entry = self.entry()?;
        caller.on_system_tables(|spi, _| entry.prepare(spi, command))?;
        Ok(entry.decide(command, now, random()))
    }

    fn is_strict(&self) -> bool {
        self.loaded.get(&self.id).is_some_and(|entry| entry.meta.definition().strict_answers)
    }

    fn lock_for_close(&mut self, _: bool) -> Result<CloseLock<Infallible>> {
        if self.lock == Lock::Close {
            return Ok(CloseLock::Held);
        }
        let Self { caller, id, command, now, ref queues, ref mut loaded, .. } = *self;
        caller.on_system_tables(|spi, registry| {
            // Behind everybody who publishes: what they have published is seen from here on.
            execution::executions(spi, registry, &[id], Lock::Close)?;
            state::states_with_unrecorded_attempts(spi, loaded, &[id])?;
            take_in(spi, loaded, id, now)?;
            refuse_unseen_in(spi, id, queues, command)
        })?;
        self.lock = Lock::Close;
        Ok(CloseLock::Taken)
    }

    fn too_large(&mut self, events: &[Event]) -> Result<Option<String>> {
        let Self { caller, id, local_size, .. } = *self;
        match caller.on_system_tables(|spi, _| attribute::refusal_of(spi, id, local_size, events))? {
            Some(refusal) => Err(refusal),
            None => Ok(None),
        }
    }

    fn is_unchanged(&mut self) -> Result<Used<bool, Infallible>> {
        let Self { id, ref loaded, ref mut tables, .. } = *self;
        loaded.get(&id).map_or(Ok(false), |entry| tables.is_unchanged(entry)).map(Used::Done)
    }

    fn write_tables(&mut self, written: &Written<'_>) -> Result<Used<(), Infallible>> {
        let Self { id, ref loaded, ref mut tables, .. } = *self;
        loaded.get(&id).map_or(Ok(()), |entry| tables.write(entry, written)).map(Used::Done)
    }

    fn apply(&mut self, events: Vec<Event>) -> Result<()> {
        let now = self.now;
        self.entry()?.apply(events, now)
    }
}

/// Writes what was decided.
pub(super) fn save(spi: &Spi, loaded: &Executions, now: Timestamp) -> Result<()> {
    let changed = loaded.values().filter(|entry| !entry.events.is_empty());
    save::save(spi, changed, now)
}

/// The same, of processes whose worker fetches its calls, and wakes the engine only if there is something for it: hundreds of such
/// workers would keep it awake.
pub(super) fn save_fetched(spi: &Spi, loaded: &Executions, now: Timestamp) -> Result<()> {
    let changed = || loaded.values().filter(|entry| !entry.events.is_empty());
    let saved = save::save_of_session(spi, changed(), now)?;
    if saved.calls_over {
        wake::calls_over_quietly_at_commit();
    }
    let is_fetched = changed().all(|entry| entry.meta.pulled_by().is_some());
    let events = || changed().flat_map(|entry| &entry.events);
    wake::note_uncommitted_write();
    if !is_fetched || saved.earliest.is_some() || events().any(|(event, _)| concerns_engine(event)) {
        wake::call_scheduler_at_commit();
    }
    Ok(())
}

/// Whether more may follow from an event than calls, timers and the ends of what the execution had.
fn concerns_engine(event: &Event) -> bool {
    !matches!(
        event,
        Event::StateStarted { .. }
            | Event::StateCompleted { .. }
            | Event::StateFailed { .. }
            | Event::AttemptFailed { .. }
            | Event::AttemptsFolded { .. }
            | Event::CommandCompleted { .. }
            | Event::MessagesReceived { .. }
            | Event::LocalAttributesWritten { .. }
            | Event::GlobalAttributesWritten { .. }
            | Event::CompletionRequested {}
            | Event::ResultGiven { .. }
            | Event::ProcessClosed { .. }
    )
}

/// What was published before is received before what the caller does to the process.
pub(super) fn take_in(spi: &Spi, loaded: &mut Executions, id: ExecutionId, now: Timestamp) -> Result<()> {
    loop {
        // Whose they are makes no difference: they are all of one.
        let inbox::Arrivals { arrivals, left, .. } = inbox::arrivals(spi, &[(id, pg_sys::InvalidOid)])?;
        let keys: Vec<_> = arrivals.iter().map(|arrival| arrival.key).collect();
        let queues = arrivals.iter().map(|arrival| (arrival.publish.queue.clone(), 0)).collect();
        queue::queues(spi, loaded, &queue::QueueDemand::from([(id, queues)]))?;
        if let Some(entry) = loaded.get_mut(&id) {
            entry.receive(spi, arrivals, now)?;
        }
        inbox::delete_arrivals(spi, &keys)?;
        if left.is_empty() {
            break;
        }
    }
    Ok(())
}

/// The same as [`refuse_unseen`], of the queues that deciding looks into.
fn refuse_unseen_in(spi: &Spi, id: ExecutionId, queues: &[(String, usize)], command: &Command) -> Result<()> {
    let published_to = command.publishes().iter().map(|publish| &publish.queue);
    let mut queues = queues.iter().map(|(queue, _)| queue).chain(published_to);
    queues.try_for_each(|queue| refuse_unseen(spi, id, Some(queue)))
}

/// Above `READ COMMITTED` the transaction may be older than messages that were published before it came here. They can't be
/// taken in, and must not be overtaken.
pub(super) fn refuse_unseen(spi: &Spi, id: ExecutionId, queue: Option<&str>) -> Result<()> {
    if has_transaction_snapshot() && inbox::has_unseen_arrivals(spi, id, queue)? {
        return Err(error::could_not_serialize("a message was published to the process meanwhile"));
    }
    Ok(())
}
