//! Saves executions: writes the difference between the loaded and the present execution. One array statement per table,
//! for a batch of any size.
//!
//! Limitations: all executions must be locked, and all statements run in the caller's transaction.

use super::attribute::{self, LocalAttribute};
use super::changes::{self, ChangeMessage};
use super::children::Family;
use super::claim::{self, Lease, Task};
use super::history::{self, HistoryEvent};
use super::inbox::{self, MessageKey};
use super::lanes::{PARKED_LANE, RUNNERS_LANE, SCHEDULERS_LANE};
use super::loaded::{Loaded, Meta};
use super::phases::open_queues;
use super::process_lock::{self, ProcessLock};
use super::queue::{self, MessageNumber, QueueMessage, QueueWaiter};
use super::registry::{ProcessType, WorkerId};
use super::state::{self, State};
use super::table::{run, run_but, statements};
use super::timer::{self, Timer, TimerKey};
use super::{StateKey, execution, global_queue, parked};
use super::{correlated, counted};
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::identity::is_engine;
use crate::pg::param::{Jsonb, array};
use crate::pg::spi::{Spi, Statement};
use crate::pg::wake::NewCall;
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use xdb_calls::{CallOf, Facts, Maker};
use xdb_engine::*;
use xdb_sched::room::Owner;

/// A statement that deletes all rows of executions from these tables.
fn all_of(tables: &[&str]) -> String {
    let delete = |table| format!("{table} AS (DELETE FROM xdb.{table} WHERE execution_id = ANY ($1))");
    format!("WITH {} SELECT", tables.iter().map(delete).collect::<Vec<_>>().join(", "))
}

statements! {
    OF_CLOSED = all_of(&["task", "inbox", "message_key"]);
    OF_WAITING = all_of(&["timer", "queue_waiter", "global_waiter"]);
    MESSAGES = all_of(&["queue_message"]);
    ARRIVALS = all_of(&["inbox", "message_key"]);
}

fn delete_of(spi: &Spi, statement: &'static Statement, ids: &[ExecutionId]) -> Result<()> {
    if !ids.is_empty() {
        spi.run(statement, &[array(ids)])?;
    }
    Ok(())
}

/// Deletes the messages in the inbox of closed executions, and the ids of messages. A close at a higher isolation level
/// may not have seen them.
pub fn delete_arrivals_of(spi: &Spi, ids: &[ExecutionId]) -> Result<()> {
    delete_of(spi, &ARRIVALS, ids)
}

/// Saves what a session has decided. If calls have ended, the engine is notified at commit.
pub fn save<'a>(spi: &Spi, batch: impl Iterator<Item = &'a Loaded>, now: Timestamp) -> Result<()> {
    if save_of_session(spi, batch, now)?.calls_over {
        crate::pg::wake::calls_over_at_commit();
    }
    Ok(())
}

/// Like [`save`], but the caller notifies the engine. A session makes no calls, and knows no slow tables.
pub fn save_of_session<'a>(spi: &Spi, batch: impl Iterator<Item = &'a Loaded>, now: Timestamp) -> Result<SavedBatch> {
    save_batch(spi, batch, &HashMap::new(), &|_| SCHEDULERS_LANE, now)
}

/// What a scheduler needs to know about a batch that it saved.
#[derive(Debug, Default)]
pub struct SavedBatch {
    /// Whether calls have ended. They may have held locks on attributes, or waited for some.
    pub calls_over: bool,
    /// The earliest due time of the written timers, and of the written calls without a lease.
    pub earliest: Option<Timestamp>,
    /// The earliest due time of the written timers, by owner.
    pub timers: BTreeMap<Owner, Timestamp>,
    /// Whether parked calls were resumed. They may have been due earlier than the cursors.
    pub resumed: bool,
    /// Whether processes with locks have closed.
    pub released: bool,
}

