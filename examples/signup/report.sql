-- Shows the results of the sign-ups, with ordinary SQL, as the application's role.

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
WITH state AS (
    SELECT execution_id, details ->> 'seq' AS seq, details ->> 'stateExecutionId' AS name
    FROM xdb.history WHERE event_type = 'StateStarted'
), keys AS (
    SELECT h.execution_id, h.event_id, string_agg(k.key || ' = ' || k.value, ', ' ORDER BY k.key) AS list
    FROM xdb.history h, jsonb_each(h.details -> 'attributes') k GROUP BY 1, 2
)
SELECT to_char(extract(epoch FROM h.event_time - min(h.event_time) OVER ()), '990.000') AS "after s",
       h.process_id,
       CASE h.event_type
           WHEN 'ProcessStarted' THEN 'started'
           WHEN 'LocalAttributesWritten' THEN 'local attribute ' || keys.list
           WHEN 'GlobalAttributesWritten' THEN 'table users: ' || keys.list
           WHEN 'StateStarted' THEN 'state ' || state.name || ' begins'
           WHEN 'WaitStarted' THEN state.name || ' waits for its timer or a message on queue verified'
           WHEN 'CommandCompleted' THEN state.name
               || CASE WHEN h.details ? 'messages' THEN ' takes the message' ELSE ': the timer fires' END
           WHEN 'MessagesReceived' THEN 'a message arrives on queue ' || (h.details #>> '{messages,0,queue}')
           WHEN 'StateCompleted' THEN 'state ' || state.name || ' is done'
           WHEN 'RpcApplied' THEN 'RPC ' || (h.details ->> 'rpcName') || ' is applied'
           WHEN 'ResultGiven' THEN 'result ' || (h.details ->> 'output')
           WHEN 'ProcessClosed' THEN 'closed: ' || (h.details ->> 'status')
       END AS "what happened"
FROM xdb.history h
LEFT JOIN state ON state.execution_id = h.execution_id AND state.seq = h.details ->> 'seq'
LEFT JOIN keys ON keys.execution_id = h.execution_id AND keys.event_id = h.event_id
WHERE h.event_type NOT IN ('WaitCompleted', 'CompletionRequested')
ORDER BY h.process_id, h.event_id;
