//! The attributes that calls load, and that their answers write.

use xdb_cluster_tests::prelude::*;

fn loading(policy: &str, names: &[&str]) -> Value {
    match names {
        [] => json!({"policy": policy}),
        names => json!({"policy": policy, "names": names}),
    }
}

#[test]
fn a_call_gets_the_attributes_of_its_loading_policy() {
    let app = App::new("attributes_loading");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(null)),
        (Api::WaitUntil, "Waits") => any_of(&[local_queue("m", "inbox", 1)]),
        (Api::WaitUntil, _) => no_command(),
        (_, "All") => next("Nothing", json!(null)),
        (_, "Nothing") => next("Some", json!(null)),
        (_, "Some") => next("Overridden", json!(null)),
        (_, "Overridden") => next("Waits", json!(null)),
        _ => force_complete(json!(null)),
    });
    let definition = Definition::starting_with("All")
        .waiting_step("All")
        .waiting_step_with(
            "Nothing",
            json!({"loadGlobalAttributes": loading("NONE", &[]), "loadLocalAttributes": loading("NONE", &[])}),
        )
        .waiting_step_with(
            "Some",
            json!({"loadGlobalAttributes": loading("PARTIAL", &["status"]),
                   "loadLocalAttributes": loading("PARTIAL", &["b", "missing"])}),
        )
        .waiting_step_with(
            "Overridden",
            json!({"loadGlobalAttributes": loading("NONE", &[]), "loadLocalAttributes": loading("NONE", &[]),
                   "waitUntilLoadGlobalAttributes": loading("PARTIAL", &["source"]),
                   "waitUntilLoadLocalAttributes": loading("PARTIAL", &["a"]),
                   "executeLoadGlobalAttributes": loading("ALL", &[]),
                   "executeLoadLocalAttributes": loading("ALL", &[])}),
        )
        .waiting_step("Waits")
        .rpc("all", json!({}))
        .rpc(
            "nothing",
            json!({"loadGlobalAttributes": loading("NONE", &[]), "loadLocalAttributes": loading("NONE", &[])}),
        )
        .rpc(
            "some",
            json!({"loadGlobalAttributes": loading("PARTIAL", &["source"]),
                   "loadLocalAttributes": loading("PARTIAL", &["b"])}),
        )
        .maps("public.users", "user_id", &["status", "source"]);
    app.register("loads", &definition);
    let mut db = app.db();
    db.start("p", "loads")
        .key("u")
        .globals(json!({"status": "new", "source": "web"}))
        .locals(json!({"a": 1, "b": 2}))
        .go();
    wait_until("it waits", 10, || views::waits(&mut db, "p").iter().any(|wait| wait["kind"] == "LOCAL_QUEUE"));
    for rpc in ["all", "nothing", "some"] {
        db.rpc("p", rpc, json!(null));
    }
    let (globals, locals) = (json!({"status": "new", "source": "web"}), json!({"a": 1, "b": 2}));
    for (api, target, global, local) in [
        (Api::WaitUntil, "All", &globals, &locals),
        (Api::Execute, "All", &globals, &locals),
        (Api::WaitUntil, "Nothing", &json!({}), &json!({})),
        (Api::Execute, "Nothing", &json!({}), &json!({})),
        (Api::WaitUntil, "Some", &json!({"status": "new"}), &json!({"b": 2})),
        (Api::Execute, "Some", &json!({"status": "new"}), &json!({"b": 2})),
        (Api::WaitUntil, "Overridden", &json!({"source": "web"}), &json!({"a": 1})),
        (Api::Execute, "Overridden", &globals, &locals),
        (Api::Rpc, "all", &globals, &locals),
        (Api::Rpc, "nothing", &json!({}), &json!({})),
        (Api::Rpc, "some", &json!({"source": "web"}), &json!({"b": 2})),
    ] {
        let call = worker.wait_for(target, 1, |call| call.api == api && call.target() == target);
        assert_eq!(&call.body["loadedGlobalAttributes"], global, "{api:?} {target}");
        assert_eq!(&call.body["loadedLocalAttributes"], local, "{api:?} {target}");
    }
    db.publish("p", "inbox", json!(1));
    db.completes("p");
    app.done(&[]);
}

