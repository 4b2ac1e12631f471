//! `pg_upgrade` to a later major version. Processes that are half-way continue there, and nothing happens twice.
//!
//! These tests need two servers with the extension: the one of `PG_CONFIG`, and the later one of `XDB_NEW_PG_CONFIG`.
//! `scripts/pg-upgrade` provides both and runs the tests.
#![cfg(feature = "pg-upgrade")]

use xdb_cluster_tests::prelude::*;

const EACH: usize = 10;
/// How often a counting process writes its row before it waits.
const COUNTS: u64 = 3;

fn n(call: &Call) -> u64 {
    call.global("n").as_u64().unwrap_or_default()
}

fn handler(call: &Call) -> Reply {
    let counted = json!({"n": n(call) + 1});
    match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(n(call))).into(),
        (Api::WaitUntil, "Nap") => any_of(&[timer("t", 10.0)]).into(),
        (Api::WaitUntil, "Share") => all_of(&[global_queue("m", "box", 1), global_queue("n", "rest", 1)]).into(),
        (Api::WaitUntil, _) => any_of(&[timer("t", 3600.0), local_queue("m", "inbox", 2)]).into(),
        (_, "Count") if n(call) + 1 < COUNTS => Reply::from(next("Count", json!(null)).globals(counted)),
        (_, "Count") => Reply::from(next("Wait", json!(null)).globals(counted).locals(json!({"l": 1.50}))),
        (_, "Slow") => Reply::hang(graceful_complete(json!("slow")).globals(counted)),
        (_, "Share") => graceful_complete(json!([call.messages("m"), call.messages("n")])).into(),
        (_, "Nap") => Reply::from(graceful_complete(json!("awake")).globals(counted)),
        _ => graceful_complete(json!([call.messages("m"), call.local("l")])).into(),
    }
}

fn application() -> (App, Worker) {
    let app = App::alone("upgraded", ClusterOptions::default());
    // Every write of a row is recorded.
    app.db().run(
        "CREATE TABLE audit (id text, n int);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.audit VALUES (new.id, new.n); RETURN new; END $$;
         CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let worker = app.worker(handler);
    let counts = |definition: Definition| definition.maps("public.counters", "id", &["n"]);
    let long = json!({"executeApiTimeoutSeconds": 120});
    let counting = Definition::starting_with("Count").step("Count").waiting_step("Wait").rpc("ask", json!({}));
    app.register("counting", &counts(counting));
    app.register("slow", &counts(Definition::starting_with("Slow").step_with("Slow", long)));
    app.register("napping", &counts(Definition::starting_with("Nap").waiting_step("Nap")));
    app.register("sharing", &Definition::starting_with("Share").waiting_step("Share"));
    (app, worker)
}

fn ids(kind: &str) -> Vec<String> {
    (0..EACH).map(|number| format!("{kind}{number}")).collect()
}

fn start(db: &mut Db, process_type: &str, ids: &[String]) {
    for id in ids {
        db.start(id, process_type).key(id).globals(json!({"n": 0})).go();
    }
}

#[test]
fn half_way_processes_end_in_the_new_version_and_every_effect_is_there_once() {
    let new_pg_config =
        std::env::var("XDB_NEW_PG_CONFIG").expect("scripts/pg-upgrade says which server is the new one");
    let (app, worker) = application();
    let mut db = app.db();
    start(&mut db, "counting", &ids("c"));
    for id in ids("c") {
        db.run(&format!("SELECT xdb.publish('{id}', 'inbox', '\"before\"', message_id => 'first')"));
    }
    start(&mut db, "slow", &ids("s"));
    db.run(r#"SELECT xdb.publish_global('box', '"taken"', message_id => 'g')"#);
    db.run(r#"SELECT xdb.publish_global('kept', '"free"')"#);
    db.start("g", "sharing").go();
    worker.wait_for_count("the slow calls are under way", 20, EACH, |call| call.target() == "Slow");
    let waiting = "xdb.state_executions WHERE status = 'WAITING'";
    wait_until("the other processes wait", 20, || db.count(waiting) == EACH as i64 + 1);
    wait_until("messages are taken in", 20, || db.one("SELECT bool_and(received) FROM xdb.queue_messages"));
    // Their timers pass while no server runs.
    start(&mut db, "napping", &ids("t"));
    wait_until("naps are taken", 20, || db.count(waiting) == 2 * EACH as i64 + 1);
    let naps = db.count("counters WHERE id LIKE 't%' AND n = 0");
    assert!(naps > 0, "no timer is left for the new version");
    let version = "SELECT current_setting('server_version_num')::int / 10000";
    let (old_version, old_system): (i32, i64) =
        (db.one(version), app.superuser().one("SELECT system_identifier FROM pg_control_system()"));
    drop(db);
    app.cluster().stop();

    app.cluster().upgrade(&new_pg_config);

    let mut superuser = app.superuser();
    assert!(superuser.one::<i32>(version) > old_version);
    assert_ne!(superuser.one::<i64>("SELECT system_identifier FROM pg_control_system()"), old_system);
    let mut db = app.db();
    start(&mut db, "counting", &["early".to_owned()]);
    views::waits_for_adopt(app.cluster(), app.database(), &worker);
    app.session("boss").run("SELECT xdb.adopt()");
    worker.wait_for_count("the slow calls are made again", 30, 2 * EACH, |call| call.target() == "Slow");
    worker.release();
    for id in ids("s") {
        assert_eq!(db.completes(&id).result(), "slow");
        let keys: Vec<String> = worker
            .calls()
            .iter()
            .filter(|call| call.process_id() == id)
            .map(|call| call.idempotency_key().into())
            .collect();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0], keys[1]);
    }
    for id in ids("t") {
        assert_eq!(db.completes(&id).result(), "awake");
    }
    for id in ids("c").iter().map(String::as_str).chain(["early"]) {
        // Those of before the upgrade know the id, and ignore the second one.
        db.run(&format!("SELECT xdb.publish('{id}', 'inbox', '\"before\"', message_id => 'first')"));
        wait_until("it waits", 10, || views::waits(&mut db, id).len() == 2);
        assert_eq!(db.rpc(id, "ask", json!(null)), COUNTS);
        db.publish(id, "inbox", json!("after"));
        assert_eq!(db.completes(id).result(), &json!([["before", "after"], 1.5]));
    }
    db.run(r#"SELECT xdb.publish_global('box', '"again"', message_id => 'g')"#);
    db.run(r#"SELECT xdb.publish_global('rest', '"more"')"#);
    assert_eq!(db.completes("g").result(), &json!([["taken"], ["more"]]));
    assert_eq!(db.json("SELECT payload FROM xdb.queue_messages WHERE process_id IS NULL"), "free");

    let wrong: Vec<String> = db.all(&format!(
        "SELECT format('%s: %s, written %s times', c.id, c.n, count(a.n)) FROM counters c LEFT JOIN audit a USING (id)
         GROUP BY c.id, c.n HAVING count(a.n) <> c.n OR c.n <> CASE WHEN left(c.id, 1) IN ('s', 't') THEN 1 ELSE {COUNTS} END"
    ));
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(superuser.count("xdb.instances"), 2);
    assert_eq!(superuser.one::<Option<String>>("SELECT reason FROM xdb.status()"), None);
    app.done(&[]);
}
