//! The vectors of `sdk/conformance`, which every SDK runs. This crate writes the same requests, and accepts the
//! expected answers of a worker without warnings. `ACCEPT=1 cargo test -p xdb-protocol --test conformance` writes the
//! requests again.

use serde_json::{Value, json};
use std::path::PathBuf;
use xdb_engine::*;
use xdb_protocol::*;

const EXECUTION: ExecutionId = ExecutionId([0x12; 16]);
const LIMITS: AnswerLimits = AnswerLimits { max_payload_bytes: 10_000, max_answer_bytes: usize::MAX };
const EXECUTE: &str = "/api/v1/xdb/worker/async-state/execute";
const WAIT_UNTIL: &str = "/api/v1/xdb/worker/async-state/wait-until";
const RPC: &str = "/api/v1/xdb/worker/process/rpc";

const ITEM: &str = r#"{"name": "bolt", "note": null, "amount": 1234567890123456.7891}"#;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../sdk/conformance").join(name)
}

fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(file(name)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The parts in which the requests differ.
struct Call {
    name: &'static str,
    to: &'static str,
    input: Option<&'static str>,
    global: &'static str,
    local: &'static str,
    results: Vec<WaitCommand>,
}

fn call(name: &'static str, to: &'static str) -> Call {
    Call { name, to, input: None, global: ITEM, local: "{}", results: vec![] }
}

fn with_input(name: &'static str, to: &'static str, input: &'static str) -> Call {
    Call { input: Some(input), ..call(name, to) }
}

fn context<'a>(id: Option<&'a StateExecutionId>, call_id: &'a str) -> CallContext<'a> {
    CallContext {
        process_id: "größe \"7\"",
        execution: EXECUTION,
        owner: Some("app"),
        database: "shop",
        process_started_at: Timestamp(1_795_172_930_000_000),
        state_execution_id: id,
        attempt: 1,
        timeout: std::time::Duration::from_secs(30),
        call_id,
        first_attempt_at: Timestamp(1_795_172_931_999_999),
        shard: None,
        parent: None,
        recovery: None,
        guards: None,
        compensates: None,
    }
}

fn vector(name: &str, path: &str, call_id: &str, body: &str) -> Value {
    json!({"name": name, "path": path, "idempotencyKey": request_key(call_id, 0, None), "body": body})
}

/// The request of a state's call. `change` sets the parts that only few calls have.
fn of_state(call: &Call, api: Api, change: impl for<'r> Fn(&mut RequestBody<'r>)) -> Value {
    let id = StateExecutionId { state_id: call.to.to_owned(), number: 1 };
    let call_id = call_id(EXECUTION, &id, api);
    let input = call.input.map(Json::from_trusted);
    let mut request = RequestBody {
        context: context(Some(&id), &call_id),
        process_type: "Conformance",
        handler: Handler::State(call.to),
        input: input.as_ref(),
        loaded_global_attributes: call.global,
        loaded_local_attributes: call.local,
        results: matches!(api, Api::Execute).then_some(call.results.as_slice()),
        app_database_error: None,
    };
    change(&mut request);
    let path = if matches!(api, Api::Execute) { EXECUTE } else { WAIT_UNTIL };
    vector(call.name, path, &call_id, &request.encode())
}

fn execute(call: Call) -> Value {
    of_state(&call, Api::Execute, |_| {})
}

fn wait_until(call: Call) -> Value {
    of_state(&Call { global: "{}", ..call }, Api::WaitUntil, |_| {})
}

fn rpc(call: &Call, owner: Option<&str>) -> Value {
    let call_id = rpc_call_id(EXECUTION, call.to, "click 991");
    let input = call.input.map(Json::from_trusted);
    let request = RequestBody {
        context: CallContext { owner, ..context(None, &call_id) },
        process_type: "Conformance",
        handler: Handler::Rpc(call.to),
        input: input.as_ref(),
        loaded_global_attributes: call.global,
        loaded_local_attributes: call.local,
        results: None,
        app_database_error: None,
    };
    vector(call.name, RPC, &call_id, &request.encode())
}

