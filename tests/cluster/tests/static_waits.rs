//! Waits that the options of a state say: no handler is asked, over HTTP, with functions and with pull workers.

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// A state that waits for a message of `q`, or an hour, and then completes with what it got.
fn waiting(more: Value) -> Value {
    let mut options = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "timerCommands": [{"commandId": "t", "delayInSeconds": 3600}],
        "localQueueCommands": [{"commandId": "m", "queueName": "q", "atLeast": 1, "atMost": 3}]}});
    options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    options
}

fn is_sound(db: &mut Db, id: &str) {
    assert_eq!(db.all::<String>(&format!("SELECT problem FROM xdb.check_process({})", literal(id))), [""; 0]);
    views::assert_history_is_whole(db, id);
}

fn events(db: &mut Db, id: &str) -> Vec<String> {
    db.all(&format!("SELECT event_type FROM xdb.history WHERE process_id = {} ORDER BY event_id", literal(id)))
}

#[test]
fn a_process_begins_with_a_wait_in_its_start_and_no_handler_is_asked() {
    let app = App::new("static_start");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => panic!("no handler is asked"),
        _ => graceful_complete(json!(call.messages("m"))),
    });
    app.register("mail", &Definition::starting_with("Wait").waiting_step_with("Wait", waiting(json!({}))));
    let mut db = app.db();
    db.start("p", "mail").go();
    assert_eq!(events(&mut db, "p"), ["ProcessStarted", "StateStarted", "WaitStarted"], "at its start");
    assert_eq!((views::timers(&mut db, "p"), views::waits(&mut db, "p").len()), (1, 2));
    db.publish("p", "q", json!(7));
    assert_eq!(db.completes("p").result(), &json!([7]));
    is_sound(&mut db, "p");
    drop(worker);
    app.done(&[]);
}

#[test]
fn a_wait_that_follows_an_answer_takes_the_messages_that_are_there() {
    let app = App::new("static_next");
    let _worker = app.worker(|call: &Call| match call.target() {
        "Go" => next("Wait", json!(null)),
        _ => graceful_complete(json!(call.messages("m"))),
    });
    let definition = Definition::starting_with("Go").step("Go").waiting_step_with("Wait", waiting(json!({})));
    app.register("mail", &definition);
    let mut db = app.db();
    app.pause();
    db.start("p", "mail").go();
    (1..=5).for_each(|n| db.publish("p", "q", json!(n)));
    app.resume();
    assert_eq!(db.completes("p").result(), &json!([1, 2, 3]));
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_delayed_wait_begins_by_a_timer_of_its_state() {
    let app = App::new("static_delayed");
    let _worker = app.worker(|call: &Call| graceful_complete(json!(call.messages("m"))));
    app.register("mail", &Definition::starting_with("Wait").waiting_step_with("Wait", waiting(json!({}))));
    let mut db = app.db();
    db.run("SELECT xdb.start_process('p', 'mail', start_at => now() + interval '3 seconds')");
    db.publish("p", "q", json!(1));
    wait_until("the message is received", 10, || views::messages(&mut db, "p") == 1);
    let kind = "SELECT kind FROM xdb.timers WHERE process_id = 'p'";
    assert_eq!(db.all::<String>(kind), ["STATE_BEGINS"]);
    is_sound(&mut db, "p");
    assert_eq!(db.completes("p").result(), &json!([1]));
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn a_wait_for_a_global_queue_that_begins_in_a_session_is_offered_what_is_there() {
    let app = App::new("static_global");
    let _worker = app.worker(|call: &Call| graceful_complete(json!(call.messages("g"))));
    let options = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "globalQueueCommands": [{"commandId": "g", "queueName": "jobs", "atLeast": 1, "atMost": 2}]}});
    let definition = Definition::starting_with("Take").waiting_step_with("Take", options);
    app.register("take", &definition.with("globalQueues", json!(["jobs"])));
    let mut db = app.db();
    db.run("SELECT xdb.publish_global('jobs', '1'); SELECT xdb.publish_global('jobs', '2')");
    wait_until("the engine has seen them", 10, || app.superuser().count("xdb.global_message WHERE fresh") == 0);
    db.start("p", "take").go();
    assert_eq!(db.completes("p").result(), &json!([1, 2]));
    is_sound(&mut db, "p");
    app.done(&[]);
}

