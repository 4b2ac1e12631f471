-- The views. Each view reads with the rights of its reader, and so under the policies of policies.sql. The security
-- barrier keeps functions of the reader from seeing rows that the policies hide.
--
-- Each view begins with process_execution, which is found by its index on process_id, and joins the rest by
-- execution_id. Views with several sources repeat the join in each branch, so that a condition on process_id reaches
-- all of them. Window functions are partitioned by process_id for the same reason. Times inside of jsonb are
-- microseconds since the Unix epoch.
--
-- Limitations: without a condition on process_id or execution_id, a view reads all processes that its reader may see.

CREATE OR REPLACE VIEW xdb.processes WITH (security_invoker = true, security_barrier = true) AS
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
    p.results,
    p.pause_mode IS NOT NULL OR t.pause_mode IS NOT NULL AS paused,
    CASE WHEN p.pause_mode IS NULL THEN t.paused_until ELSE p.paused_until END AS paused_until,
    CASE WHEN p.pause_mode IS NULL THEN t.pause_reason ELSE p.pause_reason END AS pause_reason,
    p.parent_id AS parent_execution_id
FROM xdb.process_execution AS p
LEFT JOIN xdb.registered_types() AS t
    ON t.type_id OPERATOR(pg_catalog.=) p.type_id AND p.status OPERATOR(pg_catalog.=) 'RUNNING';
COMMENT ON VIEW xdb.processes IS 'Process executions that the reader may see.';
COMMENT ON COLUMN xdb.processes.process_id IS 'Business identifier, chosen by the application.';
COMMENT ON COLUMN xdb.processes.execution_id IS 'This run of the process id.';
COMMENT ON COLUMN xdb.processes.is_latest IS 'Whether this is the latest execution of its process id.';
COMMENT ON COLUMN xdb.processes.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.processes.owner IS 'Role that the process runs as. The name is that of the time when the role became the owner.';
COMMENT ON COLUMN xdb.processes.status IS 'RUNNING, COMPLETED, FAILED, TIMEOUT or TERMINATED.';
COMMENT ON COLUMN xdb.processes.started_at IS 'When the execution was started.';
COMMENT ON COLUMN xdb.processes.timeout_at IS 'When the execution times out; null = never.';
COMMENT ON COLUMN xdb.processes.closed_at IS 'When the execution closed; null while it runs.';
COMMENT ON COLUMN xdb.processes.reason IS 'Why the execution failed or was stopped.';
COMMENT ON COLUMN xdb.processes.live_threads IS 'Threads that have not ended. A guard that waits is no thread.';
COMMENT ON COLUMN xdb.processes.result IS 'The output, if there is exactly one; otherwise null.';
COMMENT ON COLUMN xdb.processes.results IS 'All outputs, [{"stateExecutionId", "output"}].';
COMMENT ON COLUMN xdb.processes.paused IS 'Whether the process or its type is paused.';
COMMENT ON COLUMN xdb.processes.paused_until IS 'When the pause of the process ends by itself, or else that of its type. Null = it has no end, or nothing is paused.';
COMMENT ON COLUMN xdb.processes.pause_reason IS 'Reason of the pause of the process, or else of its type.';
COMMENT ON COLUMN xdb.processes.parent_execution_id IS 'The execution whose answer started this one; null = none.';

