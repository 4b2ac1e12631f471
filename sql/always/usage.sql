-- How roles get to use XDB. Nothing is granted to PUBLIC: see privileges.sql.

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
        'worker_counters', 'worker_figures',  -- called by the view workers, as its reader
        'shown_attribute_locks', 'attribute_lock_figures'];  -- by the view attribute_locks, likewise
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
        'xdb.queue_message, xdb.global_message, xdb.history_event TO %I', grantee);
    EXECUTE format(
        'GRANT SELECT (worker_id, name, url, max_concurrency, registered_at) ON xdb.worker TO %I', grantee);
    IF admin THEN
        EXECUTE format('GRANT SELECT ON xdb.instances TO %I', grantee);
    END IF;
END
$body$;
COMMENT ON FUNCTION xdb.grant_usage(regrole, boolean) IS 'Lets a role use XDB: start and drive processes and see its own; as admin also register workers and process types, pause and resume the engine, purge, and see all processes. Adds to what was granted before.';

CREATE OR REPLACE FUNCTION xdb.revoke_usage(role regrole) RETURNS void
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
COMMENT ON FUNCTION xdb.revoke_usage(regrole) IS 'Takes back everything in schema xdb that was granted to a role. What it has through other roles stays.';
