//! Processes in the simulator, driven by the same commands as a test of a worker.

mod common;

use common::{Sim, done, go, wait};
use serde_json::{Value, json};

/// A definition with one state that is executed at once.
fn one_state(options: Value) -> Value {
    let mut options = options;
    options["skipWaitUntil"] = json!(true);
    json!({"startingState": "A", "states": {"A": options, "B": {"skipWaitUntil": true}}})
}

fn one_row(options: Value) -> Value {
    let mut definition = one_state(options);
    definition["globalAttributes"] = json!([{"table": "t", "primaryKey": "id", "attributes": {"n": "n"}}]);
    definition
}

/// A definition whose first state waits and is then executed.
fn waiting() -> Value {
    json!({"startingState": "W", "states": {"W": null}, "globalQueues": ["g"]})
}

fn start_with_row(sim: &mut Sim, process_id: &str, more: Value) -> Value {
    let mut arguments = json!({"process_id": process_id, "process_type": "P", "global_attribute_pk": "k",
        "global_attributes": {"n": 1}});
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    sim.ask("start", arguments)
}

#[test]
fn retries_back_off_and_recovery_follows() {
    let mut sim = Sim::of(one_state(json!({
        "executeApiRetryPolicy": {"maximumAttempts": 4},
        "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B"},
    })));
    sim.start("p");
    let mut times = Vec::new();
    for attempt in 1..=4 {
        times.push(sim.seconds());
        let call = sim.call();
        assert_eq!((&call["attempt"], &call["body"]["context"]["attempt"]), (&json!(attempt), &json!(attempt)));
        assert_eq!(call["body"]["context"]["firstAttemptTimestamp"], json!(1_798_761_600));
        assert_eq!(sim.fail(&call, "Broken")["failure"]["errorType"], "Broken");
        assert!(attempt == 4 || sim.calls().is_empty());
        sim.next();
    }
    assert_eq!(times, [0.0, 1.0, 3.0, 7.0]);
    let open = &sim.describe("p")["threads"][0];
    assert_eq!((&open["stateExecutionId"], &open["status"]), (&json!("B-1"), &json!("EXECUTE")));
    assert_eq!(sim.describe("p")["lastFailure"]["stateExecutionId"], "A-1");
    sim.is_sound();
}

#[test]
fn a_recovery_state_gets_the_failure() {
    let mut sim = Sim::of(one_state(json!({
        "executeApiRetryPolicy": {"maximumAttempts": 1},
        "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B"},
    })));
    sim.start("p");
    let call = sim.call();
    sim.fail(&call, "Broken");
    let context = sim.call()["body"]["context"].take();
    assert_eq!(context["recoverFromStateExecutionId"], "A-1");
    assert_eq!(context["recoverFromError"], json!({"status": 500, "errorType": "Broken", "detail": "it did not work"}));
}

#[test]
fn spent_retries_fail_the_process() {
    let mut sim = Sim::of(one_state(json!({"executeApiRetryPolicy": {"maximumAttempts": 1}})));
    sim.start("p");
    let call = sim.call();
    sim.fail(&call, "Broken");
    assert_eq!(sim.status("p"), "FAILED");
    assert_eq!(sim.describe("p")["reason"], "step A-1 failed at attempt 1: it did not work");
    sim.is_sound();
}

#[test]
fn many_failed_attempts_are_folded_and_still_sound() {
    let mut sim = Sim::of(one_state(json!({})));
    sim.start("p");
    for _ in 0..15 {
        let call = sim.call();
        sim.fail(&call, "Broken");
        sim.is_sound();
        sim.next();
    }
    sim.answered(done(json!(1)));
    assert!(sim.events("p").contains(&"AttemptsFolded".to_owned()));
    sim.is_sound();
}

#[test]
fn a_failure_may_control_further_attempts() {
    let mut sim = Sim::of(one_state(json!({"executeApiRetryPolicy": {"maximumAttempts": 2}})));
    sim.start("p");
    let call = sim.call();
    assert_eq!(call["body"]["context"]["timeoutSeconds"], 10);
    sim.ask("answer", json!({"call": call["call"], "status": 503, "headers": {"retry-after": "7"}}));
    assert_eq!((sim.next(), sim.events("p").pop().unwrap().as_str()), (7.0, "CallRepeated"));
    let again = sim.call();
    assert_eq!((&again["attempt"], &again["headers"]), (&json!(1), &call["headers"]));
    let body = json!({"errorType": "Busy", "retryAfterSeconds": 30}).to_string();
    sim.ask("answer", json!({"call": again["call"], "status": 500, "body": body}));
    assert_eq!(sim.next(), 37.0);
    let last = sim.call();
    assert_eq!(last["attempt"], 2);
    sim.start("q");
    let call = sim.call();
    sim.ask("answer", json!({"call": call["call"], "status": 500, "body": "{\"final\": true}"}));
    assert_eq!(sim.status("q"), "FAILED");
    sim.is_sound();
}

#[test]
fn retry_now_does_not_wait_for_the_clock() {
    let mut sim = Sim::of(one_state(json!({})));
    sim.start("p");
    let call = sim.call();
    sim.fail(&call, "Broken");
    assert_eq!(sim.ask("retry_now", json!({"process_id": "p", "state_execution_id": "A-1"})), json!(1));
    assert_eq!(sim.call()["attempt"], 2);
    assert_eq!(sim.refused("retry_now", json!({"process_id": "p", "state_execution_id": "C-1"})).0, "XD003");
    sim.is_sound();
}

