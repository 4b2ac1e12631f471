-- Messages and RPCs as a caller sees them. The engine is paused and the worker's port is closed,
-- so messages stay in their queue and calls fail.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_publish;
SELECT xdb.grant_usage('golden_publish');
SELECT xdb.register_worker('publish', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Publish', 'publish', '{
    "startingState": "First",
    "states": {"First": {}},
    "localQueues": ["orders", "returns"],
    "rpcs": {"ask": {"timeoutSeconds": 1}}
}');
SELECT xdb.register_process_type('PublishAny', 'publish', '{"rpcs": {"ask": {}}}');
SELECT xdb.register_process_type('PublishNone', 'publish', '{"rpcs": {}, "localQueues": []}');
SET ROLE golden_publish;
SELECT xdb.start_process('publish-1', 'Publish') IS NOT NULL AS started;
SELECT xdb.start_process('publish-any', 'PublishAny') IS NOT NULL AS started;
SELECT xdb.start_process('publish-none', 'PublishNone') IS NOT NULL AS started;

-- A message is a row of the publisher's transaction.
SELECT xdb.publish('publish-1', 'orders', '{"item": "tea"}');
SELECT xdb.publish('publish-1', 'orders', '{"item": "milk"}', message_id => 'm1');
SELECT xdb.publish('publish-1', 'returns');
BEGIN;
SELECT xdb.publish('publish-1', 'orders', '"rolled back"');
ROLLBACK;
SELECT queue_name, count(*) FROM xdb.queue_messages WHERE process_id = 'publish-1' GROUP BY queue_name ORDER BY queue_name;

-- The same message id in the same queue is the same message.
SELECT xdb.publish('publish-1', 'orders', '{"item": "something else"}', message_id => 'm1');
SELECT xdb.publish('publish-1', 'returns', '{"item": "milk"}', message_id => 'm1');
SELECT queue_name, count(*) FROM xdb.queue_messages WHERE process_id = 'publish-1' GROUP BY queue_name ORDER BY queue_name;
SELECT queue_name, payload FROM xdb.queue_messages WHERE process_id = 'publish-1' AND message_id = 'm1' ORDER BY queue_name;

-- A type that lists no queues takes every queue; one that lists them takes no other.
SELECT xdb.publish('publish-any', 'whatever', '1');
SELECT xdb.publish('publish-1', 'whatever', '1');
SELECT xdb.publish('publish-none', 'whatever', '1');

-- Publishing many in one transaction keeps the order of the calls, and is one commit.
BEGIN;
SELECT count(xdb.publish('publish-any', 'many', to_jsonb(n))) FROM generate_series(1, 100) AS n;
COMMIT;
SELECT count(*), bool_and(payload = to_jsonb("position")) AS in_order
FROM xdb.queue_messages WHERE process_id = 'publish-any' AND queue_name = 'many';

-- An RPC calls the worker while the caller waits. Here no worker listens: the caller gets the error, the process is as before.
SELECT xdb.invoke_rpc('publish-1', 'ask', '{"question": "who?"}', timeout => '5 seconds');
SELECT xdb.invoke_rpc('publish-1', 'ask', idempotency_key => 'k1', timeout => '5 seconds');
SELECT xdb.invoke_rpc('publish-1', 'unlisted', timeout => '5 seconds');
SELECT xdb.invoke_rpc('publish-none', 'ask', timeout => '5 seconds');
SELECT xdb.describe_process('publish-1') ->> 'status' AS status;

-- A failed RPC leaves its key free: the second call with it is made, and fails again.
SELECT xdb.invoke_rpc('publish-1', 'ask', idempotency_key => 'k1', timeout => '5 seconds');

-- An error in a savepoint is not the end of the transaction.
BEGIN;
SELECT xdb.publish('publish-1', 'orders', '"before"', message_id => 'm2');
SAVEPOINT ask;
SELECT xdb.invoke_rpc('publish-1', 'ask', timeout => '5 seconds');
ROLLBACK TO ask;
SELECT xdb.publish('publish-1', 'orders', '"after"', message_id => 'm3');
COMMIT;
SELECT payload FROM xdb.queue_messages WHERE process_id = 'publish-1' AND message_id IN ('m2', 'm3') ORDER BY message_id;

-- A closed process takes nothing more.
SELECT xdb.stop_process('publish-1', reason => 'closing time');
SELECT xdb.publish('publish-1', 'orders', '"late"');
SELECT xdb.publish('publish-1', 'orders', '"late"', message_id => 'm1');
RESET ROLE;
