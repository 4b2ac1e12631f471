-- sql/updates/begin.sql

-- How every update begins. The build puts this before the update's own statements, and sql/always after them.

-- All tables and views are locked at once, so that nothing is waited for later on. The first tables are those that the engine
-- and sessions begin with: who waits there holds nothing yet. A transaction of several statements may have any of them, so an
-- attempt which waits for somebody who waits for it, or for long, gives back all that it has and is made again: neither
-- sessions nor the engine are held up for longer than that. Others look for a deadlock, which would cancel one of them, after a
-- second of waiting.
DO $body$
DECLARE
    until CONSTANT pg_catalog.timestamptz :=
        pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => 3);
    tables CONSTANT pg_catalog.text := (
        SELECT pg_catalog.string_agg(c.oid::pg_catalog.regclass::pg_catalog.text, ', ' ORDER BY pg_catalog.array_position(
            ARRAY['engine', 'process_type', 'worker', 'latest_execution', 'rpc_answer', 'process_execution'],
            c.relname::pg_catalog.text), c.relname)
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace OPERATOR(pg_catalog.=) 'xdb'::pg_catalog.regnamespace::pg_catalog.oid
          AND c.relkind OPERATOR(pg_catalog.=) 'r');
    view pg_catalog.regclass;
BEGIN
    SET LOCAL deadlock_timeout = '20ms';
    SET LOCAL lock_timeout = '300ms';
    LOOP
        BEGIN
            -- A reader locks the view before its tables. LOCK would lock the system's tables too that a view reads; this
            -- takes the same lock, and sets what is set.
            FOR view IN
                SELECT c.oid FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace OPERATOR(pg_catalog.=) 'xdb'::pg_catalog.regnamespace::pg_catalog.oid
                  AND c.relkind OPERATOR(pg_catalog.=) 'v'
            LOOP
                EXECUTE pg_catalog.format('ALTER VIEW %s SET (security_barrier = true)', view);
            END LOOP;
            EXECUTE pg_catalog.format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', tables);
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until THEN
                RAISE EXCEPTION 'somebody has used xdb in a transaction that is still open'
                    USING ERRCODE = 'lock_not_available',
                          DETAIL = SQLERRM, HINT = 'End that transaction, or wait for its end, and run this again.';
            END IF;
            PERFORM pg_catalog.pg_sleep(0.1);
        END;
    END LOOP;
END
$body$;

-- What was there before this script, for always/privileges.sql. A setting of the transaction: a table would be a member too.
SELECT pg_catalog.set_config('xdb_script.members', COALESCE((
    SELECT pg_catalog.string_agg(pg_catalog.format('%s:%s', d.classid, d.objid), ' ')
    FROM pg_catalog.pg_depend AS d
    JOIN pg_catalog.pg_extension AS e ON d.refobjid OPERATOR(pg_catalog.=) e.oid
    WHERE e.extname OPERATOR(pg_catalog.=) 'xdb' AND d.deptype OPERATOR(pg_catalog.=) 'e'
      AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
), ''), true);

-- sql/updates/0.1.0--0.2.0.sql

-- How system tables are vacuumed: all that they have, in the order in which a new installation has it.
ALTER TABLE xdb.process_execution RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.state_execution RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.timer RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.process_execution
    SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
ALTER TABLE xdb.state_execution
    SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
