-- Schedules, changes that are published, and the view of transitions: what is wrong with them, and what they show.
\set SHOW_CONTEXT never
CREATE ROLE golden_clock;
SELECT xdb.grant_usage('golden_clock');
CREATE SCHEMA golden_clock;
GRANT USAGE ON SCHEMA golden_clock TO golden_clock;

-- A type may not consume its own changes.
SELECT xdb.register_process_type('Loop', NULL, '{"globalQueues": ["events"], "changes": "events"}');
\echo :SQLSTATE
SELECT xdb.register_process_type('Loop', NULL, '{"globalQueues": ["*"], "changes": "events"}');
\echo :SQLSTATE
SELECT xdb.register_process_type('Loop', NULL, '{"changes": ""}');
\echo :SQLSTATE
SELECT xdb.register_process_type('Loop', NULL, '{"changes": ["events"]}');
\echo :SQLSTATE

-- Arguments of a schedule.
SET ROLE golden_clock;
SELECT xdb.schedule('s', '0 0 * * * *', '{"process_type": "Steps"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '0 0 31 2 *', '{"process_type": "Steps"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@sometimes', '{"process_type": "Steps"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}', 'Europe/Nowhere');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}', '../../../etc/passwd');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}', '');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}', NULL);
\echo :SQLSTATE
SELECT xdb.schedule('s', NULL, '{"process_type": "Steps"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', NULL);
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '[]');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps", "processId": "p"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps", "options": {"priority": 11}}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@every 0 seconds', '{"process_type": "Steps"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', repeat('1,', 600) || '1 0 * * *', '{"process_type": "Steps"}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}', 'Europe//Berlin');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}');
\echo :SQLSTATE
RESET ROLE;
CREATE FUNCTION golden_clock.step(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    state CONSTANT text := request->>'stateId';
BEGIN
    IF state = 'Pay' THEN
        RAISE EXCEPTION 'no money' USING ERRCODE = 'GC001';
    END IF;
    RETURN CASE state
        WHEN 'Pick' THEN '{"stateDecision": {"nextStates": [{"stateId": "Pay", "stateInput": "broken"}, {"stateId": "Hold", "stateInput": "good"}]},
            "writeToLocalAttributes": {"picked": 3}}'
        WHEN 'Hold' THEN '{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}}'
        ELSE '{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS"}}, "abortStates": ["Idle"],
            "writeToLocalAttributes": {"ended": true}}' END::jsonb;
END
$$;
CREATE FUNCTION golden_clock.wait(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT '{"commandRequest": {"waitingType": "AllOfCompletion", "localQueueCommands": [{"queueName": "go"}]}}'::jsonb $$;
CREATE FUNCTION golden_clock.rpc(request jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT '{"stateDecision": {"nextStates": [{"stateId": "End"}]}, "writeToLocalAttributes": {"by": "rpc"}}'::jsonb $$;
SELECT xdb.register_process_type('Steps', NULL, '{"startingState": "Pick", "changes": "golden-events",
    "states": {"Pick": {"skipWaitUntil": true, "executeFunction": "golden_clock.step"},
        "Pay": {"skipWaitUntil": true, "executeFunction": "golden_clock.step", "executeApiRetryPolicy": {"maximumAttempts": 1},
            "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Idle"}},
        "Hold": {"executeFunction": "golden_clock.step",
            "commandRequest": {"waitingType": "AllOfCompletion", "localQueueCommands": [{"queueName": "held"}]}},
        "Idle": {"waitUntilFunction": "golden_clock.wait", "executeFunction": "golden_clock.step"},
        "End": {"skipWaitUntil": true, "executeFunction": "golden_clock.step"}},
    "rpcs": {"begin": {"function": "golden_clock.rpc"}}}');
SET ROLE golden_clock;
-- The type of schedules has to be registered once.
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}');
\echo :SQLSTATE
RESET ROLE;
-- Its handlers run with the rights of all roles that have schedules, so they can not be replaced.
SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "golden_clock.step", "executeFunction": "xdb.schedule_tick"}}}');
SET ROLE golden_clock;
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}');
\echo :SQLSTATE
RESET ROLE;
SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}, "history": {"keepLast": 100}}');
SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "golden_clock.step", "executeFunction": "xdb.schedule_tick"}}}');
\echo :SQLSTATE
SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}, "changes": "events"}');
\echo :SQLSTATE
SELECT xdb.register_process_type('Schedule', NULL, '{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}, "history": {"keepLast": 50}, "priority": 1, "retentionSeconds": 60}');
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps"}');
\echo :SQLSTATE

