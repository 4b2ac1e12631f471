//! The server is stopped while children are started, and while parents and children close. Each child is started once,
//! each parent gets each message once, and no child outlives its parent.
//!
//! As in `crash_points.rs`, these tests need a build of the extension with crash points.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// `parent` starts three children with the type of its input, and completes with their messages.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(&format!("children_{}", name.replace('-', "_")), ClusterOptions::default());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Begin") => {
            let child = |n: u32| json!({"processType": call.input(), "processId": format!("c{n}"), "onClose": "ended"});
            next("Join", json!(null)).starting((0..3).map(child).collect())
        }
        (Api::WaitUntil, "Join") => any_of(&[local_queue("ended", "ended", 3)]),
        (_, "Join") => force_complete(json!(call.messages("ended"))),
        (Api::WaitUntil, _) => any_of(&[local_queue("go", "go", 1)]),
        _ => force_complete(json!(call.process_id())),
    });
    app.register("parent", &Definition::starting_with("Begin").step("Begin").waiting_step("Join"));
    app.register("quick", &one_step());
    app.register("stays", &mailbox());
    (app, worker)
}

fn start(app: &App, of: &str) {
    let options = json!({"requestId": "r"});
    while app.db().start("p", "parent").input(json!(of)).options(options.clone()).try_go().is_err() {}
}

fn is_sound(app: &App) {
    let mut db = app.db();
    for id in ["p", "c0", "c1", "c2"] {
        assert_eq!(db.count(&format!("xdb.processes WHERE process_id = '{id}'")), 1, "{id}");
        views::assert_history_is_whole(&mut db, id);
        assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process('{id}')")), [""; 0]);
    }
}

/// The parent completes, with the result of each child once.
fn parent_has_all_results(app: &App) {
    let outcome = app.db().completes("p");
    let mut ended: Vec<_> = outcome.result().as_array().into_iter().flatten().map(|of| of["result"].clone()).collect();
    ended.sort_by_key(Value::to_string);
    assert_eq!(ended, ["c0", "c1", "c2"]);
}

fn joins_although_it_crashes_at(point: &str) {
    let (app, _worker) = application(&format!("join_{point}"));
    app.cluster().arm(point);
    start(&app, "quick");
    app.cluster().wait_for_crash(point);
    parent_has_all_results(&app);
    is_sound(&app);
    app.done(AFTER_A_CRASH);
}

#[test]
fn while_an_answer_starts_children() {
    joins_although_it_crashes_at("bulk-start");
}

#[test]
fn while_a_child_closes_and_informs_its_parent() {
    joins_although_it_crashes_at("turn-family");
}

#[test]
fn between_the_answer_that_starts_children_and_its_commit() {
    joins_although_it_crashes_at("answer-commit");
}

#[test]
fn while_a_session_stops_a_parent() {
    let (app, _worker) = application("stop");
    start(&app, "stays");
    let mut db = app.db();
    wait_until("the children wait", 20, || db.count("xdb.waits WHERE process_id LIKE 'c%'") == 3);
    app.crash_at("caller-family", || app.db().try_run("SELECT xdb.stop_process('p')"));
    let mut db = app.db();
    assert_eq!(views::with_status(&mut db, "%", "RUNNING"), 4, "the stop did not commit");
    db.run("SELECT xdb.stop_process('p')");
    wait_until("the children have closed", 20, || views::with_status(&mut db, "%", "RUNNING") == 0);
    is_sound(&app);
    app.done(AFTER_A_CRASH);
}

#[test]
fn between_the_close_of_a_parent_and_that_of_its_children() {
    let (app, _worker) = application("between");
    start(&app, "stays");
    let mut db = app.db();
    wait_until("the children wait", 20, || db.count("xdb.waits WHERE process_id LIKE 'c%'") == 3);
    // The first turn that closes a child crashes. The others are due at the next start.
    app.cluster().arm("turn-family");
    db.run("SELECT xdb.stop_process('p')");
    app.cluster().wait_for_crash("turn-family");
    let mut db = app.db();
    wait_until("the children have closed", 20, || views::with_status(&mut db, "%", "RUNNING") == 0);
    is_sound(&app);
    assert_eq!(app.superuser().count("xdb.timer"), 0);
    app.done(AFTER_A_CRASH);
}

