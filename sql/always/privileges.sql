-- Sets owner and privileges of the objects that the script has created. Runs last.
--
-- The new objects belong to the owner of the schema, also if another superuser runs an update. No other role has
-- privileges on them. PUBLIC has none, although Postgres grants it every new function and type. Roles that default
-- privileges or event triggers of this database name have none either. Only this script grants privileges to
-- pg_monitor.
--
-- Limitations: objects that existed before keep their privileges, because administrators may have granted them to
-- roles. If a script grants or revokes anything on an object, all privileges on it become a part of the extension.
-- Then pg_dump leaves these privileges out, and they stay on record when the role is dropped. For the same reason no
-- script grants anything to a role that is not built in. A warning names the roles that used XDB before.
-- xdb.grant_usage grants them what is new.

-- Below, only objects of the system are found without their schema.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $body$
DECLARE
    of_monitors CONSTANT oid[] := ARRAY['xdb.status()', 'xdb.library_version()', 'xdb.metrics()', 'xdb.openmetrics(boolean)']::regprocedure[];
    members CONSTANT text[] := string_to_array(current_setting('xdb_script.members'), ' ');
    owner CONSTANT regrole := (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb');
    made record;
    grantees text;
    again text;
BEGIN
    FOR made IN
        SELECT d.objid, i.type, i.identity, CASE
            WHEN i.type IN ('function', 'schema') THEN upper(i.type) WHEN i.type IN ('table', 'view', 'sequence') THEN 'TABLE' END AS kind
        FROM pg_depend AS d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) AS i
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
          AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
          AND format('%s:%s', d.classid, d.objid) <> ALL (members)
          -- A row type and its array type have the owner of their table. From Postgres 17 on they are members too.
          AND NOT EXISTS (SELECT FROM pg_type AS t WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (t.typrelid <> 0 OR t.typelem <> 0))
        ORDER BY i.type = 'sequence'  -- the sequence of an identity column gets the owner of its table
    LOOP
        IF made.kind IS NULL THEN
            RAISE EXCEPTION 'sql/always/privileges.sql does not know what to do with % %', made.type, made.identity;
        END IF;
        EXECUTE format('ALTER %s %s OWNER TO %s', made.kind, made.identity, owner);
        -- Revoking a privilege on a relation also revokes it on the columns.
        SELECT string_agg(DISTINCT ', ' || a.grantee::regrole, '')
        INTO grantees
        FROM (
            SELECT nspacl FROM pg_namespace WHERE made.kind = 'SCHEMA' AND oid = made.objid
            UNION ALL SELECT proacl FROM pg_proc WHERE made.kind = 'FUNCTION' AND oid = made.objid
            UNION ALL SELECT relacl FROM pg_class WHERE made.kind = 'TABLE' AND oid = made.objid
            UNION ALL SELECT attacl FROM pg_attribute WHERE made.kind = 'TABLE' AND attrelid = made.objid
        ) AS granted (acl) CROSS JOIN LATERAL aclexplode(granted.acl) AS a
        WHERE a.grantee NOT IN (owner, 0);
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC%s CASCADE', made.kind, made.identity, grantees);
        IF made.kind = 'SCHEMA' THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO pg_monitor', made.identity);
        END IF;
        IF made.kind = 'FUNCTION' AND made.objid = ANY (of_monitors) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pg_monitor', made.identity);
        END IF;
        again := 'yes';
    END LOOP;

    -- If a role uses the row type of a table in its own table or function, a later update can't change the table.
    -- Without an entry in typacl, PUBLIC may use a type. Array types have the privileges of their element types.
    FOR made IN
        SELECT t.oid::regtype AS identity
        FROM pg_type AS t JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = t.typrelid
        WHERE t.typnamespace = 'xdb'::regnamespace AND t.typacl IS NULL
          AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
          AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', made.identity);
    END LOOP;

    -- A role that may start processes is a user. With xdb.pause_engine() it is an operator, with
    -- xdb.register_process_type() a deployer. A WARNING, because notices of a script are suppressed.
    IF members <> '{}' AND again IS NOT NULL THEN
        SELECT string_agg(format('SELECT xdb.grant_usage(%L%s);', a.grantee::regrole,
            CASE
                WHEN operates AND deploys THEN ', admin => true'
                WHEN operates THEN ', operator => true'
                WHEN deploys THEN ', deployer => true'
            END), ' ' ORDER BY a.grantee::regrole::text)
        INTO again
        FROM pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        CROSS JOIN LATERAL has_function_privilege(a.grantee, 'xdb.pause_engine()', 'EXECUTE') AS operates
        CROSS JOIN LATERAL has_function_privilege(a.grantee, 'xdb.register_process_type(text, text, jsonb)', 'EXECUTE') AS deploys
        WHERE p.proname = 'start_process' AND p.pronamespace = 'xdb'::regnamespace
          AND a.grantee NOT IN (p.proowner, 0);
        IF again IS NOT NULL THEN
            RAISE WARNING 'roles that use xdb may not use yet what this update brings' USING HINT = again;
        END IF;
    END IF;
END
$body$;
