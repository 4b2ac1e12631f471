-- Pauses of processes and process types from SQL, and incidents. The engine is paused: what has started stays.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_pauses;
CREATE ROLE golden_pauses_other;
SELECT xdb.grant_usage('golden_pauses', deployer => true);
SELECT xdb.grant_usage('golden_pauses_other');
SET ROLE golden_pauses;
SELECT xdb.register_worker('pauses', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Paused', 'pauses', '{"startingState": "First", "states": {"First": {}}, "localQueues": ["box"]}');
SELECT xdb.start_process('pa-1', 'Paused') IS NOT NULL AS started;

-- What may be asked for.
SELECT xdb.pause_process(NULL);
SELECT xdb.pause_process('nobody');
SELECT xdb.pause_process('pa-1', NULL);
SELECT xdb.pause_process('pa-1', 'SLEEP');
SELECT xdb.pause_process('pa-1', until => '2000-01-01');
SELECT xdb.pause_process('pa-1', until => 'infinity');
SELECT xdb.pause_process('pa-1', reason => repeat('x', 10001));
SELECT xdb.resume_process('nobody');
SELECT xdb.pause_process_type('Nothing');
SELECT xdb.pause_process_type('Paused', 'SLEEP');
SELECT xdb.pause_process_type('Paused', until => '2000-01-01');
SELECT xdb.resume_process_type(NULL);

-- A process. The same pause again changes nothing; another one takes its place.
SELECT xdb.resume_process('pa-1');
SELECT xdb.pause_process('pa-1', until => '2999-01-01 00:00+00', reason => 'an audit');
SELECT xdb.pause_process('pa-1', until => '2999-01-01 00:00+00', reason => 'an audit');
SELECT paused, extract(year FROM paused_until AT TIME ZONE 'UTC') AS until, pause_reason FROM xdb.processes WHERE process_id = 'pa-1';
SELECT kind, state_execution_id FROM xdb.timers WHERE process_id = 'pa-1';
SELECT xdb.describe_process('pa-1') -> 'pause' ->> 'reason' AS reason;
SELECT xdb.publish('pa-1', 'box', '1');
SELECT xdb.pause_process('pa-1', 'REJECT');
SELECT count(*) FROM xdb.timers WHERE process_id = 'pa-1';
SELECT xdb.publish('pa-1', 'box', '2');
SELECT xdb.invoke_rpc('pa-1', 'ask');
SELECT xdb.set_local_attributes('pa-1', '{"k": 1}');
SELECT event_type, details FROM xdb.history WHERE process_id = 'pa-1' AND event_type LIKE 'Process%' AND event_id > 1 ORDER BY event_id;
SELECT * FROM xdb.check_process('pa-1');
SET ROLE golden_pauses_other;
SELECT xdb.pause_process('pa-1');
SELECT xdb.resume_process('pa-1');
SET ROLE golden_pauses;
SELECT xdb.resume_process('pa-1');
SELECT paused, paused_until, pause_reason FROM xdb.processes WHERE process_id = 'pa-1';
SELECT * FROM xdb.check_process('pa-1');

-- A pause is rolled back as all else is.
BEGIN;
SELECT xdb.pause_process('pa-1');
ROLLBACK;
SELECT paused FROM xdb.processes WHERE process_id = 'pa-1';

-- A type. Its version tells sessions and engine.
SET ROLE golden_pauses_other;
SELECT count(*) FROM unnest('{pa-other,pa-ended,pa-both}'::text[]) AS id, xdb.start_process(id, 'Paused');
SELECT xdb.stop_process('pa-ended'), xdb.pause_process('pa-both', reason => 'mine');
SET ROLE golden_pauses;
SELECT xdb.pause_process_type('Paused', 'REJECT', reason => 'migration');
-- A role that sees a process sees that its type is paused, and why, whichever role owns the type. A process's own pause comes first.
SET ROLE golden_pauses_other;
SELECT process_id, paused, paused_until, pause_reason FROM xdb.processes WHERE process_id LIKE 'pa-%' ORDER BY process_id;
SELECT process_id FROM xdb.processes WHERE paused ORDER BY process_id;
SELECT process_type, owner, pause_mode, paused_until, pause_reason FROM xdb.registered_types() WHERE process_type = 'Paused';
SET ROLE golden_pauses;
SELECT xdb.pause_process_type('Paused', 'REJECT', until => '2999-01-01 00:00+00', reason => 'migration');
SELECT process_id, paused, paused_until AT TIME ZONE 'UTC' AS until FROM xdb.processes WHERE process_id = 'pa-1';
SELECT xdb.resume_process_type('Paused');
SELECT paused FROM xdb.processes WHERE process_id = 'pa-1';
SELECT xdb.pause_process_type('Paused', 'REJECT', reason => 'migration');
SET ROLE golden_pauses_other;
SELECT stopped FROM xdb.stop_process(ARRAY['pa-other', 'pa-both']);
SET ROLE golden_pauses;
SELECT pause_mode, paused_until, pause_reason, version FROM xdb.process_types WHERE process_type = 'Paused';
SELECT xdb.start_process('pa-2', 'Paused');
SELECT * FROM xdb.start_processes('[{"process_id": "pa-2", "process_type": "Paused"}]');
SELECT xdb.publish('pa-1', 'box', '3');
SELECT xdb.describe_process('pa-1') -> 'typePause' ->> 'mode' AS mode;
-- Registering it again does not end the pause.
SELECT xdb.register_process_type('Paused', 'pauses', '{"startingState": "First", "states": {"First": {}}, "localQueues": ["box"]}');
SELECT xdb.start_process('pa-2', 'Paused');
SET ROLE golden_pauses_other;
SELECT xdb.pause_process_type('Paused');
SELECT xdb.resume_process_type('Paused');
SELECT process_type, pause_mode FROM xdb.process_types WHERE process_type = 'Paused';
SET ROLE golden_pauses;
SELECT xdb.pause_process_type('Paused');
SELECT xdb.start_process('pa-2', 'Paused') IS NOT NULL AS started;
SELECT xdb.resume_process_type('Paused');
SELECT xdb.resume_process_type('Paused');
SELECT pause_mode, version FROM xdb.process_types WHERE process_type = 'Paused';

-- A process that has ended is not paused.
SELECT xdb.pause_process('pa-2', until => '2999-01-01');
SELECT xdb.stop_process('pa-2');
SELECT paused FROM xdb.processes WHERE process_id = 'pa-2';
SELECT count(*) FROM xdb.timers WHERE process_id = 'pa-2';
SELECT xdb.pause_process('pa-2');
SELECT * FROM xdb.check_process('pa-2');
SELECT count(*) FROM xdb.incidents;
SELECT xdb.stop_process('pa-1');
SELECT xdb.unregister_process_type('Paused');
SELECT xdb.unregister_worker('pauses');
RESET ROLE;
DROP OWNED BY golden_pauses, golden_pauses_other;
DROP ROLE golden_pauses, golden_pauses_other;
