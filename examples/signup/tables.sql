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
