//! Process executions: the table `process_execution`, and the locks on its rows.
//!
//! Limitations: this file reads and writes the execution's own row. States, queues and attributes have their own files.

use super::loaded::{Loaded, Meta};
use super::registry::{MappingId, Registry, TypeId, TypeLookup};
use super::table::{
    Record, batch, elements, insert_but, names_but, record, run_but, select_but, set_to_v, statements, table,
    update_but,
};
use super::{from_json, pauses, to_json};
use crate::error;
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, array, column};
use crate::pg::spi::{Row, Spi, Statement};
use pgrx::pg_sys;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xdb_engine::*;

table! {
    /// A process execution. Its row lock guards everything that belongs to the execution.
    // Wide because each field is a column.
    pub struct Process<'a> in "process_execution" {
        key { execution_id: ExecutionId }
        compared {
            shard: i16,
            process_id: &'a str,
            process_type: &'a str,
            status: ProcessStatus,
            started_at: Timestamp,
            closed_at: Option<Timestamp>,
            timeout_at: Option<Timestamp>,
            reason: Option<&'a str>,
            /// The number of the next event, from 1.
            next_event: u64,
            /// The `seq` of the next step, from 1.
            next_state: u32,
            /// The number of the next message that is received, from 1.
            next_message: u64,
            /// Threads that have not ended.
            live_threads: u32,
            /// Received messages in its local queues. The inbox is not counted.
            queued_messages: u32,
            queued_bytes: u64,
            timers: u32,
            /// Whether the process completes when its last thread ends.
            completing: bool,
            /// The last number of each state id, as a JSON object.
            state_numbers: Jsonb<'a>,
            /// The outputs of threads that have closed, as a JSON array. Saving only appends to it.
            results: Jsonb<'a>,
            /// The pause of the process: see [`pauses`](super::pauses).
            pause_mode: Option<PauseMode>,
            paused_until: Option<Timestamp>,
            pause_reason: Option<&'a str>,
            priority: i8,
            /// The execution whose answer started this one.
            parent_id: Option<ExecutionId>,
            /// What else it knows of its parent.
            started_by: Option<Jsonb<'a>>,
            /// An answer has started others. A statement of its own writes it, and seldom.
            has_children: bool,
            waiting_guards: Option<u32>,
            compensation: Option<Jsonb<'a>>,
            /// The locks that the process asks for, as a JSON object of names and modes. Null: none.
            locks: Option<Jsonb<'a>>,
        }
        other {
            type_id: TypeId,
            owner: pg_sys::Oid,
            owner_name: &'a str,
            /// A word of [`Closing`](super::process::Closing), while a close waits for publishers. A close writes it;
            /// publishers read it.
            closing: Option<&'a str>,
            mapping_id: Option<MappingId>,
            attribute_keys: Option<Jsonb<'a>>,
            /// How much of the history is kept. Null: all events. N: at least the last N events. 0: no events.
            history_limit: Option<i32>,
            request_id: Option<&'a str>,
            traceparent: Option<&'a str>,
            /// The text that the shard was computed from. Null: the process id.
            shard_key: Option<&'a str>,
            /// When the execution is purged, instead of by `xdb.retention`. Infinite: never. Written at the close; the
            /// purge reads it.
            purge_at: Option<Timestamp>,
        }
    }
}

/// Columns of a pause. A statement of their own writes them, and seldom.
const PAUSE: &[&str] = &["execution_id", "pause_mode", "paused_until", "pause_reason"];

/// Columns of guards and compensation. A statement of their own writes them, and seldom.
const GUARDS: &[&str] = &["execution_id", "waiting_guards", "compensation"];

/// Further columns that a step does not change.
const KEPT: &[&str] = &[
    "shard",
    "process_id",
    "process_type",
    "started_at",
    "timeout_at",
    "priority",
    "locks",
    "type_id",
    "owner_name",
    "closing",
    "mapping_id",
    "attribute_keys",
    "history_limit",
    "request_id",
    "traceparent",
    "shard_key",
    "parent_id",
    "started_by",
    "has_children",
];

