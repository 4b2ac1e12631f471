//! Odd names: the same odd text is the name of every named object. Processes with such names run from start to end.

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

fn names() -> Vec<String> {
    let mut names: Vec<_> = [
        "select",
        "user",
        "null",
        "NaN",
        "Capitals and spaces",
        " ",
        "a.b.c",
        "A-1",
        "-",
        "../../etc/passwd",
        "http://127.0.0.1/x?y#z",
        "it's",
        r#"quo"ted"#,
        r#""""#,
        r#"{"json": [1]}"#,
        r"back\slash",
        r"\u0041",
        "$1",
        "$$",
        "%I %s {} %%",
        "x'); DROP TABLE bystander; --",
        "two\nlines\r\n\tand a tab",
        "ünïcödé",
        "ключ",
        "日本語",
        "🚀👩‍👩‍👧",
        "\u{202e}right to left",
        "e\u{301} and é",
        "\u{1}\u{1f}\u{7f}\u{9f}",
    ]
    .map(str::to_owned)
    .into();
    names.push("n".repeat(63));
    names.push("é".repeat(512));
    names
}

/// Waits for one message of the queue whose name is the process id, and completes with it.
fn handler(call: &Call) -> Reply {
    let name = call.process_id();
    match call.api {
        Api::WaitUntil => {
            any_of(&[local_queue(name, name, 1), timer("never", 1e9)]).locals(json!({name: "waited"})).into()
        }
        Api::Execute => force_complete(json!({name: call.messages(name), "before": call.local(name)})).into(),
        Api::Rpc => output(json!({name: call.input()})).locals(json!({name: "asked"})).into(),
    }
}

#[test]
fn one_odd_name_for_everything() {
    let app = App::new("odd_names");
    let worker = app.worker(handler);
    let mut superuser = app.superuser();
    let mut db = app.db();
    db.run("CREATE TABLE bystander (id int)");
    for name in &names() {
        let quoted = literal(name);
        superuser.run(&format!("SELECT xdb.register_worker({quoted}, {})", literal(&worker.url())));
        let quick = json!({"executeApiRetryPolicy": quick_retries(), "waitUntilApiRetryPolicy": quick_retries()});
        let definition = json!({
            "startingState": name, "states": {name: quick}, "localQueues": [name], "localAttributes": [name],
            "rpcs": {name: {"loadLocalAttributes": {"policy": "PARTIAL", "names": [name]}}},
        });
        let definition = jsonb(&definition);
        superuser.run(&format!("SELECT xdb.register_process_type({quoted}, {quoted}, {definition})"));

        let request = json!({"requestId": name});
        let id = db.start(name, name).options(request.clone()).locals(json!({name: "given"})).go();
        assert_eq!(db.start(name, name).options(request).go(), id, "{name:?}: the same request");
        let state = format!("{name}-1");
        wait_until("it waits", 20, || views::waits(&mut db, name).len() == 2);

        let wait = &views::waits(&mut db, name)[1];
        assert_eq!((&wait["queue_name"], &wait["command_id"]), (&json!(name), &json!(name)), "{wait}");
        assert_eq!(wait["state_execution_id"], json!(state));
        let described = db.json(&format!("SELECT xdb.describe_process({quoted})"));
        assert_eq!((&described["processId"], &described["processType"]), (&json!(name), &json!(name)));
        assert_eq!(described["threads"][0]["stateExecutionId"], json!(state));
        assert_eq!(described["threads"][0]["waitingFor"][1]["queueName"], json!(name));
        assert_eq!(db.count(&format!("xdb.workers WHERE name = {quoted}")), 1);
        assert_eq!(db.count(&format!("xdb.timers WHERE process_id = {quoted} AND command_id = 'never'")), 1);

        // An idempotency key is called once, and is the same in both headers and body.
        let rpc = format!("SELECT xdb.invoke_rpc({quoted}, {quoted}, '[1]', idempotency_key => {quoted})");
        assert_eq!(db.json(&rpc), json!({name: [1]}));
        assert_eq!(db.json(&rpc), json!({name: [1]}));
        let calls: Vec<_> =
            worker.calls().into_iter().filter(|c| c.api == Api::Rpc && c.process_id() == name).collect();
        assert_eq!(calls.len(), 1, "{name:?}");
        assert_eq!(calls[0].target(), name);
        assert_eq!(calls[0].local(name), "waited", "{}", calls[0].raw);
        assert!(calls[0].idempotency_key().starts_with(calls[0].call_id()), "{:?}", calls[0].headers);
        assert!(calls[0].idempotency_key().bytes().all(|byte| byte.is_ascii_graphic()));
        assert_eq!(
            db.json(&format!("SELECT xdb.get_local_attributes({quoted}, ARRAY[{quoted}])")),
            json!({name: "asked"})
        );

        // A message id counts once.
        let publish =
            format!("SELECT xdb.publish({quoted}, {quoted}, to_jsonb({quoted}::text), message_id => {quoted})");
        db.run(&format!("BEGIN; {publish}; {publish}; COMMIT"));
        let waited = db.json(&format!("SELECT xdb.wait_for_state({quoted}, {}, '60 s')", literal(&state)));
        assert_eq!(waited["status"], "COMPLETED", "{name:?}: {waited}");
        let outcome = db.completes(name);
        assert_eq!(outcome.results()[0]["stateExecutionId"], json!(state));
        assert_eq!(outcome.result(), &json!({name: [name], "before": "asked"}));
        views::assert_history_is_whole(&mut db, name);
        assert!(views::failures(&mut db, name).is_empty());
    }
    assert_eq!(db.count("bystander"), 0, "it is still there");
    // A role that reads the views reads all rows.
    assert_eq!(db.count("xdb.processes WHERE is_latest"), names().len() as i64);
    assert_eq!(db.count("xdb.state_executions WHERE status = 'COMPLETED'"), names().len() as i64);
    app.done(&[]);
}

