-- What people read with psql. Every view reads with the rights of its reader, and so under the policies of
-- security.sql; the barrier keeps a reader's own functions from seeing rows before the policies have.
--
-- Every view leads with the process: process_execution is found by its index and the rest by execution_id. Views that
-- put two sources together repeat the join in each branch, so that a condition on process_id reaches both. Window
-- functions are partitioned by process_id for the same reason. Moments inside of jsonb are microseconds since the Unix
-- epoch.

CREATE VIEW xdb.processes WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    p.execution_id,
    EXISTS (
        SELECT FROM xdb.latest_execution AS l
        WHERE l.process_id OPERATOR(pg_catalog.=) p.process_id
          AND l.execution_id OPERATOR(pg_catalog.=) p.execution_id
    ) AS is_latest,
    p.process_type,
    p.owner_name AS owner,
    p.status,
    p.started_at,
    p.timeout_at,
    p.closed_at,
    p.reason,
    p.live_threads,
    CASE WHEN pg_catalog.jsonb_array_length(p.results) OPERATOR(pg_catalog.=) 1 THEN p.results[0]['output'] END
        AS result,
    p.results
FROM xdb.process_execution AS p;

CREATE VIEW xdb.state_executions WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    s.state_id,
    s.number,
    s.status,
    s.started_at,
    s.ended_at,
    CASE
        WHEN s.status OPERATOR(pg_catalog.=) 'WAIT_UNTIL' THEN 'WAIT_UNTIL_API'
        WHEN s.status OPERATOR(pg_catalog.=) 'EXECUTE' THEN 'EXECUTE_API'
    END AS api,
    s.call['failedAttempts']::int OPERATOR(pg_catalog.+) 1 AS attempt,
    pg_catalog.to_timestamp(s.call['notBefore']::double precision OPERATOR(pg_catalog./) 1e6) AS next_attempt_at,
    s.input,
    s.config,
    pg_catalog.jsonb_extract_path_text(s.recovery, 'stateExecutionId') AS recovers_from,
    CASE WHEN s.call IS NOT NULL THEN COALESCE(s.call['repeats']::int, 0) END AS repeats
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id;

CREATE VIEW xdb.waits WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    pg_catalog.jsonb_extract_path_text(s.wait, 'waitingType') AS waiting_type,
    CASE WHEN q.queue IS NOT NULL THEN 'LOCAL_QUEUE' WHEN g.queue IS NOT NULL THEN 'GLOBAL_QUEUE' ELSE 'TIMER' END
        AS kind,
    c."commandId" AS command_id,
    c.status AS command_status,
    COALESCE(q.queue, g.queue) AS queue_name,
    COALESCE(q."atLeast", g."atLeast") AS at_least,
    COALESCE(q."atMost", g."atMost") AS at_most,
    CASE WHEN q.queue IS NOT NULL THEN
        (
            SELECT pg_catalog.count(*) FROM xdb.queue_message AS m
            WHERE m.execution_id OPERATOR(pg_catalog.=) s.execution_id
              AND m.queue_name OPERATOR(pg_catalog.=) q.queue
        ) OPERATOR(pg_catalog.+) (
            SELECT pg_catalog.count(*) FROM xdb.inbox AS i
            WHERE i.execution_id OPERATOR(pg_catalog.=) s.execution_id
              AND i.queue_name OPERATOR(pg_catalog.=) q.queue
        )
    END AS messages_in_queue,
    pg_catalog.to_timestamp(s.wait['since']::double precision OPERATOR(pg_catalog./) 1e6) AS since,
    pg_catalog.to_timestamp(c.kind['timer']['fireAt']::double precision OPERATOR(pg_catalog./) 1e6) AS fire_at,
    NULL::pg_catalog.text AS closing,
    NULL::int[] AS held_up_by,
    g.key
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(s.wait['commands'])
    AS c ("commandId" text, kind jsonb, status text)
-- A column of its own, not an expression: only so can it be looked up in the index of the queues.
LEFT JOIN LATERAL pg_catalog.jsonb_to_record(c.kind['localQueue'])
    AS q (queue text, "atLeast" bigint, "atMost" bigint) ON true
LEFT JOIN LATERAL pg_catalog.jsonb_to_record(c.kind['globalQueue'])
    AS g (queue text, key text, "atLeast" bigint, "atMost" bigint) ON true
WHERE s.status OPERATOR(pg_catalog.=) 'WAITING'
UNION ALL
SELECT
    p.process_id, p.execution_id, NULL, NULL, 'PUBLISHERS', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    p.closing,
    -- Publishers lock the row and keep a lock on the table until they end. One alone has its transaction id in the
    -- row; several have a multixact there, whose members SQL can't safely ask for. Then all the sessions that have
    -- locked rows of this table are the best that can be told.
    (
        SELECT COALESCE(pg_catalog.array_agg(k.pid) FILTER (WHERE k.holds_row), pg_catalog.array_agg(k.pid))
        FROM (
            SELECT r.pid, EXISTS (
                SELECT FROM pg_catalog.pg_locks AS x
                WHERE x.pid OPERATOR(pg_catalog.=) r.pid
                  AND x.locktype OPERATOR(pg_catalog.=) 'transactionid'
                  AND x.transactionid OPERATOR(pg_catalog.=) p.xmax
                  AND x.granted
            ) AS holds_row
            FROM pg_catalog.pg_locks AS r
            JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) r.database
            WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
              AND r.locktype OPERATOR(pg_catalog.=) 'relation'
              AND r.relation OPERATOR(pg_catalog.=) 'xdb.process_execution'::pg_catalog.regclass::pg_catalog.oid
              AND r.mode OPERATOR(pg_catalog.=) 'RowShareLock'
              AND r.granted
        ) AS k
    ),
    NULL
