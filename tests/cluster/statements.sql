-- xdb::store::adopt::MESSAGE_IDS
PREPARE statement AS
WITH gone AS (DELETE FROM xdb.global_message_key t WHERE ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner)) RETURNING t.*) INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) SELECT g.queue_name, g.message_id, g.published_at, r.oid, g.owner_name FROM gone g JOIN pg_catalog.pg_roles r ON r.rolname = g.owner_name ORDER BY 1, 2, 4 ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::adopt::MISSING_OWNERS
PREPARE statement AS
SELECT DISTINCT t.owner_name FROM xdb.process_execution t WHERE t.status = 'RUNNING' AND ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner)) AND NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name) ORDER BY 1 LIMIT 20;
DEALLOCATE statement;

-- xdb::store::adopt::MISSING_TYPES
PREPARE statement AS
SELECT p.process_type, pg_catalog.count(*) AS running FROM xdb.process_execution p WHERE p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type t WHERE t.type_id = p.type_id) GROUP BY p.process_type ORDER BY p.process_type LIMIT 20;
DEALLOCATE statement;

-- xdb::store::adopt::NUMBERS
PREPARE statement AS
SELECT pg_catalog.setval('xdb.inbox_inbox_id_seq'::pg_catalog.regclass, m.last) FROM (SELECT pg_catalog.max(inbox_id) AS last FROM xdb.inbox) m, xdb.inbox_inbox_id_seq s WHERE m.last >= s.last_value UNION ALL SELECT pg_catalog.setval('xdb.worker_worker_id_seq'::pg_catalog.regclass, m.last) FROM (SELECT pg_catalog.max(worker_id) AS last FROM xdb.worker) m, xdb.worker_worker_id_seq s WHERE m.last >= s.last_value UNION ALL SELECT pg_catalog.setval('xdb.process_type_type_id_seq'::pg_catalog.regclass, m.last) FROM (SELECT pg_catalog.max(type_id) AS last FROM xdb.process_type) m, xdb.process_type_type_id_seq s WHERE m.last >= s.last_value UNION ALL SELECT pg_catalog.setval('xdb.mapping_id_seq'::pg_catalog.regclass, m.last) FROM (SELECT pg_catalog.max(mapping_id) AS last FROM xdb.mapped_table) m, xdb.mapping_id_seq s WHERE m.last >= s.last_value UNION ALL SELECT pg_catalog.setval('xdb.global_message_number_seq'::pg_catalog.regclass, m.last) FROM (SELECT pg_catalog.max(number) AS last FROM xdb.global_message) m, xdb.global_message_number_seq s WHERE m.last >= s.last_value UNION ALL SELECT pg_catalog.setval('xdb.global_waiter_wait_order_seq'::pg_catalog.regclass, m.last) FROM (SELECT pg_catalog.max(wait_order) AS last FROM xdb.global_waiter) m, xdb.global_waiter_wait_order_seq s WHERE m.last >= s.last_value;
DEALLOCATE statement;

-- xdb::store::adopt::OWNERS
PREPARE statement AS
UPDATE xdb.process_execution t SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name), 0) WHERE ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::adopt::PUBLISHERS
PREPARE statement AS
UPDATE xdb.global_message t SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name), 0) WHERE ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::adopt::PULL_ROLES
PREPARE statement AS
UPDATE xdb.worker t SET role = (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.role_name) WHERE t.role_name IS NOT NULL AND ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.role));
DEALLOCATE statement;

-- xdb::store::adopt::TYPES
PREPARE statement AS
UPDATE xdb.process_type t SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name), 0) WHERE ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::adopt::WORKERS
PREPARE statement AS
UPDATE xdb.worker t SET owner = COALESCE((SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = t.owner_name), 0) WHERE ($1::bool OR NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::app_functions::KIND
PREPARE statement AS
SELECT p.prokind = 'f' AND NOT p.proretset AS is_plain, p.prorettype = 'jsonb'::pg_catalog.regtype OR $3 AND p.prorettype = 'void'::pg_catalog.regtype AS fits, pg_catalog.starts_with(n.nspname::text, 'pg_temp') AS is_temporary, pg_catalog.has_function_privilege($2::oid, p.oid, 'EXECUTE') AND pg_catalog.has_schema_privilege($2::oid, n.oid, 'USAGE') AS may_execute FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = $1::oid;
DEALLOCATE statement;

-- xdb::store::app_functions::MERGING
PREPARE statement AS
SELECT p.oid, p.prokind = 'f' AND NOT p.proretset AND p.prorettype = 'pg_catalog.jsonb'::pg_catalog.regtype AS fits, pg_catalog.has_function_privilege(p.oid, 'EXECUTE') AS may_execute FROM pg_catalog.pg_proc p WHERE p.oid = pg_catalog.to_regprocedure($1);
DEALLOCATE statement;

-- xdb::store::app_functions::NAMED
PREPARE statement AS
SELECT pg_catalog.cardinality(a.parts) AS parts, pg_catalog.quote_ident(a.parts[1]) || '.' || pg_catalog.quote_ident(a.parts[2]) AS name FROM (SELECT pg_catalog.parse_ident($1) AS parts) AS a;
DEALLOCATE statement;

-- xdb::store::attribute::OF_EXECUTIONS
PREPARE statement AS
SELECT a.execution_id, a.key, a.value FROM pg_catalog.unnest($1::uuid[]) AS i (id) JOIN xdb.local_attribute a ON a.execution_id = i.id;
DEALLOCATE statement;

-- xdb::store::attribute::SIZES
PREPARE statement AS
SELECT pg_catalog.count(*) AS attributes, COALESCE(pg_catalog.sum(l.bytes), 0)::int8 AS bytes, pg_catalog.count(*) FILTER (WHERE l.replaced) AS replaced, COALESCE(pg_catalog.sum(l.bytes) FILTER (WHERE l.replaced), 0)::int8 AS replaced_bytes FROM (SELECT pg_catalog.octet_length(a.key) + pg_catalog.octet_length(a.value::text) AS bytes, a.key = ANY ($2) AS replaced FROM xdb.local_attribute a WHERE a.execution_id = $1) l;
DEALLOCATE statement;

-- xdb::store::attribute::VERSIONED
PREPARE statement AS
SELECT a.execution_id, a.key, a.value, pg_catalog.concat_ws(':', a.xmin, a.ctid) AS version FROM pg_catalog.unnest($1::uuid[]) AS i (id) JOIN xdb.local_attribute a ON a.execution_id = i.id;
DEALLOCATE statement;

-- xdb::store::attribute::VERSIONS
PREPARE statement AS
SELECT a.execution_id, a.key, pg_catalog.concat_ws(':', a.xmin, a.ctid) AS version FROM xdb.local_attribute a WHERE a.execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::attribute::WRITE
PREPARE statement AS
INSERT INTO xdb.local_attribute (execution_id, key, value) SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[])::jsonb ON CONFLICT (execution_id, key) DO UPDATE SET value = excluded.value;
DEALLOCATE statement;

-- xdb::store::catalog::DESCRIBE
PREPARE statement AS
SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind = 'r' AS is_ordinary, c.relhasrules AS has_rules, a.attname::text AS attribute, a.atttypid, a.atttypmod FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid WHERE c.oid = $1 AND a.attnum > 0 AND NOT a.attisdropped;
DEALLOCATE statement;

-- xdb::store::catalog::FIND
PREPARE statement AS
SELECT pg_catalog.to_regclass($1)::pg_catalog.oid AS relation;
DEALLOCATE statement;

-- xdb::store::catalog::HAS_ACTIVE_POLICIES
PREPARE statement AS
SELECT pg_catalog.row_security_active($1::oid) AS active;
DEALLOCATE statement;

-- xdb::store::catalog::INDEX_NAME
PREPARE statement AS
SELECT c.relname::pg_catalog.text AS name FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) $1;
DEALLOCATE statement;

-- xdb::store::catalog::KIND
PREPARE statement AS
SELECT c.relkind IN ('r', 'p') AS has_rows, n.nspname = 'xdb' OR pg_catalog.starts_with(n.nspname::text, 'pg_') OR n.nspname = 'information_schema' AS is_of_system, c.relpersistence = 't' AS is_temporary FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1;
DEALLOCATE statement;

-- xdb::store::catalog::MISSING_PRIVILEGES
PREPARE statement AS
SELECT pg_catalog.string_agg(n.privilege, ', ' ORDER BY n.privilege) AS missing FROM ( SELECT DISTINCT p.privilege FROM ( SELECT k.name, 'SELECT' AS privilege FROM unnest($3::text[]) AS k (name) UNION ALL SELECT a.name, u.privilege FROM unnest($4::text[]) AS a (name) CROSS JOIN unnest('{SELECT,UPDATE}'::text[]) AS u (privilege)) AS p WHERE NOT pg_catalog.has_column_privilege($1::oid, $2::oid, p.name, p.privilege)) AS n;
DEALLOCATE statement;

-- xdb::store::catalog::UNIQUE_KEY
PREPARE statement AS
SELECT k.indexrelid AS index, k.operators FROM ( SELECT i.indexrelid, i.indisprimary, pg_catalog.array_agg(a.attname::text ORDER BY a.attname) AS names, pg_catalog.array_agg('OPERATOR(' || pg_catalog.quote_ident(n.nspname) || '.' || o.oprname || ')' ORDER BY a.attname) AS operators FROM pg_catalog.pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY AS c (attnum, opclass, position) JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.attnum JOIN pg_catalog.pg_opclass oc ON oc.oid = c.opclass JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod AND am.amname = 'btree' JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3 AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND c.position <= i.indnkeyatts GROUP BY i.indexrelid, i.indisprimary) AS k WHERE k.names = $2 ORDER BY k.indisprimary DESC, k.indexrelid LIMIT 1;
DEALLOCATE statement;

-- xdb::store::changes::PUBLISH
PREPARE statement AS
INSERT INTO xdb.global_message (queue_name, key, payload, bytes, owner, owner_name, published_at) SELECT v.queue_name, v.process_id, m.payload, pg_catalog.octet_length(m.payload::text), v.owner, COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = v.owner), ''), v.event_time FROM (SELECT unnest($1::text[]) AS queue_name, unnest($2::text[]) AS process_id, unnest($3::uuid[]) AS execution_id, unnest($4::text[]) AS process_type, unnest($5::int8[]) AS event_id, unnest($6::timestamptz[]) AS event_time, unnest($7::text[]) AS event_type, unnest($8::text[])::jsonb AS details, unnest($9::oid[]) AS owner) AS v CROSS JOIN LATERAL (SELECT pg_catalog.jsonb_build_object('processId', v.process_id, 'processExecutionId', v.execution_id, 'processType', v.process_type, 'eventId', v.event_id, 'eventTime', pg_catalog.to_jsonb(v.event_time AT TIME ZONE 'UTC') #>> '{}' || '+00:00', 'eventType', v.event_type, 'details', v.details)) AS m (payload);
DEALLOCATE statement;

-- xdb::store::check::CALLS_WITH_MANY_ATTEMPTS
PREPARE statement AS
SELECT seq, call::text FROM xdb.state_execution WHERE execution_id = $1 AND ended_at IS NULL AND (call -> 'failedAttempts') > pg_catalog.to_jsonb($2::int);
DEALLOCATE statement;

-- xdb::store::check::WHAT_IT_IS
PREPARE statement AS
SELECT COALESCE(p.shard_key, p.process_id) AS shard_key, p.owner, p.history_limit IS DISTINCT FROM 0 AS has_history FROM xdb.process_execution p WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::check::rows::ATTRIBUTES
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('key', v.key) AS key, jsonb_build_object('value', v.value) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS key, unnest($3::text[])::jsonb AS value) AS v) AS e FULL JOIN (SELECT jsonb_build_object('key', t.key) AS key, jsonb_build_object('value', t.value) AS fields FROM xdb.local_attribute AS t WHERE t.execution_id = $4) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($5::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::GLOBAL_MESSAGES
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('number', v.number) AS key, jsonb_build_object('taken_seq', v.taken_seq, 'taken_command', v.taken_command, 'queue_name', v.queue_name, 'key', v.key, 'message_id', v.message_id, 'payload', v.payload) AS fields FROM (SELECT unnest($1::int8[]) AS number, unnest($2::int4[]) AS taken_seq, unnest($3::int4[]) AS taken_command, unnest($4::text[]) AS queue_name, unnest($5::text[]) AS key, unnest($6::text[]) AS message_id, unnest($7::text[])::jsonb AS payload, unnest($8::int4[]) AS bytes, unnest($9::oid[]) AS owner, unnest($10::text[]) AS owner_name, unnest($11::timestamptz[]) AS published_at, unnest($12::timestamptz[]) AS expires_at, unnest($13::bool[]) AS fresh, unnest($14::uuid[]) AS taken_by, unnest($15::timestamptz[]) AS taken_at) AS v) AS e FULL JOIN (SELECT jsonb_build_object('number', t.number) AS key, jsonb_build_object('taken_seq', t.taken_seq, 'taken_command', t.taken_command, 'queue_name', t.queue_name, 'key', t.key, 'message_id', t.message_id, 'payload', t.payload) AS fields FROM xdb.global_message AS t WHERE t.taken_by = $16) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($17::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::GLOBAL_WAITERS
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('seq', v.seq, 'command', v.command) AS key, jsonb_build_object('queue_name', v.queue_name, 'key', v.key, 'at_least', v.at_least) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int4[]) AS command, unnest($4::text[]) AS queue_name, unnest($5::text[]) AS key, unnest($6::int8[]) AS at_least, unnest($7::int8[]) AS wait_order) AS v) AS e FULL JOIN (SELECT jsonb_build_object('seq', t.seq, 'command', t.command) AS key, jsonb_build_object('queue_name', t.queue_name, 'key', t.key, 'at_least', t.at_least) AS fields FROM xdb.global_waiter AS t WHERE t.execution_id = $8) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($9::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::LOCKS
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('name', v.name) AS key, jsonb_build_object('mode', v.mode, 'owner', v.owner) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS name, unnest($3::text[]) AS mode, unnest($4::oid[]) AS owner, unnest($5::text[]) AS status, unnest($6::timestamptz[]) AS due_at, unnest($7::timestamptz[]) AS granted_at, unnest($8::timestamptz[]) AS judge_at) AS v) AS e FULL JOIN (SELECT jsonb_build_object('name', t.name) AS key, jsonb_build_object('mode', t.mode, 'owner', t.owner) AS fields FROM xdb.process_lock AS t WHERE t.execution_id = $9) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($10::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::MESSAGES
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('queue_name', v.queue_name, 'number', v.number) AS key, jsonb_build_object('shard', v.shard, 'message_id', v.message_id, 'payload', v.payload, 'received_at', EXTRACT(epoch FROM v.received_at) * 1000000) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::int8[]) AS number, unnest($4::int2[]) AS shard, unnest($5::text[]) AS message_id, unnest($6::text[])::jsonb AS payload, unnest($7::timestamptz[]) AS received_at) AS v) AS e FULL JOIN (SELECT jsonb_build_object('queue_name', t.queue_name, 'number', t.number) AS key, jsonb_build_object('shard', t.shard, 'message_id', t.message_id, 'payload', t.payload, 'received_at', EXTRACT(epoch FROM t.received_at) * 1000000) AS fields FROM xdb.queue_message AS t WHERE t.execution_id = $8) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($9::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::MESSAGE_KEYS
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('queue_name', v.queue_name, 'message_id', v.message_id) AS key, jsonb_build_object() AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::text[]) AS message_id) AS v) AS e FULL JOIN (SELECT jsonb_build_object('queue_name', t.queue_name, 'message_id', t.message_id) AS key, jsonb_build_object() AS fields FROM xdb.message_key AS t WHERE t.execution_id = $4) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($5::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::PROCESSES
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object() AS key, jsonb_build_object('shard', v.shard, 'process_id', v.process_id, 'process_type', v.process_type, 'status', v.status, 'started_at', EXTRACT(epoch FROM v.started_at) * 1000000, 'closed_at', EXTRACT(epoch FROM v.closed_at) * 1000000, 'timeout_at', EXTRACT(epoch FROM v.timeout_at) * 1000000, 'reason', v.reason, 'next_event', v.next_event, 'next_state', v.next_state, 'next_message', v.next_message, 'live_threads', v.live_threads, 'queued_messages', v.queued_messages, 'queued_bytes', v.queued_bytes, 'timers', v.timers, 'completing', v.completing, 'state_numbers', v.state_numbers, 'results', v.results, 'pause_mode', v.pause_mode, 'paused_until', EXTRACT(epoch FROM v.paused_until) * 1000000, 'pause_reason', v.pause_reason, 'priority', v.priority, 'parent_id', v.parent_id, 'started_by', v.started_by, 'has_children', v.has_children, 'waiting_guards', v.waiting_guards, 'compensation', v.compensation, 'locks', v.locks) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int2[]) AS shard, unnest($3::text[]) AS process_id, unnest($4::text[]) AS process_type, unnest($5::text[]) AS status, unnest($6::timestamptz[]) AS started_at, unnest($7::timestamptz[]) AS closed_at, unnest($8::timestamptz[]) AS timeout_at, unnest($9::text[]) AS reason, unnest($10::int8[]) AS next_event, unnest($11::int4[]) AS next_state, unnest($12::int8[]) AS next_message, unnest($13::int4[]) AS live_threads, unnest($14::int4[]) AS queued_messages, unnest($15::int8[]) AS queued_bytes, unnest($16::int4[]) AS timers, unnest($17::bool[]) AS completing, unnest($18::text[])::jsonb AS state_numbers, unnest($19::text[])::jsonb AS results, unnest($20::text[]) AS pause_mode, unnest($21::timestamptz[]) AS paused_until, unnest($22::text[]) AS pause_reason, unnest($23::int2[]) AS priority, unnest($24::uuid[]) AS parent_id, unnest($25::text[])::jsonb AS started_by, unnest($26::bool[]) AS has_children, unnest($27::int4[]) AS waiting_guards, unnest($28::text[])::jsonb AS compensation, unnest($29::text[])::jsonb AS locks, unnest($30::int4[]) AS type_id, unnest($31::oid[]) AS owner, unnest($32::text[]) AS owner_name, unnest($33::text[]) AS closing, unnest($34::int4[]) AS mapping_id, unnest($35::text[])::jsonb AS attribute_keys, unnest($36::int4[]) AS history_limit, unnest($37::text[]) AS request_id, unnest($38::text[]) AS traceparent, unnest($39::text[]) AS shard_key, unnest($40::timestamptz[]) AS purge_at) AS v) AS e FULL JOIN (SELECT jsonb_build_object() AS key, jsonb_build_object('shard', t.shard, 'process_id', t.process_id, 'process_type', t.process_type, 'status', t.status, 'started_at', EXTRACT(epoch FROM t.started_at) * 1000000, 'closed_at', EXTRACT(epoch FROM t.closed_at) * 1000000, 'timeout_at', EXTRACT(epoch FROM t.timeout_at) * 1000000, 'reason', t.reason, 'next_event', t.next_event, 'next_state', t.next_state, 'next_message', t.next_message, 'live_threads', t.live_threads, 'queued_messages', t.queued_messages, 'queued_bytes', t.queued_bytes, 'timers', t.timers, 'completing', t.completing, 'state_numbers', t.state_numbers, 'results', t.results, 'pause_mode', t.pause_mode, 'paused_until', EXTRACT(epoch FROM t.paused_until) * 1000000, 'pause_reason', t.pause_reason, 'priority', t.priority, 'parent_id', t.parent_id, 'started_by', t.started_by, 'has_children', t.has_children, 'waiting_guards', t.waiting_guards, 'compensation', t.compensation, 'locks', t.locks) AS fields FROM xdb.process_execution AS t WHERE t.execution_id = $41) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($42::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::STATES
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('seq', v.seq) AS key, jsonb_build_object('shard', v.shard, 'state_id', v.state_id, 'number', v.number, 'status', v.status, 'started_at', EXTRACT(epoch FROM v.started_at) * 1000000, 'ended_at', EXTRACT(epoch FROM v.ended_at) * 1000000, 'input', v.input, 'config', v.config, 'recovery', v.recovery, 'call', v.call, 'wait', v.wait, 'last_failure', v.last_failure) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int2[]) AS shard, unnest($4::text[]) AS state_id, unnest($5::int4[]) AS number, unnest($6::text[]) AS status, unnest($7::timestamptz[]) AS started_at, unnest($8::timestamptz[]) AS ended_at, unnest($9::text[])::jsonb AS input, unnest($10::text[])::jsonb AS config, unnest($11::text[])::jsonb AS recovery, unnest($12::text[])::jsonb AS call, unnest($13::text[])::jsonb AS wait, unnest($14::text[])::jsonb AS last_failure) AS v) AS e FULL JOIN (SELECT jsonb_build_object('seq', t.seq) AS key, jsonb_build_object('shard', t.shard, 'state_id', t.state_id, 'number', t.number, 'status', t.status, 'started_at', EXTRACT(epoch FROM t.started_at) * 1000000, 'ended_at', EXTRACT(epoch FROM t.ended_at) * 1000000, 'input', t.input, 'config', t.config, 'recovery', t.recovery, 'call', t.call, 'wait', t.wait, 'last_failure', t.last_failure) AS fields FROM xdb.state_execution AS t WHERE t.execution_id = $15) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($16::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::TASKS
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('seq', v.seq) AS key, jsonb_build_object('shard', v.shard, 'api', v.api, 'due_at', EXTRACT(epoch FROM v.due_at) * 1000000, 'owner', v.owner, 'priority', v.priority) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int2[]) AS shard, unnest($4::text[]) AS api, unnest($5::timestamptz[]) AS due_at, unnest($6::oid[]) AS owner, unnest($7::int2[]) AS priority, unnest($8::int2[]) AS lane, unnest($9::int4[]) AS worker_id, unnest($10::int4[]) AS attempt, unnest($11::timestamptz[]) AS first_attempt_at, unnest($12::int8[]) AS lease_epoch, unnest($13::int8[]) AS lease_number, unnest($14::timestamptz[]) AS lease_until, unnest($15::int2[]) AS crashes, unnest($16::text[]) AS waits_for) AS v) AS e FULL JOIN (SELECT jsonb_build_object('seq', t.seq) AS key, jsonb_build_object('shard', t.shard, 'api', t.api, 'due_at', EXTRACT(epoch FROM t.due_at) * 1000000, 'owner', t.owner, 'priority', t.priority) AS fields FROM xdb.task AS t WHERE t.execution_id = $17) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($18::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::TIMERS
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('seq', v.seq, 'command', v.command) AS key, jsonb_build_object('shard', v.shard, 'kind', v.kind, 'fire_at', EXTRACT(epoch FROM v.fire_at) * 1000000, 'owner', v.owner) AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int4[]) AS command, unnest($4::int2[]) AS shard, unnest($5::text[]) AS kind, unnest($6::timestamptz[]) AS fire_at, unnest($7::oid[]) AS owner) AS v) AS e FULL JOIN (SELECT jsonb_build_object('seq', t.seq, 'command', t.command) AS key, jsonb_build_object('shard', t.shard, 'kind', t.kind, 'fire_at', EXTRACT(epoch FROM t.fire_at) * 1000000, 'owner', t.owner) AS fields FROM xdb.timer AS t WHERE t.execution_id = $8) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($9::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::rows::WAITERS
PREPARE statement AS
SELECT COALESCE(e.key, f.key)::text AS key, e.key IS NULL AS too_many, f.key IS NULL AS missing, d.name, d.expected::text AS expected, d.found::text AS found FROM (SELECT jsonb_build_object('queue_name', v.queue_name, 'wait_order', v.wait_order, 'seq', v.seq) AS key, jsonb_build_object() AS fields FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::int8[]) AS wait_order, unnest($4::int4[]) AS seq) AS v) AS e FULL JOIN (SELECT jsonb_build_object('queue_name', t.queue_name, 'wait_order', t.wait_order, 'seq', t.seq) AS key, jsonb_build_object() AS fields FROM xdb.queue_waiter AS t WHERE t.execution_id = $5) AS f ON f.key = e.key LEFT JOIN LATERAL (SELECT n.name, e.fields -> n.name AS expected, f.fields -> n.name AS found FROM unnest($6::text[]) AS n (name) WHERE e.key IS NOT NULL AND f.key IS NOT NULL AND e.fields -> n.name IS DISTINCT FROM f.fields -> n.name) AS d ON true WHERE e.key IS NULL OR f.key IS NULL OR d.name IS NOT NULL ORDER BY COALESCE(e.key, f.key), d.name;
DEALLOCATE statement;

