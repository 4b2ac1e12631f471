-- A tour of bad input: registration. Each row is what was given, and what came of it: an error with its SQLSTATE, or
-- "accepted". Whatever is refused is named, with its place in the document and the words that are known.
\set SHOW_CONTEXT never
\pset format unaligned
\pset tuples_only on
SELECT xdb.pause_engine();
CREATE FUNCTION told(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text; message text; detail text; hint text;
BEGIN
    EXECUTE statement;
    RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(' / ', state || ' ' || message, nullif(detail, ''), nullif(hint, ''));
END $$;

-- register_worker: name.
CREATE TEMPORARY TABLE before AS SELECT name FROM xdb.workers;
CREATE FUNCTION with_name(name text) RETURNS text LANGUAGE sql
AS $$ SELECT told(format('SELECT xdb.register_worker(%L, %L)', name, 'http://127.0.0.1:1')) $$;
SELECT with_name(NULL);
SELECT with_name('');
SELECT with_name(repeat('x', 10000));
SELECT with_name(repeat('x', 1025));
SELECT with_name(repeat('é', 512));
SELECT name, with_name(name) FROM (VALUES
    ('../../etc/passwd'), ('it''s "quoted" \ and; DROP TABLE x; --'), ('select'), (' '), ('🚀 ключ'), (E'two\nlines'), ('%s %I {}')
) AS v (name);
SELECT xdb.unregister_worker(name) FROM xdb.workers WHERE name NOT IN (SELECT name FROM before);

-- url.
SELECT url, told(format('SELECT xdb.register_worker(%L, %L)', 'bad', url)) FROM (VALUES
    (NULL), (''), (' '), ('localhost'), ('http://'), ('http:///path'), ('ftp://localhost'), ('file:///etc/passwd'),
    ('javascript:alert(1)'), ('http://localhost:0'), ('http://localhost:65536'), ('http://localhost:-1'),
    ('http://localhost:http'), ('http://localhost:80:80'), ('http://user:password@localhost'), ('http://localhost?x=1'),
    ('http://localhost#x'), ('http://localhost\x'), (E'http://localhost\r\nHost: other'), ('http://löcalhost'),
    ('http://[::1'), ('http://[::1]:1'), ('http://..'), ('http://local host'), ('http://localhost/../../x'),
    ('http://localhost:1/a/b'), ('HTTP://LOCALHOST:1')
) AS v (url);
SELECT told(format('SELECT xdb.register_worker(%L, %L)', 'bad', 'http://' || repeat('a', 1000)));
SELECT told(format('SELECT xdb.register_worker(%L, %L)', 'bad', 'http://localhost/' || repeat('a', 100000)));

-- secret: it is never repeated in an error.
SELECT secret, told(format('SELECT xdb.register_worker(%L, %L, %L)', 'bad', 'http://127.0.0.1:1', secret)) FROM (VALUES
    (NULL), (''), ('whsec_'), ('whsec_***'), ('whsec_c2VjcmV0'), ('plain'), ('ключ'), (E'two\nlines'),
    ('env:'), ('env:A-B'), ('env:XDB_NO_SUCH'), ('env:' || repeat('A', 256)), ('file:'), ('file:.hidden'), ('file:a/b'), ('file:a'),
    ('File:a')
) AS v (secret);
SELECT first, second, told(format('SELECT xdb.set_worker_secret(%L, %L, %L)', 'bad', first, second)) FROM (VALUES
    (NULL, NULL), (NULL, 'x'), ('x', ''), ('', 'x'), ('x', 'file:.'), ('env:', 'x'), ('x', 'x')
) AS v (first, second);
SELECT worker, told(format('SELECT xdb.set_worker_secret(%L, %L)', worker, 'x')) FROM (VALUES
    (NULL), (''), ('no such')
) AS v (worker);

-- headers.
SELECT headers, told(format('SELECT xdb.register_worker(%L, %L, NULL, %L)', 'bad', 'http://127.0.0.1:1', headers)) FROM (VALUES
    (NULL), ('null'), ('{}'), ('[]'), ('"x"'), ('1'), ('true'), ('{"a": 1}'), ('{"a": null}'), ('{"a": {"b": "c"}}'), ('{"": "x"}'),
    ('{"a b": "x"}'), ('{"ключ": "x"}'), ('{"a": "two\r\nlines"}'), ('{"a": ""}'), ('{"a": "ключ"}'), ('{"Host": "x"}'),
    ('{"content-LENGTH": "1"}'), ('{"Idempotency-Key": "x"}'), ('{"traceparent": "x"}'), ('{"Content-Type": "text/html"}'),
    ('{"webhook-signature": "x"}'), ('{"a": "1", "A": "2"}'), ('{"Authorization": "Bearer x"}')
) AS v (headers);
SELECT told(format('SELECT xdb.register_worker(%L, %L, NULL, jsonb_build_object(%L, repeat(%L, 20000)))', 'bad', 'http://127.0.0.1:1', 'a', 'x'));
SELECT told(format('SELECT xdb.register_worker(%L, %L, NULL, (SELECT jsonb_object_agg(%L || n, repeat(%L, 10000)) FROM generate_series(1, 20) n))',
    'bad', 'http://127.0.0.1:1', 'a', 'x'));

-- max_concurrency.
SELECT n, told(format('SELECT xdb.register_worker(%L, %L, max_concurrency => %L)', 'bad', 'http://127.0.0.1:1', n)) FROM (VALUES
    (NULL), ('0'), ('-1'), ('-2147483648'), ('2147483647'), ('2147483648'), ('1')
) AS v (n);

-- unregister_worker and unregister_process_type.
SELECT name, told(format('SELECT xdb.unregister_worker(%L)', name)), told(format('SELECT xdb.unregister_process_type(%L)', name))
FROM (VALUES (NULL), (''), ('nobody'), ('it''s "quoted"')) AS v (name);
SELECT told(format('SELECT xdb.unregister_worker(%L)', repeat('x', 10000))), told(format('SELECT xdb.unregister_process_type(%L)', repeat('x', 10000)));

-- register_process_type: the names.
SELECT name, told(format('SELECT xdb.register_process_type(%L, %L, %L)', name, 'bad', '{}')) FROM (VALUES
    (NULL), (''), ('../x'), ('select * from "users"; --'), ('🚀')
) AS v (name);
SELECT told(format('SELECT xdb.register_process_type(%L, %L, %L)', repeat('x', 10000), 'bad', '{}'));
SELECT worker, told(format('SELECT xdb.register_process_type(%L, %L, %L)', 'Bad', worker, '{}')) FROM (VALUES
    (NULL), (''), ('nobody'), ('Bad'), ('bad ')
) AS v (worker);

-- The definition: what is no object, and what has unknown keys.
CREATE FUNCTION defined(definition text) RETURNS text LANGUAGE sql
AS $$ SELECT told(format('SELECT xdb.register_process_type(%L, %L, %L)', 'Bad', 'bad', definition)) $$;
SELECT definition, defined(definition) FROM (VALUES
    (NULL), ('null'), ('[]'), ('"x"'), ('1'), ('true'), ('{}'), ('{'), ('{"unknown": 1}'), ('{"startingstate": "A"}'), ('{"": 1}'),
    ('{"a\nb\" '' \\": 1}'), ('{"states": null, "rpcs": null, "localQueues": null, "timeoutSeconds": null, "history": null}')
) AS v (definition);
SELECT defined(jsonb_build_object(repeat('k', 10000), 1)::text);
SELECT defined((repeat('{"states": ', 129) || '1' || repeat('}', 129)));
SELECT defined((repeat('[', 129) || repeat(']', 129)));
SELECT defined('{"localQueues": ' || repeat('[', 5000) || repeat(']', 5000) || '}');
SELECT defined('{"timeoutSeconds": 1' || repeat('0', 400) || '}');

-- Each key of it.
SELECT definition, defined(definition) FROM (VALUES
    ('{"startingState": 1}'), ('{"startingState": ""}'), ('{"startingState": "A"}'), ('{"startingState": "A", "states": {"a": {}}}'),
    ('{"startingState": ["A"]}'),
    ('{"states": []}'), ('{"states": "A"}'), ('{"states": {"": {}}}'), ('{"states": {"A": 1}}'), ('{"states": {"A": []}}'),
    ('{"states": {"A": null}}'), ('{"states": {"A": {"skipwaituntil": true}}}'),
    ('{"localAttributes": "a"}'), ('{"localAttributes": [1]}'), ('{"localAttributes": [""]}'), ('{"localAttributes": [null]}'),
    ('{"localAttributes": {"a": 1}}'), ('{"localAttributes": []}'),
    ('{"localQueues": "a"}'), ('{"localQueues": [1]}'), ('{"localQueues": ["a", ""]}'), ('{"localQueues": []}'),
    ('{"rpcs": []}'), ('{"rpcs": {"": {}}}'), ('{"rpcs": {"r": 1}}'), ('{"rpcs": {"r": null}}'), ('{"rpcs": {"r": {"timeout": 1}}}'),
    ('{"rpcs": {"r": {"timeoutSeconds": "1"}}}'), ('{"rpcs": {"r": {"timeoutSeconds": -1}}}'), ('{"rpcs": {"r": {"timeoutSeconds": 1e308}}}'),
    ('{"rpcs": {"r": {"timeoutSeconds": 1e400}}}'), ('{"rpcs": {"r": {"timeoutSeconds": 0}}}'),
    ('{"rpcs": {"r": {"loadLocalAttributes": "ALL"}}}'), ('{"rpcs": {"r": {"loadLocalAttributes": {"policy": "SOME"}}}}'),
    ('{"rpcs": {"r": {"loadGlobalAttributes": {"policy": "PARTIAL", "names": ["nobody"]}}}}'),
    ('{"localAttributes": ["a"], "rpcs": {"r": {"loadLocalAttributes": {"policy": "PARTIAL", "names": ["a", "b"]}}}}'),
    ('{"rpcs": {"r\"; --": {"loadLocalAttributes": {"names": ["a"]}}}}'),
    ('{"timeoutSeconds": "1"}'), ('{"timeoutSeconds": -1}'), ('{"timeoutSeconds": -0}'), ('{"timeoutSeconds": -1e400}'), ('{"timeoutSeconds": 1e300}'),
    ('{"timeoutSeconds": []}'), ('{"timeoutSeconds": true}'),
    ('{"priority": 11}'), ('{"priority": -11}'), ('{"priority": 1.5}'), ('{"priority": "1"}'), ('{"priority": 300}'), ('{"priority": true}'),
    ('{"history": "some"}'), ('{"history": "FULL"}'), ('{"history": 1}'), ('{"history": ["full"]}'), ('{"history": {}}'), ('{"history": ""}')
) AS v (definition);

-- The options of a state.
SELECT config, defined(format('{"states": {"A": %s, "B": {}}, "localAttributes": ["known"]}', config)) FROM (VALUES
    ('{"skipWaitUntil": "true"}'), ('{"skipWaitUntil": 1}'), ('{"skipWaitUntil": null}'),
    ('{"waitUntilApiTimeoutSeconds": "10"}'), ('{"waitUntilApiTimeoutSeconds": -0.5}'), ('{"executeApiTimeoutSeconds": 1e400}'),
    ('{"executeApiTimeoutSeconds": 1e308}'), ('{"executeApiTimeoutSeconds": 1e300}'), ('{"executeApiTimeoutSeconds": 1e-308}'), ('{"executeApiTimeoutSeconds": {}}'),
    ('{"executeApiRetryPolicy": 3}'), ('{"executeApiRetryPolicy": {"maxAttempts": 3}}'), ('{"executeApiRetryPolicy": {"maximumAttempts": -1}}'),
    ('{"executeApiRetryPolicy": {"maximumAttempts": 1.5}}'), ('{"executeApiRetryPolicy": {"maximumAttempts": 1.0}}'),
    ('{"executeApiRetryPolicy": {"maximumAttempts": 4294967295}}'), ('{"executeApiRetryPolicy": {"maximumAttempts": 4294967296}}'),
    ('{"executeApiRetryPolicy": {"maximumAttempts": 1e400}}'), ('{"executeApiRetryPolicy": {"maximumAttempts": "3"}}'),
    ('{"executeApiRetryPolicy": {"backoffCoefficient": 0.5}}'), ('{"executeApiRetryPolicy": {"backoffCoefficient": -2}}'),
    ('{"executeApiRetryPolicy": {"backoffCoefficient": 1e308}}'), ('{"executeApiRetryPolicy": {"initialIntervalSeconds": -1}}'),
    ('{"executeApiRetryPolicy": {"initialIntervalSeconds": 1e308, "maximumIntervalSeconds": 1e308}}'),
    ('{"waitUntilApiRetryPolicy": {"maximumIntervalSeconds": null}}'), ('{"waitUntilApiRetryPolicy": {"maximumIntervalSeconds": [1]}}'),
    ('{"waitUntilApiRetryPolicy": {"maximumAttemptsDurationSeconds": "1 hour"}}'),
    ('{"stateFailureRecoveryOptions": "FAIL"}'), ('{"stateFailureRecoveryOptions": {"policy": "GO_ON"}}'), ('{"stateFailureRecoveryOptions": {"policy": 1}}'),
    ('{"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE"}}'),
    ('{"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "C"}}'),
    ('{"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B", "state": "B"}}'),
    ('{"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B", "stateFailureProceedStateConfig": {"skip": 1}}}'),
    ('{"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B", "stateFailureProceedStateConfig": {"loadLocalAttributes": {"policy": "PARTIAL", "names": ["unknown"]}}}}'),
    ('{"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": ""}}'),
    ('{"loadGlobalAttributes": "NONE"}'), ('{"loadGlobalAttributes": {"policy": "all"}}'), ('{"loadGlobalAttributes": {"names": ["x"]}}'),
    ('{"loadGlobalAttributes": {"policy": "PARTIAL", "names": ["x"]}}'), ('{"loadGlobalAttributes": {"policy": "PARTIAL", "names": "x"}}'),
    ('{"loadLocalAttributes": {"policy": "PARTIAL", "names": ["known", "unknown"]}}'), ('{"loadLocalAttributes": {"policy": "PARTIAL"}}'),
    ('{"loadLocalAttributes": {"policy": "NONE", "names": []}}'), ('{"loadLocalAttributes": {"lock": "NO_LOCKING"}}'),
    ('{"loadLocalAttributes": {"lockType": "SOME_LOCK"}}'), ('{"loadLocalAttributes": {"lockType": 1}}'),
    ('{"waitUntilLoadGlobalAttributes": {"policy": 1}}'), ('{"executeLoadGlobalAttributes": {"policy": "PARTIAL", "names": ["x"]}}'),
    ('{"waitUntilLoadLocalAttributes": {"policy": "PARTIAL", "names": [1]}}'), ('{"executeLoadLocalAttributes": {"policy": "PARTIAL", "names": [""]}}')
) AS v (config);

-- Tables.
CREATE TABLE bad_users (id text PRIMARY KEY, "Mixed Case" text, "a.b" text, n int, UNIQUE (n));
CREATE TABLE bad_no_key (id text, n int);
CREATE TABLE bad_partial (id text, n int);
CREATE UNIQUE INDEX ON bad_partial (id) WHERE n > 0;
CREATE TABLE bad_expression (id text);
CREATE UNIQUE INDEX ON bad_expression (lower(id));
CREATE VIEW bad_view AS SELECT * FROM bad_users;
CREATE MATERIALIZED VIEW bad_materialized AS SELECT * FROM bad_users;
CREATE SEQUENCE bad_sequence;
CREATE TYPE bad_type AS (id text);
CREATE TEMPORARY TABLE bad_temporary (id text PRIMARY KEY, n int);
SELECT mapping, defined(format('{"globalAttributes": %s}', mapping)) FROM (VALUES
    ('{}'), ('[1]'), ('[{}]'), ('[{"table": "bad_users"}]'), ('[{"table": "bad_users", "primaryKey": "id"}]'),
    ('[{"table": 1, "primaryKey": "id", "attributes": {}}]'), ('[{"table": "", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "bad_users", "primaryKey": 1, "attributes": {}}]'), ('[{"table": "bad_users", "primaryKey": "", "attributes": {}}]'),
    ('[{"table": "bad_users", "primaryKey": [], "attributes": {}}]'), ('[{"table": "bad_users", "primaryKey": ["id", "id"], "attributes": {}}]'),
    ('[{"table": "bad_users", "primaryKey": {"id": 1}, "attributes": {}}]'), ('[{"table": "bad_users", "primaryKey": [["id"]], "attributes": {}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": []}]'), ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": 1}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"": "n"}}]'), ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": ""}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "n", "b": "n"}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "nothing"}}]'), ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "mixed case"}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "\"Mixed Case\""}}]'), ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "ctid"}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "n; DROP TABLE bad_users; --"}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "id"}}]'), ('[{"table": "bad_users", "primaryKey": "nothing", "attributes": {}}]'),
    ('[{"table": "bad_users", "primaryKey": "Mixed Case", "attributes": {}}]'), ('[{"table": "bad_users", "primaryKey": ["id", "n"], "attributes": {}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {}, "key": "id"}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "n"}}, {"table": "public.bad_users", "primaryKey": "n", "attributes": {"b": "a.b"}}]'),
    ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "n"}}, {"table": "bad_no_key", "primaryKey": "id", "attributes": {"a": "n"}}]'),
    ('[{"table": "bad_no_key", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "bad_partial", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "bad_expression", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "bad_view", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "bad_materialized", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "bad_sequence", "primaryKey": "last_value", "attributes": {}}]'),
    ('[{"table": "bad_type", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "bad_users_pkey", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "bad_temporary", "primaryKey": "id", "attributes": {"n": "n"}}]'),
    ('[{"table": "nothing", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "Bad_Users", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "\"Bad_Users\"", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "nowhere.bad_users", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "a.b.c.d", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "bad_users; DROP TABLE bad_users", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "\"", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "12345", "primaryKey": "id", "attributes": {}}]'), ('[{"table": "../bad_users", "primaryKey": "id", "attributes": {}}]'),
    ('[{"table": "pg_class", "primaryKey": "oid", "attributes": {}}]'), ('[{"table": "xdb.worker", "primaryKey": "worker_id", "attributes": {"a": "url"}}]'),
    ('[{"table": "information_schema.sql_features", "primaryKey": "x", "attributes": {}}]'), ('[{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "a.b", "b": "Mixed Case"}}]')
) AS v (mapping);
SELECT defined(format('{"globalAttributes": [{"table": "%s", "primaryKey": "id", "attributes": {}}]}', repeat('x', 1025)));
-- A name of 63 bytes is one, and columns are not cut to it.
DO $$ BEGIN EXECUTE format('CREATE TABLE %I (id text PRIMARY KEY, %I text)', repeat('x', 63), repeat('y', 63)); END $$;
SELECT n, column_bytes, left(defined(format('{"globalAttributes": [{"table": "public.%s", "primaryKey": "id", "attributes": {"a": "%s"}}]}', repeat('x', n), repeat('y', column_bytes))), 100)
FROM (VALUES (62, 63), (63, 63), (63, 62), (63, 64)) AS v (n, column_bytes);
DO $$ BEGIN EXECUTE format('DROP TABLE %I', repeat('x', 63)); END $$;
SELECT defined(format('{"globalAttributes": [{"table": "bad_users", "primaryKey": "id", "attributes": {"a": "%s"}}]}', repeat('x', 1025)));
SELECT count(*) FROM bad_users;

SELECT xdb.unregister_process_type(process_type) FROM xdb.process_type WHERE worker_id = (SELECT worker_id FROM xdb.worker WHERE name = 'bad');
SELECT xdb.unregister_worker('bad');
DROP FUNCTION told, with_name, defined;
DROP VIEW bad_view;
DROP MATERIALIZED VIEW bad_materialized;
DROP TABLE bad_users, bad_no_key, bad_partial, bad_expression, bad_temporary, before;
DROP SEQUENCE bad_sequence;
DROP TYPE bad_type;
