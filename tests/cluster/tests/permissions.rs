//! Privileges: which role may call which function, and as which role the engine acts.

use xdb_cluster_tests::prelude::*;

/// Processes of `mail` wait for a message. Processes of `writer` write their input.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("pong")),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => force_complete(json!(call.messages("m"))),
        _ if call.refused_write().is_null() => force_complete(json!("written")).globals(json!({"n": 1})),
        _ => force_complete(json!({"refused": call.refused_write()})),
    });
    app.register("mail", &mailbox().rpc("ping", json!({})));
    app.register("writer", &one_step().maps("public.counters", "id", &["n"]));
    (app, worker)
}

#[test]
fn the_public_has_nothing() {
    let app = App::new("permission_public");
    let mut superuser = app.superuser();
    assert_eq!(superuser.text("SELECT has_schema_privilege('stranger', 'xdb', 'USAGE, CREATE')"), "f");
    let callable: Vec<String> = superuser.all(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'xdb'::regnamespace
             AND has_function_privilege('stranger', oid, 'EXECUTE') ORDER BY proname",
    );
    assert_eq!(callable, Vec::<String>::new());
    let readable: Vec<String> = superuser.all(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'xdb'::regnamespace
             AND relkind IN ('r', 'p', 'v', 'm', 'f')
             AND has_table_privilege('stranger', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')",
    );
    assert_eq!(readable, Vec::<String>::new());
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.start_process('p', 'mail')");
    app.done(&[]);
}

#[test]
fn an_ordinary_role_writes_no_system_table_and_reads_only_its_own_rows() {
    let app = App::new("permission_tables");
    let mut superuser = app.superuser();
    for role in ["app", "boss"] {
        let reachable: Vec<String> = superuser.all(&format!(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'xdb'::regnamespace
                 AND relkind IN ('r', 'p', 'S')
                 AND CASE relkind WHEN 'S' THEN has_sequence_privilege('{role}', oid, 'USAGE, SELECT, UPDATE')
                     ELSE has_table_privilege('{role}', oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') END"
        ));
        assert_eq!(reachable, Vec::<String>::new(), "{role}");
        // The views read as their reader: what lies beneath shows rows of its own processes, by row-level security.
        let open: Vec<String> = superuser.all(&format!(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'xdb'::regnamespace AND relkind = 'r'
                 AND has_table_privilege('{role}', oid, 'SELECT') AND NOT relrowsecurity"
        ));
        assert_eq!(open, Vec::<String>::new(), "{role}");
    }
    assert!(superuser.count("pg_class WHERE relnamespace = 'xdb'::regnamespace AND relkind IN ('r', 'p')") > 0);
    app.done(&[]);
}

#[test]
fn registering_is_for_the_privileged() {
    let app = App::new("permission_register");
    for sql in [
        "SELECT xdb.register_worker('mine', 'http://127.0.0.1:1')",
        "SELECT xdb.unregister_worker('mine')",
        "SELECT xdb.register_process_type('mine', 'mine', '{}')",
        "SELECT xdb.unregister_process_type('mine')",
        "SELECT xdb.grant_usage('stranger')",
        "SELECT xdb.pause_engine()",
        "SELECT xdb.adopt()",
    ] {
        app.db().refused(codes::INSUFFICIENT_PRIVILEGE, sql);
    }
    app.done(&[]);
}

#[test]
fn processes_of_another_owner_look_as_if_they_did_not_exist() {
    let (app, worker) = application("permission_other");
    let execution = app.db().start("p", "mail").go();
    let mut other = app.session("other");
    for sql in [
        "SELECT xdb.describe_process('p')",
        "SELECT xdb.publish('p', 'inbox', '1')",
        "SELECT xdb.stop_process('p')",
        "SELECT xdb.invoke_rpc('p', 'ping')",
        "SELECT xdb.wait_for_process('p', '1 second')",
        "SELECT xdb.get_local_attributes('p')",
    ] {
        let hidden = other.refused(codes::UNKNOWN_PROCESS, sql);
        let missing = other.refused(codes::UNKNOWN_PROCESS, &sql.replace("'p'", "'q'"));
        assert_eq!(hidden.message.replace("\"p\"", "\"q\""), missing.message, "the message tells them apart: {sql}");
    }
    // The id is taken all the same; the error does not say by which execution.
    let taken = other.start("p", "mail").refused(codes::ALREADY_STARTED);
    assert!(!format!("{taken:?}").contains(&execution), "{taken:?}");
    assert_eq!(worker.count(|call| call.api == Api::Rpc), 0);
    assert_eq!(app.db().status("p"), "RUNNING");

    let mut boss = app.session("boss");
    assert_eq!(boss.status("p"), "RUNNING");
    boss.publish("p", "inbox", json!("from above"));
    assert_eq!(boss.completes("p").result(), &json!(["from above"]));
    app.done(&[]);
}

#[test]
fn a_member_of_the_owner_shares_its_processes() {
    let (app, _worker) = application("permission_group");
    app.superuser().run("CREATE ROLE colleague LOGIN IN ROLE app");
    app.db().start("p", "mail").go();
    let mut colleague = app.session("colleague");
    assert_eq!(colleague.status("p"), "RUNNING");
    colleague.publish("p", "inbox", json!("hello"));
    assert_eq!(colleague.completes("p").result(), &json!(["hello"]));
    app.done(&[]);
}

#[test]
fn a_role_without_usage_of_the_schema_gets_a_hint_about_the_grant() {
    let app = App::new("permission_schema");
    app.session("stranger").refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.start_process('p', 't')");
    let mut superuser = app.superuser();
    superuser.run("GRANT CREATE ON SCHEMA public TO stranger; CREATE TABLE told (id text PRIMARY KEY, n int)");
    superuser.run("GRANT SELECT, INSERT, UPDATE ON told TO app");
    // As in an application: a function with the rights of its owner. The owner has no grant for XDB.
    app.session("stranger").run(
        "CREATE FUNCTION tells() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN PERFORM xdb.publish_global('told', '1'); RETURN NEW; END $$;
         CREATE FUNCTION answers(request jsonb) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN PERFORM xdb.publish_global('told', '1'); RETURN NULL; END $$",
    );
    superuser.run("CREATE TRIGGER tells BEFORE UPDATE ON told FOR EACH ROW EXECUTE FUNCTION tells()");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)).globals(json!({"n": 2})),
        _ => force_complete(json!(null)).globals(json!({"n": 1})),
    });
    let once = json!({"executeApiRetryPolicy": {"maximumAttempts": 1}});
    let step =
        |config: Value| Definition::starting_with("Only").step_with("Only", config).maps("public.told", "id", &["n"]);
    app.register("by-trigger", &step(once.clone()));
    let mut by_function = once;
    by_function["executeFunction"] = json!("public.answers");
    app.register("by-function", &step(by_function));
    app.register("by-rpc", &mailbox().maps("public.told", "id", &["n"]).rpc("touch", json!({})));
    let mut db = app.db();
    for id in ["by-trigger", "by-function"] {
        db.start(id, id).key(id).globals(json!({"n": 0})).go();
        db.outcome(id);
        let detail = db.text(&format!("SELECT detail FROM xdb.failures WHERE process_id = '{id}'"));
        assert!(
            detail.contains("permission denied for schema xdb") && detail.contains("xdb.grant_usage"),
            "{id}: {detail}"
        );
    }
    db.start("by-rpc", "by-rpc").key("r").globals(json!({"n": 0})).go();
    let error = db.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.invoke_rpc('by-rpc', 'touch')");
    assert!(error.detail.contains("xdb.grant_usage"), "{error:?}");
    let error = db.refused(
        codes::INSUFFICIENT_PRIVILEGE,
        "SELECT xdb.start_process('s', 'by-rpc', global_attribute_pk => 'r', global_attributes => '{\"n\": 3}')",
    );
    assert!(error.detail.contains("xdb.grant_usage"), "{error:?}");
    db.run("SELECT xdb.stop_process('by-rpc')");
    app.done(&[]);
}

