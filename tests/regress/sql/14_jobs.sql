-- Processes as jobs: without an id of their own, in another state, forgotten when they have closed.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_jobs;
SELECT xdb.grant_usage('golden_jobs');
SELECT xdb.register_worker('jobs', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Job', 'jobs', '{"startingState": "Do", "states": {"Do": {"skipWaitUntil": true}, "Mail": {}}, "retentionSeconds": 0}');
SELECT xdb.register_process_type('JobHour', 'jobs', '{"retentionSeconds": 3600}');
SELECT xdb.register_process_type('JobForEver', 'jobs', '{"retentionSeconds": -1}');
SELECT xdb.register_process_type('JobBySetting', 'jobs', '{"states": {"Do": {}}}');
SELECT xdb.register_process_type('JobWrong', 'jobs', '{"retentionSeconds": -2}');
SELECT xdb.register_process_type('JobWrong', 'jobs', '{"retentionSeconds": "1 hour"}');
SET ROLE golden_jobs;

-- Without a process id it is the execution's.
SELECT xdb.start_process(NULL, 'Job', input => '{"n": 1}') AS job \gset
SELECT process_id = :'job' AS is_its_id, execution_id = :'job' AS is_the_execution FROM xdb.processes WHERE process_type = 'Job';
SELECT xdb.describe_process(:'job') ->> 'status' AS status;
SELECT count(*), count(DISTINCT id) FROM xdb.start_processes('[{"process_type": "Job"}, {"process_type": "Job", "process_id": null}, {"process_id": "jobs-own", "process_type": "Job"}]') AS id;
SELECT count(*) FILTER (WHERE process_id = execution_id::text) AS nameless, count(*) AS jobs FROM xdb.processes WHERE process_type = 'Job';
SELECT xdb.start_process('', 'Job');
SELECT xdb.start_process(NULL, 'Job', options => '{"requestId": "r"}');
SELECT xdb.start_processes('[{"process_type": "Job", "options": {"requestId": "r"}}]');

-- It begins in another state than the registered one.
SELECT xdb.start_process('jobs-mail', 'Job', input => '"hello"', options => '{"startingState": "Mail", "startingStateConfig": {"skipWaitUntil": true}}') IS NOT NULL AS started;
SELECT state_execution_id, status, input FROM xdb.state_executions WHERE process_id = 'jobs-mail';
SELECT xdb.start_process('jobs-do', 'JobBySetting', input => '1', options => '{"startingState": "Do"}') IS NOT NULL AS started;
SELECT state_execution_id FROM xdb.state_executions WHERE process_id = 'jobs-do';
SELECT xdb.start_process('jobs-registered', 'Job', options => '{"startingState": null}') IS NOT NULL AS started;
SELECT state_execution_id FROM xdb.state_executions WHERE process_id = 'jobs-registered';
SELECT xdb.start_process('jobs-wrong', 'Job', options => '{"startingState": "Gone"}');
SELECT xdb.start_process('jobs-wrong', 'Job', options => '{"startingState": ""}');
SELECT xdb.start_process('jobs-wrong', 'Job', options => '{"startingState": 1}');

-- What its type says is how long it is kept once it has closed.
SELECT xdb.start_process('jobs-hour', 'JobHour') IS NOT NULL AND xdb.start_process('jobs-for-ever', 'JobForEver') IS NOT NULL AS started;
SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE process_id LIKE 'jobs-%';
RESET ROLE;
SELECT process_id, purge_at - closed_at AS kept, purge_at = 'infinity' AS for_ever FROM xdb.process_execution
WHERE process_id LIKE 'jobs-%' AND process_id NOT IN ('jobs-for-ever') ORDER BY process_id;
SELECT process_id, purge_at FROM xdb.process_execution WHERE process_id = 'jobs-for-ever';
SELECT process_id, problem FROM xdb.processes, LATERAL xdb.check_process(process_id) WHERE process_type LIKE 'Job%';
-- A type that is changed keeps what closes from now on for as long as it says now.
SELECT xdb.register_process_type('JobHour', 'jobs', '{"retentionSeconds": 0.5}');
SET ROLE golden_jobs;
SELECT xdb.start_process('jobs-second', 'JobHour') IS NOT NULL AS started;
SELECT xdb.stop_process('jobs-second');
RESET ROLE;
SELECT process_id, purge_at - closed_at AS kept FROM xdb.process_execution WHERE process_type = 'JobHour' ORDER BY process_id;
-- So does what is stopped by a session that knows the type from before.
SET ROLE golden_jobs;
SELECT xdb.start_process('jobs-third', 'JobForEver') IS NOT NULL AS started;
RESET ROLE;
SELECT xdb.register_process_type('JobForEver', 'jobs', '{"retentionSeconds": 60}');
SET ROLE golden_jobs;
SELECT xdb.stop_process('jobs-third');
RESET ROLE;
SELECT process_id, purge_at - closed_at AS kept FROM xdb.process_execution WHERE process_id = 'jobs-third';

-- xdb.purge deletes what has closed, however long it would have been kept; what runs stays.
SELECT xdb.purge('0 seconds') >= 7 AS purged;
SELECT count(*) FROM xdb.processes WHERE process_type LIKE 'Job%' AND closed_at IS NOT NULL;
SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE owner = 'golden_jobs' AND status = 'RUNNING';
SELECT xdb.purge('0 seconds') >= 3 AS purged;
SELECT count(*) FROM xdb.processes WHERE process_type LIKE 'Job%';

-- A key for the shard is hashed in place of the process id.
SET ROLE golden_jobs;
SELECT xdb.start_process('jobs-a', 'JobBySetting', options => '{"shardKey": "k1", "startingState": "Do"}') IS NOT NULL AS started;
SELECT xdb.start_process('jobs-b', 'JobBySetting', options => '{"shardKey": "k1"}') IS NOT NULL AS started;
SELECT xdb.start_process('k1', 'JobBySetting') IS NOT NULL AS started;
SELECT xdb.start_process('jobs-c', 'JobBySetting', options => '{"shardKey": ""}');
RESET ROLE;
SELECT count(DISTINCT shard) AS shards, count(shard_key) AS keys, count(*) AS processes FROM xdb.process_execution WHERE process_type = 'JobBySetting';
SELECT count(*) FROM xdb.task t JOIN xdb.process_execution p USING (execution_id) WHERE p.process_id = 'jobs-a' AND t.shard = p.shard;
SELECT process_id, problem FROM xdb.processes, LATERAL xdb.check_process(process_id) WHERE process_type = 'JobBySetting';

-- Starts with a correlation key are merged into one that has not begun.
CREATE FUNCTION job_add(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN to_jsonb((pending)::numeric + (new)::numeric);
CREATE FUNCTION job_never(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN NULL::jsonb;
CREATE FUNCTION job_fails(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION SQLSTATE ''UM001'' USING MESSAGE = ''not these two''; END';
CREATE FUNCTION job_text(pending jsonb, new jsonb) RETURNS text LANGUAGE sql RETURN 'text';
CREATE FUNCTION job_who(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(ARRAY[current_user::text, current_setting('search_path')]) $$;
CREATE FUNCTION job_hidden(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql RETURN new;
REVOKE EXECUTE ON FUNCTION job_hidden FROM PUBLIC;
CREATE FUNCTION job_ends(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
    PERFORM xdb.stop_process(p.process_id) FROM xdb.processes AS p WHERE p.process_type = 'Job' AND p.status = 'RUNNING'; RETURN new; END $$;
SET ROLE golden_jobs;
CREATE FUNCTION pg_temp.start(key text, input jsonb, merge jsonb DEFAULT NULL, start_at timestamptz DEFAULT NULL) RETURNS uuid LANGUAGE sql AS $$
    SELECT xdb.start_process(NULL, 'Job', input => start.input, start_at => start.start_at,
        options => jsonb_strip_nulls(jsonb_build_object('correlationKey', key, 'merge', merge))) $$;
CREATE FUNCTION pg_temp.pending() RETURNS TABLE (input jsonb, merged bigint) LANGUAGE sql AS $$
    SELECT s.input, (SELECT count(*) FROM xdb.history h WHERE h.execution_id = s.execution_id AND h.event_type = 'StartMerged')
    FROM xdb.state_executions s JOIN xdb.processes p USING (execution_id) WHERE p.process_type = 'Job' AND p.status = 'RUNNING' ORDER BY p.started_at, p.execution_id $$;
-- The words for inputs.
SELECT pg_temp.start('keep', '1') = pg_temp.start('keep', '2') AS merged;
SELECT pg_temp.start('replace', '1') = pg_temp.start('replace', '2', '{"input": "REPLACE"}') AS merged;
SELECT pg_temp.start('nothing', '1') = pg_temp.start('nothing', NULL, '{"input": "REPLACE"}') AS merged;
SELECT pg_temp.start('objects', '{"a": 1, "b": 1.50}') = pg_temp.start('objects', '{"b": {"c": 2}}', '{"input": "MERGE"}') AS merged;
SELECT pg_temp.start('arrays', '[1]') = pg_temp.start('arrays', '[2.0]', '{"input": "MERGE"}') AS merged;
SELECT pg_temp.start('add', '1') = pg_temp.start('add', '2', '{"input": "public.job_add"}') AND pg_temp.start('add', '2.5', '{"input": "public.job_add"}') IS NOT NULL AS merged;
SELECT pg_temp.start('who', '1') = pg_temp.start('who', '2', '{"input": "public.job_who"}') AS merged;
SELECT pg_temp.start('never', '1') = pg_temp.start('never', '2', '{"input": "public.job_never"}') AS merged;
SELECT * FROM pg_temp.pending();
-- What the function does counts: the process that it ends takes no start any more.
SELECT pg_temp.start('ends', '1') = pg_temp.start('ends', '2', '{"input": "public.job_ends"}') AS merged;
SELECT * FROM pg_temp.pending();
-- Functions that are none, or not the caller's, or fail: nothing has happened.
SELECT pg_temp.start('fails', '1') IS NOT NULL AS started;
SELECT pg_temp.start('fails', '2', '{"input": "public.job_fails"}');
SELECT pg_temp.start('fails', '2', '{"input": "public.job_text"}');
SELECT pg_temp.start('fails', '2', '{"input": "public.job_gone"}');
SELECT pg_temp.start('fails', '2', '{"input": "public.job; drop"}');
SELECT pg_temp.start('fails', '2', '{"input": "public.job_hidden"}');
SELECT pg_temp.start('fails', '2', '{"input": "job_add"}');
SELECT pg_temp.start('fails', '2', '{"input": "public.job_add(jsonb"}');
SELECT pg_temp.start('fails', '2', '{"input": "keep"}');
SELECT pg_temp.start('fails', '2', '{"startAt": "SOON"}');
SELECT pg_temp.start('fails', '2', '{"withinSeconds": -1}');
SELECT pg_temp.start('fails', '2', '{"atMostSeconds": 1}');
SELECT pg_temp.start('fails', '2', '{"within": 1}');
-- What would be no start of its own is not merged, and what can't be merged as it says does not begin.
SELECT xdb.start_process(NULL, 'Job', options => '{"correlationKey": "fails", "startingState": "Nowhere"}');
SELECT xdb.start_process(NULL, 'Job', options => '{"correlationKey": "fails", "startingStateConfig": {"executeApiTimeoutSeconds": -1}}');
SELECT pg_temp.start('first', '1', '{"input": "public.job_gone"}');
SELECT pg_temp.start('first', '1', '{"input": "public.job_hidden"}');
SELECT xdb.start_process(NULL, 'Job', options => '{"merge": {}}');
SELECT xdb.start_process('jobs-own', 'Job', options => '{"correlationKey": "k"}');
SELECT xdb.start_process(NULL, 'Job', global_attributes => '{"a": 1}', options => '{"correlationKey": "k"}');
SELECT xdb.start_process(NULL, 'JobHour', options => '{"correlationKey": "k"}');
SELECT * FROM pg_temp.pending();
-- When the merged start is due, with what else was there before.
SELECT count(xdb.stop_process(process_id)) AS stopped FROM xdb.processes WHERE process_type = 'Job' AND status = 'RUNNING';
CREATE FUNCTION pg_temp.due(start_at text, seconds int[], more jsonb DEFAULT '{}') RETURNS TABLE (due int) LANGUAGE plpgsql AS $$
DECLARE
    began CONSTANT timestamptz := date_trunc('second', clock_timestamp()) + interval '1 hour';
    after int;
BEGIN
    FOREACH after IN ARRAY seconds LOOP
        PERFORM pg_temp.start(start_at || more::text, '1', jsonb_build_object('startAt', start_at) || more, began + after * interval '1 second');
    END LOOP;
    RETURN QUERY SELECT extract(epoch FROM (xdb.describe_process(p.process_id) -> 'threads' -> 0 ->> 'nextAttemptAt')::timestamptz - began)::int
        FROM xdb.processes AS p WHERE p.process_type = 'Job' AND p.status = 'RUNNING' ORDER BY 1;
    PERFORM xdb.stop_process(p.process_id) FROM xdb.processes AS p WHERE p.process_type = 'Job' AND p.status = 'RUNNING';
END
$$;
SELECT 'KEEP' AS start_at, due FROM pg_temp.due('KEEP', '{10, 20, 5}');
SELECT 'REPLACE' AS start_at, due FROM pg_temp.due('REPLACE', '{10, 20, 5}');
SELECT 'EARLIEST' AS start_at, due FROM pg_temp.due('EARLIEST', '{10, 20, 5}');
SELECT 'LATEST' AS start_at, due FROM pg_temp.due('LATEST', '{10, 20, 5}');
SELECT 'within' AS start_at, due FROM pg_temp.due('REPLACE', '{10, 19, 29, 38}', '{"withinSeconds": 10}');
SELECT 'at most' AS start_at, due BETWEEN 13 AND 15 AS as_said FROM pg_temp.due('REPLACE', '{10, 20}', '{"atMostSeconds": 3614}');
-- Many at once: starts with the same key are merged in their order.
SELECT count(*), count(DISTINCT id) FROM xdb.start_processes('[
    {"process_type": "Job", "input": [1], "options": {"correlationKey": "b"}}, {"process_type": "Job", "input": [1], "options": {"correlationKey": "a"}},
    {"process_type": "Job", "input": [2], "options": {"correlationKey": "b", "merge": {"input": "MERGE"}}}, {"process_type": "Job", "input": [3]},
    {"process_type": "Job", "input": [4], "options": {"correlationKey": "b", "merge": {"input": "MERGE"}}}]') AS id;
SELECT input FROM pg_temp.pending() ORDER BY input;
SELECT * FROM xdb.start_processes('[{"process_type": "Job", "input": [1], "options": {"correlationKey": "b", "merge": {"input": "public.job_fails"}}}]');
-- Starts of other roles belong to those roles; no role reads the keys.
RESET ROLE;
CREATE ROLE golden_jobs_other;
SELECT xdb.grant_usage('golden_jobs_other');
SET ROLE golden_jobs_other;
SELECT xdb.start_process(NULL, 'Job', input => '[5]', options => '{"correlationKey": "b", "merge": {"input": "MERGE"}}') IS NOT NULL AS started;
SELECT input FROM xdb.state_executions;
SELECT * FROM xdb.correlated_start;
RESET ROLE;
SELECT process_id, problem FROM xdb.processes, LATERAL xdb.check_process(process_id) WHERE process_type = 'Job';
-- What is purged takes its key with it.
SELECT count(xdb.stop_process(process_id)) > 0 AS stopped FROM xdb.processes WHERE process_type LIKE 'Job%' AND status = 'RUNNING';
SELECT xdb.purge('0 seconds') > 0 AS purged;
SELECT count(*) FROM xdb.correlated_start;
