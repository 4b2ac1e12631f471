//! Rows are found by their keys: keys of several columns, of any type, in several tables, with any names.

use xdb_cluster_tests::prelude::*;

/// A worker whose state writes its input. It completes with the loaded values, or with the SQLSTATE of the error.
fn writer(app: &App) -> Worker {
    app.worker(|call: &Call| match (call.api, call.refused_write()) {
        (Api::Rpc, _) => output(call.body["loadedGlobalAttributes"].clone()).globals(call.input().clone()),
        (_, Value::Null) => {
            let done = force_complete(call.body["loadedGlobalAttributes"].clone());
            if call.input().is_object() { done.globals(call.input().clone()) } else { done }
        }
        (_, refused) => force_complete(json!([refused["sqlState"], refused["message"], refused["table"]])),
    })
}

fn mapped(table: &str, key: Value, attributes: Value) -> Value {
    json!({"table": table, "primaryKey": key, "attributes": attributes})
}

fn one_step_on(tables: &[Value]) -> Definition {
    one_step().with("globalAttributes", json!(tables)).rpc("write", json!({}))
}

fn keys(keys: Value) -> Value {
    json!({"globalAttributeKeys": keys})
}

#[test]
fn rows_of_several_tables_with_keys_of_several_columns() {
    let app = App::new("keys_composite");
    let mut db = app.db();
    db.run(
        "CREATE TABLE accounts (tenant int, user_id text, balance numeric, note text, PRIMARY KEY (user_id, tenant));
         CREATE TABLE tenants (id int PRIMARY KEY, seats int);
         INSERT INTO accounts VALUES (1, 'u1', 10, 'mine'), (2, 'u1', 20, 'other'), (1, 'u2', 30, 'another');
         INSERT INTO tenants VALUES (1, 5), (2, 6);",
    );
    let _worker = writer(&app);
    let tables = [
        mapped("public.accounts", json!(["tenant", "user_id"]), json!({"balance": "balance", "note": "note"})),
        mapped("public.tenants", json!("id"), json!({"seats": "seats"})),
    ];
    app.register("both", &one_step_on(&tables));
    let key = keys(json!({"public.accounts": {"user_id": "u1", "tenant": 1}}));
    db.start("p", "both").key("1").options(key.clone()).input(json!({"balance": 11.5, "seats": 4})).go();
    assert_eq!(db.completes("p").result(), &json!({"balance": 10, "note": "mine", "seats": 5}));
    let rows = "SELECT string_agg(tenant || user_id || '=' || balance, ' ' ORDER BY tenant, user_id) FROM accounts";
    assert_eq!(db.text(rows), "1u1=11.5 1u2=30 2u1=20");
    assert_eq!(db.text("SELECT string_agg(id || '=' || seats, ' ' ORDER BY id) FROM tenants"), "1=4 2=6");

    // All or nothing: what the second table refuses takes the first one's write back.
    db.run("ALTER TABLE tenants ADD CHECK (seats < 100)");
    db.start("q", "both").key("1").options(key.clone()).input(json!({"balance": 99, "seats": 100})).go();
    assert_eq!(db.completes("q").result()[0], codes::CHECK_VIOLATION);
    assert_eq!(db.text(rows), "1u1=11.5 1u2=30 2u1=20");

    // A start inserts what is not there, in both tables; an RPC writes as a state does.
    let new = keys(json!({"public.accounts": {"tenant": 3, "user_id": "u'\"3"}, "public.tenants": {"id": 3}}));
    let passive = Definition::without_start().with("globalAttributes", json!(tables)).rpc("write", json!({}));
    app.register("passive", &passive);
    db.start("r", "passive").options(new).globals(json!({"balance": 1, "seats": 1})).go();
    let read = db.rpc("r", "write", json!({"note": "by RPC", "seats": 2}));
    assert_eq!(read, json!({"balance": 1, "note": null, "seats": 1}));
    assert_eq!(
        db.text("SELECT user_id || note || seats FROM accounts, tenants WHERE tenant = 3 AND id = 3"),
        "u'\"3by RPC2"
    );

    // The error about a missing row has its whole key.
    db.run("DELETE FROM accounts WHERE tenant = 3");
    let error = db.refused(codes::NO_DATA, "SELECT xdb.invoke_rpc('r', 'write', '{\"note\": \"x\"}')");
    assert!(error.message.contains("tenant = 3 and user_id = u'\"3"), "{error:?}");
    assert_eq!(db.count("accounts WHERE tenant = 3"), 0);
    app.done(&[]);
}

