-- From the tables of 0.3.0 to those of 0.4.0.

ALTER TABLE xdb.process_execution ADD COLUMN waiting_guards int;
ALTER TABLE xdb.process_execution ADD COLUMN compensation jsonb;
COMMENT ON COLUMN xdb.process_execution.live_threads IS 'Threads that have not ended. A guard that waits is no thread.';
COMMENT ON COLUMN xdb.process_execution.waiting_guards IS 'How many guards wait. NULL: none.';
COMMENT ON COLUMN xdb.process_execution.compensation IS 'The steps that a compensation would undo, and how far it has come. NULL: none.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME, STATE_BEGINS or TIMER_COMMAND.';
