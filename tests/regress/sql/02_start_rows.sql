-- A start over a row that is there updates it, leaves it or refuses it, and does nothing else of an INSERT: what the table
-- demands of a new row concerns rows that are not there. The engine is paused: what has started stays RUNNING.
\set SHOW_CONTEXT never
SELECT xdb.pause_engine();

CREATE ROLE golden_over;
SELECT xdb.grant_usage('golden_over', deployer => true);
CREATE SCHEMA golden_over;
GRANT USAGE ON SCHEMA golden_over TO golden_over;
SET search_path = golden_over, public;

-- A type that maps attribute "a" to a column of the table; and a start of it.
CREATE FUNCTION golden_map(of_table text, key text, maps text) RETURNS void LANGUAGE sql AS $$
    SELECT xdb.register_process_type('Over ' || of_table, 'over', jsonb_build_object('globalAttributes', jsonb_build_array(jsonb_build_object(
        'table', 'golden_over.' || of_table, 'primaryKey', string_to_array(key, ','), 'attributes', jsonb_build_object('a', maps))))) $$;
CREATE FUNCTION golden_start(of_table text, key jsonb, a text, mode text DEFAULT 'OVERRIDE_ON_CONFLICT') RETURNS boolean LANGUAGE sql AS $$
    SELECT xdb.start_process(NULL, 'Over ' || of_table, global_attributes => jsonb_build_object('a', a),
        options => jsonb_build_object('globalAttributeConflictMode', mode,
            'globalAttributeKeys', jsonb_build_object('golden_over.' || of_table, key))) IS NOT NULL $$;
