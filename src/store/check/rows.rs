//! The rows that an execution should have, and how they are compared with those that are there.

use super::super::attribute::LocalAttribute;
use super::super::claim::Task;
use super::super::execution::Process;
use super::super::global_queue;
use super::super::global_waiter;
use super::super::inbox::MessageKey;
use super::super::phases::{current_call, open_queues, open_timers};
use super::super::queue::{QueueMessage, Waiter};
use super::super::state::State;
use super::super::table::{Column, Table, statements};
use super::super::timer::Timer;
use super::super::versions;
use crate::pg::catch::Result;
use crate::pg::spi::Statement;
use pgrx::pg_sys;
use std::collections::{BTreeSet, HashMap};
use xdb_engine::*;

/// What is known of an execution.
pub struct Known {
    pub execution: Execution,
    /// When messages were received; None without a history.
    pub received_at: Option<HashMap<u64, Timestamp>>,
    /// There may be message ids that the execution does not know of.
    pub more_message_ids: bool,
}

/// The rows of one execution that a table should have, as JSON objects of their keys and of other columns. A column that is
/// not named is not compared.
pub struct Expected {
    pub table: &'static str,
    /// Gives the differences: see [`differences`].
    pub statement: &'static Statement,
    /// Columns that hold moments.
    pub moments: Vec<&'static str>,
    pub keys: Vec<String>,
    pub fields: Vec<String>,
    /// Further rows may be there: nobody knows of them without a history, or beyond a snapshot.
    pub may_have_more: bool,
}

const EXECUTION: &str = "execution_id";

/// In a schema of an older release a task does not tell its owner.
const TASKS_COMPARED_IN_OLDER: &[&str] = &["shard", "api", "due_at"];

/// Compares a table with the rows that it should have, as `jsonb`: the spelling of numbers and the order of keys make no
/// difference. `of` is the column with the execution.
fn differences<T: Table>(of: &str) -> String {
    differences_in::<T>(of, T::COMPARED)
}

/// The same for these columns.
fn differences_in<T: Table>(of: &str, compared: &[&str]) -> String {
    let object = |wanted: &dyn Fn(&str) -> bool| {
        let member = |Column { name, .. }: &Column| match is_moment::<T>(name) {
            true => format!("'{name}', EXTRACT(epoch FROM t.{name}) * 1000000"),
            false => format!("'{name}', t.{name}"),
        };
        let columns = T::COLUMNS.iter().filter(|column| wanted(column.name));
        columns.map(member).collect::<Vec<_>>().join(", ")
    };
    let key = object(&|name| T::KEY.contains(&name) && name != of);
    let fields = object(&|name| compared.contains(&name));
    format!(
        "SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, \
            d.expected::text AS expected, d.found::text AS found \
         FROM (SELECT u.key::jsonb, u.fields::jsonb FROM unnest($2::text[], $3::text[]) AS u (key, fields)) AS e \
         FULL JOIN (SELECT jsonb_build_object({key}) AS key, jsonb_build_object({fields}) AS fields \
            FROM xdb.{} AS t WHERE t.{of} = $1) AS f ON f.key = e.key \
         LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found \
            FROM jsonb_object_keys(e.fields) AS n (name) \
            WHERE f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true \
         WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name",
        T::NAME,
    )
}

fn is_moment<T: Table>(name: &str) -> bool {
    T::COLUMNS.iter().any(|column| column.name == name && column.of.name == "timestamptz")
}

statements! {
    PROCESSES = differences::<Process>(EXECUTION);
    STATES = differences::<State>(EXECUTION);
    TASKS = differences::<Task>(EXECUTION);
    TASKS_OF_OLDER = differences_in::<Task>(EXECUTION, TASKS_COMPARED_IN_OLDER);
    TIMERS = differences::<Timer>(EXECUTION);
    WAITERS = differences::<Waiter>(EXECUTION);
    MESSAGES = differences::<QueueMessage>(EXECUTION);
    MESSAGE_KEYS = differences::<MessageKey>(EXECUTION);
    ATTRIBUTES = differences::<LocalAttribute>(EXECUTION);
    GLOBAL_WAITERS = differences::<global_waiter::Waiter>(EXECUTION);
    GLOBAL_MESSAGES = differences::<global_queue::Message>("taken_by");
}

/// These columns of these rows.
fn rows<T: Table>(statement: &'static Statement, of: &str, columns: &[&str], rows: &[T]) -> Expected {
    let key = || T::KEY.iter().copied().filter(|name| *name != of);
    Expected {
        table: T::NAME,
        statement,
        moments: T::COMPARED.iter().copied().filter(|name| is_moment::<T>(name)).collect(),
        keys: rows.iter().map(|row| row.object(key())).collect(),
        fields: rows.iter().map(|row| row.object(columns.iter().copied())).collect(),
        may_have_more: false,
    }
}

