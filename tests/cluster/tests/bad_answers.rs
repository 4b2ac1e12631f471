//! Answers with an invalid value for each key. The attempt fails and names the place, nothing of the answer is applied,
//! and the process goes on.

use std::collections::HashSet;
use std::sync::Mutex;

use xdb_cluster_tests::db::literal;
use xdb_cluster_tests::prelude::*;

/// The answer of `waitUntil` with this command request, and of `execute` with this decision.
fn request(text: &str) -> String {
    format!(r#"{{"commandRequest":{text},"writeToLocalAttributes":{{"applied":true}}}}"#)
}

fn decision(text: &str) -> String {
    format!(r#"{{"stateDecision":{text},"writeToLocalAttributes":{{"applied":true}}}}"#)
}

/// Options of a state with more commands than a wait may have.
fn many_timers() -> String {
    let timers = [r#"{"delayInSeconds":1}"#; 1001].join(",");
    format!(r#"{{"commandRequest":{{"waitingType":"AnyOfCompletion","timerCommands":[{timers}]}}}}"#)
}

const DEAD_END: &str = r#""stateDecision":{"threadCloseDecision":{"closeType":"DEAD_END"}}"#;

/// The answers, each with the text that the failure must contain.
fn of_wait_until() -> Vec<(String, &'static str)> {
    let timer = |text: &str| request(&format!(r#"{{"waitingType":"AnyOfCompletion","timerCommands":[{text}]}}"#));
    let queue = |text: &str| request(&format!(r#"{{"waitingType":"AnyOfCompletion","localQueueCommands":[{text}]}}"#));
    let combined = |text: &str| {
        request(&format!(
            r#"{{"waitingType":"AnyOfCombination","timerCommands":[{{"commandId":"a","delayInSeconds":1}},
               {{"commandId":"b","delayInSeconds":1}}],"combinations":{text}}}"#
        ))
    };
    vec![
        (r#"{"commandRequest":null}"#.to_owned(), "commandRequest is missing"),
        (request("[]"), "commandRequest must be an object"),
        (request("{}"), "commandRequest.waitingType is missing"),
        (request(r#"{"waitingType":"AnyOf"}"#), r#"waitingType "AnyOf" is unknown; known are EmptyCommand, AllOf"#),
        (request(r#"{"waitingType":1}"#), "waitingType must be a string"),
        (request(r#"{"waitingType":"AllOfCompletion"}"#), "AllOfCompletion needs at least one command"),
        (timer("{}"), "timerCommands[0] has neither delayInSeconds nor fireAt"),
        (timer("1"), "timerCommands[0] must be an object"),
        (timer(r#"{"delayInSeconds":-1}"#), "timerCommands[0].delayInSeconds is -1; it must not be negative"),
        (timer(r#"{"delayInSeconds":"1"}"#), "timerCommands[0].delayInSeconds must be a number"),
        (
            timer(r#"{"delayInSeconds":1e400}"#),
            "timerCommands[0].delayInSeconds is 1e400; it must be from -1e300 to 1e300",
        ),
        (timer(r#"{"delayInSeconds":1,"fireAt":"2030-01-01T00:00:00Z"}"#), "has both delayInSeconds and fireAt"),
        (timer(r#"{"fireAt":"tomorrow"}"#), r#"timerCommands[0].fireAt "tomorrow" is not a time in RFC 3339"#),
        (timer(r#"{"fireAt":"10000-01-01T00:00:00Z"}"#), "is not a time in RFC 3339"),
        (timer(r#"{"fireAt":"2030-02-30T00:00:00Z"}"#), "is not a time in RFC 3339"),
        (timer(r#"{"fireAt":1}"#), "timerCommands[0].fireAt must be a string"),
        (timer(r#"{"commandId":"","delayInSeconds":1}"#), "timerCommands[0].commandId is empty"),
        (queue("{}"), "localQueueCommands[0].queueName is missing"),
        (queue(r#"{"queueName":"nowhere"}"#), r#"unknown local queue "nowhere""#),
        (queue(r#"{"queueName":"known","count":0}"#), "count must be at least 1"),
        (queue(r#"{"queueName":"known","count":1.5}"#), "count is 1.5; it must be a whole number"),
        // Views show these numbers as `int`. A larger number would make the view fail for all roles.
        (
            queue(r#"{"queueName":"known","count":2147483648}"#),
            "localQueueCommands[0].count is 2147483648; it must be at most 2147483647",
        ),
        (
            queue(r#"{"queueName":"known","atMost":4294967295}"#),
            "localQueueCommands[0].atMost is 4294967295; it must be at most 2147483647",
        ),
        (queue(r#"{"queueName":"known","count":1,"atLeast":1}"#), "has count together with atLeast or atMost"),
        (queue(r#"{"queueName":"known","atLeast":3,"atMost":2}"#), "atMost is less than atLeast: 2 < 3"),
        (combined("null"), "combinations is empty"),
        (combined("[[]]"), "combinations[0] is empty"),
        (combined(r#"[["a","c"]]"#), r#"combinations[0][1] names the unknown commandId "c""#),
        (combined(r#"["a"]"#), "combinations[0] must be an array"),
        (timer(r#"{"cron":"0 0 * * * *"}"#), r#"timerCommands[0].cron is "0 0 * * * *": it must have five fields"#),
        (timer(r#"{"cron":"0 0 31 2 *"}"#), r#"timerCommands[0].cron is "0 0 31 2 *": no month has such a day"#),
        (timer(r#"{"cron":7}"#), "timerCommands[0].cron must be a string"),
        (timer(r#"{"cron":"@daily","timezone":"Europe/Nowhere"}"#), r#"timezone is unknown: "Europe/Nowhere""#),
        (timer(r#"{"cron":"@daily","timezone":""}"#), "timezone is"),
        (timer(r#"{"delayInSeconds":1,"timezone":"UTC"}"#), "timerCommands[0]"),
        (timer(r#"{"delayInSeconds":1,"cron":"@daily"}"#), "timerCommands[0] has both"),
    ]
}

fn of_execute() -> Vec<(String, &'static str)> {
    let next = |text: &str| decision(&format!(r#"{{"nextStates":[{text}]}}"#));
    let options = |text: &str| next(&format!(r#"{{"stateId":"Only","stateConfig":{text}}}"#));
    let close = |text: &str| decision(&format!(r#"{{"threadCloseDecision":{text}}}"#));
    let effect = |text: &str| format!("{{{DEAD_END},{text}}}");
    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let long = "n".repeat(1025);
    vec![
        ("null".to_owned(), "must be an object"),
        ("[]".to_owned(), "must be an object"),
        ("\u{feff}{}".to_owned(), "is not JSON"),
        (decision("null"), "stateDecision is missing"),
        (decision("{}"), "stateDecision decides nothing"),
        (decision(r#"{"nextStates":{}}"#), "stateDecision.nextStates must be an array"),
        (next("{}"), "nextStates[0].stateId is missing"),
        (next(r#"{"stateId":""}"#), "nextStates[0].stateId is empty"),
        (next(r#"{"stateId":"Nowhere"}"#), r#"unknown state "Nowhere""#),
        (next(&format!(r#"{{"stateId":"Only","stateInput":{deep}}}"#)), "stateInput is nested deeper than 128 levels"),
        (next(r#"{"stateId":"Only","stateInput":"\u0000"}"#), "stateInput has the escape \\u0000"),
        (next(r#"{"stateId":"Only","stateInput":"\udead"}"#), "stateInput has half of a surrogate pair"),
        (next(r#"{"stateId":"Only","stateInput":1e131072}"#), "stateInput has a number"),
        (next(&format!(r#"{{"stateId":"{long}"}}"#)), "stateId is 1025 bytes long; at most 1024 are allowed"),
        (options("[]"), "stateConfig must be an object"),
        (options(r#"{"skipWaitUntil":"yes"}"#), "stateConfig.skipWaitUntil must be true or false"),
        (
            options(r#"{"executeApiTimeoutSeconds":-1}"#),
            "stateConfig.executeApiTimeoutSeconds is -1; it must not be negative",
        ),
        (
            options(r#"{"waitUntilApiTimeoutSeconds":1e999}"#),
            "stateConfig.waitUntilApiTimeoutSeconds is 1e999; it must be from -1e300 to 1e300",
        ),
        (
            options(r#"{"executeApiRetryPolicy":{"maximumAttempts":2147483648}}"#),
            "stateConfig.executeApiRetryPolicy.maximumAttempts is 2147483648; it must be at most 2147483647",
        ),
        (
            options(r#"{"waitUntilApiRetryPolicy":{"backoffCoefficient":0}}"#),
            "stateConfig.waitUntilApiRetryPolicy.backoffCoefficient is 0; it must be at least 1",
        ),
        (
            options(r#"{"stateFailureRecoveryOptions":{"policy":"HOPE"}}"#),
            r#"stateFailureRecoveryOptions.policy "HOPE" is unknown; known are FAIL_PROCESS_ON_STATE_FAILURE, PROCEED"#,
        ),
        (
            options(
                r#"{"stateFailureRecoveryOptions":{"policy":"PROCEED_TO_CONFIGURED_STATE","stateFailureProceedStateId":"Gone"}}"#,
            ),
            r#"stateFailureProceedStateId "Gone" is not listed in states"#,
        ),
        (options(r#"{"loadLocalAttributes":{"policy":"SOME"}}"#), "loadLocalAttributes.policy \"SOME\" is unknown"),
        (
            options(r#"{"executeLoadLocalAttributes":{"policy":"PARTIAL","names":["missing"]}}"#),
            r#"executeLoadLocalAttributes names the unknown attribute "missing""#,
        ),
        (close("{}"), "threadCloseDecision.closeType is missing"),
        (
            close(r#"{"closeType":"COMPLETE"}"#),
            r#"closeType "COMPLETE" is unknown; known are GRACEFUL_COMPLETE_PROCESS"#,
        ),
        (close(r#"{"closeType":"DEAD_END","closeInput":1e-16384}"#), "closeInput has a number"),
        (effect(r#""writeToLocalAttributes":{"missing":1}"#), r#"unknown local attribute "missing""#),
        (effect(r#""writeToLocalAttributes":{"":1}"#), "writeToLocalAttributes has a key that is empty"),
        (effect(r#""writeToLocalAttributes":{"a\u0000":1}"#), "writeToLocalAttributes has a key that contains a NUL"),
        (effect(r#""writeToLocalAttributes":{"\ud800":1}"#), "writeToLocalAttributes is not valid"),
        (effect(r#""writeToGlobalAttributes":{"missing":1}"#), r#"unknown global attribute "missing""#),
        (effect(r#""writeToGlobalAttributes":[]"#), "writeToGlobalAttributes must be an object"),
        (effect(r#""writeToGlobalAttributes":{"n":"many"}"#), r#"(22P02): It is for table public.counters, key "id""#),
        (effect(r#""writeToGlobalAttributes":{"n":2147483648}"#), r#"key "id" or column "n"."#),
        (effect(r#""writeToGlobalAttributes":{"n":null}"#), "(23502)"),
        (effect(r#""publishToLocalQueue":{}"#), "publishToLocalQueue must be an array"),
        (effect(r#""publishToLocalQueue":[{"queueName":"nowhere"}]"#), r#"unknown local queue "nowhere""#),
        (effect(r#""publishToLocalQueue":[{"queueName":"known","messageId":""}]"#), "[0].messageId is empty"),
        (effect(r#""abortStates":"Only""#), "abortStates must be an array"),
        (effect(r#""abortStates":[1]"#), "abortStates[0] must be a string"),
        (effect(r#""abortStates":["Only",""]"#), "abortStates[1] is empty"),
        (effect(r#""abortStates":["Only-1","Onyl"]"#), r#"unknown state "Onyl" in abortStates"#),
        (effect(r#""abortStates":["Onyl-1"]"#), r#"unknown state "Onyl-1""#),
        (effect(r#""startProcesses":{}"#), "startProcesses must be an array"),
        (effect(r#""startProcesses":[{"processType":"one"},7]"#), "startProcesses[1] must be an object"),
        (effect(r#""startProcesses":[{"processType":"one","onClose":""}]"#), "startProcesses[0].onClose is empty"),
        (
            effect(r#""startProcesses":[{"processType":"one","whenParentCloses":"leave"}]"#),
            r#"startProcesses[0].whenParentCloses "leave" is unknown; known are TERMINATE, LEAVE"#,
        ),
        (
            effect(r#""startProcesses":[{"processType":"one","options":{"locks":["a","a"]}}]"#),
            r#"locks has the lock "a" twice"#,
        ),
        (
            options(r#"{"skipWaitUntil":true,"commandRequest":{"waitingType":"EmptyCommand"}}"#),
            "commandRequest can't be given together with skipWaitUntil",
        ),
        (
            options(r#"{"commandRequest":{"waitingType":"AnyOfCompletion"}}"#),
            "stateConfig.commandRequest.waitingType AnyOfCompletion needs at least one command",
        ),
        (
            options(r#"{"commandRequest":{"waitingType":"AnyOfCompletion","timerCommands":[{"cron":"61 * * * *"}]}}"#),
            r#"stateConfig.commandRequest.timerCommands[0].cron is "61 * * * *": "61" is no minute"#,
        ),
        (
            options(
                r#"{"commandRequest":{"waitingType":"AnyOfCompletion","timerCommands":[{"cron":"@daily","timezone":"Mars"}]}}"#,
            ),
            r#"commandRequest.timerCommands[0].timezone is unknown: "Mars""#,
        ),
        (
            options(
                r#"{"commandRequest":{"waitingType":"AnyOfCompletion","localQueueCommands":[{"queueName":"nowhere"}]}}"#,
            ),
            r#"commandRequest names the unknown local queue "nowhere""#,
        ),
        (options(&many_timers()), "commandRequest has 1001 commands; the limit is 1000"),
        (
            options(&format!(
                r#"{{"stateFailureRecoveryOptions":{{"policy":"PROCEED_TO_CONFIGURED_STATE","stateFailureProceedStateId":"Only",
                    "stateFailureProceedStateConfig":{}}}}}"#,
                many_timers()
            )),
            "stateFailureProceedStateConfig.commandRequest has 1001 commands; the limit is 1000",
        ),
        (options(r#"{"guards":["Only"]}"#), "stateConfig.guards is only allowed for the states of a definition"),
        (
            options(r#"{"interrupting":false}"#),
            "stateConfig.interrupting is only allowed for the states of a definition",
        ),
        (
            options(r#"{"compensationStateId":"Only"}"#),
            "stateConfig.compensationStateId is only allowed for the states of a definition",
        ),
    ]
}

/// Whether the text says that a name is not registered. The name may be about to be registered.
fn is_about_a_registration(words: &str) -> bool {
    ["unknown state", "unknown local", "unknown global", "unknown attribute", "not listed"]
        .iter()
        .any(|text| words.contains(text))
}

/// Checks the only failure of a process.
fn has_failed(db: &mut Db, id: &str, api: &str, answer: &str, words: &str) {
    let is_unregistered = is_about_a_registration(words);
    let failures = db.rows(&format!(
        "SELECT details->'failure'->>'detail' AS detail, details->>'api' AS api, event_type, details->'failure'->>'errorType' AS kind
         FROM xdb.history WHERE process_id = '{id}' AND event_type IN ('AttemptFailed', 'CallRepeated')"
    ));
    assert_eq!(failures.len(), 1, "{id}: {failures:?}: {answer}");
    assert_eq!(failures[0]["api"], api, "{id}");
    let event = if is_unregistered { "CallRepeated" } else { "AttemptFailed" };
    assert_eq!(failures[0]["event_type"], event, "{id}");
    assert_eq!(failures[0]["kind"] == "NotRegistered", is_unregistered, "{id}: {}", failures[0]["kind"]);
    let detail = failures[0]["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(words), "{id}: {detail}\nshould say: {words}\nof: {answer}");
}

/// The answers that a function or a pull worker can give, by process id. `jsonb` refuses some of the texts, and writes
/// numbers out.
fn as_jsonb(db: &mut Db) -> Vec<(String, String, &'static str)> {
    let of = |kind: &'static str, cases: Vec<(String, &'static str)>| {
        let named = move |(number, (answer, words))| (format!("{kind}-{number}"), answer, words);
        cases.into_iter().enumerate().map(named)
    };
    let mut cases: Vec<_> = of("wait", of_wait_until()).chain(of("execute", of_execute())).collect();
    let all = cases.len();
    cases.retain(|(_, answer, _)| {
        !answer.contains("1e") && db.try_run(&format!("SELECT {}::jsonb", literal(answer))).is_ok()
    });
    assert!(cases.len() + 15 > all, "{} of {all}", cases.len());
    cases
}

#[test]
fn every_key_of_an_answer() {
    let app = App::new("bad_answers");
    let (wait_until, execute) = (of_wait_until(), of_execute());
    let bad = (wait_until.clone(), execute.clone());
    let seen = Mutex::new(HashSet::new());
    let worker = app.worker(move |call: &Call| {
        let (kind, number) = call.process_id().rsplit_once('-').expect("an id of this test");
        let number: usize = number.parse().expect("a number");
        let path = if call.api == Api::WaitUntil { "wait" } else { "execute" };
        let is_first = seen.lock().expect("a set").insert(format!("{}/{path}", call.process_id()));
        match (call.api, is_first) {
            (Api::WaitUntil, true) if kind == "wait" => Reply::Raw(200, bad.0[number].0.clone().into_bytes()),
            (Api::WaitUntil, _) => no_command().into(),
            (_, true) if kind == "execute" => Reply::Raw(200, bad.1[number].0.clone().into_bytes()),
            _ => force_complete(call.local("applied").clone()).into(),
        }
    });
    let definition = Definition::starting_with("Only").waiting_step("Only").maps("public.counters", "id", &["n"]);
    app.register("one", &definition.with("localQueues", json!(["known"])).with("localAttributes", json!(["applied"])));
    let mut db = app.db();
    for (kind, cases) in [("wait", &wait_until), ("execute", &execute)] {
        for number in 0..cases.len() {
            let id = format!("{kind}-{number}");
            db.start(&id, "one").key(&id).globals(json!({"n": 1})).go();
        }
    }
    for (kind, api, cases) in [("wait", "WAIT_UNTIL_API", &wait_until), ("execute", "EXECUTE_API", &execute)] {
        for (number, (answer, words)) in cases.iter().enumerate() {
            let id = format!("{kind}-{number}");
            if is_about_a_registration(words) {
                xdb_cluster_tests::wait::wait_until(&id, 20, || !views::failures(&mut db, &id).is_empty());
                db.run(&format!("SELECT xdb.retry_now('{id}')"));
            }
            assert_eq!(db.completes(&id).result(), &json!(null), "{id}: nothing of it was applied: {answer}");
            has_failed(&mut db, &id, api, answer, words);
        }
    }
    assert_eq!(db.count("counters WHERE n <> 1"), 0);
    assert_eq!(worker.count(|call| call.attempt() > 2), 0);
    app.done(&[]);
}

#[test]
fn every_key_of_the_answer_of_a_function() {
    let app = App::new("bad_functions");
    let mut db = app.db();
    let cases = as_jsonb(&mut db);
    db.run(
        "CREATE TABLE public.bad (id text PRIMARY KEY, answer jsonb NOT NULL);
         CREATE FUNCTION public.waits(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT coalesce(
             (SELECT answer FROM public.bad WHERE id = request->'context'->>'processId' AND id LIKE 'wait-%'),
             '{\"commandRequest\": {\"waitingType\": \"EmptyCommand\"}}') $$;
         CREATE FUNCTION public.decides(request jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT coalesce(
             (SELECT answer FROM public.bad WHERE id = request->'context'->>'processId' AND id LIKE 'execute-%'),
             jsonb_build_object('stateDecision', jsonb_build_object('threadCloseDecision', jsonb_build_object(
                 'closeType', 'FORCE_COMPLETE_PROCESS', 'closeInput', request->'loadedLocalAttributes'->'applied')))) $$",
    );
    // There is no second attempt until the test wants it.
    let later = json!({"initialIntervalSeconds": 3600, "maximumIntervalSeconds": 3600});
    let wait = json!({"waitUntilFunction": "public.waits", "waitUntilApiRetryPolicy": later, "executeFunction": "public.decides"});
    // An answer may give options with another wait than this one.
    let execute = json!({"commandRequest": {"waitingType": "EmptyCommand"},
        "executeFunction": "public.decides", "executeApiRetryPolicy": later});
    for (process_type, only) in [("wait", wait), ("execute", execute)] {
        let definition = Definition::starting_with("Only").waiting_step_with("Only", only);
        let definition = definition.maps("public.counters", "id", &["n"]).with("localQueues", json!(["known"]));
        let definition = definition.with("localAttributes", json!(["applied"])).json().to_string();
        app.superuser()
            .run(&format!("SELECT xdb.register_process_type('{process_type}', NULL, {})", literal(&definition)));
    }
    for (id, answer, _) in &cases {
        db.run(&format!("INSERT INTO public.bad VALUES ('{id}', {})", literal(answer)));
        let process_type = if id.starts_with("wait") { "wait" } else { "execute" };
        db.start(id, process_type).key(id).globals(json!({"n": 1})).go();
    }
    let failed = "SELECT DISTINCT process_id FROM xdb.history WHERE event_type IN ('AttemptFailed', 'CallRepeated')";
    wait_until("all have failed", 120, || db.count(&format!("({failed}) AS f")) == cases.len() as i64);
    db.run("DELETE FROM public.bad; SELECT xdb.retry_now(process_id) FROM xdb.processes WHERE status = 'RUNNING'");
    for (id, answer, words) in &cases {
        assert_eq!(db.completes(id).result(), &json!(null), "{id}: nothing of it was applied: {answer}");
        let api = if id.starts_with("wait") { "WAIT_UNTIL_API" } else { "EXECUTE_API" };
        has_failed(&mut db, id, api, answer, words);
    }
    assert_eq!(db.count("counters WHERE n <> 1"), 0);
    app.done(&[]);
}

#[test]
fn every_key_of_the_answer_of_a_pull_worker_is_the_callers_error() {
    let app = App::new("bad_pulls");
    app.superuser().run("SELECT xdb.register_worker('pull', NULL, role => 'app')");
    let definition = Definition::starting_with("Only").waiting_step("Only").maps("public.counters", "id", &["n"]);
    let definition = definition.with("localQueues", json!(["known"])).with("localAttributes", json!(["applied"]));
    app.register_with("pull", "one", &definition);
    let mut db = app.db();
    let mut cases = as_jsonb(&mut db);
    for (id, ..) in &cases {
        db.start(id, "one").key(id).globals(json!({"n": 1})).go();
    }
    // Each process has two calls.
    for _ in 0..cases.len() * 2 {
        let call = db.json("SELECT to_jsonb(c) FROM xdb.claim_calls('pull', 1, wait => '20 s') AS c");
        let waits = call["api"] == "WAIT_UNTIL_API";
        let (token, id) = (call["token"].as_str().expect("a token"), call["request"]["context"]["processId"].as_str());
        let complete = |answer: &str| format!("SELECT xdb.complete_call('{token}', {})", literal(answer));
        if let Some(at) =
            cases.iter().position(|case| Some(case.0.as_str()) == id && case.0.starts_with("wait") == waits)
        {
            let (id, answer, words) = cases.swap_remove(at);
            let error = db.try_run(&complete(&answer)).expect_err("an invalid answer");
            let said = format!("{} ({}): {}", error.message, error.code, error.detail);
            assert!(
                said.to_lowercase().contains(&words.to_lowercase()),
                "{id}: {error:?}\nshould say: {words}\nof: {answer}"
            );
            assert_eq!(error.datatype == "NotRegistered", is_about_a_registration(words), "{id}: {error:?}");
            let is_of_a_table = ["22003", "22P02", "23502"].contains(&error.code.as_str());
            assert_eq!(error.code == codes::WORKER_FAILED, !is_of_a_table, "{id}: {error:?}");
        }
        let good = if waits {
            no_command()
        } else {
            force_complete(call["request"]["loadedLocalAttributes"]["applied"].clone())
        };
        db.run(&complete(&good.json().to_string()));
    }
    assert!(cases.is_empty(), "{cases:?}");
    let result = "SELECT count(*) FROM xdb.processes WHERE status <> 'COMPLETED' OR xdb.wait_for_process(process_id)->'result' <> 'null'";
    assert_eq!(db.one::<i64>(result), 0, "nothing of the invalid answers was applied");
    assert_eq!(db.count("counters WHERE n <> 1"), 0);
    app.done(&[]);
}

#[test]
fn an_answer_of_an_rpc_with_a_fault_is_the_callers_error() {
    let app = App::new("bad_rpc_answers");
    let worker = app.worker(|call: &Call| match call.api {
        Api::Rpc => Reply::Raw(200, call.input().as_str().unwrap_or_default().as_bytes().to_vec()),
        _ => any_of(&[local_queue("m", "known", 1)]).into(),
    });
    let definition = Definition::starting_with("Only").waiting_step("Only").maps("public.counters", "id", &["n"]);
    let listed = definition.with("localQueues", json!(["known"])).with("localAttributes", json!(["known"]));
    app.register("one", &listed.rpc("answer", json!({})));
    let mut db = app.db();
    db.start("p", "one").key("p").globals(json!({"n": 1})).go();
    worker.wait_for("it waits", 20, |call| call.api == Api::WaitUntil);
    let events = || app.db().count("xdb.history WHERE process_id = 'p' AND event_type = 'RpcApplied'");
    for (answer, words) in [
        ("", "the answer is empty"),
        ("[]", "must be an object"),
        (r#"{"output": "\u0000"}"#, "output has the escape"),
        (r#"{"output": 1e131072}"#, "output has a number"),
        (r#"{"stateDecision": {}}"#, "stateDecision decides nothing"),
        (r#"{"stateDecision": {"nextStates": [{"stateId": "Nowhere"}]}}"#, "unknown state \"Nowhere\""),
        (
            r#"{"stateDecision": {"nextStates": [{"stateId": "Only", "stateConfig":
                {"loadLocalAttributes": {"policy": "PARTIAL", "names": ["missing"]}}}]}}"#,
            "loadLocalAttributes names the unknown attribute",
        ),
        (r#"{"publishToLocalQueue": [{"queueName": "nowhere"}]}"#, "unknown local queue \"nowhere\""),
        (r#"{"writeToLocalAttributes": {"missing": 1}}"#, "unknown local attribute \"missing\""),
        (r#"{"writeToGlobalAttributes": {"missing": 1}}"#, "unknown global attribute \"missing\""),
        (r#"{"abortStates": ["Onyl"]}"#, "unknown state \"Onyl\""),
        (r#"{"abortStates": {}}"#, "abortStates must be an array"),
        (r#"{"startProcesses": [{}]}"#, "startProcesses[0].processType is missing"),
        (
            r#"{"startProcesses": [{"processType": "one", "onClose": "nowhere"}]}"#,
            "unknown local queue \"nowhere\" in onClose",
        ),
        (
            r#"{"stateDecision": {"nextStates": [{"stateId": "Only", "stateConfig":
                {"skipWaitUntil": true, "commandRequest": {"waitingType": "EmptyCommand"}}}]}}"#,
            "commandRequest can't be given together with skipWaitUntil",
        ),
    ] {
        let input = xdb_cluster_tests::db::jsonb(&json!(answer));
        let error = db.refused(codes::WORKER_FAILED, &format!("SELECT xdb.invoke_rpc('p', 'answer', {input})"));
        assert!(error.message.contains("RPC \"answer\""), "{error:?}");
        assert!(error.detail.to_lowercase().contains(&words.to_lowercase()), "{error:?} should say {words}");
    }
    let input = xdb_cluster_tests::db::jsonb(&json!(r#"{"writeToGlobalAttributes": {"n": "many"}}"#));
    let error = db.refused("22P02", &format!("SELECT xdb.invoke_rpc('p', 'answer', {input})"));
    assert_eq!(error.detail, r#"It is for table public.counters, key "id" or column "n"."#);
    assert_eq!(events(), 0, "nothing was applied");
    db.run("SELECT xdb.stop_process('p')");
    app.done(&[]);
}
