//! The rows that an execution should have.

use super::super::save::{current_call, open_queues, open_timers, phase_parts};
use super::super::to_json;
use crate::pg::catch::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use xdb_engine::*;

/// What is known of an execution.
pub struct Known {
    pub execution: Execution,
    /// When messages were received; None without a history.
    pub received_at: Option<HashMap<u64, Timestamp>>,
    /// There may be message ids that the execution does not know of.
    pub more_message_ids: bool,
}

/// A table and the rows of one execution that it should have.
pub struct Table {
    pub name: &'static str,
    pub key: &'static [&'static str],
    pub fields: &'static [&'static str],
    /// The column with the execution.
    pub of: &'static str,
    pub rows: Columns,
    /// Further rows may be there: nobody knows of them without a history, or beyond a snapshot.
    pub may_have_more: bool,
}

const EXECUTION: &str = "execution_id";

/// Keys and other fields of rows, as JSON objects. A field that is not named is not compared.
#[derive(Default)]
pub struct Columns {
    pub keys: Vec<String>,
    pub fields: Vec<String>,
}

impl Columns {
    fn push(&mut self, key: &impl Serialize, fields: &impl Serialize) -> Result<()> {
        self.keys.push(to_json(key)?);
        self.fields.push(to_json(fields)?);
        Ok(())
    }
}

/// No column.
#[derive(Serialize)]
struct Nothing {}

#[derive(Serialize)]
struct OwnRow<'a> {
    shard: i16,
    process_id: &'a str,
    process_type: &'a str,
    status: ProcessStatus,
    started_at: Timestamp,
    closed_at: Option<Timestamp>,
    timeout_at: Option<Timestamp>,
    reason: Option<&'a str>,
    next_event: u64,
    next_message: u64,
    completing: bool,
    results: &'a [ProcessResult],
    #[serde(flatten)]
    counted: Counted<'a>,
}

/// What follows from the states alone.
#[derive(Serialize)]
struct Counted<'a> {
    next_state: u32,
    live_threads: u32,
    state_numbers: &'a BTreeMap<String, u32>,
}

#[derive(Serialize)]
struct StateKey {
    seq: StateSeq,
}

#[derive(Serialize)]
struct StateRow<'a> {
    shard: i16,
    state_id: &'a str,
    number: u32,
    status: StateStatus,
    started_at: Timestamp,
    ended_at: Option<Timestamp>,
    input: Option<&'a Json>,
    config: Option<&'a StateConfig>,
    recovery: Option<&'a Recovery>,
    call: Option<&'a CallState>,
    wait: Option<&'a Wait>,
    last_failure: Option<&'a LastFailure>,
}

#[derive(Serialize)]
struct TaskRow {
    shard: i16,
    api: Api,
    due_at: Timestamp,
}

#[derive(Serialize)]
struct TimerKey {
    seq: u32,
    command: u32,
}

#[derive(Serialize)]
struct TimerRow {
    shard: i16,
    kind: &'static str,
    fire_at: Timestamp,
}

#[derive(Serialize)]
struct WaiterKey<'a> {
    queue_name: &'a str,
    wait_order: u64,
    seq: StateSeq,
}

#[derive(Serialize)]
struct MessageKey<'a> {
    queue_name: &'a str,
    number: u64,
}

#[derive(Serialize)]
struct MessageRow<'a> {
    shard: i16,
    message_id: Option<&'a str>,
    payload: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    received_at: Option<Timestamp>,
}

#[derive(Serialize)]
struct MessageIdKey<'a> {
    queue_name: &'a str,
    message_id: &'a str,
}

#[derive(Serialize)]
struct GlobalWaiterKey {
    seq: StateSeq,
    command: u32,
}

#[derive(Serialize)]
struct GlobalWaiterRow<'a> {
    queue_name: &'a str,
    key: Option<&'a str>,
    at_least: u32,
}

#[derive(Serialize)]
struct TakenKey {
    number: u64,
}

#[derive(Serialize)]
struct TakenRow<'a> {
    taken_seq: StateSeq,
    taken_command: u32,
    queue_name: &'a str,
    key: Option<&'a str>,
    message_id: Option<&'a str>,
    payload: Option<&'a Json>,
}