/// The results of the wait of `gather`: its words, its timer and its price.
fn gathered(words: &[&str], patience: CommandStatus, price: Option<&str>) -> Vec<WaitCommand> {
    let status = |done: bool| if done { CommandStatus::Completed } else { CommandStatus::Waiting };
    let messages = words.iter().zip(1..).map(|(word, number)| Message {
        number,
        queue: "words".to_owned(),
        message_id: (number == 1).then(|| "first".to_owned()),
        payload: Some(Json::from_trusted(*word)),
    });
    let prices = price.map(|price| GlobalMessage {
        number: 1,
        queue: "prices".to_owned(),
        key: Some("EUR".to_owned()),
        message_id: None,
        payload: Some(Json::from_trusted(price)),
    });
    let command = |id: &str, kind, status| WaitCommand {
        command_id: Some(id.to_owned()),
        kind,
        status,
        messages: vec![],
        global_messages: vec![],
    };
    let queue = WaitKind::LocalQueue { queue: "words".to_owned(), at_least: 2, at_most: 2 };
    let global =
        WaitKind::GlobalQueue { queue: "prices".to_owned(), key: Some("EUR".to_owned()), at_least: 1, at_most: 1 };
    vec![
        WaitCommand { messages: messages.collect(), ..command("words", queue, status(!words.is_empty())) },
        command("patience", WaitKind::Timer { fire_at: Timestamp(5), cron: false }, patience),
        WaitCommand {
            global_messages: prices.into_iter().collect(),
            ..command("price", global, status(price.is_some()))
        },
    ]
}

/// The result of a wait for one command.
fn one_command(id: &str, kind: WaitKind, payloads: &[&str]) -> Vec<WaitCommand> {
    let queue = if let WaitKind::LocalQueue { queue, .. } = &kind { queue.clone() } else { String::new() };
    let message = |(payload, number): (&&str, u64)| Message {
        number,
        queue: queue.clone(),
        message_id: None,
        payload: Some(Json::from_trusted(*payload)),
    };
    let messages = payloads.iter().zip(1..).map(message).collect();
    vec![WaitCommand {
        command_id: Some(id.to_owned()),
        kind,
        status: CommandStatus::Completed,
        messages,
        global_messages: vec![],
    }]
}