CREATE OR REPLACE VIEW xdb.state_executions WITH (security_invoker = true, security_barrier = true) AS
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
    COALESCE(s.call['attempt']::int, s.call['failedAttempts']::int OPERATOR(pg_catalog.+) 1) AS attempt,
    CASE WHEN s.call['incident'] IS NULL
        THEN pg_catalog.to_timestamp(s.call['notBefore']::double precision OPERATOR(pg_catalog./) 1e6) END AS next_attempt_at,
    s.input,
    s.config,
    pg_catalog.jsonb_extract_path_text(s.recovery, 'stateExecutionId') AS recovers_from,
    CASE WHEN s.call IS NOT NULL THEN COALESCE(s.call['repeats']::int, 0) END AS repeats
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id;
COMMENT ON VIEW xdb.state_executions IS 'Steps (executions of states) of the processes that the reader may see.';
COMMENT ON COLUMN xdb.state_executions.process_id IS 'Process that the step belongs to.';
COMMENT ON COLUMN xdb.state_executions.execution_id IS 'Process execution that the step belongs to.';
COMMENT ON COLUMN xdb.state_executions.state_execution_id IS 'Name of the step, <state_id>-<number>.';
COMMENT ON COLUMN xdb.state_executions.state_id IS 'State of the step.';
COMMENT ON COLUMN xdb.state_executions.number IS 'Number of the step within its state, from 1.';
COMMENT ON COLUMN xdb.state_executions.status IS 'WAIT_UNTIL, WAITING, EXECUTE; then COMPLETED, FAILED (its retries were spent) or ABORTED (an answer or a caller ended it, or the process closed).';
COMMENT ON COLUMN xdb.state_executions.started_at IS 'When the step began.';
COMMENT ON COLUMN xdb.state_executions.ended_at IS 'When the step ended; null while it is live.';
COMMENT ON COLUMN xdb.state_executions.api IS 'The current call, WAIT_UNTIL_API or EXECUTE_API; null while the step waits and when it has ended.';
COMMENT ON COLUMN xdb.state_executions.attempt IS 'Attempt of the current call that is under way or comes next, from 1. When the step has ended, the attempt that ended it. Null while it waits.';
COMMENT ON COLUMN xdb.state_executions.next_attempt_at IS 'The call is not made before this time; in the past if it is due or under way. Null with an incident.';
COMMENT ON COLUMN xdb.state_executions.input IS 'Input of the step.';
COMMENT ON COLUMN xdb.state_executions.config IS 'Options that the start or the decision gave for this step.';
COMMENT ON COLUMN xdb.state_executions.recovers_from IS 'Failed step that this step recovers from; null = none.';
COMMENT ON COLUMN xdb.state_executions.repeats IS 'How often the call was repeated without counting an attempt. Causes: locked values had changed, the worker could take no call, or its answer named what is not registered. Kept when the step has ended.';

CREATE OR REPLACE VIEW xdb.waits WITH (security_invoker = true, security_barrier = true) AS
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
    g.key
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(s.wait['commands'])
    AS c ("commandId" text, kind jsonb, status text)
-- A column, not an expression: otherwise the index of the queues can't be used to find it.
LEFT JOIN LATERAL pg_catalog.jsonb_to_record(c.kind['localQueue'])
    AS q (queue text, "atLeast" bigint, "atMost" bigint) ON true
LEFT JOIN LATERAL pg_catalog.jsonb_to_record(c.kind['globalQueue'])
    AS g (queue text, key text, "atLeast" bigint, "atMost" bigint) ON true
WHERE s.status OPERATOR(pg_catalog.=) 'WAITING'
UNION ALL
SELECT
    p.process_id, p.execution_id, NULL, NULL, 'PUBLISHERS', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    p.closing,
    NULL
