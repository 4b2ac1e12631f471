//! Code of the application in a table attacks the engine, its superuser and other roles. Every attack fails.

use xdb_cluster_tests::prelude::*;

/// How long processes may take that have nothing to do with the attack. On a quiet machine it is a fraction of a
/// second.
const SOON: Duration = Duration::from_secs(10);

/// Functions and operators in `public`. A `search_path` that begins with `public` finds them before the system's own.
/// Each writes the name of its current role to `witness`, and tries to make `app` a superuser.
const AMBUSH: &str = r#"
    CREATE TABLE witness (who text);
    GRANT INSERT ON witness TO PUBLIC;
    CREATE FUNCTION spring() RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.witness VALUES (current_user);
            BEGIN
                ALTER ROLE app SUPERUSER;
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
        END $$;
    DO $do$
    DECLARE
        kind text;
        operator text;
        function text;
    BEGIN
        FOREACH kind IN ARRAY '{uuid,text,name,int2,int4,int8,oid,timestamptz}'::text[] LOOP
            FOREACH operator IN ARRAY '{=,<>,<,<=,>,>=}'::text[] LOOP
                function := format('ambush_%s_%s', kind, md5(operator));
                EXECUTE format('CREATE FUNCTION public.%1$I(%2$s, %2$s) RETURNS boolean LANGUAGE plpgsql AS
                    $f$ BEGIN PERFORM public.spring(); RETURN $1 OPERATOR(pg_catalog.%3$s) $2; END $f$',
                    function, kind, operator);
                EXECUTE format('CREATE OPERATOR public.%3$s (FUNCTION = public.%1$I, LEFTARG = %2$s, RIGHTARG = %2$s)',
                    function, kind, operator);
            END LOOP;
        END LOOP;
    END $do$;
    CREATE FUNCTION mislead(how text) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            CASE how
                WHEN 'set' THEN
                    SET lock_timeout = '1ms'; SET statement_timeout = '1ms'; SET synchronous_commit = off;
                    SET app."user" = 'app'; SET search_path = public, pg_catalog;
                WHEN 'set_local' THEN
                    SET LOCAL lock_timeout = '1ms'; SET LOCAL statement_timeout = '1ms';
                    SET LOCAL synchronous_commit = off; SET LOCAL app."user" = 'app';
                    SET LOCAL search_path = public, pg_catalog;
                ELSE
                    PERFORM set_config(name, value, how = 'config_local')
                    FROM (VALUES ('lock_timeout', '1ms'), ('statement_timeout', '1ms'), ('synchronous_commit', 'off'),
                        ('app.user', 'app')) AS s (name, value);
                    PERFORM set_config('search_path', 'public, pg_catalog', how = 'config_local');
            END CASE;
            RETURN gen_random_uuid() <> gen_random_uuid();
        END $$;"#;

/// The ways of [`AMBUSH`]'s function `mislead`.
const WAYS: [&str; 4] = ["set", "set_local", "config", "config_local"];

/// Checks that the ways of misleading were tried, and that only `app` itself ran the code of `app`.
fn no_code_of_app_ran_as_another_role(superuser: &mut Db) {
    assert!(superuser.count("witness WHERE who = 'app'") > 0, "the ambush fails, and the test tests nothing");
    assert_eq!(superuser.all::<String>("SELECT who FROM witness WHERE who <> 'app'"), Vec::<String>::new());
    assert!(!superuser.one::<bool>("SELECT rolsuper FROM pg_roles WHERE rolname = 'app'"));
}

