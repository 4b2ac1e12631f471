-- A worker and a process type belong to the role that registered them.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();
CREATE ROLE golden_dev;
CREATE ROLE golden_dev_member IN ROLE golden_dev;
CREATE ROLE golden_rival;
CREATE ROLE golden_ops;
CREATE ROLE golden_plain;
SELECT xdb.grant_usage('golden_dev', deployer => true), xdb.grant_usage('golden_rival', deployer => true),
    xdb.grant_usage('golden_ops', operator => true), xdb.grant_usage('golden_plain');

SET ROLE golden_dev;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Dev', 'dev', '{"localQueues": ["box"]}');

-- No other role replaces or removes them, or names the worker: neither another deployer, nor an operator.
SET ROLE golden_rival;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:2');
SELECT xdb.unregister_worker('dev');
SELECT xdb.register_process_type('Trap', 'dev', '{}');
SELECT xdb.register_worker('rival', 'http://127.0.0.1:3');
SELECT xdb.register_process_type('Dev', 'rival', '{}');
SELECT xdb.unregister_process_type('Dev');
SET ROLE golden_ops;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:2');
SELECT xdb.unregister_process_type('Dev');
-- A deployer is no operator.
SET ROLE golden_rival;
SELECT xdb.pause_engine();
SELECT count(*) FROM xdb.status();

-- A member of the owner does, and a superuser, and it stays the owner's.
SET ROLE golden_dev_member;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:4');
SELECT xdb.register_process_type('Dev', 'dev', '{"localQueues": ["box", "letters"]}');
RESET ROLE;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:5', max_concurrency => 7);

-- All roles may see the names. The rest is for members of the owner and for operators.
SET ROLE golden_rival;
SELECT name, url, max_concurrency, registered_at, in_flight, calls, failures, breaker, owner FROM xdb.workers WHERE name = 'dev';
SELECT process_type, worker, owner, definition, version, registered_at FROM xdb.process_types WHERE process_type = 'Dev';
SELECT count(*) FROM xdb.process_type WHERE process_type = 'Dev';
SET ROLE golden_plain;
SELECT name, url IS NOT NULL AS url, in_flight, owner FROM xdb.workers WHERE name IN ('dev', 'rival') ORDER BY 1;
SELECT process_type, definition IS NOT NULL AS definition, owner FROM xdb.process_types WHERE process_type = 'Dev';
SELECT name, owner, in_flight, breaker FROM xdb.registered_workers() WHERE name IN ('dev', 'rival') ORDER BY 1;
SELECT process_type, worker, owner, pause_mode FROM xdb.registered_types() WHERE process_type = 'Dev';
SET ROLE golden_dev_member;
SELECT name, owner, in_flight, breaker FROM xdb.registered_workers() WHERE name IN ('dev', 'rival') ORDER BY 1;
SELECT name, url, max_concurrency, registered_at IS NOT NULL AS registered, in_flight, calls, failures, average_latency, breaker, owner
FROM xdb.workers WHERE name IN ('dev', 'rival') ORDER BY 1;
SELECT process_type, worker, owner, definition -> 'localQueues' AS queues, version, registered_at IS NOT NULL AS registered
FROM xdb.process_types WHERE process_type = 'Dev';
SET ROLE golden_ops;
SELECT name, url, in_flight, owner FROM xdb.workers WHERE name IN ('dev', 'rival') ORDER BY 1;
SELECT process_type, definition IS NOT NULL AS definition FROM xdb.process_types WHERE process_type = 'Dev';
RESET ROLE;

-- What processes of all roles are in is for the same.
SET ROLE golden_rival;
SELECT * FROM xdb.process_type_usage('Dev');
SET ROLE golden_plain;
SELECT * FROM xdb.process_type_usage('Dev');
SELECT * FROM xdb.process_type_usage('Nothing');
SELECT * FROM xdb.process_type_usage(NULL);
SET ROLE golden_dev_member;
SELECT * FROM xdb.process_type_usage('Dev');
SET ROLE golden_ops;
SELECT * FROM xdb.process_type_usage('Dev');
RESET ROLE;

-- A function that registers with its owner's rights registers as that.
GRANT CREATE ON SCHEMA public TO golden_dev;
SET ROLE golden_dev;
CREATE FUNCTION dev_registers(queue text) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT xdb.register_process_type('Dev', 'dev', jsonb_build_object('localQueues', jsonb_build_array(queue)));
    SELECT xdb.register_process_type('Of a function', 'dev', '{}')
$$;
SET ROLE golden_plain;
SELECT dev_registers('elsewhere');
SELECT process_type, owner FROM xdb.process_types WHERE worker = 'dev' ORDER BY 1;
RESET ROLE;

-- A role that maps a table may read and update its mapped columns. INSERT is for roles that start processes.
CREATE TABLE owned_rows (id text PRIMARY KEY, note text, other text);
SET ROLE golden_rival;
SELECT xdb.register_process_type('Trap', 'rival',
    '{"globalAttributes": [{"table": "public.owned_rows", "primaryKey": "id", "attributes": {"note": "note"}}]}');
RESET ROLE;
GRANT SELECT ON owned_rows TO golden_rival;
SET ROLE golden_rival;
SELECT xdb.register_process_type('Trap', 'rival',
    '{"globalAttributes": [{"table": "public.owned_rows", "primaryKey": "id", "attributes": {"note": "note"}}]}');
RESET ROLE;
GRANT UPDATE (note) ON owned_rows TO golden_rival;
SET ROLE golden_rival;
SELECT xdb.register_process_type('Trap', 'rival',
    '{"globalAttributes": [{"table": "public.owned_rows", "primaryKey": "id", "attributes": {"note": "note"}}]}');
