-- Every error has a SQLSTATE of class XD, a message in lower case, and where it helps a detail and a hint. Errors that
-- need a worker, a standby or a server without the preloaded library are left to the cluster tests.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_errors;
SELECT xdb.grant_usage('golden_errors');
SELECT xdb.register_worker('errors', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Errors', 'errors', '{
    "startingState": "First",
    "states": {"First": {"skipWaitUntil": true}},
    "localAttributes": ["known"],
    "localQueues": ["known"],
    "rpcs": {"known": {"timeoutSeconds": 1}}
}');
SET ROLE golden_errors;
SELECT xdb.start_process('errors-1', 'Errors') AS execution \gset

-- XD001: no such process.
SELECT xdb.describe_process('errors-none');
\echo :SQLSTATE
SELECT xdb.publish('errors-none', 'known');
\echo :SQLSTATE
SELECT xdb.stop_process('errors-none');
\echo :SQLSTATE
SELECT xdb.get_local_attributes('errors-none');
\echo :SQLSTATE
SELECT xdb.wait_for_process('errors-none', timeout => '1 second');
\echo :SQLSTATE
SELECT xdb.invoke_rpc('errors-none', 'known');
\echo :SQLSTATE
SELECT * FROM xdb.check_process('errors-none');
\echo :SQLSTATE
SELECT * FROM xdb.check_process(NULL);
\echo :SQLSTATE
SELECT xdb.describe_process('errors-1', execution_id => '00000000-0000-0000-0000-000000000000');
\echo :SQLSTATE
SELECT xdb.describe_process('errors-none', execution_id => :'execution');
\echo :SQLSTATE

-- XD002: no such process type.
SELECT xdb.start_process('errors-2', 'ErrorsNone');
\echo :SQLSTATE

-- XD004: a queue that the type does not list.
SELECT xdb.publish('errors-1', 'unknown');
\echo :SQLSTATE

-- XD006: started already. A role that may see the execution gets its id.
DO $$
DECLARE
    message text;
    detail text;
    hint text;
BEGIN
    PERFORM xdb.start_process('errors-1', 'Errors');
EXCEPTION WHEN SQLSTATE 'XD006' THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RAISE NOTICE '% / % / %', message,
        replace(detail, xdb.describe_process('errors-1') ->> 'processExecutionId', '<the execution>'), hint;
END
$$;

-- XD007: not running any more.
SELECT xdb.start_process('errors-closed', 'Errors') IS NOT NULL AS started;
SELECT xdb.stop_process('errors-closed');
SELECT xdb.publish('errors-closed', 'known');
\echo :SQLSTATE
SELECT xdb.stop_process('errors-closed');
\echo :SQLSTATE

-- XD009: arguments that are none.
SELECT xdb.start_process('x', NULL);
\echo :SQLSTATE
SELECT xdb.start_process('', 'Errors');
SELECT xdb.start_process(repeat('x', 100000), 'Errors');
SELECT xdb.start_process('errors-2', NULL);
SELECT xdb.start_process('errors-2', 'Errors', id_reuse_policy => 'SOMETIMES');
\echo :SQLSTATE
SELECT xdb.start_process('errors-2', 'Errors', id_reuse_policy => NULL);
SELECT xdb.start_process('errors-2', 'Errors', timeout => '-1 second');
SELECT xdb.start_process('errors-2', 'Errors', start_at => 'infinity');
SELECT xdb.start_process('errors-2', 'Errors', local_attributes => '["not an object"]');
SELECT xdb.start_process('errors-2', 'Errors', local_attributes => '{"unknown": 1}');
\echo :SQLSTATE
SELECT xdb.start_process('errors-2', 'Errors', global_attributes => '{"unmapped": 1}');
\echo :SQLSTATE
SELECT xdb.start_process('errors-2', 'Errors', global_attributes => '{"unmapped": 1}', global_attribute_pk => 'x');
SELECT xdb.start_process('errors-2', 'Errors', options => '[]');
\echo :SQLSTATE
SELECT xdb.start_process('errors-2', 'Errors', options => '{"unknownOption": 1}');
SELECT xdb.start_process('errors-2', 'Errors', options => '{"globalAttributeConflictMode": "SOMETIMES"}');
SELECT xdb.start_process('errors-2', 'Errors', options => '{"history": "some"}');
SELECT xdb.start_process('errors-2', 'Errors', options => '{"requestId": ""}');
SELECT xdb.start_process('errors-2', 'Errors', options => '{"traceparent": "none"}');
SELECT xdb.stop_process('errors-1', 'GENTLY');
\echo :SQLSTATE
SELECT xdb.stop_process('errors-1', NULL);
SELECT xdb.publish('errors-1', NULL);
SELECT xdb.publish('errors-1', 'known', message_id => '');
SELECT xdb.wait_for_process('errors-1', timeout => NULL);
\echo :SQLSTATE
SELECT xdb.wait_for_process('errors-1', timeout => '2 hours');
SELECT xdb.wait_for_process('errors-1', timeout => '-1 second');
SELECT xdb.invoke_rpc('errors-1', 'unknown');
\echo :SQLSTATE
SELECT xdb.invoke_rpc('errors-1', 'known', timeout => '-1 second');
SELECT xdb.invoke_rpc('errors-1', 'known', idempotency_key => '');
SELECT count(*) FROM xdb.processes WHERE process_id = 'errors-2';

-- XD010: no worker listens at the URL.
SELECT xdb.invoke_rpc('errors-1', 'known', timeout => '5 seconds');
\echo :SQLSTATE

-- XD014: waiting for what only this transaction can commit. What was rolled back is not waited for.
BEGIN;
SELECT xdb.publish('errors-1', 'known', '"mine"');
SELECT xdb.wait_for_process('errors-1', timeout => '1 second');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SAVEPOINT before;
SELECT xdb.publish('errors-1', 'known', '"mine"');
ROLLBACK TO before;
SELECT xdb.wait_for_process('errors-1', timeout => '1 millisecond') ->> 'timedOut' AS timed_out;
COMMIT;
BEGIN;
SAVEPOINT before;
SELECT xdb.publish('errors-1', 'known', '"mine"');
RELEASE before;
SELECT xdb.wait_for_process('errors-1', timeout => '1 second');
\echo :SQLSTATE
ROLLBACK;

-- XD015: a payload that is not accepted.
SELECT xdb.publish('errors-1', 'known', to_jsonb(repeat('x', 2000000)));
\echo :SQLSTATE

-- 42501: registration needs a grant.
SELECT xdb.register_worker('errors', 'http://127.0.0.1:2');
\echo :SQLSTATE
SELECT xdb.register_process_type('Errors', 'errors', '{}');
SELECT xdb.unregister_process_type('Errors');
SELECT xdb.unregister_worker('errors');

-- A read-only transaction writes nothing, and reads.
BEGIN READ ONLY;
SELECT xdb.describe_process('errors-1') ->> 'status' AS status;
SELECT xdb.publish('errors-1', 'known');
\echo :SQLSTATE
ROLLBACK;
RESET ROLE;

-- XD005: no such worker.
SELECT xdb.register_process_type('Errors', 'errors_none', '{}');
\echo :SQLSTATE
SELECT xdb.unregister_worker('errors_none');
\echo :SQLSTATE

-- XD008: a definition that does not hold together.
SELECT xdb.register_process_type('Errors', 'errors', '{"startingState": "Gone"}');
\echo :SQLSTATE

-- XD013: the steps of a superuser's process would be a superuser's.
SELECT xdb.start_process('errors-2', 'Errors');
\echo :SQLSTATE

-- XD017: hosts are allowed by a setting, and localhost alone is at first.
SELECT xdb.register_worker('errors', 'http://169.254.169.254/latest');
\echo :SQLSTATE

-- XD018: in use.
SELECT xdb.unregister_process_type('Errors');
\echo :SQLSTATE
SELECT xdb.unregister_worker('errors');
\echo :SQLSTATE
