-- How every update begins. The build puts this file before the update's own statements, and sql/always after them.
--
-- Limitations: if a transaction that has used xdb stays open, the update gives up after 3 seconds.

-- All tables and views are locked at once, so that the update waits for no lock later. The first tables are those that
-- the engine and sessions lock first: a transaction that waits there holds no other lock on xdb. But a transaction of
-- several statements may hold locks on any table. So an attempt that deadlocks, or waits for 300 ms, releases all of
-- its locks and is repeated: sessions and the engine never wait longer than that. By default, sessions check for a
-- deadlock after a second of waiting. Until then the update has released its locks, so no session is cancelled.
DO $body$
DECLARE
    until CONSTANT pg_catalog.timestamptz :=
        pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => 3);
    tables CONSTANT pg_catalog.text := (
        SELECT pg_catalog.string_agg(c.oid::pg_catalog.regclass::pg_catalog.text, ', ' ORDER BY pg_catalog.array_position(
            ARRAY['engine', 'process_type', 'worker', 'latest_execution', 'rpc_answer', 'process_execution'],
            c.relname::pg_catalog.text), c.relname)
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace OPERATOR(pg_catalog.=) 'xdb'::pg_catalog.regnamespace::pg_catalog.oid
          AND c.relkind OPERATOR(pg_catalog.=) 'r');
    view pg_catalog.regclass;
BEGIN
    SET LOCAL deadlock_timeout = '20ms';
    SET LOCAL lock_timeout = '300ms';
    LOOP
        BEGIN
            -- A reader locks a view before its tables. LOCK TABLE would also lock the system catalogs that a view
            -- reads. ALTER VIEW locks only the view, and sets an option that is already set.
            FOR view IN
                SELECT c.oid FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace OPERATOR(pg_catalog.=) 'xdb'::pg_catalog.regnamespace::pg_catalog.oid
                  AND c.relkind OPERATOR(pg_catalog.=) 'v'
            LOOP
                EXECUTE pg_catalog.format('ALTER VIEW %s SET (security_barrier = true)', view);
            END LOOP;
            EXECUTE pg_catalog.format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', tables);
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) until THEN
                RAISE EXCEPTION 'another transaction that has used xdb is still open'
                    USING ERRCODE = 'lock_not_available',
                          DETAIL = SQLERRM, HINT = 'End that transaction, or wait for its end, and run this again.';
            END IF;
            PERFORM pg_catalog.pg_sleep(0.1);
        END;
    END LOOP;
END
$body$;

-- The objects that existed before this script, for always/privileges.sql. In a setting of the transaction: a table
-- would become a member of the extension too.
SELECT pg_catalog.set_config('xdb_script.members', COALESCE((
    SELECT pg_catalog.string_agg(pg_catalog.format('%s:%s', d.classid, d.objid), ' ')
    FROM pg_catalog.pg_depend AS d
    JOIN pg_catalog.pg_extension AS e ON d.refobjid OPERATOR(pg_catalog.=) e.oid
    WHERE e.extname OPERATOR(pg_catalog.=) 'xdb' AND d.deptype OPERATOR(pg_catalog.=) 'e'
      AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
), ''), true);