FROM xdb.process_execution AS p
WHERE p.closing IS NOT NULL;
COMMENT ON VIEW xdb.waits IS 'What processes wait for: a row for each command of a waiting step, and for each close that waits for open publishers.';
COMMENT ON COLUMN xdb.waits.process_id IS 'Process that waits.';
COMMENT ON COLUMN xdb.waits.execution_id IS 'Process execution that waits.';
COMMENT ON COLUMN xdb.waits.state_execution_id IS 'Step that waits; null for a close.';
COMMENT ON COLUMN xdb.waits.waiting_type IS 'Which commands complete the wait: AllOfCompletion, AnyOfCompletion or AnyOfCombination.';
COMMENT ON COLUMN xdb.waits.kind IS 'TIMER, LOCAL_QUEUE, GLOBAL_QUEUE; or PUBLISHERS for a close.';
COMMENT ON COLUMN xdb.waits.command_id IS 'Id that the worker gave the command; null = none.';
COMMENT ON COLUMN xdb.waits.command_status IS 'WAITING_COMMAND; or COMPLETED_COMMAND or SKIPPED_COMMAND while the step waits for other commands.';
COMMENT ON COLUMN xdb.waits.queue_name IS 'Queue that the command wants messages of.';
COMMENT ON COLUMN xdb.waits.at_least IS 'How many messages complete the command.';
COMMENT ON COLUMN xdb.waits.at_most IS 'The most messages that the command consumes.';
COMMENT ON COLUMN xdb.waits.messages_in_queue IS 'Messages that are in the local queue now, received or not; null for a global queue.';
COMMENT ON COLUMN xdb.waits.since IS 'When the wait began; null for a close.';
COMMENT ON COLUMN xdb.waits.fire_at IS 'When the timer fires.';
COMMENT ON COLUMN xdb.waits.closing IS 'Kind of the close that waits: UNCONDITIONAL or CONDITIONAL.';
COMMENT ON COLUMN xdb.waits.key IS 'Key of the messages that the command wants from a global queue; null = messages with and without a key.';

CREATE OR REPLACE VIEW xdb.timers WITH (security_invoker = true, security_barrier = true) AS
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
COMMENT ON VIEW xdb.timers IS 'Timers of the processes that the reader may see.';
COMMENT ON COLUMN xdb.timers.process_id IS 'Process that the timer belongs to.';
COMMENT ON COLUMN xdb.timers.execution_id IS 'Process execution that the timer belongs to.';
COMMENT ON COLUMN xdb.timers.state_execution_id IS 'Step that waits for the timer; null for a timer of the process.';
COMMENT ON COLUMN xdb.timers.command_id IS 'Id that the worker gave the command; null = none.';
COMMENT ON COLUMN xdb.timers.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME (the end of a pause), PARENT_CLOSED (the end of a process after that of its parent), STATE_BEGINS (of a static wait) or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timers.fire_at IS 'When the timer fires.';

CREATE OR REPLACE VIEW xdb.queue_messages WITH (security_invoker = true, security_barrier = true) AS
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
-- Global queues belong to no process. The position is the one among the messages that the reader sees.
SELECT
    NULL, NULL, g.queue_name,
    pg_catalog.row_number() OVER (PARTITION BY g.queue_name ORDER BY g.number),
    g.message_id, g.payload, NULL, g.published_at, NULL, g.key, g.expires_at
FROM xdb.global_message AS g
WHERE g.taken_by IS NULL;
COMMENT ON VIEW xdb.queue_messages IS 'Messages that were not consumed. A reader sees messages in local queues of visible processes, and messages in global queues that the reader''s roles published. Operators see all.';
COMMENT ON COLUMN xdb.queue_messages.process_id IS 'Process that the queue belongs to; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.execution_id IS 'Process execution that the queue belongs to; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.queue_name IS 'Queue that the message is in.';
COMMENT ON COLUMN xdb.queue_messages.position IS 'Position in the queue: 1 is consumed next. In a global queue, the position among the messages that the reader sees.';
COMMENT ON COLUMN xdb.queue_messages.message_id IS 'Id that the publisher gave the message; null = none.';
COMMENT ON COLUMN xdb.queue_messages.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_messages.received IS 'Whether the process has received the message; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.published_at IS 'When the message was published; null once the process has received it.';
COMMENT ON COLUMN xdb.queue_messages.received_at IS 'When the process received the message; null = not yet, or a global queue.';
COMMENT ON COLUMN xdb.queue_messages.key IS 'Key of a message of a global queue; null = none.';
COMMENT ON COLUMN xdb.queue_messages.expires_at IS 'After this time a message of a global queue can''t be consumed; null = never.';

