-- System tables. Native code alone writes them; roles read what is theirs through the views.
--
-- Lock order, kept by every transaction of the engine and of the SQL functions:
--   1. latest_execution         one process id at a time
--   2. rpc_answer               by an RPC with an idempotency key, before its call
--      then the locks on attributes of an RPC that wants some, in the order of the objects: locks of Postgres against
--      other RPCs, and a wait without a lock for the states that have them. A state's locks are rows (attribute_lock),
--      granted all at once or not at all, and nobody keeps a transaction open for them
--   3. process_execution        in the order of execution ids; publishers KEY SHARE, steps NO KEY UPDATE, a close UPDATE
--   4. users' tables            in the order of the answers; a start writes rows of 5, which nobody sees yet, before
--   5. message_key, then global_message_key
-- Everything else belongs to an execution and is written under its lock, with three exceptions. Inbox rows are inserted
-- under KEY SHARE and never updated. A global message that nobody has taken is written by the main scheduler alone, once
-- it is published; one that is taken belongs to the execution that has it. Rows of global_passed_over are written by
-- schedulers alone. The engine takes 3 with SKIP LOCKED and waits at 4 and 5 for 50 ms at most (500 ms in the lane of
-- tables that are set aside), and never looks for a deadlock itself, so it is never cancelled for one. Purging takes 1 and 3
-- with SKIP LOCKED too, for many executions in one transaction. A bulk start takes all of 1 first, in the order of the
-- process ids. Rows of attribute_lock are touched by those alone who have locked their task; rows of engine are locked in
-- the order of the lanes.
--
-- Hot and narrow: task, timer, inbox. Wide and cold: state_execution, history_event. No foreign keys between hot
-- tables: an execution's rows are written by the engine alone, under its lock. Hot tables carry shard, a hash of the
-- process id in 0..1023.
--
-- Vacuum doesn't rest on the hot tables that stay small. Those that grow with the processes that wait or are kept are left to
-- the server's pace: on millions of rows, vacuum that doesn't rest fills the WAL with whole pages. It doesn't cut the end of
-- a hot table off: everybody would wait for its lock, and the pages are used again.