/// Processes of `app` write the table `mine`, as `trap` says. In the same turn, processes of `other` follow, and show
/// which settings hold for them.
fn settings_of_an_owner_stay_with_its_processes(name: &str, trap: &str) {
    let app = App::new(name);
    let mut db = app.db();
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int, how text);
         INSERT INTO mine SELECT way || '-' || n, 0, way
         FROM unnest('{set,set_local,config,config_local}'::text[]) way, generate_series(1, 3) n;",
    );
    db.run(AMBUSH);
    db.run(trap);
    let mut other = app.session("other");
    other.run(
        "CREATE TABLE theirs (id text PRIMARY KEY, n int, met text);
         INSERT INTO theirs SELECT 'q' || n, 0 FROM generate_series(0, 20) n;
         CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 new.met := concat_ws('|', current_setting('search_path'), current_setting('lock_timeout'),
                     current_setting('statement_timeout'), current_setting('synchronous_commit'),
                     nullif(current_setting('app.user', true), ''));
                 RETURN new;
             END $$;
         CREATE TRIGGER meet BEFORE UPDATE ON theirs FOR EACH ROW EXECUTE FUNCTION meet();",
    );
    let worker = app.worker(|call: &Call| {
        let answer = force_complete(json!(null)).globals(json!({"n": 1}));
        if call.process_id() == "q0" || call.attempt() > 1 { answer.into() } else { Reply::hang(answer) }
    });
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    app.register("theirs", &one_step().maps("public.theirs", "id", &["n"]));

    // The settings of a trigger before any attack.
    other.start("q0", "theirs").key("q0").go();
    other.completes("q0");
    for way in WAYS {
        for n in 1..=3 {
            let key = format!("{way}-{n}");
            db.start(&key, "mine").key(&key).go();
        }
    }
    for n in 1..=20 {
        other.start(&format!("q{n}"), "theirs").key(&format!("q{n}")).go();
    }
    worker.wait_for_count("all calls", 20, 33, |_| true);
    worker.release();
    for way in WAYS {
        for n in 1..=3 {
            db.completes(&format!("{way}-{n}"));
        }
    }
    for n in 1..=20 {
        other.completes(&format!("q{n}"));
    }
    let mut superuser = app.superuser();
    no_code_of_app_ran_as_another_role(&mut superuser);
    let met = superuser.all::<String>("SELECT DISTINCT met FROM theirs");
    assert_eq!(met.len(), 1, "{met:?}");
    app.done(&[]);
}

#[test]
fn a_triggers_settings_end_with_its_step() {
    settings_of_an_owner_stay_with_its_processes(
        "defence_trigger",
        "CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM public.mislead(old.how); RETURN new; END $$;
         CREATE TRIGGER trap BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION trap();",
    );
}

#[test]
fn the_settings_of_a_policys_function_end_with_the_read() {
    settings_of_an_owner_stay_with_its_processes(
        "defence_policy",
        "ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         CREATE POLICY trap ON mine USING (mislead(how));",
    );
}

#[test]
fn a_start_in_a_misled_session_reaches_nothing_of_the_engines() {
    let app = App::new("defence_session");
    let _worker = app.worker(|_| force_complete(json!(null)).globals(json!({"n": 1})));
    let mut db = app.db();
    db.run(AMBUSH);
    db.run(
        "CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM public.mislead('set_local'); SET LOCAL statement_timeout = 0; RETURN new; END $$;
         CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION trap();",
    );
    app.register("counted", &one_step().maps("public.counters", "id", &["n"]));
    for round in 0..2 {
        let id = format!("p{round}");
        db.run("BEGIN");
        db.start(&id, "counted").key(&id).globals(json!({"n": 0})).go();
        db.run(&format!("SELECT xdb.publish('{id}', 'inbox', '1')"));
        db.run("COMMIT");
        db.completes(&id);
    }
    let mut superuser = app.superuser();
    no_code_of_app_ran_as_another_role(&mut superuser);
    app.done(&[]);
}