/// Columns that have their defaults when a process starts.
const UNSET: &[&str] =
    &["closing", "has_children", "compensation", "pause_mode", "paused_until", "pause_reason", "purge_at"];

/// Further columns that are null if a process starts without a parent, guards and locks.
const SELDOM_SET: &[&str] = &["parent_id", "started_by", "waiting_guards", "locks"];

/// Columns that the insert of a start leaves out.
fn unset(is_plain: bool) -> Vec<&'static str> {
    if is_plain { [UNSET, SELDOM_SET].concat() } else { UNSET.to_vec() }
}

/// Columns that the update of a step leaves out.
fn unused(is_retained: bool) -> Vec<&'static str> {
    let purge_at: &[_] = if is_retained { &[] } else { &["purge_at"] };
    [&PAUSE[1..], &GUARDS[1..], KEPT, purge_at].concat()
}

record! {
    /// A close that waits for open publishers.
    struct WaitingClose { execution_id: ExecutionId, conditional: bool }
}

/// The columns to load of an execution `p`. Results are only appended, and request ids are only compared in SQL, so
/// neither is loaded.
pub(super) fn columns() -> String {
    select_but::<Process>("p", &["results", "request_id", "purge_at"])
}

fn of_ids(lock: &str) -> String {
    format!(
        "SELECT {} FROM xdb.process_execution p WHERE execution_id = ANY ($1) ORDER BY execution_id{lock}",
        columns()
    )
}

/// The last parameter holds the `next_event` of each row as loaded.
fn update(also: &str, unused: &[&str]) -> String {
    let set = set_to_v(&names_but::<Process>(&[unused, &["execution_id", "owner", "results", "purge_at"]].concat()));
    format!(
        "UPDATE xdb.process_execution p SET {set}, {also}closing = NULL, \
            results = CASE WHEN v.results = '[]' THEN p.results ELSE p.results || v.results END \
        FROM (SELECT {}, unnest(${}::int8[]) AS loaded_event) AS v \
        WHERE p.execution_id = v.execution_id AND p.next_event = v.loaded_event AND p.owner = v.owner",
        elements::<Process>(unused),
        names_but::<Process>(unused).len() + 1
    )
}

fn unmark(which: &str) -> String {
    format!(
        "WITH marked AS MATERIALIZED (SELECT execution_id FROM xdb.process_execution \
         WHERE {which} closing IS NOT NULL ORDER BY execution_id FOR NO KEY UPDATE SKIP LOCKED) \
         UPDATE xdb.process_execution p SET closing = NULL FROM marked WHERE p.execution_id = marked.execution_id"
    )
}

statements! {
    INSERT = insert_but::<Process>(&unset(false));
    // Each column makes the statement slower, and nearly all starts are plain.
    INSERT_PLAIN = insert_but::<Process>(&unset(true));
    // Compares `next_event` and `owner` with the loaded values. In this very transaction, a trigger of the
    // application's tables may have changed the execution since it was loaded. Or the trigger may have given the
    // execution to another role, in whose line its calls then belong.
    UPDATE = update("", &unused(false));
    UPDATE_RETAINED = update("purge_at = COALESCE(v.purge_at, 'infinity'), ", &unused(true));
    HAVE_CHILDREN = "UPDATE xdb.process_execution SET has_children = true WHERE execution_id = ANY ($1)"
        => fn have_children(ids: &[ExecutionId]) -> ();
    PUT_PAUSE = update_but::<Process>(&names_but::<Process>(PAUSE));
    PUT_GUARDS = update_but::<Process>(&names_but::<Process>(GUARDS));
    STEP_OR_SKIP = of_ids(" FOR NO KEY UPDATE SKIP LOCKED");
    STEP = of_ids(" FOR NO KEY UPDATE");
    CLOSE = of_ids(" FOR UPDATE");
    READ = of_ids("");
    /// Which of these executions exist, locked or not.
    EXISTING = "SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1)"
        => pub fn existing(ids: &[ExecutionId]) -> BTreeSet<ExecutionId>;
    /// Locks the given executions that can be closed now, because no other transaction has a lock. The decision must be
    /// made in a later statement. In the same statement it would be made from an old row.
    CLOSE_OR_SKIP = "SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1) \
        ORDER BY execution_id FOR UPDATE SKIP LOCKED"
        => pub fn lock_for_close(ids: &[ExecutionId]) -> BTreeSet<ExecutionId>;
    MARK = format!("UPDATE xdb.process_execution p \
        SET closing = CASE WHEN v.conditional THEN 'CONDITIONAL' ELSE 'UNCONDITIONAL' END \
        FROM {} WHERE p.execution_id = v.execution_id AND p.closing IS NULL", batch::<WaitingClose>())
        => fn mark(closes: [WaitingClose]) -> ();
    /// Removes closing marks that a scheduler left when it ended. Its calls are made again. A row that another
    /// transaction has locked keeps its mark until that transaction saves the execution.
    UNMARK_ALL = unmark("") => pub fn unmark_all() -> ();
    /// Removes the closing marks of these executions, whose closes are given up for now.
    UNMARK_THESE = unmark("execution_id = ANY ($1) AND") => pub fn unmark_closing(ids: &[ExecutionId]) -> ();
}

