//! The extension in databases with the settings and default privileges of other owners. It works there as in any other
//! database.

use std::collections::BTreeSet;
use xdb_cluster_tests::catalog::schema;
use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// All privileges in the catalog, including those of the application's roles.
fn privileges(db: &mut Db) -> BTreeSet<String> {
    db.run("SET search_path = pg_catalog");
    schema(db).into_iter().filter(|fact| fact.contains("privilege ")).collect()
}

/// The JSON value of an expression, or the SQLSTATE of its error. Repeats the query if it fails to serialize.
fn asked(db: &mut Db, sql: &str) -> Result<Value, String> {
    let text = db.again(|db| db.try_one::<Option<String>>(&format!("SELECT ({sql})::text")));
    let text = text.map_err(|error| error.code)?;
    Ok(text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("it is JSON")))
}

/// Registers a type without a worker.
fn register(app: &App, process_type: &str, definition: &Definition) {
    app.superuser()
        .run(&format!("SELECT xdb.register_process_type('{process_type}', NULL, {})", jsonb(definition.json())));
}

#[test]
fn a_process_runs_in_a_hostile_database() {
    let app = App::hostile("hostile_process");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(call.global("n"))),
        (Api::WaitUntil, _) => all_of(&[local_queue("m", "inbox", 1), timer("t", 0.1)]),
        _ => graceful_complete(json!(call.messages("m"))).globals(json!({"n": 7})).locals(json!({"kept": "yes"})),
    });
    let definition = mailbox().maps("public.counters", "id", &["n"]);
    app.register("mail", &definition.rpc("look", json!({"loadGlobalAttributes": {"policy": "ALL"}})));
    let mut db = app.db();
    assert_eq!(db.text("SHOW default_transaction_isolation"), "serializable");
    db.start("p", "mail").key("Äpfel 10").globals(json!({"n": 5})).go();
    assert_eq!(asked(&mut db, "xdb.invoke_rpc('p', 'look')"), Ok(json!(5)));
    db.repeated("SELECT xdb.publish('p', 'inbox', '\"hello\"')");
    assert_eq!(db.completes("p").result(), &json!(["hello"]));
    assert_eq!(db.one::<i32>("SELECT n FROM public.counters WHERE id = 'Äpfel 10'"), 7);
    assert_eq!(db.json("SELECT xdb.get_local_attributes('p')"), json!({"kept": "yes"}));
    for view in ["processes", "state_executions", "waits", "timers", "queue_messages", "failures", "history", "workers"]
    {
        db.one::<i64>(&format!("SELECT count(*) FROM xdb.{view}"));
    }
    // They are two, also where texts are compared without regard to case.
    for id in ["a", "A"] {
        db.start(id, "mail").key(id).go();
    }
    let ended = "SELECT json_agg(array[process_id, stopped::text, error_code] ORDER BY n)
        FROM xdb.stop_process(ARRAY['A', 'p', 'a', 'none', 'B']) WITH ORDINALITY AS e (process_id, stopped, error_code, error, n)";
    let of_each = |id: &str, stopped: &str, code: Option<&str>| json!([id, stopped, code]);
    assert_eq!(
        asked(&mut db, ended),
        Ok(json!([
            of_each("A", "true", None),
            of_each("p", "false", Some(codes::NOT_RUNNING)),
            of_each("a", "true", None),
            of_each("none", "false", Some(codes::UNKNOWN_PROCESS)),
            of_each("B", "false", Some(codes::UNKNOWN_PROCESS)),
        ]))
    );
    // A plain role sees that the engine runs, and no figures.
    let shown =
        "SELECT concat_ws(' ', state, in_flight IS NULL, backlog IS NULL, engine_pid IS NOT NULL) FROM xdb.status()";
    assert_eq!(db.text(shown), "running t t t");
    assert_eq!(app.session("boss").text(shown), "running f f t");
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT * FROM xdb.status()");
    app.done(&[]);
}