-- xdb::store::check::values::GLOBAL_MESSAGES
PREPARE statement AS
SELECT jsonb_build_object('number', m.number)::text AS key, array_remove(ARRAY[CASE WHEN m.fresh THEN 'it is taken, and fresh' END], NULL) AS problems FROM xdb.global_message AS m WHERE m.taken_by = $1 ORDER BY m.number;
DEALLOCATE statement;

-- xdb::store::check::values::INBOX
PREPARE statement AS
SELECT jsonb_build_object('inbox_id', i.inbox_id)::text AS key, array_remove(ARRAY[CASE WHEN NOT $2::bool THEN 'unexpected row' END, CASE WHEN $2::bool AND i.shard <> $3::int2 THEN 'shard is ' || i.shard || ' and should be ' || $3::int2 END, CASE WHEN i.bytes < 0 THEN 'bytes is negative' END], NULL) AS problems FROM xdb.inbox AS i WHERE i.execution_id = $1 ORDER BY i.inbox_id;
DEALLOCATE statement;

-- xdb::store::check::values::LATEST
PREPARE statement AS
SELECT l.execution_id::text AS latest, o.execution_id IS NULL AS is_none, o.process_id <> p.process_id AS is_another FROM xdb.process_execution AS p LEFT JOIN xdb.latest_execution AS l USING (process_id) LEFT JOIN xdb.process_execution AS o ON o.execution_id = l.execution_id WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::check::values::LOCKS
PREPARE statement AS
SELECT jsonb_build_object('name', l.name)::text AS key, array_remove(ARRAY[CASE WHEN l.status NOT IN ('WAITING', 'GRANTED', 'RELEASED') THEN 'its status is unknown' END, CASE WHEN (l.status = 'RELEASED') <> (p.status <> 'RUNNING') THEN 'its status does not fit that of the process' END, CASE WHEN l.status = 'WAITING' AND l.granted_at IS NOT NULL OR l.status = 'GRANTED' AND l.granted_at IS NULL THEN 'granted_at does not fit its status' END, CASE WHEN EXISTS (SELECT FROM xdb.process_lock o WHERE o.execution_id = l.execution_id AND o.status <> l.status) THEN 'the process has only some of its locks' END, CASE WHEN l.status = 'GRANTED' AND EXISTS (SELECT FROM xdb.process_lock o WHERE o.name = l.name AND o.status = 'GRANTED' AND o.execution_id <> l.execution_id AND (o.mode = 'EXCLUSIVE' OR l.mode = 'EXCLUSIVE')) THEN 'another process holds the lock too' END], NULL) AS problems FROM xdb.process_lock AS l JOIN xdb.process_execution AS p USING (execution_id) WHERE l.execution_id = $1 ORDER BY l.name;
DEALLOCATE statement;

-- xdb::store::check::values::PROCESSES
PREPARE statement AS
SELECT jsonb_build_object()::text AS key, array_remove(ARRAY[CASE WHEN p.closing NOT IN ('UNCONDITIONAL', 'CONDITIONAL') THEN 'closing is an unknown word' END, CASE WHEN (p.status = 'RUNNING') <> (p.closed_at IS NULL) THEN 'closed_at does not fit its status' END, CASE WHEN p.status <> 'RUNNING' AND p.closing IS NOT NULL THEN 'it is closed, and closing is set' END, CASE WHEN p.status = 'RUNNING' AND p.purge_at IS NOT NULL THEN 'it is running, and purge_at is set' END, CASE WHEN p.history_limit < 0 THEN 'history_limit is negative' END, CASE WHEN (p.mapping_id IS NULL) <> (p.attribute_keys IS NULL) THEN 'only one of mapping_id and attribute_keys is set' END], NULL) AS problems FROM xdb.process_execution AS p WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::check::values::STATES
PREPARE statement AS
SELECT jsonb_build_object('seq', s.seq)::text AS key, array_remove(ARRAY[CASE WHEN s.seq < 1 THEN 'seq is less than 1' END, CASE WHEN s.number < 1 THEN 'number is less than 1' END, CASE WHEN (s.status IN ('COMPLETED', 'FAILED', 'ABORTED')) <> (s.ended_at IS NOT NULL) THEN 'ended_at does not fit its status' END, CASE WHEN s.status IN ('WAIT_UNTIL', 'EXECUTE') AND s.call IS NULL OR s.status = 'WAITING' AND s.call IS NOT NULL THEN 'call does not fit its status' END, CASE WHEN s.status = 'WAITING' AND s.wait IS NULL THEN 'it waits, and wait is null' END], NULL) AS problems FROM xdb.state_execution AS s WHERE s.execution_id = $1 ORDER BY s.seq;
DEALLOCATE statement;

-- xdb::store::check::values::SURROUNDINGS
PREPARE statement AS
SELECT jsonb_build_object()::text AS key, array_remove(ARRAY[CASE WHEN p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type AS y WHERE y.type_id = p.type_id AND y.process_type = p.process_type) THEN 'process_execution: type_id is not that of its process type' END, CASE WHEN COALESCE(pg_catalog.jsonb_path_query_array(p.attribute_keys, '$[*].size()'), '[]') <> COALESCE(( SELECT pg_catalog.jsonb_agg(pg_catalog.cardinality(m.key_columns) ORDER BY m.position) FROM xdb.mapped_table AS m WHERE m.mapping_id = p.mapping_id), '[]') THEN 'process_execution: attribute_keys do not fit the tables of its mapping_id' END, CASE WHEN EXISTS (SELECT FROM xdb.purged AS g WHERE g.execution_id = p.execution_id) THEN 'purged: unexpected row: the execution is' END], NULL) AS problems FROM xdb.process_execution AS p WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::check::values::TASKS
PREPARE statement AS
SELECT jsonb_build_object('seq', t.seq)::text AS key, array_remove(ARRAY[CASE WHEN t.lane NOT BETWEEN 0 AND 3 THEN 'its lane is unknown' END, CASE WHEN t.attempt > 0 AND t.first_attempt_at IS NULL THEN 'it has begun an attempt, and first_attempt_at is null' END, CASE WHEN (t.lease_until IS NULL) <> (t.lease_epoch = 0 AND t.lease_number = 0) THEN 'only one of lease_epoch and lease_until is set' END, CASE WHEN pg_catalog.to_jsonb(t.attempt) < (s.call -> 'failedAttempts') THEN 'attempt is ' || t.attempt || ', and more attempts than that have failed' END, CASE WHEN w.worker_id IS NULL AND y.type_id IS NOT NULL AND (t.lane = 0 OR t.lane = 1 AND t.worker_id <> 0) THEN 'its worker is not registered' END, CASE WHEN t.lane <> 2 AND EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = t.execution_id AND l.status = 'WAITING') THEN 'it is not parked, and its process waits for locks' END], NULL) AS problems FROM xdb.task AS t JOIN xdb.process_execution AS p USING (execution_id) LEFT JOIN xdb.state_execution AS s ON s.execution_id = t.execution_id AND s.seq = t.seq LEFT JOIN xdb.worker AS w ON w.worker_id = t.worker_id LEFT JOIN xdb.process_type AS y ON y.type_id = p.type_id WHERE t.execution_id = $1 ORDER BY t.seq;
DEALLOCATE statement;

-- xdb::store::children::INFORM
PREPARE statement AS
WITH closed AS MATERIALIZED (SELECT p.execution_id, c.started_by ->> 'onClose' AS queue_name, c.execution_id::text AS message_id, p.shard, p.owner, pg_catalog.jsonb_build_object( 'processId', c.process_id, 'processExecutionId', c.execution_id, 'processType', c.process_type, 'status', c.status) || CASE WHEN c.reason IS NULL THEN '{}' ELSE pg_catalog.jsonb_build_object('reason', c.reason) END || CASE WHEN pg_catalog.octet_length(c.results::text) > $2 THEN '{"omitted": true}' ELSE pg_catalog.jsonb_build_object('results', c.results, 'result', CASE pg_catalog.jsonb_array_length(c.results) WHEN 1 THEN c.results -> 0 -> 'output' END) END AS payload FROM xdb.process_execution c JOIN xdb.process_execution p ON p.execution_id = c.parent_id WHERE c.execution_id = ANY ($1) AND p.status = 'RUNNING'), new AS (INSERT INTO xdb.message_key (execution_id, queue_name, message_id) SELECT execution_id, queue_name, message_id FROM closed ORDER BY execution_id, queue_name, message_id ON CONFLICT DO NOTHING RETURNING execution_id, queue_name, message_id) INSERT INTO xdb.inbox (execution_id, shard, queue_name, message_id, payload, bytes, published_at, owner) SELECT c.execution_id, c.shard, c.queue_name, c.message_id, c.payload, pg_catalog.octet_length(c.payload::text), $3, c.owner FROM closed c JOIN new n USING (execution_id, queue_name, message_id) ORDER BY c.message_id;
DEALLOCATE statement;

-- xdb::store::children::PARENTS
PREPARE statement AS
SELECT DISTINCT parent_id FROM xdb.process_execution WHERE execution_id = ANY ($1) AND parent_id IS NOT NULL AND started_by ? 'onClose' ORDER BY parent_id;
DEALLOCATE statement;

-- xdb::store::children::STOP
PREPARE statement AS
WITH stopped AS (INSERT INTO xdb.timer (execution_id, seq, command, shard, kind, fire_at, owner) SELECT c.execution_id, 0, 2, c.shard, 'PARENT_CLOSED', $2, c.owner FROM xdb.process_execution c WHERE c.parent_id = ANY ($1) AND c.status = 'RUNNING' AND c.started_by ->> 'whenParentCloses' IS NULL ON CONFLICT DO NOTHING RETURNING owner) SELECT DISTINCT owner FROM stopped;
DEALLOCATE statement;

-- xdb::store::claim::ADOPT
PREPARE statement AS
WITH orphan AS MATERIALIZED (SELECT k.execution_id, k.seq FROM xdb.task k WHERE k.lane = $1 AND k.worker_id = ANY ($2) LIMIT 1000 FOR UPDATE SKIP LOCKED) UPDATE xdb.task k SET worker_id = COALESCE(t.worker_id, 0), lane = CASE WHEN COALESCE(t.worker_id, 0) = 0 THEN 1 ELSE k.lane END FROM orphan JOIN xdb.process_execution p USING (execution_id) JOIN xdb.process_type t USING (type_id) WHERE k.execution_id = orphan.execution_id AND k.seq = orphan.seq;
DEALLOCATE statement;

-- xdb::store::claim::ANY_FOR_RUNNERS
PREPARE statement AS
SELECT EXISTS (SELECT FROM xdb.task t WHERE t.lane = 1 AND t.due_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $2 OR t.lease_epoch <> 0 AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch))) AS any;
DEALLOCATE statement;

-- xdb::store::claim::DELETE
PREPARE statement AS
DELETE FROM xdb.task t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::DUE
PREPARE statement AS
SELECT d.execution_id, d.seq, d.attempt, d.first_attempt_at, v.worker_id, v.owner, v.priority, d.due_at, d.crashes FROM (SELECT unnest($1::int4[]) AS worker_id, unnest($2::oid[]) AS owner, unnest($3::int2[]) AS priority, unnest($4::int8[]) AS room, unnest($5::timestamptz[]) AS since) AS v CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.due_at, t.crashes FROM xdb.task t WHERE t.lane = $6 AND t.worker_id = v.worker_id AND t.owner = v.owner AND t.priority = v.priority AND t.due_at >= v.since AND t.due_at <= $7 AND (t.lease_until IS NULL OR t.lease_epoch < $8 OR t.lease_until <= $9) AND t.execution_id <> ALL ($10) ORDER BY t.due_at LIMIT v.room FOR UPDATE SKIP LOCKED) AS d;
DEALLOCATE statement;

-- xdb::store::claim::DUE_FOR_RUNNERS
PREPARE statement AS
SELECT d.execution_id, d.seq, d.attempt, d.first_attempt_at, v.worker_id, v.owner, v.priority, d.due_at, d.crashes FROM (SELECT unnest($1::int4[]) AS worker_id, unnest($2::oid[]) AS owner, unnest($3::int2[]) AS priority, unnest($4::int8[]) AS room, unnest($5::timestamptz[]) AS since) AS v CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.due_at, t.crashes FROM xdb.task t WHERE t.lane = $6 AND t.worker_id = v.worker_id AND t.owner = v.owner AND t.priority = v.priority AND t.due_at >= v.since AND t.due_at <= $7 AND (t.lease_until IS NULL OR t.lease_until <= $9 OR t.lease_epoch <> $8 AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch)) AND t.execution_id <> ALL ($10) ORDER BY t.due_at LIMIT v.room FOR UPDATE SKIP LOCKED) AS d;
DEALLOCATE statement;

-- xdb::store::claim::FOLLOW_TYPES
PREPARE statement AS
WITH slice AS MATERIALIZED (SELECT t.owner, t.priority, t.due_at, t.execution_id, t.seq FROM xdb.task t WHERE t.lane = $1 AND t.worker_id = $2 AND (t.owner, t.priority, t.due_at, t.execution_id, t.seq) > ($3, $4, $5, $6, $7) ORDER BY t.owner, t.priority, t.due_at, t.execution_id, t.seq LIMIT 1000), moved AS MATERIALIZED (SELECT k.execution_id, k.seq, COALESCE(y.worker_id, 0) AS worker_id FROM slice s JOIN xdb.process_execution p ON p.execution_id = s.execution_id JOIN xdb.process_type y ON y.type_id = p.type_id JOIN xdb.task k ON k.execution_id = s.execution_id AND k.seq = s.seq WHERE COALESCE(y.worker_id, 0) <> $2 AND (k.lease_epoch <> 0 OR k.lease_until IS NULL OR k.lease_until <= $8) FOR UPDATE OF k SKIP LOCKED), given AS (UPDATE xdb.task k SET worker_id = m.worker_id, lane = CASE WHEN m.worker_id = 0 THEN 1 ELSE k.lane END FROM moved m WHERE k.execution_id = m.execution_id AND k.seq = m.seq) SELECT owner, priority, due_at, execution_id, seq, (SELECT count(*) FROM slice) = 1000 AS more FROM slice ORDER BY owner DESC, priority DESC, due_at DESC, execution_id DESC, seq DESC LIMIT 1;
DEALLOCATE statement;

-- xdb::store::claim::FORGET_LEASES
PREPARE statement AS
UPDATE xdb.task t SET worker_id = CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END, lane = CASE WHEN CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END = 0 THEN 1 ELSE 0 END, lease_epoch = 0, lease_number = 0, lease_until = NULL, crashes = 0 WHERE (t.lane IN (1, 2, 3) OR t.lease_until IS NOT NULL OR t.crashes > 0) AND NOT EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = t.execution_id AND l.status = 'WAITING');
DEALLOCATE statement;

-- xdb::store::claim::INSERT
PREPARE statement AS
INSERT INTO xdb.task (execution_id, seq, shard, api, due_at, owner, priority, lane, worker_id, attempt, first_attempt_at, lease_epoch, lease_number, lease_until) SELECT unnest($1::uuid[]), unnest($2::int4[]), unnest($3::int2[]), unnest($4::text[]), unnest($5::timestamptz[]), unnest($6::oid[]), unnest($7::int2[]), unnest($8::int2[]), unnest($9::int4[]), unnest($10::int4[]), unnest($11::timestamptz[]), unnest($12::int8[]), unnest($13::int8[]), unnest($14::timestamptz[]);
DEALLOCATE statement;

-- xdb::store::claim::LEASES
PREPARE statement AS
SELECT t.execution_id, t.seq, t.lease_epoch, t.lease_number FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::LEASE_CALLS
PREPARE statement AS
UPDATE xdb.task t SET attempt = t.attempt + 1, first_attempt_at = COALESCE(t.first_attempt_at, $6), waits_for = NULL, lease_epoch = v.lease_epoch, lease_number = v.lease_number, lease_until = v.lease_until FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int8[]) AS lease_epoch, unnest($4::int8[]) AS lease_number, unnest($5::timestamptz[]) AS lease_until) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::MOVE_TO_LANE
PREPARE statement AS
UPDATE xdb.task t SET lane = $3, lease_epoch = 0, lease_number = 0, lease_until = NULL FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::MOVE_TO_WORKERS
PREPARE statement AS
UPDATE xdb.task t SET worker_id = v.worker_id FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int4[]) AS worker_id) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::PARK
PREPARE statement AS
UPDATE xdb.task t SET lease_epoch = $4, lease_number = $5, lease_until = 'infinity', waits_for = v.waits_for FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::text[]) AS waits_for) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::PARKED
PREPARE statement AS
SELECT t.execution_id, t.seq, t.attempt, t.first_attempt_at, t.worker_id, t.owner, t.priority, t.due_at, t.crashes FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq WHERE t.lane = $3 AND t.lease_epoch = $4 AND t.lease_until = 'infinity' FOR UPDATE OF t SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::claim::RELEASE
PREPARE statement AS
WITH held AS MATERIALIZED (SELECT t.execution_id, t.seq FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq WHERE t.lease_epoch = $3 FOR UPDATE OF t SKIP LOCKED) UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), lease_epoch = 0, lease_number = 0, lease_until = NULL FROM held WHERE t.execution_id = held.execution_id AND t.seq = held.seq;
DEALLOCATE statement;

