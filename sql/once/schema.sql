-- The schema, and what the database must be. Without IF NOT EXISTS: if a schema xdb exists already, which another role
-- may have prepared, the installation fails.
CREATE SCHEMA xdb;
COMMENT ON SCHEMA xdb IS 'XDB: durable processes. Call its functions and read its views. Only the library writes its tables.';

-- Payloads are JSON, and JSON text is UTF-8.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'xdb needs a database with the encoding UTF8'
            USING ERRCODE = 'feature_not_supported';
    END IF;
END
$$;

-- The objects that existed before this script, for always/privileges.sql: none. In an update, updates/begin.sql lists
-- them.
SELECT pg_catalog.set_config('xdb_script.members', '', true);
