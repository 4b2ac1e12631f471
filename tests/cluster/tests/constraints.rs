//! Constraints of the system tables hold for what the engine writes, also those that come and go while it works.

use xdb_cluster_tests::prelude::*;

const CHECK_VIOLATION: &str = "23514";

fn add(db: &mut Db, name: &str, check: &str) {
    db.run(&format!("ALTER TABLE xdb.process_execution ADD CONSTRAINT {name} CHECK ({check})"));
}

fn drop_it(db: &mut Db, name: &str) {
    db.run(&format!("ALTER TABLE xdb.process_execution DROP CONSTRAINT {name}"));
}

#[test]
fn a_session_keeps_to_the_constraints_of_now() {
    let app = App::new("constraints_session");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut one, mut other, mut superuser) = (app.db(), app.db(), app.superuser());
    one.start("one", "one").go();
    other.start("other", "one").go();

    add(&mut superuser, "no_b", "process_id <> 'b'");
    for db in [&mut one, &mut other] {
        let error = db.refused(CHECK_VIOLATION, "SELECT xdb.start_process('b', 'one')");
        assert!(error.message.contains("no_b"), "{error:?}");
    }
    one.start("c", "one").go();
    // Under the same name.
    superuser
        .run("ALTER TABLE xdb.process_execution DROP CONSTRAINT no_b, ADD CONSTRAINT no_b CHECK (process_id <> 'd')");
    one.refused(CHECK_VIOLATION, "SELECT xdb.start_process('d', 'one')");
    other.start("b", "one").go();
    drop_it(&mut superuser, "no_b");
    one.start("d", "one").go();
    for id in ["one", "other", "b", "c", "d"] {
        one.completes(id);
    }
    app.done(&[]);
}

#[test]
fn the_engine_keeps_to_the_constraints_of_now() {
    let app = App::new("constraints_engine");
    let worker = app.worker(|_: &Call| force_complete(json!(null)));
    app.register("one", &one_step());
    let (mut db, mut superuser) = (app.db(), app.superuser());
    db.start("before", "one").go();
    db.completes("before");

    add(&mut superuser, "never_ends", "process_id <> 'p' OR status = 'RUNNING'");
    db.start("p", "one").go();
    // Others of the same batch are not held up.
    db.start("q", "one").go();
    db.completes("q");
    let failed = "SELECT count(*) FROM xdb.failures WHERE process_id = 'p' AND detail LIKE '%never_ends%'";
    wait_until("the attempt has failed, and says why", 20, || superuser.one::<i64>(failed) > 0);
    assert_eq!(db.status("p"), "RUNNING");
    assert!(worker.count(|call| call.process_id() == "p") > 0);

    drop_it(&mut superuser, "never_ends");
    db.completes("p");
    app.done(&["never_ends"]);
}