-- xdb::store::claim::TAKE_BACK
PREPARE statement AS
WITH back AS MATERIALIZED (SELECT t.execution_id, t.seq FROM xdb.task t WHERE t.lane = 1 AND t.worker_id > 0 AND (t.lease_until IS NULL OR t.lease_until <= $1 OR t.lease_epoch <> 0 AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch)) LIMIT 1000 FOR UPDATE OF t SKIP LOCKED) UPDATE xdb.task t SET lane = 0, lease_epoch = 0, lease_number = 0, lease_until = NULL FROM back WHERE t.execution_id = back.execution_id AND t.seq = back.seq;
DEALLOCATE statement;

-- xdb::store::claim::UNPARK
PREPARE statement AS
UPDATE xdb.task t SET lease_epoch = 0, lease_number = 0, lease_until = NULL FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::UPDATE
PREPARE statement AS
UPDATE xdb.task t SET lane = v.lane, worker_id = v.worker_id, api = v.api, due_at = v.due_at, attempt = v.attempt, lease_epoch = v.lease_epoch, lease_number = v.lease_number, lease_until = v.lease_until, first_attempt_at = CASE WHEN v.api <> t.api THEN v.first_attempt_at ELSE t.first_attempt_at END, crashes = 0 FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int2[]) AS shard, unnest($4::text[]) AS api, unnest($5::timestamptz[]) AS due_at, unnest($6::oid[]) AS owner, unnest($7::int2[]) AS priority, unnest($8::int2[]) AS lane, unnest($9::int4[]) AS worker_id, unnest($10::int4[]) AS attempt, unnest($11::timestamptz[]) AS first_attempt_at, unnest($12::int8[]) AS lease_epoch, unnest($13::int8[]) AS lease_number, unnest($14::timestamptz[]) AS lease_until) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::claim::WORKERS_GONE
PREPARE statement AS
WITH RECURSIVE ids (worker_id) AS ( (SELECT worker_id FROM xdb.task WHERE lane = $1 ORDER BY worker_id LIMIT 1) UNION ALL SELECT (SELECT k.worker_id FROM xdb.task k WHERE k.lane = $1 AND k.worker_id > ids.worker_id ORDER BY k.worker_id LIMIT 1) FROM ids WHERE ids.worker_id IS NOT NULL) SELECT worker_id FROM ids WHERE worker_id IS NOT NULL AND worker_id <> ALL ($2);
DEALLOCATE statement;

-- xdb::store::correlated::IS_UNTRIED
PREPARE statement AS
SELECT t.attempt = 0 AND t.lease_until IS NULL AS is_untried FROM xdb.task t WHERE t.execution_id = $1 AND t.seq = $2 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::correlated::LOCK
PREPARE statement AS
SELECT execution_id FROM xdb.correlated_start WHERE type_id = $1 AND owner = $2 AND correlation_key = $3 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::correlated::MOVE_TIMEOUT
PREPARE statement AS
UPDATE xdb.process_execution SET timeout_at = $2 WHERE execution_id = $1;
DEALLOCATE statement;

-- xdb::store::correlated::MOVE_TIMER
PREPARE statement AS
UPDATE xdb.timer SET fire_at = $2 WHERE execution_id = $1 AND seq = 0 AND command = 0;
DEALLOCATE statement;

-- xdb::store::correlated::NEW
PREPARE statement AS
INSERT INTO xdb.correlated_start (type_id, owner, correlation_key, execution_id) SELECT unnest($1::int4[]), unnest($2::oid[]), unnest($3::text[]), unnest($4::uuid[]) ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::correlated::SET
PREPARE statement AS
UPDATE xdb.correlated_start SET execution_id = $4 WHERE type_id = $1 AND owner = $2 AND correlation_key = $3;
DEALLOCATE statement;

-- xdb::store::correlated::SET_INPUT
PREPARE statement AS
UPDATE xdb.state_execution s SET input = v.input FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::text[])::jsonb AS input) AS v WHERE s.execution_id = v.execution_id AND s.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::counted::FIGURES
PREPARE statement AS
SELECT pg_catalog.current_setting('server_version') AS postgres, (SELECT EXTRACT(epoch FROM $1::timestamptz - min(p.closed_at)) * 1000000 FROM xdb.process_execution p WHERE p.closed_at IS NOT NULL AND p.purge_at IS NULL)::int8 AS oldest_closed, (SELECT EXTRACT(epoch FROM $1::timestamptz - min(p.purge_at)) * 1000000 FROM xdb.process_execution p WHERE p.purge_at IS NOT NULL AND p.purge_at < 'infinity')::int8 AS oldest_overdue;
DEALLOCATE statement;

-- xdb::store::counted::NAMES_OF_TYPES
PREPARE statement AS
SELECT t.type_id, t.process_type FROM xdb.process_type t WHERE t.type_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::crashes::COUNT
PREPARE statement AS
WITH free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq FOR UPDATE OF t SKIP LOCKED) UPDATE xdb.task t SET crashes = t.crashes + 1, lane = CASE WHEN t.crashes + 1 < 3 THEN t.lane ELSE 3 END FROM free f WHERE t.execution_id = f.execution_id AND t.seq = f.seq RETURNING t.lane = 3 AS is_held;
DEALLOCATE statement;

-- xdb::store::crashes::HELD
PREPARE statement AS
SELECT pg_catalog.count(*) AS held FROM xdb.task t WHERE t.lane = 3;
DEALLOCATE statement;

-- xdb::store::crashes::RETRY
PREPARE statement AS
UPDATE xdb.task t SET worker_id = CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END, lane = CASE WHEN CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END = 0 THEN 1 ELSE 0 END, lease_epoch = 0, lease_number = 0, lease_until = NULL, crashes = 0 WHERE t.execution_id = $1 AND ($2::int IS NULL OR t.seq = $2) AND t.lane = 3;
DEALLOCATE statement;

-- xdb::store::engine::BEGIN_EPOCH
PREPARE statement AS
INSERT INTO xdb.engine AS e (lane, epoch) VALUES ($1, (SELECT max(epoch) FROM xdb.engine) + 1) ON CONFLICT (lane) DO UPDATE SET epoch = EXCLUDED.epoch RETURNING e.epoch;
DEALLOCATE statement;

-- xdb::store::engine::DATABASE
PREPARE statement AS
SELECT datistemplate, NOT datallowconn FROM pg_catalog.pg_database WHERE oid OPERATOR(pg_catalog.=) $1;
DEALLOCATE statement;

-- xdb::store::engine::GATE
PREPARE statement AS
SELECT FROM xdb.engine ORDER BY lane FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::engine::PAUSE
PREPARE statement AS
UPDATE xdb.engine SET paused = $1 WHERE lane = 0;
DEALLOCATE statement;

-- xdb::store::engine::RETIRE
PREPARE statement AS
UPDATE xdb.engine SET epoch = (SELECT max(epoch) FROM xdb.engine) + 1 WHERE lane = $1;
DEALLOCATE statement;

-- xdb::store::engine::STATE
PREPARE statement AS
SELECT m.epoch AS epoch, m.paused, r.generation + COALESCE((SELECT pg_catalog.sum(c.registrations)::bigint FROM xdb.registration_count c), 0) AS generation, t.worker_id AS last_worker, (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL OR EXISTS (SELECT FROM xdb.global_passed_over) AS global_work, r.in_use, (SELECT l.judge_at FROM xdb.process_lock l WHERE l.judge_at IS NOT NULL ORDER BY l.judge_at LIMIT 1) AS judge_at, i.* FROM xdb.engine m CROSS JOIN xdb.registry r LEFT JOIN LATERAL (SELECT i.system_identifier, i.database FROM xdb.instances i WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1) AS i ON true LEFT JOIN LATERAL (SELECT worker_id FROM xdb.task WHERE lane = 1 ORDER BY worker_id DESC LIMIT 1) AS t ON true WHERE m.lane = 0;
DEALLOCATE statement;

-- xdb::store::engine::STATE_FOR_RUNNER
PREPARE statement AS
SELECT (SELECT e.epoch FROM xdb.engine e WHERE e.lane = $3) AS epoch, m.paused, r.generation + COALESCE((SELECT pg_catalog.sum(c.registrations)::bigint FROM xdb.registration_count c), 0) AS generation, t.worker_id AS last_worker, (SELECT number FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1) IS NOT NULL OR EXISTS (SELECT FROM xdb.global_passed_over) AS global_work, r.in_use, NULL::timestamptz AS judge_at, i.* FROM xdb.engine m CROSS JOIN xdb.registry r LEFT JOIN LATERAL (SELECT i.system_identifier, i.database FROM xdb.instances i WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1) AS i ON true LEFT JOIN LATERAL (SELECT worker_id FROM xdb.task WHERE lane = 1 ORDER BY worker_id DESC LIMIT 1) AS t ON true WHERE m.lane = 0;
DEALLOCATE statement;

-- xdb::store::execution::CLOSE
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key FROM xdb.process_execution p WHERE execution_id = ANY ($1) ORDER BY execution_id FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::execution::CLOSE_OR_SKIP
PREPARE statement AS
SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1) ORDER BY execution_id FOR UPDATE SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::execution::EXISTING
PREPARE statement AS
SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::execution::HAVE_CHILDREN
PREPARE statement AS
UPDATE xdb.process_execution SET has_children = true WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::execution::INSERT
PREPARE statement AS
INSERT INTO xdb.process_execution (execution_id, shard, process_id, process_type, status, started_at, closed_at, timeout_at, reason, next_event, next_state, next_message, live_threads, queued_messages, queued_bytes, timers, completing, state_numbers, results, priority, parent_id, started_by, waiting_guards, locks, type_id, owner, owner_name, mapping_id, attribute_keys, history_limit, request_id, traceparent, shard_key) SELECT unnest($1::uuid[]), unnest($2::int2[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]), unnest($6::timestamptz[]), unnest($7::timestamptz[]), unnest($8::timestamptz[]), unnest($9::text[]), unnest($10::int8[]), unnest($11::int4[]), unnest($12::int8[]), unnest($13::int4[]), unnest($14::int4[]), unnest($15::int8[]), unnest($16::int4[]), unnest($17::bool[]), unnest($18::text[])::jsonb, unnest($19::text[])::jsonb, unnest($20::int2[]), unnest($21::uuid[]), unnest($22::text[])::jsonb, unnest($23::int4[]), unnest($24::text[])::jsonb, unnest($25::int4[]), unnest($26::oid[]), unnest($27::text[]), unnest($28::int4[]), unnest($29::text[])::jsonb, unnest($30::int4[]), unnest($31::text[]), unnest($32::text[]), unnest($33::text[]);
DEALLOCATE statement;

-- xdb::store::execution::INSERT_PLAIN
PREPARE statement AS
INSERT INTO xdb.process_execution (execution_id, shard, process_id, process_type, status, started_at, closed_at, timeout_at, reason, next_event, next_state, next_message, live_threads, queued_messages, queued_bytes, timers, completing, state_numbers, results, priority, type_id, owner, owner_name, mapping_id, attribute_keys, history_limit, request_id, traceparent, shard_key) SELECT unnest($1::uuid[]), unnest($2::int2[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]), unnest($6::timestamptz[]), unnest($7::timestamptz[]), unnest($8::timestamptz[]), unnest($9::text[]), unnest($10::int8[]), unnest($11::int4[]), unnest($12::int8[]), unnest($13::int4[]), unnest($14::int4[]), unnest($15::int8[]), unnest($16::int4[]), unnest($17::bool[]), unnest($18::text[])::jsonb, unnest($19::text[])::jsonb, unnest($20::int2[]), unnest($21::int4[]), unnest($22::oid[]), unnest($23::text[]), unnest($24::int4[]), unnest($25::text[])::jsonb, unnest($26::int4[]), unnest($27::text[]), unnest($28::text[]), unnest($29::text[]);
DEALLOCATE statement;

-- xdb::store::execution::MARK
PREPARE statement AS
UPDATE xdb.process_execution p SET closing = CASE WHEN v.conditional THEN 'CONDITIONAL' ELSE 'UNCONDITIONAL' END FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::bool[]) AS conditional) AS v WHERE p.execution_id = v.execution_id AND p.closing IS NULL;
DEALLOCATE statement;

-- xdb::store::execution::PUT_GUARDS
PREPARE statement AS
UPDATE xdb.process_execution t SET waiting_guards = v.waiting_guards, compensation = v.compensation FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS waiting_guards, unnest($3::text[])::jsonb AS compensation) AS v WHERE t.execution_id = v.execution_id;
DEALLOCATE statement;

-- xdb::store::execution::PUT_PAUSE
PREPARE statement AS
UPDATE xdb.process_execution t SET pause_mode = v.pause_mode, paused_until = v.paused_until, pause_reason = v.pause_reason FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS pause_mode, unnest($3::timestamptz[]) AS paused_until, unnest($4::text[]) AS pause_reason) AS v WHERE t.execution_id = v.execution_id;
DEALLOCATE statement;

-- xdb::store::execution::READ
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key FROM xdb.process_execution p WHERE execution_id = ANY ($1) ORDER BY execution_id;
DEALLOCATE statement;

-- xdb::store::execution::STEP
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key FROM xdb.process_execution p WHERE execution_id = ANY ($1) ORDER BY execution_id FOR NO KEY UPDATE;
DEALLOCATE statement;

-- xdb::store::execution::STEP_OR_SKIP
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key FROM xdb.process_execution p WHERE execution_id = ANY ($1) ORDER BY execution_id FOR NO KEY UPDATE SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::execution::UNMARK_ALL
PREPARE statement AS
WITH marked AS MATERIALIZED (SELECT execution_id FROM xdb.process_execution WHERE  closing IS NOT NULL ORDER BY execution_id FOR NO KEY UPDATE SKIP LOCKED) UPDATE xdb.process_execution p SET closing = NULL FROM marked WHERE p.execution_id = marked.execution_id;
DEALLOCATE statement;

-- xdb::store::execution::UNMARK_THESE
PREPARE statement AS
WITH marked AS MATERIALIZED (SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1) AND closing IS NOT NULL ORDER BY execution_id FOR NO KEY UPDATE SKIP LOCKED) UPDATE xdb.process_execution p SET closing = NULL FROM marked WHERE p.execution_id = marked.execution_id;
DEALLOCATE statement;

-- xdb::store::execution::UPDATE
PREPARE statement AS
UPDATE xdb.process_execution p SET status = v.status, closed_at = v.closed_at, reason = v.reason, next_event = v.next_event, next_state = v.next_state, next_message = v.next_message, live_threads = v.live_threads, queued_messages = v.queued_messages, queued_bytes = v.queued_bytes, timers = v.timers, completing = v.completing, state_numbers = v.state_numbers, closing = NULL, results = CASE WHEN v.results = '[]' THEN p.results ELSE p.results || v.results END FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS status, unnest($3::timestamptz[]) AS closed_at, unnest($4::text[]) AS reason, unnest($5::int8[]) AS next_event, unnest($6::int4[]) AS next_state, unnest($7::int8[]) AS next_message, unnest($8::int4[]) AS live_threads, unnest($9::int4[]) AS queued_messages, unnest($10::int8[]) AS queued_bytes, unnest($11::int4[]) AS timers, unnest($12::bool[]) AS completing, unnest($13::text[])::jsonb AS state_numbers, unnest($14::text[])::jsonb AS results, unnest($15::oid[]) AS owner, unnest($16::int8[]) AS loaded_event) AS v WHERE p.execution_id = v.execution_id AND p.next_event = v.loaded_event AND p.owner = v.owner;
DEALLOCATE statement;

-- xdb::store::execution::UPDATE_RETAINED
PREPARE statement AS
UPDATE xdb.process_execution p SET status = v.status, closed_at = v.closed_at, reason = v.reason, next_event = v.next_event, next_state = v.next_state, next_message = v.next_message, live_threads = v.live_threads, queued_messages = v.queued_messages, queued_bytes = v.queued_bytes, timers = v.timers, completing = v.completing, state_numbers = v.state_numbers, purge_at = COALESCE(v.purge_at, 'infinity'), closing = NULL, results = CASE WHEN v.results = '[]' THEN p.results ELSE p.results || v.results END FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS status, unnest($3::timestamptz[]) AS closed_at, unnest($4::text[]) AS reason, unnest($5::int8[]) AS next_event, unnest($6::int4[]) AS next_state, unnest($7::int8[]) AS next_message, unnest($8::int4[]) AS live_threads, unnest($9::int4[]) AS queued_messages, unnest($10::int8[]) AS queued_bytes, unnest($11::int4[]) AS timers, unnest($12::bool[]) AS completing, unnest($13::text[])::jsonb AS state_numbers, unnest($14::text[])::jsonb AS results, unnest($15::oid[]) AS owner, unnest($16::timestamptz[]) AS purge_at, unnest($17::int8[]) AS loaded_event) AS v WHERE p.execution_id = v.execution_id AND p.next_event = v.loaded_event AND p.owner = v.owner;
DEALLOCATE statement;

-- xdb::store::global_queue::EXPIRE
PREPARE statement AS
DELETE FROM xdb.global_message WHERE number = ANY (ARRAY( SELECT number FROM xdb.global_message WHERE taken_by IS NULL AND expires_at <= $1 AND NOT fresh ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED));
DEALLOCATE statement;

-- xdb::store::global_queue::FORGET_KEYS
PREPARE statement AS
DELETE FROM xdb.global_message_key t USING (SELECT unnest($1::text[]) AS queue_name, unnest($2::text[]) AS message_id, unnest($3::oid[]) AS owner) AS v WHERE t.queue_name = v.queue_name AND t.message_id = v.message_id AND t.owner = v.owner;
DEALLOCATE statement;

-- xdb::store::global_queue::GIVE_BACK
PREPARE statement AS
UPDATE xdb.global_message m SET taken_by = NULL, taken_seq = NULL, taken_command = NULL, taken_at = NULL, fresh = true, expires_at = m.expires_at + GREATEST($3 - m.taken_at, interval '0') FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE m.taken_by = v.execution_id AND m.taken_seq = v.seq;
DEALLOCATE statement;

-- xdb::store::global_queue::GIVE_BACK_ALL
PREPARE statement AS
UPDATE xdb.global_message m SET taken_by = NULL, taken_seq = NULL, taken_command = NULL, taken_at = NULL, fresh = true, expires_at = m.expires_at + GREATEST($1 - m.taken_at, interval '0') WHERE m.taken_by = ANY ($2);
DEALLOCATE statement;

-- xdb::store::global_queue::HEADS_OF_KEYS
PREPARE statement AS
SELECT h.number, h.queue_name, h.key, h.bytes, h.fresh FROM (SELECT unnest($1::text[]) AS queue_name, unnest($2::text[]) AS key, unnest($3::int8[]) AS behind, unnest($4::int8[]) AS wanted) AS v CROSS JOIN LATERAL (SELECT m.number, m.queue_name, m.key, m.bytes, m.fresh FROM xdb.global_message m WHERE m.queue_name = v.queue_name AND m.key = v.key AND m.number - 0 > v.behind AND m.taken_by IS NULL AND (m.expires_at IS NULL OR m.expires_at > $5 OR m.fresh) ORDER BY m.number - 0 LIMIT v.wanted) AS h ORDER BY h.number;
DEALLOCATE statement;

-- xdb::store::global_queue::HEADS_OF_QUEUES
PREPARE statement AS
SELECT h.number, h.queue_name, h.key, h.bytes, h.fresh FROM (SELECT unnest($1::text[]) AS queue_name, unnest($2::int8[]) AS wanted) AS v CROSS JOIN LATERAL (SELECT m.number, m.queue_name, m.key, m.bytes, m.fresh FROM xdb.global_message m WHERE m.queue_name = v.queue_name  AND m.taken_by IS NULL AND (m.expires_at IS NULL OR m.expires_at > $3 OR m.fresh) ORDER BY m.number + 0 LIMIT v.wanted) AS h ORDER BY h.number;
DEALLOCATE statement;

-- xdb::store::global_queue::IS_KNOWN
PREPARE statement AS
SELECT EXISTS (SELECT FROM xdb.global_message_key k WHERE k.queue_name = $1 AND k.owner = $2 AND k.message_id = $3) AS known;
DEALLOCATE statement;

