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
