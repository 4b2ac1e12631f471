//! Rebuilds an execution from its events. Also makes snapshots, which replace the beginning of a history.

use crate::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Replaces the events of an execution up to its number. It holds the running execution at that event. Of the ended
/// states, it holds only the one that failed last, and those that a compensation would undo.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    execution: Execution,
    /// When each queued message was received, by its number.
    received_at: BTreeMap<u64, Timestamp>,
    message_ids: MessageIds,
}

/// A summary of a set of (queue, message id) that only grows: the count, and a sum of hashes. So the order of ids makes
/// no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageIds {
    pub count: u64,
    /// The sum of the hashes of all ids.
    pub digest: u64,
}

impl MessageIds {
    /// Adds an id. The id must not be in the set already.
    pub fn add(&mut self, queue: &str, message_id: &str) {
        // The byte between the two occurs in no UTF-8.
        let hash = fnv1a(queue.bytes().chain([0xff]).chain(message_id.bytes()));
        self.count += 1;
        self.digest = self.digest.wrapping_add(hash);
    }
}

impl Execution {
    /// Replaces the execution by the one in the snapshot. Id and event number stay.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        *self = Self { id: self.id, next_event: self.next_event, ..snapshot.execution.clone() };
        self.recount();
    }
}

/// A replay in progress: the events so far, applied.
pub struct Replay {
    pub execution: Execution,
    /// When each message was received, by its number. Contains at least all queued messages.
    pub received_at: HashMap<u64, Timestamp>,
    /// Message ids that are not in the execution's set, because a snapshot replaced their events.
    pub earlier_message_ids: MessageIds,
}

impl Replay {
    /// A replay before the first event.
    pub fn new(id: ExecutionId) -> Self {
        Self { execution: Execution::new(id), received_at: HashMap::new(), earlier_message_ids: MessageIds::default() }
    }

    /// Replays one more event. The error says why the history can't be replayed. The numbers give the order of events.
    /// Times don't, because clocks can be set back.
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
            // The messages go back to their queues, as if they had been received again.
            Event::StateAborted { seq, .. } => {
                let state = self.execution.states.get(seq);
                let taken = state.into_iter().flat_map(|state| state.taken_messages());
                self.received_at.extend(taken.map(|message| (message.number, at)));
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

    /// Copies the failed attempts that are not recorded one by one from the stored call: the history contains them only
    /// after folding. If the stored call contradicts the history, it is not copied, and the comparison finds the
    /// difference.
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

    /// A snapshot of the events so far, and the states that it leaves out. None once the process has closed.
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
        let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
            execution.states.clone().into_iter().partition(|(seq, state)| {
                let is_noted = || execution.compensation.noted.iter().any(|noted| noted.seq == *seq);
                state.status().is_live() || Some(*seq) == last_failed || is_noted()
            });
        let mut message_ids = self.earlier_message_ids;
        for (queue, id) in &execution.message_ids {
            message_ids.add(queue, id);
        }
        let queued = execution.queues.values().flatten();
        let received_at = |message: &Arc<Message>| self.received_at.get(&message.number).copied().unwrap_or_default();
        let snapshot = Snapshot {
            execution: Execution {
                states: kept,
                // A snapshot does not keep these fields.
                id: ExecutionId::default(),
                next_event: 0,
                live_threads: 0,
                waiting_guards: 0,
                queued: QueuedTotal::default(),
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

/// The number of the event up to which a snapshot should replace the events of a running execution. `next` is the
/// number of the next event now, and `before` was the number of the next event at the load. None: nothing to do.
///
/// A snapshot for each event would be costly, so events are cut in slices.
pub fn history_cut(keep: u32, before: u64, next: u64) -> Option<u64> {
    let (keep, slice) = (u64::from(keep), u64::from((keep / 4).clamp(1, LARGEST_CUT)));
    let slices = |next: u64| next.saturating_sub(1).saturating_sub(keep) / slice;
    // A snapshot that replaces a single event saves nothing.
    (slices(next) > slices(before)).then(|| slices(next) * slice).filter(|cut| *cut > 1)
}

/// The largest slice of events that is cut at once.
const LARGEST_CUT: u32 = 1000;
