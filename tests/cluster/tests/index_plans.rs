//! The plans of statements on the system tables do not depend on a session's settings.

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