#[test]
fn inside_a_definer_function_the_definer_is_the_owner() {
    let (app, _worker) = application("permission_definer");
    app.db().run(
        "CREATE FUNCTION subscribe(id text) RETURNS uuid LANGUAGE sql SECURITY DEFINER
             SET search_path = pg_catalog, pg_temp AS $$ SELECT xdb.start_process(id, 'mail') $$",
    );
    app.session("stranger").run("SELECT subscribe('p')");
    let mut db = app.db();
    db.publish("p", "inbox", json!("hello"));
    db.completes("p");
    app.session("other").refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('p')");
    app.done(&[]);
}

#[test]
fn a_superusers_process_needs_leave() {
    let app = App::alone("permission_superuser", ClusterOptions::default());
    let _worker = app.worker(|_| force_complete(json!("as root")));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    let error = superuser.start("p", "one").refused(codes::NOT_PERMITTED);
    assert!(format!("{error:?}").contains("xdb.allow_superuser_processes"), "{error:?}");
    app.cluster().set("xdb.allow_superuser_processes", "on");
    let mut superuser = app.superuser();
    superuser.start("p", "one").go();
    assert_eq!(superuser.completes("p").result(), "as root");
    app.done(&[]);
}

#[test]
fn a_superusers_rpc_runs_no_code_of_a_tables_owner() {
    let app = App::alone("permission_superuser_rpc", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, "write") => output(json!("written")).globals(json!({"n": 2})),
        (Api::Rpc, _) => output(json!("looked")),
        _ => any_of(&[local_queue("m", "inbox", 1)]),
    });
    let loads = |policy: &str| json!({"loadGlobalAttributes": {"policy": policy}});
    let rpcs = mailbox().rpc("load", loads("ALL")).rpc("write", loads("NONE")).rpc("neither", loads("NONE"));
    app.register("mail", &rpcs.maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    db.run(
        "CREATE TABLE caught (secrets bigint);
         CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF current_user <> 'app' THEN
                 INSERT INTO public.caught SELECT count(*) FROM xdb.worker_secret;
             END IF;
             RETURN new; END $$;
         CREATE TRIGGER trap BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION trap()",
    );
    db.start("p", "mail").key("c").globals(json!({"n": 1})).go();
    let mut superuser = app.superuser();
    for rpc in ["load", "write"] {
        let error = superuser.refused(codes::NOT_PERMITTED, &format!("SELECT xdb.invoke_rpc('p', '{rpc}')"));
        assert!(error.hint.contains("SET ROLE"), "{error:?}");
    }
    assert_eq!(worker.count(|call| call.target() == "load"), 0, "refused before the call");
    assert_eq!(superuser.text("SELECT xdb.invoke_rpc('p', 'neither')::text"), "\"looked\"");
    assert_eq!(db.count("caught"), 0);
    superuser.run("SET ROLE app");
    superuser.run("SELECT xdb.invoke_rpc('p', 'load'), xdb.invoke_rpc('p', 'write'); RESET ROLE");
    assert_eq!(db.one::<i32>("SELECT n FROM counters"), 2);
    superuser.run("SET xdb.allow_superuser_processes = on; SELECT xdb.invoke_rpc('p', 'write')");
    assert_eq!(db.count("caught"), 1, "a table that allows it gets it");
    app.done(&[]);
}

