-- From the tables of 0.3.0 to those of 0.4.0.
ALTER TABLE xdb.process_execution
    ADD COLUMN parent_id uuid,
    ADD COLUMN started_by jsonb,
    ADD COLUMN has_children boolean NOT NULL DEFAULT false,
    ADD COLUMN waiting_guards int,
    ADD COLUMN compensation jsonb;
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
