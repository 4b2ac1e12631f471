//! The application's tables and functions. They record which effects were committed, and how often.

/// Rows that the processes of [`crate::shapes::Shape::Shared`] share.
pub const SHARED_ROWS: u64 = 20;

/// Rows that the processes of [`crate::shapes::Shape::Counter`] count in.
pub const COUNTERS: u64 = 10;

/// Keys of starts that may be merged. Each has a row.
pub const MERGE_KEYS: u64 = 3;

/// Rows that functions of answers count in.
pub const TALLIES: u64 = 8;

/// Above all numbers of the worker's answers.
const FIRST_OF_FUNCTIONS: u64 = 1_000_000_000_000;

/// Creates the tables, as the role whose processes they serve.
pub fn tables() -> String {
    format!(
        "CREATE TABLE orders (request text PRIMARY KEY, process_id text NOT NULL);
         CREATE TABLE work (id text PRIMARY KEY, n int CHECK (n >= 0), effect jsonb);
         CREATE TABLE effects (number bigserial PRIMARY KEY, row_id text, effect jsonb NOT NULL);
         CREATE FUNCTION note_effect() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.effects (row_id, effect) VALUES (new.id, new.effect); RETURN NULL; END $$;
         CREATE TRIGGER note_effect AFTER INSERT OR UPDATE OF effect ON work
             FOR EACH ROW WHEN (new.effect IS NOT NULL) EXECUTE FUNCTION note_effect();
         -- What functions and pull workers write themselves, beside their answers.
         CREATE TABLE deeds (number bigserial PRIMARY KEY, call text NOT NULL, nonce bigint NOT NULL);
         CREATE SEQUENCE function_nonces START {FIRST_OF_FUNCTIONS};
         -- Starts with a correlation key that were committed.
         CREATE TABLE asked (uid text PRIMARY KEY);
         CREATE TABLE tallies (id text PRIMARY KEY, n int NOT NULL);
         -- What the forwarding process has consumed.
         CREATE TABLE forwarded (number bigserial PRIMARY KEY, key text, change jsonb NOT NULL);
         -- Effects with their executions, states and steps.
         CREATE VIEW done AS SELECT split_part(effect ->> 'call', '/', 1) AS x,
             regexp_replace(split_part(effect ->> 'call', '/', 2), '-[0-9]+$', '') AS state,
             split_part(effect ->> 'call', '/', 2) AS step, number, effect FROM effects;
         {FUNCTIONS}"
    )
}

