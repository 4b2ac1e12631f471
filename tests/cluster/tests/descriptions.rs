//! The library's descriptions of its tables agree with the catalog. All of its statements can be prepared, and their
//! plans do not depend on the tables' content. `statements.sql` has the text of each statement: a change of what the
//! engine does to its tables shows there.
//!
//! As in `crash_points.rs`, this needs a build of the extension for tests, which has the function that compares.
#![cfg(feature = "crash-points")]

use std::collections::BTreeMap;

use xdb_cluster_tests::prelude::*;

fn problems(db: &mut Db) -> Vec<String> {
    let problems = db.json("SELECT store_problems()");
    problems.as_array().expect("an array").iter().map(|what| what.as_str().expect("a text").to_owned()).collect()
}

#[test]
fn tables_are_as_they_are_described() {
    let app = App::alone("descriptions", ClusterOptions::default());
    let mut db = app.superuser();
    db.run("SELECT xdb.pause_engine()");
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
    db.run("DROP FUNCTION store_problems(); SELECT xdb.resume_engine()");
    app.done(&[]);
}

/// Statements that may scan a whole table, by the beginnings of their names. They run when a server starts, or a
/// database is adopted or updated.
const WALKERS: &[&str] = &["adopt::", "owners::", "claim::FORGET_LEASES", "instance::", "check::", "engine::STATE"];

/// Tables that grow with the running processes.
const LARGE: &[&str] = &[
    "process_execution",
    "latest_execution",
    "state_execution",
    "task",
    "timer",
    "inbox",
    "history_event",
    "message_key",
    "queue_message",
    "queue_waiter",
    "local_attribute",
    "global_message",
    "global_waiter",
    "correlated_start",
    "process_lock",
    "rpc_answer",
];

#[test]
fn statements_are_planned_alike_before_and_after_the_first_analyze() {
    let app = App::alone("plans", ClusterOptions::default().set("autovacuum", "off"));
    let mut db = app.superuser();
    db.run("SELECT xdb.pause_engine(); SET max_parallel_workers_per_gather = 0");
    db.run("CREATE FUNCTION store_plans() RETURNS jsonb LANGUAGE c AS '$libdir/xdb', 'xdb_store_plans'");
    let plans = |db: &mut Db| -> BTreeMap<String, Vec<String>> {
        serde_json::from_value(db.json("SELECT store_plans()")).expect("a plan for each statement")
    };
    let empty = plans(&mut db);
    let _worker = app.worker(|_| force_complete(json!(null)));
    app.register("one", &one_step());
    app.db().run(
        "SELECT xdb.start_process('p' || i, 'one', local_attributes => '{\"k\": 1}') FROM generate_series(1, 500) i",
    );
    db.run("VACUUM ANALYZE");
    for (name, plan) in plans(&mut db) {
        assert_eq!(plan, empty[&name], "{name}");
        let may_walk = WALKERS.iter().any(|walker| name.contains(&format!("::{walker}")));
        let walks = |line: &String| {
            let table = line.split_once("Seq Scan on ").and_then(|(_, table)| table.split(' ').next());
            table.is_some_and(|table| LARGE.contains(&table))
        };
        assert!(may_walk || !plan.iter().any(walks), "{name}\n{}", plan.join("\n"));
    }
    db.run("DROP FUNCTION store_plans(); SELECT xdb.resume_engine()");
    let mut user = app.db();
    (1..=500).for_each(|i| drop(user.completes(&format!("p{i}"))));
    app.done(&[]);
}

/// The statements on the application's tables are made from the mapping of a process type. These are on a sample.
const SAMPLE: &str = "CREATE TABLE public.sample (id text PRIMARY KEY, n int);";

/// The statements that run as the owner of a process.
fn on_the_sample(app: &App) -> Vec<String> {
    let (mut user, mut db) = (app.db(), app.superuser());
    db.run(&format!(
        "{SAMPLE} GRANT ALL ON public.sample TO app; CREATE EXTENSION pg_stat_statements;
         CREATE TRIGGER same BEFORE UPDATE ON public.sample FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    ));
    let child = json!([{"processType": "child", "processId": "child", "whenParentCloses": "LEAVE"}]);
    let _worker = app.worker(move |call: &Call| match call.target() {
        "Parent" => force_complete(json!(null)).starting(child.clone()),
        "Child" => force_complete(json!(null)),
        _ => force_complete(json!(null)).globals(json!({"n": 1})),
    });
    for lock in ["NO_LOCKING", "SHARE_LOCK", "EXCLUSIVE_LOCK"] {
        let loads = json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": lock}});
        let definition = Definition::starting_with("Only").step_with("Only", loads);
        app.register(lock, &definition.maps("public.sample", "id", &["n"]));
        user.start(lock, lock).key("r").globals(json!({"n": 1})).go();
        user.completes(lock);
    }
    user.start("unwritten", "NO_LOCKING").key("r").go();
    let mode = json!({"globalAttributeConflictMode": "RETURN_ERROR_ON_CONFLICT"});
    user.start("new", "NO_LOCKING").key("new").globals(json!({"n": 1})).options(mode).go();
    ["unwritten", "new"].iter().for_each(|id| drop(user.completes(id)));
    app.register("child", &Definition::starting_with("Child").step("Child"));
    app.register("parent", &Definition::starting_with("Parent").step("Parent"));
    user.start("parent", "parent").go();
    ["parent", "child"].iter().for_each(|id| drop(user.completes(id)));
    db.all(
        r#"SELECT DISTINCT query COLLATE "C" FROM pg_stat_statements
          WHERE query ~ '^(SELECT|INSERT|UPDATE).*sample' AND query !~ 'xdb\.' OR query ~ '^SELECT \$1::pg_catalog.text'
             OR query ~ '^SELECT FROM xdb\.start_processes' OR query ~ '^SET CONSTRAINTS'
          ORDER BY 1"#,
    )
}

/// `ACCEPT=1` writes the file. Each statement can be pasted into psql: `PREPARE` finds the types of its parameters, and
/// `SET` needs none.
#[test]
fn every_statement_is_the_one_in_the_golden_file() {
    let options = ClusterOptions::default()
        .set("shared_preload_libraries", "xdb,pg_stat_statements")
        .set("pg_stat_statements.track", "all");
    let app = App::alone("statements", options);
    let mut db = app.superuser();
    db.run("CREATE FUNCTION store_statements() RETURNS jsonb LANGUAGE c AS '$libdir/xdb', 'xdb_store_statements'");
    let texts: BTreeMap<String, String> =
        serde_json::from_value(db.json("SELECT store_statements()")).expect("a text for each statement");
    let prepared = |text: &String| match text.starts_with("SET ") {
        true => format!("{text};\n\n"),
        false => format!("PREPARE statement AS\n{text};\nDEALLOCATE statement;\n\n"),
    };
    let mut written: String = texts.iter().map(|(name, text)| format!("-- {name}\n{}", prepared(text))).collect();
    written.push_str(&format!("-- store::app_tables and store::children, for a sample\n{SAMPLE}\n\n"));
    written.extend(on_the_sample(&app).iter().map(prepared));
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/statements.sql");
    if std::env::var_os("ACCEPT").is_some_and(|accept| accept == "1") {
        std::fs::write(golden, &written).expect("the golden file can be written");
    }
    let expected = std::fs::read_to_string(golden).unwrap_or_default();
    let changed = |(one, other): &(&str, &str)| one != other;
    let first = expected.lines().zip(written.lines()).find(changed);
    assert!(expected == written, "statements.sql has another text, first in {first:#?}");
    db.run("DROP FUNCTION store_statements()");
    app.done(&[]);
}
