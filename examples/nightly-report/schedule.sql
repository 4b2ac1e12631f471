-- The application, after setup.sql: a report at three o'clock each night, for instance `report-20270328T010000Z`.
-- A schedule with the same name is replaced.
SELECT xdb.schedule('nightly-report', '0 3 * * *', '{"process_type": "NightlyReport", "process_id": "report-{time}"}', 'Europe/Rome');
