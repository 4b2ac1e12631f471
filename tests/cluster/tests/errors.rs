//! Every error has its SQLSTATE, and a hint if the remedy is not obvious.

use xdb_cluster_tests::prelude::*;

/// A process `p` that waits for a message of `inbox`, and lists its queues and attributes.
fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!(null)),
    });
    let strict = mailbox().with("localQueues", json!(["inbox"])).with("localAttributes", json!(["k"]));
    app.register("mail", &strict.with("globalQueues", json!([])).rpc("ping", json!({})));
    app.db().start("p", "mail").go();
    (app, worker)
}

#[test]
fn unknown_names_are_in_the_error() {
    let (app, _worker) = application("error_unknown");
    let mut db = app.db();
    let process = db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.publish('missing', 'inbox')");
    assert!(process.message.contains("missing"), "{process:?}");
    let kind = db.refused(codes::UNKNOWN_PROCESS_TYPE, "SELECT xdb.start_process('q', 'no_such_type')");
    assert!(kind.message.contains("no_such_type"), "{kind:?}");
    let queue = db.refused(codes::UNKNOWN_QUEUE, "SELECT xdb.publish('p', 'outbox')");
    assert!(queue.message.contains("outbox"), "{queue:?}");
    let worker = app
        .superuser()
        .refused(codes::UNKNOWN_WORKER, r#"SELECT xdb.register_process_type('t', 'no_such_worker', '{"states": {}}')"#);
    assert!(worker.message.contains("no_such_worker"), "{worker:?}");
    app.superuser().refused(codes::UNKNOWN_WORKER, "SELECT xdb.unregister_worker('no_such_worker')");
    app.superuser().refused(codes::UNKNOWN_PROCESS_TYPE, "SELECT xdb.unregister_process_type('no_such_type')");
    app.done(&[]);
}

#[test]
fn an_execution_of_another_process_is_no_execution_of_this_one() {
    let (app, _worker) = application("error_execution");
    let mut db = app.db();
    let other = db.start("q", "mail").go();
    db.refused(codes::UNKNOWN_PROCESS, &format!("SELECT xdb.describe_process('p', execution_id => '{other}')"));
    app.done(&[]);
}

#[test]
fn a_closed_process_is_not_driven() {
    let (app, _worker) = application("error_closed");
    let mut db = app.db();
    db.start("p", "mail").refused(codes::ALREADY_STARTED);
    db.run("SELECT xdb.stop_process('p')");
    for sql in ["SELECT xdb.publish('p', 'inbox')", "SELECT xdb.stop_process('p')"] {
        db.refused(codes::NOT_RUNNING, sql);
    }
    app.done(&[]);
}

#[test]
fn a_bad_definition_is_refused_with_the_reason() {
    let (app, _worker) = application("error_definition");
    app.db().run(r#"CREATE TABLE "Odd ""name" (id int PRIMARY KEY, v text); CREATE TABLE no_key (id int, v text)"#);
    let mut superuser = app.superuser();
    let mapping = |table: &str, key: &str, column: &str| {
        json!({"states": {}, "globalAttributes":
            [{"table": table, "primaryKey": key, "attributes": {"v": column}}]})
    };
    let cases = [
        (json!([]), ""),
        (json!({"startingState": "Missing", "states": {"S": {}}}), "Missing"),
        (json!({"states": {"S": {"executeApiTimeoutSeconds": "soon"}}}), "executeApiTimeoutSeconds"),
        (json!({"states": {"S": {"executeApiTimeoutSeconds": -1}}}), "executeApiTimeoutSeconds"),
        (json!({"states": {"S": {"executeApiRetryPolicy": {"backoffCoefficient": 0.5}}}}), "backoffCoefficient"),
        (
            json!({"states": {"S": {"stateFailureRecoveryOptions":
            {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Missing"}}}}),
            "Missing",
        ),
        (mapping("public.no_such_table", "id", "v"), "no_such_table"),
        (mapping("public.users", "user_id", "no_such_column"), "no_such_column"),
        (mapping("public.users", "status", "form"), "status"),
        (mapping("public.no_key", "id", "v"), "id"),
        (json!({"states": {}, "history": "sometimes"}), "history"),
    ];
    for (definition, word) in cases {
        let sql =
            format!("SELECT xdb.register_process_type('bad', 'stub', {})", xdb_cluster_tests::db::jsonb(&definition));
        let error = superuser.refused(codes::INVALID_DEFINITION, &sql);
        assert!(format!("{error:?}").contains(word), "{word}: {error:?}");
    }
    app.db().refused(codes::UNKNOWN_PROCESS_TYPE, "SELECT xdb.start_process('x', 'bad')");
    // A name that needs quotes is no bad name.
    app.register("odd", &one_step().maps(r#"public."Odd ""name""#, "id", &["v"]));
    app.done(&[]);
}

#[test]
fn a_bad_argument_is_refused_and_named() {
    let (app, _worker) = application("error_argument");
    let mut db = app.db();
    for (sql, word) in [
        ("SELECT xdb.start_process('q', 'mail', id_reuse_policy => 'WHENEVER')", "WHENEVER"),
        (r#"SELECT xdb.start_process('q', 'mail', options => '{"colour": "red"}')"#, "colour"),
        (r#"SELECT xdb.start_process('q', 'mail', options => '{"globalAttributeConflictMode": "MAYBE"}')"#, "MAYBE"),
        ("SELECT xdb.start_process('q', 'mail', timeout => '-1 second')", "timeout"),
        (r#"SELECT xdb.start_process('q', 'mail', local_attributes => '{"other": 1}')"#, "other"),
        (r#"SELECT xdb.start_process('q', 'mail', global_attributes => '{"n": 1}')"#, "n"),
        ("SELECT xdb.start_process('', 'mail')", "process"),
        ("SELECT xdb.stop_process('p', 'PAUSE')", "PAUSE"),
        ("SELECT xdb.wait_for_process('p', NULL)", "timeout"),
        ("SELECT xdb.wait_for_process('p', '2 hours')", "timeout"),
        ("SELECT xdb.invoke_rpc('p', 'no_such_rpc')", "no_such_rpc"),
    ] {
        let error = db.refused(codes::INVALID_ARGUMENT, sql);
        assert!(format!("{error:?}").contains(word), "{sql}: {error:?}");
    }
    assert_eq!(db.count("xdb.processes"), 1);
    app.done(&[]);
}

#[test]
fn a_worker_or_type_in_use_is_not_unregistered() {
    let (app, _worker) = application("error_in_use");
    let mut superuser = app.superuser();
    superuser.refused(codes::STILL_IN_USE, "SELECT xdb.unregister_worker('stub')");
    superuser.refused(codes::STILL_IN_USE, "SELECT xdb.unregister_process_type('mail')");
    app.db().run("SELECT xdb.stop_process('p')");
    superuser.run("SELECT xdb.unregister_process_type('mail'); SELECT xdb.unregister_worker('stub')");
    app.db().refused(codes::UNKNOWN_PROCESS_TYPE, "SELECT xdb.start_process('q', 'mail')");
    app.done(&[]);
}

#[test]
fn a_session_may_not_wait_for_its_own_uncommitted_work() {
    let (app, _worker) = application("error_own_work");
    let mut db = app.db();
    db.run("BEGIN");
    db.start("q", "mail").go();
    db.refused(codes::WOULD_WAIT_FOR_ITSELF, "SELECT xdb.wait_for_process('q', '1 second')");
    db.run("ROLLBACK; BEGIN");
    db.publish("p", "inbox", json!(1));
    db.refused(codes::WOULD_WAIT_FOR_ITSELF, "SELECT xdb.wait_for_process('p', '1 second')");
    db.run("ROLLBACK; BEGIN");
    db.publish("p", "inbox", json!(1));
    db.run("ROLLBACK");
    app.done(&[]);
}

#[test]
fn without_preloading_the_hint_has_the_line_to_write() {
    let cluster = Cluster::start(ClusterOptions::default().not_preloaded());
    let mut superuser = cluster.superuser();
    // Creating the extension may be what is refused, or using it.
    let error = match superuser.try_run("CREATE EXTENSION xdb") {
        Err(error) => error,
        Ok(()) => superuser.refused(codes::NOT_PRELOADED, "SELECT xdb.start_process('p', 't')"),
    };
    assert_eq!(error.code, codes::NOT_PRELOADED, "{error:?}");
    assert!(error.hint.contains("shared_preload_libraries = 'xdb'"), "{error:?}");
}

#[test]
fn a_standby_shows_but_does_not_act_until_it_is_promoted() {
    let app = App::alone("error_standby", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match (call.api, call.process_id()) {
        (Api::WaitUntil, "sleeper") => any_of(&[timer("t", 8.0)]),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "sleeper") => force_complete(json!({"fired": call.fired("t")})),
        _ => force_complete(json!(call.messages("m"))),
    });
    app.register("mail", &mailbox().rpc("ping", json!({})));
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("p waits", 10, || !views::waits(&mut db, "p").is_empty());

    let standby = app.cluster().standby();
    let mut there = standby.connect(app.database(), "app");
    wait_until("the standby shows p", 20, || there.count("xdb.processes WHERE process_id = 'p'") == 1);
    assert_eq!(there.all::<String>("SELECT problem FROM xdb.check_process('p')"), Vec::<String>::new());
    for sql in [
        "SELECT xdb.start_process('q', 'mail')",
        "SELECT xdb.publish('p', 'inbox')",
        "SELECT xdb.stop_process('p')",
        "SELECT xdb.invoke_rpc('p', 'ping')",
    ] {
        there.refused(codes::STANDBY, sql);
    }
    for view in ["processes", "state_executions", "waits", "timers", "queue_messages", "failures", "history"] {
        there.count(&format!("xdb.{view}"));
    }
    assert_eq!(standby.find_scheduler(app.database()), None);

    db.start("sleeper", "mail").go();
    wait_until("the standby knows the timer", 20, || there.count("xdb.timers WHERE process_id = 'sleeper'") == 1);
    app.cluster().crash();
    standby.superuser().run("SELECT pg_promote()");
    standby.scheduler(app.database());
    let mut promoted = standby.connect(app.database(), "app");
    promoted.publish("p", "inbox", json!("on the other side"));
    assert_eq!(promoted.completes("p").result(), &json!(["on the other side"]));
    assert_eq!(promoted.completes("sleeper").result(), &json!({"fired": true}));
    assert_eq!(worker.count(|call| call.api == Api::Execute), 2);
    let lost_primary = [
        "could not receive data from WAL stream",
        "could not connect to the primary server",
        "could not send",
        "walreceiver",
    ];
    assert_eq!(standby.unexplained_errors(&lost_primary), Vec::<String>::new());
}

#[test]
fn an_error_of_a_nested_function_names_its_place_once() {
    let app = App::new("errors_context");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step().maps("users", "user_id", &["status"]));
    let mut db = app.db();
    db.run(
        r#"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN EXECUTE 'SELECT no_such_column FROM users'; RETURN NEW; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION refuse();
           CREATE FUNCTION begin_it() RETURNS void LANGUAGE plpgsql AS $$
           BEGIN PERFORM xdb.start_process('p', 'one', global_attribute_pk => 'u', global_attributes => '{"status": "s"}'); END $$"#,
    );
    let error = db.client().batch_execute("SELECT begin_it()").expect_err("the trigger fails");
    let error = error.as_db_error().expect("the server's");
    let context: Vec<_> = error.where_().unwrap_or_default().lines().map(str::trim).collect();
    let count = |what: &str| context.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("PL/pgSQL function refuse() line 2 at EXECUTE"), 1, "{context:#?}");
    assert_eq!(count("PL/pgSQL function begin_it() line 2 at PERFORM"), 1, "{context:#?}");
    let position =
        postgres::error::ErrorPosition::Internal { position: 8, query: "SELECT no_such_column FROM users".to_owned() };
    assert_eq!(error.position(), Some(&position), "{error:?}");
    // One that the function makes has the places around it, too.
    db.run(
        "CREATE FUNCTION publish_it() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM xdb.publish('x', 'q'); END $$",
    );
    let error = db.client().batch_execute("SELECT publish_it()").expect_err("there is no such process");
    let context = error.as_db_error().and_then(|error| error.where_()).unwrap_or_default();
    assert_eq!(context.matches("publish_it() line 1 at PERFORM").count(), 1, "{context}");
    app.done(&[]);
}
