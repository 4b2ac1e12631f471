//! Writes what became of executions: the difference between what was loaded and what is now, one array statement
//! per table, whatever the size of the batch.

mod lease;
mod phases;
mod state_json;

use super::load::{Loaded, Meta};
use super::{StateKey, global, history, locks, to_json};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::param::{array, column, column_of_nullable};
use crate::pg::process;
use crate::pg::spi::Spi;
pub use lease::Lease;
pub use phases::current_call;
pub(super) use phases::{open_queues, open_timers, phase_parts};
use state_json::StateJson;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use xdb_engine::*;
use xdb_sched::lock_table::Object;

/// Saves a batch. `leases` names the calls that this scheduler makes itself, at once.
pub fn save<'a>(
    spi: &Spi,
    batch: impl Iterator<Item = &'a Loaded>,
    leases: &HashMap<StateKey, Lease>,
    lane: &dyn Fn(&Meta) -> i16,
    now: Timestamp,
) -> Result<()> {
    let saved = save_and_release(spi, batch, leases, lane, true, now)?;
    saved.earliest.into_iter().for_each(|due| crate::pg::wake::due_at_commit(due.0));
    locks::tell_released(spi, &saved.released)
}

/// What a scheduler has to know of a batch that it saved.
#[derive(Debug, Default)]
pub struct Saved {
    /// What its calls had locked or waited for.
    pub released: Vec<Object>,
    /// The earliest due time of the calls without a lease and the timers that were written.
    pub earliest: Option<Timestamp>,
}

/// Saves a batch, and leaves it to the caller to hand on what its calls had locked, and to look at what is due. `any_locks`: there
/// are locks, which its calls may have.
pub fn save_and_release<'a>(
    spi: &Spi,
    batch: impl Iterator<Item = &'a Loaded>,
    leases: &HashMap<StateKey, Lease>,
    lane: &dyn Fn(&Meta) -> i16,
    any_locks: bool,
    now: Timestamp,
) -> Result<Saved> {
    let mut changes = Changes::default();
    for loaded in batch {
        changes.collect(loaded, leases, lane);
    }
    let released = changes.write(spi, any_locks, now)?;
    Ok(Saved { released, earliest: changes.earliest() })
}

