-- The privileges that there are in the end, whatever statements led to them.
SET client_min_messages = warning;

-- Nothing in the schema is for PUBLIC: no relation, no function, not the schema itself.
SELECT c.relname, a.privilege_type
FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
WHERE c.relnamespace = 'xdb'::regnamespace AND a.grantee = 0
ORDER BY 1, 2;
SELECT t.attrelid::regclass, t.attname, a.privilege_type
FROM pg_attribute AS t JOIN pg_class AS c ON c.oid = t.attrelid CROSS JOIN LATERAL aclexplode(t.attacl) AS a
WHERE c.relnamespace = 'xdb'::regnamespace AND a.grantee = 0
ORDER BY 1, 2, 3;
SELECT p.oid::regprocedure, a.privilege_type
FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
WHERE p.pronamespace = 'xdb'::regnamespace AND a.grantee = 0
ORDER BY p.oid::regprocedure::text;
SELECT a.privilege_type
FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
WHERE n.nspname = 'xdb' AND a.grantee = 0;

-- No function runs as its owner, and every one can be looked up with \df+.
SELECT p.oid::regprocedure
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND p.prosecdef
ORDER BY p.oid::regprocedure::text;
SELECT p.oid::regprocedure AS "function without a comment"
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
ORDER BY p.oid::regprocedure::text;
SELECT c.relname AS "view without a comment"
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'v' AND obj_description(c.oid, 'pg_class') IS NULL
ORDER BY c.relname;

-- The views are barriers: no function of a curious user sees rows before they are filtered.
SELECT c.relname AS "view without a barrier"
FROM pg_class AS c
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind = 'v'
  AND NOT coalesce(c.reloptions @> '{security_barrier=true}', false)
ORDER BY c.relname;

-- What a grant of ordinary use gives.
CREATE ROLE golden_user;
SELECT xdb.grant_usage('golden_user');
SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND has_function_privilege('golden_user', p.oid, 'EXECUTE')
ORDER BY 1, 2;
SELECT c.relname, c.relkind, string_agg(r.privilege, ' ' ORDER BY r.privilege) AS privileges
FROM pg_class AS c
CROSS JOIN (VALUES ('DELETE'), ('INSERT'), ('SELECT'), ('TRIGGER'), ('TRUNCATE'), ('UPDATE')) AS r (privilege)
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v')
  AND has_table_privilege('golden_user', c.oid, r.privilege)
GROUP BY 1, 2
ORDER BY 1;

-- What administration adds.
CREATE ROLE golden_operator;
SELECT xdb.grant_usage('golden_operator', admin => true);
SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND has_function_privilege('golden_operator', p.oid, 'EXECUTE')
  AND NOT has_function_privilege('golden_user', p.oid, 'EXECUTE')
ORDER BY 1, 2;
SELECT c.relname, r.privilege
FROM pg_class AS c
CROSS JOIN (VALUES ('DELETE'), ('INSERT'), ('SELECT'), ('TRIGGER'), ('TRUNCATE'), ('UPDATE')) AS r (privilege)
WHERE c.relnamespace = 'xdb'::regnamespace AND c.relkind IN ('r', 'p', 'v')
  AND has_table_privilege('golden_operator', c.oid, r.privilege)
  AND NOT has_table_privilege('golden_user', c.oid, r.privilege)
ORDER BY 1, 2;

-- Taken back, nothing is left, so that the role can be dropped.
SELECT xdb.revoke_usage('golden_user');
SELECT xdb.revoke_usage('golden_operator');
DROP ROLE golden_user;
DROP ROLE golden_operator;
