//! An execution from its events, and a shorter history that gives the same.

use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Stands for the events of an execution up to the one whose number it has: the execution as it was then, running,
/// without the states that had ended. The one that failed last is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    process_id: String,
    process_type: String,
    started_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_at: Option<Timestamp>,
    next_state: u32,
    next_message: u64,
    state_numbers: BTreeMap<String, u32>,
    completing: bool,
    states: Vec<StateExecution>,
    messages: Vec<QueuedMessage>,
    message_ids: MessageIds,
    local_attributes: BTreeMap<String, Json>,
    results: Vec<ProcessResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pause: Option<Pause>,
    #[serde(default, skip_serializing_if = "is_default")]
    priority: i8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueuedMessage {
    message: Message,
    received_at: Timestamp,
}

/// A set of (queue, message id) that only grows, summed up: how many, and a sum of hashes in which their order makes
/// no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageIds {
    pub count: u64,
    pub digest: u64,
}

impl MessageIds {
    /// Takes an id in that is not in the set.
    pub fn add(&mut self, queue: &str, message_id: &str) {
        // No UTF-8 holds the byte that stands between the two.
        let hash = fnv1a(queue.bytes().chain([0xff]).chain(message_id.bytes()));
        self.count += 1;
        self.digest = self.digest.wrapping_add(hash);
    }
}

impl Execution {
    /// Takes a snapshot for what it stands for.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        self.process_id.clone_from(&snapshot.process_id);
        self.process_type.clone_from(&snapshot.process_type);
        self.started_at = snapshot.started_at;
        self.timeout_at = snapshot.timeout_at;
        self.next_state = snapshot.next_state;
        self.next_message = snapshot.next_message;
        self.state_numbers.clone_from(&snapshot.state_numbers);
        self.completing = snapshot.completing;
        self.states = snapshot.states.iter().map(|state| (state.seq, Arc::new(state.clone()))).collect();
        self.queues.clear();
        for QueuedMessage { message, .. } in &snapshot.messages {
            self.queues.entry(message.queue.clone()).or_default().push_back(Arc::new(message.clone()));
        }
        self.count_anew();
        self.local_attributes.clone_from(&snapshot.local_attributes);
        self.results.clone_from(&snapshot.results);
        self.pause.clone_from(&snapshot.pause);
        self.priority = snapshot.priority;
    }
}

/// What the events of an execution give, so far.
pub struct Replay {
    pub execution: Execution,
    /// When each message was received, by its number; at least of those that are queued.
    pub received_at: HashMap<u64, Timestamp>,
    /// Message ids that are not in the execution's set, because a snapshot stands for the events that had them.
    pub earlier_message_ids: MessageIds,
}

impl Replay {
    pub fn new(id: ExecutionId) -> Self {
        Self { execution: Execution::new(id), received_at: HashMap::new(), earlier_message_ids: MessageIds::default() }
    }

    /// Replays one more event, or says why the history can't be replayed. Its number tells its place, not its time:
    /// clocks are set back.
    pub fn event(&mut self, number: u64, at: Timestamp, name: &str, details: &str) -> Result<(), String> {
        let event = Event::from_parts(name, details).map_err(|what| format!("event {number}: {what}"))?;
        let first = !self.execution.exists();
        if first && matches!(event, Event::Snapshot(_)) {
            self.execution.next_event = number.max(1);
        }
        let next = self.execution.next_event;
        if number != next {
            return Err(format!("event {next} is missing; the next one is {number}"));
        }
        let begins = matches!(event, Event::ProcessStarted { .. } | Event::Snapshot(_));
        if begins != first {
            return Err(format!(
                "event {number} is {name}; the first one, and no other, is ProcessStarted or Snapshot"
            ));
        }
        if !event.is_recorded() {
            return Err(format!("event {number} is {name}, of an attempt that is never recorded by itself"));
        }
        if !self.execution.is_running() {
            return Err(format!("event {number} is {name}, after the process has closed"));
        }
        match &event {
            Event::MessagesReceived { messages, .. } => {
                self.received_at.extend(messages.iter().map(|message| (message.number, at)));
            }
            Event::Snapshot(snapshot) => {
                self.received_at.extend(snapshot.messages.iter().map(|m| (m.message.number, m.received_at)));
                self.earlier_message_ids = snapshot.message_ids;
            }
            _ => {}
        }
        self.execution.apply(&event, at);
        Ok(())
    }

