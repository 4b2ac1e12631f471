//! Roles that share a database and do not trust each other. Code never has other rights than its caller's. No role
//! waits for another role's work, or learns of it.

use xdb_cluster_tests::prelude::*;

/// Processes of `mail` wait for a message, and have an RPC that writes. Processes of `one` complete at once. `wide`
/// maps two tables.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("written")).globals(json!({"n": 2})),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!("done")),
    });
    app.register("mail", &mailbox().maps("public.counters", "id", &["n"]).rpc("write", json!({})));
    app.register("one", &one_step());
    let wide = mailbox().maps("public.counters", "id", &["n"]).maps("public.users", "user_id", &["status"]);
    app.register("wide", &wide);
    (app, worker)
}

/// A session whose waits for locks end soon.
fn impatient(app: &App, role: &str) -> Db {
    let mut db = app.session(role);
    db.run("SET lock_timeout = '1 s'");
    db
}

#[test]
fn a_trigger_of_a_start_or_an_rpc_cannot_leave_its_role() {
    let (app, _worker) = application("tenant_role");
    let mut db = app.db();
    db.run(
        "CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             EXECUTE current_setting('trap.statement');
             CREATE TABLE IF NOT EXISTS caught (who text);
             INSERT INTO caught VALUES (current_user);
             RETURN NEW;
         END $$;
         CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION trap();",
    );
    let mut superuser = app.superuser();
    superuser.run("SET ROLE app");
    for statement in [
        "RESET ROLE",
        "SET ROLE postgres",
        "SET LOCAL ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "RESET SESSION AUTHORIZATION",
        "SELECT set_config('role', 'none', false)",
    ] {
        superuser.run(&format!("SET trap.statement = $${statement}$$"));
        let start = superuser.start("p", "mail").key("p").globals(json!({"n": 1})).sql();
        let error = superuser.refused(codes::INSUFFICIENT_PRIVILEGE, &start);
        assert!(error.message.contains("security-definer function"), "{statement}: {error:?}");
        let many = "SELECT xdb.start_processes('[{\"process_id\": \"p\", \"process_type\": \"mail\", \"global_attribute_pk\": \"p\",
            \"global_attributes\": {\"n\": 1}}]')";
        superuser.refused(codes::INSUFFICIENT_PRIVILEGE, many);
        assert_eq!(superuser.text("SELECT current_user"), "app");
    }
    superuser.run("SET trap.statement = 'SELECT 1'");
    superuser.start("p", "mail").key("p").globals(json!({"n": 1})).go();
    superuser.run("SET trap.statement = 'RESET ROLE'");
    superuser.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.invoke_rpc('p', 'write')");
    // The session itself may do all that it might before, also in the transaction of a start.
    superuser.run("SET trap.statement = 'SELECT 1'");
    let start = superuser.start("q", "mail").key("q").globals(json!({"n": 1})).sql();
    superuser.run(&format!("BEGIN; {start}; RESET ROLE; SET ROLE app; COMMIT; RESET ROLE; SET ROLE other; RESET ROLE"));
    assert_eq!(superuser.text("SELECT current_user"), "postgres");
    superuser.run("SET SESSION AUTHORIZATION app");
    superuser.run("SELECT xdb.invoke_rpc('p', 'write'); RESET SESSION AUTHORIZATION");
    assert_eq!(superuser.text("SELECT current_user"), "postgres");
    assert_eq!(superuser.text("SELECT string_agg(DISTINCT who, ',') FROM caught"), "app");
    app.done(&[]);
}