#[test]
fn a_workers_host_is_checked_after_its_name_is_resolved() {
    let app = App::alone("permission_host", ClusterOptions::default());
    let worker = app.worker(|_| force_complete(json!(null)));
    let mut superuser = app.superuser();
    for url in ["http://192.0.2.7:9", "http://169.254.169.254/latest", "http://[2001:db8::1]:80"] {
        superuser.refused(codes::HOST_NOT_ALLOWED, &format!("SELECT xdb.register_worker('evil', '{url}')"));
    }
    for url in ["ftp://127.0.0.1/", "http://user:secret@127.0.0.1/", "not a url"] {
        superuser.refused(codes::INVALID_ARGUMENT, &format!("SELECT xdb.register_worker('odd', '{url}')"));
    }
    app.register("one", &one_step());

    // The name was allowed when it was registered; what counts is where it leads when it is called.
    let by_name = worker.url().replace("127.0.0.1", "localhost");
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{by_name}')"));
    app.cluster().set("xdb.allowed_worker_hosts", "10.0.0.0/8");
    let mut db = app.db();
    db.start("p", "one").go();
    wait_until("the call is refused", 10, || {
        views::fails_saying(&mut db, "p", &["resolves to 127.0.0.1", "allowed_worker_hosts"])
    });
    assert_eq!(worker.count(|_| true), 0);
    app.cluster().set("xdb.allowed_worker_hosts", "127.0.0.0/8, ::1");
    db.completes("p");
    app.done(&[]);
}

