//! The rows that an execution should have, and the statements that compare them with the tables.

use super::super::attribute::LocalAttribute;
use super::super::claim::Task;
use super::super::execution::Process;
use super::super::global_queue;
use super::super::global_waiter;
use super::super::inbox::MessageKey;
use super::super::phases::open_queues;
use super::super::process_lock::{self, ProcessLock};
use super::super::queue::{QueueMessage, QueueWaiter};
use super::super::state::State;
use super::super::table::{Table, batch, statements};
use super::super::timer::Timer;
use crate::pg::catch::Result;
use crate::pg::param::Param;
use crate::pg::spi::Statement;
use pgrx::pg_sys;
use std::collections::{BTreeSet, HashMap};
use xdb_engine::*;

/// What is known about an execution.
pub struct KnownExecution {
    pub execution: Execution,
    /// When the messages were received, by number. None without a history.
    pub received_at: Option<HashMap<u64, Timestamp>>,
    /// Whether there may be message ids that the execution does not know.
    pub more_message_ids: bool,
}

/// The rows of one execution that a table should have.
pub struct Expected {
    pub table: &'static str,
    /// Returns the differences: see [`differences`].
    pub statement: &'static Statement,
    /// Columns that hold times.
    pub moments: Vec<&'static str>,
    /// The rows, as a batch.
    pub rows: Vec<Param>,
    /// Columns to compare, besides the key.
    pub columns: Vec<&'static str>,
    /// Whether the table may have further rows. Without a history, or from before its snapshot, the rows are not known.
    pub may_have_more: bool,
}

const EXECUTION: &str = "execution_id";

/// Compares a table with the batch of rows that it should have, as `jsonb`. So the spelling of numbers and the order of
/// keys make no difference. `of` is the column with the execution. The last two parameters are the execution, and the
/// columns to compare.
fn differences<T: Table>(of: &str) -> String {
    let row = |relation: &str| {
        let member = |name: &&str| match is_moment::<T>(name) {
            true => format!("'{name}', EXTRACT(epoch FROM {relation}.{name}) * 1000000"),
            false => format!("'{name}', {relation}.{name}"),
        };
        let key = T::KEY.iter().filter(|name| **name != of).map(member).collect::<Vec<_>>().join(", ");
        let fields = T::COMPARED.iter().map(member).collect::<Vec<_>>().join(", ");
        format!("SELECT jsonb_build_object({key}) AS key, jsonb_build_object({fields}) AS fields")
    };
    let (expected, found, execution) = (row("v"), row("t"), T::COLUMNS.len() + 1);
    format!(
        "SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, \
            d.expected::text AS expected, d.found::text AS found \
         FROM ({expected} FROM {}) AS e \
         FULL JOIN ({found} FROM xdb.{} AS t WHERE t.{of} = ${execution}) AS f ON f.key = e.key \
         LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found \
            FROM unnest(${}::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL \
                AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true \
         WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name",
        batch::<T>(),
        T::NAME,
        execution + 1,
    )
}

fn is_moment<T: Table>(name: &str) -> bool {
    T::COLUMNS.iter().any(|column| column.name == name && column.of.name == "timestamptz")
}

statements! {
    PROCESSES = differences::<Process>(EXECUTION);
    STATES = differences::<State>(EXECUTION);
    TASKS = differences::<Task>(EXECUTION);
    TIMERS = differences::<Timer>(EXECUTION);
    WAITERS = differences::<QueueWaiter>(EXECUTION);
    MESSAGES = differences::<QueueMessage>(EXECUTION);
    MESSAGE_KEYS = differences::<MessageKey>(EXECUTION);
    ATTRIBUTES = differences::<LocalAttribute>(EXECUTION);
    LOCKS = differences::<ProcessLock>(EXECUTION);
    GLOBAL_WAITERS = differences::<global_waiter::GlobalWaiter>(EXECUTION);
    GLOBAL_MESSAGES = differences::<global_queue::GlobalQueueMessage>("taken_by");
}

/// These rows, compared in all columns that follow from the history.
fn all<T: Table>(statement: &'static Statement, rows: &[T]) -> Expected {
    Expected {
        table: T::NAME,
        statement,
        moments: T::COMPARED.iter().copied().filter(|name| is_moment::<T>(name)).collect(),
        rows: T::arrays(rows),
        columns: T::COMPARED.to_vec(),
        may_have_more: false,
    }
}

/// The rows of every table that follows from the execution. `arrived` are the message ids of the inbox, which have keys
/// too. `end`: when the timer fires that a closed parent has left.
pub fn expected(
    known: &KnownExecution,
    shard: i16,
    owner: pg_sys::Oid,
    arrived: &[(String, String)],
    end: Option<Timestamp>,
) -> Result<Vec<Expected>> {
    let KnownExecution { execution, received_at, more_message_ids } = known;
    let id = execution.id;
    let states = || execution.states.values().map(AsRef::as_ref);
    let state_rows = states().map(|state| State::of(id, shard, state)).collect::<Result<Vec<_>>>()?;
    // A state at a call has a task, unless it has an incident. No other state has a task.
    let task = |state: &StateExecution| {
        state.open_call().map(|(api, call)| Task::of(execution, state.seq, shard, owner, api, call.not_before))
    };
    Ok(vec![
        own(execution, shard, received_at.is_some())?,
        all(&STATES, &state_rows),
        all(&TASKS, &states().filter_map(task).collect::<Vec<_>>()),
        timers(execution, shard, owner, end),
        all(&WAITERS, &states().flat_map(|state| waiters(id, state)).collect::<Vec<_>>()),
        messages(execution, shard, received_at.as_ref()),
        message_keys(execution, arrived, *more_message_ids),
        all(&ATTRIBUTES, &attributes(execution)),
        locks(execution, owner),
        all(&GLOBAL_WAITERS, &states().flat_map(|state| global_waiters(id, state)).collect::<Vec<_>>()),
        global_messages(execution),
    ])
}

