//! What the SQL functions read and write: finding a process, starting one, publishing to one.

use super::load::{Loaded, Meta, parse_word};
use super::{history, to_json};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{array, column, column_of_nullable, nullable, value};
use crate::pg::spi::{Row, Snapshot, Spi};
use pgrx::pg_sys;
use std::collections::HashSet;
use xdb_engine::{Execution, ExecutionId, ProcessStatus, Timestamp};

/// A process execution as a function finds it.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: ExecutionId,
    pub owner: pg_sys::Oid,
    pub status: ProcessStatus,
    /// A close is waiting for open publishers; conditional if its outcome is open.
    pub closing: Option<Closing>,
    pub type_id: i32,
    pub shard: i16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    Unconditional,
    Conditional,
}

const FOUND: &str = "p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard";

fn read_found(row: &Row) -> Result<Found> {
    Ok(Found {
        id: row.execution_id(1)?,
        owner: row.need(2)?,
        status: parse_word(&row.need::<String>(3)?, ProcessStatus::parse)?,
        closing: row.get::<String>(4).map(|word| match word.as_str() {
            "CONDITIONAL" => Closing::Conditional,
            _ => Closing::Unconditional,
        }),
        type_id: row.need(5)?,
        shard: row.need(6)?,
    })
}

/// The latest execution of a process id, or the one that is named.
pub fn find(spi: &Spi, process_id: &str, execution: Option<ExecutionId>, snapshot: Snapshot) -> Result<Option<Found>> {
    match execution {
        Some(id) => {
            let sql =
                format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 AND p.process_id = $2");
            spi.first_with(snapshot, &sql, &[value(id), value(process_id)], read_found)
        }
        None => {
            let sql = format!(
                "SELECT {FOUND} FROM xdb.latest_execution l JOIN xdb.process_execution p USING (execution_id) \
                 WHERE l.process_id = $1"
            );
            spi.first_with(snapshot, &sql, &[value(process_id)], read_found)
        }
    }
}

/// Takes the publisher's lock, which steps pass and a close waits for, and reads the row as locked.
pub fn lock_for_publish(spi: &Spi, id: ExecutionId) -> Result<Option<Found>> {
    let sql = format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 FOR KEY SHARE");
    spi.first(&sql, &[value(id)], read_found)
}

/// Locks an execution against steps and publishers, and reads the row as locked.
pub fn lock_for_close(spi: &Spi, id: ExecutionId) -> Result<Option<Found>> {
    let sql = format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 FOR UPDATE");
    spi.first(&sql, &[value(id)], read_found)
}

/// Puts a message into the inbox. With a message id that the queue has seen, nothing happens.
pub fn publish(
    spi: &Spi,
    found: &Found,
    queue: &str,
    message_id: Option<&str>,
    payload: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    const KEY: &str = "INSERT INTO xdb.message_key (execution_id, queue_name, message_id) VALUES ($1, $2, $3) \
        ON CONFLICT DO NOTHING";
    const MESSAGE: &str = "INSERT INTO xdb.inbox (execution_id, shard, queue_name, message_id, payload, bytes, \
        published_at) VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7) RETURNING inbox_id";
    if let Some(message_id) = message_id
        && spi.run(KEY, &[value(found.id), value(queue), value(message_id)])? == 0
    {
        return Ok(());
    }
    let params = [
        value(found.id),
        value(found.shard),
        value(queue),
        nullable(message_id),
        nullable(payload),
        value(payload.map_or(0, str::len) as i32),
        value(now),
    ];
    let inbox_id = spi.first(MESSAGE, &params, |row| row.need(1))?;
    inbox_id.into_iter().for_each(crate::pg::wake::message_at_commit);
    Ok(())
}

/// Makes sure that this transaction alone decides about a process id: the one that comes second waits here for the
/// first. Gives the id's latest execution, if there is one.
pub fn lock_process_id(spi: &Spi, process_id: &str, new: ExecutionId) -> Result<Option<ExecutionId>> {
    const INSERT: &str = "INSERT INTO xdb.latest_execution (process_id, execution_id) VALUES ($1, $2) \
        ON CONFLICT (process_id) DO NOTHING";
    const LOCK: &str = "SELECT execution_id FROM xdb.latest_execution WHERE process_id = $1 FOR UPDATE";
    loop {
        if spi.run(INSERT, &[value(process_id), value(new)])? == 1 {
            return Ok(None);
        }
        // None: the row that stood in the way was deleted meanwhile; try again.
        if let Some(latest) = spi.first(LOCK, &[value(process_id)], |row| row.execution_id(1))? {
            return Ok(Some(latest));
        }
    }
}