#[test]
fn keys_that_do_not_fit_are_refused_at_the_start() {
    let app = App::new("keys_refused");
    let mut db = app.db();
    db.run(
        "CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b));
         CREATE TABLE numbers (id int PRIMARY KEY, v text);",
    );
    let _worker = writer(&app);
    app.register("pairs", &one_step_on(&[mapped("public.pairs", json!(["a", "b"]), json!({"v": "v"}))]));
    app.register("numbers", &one_step_on(&[mapped("public.numbers", json!("id"), json!({"v": "v"}))]));
    let mut start = |process_type: &str, key: Option<&str>, options: Value, code: &str, words: &str| {
        let start = db.start("p", process_type).options(options);
        let start = if let Some(key) = key { start.key(key) } else { start };
        let error = start.refused(code);
        assert!(error.message.contains(words), "{error:?}");
    };
    let pair = |value: Value| keys(json!({"public.pairs": value}));
    start("pairs", None, json!({}), codes::INVALID_ARGUMENT, "globalAttributeKeys");
    start("pairs", Some("1"), json!({}), codes::INVALID_ARGUMENT, "key of one column");
    start("pairs", None, pair(json!({"a": 1})), codes::INVALID_ARGUMENT, "columns a, b");
    start("pairs", None, pair(json!({"a": 1, "b": "x", "c": 1})), codes::INVALID_ARGUMENT, "columns a, b");
    start("pairs", None, pair(json!({"a": 1, "B": "x"})), codes::INVALID_ARGUMENT, "columns a, b");
    start("pairs", None, pair(json!({"a": 1, "b": null})), codes::INVALID_ARGUMENT, "b must be a string");
    start("pairs", None, pair(json!({"a": "x", "b": "x"})), "22P02", "integer");
    start("numbers", Some("many"), json!({}), "22P02", "integer");
    start("numbers", Some("99999999999"), json!({}), "22003", "integer");
    start("numbers", None, keys(json!({"numbers": {"id": 1}})), codes::INVALID_ARGUMENT, "unknown");
    assert_eq!(db.count("xdb.processes"), 0);
    app.done(&[]);
}

