//! An execution from its events, and a shorter history that gives the same.

use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Stands for the events of an execution up to the one whose number it has: the execution as it was then, running,
/// without the states that had ended. The one that failed last is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    execution: Execution,
    /// When each message that is queued was received, by its number.
    received_at: BTreeMap<u64, Timestamp>,
    message_ids: MessageIds,
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
        *self = Self { id: self.id, next_event: self.next_event, ..snapshot.execution.clone() };
        self.count_anew();
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
                self.received_at.extend(&snapshot.received_at);
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
        let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) = execution
            .states
            .clone()
            .into_iter()
            .partition(|(seq, state)| state.status().is_live() || Some(*seq) == last_failed);
        let mut message_ids = self.earlier_message_ids;
        for (queue, id) in &execution.message_ids {
            message_ids.add(queue, id);
        }
        let queued = execution.queues.values().flatten();
        let received_at = |message: &Arc<Message>| self.received_at.get(&message.number).copied().unwrap_or_default();
        let snapshot = Snapshot {
            execution: Execution {
                states: kept,
                // What a snapshot does not keep.
                id: ExecutionId::default(),
                next_event: 0,
                live_threads: 0,
                queued: Queued::default(),
                timers: 0,
                message_ids: BTreeSet::new(),
                ..execution.clone()
            },
            received_at: queued.map(|message| (message.number, received_at(message))).collect(),
            message_ids,
        };
        Some((Event::Snapshot(Box::new(snapshot)), dropped.into_keys().collect()))
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
