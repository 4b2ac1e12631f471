-- The schema, and what the database must be. Without IF NOT EXISTS: if a schema xdb exists already, which another role
-- may have prepared, the installation fails.
CREATE SCHEMA xdb;
COMMENT ON SCHEMA xdb IS 'XDB: durable processes. Call its functions and read its views. Only the library writes its tables.';

-- Payloads are JSON, and JSON text is UTF-8.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
        RAISE EXCEPTION 'xdb needs a database with the encoding UTF8'
            USING ERRCODE = 'feature_not_supported';
    END IF;
END
$$;

-- The objects that existed before this script, for always/privileges.sql: none. In an update, updates/begin.sql lists
-- them.
SELECT pg_catalog.set_config('xdb_script.members', '', true);
-- What is registered: workers, process types and mapped tables. And what the engine knows of itself: its epochs, and
-- the databases that the processes belong to.
--
-- Limitations: there are no foreign keys, because pg_restore loads the tables in any order.

CREATE TABLE xdb.engine (
    lane smallint PRIMARY KEY CONSTRAINT engine_lane_known CHECK (lane OPERATOR(pg_catalog.=) 0 OR lane OPERATOR(pg_catalog.>=) 10 AND lane OPERATOR(pg_catalog.<=) 25),
    epoch bigint NOT NULL CONSTRAINT engine_epoch_unique UNIQUE,
    paused boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.engine (lane, epoch) VALUES (0, 1);
COMMENT ON TABLE xdb.engine IS 'The engine of this database: one row for the scheduler, and one for each runner that was ever needed.';
COMMENT ON COLUMN xdb.engine.lane IS '0 = the scheduler, 10 to 25 = the runners.';
COMMENT ON COLUMN xdb.engine.epoch IS 'Epoch of the leases that this engine process gives. It gets a new one at each start, and a runner also at its end. A new epoch is above all others, so no lease is issued twice.';
COMMENT ON COLUMN xdb.engine.paused IS 'Set by xdb.pause_engine(), reset by xdb.resume_engine(). Only the row of the scheduler counts, for all engine processes.';

-- Dumped, so that a copy knows which database it was made from.
CREATE TABLE xdb.instances (
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    superseded_at timestamptz,
    PRIMARY KEY (system_identifier, database)
);
COMMENT ON TABLE xdb.instances IS 'The databases that the processes belong to or have belonged to. A copy is not among them before xdb.adopt().';
COMMENT ON COLUMN xdb.instances.system_identifier IS 'Identifier of the server''s files, as pg_control_system() shows it.';
COMMENT ON COLUMN xdb.instances.database IS 'Oid of the database.';
COMMENT ON COLUMN xdb.instances.since IS 'When the database was taken into use, or adopted the processes.';
COMMENT ON COLUMN xdb.instances.superseded_at IS 'When another database adopted the processes; null = the processes belong to the database of this row.';
SELECT pg_catalog.pg_extension_config_dump('xdb.instances', '');

CREATE TABLE xdb.registry (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT registry_is_one_row CHECK (singleton),
    generation bigint NOT NULL DEFAULT 1,
    -- Not dumped: restored processes run only after xdb.adopt(), also in the database that they came from.
    in_use boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.registry DEFAULT VALUES;
COMMENT ON TABLE xdb.registry IS 'One row: from it and registration_count the engine knows when to read the registrations again.';
COMMENT ON COLUMN xdb.registry.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN xdb.registry.generation IS 'Increased by hand, or by an update of the extension, when the registrations change. The engine compares the sum of generation and all registration_count.registrations.';
COMMENT ON COLUMN xdb.registry.in_use IS 'Whether something was registered in this database, or a restored database was adopted. Not dumped.';

-- Not dumped.
CREATE TABLE xdb.registration_count (
    slot int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    registrations bigint NOT NULL DEFAULT 1
);
COMMENT ON TABLE xdb.registration_count IS 'How often something was registered. Each transaction counts in a row that no other transaction has locked, so registrations do not wait for each other.';
COMMENT ON COLUMN xdb.registration_count.slot IS 'Key.';
COMMENT ON COLUMN xdb.registration_count.registrations IS 'Changes of workers and process types that were counted in this row.';

CREATE TABLE xdb.worker (
    worker_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL CONSTRAINT worker_name_unique UNIQUE,
    url text,
    headers jsonb,
    max_concurrency int NOT NULL DEFAULT 96 CONSTRAINT worker_concurrency_positive CHECK (max_concurrency OPERATOR(pg_catalog.>) 0),
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    owner oid NOT NULL DEFAULT 0,
    owner_name text NOT NULL DEFAULT '',
    secrets smallint NOT NULL DEFAULT 0,
    role oid,
    role_name text
);
COMMENT ON TABLE xdb.worker IS 'Registered workers. Written by xdb.register_worker and xdb.set_worker_secret.';
COMMENT ON COLUMN xdb.worker.worker_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.worker.name IS 'Name of the worker.';
COMMENT ON COLUMN xdb.worker.url IS 'URL of the worker; the paths of the worker protocol are appended. Null = a pull worker, which claims its calls with xdb.claim_calls().';
COMMENT ON COLUMN xdb.worker.headers IS 'HTTP headers that are sent with every call to the worker, {name: value}. No role is granted access: headers can contain passwords.';
COMMENT ON COLUMN xdb.worker.max_concurrency IS 'The most state calls at the worker at one time, for each engine.';
COMMENT ON COLUMN xdb.worker.registered_at IS 'When the worker was first registered or last changed.';
COMMENT ON COLUMN xdb.worker.owner IS 'Role that registered the worker first. Only roles with its privileges, and superusers, may change the worker. 0, or a role that was dropped: only superusers.';
COMMENT ON COLUMN xdb.worker.owner_name IS 'Name of the owner when the row was written. xdb.adopt() finds the owner by this name on another server.';
COMMENT ON COLUMN xdb.worker.secrets IS 'How many secrets sign each call to the worker. A dump may lack some of them; while one is missing, no call is made.';
COMMENT ON COLUMN xdb.worker.role IS 'Role whose members may claim the calls of the worker. Null = the worker has a URL, or the role was dropped.';
COMMENT ON COLUMN xdb.worker.role_name IS 'Name of this role when the row was written. xdb.adopt() finds the role by this name on another server.';
SELECT pg_catalog.pg_extension_config_dump('xdb.worker', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.worker_worker_id_seq', '');

-- Secrets with the source literal are not dumped: every reader of the dump would get them.
CREATE TABLE xdb.worker_secret (
    worker_id int NOT NULL,
    position smallint NOT NULL,
    source text NOT NULL CONSTRAINT worker_secret_source_known CHECK (source OPERATOR(pg_catalog.=) ANY (ARRAY['literal', 'env', 'file'])),
    value text NOT NULL,
    PRIMARY KEY (worker_id, position)
);
COMMENT ON TABLE xdb.worker_secret IS 'Secrets that sign the calls to workers. No role is granted access.';
COMMENT ON COLUMN xdb.worker_secret.worker_id IS 'Worker whose calls are signed.';
COMMENT ON COLUMN xdb.worker_secret.position IS '1; also 2 while one secret replaces another. Then each call is signed with both.';
COMMENT ON COLUMN xdb.worker_secret.source IS 'literal = value is the secret; env = value names an environment variable of the server; file = value names a file below xdb.secrets_directory.';
COMMENT ON COLUMN xdb.worker_secret.value IS 'The secret, or the name of the environment variable or file.';
SELECT pg_catalog.pg_extension_config_dump('xdb.worker_secret',
    'WHERE source OPERATOR(pg_catalog.<>) ''literal''');

CREATE TABLE xdb.mapped_table (
    mapping_id int NOT NULL,
    position int NOT NULL,
    relation regclass NOT NULL,
    table_name text NOT NULL,
    key_columns text[] NOT NULL CONSTRAINT mapped_table_has_key CHECK (pg_catalog.cardinality(key_columns) OPERATOR(pg_catalog.>) 0),
    attributes jsonb NOT NULL,
    PRIMARY KEY (mapping_id, position)
);
CREATE SEQUENCE xdb.mapping_id_seq AS int;
COMMENT ON TABLE xdb.mapped_table IS 'Tables of the application whose columns are global attributes. Rows never change: a registration with other tables makes a new mapping, and running executions keep theirs.';
COMMENT ON COLUMN xdb.mapped_table.mapping_id IS 'Mapping that the table belongs to.';
COMMENT ON COLUMN xdb.mapped_table.position IS 'Position of the table in the definition.';
COMMENT ON COLUMN xdb.mapped_table.relation IS 'The table, followed through renames.';
COMMENT ON COLUMN xdb.mapped_table.table_name IS 'Name of the table as the definition spells it.';
COMMENT ON COLUMN xdb.mapped_table.key_columns IS 'Columns of the key that finds the row.';
COMMENT ON COLUMN xdb.mapped_table.attributes IS 'Column of each attribute, {attribute: column}.';
COMMENT ON SEQUENCE xdb.mapping_id_seq IS 'Source of mapped_table.mapping_id.';
SELECT pg_catalog.pg_extension_config_dump('xdb.mapped_table', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.mapping_id_seq', '');

CREATE TABLE xdb.process_type (
    type_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    process_type text NOT NULL CONSTRAINT process_type_unique UNIQUE,
    -- Not a foreign key: pg_restore would lose rows. Registrations lock the worker's row instead.
    worker_id int,
    definition jsonb NOT NULL,
    mapping_id int,
    version bigint NOT NULL DEFAULT 1,
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    owner oid NOT NULL DEFAULT 0,
    owner_name text NOT NULL DEFAULT '',
    pause_mode text,
    paused_until timestamptz,
    pause_reason text
);
CREATE INDEX process_type_paused ON xdb.process_type (paused_until) WHERE pause_mode IS NOT NULL;
COMMENT ON TABLE xdb.process_type IS 'Registered process types. Written by xdb.register_process_type.';
COMMENT ON COLUMN xdb.process_type.type_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.process_type.process_type IS 'Name of the process type.';
COMMENT ON COLUMN xdb.process_type.worker_id IS 'Worker that answers the calls of its states and its RPCs. Null = functions of the database answer all of them.';
COMMENT ON COLUMN xdb.process_type.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_type.mapping_id IS 'Mapping of global attributes for executions that start from now on; null = none.';
COMMENT ON COLUMN xdb.process_type.version IS 'Increases with every registration of the type or its worker.';
COMMENT ON COLUMN xdb.process_type.registered_at IS 'When the type was registered last.';
COMMENT ON COLUMN xdb.process_type.owner IS 'Role that registered the type first. Only roles with its privileges, and superusers, may change the type. 0, or a role that was dropped: only superusers.';
COMMENT ON COLUMN xdb.process_type.owner_name IS 'Name of the owner when the row was written. xdb.adopt() finds the owner by this name on another server.';
COMMENT ON COLUMN xdb.process_type.pause_mode IS 'WAIT or REJECT: what happens to requests while the type is paused; null = it is not paused.';
COMMENT ON COLUMN xdb.process_type.paused_until IS 'When the pause ends by itself; null = it has no end.';
COMMENT ON COLUMN xdb.process_type.pause_reason IS 'Reason given to xdb.pause_process_type().';
SELECT pg_catalog.pg_extension_config_dump('xdb.process_type', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.process_type_type_id_seq', '');
-- The tables of processes. A tour of all tables comes first; registrations.sql and global_queues.sql create the others.
--
-- What is registered (small, rarely written):
--   worker                where calls go                mapped_table         tables of the application with attributes
--   worker_secret         what calls are signed with    registration_count   when to read the registrations again
--   process_type          definition and worker         registry             one row: whether the database is in use
--   engine                epochs of leases, the pause   instances            which database the processes belong to
--
-- What a process has. process_execution is the root: everything below has its execution_id. A transaction that has
-- locked the root's row may change everything below. latest_execution leads from the process id to the root.
--   process_execution     one row per run: status, owner, counters, results
--   +- state_execution    one per step: input, its call, what it waits for
--   |  +- task            HOT. A call to make, with its lease; deleted when the answer is applied
--   |  +- timer           HOT. A timer command; or, with seq 0, the timeout of the process or the end of its pause
--   |  +- queue_waiter    the local queues that a waiting step wants messages of
--   |  +- global_waiter   the global queues that a waiting step wants messages of
--   |     +- global_passed_over   waiting steps that messages have to be offered to
--   +- inbox              HOT. Published and not yet received: inserted by sessions, deleted by the engine
--   +- queue_message      received and not yet consumed by a step
--   +- message_key, rpc_answer    keys that were used: the same message or RPC again has no second effect
--   +- local_attribute    what steps and RPCs have written
--   +- history_event      what happened, in order: replaying it gives all of the above
--   +- correlated_start   the latest start of a correlation key
--   +- purged             the execution was deleted, and its other rows are being deleted
-- global_message, global_message_key: messages that belong to no process until a step consumes them.
--
-- A step deletes its task and inbox rows, updates process_execution and state_execution, and inserts the next step, its
-- task or timers, and events. All of this is one transaction with what the step writes to the application's tables.
--
-- Only native code writes these tables. Roles read their own rows through the views. src/store describes what rows must
-- be, and xdb.check_process verifies it.
--
-- Limitations: a CHECK constraint holds only what xdb.check_process can't see. So Postgres accepts invalid rows from a
-- superuser who writes them by hand.
--
-- Lock order of every transaction of the engine and of the SQL functions:
--   1. latest_execution         one process id at a time; then correlated_start, by a start with a correlation key
--   2. rpc_answer               by an RPC with an idempotency key, before its call
--   3. process_execution        in order of execution ids: publishers KEY SHARE, steps NO KEY UPDATE, closes UPDATE.
--                               An RPC with EXCLUSIVE_LOCK locks it before its call
--   4. the application's tables in the order of the answers; for one answer or RPC in the order of the tables' oids. A
--                               start writes rows of 5 before: no other transaction sees them yet
--   5. message_key, then global_message_key
-- Everything else belongs to an execution and is written under its lock, with three exceptions:
--   - Inbox rows are inserted under KEY SHARE and never updated.
--   - Once a global message is published, only the scheduler writes its row while it is free. A consumed message
--     belongs to the execution that has consumed it.
--   - Rows of global_passed_over are inserted by the scheduler, by runners and by sessions, and deleted by the
--     scheduler.
-- How transactions wait for these locks:
--   - The engine takes 3 with SKIP LOCKED. It waits at 4 and 5 for at most 50 ms, a runner for 500 ms. It never checks
--     for deadlocks itself, so Postgres never cancels it for one.
--   - Purging takes 1 and 3 with SKIP LOCKED, for many executions in one transaction.
--   - A bulk start takes all of 1 first, in the order of the process ids.
--   - A start that may be merged takes 3, then locks the task of the other start's first call.
--   - A claim locks only tasks, with SKIP LOCKED. The claim of a pull worker then takes 3, KEY SHARE with SKIP LOCKED.
--     Its transaction may stay open; because of this lock no close waits at the task.
-- Rows of engine are locked in the order of the lanes. The locks on attributes for calls of steps are in the
-- scheduler's memory. They are granted all at once or not at all, and no transaction stays open for them.
--
-- Hot and narrow: task, timer, inbox. Wide and cold: state_execution, history_event. There are no foreign keys between
-- hot tables: only native code writes an execution's rows, under its lock. Hot tables have the column shard, a hash in
-- 0..1023.
--
-- Vacuum does not pause (cost delay 0) on hot tables that stay small. Tables that grow with the waiting or kept
-- processes use the settings of the server. On millions of rows, vacuum without pauses fills the WAL with whole pages.
-- Vacuum does not truncate hot tables: sessions would wait for its lock, and the pages are used again.

CREATE TABLE xdb.process_execution (
    execution_id uuid PRIMARY KEY,
    shard smallint NOT NULL,
    process_id text NOT NULL,
    type_id int NOT NULL,
    process_type text NOT NULL,
    owner oid NOT NULL,
    owner_name text NOT NULL,
    status text NOT NULL,
    closing text,
    started_at timestamptz NOT NULL,
    closed_at timestamptz,
    timeout_at timestamptz,
    reason text,
    next_event bigint NOT NULL,
    next_state int NOT NULL,
    next_message bigint NOT NULL,
    live_threads int NOT NULL,
    queued_messages int NOT NULL,
    queued_bytes bigint NOT NULL,
    timers int NOT NULL,
    completing boolean NOT NULL,
    state_numbers jsonb NOT NULL,
    mapping_id int,
    attribute_keys jsonb,
    results jsonb NOT NULL DEFAULT '[]',
    history_limit int,
    request_id text,
    traceparent text,
    purge_at timestamptz,
    shard_key text,
    pause_mode text,
    paused_until timestamptz,
    pause_reason text,
    priority smallint NOT NULL DEFAULT 0
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
CREATE INDEX process_execution_by_process_id ON xdb.process_execution (process_id);
CREATE UNIQUE INDEX process_execution_one_running ON xdb.process_execution (process_id) WHERE status OPERATOR(pg_catalog.=) 'RUNNING';
CREATE UNIQUE INDEX process_execution_one_per_request ON xdb.process_execution (process_id, request_id)
    WHERE request_id IS NOT NULL;
CREATE INDEX process_execution_closed ON xdb.process_execution (closed_at, execution_id) WHERE closed_at IS NOT NULL AND purge_at IS NULL;
CREATE INDEX process_execution_purge ON xdb.process_execution (purge_at, execution_id) WHERE purge_at IS NOT NULL;
CREATE INDEX process_execution_closing ON xdb.process_execution (execution_id) WHERE closing IS NOT NULL;
COMMENT ON TABLE xdb.process_execution IS 'Process executions: one row for each run of a process id. The lock of this row guards everything that belongs to the execution.';
COMMENT ON COLUMN xdb.process_execution.execution_id IS 'UUID, version 7.';
COMMENT ON COLUMN xdb.process_execution.shard IS 'Hash of the process id, or of the shard key, 0 to 1023. Rows of other tables that belong to the execution have the same value.';
COMMENT ON COLUMN xdb.process_execution.process_id IS 'Business identifier, chosen by the application.';
COMMENT ON COLUMN xdb.process_execution.type_id IS 'Its process type. Not a foreign key: closed executions may outlive their type.';
COMMENT ON COLUMN xdb.process_execution.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.process_execution.owner IS 'Role that the process runs as: the one that started it, unless xdb.reassign_owned() has replaced it. The role may have been dropped.';
COMMENT ON COLUMN xdb.process_execution.owner_name IS 'Name of the owner when owner was written. A role that has got the same oid since, under another name, is not the owner.';
COMMENT ON COLUMN xdb.process_execution.status IS 'RUNNING, then for ever one of COMPLETED, FAILED, TIMEOUT, TERMINATED.';
COMMENT ON COLUMN xdb.process_execution.closing IS 'Set while a close waits for open publishers. UNCONDITIONAL: new publishes are refused. CONDITIONAL: new publishes wait until the close is decided.';
COMMENT ON COLUMN xdb.process_execution.started_at IS 'When the execution was started.';
COMMENT ON COLUMN xdb.process_execution.closed_at IS 'When the execution closed; null while it runs.';
COMMENT ON COLUMN xdb.process_execution.timeout_at IS 'When the execution times out; null = never.';
COMMENT ON COLUMN xdb.process_execution.reason IS 'Why the execution failed or was stopped.';
COMMENT ON COLUMN xdb.process_execution.next_event IS 'Number of the next event, from 1.';
COMMENT ON COLUMN xdb.process_execution.next_state IS 'Number (seq) of the next step, from 1.';
COMMENT ON COLUMN xdb.process_execution.next_message IS 'Number of the next message that is received, from 1.';
COMMENT ON COLUMN xdb.process_execution.live_threads IS 'Threads that have not ended.';
COMMENT ON COLUMN xdb.process_execution.queued_messages IS 'Messages in its local queues, without those in the inbox, which the engine has not received yet.';
COMMENT ON COLUMN xdb.process_execution.queued_bytes IS 'Bytes of the payloads of these messages, as text.';
COMMENT ON COLUMN xdb.process_execution.timers IS 'Timers that its steps wait for.';
COMMENT ON COLUMN xdb.process_execution.completing IS 'Whether a graceful completion was requested: the process completes when its last thread ends.';
COMMENT ON COLUMN xdb.process_execution.state_numbers IS 'Last number used for each state, {stateId: number}.';
COMMENT ON COLUMN xdb.process_execution.mapping_id IS 'Its mapping of global attributes, as at its start; null = none.';
COMMENT ON COLUMN xdb.process_execution.attribute_keys IS 'Keys of its rows: for each mapped table, in their order, the texts of the key columns as given at the start. Null = no table is mapped.';
COMMENT ON COLUMN xdb.process_execution.results IS 'Outputs of the threads and RPCs that gave one, [{"stateExecutionId", "output"}].';
COMMENT ON COLUMN xdb.process_execution.history_limit IS 'At least this many of the last events are kept; null = all, 0 = none.';
COMMENT ON COLUMN xdb.process_execution.request_id IS 'The requestId of the start. Another start with this requestId returns this execution.';
COMMENT ON COLUMN xdb.process_execution.traceparent IS 'Trace context of the start, sent with every call.';
COMMENT ON COLUMN xdb.process_execution.shard_key IS 'The shardKey of the start; null = shard is the hash of the process id.';
COMMENT ON COLUMN xdb.process_execution.purge_at IS 'When the execution is deleted, in place of xdb.retention. Set by the close if the type has retentionSeconds. Infinity = never.';
COMMENT ON COLUMN xdb.process_execution.pause_mode IS 'WAIT or REJECT while the process is paused; null = it is not paused.';
COMMENT ON COLUMN xdb.process_execution.paused_until IS 'When the pause ends by itself; null = it has no end.';
COMMENT ON COLUMN xdb.process_execution.pause_reason IS 'Reason given to xdb.pause_process().';
COMMENT ON COLUMN xdb.process_execution.priority IS '-10 to 10. Of the due calls of one owner to one worker, those with the higher priority are made first.';
SELECT pg_catalog.pg_extension_config_dump('xdb.process_execution', '');

CREATE TABLE xdb.latest_execution (
    process_id text PRIMARY KEY,
    execution_id uuid NOT NULL
) WITH (fillfactor = 80);
COMMENT ON TABLE xdb.latest_execution IS 'The latest execution of each process id. Starts of the same id wait for the lock of this row.';
COMMENT ON COLUMN xdb.latest_execution.process_id IS 'Process id.';
COMMENT ON COLUMN xdb.latest_execution.execution_id IS 'Its latest execution, running or closed.';
SELECT pg_catalog.pg_extension_config_dump('xdb.latest_execution', '');

CREATE TABLE xdb.correlated_start (
    type_id int NOT NULL,
    owner oid NOT NULL,
    correlation_key text NOT NULL,
    execution_id uuid NOT NULL,
    PRIMARY KEY (type_id, owner, correlation_key)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
CREATE INDEX correlated_start_of_execution ON xdb.correlated_start (execution_id);
COMMENT ON TABLE xdb.correlated_start IS 'The latest start of each correlation key, which later starts may be merged into. Starts with the same key wait for the lock of this row. Only a hint, and not dumped: a missing row costs a merge.';
COMMENT ON COLUMN xdb.correlated_start.type_id IS 'Process type of the starts.';
COMMENT ON COLUMN xdb.correlated_start.owner IS 'Role that starts.';
COMMENT ON COLUMN xdb.correlated_start.correlation_key IS 'The correlationKey of the starts.';
COMMENT ON COLUMN xdb.correlated_start.execution_id IS 'The latest execution that was started with this key.';

CREATE TABLE xdb.state_execution (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    shard smallint NOT NULL,
    state_id text NOT NULL,
    number int NOT NULL,
    status text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    input jsonb,
    config jsonb,
    recovery jsonb,
    call jsonb,
    wait jsonb,
    last_failure jsonb,
    PRIMARY KEY (execution_id, seq),
    CONSTRAINT state_number_unique UNIQUE (execution_id, state_id, number)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE xdb.state_execution IS 'Steps (executions of states), with their payloads.';
COMMENT ON COLUMN xdb.state_execution.execution_id IS 'Process execution that the step belongs to.';
COMMENT ON COLUMN xdb.state_execution.seq IS 'Number of the step within the process execution, from 1 over all states.';
COMMENT ON COLUMN xdb.state_execution.shard IS 'As in process_execution.';
COMMENT ON COLUMN xdb.state_execution.state_id IS 'State of the step.';
COMMENT ON COLUMN xdb.state_execution.number IS 'Number of the step within its state, from 1. The step is called <state_id>-<number>.';
COMMENT ON COLUMN xdb.state_execution.status IS 'WAIT_UNTIL, EXECUTE: at that call. WAITING: waits for its commands. COMPLETED, FAILED (its retries were spent), ABORTED (the process closed first): ended.';
COMMENT ON COLUMN xdb.state_execution.started_at IS 'When the step began.';
COMMENT ON COLUMN xdb.state_execution.ended_at IS 'When the step ended; null while it is live.';
COMMENT ON COLUMN xdb.state_execution.input IS 'Input of the step.';
COMMENT ON COLUMN xdb.state_execution.config IS 'Options that the start or the decision gave for this step. They override the registered options field by field.';
COMMENT ON COLUMN xdb.state_execution.recovery IS 'The failure that the step recovers from: the failed step, its API and its last failure. Null = the step recovers from none.';
COMMENT ON COLUMN xdb.state_execution.call IS 'The current call: not before when (microseconds since the Unix epoch), failed attempts, request generation, last failure. Of a step that has ended: the attempt that ended it, and repeats.';
COMMENT ON COLUMN xdb.state_execution.wait IS 'What the step waits for. After the wait: the command results. Times are microseconds since the Unix epoch.';
COMMENT ON COLUMN xdb.state_execution.last_failure IS 'Last failed attempt of the current call. Of a step that failed or was aborted: of its last call. Null = that call has not failed.';
SELECT pg_catalog.pg_extension_config_dump('xdb.state_execution', '');

CREATE TABLE xdb.task (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    shard smallint NOT NULL,
    lane smallint NOT NULL DEFAULT 0,
    worker_id int NOT NULL,
    api text NOT NULL,
    due_at timestamptz NOT NULL,
    attempt int NOT NULL DEFAULT 0,
    first_attempt_at timestamptz,
    lease_epoch bigint NOT NULL DEFAULT 0,
    lease_number bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    owner oid NOT NULL,
    priority smallint NOT NULL DEFAULT 0,
    crashes smallint NOT NULL DEFAULT 0,
    waits_for text,
    PRIMARY KEY (execution_id, seq)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,
        vacuum_truncate = off);
-- The lease is not in the index, so that giving and ending a lease are heap-only updates. The index has a range for
-- each owner and priority. So a scan for calls with one priority of one owner reads no other calls.
CREATE INDEX task_claim ON xdb.task (lane, worker_id, owner, priority, due_at);
-- Numbers of the leases of pull workers. Not dumped: xdb.adopt() ends all leases.
CREATE SEQUENCE xdb.pull_lease;
COMMENT ON SEQUENCE xdb.pull_lease IS 'Numbers the leases that xdb.claim_calls() gives.';
COMMENT ON TABLE xdb.task IS 'Calls to make. Hot: a row is inserted by the decision to call, and deleted when the answer is applied.';
COMMENT ON COLUMN xdb.task.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.task.seq IS 'Step that makes the call.';
COMMENT ON COLUMN xdb.task.shard IS 'As in process_execution.';
COMMENT ON COLUMN xdb.task.lane IS 'Which engine process may claim the call. 0 = scheduler, 1 = runners. 2 = none: parked by a pause. 3 = none: held after crashes.';
COMMENT ON COLUMN xdb.task.worker_id IS 'Worker that is called.';
COMMENT ON COLUMN xdb.task.api IS 'WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.task.due_at IS 'When the call may be claimed.';
COMMENT ON COLUMN xdb.task.attempt IS 'How many attempts of the call have begun.';
COMMENT ON COLUMN xdb.task.first_attempt_at IS 'When the first attempt began; null = none has begun.';
COMMENT ON COLUMN xdb.task.lease_epoch IS 'Epoch of the lease; 0 = lease of a pull worker. An answer is applied only if epoch and number of its lease are those of the row.';
COMMENT ON COLUMN xdb.task.lease_number IS 'Number of the lease within its epoch.';
COMMENT ON COLUMN xdb.task.lease_until IS 'When the lease expires and the call may be claimed again. Null = no lease. Infinity = the call waits for locks on attributes.';
COMMENT ON COLUMN xdb.task.owner IS 'Owner of the process. In the index, the calls of each owner at a worker have a range of their own.';
COMMENT ON COLUMN xdb.task.priority IS 'Priority of the process. In the index, the calls of an owner with each priority have a range of their own.';
COMMENT ON COLUMN xdb.task.crashes IS 'How often the server crashed while the engine prepared the call or applied its answer. From 1 on, such calls are processed one at a time; at 3 the call is held.';
COMMENT ON COLUMN xdb.task.waits_for IS 'What the call must lock, while lease_until is infinity.';
SELECT pg_catalog.pg_extension_config_dump('xdb.task', '');

CREATE TABLE xdb.timer (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    command int NOT NULL,
    shard smallint NOT NULL,
    kind text NOT NULL,
    fire_at timestamptz NOT NULL,
    owner oid NOT NULL,
    PRIMARY KEY (execution_id, seq, command)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
CREATE INDEX timer_due ON xdb.timer (owner, fire_at);
COMMENT ON TABLE xdb.timer IS 'Durable timers: process timeouts, ends of pauses, and timer commands. A row is deleted when the timer fires or is no longer needed.';
COMMENT ON COLUMN xdb.timer.execution_id IS 'Process execution that the timer belongs to.';
COMMENT ON COLUMN xdb.timer.seq IS 'Step that waits for the timer; 0 = a timer of the process.';
COMMENT ON COLUMN xdb.timer.command IS 'Position of the command in the wait of the step, from 0. With seq 0: 0 = the timeout of the process, 1 = the end of its pause.';
COMMENT ON COLUMN xdb.timer.shard IS 'As in process_execution.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timer.fire_at IS 'The timer fires at this time or later, never earlier.';
COMMENT ON COLUMN xdb.timer.owner IS 'Owner of the process. In the index, the timers of each owner have a range of their own.';
SELECT pg_catalog.pg_extension_config_dump('xdb.timer', '');

CREATE TABLE xdb.inbox (
    inbox_id bigint GENERATED ALWAYS AS IDENTITY,
    execution_id uuid NOT NULL,
    shard smallint NOT NULL,
    queue_name text NOT NULL,
    message_id text,
    payload jsonb,
    bytes int NOT NULL,
    published_at timestamptz NOT NULL,
    owner oid NOT NULL,
    PRIMARY KEY (execution_id, inbox_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX inbox_arrived ON xdb.inbox (owner, inbox_id);
COMMENT ON TABLE xdb.inbox IS 'Messages that were published to local queues and that the engine has not received yet. Rows are inserted and deleted, never updated.';
COMMENT ON COLUMN xdb.inbox.inbox_id IS 'Order of publishing.';
COMMENT ON COLUMN xdb.inbox.execution_id IS 'Process execution that the message is for.';
COMMENT ON COLUMN xdb.inbox.shard IS 'As in process_execution.';
COMMENT ON COLUMN xdb.inbox.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.inbox.message_id IS 'Id that the publisher gave the message; null = none.';
COMMENT ON COLUMN xdb.inbox.payload IS 'The message.';
COMMENT ON COLUMN xdb.inbox.bytes IS 'Length of the payload as text. From it a turn knows how many messages it can receive.';
COMMENT ON COLUMN xdb.inbox.published_at IS 'When the message was published.';
COMMENT ON COLUMN xdb.inbox.owner IS 'Owner of the process. In the index, the messages of each owner have a range of their own.';
SELECT pg_catalog.pg_extension_config_dump('xdb.inbox', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.inbox_inbox_id_seq', '');

CREATE TABLE xdb.message_key (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    message_id text NOT NULL,
    PRIMARY KEY (execution_id, queue_name, message_id)
);
COMMENT ON TABLE xdb.message_key IS 'Message ids that were used, so that a second message with the same id is ignored.';
COMMENT ON COLUMN xdb.message_key.execution_id IS 'Process execution the message was for.';
COMMENT ON COLUMN xdb.message_key.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.message_key.message_id IS 'The publisher''s id of the message.';
SELECT pg_catalog.pg_extension_config_dump('xdb.message_key', '');

CREATE TABLE xdb.queue_message (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    number bigint NOT NULL,
    shard smallint NOT NULL,
    message_id text,
    payload jsonb,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (execution_id, queue_name, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE xdb.queue_message IS 'Messages in local queues: received, and not yet consumed by a step.';
COMMENT ON COLUMN xdb.queue_message.execution_id IS 'Process execution that the queue belongs to.';
COMMENT ON COLUMN xdb.queue_message.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.queue_message.number IS 'Order of receiving within the execution, over all queues.';
COMMENT ON COLUMN xdb.queue_message.shard IS 'As in process_execution.';
COMMENT ON COLUMN xdb.queue_message.message_id IS 'Id that the publisher gave the message; null = none.';
COMMENT ON COLUMN xdb.queue_message.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_message.received_at IS 'When the process received the message.';
SELECT pg_catalog.pg_extension_config_dump('xdb.queue_message', '');

CREATE TABLE xdb.queue_waiter (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    wait_order bigint NOT NULL,
    seq int NOT NULL,
    PRIMARY KEY (execution_id, queue_name, wait_order, seq)
);
COMMENT ON TABLE xdb.queue_waiter IS 'Which waiting steps want messages of which local queue. With it, a new message finds them without reading all steps.';
COMMENT ON COLUMN xdb.queue_waiter.execution_id IS 'Process execution that the step belongs to.';
COMMENT ON COLUMN xdb.queue_waiter.queue_name IS 'Local queue.';
COMMENT ON COLUMN xdb.queue_waiter.wait_order IS 'Number of the event that began the wait. Steps are served in this order.';
COMMENT ON COLUMN xdb.queue_waiter.seq IS 'Step that waits.';
SELECT pg_catalog.pg_extension_config_dump('xdb.queue_waiter', '');

CREATE TABLE xdb.rpc_answer (
    execution_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    answered_at timestamptz NOT NULL,
    output jsonb,
    digest text NOT NULL,
    PRIMARY KEY (execution_id, idempotency_key)
);
COMMENT ON TABLE xdb.rpc_answer IS 'Answers of RPCs that had an idempotency key. The same request with the same key gets the same answer, and the worker is not called.';
COMMENT ON COLUMN xdb.rpc_answer.execution_id IS 'Process execution that was called.';
COMMENT ON COLUMN xdb.rpc_answer.idempotency_key IS 'Key that the caller gave.';
COMMENT ON COLUMN xdb.rpc_answer.answered_at IS 'When the key was first used.';
COMMENT ON COLUMN xdb.rpc_answer.output IS 'Output of the RPC; null = none.';
COMMENT ON COLUMN xdb.rpc_answer.digest IS 'SHA-256 of the name of the RPC and its input, in hexadecimal digits. Another RPC or input with the same key is refused (XD030).';
SELECT pg_catalog.pg_extension_config_dump('xdb.rpc_answer', '');

CREATE TABLE xdb.local_attribute (
    execution_id uuid NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    PRIMARY KEY (execution_id, key)
) WITH (fillfactor = 80);
COMMENT ON TABLE xdb.local_attribute IS 'Local attributes of process executions.';
COMMENT ON COLUMN xdb.local_attribute.execution_id IS 'Process execution that the attribute belongs to.';
COMMENT ON COLUMN xdb.local_attribute.key IS 'Name of the attribute.';
COMMENT ON COLUMN xdb.local_attribute.value IS 'Value that was written last.';
SELECT pg_catalog.pg_extension_config_dump('xdb.local_attribute', '');

CREATE TABLE xdb.history_event (
    execution_id uuid NOT NULL,
    event_id bigint NOT NULL,
    event_time timestamptz NOT NULL,
    event_type text NOT NULL,
    details jsonb NOT NULL,
    PRIMARY KEY (execution_id, event_id)
);
COMMENT ON TABLE xdb.history_event IS 'Events of process executions that keep a history. Replaying the rows gives the contents of the other tables. If only the last events are kept, the first row is a Snapshot that stands for the deleted ones.';
COMMENT ON COLUMN xdb.history_event.execution_id IS 'Process execution that the event belongs to.';
COMMENT ON COLUMN xdb.history_event.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history_event.event_time IS 'When the event happened.';
COMMENT ON COLUMN xdb.history_event.event_type IS 'Kind of the event, for instance StateStarted.';
COMMENT ON COLUMN xdb.history_event.details IS 'What belongs to the event, a JSON object. Times are microseconds since the Unix epoch.';
SELECT pg_catalog.pg_extension_config_dump('xdb.history_event', '');

CREATE TABLE xdb.purged (
    execution_id uuid PRIMARY KEY
);
COMMENT ON TABLE xdb.purged IS 'Executions whose own row was deleted, but not yet all of their other rows. The engine deletes these a few at a time.';
COMMENT ON COLUMN xdb.purged.execution_id IS 'The execution. It has no row in process_execution any more.';
SELECT pg_catalog.pg_extension_config_dump('xdb.purged', '');
-- Global queues: their messages, which belong to no process, and the steps that wait for them.
--
-- Limitations: only the scheduler hands messages out, in its turns. While the engine does not run, messages stay free.

-- A message that is given back keeps its number, and so its position.
CREATE TABLE xdb.global_message (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name text NOT NULL,
    key text,
    message_id text,
    payload jsonb,
    bytes int NOT NULL CONSTRAINT global_message_bytes_counted CHECK (bytes OPERATOR(pg_catalog.>=) 0),
    owner oid NOT NULL,
    owner_name text NOT NULL,
    published_at timestamptz NOT NULL,
    expires_at timestamptz,
    fresh boolean NOT NULL DEFAULT true,
    taken_by uuid,
    taken_seq int,
    taken_command int,
    taken_at timestamptz,
    CONSTRAINT global_message_taken_by_a_command CHECK (
        (taken_by IS NULL) OPERATOR(pg_catalog.=) (taken_seq IS NULL)
        AND (taken_by IS NULL) OPERATOR(pg_catalog.=) (taken_command IS NULL)
        AND (taken_by IS NULL) OPERATOR(pg_catalog.=) (taken_at IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000);
-- Expressions, so that no other index has these orders. Otherwise the planner may choose an index that only has the
-- order. If one queue has very many messages, it then reads all of them to find those of another queue or key.
CREATE INDEX global_message_fresh ON xdb.global_message ((number OPERATOR(pg_catalog.+) 0)) WHERE fresh;
CREATE INDEX global_message_free ON xdb.global_message (queue_name, (number OPERATOR(pg_catalog.+) 0)) WHERE taken_by IS NULL;
CREATE INDEX global_message_free_by_key ON xdb.global_message (queue_name, key, (number OPERATOR(pg_catalog.-) 0))
    WHERE taken_by IS NULL AND key IS NOT NULL;
CREATE INDEX global_message_taken ON xdb.global_message (taken_by, taken_seq) WHERE taken_by IS NOT NULL;
CREATE INDEX global_message_expiring ON xdb.global_message (expires_at)
    WHERE taken_by IS NULL AND expires_at IS NOT NULL;
CREATE INDEX global_message_by_id ON xdb.global_message (queue_name, message_id) WHERE message_id IS NOT NULL;
COMMENT ON TABLE xdb.global_message IS 'Messages of global queues: free, or consumed by a step that has not completed yet.';
COMMENT ON COLUMN xdb.global_message.number IS 'Order of publishing, over all queues.';
COMMENT ON COLUMN xdb.global_message.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_message.key IS 'Key of the message; null = none.';
COMMENT ON COLUMN xdb.global_message.message_id IS 'Id that the publisher gave the message; null = none.';
COMMENT ON COLUMN xdb.global_message.payload IS 'The message.';
COMMENT ON COLUMN xdb.global_message.bytes IS 'Length of the payload as it was published.';
COMMENT ON COLUMN xdb.global_message.owner IS 'Role that published the message.';
COMMENT ON COLUMN xdb.global_message.owner_name IS 'Name of the owner when the row was written. xdb.adopt() finds the owner by this name on another server.';
COMMENT ON COLUMN xdb.global_message.published_at IS 'When the message was published.';
COMMENT ON COLUMN xdb.global_message.expires_at IS 'After this time the message can''t be consumed, and is deleted; null = never. When a step gives the message back, the time that the step had it is added.';
COMMENT ON COLUMN xdb.global_message.fresh IS 'Whether the scheduler has not yet offered the message to waiting steps. Set again when a step gives the message back.';
COMMENT ON COLUMN xdb.global_message.taken_by IS 'Process execution that has consumed the message; null = free.';
COMMENT ON COLUMN xdb.global_message.taken_seq IS 'Step that has consumed the message.';
COMMENT ON COLUMN xdb.global_message.taken_command IS 'Position of the command that has consumed the message.';
COMMENT ON COLUMN xdb.global_message.taken_at IS 'When the message was consumed.';
SELECT pg_catalog.pg_extension_config_dump('xdb.global_message', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.global_message_number_seq', '');

-- Separate from global_message, because an id is kept longer than its message.
CREATE TABLE xdb.global_message_key (
    queue_name text NOT NULL,
    message_id text NOT NULL,
    published_at timestamptz NOT NULL,
    owner oid NOT NULL,
    owner_name text NOT NULL,
    PRIMARY KEY (queue_name, owner, message_id)
);
CREATE INDEX global_message_key_old ON xdb.global_message_key (published_at, queue_name, message_id, owner);
COMMENT ON TABLE xdb.global_message_key IS 'Message ids that roles have used in global queues. Each is kept while its message exists, and for xdb.retention.';
COMMENT ON COLUMN xdb.global_message_key.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_message_key.message_id IS 'Id that the publisher gave the message.';
COMMENT ON COLUMN xdb.global_message_key.published_at IS 'When the id was first used.';
COMMENT ON COLUMN xdb.global_message_key.owner IS 'Role that used the id.';
COMMENT ON COLUMN xdb.global_message_key.owner_name IS 'Name of the owner when the row was written. xdb.adopt() finds the owner by this name on another server.';
SELECT pg_catalog.pg_extension_config_dump('xdb.global_message_key', '');

-- at_least is in the index, so that a scan skips commands that want more messages than are free.
CREATE TABLE xdb.global_waiter (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    command int NOT NULL,
    queue_name text NOT NULL,
    key text,
    at_least bigint NOT NULL,
    wait_order bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (execution_id, seq, command)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000);
CREATE INDEX global_waiter_in_order ON xdb.global_waiter (queue_name, key, at_least, wait_order);
COMMENT ON TABLE xdb.global_waiter IS 'Commands of waiting steps that want messages of a global queue.';
COMMENT ON COLUMN xdb.global_waiter.execution_id IS 'Process execution that the step belongs to.';
COMMENT ON COLUMN xdb.global_waiter.seq IS 'Step that waits.';
COMMENT ON COLUMN xdb.global_waiter.command IS 'Position of the command.';
COMMENT ON COLUMN xdb.global_waiter.queue_name IS 'Global queue.';
COMMENT ON COLUMN xdb.global_waiter.key IS 'Key of the messages that the command wants; null = messages with and without a key.';
COMMENT ON COLUMN xdb.global_waiter.at_least IS 'How many messages complete the command. While fewer are free, the scheduler does not read the step.';
COMMENT ON COLUMN xdb.global_waiter.wait_order IS 'Order of waiting, over all executions. Steps are served in this order.';
SELECT pg_catalog.pg_extension_config_dump('xdb.global_waiter', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.global_waiter_wait_order_seq', '');

-- Steps that were not offered new messages: another transaction had locked their execution, or they began to wait in a
-- runner or a session. Not a column of global_waiter: the transaction that has locked the execution may have deleted
-- that row, and an update would wait for it. An insert into this table never waits.
CREATE TABLE xdb.global_passed_over (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    PRIMARY KEY (execution_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE xdb.global_passed_over IS 'Waiting steps that the scheduler still has to offer messages of global queues to.';
COMMENT ON COLUMN xdb.global_passed_over.execution_id IS 'Process execution that the step belongs to.';
COMMENT ON COLUMN xdb.global_passed_over.seq IS 'Step that waits.';
SELECT pg_catalog.pg_extension_config_dump('xdb.global_passed_over', '');
-- Checks that the server runs a library of the script's version or a later one. After an upgrade of the files the
-- server still runs the old library until it is restarted. The old library may lack functions of this version, so this
-- check comes before functions.sql declares them.
DO $body$
BEGIN
    CREATE OR REPLACE FUNCTION xdb.library_version() RETURNS text
        LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'xdb_library_version';
    IF (SELECT pg_catalog.string_to_array(xdb.library_version(), '.')::pg_catalog.int4[]
            OPERATOR(pg_catalog.<) pg_catalog.string_to_array(e.extversion, '.')::pg_catalog.int4[]
        FROM pg_catalog.pg_extension AS e WHERE e.extname OPERATOR(pg_catalog.=) 'xdb') THEN
        RAISE undefined_function;
    END IF;
EXCEPTION WHEN undefined_function THEN
    RAISE EXCEPTION 'the server runs an older version of xdb than the one that is installed'
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Restart the server, then run this again.';
END
$body$;
COMMENT ON FUNCTION xdb.library_version() IS 'Returns the version of XDB that the server runs. The version of the schema is extversion in pg_extension.';
-- The SQL functions. Each function that waits, calls or writes is VOLATILE, runs as its caller, and is native code.
--
-- Limitations: a new function also needs its name in src/api/mod.rs, and in a list of xdb.grant_usage below.

CREATE OR REPLACE FUNCTION xdb.register_worker(name text, url text, secret text DEFAULT NULL, headers jsonb DEFAULT NULL,
    max_concurrency int DEFAULT 96, role text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_worker';
COMMENT ON FUNCTION xdb.register_worker(text, text, text, jsonb, integer, text) IS 'Registers a worker, or changes it. With url NULL it is a pull worker: members of role claim its calls. XD017 if the host of the URL is not allowed, 42501 if the worker belongs to another role.';

CREATE OR REPLACE FUNCTION xdb.set_worker_secret(name text, secret text, second_secret text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_worker_secret';
COMMENT ON FUNCTION xdb.set_worker_secret(text, text, text) IS 'Replaces the secrets that sign the calls to a worker. With two secrets, each call is signed with both; with NULL as the first one, calls are not signed. XD005 if the worker does not exist.';

CREATE OR REPLACE FUNCTION xdb.unregister_worker(name text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_worker';
COMMENT ON FUNCTION xdb.unregister_worker(text) IS 'Deletes a worker. XD018 while a process type uses it, XD005 if it does not exist.';

CREATE OR REPLACE FUNCTION xdb.register_process_type(process_type text, worker text, definition jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_register_process_type';
COMMENT ON FUNCTION xdb.register_process_type(text, text, jsonb) IS 'Registers a process type, or replaces it. Running executions use the new states, options and RPCs from their next call; their mapped tables and timeout stay as at their start. XD008 if the definition is invalid, XD005 if the worker does not exist.';

CREATE OR REPLACE FUNCTION xdb.unregister_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_unregister_process_type';
COMMENT ON FUNCTION xdb.unregister_process_type(text) IS 'Deletes a process type. XD018 while executions of it run, XD002 if it does not exist.';

CREATE OR REPLACE FUNCTION xdb.start_process(process_id text, process_type text, input jsonb DEFAULT NULL,
    global_attribute_pk text DEFAULT NULL, global_attributes jsonb DEFAULT NULL,
    local_attributes jsonb DEFAULT NULL, id_reuse_policy text DEFAULT 'ALLOW_IF_NO_RUNNING',
    timeout interval DEFAULT NULL, start_at timestamptz DEFAULT NULL, options jsonb DEFAULT NULL) RETURNS uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_process';
COMMENT ON FUNCTION xdb.start_process(text, text, jsonb, text, jsonb, jsonb, text, interval, timestamptz, jsonb) IS 'Starts a process in the caller''s transaction, and returns the id of its execution. The current user becomes the owner. XD002 if the type is not registered, XD006 if id_reuse_policy refuses the id.';

CREATE OR REPLACE FUNCTION xdb.start_processes(processes jsonb) RETURNS SETOF uuid
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_start_processes';
COMMENT ON FUNCTION xdb.start_processes(jsonb) IS 'Starts many processes in the caller''s transaction, all or none. Each object of the array has the parameters of xdb.start_process as its keys. Returns the ids of the executions, in the order of the array.';

CREATE OR REPLACE FUNCTION xdb.invoke_rpc(process_id text, rpc_name text, input jsonb DEFAULT NULL,
    timeout interval DEFAULT NULL, idempotency_key text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_invoke_rpc';
COMMENT ON FUNCTION xdb.invoke_rpc(text, text, jsonb, interval, text, uuid) IS 'Calls an RPC of a process, applies its answer in the caller''s transaction, and returns its output. The waits for the end of a pause (XD023), for locks (XD020) and for the worker (XD010) take at most timeout together.';

CREATE OR REPLACE FUNCTION xdb.claim_calls(worker text, max_calls int DEFAULT 1, wait interval DEFAULT '0',
    lease interval DEFAULT NULL, shards int4range DEFAULT NULL)
    RETURNS TABLE (token text, call_id text, api text, request jsonb, lease_until timestamptz)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_claim_calls';
COMMENT ON FUNCTION xdb.claim_calls(text, int, interval, interval, int4range) IS 'Claims due calls of a pull worker, each with a lease, and waits at most wait for the first one. The claim counts when the transaction commits. For members of the worker''s role (42501); XD026 if the worker has a URL.';

CREATE OR REPLACE FUNCTION xdb.complete_call(token text, answer jsonb) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_complete_call';
COMMENT ON FUNCTION xdb.complete_call(text, jsonb) IS 'Applies the answer to a claimed call in the caller''s transaction. What this transaction writes is committed with the answer, or not at all. XD025 if the lease was lost, XD010 if the answer can''t be applied.';

CREATE OR REPLACE FUNCTION xdb.fail_call(token text, failure jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_fail_call';
COMMENT ON FUNCTION xdb.fail_call(text, jsonb) IS 'Fails the attempt of a claimed call: {"errorType", "detail", "retryAfterSeconds", "final"}, all optional. Without failure, the call is given back, and the same attempt is due again at once. XD025 if the lease was lost.';

CREATE OR REPLACE FUNCTION xdb.extend_call(token text, lease interval) RETURNS timestamptz
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_extend_call';
COMMENT ON FUNCTION xdb.extend_call(text, interval) IS 'Extends the lease of a claimed call to now() + lease. Returns the new end. XD025 if the lease was lost.';

CREATE OR REPLACE FUNCTION xdb.publish(process_id text, queue_name text, message jsonb DEFAULT NULL,
    message_id text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish';
COMMENT ON FUNCTION xdb.publish(text, text, jsonb, text, uuid) IS 'Publishes a message to a local queue of a running process, in the caller''s transaction. A message_id that was used in this queue of this execution is ignored. XD007 if the process is not running, XD004 if its type does not list the queue, XD029 if the queue is full.';

CREATE OR REPLACE FUNCTION xdb.publish_global(queue_name text, message jsonb DEFAULT NULL, key text DEFAULT NULL,
    message_id text DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_publish_global';
COMMENT ON FUNCTION xdb.publish_global(text, jsonb, text, text, interval) IS 'Publishes a message to a global queue, in the caller''s transaction. A message_id that the same role has used in this queue is ignored, while that message exists and for xdb.retention. After ttl, a message that no step has consumed is deleted. XD029 if the quota of the role is used up.';

CREATE OR REPLACE FUNCTION xdb.stop_process(process_id text, stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process';
COMMENT ON FUNCTION xdb.stop_process(text, text, text, uuid) IS 'Stops a running process: TERMINATE makes it TERMINATED, FAIL makes it FAILED. The reason is kept. XD007 if the process is closed already.';

-- For an array of process ids: a row for each element, in their order. A refused process has the error in its row.
CREATE OR REPLACE FUNCTION xdb.stop_process(process_ids text[], stop_type text DEFAULT 'TERMINATE', reason text DEFAULT NULL)
    RETURNS TABLE (process_id text, stopped boolean, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_stop_process_many';
COMMENT ON FUNCTION xdb.stop_process(text[], text, text) IS 'Stops many running processes. Returns a row for each process id, with the SQLSTATE and message of the error if the process could not be stopped. The other processes are stopped.';

CREATE OR REPLACE FUNCTION xdb.describe_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_describe_process';
COMMENT ON FUNCTION xdb.describe_process(text, uuid) IS 'What a process does, what it waits for and since when, which locks of other sessions block it, what failed last, and its results. XD001 if the process does not exist.';

CREATE OR REPLACE FUNCTION xdb.wait_for_process(process_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_process';
COMMENT ON FUNCTION xdb.wait_for_process(text, interval, uuid) IS 'Waits until a process has closed, at most for timeout. Returns {"status", "result", "results", "timedOut"}, and "reason" if the process closed for one. XD014 in a transaction that has itself started, stopped or published something.';

CREATE OR REPLACE FUNCTION xdb.wait_for_state(process_id text, state_execution_id text, timeout interval DEFAULT '30 seconds',
    execution_id uuid DEFAULT NULL) RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_wait_for_state';
COMMENT ON FUNCTION xdb.wait_for_state(text, text, interval, uuid) IS 'Waits until a step has ended or its process has closed, at most for timeout. Returns {"status", "processStatus", "timedOut"}; status is null if the execution has had no such step. XD014 as for xdb.wait_for_process.';

CREATE OR REPLACE FUNCTION xdb.set_local_attributes(process_id text, attributes jsonb, execution_id uuid DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_set_local_attributes';
COMMENT ON FUNCTION xdb.set_local_attributes(text, jsonb, uuid) IS 'Writes local attributes of a running process, {key: value}, in the caller''s transaction. Other attributes keep their values. XD007 if the process is not running, XD009 for a key that its type does not list.';

CREATE OR REPLACE FUNCTION xdb.skip_timer(process_id text, state_execution_id text, command_id text DEFAULT NULL,
    execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer';
COMMENT ON FUNCTION xdb.skip_timer(text, text, text, uuid) IS 'Completes a timer that a step waits for, with the status SKIPPED_COMMAND. command_id names the timer; NULL is the timer that would fire first. XD003 for an unknown step, XD019 if the step waits for no such timer.';

CREATE OR REPLACE FUNCTION xdb.skip_timer(process_ids text[], state_execution_id text, command_id text DEFAULT NULL)
    RETURNS TABLE (process_id text, skipped boolean, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_skip_timer_many';
COMMENT ON FUNCTION xdb.skip_timer(text[], text, text) IS 'Skips a timer of the same step in many processes. Returns a row for each process id, with the SQLSTATE and message of the error if no timer was skipped.';

CREATE OR REPLACE FUNCTION xdb.retry_now(process_id text, state_execution_id text DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS int
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now';
COMMENT ON FUNCTION xdb.retry_now(text, text, uuid) IS 'Makes calls of a process, or only the call of one step, due at once. These are calls in backoff, calls held after crashes, and calls with an incident. Returns how many. XD003 for an unknown step, XD007 if the process is not running.';

CREATE OR REPLACE FUNCTION xdb.retry_now(process_ids text[], state_execution_id text DEFAULT NULL)
    RETURNS TABLE (process_id text, retried int, error_code text, error text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_retry_now_many';
COMMENT ON FUNCTION xdb.retry_now(text[], text) IS 'Makes calls of many processes due at once: calls in backoff, calls held after crashes, and calls with an incident. Returns a row for each process id. It has the number of these calls, or the SQLSTATE and message of the error.';

CREATE OR REPLACE FUNCTION xdb.pause_process(process_id text, mode text DEFAULT 'WAIT', until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_process';
COMMENT ON FUNCTION xdb.pause_process(text, text, timestamptz, text, uuid) IS 'Pauses a process: no call of its states begins until xdb.resume_process(), or until this time. With mode WAIT, RPCs wait for the end of the pause; with REJECT, publishes and RPCs fail with XD023.';

CREATE OR REPLACE FUNCTION xdb.resume_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_process';
COMMENT ON FUNCTION xdb.resume_process(text, uuid) IS 'Ends the pause of a process. Does nothing if the process is not paused.';

CREATE OR REPLACE FUNCTION xdb.pause_process_type(process_type text, mode text DEFAULT 'WAIT', until timestamptz DEFAULT NULL,
    reason text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_process_type';
COMMENT ON FUNCTION xdb.pause_process_type(text, text, timestamptz, text) IS 'Pauses the processes of a type: no call of their states begins until xdb.resume_process_type(), or until this time. With mode REJECT, starts, publishes and RPCs fail with XD023. For operators and members of the type''s owner (42501).';

CREATE OR REPLACE FUNCTION xdb.resume_process_type(process_type text) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_process_type';
COMMENT ON FUNCTION xdb.resume_process_type(text) IS 'Ends the pause of a process type. Does nothing if the type is not paused. For operators and members of the type''s owner (42501).';

CREATE OR REPLACE FUNCTION xdb.get_local_attributes(process_id text, keys text[] DEFAULT NULL, execution_id uuid DEFAULT NULL)
    RETURNS jsonb
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_get_local_attributes';
COMMENT ON FUNCTION xdb.get_local_attributes(text, text[], uuid) IS 'Returns local attributes of a process, running or closed, {key: value}: those with the given keys, or all.';

CREATE OR REPLACE FUNCTION xdb.check_process(process_id text, execution_id uuid DEFAULT NULL) RETURNS TABLE (problem text)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_check_process';
COMMENT ON FUNCTION xdb.check_process(text, uuid) IS 'Replays the history of a process, and compares the result with every table. Returns a row for each difference, and no row for a sound process.';

CREATE OR REPLACE FUNCTION xdb.reassign_owned(old regrole, new regrole) RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_reassign_owned';
COMMENT ON FUNCTION xdb.reassign_owned(regrole, regrole) IS 'Gives the processes, process types and workers of a role to another one. ''-'' as old stands for all whose owner was dropped or never known. For superusers and members of both roles (42501); XD013 if running processes would belong to a superuser.';

CREATE OR REPLACE FUNCTION xdb.pause_engine() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_pause_engine';
COMMENT ON FUNCTION xdb.pause_engine() IS 'Pauses the engine of this database: it makes no calls, fires no timers and receives no messages. Answers of calls that are under way are applied. Every role that may call this function is an operator, and sees and drives all processes.';

CREATE OR REPLACE FUNCTION xdb.resume_engine() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_resume_engine';
COMMENT ON FUNCTION xdb.resume_engine() IS 'Ends the pause of the engine.';

CREATE OR REPLACE FUNCTION xdb.adopt() RETURNS void
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_adopt';
COMMENT ON FUNCTION xdb.adopt() IS 'Makes the processes of a copied or restored database its own, so that they run there. Does nothing in any other database. XD021 if owners or process types of running processes are missing.';

CREATE OR REPLACE FUNCTION xdb.knows_roles() RETURNS boolean
    -- Every policy calls it. It reads shared memory and a table, which each process of a parallel query may do.
    LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'xdb_knows_roles';
COMMENT ON FUNCTION xdb.knows_roles() IS 'Whether the owners of processes are roles of this server. False in a copy from another server, before xdb.adopt(). For the policies, and may change.';

CREATE OR REPLACE FUNCTION xdb.purge(older_than interval) RETURNS bigint
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_purge';
COMMENT ON FUNCTION xdb.purge(interval) IS 'Deletes executions that closed at least this long ago, with everything that belongs to them. Returns how many. Executions that are locked at that moment stay.';

CREATE OR REPLACE FUNCTION xdb.status() RETURNS TABLE (engine_pid int, state text, in_flight int, backlog bigint,
    oldest_due timestamptz, calls_per_second float8, started_at timestamptz, epoch bigint, slow_objects text[],
    last_error text, last_error_at timestamptz, reason text, runners int, runner_error text,
    ownerless_processes bigint, next_turn_at timestamptz, next_turn_why text)
    LANGUAGE c VOLATILE ROWS 1 AS 'MODULE_PATHNAME', 'xdb_status';
COMMENT ON FUNCTION xdb.status() IS 'One row about the engine of this database. Every role that uses XDB sees engine_pid, state, started_at and reason. Only operators and members of pg_monitor see the other columns. next_turn_at, next_turn_why: when the scheduler makes its next turn if no wake-up comes before, and what for.';

CREATE OR REPLACE FUNCTION xdb.process_type_usage(process_type text) RETURNS TABLE (kind text, name text, live bigint)
    LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'xdb_process_type_usage';
COMMENT ON FUNCTION xdb.process_type_usage(text) IS 'What running processes of a type use: states (kind STATE), and queues that they wait for (LOCAL_QUEUE, GLOBAL_QUEUE). live is the number of steps, counted up to 10000. For members of the type''s owner, operators and superusers (42501).';

-- For the views: what row-level security hides in the tables. Every role that uses XDB may know the names of all
-- workers and process types. The figures come from shared memory.
CREATE OR REPLACE FUNCTION xdb.registered_workers() RETURNS TABLE (worker_id int, name text, owner text, in_flight int, calls bigint,
    failures bigint, consecutive_failures int, average_latency interval, last_error_at timestamptz, breaker text,
    breaker_open_since timestamptz, next_probe_at timestamptz, waiting bigint, waiting_since timestamptz)
    LANGUAGE c VOLATILE ROWS 100 AS 'MODULE_PATHNAME', 'xdb_registered_workers';
COMMENT ON FUNCTION xdb.registered_workers() IS 'A row for each worker, whichever role has registered it. Only operators and members of the worker''s owner see more than worker_id, name and owner. Calls are counted since the server started.';

-- STABLE and PARALLEL SAFE, so that views call it once for all of their rows.
CREATE OR REPLACE FUNCTION xdb.registered_types() RETURNS TABLE (type_id int, process_type text, worker text, owner text,
    pause_mode text, paused_until timestamptz, pause_reason text)
    LANGUAGE c STABLE PARALLEL SAFE ROWS 100 AS 'MODULE_PATHNAME', 'xdb_registered_types';
COMMENT ON FUNCTION xdb.registered_types() IS 'A row for each process type, whichever role has registered it: name, worker, owner and pause.';

-- Which role may call which function. PUBLIC has no privileges: see privileges.sql.

CREATE OR REPLACE FUNCTION xdb.grant_usage(role regrole, admin boolean DEFAULT false, operator boolean DEFAULT false,
    deployer boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    -- These lists have every function of the extension that roles other than the extension's owner may call.
    of_users CONSTANT name[] := ARRAY[
        'start_process', 'invoke_rpc', 'publish', 'stop_process',
        'claim_calls', 'complete_call', 'fail_call', 'extend_call',  -- which check the role of the worker
        'describe_process', 'wait_for_process', 'get_local_attributes',
        'start_processes', 'publish_global', 'wait_for_state', 'set_local_attributes', 'skip_timer', 'retry_now',
        'pause_process', 'resume_process',
        'pause_process_type', 'resume_process_type',  -- which check the owner of the type
        'status', 'registered_workers',  -- which leave out figures of other roles
        'check_process', 'library_version', 'reassign_owned', 'registered_types',
        'process_type_usage',  -- which checks the owner of the type
        'knows_roles'];  -- called by the policies, as the reader
    of_operators CONSTANT name[] := ARRAY['pause_engine', 'resume_engine', 'adopt', 'purge'];
    of_deployers CONSTANT name[] := ARRAY[
        'register_worker', 'set_worker_secret', 'unregister_worker', 'register_process_type', 'unregister_process_type'];
    unsaid CONSTANT text := CASE
        WHEN role IS NULL THEN 'role' WHEN admin IS NULL THEN 'admin' WHEN grant_usage.operator IS NULL THEN 'operator'
        WHEN deployer IS NULL THEN 'deployer' END;
    grantee name;
    signature regprocedure;
BEGIN
    IF unsaid IS NOT NULL THEN
        RAISE EXCEPTION 'invalid value for %: it must not be null', unsaid USING ERRCODE = 'XD009';
    END IF;
    SELECT r.rolname INTO grantee FROM pg_roles AS r WHERE r.oid = role;
    IF grantee IS NULL THEN
        RAISE EXCEPTION 'invalid value for role: there is no role with oid %', role::oid USING ERRCODE = 'XD009';
    END IF;
    IF NOT (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = 'xdb') THEN
        RAISE EXCEPTION 'permission denied to grant the use of xdb'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Only a superuser or the owner of the extension may do this.';
    END IF;
    -- If two sessions change the privileges of an object at the same time, Postgres fails the second one. With this
    -- lock the second one waits. Apart from these sessions only vacuum takes this lock, and it gives way.
    LOCK TABLE xdb.registry IN SHARE UPDATE EXCLUSIVE MODE;

    EXECUTE format('GRANT USAGE ON SCHEMA xdb TO %I', grantee);
    FOR signature IN
        SELECT p.oid
        FROM pg_proc AS p
        JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
        WHERE e.extname = 'xdb' AND p.pronamespace = 'xdb'::regnamespace
          AND (p.proname = ANY (of_users)
               OR ((admin OR grant_usage.operator) AND p.proname = ANY (of_operators))
               OR ((admin OR deployer) AND p.proname = ANY (of_deployers)))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', signature, grantee);
    END LOOP;
    -- The views read with the rights of their reader, so the reader also needs the tables; row-level security hides
    -- rows. Not granted: the headers of a worker, its secrets (in a table of their own), and the numbers of a task's
    -- lease.
    EXECUTE format(
        'GRANT SELECT ON xdb.processes, xdb.state_executions, xdb.waits, xdb.timers, xdb.queue_messages, '
        'xdb.failures, xdb.incidents, xdb.history, xdb.workers, xdb.process_types, xdb.attribute_locks, '
        'xdb.process_execution, xdb.latest_execution, xdb.state_execution, xdb.timer, xdb.inbox, '
        'xdb.queue_message, xdb.global_message, xdb.history_event, xdb.process_type TO %I', grantee);
    EXECUTE format(
        'GRANT SELECT (worker_id, name, url, max_concurrency, registered_at, role_name) ON xdb.worker TO %I', grantee);
    EXECUTE format('GRANT SELECT (execution_id, seq, lane, due_at, lease_until, waits_for) ON xdb.task TO %I', grantee);
    IF admin OR grant_usage.operator THEN
        EXECUTE format('GRANT SELECT ON xdb.instances TO %I', grantee);
    END IF;
END
$body$;
COMMENT ON FUNCTION xdb.grant_usage(regrole, boolean, boolean, boolean) IS 'Lets a role use XDB: start and drive processes, and see its own. With operator, the role can also see and drive all processes, pause the engine, purge and adopt. With deployer, it can also register workers and process types. admin means both. Adds to earlier grants. For superusers and the owner of the extension (42501).';

CREATE OR REPLACE FUNCTION xdb.revoke_usage(role regrole) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    grantee name;
    of_schema regtype;
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'invalid value for role: it must not be null' USING ERRCODE = 'XD009';
    END IF;
    SELECT r.rolname INTO grantee FROM pg_roles AS r WHERE r.oid = role;
    IF grantee IS NULL THEN
        RAISE EXCEPTION 'invalid value for role: there is no role with oid %', role::oid USING ERRCODE = 'XD009';
    END IF;
    IF NOT (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = 'xdb') THEN
        RAISE EXCEPTION 'permission denied to revoke the use of xdb'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Only a superuser or the owner of the extension may do this.';
    END IF;
    -- The native functions act as the owner of the schema. Revoking from this owner would take away their rights.
    IF EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = 'xdb' AND n.nspowner = role) THEN
        RAISE EXCEPTION 'invalid value for role: "%" owns the extension', grantee USING ERRCODE = 'XD009';
    END IF;
    -- As in xdb.grant_usage.
    LOCK TABLE xdb.registry IN SHARE UPDATE EXCLUSIVE MODE;

    IF EXISTS (SELECT FROM xdb.process_execution AS p WHERE p.owner = role AND p.status = 'RUNNING') THEN
        RAISE WARNING 'role "%" owns running processes', grantee
            USING HINT = 'They go on, and fail once the role is dropped. xdb.reassign_owned() gives them to another role.';
    END IF;

    -- This also revokes the privileges on columns.
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA xdb FROM %I', grantee);
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA xdb FROM %I', grantee);
    FOR of_schema IN
        SELECT t.oid FROM pg_type AS t CROSS JOIN LATERAL aclexplode(t.typacl) AS a
        WHERE t.typnamespace = 'xdb'::regnamespace AND a.grantee = role
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM %I', of_schema, grantee);
    END LOOP;
    EXECUTE format('REVOKE ALL ON SCHEMA xdb FROM %I', grantee);
END
$body$;
COMMENT ON FUNCTION xdb.revoke_usage(regrole) IS 'Takes back everything in schema xdb that was granted to the role itself. Privileges that it has through other roles stay. For superusers and the owner of the extension (42501).';
-- The views. Each view reads with the rights of its reader, and so under the policies of policies.sql. The security
-- barrier keeps functions of the reader from seeing rows that the policies hide.
--
-- Each view begins with process_execution, which is found by its index on process_id, and joins the rest by
-- execution_id. Views with several sources repeat the join in each branch, so that a condition on process_id reaches
-- all of them. Window functions are partitioned by process_id for the same reason. Times inside of jsonb are
-- microseconds since the Unix epoch.
--
-- Limitations: without a condition on process_id or execution_id, a view reads all processes that its reader may see.

CREATE OR REPLACE VIEW xdb.processes WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    p.execution_id,
    EXISTS (
        SELECT FROM xdb.latest_execution AS l
        WHERE l.process_id OPERATOR(pg_catalog.=) p.process_id
          AND l.execution_id OPERATOR(pg_catalog.=) p.execution_id
    ) AS is_latest,
    p.process_type,
    p.owner_name AS owner,
    p.status,
    p.started_at,
    p.timeout_at,
    p.closed_at,
    p.reason,
    p.live_threads,
    CASE WHEN pg_catalog.jsonb_array_length(p.results) OPERATOR(pg_catalog.=) 1 THEN p.results[0]['output'] END
        AS result,
    p.results,
    p.pause_mode IS NOT NULL OR t.pause_mode IS NOT NULL AS paused,
    CASE WHEN p.pause_mode IS NULL THEN t.paused_until ELSE p.paused_until END AS paused_until,
    CASE WHEN p.pause_mode IS NULL THEN t.pause_reason ELSE p.pause_reason END AS pause_reason
FROM xdb.process_execution AS p
LEFT JOIN xdb.registered_types() AS t
    ON t.type_id OPERATOR(pg_catalog.=) p.type_id AND p.status OPERATOR(pg_catalog.=) 'RUNNING';
COMMENT ON VIEW xdb.processes IS 'Process executions that the reader may see.';
COMMENT ON COLUMN xdb.processes.process_id IS 'Business identifier, chosen by the application.';
COMMENT ON COLUMN xdb.processes.execution_id IS 'This run of the process id.';
COMMENT ON COLUMN xdb.processes.is_latest IS 'Whether this is the latest execution of its process id.';
COMMENT ON COLUMN xdb.processes.process_type IS 'Name of its process type.';
COMMENT ON COLUMN xdb.processes.owner IS 'Role that the process runs as. The name is that of the time when the role became the owner.';
COMMENT ON COLUMN xdb.processes.status IS 'RUNNING, COMPLETED, FAILED, TIMEOUT or TERMINATED.';
COMMENT ON COLUMN xdb.processes.started_at IS 'When the execution was started.';
COMMENT ON COLUMN xdb.processes.timeout_at IS 'When the execution times out; null = never.';
COMMENT ON COLUMN xdb.processes.closed_at IS 'When the execution closed; null while it runs.';
COMMENT ON COLUMN xdb.processes.reason IS 'Why the execution failed or was stopped.';
COMMENT ON COLUMN xdb.processes.live_threads IS 'Threads that have not ended.';
COMMENT ON COLUMN xdb.processes.result IS 'The output, if there is exactly one; otherwise null.';
COMMENT ON COLUMN xdb.processes.results IS 'All outputs, [{"stateExecutionId", "output"}].';
COMMENT ON COLUMN xdb.processes.paused IS 'Whether the process or its type is paused.';
COMMENT ON COLUMN xdb.processes.paused_until IS 'When the pause of the process ends by itself, or else that of its type. Null = it has no end, or nothing is paused.';
COMMENT ON COLUMN xdb.processes.pause_reason IS 'Reason of the pause of the process, or else of its type.';

CREATE OR REPLACE VIEW xdb.state_executions WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    s.state_id,
    s.number,
    s.status,
    s.started_at,
    s.ended_at,
    CASE
        WHEN s.status OPERATOR(pg_catalog.=) 'WAIT_UNTIL' THEN 'WAIT_UNTIL_API'
        WHEN s.status OPERATOR(pg_catalog.=) 'EXECUTE' THEN 'EXECUTE_API'
    END AS api,
    COALESCE(s.call['attempt']::int, s.call['failedAttempts']::int OPERATOR(pg_catalog.+) 1) AS attempt,
    CASE WHEN s.call['incident'] IS NULL
        THEN pg_catalog.to_timestamp(s.call['notBefore']::double precision OPERATOR(pg_catalog./) 1e6) END AS next_attempt_at,
    s.input,
    s.config,
    pg_catalog.jsonb_extract_path_text(s.recovery, 'stateExecutionId') AS recovers_from,
    CASE WHEN s.call IS NOT NULL THEN COALESCE(s.call['repeats']::int, 0) END AS repeats
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id;
COMMENT ON VIEW xdb.state_executions IS 'Steps (executions of states) of the processes that the reader may see.';
COMMENT ON COLUMN xdb.state_executions.process_id IS 'Process that the step belongs to.';
COMMENT ON COLUMN xdb.state_executions.execution_id IS 'Process execution that the step belongs to.';
COMMENT ON COLUMN xdb.state_executions.state_execution_id IS 'Name of the step, <state_id>-<number>.';
COMMENT ON COLUMN xdb.state_executions.state_id IS 'State of the step.';
COMMENT ON COLUMN xdb.state_executions.number IS 'Number of the step within its state, from 1.';
COMMENT ON COLUMN xdb.state_executions.status IS 'WAIT_UNTIL, WAITING, EXECUTE; then COMPLETED, FAILED (its retries were spent) or ABORTED (the process closed first).';
COMMENT ON COLUMN xdb.state_executions.started_at IS 'When the step began.';
COMMENT ON COLUMN xdb.state_executions.ended_at IS 'When the step ended; null while it is live.';
COMMENT ON COLUMN xdb.state_executions.api IS 'The current call, WAIT_UNTIL_API or EXECUTE_API; null while the step waits and when it has ended.';
COMMENT ON COLUMN xdb.state_executions.attempt IS 'Attempt of the current call that is under way or comes next, from 1. When the step has ended, the attempt that ended it. Null while it waits.';
COMMENT ON COLUMN xdb.state_executions.next_attempt_at IS 'The call is not made before this time; in the past if it is due or under way. Null with an incident.';
COMMENT ON COLUMN xdb.state_executions.input IS 'Input of the step.';
COMMENT ON COLUMN xdb.state_executions.config IS 'Options that the start or the decision gave for this step.';
COMMENT ON COLUMN xdb.state_executions.recovers_from IS 'Failed step that this step recovers from; null = none.';
COMMENT ON COLUMN xdb.state_executions.repeats IS 'How often the call was repeated without counting an attempt. Causes: locked values had changed, the worker could take no call, or its answer named what is not registered. Kept when the step has ended.';

CREATE OR REPLACE VIEW xdb.waits WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    pg_catalog.jsonb_extract_path_text(s.wait, 'waitingType') AS waiting_type,
    CASE WHEN q.queue IS NOT NULL THEN 'LOCAL_QUEUE' WHEN g.queue IS NOT NULL THEN 'GLOBAL_QUEUE' ELSE 'TIMER' END
        AS kind,
    c."commandId" AS command_id,
    c.status AS command_status,
    COALESCE(q.queue, g.queue) AS queue_name,
    COALESCE(q."atLeast", g."atLeast") AS at_least,
    COALESCE(q."atMost", g."atMost") AS at_most,
    CASE WHEN q.queue IS NOT NULL THEN
        (
            SELECT pg_catalog.count(*) FROM xdb.queue_message AS m
            WHERE m.execution_id OPERATOR(pg_catalog.=) s.execution_id
              AND m.queue_name OPERATOR(pg_catalog.=) q.queue
        ) OPERATOR(pg_catalog.+) (
            SELECT pg_catalog.count(*) FROM xdb.inbox AS i
            WHERE i.execution_id OPERATOR(pg_catalog.=) s.execution_id
              AND i.queue_name OPERATOR(pg_catalog.=) q.queue
        )
    END AS messages_in_queue,
    pg_catalog.to_timestamp(s.wait['since']::double precision OPERATOR(pg_catalog./) 1e6) AS since,
    pg_catalog.to_timestamp(c.kind['timer']['fireAt']::double precision OPERATOR(pg_catalog./) 1e6) AS fire_at,
    NULL::pg_catalog.text AS closing,
    g.key
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(s.wait['commands'])
    AS c ("commandId" text, kind jsonb, status text)
-- A column, not an expression: otherwise the index of the queues can't be used to find it.
LEFT JOIN LATERAL pg_catalog.jsonb_to_record(c.kind['localQueue'])
    AS q (queue text, "atLeast" bigint, "atMost" bigint) ON true
LEFT JOIN LATERAL pg_catalog.jsonb_to_record(c.kind['globalQueue'])
    AS g (queue text, key text, "atLeast" bigint, "atMost" bigint) ON true
WHERE s.status OPERATOR(pg_catalog.=) 'WAITING'
UNION ALL
SELECT
    p.process_id, p.execution_id, NULL, NULL, 'PUBLISHERS', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    p.closing,
    NULL
FROM xdb.process_execution AS p
WHERE p.closing IS NOT NULL;
COMMENT ON VIEW xdb.waits IS 'What processes wait for: a row for each command of a waiting step, and for each close that waits for open publishers.';
COMMENT ON COLUMN xdb.waits.process_id IS 'Process that waits.';
COMMENT ON COLUMN xdb.waits.execution_id IS 'Process execution that waits.';
COMMENT ON COLUMN xdb.waits.state_execution_id IS 'Step that waits; null for a close.';
COMMENT ON COLUMN xdb.waits.waiting_type IS 'Which commands complete the wait: AllOfCompletion, AnyOfCompletion or AnyOfCombination.';
COMMENT ON COLUMN xdb.waits.kind IS 'TIMER, LOCAL_QUEUE, GLOBAL_QUEUE; or PUBLISHERS for a close.';
COMMENT ON COLUMN xdb.waits.command_id IS 'Id that the worker gave the command; null = none.';
COMMENT ON COLUMN xdb.waits.command_status IS 'WAITING_COMMAND; or COMPLETED_COMMAND or SKIPPED_COMMAND while the step waits for other commands.';
COMMENT ON COLUMN xdb.waits.queue_name IS 'Queue that the command wants messages of.';
COMMENT ON COLUMN xdb.waits.at_least IS 'How many messages complete the command.';
COMMENT ON COLUMN xdb.waits.at_most IS 'The most messages that the command consumes.';
COMMENT ON COLUMN xdb.waits.messages_in_queue IS 'Messages that are in the local queue now, received or not; null for a global queue.';
COMMENT ON COLUMN xdb.waits.since IS 'When the wait began; null for a close.';
COMMENT ON COLUMN xdb.waits.fire_at IS 'When the timer fires.';
COMMENT ON COLUMN xdb.waits.closing IS 'Kind of the close that waits: UNCONDITIONAL or CONDITIONAL.';
COMMENT ON COLUMN xdb.waits.key IS 'Key of the messages that the command wants from a global queue; null = messages with and without a key.';

CREATE OR REPLACE VIEW xdb.timers WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    t.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    pg_catalog.jsonb_extract_path_text(s.wait, 'commands', t.command::pg_catalog.text, 'commandId') AS command_id,
    t.kind,
    t.fire_at
FROM xdb.process_execution AS p
JOIN xdb.timer AS t ON t.execution_id OPERATOR(pg_catalog.=) p.execution_id
LEFT JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) t.execution_id AND s.seq OPERATOR(pg_catalog.=) t.seq;
COMMENT ON VIEW xdb.timers IS 'Timers of the processes that the reader may see.';
COMMENT ON COLUMN xdb.timers.process_id IS 'Process that the timer belongs to.';
COMMENT ON COLUMN xdb.timers.execution_id IS 'Process execution that the timer belongs to.';
COMMENT ON COLUMN xdb.timers.state_execution_id IS 'Step that waits for the timer; null for a timer of the process.';
COMMENT ON COLUMN xdb.timers.command_id IS 'Id that the worker gave the command; null = none.';
COMMENT ON COLUMN xdb.timers.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME (the end of a pause) or TIMER_COMMAND.';
COMMENT ON COLUMN xdb.timers.fire_at IS 'When the timer fires.';

CREATE OR REPLACE VIEW xdb.queue_messages WITH (security_invoker = true, security_barrier = true) AS
SELECT
    m.process_id,
    m.execution_id,
    m.queue_name,
    pg_catalog.row_number() OVER (
        PARTITION BY m.process_id, m.execution_id, m.queue_name
        ORDER BY m.received DESC, m.ordinal
    ) AS "position",
    m.message_id,
    m.payload,
    m.received,
    m.published_at,
    m.received_at,
    NULL::pg_catalog.text AS key,
    NULL::pg_catalog.timestamptz AS expires_at
FROM (
    SELECT p.process_id, q.execution_id, q.queue_name, q.number AS ordinal, q.message_id, q.payload,
           true AS received, NULL::pg_catalog.timestamptz AS published_at, q.received_at
    FROM xdb.process_execution AS p
    JOIN xdb.queue_message AS q ON q.execution_id OPERATOR(pg_catalog.=) p.execution_id
    UNION ALL
    SELECT p.process_id, i.execution_id, i.queue_name, i.inbox_id, i.message_id, i.payload,
           false, i.published_at, NULL
    FROM xdb.process_execution AS p
    JOIN xdb.inbox AS i ON i.execution_id OPERATOR(pg_catalog.=) p.execution_id
) AS m
UNION ALL
-- Global queues belong to no process. The position is the one among the messages that the reader sees.
SELECT
    NULL, NULL, g.queue_name,
    pg_catalog.row_number() OVER (PARTITION BY g.queue_name ORDER BY g.number),
    g.message_id, g.payload, NULL, g.published_at, NULL, g.key, g.expires_at
FROM xdb.global_message AS g
WHERE g.taken_by IS NULL;
COMMENT ON VIEW xdb.queue_messages IS 'Messages that were not consumed. A reader sees messages in local queues of visible processes, and messages in global queues that the reader''s roles published. Operators see all.';
COMMENT ON COLUMN xdb.queue_messages.process_id IS 'Process that the queue belongs to; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.execution_id IS 'Process execution that the queue belongs to; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.queue_name IS 'Queue that the message is in.';
COMMENT ON COLUMN xdb.queue_messages.position IS 'Position in the queue: 1 is consumed next. In a global queue, the position among the messages that the reader sees.';
COMMENT ON COLUMN xdb.queue_messages.message_id IS 'Id that the publisher gave the message; null = none.';
COMMENT ON COLUMN xdb.queue_messages.payload IS 'The message.';
COMMENT ON COLUMN xdb.queue_messages.received IS 'Whether the process has received the message; null for a global queue.';
COMMENT ON COLUMN xdb.queue_messages.published_at IS 'When the message was published; null once the process has received it.';
COMMENT ON COLUMN xdb.queue_messages.received_at IS 'When the process received the message; null = not yet, or a global queue.';
COMMENT ON COLUMN xdb.queue_messages.key IS 'Key of a message of a global queue; null = none.';
COMMENT ON COLUMN xdb.queue_messages.expires_at IS 'After this time a message of a global queue can''t be consumed; null = never.';

-- While a step is at a call, both the call and the column last_failure have its last failure.
CREATE OR REPLACE VIEW xdb.failures WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    s.status AS state_status,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'api') AS api,
    s.last_failure['attempt']::int AS attempt,
    pg_catalog.to_timestamp(s.last_failure['at']::double precision OPERATOR(pg_catalog./) 1e6) AS failed_at,
    s.last_failure['failure']['status']::int AS http_status,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'errorType') AS error_type,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'detail') AS detail,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'sqlState') AS sql_state,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'table') AS table_name,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'constraint')
        AS constraint_name,
    CASE WHEN s.call['incident'] IS NULL
        THEN pg_catalog.to_timestamp(s.call['notBefore']::double precision OPERATOR(pg_catalog./) 1e6) END AS next_attempt_at,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'context') AS context
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
WHERE s.last_failure IS NOT NULL
UNION ALL
-- Processes without a registered type: no call of their steps is made, so none can fail.
SELECT p.process_id, p.execution_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    pg_catalog.format('the process type "%s" is not registered: register it again', p.process_type), NULL, NULL, NULL, NULL, NULL
FROM xdb.process_execution AS p
WHERE p.status OPERATOR(pg_catalog.=) 'RUNNING' AND p.type_id OPERATOR(pg_catalog.<>) ALL (ARRAY(
    -- The function returns all types; of the table a reader sees only those of its own roles.
    SELECT t.type_id FROM xdb.registered_types() AS t))
UNION ALL
-- Calls that are held after crashes: they are not made, whether an earlier attempt failed or not.
SELECT p.process_id, s.execution_id, s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number, s.status,
    s.status OPERATOR(pg_catalog.||) '_API', s.call['failedAttempts']::int OPERATOR(pg_catalog.+) 1, NULL, NULL,
    'CallHeld', 'the call is held, because three times the server crashed while it was made or its answer was applied: '
    'xdb.retry_now() has it made again', NULL, NULL, NULL, NULL, NULL
FROM xdb.process_execution AS p
JOIN xdb.task AS t ON t.execution_id OPERATOR(pg_catalog.=) p.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) t.execution_id AND s.seq OPERATOR(pg_catalog.=) t.seq
WHERE t.lane OPERATOR(pg_catalog.=) 3 AND s.ended_at IS NULL;
COMMENT ON VIEW xdb.failures IS 'Calls whose last attempt failed, whether they are retried, given up, or have an incident. Calls whose answers name what is not registered. Calls that are held after crashes. Running processes whose type is not registered.';
COMMENT ON COLUMN xdb.failures.process_id IS 'Process that the call belongs to.';
COMMENT ON COLUMN xdb.failures.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.failures.state_execution_id IS 'Step whose call failed; null if the process type is not registered.';
COMMENT ON COLUMN xdb.failures.state_status IS 'WAIT_UNTIL or EXECUTE: the step is still at the call. FAILED: its retries were spent. ABORTED: the process closed before the next attempt.';
COMMENT ON COLUMN xdb.failures.api IS 'Call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.failures.attempt IS 'Attempt that failed, from 1. With NotRegistered, the attempt that is repeated; with CallHeld, the attempt that comes next.';
COMMENT ON COLUMN xdb.failures.failed_at IS 'When the attempt failed; null if the call is held after crashes. With NotRegistered, the time of the first such answer.';
COMMENT ON COLUMN xdb.failures.http_status IS 'HTTP status of the answer; null = none.';
COMMENT ON COLUMN xdb.failures.error_type IS 'Kind of the error, as the worker named it. NotRegistered: an answer names what is not registered. CallHeld: the call is held after crashes.';
COMMENT ON COLUMN xdb.failures.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.failures.context IS 'Functions of the database that ran, innermost first, each with its line; null = none.';
COMMENT ON COLUMN xdb.failures.sql_state IS 'SQLSTATE of the error with which a table or a function refused the answer; null = none.';
COMMENT ON COLUMN xdb.failures.table_name IS 'Table that refused the answer.';
COMMENT ON COLUMN xdb.failures.constraint_name IS 'Constraint that was violated.';
COMMENT ON COLUMN xdb.failures.next_attempt_at IS 'When the next attempt may be made; in the past if it is due or under way. Null = no attempt will be made.';

CREATE OR REPLACE VIEW xdb.incidents WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    s.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    s.status OPERATOR(pg_catalog.||) '_API' AS api,
    s.call['failedAttempts']::int AS attempt,
    pg_catalog.to_timestamp(s.last_failure['at']::double precision OPERATOR(pg_catalog./) 1e6) AS raised_at,
    s.last_failure['failure']['status']::int AS http_status,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'errorType') AS error_type,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'detail') AS detail,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'sqlState') AS sql_state,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'table') AS table_name,
    pg_catalog.jsonb_extract_path_text(s.last_failure, 'failure', 'appDatabaseError', 'constraint') AS constraint_name
FROM xdb.process_execution AS p
JOIN xdb.state_execution AS s ON s.execution_id OPERATOR(pg_catalog.=) p.execution_id
WHERE s.ended_at IS NULL AND s.call['incident'] IS NOT NULL;
COMMENT ON VIEW xdb.incidents IS 'Calls of running processes whose retries are spent, with the policy RAISE_INCIDENT. No attempt is made until xdb.retry_now().';
COMMENT ON COLUMN xdb.incidents.process_id IS 'Process that the call belongs to.';
COMMENT ON COLUMN xdb.incidents.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.incidents.state_execution_id IS 'Step that stays at the call.';
COMMENT ON COLUMN xdb.incidents.api IS 'Call that failed, WAIT_UNTIL_API or EXECUTE_API.';
COMMENT ON COLUMN xdb.incidents.attempt IS 'Attempt that failed last, from 1.';
COMMENT ON COLUMN xdb.incidents.raised_at IS 'When this attempt failed.';
COMMENT ON COLUMN xdb.incidents.http_status IS 'HTTP status of the answer; null = none.';
COMMENT ON COLUMN xdb.incidents.error_type IS 'Kind of the error, as the worker named it.';
COMMENT ON COLUMN xdb.incidents.detail IS 'What went wrong.';
COMMENT ON COLUMN xdb.incidents.sql_state IS 'SQLSTATE of the error with which a table or a function refused the answer; null = none.';
COMMENT ON COLUMN xdb.incidents.table_name IS 'Table that refused the answer.';
COMMENT ON COLUMN xdb.incidents.constraint_name IS 'Constraint that was violated.';

CREATE OR REPLACE VIEW xdb.attribute_locks WITH (security_invoker = true, security_barrier = true) AS
SELECT
    p.process_id,
    t.execution_id,
    s.state_id OPERATOR(pg_catalog.||) '-' OPERATOR(pg_catalog.||) s.number AS state_execution_id,
    t.waits_for,
    t.due_at
FROM xdb.process_execution AS p
JOIN xdb.task AS t ON t.execution_id OPERATOR(pg_catalog.=) p.execution_id
JOIN xdb.state_execution AS s
    ON s.execution_id OPERATOR(pg_catalog.=) t.execution_id AND s.seq OPERATOR(pg_catalog.=) t.seq
WHERE t.lease_until OPERATOR(pg_catalog.=) 'infinity';
COMMENT ON VIEW xdb.attribute_locks IS 'Calls of steps that wait for locks on attributes. RPCs are not among them: an RPC waits for locks of Postgres.';
COMMENT ON COLUMN xdb.attribute_locks.process_id IS 'Process that the call belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.execution_id IS 'Process execution that the call belongs to.';
COMMENT ON COLUMN xdb.attribute_locks.state_execution_id IS 'Step whose call waits.';
COMMENT ON COLUMN xdb.attribute_locks.waits_for IS 'What the call must lock, all at once: rows of tables by their keys, local attributes, or all of them. Cut at 1000 characters.';
COMMENT ON COLUMN xdb.attribute_locks.due_at IS 'Since when the call is due.';

CREATE OR REPLACE VIEW xdb.history WITH (security_invoker = true, security_barrier = true) AS
SELECT p.process_id, h.execution_id, h.event_id, h.event_time, h.event_type, h.details
FROM xdb.process_execution AS p
JOIN xdb.history_event AS h ON h.execution_id OPERATOR(pg_catalog.=) p.execution_id;
COMMENT ON VIEW xdb.history IS 'Events of the processes that the reader may see. Order by execution_id, event_id.';
COMMENT ON COLUMN xdb.history.process_id IS 'Process that the event belongs to.';
COMMENT ON COLUMN xdb.history.execution_id IS 'Process execution that the event belongs to.';
COMMENT ON COLUMN xdb.history.event_id IS 'Number of the event, from 1.';
COMMENT ON COLUMN xdb.history.event_time IS 'When the event happened.';
COMMENT ON COLUMN xdb.history.event_type IS 'Kind of the event, for instance StateStarted.';
COMMENT ON COLUMN xdb.history.details IS 'What belongs to the event, a JSON object. Times are microseconds since the Unix epoch.';

-- Left joins: for rows that policies hide from the reader, the columns of the tables are null.
CREATE OR REPLACE VIEW xdb.workers WITH (security_invoker = true, security_barrier = true) AS
SELECT
    f.name,
    w.url,
    w.max_concurrency,
    w.registered_at,
    f.in_flight,
    f.calls,
    f.failures,
    f.consecutive_failures,
    f.average_latency,
    f.last_error_at,
    f.breaker,
    f.breaker_open_since,
    f.next_probe_at,
    f.owner,
    w.role_name AS role,
    f.waiting,
    f.waiting_since
FROM xdb.registered_workers() AS f
LEFT JOIN xdb.worker AS w ON w.worker_id OPERATOR(pg_catalog.=) f.worker_id;
COMMENT ON VIEW xdb.workers IS 'Registered workers, without their secrets. Only operators and members of the owner see more than name and owner. Only calls of states are counted, since the server started.';
COMMENT ON COLUMN xdb.workers.name IS 'Name of the worker.';
COMMENT ON COLUMN xdb.workers.url IS 'URL of the worker; null = a pull worker.';
COMMENT ON COLUMN xdb.workers.max_concurrency IS 'The most state calls at the worker at one time, for each engine.';
COMMENT ON COLUMN xdb.workers.registered_at IS 'When the worker was first registered or last changed.';
COMMENT ON COLUMN xdb.workers.in_flight IS 'Calls that are under way. Of a pull worker: claimed calls, counted up to 10000.';
COMMENT ON COLUMN xdb.workers.calls IS 'Calls that were made.';
COMMENT ON COLUMN xdb.workers.failures IS 'Calls that failed.';
COMMENT ON COLUMN xdb.workers.consecutive_failures IS 'Calls that have failed since the last one that succeeded.';
COMMENT ON COLUMN xdb.workers.average_latency IS 'Average duration of a call; null = no call was made.';
COMMENT ON COLUMN xdb.workers.last_error_at IS 'When a call failed last; null = none has failed.';
COMMENT ON COLUMN xdb.workers.breaker IS 'closed: calls are made. open: many calls in a row could not reach the worker, and no call is made. half-open: one call is made to test the worker, or will be made when one is due.';
COMMENT ON COLUMN xdb.workers.breaker_open_since IS 'Since when the worker could not be reached; null if the breaker is closed.';
COMMENT ON COLUMN xdb.workers.next_probe_at IS 'When the next call may be made to test the worker; null if the breaker is closed, or this call is under way.';
COMMENT ON COLUMN xdb.workers.role IS 'Role whose members may claim the calls of a pull worker; null if the worker has a URL.';
COMMENT ON COLUMN xdb.workers.waiting IS 'Calls that are due and not under way, of each owner counted up to 1000. They wait for a place, or until the worker can be reached.';
COMMENT ON COLUMN xdb.workers.waiting_since IS 'When the first waiting call came due; null = no call waits.';
COMMENT ON COLUMN xdb.workers.owner IS 'Role that owns the worker; null = it was dropped, or is not known.';

CREATE OR REPLACE VIEW xdb.process_types WITH (security_invoker = true, security_barrier = true) AS
SELECT n.process_type, n.worker, n.owner, t.definition, t.version, t.registered_at, t.pause_mode, t.paused_until, t.pause_reason
FROM xdb.registered_types() AS n
LEFT JOIN xdb.process_type AS t ON t.type_id OPERATOR(pg_catalog.=) n.type_id;
COMMENT ON VIEW xdb.process_types IS 'Registered process types. Only operators and members of the owner see more than process_type, worker and owner.';
COMMENT ON COLUMN xdb.process_types.process_type IS 'Name of the process type.';
COMMENT ON COLUMN xdb.process_types.worker IS 'Worker that answers the calls of its states and its RPCs; null = functions of the database answer all of them.';
COMMENT ON COLUMN xdb.process_types.owner IS 'Role that owns the process type; null = it was dropped, or is not known.';
COMMENT ON COLUMN xdb.process_types.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_types.version IS 'Increases with every registration of the type or its worker.';
COMMENT ON COLUMN xdb.process_types.registered_at IS 'When the type was registered last.';
COMMENT ON COLUMN xdb.process_types.pause_mode IS 'WAIT or REJECT: what happens to requests while the type is paused; null = it is not paused.';
COMMENT ON COLUMN xdb.process_types.paused_until IS 'When the pause ends by itself; null = it has no end, or the type is not paused.';
COMMENT ON COLUMN xdb.process_types.pause_reason IS 'Reason given to xdb.pause_process_type().';
-- Which role may read which rows. Every table of the extension has row-level security. It also applies to roles that
-- may read or write all tables of the database, such as members of pg_write_all_data. They get only the rows that a
-- policy allows, and of a table without a policy none.
--
-- Limitations: policies do not apply to superusers, to roles with BYPASSRLS, and to the owner of the tables.
DO $body$
DECLARE
    of_extension pg_catalog.regclass;
BEGIN
    FOR of_extension IN
        SELECT d.objid
        FROM pg_catalog.pg_depend AS d
        JOIN pg_catalog.pg_extension AS e ON d.refobjid OPERATOR(pg_catalog.=) e.oid
        JOIN pg_catalog.pg_class AS c ON d.objid OPERATOR(pg_catalog.=) c.oid
        WHERE e.extname OPERATOR(pg_catalog.=) 'xdb' AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass::pg_catalog.oid
          AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid
          AND c.relkind OPERATOR(pg_catalog.=) 'r' AND NOT c.relrowsecurity
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', of_extension);
    END LOOP;
END
$body$;

-- The only policy that decides which roles see an execution: roles with the privileges of its owner, and operators.
-- Operators are the roles that may call xdb.pause_engine(). The sub-select asks for this once per query, and the cast
-- finds the function when the policy is created. In a copy whose roles are not known yet, only operators see
-- executions. There are policies for SELECT only: native code writes as the owner of the tables, to which policies do
-- not apply.
DROP POLICY IF EXISTS visible ON xdb.process_execution;
CREATE POLICY visible ON xdb.process_execution FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

DROP POLICY IF EXISTS visible ON xdb.instances;
CREATE POLICY visible ON xdb.instances FOR SELECT
    USING ((SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE')));

-- What belongs to an execution is visible with it: the sub-select is subject to the policy above.
DO $body$
DECLARE
    child pg_catalog.regclass;
BEGIN
    FOREACH child IN ARRAY ARRAY[
        'xdb.latest_execution', 'xdb.state_execution', 'xdb.local_attribute', 'xdb.queue_message', 'xdb.inbox',
        'xdb.message_key', 'xdb.queue_waiter', 'xdb.global_waiter', 'xdb.global_passed_over', 'xdb.rpc_answer',
        'xdb.timer', 'xdb.task', 'xdb.history_event', 'xdb.purged', 'xdb.correlated_start'
    ]::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', child);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %1$s FOR SELECT USING (EXISTS (SELECT FROM xdb.process_execution AS p '
            'WHERE p.execution_id OPERATOR(pg_catalog.=) %1$s.execution_id))', child);
    END LOOP;
END
$body$;

-- A message of a global queue belongs to the role that published it, until a step consumes it.
DROP POLICY IF EXISTS visible ON xdb.global_message;
CREATE POLICY visible ON xdb.global_message FOR SELECT
    USING (
        (SELECT pg_catalog.has_function_privilege('xdb.pause_engine()'::pg_catalog.regprocedure::pg_catalog.oid, 'EXECUTE'))
        OR taken_by IS NULL AND (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, 'USAGE')
    );

-- Only superusers read secrets, whatever other privileges a role has.
DROP POLICY IF EXISTS visible ON xdb.worker_secret;
CREATE POLICY visible ON xdb.worker_secret FOR SELECT USING (false);

-- Rows of workers and process types are for their owners and operators. Every role that uses XDB may know their names
-- and owners: the views get these from xdb.registered_workers() and xdb.registered_types().
DO $body$
DECLARE
    registered pg_catalog.regclass;
BEGIN
    FOREACH registered IN ARRAY ARRAY['xdb.worker', 'xdb.process_type']::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format('DROP POLICY IF EXISTS visible ON %s', registered);
        EXECUTE pg_catalog.format(
            'CREATE POLICY visible ON %s FOR SELECT USING ('
            '(SELECT pg_catalog.has_function_privilege(%L::pg_catalog.regprocedure::pg_catalog.oid, %L)) '
            'OR (SELECT xdb.knows_roles()) AND pg_catalog.pg_has_role(owner, %L))',
            registered, 'xdb.pause_engine()', 'EXECUTE', 'USAGE');
    END LOOP;
END
$body$;
-- Sets owner and privileges of the objects that the script has created. Runs last.
--
-- The new objects belong to the owner of the schema, also if another superuser runs an update. No other role has
-- privileges on them. PUBLIC has none, although Postgres grants it every new function and type. Roles that default
-- privileges or event triggers of this database name have none either. Only this script grants privileges to
-- pg_monitor.
--
-- Limitations: objects that existed before keep their privileges, because administrators may have granted them to
-- roles. If a script grants or revokes anything on an object, all privileges on it become a part of the extension.
-- Then pg_dump leaves these privileges out, and they stay on record when the role is dropped. For the same reason no
-- script grants anything to a role that is not built in. A warning names the roles that used XDB before.
-- xdb.grant_usage grants them what is new.

-- Below, only objects of the system are found without their schema.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $body$
DECLARE
    of_monitors CONSTANT oid[] := ARRAY['xdb.status()', 'xdb.library_version()']::regprocedure[];
    members CONSTANT text[] := string_to_array(current_setting('xdb_script.members'), ' ');
    owner CONSTANT regrole := (SELECT nspowner FROM pg_namespace WHERE nspname = 'xdb');
    made record;
    grantees text;
    again text;
BEGIN
    FOR made IN
        SELECT d.objid, i.type, i.identity, CASE
            WHEN i.type IN ('function', 'schema') THEN upper(i.type) WHEN i.type IN ('table', 'view', 'sequence') THEN 'TABLE' END AS kind
        FROM pg_depend AS d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) AS i
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
          AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
          AND format('%s:%s', d.classid, d.objid) <> ALL (members)
          AND i.type <> 'composite type'  -- has the owner of its table
        ORDER BY i.type = 'sequence'  -- the sequence of an identity column gets the owner of its table
    LOOP
        IF made.kind IS NULL THEN
            RAISE EXCEPTION 'sql/always/privileges.sql does not know what to do with % %', made.type, made.identity;
        END IF;
        EXECUTE format('ALTER %s %s OWNER TO %s', made.kind, made.identity, owner);
        -- Revoking a privilege on a relation also revokes it on the columns.
        SELECT string_agg(DISTINCT ', ' || a.grantee::regrole, '')
        INTO grantees
        FROM (
            SELECT nspacl FROM pg_namespace WHERE made.kind = 'SCHEMA' AND oid = made.objid
            UNION ALL SELECT proacl FROM pg_proc WHERE made.kind = 'FUNCTION' AND oid = made.objid
            UNION ALL SELECT relacl FROM pg_class WHERE made.kind = 'TABLE' AND oid = made.objid
            UNION ALL SELECT attacl FROM pg_attribute WHERE made.kind = 'TABLE' AND attrelid = made.objid
        ) AS granted (acl) CROSS JOIN LATERAL aclexplode(granted.acl) AS a
        WHERE a.grantee NOT IN (owner, 0);
        EXECUTE format('REVOKE ALL ON %s %s FROM PUBLIC%s CASCADE', made.kind, made.identity, grantees);
        IF made.kind = 'SCHEMA' THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO pg_monitor', made.identity);
        END IF;
        IF made.kind = 'FUNCTION' AND made.objid = ANY (of_monitors) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pg_monitor', made.identity);
        END IF;
        again := 'yes';
    END LOOP;

    -- If a role uses the row type of a table in its own table or function, a later update can't change the table.
    -- Without an entry in typacl, PUBLIC may use a type. Array types have the privileges of their element types.
    FOR made IN
        SELECT t.oid::regtype AS identity
        FROM pg_type AS t JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = t.typrelid
        WHERE t.typnamespace = 'xdb'::regnamespace AND t.typacl IS NULL
          AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
          AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'xdb')
    LOOP
        EXECUTE format('REVOKE ALL ON TYPE %s FROM PUBLIC', made.identity);
    END LOOP;

    -- A role that may start processes is a user. With xdb.pause_engine() it is an operator, with
    -- xdb.register_process_type() a deployer. A WARNING, because notices of a script are suppressed.
    IF members <> '{}' AND again IS NOT NULL THEN
        SELECT string_agg(format('SELECT xdb.grant_usage(%L%s);', a.grantee::regrole,
            CASE
                WHEN operates AND deploys THEN ', admin => true'
                WHEN operates THEN ', operator => true'
                WHEN deploys THEN ', deployer => true'
            END), ' ' ORDER BY a.grantee::regrole::text)
        INTO again
        FROM pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        CROSS JOIN LATERAL has_function_privilege(a.grantee, 'xdb.pause_engine()', 'EXECUTE') AS operates
        CROSS JOIN LATERAL has_function_privilege(a.grantee, 'xdb.register_process_type(text, text, jsonb)', 'EXECUTE') AS deploys
        WHERE p.proname = 'start_process' AND p.pronamespace = 'xdb'::regnamespace
          AND a.grantee NOT IN (p.proowner, 0);
        IF again IS NOT NULL THEN
            RAISE WARNING 'roles that use xdb may not use yet what this update brings' USING HINT = again;
        END IF;
    END IF;
END
$body$;