#[test]
fn a_call_that_is_not_answered_times_out() {
    let mut sim = Sim::of(one_state(json!({"executeApiTimeoutSeconds": 2.5})));
    sim.start("p");
    let call = sim.call();
    assert_eq!((sim.next(), call["timeout_seconds"].as_f64()), (2.5, Some(2.5)));
    assert_eq!(sim.describe("p")["lastFailure"]["failure"]["errorType"], "Timeout");
    assert_eq!(sim.answer(&call, done(json!(1)))["applied"], false);
    assert_eq!(sim.next(), 3.5);
    assert_eq!(sim.call()["attempt"], 2);
    sim.is_sound();
}

#[test]
fn a_process_has_its_time() {
    let mut definition = waiting();
    definition["timeoutSeconds"] = json!(60);
    let mut sim = Sim::of(definition);
    sim.ask("start", json!({"process_id": "p", "process_type": "P", "start_at": "2027-01-01T00:01:00Z"}));
    sim.ask("start", json!({"process_id": "q", "process_type": "P", "timeout": 0}));
    assert_eq!(sim.answered(wait(json!({"timerCommands": [{"delayInSeconds": 1e6}]})))["applied"], true);
    assert_eq!(sim.next(), 60.0);
    assert_eq!(sim.call()["process_id"], "p");
    assert_eq!(sim.next(), 70.0, "the call's timeout");
    assert_eq!(sim.advance(50.0)["reached"], false, "the next attempt");
    while sim.status("p") == "RUNNING" {
        sim.calls();
        sim.next();
    }
    assert_eq!(sim.seconds(), 120.0);
    assert_eq!((sim.status("p").as_str(), sim.status("q").as_str()), ("TIMEOUT", "RUNNING"));
    sim.is_sound();
}

#[test]
fn timers_fire_at_their_time_and_not_before() {
    let mut sim = Sim::of(waiting());
    sim.start("p");
    sim.answered(wait(json!({"timerCommands": [{"commandId": "t", "delayInSeconds": 5}]})));
    assert_eq!(sim.advance(4.999_999)["due"], 0);
    assert!(sim.calls().is_empty());
    let advanced = sim.advance(86_400.0);
    assert_eq!((sim.seconds(), &advanced["reached"], &advanced["due"]), (5.0, &json!(false), &json!(1)));
    let results = sim.call()["body"]["commandResults"].take();
    assert_eq!(results["timerResults"], json!([{"commandId": "t", "status": "COMPLETED_COMMAND"}]));
}

#[test]
fn a_cron_timer_fires_at_its_ticks() {
    let mut sim = Sim::of(waiting());
    sim.start("p");
    sim.answered(wait(json!({"timerCommands": [{"cron": "30 8 * * *", "timezone": "Europe/Berlin"}]})));
    assert_eq!(sim.next(), 7.5 * 3600.0, "the clock begins at midnight in UTC");
    let results = sim.call()["body"]["commandResults"].take();
    let fired = json!([{"commandId": null, "status": "COMPLETED_COMMAND", "fireAt": "2027-01-01T07:30:00.000000Z"}]);
    assert_eq!(results["timerResults"], fired);
    sim.start("q");
    let call = sim.calls().into_iter().find(|call| call["process_id"] == "q").unwrap();
    sim.answer(&call, wait(json!({"timerCommands": [{"cron": "@daily", "timezone": "Europe/Nowhere"}]})));
    let failure = &sim.describe("q")["lastFailure"]["failure"];
    assert_eq!(failure["detail"], "a timer's timezone is unknown: \"Europe/Nowhere\"");
    sim.is_sound();
}

#[test]
fn a_conditional_close_checks_its_queues() {
    let mut sim = Sim::of(one_state(json!({})));
    let close = json!({"stateDecision": {"nextStates": [{"stateId": "B"}],
        "conditionalClose": {"closeType": "FORCE_COMPLETE_PROCESS", "whenLocalQueuesEmpty": ["q"], "closeInput": 1}}});
    for (process_id, message, status) in [("p", true, "RUNNING"), ("q", false, "COMPLETED")] {
        sim.start(process_id);
        let call = sim.call();
        if message {
            sim.ask("publish", json!({"process_id": process_id, "queue_name": "q", "message": "late"}));
        }
        sim.answer(&call, close.clone());
        assert_eq!(sim.status(process_id), status);
        sim.ask("calls", json!({}));
    }
    sim.is_sound();
}

#[test]
fn messages_are_consumed_in_order_and_ids_count_once() {
    let mut sim = Sim::of(waiting());
    sim.start("p");
    for (message, id) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
        sim.ask("publish", json!({"process_id": "p", "queue_name": "q", "message": message, "message_id": id}));
    }
    sim.answered(wait(json!({"localQueueCommands": [{"queueName": "q", "atLeast": 2, "atMost": 9}]})));
    let results = sim.call()["body"]["commandResults"]["localQueueResults"][0]["messages"].take();
    let payloads: Vec<_> = results.as_array().unwrap().iter().map(|message| message["payload"].clone()).collect();
    assert_eq!(payloads, [json!(1), json!(2), json!(4)]);
    assert_eq!(sim.refused("publish", json!({"process_id": "nobody", "queue_name": "q"})).0, "XD001");
}

