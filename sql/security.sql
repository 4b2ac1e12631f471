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
