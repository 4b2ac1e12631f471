-- Run once, as superuser, in the database of the application.
-- What the worker is and where, `python -m xdb sql` says: see scripts/demo.

CREATE EXTENSION IF NOT EXISTS xdb;

-- The application's role is an ordinary one: its processes can do what it can do, and no more.
CREATE ROLE app LOGIN;
SELECT xdb.grant_usage('app');

-- The application's own tables. `users` holds what the process reads and writes,
-- `invitations` is something else that the application does in the same transaction.
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
