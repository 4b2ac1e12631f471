//! Threads that an answer ends before they end themselves (`abortStates`), and steps that a caller moves by hand.

use xdb_cluster_tests::cluster::signal;
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// `Split` starts two steps of `Nap`, one of `Mail` and one of `Cancel`. `Nap` waits for an hour, `Mail` for two
/// messages of `q`. `Cancel` waits for a message of `cancel`, and aborts what it names.
fn order(app: &App) -> Worker {
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Nap") => any_of(&[timer("long", 3600.0)]),
        (Api::WaitUntil, "Mail" | "Late") => any_of(&[local_queue("m", "q", 2)]),
        (Api::WaitUntil, "Cancel") => any_of(&[local_queue("c", "cancel", 1)]),
        (Api::Rpc, _) => {
            let names: Vec<_> = call.input().as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            output(json!("aborted")).aborting(&names)
        }
        (_, "Split") => {
            next_all(&[("Nap", json!(1)), ("Nap", json!(2)), ("Mail", json!(null)), ("Cancel", json!(null))])
        }
        (_, "Cancel") => {
            let named = &call.messages("c")[0];
            let names: Vec<_> = named.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            next("Last", json!(names)).aborting(&names)
        }
        _ => graceful_complete(json!(call.messages("m"))),
    });
    app.register(
        "order",
        &Definition::starting_with("Split")
            .step("Split")
            .step("Last")
            .waiting_step("Nap")
            .waiting_step("Mail")
            .waiting_step("Late")
            .waiting_step("Cancel")
            .rpc("abort", json!({})),
    );
    worker
}

fn starts(app: &App, id: &str) -> Db {
    let mut db = app.db();
    db.start(id, "order").go();
    wait_until("all wait", 10, || views::waits(&mut db, id).len() == 4);
    db
}

/// The steps with this status, in the order of their names.
fn steps(db: &mut Db, id: &str, status: &str) -> Vec<String> {
    db.all(&format!(
        "SELECT state_execution_id FROM xdb.state_executions WHERE process_id = {} AND status = '{status}' ORDER BY state_execution_id",
        literal(id)
    ))
}

fn is_sound(db: &mut Db, id: &str) {
    assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process({})", literal(id))), [""; 0]);
    views::assert_history_is_whole(db, id);
}

#[test]
fn an_answer_ends_the_states_and_steps_that_it_names() {
    let app = App::new("abort_answer");
    let _worker = order(&app);
    let mut db = starts(&app, "p");
    assert_eq!(views::timers(&mut db, "p"), 2);
    // Passed over are `Last`, which never ran, `Split-1`, which has ended, and `Cancel`, the answering step.
    db.publish("p", "cancel", json!(["Nap-2", "Mail", "Last", "Split-1", "Cancel"]));
    wait_until("it has answered", 10, || steps(&mut db, "p", "COMPLETED").len() == 3);
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Mail-1", "Nap-2"]);
    assert_eq!(steps(&mut db, "p", "COMPLETED"), ["Cancel-1", "Last-1", "Split-1"]);
    assert_eq!((views::timers(&mut db, "p"), views::waits(&mut db, "p").len()), (1, 1));
    is_sound(&mut db, "p");
    assert_eq!(db.rpc("p", "abort", json!(["*"])), "aborted");
    // No thread is left, and a result was given.
    db.completes("p");
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn messages_of_an_aborted_step_serve_another_one_in_their_order() {
    let app = App::new("abort_messages");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Both") => all_of(&[local_queue("m", "q", 2), local_queue("n", "never", 1)]),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "q", 3)]),
        (Api::Rpc, _) => next("Three", json!(null)).and(output(json!(null))).aborting(&["Both"]),
        _ => force_complete(json!(call.messages("m"))),
    });
    let definition = Definition::starting_with("Both").waiting_step("Both").waiting_step("Three");
    app.register("mail", &definition.rpc("abort", json!({})));
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("it waits", 10, || views::waits(&mut db, "p").len() == 2);
    for n in 1..=2 {
        db.publish("p", "q", json!(n));
    }
    wait_until("it has two messages", 10, || {
        db.count("xdb.history WHERE process_id = 'p' AND event_type = 'CommandCompleted'") == 1
    });
    db.run("BEGIN; SELECT xdb.publish('p', 'q', '3'); SELECT xdb.invoke_rpc('p', 'abort'); COMMIT");
    assert_eq!(db.completes("p").result(), &json!([1, 2, 3]));
    is_sound(&mut db, "p");
    drop(worker);
    app.done(&[]);
}