#[test]
fn a_key_without_a_row_loads_nulls_and_makes_no_row() {
    let app = App::new("attributes_no_row");
    let worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => force_complete(json!(null)).globals(call.input().clone()),
        refused => force_complete(refused["sqlState"].clone()),
    });
    app.register("writes", &one_step().maps("public.users", "user_id", &["status", "source"]));
    let mut db = app.db();
    db.start("reads", "writes").key("nobody").input(json!({})).go();
    db.completes("reads");
    let call = worker.wait_for("the call", 1, |_| true);
    assert_eq!(call.body["loadedGlobalAttributes"], json!({"status": null, "source": null}));
    db.start("writes", "writes").key("nobody").input(json!({"status": "new"})).go();
    assert_eq!(db.completes("writes").result(), codes::NO_DATA);
    assert_eq!(db.count("users"), 0);
    app.done(&[]);
}

#[test]
fn a_step_updates_the_columns_that_it_names_and_no_other() {
    let app = App::new("attributes_columns");
    let _worker = app.worker(|call: &Call| match call.refused_write() {
        Value::Null => force_complete(json!("written")).globals(json!({"status": "new"})),
        refused => force_complete(refused["message"].clone()),
    });
    app.register("writes", &one_step().maps("public.users", "user_id", &["form", "status", "source"]));
    let mut db = app.db();
    db.run(
        "INSERT INTO users VALUES ('u', '{}', 'old', 'web');
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'another column is written'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE OF user_id, form, source ON users
             FOR EACH ROW EXECUTE FUNCTION refuse();",
    );
    db.start("p", "writes").key("u").go();
    assert_eq!(db.completes("p").result(), "written");
    assert_eq!(db.text("SELECT concat_ws(' ', user_id, form, status, source) FROM users"), "u {} new web");
    app.done(&[]);
}

#[test]
fn processes_that_share_a_row_write_it_one_after_another_also_in_one_batch() {
    let app = App::new("attributes_shared");
    let worker = app.worker(|call: &Call| {
        let attribute = call.input()["attribute"].as_str().unwrap_or_default();
        Reply::hang(force_complete(json!(null)).globals(json!({attribute: call.process_id()})))
    });
    app.register("shares", &one_step().maps("public.users", "user_id", &["status", "source"]));
    let mut db = app.db();
    db.run(
        "INSERT INTO users (user_id) VALUES ('u');
         CREATE TABLE audit (n int GENERATED ALWAYS AS IDENTITY, status text, source text);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.audit (status, source) VALUES (new.status, new.source); RETURN new; END $$;
         CREATE TRIGGER note AFTER UPDATE ON users FOR EACH ROW EXECUTE FUNCTION note();",
    );
    db.run("BEGIN");
    for n in 0..10 {
        let attribute = ["status", "source"][n % 2];
        db.start(&format!("p{n}"), "shares").key("u").input(json!({"attribute": attribute})).go();
    }
    db.run("COMMIT");
    worker.wait_for_count("all ten calls", 10, 10, |_| true);
    worker.release();
    for n in 0..10 {
        db.completes(&format!("p{n}"));
    }
    // Every write is in the table, and each write has seen the one before it.
    assert_eq!(db.count("audit"), 10);
    let lost = "audit a JOIN audit b ON b.n = a.n + 1 WHERE a.status IS DISTINCT FROM b.status AND a.source IS DISTINCT FROM b.source";
    assert_eq!(db.count(lost), 0, "a write undid another one");
    let last = "SELECT (u.status, u.source) = (a.status, a.source) FROM users u, audit a ORDER BY a.n DESC LIMIT 1";
    assert!(db.one::<bool>(last));
    assert_eq!(worker.count(|_| true), 10, "no call is repeated without a lock");
    app.done(&[]);
}