#[test]
fn a_worker_may_use_odd_names_too() {
    let app = App::new("odd_answers");
    let names: Vec<_> = names().into_iter().filter(|name| name.len() <= 63).collect();
    let all = names.clone();
    let worker = app.worker(move |call: &Call| match call.target() {
        // Each name is a state of its own, which keeps its name as an attribute, publishes, and ends.
        "Fork" => {
            let next: Vec<_> = all.iter().map(|name| (name.as_str(), json!(name))).collect();
            next_all(&next)
        }
        name => graceful_complete(json!(name)).locals(json!({name: name})).publish(name, json!(name)),
    });
    let mut definition = Definition::starting_with("Fork").step("Fork");
    for name in &names {
        definition = definition.step(name);
    }
    app.register("fork", &definition);
    let mut db = app.db();
    db.start("p", "fork").go();
    let outcome = db.completes("p");
    let mut given: Vec<_> = outcome.results().iter().map(|result| result["output"].as_str().unwrap_or("")).collect();
    given.sort_unstable();
    let mut wanted: Vec<_> = names.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    assert_eq!(given, wanted);
    assert_eq!(worker.count(|call| call.attempt() > 1), 0);
    let kept = db.json("SELECT xdb.get_local_attributes('p')");
    for name in &names {
        assert_eq!(kept[name], json!(name));
    }
    assert_eq!(
        db.count("xdb.history WHERE event_type = 'MessagesReceived'"),
        names.len() as i64,
        "each state has published"
    );
    app.done(&[]);
}

#[test]
fn roles_of_any_name_own_processes() {
    let app = App::new("odd_roles");
    let _worker =
        app.worker(|call: &Call| any_of(&[local_queue("m", "inbox", 1)]).globals(json!({"status": call.process_id()})));
    app.register("wait", &mailbox().maps("public.users", "user_id", &["status"]));
    let names = [r#"Odd "Role""#, "select", "it's; --", "ключ 🚀", "a.b"];
    let mut superuser = app.superuser();
    for name in names {
        let role = format!("\"{}\"", name.replace('"', "\"\""));
        superuser.run(&format!(
            "CREATE ROLE {role} LOGIN; SELECT xdb.grant_usage({});
             GRANT ALL ON users TO {role}",
            literal(&role)
        ));
        let mut db = app.session(name);
        db.start(name, "wait").key(name).globals(json!({"status": "new"})).go();
        wait_until("the step is applied as the role", 20, || {
            db.count(&format!("users WHERE status = {}", literal(name))) == 1
        });
        assert_eq!(db.text(&format!("SELECT owner FROM xdb.processes WHERE process_id = {}", literal(name))), name);
        assert_eq!(db.count("xdb.processes"), 1, "no other process");
        db.run(&format!("SELECT xdb.stop_process({})", literal(name)));
        drop(db);
    }
    app.done(&[]);
}

#[test]
fn databases_of_any_name_have_an_engine() {
    let app = App::new("odd_databases");
    let worker = app.worker(|_: &Call| force_complete(json!("done")));
    let long = "d".repeat(63);
    for name in [r#"Odd "Database""#, "select", "it's; --", "ключ 🚀", "a.b", &long] {
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        let mut postgres = app.cluster().superuser();
        postgres.run(&format!("CREATE DATABASE {quoted} TEMPLATE template0"));
        let mut superuser = app.cluster().connect(name, "postgres");
        let definition = jsonb(one_step().json());
        superuser.run(&format!(
            "CREATE EXTENSION xdb; SELECT xdb.grant_usage('app'); SELECT xdb.register_worker('stub', {});
             SELECT xdb.register_process_type('one', 'stub', {definition})",
            literal(&worker.url())
        ));
        let mut db = app.cluster().connect(name, "app");
        db.start("p", "one").go();
        assert_eq!(db.completes("p").result(), "done", "{name:?}");
        assert_eq!(superuser.text("SELECT state FROM xdb.status()"), "running", "{name:?}");
        drop((db, superuser));
        postgres.drop_database(&quoted, "WITH (FORCE)");
    }
    app.done(&[]);
}
