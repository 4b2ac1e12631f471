//! What can be asked about executions: their description, incidents, and problems of their histories.

use crate::given::{present, shown};
use crate::run::Run;
use crate::{OWNER, Simulator};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use xdb_engine::*;

/// What a process does and waits for, like `xdb.describe_process`. Limitations: only the fields that the simulator
/// knows.
#[derive(Serialize)]
pub(crate) struct ProcessDescription<'s> {
    #[serde(flatten)]
    about: Value,
    results: &'s [ProcessResult],
}

impl Simulator {
    /// Describes a process: what it does, what it waits for, and its last failure.
    pub(crate) fn describe(&self, id: ExecutionId) -> ProcessDescription<'_> {
        let run = self.run(id);
        let execution = &run.execution;
        let live = execution.states.values().filter(|state| state.status().is_live());
        let failures = execution.states.values().filter_map(|state| Some((last_failure(state)?, state)));
        let last = failures.max_by_key(|(last, state)| (last.at, state.seq));
        let type_pause = self.pause_of_type(&execution.process_type).filter(|_| execution.is_running());
        let about = present(json!({
            "processId": execution.process_id,
            "processExecutionId": id.to_string(),
            "processType": execution.process_type,
            "owner": OWNER,
            "status": execution.status,
            "reason": execution.reason,
            "startedAt": shown(execution.started_at),
            "closedAt": execution.closed_at.map(shown),
            "timeoutAt": execution.timeout_at.map(shown),
            "pause": execution.pause.as_ref().map(pause),
            "typePause": type_pause.map(pause),
            "waitingForProcessLocks": self.locks.waits(id).then(|| process_locks(&execution.locks)),
            "completing": execution.completing.then_some(true),
            "compensating": execution.compensation.begun.then_some(true),
            "liveThreads": execution.live_threads,
            "threads": live.map(|state| self.thread(run, state)).collect::<Vec<_>>(),
            "lastFailure": last.map(|(last, state)| failure(last, Some(&state.id))),
        }));
        ProcessDescription { about, results: &execution.results }
    }

    fn thread(&self, run: &Run, state: &StateExecution) -> Value {
        let key = Some((run.execution.id, state.seq));
        let open = self.open.values().find(|open| open.state() == key).map(|open| open.deadline);
        let (api, call) = state.current_call().unzip();
        let first = api.and_then(|api| run.first_attempts.get(&(state.seq, api)));
        let backoff = call.filter(|call| open.is_none() && !call.incident);
        let wait = match &state.phase {
            Phase::Waiting(wait) => Some(wait),
            _ => None,
        };
        let commands = |wait: &Wait| wait.commands.iter().map(|command| waiting_for(run, command)).collect::<Vec<_>>();
        present(json!({
            "stateExecutionId": state.id,
            "status": state.status(),
            "startedAt": shown(state.started_at),
            "api": api,
            "attempt": call.map(|call| call.failed_attempts + 1),
            "firstAttemptAt": first.map(|at| shown(*at)),
            "repeats": call.map(|call| call.repeats).filter(|repeats| *repeats > 0),
            "callUntil": open.map(shown),
            "incident": call.filter(|call| call.incident).map(|_| true),
            "nextAttemptAt": backoff.map(|call| shown(call.not_before)),
            "lastFailure": call.and_then(|call| call.last_failure.as_ref()).map(|last| failure(last, None)),
            "guard": state.is_waiting_guard().then_some(true),
            "waitingType": wait.map(|wait| wait.waiting_type),
            "waitingSince": wait.map(|wait| shown(wait.since)),
            "waitingFor": wait.map(commands),
        }))
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

fn last_failure(state: &StateExecution) -> Option<&LastFailure> {
    match &state.phase {
        Phase::Ended { last_failure, .. } => last_failure.as_ref(),
        _ => state.current_call()?.1.last_failure.as_ref(),
    }
}

fn failure(LastFailure { api, attempt, at, failure }: &LastFailure, state: Option<&StateExecutionId>) -> Value {
    present(json!({"stateExecutionId": state, "api": api, "attempt": attempt, "at": shown(*at), "failure": failure}))
}

fn pause(Pause { mode, until, reason }: &Pause) -> Value {
    present(json!({"mode": mode, "until": until.map(shown), "reason": reason}))
}

fn process_locks(locks: &ProcessLocks) -> Vec<Value> {
    locks.iter().map(|(name, mode)| json!({"name": name, "mode": mode})).collect()
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
        "state_execution_id": state.id,
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
