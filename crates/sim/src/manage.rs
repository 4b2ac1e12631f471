//! Commands of callers to running processes: messages, stops, attributes, timers, retries, pauses. Also direct changes
//! of rows, as with SQL.

use crate::given::{Given, LIMITS, Result};
use crate::run::Run;
use crate::tables::TableRow;
use crate::{CalledFunction, Simulator};
use std::collections::BTreeMap;
use xdb_calls::{Asker, CallOf, Outcome};
use xdb_engine::*;
use xdb_protocol::arguments::{self, key_text, move_to, payloads, state_execution_id, valid};
use xdb_protocol::refusal::{self, invalid_argument};

impl Simulator {
    /// Publishes a message to a local queue.
    pub(crate) fn publish(&mut self, given: &mut Given) -> Result<()> {
        let (queue, payload) = (given.name("queue_name")?, given.payload("message")?);
        let message_id = given.name_if_given("message_id")?;
        self.change(given, |simulator, run| {
            let mut pauses = simulator.facts(run, CallOf::Rpc(None)).pauses(Asker::Session);
            if let Some(paused) = pauses.find(|paused| paused.pause().rejects(simulator.now)) {
                return Err(paused.refusal(&run.execution));
            }
            let definition = simulator.definition(run);
            match definition.knows_queue(&queue) {
                true => Ok(Command::MessagesArrived(vec![Publish { queue, message_id, payload }])),
                false => Err(refusal::unknown_queue(&queue, &definition.listed_queues())),
            }
        })
        .map(drop)
    }

    /// Publishes a message to a global queue.
    pub(crate) fn publish_global(&mut self, given: &mut Given) -> Result<()> {
        let (queue, payload) = (given.name("queue_name")?, given.payload("message")?);
        let (key, message_id) = (given.name_if_given("key")?, given.name_if_given("message_id")?);
        let expires_at = valid("ttl", given.length("ttl")?, "not be negative")?.map(|ttl| self.now + ttl);
        given.end()?;
        self.queues.publish(&PublishedGlobally { queue, key, message_id, payload, expires_at }, self.now);
        self.serve_waiting()
    }

    pub(crate) fn stop(&mut self, given: &mut Given) -> Result<()> {
        let stop_type = given.take("stop_type")?.unwrap_or_else(|| StopType::Terminate.to_string());
        let stop = arguments::stop(Some(stop_type), given.take("reason")?)?;
        self.change(given, |_, _| Ok(stop)).map(drop)
    }

    pub(crate) fn set_local_attributes(&mut self, given: &mut Given) -> Result<()> {
        let attributes: Json = given.needed("attributes")?;
        let attributes = payloads("attributes", Some(attributes.as_str()), LIMITS.max_payload_bytes)?;
        self.change(given, |_, _| Ok(Command::SetLocalAttributes(attributes))).map(drop)
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
        self.change(given, |_, run| Ok(Command::SkipTimer { seq: run.seq(&state)?, command_id })).map(drop)
    }

    /// Makes calls in backoff due at once, and resolves incidents. Returns how many.
    pub(crate) fn retry_now(&mut self, given: &mut Given) -> Result<usize> {
        let state = given.take("state_execution_id")?.map(|state| state_execution_id(Some(state))).transpose()?;
        self.change(given, |_, run| {
            Ok(Command::RetryNow(match &state {
                Some(state) => vec![run.seq(state)?],
                None => run.execution.states.keys().copied().collect(),
            }))
        })
    }

    /// Ends a live step, and starts these states in its place.
    pub(crate) fn move_state(&mut self, given: &mut Given) -> Result<()> {
        let state = state_execution_id(given.take("state_execution_id")?)?;
        let next: Json = given.needed("next_states")?;
        let (next, reason) = move_to(Some(next.as_str().to_owned()), given.take("reason")?, &LIMITS)?;
        self.change(given, |_, run| {
            let seq = run.seq(&state)?;
            match run.execution.states.get(&seq).is_some_and(|state| state.status().is_live()) {
                true => Ok(Command::MoveState { seq, next, reason }),
                false => Err(refusal::unknown_step(&state)),
            }
        })
        .map(drop)
    }

    /// Gives the running process that the last arguments name a command. Returns how many events followed.
    fn change(&mut self, given: &mut Given, prepare: impl FnOnce(&Self, &Run) -> Result<Command>) -> Result<usize> {
        let id = self.process(given)?;
        let run = self.run(id);
        let Execution { process_id, status, .. } = &run.execution;
        if *status != ProcessStatus::Running {
            return Err(refusal::rejected(process_id, &Rejection::NotRunning(*status)));
        }
        let (command, before) = (prepare(self, run)?, run.history.len());
        let outcome = self.apply(id, &command, None)?;
        let run = self.run(id);
        match outcome {
            Outcome::Over(rejection) => Err(refusal::rejected(&run.execution.process_id, &rejection)),
            _ => Ok(run.history.len() - before),
        }
    }

    /// Pauses a process: no call of its states begins until the pause ends.
    pub(crate) fn pause_process(&mut self, given: &mut Given) -> Result<()> {
        let pause = self.pause(given)?;
        self.change(given, |_, _| Ok(Command::Pause(pause))).map(drop)
    }

    pub(crate) fn resume_process(&mut self, given: &mut Given) -> Result<()> {
        self.change(given, |_, _| Ok(Command::Resume)).map(drop)
    }

    /// A pause that begins now.
    fn pause(&self, given: &mut Given) -> Result<Pause> {
        let mode = given.take("mode")?.unwrap_or_else(|| PauseMode::Wait.to_string());
        arguments::pause(Some(mode), given.moment("until")?, given.take("reason")?, self.now)
    }

    /// Pauses a process type: no call of its processes begins until the pause ends.
    pub(crate) fn pause_process_type(&mut self, given: &mut Given) -> Result<()> {
        let (pause, process_type) = (self.pause(given)?, self.type_to_pause(given)?);
        self.paused_types.insert(process_type, pause);
        Ok(())
    }

    pub(crate) fn resume_process_type(&mut self, given: &mut Given) -> Result<()> {
        let process_type = self.type_to_pause(given)?;
        self.paused_types.remove(&process_type);
        Ok(())
    }

    fn type_to_pause(&self, given: &mut Given) -> Result<String> {
        let process_type = given.name("process_type")?;
        given.end()?;
        self.process_type(&process_type).map(|_| process_type)
    }

    /// The current pause of a process type.
    pub(crate) fn pause_of_type(&self, process_type: &str) -> Option<&Pause> {
        self.paused_types.get(process_type).filter(|pause| !pause.is_over(self.now))
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
