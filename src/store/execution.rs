//! Process executions: the table `process_execution`, and how its rows are locked.

use super::loaded::{Loaded, Meta};
use super::registry::{Found, MappingId, Registry, TypeId};
use super::table::{batch, batch_but, insert_but, names_but, record, run, select_but, set_to_v, statements, table};
use super::{from_json, pauses, to_json};
use crate::error;
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, array};
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
            next_event: u64,
            next_state: u32,
            next_message: u64,
            live_threads: u32,
            queued_messages: u32,
            queued_bytes: u64,
            timers: u32,
            completing: bool,
            state_numbers: Jsonb<'a>,
            results: Jsonb<'a>,
            /// See [`pauses`](super::pauses).
            pause_mode: Option<PauseMode>,
            paused_until: Option<Timestamp>,
            pause_reason: Option<&'a str>,
            priority: i8,
        }
        other {
            type_id: TypeId,
            owner: pg_sys::Oid,
            owner_name: &'a str,
            /// A word of [`Closing`](super::process::Closing).
            closing: Option<&'a str>,
            mapping_id: Option<MappingId>,
            attribute_keys: Option<Jsonb<'a>>,
            /// Null: all events are kept. Else at least so many of the last ones; with 0, none.
            history_limit: Option<i32>,
            request_id: Option<&'a str>,
            traceparent: Option<&'a str>,
            /// What its shard was made of, if it was not the process id.
            shard_key: Option<&'a str>,
            /// When it is deleted, instead of by `xdb.retention`; infinite = never.
            purge_at: Option<Timestamp>,
        }
    }
}

record! {
    /// What of it changes, and the number of the next event and the owner as they were loaded.
    // Wide because each field is a column.
    pub struct ExecutionUpdate<'a> {
        execution_id: ExecutionId,
        loaded_event: u64,
        owner: pg_sys::Oid,
        status: ProcessStatus,
        closed_at: Option<Timestamp>,
        reason: Option<&'a str>,
        next_event: u64,
        next_state: u32,
        next_message: u64,
        live_threads: u32,
        queued_messages: u32,
        queued_bytes: u64,
        timers: u32,
        completing: bool,
        state_numbers: Jsonb<'a>,
        /// Results that come to those that are there.
        results: Option<Jsonb<'a>>,
        /// When it is deleted: of one that closes with a retention of its own, where None is never.
        purge_at: Option<Timestamp>,
    }
}

record! {
    /// Its pause: seldom written, so it is no part of the above.
    struct PauseUpdate<'a> of Process<'a> {
        execution_id: ExecutionId,
        pause_mode: Option<PauseMode>,
        paused_until: Option<Timestamp>,
        pause_reason: Option<&'a str>,
    }
}

record! {
    /// A close that waits for open publishers.
    struct Close { execution_id: ExecutionId, conditional: bool }
}

/// What is loaded of the executions `p`. Results are only added to, and request ids only looked for.
pub(super) fn columns() -> String {
    select_but::<Process>("p", &["results", "request_id", "purge_at"])
}

fn of_ids(lock: &str) -> String {
    let columns = columns();
    format!(
        "SELECT {columns} FROM xdb.process_execution p \
         WHERE execution_id = ANY ($1) ORDER BY execution_id{lock}"
    )
}