/// The server crashes at a point that the answer of a pull worker reaches, which closes a child. The worker repeats the
/// transaction. After the crash the token is as valid as before.
fn a_pull_worker_closes_a_child(point: &str) {
    let (app, _worker) = application(&format!("pulled_{point}"));
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    start(&app, "pulled");
    let mut db = app.db();
    let claim =
        "SELECT token || ' ' || (request #>> '{context,processId}') FROM xdb.claim_calls('pull', 3, wait => '10 s')";
    let mut claimed: Vec<String> = Vec::new();
    wait_until("all calls are claimed", 20, || {
        claimed.extend(db.all::<String>(claim));
        claimed.len() == 3
    });
    // The commit of a claim is not flushed. This one is, and all before it.
    db.run("CREATE TABLE flushed ()");
    for (n, call) in claimed.iter().enumerate() {
        let (token, id) = call.split_once(' ').expect("two words");
        let complete = format!("SELECT xdb.complete_call('{token}', '{}')", force_complete(json!(id)).json());
        if n == 0 {
            app.crash_at(point, || app.db().try_run(&complete));
            let mut db = app.db();
            assert_eq!(views::with_status(&mut db, "c%", "RUNNING"), 3, "the answer did not commit");
            assert_eq!(views::messages(&mut db, "p"), 0);
        }
        app.db().run(&complete);
    }
    let mut db = app.db();
    let outcome = db.completes("p");
    assert_eq!(outcome.result().as_array().map(Vec::len), Some(3));
    is_sound(&app);
    app.done(AFTER_A_CRASH);
}

#[test]
fn while_a_pull_worker_closes_a_child_and_informs_its_parent() {
    a_pull_worker_closes_a_child("caller-family");
}

#[test]
fn between_the_answer_of_a_pull_worker_that_closes_a_child_and_its_commit() {
    a_pull_worker_closes_a_child("pull-answer");
}

/// The server crashes at a point that functions reach. One starts the children, and the others close them.
fn functions_start_and_close_children(point: &str, function: &str) {
    let (app, _worker) = application(&format!("function_{point}_{function}"));
    app.db().run(
        "CREATE FUNCTION public.begins(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT jsonb_build_object('stateDecision', '{\"nextStates\": [{\"stateId\": \"Join\"}]}'::jsonb, 'startProcesses',
                 (SELECT jsonb_agg(jsonb_build_object('processType', 'called', 'processId', 'c' || n, 'onClose', 'ended'))
                  FROM generate_series(0, 2) AS n)) $$;
         CREATE FUNCTION public.ends(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
                 'closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput', request #> '{context,processId}'))) $$;",
    );
    let calls = |function: &str| json!({"executeFunction": format!("public.{function}")});
    app.register("called", &Definition::starting_with("Only").step_with("Only", calls("ends")));
    let parent = Definition::starting_with("Begin").step_with("Begin", calls("begins")).waiting_step("Join");
    app.register("parent", &parent);
    if function == "ends" {
        // The first function that the point sees is that of a child.
        app.superuser().run("SELECT xdb.pause_process_type('called')");
        start(&app, "called");
        wait_until("the children are there", 20, || app.db().count("xdb.processes WHERE process_id LIKE 'c%'") == 3);
        app.cluster().arm(point);
        // The crash may come before the answer, and only after the commit.
        if let Err(error) = app.superuser().try_run("SELECT xdb.resume_process_type('called')") {
            assert!(error.is_lost(), "{error:?}");
        }
    } else {
        app.cluster().arm(point);
        start(&app, "called");
    }
    app.cluster().wait_for_crash(point);
    parent_has_all_results(&app);
    assert_eq!(app.db().count("xdb.history WHERE event_type = 'AttemptFailed'"), 0);
    is_sound(&app);
    app.done(AFTER_A_CRASH);
}

#[test]
fn when_a_function_that_starts_children_has_returned() {
    functions_start_and_close_children("function-called", "begins");
}

#[test]
fn when_a_function_that_closes_a_child_has_returned() {
    functions_start_and_close_children("function-called", "ends");
}

#[test]
fn while_the_child_of_a_function_informs_its_parent() {
    functions_start_and_close_children("turn-family", "ends");
}
