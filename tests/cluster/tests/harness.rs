//! Tests of the harness itself, with a plain Postgres: a failure here makes all other tests meaningless.

use xdb_cluster_tests::prelude::*;

fn plain() -> Cluster {
    Cluster::start(ClusterOptions::default().not_preloaded())
}

#[test]
fn a_cluster_starts_with_its_roles_and_survives_a_power_cut() {
    let cluster = plain();
    let mut app = cluster.connect("postgres", "app");
    assert_eq!(app.text("SELECT current_user"), "app");
    assert_eq!(app.text("SELECT rolsuper FROM pg_roles WHERE rolname = 'app'"), "f");
    cluster.superuser().run("CREATE TABLE kept AS SELECT 1 AS n");
    cluster.crash();
    cluster.launch();
    assert_eq!(cluster.superuser().count("kept"), 1);
    assert_eq!(cluster.unexplained_errors(&[]), Vec::<String>::new());
}

#[test]
fn a_fast_shutdown_is_quick_and_the_server_starts_again() {
    let cluster = plain();
    assert!(cluster.stop() < Duration::from_secs(10));
    cluster.launch();
    assert_eq!(cluster.superuser().one::<i32>("SELECT 1"), 1);
}

#[test]
fn a_standby_follows_its_primary() {
    let cluster = plain();
    let standby = cluster.standby_with(ClusterOptions::default().not_preloaded());
    cluster.superuser().run("CREATE TABLE seen AS SELECT 1 AS n");
    wait_until("the standby has the table", 20, || standby.superuser().one("SELECT to_regclass('seen') IS NOT NULL"));
    assert!(standby.superuser().one::<bool>("SELECT pg_is_in_recovery()"));
}

#[test]
fn a_killed_server_process_is_in_the_log_and_the_server_comes_back() {
    let cluster = plain();
    let mut victim = cluster.superuser();
    cluster.kill_process(victim.one("SELECT pg_backend_pid()"));
    assert!(victim.try_run("SELECT 1").is_err());
    cluster.superuser().run("SELECT 1");
    // The log may be written a moment later.
    wait_until("the log shows it", 20, || cluster.log().contains("was terminated by signal 9"));
    assert_eq!(cluster.unexplained_errors(xdb_cluster_tests::log::AFTER_A_CRASH), Vec::<String>::new());
}

#[test]
fn errors_come_with_everything_a_test_compares() {
    let cluster = plain();
    let error = cluster.superuser().refused(
        codes::CHECK_VIOLATION,
        "DO $$ BEGIN RAISE check_violation USING MESSAGE = 'no', DETAIL = 'because', HINT = 'do'; END $$",
    );
    assert_eq!((&*error.message, &*error.detail, &*error.hint), ("no", "because", "do"));
}
