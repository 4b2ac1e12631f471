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
COMMENT ON FUNCTION xdb.invoke_rpc(text, text, jsonb, interval, text, uuid) IS 'Calls an RPC of a process, applies its answer in the caller''s transaction and returns its output. timeout bounds all waits before the answer together: for the end of a pause, for locks, for the worker.';

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

CREATE OR REPLACE FUNCTION xdb.check_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS TABLE (problem text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_check_process';
COMMENT ON FUNCTION xdb.check_process(text, uuid) IS 'Replays the history of a process and compares every table with it: one row per problem, none if it is sound.';

CREATE OR REPLACE FUNCTION xdb.reassign_owned(old regrole, new regrole) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_reassign_owned';
COMMENT ON FUNCTION xdb.reassign_owned(regrole, regrole) IS 'Gives the processes, process types and workers of a role to another one; ''-'' stands for all roles that are gone. For members of both roles, and superusers.';

CREATE OR REPLACE FUNCTION xdb.pause_engine() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_engine';
COMMENT ON FUNCTION xdb.pause_engine() IS 'Stops this database''s engine from claiming new work; answers of calls in flight are still applied. Whoever may execute this function is an operator of XDB, and sees and drives all processes.';

CREATE OR REPLACE FUNCTION xdb.resume_engine() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_engine';
COMMENT ON FUNCTION xdb.resume_engine() IS 'Lets a paused engine claim work again.';

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

CREATE OR REPLACE FUNCTION xdb.status() RETURNS TABLE (engine_pid int, state text, in_flight int, backlog bigint,
    oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, slow_objects text[],
    last_error text, last_error_at timestamptz, reason text, runners int, runner_error text,
    ownerless_processes bigint, next_turn_at timestamptz, next_turn_why text)
    LANGUAGE c VOLATILE ROWS 1 AS 'MODULE_PATHNAME', 'xdb_status';
COMMENT ON FUNCTION xdb.status() IS 'One row: the state of this database''s engine. Every role that uses XDB sees engine_pid, state, started_at and reason; only operators and members of pg_monitor see the other columns. next_turn_at and next_turn_why: when the scheduler looks for work again if nothing wakes it before, and for which work.';

CREATE OR REPLACE FUNCTION xdb.process_type_usage(process_type text) RETURNS TABLE (kind text, name text, live bigint)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_type_usage';
COMMENT ON FUNCTION xdb.process_type_usage(text) IS 'What running processes of a type are in (STATE), and wait for messages of (LOCAL_QUEUE, GLOBAL_QUEUE), with the number of state executions, counted up to 10000. For members of the type''s owner, operators and superusers.';

-- What the tables don't show their reader: names of all workers and process types, which every role that uses XDB may know, and what
-- is in shared memory. The views take it from here.
CREATE OR REPLACE FUNCTION xdb.registered_workers() RETURNS TABLE (worker_id int, name text, owner text, in_flight int, calls bigint,
    failures bigint, consecutive_failures int, average_latency interval, last_error_at timestamptz, breaker text,
    breaker_open_since timestamptz, next_probe_at timestamptz, waiting bigint, waiting_since timestamptz)
    LANGUAGE c VOLATILE ROWS 100 AS 'MODULE_PATHNAME', 'xdb_registered_workers';
COMMENT ON FUNCTION xdb.registered_workers() IS 'Names and owners of all workers. Members of a worker''s owner and operators also see how the calls to it went since the server started.';

-- STABLE and PARALLEL SAFE: views call it once for all of their rows.
CREATE OR REPLACE FUNCTION xdb.registered_types() RETURNS TABLE (type_id int, process_type text, worker text, owner text,
    pause_mode text, paused_until timestamptz, pause_reason text)
    LANGUAGE c STABLE PARALLEL SAFE ROWS 100 AS 'MODULE_PATHNAME', 'xdb_registered_types';
COMMENT ON FUNCTION xdb.registered_types() IS 'Names, workers, owners and pauses of all process types.';

-- Who may call what. PUBLIC has none: see privileges.sql.

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
        'status', 'registered_workers',  -- which leave out figures of other roles
        'check_process', 'library_version', 'reassign_owned', 'registered_types',
        'process_type_usage',  -- which looks at the owner of the type itself
        'knows_roles'];  -- called by the policies, as whoever reads
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
    -- rest. Of a worker the headers stay out; its secrets are in a table that no role is granted. Of a task the numbers
    -- of its lease stay out.
    EXECUTE format(
        'GRANT SELECT ON xdb.processes, xdb.state_executions, xdb.waits, xdb.timers, xdb.queue_messages, '
        'xdb.failures, xdb.incidents, xdb.history, xdb.workers, xdb.process_types, xdb.attribute_locks, '
        'xdb.process_execution, xdb.latest_execution, xdb.state_execution, xdb.timer, xdb.inbox, '
        'xdb.queue_message, xdb.global_message, xdb.history_event, xdb.process_type TO %I', grantee);
    EXECUTE format(
        'GRANT SELECT (worker_id, name, url, max_concurrency, registered_at, role_name) ON xdb.worker TO %I', grantee);
    EXECUTE format('GRANT SELECT (execution_id, seq, lane, due_at, lease_until, waits_for) ON xdb.task TO %I', grantee);
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
