//! One execution with its history, and what the server would store beside it.

use crate::given::shown;
use jiff::tz::TimeZone;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xdb_engine::*;
use xdb_protocol::StartOptions;
use xdb_protocol::refusal::{self, Refusal};

/// An event as a row of `xdb.history`.
#[derive(Serialize)]
pub(crate) struct HistoryRow {
    event_id: u64,
    event_time: String,
    #[serde(skip)]
    at: Timestamp,
    event_type: &'static str,
    details: Json,
}

/// An execution, always complete, and its history.
pub(crate) struct Run {
    pub execution: Execution,
    pub history: Vec<HistoryRow>,
    /// The mapping at the start of the execution, and the key values of each table.
    mapping: Arc<[TableMapping]>,
    /// For each mapped table, the values of its key columns.
    keys: Vec<Vec<String>>,
    /// The options of the start.
    pub options: StartOptions,
    /// The number of the event that last wrote each local attribute.
    pub local_versions: BTreeMap<String, String>,
    /// When the first attempt of a state's current call was made.
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
        child_ids: &[ExecutionId],
    ) -> Result<Vec<Event>, Rejection> {
        let context = Context {
            now,
            jitter: 0.5,
            definition,
            mapping: &self.mapping,
            // Empty, because the execution is complete and has all received ids.
            published_before: &BTreeSet::new(),
            global_messages,
            child_ids,
            quotas: Quotas::FIXED,
            global_queues_full: false,
            next_tick,
        };
        decide(&self.execution, command, context)
    }

    /// Applies an event and adds it to the history.
    pub fn apply(&mut self, event: Event, now: Timestamp) {
        let event_id = self.execution.next_event;
        if event.is_recorded() {
            let (event_type, details) = event.to_parts();
            let details = Json::from_trusted(details);
            self.history.push(HistoryRow { event_id, event_time: shown(now), at: now, event_type, details });
        }
        match &event {
            Event::LocalAttributesWritten { attributes } => {
                self.local_versions.extend(attributes.keys().map(|name| (name.clone(), event_id.to_string())));
            }
            // After an incident, the next attempt counts as the first one.
            Event::IncidentRaised { seq, .. } => self.first_attempts.retain(|(of, _), _| of != seq),
            _ => {}
        }
        self.execution.apply(&event, now);
    }

    /// The last event as a message of the queue that its type names in `changes`.
    pub fn last_change(&self, queue: &str) -> PublishedGlobally {
        let Execution { id, process_id, process_type, .. } = &self.execution;
        let row = self.history.last().map(|HistoryRow { event_id, event_time, event_type, details, .. }| {
            let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
            format!(
                r#"{{"processId":{},"processExecutionId":"{id}","processType":{},"eventId":{event_id},"eventTime":"{event_time}","eventType":"{event_type}","details":{}}}"#,
                quoted(process_id),
                quoted(process_type),
                details.as_str()
            )
        });
        PublishedGlobally {
            queue: queue.to_owned(),
            key: Some(process_id.clone()),
            message_id: None,
            payload: row.map(Json::from_trusted),
            expires_at: None,
        }
    }

    /// The state of this id.
    pub fn seq(&self, state: &StateExecutionId) -> Result<StateSeq, Refusal> {
        let found = self.execution.states.values().find(|found| found.id == *state);
        found.map(|found| found.seq).ok_or_else(|| refusal::unknown_step(state))
    }

    /// Each mapped table with its key values.
    pub fn rows(&self) -> impl Iterator<Item = (&TableMapping, &[String])> {
        self.mapping.iter().zip(&self.keys).map(|(table, key)| (table, key.as_slice()))
    }

    /// Replays the history and compares. None: it gives this execution.
    pub fn problem(&self) -> Option<String> {
        let mut replay = Replay::new(self.execution.id);
        for HistoryRow { event_id, at, event_type, details, .. } in &self.history {
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

/// The first tick after a moment: see [`xdb_protocol::next_tick`].
pub fn next_tick(cron: &Cron, after: Timestamp) -> std::result::Result<Timestamp, UnknownName> {
    xdb_protocol::next_tick(cron, after, |name| TimeZone::get(name).ok())
}