-- While a step is at a call, both the call and the column last_failure have its last failure.
CREATE OR REPLACE VIEW xdb.failures WITH (security_invoker = true, security_barrier = true) AS
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
    CASE WHEN s.call['incident'] IS NULL
        THEN pg_catalog.to_timestamp(s.call['notBefore']::double precision OPERATOR(pg_catalog./) 1e6) END AS next_attempt_at,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'context') AS context
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
WHERE s.last_failure IS NOT NULL
UNION ALL
-- Processes without a registered type: no call of their steps is made, so none can fail.
SELECT p.process_id, p.execution_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    pg_catalog.format('the process type "%s" is not registered: register it again', p.process_type), NULL, NULL, NULL, NULL, NULL
FROM xdb.process_execution AS p
WHERE p.status OPERATOR(pg_catalog.=) 'RUNNING' AND p.type_id OPERATOR(pg_catalog.<>) ALL (ARRAY(
    -- The function returns all types; of the table a reader sees only those of its own roles.
    SELECT t.type_id FROM xdb.registered_types() AS t))
UNION ALL
-- Calls that are held after crashes: they are not made, whether an earlier attempt failed or not.
SELECT p.process_id, s.execution_id, s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number, s.status,
    s.status OPERATOR(pg_catalog.||) '_API', s.call['failedAttempts']::int OPERATOR(pg_catalog.+) 1, NULL, NULL,
    'CallHeld', 'the call is held, because three times the server crashed while it was made or its answer was applied: '
    'xdb.retry_now() has it made again', NULL, NULL, NULL, NULL, NULL
FROM xdb.process_execution AS p
JOIN xdb.task AS t ON t.execution_id OPERATOR(pg_catalog.=) p.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) t.execution_id AND s.seq OPERATOR(pg_catalog.=) t.seq
WHERE t.lane OPERATOR(pg_catalog.=) 3 AND s.ended_at IS NULL;
COMMENT ON VIEW xdb.failures IS 'Calls whose last attempt failed (retried, given up, or with an incident), whose answer names what is not registered, or that are held after crashes. Also running processes whose type is not registered.';
COMMENT ON COLUMN xdb.failures.process_id IS 'Process that the call belongs to.';
COMMENT ON COLUMN xdb.failures.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.failures.state_execution_id IS 'Step whose call failed; null if the process type is not registered.';
COMMENT ON COLUMN xdb.failures.state_status IS 'WAIT_UNTIL or EXECUTE: the step is still at the call. FAILED: its retries were spent. ABORTED: the process closed before the next attempt.';
COMMENT ON COLUMN xdb.failures.api IS 'Call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.failures.attempt IS 'Attempt that failed, from 1. With NotRegistered, the attempt that is repeated; with CallHeld, the attempt that comes next.';
COMMENT ON COLUMN xdb.failures.failed_at IS 'When the attempt failed; null if the call is held after crashes. With NotRegistered, the time of the first such answer.';
COMMENT ON COLUMN xdb.failures.http_status IS 'HTTP status of the answer; null = none.';
COMMENT ON COLUMN xdb.failures.error_type IS 'Kind of the error, as the worker named it. NotRegistered: an answer names what is not registered. CallHeld: the call is held after crashes.';
COMMENT ON COLUMN xdb.failures.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.failures.context IS 'Functions of the database that ran, innermost first, each with its line; null = none.';
COMMENT ON COLUMN xdb.failures.sql_state IS 'SQLSTATE of the error with which a table or a function refused the answer; null = none.';
COMMENT ON COLUMN xdb.failures.table_name IS 'Table that refused the answer.';
COMMENT ON COLUMN xdb.failures.constraint_name IS 'Constraint that was violated.';
COMMENT ON COLUMN xdb.failures.next_attempt_at IS 'When the next attempt may be made; in the past if it is due or under way. Null = no attempt will be made.';

