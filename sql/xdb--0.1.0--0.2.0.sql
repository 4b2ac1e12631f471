-- From 0.1.0 to 0.2.0: xdb.library_version(), and how system tables are vacuumed.

-- Nothing works on the tables meanwhile: see "Upgrade" in docs/operations.md. Who waits for this lock holds the engine up, so
-- it is not waited for long.
SET LOCAL lock_timeout = '3s';
LOCK TABLE xdb.engine IN ACCESS EXCLUSIVE MODE;

-- The library that the server has loaded must not be older than this script.
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

COMMENT ON FUNCTION xdb.library_version() IS 'The version of xdb that the server runs. That of the schema is extversion in pg_extension.';

CREATE OR REPLACE FUNCTION xdb.grant_usage(role regrole, admin boolean DEFAULT false) RETURNS void
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

REVOKE ALL ON FUNCTION xdb.library_version() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION xdb.library_version() TO pg_monitor;

-- Whoever updates the extension need not be its owner. And what a script grants to a role is never dumped, and stays on
-- record when the role is dropped: administrators are granted the new function by xdb.grant_usage.
DO $body$
DECLARE
    owner CONSTANT pg_catalog.regrole := (SELECT p.proowner FROM pg_catalog.pg_proc AS p
        WHERE p.oid OPERATOR(pg_catalog.=) 'xdb.status()'::pg_catalog.regprocedure);
    administrator pg_catalog.regrole;
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION xdb.library_version() OWNER TO %s', owner);
    FOR administrator IN
        SELECT a.grantee::pg_catalog.regrole
        FROM pg_catalog.pg_proc AS p CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) AS a
        WHERE p.oid OPERATOR(pg_catalog.=) 'xdb.pause()'::pg_catalog.regprocedure
          AND a.grantee OPERATOR(pg_catalog.<>) p.proowner AND a.grantee OPERATOR(pg_catalog.<>) 0
    LOOP
        RAISE NOTICE 'xdb.library_version() is new; to grant it to %: SELECT xdb.grant_usage(%, admin => true)',
            administrator, pg_catalog.quote_literal(administrator::pg_catalog.text);
    END LOOP;
END
$body$;

ALTER TABLE xdb.process_execution RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.state_execution RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.timer RESET (autovacuum_vacuum_cost_delay);
-- All that they have, in the order in which a new installation has it.
ALTER TABLE xdb.process_execution
    SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
ALTER TABLE xdb.state_execution
    SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
ALTER TABLE xdb.timer
    SET (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
ALTER TABLE xdb.task SET (vacuum_truncate = off);
ALTER TABLE xdb.inbox SET (vacuum_truncate = off);

-- It stands in every policy: without this no query of the views was ever a parallel one.
ALTER FUNCTION xdb.knows_roles() PARALLEL SAFE;
