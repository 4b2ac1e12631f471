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
-- XDB, who is whoever may call xdb.pause_engine(). The sub-select asks for that once per query, and the cast has
-- found the function once and for all. In a copy whose roles are not known yet, operators alone see anything. There are
-- no policies but for SELECT: native code alone writes, as the tables' owner, whom the policies don't concern.
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
        'xdb.timer', 'xdb.task', 'xdb.history_event', 'xdb.purged', 'xdb.correlated_start'
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
        (SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR taken_by IS NULL AND (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

-- No row of it is for anybody but superusers, whatever else a role may read.
DROP POLICY IF EXISTS visible ON xdb.worker_secret;
CREATE POLICY visible ON xdb.worker_secret FOR SELECT USING (false);

-- What is registered is its owner's. That there is a worker or process type of a name, and whose it is, everybody may know: the
-- views have it from xdb.registered_workers() and xdb.registered_types().
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