#[test]
fn a_trigger_defers_nothing_in_the_session_of_a_superuser_that_became_its_owner() {
    let (app, _worker) = application("tenant_deferred");
    let mut db = app.db();
    db.run(
        "CREATE TABLE caught (who text);
         CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             EXECUTE current_setting('trap.' || TG_NAME);
             INSERT INTO public.caught VALUES (current_user);
             RETURN NEW;
         END $$;
         CREATE TRIGGER first BEFORE INSERT OR UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION trap();
         CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON counters DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION trap();
         CREATE FUNCTION starts(id text) RETURNS uuid LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
             $$ SELECT xdb.start_process(id, 'mail', global_attribute_pk => id, global_attributes => '{\"n\": 1}') $$;",
    );
    let mut superuser = app.superuser();
    let with = |superuser: &mut Db, first: &str, late: &str| {
        superuser.run(&format!("SET trap.first = $${first}$$; SET trap.late = $${late}$$"));
    };
    with(&mut superuser, "SELECT 1", "SELECT 1");
    superuser.run("SET ROLE app");
    superuser.start("p", "mail").key("p").globals(json!({"n": 1})).go();
    for (first, late, message) in [
        ("SELECT 1", "RESET ROLE", "security-definer function"),
        ("SELECT 1", "SET SESSION AUTHORIZATION postgres", "security-definer function"),
        ("SET CONSTRAINTS ALL DEFERRED", "RESET ROLE", "cannot fire deferred trigger"),
        ("CREATE TEMP VIEW users AS SELECT 1", "SELECT 1", "cannot create temporary table"),
    ] {
        with(&mut superuser, first, late);
        for role in ["ROLE app", "SESSION AUTHORIZATION app", "ROLE postgres"] {
            superuser.run(&format!("SET {role}"));
            let start = match role {
                "ROLE postgres" => "SELECT starts('q')".to_owned(),
                _ => superuser.start("q", "mail").key("q").globals(json!({"n": 1})).sql(),
            };
            let error = superuser.refused(codes::INSUFFICIENT_PRIVILEGE, &start);
            assert!(error.message.contains(message), "{role}, {first}, {late}: {error:?}");
            superuser.run("RESET SESSION AUTHORIZATION; SET ROLE app");
        }
        let error = superuser.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.invoke_rpc('p', 'write')");
        assert!(error.message.contains(message), "{first}, {late}: {error:?}");
    }
    // Nor does it set the superuser's search path.
    with(&mut superuser, "SET search_path = app, public", "SELECT set_config('search_path', 'app', false)");
    superuser.start("r", "mail").key("r").globals(json!({"n": 1})).go();
    superuser.run("SELECT xdb.invoke_rpc('r', 'write'); RESET ROLE");
    superuser.run("SELECT starts('s')");
    assert_eq!(superuser.text("SHOW search_path"), app.db().text("SHOW search_path"));
    assert_eq!(superuser.text("SELECT string_agg(DISTINCT who, ',') FROM caught"), "app");
    app.done(&[]);
}

#[test]
fn a_start_locks_no_table_that_it_may_not_or_need_not_write() {
    let (app, _worker) = application("tenant_locks");
    let mut holder = app.superuser();
    holder.run("BEGIN; LOCK TABLE counters, users IN ACCESS EXCLUSIVE MODE");
    // Without the privilege the start is refused with the table's own error, and does not wait.
    let mut other = impatient(&app, "other");
    let error = other.start("p", "mail").key("p").globals(json!({"n": 1})).refused(codes::INSUFFICIENT_PRIVILEGE);
    assert_eq!(error.message, "permission denied for table counters");
    // There is nothing to write to them; the key is checked nevertheless.
    let mut db = impatient(&app, "app");
    db.start("nothing", "mail").key("p").go();
    db.run("BEGIN");
    let keys = json!({"globalAttributeKeys": {"public.counters": {"id": "p"}, "public.users": {"user_id": "u"}}});
    db.start("none", "wide").options(keys.clone()).go();
    holder.run("ROLLBACK; BEGIN; LOCK TABLE users IN ACCESS EXCLUSIVE MODE");
    // One of two.
    db.start("one of two", "wide").options(keys).globals(json!({"n": 1})).go();
    let locked: Vec<String> = db.all(
        "SELECT DISTINCT relation::regclass::text FROM pg_locks
         WHERE pid = pg_backend_pid() AND relation IN ('counters'::regclass, 'users'::regclass)",
    );
    assert_eq!(locked, ["counters"]);
    db.run("COMMIT");
    holder.run("ROLLBACK");
    // A privilege on a column is one.
    holder.run("GRANT INSERT (id, n), UPDATE (n), SELECT (id, n) ON counters TO other");
    other.start("p", "mail").key("other").globals(json!({"n": 1})).go();
    app.done(&[]);
}

