-- Who the engine is, whose processes it has, and what is registered.

CREATE TABLE xdb.engine (
    lane smallint PRIMARY KEY CONSTRAINT engine_lane_known CHECK (lane OPERATOR(pg_catalog.=) 0 OR lane OPERATOR(pg_catalog.>=) 10 AND lane OPERATOR(pg_catalog.<=) 25),
    epoch bigint NOT NULL CONSTRAINT engine_epoch_unique UNIQUE,
    paused boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.engine (lane, epoch) VALUES (0, 1);
COMMENT ON TABLE xdb.engine IS 'This database''s engine: a row for the scheduler, and one for each runner that was ever needed.';
COMMENT ON COLUMN xdb.engine.lane IS '0 = the scheduler, 10 to 25 = the runners.';
COMMENT ON COLUMN xdb.engine.epoch IS 'Of the leases that the process gives. A new one at each of its starts, and when a runner is gone; above all others, so that no lease is ever issued twice.';
COMMENT ON COLUMN xdb.engine.paused IS 'Of the scheduler''s row, for all: whether xdb.pause_engine() was called and xdb.resume_engine() was not since.';

-- The databases whose processes these are, this one or the one it was copied from. Dumped.
CREATE TABLE xdb.instances (
    system_identifier bigint NOT NULL,
    database oid NOT NULL,
    since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    superseded_at timestamptz,
    PRIMARY KEY (system_identifier, database)
);
COMMENT ON TABLE xdb.instances IS 'The databases whose processes these are: this one, unless it is a copy that was not adopted.';
COMMENT ON COLUMN xdb.instances.system_identifier IS 'Identifier of the server''s files, as pg_control_system() shows it.';
COMMENT ON COLUMN xdb.instances.database IS 'Oid of the database.';
COMMENT ON COLUMN xdb.instances.since IS 'When it was taken into use, or adopted.';
COMMENT ON COLUMN xdb.instances.superseded_at IS 'When another database adopted the processes.';
SELECT pg_catalog.pg_extension_config_dump('xdb.instances', '');

CREATE TABLE xdb.registry (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT registry_is_one_row CHECK (singleton),
    generation bigint NOT NULL DEFAULT 1,
    -- Not dumped: what is restored, be it into the database it came from, runs only when somebody says so.
    in_use boolean NOT NULL DEFAULT false
);
INSERT INTO xdb.registry DEFAULT VALUES;
COMMENT ON TABLE xdb.registry IS 'The one row that tells the engine when to read the registrations again.';
COMMENT ON COLUMN xdb.registry.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN xdb.registry.generation IS 'Grows when an update of the extension, or somebody by hand, changes what is registered. Registrations count in registration_count; the engine looks at the sum.';
COMMENT ON COLUMN xdb.registry.in_use IS 'Whether something was registered here, or what was restored was adopted.';

-- Not dumped.
CREATE TABLE xdb.registration_count (
    slot int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    registrations bigint NOT NULL DEFAULT 1
);
COMMENT ON TABLE xdb.registration_count IS 'How often something was registered. A transaction counts in a row that no other one has locked, so that none waits for another: there are as many rows as ever were needed at one time.';
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
COMMENT ON TABLE xdb.worker IS 'Registered workers, by xdb.register_worker.';
COMMENT ON COLUMN xdb.worker.worker_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.worker.name IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.worker.url IS 'Where it listens; the paths of the worker protocol are appended. Null: it fetches its calls with xdb.claim_calls().';
COMMENT ON COLUMN xdb.worker.headers IS 'HTTP headers sent with every call to it, {name: value}. Granted to nobody.';
COMMENT ON COLUMN xdb.worker.max_concurrency IS 'Calls that may run at it at one time.';
COMMENT ON COLUMN xdb.worker.registered_at IS 'When it was registered first or last changed.';
COMMENT ON COLUMN xdb.worker.owner IS 'Role that registered it: its members and superusers may change it. Zero, or gone: superusers alone.';
COMMENT ON COLUMN xdb.worker.owner_name IS 'Name that the owner had then: by it the owner is found in another server.';
COMMENT ON COLUMN xdb.worker.secrets IS 'How many secrets sign each call to it. A dump need not have them: while one is missing, no call is made.';
COMMENT ON COLUMN xdb.worker.role IS 'Role whose members may claim its calls; null: it has a URL, or the role is gone.';
COMMENT ON COLUMN xdb.worker.role_name IS 'Name that the role had then: by it the role is found in another server.';
SELECT pg_catalog.pg_extension_config_dump('xdb.worker', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.worker_worker_id_seq', '');

-- Secrets that are in the database itself are not dumped: every reader of a dump would have them.
CREATE TABLE xdb.worker_secret (
    worker_id int NOT NULL,
    position smallint NOT NULL,
    source text NOT NULL CONSTRAINT worker_secret_source_known CHECK (source OPERATOR(pg_catalog.=) ANY (ARRAY['literal', 'env', 'file'])),
    value text NOT NULL,
    PRIMARY KEY (worker_id, position)
);
COMMENT ON TABLE xdb.worker_secret IS 'Secrets that sign the calls to workers. Granted to nobody.';
COMMENT ON COLUMN xdb.worker_secret.worker_id IS 'Worker whose calls are signed.';
COMMENT ON COLUMN xdb.worker_secret.position IS '1, or 2 while one secret takes the place of another: then calls carry the signatures of both.';
COMMENT ON COLUMN xdb.worker_secret.source IS 'literal: the value is the secret; env, file: it is in the server''s environment, or in a file below xdb.secrets_directory.';
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
COMMENT ON TABLE xdb.mapped_table IS 'Users'' tables whose columns are global attributes. Rows never change: a registration that maps otherwise makes a new mapping, and running executions keep theirs.';
COMMENT ON COLUMN xdb.mapped_table.mapping_id IS 'The mapping this table belongs to.';
COMMENT ON COLUMN xdb.mapped_table.position IS 'Place of the table in the definition.';
COMMENT ON COLUMN xdb.mapped_table.relation IS 'The table, followed through renames.';
COMMENT ON COLUMN xdb.mapped_table.table_name IS 'The table''s name as the definition spelled it.';
COMMENT ON COLUMN xdb.mapped_table.key_columns IS 'Columns that find the row.';
COMMENT ON COLUMN xdb.mapped_table.attributes IS 'Columns by attribute, {attribute: column}.';
COMMENT ON SEQUENCE xdb.mapping_id_seq IS 'Gives mapping_id.';
SELECT pg_catalog.pg_extension_config_dump('xdb.mapped_table', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.mapping_id_seq', '');

CREATE TABLE xdb.process_type (
    type_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    process_type text NOT NULL CONSTRAINT process_type_unique UNIQUE,
    -- Not a foreign key: pg_restore loads the tables in any order, and would lose the rows. Registrations lock the worker's row.
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
COMMENT ON TABLE xdb.process_type IS 'Registered process types, by xdb.register_process_type.';
COMMENT ON COLUMN xdb.process_type.type_id IS 'Key within this database.';
COMMENT ON COLUMN xdb.process_type.process_type IS 'Name it was registered under.';
COMMENT ON COLUMN xdb.process_type.worker_id IS 'Worker that implements its states and RPCs; null: functions of the database do.';
COMMENT ON COLUMN xdb.process_type.definition IS 'States, options, attributes, queues and RPCs, as registered last.';
COMMENT ON COLUMN xdb.process_type.mapping_id IS 'Global attributes of executions that start from now on; null = none.';
COMMENT ON COLUMN xdb.process_type.version IS 'Grows with every registration.';
COMMENT ON COLUMN xdb.process_type.registered_at IS 'When it was registered last.';
COMMENT ON COLUMN xdb.process_type.owner IS 'Role that registered it: its members and superusers may change it. Zero, or gone: superusers alone.';
COMMENT ON COLUMN xdb.process_type.owner_name IS 'Name that the owner had then: by it the owner is found in another server.';
COMMENT ON COLUMN xdb.process_type.pause_mode IS 'WAIT or REJECT: what becomes of requests while the type is paused; null = it is not.';
COMMENT ON COLUMN xdb.process_type.paused_until IS 'When the pause ends by itself; null = it does not.';
COMMENT ON COLUMN xdb.process_type.pause_reason IS 'Why it is paused.';
SELECT pg_catalog.pg_extension_config_dump('xdb.process_type', '');
SELECT pg_catalog.pg_extension_config_dump('xdb.process_type_type_id_seq', '');
