-- Messages of global queues as their publishers see them. The engine is paused, so no process consumes any.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_global;
CREATE ROLE golden_global_other;
SELECT xdb.grant_usage('golden_global');
SELECT xdb.grant_usage('golden_global_other');
SET ROLE golden_global;

-- A message is kept although no process waits for it.
SELECT xdb.publish_global('prices', '{"EUR": 1.10}', key => 'EUR');
SELECT xdb.publish_global('prices', '{"USD": 1.00}', key => 'USD', ttl => '1 hour');
SELECT xdb.publish_global('prices');
SELECT xdb.publish_global(queue_name => 'orders', message => 'null', message_id => 'm1');
SELECT process_id, execution_id, queue_name, position, key, message_id, payload, received, expires_at - published_at AS ttl
FROM xdb.queue_messages WHERE process_id IS NULL ORDER BY queue_name, position;

-- It is a row of the publisher's transaction, and so is its id.
BEGIN;
SELECT xdb.publish_global('orders', '"rolled back"', message_id => 'm2');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT xdb.publish_global('orders', '"rolled back"', message_id => 'm2');
ROLLBACK TO s;
SELECT xdb.publish_global('orders', '"kept"', message_id => 'm2');
COMMIT;

-- The same id in the same queue is the same message of a role, whatever its key.
SELECT xdb.publish_global('orders', '"again"', message_id => 'm2');
SELECT xdb.publish_global('orders', '"again"', key => 'k', message_id => 'm2');
SELECT xdb.publish_global('prices', '"another queue"', message_id => 'm2');
SELECT queue_name, position, message_id, payload FROM xdb.queue_messages
WHERE process_id IS NULL AND message_id IS NOT NULL ORDER BY queue_name, position;

-- Many in one transaction keep the order of the calls.
BEGIN;
SELECT count(xdb.publish_global('many', to_jsonb(n))) FROM generate_series(1, 100) AS n;
COMMIT;
SELECT count(*), bool_and(payload = to_jsonb("position")) AS in_order FROM xdb.queue_messages WHERE queue_name = 'many';

-- What is wrong with arguments.
SELECT xdb.publish_global(NULL);
SELECT xdb.publish_global('');
SELECT xdb.publish_global(repeat('x', 1025));
SELECT xdb.publish_global('prices', key => '');
SELECT xdb.publish_global('prices', key => repeat('x', 1025));
SELECT xdb.publish_global('prices', message_id => '');
SELECT xdb.publish_global('prices', ttl => '-1 second');
SELECT xdb.publish_global('prices', ttl => '100000 years');
SELECT xdb.publish_global('prices', to_jsonb(repeat('x', 1024 * 1024)));
BEGIN READ ONLY;
SELECT xdb.publish_global('prices');
ROLLBACK;
-- Names may be as long as that, all at once.
SELECT xdb.publish_global(repeat('q', 1024), key => repeat('k', 1024), message_id => repeat('m', 1024));

-- A message that was not consumed is seen by members of its publisher's role and by administrators.
SET ROLE golden_global_other;
SELECT count(*) FROM xdb.queue_messages;
SELECT count(*) FROM xdb.global_message;
SELECT xdb.publish_global('orders', '"of another"');
-- Its ids are its own.
SELECT xdb.publish_global('orders', '"an id of its own"', message_id => 'm1');
SELECT xdb.publish_global('orders', '"again"', message_id => 'm1');
SELECT queue_name, position, payload FROM xdb.queue_messages;
RESET ROLE;
GRANT golden_global TO golden_global_other;
SET ROLE golden_global_other;
SELECT queue_name, position, payload FROM xdb.queue_messages WHERE queue_name = 'orders' ORDER BY position;
SELECT count(*) FROM xdb.global_message_key;
SELECT count(*) FROM xdb.global_waiter;
UPDATE xdb.global_message SET payload = '1';
RESET ROLE;
SELECT queue_name, position, payload FROM xdb.queue_messages WHERE queue_name = 'orders' ORDER BY position;
CREATE ROLE golden_global_nobody;
SET ROLE golden_global_nobody;
SELECT xdb.publish_global('prices');
RESET ROLE;

-- A definition lists the queues that its states and RPCs may use.
SELECT xdb.register_worker('global', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Global', 'global', '{"globalQueues": ["prices", "orders"]}');
SELECT xdb.register_process_type('Global', 'global', '{"globalQueues": []}');
SELECT xdb.register_process_type('Global', 'global', '{"globalQueues": "prices"}');
SELECT xdb.register_process_type('Global', 'global', '{"globalQueues": [""]}');

SELECT xdb.unregister_process_type('Global');
SELECT xdb.unregister_worker('global');
SELECT xdb.revoke_usage('golden_global');
SELECT xdb.revoke_usage('golden_global_other');
DROP ROLE golden_global, golden_global_other, golden_global_nobody;
SELECT xdb.resume_engine();
