//! Guards: states that wait beside a state or beside the process, and end it. Over HTTP, with functions and with pull
//! workers.

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

fn message(queue: &str) -> Value {
    json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"commandId": "m", "queueName": queue}]}})
}

fn timer_after(seconds: f64) -> Value {
    json!({"commandRequest": {"waitingType": "AnyOfCompletion", "timerCommands": [{"delayInSeconds": seconds}]}})
}

fn with(mut options: Value, key: &str, value: Value) -> Value {
    options[key] = value;
    options
}

/// `Ship` is guarded by `Nag`, which reminds, and by `Recall`, which interrupts. `Cancelled` guards the process.
fn order(nag_after: f64) -> Definition {
    Definition::starting_with("Ship")
        .step_with("Ship", json!({"guards": ["Nag", "Recall"]}))
        .waiting_step_with("Nag", with(timer_after(nag_after), "interrupting", json!(false)))
        .waiting_step_with("Recall", message("recall"))
        .waiting_step_with("Cancelled", message("cancel"))
        .step("Last")
        .with("guards", json!(["Cancelled"]))
}

fn is_sound(db: &mut Db, id: &str) {
    assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process({})", literal(id))), [""; 0]);
    views::assert_history_is_whole(db, id);
}

/// The steps with this status, in the order of their names.
fn steps(db: &mut Db, id: &str, status: &str) -> Vec<String> {
    db.all(&format!(
        "SELECT state_execution_id FROM xdb.state_executions WHERE process_id = {} AND status = '{status}' ORDER BY state_execution_id",
        literal(id)
    ))
}

/// The events of the history with the steps that they name.
fn history(db: &mut Db, id: &str) -> Vec<String> {
    db.all(&format!(
        "SELECT event_type || COALESCE(' ' || s.state_execution_id, '') FROM xdb.history h \
         LEFT JOIN xdb.state_executions s ON s.execution_id = h.execution_id \
            AND s.state_execution_id = COALESCE(h.details ->> 'stateExecutionId', ( \
                SELECT b.details ->> 'stateExecutionId' FROM xdb.history b WHERE b.execution_id = h.execution_id \
                    AND b.event_type = 'StateStarted' AND b.details -> 'seq' = h.details -> 'seq')) \
         WHERE h.process_id = {} ORDER BY event_id",
        literal(id)
    ))
}

/// A process whose `Ship` is at its call, with a pull worker.
fn pulled(name: &str) -> (App, Db, String) {
    let app = App::new(name);
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "order", &order(3600.0));
    let mut db = app.db();
    db.start("p", "order").go();
    let token = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
    (app, db, token)
}

fn complete(token: &str, answer: Answer) -> String {
    format!("SELECT xdb.complete_call('{token}', {})", jsonb(&answer.json()))
}