#[test]
fn a_start_finds_the_row_that_is_there_in_a_hostile_database() {
    let app = App::hostile("hostile_starts");
    // The default privileges have given more.
    app.superuser().run(
        "CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text, customer text);
         CREATE TABLE public.tickets (id int PRIMARY KEY, status text, customer text NOT NULL);
         INSERT INTO public.orders (status, customer) VALUES ('old', 'ada');
         INSERT INTO public.tickets VALUES (1, 'old', 'ada');
         REVOKE ALL ON public.orders, public.tickets FROM app;
         GRANT SELECT (id, status), UPDATE (status) ON public.orders, public.tickets TO app",
    );
    let mut db = app.db();
    for table in ["orders", "tickets"] {
        register(&app, table, &Definition::without_start().maps(&format!("public.{table}"), "id", &["status"]));
        let mut start = |status: &str, options: Value| {
            let start = db.start(table, table).key("1").globals(json!({"status": status}));
            let started = start.reuse("TERMINATE_IF_RUNNING").options(options).try_go().map_err(|error| error.code);
            (started, db.text(&format!("SELECT status FROM public.{table} WHERE id = 1")))
        };
        let mode = |mode: &str| json!({"globalAttributeConflictMode": mode});
        let (started, status) = start("new", json!({}));
        assert_eq!((started.is_ok(), &*status), (true, "new"), "{table}: {started:?}");
        let (started, status) = start("left", mode("IGNORE_CONFLICT"));
        assert_eq!((started.is_ok(), &*status), (true, "new"), "{table}: {started:?}");
        let (started, status) = start("refused", mode("RETURN_ERROR_ON_CONFLICT"));
        assert_eq!((started, &*status), (Err(codes::UNIQUE_VIOLATION.to_owned()), "new"), "{table}");
        let (first, status) = start("once", json!({"requestId": "r"}));
        assert_eq!((first.is_ok(), &*status), (true, "once"), "{table}: {first:?}");
        assert_eq!(start("twice", json!({"requestId": "r"})), (first, status), "{table}");
        let many = json!([{"process_id": format!("{table}-many"), "process_type": table, "global_attribute_pk": "1",
            "global_attributes": {"status": "many"}}]);
        db.run(&format!("SELECT xdb.start_processes({})", jsonb(&many)));
        assert_eq!(db.text(&format!("SELECT status FROM public.{table}")), "many");
        db.repeated(&format!("SELECT xdb.stop_process(ARRAY['{table}', '{table}-many'])"));
    }
    app.done(&[]);
}

const WAYS: [&str; 4] = ["http", "function", "rpc", "claimed"];
const LOCKS: [&str; 3] = ["NO_LOCKING", "SHARE_LOCK", "EXCLUSIVE_LOCK"];

/// Loads the row `r` of a table under a lock in a state or RPC, and writes these values: over HTTP, by a function, and
/// by a pull worker. Checks that each way gives the loaded values, or the SQLSTATE of the error.
fn by_each_way(app: &App, table: &str, lock: &str, written: &Value, expected: &Result<Value, String>) {
    let mut db = app.db();
    for way in WAYS {
        let process = format!("{way} {lock} {table}");
        let mut config =
            json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}, "executeApiRetryPolicy": attempts(1)});
        if way == "function" {
            config["executeFunction"] = json!("public.answers");
        }
        let definition = match way {
            "rpc" => Definition::without_start()
                .rpc("Write", json!({"loadGlobalAttributes": config["loadGlobalAttributes"]})),
            _ => Definition::starting_with("Write").step_with("Write", config),
        };
        let worker = if way == "claimed" { "claims" } else { "stub" };
        app.register_with(worker, &process, &definition.maps(&format!("public.{table}"), "id", &["status"]));
        db.start(&process, &process).key("r").input(if way == "rpc" { Value::Null } else { written.clone() }).go();
        let result = match way {
            "rpc" => asked(&mut db, &format!("xdb.invoke_rpc('{process}', 'Write', {})", jsonb(written))),
            "claimed" => {
                let (token, loaded) = claimed(&mut db);
                let answer = force_complete(loaded).globals(written.clone());
                let completed = db
                    .again(|db| db.try_run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()))));
                completed.map(|()| db.completes(&process).result().clone()).map_err(|error| {
                    db.repeated(&format!("SELECT xdb.fail_call('{token}', '{{\"final\": true}}')"));
                    error.code
                })
            }
            _ => match db.outcome(&process) {
                outcome if outcome.status() == "COMPLETED" => Ok(outcome.result().clone()),
                _ => Err(db.text(&format!("SELECT sql_state FROM xdb.failures WHERE process_id = '{process}'"))),
            },
        };
        assert_eq!(result, *expected, "{process}");
        if way == "rpc" {
            db.repeated(&format!("SELECT xdb.stop_process('{process}')"));
        }
    }
}

