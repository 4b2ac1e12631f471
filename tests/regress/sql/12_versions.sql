-- What the server itself answers differently from one major version to the next: 12_versions_1.out is of 17 and later, where
-- an interval can be infinite and is longer than any other. Everything else has the same expected file in all versions.
\set SHOW_CONTEXT never
\pset format unaligned
\pset tuples_only on
SELECT xdb.pause_engine();
CREATE FUNCTION told(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    result text; state text; message text;
BEGIN
    EXECUTE statement INTO result;
    RETURN coalesce(nullif(result, ''), 'accepted');
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
    RETURN state || ' ' || message;
END $$;
CREATE ROLE golden_versions;
SELECT xdb.grant_usage('golden_versions');
SELECT xdb.register_worker('versions', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Versions', 'versions', '{"startingState": "First", "states": {"First": {}}}');
SET ROLE golden_versions;

SELECT age, told(format('SELECT xdb.start_process(%L, ''Versions'', timeout => %L) IS NOT NULL', 'p' || age, age)),
    told(format('SELECT xdb.publish_global(''versions'', ''1'', ttl => %L)', age))
FROM (VALUES ('infinity'), ('-infinity')) AS v (age);
SELECT process_id, timeout_at FROM xdb.processes WHERE process_type = 'Versions';
SELECT count(*) FROM xdb.queue_messages WHERE queue_name = 'versions';
SELECT age, told(format('SELECT xdb.wait_for_process(%L, %L)', 'pinfinity', age)) FROM (VALUES ('infinity'), ('-infinity')) AS v (age);
RESET ROLE;
SELECT age, told(format('SELECT xdb.purge(%L)', age)) FROM (VALUES ('infinity'), ('-infinity')) AS v (age);
