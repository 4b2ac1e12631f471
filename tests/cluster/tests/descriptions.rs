//! What the library says of its tables is what the catalog says, and all of its statements can be prepared.
//!
//! As in `crash_points.rs`, this needs a build of the extension for tests, which has the function that looks.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::prelude::*;

fn problems(db: &mut Db) -> Vec<String> {
    let problems = db.json("SELECT store_problems()");
    problems.as_array().expect("an array").iter().map(|what| what.as_str().expect("a text").to_owned()).collect()
}

#[test]
fn tables_are_as_they_are_described() {
    let app = App::alone("descriptions", ClusterOptions::default());
    let mut db = app.superuser();
    db.run("SELECT xdb.pause()");
    db.run("CREATE FUNCTION store_problems() RETURNS jsonb LANGUAGE c AS '$libdir/xdb', 'xdb_store_problems'");
    assert_eq!(problems(&mut db), Vec::<String>::new());
    for (change, expected) in [
        ("ALTER TABLE xdb.task RENAME due_at TO due", "task.due is"),
        ("ALTER TABLE xdb.task RENAME due_at TO due", "store::claim::DUE: "),
        ("ALTER TABLE xdb.global_passed_over ALTER seq TYPE bigint", "global_passed_over.seq is"),
        ("ALTER TABLE xdb.inbox ALTER published_at DROP NOT NULL", "inbox.published_at is"),
        ("ALTER TABLE xdb.history_event ADD more text", "history_event.more is"),
        ("ALTER TABLE xdb.local_attribute DROP CONSTRAINT local_attribute_pkey", "the key of local_attribute is"),
        ("CREATE TABLE xdb.another (n int)", "another is not described"),
    ] {
        db.run("BEGIN");
        db.run(change);
        let found = problems(&mut db);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{change}\n{expected}\n{found:#?}");
        db.run("ROLLBACK");
    }
    db.run("DROP FUNCTION store_problems(); SELECT xdb.resume()");
    app.done(&[]);
}
