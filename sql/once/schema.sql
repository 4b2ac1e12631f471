-- Bare, so that a schema which somebody else made beforehand fails the installation.
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

-- What was there before this script, for always/privileges.sql: nothing. An update begins with its own answer.
SELECT pg_catalog.set_config('xdb_script.members', '', true);
