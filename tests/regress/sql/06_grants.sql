-- How xdb.grant_usage grants, and that xdb.revoke_usage revokes all of it. 06_matrix.sql lists its grants; what no role may get,
-- 08_catalog.sql asserts.
\set SHOW_CONTEXT never

CREATE ROLE golden_user;
CREATE ROLE golden_operator;
CREATE ROLE golden_deployer;
SELECT xdb.grant_usage('golden_user');
SELECT xdb.grant_usage('golden_operator', operator => true);
SELECT xdb.grant_usage('golden_deployer', deployer => true);

-- What one is given later adds to what one has, and admin is both.
CREATE ROLE golden_all;
SELECT xdb.grant_usage('golden_all', true);
SELECT xdb.grant_usage('golden_deployer', operator => true);
SELECT p.oid::regprocedure AS "not of an admin"
FROM pg_proc AS p
WHERE p.pronamespace = 'xdb'::regnamespace AND has_function_privilege('golden_deployer', p.oid, 'EXECUTE')
  <> has_function_privilege('golden_all', p.oid, 'EXECUTE');

-- The columns of a worker that can be read: neither its secret nor its headers.
SELECT t.attname
FROM pg_attribute AS t
WHERE t.attrelid = 'xdb.worker'::regclass AND t.attnum > 0 AND NOT t.attisdropped
  AND has_column_privilege('golden_user', t.attrelid, t.attnum, 'SELECT')
ORDER BY t.attnum;

-- A role that may not be granted to.
SELECT xdb.grant_usage(NULL);
SELECT xdb.grant_usage('golden_user', operator => NULL);
SELECT xdb.grant_usage('golden_user', deployer => NULL);
SELECT xdb.grant_usage(1);
SELECT xdb.revoke_usage(current_user::regrole);

-- Taken back, nothing is left, so that the role can be dropped.
SELECT xdb.revoke_usage('golden_user');
SELECT xdb.revoke_usage('golden_operator');
SELECT xdb.revoke_usage('golden_deployer');
SELECT xdb.revoke_usage('golden_all');
DROP ROLE golden_user, golden_operator, golden_deployer, golden_all;