#[test]
fn an_allowed_host_may_be_one_port_of_it() {
    let app = App::alone("permission_port", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!("pong")),
        _ => force_complete(json!(null)),
    });
    app.register("one", &one_step().rpc("ping", json!({})));
    let url = worker.url();
    let port: u16 = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port");
    let mut superuser = app.superuser();
    let allow = |superuser: &mut Db, hosts: &str| {
        app.cluster().set("xdb.allowed_worker_hosts", hosts);
        wait_until("the session follows", 10, || superuser.text("SHOW xdb.allowed_worker_hosts") == hosts);
    };
    allow(&mut superuser, &format!("127.0.0.0/8:{port}"));
    superuser.run(&format!("SELECT xdb.register_worker('stub', '{url}')"));

    // From here on there are connections that could be used again, of the engine and of the session.
    let mut db = app.db();
    db.start("before", "one").go();
    db.completes("before");
    assert_eq!(superuser.text("SELECT xdb.invoke_rpc('before', 'ping')::text"), "\"pong\"");
    let called = worker.count(|_| true);

    allow(&mut superuser, &format!("127.0.0.1:{}", port ^ 1));
    let error = superuser.refused(codes::HOST_NOT_ALLOWED, &format!("SELECT xdb.register_worker('stub', '{url}')"));
    let expected = format!("not permitted at port {port} by xdb.allowed_worker_hosts");
    assert!(error.detail.contains(&expected), "{error:?}");
    let error = superuser.refused(codes::WORKER_FAILED, "SELECT xdb.invoke_rpc('before', 'ping')");
    assert!(error.detail.contains(&expected), "{error:?}");
    db.start("p", "one").go();
    wait_until("the call is refused", 10, || views::fails_saying(&mut db, "p", &[&expected]));
    assert_eq!(worker.count(|_| true), called);

    allow(&mut superuser, &format!("[::1]:{port}, 127.0.0.1:{port}"));
    db.completes("p");
    app.done(&[]);
}

#[test]
fn no_role_sees_a_secret() {
    let app = App::new("permission_secret");
    let worker = Worker::start(|_| force_complete(json!(null)));
    let url = worker.url();
    app.superuser().run(&format!(
        r#"SELECT xdb.register_worker('stub', '{url}', secret => 'whsec_c2VjcmV0', headers => '{{"authorization": "Bearer tok"}}')"#
    ));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("p", "one").go();
    db.completes("p");
    let call = worker.wait_for("the call", 1, |_| true);
    for header in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        assert!(call.headers.contains_key(header), "{header} is missing: {:?}", call.headers);
    }
    assert!(call.headers["webhook-signature"].starts_with("v1,"));
    assert_eq!(call.headers["authorization"], "Bearer tok");
    for role in ["app", "boss", "postgres"] {
        let workers = app.session(role).text("SELECT coalesce(json_agg(w)::text, '') FROM xdb.workers w");
        assert!(!workers.contains("c2VjcmV0") && !workers.contains("Bearer tok"), "{role}: {workers}");
    }
    assert!(!app.cluster().log().contains("whsec_c2VjcmV0"));
    app.done(&[]);
}

/// Writes a row under a trigger. Returns the error that the worker got.
fn under_a_trigger(name: &str, body: &str) -> (App, Value) {
    let (app, _worker) = application(name);
    let mut db = app.db();
    db.run(&format!(
        "CREATE TABLE witness (who text, session text);
         CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN new; END $$;
         CREATE TRIGGER act BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION act();"
    ));
    db.run("INSERT INTO counters VALUES ('c', 0)");
    db.start("p", "writer").key("c").go();
    let result = db.completes("p").result().clone();
    (app, result)
}

#[test]
fn a_step_writes_as_its_owner() {
    let (app, result) = under_a_trigger("permission_owner", "INSERT INTO public.witness VALUES (current_user)");
    assert_eq!(result, "written");
    assert_eq!(app.db().text("SELECT who FROM witness"), "app");
    app.done(&[]);
}

#[test]
fn no_trigger_gets_out_of_its_role() {
    for (name, escape) in [
        ("permission_reset_role", "RESET ROLE"),
        ("permission_set_role", "SET ROLE postgres"),
        ("permission_set_session", "SET SESSION AUTHORIZATION postgres"),
    ] {
        let body = format!("EXECUTE '{escape}'; INSERT INTO public.witness VALUES (current_user)");
        let (app, result) = under_a_trigger(name, &body);
        assert_eq!(result["refused"]["sqlState"], codes::INSUFFICIENT_PRIVILEGE, "{escape}: {result}");
        assert_eq!(app.db().count("witness"), 0);
        app.done(&[]);
    }
}