/// A table raises an error of the server's own kind. Other processes go on, and so does this one when the table is
/// repaired.
fn a_feigned_disaster_is_the_tables_own(name: &str, code: &str, trap: &str, mend: &str) {
    let app = App::new(name);
    let mut db = app.db();
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int);
         INSERT INTO mine SELECT 'p' || n, 0 FROM generate_series(1, 3) n;",
    );
    let mut other = app.session("other");
    other.run("CREATE TABLE theirs (id text PRIMARY KEY, n int)");
    let worker = app.worker(|_| force_complete(json!(null)).globals(json!({"n": 1})));
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    app.register("theirs", &one_step().maps("public.theirs", "id", &["n"]));
    app.register("plain", &one_step());
    db.run(&trap.replace("SQLSTATE", code));
    for n in 1..=3 {
        db.start(&format!("p{n}"), "mine").key(&format!("p{n}")).go();
    }
    let (took, ()) = timed(|| {
        for round in 0..3 {
            for n in 0..5 {
                let id = format!("q{round}-{n}");
                other.start(&id, "theirs").key(&id).globals(json!({"n": 0})).go();
            }
            for n in 0..5 {
                other.completes(&format!("q{round}-{n}"));
            }
        }
    });
    assert!(took < SOON, "fifteen processes of another owner took {took:?}");
    assert_eq!(views::with_status(&mut db, "p%", "RUNNING"), 3);
    db.run(mend);
    for n in 1..=3 {
        db.completes(&format!("p{n}"));
    }
    assert_eq!(db.count("mine WHERE n = 1"), 3);
    assert_eq!(other.count("theirs WHERE n = 1"), 15);
    drop(worker);
    app.done(&[]);
}

const FEIGNING_TRIGGER: &str = "CREATE FUNCTION feign() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'feigned' USING ERRCODE = 'SQLSTATE'; END $$;
    CREATE TRIGGER feign BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION feign();";

const FEIGNING_POLICY: &str = "CREATE FUNCTION feign() RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'feigned' USING ERRCODE = 'SQLSTATE'; END $$;
    ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY feign ON mine USING (feign());";

#[test]
fn a_trigger_that_feigns_a_full_disk() {
    let mend = "DROP TRIGGER feign ON mine";
    a_feigned_disaster_is_the_tables_own("defence_53_trigger", "53100", FEIGNING_TRIGGER, mend);
}

#[test]
fn a_trigger_that_feigns_a_broken_server() {
    let mend = "DROP TRIGGER feign ON mine";
    a_feigned_disaster_is_the_tables_own("defence_58_trigger", "58000", FEIGNING_TRIGGER, mend);
}

#[test]
fn a_policy_that_feigns_a_lack_of_resources() {
    let mend = "ALTER TABLE mine DISABLE ROW LEVEL SECURITY";
    a_feigned_disaster_is_the_tables_own("defence_53_policy", "53000", FEIGNING_POLICY, mend);
}

#[test]
fn a_policy_that_feigns_a_broken_server() {
    let mend = "ALTER TABLE mine DISABLE ROW LEVEL SECURITY";
    a_feigned_disaster_is_the_tables_own("defence_58_policy", "58000", FEIGNING_POLICY, mend);
}

#[test]
fn a_trigger_sets_a_setting_by_which_an_error_would_end_the_engine() {
    let app = App::new("defence_exit");
    let _worker = app.worker(|call: &Call| {
        let done = force_complete(json!(call.refused_write()["sqlState"]));
        let writes = call.refused_write().is_null() && !call.process_id().starts_with("plain");
        if writes { done.globals(json!({"n": 1})) } else { done }
    });
    let (mut db, mut other, mut superuser) = (app.db(), app.session("other"), app.superuser());
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int);
         CREATE FUNCTION with_clause() RETURNS void LANGUAGE plpgsql SET exit_on_error = on AS $$ BEGIN RAISE 'no'; END $$;
         CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN EXECUTE new.id; PERFORM pg_sleep(0.01); RAISE 'no'; END $$;
         CREATE TRIGGER trap BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION trap();",
    );
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    app.register("plain", &one_step());
    let mut ways = vec![
        "SET exit_on_error = on",
        "SET LOCAL exit_on_error = on",
        "SELECT set_config('exit_on_error', 'on', false)",
        "SELECT public.with_clause()",
    ];
    if superuser.count("pg_settings WHERE name = 'transaction_timeout'") == 1 {
        ways.push("SET transaction_timeout = '1ms'");
    }
    let scheduler = app.scheduler();
    for way in &ways {
        db.run(&format!("INSERT INTO mine VALUES ($${way}$$, 0)"));
        db.start(way, "mine").key(way).go();
    }
    for way in &ways {
        assert_eq!(db.completes(way).result(), "55P02", "{way}: the setting can't be changed now");
        let beside = format!("plain, beside {way}");
        other.start(&beside, "plain").go();
        other.completes(&beside);
    }
    assert_eq!(app.scheduler(), scheduler, "the engine goes on");
    // The database's owner, who needs no privilege for it, can't do it either.
    superuser.run("ALTER DATABASE defence_exit SET exit_on_error = on");
    superuser.run(&format!("SELECT pg_terminate_backend({scheduler})"));
    wait_until("another scheduler is there", 20, || {
        app.cluster().find_scheduler("defence_exit").is_some_and(|pid| pid != scheduler)
    });
    let scheduler = app.scheduler();
    superuser.run("ALTER DATABASE defence_exit RESET exit_on_error");
    db.run("INSERT INTO mine VALUES ('SELECT 1 / 0', 0)");
    db.start("error", "mine").key("SELECT 1 / 0").go();
    assert_eq!(db.completes("error").result(), "22012");
    assert_eq!(app.scheduler(), scheduler, "the engine goes on");
    app.done(&[]);
}

