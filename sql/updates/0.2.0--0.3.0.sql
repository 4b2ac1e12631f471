-- From 0.2.0 to 0.3.0.

-- What only native code writes, and xdb.check_process verifies.
ALTER TABLE xdb.process_execution
    DROP CONSTRAINT process_status_known,
    DROP CONSTRAINT process_closing_known,
    DROP CONSTRAINT process_threads_counted,
    DROP CONSTRAINT process_history_counts,
    DROP CONSTRAINT process_closed_has_time,
    DROP CONSTRAINT process_closed_is_still,
    DROP CONSTRAINT process_keys_need_mapping;
ALTER TABLE xdb.state_execution
    DROP CONSTRAINT state_seq_counts,
    DROP CONSTRAINT state_number_counts,
    DROP CONSTRAINT state_status_known,
    DROP CONSTRAINT state_ended_has_time,
    DROP CONSTRAINT state_at_a_call,
    DROP CONSTRAINT state_waiting_for_something;
ALTER TABLE xdb.task
    DROP CONSTRAINT task_lane_known,
    DROP CONSTRAINT task_api_known,
    DROP CONSTRAINT task_attempt_counts;
ALTER TABLE xdb.timer
    DROP CONSTRAINT timer_kind_known,
    DROP CONSTRAINT timer_of_process_or_state;
ALTER TABLE xdb.inbox DROP CONSTRAINT inbox_bytes_counted;
ALTER TABLE xdb.global_message DROP CONSTRAINT global_message_fresh_is_free;
ALTER TABLE xdb.global_waiter DROP CONSTRAINT global_waiter_wants_messages;
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
COMMENT ON COLUMN xdb.task.lane IS 'Who carries it out: 0 = the scheduler, 1 = the process for tables that are set aside, 2 = nobody.';
