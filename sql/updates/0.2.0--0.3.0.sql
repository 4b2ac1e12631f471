-- From 0.2.0 to 0.3.0.

-- What only native code writes, and xdb.check_process verifies.
ALTER TABLE xdb.process_execution
    DROP CONSTRAINT process_status_known,
    DROP CONSTRAINT process_closing_known,
    DROP CONSTRAINT process_threads_counted,
    DROP CONSTRAINT process_history_counts,
    DROP CONSTRAINT process_closed_has_time,
    DROP CONSTRAINT process_closed_is_still,
    DROP CONSTRAINT process_keys_need_mapping;
ALTER TABLE xdb.state_execution
    DROP CONSTRAINT state_seq_counts,
    DROP CONSTRAINT state_number_counts,
    DROP CONSTRAINT state_status_known,
    DROP CONSTRAINT state_ended_has_time,
    DROP CONSTRAINT state_at_a_call,
    DROP CONSTRAINT state_waiting_for_something;
ALTER TABLE xdb.task
    DROP CONSTRAINT task_lane_known,
    DROP CONSTRAINT task_api_known,
    DROP CONSTRAINT task_attempt_counts;
ALTER TABLE xdb.timer
    DROP CONSTRAINT timer_kind_known,
    DROP CONSTRAINT timer_of_process_or_state;
ALTER TABLE xdb.inbox DROP CONSTRAINT inbox_bytes_counted;
ALTER TABLE xdb.global_message DROP CONSTRAINT global_message_fresh_is_free;
ALTER TABLE xdb.global_waiter DROP CONSTRAINT global_waiter_wants_messages;
-- pg_restore -j loads tables in any order: a foreign key between them loses rows.
ALTER TABLE xdb.process_type DROP CONSTRAINT process_type_worker;
-- It has other columns.
DROP FUNCTION xdb.status();
-- It has other parameters.
DROP FUNCTION xdb.grant_usage(regrole, boolean);

-- Locks on attributes are no rows any more. The view lets go of the table and keeps its grants; what it reads from now on
-- stands in sql/always. What waited for locks was in a lane of its own.
CREATE OR REPLACE VIEW xdb.attribute_locks WITH (security_invoker = true, security_barrier = true) AS
SELECT NULL::pg_catalog.text AS process_id, NULL::pg_catalog.uuid AS execution_id, NULL::pg_catalog.text AS state_execution_id,
    NULL::pg_catalog.text AS locked, NULL::pg_catalog.text AS lock_type, NULL::pg_catalog.bool AS granted,
    NULL::pg_catalog.int8 AS ticket, NULL::pg_catalog.uuid AS object;
DROP TABLE xdb.attribute_lock, xdb.attribute_lock_release;
DROP SEQUENCE xdb.attribute_lock_ticket;

-- Runners take the place of the scheduler for tables that were set aside. Its leases are void without its row: the scheduler's
-- next epoch is above it all the same.
UPDATE xdb.engine SET epoch = (SELECT pg_catalog.max(epoch) FROM xdb.engine) OPERATOR(pg_catalog.+) 1 WHERE lane OPERATOR(pg_catalog.=) 0;
DELETE FROM xdb.engine WHERE lane OPERATOR(pg_catalog.=) 1;
ALTER TABLE xdb.engine DROP CONSTRAINT engine_lane_known;
ALTER TABLE xdb.engine ADD CONSTRAINT engine_lane_known CHECK (lane OPERATOR(pg_catalog.=) 0 OR lane OPERATOR(pg_catalog.>=) 10 AND lane OPERATOR(pg_catalog.<=) 25);
CREATE TABLE xdb.slow_object (
    kind text NOT NULL CONSTRAINT slow_object_kind_known CHECK (kind OPERATOR(pg_catalog.=) ANY (ARRAY['TABLE', 'FUNCTION', 'ROLE'])),
    object oid NOT NULL,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    reason text NOT NULL,
    pause interval NOT NULL,
    probed_at timestamptz,
    mended_at timestamptz,
    PRIMARY KEY (kind, object)
);
COMMENT ON TABLE xdb.slow_object IS 'Users'' tables that are slow, or were within the last hour: the steps of processes that map a slow one are runners''.';
COMMENT ON COLUMN xdb.slow_object.kind IS 'TABLE, FUNCTION, or ROLE: every table that steps of that role''s processes use, for a while after a process died in one.';
COMMENT ON COLUMN xdb.slow_object.object IS 'Its oid.';
COMMENT ON COLUMN xdb.slow_object.since IS 'When it was found to be slow.';
COMMENT ON COLUMN xdb.slow_object.reason IS 'How that was found out.';
COMMENT ON COLUMN xdb.slow_object.pause IS 'From then, or from the last probe, to the next probe. Doubled each time.';
COMMENT ON COLUMN xdb.slow_object.probed_at IS 'When a runner last found it to be slow or quick; null before the first time.';
COMMENT ON COLUMN xdb.slow_object.mended_at IS 'When a runner found it to be quick; null while it is slow. Kept for an hour, so that what becomes slow again is probed less often.';
INSERT INTO xdb.slow_object (kind, object, since, reason, pause)
    SELECT 'TABLE', s.relation, s.since, 'took longer than xdb.apply_timeout', '1 s' FROM xdb.set_aside s
    WHERE s.reason OPERATOR(pg_catalog.~~) '% took longer than xdb.apply_timeout';
