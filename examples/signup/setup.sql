-- Run once, as superuser, in the database of the application.
-- The psql variable worker_url says where worker.py listens.

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

-- Which server may be called, and which kind of process it runs.
SELECT xdb.register_worker('signup', :'worker_url');
SELECT xdb.register_process_type('UserSignup', 'signup', '{
    "startingState": "Submit",
    "states": {"Submit": {"skipWaitUntil": true}, "Verify": {}},
    "globalAttributes": [{"table": "public.users", "primaryKey": "user_id",
                          "attributes": {"form": "form", "status": "status", "source": "source"}}],
    "localAttributes": ["reminders"],
    "localQueues": ["verify"],
    "rpcs": {"verify": {"timeoutSeconds": 5}}
}');
