-- A tour of bad input: start_processes, an array of objects with the parameters of start_process. Each row is what was
-- given, and what came of it. Nothing of an array with a fault in it is started.
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

CREATE ROLE golden_bad_bulk;
SELECT xdb.grant_usage('golden_bad_bulk');
CREATE TABLE bad_bulk_rows (id int PRIMARY KEY, t text, even int CHECK (even % 2 = 0));
GRANT SELECT, INSERT, UPDATE ON bad_bulk_rows TO golden_bad_bulk;
SELECT xdb.register_worker('bad_bulk', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('BadBulk', 'bad_bulk', '{"startingState": "First", "states": {"First": {}, "Second": {}}, "localAttributes": ["known", "a"]}');
SELECT xdb.register_process_type('BadBulkRows', 'bad_bulk', '{"startingState": "First", "states": {"First": {}}, "globalAttributes": [
    {"table": "bad_bulk_rows", "primaryKey": "id", "attributes": {"t": "t", "even": "even"}}]}');
SET ROLE golden_bad_bulk;
CREATE SEQUENCE pg_temp.started;

CREATE FUNCTION pg_temp.bulk(processes text) RETURNS text LANGUAGE sql AS $$
    SELECT told(format('SELECT xdb.start_processes(%L)', processes))
$$;
SELECT processes, pg_temp.bulk(processes) FROM (VALUES (NULL), ('null'), ('{}'), ('1'), ('"x"'), ('[]'), ('[null]'), ('[[]]'), ('["x"]'), ('[{}]')) AS v (processes);
SELECT pg_temp.bulk(repeat('[', 5000) || repeat(']', 5000));
SELECT member, pg_temp.bulk(format('[{"process_id": "bulk-%s", "process_type": "BadBulk"}, {"process_id": "bulk-%s-bad", "process_type": "BadBulk", %s}]',
    nextval('pg_temp.started'), currval('pg_temp.started'), member)) FROM (VALUES
    ('"unknown": 1'), ('"Input": 1'), ('"": 1'), ('"process_id": 1'), ('"process_id": ""'), ('"process_type": ""'), ('"process_type": "badbulk"'), ('"process_type": ["BadBulk"]'),
    ('"timeout": 5'), ('"timeout": "soon"'), ('"timeout": ""'), ('"timeout": "-1 s"'), ('"timeout": "178956971 years"'), ('"timeout": "1 s", "start_at": "tomorrow-ish"'), ('"start_at": "infinity"'), ('"start_at": 5'), ('"start_at": "294277-01-01"'), ('"start_at": {}'),
    ('"id_reuse_policy": "SOMETIMES"'), ('"id_reuse_policy": null'), ('"id_reuse_policy": 1'), ('"global_attribute_pk": 1'), ('"global_attribute_pk": "1"'), ('"global_attributes": []'), ('"global_attributes": {"t": 1}'),
    ('"local_attributes": []'), ('"local_attributes": {"": 1}'), ('"local_attributes": {"Known": 1}'), ('"options": []'), ('"options": {"request": 1}'), ('"options": {"startingStateConfig": {"loadLocalAttributes": {"policy": "PARTIAL", "names": ["unknown"]}}}'),
    ('"options": {"globalAttributeKeys": {"bad_bulk_rows": {"id": 1}}}'), ('"input": null'), ('"input": [1e400, -0]')
) AS v (member);
SELECT left(pg_temp.bulk(format('[{"%s": 1}]', repeat('k', 100000))), 200);
SELECT pg_temp.bulk(format('[{"process_id": "%s", "process_type": "BadBulk"}]', repeat('k', 1025)));
SELECT pg_temp.bulk(format('[{"process_id": "deep", "process_type": "BadBulk", "input": %s}]', repeat('[', 129) || repeat(']', 129)));
SELECT pg_temp.bulk(format('[{"process_id": "large", "process_type": "BadBulk", "input": "%s"}]', repeat('x', 1048575)));
SELECT pg_temp.bulk('[{"process_id": "a", "process_type": "BadBulkRows", "global_attribute_pk": "one", "global_attributes": {"t": "x"}}]');
SELECT pg_temp.bulk('[{"process_id": "a", "process_type": "BadBulkRows", "global_attribute_pk": "1", "global_attributes": {"even": 3}}]');
-- What was accepted is there, and nothing else.
SELECT process_id, input FROM xdb.processes JOIN xdb.state_executions USING (process_id) WHERE process_type LIKE 'BadBulk%' ORDER BY process_id COLLATE "C";
RESET ROLE;
SELECT count(*) FROM bad_bulk_rows;
SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE owner = 'golden_bad_bulk' AND status = 'RUNNING';
SELECT xdb.unregister_process_type('BadBulk'), xdb.unregister_process_type('BadBulkRows'), xdb.unregister_worker('bad_bulk');
SELECT xdb.purge('0') > 0;
SELECT xdb.revoke_usage('golden_bad_bulk');
DROP FUNCTION pg_temp.bulk;
DROP SEQUENCE pg_temp.started;
DROP TABLE bad_bulk_rows;
DROP ROLE golden_bad_bulk;
DROP FUNCTION told;