/// The token of the only due call, and the values that it has loaded. Claims need READ COMMITTED.
fn claimed(db: &mut Db) -> (String, Value) {
    db.refused("0A000", "SELECT FROM xdb.claim_calls('claims')");
    db.run("BEGIN ISOLATION LEVEL READ COMMITTED");
    let claim = "SELECT jsonb_build_array(token, request->'loadedGlobalAttributes') FROM xdb.claim_calls('claims', wait => '20 s')";
    let call = db.json(claim);
    db.run("COMMIT");
    (call[0].as_str().expect("a text").to_owned(), call[1].clone())
}

#[test]
fn rows_are_locked_and_written_as_anywhere_in_a_hostile_database() {
    let app = App::hostile("hostile_rows");
    let _worker = app.worker(|call: &Call| {
        let (loaded, written) = (call.body["loadedGlobalAttributes"].clone(), call.input().clone());
        if call.api == Api::Rpc { output(loaded).globals(written) } else { force_complete(loaded).globals(written) }
    });
    app.superuser().run(
        "SELECT xdb.register_worker('claims', NULL, role => 'app');
         CREATE TABLE public.items (id text PRIMARY KEY, status text);
         CREATE TRIGGER z BEFORE UPDATE ON public.items FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
         CREATE TABLE public.vetoed (LIKE public.items INCLUDING ALL);
         CREATE RULE none AS ON UPDATE TO public.vetoed DO INSTEAD NOTHING;
         CREATE TABLE public.people (id text PRIMARY KEY, status text, salary numeric);
         CREATE TABLE public.docs (id text PRIMARY KEY, status text, editor text DEFAULT 'ada');
         ALTER TABLE public.docs ENABLE ROW LEVEL SECURITY;
         CREATE POLICY r ON public.docs FOR SELECT USING (true);
         CREATE POLICY w ON public.docs FOR UPDATE USING (editor = current_user);
         INSERT INTO public.items VALUES ('r', 'same');
         INSERT INTO public.vetoed VALUES ('r', 'same');
         INSERT INTO public.people VALUES ('r', 'same', 9);
         INSERT INTO public.docs VALUES ('r', 'same');
         REVOKE ALL ON public.people FROM app;
         GRANT SELECT (id, status), INSERT (id, status), UPDATE (status) ON public.people TO app",
    );
    app.db().run(
        "CREATE FUNCTION public.answers(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT jsonb_build_object('writeToGlobalAttributes', request -> 'stateInput',
                 'stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
                     'closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput', request -> 'loadedGlobalAttributes'))) $$",
    );
    let (same, other) = (json!({"status": "same"}), json!({"status": "other"}));
    let code = |code: &str| Err::<Value, _>(code.to_owned());
    for lock in LOCKS {
        by_each_way(&app, "items", lock, &same, &Ok(same.clone()));
        by_each_way(&app, "people", lock, &same, &Ok(same.clone()));
    }
    by_each_way(&app, "vetoed", "NO_LOCKING", &other, &code("09000"));
    // A row that is visible. A policy hides it from locks and from writes.
    let nothing = json!({});
    by_each_way(&app, "docs", "NO_LOCKING", &nothing, &Ok(same.clone()));
    let hidden = code(codes::INSUFFICIENT_PRIVILEGE);
    by_each_way(&app, "docs", "NO_LOCKING", &other, &hidden);
    for lock in &LOCKS[1..] {
        by_each_way(&app, "docs", lock, &nothing, &hidden);
    }
    app.done(&[]);
}

