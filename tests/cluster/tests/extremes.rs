//! Values at the ends of their ranges, with a running engine: times, numbers, sizes.

use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::prelude::*;

/// Waits for the one timer command in the process's input. Completes with whether it fired.
fn timers() -> impl Fn(&Call) -> Reply + Send + Sync + 'static {
    |call: &Call| match call.api {
        Api::WaitUntil => any_of(&[json!({"timerCommands": call.input()})]).into(),
        _ => force_complete(json!(call.fired("t"))).into(),
    }
}

#[test]
fn timers_at_the_ends_of_time() {
    let app = App::new("extremes_timers");
    let _worker = app.worker(timers());
    app.register("timer", &Definition::starting_with("Wait").waiting_step("Wait"));
    let mut db = app.db();
    let past = [
        json!({"delayInSeconds": 0}),
        json!({"delayInSeconds": -0.0}),
        json!({"delayInSeconds": 1e-300}),
        json!({"fireAt": "0001-01-01T00:00:00Z"}),
        json!({"fireAt": "0001-01-01T00:00:00+23:59"}),
        json!({"fireAt": "1969-12-31T23:59:59.999999999Z"}),
        json!({"fireAt": "1970-01-01T00:00:00-00:00"}),
    ];
    let future = [
        (json!({"delayInSeconds": 1e18}), "to the end of what is counted"),
        (json!({"delayInSeconds": 1e300}), "the same"),
        (json!({"delayInSeconds": 9007199254740993_u64}), "beyond the calendar"),
        (json!({"fireAt": "9999-12-31T23:59:59.999999999Z"}), "the last of RFC 3339"),
        (json!({"fireAt": "9999-12-31T23:59:59-23:59"}), "the last of RFC 3339, elsewhere"),
    ];
    let with_id = |command: &Value| {
        let mut command = command.clone();
        command["commandId"] = json!("t");
        command
    };
    for (n, (command, _)) in future.iter().enumerate() {
        db.start(&format!("future-{n}"), "timer").input(with_id(command)).go();
    }
    for (n, command) in past.iter().enumerate() {
        let id = format!("past-{n}");
        db.start(&id, "timer").input(with_id(command)).go();
        assert_eq!(db.completes(&id).result(), &json!(true), "{command}");
    }
    for (n, (command, what)) in future.iter().enumerate() {
        let id = format!("future-{n}");
        wait_until(what, 20, || views::waits(&mut db, &id).len() == 1);
        let year = format!("SELECT extract(year FROM fire_at)::int FROM xdb.waits WHERE process_id = '{id}'");
        assert!(db.one::<i32>(&year) >= 9999, "{command}");
        let shown = db.json(&format!("SELECT xdb.describe_process('{id}')"));
        assert!(shown["threads"][0]["waitingFor"][0]["fireAt"].is_string(), "{shown}");
        assert_eq!(db.count(&format!("xdb.check_process('{id}')")), 0, "{command}");
        db.run(&format!("SELECT xdb.skip_timer('{id}', 'Wait-1', 't')"));
        assert_eq!(db.completes(&id).result(), &json!(false), "{command}: it was skipped");
    }
    app.done(&[]);
}

#[test]
fn starts_and_timeouts_at_the_ends_of_time() {
    let app = App::new("extremes_starts");
    let worker = app.worker(|_| force_complete(json!("done")));
    app.register("one", &one_step());
    app.register("limited", &one_step().with("timeoutSeconds", json!(1e300)));
    let mut db = app.db();
    let start = |db: &mut Db, id: &str, process_type: &str, arguments: &str| {
        db.run(&format!("SELECT xdb.start_process('{id}', '{process_type}', {arguments})"));
    };
    for (n, at) in ["4713-11-24 BC", "0001-01-01", "1970-01-01", "now"].iter().enumerate() {
        let id = format!("past-{n}");
        start(&mut db, &id, "one", &format!("start_at => '{at}'"));
        db.completes(&id);
    }
    start(&mut db, "last", "one", "start_at => '294276-12-31 23:59:59.999999+00', timeout => '178000000 years'");
    start(&mut db, "later", "limited", "start_at => '9999-12-31', timeout => NULL");
    start(&mut db, "long", "limited", "timeout => '178956970 years'");
    start(&mut db, "short", "one", "start_at => '294276-01-01', timeout => '0'");
    db.completes("long");
    for id in ["last", "later", "short"] {
        assert_eq!(db.status(id), "RUNNING", "{id}");
        assert_eq!(db.count(&format!("xdb.check_process('{id}')")), 0, "{id}");
        let shown = db.json(&format!("SELECT xdb.describe_process('{id}')"));
        assert!(shown["threads"][0]["nextAttemptAt"].is_string(), "{shown}");
        assert_eq!(shown["timeoutAt"].is_string(), id != "short", "{shown}");
        db.run(&format!("SELECT xdb.stop_process('{id}')"));
    }
    // The end comes right after the start: nothing else is due earlier.
    start(
        &mut db,
        "at_once",
        "one",
        "start_at => now() + interval '1 hour', timeout => '-1 month 30 days 1 microsecond'",
    );
    db.run("SELECT xdb.stop_process('at_once')");
    assert_eq!(worker.count(|call| ["last", "later", "short", "at_once"].contains(&call.process_id())), 0);
    app.done(&[]);
}

