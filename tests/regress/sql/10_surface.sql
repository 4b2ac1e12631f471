-- What holds for all functions and settings alike. The engine is paused.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_surface;
SELECT xdb.grant_usage('golden_surface');
SELECT xdb.register_worker('surface', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Surface', 'surface', '{"startingState": "First", "states": {"First": {}}}');
SET ROLE golden_surface;
SELECT xdb.start_process('surface-1', 'Surface', local_attributes => '{"k": "old"}') AS old \gset
SELECT xdb.stop_process('surface-1', reason => 'to be followed');
SELECT xdb.start_process('surface-1', 'Surface', local_attributes => '{"k": "new"}') AS new \gset
SELECT xdb.start_process('surface-2', 'Surface') AS other \gset

-- An execution is a UUID of version 7, of the variant of RFC 9562; later ones are greater.
SELECT :'old' ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS version_7,
       :'old'::uuid < :'new'::uuid AND :'new'::uuid < :'other'::uuid AS ascending;

-- Whatever takes a process id takes an execution, as its last parameter, but what starts one.
SELECT p.oid::regprocedure AS "without an execution"
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND p.proargnames[1] = 'process_id'
  AND (p.proargnames[p.pronargs] <> 'execution_id' OR p.proargtypes[p.pronargs - 1] <> 'uuid'::regtype OR p.pronargdefaults = 0);
SELECT p.proname AS "with an execution" FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND p.proargnames[p.pronargs] = 'execution_id' ORDER BY 1;

-- None means the latest; another one can be named; one of another process is none.
SELECT xdb.get_local_attributes('surface-1') AS latest, xdb.get_local_attributes('surface-1', execution_id => :'old') AS named;
SELECT xdb.describe_process('surface-1', execution_id => :'old') ->> 'status' AS status;
SELECT xdb.wait_for_process('surface-1', '0', execution_id => :'old') ->> 'status' AS status;
SELECT xdb.wait_for_state('surface-1', 'First-1', '0', execution_id => :'old') ->> 'status' AS status;
SELECT * FROM xdb.check_process('surface-1', execution_id => :'old');
CREATE TEMPORARY TABLE calls (number int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO calls (call) VALUES
    ('xdb.describe_process(''surface-1'', execution_id => $1)'),
    ('xdb.get_local_attributes(''surface-1'', execution_id => $1)'),
    ('xdb.check_process(''surface-1'', execution_id => $1)'),
    ('xdb.wait_for_process(''surface-1'', execution_id => $1)'),
    ('xdb.wait_for_state(''surface-1'', ''First-1'', execution_id => $1)'),
    ('xdb.publish(''surface-1'', ''box'', execution_id => $1)'),
    ('xdb.invoke_rpc(''surface-1'', ''any'', execution_id => $1)'),
    ('xdb.set_local_attributes(''surface-1'', ''{}'', execution_id => $1)'),
    ('xdb.skip_timer(''surface-1'', ''First-1'', execution_id => $1)'),
    ('xdb.retry_now(''surface-1'', execution_id => $1)'),
    ('xdb.pause_process(''surface-1'', execution_id => $1)'),
    ('xdb.resume_process(''surface-1'', execution_id => $1)'),
    ('xdb.stop_process(''surface-1'', execution_id => $1)');
CREATE FUNCTION pg_temp.answer(call text, execution uuid) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'SELECT ' || call USING execution;
    RETURN 'done';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END
$$;
SELECT split_part(split_part(call, '(', 1), '.', 2) AS function, pg_temp.answer(call, :'other') AS of_another_process
FROM calls ORDER BY number;
-- What changes something changes the execution that is named, and this one is closed.
SELECT split_part(split_part(call, '(', 1), '.', 2) AS function, pg_temp.answer(call, :'old') AS closed
FROM calls WHERE number IN (6, 8, 9, 10, 11) ORDER BY number;
SELECT xdb.describe_process('surface-1') ->> 'status' AS status;
RESET ROLE;

-- Settings, with their defaults, and the context in which they may be set.
SELECT name, boot_val, unit, context FROM pg_settings WHERE name LIKE 'xdb.%' ORDER BY name;

DO $$ BEGIN PERFORM xdb.stop_process(process_id) FROM xdb.processes WHERE owner = 'golden_surface' AND status = 'RUNNING'; END $$;
SELECT xdb.unregister_process_type('Surface');
SELECT xdb.unregister_worker('surface');