#[test]
fn process_ids_are_used_again_according_to_the_policy() {
    let mut sim = Sim::of(one_state(json!({})));
    let first = sim.start("p");
    let start = |policy: &str| json!({"process_id": "p", "process_type": "P", "id_reuse_policy": policy});
    assert_eq!(sim.refused("start", start("ALLOW_IF_NO_RUNNING")).0, "XD006");
    assert_eq!(sim.refused("start", start("SOMETIMES")).0, "XD009");
    let second = sim.ask("start", start("TERMINATE_IF_RUNNING"));
    assert_eq!(sim.ask("describe", json!({"process_id": "p", "execution_id": first}))["status"], "TERMINATED");
    assert_eq!(sim.describe("p")["processExecutionId"], second);
    sim.answered(done(json!(1)));
    assert_eq!(sim.refused("start", start("ALLOW_IF_PREVIOUS_EXIT_ABNORMALLY")).0, "XD006");
    let mut again = start("ALLOW_IF_NO_RUNNING");
    again["options"] = json!({"requestId": "r"});
    let third = sim.ask("start", again.clone());
    assert_eq!(sim.ask("start", again), third, "the same request");
    assert_eq!(sim.refused("describe", json!({"process_id": "q", "execution_id": third})).0, "XD001");
    assert_eq!(sim.refused("start", json!({"process_id": "p", "process_type": "Q"})).0, "XD002");
    sim.is_sound();
}

#[test]
fn a_start_is_all_or_nothing() {
    let mut sim = Sim::of(one_row(json!({})));
    start_with_row(&mut sim, "p", json!({}));
    let again = json!({"process_id": "p", "process_type": "P", "global_attribute_pk": "k", "global_attributes": {"n": 2},
        "id_reuse_policy": "TERMINATE_IF_RUNNING", "options": {"globalAttributeConflictMode": "RETURN_ERROR_ON_CONFLICT"}});
    assert_eq!(sim.refused("start", again), ("23505".to_owned(), "table t already has a row with id = k".to_owned()));
    assert_eq!(sim.status("p"), "RUNNING");
    let ignore = json!({"options": {"globalAttributeConflictMode": "IGNORE_CONFLICT"}, "global_attributes": {"n": 3}});
    start_with_row(&mut sim, "q", ignore);
    assert_eq!(sim.ask("rows", json!({"table": "public.t"})), json!([{"id": "k", "n": 1}]));
    start_with_row(&mut sim, "r", json!({"global_attributes": {"n": 4}}));
    assert_eq!(sim.ask("rows", json!({"table": "t"})), json!([{"id": "k", "n": 4}]));
    assert_eq!(sim.refused("start", json!({"process_id": "s", "process_type": "P"})).0, "XD009");
}

#[test]
fn a_deleted_row_is_refused_and_the_worker_gets_the_error() {
    let mut sim = Sim::of(one_row(json!({})));
    start_with_row(&mut sim, "p", json!({}));
    let call = sim.call();
    assert_eq!(call["body"]["loadedGlobalAttributes"], json!({"n": 1}));
    sim.ask("rows", json!({"table": "t", "key": {"id": "k"}, "delete": true}));
    let mut answer = done(json!(1));
    answer["writeToGlobalAttributes"] = json!({"n": 2});
    let outcome = sim.answer(&call, answer);
    assert_eq!(outcome["failure"]["detail"], "table t has no row with id = k (02000)");
    sim.next();
    let call = sim.call();
    assert_eq!(call["body"]["appDatabaseError"]["sqlState"], "02000");
    assert_eq!(call["body"]["loadedGlobalAttributes"], json!({"n": null}));
    assert!(call["headers"]["Idempotency-Key"].as_str().unwrap().ends_with("/A-1/execute/1"));
    sim.is_sound();
}

