//! Requests: their exact JSON, and random texts that a worker parses again.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::*;

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn state(id: &str, number: u32) -> StateExecutionId {
    StateExecutionId { state_id: id.to_owned(), number }
}

fn context<'a>(id: &'a StateExecutionId, call_id: &'a str) -> CallContext<'a> {
    CallContext {
        process_id: "order \"1\"",
        execution: ExecutionId([0x12; 16]),
        owner: Some("tenant \"a\""),
        database: "orders\n",
        process_started_at: Timestamp(1_700_000_000_999_999),
        state_execution_id: Some(id),
        attempt: 2,
        call_id,
        first_attempt_at: Timestamp(1_700_000_001_000_000),
        timeout: std::time::Duration::from_secs(30),
        shard: None,
        recovery: None,
        guards: None,
        compensates: None,
    }
}

#[test]
fn wait_until_request() {
    let id = state("Submit", 1);
    let input = Json::from_trusted("{\"amount\":1.50,\"big\":123456789012345678901234567890}");
    let request = RequestBody {
        context: context(&id, "call"),
        process_type: "Order",
        handler: Handler::State("Submit"),
        input: Some(&input),
        loaded_global_attributes: "{\"status\": \"new\"}",
        loaded_local_attributes: r#"{"k\n": [1], "n": null}"#,
        results: None,
        app_database_error: None,
    };
    let body = request.encode();
    assert!(body.contains(input.as_str()), "{body}");
    assert_eq!(
        parsed(&body),
        json!({
            "context": {
                "processId": "order \"1\"", "processExecutionId": "12121212-1212-1212-1212-121212121212",
                "owner": "tenant \"a\"", "database": "orders\n",
                "processStartedTimestamp": 1_700_000_000, "stateExecutionId": "Submit-1", "attempt": 2,
                "callId": "call", "firstAttemptTimestamp": 1_700_000_001, "timeoutSeconds": 30
            },
            "processType": "Order", "stateId": "Submit", "stateInput": parsed(input.as_str()),
            "loadedGlobalAttributes": {"status": "new"}, "loadedLocalAttributes": {"k\n": [1], "n": null}
        })
    );
}

#[test]
fn execute_request_with_results_recovery_and_a_refused_write() {
    let id = state("Verify", 3);
    let failure = Failure { status: Some(503), detail: "down".to_owned(), ..Failure::default() };
    let recovery = Recovery { state_execution_id: state("Pay", 1), api: Api::WaitUntil, failure };
    let timer = |status, id: Option<&str>| WaitCommand {
        command_id: id.map(str::to_owned),
        kind: WaitKind::Timer { fire_at: Timestamp(5) },
        status,
        messages: vec![],
        global_messages: vec![],
    };
    let message = |number, id: Option<&str>, payload: Option<&str>| Message {
        number,
        queue: "q".to_owned(),
        message_id: id.map(str::to_owned),
        payload: payload.map(Json::from_trusted),
    };
    let queue = WaitCommand {
        command_id: None,
        kind: WaitKind::LocalQueue { queue: "q".to_owned(), at_least: 1, at_most: 2 },
        status: CommandStatus::Completed,
        messages: vec![message(1, Some("m"), Some("1.0")), message(2, None, None)],
        global_messages: vec![],
    };
    let global = |number, key: Option<&str>, id: Option<&str>, payload: Option<&str>| GlobalMessage {
        number,
        queue: "g".to_owned(),
        key: key.map(str::to_owned),
        message_id: id.map(str::to_owned),
        payload: payload.map(Json::from_trusted),
    };
    let prices = WaitCommand {
        command_id: Some("g".to_owned()),
        kind: WaitKind::GlobalQueue { queue: "g".to_owned(), key: None, at_least: 1, at_most: 2 },
        status: CommandStatus::Completed,
        messages: vec![],
        global_messages: vec![global(1, Some("k"), Some("m"), Some("2.0")), global(2, None, None, None)],
    };
    let nothing =
        WaitCommand { command_id: None, status: CommandStatus::Waiting, global_messages: vec![], ..prices.clone() };
    let commands =
        [timer(CommandStatus::Waiting, Some("t")), timer(CommandStatus::Skipped, None), queue, prices, nothing];
    let error = AppDatabaseError {
        sql_state: "23505".to_owned(),
        message: "duplicate".to_owned(),
        table: Some("t".to_owned()),
        constraint: None,
    };
    let request = RequestBody {
        context: CallContext { recovery: Some(&recovery), ..context(&id, "call") },
        process_type: "Order",
        handler: Handler::State("Verify"),
        input: None,
        loaded_global_attributes: "{}",
        loaded_local_attributes: "{}",
        results: Some(&commands),
        app_database_error: Some(&error),
    };
    let body = parsed(&request.encode());
    assert_eq!(body["stateInput"], Value::Null);
    assert_eq!(body["loadedLocalAttributes"], json!({}));
    assert_eq!(body["context"]["recoverFromStateExecutionId"], "Pay-1");
    assert_eq!(body["context"]["recoverFromApi"], "WAIT_UNTIL_API");
    assert_eq!(body["context"]["recoverFromError"], json!({"status": 503, "errorType": null, "detail": "down"}));
    assert_eq!(
        body["commandResults"],
        json!({
            "timerResults": [
                {"commandId": "t", "status": "WAITING_COMMAND"}, {"commandId": null, "status": "SKIPPED_COMMAND"}
            ],
            "localQueueResults": [{"commandId": null, "queueName": "q", "status": "COMPLETED_COMMAND", "messages": [
                {"messageId": "m", "payload": 1.0}, {"messageId": null, "payload": null}
            ]}],
            "globalQueueResults": [
                {"commandId": "g", "queueName": "g", "status": "COMPLETED_COMMAND", "messages": [
                    {"messageId": "m", "key": "k", "payload": 2.0}, {"messageId": null, "key": null, "payload": null}
                ]},
                {"commandId": null, "queueName": "g", "status": "WAITING_COMMAND", "messages": []}
            ]
        })
    );
    assert_eq!(
        body["appDatabaseError"],
        json!({"sqlState": "23505", "message": "duplicate", "table": "t", "constraint": null})
    );
    let skipped = RequestBody { results: Some(&[]), app_database_error: None, ..request };
    let body = parsed(&skipped.encode());
    assert_eq!(body["commandResults"], json!({"timerResults": [], "localQueueResults": [], "globalQueueResults": []}));
    assert!(body.get("appDatabaseError").is_none());
}