#[test]
fn nothing_stays_in_the_lane_of_a_table_that_was_mended() {
    let app = App::alone("defence_lane", ClusterOptions::default());
    let mut db = app.db();
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int);
         INSERT INTO mine SELECT kind || n, 0 FROM unnest('{quick,slow}'::text[]) kind, generate_series(1, 4) n;
         CREATE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); RETURN new; END $$;
         CREATE TRIGGER hinder BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION hinder();",
    );
    let worker = app.worker(|_| force_complete(json!(null)).globals(json!({"n": 1})));
    let patient = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 8, "maximumIntervalSeconds": 8}});
    let mapped = |definition: Definition| definition.maps("public.mine", "id", &["n"]);
    app.register("quick", &mapped(one_step()));
    app.register("slow", &mapped(Definition::starting_with("Only").step_with("Only", patient)));
    for n in 1..=4 {
        for kind in ["quick", "slow"] {
            let id = format!("{kind}{n}");
            db.start(&id, kind).key(&id).go();
        }
    }
    let mut superuser = app.superuser();
    wait_until("the table is slow", 30, || views::engine(&mut superuser).contains("public.mine: "));
    // From sleeping to refusing: now every step of a runner fails at once, and its calls wait for their backoff.
    db.run(
        "CREATE OR REPLACE FUNCTION hinder() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
    );
    for n in 1..=4 {
        wait_until("the refusal is seen", 60, || !views::failures(&mut db, &format!("slow{n}")).is_empty());
    }
    db.run("DROP TRIGGER hinder ON mine");
    app.ten_minutes_pass();
    wait_until("all complete", 60, || {
        views::with_status(&mut db, "quick%", "COMPLETED") + views::with_status(&mut db, "slow%", "COMPLETED") == 8
    });
    wait_until("the lane is empty", 30, || superuser.count("xdb.task WHERE lane = 1") == 0);
    assert!(!views::engine(&mut superuser).contains("public.mine: "));
    wait_until("its runners end", 30, || {
        superuser.count("pg_stat_activity WHERE datname = current_database() AND application_name = 'xdb runner'") == 0
    });
    drop(worker);
    app.done(&[]);
}

