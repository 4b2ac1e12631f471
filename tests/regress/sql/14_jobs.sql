-- Processes as jobs: without an id of their own, in another state, forgotten when they have closed.
SELECT xdb.pause();
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

-- xdb.purge deletes what has closed, however long it would have been kept; what runs stays.
SELECT xdb.purge('0 seconds') >= 8 AS purged;
SELECT count(*) FROM xdb.processes WHERE process_type LIKE 'Job%' AND closed_at IS NOT NULL;
SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE owner = 'golden_jobs' AND status = 'RUNNING';
SELECT xdb.purge('0 seconds') >= 3 AS purged;
SELECT count(*) FROM xdb.processes WHERE process_type LIKE 'Job%';
