//! A process type is registered again while its processes run: what changes for them, and what stays.

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

#[test]
fn a_running_state_that_is_no_longer_listed_is_not_called_until_it_is_listed_again() {
    let app = App::new("replacing_state");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        _ => force_complete(json!("read")),
    });
    app.register("mail", &mailbox());
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("it waits", 10, || !views::waits(&mut db, "p").is_empty());
    app.register("mail", &one_step());
    db.publish("p", "inbox", json!(1));
    wait_until("it is reported", 10, || views::fails_saying(&mut db, "p", &["unknown state \"read\""]));
    assert_eq!(db.text("SELECT error_type FROM xdb.failures WHERE process_id = 'p'"), "NotRegistered");
    assert_eq!(db.status("p"), "RUNNING");
    assert_eq!(worker.count(|call| call.api == Api::Execute), 0);
    app.register("mail", &mailbox());
    assert_eq!(db.completes("p").result(), "read");
    assert_eq!(db.count("xdb.history WHERE process_id = 'p' AND event_type = 'AttemptFailed'"), 0);
    app.done(&[]);
}

#[test]
fn mapping_and_timeout_stay_as_at_the_start_while_states_and_options_are_the_new_ones() {
    let app = App::new("replacing_rest");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(call.target())),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => next("New", json!(null)).globals(json!({"status": "read"})),
        _ => force_complete(json!("new")),
    });
    let old = mailbox().maps("public.users", "user_id", &["status"]).with("timeoutSeconds", json!(3600));
    app.register("t", &old.rpc("old", json!({})));
    let mut db = app.db();
    db.start("p", "t").key("k").globals(json!({"status": "started"})).go();
    wait_until("it waits", 10, || !views::waits(&mut db, "p").is_empty());

    let nothing = json!({"executeLoadGlobalAttributes": {"policy": "NONE"}});
    let new = Definition::starting_with("New").step("New").waiting_step_with("Read", nothing);
    let new = new.maps("public.counters", "id", &["n"]).with("timeoutSeconds", json!(7200));
    app.register("t", &new.rpc("new", json!({})));
    let hours = "SELECT extract(epoch FROM timeout_at - started_at)::int / 3600 FROM xdb.processes WHERE process_id";
    assert_eq!(db.one::<i32>(&format!("{hours} = 'p'")), 1);
    assert_eq!(db.rpc("p", "new", json!(null)), "new");
    db.refused(codes::INVALID_ARGUMENT, "SELECT xdb.invoke_rpc('p', 'old')");
    db.publish("p", "inbox", json!(1));
    assert_eq!(db.completes("p").result(), "new");
    let globals = |target: &str, api: Api| {
        worker.wait_for(target, 1, |call| call.target() == target && call.api == api).body["loadedGlobalAttributes"]
            .clone()
    };
    assert_eq!(globals("Read", Api::WaitUntil), json!({"status": "started"}));
    assert_eq!(globals("Read", Api::Execute), json!({}), "options are the new ones");
    assert_eq!(globals("New", Api::Execute), json!({"status": "read"}), "the mapping is the old one");
    assert_eq!(db.text("SELECT status FROM users"), "read");
    assert_eq!(db.count("counters"), 0);

    db.start("q", "t").key("k").globals(json!({"n": 1})).go();
    assert_eq!(db.one::<i32>(&format!("{hours} = 'q'")), 2);
    db.completes("q");
    app.done(&[]);
}

#[test]
fn a_session_forgets_the_registrations_of_an_extension_that_was_dropped() {
    let app = App::new("replacing_extension");
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step().maps("users", "user_id", &["status"]));
    let mut db = app.db();
    db.run("CREATE TABLE people (LIKE users INCLUDING ALL)");
    db.start("p", "one").key("u1").globals(json!({"status": "before"})).go();
    db.completes("p");
    let mapping = "SELECT min(mapping_id) FROM xdb.mapped_table";
    let before: i32 = app.superuser().one(mapping);

    // All ids begin at their first value again.
    let new = one_step().maps("people", "user_id", &["status"]);
    let replace = format!(
        "DROP EXTENSION xdb; CREATE EXTENSION xdb; SELECT xdb.grant_usage('app');
         SELECT xdb.register_worker('stub', {}); SELECT xdb.register_process_type('one', 'stub', {})",
        literal(&worker.url()),
        jsonb(new.json())
    );
    app.superuser().run(&replace);
    assert_eq!(app.superuser().one::<i32>(mapping), before);
    db.start("q", "one").key("u2").globals(json!({"status": "after"})).go();
    db.completes("q");
    assert_eq!(db.text("SELECT string_agg(user_id, ',') FROM users"), "u1");
    assert_eq!(db.text("SELECT string_agg(user_id, ',') FROM people"), "u2");

    // Neither does what a transaction has read of an extension outlive its rollback.
    let mut superuser = app.superuser();
    superuser.run("SET xdb.allow_superuser_processes = on");
    let start = |superuser: &mut Db, id: &str| superuser.start(id, "one").key(id).globals(json!({"status": "x"})).go();
    start(&mut superuser, "s1");
    superuser.run(&format!("BEGIN; {}", replace.replace(r#""people""#, r#""users""#)));
    start(&mut superuser, "s2");
    assert_eq!(superuser.count("users WHERE user_id = 's2'"), 1);
    superuser.run("ROLLBACK");
    start(&mut superuser, "s3");
    assert_eq!(superuser.text("SELECT string_agg(user_id, ',' ORDER BY user_id) FROM people"), "s1,s3,u2");
    superuser.run("SELECT xdb.stop_process('s1'), xdb.stop_process('s3')");
    app.done(&[]);
}
