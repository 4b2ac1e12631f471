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
    -- It stands in every policy, and reads shared memory and a table: any process of a parallel query may.
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'xdb_knows_roles';

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
