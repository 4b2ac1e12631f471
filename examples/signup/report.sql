-- What can be seen afterwards, with ordinary SQL, as the application's role.

\pset footer off
\pset border 1
\pset null '-'

\echo 'The users, in the table of the application:'
SELECT user_id, form ->> 'email' AS email, status, source FROM users ORDER BY user_id;

\echo 'The processes, with their results and local attributes:'
SELECT p.process_id,
       p.outcome ->> 'status' AS status,
       p.outcome -> 'result' AS result,
       xdb.get_local_attributes(p.process_id) AS local_attributes
FROM (SELECT id AS process_id, xdb.wait_for_process(id, timeout => '5 seconds') AS outcome
      FROM unnest(ARRAY['signup-alice', 'signup-bob']) AS id) AS p
ORDER BY p.process_id;

\echo 'The steps they took:'
SELECT process_id, state_execution_id, status,
       to_char(extract(epoch FROM started_at - min(started_at) OVER ()), 'FM990.000') AS "from s",
       to_char(extract(epoch FROM ended_at - min(started_at) OVER ()), 'FM990.000') AS "to s"
FROM xdb.state_executions
ORDER BY process_id, started_at, state_execution_id;

\echo 'The time line, from the history of both:'
SELECT to_char(extract(epoch FROM event_time - min(event_time) OVER ()), '990.000') AS "after s",
       process_id,
       event_type,
       coalesce(details ->> 'stateExecutionId', '') AS state
FROM xdb.history
ORDER BY event_time, process_id, event_id;