/// The same for many process ids, locked in the order given; each stands there once. Gives those that have no
/// execution yet.
pub fn lock_process_ids(spi: &Spi, ids: &[(&str, ExecutionId)]) -> Result<HashSet<String>> {
    // The update that never happens makes the insertion lock the row that is there, in its turn.
    const INSERT: &str = "INSERT INTO xdb.latest_execution AS l (process_id, execution_id) \
        SELECT * FROM unnest($1::text[], $2::uuid[]) \
        ON CONFLICT (process_id) DO UPDATE SET execution_id = l.execution_id WHERE false RETURNING process_id";
    let params = [array(ids.iter().map(|i| i.0)), array(ids.iter().map(|i| i.1))];
    Ok(spi.rows(INSERT, &params, |row| row.need(1))?.into_iter().collect())
}

pub fn set_latest(spi: &Spi, process_id: &str, id: ExecutionId) -> Result<()> {
    const UPDATE: &str = "UPDATE xdb.latest_execution SET execution_id = $2 WHERE process_id = $1";
    spi.run(UPDATE, &[value(process_id), value(id)])?;
    Ok(())
}

/// The execution that was started with this request id, and its owner.
pub fn by_request(spi: &Spi, process_id: &str, request_id: &str) -> Result<Option<(ExecutionId, pg_sys::Oid)>> {
    const SELECT: &str =
        "SELECT execution_id, owner FROM xdb.process_execution WHERE process_id = $1 AND request_id = $2";
    spi.first(SELECT, &[value(process_id), value(request_id)], |row| Ok((row.execution_id(1)?, row.need(2)?)))
}

/// Inserts the rows of executions that have just been started, each with its request id.
pub fn insert(spi: &Spi, started: &[(&Loaded, Option<&str>)]) -> Result<()> {
    const INSERT: &str = "INSERT INTO xdb.process_execution (execution_id, shard, process_id, type_id, process_type, \
        owner, owner_name, status, started_at, closed_at, timeout_at, reason, next_event, next_state, next_message, \
        live_threads, completing, state_numbers, mapping_id, attribute_keys, history_limit, request_id, traceparent) \
        SELECT v.execution_id, v.shard, v.process_id, v.type_id, v.process_type, v.owner, v.owner_name, v.status, \
            v.started_at, v.closed_at, v.timeout_at, v.reason, v.next_event, v.next_state, v.next_message, \
            v.live_threads, v.completing, v.state_numbers::jsonb, v.mapping_id, v.attribute_keys::jsonb, v.history_limit, \
            v.request_id, v.traceparent \
        FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::smallint[]) AS shard, \
            unnest($3::text[]) AS process_id, unnest($4::int[]) AS type_id, \
            unnest($5::text[]) AS process_type, unnest($6::oid[]) AS owner, \
            unnest($7::text[]) AS owner_name, unnest($8::text[]) AS status, \
            unnest($9::timestamptz[]) AS started_at, unnest($10::timestamptz[]) AS closed_at, \
            unnest($11::timestamptz[]) AS timeout_at, unnest($12::text[]) AS reason, \
            unnest($13::bigint[]) AS next_event, unnest($14::int[]) AS next_state, \
            unnest($15::bigint[]) AS next_message, unnest($16::int[]) AS live_threads, \
            unnest($17::bool[]) AS completing, unnest($18::text[]) AS state_numbers, \
            unnest($19::int[]) AS mapping_id, unnest($20::text[]) AS attribute_keys, \
            unnest($21::int[]) AS history_limit, unnest($22::text[]) AS request_id, \
            unnest($23::text[]) AS traceparent) AS v";
    let executions = || started.iter().map(|(loaded, _)| &loaded.execution);
    let metas = || started.iter().map(|(loaded, _)| &loaded.meta);
    let keys = metas().map(|meta| meta.mapping_id.map(|_| to_json(&meta.keys)).transpose());
    let keys = keys.collect::<Result<Vec<_>>>()?;
    let numbers = executions().map(|e| to_json(&e.state_numbers)).collect::<Result<Vec<_>>>()?;
    let params = [
        column(executions().map(|e| e.id)),
        column(metas().map(|meta| meta.shard)),
        column(executions().map(|e| e.process_id.as_str())),
        column(metas().map(|meta| meta.type_id)),
        column(executions().map(|e| e.process_type.as_str())),
        column(metas().map(|meta| meta.owner)),
        column(metas().map(|meta| meta.owner_name.as_str())),
        column(executions().map(|e| e.status.as_str())),
        column(executions().map(|e| e.started_at)),
        column_of_nullable(executions().map(|e| e.closed_at)),
        column_of_nullable(executions().map(|e| e.timeout_at)),
        column_of_nullable(executions().map(|e| e.reason.as_deref())),
        column(executions().map(|e| e.next_event as i64)),
        column(executions().map(|e| e.next_state as i32)),
        column(executions().map(|e| e.next_message as i64)),
        column(executions().map(|e| e.live_threads as i32)),
        column(executions().map(|e| e.completing)),
        column(numbers),
        column_of_nullable(metas().map(|meta| meta.mapping_id)),
        column_of_nullable(keys),
        column_of_nullable(metas().map(|meta| history::column::of(meta.history))),
        column_of_nullable(started.iter().map(|(_, request_id)| *request_id)),
        column_of_nullable(metas().map(|meta| meta.traceparent.as_deref())),
    ];
    spi.run_batch(INSERT, &params)?;
    Ok(())
}