#[test]
fn keys_of_any_type_with_their_own_equality() {
    let app = App::new("keys_types");
    app.superuser().run(
        "CREATE SCHEMA elsewhere; CREATE EXTENSION citext SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO PUBLIC;
         CREATE DOMAIN elsewhere.mail AS elsewhere.citext CHECK (VALUE LIKE '%@%');
         CREATE DOMAIN elsewhere.three AS varchar(3);
         CREATE TYPE elsewhere.colour AS ENUM ('red', 'green');
         CREATE DOMAIN elsewhere.shade AS elsewhere.colour;
         CREATE TYPE elsewhere.point2 AS (x int, y int);",
    );
    let mut db = app.db();
    let worker = writer(&app);
    // The column's type, its row's key, and a key of the caller's that is the same.
    let same = [
        ("elsewhere.citext", "'Ada'", "aDA"),
        ("elsewhere.mail", "'Ada@example.org'", "ADA@EXAMPLE.ORG"),
        ("elsewhere.three", "'abc'", "abc"),
        ("elsewhere.colour", "'green'", "green"),
        ("elsewhere.shade", "'green'", "green"),
        ("elsewhere.point2", "ROW(1,2)", "(1,2)"),
        ("char(5)", "'ab'", "ab"),
        ("varchar(3)", "'abc'", "abc"),
        ("numeric(10,2)", "1.50", "1.5"),
        ("numeric", "123456789012345678901234567890.12", "123456789012345678901234567890.120"),
        ("bigint", "9223372036854775807", "9223372036854775807"),
        ("boolean", "true", "true"),
        ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "A0EEBC999C0B4EF8BB6D6BB9BD380A11"),
        ("timestamptz", "'2026-01-02 03:04:05+00'", "2026-01-02T05:04:05+02:00"),
        ("date", "'2026-02-01'", "02/01/2026"),
        ("bytea", r"'\x00ff'", r"\x00FF"),
        ("inet", "'10.0.0.1'", "10.0.0.1/32"),
        ("text[]", "ARRAY['a','b,c']", r#"{a,"b,c"}"#),
        ("int4range", "'[1,3]'", "[1,4)"),
        ("jsonb", r#"'{"a": 1, "b": 2}'"#, r#"{"b":2,"a":1}"#),
        ("bit(3)", "B'101'", "101"),
        ("\"char\"", "'x'", "x"),
    ];
    for (n, (of_type, sql, key)) in same.iter().enumerate() {
        db.run(&format!(
            "CREATE TABLE by{n} (id {of_type} PRIMARY KEY, v text); INSERT INTO by{n} VALUES ({sql}, 'old')"
        ));
        let table = format!("public.by{n}");
        app.register(&format!("by{n}"), &one_step_on(&[mapped(&table, json!("id"), json!({"v": "v"}))]));
        let id = format!("p{n}");
        db.start(&id, &format!("by{n}")).key(key).input(json!({"v": "new"})).go();
        assert_eq!(db.completes(&id).result(), &json!({"v": "old"}), "{of_type}");
        assert_eq!(db.text(&format!("SELECT string_agg(v, '+') FROM by{n}")), "new", "{of_type}");
        // The same key again at a start is a conflict, not another row.
        let id = format!("s{n}");
        db.start(&id, &format!("by{n}")).key(key).globals(json!({"v": "started"})).input(json!({"v": "ended"})).go();
        assert_eq!(db.completes(&id).result(), &json!({"v": "started"}), "{of_type}");
        assert_eq!(db.text(&format!("SELECT string_agg(v, '+') FROM by{n}")), "ended", "{of_type}");
    }
    // A value that is rounded when it is stored is rounded in the search too.
    db.start("rounded", "by8").key("2.504").globals(json!({"v": "2.50"})).input(json!({"v": "seen"})).go();
    assert_eq!(db.completes("rounded").result(), &json!({"v": "2.50"}));
    assert_eq!(db.text("SELECT v FROM by8 WHERE id = 2.50"), "seen");
    // What is too long finds nothing, and is never cut to the key of another row.
    for (n, key) in [(2, "abcd"), (6, "ab    x"), (7, "abcd")] {
        let code =
            db.start("cut", &format!("by{n}")).key(key).globals(json!({"v": "cut"})).try_go().map_err(|e| e.code);
        assert_eq!(code, Err("22001".to_owned()), "by{n}");
        db.start(&format!("long{n}"), &format!("by{n}")).key(key).input(json!({"v": "cut"})).go();
        assert_eq!(db.completes(&format!("long{n}")).result()[0], codes::NO_DATA, "by{n}");
        assert_eq!(db.count(&format!("by{n} WHERE v = 'cut'")), 0);
    }
    db.start("mail", "by1").key("nobody").globals(json!({"v": "x"})).refused(codes::CHECK_VIOLATION);
    drop(worker);
    app.done(&[]);
}

#[test]
fn one_table_by_two_keys_at_the_same_time() {
    let app = App::new("keys_two");
    let mut db = app.db();
    db.run(
        "CREATE TABLE people (id int PRIMARY KEY, mail text UNIQUE, v int NOT NULL DEFAULT 0);
         INSERT INTO people SELECT n, 'm' || n FROM generate_series(1, 20) n;",
    );
    let worker = app.worker(|call: &Call| Reply::hang(force_complete(json!(null)).globals(json!({"v": call.input()}))));
    app.register("by_id", &one_step_on(&[mapped("public.people", json!("id"), json!({"v": "v"}))]));
    app.register("by_mail", &one_step_on(&[mapped("public.people", json!(["mail"]), json!({"v": "v"}))]));
    for n in 1..=20 {
        let (process_type, key) = if n % 2 == 0 { ("by_id", n.to_string()) } else { ("by_mail", format!("m{n}")) };
        db.start(&format!("p{n}"), process_type).key(&key).input(json!(n)).go();
    }
    // The answers meet in one batch.
    worker.wait_for_count("all calls", 10, 20, |_| true);
    worker.release();
    for n in 1..=20 {
        db.completes(&format!("p{n}"));
    }
    assert_eq!(db.count("people WHERE v = id"), 20);
    assert_eq!(worker.count(|_| true), 20);
    app.done(&[]);
}

#[test]
fn conflicts_of_initial_writes() {
    let app = App::new("keys_conflicts");
    let mut db = app.db();
    db.run(
        "CREATE TABLE slots (day date, room text, holder text, code text, PRIMARY KEY (day, room)) PARTITION BY RANGE (day);
         CREATE TABLE slots_1 PARTITION OF slots FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
         CREATE TABLE slots_2 PARTITION OF slots FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
         INSERT INTO slots VALUES ('2026-01-05', 'a', 'first', 'c')",
    );
    let _worker = writer(&app);
    let table = mapped("public.slots", json!(["room", "day"]), json!({"holder": "holder", "code": "code"}));
    app.register("slot", &one_step_on(&[table]));
    let options = |day: &str, mode: &str| json!({"globalAttributeConflictMode": mode, "globalAttributeKeys": {"public.slots": {"day": day, "room": "a"}}});
    let row = "SELECT holder || ' ' || coalesce(code, '-') || ' ' || tableoid::regclass FROM slots WHERE day = ";
    let mut start = |id: &str, day: &str, mode: &str| {
        db.start(id, "slot").options(options(day, mode)).globals(json!({"holder": id})).try_go().map_err(|e| e.code)
    };
    assert_eq!(start("error", "2026-01-05", "RETURN_ERROR_ON_CONFLICT"), Err(codes::UNIQUE_VIOLATION.to_owned()));
    start("ignored", "2026-01-05", "IGNORE_CONFLICT").unwrap();
    start("fresh", "2026-02-05", "RETURN_ERROR_ON_CONFLICT").unwrap();
    assert_eq!(
        start("nowhere", "2026-05-05", "OVERRIDE_ON_CONFLICT"),
        Err("23514".to_owned()),
        "no partition takes it"
    );
    assert_eq!(db.completes("ignored").result()["holder"], "first");
    assert_eq!(db.completes("fresh").result()["holder"], "fresh");
    assert_eq!(db.text(&format!("{row} '2026-01-05'")), "first c slots_1");
    assert_eq!(db.text(&format!("{row} '2026-02-05'")), "fresh - slots_2");
    let overriding = options("2026-01-05", "OVERRIDE_ON_CONFLICT");
    db.start("over", "slot").options(overriding).globals(json!({"holder": "over"})).input(json!({"code": "w"})).go();
    assert_eq!(db.completes("over").result(), &json!({"holder": "over", "code": "c"}));
    assert_eq!(db.text(&format!("{row} '2026-01-05'")), "over w slots_1");
    app.done(&[]);
}

#[test]
fn a_parent_table_is_used_without_its_children() {
    let app = App::new("keys_inherited");
    let mut db = app.db();
    db.run(
        "CREATE TABLE base (id text PRIMARY KEY, v text); CREATE TABLE heir (extra text) INHERITS (base);
         INSERT INTO base VALUES ('k', 'base'); INSERT INTO heir VALUES ('k', 'heir'), ('only', 'heir');",
    );
    let _worker = writer(&app);
    app.register("base", &one_step_on(&[mapped("public.base", json!("id"), json!({"v": "v"}))]));
    db.start("p", "base").key("k").input(json!({"v": "new"})).go();
    assert_eq!(db.completes("p").result()["v"], "base");
    db.start("q", "base").key("only").input(json!({"v": "new"})).go();
    assert_eq!(db.completes("q").result()[0], codes::NO_DATA);
    assert_eq!(db.text("SELECT string_agg(id || v, ' ' ORDER BY id, v) FROM base"), "kheir knew onlyheir");
    app.done(&[]);
}

#[test]
fn names_of_any_kind_are_only_names() {
    let app = App::new("keys_names");
    let long = "n".repeat(63);
    let names = [
        r#"Capitals"#,
        r#"with space"#,
        r#"dotted.name"#,
        r#"quo"ted"#,
        r#"quo""ted"#,
        "it's",
        "select",
        "user",
        "t",
        "r",
        r#"x"; DROP TABLE bystander; --"#,
        r#"x') ; DROP TABLE bystander; --"#,
        "$1",
        "$$",
        "%I %s {}",
        r"back\slash",
        "日本語",
        &long,
    ];
    let identifier = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let mut db = app.db();
    db.run("CREATE TABLE bystander (id int); CREATE FUNCTION name(counters) RETURNS int LANGUAGE sql AS 'SELECT 1'");
    app.superuser().run("GRANT CREATE ON DATABASE keys_names TO app");
    let _worker = writer(&app);
    for (n, name) in names.iter().enumerate() {
        let quoted = identifier(name);
        let schema = identifier(&format!("S {n} \"x"));
        db.run(&format!(
            "CREATE SCHEMA {schema};
             CREATE TABLE {schema}.{quoted} ({quoted} text, \"the \"\"key\"\"\" text, \"Va lue\" text, PRIMARY KEY ({quoted}, \"the \"\"key\"\"\"));"
        ));
        let table = format!("{schema}.{quoted}");
        let attribute = format!("attribute {name}");
        let definition = one_step_on(&[mapped(&table, json!([name, "the \"key\""]), json!({&attribute: "Va lue"}))]);
        let process_type = format!("type {name}");
        app.register(&process_type, &definition);
        let options = keys(json!({&table: {*name: name, "the \"key\"": "'; DROP TABLE bystander; --"}}));
        let id = format!("p{n}");
        db.start(&id, &process_type)
            .options(options)
            .globals(json!({&attribute: name}))
            .input(json!({&attribute: format!("{name} again")}))
            .go();
        assert_eq!(db.completes(&id).result(), &json!({&attribute: name}));
        let wanted = format!("{name}/'; DROP TABLE bystander; --/{name} again");
        assert_eq!(
            db.text(&format!("SELECT {quoted} || '/' || \"the \"\"key\"\"\" || '/' || \"Va lue\" FROM {table}")),
            wanted
        );
    }
    assert_eq!(db.count("bystander"), 0, "it is still there");

    // Texts that name no table are bad definitions.
    for table in [r#"public.bystander; DROP TABLE bystander"#, r#"""#, "a.b.c.d", "other.public.users", "public.", ""] {
        let definition = json!({"globalAttributes": [mapped(table, json!("id"), json!({"a": "a"}))]});
        let definition = xdb_cluster_tests::db::jsonb(&definition);
        let sql = format!("SELECT xdb.register_process_type('bad', 'stub', {definition})");
        app.superuser().refused(codes::INVALID_DEFINITION, &sql);
    }
    // Nor does a definition name what is no column.
    for column in ["ctid", "tableoid", "users", "name", "count(*)", "user_id\", \"form"] {
        let table = if column == "name" {
            mapped("counters", json!("id"), json!({"a": column}))
        } else {
            mapped("users", json!("user_id"), json!({"a": column}))
        };
        let definition = xdb_cluster_tests::db::jsonb(&json!({"globalAttributes": [table]}));
        let sql = format!("SELECT xdb.register_process_type('bad', 'stub', {definition})");
        app.superuser().refused(codes::INVALID_DEFINITION, &sql);
    }
    app.done(&[]);
}

#[test]
fn a_schema_earlier_in_the_path_changes_no_type_or_function_name() {
    let app = App::new("keys_search_path");
    let mut db = app.db();
    app.superuser().run("GRANT CREATE ON DATABASE keys_search_path TO app");
    db.run(
        "CREATE TABLE typed (id uuid PRIMARY KEY, d date, j jsonb, b bytea, c char(3));
         CREATE SCHEMA evil;
         CREATE DOMAIN evil.uuid AS text; CREATE DOMAIN evil.date AS text; CREATE DOMAIN evil.bpchar AS text;
         CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false); CREATE DOMAIN evil.jsonb AS pg_catalog.jsonb CHECK (false);
         CREATE DOMAIN evil.bytea AS pg_catalog.text;
         CREATE FUNCTION evil.to_jsonb(anyelement) RETURNS pg_catalog.jsonb LANGUAGE sql AS 'SELECT NULL::pg_catalog.jsonb';
         SET search_path = evil, pg_catalog, public;",
    );
    let _worker = writer(&app);
    let definition =
        Definition::without_start().maps("public.typed", "id", &["d", "j", "b", "c"]).rpc("write", json!({}));
    app.register("typed", &definition);
    let values = json!({"d": "2026-01-02", "j": [1], "b": "\\x0102", "c": "ab "});
    let start = db.start("p", "typed").key("A0EEBC999C0B4EF8BB6D6BB9BD380A11").globals(values.clone());
    let sql = start.sql().replace("::jsonb", "::pg_catalog.jsonb").replace("::text", "::pg_catalog.text");
    db.run(&sql);
    let sql = "SELECT xdb.invoke_rpc('p', 'write', '{\"c\": \"x\"}')::pg_catalog.text";
    assert_eq!(db.json(sql), values);
    assert_eq!(db.text("SELECT c || '|' FROM public.typed"), "x|");
    app.done(&[]);
}

#[test]
fn tables_are_followed_and_columns_are_not() {
    let app = App::new("keys_followed");
    let mut db = app.db();
    app.superuser().run("GRANT CREATE ON DATABASE keys_followed TO app");
    db.run(
        "CREATE SCHEMA archive;
         CREATE TABLE moved (a int, b int, v text, PRIMARY KEY (a, b)); INSERT INTO moved VALUES (1, 2, 'mine');",
    );
    let _worker = writer(&app);
    app.register(
        "moved",
        &Definition::without_start()
            .with("globalAttributes", json!([mapped("moved", json!(["a", "b"]), json!({"v": "v"}))]))
            .rpc("write", json!({})),
    );
    app.register("step", &one_step_on(&[mapped("moved", json!(["a", "b"]), json!({"v": "v"}))]));
    // Nothing is loaded, so that it is the write that fails, and the worker learns of it.
    let blind =
        Definition::starting_with("Only").step_with("Only", json!({"loadGlobalAttributes": {"policy": "NONE"}}));
    let table = mapped("moved", json!(["a", "b"]), json!({"v": "v"}));
    app.register("blind", &blind.with("globalAttributes", json!([table])));
    let options = keys(json!({"moved": {"a": 1, "b": 2}}));
    db.start("p", "moved").options(options.clone()).go();
    let mut step = 0;
    let mut written = |db: &mut Db, process_type: &str, v: &str| -> (Value, Result<Value, SqlError>) {
        step += 1;
        let id = format!("s{step}");
        let by_state = match db.start(&id, process_type).options(options.clone()).input(json!({"v": v})).try_go() {
            Ok(_) => db.completes(&id).result().clone(),
            Err(error) => json!([error.code, error.message]),
        };
        let sql = format!("SELECT xdb.invoke_rpc('p', 'write', '{{\"v\": \"{v}\"}}')::text");
        (by_state, db.try_one::<String>(&sql).map(|text| serde_json::from_str(&text).expect("JSON")))
    };
    // Another table gets the old name. The engine does not use it.
    db.run(
        "ALTER TABLE moved RENAME TO elsewhere; ALTER TABLE elsewhere SET SCHEMA archive;
         CREATE TABLE moved (LIKE archive.elsewhere INCLUDING ALL); INSERT INTO moved VALUES (1, 2, 'not mine');",
    );
    let (by_state, by_rpc) = written(&mut db, "step", "followed");
    assert_eq!(by_state, json!({"v": "mine"}));
    assert_eq!(by_rpc.unwrap(), json!({"v": "followed"}));
    db.run("ALTER SCHEMA archive RENAME TO \"Archive 2\"");
    assert_eq!(written(&mut db, "step", "again").0, json!({"v": "followed"}));
    assert_eq!(db.text("SELECT v FROM \"Archive 2\".elsewhere"), "again");
    assert_eq!(db.text("SELECT v FROM moved"), "not mine");

    // Within one transaction with an old snapshot, too.
    let mut other = app.db();
    other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM users");
    db.run(
        "ALTER TABLE moved RENAME TO decoy; ALTER INDEX moved_pkey RENAME TO decoy_pkey;
         ALTER TABLE \"Archive 2\".elsewhere SET SCHEMA public; ALTER TABLE elsewhere RENAME TO moved;
         ALTER TABLE decoy SET SCHEMA \"Archive 2\"; ALTER TABLE \"Archive 2\".decoy RENAME TO elsewhere;",
    );
    assert_eq!(other.json("SELECT xdb.invoke_rpc('p', 'write', '{}')"), json!({"v": "again"}));
    other.run("ROLLBACK");

    // A type that changes is followed as well.
    db.run("ALTER TABLE moved ALTER b TYPE text, ALTER v TYPE varchar(10)");
    assert_eq!(written(&mut db, "step", "retyped").0, json!({"v": "again"}));

    let clear = |result: (Value, Result<Value, SqlError>), code: &str, word: &str| {
        let (by_state, by_rpc) = result;
        let error = by_rpc.unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(word), "{error:?}");
        assert_eq!(by_state[0], code, "{by_state}");
        assert!(by_state[1].as_str().is_some_and(|message| message.contains(word)), "{by_state}");
    };
    db.run("ALTER TABLE moved RENAME v TO w");
    clear(written(&mut db, "blind", "x"), "42703", "column \"v\"");
    db.run("ALTER TABLE moved RENAME w TO v; ALTER TABLE moved RENAME b TO c");
    clear(written(&mut db, "blind", "x"), "42703", "column \"b\"");
    db.run("ALTER TABLE moved RENAME c TO b; ALTER TABLE moved DROP CONSTRAINT moved_pkey");
    clear(written(&mut db, "blind", "x"), "42P10", "unique key (a, b)");
    db.run("CREATE UNIQUE INDEX ON moved (b, a)");
    assert_eq!(written(&mut db, "step", "unique").0, json!({"v": "retyped"}));
    db.run("DROP TABLE moved");
    clear(written(&mut db, "blind", "x"), codes::UNDEFINED_TABLE, "moved no longer exists");
    app.done(&[]);
}

