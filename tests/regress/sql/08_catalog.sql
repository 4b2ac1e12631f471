-- What the catalog says of the extension as it is installed.
-- One role of each kind that xdb.grant_usage makes; 06_matrix.sql lists what they are given.
CREATE ROLE golden_catalog_user;
CREATE ROLE golden_catalog_admin;
SELECT xdb.grant_usage('golden_catalog_user');
SELECT xdb.grant_usage('golden_catalog_admin', admin => true);

-- No PUBLIC privilege: on the schema, a relation, a column, a function, a type.
SELECT 'schema' AS kind, n.nspname::text AS object, a.privilege_type
FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
WHERE n.nspname = 'xdb' AND a.grantee = 0
UNION ALL
SELECT 'relation', c.oid::regclass::text, a.privilege_type
FROM pg_class AS c
CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) AS a
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND a.grantee = 0
UNION ALL
SELECT 'column', format('%s.%I', t.attrelid::regclass, t.attname), a.privilege_type
FROM pg_attribute AS t JOIN pg_class AS c ON c.oid = t.attrelid CROSS JOIN LATERAL aclexplode(t.attacl) AS a
WHERE c.relnamespace = 'xdb'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'function', p.oid::regprocedure::text, a.privilege_type
FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
WHERE p.pronamespace = 'xdb'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'type', t.oid::regtype::text, a.privilege_type
FROM pg_type AS t CROSS JOIN LATERAL aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) AS a
WHERE t.typnamespace = 'xdb'::regnamespace AND t.typelem = 0 AND a.grantee = 0
ORDER BY 1, 2, 3;

-- Other roles with grants, apart from the roles of these tests: the monitoring role.
SELECT DISTINCT pg_get_userbyid(a.grantee) AS grantee
FROM (
    SELECT c.relowner AS owner, a.grantee FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
    WHERE c.relnamespace = 'xdb'::regnamespace
    UNION ALL
    SELECT c.relowner, a.grantee FROM pg_class AS c JOIN pg_attribute AS t ON t.attrelid = c.oid
    CROSS JOIN LATERAL aclexplode(t.attacl) AS a WHERE c.relnamespace = 'xdb'::regnamespace
    UNION ALL
    SELECT p.proowner, a.grantee FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
    WHERE p.pronamespace = 'xdb'::regnamespace
    UNION ALL
    SELECT n.nspowner, a.grantee FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(n.nspacl) AS a
    WHERE n.nspname = 'xdb'
) AS a
WHERE a.grantee NOT IN (a.owner, 0) AND pg_get_userbyid(a.grantee) NOT LIKE 'golden\_%'
ORDER BY 1;
SELECT p.oid::regprocedure AS "function of those who monitor"
FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
WHERE p.pronamespace = 'xdb'::regnamespace AND a.grantee = 'pg_monitor'::regrole
ORDER BY p.proname;
SET ROLE pg_monitor;
SELECT count(*) FROM xdb.status();
RESET ROLE;

