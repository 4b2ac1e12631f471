//! Reads and writes for the SQL functions: find a process, start one, publish to one, describe one. The tables
//! `latest_execution` and `rpc_answer`, and queries of `process_execution`.

use super::lanes::CRASHED_LANE;
use super::table::{Gives, Read, Record, batch, record, statements, table};
use super::{StateKey, pauses};
use crate::pg::catch::{PgError, Result};
use crate::pg::param::{Jsonb, array, from_postgres, value};
use crate::pg::row_locks::{OwnLock, RowPlace, own_lock};
use crate::pg::shmem::held_up::BlockingLock;
use crate::pg::spi::{Row, Spi};
use pgrx::pg_sys;
use std::collections::{HashMap, HashSet};
use xdb_engine::{Api, ExecutionId, Pause, ProcessStatus, QueuedTotal, StateExecutionId, Timestamp};

table! {
    /// A process id with its latest execution. Its row lock serializes starts of the same id.
    pub struct Latest<'a> in "latest_execution" {
        key { process_id: &'a str }
        other { execution_id: ExecutionId }
    }
}

table! {
    /// An idempotency key of an RPC, with the first output.
    pub struct StoredRpcAnswer<'a> in "rpc_answer" {
        key { execution_id: ExecutionId, idempotency_key: &'a str }
        other { answered_at: Timestamp, output: Option<Jsonb<'a>>, digest: &'a str }
    }
}

/// A process execution as an SQL function finds it.
#[derive(Clone, Debug)]
pub struct FoundExecution {
    pub id: ExecutionId,
    pub owner: pg_sys::Oid,
    pub status: ProcessStatus,
    /// Set while a close waits for open publishers. Conditional: the execution may stay open after all.
    pub closing: Option<Closing>,
    pub type_id: i32,
    pub shard: i16,
    /// The messages in its local queues.
    pub queued: QueuedTotal,
    pub pause: Option<Pause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    Unconditional,
    Conditional,
}

/// Why due calls of a state are not made, and since when at the earliest.
pub struct NotMade {
    pub state_id: String,
    pub api: Api,
    pub why: &'static str,
    pub since: Option<Timestamp>,
}

/// Whether the reader may see the process `q`.
const VISIBLE_Q: &str = "($6::oid IS NULL OR pg_catalog.pg_has_role($6::oid, q.owner, 'USAGE'))";

/// The columns of `p` that an SQL function reads.
const FOUND: &str = "p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard, p.queued_messages, p.queued_bytes, \
    p.pause_mode, p.paused_until, p.pause_reason";

record! {
    /// The results of threads that have closed, and why the execution has closed.
    pub struct Results {
        /// A JSON array.
        results: String,
        /// The output, if there is exactly one result.
        only: Option<String>,
        /// A JSON text. None if there is no reason.
        reason: Option<String>,
    }

    /// The first use of an RPC's idempotency key.
    pub struct FirstAnswer {
        output: Option<String>,
        /// The digest of the request.
        digest: String,
    }
}