/// How executions are locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// For the engine: skips rows that another transaction has locked.
    StepOrSkip,
    /// For an RPC of a caller: waits, up to the caller's timeouts.
    Step,
    /// For a caller that stops a process: also waits for open publishers.
    Close,
    /// Reads without a lock, with the statement's snapshot.
    None,
}

impl Lock {
    fn statement(self) -> &'static Statement {
        match self {
            Self::StepOrSkip => &STEP_OR_SKIP,
            Self::Step => &STEP,
            Self::Close => &CLOSE,
            Self::None => &READ,
        }
    }
}

impl<'a> Process<'a> {
    /// The row of an execution, as far as its history determines it.
    pub fn of(execution: &'a Execution, shard: i16) -> Result<Self> {
        let (pause_mode, paused_until, pause_reason) = pauses::columns(execution.pause.as_ref());
        let locks = Some(&execution.locks).filter(|locks| !locks.is_empty()).map(to_json).transpose()?;
        Ok(Self {
            execution_id: execution.id,
            shard,
            process_id: &execution.process_id,
            process_type: &execution.process_type,
            status: execution.status,
            started_at: execution.started_at,
            closed_at: execution.closed_at,
            timeout_at: execution.timeout_at,
            reason: execution.reason.as_deref(),
            next_event: execution.next_event,
            next_state: execution.next_state,
            next_message: execution.next_message,
            live_threads: execution.live_threads,
            queued_messages: execution.queued.messages,
            queued_bytes: execution.queued.bytes,
            timers: execution.timers,
            completing: execution.completing,
            state_numbers: Jsonb(to_json(&execution.state_numbers)?.into()),
            results: Jsonb(to_json(&execution.results)?.into()),
            pause_mode,
            paused_until,
            pause_reason,
            priority: execution.priority,
            parent_id: execution.parent.as_ref().map(|parent| parent.process_execution_id),
            started_by: execution.parent.as_ref().map(to_json).transpose()?.map(|parent| Jsonb(parent.into())),
            has_children: execution.has_children,
            waiting_guards: Some(execution.waiting_guards).filter(|guards| *guards > 0),
            compensation: match &execution.compensation {
                none if *none == Compensation::default() => None,
                some => Some(Jsonb(to_json(some)?.into())),
            },
            locks: locks.map(|locks| Jsonb(locks.into())),
            type_id: 0,
            owner: pg_sys::InvalidOid,
            owner_name: "",
            closing: None,
            mapping_id: None,
            attribute_keys: None,
            history_limit: None,
            request_id: None,
            traceparent: None,
            shard_key: None,
            purge_at: None,
        })
    }

    /// The row of an execution that has just been started.
    fn of_new(Loaded { meta, execution, .. }: &'a Loaded, request_id: Option<&'a str>) -> Result<Self> {
        let keys = meta.mapping_id.map(|_| to_json(&meta.keys)).transpose()?;
        Ok(Self {
            type_id: meta.type_id,
            owner: meta.owner,
            owner_name: &meta.owner_name,
            mapping_id: meta.mapping_id,
            attribute_keys: keys.map(|keys| Jsonb(keys.into())),
            history_limit: super::history::column::of(meta.history),
            request_id,
            traceparent: meta.traceparent.as_deref(),
            shard_key: meta.shard_key.as_deref(),
            ..Self::of(execution, meta.shard)?
        })
    }
}

