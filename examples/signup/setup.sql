-- Creates the role and the tables of the application. Run once, as a superuser, in the database of the application.
-- The worker and the process type are registered with the output of `python -m xdb sql`: see scripts/demo.

CREATE EXTENSION IF NOT EXISTS xdb;

-- The application's role is an ordinary one. Its processes have the rights of this role, and no more.
CREATE ROLE app LOGIN;
SELECT xdb.grant_usage('app');

-- The application's own tables. The process reads and writes `users`.
-- The application inserts a row into `invitations` in the transaction that starts the process.
CREATE TABLE users (
    user_id text PRIMARY KEY,
    form    jsonb NOT NULL,
    status  text NOT NULL DEFAULT 'waiting',
    source  text
);
CREATE TABLE invitations (
    user_id    text PRIMARY KEY,
    campaign   text NOT NULL
);
GRANT SELECT, INSERT, UPDATE ON users, invitations TO app;
