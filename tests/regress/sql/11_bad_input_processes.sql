-- A tour of bad input: what is done to a process, and administration. Each row is what was given, and what came of it:
-- an error with its SQLSTATE, or what the function gave.
\set SHOW_CONTEXT never
\pset format unaligned
\pset tuples_only on
SELECT xdb.pause_engine();
CREATE FUNCTION told(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    result text; state text; message text; detail text; hint text;
BEGIN
    EXECUTE statement INTO result;
    RETURN coalesce(nullif(result, ''), 'accepted');
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(' / ', state || ' ' || message, nullif(detail, ''), nullif(hint, ''));
END $$;

CREATE ROLE golden_bad_processes;
SELECT xdb.grant_usage('golden_bad_processes');
SELECT xdb.register_worker('bad_processes', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('BadProcess', 'bad_processes', '{"startingState": "First", "states": {"First": {}}, "localQueues": ["known"],
    "localAttributes": ["known"], "rpcs": {"known": {}, "it''s \"odd\"": null}}');
SELECT xdb.register_process_type('BadOpen', 'bad_processes', '{"startingState": "First", "states": {"First": {}}}');
SET ROLE golden_bad_processes;
SELECT xdb.start_process('known', 'BadProcess') IS NOT NULL AND xdb.start_process('open', 'BadOpen') IS NOT NULL;

-- process_id: the same for all.
SELECT id, call, told(format('SELECT ' || call, id)) FROM (VALUES (NULL), (''), ('Known'), ('known '), ('../known'), ('it''s "odd"; --'), ('%')) AS i (id),
    (VALUES ('xdb.publish(%L, ''known'')'), ('xdb.stop_process(%L)'), ('xdb.describe_process(%L)'), ('xdb.wait_for_process(%L, ''0'')'),
        ('xdb.wait_for_state(%L, ''First-1'', ''0'')'), ('xdb.get_local_attributes(%L)'), ('xdb.set_local_attributes(%L, ''{}'')'),
        ('xdb.skip_timer(%L, ''First-1'')'), ('xdb.retry_now(%L)'), ('xdb.pause_process(%L)'), ('xdb.resume_process(%L)'), ('xdb.invoke_rpc(%L, ''known'')'), ('xdb.check_process(%L)')) AS c (call)
ORDER BY call COLLATE "C", id COLLATE "C";
SELECT told('SELECT xdb.describe_process(repeat(''x'', 10000))');
SELECT told('SELECT xdb.publish(repeat(''x'', 1025), ''known'')');

-- execution_id.
SELECT id, told(format('SELECT xdb.describe_process(%L, %L)', 'known', id)) ~ '^{' AS described, told(format('SELECT xdb.stop_process(%L, execution_id => %L)', 'open', id))
FROM (VALUES ('00000000-0000-0000-0000-000000000000'), ('ffffffff-ffff-ffff-ffff-ffffffffffff'), ('known'), ('')) AS v (id);
SELECT call, told(format('SELECT ' || call, 'known', (SELECT execution_id FROM xdb.processes WHERE process_id = 'open'))) FROM
    (VALUES ('xdb.publish(%L, ''known'', execution_id => %L)'), ('xdb.stop_process(%L, execution_id => %L)'), ('xdb.describe_process(%L, %L)'), ('xdb.wait_for_process(%L, ''0'', %L)'),
        ('xdb.wait_for_state(%L, ''First-1'', ''0'', %L)'), ('xdb.get_local_attributes(%L, NULL, %L)'), ('xdb.set_local_attributes(%L, ''{}'', %L)'),
        ('xdb.skip_timer(%L, ''First-1'', NULL, %L)'), ('xdb.retry_now(%L, NULL, %L)'), ('xdb.pause_process(%L, ''WAIT'', NULL, NULL, %L)'), ('xdb.resume_process(%L, %L)'), ('xdb.invoke_rpc(%L, ''known'', execution_id => %L)'), ('xdb.check_process(%L, %L)')) AS c (call);

-- publish: the queue, the message and its id.
SELECT queue, told(format('SELECT xdb.publish(%L, %L)', 'known', queue)) FROM (VALUES (NULL), (''), ('Known'), ('known '), ('select'), ('"known"')) AS v (queue);
SELECT told('SELECT xdb.publish(''known'', repeat(''x'', 10000))'), told('SELECT xdb.publish(''open'', repeat(''x'', 1025))'), told('SELECT xdb.publish(''open'', repeat(''x'', 1024), message_id => repeat(''y'', 1024))');
SELECT message, told(format('SELECT xdb.publish(%L, %L, %L)', 'known', 'known', message)) FROM (VALUES (NULL), ('null'), (''), ('{'), ('"\u0000"'), ('"\udc00"'), ('1e131072'), ('-0'), ('1e400')) AS v (message);
SELECT told('SELECT xdb.publish(''known'', ''known'', (repeat(''['', 129) || repeat('']'', 129))::jsonb)'), told('SELECT xdb.publish(''known'', ''known'', to_jsonb(repeat(''x'', 1048575)))'),
    told('SELECT xdb.publish(''known'', ''known'', to_jsonb(repeat(''x'', 1048574)))');
SELECT id, told(format('SELECT xdb.publish(%L, %L, %L, %L)', 'known', 'known', 1, id)) FROM (VALUES (NULL), (''), (' '), ('it''s "odd"; --'), ('it''s "odd"; --')) AS v (id);
SELECT told('SELECT xdb.publish(''known'', ''known'', ''1'', repeat(''x'', 1025))');
SELECT left(queue_name, 20), left(message_id, 20), length(payload::text), count(*) FROM xdb.queue_messages WHERE process_id IN ('known', 'open')
GROUP BY 1, 2, 3 ORDER BY left(queue_name, 20) COLLATE "C", left(message_id, 20) COLLATE "C", 3;

-- stop_process: the word and the reason.
SELECT word, told(format('SELECT xdb.stop_process(%L, %L)', 'known', word)) FROM (VALUES (NULL), (''), ('terminate'), ('KILL'), ('TERMINATE; --')) AS v (word);
SELECT left(told(format('SELECT xdb.stop_process(%L, %L)', 'known', repeat('x', 100000))), 160);
SELECT told('SELECT xdb.stop_process(''known'', reason => repeat(''x'', 10001))'), told('SELECT xdb.stop_process(''known'', ''FAIL'', repeat(''é'', 5001))');

-- Waiting: the timeout, and the state.
SELECT timeout, told(format('SELECT xdb.wait_for_process(%L, %L)', 'known', timeout)), told(format('SELECT xdb.wait_for_state(%L, %L, %L)', 'known', 'First-1', timeout)) FROM (VALUES
    (NULL), ('-1 microsecond'), ('1 hour 1 microsecond'), ('1 month'), ('178956970 years'), ('178956971 years'), ('1 month -31 days'), ('soon'), ('0'), ('1 microsecond'), ('1 month -30 days')
) AS v (timeout);
SELECT state, told(format('SELECT xdb.wait_for_state(%L, %L, %L)', 'known', state, '0')), told(format('SELECT xdb.skip_timer(%L, %L)', 'known', state)), told(format('SELECT xdb.retry_now(%L, %L)', 'known', state)) FROM (VALUES
    (NULL), (''), ('First'), ('First-'), ('-1'), ('First-0'), ('First--1'), ('First-1.0'), ('First-01'), ('First- 1'), ('First-4294967296'), ('First-2147483648'), ('First-99999999999999999999'), ('first-1'), ('it''s "odd"-1')
) AS v (state);
SELECT told('SELECT xdb.wait_for_state(''known'', repeat(''x'', 10000) || ''-1'', ''0'')');
SELECT command, told(format('SELECT xdb.skip_timer(%L, %L, %L)', 'known', 'First-1', command)) FROM (VALUES (NULL), (''), ('t'), ('it''s "odd"')) AS v (command);
SELECT told('SELECT xdb.skip_timer(''known'', ''First-1'', repeat(''x'', 10000))');

-- Local attributes.
SELECT keys, told(format('SELECT xdb.get_local_attributes(%L, %L)', 'known', keys)) FROM (VALUES
    (NULL), ('{}'), ('{NULL}'), ('{""}'), ('{known,known}'), ('{{known,b},{c,d}}'), ('[5:6]={known,b}'), ('{known'), ('{"it''s \"odd\""}')
) AS v (keys);
SELECT attributes, told(format('SELECT xdb.set_local_attributes(%L, %L)', 'known', attributes)) FROM (VALUES
    (NULL), ('null'), ('{}'), ('[]'), ('"known"'), ('1'), ('{"": 1}'), ('{"Known": 1}'), ('{"known": null}'), ('{"known": 1, "b": 2}'), ('{"known": -0}'), ('{"known": 123456789012345678901234567890.10}')
) AS v (attributes);
SELECT told('SELECT xdb.set_local_attributes(''open'', jsonb_build_object(repeat(''x'', 1025), 1))'), told('SELECT xdb.set_local_attributes(''known'', jsonb_build_object(''known'', repeat(''x'', 1048575)))'),
    told('SELECT xdb.set_local_attributes(''known'', jsonb_build_object(''known'', (repeat(''['', 129) || repeat('']'', 129))::jsonb))');
SELECT xdb.get_local_attributes('known');

-- invoke_rpc. No worker listens at the URL; invalid arguments are refused before the call.
SELECT rpc, told(format('SELECT xdb.invoke_rpc(%L, %L)', 'known', rpc)) FROM (VALUES (NULL), (''), ('Known'), ('known '), ('../known')) AS v (rpc);
SELECT left(told('SELECT xdb.invoke_rpc(''known'', repeat(''x'', 1025))'), 160);
SELECT told('SELECT xdb.invoke_rpc(''known'', ''known'', to_jsonb(repeat(''x'', 1048575)))'), told('SELECT xdb.invoke_rpc(''known'', ''known'', (repeat(''['', 129) || repeat('']'', 129))::jsonb)');
SELECT timeout, told(format('SELECT xdb.invoke_rpc(%L, %L, timeout => %L)', 'known', 'known', timeout)) ~ 'connect' AS called, told(format('SELECT xdb.invoke_rpc(%L, %L, timeout => %L)', 'known', 'known', timeout)) !~ 'connect' AS refused FROM (VALUES
    (NULL), ('0'), ('-1 s'), ('1 hour'), ('1 hour 1 microsecond'), ('178956970 years'), ('2147483647 days'), ('1 month -31 days')
) AS v (timeout);
SELECT timeout, told(format('SELECT xdb.invoke_rpc(%L, %L, timeout => %L)', 'known', 'known', timeout)) FROM (VALUES ('0'), ('-1 s'), ('1 month -31 days'), ('1 hour 1 microsecond'), ('178956970 years')) AS v (timeout);
SELECT key, told(format('SELECT xdb.invoke_rpc(%L, %L, idempotency_key => %L)', 'known', 'known', key)) FROM (VALUES ('')) AS v (key);
SELECT told('SELECT xdb.invoke_rpc(''known'', ''known'', idempotency_key => repeat(''x'', 1025))');
SELECT told(format('SELECT xdb.invoke_rpc(%L, %L, idempotency_key => %L)', 'known', 'it''s "odd"', E'two\nlines \r\n 🚀')) ~ '^XD010 RPC "it''s "odd"" failed in its worker';

-- The process has stood all of it.
SELECT problem FROM xdb.check_process('known') UNION ALL SELECT problem FROM xdb.check_process('open');
SELECT xdb.describe_process('known') -> 'status';

-- Administration: only for granted roles, and with its own arguments.
SELECT call, told('SELECT ' || call) FROM (VALUES ('xdb.purge(''0'')'), ('xdb.pause_engine()'), ('xdb.resume_engine()'), ('state FROM xdb.status()'), ('xdb.register_worker(NULL, NULL)'), ('xdb.unregister_worker(NULL)'),
    ('xdb.register_process_type(NULL, NULL, NULL)'), ('xdb.unregister_process_type(NULL)'), ('xdb.grant_usage(''golden_bad_processes'', true)'), ('xdb.revoke_usage(''golden_bad_processes'')')) AS v (call);
RESET ROLE;
SELECT age, told(format('SELECT xdb.purge(%L)', age)) FROM (VALUES (NULL), ('-1 s'), ('1 month -31 days'), ('178956970 years'), ('2147483647 days'), ('1000000 years'), ('300000 years'), ('soon'), ('')) AS v (age);
SELECT role, told(format('SELECT xdb.grant_usage(%L)', role)), told(format('SELECT xdb.revoke_usage(%L)', role)) FROM (VALUES (NULL), (''), ('nobody_here'), ('0'), ('4294967295'), ('public'), ('"golden_bad_processes'), ('golden_bad_processes; --')) AS v (role);
SELECT told('SELECT xdb.grant_usage(''golden_bad_processes'', NULL)');
SELECT told('SELECT xdb.revoke_usage(current_user::regrole)');

SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE owner = 'golden_bad_processes' AND status = 'RUNNING';
SELECT xdb.unregister_process_type('BadProcess'), xdb.unregister_process_type('BadOpen'), xdb.unregister_worker('bad_processes');
SELECT xdb.purge('0') > 0;
SELECT xdb.revoke_usage('golden_bad_processes');
DROP ROLE golden_bad_processes;
DROP FUNCTION told;
