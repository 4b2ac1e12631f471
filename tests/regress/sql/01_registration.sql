-- Workers and process types: what can be called, and how.
-- The engine is paused in all of these files: no step runs, and nothing here depends on time.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE TABLE reg_users (user_id text PRIMARY KEY, form jsonb, status text, age int);
CREATE TABLE reg_orders (region text, number int, total numeric, PRIMARY KEY (region, number));
CREATE TABLE reg_notes (id int PRIMARY KEY, text text);
CREATE TABLE reg_unkeyed (id text, note text);
CREATE VIEW reg_view AS SELECT * FROM reg_users;

-- A worker is a name and a URL. The same name again changes it.
SELECT xdb.register_worker('reg', 'http://127.0.0.1:1');
SELECT xdb.register_worker('reg', 'http://127.0.0.1:1/base', secret => 'whsec_c2VjcmV0',
                           headers => '{"X-Team": "blue"}', max_concurrency => 8);
SELECT name, url FROM xdb.workers WHERE name = 'reg';

-- What is no worker.
SELECT xdb.register_worker(NULL, 'http://127.0.0.1:1');
SELECT xdb.register_worker('', 'http://127.0.0.1:1');
SELECT xdb.register_worker('reg_bad', NULL);
SELECT xdb.register_worker('reg_bad', '');
SELECT xdb.register_worker('reg_bad', 'ftp://127.0.0.1/');
SELECT xdb.register_worker('reg_bad', '127.0.0.1:8080');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', max_concurrency => 0);
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', headers => '["not an object"]');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', headers => '{"X-Number": 1}');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', headers => '{"Idempotency-Key": "mine"}');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', headers => '{"host": "elsewhere"}');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', headers => '{"Transfer-Encoding": "chunked"}');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', headers => '{"X-Split": "a\r\nb"}');
SELECT xdb.register_worker('reg_bad', 'http://user:password@127.0.0.1/');
SELECT xdb.register_worker('reg_bad', 'http://192.0.2.1/');
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1', secret => '');
SET xdb.allowed_worker_hosts = '127.0.0.1:8080, [::1]:8080, 10.0.0.0/8:443';
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1');
SELECT xdb.register_worker('reg_bad', 'http://10.0.0.1');
SET xdb.allowed_worker_hosts = '127.0.0.1:http';
SELECT xdb.register_worker('reg_bad', 'http://127.0.0.1:1');
RESET xdb.allowed_worker_hosts;
SELECT count(*) FROM xdb.workers WHERE name = 'reg_bad';

-- The smallest process type has no state at all: it starts with no thread and answers RPCs.
SELECT xdb.register_process_type('RegPassive', 'reg', '{}');

-- One with everything.
SELECT xdb.register_process_type('RegFull', 'reg', '{
    "startingState": "Submit",
    "states": {
        "Submit": {"skipWaitUntil": true,
                   "executeApiTimeoutSeconds": 5,
                   "executeApiRetryPolicy": {"initialIntervalSeconds": 2, "backoffCoefficient": 1.5,
                                             "maximumIntervalSeconds": 60, "maximumAttempts": 7,
                                             "maximumAttemptsDurationSeconds": 3600},
                   "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE",
                                                   "stateFailureProceedStateId": "Apologise"}},
        "Verify": {"loadGlobalAttributes": {"policy": "PARTIAL", "names": ["status"]},
                   "executeLoadLocalAttributes": {"policy": "NONE"}},
        "Apologise": {"skipWaitUntil": true}
    },
    "globalAttributes": [
        {"table": "public.reg_users", "primaryKey": "user_id",
         "attributes": {"form": "form", "status": "status"}},
        {"table": "reg_notes", "primaryKey": ["id"], "attributes": {"note": "text"}}],
    "localAttributes": ["source"],
    "localQueues": ["verify"],
    "globalQueues": [],
    "rpcs": {"verify": {"timeoutSeconds": 5}},
    "timeoutSeconds": 86400,
    "history": "none"
}');

-- A history that keeps nothing is "none".
SELECT xdb.register_process_type('RegBad', 'reg', '{"history": {"keepLast": 0}}');

-- A key of several columns, in any order.
SELECT xdb.register_process_type('RegPair', 'reg',
    '{"globalAttributes": [{"table": "public.reg_orders", "primaryKey": ["number", "region"], "attributes": {"total": "total"}}]}');
SELECT relation, key_columns, attributes FROM xdb.mapped_table WHERE relation = 'public.reg_orders'::regclass;
SELECT xdb.unregister_process_type('RegPair');

-- Registering again replaces.
SELECT xdb.register_process_type('RegFull', 'reg', '{"startingState": "Only", "states": {"Only": {}}}');

-- Definitions that do not hold together.
SELECT xdb.register_process_type('RegBad', 'reg', NULL);
SELECT xdb.register_process_type('RegBad', 'reg', 'null');
SELECT xdb.register_process_type('RegBad', 'reg', '[]');
SELECT xdb.register_process_type('RegBad', 'reg', '{"states": []}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"startingState": "Gone", "states": {"Here": {}}}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"startingState": "Gone"}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"states": {"A": {"executeApiTimeoutSeconds": -1}}}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"states": {"A": {"executeApiTimeoutSeconds": "soon"}}}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"states": {"A": {"executeApiRetryPolicy": {"backoffCoefficient": 0.5}}}}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"states": {"A": {"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE",
                                                       "stateFailureProceedStateId": "Gone"}}}}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"states": {"A": {"loadGlobalAttributes": {"policy": "SOME"}}}}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"states": {"A": {"loadGlobalAttributes": {"policy": "PARTIAL", "names": ["unmapped"]}}}}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"localQueues": "verify"}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"timeoutSeconds": -5}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"history": "some"}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"unknownKey": 1}');