statements! {
    FIND_EXECUTION = format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 AND p.process_id = $2");
    FIND_LATEST = format!("SELECT {FOUND} FROM xdb.latest_execution l JOIN xdb.process_execution p USING (execution_id) \
        WHERE l.process_id = $1");
    LOCK_FOR_PUBLISH = format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 FOR KEY SHARE")
        => fn lock(id: ExecutionId) -> Option<FoundExecution>;
    LOCK_OR_SKIP = format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 FOR KEY SHARE SKIP LOCKED")
        => fn lock_or_skip(id: ExecutionId) -> Option<FoundExecution>;
    VERSION = "SELECT p.tableoid, p.ctid FROM xdb.process_execution p WHERE p.execution_id = $1"
        => fn version(id: ExecutionId) -> Option<(pg_sys::Oid, RowPlace)>;
    /// Locks an execution against steps and publishers, and reads the locked row.
    LOCK_FOR_CLOSE = format!("SELECT {FOUND} FROM xdb.process_execution p WHERE p.execution_id = $1 FOR UPDATE")
        => pub fn lock_for_close(id: ExecutionId) -> Option<FoundExecution>;
    /// One due call of each state and API.
    DUE_CALLS = "SELECT t.execution_id, min(t.seq) AS seq FROM xdb.task t \
        JOIN xdb.state_execution s ON s.execution_id = t.execution_id AND s.seq = t.seq \
        WHERE t.execution_id = $1 AND t.due_at <= $2 GROUP BY t.execution_id, s.state_id, t.api"
        => pub fn due_calls(id: ExecutionId, now: Timestamp) -> Vec<StateKey>;
    /// The last started execution of a process id, whatever `latest_execution` says.
    NEWEST = "SELECT execution_id FROM xdb.process_execution WHERE process_id = $1 \
        ORDER BY started_at DESC, execution_id DESC LIMIT 1" => pub fn newest(process_id: &str) -> Option<ExecutionId>;
    // Without the condition, the insert would wait for a transaction that is changing an existing row.
    /// Takes a process id that has no execution. Then only this transaction decides about it. Returns 0 if the id has
    /// an execution. Waits for a transaction that is about to take the id.
    NEW_ID = "INSERT INTO xdb.latest_execution (process_id, execution_id) SELECT $1, $2 \
        WHERE NOT EXISTS (SELECT FROM xdb.latest_execution l WHERE l.process_id = $1) ON CONFLICT (process_id) DO NOTHING"
        => pub fn claim_new_id(process_id: &str, new: ExecutionId) -> u64;
    /// The latest executions of these process ids, with their owners. Ids without one are left out.
    LATEST_OF_IDS = "SELECT l.process_id, l.execution_id, p.owner FROM unnest($1::text[]) AS k (process_id) \
        JOIN xdb.latest_execution l ON l.process_id = k.process_id \
        JOIN xdb.process_execution p ON p.execution_id = l.execution_id"
        => pub fn latest(process_ids: &[&str]) -> HashMap<String, (ExecutionId, pg_sys::Oid)>;
    /// Locks a process id that has executions, so that only this transaction decides about it. A second transaction
    /// waits here for the first. Returns the latest execution. None if it was deleted.
    LOCK_ID = "SELECT execution_id FROM xdb.latest_execution WHERE process_id = $1 FOR UPDATE"
        => pub fn lock_known_id(process_id: &str) -> Option<ExecutionId>;
    // The update never happens, but it makes the insert lock an existing row in its turn.
    LOCK_IDS = format!("INSERT INTO xdb.latest_execution AS l (process_id, execution_id) \
        SELECT v.process_id, v.execution_id FROM {} \
        ON CONFLICT (process_id) DO UPDATE SET execution_id = l.execution_id WHERE false RETURNING process_id",
        batch::<Latest>());
    /// Makes an execution the latest one of its process id.
    SET_LATEST = "UPDATE xdb.latest_execution SET execution_id = $2 WHERE process_id = $1"
        => pub fn set_latest(process_id: &str, id: ExecutionId) -> ();
    /// The execution that was started with this request id, and its owner.
    BY_REQUEST = "SELECT execution_id, owner FROM xdb.process_execution WHERE process_id = $1 AND request_id = $2"
        => pub fn by_request(process_id: &str, request_id: &str) -> Option<(ExecutionId, pg_sys::Oid)>;
    RESULTS = "SELECT results::text, \
            CASE pg_catalog.jsonb_array_length(results) WHEN 1 THEN (results -> 0 -> 'output')::text END AS only, \
            pg_catalog.to_jsonb(reason)::text AS reason \
        FROM xdb.process_execution WHERE execution_id = $1";
    NEW_KEY = "INSERT INTO xdb.rpc_answer (execution_id, idempotency_key, answered_at, digest) VALUES ($1, $2, $3, $4) \
        ON CONFLICT DO NOTHING" => fn put_key(id: ExecutionId, key: &str, now: Timestamp, digest: &str) -> u64;
    ANSWER = "SELECT output::text, digest FROM xdb.rpc_answer WHERE execution_id = $1 AND idempotency_key = $2"
        => fn first_answer(id: ExecutionId, key: &str) -> Option<FirstAnswer>;
    /// Stores the output for an idempotency key of an RPC.
    KEEP_ANSWER = "UPDATE xdb.rpc_answer SET output = $3::text::jsonb WHERE execution_id = $1 AND idempotency_key = $2"
        => pub fn keep_rpc_answer(id: ExecutionId, key: &str, output: Option<&str>) -> ();
    /// The owner of a running execution, and the owner's name.
    RUNNING_OWNER = "SELECT owner, owner_name FROM xdb.process_execution WHERE execution_id = $1 AND status = 'RUNNING'"
        => pub fn running_owner(id: ExecutionId) -> Option<(pg_sys::Oid, String)>;
    /// The owners of these executions. Executions that do not exist are left out.
    OWNERS = "SELECT execution_id, owner FROM xdb.process_execution WHERE execution_id = ANY ($1)"
        => pub fn owners(ids: &[ExecutionId]) -> HashMap<ExecutionId, pg_sys::Oid>;
    STATE_HAS_BEEN = "SELECT COALESCE((state_numbers ->> $2)::bigint >= $3, false) AS has_been \
        FROM xdb.process_execution WHERE execution_id = $1";
    /// Whether an execution of this state is possible: its process type lists the state, or there has been one.
    STATE_CAN_BE = "SELECT p.state_numbers ? $2 OR EXISTS (SELECT FROM xdb.process_type t \
            WHERE t.process_type = p.process_type AND t.definition -> 'states' ? $2) AS can_be \
        FROM xdb.process_execution p WHERE p.execution_id = $1"
        => pub fn state_can_be(id: ExecutionId, state_id: &str) -> bool;
    DESCRIBE = format!("SELECT (pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object( \
        'processId', p.process_id, 'processExecutionId', p.execution_id, 'processType', p.process_type, \
        'owner', p.owner_name, 'status', p.status, 'closing', p.closing, 'startedAt', p.started_at, \
        'closedAt', p.closed_at, 'timeoutAt', p.timeout_at, 'reason', p.reason, 'ownerProblem', $2::text, \
        'heldUpBy', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('lock', h.lock, 'since', h.since, \
                'table', (SELECT c.oid::regclass::text FROM pg_catalog.pg_class c WHERE c.oid = h.relation)) ORDER BY h.since) \
            FROM unnest($3::text[], $4::oid[], $5::timestamptz[]) AS h (lock, relation, since) WHERE p.status = 'RUNNING'), \
        'pause', CASE WHEN p.pause_mode IS NOT NULL THEN pg_catalog.jsonb_build_object( \
            'mode', p.pause_mode, 'reason', p.pause_reason, 'until', p.paused_until) END, \
        'typePause', (SELECT pg_catalog.jsonb_build_object('mode', t.pause_mode, 'reason', t.pause_reason, 'until', t.paused_until) \
            FROM xdb.process_type t WHERE t.type_id = p.type_id AND t.pause_mode IS NOT NULL AND p.status = 'RUNNING'), \
        'waitingForProcessLocks', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('name', l.name, 'mode', l.mode) ORDER BY l.name) \
            FROM xdb.process_lock l WHERE l.execution_id = p.execution_id AND l.status = 'WAITING'), \
        'parent', (SELECT pg_catalog.jsonb_build_object('processId', q.process_id, 'processExecutionId', q.execution_id, \
                'stateExecutionId', p.started_by -> 'stateExecutionId', 'onClose', p.started_by -> 'onClose', \
                'whenParentCloses', p.started_by -> 'whenParentCloses') \
            FROM xdb.process_execution q WHERE q.execution_id = p.parent_id AND {VISIBLE_Q}), \
        'children', CASE WHEN p.has_children THEN (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object( \
                'processId', c.process_id, 'processExecutionId', c.execution_id, 'processType', c.process_type)) \
            FROM (SELECT q.process_id, q.execution_id, q.process_type FROM xdb.process_execution q \
                WHERE q.parent_id = p.execution_id AND q.status = 'RUNNING' AND {VISIBLE_Q} \
                ORDER BY q.started_at, q.execution_id LIMIT 100) AS c) END, \
        'priority', NULLIF(p.priority, 0), 'completing', CASE WHEN p.completing THEN true END, 'compensating', p.compensation -> 'begun', 'liveThreads', p.live_threads, \
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
                'repeats', (s.call ->> 'repeats')::int, 'incident', (s.call ->> 'incident')::bool, \
                'notCalled', CASE WHEN e.epoch IS NULL AND t.lane <> {CRASHED_LANE} AND t.due_at <= $11 \
                        AND (t.lease_epoch <> 0 OR t.lease_until IS NULL) AND n.why IS NOT NULL \
                    THEN pg_catalog.jsonb_build_object('why', n.why, 'since', GREATEST(t.due_at, n.since)) END, \
                'waitingForLocks', CASE WHEN e.epoch IS NOT NULL AND t.lease_until = 'infinity' THEN t.waits_for END, \
                'callUntil', CASE WHEN (e.epoch IS NOT NULL OR t.lease_epoch = 0 AND t.lease_until IS NOT NULL) AND t.lease_until < 'infinity' THEN t.lease_until END, \
                'nextAttemptAt', CASE WHEN t.lane <> {CRASHED_LANE} AND (e.epoch IS NULL AND (t.lease_epoch <> 0 OR t.lease_until IS NULL) OR t.lease_until = 'infinity') THEN t.due_at END, \
                'held', CASE WHEN t.lane = {CRASHED_LANE} THEN 'three times the server crashed while this call was made or its answer was applied: \
                    xdb.retry_now() has it made again' END, \
                'lastFailure', s.last_failure || pg_catalog.jsonb_build_object( \
                    'at', pg_catalog.to_timestamp((s.last_failure ->> 'at')::float8 / 1e6)), \
                'guard', CASE s.status WHEN 'WAITING' THEN (s.wait ->> 'guard')::bool END, \
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
                LEFT JOIN unnest($7::text[], $8::text[], $9::text[], $10::timestamptz[]) AS n (state_id, api, why, since) \
                    ON n.state_id = s.state_id AND n.api = t.api \
            WHERE s.execution_id = p.execution_id AND s.ended_at IS NULL), '[]'), \
        'results', p.results))::text AS description \
        FROM xdb.process_execution p WHERE p.execution_id = $1");
}