/// All that follows from the history.
fn all<T: Table>(statement: &'static Statement, found: &[T]) -> Expected {
    rows(statement, EXECUTION, T::COMPARED, found)
}

/// Every table that follows from the execution. `arrived` are the message ids of the inbox, which are on record too.
pub fn expected(known: &Known, shard: i16, owner: pg_sys::Oid, arrived: &[(String, String)]) -> Result<Vec<Expected>> {
    let Known { execution, received_at, more_message_ids } = known;
    let id = execution.id;
    let states = || execution.states.values().map(AsRef::as_ref);
    let state_rows = states().map(|state| State::of(id, shard, state)).collect::<Result<Vec<_>>>()?;
    // A state at a call has a task, and nothing else has.
    let task = |state: &StateExecution| {
        current_call(state).map(|(api, call)| Task::of((id, state.seq), shard, owner, api, call.not_before))
    };
    Ok(vec![
        own(execution, shard, received_at.is_some())?,
        all(&STATES, &state_rows),
        tasks(&states().filter_map(task).collect::<Vec<_>>()),
        all(&TIMERS, &timers(execution, shard)),
        all(&WAITERS, &states().flat_map(|state| waiters(id, state)).collect::<Vec<_>>()),
        messages(execution, shard, received_at.as_ref()),
        message_keys(execution, arrived, *more_message_ids),
        all(&ATTRIBUTES, &attributes(execution)),
        all(&GLOBAL_WAITERS, &states().flat_map(|state| global_waiters(id, state)).collect::<Vec<_>>()),
        global_messages(execution),
    ])
}

fn tasks(found: &[Task]) -> Expected {
    match versions::is_own() {
        true => all(&TASKS, found),
        false => rows(&TASKS_OF_OLDER, EXECUTION, TASKS_COMPARED_IN_OLDER, found),
    }
}

/// Without a history, what follows from the states alone.
fn own(execution: &Execution, shard: i16, has_history: bool) -> Result<Expected> {
    let counted = &["next_state", "live_threads", "state_numbers"];
    let columns = if has_history { Process::COMPARED } else { counted };
    Ok(rows(&PROCESSES, EXECUTION, columns, &[Process::of(execution, shard)?]))
}

fn timers(execution: &Execution, shard: i16) -> Vec<Timer<'static>> {
    let timeout = execution.timeout_at.filter(|_| execution.is_running());
    let timeout = timeout.map(|fire_at| Timer::of_process(execution.id, shard, fire_at));
    let of_state = |state: &StateExecution| {
        let (id, seq) = (execution.id, state.seq);
        let timer = move |(command, fire_at)| Timer::of_command(id, seq, command, shard, fire_at);
        open_timers(state).into_iter().map(timer)
    };
    timeout.into_iter().chain(execution.states.values().flat_map(|state| of_state(state))).collect()
}

fn waiters(execution_id: ExecutionId, state: &StateExecution) -> impl Iterator<Item = Waiter<'_>> {
    let queues: BTreeSet<_> = open_queues(state).collect();
    let seq = state.seq;
    queues.into_iter().map(move |(queue_name, wait_order)| Waiter { execution_id, queue_name, wait_order, seq })
}

/// Without a history nobody knows when they were received.
fn messages(execution: &Execution, shard: i16, received_at: Option<&HashMap<u64, Timestamp>>) -> Expected {
    let mut expected = all::<QueueMessage>(&MESSAGES, &[]);
    for message in execution.queues.values().flatten() {
        let at = received_at.and_then(|times| times.get(&message.number)).copied();
        let row = QueueMessage::of(execution.id, shard, message, at.unwrap_or_default());
        let known = |name: &&str| at.is_some() || *name != "received_at";
        let columns: Vec<_> = QueueMessage::COMPARED.iter().copied().filter(known).collect();
        let Expected { keys, fields, .. } = rows(&MESSAGES, EXECUTION, &columns, &[row]);
        expected.keys.extend(keys);
        expected.fields.extend(fields);
    }
    expected
}

/// Ids that were received or wait in the inbox; a closed execution needs none.
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

fn global_waiters(id: ExecutionId, state: &StateExecution) -> impl Iterator<Item = global_waiter::Waiter<'_>> {
    state.global_demands().map(move |(command, demand)| global_waiter::Waiter::of((id, state.seq), command, demand))
}

/// Messages of global queues that states have taken and not used up.
fn global_messages(execution: &Execution) -> Expected {
    let taken = execution.states.values().flat_map(|state| {
        let of = |(command, message)| global_queue::Message::taken((execution.id, state.seq), command, message);
        state.held_global_messages().map(of)
    });
    rows(&GLOBAL_MESSAGES, "taken_by", global_queue::Message::COMPARED, &taken.collect::<Vec<_>>())
}