SELECT xdb.register_process_type('RegBad', 'reg', '{"states": {"": {}}}');

-- Definitions that do not fit the tables.
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_gone", "primaryKey": "id", "attributes": {"a": "a"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": "user_id", "attributes": {"a": "gone"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": "gone", "attributes": {"age": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": "status", "attributes": {"age": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_orders", "primaryKey": "region", "attributes": {"total": "total"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_unkeyed", "primaryKey": "id", "attributes": {"note": "note"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_view", "primaryKey": "user_id", "attributes": {"age": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [
        {"table": "public.reg_users", "primaryKey": "user_id", "attributes": {"twice": "status"}},
        {"table": "public.reg_notes", "primaryKey": "id", "attributes": {"twice": "text"}}]}');

-- One table twice; the key as an attribute; tables that are the system's own.
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [
        {"table": "public.reg_users", "primaryKey": "user_id", "attributes": {"form": "form"}},
        {"table": "reg_users", "primaryKey": "user_id", "attributes": {"status": "status"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": "user_id", "attributes": {"id": "user_id"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "xdb.worker", "primaryKey": "name", "attributes": {"secret": "secret"}}]}');

SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_orders", "primaryKey": ["region", "number"], "attributes": {"n": "number"}}]}');

-- A key that is unique, and more than that; one column twice; texts that name no table.
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": ["user_id", "status"], "attributes": {"age": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": ["user_id", "user_id"], "attributes": {"age": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users", "primaryKey": "user_id", "attributes": {"a": "age", "b": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "public.reg_users; DROP TABLE reg_users", "primaryKey": "user_id", "attributes": {"a": "age"}}]}');
SELECT xdb.register_process_type('RegBad', 'reg',
    '{"globalAttributes": [{"table": "a.b.c.d", "primaryKey": "user_id", "attributes": {"a": "age"}}]}');

-- A type needs a name, and a worker that is there.
SELECT xdb.register_process_type('RegBad', 'reg_gone', '{}');
SELECT xdb.register_process_type(NULL, 'reg', '{}');
SELECT xdb.register_process_type('', 'reg', '{}');

-- Nothing of the refused ones is there; what is there can be taken away again, once.
SELECT xdb.unregister_process_type('RegBad');
SELECT xdb.unregister_process_type('RegFull');
SELECT xdb.unregister_process_type('RegFull');
SELECT xdb.unregister_process_type('RegPassive');
-- A worker stays while a process type uses it.
SELECT xdb.register_process_type('RegPassive', 'reg', '{}');
SELECT xdb.unregister_worker('reg');
SELECT xdb.unregister_process_type('RegPassive');
SELECT xdb.unregister_worker('reg');
SELECT xdb.unregister_worker('reg');
SELECT count(*) FROM xdb.workers WHERE name = 'reg';

-- What a session remembers of a type is what is registered: not what was rolled back, nor what was removed.
CREATE ROLE golden_registration;
SELECT xdb.grant_usage('golden_registration');
SELECT xdb.register_worker('reg', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('RegAgain', 'reg', '{"startingState": "First", "states": {"First": {}}}');
BEGIN;
SELECT xdb.register_process_type('RegAgain', 'reg', '{"startingState": "RolledBack", "states": {"RolledBack": {}}}');
SET LOCAL ROLE golden_registration;
SELECT xdb.start_process('reg-again', 'RegAgain') IS NOT NULL AS started;
ROLLBACK;
SELECT xdb.register_process_type('RegAgain', 'reg', '{"startingState": "Second", "states": {"Second": {}}}');
SET ROLE golden_registration;
SELECT xdb.start_process('reg-again', 'RegAgain') IS NOT NULL AS started;
SELECT state_id FROM xdb.state_executions WHERE process_id = 'reg-again';
SELECT xdb.stop_process('reg-again');
RESET ROLE;
SELECT xdb.unregister_process_type('RegAgain');
SELECT xdb.register_process_type('RegAgain', 'reg', '{}');
SELECT xdb.register_process_type('RegAgain', 'reg', '{"startingState": "Third", "states": {"Third": {}}}');
SET ROLE golden_registration;
SELECT xdb.start_process('reg-again', 'RegAgain') IS NOT NULL AS started;
SELECT state_id FROM xdb.state_executions AS s JOIN xdb.processes AS p USING (execution_id)
WHERE p.process_id = 'reg-again' AND p.is_latest;
RESET ROLE;
SELECT xdb.unregister_process_type('RegAgain');
SET ROLE golden_registration;
SELECT xdb.stop_process('reg-again');
RESET ROLE;
SELECT xdb.unregister_process_type('RegAgain');
SELECT xdb.unregister_worker('reg');

DROP VIEW reg_view;
DROP TABLE reg_users, reg_orders, reg_notes, reg_unkeyed;