#[test]
fn no_advisory_lock_of_a_trigger_outlives_its_step() {
    for (name, more) in [("permission_advisory", ""), ("permission_advisory_refused", "; RAISE 'not today'")] {
        let (app, result) = under_a_trigger(name, &format!("PERFORM pg_advisory_lock(4711){more}"));
        assert_eq!(result == "written", more.is_empty(), "{result}");
        let mut superuser = app.superuser();
        wait_until("it is released", 10, || {
            superuser.count("pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND datname = current_database()") == 0
        });
        app.done(&[]);
    }
}

#[test]
fn objects_of_one_owner_in_pg_temp_do_not_exist_for_the_next_owner() {
    let (app, _worker) = application("permission_temporary");
    let (mut db, mut other) = (app.db(), app.session("other"));
    db.run(
        "CREATE TABLE witness (who text);
         GRANT INSERT ON witness TO PUBLIC;
         CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             CREATE OR REPLACE FUNCTION pg_temp.helper() RETURNS void LANGUAGE plpgsql AS
                 $f$ BEGIN INSERT INTO public.witness VALUES (current_user); END $f$;
             PERFORM pg_temp.helper();
             RETURN new; END $$;
         CREATE TRIGGER act BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION act();
         INSERT INTO counters VALUES ('c', 0);",
    );
    other.run(
        "CREATE TABLE theirs (id text PRIMARY KEY, n int NOT NULL);
         CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF to_regprocedure('pg_temp.helper()') IS NULL THEN
                 CREATE FUNCTION pg_temp.helper() RETURNS void LANGUAGE sql AS '';
             END IF;
             PERFORM pg_temp.helper();
             RETURN new; END $$;
         CREATE TRIGGER look BEFORE UPDATE ON theirs FOR EACH ROW EXECUTE FUNCTION look();
         INSERT INTO theirs VALUES ('t', 0);",
    );
    app.register("theirs", &one_step().maps("public.theirs", "id", &["n"]));
    // Twice, because the trigger may make them again in each step.
    for round in 1..=2 {
        db.start(&format!("p{round}"), "writer").key("c").go();
        assert_eq!(db.completes(&format!("p{round}")).result(), "written");
        other.start(&format!("q{round}"), "theirs").key("t").go();
        assert_eq!(other.completes(&format!("q{round}")).result(), "written");
    }
    assert_eq!(db.all::<String>("SELECT who FROM witness"), ["app", "app"]);
    app.done(&[]);
}

#[test]
fn a_role_that_a_database_sets_is_not_the_engines() {
    let (app, _worker) = application("permission_database");
    let (mut db, mut superuser) = (app.db(), app.cluster().superuser());
    db.run("INSERT INTO counters VALUES ('c', 0)");
    for setting in ["role", "session_authorization"] {
        superuser.run(&format!("ALTER DATABASE permission_database SET {setting} = 'stranger'"));
        let before = app.scheduler();
        superuser.run(&format!("SELECT pg_terminate_backend({before})"));
        wait_until("another scheduler is there", 20, || {
            app.cluster().find_scheduler("permission_database").is_some_and(|pid| pid != before)
        });
        db.start(setting, "writer").key("c").go();
        assert_eq!(db.completes(setting).result(), "written");
        superuser.run(&format!("ALTER DATABASE permission_database RESET {setting}"));
    }
    app.done(&[]);
}

#[test]
fn a_deferred_trigger_runs_as_the_owner_too() {
    let (app, _worker) = application("permission_deferred");
    let mut db = app.db();
    db.run(
        "CREATE TABLE witness (who text);
         CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.witness VALUES (current_user); RETURN new; END $$;
         CREATE CONSTRAINT TRIGGER act AFTER UPDATE ON counters DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION act();
         INSERT INTO counters VALUES ('c', 0);",
    );
    db.start("p", "writer").key("c").go();
    assert_eq!(db.completes("p").result(), "written");
    assert_eq!(db.text("SELECT who FROM witness"), "app");
    app.done(&[]);
}

