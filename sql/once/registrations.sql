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