-- All that an error says.
CREATE FUNCTION golden_error(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE state text; says text; detail text; of_schema text; of_table text; of_constraint text;
BEGIN
    EXECUTE sql;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, says = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        of_schema = SCHEMA_NAME, of_table = TABLE_NAME, of_constraint = CONSTRAINT_NAME;
    RETURN concat_ws(' | ', state, says, detail, of_schema, of_table, of_constraint);
END $$;
SET ROLE golden_over;
SELECT xdb.register_worker('over', 'http://127.0.0.1:1');
RESET ROLE;

-- Columns that a new row must have, what they are checked for, a key and a number that the table makes itself, and triggers.
CREATE TABLE demanding (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text,
    customer text NOT NULL, amount int CHECK (amount IS NOT NULL), number serial, twice int GENERATED ALWAYS AS (amount * 2) STORED);
INSERT INTO demanding (status, customer, amount) VALUES ('old', 'ada', 1), ('old', 'bob', 2);
CREATE FUNCTION golden_tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE '% % %', TG_WHEN, TG_OP, TG_LEVEL; RETURN NEW; END $$;
CREATE TRIGGER row_is_made BEFORE INSERT ON demanding FOR EACH ROW EXECUTE FUNCTION golden_tell();
CREATE TRIGGER rows_are_made BEFORE INSERT ON demanding EXECUTE FUNCTION golden_tell();
CREATE TRIGGER rows_were_made AFTER INSERT ON demanding EXECUTE FUNCTION golden_tell();
-- It needs no privilege for INSERT either, nor the sequence's: neither to register nor to start.
GRANT SELECT (id, status), UPDATE (status) ON demanding TO golden_over;
SET ROLE golden_over;
SELECT golden_map('demanding', 'id', 'status');
SELECT golden_start('demanding', '{"id": 1}', 'new');
SELECT golden_start('demanding', '{"id": 2}', 'new', 'IGNORE_CONFLICT');
SELECT golden_error($$SELECT golden_start('demanding', '{"id": 2}', 'new', 'RETURN_ERROR_ON_CONFLICT')$$) AS refused;
RESET ROLE;
SELECT id, status, customer, amount, number, twice FROM demanding ORDER BY id;

-- Many starts at a time, among them two of one row; and a start that is repeated writes nothing.
SET ROLE golden_over;
SELECT count(*) AS started FROM xdb.start_processes('[
    {"process_id": "over-1", "process_type": "Over demanding", "global_attribute_pk": "1", "global_attributes": {"a": "first"}},
    {"process_id": "over-2", "process_type": "Over demanding", "global_attribute_pk": "1", "global_attributes": {"a": "second"}},
    {"process_id": "over-3", "process_type": "Over demanding", "global_attribute_pk": "2", "global_attributes": {"a": "left"},
        "options": {"globalAttributeConflictMode": "IGNORE_CONFLICT"}}]');
SELECT xdb.start_process('over-request', 'Over demanding', global_attribute_pk => '2', global_attributes => '{"a": "once"}',
    options => '{"requestId": "r"}') IS NOT NULL AS started;
SELECT xdb.start_process('over-request', 'Over demanding', global_attribute_pk => '2', global_attributes => '{"a": "twice"}',
    options => '{"requestId": "r"}') IS NOT NULL AS started;
RESET ROLE;
SELECT id, status FROM demanding ORDER BY id;
-- No number was used up since.
SELECT last_value, is_called FROM demanding_number_seq;

-- A row that is not there is inserted, with all that this takes.
SET ROLE golden_over;
SELECT golden_start('demanding', '{"id": 3}', 'new');
RESET ROLE;
GRANT INSERT ON demanding TO golden_over;
SET ROLE golden_over;
SELECT golden_start('demanding', '{"id": 3}', 'new', 'IGNORE_CONFLICT');
RESET ROLE;
CREATE TABLE asking (id int PRIMARY KEY, status text, customer text NOT NULL, number serial);
GRANT SELECT, INSERT, UPDATE ON asking TO golden_over;
SET ROLE golden_over;
SELECT golden_map('asking', 'id', 'status');
SELECT golden_start('asking', '{"id": 1}', 'new');
RESET ROLE;
GRANT USAGE ON SEQUENCE asking_number_seq TO golden_over;
SET ROLE golden_over;
SELECT golden_start('asking', '{"id": 1}', 'new', 'RETURN_ERROR_ON_CONFLICT');
RESET ROLE;
ALTER TABLE asking ALTER customer SET DEFAULT 'nobody yet';
SET ROLE golden_over;
SELECT golden_start('asking', '{"id": 1}', 'new', mode) FROM unnest('{RETURN_ERROR_ON_CONFLICT,IGNORE_CONFLICT}'::text[]) AS mode;
SELECT golden_start('asking', '{"id": 2}', 'new', 'IGNORE_CONFLICT');
SELECT golden_start('asking', '{"id": 3}', 'new');
SELECT golden_start('asking', '{"id": 1}', 'new', 'RETURN_ERROR_ON_CONFLICT');
RESET ROLE;
SELECT id, status, customer FROM asking ORDER BY id;

-- The needed privileges depend on the effect: for a row that stays unchanged, only SELECT on its key.
REVOKE ALL ON asking FROM golden_over;
SET ROLE golden_over;
SELECT golden_start('asking', '{"id": 1}', 'x', 'IGNORE_CONFLICT');
RESET ROLE;
GRANT SELECT (id) ON asking TO golden_over;
SET ROLE golden_over;
SELECT golden_start('asking', '{"id": 1}', 'x', 'IGNORE_CONFLICT');
SELECT golden_start('asking', '{"id": 1}', 'x');
SELECT golden_start('asking', '{"id": 1}', 'x', 'RETURN_ERROR_ON_CONFLICT');
RESET ROLE;
-- A mapped column may be one that no statement can write.
GRANT SELECT, UPDATE ON demanding TO golden_over;
SET ROLE golden_over;
SELECT xdb.register_process_type('Over twice', 'over', '{"globalAttributes": [{"table": "golden_over.demanding", "primaryKey": "id", "attributes": {"a": "twice"}}]}');
SELECT xdb.start_process(NULL, 'Over twice', global_attribute_pk => '1', global_attributes => '{"a": 7}',
    options => '{"globalAttributeConflictMode": "IGNORE_CONFLICT"}') IS NOT NULL AS started;
SELECT xdb.start_process(NULL, 'Over twice', global_attribute_pk => '1', global_attributes => '{"a": 7}');
RESET ROLE;

-- Row-level security: a policy for INSERT says nothing of rows that are there, and one for UPDATE may exclude them.
CREATE TABLE guarded (id int PRIMARY KEY, status text, owner text DEFAULT current_user, customer text);
INSERT INTO guarded VALUES (1, 'old', 'golden_over'), (2, 'old', 'another'), (3, 'old', 'hidden');
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON guarded FOR SELECT USING (owner <> 'hidden');
CREATE POLICY changed ON guarded FOR UPDATE USING (owner = current_user);
CREATE POLICY made ON guarded FOR INSERT WITH CHECK (customer IS NOT NULL);
GRANT SELECT, INSERT, UPDATE ON guarded TO golden_over;
SET ROLE golden_over;
SELECT golden_map('guarded', 'id', 'status');
SELECT golden_start('guarded', '{"id": 1}', 'new');
SELECT golden_start('guarded', '{"id": 1}', 'newer', 'IGNORE_CONFLICT');
SELECT golden_start('guarded', '{"id": 1}', 'newer', 'RETURN_ERROR_ON_CONFLICT');
SELECT golden_start('guarded', '{"id": 2}', 'new');
SELECT golden_start('guarded', '{"id": 4}', 'new');
-- A row that a policy hides is Postgres' error: it is said to be there no more than an INSERT says it.
RESET ROLE;
DROP POLICY made ON guarded;
CREATE POLICY made ON guarded FOR INSERT WITH CHECK (true);
SET ROLE golden_over;
SELECT golden_start('guarded', '{"id": 3}', 'new');
SELECT golden_start('guarded', '{"id": 3}', 'new', 'IGNORE_CONFLICT');
SELECT golden_start('guarded', '{"id": 3}', 'new', 'RETURN_ERROR_ON_CONFLICT');
INSERT INTO guarded (id, status) VALUES (3, 'new');
SELECT golden_start('guarded', '{"id": 4}', 'new');
RESET ROLE;
SELECT id, status, owner FROM guarded ORDER BY id;

-- Rules, with which Postgres takes no ON CONFLICT.
CREATE TABLE ruled (id int PRIMARY KEY, status text);
CREATE TABLE noted (what text);
INSERT INTO ruled VALUES (1, 'old');
CREATE RULE note_insert AS ON INSERT TO ruled DO ALSO INSERT INTO noted VALUES ('inserted ' || NEW.id);
CREATE RULE note_update AS ON UPDATE TO ruled DO ALSO INSERT INTO noted VALUES ('updated ' || NEW.id);
GRANT SELECT, INSERT, UPDATE ON ruled, noted TO golden_over;
SET ROLE golden_over;
SELECT golden_map('ruled', 'id', 'status');
SELECT golden_start('ruled', '{"id": 1}', 'new');
SELECT golden_start('ruled', '{"id": 1}', 'newer', 'IGNORE_CONFLICT');
SELECT golden_start('ruled', '{"id": 1}', 'newer', 'RETURN_ERROR_ON_CONFLICT');
SELECT golden_start('ruled', '{"id": 2}', 'new');
SELECT golden_start('ruled', '{"id": 3}', 'new', 'IGNORE_CONFLICT');
RESET ROLE;
SELECT * FROM ruled ORDER BY id;
SELECT * FROM noted;
CREATE RULE keep_out AS ON INSERT TO ruled DO INSTEAD NOTHING;
SET ROLE golden_over;
SELECT golden_start('ruled', '{"id": 4}', 'new');
RESET ROLE;

-- Triggers that suppress what would be written. A row that has the values already is as it should be.
CREATE TABLE kept (id int PRIMARY KEY, status text, place point);
INSERT INTO kept VALUES (1, 'old', '(1,2)');
CREATE FUNCTION golden_suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER suppress_redundant BEFORE UPDATE ON kept FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
GRANT SELECT, INSERT, UPDATE ON kept TO golden_over;
SET ROLE golden_over;
SELECT golden_map('kept', 'id', 'status');
SELECT golden_start('kept', '{"id": 1}', 'old');
SELECT golden_start('kept', '{"id": 1}', NULL);
SELECT golden_start('kept', '{"id": 1}', NULL);
SELECT golden_start('kept', '{"id": 1}', 'old');
SELECT xdb.register_process_type('Over place', 'over', '{"globalAttributes": [{"table": "golden_over.kept", "primaryKey": "id", "attributes": {"a": "place"}}]}');
SELECT xdb.start_process(NULL, 'Over place', global_attribute_pk => '1', global_attributes => '{"a": "(1,2)"}') IS NOT NULL AS started;
RESET ROLE;
CREATE TRIGGER veto BEFORE UPDATE OR INSERT ON kept FOR EACH ROW WHEN (NEW.status = 'vetoed') EXECUTE FUNCTION golden_suppress();
SET ROLE golden_over;
SELECT golden_start('kept', '{"id": 1}', 'vetoed');
SELECT golden_start('kept', '{"id": 2}', 'vetoed');
SELECT golden_start('kept', '{"id": 2}', 'vetoed', 'RETURN_ERROR_ON_CONFLICT');
SELECT golden_start('kept', '{"id": 2}', 'vetoed', 'IGNORE_CONFLICT');
SELECT golden_start('kept', '{"id": 2}', 'new');
RESET ROLE;
SELECT * FROM kept ORDER BY id;

-- Keys of several columns in another order than the index, in partitions, as domains and in types that round. The error is that of
-- Postgres, with the key as it is stored.
CREATE DOMAIN room_name AS varchar(8) CHECK (VALUE <> 'none');
CREATE TABLE slots (day date, "the room" room_name, price numeric(6,2), status text, customer text NOT NULL,
    PRIMARY KEY (day, "the room", price)) PARTITION BY RANGE (day);
CREATE TABLE slots_1 PARTITION OF slots FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE slots_2 PARTITION OF slots FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO slots VALUES ('2026-01-05', 'a', 1.50, 'old', 'ada');
GRANT SELECT, INSERT, UPDATE ON slots, slots_1 TO golden_over;
SET ROLE golden_over;
SELECT golden_map('slots', 'the room,price,day', 'status');
SELECT golden_start('slots', '{"the room": "a", "price": "1.499", "day": "2026-01-05"}', 'new');
SELECT golden_start('slots', '{"the room": "a", "price": "1.5", "day": "2026-01-05"}', 'newer', 'IGNORE_CONFLICT');
SELECT golden_error($$SELECT golden_start('slots', '{"the room": "a", "price": "1.501", "day": "2026-01-05"}', 'newer', 'RETURN_ERROR_ON_CONFLICT')$$) AS refused;
SELECT golden_start('slots', '{"the room": "a", "price": "2", "day": "2026-01-05"}', 'new');
SELECT golden_start('slots', '{"the room": "none", "price": "2", "day": "2026-01-05"}', 'new');
SELECT golden_start('slots', '{"the room": "much too long", "price": "2", "day": "2026-01-05"}', 'new');
SELECT golden_start('slots', '{"the room": "a", "price": "2", "day": "2026-05-05"}', 'new');
RESET ROLE;
SELECT * FROM slots;

-- A unique key that is no constraint, beside a deferrable one of another column.
CREATE TABLE listed (id char(4), place int UNIQUE DEFERRABLE INITIALLY DEFERRED, status text, customer text NOT NULL DEFAULT 'x');
CREATE UNIQUE INDEX listed_by_id ON listed (id) INCLUDE (status);
INSERT INTO listed VALUES ('ab', 1, 'old', 'ada');
GRANT SELECT, INSERT, UPDATE ON listed TO golden_over;
SET ROLE golden_over;
SELECT golden_map('listed', 'id', 'status');
SELECT golden_start('listed', '{"id": "ab"}', 'new');
SELECT golden_start('listed', '{"id": "cd"}', 'new');
SELECT golden_error($$SELECT golden_start('listed', '{"id": "cd"}', 'newer', 'RETURN_ERROR_ON_CONFLICT')$$) AS refused;
RESET ROLE;
SELECT * FROM listed ORDER BY id;

SELECT count(xdb.stop_process(process_id)) > 0 AS stopped FROM xdb.processes WHERE process_type LIKE 'Over %' AND status = 'RUNNING';
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA golden_over CASCADE;
RESET client_min_messages;
