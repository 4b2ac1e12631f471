//! `xdb.start_processes`: many starts in one call have the same results as single starts, and are faster.

use xdb_cluster_tests::prelude::*;

fn application(name: &str) -> (App, Worker) {
    let app = App::new(name);
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]),
        (_, "Read") => force_complete(json!(call.messages("m"))),
        _ => force_complete(json!([call.input(), call.global("status"), call.local("k")])),
    });
    app.register("one", &one_step());
    app.register("mail", &mailbox());
    (app, worker)
}

fn start_all(processes: &Value) -> String {
    format!(
        "SELECT string_agg(id::text, ' ' ORDER BY n) FROM xdb.start_processes('{processes}') WITH ORDINALITY s (id, n)"
    )
}

#[test]
fn two_thousand_starts_in_one_call_all_run() {
    let (app, _worker) = application("bulk_many");
    app.register("user", &one_step().maps("public.users", "user_id", &["status"]));
    let mut db = app.db();
    let processes: Vec<_> = (0..2000)
        .rev()
        .map(|n| match n % 100 {
            0 => {
                json!({"process_id": format!("p{n}"), "process_type": "user", "input": n, "local_attributes": {"k": n},
                        "global_attribute_pk": format!("u{n}"), "global_attributes": {"status": format!("s{n}")}})
            }
            _ => json!({"process_id": format!("p{n}"), "process_type": "one", "input": n}),
        })
        .collect();
    let ids = db.text(&start_all(&json!(processes)));
    let ids: Vec<_> = ids.split(' ').collect();
    assert_eq!(ids.len(), 2000);
    for (id, process) in ids.iter().zip(&processes).step_by(37) {
        let process_id = process["process_id"].as_str().unwrap_or_default();
        let of_this = format!("SELECT xdb.describe_process('{process_id}', execution_id => '{id}')->>'processId'");
        assert_eq!(db.text(&of_this), process_id);
    }
    wait_until("all are done", 60, || views::with_status(&mut db, "p%", "COMPLETED") == 2000);
    assert_eq!(db.completes("p1999").result(), &json!([1999, null, null]));
    assert_eq!(db.completes("p100").result(), &json!([100, "s100", 100]));
    views::assert_history_is_whole(&mut db, "p100");
    app.done(&[]);
}

#[test]
fn bulk_starts_of_the_same_ids_in_any_order_never_lock_each_other_out() {
    let (app, _worker) = application("bulk_race");
    let mut db = app.db();
    for n in (0..40).step_by(3) {
        db.start(&format!("p{n}"), "mail").go();
    }
    let answers = at_once(8, |session| {
        let mut db = app.db();
        let mut failures = Vec::new();
        for round in 0..5_u64 {
            let processes: Vec<_> = (0..40_u64)
                .map(|n| (n * 7 + session as u64 * 11 + round * 3) % 40)
                .map(|n| {
                    json!({"process_id": format!("p{n}"), "process_type": "mail",
                           "id_reuse_policy": "TERMINATE_IF_RUNNING"})
                })
                .collect();
            failures.extend(db.try_all::<String>(&start_all(&json!(processes))).err());
        }
        failures
    });
    let failures: Vec<_> = answers.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(views::with_status(&mut db, "p%", "RUNNING"), 40);
    assert_eq!(views::with_status(&mut db, "p%", "TERMINATED"), 14 + 39 * 40);
    app.done(&[]);
}

#[test]
fn bulk_starts_over_the_same_absent_rows_never_lock_each_other_out() {
    let app = App::new("bulk_rows");
    let mut db = app.db();
    db.run("CREATE TABLE red (id text PRIMARY KEY, a int); CREATE TABLE blue (id text PRIMARY KEY, b int);");
    let _worker = app.worker(|_: &Call| force_complete(json!(null)));
    let passive = Definition::without_start;
    app.register("there", &passive().maps("public.red", "id", &["a"]).maps("public.blue", "id", &["b"]));
    app.register("back", &passive().maps("public.blue", "id", &["b"]).maps("public.red", "id", &["a"]));
    let answers = at_once(4, |session| {
        let mut db = app.db();
        let mut failures = Vec::new();
        let process_type = if session % 2 == 0 { "there" } else { "back" };
        for round in 0..5 {
            let processes: Vec<_> = (0..30)
                .map(|n| (n * 7 + session * 11) % 30)
                .map(|n| {
                    let row = json!({"id": format!("{round} {n}")});
                    json!({"process_id": format!("{n:02} {round} {session}"), "process_type": process_type,
                           "global_attributes": {"a": session, "b": session},
                           "options": {"globalAttributeKeys": {"public.red": row, "public.blue": row}}})
                })
                .collect();
            failures.extend(db.try_all::<String>(&start_all(&json!(processes))).err());
        }
        failures
    });
    let failures: Vec<_> = answers.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(db.count("red JOIN blue USING (id) WHERE a = b"), 150);
    assert_eq!(views::with_status(&mut db, "%", "RUNNING"), 4 * 5 * 30);
    app.done(&[]);
}

#[test]
fn a_bulk_start_is_undone_as_a_whole() {
    let (app, worker) = application("bulk_undone");
    let mut db = app.db();
    db.start("taken", "mail").go();
    let processes = json!([
        {"process_id": "free", "process_type": "one"},
        {"process_id": "taken", "process_type": "one"}
    ]);
    let error = db.refused(codes::ALREADY_STARTED, &start_all(&processes));
    assert!(error.message.contains("taken"), "{error:?}");
    db.run("BEGIN");
    db.run(&start_all(&json!([{"process_id": "free", "process_type": "one"}])));
    db.run("ROLLBACK");
    db.refused(codes::UNKNOWN_PROCESS, "SELECT xdb.describe_process('free')");
    db.run(&start_all(&json!([{"process_id": "free", "process_type": "one"}])));
    db.completes("free");
    assert_eq!(worker.count(|call| call.process_id() == "free"), 1);
    app.done(&[]);
}
