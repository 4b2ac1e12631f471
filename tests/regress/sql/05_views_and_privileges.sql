-- Which roles may see and drive which processes.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_team;
CREATE ROLE golden_alice IN ROLE golden_team;
CREATE ROLE golden_bob;
CREATE ROLE golden_admin;
CREATE ROLE golden_stranger;
SELECT xdb.grant_usage('golden_team');
SELECT xdb.grant_usage('golden_alice');
SELECT xdb.grant_usage('golden_bob');
SELECT xdb.grant_usage('golden_admin', admin => true);
CREATE TABLE priv_rows (id text PRIMARY KEY, note text);
GRANT SELECT, INSERT, UPDATE ON priv_rows TO golden_alice;
SELECT xdb.register_worker('priv', 'http://127.0.0.1:1', secret => 'whsec_dG9wIHNlY3JldA==');
SELECT xdb.register_process_type('Priv', 'priv', '{
    "startingState": "First",
    "states": {"First": {"skipWaitUntil": true}},
    "globalAttributes": [{"table": "public.priv_rows", "primaryKey": "id", "attributes": {"note": "note"}}]
}');

-- Superusers' processes do not run, unless a setting says so: none is started either.
SHOW xdb.allow_superuser_processes;
SELECT xdb.start_process('priv-super', 'Priv', global_attribute_pk => 's');

SET ROLE golden_alice;
SELECT xdb.start_process('priv-alice', 'Priv', global_attribute_pk => 'a', global_attributes => '{"note": "mine"}') IS NOT NULL AS started;
SELECT xdb.publish('priv-alice', 'box', '"hello"');
SET ROLE golden_team;
SELECT xdb.start_process('priv-team', 'Priv', global_attribute_pk => 't') IS NOT NULL AS started;

-- Each role sees its own processes, and those of the roles that it is a member of.
SET ROLE golden_alice;
SELECT process_id, status FROM xdb.processes WHERE process_id LIKE 'priv-%' ORDER BY process_id;
SELECT xdb.describe_process('priv-team') ->> 'status' AS status;
SELECT * FROM xdb.check_process('priv-team');
SET ROLE golden_bob;
SELECT process_id FROM xdb.processes WHERE process_id LIKE 'priv-%';
SELECT count(*) FROM xdb.state_executions WHERE process_id LIKE 'priv-%';
SELECT count(*) FROM xdb.waits WHERE process_id LIKE 'priv-%';
SELECT count(*) FROM xdb.timers WHERE process_id LIKE 'priv-%';
SELECT count(*) FROM xdb.queue_messages WHERE process_id LIKE 'priv-%';
SELECT count(*) FROM xdb.failures WHERE process_id LIKE 'priv-%';
SELECT count(*) FROM xdb.history WHERE process_id LIKE 'priv-%';

-- What one may not see is not there, by no function.
SELECT xdb.describe_process('priv-alice');
SELECT xdb.get_local_attributes('priv-alice');
SELECT * FROM xdb.check_process('priv-alice');
SELECT xdb.publish('priv-alice', 'box', '"from bob"');
SELECT xdb.stop_process('priv-alice');
SELECT xdb.invoke_rpc('priv-alice', 'any');
SELECT xdb.wait_for_process('priv-alice', timeout => '1 second');

-- The id is in use nevertheless, and the error does not name its owner.
SELECT xdb.start_process('priv-alice', 'Priv', global_attribute_pk => 'x');
SELECT xdb.start_process('priv-alice', 'Priv', global_attribute_pk => 'x', id_reuse_policy => 'DISALLOW_REUSE');
SELECT xdb.start_process('priv-alice', 'Priv', global_attribute_pk => 'x', id_reuse_policy => 'TERMINATE_IF_RUNNING');

-- A start touches the tables as the caller: no privilege, no row, no process.
SELECT xdb.start_process('priv-bob', 'Priv', global_attribute_pk => 'b', global_attributes => '{"note": "not mine"}');
SELECT count(*) FROM xdb.processes WHERE process_id = 'priv-bob';

-- A role that was granted to administer sees and drives all.
SET ROLE golden_admin;
SELECT process_id, status FROM xdb.processes WHERE process_id LIKE 'priv-%' ORDER BY process_id;
SELECT xdb.stop_process('priv-team', reason => 'by the administrator');
SELECT xdb.describe_process('priv-team') ->> 'status' AS status;
SELECT * FROM xdb.check_process('priv-alice');

-- No view and no function shows a worker's secret.
SELECT count(*) FROM xdb.workers AS w WHERE w::text LIKE '%dG9wIHNlY3JldA%' OR w::text LIKE '%top secret%';

-- One that was granted nothing gets nothing.
SET ROLE golden_stranger;
SELECT xdb.start_process('priv-stranger', 'Priv');
SELECT xdb.describe_process('priv-alice');
SELECT * FROM xdb.check_process('priv-alice');
SELECT count(*) FROM xdb.processes;
SELECT count(*) FROM xdb.status();
SELECT xdb.pause_engine();
SELECT xdb.resume_engine();
SELECT xdb.grant_usage('golden_stranger');

-- Ordinary use does not include the engine's own affairs.
SET ROLE golden_bob;
-- Every role that uses XDB may know how the engine is doing. Figures are those of all processes, and for operators and pg_monitor.
SELECT state, engine_pid IS NOT NULL AS engine, started_at IS NOT NULL AS started, reason FROM xdb.status();
SELECT in_flight, backlog, oldest_due, calls_per_second, epoch, slow_objects, last_error, last_error_at, runners,
    runner_error, ownerless_processes, next_turn_at, next_turn_why FROM xdb.status();
SET ROLE golden_admin;
SELECT state, in_flight, backlog IS NOT NULL AS backlog, epoch IS NOT NULL AS epoch, slow_objects, runners, ownerless_processes, next_turn_at IS NOT NULL AS next_turn FROM xdb.status();
SET ROLE pg_monitor;
SELECT state, backlog IS NOT NULL AS backlog, epoch IS NOT NULL AS epoch FROM xdb.status();
SET ROLE golden_bob;
SELECT xdb.pause_engine();
SELECT xdb.resume_engine();
SELECT xdb.grant_usage('golden_stranger');
SELECT xdb.revoke_usage('golden_alice');
SELECT xdb.register_worker('priv', 'http://127.0.0.1:2');

-- Inside a SECURITY DEFINER function the caller is the function's owner.
RESET ROLE;
GRANT CREATE ON SCHEMA public TO golden_alice;
SET ROLE golden_alice;
CREATE FUNCTION priv_describe(process_id text) RETURNS text LANGUAGE sql SECURITY DEFINER
    RETURN xdb.describe_process(process_id) ->> 'status';
SET ROLE golden_bob;
SELECT priv_describe('priv-alice');
RESET ROLE;

-- What was granted can be taken back.
SELECT xdb.revoke_usage('golden_bob');
SET ROLE golden_bob;
SELECT count(*) FROM xdb.processes;
SELECT xdb.start_process('priv-bob', 'Priv');
RESET ROLE;
