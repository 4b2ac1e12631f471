//! The requests that a worker gets (headers, context, results), and the parts of an answer that are optional or
//! ignored.

use xdb_cluster_tests::prelude::*;

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn header<'a>(call: &'a Call, name: &str) -> &'a str {
    call.headers.get(name).map_or("", String::as_str)
}

#[test]
fn a_call_names_its_engine_and_its_process() {
    let app = App::new("calling_context");
    let worker = app.worker(|call: &Call| match (call.api, call.attempt()) {
        (Api::Rpc, _) => output(json!("told")).into(),
        (Api::WaitUntil, _) => any_of(&[local_queue("m", "inbox", 1)]).into(),
        (Api::Execute, 1) => error(500, "Broken", "once"),
        _ => Reply::from(force_complete(json!(null))),
    });
    let url = worker.url();
    app.superuser().run(&format!("SELECT xdb.register_worker('stub', '{url}', secret => 'whsec_c2VjcmV0')"));
    let definition =
        Definition::starting_with("Read").waiting_step_with("Read", json!({"executeApiTimeoutSeconds": 2.5}));
    app.register("mail", &definition.rpc("ask", json!({})));
    let mut db = app.db();
    let execution = db.start("p", "mail").input(json!({"n": 1})).options(json!({"traceparent": TRACEPARENT})).go();
    wait_until("it waits", 10, || !views::waits(&mut db, "p").is_empty());
    db.rpc("p", "ask", json!([2]));
    db.publish("p", "inbox", json!(3));
    db.completes("p");
    let started: f64 = db.one("SELECT extract(epoch FROM started_at)::float8 FROM xdb.processes");

    let calls = worker.calls();
    assert_eq!(calls.len(), 4);
    for call in &calls {
        assert_eq!(header(call, "content-type"), "application/json");
        assert_eq!(header(call, "traceparent"), TRACEPARENT, "{call:?}");
        assert_eq!(header(call, "webhook-id"), call.idempotency_key());
        assert!(header(call, "webhook-signature").starts_with("v1,"), "{call:?}");
        assert_eq!(call.idempotency_key(), format!("{}/0", call.call_id()), "{call:?}");
        let context = &call.body["context"];
        assert_eq!(context["processId"], "p");
        assert_eq!(context["processExecutionId"], execution);
        assert_eq!(
            (&context["owner"], &context["database"]),
            (&json!("app"), &json!(db.text("SELECT current_database()")))
        );
        assert_eq!(context["processStartedTimestamp"], started.floor() as i64);
        assert_eq!(call.body["processType"], "mail");
    }
    let of = |api: Api| calls.iter().filter(|call| call.api == api).collect::<Vec<_>>();
    let (asked, executed, rpc) = (of(Api::WaitUntil), of(Api::Execute), of(Api::Rpc));
    assert_eq!((asked.len(), executed.len(), rpc.len()), (1, 2, 1));
    assert_eq!((rpc[0].target(), rpc[0].input(), rpc[0].attempt()), ("ask", &json!([2]), 1));
    assert!(rpc[0].body["context"].get("stateExecutionId").is_none());
    let timeout = |call: &Call| call.body["context"]["timeoutSeconds"].clone();
    assert_eq!([timeout(asked[0]), timeout(executed[0])], [json!(10), json!(2.5)]);
    let rpcs = timeout(rpc[0]).as_f64().expect("a number");
    assert!((0.5..=10.0).contains(&rpcs), "an RPC has one deadline, and its call has what is left of it: {rpcs}");
    for call in asked.iter().chain(&executed) {
        assert_eq!((call.state_execution_id(), call.target(), call.input()), ("Read-1", "Read", &json!({"n": 1})));
    }
    assert!(asked[0].body.get("commandResults").is_none());
    assert_ne!(asked[0].call_id(), executed[0].call_id(), "each API is a call of its own");
    assert_eq!([asked[0].attempt(), executed[0].attempt(), executed[1].attempt()], [1, 1, 2]);
    let first = |call: &Call| call.body["context"]["firstAttemptTimestamp"].as_i64();
    assert!(first(executed[0]).is_some_and(|at| at >= started as i64));
    assert_eq!(first(executed[0]), first(executed[1]));
    assert_eq!(executed[1].messages("m"), [json!(3)], "a repeat brings the same results");
    app.done(&[]);
}

