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
--   |  +- timer           HOT. A timer command; or, with seq 0, a timer of the process: see the column command
--   |  +- queue_waiter    the local queues that a waiting step wants messages of
--   |  +- global_waiter   the global queues that a waiting step wants messages of
--   |     +- global_passed_over   waiting steps that messages have to be offered to
--   +- inbox              HOT. Published and not yet received: inserted by sessions, deleted by the engine
--   +- queue_message      received and not yet consumed by a step
--   +- message_key, rpc_answer    keys that were used: the same message or RPC again has no second effect
--   +- local_attribute    what steps and RPCs have written
--   +- history_event      what happened, in order: replaying it gives all of the above
--   +- process_lock       a lock that the process waits for or has
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
--                               An RPC with EXCLUSIVE_LOCK locks it before its call. A session that may close a child
--                               with onClose locks the parent first, KEY SHARE. An answer that closes a child which
--                               its session has locked before locks the parent then
--   4. the application's tables in the order of the answers; for one answer or RPC in the order of the tables' oids. A
--                               start writes rows of 5 before: no other transaction sees them yet
--   5. message_key, then global_message_key
-- A start of children by an answer takes 1 at 4, behind the step's execution, and then 3 to 5 for the children.
-- Everything else belongs to an execution and is written under its lock, with five exceptions:
--   - Inbox rows are inserted under KEY SHARE and never updated.
--   - The close of a parent inserts timers of its running children, under its own lock. It never waits for a child.
--   - Once a global message is published, only the scheduler writes its row while it is free. A consumed message
--     belongs to the execution that has consumed it.
--   - The scheduler grants and deletes rows of process_lock, with SKIP LOCKED. Other transactions lock these rows of an
--     execution before its tasks.
--   - Rows of global_passed_over are inserted by the scheduler, by runners and by sessions, and deleted by the
--     scheduler.
-- How transactions wait for these locks:
--   - The engine takes 3 with SKIP LOCKED. If the KEY SHARE of a parent is not free, the close of the child is
--     deferred. The engine waits at 4 and 5, and for the ids of children, for at most 50 ms, a runner for 500 ms. It
--     never checks for deadlocks itself, so Postgres never cancels it for one.
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
    priority smallint NOT NULL DEFAULT 0,
    parent_id uuid,
    started_by jsonb,
    has_children boolean NOT NULL DEFAULT false,
    waiting_guards int,
    compensation jsonb,
    locks jsonb
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 2000);
-- Finds ids by their beginning under any collation.
CREATE INDEX process_execution_by_process_id ON xdb.process_execution (process_id pg_catalog.text_pattern_ops);
CREATE UNIQUE INDEX process_execution_one_running ON xdb.process_execution (process_id) WHERE status OPERATOR(pg_catalog.=) 'RUNNING';
CREATE UNIQUE INDEX process_execution_one_per_request ON xdb.process_execution (process_id, request_id)
    WHERE request_id IS NOT NULL;
CREATE INDEX process_execution_closed ON xdb.process_execution (closed_at, execution_id) WHERE closed_at IS NOT NULL AND purge_at IS NULL;
CREATE INDEX process_execution_purge ON xdb.process_execution (purge_at, execution_id) WHERE purge_at IS NOT NULL;
CREATE INDEX process_execution_closing ON xdb.process_execution (execution_id) WHERE closing IS NOT NULL;
CREATE INDEX process_execution_children ON xdb.process_execution (parent_id)
    WHERE parent_id IS NOT NULL AND status OPERATOR(pg_catalog.=) 'RUNNING';
