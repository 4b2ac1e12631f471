//! What a test can see of a process: its description, incidents, and problems of its history.

use crate::calls::OpenCall;
use crate::line::shown;
use crate::run::Run;
use crate::{OWNER, Simulator};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use xdb_engine::*;

/// What a process does and waits for, like `xdb.describe_process`. Limitations: only the fields that the simulator
/// knows.
#[derive(Serialize)]
pub(crate) struct ProcessDescription {
    #[serde(flatten)]
    about: Value,
    results: Vec<ProcessResult>,
}

impl Simulator {
    /// Describes a process: what it does, what it waits for, and its last failure.
    pub(crate) fn describe(&self, id: ExecutionId) -> ProcessDescription {
        let run = self.run(id);
        let execution = &run.execution;
        let live = execution.states.values().filter(|state| state.status().is_live());
        let failures = execution.states.values().filter_map(|state| Some((last_failure(state)?, state)));
        let last = failures.max_by_key(|(last, state)| (last.at, state.seq));
        let type_pause = self.pause_of_type(&execution.process_type).filter(|_| execution.is_running());
        let about = present(json!({
            "processId": execution.process_id, "processExecutionId": id.to_string(), "processType": execution.process_type,
            "owner": OWNER, "status": execution.status, "reason": execution.reason, "startedAt": shown(execution.started_at),
            "closedAt": execution.closed_at.map(shown), "timeoutAt": execution.timeout_at.map(shown),
            "pause": execution.pause.as_ref().map(pause), "typePause": type_pause.map(|(_, of_type)| pause(of_type)),
            "completing": execution.completing.then_some(true), "liveThreads": execution.live_threads,
            "threads": live.map(|state| self.thread(run, state)).collect::<Vec<_>>(),
            "lastFailure": last.map(|(last, state)| failure(last, Some(&state.id))),
        }));
        ProcessDescription { about, results: execution.results.clone() }
    }

    fn thread(&self, run: &Run, state: &StateExecution) -> Value {
        let open = self.open.values().find_map(|open| match open {
            OpenCall::State(open) if (open.execution, open.seq) == (run.execution.id, state.seq) => Some(open.deadline),
            _ => None,
        });
        let of_thread = json!({
            "stateExecutionId": state.id.to_string(), "status": state.status(), "startedAt": shown(state.started_at)
        });
        let more = match &state.phase {
            Phase::WaitUntil(call) | Phase::Execute { call, .. } => {
                let api = state.current_call().map(|(api, _)| api);
                let first = api.and_then(|api| run.first_attempts.get(&(state.seq, api)));
                json!({
                    "api": api,
                    "attempt": call.failed_attempts + 1,
                    "firstAttemptAt": first.map(|at| shown(*at)),
                    "repeats": Some(call.repeats).filter(|repeats| *repeats > 0),
                    "callUntil": open.map(shown),
                    "incident": call.incident.then_some(true),
                    "nextAttemptAt": (open.is_none() && !call.incident).then(|| shown(call.not_before)),
                    "lastFailure": call.last_failure.as_ref().map(|last| failure(last, None)),
                })
            }
            Phase::Waiting(wait) => json!({
                "waitingType": wait.waiting_type,
                "waitingSince": shown(wait.since),
                "waitingFor": wait.commands.iter().map(|command| waiting_for(run, command)).collect::<Vec<_>>(),
            }),
            Phase::Ended { .. } => Value::Null,
        };
        let members = [of_thread, more].into_iter().filter_map(|part| Some(part.as_object()?.clone())).flatten();
        present(members.collect())
    }

    /// All incidents.
    pub(crate) fn incidents(&self) -> Vec<Value> {
        let states = self.runs.values().flat_map(|run| run.execution.states.values().map(move |state| (run, state)));
        states.filter_map(|(run, state)| incident(run, state)).collect()
    }

    /// Compares an execution with its history, like `xdb.check_process`. Returns the problems.
    pub(crate) fn problems(&self, id: ExecutionId) -> Vec<String> {
        let run = self.run(id);
        let held = run.execution.states.values().flat_map(|state| state.held_global_messages());
        let held: BTreeSet<u64> = held.map(|(_, message)| message.number).collect();
        let taken = self.queues.taken_by(id);
        let wrong = (held != taken).then(|| format!("global_message: {taken:?} are taken, and {held:?} should be"));
        run.problem().into_iter().chain(wrong).collect()
    }
}

/// The object without its null members.
fn present(mut object: Value) -> Value {
    if let Value::Object(members) = &mut object {
        members.retain(|_, value| !value.is_null());
    }
    object
}

fn last_failure(state: &StateExecution) -> Option<&LastFailure> {
    match &state.phase {
        Phase::WaitUntil(call) | Phase::Execute { call, .. } => call.last_failure.as_ref(),
        Phase::Ended { last_failure, .. } => last_failure.as_ref(),
        Phase::Waiting(_) => None,
    }
}

fn failure(LastFailure { api, attempt, at, failure }: &LastFailure, state: Option<&StateExecutionId>) -> Value {
    let state = state.map(ToString::to_string);
    present(json!({"stateExecutionId": state, "api": api, "attempt": attempt, "at": shown(*at), "failure": failure}))
}

fn pause(Pause { mode, until, reason }: &Pause) -> Value {
    present(json!({"mode": mode, "until": until.map(shown), "reason": reason}))
}

fn waiting_for(run: &Run, WaitCommand { command_id, kind, status, .. }: &WaitCommand) -> Value {
    let (queue, queues) = (kind.queue(), &run.execution.queues);
    let local = queue.filter(|queue| !queue.is_global);
    present(json!({
        "commandId": command_id,
        "status": status,
        "fireAt": kind.fire_at().map(shown),
        "global": queue.filter(|queue| queue.is_global).map(|_| true),
        "queueName": queue.map(|queue| queue.name),
        "key": queue.and_then(|queue| queue.key),
        "atLeast": queue.map(|queue| queue.at_least),
        "atMost": queue.map(|queue| queue.at_most),
        "messagesInQueue": local.map(|queue| queues.get(queue.name).map_or(0, |messages| messages.len())),
    }))
}

/// An incident, as a row of `xdb.incidents`. None if the state has none.
fn incident(run: &Run, state: &StateExecution) -> Option<Value> {
    let (api, call) = state.current_call().filter(|(_, call)| call.incident)?;
    let LastFailure { at, attempt, failure, .. } = call.last_failure.as_ref()?;
    let refused = failure.app_database_error.as_ref();
    Some(json!({
        "process_id": run.execution.process_id,
        "execution_id": run.execution.id.to_string(),
        "state_execution_id": state.id.to_string(),
        "api": api,
        "attempt": attempt,
        "raised_at": shown(*at),
        "http_status": failure.status,
        "error_type": failure.error_type,
        "detail": failure.detail,
        "sql_state": refused.map(|refused| &refused.sql_state),
        "table_name": refused.and_then(|refused| refused.table.as_ref()),
        "constraint_name": refused.and_then(|refused| refused.constraint.as_ref()),
    }))
}
