-- Starting and stopping processes. The engine is paused: what has started stays RUNNING.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_start;
SELECT xdb.grant_usage('golden_start');
CREATE TABLE start_users (user_id text PRIMARY KEY, form jsonb, status text, born date, score int CHECK (score >= 0));
GRANT SELECT, INSERT, UPDATE ON start_users TO golden_start;
SELECT xdb.register_worker('start', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Start', 'start', '{
    "startingState": "First",
    "states": {"First": {"skipWaitUntil": true}, "Second": {}},
    "globalAttributes": [{"table": "public.start_users", "primaryKey": "user_id",
        "attributes": {"form": "form", "status": "status", "born": "born", "score": "score"}}],
    "localAttributes": ["colour", "size"]
}');
SELECT xdb.register_process_type('StartPlain', 'start', '{"startingState": "First", "states": {"First": {}}}');
SELECT xdb.register_process_type('StartPassive', 'start', '{}');
SET ROLE golden_start;

-- One statement: the process, its attributes, and the row of the application.
SELECT xdb.start_process('start-1', 'Start',
    input               => '{"hello": "world"}',
    global_attribute_pk => 'u1',
    global_attributes   => '{"form": {"name": "Ada"}, "born": "1815-12-10", "score": 7}',
    local_attributes    => '{"colour": "blue"}') IS NOT NULL AS started;
SELECT * FROM start_users;
SELECT xdb.get_local_attributes('start-1');
SELECT xdb.describe_process('start-1') ->> 'status' AS status;
SELECT process_id, process_type, status FROM xdb.processes WHERE process_id = 'start-1';
SELECT state_execution_id, state_id, status FROM xdb.state_executions WHERE process_id = 'start-1';

-- A process type without a starting state starts with no thread.
SELECT xdb.start_process('start-passive', 'StartPassive') IS NOT NULL AS started;
SELECT count(*) FROM xdb.state_executions WHERE process_id = 'start-passive';

-- No state would get its input, so the input is refused instead of dropped.
SELECT xdb.start_process('start-passive-2', 'StartPassive', input => '{"lost": true}');
SELECT xdb.start_processes('[{"process_id": "start-passive-2", "process_type": "StartPassive"},
    {"process_id": "start-passive-3", "process_type": "StartPassive", "input": 1}]');
SELECT count(*) FROM xdb.processes WHERE process_id LIKE 'start-passive-%';

-- All or nothing: a rollback takes the process and the row with it, and so does a savepoint.
BEGIN;
SELECT xdb.start_process('start-rollback', 'Start', global_attribute_pk => 'rollback',
                         global_attributes => '{"score": 1}') IS NOT NULL AS started;
ROLLBACK;
BEGIN;
SAVEPOINT before;
SELECT xdb.start_process('start-savepoint', 'Start', global_attribute_pk => 'savepoint',
                         global_attributes => '{"score": 1}') IS NOT NULL AS started;
ROLLBACK TO before;
COMMIT;
SELECT count(*) FROM xdb.processes WHERE process_id IN ('start-rollback', 'start-savepoint');
SELECT count(*) FROM start_users WHERE user_id IN ('rollback', 'savepoint');

-- A row that the table refuses is the caller's error, with the table's own SQLSTATE.
SELECT xdb.start_process('start-refused', 'Start', global_attribute_pk => 'u2', global_attributes => '{"score": -1}');
SELECT xdb.start_process('start-refused', 'Start', global_attribute_pk => 'u2', global_attributes => '{"score": "many"}');
SELECT count(*) FROM xdb.processes WHERE process_id = 'start-refused';

-- What happens when the row is there already.
SELECT xdb.start_process('start-conflict-1', 'Start', global_attribute_pk => 'u1', global_attributes => '{"status": "error"}',
    options => '{"globalAttributeConflictMode": "RETURN_ERROR_ON_CONFLICT"}');
SELECT status FROM start_users WHERE user_id = 'u1';
SELECT xdb.start_process('start-conflict-2', 'Start', global_attribute_pk => 'u1', global_attributes => '{"status": "ignored"}',
    options => '{"globalAttributeConflictMode": "IGNORE_CONFLICT"}') IS NOT NULL AS started;
SELECT status FROM start_users WHERE user_id = 'u1';
SELECT xdb.start_process('start-conflict-3', 'Start', global_attribute_pk => 'u1', global_attributes => '{"status": "written"}',
    options => '{"globalAttributeConflictMode": "OVERRIDE_ON_CONFLICT"}') IS NOT NULL AS started;
SELECT status, score FROM start_users WHERE user_id = 'u1';

-- A process whose type maps a table has a row of it, written at its start or not.
SELECT xdb.start_process('start-key', 'Start', global_attributes => '{"status": "whose?"}');
SELECT xdb.start_process('start-key', 'Start');
SELECT xdb.start_process('start-key', 'Start', global_attribute_pk => 'u9') IS NOT NULL AS started;
SELECT count(*) FROM start_users WHERE user_id = 'u9';
SELECT xdb.start_process('start-no-key', 'StartPlain', global_attribute_pk => 'u9');
SELECT xdb.start_process('start-no-key', 'Start', global_attribute_pk => 'u9', global_attributes => '{"unmapped": 1}');

-- The key can be given per table, too.
SELECT xdb.start_process('start-keys', 'Start', global_attributes => '{"status": "by option"}',
    options => '{"globalAttributeKeys": {"public.start_users": {"user_id": "u3"}}}') IS NOT NULL AS started;
SELECT user_id, status FROM start_users WHERE user_id = 'u3';
SELECT xdb.start_process('start-keys-bad', 'Start', options => '{"globalAttributeKeys": {"public.gone": {"user_id": "u3"}}}');
SELECT xdb.start_process('start-keys-bad', 'Start', options => '{"globalAttributeKeys": {"public.start_users": {"gone": "u3"}}}');

-- Keys of several columns are given by name, for each table; global_attribute_pk is for keys of one column.
RESET ROLE;
CREATE TABLE start_seats (show int, seat text, guest text, PRIMARY KEY (show, seat));
GRANT SELECT, INSERT, UPDATE ON start_seats TO golden_start;
SELECT xdb.register_process_type('StartSeats', 'start', '{
    "startingState": "First", "states": {"First": {"skipWaitUntil": true}},
    "globalAttributes": [
        {"table": "public.start_seats", "primaryKey": ["seat", "show"], "attributes": {"guest": "guest"}},
        {"table": "public.start_users", "primaryKey": "user_id", "attributes": {"status": "status"}}]
}');
SET ROLE golden_start;
SELECT xdb.start_process('start-seat', 'StartSeats', global_attribute_pk => 'u4',
    global_attributes => '{"guest": "Ada", "status": "seated"}',
    options => '{"globalAttributeKeys": {"public.start_seats": {"show": 7, "seat": "A1"}}}') IS NOT NULL AS started;
SELECT show, seat, guest, status FROM start_seats, start_users WHERE user_id = 'u4';
SELECT xdb.start_process('start-seat-bad', 'StartSeats', global_attribute_pk => 'u4');
SELECT xdb.start_process('start-seat-bad', 'StartSeats', global_attribute_pk => 'u4',
    options => '{"globalAttributeKeys": {"public.start_seats": {"seat": "A1"}}}');
SELECT xdb.start_process('start-seat-bad', 'StartSeats', global_attribute_pk => 'u4',
    options => '{"globalAttributeKeys": {"public.start_seats": {"show": "tonight", "seat": "A1"}}}');
SELECT xdb.start_process('start-seat-bad', 'StartSeats',
    options => '{"globalAttributeKeys": {"public.start_seats": {"show": 7, "seat": "A1"}}}');
SELECT xdb.start_process('start-seat-bad', 'StartSeats', global_attribute_pk => 'u4', global_attributes => '{"guest": "Bob"}',
    options => '{"globalAttributeConflictMode": "RETURN_ERROR_ON_CONFLICT",
                 "globalAttributeKeys": {"public.start_seats": {"show": 7, "seat": "A1"}}}');
SELECT xdb.stop_process('start-seat');

-- global_attribute_pk is the key of one table. Where it could be for several, each has its own.
RESET ROLE;
CREATE TABLE start_invoices (number text PRIMARY KEY, paid boolean);
GRANT SELECT, INSERT, UPDATE ON start_invoices TO golden_start;
SELECT xdb.register_process_type('StartTwo', 'start', '{
    "startingState": "First", "states": {"First": {"skipWaitUntil": true}},
    "globalAttributes": [
        {"table": "public.start_users", "primaryKey": "user_id", "attributes": {"status": "status"}},
        {"table": "public.start_invoices", "primaryKey": "number", "attributes": {"paid": "paid"}}]
}');
SET ROLE golden_start;
SELECT xdb.start_process('start-two', 'StartTwo', global_attribute_pk => 'u5');
SELECT * FROM xdb.start_processes('[{"process_id": "start-two", "process_type": "StartTwo", "global_attribute_pk": "u5"}]');
SELECT xdb.start_process('start-two', 'StartTwo', global_attribute_pk => 'u5', global_attributes => '{"status": "new", "paid": false}',
    options => '{"globalAttributeKeys": {"public.start_invoices": {"number": "i5"}}}') IS NOT NULL AS started;
SELECT user_id, status, number, paid FROM start_users, start_invoices WHERE user_id = 'u5';
SELECT xdb.start_process('start-two', 'StartTwo', id_reuse_policy => 'TERMINATE_IF_RUNNING',
    options => '{"globalAttributeKeys": {"public.start_users": {"user_id": "u6"}, "public.start_invoices": {"number": "u6"}}}') IS NOT NULL AS started;
SELECT xdb.stop_process('start-two');

-- The same id again: the policy decides.
\set VERBOSITY sqlstate
SELECT xdb.start_process('start-1', 'StartPlain');
SELECT xdb.start_process('start-1', 'StartPlain', id_reuse_policy => 'DISALLOW_REUSE');
SELECT xdb.start_process('start-1', 'StartPlain', id_reuse_policy => 'ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY');
SELECT xdb.start_process('start-1', 'StartPlain', id_reuse_policy => 'TERMINATE_IF_RUNNING') IS NOT NULL AS started;
SELECT status, count(*) FROM xdb.processes WHERE process_id = 'start-1' GROUP BY status ORDER BY status;
SELECT reason FROM xdb.processes WHERE process_id = 'start-1' AND status = 'TERMINATED';
SELECT xdb.stop_process('start-1', reason => 'enough');
SELECT xdb.start_process('start-1', 'StartPlain', id_reuse_policy => 'DISALLOW_REUSE');
SELECT xdb.start_process('start-1', 'StartPlain', id_reuse_policy => 'ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY') IS NOT NULL AS started;
SELECT xdb.stop_process('start-1', 'FAIL', 'no good');
SELECT xdb.start_process('start-1', 'StartPlain', id_reuse_policy => 'ALLOW_IF_NO_RUNNING') IS NOT NULL AS started;
SELECT status, count(*) FROM xdb.processes WHERE process_id = 'start-1' GROUP BY status ORDER BY status;

-- A start whose answer was lost can be repeated: the same request is the same execution, under every policy.
SELECT xdb.start_process('start-request', 'StartPlain', options => '{"requestId": "r1"}') AS first \gset
SELECT xdb.start_process('start-request', 'StartPlain', options => '{"requestId": "r1"}') = :'first' AS same;
SELECT xdb.start_process('start-request', 'StartPlain', id_reuse_policy => 'DISALLOW_REUSE',
                         options => '{"requestId": "r1"}') = :'first' AS same;
SELECT xdb.start_process('start-request', 'StartPlain', options => '{"requestId": "r2"}');
\set VERBOSITY default
SELECT xdb.stop_process('start-request');
SELECT xdb.start_process('start-request', 'StartPlain', options => '{"requestId": "r1"}') = :'first' AS same;

-- Later, and not for ever.
SELECT xdb.start_process('start-later', 'StartPlain', start_at => now() + interval '1 day',
                         timeout => interval '2 days') IS NOT NULL AS started;
SELECT xdb.describe_process('start-later') ->> 'status' AS status;

SELECT state_execution_id, status, attempt, next_attempt_at > now() + interval '23 hours' AS later
FROM xdb.state_executions WHERE process_id = 'start-later';
SELECT t.kind, t.state_execution_id, t.fire_at = p.timeout_at AS at_timeout, t.fire_at > now() + interval '47 hours' AS later
FROM xdb.timers AS t JOIN xdb.processes AS p USING (execution_id) WHERE t.process_id = 'start-later';

-- An execution can be named; the latest one is meant otherwise.
SELECT xdb.describe_process('start-request', execution_id => :'first') ->> 'status' AS status;
SELECT xdb.describe_process('start-later', execution_id => :'first');

-- Stopping: the outcome is kept, waiting for it returns at once, and it happens once.
SELECT xdb.stop_process('start-later', 'FAIL', 'changed our mind');
SELECT xdb.wait_for_process('start-later', timeout => '10 seconds') - 'results' AS outcome;
SELECT xdb.stop_process('start-later');
SELECT state_execution_id, status, ended_at IS NOT NULL AS ended FROM xdb.state_executions WHERE process_id = 'start-later';
SELECT count(*) FROM xdb.timers WHERE process_id = 'start-later';
SELECT event_id, event_type FROM xdb.history WHERE process_id = 'start-later' ORDER BY event_id;
SELECT xdb.start_process('start-silent', 'StartPlain', options => '{"history": "none"}') IS NOT NULL AS started;
SELECT count(*) FROM xdb.history WHERE process_id = 'start-silent';
SELECT xdb.wait_for_process('start-passive', timeout => '10 milliseconds') ->> 'timedOut' AS timed_out;
SELECT xdb.stop_process('start-passive', 'TERMINATE');
SELECT xdb.wait_for_process('start-passive', timeout => '10 seconds') ->> 'status' AS status;

RESET ROLE;

-- A type stays while executions of it run.
SELECT xdb.unregister_process_type('Start');
SELECT xdb.unregister_worker('start');
SELECT xdb.unregister_process_type('StartPassive');
