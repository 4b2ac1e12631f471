-- The SQL functions. Each function that waits, calls or writes is VOLATILE, runs as its caller, and is native code.
--
-- Limitations: a new function also needs its name in src/api/mod.rs, and in a list of xdb.grant_usage below.

CREATE OR REPLACE FUNCTION xdb.register_worker(name text, url text, secret text DEFAULT NULL, headers jsonb DEFAULT NULL,
    max_concurrency int DEFAULT 96, role text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_worker';
COMMENT ON FUNCTION xdb.register_worker(text, text, text, jsonb, integer, text) IS 'Registers a worker, or changes it. With url NULL it is a pull worker: members of role claim its calls. XD017 if the host of the URL is not allowed, 42501 if the worker belongs to another role.';

CREATE OR REPLACE FUNCTION xdb.set_worker_secret(name text, secret text, second_secret text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_worker_secret';
COMMENT ON FUNCTION xdb.set_worker_secret(text, text, text) IS 'Replaces the secrets that sign the calls to a worker. With two secrets, each call is signed with both; with NULL as the first one, calls are not signed. XD005 if the worker does not exist.';

CREATE OR REPLACE FUNCTION xdb.unregister_worker(name text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_worker';
COMMENT ON FUNCTION xdb.unregister_worker(text) IS 'Deletes a worker. XD018 while a process type uses it, XD005 if it does not exist.';

CREATE OR REPLACE FUNCTION xdb.register_process_type(process_type text, worker text, definition jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_process_type';
COMMENT ON FUNCTION xdb.register_process_type(text, text, jsonb) IS 'Registers a process type, or replaces it. Running executions use the new states, options and RPCs from their next call; their mapped tables and timeout stay as at their start. XD008 if the definition is invalid, XD005 if the worker does not exist.';

CREATE OR REPLACE FUNCTION xdb.unregister_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_process_type';
COMMENT ON FUNCTION xdb.unregister_process_type(text) IS 'Deletes a process type. XD018 while executions of it run, XD002 if it does not exist.';

CREATE OR REPLACE FUNCTION xdb.start_process(process_id text, process_type text, input jsonb DEFAULT NULL,
    global_attribute_pk text DEFAULT NULL, global_attributes jsonb DEFAULT NULL,
    local_attributes jsonb DEFAULT NULL, id_reuse_policy text DEFAULT 'ALLOW_IF_NO_RUNNING',
    timeout interval DEFAULT NULL, start_at timestamptz DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_process';
COMMENT ON FUNCTION xdb.start_process(text, text, jsonb, text, jsonb, jsonb, text, interval, timestamptz, jsonb) IS 'Starts a process in the caller''s transaction, and returns the id of its execution. The current user becomes the owner. XD002 if the type is not registered, XD006 if id_reuse_policy refuses the id.';

CREATE OR REPLACE FUNCTION xdb.start_processes(processes jsonb) RETURNS SETOF uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_processes';
COMMENT ON FUNCTION xdb.start_processes(jsonb) IS 'Starts many processes in the caller''s transaction, all or none. Each object of the array has the parameters of xdb.start_process as its keys. Returns the ids of the executions, in the order of the array.';

CREATE OR REPLACE FUNCTION xdb.schedule(name text, cron text, start jsonb, timezone text DEFAULT 'UTC') RETURNS uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_schedule';
COMMENT ON FUNCTION xdb.schedule(text, text, jsonb, text) IS 'Starts a process of the type Schedule with this id. At each tick of cron, it starts a process: start is an object of xdb.start_processes. A schedule with the same name is replaced. XD009 for an invalid cron, timezone or start, XD002 if a type is not registered, XD006 if a process that is no schedule runs with this id.';

-- The handlers of the type Schedule. Its processes belong to the role that called xdb.schedule().
CREATE OR REPLACE FUNCTION xdb.schedule_wait(request jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    RETURN jsonb_build_object('commandRequest', jsonb_build_object('waitingType', 'AllOfCompletion', 'timerCommands',
        jsonb_build_array(jsonb_build_object('cron', request['stateInput']['cron'], 'timezone', request['stateInput']['timezone']))));
END
$body$;
COMMENT ON FUNCTION xdb.schedule_wait(jsonb) IS 'Handler of the type Schedule: waits for the next tick. For the engine.';

-- What other transactions or the server are to blame for is not a refusal: it fails the attempt, so the start is retried.
CREATE OR REPLACE FUNCTION xdb.schedule_tick(request jsonb) RETURNS jsonb
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    tick CONSTANT text := to_char((request['commandResults']['timerResults'][0] ->> 'fireAt')::timestamptz AT TIME ZONE 'UTC',
        'YYYYMMDD"T"HH24MISS"Z"');
    answer jsonb := jsonb_build_object('stateDecision', jsonb_build_object('nextStates',
        jsonb_build_array(jsonb_build_object('stateId', request['stateId'], 'stateInput', request['stateInput']))));
    start jsonb := request['stateInput']['start'];
BEGIN
    IF start ->> 'process_id' LIKE '%{time}%' THEN
        start := jsonb_set(start, '{process_id}', to_jsonb(replace(start ->> 'process_id', '{time}', tick)));
    END IF;
    BEGIN
        PERFORM xdb.start_processes(jsonb_build_array(start));
    EXCEPTION WHEN assert_failure OR OTHERS THEN
        IF SQLSTATE ~ '^(40|5)' THEN
            RAISE;
        END IF;
        answer := answer || jsonb_build_object('writeToLocalAttributes', jsonb_build_object('lastError',
            jsonb_build_object('tick', tick, 'sqlState', SQLSTATE, 'message', SQLERRM)));
    END;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION xdb.schedule_tick(jsonb) IS 'Handler of the type Schedule: starts the process of a tick, and waits for the next tick. If the start is refused, the tick is skipped, and the local attribute lastError says why. For the engine.';

CREATE OR REPLACE FUNCTION xdb.invoke_rpc(process_id text, rpc_name text, input jsonb DEFAULT NULL,
    timeout interval DEFAULT NULL, idempotency_key text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_invoke_rpc';
COMMENT ON FUNCTION xdb.invoke_rpc(text, text, jsonb, interval, text, uuid) IS 'Calls an RPC of a process, applies its answer in the caller''s transaction, and returns its output. The waits for the end of a pause (XD023), for locks (XD020) and for the worker (XD010) take at most timeout together.';

CREATE OR REPLACE FUNCTION xdb.claim_calls(worker text, max_calls int DEFAULT 1, wait interval DEFAULT '0',
    lease interval DEFAULT NULL, shards int4range DEFAULT NULL)
    RETURNS TABLE (token text, call_id text, api text, request jsonb, lease_until timestamptz)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_claim_calls';
COMMENT ON FUNCTION xdb.claim_calls(text, int, interval, interval, int4range) IS 'Claims due calls of a pull worker, each with a lease, and waits at most wait for the first one. The claim counts when the transaction commits. For members of the worker''s role (42501); XD026 if the worker has a URL.';

CREATE OR REPLACE FUNCTION xdb.complete_call(token text, answer jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_complete_call';
COMMENT ON FUNCTION xdb.complete_call(text, jsonb) IS 'Applies the answer to a claimed call in the caller''s transaction. What this transaction writes is committed with the answer, or not at all. XD025 if the lease was lost, XD010 if the answer can''t be applied.';

CREATE OR REPLACE FUNCTION xdb.fail_call(token text, failure jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_fail_call';
COMMENT ON FUNCTION xdb.fail_call(text, jsonb) IS 'Fails the attempt of a claimed call: {"errorType", "detail", "retryAfterSeconds", "final"}, all optional. Without failure, the call is given back, and the same attempt is due again at once. XD025 if the lease was lost.';

CREATE OR REPLACE FUNCTION xdb.extend_call(token text, lease interval) RETURNS timestamptz
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_extend_call';
COMMENT ON FUNCTION xdb.extend_call(text, interval) IS 'Extends the lease of a claimed call to now() + lease. Returns the new end. XD025 if the lease was lost.';

CREATE OR REPLACE FUNCTION xdb.publish(process_id text, queue_name text, message jsonb DEFAULT NULL,
    message_id text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish';
COMMENT ON FUNCTION xdb.publish(text, text, jsonb, text, uuid) IS 'Publishes a message to a local queue of a running process, in the caller''s transaction. A message_id that was used in this queue of this execution is ignored. XD007 if the process is not running, XD004 if its type does not list the queue, XD029 if the queue is full.';

CREATE OR REPLACE FUNCTION xdb.publish_global(queue_name text, message jsonb DEFAULT NULL, key text DEFAULT NULL,
    message_id text DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish_global';
COMMENT ON FUNCTION xdb.publish_global(text, jsonb, text, text, interval) IS 'Publishes a message to a global queue, in the caller''s transaction; after ttl it is deleted if no step has consumed it. A message_id that the same role has used in this queue is ignored. XD029 if the quota of the role is used up.';

CREATE OR REPLACE FUNCTION xdb.stop_process(process_id text, stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process';
COMMENT ON FUNCTION xdb.stop_process(text, text, text, uuid) IS 'Stops a running process: TERMINATE makes it TERMINATED, FAIL makes it FAILED. The reason is kept. XD007 if the process is closed already.';

-- For an array of process ids: a row for each element, in their order. A refused process has the error in its row.
CREATE OR REPLACE FUNCTION xdb.stop_process(process_ids text[], stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL)
    RETURNS TABLE (process_id text, stopped boolean, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process_many';
COMMENT ON FUNCTION xdb.stop_process(text[], text, text) IS 'Stops many running processes. Returns a row for each process id, with the SQLSTATE and message of the error if the process could not be stopped. The other processes are stopped.';

CREATE OR REPLACE FUNCTION xdb.describe_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_describe_process';
COMMENT ON FUNCTION xdb.describe_process(text, uuid) IS 'What a process does, what it waits for and since when, which locks of other sessions block it, what failed last, and its results. XD001 if the process does not exist.';

CREATE OR REPLACE FUNCTION xdb.wait_for_process(process_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_process';
COMMENT ON FUNCTION xdb.wait_for_process(text, interval, uuid) IS 'Waits until a process has closed, at most for timeout. Returns {"status", "result", "results", "timedOut"}, and "reason" if the process closed for one. XD014 in a transaction that has itself started, stopped or published something.';

CREATE OR REPLACE FUNCTION xdb.wait_for_state(process_id text, state_execution_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_state';
COMMENT ON FUNCTION xdb.wait_for_state(text, text, interval, uuid) IS 'Waits until a step has ended or its process has closed, at most for timeout. Returns {"status", "processStatus", "timedOut"}; status is null if the execution has had no such step. XD014 as for xdb.wait_for_process.';

CREATE OR REPLACE FUNCTION xdb.set_local_attributes(process_id text, attributes jsonb, execution_id uuid DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_local_attributes';
COMMENT ON FUNCTION xdb.set_local_attributes(text, jsonb, uuid) IS 'Writes local attributes of a running process, {key: value}, in the caller''s transaction. Other attributes keep their values. XD007 if the process is not running, XD009 for a key that its type does not list.';

CREATE OR REPLACE FUNCTION xdb.skip_timer(process_id text, state_execution_id text, command_id text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer';
COMMENT ON FUNCTION xdb.skip_timer(text, text, text, uuid) IS 'Completes a timer that a step waits for, with the status SKIPPED_COMMAND. command_id names the timer; NULL is the timer that would fire first. XD003 for an unknown step, XD019 if the step waits for no such timer.';

CREATE OR REPLACE FUNCTION xdb.skip_timer(process_ids text[], state_execution_id text, command_id text DEFAULT NULL)
    RETURNS TABLE (process_id text, skipped boolean, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer_many';
COMMENT ON FUNCTION xdb.skip_timer(text[], text, text) IS 'Skips a timer of the same step in many processes. Returns a row for each process id, with the SQLSTATE and message of the error if no timer was skipped.';

CREATE OR REPLACE FUNCTION xdb.retry_now(process_id text, state_execution_id text DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now';
COMMENT ON FUNCTION xdb.retry_now(text, text, uuid) IS 'Makes due at once a process''s calls that are in backoff, held after crashes, or have an incident, or only the call of one step; returns how many. XD003 for an unknown step, XD007 if the process is not running.';

CREATE OR REPLACE FUNCTION xdb.retry_now(process_ids text[], state_execution_id text DEFAULT NULL)
    RETURNS TABLE (process_id text, retried int, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now_many';
COMMENT ON FUNCTION xdb.retry_now(text[], text) IS 'Makes due at once the calls of many processes that are in backoff, held after crashes, or have an incident. Returns a row for each process id, with the number of these calls, or the SQLSTATE and message of the error.';

CREATE OR REPLACE FUNCTION xdb.move_state(process_id text, state_execution_id text, next_states jsonb,
    reason text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_move_state';
COMMENT ON FUNCTION xdb.move_state(text, text, jsonb, text, uuid) IS 'Ends a live step and starts next_states in its place, [{"stateId": "Ship", "stateInput": …}] as in an answer. With [] its thread ends. XD003 for a step that is not live or an unknown state, XD007 if the process is not running, XD009 for invalid next_states.';

CREATE OR REPLACE FUNCTION xdb.pause_process(process_id text, mode text DEFAULT 'WAIT', until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_process';
COMMENT ON FUNCTION xdb.pause_process(text, text, timestamptz, text, uuid) IS 'Pauses a process: no call of its states begins until xdb.resume_process(), or until this time. With mode WAIT, RPCs wait for the end of the pause; with REJECT, publishes and RPCs fail with XD023.';

CREATE OR REPLACE FUNCTION xdb.resume_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_process';
COMMENT ON FUNCTION xdb.resume_process(text, uuid) IS 'Ends the pause of a process. Does nothing if the process is not paused.';

CREATE OR REPLACE FUNCTION xdb.pause_process_type(process_type text, mode text DEFAULT 'WAIT', until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_process_type';
COMMENT ON FUNCTION xdb.pause_process_type(text, text, timestamptz, text) IS 'Pauses the processes of a type: no call of their states begins until xdb.resume_process_type(), or until this time. With mode REJECT, starts, publishes and RPCs fail with XD023. For operators and members of the type''s owner (42501).';

CREATE OR REPLACE FUNCTION xdb.resume_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_process_type';
COMMENT ON FUNCTION xdb.resume_process_type(text) IS 'Ends the pause of a process type. Does nothing if the type is not paused. For operators and members of the type''s owner (42501).';

CREATE OR REPLACE FUNCTION xdb.get_local_attributes(process_id text, keys text[] DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_get_local_attributes';
COMMENT ON FUNCTION xdb.get_local_attributes(text, text[], uuid) IS 'Returns local attributes of a process, running or closed, {key: value}: those with the given keys, or all.';

CREATE OR REPLACE FUNCTION xdb.check_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS TABLE (problem text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_check_process';
COMMENT ON FUNCTION xdb.check_process(text, uuid) IS 'Replays the history of a process, and compares the result with every table. Returns a row for each difference, and no row for a sound process.';

CREATE OR REPLACE FUNCTION xdb.reassign_owned(old regrole, new regrole) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_reassign_owned';
COMMENT ON FUNCTION xdb.reassign_owned(regrole, regrole) IS 'Gives the processes, process types and workers of a role to another one. ''-'' as old stands for all whose owner was dropped or never known. For superusers and members of both roles (42501); XD013 if running processes would belong to a superuser.';

CREATE OR REPLACE FUNCTION xdb.pause_engine() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_engine';
COMMENT ON FUNCTION xdb.pause_engine() IS 'Pauses the engine of this database: it makes no calls, fires no timers and receives no messages. Answers of calls that are under way are applied. Every role that may call this function is an operator, and sees and drives all processes.';

CREATE OR REPLACE FUNCTION xdb.resume_engine() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_engine';
COMMENT ON FUNCTION xdb.resume_engine() IS 'Ends the pause of the engine.';

CREATE OR REPLACE FUNCTION xdb.adopt() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_adopt';
COMMENT ON FUNCTION xdb.adopt() IS 'Makes the processes of a copied or restored database its own, so that they run there. Does nothing in any other database. XD021 if owners or process types of running processes are missing.';

CREATE OR REPLACE FUNCTION xdb.knows_roles() RETURNS boolean
    -- Every policy calls it. It reads shared memory and a table, which each process of a parallel query may do.
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'xdb_knows_roles';
COMMENT ON FUNCTION xdb.knows_roles() IS 'Whether the owners of processes are roles of this server. False in a copy from another server, before xdb.adopt(). For the policies, and may change.';

CREATE OR REPLACE FUNCTION xdb.purge(older_than interval) RETURNS bigint
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_purge';
COMMENT ON FUNCTION xdb.purge(interval) IS 'Deletes executions that closed at least this long ago, with everything that belongs to them. Returns how many. Executions that are locked at that moment stay.';

CREATE OR REPLACE FUNCTION xdb.status() RETURNS TABLE (engine_pid int, state text, in_flight int, backlog bigint,
    oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, slow_objects text[],
    last_error text, last_error_at timestamptz, reason text, runners int, runner_error text,
    ownerless_processes bigint, next_turn_at timestamptz, next_turn_why text)
    LANGUAGE c VOLATILE ROWS 1 AS 'MODULE_PATHNAME', 'xdb_status';
COMMENT ON FUNCTION xdb.status() IS 'One row about the engine of this database. Every role that uses XDB sees engine_pid, state, started_at and reason; only operators and members of pg_monitor see the other columns. next_turn_at, next_turn_why: when the scheduler makes its next turn if no wake-up comes before, and what for.';

CREATE OR REPLACE FUNCTION xdb.process_type_usage(process_type text) RETURNS TABLE (kind text, name text, live bigint)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_type_usage';
COMMENT ON FUNCTION xdb.process_type_usage(text) IS 'What running processes of a type use: states (kind STATE), and queues that they wait for (LOCAL_QUEUE, GLOBAL_QUEUE). live is the number of steps, counted up to 10000. For members of the type''s owner, operators and superusers (42501).';

CREATE OR REPLACE FUNCTION xdb.metrics() RETURNS TABLE (name text, type text, unit text, help text, labels jsonb, value float8)
    LANGUAGE c VOLATILE ROWS 1000 AS 'MODULE_PATHNAME', 'xdb_metrics';
COMMENT ON FUNCTION xdb.metrics() IS 'Counters and figures of this database, a row for each sample. Counters begin when the engine first runs after a start of the server. For operators and members of pg_monitor (42501).';

CREATE OR REPLACE FUNCTION xdb.openmetrics(classic boolean DEFAULT false) RETURNS text
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_openmetrics';
COMMENT ON FUNCTION xdb.openmetrics(boolean) IS 'xdb.metrics() as text for a scrape, in the format OpenMetrics 1.0; with classic, in the older text format of Prometheus. For operators and members of pg_monitor (42501).';

-- What row-level security hides in the tables: every role that uses XDB may know the names of all workers and process
-- types. The figures come from shared memory. Views use these functions too.
CREATE OR REPLACE FUNCTION xdb.registered_workers() RETURNS TABLE (worker_id int, name text, owner text, in_flight int, calls bigint,
    failures bigint, consecutive_failures int, average_latency interval, last_error_at timestamptz, breaker text,
    breaker_open_since timestamptz, next_probe_at timestamptz, waiting bigint, waiting_since timestamptz)
    LANGUAGE c VOLATILE ROWS 100 AS 'MODULE_PATHNAME', 'xdb_registered_workers';
COMMENT ON FUNCTION xdb.registered_workers() IS 'A row for each worker, whichever role has registered it. Only operators and members of the worker''s owner see more than worker_id, name and owner. Calls are counted since the server started.';

-- STABLE and PARALLEL SAFE, so that views call it once for all of their rows.
CREATE OR REPLACE FUNCTION xdb.registered_types() RETURNS TABLE (type_id int, process_type text, worker text, owner text,
    pause_mode text, paused_until timestamptz, pause_reason text)
    LANGUAGE c STABLE PARALLEL SAFE ROWS 100 AS 'MODULE_PATHNAME', 'xdb_registered_types';
COMMENT ON FUNCTION xdb.registered_types() IS 'A row for each process type, whichever role has registered it: name, worker, owner and pause.';

-- Which role may call which function. PUBLIC has no privileges: see privileges.sql.

CREATE OR REPLACE FUNCTION xdb.grant_usage(role regrole, admin boolean DEFAULT false, operator boolean DEFAULT false,
    deployer boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    -- These lists have every function of the extension that roles other than the extension's owner may call.
    of_users CONSTANT name[] := ARRAY[
        'start_process', 'invoke_rpc', 'publish', 'stop_process',
        'claim_calls', 'complete_call', 'fail_call', 'extend_call',  -- which check the role of the worker
        'describe_process', 'wait_for_process', 'get_local_attributes',
        'start_processes', 'schedule', 'schedule_wait', 'schedule_tick', 'publish_global', 'wait_for_state', 'set_local_attributes', 'skip_timer', 'retry_now',
        'move_state', 'pause_process', 'resume_process',
        'pause_process_type', 'resume_process_type',  -- which check the owner of the type
        'status', 'registered_workers',  -- which leave out figures of other roles
        'check_process', 'library_version', 'reassign_owned', 'registered_types',
        'process_type_usage',  -- which checks the owner of the type
        'metrics', 'openmetrics',  -- which check that the caller monitors the database
        'knows_roles'];  -- called by the policies, as the reader
    of_operators CONSTANT name[] := ARRAY['pause_engine', 'resume_engine', 'adopt', 'purge'];
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
    -- If two sessions change the privileges of an object at the same time, Postgres fails the second one. With this
    -- lock the second one waits. Apart from these sessions only vacuum takes this lock, and it gives way.
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
    -- The views read with the rights of their reader, so the reader also needs the tables; row-level security hides
    -- rows. Not granted: the headers of a worker, its secrets (in a table of their own), and the numbers of a task's
    -- lease.
    EXECUTE format(
        'GRANT SELECT ON xdb.processes, xdb.state_executions, xdb.waits, xdb.timers, xdb.queue_messages, '
        'xdb.failures, xdb.incidents, xdb.history, xdb.transitions, xdb.workers, xdb.process_types, xdb.attribute_locks, '
        'xdb.locks, '
        'xdb.process_execution, xdb.process_lock, xdb.latest_execution, xdb.state_execution, xdb.timer, xdb.inbox, '
        'xdb.queue_message, xdb.global_message, xdb.history_event, xdb.process_type TO %I', grantee);
    EXECUTE format(
        'GRANT SELECT (worker_id, name, url, max_concurrency, registered_at, role_name) ON xdb.worker TO %I', grantee);
    EXECUTE format('GRANT SELECT (execution_id, seq, lane, due_at, lease_until, waits_for) ON xdb.task TO %I', grantee);
    IF admin OR grant_usage.operator THEN
        EXECUTE format('GRANT SELECT ON xdb.instances TO %I', grantee);
    END IF;
END
$body$;
COMMENT ON FUNCTION xdb.grant_usage(regrole, boolean, boolean, boolean) IS 'Lets a role start and drive processes and see its own; operator: also drive all, pause the engine, purge and adopt; deployer: also register; admin: both. Adds to earlier grants. For superusers and the owner of the extension (42501).';

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
    -- The native functions act as the owner of the schema. Revoking from this owner would take away their rights.
    IF EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = 'xdb' AND n.nspowner = role) THEN
        RAISE EXCEPTION 'invalid value for role: "%" owns the extension', grantee USING ERRCODE = 'XD009';
    END IF;
    -- As in xdb.grant_usage.
    LOCK TABLE xdb.registry IN SHARE UPDATE EXCLUSIVE MODE;

    IF EXISTS (SELECT FROM xdb.process_execution AS p WHERE p.owner = role AND p.status = 'RUNNING') THEN
        RAISE WARNING 'role "%" owns running processes', grantee
            USING HINT = 'They go on, and fail once the role is dropped. xdb.reassign_owned() gives them to another role.';
    END IF;

    -- This also revokes the privileges on columns.
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
COMMENT ON FUNCTION xdb.revoke_usage(regrole) IS 'Takes back everything in schema xdb that was granted to the role itself. Privileges that it has through other roles stay. For superusers and the owner of the extension (42501).';