#[test]
fn the_table_that_is_slow_is_the_one_that_is_named() {
    let app = App::new("keys_culprit");
    let mut db = app.db();
    db.run(
        "CREATE TABLE quick (id text PRIMARY KEY, n int); INSERT INTO quick SELECT 'k' || n, 0 FROM generate_series(1, 9) n;
         CREATE TABLE slow (id text PRIMARY KEY, m int); INSERT INTO slow SELECT 'k' || n, 0 FROM generate_series(1, 9) n;
         CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); RETURN new; END $$;
         CREATE TRIGGER sleep BEFORE UPDATE ON slow FOR EACH ROW EXECUTE FUNCTION sleep();",
    );
    let _worker = app.worker(|call: &Call| {
        let one = json!({"n": 1});
        force_complete(json!(null)).globals(if call.input().is_null() { one } else { json!({"n": 1, "m": 1}) })
    });
    let quick = mapped("public.quick", json!("id"), json!({"n": "n"}));
    app.register("both", &one_step_on(&[quick.clone(), mapped("public.slow", json!("id"), json!({"m": "m"}))]));
    app.register("quick", &one_step_on(&[quick]));
    for n in 1..=8 {
        let both = [("public.quick", "id"), ("public.slow", "id")];
        db.start(&format!("p{n}"), "both").keys(&both, &format!("k{n}")).input(json!(1)).go();
    }
    let mut superuser = app.superuser();
    wait_until("a table is slow", 30, || views::engine(&mut superuser).contains("public.slow: "));
    assert!(!views::engine(&mut superuser).contains("public.quick: "), "{}", views::engine(&mut superuser));
    db.start("bystander", "quick").key("k9").go();
    db.completes("bystander");
    db.run("DROP TRIGGER sleep ON slow");
    for n in 1..=8 {
        db.completes(&format!("p{n}"));
    }
    assert_eq!(db.count("slow WHERE m = 1"), 8);
    app.done(&["canceling statement"]);
}
