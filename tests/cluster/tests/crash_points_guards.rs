//! The server is stopped while guards begin, trigger and end, and while an answer, an RPC or a session ends threads whose
//! calls are under way. Each guard triggers once, and each step ends once.
//!
//! As in `crash_points.rs`, these tests need a build of the extension with crash points.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// `Ship` is guarded by `Recall`, for a message, by `Late`, for an hour, and by `Job`, for a global message. Its call hangs.
/// Each state adds one to the application's row, which records each write. `Beside` is a thread whose call hangs too.
fn application(name: &str) -> (App, Worker) {
    let app = App::alone(&format!("guards_{}", name.replace('-', "_")), ClusterOptions::default());
    app.db().run(
        "CREATE TABLE audit (id text, n int);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.audit VALUES (new.id, new.n); RETURN new; END $$;
         CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let worker = app.worker(|call: &Call| {
        let added = json!({"n": call.global("n").as_i64().unwrap_or_default() + 1});
        match (call.api, call.target()) {
            (Api::Rpc, _) => {
                output(json!("aborted")).aborting(&["Ship", "Beside"]).and(next("Last", json!("rpc"))).into()
            }
            (_, "Begin") => next_all(&[("Ship", json!(null)), ("Beside", json!(null))]).into(),
            (_, "Ship") if call.process_id() != "answers" => Reply::hang(dead_end().globals(added)),
            (_, "Ship") => next("Last", json!("Ship")).globals(added).into(),
            (_, "Beside") => Reply::hang(dead_end()),
            (_, "Last") => force_complete(call.input().clone()).into(),
            (_, guard) => next("Last", json!(guard)).globals(added).aborting(&["Beside"]).into(),
        }
    });
    app.register("order", &order("Begin"));
    app.register("alone", &order("Ship"));
    (app, worker)
}

fn order(starting: &str) -> Definition {
    let waits =
        |kind: &str, command: Value| json!({"commandRequest": {"waitingType": "AnyOfCompletion", kind: [command]}});
    Definition::starting_with(starting)
        .step("Begin")
        .step("Beside")
        .step("Last")
        .step_with("Ship", json!({"guards": ["Recall", "Late", "Job"]}))
        .waiting_step_with("Recall", waits("localQueueCommands", json!({"queueName": "recall"})))
        .waiting_step_with("Late", waits("timerCommands", json!({"delayInSeconds": 3600})))
        .waiting_step_with("Job", waits("globalQueueCommands", json!({"queueName": "jobs"})))
        .rpc("abort", json!({}))
        .maps("public.counters", "id", &["n"])
}

fn start(app: &App, id: &str, process_type: &str) {
    let options = json!({"requestId": id});
    let begin = |db: &mut Db| {
        db.start(id, process_type).key(id).globals(json!({"n": 0})).options(options.clone()).try_go().is_ok()
    };
    while !begin(&mut app.db()) {}
}

/// Starts a process whose calls of `Ship` and `Beside` are under way.
fn under_way(app: &App, worker: &Worker, id: &str) {
    start(app, id, "order");
    for state in ["Ship", "Beside"] {
        worker.wait_for("the call", 20, |call| call.executes(state) && call.process_id() == id);
    }
    wait_until("the guards wait", 20, || views::waits(&mut app.db(), id).len() == 3);
}

/// Repeats a statement after crashes, until it commits or is refused because it has committed before.
fn repeat(app: &App, sql: &str) {
    let mut result = Ok(());
    wait_until("the statement commits", 30, || {
        result = app.db().try_run(sql);
        !result.as_ref().is_err_and(SqlError::is_lost)
    });
    assert!(
        result.as_ref().is_ok_and(|()| true) || result.as_ref().is_err_and(|error| error.code.starts_with("XD")),
        "{result:?}"
    );
}

/// The process ended because of this state, and each of its steps ended once.
fn ends_by(app: &App, id: &str, winner: &str, aborted: &[&str]) {
    let mut db = app.db();
    assert_eq!(db.completes(id).result(), winner);
    let steps: Vec<String> = db.all(&format!(
        "SELECT state_execution_id FROM xdb.state_executions WHERE process_id = '{id}' AND status = 'ABORTED' ORDER BY 1"
    ));
    assert_eq!(steps, aborted, "{id}");
    let ends = format!(
        "(SELECT details -> 'seq' FROM xdb.history WHERE process_id = '{id}' AND event_type IN ('StateAborted', 'StateCompleted')
          GROUP BY 1 HAVING count(*) > 1) AS d"
    );
    assert_eq!(db.count(&ends), 0, "{id}");
    views::assert_history_is_whole(&mut db, id);
    let writes: Vec<i32> = db.all(&format!("SELECT n FROM audit WHERE id = '{id}'"));
    assert_eq!(writes, if winner == "rpc" { vec![] } else { vec![1] }, "{id}");
    assert_eq!((views::timers(&mut db, id), views::waits(&mut db, id).len(), views::messages(&mut db, id)), (0, 0, 0));
}