#[derive(Serialize)]
struct AttributeKey<'a> {
    key: &'a str,
}

#[derive(Serialize)]
struct AttributeRow<'a> {
    value: &'a Json,
}

/// Every table that follows from the execution. `arrived` are the message ids of the inbox, which are on record too.
pub fn expected(known: &Known, shard: i16, arrived: Vec<(String, String)>) -> Result<Vec<Table>> {
    let Known { execution, received_at, more_message_ids } = known;
    Ok(vec![
        own(execution, shard, received_at.is_some())?,
        states(execution, shard)?,
        tasks(execution, shard)?,
        timers(execution, shard)?,
        waiters(execution)?,
        messages(execution, shard, received_at.as_ref())?,
        message_ids(execution, arrived, *more_message_ids)?,
        attributes(execution)?,
        global_waiters(execution)?,
        global_messages(execution)?,
    ])
}

fn own(execution: &Execution, shard: i16, has_history: bool) -> Result<Table> {
    let counted = Counted {
        next_state: execution.next_state,
        live_threads: execution.live_threads,
        state_numbers: &execution.state_numbers,
    };
    let mut rows = Columns::default();
    if has_history {
        let row = OwnRow {
            shard,
            process_id: &execution.process_id,
            process_type: &execution.process_type,
            status: execution.status,
            started_at: execution.started_at,
            closed_at: execution.closed_at,
            timeout_at: execution.timeout_at,
            reason: execution.reason.as_deref(),
            next_event: execution.next_event,
            next_message: execution.next_message,
            completing: execution.completing,
            results: &execution.results,
            counted,
        };
        rows.push(&Nothing {}, &row)?;
    } else {
        rows.push(&Nothing {}, &counted)?;
    }
    let fields = &[
        "shard",
        "process_id",
        "process_type",
        "status",
        "started_at",
        "closed_at",
        "timeout_at",
        "reason",
        "next_event",
        "next_state",
        "next_message",
        "live_threads",
        "completing",
        "state_numbers",
        "results",
    ];
    Ok(Table { name: "process_execution", key: &[], fields, of: EXECUTION, rows, may_have_more: false })
}

fn states(execution: &Execution, shard: i16) -> Result<Table> {
    let mut rows = Columns::default();
    for state in execution.states.values() {
        let (call, wait, last_failure) = phase_parts(state);
        let row = StateRow {
            shard,
            state_id: &state.id.state_id,
            number: state.id.number,
            status: state.status(),
            started_at: state.started_at,
            ended_at: state.ended_at,
            input: state.input.as_ref(),
            config: state.config.as_deref(),
            recovery: state.recovery.as_ref(),
            call,
            wait,
            last_failure,
        };
        rows.push(&StateKey { seq: state.seq }, &row)?;
    }
    let fields = &[
        "shard",
        "state_id",
        "number",
        "status",
        "started_at",
        "ended_at",
        "input",
        "config",
        "recovery",
        "call",
        "wait",
        "last_failure",
    ];
    Ok(Table { name: "state_execution", key: &["seq"], fields, of: EXECUTION, rows, may_have_more: false })
}

/// A state at a call has one, and nothing else has.
fn tasks(execution: &Execution, shard: i16) -> Result<Table> {
    let mut rows = Columns::default();
    for state in execution.states.values() {
        if let Some((api, call)) = current_call(state) {
            rows.push(&StateKey { seq: state.seq }, &TaskRow { shard, api, due_at: call.not_before })?;
        }
    }
    Ok(Table {
        name: "task",
        key: &["seq"],
        fields: &["shard", "api", "due_at"],
        of: EXECUTION,
        rows,
        may_have_more: false,
    })
}

fn timers(execution: &Execution, shard: i16) -> Result<Table> {
    let mut rows = Columns::default();
    if let Some(fire_at) = execution.timeout_at.filter(|_| execution.is_running()) {
        rows.push(&TimerKey { seq: 0, command: 0 }, &TimerRow { shard, kind: "PROCESS_TIMEOUT", fire_at })?;
    }
    for state in execution.states.values() {
        for (command, fire_at) in open_timers(state) {
            let key = TimerKey { seq: state.seq.0, command };
            rows.push(&key, &TimerRow { shard, kind: "TIMER_COMMAND", fire_at })?;
        }
    }
    let (key, fields) = (&["seq", "command"], &["shard", "kind", "fire_at"]);
    Ok(Table { name: "timer", key, fields, of: EXECUTION, rows, may_have_more: false })
}