#[test]
fn a_session_sets_the_trace_of_its_calls() {
    let app = App::new("calling_trace");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)),
        _ => dead_end(),
    });
    app.register("traced", &one_step().rpc("ask", json!({})));
    let trace = |n: u8| format!("00-{n:032x}-00f067aa0ba902b7-01");
    let set = |db: &mut Db, trace: &str| db.run(&format!("SET xdb.traceparent = '{trace}'"));
    let mut db = app.db();
    set(&mut db, &trace(1));
    db.start("taken", "traced").go();
    db.start("own", "traced").options(json!({"traceparent": trace(2)})).go();
    db.run(r#"SELECT xdb.start_processes('[{"process_id": "bulk", "process_type": "traced"}]')"#);
    set(&mut db, &trace(3));
    db.rpc("taken", "ask", json!(1));
    db.run("RESET xdb.traceparent");
    db.rpc("own", "ask", json!(1));
    db.start("none", "traced").go();
    db.rpc("none", "ask", json!(1));
    wait_until("all were called", 10, || worker.calls().len() == 7);
    let calls = worker.calls();
    let sent = |process: &str, api: Api| {
        let call = calls.iter().find(|call| call.process_id() == process && call.api == api);
        call.map(|call| header(call, "traceparent").to_owned())
    };
    for (process, of_step, of_rpc) in
        [("taken", trace(1), Some(trace(3))), ("own", trace(2), Some(trace(2))), ("bulk", trace(1), None)]
    {
        assert_eq!((sent(process, Api::Execute), sent(process, Api::Rpc)), (Some(of_step), of_rpc), "{process}");
    }
    assert_eq!((sent("none", Api::Execute).as_deref(), sent("none", Api::Rpc).as_deref()), (Some(""), Some("")));

    set(&mut db, "unrelated");
    let refused = db.start("p", "traced").refused(codes::INVALID_ARGUMENT);
    assert!(refused.message.contains("xdb.traceparent"), "{refused:?}");
    db.refused(codes::INVALID_ARGUMENT, "SELECT xdb.invoke_rpc('own', 'ask')");
    app.done(&[]);
}

#[test]
fn unknown_keys_of_answers_are_ignored() {
    let app = App::new("calling_unknown");
    let extra = json!({"of": ["a", {"later": "version"}]});
    let worker = app.worker(move |call: &Call| {
        let body = match call.api {
            Api::Rpc => json!({"output": "told", "extra": extra, "publishToLocalQueue":
                [{"queueName": "inbox", "payload": 1, "extra": extra}]}),
            Api::WaitUntil => {
                json!({"extra": extra, "commandRequest": {"waitingType": "AnyOfCompletion", "extra": extra,
                "localQueueCommands": [{"commandId": "m", "queueName": "inbox", "extra": extra}]}})
            }
            Api::Execute if call.target() == "Read" => json!({"extra": extra, "stateDecision": {"extra": extra,
                "nextStates": [{"stateId": "Only", "extra": extra,
                    "stateConfig": {"skipWaitUntil": true, "extra": extra}}]}}),
            Api::Execute => json!({"stateDecision": {"threadCloseDecision":
                {"closeType": "FORCE_COMPLETE_PROCESS", "closeInput": "done", "extra": extra}}}),
        };
        Reply::Json(200, body)
    });
    app.register("mail", &mailbox().waiting_step("Only").rpc("ask", json!({})));
    let mut db = app.db();
    db.start("p", "mail").go();
    assert_eq!(db.rpc("p", "ask", json!(null)), "told");
    assert_eq!(db.completes("p").result(), "done");
    assert_eq!(worker.count(|_| true), 4);
    app.done(&[]);
}