/// Saves a batch. The caller frees the locks of ended calls, and handles due rows. `leases`: the calls that this
/// scheduler makes itself, at once.
pub fn save_batch<'a>(
    spi: &Spi,
    batch: impl Iterator<Item = &'a Loaded>,
    leases: &HashMap<StateKey, Lease>,
    lane: &dyn Fn(&Meta) -> i16,
    now: Timestamp,
) -> Result<SavedBatch> {
    let batch: Vec<_> = batch.collect();
    let may_be_parked = |loaded: &&&Loaded| {
        if loaded.execution.locks.is_empty() || !loaded.before.exists() {
            return false;
        }
        let is_new = |state: &StateExecution| {
            state.open_call().is_some() && !leases.contains_key(&(loaded.execution.id, state.seq))
        };
        loaded.execution.is_running() && loaded.changed_states().any(|(_, state)| is_new(state))
    };
    let waiting = process_lock::waiting(spi, batch.iter().filter(may_be_parked).copied())?;
    let mut changes = BatchChanges::default();
    let calls = TaskRules { leases, lane, waiting: &waiting, now };
    for loaded in &batch {
        changes.collect(loaded, &calls)?;
    }
    counted::count(&batch);
    let stopped = changes.write(spi, now)?;
    let mut timers = changes.rows.earliest_timers();
    for owner in &stopped {
        timers.entry(owner.to_u32()).and_modify(|at| *at = now.min(*at)).or_insert(now);
    }
    Ok(SavedBatch {
        calls_over: changes.calls_over || !changes.closed.all.is_empty(),
        earliest: changes.earliest().into_iter().chain((!stopped.is_empty()).then_some(now)).min(),
        timers,
        resumed: !changes.resumed.is_empty(),
        released: !changes.closed.with_locks.is_empty(),
    })
}

/// What determines how the tasks of calls are written.
struct TaskRules<'b> {
    leases: &'b HashMap<StateKey, Lease>,
    lane: &'b dyn Fn(&Meta) -> i16,
    /// Executions that wait for their locks, besides those that start.
    waiting: &'b BTreeSet<ExecutionId>,
    now: Timestamp,
}

/// Everything to write for the batch.
#[derive(Default)]
struct BatchChanges<'a> {
    updated: Vec<&'a Loaded>,
    closed: Closed,
    ended: Vec<(ExecutionId, &'a StateExecutionId)>,
    /// Whether any call has ended or starts again. Such a call gives up its locks.
    calls_over: bool,
    /// New calls of pull workers. A commit wakes a session for each.
    pulled: Vec<(WorkerId, NewCall, StateKey)>,
    /// The earliest due time of the written calls that the engine makes later: calls without a lease.
    earliest_call: Option<Timestamp>,
    /// Pull workers that may have calls again. A commit wakes all their sessions.
    pulling: BTreeSet<WorkerId>,
    rows: Rows<'a>,
    global: global_queue::GlobalQueueChanges<'a>,
    /// Events to publish.
    changes: Vec<ChangeMessage<'a>>,
    history_cuts: Vec<(ExecutionId, u64)>,
    /// Executions whose pause has changed.
    paused: Vec<&'a Execution>,
    /// Executions whose guards have begun or ended to wait, or whose compensation has changed.
    guarded: Vec<&'a Execution>,
    /// Executions whose pause has ended.
    resumed: Vec<ExecutionId>,
}

/// Executions that close, and the kinds of rows that they may leave.
#[derive(Default)]
struct Closed {
    all: Vec<ExecutionId>,
    /// Closing executions with live states that were not loaded.
    with_threads: Vec<ExecutionId>,
    /// Closing executions that may have timers or waiting states.
    waiting: Vec<ExecutionId>,
    /// Closing executions with messages in local queues.
    with_messages: Vec<ExecutionId>,
    family: Family,
    /// Closing executions that have locks or wait for them.
    with_locks: Vec<ExecutionId>,
}

/// Rows to write, by table.
// Wide because each field is a kind of rows.
#[derive(Default)]
struct Rows<'a> {
    states_new: Vec<State<'a>>,
    states_changed: Vec<State<'a>>,
    tasks_new: Vec<Task>,
    tasks_changed: Vec<Task>,
    tasks_deleted: Vec<StateKey>,
    timers_new: Vec<Timer<'static>>,
    timers_deleted: Vec<TimerKey>,
    waiters_new: Vec<QueueWaiter<'a>>,
    waiters_deleted: Vec<StateKey>,
    messages_new: Vec<QueueMessage<'a>>,
    messages_deleted: Vec<MessageNumber<'a>>,
    message_keys: Vec<MessageKey<'a>>,
    attributes: Vec<LocalAttribute<'a>>,
    history: Vec<HistoryEvent<'static>>,
    merged: Vec<&'a Loaded>,
    locks_new: Vec<ProcessLock<'a>>,
}