#[test]
fn functions_and_pull_workers_have_static_waits_too() {
    let app = App::new("static_handlers");
    app.db().run(
        "CREATE FUNCTION public.done(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ \
         SELECT jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object( \
            'closeType', 'GRACEFUL_COMPLETE_PROCESS', \
            'closeInput', request #> '{commandResults,localQueueResults,0,messages,0,payload}'))) $$",
    );
    let states = json!({"Wait": waiting(json!({"executeFunction": "public.done"}))});
    let definition = json!({"startingState": "Wait", "states": states});
    app.superuser().run(&format!("SELECT xdb.register_process_type('f', NULL, {})", literal(&definition.to_string())));
    let mut db = app.db();
    db.start("p", "f").go();
    db.publish("p", "q", json!("by a function"));
    assert_eq!(db.completes("p").result(), "by a function");
    is_sound(&mut db, "p");

    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    app.register_with("pull", "g", &Definition::starting_with("Wait").waiting_step_with("Wait", waiting(json!({}))));
    db.start("q", "g").go();
    assert_eq!(db.one::<i64>("SELECT count(*) FROM xdb.claim_calls('pull', 1)"), 0, "nothing to do for a worker");
    db.publish("q", "q", json!(1));
    let token: String = db.one("SELECT token FROM xdb.claim_calls('pull', 1, wait => '10 s')");
    let answer = jsonb(&next("Wait", json!(null)).json());
    db.run(&format!("SELECT xdb.complete_call('{token}', {answer})"));
    assert_eq!(events(&mut db, "q")[6..], ["StateCompleted", "StateStarted", "WaitStarted"]);
    is_sound(&mut db, "q");
    db.run("SELECT xdb.stop_process('q')");
    app.done(&[]);
}

#[test]
fn options_that_say_twice_what_a_state_waits_for_are_refused() {
    let app = App::new("static_bad");
    let mut superuser = app.superuser();
    let cases = [
        (waiting(json!({"skipWaitUntil": true})), "states.A.commandRequest can't be given together with skipWaitUntil"),
        (
            json!({"commandRequest": {"waitingType": "AnyOfCompletion", "localQueueCommands": [{"queueName": "no"}]}}),
            "states.A.commandRequest names the unknown local queue \"no\"",
        ),
        (
            json!({"commandRequest": {"waitingType": "AnyOfCompletion", "timers": []}}),
            "states.A.commandRequest.waitingType AnyOfCompletion needs at least one command",
        ),
    ];
    for (options, why) in cases {
        let definition = json!({"states": {"A": options}, "localQueues": ["q"]});
        let sql = format!("SELECT xdb.register_process_type('bad', NULL, {})", literal(&definition.to_string()));
        let error = superuser.try_run(&sql).unwrap_err();
        assert!(error.message.contains(why), "{error:?} is not {why}");
        assert_eq!(error.code, "XD008");
    }
    let _worker = app.worker(|_: &Call| no_command());
    app.register("good", &Definition::starting_with("A").waiting_step("A"));
    let mut db = app.db();
    let odd = json!({"commandRequest": {"waitingType": "AnyOfCompletion",
        "timerCommands": [{"cron": "@daily", "timezone": "Mars"}]}});
    for (options, why) in [
        (waiting(json!({"skipWaitUntil": true})), "commandRequest can't be given together with skipWaitUntil"),
        (odd, "commandRequest.timerCommands[0].timezone is unknown: \"Mars\""),
    ] {
        let options = literal(&json!({"startingStateConfig": options}).to_string());
        let error = db.refused("XD009", &format!("SELECT xdb.start_process('p', 'good', options => {options})"));
        assert!(error.message.contains("options.startingStateConfig: "), "{error:?}");
        assert!(error.message.contains(why), "{error:?} is not {why}");
    }
    app.done(&[]);
}