-- xdb::store::global_queue::MESSAGES
PREPARE statement AS
SELECT number, queue_name, key, message_id, payload::text FROM xdb.global_message WHERE number = ANY ($1) ORDER BY number;
DEALLOCATE statement;

-- xdb::store::global_queue::OFFERED
PREPARE statement AS
WITH expired AS (DELETE FROM xdb.global_message WHERE number = ANY ($1) AND taken_by IS NULL AND expires_at <= GREATEST($2, published_at)) UPDATE xdb.global_message SET fresh = false WHERE number = ANY ($1) AND fresh AND (expires_at IS NULL OR expires_at > GREATEST($2, published_at));
DEALLOCATE statement;

-- xdb::store::global_queue::OLD_KEYS
PREPARE statement AS
SELECT k.queue_name, k.message_id, k.owner, k.published_at, EXISTS (SELECT FROM xdb.global_message m WHERE m.queue_name = k.queue_name AND m.message_id = k.message_id AND m.owner = k.owner) AS is_there FROM xdb.global_message_key k WHERE k.published_at <= $1 AND (k.published_at, k.queue_name, k.message_id, k.owner) > ($2, $3, $4, $6) ORDER BY k.published_at, k.queue_name, k.message_id, k.owner LIMIT $5;
DEALLOCATE statement;

-- xdb::store::global_queue::PUBLISH
PREPARE statement AS
INSERT INTO xdb.global_message (queue_name, key, message_id, payload, bytes, owner, owner_name, published_at, expires_at) SELECT v.queue_name, v.key, v.message_id, v.payload, v.bytes, v.owner, COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = v.owner), ''), v.published_at, v.expires_at FROM (SELECT unnest($1::text[]) AS queue_name, unnest($2::text[]) AS key, unnest($3::text[]) AS message_id, unnest($4::text[])::jsonb AS payload, unnest($5::int4[]) AS bytes, unnest($6::oid[]) AS owner, unnest($7::timestamptz[]) AS published_at, unnest($8::timestamptz[]) AS expires_at) AS v;
DEALLOCATE statement;

-- xdb::store::global_queue::TAKE
PREPARE statement AS
UPDATE xdb.global_message m SET taken_by = v.execution_id, taken_seq = v.seq, taken_command = v.command, taken_at = v.taken_at, fresh = false FROM (SELECT unnest($1::int8[]) AS number, unnest($2::uuid[]) AS execution_id, unnest($3::int4[]) AS seq, unnest($4::int4[]) AS command, unnest($5::timestamptz[]) AS taken_at) AS v WHERE m.number = v.number AND m.taken_by IS NULL;
DEALLOCATE statement;

-- xdb::store::global_queue::USED_UP
PREPARE statement AS
DELETE FROM xdb.global_message m USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE m.taken_by = v.execution_id AND m.taken_seq = v.seq;
DEALLOCATE statement;

-- xdb::store::global_queue::USE_KEYS
PREPARE statement AS
INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) SELECT v.queue_name, v.message_id, v.published_at, v.owner, COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = v.owner), '') FROM (SELECT unnest($1::text[]) AS queue_name, unnest($2::text[]) AS message_id, unnest($3::oid[]) AS owner, unnest($4::timestamptz[]) AS published_at) AS v ORDER BY v.queue_name, v.message_id, v.owner ON CONFLICT DO NOTHING RETURNING queue_name, message_id, owner;
DEALLOCATE statement;

-- xdb::store::global_waiter::DELETE_WAITERS
PREPARE statement AS
DELETE FROM xdb.global_waiter t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::global_waiter::FRESH
PREPARE statement AS
SELECT number, queue_name, key FROM xdb.global_message WHERE fresh ORDER BY number + 0 LIMIT 1000;
DEALLOCATE statement;

-- xdb::store::global_waiter::NEW_WAITERS
PREPARE statement AS
INSERT INTO xdb.global_waiter (execution_id, seq, command, queue_name, key, at_least) SELECT unnest($1::uuid[]), unnest($2::int4[]), unnest($3::int4[]), unnest($4::text[]), unnest($5::text[]), unnest($6::int8[]);
DEALLOCATE statement;

-- xdb::store::global_waiter::NOTE_BUSY
PREPARE statement AS
INSERT INTO xdb.global_passed_over (execution_id, seq) SELECT DISTINCT w.execution_id, w.seq FROM xdb.global_waiter w JOIN unnest($1::text[], $2::text[]) AS c (queue_name, key) ON c.queue_name = w.queue_name AND c.key = COALESCE(w.key, '') WHERE w.execution_id = ANY ($3) ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::global_waiter::NO_LONGER_PASSED_OVER
PREPARE statement AS
DELETE FROM xdb.global_passed_over t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::global_waiter::PASSED_OVER
PREPARE statement AS
SELECT p.execution_id, p.seq, (SELECT min(w.wait_order) FROM xdb.global_waiter w WHERE w.execution_id = p.execution_id AND w.seq = p.seq) AS wait_order FROM xdb.global_passed_over p WHERE p.execution_id <> ALL ($1) LIMIT $2;
DEALLOCATE statement;

-- xdb::store::global_waiter::PASS_OVER
PREPARE statement AS
INSERT INTO xdb.global_passed_over (execution_id, seq) SELECT unnest($1::uuid[]), unnest($2::int4[]) ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::global_waiter::WAITERS_GONE
PREPARE statement AS
DELETE FROM xdb.global_waiter t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int4[]) AS command) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq AND t.command = v.command;
DEALLOCATE statement;

-- xdb::store::global_waiter::WAITERS_OF_KEYS
PREPARE statement AS
SELECT c.n, a.available, w.execution_id, w.seq, w.wait_order FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS c (queue_name, key, n) CROSS JOIN LATERAL (SELECT w.at_least AS most FROM xdb.global_waiter w WHERE w.queue_name = c.queue_name AND w.key = c.key ORDER BY w.key DESC, w.at_least DESC, w.wait_order DESC LIMIT 1) AS g CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS available FROM (SELECT FROM xdb.global_message m WHERE m.queue_name = c.queue_name AND m.key = c.key AND m.taken_by IS NULL AND (m.expires_at IS NULL OR m.expires_at > $3 OR m.fresh) ORDER BY m.number - 0 LIMIT GREATEST(g.most, $4)) AS l) AS a CROSS JOIN LATERAL (WITH RECURSIVE wanted (at_least) AS ( SELECT 0::bigint UNION ALL SELECT (SELECT w.at_least FROM xdb.global_waiter w WHERE w.queue_name = c.queue_name AND w.key = c.key AND w.at_least > wanted.at_least AND w.at_least <= a.available ORDER BY w.key, w.at_least, w.wait_order LIMIT 1) FROM wanted WHERE wanted.at_least IS NOT NULL) SELECT w.* FROM wanted CROSS JOIN LATERAL (SELECT w.execution_id, w.seq, w.wait_order FROM xdb.global_waiter w WHERE w.queue_name = c.queue_name AND w.key = c.key AND w.at_least = wanted.at_least AND w.execution_id <> ALL ($5) ORDER BY w.key, w.wait_order LIMIT LEAST(a.available, $6)) AS w ORDER BY w.wait_order LIMIT LEAST(a.available, $6)) AS w;
DEALLOCATE statement;

-- xdb::store::global_waiter::WAITERS_OF_QUEUES
PREPARE statement AS
SELECT c.n, a.available, w.execution_id, w.seq, w.wait_order FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS c (queue_name, key, n) CROSS JOIN LATERAL (SELECT w.at_least AS most FROM xdb.global_waiter w WHERE w.queue_name = c.queue_name AND w.key IS NULL ORDER BY w.key DESC, w.at_least DESC, w.wait_order DESC LIMIT 1) AS g CROSS JOIN LATERAL (SELECT pg_catalog.count(*) AS available FROM (SELECT FROM xdb.global_message m WHERE m.queue_name = c.queue_name  AND m.taken_by IS NULL AND (m.expires_at IS NULL OR m.expires_at > $3 OR m.fresh) ORDER BY m.number + 0 LIMIT GREATEST(g.most, $4)) AS l) AS a CROSS JOIN LATERAL (WITH RECURSIVE wanted (at_least) AS ( SELECT 0::bigint UNION ALL SELECT (SELECT w.at_least FROM xdb.global_waiter w WHERE w.queue_name = c.queue_name AND w.key IS NULL AND w.at_least > wanted.at_least AND w.at_least <= a.available ORDER BY w.key, w.at_least, w.wait_order LIMIT 1) FROM wanted WHERE wanted.at_least IS NOT NULL) SELECT w.* FROM wanted CROSS JOIN LATERAL (SELECT w.execution_id, w.seq, w.wait_order FROM xdb.global_waiter w WHERE w.queue_name = c.queue_name AND w.key IS NULL AND w.at_least = wanted.at_least AND w.execution_id <> ALL ($5) ORDER BY w.key, w.wait_order LIMIT LEAST(a.available, $6)) AS w ORDER BY w.wait_order LIMIT LEAST(a.available, $6)) AS w;
DEALLOCATE statement;

-- xdb::store::history::COUNT
PREPARE statement AS
SELECT pg_catalog.count(*) AS events FROM xdb.history_event WHERE execution_id = $1;
DEALLOCATE statement;

-- xdb::store::history::CUT
PREPARE statement AS
DELETE FROM xdb.history_event WHERE execution_id = $1 AND event_id < $2;
DEALLOCATE statement;

-- xdb::store::history::INSERT
PREPARE statement AS
INSERT INTO xdb.history_event (execution_id, event_id, event_time, event_type, details) SELECT unnest($1::uuid[]), unnest($2::int8[]), unnest($3::timestamptz[]), unnest($4::text[]), unnest($5::text[])::jsonb;
DEALLOCATE statement;

-- xdb::store::history::OLDEST
PREPARE statement AS
SELECT event_id, pg_catalog.pg_column_size(details) AS bytes FROM xdb.history_event WHERE execution_id = $1 ORDER BY event_id LIMIT 1;
DEALLOCATE statement;

-- xdb::store::history::PUT_SNAPSHOT
PREPARE statement AS
UPDATE xdb.history_event SET event_type = $3, details = $4::text::jsonb WHERE execution_id = $1 AND event_id = $2;
DEALLOCATE statement;

-- xdb::store::history::SLICE
PREPARE statement AS
SELECT event_id, event_time, event_type, details::text FROM xdb.history_event WHERE execution_id = $1 AND event_id > $2 AND event_id <= $3 ORDER BY event_id LIMIT 1000;
DEALLOCATE statement;

-- xdb::store::inbox::ALL_KEYS
PREPARE statement AS
SELECT queue_name, message_id FROM xdb.message_key WHERE execution_id = $1;
DEALLOCATE statement;

-- xdb::store::inbox::ARRIVALS
PREPARE statement AS
SELECT h.execution_id, h.inbox_id, h.goes, i.queue_name, i.message_id, i.payload::text AS payload FROM ( SELECT o.execution_id, o.inbox_id, sum(o.weight) OVER taken - o.weight <= $4 AS goes FROM (SELECT v.execution_id, n.inbox_id, n.weight, sum(n.weight) OVER (PARTITION BY v.owner ORDER BY n.inbox_id) AS of_owner, pg_catalog.hashoidextended(v.owner, $5) AS shuffled FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::oid[]) AS owner) AS v CROSS JOIN LATERAL (SELECT i.inbox_id, 1 + i.bytes / 1024 AS weight FROM xdb.inbox i WHERE i.execution_id = v.execution_id ORDER BY i.inbox_id LIMIT $3) AS n) AS o WINDOW taken AS (ORDER BY o.of_owner - o.weight, o.shuffled, o.inbox_id)) AS h LEFT JOIN xdb.inbox i ON i.execution_id = CASE WHEN h.goes THEN h.execution_id END AND i.inbox_id = h.inbox_id ORDER BY h.inbox_id;
DEALLOCATE statement;

-- xdb::store::inbox::ARRIVED
PREPARE statement AS
SELECT a.execution_id, a.inbox_id, v.owner FROM (SELECT unnest($1::oid[]) AS owner, unnest($2::int8[]) AS since) AS v CROSS JOIN LATERAL ( SELECT t.execution_id, t.inbox_id FROM xdb.inbox t WHERE t.owner = v.owner AND t.inbox_id >= v.since AND t.execution_id <> ALL ($3) ORDER BY t.inbox_id LIMIT $4) AS a ORDER BY a.inbox_id;
DEALLOCATE statement;

-- xdb::store::inbox::DELETE
PREPARE statement AS
DELETE FROM xdb.inbox t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int8[]) AS inbox_id) AS v WHERE t.execution_id = v.execution_id AND t.inbox_id = v.inbox_id;
DEALLOCATE statement;

-- xdb::store::inbox::FIRSTS
PREPARE statement AS
WITH RECURSIVE first (owner, at) AS ( (SELECT t.owner, t.inbox_id FROM xdb.inbox t ORDER BY t.owner, t.inbox_id LIMIT 1) UNION ALL SELECT n.owner, n.inbox_id FROM first f CROSS JOIN LATERAL ( SELECT t.owner, t.inbox_id FROM xdb.inbox t WHERE t.owner > f.owner ORDER BY t.owner, t.inbox_id LIMIT 1) AS n) SELECT f.owner, f.at FROM first f;
DEALLOCATE statement;

-- xdb::store::inbox::INSERT
PREPARE statement AS
INSERT INTO xdb.inbox (execution_id, shard, queue_name, message_id, payload, bytes, published_at, owner) SELECT unnest($1::uuid[]), unnest($2::int2[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[])::jsonb, unnest($6::int4[]), unnest($7::timestamptz[]), unnest($8::oid[]);
DEALLOCATE statement;

-- xdb::store::inbox::IS_KNOWN
PREPARE statement AS
SELECT EXISTS (SELECT FROM xdb.message_key WHERE execution_id = $1 AND queue_name = $2 AND message_id = $3) AS known;
DEALLOCATE statement;

-- xdb::store::inbox::KEYS
PREPARE statement AS
INSERT INTO xdb.message_key (execution_id, queue_name, message_id) SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[]);
DEALLOCATE statement;

-- xdb::store::inbox::KEYS_IN_INBOX
PREPARE statement AS
SELECT queue_name, message_id FROM xdb.inbox WHERE execution_id = $1 AND message_id IS NOT NULL ORDER BY inbox_id;
DEALLOCATE statement;

-- xdb::store::inbox::KNOWN_KEYS
PREPARE statement AS
SELECT m.execution_id, m.queue_name, m.message_id FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::text[]) AS message_id) AS v JOIN xdb.message_key m USING (execution_id, queue_name, message_id);
DEALLOCATE statement;

-- xdb::store::inbox::UNSEEN
PREPARE statement AS
SELECT EXISTS (SELECT FROM xdb.inbox WHERE execution_id = $1 AND queue_name = COALESCE($2, queue_name)) AS unseen;
DEALLOCATE statement;

-- xdb::store::inbox::USE_KEY
PREPARE statement AS
INSERT INTO xdb.message_key (execution_id, queue_name, message_id) SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[]) ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::instance::ADOPT
PREPARE statement AS
INSERT INTO xdb.instances (system_identifier, database) VALUES ($1, $2) ON CONFLICT (system_identifier, database) DO UPDATE SET since = pg_catalog.clock_timestamp(), superseded_at = NULL;
DEALLOCATE statement;

-- xdb::store::instance::BUMP
PREPARE statement AS
WITH free AS MATERIALIZED (SELECT c.slot FROM xdb.registration_count c ORDER BY c.slot LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED), counted AS (UPDATE xdb.registration_count c SET registrations = c.registrations + 1 FROM free WHERE c.slot = free.slot RETURNING c.slot) INSERT INTO xdb.registration_count (registrations) SELECT 1 WHERE NOT EXISTS (SELECT FROM counted);
DEALLOCATE statement;

-- xdb::store::instance::IN_USE
PREPARE statement AS
UPDATE xdb.registry SET in_use = true;
DEALLOCATE statement;

-- xdb::store::instance::OWNERSHIP_NOW
PREPARE statement AS
SELECT i.*, r.in_use FROM (SELECT i.system_identifier, i.database FROM xdb.instances i WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1) AS i CROSS JOIN xdb.registry r;
DEALLOCATE statement;

-- xdb::store::instance::SUPERSEDE
PREPARE statement AS
UPDATE xdb.instances SET superseded_at = pg_catalog.clock_timestamp() WHERE superseded_at IS NULL AND (system_identifier, database) <> ($1, $2);
DEALLOCATE statement;

-- xdb::store::instance::TAKE_INTO_USE
PREPARE statement AS
INSERT INTO xdb.instances (system_identifier, database) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM xdb.instances) ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::left_behind::CURSORS
PREPARE statement AS
SELECT c.name, c::pg_catalog.text AS described FROM pg_catalog.pg_cursors c;
DEALLOCATE statement;

-- xdb::store::left_behind::TEMPORARY
PREPARE statement AS
SELECT 'r' || c.oid AS object FROM pg_catalog.pg_class c WHERE c.relnamespace = $1 UNION ALL SELECT 't' || t.oid FROM pg_catalog.pg_type t WHERE t.typnamespace = $1 UNION ALL SELECT 'f' || f.oid FROM pg_catalog.pg_proc f WHERE f.pronamespace = $1 UNION ALL SELECT 'o' || o.oid FROM pg_catalog.pg_operator o WHERE o.oprnamespace = $1;
DEALLOCATE statement;

-- xdb::store::lines::BACKLOG
PREPARE statement AS
WITH all_levels AS MATERIALIZED (SELECT a.lane, o.* FROM unnest('{0,1}'::int2[]) AS a (lane) CROSS JOIN LATERAL (WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT * FROM level) AS o) SELECT (SELECT count(*) FROM (SELECT FROM all_levels l CROSS JOIN LATERAL ( SELECT FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $1 LIMIT 10000) AS due LIMIT 10000) AS counted) AS calls, (SELECT min(o.due_at) FROM all_levels l CROSS JOIN LATERAL ( SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $1 ORDER BY t.due_at LIMIT 1) AS o) AS oldest;
DEALLOCATE statement;

-- xdb::store::lines::EARLIEST
PREPARE statement AS
WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = $2 ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = $2 AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n), first (owner, at) AS ( (SELECT t.owner, t.fire_at FROM xdb.timer t ORDER BY t.owner, t.fire_at LIMIT 1) UNION ALL SELECT n.owner, n.fire_at FROM first f CROSS JOIN LATERAL ( SELECT t.owner, t.fire_at FROM xdb.timer t WHERE t.owner > f.owner ORDER BY t.owner, t.fire_at LIMIT 1) AS n) SELECT NULL::oid AS owner, min(l.due_at) AS due_at, EXISTS (SELECT FROM xdb.inbox) AS messages FROM level l WHERE l.worker_id = ANY ($1) UNION ALL SELECT f.owner, f.at, false FROM first f;
DEALLOCATE statement;

-- xdb::store::lines::FOR_RUNNERS
PREPARE statement AS
WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = 1 ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = 1 AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n), l AS MATERIALIZED (SELECT * FROM level WHERE worker_id = ANY ($1)) SELECT (SELECT count(*) FROM (SELECT FROM l CROSS JOIN LATERAL (SELECT FROM xdb.task t WHERE t.lane = 1 AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $2 AND (t.lease_until IS NULL OR t.lease_until <= $3 OR t.lease_epoch <> 0 AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch)) ORDER BY t.due_at LIMIT $4) AS d WHERE l.worker_id <> 0 LIMIT $4) AS due) AS workers, (SELECT count(*) FROM (SELECT FROM l CROSS JOIN LATERAL (SELECT FROM xdb.task t WHERE t.lane = 1 AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $2 AND (t.lease_until IS NULL OR t.lease_until <= $3 OR t.lease_epoch <> 0 AND t.lease_epoch <= (SELECT max(m.epoch) FROM xdb.engine m) AND NOT EXISTS (SELECT FROM xdb.engine e WHERE e.epoch = t.lease_epoch)) ORDER BY t.due_at LIMIT $4) AS d WHERE l.worker_id = 0 LIMIT $4) AS due) AS functions, (SELECT min(n.due_at) FROM l CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t WHERE t.lane = 1 AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at > $2 ORDER BY t.due_at LIMIT 1) AS n) AS next;
DEALLOCATE statement;

-- xdb::store::lines::FREE_IN
PREPARE statement AS
SELECT v.worker_id, v.owner, v.priority FROM (SELECT unnest($1::int4[]) AS worker_id, unnest($2::oid[]) AS owner, unnest($3::int2[]) AS priority) AS v WHERE EXISTS (SELECT FROM xdb.task t WHERE t.lane = $4 AND t.worker_id = v.worker_id AND t.owner = v.owner AND t.priority = v.priority AND t.due_at <= $5 AND (t.lease_until IS NULL OR t.lease_epoch < $6 OR t.lease_until <= $7));
DEALLOCATE statement;