CREATE OR REPLACE VIEW xdb.incidents WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    s.status OPERATOR(pg_catalog.||) '_API' AS api,
    s.call['failedAttempts']::int AS attempt,
    pg_catalog.to_timestamp(s.last_failure['at']::double precision OPERATOR(pg_catalog./) 1e6) AS raised_at,
    s.last_failure['failure']['status']::int AS http_status,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'errorType') AS error_type,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'detail') AS detail,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'sqlState') AS sql_state,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'table') AS table_name,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'constraint') AS constraint_name
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
-- An incident has a failure. This condition finds it by an index.
WHERE s.last_failure IS NOT NULL AND s.ended_at IS NULL AND s.call['incident'] IS NOT NULL;
COMMENT ON VIEW xdb.incidents IS 'Calls of running processes whose retries are spent, with the policy RAISE_INCIDENT. No attempt is made until xdb.retry_now().';
COMMENT ON COLUMN xdb.incidents.process_id IS 'Process that the call belongs to.';
COMMENT ON COLUMN xdb.incidents.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.incidents.state_execution_id IS 'Step that stays at the call.';
COMMENT ON COLUMN xdb.incidents.api IS 'Call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.incidents.attempt IS 'Attempt that failed last, from 1.';
COMMENT ON COLUMN xdb.incidents.raised_at IS 'When this attempt failed.';
COMMENT ON COLUMN xdb.incidents.http_status IS 'HTTP status of the answer; null = none.';
COMMENT ON COLUMN xdb.incidents.error_type IS 'Kind of the error, as the worker named it.';
COMMENT ON COLUMN xdb.incidents.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.incidents.sql_state IS 'SQLSTATE of the error with which a table or a function refused the answer; null = none.';
COMMENT ON COLUMN xdb.incidents.table_name IS 'Table that refused the answer.';
COMMENT ON COLUMN xdb.incidents.constraint_name IS 'Constraint that was violated.';

CREATE OR REPLACE VIEW xdb.attribute_locks WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    t.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    t.waits_for,
    t.due_at
FROM xdb.process_execution AS p
JOIN xdb.task AS t ON t.execution_id OPERATOR(pg_catalog.=) p.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) t.execution_id AND s.seq OPERATOR(pg_catalog.=) t.seq
WHERE t.lease_until OPERATOR(pg_catalog.=) 'infinity';
COMMENT ON VIEW xdb.attribute_locks IS 'Calls of steps that wait for locks on attributes. RPCs are not among them: an RPC waits for locks of Postgres.';
COMMENT ON COLUMN xdb.attribute_locks.process_id IS 'Process that the call belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.state_execution_id IS 'Step whose call waits.';
COMMENT ON COLUMN xdb.attribute_locks.waits_for IS 'What the call must lock, all at once: rows of tables by their keys, local attributes, or all of them. Cut at 1000 characters.';
COMMENT ON COLUMN xdb.attribute_locks.due_at IS 'Since when the call is due.';

CREATE OR REPLACE VIEW xdb.history WITH (security_invoker = true, security_barrier = true) AS
SELECT p.process_id, h.execution_id, h.event_id, h.event_time, h.event_type, h.details
FROM xdb.process_execution AS p
JOIN xdb.history_event AS h ON h.execution_id OPERATOR(pg_catalog.=) p.execution_id;
COMMENT ON VIEW xdb.history IS 'Events of the processes that the reader may see. Order by execution_id, event_id.';
COMMENT ON COLUMN xdb.history.process_id IS 'Process that the event belongs to.';
COMMENT ON COLUMN xdb.history.execution_id IS 'Process execution that the event belongs to.';
COMMENT ON COLUMN xdb.history.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history.event_time IS 'When the event happened.';
COMMENT ON COLUMN xdb.history.event_type IS 'Kind of the event, for instance StateStarted.';
COMMENT ON COLUMN xdb.history.details IS 'What belongs to the event, a JSON object. Times are microseconds since the Unix epoch.';

CREATE OR REPLACE VIEW xdb.locks WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    p.execution_id,
    p.process_type,
    l.name,
    l.mode,
    l.status OPERATOR(pg_catalog.=) 'GRANTED' AS granted,
    COALESCE(l.granted_at, l.due_at) AS since,
    p.timeout_at AS expires_at,
    CASE
        WHEN l.status OPERATOR(pg_catalog.=) 'WAITING' AND l.judge_at IS NULL THEN (
            SELECT pg_catalog.count(*) FROM (
                SELECT FROM xdb.process_lock AS o
                WHERE o.name OPERATOR(pg_catalog.=) l.name AND o.status OPERATOR(pg_catalog.=) 'WAITING'
                  AND o.judge_at IS NULL
                  AND (o.due_at, o.execution_id) OPERATOR(pg_catalog.<=) (l.due_at, l.execution_id)
                LIMIT 1000
            ) AS before
        )
    END AS place
