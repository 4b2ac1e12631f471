-- Workers without URL: pull workers, which claim their calls with SQL.
\set SHOW_CONTEXT never
SELECT xdb.resume_engine();
CREATE ROLE golden_pull;
CREATE ROLE golden_pull_worker;
CREATE ROLE golden_pull_member IN ROLE golden_pull_worker;
CREATE ROLE golden_pull_stranger;
SELECT xdb.grant_usage('golden_pull'), xdb.grant_usage('golden_pull_worker'), xdb.grant_usage('golden_pull_member'),
    xdb.grant_usage('golden_pull_stranger');
CREATE TABLE pull_order (order_id text PRIMARY KEY, status text CHECK (status <> 'bad'), touched_by text);
CREATE FUNCTION pull_touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.touched_by := current_user; RETURN NEW; END $$;
CREATE TRIGGER pull_touched BEFORE UPDATE ON pull_order FOR EACH ROW EXECUTE FUNCTION pull_touch();
CREATE TABLE pull_invoice (order_id text PRIMARY KEY);
GRANT SELECT, INSERT, UPDATE ON pull_order TO golden_pull;
GRANT SELECT, INSERT ON pull_invoice TO golden_pull_worker;

-- A role whose members claim the calls takes the place of the URL.
SELECT xdb.register_worker('pull', NULL);
SELECT xdb.register_worker('pull', NULL, role => 'nobody_is_called_so');
SELECT xdb.register_worker('pull', 'http://127.0.0.1:1', role => 'golden_pull_worker');
SELECT xdb.register_worker('pull', NULL, secret => 'x', role => 'golden_pull_worker');
SELECT xdb.register_worker('pull', NULL, headers => '{"A": "b"}', role => 'golden_pull_worker');
SELECT xdb.register_worker('pull', url => NULL, role => 'golden_pull_worker');
-- A role that may not use XDB yet can't claim them.
CREATE ROLE golden_pull_ungranted;
SELECT xdb.register_worker('pull_ungranted', NULL, role => 'golden_pull_ungranted');
SELECT xdb.grant_usage('golden_pull_ungranted');
SELECT xdb.register_worker('pull_ungranted', NULL, role => 'golden_pull_ungranted');
SELECT xdb.unregister_worker('pull_ungranted');
SELECT xdb.revoke_usage('golden_pull_ungranted');
DROP ROLE golden_pull_ungranted;
SELECT xdb.register_worker('pull_called', 'http://127.0.0.1:1');
SELECT name, url, role, in_flight, breaker FROM xdb.workers WHERE name LIKE 'pull%' ORDER BY 1;
SELECT xdb.register_process_type('Pulled', 'pull', '{
    "startingState": "Wait", "localQueues": ["box"], "localAttributes": ["colour"], "rpcs": {"look": {}},
    "states": {"Wait": {}, "Bill": {"skipWaitUntil": true, "executeLoadGlobalAttributes": {"policy": "ALL"},
        "executeLoadLocalAttributes": {"policy": "ALL"}}},
    "globalAttributes": [{"table": "public.pull_order", "primaryKey": "order_id", "attributes": {"status": "status"}}]
}');
SELECT xdb.register_process_type('PulledPlain', 'pull', '{"startingState": "Do", "states": {"Do": {"skipWaitUntil": true}, "Locked":
    {"skipWaitUntil": true, "executeLoadLocalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}}},
    "localAttributes": ["n"]}');

SET ROLE golden_pull;
SELECT xdb.start_process('p-1', 'Pulled', '{"amount": 5}', 'o-1', '{"status": "new"}', '{"colour": "red"}') IS NOT NULL AS started;
SELECT xdb.publish('p-1', 'box', '"hello"');

-- Members alone, and the request is that of HTTP.
SET ROLE golden_pull_stranger;
SELECT * FROM xdb.claim_calls('pull');
SET ROLE golden_pull_member;
SELECT * FROM xdb.claim_calls('pull_called');
SELECT * FROM xdb.claim_calls('nobody');
SELECT token, call_id LIKE '%/Wait-1/wait-until' AS is_its_call, api, request - 'context' AS request,
    request->'context' ? 'processExecutionId' AS has_context, lease_until > now() AS has_lease
FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_is_its_call', :'c_api', :'c_request', :'c_has_context', :'c_has_lease';
SELECT count(*) FROM xdb.claim_calls('pull', 10);
RESET ROLE;
SELECT in_flight FROM xdb.workers WHERE name = 'pull';
SELECT t->>'worker' AS worker, t->>'attempt' AS attempt, t ? 'callUntil' AS under_way, t ? 'nextAttemptAt' AS waits
FROM jsonb_array_elements(xdb.describe_process('p-1')->'threads') AS t;

-- An answer that can't be applied changes nothing: something else can be said.
SET ROLE golden_pull_member;
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {}}');
SELECT xdb.complete_call(:'c_token', '{"commandRequest": {"waitingType": "AllOfCompletion", "localQueueCommands": [{"queueName": "none"}]}}');
SELECT xdb.complete_call(:'c_token', NULL);
SELECT xdb.complete_call(:'c_token', '{"commandRequest": {"waitingType": "AllOfCompletion", "localQueueCommands": [{"queueName": "box"}]}}');
SELECT xdb.complete_call(:'c_token', '{"commandRequest": {"waitingType": "EmptyCommand"}}');
SELECT token, api, request->'commandResults'->'localQueueResults' AS results, request->'context'->'attempt' AS attempt
FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_api', :'c_results', :'c_attempt';