ALTER EXTENSION xdb DROP TABLE xdb.set_aside;
DROP TABLE xdb.set_aside;
-- The scheduler gives calls of slow tables to the runners. Nobody takes what waited for locks in lane 2.
UPDATE xdb.task SET lane = 0, lease_epoch = 0, lease_number = 0, lease_until = NULL WHERE lane OPERATOR(pg_catalog.<>) 0;
COMMENT ON TABLE xdb.engine IS 'This database''s engine: a row for the scheduler, and one for each runner that was ever needed.';
COMMENT ON COLUMN xdb.engine.lane IS '0 = the scheduler, 10 to 25 = the runners.';
COMMENT ON COLUMN xdb.engine.epoch IS 'Of the leases that the process gives. A new one at each of its starts, and when a runner is gone; above all others, so that no lease is ever issued twice.';
COMMENT ON COLUMN xdb.engine.paused IS 'Of the scheduler''s row, for all: whether xdb.pause() was called and xdb.resume() was not since.';
COMMENT ON COLUMN xdb.task.lane IS 'Who may claim it: 0 = the scheduler, 1 = runners, 2 = nobody: it is held, after crashes or in a pause; 16 to 36 = the scheduler too, by priority: 26 less it; 40 to 60 = runners too, what functions answer, by priority: 50 less it.';

-- Calls that may bring the server down.
CREATE TABLE xdb.crash_suspect (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    deaths int NOT NULL,
    held_at timestamptz,
    PRIMARY KEY (execution_id, seq)
);
-- One at a time, whoever makes it.
CREATE UNIQUE INDEX crash_suspect_in_hand ON xdb.crash_suspect (deaths) WHERE deaths OPERATOR(pg_catalog.=) 2 AND held_at IS NULL;
COMMENT ON TABLE xdb.crash_suspect IS 'Calls that were under way when the server crashed. They are made one at a time, and a row goes with its call.';
COMMENT ON COLUMN xdb.crash_suspect.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.crash_suspect.seq IS 'State execution that makes the call.';
COMMENT ON COLUMN xdb.crash_suspect.deaths IS 'Crashes that it is suspected of: 1, or 2 while it is made or its answer applied, and when it is held.';
COMMENT ON COLUMN xdb.crash_suspect.held_at IS 'Since when it is held, because of the second one, until xdb.retry_now(); null = it is made.';

-- Whose workers and process types are. Nobody knows of those that are there.
ALTER TABLE xdb.worker ADD COLUMN owner oid NOT NULL DEFAULT 0, ADD COLUMN owner_name text NOT NULL DEFAULT '';
ALTER TABLE xdb.process_type ADD COLUMN owner oid NOT NULL DEFAULT 0, ADD COLUMN owner_name text NOT NULL DEFAULT '';
COMMENT ON COLUMN xdb.worker.owner IS 'Role that registered it: its members and superusers may change it. Zero, or gone: superusers alone.';
COMMENT ON COLUMN xdb.worker.owner_name IS 'Name that the owner had then: by it the owner is found in another server.';
COMMENT ON COLUMN xdb.process_type.owner IS 'Role that registered it: its members and superusers may change it. Zero, or gone: superusers alone.';
COMMENT ON COLUMN xdb.process_type.owner_name IS 'Name that the owner had then: by it the owner is found in another server.';
DO $body$
BEGIN
    IF EXISTS (SELECT FROM xdb.worker UNION ALL SELECT FROM xdb.process_type) THEN
        RAISE WARNING 'workers and process types that were registered before this update are superusers'' alone'
            USING HINT = 'To give them to the role that registers: SELECT xdb.reassign_owned(''-'', role);';
    END IF;