impl Closed {
    fn collect(&mut self, loaded: &Loaded) {
        let Loaded { before, execution: Execution { id, .. }, .. } = loaded;
        self.all.push(*id);
        self.family.closes(loaded);
        let has_more = loaded.has_other_threads();
        if has_more {
            self.with_threads.push(*id);
        }
        let waits = |state: &Arc<StateExecution>| state.status() == StateStatus::Waiting;
        // A child may have a timer of its parent's.
        let may_have_timer = before.parent.is_some() || before.timeout_at.or(before.pause_ends_at()).is_some();
        if has_more || may_have_timer || before.states.values().any(waits) {
            self.waiting.push(*id);
        }
        if before.queued.messages > 0 {
            self.with_messages.push(*id);
        }
        if !before.locks.is_empty() {
            self.with_locks.push(*id);
        }
    }

    fn delete_leftovers(&self, spi: &Spi, now: Timestamp) -> Result<()> {
        if !self.with_locks.is_empty() {
            process_lock::release(spi, &self.with_locks)?;
        }
        // The inbox may have a message that no transaction has read yet.
        delete_of(spi, &OF_CLOSED, &self.all)?;
        delete_of(spi, &OF_WAITING, &self.waiting)?;
        delete_of(spi, &MESSAGES, &self.with_messages)?;
        if !self.with_threads.is_empty() {
            // Loaded states are written after this.
            state::abort(spi, &self.with_threads, now)?;
        }
        self.all.iter().for_each(|id| crate::pg::wake::processes_closed_at_commit(id.0));
        Ok(())
    }
}

impl<'a> BatchChanges<'a> {
    fn collect(&mut self, loaded: &'a Loaded, calls: &TaskRules) -> Result<()> {
        let Loaded { meta, before, execution, .. } = loaded;
        let id = execution.id;
        self.updated.push(loaded);
        let closes = before.is_running() && !execution.is_running();
        if closes {
            self.closed.collect(loaded);
        }
        let is_waiting = !execution.locks.is_empty() && (!before.exists() || calls.waiting.contains(&id));
        if !before.exists() {
            self.rows.locks_new.extend(process_lock::requests(execution, meta.owner));
        }
        for (old, state) in loaded.changed_states() {
            let states = if old.is_none() { &mut self.rows.states_new } else { &mut self.rows.states_changed };
            states.push(State::of(id, meta.shard, state)?);
            if !closes {
                if !state.status().is_live() {
                    self.ended.push((id, &state.id));
                }
                self.calls_over |= old.and_then(StateExecution::current_call).is_some();
                self.collect_task(meta, execution, (old, state), is_waiting, calls);
                self.rows.collect_waits(meta, id, old, state);
            }
        }
        if !closes {
            if !before.exists()
                && let Some(at) = execution.timeout_at
            {
                self.rows.timers_new.push(Timer::of_process(id, meta.shard, meta.owner, at));
            }
            self.rows.collect_messages(loaded, calls.now);
        }
        if before.pause != execution.pause {
            self.paused.push(execution);
            if !closes {
                self.collect_pause(loaded);
            }
        }
        let has_changed =
            (before.waiting_guards, &before.compensation) != (execution.waiting_guards, &execution.compensation);
        if before.exists() && has_changed {
            self.guarded.push(execution);
        }
        self.global.collect(loaded, closes, calls.now);
        self.rows.collect_events(loaded, closes);
        changes::collect(&mut self.changes, loaded);
        if let HistoryPolicy::KeepLast(keep) = meta.history
            && before.exists()
        {
            let cut = history_cut(keep, before.next_event, execution.next_event);
            self.history_cuts.extend(cut.map(|up_to| (id, up_to)));
        }
        Ok(())
    }

    /// A state at a call has exactly one task. With an incident it has none, because the call is not made. The engine
    /// has nothing to do for a pull worker's call. While the process waits for its locks, the call is parked.
    fn collect_task(
        &mut self,
        meta: &Meta,
        execution: &Execution,
        (old, state): (Option<&StateExecution>, &StateExecution),
        is_waiting: bool,
        calls: &TaskRules,
    ) {
        let key = (execution.id, state.seq);
        let (had, has) = (old.and_then(StateExecution::open_call), state.open_call());
        let Some((api, call)) = has else {
            if had.is_some() {
                self.rows.tasks_deleted.push(key);
            }
            return;
        };
        let mut row = Task::of(execution, state.seq, meta.shard, meta.owner, api, call.not_before);
        // A process type that is not registered has no worker. Its tasks wait until it is registered again.
        let registered = meta.process_type.as_deref().map(ProcessType::facts);
        let maker = Facts::new(execution, CallOf::State(state, api), registered, calls.now).maker();
        row.worker_id = meta.worker_of(maker);
        row.lane = match maker {
            _ if is_waiting => PARKED_LANE,
            Maker::Function => RUNNERS_LANE,
            _ => (calls.lane)(meta),
        };
        row.attempt = call.failed_attempts;
        if let Some(lease) = calls.leases.get(&key) {
            row.begin(*lease, calls.now);
        }
        let due_at = call.not_before;
        if is_waiting {
            // The grant resumes it.
        } else if let Some(worker) = meta.pulled_by().filter(|worker| *worker == row.worker_id) {
            self.pulled.push((worker, NewCall { shard: meta.shard, is_due: due_at <= calls.now }, key));
        } else if row.lease_until.is_none() {
            self.earliest_call = self.earliest_call.into_iter().chain([due_at]).min();
        }
        match had {
            None => self.rows.tasks_new.push(row),
            Some(_) => self.rows.tasks_changed.push(row),
        }
    }