#[test]
fn rpc_request() {
    let id = state("unused", 1);
    let input = Json::from_trusted("7");
    let request = RequestBody {
        context: CallContext {
            state_execution_id: None,
            owner: None,
            attempt: 1,
            timeout: std::time::Duration::from_millis(1500),
            ..context(&id, "rpc-call")
        },
        process_type: "Order",
        handler: Handler::Rpc("peek"),
        input: Some(&input),
        loaded_global_attributes: "{}",
        loaded_local_attributes: "{\"a\":1}",
        results: None,
        app_database_error: None,
    };
    let body = parsed(&request.encode());
    assert!(body["context"].get("stateExecutionId").is_none());
    assert_eq!(body["context"].get("owner"), Some(&Value::Null));
    assert_eq!(body["context"]["timeoutSeconds"], json!(1.5));
    assert_eq!((&body["rpcName"], &body["input"]), (&json!("peek"), &json!(7)));
    assert_eq!(body["loadedLocalAttributes"], json!({"a": 1}));
}

#[test]
fn call_ids_are_safe_in_headers() {
    let execution = ExecutionId([0xab; 16]);
    let uuid = "abababab-abab-abab-abab-abababababab";
    assert_eq!(call_id(execution, &state("Verify", 2), Api::Execute), format!("{uuid}/Verify-2/execute"));
    let evil = call_id(execution, &state("a\r\nb/%é", 1), Api::WaitUntil);
    assert_eq!(evil, format!("{uuid}/a%0D%0Ab%2F%25%C3%A9-1/wait-until"));
    assert_eq!(request_key(&evil, 4, None), format!("{evil}/4"));
    assert_eq!(rpc_call_id(execution, "ta/ke", "x y"), format!("{uuid}/rpc/ta%2Fke/x%20y"));
}

proptest! {
    #[test]
    fn any_text_survives(process_id in any::<String>(), state_id in any::<String>(), key in any::<String>(), message in any::<String>()) {
        let id = state(&state_id, 1);
        let attributes = json!({&key: 1}).to_string();
        let error = AppDatabaseError { message: message.clone(), ..AppDatabaseError::default() };
        let call = call_id(ExecutionId::default(), &id, Api::Execute);
        prop_assert!(call.bytes().all(|byte| byte.is_ascii_graphic()));
        let request = RequestBody {
            context: CallContext { process_id: &process_id, ..context(&id, &call) },
            process_type: &key,
            handler: Handler::State(&state_id),
            input: None,
            loaded_global_attributes: &attributes,
            loaded_local_attributes: "{}",
            results: Some(&[]),
            app_database_error: Some(&error),
        };
        let body: Value = serde_json::from_str(&request.encode()).unwrap();
        prop_assert_eq!(&body["context"]["processId"], &json!(process_id));
        prop_assert_eq!(&body["context"]["stateExecutionId"], &json!(format!("{state_id}-1")));
        prop_assert_eq!(&body["stateId"], &json!(state_id));
        prop_assert_eq!(&body["loadedGlobalAttributes"], &json!({&key: 1}));
        prop_assert_eq!(&body["appDatabaseError"]["message"], &json!(message));
    }
}

#[test]
fn the_fingerprint_of_a_token_never_changes() {
    let versions = |texts: &[(&str, &str)]| {
        texts.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect::<BTreeMap<_, _>>()
    };
    let of = |texts: &[(&str, &str)]| token_fingerprint("{\"total\":1}", &versions(texts));
    // The value never changes: a call may be claimed before an update of the library and completed after it.
    assert_eq!(of(&[("a", "7:(0,1)"), ("b", "7:(0,2)")]), 13_111_079_354_794_189_031);
    assert_ne!(of(&[("a", "b"), ("c", "d")]), of(&[("a", "bc"), ("d", "")]), "each text has its length");
    assert_ne!(of(&[]), token_fingerprint("", &versions(&[])));
}
