-- The one place that decides who sees an execution: a role that has the privileges of its owner, or an operator of
-- XDB, who is whoever may call xdb.pause(). The sub-select asks for that once per query, and the cast has
-- found the function once and for all. In a copy whose roles are not known yet, operators alone see anything. There are
-- no policies but for SELECT: native code alone writes, as the tables' owner, whom the policies don't concern.
ALTER TABLE xdb.process_execution ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS visible ON xdb.process_execution;
CREATE POLICY visible ON xdb.process_execution FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

ALTER TABLE xdb.instances ENABLE ROW LEVEL SECURITY;
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
        EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', child);
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', child);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %1$s FOR SELECT USING (EXISTS (SELECT FROM xdb.process_execution AS p '
            'WHERE p.execution_id OPERATOR(pg_catalog.=) %1$s.execution_id))', child);
    END LOOP;
END
$body$;

-- A message of a global queue belongs to the role that published it, until somebody takes it.
ALTER TABLE xdb.global_message ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS visible ON xdb.global_message;
CREATE POLICY visible ON xdb.global_message FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR taken_by IS NULL AND (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

-- No row of it is for anybody but superusers, whatever else a role may read.
ALTER TABLE xdb.worker_secret ENABLE ROW LEVEL SECURITY;
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
        EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', registered);
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', registered);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %s FOR SELECT USING ('
            '(SELECT pg_catalog.has_function_privilege(%L::pg_catalog.regprocedure::pg_catalog.oid, %L)) '
            'OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, %L))',
            registered, 'xdb.pause()', 'EXECUTE', 'USAGE');
    END LOOP;
END
$body$;
