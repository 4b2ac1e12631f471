-- From 0.2.0 to 0.3.0.

-- It has one column more.
DROP FUNCTION xdb.status();

-- Locks on attributes are no rows any more. The view lets go of the table and keeps its grants; what it reads from now on
-- stands in sql/always. What waited for locks was in a lane of its own.
CREATE OR REPLACE VIEW xdb.attribute_locks WITH (security_invoker = true, security_barrier = true) AS
SELECT NULL::pg_catalog.text AS process_id, NULL::pg_catalog.uuid AS execution_id, NULL::pg_catalog.text AS state_execution_id,
    NULL::pg_catalog.text AS locked, NULL::pg_catalog.text AS lock_type, NULL::pg_catalog.bool AS granted,
    NULL::pg_catalog.int8 AS ticket, NULL::pg_catalog.uuid AS object;
DROP TABLE xdb.attribute_lock, xdb.attribute_lock_release;
DROP SEQUENCE xdb.attribute_lock_ticket;
UPDATE xdb.task SET lane = 0, lease_epoch = 0, lease_number = 0, lease_until = NULL WHERE lane OPERATOR(pg_catalog.=) 2;