#[test]
fn a_process_id_of_another_role_is_taken_and_no_session_waits_for_its_locks() {
    let (app, _worker) = application("tenant_ids");
    let mut db = app.db();
    let request = json!({"requestId": "r"});
    db.start("runs", "mail").key("k").go();
    db.start("closed", "one").options(request.clone()).go();
    db.completes("closed");
    let mut other = impatient(&app, "other");
    let policies =
        ["ALLOW_IF_NO_RUNNING", "ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY", "DISALLOW_REUSE", "TERMINATE_IF_RUNNING"];
    let refused = |other: &mut Db| {
        let mut told = Vec::new();
        for id in ["runs", "closed"] {
            for policy in policies {
                told.push(other.start(id, "one").reuse(policy).refused(codes::ALREADY_STARTED).detail);
            }
            let many = format!(
                "SELECT xdb.start_processes('[{{\"process_id\": \"free\", \"process_type\": \"one\"}},
                    {{\"process_id\": \"{id}\", \"process_type\": \"one\"}}]')"
            );
            told.push(other.refused(codes::ALREADY_STARTED, &many).detail);
        }
        told.push(other.start("closed", "one").options(request.clone()).refused(codes::ALREADY_STARTED).detail);
        told.dedup();
        told
    };
    let at_rest = refused(&mut other);
    // Their owner has them all locked: as the latest of their ids, and as processes.
    let again = db.start("closed", "mail").key("k").sql();
    db.run(&format!("BEGIN; {again}; SELECT xdb.stop_process('runs')"));
    assert_eq!(refused(&mut other), at_rest, "locks of other roles can be seen");
    db.run("ROLLBACK");
    assert_eq!(other.count("xdb.processes"), 0);
    // A role that may drive the owner's processes may start after them.
    app.session("boss").start("closed", "one").go();
    // What was started once has its answer, though the id is another's now.
    assert_eq!(
        db.start("closed", "one").options(request.clone()).go(),
        db.one::<String>("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'closed'")
    );
    let many = r#"SELECT xdb.start_processes('[{"process_id": "closed", "process_type": "one", "options": {"requestId": "r"}}]')::text"#;
    assert_eq!(db.text(many), db.text("SELECT execution_id::text FROM xdb.processes WHERE process_id = 'closed'"));
    app.done(&[]);
}

#[test]
fn no_cursor_large_object_or_seed_of_one_owner_is_the_next_ones() {
    let app = App::new("tenant_cursors");
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    let (mut superuser, mut db, mut other) = (app.superuser(), app.db(), app.session("other"));
    // A policy's function opens a cursor and a large object at its first call in a use. It records those of other roles
    // that it finds.
    superuser.run(
        "CREATE TABLE found (who text, what text);
         CREATE TABLE looked (who text, drawn float8);
         CREATE TABLE shared (id text PRIMARY KEY, n int);
         ALTER TABLE shared ENABLE ROW LEVEL SECURITY;
         GRANT ALL ON found, looked, shared TO app, other;
         CREATE FUNCTION look() RETURNS boolean LANGUAGE plpgsql AS $$
         DECLARE
             own refcursor := 'of ' || current_user;
         BEGIN
             IF EXISTS (SELECT FROM pg_cursors WHERE name = own::text) THEN
                 RETURN true;
             END IF;
             INSERT INTO public.looked VALUES (current_user, random());
             PERFORM setseed(0.5);
             INSERT INTO public.found SELECT current_user, name FROM pg_cursors;
             BEGIN
                 INSERT INTO public.found SELECT current_user, convert_from(loread(0, 100), 'UTF8');
             EXCEPTION WHEN undefined_object THEN NULL;
             END;
             OPEN own FOR SELECT 1;
             PERFORM lo_open(CASE current_user WHEN 'app' THEN 4711 ELSE 4712 END, 262144);
             RETURN true;
         END $$;
         CREATE POLICY look ON shared USING (look());
         INSERT INTO shared SELECT who || i, 1 FROM unnest('{a,o}'::text[]) who, generate_series(1, 10) i",
    );
    db.run("SELECT lo_from_bytea(4711, 'secret of app')");
    other.run("SELECT lo_from_bytea(4712, 'secret of other')");
    app.register("reader", &one_step().maps("public.shared", "id", &["n"]));
    // Their calls are due at once: one turn reads for both.
    app.pause();
    for i in 1..=10 {
        db.start(&format!("a{i}"), "reader").key(&format!("a{i}")).go();
        other.start(&format!("o{i}"), "reader").key(&format!("o{i}")).go();
    }
    superuser.run("SELECT xdb.resume_engine()");
    for i in 1..=10 {
        db.completes(&format!("a{i}"));
        other.completes(&format!("o{i}"));
    }
    assert_eq!(worker.count(|call| call.global("n") == &json!(1)), 20);
    assert_eq!(superuser.all::<String>("SELECT who || ' finds ' || what FROM found"), Vec::<String>::new());
    assert_eq!(superuser.count("looked"), 20, "each use begins with nothing");
    assert_eq!(
        superuser.one::<i64>("SELECT count(DISTINCT drawn) FROM looked"),
        20,
        "a seed is there for the next one"
    );
    app.done(&[]);
}

/// PL/pgSQL resolves the types of variables at the first call in a process. Here `other` makes that call, with a type
/// that runs code.
#[test]
fn no_role_gives_other_types_to_variables_of_a_function_with_a_path_of_its_own() {
    let app = App::new("tenant_types");
    let mut superuser = app.superuser();
    superuser.run(
        "CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO PUBLIC;
         CREATE FUNCTION shop.charge(request jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = shop, pg_temp AS $$
         DECLARE process text := request -> 'context' ->> 'processId';
         BEGIN
             PERFORM shop.note(process);
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;
         CREATE FUNCTION shop.note(process text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
             $$ DECLARE noted text := process; BEGIN END $$;
         CREATE SCHEMA evil AUTHORIZATION other; GRANT USAGE ON SCHEMA evil TO PUBLIC;",
    );
    app.session("other").run(
        "CREATE TABLE evil.caught (who name); GRANT INSERT ON evil.caught TO PUBLIC;
         CREATE FUNCTION evil.catches(value pg_catalog.text) RETURNS boolean LANGUAGE sql AS
             $$ INSERT INTO evil.caught VALUES (current_user) RETURNING true $$;
         CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.catches(VALUE));
         CREATE FUNCTION evil.calls_first(request jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = evil, pg_catalog AS $$
         DECLARE mine text := 'x';
         BEGIN
             PERFORM shop.note('x');
             RETURN shop.charge(request);
         END $$;",
    );
    for (process_type, function) in [("charge", "shop.charge"), ("first", "evil.calls_first")] {
        let step = Definition::starting_with("S").step_with("S", json!({"executeFunction": function}));
        superuser.run(&format!("SELECT xdb.register_process_type('{process_type}', NULL, '{}')", step.json()));
    }
    for (role, process_type) in [("other", "first"), ("app", "charge")] {
        let mut db = app.session(role);
        for n in 0..4 {
            db.start(&format!("{role}-{n}"), process_type).go();
            db.completes(&format!("{role}-{n}"));
        }
    }
    assert_eq!(superuser.all::<String>("SELECT DISTINCT who::text FROM evil.caught"), ["other"]);
    app.done(&[]);
}