#[test]
fn a_trigger_that_will_not_be_cancelled() {
    let app = App::alone("defence_stubborn", ClusterOptions::default());
    let mut db = app.db();
    db.run(
        "CREATE TABLE mine (id text PRIMARY KEY, n int);
         INSERT INTO mine SELECT 'p' || n, 0 FROM generate_series(1, 3) n;
         CREATE FUNCTION stubborn() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 LOOP
                     BEGIN
                         PERFORM pg_sleep(60);
                     EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(60);
                     END;
                 END LOOP;
             END $$;
         CREATE TRIGGER stubborn BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION stubborn();",
    );
    let worker = app.worker(|call: &Call| match call.process_id().starts_with('p') {
        true => force_complete(json!(null)).globals(json!({"n": 1})),
        false => force_complete(json!(null)),
    });
    app.register("mine", &one_step().maps("public.mine", "id", &["n"]));
    app.register("plain", &one_step());
    for n in 1..=3 {
        db.start(&format!("p{n}"), "mine").key(&format!("p{n}")).go();
    }
    worker.wait_for("the first answer on its way into the trigger", 10, |call| call.process_id().starts_with('p'));
    for n in 0..5 {
        let id = format!("q{n}");
        let (took, _) = timed(|| {
            db.start(&id, "plain").go();
            db.completes(&id);
        });
        assert!(took < SOON, "another owner's process took {took:?}");
    }
    let mut superuser = app.superuser();
    wait_until("the table is slow", 30, || views::engine(&mut superuser).contains("public.mine: "));
    let (took, _) = timed(|| {
        db.start("late", "plain").go();
        db.completes("late");
    });
    assert!(took < SOON, "slow: another owner's process took {took:?}");
    db.run("DROP TRIGGER stubborn ON mine");
    // No process uses a table that has ended one before that.
    app.ten_minutes_pass();
    wait_until("its processes complete", 90, || views::with_status(&mut db, "p%", "COMPLETED") == 3);
    app.done(&[]);
}

/// A key that the type of the key column would cut to `abcde`, which is the key of another role's row.
fn a_key_is_not_cut(name: &str, key_type: &str) {
    let app = App::new(name);
    let mut db = app.db();
    db.run(&format!("CREATE TABLE short (id {key_type} PRIMARY KEY, n int); INSERT INTO short VALUES ('abcde', 1)"));
    let worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => force_complete(call.global("n").clone()).globals(json!({"n": 99})),
        refused => force_complete(refused["sqlState"].clone()),
    });
    app.register("short", &one_step().maps("public.short", "id", &["n"]));
    db.start("start", "short").key("abcdefgh").globals(json!({"n": 99})).refused("22001");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('start')");
    // Without initial values nothing is written at the start; the step then finds no row.
    db.start("step", "short").key("abcdefgh").go();
    assert_eq!(db.completes("step").result(), codes::NO_DATA);
    let call = worker.wait_for("the step", 1, |_| true);
    assert_eq!(call.global("n"), &Value::Null, "the step read another owner's row");
    assert_eq!(db.text("SELECT string_agg(id || n, ' ') FROM short"), "abcde1");

    // A key that fits is found.
    db.start("fits", "short").key("abcde").go();
    assert_eq!(db.completes("fits").result(), 1);
    assert_eq!(db.one::<i32>("SELECT n FROM short"), 99);
    app.done(&[]);
}

#[test]
fn a_key_that_is_too_long_for_its_varchar() {
    a_key_is_not_cut("defence_varchar", "varchar(5)");
}

#[test]
fn a_key_that_is_too_long_for_its_char() {
    a_key_is_not_cut("defence_char", "char(5)");
}

#[test]
fn a_wait_inside_a_start_is_refused() {
    let app = App::new("defence_wait");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    app.register("mail", &mailbox().maps("public.users", "user_id", &["status"]));
    let mut db = app.db();
    db.start("running", "mail").key("u0").go();
    worker.wait_for("it is asked what it waits for", 10, |_| true);
    db.run(
        "CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM xdb.wait_for_process('running', '20 seconds'); RETURN new; END $$;
         CREATE TRIGGER linger BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION linger();",
    );
    let (took, _) = timed(|| {
        db.start("p", "mail").key("u1").globals(json!({"status": "new"})).refused(codes::WOULD_WAIT_FOR_ITSELF)
    });
    assert!(took < Duration::from_secs(5), "refused after {took:?}");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('p')");
    assert_eq!(db.count("users WHERE user_id = 'u1'"), 0);
    app.done(&[]);
}