CREATE INDEX process_execution_failed ON xdb.process_execution (closed_at, execution_id)
    WHERE status OPERATOR(pg_catalog.=) ANY (ARRAY['FAILED', 'TIMEOUT']);
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
COMMENT ON COLUMN xdb.process_execution.live_threads IS 'Threads that have not ended. A guard that waits is no thread.';
COMMENT ON COLUMN xdb.process_execution.waiting_guards IS 'How many guards wait. NULL: none.';
COMMENT ON COLUMN xdb.process_execution.compensation IS 'The steps that a compensation would undo, and how far it has come. NULL: none.';
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
COMMENT ON COLUMN xdb.process_execution.parent_id IS 'The parent: the execution whose answer started this one. Null = it has no parent.';
COMMENT ON COLUMN xdb.process_execution.started_by IS 'What else it knows of its parent: process id, step, the queue for the message at its close, what becomes of it when the parent closes. Null = it has no parent.';
COMMENT ON COLUMN xdb.process_execution.has_children IS 'Whether its answers have started other processes.';
COMMENT ON COLUMN xdb.process_execution.locks IS 'The locks that the process asks for, {name: EXCLUSIVE or SHARE}; null = none.';
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
-- Its condition names no column that a step without failures changes.
CREATE INDEX state_execution_failed ON xdb.state_execution (execution_id) WHERE last_failure IS NOT NULL;
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
COMMENT ON COLUMN xdb.task.lane IS 'Which engine process may claim the call. 0 = scheduler, 1 = runners. 2 = none: parked by a pause, or until the process has its locks. 3 = none: held after crashes.';
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
COMMENT ON TABLE xdb.timer IS 'Durable timers: process timeouts, ends of pauses, ends of processes whose parent has closed, and timer commands. A row is deleted when the timer fires or is no longer needed.';
COMMENT ON COLUMN xdb.timer.execution_id IS 'Process execution that the timer belongs to.';
COMMENT ON COLUMN xdb.timer.seq IS 'Step that waits for the timer; 0 = a timer of the process.';
COMMENT ON COLUMN xdb.timer.command IS 'Position of the command in the wait of the step, from 0. With seq 0: 0 = the timeout of the process, 1 = the end of its pause, 2 = its end after the close of its parent.';
COMMENT ON COLUMN xdb.timer.shard IS 'As in process_execution.';
COMMENT ON COLUMN xdb.timer.kind IS 'PROCESS_TIMEOUT, PROCESS_RESUME, PARENT_CLOSED, STATE_BEGINS or TIMER_COMMAND.';
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

CREATE TABLE xdb.process_lock (
    execution_id uuid NOT NULL,
    name text NOT NULL,
    mode text NOT NULL,
    status text NOT NULL,
    due_at timestamptz NOT NULL,
    granted_at timestamptz,
    judge_at timestamptz,
    owner oid NOT NULL,
    PRIMARY KEY (execution_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = off);
CREATE INDEX process_lock_in_order ON xdb.process_lock (name, status, mode, due_at, execution_id);
CREATE INDEX process_lock_to_judge ON xdb.process_lock (judge_at) WHERE judge_at IS NOT NULL;
CREATE INDEX process_lock_to_judge_of_owner ON xdb.process_lock (owner, judge_at);
COMMENT ON TABLE xdb.process_lock IS 'Locks that processes wait for or have. A process gets all of its locks at once. Only the scheduler grants.';
COMMENT ON COLUMN xdb.process_lock.execution_id IS 'Process execution that asks for the lock.';
COMMENT ON COLUMN xdb.process_lock.name IS 'Name of the lock.';
COMMENT ON COLUMN xdb.process_lock.mode IS 'EXCLUSIVE or SHARE.';
COMMENT ON COLUMN xdb.process_lock.status IS 'WAITING; GRANTED; RELEASED: the process has closed, and the scheduler deletes the row.';
COMMENT ON COLUMN xdb.process_lock.due_at IS 'When the first step of the process is due. Requests for a lock are granted in this order.';
COMMENT ON COLUMN xdb.process_lock.granted_at IS 'When the process got the lock; null while it waits.';
COMMENT ON COLUMN xdb.process_lock.judge_at IS 'When the scheduler has to look at the row; null = other rows decide about it.';
COMMENT ON COLUMN xdb.process_lock.owner IS 'Owner of the process. In the index, the locks of each owner have a range of their own.';
SELECT pg_catalog.pg_extension_config_dump('xdb.process_lock', '');

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
