//! Applies the answer of a worker in the transaction of a session: of the caller of an RPC, or of a pull worker that
//! completes a call.
//!
//! ```text
//!   lock ──▶ load ──▶ xdb_calls::apply ──▶ save
//! ```
//!
//! The session waits for the execution's lock, up to the caller's timeouts. It keeps the lock until the transaction
//! ends.
//!
//! Limitations: other transactions that need the execution wait until the session's transaction ends.

use super::caller::Caller;
use super::children::{lock_parent, lock_parents_of};
use crate::calls::Loads;
use crate::error;
use crate::pg::catch::{PgError, Result};
use crate::pg::process::{has_transaction_snapshot, random};
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::store::attribute::{self, Size};
use crate::store::execution::{self, Lock};
use crate::store::loaded::Loaded;
use crate::store::registry::Registry;
use crate::store::{deciding, inbox, queue, save, state};
use pgrx::pg_sys;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use xdb_calls::{CloseLock, Driver, Used, Written};
use xdb_engine::*;

/// Loaded executions, by id.
pub(super) type Executions = BTreeMap<ExecutionId, Loaded>;

/// Locks an execution, and loads it with the current registration of its type.
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

/// Loads executions with the current registrations of their types: the registry of a session may be older. With
/// [`Lock::Close`], also locks the parents that get a message at the close, and loads the states that it sums up.
pub(super) fn executions(spi: &Spi, registry: &mut Registry, ids: &[ExecutionId], lock: Lock) -> Result<Executions> {
    if lock == Lock::Close {
        lock_parents_of(spi, ids)?;
    }
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

/// How a session uses the application's tables for an answer. A pull worker uses them as the process's owner, the
/// caller of an RPC as itself.
pub(super) trait TablesInSession {
    /// What the call loads under locks, the global attributes as they are now, and the fingerprint from the call.
    fn reads(&mut self, loaded: &Loaded) -> Result<(Loads, String, Option<u64>)>;

    /// Writes attributes, then calls functions.
    fn write(&mut self, loaded: &Loaded, written: &Written<'_>) -> Result<()>;
}

/// An answer that a session applies to an execution that it has locked. A problem with the answer is an error, which
/// rolls back the whole transaction.
pub(super) struct Answering<'a, T> {
    pub caller: Caller,
    pub id: ExecutionId,
    pub loaded: Executions,
    pub command: &'a Command,
    /// Queues that the decision inspects, each with the most messages that it takes.
    pub queues: Vec<(String, usize)>,
    /// The lock on the execution. If the process closes, a weaker lock is upgraded to [`Lock::Close`].
    pub lock: Lock,
    /// The size of the local attributes a moment ago, if known.
    pub local_size: Option<Size>,
    /// Read under the lock, so that the times of events are in order.
    pub now: Timestamp,
    pub tables: T,
}

impl<T: TablesInSession> Answering<'_, T> {
    /// Loads what the decision needs. Messages published before are received first, unless the inbox was empty under
    /// the lock (`without_arrivals`).
    pub fn load(&mut self, spi: &Spi, without_arrivals: bool) -> Result<()> {
        let Self { id, command, now, ref queues, ref mut loaded, .. } = *self;
        if loaded.get(&id).is_some_and(|entry| entry.before.is_running()) {
            if !without_arrivals {
                take_in(spi, loaded, id, now)?;
            }
            refuse_unseen_in(spi, loaded, id, queues, command)?;
            let mut demand = BTreeMap::new();
            for (queue, wanted) in queue::demand(queues.iter().cloned(), command.publishes()) {
                *demand.entry(queue).or_default() += wanted;
            }
            queue::queues(spi, loaded, &queue::QueueDemand::from([(id, demand)]))?;
        }
        inbox::message_ids(spi, loaded, &inbox::ids_of(id, command.publishes()).collect::<Vec<_>>())?;
        self.entry()?.prepare(spi, command)
    }

    fn entry(&mut self) -> Result<&mut Loaded> {
        self.loaded.get_mut(&self.id).ok_or_else(|| PgError::internal("an execution was not loaded"))
    }
}

