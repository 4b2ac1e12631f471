//! Columns of every type that Postgres converts to JSON and back. Every value that is read can be written without loss,
//! in the engine and for callers, under all settings.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::prelude::*;

/// Types that the columns need.
const TYPES: &str = r#"
    CREATE EXTENSION citext SCHEMA other_types;
    CREATE EXTENSION ltree SCHEMA other_types;
    CREATE EXTENSION cube SCHEMA other_types;
    GRANT USAGE ON SCHEMA other_types TO PUBLIC;
    CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'Happy "day"');
    CREATE DOMAIN positive AS numeric CHECK (VALUE > 0) NOT NULL;
    CREATE DOMAIN short AS varchar(3) CHECK (VALUE <> 'bad');
    CREATE TYPE pair AS (n numeric, "odd ""name" text, at timestamptz, tags text[]);
    CREATE DOMAIN same_pair AS pair CHECK (VALUE IS NULL OR (VALUE).n > 0);
    CREATE TYPE float_range AS RANGE (subtype = float8);"#;

/// Column types, each with a value as SQL.
const COLUMNS: &[(&str, &str)] = &[
    ("boolean", "true"),
    ("smallint", "-32768"),
    ("bigint", "9223372036854775807"),
    ("bigint", "-9223372036854775808"),
    ("numeric", "1234567890123456789012345678901234567890.123456789012345678901234567890"),
    ("numeric", "-0.000000000000000000000000000000000000012300"),
    ("numeric(10,2)", "12345678.90"),
    ("numeric", "'NaN'"),
    ("numeric", "'-Infinity'"),
    ("float4", "0.1"),
    ("float8", "0.1::float8 + 0.2::float8"),
    ("float8", "1.7976931348623157e300"),
    ("float8", "5e-324"),
    ("float8", "'Infinity'"),
    ("money", "1234.56"),
    ("text", r#"E'line\nbreak \\ back "quoted" ''single'' ünï 🚀'"#),
    ("text", "''"),
    ("text", "'null'"),
    ("varchar(5)", "'five5'"),
    ("char(4)", "'ab'"),
    ("\"char\"", "'x'"),
    ("name", "'a name'"),
    ("other_types.citext", "'MiXeD'"),
    ("timestamptz", "'2026-01-02 03:04:05.678901+05:45'"),
    ("timestamptz", "'infinity'"),
    ("timestamptz", "'0044-03-15 12:00:00+00 BC'"),
    ("timestamp", "'2026-12-11 10:09:08.7'"),
    ("timestamp", "'-infinity'"),
    ("date", "'2026-02-01'"),
    ("date", "'0044-03-15 BC'"),
    ("time", "'23:59:59.999999'"),
    ("timetz", "'23:59:59.999999-11:30'"),
    ("interval", "'-1 year 2 mons -3 days 04:05:06.789'"),
    ("interval", "'1 year -2 mons 3 days -04:05:06.789'"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("bytea", r#"'\x00deadbeef5c27ff'"#),
    ("json", r#"'{"a": [1, null, "x"], "n": 12345678901234567890.10}'"#),
    ("jsonb", r#"'{"a": [1, null, "x"], "n": 12345678901234567890.10}'"#),
    ("jsonb", r#"'"a string"'"#),
    ("jsonb", "'[]'"),
    ("json", r#"'"a string"'"#),
    ("xml", "'text and <a b=\"c\">&lt;</a>'"),
    ("mood", "'Happy \"day\"'"),
    ("positive", "0.10"),
    ("short", "'abc'"),
    ("pair", r#"ROW(1.10, 'a "b", c', '2026-01-02 03:04:05+02', ARRAY['x', NULL, 'null'])"#),
    ("same_pair", "ROW(1, NULL, NULL, '{}')"),
    ("pair[]", "ARRAY[ROW(1, 'a', NULL, NULL), NULL, ROW(NULL, '', '2026-01-02Z', '{}')]::pair[]"),
    ("text[]", r#"ARRAY['a', 'b,c', '"', '\', 'NULL', NULL, '']"#),
    ("numeric[]", "ARRAY[12345678901234567890.1234567890, -0.10, NULL]"),
    ("int[]", "'{{1,2},{3,4}}'"),
    ("int[]", "'{}'"),
    ("bytea[]", r#"ARRAY['\x5c'::bytea, '\x00']"#),
    ("timestamptz[]", "ARRAY['2026-01-02 03:04:05+05:45'::timestamptz]"),
    ("mood[]", "ARRAY['sad', 'it''s ok']::mood[]"),
    ("positive[]", "ARRAY[1, 2.50]::positive[]"),
    ("jsonb[]", r#"ARRAY['{"a": 1}'::jsonb, '[2]']"#),
    ("int4range", "'[1,5)'"),
    ("numrange", "'(0.10,)'"),
    ("tstzrange", "'[2026-01-02 03:04:05+05:45,2026-02-01 00:00+00)'"),
    ("daterange", "'empty'"),
    ("int4multirange", "'{[1,3),[5,8)}'"),
    ("float_range", "'[0.1,0.30000000000000004)'"),
    ("inet", "'192.168.1.5/24'"),
    ("cidr", "'2001:db8::/32'"),
    ("macaddr", "'08:00:2b:01:02:03'"),
    ("bit(4)", "B'1010'"),
    ("varbit", "B'101'"),
    ("point", "'(0.1,0.30000000000000004)'"),
    ("tsvector", "'''a b'':1 c:2'"),
    ("tsquery", "'a & !b'"),
    ("jsonpath", "'$.a[*]'"),
    ("pg_lsn", "'16/B374D848'"),
    ("other_types.ltree", "'Top.Science'"),
    ("other_types.ltree[]", "ARRAY['Top', 'a.b']::other_types.ltree[]"),
    ("other_types.cube", "'(1, 2.5),(3, 4)'"),
    ("text", "NULL"),
    ("jsonb", "NULL"),
    ("int[]", "NULL"),
    ("same_pair", "NULL"),
];

/// The attributes of a call, with all their digits.
fn raw_globals(call: &Call) -> BTreeMap<String, Box<RawValue>> {
    let body: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&call.raw).expect("a request");
    serde_json::from_str(body["loadedGlobalAttributes"].get()).expect("an object")
}

/// Table `source` has one row of values. `copy_state` and `copy_rpc` have the same columns. The state of a process type
/// copies the row to `copy_state`, its RPC copies it to `copy_rpc`. All keys are `k`.
fn application(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(name, options);
    app.superuser().run(&format!("CREATE SCHEMA other_types; {TYPES}"));
    let columns: Vec<_> = COLUMNS.iter().enumerate().map(|(i, (of_type, _))| format!("c{i} {of_type}")).collect();
    let values: Vec<_> = COLUMNS.iter().map(|(_, value)| *value).collect();
    let columns = columns.join(", ");
    let mut db = plain(&app, "app");
    db.run(&format!(
        "CREATE TABLE source (id text PRIMARY KEY, {columns});
         CREATE TABLE copy_start (LIKE source INCLUDING ALL);
         CREATE TABLE copy_state (LIKE source INCLUDING ALL);
         CREATE TABLE copy_rpc (LIKE source INCLUDING ALL);
         INSERT INTO source VALUES ('k', {});",
        values.join(", ")
    ));
    // A domain that is not null needs a value from the beginning.
    let needs_value: Vec<_> =
        (0..COLUMNS.len()).filter(|i| COLUMNS[*i].0 == "positive").map(|i| format!("c{i}")).collect();
    for table in ["copy_state", "copy_rpc"] {
        let ones = vec!["1"; needs_value.len()].join(", ");
        db.run(&format!("INSERT INTO {table} (id, {}) VALUES ('k', {ones})", needs_value.join(", ")));
    }
    let worker = app.worker(|call: &Call| {
        let target = if call.api == Api::Rpc { "copy_rpc" } else { "copy_state" };
        let written: Vec<_> = raw_globals(call)
            .iter()
            .filter(|(name, _)| name.starts_with("source."))
            .map(|(name, value)| format!("{}:{value}", json!(name.replace("source", target))))
            .collect();
        let decision = match call.api {
            Api::Rpc => r#""output": null"#,
            _ => r#""stateDecision": {"nextStates": [{"stateId": "Wait", "stateInput": null}]}"#,
        };
        match call.target() {
            "Wait" => any_of(&[local_queue("m", "inbox", 1)]).into(),
            _ => Reply::Raw(
                200,
                format!("{{{decision}, \"writeToGlobalAttributes\": {{{}}}}}", written.join(",")).into_bytes(),
            ),
        }
    });
    let mut definition = Definition::starting_with("Copy").step("Copy").waiting_step("Wait");
    let mappings: Vec<_> = ["source", "copy_state", "copy_rpc"].iter().map(|table| mapping(table)).collect();
    definition = definition.with("globalAttributes", json!(mappings)).rpc("copy", json!({}));
    app.register("copy", &definition);
    app.register("start", &Definition::without_start().with("globalAttributes", json!([mapping("copy_start")])));
    (app, worker)
}

/// Attributes `<table>.<column>`.
fn mapping(table: &str) -> Value {
    let attributes: Value = (0..COLUMNS.len()).map(|i| (format!("{table}.c{i}"), json!(format!("c{i}")))).collect();
    json!({"table": format!("public.{table}"), "primaryKey": "id", "attributes": attributes})
}

/// A session that reads and writes values in one format, whatever the settings of the server.
fn plain(app: &App, role: &str) -> Db {
    let mut db = app.session(role);
    db.run(
        "SET datestyle = 'ISO, MDY'; SET timezone = 'UTC'; SET intervalstyle = 'postgres'; SET bytea_output = 'hex';
         SET extra_float_digits = 1; SET xmloption = 'content'; SET timezone_abbreviations = 'Default';",
    );
    db
}

/// Checks that every column of the copy equals the source to the last digit.
fn is_a_copy(app: &App, table: &str) {
    let mut db = plain(app, "app");
    for (i, (of_type, value)) in COLUMNS.iter().enumerate() {
        // json keeps its text in the table and passes through jsonb on its way.
        let text = if *of_type == "json" { "::jsonb::text" } else { "::text" };
        let same =
            db.one::<bool>(&format!("SELECT s.c{i}{text} IS NOT DISTINCT FROM t.c{i}{text} FROM source s, {table} t"));
        let found = db.text(&format!("SELECT c{i}::text FROM {table}"));
        assert!(same, "{table}: {of_type} {value} became {found}");
    }
}

fn everything_is_copied(app: &App, worker: &Worker) {
    let mut db = app.db();
    let tables = [("public.source", "id"), ("public.copy_state", "id"), ("public.copy_rpc", "id")];
    db.start("p", "copy").keys(&tables, "k").go();
    worker.wait_for("the copy by the state", 20, |call| call.target() == "Wait");
    is_a_copy(app, "copy_state");
    db.run("SELECT xdb.invoke_rpc('p', 'copy')");
    is_a_copy(app, "copy_rpc");
    let state = worker.wait_for("the state", 1, |call| call.executes("Copy"));
    let rpc = worker.wait_for("the RPC", 1, |call| call.api == Api::Rpc);
    let (state, rpc) = (raw_globals(&state), raw_globals(&rpc));
    let source = |globals: &BTreeMap<String, Box<RawValue>>| {
        let of_source = globals.iter().filter(|(name, _)| name.starts_with("source."));
        of_source.map(|(name, value)| (name.clone(), value.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(source(&state), source(&rpc), "engine and callers see different values");
    // A start writes what an RPC has read.
    let globals: Vec<_> = source(&rpc)
        .into_iter()
        .map(|(name, value)| format!("{}:{value}", json!(name.replace("source", "copy_start"))))
        .collect();
    let globals = xdb_cluster_tests::db::literal(&format!("{{{}}}", globals.join(",")));
    db.run(&format!(
        "SELECT xdb.start_process('s', 'start', global_attribute_pk => 'k', global_attributes => {globals})"
    ));
    is_a_copy(app, "copy_start");
}

#[test]
fn every_type_is_read_and_written_without_loss() {
    let (app, worker) = application("columns_all", ClusterOptions::default());
    everything_is_copied(&app, &worker);
    app.done(&[]);
}

#[test]
fn the_settings_of_server_role_and_session_make_no_difference() {
    let hostile = ClusterOptions::default()
        .set("datestyle", "SQL, DMY")
        .set("timezone", "Asia/Kathmandu")
        .set("intervalstyle", "sql_standard")
        .set("bytea_output", "escape")
        .set("extra_float_digits", "-15")
        .set("xmloption", "document")
        .set("timezone_abbreviations", "Australia");
    let (app, worker) = application("columns_hostile", hostile);
    app.superuser().run(
        "ALTER ROLE app SET datestyle = 'German, YMD'; ALTER ROLE app SET timezone = 'America/St_Johns';
         ALTER ROLE app SET intervalstyle = 'postgres_verbose'; ALTER ROLE app SET bytea_output = 'escape';
         ALTER ROLE app SET extra_float_digits = -10;",
    );
    everything_is_copied(&app, &worker);

    // What has more than one meaning has the same one everywhere.
    let mut db = app.db();
    db.run(
        "CREATE TABLE meaning (id text PRIMARY KEY, d date, ts timestamptz, abbreviated timestamptz, at timestamptz)",
    );
    let meaning = json!({"d": "03/04/2026", "ts": "2026-07-01 12:00:00", "abbreviated": "2026-07-01 12:00 EST"});
    let wanted = "2026-03-04 2026-07-01T12:00:00+00:00 2026-07-01T17:00:00+00:00";
    let shown = "SELECT to_char(d, 'YYYY-MM-DD') || ' ' || to_char(ts AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS')
        || '+00:00 ' || to_char(abbreviated AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') || '+00:00' FROM meaning WHERE id = ";
    let written = meaning.clone();
    worker.misbehave(move |call| match call.api {
        Api::Rpc => output(json!(null)).globals(written.clone()),
        _ => force_complete(json!(null)).globals(written.clone()),
    });
    let definition = one_step().maps("public.meaning", "id", &["d", "ts", "abbreviated"]).rpc("write", json!({}));
    app.register("meaning", &definition);
    app.register("passive", &Definition::without_start().maps("public.meaning", "id", &["d", "ts", "abbreviated"]));
    db.start("by-start", "passive").key("start").globals(meaning.clone()).go();
    assert_eq!(db.text(&format!("{shown} 'start'")), wanted);
    db.run("INSERT INTO meaning (id) VALUES ('state'), ('rpc')");
    db.start("by-state", "meaning").key("state").go();
    db.completes("by-state");
    assert_eq!(db.text(&format!("{shown} 'state'")), wanted);
    app.register("asked", &Definition::without_start().maps("public.meaning", "id", &["d", "ts", "abbreviated"]));
    db.run("SET datestyle = 'Postgres, YMD'; SET timezone = 'Pacific/Apia'");
    db.start("by-rpc", "asked").key("rpc").go();
    db.run("SELECT xdb.invoke_rpc('by-rpc', 'write')");
    assert_eq!(db.text(&format!("{shown} 'rpc'")), wanted);
    assert_eq!(db.text("SHOW timezone"), "Pacific/Apia", "the caller's settings are the caller's");
    assert_eq!(db.text("SHOW datestyle"), "Postgres, YMD");

    // Keys are values too.
    db.run(
        "CREATE TABLE by_time (at timestamptz, span interval, note text, PRIMARY KEY (at, span));
         INSERT INTO by_time VALUES ('2026-03-04 05:06:07+00', '-1 day 02:00', 'found');",
    );
    worker.misbehave(|call| force_complete(call.global("note").clone()));
    app.register(
        "by_time",
        &one_step().with(
            "globalAttributes",
            json!([{"table": "public.by_time", "primaryKey": ["at", "span"], "attributes": {"note": "note"}}]),
        ),
    );
    let keys =
        json!({"globalAttributeKeys": {"public.by_time": {"at": "2026-03-04 05:06:07", "span": "-1 day 02:00"}}});
    db.start("by-time", "by_time").options(keys).go();
    assert_eq!(db.completes("by-time").result(), "found");
    app.done(&[]);
}

#[test]
fn json_null_is_sql_null() {
    let app = App::new("columns_null");
    let mut db = app.db();
    db.run(
        "CREATE TABLE nulls (id text PRIMARY KEY, j jsonb, inner_null jsonb, t text, needed jsonb NOT NULL DEFAULT '1');
         INSERT INTO nulls VALUES ('k', 'null', '[null]', 'null')",
    );
    let _worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null if call.input() == "bad" => force_complete(json!(null)).globals(json!({"needed": null})),
        Value::Null => force_complete(call.body["loadedGlobalAttributes"].clone())
            .globals(json!({"j": null, "inner_null": {"a": null}, "t": null})),
        refused => force_complete(refused["sqlState"].clone()),
    });
    app.register("nulls", &one_step().maps("public.nulls", "id", &["j", "inner_null", "t", "needed"]));
    db.start("p", "nulls").key("k").go();
    let read = json!({"j": null, "inner_null": [null], "t": "null", "needed": 1});
    assert_eq!(db.completes("p").result(), &read);
    assert!(db.one::<bool>("SELECT j IS NULL AND t IS NULL AND inner_null = '{\"a\": null}' FROM nulls"));
    db.start("bad", "nulls").key("k").input(json!("bad")).go();
    assert_eq!(db.completes("bad").result(), "23502");
    app.done(&[]);
}

#[test]
fn a_value_that_a_column_type_refuses_is_refused_and_never_changed() {
    let app = App::new("columns_refused");
    let mut db = app.db();
    db.run(
        &TYPES
            .lines()
            .filter(|line| !line.contains("CREATE EXTENSION"))
            .collect::<String>()
            .replace("GRANT USAGE ON SCHEMA other_types TO PUBLIC;", ""),
    );
    db.run(
        "CREATE TABLE strict (id text PRIMARY KEY, v varchar(3), c char(3), b bit(2), e mood, p positive DEFAULT 1, s short,
             vs varchar(3)[], g int GENERATED ALWAYS AS (length(v)) STORED, i int GENERATED ALWAYS AS IDENTITY,
             d int GENERATED BY DEFAULT AS IDENTITY, n numeric(4,1), small smallint, x pair, r int4range);
         INSERT INTO strict (id, v) VALUES ('k', 'old')",
    );
    let columns = ["v", "c", "b", "e", "p", "s", "vs", "g", "i", "d", "n", "small", "x", "r"];
    let _worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => force_complete(json!(call.body["loadedGlobalAttributes"])).globals(call.input().clone()),
        refused => force_complete(refused["sqlState"].clone()),
    });
    app.register("strict", &one_step().maps("public.strict", "id", &columns));
    app.register("start", &Definition::without_start().maps("public.strict", "id", &columns));
    let cases = [
        (json!({"v": "four"}), "22001"),
        (json!({"c": "four"}), "22001"),
        (json!({"s": "four"}), "22001"),
        (json!({"vs": ["ok", "four"]}), "22001"),
        (json!({"b": "101"}), "22026"),
        (json!({"e": "HAPPY"}), "22P02"),
        (json!({"p": -1}), "23514"),
        (json!({"p": null}), "23502"),
        (json!({"s": "bad"}), "23514"),
        (json!({"g": 3}), "428C9"),
        (json!({"i": 3}), "428C9"),
        (json!({"n": 1234.5}), "22003"),
        (json!({"small": 32768}), "22003"),
        (json!({"small": 1.5}), "22P02"),
        (json!({"x": [1]}), "22023"),
        (json!({"vs": {"a": 1}}), "22P02"),
        (json!({"r": "[5,1]"}), "22000"),
    ];
    for (n, (write, code)) in cases.iter().enumerate() {
        let id = format!("p{n}");
        db.start(&id, "strict").key("k").input(write.clone()).go();
        assert_eq!(db.completes(&id).result(), code, "{write}");
        db.start(&format!("s{n}"), "start").key(&format!("new{n}")).globals(write.clone()).refused(code);
    }
    assert_eq!(db.count("strict"), 1);
    assert_eq!(db.text("SELECT v FROM strict"), "old");
    // Generated columns can be read. A column that is an identity only by default can be written.
    db.start("fine", "strict").key("k").input(json!({"v": "ab", "d": 77, "n": 1.25})).go();
    let read = db.completes("fine").result().clone();
    assert_eq!((&read["g"], &read["i"]), (&json!(3), &json!(1)));
    assert_eq!(db.text("SELECT g || ' ' || d || ' ' || n FROM strict"), "2 77 1.3");
    app.done(&[]);
}

/// Such types define by a cast how they become JSON. There is no way back, except for a value that was a text.
#[test]
fn a_type_that_reads_as_an_object_and_accepts_none_is_named() {
    let app = App::new("columns_objects");
    app.superuser().run(
        "CREATE SCHEMA other_types; CREATE EXTENSION hstore SCHEMA other_types; GRANT USAGE ON SCHEMA other_types TO PUBLIC;
         CREATE DOMAIN tags AS other_types.hstore; CREATE TYPE tagged AS (n int, h other_types.hstore);
         CREATE TYPE level AS ENUM ('low', 'high');
         CREATE FUNCTION level_as_json(level) RETURNS json LANGUAGE sql AS $$ SELECT json_build_object('level', $1::text) $$;
         CREATE CAST (level AS json) WITH FUNCTION level_as_json(level)",
    );
    app.db().run(
        "CREATE TABLE objects (id text PRIMARY KEY, h other_types.hstore, d tags, a other_types.hstore[], t tagged, l level);
         INSERT INTO objects VALUES ('r', 'a=>1', 'a=>1', ARRAY['a=>1'::other_types.hstore], ROW(1, 'a=>1'), 'low')",
    );
    let worker = app.worker(|call: &Call| {
        let answer = match call.api {
            Api::Rpc => output(json!(null)),
            _ if !call.refused_write().is_null() => return force_complete(call.refused_write()["message"].clone()),
            _ => force_complete(json!(null)),
        };
        answer.globals(call.input().clone())
    });
    let definition = one_step().rpc("write", json!({})).maps("public.objects", "id", &["h", "d", "a", "t", "l"]);
    app.register("objects", &definition);
    app.register("called", &definition.with("startingState", json!(null)));
    let mut db = app.db();
    db.start("called", "called").key("r").go();
    let read = json!({"a": "1"});
    let refusals = [
        ("h", read.clone(), "column \"h\" is of type other_types.hstore, which refused the value: "),
        ("d", read.clone(), "column \"d\" is of type other_types.hstore, which refused the value: "),
        ("a", json!([read]), "column \"a\" is of type other_types.hstore[], which refused the value: "),
        ("t", json!({"n": 1, "h": read}), "column \"t\" is of type public.tagged, which refused the value: "),
        ("l", json!({"level": "low"}), "invalid input value for enum "),
    ];
    for (column, value, message) in &refusals {
        let process = format!("state {column}");
        db.start(&process, "objects").key("r").input(json!({*column: value})).go();
        let result = db.completes(&process).result().clone();
        assert!(result.as_str().is_some_and(|result| result.starts_with(message)), "{column}: {result}");
        assert_eq!(worker.calls().last().expect("a call").refused_write()["sqlState"], "22P02");
        assert_eq!(worker.calls().last().expect("a call").global(column), value, "it is read as its cast says");
        let call = format!("SELECT xdb.invoke_rpc('called', 'write', {})", jsonb(&json!({*column: value})));
        let error = db.refused("22P02", &call);
        assert!(error.message.starts_with(message), "{error:?}");
    }
    // As the types read it.
    let written = json!({"h": "b=>2", "d": "b=>3", "a": ["b=>4"], "t": {"n": 2, "h": "b=>5"}, "l": "high"});
    db.start("texts", "objects").key("r").input(written).go();
    assert_eq!(db.completes("texts").result(), &json!(null));
    let now = "SELECT concat_ws(' ', h, d, a, t, l) FROM objects";
    assert_eq!(db.text(now), r#""b"=>"2" "b"=>"3" {"\"b\"=>\"4\""} (2,"""b""=>""5""") high"#);
    app.done(&[]);
}
