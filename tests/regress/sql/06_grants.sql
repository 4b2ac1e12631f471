-- What xdb.grant_usage gives, and that xdb.revoke_usage takes all of it. What nobody is given, 08_catalog.sql asserts.
\set SHOW_CONTEXT never

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

-- The columns of a worker that can be read: neither its secret nor its headers.
SELECT t.attname
FROM pg_attribute AS t
WHERE t.attrelid = 'xdb.worker'::regclass AND t.attnum > 0 AND NOT t.attisdropped
  AND has_column_privilege('golden_user', t.attrelid, t.attnum, 'SELECT')
ORDER BY t.attnum;

-- A role that may not be granted to.
SELECT xdb.grant_usage(NULL);
SELECT xdb.grant_usage(1);
SELECT xdb.revoke_usage(current_user::regrole);

-- Taken back, nothing is left, so that the role can be dropped.
SELECT xdb.revoke_usage('golden_user');
SELECT xdb.revoke_usage('golden_operator');
DROP ROLE golden_user;
DROP ROLE golden_operator;