/// Functions that answer calls. They do their deed first, and then may fail, sleep or return an answer that can't be
/// applied.
const FUNCTIONS: &str = r#"
CREATE FUNCTION add_to_tally(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS
    $$ UPDATE public.tallies SET n = n + 1 WHERE id = argument ->> 'row' $$;

CREATE FUNCTION merge_asked(pending jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ SELECT pg_catalog.jsonb_build_object('uids', (pending -> 'uids') || (new -> 'uids')) $$;

CREATE FUNCTION deed(request jsonb) RETURNS bigint LANGUAGE sql AS $$
    INSERT INTO public.deeds (call, nonce) VALUES (request #>> '{context,callId}', nextval('public.function_nonces'))
    RETURNING nonce $$;

CREATE FUNCTION effect(request jsonb, nonce bigint) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('call', request #> '{context,callId}', 'nonce', nonce, 'by', 'function', 'messages',
        (SELECT coalesce(jsonb_agg(m -> 'payload' -> 'uid'), '[]')
         FROM jsonb_path_query(request, '$.commandResults.localQueueResults[*].messages[*]') AS m)) $$;

CREATE FUNCTION wait_of(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('commandRequest', jsonb_build_object('waitingType', 'AnyOfCompletion', 'localQueueCommands',
        jsonb_build_array(jsonb_build_object('commandId', 'q' || public.deed(request), 'queueName', 'inbox')))) $$;

CREATE FUNCTION step_of(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    nonce CONSTANT bigint := public.deed(request);
    chance CONSTANT bigint := abs(hashtextextended((request #>> '{context,callId}') || (request #>> '{context,attempt}'), 0)) % 1000;
    many CONSTANT int := (request #>> '{stateInput,left}')::int;
    n CONSTANT int := coalesce((request #>> '{loadedGlobalAttributes,n}')::int, 0) + 1;
    tally CONSTANT text := 't' || nonce % (SELECT count(*) FROM public.tallies);
    state CONSTANT text := CASE request ->> 'stateId' WHEN 'Count' THEN 'Work' ELSE request ->> 'stateId' END;
    decision jsonb;
BEGIN
    IF chance < 50 THEN
        PERFORM pg_sleep(0.2);
    ELSIF chance < 120 THEN
        RAISE EXCEPTION 'by chance' USING ERRCODE = 'RK001';
    ELSIF chance < 180 THEN
        RETURN '{"stateDecision": {}}';
    END IF;
    IF many > 1 THEN
        decision := jsonb_build_object('nextStates', jsonb_build_array(jsonb_build_object('stateId', state, 'stateInput',
            jsonb_build_object('left', many - 1, 'nonce', nonce))));
    ELSE
        decision := jsonb_build_object('threadCloseDecision', jsonb_build_object('closeType', 'FORCE_COMPLETE_PROCESS',
            'closeInput', jsonb_build_object('n', n, 'nonce', nonce)));
    END IF;
    RETURN jsonb_build_object('stateDecision', decision,
        'writeToGlobalAttributes', jsonb_build_object('n', n, 'effect', public.effect(request, nonce) || jsonb_build_object('tally', tally)),
        'callFunctions', jsonb_build_array(jsonb_build_object('function', 'tally', 'argument', jsonb_build_object('row', tally))));
END $$;

-- The first of several threads ends the others.
CREATE FUNCTION race_of(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    nonce CONSTANT bigint := public.deed(request);
BEGIN
    IF nonce % 10 = 0 THEN
        PERFORM pg_sleep(0.2);
    END IF;
    RETURN jsonb_build_object('abortStates', CASE nonce % 2 WHEN 0 THEN '["*"]'::jsonb ELSE '["Runner", "Racer"]' END,
        'writeToGlobalAttributes', jsonb_build_object('effect', public.effect(request, nonce)),
        'stateDecision', jsonb_build_object('nextStates', jsonb_build_array(jsonb_build_object('stateId', 'Finish',
            'stateInput', jsonb_build_object('nonce', nonce)))));
END $$;

-- Starts the children that the input lists.
CREATE FUNCTION beget_of(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    nonce CONSTANT bigint := public.deed(request);
BEGIN
    IF nonce % 10 = 0 THEN
        PERFORM pg_sleep(0.2);
    END IF;
    RETURN jsonb_build_object('startProcesses', request #> '{stateInput,children}',
        'writeToGlobalAttributes', jsonb_build_object('effect', public.effect(request, nonce)
            || jsonb_build_object('children', request #> '{stateInput,born}')),
        'stateDecision', jsonb_build_object('nextStates', jsonb_build_array(jsonb_build_object(
            'stateId', request #> '{stateInput,then}', 'delayInSeconds', coalesce(request #> '{stateInput,delay}', '0'),
            'stateInput', jsonb_build_object('count', request #> '{stateInput,count}', 'nonce', nonce)))));
END $$;

CREATE FUNCTION forward(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.forwarded (key, change) SELECT m ->> 'key', m -> 'payload'
    FROM jsonb_array_elements(request #> '{commandResults,globalQueueResults,0,messages}') WITH ORDINALITY AS a (m, n) ORDER BY n;
    RETURN '{"stateDecision": {"nextStates": [{"stateId": "Forward"}]}}';
END $$;

CREATE FUNCTION poke_of(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    nonce CONSTANT bigint := public.deed(request);
BEGIN
    RETURN jsonb_build_object('output', jsonb_build_object('nonce', nonce),
        'writeToGlobalAttributes', jsonb_build_object('effect', public.effect(request, nonce)),
        'publishToLocalQueue', jsonb_build_array(jsonb_build_object('queueName', 'inbox', 'payload',
            jsonb_build_object('uid', request #> '{input,uid}'))));
END $$;
"#;

/// A superuser's function: since when the server has run without a crash. After a crash all of its processes are new.
pub const RUNS_SINCE: &str = "CREATE FUNCTION runs_since() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS
    $$ SELECT (extract(epoch FROM backend_start) * 1e6)::bigint FROM pg_stat_activity WHERE backend_type = 'checkpointer' $$";

/// Inserts the rows that processes share.
pub fn shared_rows() -> String {
    format!(
        "INSERT INTO work SELECT 's' || n FROM generate_series(0, {}) n
         UNION ALL SELECT 'x' || n FROM generate_series(0, {}) n
         UNION ALL SELECT 'm' || n FROM generate_series(0, {}) n;
         INSERT INTO tallies SELECT 't' || n, 0 FROM generate_series(0, {}) n",
        SHARED_ROWS - 1,
        COUNTERS - 1,
        MERGE_KEYS - 1,
        TALLIES - 1
    )
}

/// Deletes everything of a round.
pub fn cleared() -> String {
    format!("TRUNCATE orders, work, effects, deeds, asked, tallies, forwarded; {}", shared_rows())
}
