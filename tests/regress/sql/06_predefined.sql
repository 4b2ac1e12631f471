-- Roles that the server lets read or write all tables: row-level security gives them what is theirs, and no more.
-- That every table has it, 08_catalog.sql asserts.
\set SHOW_CONTEXT never
\set VERBOSITY terse

CREATE ROLE golden_writer IN ROLE pg_write_all_data, pg_read_all_data;
CREATE ROLE golden_writing_user IN ROLE pg_write_all_data, pg_read_all_data;
CREATE ROLE golden_victim;
SELECT xdb.grant_usage('golden_writing_user'), xdb.grant_usage('golden_victim');
CREATE TABLE predefined_rows (id text PRIMARY KEY, note text);
GRANT SELECT, INSERT, UPDATE ON predefined_rows TO golden_victim;
SELECT xdb.pause_engine();
SELECT xdb.register_worker('predefined', 'http://127.0.0.1:1');
SELECT xdb.register_process_type('Predefined', 'predefined', '{
    "startingState": "First", "states": {"First": {"skipWaitUntil": true}},
    "globalAttributes": [{"table": "public.predefined_rows", "primaryKey": "id", "attributes": {"note": "note"}}]
}');
SET ROLE golden_victim;
SELECT xdb.start_process('predefined', 'Predefined', global_attribute_pk => 'a', global_attributes => '{"note": "mine"}') IS NOT NULL AS started;
SELECT xdb.publish_global('predefined', '1', message_id => 'once');
RESET ROLE;

-- What a role changes, deletes and sees in each table: rows of the extension that it could reach. Errors count as nothing.
CREATE FUNCTION pg_temp.reached(OUT "table" text, OUT updated bigint, OUT deleted bigint, OUT seen bigint) RETURNS SETOF record
LANGUAGE plpgsql AS $$
DECLARE
    relation record;
BEGIN
    FOR relation IN
        SELECT c.oid::regclass AS name, (SELECT quote_ident(a.attname) FROM pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' ORDER BY a.attnum LIMIT 1) AS changed
        FROM pg_class AS c WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'r' ORDER BY c.relname
    LOOP
        "table" := relation.name;
        updated := 0;
        deleted := 0;
        seen := 0;
        BEGIN
            EXECUTE format('UPDATE %s SET %s = %2$s', relation.name, relation.changed);
            GET DIAGNOSTICS updated = ROW_COUNT;
        EXCEPTION WHEN insufficient_privilege THEN
        END;
        BEGIN
            EXECUTE format('DELETE FROM %s', relation.name);
            GET DIAGNOSTICS deleted = ROW_COUNT;
        EXCEPTION WHEN insufficient_privilege THEN
        END;
        BEGIN
            EXECUTE format('SELECT count(*) FROM %s', relation.name) INTO seen;
        EXCEPTION WHEN insufficient_privilege THEN
        END;
        IF updated > 0 OR deleted > 0 OR seen > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION pg_temp.reached() TO golden_writer, golden_writing_user;
SET ROLE golden_writer;
SELECT * FROM pg_temp.reached();
SET ROLE golden_writing_user;
SELECT * FROM pg_temp.reached();
-- Nor does it put anything there.
INSERT INTO xdb.mapped_table SELECT 1, 9, 'public.predefined_rows', 'x', '{id}', '{}';
INSERT INTO xdb.registration_count DEFAULT VALUES;
INSERT INTO xdb.engine VALUES (10, 1000);
INSERT INTO xdb.task SELECT * FROM xdb.task;
UPDATE xdb.mapped_table SET relation = 'pg_catalog.pg_class', table_name = 'x';
UPDATE xdb.processes SET reason = 'x';
COPY xdb.registry FROM stdin;
\.
RESET ROLE;
SELECT count(*) AS mapped FROM xdb.mapped_table WHERE relation = 'public.predefined_rows'::regclass;

-- The owner of the tables and superusers go on as before.
SELECT count(*) > 0 AS engine FROM xdb.engine;
SET ROLE golden_victim;
SELECT process_id, status FROM xdb.processes WHERE process_id = 'predefined';
SELECT * FROM xdb.check_process('predefined');
SELECT xdb.stop_process('predefined');
RESET ROLE;
SELECT xdb.resume_engine();
SELECT xdb.unregister_process_type('Predefined');
SELECT xdb.unregister_worker('predefined');
DELETE FROM xdb.global_message WHERE queue_name = 'predefined';
SELECT xdb.purge('0') > 0 AS purged;
DROP TABLE predefined_rows;
SELECT xdb.revoke_usage('golden_writing_user'), xdb.revoke_usage('golden_victim');
DROP FUNCTION pg_temp.reached();
DROP ROLE golden_writer, golden_writing_user, golden_victim;