#[test]
fn messages_of_global_queues_go_back_when_their_step_is_aborted() {
    let app = App::new("abort_global");
    let _worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, "Both") => all_of(&[global_queue("g", "jobs", 1), local_queue("n", "never", 1)]),
        (Api::WaitUntil, _) => any_of(&[global_queue("g", "jobs", 1)]),
        (Api::Rpc, _) => output(json!(null)).aborting(&["*"]),
        _ => force_complete(json!(call.messages("g"))),
    });
    let definition = |state: &str| Definition::starting_with(state).waiting_step(state).rpc("abort", json!({}));
    app.register("both", &definition("Both"));
    app.register("one", &definition("One"));
    let mut db = app.db();
    db.start("p", "both").go();
    db.run("SELECT xdb.publish_global('jobs', '7')");
    wait_until("p has it", 10, || app.superuser().count("xdb.global_message WHERE taken_by IS NOT NULL") == 1);
    db.start("q", "one").go();
    wait_until("q waits", 10, || views::waits(&mut db, "q").len() == 1);
    db.rpc("p", "abort", json!(null));
    assert_eq!(db.completes("q").result(), &json!([7]));
    assert_eq!(db.status("p"), "RUNNING");
    is_sound(&mut db, "p");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn nothing_of_the_answer_of_an_aborted_step_is_applied() {
    let app = App::new("abort_late");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::Rpc, _) => output(json!(null)).aborting(&["Pay"]).into(),
        (_, "Split") => next_all(&[("Pay", json!(null)), ("Wait", json!(null))]).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "q", 1)]).into(),
        (_, "Pay") => Reply::hang(force_complete(json!("paid")).globals(json!({"n": 7}))),
        _ => Reply::from(graceful_complete(json!("not paid"))),
    });
    let mut db = app.db();
    db.run("INSERT INTO counters VALUES ('p', 0)");
    let definition = Definition::starting_with("Split").step("Split").step("Pay").waiting_step("Wait");
    app.register("order", &definition.rpc("abort", json!({})).maps("public.counters", "id", &["n"]));
    db.start("p", "order").key("p").go();
    worker.wait_for("the call", 10, |call| call.executes("Pay"));
    db.rpc("p", "abort", json!(null));
    worker.release();
    wait_until("its call is over", 10, || app.superuser().one::<i32>("SELECT in_flight FROM xdb.status()") == 0);
    db.publish("p", "q", json!(1));
    assert_eq!(db.completes("p").result(), "not paid");
    assert_eq!(db.one::<i32>("SELECT n FROM counters WHERE id = 'p'"), 0);
    is_sound(&mut db, "p");
    app.done(&[]);
}

/// A call that was aborted under way ends with no answer.
#[test]
fn an_aborted_call_frees_its_attribute_locks() {
    let app = App::new("abort_locks");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Split") => next_all(&[("Pay", json!(null)), ("Wait", json!(null))]).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "q", 1)]).into(),
        (_, "Pay") => Reply::hang(force_complete(json!("paid"))),
        (_, "Wait") => next("Refund", json!(null)).aborting(&["Pay"]).into(),
        _ => Reply::from(force_complete(json!("refunded"))),
    });
    let locking = json!({"loadLocalAttributes": {"policy": "PARTIAL", "names": ["k"], "lockType": "EXCLUSIVE_LOCK"}});
    let definition = Definition::starting_with("Split").step("Split").waiting_step("Wait");
    app.register("order", &definition.step_with("Pay", locking.clone()).step_with("Refund", locking));
    let mut db = app.db();
    db.start("p", "order").go();
    worker.wait_for("the call", 10, |call| call.executes("Pay"));
    db.publish("p", "q", json!(1));
    assert_eq!(db.completes("p").result(), "refunded");
    is_sound(&mut db, "p");
    worker.release();
    app.done(&[]);
}