-- Only the owner writes a table, or may read a worker's secret.
SELECT c.oid::regclass AS "writable by others", r.role, p.privilege
FROM pg_class AS c
CROSS JOIN (VALUES ('golden_catalog_user'), ('golden_catalog_admin'), ('pg_monitor')) AS r (role)
CROSS JOIN (VALUES ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE'), ('REFERENCES'), ('TRIGGER')) AS p (privilege)
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND has_table_privilege(r.role, c.oid, p.privilege);
SELECT r.role AS "reads secrets", t.attname
FROM pg_attribute AS t
CROSS JOIN (VALUES ('golden_catalog_user'), ('golden_catalog_admin'), ('pg_monitor')) AS r (role)
WHERE t.attrelid = 'xdb.worker'::regclass AND t.attname IN ('secret', 'headers')
  AND has_column_privilege(r.role, t.attrelid, t.attnum, 'SELECT');

SELECT has_table_privilege(r.role, 'xdb.worker_secret', 'SELECT') AS "reads secrets", r.role
FROM (VALUES ('golden_catalog_user'), ('golden_catalog_admin'), ('pg_monitor')) AS r (role);

-- Every function is granted by xdb.grant_usage, or is one of the two that grant and revoke.
SELECT p.oid::regprocedure AS "granted to nobody"
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace
  AND p.proname NOT IN ('grant_usage', 'revoke_usage')
  AND NOT has_function_privilege('golden_catalog_admin', p.oid, 'EXECUTE');
SELECT p.oid::regprocedure AS "granted to more than its owner"
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace
  AND p.proname IN ('grant_usage', 'revoke_usage')
  AND has_function_privilege('golden_catalog_admin', p.oid, 'EXECUTE');

-- Every object has a comment. The sequence of an identity column is described by its column.
SELECT 'schema' AS "without a comment", n.nspname::text AS object
FROM pg_namespace AS n WHERE n.nspname = 'xdb' AND obj_description(n.oid, 'pg_namespace') IS NULL
UNION ALL
SELECT 'extension', e.extname FROM pg_extension AS e
WHERE e.extname = 'xdb' AND obj_description(e.oid, 'pg_extension') IS NULL
UNION ALL
SELECT 'relation', c.oid::regclass::text
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
  AND obj_description(c.oid, 'pg_class') IS NULL
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'i')
UNION ALL
SELECT 'column', format('%s.%I', c.oid::regclass, t.attname)
FROM pg_class AS c JOIN pg_attribute AS t ON t.attrelid = c.oid AND t.attnum > 0 AND NOT t.attisdropped
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND col_description(c.oid, t.attnum) IS NULL
UNION ALL
SELECT 'function', p.oid::regprocedure::text
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
UNION ALL
SELECT 'type', t.oid::regtype::text
FROM pg_type AS t
WHERE t.typnamespace = 'xdb'::regnamespace AND t.typrelid = 0 AND t.typelem = 0
  AND obj_description(t.oid, 'pg_type') IS NULL
ORDER BY 1, 2;

-- Every object in the schema belongs to the extension, so that DROP EXTENSION leaves nothing.
SELECT c.oid::regclass AS "not of the extension"
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e');
SELECT p.oid::regprocedure AS "not of the extension"
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e');

-- There are no triggers on system tables, nor foreign keys: what a trigger runs inside of a statement of the
-- engine is planned as the engine's statements are, by index, whatever its tables are like.
SELECT t.tgrelid::regclass::text AS "table with triggers", k.conname AS "constraint", t.tgisinternal AS internal, count(*)
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid LEFT JOIN pg_constraint AS k ON k.oid = t.tgconstraint
WHERE c.relnamespace = 'xdb'::regnamespace
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- Every table is under row-level security, which does not concern its owner, with a policy to read and none to write. Without a policy
-- it is the engine's alone.
SELECT c.oid::regclass AS "without row-level security"
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p') AND (NOT c.relrowsecurity OR c.relforcerowsecurity)
ORDER BY 1;
SELECT c.oid::regclass AS "without exactly one policy", array_agg(p.polcmd) AS policies
FROM pg_class AS c JOIN pg_policy AS p ON p.polrelid = c.oid
WHERE c.relnamespace = 'xdb'::regnamespace
GROUP BY c.oid HAVING array_agg(p.polcmd) IS DISTINCT FROM ARRAY['r'::"char"]
ORDER BY 1;
SELECT c.relname AS "without a policy"
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid)
ORDER BY 1;

-- Every view is read with its reader's rights, behind a barrier, and no function runs with its owner's. Functions written
-- in SQL or PL/pgSQL resolve names in the system's schema alone.
SELECT c.oid::regclass AS "not its reader's"
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'v'
  AND NOT coalesce(c.reloptions @> '{security_invoker=true,security_barrier=true}', false);
SELECT p.oid::regprocedure AS "runs as its owner"
FROM pg_proc AS p WHERE p.pronamespace = 'xdb'::regnamespace AND p.prosecdef;
SELECT p.oid::regprocedure AS "without a search path"
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.pronamespace = 'xdb'::regnamespace AND l.lanname <> 'c'
  AND p.proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp'];

SELECT xdb.revoke_usage('golden_catalog_user');
SELECT xdb.revoke_usage('golden_catalog_admin');
DROP ROLE golden_catalog_user, golden_catalog_admin;