-- xdb::store::lines::LEVELS
PREPARE statement AS
WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = $1 ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = $1 AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT l.worker_id, l.owner, l.priority, l.due_at FROM level l;
DEALLOCATE statement;

-- xdb::store::lines::MISSING_TYPES
PREPARE statement AS
WITH all_levels AS MATERIALIZED (SELECT a.lane, o.* FROM unnest('{0,1}'::int2[]) AS a (lane) CROSS JOIN LATERAL (WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT * FROM level) AS o), head AS MATERIALIZED (SELECT DISTINCT h.execution_id FROM all_levels l CROSS JOIN LATERAL ( SELECT t.execution_id FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $1 ORDER BY t.due_at LIMIT 100) AS h) SELECT p.process_type, pg_catalog.count(*) AS running FROM head JOIN xdb.process_execution p USING (execution_id) WHERE p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type t WHERE t.type_id = p.type_id) GROUP BY p.process_type ORDER BY p.process_type LIMIT 20;
DEALLOCATE statement;

-- xdb::store::lines::NEXT_DUE
PREPARE statement AS
SELECT min(n.due_at) AS next FROM (SELECT unnest($1::int4[]) AS worker_id, unnest($2::oid[]) AS owner, unnest($3::int2[]) AS priority) AS v CROSS JOIN LATERAL (SELECT t.due_at FROM xdb.task t WHERE t.lane = $4 AND t.worker_id = v.worker_id AND t.owner = v.owner AND t.priority = v.priority AND t.due_at > $5 ORDER BY t.due_at LIMIT 1) AS n;
DEALLOCATE statement;

-- xdb::store::lines::UNREGISTERED
PREPARE statement AS
WITH all_levels AS MATERIALIZED (SELECT a.lane, o.* FROM unnest('{0,1}'::int2[]) AS a (lane) CROSS JOIN LATERAL (WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT * FROM level) AS o) SELECT d.execution_id, d.seq FROM all_levels l CROSS JOIN LATERAL (SELECT t.execution_id, t.seq FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at > $2 AND t.due_at <= $3) AS d JOIN xdb.process_execution p ON p.execution_id = d.execution_id JOIN xdb.state_execution s ON s.execution_id = d.execution_id AND s.seq = d.seq WHERE p.process_type = $1 AND p.status = 'RUNNING' AND (s.last_failure ->> 'attempt')::int > (s.call ->> 'failedAttempts')::int LIMIT 1000;
DEALLOCATE statement;

-- xdb::store::lines::WAITING
PREPARE statement AS
WITH all_levels AS MATERIALIZED (SELECT a.lane, o.* FROM unnest('{0,1}'::int2[]) AS a (lane) CROSS JOIN LATERAL (WITH RECURSIVE level (worker_id, owner, priority, due_at) AS ( (SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM level CROSS JOIN LATERAL ( SELECT t.worker_id, t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND (t.worker_id, t.owner, t.priority) > (level.worker_id, level.owner, level.priority) ORDER BY t.worker_id, t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT * FROM level) AS o), waits AS MATERIALIZED (SELECT l.worker_id, d.due_at FROM all_levels l CROSS JOIN LATERAL ( SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = l.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $1 AND (t.lease_until IS NULL OR t.lease_until <= $2) ORDER BY t.due_at LIMIT 1000) AS d) SELECT w.worker_id, count(*) AS calls, min(w.due_at) AS since FROM waits w GROUP BY w.worker_id;
DEALLOCATE statement;

-- xdb::store::locks::COLUMN_TYPES
PREPARE statement AS
SELECT a.attrelid AS relation, a.attname::text AS name, a.atttypid AS type FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped;
DEALLOCATE statement;

-- xdb::store::locks::OVER
PREPARE statement AS
SELECT v.execution_id, v.seq FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE NOT EXISTS (SELECT FROM xdb.task t WHERE t.execution_id = v.execution_id AND t.seq = v.seq);
DEALLOCATE statement;

-- xdb::store::owners::INBOX_INTO_LINES
PREPARE statement AS
UPDATE xdb.inbox t SET owner = p.owner FROM xdb.process_execution p WHERE p.execution_id = t.execution_id AND p.owner <> t.owner;
DEALLOCATE statement;

-- xdb::store::owners::LOCKS_INTO_LINES
PREPARE statement AS
UPDATE xdb.process_lock t SET owner = p.owner FROM xdb.process_execution p WHERE p.execution_id = t.execution_id AND p.owner <> t.owner;
DEALLOCATE statement;

-- xdb::store::owners::MESSAGES
PREPARE statement AS
UPDATE xdb.global_message t SET owner = $2, owner_name = $3 WHERE (t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::owners::MESSAGE_IDS
PREPARE statement AS
WITH gone AS (DELETE FROM xdb.global_message_key t WHERE (t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner)) RETURNING t.*) INSERT INTO xdb.global_message_key (queue_name, message_id, published_at, owner, owner_name) SELECT g.queue_name, g.message_id, g.published_at, $2, $3 FROM gone g ORDER BY 1, 2 ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::owners::OWNERLESS
PREPARE statement AS
SELECT pg_catalog.count(*) AS ownerless FROM (SELECT p.owner FROM xdb.process_execution p WHERE p.status = 'RUNNING' ORDER BY p.process_id LIMIT 100000) AS running WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = running.owner);
DEALLOCATE statement;

-- xdb::store::owners::PROCESSES
PREPARE statement AS
WITH old AS MATERIALIZED (SELECT t.execution_id FROM xdb.process_execution t WHERE (t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner)) ORDER BY t.execution_id FOR NO KEY UPDATE), given AS (UPDATE xdb.process_execution p SET owner = $2, owner_name = $3 FROM old WHERE p.execution_id = old.execution_id RETURNING p.status) SELECT pg_catalog.count(*) FILTER (WHERE status = 'RUNNING') AS running FROM given;
DEALLOCATE statement;

-- xdb::store::owners::TASKS_INTO_LINES
PREPARE statement AS
UPDATE xdb.task t SET owner = p.owner FROM xdb.process_execution p WHERE p.execution_id = t.execution_id AND p.owner <> t.owner;
DEALLOCATE statement;

-- xdb::store::owners::TIMERS_INTO_LINES
PREPARE statement AS
UPDATE xdb.timer t SET owner = p.owner FROM xdb.process_execution p WHERE p.execution_id = t.execution_id AND p.owner <> t.owner;
DEALLOCATE statement;

-- xdb::store::owners::TYPES
PREPARE statement AS
UPDATE xdb.process_type t SET owner = $2, owner_name = $3 WHERE (t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::owners::WORKERS
PREPARE statement AS
UPDATE xdb.worker t SET owner = $2, owner_name = $3 WHERE (t.owner = $1::oid OR $1::oid IS NULL AND NOT EXISTS ( SELECT FROM pg_catalog.pg_roles r WHERE r.oid = t.owner));
DEALLOCATE statement;

-- xdb::store::parked::PARK_OF_PROCESSES
PREPARE statement AS
WITH paused AS MATERIALIZED (SELECT p.execution_id FROM xdb.process_execution p WHERE p.execution_id = ANY ($1) AND p.pause_mode IS NOT NULL ORDER BY p.execution_id FOR NO KEY UPDATE SKIP LOCKED) UPDATE xdb.task t SET lane = 2, lease_epoch = 0, lease_number = 0, lease_until = NULL FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN paused USING (execution_id) WHERE t.execution_id = v.execution_id AND t.seq = v.seq RETURNING t.execution_id, t.seq;
DEALLOCATE statement;

-- xdb::store::parked::PARK_OF_TYPES
PREPARE statement AS
WITH paused AS MATERIALIZED (SELECT y.type_id FROM xdb.process_type y WHERE y.type_id = ANY ($4) AND y.pause_mode IS NOT NULL AND (y.paused_until IS NULL OR y.paused_until > $6) ORDER BY y.type_id FOR SHARE SKIP LOCKED), slice AS MATERIALIZED (SELECT s.execution_id, s.seq, false AS is_found FROM (SELECT unnest($1::int4[]) AS worker_id, unnest($2::oid[]) AS owner, unnest($3::int2[]) AS priority) AS v CROSS JOIN LATERAL ( SELECT t.execution_id, t.seq FROM xdb.task t WHERE t.lane = 0 AND t.worker_id = v.worker_id AND t.owner = v.owner AND t.priority = v.priority AND t.due_at <= $6 ORDER BY t.due_at LIMIT $5) AS s UNION ALL SELECT f.execution_id, f.seq, true FROM unnest($9::uuid[], $10::integer[]) AS f (execution_id, seq)), free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM slice s JOIN xdb.process_execution p ON p.execution_id = s.execution_id JOIN paused y ON y.type_id = p.type_id JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq WHERE s.is_found OR t.lane = 0 AND (t.lease_until IS NULL OR CASE WHEN $7 = 0 THEN t.lease_epoch <> 0 ELSE t.lease_epoch < $7 OR t.lease_until <= $8 END) FOR UPDATE OF t SKIP LOCKED) UPDATE xdb.task t SET lane = 2, lease_epoch = 0, lease_number = 0, lease_until = NULL FROM free f WHERE t.execution_id = f.execution_id AND t.seq = f.seq RETURNING t.execution_id, t.seq;
DEALLOCATE statement;

-- xdb::store::parked::RESUME
PREPARE statement AS
UPDATE xdb.task t SET worker_id = CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END, lane = CASE WHEN CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END = 0 THEN 1 ELSE 0 END WHERE t.execution_id = ANY ($1) AND t.lane = 2 AND NOT EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = t.execution_id AND l.status = 'WAITING');
DEALLOCATE statement;

-- xdb::store::parked::STILL_PARKED
PREPARE statement AS
SELECT p.process_id FROM xdb.task t JOIN xdb.process_execution p USING (execution_id) WHERE t.execution_id = ANY ($1) AND t.lane = 2 AND NOT EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = t.execution_id AND l.status = 'WAITING') LIMIT 1;
DEALLOCATE statement;

-- xdb::store::parked::WALK
PREPARE statement AS
WITH slice AS MATERIALIZED (SELECT t.worker_id, t.owner, t.priority, t.due_at, t.execution_id, t.seq FROM xdb.task t WHERE t.lane = 2 AND (t.worker_id, t.owner, t.priority, t.due_at, t.execution_id, t.seq) < ($1, $2, $3, $4, $5, $6) ORDER BY t.worker_id DESC, t.owner DESC, t.priority DESC, t.due_at DESC, t.execution_id DESC, t.seq DESC LIMIT 1000), free AS MATERIALIZED (SELECT t.execution_id, t.seq FROM slice s JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq JOIN xdb.process_execution p ON p.execution_id = s.execution_id LEFT JOIN xdb.process_type y ON y.type_id = p.type_id AND y.pause_mode IS NOT NULL AND (y.paused_until IS NULL OR y.paused_until > $7) WHERE t.lane = 2 AND y.type_id IS NULL AND p.pause_mode IS NULL AND NOT EXISTS (SELECT FROM xdb.process_lock l WHERE l.execution_id = t.execution_id AND l.status = 'WAITING')), locked AS MATERIALIZED (SELECT t.execution_id, t.seq FROM free f JOIN xdb.task t ON t.execution_id = f.execution_id AND t.seq = f.seq FOR UPDATE OF t SKIP LOCKED), moved AS (UPDATE xdb.task t SET worker_id = CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END, lane = CASE WHEN CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END = 0 THEN 1 ELSE 0 END FROM locked l WHERE t.execution_id = l.execution_id AND t.seq = l.seq) SELECT worker_id, owner, priority, due_at, execution_id, seq, (SELECT count(*) FROM slice) = 1000 AS more, (SELECT count(*) FROM free) AS free, (SELECT count(*) FROM locked) AS moved FROM slice ORDER BY worker_id, owner, priority, due_at, execution_id, seq LIMIT 1;
DEALLOCATE statement;

-- xdb::store::pauses::END
PREPARE statement AS
UPDATE xdb.process_type SET pause_mode = NULL, paused_until = NULL, pause_reason = NULL, version = version + 1 WHERE type_id = ANY (ARRAY(SELECT t.type_id FROM xdb.process_type t WHERE t.pause_mode IS NOT NULL AND t.paused_until <= $1 ORDER BY t.type_id FOR NO KEY UPDATE SKIP LOCKED));
DEALLOCATE statement;

-- xdb::store::pauses::NEXT_END
PREPARE statement AS
SELECT min(t.paused_until) AS next FROM xdb.process_type t WHERE t.pause_mode IS NOT NULL;
DEALLOCATE statement;

-- xdb::store::pauses::PUT
PREPARE statement AS
UPDATE xdb.process_type SET pause_mode = $2::text, paused_until = $3, pause_reason = $4, version = version + 1 WHERE type_id = $1 AND ($2::text IS NOT NULL OR pause_mode IS NOT NULL);
DEALLOCATE statement;

-- xdb::store::pauses::TO_PAUSE
PREPARE statement AS
SELECT t.type_id, t.owner FROM xdb.process_type t WHERE t.process_type = $1 FOR NO KEY UPDATE;
DEALLOCATE statement;

-- xdb::store::process::ANSWER
PREPARE statement AS
SELECT output::text, digest FROM xdb.rpc_answer WHERE execution_id = $1 AND idempotency_key = $2;
DEALLOCATE statement;

-- xdb::store::process::BY_REQUEST
PREPARE statement AS
SELECT execution_id, owner FROM xdb.process_execution WHERE process_id = $1 AND request_id = $2;
DEALLOCATE statement;

-- xdb::store::process::DESCRIBE
PREPARE statement AS
SELECT (pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object( 'processId', p.process_id, 'processExecutionId', p.execution_id, 'processType', p.process_type, 'owner', p.owner_name, 'status', p.status, 'closing', p.closing, 'startedAt', p.started_at, 'closedAt', p.closed_at, 'timeoutAt', p.timeout_at, 'reason', p.reason, 'ownerProblem', $2::text, 'heldUpBy', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('lock', h.lock, 'since', h.since, 'table', (SELECT c.oid::regclass::text FROM pg_catalog.pg_class c WHERE c.oid = h.relation)) ORDER BY h.since) FROM unnest($3::text[], $4::oid[], $5::timestamptz[]) AS h (lock, relation, since) WHERE p.status = 'RUNNING'), 'pause', CASE WHEN p.pause_mode IS NOT NULL THEN pg_catalog.jsonb_build_object( 'mode', p.pause_mode, 'reason', p.pause_reason, 'until', p.paused_until) END, 'typePause', (SELECT pg_catalog.jsonb_build_object('mode', t.pause_mode, 'reason', t.pause_reason, 'until', t.paused_until) FROM xdb.process_type t WHERE t.type_id = p.type_id AND t.pause_mode IS NOT NULL AND p.status = 'RUNNING'), 'waitingForProcessLocks', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('name', l.name, 'mode', l.mode) ORDER BY l.name) FROM xdb.process_lock l WHERE l.execution_id = p.execution_id AND l.status = 'WAITING'), 'parent', (SELECT pg_catalog.jsonb_build_object('processId', q.process_id, 'processExecutionId', q.execution_id, 'stateExecutionId', p.started_by -> 'stateExecutionId', 'onClose', p.started_by -> 'onClose', 'whenParentCloses', p.started_by -> 'whenParentCloses') FROM xdb.process_execution q WHERE q.execution_id = p.parent_id AND ($6::oid IS NULL OR pg_catalog.pg_has_role($6::oid, q.owner, 'USAGE'))), 'children', CASE WHEN p.has_children THEN (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object( 'processId', c.process_id, 'processExecutionId', c.execution_id, 'processType', c.process_type)) FROM (SELECT q.process_id, q.execution_id, q.process_type FROM xdb.process_execution q WHERE q.parent_id = p.execution_id AND q.status = 'RUNNING' AND ($6::oid IS NULL OR pg_catalog.pg_has_role($6::oid, q.owner, 'USAGE')) ORDER BY q.started_at, q.execution_id LIMIT 100) AS c) END, 'priority', NULLIF(p.priority, 0), 'completing', CASE WHEN p.completing THEN true END, 'compensating', p.compensation -> 'begun', 'liveThreads', p.live_threads, 'lastFailure', (SELECT s.last_failure || pg_catalog.jsonb_build_object( 'stateExecutionId', s.state_id || '-' || s.number, 'at', pg_catalog.to_timestamp((s.last_failure ->> 'at')::float8 / 1e6)) FROM xdb.state_execution s WHERE s.execution_id = p.execution_id AND s.last_failure IS NOT NULL ORDER BY (s.last_failure ->> 'at')::bigint DESC LIMIT 1))) || pg_catalog.jsonb_build_object( 'threads', COALESCE((SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object( 'stateExecutionId', s.state_id || '-' || s.number, 'status', s.status, 'startedAt', s.started_at, 'api', t.api, 'worker', w.name, 'attempt', (s.call ->> 'failedAttempts')::int + 1, 'firstAttemptAt', t.first_attempt_at, 'repeats', (s.call ->> 'repeats')::int, 'incident', (s.call ->> 'incident')::bool, 'notCalled', CASE WHEN e.epoch IS NULL AND t.lane <> 3 AND t.due_at <= $11 AND (t.lease_epoch <> 0 OR t.lease_until IS NULL) AND n.why IS NOT NULL THEN pg_catalog.jsonb_build_object('why', n.why, 'since', GREATEST(t.due_at, n.since)) END, 'waitingForLocks', CASE WHEN e.epoch IS NOT NULL AND t.lease_until = 'infinity' THEN t.waits_for END, 'callUntil', CASE WHEN (e.epoch IS NOT NULL OR t.lease_epoch = 0 AND t.lease_until IS NOT NULL) AND t.lease_until < 'infinity' THEN t.lease_until END, 'nextAttemptAt', CASE WHEN t.lane <> 3 AND (e.epoch IS NULL AND (t.lease_epoch <> 0 OR t.lease_until IS NULL) OR t.lease_until = 'infinity') THEN t.due_at END, 'held', CASE WHEN t.lane = 3 THEN 'three times the server crashed while this call was made or its answer was applied: xdb.retry_now() has it made again' END, 'lastFailure', s.last_failure || pg_catalog.jsonb_build_object( 'at', pg_catalog.to_timestamp((s.last_failure ->> 'at')::float8 / 1e6)), 'guard', CASE s.status WHEN 'WAITING' THEN (s.wait ->> 'guard')::bool END, 'waitingType', CASE s.status WHEN 'WAITING' THEN s.wait ->> 'waitingType' END, 'waitingSince', CASE s.status WHEN 'WAITING' THEN pg_catalog.to_timestamp((s.wait ->> 'since')::float8 / 1e6) END, 'waitingFor', CASE s.status WHEN 'WAITING' THEN ( SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object( 'commandId', c.value -> 'commandId', 'status', c.value -> 'status', 'queueName', q.queue -> 'queue', 'key', q.queue -> 'key', 'global', CASE WHEN c.value -> 'kind' ? 'globalQueue' THEN true END, 'atLeast', q.queue -> 'atLeast', 'atMost', q.queue -> 'atMost', 'messagesInQueue', CASE WHEN c.value -> 'kind' ? 'localQueue' THEN ( SELECT pg_catalog.count(*) FROM xdb.queue_message m WHERE m.execution_id = p.execution_id AND m.queue_name = c.value -> 'kind' -> 'localQueue' ->> 'queue') + ( SELECT pg_catalog.count(*) FROM xdb.inbox i WHERE i.execution_id = p.execution_id AND i.queue_name = c.value -> 'kind' -> 'localQueue' ->> 'queue') END, 'fireAt', pg_catalog.to_timestamp((c.value -> 'kind' -> 'timer' ->> 'fireAt')::float8 / 1e6) ) ORDER BY c.ordinality) FROM pg_catalog.jsonb_array_elements(s.wait -> 'commands') WITH ORDINALITY c CROSS JOIN LATERAL (SELECT COALESCE(c.value -> 'kind' -> 'localQueue', c.value -> 'kind' -> 'globalQueue') AS queue) AS q) END )) ORDER BY s.seq) FROM xdb.state_execution s LEFT JOIN xdb.task t ON t.execution_id = s.execution_id AND t.seq = s.seq LEFT JOIN xdb.worker w ON w.worker_id = t.worker_id LEFT JOIN xdb.engine e ON e.epoch = t.lease_epoch LEFT JOIN unnest($7::text[], $8::text[], $9::text[], $10::timestamptz[]) AS n (state_id, api, why, since) ON n.state_id = s.state_id AND n.api = t.api WHERE s.execution_id = p.execution_id AND s.ended_at IS NULL), '[]'), 'results', p.results))::text AS description FROM xdb.process_execution p WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::process::DUE_CALLS
PREPARE statement AS
SELECT t.execution_id, min(t.seq) AS seq FROM xdb.task t JOIN xdb.state_execution s ON s.execution_id = t.execution_id AND s.seq = t.seq WHERE t.execution_id = $1 AND t.due_at <= $2 GROUP BY t.execution_id, s.state_id, t.api;
DEALLOCATE statement;

