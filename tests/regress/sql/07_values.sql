-- JSON in and out: what is accepted comes back as it was.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_values;
SELECT xdb.grant_usage('golden_values');
CREATE TABLE values_rows (
    id text PRIMARY KEY, t text, n numeric, i bigint, b boolean, j jsonb,
    ts timestamptz, d date, u uuid, a int[], x bytea);
GRANT SELECT, INSERT, UPDATE ON values_rows TO golden_values;
SELECT xdb.register_worker('values', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Values', 'values', '{
    "startingState": "First",
    "states": {"First": {"skipWaitUntil": true}},
    "globalAttributes": [{"table": "public.values_rows", "primaryKey": "id", "attributes":
        {"t": "t", "n": "n", "i": "i", "b": "b", "j": "j", "ts": "ts", "d": "d", "u": "u", "a": "a", "x": "x"}}]
}');
SELECT xdb.register_process_type('ValuesPlain', 'values', '{
    "startingState": "First", "states": {"First": {"skipWaitUntil": true}}}');
SET ROLE golden_values;

-- JSON null is a value of an attribute; as an input or a message it is the same as none. An empty object is no attribute.
SELECT xdb.start_process('values-null', 'ValuesPlain', input => 'null', local_attributes => '{"present": null}') IS NOT NULL AS started;
SELECT xdb.get_local_attributes('values-null');
SELECT input IS NULL AS none, input FROM xdb.state_executions WHERE process_id = 'values-null';
SELECT xdb.start_process('values-none', 'ValuesPlain', input => NULL, local_attributes => NULL) IS NOT NULL AS started;
SELECT xdb.get_local_attributes('values-none');
SELECT xdb.start_process('values-empty', 'ValuesPlain', local_attributes => '{}') IS NOT NULL AS started;
SELECT xdb.get_local_attributes('values-empty');

-- Numbers keep their digits.
SELECT xdb.start_process('values-numbers', 'ValuesPlain', local_attributes => '{
    "big": 123456789012345678901234567890, "small": 0.1000, "exact": 9007199254740993,
    "negative": -0.5, "exponent": 1e30, "tiny": 1e-20}') IS NOT NULL AS started;
SELECT key, value FROM jsonb_each(xdb.get_local_attributes('values-numbers')) ORDER BY key COLLATE "C";

-- Text keeps its characters, keys and queue names as well as values.
SELECT xdb.start_process('values-ünï-🚀 "quoted" ''and'' \back', 'ValuesPlain',
    local_attributes => '{"ключ 鍵": "значение 値 \ud83d\ude80 \" \\ / \n\t"}') IS NOT NULL AS started;
SELECT key, value
FROM jsonb_each(xdb.get_local_attributes('values-ünï-🚀 "quoted" ''and'' \back')) ORDER BY key COLLATE "C";
SELECT xdb.publish('values-null', 'очередь', '{"😀": ["é"]}', message_id => 'ид');
SELECT queue_name, message_id, payload FROM xdb.queue_messages WHERE process_id = 'values-null';

-- A key has at least one character.
SELECT xdb.start_process('values-refused', 'ValuesPlain', local_attributes => '{"": 1}');

-- A selection of attributes; a key that is not there is left out.
SELECT xdb.get_local_attributes('values-numbers', ARRAY['exact', 'small', 'missing']);
SELECT xdb.get_local_attributes('values-numbers', ARRAY[]::text[]);

-- A message may have no payload; one that is null is none.
SELECT xdb.publish('values-none', 'box');
SELECT xdb.publish('values-none', 'box', 'null', message_id => 'null');
SELECT message_id IS NOT NULL AS has_id, payload IS NULL AS is_null, payload FROM xdb.queue_messages
WHERE process_id = 'values-none' ORDER BY message_id = 'null' DESC NULLS LAST;

-- Columns are converted by Postgres: JSON on one side, the column's type on the other.
SELECT xdb.start_process('values-columns', 'Values', global_attribute_pk => 'r1', global_attributes => '{
    "t": "text", "n": 12345678901234567890.123456789, "i": 9223372036854775807, "b": true,
    "j": {"nested": [1, null, "x"]}, "ts": "2026-01-02T03:04:05.678901Z", "d": "2026-02-28",
    "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a": [1, 2, 3], "x": "\\xdeadbeef"}') IS NOT NULL AS started;
SET timezone = 'UTC';
SET datestyle = 'ISO';
\x on
SELECT * FROM values_rows WHERE id = 'r1';
\x off

-- JSON null in a column is SQL NULL, also in a column of type jsonb.
SELECT xdb.start_process('values-column-nulls', 'Values', global_attribute_pk => 'r2',
    global_attributes => '{"t": null, "n": null, "j": null}') IS NOT NULL AS started;
SELECT t IS NULL AS t, n IS NULL AS n, j IS NULL AS j FROM values_rows WHERE id = 'r2';

-- The caller's own formats make no difference.
SET timezone = 'Asia/Kathmandu';
SET datestyle = 'SQL, DMY';
SELECT xdb.start_process('values-formats', 'Values', global_attribute_pk => 'r3',
    global_attributes => '{"ts": "2026-01-02 03:04:05", "d": "2026-03-04"}') IS NOT NULL AS started;
SET timezone = 'UTC';
SET datestyle = 'ISO';
SELECT ts, d FROM values_rows WHERE id = 'r3';

-- Values that the column's type refuses are the caller's error.
SELECT xdb.start_process('values-refused', 'Values', global_attribute_pk => 'r4', global_attributes => '{"i": 9223372036854775808}');
SELECT xdb.start_process('values-refused', 'Values', global_attribute_pk => 'r4', global_attributes => '{"b": "perhaps"}');
SELECT xdb.start_process('values-refused', 'Values', global_attribute_pk => 'r4', global_attributes => '{"d": "2026-02-30"}');

-- Depth: 128 levels are accepted, one more is not.
SELECT xdb.start_process('values-deep', 'ValuesPlain', local_attributes =>
    jsonb_build_object('deep', (repeat('[', 128) || repeat(']', 128))::jsonb)) IS NOT NULL AS started;
SELECT length((xdb.get_local_attributes('values-deep') -> 'deep')::text);
SELECT xdb.start_process('values-deeper', 'ValuesPlain', local_attributes =>
    jsonb_build_object('deep', (repeat('[', 129) || repeat(']', 129))::jsonb));
SELECT xdb.start_process('values-deeper', 'ValuesPlain', input => (repeat('[', 129) || repeat(']', 129))::jsonb);
SELECT xdb.publish('values-null', 'box', (repeat('{"a":', 129) || '1' || repeat('}', 129))::jsonb);

-- Size: each input, message and attribute for itself.
SHOW xdb.max_payload_size;
SELECT xdb.start_process('values-large', 'ValuesPlain', input => to_jsonb(repeat('x', 1000000)),
    local_attributes => jsonb_build_object('one', repeat('y', 1000000), 'two', repeat('z', 1000000))) IS NOT NULL AS started;
SELECT length(input::text) FROM xdb.state_executions WHERE process_id = 'values-large';
SELECT key, length(value::text) FROM jsonb_each(xdb.get_local_attributes('values-large')) ORDER BY key;
SELECT xdb.start_process('values-larger', 'ValuesPlain', input => to_jsonb(repeat('x', 2000000)));
SELECT xdb.start_process('values-larger', 'ValuesPlain', local_attributes => jsonb_build_object('one', repeat('x', 2000000)));
SELECT xdb.publish('values-null', 'box', to_jsonb(repeat('x', 2000000)));
SELECT count(*) FROM xdb.processes WHERE process_id IN ('values-refused', 'values-deeper', 'values-larger');
RESET ROLE;
