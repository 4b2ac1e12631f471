-- Every error has a SQLSTATE of class XD. Those that need a worker, a standby or a server without the
-- preloaded library are left to the cluster tests.
\set VERBOSITY sqlstate
SELECT xdb.pause();

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
SELECT xdb.publish('errors-none', 'known');
SELECT xdb.stop_process('errors-none');
SELECT xdb.get_local_attributes('errors-none');
SELECT xdb.wait_for_process('errors-none', timeout => '1 second');
SELECT xdb.invoke_rpc('errors-none', 'known');
SELECT xdb.describe_process('errors-1', execution_id => '00000000-0000-0000-0000-000000000000');

-- XD002: no such process type.
SELECT xdb.start_process('errors-2', 'ErrorsNone');

-- XD004: a queue that the type does not list.
SELECT xdb.publish('errors-1', 'unknown');

-- XD006: started already.
SELECT xdb.start_process('errors-1', 'Errors');

-- XD007: not running any more.
SELECT xdb.start_process('errors-closed', 'Errors') IS NOT NULL AS started;
SELECT xdb.stop_process('errors-closed');
SELECT xdb.publish('errors-closed', 'known');
SELECT xdb.stop_process('errors-closed');

-- XD009: arguments that are none.
SELECT xdb.start_process(NULL, 'Errors');
SELECT xdb.start_process('', 'Errors');
SELECT xdb.start_process('errors-2', NULL);
SELECT xdb.start_process('errors-2', 'Errors', id_reuse_policy => 'SOMETIMES');
SELECT xdb.start_process('errors-2', 'Errors', timeout => '-1 second');
SELECT xdb.start_process('errors-2', 'Errors', local_attributes => '["not an object"]');
SELECT xdb.start_process('errors-2', 'Errors', local_attributes => '{"unknown": 1}');
SELECT xdb.start_process('errors-2', 'Errors', global_attributes => '{"unmapped": 1}', global_attribute_pk => 'x');
SELECT xdb.start_process('errors-2', 'Errors', options => '[]');
SELECT xdb.start_process('errors-2', 'Errors', options => '{"unknownOption": 1}');
SELECT xdb.start_process('errors-2', 'Errors', options => '{"globalAttributeConflictMode": "SOMETIMES"}');
SELECT xdb.stop_process('errors-1', 'GENTLY');
SELECT xdb.publish('errors-1', NULL);
SELECT xdb.wait_for_process('errors-1', timeout => NULL);
SELECT xdb.wait_for_process('errors-1', timeout => '2 hours');
SELECT xdb.invoke_rpc('errors-1', 'unknown');
SELECT count(*) FROM xdb.processes WHERE process_id = 'errors-2';

-- XD010: nobody listens where the worker should be.
SELECT xdb.invoke_rpc('errors-1', 'known', timeout => '5 seconds');

-- XD014: waiting for what only this transaction can commit.
BEGIN;
SELECT xdb.publish('errors-1', 'known', '"mine"');
SELECT xdb.wait_for_process('errors-1', timeout => '1 second');
ROLLBACK;

-- 42501: registration is not for everybody.
SELECT xdb.register_worker('errors', 'http://127.0.0.1:2');
SELECT xdb.register_process_type('Errors', 'errors', '{}');
SELECT xdb.unregister_process_type('Errors');
SELECT xdb.unregister_worker('errors');
RESET ROLE;

-- XD005: no such worker.
SELECT xdb.register_process_type('Errors', 'errors_none', '{}');
SELECT xdb.unregister_worker('errors_none');

-- XD008: a definition that does not hold together.
SELECT xdb.register_process_type('Errors', 'errors', '{"startingState": "Gone"}');

-- XD017: hosts are allowed by a setting, and localhost alone is at first.
SELECT xdb.register_worker('errors', 'http://169.254.169.254/latest');

-- XD018: in use.
SELECT xdb.unregister_process_type('Errors');

-- The messages are for people: lower case, with a detail or a hint where it helps.
\set VERBOSITY default
\set SHOW_CONTEXT never
SELECT xdb.describe_process('errors-none');
SELECT xdb.register_process_type('Errors', 'errors_none', '{}');
SET ROLE golden_errors;
SELECT xdb.start_process('errors-2', 'ErrorsNone');
SELECT xdb.publish('errors-1', 'unknown');
SELECT xdb.publish('errors-closed', 'known');
RESET ROLE;
