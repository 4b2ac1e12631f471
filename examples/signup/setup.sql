-- Creates the role and the tables of the application. Run once, as a superuser, in the database of the application.
-- The worker and the process type are registered with the output of `python -m xdb sql`: see scripts/demo.

CREATE EXTENSION IF NOT EXISTS xdb;

-- The application's role is an ordinary one. Its processes have the rights of this role, and no more.
CREATE ROLE app LOGIN;
SELECT xdb.grant_usage('app');

\ir tables.sql