#[test]
fn a_trigger_inside_the_engine_may_start_but_not_wait() {
    let wait = "PERFORM xdb.wait_for_process('p', '1 second')";
    let (app, result) = under_a_trigger("permission_waits", wait);
    assert_eq!(result["refused"]["sqlState"], codes::INSIDE_ENGINE, "{result}");
    app.done(&[]);

    let call = "PERFORM xdb.invoke_rpc('p', 'ping')";
    let (app, result) = under_a_trigger("permission_calls", call);
    assert_eq!(result["refused"]["sqlState"], codes::INSIDE_ENGINE, "{result}");
    app.done(&[]);

    let start =
        "PERFORM xdb.start_process('child', 'mail'); PERFORM xdb.publish('child', 'inbox', '\"from a trigger\"')";
    let (app, result) = under_a_trigger("permission_starts", start);
    assert_eq!(result, "written");
    wait_until("the child is there", 10, || app.db().count("xdb.processes WHERE process_id = 'child'") == 1);
    app.done(&[]);
}

#[test]
fn an_rpc_writes_as_its_caller() {
    let app = App::new("permission_rpc");
    let mut db = app.db();
    db.run(
        "CREATE TABLE witness (who text);
         CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.witness VALUES (current_user); RETURN new; END $$;
         CREATE TRIGGER act BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION act();
         INSERT INTO counters VALUES ('c', 0);
         GRANT SELECT, UPDATE ON counters TO boss;
         GRANT INSERT ON witness TO boss;",
    );
    let _worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!("set")).globals(json!({"n": 5})),
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        Api::Execute => force_complete(json!(null)),
    });
    app.register("mail", &mailbox().rpc("set", json!({})).maps("public.counters", "id", &["n"]));
    db.start("p", "mail").key("c").go();
    assert_eq!(app.session("boss").rpc("p", "set", json!(null)), "set");
    assert_eq!(db.text("SELECT who FROM witness"), "boss");
    app.done(&[]);
}

#[test]
fn a_process_whose_owner_was_dropped_fails_with_the_reason() {
    let (app, _worker) = application("permission_gone");
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE leaver LOGIN; SELECT xdb.grant_usage('leaver')");
    let mut leaver = app.session("leaver");
    leaver.start("p", "mail").go();
    wait_until("it waits", 10, || !views::waits(&mut leaver, "p").is_empty());
    drop(leaver);
    superuser.run("SELECT xdb.revoke_usage('leaver'); DROP ROLE leaver");
    let mut boss = app.session("boss");
    boss.publish("p", "inbox", json!("anybody there?"));
    assert_eq!(boss.outcome("p").status(), "FAILED");
    assert!(boss.text("SELECT xdb.describe_process('p')").contains("leaver"));
    app.done(&["leaver"]);
}

#[test]
fn a_reassigned_process_continues_as_its_new_owner() {
    let (app, worker) = application("permission_reassigned");
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE mover LOGIN; SELECT xdb.grant_usage('mover'); GRANT app TO mover");
    let mut db = app.db();
    db.run(
        "CREATE TABLE witness (who text);
         CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.witness VALUES (current_user); RETURN new; END $$;
         CREATE TRIGGER act BEFORE UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION act();
         INSERT INTO counters VALUES ('c', 0);
         GRANT SELECT, UPDATE ON counters TO other; GRANT INSERT ON witness TO other;",
    );
    // One process that waits, and one whose call is under way.
    let hung =
        app.worker_named("hung", |_: &Call| Reply::hang(force_complete(json!("written")).globals(json!({"n": 1}))));
    app.register_with("hung", "hangs", &one_step().maps("public.counters", "id", &["n"]));
    db.start("waits", "mail").go();
    db.start("called", "hangs").key("c").go();
    hung.wait_for_count("the call", 20, 1, |_| true);
    wait_until("it waits", 10, || !views::waits(&mut db, "waits").is_empty());
    let mut mover = app.session("mover");
    mover.refused(codes::INSUFFICIENT_PRIVILEGE, "SELECT xdb.reassign_owned('app', 'other')");
    superuser.run("GRANT other TO mover");
    mover.run("SELECT xdb.reassign_owned('app', 'other')");
    hung.release();
    let mut other = app.session("other");
    assert_eq!(other.completes("called").result(), "written");
    assert_eq!(db.text("SELECT string_agg(who, ',') FROM witness"), "other");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.publish('waits', 'inbox', '1')");
    other.publish("waits", "inbox", json!("go on"));
    other.completes("waits");
    assert!(worker.count(|call| call.api == Api::Execute) > 0);
    superuser.run("SELECT xdb.revoke_usage('mover'); DROP ROLE mover");
    app.done(&[]);
}

