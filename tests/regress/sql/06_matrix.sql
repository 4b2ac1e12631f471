-- The privileges of each role on every object of the extension: a new object has no row here, and fails this test until it has one.
-- The column nobody stands for PUBLIC, and owner for the owner of the database. Letters as in \dp: X executes, r reads, c reads some
-- columns; the others write. U uses the row type of a relation.
CREATE ROLE golden_nobody;
CREATE ROLE golden_usage;
CREATE ROLE golden_operator;
CREATE ROLE golden_deployer;
CREATE ROLE golden_both;
CREATE ROLE golden_owner;
SELECT xdb.grant_usage('golden_usage'), xdb.grant_usage('golden_operator', operator => true),
    xdb.grant_usage('golden_deployer', deployer => true), xdb.grant_usage('golden_both', admin => true);
SELECT format('ALTER DATABASE %I OWNER TO golden_owner', current_database()) \gexec

CREATE FUNCTION pg_temp.on_function(role name, function oid) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN has_function_privilege(role, function, 'EXECUTE') THEN 'X' ELSE '' END
$$;
CREATE FUNCTION pg_temp.on_relation(role name, relation oid, kind "char") RETURNS text LANGUAGE sql AS $$
    SELECT concat(
        (SELECT string_agg(p.letter, '' ORDER BY p.letter)
         FROM (VALUES ('r', 'SELECT'), ('a', 'INSERT'), ('w', 'UPDATE'), ('d', 'DELETE'), ('D', 'TRUNCATE'), ('x', 'REFERENCES'),
             ('t', 'TRIGGER')) AS p (letter, privilege)
         WHERE kind <> 'S' AND has_table_privilege(role, relation, p.privilege)),
        (SELECT string_agg(p.letter, '' ORDER BY p.letter)
         FROM (VALUES ('r', 'SELECT'), ('w', 'UPDATE'), ('u', 'USAGE')) AS p (letter, privilege)
         WHERE kind = 'S' AND has_sequence_privilege(role, relation, p.privilege)),
        CASE WHEN kind <> 'S' AND has_any_column_privilege(role, relation, 'SELECT')
                  AND NOT has_table_privilege(role, relation, 'SELECT') THEN 'c' END,
        CASE WHEN kind <> 'S' AND has_any_column_privilege(role, relation, 'INSERT, UPDATE, REFERENCES') THEN '!' END,
        (SELECT 'U' FROM pg_type AS t WHERE t.typrelid = relation AND has_type_privilege(role, t.oid, 'USAGE')))
$$;

SELECT p.proname AS function, p.pronargs AS arguments, r.*
FROM pg_proc AS p CROSS JOIN LATERAL (SELECT
    pg_temp.on_function('golden_nobody', p.oid) AS nobody, pg_temp.on_function('golden_usage', p.oid) AS usage,
    pg_temp.on_function('golden_operator', p.oid) AS operator, pg_temp.on_function('golden_deployer', p.oid) AS deployer,
    pg_temp.on_function('golden_both', p.oid) AS both, pg_temp.on_function('pg_monitor', p.oid) AS monitor,
    pg_temp.on_function('golden_owner', p.oid) AS owner) AS r
WHERE p.pronamespace = 'xdb'::regnamespace
ORDER BY p.proname, p.pronargs;

SELECT c.relname AS relation, c.relkind AS kind, r.*
FROM pg_class AS c CROSS JOIN LATERAL (SELECT
    pg_temp.on_relation('golden_nobody', c.oid, c.relkind) AS nobody, pg_temp.on_relation('golden_usage', c.oid, c.relkind) AS usage,
    pg_temp.on_relation('golden_operator', c.oid, c.relkind) AS operator, pg_temp.on_relation('golden_deployer', c.oid, c.relkind) AS deployer,
    pg_temp.on_relation('golden_both', c.oid, c.relkind) AS both, pg_temp.on_relation('pg_monitor', c.oid, c.relkind) AS monitor,
    pg_temp.on_relation('golden_owner', c.oid, c.relkind) AS owner) AS r
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind NOT IN ('i', 't')
ORDER BY c.relkind, c.relname;

-- The schema, and what is neither a function, nor a relation with its row type, nor an array of those: nothing.
SELECT r.role, has_schema_privilege(r.role, 'xdb', 'USAGE') AS usage, has_schema_privilege(r.role, 'xdb', 'CREATE') AS "create"
FROM unnest('{golden_nobody,golden_usage,golden_operator,golden_deployer,golden_both,pg_monitor,golden_owner}'::name[]) AS r (role);
SELECT t.oid::regtype AS type FROM pg_type AS t
WHERE t.typnamespace = 'xdb'::regnamespace AND t.typrelid = 0
  AND NOT EXISTS (SELECT FROM pg_type AS e WHERE e.oid = t.typelem AND e.typrelid <> 0 AND e.typarray = t.oid);
SELECT i.type, i.identity FROM pg_depend AS d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) AS i
WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
  AND i.type NOT IN ('function', 'table', 'view', 'sequence', 'schema', 'composite type', 'type');

-- So no role's tables and functions can block an update.
GRANT CREATE ON SCHEMA public TO golden_usage;
SET ROLE golden_usage;
CREATE TABLE of_a_type (row xdb.processes);
RESET ROLE;
REVOKE CREATE ON SCHEMA public FROM golden_usage;

-- Nothing of it stays.
GRANT USAGE ON TYPE xdb.processes TO golden_usage;
SELECT format('ALTER DATABASE %I OWNER TO %I', current_database(), current_user) \gexec
SELECT xdb.revoke_usage('golden_usage'), xdb.revoke_usage('golden_operator'), xdb.revoke_usage('golden_deployer'),
    xdb.revoke_usage('golden_both');
DROP ROLE golden_nobody, golden_usage, golden_operator, golden_deployer, golden_both, golden_owner;