-- Effects and answer are one transaction: both or neither.
BEGIN;
INSERT INTO pull_invoice VALUES ('o-1');
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"nextStates": [{"stateId": "Bill", "stateInput": 7}]},
    "writeToLocalAttributes": {"colour": "blue"}, "writeToGlobalAttributes": {"status": "billing"}}');
ROLLBACK;
SELECT count(*) FROM pull_invoice;
BEGIN;
INSERT INTO pull_invoice VALUES ('o-1');
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"nextStates": [{"stateId": "Bill", "stateInput": 7}]},
    "writeToLocalAttributes": {"colour": "blue"}, "writeToGlobalAttributes": {"status": "billing"}}');
COMMIT;
BEGIN;
INSERT INTO pull_invoice VALUES ('twice');
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
COMMIT;
SELECT * FROM pull_invoice;
-- Columns are read and written as the owner of the process.
SELECT * FROM pull_order;
RESET ROLE;
SELECT * FROM pull_order;
SET ROLE golden_pull_member;
SELECT token, request - 'context' AS request FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_request';
-- What a table refuses is the caller's error, with its own SQLSTATE.
\set VERBOSITY sqlstate
BEGIN;
SAVEPOINT s;
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "FORCE_COMPLETE_PROCESS"}},
    "writeToGlobalAttributes": {"status": "bad"}}');
ROLLBACK TO s;
SELECT xdb.fail_call(:'c_token', '{"errorType": "NoMoney", "detail": "the card is empty", "retryAfterSeconds": 3600}');
COMMIT;
\set VERBOSITY default
SET ROLE golden_pull;
SELECT state_execution_id, api, attempt, http_status, error_type, detail FROM xdb.failures WHERE process_id = 'p-1';
SELECT xdb.retry_now('p-1');

-- Given back: the same attempt. With a failure: the next one, or none.
SET ROLE golden_pull_member;
SELECT token, request->'context'->'attempt' AS attempt FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_attempt';
SELECT xdb.fail_call(:'c_token');
SELECT xdb.fail_call(:'c_token');
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
SELECT token, request->'context'->'attempt' AS attempt FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_attempt';
SELECT xdb.extend_call(:'c_token', '1 hour') BETWEEN now() + '59 minutes' AND now() + '61 minutes' AS extended;
SELECT xdb.fail_call(:'c_token', '{"errorTyp": "x"}');
SELECT xdb.fail_call(:'c_token', '{"retryAfterSeconds": -1}');
SELECT xdb.fail_call(:'c_token', '{"detail": "never again", "final": true}');
SET ROLE golden_pull;
SELECT status, reason FROM xdb.processes WHERE process_id = 'p-1';
SELECT * FROM xdb.check_process('p-1');

-- A claim that is rolled back was none; claimed and completed in one transaction is one step.
SELECT count(*) FROM xdb.start_processes('[{"process_id": "p-2", "process_type": "PulledPlain"},
    {"process_id": "p-3", "process_type": "PulledPlain"}, {"process_id": "p-4", "process_type": "PulledPlain"}]');