END
$body$;
-- What it showed stands in the view, which keeps its grants; what that reads from now on stands in sql/always.
CREATE OR REPLACE VIEW xdb.workers WITH (security_invoker = true, security_barrier = true) AS
SELECT NULL::pg_catalog.text AS name, NULL::pg_catalog.text AS url, NULL::int AS max_concurrency,
    NULL::pg_catalog.timestamptz AS registered_at, NULL::int AS in_flight, NULL::bigint AS calls, NULL::bigint AS failures,
    NULL::int AS consecutive_failures, NULL::pg_catalog.interval AS average_latency, NULL::pg_catalog.timestamptz AS last_error_at,
    NULL::pg_catalog.text AS breaker, NULL::pg_catalog.timestamptz AS breaker_open_since,
    NULL::pg_catalog.timestamptz AS next_probe_at;
DROP FUNCTION xdb.worker_counters();

-- Secrets have a table of their own.
CREATE TABLE xdb.worker_secret (
    worker_id int NOT NULL,
    position smallint NOT NULL,
    source text NOT NULL CONSTRAINT worker_secret_source_known CHECK (source OPERATOR(pg_catalog.=) ANY (ARRAY['literal', 'env', 'file'])),
    value text NOT NULL,
    PRIMARY KEY (worker_id, position)
);
COMMENT ON TABLE xdb.worker_secret IS 'Secrets that sign the calls to workers. Granted to nobody.';
COMMENT ON COLUMN xdb.worker_secret.worker_id IS 'Worker whose calls are signed.';
COMMENT ON COLUMN xdb.worker_secret.position IS '1, or 2 while one secret takes the place of another: then calls carry the signatures of both.';
COMMENT ON COLUMN xdb.worker_secret.source IS 'literal: the value is the secret; env, file: it is in the server''s environment, or in a file below xdb.secrets_directory.';
COMMENT ON COLUMN xdb.worker_secret.value IS 'The secret, or the name of the environment variable or file.';
SELECT pg_catalog.pg_extension_config_dump('xdb.worker_secret',
    'WHERE source OPERATOR(pg_catalog.<>) ''literal'' OR pg_catalog.current_setting(''xdb.dump_secrets'', true) OPERATOR(pg_catalog.=) ''on''');
ALTER TABLE xdb.worker ADD COLUMN secrets smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN xdb.worker.secret IS 'Null. A dump of a release before 0.3.0 has the secret here, and xdb.adopt() moves it to worker_secret. Granted to nobody.';
COMMENT ON COLUMN xdb.worker.secrets IS 'How many secrets sign each call to it. A dump need not have them: while one is missing, no call is made.';
INSERT INTO xdb.worker_secret (worker_id, position, source, value)
    SELECT w.worker_id, 1, 'literal', w.secret FROM xdb.worker AS w WHERE w.secret IS NOT NULL;
UPDATE xdb.worker SET secret = NULL, secrets = 1 WHERE secret IS NOT NULL;

-- Workers that fetch their calls.
ALTER TABLE xdb.worker ALTER COLUMN url DROP NOT NULL, ADD COLUMN role oid, ADD COLUMN role_name text;
COMMENT ON COLUMN xdb.worker.url IS 'Where it listens; the paths of the worker protocol are appended. Null: it fetches its calls with xdb.claim_calls().';
COMMENT ON COLUMN xdb.worker.role IS 'Role whose members may claim its calls; null: it has a URL, or the role is gone.';
COMMENT ON COLUMN xdb.worker.role_name IS 'Name that the role had then: by it the role is found in another server.';
CREATE SEQUENCE xdb.pull_lease;
COMMENT ON SEQUENCE xdb.pull_lease IS 'Numbers the leases that xdb.claim_calls() gives.';
COMMENT ON COLUMN xdb.task.lease_epoch IS 'Engine epoch of the lease; 0 with a worker that fetches its calls. Only the answer of the lease that stands here is applied.';
-- It has another parameter.
DROP FUNCTION xdb.register_worker(text, text, text, jsonb, integer);

-- Of workers that are registered from now on.
ALTER TABLE xdb.worker ALTER COLUMN max_concurrency SET DEFAULT 96;

-- Calls stand in lines by worker and owner.
ALTER TABLE xdb.task ADD COLUMN owner oid NOT NULL DEFAULT 0;
UPDATE xdb.task SET owner = p.owner FROM xdb.process_execution AS p
    WHERE p.execution_id OPERATOR(pg_catalog.=) task.execution_id;
DROP INDEX xdb.task_claim;
CREATE INDEX task_claim ON xdb.task (lane, worker_id, owner, due_at);
COMMENT ON COLUMN xdb.task.owner IS 'Owner of the process. At each worker the calls of each owner stand in a line of their own.';