    /// Takes the word of what is stored of a call for its failed attempts that are too many to be recorded one by one: the
    /// history knows of them when they are folded. What does not fit what it knows is left alone, and differs.
    pub fn adopt_unrecorded_attempts(&mut self, seq: StateSeq, stored: CallState) {
        let Some(state) = self.execution.states.get_mut(&seq) else { return };
        let (api, call) = match &mut Arc::make_mut(state).phase {
            Phase::WaitUntil(call) => (Api::WaitUntil, call),
            Phase::Execute { call, .. } => (Api::Execute, call),
            Phase::Waiting(_) | Phase::Ended { .. } => return,
        };
        let last = stored.last_failure.as_ref();
        let fits = stored.failed_attempts > RECORDED_ATTEMPTS
            && last.is_some_and(|last| last.api == api && last.attempt == stored.failed_attempts)
            && (stored.incident, stored.resolved_attempts) == (call.incident, call.resolved_attempts)
            && stored.generation >= call.generation
            && (stored.generation > call.generation || stored.app_database_error == call.app_database_error);
        if fits {
            *call = stored;
        }
    }

    /// What can stand for the events so far, and the states that are not in it. None once the process has closed.
    pub fn snapshot(&self) -> Option<(Event, Vec<StateSeq>)> {
        let execution = &self.execution;
        if !execution.exists() || !execution.is_running() {
            return None;
        }
        let failed_at = |state: &Arc<StateExecution>| match &state.phase {
            Phase::Ended { last_failure: Some(last), .. } => Some((last.at, state.seq)),
            _ => None,
        };
        let last_failed = execution.states.values().filter_map(failed_at).max().map(|(_, seq)| seq);
        let (kept, dropped): (Vec<_>, Vec<_>) =
            execution.states.values().partition(|state| state.status().is_live() || Some(state.seq) == last_failed);
        let mut message_ids = self.earlier_message_ids;
        for (queue, id) in &execution.message_ids {
            message_ids.add(queue, id);
        }
        let received_at = |message: &Message| self.received_at.get(&message.number).copied().unwrap_or_default();
        let queued = execution.queues.values().flatten();
        let snapshot = Snapshot {
            process_id: execution.process_id.clone(),
            process_type: execution.process_type.clone(),
            started_at: execution.started_at,
            timeout_at: execution.timeout_at,
            next_state: execution.next_state,
            next_message: execution.next_message,
            state_numbers: execution.state_numbers.clone(),
            completing: execution.completing,
            states: kept.into_iter().map(|state| StateExecution::clone(state)).collect(),
            messages: queued
                .map(|message| QueuedMessage { message: Message::clone(message), received_at: received_at(message) })
                .collect(),
            message_ids,
            local_attributes: execution.local_attributes.clone(),
            results: execution.results.clone(),
            pause: execution.pause.clone(),
            priority: execution.priority,
        };
        Some((Event::Snapshot(Box::new(snapshot)), dropped.into_iter().map(|state| state.seq).collect()))
    }
}

/// Of a running execution with this policy: the number of the event up to which a snapshot shall stand for its
/// events, now that `next` comes next and `before` came next before. None as long as there is nothing to do.
///
/// Cutting one event at a time would write a snapshot with each: events are left until there is a part of them to cut.
pub fn history_cut(keep: u32, before: u64, next: u64) -> Option<u64> {
    let (keep, slice) = (u64::from(keep), u64::from((keep / 4).clamp(1, LARGEST_CUT)));
    let slices = |next: u64| next.saturating_sub(1).saturating_sub(keep) / slice;
    // One event is not worth a snapshot in its place.
    (slices(next) > slices(before)).then(|| slices(next) * slice).filter(|cut| *cut > 1)
}

/// Events that are cut off at once, as a rule.
const LARGEST_CUT: u32 = 1000;
