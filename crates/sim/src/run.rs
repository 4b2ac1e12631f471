//! One execution, with its history and its mapped rows.
//!
//! Limitations: executions are always loaded completely, and the history is never cut.

use crate::QUOTAS;
use crate::line::shown;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xdb_engine::*;
use xdb_protocol::StartOptions;

/// An event, as a row of `xdb.history`.
#[derive(Serialize)]
pub(crate) struct HistoryEvent {
    event_id: u64,
    event_time: String,
    #[serde(skip)]
    at: Timestamp,
    event_type: &'static str,
    details: Json,
}

/// An execution, completely loaded, with its other data.
pub(crate) struct Run {
    pub execution: Execution,
    pub history: Vec<HistoryEvent>,
    /// The mapped tables, as registered when the execution started.
    mapping: Arc<[TableMapping]>,
    /// For each mapped table, the values of its key columns.
    keys: Vec<Vec<String>>,
    /// The options of the start.
    pub options: StartOptions,
    /// For each local attribute, the number of the event that wrote it last.
    pub local_versions: BTreeMap<String, u64>,
    /// For each call that a state is at, when its first attempt began.
    pub first_attempts: BTreeMap<(StateSeq, Api), Timestamp>,
}

impl Run {
    /// A run before its first event. `keys`: for each mapped table, the values of its key columns.
    pub fn new(id: ExecutionId, definition: &Definition, keys: Vec<Vec<String>>, options: StartOptions) -> Self {
        Self {
            execution: Execution::new(id),
            history: Vec::new(),
            mapping: definition.global_attributes.clone().into(),
            keys,
            options,
            local_versions: BTreeMap::new(),
            first_attempts: BTreeMap::new(),
        }
    }

    /// The events that follow from a command. Backoff has no jitter.
    pub fn decide(
        &self,
        command: &Command,
        definition: &Definition,
        now: Timestamp,
        global_messages: &[GlobalMessage],
    ) -> Result<Vec<Event>, Rejection> {
        let context = Context {
            now,
            jitter: 0.5,
            definition,
            mapping: &self.mapping,
            // Empty, because all message ids are loaded.
            published_before: &BTreeSet::new(),
            global_messages,
            quotas: QUOTAS,
            global_queues_full: false,
        };
        decide(&self.execution, command, context)
    }

    /// Applies an event, and adds it to the history.
    pub fn apply(&mut self, event: Event, now: Timestamp) {
        let event_id = self.execution.next_event;
        if event.is_recorded() {
            let (event_type, details) = event.to_parts();
            let details = Json::from_trusted(details);
            self.history.push(HistoryEvent { event_id, event_time: shown(now), at: now, event_type, details });
        }
        match &event {
            Event::LocalAttributesWritten { attributes } => {
                self.local_versions.extend(attributes.keys().map(|name| (name.clone(), event_id)));
            }
            // After an incident, the next attempt is the first one for the retry policy.
            Event::IncidentRaised { seq, .. } => self.first_attempts.retain(|(of, _), _| of != seq),
            _ => {}
        }
        self.execution.apply(&event, now);
    }

    /// Each mapped table, with the values of its key columns.
    pub fn rows(&self) -> impl Iterator<Item = (&TableMapping, &[String])> {
        self.mapping.iter().zip(&self.keys).map(|(table, key)| (table, key.as_slice()))
    }

    /// Replays the history, and compares the result with the execution. None: they are equal.
    pub fn problem(&self) -> Option<String> {
        let mut replay = Replay::new(self.execution.id);
        for HistoryEvent { event_id, at, event_type, details, .. } in &self.history {
            if let Err(broken) = replay.event(*event_id, *at, event_type, details.as_str()) {
                return Some(format!("history_event: {broken}"));
            }
        }
        for state in self.execution.states.values() {
            if let Some((_, call)) = state.current_call() {
                replay.adopt_unrecorded_attempts(state.seq, call.clone());
            }
        }
        let (found, expected) = (&self.execution, &replay.execution);
        (found != expected).then(|| format!("process_execution: is {found:?} and should be {expected:?}"))
    }
}
