//! Changes by hand what the engine has written, to test that `xdb.check_process` finds it.

use crate::app::App;
use crate::db::Db;

/// The problems that `xdb.check_process` finds.
pub fn problems(db: &mut Db, process_id: &str) -> Vec<String> {
    db.all(&format!("SELECT problem FROM xdb.check_process('{process_id}')"))
}

/// Makes each change in a transaction of its own, which is rolled back. Compares the problems that are found.
pub fn tamper(app: &App, process_id: &str, changes: &[(&str, &str)]) {
    let mut db = app.superuser();
    assert_eq!(problems(&mut db, process_id), Vec::<String>::new(), "before anything was changed");
    let id: String =
        db.one(&format!("SELECT execution_id::text FROM xdb.latest_execution WHERE process_id = '{process_id}'"));
    let ours = format!("execution_id = '{id}'");
    for (change, expected) in changes {
        db.run("BEGIN");
        db.run(&change.replace("$OURS", &ours).replace("$ID", &id));
        let found = problems(&mut db, process_id);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{change}\n{expected}\n{found:#?}");
        db.run("ROLLBACK");
    }
    assert_eq!(problems(&mut db, process_id), Vec::<String>::new(), "after everything was rolled back");
}