FROM xdb.process_execution AS p
JOIN xdb.process_lock AS l ON l.execution_id OPERATOR(pg_catalog.=) p.execution_id
WHERE l.status OPERATOR(pg_catalog.<>) 'RELEASED';
COMMENT ON VIEW xdb.locks IS 'Locks that processes have or wait for, of the processes that the reader may see.';
COMMENT ON COLUMN xdb.locks.process_id IS 'Process that holds the lock, or waits for it.';
COMMENT ON COLUMN xdb.locks.execution_id IS 'Process execution that holds the lock, or waits for it.';
COMMENT ON COLUMN xdb.locks.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.locks.name IS 'Name of the lock.';
COMMENT ON COLUMN xdb.locks.mode IS 'EXCLUSIVE or SHARE.';
COMMENT ON COLUMN xdb.locks.granted IS 'Whether the process holds the lock.';
COMMENT ON COLUMN xdb.locks.since IS 'When the process got the lock, or when its first call was due.';
COMMENT ON COLUMN xdb.locks.expires_at IS 'When the process times out and so releases the lock; null = the lock is held until the process ends.';
COMMENT ON COLUMN xdb.locks.place IS 'Place among the waiting requests for the lock that the reader may see, 1 for the next one, counted up to 1000. Null for a holder, and before the first call is due.';
-- A decision is a run of events at one time: what an answer wrote, the steps that ended, and the steps that began. Of
-- the steps that ended, the last one that an answer or a failure ended led to those that began, or else one that was
-- moved by hand: it has a reason, and the guards that end with it have none. An RPC leads to steps without one.
CREATE OR REPLACE VIEW xdb.transitions WITH (security_invoker = true, security_barrier = true) AS
SELECT
    t.process_id,
    t.execution_id,
    t.event_id,
    t.event_time,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS from_state,
    pg_catalog.jsonb_extract_path_text(t.details, 'stateExecutionId') AS to_state,
    -- Without the word State before it.
    pg_catalog.upper(pg_catalog.substr(f.event_type, 6)) AS outcome,
    t.details['input'] AS input,
    t.written