#[test]
fn policies_at_the_ends_of_their_ranges() {
    let app = App::new("extremes_policies");
    let worker = app.worker(|call: &Call| match call.attempt() {
        1 if call.process_id() != "patient" => error(500, "Once", "the first attempt fails"),
        attempt => force_complete(json!(attempt)).into(),
    });
    let far = json!({"initialIntervalSeconds": 1e300, "maximumIntervalSeconds": 1e300, "backoffCoefficient": 1e300,
        "maximumAttempts": 2147483647, "maximumAttemptsDurationSeconds": 0});
    app.register("far", &Definition::starting_with("Only").step_with("Only", json!({"executeApiRetryPolicy": far})));
    let at_once = json!({"initialIntervalSeconds": 0, "maximumIntervalSeconds": 0, "backoffCoefficient": 1});
    app.register(
        "at_once",
        &Definition::starting_with("Only").step_with("Only", json!({"executeApiRetryPolicy": at_once})),
    );
    let patient = json!({"executeApiTimeoutSeconds": 1e300, "waitUntilApiTimeoutSeconds": 1e18});
    app.register("patient", &Definition::starting_with("Only").step("Only"));
    // No role may register such a type any more, but an earlier release may have registered it.
    app.superuser().run(&format!(
        "UPDATE xdb.process_type SET version = version + 1,
                 definition = jsonb_set(definition, '{{states,Only}}', definition #> '{{states,Only}}' || '{patient}')
             WHERE process_type = 'patient';
         UPDATE xdb.registry SET generation = generation + 1;"
    ));
    let mut db = app.db();
    db.start("patient", "patient").go();
    db.start("far", "far").go();
    db.start("at_once", "at_once").go();
    assert_eq!(db.completes("patient").result(), &json!(1));
    assert_eq!(db.completes("at_once").result(), &json!(2));
    wait_until("it is in backoff", 20, || views::fails_saying(&mut db, "far", &["the first attempt"]));
    assert!(
        db.one::<i32>("SELECT extract(year FROM next_attempt_at)::int FROM xdb.failures WHERE process_id = 'far'")
            > 9999
    );
    assert_eq!(db.count("xdb.check_process('far')"), 0);
    assert_eq!(db.one::<i32>("SELECT xdb.retry_now('far')"), 1);
    assert_eq!(db.completes("far").result(), &json!(2));
    assert_eq!(worker.count(|call| call.process_id() == "far"), 2);
    app.done(&[]);
}

/// The text of the value after this key of an object in a request, unchanged.
fn raw_value<'a>(call: &'a Call, key: &str) -> &'a str {
    let from = call.raw.find(&format!("\"{key}\":")).expect("the key") + key.len() + 3;
    let text = &call.raw[from..];
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.next().expect("a value").expect("valid");
    text[..values.byte_offset()].trim()
}