impl<'r> Read<'r> for FoundExecution {
    fn read(row: &Row<'r>) -> Result<Self> {
        Ok(Self {
            id: row.get("execution_id")?,
            owner: row.get("owner")?,
            status: row.get("status")?,
            closing: row.get::<Option<&str>>("closing")?.map(|word| match word {
                "CONDITIONAL" => Closing::Conditional,
                _ => Closing::Unconditional,
            }),
            type_id: row.get("type_id")?,
            shard: row.get("shard")?,
            queued: QueuedTotal { messages: row.get("queued_messages")?, bytes: row.get("queued_bytes")? },
            pause: pauses::read(row)?,
        })
    }
}

/// The latest execution of a process id, or the named one.
pub fn find(spi: &Spi, process_id: &str, execution: Option<ExecutionId>) -> Result<Option<FoundExecution>> {
    find_as(spi, process_id, execution)
}

/// Like [`find`], read as any type that these columns fit.
pub fn find_as<T: for<'r> Read<'r>>(spi: &Spi, process_id: &str, execution: Option<ExecutionId>) -> Result<Option<T>> {
    match execution {
        Some(id) => Gives::of(spi, &FIND_EXECUTION, &[value(id), value(process_id)]),
        None => Gives::of(spi, &FIND_LATEST, &[value(process_id)]),
    }
}

