-- Bare, so that a schema which somebody else made beforehand fails the installation.
CREATE SCHEMA xdb;

-- The library on disk that came with this script is not always the one that the server has loaded. The first has all
-- functions of this version, the other one perhaps not. A script of an update begins with the same check.
DO $body$
BEGIN
    CREATE FUNCTION xdb.library_version() RETURNS text
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

-- Payloads are JSON, and JSON text is UTF-8.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'xdb needs a database with the encoding UTF8'
            USING ERRCODE = 'feature_not_supported';
    END IF;
END
$$;
-- System tables. Native code alone writes them; roles read what is theirs through the views.
--
-- Lock order, kept by every transaction of the engine and of the SQL functions:
--   1. latest_execution         one process id at a time
--   2. rpc_answer               by an RPC with an idempotency key, before its call
--      then the locks on attributes of an RPC that wants some, in the order of the objects: locks of Postgres against
--      other RPCs, and a wait without a lock for the states that have them. A state's locks are rows (attribute_lock),
--      granted all at once or not at all, and nobody keeps a transaction open for them
--   3. process_execution        in the order of execution ids; publishers KEY SHARE, steps NO KEY UPDATE, a close UPDATE
--   4. users' tables            in the order of the answers; a start writes rows of 5, which nobody sees yet, before
--   5. message_key, then global_message_key
-- Everything else belongs to an execution and is written under its lock, with three exceptions. Inbox rows are inserted
-- under KEY SHARE and never updated. A global message that nobody has taken is written by the main scheduler alone, once
-- it is published; one that is taken belongs to the execution that has it. Rows of global_passed_over are written by
-- schedulers alone. The engine takes 3 with SKIP LOCKED and waits at 4 and 5 for 50 ms at most (500 ms in the lane of
-- tables that are set aside), and never looks for a deadlock itself, so it is never cancelled for one. Purging takes 1 and 3
-- with SKIP LOCKED too, for many executions in one transaction. A bulk start takes all of 1 first, in the order of the
-- process ids. Rows of attribute_lock are touched by those alone who have locked their task; rows of engine are locked in
-- the order of the lanes.
--
-- Hot and narrow: task, timer, inbox. Wide and cold: state_execution, history_event. No foreign keys between hot
-- tables: an execution's rows are written by the engine alone, under its lock. Hot tables carry shard, a hash of the
-- process id in 0..1023.
--
-- Vacuum doesn't rest on the hot tables that stay small. Those that grow with the processes that wait or are kept are left to
-- the server's pace: on millions of rows, vacuum that doesn't rest fills the WAL with whole pages. It doesn't cut the end of
-- a hot table off: everybody would wait for its lock, and the pages are used again.

