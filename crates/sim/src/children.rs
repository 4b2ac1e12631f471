//! Children: processes that answers start, the message when one closes, and their end with their parent.
//!
//! Limitations: on the server, each child of a closed parent closes in a transaction of its own, a moment later. Here
//! they close at once. If a start is refused, the processes that the answer's other starts have stopped stay stopped.

use crate::Simulator;
use crate::answers::SimulatorDriver;
use crate::given::Result;
use serde_json::json;
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::refusal::Refusal;
use xdb_protocol::{GivenStart, refused_child};

/// The failed attempt of an answer one of whose starts was refused.
pub(crate) fn refused_start(refusal: &Refusal) -> Failure {
    let (sql_state, message) = (refusal.sqlstate().to_owned(), refusal.message.clone());
    let detail = format!("{message} ({sql_state})");
    let error = AppDatabaseError { sql_state, message, table: None, constraint: None };
    Failure { app_database_error: Some(error), ..Failure::of("AppDatabaseError", detail) }
}

impl Simulator {
    /// The executions of the children that a command starts.
    pub(crate) fn child_ids(&self, command: &Command) -> Vec<ExecutionId> {
        (self.last_id + 1..).take(command.children().len()).map(|number| self.id(number)).collect()
    }

    /// Starts the children of an answer: all of them, or none.
    pub(crate) fn start_children(&mut self, parent: ExecutionId, children: &NewChildren<'_>) -> Result<()> {
        let called = self.called.len();
        let links = children.links(&self.run(parent).execution);
        for (at, (start, (id, started_by))) in children.starts.iter().zip(&links).enumerate() {
            if let Err(mut refusal) = self.begin(given(start), *id, Some(Box::new(started_by.clone()))) {
                links.iter().take(at).for_each(|(id, _)| drop(self.runs.remove(id)));
                self.called.truncate(called);
                refusal.message = refused_child(at, &refusal.message);
                return Err(refusal);
            }
        }
        self.last_id += links.len() as u64;
        Ok(())
    }

    /// Informs the parents of executions that have closed, and stops their children.
    pub(crate) fn follow_closes(&mut self) -> Result<()> {
        while let Some(id) = self.closed.pop_front() {
            if let Some((parent, publish)) = self.message_to_parent(id) {
                self.command(parent, &Command::MessagesArrived(vec![publish]))?;
            }
            let is_child = |execution: &&Execution| {
                let terminates = |by: &StartedBy| {
                    by.process_execution_id == id && by.when_parent_closes == WhenParentCloses::Terminate
                };
                execution.is_running() && execution.parent.as_deref().is_some_and(terminates)
            };
            let runs = self.runs.values().map(|run| &run.execution);
            let children: Vec<_> = runs.filter(is_child).map(|execution| execution.id).collect();
            for child in children {
                let reason = Some(PARENT_CLOSED.to_owned());
                self.command(child, &Command::Stop { stop_type: StopType::Terminate, reason })?;
            }
        }
        Ok(())
    }

    /// Applies a command whose consequences for other executions follow later.
    pub(crate) fn command(&mut self, id: ExecutionId, command: &Command) -> Result<()> {
        xdb_calls::apply(&mut SimulatorDriver { simulator: self, id, call: None }, command).map(drop)
    }

    /// The message that the running parent of a closed execution gets.
    fn message_to_parent(&self, id: ExecutionId) -> Option<(ExecutionId, Publish)> {
        let Execution { process_id, process_type, status, results, reason, parent, .. } = &self.run(id).execution;
        let StartedBy { process_execution_id: parent, on_close, .. } = parent.as_deref()?;
        let queue = on_close.clone()?;
        self.runs.get(parent).filter(|run| run.execution.is_running())?;
        let result = if let [only] = results.as_slice() { Some(&only.output) } else { None };
        let mut payload = BTreeMap::from([
            ("processId", json!(process_id)),
            ("processExecutionId", json!(id)),
            ("processType", json!(process_type)),
            ("status", json!(status)),
            ("result", json!(result)),
            ("results", json!(results)),
        ]);
        payload.extend(reason.as_ref().map(|reason| ("reason", json!(reason))));
        let payload = Some(Json::from_trusted(serde_json::to_string(&payload).unwrap_or_default()));
        Some((*parent, Publish { queue, message_id: Some(id.to_string()), payload }))
    }
}

fn given(child: &ChildStart) -> GivenStart {
    let text = |json: &Option<Json>| json.as_ref().map(|json| json.as_str().to_owned());
    GivenStart {
        process_id: child.process_id.clone(),
        process_type: Some(child.process_type.clone()),
        input: text(&child.input),
        global_attribute_pk: child.global_attribute_pk.clone(),
        global_attributes: text(&child.global_attributes),
        local_attributes: text(&child.local_attributes),
        id_reuse_policy: Some(child.id_reuse_policy.to_string()),
        timeout: child.timeout.map(Some),
        start_at: child.start_at.map(Some),
        options: text(&child.options),
    }
}
