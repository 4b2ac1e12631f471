//! What callers do to processes that run: messages, stops, and help for what is stuck; and rows, as plain SQL changes them.

use crate::tables::Row;
use crate::{
    LIMITS, PublishArguments, PublishGlobalArguments, Result, RetryNowArguments, RowsArguments,
    SetLocalAttributesArguments, Simulator, SkipTimerArguments, StopArguments,
};
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::arguments::{key_text, name, name_if_given, needed, payload, payloads, state_execution_id, stop};
use xdb_protocol::refusal;

impl Simulator {
    /// Sends a message to a local queue.
    pub fn publish(&mut self, arguments: PublishArguments) -> Result<()> {
        let process_id = name("process_id", arguments.process_id)?;
        let queue = name("queue_name", arguments.queue_name)?;
        let message = arguments.message.as_ref().map(Json::as_str);
        let payload = payload("message", message, LIMITS.max_payload_bytes)?;
        let message_id = name_if_given("message_id", arguments.message_id)?;
        let id = self.find(&process_id, arguments.execution_id.as_deref())?;
        let run = self.run(id);
        if !run.execution.is_running() {
            return Err(refusal::rejected(&process_id, &Rejection::NotRunning(run.execution.status)));
        }
        self.refuse_message(run)?;
        if !self.definition(run).knows_queue(&queue) {
            return Err(refusal::unknown_queue(&queue, &self.definition(run).listed_queues()));
        }
        let arrived = Command::MessagesArrived(vec![Publish { queue, message_id, payload }]);
        self.command(&process_id, id, &arrived).map(drop)
    }

    /// Sends a message to a global queue.
    pub fn publish_global(&mut self, arguments: PublishGlobalArguments) -> Result<()> {
        let queue = name("queue_name", arguments.queue_name)?;
        let message = arguments.message.as_ref().map(Json::as_str);
        let payload = payload("message", message, LIMITS.max_payload_bytes)?;
        let key = name_if_given("key", arguments.key)?;
        let message_id = name_if_given("message_id", arguments.message_id)?;
        if arguments.ttl.is_some_and(|ttl| ttl <= 0.0) {
            return Err(refusal::invalid_argument("ttl", "it must be positive"));
        }
        let expires_at = arguments.ttl.map(|ttl| self.now + Duration::from_seconds(ttl));
        self.queues.publish(&PublishedGlobally { queue, key, message_id, payload, expires_at }, self.now);
        self.ask_waiting();
        Ok(())
    }

    /// Stops a process.
    pub fn stop(&mut self, arguments: StopArguments) -> Result<()> {
        let process_id = name("process_id", arguments.process_id)?;
        let stop_type = arguments.stop_type.or_else(|| Some(StopType::Terminate.to_string()));
        let stop = stop(stop_type, arguments.reason)?;
        let id = self.find(&process_id, arguments.execution_id.as_deref())?;
        self.command(&process_id, id, &stop).map(drop)
    }

    /// Writes local attributes.
    pub fn set_local_attributes(&mut self, arguments: SetLocalAttributesArguments) -> Result<()> {
        let process_id = name("process_id", arguments.process_id)?;
        let attributes = needed("attributes", arguments.attributes)?;
        let attributes = payloads("attributes", Some(attributes.as_str()), LIMITS.max_payload_bytes)?;
        let id = self.find(&process_id, arguments.execution_id.as_deref())?;
        self.command(&process_id, id, &Command::SetLocalAttributes(attributes)).map(drop)
    }

    /// Lets a timer count as completed.
    pub fn skip_timer(&mut self, arguments: SkipTimerArguments) -> Result<()> {
        let process_id = name("process_id", arguments.process_id)?;
        let state = state_execution_id(arguments.state_execution_id)?;
        let command_id = name_if_given("command_id", arguments.command_id)?;
        let id = self.find_running(&process_id, arguments.execution_id.as_deref())?;
        let seq = self.seq(id, &state)?;
        self.command(&process_id, id, &Command::SkipTimer { seq, command_id }).map(drop)
    }

    /// Makes calls that wait for their next attempt due at once, and says how many.
    pub fn retry_now(&mut self, arguments: RetryNowArguments) -> Result<usize> {
        let process_id = name("process_id", arguments.process_id)?;
        let state = arguments.state_execution_id.map(|state| state_execution_id(Some(state))).transpose()?;
        let id = self.find_running(&process_id, arguments.execution_id.as_deref())?;
        let states = match &state {
            Some(state) => vec![self.seq(id, state)?],
            None => self.run(id).execution.states.keys().copied().collect(),
        };
        self.command(&process_id, id, &Command::RetryNow(states))
    }

    /// Writes or deletes a row, as plain SQL does, and gives the rows with this key: without one, all rows of the table.
    pub fn rows(&mut self, arguments: RowsArguments) -> Result<Vec<Row>> {
        let table = name("table", arguments.table)?;
        let key = payloads("key", arguments.key.as_ref().map(Json::as_str), LIMITS.max_payload_bytes)?;
        let set = payloads("set", arguments.set.as_ref().map(Json::as_str), LIMITS.max_payload_bytes)?;
        let delete = arguments.delete.unwrap_or(false);
        if key.is_empty() && (delete || !set.is_empty()) {
            return Err(refusal::invalid_argument("key", "it is needed to write or delete a row"));
        }
        let values: Vec<_> = key.values().map(key_text).collect();
        let columns: Vec<_> = key.into_keys().collect();
        if delete {
            self.tables.delete(&table, &columns, &values);
        } else if !set.is_empty() {
            self.tables.put(&table, &columns, &values, set);
        }
        Ok(self.tables.rows(&table, &columns, &values).into_iter().cloned().collect())
    }

    /// Local attributes of a process: those with these keys, or all.
    pub fn local_attributes(
        &self,
        process_id: &str,
        keys: Option<&[String]>,
        execution: Option<&str>,
    ) -> Result<BTreeMap<String, Json>> {
        let all = &self.run(self.find(process_id, execution)?).execution.local_attributes;
        let wanted = all.iter().filter(|(key, _)| keys.is_none_or(|keys| keys.contains(key)));
        Ok(wanted.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn find_running(&self, process_id: &str, execution: Option<&str>) -> Result<ExecutionId> {
        let id = self.find(process_id, execution)?;
        let execution = &self.run(id).execution;
        match execution.is_running() {
            true => Ok(id),
            false => Err(refusal::rejected(process_id, &Rejection::NotRunning(execution.status))),
        }
    }

    fn seq(&self, id: ExecutionId, state: &StateExecutionId) -> Result<StateSeq> {
        let found = self.run(id).execution.states.values().find(|found| found.id == *state);
        found.map(|found| found.seq).ok_or_else(|| refusal::unknown_state_execution(state))
    }
}