    fn collect_pause(&mut self, Loaded { meta, before, execution, .. }: &'a Loaded) {
        if before.pause_ends_at().is_some() {
            let key = TimerKey { execution_id: execution.id, seq: StateSeq(0), command: timer::OF_PAUSE };
            self.rows.timers_deleted.push(key);
        }
        let timer = |at| Timer::of_pause(execution.id, meta.shard, meta.owner, at);
        self.rows.timers_new.extend(execution.pause_ends_at().map(timer));
        if execution.pause.is_none() {
            self.resumed.push(execution.id);
            self.pulling.extend(meta.pulled_by());
        }
    }

    /// When the engine next has something to do.
    fn earliest(&self) -> Option<Timestamp> {
        let timers = self.rows.timers_new.iter().map(|timer| timer.fire_at);
        self.earliest_call.into_iter().chain(timers).min()
    }

    /// Returns the owners of children that are to be stopped.
    fn write(&self, spi: &Spi, now: Timestamp) -> Result<Vec<pg_sys::Oid>> {
        let rows = &self.rows;
        execution::write(spi, &self.updated)?;
        execution::write_pauses(spi, &self.paused)?;
        execution::write_guards(spi, &self.guarded)?;
        self.closed.delete_leftovers(spi, now)?;
        let stopped = self.closed.family.follow(spi, now)?;
        self.wake_waiters();
        for (worker, call, (id, seq)) in &self.pulled {
            crate::pg::wake::new_call_at_commit(*worker, *call, (id.0, seq.0));
        }
        self.pulling.iter().for_each(|worker| crate::pg::wake::call_worker_at_commit(*worker));
        run(spi, &state::INSERT, &rows.states_new)?;
        run_but(spi, &state::UPDATE, &rows.states_changed, state::UNCHANGING)?;
        crash::point(if is_engine() { "turn-save" } else { "caller-save" });
        run(spi, &claim::DELETE, &rows.tasks_deleted)?;
        run_but(spi, &claim::UPDATE, &rows.tasks_changed, claim::NOT_DECIDED)?;
        run_but(spi, &claim::INSERT, &rows.tasks_new, claim::NOT_DECIDED)?;
        parked::resume(spi, &self.resumed)?;
        process_lock::insert_requests(spi, &rows.locks_new)?;
        run(spi, &timer::DELETE, &rows.timers_deleted)?;
        run(spi, &timer::INSERT, &rows.timers_new)?;
        run(spi, &queue::OLD_WAITERS, &rows.waiters_deleted)?;
        run(spi, &queue::NEW_WAITERS, &rows.waiters_new)?;
        run(spi, &queue::DELETE, &rows.messages_deleted)?;
        run(spi, &queue::INSERT, &rows.messages_new)?;
        run(spi, &inbox::KEYS, &rows.message_keys)?;
        self.global.write(spi, now)?;
        changes::publish(spi, &self.changes)?;
        run(spi, &attribute::WRITE, &rows.attributes)?;
        run(spi, &history::INSERT, &rows.history)?;
        correlated::write(spi, &self.rows.merged)?;
        self.history_cuts.iter().try_for_each(|(id, up_to)| history::cut(spi, *id, *up_to))?;
        Ok(stopped)
    }

    /// Wakes up sessions that wait for the end of a state. The close of a process wakes up sessions that wait for its
    /// states.
    fn wake_waiters(&self) {
        for (id, state) in &self.ended {
            crate::pg::wake::state_ended_at_commit(id.0, &state.to_string());
        }
        // RPCs wait for the end of a pause.
        self.resumed.iter().for_each(|id| crate::pg::wake::processes_closed_at_commit(id.0));
    }
}

/// Whether a queue has the message with this number. Its messages are in the order of their numbers.
fn is_in(queue: Option<&VecDeque<Arc<Message>>>, number: u64) -> bool {
    queue.is_some_and(|messages| messages.binary_search_by_key(&number, |message| message.number).is_ok())
}

