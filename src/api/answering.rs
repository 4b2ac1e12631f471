//! What a worker has said, in the transaction of whoever brings it: the caller of an RPC, or a worker that has fetched its call.
//!
//! ```text
//!   lock ──▶ (is it what was asked about?) ──▶ decide ──▶ users' tables ──▶ save
//! ```
//!
//! The execution's lock is waited for, under the caller's timeouts, and kept until the transaction ends.

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

/// What is decided about, of an execution that is locked.
pub(super) struct Answering<'a> {
    pub id: ExecutionId,
    pub command: &'a Command,
    /// Queues that deciding about it looks into, each with the most messages that it takes.
    pub queues: Vec<(String, usize)>,
    /// How it is locked. With the weaker lock the stronger one is taken when the process is to close.
    pub lock: Lock,
    /// The local attributes that it had a moment ago, as far as anybody knows.
    pub local_size: Option<Size>,
    /// Nothing was in its inbox when somebody looked under the lock.
    pub without_arrivals: bool,
}

impl Answering<'_> {
    /// Decides, and applies what follows in memory; or says why nothing does.
    pub fn decide(
        &self,
        spi: &Spi,
        registry: &mut Registry,
        loaded: &mut Executions,
        now: Timestamp,
    ) -> Result<std::result::Result<(), Rejection>> {
        self.load(spi, loaded, now)?;
        let mut decided = self.events(spi, loaded, now)?;
        if self.lock != Lock::Close && decided.as_ref().is_ok_and(|events| Event::closes(events)) {
            // Behind everybody who publishes: what they have published is seen from here on.
            execution::executions(spi, registry, &[self.id], Lock::Close)?;
            state::states_with_unrecorded_attempts(spi, loaded, &[self.id])?;
            take_in(spi, loaded, self.id, now)?;
            self.refuse_unseen(spi)?;
            decided = self.events(spi, loaded, now)?;
        }
        let events = match decided {
            Ok(events) => events,
            Err(rejection) => return Ok(Err(rejection)),
        };
        if let Some(refusal) = attribute::refusal_of(spi, self.id, self.local_size, &events)? {
            return Err(refusal);
        }
        if let Some(entry) = loaded.get_mut(&self.id) {
            entry.apply(events, now)?;
        }
        Ok(Ok(()))
    }

    /// Loads what deciding looks at. What was published before comes first.
    fn load(&self, spi: &Spi, loaded: &mut Executions, now: Timestamp) -> Result<()> {
        let Self { id, command, .. } = *self;
        if loaded.get(&id).is_some_and(|entry| entry.before.is_running()) {
            if !self.without_arrivals {
                take_in(spi, loaded, id, now)?;
            }
            self.refuse_unseen(spi)?;
            let mut queues = BTreeMap::new();
            for (queue, wanted) in queue::demand(self.queues.iter().cloned(), command.publishes()) {
                *queues.entry(queue).or_default() += wanted;
            }
            queue::queues(spi, loaded, &queue::QueueDemand::from([(id, queues)]))?;
        }
        inbox::message_ids(spi, loaded, &inbox::ids_of(id, command.publishes()).collect::<Vec<_>>())?;
        Ok(())
    }

    fn refuse_unseen(&self, spi: &Spi) -> Result<()> {
        let published_to = self.command.publishes().iter().map(|publish| &publish.queue);
        let mut queues = self.queues.iter().map(|(queue, _)| queue).chain(published_to);
        queues.try_for_each(|queue| refuse_unseen(spi, self.id, Some(queue)))
    }

    fn events(
        &self,
        spi: &Spi,
        loaded: &mut Executions,
        now: Timestamp,
    ) -> Result<std::result::Result<Vec<Event>, Rejection>> {
        let entry = loaded.get_mut(&self.id).ok_or_else(|| PgError::internal("an execution was not loaded"))?;
        entry.prepare(spi, self.command)?;
        Ok(entry.decide(self.command, now, random()))
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

/// Above `READ COMMITTED` the transaction may be older than messages that were published before it came here. They can't be
/// taken in, and must not be overtaken.
pub(super) fn refuse_unseen(spi: &Spi, id: ExecutionId, queue: Option<&str>) -> Result<()> {
    if has_transaction_snapshot() && inbox::has_unseen_arrivals(spi, id, queue)? {
        return Err(error::could_not_serialize("a message was published to the process meanwhile"));
    }
    Ok(())
}