FROM xdb.process_execution AS p
WHERE p.closing IS NOT NULL;

CREATE VIEW xdb.timers WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    t.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    pg_catalog.jsonb_extract_path_text(s.wait, 'commands', t.command::pg_catalog.text, 'commandId') AS command_id,
    t.kind,
    t.fire_at
FROM xdb.process_execution AS p
JOIN xdb.timer AS t ON t.execution_id OPERATOR(pg_catalog.=) p.execution_id
LEFT JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) t.execution_id AND s.seq OPERATOR(pg_catalog.=) t.seq;

CREATE VIEW xdb.queue_messages WITH (security_invoker = true, security_barrier = true) AS
SELECT
    m.process_id,
    m.execution_id,
    m.queue_name,
    pg_catalog.row_number() OVER (
        PARTITION BY m.process_id, m.execution_id, m.queue_name
        ORDER BY m.received DESC, m.ordinal
    ) AS "position",
    m.message_id,
    m.payload,
    m.received,
    m.published_at,
    m.received_at,
    NULL::pg_catalog.text AS key,
    NULL::pg_catalog.timestamptz AS expires_at
FROM (
    SELECT p.process_id, q.execution_id, q.queue_name, q.number AS ordinal, q.message_id, q.payload,
           true AS received, NULL::pg_catalog.timestamptz AS published_at, q.received_at
    FROM xdb.process_execution AS p
    JOIN xdb.queue_message AS q ON q.execution_id OPERATOR(pg_catalog.=) p.execution_id
    UNION ALL
    SELECT p.process_id, i.execution_id, i.queue_name, i.inbox_id, i.message_id, i.payload,
           false, i.published_at, NULL
    FROM xdb.process_execution AS p
    JOIN xdb.inbox AS i ON i.execution_id OPERATOR(pg_catalog.=) p.execution_id
) AS m
UNION ALL
-- Of global queues, which belong to no process. The place is that among the messages that the reader sees.
SELECT
    NULL, NULL, g.queue_name,
    pg_catalog.row_number() OVER (PARTITION BY g.queue_name ORDER BY g.number),
    g.message_id, g.payload, NULL, g.published_at, NULL, g.key, g.expires_at
FROM xdb.global_message AS g
WHERE g.taken_by IS NULL;

-- A state that is at a call keeps its failure with the call and in the column alike.
CREATE VIEW xdb.failures WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    s.status AS state_status,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'api') AS api,
    s.last_failure['attempt']::int AS attempt,
    pg_catalog.to_timestamp(s.last_failure['at']::double precision OPERATOR(pg_catalog./) 1e6) AS failed_at,
    s.last_failure['failure']['status']::int AS http_status,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'errorType') AS error_type,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'detail') AS detail,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'sqlState') AS sql_state,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'table') AS table_name,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'constraint')
        AS constraint_name,
    pg_catalog.to_timestamp(s.call['notBefore']::double precision OPERATOR(pg_catalog./) 1e6) AS next_attempt_at
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
WHERE s.last_failure IS NOT NULL;

CREATE VIEW xdb.attribute_locks WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    l.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    l.locked,
    CASE l.mode
        WHEN 'S' THEN 'SHARE_LOCK'
        WHEN 'X' THEN 'EXCLUSIVE_LOCK'
        WHEN 'IS' THEN 'SHARE_LOCK of a part'
        WHEN 'IX' THEN 'EXCLUSIVE_LOCK of a part'
    END AS lock_type,
    l.granted,
    l.ticket,
    l.object,
    l.due_at
FROM xdb.shown_attribute_locks() AS l
JOIN xdb.process_execution AS p ON p.execution_id OPERATOR(pg_catalog.=) l.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) l.execution_id AND s.seq OPERATOR(pg_catalog.=) l.seq;

CREATE VIEW xdb.history WITH (security_invoker = true, security_barrier = true) AS
SELECT p.process_id, h.execution_id, h.event_id, h.event_time, h.event_type, h.details
FROM xdb.process_execution AS p
JOIN xdb.history_event AS h ON h.execution_id OPERATOR(pg_catalog.=) p.execution_id;

CREATE VIEW xdb.workers WITH (security_invoker = true, security_barrier = true) AS
SELECT
    w.name,
    w.url,
    w.max_concurrency,
    w.registered_at,
    COALESCE(c.in_flight, 0) AS in_flight,
    COALESCE(c.calls, 0) AS calls,
    COALESCE(c.failures, 0) AS failures,
    COALESCE(c.consecutive_failures, 0) AS consecutive_failures,
    c.average_latency,
    c.last_error_at,
    COALESCE(c.breaker, 'closed') AS breaker,
    c.breaker_open_since,
    c.next_probe_at
FROM xdb.worker AS w
LEFT JOIN xdb.worker_counters() AS c ON c.worker_id OPERATOR(pg_catalog.=) w.worker_id;

REVOKE ALL ON ALL TABLES IN SCHEMA xdb FROM PUBLIC;