#[test]
fn processes_without_an_owner_are_counted_until_they_get_one() {
    let (app, _worker) = application("permission_ownerless");
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE leaver LOGIN; GRANT app TO leaver");
    let mut leaver = app.session("leaver");
    leaver.run("SELECT xdb.start_process('left-' || n, 'mail') FROM generate_series(1, 3) n");
    drop(leaver);
    // A step would fail them.
    wait_until("they wait", 20, || superuser.count("xdb.waits WHERE process_id LIKE 'left-%'") == 3);
    let counted = |db: &mut Db| db.one::<i64>("SELECT ownerless_processes FROM xdb.status()");
    assert_eq!(counted(&mut superuser), 0);
    superuser.run("DROP ROLE leaver");
    assert_eq!(counted(&mut superuser), 3);
    assert_eq!(superuser.count("xdb.processes WHERE process_id LIKE 'left-%' AND status = 'RUNNING'"), 3);
    superuser.run("SELECT xdb.reassign_owned('-', 'app')");
    assert_eq!(counted(&mut superuser), 0);
    let mut db = app.db();
    db.publish("left-1", "inbox", json!("go on"));
    db.completes("left-1");
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes WHERE status = 'RUNNING'");
    app.done(&[]);
}

#[test]
fn a_role_of_the_same_name_is_another_one() {
    let (app, worker) = application("permission_name");
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE successor LOGIN; SELECT xdb.grant_usage('successor')");
    let mut db = app.session("successor");
    db.start("p", "mail").go();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());
    drop(db);
    superuser.run("SELECT xdb.revoke_usage('successor'); DROP ROLE successor; CREATE ROLE successor LOGIN");
    superuser.run("SELECT xdb.grant_usage('successor')");
    app.session("successor").refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('p')");
    let mut boss = app.session("boss");
    boss.publish("p", "inbox", json!("whose is it?"));
    assert_eq!(boss.outcome("p").status(), "FAILED");
    assert_eq!(worker.count(|call| call.api == Api::Execute), 0);
    app.done(&["successor"]);
}

#[test]
fn the_policies_let_a_query_be_parallel() {
    // In a cluster of its own, so that its engine can be switched off.
    let app = App::alone("permissions_parallel", ClusterOptions::default());
    let _worker = app.worker(|_: &Call| any_of(&[local_queue("m", "inbox", 1)]));
    app.register("mail", &mailbox());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.run("SELECT count(xdb.start_process('p' || n, 'mail')) FROM generate_series(1, 20) n");
    let forced = if superuser.one::<i32>("SELECT current_setting('server_version_num')::int") < 160_000 {
        "force_parallel_mode"
    } else {
        "debug_parallel_query"
    };
    // With an engine, shared memory says whether the oids of owners are valid. Without one, a table says so.
    for engine in ["runs", "stands still"] {
        if engine == "stands still" {
            app.cluster().set("xdb.enabled", "off");
            wait_until("the engine has ended", 20, || superuser.text("SELECT state FROM xdb.status()") == "stopped");
        }
        for (table, count) in [("xdb.process_execution", 20), ("xdb.state_execution", 20)] {
            db.run(
                "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
                 SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;
                 SET max_parallel_workers_per_gather = 2",
            );
            let plan = db.json(&format!("EXPLAIN (FORMAT JSON) SELECT count(*) FROM {table}")).to_string();
            assert!(plan.contains("\"Gather\""), "{plan}");
            assert_eq!(db.count(table), count);
        }
        db.run(&format!("SET {forced} = on"));
        let plan = db.json("EXPLAIN (ANALYZE, FORMAT JSON) SELECT xdb.knows_roles()").to_string();
        assert!(plan.contains("\"Workers Launched\":1"), "{plan}");
        assert!(db.one::<bool>("SELECT xdb.knows_roles()"));
        db.run("RESET ALL");
    }
    app.cluster().set("xdb.enabled", "on");
    db.run("SELECT xdb.stop_process(process_id) FROM xdb.processes");
    app.done(&[]);
}