ALTER TABLE xdb.timer
    SET (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
ALTER TABLE xdb.task SET (vacuum_truncate = off);
ALTER TABLE xdb.inbox SET (vacuum_truncate = off);

-- sql/updates/0.2.0--0.3.0.sql

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

-- sql/always/library.sql

-- The library on disk that came with this script is not always the one that the server has loaded. The first has all
-- functions of this version, the other one perhaps not, so this comes before they are declared.
DO $body$
BEGIN
    CREATE OR REPLACE FUNCTION xdb.library_version() RETURNS text
        LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'xdb_library_version';
    IF (SELECT pg_catalog.string_to_array(xdb.library_version(), '.')::pg_catalog.int4[]
            OPERATOR(pg_catalog.<) pg_catalog.string_to_array(e.extversion, '.')::pg_catalog.int4[]
        FROM pg_catalog.pg_extension AS e WHERE e.extname OPERATOR(pg_catalog.=) 'xdb') THEN
        RAISE undefined_function;
    END IF;
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server runs an older version of xdb than the one that is installed'
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Restart the server, then run this again.';
END
$body$;
COMMENT ON FUNCTION xdb.library_version() IS 'The version of xdb that the server runs. That of the schema is extversion in pg_extension.';

-- sql/always/functions.sql

-- The SQL surface. Every function that waits, calls or writes is VOLATILE, runs as its caller, and is native.

CREATE OR REPLACE FUNCTION xdb.register_worker(name text, url text, secret text DEFAULT NULL, headers jsonb DEFAULT NULL,
    max_concurrency int DEFAULT 96, role text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_worker';
COMMENT ON FUNCTION xdb.register_worker(text, text, text, jsonb, integer, text) IS 'Registers a worker, or changes the one of this name. Decides which URL the server calls; with url NULL, that members of the role fetch the calls.';

CREATE OR REPLACE FUNCTION xdb.set_worker_secret(name text, secret text, second_secret text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_worker_secret';
COMMENT ON FUNCTION xdb.set_worker_secret(text, text, text) IS 'Has the calls to a worker signed with this secret, or with two while one takes the place of the other.';

CREATE OR REPLACE FUNCTION xdb.unregister_worker(name text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_worker';
COMMENT ON FUNCTION xdb.unregister_worker(text) IS 'Removes a worker. Refused while a process type uses it.';

CREATE OR REPLACE FUNCTION xdb.register_process_type(process_type text, worker text, definition jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_process_type';
COMMENT ON FUNCTION xdb.register_process_type(text, text, jsonb) IS 'Registers a process type with its worker and definition, or replaces it. Running executions use the new states, options and RPCs from their next call; attribute mapping and timeout stay as at their start.';

CREATE OR REPLACE FUNCTION xdb.unregister_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_process_type';
COMMENT ON FUNCTION xdb.unregister_process_type(text) IS 'Removes a process type. Refused while executions of it run.';

CREATE OR REPLACE FUNCTION xdb.start_process(process_id text, process_type text, input jsonb DEFAULT NULL,
    global_attribute_pk text DEFAULT NULL, global_attributes jsonb DEFAULT NULL,
    local_attributes jsonb DEFAULT NULL, id_reuse_policy text DEFAULT 'ALLOW_IF_NO_RUNNING',
    timeout interval DEFAULT NULL, start_at timestamptz DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_process';
COMMENT ON FUNCTION xdb.start_process(text, text, jsonb, text, jsonb, jsonb, text, interval, timestamptz, jsonb) IS 'Starts a process in the caller''s transaction and returns the id of its execution. Its owner is the current user.';

CREATE OR REPLACE FUNCTION xdb.start_processes(processes jsonb) RETURNS SETOF uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_processes';
COMMENT ON FUNCTION xdb.start_processes(jsonb) IS 'Starts many processes in the caller''s transaction: an array of objects whose keys are the parameters of xdb.start_process. Returns the ids of the executions, in the order of the array.';

CREATE OR REPLACE FUNCTION xdb.invoke_rpc(process_id text, rpc_name text, input jsonb DEFAULT NULL,
    timeout interval DEFAULT NULL, idempotency_key text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_invoke_rpc';
COMMENT ON FUNCTION xdb.invoke_rpc(text, text, jsonb, interval, text, uuid) IS 'Calls an RPC of a process, applies its answer in the caller''s transaction and returns its output.';

CREATE OR REPLACE FUNCTION xdb.claim_calls(worker text, max_calls int DEFAULT 1, wait interval DEFAULT '0',
    lease interval DEFAULT NULL, shards int4range DEFAULT NULL)
    RETURNS TABLE (token text, call_id text, api text, request jsonb, lease_until timestamptz)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_claim_calls';
COMMENT ON FUNCTION xdb.claim_calls(text, int, interval, interval, int4range) IS 'Fetches due calls of a worker without URL, under leases that count when the transaction commits; waits for the first one at most for wait. For members of the worker''s role.';

CREATE OR REPLACE FUNCTION xdb.complete_call(token text, answer jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_complete_call';
COMMENT ON FUNCTION xdb.complete_call(text, jsonb) IS 'Applies the answer to a call that xdb.claim_calls() gave, in the caller''s transaction: what else that does counts if the answer does.';

CREATE OR REPLACE FUNCTION xdb.fail_call(token text, failure jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_fail_call';
COMMENT ON FUNCTION xdb.fail_call(text, jsonb) IS 'Fails the attempt of a call that xdb.claim_calls() gave: {"errorType", "detail", "retryAfterSeconds", "final"}. Without a failure gives it back: the same attempt is made again.';

CREATE OR REPLACE FUNCTION xdb.extend_call(token text, lease interval) RETURNS timestamptz
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_extend_call';
COMMENT ON FUNCTION xdb.extend_call(text, interval) IS 'Has the lease of a call that xdb.claim_calls() gave end so long after now, and returns when.';

CREATE OR REPLACE FUNCTION xdb.publish(process_id text, queue_name text, message jsonb DEFAULT NULL,
    message_id text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish';
COMMENT ON FUNCTION xdb.publish(text, text, jsonb, text, uuid) IS 'Publishes a message to a local queue of a running process in the caller''s transaction. A message_id that was used before in the queue is ignored.';

CREATE OR REPLACE FUNCTION xdb.publish_global(queue_name text, message jsonb DEFAULT NULL, key text DEFAULT NULL,
    message_id text DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish_global';
COMMENT ON FUNCTION xdb.publish_global(text, jsonb, text, text, interval) IS 'Publishes a message to a global queue in the caller''s transaction, for whichever process takes it. A message_id that the same role has used in the queue within xdb.retention is ignored; after the ttl nobody can take the message any more.';

CREATE OR REPLACE FUNCTION xdb.stop_process(process_id text, stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process';
COMMENT ON FUNCTION xdb.stop_process(text, text, text, uuid) IS 'Stops a running process, with a reason that is kept: TERMINATE makes it TERMINATED, FAIL makes it FAILED.';

-- For an array of process ids: a row for each element, in their order. If a process is refused, its row has the error, and none is raised.
CREATE OR REPLACE FUNCTION xdb.stop_process(process_ids text[], stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL)
    RETURNS TABLE (process_id text, stopped boolean, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process_many';
COMMENT ON FUNCTION xdb.stop_process(text[], text, text) IS 'Stops many running processes. Returns a row for each process id, with the SQLSTATE and message of the error if the process could not be stopped. The other processes are stopped.';

CREATE OR REPLACE FUNCTION xdb.describe_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_describe_process';
COMMENT ON FUNCTION xdb.describe_process(text, uuid) IS 'Status, type, times, threads and what each waits for, who holds it up, last failure and results of a process.';

CREATE OR REPLACE FUNCTION xdb.wait_for_process(process_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_process';
COMMENT ON FUNCTION xdb.wait_for_process(text, interval, uuid) IS 'Waits until a process has closed, at most for the timeout, and returns {"status", "result", "results", "timedOut"}.';

CREATE OR REPLACE FUNCTION xdb.wait_for_state(process_id text, state_execution_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_state';
COMMENT ON FUNCTION xdb.wait_for_state(text, text, interval, uuid) IS 'Waits until a state execution has ended, at most for the timeout, and returns {"status", "processStatus", "timedOut"}. When the process closes first, status is null if there never was such a state execution.';

CREATE OR REPLACE FUNCTION xdb.set_local_attributes(process_id text, attributes jsonb, execution_id uuid DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_local_attributes';
COMMENT ON FUNCTION xdb.set_local_attributes(text, jsonb, uuid) IS 'Writes local attributes of a running process, {key: value}, in the caller''s transaction.';

CREATE OR REPLACE FUNCTION xdb.skip_timer(process_id text, state_execution_id text, command_id text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer';
COMMENT ON FUNCTION xdb.skip_timer(text, text, text, uuid) IS 'Lets a timer that a state execution waits for count as completed, with the status SKIPPED_COMMAND: the one with the command id, or the one that would fire first.';

CREATE OR REPLACE FUNCTION xdb.skip_timer(process_ids text[], state_execution_id text, command_id text DEFAULT NULL)
    RETURNS TABLE (process_id text, skipped boolean, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer_many';
COMMENT ON FUNCTION xdb.skip_timer(text[], text, text) IS 'Skips a timer of the same state execution in many processes. Returns a row for each process id, with the SQLSTATE and message of the error if no timer was skipped.';

CREATE OR REPLACE FUNCTION xdb.retry_now(process_id text, state_execution_id text DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now';
COMMENT ON FUNCTION xdb.retry_now(text, text, uuid) IS 'Makes the calls of a process that are in backoff due at once, lets those go that are held after crashes, and resolves incidents; or only that of one state execution. Returns how many.';

CREATE OR REPLACE FUNCTION xdb.retry_now(process_ids text[], state_execution_id text DEFAULT NULL)
    RETURNS TABLE (process_id text, retried int, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now_many';
COMMENT ON FUNCTION xdb.retry_now(text[], text) IS 'Makes calls of many processes due at once, if they are in backoff, are held or have an incident. Returns a row for each process id with the number of these calls, or with the SQLSTATE and message of the error.';

CREATE OR REPLACE FUNCTION xdb.pause_process(process_id text, mode text DEFAULT 'WAIT', until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_process';
COMMENT ON FUNCTION xdb.pause_process(text, text, timestamptz, text, uuid) IS 'Has no call of a process begin until xdb.resume_process(), or until that time. Requests of callers wait, or with the mode REJECT are refused.';

CREATE OR REPLACE FUNCTION xdb.resume_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_process';
COMMENT ON FUNCTION xdb.resume_process(text, uuid) IS 'Ends the pause of a process. One that is not paused stays as it is.';

CREATE OR REPLACE FUNCTION xdb.pause_process_type(process_type text, mode text DEFAULT 'WAIT', until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_process_type';
COMMENT ON FUNCTION xdb.pause_process_type(text, text, timestamptz, text) IS 'Has no call of the processes of a type begin until xdb.resume_process_type(), or until that time. With the mode REJECT starts, publishes and RPCs are refused. For operators and members of the type''s owner.';

CREATE OR REPLACE FUNCTION xdb.resume_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_process_type';
COMMENT ON FUNCTION xdb.resume_process_type(text) IS 'Ends the pause of a process type. One that is not paused stays as it is. For operators and members of the type''s owner.';

CREATE OR REPLACE FUNCTION xdb.get_local_attributes(process_id text, keys text[] DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_get_local_attributes';
COMMENT ON FUNCTION xdb.get_local_attributes(text, text[], uuid) IS 'Local attributes of a process, {key: value}: those with the given keys, or all.';

CREATE OR REPLACE FUNCTION xdb.process_problems(process_id text, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_problems';
COMMENT ON FUNCTION xdb.process_problems(text, uuid) IS 'Stands behind xdb.check_process; may change.';

CREATE OR REPLACE FUNCTION xdb.check_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS TABLE (problem text)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$ SELECT jsonb_array_elements_text(xdb.process_problems(process_id, execution_id)) $$;
COMMENT ON FUNCTION xdb.check_process(text, uuid) IS 'Replays the history of a process and compares every table with it: one row per problem, none if it is sound.';

CREATE OR REPLACE FUNCTION xdb.reassign_owned(old regrole, new regrole) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_reassign_owned';
COMMENT ON FUNCTION xdb.reassign_owned(regrole, regrole) IS 'Gives the processes, process types and workers of a role to another one; ''-'' stands for all roles that are gone. For members of both roles, and superusers.';

CREATE OR REPLACE FUNCTION xdb.pause() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause';
COMMENT ON FUNCTION xdb.pause() IS 'Stops this database''s engine from claiming new work; answers of calls in flight are still applied. Whoever may execute this function is an operator of XDB, and sees and drives all processes.';

CREATE OR REPLACE FUNCTION xdb.resume() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume';
COMMENT ON FUNCTION xdb.resume() IS 'Lets a paused engine claim work again.';

CREATE OR REPLACE FUNCTION xdb.adopt() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_adopt';
COMMENT ON FUNCTION xdb.adopt() IS 'Makes the processes of a copied or restored database its own, so that they run here. Does nothing in a database that is no copy.';

CREATE OR REPLACE FUNCTION xdb.knows_roles() RETURNS boolean
    -- It stands in every policy, and reads shared memory and a table: any process of a parallel query may.
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'xdb_knows_roles';
COMMENT ON FUNCTION xdb.knows_roles() IS 'Whether the owners of processes are roles of this server; not in a copy from another one before xdb.adopt().';

CREATE OR REPLACE FUNCTION xdb.purge(older_than interval) RETURNS bigint
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_purge';
COMMENT ON FUNCTION xdb.purge(interval) IS 'Deletes executions that closed so long ago, with everything that belongs to them, and returns how many. Those that somebody has locked are left out.';

-- The figures of this database's engine, of its workers and of the locks on attributes, from shared memory; status() and
-- the views workers and attribute_locks make rows of them. Names of workers and process types are everybody's, whoever's they
-- are.
CREATE OR REPLACE FUNCTION xdb.engine_figures() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_engine_figures';
COMMENT ON FUNCTION xdb.engine_figures() IS 'The figures behind xdb.status(), one JSON object.';

CREATE OR REPLACE FUNCTION xdb.worker_figures() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_worker_figures';
COMMENT ON FUNCTION xdb.worker_figures() IS 'What the view xdb.workers shows besides what its reader may read in the table, a JSON array with an object per worker.';

CREATE OR REPLACE FUNCTION xdb.process_type_names() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_type_names';
COMMENT ON FUNCTION xdb.process_type_names() IS 'What everybody may know of process types, a JSON array; the view xdb.process_types shows it.';

CREATE OR REPLACE FUNCTION xdb.process_type_figures(process_type text) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_type_figures';
COMMENT ON FUNCTION xdb.process_type_figures(text) IS 'The figures behind xdb.process_type_usage(), a JSON array.';

CREATE OR REPLACE FUNCTION xdb.process_type_usage(process_type text) RETURNS TABLE (kind text, name text, live bigint)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$
        SELECT f.*
        FROM jsonb_to_recordset(xdb.process_type_figures(process_type)) AS f (kind text, name text, live bigint)
    $$;
COMMENT ON FUNCTION xdb.process_type_usage(text) IS 'What running processes of a type are in (STATE), and wait for messages of (LOCAL_QUEUE, GLOBAL_QUEUE), with the number of state executions, counted up to 10000. For members of the type''s owner, operators and superusers.';

-- Everybody's, so that the view which calls it as its reader goes on in an update, before anything is granted again.
CREATE OR REPLACE FUNCTION xdb.registered_type_ids() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_registered_type_ids';
COMMENT ON FUNCTION xdb.registered_type_ids() IS 'The numbers of all registered process types, a JSON array; the view xdb.failures calls it.';

-- PUBLIC's, for the same reason. STABLE and PARALLEL SAFE, since the view calls it once for all of its rows.
CREATE OR REPLACE FUNCTION xdb.paused_types() RETURNS jsonb
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'xdb_paused_types';
COMMENT ON FUNCTION xdb.paused_types() IS 'The pauses of process types by their numbers, a JSON object; the view xdb.processes calls it.';

CREATE OR REPLACE FUNCTION xdb.attribute_lock_figures() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_attribute_lock_figures';
COMMENT ON FUNCTION xdb.attribute_lock_figures() IS 'What the view xdb.attribute_locks shows, a JSON array of what its reader may see.';

CREATE OR REPLACE FUNCTION xdb.status() RETURNS TABLE (engine_pid int, state text, in_flight int, backlog bigint,
    oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, slow_objects text[],
    last_error text, last_error_at timestamptz, reason text, lock_waits_not_shown bigint, runners int, runner_error text,
    ownerless_processes bigint)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$
        SELECT f.*
        FROM jsonb_to_record(xdb.engine_figures()) AS f (engine_pid int, state text, in_flight int, backlog bigint,
            oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, slow_objects text[],
            last_error text, last_error_at timestamptz, reason text, lock_waits_not_shown bigint, runners int, runner_error text,
            ownerless_processes bigint)
    $$;
COMMENT ON FUNCTION xdb.status() IS 'One row: the state of this database''s engine. Every role that uses XDB sees engine_pid, state, started_at and reason; only operators and members of pg_monitor see the other columns.';

CREATE OR REPLACE FUNCTION xdb.shown_attribute_locks() RETURNS TABLE (execution_id uuid, seq int, locked text, mode text,
    granted boolean, ticket bigint, object uuid, due_at timestamptz)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$
        SELECT f.*
        FROM jsonb_to_recordset(xdb.attribute_lock_figures()) AS f (execution_id uuid, seq int, locked text, mode text,
            granted boolean, ticket bigint, object uuid, due_at timestamptz)
    $$;
COMMENT ON FUNCTION xdb.shown_attribute_locks() IS 'The figures behind the view xdb.attribute_locks, as rows.';

-- Who may call what. PUBLIC has two functions alone: see privileges.sql.

CREATE OR REPLACE FUNCTION xdb.grant_usage(role regrole, admin boolean DEFAULT false, operator boolean DEFAULT false,
    deployer boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    -- Every function of the extension that others than its owner may call stands in one of these lists.
    of_users CONSTANT name[] := ARRAY[
        'start_process', 'invoke_rpc', 'publish', 'stop_process',
        'claim_calls', 'complete_call', 'fail_call', 'extend_call',  -- which look at the role of the worker themselves
        'describe_process', 'wait_for_process', 'get_local_attributes',
        'start_processes', 'publish_global', 'wait_for_state', 'set_local_attributes', 'skip_timer', 'retry_now',
        'pause_process', 'resume_process',
        'pause_process_type', 'resume_process_type',  -- which look at the owner of the type themselves
        'status', 'engine_figures',  -- which leave out figures of other roles
        'check_process', 'process_problems', 'library_version', 'reassign_owned',
        'process_type_usage', 'process_type_figures',  -- which look at the owner of the type themselves
        'knows_roles',  -- called by the policies, as whoever reads
        'worker_figures', 'process_type_names',  -- called by the views workers and process_types, as their reader
        'shown_attribute_locks', 'attribute_lock_figures'];  -- by the view attribute_locks, likewise
    of_operators CONSTANT name[] := ARRAY['pause', 'resume', 'adopt', 'purge'];
    of_deployers CONSTANT name[] := ARRAY[
        'register_worker', 'set_worker_secret', 'unregister_worker', 'register_process_type', 'unregister_process_type'];
    unsaid CONSTANT text := CASE
        WHEN role IS NULL THEN 'role' WHEN admin IS NULL THEN 'admin' WHEN grant_usage.operator IS NULL THEN 'operator'
        WHEN deployer IS NULL THEN 'deployer' END;
    grantee name;
    signature regprocedure;
BEGIN
    IF unsaid IS NOT NULL THEN
        RAISE EXCEPTION 'invalid value for %: it must not be null', unsaid USING ERRCODE = 'XD009';
    END IF;
    SELECT r.rolname INTO grantee FROM pg_roles AS r WHERE r.oid = role;
    IF grantee IS NULL THEN
        RAISE EXCEPTION 'invalid value for role: there is no role with oid %', role::oid USING ERRCODE = 'XD009';
    END IF;
    IF NOT (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = 'xdb') THEN
        RAISE EXCEPTION 'permission denied to grant the use of xdb'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Only a superuser or the owner of the extension may do this.';
    END IF;
    -- Of two that change the privileges of an object at once, the server fails the one that comes second. They wait here; a
    -- lock that nobody else takes but vacuum, which gives way.
    LOCK TABLE xdb.registry IN SHARE UPDATE EXCLUSIVE MODE;

    EXECUTE format('GRANT USAGE ON SCHEMA xdb TO %I', grantee);
    FOR signature IN
        SELECT p.oid
        FROM pg_proc AS p
        JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
        WHERE e.extname = 'xdb' AND p.pronamespace = 'xdb'::regnamespace
          AND (p.proname = ANY (of_users)
               OR ((admin OR grant_usage.operator) AND p.proname = ANY (of_operators))
               OR ((admin OR deployer) AND p.proname = ANY (of_deployers)))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, grantee);
    END LOOP;
    -- The views read with the rights of their reader, so these cover the tables too; row-level security does the
    -- rest. Of a worker the headers stay out; its secrets are in a table that is granted to nobody.
    EXECUTE format(
        'GRANT SELECT ON xdb.processes, xdb.state_executions, xdb.waits, xdb.timers, xdb.queue_messages, '
        'xdb.failures, xdb.incidents, xdb.history, xdb.workers, xdb.process_types, xdb.attribute_locks, '
        'xdb.process_execution, xdb.latest_execution, xdb.state_execution, xdb.timer, xdb.inbox, '
        'xdb.queue_message, xdb.global_message, xdb.history_event, xdb.process_type TO %I', grantee);
    EXECUTE format(
        'GRANT SELECT (worker_id, name, url, max_concurrency, registered_at, role_name) ON xdb.worker TO %I', grantee);
    IF admin OR grant_usage.operator THEN
        EXECUTE format('GRANT SELECT ON xdb.instances TO %I', grantee);
    END IF;
END
$body$;
COMMENT ON FUNCTION xdb.grant_usage(regrole, boolean, boolean, boolean) IS 'Lets a role use XDB: start and drive processes and see its own. As operator also see and drive all processes, pause and resume the engine, purge and adopt; as deployer also register workers and process types; as admin both. Adds to what was granted before.';

CREATE OR REPLACE FUNCTION xdb.revoke_usage(role regrole) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    grantee name;
    of_schema regtype;
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'invalid value for role: it must not be null' USING ERRCODE = 'XD009';
    END IF;
    SELECT r.rolname INTO grantee FROM pg_roles AS r WHERE r.oid = role;
    IF grantee IS NULL THEN
        RAISE EXCEPTION 'invalid value for role: there is no role with oid %', role::oid USING ERRCODE = 'XD009';
    END IF;
    IF NOT (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = 'xdb') THEN
        RAISE EXCEPTION 'permission denied to revoke the use of xdb'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Only a superuser or the owner of the extension may do this.';
    END IF;
    -- Revoking from the schema's owner would take their rights from the native functions, which act as the owner.
    IF EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = 'xdb' AND n.nspowner = role) THEN
        RAISE EXCEPTION 'invalid value for role: "%" owns the extension', grantee USING ERRCODE = 'XD009';
    END IF;
    -- As xdb.grant_usage does.
    LOCK TABLE xdb.registry IN SHARE UPDATE EXCLUSIVE MODE;

    IF EXISTS (SELECT FROM xdb.process_execution AS p WHERE p.owner = role AND p.status = 'RUNNING') THEN
        RAISE WARNING 'role "%" owns running processes', grantee
            USING HINT = 'They go on, and fail once the role is dropped. xdb.reassign_owned() gives them to another role.';
    END IF;

    -- Privileges on columns go with those on their table.
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA xdb FROM %I', grantee);
    FOR of_schema IN
        SELECT t.oid FROM pg_type AS t CROSS JOIN LATERAL aclexplode(t.typacl) AS a
        WHERE t.typnamespace = 'xdb'::regnamespace AND a.grantee = role
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM %I', of_schema, grantee);
    END LOOP;
    EXECUTE format('REVOKE ALL ON SCHEMA xdb FROM %I', grantee);
END
$body$;
COMMENT ON FUNCTION xdb.revoke_usage(regrole) IS 'Takes back everything in schema xdb that was granted to a role. What it has through other roles stays.';

-- sql/always/views.sql

-- What people read with psql. Every view reads with the rights of its reader, and so under the policies of
-- policies.sql; the barrier keeps a reader's own functions from seeing rows before the policies have.
--
-- Every view leads with the process: process_execution is found by its index and the rest by execution_id. Views that
-- put two sources together repeat the join in each branch, so that a condition on process_id reaches both. Window
-- functions are partitioned by process_id for the same reason. Moments inside of jsonb are microseconds since the Unix
-- epoch.

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
    e.pause IS NOT NULL AS paused,
    pg_catalog.to_timestamp(e.pause['until']::double precision OPERATOR(pg_catalog./) 1e6) AS paused_until,
    pg_catalog.jsonb_extract_path_text(e.pause, 'reason') AS pause_reason
FROM xdb.process_execution AS p
CROSS JOIN LATERAL (SELECT CASE
    WHEN p.extra['pause'] IS NOT NULL THEN p.extra['pause']
    WHEN p.status OPERATOR(pg_catalog.=) 'RUNNING'
        THEN (SELECT xdb.paused_types()) OPERATOR(pg_catalog.->) p.type_id::pg_catalog.text
END AS pause) AS e;
COMMENT ON VIEW xdb.processes IS 'Process executions that the reader may see.';
COMMENT ON COLUMN xdb.processes.process_id IS 'Business identifier, chosen by whoever started it.';
COMMENT ON COLUMN xdb.processes.execution_id IS 'This run of the process id.';
COMMENT ON COLUMN xdb.processes.is_latest IS 'Whether it is the latest execution of its process id.';
COMMENT ON COLUMN xdb.processes.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.processes.owner IS 'Role that started it, by the name it had then.';
COMMENT ON COLUMN xdb.processes.status IS 'RUNNING, COMPLETED, FAILED, TIMEOUT or TERMINATED.';
COMMENT ON COLUMN xdb.processes.started_at IS 'When it was started.';
COMMENT ON COLUMN xdb.processes.timeout_at IS 'When it times out; null = never.';
COMMENT ON COLUMN xdb.processes.closed_at IS 'When it closed; null while it runs.';
COMMENT ON COLUMN xdb.processes.reason IS 'Why it failed or was stopped.';
COMMENT ON COLUMN xdb.processes.live_threads IS 'Threads that have not ended.';
COMMENT ON COLUMN xdb.processes.result IS 'The output, if exactly one thread gave one.';
COMMENT ON COLUMN xdb.processes.results IS 'All outputs, [{"stateExecutionId", "output"}].';
COMMENT ON COLUMN xdb.processes.paused IS 'Whether xdb.pause_process() has paused the process, or xdb.pause_process_type() its type.';
COMMENT ON COLUMN xdb.processes.paused_until IS 'When the pause of the process, or else of its type, ends by itself; null if it has no end, or nothing is paused.';
COMMENT ON COLUMN xdb.processes.pause_reason IS 'Reason of the pause of the process, or else of its type.';

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
COMMENT ON VIEW xdb.state_executions IS 'State executions of the processes that the reader may see.';
COMMENT ON COLUMN xdb.state_executions.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.state_executions.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.state_executions.state_execution_id IS '<state_id>-<number>.';
COMMENT ON COLUMN xdb.state_executions.state_id IS 'Async state that runs.';
COMMENT ON COLUMN xdb.state_executions.number IS 'Counted from 1 per state id.';
COMMENT ON COLUMN xdb.state_executions.status IS 'WAIT_UNTIL, WAITING, EXECUTE; COMPLETED, FAILED (retries spent), ABORTED (the process closed first).';
COMMENT ON COLUMN xdb.state_executions.started_at IS 'When its thread came to it.';
COMMENT ON COLUMN xdb.state_executions.ended_at IS 'When it ended; null while it is live.';
COMMENT ON COLUMN xdb.state_executions.api IS 'The call it is at, WAIT_UNTIL_API or EXECUTE_API; null while it waits and when it has ended.';
COMMENT ON COLUMN xdb.state_executions.attempt IS 'Attempt of that call which is in progress or comes next, from 1; when the state has ended, the attempt that ended it. Null while it waits, and for states that ended before 0.3.0.';
COMMENT ON COLUMN xdb.state_executions.next_attempt_at IS 'The call is not made before this moment; in the past when it is due or in progress. Null when it has an incident.';
COMMENT ON COLUMN xdb.state_executions.input IS 'Input of the state.';
COMMENT ON COLUMN xdb.state_executions.config IS 'State options that came with the movement.';
COMMENT ON COLUMN xdb.state_executions.recovers_from IS 'Failed state execution that it recovers from.';
COMMENT ON COLUMN xdb.state_executions.repeats IS 'How often that call was made again because what it had loaded under a lock had changed, or its worker could take no call; not attempts. Kept when the state has ended.';

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
COMMENT ON VIEW xdb.waits IS 'What is waited for: one row per command of every waiting state, and one per process whose close waits for open publishers.';
COMMENT ON COLUMN xdb.waits.process_id IS 'Process that waits.';
COMMENT ON COLUMN xdb.waits.execution_id IS 'Process execution that waits.';
COMMENT ON COLUMN xdb.waits.state_execution_id IS 'State execution that waits; null for a close.';
COMMENT ON COLUMN xdb.waits.waiting_type IS 'When the commands are enough: AllOfCompletion, AnyOfCompletion or AnyOfCombination.';
COMMENT ON COLUMN xdb.waits.kind IS 'TIMER, LOCAL_QUEUE, GLOBAL_QUEUE, or PUBLISHERS for a close.';
COMMENT ON COLUMN xdb.waits.command_id IS 'Id that the worker gave the command, if any.';
COMMENT ON COLUMN xdb.waits.command_status IS 'WAITING_COMMAND, or COMPLETED_COMMAND while others still wait.';
COMMENT ON COLUMN xdb.waits.queue_name IS 'Queue whose messages are waited for.';
COMMENT ON COLUMN xdb.waits.at_least IS 'Messages that complete the command.';
COMMENT ON COLUMN xdb.waits.at_most IS 'Messages that the command takes at most.';
COMMENT ON COLUMN xdb.waits.messages_in_queue IS 'Messages of that queue now, received or not; null for a global queue.';
COMMENT ON COLUMN xdb.waits.since IS 'When the wait began; not kept for a close.';
COMMENT ON COLUMN xdb.waits.fire_at IS 'When the timer fires.';
COMMENT ON COLUMN xdb.waits.closing IS 'UNCONDITIONAL or CONDITIONAL: the close that waits.';
COMMENT ON COLUMN xdb.waits.held_up_by IS 'Process ids of the sessions that hold the close up: exactly the one, if it is one; if there are several, all sessions that hold row locks on xdb.process_execution, of which some may be strangers.';
COMMENT ON COLUMN xdb.waits.key IS 'Key of the messages that are wanted of a global queue; null = of all.';

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
COMMENT ON COLUMN xdb.timers.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.timers.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.timers.state_execution_id IS 'State execution that waits for it; null for one of the process.';
COMMENT ON COLUMN xdb.timers.command_id IS 'Id that the worker gave the command, if any.';
COMMENT ON COLUMN xdb.timers.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME (the end of a pause) or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timers.fire_at IS 'When it fires.';

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
-- Of global queues, which belong to no process. The place is that among the messages that the reader sees.
SELECT
    NULL, NULL, g.queue_name,
    pg_catalog.row_number() OVER (PARTITION BY g.queue_name ORDER BY g.number),
    g.message_id, g.payload, NULL, g.published_at, NULL, g.key, g.expires_at
FROM xdb.global_message AS g
WHERE g.taken_by IS NULL;
COMMENT ON VIEW xdb.queue_messages IS 'Messages in the local queues of the processes that the reader may see, and messages of global queues that roles of the reader published and nobody has taken.';
COMMENT ON COLUMN xdb.queue_messages.process_id IS 'Process whose queue it is; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.execution_id IS 'Process execution whose queue it is; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.queue_name IS 'The queue.';
COMMENT ON COLUMN xdb.queue_messages.position IS 'Place in the queue: 1 is taken next. In a global queue, the place among the messages that the reader sees.';
COMMENT ON COLUMN xdb.queue_messages.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.queue_messages.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_messages.received IS 'Whether the process has taken it in; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.published_at IS 'When it was published; not kept once it is received.';
COMMENT ON COLUMN xdb.queue_messages.received_at IS 'When the process took it in.';
COMMENT ON COLUMN xdb.queue_messages.key IS 'Key of a message of a global queue, if it has one.';
COMMENT ON COLUMN xdb.queue_messages.expires_at IS 'From when on nobody can take a message of a global queue; null = never.';

-- A state that is at a call keeps its failure with the call and in the column alike.
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
-- No call of theirs can be made, or fail.
SELECT p.process_id, p.execution_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    pg_catalog.format('the process type "%s" is not registered: register it again', p.process_type), NULL, NULL, NULL, NULL, NULL
FROM xdb.process_execution AS p
WHERE p.status OPERATOR(pg_catalog.=) 'RUNNING' AND p.type_id OPERATOR(pg_catalog.<>) ALL (ARRAY(
    -- All there are: of the table a reader sees those of its own roles.
    SELECT pg_catalog.int4(t.id) FROM pg_catalog.jsonb_array_elements(xdb.registered_type_ids()) AS t (id)))
UNION ALL
-- They are not made, whatever became of their attempts before.
SELECT p.process_id, s.execution_id, s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number, s.status,
    s.status OPERATOR(pg_catalog.||) '_API', s.call['failedAttempts']::int OPERATOR(pg_catalog.+) 1, c.held_at, NULL,
    'CallHeld', 'the call is held, because twice the server crashed while it was made or its answer was applied: '
    'xdb.retry_now() has it made again', NULL, NULL, NULL, NULL, NULL
FROM xdb.process_execution AS p
JOIN xdb.crash_suspect AS c ON c.execution_id OPERATOR(pg_catalog.=) p.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) c.execution_id AND s.seq OPERATOR(pg_catalog.=) c.seq
WHERE c.held_at IS NOT NULL AND s.ended_at IS NULL;
COMMENT ON VIEW xdb.failures IS 'Last failed attempts of calls that are in backoff, are repeated, or were given up or left with an incident; calls whose answers name what is not registered; calls that are held after crashes; and running processes whose type is not registered.';
COMMENT ON COLUMN xdb.failures.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.failures.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.failures.state_execution_id IS 'State execution whose call failed; null where the process has no type.';
COMMENT ON COLUMN xdb.failures.state_status IS 'WAIT_UNTIL or EXECUTE: the call is repeated. FAILED: the retries are spent. ABORTED: the process closed before the next attempt.';
COMMENT ON COLUMN xdb.failures.api IS 'The call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.failures.attempt IS 'Which attempt failed, from 1; with NotRegistered, which attempt is repeated.';
COMMENT ON COLUMN xdb.failures.failed_at IS 'When the attempt failed, or the call was held; with NotRegistered, since when its answers name what is not registered.';
COMMENT ON COLUMN xdb.failures.http_status IS 'HTTP status of the answer; null if there was none.';
COMMENT ON COLUMN xdb.failures.error_type IS 'The worker''s word for the kind of its error; NotRegistered if an answer names what is not registered; CallHeld for a call that is held after crashes.';
COMMENT ON COLUMN xdb.failures.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.failures.context IS 'The functions of the database that ran, innermost first, each with its line; null if no function ran.';
COMMENT ON COLUMN xdb.failures.sql_state IS 'SQLSTATE, if a user''s table refused what the answer wrote.';
COMMENT ON COLUMN xdb.failures.table_name IS 'The table that refused.';
COMMENT ON COLUMN xdb.failures.constraint_name IS 'The constraint that was violated.';
COMMENT ON COLUMN xdb.failures.next_attempt_at IS 'When the next attempt may be made, in the past when it is due or in progress; null when there is none.';

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
WHERE s.ended_at IS NULL AND s.call['incident'] IS NOT NULL;
COMMENT ON VIEW xdb.incidents IS 'Calls of running processes whose retries are spent, where the policy is RAISE_INCIDENT: none is made until xdb.retry_now().';
COMMENT ON COLUMN xdb.incidents.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.incidents.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.incidents.state_execution_id IS 'State execution that stays at the call.';
COMMENT ON COLUMN xdb.incidents.api IS 'The call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.incidents.attempt IS 'Which attempt failed last, from 1.';
COMMENT ON COLUMN xdb.incidents.raised_at IS 'When it failed.';
COMMENT ON COLUMN xdb.incidents.http_status IS 'HTTP status of the answer; null if there was none.';
COMMENT ON COLUMN xdb.incidents.error_type IS 'The worker''s word for the kind of its error.';
COMMENT ON COLUMN xdb.incidents.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.incidents.sql_state IS 'SQLSTATE, if a user''s table refused what the answer wrote.';
COMMENT ON COLUMN xdb.incidents.table_name IS 'The table that refused.';
COMMENT ON COLUMN xdb.incidents.constraint_name IS 'The constraint that was violated.';

CREATE OR REPLACE VIEW xdb.attribute_locks WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    l.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    l.locked,
    CASE
        WHEN l.mode OPERATOR(pg_catalog.=) 'S' THEN 'SHARE_LOCK'
        WHEN l.mode OPERATOR(pg_catalog.=) 'X' THEN 'EXCLUSIVE_LOCK'
        WHEN l.mode OPERATOR(pg_catalog.=) 'IS' THEN 'SHARE_LOCK of a part'
        WHEN l.mode OPERATOR(pg_catalog.=) 'IX' THEN 'EXCLUSIVE_LOCK of a part'
    END AS lock_type,
    l.granted,
    l.ticket,
    l.object,
    l.due_at
FROM xdb.shown_attribute_locks() AS l
JOIN xdb.process_execution AS p ON p.execution_id OPERATOR(pg_catalog.=) l.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) l.execution_id AND s.seq OPERATOR(pg_catalog.=) l.seq;
COMMENT ON VIEW xdb.attribute_locks IS 'Locks on attributes that state executions have or wait for, at most 256, those who wait first; xdb.status() says how many more calls wait. RPCs are not among them: they hold locks of Postgres.';
COMMENT ON COLUMN xdb.attribute_locks.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.state_execution_id IS 'State execution whose call has it or waits for it.';
COMMENT ON COLUMN xdb.attribute_locks.locked IS 'What is locked: a row of a table by its key, a local attribute, or all of them.';
COMMENT ON COLUMN xdb.attribute_locks.lock_type IS 'SHARE_LOCK or EXCLUSIVE_LOCK. Of all local attributes it may be that of a part, which excludes only who wants the whole.';
COMMENT ON COLUMN xdb.attribute_locks.granted IS 'Whether it has it. Who waits for one of its locks has none.';
COMMENT ON COLUMN xdb.attribute_locks.ticket IS 'Place of the call among those that wait and are shown, in the order in which they are served; 0 for a call that has it.';
COMMENT ON COLUMN xdb.attribute_locks.object IS 'The same for everybody who waits for the same.';
COMMENT ON COLUMN xdb.attribute_locks.due_at IS 'Since when the call is due.';

CREATE OR REPLACE VIEW xdb.history WITH (security_invoker = true, security_barrier = true) AS
SELECT p.process_id, h.execution_id, h.event_id, h.event_time, h.event_type, h.details
FROM xdb.process_execution AS p
JOIN xdb.history_event AS h ON h.execution_id OPERATOR(pg_catalog.=) p.execution_id;
COMMENT ON VIEW xdb.history IS 'What happened to the processes that the reader may see. Order by execution_id, event_id.';
COMMENT ON COLUMN xdb.history.process_id IS 'Process it happened to.';
COMMENT ON COLUMN xdb.history.execution_id IS 'Process execution it happened to.';
COMMENT ON COLUMN xdb.history.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history.event_time IS 'When it happened.';
COMMENT ON COLUMN xdb.history.event_type IS 'What happened, e.g. StateStarted.';
COMMENT ON COLUMN xdb.history.details IS 'All that belongs to the event. Times are microseconds since the Unix epoch.';

-- Rows of the tables that the reader may not see are null.
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
    f.average_latency_us OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval AS average_latency,
    f.last_error_at,
    f.breaker,
    f.breaker_open_since,
    f.next_probe_at,
    f.owner,
    w.role_name AS role,
    f.waiting,
    f.waiting_since
FROM pg_catalog.jsonb_to_recordset(xdb.worker_figures()) AS f (worker_id int, name text, owner text, in_flight int, calls bigint,
    failures bigint, consecutive_failures int, average_latency_us double precision, last_error_at timestamptz,
    breaker text, breaker_open_since timestamptz, next_probe_at timestamptz, waiting bigint, waiting_since timestamptz)
LEFT JOIN xdb.worker AS w ON w.worker_id OPERATOR(pg_catalog.=) f.worker_id;
COMMENT ON VIEW xdb.workers IS 'Registered workers, without their secrets, and how the calls to them went since the server started. All but name and owner for members of the owner and operators.';
COMMENT ON COLUMN xdb.workers.name IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.workers.url IS 'Where it listens; null: it fetches its calls.';
COMMENT ON COLUMN xdb.workers.max_concurrency IS 'Calls that may run at it at one time.';
COMMENT ON COLUMN xdb.workers.registered_at IS 'When it was registered first or last changed.';
COMMENT ON COLUMN xdb.workers.in_flight IS 'Calls that run now; of a worker without URL, those under a lease, counted up to 10000.';
COMMENT ON COLUMN xdb.workers.calls IS 'Calls that were made.';
COMMENT ON COLUMN xdb.workers.failures IS 'Calls that failed.';
COMMENT ON COLUMN xdb.workers.consecutive_failures IS 'Calls that failed since the last one that did not.';
COMMENT ON COLUMN xdb.workers.average_latency IS 'How long its calls take, on average; null before the first.';
COMMENT ON COLUMN xdb.workers.last_error_at IS 'When a call failed last; null = none has.';
COMMENT ON COLUMN xdb.workers.breaker IS 'closed; open: many calls in a row could not reach it, and none are made; half-open: one call is made, or will be as soon as one is due, and tells whether it is back.';
COMMENT ON COLUMN xdb.workers.breaker_open_since IS 'Since when it could not be reached; null when the breaker is closed.';
COMMENT ON COLUMN xdb.workers.next_probe_at IS 'From when on one call may be made to find out; null when the breaker is closed or that call is under way.';
COMMENT ON COLUMN xdb.workers.role IS 'Role whose members may claim its calls; null if it has a URL.';
COMMENT ON COLUMN xdb.workers.waiting IS 'Calls that are due and not under way, of each role counted up to 1000. They wait for a place, or until the worker can be reached.';
COMMENT ON COLUMN xdb.workers.waiting_since IS 'When the first waiting call came due; null if no call waits.';
COMMENT ON COLUMN xdb.workers.owner IS 'Role that it belongs to; null if that is gone, or nobody knows.';

CREATE OR REPLACE VIEW xdb.process_types WITH (security_invoker = true, security_barrier = true) AS
SELECT n.process_type, n.worker, n.owner, t.definition, t.version, t.registered_at, t.pause_mode, t.paused_until, t.pause_reason
FROM pg_catalog.jsonb_to_recordset(xdb.process_type_names())
    AS n (type_id int, process_type text, worker text, owner text)
LEFT JOIN xdb.process_type AS t ON t.type_id OPERATOR(pg_catalog.=) n.type_id;
COMMENT ON VIEW xdb.process_types IS 'Registered process types. All but the names for members of the owner and operators.';
COMMENT ON COLUMN xdb.process_types.process_type IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.process_types.worker IS 'Worker that implements its states and RPCs.';
COMMENT ON COLUMN xdb.process_types.owner IS 'Role that it belongs to; null if that is gone, or nobody knows.';
COMMENT ON COLUMN xdb.process_types.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_types.version IS 'Grows with every registration, of its worker too.';
COMMENT ON COLUMN xdb.process_types.registered_at IS 'When it was registered last.';
COMMENT ON COLUMN xdb.process_types.pause_mode IS 'WAIT or REJECT while it is paused: what becomes of requests. Null when it is not.';
COMMENT ON COLUMN xdb.process_types.paused_until IS 'When the pause ends by itself; null when it does not, or there is none.';
COMMENT ON COLUMN xdb.process_types.pause_reason IS 'Why it is paused.';

-- sql/always/policies.sql

-- Every table of the extension has row-level security. So a role that may read or write all tables of the database, such as a member
-- of pg_write_all_data, gets only the rows that a policy allows, and no rows of a table without a policy.
DO $body$
DECLARE
    of_extension pg_catalog.regclass;
BEGIN
    FOR of_extension IN
        SELECT d.objid
        FROM pg_catalog.pg_depend AS d
        JOIN pg_catalog.pg_extension AS e ON d.refobjid OPERATOR(pg_catalog.=) e.oid
        JOIN pg_catalog.pg_class AS c ON d.objid OPERATOR(pg_catalog.=) c.oid
        WHERE e.extname OPERATOR(pg_catalog.=) 'xdb' AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
          AND c.relkind OPERATOR(pg_catalog.=) 'r' AND NOT c.relrowsecurity
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', of_extension);
    END LOOP;
END
$body$;

-- The one place that decides who sees an execution: a role that has the privileges of its owner, or an operator of
-- XDB, who is whoever may call xdb.pause(). The sub-select asks for that once per query, and the cast has
-- found the function once and for all. In a copy whose roles are not known yet, operators alone see anything. There are
-- no policies but for SELECT: native code alone writes, as the tables' owner, whom the policies don't concern.
DROP POLICY IF EXISTS visible ON xdb.process_execution;
CREATE POLICY visible ON xdb.process_execution FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

DROP POLICY IF EXISTS visible ON xdb.instances;
CREATE POLICY visible ON xdb.instances FOR SELECT
    USING ((SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE')));

-- What belongs to an execution is visible with it: the sub-select is subject to the policy above.
DO $body$
DECLARE
    child pg_catalog.regclass;
BEGIN
    FOREACH child IN ARRAY ARRAY[
        'xdb.latest_execution', 'xdb.state_execution', 'xdb.local_attribute', 'xdb.queue_message', 'xdb.inbox',
        'xdb.message_key', 'xdb.queue_waiter', 'xdb.global_waiter', 'xdb.global_passed_over', 'xdb.rpc_answer',
        'xdb.timer', 'xdb.task', 'xdb.history_event', 'xdb.purged', 'xdb.crash_suspect', 'xdb.correlated_start'
    ]::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', child);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %1$s FOR SELECT USING (EXISTS (SELECT FROM xdb.process_execution AS p '
            'WHERE p.execution_id OPERATOR(pg_catalog.=) %1$s.execution_id))', child);
    END LOOP;
END
$body$;

-- A message of a global queue belongs to the role that published it, until somebody takes it.
DROP POLICY IF EXISTS visible ON xdb.global_message;
CREATE POLICY visible ON xdb.global_message FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR taken_by IS NULL AND (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

-- No row of it is for anybody but superusers, whatever else a role may read.
DROP POLICY IF EXISTS visible ON xdb.worker_secret;
CREATE POLICY visible ON xdb.worker_secret FOR SELECT USING (false);

-- What is registered is its owner's. That there is a worker or process type of a name, and whose it is, everybody may know: the
-- views have it from native code.
DO $body$
DECLARE
    registered pg_catalog.regclass;
BEGIN
    FOREACH registered IN ARRAY ARRAY['xdb.worker', 'xdb.process_type']::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', registered);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %s FOR SELECT USING ('
            '(SELECT pg_catalog.has_function_privilege(%L::pg_catalog.regprocedure::pg_catalog.oid, %L)) '
            'OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, %L))',
            registered, 'xdb.pause()', 'EXECUTE', 'USAGE');
    END LOOP;
END
$body$;

-- sql/always/privileges.sql

-- Comes last, and concerns what this script has made. It belongs to the owner of the schema, also where another superuser runs an
-- update. No other role has rights on it: neither PUBLIC, to which Postgres grants every new function and type, nor the roles that
-- default privileges or event triggers of this database name. Only this script grants rights to PUBLIC and pg_monitor.
--
-- What was there before is left alone. Administrators may have granted it to others, and a script that grants or revokes
-- anything on an object makes all that is granted there by then a part of the extension: pg_dump leaves it out from then on,
-- and it stays on record when the role is dropped. For the same reason no script grants anything to a role that is not built
-- in: who used XDB before is named in a warning, and is granted what is new by xdb.grant_usage.

-- Nothing but the system's own is found by a bare name below.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $body$
DECLARE
    -- status() runs as its caller, and so must they be allowed what it calls.
    of_monitors CONSTANT oid[] := ARRAY[
        'xdb.status()', 'xdb.engine_figures()', 'xdb.library_version()']::regprocedure[];
    -- Called by views as whoever reads them, and no secret.
    of_everybody CONSTANT oid[] := ARRAY['xdb.registered_type_ids()', 'xdb.paused_types()']::regprocedure[];
    -- Read by a view that is granted already, as whoever reads it; the table's policy says what is theirs.
    read_by_everybody CONSTANT oid[] := ARRAY['xdb.crash_suspect']::regclass[];
    members CONSTANT text[] := string_to_array(current_setting('xdb_script.members'), ' ');
    owner CONSTANT regrole := (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb');
    made record;
    grantees text;
    again text;
BEGIN
    FOR made IN
        SELECT d.objid, i.type, i.identity, CASE
            WHEN i.type IN ('function', 'schema') THEN upper(i.type) WHEN i.type IN ('table', 'view', 'sequence') THEN 'TABLE' END AS kind
        FROM pg_depend AS d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) AS i
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
          AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
          AND format('%s:%s', d.classid, d.objid) <> ALL (members)
          AND i.type <> 'composite type'  -- belongs to its table
        ORDER BY i.type = 'sequence'  -- that of an identity column follows its table
    LOOP
        IF made.kind IS NULL THEN
            RAISE EXCEPTION 'sql/always/privileges.sql does not know what to do with % %', made.type, made.identity;
        END IF;
        EXECUTE format('ALTER %s %s OWNER TO %s', made.kind, made.identity, owner);
        -- Revoking a privilege on a relation also revokes it on the columns.
        SELECT string_agg(DISTINCT ', ' || a.grantee::regrole, '')
        INTO grantees
        FROM (
            SELECT nspacl FROM pg_namespace WHERE made.kind = 'SCHEMA' AND oid = made.objid
            UNION ALL SELECT proacl FROM pg_proc WHERE made.kind = 'FUNCTION' AND oid = made.objid
            UNION ALL SELECT relacl FROM pg_class WHERE made.kind = 'TABLE' AND oid = made.objid
            UNION ALL SELECT attacl FROM pg_attribute WHERE made.kind = 'TABLE' AND attrelid = made.objid
        ) AS granted (acl) CROSS JOIN LATERAL aclexplode(granted.acl) AS a
        WHERE a.grantee NOT IN (owner, 0);
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC%s CASCADE', made.kind, made.identity, grantees);
        IF made.kind = 'SCHEMA' THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO pg_monitor', made.identity);
        END IF;
        IF made.kind = 'FUNCTION' AND made.objid = ANY (of_monitors) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pg_monitor', made.identity);
        END IF;
        IF made.kind = 'FUNCTION' AND made.objid = ANY (of_everybody) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', made.identity);
        END IF;
        IF made.kind = 'TABLE' AND made.objid = ANY (read_by_everybody) THEN
            EXECUTE format('GRANT SELECT ON %s TO PUBLIC', made.identity);
        END IF;
        again := 'yes';
    END LOOP;

    -- Whoever uses the row type of a table in a table or function of their own keeps a later update from changing it. Types that
    -- nobody has granted to anybody are those of a release that left them to PUBLIC; arrays have the privileges of their elements.
    FOR made IN
        SELECT t.oid::regtype AS identity
        FROM pg_type AS t JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = t.typrelid
        WHERE t.typnamespace = 'xdb'::regnamespace AND t.typacl IS NULL
          AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
          AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', made.identity);
    END LOOP;

    -- Whoever may start processes is a user, whoever may call xdb.pause() an operator, and whoever may register a deployer. A
    -- warning, since the notices of a script are suppressed.
    IF members <> '{}' AND again IS NOT NULL THEN
        SELECT string_agg(format('SELECT xdb.grant_usage(%L%s);', a.grantee::regrole,
            CASE
                WHEN operates AND deploys THEN ', admin => true'
                WHEN operates THEN ', operator => true'
                WHEN deploys THEN ', deployer => true'
            END), ' ' ORDER BY a.grantee::regrole::text)
        INTO again
        FROM pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        CROSS JOIN LATERAL has_function_privilege(a.grantee, 'xdb.pause()', 'EXECUTE') AS operates
        CROSS JOIN LATERAL has_function_privilege(a.grantee, 'xdb.register_process_type(text, text, jsonb)', 'EXECUTE') AS deploys
        WHERE p.proname = 'start_process' AND p.pronamespace = 'xdb'::regnamespace
          AND a.grantee NOT IN (p.proowner, 0);
        IF again IS NOT NULL THEN
            RAISE WARNING 'roles that use xdb may not use yet what this update brings' USING HINT = again;
        END IF;
    END IF;

    -- A release before 0.3.0 left rights on its objects to the roles that default privileges named. These rights stay, because later
    -- grants of an administrator look the same. pg_init_privs has the rights at the end of the installation. Default privileges concern
    -- all objects of a kind, so it is enough to check one object of each kind, on which xdb.grant_usage grants nothing.
    IF members <> '{}' THEN
        SELECT string_agg(DISTINCT format('SELECT xdb.revoke_usage(%L);', a.grantee::regrole), ' ')
        INTO again
        FROM pg_init_privs AS i
        LEFT JOIN pg_proc AS p ON i.classoid = 'pg_proc'::regclass AND p.oid = i.objoid
        LEFT JOIN pg_class AS c ON i.classoid = 'pg_class'::regclass AND c.oid = i.objoid
        CROSS JOIN LATERAL aclexplode(i.initprivs) AS a
        WHERE i.objsubid = 0 AND (p.oid = 'xdb.revoke_usage(regrole)'::regprocedure
               OR c.oid IN ('xdb.registry'::regclass, 'xdb.inbox_inbox_id_seq'::regclass))
          AND a.grantee NOT IN (owner, 0)
          AND (a.grantee, a.privilege_type) IN (
              SELECT g.grantee, g.privilege_type FROM aclexplode(COALESCE(p.proacl, c.relacl)) AS g);
        IF again IS NOT NULL THEN
            RAISE WARNING 'default privileges gave roles a part in schema xdb when it was installed'
                USING HINT = format('Take it back, then grant with xdb.grant_usage() what is meant: %s', again);
        END IF;
    END IF;
END
$body$;