#[test]
fn a_process_gets_its_locks_before_its_first_call_and_has_them_until_it_closes() {
    let mut sim = Sim::of(one_state(json!({})));
    let start = |sim: &mut Sim, process_id: &str, locks: Value, more: Value| {
        let mut arguments = json!({"process_id": process_id, "process_type": "P", "options": {"locks": locks}});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sim.ask("start", arguments)
    };
    let share = json!({"name": "system", "mode": "SHARE"});
    start(&mut sim, "late", json!(["a"]), json!({"start_at": "2027-01-01T00:01:00Z"}));
    start(&mut sim, "p", json!(["a", share]), json!({}));
    start(&mut sim, "q", json!(["a", share]), json!({}));
    start(&mut sim, "r", json!([share]), json!({}));
    start(&mut sim, "maintenance", json!(["system"]), json!({}));
    start(&mut sim, "s", json!([share]), json!({}));
    let ids =
        |calls: &[Value]| calls.iter().map(|call| call["process_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let calls = sim.calls();
    assert_eq!(ids(&calls), ["p", "r"]);
    let waits_for = json!([{"name": "a", "mode": "EXCLUSIVE"}, {"name": "system", "mode": "SHARE"}]);
    assert_eq!(sim.describe("q")["waitingForProcessLocks"], waits_for);
    assert_eq!(sim.describe("p")["waitingForProcessLocks"], json!(null));
    let refused = sim.refused("rpc", json!({"process_id": "q", "rpc_name": "ask"}));
    assert_eq!(refused, ("XD024".to_owned(), "Process \"p\" holds the lock \"a\".".to_owned()));
    // One of them ends, and the other still holds the lock that both share.
    sim.answer(&calls[0], done(json!(1)));
    let next = sim.calls();
    assert_eq!(ids(&next), ["q"], "it asked before the maintenance");
    sim.answer(&calls[1], done(json!(1)));
    sim.answer(&next[0], done(json!(1)));
    assert_eq!(ids(&sim.calls()), ["maintenance"]);
    sim.ask("stop", json!({"process_id": "maintenance"}));
    assert_eq!(ids(&sim.calls()), ["s"]);
    start(&mut sim, "t", json!(["a"]), json!({}));
    assert_eq!(ids(&sim.calls()), ["t"], "the start for later does not wait yet");
    ["s", "t"].iter().for_each(|id| drop(sim.ask("stop", json!({"process_id": id}))));
    assert_eq!(sim.next(), 60.0);
    assert_eq!(ids(&sim.calls()), ["late"]);
    let refused = sim.refused("start", json!({"process_type": "P", "options": {"locks": ["a", "a"]}}));
    assert_eq!(refused, ("XD009".to_owned(), "invalid value for options: locks has the lock \"a\" twice".to_owned()));
    sim.is_sound();
}

#[test]
fn a_locked_attribute_goes_to_one_call_at_a_time() {
    let mut sim = Sim::of(one_row(json!({"loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}})));
    start_with_row(&mut sim, "p", json!({}));
    start_with_row(&mut sim, "q", json!({"global_attributes": {}}));
    let mut add = done(json!(1));
    add["writeToGlobalAttributes"] = json!({"n": 2});
    let first = sim.call();
    assert_eq!(sim.advance(0.0)["due"], 0);
    sim.answer(&first, add);
    let second = sim.call();
    assert_eq!((&second["process_id"], &second["body"]["loadedGlobalAttributes"]["n"]), (&json!("q"), &json!(2)));
    // Plain SQL writes the row.
    sim.ask("rows", json!({"table": "t", "key": {"id": "k"}, "set": {"n": 7}}));
    sim.answer(&second, done(json!(1)));
    let again = sim.call();
    assert_eq!((&again["attempt"], &again["body"]["loadedGlobalAttributes"]["n"]), (&json!(1), &json!(7)));
    assert_ne!(again["headers"]["Idempotency-Key"], second["headers"]["Idempotency-Key"]);
    assert!(sim.events("q").contains(&"CallRepeated".to_owned()));
    // Another column is written, and the value changes and changes back.
    for set in [json!({"beat": 1}), json!({"n": 8}), json!({"n": 7})] {
        sim.ask("rows", json!({"table": "t", "key": {"id": "k"}, "set": set}));
    }
    sim.answer(&again, done(json!(1)));
    assert_eq!(sim.events("q").iter().filter(|event| *event == "CallRepeated").count(), 1);
    assert!(sim.events("q").contains(&"ProcessClosed".to_owned()));
    sim.is_sound();
}

#[test]
fn locks_on_local_attributes_are_of_a_process() {
    let exclusive = json!({"policy": "PARTIAL", "names": ["a"], "lockType": "EXCLUSIVE_LOCK"});
    let mut definition = one_state(json!({"loadLocalAttributes": exclusive}));
    definition["rpcs"] =
        json!({"all": {"loadLocalAttributes": {"policy": "ALL", "lockType": "SHARE_LOCK"}}, "free": null});
    let mut sim = Sim::of(definition);
    sim.start("p");
    sim.start("q");
    let calls = sim.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(sim.refused("rpc", json!({"process_id": "p", "rpc_name": "all"})).0, "XD020");
    let free = sim.rpc(json!({"process_id": "p", "rpc_name": "free"}));
    sim.answer(&free, json!({"output": 1, "writeToLocalAttributes": {"b": 1}}));
    assert_eq!(sim.answer(&calls[0], done(json!(1)))["applied"], true);
    sim.ask("set_local_attributes", json!({"process_id": "q", "attributes": {"a": 1}}));
    sim.answer(&calls[1], done(json!(1)));
    assert_eq!(sim.call()["body"]["loadedLocalAttributes"], json!({"a": 1}));
    sim.is_sound();
}

fn global(key: Value, count: u32) -> Value {
    wait(json!({"globalQueueCommands": [{"queueName": "g", "key": key, "count": count}]}))
}

#[test]
fn global_queues_serve_in_order_of_waiting() {
    let mut sim = Sim::of(waiting());
    for (process_id, key, count) in [("many", json!(null), 3), ("eur", json!("EUR"), 1), ("any", json!(null), 1)] {
        sim.start(process_id);
        sim.answered(global(key, count));
    }
    let publish = |sim: &mut Sim, message: u32, key: &str| {
        sim.ask("publish_global", json!({"queue_name": "g", "message": message, "key": key}));
    };
    publish(&mut sim, 1, "USD");
    assert_eq!(sim.call()["process_id"], "any", "a wait for three messages gets nothing of one");
    publish(&mut sim, 2, "EUR");
    let call = sim.call();
    assert_eq!(call["process_id"], "eur");
    let taken = &call["body"]["commandResults"]["globalQueueResults"][0];
    assert_eq!(taken["messages"], json!([{"messageId": null, "key": "EUR", "payload": 2}]));
    for message in 3..=5 {
        publish(&mut sim, message, "GBP");
    }
    assert_eq!(sim.call()["process_id"], "many");
    sim.is_sound();
}

#[test]
fn global_messages_go_back_and_their_time_stands_still() {
    let mut sim = Sim::of(waiting());
    sim.ask("publish_global", json!({"queue_name": "g", "message": 1, "message_id": "m", "ttl": 10}));
    sim.ask("publish_global", json!({"queue_name": "g", "message": 2, "message_id": "m"}));
    sim.start("p");
    sim.answered(global(json!(null), 1));
    sim.advance(60.0);
    sim.ask("stop", json!({"process_id": "p"}));
    sim.start("q");
    sim.answered(global(json!(null), 1));
    let call = sim.call();
    assert_eq!(call["body"]["commandResults"]["globalQueueResults"][0]["messages"][0]["payload"], 1);
    sim.answer(&call, done(json!(1)));
    sim.start("r");
    sim.answered(global(json!(null), 1));
    sim.advance(60.0);
    assert!(sim.calls().is_empty(), "it is used up, and the second had its id");
    sim.ask("publish_global", json!({"queue_name": "g", "message": 3, "ttl": 5}));
    assert_eq!(sim.call()["process_id"], "r");
    sim.is_sound();
}

#[test]
fn an_expired_message_is_not_delivered() {
    let mut sim = Sim::of(waiting());
    sim.ask("publish_global", json!({"queue_name": "g", "message": 1, "ttl": 10}));
    sim.advance(10.0);
    sim.start("p");
    sim.answered(global(json!(null), 1));
    assert!(sim.calls().is_empty());
}

#[test]
fn a_message_without_time_to_live_is_taken_at_once_or_never() {
    let mut sim = Sim::of(waiting());
    sim.ask("publish_global", json!({"queue_name": "g", "message": 1, "ttl": 0}));
    sim.start("p");
    sim.answered(global(json!(null), 1));
    assert!(sim.calls().is_empty(), "no step waited for the message");
    sim.ask("publish_global", json!({"queue_name": "g", "message": 2, "ttl": 0}));
    let call = sim.call();
    assert_eq!(call["body"]["commandResults"]["globalQueueResults"][0]["messages"][0]["payload"], 2);
    // What goes back is offered again, once.
    sim.start("q");
    sim.answered(global(json!(null), 1));
    sim.advance(60.0);
    sim.ask("stop", json!({"process_id": "p"}));
    assert_eq!(sim.call()["process_id"], "q");
    sim.is_sound();
}

#[test]
fn changes_are_published_in_their_order() {
    let mut definition = one_state(json!({}));
    definition["changes"] = json!("changed");
    let mut sim = Sim::of(definition);
    let mut taker = waiting();
    taker["globalQueues"] = json!(["changed"]);
    sim.ask("register", json!({"process_type": "Taker", "definition": taker}));
    sim.start("p");
    sim.answered(done(json!(1)));
    sim.ask("start", json!({"process_id": "t", "process_type": "Taker"}));
    let wait = json!({"globalQueueCommands": [{"queueName": "changed", "atLeast": 1, "atMost": 10}]});
    sim.answered(self::wait(wait));
    let results = sim.call()["body"]["commandResults"]["globalQueueResults"][0]["messages"].take();
    let taken = results.as_array().unwrap().iter();
    let taken = taken.map(|m| {
        (
            m["key"].as_str().unwrap(),
            m["payload"]["eventId"].as_u64().unwrap(),
            m["payload"]["eventType"].as_str().unwrap(),
        )
    });
    let events = [(1, "ProcessStarted"), (2, "StateStarted"), (4, "StateCompleted"), (6, "ProcessClosed")];
    assert_eq!(taken.collect::<Vec<_>>(), events.map(|(number, name)| ("p", number, name)));
}

#[test]
fn rpcs_write_and_their_errors_are_the_callers() {
    let mut definition = one_row(json!({}));
    definition["rpcs"] = json!({"add": null});
    let mut sim = Sim::of(definition);
    start_with_row(&mut sim, "p", json!({}));
    let rpc = |name: &str| json!({"process_id": "p", "rpc_name": name, "input": 1});
    assert_eq!(sim.refused("rpc", rpc("sub")).0, "XD009");
    let call = sim.rpc(rpc("add"));
    assert_eq!(sim.answer(&call, json!({"output": 2, "writeToGlobalAttributes": {"n": 2}}))["output"], 2);
    let call = sim.rpc(rpc("add"));
    let answer = |call: &Value, body: Value| json!({"call": call["call"], "status": 200, "body": body.to_string()});
    let wrong = answer(&call, json!({"writeToGlobalAttributes": {"m": 2}}));
    assert_eq!(sim.refused("answer", wrong), ("XD010".to_owned(), "Unknown global attribute \"m\".".to_owned()));
    sim.ask("rows", json!({"table": "t", "key": {"id": "k"}, "delete": true}));
    let call = sim.rpc(rpc("add"));
    assert_eq!(sim.refused("answer", answer(&call, json!({"writeToGlobalAttributes": {"n": 3}}))).0, "02000");
    sim.ask("stop", json!({"process_id": "p", "reason": "enough"}));
    let call = sim.rpc(rpc("add"));
    assert_eq!(sim.answer(&call, json!({"output": "still there"}))["output"], "still there");
    let call = sim.rpc(rpc("add"));
    let publish = json!({"publishToLocalQueue": [{"queueName": "q"}]});
    assert_eq!(
        sim.refused("answer", answer(&call, publish)),
        ("XD007".to_owned(), "Its status is TERMINATED.".to_owned())
    );
    let call = sim.rpc(rpc("add"));
    sim.advance(11.0);
    let (sqlstate, detail) = sim.refused("answer", answer(&call, json!({"output": 1})));
    assert_eq!((sqlstate.as_str(), detail.starts_with("Timed out after 10 s")), ("XD010", true));
    assert_eq!(sim.refused("answer", json!({"call": 99, "status": 200})).0, "XD009");
    sim.is_sound();
}

#[test]
fn the_error_of_a_refused_child_names_its_place() {
    let mut sim = Sim::of(one_state(json!({})));
    sim.start("p");
    let children = json!([{"processType": "P"}, {"processType": "nowhere"}]);
    let mut answer = done(json!(null));
    answer["startProcesses"] = children;
    sim.answered(answer);
    sim.next();
    let error = sim.call()["body"]["appDatabaseError"].take();
    assert_eq!(error["sqlState"], "XD002");
    assert_eq!(error["message"], "startProcesses[1]: unknown process type \"nowhere\"");
    sim.is_sound();
}

#[test]
fn odd_answers_cause_warnings_or_are_refused() {
    let mut odd = done(json!(1));
    odd["wirteToLocalAttributes"] = json!({"a": 1});
    let mut sim = Sim::of(one_state(json!({})));
    sim.start("p");
    sim.answered(odd.clone());
    let history = sim.ask("history", json!({"process_id": "p"}));
    assert!(history.to_string().contains("unknown key wirteToLocalAttributes"));
    let mut strict = one_state(json!({}));
    strict["strictAnswers"] = json!(true);
    sim.ask("register", json!({"process_type": "P", "definition": strict}));
    sim.start("q");
    assert_eq!(sim.answered(odd)["failure"]["detail"], "unknown key wirteToLocalAttributes");
    sim.next();
    let outcome = sim.answered(go("C"));
    assert_eq!(
        (&outcome["failure"]["errorType"], &outcome["failure"]["detail"]),
        (&json!("NotRegistered"), &json!("unknown state \"C\": known are A, B"))
    );
    sim.next();
    let call = sim.call();
    let outcome = sim.ask("answer", json!({"call": call["call"], "status": 200, "body": "<html>"}));
    assert_eq!(outcome["failure"]["errorType"], "InvalidAnswer");
    sim.is_sound();
}

#[test]
fn a_state_that_is_no_longer_listed_is_not_called_until_it_is() {
    let mut sim = Sim::of(one_state(json!({})));
    sim.start("p");
    let other = json!({"states": {"B": {"skipWaitUntil": true}}});
    sim.ask("register", json!({"process_type": "P", "definition": other}));
    assert!(sim.calls().is_empty());
    let failure = &sim.describe("p")["lastFailure"]["failure"];
    assert_eq!(failure["errorType"], "NotRegistered");
    assert_eq!(failure["detail"], "unknown state \"A\": the process type does not list it");
    assert!(sim.calls().is_empty());
    sim.ask("register", json!({"process_type": "P", "definition": one_state(json!({}))}));
    assert_eq!(sim.answered(done(json!(1)))["applied"], true);
    assert_eq!(sim.status("p"), "COMPLETED");
    sim.is_sound();
}

#[test]
fn payloads_pass_as_they_are_and_replies_are_lines() {
    let mut sim = Sim::of(one_state(json!({})));
    let line = r#"{"start": {"process_id": "p", "process_type": "P", "input": {"exact": 1.100000000000000000001, "twice": [1,  2]}}}"#;
    sim.simulator.line(line);
    let body = sim.simulator.line(r#"{"calls": {}}"#);
    assert!(body.contains(r#"{\"exact\": 1.100000000000000000001, \"twice\": [1,  2]}"#), "{body}");
    let pretty = "{\"stateDecision\": {\"threadCloseDecision\": {\"closeType\": \"DEAD_END\",\n\"closeInput\": {\r\n\"a\": 1}}}}";
    sim.ask("answer", json!({"call": 1, "status": 200, "body": pretty}));
    let line = sim.simulator.line(r#"{"describe": {"process_id": "p"}}"#);
    assert!(line.contains("\"a\": 1") && !line.contains(['\n', '\r']), "{line}");
}

#[test]
fn calls_of_functions_are_kept_and_handlers_are_refused() {
    let mut definition = one_state(json!({}));
    definition["functions"] = json!({"f": "app.f"});
    let mut sim = Sim::of(definition.clone());
    let options = json!({"callFunctions": [{"function": "f", "argument": "began"}]});
    sim.ask("start", json!({"process_id": "p", "process_type": "P", "options": options}));
    let mut answer = done(json!(1));
    answer["callFunctions"] = json!([{"function": "f", "argument": {"n": 1}}, {"function": "f"}]);
    sim.answered(answer);
    let called = |argument: Value| json!({"process_id": "p", "function": "f", "argument": argument});
    let expected = json!([called(json!("began")), called(json!({"n": 1})), called(json!(null))]);
    assert_eq!(sim.ask("called", json!({})), expected);
    assert_eq!(sim.ask("called", json!({})), json!([]));
    // A refused answer calls no function.
    sim.start("q");
    let mut answer = done(json!(1));
    answer["callFunctions"] = json!([{"function": "f"}, {"function": "g"}]);
    let failure = sim.answered(answer);
    assert_eq!(failure["failure"]["detail"], "unknown function \"g\"");
    assert_eq!(sim.ask("called", json!({})), json!([]));
    sim.is_sound();
    let handlers = one_state(json!({"executeFunction": "app.f"}));
    let (sqlstate, what) = sim.refused("register", json!({"process_type": "H", "definition": handlers}));
    assert_eq!(sqlstate, "XD008");
    assert!(what.contains("has no database"), "{what}");
}

#[test]
fn a_paused_process_makes_no_call_and_accepts_everything_else() {
    let mut sim = Sim::of(waiting());
    sim.start("p");
    sim.answered(wait(json!({"localQueueCommands": [{"queueName": "q"}], "timerCommands": [{"delayInSeconds": 600}]})));
    sim.ask("pause_process", json!({"process_id": "p", "until": "2027-01-01T01:00:00Z", "reason": "an audit"}));
    let pause = json!({"mode": "WAIT", "until": "2027-01-01T01:00:00+00:00", "reason": "an audit"});
    assert_eq!(sim.describe("p")["pause"], pause);
    sim.ask("publish", json!({"process_id": "p", "queue_name": "q", "message": 1}));
    assert_eq!(sim.describe("p")["threads"][0]["status"], "EXECUTE", "the message is taken");
    assert_eq!(sim.calls(), Vec::<Value>::new());
    // No command could end the pause while an RPC waits.
    let rpc = json!({"process_id": "p", "rpc_name": "r"});
    let (state, detail) = sim.refused("rpc", rpc.clone());
    assert_eq!(
        (state.as_str(), detail.as_str()),
        ("XD023", "It did not end in time until 2027-01-01T01:00:00.000000Z: an audit")
    );
    sim.ask("pause_process", json!({"process_id": "p", "mode": "REJECT", "until": "2027-01-01T02:00:00Z"}));
    assert_eq!(sim.refused("rpc", rpc).0, "XD023");
    let message = json!({"process_id": "p", "queue_name": "q", "message": 1});
    let refused = ("XD023".to_owned(), "It refuses requests until 2027-01-01T02:00:00.000000Z.".to_owned());
    assert_eq!(sim.refused("publish", message), refused);
    assert_eq!((sim.next(), sim.describe("p")["pause"].take()), (7200.0, Value::Null));
    sim.answered(done(json!("done")));
    assert_eq!(sim.status("p"), "COMPLETED");
    let pauses: Vec<_> =
        sim.events("p").into_iter().filter(|event| event.contains("use") || event.contains("Res")).collect();
    assert_eq!(pauses, ["ProcessPaused", "ProcessPaused", "ProcessResumed", "ResultGiven"]);
    assert_eq!(sim.refused("pause_process", json!({"process_id": "p"})).0, "XD007");
    sim.is_sound();
}

#[test]
fn a_paused_type_parks_calls_or_refuses_starts() {
    let mut sim = Sim::of(one_state(json!({})));
    sim.ask("pause_process_type", json!({"process_type": "P"}));
    sim.start("p");
    assert_eq!(sim.calls(), Vec::<Value>::new());
    assert_eq!(sim.describe("p")["typePause"], json!({"mode": "WAIT"}));
    sim.ask("pause_process_type", json!({"process_type": "P", "mode": "REJECT", "until": "2027-01-01T01:00:00Z"}));
    assert_eq!(sim.refused("start", json!({"process_id": "q", "process_type": "P"})).0, "XD023");
    let merged = json!({"process_type": "P", "options": {"correlationKey": "k"}});
    assert_eq!(sim.refused("start", merged).0, "XD023");
    assert_eq!(sim.refused("rpc", json!({"process_id": "p", "rpc_name": "r"})).0, "XD023");
    assert_eq!((sim.next(), sim.calls().len()), (3600.0, 1));
    sim.start("q");
    sim.ask("pause_process_type", json!({"process_type": "P"}));
    assert_eq!(sim.calls(), Vec::<Value>::new());
    sim.ask("resume_process_type", json!({"process_type": "P"}));
    sim.answered(done(json!(null)));
    assert_eq!(sim.status("q"), "COMPLETED");
    assert_eq!(sim.refused("pause_process_type", json!({"process_type": "Q"})).0, "XD002");
    let past = json!({"process_type": "P", "until": "2026-01-01T00:00:00Z"});
    assert_eq!(sim.refused("pause_process_type", past).0, "XD009");
    sim.is_sound();
}

#[test]
fn each_pause_of_a_process_and_its_type_counts() {
    let mut sim = Sim::of(one_state(json!({})));
    sim.start("p");
    let (rpc, message) = (json!({"process_id": "p", "rpc_name": "r"}), json!({"process_id": "p", "queue_name": "q"}));
    sim.ask("pause_process", json!({"process_id": "p", "until": "2027-01-01T00:01:00Z"}));
    sim.ask(
        "pause_process_type",
        json!({"process_type": "P", "mode": "REJECT", "until": "2027-01-01T00:02:00Z", "reason": "a migration"}),
    );
    let (sqlstate, why) = sim.refused("publish", message.clone());
    assert_eq!(sqlstate, "XD023", "the type refuses messages, and the process does not");
    assert!(why.ends_with("a migration"), "{why}");
    let waits = sim.refused("rpc", rpc.clone()).1;
    assert_eq!(waits, "It did not end in time until 2027-01-01T00:01:00.000000Z.", "the pause of the process");
    assert_eq!(sim.next(), 60.0);
    assert!(sim.refused("rpc", rpc.clone()).1.ends_with("a migration"), "the pause of the type");
    assert_eq!(sim.next(), 120.0);
    sim.ask("publish", message);
    let call = sim.rpc(rpc);
    assert_eq!(sim.answer(&call, json!({"output": 1}))["output"], 1);
    sim.is_sound();
}

#[test]
fn an_incident_stays_until_it_is_retried() {
    let mut sim = Sim::of(one_state(json!({
        "executeApiRetryPolicy": {"maximumAttempts": 2}, "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"}
    })));
    sim.start("p");
    sim.start("q");
    for _ in 0..2 {
        for call in sim.calls() {
            sim.fail(&call, "Broken");
        }
        sim.next();
    }
    let incidents = sim.ask("incidents", json!({}));
    assert_eq!(incidents.as_array().unwrap().len(), 2);
    assert_eq!(incidents[0]["state_execution_id"], "A-1");
    let failed = json!([incidents[0]["attempt"], incidents[0]["http_status"], incidents[0]["error_type"]]);
    assert_eq!(failed, json!([2, 500, "Broken"]));
    assert_eq!(sim.describe("p")["threads"][0]["incident"], true);
    assert_eq!(sim.advance(1e6)["next"], Value::Null, "nothing makes its call");
    assert_eq!(sim.calls(), Vec::<Value>::new());
    assert_eq!(sim.ask("retry_now", json!({"process_id": "p"})), 1);
    let call = sim.call();
    assert_eq!(call["attempt"], 3);
    sim.answer(&call, done(json!("mended")));
    let left = sim.ask("incidents", json!({}));
    assert_eq!((left.as_array().unwrap().len(), &left[0]["process_id"]), (1, &json!("q")));
    sim.is_sound();
}

#[test]
fn a_command_is_refused_before_anything_changes() {
    let mut sim = Sim::of(one_state(json!({})));
    for (command, arguments, state) in [
        ("stop", json!({"process_id": "p", "reasons": "enough"}), "08P01"),
        ("start", json!({"process_id": 7, "process_type": "P"}), "08P01"),
        ("start", json!({"process_id": "p", "process_type": "P", "timeout": -1}), "XD009"),
        ("describe", json!({"execution_id": "p"}), "XD009"),
        ("incidents", json!({"process_id": "p"}), "08P01"),
        ("advance", json!({"by": -1}), "XD009"),
        ("advance", json!({"until": "2026-01-01T00:00:00Z"}), "XD009"),
        ("publish_global", json!({"queue_name": "g", "ttl": -1}), "XD009"),
        ("set_local_attributes", json!({"process_id": "p"}), "XD009"),
        ("begin", json!({}), "08P01"),
    ] {
        assert_eq!(sim.refused(command, arguments).0, state, "{command}");
    }
    for line in ["{}", "[]", r#"{"calls": {}, "called": {}}"#] {
        assert!(sim.simulator.line(line).contains("08P01"), "{line}");
    }
    // A refused start uses no number, and null means the same as an absent argument.
    assert!(sim.start("p").ends_with("-000000000001"));
    assert_eq!(sim.ask("stop", json!({"process_id": "p", "reason": null})), Value::Null);
    assert_eq!(sim.status("p"), "TERMINATED");
}

#[test]
fn an_idempotency_key_stands_for_one_rpc_and_one_input() {
    let mut definition = one_state(json!({}));
    definition["rpcs"] = json!({"deposit": {}, "withdraw": {}});
    let mut sim = Sim::of(definition);
    sim.start("p");
    let ask = |rpc: &str, input: &str| {
        format!(r#"{{"rpc": {{"process_id": "p", "rpc_name": "{rpc}", "input": {input}, "idempotency_key": "k"}}}}"#)
    };
    let called = sim.simulator.line(&ask("deposit", r#"{"a": 1, "b": [1]}"#));
    assert!(called.contains("/rpc/deposit/k"), "{called}");
    let called: Value = serde_json::from_str(&called).unwrap();
    let call = &called["result"]["call"]["call"];
    sim.ask("answer", json!({"call": call, "status": 200, "body": "{\"output\": 7}"}));
    for (rpc, input, expected) in [
        ("deposit", r#"{"a": 1, "b": [1]}"#, r#"{"output":7}"#),
        ("deposit", r#"{"b":[1],"a":1}"#, r#"{"output":7}"#),
        ("deposit", r#"{"a": 2, "b": [1]}"#, "XD030"),
        ("deposit", "null", "XD030"),
        ("withdraw", r#"{"a": 1, "b": [1]}"#, "XD030"),
    ] {
        let reply = sim.simulator.line(&ask(rpc, input));
        assert!(reply.contains(expected), "{rpc} {input}: {reply}");
    }
}

#[test]
fn an_answer_with_an_unregistered_name_waits_for_the_registration() {
    let once = json!({"executeApiRetryPolicy": {"maximumAttempts": 1}});
    let mut sim = Sim::of(one_state(once.clone()));
    sim.start("p");
    sim.answered(go("C"));
    let failed = sim.describe("p")["lastFailure"]["failure"].clone();
    assert_eq!(failed["errorType"], "NotRegistered", "{failed}");
    assert_eq!(sim.status("p"), "RUNNING", "it was the only attempt, and is none");
    assert!(sim.calls().is_empty(), "it has a pause");
    let mut with_c = one_state(once);
    with_c["states"]["C"] = json!({"skipWaitUntil": true});
    sim.ask("register", json!({"process_type": "P", "definition": with_c}));
    let call = sim.call();
    assert_eq!((&call["state_execution_id"], &call["attempt"]), (&json!("A-1"), &json!(1)), "at once");
    sim.answer(&call, go("C"));
    sim.answered(done(json!("there")));
    assert_eq!(sim.status("p"), "COMPLETED");
    sim.is_sound();
}