/// What a publisher gets.
pub enum PublishersLock {
    /// The locked row. None if it was deleted.
    Locked(Option<FoundExecution>),
    /// Another transaction is about to close the execution, or to find that it can't.
    Closing,
}

/// Takes the publisher's lock. Steps don't conflict with it, and a close waits for it. Postgres may grant it although
/// the row is locked for a close, or only on a version that is replaced ([`own_lock`]). In the first case nothing may be
/// published before that close has ended, and in the second the row is locked again.
pub fn lock_for_publish(spi: &Spi, id: ExecutionId) -> Result<PublishersLock> {
    lock_by(spi, id, lock)
}

/// Like [`lock_for_publish`], but does not wait: a row that is locked for a close gives `Closing`.
pub fn lock_for_publish_or_skip(spi: &Spi, id: ExecutionId) -> Result<PublishersLock> {
    match lock_by(spi, id, lock_or_skip)? {
        PublishersLock::Locked(None) if version(spi, id)?.is_some() => Ok(PublishersLock::Closing),
        locked => Ok(locked),
    }
}

fn lock_by(
    spi: &Spi,
    id: ExecutionId,
    lock: impl Fn(&Spi, ExecutionId) -> Result<Option<FoundExecution>>,
) -> Result<PublishersLock> {
    loop {
        let Some(locked) = lock(spi, id)? else { return Ok(PublishersLock::Locked(None)) };
        let Some((table, place)) = version(spi, id)? else { return Ok(PublishersLock::Locked(None)) };
        return Ok(match own_lock(table, place) {
            OwnLock::Missing => continue,
            OwnLock::Alone => PublishersLock::Locked(Some(locked)),
            // The ended transaction may have closed the execution after the row was read. From now on no transaction can.
            OwnLock::BesideEnded => PublishersLock::Locked(lock(spi, id)?),
            OwnLock::BesideOpen => PublishersLock::Closing,
        });
    }
}

