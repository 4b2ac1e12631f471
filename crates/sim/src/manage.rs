//! Commands of callers to running processes: messages, stops, attributes, timers, retries. Also direct changes of rows,
//! as with SQL.

use crate::line::Given;
use crate::tables::TableRow;
use crate::{CalledFunction, LIMITS, Result, Simulator};
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::arguments::{key_text, move_to, payloads, positive, state_execution_id, stop};
use xdb_protocol::refusal::{self, invalid_argument};

impl Simulator {
    /// Publishes a message to a local queue.
    pub(crate) fn publish(&mut self, given: &mut Given) -> Result<()> {
        let (queue, payload) = (given.name("queue_name")?, given.payload("message")?);
        let message_id = given.name_if_given("message_id")?;
        let id = self.running_process(given)?;
        let run = self.run(id);
        self.refuse_message(run)?;
        let definition = self.definition(run);
        if !definition.knows_queue(&queue) {
            return Err(refusal::unknown_queue(&queue, &definition.listed_queues()));
        }
        self.command(id, &Command::MessagesArrived(vec![Publish { queue, message_id, payload }])).map(drop)
    }

    /// Publishes a message to a global queue.
    pub(crate) fn publish_global(&mut self, given: &mut Given) -> Result<()> {
        let (queue, payload) = (given.name("queue_name")?, given.payload("message")?);
        let (key, message_id) = (given.name_if_given("key")?, given.name_if_given("message_id")?);
        let expires_at = positive("ttl", given.length("ttl")?)?.map(|ttl| self.now + ttl);
        given.end()?;
        self.queues.publish(&PublishedGlobally { queue, key, message_id, payload, expires_at }, self.now);
        self.ask_waiting();
        Ok(())
    }

    pub(crate) fn stop(&mut self, given: &mut Given) -> Result<()> {
        let stop_type = given.take("stop_type")?.unwrap_or_else(|| StopType::Terminate.to_string());
        let stop = stop(Some(stop_type), given.take("reason")?)?;
        let id = self.process(given)?;
        self.command(id, &stop).map(drop)
    }

    pub(crate) fn set_local_attributes(&mut self, given: &mut Given) -> Result<()> {
        let attributes: Json = given.needed("attributes")?;
        let attributes = payloads("attributes", Some(attributes.as_str()), LIMITS.max_payload_bytes)?;
        let id = self.process(given)?;
        self.command(id, &Command::SetLocalAttributes(attributes)).map(drop)
    }

    /// Local attributes of a process: the named ones, or all.
    pub(crate) fn local_attributes(&self, given: &mut Given) -> Result<BTreeMap<String, Json>> {
        let keys: Option<Vec<String>> = given.take("keys")?;
        let mut attributes = self.run(self.process(given)?).execution.local_attributes.clone();
        attributes.retain(|key, _| keys.as_ref().is_none_or(|keys| keys.contains(key)));
        Ok(attributes)
    }

    /// Completes a timer command at once.
    pub(crate) fn skip_timer(&mut self, given: &mut Given) -> Result<()> {
        let state = state_execution_id(given.take("state_execution_id")?)?;
        let command_id = given.name_if_given("command_id")?;
        let id = self.running_process(given)?;
        self.command(id, &Command::SkipTimer { seq: self.seq(id, &state)?, command_id }).map(drop)
    }

    /// Makes calls in backoff due at once, and resolves incidents. Returns how many.
    pub(crate) fn retry_now(&mut self, given: &mut Given) -> Result<usize> {
        let state = given.take("state_execution_id")?.map(|state| state_execution_id(Some(state))).transpose()?;
        let id = self.running_process(given)?;
        let states = match &state {
            Some(state) => vec![self.seq(id, state)?],
            None => self.run(id).execution.states.keys().copied().collect(),
        };
        self.command(id, &Command::RetryNow(states))
    }

    /// Ends a live step, and starts these states in its place.
    pub(crate) fn move_state(&mut self, given: &mut Given) -> Result<()> {
        let state = state_execution_id(given.take("state_execution_id")?)?;
        let next: Json = given.needed("next_states")?;
        let (next, reason) = move_to(Some(next.as_str().to_owned()), given.take("reason")?, &LIMITS)?;
        let id = self.running_process(given)?;
        let seq = self.seq(id, &state)?;
        if !self.run(id).execution.states.get(&seq).is_some_and(|state| state.status().is_live()) {
            return Err(refusal::unknown_state_execution(&state));
        }
        self.command(id, &Command::MoveState { seq, next, reason }).map(drop)
    }

    fn running_process(&self, given: &mut Given) -> Result<ExecutionId> {
        let id = self.process(given)?;
        match &self.run(id).execution {
            execution if execution.is_running() => Ok(id),
            Execution { process_id, status, .. } => Err(refusal::rejected(process_id, &Rejection::NotRunning(*status))),
        }
    }

    fn seq(&self, id: ExecutionId, state: &StateExecutionId) -> Result<StateSeq> {
        let found = self.run(id).execution.states.values().find(|found| found.id == *state);
        found.map(|found| found.seq).ok_or_else(|| refusal::unknown_state_execution(state))
    }

    /// Writes or deletes a row, as with SQL. Returns the rows with this key, or all rows if no key is given.
    pub(crate) fn rows(&mut self, given: &mut Given) -> Result<Vec<TableRow>> {
        let (table, key, set) = (given.name("table")?, given.payloads("key")?, given.payloads("set")?);
        let deletes: bool = given.take("delete")?.unwrap_or_default();
        given.end()?;
        if key.is_empty() && (deletes || !set.is_empty()) {
            return Err(invalid_argument("key", "it is needed to write or delete a row"));
        }
        let values: Vec<_> = key.values().map(key_text).collect();
        let columns: Vec<_> = key.into_keys().collect();
        if deletes {
            self.tables.delete(&table, &columns, &values);
        } else if !set.is_empty() {
            self.tables.put(&table, &columns, &values, set);
        }
        Ok(self.tables.rows(&table, &columns, &values).cloned().collect())
    }

    /// Records the function calls of an applied answer or start. Nothing is called, because the simulator has no
    /// functions.
    pub(crate) fn call_functions(&mut self, id: ExecutionId, calls: &[FunctionCall]) {
        let process_id = &self.runs[&id].execution.process_id;
        let called = |call: &FunctionCall| CalledFunction { process_id: process_id.clone(), call: call.clone() };
        self.called.extend(calls.iter().map(called));
    }
}
