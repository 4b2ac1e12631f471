-- From the tables of 0.3.0 to those of 0.4.0.

COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME, STATE_BEGINS or TIMER_COMMAND.';