CREATE TABLE xdb.engine (
    lane smallint PRIMARY KEY CONSTRAINT engine_lane_known CHECK (lane IN (0, 1)),
    epoch bigint NOT NULL CONSTRAINT engine_epoch_unique UNIQUE,
    paused boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.engine (lane, epoch) VALUES (0, 1), (1, 2);

-- The databases whose processes these are, this one or the one it was copied from. Dumped.
CREATE TABLE xdb.instances (
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    superseded_at timestamptz,
    PRIMARY KEY (system_identifier, database)
);

CREATE TABLE xdb.registry (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT registry_is_one_row CHECK (singleton),
    generation bigint NOT NULL DEFAULT 1,
    -- Not dumped: what is restored, be it into the database it came from, runs only when somebody says so.
    in_use boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.registry DEFAULT VALUES;

CREATE TABLE xdb.worker (
    worker_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL CONSTRAINT worker_name_unique UNIQUE,
    url text NOT NULL,
    secret text,
    headers jsonb,
    max_concurrency int NOT NULL DEFAULT 64 CONSTRAINT worker_concurrency_positive CHECK (max_concurrency > 0),
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

CREATE TABLE xdb.mapped_table (
    mapping_id int NOT NULL,
    position int NOT NULL,
    relation regclass NOT NULL,
    table_name text NOT NULL,
    key_columns text[] NOT NULL CONSTRAINT mapped_table_has_key CHECK (pg_catalog.cardinality(key_columns) > 0),
    attributes jsonb NOT NULL,
    PRIMARY KEY (mapping_id, position)
);
CREATE SEQUENCE xdb.mapping_id_seq AS int;

CREATE TABLE xdb.process_type (
    type_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    process_type text NOT NULL CONSTRAINT process_type_unique UNIQUE,
    worker_id int NOT NULL CONSTRAINT process_type_worker REFERENCES xdb.worker,
    definition jsonb NOT NULL,
    mapping_id int,
    version bigint NOT NULL DEFAULT 1,
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

CREATE TABLE xdb.process_execution (
    execution_id uuid PRIMARY KEY,
    shard smallint NOT NULL,
    process_id text NOT NULL,
    type_id int NOT NULL,
    process_type text NOT NULL,
    owner oid NOT NULL,
    owner_name text NOT NULL,
    status text NOT NULL CONSTRAINT process_status_known
        CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'TIMEOUT', 'TERMINATED')),
    closing text CONSTRAINT process_closing_known CHECK (closing IN ('UNCONDITIONAL', 'CONDITIONAL')),
    started_at timestamptz NOT NULL,
    closed_at timestamptz,
    timeout_at timestamptz,
    reason text,
    next_event bigint NOT NULL,
    next_state int NOT NULL,
    next_message bigint NOT NULL,
    live_threads int NOT NULL CONSTRAINT process_threads_counted CHECK (live_threads >= 0),
    completing boolean NOT NULL,
    state_numbers jsonb NOT NULL,
    mapping_id int,
    attribute_keys jsonb,
    results jsonb NOT NULL DEFAULT '[]',
    -- Null: all events are kept. Else at least so many of the last ones; with 0, none.
    history_limit int CONSTRAINT process_history_counts CHECK (history_limit >= 0),
    request_id text,
    traceparent text,
    CONSTRAINT process_closed_has_time CHECK ((status = 'RUNNING') = (closed_at IS NULL)),
    CONSTRAINT process_closed_is_still CHECK (status = 'RUNNING' OR (live_threads = 0 AND closing IS NULL)),
    CONSTRAINT process_keys_need_mapping CHECK ((mapping_id IS NULL) = (attribute_keys IS NULL))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
CREATE INDEX process_execution_by_process_id ON xdb.process_execution (process_id);
CREATE UNIQUE INDEX process_execution_one_running ON xdb.process_execution (process_id) WHERE status = 'RUNNING';
CREATE UNIQUE INDEX process_execution_one_per_request ON xdb.process_execution (process_id, request_id)
    WHERE request_id IS NOT NULL;
CREATE INDEX process_execution_closed ON xdb.process_execution (closed_at, execution_id) WHERE closed_at IS NOT NULL;
CREATE INDEX process_execution_closing ON xdb.process_execution (execution_id) WHERE closing IS NOT NULL;

CREATE TABLE xdb.latest_execution (
    process_id text PRIMARY KEY,
    execution_id uuid NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE xdb.state_execution (
    execution_id uuid NOT NULL,
    seq int NOT NULL CONSTRAINT state_seq_counts CHECK (seq > 0),
    shard smallint NOT NULL,
    state_id text NOT NULL,
    number int NOT NULL CONSTRAINT state_number_counts CHECK (number > 0),
    status text NOT NULL CONSTRAINT state_status_known
        CHECK (status IN ('WAIT_UNTIL', 'WAITING', 'EXECUTE', 'COMPLETED', 'FAILED', 'ABORTED')),
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    input jsonb,
    config jsonb,
    recovery jsonb,
    call jsonb,
    wait jsonb,
    last_failure jsonb,
    PRIMARY KEY (execution_id, seq),
    CONSTRAINT state_number_unique UNIQUE (execution_id, state_id, number),
    CONSTRAINT state_ended_has_time CHECK ((status IN ('COMPLETED', 'FAILED', 'ABORTED')) = (ended_at IS NOT NULL)),
    CONSTRAINT state_at_a_call CHECK ((status IN ('WAIT_UNTIL', 'EXECUTE')) = (call IS NOT NULL)),
    CONSTRAINT state_waiting_for_something CHECK (status <> 'WAITING' OR wait IS NOT NULL)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);

CREATE TABLE xdb.task (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    shard smallint NOT NULL,
    lane smallint NOT NULL DEFAULT 0 CONSTRAINT task_lane_known CHECK (lane IN (0, 1, 2)),  -- 2: parked, see below
    worker_id int NOT NULL,
    api text NOT NULL CONSTRAINT task_api_known CHECK (api IN ('WAIT_UNTIL_API', 'EXECUTE_API')),
    due_at timestamptz NOT NULL,
    attempt int NOT NULL DEFAULT 0 CONSTRAINT task_attempt_counts CHECK (attempt >= 0),
    first_attempt_at timestamptz,
    lease_epoch bigint NOT NULL DEFAULT 0,
    lease_number bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    PRIMARY KEY (execution_id, seq)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,
        vacuum_truncate = off);
-- The lease is not in it, so that taking and losing one stays a heap-only update.
CREATE INDEX task_claim ON xdb.task (lane, worker_id, due_at);

-- Locks on attributes that the calls of states hold or wait for, so that they do not conflict with each other. Nothing
-- is right or wrong by them: versions see to that. A row belongs to a call as its task does: granted while the task's
-- lease is good, parked while the task is in lane 2, which no claim looks at; else the call is about to ask again, and
-- its place in the queue, the ticket, is kept. Only parked and granted rows are in anybody's way.
CREATE SEQUENCE xdb.attribute_lock_ticket;
CREATE TABLE xdb.attribute_lock (
    object uuid NOT NULL,
    ticket bigint NOT NULL,
    mode text NOT NULL CONSTRAINT lock_mode_known CHECK (mode IN ('IS', 'IX', 'S', 'X')),
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    granted boolean NOT NULL,
    parked boolean NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (object, ticket),
    CONSTRAINT lock_granted_or_parked CHECK (NOT (granted AND parked))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000);
CREATE INDEX attribute_lock_of_call ON xdb.attribute_lock (execution_id, seq);
CREATE INDEX attribute_lock_granted ON xdb.attribute_lock (object) WHERE granted;
-- An expression, so that the primary key has not this order: of an object that many wait for in one mode, the planner
-- takes walking over all of them for a way to those who wait in another mode.
CREATE INDEX attribute_lock_parked ON xdb.attribute_lock (object, mode, (ticket + 0)) WHERE parked;

-- Objects that were released by others than the main scheduler, which takes them out and hands them on.
CREATE TABLE xdb.attribute_lock_release (
    release_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object uuid NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE xdb.timer (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    command int NOT NULL,
    shard smallint NOT NULL,
    kind text NOT NULL CONSTRAINT timer_kind_known CHECK (kind IN ('PROCESS_TIMEOUT', 'TIMER_COMMAND')),
    fire_at timestamptz NOT NULL,
    PRIMARY KEY (execution_id, seq, command),
    CONSTRAINT timer_of_process_or_state CHECK ((kind = 'PROCESS_TIMEOUT') = (seq = 0))
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
CREATE INDEX timer_due ON xdb.timer (fire_at);

CREATE TABLE xdb.inbox (
    inbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    execution_id uuid NOT NULL,
    shard smallint NOT NULL,
    queue_name text NOT NULL,
    message_id text,
    payload jsonb,
    bytes int NOT NULL CONSTRAINT inbox_bytes_counted CHECK (bytes >= 0),
    published_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX inbox_of_execution ON xdb.inbox (execution_id, inbox_id);

CREATE TABLE xdb.message_key (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    message_id text NOT NULL,
    PRIMARY KEY (execution_id, queue_name, message_id)
);

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

CREATE TABLE xdb.queue_waiter (
    execution_id uuid NOT NULL,
    queue_name text NOT NULL,
    wait_order bigint NOT NULL,
    seq int NOT NULL,
    PRIMARY KEY (execution_id, queue_name, wait_order, seq)
);

-- number is the place in the order: a message that is given back keeps it. fresh is set while the main scheduler has
-- not offered the message to those who wait. Owner is the role that published it.
CREATE TABLE xdb.global_message (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name text NOT NULL,
    key text,
    message_id text,
    payload jsonb,
    bytes int NOT NULL CONSTRAINT global_message_bytes_counted CHECK (bytes >= 0),
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
        (taken_by IS NULL) = (taken_seq IS NULL) AND (taken_by IS NULL) = (taken_command IS NULL)
        AND (taken_by IS NULL) = (taken_at IS NULL)),
    CONSTRAINT global_message_fresh_is_free CHECK (NOT fresh OR taken_by IS NULL)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000);
-- Expressions, so that no other index has these orders: while a great many messages are in one queue, the planner
-- takes walking over all of them, by whatever index has the order, for a way to those of another queue or key.
CREATE INDEX global_message_fresh ON xdb.global_message ((number + 0)) WHERE fresh;
CREATE INDEX global_message_free ON xdb.global_message (queue_name, (number + 0)) WHERE taken_by IS NULL;
CREATE INDEX global_message_free_by_key ON xdb.global_message (queue_name, key, (number - 0))
    WHERE taken_by IS NULL AND key IS NOT NULL;
CREATE INDEX global_message_taken ON xdb.global_message (taken_by, taken_seq) WHERE taken_by IS NOT NULL;
CREATE INDEX global_message_expiring ON xdb.global_message (expires_at)
    WHERE taken_by IS NULL AND expires_at IS NOT NULL;
CREATE INDEX global_message_by_id ON xdb.global_message (queue_name, message_id) WHERE message_id IS NOT NULL;

-- Message ids that were used, for as long as the message is there and for xdb.retention.
CREATE TABLE xdb.global_message_key (
    queue_name text NOT NULL,
    message_id text NOT NULL,
    published_at timestamptz NOT NULL,
    PRIMARY KEY (queue_name, message_id)
);
CREATE INDEX global_message_key_old ON xdb.global_message_key (published_at, queue_name, message_id);

-- wait_order is the order of waiting, over all executions. at_least tells whom it is no use to ask.
CREATE TABLE xdb.global_waiter (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    command int NOT NULL,
    queue_name text NOT NULL,
    key text,
    at_least bigint NOT NULL CONSTRAINT global_waiter_wants_messages CHECK (at_least > 0),
    wait_order bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (execution_id, seq, command)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 1000);
CREATE INDEX global_waiter_in_order ON xdb.global_waiter (queue_name, key, at_least, wait_order);

-- States that were not asked when messages came, because somebody had locked their execution, or that began to wait in the
-- other lane. Apart from global_waiter, whose rows the one who holds the execution may have deleted: only inserting here
-- never waits for him.
CREATE TABLE xdb.global_passed_over (
    execution_id uuid NOT NULL,
    seq int NOT NULL,
    PRIMARY KEY (execution_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE xdb.rpc_answer (
    execution_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    answered_at timestamptz NOT NULL,
    output jsonb,
    PRIMARY KEY (execution_id, idempotency_key)
);

CREATE TABLE xdb.local_attribute (
    execution_id uuid NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    PRIMARY KEY (execution_id, key)
) WITH (fillfactor = 80);

CREATE TABLE xdb.history_event (
    execution_id uuid NOT NULL,
    event_id bigint NOT NULL,
    event_time timestamptz NOT NULL,
    event_type text NOT NULL,
    details jsonb NOT NULL,
    PRIMARY KEY (execution_id, event_id)
);

CREATE TABLE xdb.purged (
    execution_id uuid PRIMARY KEY
);

CREATE TABLE xdb.set_aside (
    relation regclass PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    reason text NOT NULL
);
