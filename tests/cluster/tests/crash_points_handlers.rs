//! The server is stopped at the named points of handlers other than HTTP workers. These are functions in place of
//! workers, functions that answers call, and pull workers. All writes of a handler are committed exactly once.
//!
//! As in `crash_points.rs`, these tests need a build of the extension with crash points.
#![cfg(feature = "crash-points")]

use xdb_cluster_tests::db::jsonb;
use xdb_cluster_tests::log::AFTER_A_CRASH;
use xdb_cluster_tests::prelude::*;

/// An application in a server of its own, whose handlers record what they do in a ledger.
fn application(name: &str) -> App {
    let app = App::alone(&format!("handlers_{}", name.replace('-', "_")), ClusterOptions::default());
    app.db().run(
        "CREATE TABLE ledger (process text, what text, attempt int);
         CREATE FUNCTION step(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
         DECLARE
             n CONSTANT int := (request->'stateInput')::int;
         BEGIN
             INSERT INTO public.ledger
             VALUES (request->'context'->>'processId', 'step ' || n, (request->'context'->>'attempt')::int);
             IF n > 1 THEN
                 RETURN jsonb_build_object('stateDecision', jsonb_build_object('nextStates', jsonb_build_array(
                     jsonb_build_object('stateId', 'Step', 'stateInput', n - 1))));
             END IF;
             RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"FORCE_COMPLETE_PROCESS\"}}}';
         END $$;
         CREATE FUNCTION note(argument jsonb, context jsonb) RETURNS void LANGUAGE sql AS $$
             INSERT INTO public.ledger VALUES (context->>'processId', argument #>> '{}', (context->>'attempt')::int) $$;",
    );
    app
}

/// Starts a process, and repeats the start after crashes.
fn start(app: &App, id: &str, process_type: &str, input: Value) {
    let request = json!({"requestId": id});
    let start = || app.db().start(id, process_type).input(input.clone()).options(request.clone()).try_go();
    while start().is_err() {}
}

/// Checks that the ledger has these entries, each once.
fn wrote(app: &App, process: &str, what: &[&str]) {
    let mut db = app.db();
    let written = db.all::<String>(&format!("SELECT what FROM ledger WHERE process = '{process}' ORDER BY what"));
    assert_eq!(written, what, "{process}");
}

fn completes(app: &App, process: &str, what: &[&str]) {
    let mut db = app.db();
    db.completes(process);
    wrote(app, process, what);
    views::assert_history_is_whole(&mut db, process);
}

// --- functions in place of workers -----------------------------------------------------------------------------------

/// The server crashes at a point that runners reach, while functions are to be called, some of them in one transaction.
fn a_runner_comes_by(point: &str) {
    let app = application(point);
    let definition = Definition::starting_with("Step").step_with("Step", json!({"executeFunction": "public.step"}));
    app.superuser().run(&format!("SELECT xdb.register_process_type('Steps', NULL, '{}')", definition.json()));
    app.cluster().arm(point);
    (0..5).for_each(|n| start(&app, &format!("p{n}"), "Steps", json!(3)));
    app.cluster().wait_for_crash(point);
    (0..5).for_each(|n| completes(&app, &format!("p{n}"), &["step 1", "step 2", "step 3"]));
    let failed = app.db().count("xdb.history WHERE event_type = 'AttemptFailed'");
    assert_eq!(failed, 0);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_that_leases_calls_of_functions() {
    a_runner_comes_by("turn-claim");
}

#[test]
fn between_the_lease_of_a_function_and_its_call() {
    a_runner_comes_by("claim-call");
}

#[test]
fn when_a_function_has_done_its_work() {
    a_runner_comes_by("function-called");
}

#[test]
fn while_the_answer_of_a_function_is_saved() {
    a_runner_comes_by("turn-save");
}

#[test]
fn between_the_answer_of_a_function_and_its_commit() {
    a_runner_comes_by("answer-commit");
}

#[test]
fn after_the_commit_of_a_function() {
    a_runner_comes_by("function-committed");
}

// --- functions that answers call -------------------------------------------------------------------------------------

fn calling(name: &str) -> (App, Worker) {
    let app = application(name);
    let worker = app.worker(|call: &Call| {
        let answer = match call.api {
            Api::Rpc => output(json!("asked")),
            _ if call.target() == "First" => next("Last", json!(null)),
            _ => force_complete(json!("done")),
        };
        answer.calls(&[("note", json!(call.target()))])
    });
    let definition = Definition::starting_with("First").step("First").step("Last").rpc("ask", json!({}));
    app.register("calls", &definition.with("functions", json!({"note": "public.note"})));
    (app, worker)
}

/// The server crashes at a point that answers reach which call a function.
fn an_answer_comes_by(point: &str) {
    let (app, worker) = calling(&format!("calls-{point}"));
    app.cluster().arm(point);
    (0..5).for_each(|n| start(&app, &format!("p{n}"), "calls", json!(null)));
    app.cluster().wait_for_crash(point);
    (0..5).for_each(|n| completes(&app, &format!("p{n}"), &["First", "Last"]));
    drop(worker);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_a_turn_that_has_called_functions_of_answers() {
    an_answer_comes_by("turn-tables");
}

#[test]
fn in_the_middle_of_saving_answers_that_have_called_functions() {
    an_answer_comes_by("turn-save");
}

#[test]
fn between_answers_that_have_called_functions_and_their_commit() {
    an_answer_comes_by("answer-commit");
}

#[test]
fn in_an_rpc_that_has_called_functions() {
    let (app, worker) = calling("calls-rpc");
    worker.misbehave(|call: &Call| match call.api {
        Api::Rpc => Reply::from(output(json!("asked")).calls(&[("note", json!("ask"))])),
        _ => error(500, "Busy", "not now"),
    });
    start(&app, "r", "calls", json!(null));
    let rpc = "SELECT xdb.invoke_rpc('r', 'ask', idempotency_key => 'k')::text";
    app.crash_at("caller-save", || app.db().try_run(rpc));
    wrote(&app, "r", &[]);
    app.db().run(rpc);
    app.crash_at("caller-committed", || {
        app.db().try_run("SELECT xdb.invoke_rpc('r', 'ask', idempotency_key => 'other')::text")
    });
    app.db().run("SELECT xdb.invoke_rpc('r', 'ask', idempotency_key => 'other')::text");
    wrote(&app, "r", &["ask", "ask"]);
    app.db().run("SELECT xdb.stop_process('r')");
    drop(worker);
    app.done(AFTER_A_CRASH);
}

// --- pull workers ----------------------------------------------------------------------------------------------------

/// A process `p` with one call for a pull worker.
fn with_claimed_call(name: &str) -> App {
    let app = application(&format!("pull-{name}"));
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let policy = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 0.1}});
    app.register_with("pull", "pulled", &Definition::starting_with("Only").step_with("Only", policy));
    app.db().start("p", "pulled").go();
    app
}

const CLAIM: &str = "SELECT token FROM xdb.claim_calls('pull', wait => '20 s', lease => '1 hour')";

/// Claims with this statement, and makes sure that the claim is on disk. A crash may lose a claim whose transaction has
/// written nothing else.
fn claim_for_good(app: &App, claim: &str) -> String {
    let mut db = app.db();
    let token = db.one(claim);
    db.run("SELECT pg_logical_emit_message(true, 'test', 'a commit that waits for the disk')");
    token
}

fn attempts_failed(app: &App) -> i64 {
    app.db().count("xdb.history WHERE event_type = 'AttemptFailed'")
}

/// The statements of a pull worker's transaction: its own write, and the answer.
fn answer(token: &str) -> String {
    let answer = jsonb(&force_complete(json!("claimed")).json());
    format!("BEGIN; INSERT INTO ledger VALUES ('p', 'work', 1); SELECT xdb.complete_call('{token}', {answer}); COMMIT")
}

#[test]
fn in_a_claim() {
    let app = with_claimed_call("claim");
    app.crash_at("pull-claim", || app.db().try_run(CLAIM));
    assert_eq!(app.superuser().count("xdb.task WHERE attempt = 0 AND lease_until IS NULL"), 1, "it was none");
    let token: String = app.db().one(CLAIM);
    app.db().run(&answer(&token));
    completes(&app, "p", &["work"]);
    assert_eq!(attempts_failed(&app), 0);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_the_answer_to_a_claimed_call() {
    let app = with_claimed_call("answer");
    let token = claim_for_good(&app, CLAIM);
    for point in ["caller-save", "pull-answer"] {
        app.crash_at(point, || app.db().try_run(&answer(&token)));
        wrote(&app, "p", &[]);
        assert_eq!(app.db().status("p"), "RUNNING");
    }
    // The lease outlasts the crashes. A worker that does not know of the commit completes the call again.
    app.crash_at("caller-committed", || app.db().try_run(&answer(&token)));
    app.db().refused("XD025", &answer(&token));
    completes(&app, "p", &["work"]);
    assert_eq!(attempts_failed(&app), 0);
    app.done(AFTER_A_CRASH);
}

#[test]
fn in_the_failure_of_a_claimed_call() {
    let app = with_claimed_call("failure");
    let token = claim_for_good(&app, CLAIM);
    let fail = format!(
        "BEGIN; INSERT INTO ledger VALUES ('p', 'failed', 1); \
         SELECT xdb.fail_call('{token}', '{{\"errorType\": \"Busy\"}}'); COMMIT"
    );
    for point in ["caller-save", "pull-answer"] {
        app.crash_at(point, || app.db().try_run(&fail));
        assert_eq!(attempts_failed(&app), 0);
    }
    app.crash_at("caller-committed", || app.db().try_run(&fail));
    app.db().refused("XD025", &fail);
    let token = claim_for_good(&app, CLAIM);
    let give_back = format!("SELECT xdb.fail_call('{token}')");
    app.crash_at("pull-give-back", || app.db().try_run(&give_back));
    app.db().run(&give_back);
    let again = app.db().json("SELECT request->'context' FROM xdb.claim_calls('pull', wait => '20 s')");
    assert_eq!(again["attempt"], 2, "what is given back is the same attempt");
    assert_eq!(attempts_failed(&app), 1);
    wrote(&app, "p", &["failed"]);
    app.db().run("SELECT xdb.stop_process('p')");
    app.done(AFTER_A_CRASH);
}

#[test]
fn while_leases_that_have_ended_are_noted() {
    let app = with_claimed_call("note");
    claim_for_good(&app, "SELECT token FROM xdb.claim_calls('pull', lease => '1 microsecond')");
    app.crash_at("pull-note", || app.db().try_run(CLAIM));
    assert_eq!(attempts_failed(&app), 0);
    let mut token = None;
    wait_until("it is claimed again", 20, || {
        token = app.db().try_maybe::<String>(CLAIM).expect("it can be claimed");
        token.is_some()
    });
    assert_eq!(attempts_failed(&app), 1, "the attempt is noted once");
    app.db().run(&answer(&token.expect("just claimed")));
    completes(&app, "p", &["work"]);
    app.done(AFTER_A_CRASH);
}