#[test]
fn an_interrupting_boundary_timer_races_with_the_job_that_completes_and_the_loser_is_rejected() {
    let app = App::new("guard_timer");
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let definition = |seconds| order(3600.0).waiting_step_with("Recall", timer_after(seconds));
    app.register_with("pull", "slow", &definition(1.0));
    app.register_with("pull", "fast", &definition(3600.0));
    let mut db = app.db();
    db.start("timer", "slow").go();
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
    wait_until("the timer wins", 20, || steps(&mut db, "timer", "ABORTED") == ["Nag-1", "Ship-1"]);
    db.refused("XD025", &complete(&token, next("Last", json!(null))));
    assert_eq!(
        history(&mut db, "timer"),
        [
            "ProcessStarted",
            "StateStarted Ship-1",
            "StateStarted Nag-1",
            "WaitStarted Nag-1",
            "StateStarted Recall-1",
            "WaitStarted Recall-1",
            "StateStarted Cancelled-1",
            "WaitStarted Cancelled-1",
            "CommandCompleted Recall-1",
            "WaitCompleted Recall-1",
            "StateAborted Ship-1",
            "StateAborted Nag-1",
        ]
    );
    is_sound(&mut db, "timer");
    let (token, request): (String, String) = {
        let sql = "SELECT token, request::text FROM xdb.claim_calls('pull', 1, wait => '10 s')";
        let row = db.client().query_one(sql, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    let request: Value = serde_json::from_str(&request).unwrap();
    assert_eq!((&request["stateId"], &request["context"]["guards"]), (&json!("Recall"), &json!("Ship-1")));
    db.run(&complete(&token, graceful_complete(json!("recalled"))));
    assert_eq!(db.completes("timer").result(), "recalled");

    db.start("job", "fast").go();
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
    db.run(&complete(&token, next("Last", json!(null))));
    assert_eq!(steps(&mut db, "job", "ABORTED"), ["Nag-1", "Recall-1"], "in the transaction of the answer");
    assert_eq!(views::timers(&mut db, "job"), 0);
    is_sound(&mut db, "job");
    db.run("SELECT xdb.stop_process('job')");
    app.done(&[]);
}

#[test]
fn a_boundary_message_that_does_not_interrupt_leaves_the_job_and_is_a_guard_again() {
    let app = App::new("guard_nag");
    let worker = app.worker(|call: &Call| match call.target() {
        "Nag" if call.state_execution_id() == "Nag-1" => next("Nag", json!(null)).into(),
        "Nag" => dead_end().into(),
        _ => Reply::hang(graceful_complete(json!("shipped"))),
    });
    app.register("order", &order(3600.0).waiting_step_with("Nag", with(message("nag"), "interrupting", json!(false))));
    let mut db = app.db();
    db.start("p", "order").go();
    worker.wait_for("Ship is called", 10, |call| call.target() == "Ship");
    db.publish("p", "nag", json!(1));
    wait_until("it waits again, beside Ship", 10, || steps(&mut db, "p", "WAITING").contains(&"Nag-2".to_owned()));
    assert_eq!(db.one::<i32>("SELECT live_threads FROM xdb.processes WHERE process_id = 'p'"), 1);
    is_sound(&mut db, "p");
    worker.release();
    assert_eq!(db.completes("p").result(), "shipped");
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Cancelled-1", "Nag-2", "Recall-1"]);
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_guard_of_a_global_queue_is_served_before_the_state_that_it_guards() {
    let app = App::new("guard_global");
    let _worker = app.worker(|call: &Call| force_complete(json!(call.target())));
    let wait =
        json!({"commandRequest": {"waitingType": "AnyOfCompletion", "globalQueueCommands": [{"queueName": "all"}]}});
    let definition = Definition::starting_with("Work")
        .waiting_step_with("Work", with(wait.clone(), "guards", json!(["Stop"])))
        .waiting_step_with("Stop", wait);
    app.register("order", &definition.with("globalQueues", json!(["all"])));
    let mut db = app.db();
    db.start("p", "order").go();
    db.run("SELECT xdb.publish_global('all', '1')");
    assert_eq!(db.completes("p").result(), "Stop");
    is_sound(&mut db, "p");
    app.done(&[]);
}

/// `Rest` waits, and `Leave` has asked for a graceful completion. As a guard, `Watch` would leave no thread, and the
/// process would close.
#[test]
fn a_movement_by_hand_to_a_guard_of_the_process_starts_a_thread() {
    let app = App::new("guard_moved");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Begin") => next_all(&[("Rest", json!(null)), ("Leave", json!(null))]),
        (_, "Leave") => graceful_complete(json!("left")),
        _ => force_complete(json!(call.messages("m"))),
    });
    let definition = Definition::starting_with("Begin").step("Begin").step("Leave");
    let definition = definition.waiting_step_with("Rest", message("rest")).waiting_step_with("Watch", message("bark"));
    app.register("order", &definition.with("guards", json!(["Watch"])));
    let mut db = app.db();
    db.start("p", "order").go();
    wait_until("only Rest is left", 20, || steps(&mut db, "p", "COMPLETED").len() == 2);
    db.run("SELECT xdb.move_state('p', 'Rest-1', '[{\"stateId\": \"Watch\"}]')");
    assert_eq!(
        (db.status("p").as_str(), steps(&mut db, "p", "WAITING")),
        ("RUNNING", vec!["Watch-1".to_owned(), "Watch-2".to_owned()])
    );
    is_sound(&mut db, "p");
    (0..2).for_each(|n| db.publish("p", "bark", json!(n)));
    db.completes("p");
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_step_that_a_message_of_the_same_transaction_has_ended_can_not_be_moved() {
    let (app, mut db, _token) = pulled("guard_ended");
    let moved = "SELECT xdb.move_state('p', 'Ship-1', '[{\"stateId\": \"Last\"}]')";
    db.run("BEGIN; SELECT xdb.publish('p', 'recall', '1')");
    db.refused(codes::UNKNOWN_STATE, moved);
    db.run("ROLLBACK");
    db.run(moved);
    let from =
        "SELECT COALESCE(from_state, '') || ' ' || COALESCE(to_state, '') FROM xdb.transitions WHERE process_id = 'p'
        AND outcome = 'ABORTED' AND to_state IS NOT NULL";
    assert_eq!(db.all::<String>(from), ["Ship-1 Last-1"], "its guards end after it");
    app.done(&[]);
}

#[test]
fn an_event_sub_process_is_a_guard_of_the_process_while_its_threads_fan_out() {
    let app = App::new("guard_process");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("n", "never", 1)]),
        (_, "Ship") => next_all(&vec![("Nap", json!(1)); 30]),
        (_, "Cancelled") => graceful_complete(json!(call.messages("m"))),
        _ => dead_end(),
    });
    app.register("order", &order(3600.0).waiting_step("Nap"));
    let mut db = app.db();
    db.start("p", "order").go();
    wait_until("all wait", 20, || steps(&mut db, "p", "WAITING").len() == 31);
    is_sound(&mut db, "p");
    db.publish("p", "cancel", json!("stop"));
    assert_eq!(db.completes("p").result(), &json!(["stop"]));
    assert_eq!(steps(&mut db, "p", "ABORTED").len(), 32, "30 naps, and the guards of Ship");
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn an_error_end_event_ends_the_other_threads() {
    let app = App::new("guard_error");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[local_queue("n", "never", 1)]),
        (_, "Start") => next_all(&[("Fails", json!(null)), ("Nap", json!(null)), ("Nap", json!(null))]),
        (_, "Fails") => Answer::deciding(json!({"retry": {"errorType": "OutOfStock", "final": true}})),
        (_, "Failed") => next("Last", json!(null)).aborting(&["*"]),
        _ => graceful_complete(json!("given up")),
    });
    let recovery = json!({"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE",
        "stateFailureProceedStateId": "Failed"}});
    let definition = Definition::starting_with("Start").step("Start").step_with("Fails", recovery).step("Failed");
    app.register("order", &definition.waiting_step("Nap").step("Last"));
    let mut db = app.db();
    db.start("p", "order").go();
    assert_eq!(db.completes("p").result(), "given up");
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Nap-1", "Nap-2"]);
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn guards_of_a_state_with_many_steps_end_with_the_last_one() {
    let app = App::new("guard_many");
    let worker = app.worker(|call: &Call| match call.target() {
        "Start" => next_all(&vec![("Ship", json!(1)); 20]).into(),
        _ if call.state_execution_id() == "Ship-7" => Reply::hang(dead_end()),
        _ => dead_end().into(),
    });
    app.register("order", &order(3600.0).step("Start").with("startingState", json!("Start")));
    let mut db = app.db();
    db.start("p", "order").go();
    wait_until("all but one have ended", 20, || steps(&mut db, "p", "COMPLETED").len() == 20);
    assert_eq!(steps(&mut db, "p", "WAITING"), ["Cancelled-1", "Nag-1", "Recall-1"]);
    is_sound(&mut db, "p");
    worker.release();
    wait_until("the guards have ended", 10, || steps(&mut db, "p", "ABORTED") == ["Nag-1", "Recall-1"]);
    is_sound(&mut db, "p");
    db.run("SELECT xdb.stop_process('p')");
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_guard_triggers_in_a_pause_and_its_call_is_parked() {
    let (app, mut db, token) = pulled("guard_pause");
    db.run("SELECT xdb.pause_process('p')");
    db.publish("p", "recall", json!(1));
    wait_until("the guard has triggered", 10, || steps(&mut db, "p", "ABORTED") == ["Nag-1", "Ship-1"]);
    db.refused("XD025", &complete(&token, dead_end()));
    assert_eq!(db.one::<i64>("SELECT count(*) FROM xdb.claim_calls('pull', 1)"), 0, "its call is parked");
    is_sound(&mut db, "p");
    db.run("SELECT xdb.resume_process('p')");
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
    db.run(&complete(&token, graceful_complete(json!(null))));
    db.completes("p");
    app.done(&[]);
}

#[test]
fn the_first_of_two_guards_wins_and_the_message_of_the_other_one_stays() {
    let (app, mut db, _) = pulled("guard_two");
    app.register_with("pull", "order", &order(3600.0).waiting_step_with("Nag", message("nag")));
    db.start("q", "order").go();
    db.run("BEGIN; SELECT xdb.publish('q', 'recall', '1'); SELECT xdb.publish('q', 'nag', '2'); COMMIT");
    wait_until("a guard has triggered", 10, || steps(&mut db, "q", "ABORTED") == ["Recall-1", "Ship-1"]);
    let left: Vec<String> = db.all("SELECT queue_name FROM xdb.queue_messages WHERE process_id = 'q' AND received");
    assert_eq!(left, ["recall"]);
    is_sound(&mut db, "q");
    db.run("SELECT xdb.stop_process('q'); SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn guards_that_are_none_are_refused() {
    let app = App::new("guard_bad");
    let mut db = app.superuser();
    let all = json!({"commandRequest": {"waitingType": "AllOfCompletion", "timerCommands": [{"delayInSeconds": 1}]}});
    let cases = [
        (json!(["Nowhere"]), "names \"Nowhere\", which is not listed in states"),
        (json!(["B"]), "names \"B\", which has no commandRequest"),
        (json!(["All"]), "names \"All\", whose commandRequest is not AnyOfCompletion"),
        (json!(["Guarded"]), "names \"Guarded\", which has guards itself"),
        (json!(["G", "G"]), "names \"G\" twice"),
        (json!((0..17).map(|n| format!("G{n}")).collect::<Vec<_>>()), "has 17 names; the limit is 16"),
    ];
    for (guards, why) in cases {
        let guarded = with(message("q"), "guards", json!(["G"]));
        let states = |a: Value| json!({"A": a, "B": {}, "All": all, "Guarded": guarded, "G": message("q")});
        for (place, definition) in [
            ("states.A.guards", json!({"states": states(json!({"guards": guards}))})),
            ("guards", json!({"states": states(json!({})), "guards": guards})),
        ] {
            let sql = format!("SELECT xdb.register_process_type('bad', NULL, {})", literal(&definition.to_string()));
            let error = db.refused("XD008", &sql);
            assert_eq!(error.message, format!("invalid definition of a process type: {place} {why}"));
        }
    }
    app.done(&[]);
}
