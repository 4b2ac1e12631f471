//! What can be seen of a process.

use crate::calls::OpenCall;
use crate::line::shown;
use crate::run::Run;
use crate::{OWNER, Result, Simulator};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::*;

// Wide because `xdb.describe_process` says as much.
/// What a process does and waits for: as `xdb.describe_process` says it, as far as there is such a thing here.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    process_id: String,
    process_execution_id: String,
    process_type: String,
    owner: &'static str,
    status: ProcessStatus,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<DescribedPause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    type_pause: Option<DescribedPause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completing: Option<bool>,
    live_threads: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<DescribedFailure>,
    threads: Vec<Thread>,
    results: Vec<ProcessResult>,
}

#[derive(Debug, Serialize)]
struct DescribedPause {
    mode: PauseMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DescribedFailure {
    #[serde(skip_serializing_if = "Option::is_none")]
    state_execution_id: Option<String>,
    api: Api,
    attempt: u32,
    at: String,
    failure: Failure,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    state_execution_id: String,
    status: StateStatus,
    started_at: String,
    #[serde(flatten)]
    call: Option<DescribedCall>,
    #[serde(flatten)]
    wait: Option<DescribedWait>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DescribedCall {
    api: Api,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    incident: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<DescribedFailure>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DescribedWait {
    waiting_type: WaitingType,
    waiting_since: String,
    waiting_for: Vec<DescribedCommand>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DescribedCommand {
    #[serde(skip_serializing_if = "Option::is_none")]
    command_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<CommandStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    global: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_least: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_in_queue: Option<usize>,
}

/// An event, as `xdb.history` has it.
#[derive(Debug, Serialize)]
pub struct HistoryEvent {
    pub event_id: u64,
    pub event_time: String,
    pub event_type: &'static str,
    pub details: Json,
}

impl Simulator {
    /// What a process does, what it waits for, and what failed last.
    pub fn describe(&self, process_id: &str, execution: Option<&str>) -> Result<Description> {
        let id = self.find(process_id, execution)?;
        let run = self.run(id);
        let execution = &run.execution;
        let live = execution.states.values().filter(|state| state.status().is_live());
        let failures = execution.states.values().filter_map(|state| Some((last_failure(state)?, state)));
        let last = failures.max_by_key(|(last, state)| (last.at, state.seq));
        let type_pause = self.pause_of_type(&execution.process_type).filter(|_| execution.is_running());
        Ok(Description {
            process_id: execution.process_id.clone(),
            process_execution_id: id.to_string(),
            process_type: execution.process_type.clone(),
            owner: OWNER,
            status: execution.status,
            started_at: shown(execution.started_at),
            closed_at: execution.closed_at.map(shown),
            timeout_at: execution.timeout_at.map(shown),
            reason: execution.reason.clone(),
            pause: execution.pause.as_ref().map(described_pause),
            type_pause: type_pause.map(described_pause),
            completing: execution.completing.then_some(true),
            live_threads: execution.live_threads,
            last_failure: last.map(|(last, state)| described(last, Some(&state.id))),
            threads: live.map(|state| self.thread(run, state)).collect(),
            results: execution.results.clone(),
        })
    }

    fn thread(&self, run: &Run, state: &StateExecution) -> Thread {
        let open = self.open.values().find_map(|open| match open {
            OpenCall::State(open) if (open.execution, open.seq) == (run.execution.id, state.seq) => Some(open.deadline),
            _ => None,
        });
        let call = state.current_call().map(|(api, call)| DescribedCall {
            api,
            attempt: call.failed_attempts + 1,
            first_attempt_at: run.first_attempts.get(&(state.seq, api)).map(|at| shown(*at)),
            repeats: Some(call.repeats).filter(|repeats| *repeats > 0),
            call_until: open.map(shown),
            incident: call.incident.then_some(true),
            next_attempt_at: (open.is_none() && !call.incident).then(|| shown(call.not_before)),
            last_failure: call.last_failure.as_ref().map(|last| described(last, None)),
        });
        let wait = match &state.phase {
            Phase::Waiting(wait) => Some(DescribedWait {
                waiting_type: wait.waiting_type,
                waiting_since: shown(wait.since),
                waiting_for: wait.commands.iter().map(|command| described_command(run, command)).collect(),
            }),
            _ => None,
        };
        Thread {
            state_execution_id: state.id.to_string(),
            status: state.status(),
            started_at: shown(state.started_at),
            call,
            wait,
        }
    }

    /// The events of an execution, in order.
    pub fn history(&self, process_id: &str, execution: Option<&str>) -> Result<Vec<HistoryEvent>> {
        let run = self.run(self.find(process_id, execution)?);
        let event = |(number, at, name, details): &(u64, Timestamp, &'static str, String)| HistoryEvent {
            event_id: *number,
            event_time: shown(*at),
            event_type: name,
            details: Json::from_trusted(details.as_str()),
        };
        Ok(run.history.iter().map(event).collect())
    }

    /// What is wrong with an execution: whether it is what its history says, as `xdb.check_process` looks at it.
    pub fn check(&self, process_id: &str, execution: Option<&str>) -> Result<Vec<String>> {
        let id = self.find(process_id, execution)?;
        let run = self.run(id);
        let mut problems = run.problems();
        let held = run.execution.states.values().flat_map(|state| state.held_global_messages());
        let held: BTreeSet<u64> = held.map(|(_, message)| message.number).collect();
        let taken = self.queues.taken_by(id);
        if held != taken {
            problems.push(format!("global_message: {taken:?} are taken, and {held:?} should be"));
        }
        Ok(problems)
    }

    /// What is wrong with any execution, by its id.
    pub fn check_all(&self) -> BTreeMap<ExecutionId, Vec<String>> {
        let checked = self.runs.iter().map(|(id, run)| {
            let name = id.to_string();
            (*id, self.check(&run.execution.process_id, Some(&name)).unwrap_or_default())
        });
        checked.filter(|(_, problems)| !problems.is_empty()).collect()
    }
}

fn last_failure(state: &StateExecution) -> Option<&LastFailure> {
    match &state.phase {
        Phase::WaitUntil(call) | Phase::Execute { call, .. } => call.last_failure.as_ref(),
        Phase::Ended { last_failure, .. } => last_failure.as_ref(),
        Phase::Waiting(_) => None,
    }
}

fn described(last: &LastFailure, state: Option<&StateExecutionId>) -> DescribedFailure {
    DescribedFailure {
        state_execution_id: state.map(ToString::to_string),
        api: last.api,
        attempt: last.attempt,
        at: shown(last.at),
        failure: last.failure.clone(),
    }
}

fn described_pause(Pause { mode, until, reason }: &Pause) -> DescribedPause {
    DescribedPause { mode: *mode, until: until.map(shown), reason: reason.clone() }
}

fn described_command(run: &Run, command: &WaitCommand) -> DescribedCommand {
    let queue = command.kind.queue();
    let messages = |name: &str| run.execution.queues.get(name).map_or(0, |messages| messages.len());
    DescribedCommand {
        command_id: command.command_id.clone(),
        status: Some(command.status),
        fire_at: command.kind.fire_at().map(shown),
        global: queue.filter(|queue| queue.is_global).map(|_| true),
        queue_name: queue.map(|queue| queue.name.to_owned()),
        key: queue.and_then(|queue| Some(queue.key?.to_owned())),
        at_least: queue.map(|queue| queue.at_least),
        at_most: queue.map(|queue| queue.at_most),
        messages_in_queue: queue.filter(|queue| !queue.is_global).map(|queue| messages(queue.name)),
    }
}