SET ROLE golden_pull_member;
BEGIN;
SELECT count(*) FROM xdb.claim_calls('pull', 2);
ROLLBACK;
BEGIN;
SELECT xdb.complete_call(token, '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": 1}}}')
FROM xdb.claim_calls('pull', 2);
COMMIT;
SET ROLE golden_pull;
SELECT status, count(*) FROM xdb.processes WHERE process_id IN ('p-2', 'p-3', 'p-4') GROUP BY 1 ORDER BY 1;
SELECT event_type FROM xdb.history WHERE process_id = 'p-2' ORDER BY event_id;

-- A lease that ends is a failed attempt, which the next claim notes.
SET ROLE golden_pull_member;
SELECT token FROM xdb.claim_calls('pull', lease => '1 microsecond') \gset c_
SELECT count(*) FROM xdb.claim_calls('pull', wait => '1 hour');
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
SET ROLE golden_pull;
SELECT process_id, attempt, http_status, error_type, detail FROM xdb.failures WHERE error_type = 'Timeout';
SELECT xdb.retry_now(process_id) FROM xdb.failures WHERE error_type = 'Timeout';
SET ROLE golden_pull_member;
SELECT token, request->'context'->'attempt' AS attempt FROM xdb.claim_calls('pull', lease => '1 microsecond') \gset c_
SELECT :'c_attempt';
-- A late answer is accepted if the call was not claimed again.
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"nextStates": [{"stateId": "Locked"}]}, "writeToLocalAttributes": {"n": 1}}');

-- What was loaded under locks has to be the same when the answer comes.
SELECT token, token ~ '/[0-9a-f]{16}$' AS has_fingerprint, request->'loadedLocalAttributes' AS loaded FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_has_fingerprint', :'c_loaded';
SET ROLE golden_pull;
SELECT xdb.set_local_attributes(process_id, '{"n": 2}') FROM xdb.processes WHERE process_id IN ('p-2', 'p-3', 'p-4') AND status = 'RUNNING';
SET ROLE golden_pull_member;
\set VERBOSITY sqlstate
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "FORCE_COMPLETE_PROCESS"}}}');
\set VERBOSITY default
SELECT xdb.fail_call(:'c_token');
SELECT token, request->'loadedLocalAttributes' AS loaded, request->'context'->'attempt' AS attempt FROM xdb.claim_calls('pull') \gset c_
SELECT :'c_loaded', :'c_attempt';
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "FORCE_COMPLETE_PROCESS"}}}');

-- Stopped meanwhile: the answer comes too late.
SET ROLE golden_pull;
SELECT xdb.start_process('p-5', 'PulledPlain') IS NOT NULL AS started;
SET ROLE golden_pull_member;
SELECT token FROM xdb.claim_calls('pull') \gset c_
-- The token of another role is refused, and so is an invalid one.
SET ROLE golden_pull_stranger;
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
SELECT xdb.fail_call(:'c_token');
SELECT xdb.extend_call(:'c_token', '1 s');
SELECT xdb.complete_call('x', '{}');
SET ROLE golden_pull;
SELECT xdb.stop_process('p-5');
SET ROLE golden_pull_member;
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');

-- In a pause nothing is given out; what was given out before can be completed.
SET ROLE golden_pull;
SELECT count(*) FROM xdb.start_processes('[{"process_id": "p-6", "process_type": "PulledPlain"}, {"process_id": "p-7", "process_type": "PulledPlain"}]');
SET ROLE golden_pull_member;
SELECT token FROM xdb.claim_calls('pull') \gset c_
RESET ROLE;
SELECT xdb.pause_engine();
SET ROLE golden_pull_member;
SELECT count(*) FROM xdb.claim_calls('pull');
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}');
RESET ROLE;
SELECT xdb.resume_engine();

-- Shards: each call is that of one of them.
SET ROLE golden_pull_member;
BEGIN;
SELECT (SELECT count(*) FROM xdb.claim_calls('pull', 10, shards => '[0,512)')) + (SELECT count(*) FROM xdb.claim_calls('pull', 10, shards => '[512,1023]')) AS calls;
ROLLBACK;