-- All names of the server are known, and no others.
SET ROLE golden_clock;
SELECT count(*) > 300 AS many, count(*) FILTER (WHERE xdb.schedule('zones', '@daily', '{"process_type": "Steps"}', name) IS NULL) AS unknown
FROM pg_timezone_names;
SELECT xdb.schedule('zones', '@daily', '{"process_type": "Steps"}', 'right/Europe/Berlin');
\echo :SQLSTATE
SELECT xdb.schedule('zones', '@daily', '{"process_type": "Steps"}', 'Europe');
\echo :SQLSTATE
SELECT xdb.stop_process('zones');

-- What no tick could start is refused at once.
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps", "options": {"startingState": "Nope"}}');
\echo :SQLSTATE
SELECT xdb.schedule('s', '@daily', '{"process_type": "Steps", "global_attribute_pk": "7"}');
\echo :SQLSTATE

-- A schedule waits for its tick.
SELECT xdb.schedule('golden-nightly', '0 3 * * mon-fri', '{"process_type": "Steps", "process_id": "golden-{time}"}', 'Europe/Berlin') IS NOT NULL AS scheduled;
SELECT xdb.schedule('golden-nightly', '30 3 * * mon-fri', '{"process_type": "Steps", "process_id": "golden-{time}"}', 'Europe/Berlin') IS NOT NULL AS replaced;
SELECT status, count(*) FROM xdb.processes WHERE process_id = 'golden-nightly' GROUP BY status ORDER BY status;
DO $$ BEGIN
    FOR n IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM xdb.timers WHERE process_id = 'golden-nightly');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT to_char(fire_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI:SS') AS at, extract(isodow FROM fire_at AT TIME ZONE 'Europe/Berlin') < 6 AS on_a_weekday,
       fire_at > now() AS later FROM xdb.timers WHERE process_id = 'golden-nightly';
SELECT xdb.stop_process('golden-nightly');

-- "History of executed transitions: handler names, initial and modified states, arbitrary data."
SELECT xdb.start_process('golden-moves', 'Steps', '"first"', local_attributes => '{"order": 7}') IS NOT NULL AS started;
DO $$ BEGIN
    FOR n IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM xdb.waits WHERE process_id = 'golden-moves' AND state_execution_id = 'Idle-1');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT xdb.publish('golden-moves', 'held');
DO $$ BEGIN
    FOR n IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM xdb.transitions WHERE process_id = 'golden-moves' AND from_state = 'Hold-1');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT xdb.invoke_rpc('golden-moves', 'begin');
SELECT xdb.wait_for_process('golden-moves') ->> 'status' AS status;
SELECT from_state, to_state, outcome, input, written FROM xdb.transitions WHERE process_id = 'golden-moves' ORDER BY event_id;
SELECT xdb.start_process('golden-moved', 'Steps') IS NOT NULL AS started;
DO $$ BEGIN
    FOR n IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM xdb.waits WHERE process_id = 'golden-moved' AND state_execution_id = 'Idle-1');
        COMMIT;
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT xdb.move_state('golden-moved', 'Idle-1', '[{"stateId": "Idle", "stateInput": "by hand"}]');
SELECT xdb.stop_process('golden-moved');
SELECT from_state, to_state, outcome, input, written FROM xdb.transitions WHERE process_id = 'golden-moved' AND event_id > 10 ORDER BY event_id;
-- The changes of the process, in their order, of its owner.
SELECT key, payload->>'eventType' AS event_type, payload->'eventId' AS event_id, payload->>'processType' AS process_type,
       jsonb_typeof(payload->'details') AS details, (payload->>'eventTime')::timestamptz <= clock_timestamp() AS is_past
FROM xdb.queue_messages WHERE queue_name = 'golden-events' AND key = 'golden-moves' ORDER BY position;
SELECT count(*) AS different FROM xdb.queue_messages AS m JOIN xdb.history AS h
    ON h.process_id = m.key AND h.event_id = (m.payload->>'eventId')::bigint
WHERE m.queue_name = 'golden-events' AND m.key = 'golden-moves'
    AND (m.payload->'details' <> h.details OR (m.payload->>'eventTime')::timestamptz <> h.event_time OR m.payload->>'eventType' <> h.event_type);

-- Clean up.
RESET ROLE;
DELETE FROM xdb.global_message WHERE queue_name = 'golden-events';
SELECT xdb.unregister_process_type('Steps');
SELECT xdb.unregister_process_type('Schedule');
SET client_min_messages = warning;
DROP SCHEMA golden_clock CASCADE;
RESET client_min_messages;
SELECT xdb.revoke_usage('golden_clock');
DROP ROLE golden_clock;
