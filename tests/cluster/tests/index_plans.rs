//! The plans of statements on the system tables: they do not depend on a session's settings, and what a console asks for
//! is found by an index.

use xdb_cluster_tests::prelude::*;

const HOSTILE: &str = "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_nestloop = off;
    SET plan_cache_mode = force_custom_plan; SET enable_seqscan = on; SET jit_above_cost = 0";

#[test]
fn a_session_scans_no_whole_system_table_under_any_settings() {
    let app = App::new("planning_session");
    let _worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => all_of(&[local_queue("m", "inbox", 1)]),
        Api::Execute => force_complete(json!(null)),
        Api::Rpc => output(json!(null)),
    });
    app.register("mail", &mailbox().rpc("ask", json!({})));
    let (mut db, mut superuser) = (app.db(), app.superuser());
    superuser.run("SELECT xdb.pause_engine()");
    let walked = "SELECT coalesce(json_object_agg(relname, seq_scan), '{}') FROM pg_stat_user_tables
        WHERE schemaname = 'xdb' AND relname IN ('process_execution', 'latest_execution', 'state_execution', 'task', 'timer',
            'inbox', 'history_event', 'message_key', 'queue_message', 'queue_waiter', 'local_attribute')";
    // Makes all processes report their statistics of reads now.
    wait_until("the engine has paused", 10, || superuser.text("SELECT state FROM xdb.status()") == "paused");
    superuser.run("SELECT pg_stat_force_next_flush()");
    let before = superuser.json(walked);

    db.run(HOSTILE);
    for id in ["p", "q"] {
        db.start(id, "mail").locals(json!({"k": 1})).options(json!({"requestId": id})).go();
        db.start(id, "mail").reuse("TERMINATE_IF_RUNNING").go();
        db.run(&format!("SELECT xdb.publish('{id}', 'inbox', '1', 'once')"));
        db.rpc(id, "ask", json!(null));
        db.run(&format!("SELECT xdb.get_local_attributes('{id}')"));
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
        db.run("SELECT pg_stat_force_next_flush()");
    }
    // The session's own settings are as they were.
    assert_eq!(db.text("SHOW enable_indexscan") + &db.text("SHOW plan_cache_mode"), "offforce_custom_plan");
    drop(db);
    assert_eq!(superuser.json(walked), before);
    app.done(&[]);
}

/// The plan of a query.
fn plan(db: &mut Db, query: &str) -> String {
    db.all::<String>(&format!("EXPLAIN (COSTS OFF) {query}")).join("\n")
}

/// A database with 5,000 completed executions, of which ten have failed. One more has an incident.
fn with_many_executions(name: &str) -> App {
    let app = App::new(name);
    let _worker = app.worker(|call: &Call| match call.process_id() {
        "incident" => error(500, "Broken", "it does not work"),
        _ => force_complete(json!(null)).into(),
    });
    let incident =
        json!({"executeApiRetryPolicy": attempts(1), "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    app.register("one", &Definition::starting_with("Step").step_with("Step", incident));
    let mut db = app.db();
    db.start("copied", "one").go();
    db.completes("copied");
    db.start("incident", "one").go();
    wait_until("there is an incident", 20, || db.count("xdb.incidents") == 1);
    let mut superuser = app.superuser();
    for (table, changed) in [
        (
            "process_execution",
            "'process_id', 'copy-' || n, 'status', CASE WHEN n % 500 = 0 THEN 'FAILED' ELSE 'COMPLETED' END",
        ),
        ("state_execution", "'number', 1"),
    ] {
        superuser.run(&format!(
            "INSERT INTO xdb.{table} SELECT (jsonb_populate_record(t, jsonb_build_object(
                'execution_id', lpad(to_hex(n), 32, '0')::uuid, {changed}))).*
             FROM xdb.{table} t JOIN xdb.latest_execution l USING (execution_id), generate_series(1, 5000) AS n
             WHERE l.process_id = 'copied';
             ANALYZE xdb.{table}"
        ));
    }
    app
}

/// Removes the copies, which have no history, and ends the test.
fn without_copies(app: App) {
    app.superuser().run(
        "DELETE FROM xdb.state_execution USING xdb.process_execution p
             WHERE state_execution.execution_id = p.execution_id AND p.process_id LIKE 'copy-%';
         DELETE FROM xdb.process_execution WHERE process_id LIKE 'copy-%'",
    );
    app.done(&[]);
}

#[test]
fn failed_executions_failures_and_incidents_are_found_by_an_index() {
    let app = with_many_executions("planning_failures");
    let mut db = app.db();
    let failed = "xdb.processes WHERE status IN ('FAILED', 'TIMEOUT')";
    assert_eq!(db.count(failed), 10);
    assert_eq!((db.count("xdb.failures"), db.count("xdb.incidents")), (1, 1));
    let page = format!(
        "SELECT process_id, closed_at FROM {failed} AND closed_at < now() ORDER BY closed_at DESC, execution_id DESC LIMIT 51"
    );
    for (query, index) in [
        (page.as_str(), "process_execution_failed"),
        ("SELECT * FROM xdb.failures", "state_execution_failed"),
        ("SELECT * FROM xdb.incidents", "state_execution_failed"),
    ] {
        let plan = plan(&mut db, query);
        assert!(plan.contains(&format!("using {index}")), "{query}\n{plan}");
        for table in ["process_execution", "state_execution"] {
            assert!(!plan.contains(&format!("Seq Scan on {table}")), "{query}\n{plan}");
        }
    }
    without_copies(app);
}

#[test]
fn process_ids_are_found_by_their_beginning() {
    let app = with_many_executions("planning_beginnings");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    let begins = "xdb.processes WHERE process_id ^@ 'copy-499'";
    assert_eq!(db.count(begins), 11);
    assert_eq!(db.count("xdb.processes WHERE process_id = 'copy-499'"), 1);
    // A wildcard in the text is none.
    assert_eq!(db.count("xdb.processes WHERE process_id ^@ 'copy_499'"), 0);
    let exact = "SELECT * FROM xdb.processes WHERE process_id = 'copy-499'";
    let like = "SELECT * FROM xdb.process_execution WHERE process_id LIKE 'copy-499%'";
    let plans = [
        plan(&mut db, &format!("SELECT * FROM {begins}")),
        plan(&mut db, exact),
        // Of a view, only leakproof conditions become conditions of an index: LIKE is none.
        plan(&mut superuser, like),
    ];
    for plan in plans {
        assert!(plan.contains("process_execution_by_process_id") && plan.contains("Index Cond: "), "{plan}");
        assert!(!plan.contains("Seq Scan on process_execution"), "{plan}");
    }
    without_copies(app);
}
