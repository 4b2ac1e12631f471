-- Bare, so that a schema which somebody else made beforehand fails the installation.
CREATE SCHEMA xdb;

-- Payloads are JSON, and JSON text is UTF-8.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'xdb needs a database with the encoding UTF8'
            USING ERRCODE = 'feature_not_supported';
    END IF;
END
$$;
