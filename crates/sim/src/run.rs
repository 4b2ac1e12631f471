//! An execution with what belongs to it.

use crate::QUOTAS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xdb_engine::*;

/// An execution, whole, and all that is known of it.
pub(crate) struct Run {
    pub execution: Execution,
    /// Number, time, name and details of each event.
    pub history: Vec<(u64, Timestamp, &'static str, String)>,
    /// The mapped tables as they were when it started, and for each the values of its key columns.
    pub mapping: Arc<[TableMapping]>,
    pub keys: Vec<Vec<String>>,
    pub traceparent: Option<String>,
    /// Which event wrote each local attribute last.
    pub local_versions: BTreeMap<String, u64>,
    /// When the first attempt of the call was made that a state is at.
    pub first_attempts: BTreeMap<(StateSeq, Api), Timestamp>,
}

impl Run {
    pub fn new(
        id: ExecutionId,
        mapping: Arc<[TableMapping]>,
        keys: Vec<Vec<String>>,
        traceparent: Option<String>,
    ) -> Self {
        Self {
            execution: Execution::new(id),
            history: Vec::new(),
            mapping,
            keys,
            traceparent,
            local_versions: BTreeMap::new(),
            first_attempts: BTreeMap::new(),
        }
    }

    /// The events that follow from a command. Backoff has no jitter here.
    pub fn decide(
        &self,
        command: &Command,
        definition: &Definition,
        now: Timestamp,
        global_messages: &[GlobalMessage],
    ) -> std::result::Result<Vec<Event>, Rejection> {
        let context = Context {
            now,
            jitter: 0.5,
            definition,
            mapping: &self.mapping,
            // All that was received is in the execution, since all of it is loaded.
            published_before: &BTreeSet::new(),
            global_messages,
            quotas: QUOTAS,
            global_queues_full: false,
        };
        decide(&self.execution, command, context)
    }

    /// Applies an event, and notes it in the history.
    pub fn apply(&mut self, event: Event, now: Timestamp) {
        let number = self.execution.next_event;
        if event.is_recorded() {
            let (name, details) = event.to_parts();
            self.history.push((number, now, name, details));
        }
        match &event {
            Event::LocalAttributesWritten { attributes } => {
                self.local_versions.extend(attributes.keys().map(|name| (name.clone(), number)));
            }
            Event::WaitStarted { seq, .. }
            | Event::StateCompleted { seq, .. }
            | Event::IncidentRaised { seq, .. }
            | Event::StateFailed { seq, .. } => {
                self.first_attempts.retain(|(of, _), _| of != seq);
            }
            _ => {}
        }
        self.execution.apply(&event, now);
    }

    /// Each mapped table with the values of its key.
    pub fn rows(&self) -> impl Iterator<Item = (&TableMapping, &[String])> {
        self.mapping.iter().zip(&self.keys).map(|(table, key)| (table, key.as_slice()))
    }

    /// What is wrong with it: the history, replayed, gives the execution, or it is broken.
    pub fn problems(&self) -> Vec<String> {
        let mut replay = Replay::new(self.execution.id);
        for (number, at, name, details) in &self.history {
            if let Err(broken) = replay.event(*number, *at, name, details) {
                return vec![format!("history_event: {broken}")];
            }
        }
        for state in self.execution.states.values() {
            if let Some((_, call)) = state.current_call() {
                replay.adopt_unrecorded_attempts(state.seq, call.clone());
            }
        }
        let (replayed, found) = (&mut replay.execution, &self.execution);
        let mut problems = Vec::new();
        for seq in replayed.states.keys().chain(found.states.keys()).copied().collect::<BTreeSet<_>>() {
            let (expected, found) = (replayed.states.get(&seq), found.states.get(&seq));
            if expected != found {
                problems.push(format!("state_execution {}: is {found:?} and should be {expected:?}", seq.0));
            }
        }
        replayed.states.clone_from(&found.states);
        if replayed != found {
            problems.push(format!("process_execution: is {found:?} and should be {replayed:?}"));
        }
        problems
    }
}
