//! Compensation: completed steps are undone in reverse. Over HTTP, with functions and with pull workers.

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

fn is_sound(db: &mut Db, id: &str) {
    assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process({})", literal(id))), [""; 0]);
    views::assert_history_is_whole(db, id);
}

/// `Reserve`, `Charge` and `Ship`; the first two can be undone. `Ship` gives up after one attempt.
fn saga() -> Definition {
    let give_up = json!({"executeApiRetryPolicy": {"maximumAttempts": 1},
        "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}});
    Definition::starting_with("Reserve")
        .step_with("Reserve", json!({"compensationStateId": "Free"}))
        .step_with("Charge", json!({"compensationStateId": "Refund"}))
        .step_with("Ship", give_up)
        .step("Free")
        .step("Refund")
        .rpc("undo", json!({}))
}

fn fails_compensated(db: &mut Db, id: &str) {
    let outcome = db.outcome(id);
    assert_eq!(outcome.status(), "FAILED");
    let reason: String = db.one(&format!("SELECT reason FROM xdb.processes WHERE process_id = {}", literal(id)));
    assert_eq!(reason, "compensated");
    is_sound(db, id);
}

/// The calls of states that undo: state, input and what they undo.
fn undone(worker: &Worker, id: &str) -> Vec<(String, Value, Value)> {
    let calls = worker.calls();
    let undoing = calls.iter().filter(|call| call.process_id() == id && ["Free", "Refund"].contains(&call.target()));
    undoing
        .map(|call| (call.target().to_owned(), call.input().clone(), call.body["context"]["compensates"].clone()))
        .collect()
}

#[test]
fn forward_and_backward_movement_undoes_completed_steps_in_reverse() {
    let app = App::new("compensate");
    let worker = app.worker(|call: &Call| match call.target() {
        "Reserve" => next("Charge", json!(7)).into(),
        "Charge" => next("Ship", json!(8)).into(),
        "Ship" if call.process_id() == "p" => compensate(json!("out of stock")).into(),
        "Ship" => error(500, "OutOfStock", "no"),
        "undo" => output(json!(null)).and(compensate(json!(null))).into(),
        _ => graceful_complete(json!(null)).into(),
    });
    app.register("saga", &saga());
    let mut db = app.db();
    let expected =
        [("Refund".to_owned(), json!(7), json!("Charge-1")), ("Free".to_owned(), json!("in"), json!("Reserve-1"))];
    for id in ["p", "q"] {
        db.start(id, "saga").input(json!("in")).go();
        fails_compensated(&mut db, id);
        assert_eq!(undone(&worker, id), expected, "by an answer, and by a policy");
    }
    app.done(&[]);
}

#[test]
fn an_rpc_undoes_what_is_done_and_history_is_cut_meanwhile() {
    let app = App::new("compensate_rpc");
    let worker = app.worker(|call: &Call| match call.target() {
        "Reserve" => next("Charge", json!(7)).into(),
        "Charge" => next("Ship", json!(8)).into(),
        "Ship" => Reply::hang(dead_end()),
        "undo" => output(json!("undoes")).and(compensate(json!(null))).into(),
        "Refund" => Reply::hang(dead_end()),
        _ => dead_end().into(),
    });
    app.register("saga", &saga().with("history", json!({"keepLast": 2})));
    let mut db = app.db();
    db.start("p", "saga").input(json!("in")).go();
    worker.wait_for("it ships", 10, |call| call.target() == "Ship");
    is_sound(&mut db, "p");
    assert_eq!(db.rpc("p", "undo", json!(null)), "undoes");
    worker.wait_for("it refunds", 10, |call| call.target() == "Refund");
    assert_eq!(db.json("SELECT xdb.describe_process('p') -> 'compensating'"), true);
    is_sound(&mut db, "p");
    // The scheduler restarts in the middle.
    app.superuser().run(&format!("SELECT pg_terminate_backend({})", app.scheduler()));
    worker.wait_for_count("it refunds again", 20, 2, |call| call.target() == "Refund");
    worker.release();
    fails_compensated(&mut db, "p");
    assert_eq!(undone(&worker, "p").last().unwrap().1, json!("in"), "the input is there, after the cut");
    app.done(&["terminating background worker"]);
}

#[test]
fn functions_and_pull_workers_compensate_too() {
    let app = App::new("compensate_handlers");
    app.db().run(
        "CREATE TABLE public.undone (n serial, state text, of text);
         CREATE FUNCTION public.step(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
            IF request -> 'context' ? 'compensates' THEN
                INSERT INTO public.undone (state, of) VALUES (request ->> 'stateId', request #>> '{context,compensates}');
                RETURN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"DEAD_END\"}}}';
            END IF;
            RETURN CASE request ->> 'stateId'
                WHEN 'Reserve' THEN '{\"stateDecision\": {\"nextStates\": [{\"stateId\": \"Charge\"}]}}'
                WHEN 'Charge' THEN '{\"stateDecision\": {\"nextStates\": [{\"stateId\": \"Ship\"}]}}'
                ELSE '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"COMPENSATE_PROCESS\"}}}' END;
         END $$",
    );
    let mut definition = saga().json().clone();
    definition.as_object_mut().unwrap().remove("rpcs");
    for (_, state) in definition["states"].as_object_mut().unwrap() {
        state["executeFunction"] = json!("public.step");
    }
    app.superuser().run(&format!("SELECT xdb.register_process_type('f', NULL, {})", literal(&definition.to_string())));
    let mut db = app.db();
    db.start("p", "f").go();
    fails_compensated(&mut db, "p");
    let undone: Vec<String> = db.all("SELECT state || ' ' || of FROM public.undone ORDER BY n");
    assert_eq!(undone, ["Refund Charge-1", "Free Reserve-1"]);

    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "g", &saga());
    db.start("q", "g").go();
    for answer in [next("Charge", json!(7)), compensate(json!(null)), dead_end()] {
        let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
        db.run(&format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json())));
    }
    fails_compensated(&mut db, "q");
    app.done(&[]);
}

#[test]
fn a_state_that_undoes_must_be_listed_and_registered() {
    let app = App::new("compensate_bad");
    let mut db = app.superuser();
    let definition = json!({"states": {"A": {"compensationStateId": "Nowhere"}}});
    let sql = format!("SELECT xdb.register_process_type('bad', NULL, {})", literal(&definition.to_string()));
    let error = db.try_run(&sql).unwrap_err();
    let why = "states.A.compensationStateId \"Nowhere\" is not listed in states; known are A";
    assert!(error.message.contains(why) && error.code == "XD008", "{error:?}");
    app.done(&[]);
}

/// A process notes a thousand compensations. The answer that would note one more is a failed attempt, and the process can
/// still be undone.
#[test]
fn a_process_with_a_thousand_and_one_compensations_fails_the_attempt() {
    let app = App::new("compensate_many");
    app.db().run(
        "CREATE FUNCTION public.step(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
             SELECT CASE request->>'stateId'
                 WHEN 'Undo' THEN '{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"DEAD_END\"}}}'
                 ELSE '{\"stateDecision\": {\"nextStates\": [{\"stateId\": \"Step\"}]}}' END::jsonb $$",
    );
    let function = |more: Value| {
        let mut options = json!({"executeFunction": "public.step", "executeApiRetryPolicy": attempts(2)});
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options
    };
    let compensates =
        json!({"compensationStateId": "Undo", "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}});
    let definition = Definition::starting_with("Step")
        .step_with("Step", function(compensates))
        .step_with("Undo", function(json!({})));
    app.superuser()
        .run(&format!("SELECT xdb.register_process_type('many', NULL, {})", literal(&definition.json().to_string())));
    let mut db = app.db();
    db.start("p", "many").go();
    assert_eq!(db.outcome("p").status(), "FAILED");
    let failure = db.json(
        "SELECT details -> 'failure' FROM xdb.history WHERE process_id = 'p' AND event_type = 'AttemptFailed' LIMIT 1",
    );
    let detail = failure["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("the process would have more than 1000 compensations"), "{failure}");
    fails_compensated(&mut db, "p");
    let undone = "xdb.state_executions WHERE process_id = 'p' AND state_id = 'Undo' AND status = 'COMPLETED'";
    assert_eq!(db.count(undone), 1000);
    app.done(&[]);
}