const BY_RECALL: [&str; 4] = ["Beside-1", "Job-1", "Late-1", "Ship-1"];

/// A message triggers the guard, and the server crashes at the point.
fn recalled_although_it_crashes_at(point: &str) {
    let (app, worker) = application(&format!("recall_{point}"));
    under_way(&app, &worker, "p");
    app.cluster().arm(point);
    repeat(&app, "SELECT xdb.publish('p', 'recall', '1', 'once')");
    app.cluster().wait_for_crash(point);
    ends_by(&app, "p", "Recall", &BY_RECALL);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_that_triggers_a_guard() {
    recalled_although_it_crashes_at("turn-save");
}

#[test]
fn between_a_guard_and_its_call() {
    recalled_although_it_crashes_at("commit-dispatch");
}

#[test]
fn between_the_answer_of_a_guard_and_its_commit() {
    recalled_although_it_crashes_at("answer-commit");
}

#[test]
fn in_a_publish_to_a_guard() {
    recalled_although_it_crashes_at("publish");
}

#[test]
fn in_a_turn_that_gives_a_global_message_to_a_guard() {
    let (app, worker) = application("job");
    under_way(&app, &worker, "p");
    app.cluster().arm("turn-give-out");
    repeat(&app, "SELECT xdb.publish_global('jobs', '1', message_id => 'once')");
    app.cluster().wait_for_crash("turn-give-out");
    ends_by(&app, "p", "Job", &["Beside-1", "Late-1", "Recall-1", "Ship-1"]);
    assert_eq!(app.superuser().count("xdb.global_message"), 0);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_session_that_skips_the_timer_of_a_guard() {
    let (app, worker) = application("skip");
    under_way(&app, &worker, "p");
    app.crash_at("caller-save", || app.db().try_run("SELECT xdb.skip_timer('p', 'Late-1')"));
    assert_eq!(views::waits(&mut app.db(), "p").len(), 3, "the guards wait");
    // The session does not learn of the commit. The timer can't be skipped again.
    app.crash_at("caller-committed", || app.db().try_run("SELECT xdb.skip_timer('p', 'Late-1')"));
    let again = app.db().try_run("SELECT xdb.skip_timer('p', 'Late-1')").expect_err("it has triggered");
    assert!(["XD019", "XD007"].contains(&&*again.code), "{again:?}");
    ends_by(&app, "p", "Late", &["Beside-1", "Job-1", "Recall-1", "Ship-1"]);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_whose_timer_triggers_a_guard() {
    let (app, worker) = application("timer");
    under_way(&app, &worker, "p");
    app.cluster().arm("turn-save");
    app.cluster().set("xdb.now", "2 hours");
    app.cluster().wait_for_crash("turn-save");
    ends_by(&app, "p", "Late", &["Beside-1", "Job-1", "Recall-1", "Ship-1"]);
    let fired = "xdb.history WHERE process_id = 'p' AND event_type = 'CommandCompleted'";
    assert_eq!(app.db().count(fired), 1);
    app.done(AFTER_A_CRASH);
}

/// The answer of the guarded state ends its guards.
fn answered_although_it_crashes_at(point: &str) {
    let (app, _worker) = application(&format!("answer_{point}"));
    app.cluster().arm(point);
    start(&app, "answers", "alone");
    app.cluster().wait_for_crash(point);
    ends_by(&app, "answers", "Ship", &["Job-1", "Late-1", "Recall-1"]);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_start_whose_state_has_guards() {
    answered_although_it_crashes_at("start");
}

#[test]
fn between_the_answer_of_a_guarded_state_and_its_commit() {
    answered_although_it_crashes_at("answer-commit");
}

#[test]
fn in_a_turn_that_ends_guards() {
    answered_although_it_crashes_at("turn-save");
}

#[test]
fn in_an_rpc_that_ends_threads_with_calls_under_way() {
    let (app, worker) = application("rpc");
    under_way(&app, &worker, "p");
    for point in ["rpc-answer", "caller-save"] {
        app.crash_at(point, || app.db().try_run("SELECT xdb.invoke_rpc('p', 'abort')"));
        let mut db = app.db();
        assert_eq!(db.count("xdb.state_executions WHERE process_id = 'p' AND status = 'ABORTED'"), 0, "{point}");
    }
    app.db().run("SELECT xdb.invoke_rpc('p', 'abort')");
    worker.release();
    ends_by(&app, "p", "rpc", &["Beside-1", "Job-1", "Late-1", "Recall-1", "Ship-1"]);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_session_that_moves_a_guarded_state_whose_call_is_under_way() {
    let (app, worker) = application("move");
    under_way(&app, &worker, "p");
    let calls = |app: &App| app.superuser().count("xdb.task");
    let moves = "SELECT xdb.move_state('p', 'Ship-1', '[{\"stateId\": \"Last\", \"stateInput\": \"moved\"}]')";
    app.crash_at("caller-save", || app.db().try_run(moves));
    assert_eq!(calls(&app), 2);
    app.crash_at("caller-committed", || app.db().try_run(moves));
    assert_eq!(app.db().completes("p").result(), "moved");
    worker.release();
    wait_until("no call is left", 20, || calls(&app) == 0);
    assert_eq!(app.db().count("audit"), 0, "nothing of the call that was under way");
    views::assert_history_is_whole(&mut app.db(), "p");
    app.done(AFTER_A_CRASH);
}

/// The answer of a pull worker ends the guards of its state. The guard ends that state, and its call is lost.
#[test]
fn in_the_answer_of_a_pull_worker_whose_state_has_guards() {
    let (app, _worker) = application("pull");
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &order("Ship"));
    let mut db = app.db();
    let claim = "SELECT token FROM xdb.claim_calls('pull', 1, wait => '20 s', lease => '1 hour')";
    let complete =
        |token: &str, answer: Answer| format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()));
    for id in ["answered", "recalled"] {
        db.start(id, "pulled").key(id).globals(json!({"n": 0})).go();
        let token: String = db.one(claim);
        db.run("SELECT pg_logical_emit_message(true, 'test', 'a commit that waits for the disk')");
        let answer = complete(&token, next("Last", json!("Ship")).globals(json!({"n": 1})));
        for point in ["caller-save", "pull-answer"] {
            app.crash_at(point, || app.db().try_run(&answer));
            db = app.db();
            assert_eq!(views::waits(&mut db, id).len(), 3, "{point}");
        }
        let winner = if id == "answered" {
            app.crash_at("caller-committed", || app.db().try_run(&answer));
            db = app.db();
            "Ship"
        } else {
            db.publish(id, "recall", json!(1));
            wait_until("the guard has triggered", 20, || views::waits(&mut db, id).is_empty());
            "Recall"
        };
        db.refused(codes::CALL_IS_LOST, &answer);
        let mut token: String = db.one(claim);
        if id == "recalled" {
            db.run(&complete(&token, next("Last", json!("Recall")).globals(json!({"n": 1}))));
            token = db.one(claim);
        }
        db.run(&complete(&token, force_complete(json!(winner))));
        let guards: &[&str] =
            if id == "answered" { &["Job-1", "Late-1", "Recall-1"] } else { &["Job-1", "Late-1", "Ship-1"] };
        ends_by(&app, id, winner, guards);
    }
    app.done(AFTER_A_CRASH);
}

/// The function of the guarded state, and then that of its guard.
#[test]
fn in_the_functions_of_a_guarded_state_and_its_guard() {
    for point in ["turn-save", "function-called", "answer-commit", "function-committed"] {
        let (app, worker) = application(&format!("function_{point}"));
        app.db().run(
            "CREATE TABLE switch (fails boolean); INSERT INTO switch VALUES (true);
             CREATE FUNCTION public.step(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
                 IF request->>'stateId' = 'Ship' AND (SELECT fails FROM public.switch) THEN
                     RAISE EXCEPTION 'not shipped';
                 END IF;
                 RETURN CASE request->>'stateId'
                     WHEN 'Last' THEN jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision',
                         jsonb_build_object('closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput', request->'stateInput')))
                     ELSE jsonb_build_object('stateDecision', jsonb_build_object('nextStates', jsonb_build_array(
                         jsonb_build_object('stateId', 'Last', 'stateInput', request->'stateId'))),
                         'writeToGlobalAttributes', '{\"n\": 1}'::jsonb) END;
             END $$",
        );
        let mut definition = order("Ship").json().clone();
        definition.as_object_mut().expect("an object").remove("rpcs");
        for (_, state) in definition["states"].as_object_mut().expect("states") {
            state["executeFunction"] = json!("public.step");
        }
        app.superuser().run(&format!("SELECT xdb.register_process_type('function', NULL, '{definition}')"));
        // Its function fails again and again, until the guard triggers.
        start(&app, "recalled", "function");
        wait_until("an attempt fails", 20, || views::fails_saying(&mut app.db(), "recalled", &["not shipped"]));
        app.db().run("SELECT xdb.pause_process('recalled')");
        app.cluster().arm(point);
        repeat(&app, "SELECT xdb.publish('recalled', 'recall', '1', 'once')");
        repeat(&app, "SELECT xdb.resume_process('recalled')");
        app.cluster().wait_for_crash(point);
        ends_by(&app, "recalled", "Recall", &["Job-1", "Late-1", "Ship-1"]);
        // Its function answers.
        app.db().run("UPDATE switch SET fails = false");
        app.cluster().arm(point);
        start(&app, "shipped", "function");
        app.cluster().wait_for_crash(point);
        ends_by(&app, "shipped", "Ship", &["Job-1", "Late-1", "Recall-1"]);
        drop(worker);
        app.done(AFTER_A_CRASH);
    }
}
