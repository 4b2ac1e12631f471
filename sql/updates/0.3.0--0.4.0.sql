-- From the tables of 0.3.0 to those of 0.4.0.
ALTER TABLE xdb.process_execution
    ADD COLUMN parent_id uuid,
    ADD COLUMN started_by jsonb,
    ADD COLUMN has_children boolean NOT NULL DEFAULT false,
    ADD COLUMN waiting_guards int,
    ADD COLUMN compensation jsonb,
    ADD COLUMN locks jsonb;
CREATE INDEX process_execution_children ON xdb.process_execution (parent_id)
    WHERE parent_id IS NOT NULL AND status OPERATOR(pg_catalog.=) 'RUNNING';
COMMENT ON COLUMN xdb.process_execution.parent_id IS 'The parent: the execution whose answer started this one. Null = it has no parent.';
COMMENT ON COLUMN xdb.process_execution.started_by IS 'What else it knows of its parent: process id, step, the queue for the message at its close, what becomes of it when the parent closes. Null = it has no parent.';
COMMENT ON COLUMN xdb.process_execution.has_children IS 'Whether its answers have started other processes.';
COMMENT ON TABLE xdb.timer IS 'Durable timers: process timeouts, ends of pauses, ends of processes whose parent has closed, and timer commands. A row is deleted when the timer fires or is no longer needed.';
COMMENT ON COLUMN xdb.timer.command IS 'Position of the command in the wait of the step, from 0. With seq 0: 0 = the timeout of the process, 1 = the end of its pause, 2 = its end after the close of its parent.';
COMMENT ON COLUMN xdb.process_execution.live_threads IS 'Threads that have not ended. A guard that waits is no thread.';
COMMENT ON COLUMN xdb.process_execution.waiting_guards IS 'How many guards wait. NULL: none.';
COMMENT ON COLUMN xdb.process_execution.compensation IS 'The steps that a compensation would undo, and how far it has come. NULL: none.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME, PARENT_CLOSED, STATE_BEGINS or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.task.lane IS 'Which engine process may claim the call. 0 = scheduler, 1 = runners. 2 = none: parked by a pause, or until the process has its locks. 3 = none: held after crashes.';
COMMENT ON COLUMN xdb.process_execution.locks IS 'The locks that the process asks for, {name: EXCLUSIVE or SHARE}; null = none.';

CREATE TABLE xdb.process_lock (
    execution_id uuid NOT NULL,
    name text NOT NULL,
    mode text NOT NULL,
    status text NOT NULL,
    due_at timestamptz NOT NULL,
    granted_at timestamptz,
    judge_at timestamptz,
    owner oid NOT NULL,
    PRIMARY KEY (execution_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX process_lock_in_order ON xdb.process_lock (name, status, mode, due_at, execution_id);
CREATE INDEX process_lock_to_judge ON xdb.process_lock (judge_at) WHERE judge_at IS NOT NULL;
CREATE INDEX process_lock_to_judge_of_owner ON xdb.process_lock (owner, judge_at);
COMMENT ON TABLE xdb.process_lock IS 'Locks that processes wait for or have. A process gets all of its locks at once. Only the scheduler grants.';
COMMENT ON COLUMN xdb.process_lock.execution_id IS 'Process execution that asks for the lock.';
COMMENT ON COLUMN xdb.process_lock.name IS 'Name of the lock.';
COMMENT ON COLUMN xdb.process_lock.mode IS 'EXCLUSIVE or SHARE.';
COMMENT ON COLUMN xdb.process_lock.status IS 'WAITING; GRANTED; RELEASED: the process has closed, and the scheduler deletes the row.';
COMMENT ON COLUMN xdb.process_lock.due_at IS 'When the first step of the process is due. Requests for a lock are granted in this order.';
COMMENT ON COLUMN xdb.process_lock.granted_at IS 'When the process got the lock; null while it waits.';
COMMENT ON COLUMN xdb.process_lock.judge_at IS 'When the scheduler has to look at the row; null = other rows decide about it.';
COMMENT ON COLUMN xdb.process_lock.owner IS 'Owner of the process. In the index, the locks of each owner have a range of their own.';
SELECT pg_catalog.pg_extension_config_dump('xdb.process_lock', '');

CREATE INDEX process_execution_failed ON xdb.process_execution (closed_at, execution_id)
    WHERE status OPERATOR(pg_catalog.=) ANY (ARRAY['FAILED', 'TIMEOUT']);
CREATE INDEX state_execution_failed ON xdb.state_execution (execution_id) WHERE last_failure IS NOT NULL;
DROP INDEX xdb.process_execution_by_process_id;
CREATE INDEX process_execution_by_process_id ON xdb.process_execution (process_id pg_catalog.text_pattern_ops);
