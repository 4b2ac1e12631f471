-- From the tables of 0.3.0 to those of 0.4.0.
ALTER TABLE xdb.process_execution ADD COLUMN locks jsonb;
COMMENT ON COLUMN xdb.process_execution.locks IS 'The locks that the process asks for, {name: EXCLUSIVE or SHARE}; null = none.';

CREATE TABLE xdb.process_lock (
    execution_id uuid NOT NULL,
    name text NOT NULL,
    mode text NOT NULL,
    status text NOT NULL,
    due_at timestamptz NOT NULL,
    granted_at timestamptz,
    judge_at timestamptz,
    PRIMARY KEY (execution_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX process_lock_in_order ON xdb.process_lock (name, status, mode, due_at, execution_id);
CREATE INDEX process_lock_to_judge ON xdb.process_lock (judge_at) WHERE judge_at IS NOT NULL;
COMMENT ON TABLE xdb.process_lock IS 'Locks that processes wait for or have. A process gets all of its locks at once. Only the scheduler grants.';
COMMENT ON COLUMN xdb.process_lock.execution_id IS 'Process execution that asks for the lock.';
COMMENT ON COLUMN xdb.process_lock.name IS 'Name of the lock.';
COMMENT ON COLUMN xdb.process_lock.mode IS 'EXCLUSIVE or SHARE.';
COMMENT ON COLUMN xdb.process_lock.status IS 'WAITING; GRANTED; RELEASED: the process has closed, and the scheduler deletes the row.';
COMMENT ON COLUMN xdb.process_lock.due_at IS 'When the first call of the process is due. Requests for a lock are granted in this order.';
COMMENT ON COLUMN xdb.process_lock.granted_at IS 'When the process got the lock; null while it waits.';
COMMENT ON COLUMN xdb.process_lock.judge_at IS 'When the scheduler has to look at the row; null = other rows decide about it.';
SELECT pg_catalog.pg_extension_config_dump('xdb.process_lock', '');