/// Columns of the rows to write, gathered over the batch.
#[derive(Default)]
struct Changes<'a> {
    updated: Vec<&'a Loaded>,
    closed: Vec<ExecutionId>,
    /// Those of them with live states that were not loaded.
    closed_with_threads: Vec<ExecutionId>,
    /// Those of them that may have timers, or states that wait.
    closed_waiting: Vec<ExecutionId>,
    /// Those of them that have received messages.
    closed_with_messages: Vec<ExecutionId>,
    ended: Vec<(ExecutionId, &'a StateExecutionId)>,
    states_new: Vec<(&'a Meta, ExecutionId, &'a StateExecution)>,
    states_changed: Vec<(&'a Meta, ExecutionId, &'a StateExecution)>,
    tasks_new: Vec<TaskRow>,
    tasks_changed: Vec<TaskRow>,
    tasks_gone: Vec<StateKey>,
    /// Calls that were made, or waited to be made, and are over or begin anew: their locks go.
    calls_over: Vec<StateKey>,
    timers_new: Vec<(ExecutionId, u32, u32, i16, Timestamp)>,
    timers_gone: Vec<(ExecutionId, u32, u32)>,
    waiters_new: Vec<(ExecutionId, &'a str, u64, u32)>,
    waiters_gone: Vec<StateKey>,
    messages_new: Vec<(&'a Meta, ExecutionId, &'a Message)>,
    messages_gone: Vec<(ExecutionId, &'a str, u64)>,
    message_ids: Vec<(ExecutionId, &'a str, &'a str)>,
    global: global::Changes<'a>,
    attributes: Vec<(ExecutionId, &'a str, &'a Json)>,
    history: Vec<(ExecutionId, u64, Timestamp, &'static str, String)>,
    history_cuts: Vec<(ExecutionId, u64)>,
}

struct TaskRow {
    key: StateKey,
    shard: i16,
    lane: i16,
    worker_id: i32,
    api: Api,
    due_at: Timestamp,
    attempt: u32,
    fresh: bool,
    lease: Option<Lease>,
}

impl<'a> Changes<'a> {
    fn collect(&mut self, loaded: &'a Loaded, leases: &HashMap<StateKey, Lease>, lane: &dyn Fn(&Meta) -> i16) {
        let Loaded { meta, before, execution, events, .. } = loaded;
        let id = execution.id;
        self.updated.push(loaded);
        let closes = before.is_running() && !execution.is_running();
        if closes {
            self.closed.push(id);
            let has_more = loaded.has_other_threads();
            if has_more {
                self.closed_with_threads.push(id);
            }
            let waits = |state: &Arc<StateExecution>| state.status() == StateStatus::Waiting;
            if has_more || before.timeout_at.is_some() || before.states.values().any(waits) {
                self.closed_waiting.push(id);
            }
            if before.next_message > 1 {
                self.closed_with_messages.push(id);
            }
        }
        for (old, state) in loaded.changed_states() {
            match old {
                None => self.states_new.push((meta, id, state)),
                Some(_) => self.states_changed.push((meta, id, state)),
            }
            if !closes {
                if !state.status().is_live() {
                    self.ended.push((id, &state.id));
                }
                self.collect_task(meta, id, old, state, leases, lane);
                self.collect_waits(meta, id, old, state);
            }
        }
        if !before.exists()
            && let Some(at) = execution.timeout_at
            && !closes
        {
            self.timers_new.push((id, 0, 0, meta.shard, at));
        }
        if !closes {
            self.collect_messages(meta, before, execution);
        }
        self.global.collect(loaded, closes);
        let mut attributes = BTreeMap::new();
        let mut number = before.next_event;
        for (event, at) in events {
            match event {
                Event::LocalAttributesWritten { attributes: written } => attributes.extend(written),
                Event::MessagesReceived { publisher, messages } if *publisher != Publisher::Client && !closes => {
                    let with_id =
                        messages.iter().filter_map(|m| Some((id, m.queue.as_str(), m.message_id.as_deref()?)));
                    self.message_ids.extend(with_id);
                }
                _ => {}
            }
            if event.is_recorded() {
                if meta.history.keeps_events() {
                    let (name, details) = event.to_parts();
                    self.history.push((id, number, *at, name, details));
                }
                number += 1;
            }
        }
        if let HistoryPolicy::KeepLast(keep) = meta.history
            && before.exists()
        {
            let cut = history_cut(keep, before.next_event, execution.next_event);
            self.history_cuts.extend(cut.map(|up_to| (id, up_to)));
        }
        self.attributes.extend(attributes.into_iter().map(|(key, value)| (id, key.as_str(), value)));
    }

    /// A state at a call has exactly one task.
    fn collect_task(
        &mut self,
        meta: &Meta,
        id: ExecutionId,
        old: Option<&StateExecution>,
        state: &StateExecution,
        leases: &HashMap<StateKey, Lease>,
        lane: &dyn Fn(&Meta) -> i16,
    ) {
        let key = (id, state.seq);
        let (had, has) = (old.and_then(current_call), current_call(state));
        self.calls_over.extend(had.map(|_| key));
        let Some((api, call)) = has else {
            if had.is_some() {
                self.tasks_gone.push(key);
            }
            return;
        };
        let fresh = had.is_none_or(|(old_api, _)| old_api != api);
        let row = TaskRow {
            key,
            shard: meta.shard,
            lane: lane(meta),
            // A type that is gone has no worker; its tasks wait for nobody until it is registered again.
            worker_id: meta.process_type.as_ref().map_or(0, |t| t.worker.id),
            api,
            due_at: call.not_before,
            attempt: if fresh { 0 } else { call.failed_attempts },
            fresh,
            lease: leases.get(&key).copied(),
        };
        match had {
            None => self.tasks_new.push(row),
            Some(_) => self.tasks_changed.push(row),
        }
    }

    fn collect_waits(&mut self, meta: &Meta, id: ExecutionId, old: Option<&StateExecution>, state: &'a StateExecution) {
        let seq = state.seq.0;
        let (timers_before, timers_now) = (old.map(open_timers).unwrap_or_default(), open_timers(state));
        for (command, at) in &timers_now {
            if !timers_before.contains_key(command) {
                self.timers_new.push((id, seq, *command, meta.shard, *at));
            }
        }
        for command in timers_before.keys().filter(|command| !timers_now.contains_key(command)) {
            self.timers_gone.push((id, seq, *command));
        }
        let had_waits = old.is_some_and(|old| open_queues(old).next().is_some());
        if had_waits {
            self.waiters_gone.push((id, state.seq));
        }
        for (queue, order) in open_queues(state) {
            self.waiters_new.push((id, queue, order, seq));
        }
    }

    fn collect_messages(&mut self, meta: &'a Meta, before: &'a Execution, execution: &'a Execution) {
        let id = execution.id;
        for (queue, messages) in &before.queues {
            let kept = execution.queues.get(queue).and_then(|m| m.front()).map_or(u64::MAX, |m| m.number);
            // Messages leave a queue from its head.
            let gone = messages.iter().take_while(|m| m.number < kept).map(|m| (id, queue.as_str(), m.number));
            self.messages_gone.extend(gone);
        }
        for messages in execution.queues.values() {
            let new = messages.iter().filter(|m| m.number >= before.next_message);
            self.messages_new.extend(new.map(|m| (meta, id, m.as_ref())));
        }
    }

    fn earliest(&self) -> Option<Timestamp> {
        let tasks = self.tasks_new.iter().chain(&self.tasks_changed).filter(|task| task.lease.is_none());
        tasks.map(|task| task.due_at).chain(self.timers_new.iter().map(|timer| timer.4)).min()
    }

    fn write(&self, spi: &Spi, any_locks: bool, now: Timestamp) -> Result<Vec<Object>> {
        self.write_executions(spi)?;
        self.delete_what_closed_leaves(spi, now)?;
        self.tell_waiters();
        self.write_states(spi)?;
        crash::point(if process::is_engine() { "turn-save" } else { "caller-save" });
        self.write_tasks(spi, now)?;
        self.write_waits(spi)?;
        self.write_messages(spi, now)?;
        self.global.write(spi, now)?;
        self.write_attributes_and_history(spi)?;
        // After the tasks: a lock is touched by those alone who have its task.
        let mut released = if any_locks { locks::release(spi, &self.calls_over)? } else { Vec::new() };
        // The other lane may have locked something for such a process since it was known that there are no locks.
        if !self.closed.is_empty() {
            released.extend(locks::release_all(spi, &self.closed)?);
        }
        Ok(released)
    }

    fn write_executions(&self, spi: &Spi) -> Result<()> {
        // next_event of the loaded row is compared: a trigger of the users' tables may have changed the execution
        // in this very transaction, behind what was loaded.
        const UPDATE: &str = "UPDATE xdb.process_execution p SET status = v.status, closing = NULL, \
            closed_at = v.closed_at, reason = v.reason, next_event = v.next_event, next_state = v.next_state, \
            next_message = v.next_message, live_threads = v.live_threads, completing = v.completing, \
            state_numbers = v.state_numbers::jsonb, \
            results = CASE WHEN v.results IS NULL THEN p.results ELSE p.results || v.results::jsonb END \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::bigint[]) AS loaded_event, \
                unnest($3::text[]) AS status, unnest($4::timestamptz[]) AS closed_at, \
                unnest($5::text[]) AS reason, unnest($6::bigint[]) AS next_event, \
                unnest($7::int[]) AS next_state, unnest($8::bigint[]) AS next_message, \
                unnest($9::int[]) AS live_threads, unnest($10::bool[]) AS completing, \
                unnest($11::text[]) AS state_numbers, unnest($12::text[]) AS results) AS v \
            WHERE p.execution_id = v.execution_id AND p.next_event = v.loaded_event";
        let rows: Vec<_> = self.updated.iter().filter(|loaded| loaded.before.exists()).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let now: Vec<_> = rows.iter().map(|loaded| &loaded.execution).collect();
        let numbers = now.iter().map(|e| to_json(&e.state_numbers)).collect::<Result<Vec<_>>>()?;
        let results = now
            .iter()
            .map(|e| if e.results.is_empty() { Ok(None) } else { to_json(&e.results).map(Some) })
            .collect::<Result<Vec<_>>>()?;
        let params = [
            column(now.iter().map(|e| e.id)),
            column(rows.iter().map(|loaded| loaded.before.next_event as i64)),
            column(now.iter().map(|e| e.status.as_str())),
            column_of_nullable(now.iter().map(|e| e.closed_at)),
            column_of_nullable(now.iter().map(|e| e.reason.as_deref())),
            column(now.iter().map(|e| e.next_event as i64)),
            column(now.iter().map(|e| e.next_state as i32)),
            column(now.iter().map(|e| e.next_message as i64)),
            column(now.iter().map(|e| e.live_threads as i32)),
            column(now.iter().map(|e| e.completing)),
            column(numbers),
            column_of_nullable(results),
        ];
        match spi.run_batch(UPDATE, &params)? {
            updated if updated == rows.len() as u64 => Ok(()),
            _ => Err(PgError::internal("a process was changed by a trigger of a table that it writes")),
        }
    }

    /// Those who wait for a state of a process that closes are woken by the close.
    fn tell_waiters(&self) {
        for (id, state) in &self.ended {
            crate::pg::wake::state_ended_at_commit(id.0, &state.to_string());
        }
    }

    fn delete_what_closed_leaves(&self, spi: &Spi, now: Timestamp) -> Result<()> {
        if self.closed.is_empty() {
            return Ok(());
        }
        // A message may be in the inbox that nobody has seen.
        let leftovers = [
            (&["task", "inbox", "message_key"][..], &self.closed),
            (&["timer", "queue_waiter", "global_waiter"], &self.closed_waiting),
            (&["queue_message"], &self.closed_with_messages),
        ];
        for (tables, closed) in leftovers.into_iter().filter(|(_, closed)| !closed.is_empty()) {
            let ids = [array(closed.iter().copied())];
            for table in tables {
                spi.run(&format!("DELETE FROM xdb.{table} WHERE execution_id = ANY ($1)"), &ids)?;
            }
        }
        if !self.closed_with_threads.is_empty() {
            // States that were not loaded; what was is written after this.
            const ABORT: &str = "UPDATE xdb.state_execution SET status = 'ABORTED', ended_at = $2, \
                last_failure = COALESCE(call -> 'lastFailure', last_failure), call = NULL, wait = NULL \
                WHERE execution_id = ANY ($1) AND ended_at IS NULL";
            spi.run(ABORT, &[array(self.closed_with_threads.iter().copied()), crate::pg::param::value(now)])?;
        }
        for id in &self.closed {
            crate::pg::wake::processes_closed_at_commit(id.0);
        }
        Ok(())
    }

    fn write_states(&self, spi: &Spi) -> Result<()> {
        const INSERT: &str = "INSERT INTO xdb.state_execution (execution_id, seq, shard, state_id, number, status, \
            started_at, ended_at, input, config, recovery, call, wait, last_failure) \
            SELECT v.execution_id, v.seq, v.shard, v.state_id, v.number, v.status, v.started_at, v.ended_at, \
                v.input::jsonb, v.config::jsonb, v.recovery::jsonb, v.call::jsonb, v.wait::jsonb, \
                v.last_failure::jsonb \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
                unnest($3::smallint[]) AS shard, unnest($4::text[]) AS state_id, \
                unnest($5::int[]) AS number, unnest($6::text[]) AS status, \
                unnest($7::timestamptz[]) AS started_at, unnest($8::timestamptz[]) AS ended_at, \
                unnest($9::text[]) AS input, unnest($10::text[]) AS config, unnest($11::text[]) AS recovery, \
                unnest($12::text[]) AS call, unnest($13::text[]) AS wait, unnest($14::text[]) AS last_failure) AS v";
        const UPDATE: &str = "UPDATE xdb.state_execution s SET status = v.status, ended_at = v.ended_at, \
            call = v.call::jsonb, wait = v.wait::jsonb, last_failure = v.last_failure::jsonb \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
                unnest($3::text[]) AS status, unnest($4::timestamptz[]) AS ended_at, \
                unnest($5::text[]) AS call, unnest($6::text[]) AS wait, unnest($7::text[]) AS last_failure) AS v \
            WHERE s.execution_id = v.execution_id AND s.seq = v.seq";
        if !self.states_new.is_empty() {
            let rows = &self.states_new;
            let parts = rows.iter().map(|(_, _, state)| StateJson::of(state)).collect::<Result<Vec<_>>>()?;
            let params = [
                column(rows.iter().map(|r| r.1)),
                column(rows.iter().map(|r| r.2.seq.0 as i32)),
                column(rows.iter().map(|r| r.0.shard)),
                column(rows.iter().map(|r| r.2.id.state_id.as_str())),
                column(rows.iter().map(|r| r.2.id.number as i32)),
                column(rows.iter().map(|r| r.2.status().as_str())),
                column(rows.iter().map(|r| r.2.started_at)),
                column_of_nullable(rows.iter().map(|r| r.2.ended_at)),
                column_of_nullable(rows.iter().map(|r| r.2.input.as_ref().map(Json::as_str))),
                column_of_nullable(parts.iter().map(|p| p.config.as_deref())),
                column_of_nullable(parts.iter().map(|p| p.recovery.as_deref())),
                column_of_nullable(parts.iter().map(|p| p.call.as_deref())),
                column_of_nullable(parts.iter().map(|p| p.wait.as_deref())),
                column_of_nullable(parts.iter().map(|p| p.last_failure.as_deref())),
            ];
            spi.run_batch(INSERT, &params)?;
        }
        if !self.states_changed.is_empty() {
            let rows = &self.states_changed;
            let parts = rows.iter().map(|(_, _, state)| StateJson::of(state)).collect::<Result<Vec<_>>>()?;
            let params = [
                column(rows.iter().map(|r| r.1)),
                column(rows.iter().map(|r| r.2.seq.0 as i32)),
                column(rows.iter().map(|r| r.2.status().as_str())),
                column_of_nullable(rows.iter().map(|r| r.2.ended_at)),
                column_of_nullable(parts.iter().map(|p| p.call.as_deref())),
                column_of_nullable(parts.iter().map(|p| p.wait.as_deref())),
                column_of_nullable(parts.iter().map(|p| p.last_failure.as_deref())),
            ];
            spi.run_batch(UPDATE, &params)?;
        }
        Ok(())
    }

    fn write_tasks(&self, spi: &Spi, now: Timestamp) -> Result<()> {
        const INSERT: &str = "INSERT INTO xdb.task (execution_id, seq, shard, lane, worker_id, api, due_at, attempt, \
            first_attempt_at, lease_epoch, lease_number, lease_until) \
            SELECT unnest($1::uuid[]), unnest($2::int[]), unnest($3::smallint[]), unnest($4::smallint[]), \
                unnest($5::int[]), unnest($6::text[]), unnest($7::timestamptz[]), unnest($8::int[]), \
                unnest($9::timestamptz[]), unnest($10::bigint[]), unnest($11::bigint[]), unnest($12::timestamptz[])";
        const UPDATE: &str = "UPDATE xdb.task t SET lane = v.lane, worker_id = v.worker_id, api = v.api, \
            due_at = v.due_at, attempt = v.attempt, \
            first_attempt_at = CASE WHEN v.fresh THEN v.first_attempt_at ELSE t.first_attempt_at END, \
            lease_epoch = v.lease_epoch, lease_number = v.lease_number, lease_until = v.lease_until \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
                unnest($3::smallint[]) AS shard, unnest($4::smallint[]) AS lane, \
                unnest($5::int[]) AS worker_id, unnest($6::text[]) AS api, \
                unnest($7::timestamptz[]) AS due_at, unnest($8::int[]) AS attempt, \
                unnest($9::timestamptz[]) AS first_attempt_at, unnest($10::bigint[]) AS lease_epoch, \
                unnest($11::bigint[]) AS lease_number, unnest($12::timestamptz[]) AS lease_until, \
                unnest($13::bool[]) AS fresh) AS v \
            WHERE t.execution_id = v.execution_id AND t.seq = v.seq";
        const DELETE: &str = "DELETE FROM xdb.task t \
            USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
            WHERE t.execution_id = k.execution_id AND t.seq = k.seq";
        let columns = |rows: &[TaskRow]| {
            // A leased call is about to be made: its attempt has begun.
            let begun = |row: &TaskRow| if row.lease.is_some() { 1 } else { 0 };
            vec![
                column(rows.iter().map(|r| r.key.0)),
                column(rows.iter().map(|r| r.key.1.0 as i32)),
                column(rows.iter().map(|r| r.shard)),
                column(rows.iter().map(|r| r.lane)),
                column(rows.iter().map(|r| r.worker_id)),
                column(rows.iter().map(|r| r.api.as_str())),
                column(rows.iter().map(|r| r.due_at)),
                column(rows.iter().map(|r| r.attempt as i32 + begun(r))),
                column_of_nullable(rows.iter().map(|r| r.lease.map(|_| now))),
                column(rows.iter().map(|r| r.lease.map_or(0, |l| l.epoch))),
                column(rows.iter().map(|r| r.lease.map_or(0, |l| l.number))),
                column_of_nullable(rows.iter().map(|r| r.lease.map(|l| l.until))),
            ]
        };
        if !self.tasks_gone.is_empty() {
            let keys = &self.tasks_gone;
            spi.run_batch(DELETE, &[column(keys.iter().map(|k| k.0)), column(keys.iter().map(|k| k.1.0 as i32))])?;
        }
        if !self.tasks_changed.is_empty() {
            let mut params = columns(&self.tasks_changed);
            params.push(column(self.tasks_changed.iter().map(|r| r.fresh)));
            spi.run_batch(UPDATE, &params)?;
        }
        if !self.tasks_new.is_empty() {
            spi.run_batch(INSERT, &columns(&self.tasks_new))?;
        }
        Ok(())
    }

    fn write_waits(&self, spi: &Spi) -> Result<()> {
        const NEW_TIMERS: &str = "INSERT INTO xdb.timer (execution_id, seq, command, shard, kind, fire_at) \
            SELECT v.execution_id, v.seq, v.command, v.shard, \
                CASE v.seq WHEN 0 THEN 'PROCESS_TIMEOUT' ELSE 'TIMER_COMMAND' END, v.fire_at \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
                unnest($3::int[]) AS command, unnest($4::smallint[]) AS shard, \
                unnest($5::timestamptz[]) AS fire_at) AS v";
        const OLD_TIMERS: &str = "DELETE FROM xdb.timer t \
            USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq, \
                unnest($3::int[]) AS command) AS k \
            WHERE t.execution_id = k.execution_id AND t.seq = k.seq AND t.command = k.command";
        const NEW_WAITERS: &str = "INSERT INTO xdb.queue_waiter (execution_id, queue_name, wait_order, seq) \
            SELECT DISTINCT unnest($1::uuid[]), unnest($2::text[]), unnest($3::bigint[]), unnest($4::int[])";
        const OLD_WAITERS: &str = "DELETE FROM xdb.queue_waiter w \
            USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int[]) AS seq) AS k \
            WHERE w.execution_id = k.execution_id AND w.seq = k.seq";
        if !self.timers_gone.is_empty() {
            let rows = &self.timers_gone;
            let params = [
                column(rows.iter().map(|r| r.0)),
                column(rows.iter().map(|r| r.1 as i32)),
                column(rows.iter().map(|r| r.2 as i32)),
            ];
            spi.run_batch(OLD_TIMERS, &params)?;
        }
        if !self.timers_new.is_empty() {
            let rows = &self.timers_new;
            let params = [
                column(rows.iter().map(|r| r.0)),
                column(rows.iter().map(|r| r.1 as i32)),
                column(rows.iter().map(|r| r.2 as i32)),
                column(rows.iter().map(|r| r.3)),
                column(rows.iter().map(|r| r.4)),
            ];
            spi.run_batch(NEW_TIMERS, &params)?;
        }
        if !self.waiters_gone.is_empty() {
            let rows = &self.waiters_gone;
            spi.run_batch(OLD_WAITERS, &[column(rows.iter().map(|r| r.0)), column(rows.iter().map(|r| r.1.0 as i32))])?;
        }
        if !self.waiters_new.is_empty() {
            let rows = &self.waiters_new;
            let params = [
                column(rows.iter().map(|r| r.0)),
                column(rows.iter().map(|r| r.1)),
                column(rows.iter().map(|r| r.2 as i64)),
                column(rows.iter().map(|r| r.3 as i32)),
            ];
            spi.run_batch(NEW_WAITERS, &params)?;
        }
        Ok(())
    }

    fn write_messages(&self, spi: &Spi, now: Timestamp) -> Result<()> {
        const DELETE: &str = "DELETE FROM xdb.queue_message m \
            USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, \
                unnest($3::bigint[]) AS number) AS k \
            WHERE m.execution_id = k.execution_id AND m.queue_name = k.queue_name AND m.number = k.number";
        const INSERT: &str = "INSERT INTO xdb.queue_message \
            (execution_id, queue_name, number, shard, message_id, payload, received_at) \
            SELECT v.execution_id, v.queue_name, v.number, v.shard, v.message_id, v.payload::jsonb, $7 \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, \
                unnest($3::bigint[]) AS number, unnest($4::smallint[]) AS shard, \
                unnest($5::text[]) AS message_id, unnest($6::text[]) AS payload) AS v";
        const KEYS: &str = "INSERT INTO xdb.message_key (execution_id, queue_name, message_id) \
            SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[])";
        if !self.messages_gone.is_empty() {
            let rows = &self.messages_gone;
            let params = [
                column(rows.iter().map(|r| r.0)),
                column(rows.iter().map(|r| r.1)),
                column(rows.iter().map(|r| r.2 as i64)),
            ];
            spi.run_batch(DELETE, &params)?;
        }
        if !self.messages_new.is_empty() {
            let rows = &self.messages_new;
            let params = [
                column(rows.iter().map(|r| r.1)),
                column(rows.iter().map(|r| r.2.queue.as_str())),
                column(rows.iter().map(|r| r.2.number as i64)),
                column(rows.iter().map(|r| r.0.shard)),
                column_of_nullable(rows.iter().map(|r| r.2.message_id.as_deref())),
                column_of_nullable(rows.iter().map(|r| r.2.payload.as_ref().map(Json::as_str))),
                crate::pg::param::value(now),
            ];
            spi.run_batch(INSERT, &params)?;
        }
        if !self.message_ids.is_empty() {
            let rows = &self.message_ids;
            let params =
                [column(rows.iter().map(|r| r.0)), column(rows.iter().map(|r| r.1)), column(rows.iter().map(|r| r.2))];
            spi.run_batch(KEYS, &params)?;
        }
        Ok(())
    }

    fn write_attributes_and_history(&self, spi: &Spi) -> Result<()> {
        const ATTRIBUTES: &str = "INSERT INTO xdb.local_attribute (execution_id, key, value) \
            SELECT v.execution_id, v.key, v.value::jsonb \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS key, \
                unnest($3::text[]) AS value) AS v \
            ON CONFLICT (execution_id, key) DO UPDATE SET value = excluded.value";
        const HISTORY: &str = "INSERT INTO xdb.history_event (execution_id, event_id, event_time, event_type, details) \
            SELECT v.execution_id, v.event_id, v.event_time, v.event_type, v.details::jsonb \
            FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::bigint[]) AS event_id, \
                unnest($3::timestamptz[]) AS event_time, unnest($4::text[]) AS event_type, \
                unnest($5::text[]) AS details) AS v";
        if !self.attributes.is_empty() {
            let rows = &self.attributes;
            let params = [
                column(rows.iter().map(|r| r.0)),
                column(rows.iter().map(|r| r.1)),
                column(rows.iter().map(|r| r.2.as_str())),
            ];
            spi.run_batch(ATTRIBUTES, &params)?;
        }
        if !self.history.is_empty() {
            let rows = &self.history;
            let params = [
                column(rows.iter().map(|r| r.0)),
                column(rows.iter().map(|r| r.1 as i64)),
                column(rows.iter().map(|r| r.2)),
                column(rows.iter().map(|r| r.3)),
                column(rows.iter().map(|r| r.4.as_str())),
            ];
            spi.run_batch(HISTORY, &params)?;
        }
        self.history_cuts.iter().try_for_each(|(id, up_to)| history::cut(spi, *id, *up_to))
    }
}
