-- How system tables are vacuumed: all that they have, in the order in which a new installation has it.
ALTER TABLE xdb.process_execution RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.state_execution RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.timer RESET (autovacuum_vacuum_cost_delay);
ALTER TABLE xdb.process_execution
    SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
ALTER TABLE xdb.state_execution
    SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
ALTER TABLE xdb.timer
    SET (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
ALTER TABLE xdb.task SET (vacuum_truncate = off);
ALTER TABLE xdb.inbox SET (vacuum_truncate = off);