/// Locks many process ids, in the given order. Each id occurs once. Returns the ids without an execution.
pub fn lock_process_ids(spi: &Spi, ids: &[(&str, ExecutionId)]) -> Result<HashSet<String>> {
    let rows: Vec<_> =
        ids.iter().map(|(process_id, execution_id)| Latest { process_id, execution_id: *execution_id }).collect();
    Gives::of(spi, &LOCK_IDS, &Latest::arrays(&rows))
}

/// The results of an execution. An error if it does not exist.
pub fn results(spi: &Spi, id: ExecutionId) -> Result<Results> {
    let found: Option<_> = Gives::of(spi, &RESULTS, &[value(id)])?;
    found.ok_or_else(|| PgError::internal("an execution no longer exists"))
}

/// Describes an execution as JSON: its state, what it waits for, since when and until when, and its last failure.
///
/// `owner_problem` says why its owner can't own it. `held_up` lists the locks of other sessions that it waits for.
/// `not_called` says why due calls of a state are not made.
/// `reader`: the role whose rights decide which parent and children are named. None: all are.
pub fn describe(
    spi: &Spi,
    id: ExecutionId,
    owner_problem: Option<&str>,
    held_up: &[BlockingLock],
    not_called: &[NotMade],
    reader: Option<pg_sys::Oid>,
    now: Timestamp,
) -> Result<Option<String>> {
    let locks = array(held_up.iter().map(|held_up| held_up.lock.as_str()));
    let tables = array(held_up.iter().map(|held_up| pg_sys::Oid::from(held_up.table)));
    let since = array(held_up.iter().map(|held_up| from_postgres(held_up.since)));
    let states = array(not_called.iter().map(|not| not.state_id.as_str()));
    let apis = array(not_called.iter().map(|not| not.api));
    let reasons = array(not_called.iter().map(|not| not.why));
    let begun = array(not_called.iter().map(|not| not.since));
    let params = [value(id), value(owner_problem), locks, tables, since, value(reader)];
    let params = params.into_iter().chain([states, apis, reasons, begun, value(now)]);
    Gives::of(spi, &DESCRIBE, &params.collect::<Vec<_>>())
}

/// Claims an idempotency key of an RPC for this transaction, for the request with this digest. If the key was used
/// before, returns the first answer. If another transaction is using the key, waits for that transaction.
pub fn claim_rpc_key(
    spi: &Spi,
    id: ExecutionId,
    key: &str,
    digest: &str,
    now: Timestamp,
) -> Result<Option<FirstAnswer>> {
    loop {
        if put_key(spi, id, key, now, digest)? == 1 {
            return Ok(None);
        }
        if let Some(answer) = first_answer(spi, id, key)? {
            return Ok(Some(answer));
        }
        // The row existed, and was deleted (for instance with its execution) before it could be read. The key is free
        // again.
    }
}

/// Whether there was ever a step with that id. Its row may have been deleted: if the history is cut, ended
/// states are deleted too.
pub fn state_has_been(spi: &Spi, id: ExecutionId, state: &StateExecutionId) -> Result<bool> {
    Gives::of(spi, &STATE_HAS_BEEN, &[value(id), value(state.state_id.as_str()), value(i64::from(state.number))])
}