fn waiters(execution: &Execution) -> Result<Table> {
    let mut rows = Columns::default();
    for state in execution.states.values() {
        let queues: BTreeSet<_> = open_queues(state).collect();
        for (queue_name, wait_order) in queues {
            rows.push(&WaiterKey { queue_name, wait_order, seq: state.seq }, &Nothing {})?;
        }
    }
    let key = &["queue_name", "wait_order", "seq"];
    Ok(Table { name: "queue_waiter", key, fields: &[], of: EXECUTION, rows, may_have_more: false })
}

fn messages(execution: &Execution, shard: i16, received_at: Option<&HashMap<u64, Timestamp>>) -> Result<Table> {
    let mut rows = Columns::default();
    for message in execution.queues.values().flatten() {
        let row = MessageRow {
            shard,
            message_id: message.message_id.as_deref(),
            payload: message.payload.as_ref(),
            received_at: received_at.and_then(|times| times.get(&message.number)).copied(),
        };
        rows.push(&MessageKey { queue_name: &message.queue, number: message.number }, &row)?;
    }
    let (key, fields) = (&["queue_name", "number"], &["shard", "message_id", "payload", "received_at"]);
    Ok(Table { name: "queue_message", key, fields, of: EXECUTION, rows, may_have_more: false })
}

/// Ids that were received or wait in the inbox; a closed execution needs none.
fn message_ids(execution: &Execution, arrived: Vec<(String, String)>, more: bool) -> Result<Table> {
    let mut rows = Columns::default();
    if execution.is_running() {
        let ids: BTreeSet<_> = execution.message_ids.iter().cloned().chain(arrived).collect();
        for (queue_name, message_id) in &ids {
            rows.push(&MessageIdKey { queue_name, message_id }, &Nothing {})?;
        }
    }
    let may_have_more = execution.is_running() && more;
    Ok(Table {
        name: "message_key",
        key: &["queue_name", "message_id"],
        fields: &[],
        of: EXECUTION,
        rows,
        may_have_more,
    })
}

fn attributes(execution: &Execution) -> Result<Table> {
    let mut rows = Columns::default();
    for (key, value) in &execution.local_attributes {
        rows.push(&AttributeKey { key }, &AttributeRow { value })?;
    }
    Ok(Table { name: "local_attribute", key: &["key"], fields: &["value"], of: EXECUTION, rows, may_have_more: false })
}

fn global_waiters(execution: &Execution) -> Result<Table> {
    let mut rows = Columns::default();
    for state in execution.states.values() {
        for (command, GlobalDemand { queue: queue_name, key, at_least, .. }) in state.global_demands() {
            let row = GlobalWaiterRow { queue_name, key, at_least };
            rows.push(&GlobalWaiterKey { seq: state.seq, command }, &row)?;
        }
    }
    let (key, fields) = (&["seq", "command"], &["queue_name", "key", "at_least"]);
    Ok(Table { name: "global_waiter", key, fields, of: EXECUTION, rows, may_have_more: false })
}

/// Messages of global queues that states have taken and not used up.
fn global_messages(execution: &Execution) -> Result<Table> {
    let mut rows = Columns::default();
    for state in execution.states.values() {
        for (taken_command, message) in state.held_global_messages() {
            let row = TakenRow {
                taken_seq: state.seq,
                taken_command,
                queue_name: &message.queue,
                key: message.key.as_deref(),
                message_id: message.message_id.as_deref(),
                payload: message.payload.as_ref(),
            };
            rows.push(&TakenKey { number: message.number }, &row)?;
        }
    }
    let fields = &["taken_seq", "taken_command", "queue_name", "key", "message_id", "payload"];
    Ok(Table { name: "global_message", key: &["number"], fields, of: "taken_by", rows, may_have_more: false })
}