#[test]
fn numbers_keep_every_digit_on_every_way() {
    let app = App::new("extremes_numbers");
    // Gives back letter by letter what came: the input as output, attribute, message and result.
    let _worker = app.worker(|call: &Call| {
        let body = match call.api {
            Api::WaitUntil => {
                let input = raw_value(call, "stateInput");
                format!(
                    r#"{{"commandRequest":{{"waitingType":"AllOfCompletion","localQueueCommands":
                        [{{"commandId":"own","queueName":"own"}},{{"commandId":"others","queueName":"others"}}]}},
                       "publishToLocalQueue":[{{"queueName":"own","payload":{input}}}],
                       "writeToLocalAttributes":{{"kept":{input}}}}}"#
                )
            }
            Api::Execute => {
                let (kept, results) = (raw_value(call, "kept"), raw_value(call, "localQueueResults"));
                format!(
                    r#"{{"stateDecision":{{"threadCloseDecision":{{"closeType":"FORCE_COMPLETE_PROCESS",
                        "closeInput":[{kept},{results}]}}}}}}"#
                )
            }
            Api::Rpc => format!(r#"{{"output":{}}}"#, raw_value(call, "input")),
        };
        Reply::Raw(200, body.into_bytes())
    });
    app.register("echo", &mailbox().rpc("echo", json!({})));
    let mut db = app.db();
    let values = [
        "123456789012345678901234567890",
        "-123456789012345678901234567890.098765432109876543210",
        "0.1000",
        "-0.0",
        "-0",
        "0.00000000000000000000000000000000000000000000000001",
        "9007199254740993",
        "18446744073709551616",
        "1e308",
        "[1e300, 1.10, {\"a\": 100.00}]",
    ];
    for (n, value) in values.iter().enumerate() {
        let id = format!("p{n}");
        let value = literal(value);
        db.run(&format!("SELECT xdb.start_process('{id}', 'echo', {value})"));
        db.run(&format!("SELECT xdb.publish('{id}', 'others', {value})"));
        let same = format!("SELECT xdb.invoke_rpc('{id}', 'echo', {value})::text = ({value}::jsonb)::text");
        assert!(db.one::<bool>(&same), "{value} through an RPC");
        db.completes(&id);
        let result = db.text(&format!("SELECT xdb.wait_for_process('{id}', '1 s')->'result'"));
        let of_result = |path: &str| {
            format!("SELECT (xdb.wait_for_process('{id}', '1 s') #> '{path}')::text = ({value}::jsonb)::text")
        };
        for path in ["{result,0}", "{result,1,0,messages,0,payload}", "{result,1,1,messages,0,payload}"] {
            assert!(db.one::<bool>(&of_result(path)), "{value} at {path} became {result}");
        }
        assert!(
            db.one::<bool>(&format!(
                "SELECT (xdb.get_local_attributes('{id}')->'kept')::text = ({value}::jsonb)::text"
            ))
        );
    }
    app.done(&[]);
}

#[test]
fn numbers_that_only_numeric_holds_come_back_from_a_worker() {
    let app = App::new("extremes_numeric");
    let wide = ["1e400", "-1e400", "1e-400", "1e1000", "-0", "0e-16383"];
    let list = format!("[{}]", wide.join(","));
    let body = format!(
        r#"{{"stateDecision":{{"threadCloseDecision":{{"closeType":"FORCE_COMPLETE_PROCESS","closeInput":{list}}}}},
           "writeToLocalAttributes":{{"wide":{list}}}}}"#
    );
    let _worker = app.worker(move |_: &Call| Reply::Raw(200, body.clone().into_bytes()));
    app.register("one", &one_step());
    let mut db = app.db();
    db.start("p", "one").go();
    wait_until("it completes", 20, || db.status("p") == "COMPLETED");
    for (n, value) in wide.iter().enumerate() {
        for from in ["xdb.wait_for_process('p', '1 s')->'result'", "xdb.get_local_attributes('p')->'wide'"] {
            assert!(db.one::<bool>(&format!("SELECT ({from}->{n})::text = ('{value}'::jsonb)::text")), "{value}");
        }
    }
    app.done(&[]);
}

/// The largest payload of these tests, in bytes.
const PAYLOAD: usize = 2048;
/// The largest answer of these tests, in bytes.
const ANSWER: usize = 5120;

