//! A pull worker's session runs code of two roles: the worker, and the owner of the processes. Neither reaches the
//! rights or objects of the other.

use std::collections::{BTreeMap, BTreeSet};
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// The worker of the processes of `app` is the role `other`, which has no rights on their tables. `counter` maps a
/// table of `app`, and `locking` locks its row. `calling` calls a function of `app`.
fn application(app: App) -> (App, Db, Db) {
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'other')");
    let mut db = app.db();
    db.run("CREATE FUNCTION public.note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS ''");
    let other = app.session("other");
    register_types(&app);
    (app, db, other)
}

fn register_types(app: &App) {
    let counter = || Definition::starting_with("Count").maps("public.counters", "id", &["n"]);
    let locks = json!({"executeLoadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}});
    app.register_with("pull", "counter", &counter().step("Count"));
    app.register_with("pull", "locking", &counter().step_with("Count", locks));
    app.register_with(
        "pull",
        "calling",
        &Definition::starting_with("Count").step("Count").with("functions", json!({"note": "public.note"})),
    );
}

/// Claims need READ COMMITTED.
fn claim(db: &mut Db) -> String {
    db.run("BEGIN ISOLATION LEVEL READ COMMITTED");
    let token = db.one("SELECT token FROM xdb.claim_calls('pull')");
    db.run("COMMIT");
    token
}

/// The statement that answers a call of a counter: it writes this value, and closes.
fn complete(token: &str, n: i64) -> String {
    let answer = jsonb(&force_complete(json!(n)).globals(json!({"n": n})).json());
    format!("SELECT xdb.complete_call('{token}', {answer})")
}

/// The statement that answers a call by calling the function `note`, and closes.
fn complete_calling(token: &str) -> String {
    let mut answer = force_complete(json!(1)).json();
    answer["callFunctions"] = json!([{"function": "note"}]);
    format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer))
}

