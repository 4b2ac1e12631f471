-- Which role may read which rows. Every table of the extension has row-level security. It also applies to roles that
-- may read or write all tables of the database, such as members of pg_write_all_data. They get only the rows that a
-- policy allows, and of a table without a policy none.
--
-- Limitations: policies do not apply to superusers, to roles with BYPASSRLS, and to the owner of the tables.
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

-- The only policy that decides which roles see an execution: roles with the privileges of its owner, and operators.
-- Operators are the roles that may call xdb.pause_engine(). The sub-select asks for this once per query, and the cast
-- finds the function when the policy is created. In a copy whose roles are not known yet, only operators see
-- executions. There are policies for SELECT only: native code writes as the owner of the tables, to which policies do
-- not apply.
DROP POLICY IF EXISTS visible ON xdb.process_execution;
CREATE POLICY visible ON xdb.process_execution FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

DROP POLICY IF EXISTS visible ON xdb.instances;
CREATE POLICY visible ON xdb.instances FOR SELECT
    USING ((SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE')));

-- What belongs to an execution is visible with it: the sub-select is subject to the policy above.
DO $body$
DECLARE
    child pg_catalog.regclass;
BEGIN
    FOREACH child IN ARRAY ARRAY[
        'xdb.latest_execution', 'xdb.state_execution', 'xdb.local_attribute', 'xdb.queue_message', 'xdb.inbox',
        'xdb.message_key', 'xdb.queue_waiter', 'xdb.global_waiter', 'xdb.global_passed_over', 'xdb.rpc_answer',
        'xdb.timer', 'xdb.task', 'xdb.history_event', 'xdb.purged', 'xdb.correlated_start', 'xdb.process_lock'
    ]::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', child);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %1$s FOR SELECT USING (EXISTS (SELECT FROM xdb.process_execution AS p '
            'WHERE p.execution_id OPERATOR(pg_catalog.=) %1$s.execution_id))', child);
    END LOOP;
END
$body$;

-- A message of a global queue belongs to the role that published it, until a step consumes it.
DROP POLICY IF EXISTS visible ON xdb.global_message;
CREATE POLICY visible ON xdb.global_message FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR taken_by IS NULL AND (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

-- Only superusers read secrets, whatever other privileges a role has.
DROP POLICY IF EXISTS visible ON xdb.worker_secret;
CREATE POLICY visible ON xdb.worker_secret FOR SELECT USING (false);

-- Rows of workers and process types are for their owners and operators. Every role that uses XDB may know their names
-- and owners: the views get these from xdb.registered_workers() and xdb.registered_types().
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
            registered, 'xdb.pause_engine()', 'EXECUTE', 'USAGE');
    END LOOP;
END
$body$;