/// The message may be taken and given back in one turn, while another process waits for it.
#[test]
fn a_message_that_is_taken_and_given_back_at_once_is_offered_to_others() {
    let app = App::alone("abort_fresh", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Split") => next_all(&[("Both", json!(null)), ("Go", json!(null))]).into(),
        (Api::WaitUntil, "Both") => {
            all_of(&[global_queue("g", call.process_id(), 1), local_queue("n", "never", 1)]).into()
        }
        (Api::WaitUntil, _) => any_of(&[global_queue("g", call.input().as_str().unwrap(), 1)]).into(),
        (_, "Go") => Reply::hang(dead_end().aborting(&["Both"])),
        _ => Reply::from(force_complete(json!(call.messages("g")))),
    });
    let one = Definition::starting_with("One").waiting_step("One");
    app.register("one", &one);
    let both = Definition::starting_with("Split").step("Split").waiting_step("Both").step("Go");
    app.register("both", &both);
    let mut db = app.db();
    for round in 0..10 {
        let (first, second) = (format!("p{round}"), format!("q{round}"));
        db.start(&first, "both").go();
        worker.wait_for("the call", 10, |call| call.process_id() == first && call.executes("Go"));
        wait_until("the first one waits", 10, || views::waits(&mut db, &first).len() == 2);
        db.start(&second, "one").input(json!(first)).go();
        wait_until("the second one waits", 10, || views::waits(&mut db, &second).len() == 1);
        // The answer and the message come together.
        let scheduler = app.scheduler();
        signal(scheduler, libc::SIGSTOP);
        worker.release();
        db.run(&format!("SELECT xdb.publish_global('{first}', '{round}')"));
        signal(scheduler, libc::SIGCONT);
        assert_eq!(db.completes(&second).result(), &json!([round]));
        is_sound(&mut db, &first);
        db.run(&format!("SELECT xdb.stop_process('{first}')"));
    }
    app.done(&[]);
}

#[test]
fn a_message_that_came_before_is_sound_when_it_is_taken_and_given_back_at_once() {
    let app = App::new("abort_received");
    let _worker = order(&app);
    let mut db = starts(&app, "p");
    db.publish("p", "q", json!(1));
    wait_until("it is in the queue", 10, || db.count("xdb.queue_messages WHERE process_id = 'p'") == 1);
    db.run("BEGIN; SELECT xdb.publish('p', 'q', '2'); SELECT xdb.move_state('p', 'Mail-1', '[]'); COMMIT");
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Mail-1"]);
    is_sound(&mut db, "p");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn a_pull_worker_loses_the_call_of_an_aborted_step() {
    let app = App::new("abort_pull");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)).aborting(&["Only-1"]),
        _ => force_complete(json!(null)),
    });
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "pulled", &one_step());
    let mut db = app.db();
    db.start("p", "pulled").go();
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
    db.run("SELECT xdb.move_state('p', 'Only-1', '[]')");
    db.refused(
        "XD025",
        &format!("SELECT xdb.complete_call('{token}', {})", jsonb(&force_complete(json!(null)).json())),
    );
    assert_eq!(db.one::<i64>("SELECT count(*) FROM xdb.claim_calls('pull', 1)"), 0);
    is_sound(&mut db, "p");
    db.run("SELECT xdb.stop_process('p')");
    drop(worker);
    app.done(&[]);
}

/// The function runs in the turn of a runner, the RPC in a session.
#[test]
fn an_answer_of_a_function_ends_other_threads() {
    let app = App::new("abort_function");
    app.db().run(&format!(
        "CREATE FUNCTION public.finish(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT {} $$",
        jsonb(&graceful_complete(json!("finished")).aborting(&["Nap"]).json())
    ));
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[timer("long", 3600.0)]),
        _ => next_all(&[("Nap", json!(1)), ("Nap", json!(2)), ("Finish", json!(null))]),
    });
    let definition = Definition::starting_with("Split").step("Split").waiting_step("Nap");
    app.register("order", &definition.step_with("Finish", json!({"executeFunction": "public.finish"})));
    let mut db = app.db();
    db.start("p", "order").go();
    assert_eq!(db.completes("p").result(), "finished");
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Nap-1", "Nap-2"]);
    is_sound(&mut db, "p");
    drop(worker);
    app.done(&[]);
}

