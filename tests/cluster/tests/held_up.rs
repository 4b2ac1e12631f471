//! `describe_process` names the locks of other sessions that block the steps of a process. Tested with sessions that
//! hold locks.

use xdb_cluster_tests::prelude::*;

fn application(name: &str, options: ClusterOptions) -> (App, Worker) {
    let app = App::alone(name, options);
    let worker = app.worker(|call: &Call| match call.target() {
        "Wait" if call.api == Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        "Wait" => next("Write", json!(null)),
        _ => next("Wait", json!(null)).globals(json!({"n": 1})),
    });
    let definition = Definition::starting_with("Wait").waiting_step("Wait").step("Write");
    app.register("writing", &definition.maps("public.counters", "id", &["n"]));
    let mut db = app.db();
    db.start("p", "writing").key("p").globals(json!({"n": 0})).go();
    db.start("q", "writing").key("q").globals(json!({"n": 0})).go();
    wait_until("they wait", 20, || db.count("xdb.waits") == 2);
    (app, worker)
}

/// The locks that block a process, without their times.
fn held_up(db: &mut Db, process_id: &str) -> Value {
    db.json(&format!(
        "SELECT jsonb_agg(h - 'since') FROM jsonb_array_elements(xdb.describe_process('{process_id}') -> 'heldUpBy') AS h"
    ))
}

fn shows(db: &mut Db, what: &str, expected: &Value) {
    let started = std::time::Instant::now();
    loop {
        let last = held_up(db, "p");
        if last == *expected {
            return;
        }
        assert!(started.elapsed().as_secs() < 20, "{what}: {last} instead of {expected}");
    }
}

/// Makes the process write its row and wait again.
fn step(db: &mut Db) {
    db.publish("p", "inbox", json!(1));
}

fn continues(db: &mut Db) {
    wait_until("it waits again", 20, || db.count("xdb.waits WHERE process_id = 'p'") == 1);
    shows(db, "nothing holds it up", &Value::Null);
}

#[test]
fn the_lock_that_blocks_a_step_is_shown() {
    let options = ClusterOptions::default().set("max_prepared_transactions", "2");
    let (app, _worker) = application("held_up", options);
    let (mut db, mut first) = (app.db(), app.db());
    let row = json!([{"lock": "row", "table": "public.counters"}]);

    // A row: written, locked, written by a transaction that is prepared.
    first.run("BEGIN; UPDATE counters SET n = 5 WHERE id = 'p'");
    step(&mut db);
    shows(&mut db, "a row that is written", &row);
    let since = "(xdb.describe_process('p') #>> '{heldUpBy,0,since}')::timestamptz";
    let found = db.text(&format!("SELECT {since} FROM pg_sleep(1)"));
    let is_same = format!("SELECT {since} = '{found}' AND {since} < now() - interval '1 s' FROM pg_sleep(1)");
    assert!(db.one::<bool>(&is_same), "since when: {found}");
    assert_eq!(held_up(&mut db, "q"), Value::Null);
    app.session("stranger").refused("42501", "SELECT xdb.describe_process('p')");
    app.session("other").refused("XD001", "SELECT xdb.describe_process('p')");
    first.run("COMMIT");
    continues(&mut db);
    first.run("BEGIN; SELECT FROM counters WHERE id = 'p' FOR SHARE");
    step(&mut db);
    shows(&mut db, "a row that is locked", &row);
    first.run("COMMIT");
    continues(&mut db);
    first.run("BEGIN; UPDATE counters SET n = 6 WHERE id = 'p'; PREPARE TRANSACTION 'held'");
    step(&mut db);
    shows(&mut db, "a prepared transaction", &row);
    first.run("COMMIT PREPARED 'held'");
    continues(&mut db);

    // A lock that permits writes to the row is not shown.
    first.run("BEGIN; SELECT FROM counters WHERE id = 'p' FOR KEY SHARE");
    step(&mut db);
    continues(&mut db);
    first.run("COMMIT");

    first.run("BEGIN; LOCK TABLE counters IN SHARE MODE");
    step(&mut db);
    shows(&mut db, "a table", &json!([{"lock": "table", "table": "public.counters"}]));
    first.run("COMMIT");
    continues(&mut db);

    // The process itself.
    first.run("BEGIN; SELECT xdb.set_local_attributes('p', '{\"k\": 1}')");
    step(&mut db);
    shows(&mut db, "the process", &json!([{"lock": "process"}]));
    first.run("COMMIT");
    continues(&mut db);
    // A publisher blocks no step.
    first.run("BEGIN; SELECT xdb.publish('p', 'others', '1')");
    step(&mut db);
    continues(&mut db);
    first.run("COMMIT");
    app.done(&[]);
}

#[test]
fn a_lock_within_a_trigger_is_shown_for_the_table() {
    let (app, _worker) = application("held_up_in_trigger", ClusterOptions::default());
    let (mut db, mut first) = (app.db(), app.db());
    first.run(
        "CREATE TABLE totals (n int); INSERT INTO totals VALUES (0);
         CREATE FUNCTION add_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             UPDATE public.totals SET n = n + 1; RETURN NULL; END $$;
         CREATE TRIGGER add_up AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION add_up()",
    );
    first.run("BEGIN; UPDATE totals SET n = 7");
    step(&mut db);
    shows(&mut db, "a lock of a trigger", &json!([{"lock": "row", "table": "public.counters"}]));
    first.run("COMMIT");
    continues(&mut db);
    app.done(&[]);
}

/// The blocking lock is found when the attributes of a call are read.
#[test]
fn a_table_that_a_call_can_not_read_is_shown() {
    let (app, worker) = application("held_up_before_call", ClusterOptions::default());
    let (mut db, mut first) = (app.db(), app.db());
    first.run("BEGIN; LOCK TABLE counters");
    step(&mut db);
    shows(&mut db, "a table", &json!([{"lock": "table", "table": "public.counters"}]));
    assert_eq!(worker.count(|call| call.target() == "Write"), 0);
    first.run("COMMIT");
    continues(&mut db);
    app.done(&[]);
}

#[test]
fn a_process_is_described_whose_row_can_not_be_read() {
    let (app, _worker) = application("held_up_unreadable", ClusterOptions::default());
    let (mut db, mut first) = (app.db(), app.session("postgres"));
    let numbers = first.text("SELECT state_numbers FROM xdb.process_execution WHERE process_id = 'p'");
    let set =
        |numbers: &str| format!("UPDATE xdb.process_execution SET state_numbers = '{numbers}' WHERE process_id = 'p'");
    first.run(&set(r#"{"Wait": "first"}"#));
    let described = db.json("SELECT xdb.describe_process('p')");
    assert_eq!(described["status"], "RUNNING", "{described}");
    assert_eq!(held_up(&mut db, "p"), Value::Null);
    first.run("BEGIN");
    first.run(&set(&numbers));
    step(&mut db);
    shows(&mut db, "the process", &json!([{"lock": "process"}]));
    first.run("COMMIT");
    continues(&mut db);
    app.done(&[]);
}