#[test]
fn results_come_in_the_order_of_the_request_and_timers_end_with_the_wait() {
    let app = App::new("calling_results");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (Api::WaitUntil, _) => any_of(&[
            timer("late", 3600.0),
            json!({"timerCommands": {"commandId": "at", "fireAt": "2199-12-31T23:59:59+01:00"}}),
            local_queue("none", "empty", 1),
            local_queue("two", "inbox", 2),
        ])
        .into(),
        (_, "Read") => Reply::hang(next("Only", json!(null))),
        _ => Reply::from(force_complete(call.body["commandResults"].clone())),
    });
    app.register("mail", &mailbox().step("Only"));
    let mut db = app.db();
    db.start("p", "mail").go();
    wait_until("it waits", 10, || views::timers(&mut db, "p") == 2);
    let fire_at = "SELECT fire_at = '2199-12-31 22:59:59Z' FROM xdb.timers WHERE command_id = 'at'";
    assert!(db.one::<bool>(fire_at));
    db.run(r#"SELECT xdb.publish('p', 'inbox', '"a"', message_id => 'm1'); SELECT xdb.publish('p', 'inbox')"#);
    let call = worker.wait_for("execute", 10, |call| call.executes("Read"));
    assert_eq!(views::timers(&mut db, "p"), 0, "a timer outlives what waited for it");
    assert!(views::waits(&mut db, "p").is_empty());
    assert_eq!(
        call.body["commandResults"],
        json!({
            "timerResults": [
                {"commandId": "late", "status": "WAITING_COMMAND"}, {"commandId": "at", "status": "WAITING_COMMAND"}],
            "localQueueResults": [
                {"commandId": "none", "queueName": "empty", "status": "WAITING_COMMAND", "messages": []},
                {"commandId": "two", "queueName": "inbox", "status": "COMPLETED_COMMAND", "messages":
                    [{"messageId": "m1", "payload": "a"}, {"messageId": null, "payload": null}]}],
            "globalQueueResults": []})
    );
    worker.release();
    // `Only` skips its waitUntil.
    assert_eq!(
        db.completes("p").result(),
        &json!({"timerResults": [], "localQueueResults": [], "globalQueueResults": []})
    );
    app.done(&[]);
}

#[test]
fn a_timer_for_a_moment_fires_at_that_moment() {
    let app = App::new("calling_fire_at");
    let worker = app.worker(|call: &Call| match call.api {
        Api::WaitUntil => any_of(&[json!({"timerCommands": {"commandId": "t", "fireAt": call.input()}})]),
        _ => force_complete(json!({"fired": call.fired("t")})),
    });
    app.register("sleep", &mailbox());
    let mut db = app.db();
    let at = "to_jsonb(clock_timestamp() + interval '1 second')";
    let begun = Instant::now();
    db.run(&format!("SELECT xdb.start_process('soon', 'sleep', {at}), xdb.start_process('past', 'sleep', '\"2001-01-01T00:00:00Z\"')"));
    assert_eq!(db.completes("past").result(), &json!({"fired": true}));
    assert_eq!(db.completes("soon").result(), &json!({"fired": true}));
    let fired = worker.wait_for("it has fired", 1, |call| call.process_id() == "soon" && call.api == Api::Execute);
    assert!(fired.at - begun >= Duration::from_millis(990), "fired after {:?}", fired.at - begun);
    app.done(&[]);
}