#[test]
fn a_renamed_role_keeps_its_processes() {
    let app = App::new("defence_renamed");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(call.global("n").clone()).globals(json!({"n": 2})),
    });
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE maiden LOGIN; SELECT xdb.grant_usage('maiden'); GRANT ALL ON SCHEMA public TO maiden");
    let mut maiden = app.session("maiden");
    maiden.run("CREATE TABLE own (id text PRIMARY KEY, n int)");
    app.register("mail", &mailbox().maps("public.own", "id", &["n"]));
    for id in ["p", "q"] {
        maiden.start(id, "mail").key(id).globals(json!({"n": 1})).go();
    }
    worker.wait_for_count("both are asked what they wait for", 10, 2, |call| call.api == Api::WaitUntil);
    superuser.run("ALTER ROLE maiden RENAME TO married");
    maiden.publish("p", "inbox", json!(1));
    assert_eq!(maiden.completes("p").result(), 1);
    app.session("married").publish("q", "inbox", json!(1));
    assert_eq!(maiden.completes("q").result(), 1);
    assert_eq!(maiden.count("own WHERE n = 2"), 2);
    drop(maiden);
    superuser.run("DROP TABLE own; REVOKE ALL ON SCHEMA public FROM married; SELECT xdb.revoke_usage('married')");
    superuser.run("DROP ROLE married");
    app.done(&[]);
}

#[test]
fn a_value_of_another_type_than_expected_is_an_error() {
    let app = App::new("defences_types");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    // As in a schema that does not fit this library.
    superuser.run(
        "CREATE FUNCTION public.publish(int, int, jsonb, text, uuid) RETURNS void LANGUAGE c AS '$libdir/xdb', 'xdb_publish';
         CREATE FUNCTION public.version() RETURNS int LANGUAGE c AS '$libdir/xdb', 'xdb_library_version'",
    );
    let error = superuser.refused("XX000", "SELECT public.publish(42, 42, '{}', '', NULL)");
    assert!(error.message.contains("argument 0 of an SQL function has type integer instead of text"), "{error:?}");
    let error = superuser.refused("XX000", "SELECT public.version()");
    assert!(error.message.contains("the result of an SQL function"), "{error:?}");
    superuser.run("DROP FUNCTION public.publish, public.version");

    // A declaration with fewer columns has these, and one with more has nulls in them.
    let mut declared = |result: &str| {
        superuser.run("DROP FUNCTION IF EXISTS public.status");
        superuser.run(&format!(
            "CREATE FUNCTION public.status() RETURNS {result} LANGUAGE c AS '$libdir/xdb', 'xdb_status'"
        ));
        app.superuser()
    };
    let mut db = declared("TABLE (engine_pid int, state text)");
    wait_until("the engine runs", 20, || db.text("SELECT state FROM public.status()") == "running");
    let all = "a int, b text, c int, d bigint, e timestamptz, f float8, g timestamptz, h bigint, i text[], j text, k timestamptz, \
        l text, m int, n text, o bigint, p timestamptz, q text";
    let mut db = declared(&format!("TABLE ({all}, more date, most text)"));
    let row = db.json("SELECT to_json(s) FROM public.status() AS s");
    assert_eq!((&row["b"], &row["more"], &row["most"]), (&json!("running"), &json!(null), &json!(null)), "{row}");
    // A column of another type is an error, and so is a function that returns no set.
    let error = declared("TABLE (engine_pid int, state int)").refused("XX000", "SELECT public.status()");
    assert!(error.message.contains("column 1 of an SQL function has type integer instead of text"), "{error:?}");
    let error = declared("int").refused("XX000", "SELECT public.status()");
    assert!(error.message.contains("an SQL function that gives rows is not declared to return a set"), "{error:?}");
    superuser.run("DROP FUNCTION public.status");

    superuser.run("ALTER TABLE xdb.worker ALTER secrets TYPE bigint");
    let error = app.db().start("p", "one").refused("XX000");
    assert!(error.message.contains("column secrets of a result has type bigint instead of smallint"), "{error:?}");
    superuser.run("ALTER TABLE xdb.worker ALTER secrets TYPE smallint");
    app.db().start("p", "one").go();
    app.db().completes("p");
    app.done(&["instead of", "is not declared to return a set"]);
}