fn update(also: &str, without: &[&str]) -> String {
    let set =
        set_to_v(&names_but::<ExecutionUpdate>(&["execution_id", "loaded_event", "owner", "results", "purge_at"]));
    format!(
        "UPDATE xdb.process_execution p SET {set}, {also}closing = NULL, \
            results = CASE WHEN v.results IS NULL THEN p.results ELSE p.results || v.results END \
        FROM {} WHERE p.execution_id = v.execution_id AND p.next_event = v.loaded_event AND p.owner = v.owner",
        batch_but::<ExecutionUpdate>(without)
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
    INSERT = insert_but::<Process>(&["purge_at"]);
    // next_event and owner of the loaded row are compared: a trigger of the users' tables may have changed the execution in this very
    // transaction, behind what was loaded, or have given it to another role, in whose line its calls then belong.
    UPDATE = update("", &["purge_at"]);
    UPDATE_RETAINED = update("purge_at = COALESCE(v.purge_at, 'infinity'), ", &[]);
    PUT_PAUSE = super::table::update::<PauseUpdate>();
    STEP_OR_SKIP = of_ids(" FOR NO KEY UPDATE SKIP LOCKED");
    STEP = of_ids(" FOR NO KEY UPDATE");
    CLOSE = of_ids(" FOR UPDATE");
    READ = of_ids("");
    EXISTING = "SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1)";
    CLOSE_OR_SKIP = "SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1) \
        ORDER BY execution_id FOR UPDATE SKIP LOCKED";
    MARK = format!("UPDATE xdb.process_execution p \
        SET closing = CASE WHEN v.conditional THEN 'CONDITIONAL' ELSE 'UNCONDITIONAL' END \
        FROM {} WHERE p.execution_id = v.execution_id AND p.closing IS NULL", batch::<Close>());
    UNMARK_ALL = unmark("");
    UNMARK_THESE = unmark("execution_id = ANY ($1) AND");
}

/// How executions are locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// The engine: rows that somebody else has locked are left out.
    StepOrSkip,
    /// A caller's RPC: waits, under the caller's timeouts.
    Step,
    /// A caller's stop: waits for open publishers too.
    Close,
    /// Looks without locking, with the statement's snapshot.
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
    /// The row that an execution has, as far as its history tells.
    pub fn of(execution: &'a Execution, shard: i16) -> Result<Self> {
        let PauseUpdate { execution_id, pause_mode, paused_until, pause_reason } = PauseUpdate::of(execution);
        Ok(Self {
            execution_id,
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

impl<'a> PauseUpdate<'a> {
    fn of(execution: &'a Execution) -> Self {
        let pause = execution.pause.as_ref();
        Self {
            execution_id: execution.id,
            pause_mode: pause.map(|pause| pause.mode),
            paused_until: pause.and_then(|pause| pause.until),
            pause_reason: pause.and_then(|pause| pause.reason.as_deref()),
        }
    }
}

impl<'a> ExecutionUpdate<'a> {
    fn of(loaded: &'a Loaded) -> Result<Self> {
        let Loaded { meta, before, execution, .. } = loaded;
        let results = &execution.results;
        let results = if results.is_empty() { None } else { Some(Jsonb(to_json(results)?.into())) };
        Ok(Self {
            execution_id: execution.id,
            loaded_event: before.next_event,
            owner: meta.owner,
            status: execution.status,
            closed_at: execution.closed_at,
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
            results,
            purge_at: match own_retention(loaded) {
                Some(Retention::For(kept)) => execution.closed_at.map(|at| at + kept),
                _ => None,
            },
        })
    }
}

/// Inserts the rows of executions that have just been started, each with its request id.
pub fn insert_started(spi: &Spi, started: &[(&Loaded, Option<&str>)]) -> Result<()> {
    let rows = started.iter().map(|(loaded, request_id)| Process::of_new(loaded, *request_id));
    run(spi, &INSERT, &rows.collect::<Result<Vec<_>>>()?)?;
    Ok(())
}

/// Writes what became of executions that were there before.
pub(super) fn write(spi: &Spi, changed: &[&Loaded]) -> Result<()> {
    let there = changed.iter().filter(|loaded| loaded.before.exists());
    let (retained, others): (Vec<&Loaded>, _) = there.partition(|loaded| own_retention(loaded).is_some());
    let updated = update_with(spi, &UPDATE, &others)? + update_with(spi, &UPDATE_RETAINED, &retained)?;
    match updated {
        all if all == (retained.len() + others.len()) as u64 => Ok(()),
        _ => Err(error::changed_itself()),
    }
}

/// Writes the pauses of these executions, or that they have none.
pub(super) fn write_pauses(spi: &Spi, changed: &[&Execution]) -> Result<()> {
    run(spi, &PUT_PAUSE, &changed.iter().map(|execution| PauseUpdate::of(execution)).collect::<Vec<_>>())?;
    Ok(())
}

fn update_with(spi: &Spi, statement: &'static Statement, changed: &[&Loaded]) -> Result<u64> {
    run(spi, statement, &changed.iter().map(|loaded| ExecutionUpdate::of(loaded)).collect::<Result<Vec<_>>>()?)
}

/// The retention that its type has for an execution which closes now.
fn own_retention(Loaded { meta, before, execution, .. }: &Loaded) -> Option<Retention> {
    if !before.is_running() || execution.is_running() {
        return None;
    }
    let retention = meta.process_type.as_ref().map(|process_type| process_type.definition.retention());
    retention.filter(|retention| *retention != Retention::BySetting)
}

/// Loads the executions' own rows. With [`Lock::StepOrSkip`] what is missing is locked by others, or gone. In the engine those are left
/// out, and put off, whose definitions this turn is not to read.
pub fn executions(
    spi: &Spi,
    registry: &mut Registry,
    ids: &[ExecutionId],
    lock: Lock,
) -> Result<BTreeMap<ExecutionId, Loaded>> {
    let rows = spi.rows(lock.statement(), &[array(ids)], read_execution)?;
    let mut loaded = BTreeMap::new();
    for (mut meta, execution) in rows {
        meta.process_type = match registry.process_type(spi, meta.type_id, meta.owner)? {
            Found::Registered(process_type) => Some(process_type),
            Found::Missing => None,
            Found::Later(until) => {
                registry.put_off(execution.id, until);
                continue;
            }
        };
        meta.mapping = registry.mapping(spi, meta.mapping_id)?;
        loaded.insert(execution.id, Loaded::new(meta, execution));
    }
    Ok(loaded)
}

/// An execution's own row, as the active snapshot shows it; if it can't be read, why.
pub(super) fn own(spi: &Spi, id: ExecutionId) -> Result<Option<Result<Execution>>> {
    let read = |row: &Row| Ok(read_execution(row).map(|(_, execution)| execution));
    spi.first(Lock::None.statement(), &[array([id])], read)
}

/// Reads [`columns`]; the type and the mapping are left to be looked up.
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
    execution.queued = Queued { messages: row.get("queued_messages")?, bytes: row.get("queued_bytes")? };
    execution.timers = row.get("timers")?;
    execution.completing = row.get("completing")?;
    execution.state_numbers = from_json(row.get("state_numbers")?)?;
    execution.pause = pauses::read(row)?;
    execution.priority = row.get("priority")?;
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

/// Which of these executions exist, whoever has locked them.
pub fn existing(spi: &Spi, ids: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>> {
    Ok(spi.rows(&EXISTING, &[array(ids)], |row| row.get("execution_id"))?.into_iter().collect())
}

/// Which of these executions can be closed now: no publisher and nobody else holds them. In a statement of its own,
/// because a lock taken together with the decision would be decided from an old row.
pub fn lock_for_close(spi: &Spi, ids: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>> {
    Ok(spi.rows(&CLOSE_OR_SKIP, &[array(ids)], |row| row.get("execution_id"))?.into_iter().collect())
}

/// Marks executions whose close waits for open publishers, so that what they wait for only shrinks.
pub fn mark_closing(spi: &Spi, ids: &[(ExecutionId, bool)]) -> Result<()> {
    let closes: Vec<_> = ids
        .iter()
        .map(|(execution_id, conditional)| Close { execution_id: *execution_id, conditional: *conditional })
        .collect();
    run(spi, &MARK, &closes)?;
    Ok(())
}

/// Takes back closing marks: those that a scheduler left when it ended, whose answers are asked for again, or those of these
/// executions, whose closes are given up for now. One that somebody has locked keeps its mark until that one saves it.
pub fn unmark_closing(spi: &Spi, ids: Option<&[ExecutionId]>) -> Result<()> {
    match ids {
        Some(ids) => spi.run(&UNMARK_THESE, &[array(ids)])?,
        None => spi.run(&UNMARK_ALL, &[])?,
    };
    Ok(())
}