impl<T: TablesInSession> Driver for Answering<'_, T> {
    type Error = PgError;
    /// A session waits, and never defers.
    type Later = Infallible;

    fn decide(&mut self, command: &Command) -> Result<std::result::Result<Vec<Event>, Rejection>> {
        let Self { caller, id, now, ref mut loaded, .. } = *self;
        // A change of the role is costly, and seldom needed.
        deciding::decide(loaded, id, command, (now, random()), &[], |loaded, lack| {
            caller.on_system_tables(|spi, _| lack.load(spi, loaded, command))
        })
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
            let parent = loaded.get(&id).and_then(|entry| entry.execution.parent_to_inform());
            parent.map_or(Ok(()), |parent| lock_parent(spi, parent))?;
            // The lock waits for all publishers, so their messages are visible from here on.
            execution::executions(spi, registry, &[id], Lock::Close)?;
            state::states_with_unrecorded_attempts(spi, loaded, &[id])?;
            take_in(spi, loaded, id, now)?;
            refuse_unseen_in(spi, loaded, id, queues, command)?;
            loaded.get_mut(&id).map_or(Ok(()), |entry| entry.prepare(spi, command))
        })?;
        self.lock = Lock::Close;
        Ok(CloseLock::Taken)
    }

    fn too_large(&mut self, events: &[Event]) -> Result<Option<String>> {
        let Self { caller, id, local_size, .. } = *self;
        // Most answers write none, and a change of the role costs more than this loop.
        if !events.iter().any(|event| matches!(event, Event::LocalAttributesWritten { .. })) {
            return Ok(None);
        }
        match caller.on_system_tables(|spi, _| attribute::refusal_of(spi, id, local_size, events))? {
            Some(refusal) => Err(refusal),
            None => Ok(None),
        }
    }

    fn is_unchanged(&mut self) -> Result<Used<bool, Infallible>> {
        let Self { caller, id, ref loaded, ref mut tables, .. } = *self;
        let Some(entry) = loaded.get(&id) else { return Ok(Used::Done(false)) };
        let (loads, global, before) = tables.reads(entry)?;
        let versions = match loads.local.locks() {
            true => caller.on_system_tables(|spi, _| attribute::versions(spi, &[id]))?,
            false => HashMap::new(),
        };
        let now = loads.fingerprint(&global, versions.get(&id).into_iter().flatten());
        Ok(Used::Done(now == before))
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

/// Writes the decisions of a session.
pub(super) fn save(spi: &Spi, loaded: &Executions, now: Timestamp) -> Result<()> {
    let changed = loaded.values().filter(|entry| !entry.events.is_empty());
    save::save(spi, changed, now)
}

/// Writes the decisions about processes of pull workers. Wakes the engine only if it has something to do: otherwise
/// hundreds of pull workers would keep the engine awake.
pub(super) fn save_claimed(spi: &Spi, loaded: &Executions, now: Timestamp) -> Result<()> {
    let changed = || loaded.values().filter(|entry| !entry.events.is_empty());
    let saved = save::save_of_session(spi, changed(), now)?;
    if saved.calls_over {
        wake::calls_over_quietly_at_commit();
    }
    let all_pulled = changed().all(|entry| entry.meta.pulled_by().is_some());
    let events = || changed().flat_map(|entry| &entry.events);
    wake::note_uncommitted_write();
    if !all_pulled || saved.earliest.is_some() || saved.released || events().any(|(event, _)| concerns_engine(event)) {
        wake::call_scheduler_at_commit();
    }
    Ok(())
}

/// Whether an event may cause more for the engine than calls, timers and ends of existing rows.
fn concerns_engine(event: &Event) -> bool {
    !matches!(
        event,
        Event::StateStarted { .. }
            | Event::StateCompleted { .. }
            | Event::StateFailed { .. }
            | Event::StateAborted { .. }
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

/// Receives the messages that were published before the caller changes the process.
pub(super) fn take_in(spi: &Spi, loaded: &mut Executions, id: ExecutionId, now: Timestamp) -> Result<()> {
    loop {
        // All messages belong to one execution, so the owner makes no difference.
        let inbox::Arrivals { arrivals, left, .. } = inbox::arrivals(spi, &[(id, pg_sys::InvalidOid)])?;
        let keys: Vec<_> = arrivals.iter().map(|arrival| arrival.key).collect();
        let queues = arrivals.iter().map(|arrival| (arrival.publish.queue.clone(), 0)).collect();
        queue::queues(spi, loaded, &queue::QueueDemand::from([(id, queues)]))?;
        inbox::receive(spi, loaded, id, arrivals, now)?;
        inbox::delete_arrivals(spi, &keys)?;
        if left.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Calls [`refuse_unseen`] for the queues that the decision inspects or publishes to.
fn refuse_unseen_in(
    spi: &Spi,
    loaded: &Executions,
    id: ExecutionId,
    queues: &[(String, usize)],
    command: &Command,
) -> Result<()> {
    let published_to = command.publishes().iter().map(|publish| &publish.queue);
    let mut queues = queues.iter().map(|(queue, _)| queue).chain(published_to);
    queues.try_for_each(|queue| refuse_unseen(spi, loaded, id, Some(queue)))
}

/// An error if messages were published before this call and the transaction's snapshot does not show them. That can
/// happen above `READ COMMITTED`. Such messages can't be received, and must not be overtaken.
pub(super) fn refuse_unseen(spi: &Spi, loaded: &Executions, id: ExecutionId, queue: Option<&str>) -> Result<()> {
    if has_transaction_snapshot() && inbox::has_unseen_arrivals(spi, id, queue)? {
        let process_id = loaded.get(&id).map_or("", |entry| &entry.before.process_id);
        let why = format_args!("a message was published to process \"{process_id}\" after this transaction's snapshot");
        return Err(error::could_not_serialize(why));
    }
    Ok(())
}
