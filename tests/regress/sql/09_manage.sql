-- Bulk starts, attributes, timers, retries, waiting and purging from SQL. The engine is paused: what has started stays.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_manage;
CREATE ROLE golden_manage_other;
SELECT xdb.grant_usage('golden_manage');
SELECT xdb.grant_usage('golden_manage_other');
CREATE TABLE manage_users (user_id text PRIMARY KEY, status text CHECK (status <> 'bad'));
GRANT SELECT, INSERT, UPDATE ON manage_users TO golden_manage;
SELECT xdb.register_worker('manage', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Manage', 'manage', '{
    "startingState": "First", "states": {"First": {}}, "localAttributes": ["colour", "size"],
    "globalAttributes": [{"table": "public.manage_users", "primaryKey": "user_id", "attributes": {"status": "status"}}]
}');
SELECT xdb.register_process_type('ManagePlain', 'manage', '{"startingState": "First", "states": {"First": {}, "Second": {}}}');
SET ROLE golden_manage;

-- Many starts, in the order of the array, each with the parameters of start_process.
CREATE TEMPORARY TABLE started AS
SELECT id, number FROM xdb.start_processes('[
    {"process_id": "m-3", "process_type": "Manage", "global_attribute_pk": "u3", "input": 1.50,
     "global_attributes": {"status": "new"}, "local_attributes": {"colour": "red"}},
    {"process_id": "m-1", "process_type": "ManagePlain", "timeout": "2 hours", "options": {"requestId": "r1"}},
    {"process_id": "m-2", "process_type": "ManagePlain", "start_at": "2999-06-01 00:00+00", "timeout": null}
]') WITH ORDINALITY AS s (id, number);
SELECT s.number, p.process_id, p.process_type, p.owner, p.status, p.timeout_at - p.started_at AS timeout
FROM started AS s JOIN xdb.processes AS p ON p.execution_id = s.id ORDER BY 1;
SELECT process_id, input FROM xdb.state_executions WHERE process_id LIKE 'm-%' ORDER BY 1;
SELECT extract(year FROM next_attempt_at) FROM xdb.state_executions WHERE process_id = 'm-2';
SELECT * FROM manage_users;
SELECT xdb.get_local_attributes('m-3');
SELECT xdb.start_processes('[]');
-- A set in the select list gives one row each.
SELECT count(*) FROM (SELECT xdb.start_processes('[{"process_id": "m-4", "process_type": "ManagePlain"},
    {"process_id": "m-5", "process_type": "ManagePlain"}]')) AS s;

-- A request that is repeated gives the first execution; an id that stands twice is started once, or twice.
SELECT s.id = t.id AS same FROM started AS s,
    xdb.start_processes('[{"process_id": "m-1", "process_type": "ManagePlain", "options": {"requestId": "r1"}}]') AS t (id)
WHERE s.number = 2;
-- (The DETAIL has the id of the running execution.)
\set VERBOSITY terse
SELECT * FROM xdb.start_processes('[{"process_id": "twice", "process_type": "ManagePlain"},
    {"process_id": "twice", "process_type": "ManagePlain"}]');
SELECT count(DISTINCT id) FROM xdb.start_processes('[{"process_id": "twice", "process_type": "ManagePlain"},
    {"process_id": "twice", "process_type": "ManagePlain", "id_reuse_policy": "TERMINATE_IF_RUNNING"}]') AS s (id);
SELECT status, is_latest FROM xdb.processes WHERE process_id = 'twice' ORDER BY execution_id;

-- All or nothing.
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain"},
    {"process_id": "m-1", "process_type": "ManagePlain"}]');
\set VERBOSITY default
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain"},
    {"process_id": "n-2", "process_type": "Manage", "global_attribute_pk": "n", "global_attributes": {"status": "bad"}}]');
SELECT count(*) FROM xdb.processes WHERE process_id LIKE 'n-%';

-- What is wrong is named, with its place.
SELECT * FROM xdb.start_processes(NULL);
SELECT * FROM xdb.start_processes('{}');
SELECT * FROM xdb.start_processes('[1]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain"}, {"process_id": "n-2", "processType": "ManagePlain"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1"}]');
SELECT * FROM xdb.start_processes('[{"process_id": 1, "process_type": "ManagePlain"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "Nowhere"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain", "timeout": "-1 s"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain", "timeout": "soon"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain", "start_at": "infinity"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain", "id_reuse_policy": "SOMETIMES"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "ManagePlain", "options": {"request": "r"}}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "Manage"}]');
SELECT * FROM xdb.start_processes('[{"process_id": "n-1", "process_type": "Manage", "global_attribute_pk": "u", "local_attributes": {"weight": 1}}]');