impl<'a> Rows<'a> {
    fn collect_waits(&mut self, meta: &Meta, id: ExecutionId, old: Option<&StateExecution>, state: &'a StateExecution) {
        let seq = state.seq;
        let timers_of = |state: &StateExecution| state.open_timers().collect::<BTreeMap<_, _>>();
        let (timers_before, timers_now) = (old.map(timers_of).unwrap_or_default(), timers_of(state));
        for (command, at) in &timers_now {
            if !timers_before.contains_key(command) {
                self.timers_new.push(Timer::of_command((id, seq), *command, meta.shard, meta.owner, *at));
            }
        }
        for command in timers_before.into_keys().filter(|command| !timers_now.contains_key(command)) {
            self.timers_deleted.push(TimerKey { execution_id: id, seq, command });
        }
        let had_waits = old.is_some_and(|old| open_queues(old).next().is_some());
        if had_waits {
            self.waiters_deleted.push((id, seq));
        }
        // Two commands may wait for the same queue.
        let queues: BTreeSet<_> = open_queues(state).collect();
        self.waiters_new.extend(queues.into_iter().map(|(queue_name, wait_order)| QueueWaiter {
            execution_id: id,
            queue_name,
            wait_order,
            seq,
        }));
    }

    fn collect_messages(&mut self, loaded: &'a Loaded, now: Timestamp) {
        let Loaded { meta, before, execution, events, .. } = loaded;
        let execution_id = execution.id;
        // Messages leave a queue from its head. Those of an aborted step go back, so that the head says nothing. One
        // that was taken and went back at once is written again, as one that went back later.
        let went_back = loaded.aborted().next().is_some();
        let taken = events.iter().filter(|_| went_back).filter_map(|(event, _)| match event {
            Event::CommandCompleted { messages, .. } => Some(messages),
            _ => None,
        });
        let taken: BTreeSet<_> = taken.flatten().copied().collect();
        let stays = |queue, number| is_in(queue, number) && !taken.contains(&number);
        for (queue_name, messages) in &before.queues {
            let now_queued = execution.queues.get(queue_name);
            let kept = now_queued.and_then(|m| m.front()).map_or(u64::MAX, |m| m.number);
            let numbers = messages.iter().map(|message| message.number);
            let consumed =
                numbers.filter(|number| if went_back { !stays(now_queued, *number) } else { *number < kept });
            self.messages_deleted.extend(consumed.map(|number| MessageNumber { execution_id, queue_name, number }));
        }
        for (queue_name, messages) in &execution.queues {
            let is_new =
                |number| number >= before.next_message || went_back && !stays(before.queues.get(queue_name), number);
            let new = messages.iter().filter(|message| is_new(message.number));
            self.messages_new.extend(new.map(|message| QueueMessage::of(execution_id, meta.shard, message, now)));
        }
    }

    fn collect_events(&mut self, loaded: &'a Loaded, closes: bool) {
        let Loaded { meta, before, execution, events, .. } = loaded;
        let execution_id = execution.id;
        let mut attributes = BTreeMap::new();
        let mut event_id = before.next_event;
        for (event, event_time) in events {
            match event {
                Event::LocalAttributesWritten { attributes: written } => attributes.extend(written),
                Event::MessagesReceived { publisher, messages } if *publisher != Publisher::Client && !closes => {
                    let key = |message: &'a Message| {
                        let message_id = message.message_id.as_deref()?;
                        Some(MessageKey { execution_id, queue_name: &message.queue, message_id })
                    };
                    self.message_keys.extend(messages.iter().filter_map(key));
                }
                Event::StartMerged { .. } => self.merged.push(loaded),
                _ => {}
            }
            if event.is_recorded() {
                if meta.history.keeps_events() {
                    let (event_type, details) = event.to_parts();
                    let details = Jsonb(details.into());
                    self.history.push(HistoryEvent {
                        execution_id,
                        event_id,
                        event_time: *event_time,
                        event_type,
                        details,
                    });
                }
                event_id += 1;
            }
        }
        self.attributes.extend(attributes.into_iter().map(|(key, value)| LocalAttribute {
            execution_id,
            key,
            value: value.into(),
        }));
    }

    fn earliest_timers(&self) -> BTreeMap<Owner, Timestamp> {
        let mut earliest = BTreeMap::new();
        for timer in &self.timers_new {
            let first = earliest.entry(timer.line()).or_insert(timer.fire_at);
            *first = timer.fire_at.min(*first);
        }
        earliest
    }
}