/// Before its first event: what [`Execution::new`] gives, with nothing known of it.
pub fn unstarted(id: ExecutionId, meta: Meta) -> Loaded {
    let execution = Execution::new(id);
    Loaded {
        meta,
        before: execution.clone(),
        execution,
        events: Vec::new(),
        published_before: Default::default(),
        offered: Default::default(),
        acting_as: None,
        heads: Default::default(),
    }
}

/// What threads left when they closed.
pub struct Results {
    /// A JSON array.
    pub all: String,
    /// The output, when there is exactly one.
    pub only: Option<String>,
}

pub fn results(spi: &Spi, id: ExecutionId, snapshot: Snapshot) -> Result<Results> {
    const SELECT: &str = "SELECT results::text, \
        CASE pg_catalog.jsonb_array_length(results) WHEN 1 THEN (results -> 0 -> 'output')::text END \
        FROM xdb.process_execution WHERE execution_id = $1";
    let read = |row: &Row| Ok(Results { all: row.need(1)?, only: row.get(2) });
    let found = spi.first_with(snapshot, SELECT, &[value(id)], read)?;
    found.ok_or_else(|| PgError::internal("an execution is gone"))
}

/// Everything about an execution that answers what it does, what it waits for, since when, until when, and what
/// failed last.
pub fn describe(spi: &Spi, id: ExecutionId) -> Result<Option<String>> {
    const SELECT: &str = "SELECT (pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object( \
        'processId', p.process_id, 'processExecutionId', p.execution_id, 'processType', p.process_type, \
        'owner', p.owner_name, 'status', p.status, 'closing', p.closing, 'startedAt', p.started_at, \
        'closedAt', p.closed_at, 'timeoutAt', p.timeout_at, 'reason', p.reason, \
        'completing', CASE WHEN p.completing THEN true END, 'liveThreads', p.live_threads, \
        'lastFailure', (SELECT s.last_failure || pg_catalog.jsonb_build_object( \
                'stateExecutionId', s.state_id || '-' || s.number, \
                'at', pg_catalog.to_timestamp((s.last_failure ->> 'at')::float8 / 1e6)) \
            FROM xdb.state_execution s WHERE s.execution_id = p.execution_id AND s.last_failure IS NOT NULL \
            ORDER BY (s.last_failure ->> 'at')::bigint DESC LIMIT 1))) \
        || pg_catalog.jsonb_build_object( \
        'threads', COALESCE((SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object( \
                'stateExecutionId', s.state_id || '-' || s.number, 'status', s.status, 'startedAt', s.started_at, \
                'api', t.api, 'worker', w.name, 'attempt', (s.call ->> 'failedAttempts')::int + 1, \
                'firstAttemptAt', t.first_attempt_at, \
                'repeats', (s.call ->> 'repeats')::int, \
                'waitingForLocks', (SELECT pg_catalog.jsonb_agg(l.name ORDER BY l.name) FROM xdb.attribute_lock l \
                    WHERE l.execution_id = s.execution_id AND l.seq = s.seq AND NOT l.granted), \
                'callUntil', CASE WHEN e.epoch IS NOT NULL THEN t.lease_until END, \
                'nextAttemptAt', CASE WHEN e.epoch IS NULL THEN t.due_at END, \
                'lastFailure', s.last_failure || pg_catalog.jsonb_build_object( \
                    'at', pg_catalog.to_timestamp((s.last_failure ->> 'at')::float8 / 1e6)), \
                'waitingType', CASE s.status WHEN 'WAITING' THEN s.wait ->> 'waitingType' END, \
                'waitingSince', CASE s.status WHEN 'WAITING' \
                    THEN pg_catalog.to_timestamp((s.wait ->> 'since')::float8 / 1e6) END, \
                'waitingFor', CASE s.status WHEN 'WAITING' THEN ( \
                    SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object( \
                        'commandId', c.value -> 'commandId', 'status', c.value -> 'status', \
                        'queueName', q.queue -> 'queue', 'key', q.queue -> 'key', \
                        'global', CASE WHEN c.value -> 'kind' ? 'globalQueue' THEN true END, \
                        'atLeast', q.queue -> 'atLeast', 'atMost', q.queue -> 'atMost', \
                        'messagesInQueue', CASE WHEN c.value -> 'kind' ? 'localQueue' THEN ( \
                            SELECT pg_catalog.count(*) FROM xdb.queue_message m WHERE m.execution_id = p.execution_id \
                                AND m.queue_name = c.value -> 'kind' -> 'localQueue' ->> 'queue') + ( \
                            SELECT pg_catalog.count(*) FROM xdb.inbox i WHERE i.execution_id = p.execution_id \
                                AND i.queue_name = c.value -> 'kind' -> 'localQueue' ->> 'queue') END, \
                        'fireAt', pg_catalog.to_timestamp((c.value -> 'kind' -> 'timer' ->> 'fireAt')::float8 / 1e6) \
                        ) ORDER BY c.ordinality) \
                    FROM pg_catalog.jsonb_array_elements(s.wait -> 'commands') WITH ORDINALITY c \
                    CROSS JOIN LATERAL (SELECT COALESCE(c.value -> 'kind' -> 'localQueue', \
                        c.value -> 'kind' -> 'globalQueue') AS queue) AS q) END \
                )) ORDER BY s.seq) \
            FROM xdb.state_execution s LEFT JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq \
                LEFT JOIN xdb.worker w ON w.worker_id = t.worker_id LEFT JOIN xdb.engine e ON e.epoch = t.lease_epoch \
            WHERE s.execution_id = p.execution_id AND s.ended_at IS NULL), '[]'), \
        'results', p.results))::text \
        FROM xdb.process_execution p WHERE p.execution_id = $1";
    spi.first(SELECT, &[value(id)], |row| row.need(1))
}

/// Makes an idempotency key of an RPC this transaction's own. If the key was used before, gives the first answer; if
/// another transaction is using it, waits for that one.
pub fn claim_rpc_key(spi: &Spi, id: ExecutionId, key: &str, now: Timestamp) -> Result<Option<Option<String>>> {
    const INSERT: &str = "INSERT INTO xdb.rpc_answer (execution_id, idempotency_key, answered_at) \
        VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    const SELECT: &str = "SELECT output::text FROM xdb.rpc_answer WHERE execution_id = $1 AND idempotency_key = $2";
    if spi.run(INSERT, &[value(id), value(key), value(now)])? == 1 {
        return Ok(None);
    }
    spi.first(SELECT, &[value(id), value(key)], |row| Ok(row.get(1)))
}

pub fn keep_rpc_answer(spi: &Spi, id: ExecutionId, key: &str, output: Option<&str>) -> Result<()> {
    const UPDATE: &str =
        "UPDATE xdb.rpc_answer SET output = $3::jsonb WHERE execution_id = $1 AND idempotency_key = $2";
    spi.run(UPDATE, &[value(id), value(key), nullable(output)])?;
    Ok(())
}
