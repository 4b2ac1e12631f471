//! What the events of a batch add to the counters of `xdb.metrics()`, and what else it reads from tables.
//!
//! Limitations: an attempt that fails before its call is made counts as a call.

use super::loaded::Loaded;
use super::registry::{NO_WORKER, TypeId, WorkerId};
use super::table::{record, statements};
use crate::pg::shmem::counters::{CallEnd, CallKind, Count, OfMessages, OfType};
use crate::pg::wake;
use std::collections::HashMap;
use xdb_engine::*;

record! {
    /// What no counter has. Ages are in microseconds; negative ones are in the future.
    pub struct Figures {
        postgres: String,
        /// Of the closed execution without a retention of its own that closed first.
        oldest_closed: Option<i64>,
        /// How long ago the first retention of an execution of its own ended.
        oldest_overdue: Option<i64>,
    }
}

statements! {
    // Each age is the first entry of an index.
    FIGURES = "SELECT pg_catalog.current_setting('server_version') AS postgres, \
        (SELECT EXTRACT(epoch FROM $1::timestamptz - min(p.closed_at)) * 1000000 FROM xdb.process_execution p \
            WHERE p.closed_at IS NOT NULL AND p.purge_at IS NULL)::int8 AS oldest_closed, \
        (SELECT EXTRACT(epoch FROM $1::timestamptz - min(p.purge_at)) * 1000000 FROM xdb.process_execution p \
            WHERE p.purge_at IS NOT NULL AND p.purge_at < 'infinity')::int8 AS oldest_overdue"
        => pub fn figures(now: Timestamp) -> Option<Figures>;
    NAMES_OF_TYPES = "SELECT t.type_id, t.process_type FROM xdb.process_type t WHERE t.type_id = ANY ($1)"
        => pub fn names_of_types(ids: &[TypeId]) -> HashMap<TypeId, String>;
}

/// Counts the events of a batch when the transaction commits.
pub fn count(batch: &[&Loaded]) {
    // There are few different ones, so a linear search is quick.
    let mut counts = Vec::<(Count, u64)>::new();
    let mut add = |count, number| match counts.iter_mut().find(|(known, _)| *known == count) {
        Some((_, sum)) => *sum += number,
        None => counts.push((count, number)),
    };
    for loaded in batch {
        loaded.events.iter().for_each(|(event, _)| count_event(loaded, event, &mut add));
    }
    counts.into_iter().for_each(|(count, number)| wake::count_at_commit(count, number));
}

fn count_event(loaded: &Loaded, event: &Event, add: &mut impl FnMut(Count, u64)) {
    let of_type = |of| Count::Type(loaded.meta.type_id, of);
    let of_call = |seq, api, end| Count::Call(called(loaded, seq, api), kind(api), end);
    match event {
        Event::ProcessStarted { .. } => add(of_type(OfType::Started), 1),
        Event::ProcessClosed { status, .. } => add(of_type(closed(*status)), 1),
        Event::WaitStarted { seq, .. } if !is_static(loaded, *seq) => {
            add(of_call(*seq, Api::WaitUntil, CallEnd::Ok), 1)
        }
        Event::StateCompleted { seq, .. } => {
            add(of_type(OfType::Steps), 1);
            add(of_call(*seq, Api::Execute, CallEnd::Ok), 1);
        }
        Event::AttemptFailed { seq, api, failure, .. } => add(of_call(*seq, *api, end(failure)), 1),
        Event::IncidentRaised { seq, api, failure, .. } | Event::StateFailed { seq, api, failure, .. } => {
            add(of_type(OfType::StateFailures), 1);
            add(of_call(*seq, *api, end(failure)), 1);
        }
        Event::CallRepeated { seq, api, .. } => add(Count::Repeat(called(loaded, *seq, *api)), 1),
        // What clients publish is counted when they do.
        Event::MessagesReceived { publisher: Publisher::State | Publisher::Rpc, messages } => {
            add(Count::Messages(OfMessages::PublishedLocal), messages.len() as u64)
        }
        Event::CommandCompleted { messages, .. } if !messages.is_empty() => {
            add(Count::Messages(OfMessages::ConsumedLocal), messages.len() as u64)
        }
        Event::GlobalMessagesTaken { messages, .. } => {
            add(Count::Messages(OfMessages::ConsumedGlobal), messages.len() as u64)
        }
        _ => {}
    }
}

/// The worker of a step's call. Functions count as one worker.
pub fn called(loaded: &Loaded, seq: StateSeq, api: Api) -> WorkerId {
    let Some(process_type) = loaded.meta.process_type.as_deref() else { return NO_WORKER };
    let function = |state: &StateExecution| process_type.definition.function_of(&state.id.state_id, api).is_some();
    let is_function = loaded.execution.states.get(&seq).is_some_and(|state| function(state));
    if is_function { NO_WORKER } else { process_type.worker_id() }
}

fn is_static(loaded: &Loaded, seq: StateSeq) -> bool {
    let state = loaded.execution.states.get(&seq);
    let wait = |state: &StateExecution| {
        let definition = loaded.meta.process_type.as_ref().map(|process_type| &process_type.definition);
        definition.is_some_and(|all| all.static_wait(&state.id.state_id, state.config.as_deref()).is_some())
    };
    state.is_some_and(|state| wait(state))
}

pub fn kind(api: Api) -> CallKind {
    match api {
        Api::WaitUntil => CallKind::WaitUntil,
        Api::Execute => CallKind::Execute,
    }
}

fn closed(status: ProcessStatus) -> OfType {
    match status {
        ProcessStatus::Completed => OfType::Completed,
        ProcessStatus::Timeout => OfType::TimedOut,
        ProcessStatus::Terminated => OfType::Terminated,
        ProcessStatus::Failed | ProcessStatus::Running => OfType::Failed,
    }
}

/// How a call has ended, by its failure.
pub fn end(failure: &Failure) -> CallEnd {
    match (failure.status, failure.error_type.as_deref()) {
        _ if failure.app_database_error.is_some() => CallEnd::DatabaseError,
        (Some(200), _) | (None, Some("InvalidAnswer" | "AnswerTooLarge")) => CallEnd::InvalidAnswer,
        (None, Some("Timeout")) => CallEnd::Timeout,
        (None, Some("ConnectionFailed" | "TransportError" | "CallFailed")) => CallEnd::Unreachable,
        (None, Some("HostNotAllowed")) => CallEnd::NotAllowed,
        _ => CallEnd::WorkerError,
    }
}