/// Inserts the rows of executions that have just been started, with their request ids.
pub fn insert_started(spi: &Spi, started: &[(&Loaded, Option<&str>)]) -> Result<()> {
    let rows = started.iter().map(|(loaded, request_id)| Process::of_new(loaded, *request_id));
    let is_plain = |row: &Process| row.parent_id.is_none() && row.waiting_guards.is_none() && row.locks.is_none();
    let (plain, others): (Vec<_>, _) = rows.collect::<Result<Vec<_>>>()?.into_iter().partition(is_plain);
    run_but(spi, &INSERT_PLAIN, &plain, &unset(true))?;
    run_but(spi, &INSERT, &others, &unset(false))?;
    Ok(())
}

/// Updates the rows of executions that existed before. An error if a row was changed behind the loaded values.
pub(super) fn write(spi: &Spi, changed: &[&Loaded]) -> Result<()> {
    let there = changed.iter().filter(|loaded| loaded.before.exists());
    let (retained, others): (Vec<&Loaded>, _) = there.partition(|loaded| own_retention(loaded).is_some());
    let updated = update_with(spi, false, &others)? + update_with(spi, true, &retained)?;
    if updated != (retained.len() + others.len()) as u64 {
        return Err(error::changed_itself());
    }
    let began = changed.iter().filter(|loaded| loaded.execution.has_children && !loaded.before.has_children);
    let parents: Vec<_> = began.map(|loaded| loaded.execution.id).collect();
    if parents.is_empty() { Ok(()) } else { have_children(spi, &parents) }
}

/// Writes the pauses of these executions, or their ends.
pub(super) fn write_pauses(spi: &Spi, changed: &[&Execution]) -> Result<()> {
    let rows = changed.iter().map(|execution| Process::of(execution, 0)).collect::<Result<Vec<_>>>()?;
    run_but(spi, &PUT_PAUSE, &rows, &names_but::<Process>(PAUSE)).map(drop)
}

/// Writes how many guards of these executions wait, and their compensations.
pub(super) fn write_guards(spi: &Spi, changed: &[&Execution]) -> Result<()> {
    let rows = changed.iter().map(|execution| Process::of(execution, 0)).collect::<Result<Vec<_>>>()?;
    run_but(spi, &PUT_GUARDS, &rows, &names_but::<Process>(GUARDS)).map(drop)
}

fn update_with<'a>(spi: &Spi, is_retained: bool, changed: &[&'a Loaded]) -> Result<u64> {
    if changed.is_empty() {
        return Ok(0);
    }
    let row = |loaded: &&'a Loaded| {
        let purge_at = match own_retention(loaded) {
            Some(Retention::For(kept)) => loaded.execution.closed_at.map(|at| at + kept),
            _ => None,
        };
        Ok(Process { owner: loaded.meta.owner, purge_at, ..Process::of(&loaded.execution, loaded.meta.shard)? })
    };
    let rows = changed.iter().map(row).collect::<Result<Vec<_>>>()?;
    let mut params = Process::columns(&rows, &unused(is_retained));
    params.push(column(changed.iter().map(|loaded| loaded.before.next_event)));
    spi.run_batch(if is_retained { &UPDATE_RETAINED } else { &UPDATE }, &params)
}

/// The retention that the type defines for an execution that closes now. None: `xdb.retention` applies, or the
/// execution does not close.
fn own_retention(Loaded { meta, before, execution, .. }: &Loaded) -> Option<Retention> {
    if !before.is_running() || execution.is_running() {
        return None;
    }
    let retention = meta.process_type.as_ref().map(|process_type| process_type.definition.retention());
    retention.filter(|retention| *retention != Retention::BySetting)
}