-- xdb::store::process::FIND_EXECUTION
PREPARE statement AS
SELECT p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard, p.queued_messages, p.queued_bytes, p.pause_mode, p.paused_until, p.pause_reason FROM xdb.process_execution p WHERE p.execution_id = $1 AND p.process_id = $2;
DEALLOCATE statement;

-- xdb::store::process::FIND_LATEST
PREPARE statement AS
SELECT p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard, p.queued_messages, p.queued_bytes, p.pause_mode, p.paused_until, p.pause_reason FROM xdb.latest_execution l JOIN xdb.process_execution p USING (execution_id) WHERE l.process_id = $1;
DEALLOCATE statement;

-- xdb::store::process::KEEP_ANSWER
PREPARE statement AS
UPDATE xdb.rpc_answer SET output = $3::text::jsonb WHERE execution_id = $1 AND idempotency_key = $2;
DEALLOCATE statement;

-- xdb::store::process::LATEST_OF_IDS
PREPARE statement AS
SELECT l.process_id, l.execution_id, p.owner FROM unnest($1::text[]) AS k (process_id) JOIN xdb.latest_execution l ON l.process_id = k.process_id JOIN xdb.process_execution p ON p.execution_id = l.execution_id;
DEALLOCATE statement;

-- xdb::store::process::LOCK_FOR_CLOSE
PREPARE statement AS
SELECT p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard, p.queued_messages, p.queued_bytes, p.pause_mode, p.paused_until, p.pause_reason FROM xdb.process_execution p WHERE p.execution_id = $1 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::process::LOCK_FOR_PUBLISH
PREPARE statement AS
SELECT p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard, p.queued_messages, p.queued_bytes, p.pause_mode, p.paused_until, p.pause_reason FROM xdb.process_execution p WHERE p.execution_id = $1 FOR KEY SHARE;
DEALLOCATE statement;

-- xdb::store::process::LOCK_ID
PREPARE statement AS
SELECT execution_id FROM xdb.latest_execution WHERE process_id = $1 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::process::LOCK_IDS
PREPARE statement AS
INSERT INTO xdb.latest_execution AS l (process_id, execution_id) SELECT v.process_id, v.execution_id FROM (SELECT unnest($1::text[]) AS process_id, unnest($2::uuid[]) AS execution_id) AS v ON CONFLICT (process_id) DO UPDATE SET execution_id = l.execution_id WHERE false RETURNING process_id;
DEALLOCATE statement;

-- xdb::store::process::LOCK_OR_SKIP
PREPARE statement AS
SELECT p.execution_id, p.owner, p.status, p.closing, p.type_id, p.shard, p.queued_messages, p.queued_bytes, p.pause_mode, p.paused_until, p.pause_reason FROM xdb.process_execution p WHERE p.execution_id = $1 FOR KEY SHARE SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::process::NEWEST
PREPARE statement AS
SELECT execution_id FROM xdb.process_execution WHERE process_id = $1 ORDER BY started_at DESC, execution_id DESC LIMIT 1;
DEALLOCATE statement;

-- xdb::store::process::NEW_ID
PREPARE statement AS
INSERT INTO xdb.latest_execution (process_id, execution_id) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM xdb.latest_execution l WHERE l.process_id = $1) ON CONFLICT (process_id) DO NOTHING;
DEALLOCATE statement;

-- xdb::store::process::NEW_KEY
PREPARE statement AS
INSERT INTO xdb.rpc_answer (execution_id, idempotency_key, answered_at, digest) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;
DEALLOCATE statement;

-- xdb::store::process::OWNERS
PREPARE statement AS
SELECT execution_id, owner FROM xdb.process_execution WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::process::RESULTS
PREPARE statement AS
SELECT results::text, CASE pg_catalog.jsonb_array_length(results) WHEN 1 THEN (results -> 0 -> 'output')::text END AS only, pg_catalog.to_jsonb(reason)::text AS reason FROM xdb.process_execution WHERE execution_id = $1;
DEALLOCATE statement;

-- xdb::store::process::RUNNING_OWNER
PREPARE statement AS
SELECT owner, owner_name FROM xdb.process_execution WHERE execution_id = $1 AND status = 'RUNNING';
DEALLOCATE statement;

-- xdb::store::process::SET_LATEST
PREPARE statement AS
UPDATE xdb.latest_execution SET execution_id = $2 WHERE process_id = $1;
DEALLOCATE statement;

-- xdb::store::process::STATE_CAN_BE
PREPARE statement AS
SELECT p.state_numbers ? $2 OR EXISTS (SELECT FROM xdb.process_type t WHERE t.process_type = p.process_type AND t.definition -> 'states' ? $2) AS can_be FROM xdb.process_execution p WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::process::STATE_HAS_BEEN
PREPARE statement AS
SELECT COALESCE((state_numbers ->> $2)::bigint >= $3, false) AS has_been FROM xdb.process_execution WHERE execution_id = $1;
DEALLOCATE statement;

-- xdb::store::process::VERSION
PREPARE statement AS
SELECT p.tableoid, p.ctid FROM xdb.process_execution p WHERE p.execution_id = $1;
DEALLOCATE statement;

-- xdb::store::process_lock::ASKED
PREPARE statement AS
WITH free AS MATERIALIZED (SELECT l.execution_id, l.name, l.due_at FROM xdb.process_lock l WHERE l.execution_id = ANY ($1) AND l.status = 'WAITING' ORDER BY l.execution_id, l.name FOR UPDATE SKIP LOCKED), calls AS MATERIALIZED (SELECT t.execution_id FROM xdb.task t WHERE t.execution_id = ANY ($1) AND t.lane = 2 FOR UPDATE SKIP LOCKED) SELECT l.execution_id, l.name, l.mode, COALESCE(f.due_at, l.due_at) AS due_at, f.name IS NOT NULL AND (SELECT count(*) FROM xdb.task t WHERE t.execution_id = l.execution_id AND t.lane = 2) = (SELECT count(*) FROM calls c WHERE c.execution_id = l.execution_id) AS is_free FROM xdb.process_lock l LEFT JOIN free f ON f.execution_id = l.execution_id AND f.name = l.name WHERE l.execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::process_lock::GRANT
PREPARE statement AS
UPDATE xdb.process_lock SET status = 'GRANTED', granted_at = $2, judge_at = NULL WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::process_lock::INSERT
PREPARE statement AS
INSERT INTO xdb.process_lock (execution_id, name, mode, owner, status, due_at, granted_at, judge_at) SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[]), unnest($4::oid[]), unnest($5::text[]), unnest($6::timestamptz[]), unnest($7::timestamptz[]), unnest($8::timestamptz[]);
DEALLOCATE statement;

-- xdb::store::process_lock::LOCK
PREPARE statement AS
SELECT l.execution_id FROM xdb.process_lock l WHERE l.execution_id = ANY ($1) AND l.status = 'WAITING' ORDER BY l.execution_id, l.name FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::process_lock::MISSING
PREPARE statement AS
SELECT l.name, p.process_id AS holder, p.owner FROM xdb.process_lock l LEFT JOIN LATERAL (SELECT g.execution_id FROM xdb.process_lock g WHERE g.name = l.name AND g.status = 'GRANTED' AND (g.mode = 'EXCLUSIVE' OR l.mode = 'EXCLUSIVE') LIMIT 1) AS g ON true LEFT JOIN xdb.process_execution p ON p.execution_id = g.execution_id WHERE l.execution_id = $1 AND l.status = 'WAITING' ORDER BY p.process_id IS NULL, l.name LIMIT 1;
DEALLOCATE statement;

-- xdb::store::process_lock::MOVE
PREPARE statement AS
UPDATE xdb.process_lock SET due_at = $2, judge_at = '-infinity' WHERE execution_id = $1 AND status = 'WAITING';
DEALLOCATE statement;

-- xdb::store::process_lock::NOTES
PREPARE statement AS
WITH RECURSIVE first (owner, at) AS ( (SELECT t.owner, t.judge_at FROM xdb.process_lock t ORDER BY t.owner, t.judge_at LIMIT 1) UNION ALL SELECT n.owner, n.judge_at FROM first f CROSS JOIN LATERAL ( SELECT t.owner, t.judge_at FROM xdb.process_lock t WHERE t.owner > f.owner ORDER BY t.owner, t.judge_at LIMIT 1) AS n), due AS MATERIALIZED (SELECT f.owner FROM first f WHERE f.at <= $1), noted AS MATERIALIZED (SELECT l.* FROM due CROSS JOIN LATERAL ( SELECT l.* FROM xdb.process_lock l WHERE l.owner = due.owner AND l.judge_at <= $1 ORDER BY l.judge_at LIMIT (SELECT greatest(1000 / count(*), 1) FROM due) FOR UPDATE SKIP LOCKED) AS l), gone AS (DELETE FROM xdb.process_lock l USING noted n WHERE l.execution_id = n.execution_id AND l.name = n.name AND n.status = 'RELEASED'), seen AS (UPDATE xdb.process_lock l SET judge_at = CASE WHEN n.due_at > $1 THEN n.due_at END FROM noted n WHERE l.execution_id = n.execution_id AND l.name = n.name AND n.status <> 'RELEASED') SELECT n.execution_id, n.name, n.mode, n.status = 'RELEASED' AS is_released, n.judge_at < n.due_at AS has_moved, n.due_at <= $1 AS is_due, count(*) OVER (PARTITION BY n.owner) = (SELECT greatest(1000 / count(*), 1) FROM due) AS may_have_more FROM noted n;
DEALLOCATE statement;

-- xdb::store::process_lock::NOTE_AGAIN
PREPARE statement AS
UPDATE xdb.process_lock SET judge_at = due_at WHERE name = ANY ($1) AND status = 'WAITING' AND judge_at IS NULL AND due_at > $2;
DEALLOCATE statement;

-- xdb::store::process_lock::QUEUES
PREPARE statement AS
SELECT v.name, (SELECT g.mode FROM xdb.process_lock g WHERE g.name = v.name AND g.status = 'GRANTED' LIMIT 1), x.due_at, x.execution_id, s.due_at, s.execution_id, (x.execution_id, s.execution_id) IS DISTINCT FROM (fx.execution_id, fs.execution_id) FROM unnest($1::text[]) AS v (name) LEFT JOIN LATERAL (SELECT l.due_at, l.execution_id FROM xdb.process_lock l WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = 'EXCLUSIVE' AND l.due_at <= $2 AND l.execution_id <> ALL ($3) ORDER BY l.due_at, l.execution_id LIMIT 1) AS fx ON true LEFT JOIN LATERAL (SELECT l.due_at, l.execution_id FROM xdb.process_lock l WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = 'SHARE' AND l.due_at <= $2 AND l.execution_id <> ALL ($3) ORDER BY l.due_at, l.execution_id LIMIT 1) AS fs ON true LEFT JOIN LATERAL (SELECT l.due_at, l.execution_id FROM xdb.process_lock l WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = 'EXCLUSIVE' AND l.due_at <= $2 AND l.execution_id <> ALL ($3) ORDER BY l.due_at, l.execution_id LIMIT 1 FOR UPDATE SKIP LOCKED) AS x ON true LEFT JOIN LATERAL (SELECT l.due_at, l.execution_id FROM xdb.process_lock l WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = 'SHARE' AND l.due_at <= $2 AND l.execution_id <> ALL ($3) ORDER BY l.due_at, l.execution_id LIMIT 1 FOR UPDATE SKIP LOCKED) AS s ON true;
DEALLOCATE statement;

-- xdb::store::process_lock::RELEASE
PREPARE statement AS
UPDATE xdb.process_lock SET status = 'RELEASED', judge_at = '-infinity' WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::process_lock::RESUME
PREPARE statement AS
UPDATE xdb.task t SET worker_id = CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END, lane = CASE WHEN CASE WHEN t.worker_id = 0 THEN 0 ELSE COALESCE((SELECT y.worker_id FROM xdb.process_execution p JOIN xdb.process_type y ON y.type_id = p.type_id WHERE p.execution_id = t.execution_id), 0) END = 0 THEN 1 ELSE 0 END, lease_epoch = 0, lease_number = 0, lease_until = NULL WHERE t.execution_id = ANY ($1) AND t.lane = 2 RETURNING t.execution_id, t.seq, t.worker_id, t.shard, t.due_at <= $2 AS is_due;
DEALLOCATE statement;

-- xdb::store::process_lock::SHARED
PREPARE statement AS
SELECT v.name, l.due_at, l.execution_id FROM (SELECT unnest($1::text[]) AS name, unnest($2::timestamptz[]) AS after_at, unnest($3::uuid[]) AS after_id, unnest($4::timestamptz[]) AS before_at, unnest($5::uuid[]) AS before_id) AS v CROSS JOIN LATERAL ( SELECT l.due_at, l.execution_id FROM xdb.process_lock l WHERE l.name = v.name AND l.status = 'WAITING' AND l.mode = 'SHARE' AND (l.due_at, l.execution_id) > (v.after_at, v.after_id) AND (l.due_at, l.execution_id) < (v.before_at, v.before_id) ORDER BY l.due_at, l.execution_id LIMIT $6) AS l;
DEALLOCATE statement;

-- xdb::store::process_lock::WAITED_FOR
PREPARE statement AS
WITH RECURSIVE names (name) AS ( (SELECT l.name FROM xdb.process_lock l WHERE l.name > $1 ORDER BY l.name LIMIT 1) UNION ALL SELECT (SELECT l.name FROM xdb.process_lock l WHERE l.name > n.name ORDER BY l.name LIMIT 1) FROM names n WHERE n.name IS NOT NULL) SELECT name FROM names WHERE name IS NOT NULL LIMIT 1000;
DEALLOCATE statement;

-- xdb::store::proof::COLUMNS
PREPARE statement AS
SELECT a.attname::text AS name, pg_catalog.format_type(a.atttypid, NULL) AS type, NOT a.attnotnull AS nullable FROM pg_catalog.pg_attribute a WHERE a.attrelid = ('xdb.' || $1::text)::regclass AND a.attnum > 0 AND NOT a.attisdropped;
DEALLOCATE statement;

-- xdb::store::proof::KEY
PREPARE statement AS
SELECT a.attname::text AS name FROM pg_catalog.pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE i.indrelid = ('xdb.' || $1::text)::regclass AND i.indisprimary ORDER BY k.n;
DEALLOCATE statement;

-- xdb::store::proof::OTHERS
PREPARE statement AS
SELECT c.relname::text AS name FROM pg_catalog.pg_class c WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'r' AND c.relname <> ALL ($1::text[]);
DEALLOCATE statement;

-- xdb::store::pull::BEGIN
PREPARE statement AS
UPDATE xdb.task t SET first_attempt_at = $3 FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq AND t.first_attempt_at IS NULL;
DEALLOCATE statement;

-- xdb::store::pull::DUE
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key, y.type_id AS type_now, y.version, y.xmin::text AS xmin, d.seq, d.lane, d.due_at, d.attempt, d.first_attempt_at, EXISTS (SELECT FROM xdb.local_attribute a WHERE a.execution_id = d.execution_id) AS has_locals FROM (SELECT unnest($1::int2[]) AS lane, unnest($2::oid[]) AS owner, unnest($3::int2[]) AS priority, unnest($4::timestamptz[]) AS since, unnest($5::int8[]) AS room) AS v CROSS JOIN LATERAL (SELECT t.execution_id, t.seq, t.lane, t.due_at, t.attempt, t.first_attempt_at FROM xdb.task t WHERE t.lane = v.lane AND t.worker_id = $6 AND t.owner = v.owner AND t.priority = v.priority AND t.due_at >= v.since AND t.due_at <= $7 AND (t.lease_until IS NULL OR t.lease_epoch <> 0) AND t.shard BETWEEN $8 AND $9 AND t.execution_id <> ALL ($10) ORDER BY t.due_at LIMIT v.room FOR UPDATE SKIP LOCKED) AS d JOIN xdb.process_execution p ON p.execution_id = d.execution_id LEFT JOIN xdb.process_type y ON y.process_type = p.process_type FOR KEY SHARE OF p SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::pull::EXTEND
PREPARE statement AS
UPDATE xdb.task t SET lease_until = $4 WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL;
DEALLOCATE statement;

-- xdb::store::pull::GIVE_BACK
PREPARE statement AS
UPDATE xdb.task t SET attempt = GREATEST(t.attempt - 1, 0), lease_epoch = 0, lease_number = 0, lease_until = NULL WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL RETURNING t.shard;
DEALLOCATE statement;

-- xdb::store::pull::KEEP_OPEN
PREPARE statement AS
SELECT t.worker_id FROM xdb.task t JOIN xdb.worker w ON w.worker_id = t.worker_id JOIN xdb.process_execution p ON p.execution_id = t.execution_id WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND w.url IS NULL AND ($5::bool OR pg_catalog.pg_has_role($4::oid, w.role, 'USAGE')) FOR KEY SHARE OF p;
DEALLOCATE statement;

-- xdb::store::pull::LEASE
PREPARE statement AS
UPDATE xdb.task t SET attempt = t.attempt + 1, first_attempt_at = COALESCE(t.first_attempt_at, $4), waits_for = NULL, lease_epoch = 0, lease_until = v.lease_until, lease_number = ((pg_catalog.nextval('xdb.pull_lease') & 2147483647) << 32) | $5 FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::timestamptz[]) AS lease_until) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq RETURNING t.execution_id, t.seq, t.lease_number;
DEALLOCATE statement;

-- xdb::store::pull::LEASED
PREPARE statement AS
SELECT count(*) AS leased FROM (SELECT FROM xdb.task t WHERE t.lane = ANY ('{0,1}'::int2[]) AND t.worker_id = $1 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND t.lease_until > $2 LIMIT 10000) AS l;
DEALLOCATE statement;

-- xdb::store::pull::LOOK_OF_TOKEN
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key FROM xdb.task t JOIN xdb.worker w ON w.worker_id = t.worker_id JOIN xdb.process_execution p ON p.execution_id = t.execution_id WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND w.url IS NULL AND ($5::bool OR pg_catalog.pg_has_role($4::oid, w.role, 'USAGE'));
DEALLOCATE statement;