-- Arguments.
SELECT * FROM xdb.claim_calls(NULL);
SELECT * FROM xdb.claim_calls('pull', 0);
SELECT * FROM xdb.claim_calls('pull', 1001);
SELECT * FROM xdb.claim_calls('pull', NULL);
SELECT * FROM xdb.claim_calls('pull', wait => '61 minutes');
SELECT * FROM xdb.claim_calls('pull', wait => '-1 s');
SELECT * FROM xdb.claim_calls('pull', wait => NULL);
SELECT * FROM xdb.claim_calls('pull', lease => '0');
SELECT * FROM xdb.claim_calls('pull', lease => '2 days');
SELECT * FROM xdb.claim_calls('pull', shards => 'empty');
SELECT * FROM xdb.claim_calls('pull', shards => '[-1,5]');
SELECT * FROM xdb.claim_calls('pull', shards => '[5,1024]');
SELECT xdb.extend_call('x', '0');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM xdb.claim_calls('pull');
ROLLBACK;
BEGIN;
SELECT xdb.complete_call(token, '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}}') FROM xdb.claim_calls('pull');
SELECT * FROM xdb.claim_calls('pull', wait => '1 s');
ROLLBACK;

-- Neither the owner's code nor the client's finds what the other has put into pg_temp.
SET ROLE golden_pull;
SELECT xdb.start_process('p-8', 'Pulled', NULL, 'o-8', '{"status": "new"}') IS NOT NULL AS started;
SELECT xdb.stop_process('p-7');
SET ROLE golden_pull_member;
SELECT token FROM xdb.claim_calls('pull') \gset c_
BEGIN;
CREATE TEMPORARY TABLE pull_trap (a int);
SELECT xdb.complete_call(:'c_token', '{"commandRequest": {"waitingType": "EmptyCommand"}, "writeToGlobalAttributes": {"status": "new"}}');
ROLLBACK;
SELECT xdb.complete_call(:'c_token', '{"commandRequest": {"waitingType": "EmptyCommand"}, "writeToGlobalAttributes": {"status": "newer"}}');

-- RPCs are not claimed. With a URL the worker is called, and leases are void.
SET ROLE golden_pull;
SELECT xdb.invoke_rpc('p-8', 'look');
SET ROLE golden_pull_member;
SELECT token FROM xdb.claim_calls('pull') \gset c_
RESET ROLE;
SELECT xdb.pause_engine();
SELECT xdb.register_worker('pull', 'http://127.0.0.1:1');
SELECT name, url, role FROM xdb.workers WHERE name = 'pull';
SET ROLE golden_pull_member;
SELECT xdb.complete_call(:'c_token', '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
SELECT count(*) FROM xdb.claim_calls('pull');
RESET ROLE;
SELECT xdb.register_worker('pull', NULL, role => 'golden_pull_worker');
SELECT xdb.resume_engine();

-- What is paused is not claimed, and its answers still count: they call functions as the owner.
RESET ROLE;
CREATE TABLE pull_noted (what text, who text, process text, call text);
GRANT INSERT ON pull_noted TO golden_pull;
CREATE FUNCTION pull_note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO public.pull_noted VALUES (argument #>> '{}', current_user, context->>'processId', split_part(context->>'callId', '/', 2)) $$;
SELECT xdb.register_process_type('PulledCalls', 'pull', '{"startingState": "Do", "states": {"Do": {"skipWaitUntil": true}},
    "functions": {"note": "public.pull_note"}}');
SET ROLE golden_pull_member;
SELECT count(*) FROM xdb.claim_calls('pull', 10);
SET ROLE golden_pull;
SELECT xdb.start_process('p-9', 'PulledCalls') IS NOT NULL AS started;
SELECT xdb.pause_process('p-9');
SET ROLE golden_pull_member;
SELECT count(*) FROM xdb.claim_calls('pull');
SET ROLE golden_pull;
SELECT xdb.resume_process('p-9');
RESET ROLE;
SELECT xdb.pause_process_type('PulledCalls');
SET ROLE golden_pull_member;
SELECT count(*) FROM xdb.claim_calls('pull');
RESET ROLE;
SELECT xdb.resume_process_type('PulledCalls');
SET ROLE golden_pull_member;
SELECT token, api FROM xdb.claim_calls('pull', wait => '20 s') \gset c_
SELECT :'c_api';
SET ROLE golden_pull;
SELECT xdb.pause_process('p-9');
SET ROLE golden_pull_member;
SELECT xdb.complete_call(:'c_token', '{"callFunctions": [{"function": "unknown"}], "stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
SELECT xdb.complete_call(:'c_token', '{"callFunctions": [{"function": "note", "argument": "done"}], "stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}');
RESET ROLE;
SELECT * FROM pull_noted;
SELECT process_id, p.problem FROM xdb.processes AS x, xdb.check_process(x.process_id, x.execution_id) AS p WHERE process_id LIKE 'p-%';
