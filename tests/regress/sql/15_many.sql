-- stop_process, retry_now and skip_timer for an array of process ids.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_many;
CREATE ROLE golden_many_other;
SELECT xdb.grant_usage('golden_many'), xdb.grant_usage('golden_many_other');
SELECT xdb.register_worker('many', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Many', 'many', '{"startingState": "First", "states": {"First": {}}, "localQueues": ["box"]}');
SET ROLE golden_many_other;
SELECT xdb.start_process('many-theirs', 'Many') IS NOT NULL AS started;
SET ROLE golden_many;
SELECT count(*) FROM xdb.start_processes((SELECT jsonb_agg(jsonb_build_object('process_id', 'many-' || n, 'process_type', 'Many'))
    FROM generate_series(1, 5) AS n));
SELECT xdb.stop_process('many-2', 'FAIL', 'one alone');

-- A row for each element, in their order: what is not there, is another role's or has ended is passed over.
SELECT * FROM xdb.stop_process(ARRAY['many-3', 'many-1', 'many-2', 'many-theirs', 'nothing', 'many-3', ''], reason => 'together');
SELECT process_id, status, reason FROM xdb.processes WHERE process_id LIKE 'many-%' ORDER BY process_id;
SELECT * FROM xdb.stop_process(ARRAY['many-1', 'many-4'], 'FAIL');
SELECT process_id, status, reason FROM xdb.processes WHERE process_id = 'many-4';
SELECT * FROM xdb.stop_process('{}'::text[]);

-- A literal is one process id.
SELECT xdb.stop_process('{many-5}');

-- Arguments that mean nothing are an error, and nothing is done.
SELECT * FROM xdb.stop_process(ARRAY['many-5', NULL]);
SELECT * FROM xdb.stop_process(NULL::text[]);
SELECT * FROM xdb.stop_process(ARRAY['many-5'], 'KILL');
SELECT * FROM xdb.stop_process(ARRAY['many-5'], NULL);
SELECT * FROM xdb.stop_process(ARRAY['many-5'], reason => repeat('x', 10001));
SELECT * FROM xdb.skip_timer(ARRAY['many-5'], 'First');
SELECT * FROM xdb.skip_timer(ARRAY['many-5'], NULL);
SELECT * FROM xdb.skip_timer(ARRAY['many-5'], 'First-1', '');
SELECT * FROM xdb.retry_now(ARRAY['many-5'], 'First');
SELECT status FROM xdb.processes WHERE process_id = 'many-5';

-- What no process can do is said of each.
SELECT * FROM xdb.skip_timer(ARRAY['many-5', 'many-4', 'nothing'], 'First-1');
SELECT * FROM xdb.skip_timer(ARRAY['many-5', 'nothing'], 'Second-1');
SELECT * FROM xdb.retry_now(ARRAY['many-5', 'many-4', 'nothing', 'many-theirs']);
SELECT * FROM xdb.retry_now(ARRAY['many-5', 'nothing'], 'Second-1');

-- A message that came before a skip which was refused is received all the same, once.
SELECT xdb.publish('many-5', 'box', '1');
SELECT * FROM xdb.skip_timer(ARRAY['many-5'], 'First-1');
SELECT queue_name, payload, received FROM xdb.queue_messages WHERE process_id = 'many-5';
SELECT * FROM xdb.check_process('many-5');

-- An argument is as long as that of a bulk start may be: four times as long as a request.
RESET ROLE;
SET xdb.max_request_size = '64kB';
SELECT count(*) FROM xdb.stop_process(array_fill('many-5'::text, ARRAY[50000]));
RESET xdb.max_request_size;
SELECT count(*), count(*) FILTER (WHERE stopped) AS stopped, count(DISTINCT error_code) AS errors
FROM xdb.stop_process(ARRAY(SELECT 'many-' || n FROM generate_series(1, 5000) AS n));
SELECT process_id, problem FROM xdb.processes, xdb.check_process(process_id, execution_id) WHERE process_id LIKE 'many-%';

-- In a read-only transaction nothing is stopped.
BEGIN READ ONLY;
SELECT * FROM xdb.stop_process(ARRAY['many-theirs']);
ROLLBACK;

SELECT * FROM xdb.stop_process(ARRAY['many-theirs']);
SELECT xdb.unregister_process_type('Many');
SELECT xdb.unregister_worker('many');
SELECT xdb.purge('0') > 0 AS purged;
SELECT xdb.resume_engine();
SELECT xdb.revoke_usage('golden_many'), xdb.revoke_usage('golden_many_other');
DROP ROLE golden_many, golden_many_other;