-- xdb::store::pull::OVER
PREPARE statement AS
SELECT d.execution_id, d.seq FROM (SELECT a.lane, o.* FROM unnest('{0,1}'::int2[]) AS a (lane) CROSS JOIN LATERAL ( WITH RECURSIVE head (owner, priority, since) AS ( (SELECT t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND t.worker_id = $1 ORDER BY t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM head CROSS JOIN LATERAL (SELECT t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND t.worker_id = $1 AND (t.owner, t.priority) > (head.owner, head.priority) ORDER BY t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT * FROM head) AS o) AS l CROSS JOIN LATERAL ( SELECT t.execution_id, t.seq, t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = $1 AND t.owner = l.owner AND t.priority = l.priority AND t.due_at <= $2 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND t.lease_until <= $4 ORDER BY t.due_at LIMIT $3) AS d ORDER BY d.due_at, d.execution_id, d.seq LIMIT $3;
DEALLOCATE statement;

-- xdb::store::pull::READ_WORKER
PREPARE statement AS
WITH worker AS ( SELECT w.worker_id, w.url IS NULL AS pulls, w.role, w.role_name FROM xdb.worker w WHERE w.name = $3) SELECT w.*, e.paused, i.*, NULL::int2 AS lane, false AS leases_ended FROM worker w LEFT JOIN xdb.engine e ON e.lane = 0 LEFT JOIN LATERAL (SELECT i.*, r.in_use FROM (SELECT i.system_identifier, i.database FROM xdb.instances i WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1) AS i CROSS JOIN xdb.registry r) AS i ON true;
DEALLOCATE statement;

-- xdb::store::pull::SCAN_FROM_CURSORS
PREPARE statement AS
WITH worker AS ( SELECT w.worker_id, w.url IS NULL AS pulls, w.role, w.role_name FROM xdb.worker w WHERE w.name = $3), line AS MATERIALIZED (SELECT v.* FROM unnest($8::int2[], $9::oid[], $10::int2[], $11::timestamptz[]) AS v (lane, owner, priority, since)), found AS MATERIALIZED (SELECT l.lane, l.owner, l.priority, f.due, f.first, n.due_at AS next FROM worker w CROSS JOIN line l CROSS JOIN LATERAL (SELECT count(*) AS due, min(d.due_at) AS first FROM (SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = w.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at >= l.since AND t.due_at <= $4 AND (t.lease_until IS NULL OR t.lease_epoch <> 0) AND t.shard BETWEEN $5 AND $6 ORDER BY t.due_at LIMIT $7) AS d) AS f LEFT JOIN LATERAL (SELECT a.due_at FROM (SELECT t.due_at, t.shard FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = w.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at > $4 ORDER BY t.due_at LIMIT 100) AS a WHERE a.shard BETWEEN $5 AND $6 ORDER BY a.due_at LIMIT 1) AS n ON true) SELECT w.*, e.paused, i.*, f.*, false AS leases_ended FROM worker w LEFT JOIN xdb.engine e ON e.lane = 0 LEFT JOIN LATERAL (SELECT i.*, r.in_use FROM (SELECT i.system_identifier, i.database FROM xdb.instances i WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1) AS i CROSS JOIN xdb.registry r) AS i ON true LEFT JOIN found f ON true;
DEALLOCATE statement;

-- xdb::store::pull::SCAN_FROM_HEAD
PREPARE statement AS
WITH worker AS ( SELECT w.worker_id, w.url IS NULL AS pulls, w.role, w.role_name FROM xdb.worker w WHERE w.name = $3), line AS MATERIALIZED (SELECT o.* FROM worker w CROSS JOIN LATERAL (SELECT a.lane, o.* FROM unnest('{0,1}'::int2[]) AS a (lane) CROSS JOIN LATERAL ( WITH RECURSIVE head (owner, priority, since) AS ( (SELECT t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND t.worker_id = w.worker_id ORDER BY t.owner, t.priority, t.due_at LIMIT 1) UNION ALL SELECT n.* FROM head CROSS JOIN LATERAL (SELECT t.owner, t.priority, t.due_at FROM xdb.task t WHERE t.lane = a.lane AND t.worker_id = w.worker_id AND (t.owner, t.priority) > (head.owner, head.priority) ORDER BY t.owner, t.priority, t.due_at LIMIT 1) AS n) SELECT * FROM head) AS o) AS o), found AS MATERIALIZED (SELECT l.lane, l.owner, l.priority, f.due, f.first, n.due_at AS next FROM worker w CROSS JOIN line l CROSS JOIN LATERAL (SELECT count(*) AS due, min(d.due_at) AS first FROM (SELECT t.due_at FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = w.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at >= l.since AND t.due_at <= $4 AND (t.lease_until IS NULL OR t.lease_epoch <> 0) AND t.shard BETWEEN $5 AND $6 ORDER BY t.due_at LIMIT $7) AS d) AS f LEFT JOIN LATERAL (SELECT a.due_at FROM (SELECT t.due_at, t.shard FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = w.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at > $4 ORDER BY t.due_at LIMIT 100) AS a WHERE a.shard BETWEEN $5 AND $6 ORDER BY a.due_at LIMIT 1) AS n ON true) SELECT w.*, e.paused, i.*, f.*, ($9 OR NOT EXISTS (SELECT FROM found WHERE due > 0)) AND EXISTS (SELECT FROM worker w CROSS JOIN line l CROSS JOIN LATERAL (SELECT FROM xdb.task t WHERE t.lane = l.lane AND t.worker_id = w.worker_id AND t.owner = l.owner AND t.priority = l.priority AND t.due_at >= l.since AND t.due_at <= $4 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND t.lease_until <= $8 LIMIT 1) AS o) AS leases_ended FROM worker w LEFT JOIN xdb.engine e ON e.lane = 0 LEFT JOIN LATERAL (SELECT i.*, r.in_use FROM (SELECT i.system_identifier, i.database FROM xdb.instances i WHERE i.superseded_at IS NULL ORDER BY (i.system_identifier, i.database) = ($1, $2), i.since DESC LIMIT 1) AS i CROSS JOIN xdb.registry r) AS i ON true LEFT JOIN found f ON true;
DEALLOCATE statement;

-- xdb::store::pull::STEP_OF_TOKEN
PREPARE statement AS
SELECT p.execution_id, p.shard, p.process_id, p.process_type, p.status, p.started_at, p.closed_at, p.timeout_at, p.reason, p.next_event, p.next_state, p.next_message, p.live_threads, p.queued_messages, p.queued_bytes, p.timers, p.completing, p.state_numbers::text AS state_numbers, p.pause_mode, p.paused_until, p.pause_reason, p.priority, p.parent_id, p.started_by::text AS started_by, p.has_children, p.waiting_guards, p.compensation::text AS compensation, p.locks::text AS locks, p.type_id, p.owner, p.owner_name, p.closing, p.mapping_id, p.attribute_keys::text AS attribute_keys, p.history_limit, p.traceparent, p.shard_key FROM xdb.task t JOIN xdb.worker w ON w.worker_id = t.worker_id JOIN xdb.process_execution p ON p.execution_id = t.execution_id WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND w.url IS NULL AND ($5::bool OR pg_catalog.pg_has_role($4::oid, w.role, 'USAGE')) FOR NO KEY UPDATE OF p;
DEALLOCATE statement;

-- xdb::store::pull::STILL_OVER
PREPARE statement AS
SELECT t.execution_id, t.seq, t.api, t.attempt, t.first_attempt_at FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq WHERE t.worker_id = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL AND t.lease_until <= $4 FOR UPDATE OF t SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::pull::UNDER_LEASE
PREPARE statement AS
SELECT s.execution_id, s.seq, s.shard, s.state_id, s.number, s.status, s.started_at, s.ended_at, s.input::text AS input, s.config::text AS config, s.recovery::text AS recovery, s.call::text AS call, s.wait::text AS wait, s.last_failure::text AS last_failure, t.api, t.attempt, t.first_attempt_at, y.type_id AS type_now, y.version, y.xmin::text AS xmin, NOT EXISTS (SELECT FROM xdb.inbox i WHERE i.execution_id = $1) AS without_arrivals FROM xdb.task t JOIN xdb.state_execution s ON s.execution_id = t.execution_id AND s.seq = t.seq LEFT JOIN xdb.process_type y ON y.process_type = $4 WHERE t.execution_id = $1 AND t.seq = $2 AND t.lease_number = $3 AND t.lease_epoch = 0 AND t.lease_until IS NOT NULL;
DEALLOCATE statement;

-- xdb::store::purge::CLOSED
PREPARE statement AS
SELECT p.execution_id, NULLIF(p.closed_at, 'infinity') AS at, p.process_id, l.process_id IS NOT NULL AS is_latest FROM xdb.process_execution p LEFT JOIN xdb.latest_execution l ON l.process_id = p.process_id AND l.execution_id = p.execution_id WHERE p.closed_at <= $1 AND p.purge_at IS NULL AND (p.closed_at, p.execution_id) > (COALESCE($2, 'infinity'::timestamptz), $3) ORDER BY p.closed_at, p.execution_id LIMIT $4;
DEALLOCATE statement;

-- xdb::store::purge::CORRELATED
PREPARE statement AS
SELECT c.execution_id FROM xdb.correlated_start c WHERE c.execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::purge::DELETE
PREPARE statement AS
DELETE FROM xdb.process_execution WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::purge::DELETE_LATEST
PREPARE statement AS
DELETE FROM xdb.latest_execution WHERE process_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::purge::FORGET
PREPARE statement AS
DELETE FROM xdb.purged WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::purge::FORGET_CORRELATED
PREPARE statement AS
DELETE FROM xdb.correlated_start WHERE execution_id = ANY ($1);
DEALLOCATE statement;

-- xdb::store::purge::LOCK
PREPARE statement AS
SELECT execution_id FROM xdb.process_execution WHERE execution_id = ANY ($1) AND closed_at IS NOT NULL ORDER BY execution_id FOR UPDATE SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::purge::LOCK_CORRELATED
PREPARE statement AS
SELECT c.execution_id FROM xdb.correlated_start c WHERE c.execution_id = ANY ($1) ORDER BY c.type_id, c.owner, c.correlation_key FOR UPDATE SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::purge::LOCK_LATEST
PREPARE statement AS
SELECT l.execution_id FROM xdb.latest_execution l JOIN unnest($1::text[], $2::uuid[]) AS k (process_id, execution_id) ON l.process_id = k.process_id AND l.execution_id = k.execution_id ORDER BY l.process_id FOR UPDATE OF l SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::purge::NOTE
PREPARE statement AS
INSERT INTO xdb.purged (execution_id) SELECT unnest($1::uuid[]);
DEALLOCATE statement;

-- xdb::store::purge::NOTED
PREPARE statement AS
SELECT execution_id FROM xdb.purged ORDER BY execution_id LIMIT 100 FOR UPDATE SKIP LOCKED;
DEALLOCATE statement;

-- xdb::store::purge::OUTLIVED
PREPARE statement AS
SELECT DISTINCT process_id FROM xdb.process_execution WHERE process_id = ANY ($1) AND execution_id <> ALL ($2);
DEALLOCATE statement;

-- xdb::store::purge::OVERDUE
PREPARE statement AS
SELECT p.execution_id, NULLIF(p.purge_at, 'infinity') AS at, p.process_id, l.process_id IS NOT NULL AS is_latest FROM xdb.process_execution p LEFT JOIN xdb.latest_execution l ON l.process_id = p.process_id AND l.execution_id = p.execution_id WHERE p.purge_at <= $1 AND (p.purge_at, p.execution_id) > (COALESCE($2, 'infinity'::timestamptz), $3) ORDER BY p.purge_at, p.execution_id LIMIT $4;
DEALLOCATE statement;

-- xdb::store::purge::RETAINED
PREPARE statement AS
SELECT p.execution_id, NULLIF(p.purge_at, 'infinity') AS at, p.process_id, l.process_id IS NOT NULL AS is_latest FROM xdb.process_execution p LEFT JOIN xdb.latest_execution l ON l.process_id = p.process_id AND l.execution_id = p.execution_id WHERE p.purge_at IS NOT NULL AND p.closed_at <= $1 AND (p.purge_at, p.execution_id) > (COALESCE($2, 'infinity'::timestamptz), $3) ORDER BY p.purge_at, p.execution_id LIMIT $4;
DEALLOCATE statement;

-- xdb::store::purge::SOME_ROWS
PREPARE statement AS
WITH history_event AS (DELETE FROM xdb.history_event WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.history_event WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), state_execution AS (DELETE FROM xdb.state_execution WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.state_execution WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), local_attribute AS (DELETE FROM xdb.local_attribute WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.local_attribute WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), rpc_answer AS (DELETE FROM xdb.rpc_answer WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.rpc_answer WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), message_key AS (DELETE FROM xdb.message_key WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.message_key WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), queue_message AS (DELETE FROM xdb.queue_message WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.queue_message WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), queue_waiter AS (DELETE FROM xdb.queue_waiter WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.queue_waiter WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), global_waiter AS (DELETE FROM xdb.global_waiter WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.global_waiter WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), inbox AS (DELETE FROM xdb.inbox WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.inbox WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), timer AS (DELETE FROM xdb.timer WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.timer WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true), task AS (DELETE FROM xdb.task WHERE ctid = ANY (ARRAY( SELECT ctid FROM xdb.task WHERE execution_id = ANY ($1) LIMIT $2)) RETURNING true) SELECT COALESCE(GREATEST((SELECT count(*) FROM history_event), (SELECT count(*) FROM state_execution), (SELECT count(*) FROM local_attribute), (SELECT count(*) FROM rpc_answer), (SELECT count(*) FROM message_key), (SELECT count(*) FROM queue_message), (SELECT count(*) FROM queue_waiter), (SELECT count(*) FROM global_waiter), (SELECT count(*) FROM inbox), (SELECT count(*) FROM timer), (SELECT count(*) FROM task)) >= $2, false) AS left;
DEALLOCATE statement;

-- xdb::store::queue::ALL_OF_ONE
PREPARE statement AS
SELECT m.execution_id, m.queue_name, m.number, m.message_id, m.payload::text AS payload FROM xdb.queue_message m WHERE m.execution_id = $1 ORDER BY m.number;
DEALLOCATE statement;

-- xdb::store::queue::COUNT
PREPARE statement AS
SELECT v.execution_id, v.queue_name, (SELECT count(*) FROM (SELECT FROM xdb.queue_message q WHERE q.execution_id = v.execution_id AND q.queue_name = v.queue_name LIMIT v.needed) AS counted) AS count FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::int8[]) AS needed) AS v;
DEALLOCATE statement;

-- xdb::store::queue::DELETE
PREPARE statement AS
DELETE FROM xdb.queue_message t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::int8[]) AS number) AS v WHERE t.execution_id = v.execution_id AND t.queue_name = v.queue_name AND t.number = v.number;
DEALLOCATE statement;

-- xdb::store::queue::HAS_MESSAGES
PREPARE statement AS
SELECT EXISTS (SELECT FROM xdb.queue_message WHERE execution_id = $1 AND queue_name = $2) AS has_messages;
DEALLOCATE statement;

-- xdb::store::queue::INSERT
PREPARE statement AS
INSERT INTO xdb.queue_message (execution_id, queue_name, number, shard, message_id, payload, received_at) SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::int8[]), unnest($4::int2[]), unnest($5::text[]), unnest($6::text[])::jsonb, unnest($7::timestamptz[]);
DEALLOCATE statement;

-- xdb::store::queue::NEW_WAITERS
PREPARE statement AS
INSERT INTO xdb.queue_waiter (execution_id, queue_name, wait_order, seq) SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::int8[]), unnest($4::int4[]);
DEALLOCATE statement;

-- xdb::store::queue::OLD_WAITERS
PREPARE statement AS
DELETE FROM xdb.queue_waiter t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::queue::READ
PREPARE statement AS
SELECT m.execution_id, m.queue_name, m.number, m.message_id, m.payload::text AS payload FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name, unnest($3::int8[]) AS after, unnest($4::int8[]) AS wanted) AS v CROSS JOIN LATERAL (SELECT * FROM xdb.queue_message q WHERE q.execution_id = v.execution_id AND q.queue_name = v.queue_name AND q.number > v.after ORDER BY q.number LIMIT v.wanted) AS m ORDER BY m.execution_id, m.queue_name, m.number;
DEALLOCATE statement;

-- xdb::store::queue::WAITERS
PREPARE statement AS
SELECT DISTINCT w.execution_id, w.seq FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::text[]) AS queue_name) AS v JOIN xdb.queue_waiter w ON w.execution_id = v.execution_id AND w.queue_name = v.queue_name;
DEALLOCATE statement;

-- xdb::store::quotas::LIMITS
PREPARE statement AS
SELECT s.setrole AS owner, substr(e.entry, strpos(e.entry, '=') + 1) AS value FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS e (entry) WHERE split_part(e.entry, '=', 1) = 'xdb.max_running_processes' AND (s.setdatabase = 0 OR s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())) ORDER BY s.setdatabase <> 0;
DEALLOCATE statement;

-- xdb::store::quotas::MESSAGES
PREPARE statement AS
WITH slice AS MATERIALIZED (SELECT m.number AS place, owner, m.bytes AS bytes FROM xdb.global_message m WHERE m.number > COALESCE(NULLIF($1, '')::bigint, 0) ORDER BY m.number LIMIT $2) SELECT s.owner, count(*) AS count, sum(s.bytes)::bigint AS bytes, (SELECT l.place::text FROM slice l ORDER BY l.place OFFSET $2 - 1 LIMIT 1) AS last FROM slice s GROUP BY s.owner;
DEALLOCATE statement;

-- xdb::store::quotas::RUNNING
PREPARE statement AS
WITH slice AS MATERIALIZED (SELECT p.process_id AS place, owner, 0 AS bytes FROM xdb.process_execution p WHERE p.status = 'RUNNING' AND p.process_id > $1 ORDER BY p.process_id LIMIT $2) SELECT s.owner, count(*) AS count, sum(s.bytes)::bigint AS bytes, (SELECT l.place::text FROM slice l ORDER BY l.place OFFSET $2 - 1 LIMIT 1) AS last FROM slice s GROUP BY s.owner;
DEALLOCATE statement;

-- xdb::store::registering::DELETE_TYPE
PREPARE statement AS
DELETE FROM xdb.process_type WHERE type_id = $1;
DEALLOCATE statement;

-- xdb::store::registering::DELETE_WORKER
PREPARE statement AS
DELETE FROM xdb.worker WHERE worker_id = $1;
DEALLOCATE statement;

-- xdb::store::registering::INSERT_MAPPING
PREPARE statement AS
INSERT INTO xdb.mapped_table (mapping_id, position, relation, table_name, key_columns, attributes) VALUES ($1::int4::int4, $2::int4::int4, $3::oid::regclass, $4::text::text, $5::text[]::text[], $6::text::jsonb);
DEALLOCATE statement;

-- xdb::store::registering::LOST_TYPE
PREPARE statement AS
SELECT p.type_id FROM xdb.process_execution p WHERE p.process_type = $1 AND p.status = 'RUNNING' AND NOT EXISTS (SELECT FROM xdb.process_type t WHERE t.type_id = p.type_id) LIMIT 1;
DEALLOCATE statement;

-- xdb::store::registering::NEXT_MAPPING
PREPARE statement AS
SELECT pg_catalog.nextval('xdb.mapping_id_seq')::int AS mapping_id;
DEALLOCATE statement;

-- xdb::store::registering::PUT_LOST_TYPE
PREPARE statement AS
INSERT INTO xdb.process_type (process_type, worker_id, definition, mapping_id, owner, owner_name, type_id) OVERRIDING SYSTEM VALUE SELECT unnest($1::text[]), unnest($2::int4[]), unnest($3::text[])::jsonb, unnest($4::int4[]), unnest($5::oid[]), unnest($6::text[]), unnest($7::int4[]) ON CONFLICT (process_type) DO UPDATE SET worker_id = excluded.worker_id, definition = excluded.definition, mapping_id = excluded.mapping_id, version = process_type.version + 1, registered_at = excluded.registered_at;
DEALLOCATE statement;

-- xdb::store::registering::PUT_SECRETS
PREPARE statement AS
UPDATE xdb.worker SET secrets = $2, registered_at = pg_catalog.clock_timestamp() WHERE worker_id = $1;
DEALLOCATE statement;

-- xdb::store::registering::PUT_TYPE
PREPARE statement AS
INSERT INTO xdb.process_type (process_type, worker_id, definition, mapping_id, owner, owner_name) SELECT unnest($1::text[]), unnest($2::int4[]), unnest($3::text[])::jsonb, unnest($4::int4[]), unnest($5::oid[]), unnest($6::text[]) ON CONFLICT (process_type) DO UPDATE SET worker_id = excluded.worker_id, definition = excluded.definition, mapping_id = excluded.mapping_id, version = process_type.version + 1, registered_at = excluded.registered_at WHERE process_type.owner = excluded.owner;
DEALLOCATE statement;

-- xdb::store::registering::PUT_WORKER
PREPARE statement AS
INSERT INTO xdb.worker (name, url, headers, max_concurrency, owner, owner_name, secrets, role, role_name) SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[])::jsonb, unnest($4::int4[]), unnest($5::oid[]), unnest($6::text[]), unnest($7::int2[]), unnest($8::oid[]), unnest($9::text[]) ON CONFLICT (name) DO UPDATE SET url = excluded.url, secrets = excluded.secrets, role = excluded.role, role_name = excluded.role_name, headers = excluded.headers, max_concurrency = excluded.max_concurrency, registered_at = excluded.registered_at WHERE worker.owner = $10 RETURNING worker_id;
DEALLOCATE statement;

-- xdb::store::registering::RUNNING_OF_TYPE
PREPARE statement AS
SELECT pg_catalog.count(*) AS running FROM xdb.process_execution WHERE type_id = $1 AND status = 'RUNNING';
DEALLOCATE statement;

-- xdb::store::registering::SHOWN_TYPES
PREPARE statement AS
SELECT t.type_id, t.process_type, w.name AS worker, t.owner, t.pause_mode, t.paused_until, t.pause_reason FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id);
DEALLOCATE statement;

-- xdb::store::registering::SHOWN_WORKERS
PREPARE statement AS
SELECT w.worker_id, w.name, w.owner, w.url IS NULL AS pulls, w.max_concurrency FROM xdb.worker w;
DEALLOCATE statement;

-- xdb::store::registering::TOUCH_TYPES
PREPARE statement AS
UPDATE xdb.process_type SET version = version + 1 WHERE worker_id = $1;
DEALLOCATE statement;