#[test]
fn views_show_the_waits_and_the_last_failure_of_a_process() {
    let app = App::new("calling_seen");
    let worker = app.worker(|call: &Call| match (call.api, call.target()) {
        (_, "Fork") => next_all(&[("Wait", json!(null)), ("Fail", json!(null))]).into(),
        (Api::WaitUntil, _) => all_of(&[timer("t", 3600.0), local_queue("m", "inbox", 3)]).into(),
        _ => error(503, "Overloaded", "come back tomorrow"),
    });
    let patient = json!({"executeApiRetryPolicy": {"initialIntervalSeconds": 600, "maximumIntervalSeconds": 600}});
    app.register(
        "seen",
        &Definition::starting_with("Fork").step("Fork").waiting_step("Wait").step_with("Fail", patient),
    );
    let mut db = app.db();
    db.start("p", "seen").go();
    wait_until("it has failed and waits", 10, || {
        !views::failures(&mut db, "p").is_empty() && views::timers(&mut db, "p") == 1
    });
    assert_eq!(worker.count(|call| call.executes("Fail")), 1);
    db.publish("p", "inbox", json!(1));
    wait_until("the message is taken in", 10, || db.count("xdb.waits WHERE messages_in_queue = 1") == 1);

    // Within a tenth of the interval, from when it failed.
    assert_eq!(
        db.rows(
            "SELECT state_execution_id, api, attempt, http_status, error_type, detail,
                 failed_at BETWEEN now() - interval '1 minute' AND now() AS lately,
                 next_attempt_at - failed_at BETWEEN interval '539 s' AND interval '661 s' AS in_ten_minutes
             FROM xdb.failures"
        ),
        [json!({"state_execution_id": "Fail-1", "api": "EXECUTE_API", "attempt": 1, "http_status": 503,
            "error_type": "Overloaded", "detail": "come back tomorrow", "lately": true, "in_ten_minutes": true})]
    );
    assert_eq!(
        db.rows(
            "SELECT state_execution_id, waiting_type, kind, command_id, queue_name, at_least, messages_in_queue,
                 since BETWEEN now() - interval '1 minute' AND now() AS lately,
                 fire_at - since BETWEEN interval '59 minutes' AND interval '61 minutes' AS in_an_hour
             FROM xdb.waits ORDER BY command_id"
        ),
        [
            json!({"state_execution_id": "Wait-1", "waiting_type": "AllOfCompletion", "kind": "LOCAL_QUEUE",
                "command_id": "m", "queue_name": "inbox", "at_least": 3, "messages_in_queue": 1, "lately": true,
                "in_an_hour": null}),
            json!({"state_execution_id": "Wait-1", "waiting_type": "AllOfCompletion", "kind": "TIMER",
                "command_id": "t", "queue_name": null, "at_least": null, "messages_in_queue": null, "lately": true,
                "in_an_hour": true}),
        ]
    );
    let described = db.json("SELECT xdb.describe_process('p')");
    assert_eq!((&described["status"], &described["processType"]), (&json!("RUNNING"), &json!("seen")));
    assert_eq!((&described["liveThreads"], &described["owner"]), (&json!(2), &json!("app")));
    assert_eq!(described["lastFailure"]["stateExecutionId"], "Fail-1");
    assert!(described["lastFailure"].to_string().contains("come back tomorrow"), "{described}");
    let threads = described["threads"].as_array().cloned().unwrap_or_default();
    let wait = threads.iter().find(|thread| thread["stateExecutionId"] == "Wait-1").expect("it waits");
    assert_eq!(wait["waitingFor"][0]["commandId"], "t");
    assert_eq!((&wait["waitingFor"][1]["queueName"], &wait["waitingFor"][1]["atLeast"]), (&json!("inbox"), &json!(3)));
    let fail = threads.iter().find(|thread| thread["stateExecutionId"] == "Fail-1").expect("it is called again");
    assert!(fail["attempt"] == 2 && fail["nextAttemptAt"].is_string(), "{fail}");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}

#[test]
fn a_call_names_its_owner_as_the_role_is_called_then() {
    let app = App::alone("calling_owner", ClusterOptions::default());
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => output(json!(null)),
        Api::WaitUntil => any_of(&[local_queue("m", "inbox", 1)]),
        Api::Execute => force_complete(json!(null)),
    });
    app.register("mail", &mailbox().rpc("ask", json!({})));
    let mut db = app.db();
    db.start("p", "mail").go();
    app.session("other").start("q", "mail").go();
    wait_until("both wait", 10, || app.superuser().count("xdb.waits") == 2);
    let mut superuser = app.superuser();
    superuser.run("ALTER ROLE app RENAME TO \"Tenant \"\"A\"\"\"");
    // As an administrator: the request names the owner of the process, and not the caller.
    for id in ["p", "q"] {
        superuser.run(&format!("SELECT xdb.invoke_rpc('{id}', 'ask'), xdb.publish('{id}', 'inbox', '1')"));
    }
    for id in ["p", "q"] {
        superuser.completes(id);
    }
    superuser.run("ALTER ROLE \"Tenant \"\"A\"\"\" RENAME TO app");
    let owners = |id: &str| {
        let calls = worker.calls().into_iter().filter(|call| call.process_id() == id);
        let mut owners: Vec<_> = calls.map(|call| (call.api, call.body["context"]["owner"].clone())).collect();
        owners.sort_by_key(|(api, _)| *api as u8);
        owners
    };
    let renamed = json!("Tenant \"A\"");
    let expected = |first: &str, then: &Value| {
        let mut all = [(Api::WaitUntil, json!(first)), (Api::Execute, then.clone()), (Api::Rpc, then.clone())];
        all.sort_by_key(|(api, _)| *api as u8);
        all.to_vec()
    };
    assert_eq!(owners("p"), expected("app", &renamed));
    assert_eq!(owners("q"), expected("other", &json!("other")));
    app.done(&[]);
}