#[test]
fn a_key_counts_for_one_rpc_and_one_input_in_a_hostile_database() {
    let app = App::hostile("hostile_keys");
    app.superuser().run(
        "CREATE TABLE public.moved (what text);
         CREATE FUNCTION public.deposit(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             INSERT INTO public.moved VALUES ('deposit') RETURNING '{\"output\": \"deposited\", \"writeToLocalAttributes\": {\"deposited\": true}}'::jsonb $$;
         CREATE FUNCTION public.withdraw(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             INSERT INTO public.moved VALUES ('withdraw') RETURNING '{\"output\": \"withdrawn\", \"writeToLocalAttributes\": {\"withdrawn\": true}}'::jsonb $$",
    );
    let rpc = |name: &str| json!({"function": format!("public.{name}")});
    register(
        &app,
        "account",
        &Definition::without_start().rpc("deposit", rpc("deposit")).rpc("withdraw", rpc("withdraw")),
    );
    let mut db = app.db();
    db.start("a", "account").go();
    let mut call = |rpc: &str, input: i32, key: &str| {
        asked(&mut db, &format!("xdb.invoke_rpc('a', '{rpc}', '{input}', idempotency_key => '{key}')"))
    };
    let refused = Err(codes::KEY_REUSED.to_owned());
    assert_eq!(call("deposit", 1, "click"), Ok(json!("deposited")));
    assert_eq!(call("withdraw", 5, "click"), refused);
    assert_eq!(call("deposit", 2, "click"), refused);
    assert_eq!(call("deposit", 1, "click"), Ok(json!("deposited")));
    // It is another key, also where texts are sorted without regard to case.
    assert_eq!(call("withdraw", 5, "Click"), Ok(json!("withdrawn")));
    assert_eq!(db.json("SELECT xdb.get_local_attributes('a')"), json!({"deposited": true, "withdrawn": true}));
    assert_eq!(db.all::<String>("SELECT what FROM public.moved"), ["deposit", "withdraw"]);

    // If several sessions use a key at once, only one of them calls the worker.
    at_once(4, |_| {
        let result = asked(&mut app.db(), "xdb.invoke_rpc('a', 'deposit', '1', idempotency_key => 'at once')");
        assert_eq!(result, Ok(json!("deposited")));
    });
    assert_eq!(db.count("public.moved"), 3);
    db.repeated("SELECT xdb.stop_process('a')");
    app.done(&[]);
}

#[test]
fn functions_are_called_by_their_argument_types_in_a_hostile_database() {
    let app = App::hostile("hostile_functions");
    let close = r#"{"stateDecision": {"threadCloseDecision": {"closeType": "GRACEFUL_COMPLETE_PROCESS", "closeInput": "it"}}, "callFunctions": [{"function": "note", "argument": 1}]}"#;
    app.superuser().run(&format!(
        "CREATE TABLE public.noted (what text);
         CREATE FUNCTION public.s(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{close}'::jsonb $$;
         CREATE FUNCTION public.s(request jsonb, dry_run boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
         CREATE FUNCTION public.note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.noted VALUES ('it') $$;
         CREATE FUNCTION public.note(argument jsonb, context jsonb, dry_run boolean DEFAULT false) RETURNS void LANGUAGE sql AS ''"
    ));
    let step = Definition::starting_with("S").step_with("S", json!({"executeFunction": "public.s"}));
    register(&app, "functions", &step.with("functions", json!({"note": "public.note"})));
    let mut db = app.db();
    db.start("f", "functions").go();
    assert_eq!(db.completes("f").result(), "it");
    assert_eq!(db.all::<String>("SELECT what FROM public.noted"), ["it"]);
    app.done(&[]);
}

#[test]
fn locks_of_other_sessions_are_waited_for_and_shown_in_a_hostile_database() {
    let app = App::hostile("hostile_locks");
    let worker = app.worker(|call: &Call| force_complete(json!(1)).globals(call.input().clone()));
    app.db().run(
        "CREATE TABLE public.parent (id text PRIMARY KEY, n int, code text UNIQUE);
         CREATE TABLE public.child (of_parent text REFERENCES public.parent);
         INSERT INTO public.parent VALUES ('r', 0, 'c');
         CREATE FUNCTION public.look(request jsonb) RETURNS jsonb LANGUAGE sql AS
             $$ SELECT jsonb_build_object('output', request->'loadedGlobalAttributes'->'n') $$",
    );
    let exclusive = json!({"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"});
    let write = Definition::starting_with("Write").step_with("Write", json!({"loadGlobalAttributes": exclusive}));
    app.register("write", &write.maps("public.parent", "id", &["n", "code"]));
    let look = json!({"function": "public.look", "loadGlobalAttributes": exclusive});
    register(&app, "called", &Definition::without_start().rpc("look", look).maps("public.parent", "id", &["n"]));
    let (mut db, mut holder) = (app.db(), app.db());

    // A row that another session has written, and a row whose key it has locked.
    for (number, (statement, input)) in [
        ("SELECT FROM public.parent FOR UPDATE", json!({"n": 1})),
        ("INSERT INTO public.child VALUES ('r')", json!({"code": "d"})),
    ]
    .into_iter()
    .enumerate()
    {
        let process = format!("held-{number}");
        holder.run(&format!("BEGIN; {statement}"));
        db.start(&process, "write").key("r").input(input).go();
        wait_until("the row is shown", 20, || {
            let held = db.json(&format!("SELECT xdb.describe_process('{process}') -> 'heldUpBy' -> 0"));
            (&held["lock"], &held["table"]) == (&json!("row"), &json!("public.parent"))
        });
        holder.run("COMMIT");
        db.completes(&process);
        assert_eq!(worker.count(|call| call.process_id() == process), 1, "{statement}");
    }
    assert_eq!(db.text("SELECT concat_ws(' ', n, code) FROM public.parent"), "1 d");
    // One that keeps no other column from being written.
    holder.run("BEGIN; INSERT INTO public.child VALUES ('r')");
    db.start("free", "write").key("r").input(json!({"n": 2})).go();
    db.completes("free");
    holder.run("COMMIT");

    // Two sessions refer to the row, and then call an RPC that excludes other RPCs. They queue up, and make no
    // deadlock.
    let mut sessions = [app.db(), app.db()];
    for (process, session) in ["a", "b"].into_iter().zip(&mut sessions) {
        db.start(process, "called").key("r").go();
        session.run("BEGIN; INSERT INTO public.child VALUES ('r')");
    }
    let [first, second] = &mut sessions;
    first.run("SELECT xdb.invoke_rpc('a', 'look')");
    let waiting: i32 = second.one("SELECT pg_backend_pid()");
    std::thread::scope(|scope| {
        let called = scope.spawn(move || second.try_run("SELECT xdb.invoke_rpc('b', 'look'); COMMIT"));
        let blocked = format!("SELECT cardinality(pg_blocking_pids({waiting})) > 0");
        wait_until("the second one waits for the first", 20, || db.one::<bool>(&blocked));
        first.run("COMMIT");
        assert_eq!(called.join().expect("no panic"), Ok(()));
    });
    assert_eq!(db.count("public.child"), 4);

    // An RPC that waits for a row answers what that is then.
    holder.run("BEGIN; UPDATE public.parent SET n = 7");
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| asked(&mut app.db(), "xdb.invoke_rpc('a', 'look')"));
        let waits = "pg_stat_activity WHERE query LIKE '%''look'')%' AND wait_event_type = 'Lock'";
        wait_until("it waits", 20, || app.superuser().count(waits) == 1);
        holder.run("COMMIT");
        assert_eq!(looking.join().expect("no panic"), Ok(json!(7)));
    });
    db.repeated("SELECT xdb.stop_process(ARRAY['a', 'b'])");
    app.done(&[]);
}

#[test]
fn a_call_that_waits_for_a_registration_is_made_at_once_after_it_in_a_hostile_database() {
    let app = App::hostile("hostile_deploying");
    let worker =
        app.worker(
            |call: &Call| if call.executes("Pay") { next("Pack", json!(null)) } else { force_complete(json!("new")) },
        );
    app.register("deploy", &Definition::starting_with("Pay").step("Pay"));
    let mut db = app.db();
    db.start("p", "deploy").go();
    let pauses = "xdb.failures WHERE error_type = 'NotRegistered' AND next_attempt_at > now() + interval '5 s'";
    wait_until("a pause has just begun", 30, || db.count(pauses) == 1);
    app.register("deploy", &Definition::starting_with("Pay").step("Pay").step("Pack"));
    assert_eq!(db.completes("p").result(), "new");
    let events = |event: &str| format!("xdb.history WHERE event_type = '{event}'");
    assert_eq!(db.count(&events("RetryRequested")), 1, "at once, and not after its pause");
    assert_eq!(db.count(&events("AttemptFailed")), 0);
    assert!(worker.calls().iter().all(|call| call.attempt() == 1));
    app.done(&[]);
}

#[test]
fn default_privileges_give_no_role_a_part_in_the_extension() {
    let (plain, hostile) = (App::new("hostile_plain"), App::hostile("hostile_privileges"));
    assert_eq!(privileges(&mut hostile.superuser()), privileges(&mut plain.superuser()));
    let operators_and_engines = [
        "SELECT xdb.pause_engine()",
        "SELECT xdb.register_worker('w', 'http://127.0.0.1:1')",
        "TRUNCATE xdb.timer, xdb.task",
        "TABLE xdb.registry",
        "DELETE FROM xdb.engine",
        "SELECT setval('xdb.inbox_inbox_id_seq', 1)",
        "SELECT nextval('xdb.pull_lease')",
    ];
    for role in ["app", "stranger"] {
        let mut session = hostile.session(role);
        operators_and_engines.iter().for_each(|sql| drop(session.refused(codes::INSUFFICIENT_PRIVILEGE, sql)));
    }
    // What is meant for PUBLIC is PUBLIC's all the same: a view calls it as its reader.
    assert_eq!(hostile.db().one::<i64>("SELECT count(*) FROM xdb.failures"), 0);
    assert_eq!(hostile.db().one::<i64>("SELECT count(*) FROM xdb.processes"), 0);
    plain.done(&[]);
    hostile.done(&[]);
}

#[test]
fn an_event_trigger_that_grants_new_objects_gives_no_role_a_part() {
    let plain = App::new("hostile_no_trigger");
    let cluster = plain.cluster();
    cluster.superuser().run("CREATE DATABASE hostile_trigger TEMPLATE template0");
    let mut superuser = cluster.connect("hostile_trigger", "postgres");
    superuser.run(
        "CREATE FUNCTION public.grant_all() RETURNS event_trigger LANGUAGE plpgsql AS $$
         DECLARE made record;
         BEGIN
             FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
                 IF made.object_type = 'table' THEN
                     EXECUTE format('GRANT ALL ON %s TO stranger WITH GRANT OPTION', made.object_identity);
                     EXECUTE format('GRANT SELECT (xmin) ON %s TO app', made.object_identity);
                     EXECUTE format('SET LOCAL ROLE stranger; GRANT SELECT ON %s TO other; RESET ROLE', made.object_identity);
                 ELSIF made.object_type IN ('function', 'schema') THEN
                     EXECUTE format('GRANT ALL ON %s %s TO stranger', made.object_type, made.object_identity);
                 END IF;
             END LOOP;
         END $$;
         CREATE EVENT TRIGGER grant_all ON ddl_command_end WHEN tag IN ('CREATE TABLE', 'CREATE FUNCTION', 'CREATE SCHEMA')
             EXECUTE FUNCTION public.grant_all();
         CREATE EXTENSION xdb;
         SELECT xdb.grant_usage('app'), xdb.grant_usage('other'), xdb.grant_usage('boss', admin => true)",
    );
    assert_eq!(privileges(&mut superuser), privileges(&mut plain.superuser()));
    drop(superuser);
    cluster.superuser().drop_database("hostile_trigger", "WITH (FORCE)");
    plain.done(&[]);
}

#[test]
fn a_role_that_may_write_all_tables_reaches_none_of_the_extension_in_a_hostile_database() {
    let app = App::hostile("hostile_writer");
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE writer LOGIN IN ROLE pg_read_all_data, pg_write_all_data");
    register(&app, "counter", &Definition::without_start().maps("public.counters", "id", &["n"]));
    app.db().start("p", "counter").key("k").globals(json!({"n": 1})).go();
    let mut writer = app.session("writer");
    assert_eq!(writer.count("public.counters"), 1);
    let statements: Vec<String> = superuser.all(
        "SELECT unnest(ARRAY[format('SELECT FROM %s', c.oid::regclass), format('DELETE FROM %s', c.oid::regclass),
                format('UPDATE %s SET %I = %2$I', c.oid::regclass, a.attname)])
             FROM pg_class AS c, LATERAL (SELECT attname FROM pg_attribute
                 WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity = '' LIMIT 1) AS a
             WHERE relnamespace = 'xdb'::regnamespace AND relkind IN ('r', 'p')",
    );
    assert!(statements.len() > 30, "{statements:?}");
    for statement in statements {
        match writer.client().execute(&statement, &[]).map_err(SqlError::from) {
            Ok(rows) => assert_eq!(rows, 0, "{statement}"),
            Err(error) => assert_eq!(error.code, codes::INSUFFICIENT_PRIVILEGE, "{statement}\n{error:?}"),
        }
    }
    app.db().repeated("SELECT xdb.stop_process('p')");
    superuser.run("DROP OWNED BY writer; DROP ROLE writer");
    app.done(&[]);
}

#[test]
fn a_restore_into_a_hostile_database_grants_the_same_rights_and_no_more() {
    let app = App::new("hostile_dumped");
    app.superuser().run("GRANT SELECT ON xdb.timers TO stranger; GRANT USAGE ON SCHEMA xdb TO stranger");
    let dump = app.cluster().dump("hostile_dumped", &[]);
    app.make_hostile_database("hostile_restored");
    app.cluster().restore_into("hostile_restored", &dump, &[]);
    let mut restored = app.cluster().connect("hostile_restored", "postgres");
    assert_eq!(privileges(&mut restored), privileges(&mut app.superuser()));
    drop(restored);
    app.cluster().superuser().drop_database("hostile_restored", "WITH (FORCE)");
    app.done(&[]);
}