#[test]
fn sizes_at_their_limits() {
    let limits = ClusterOptions::default().set("xdb.max_payload_size", "2kB").set("xdb.max_response_size", "5kB");
    let app = App::alone("extremes_sizes", limits);
    // Once a string of this many bytes with its quotes, or a whole answer of this many bytes. Then a short one.
    let worker = app.worker(|call: &Call| {
        let bytes = call.input()["bytes"].as_u64().unwrap_or_default() as usize;
        let text = |bytes: usize| json!("x".repeat(bytes.saturating_sub(2)));
        match (call.input()["what"].as_str(), call.api, call.attempt()) {
            (Some("output"), Api::Rpc, _) => output(text(bytes)).into(),
            (_, Api::Rpc, _) => Reply::Huge(bytes),
            (Some("output"), _, 1) => force_complete(text(bytes)).into(),
            (Some("attribute"), _, 1) => force_complete(json!("kept")).locals(json!({"a": text(bytes)})).into(),
            (Some("message"), _, 1) => force_complete(json!("sent")).publish("q", text(bytes)).into(),
            (Some("answer"), _, 1) => {
                let answer = force_complete(json!("whole"));
                let Reply::Json(_, answer) = Reply::from(answer) else { unreachable!("an answer is JSON") };
                let answer = answer.to_string();
                Reply::Raw(200, format!("{answer}{}", " ".repeat(bytes - answer.len())).into_bytes())
            }
            _ => force_complete(json!("again")).into(),
        }
    });
    app.register("one", &one_step().rpc("ask", json!({})));
    app.register("idle", &Definition::without_start().rpc("ask", json!({})));
    let mut db = app.db();

    // From a caller: the last byte that is accepted, and the first that is not.
    db.start("idle", "idle").go();
    let call = |bytes: usize, what: &str| what.replace("$", &format!("to_jsonb(repeat('x', {}))", bytes - 2));
    for what in [
        "xdb.publish('idle', 'q', $)",
        "xdb.set_local_attributes('idle', jsonb_build_object('a', $))",
        "xdb.invoke_rpc('idle', 'ask', $)",
        "xdb.start_process('a' || clock_timestamp(), 'one', $)",
        "xdb.start_process('b' || clock_timestamp(), 'idle', local_attributes => jsonb_build_object('a', $))",
        "xdb.start_processes(jsonb_build_array(jsonb_build_object('process_id', 'c', 'process_type', 'one', 'input', $)))",
    ] {
        db.run(&format!("SELECT {}", call(PAYLOAD, what)));
        let error = db.refused(codes::PAYLOAD_REFUSED, &format!("SELECT {}", call(PAYLOAD + 1, what)));
        assert!(
            error.message.ends_with(&format!("is {} bytes long; at most {PAYLOAD} are allowed", PAYLOAD + 1)),
            "{error:?}"
        );
    }

    // From a worker.
    for (what, limit, words) in [
        ("output", PAYLOAD, "closeInput is 2049 bytes long; at most 2048 are allowed"),
        ("attribute", PAYLOAD, "writeToLocalAttributes.a is 2049 bytes long; at most 2048 are allowed"),
        ("message", PAYLOAD, "publishToLocalQueue[0].payload is 2049 bytes long; at most 2048 are allowed"),
        ("answer", ANSWER, "5120"),
    ] {
        for (over, attempts) in [(0, 1), (1, 2)] {
            let id = format!("{what}-{over}");
            db.start(&id, "one").input(json!({"what": what, "bytes": limit + over})).go();
            db.completes(&id);
            assert_eq!(worker.count(|call| call.process_id() == id), attempts, "{id}");
            let event = format!(
                "xdb.history WHERE process_id = '{id}' AND event_type = 'AttemptFailed'
                   AND strpos(details->'failure'->>'detail', {}) > 0",
                literal(words)
            );
            assert_eq!(db.count(&event), over as i64, "{id}: {words}");
        }
    }
    for (what, limit) in [("output", PAYLOAD), ("answer", ANSWER)] {
        let ask = |bytes: usize| {
            format!("SELECT xdb.invoke_rpc('idle', 'ask', {})", jsonb(&json!({"what": what, "bytes": bytes})))
        };
        if what == "output" {
            assert_eq!(db.json(&ask(limit)).as_str().map(str::len), Some(limit - 2));
        } else {
            // The whole answer is one string, which is too large a payload.
            let error = db.refused(codes::WORKER_FAILED, &ask(limit));
            assert!(error.detail.contains("at most 2048 are allowed"), "{error:?}");
        }
        let error = db.refused(codes::WORKER_FAILED, &ask(limit + 1));
        assert!(error.detail.contains(&limit.to_string()), "{error:?}");
    }
    app.done(&[]);
}

#[test]
fn headers_of_a_worker_at_their_limits() {
    let app = App::new("extremes_headers");
    let worker = app.worker(|_: &Call| force_complete(json!("done")));
    app.register("one", &one_step());
    let mut superuser = app.superuser();
    // The largest header has 16 kB with its name and what stands around it.
    let headers = format!("jsonb_build_object('x-large', repeat('x', {}), 'x-empty', '')", 16 * 1024 - 7 - 4);
    let register =
        |headers: &str| format!("SELECT xdb.register_worker('stub', {}, headers => {headers})", literal(&worker.url()));
    superuser.run(&register(&headers));
    let mut db = app.db();
    db.start("p", "one").go();
    db.completes("p");
    let call = worker.wait_for("the call", 1, |_| true);
    assert_eq!(call.headers["x-large"].len(), 16 * 1024 - 7 - 4);
    assert_eq!(call.headers["x-empty"], "");
    let error =
        superuser.refused(codes::INVALID_ARGUMENT, &register(&headers.replace("repeat('x', ", "repeat('x', 1 + ")));
    assert!(error.message.contains("headers") && error.message.contains("x-large"), "{error:?}");
    app.done(&[]);
}
