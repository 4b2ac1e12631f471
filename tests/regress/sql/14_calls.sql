-- What a call of a function is: which function is called, what an idempotency key stands for, how large an answer may be.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_calls;
SELECT xdb.grant_usage('golden_calls', deployer => true);
CREATE SCHEMA golden_calls;
GRANT USAGE, CREATE ON SCHEMA golden_calls TO golden_calls;
SET ROLE golden_calls;

-- The function that takes values of jsonb alone is called, whatever else has its name.
CREATE TABLE golden_calls.log (id int GENERATED ALWAYS AS IDENTITY, what text);
CREATE FUNCTION golden_calls.rpc(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{"output": "of jsonb", "callFunctions": [{"function": "note", "argument": "rpc"}]}'::jsonb $$;
CREATE FUNCTION golden_calls.rpc(request jsonb, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION golden_calls.rpc(request json) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION golden_calls.note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS
    $$ INSERT INTO golden_calls.log (what) VALUES (argument #>> '{}') $$;
CREATE FUNCTION golden_calls.note(argument jsonb, context jsonb, loud boolean DEFAULT false) RETURNS void LANGUAGE sql AS
    $$ INSERT INTO golden_calls.log (what) VALUES ('the wrong one') $$;
CREATE FUNCTION golden_calls.note(VARIADIC arguments jsonb[]) RETURNS void LANGUAGE sql AS
    $$ INSERT INTO golden_calls.log (what) VALUES ('the wrong one') $$;
CREATE FUNCTION golden_calls.merge(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_array(old, new) $$;
CREATE FUNCTION golden_calls.merge(old jsonb, new jsonb, more jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
SELECT xdb.register_process_type('Calls', NULL, '{"functions": {"note": "golden_calls.note"}, "startingState": "A", "localQueues": ["box", "inbox"],
    "states": {"A": {"skipWaitUntil": true, "executeFunction": "golden_calls.rpc"}},
    "rpcs": {"r": {"function": "golden_calls.rpc"}}}');
SELECT xdb.start_process('calls', 'Calls', options => '{"callFunctions": [{"function": "note", "argument": "start"}]}') IS NOT NULL AS started;
SELECT xdb.invoke_rpc('calls', 'r');
SELECT what FROM golden_calls.log ORDER BY id;
SELECT count(DISTINCT xdb.start_process(NULL, 'Calls', to_jsonb(n), options =>
    '{"correlationKey": "k", "merge": {"input": "golden_calls.merge"}}')) AS executions FROM generate_series(1, 2) AS n;
SELECT input FROM xdb.state_executions WHERE input IS NOT NULL;
-- One that needs a default, an array or another type is none of them.
CREATE FUNCTION golden_calls.by_default(request jsonb, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION golden_calls.variadic(VARIADIC requests jsonb[]) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION golden_calls.any(request anyelement) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE FUNCTION golden_calls.narrow(request json) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
CREATE AGGREGATE golden_calls.sum(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
SELECT xdb.register_process_type('Other', NULL, '{"rpcs": {"r": {"function": "golden_calls.by_default"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"rpcs": {"r": {"function": "golden_calls.variadic"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"rpcs": {"r": {"function": "golden_calls.any"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"rpcs": {"r": {"function": "golden_calls.narrow"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"rpcs": {"r": {"function": "golden_calls.sum"}}}');
-- One that was made again as something else is refused when it is called, and so is one that may not be called any more.
DROP FUNCTION golden_calls.rpc(jsonb);
SELECT xdb.invoke_rpc('calls', 'r');
CREATE FUNCTION golden_calls.rpc(request jsonb) RETURNS text LANGUAGE sql AS $$ SELECT '{"output": "text"}' $$;
SELECT xdb.invoke_rpc('calls', 'r');
DROP FUNCTION golden_calls.rpc(jsonb);
CREATE FUNCTION golden_calls.rpc(request jsonb) RETURNS SETOF jsonb LANGUAGE sql AS $$ SELECT '{"output": "rows"}'::jsonb $$;
SELECT xdb.invoke_rpc('calls', 'r');
DROP FUNCTION golden_calls.rpc(jsonb);
CREATE PROCEDURE golden_calls.rpc(request jsonb) LANGUAGE sql AS '';
SELECT xdb.invoke_rpc('calls', 'r');
DROP PROCEDURE golden_calls.rpc(jsonb);
CREATE AGGREGATE golden_calls.rpc(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
SELECT xdb.invoke_rpc('calls', 'r');
DROP AGGREGATE golden_calls.rpc(jsonb);
CREATE FUNCTION golden_calls.rpc(request jsonb) RETURNS jsonb STRICT LANGUAGE plpgsql SET search_path = golden_calls AS
    $$ BEGIN INSERT INTO log (what) VALUES ('again'); RETURN jsonb_build_object('output', (SELECT count(*) FROM log WHERE what = 'again')); END $$;
SELECT xdb.invoke_rpc('calls', 'r');
REVOKE EXECUTE ON FUNCTION golden_calls.rpc(jsonb) FROM PUBLIC, golden_calls;
SELECT xdb.invoke_rpc('calls', 'r');
GRANT EXECUTE ON FUNCTION golden_calls.rpc(jsonb) TO golden_calls;
RESET ROLE;
REVOKE USAGE ON SCHEMA golden_calls FROM golden_calls;
SET ROLE golden_calls;
SELECT xdb.invoke_rpc('calls', 'r');
RESET ROLE;
GRANT USAGE ON SCHEMA golden_calls TO golden_calls;
SET ROLE golden_calls;

-- An idempotency key stands for one RPC and one input.
CREATE FUNCTION golden_calls.deposit(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT jsonb_build_object('output', 'deposited', 'writeToLocalAttributes', jsonb_build_object('deposited', request->'input')) $$;
CREATE FUNCTION golden_calls.withdraw(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT '{"output": "withdrawn", "writeToLocalAttributes": {"withdrawn": true}}'::jsonb $$;
SELECT xdb.register_process_type('Account', NULL, '{"rpcs": {"deposit": {"function": "golden_calls.deposit"}, "withdraw": {"function": "golden_calls.withdraw"}}}');
SELECT xdb.start_process('a-1', 'Account') IS NOT NULL AND xdb.start_process('a-2', 'Account') IS NOT NULL AS started;
SELECT xdb.invoke_rpc('a-1', 'deposit', '{"amount": 1, "to": "é"}', idempotency_key => 'click');
SELECT xdb.invoke_rpc('a-1', 'withdraw', '5', idempotency_key => 'click');
\echo :SQLSTATE
SELECT xdb.invoke_rpc('a-1', 'withdraw', '{"amount": 1, "to": "é"}', idempotency_key => 'click');
SELECT xdb.invoke_rpc('a-1', 'deposit', '{"amount": 2, "to": "é"}', idempotency_key => 'click');
SELECT xdb.invoke_rpc('a-1', 'deposit', idempotency_key => 'click');
SELECT xdb.get_local_attributes('a-1');
-- The same JSON may be written otherwise, and wait for another time; a number counts with its digits.
SELECT xdb.invoke_rpc('a-1', 'deposit', ' {"to":"\u00e9", "amount": 5, "amount": 1} ', '1 min', idempotency_key => 'click');
SELECT xdb.invoke_rpc('a-1', 'deposit', '{"amount": 1.0, "to": "é"}', idempotency_key => 'click');
-- No input is null.
SELECT xdb.invoke_rpc('a-1', 'withdraw', idempotency_key => 'none');
SELECT xdb.invoke_rpc('a-1', 'withdraw', 'null', idempotency_key => 'none');
SELECT xdb.invoke_rpc('a-1', 'withdraw', '""', idempotency_key => 'none');
-- An input of the largest size has a digest like other inputs.
SELECT xdb.invoke_rpc('a-1', 'withdraw', to_jsonb(repeat('x', 900000)), idempotency_key => 'large');
SELECT xdb.invoke_rpc('a-1', 'withdraw', to_jsonb(repeat('x', 900000)), idempotency_key => 'large');
SELECT xdb.invoke_rpc('a-1', 'withdraw', to_jsonb(repeat('x', 899999) || 'y'), idempotency_key => 'large');
-- Another process, or what was rolled back, has used no key.
SELECT xdb.invoke_rpc('a-2', 'withdraw', idempotency_key => 'click');
BEGIN;
SELECT xdb.invoke_rpc('a-2', 'withdraw', '1', idempotency_key => 'back');
ROLLBACK;
SELECT xdb.invoke_rpc('a-2', 'deposit', '1', idempotency_key => 'back');
-- The answer of an RPC's function is bounded as a worker's.
CREATE FUNCTION golden_calls.wide(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT jsonb_build_object('output', repeat('x', (request->'input')::int)) $$;
SELECT xdb.register_process_type('Wide', NULL, '{"rpcs": {"r": {"function": "golden_calls.wide"}}}');
SELECT xdb.start_process('wide', 'Wide') IS NOT NULL AS started;
RESET ROLE;
SET xdb.max_response_size = '2kB';
SET ROLE golden_calls;
SELECT length(xdb.invoke_rpc('wide', 'r', '2034') #>> '{}');
SELECT xdb.invoke_rpc('wide', 'r', '2035');
RESET ROLE;
RESET xdb.max_response_size;
SET ROLE golden_calls;

-- What is missing is named, and what is known is listed.
SELECT xdb.register_process_type('Other', NULL, '{"states": {"A": {"executeFunction": "golden_calls.rpc"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"states": {"A": {"waitUntilFunction": "golden_calls.rpc"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"states": {"A": {"skipWaitUntil": false, "executeFunction": "golden_calls.rpc"}}}');
SELECT xdb.register_process_type('Other', NULL, '{"states": {"A": {}}}');
SELECT xdb.publish('calls', 'bix', '1');
SELECT xdb.register_process_type('Calls', NULL, jsonb_build_object('startingState', 'A', 'states', '{"A": {"skipWaitUntil": true, "executeFunction": "golden_calls.deposit"}}'::jsonb,
    'localQueues', (SELECT jsonb_agg('q' || n ORDER BY n) FROM generate_series(100, 400) AS n)));
SELECT xdb.publish('calls', 'bix', '1');
SELECT xdb.register_process_type('Calls', NULL, '{"startingState": "A", "states": {"A": {"skipWaitUntil": true, "executeFunction": "golden_calls.deposit"}}, "localQueues": []}');
SELECT xdb.publish('calls', 'bix', '1');

-- Clean up.
SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE status = 'RUNNING' ORDER BY process_id;
SELECT xdb.unregister_process_type(t) FROM unnest('{Calls,Account,Wide}'::text[]) AS t;
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA golden_calls CASCADE;
RESET client_min_messages;
SELECT xdb.revoke_usage('golden_calls');
DROP ROLE golden_calls;
SELECT xdb.resume_engine();