/// Requests to guards, children and states that undo others, and to their parents.
fn of_families() -> Vec<Value> {
    const CLOSED: [&str; 2] = [
        r#"{"processId": "child-1", "processExecutionId": "34343434-3434-3434-3434-343434343434",
            "processType": "Conformance", "status": "COMPLETED", "result": 7,
            "results": [{"stateExecutionId": "decide-1", "output": 7}]}"#,
        r#"{"processId": "child-2", "processExecutionId": "56565656-5656-5656-5656-565656565656",
            "processType": "Conformance", "status": "TIMEOUT", "reason": "timeout", "omitted": true}"#,
    ];
    let step = |number| StateExecutionId { state_id: "decide".to_owned(), number };
    let parent = |state_execution_id| StartedBy {
        process_id: "the parent".to_owned(),
        process_execution_id: ExecutionId([0x34; 16]),
        state_execution_id,
        on_close: None,
        when_parent_closes: WhenParentCloses::default(),
    };
    let local = |queue: &str, count| WaitKind::LocalQueue { queue: queue.to_owned(), at_least: count, at_most: count };
    let timer = |fire_at, cron| WaitKind::Timer { fire_at: Timestamp(fire_at), cron };
    let joined = one_command("ended", local("ended", 2), &CLOSED);
    let stopped = one_command("stops", local("stops", 1), &[r#""enough""#]);
    // These live longer than the requests that refer to them.
    let (guarded, undone): (&'static _, &'static _) = (Box::leak(Box::new(step(2))), Box::leak(Box::new(step(3))));
    let parents: &'static [StartedBy; 2] = Box::leak(Box::new([parent(Some(step(1))), parent(None)]));
    vec![
        execute(Call { results: joined, ..call("two children that have closed", "joined") }),
        execute(Call {
            results: one_command("tick", timer(1_795_399_200_000_000, true), &[]),
            ..call("a tick of cron", "daily")
        }),
        execute(Call { results: stopped, ..call("a guard of the process", "stopped") }),
        of_state(
            &Call { results: one_command("day", timer(5, false), &[]), ..call("a guard that starts again", "nag") },
            Api::Execute,
            |request| request.context.guards = Some(guarded),
        ),
        of_state(&call("the context of a guard", "origin"), Api::Execute, |request| {
            request.context.guards = Some(guarded);
        }),
        of_state(&call("the context of an undoing", "origin"), Api::Execute, |request| {
            request.context.compensates = Some(undone);
        }),
        of_state(&call("the context of a child", "origin"), Api::Execute, |request| {
            request.context.parent = Some(&parents[0]);
        }),
        of_state(&call("the context of a child of an RPC", "origin"), Api::Execute, |request| {
            request.context.parent = Some(&parents[1]);
        }),
        rpc(&with_input("an RPC that starts a child", "adopt", r#""child-3""#), Some("app")),
    ]
}

fn decisions() -> Vec<Value> {
    let words = [
        ("complete", r#""complete""#),
        ("force complete", r#""force""#),
        ("fail", r#""fail""#),
        ("end of a thread", r#""end""#),
        ("a state and a step that are aborted", r#""abort""#),
        ("all other threads are aborted", r#""alone""#),
        ("compensation", r#""undo""#),
        ("children", r#""children""#),
        ("two threads", r#""both""#),
        ("conditional close", r#""if-empty""#),
        ("an error that is final", r#""fatal""#),
        ("an error with a word of its own", r#""busy""#),
        ("any other error", r#""broken""#),
    ];
    words.into_iter().map(|(name, word)| execute(with_input(name, "decide", word))).collect()
}

fn error_of_the_database() -> Value {
    let failure = Failure {
        status: Some(503),
        error_type: Some("Down".to_owned()),
        detail: "for today".to_owned(),
        ..Failure::default()
    };
    let recovery = Recovery {
        state_execution_id: StateExecutionId { state_id: "decide".to_owned(), number: 4 },
        api: Api::Execute,
        failure,
    };
    let error = AppDatabaseError {
        sql_state: "23514".to_owned(),
        message: "new row violates check constraint".to_owned(),
        table: Some("items".to_owned()),
        constraint: Some("items_amount_check".to_owned()),
    };
    // Both live longer than the request that refers to them.
    let (recovery, error): (&'static _, &'static _) = (Box::leak(Box::new(recovery)), Box::leak(Box::new(error)));
    of_state(&call("what went wrong before", "told"), Api::Execute, |request| {
        request.context.recovery = Some(recovery);
        request.context.attempt = 2;
        request.app_database_error = Some(error);
    })
}

fn requests() -> Vec<Value> {
    let gather = |name, words: &[&str], patience, price| {
        execute(Call { results: gathered(words, patience, price), ..call(name, "gather") })
    };
    let mut all = vec![
        execute(call("a first local attribute", "begin")),
        execute(Call { local: r#"{"tries": 2, "tags": ["a"]}"#, ..call("a local attribute", "begin") }),
        wait_until(call("a wait", "gather")),
        wait_until(Call { local: r#"{"tries": 3}"#, ..call("a wait that is worked out", "later") }),
        gather("two messages and a timer", &[r#""Größe""#, r#""\"🦀\"""#], CommandStatus::Completed, None),
        gather("a timer that was skipped", &[r#""a""#, r#""b""#], CommandStatus::Skipped, None),
        gather("a message of a global queue", &[], CommandStatus::Waiting, Some("12.30")),
        execute(Call { local: r#"{"tags": ["a"]}"#, ..with_input("writes", "write", "0.0001") }),
        execute(Call { local: r#"{"tags": ["a"], "tries": 1}"#, ..call("reads write nothing", "look") }),
        execute(Call {
            global: r#"{"name": null, "note": null, "amount": null}"#,
            ..call("a row that is gone", "look")
        }),
        execute(with_input("an input that does not fit", "decide", "[7]")),
        error_of_the_database(),
        execute(call("the context", "who")),
        rpc(&with_input("an RPC", "add", r#""12.30""#), Some("app")),
        rpc(&call("an RPC without anything", "nothing"), None),
        execute(call("an unknown state", "nowhere")),
        rpc(&call("an unknown RPC", "nobody"), Some("app")),
    ];
    all.extend(decisions());
    all.extend(of_families());
    all
}

#[test]
fn the_requests_are_the_engines() {
    let requests = Value::from(requests());
    if std::env::var_os("ACCEPT").is_some() {
        let text = serde_json::to_string_pretty(&requests).unwrap() + "\n";
        std::fs::write(file("requests.json"), text).unwrap();
    }
    assert_eq!(
        read("requests.json"),
        requests,
        "sdk/conformance/requests.json is not what the engine sends: see above"
    );
}

#[test]
fn the_answers_are_read() {
    let (requests, answers) = (read("requests.json"), read("answers.json"));
    let (requests, answers) = (requests.as_array().unwrap(), answers.as_array().unwrap());
    assert_eq!(requests.len(), answers.len(), "each request has its answer");
    for answer in answers {
        let request = requests.iter().find(|request| request["name"] == answer["request"]).unwrap();
        let status = u16::try_from(answer["status"].as_u64().unwrap()).unwrap();
        let body = answer["answer"].to_string();
        if status != 200 {
            let (failure, further) = decode_error(status, None, body.as_bytes());
            assert_eq!(failure.error_type.as_deref(), answer["answer"]["errorType"].as_str(), "{answer}");
            // A pull worker sends the same failure with `fail_call`, where unknown keys are errors. There is no status.
            let (pulled, then) = decode_failure(&body).unwrap_or_else(|error| panic!("{error}: {answer}"));
            assert_eq!((&pulled.error_type, pulled.status, then), (&failure.error_type, None, further), "{answer}");
            if answer["answer"]["detail"].is_string() {
                assert_eq!(pulled.detail, failure.detail, "{answer}");
            }
            continue;
        }
        let read = match request["path"].as_str().unwrap() {
            WAIT_UNTIL => decode_wait_until(body.as_bytes(), &LIMITS).map(|answer| answer.effects),
            EXECUTE => decode_execute(body.as_bytes(), &LIMITS).map(|answer| answer.effects().clone()),
            _ => decode_rpc(body.as_bytes(), &LIMITS).map(|answer| answer.effects),
        };
        let effects = read.unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert!(effects.warnings.is_empty(), "{:?}: {answer}", effects.warnings);
    }
}

/// Keys and words that only few processes use.
#[test]
fn the_vectors_have_these_words() {
    let vectors = ["requests.json", "answers.json", "definition.json"].map(|name| read(name).to_string()).concat();
    // Within a body they are escaped.
    let vectors = vectors.replace('\\', "");
    for word in [
        "abortStates",
        "startProcesses",
        "processType",
        "processId",
        "localAttributes",
        "globalAttributes",
        "idReusePolicy",
        "timeoutSeconds",
        "options",
        "onClose",
        "whenParentCloses",
        "parent",
        "guards",
        "interrupting",
        "commandRequest",
        "compensationStateId",
        "compensates",
        "COMPENSATE_PROCESS",
        "locks",
        "mode",
        "changes",
        "cron",
        "timezone",
        "fireAt",
        "omitted",
        "reason",
    ] {
        assert!(vectors.contains(&format!("\"{word}\"")), "no vector has {word}");
    }
}

#[test]
fn the_definition_is_one() {
    parse_definition(&read("definition.json").to_string()).unwrap();
}

#[test]
fn numbers_pass_as_they_are() {
    for number in read("numbers.json").as_array().unwrap() {
        check_payload(number["json"].as_str().unwrap(), LIMITS.max_payload_bytes).unwrap();
    }
}