/// The owner's code in all its places: a trigger, a function that an answer calls, and a policy. Each writes to
/// `audit`, which it finds by its own `search_path`, and has all constraints checked.
const OWNERS_CODE: &str = "CREATE TABLE public.audit (who text, what text);
    CREATE FUNCTION public.audits(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = public AS $$
    BEGIN
        SET CONSTRAINTS ALL IMMEDIATE;
        INSERT INTO audit VALUES (current_user, what);
        RETURN true;
    END $$;
    CREATE FUNCTION public.audit_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.audits('row'); RETURN new; END $$;
    CREATE TRIGGER audit_row BEFORE UPDATE ON public.counters FOR EACH ROW EXECUTE FUNCTION public.audit_row();
    CREATE OR REPLACE FUNCTION public.note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS $$ SELECT public.audits('function') $$;";

/// The worker's preparations. `trap` creates an object that the owner's code would find first. `caught` records which
/// role has run the worker's code. Tables such as `deferring` have code that runs later.
const WORKERS_CODE: &str = "CREATE TABLE public.caught (who text); GRANT ALL ON public.caught TO PUBLIC;
    CREATE FUNCTION public.catches() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN new; END $$;
    CREATE FUNCTION public.catches_value(value text) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN true; END $$;
    CREATE FUNCTION public.trap(what text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        CASE what
        WHEN 'table' THEN
            CREATE TEMPORARY TABLE audit (who text, what text);
            CREATE TRIGGER catches BEFORE INSERT ON pg_temp.audit FOR EACH ROW EXECUTE FUNCTION public.catches();
            GRANT ALL ON pg_temp.audit TO PUBLIC;
        WHEN 'view' THEN
            CREATE TEMPORARY VIEW audit AS SELECT ''::text AS who, ''::text AS what;
            CREATE TRIGGER catches INSTEAD OF INSERT ON pg_temp.audit FOR EACH ROW EXECUTE FUNCTION public.catches();
            GRANT ALL ON pg_temp.audit TO PUBLIC;
        WHEN 'type' THEN
            CREATE DOMAIN pg_temp.jsonb AS pg_catalog.jsonb CHECK (public.catches_value(VALUE::text));
        WHEN 'function' THEN
            CREATE OR REPLACE FUNCTION pg_temp.audits(what text) RETURNS boolean LANGUAGE sql RETURN true;
        WHEN 'nothing' THEN
            NULL;
        WHEN 'again' THEN
            IF pg_trigger_depth() < 3 THEN
                SET CONSTRAINTS ALL DEFERRED;
                INSERT INTO public.deferring VALUES ('again');
            END IF;
        END CASE;
    END $$;
    CREATE FUNCTION public.springs() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.caught VALUES (current_user);
        PERFORM public.trap(new.what);
        RETURN NULL;
    END $$;
    CREATE TABLE public.deferring (what text);
    CREATE CONSTRAINT TRIGGER springs AFTER INSERT OR UPDATE ON public.deferring DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION public.springs();
    CREATE TABLE public.deferring_when_told (what text);
    CREATE CONSTRAINT TRIGGER springs AFTER INSERT OR UPDATE ON public.deferring_when_told DEFERRABLE INITIALLY IMMEDIATE
        FOR EACH ROW EXECUTE FUNCTION public.springs();
    CREATE FUNCTION public.springs_when_armed(what text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('trap.armed', true) = 'on' THEN
            INSERT INTO public.caught VALUES (current_user);
            PERFORM public.trap(what);
        END IF;
        RETURN what;
    END $$;
    CREATE FUNCTION public.key_of(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN RETURN public.springs_when_armed(what); END $$;
    CREATE TABLE public.excluding (number int, what text);
    ALTER TABLE public.excluding ADD EXCLUDE USING btree (public.key_of(what) WITH =) DEFERRABLE INITIALLY DEFERRED;";

/// Statements that leave deferred code of the worker in its transaction, one for each way. `$` stands for the kind of
/// trap.
const DEFERRED: [(&str, &str); 6] = [
    ("a constraint trigger", "INSERT INTO public.deferring VALUES ('$')"),
    (
        "of an update",
        "INSERT INTO public.deferring VALUES ('function'); SET CONSTRAINTS ALL DEFERRED; UPDATE public.deferring SET what = '$'",
    ),
    ("that was told to", "SET CONSTRAINTS ALL DEFERRED; INSERT INTO public.deferring_when_told VALUES ('$')"),
    ("of a nested statement", "DO 'BEGIN EXECUTE ''INSERT INTO public.deferring VALUES (''''$'''')''; END'"),
    ("in a subtransaction", "SAVEPOINT s; INSERT INTO public.deferring VALUES ('$'); RELEASE s"),
    (
        "an index expression",
        "INSERT INTO public.excluding VALUES (1, '$'), (2, '$'); DELETE FROM public.excluding WHERE number = 1; SET trap.armed = on",
    ),
];

/// Deletes the rows that [`DEFERRED`] leaves.
const EMPTIES: &str = "DELETE FROM public.caught; DELETE FROM public.deferring; DELETE FROM public.deferring_when_told;
    DELETE FROM public.excluding";

const TRAPS: [&str; 5] = ["table", "view", "type", "function", "again"];

fn deferred_code_runs_before_the_owners(app: App) {
    let (app, mut db, mut other) = application(app);
    db.run(OWNERS_CODE);
    other.run(WORKERS_CODE);
    for (way, statements) in DEFERRED {
        for trap in TRAPS {
            let what = format!("{trap} by {way}");
            let statements = statements.replace('$', trap);
            for process_type in ["counter", "locking", "calling"] {
                let start = db.start("c", process_type);
                match process_type {
                    "calling" => start.go(),
                    _ => start.key("c").globals(json!({"n": 0})).go(),
                };
                let token = claim(&mut other);
                let completes = match process_type {
                    "calling" => complete_calling(&token),
                    _ => complete(&token, 5),
                };
                // The worker's code has run, and made or deferred something.
                other.run("BEGIN");
                let error = other.refused("42501", &format!("{statements}; {completes}"));
                assert!(error.message.contains("temporary") || error.message.contains("deferred"), "{what}: {error:?}");
                other.run("ROLLBACK");
                other.run(&completes);
                assert_eq!(db.completes("c").status(), "COMPLETED", "{what}, {process_type}");
                other.run("RESET trap.armed; DISCARD TEMP");
                let caught: Vec<String> = other.all("SELECT DISTINCT who FROM public.caught WHERE who <> 'other'");
                assert_eq!(
                    caught,
                    Vec::<String>::new(),
                    "{what}, {process_type}: the worker's code ran as another role"
                );
                assert_eq!(
                    db.count("public.audit"),
                    1,
                    "{what}, {process_type}: the owner's code did not find its table"
                );
                db.run("DELETE FROM public.audit; DELETE FROM public.counters");
                other.repeated(EMPTIES);
            }
        }
    }
    app.done(&[]);
}

#[test]
fn a_workers_deferred_code_runs_before_the_owners_and_never_as_the_owner() {
    deferred_code_runs_before_the_owners(App::new("boundary_deferred"));
}

#[test]
fn a_workers_deferred_code_never_runs_as_the_owner_in_a_hostile_database() {
    deferred_code_runs_before_the_owners(App::hostile("hostile_deferred"));
}

/// The session belongs to another role than the answering function: the function runs as the owner itself.
fn deferred_code_never_runs_as_a_definer(app: App) {
    let (app, mut db, mut other) = application(app);
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    db.run(OWNERS_CODE);
    db.run(
        "CREATE FUNCTION public.answers(token text, answer jsonb) RETURNS void LANGUAGE sql SECURITY DEFINER
             SET search_path = pg_catalog, pg_temp AS 'SELECT xdb.complete_call(token, answer)'",
    );
    other.run(WORKERS_CODE);
    for (way, statements) in DEFERRED {
        for trap in TRAPS {
            let what = format!("{trap} by {way}");
            db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
            let completes = complete(&claim(&mut db), 5).replace("xdb.complete_call", "public.answers");
            other.run("BEGIN");
            let error = other.refused("42501", &format!("{}; {completes}", statements.replace('$', trap)));
            assert!(error.message.contains("temporary") || error.message.contains("deferred"), "{what}: {error:?}");
            other.run("ROLLBACK");
            // Nothing that it makes, and its own rights.
            other.run("BEGIN; INSERT INTO public.deferring VALUES ('nothing')");
            other.run(&format!("{completes}; COMMIT; RESET trap.armed; DISCARD TEMP"));
            assert_eq!(db.completes("c").status(), "COMPLETED", "{what}");
            assert_eq!(other.all::<String>("SELECT DISTINCT who FROM public.caught"), ["other"], "{what}");
            assert_eq!(db.all::<String>("SELECT who FROM public.audit"), ["app"], "{what}");
            db.run("DELETE FROM public.audit; DELETE FROM public.counters");
            other.repeated(EMPTIES);
        }
    }
    app.done(&[]);
}

#[test]
fn a_sessions_deferred_code_never_runs_as_the_definer_of_a_function_that_answers() {
    deferred_code_never_runs_as_a_definer(App::new("boundary_definer"));
}

#[test]
fn a_sessions_deferred_code_never_runs_as_the_definer_in_a_hostile_database() {
    deferred_code_never_runs_as_a_definer(App::hostile("hostile_definer"));
}

fn deferred_code_runs_before_a_claim(app: App) {
    let (app, mut db, mut other) = application(app);
    db.run(OWNERS_CODE);
    db.run(
        "ALTER TABLE public.counters ENABLE ROW LEVEL SECURITY; ALTER TABLE public.counters FORCE ROW LEVEL SECURITY;
         CREATE POLICY writes ON public.counters FOR ALL USING (true);
         CREATE POLICY reads ON public.counters AS RESTRICTIVE FOR SELECT USING (public.audits('policy'))",
    );
    other.run(WORKERS_CODE);
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    for (way, statements) in DEFERRED {
        for trap in TRAPS {
            let what = format!("{trap} by {way}");
            db.run("DELETE FROM public.audit");
            other.run("BEGIN ISOLATION LEVEL READ COMMITTED");
            let claims = format!("{}; SELECT token FROM xdb.claim_calls('pull')", statements.replace('$', trap));
            let error = other.refused("42501", &claims);
            assert!(error.message.contains("temporary") || error.message.contains("deferred"), "{what}: {error:?}");
            other.run("ROLLBACK");
            other.run("RESET trap.armed; DISCARD TEMP");
            let token = claim(&mut other);
            other.run(&format!("SELECT xdb.fail_call('{token}')"));
            let caught: Vec<String> = other.all("SELECT DISTINCT who FROM public.caught WHERE who <> 'other'");
            assert_eq!(caught, Vec::<String>::new(), "{what}: the worker's code ran as another role");
            other.repeated(EMPTIES);
        }
    }
    db.run("SELECT xdb.stop_process('c')");
    app.done(&[]);
}

#[test]
fn a_claim_has_a_workers_deferred_code_run_before_it_reads_the_owners_rows() {
    deferred_code_runs_before_a_claim(App::new("boundary_claims"));
}

#[test]
fn a_claim_has_a_workers_deferred_code_run_first_in_a_hostile_database() {
    deferred_code_runs_before_a_claim(App::hostile("hostile_claims"));
}

/// In a cluster of its own, because no other test's worker may have the owner's rights.
#[test]
fn a_worker_of_the_owners_rights_keeps_its_deferred_code_as_it_is() {
    let (app, mut db, mut other) = application(App::alone("boundary_same", ClusterOptions::default()));
    db.run(OWNERS_CODE);
    app.superuser().run("GRANT app TO other");
    other.run(WORKERS_CODE);
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    let token = claim(&mut other);
    // What it makes for a moment is its own affair: the owner trusts it.
    other.run(
        "CREATE OR REPLACE FUNCTION public.trap(what text) RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN CREATE TEMPORARY TABLE for_a_moment (a int) ON COMMIT DROP; END $$",
    );
    other.run(&format!("BEGIN; INSERT INTO public.deferring VALUES ('x'); {}; COMMIT", complete(&token, 5)));
    assert_eq!(db.completes("c").status(), "COMPLETED");
    assert_eq!(other.all::<String>("SELECT who FROM public.caught"), ["other"]);
    app.done(&[]);
}

/// In a cluster of its own, because no other test's worker may have the owner's rights.
fn receives_no_messages(app: App) {
    let (app, mut db, mut other) = application(app);
    db.run(
        "CREATE TABLE public.vault (hidden text);
         CREATE FUNCTION public.says(what text) RETURNS boolean LANGUAGE plpgsql AS $$
         BEGIN
             RAISE DEBUG 'secret %', what; RAISE LOG 'secret %', what; RAISE INFO 'secret %', what;
             RAISE NOTICE 'secret %', what; RAISE WARNING 'secret %', what;
             PERFORM hidden FROM public.vault;
             RETURN true;
         END $$;
         CREATE FUNCTION public.say_row() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM public.says('of a trigger'); ASSERT new.n < 100; RETURN new; END $$;
         CREATE TRIGGER say_row BEFORE UPDATE ON public.counters FOR EACH ROW EXECUTE FUNCTION public.say_row();
         CREATE OR REPLACE FUNCTION public.note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS $$ SELECT public.says('of a function') $$;
         ALTER TABLE public.counters ENABLE ROW LEVEL SECURITY; ALTER TABLE public.counters FORCE ROW LEVEL SECURITY;
         CREATE POLICY writes ON public.counters FOR ALL USING (true);
         CREATE POLICY reads ON public.counters AS RESTRICTIVE FOR SELECT USING (public.says('of a policy'))",
    );
    let start = |db: &mut Db, id: &str| {
        db.start(id, "locking").key(id).globals(json!({"n": 0})).go();
    };
    start(&mut db, "c");
    other.run(
        "SET client_min_messages = debug5; SET debug_print_parse = on; SET debug_print_plan = on; SET trace_sort = on",
    );
    let notices = |db: &Db| -> Vec<String> {
        db.notices().into_iter().filter(|notice| notice.contains("secret of") || notice.contains("vault")).collect()
    };
    let token = claim(&mut other);
    other.refused("P0004", &complete(&token, 1000));
    other.run(&complete(&token, 5));
    assert_eq!(db.completes("c").status(), "COMPLETED");
    db.start("f", "calling").go();
    let token = claim(&mut other);
    other.run(&complete_calling(&token));
    assert_eq!(notices(&other), Vec::<String>::new());
    // Messages of its own code still reach the worker.
    other.run("DO 'BEGIN RAISE NOTICE ''a secret of its own''; END'");
    assert_eq!(notices(&other).len(), 1);
    // A worker with the owner's rights gets the messages of the owner's code.
    app.superuser().run("GRANT app TO other");
    start(&mut db, "d");
    other.run("RESET ALL");
    let token = claim(&mut other);
    other.run(&complete(&token, 5));
    let of_trigger = notices(&other).iter().filter(|notice| notice.contains("of a trigger")).count();
    assert!(of_trigger >= 2, "{:?}", other.notices());
    app.done(&[]);
}

#[test]
fn a_worker_receives_no_messages_of_the_owners_code() {
    receives_no_messages(App::alone("boundary_messages", ClusterOptions::default()));
}

#[test]
fn a_worker_receives_no_messages_of_the_owners_code_in_a_hostile_database() {
    receives_no_messages(App::hostile_alone("hostile_messages", ClusterOptions::default()));
}

/// Whether a setting that any role may change has no influence on what an owner's code means and does.
fn is_harmless(name: &str) -> bool {
    // How a statement is planned, and how fast it is.
    let is_of_plans = ["enable_", "jit", "geqo", "cpu_", "parallel_", "min_parallel_", "max_parallel_"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    // What VACUUM and ANALYZE do in the background of a table.
    is_of_plans || name.starts_with("vacuum_") || HARMLESS.iter().any(|(_, names)| names.contains(&name))
}

const HARMLESS: [(&str, &[&str]); 8] = [
    (
        "plans and speed",
        &[
            "backend_flush_after",
            "constraint_exclusion",
            "cursor_tuple_fraction",
            "debug_parallel_query",
            "default_statistics_target",
            "effective_cache_size",
            "effective_io_concurrency",
            "force_parallel_mode",
            "from_collapse_limit",
            "hash_mem_multiplier",
            "io_combine_limit",
            "join_collapse_limit",
            "maintenance_io_concurrency",
            "plan_cache_mode",
            "random_page_cost",
            "recursive_worktable_factor",
            "seq_page_cost",
            "stats_fetch_consistency",
            "synchronize_seqscans",
            "file_copy_method",
        ],
    ),
    (
        "memory and files of this session",
        &[
            "gin_pending_list_limit",
            "logical_decoding_work_mem",
            "maintenance_work_mem",
            "temp_buffers",
            "temp_tablespaces",
            "wal_skip_threshold",
            "work_mem",
        ],
    ),
    (
        "time limits, which are the worker's, and its connection",
        &[
            "client_connection_check_interval",
            "idle_in_transaction_session_timeout",
            "idle_session_timeout",
            "lock_timeout",
            "statement_timeout",
            "tcp_keepalives_count",
            "tcp_keepalives_idle",
            "tcp_keepalives_interval",
            "tcp_user_timeout",
            "transaction_timeout",
            "wal_sender_timeout",
            "xdb.rpc_timeout",
        ],
    ),
    (
        "the transaction, which is the worker's",
        &[
            "commit_siblings",
            "default_transaction_deferrable",
            "default_transaction_isolation",
            "default_transaction_read_only",
            "synchronous_commit",
            "transaction_deferrable",
            "transaction_isolation",
            "transaction_read_only",
        ],
    ),
    (
        "messages, which the worker does not get, and the encoding of those that it gets",
        &[
            "client_encoding",
            "client_min_messages",
            "debug_logical_replication_streaming",
            "debug_pretty_print",
            "debug_print_parse",
            "debug_print_plan",
            "debug_print_rewritten",
            "escape_string_warning",
            "log_parameter_max_length_on_error",
            "plpgsql.print_strict_params",
            "trace_notify",
            "trace_sort",
        ],
    ),
    ("names in statistics and traces", &["application_name", "xdb.traceparent"]),
    ("later sessions", &["local_preload_libraries"]),
    (
        // The next error ends the session, and the transaction with it, which the worker may do at any time.
        "checks when something is made, and how an error ends",
        &["check_function_bodies", "exit_on_error", "icu_validation_level", "md5_password_warnings"],
    ),
];

/// Settings that would end or delay the test's own session. The test does not change them.
const LEFT_ALONE: [&str; 9] = [
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "exit_on_error",
    "transaction_deferrable",
    "transaction_isolation",
    "transaction_read_only",
    "client_connection_check_interval",
    "local_preload_libraries",
];

/// A value that differs from the setting's value.
fn another(setting: &Value) -> String {
    let text = |field: &str| setting[field].as_str().unwrap_or_default();
    let number = |field: &str| text(field).parse::<f64>().expect("a number");
    let (name, now) = (text("name"), text("setting"));
    if name.ends_with("_timeout") {
        return "3600000".to_owned();
    }
    match text("vartype") {
        "bool" => (if now == "on" { "off" } else { "on" }).to_owned(),
        "integer" | "real" if number("setting") + 1.0 <= number("max_val") => (number("setting") + 1.0).to_string(),
        "integer" | "real" => text("min_val").to_owned(),
        "enum" => {
            let values = setting["enumvals"].as_array().expect("a list");
            values.iter().filter_map(Value::as_str).find(|value| *value != now).expect("two values").to_owned()
        }
        _ => match name {
            "DateStyle" => "German, DMY",
            "TimeZone" => "Asia/Tokyo",
            "application_name" => "another",
            "client_encoding" => "LATIN1",
            "createrole_self_grant" => "set, inherit",
            "default_table_access_method" => "another_heap",
            "default_tablespace" | "temp_tablespaces" => "pg_default",
            "default_text_search_config" => "pg_catalog.german",
            "lc_monetary" | "lc_numeric" | "lc_time" => "POSIX",
            "plpgsql.extra_errors" | "plpgsql.extra_warnings" => "all",
            "restrict_nonsystem_relation_kind" => "view, foreign-table",
            "search_path" => "other, pg_catalog",
            "timezone_abbreviations" => "India",
            "xdb.traceparent" => "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
            _ => panic!("say which other value {name} may have"),
        }
        .to_owned(),
    }
}

/// A new version of Postgres may have more settings. Each must be pinned while an owner's code runs, or be harmless.
#[test]
fn the_meaning_of_an_owners_code_depends_on_no_setting_that_a_worker_may_change() {
    // One after the other, since privileges on settings are the cluster's.
    for app in [App::new("boundary_settings"), App::hostile("hostile_settings")] {
        depends_on_no_setting(app);
    }
}

fn depends_on_no_setting(app: App) {
    let (app, db, other) = application(app);
    let mut superuser = app.superuser();
    superuser.run(&format!(
        "CREATE ACCESS METHOD another_heap TYPE TABLE HANDLER heap_tableam_handler;
         GRANT SET ON PARAMETER session_replication_role, lo_compat_privileges TO other;
         ALTER DATABASE {} SET default_text_search_config = 'pg_catalog.french'",
        app.database()
    ));
    let (mut db, mut other) = {
        // With what was set for the database.
        drop((db, other));
        (app.db(), app.session("other"))
    };
    let settings = "pg_settings WHERE context = 'user' OR name IN ('session_replication_role', 'lo_compat_privileges')";
    db.run(&format!(
        "CREATE TABLE public.seen (n int, name text, setting text);
         CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO public.seen SELECT new.n, name, setting FROM {settings};
             RETURN new;
         END $$;
         CREATE TRIGGER spy BEFORE UPDATE ON public.counters FOR EACH ROW EXECUTE FUNCTION public.spy()"
    ));
    let works = |db: &mut Db, other: &mut Db, n: i64, set: &str| {
        let id = format!("c{n}");
        db.start(&id, "counter").key(&id).globals(json!({"n": 0})).go();
        let token = claim(other);
        other.run(set);
        other.run(&complete(&token, n));
        assert_eq!(db.completes(&id).status(), "COMPLETED");
    };
    other.run("DO 'BEGIN END'");
    works(&mut db, &mut other, 1, "SELECT 1");
    let all = other.rows(&format!("SELECT name, setting, vartype, enumvals, min_val, max_val FROM {settings}"));
    let set: String = all
        .iter()
        .map(|setting| (setting["name"].as_str().expect("a name"), setting))
        .filter(|(name, _)| !LEFT_ALONE.contains(name))
        .map(|(name, setting)| match name {
            "search_path" => format!("SET search_path = {};\n", another(setting)),
            _ => format!("SET {name} = {};\n", literal(&another(setting))),
        })
        .collect();
    works(&mut db, &mut other, 2, &set);
    let changed: BTreeMap<String, String> = db
        .rows(
            "SELECT a.name, a.setting AS plain, b.setting AS changed FROM public.seen a JOIN public.seen b ON b.n = 2 AND a.n = 1 AND a.name = b.name
             WHERE a.setting IS DISTINCT FROM b.setting",
        )
        .iter()
        .map(|row| (row["name"].as_str().expect("a name").to_owned(), row.to_string()))
        .collect();
    let not_pinned: BTreeSet<_> = changed.iter().filter(|(name, _)| !is_harmless(name)).map(|(_, row)| row).collect();
    assert!(not_pinned.is_empty(), "{not_pinned:#?}");
    assert!(changed.contains_key("work_mem"), "what is harmless is the worker's: {changed:?}");
    let of_database = "SELECT DISTINCT setting FROM public.seen WHERE name = 'default_text_search_config'";
    assert_eq!(db.all::<String>(of_database), ["pg_catalog.french"]);
    superuser.run("REVOKE SET ON PARAMETER session_replication_role, lo_compat_privileges FROM other");
    app.done(&[]);
}

#[test]
fn a_worker_does_not_know_the_random_numbers_of_the_owners_code() {
    let (app, mut db, mut other) = application(App::new("boundary_random"));
    db.run(
        "CREATE TABLE drawn (number float8);
         CREATE FUNCTION draws() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.drawn VALUES (random()); PERFORM setseed(0.25); RETURN new; END $$;
         CREATE TRIGGER draws BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION draws();",
    );
    let known = |db: &mut Db, seed: f64| -> Vec<f64> {
        db.run(&format!("SELECT setseed({seed})"));
        db.all("SELECT random() FROM generate_series(1, 20)")
    };
    let (of_worker, of_owner) = (known(&mut other, 0.5), known(&mut other, 0.25));
    for id in ["c", "d"] {
        db.start(id, "counter").key(id).globals(json!({"n": 0})).go();
        let token = claim(&mut other);
        other.run("SELECT setseed(0.5)");
        other.run(&complete(&token, 5));
        let next: f64 = other.one("SELECT random()");
        assert!(!of_owner.contains(&next), "the owner's code determines what the worker draws");
        assert_eq!(db.completes(id).status(), "COMPLETED");
    }
    let drawn: Vec<f64> = db.all("SELECT number FROM drawn");
    assert!(drawn.len() == 2 && drawn.iter().all(|number| !of_worker.contains(number)), "{drawn:?} of {of_worker:?}");
    app.done(&[]);
}

/// A cursor with the name of the worker's, and an object in `pg_temp` that is created through a third role.
#[test]
fn an_owners_code_replaces_no_object_of_the_session() {
    let (app, mut db, mut other) = application(App::new("boundary_left"));
    app.superuser().run("CREATE ROLE accomplice; GRANT CREATE, USAGE ON SCHEMA public TO accomplice");
    app.superuser().run(
        "CREATE FUNCTION leaves() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
             $$ BEGIN EXECUTE 'CREATE FUNCTION pg_temp.trap() RETURNS int LANGUAGE sql RETURN 1'; END $$;
         ALTER FUNCTION leaves() OWNER TO accomplice",
    );
    db.run(
        "CREATE TABLE caught (who text); GRANT ALL ON caught TO PUBLIC;
         CREATE FUNCTION catches() RETURNS int LANGUAGE sql AS 'INSERT INTO public.caught VALUES (current_user) RETURNING 1';
         CREATE FUNCTION replaces() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE its refcursor := 'mine';
         BEGIN
             IF new.n = 1 THEN
                 CLOSE its;
                 OPEN its FOR SELECT public.catches();
             ELSE
                 PERFORM public.leaves();
             END IF;
             RETURN new;
         END $$;
         CREATE TRIGGER replaces BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION replaces();",
    );
    db.start("c", "counter").key("c").globals(json!({"n": 0})).go();
    let token = claim(&mut other);
    other.run("BEGIN");
    other.run("DECLARE mine CURSOR FOR SELECT 1");
    other.run(&complete(&token, 1));
    let fetched = other.try_run("FETCH mine");
    assert_eq!(fetched.expect_err("there is no such cursor").code, "34000");
    other.run("ROLLBACK");
    assert_eq!(db.all::<String>("SELECT who FROM caught"), Vec::<String>::new());
    let refused = other.refused("42501", &complete(&token, 2));
    assert!(refused.message.contains("left temporary objects"), "{refused:?}");
    db.run("DROP TRIGGER replaces ON counters");
    other.run(&complete(&token, 3));
    assert_eq!(db.completes("c").status(), "COMPLETED");
    app.superuser().run("DROP FUNCTION leaves(); DROP OWNED BY accomplice; DROP ROLE accomplice");
    app.done(&[]);
}
