-- The setting xdb.now, and what xdb.workers shows of breakers. What they do is tested with a running engine elsewhere.
SHOW xdb.now;
SELECT context, vartype, boot_val FROM pg_settings WHERE name = 'xdb.now';

-- A distance, and nothing else.
ALTER SYSTEM SET xdb.now = 'tomorrow';
ALTER SYSTEM SET xdb.now = '3 tomorrows';
ALTER SYSTEM SET xdb.now = '1 month';
ALTER SYSTEM SET xdb.now = '2027-01-01 00:00:00+00';
ALTER SYSTEM SET xdb.now = '40000 days';
ALTER SYSTEM SET xdb.now = '-1 day 02:30:00';
ALTER SYSTEM RESET xdb.now;

-- For the whole server alone.
SET xdb.now = '1 day';
CREATE ROLE golden_clock;
ALTER ROLE golden_clock SET xdb.now = '1 day';
ALTER DATABASE golden SET xdb.now = '1 day';
SET ROLE golden_clock;
ALTER SYSTEM SET xdb.now = '1 day';
SHOW xdb.now;
RESET ROLE;
DROP ROLE golden_clock;

-- A worker that was never called.
SELECT xdb.register_worker('breaker', 'http://127.0.0.1:1');
SELECT name, calls, breaker, breaker_open_since, next_probe_at FROM xdb.workers WHERE name = 'breaker';
SELECT xdb.unregister_worker('breaker');