/// Loads the executions' own rows. With [`Lock::StepOrSkip`], rows that are locked or deleted are missing. In the
/// engine, executions whose definition this turn does not read are also left out, and deferred.
pub fn executions(
    spi: &Spi,
    registry: &mut Registry,
    ids: &[ExecutionId],
    lock: Lock,
) -> Result<BTreeMap<ExecutionId, Loaded>> {
    let rows = spi.rows(lock.statement(), &[array(ids)], read_execution)?;
    with_types(spi, registry, rows)
}

/// Adds types and mappings to executions that were read.
pub(super) fn with_types(
    spi: &Spi,
    registry: &mut Registry,
    rows: Vec<(Meta, Execution)>,
) -> Result<BTreeMap<ExecutionId, Loaded>> {
    let mut loaded = BTreeMap::new();
    for (mut meta, execution) in rows {
        meta.process_type = match registry.process_type(spi, meta.type_id, meta.owner)? {
            TypeLookup::Registered(process_type) => Some(process_type),
            TypeLookup::Missing => None,
            TypeLookup::Later(until) => {
                registry.defer(execution.id, until);
                continue;
            }
        };
        meta.mapping = registry.mapping(spi, meta.mapping_id)?;
        loaded.insert(execution.id, Loaded::new(meta, execution));
    }
    Ok(loaded)
}

/// An execution's own row in the active snapshot, or why it can't be read.
pub(super) fn own(spi: &Spi, id: ExecutionId) -> Result<Option<Result<Execution>>> {
    let read = |row: &Row| Ok(read_execution(row).map(|(_, execution)| execution));
    spi.first(Lock::None.statement(), &[array([id])], read)
}

/// Reads an execution's own row.
pub(super) fn read_execution(row: &Row) -> Result<(Meta, Execution)> {
    let mut execution = Execution::new(row.get("execution_id")?);
    let shard = row.get("shard")?;
    execution.process_id = row.get("process_id")?;
    execution.process_type = row.get("process_type")?;
    execution.status = row.get("status")?;
    execution.started_at = row.get("started_at")?;
    execution.closed_at = row.get("closed_at")?;
    execution.timeout_at = row.get("timeout_at")?;
    execution.reason = row.get("reason")?;
    execution.next_event = row.get("next_event")?;
    execution.next_state = row.get("next_state")?;
    execution.next_message = row.get("next_message")?;
    execution.live_threads = row.get("live_threads")?;
    execution.queued = QueuedTotal { messages: row.get("queued_messages")?, bytes: row.get("queued_bytes")? };
    execution.timers = row.get("timers")?;
    execution.completing = row.get("completing")?;
    execution.state_numbers = from_json(row.get("state_numbers")?)?;
    execution.pause = pauses::read(row)?;
    execution.priority = row.get("priority")?;
    execution.parent = row.get::<Option<&str>>("started_by")?.map(from_json).transpose()?;
    execution.has_children = row.get("has_children")?;
    execution.waiting_guards = row.get::<Option<u32>>("waiting_guards")?.unwrap_or(0);
    execution.compensation = row.get::<Option<&str>>("compensation")?.map_or(Ok(Compensation::default()), from_json)?;
    execution.locks = row.get::<Option<&str>>("locks")?.map(from_json).transpose()?.unwrap_or_default();
    let meta = Meta {
        shard,
        shard_key: row.get("shard_key")?,
        type_id: row.get("type_id")?,
        process_type: None,
        owner: row.get("owner")?,
        owner_name: row.get("owner_name")?,
        closing: row.get::<Option<&str>>("closing")?.is_some(),
        mapping_id: row.get("mapping_id")?,
        mapping: Arc::from([]),
        keys: row.get::<Option<&str>>("attribute_keys")?.map_or(Ok(Vec::new()), from_json)?.into(),
        history: super::history::column::policy(row.get("history_limit")?),
        traceparent: row.get("traceparent")?,
    };
    Ok((meta, execution))
}

/// Marks executions whose close waits for open publishers. The mark keeps new publishers out, so the wait ends.
pub fn mark_closing(spi: &Spi, ids: &[(ExecutionId, bool)]) -> Result<()> {
    let close = |(id, conditional): &(_, _)| WaitingClose { execution_id: *id, conditional: *conditional };
    mark(spi, &ids.iter().map(close).collect::<Vec<_>>())
}