-- So do timers and messages, by owner.
ALTER TABLE xdb.timer ADD COLUMN owner oid NOT NULL DEFAULT 0;
UPDATE xdb.timer SET owner = p.owner FROM xdb.process_execution AS p
    WHERE p.execution_id OPERATOR(pg_catalog.=) timer.execution_id;
DROP INDEX xdb.timer_due;
CREATE INDEX timer_due ON xdb.timer (owner, fire_at);
COMMENT ON COLUMN xdb.timer.owner IS 'Owner of the process. The timers of each owner stand in a line of their own.';
ALTER TABLE xdb.inbox ADD COLUMN owner oid NOT NULL DEFAULT 0;
UPDATE xdb.inbox SET owner = p.owner FROM xdb.process_execution AS p
    WHERE p.execution_id OPERATOR(pg_catalog.=) inbox.execution_id;
ALTER TABLE xdb.inbox DROP CONSTRAINT inbox_pkey, ADD PRIMARY KEY (execution_id, inbox_id);
DROP INDEX xdb.inbox_of_execution;
CREATE INDEX inbox_arrived ON xdb.inbox (owner, inbox_id);
COMMENT ON COLUMN xdb.inbox.owner IS 'Owner of the process. The messages for each owner''s processes stand in a line of their own.';

-- What is registered without a word about global queues may use all of them, as before. From now on that uses none.
UPDATE xdb.process_type SET definition = definition OPERATOR(pg_catalog.||) '{"globalQueues": ["*"]}', version = version OPERATOR(pg_catalog.+) 1
    WHERE NOT definition OPERATOR(pg_catalog.?) 'globalQueues';
UPDATE xdb.registry SET generation = generation OPERATOR(pg_catalog.+) 1;

-- No registration waits for another.
CREATE TABLE xdb.registration_count (
    slot int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    registrations bigint NOT NULL DEFAULT 1
);
COMMENT ON TABLE xdb.registration_count IS 'How often something was registered. A transaction counts in a row that no other one has locked, so that none waits for another: there are as many rows as ever were needed at one time.';
COMMENT ON COLUMN xdb.registration_count.slot IS 'Key.';
COMMENT ON COLUMN xdb.registration_count.registrations IS 'Changes of workers and process types that were counted in this row.';
COMMENT ON COLUMN xdb.registry.generation IS 'Grows when an update of the extension, or somebody by hand, changes what is registered. Registrations count in registration_count; the engine looks at the sum.';

-- Ids of messages in global queues are their publisher's. Those whose publisher is not known count for all, until they are forgotten.
ALTER TABLE xdb.global_message_key
    ADD COLUMN owner oid NOT NULL DEFAULT 0,
    ADD COLUMN owner_name text NOT NULL DEFAULT '';
UPDATE xdb.global_message_key AS k SET owner = m.owner, owner_name = m.owner_name FROM xdb.global_message AS m
    WHERE m.queue_name OPERATOR(pg_catalog.=) k.queue_name AND m.message_id OPERATOR(pg_catalog.=) k.message_id;
ALTER TABLE xdb.global_message_key
    DROP CONSTRAINT global_message_key_pkey,
    ADD PRIMARY KEY (queue_name, owner, message_id);
DROP INDEX xdb.global_message_key_old;
CREATE INDEX global_message_key_old ON xdb.global_message_key (published_at, queue_name, message_id, owner);
COMMENT ON TABLE xdb.global_message_key IS 'Message ids that roles have used in global queues, kept while the message is there and for xdb.retention.';
COMMENT ON COLUMN xdb.global_message_key.owner IS 'Role that used it; 0 = nobody knows.';
COMMENT ON COLUMN xdb.global_message_key.owner_name IS 'Its name, which tells it in another server.';

COMMENT ON COLUMN xdb.state_execution.call IS 'The call it is at: not before when (microseconds since the Unix epoch), failed attempts, request generation, last failure. Of a state that has ended: the attempt that ended it, and repeats.';

-- Local queues that are full.
ALTER TABLE xdb.process_execution ADD COLUMN full_queues text[];
CREATE INDEX process_execution_full ON xdb.process_execution (execution_id) WHERE full_queues IS NOT NULL;
COMMENT ON COLUMN xdb.process_execution.full_queues IS 'Local queues that take no more messages, since the execution has as many as it may; an empty name stands for all. Null: none is full.';

-- A header that is reserved now.
DO $body$
DECLARE
    workers CONSTANT pg_catalog.text := (
        SELECT pg_catalog.string_agg(pg_catalog.format('%L', w.name), ', ' ORDER BY w.name) FROM xdb.worker AS w
        WHERE EXISTS (SELECT FROM pg_catalog.jsonb_object_keys(w.headers) AS header (name)
                      WHERE pg_catalog.lower(header.name) OPERATOR(pg_catalog.=) 'host'));