FROM (
    SELECT d.process_id, d.execution_id, d.event_id, d.event_time, d.event_type, d.details,
        COALESCE(
            pg_catalog.max(d.event_id) FILTER (
                WHERE d.event_type OPERATOR(pg_catalog.=) ANY ('{StateCompleted,StateFailed}')) OVER decision,
            CASE WHEN NOT pg_catalog.bool_or(d.event_type OPERATOR(pg_catalog.=) 'RpcApplied') OVER decision THEN
                pg_catalog.max(d.event_id) FILTER (WHERE d.event_type OPERATOR(pg_catalog.=) 'StateAborted'
                    AND d.details OPERATOR(pg_catalog.?) 'reason') OVER decision END
        ) AS from_event,
        pg_catalog.bool_or(d.event_type OPERATOR(pg_catalog.=) 'StateStarted') OVER decision AS begins_steps,
        (pg_catalog.array_agg(d.details['attributes']) FILTER (
            WHERE d.event_type OPERATOR(pg_catalog.=) 'LocalAttributesWritten') OVER decision)[1] AS written
    FROM (
        SELECT e.process_id, e.execution_id, e.event_id, e.event_time, e.event_type, e.details,
            pg_catalog.count(*) FILTER (WHERE
                e.event_time OPERATOR(pg_catalog.<>) e.time_before
                OR e.event_type OPERATOR(pg_catalog.=) 'RpcApplied'
                OR e.type_before OPERATOR(pg_catalog.=) 'AttemptFailed'
                OR e.event_type OPERATOR(pg_catalog.<>) 'StateStarted' AND e.type_before OPERATOR(pg_catalog.=) 'StateStarted'
                OR e.event_type OPERATOR(pg_catalog.=) ANY ('{StateCompleted,StateFailed,LocalAttributesWritten}')
                    AND e.type_before OPERATOR(pg_catalog.=) ANY ('{StateCompleted,StateFailed}')
            ) OVER (PARTITION BY e.process_id, e.execution_id ORDER BY e.event_id) AS number
        FROM (
            SELECT p.process_id, h.execution_id, h.event_id, h.event_time, h.event_type, h.details,
                pg_catalog.lag(h.event_time) OVER history AS time_before, pg_catalog.lag(h.event_type) OVER history AS type_before
            FROM xdb.process_execution AS p
            JOIN xdb.history_event AS h ON h.execution_id OPERATOR(pg_catalog.=) p.execution_id
            WHERE h.event_type OPERATOR(pg_catalog.=) ANY ('{StateCompleted,StateFailed,StateAborted,StateStarted,AttemptFailed,'
                'RpcApplied,LocalAttributesWritten}')
            WINDOW history AS (PARTITION BY p.process_id, h.execution_id ORDER BY h.event_id)
        ) AS e
    ) AS d
    WINDOW decision AS (PARTITION BY d.process_id, d.execution_id, d.number)
) AS t
LEFT JOIN xdb.history_event AS f ON f.execution_id OPERATOR(pg_catalog.=) t.execution_id AND f.event_id OPERATOR(pg_catalog.=)
    CASE WHEN t.event_type OPERATOR(pg_catalog.=) 'StateStarted' THEN t.from_event ELSE t.event_id END
LEFT JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) f.execution_id
    AND s.seq OPERATOR(pg_catalog.=) f.details['seq']::int
WHERE t.event_type OPERATOR(pg_catalog.=) 'StateStarted'
    OR t.event_type OPERATOR(pg_catalog.=) ANY ('{StateCompleted,StateFailed,StateAborted}')
        AND NOT (t.begins_steps AND t.event_id OPERATOR(pg_catalog.=) COALESCE(t.from_event, 0));
COMMENT ON VIEW xdb.transitions IS 'Movements from step to step of the processes that the reader may see, from their histories. Order by execution_id, event_id.';
COMMENT ON COLUMN xdb.transitions.process_id IS 'Process that moved.';
COMMENT ON COLUMN xdb.transitions.execution_id IS 'Process execution that moved.';
COMMENT ON COLUMN xdb.transitions.event_id IS 'Number of the event StateStarted of to_state; without to_state, of the event that ended from_state.';
COMMENT ON COLUMN xdb.transitions.event_time IS 'When the event happened.';
COMMENT ON COLUMN xdb.transitions.from_state IS 'Step that ended, for instance Ship-1; null for the start of the process and for an RPC.';
COMMENT ON COLUMN xdb.transitions.to_state IS 'Step that began; null = the thread ended.';
COMMENT ON COLUMN xdb.transitions.outcome IS 'How from_state ended: COMPLETED, FAILED or ABORTED; null without from_state.';
COMMENT ON COLUMN xdb.transitions.input IS 'Input of to_state.';
COMMENT ON COLUMN xdb.transitions.written IS 'Local attributes that the same decision wrote, {key: value}; null = none.';

-- Left joins: for rows that policies hide from the reader, the columns of the tables are null.
CREATE OR REPLACE VIEW xdb.workers WITH (security_invoker = true, security_barrier = true) AS
SELECT
    f.name,
    w.url,
    w.max_concurrency,
    w.registered_at,
    f.in_flight,
    f.calls,
    f.failures,
    f.consecutive_failures,
    f.average_latency,
    f.last_error_at,
    f.breaker,
    f.breaker_open_since,
    f.next_probe_at,
    f.owner,
    w.role_name AS role,
    f.waiting,
    f.waiting_since
