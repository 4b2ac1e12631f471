//! Servers in modes besides serving clients, for instance while `pg_upgrade` works on them.

use xdb_cluster_tests::prelude::*;

#[test]
fn no_process_of_the_engine_runs_while_pg_upgrade_is_at_work() {
    let app = App::alone("modes_upgrade", ClusterOptions::default());
    let worker = app.worker(|_: &Call| Reply::hang(graceful_complete(json!("done"))));
    app.register("one", &one_step());
    app.db().start("p", "one").go();
    worker.wait_for_count("the call is under way", 20, 1, |_| true);
    app.cluster().stop();
    // A launcher is heard of when the server stops, however short its life was.
    let ended = "terminating background worker \"xdb launcher\"";
    let before = app.cluster().log();
    assert!(before.contains(ended));
    // As pg_upgrade starts both of its servers.
    app.cluster().launch_with(&["-b"]);
    let processes = "pg_stat_activity WHERE backend_type LIKE 'xdb%'";
    let mut superuser = app.superuser();
    assert_eq!(superuser.count(processes), 0);
    assert!(superuser.one::<bool>("SELECT current_setting('shared_preload_libraries') = 'xdb'"));
    drop(superuser);
    app.cluster().stop();
    assert!(!app.cluster().log()[before.len()..].contains(ended));
    assert_eq!(worker.calls().len(), 1);
    app.cluster().launch();
    worker.wait_for_count("the call is made again", 20, 2, |_| true);
    assert!(app.superuser().count(processes) > 0);
    worker.release();
    app.db().completes("p");
    app.done(&[]);
}