-- Local attributes.
SELECT xdb.set_local_attributes('m-3', '{"colour": "blue", "size": 1.50}');
SELECT xdb.get_local_attributes('m-3');
SELECT event_type, details FROM xdb.history WHERE process_id = 'm-3' ORDER BY event_id DESC LIMIT 1;
SELECT xdb.set_local_attributes('m-3', '{}');
SELECT xdb.set_local_attributes('m-3', '{"weight": 1}');
SELECT xdb.set_local_attributes('m-3', '[]');
SELECT xdb.set_local_attributes('m-3', NULL);
SELECT xdb.set_local_attributes('nobody', '{}');

-- Timers and retries of states that wait for none, or have not failed.
SELECT xdb.skip_timer('m-1', 'First-1');
SELECT xdb.skip_timer('m-1', 'First-1', 't');
SELECT xdb.skip_timer('m-1', 'First-2');
SELECT xdb.skip_timer('m-1', 'First');
SELECT xdb.skip_timer('m-1', NULL);
SELECT xdb.retry_now('m-1');
SELECT xdb.retry_now('m-1', 'First-1');
SELECT xdb.retry_now('m-1', 'First-2');

-- Waiting for a state.
SELECT xdb.wait_for_state('m-1', 'First-1', '0');
SELECT xdb.wait_for_state('m-1', 'Second-1', '0');
SELECT xdb.wait_for_state('m-1', 'First-1', NULL);
SELECT xdb.wait_for_state('m-1', 'First-1', '61 minutes');
SELECT xdb.wait_for_state('m-1', 'First-01', '0');
-- A state that can never be is not waited for.
SELECT xdb.wait_for_state('m-1', 'Third-1', '30 s');
BEGIN;
SELECT xdb.set_local_attributes('m-1', '{"a": 1}');
SELECT xdb.wait_for_state('m-1', 'First-1', '0');
ROLLBACK;

-- A closed process takes no command, and has no states to wait for.
SELECT xdb.stop_process('m-1');
SELECT xdb.set_local_attributes('m-1', '{"a": 1}');
SELECT xdb.skip_timer('m-1', 'First-1');
SELECT xdb.retry_now('m-1');
SELECT xdb.wait_for_state('m-1', 'First-1', '30 s');
SELECT xdb.wait_for_state('m-1', 'Second-1', '30 s');
SELECT xdb.wait_for_state('m-1', 'Third-1', '30 s');

-- Other roles don't see it.
SET ROLE golden_manage_other;
SELECT xdb.set_local_attributes('m-2', '{"a": 1}');
SELECT xdb.skip_timer('m-2', 'First-1');
SELECT xdb.retry_now('m-2');
SELECT xdb.wait_for_state('m-2', 'First-1', '0');
SELECT xdb.purge('0');
RESET ROLE;

-- Purging: executions that closed before that time, with all of their rows and nothing else.
SELECT xdb.purge(NULL);
SELECT xdb.purge('-1 s');
SELECT xdb.purge('1 day');
SELECT process_id, status FROM xdb.processes WHERE process_id LIKE 'm-%' OR process_id = 'twice' ORDER BY 1, 2;
SELECT xdb.purge('0') >= 2 AS purged;
SELECT process_id, status FROM xdb.processes WHERE process_id LIKE 'm-%' OR process_id = 'twice' ORDER BY 1, 2;
SELECT xdb.purge('0');
SELECT t.relname AS "leftover" FROM (
    SELECT 'state_execution' AS relname, execution_id FROM xdb.state_execution
    UNION ALL SELECT 'history_event', execution_id FROM xdb.history_event
    UNION ALL SELECT 'local_attribute', execution_id FROM xdb.local_attribute
    UNION ALL SELECT 'latest_execution', execution_id FROM xdb.latest_execution
    UNION ALL SELECT 'purged', execution_id FROM xdb.purged
) AS t WHERE NOT EXISTS (SELECT FROM xdb.process_execution AS p WHERE p.execution_id = t.execution_id);
SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE owner = 'golden_manage' AND status = 'RUNNING';
SELECT xdb.purge('0') >= 4 AS purged;
SELECT count(*) FROM xdb.processes WHERE owner = 'golden_manage';
SHOW xdb.retention;

SELECT xdb.unregister_process_type('Manage');
SELECT xdb.unregister_process_type('ManagePlain');
SELECT xdb.unregister_worker('manage');
SELECT xdb.revoke_usage('golden_manage');
SELECT xdb.revoke_usage('golden_manage_other');
DROP TABLE manage_users, started;
DROP ROLE golden_manage, golden_manage_other;