/// The execution's own row. Without a history, only the columns that follow from the states are compared.
fn own(execution: &Execution, shard: i16, has_history: bool) -> Result<Expected> {
    let found = [Process::of(execution, shard)?];
    let mut expected = all(&PROCESSES, &found);
    if !has_history {
        expected.columns = vec![
            "next_state",
            "live_threads",
            "queued_messages",
            "queued_bytes",
            "timers",
            "state_numbers",
            "waiting_guards",
        ];
    }
    Ok(expected)
}

/// The history of a child does not say that its parent has closed. So a timer that the parent has left is right, unless
/// the child goes on without its parent.
fn timers(execution: &Execution, shard: i16, owner: pg_sys::Oid, end: Option<Timestamp>) -> Expected {
    let timeout = execution.timeout_at.filter(|_| execution.is_running());
    let timeout = timeout.map(|fire_at| Timer::of_process(execution.id, shard, owner, fire_at));
    let pause = execution.pause_ends_at().map(|fire_at| Timer::of_pause(execution.id, shard, owner, fire_at));
    let ends_with_parent = |parent: &StartedBy| parent.when_parent_closes == WhenParentCloses::Terminate;
    let end = end.filter(|_| execution.parent.as_deref().is_some_and(ends_with_parent));
    let end = end.map(|fire_at| Timer::of_parent(execution.id, shard, owner, fire_at));
    let mut found: Vec<_> = timeout.into_iter().chain(pause).chain(end).collect();
    for state in execution.states.values() {
        let key = (execution.id, state.seq);
        let timer = |(command, fire_at)| Timer::of_command(key, command, shard, owner, fire_at);
        found.extend(state.open_timers().map(timer));
    }
    all(&TIMERS, &found)
}

fn waiters(execution_id: ExecutionId, state: &StateExecution) -> impl Iterator<Item = QueueWaiter<'_>> {
    let queues: BTreeSet<_> = open_queues(state).collect();
    let seq = state.seq;
    queues.into_iter().map(move |(queue_name, wait_order)| QueueWaiter { execution_id, queue_name, wait_order, seq })
}

/// The messages in local queues. Without a history, the time of receipt is unknown and not compared.
fn messages(execution: &Execution, shard: i16, received_at: Option<&HashMap<u64, Timestamp>>) -> Expected {
    let at = |number| received_at.and_then(|times| times.get(number)).copied().unwrap_or_default();
    let messages = execution.queues.values().flatten();
    let rows = messages.map(|message| QueueMessage::of(execution.id, shard, message, at(&message.number)));
    let mut expected = all(&MESSAGES, &rows.collect::<Vec<_>>());
    expected.columns.retain(|name| received_at.is_some() || *name != "received_at");
    expected
}

/// Message ids that were received or are in the inbox. A closed execution has none.
fn message_keys(execution: &Execution, arrived: &[(String, String)], more: bool) -> Expected {
    let ids: BTreeSet<_> = execution.message_ids.iter().chain(arrived).filter(|_| execution.is_running()).collect();
    let row = |key| {
        let (queue_name, message_id): &(String, String) = key;
        MessageKey { execution_id: execution.id, queue_name, message_id }
    };
    let found: Vec<_> = ids.into_iter().map(row).collect();
    Expected { may_have_more: execution.is_running() && more, ..all(&MESSAGE_KEYS, &found) }
}

fn attributes(execution: &Execution) -> Vec<LocalAttribute<'_>> {
    let execution_id = execution.id;
    let all = execution.local_attributes.iter();
    all.map(|(key, value)| LocalAttribute { execution_id, key, value: value.into() }).collect()
}

/// Of a closed execution, rows may be left until the scheduler deletes them.
fn locks(execution: &Execution, owner: pg_sys::Oid) -> Expected {
    let found: Vec<_> = process_lock::requests(execution, owner).filter(|_| execution.is_running()).collect();
    Expected { may_have_more: !execution.is_running(), ..all(&LOCKS, &found) }
}

fn global_waiters(id: ExecutionId, state: &StateExecution) -> impl Iterator<Item = global_waiter::GlobalWaiter<'_>> {
    state
        .global_demands()
        .map(move |(command, demand)| global_waiter::GlobalWaiter::of((id, state.seq), command, demand))
}

/// Messages of global queues that states have taken and not yet consumed.
fn global_messages(execution: &Execution) -> Expected {
    let taken = execution.states.values().flat_map(|state| {
        let of =
            |(command, message)| global_queue::GlobalQueueMessage::taken((execution.id, state.seq), command, message);
        state.held_global_messages().map(of)
    });
    all(&GLOBAL_MESSAGES, &taken.collect::<Vec<_>>())
}
