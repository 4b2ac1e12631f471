//! Clients behind poolers, databases of another encoding, and roles that make dumps.

use xdb_cluster_tests::prelude::*;

fn handler(call: &Call) -> Reply {
    match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!("pong")).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        _ => graceful_complete(json!(call.messages("m"))).into(),
    }
}

/// Like a pooler that lends a connection for one transaction and then resets it.
#[test]
fn a_session_that_is_reset_between_transactions_works_on() {
    let app = App::new("clients_reset");
    let _worker = app.worker(handler);
    app.register("mail", &mailbox().waiting_step("Only").rpc("ping", json!({})));
    let mut db = app.db();
    for id in ["a", "b"] {
        for statement in [
            &*format!("BEGIN; SELECT xdb.start_process('{id}', 'mail'); COMMIT"),
            &*format!("SELECT xdb.invoke_rpc('{id}', 'ping')"),
            &*format!("SELECT xdb.set_local_attributes('{id}', '{{\"k\": 1}}')"),
            &*format!("SELECT xdb.publish('{id}', 'inbox', '1')"),
            &*format!("SELECT xdb.wait_for_process('{id}')"),
            &*format!("SELECT xdb.describe_process('{id}')"),
        ] {
            db.run(statement);
            db.run("DISCARD ALL");
        }
        assert_eq!(db.status(id), "COMPLETED");
    }
    app.done(&[]);
}

#[test]
fn a_database_of_another_encoding_is_refused() {
    let cluster = Cluster::shared();
    cluster
        .superuser()
        .run("CREATE DATABASE clients_latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    let error = cluster.connect("clients_latin", "postgres").try_run("CREATE EXTENSION xdb").expect_err("it is LATIN1");
    assert_eq!(error.message, "xdb needs a database with the encoding UTF8");
}

#[test]
fn a_role_that_makes_dumps_needs_to_bypass_row_level_security() {
    let app = App::alone("clients_backup", ClusterOptions::default());
    let _worker = app.worker(handler);
    app.register("mail", &mailbox().waiting_step("Only"));
    let mut db = app.db();
    db.start("p", "mail").go();
    let mut superuser = app.superuser();
    superuser.run("CREATE ROLE backup LOGIN; GRANT pg_read_all_data TO backup");
    // As pg_dump reads.
    let mut backup = app.session("backup");
    backup.run("SET row_security = off");
    let error = backup.refused("42501", "SELECT FROM xdb.process_execution");
    assert!(error.message.contains("row-level security policy"), "{error:?}");
    superuser.run("ALTER ROLE backup BYPASSRLS");
    let dump = app.cluster().dump(app.database(), &["--username=backup"]);
    app.cluster().restore("clients_restored", &dump);
    let mut restored = app.cluster().connect("clients_restored", "postgres");
    assert_eq!(restored.all::<String>("SELECT process_id FROM xdb.processes"), ["p"]);
    app.done(&[]);
}