BEGIN
    IF workers IS NOT NULL THEN
        RAISE WARNING 'calls to these workers fail from now on, because a header "Host" was given for them: %', workers
            USING HINT = 'Register them again without it.';
    END IF;
END
$body$;

-- Pauses of processes and of process types.
ALTER TABLE xdb.process_execution ADD COLUMN extra jsonb;
COMMENT ON COLUMN xdb.process_execution.extra IS 'What few executions have: the pause, the priority. Null: nothing of it.';
COMMENT ON COLUMN xdb.timer.seq IS 'State execution that waits for it; 0 = a timer of the process.';
COMMENT ON COLUMN xdb.timer.command IS 'Position of the command in the state''s request, from 0. Of the process''s own, 0 = its timeout, 1 = the end of its pause.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME or TIMER_COMMAND.';
COMMENT ON TABLE xdb.timer IS 'Durable timers: process timeouts, ends of pauses, and timer commands. A row is gone when it fired or its scope ended.';
ALTER TABLE xdb.process_type ADD COLUMN pause_mode text, ADD COLUMN paused_until timestamptz, ADD COLUMN pause_reason text;
CREATE INDEX process_type_paused ON xdb.process_type (paused_until) WHERE pause_mode IS NOT NULL;
COMMENT ON COLUMN xdb.process_type.pause_mode IS 'WAIT or REJECT: what becomes of requests while the type is paused; null = it is not.';
COMMENT ON COLUMN xdb.process_type.paused_until IS 'When the pause ends by itself; null = it does not.';
COMMENT ON COLUMN xdb.process_type.pause_reason IS 'Why it is paused.';

-- Closed executions with a retention of their own.
ALTER TABLE xdb.process_execution ADD COLUMN purge_at timestamptz;
DROP INDEX xdb.process_execution_closed;
CREATE INDEX process_execution_closed ON xdb.process_execution (closed_at, execution_id) WHERE closed_at IS NOT NULL AND purge_at IS NULL;
CREATE INDEX process_execution_purge ON xdb.process_execution (purge_at, execution_id) WHERE purge_at IS NOT NULL;
COMMENT ON COLUMN xdb.process_execution.purge_at IS 'When it is deleted, instead of by xdb.retention: set by the close where its type has retentionSeconds. Infinite = never.';

-- Starts that are merged, and the shard that a start has chosen.
CREATE TABLE xdb.correlated_start (
    type_id int NOT NULL,
    owner oid NOT NULL,
    correlation_key text NOT NULL,
    execution_id uuid NOT NULL,
    PRIMARY KEY (type_id, owner, correlation_key)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
CREATE INDEX correlated_start_of_execution ON xdb.correlated_start (execution_id);
COMMENT ON TABLE xdb.correlated_start IS 'The latest start of each correlation key, for those that may be merged into it. A hint, which a dump leaves out; its row lock decides between starts of a key.';
COMMENT ON COLUMN xdb.correlated_start.type_id IS 'Process type of the starts.';
COMMENT ON COLUMN xdb.correlated_start.owner IS 'Role that starts.';
COMMENT ON COLUMN xdb.correlated_start.correlation_key IS 'Their correlationKey.';
COMMENT ON COLUMN xdb.correlated_start.execution_id IS 'The latest execution, whether it has begun or not.';
ALTER TABLE xdb.process_execution ADD COLUMN shard_key text;
COMMENT ON COLUMN xdb.process_execution.shard IS 'Hash of the process id, or of the shard key, 0 to 1023. The tables below it carry the same.';
COMMENT ON COLUMN xdb.process_execution.shard_key IS 'The starter''s shardKey; null = the shard is that of the process id.';

-- Functions of the database may answer all calls of a process type.
ALTER TABLE xdb.process_type ALTER COLUMN worker_id DROP NOT NULL;
COMMENT ON COLUMN xdb.process_type.worker_id IS 'Worker that implements its states and RPCs; null: functions of the database do.';

-- A key stands for one RPC and one input.
ALTER TABLE xdb.rpc_answer ADD COLUMN digest text;
COMMENT ON TABLE xdb.rpc_answer IS 'Answers of RPCs that had an idempotency key: the same request with the key again gives the same answer, and the worker is not called.';
COMMENT ON COLUMN xdb.rpc_answer.digest IS 'SHA-256 of the name of the RPC and its input, in hexadecimal digits. Null: a version before 0.3.0 wrote the row.';