-- xdb::store::registering::TYPES_OF_WORKER
PREPARE statement AS
SELECT t.process_type FROM xdb.process_type t JOIN xdb.worker w USING (worker_id) WHERE w.name = $1 ORDER BY 1;
DEALLOCATE statement;

-- xdb::store::registering::TYPE_TO_DELETE
PREPARE statement AS
SELECT type_id, owner FROM xdb.process_type WHERE process_type = $1 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::registering::TYPE_TO_PUT
PREPARE statement AS
SELECT owner, mapping_id, (definition -> 'globalAttributes')::text AS global_attributes FROM xdb.process_type WHERE process_type = $1 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::registering::WORKER_TO_DELETE
PREPARE statement AS
SELECT worker_id, owner FROM xdb.worker WHERE name = $1 FOR UPDATE;
DEALLOCATE statement;

-- xdb::store::registering::WORKER_TO_PUT
PREPARE statement AS
SELECT worker_id, owner FROM xdb.worker WHERE name = $1 FOR NO KEY UPDATE;
DEALLOCATE statement;

-- xdb::store::registering::WORKER_TO_USE
PREPARE statement AS
SELECT worker_id, owner FROM xdb.worker WHERE name = $1 FOR KEY SHARE;
DEALLOCATE statement;

-- xdb::store::registry::HEAD
PREPARE statement AS
SELECT t.type_id, t.process_type, pg_catalog.pg_column_size(t.definition) AS stored_bytes, t.mapping_id, t.version, t.xmin::text AS xmin, t.pause_mode, t.paused_until, t.pause_reason, w.worker_id, w.url, w.secrets, ARRAY(SELECT s.source FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS sources, ARRAY(SELECT s.value FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS secret_values, w.headers::text FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id) WHERE t.type_id = $1 AND (t.worker_id IS NULL OR w.worker_id IS NOT NULL);
DEALLOCATE statement;

-- xdb::store::registry::MAPPING
PREPARE statement AS
SELECT m.mapping_id, m.position, m.relation::oid AS relation, m.table_name, m.key_columns, m.attributes::text AS attributes FROM xdb.mapped_table m WHERE mapping_id = $1 ORDER BY position;
DEALLOCATE statement;

-- xdb::store::registry::TYPE
PREPARE statement AS
SELECT t.type_id, t.process_type, t.definition::text, t.mapping_id, t.version, t.xmin::text AS xmin, t.pause_mode, t.paused_until, t.pause_reason, w.worker_id, w.url, w.secrets, ARRAY(SELECT s.source FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS sources, ARRAY(SELECT s.value FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS secret_values, w.headers::text FROM xdb.process_type t LEFT JOIN xdb.worker w USING (worker_id) WHERE t.type_id = $1 AND (t.worker_id IS NULL OR w.worker_id IS NOT NULL);
DEALLOCATE statement;

-- xdb::store::registry::VERSION_OF_NAME
PREPARE statement AS
SELECT t.type_id, t.version, t.xmin::text AS xmin FROM xdb.process_type t WHERE t.process_type = $1;
DEALLOCATE statement;

-- xdb::store::registry::WORKERS
PREPARE statement AS
SELECT w.worker_id, w.name, w.url IS NULL AS pulls, w.max_concurrency, w.registered_at, w.secrets, ARRAY(SELECT s.source FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS sources, ARRAY(SELECT s.value FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS secret_values FROM xdb.worker w;
DEALLOCATE statement;

-- xdb::store::role_settings::MEANING
PREPARE statement AS
SELECT s.name, COALESCE( (SELECT substr(u.setting, strpos(u.setting, '=') + 1) FROM pg_catalog.pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS u (setting) WHERE d.setrole = 0 AND d.setdatabase IN (0, $1) AND starts_with(u.setting, s.name || '=') ORDER BY d.setdatabase DESC LIMIT 1), (SELECT f.setting FROM pg_catalog.pg_file_settings f WHERE lower(f.name) = lower(s.name) AND f.applied LIMIT 1), s.boot_val, '') AS value FROM pg_catalog.pg_settings s WHERE s.name IN ('standard_conforming_strings', 'backslash_quote', 'transform_null_equals', 'array_nulls', 'gin_fuzzy_search_limit', 'default_text_search_config', 'lc_numeric', 'lc_time', 'default_table_access_method', 'default_tablespace', 'default_toast_compression', 'password_encryption', 'scram_iterations', 'createrole_self_grant', 'restrict_nonsystem_relation_kind');
DEALLOCATE statement;

-- xdb::store::role_settings::OF_ROLE
PREPARE statement AS
SELECT DISTINCT ON (lower(c.name)) c.name, CASE WHEN c.is_the_engines THEN '' ELSE c.value END AS value FROM ( SELECT substr(u.setting, 1, strpos(u.setting, '=') - 1) AS name, substr(u.setting, strpos(u.setting, '=') + 1) AS value, s.setrole <> $1 AND s.setrole = 10 AS is_the_engines, s.setrole, s.setdatabase FROM pg_catalog.pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS u (setting) WHERE s.setdatabase IN (0, $2) AND s.setrole IN (0, 10, $1)) AS c WHERE strpos(c.name, '.') > 0 AND lower(c.name) NOT LIKE 'xdb.%' ORDER BY lower(c.name), c.is_the_engines, c.setrole <> 0 DESC, c.setdatabase <> 0 DESC;
DEALLOCATE statement;

-- xdb::store::save::ARRIVALS
PREPARE statement AS
WITH inbox AS (DELETE FROM xdb.inbox WHERE execution_id = ANY ($1)), message_key AS (DELETE FROM xdb.message_key WHERE execution_id = ANY ($1)) SELECT;
DEALLOCATE statement;

-- xdb::store::save::MESSAGES
PREPARE statement AS
WITH queue_message AS (DELETE FROM xdb.queue_message WHERE execution_id = ANY ($1)) SELECT;
DEALLOCATE statement;

-- xdb::store::save::OF_CLOSED
PREPARE statement AS
WITH task AS (DELETE FROM xdb.task WHERE execution_id = ANY ($1)), inbox AS (DELETE FROM xdb.inbox WHERE execution_id = ANY ($1)), message_key AS (DELETE FROM xdb.message_key WHERE execution_id = ANY ($1)) SELECT;
DEALLOCATE statement;

-- xdb::store::save::OF_WAITING
PREPARE statement AS
WITH timer AS (DELETE FROM xdb.timer WHERE execution_id = ANY ($1)), queue_waiter AS (DELETE FROM xdb.queue_waiter WHERE execution_id = ANY ($1)), global_waiter AS (DELETE FROM xdb.global_waiter WHERE execution_id = ANY ($1)) SELECT;
DEALLOCATE statement;

-- xdb::store::slow::CHILDREN
PREPARE statement AS
SELECT 'children of ' || t.process_type AS name FROM xdb.process_type t WHERE t.type_id = $1;
DEALLOCATE statement;

-- xdb::store::slow::NAME
PREPARE statement AS
SELECT CASE WHEN $2::bool THEN $1::oid::regrole::text WHEN EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid = $1) AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1) THEN $1::oid::regprocedure::text ELSE $1::oid::regclass::text END AS name;
DEALLOCATE statement;

-- xdb::store::state::ABORT
PREPARE statement AS
UPDATE xdb.state_execution SET status = 'ABORTED', ended_at = $2, last_failure = COALESCE(call -> 'lastFailure', last_failure), wait = NULL, call = CASE WHEN call IS NOT NULL THEN pg_catalog.jsonb_build_object( 'attempt', (call ->> 'failedAttempts')::int + 1, 'repeats', COALESCE((call ->> 'repeats')::int, 0)) END WHERE execution_id = ANY ($1) AND ended_at IS NULL;
DEALLOCATE statement;

-- xdb::store::state::ALL_OF_ONE
PREPARE statement AS
SELECT s.execution_id, s.seq, s.shard, s.state_id, s.number, s.status, s.started_at, s.ended_at, s.input::text AS input, s.config::text AS config, s.recovery::text AS recovery, s.call::text AS call, s.wait::text AS wait, s.last_failure::text AS last_failure FROM xdb.state_execution s WHERE s.execution_id = $1 ORDER BY s.seq;
DEALLOCATE statement;

-- xdb::store::state::ANSWERED
PREPARE statement AS
SELECT s.execution_id, s.seq, s.shard, s.state_id, s.number, s.status, s.started_at, s.ended_at, s.config::text AS config, s.recovery::text AS recovery, s.call::text AS call, s.last_failure::text AS last_failure, NULL::text AS input, NULL::text AS wait, s.input AS stored_input, s.wait AS stored_wait, t.lease_epoch, t.lease_number, NOT EXISTS (SELECT FROM xdb.inbox i WHERE i.execution_id = v.execution_id) AS without_arrivals FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.state_execution s ON s.execution_id = v.execution_id AND s.seq = v.seq LEFT JOIN xdb.task t ON t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::state::BY_NAME
PREPARE statement AS
SELECT seq, status FROM xdb.state_execution WHERE execution_id = $1 AND state_id = $2 AND number = $3;
DEALLOCATE statement;

-- xdb::store::state::FORGET
PREPARE statement AS
DELETE FROM xdb.state_execution WHERE execution_id = $1 AND seq = ANY ($2);
DEALLOCATE statement;

-- xdb::store::state::INSERT
PREPARE statement AS
INSERT INTO xdb.state_execution (execution_id, seq, shard, state_id, number, status, started_at, ended_at, input, config, recovery, call, wait, last_failure) SELECT unnest($1::uuid[]), unnest($2::int4[]), unnest($3::int2[]), unnest($4::text[]), unnest($5::int4[]), unnest($6::text[]), unnest($7::timestamptz[]), unnest($8::timestamptz[]), unnest($9::text[])::jsonb, unnest($10::text[])::jsonb, unnest($11::text[])::jsonb, unnest($12::text[])::jsonb, unnest($13::text[])::jsonb, unnest($14::text[])::jsonb;
DEALLOCATE statement;

-- xdb::store::state::LIVE
PREPARE statement AS
SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND ended_at IS NULL ORDER BY seq;
DEALLOCATE statement;

-- xdb::store::state::LIVE_NAMED
PREPARE statement AS
SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND state_id = ANY ($2) AND (state_id = ANY ($3) OR state_id || '-' || number = ANY ($3)) AND ended_at IS NULL ORDER BY seq;
DEALLOCATE statement;

-- xdb::store::state::LIVE_OF
PREPARE statement AS
SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND ended_at IS NULL AND state_id = ANY ($2) ORDER BY seq;
DEALLOCATE statement;

-- xdb::store::state::OF_KEYS
PREPARE statement AS
SELECT s.execution_id, s.seq, s.shard, s.state_id, s.number, s.status, s.started_at, s.ended_at, s.config::text AS config, s.recovery::text AS recovery, s.call::text AS call, s.last_failure::text AS last_failure, NULL::text AS input, NULL::text AS wait, s.input AS stored_input, s.wait AS stored_wait FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq) AS v JOIN xdb.state_execution s ON s.execution_id = v.execution_id AND s.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::state::ONE_LIVE
PREPARE statement AS
SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = $1 AND ended_at IS NULL AND state_id = ANY ($2) AND seq <> ALL ($3) LIMIT 1;
DEALLOCATE statement;

-- xdb::store::state::STANDING
PREPARE statement AS
SELECT seq FROM xdb.state_execution WHERE execution_id = $1 AND ($2::int IS NULL OR seq = $2) AND ended_at IS NULL AND (call ->> 'failedAttempts')::int + COALESCE((call ->> 'repeats')::int, 0) > 0 AND ((call ->> 'notBefore')::bigint > $3 OR call ? 'incident') ORDER BY seq;
DEALLOCATE statement;

-- xdb::store::state::UPDATE
PREPARE statement AS
UPDATE xdb.state_execution t SET status = v.status, ended_at = v.ended_at, call = v.call, wait = v.wait, last_failure = v.last_failure FROM (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::text[]) AS status, unnest($4::timestamptz[]) AS ended_at, unnest($5::text[])::jsonb AS call, unnest($6::text[])::jsonb AS wait, unnest($7::text[])::jsonb AS last_failure) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq;
DEALLOCATE statement;

-- xdb::store::state::WITH_UNRECORDED_ATTEMPTS
PREPARE statement AS
SELECT execution_id, seq FROM xdb.state_execution WHERE execution_id = ANY ($1) AND ended_at IS NULL AND (call ->> 'failedAttempts')::int > $2;
DEALLOCATE statement;

-- xdb::store::subscription::LEAVE_OUT_ALL
PREPARE statement AS
DELETE FROM pg_catalog.pg_subscription_rel r USING pg_catalog.pg_class c, pg_catalog.pg_subscription s WHERE r.srrelid = c.oid AND c.relnamespace = 'xdb'::pg_catalog.regnamespace AND r.srsubid = s.oid AND s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) AND (SELECT in_use FROM xdb.registry);
DEALLOCATE statement;

-- xdb::store::subscription::LEAVE_OUT_OWN
PREPARE statement AS
DELETE FROM pg_catalog.pg_subscription_rel r USING pg_catalog.pg_class c, pg_catalog.pg_subscription s WHERE r.srrelid = c.oid AND c.relnamespace = 'xdb'::pg_catalog.regnamespace AND r.srsubid = s.oid AND s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) AND c.relname IN ('engine', 'registry', 'registration_count');
DEALLOCATE statement;

-- xdb::store::subscription::WRITERS
PREPARE statement AS
SELECT DISTINCT s.subname::text AS name FROM pg_catalog.pg_subscription_rel r, pg_catalog.pg_class c, pg_catalog.pg_subscription s WHERE r.srrelid = c.oid AND c.relnamespace = 'xdb'::pg_catalog.regnamespace AND r.srsubid = s.oid AND s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) ORDER BY 1;
DEALLOCATE statement;

-- xdb::store::timer::DELETE
PREPARE statement AS
DELETE FROM xdb.timer t USING (SELECT unnest($1::uuid[]) AS execution_id, unnest($2::int4[]) AS seq, unnest($3::int4[]) AS command) AS v WHERE t.execution_id = v.execution_id AND t.seq = v.seq AND t.command = v.command;
DEALLOCATE statement;

-- xdb::store::timer::DUE
PREPARE statement AS
SELECT d.execution_id, d.seq, d.command, d.fire_at, v.owner FROM (SELECT unnest($1::oid[]) AS owner, unnest($2::timestamptz[]) AS since) AS v CROSS JOIN LATERAL ( SELECT t.execution_id, t.seq, t.command, t.fire_at FROM xdb.timer t WHERE t.owner = v.owner AND t.fire_at <= $3 AND t.fire_at >= v.since AND t.execution_id <> ALL ($4) ORDER BY t.fire_at LIMIT $5) AS d;
DEALLOCATE statement;

-- xdb::store::timer::FIRSTS
PREPARE statement AS
WITH RECURSIVE first (owner, at) AS ( (SELECT t.owner, t.fire_at FROM xdb.timer t ORDER BY t.owner, t.fire_at LIMIT 1) UNION ALL SELECT n.owner, n.fire_at FROM first f CROSS JOIN LATERAL ( SELECT t.owner, t.fire_at FROM xdb.timer t WHERE t.owner > f.owner ORDER BY t.owner, t.fire_at LIMIT 1) AS n) SELECT f.owner, f.at FROM first f;
DEALLOCATE statement;

-- xdb::store::timer::INSERT
PREPARE statement AS
INSERT INTO xdb.timer (execution_id, seq, command, shard, kind, fire_at, owner) SELECT unnest($1::uuid[]), unnest($2::int4[]), unnest($3::int4[]), unnest($4::int2[]), unnest($5::text[]), unnest($6::timestamptz[]), unnest($7::oid[]);
DEALLOCATE statement;

-- xdb::store::timer::NEXT
PREPARE statement AS
SELECT v.owner, n.fire_at AS at FROM (SELECT unnest($1::oid[]) AS owner, unnest($2::timestamptz[]) AS since) AS v CROSS JOIN LATERAL (SELECT t.fire_at FROM xdb.timer t WHERE t.owner = v.owner AND t.fire_at > v.since ORDER BY t.fire_at LIMIT 1) AS n;
DEALLOCATE statement;

-- xdb::store::timer::OF_PARENT_OF
PREPARE statement AS
SELECT fire_at FROM xdb.timer WHERE execution_id = $1 AND seq = 0 AND command = 2;
DEALLOCATE statement;

-- xdb::store::usage::USAGE
PREPARE statement AS
SELECT u.kind, u.name, least(count(*), 10000) AS live FROM xdb.process_execution p CROSS JOIN LATERAL ( SELECT 'STATE'::text AS kind, s.state_id AS name FROM xdb.state_execution s WHERE s.execution_id = p.execution_id AND s.ended_at IS NULL UNION ALL SELECT 'LOCAL_QUEUE', w.queue_name FROM xdb.queue_waiter w WHERE w.execution_id = p.execution_id UNION ALL SELECT 'GLOBAL_QUEUE', d.queue_name FROM ( SELECT DISTINCT g.seq, g.queue_name FROM xdb.global_waiter g WHERE g.execution_id = p.execution_id) AS d ) AS u WHERE p.status = 'RUNNING' AND p.type_id = $1 GROUP BY u.kind, u.name ORDER BY u.kind, u.name;
DEALLOCATE statement;

-- xdb::store::worker_secret::DELETE
PREPARE statement AS
DELETE FROM xdb.worker_secret WHERE worker_id = $1;
DEALLOCATE statement;

-- xdb::store::worker_secret::INSERT
PREPARE statement AS
INSERT INTO xdb.worker_secret (worker_id, position, source, value) SELECT unnest($1::int4[]), unnest($2::int2[]), unnest($3::text[]), unnest($4::text[]);
DEALLOCATE statement;

-- xdb::store::worker_secret::OF_WORKER
PREPARE statement AS
SELECT w.secrets, ARRAY(SELECT s.source FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS sources, ARRAY(SELECT s.value FROM xdb.worker_secret s WHERE s.worker_id = w.worker_id ORDER BY s.position) AS secret_values FROM xdb.worker w WHERE w.name = $1;
DEALLOCATE statement;

-- store::app_tables and store::children, for a sample
CREATE TABLE public.sample (id text PRIMARY KEY, n int);

PREPARE statement AS
INSERT INTO "public"."sample" ("id", "n") SELECT $1::pg_catalog.text::pg_catalog.text, r."n" FROM pg_catalog.jsonb_to_record($2::pg_catalog.text::pg_catalog.jsonb) AS r ("n" integer);
DEALLOCATE statement;

PREPARE statement AS
INSERT INTO "public"."sample" ("id", "n") SELECT $1::pg_catalog.text::pg_catalog.text, r."n" FROM pg_catalog.jsonb_to_record($2::pg_catalog.text::pg_catalog.jsonb) AS r ("n" integer) ON CONFLICT ("id") DO NOTHING;
DEALLOCATE statement;

PREPARE statement AS
SELECT $1::pg_catalog.text::pg_catalog.text;
DEALLOCATE statement;

PREPARE statement AS
SELECT FROM ONLY "public"."sample" t WHERE t."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.text;
DEALLOCATE statement;

PREPARE statement AS
SELECT FROM xdb.start_processes($1::pg_catalog.text::pg_catalog.jsonb);
DEALLOCATE statement;

PREPARE statement AS
SELECT pg_catalog.to_jsonb(ROW(t."n")) OPERATOR(pg_catalog.=) pg_catalog.to_jsonb(ROW(r."n")) FROM ONLY "public"."sample" t, pg_catalog.jsonb_to_record($2::pg_catalog.text::pg_catalog.jsonb) AS r ("n" integer) WHERE t."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.text FOR NO KEY UPDATE OF t;
DEALLOCATE statement;

PREPARE statement AS
SELECT pg_catalog.to_jsonb(t."n")::pg_catalog.text FROM ONLY "public"."sample" t WHERE t."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.text;
DEALLOCATE statement;

PREPARE statement AS
SELECT pg_catalog.to_jsonb(t."n")::pg_catalog.text FROM ONLY "public"."sample" t WHERE t."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.text FOR NO KEY UPDATE;
DEALLOCATE statement;

PREPARE statement AS
SELECT pg_catalog.to_jsonb(t."n")::pg_catalog.text FROM ONLY "public"."sample" t WHERE t."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.text FOR SHARE;
DEALLOCATE statement;

SET CONSTRAINTS ALL IMMEDIATE;

PREPARE statement AS
UPDATE ONLY "public"."sample" t SET "n" = r."n" FROM pg_catalog.jsonb_to_record($2::pg_catalog.text::pg_catalog.jsonb) AS r ("n" integer) WHERE t."id" OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.text;
DEALLOCATE statement;