#[test]
fn a_session_that_waits_for_a_step_learns_that_it_was_aborted() {
    let app = App::new("abort_waiter");
    let _worker = order(&app);
    let mut db = starts(&app, "p");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| app.db().json("SELECT xdb.wait_for_state('p', 'Nap-1', '1 minute')"));
        let sleeps = "pg_stat_activity WHERE query LIKE '%wait_for_state%' AND wait_event_type = 'Extension'
            AND datname = current_database()";
        wait_until("it waits", 10, || app.superuser().count(sleeps) == 1);
        app.session("other").refused(codes::UNKNOWN_PROCESS, "SELECT xdb.move_state('p', 'Nap-1', '[]')");
        let (took, _) = timed(|| {
            db.run("SELECT xdb.move_state('p', 'Nap-1', '[]')");
            assert_eq!(waiting.join().expect("no panic")["status"], "ABORTED");
        });
        assert!(took < Duration::from_secs(20), "it was woken: {took:?}");
    });
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn names_that_are_unknown_or_too_many_are_refused() {
    let app = App::new("abort_names");
    let worker = app.worker(|call: &Call| {
        let many: Vec<_> = (0..1001).map(|n| format!("Only-{n}")).collect();
        match call.process_id() {
            "many" => force_complete(json!(null)).aborting(&many.iter().map(String::as_str).collect::<Vec<_>>()),
            _ => force_complete(json!(null)).aborting(&["Onyl"]),
        }
    });
    app.register("one", &one_step().rpc("ask", json!({})));
    let mut db = app.db();
    db.start("many", "one").go();
    wait_until("it fails", 10, || views::fails_saying(&mut db, "many", &["abortStates", "1001 names", "1000"]));
    db.start("unknown", "one").go();
    wait_until("it is made again", 10, || {
        db.count(
            "xdb.history WHERE process_id = 'unknown' AND event_type = 'CallRepeated' AND details::text LIKE '%Onyl%'",
        ) > 0
    });
    let error = db.try_run("SELECT xdb.invoke_rpc('unknown', 'ask')").expect_err("an RPC of an unknown name");
    assert!(error.message.contains("Onyl") || error.detail.contains("Onyl"), "{error:?}");
    for id in ["many", "unknown"] {
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    drop(worker);
    app.done(&[]);
}

#[test]
fn a_step_is_moved_by_hand_from_each_place_that_it_may_be_in() {
    let app = App::new("abort_move");
    let worker = order(&app);
    let mut db = starts(&app, "p");
    // It waits for a timer.
    db.run("SELECT xdb.move_state('p', 'Nap-1', '[{\"stateId\": \"Nap\", \"stateInput\": 3}]', 'too long')");
    wait_until("the new step waits", 10, || views::waits(&mut db, "p").len() == 4);
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Nap-1"]);
    assert_eq!(views::timers(&mut db, "p"), 2);
    let reason: String =
        db.one("SELECT details ->> 'reason' FROM xdb.history WHERE process_id = 'p' AND event_type = 'StateAborted'");
    assert_eq!(reason, "too long");
    // Its call fails, and it waits for the next attempt.
    worker.misbehave(|_| error(500, "Broken", "not now"));
    db.run("SELECT xdb.skip_timer('p', 'Nap-2')");
    wait_until("it fails", 10, || views::fails_saying(&mut db, "p", &["not now"]));
    worker.heal();
    db.run("SELECT xdb.move_state('p', 'Nap-2', '[]')");
    assert_eq!(steps(&mut db, "p", "ABORTED"), ["Nap-1", "Nap-2"]);
    // It is paused: the call of the new step waits for the end of the pause.
    db.run("SELECT xdb.pause_process('p'); SELECT xdb.move_state('p', 'Mail-1', '[{\"stateId\": \"Last\"}]')");
    assert_eq!(worker.count(|call| call.executes("Last")), 0);
    db.run("SELECT xdb.resume_process('p')");
    worker.wait_for("the call of the new step", 10, |call| call.executes("Last"));
    is_sound(&mut db, "p");
    // A step that has ended or never was, and states that the type does not list.
    for (step, next) in [("Nap-1", "[]"), ("Nap-9", "[]"), ("Nap-3", r#"[{"stateId": "Nowhere"}]"#)] {
        db.refused("XD003", &format!("SELECT xdb.move_state('p', '{step}', '{next}')"));
    }
    for next in ["NULL", "'{}'", "'[{}]'", r#"'[{"stateId": "Nap", "stateInptu": 1}]'"#] {
        db.refused("XD009", &format!("SELECT xdb.move_state('p', 'Nap-3', {next})"));
    }
    db.run("SELECT xdb.stop_process('p')");
    db.refused("XD007", "SELECT xdb.move_state('p', 'Nap-3', '[]')");
    app.done(&[]);
}

#[test]
fn an_incident_ends_when_its_step_is_moved() {
    let app = App::new("abort_incident");
    let worker = app.worker(|call: &Call| match call.target() {
        "Only" => error(500, "Broken", "not now"),
        _ => force_complete(json!("moved")).into(),
    });
    let options =
        json!({"executeApiRetryPolicy": attempts(1), "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}});
    app.register("one", &Definition::starting_with("Only").step_with("Only", options).step("Other"));
    let mut db = app.db();
    db.start("p", "one").go();
    wait_until("there is an incident", 10, || db.count("xdb.incidents WHERE process_id = 'p'") == 1);
    db.run("SELECT xdb.move_state('p', 'Only-1', '[{\"stateId\": \"Other\"}]')");
    assert_eq!(db.count("xdb.incidents WHERE process_id = 'p'"), 0);
    assert_eq!(db.completes("p").result(), "moved");
    is_sound(&mut db, "p");
    drop(worker);
    app.done(&[]);
}
