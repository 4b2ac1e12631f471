-- Functions that answers and starts call: what a definition may name.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_caller;
SELECT xdb.grant_usage('golden_caller', deployer => true);
CREATE SCHEMA golden_shop;
GRANT USAGE, CREATE ON SCHEMA golden_shop TO golden_caller;
CREATE SCHEMA golden_closed;
CREATE TABLE golden_shop.log (id int GENERATED ALWAYS AS IDENTITY, what text, who text);
GRANT INSERT, SELECT ON golden_shop.log TO golden_caller;
CREATE FUNCTION golden_shop.secret(jsonb, jsonb) RETURNS void LANGUAGE sql AS '';
REVOKE EXECUTE ON FUNCTION golden_shop.secret(jsonb, jsonb) FROM PUBLIC;
CREATE FUNCTION golden_closed.closed(jsonb, jsonb) RETURNS void LANGUAGE sql AS '';

SET ROLE golden_caller;
CREATE FUNCTION golden_shop.log(argument jsonb, context jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ INSERT INTO golden_shop.log (what, who) VALUES (concat_ws(' ', argument #>> '{}', context->>'processId'), current_user) RETURNING '1'::jsonb $$;
CREATE FUNCTION golden_shop."Log it"(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS
    $$ INSERT INTO golden_shop.log (what, who) VALUES ('it', current_user) $$;
CREATE FUNCTION golden_shop.one(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION golden_shop.texts(text, text) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb($1)';
CREATE FUNCTION golden_shop.number(jsonb, jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION golden_shop.many(jsonb, jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE PROCEDURE golden_shop.procedure(jsonb, jsonb) LANGUAGE sql AS '';
SELECT xdb.register_worker('golden_shop', 'http://127.0.0.1:1');

-- It is a function of two values of jsonb that gives one, or nothing, and its name has a schema.
CREATE FUNCTION pg_temp.register(functions jsonb) RETURNS void LANGUAGE sql AS
    $$ SELECT xdb.register_process_type('Shop', 'golden_shop', jsonb_build_object('functions', functions)) $$;
SELECT pg_temp.register('{"f": "log"}');
SELECT pg_temp.register('{"f": "postgres.golden_shop.log"}');
SELECT pg_temp.register('{"f": "golden_shop.log(jsonb, jsonb)"}');
SELECT pg_temp.register('{"f": "golden_shop."}');
SELECT pg_temp.register('{"f": ""}');
SELECT pg_temp.register('{"f": 1}');
SELECT pg_temp.register('{"": "golden_shop.log"}');
SELECT pg_temp.register('["golden_shop.log"]');
SELECT pg_temp.register('{"f": "golden_shop.nothing"}');
SELECT pg_temp.register('{"f": "golden_shop.one"}');
SELECT pg_temp.register('{"f": "golden_shop.texts"}');
SELECT pg_temp.register('{"f": "golden_shop.number"}');
SELECT pg_temp.register('{"f": "golden_shop.many"}');
SELECT pg_temp.register('{"f": "golden_shop.procedure"}');
SELECT pg_temp.register('{"f": "nowhere.log"}');
-- The registering role needs EXECUTE, and USAGE on the schema.
SELECT pg_temp.register('{"f": "golden_shop.secret"}');
SELECT pg_temp.register('{"f": "golden_closed.closed"}');

-- Names are kept as SQL writes them.
SELECT pg_temp.register('{"log": "Golden_Shop.LOG", "it": "golden_shop.\"Log it\""}');
RESET ROLE;
SELECT definition -> 'functions' FROM xdb.process_type WHERE process_type = 'Shop';

-- A start calls them, as the caller.
SET ROLE golden_caller;
SELECT xdb.start_process('golden-f', 'Shop', options =>
    '{"callFunctions": [{"function": "log", "argument": "began"}, {"function": "it"}]}') IS NOT NULL AS started;
SELECT what, who FROM golden_shop.log ORDER BY id;
SELECT xdb.start_process('golden-g', 'Shop', options => '{"callFunctions": [{"function": "golden_shop.log"}]}');
SELECT xdb.start_process('golden-g', 'Shop', options => '{"callFunctions": [{"argument": 1}]}');
SELECT xdb.start_process('golden-g', 'Shop', options => '{"callFunctions": {"function": "log"}}');
SELECT xdb.start_process('golden-g', 'Shop', options => '{"callFunctions": [{"function": "log", "arguments": 1}]}');
SELECT xdb.start_process('golden-g', 'Shop', options => jsonb_build_object('callFunctions',
    (SELECT jsonb_agg('{"function": "log"}'::jsonb) FROM generate_series(1, 101))));
-- A dropped function raises the same error as in SQL.
DROP FUNCTION golden_shop.log(jsonb, jsonb);
SELECT xdb.start_process('golden-g', 'Shop', options => '{"callFunctions": [{"function": "log"}]}');
SELECT count(*) FROM xdb.processes WHERE process_id = 'golden-g';

-- Functions in place of a worker: they take the request alone, and give an answer.
SET ROLE golden_caller;
CREATE FUNCTION golden_shop.step(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}'::jsonb $$;
CREATE FUNCTION golden_shop.rpc(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT jsonb_build_object('output', jsonb_build_array(current_user, request->'rpcName', request->'input', request->'context'->'processId')) $$;
CREATE FUNCTION golden_shop.nothing(request jsonb) RETURNS void LANGUAGE sql AS '';
SELECT xdb.register_process_type('Alone', NULL, '{"states": {"A": {"executeFunction": "golden_shop.step"}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"states": {"A": {"skipWaitUntil": true}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"rpcs": {"r": {}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"states": {"A": {"skipWaitUntil": true, "executeFunction": "golden_shop.nothing"}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"states": {"A": {"skipWaitUntil": true, "executeFunction": "golden_shop.many"}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"states": {"A": {"skipWaitUntil": true, "executeFunction": "step"}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"rpcs": {"r": {"function": "golden_shop.missing"}}}');
SELECT xdb.register_process_type('Alone', NULL, '{"startingState": "A", "rpcs": {"r": {"function": "golden_shop.rpc"}}, "states": {"A":
    {"waitUntilFunction": "golden_shop.step", "executeFunction": "Golden_Shop.Step"}}}');
-- Only a definition names functions.
SELECT xdb.start_process('golden-a', 'Alone', options => '{"startingStateConfig": {"executeFunction": "golden_shop.step"}}');
SELECT xdb.register_process_type('Alone', NULL, '{"states": {"A": {"skipWaitUntil": true, "executeFunction": "golden_shop.step",
    "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "A",
        "stateFailureProceedStateConfig": {"executeFunction": "golden_shop.step"}}}}}');
-- An RPC is called in the caller's transaction. One without a function needs a worker.
SELECT xdb.start_process('golden-a', 'Alone') IS NOT NULL AS started;
SELECT xdb.invoke_rpc('golden-a', 'r', '{"n": 1}');
SELECT xdb.invoke_rpc('golden-a', 's');
SELECT xdb.register_process_type('Alone', NULL, '{"startingState": "A", "states": {"A": {"skipWaitUntil": true, "executeFunction": "golden_shop.step"}}}');
SELECT xdb.invoke_rpc('golden-a', 's');
RESET ROLE;
-- Its call is a runner's, and no worker's.
SELECT lane, worker_id FROM xdb.task k JOIN xdb.process_execution p USING (execution_id) WHERE p.process_id = 'golden-a';
SELECT xdb.stop_process('golden-a');
SELECT worker_id IS NULL AS without_worker FROM xdb.process_type WHERE process_type = 'Alone';
SELECT xdb.unregister_process_type('Alone');

-- Whatever the session's search_path is, theirs is pinned unless they set their own; the session's stays.
SET ROLE golden_caller;
CREATE FUNCTION golden_shop.path(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS
    $$ INSERT INTO golden_shop.log (what, who) VALUES (concat_ws(' ', argument #>> '{}', current_setting('search_path')), current_user) $$;
CREATE FUNCTION golden_shop.own_path(argument jsonb, context jsonb) RETURNS void LANGUAGE sql SET search_path = golden_shop AS
    $$ INSERT INTO log (what, who) VALUES (concat_ws(' ', argument #>> '{}', current_setting('search_path')), current_user) $$;
CREATE FUNCTION golden_shop.rpc_path(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT jsonb_build_object('output', current_setting('search_path'),
        'callFunctions', '[{"function": "path", "argument": "rpc"}, {"function": "own", "argument": "rpc"}]'::jsonb) $$;
SELECT xdb.register_process_type('Path', NULL, '{"functions": {"path": "golden_shop.path", "own": "golden_shop.own_path"},
    "rpcs": {"r": {"function": "golden_shop.rpc_path"}}}');
BEGIN;
SET LOCAL search_path = golden_closed, public;
SELECT xdb.start_process('golden-path', 'Path', options =>
    '{"callFunctions": [{"function": "path", "argument": "start"}, {"function": "own", "argument": "start"}]}') IS NOT NULL AS started;
SELECT xdb.invoke_rpc('golden-path', 'r');
SHOW search_path;
SELECT what, who FROM golden_shop.log WHERE what LIKE '%rpc%' OR what LIKE '%start%' ORDER BY id;
COMMIT;
SELECT xdb.stop_process('golden-path');
SELECT xdb.unregister_process_type('Path');

-- Clean up.
SELECT xdb.stop_process('golden-f');
RESET ROLE;
DROP FUNCTION pg_temp.register(jsonb);
SELECT xdb.unregister_process_type('Shop');
SELECT xdb.unregister_worker('golden_shop');
SET client_min_messages = warning;
DROP SCHEMA golden_shop, golden_closed CASCADE;
RESET client_min_messages;
SELECT xdb.revoke_usage('golden_caller');
DROP ROLE golden_caller;
SELECT xdb.resume_engine();