CREATE TABLE xdb.engine (
    lane smallint PRIMARY KEY CONSTRAINT engine_lane_known CHECK (lane IN (0, 1)),
    epoch bigint NOT NULL CONSTRAINT engine_epoch_unique UNIQUE,
    paused boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.engine (lane, epoch) VALUES (0, 1), (1, 2);

-- The databases whose processes these are, this one or the one it was copied from. Dumped.
CREATE TABLE xdb.instances (
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    superseded_at timestamptz,
    PRIMARY KEY (system_identifier, database)
);

CREATE TABLE xdb.registry (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT registry_is_one_row CHECK (singleton),
    generation bigint NOT NULL DEFAULT 1,
    -- Not dumped: what is restored, be it into the database it came from, runs only when somebody says so.
    in_use boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.registry DEFAULT VALUES;

CREATE TABLE xdb.worker (
    worker_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL CONSTRAINT worker_name_unique UNIQUE,
    url text NOT NULL,
    secret text,
    headers jsonb,
    max_concurrency int NOT NULL DEFAULT 64 CONSTRAINT worker_concurrency_positive CHECK (max_concurrency > 0),
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

CREATE TABLE xdb.mapped_table (
    mapping_id int NOT NULL,
    position int NOT NULL,
    relation regclass NOT NULL,
    table_name text NOT NULL,
    key_columns text[] NOT NULL CONSTRAINT mapped_table_has_key CHECK (pg_catalog.cardinality(key_columns) > 0),
    attributes jsonb NOT NULL,
    PRIMARY KEY (mapping_id, position)
);
CREATE SEQUENCE xdb.mapping_id_seq AS int;

CREATE TABLE xdb.process_type (
    type_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    process_type text NOT NULL CONSTRAINT process_type_unique UNIQUE,
    worker_id int NOT NULL CONSTRAINT process_type_worker REFERENCES xdb.worker,
    definition jsonb NOT NULL,
    mapping_id int,
    version bigint NOT NULL DEFAULT 1,
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

CREATE TABLE xdb.process_execution (
    execution_id uuid PRIMARY KEY,
    shard smallint NOT NULL,
    process_id text NOT NULL,
    type_id int NOT NULL,
    process_type text NOT NULL,
    owner oid NOT NULL,
    owner_name text NOT NULL,
    status text NOT NULL CONSTRAINT process_status_known
        CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'TIMEOUT', 'TERMINATED')),
    closing text CONSTRAINT process_closing_known CHECK (closing IN ('UNCONDITIONAL', 'CONDITIONAL')),
    started_at timestamptz NOT NULL,
    closed_at timestamptz,
    timeout_at timestamptz,
    reason text,
    next_event bigint NOT NULL,
    next_state int NOT NULL,
    next_message bigint NOT NULL,
    live_threads int NOT NULL CONSTRAINT process_threads_counted CHECK (live_threads >= 0),
    completing boolean NOT NULL,
    state_numbers jsonb NOT NULL,
    mapping_id int,
    attribute_keys jsonb,
    results jsonb NOT NULL DEFAULT '[]',
    -- Null: all events are kept. Else at least so many of the last ones; with 0, none.
    history_limit int CONSTRAINT process_history_counts CHECK (history_limit >= 0),
    request_id text,
    traceparent text,
    CONSTRAINT process_closed_has_time CHECK ((status = 'RUNNING') = (closed_at IS NULL)),
    CONSTRAINT process_closed_is_still CHECK (status = 'RUNNING' OR (live_threads = 0 AND closing IS NULL)),
    CONSTRAINT process_keys_need_mapping CHECK ((mapping_id IS NULL) = (attribute_keys IS NULL))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
CREATE INDEX process_execution_by_process_id ON xdb.process_execution (process_id);
CREATE UNIQUE INDEX process_execution_one_running ON xdb.process_execution (process_id) WHERE status = 'RUNNING';
CREATE UNIQUE INDEX process_execution_one_per_request ON xdb.process_execution (process_id, request_id)
    WHERE request_id IS NOT NULL;
CREATE INDEX process_execution_closed ON xdb.process_execution (closed_at, execution_id) WHERE closed_at IS NOT NULL;
CREATE INDEX process_execution_closing ON xdb.process_execution (execution_id) WHERE closing IS NOT NULL;

CREATE TABLE xdb.latest_execution (
    process_id text PRIMARY KEY,
    execution_id uuid NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE xdb.state_execution (
    execution_id uuid NOT NULL,
    seq int NOT NULL CONSTRAINT state_seq_counts CHECK (seq > 0),
    shard smallint NOT NULL,
    state_id text NOT NULL,
    number int NOT NULL CONSTRAINT state_number_counts CHECK (number > 0),
    status text NOT NULL CONSTRAINT state_status_known
        CHECK (status IN ('WAIT_UNTIL', 'WAITING', 'EXECUTE', 'COMPLETED', 'FAILED', 'ABORTED')),
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    input jsonb,
    config jsonb,
    recovery jsonb,
    call jsonb,
    wait jsonb,
    last_failure jsonb,
    PRIMARY KEY (execution_id, seq),
    CONSTRAINT state_number_unique UNIQUE (execution_id, state_id, number),
    CONSTRAINT state_ended_has_time CHECK ((status IN ('COMPLETED', 'FAILED', 'ABORTED')) = (ended_at IS NOT NULL)),
    CONSTRAINT state_at_a_call CHECK ((status IN ('WAIT_UNTIL', 'EXECUTE')) = (call IS NOT NULL)),
    CONSTRAINT state_waiting_for_something CHECK (status <> 'WAITING' OR wait IS NOT NULL)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

CREATE TABLE xdb.task (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    shard smallint NOT NULL,
    lane smallint NOT NULL DEFAULT 0 CONSTRAINT task_lane_known CHECK (lane IN (0, 1, 2)),  -- 2: parked, see below
    worker_id int NOT NULL,
    api text NOT NULL CONSTRAINT task_api_known CHECK (api IN ('WAIT_UNTIL_API', 'EXECUTE_API')),
    due_at timestamptz NOT NULL,
    attempt int NOT NULL DEFAULT 0 CONSTRAINT task_attempt_counts CHECK (attempt >= 0),
    first_attempt_at timestamptz,
    lease_epoch bigint NOT NULL DEFAULT 0,
    lease_number bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    PRIMARY KEY (execution_id, seq)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,
        vacuum_truncate = off);
-- The lease is not in it, so that taking and losing one stays a heap-only update.
CREATE INDEX task_claim ON xdb.task (lane, worker_id, due_at);

-- Locks on attributes that the calls of states hold or wait for, so that they do not conflict with each other. Nothing
-- is right or wrong by them: versions see to that. A row belongs to a call as its task does: granted while the task's
-- lease is good, parked while the task is in lane 2, which no claim looks at; else the call is about to ask again, and
-- its place in the queue, the ticket, is kept. Only parked and granted rows are in anybody's way.
CREATE SEQUENCE xdb.attribute_lock_ticket;
CREATE TABLE xdb.attribute_lock (
    object uuid NOT NULL,
    ticket bigint NOT NULL,
    mode text NOT NULL CONSTRAINT lock_mode_known CHECK (mode IN ('IS', 'IX', 'S', 'X')),
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    granted boolean NOT NULL,
    parked boolean NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (object, ticket),
    CONSTRAINT lock_granted_or_parked CHECK (NOT (granted AND parked))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000);
CREATE INDEX attribute_lock_of_call ON xdb.attribute_lock (execution_id, seq);
CREATE INDEX attribute_lock_granted ON xdb.attribute_lock (object) WHERE granted;
-- An expression, so that the primary key has not this order: of an object that many wait for in one mode, the planner
-- takes walking over all of them for a way to those who wait in another mode.
CREATE INDEX attribute_lock_parked ON xdb.attribute_lock (object, mode, (ticket + 0)) WHERE parked;

-- Objects that were released by others than the main scheduler, which takes them out and hands them on.
CREATE TABLE xdb.attribute_lock_release (
    release_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object uuid NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE xdb.timer (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    command int NOT NULL,
    shard smallint NOT NULL,
    kind text NOT NULL CONSTRAINT timer_kind_known CHECK (kind IN ('PROCESS_TIMEOUT', 'TIMER_COMMAND')),
    fire_at timestamptz NOT NULL,
    PRIMARY KEY (execution_id, seq, command),
    CONSTRAINT timer_of_process_or_state CHECK ((kind = 'PROCESS_TIMEOUT') = (seq = 0))
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
CREATE INDEX timer_due ON xdb.timer (fire_at);

CREATE TABLE xdb.inbox (
    inbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    execution_id uuid NOT NULL,
    shard smallint NOT NULL,
    queue_name text NOT NULL,
    message_id text,
    payload jsonb,
    bytes int NOT NULL CONSTRAINT inbox_bytes_counted CHECK (bytes >= 0),
    published_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX inbox_of_execution ON xdb.inbox (execution_id, inbox_id);

CREATE TABLE xdb.message_key (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    message_id text NOT NULL,
    PRIMARY KEY (execution_id, queue_name, message_id)
);

CREATE TABLE xdb.queue_message (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    number bigint NOT NULL,
    shard smallint NOT NULL,
    message_id text,
    payload jsonb,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (execution_id, queue_name, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE xdb.queue_waiter (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    wait_order bigint NOT NULL,
    seq int NOT NULL,
    PRIMARY KEY (execution_id, queue_name, wait_order, seq)
);

-- number is the place in the order: a message that is given back keeps it. fresh is set while the main scheduler has
-- not offered the message to those who wait. Owner is the role that published it.
CREATE TABLE xdb.global_message (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name text NOT NULL,
    key text,
    message_id text,
    payload jsonb,
    bytes int NOT NULL CONSTRAINT global_message_bytes_counted CHECK (bytes >= 0),
    owner oid NOT NULL,
    owner_name text NOT NULL,
    published_at timestamptz NOT NULL,
    expires_at timestamptz,
    fresh boolean NOT NULL DEFAULT true,
    taken_by uuid,
    taken_seq int,
    taken_command int,
    taken_at timestamptz,
    CONSTRAINT global_message_taken_by_a_command CHECK (
        (taken_by IS NULL) = (taken_seq IS NULL) AND (taken_by IS NULL) = (taken_command IS NULL)
        AND (taken_by IS NULL) = (taken_at IS NULL)),
    CONSTRAINT global_message_fresh_is_free CHECK (NOT fresh OR taken_by IS NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000);
-- Expressions, so that no other index has these orders: while a great many messages are in one queue, the planner
-- takes walking over all of them, by whatever index has the order, for a way to those of another queue or key.
CREATE INDEX global_message_fresh ON xdb.global_message ((number + 0)) WHERE fresh;
CREATE INDEX global_message_free ON xdb.global_message (queue_name, (number + 0)) WHERE taken_by IS NULL;
CREATE INDEX global_message_free_by_key ON xdb.global_message (queue_name, key, (number - 0))
    WHERE taken_by IS NULL AND key IS NOT NULL;
CREATE INDEX global_message_taken ON xdb.global_message (taken_by, taken_seq) WHERE taken_by IS NOT NULL;
CREATE INDEX global_message_expiring ON xdb.global_message (expires_at)
    WHERE taken_by IS NULL AND expires_at IS NOT NULL;
CREATE INDEX global_message_by_id ON xdb.global_message (queue_name, message_id) WHERE message_id IS NOT NULL;

-- Message ids that were used, for as long as the message is there and for xdb.retention.
CREATE TABLE xdb.global_message_key (
    queue_name text NOT NULL,
    message_id text NOT NULL,
    published_at timestamptz NOT NULL,
    PRIMARY KEY (queue_name, message_id)
);
CREATE INDEX global_message_key_old ON xdb.global_message_key (published_at, queue_name, message_id);

-- wait_order is the order of waiting, over all executions. at_least tells whom it is no use to ask.
CREATE TABLE xdb.global_waiter (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    command int NOT NULL,
    queue_name text NOT NULL,
    key text,
    at_least bigint NOT NULL CONSTRAINT global_waiter_wants_messages CHECK (at_least > 0),
    wait_order bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (execution_id, seq, command)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000);
CREATE INDEX global_waiter_in_order ON xdb.global_waiter (queue_name, key, at_least, wait_order);

-- States that were not asked when messages came, because somebody had locked their execution, or that began to wait in the
-- other lane. Apart from global_waiter, whose rows the one who holds the execution may have deleted: only inserting here
-- never waits for him.
CREATE TABLE xdb.global_passed_over (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    PRIMARY KEY (execution_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE xdb.rpc_answer (
    execution_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    answered_at timestamptz NOT NULL,
    output jsonb,
    PRIMARY KEY (execution_id, idempotency_key)
);

CREATE TABLE xdb.local_attribute (
    execution_id uuid NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    PRIMARY KEY (execution_id, key)
) WITH (fillfactor = 80);

CREATE TABLE xdb.history_event (
    execution_id uuid NOT NULL,
    event_id bigint NOT NULL,
    event_time timestamptz NOT NULL,
    event_type text NOT NULL,
    details jsonb NOT NULL,
    PRIMARY KEY (execution_id, event_id)
);

CREATE TABLE xdb.purged (
    execution_id uuid PRIMARY KEY
);

CREATE TABLE xdb.set_aside (
    relation regclass PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    reason text NOT NULL
);
-- The SQL surface. Every function that waits, calls or writes is VOLATILE, runs as its caller, and is native.

CREATE FUNCTION xdb.register_worker(name text, url text, secret text DEFAULT NULL, headers jsonb DEFAULT NULL,
    max_concurrency int DEFAULT 64) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_worker';

CREATE FUNCTION xdb.unregister_worker(name text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_worker';

CREATE FUNCTION xdb.register_process_type(process_type text, worker text, definition jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_process_type';

CREATE FUNCTION xdb.unregister_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_process_type';

CREATE FUNCTION xdb.start_process(process_id text, process_type text, input jsonb DEFAULT NULL,
    global_attribute_pk text DEFAULT NULL, global_attributes jsonb DEFAULT NULL,
    local_attributes jsonb DEFAULT NULL, id_reuse_policy text DEFAULT 'ALLOW_IF_NO_RUNNING',
    timeout interval DEFAULT NULL, start_at timestamptz DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_process';

CREATE FUNCTION xdb.start_processes(processes jsonb) RETURNS SETOF uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_processes';

CREATE FUNCTION xdb.invoke_rpc(process_id text, rpc_name text, input jsonb DEFAULT NULL,
    timeout interval DEFAULT NULL, idempotency_key text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_invoke_rpc';

CREATE FUNCTION xdb.publish(process_id text, queue_name text, message jsonb DEFAULT NULL,
    message_id text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish';

CREATE FUNCTION xdb.publish_global(queue_name text, message jsonb DEFAULT NULL, key text DEFAULT NULL,
    message_id text DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish_global';

CREATE FUNCTION xdb.stop_process(process_id text, stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process';

CREATE FUNCTION xdb.describe_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_describe_process';

CREATE FUNCTION xdb.wait_for_process(process_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_process';

CREATE FUNCTION xdb.wait_for_state(process_id text, state_execution_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_state';

CREATE FUNCTION xdb.set_local_attributes(process_id text, attributes jsonb, execution_id uuid DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_local_attributes';

CREATE FUNCTION xdb.skip_timer(process_id text, state_execution_id text, command_id text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer';

CREATE FUNCTION xdb.retry_now(process_id text, state_execution_id text DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now';

CREATE FUNCTION xdb.get_local_attributes(process_id text, keys text[] DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_get_local_attributes';

CREATE FUNCTION xdb.process_problems(process_id text, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_problems';

CREATE FUNCTION xdb.check_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS TABLE (problem text)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$ SELECT jsonb_array_elements_text(xdb.process_problems(process_id, execution_id)) $$;

CREATE FUNCTION xdb.pause() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause';

CREATE FUNCTION xdb.resume() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume';

CREATE FUNCTION xdb.adopt() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_adopt';

CREATE FUNCTION xdb.knows_roles() RETURNS boolean
    LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'xdb_knows_roles';

CREATE FUNCTION xdb.purge(older_than interval) RETURNS bigint
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_purge';

-- The figures of this database's engine and of its workers, from shared memory; status() and the view workers
-- make rows of them.
CREATE FUNCTION xdb.engine_figures() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_engine_figures';

CREATE FUNCTION xdb.worker_figures() RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_worker_figures';

CREATE FUNCTION xdb.status() RETURNS TABLE (engine_pid int, state text, in_flight int, backlog bigint,
    oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, set_aside text[],
    last_error text, last_error_at timestamptz, reason text)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$
        SELECT f.engine_pid, f.state, f.in_flight, f.backlog, f.oldest_due, f.calls_per_second, f.started_at,
            f.epoch, f.set_aside, f.last_error, f.last_error_at, f.reason
        FROM jsonb_to_record(xdb.engine_figures()) AS f (engine_pid int, state text, in_flight int, backlog bigint,
            oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, set_aside text[],
            last_error text, last_error_at timestamptz, reason text)
    $$;

CREATE FUNCTION xdb.worker_counters() RETURNS TABLE (worker_id int, in_flight int, calls bigint, failures bigint,
    consecutive_failures int, average_latency interval, last_error_at timestamptz, breaker text,
    breaker_open_since timestamptz, next_probe_at timestamptz)
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
    AS $$
        SELECT f.worker_id, f.in_flight, f.calls, f.failures, f.consecutive_failures,
            f.average_latency_us * interval '1 microsecond', f.last_error_at, f.breaker, f.breaker_open_since,
            f.next_probe_at
        FROM jsonb_to_recordset(xdb.worker_figures()) AS f (worker_id int, in_flight int, calls bigint,
            failures bigint, consecutive_failures int, average_latency_us bigint, last_error_at timestamptz,
            breaker text, breaker_open_since timestamptz, next_probe_at timestamptz)
    $$;
-- Who may see and call what. Included after the tables and the native functions, before the views.
--
-- Nothing is granted to PUBLIC. A function is born with EXECUTE for PUBLIC, so all of them are created before the
-- REVOKE at the end of this file; views.sql creates views alone, which are not, and revokes once more what the
-- installer's default privileges may have added. A script that adds functions later revokes likewise and adds them to
-- the lists in xdb.grant_usage.

CREATE FUNCTION xdb.grant_usage(role regrole, admin boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    -- Every function of the extension that others than its owner may call stands in one of these lists.
    of_users CONSTANT name[] := ARRAY[
        'start_process', 'invoke_rpc', 'publish', 'stop_process',
        'describe_process', 'wait_for_process', 'get_local_attributes',
        'start_processes', 'publish_global', 'wait_for_state', 'set_local_attributes', 'skip_timer', 'retry_now',
        'check_process', 'process_problems',
        'knows_roles',  -- called by the policies, as whoever reads
        'worker_counters', 'worker_figures'];  -- called by the view workers, as its reader
    of_admins CONSTANT name[] := ARRAY[
        'pause', 'resume', 'adopt', 'status', 'engine_figures', 'library_version', 'purge',
        'register_worker', 'unregister_worker', 'register_process_type', 'unregister_process_type'];
    grantee name;
    signature regprocedure;
BEGIN
    IF role IS NULL OR admin IS NULL THEN
        RAISE EXCEPTION 'invalid value for %: it must not be null', CASE WHEN role IS NULL THEN 'role' ELSE 'admin' END
            USING ERRCODE = 'XD009';
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

    EXECUTE format('GRANT USAGE ON SCHEMA xdb TO %I', grantee);
    FOR signature IN
        SELECT p.oid
        FROM pg_proc AS p
        JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
        WHERE e.extname = 'xdb' AND p.pronamespace = 'xdb'::regnamespace
          AND (p.proname = ANY (of_users) OR (admin AND p.proname = ANY (of_admins)))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, grantee);
    END LOOP;
    -- The views read with the rights of their reader, so these cover the tables too; row-level security does the
    -- rest. Of a worker the secret and the headers stay out.
    EXECUTE format(
        'GRANT SELECT ON xdb.processes, xdb.state_executions, xdb.waits, xdb.timers, xdb.queue_messages, '
        'xdb.failures, xdb.history, xdb.workers, xdb.attribute_locks, '
        'xdb.process_execution, xdb.latest_execution, xdb.state_execution, xdb.timer, xdb.inbox, '
        'xdb.queue_message, xdb.global_message, xdb.history_event, xdb.attribute_lock TO %I', grantee);
    EXECUTE format(
        'GRANT SELECT (worker_id, name, url, max_concurrency, registered_at) ON xdb.worker TO %I', grantee);
    IF admin THEN
        EXECUTE format('GRANT SELECT ON xdb.instances TO %I', grantee);
    END IF;
END
$body$;

CREATE FUNCTION xdb.revoke_usage(role regrole) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    grantee name;
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

    -- Privileges on columns go with those on their table.
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON SCHEMA xdb FROM %I', grantee);
END
$body$;

-- The one place that decides who sees an execution: a role that has the privileges of its owner, or an XDB
-- administrator, who is whoever may call xdb.pause(). The sub-select asks for that once per query, and the cast has
-- found the function once and for all. In a copy whose roles are not known yet, administrators alone see anything. There are no policies but for SELECT: native code alone writes, as the tables'
-- owner, whom the policies don't concern.
ALTER TABLE xdb.process_execution ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON xdb.process_execution FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

ALTER TABLE xdb.instances ENABLE ROW LEVEL SECURITY;
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
        'xdb.timer', 'xdb.task', 'xdb.history_event', 'xdb.purged', 'xdb.attribute_lock'
    ]::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', child);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %1$s FOR SELECT USING (EXISTS (SELECT FROM xdb.process_execution AS p '
            'WHERE p.execution_id OPERATOR(pg_catalog.=) %1$s.execution_id))', child);
    END LOOP;
END
$body$;

-- A message of a global queue belongs to the role that published it, until somebody takes it.
ALTER TABLE xdb.global_message ENABLE ROW LEVEL SECURITY;
CREATE POLICY visible ON xdb.global_message FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR taken_by IS NULL AND (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

REVOKE ALL ON SCHEMA xdb FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA xdb FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA xdb FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA xdb FROM PUBLIC;

GRANT USAGE ON SCHEMA xdb TO pg_monitor;
-- status() runs as its caller, and so must they be allowed what it calls.
GRANT EXECUTE ON FUNCTION xdb.status(), xdb.engine_figures(), xdb.library_version() TO pg_monitor;
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
    l.name AS locked,
    CASE l.mode
        WHEN 'S' THEN 'SHARE_LOCK'
        WHEN 'X' THEN 'EXCLUSIVE_LOCK'
        WHEN 'IS' THEN 'SHARE_LOCK of a part'
        WHEN 'IX' THEN 'EXCLUSIVE_LOCK of a part'
    END AS lock_type,
    l.granted,
    l.ticket,
    l.object
FROM xdb.process_execution AS p
JOIN xdb.attribute_lock AS l ON l.execution_id OPERATOR(pg_catalog.=) p.execution_id
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
-- What pg_dump takes along of the extension's tables: everything but what every installation makes anew (engine,
-- registry) and what a copy finds out for itself (set_aside, attribute_lock).
DO $$
DECLARE
    kept pg_catalog.regclass;
BEGIN
    FOREACH kept IN ARRAY ARRAY[
        'xdb.instances', 'xdb.worker', 'xdb.mapped_table', 'xdb.process_type', 'xdb.process_execution',
        'xdb.latest_execution', 'xdb.state_execution', 'xdb.task', 'xdb.timer', 'xdb.inbox', 'xdb.message_key',
        'xdb.queue_message', 'xdb.queue_waiter', 'xdb.rpc_answer', 'xdb.local_attribute', 'xdb.history_event',
        'xdb.purged', 'xdb.global_message', 'xdb.global_message_key', 'xdb.global_waiter', 'xdb.global_passed_over',
        'xdb.worker_worker_id_seq', 'xdb.process_type_type_id_seq', 'xdb.mapping_id_seq', 'xdb.inbox_inbox_id_seq',
        'xdb.global_message_number_seq', 'xdb.global_waiter_wait_order_seq'
    ]::pg_catalog.regclass[]
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(kept, '');
    END LOOP;
END
$$;
-- Comments on everything that psql can show, in the order of the files that create it.

COMMENT ON SCHEMA xdb IS 'XDB: durable processes. Call its functions, read its views; its tables are written by native code alone.';

COMMENT ON TABLE xdb.engine IS 'This database''s engine: one row per lane, written by the process that serves it.';
COMMENT ON COLUMN xdb.engine.lane IS '0 = the scheduler, 1 = the process for tables that are set aside.';
COMMENT ON COLUMN xdb.engine.epoch IS 'Grows at every start of the lane''s process and differs between lanes, so that no lease is ever issued twice.';
COMMENT ON COLUMN xdb.engine.paused IS 'Whether xdb.pause() was called and xdb.resume() was not since.';

COMMENT ON TABLE xdb.instances IS 'The databases whose processes these are: this one, unless it is a copy that was not adopted.';
COMMENT ON COLUMN xdb.instances.system_identifier IS 'Identifier of the server''s files, as pg_control_system() shows it.';
COMMENT ON COLUMN xdb.instances.database IS 'Oid of the database.';
COMMENT ON COLUMN xdb.instances.since IS 'When it was taken into use, or adopted.';
COMMENT ON COLUMN xdb.instances.superseded_at IS 'When another database adopted the processes.';

COMMENT ON TABLE xdb.registry IS 'The one row that tells the engine when to read the registrations again.';
COMMENT ON COLUMN xdb.registry.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN xdb.registry.generation IS 'Grows with every change of a worker or process type.';
COMMENT ON COLUMN xdb.registry.in_use IS 'Whether something was registered here, or what was restored was adopted.';

COMMENT ON TABLE xdb.worker IS 'Registered workers, by xdb.register_worker.';
COMMENT ON COLUMN xdb.worker.worker_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.worker.name IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.worker.url IS 'Where it listens; the paths of the worker protocol are appended.';
COMMENT ON COLUMN xdb.worker.secret IS 'Key that signs every call to it. Granted to nobody.';
COMMENT ON COLUMN xdb.worker.headers IS 'HTTP headers sent with every call to it, {name: value}. Granted to nobody.';
COMMENT ON COLUMN xdb.worker.max_concurrency IS 'Calls that may run at it at one time.';
COMMENT ON COLUMN xdb.worker.registered_at IS 'When it was registered first or last changed.';

COMMENT ON TABLE xdb.mapped_table IS 'Users'' tables whose columns are global attributes. Rows never change: a registration that maps otherwise makes a new mapping, and running executions keep theirs.';
COMMENT ON COLUMN xdb.mapped_table.mapping_id IS 'The mapping this table belongs to.';
COMMENT ON COLUMN xdb.mapped_table.position IS 'Place of the table in the definition.';
COMMENT ON COLUMN xdb.mapped_table.relation IS 'The table, followed through renames.';
COMMENT ON COLUMN xdb.mapped_table.table_name IS 'The table''s name as the definition spelled it.';
COMMENT ON COLUMN xdb.mapped_table.key_columns IS 'Columns that find the row.';
COMMENT ON COLUMN xdb.mapped_table.attributes IS 'Columns by attribute, {attribute: column}.';
COMMENT ON SEQUENCE xdb.mapping_id_seq IS 'Gives mapping_id.';

COMMENT ON TABLE xdb.process_type IS 'Registered process types, by xdb.register_process_type.';
COMMENT ON COLUMN xdb.process_type.type_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.process_type.process_type IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.process_type.worker_id IS 'Worker that implements its states and RPCs.';
COMMENT ON COLUMN xdb.process_type.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_type.mapping_id IS 'Global attributes of executions that start from now on; null = none.';
COMMENT ON COLUMN xdb.process_type.version IS 'Grows with every registration.';
COMMENT ON COLUMN xdb.process_type.registered_at IS 'When it was registered last.';

COMMENT ON TABLE xdb.process_execution IS 'Process executions: one row per run of a process id. Its row lock guards everything that belongs to the execution.';
COMMENT ON COLUMN xdb.process_execution.execution_id IS 'UUID, version 7.';
COMMENT ON COLUMN xdb.process_execution.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.process_execution.process_id IS 'Business identifier, chosen by whoever started it.';
COMMENT ON COLUMN xdb.process_execution.type_id IS 'Its process type. Not a foreign key: closed executions may outlive their type.';
COMMENT ON COLUMN xdb.process_execution.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.process_execution.owner IS 'Role that started it: its steps touch users'' tables as this role. May be gone by now.';
COMMENT ON COLUMN xdb.process_execution.owner_name IS 'Name of the owner at the start; a role that took over the oid is not the owner.';
COMMENT ON COLUMN xdb.process_execution.status IS 'RUNNING, then for ever one of COMPLETED, FAILED, TIMEOUT, TERMINATED.';
COMMENT ON COLUMN xdb.process_execution.closing IS 'Set while a close waits for open publishers: to an UNCONDITIONAL close further publishes are refused, to a CONDITIONAL one they wait for its outcome.';
COMMENT ON COLUMN xdb.process_execution.started_at IS 'When it was started.';
COMMENT ON COLUMN xdb.process_execution.closed_at IS 'When it closed; null while it runs.';
COMMENT ON COLUMN xdb.process_execution.timeout_at IS 'When it times out; null = never.';
COMMENT ON COLUMN xdb.process_execution.reason IS 'Why it failed or was stopped.';
COMMENT ON COLUMN xdb.process_execution.next_event IS 'Number of the event that comes next, from 1.';
COMMENT ON COLUMN xdb.process_execution.next_state IS 'Ordinal of the state execution that comes next, from 1.';
COMMENT ON COLUMN xdb.process_execution.next_message IS 'Number of the message that is received next, from 1.';
COMMENT ON COLUMN xdb.process_execution.live_threads IS 'Threads that have not ended.';
COMMENT ON COLUMN xdb.process_execution.completing IS 'Whether a graceful completion was requested: the process completes when its last thread ends.';
COMMENT ON COLUMN xdb.process_execution.state_numbers IS 'Number given out last per state id, {stateId: number}.';
COMMENT ON COLUMN xdb.process_execution.mapping_id IS 'Its mapping of global attributes, as at its start; null = it has none.';
COMMENT ON COLUMN xdb.process_execution.attribute_keys IS 'Keys of its rows: for each mapped table, in their order, the texts of its key columns as given at its start; null where no table is mapped.';
COMMENT ON COLUMN xdb.process_execution.results IS 'Outputs of the threads that closed it, [{"stateExecutionId", "output"}].';
COMMENT ON COLUMN xdb.process_execution.history_limit IS 'How many of the last events are kept at least: null for all, 0 for none.';
COMMENT ON COLUMN xdb.process_execution.request_id IS 'The starter''s requestId: starting again with it gives this execution.';
COMMENT ON COLUMN xdb.process_execution.traceparent IS 'Trace context of the starter, sent with every call.';

COMMENT ON TABLE xdb.latest_execution IS 'The latest execution of every process id. Its row lock decides between starts of the same id.';
COMMENT ON COLUMN xdb.latest_execution.process_id IS 'Process id.';
COMMENT ON COLUMN xdb.latest_execution.execution_id IS 'Its latest execution, running or closed.';

COMMENT ON TABLE xdb.state_execution IS 'State executions, with their payloads.';
COMMENT ON COLUMN xdb.state_execution.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.state_execution.seq IS 'Ordinal within the process execution, from 1 over all states.';
COMMENT ON COLUMN xdb.state_execution.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.state_execution.state_id IS 'Async state that runs.';
COMMENT ON COLUMN xdb.state_execution.number IS 'Counted from 1 per state id; the state execution id is <state_id>-<number>.';
COMMENT ON COLUMN xdb.state_execution.status IS 'WAIT_UNTIL and EXECUTE: at that call. WAITING: for its commands. COMPLETED, FAILED (retries spent), ABORTED (the process closed first): ended.';
COMMENT ON COLUMN xdb.state_execution.started_at IS 'When its thread came to it.';
COMMENT ON COLUMN xdb.state_execution.ended_at IS 'When it ended; null while it is live.';
COMMENT ON COLUMN xdb.state_execution.input IS 'Input of the state.';
COMMENT ON COLUMN xdb.state_execution.config IS 'State options that came with the movement and override the registered ones.';
COMMENT ON COLUMN xdb.state_execution.recovery IS 'What it recovers from: the failed state execution, its API and its last failure.';
COMMENT ON COLUMN xdb.state_execution.call IS 'The call it is at: not before when (microseconds since the Unix epoch), failed attempts, request generation, last failure.';
COMMENT ON COLUMN xdb.state_execution.wait IS 'What it waits for, or waited for: then it is the command results. Times are microseconds since the Unix epoch.';
COMMENT ON COLUMN xdb.state_execution.last_failure IS 'Last failed attempt of the call it is at, or was at when it failed or was aborted; null if that call never failed.';

COMMENT ON TABLE xdb.task IS 'Calls that are to be made. Hot: a row lives from the decision to call until the answer is applied.';
COMMENT ON COLUMN xdb.task.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.task.seq IS 'State execution that makes the call.';
COMMENT ON COLUMN xdb.task.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.task.lane IS 'Who carries it out: 0 = the scheduler, 1 = the process for tables that are set aside, 2 = nobody while it waits for locks.';
COMMENT ON COLUMN xdb.task.worker_id IS 'Worker that is called.';
COMMENT ON COLUMN xdb.task.api IS 'WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.task.due_at IS 'When it may be claimed.';
COMMENT ON COLUMN xdb.task.attempt IS 'Attempts whose start is durable.';
COMMENT ON COLUMN xdb.task.first_attempt_at IS 'When the first attempt began; null = none has.';
COMMENT ON COLUMN xdb.task.lease_epoch IS 'Engine epoch of the lease. Only the answer of the lease that stands here is applied.';
COMMENT ON COLUMN xdb.task.lease_number IS 'Number of the lease within its epoch.';
COMMENT ON COLUMN xdb.task.lease_until IS 'When the lease ends and the call may be made again; null = not leased.';

COMMENT ON SEQUENCE xdb.attribute_lock_ticket IS 'Gives ticket: the place in the queue of a lock.';

COMMENT ON TABLE xdb.attribute_lock IS 'Locks on attributes that calls of states have or wait for, so that they do not conflict. What is right is decided by versions, not by them.';
COMMENT ON COLUMN xdb.attribute_lock.object IS 'Hash of what is locked. Two things of one hash wait for each other, and that is all.';
COMMENT ON COLUMN xdb.attribute_lock.ticket IS 'Place in the queue, one for all objects of the call; RPCs take from the same sequence.';
COMMENT ON COLUMN xdb.attribute_lock.mode IS 'S = shared, X = exclusive; IS and IX announce that on a part.';
COMMENT ON COLUMN xdb.attribute_lock.execution_id IS 'Process execution of the call.';
COMMENT ON COLUMN xdb.attribute_lock.seq IS 'State execution of the call.';
COMMENT ON COLUMN xdb.attribute_lock.granted IS 'The call has it, for as long as its lease is good.';
COMMENT ON COLUMN xdb.attribute_lock.parked IS 'The call waits for it and is in the way of later ones. Neither granted nor parked: it is about to ask again.';
COMMENT ON COLUMN xdb.attribute_lock.name IS 'What is locked, for people.';

COMMENT ON TABLE xdb.attribute_lock_release IS 'Objects of xdb.attribute_lock that were released by others than the scheduler, which takes them out and hands them on.';
COMMENT ON COLUMN xdb.attribute_lock_release.release_id IS 'Key.';
COMMENT ON COLUMN xdb.attribute_lock_release.object IS 'What was released.';

COMMENT ON TABLE xdb.timer IS 'Durable timers: process timeouts and timer commands. A row is gone when it fired or its scope ended.';
COMMENT ON COLUMN xdb.timer.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.timer.seq IS 'State execution that waits for it; 0 = the process timeout.';
COMMENT ON COLUMN xdb.timer.command IS 'Position of the command in the state''s request, from 0; 0 for a process timeout.';
COMMENT ON COLUMN xdb.timer.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timer.fire_at IS 'When it fires; never earlier.';

COMMENT ON TABLE xdb.inbox IS 'Messages that were published and not yet received by their process. Rows are inserted and deleted, never changed.';
COMMENT ON COLUMN xdb.inbox.inbox_id IS 'Order of publishing.';
COMMENT ON COLUMN xdb.inbox.execution_id IS 'Process execution they are for.';
COMMENT ON COLUMN xdb.inbox.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.inbox.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.inbox.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.inbox.payload IS 'The message.';
COMMENT ON COLUMN xdb.inbox.bytes IS 'Length of the payload as text, so that a turn knows how much it can take in.';
COMMENT ON COLUMN xdb.inbox.published_at IS 'When it was published.';

COMMENT ON TABLE xdb.message_key IS 'Message ids that were used, so that a second message with the same id is ignored.';
COMMENT ON COLUMN xdb.message_key.execution_id IS 'Process execution the message was for.';
COMMENT ON COLUMN xdb.message_key.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.message_key.message_id IS 'The publisher''s id of the message.';

COMMENT ON TABLE xdb.queue_message IS 'Messages that were received and not yet taken by a state.';
COMMENT ON COLUMN xdb.queue_message.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.queue_message.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.queue_message.number IS 'Order of receiving within the execution, over all queues.';
COMMENT ON COLUMN xdb.queue_message.shard IS 'Hash of the process id, 0 to 1023.';
COMMENT ON COLUMN xdb.queue_message.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.queue_message.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_message.received_at IS 'When the process took it in.';

COMMENT ON TABLE xdb.queue_waiter IS 'Which waiting states want messages of which queue, so that an arrival finds them without reading all states.';
COMMENT ON COLUMN xdb.queue_waiter.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.queue_waiter.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.queue_waiter.wait_order IS 'Number of the event that began the wait: waiters are served in this order.';
COMMENT ON COLUMN xdb.queue_waiter.seq IS 'State execution that waits.';

COMMENT ON TABLE xdb.global_message IS 'Messages of global queues: free, or taken by a state that has not used them up.';
COMMENT ON COLUMN xdb.global_message.number IS 'Order of publishing, over all queues.';
COMMENT ON COLUMN xdb.global_message.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_message.key IS 'Key of the message, if it has one.';
COMMENT ON COLUMN xdb.global_message.message_id IS 'The publisher''s id of the message, if it gave one.';
COMMENT ON COLUMN xdb.global_message.payload IS 'The message.';
COMMENT ON COLUMN xdb.global_message.bytes IS 'Size of the payload as it came.';
COMMENT ON COLUMN xdb.global_message.owner IS 'Role that published it.';
COMMENT ON COLUMN xdb.global_message.owner_name IS 'Its name, which tells it in another server.';
COMMENT ON COLUMN xdb.global_message.published_at IS 'When it was published.';
COMMENT ON COLUMN xdb.global_message.expires_at IS 'From when on nobody can take it; null = never. Time that it was taken is added when it is given back.';
COMMENT ON COLUMN xdb.global_message.fresh IS 'It was not offered yet to those who wait.';
COMMENT ON COLUMN xdb.global_message.taken_by IS 'Process execution that has taken it; null = free.';
COMMENT ON COLUMN xdb.global_message.taken_seq IS 'State execution that has taken it.';
COMMENT ON COLUMN xdb.global_message.taken_command IS 'Position of the command that has taken it.';
COMMENT ON COLUMN xdb.global_message.taken_at IS 'When it was taken.';

COMMENT ON TABLE xdb.global_message_key IS 'Message ids that were used in global queues, kept while the message is there and for xdb.retention.';
COMMENT ON COLUMN xdb.global_message_key.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_message_key.message_id IS 'The publisher''s id of the message.';
COMMENT ON COLUMN xdb.global_message_key.published_at IS 'When it was used first.';

COMMENT ON TABLE xdb.global_waiter IS 'Commands of waiting states that want messages of a global queue.';
COMMENT ON COLUMN xdb.global_waiter.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.global_waiter.seq IS 'State execution that waits.';
COMMENT ON COLUMN xdb.global_waiter.command IS 'Position of the command.';
COMMENT ON COLUMN xdb.global_waiter.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_waiter.key IS 'Key of the messages that it wants; null = of all.';
COMMENT ON COLUMN xdb.global_waiter.at_least IS 'Messages that complete the command.';
COMMENT ON COLUMN xdb.global_waiter.wait_order IS 'Waiters are served in this order.';

COMMENT ON TABLE xdb.global_passed_over IS 'Waiting states that could not be asked when messages of global queues came, and will be.';
COMMENT ON COLUMN xdb.global_passed_over.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.global_passed_over.seq IS 'State execution that waits.';

COMMENT ON TABLE xdb.rpc_answer IS 'Answers of RPCs that had an idempotency key: the same key again gives the same answer, and the worker is not called.';
COMMENT ON COLUMN xdb.rpc_answer.execution_id IS 'Process execution that was called.';
COMMENT ON COLUMN xdb.rpc_answer.idempotency_key IS 'Key that the caller gave.';
COMMENT ON COLUMN xdb.rpc_answer.answered_at IS 'When the key was used first.';
COMMENT ON COLUMN xdb.rpc_answer.output IS 'Output of the RPC; null if it had none.';

COMMENT ON TABLE xdb.local_attribute IS 'Local attributes of process executions.';
COMMENT ON COLUMN xdb.local_attribute.execution_id IS 'Process execution they belong to.';
COMMENT ON COLUMN xdb.local_attribute.key IS 'Name of the attribute.';
COMMENT ON COLUMN xdb.local_attribute.value IS 'Its value as written last.';

COMMENT ON TABLE xdb.history_event IS 'What happened to process executions that keep a history. Replaying the rows from nothing gives the state that the tables hold; where not the whole history is kept, the first one is a Snapshot that stands for those before it.';
COMMENT ON COLUMN xdb.history_event.execution_id IS 'Process execution it happened to.';
COMMENT ON COLUMN xdb.history_event.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history_event.event_time IS 'When it happened.';
COMMENT ON COLUMN xdb.history_event.event_type IS 'What happened, e.g. StateStarted.';
COMMENT ON COLUMN xdb.history_event.details IS 'All that belongs to the event. Times are microseconds since the Unix epoch.';

COMMENT ON TABLE xdb.purged IS 'Executions that were purged and have left rows, which the engine deletes bit by bit.';
COMMENT ON COLUMN xdb.purged.execution_id IS 'The execution; its own row is gone.';

COMMENT ON TABLE xdb.set_aside IS 'Users'' tables on which steps ran into the apply timeout again and again: their steps are carried out apart, one by one.';
COMMENT ON COLUMN xdb.set_aside.relation IS 'The table.';
COMMENT ON COLUMN xdb.set_aside.since IS 'When it was set aside.';
COMMENT ON COLUMN xdb.set_aside.reason IS 'What its steps ran into.';

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
COMMENT ON COLUMN xdb.state_executions.attempt IS 'Attempt of that call which is in progress or comes next, from 1.';
COMMENT ON COLUMN xdb.state_executions.next_attempt_at IS 'The call is not made before this moment; in the past when it is due or in progress.';
COMMENT ON COLUMN xdb.state_executions.input IS 'Input of the state.';
COMMENT ON COLUMN xdb.state_executions.config IS 'State options that came with the movement.';
COMMENT ON COLUMN xdb.state_executions.recovers_from IS 'Failed state execution that it recovers from.';
COMMENT ON COLUMN xdb.state_executions.repeats IS 'How often that call was made again because what it had loaded under a lock had changed; not attempts.';

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

COMMENT ON VIEW xdb.timers IS 'Timers of the processes that the reader may see.';
COMMENT ON COLUMN xdb.timers.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.timers.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.timers.state_execution_id IS 'State execution that waits for it; null for a process timeout.';
COMMENT ON COLUMN xdb.timers.command_id IS 'Id that the worker gave the command, if any.';
COMMENT ON COLUMN xdb.timers.kind IS 'PROCESS_TIMEOUT or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timers.fire_at IS 'When it fires.';

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

COMMENT ON VIEW xdb.failures IS 'Last failed attempts of calls that are in backoff, are repeated, or were given up.';
COMMENT ON COLUMN xdb.failures.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.failures.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.failures.state_execution_id IS 'State execution whose call failed.';
COMMENT ON COLUMN xdb.failures.state_status IS 'WAIT_UNTIL or EXECUTE: the call is repeated. FAILED: the retries are spent. ABORTED: the process closed before the next attempt.';
COMMENT ON COLUMN xdb.failures.api IS 'The call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.failures.attempt IS 'Which attempt failed, from 1.';
COMMENT ON COLUMN xdb.failures.failed_at IS 'When it failed.';
COMMENT ON COLUMN xdb.failures.http_status IS 'HTTP status of the answer; null if there was none.';
COMMENT ON COLUMN xdb.failures.error_type IS 'The worker''s word for the kind of its error.';
COMMENT ON COLUMN xdb.failures.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.failures.sql_state IS 'SQLSTATE, if a user''s table refused what the answer wrote.';
COMMENT ON COLUMN xdb.failures.table_name IS 'The table that refused.';
COMMENT ON COLUMN xdb.failures.constraint_name IS 'The constraint that was violated.';
COMMENT ON COLUMN xdb.failures.next_attempt_at IS 'When the next attempt may be made, in the past when it is due or in progress; null when there is none.';

COMMENT ON VIEW xdb.attribute_locks IS 'Locks on attributes that state executions have or wait for. RPCs are not among them: they hold locks of Postgres.';
COMMENT ON COLUMN xdb.attribute_locks.process_id IS 'Process it belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.execution_id IS 'Process execution it belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.state_execution_id IS 'State execution whose call has it or waits for it.';
COMMENT ON COLUMN xdb.attribute_locks.locked IS 'What is locked: a row of a table by its key, a local attribute, or all of them.';
COMMENT ON COLUMN xdb.attribute_locks.lock_type IS 'SHARE_LOCK or EXCLUSIVE_LOCK. Of all local attributes it may be that of a part, which excludes only who wants the whole.';
COMMENT ON COLUMN xdb.attribute_locks.granted IS 'Whether it has it. Who waits for one of its locks has none.';
COMMENT ON COLUMN xdb.attribute_locks.ticket IS 'Place in the queue.';
COMMENT ON COLUMN xdb.attribute_locks.object IS 'The same for everybody who waits for the same.';

COMMENT ON VIEW xdb.history IS 'What happened to the processes that the reader may see. Order by execution_id, event_id.';
COMMENT ON COLUMN xdb.history.process_id IS 'Process it happened to.';
COMMENT ON COLUMN xdb.history.execution_id IS 'Process execution it happened to.';
COMMENT ON COLUMN xdb.history.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history.event_time IS 'When it happened.';
COMMENT ON COLUMN xdb.history.event_type IS 'What happened, e.g. StateStarted.';
COMMENT ON COLUMN xdb.history.details IS 'All that belongs to the event. Times are microseconds since the Unix epoch.';

COMMENT ON VIEW xdb.workers IS 'Registered workers, without their secrets, and how the calls to them went since the server started.';
COMMENT ON COLUMN xdb.workers.name IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.workers.url IS 'Where it listens.';
COMMENT ON COLUMN xdb.workers.max_concurrency IS 'Calls that may run at it at one time.';
COMMENT ON COLUMN xdb.workers.registered_at IS 'When it was registered first or last changed.';
COMMENT ON COLUMN xdb.workers.in_flight IS 'Calls that run now.';
COMMENT ON COLUMN xdb.workers.calls IS 'Calls that were made.';
COMMENT ON COLUMN xdb.workers.failures IS 'Calls that failed.';
COMMENT ON COLUMN xdb.workers.consecutive_failures IS 'Calls that failed since the last one that did not.';
COMMENT ON COLUMN xdb.workers.average_latency IS 'How long its calls take, on average; null before the first.';
COMMENT ON COLUMN xdb.workers.last_error_at IS 'When a call failed last; null = none has.';
COMMENT ON COLUMN xdb.workers.breaker IS 'closed; open: many calls in a row could not reach it, and none are made; half-open: one call is made, or will be as soon as one is due, and tells whether it is back.';
COMMENT ON COLUMN xdb.workers.breaker_open_since IS 'Since when it could not be reached; null when the breaker is closed.';
COMMENT ON COLUMN xdb.workers.next_probe_at IS 'From when on one call may be made to find out; null when the breaker is closed or that call is under way.';

COMMENT ON FUNCTION xdb.register_worker(text, text, text, jsonb, integer) IS 'Registers a worker, or changes the one of this name. Decides which URL the server calls.';
COMMENT ON FUNCTION xdb.unregister_worker(text) IS 'Removes a worker. Refused while a process type uses it.';
COMMENT ON FUNCTION xdb.register_process_type(text, text, jsonb) IS 'Registers a process type with its worker and definition, or replaces it. Running executions use the new states, options and RPCs from their next call; attribute mapping and timeout stay as at their start.';
COMMENT ON FUNCTION xdb.unregister_process_type(text) IS 'Removes a process type. Refused while executions of it run.';
COMMENT ON FUNCTION xdb.start_process(text, text, jsonb, text, jsonb, jsonb, text, interval, timestamptz, jsonb) IS 'Starts a process in the caller''s transaction and returns the id of its execution. Its owner is the current user.';
COMMENT ON FUNCTION xdb.start_processes(jsonb) IS 'Starts many processes in the caller''s transaction: an array of objects whose keys are the parameters of xdb.start_process. Returns the ids of the executions, in the order of the array.';
COMMENT ON FUNCTION xdb.invoke_rpc(text, text, jsonb, interval, text, uuid) IS 'Calls an RPC of a process, applies its answer in the caller''s transaction and returns its output.';
COMMENT ON FUNCTION xdb.publish(text, text, jsonb, text, uuid) IS 'Publishes a message to a local queue of a running process in the caller''s transaction. A message_id that was used before in the queue is ignored.';
COMMENT ON FUNCTION xdb.publish_global(text, jsonb, text, text, interval) IS 'Publishes a message to a global queue in the caller''s transaction, for whichever process takes it. A message_id that the queue has seen within xdb.retention is ignored; after the ttl nobody can take the message any more.';
COMMENT ON FUNCTION xdb.stop_process(text, text, text, uuid) IS 'Stops a running process, with a reason that is kept: TERMINATE makes it TERMINATED, FAIL makes it FAILED.';
COMMENT ON FUNCTION xdb.describe_process(text, uuid) IS 'Status, type, times, threads and what each waits for, last failure and results of a process.';
COMMENT ON FUNCTION xdb.wait_for_process(text, interval, uuid) IS 'Waits until a process has closed, at most for the timeout, and returns {"status", "result", "results", "timedOut"}.';
COMMENT ON FUNCTION xdb.wait_for_state(text, text, interval, uuid) IS 'Waits until a state execution has ended, at most for the timeout, and returns {"status", "processStatus", "timedOut"}. When the process closes first, status is null if there never was such a state execution.';
COMMENT ON FUNCTION xdb.set_local_attributes(text, jsonb, uuid) IS 'Writes local attributes of a running process, {key: value}, in the caller''s transaction.';
COMMENT ON FUNCTION xdb.skip_timer(text, text, text, uuid) IS 'Lets a timer that a state execution waits for count as completed, with the status SKIPPED_COMMAND: the one with the command id, or the one that would fire first.';
COMMENT ON FUNCTION xdb.retry_now(text, text, uuid) IS 'Makes the calls of a process that are in backoff due at once, or only that of one state execution. Returns how many.';
COMMENT ON FUNCTION xdb.check_process(text, uuid) IS 'Replays the history of a process and compares every table with it: one row per problem, none if it is sound.';
COMMENT ON FUNCTION xdb.process_problems(text, uuid) IS 'Stands behind xdb.check_process; may change.';
COMMENT ON FUNCTION xdb.get_local_attributes(text, text[], uuid) IS 'Local attributes of a process, {key: value}: those with the given keys, or all.';
COMMENT ON FUNCTION xdb.pause() IS 'Stops this database''s engine from claiming new work; answers of calls in flight are still applied. Whoever may execute this function is an XDB administrator and sees all processes.';
COMMENT ON FUNCTION xdb.resume() IS 'Lets a paused engine claim work again.';
COMMENT ON FUNCTION xdb.adopt() IS 'Makes the processes of a copied or restored database its own, so that they run here. Does nothing in a database that is no copy.';
COMMENT ON FUNCTION xdb.knows_roles() IS 'Whether the owners of processes are roles of this server; not in a copy from another one before xdb.adopt().';
COMMENT ON FUNCTION xdb.purge(interval) IS 'Deletes executions that closed so long ago, with everything that belongs to them, and returns how many. Those that somebody has locked are left out.';
COMMENT ON FUNCTION xdb.engine_figures() IS 'The figures behind xdb.status(), one JSON object.';
COMMENT ON FUNCTION xdb.library_version() IS 'The version of xdb that the server runs. That of the schema is extversion in pg_extension.';
COMMENT ON FUNCTION xdb.worker_figures() IS 'The figures behind xdb.worker_counters(), a JSON array with an object per worker.';
COMMENT ON FUNCTION xdb.status() IS 'One row: how this database''s engine is doing.';
COMMENT ON FUNCTION xdb.worker_counters() IS 'How the calls to each worker went since the server started; the view xdb.workers shows it.';
COMMENT ON FUNCTION xdb.grant_usage(regrole, boolean) IS 'Lets a role use XDB: start and drive processes and see its own; as admin also register workers and process types, pause and resume the engine, purge, and see all processes. Adds to what was granted before.';
COMMENT ON FUNCTION xdb.revoke_usage(regrole) IS 'Takes back everything in schema xdb that was granted to a role. What it has through other roles stays.';