FROM xdb.registered_workers() AS f
LEFT JOIN xdb.worker AS w ON w.worker_id OPERATOR(pg_catalog.=) f.worker_id;
COMMENT ON VIEW xdb.workers IS 'Registered workers, without their secrets. Only operators and members of the owner see more than name and owner. Only calls of states are counted, since the server started. They are counted for the first 256 workers of the server that are called; for all others, in_flight to next_probe_at are null.';
COMMENT ON COLUMN xdb.workers.name IS 'Name of the worker.';
COMMENT ON COLUMN xdb.workers.url IS 'URL of the worker; null = a pull worker.';
COMMENT ON COLUMN xdb.workers.max_concurrency IS 'The most state calls at the worker at one time, for each engine.';
COMMENT ON COLUMN xdb.workers.registered_at IS 'When the worker was first registered or last changed.';
COMMENT ON COLUMN xdb.workers.in_flight IS 'Calls that are under way. Of a pull worker: claimed calls, counted up to 10000.';
COMMENT ON COLUMN xdb.workers.calls IS 'Calls that were made.';
COMMENT ON COLUMN xdb.workers.failures IS 'Calls that failed.';
COMMENT ON COLUMN xdb.workers.consecutive_failures IS 'Calls that have failed since the last one that succeeded.';
COMMENT ON COLUMN xdb.workers.average_latency IS 'Average duration of a call; null = no call was made.';
COMMENT ON COLUMN xdb.workers.last_error_at IS 'When a call failed last; null = none has failed.';
COMMENT ON COLUMN xdb.workers.breaker IS 'closed: calls are made. open: many calls in a row could not reach the worker, and no call is made. half-open: one call is made to test the worker, or will be made when one is due.';
COMMENT ON COLUMN xdb.workers.breaker_open_since IS 'Since when the worker could not be reached; null if the breaker is closed.';
COMMENT ON COLUMN xdb.workers.next_probe_at IS 'When the next call may be made to test the worker; null if the breaker is closed, or this call is under way.';
COMMENT ON COLUMN xdb.workers.role IS 'Role whose members may claim the calls of a pull worker; null if the worker has a URL.';
COMMENT ON COLUMN xdb.workers.waiting IS 'Calls that are due and not under way, of each owner counted up to 1000. They wait for a place, or until the worker can be reached.';
COMMENT ON COLUMN xdb.workers.waiting_since IS 'When the first waiting call came due; null = no call waits.';
COMMENT ON COLUMN xdb.workers.owner IS 'Role that owns the worker; null = it was dropped, or is not known.';

CREATE OR REPLACE VIEW xdb.process_types WITH (security_invoker = true, security_barrier = true) AS
SELECT n.process_type, n.worker, n.owner, t.definition, t.version, t.registered_at, t.pause_mode, t.paused_until, t.pause_reason
FROM xdb.registered_types() AS n
LEFT JOIN xdb.process_type AS t ON t.type_id OPERATOR(pg_catalog.=) n.type_id;
COMMENT ON VIEW xdb.process_types IS 'Registered process types. Only operators and members of the owner see more than process_type, worker and owner.';
COMMENT ON COLUMN xdb.process_types.process_type IS 'Name of the process type.';
COMMENT ON COLUMN xdb.process_types.worker IS 'Worker that answers the calls of its states and its RPCs; null = functions of the database answer all of them.';
COMMENT ON COLUMN xdb.process_types.owner IS 'Role that owns the process type; null = it was dropped, or is not known.';
COMMENT ON COLUMN xdb.process_types.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_types.version IS 'Increases with every registration of the type or its worker.';
COMMENT ON COLUMN xdb.process_types.registered_at IS 'When the type was registered last.';
COMMENT ON COLUMN xdb.process_types.pause_mode IS 'WAIT or REJECT: what happens to requests while the type is paused; null = it is not paused.';
COMMENT ON COLUMN xdb.process_types.paused_until IS 'When the pause ends by itself; null = it has no end, or the type is not paused.';
COMMENT ON COLUMN xdb.process_types.pause_reason IS 'Reason given to xdb.pause_process_type().';
