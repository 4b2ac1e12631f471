-- Checks that the server runs a library of the script's version or a later one. After an upgrade of the files the
-- server still runs the old library until it is restarted. The old library may lack functions of this version, so this
-- check comes before functions.sql declares them.
DO $body$
BEGIN
    CREATE OR REPLACE FUNCTION xdb.library_version() RETURNS text
        LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'xdb_library_version';
    IF (SELECT pg_catalog.string_to_array(xdb.library_version(), '.')::pg_catalog.int4[]
            OPERATOR(pg_catalog.<) pg_catalog.string_to_array(e.extversion, '.')::pg_catalog.int4[]
        FROM pg_catalog.pg_extension AS e WHERE e.extname OPERATOR(pg_catalog.=) 'xdb') THEN
        RAISE undefined_function;
    END IF;
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server runs an older version of xdb than the one that is installed'
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Restart the server, then run this again.';
END
$body$;
COMMENT ON FUNCTION xdb.library_version() IS 'Returns the version of XDB that the server runs. The version of the schema is extversion in pg_extension.';
