//! A library on the schema of another version. Another minor version waits for an update, and another patch version
//! works. `releases.rs` tests the updates themselves.

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::half_way::HalfWay;
use xdb_cluster_tests::prelude::*;

/// Sets the version of the schema, as an update does, and notifies all sessions.
fn set_version(app: &App, version: &str) {
    app.superuser().run(&format!(
        "BEGIN; UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'xdb';
         ALTER EXTENSION xdb UPDATE TO '{version}'; COMMIT"
    ));
}

#[test]
fn on_the_schema_of_another_minor_version_the_engine_waits_and_reports_the_reason() {
    let app = App::new("other_minor");
    let (mut db, mut superuser) = (app.db(), app.superuser());
    let now = superuser.text("SELECT xdb.library_version()");
    superuser.run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    let half_way = HalfWay::start(&app);
    db.start("pulled", "pulled").go();
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', lease => '1 hour')");
    for (schema, remedy) in [
        ("0.0.9", "Run ALTER EXTENSION xdb UPDATE in this database."),
        ("99.1.0", "Install version 99.1.0 of xdb and restart the server."),
    ] {
        set_version(&app, schema);
        let reason = format!("the server runs version {now} of xdb, which can't run version {schema} of its schema");
        let told = format!("waiting for update: {reason}. {remedy}");
        for reader in [&mut db, &mut superuser] {
            // While the scheduler is started again, that is a reason too.
            wait_until("the engine waits", 20, || {
                reader.text("SELECT concat_ws(': ', state, reason) FROM xdb.status()") == told
            });
        }
        let calls = half_way.worker.calls().len();
        // Sessions that have been there hear of it as well as new ones.
        for db in [&mut db, &mut app.db()] {
            for statement in [
                "SELECT xdb.start_process('x', 'timed')",
                "SELECT xdb.publish('counting0', 'inbox')",
                "SELECT xdb.describe_process('counting0')",
                "SELECT xdb.wait_for_process('counting0')",
                "SELECT xdb.claim_calls('pull', wait => '1 hour')",
                &format!("SELECT xdb.extend_call('{token}', '1 hour')"),
                &format!("SELECT xdb.complete_call('{token}', '{{}}')"),
            ] {
                let error = db.refused(codes::OTHER_SCHEMA, statement);
                assert_eq!((error.message.as_str(), error.hint.as_str()), (reason.as_str(), remedy));
            }
        }
        assert_eq!(half_way.worker.calls().len(), calls, "no worker is called");
    }
    set_version(&app, &now);
    let answer = jsonb(&force_complete(json!("kept")).json());
    db.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    assert_eq!(db.completes("pulled").result(), &json!("kept"));
    half_way.finish(&mut db, &[""]);
    app.done(&[]);
}

#[test]
fn a_patch_version_runs_on_the_schema_of_its_minor_version() {
    let app = App::new("other_patch");
    let mut db = app.db();
    let now = db.text("SELECT xdb.library_version()");
    let (minor, _) = now.rsplit_once('.').expect("three numbers");
    let half_way = HalfWay::start(&app);
    set_version(&app, &format!("{minor}.77"));
    half_way.start_more(&mut db, "after");
    half_way.finish(&mut db, &["", "after"]);
    wait_until("the engine runs", 20, || {
        db.text("SELECT concat_ws(': ', state, reason) FROM xdb.status()") == "running"
    });
    app.done(&[]);
}