SELECT xdb.register_process_type('Trap', 'rival',
    '{"globalAttributes": [{"table": "public.owned_rows", "primaryKey": "id", "attributes": {"note": "note", "other": "other"}}]}');

-- Registrations from before owners existed belong to superusers only, until they get an owner.
RESET ROLE;
UPDATE xdb.worker SET owner = 0, owner_name = '' WHERE name = 'dev';
UPDATE xdb.process_type SET owner = 0, owner_name = '' WHERE process_type = 'Dev';
SET ROLE golden_dev;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:6');
SELECT xdb.unregister_process_type('Dev');
SELECT name, url, owner FROM xdb.workers WHERE name = 'dev';
SELECT xdb.reassign_owned('-', 'golden_dev');
RESET ROLE;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:6');
SELECT name, owner FROM xdb.workers WHERE name = 'dev';
SELECT xdb.reassign_owned('-', 'golden_dev');
SET ROLE golden_dev;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:7');
SELECT xdb.register_process_type('Dev', 'dev', '{"localQueues": ["box"]}');

-- What one role owns goes to another: by a member of both, or by a superuser.
SELECT xdb.start_process('owned', 'Dev') IS NOT NULL AS started;
SELECT xdb.start_process('owned-ended', 'Dev') IS NOT NULL AS started;
SELECT xdb.stop_process('owned-ended');
SELECT xdb.publish('owned', 'box', '1');
SELECT xdb.publish_global('owned', '1', message_id => 'once');
SELECT xdb.reassign_owned('golden_dev', 'golden_rival');
SET ROLE golden_ops;
SELECT xdb.reassign_owned('golden_dev', 'golden_rival');
RESET ROLE;
SELECT xdb.reassign_owned('golden_dev', NULL);
SELECT xdb.reassign_owned(NULL, 'golden_dev');
SELECT xdb.reassign_owned('golden_dev', '-');
SELECT xdb.reassign_owned('golden_dev', 'golden_nobody_is_that');
-- A superuser's processes don't run here.
SELECT xdb.reassign_owned('golden_dev', current_user::regrole);
SELECT count(*) FROM xdb.processes WHERE owner = 'golden_dev';
CREATE ROLE golden_dev_both IN ROLE golden_dev, golden_rival;
SET ROLE golden_dev_both;
SELECT xdb.reassign_owned('golden_dev', 'golden_rival');
SELECT process_id, owner, status FROM xdb.processes WHERE process_id LIKE 'owned%' ORDER BY 1;
SELECT name, owner FROM xdb.workers WHERE name = 'dev';
SELECT process_type, owner FROM xdb.process_types WHERE worker = 'dev' ORDER BY 1;
SET ROLE golden_dev;
SELECT xdb.describe_process('owned');
SELECT xdb.register_worker('dev', 'http://127.0.0.1:8');
SET ROLE golden_rival;
SELECT xdb.describe_process('owned') -> 'owner' AS owner;
SELECT xdb.register_worker('dev', 'http://127.0.0.1:9');
SELECT * FROM xdb.check_process('owned');
-- Messages that were not consumed move too, if a superuser or operator does it: the engine waits for rows that are being moved.
SELECT count(*) FROM xdb.queue_messages WHERE queue_name = 'owned';
RESET ROLE;
SELECT xdb.reassign_owned('golden_dev', 'golden_rival');
SET ROLE golden_rival;
-- With the ids that were used for them.
SELECT xdb.publish_global('owned', '2', message_id => 'once');
SELECT count(*) FROM xdb.queue_messages WHERE queue_name = 'owned';
RESET ROLE;

-- Processes of a dropped owner show that it is missing. They can be reassigned too.
CREATE ROLE golden_leaver IN ROLE golden_plain;
SET ROLE golden_leaver;
SELECT xdb.start_process('left', 'Dev') IS NOT NULL AS started;
SELECT xdb.describe_process('left') ? 'ownerProblem' AS has_problem;
RESET ROLE;
DROP ROLE golden_leaver;
SET ROLE golden_ops;
SELECT xdb.describe_process('left') -> 'ownerProblem' AS problem;
RESET ROLE;
SELECT xdb.reassign_owned('-', 'golden_rival');
SET ROLE golden_rival;
SELECT xdb.describe_process('left') ? 'ownerProblem' AS has_problem, xdb.describe_process('left') -> 'owner' AS owner;
RESET ROLE;
-- A role that revokes the usage of XDB gets a warning.
BEGIN;
SELECT xdb.revoke_usage('golden_rival');
ROLLBACK;
SET ROLE golden_rival;
SELECT xdb.stop_process('left'), xdb.stop_process('owned');
SELECT xdb.unregister_process_type('Dev'), xdb.unregister_process_type('Of a function'), xdb.unregister_process_type('Trap');
SELECT xdb.unregister_worker('dev'), xdb.unregister_worker('rival');
RESET ROLE;
DROP TABLE owned_rows;
DROP FUNCTION dev_registers(text);
REVOKE CREATE ON SCHEMA public FROM golden_dev;
SELECT xdb.purge('0') > 0 AS purged;
DELETE FROM xdb.global_message WHERE queue_name = 'owned';
SELECT xdb.revoke_usage('golden_dev'), xdb.revoke_usage('golden_rival'), xdb.revoke_usage('golden_ops'), xdb.revoke_usage('golden_plain');
DROP ROLE golden_dev, golden_dev_member, golden_dev_both, golden_rival, golden_ops, golden_plain;
