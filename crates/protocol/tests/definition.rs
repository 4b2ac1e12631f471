//! Definitions and start options, valid and invalid ones. Each invalid one has its message.

use proptest::prelude::*;
use std::collections::BTreeMap;
use xdb_engine::*;
use xdb_protocol::{
    ConflictMode, Correlation, MAX_DEFINITION_BYTES, MAX_STATES, check_tables, parse_definition, parse_start_options,
};

const FULL: &str = r#"{"startingState": "Submit",
 "states": {"Submit": {"skipWaitUntil": true, "executeApiTimeoutSeconds": 0},
            "Verify": {"executeApiTimeoutSeconds": 5.5, "waitUntilApiTimeoutSeconds": null,
               "executeApiRetryPolicy": {"maximumAttempts": 3, "backoffCoefficient": 1.5},
               "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "Undo",
                  "stateFailureProceedStateConfig": {"skipWaitUntil": true}},
               "loadGlobalAttributes": {"policy": "PARTIAL", "names": ["form"], "lockType": "SHARE_LOCK"},
               "executeLoadLocalAttributes": {"policy": "NONE"}},
            "Undo": null},
 "globalAttributes": [{"table": "public.users", "primaryKey": "user_id", "attributes": {"form": "form", "status": "st"}},
                      {"table": "t2", "primaryKey": ["name", "id"], "attributes": {"name": "name"}}],
 "localAttributes": ["source"], "localQueues": ["verify"], "globalQueues": ["prices"],
 "rpcs": {"verify": {"timeoutSeconds": 5, "loadGlobalAttributes": {"policy": "ALL", "lockType": "EXCLUSIVE_LOCK"}}, "peek": {}},
 "timeoutSeconds": 3600, "history": "none"}"#;

#[test]
fn a_definition_with_everything() {
    let definition = parse_definition(FULL).unwrap();
    assert_eq!(definition.starting_state.as_deref(), Some("Submit"));
    assert_eq!(definition.states.keys().map(String::as_str).collect::<Vec<_>>(), ["Submit", "Undo", "Verify"]);
    let submit = &definition.states["Submit"];
    assert_eq!(submit.skip_wait_until, Some(true));
    assert_eq!(submit.execute_api_timeout_seconds, None, "0 is as good as absent");
    let verify = &definition.states["Verify"];
    assert_eq!(verify.execute_api_timeout_seconds, Some(5.5));
    let expected = RetryPolicy { maximum_attempts: 3, backoff_coefficient: 1.5, ..RetryPolicy::default() };
    assert_eq!(verify.retry_policy(Api::Execute), expected);
    assert_eq!(verify.retry_policy(Api::WaitUntil), RetryPolicy::default());
    let recovery = verify.state_failure_recovery_options.as_ref().unwrap();
    assert_eq!(recovery.policy, FailurePolicy::ProceedToConfiguredState);
    assert_eq!(recovery.state_failure_proceed_state_config.as_ref().unwrap().skip_wait_until, Some(true));
    assert!(verify.load_global(Api::Execute).wants("form") && !verify.load_global(Api::Execute).wants("status"));
    assert_eq!(verify.load_global(Api::Execute).lock_type, LockType::Share);
    assert_eq!(verify.load_local(Api::Execute).policy, LoadPolicy::None);
    assert_eq!(verify.load_local(Api::WaitUntil).lock_type, LockType::NoLocking);
    assert_eq!(definition.states["Undo"], StateConfig::default());
    assert_eq!(definition.global_attributes[0].table, "public.users");
    assert_eq!(definition.global_attributes[0].relation, 0);
    assert_eq!(definition.global_attributes[0].attributes["status"], "st");
    assert_eq!(definition.global_attributes[1].primary_key, ["name", "id"]);
    assert!(definition.knows_queue("verify") && !definition.knows_queue("other"));
    assert!(definition.knows_global_queue("prices") && !definition.knows_global_queue("verify"));
    assert!(definition.knows_local_attribute("source") && !definition.knows_local_attribute("other"));
    assert_eq!(definition.rpc("verify").unwrap().timeout_seconds, Some(5.0));
    let loading = definition.rpc("verify").unwrap().load_global_attributes.unwrap();
    assert_eq!(loading.lock_type, LockType::Exclusive);
    assert!(definition.rpc("other").is_none());
    assert_eq!(definition.timeout(), Some(Duration(3_600_000_000)));
    assert_eq!(definition.history, HistoryPolicy::None);
    let stored = serde_json::to_string(&definition).unwrap();
    assert_eq!(serde_json::from_str::<Definition>(&stored).unwrap(), definition);
}

#[test]
fn guards_static_waits_and_compensation_are_read_and_stored() {
    let text = r#"{"states": {
        "Ship": {"skipWaitUntil": true, "guards": ["Nag"], "compensationStateId": "Return"}, "Return": null,
        "Nag": {"interrupting": false, "commandRequest": {"waitingType": "AnyOfCompletion",
            "timerCommands": [{"commandId": "t", "delayInSeconds": 0.1}, {"fireAt": "2030-01-02T03:04:05.000006Z"}],
            "globalQueueCommands": [{"queueName": "g", "key": "k", "atLeast": 2, "atMost": 3}]}}},
        "globalQueues": ["g"], "guards": ["Nag"]}"#;
    let definition = parse_definition(text).unwrap();
    let nag = definition.static_wait("Nag", None).unwrap();
    let kinds: Vec<_> = nag.commands.iter().map(|command| &command.kind).collect();
    assert_eq!(kinds[0], &RequestedKind::TimerAfter(Duration(100_000)));
    assert_eq!(kinds[1], &RequestedKind::TimerAt(Timestamp(1_893_553_445_000_006)));
    assert_eq!(definition.guards_of("Ship"), ["Nag"]);
    assert_eq!(definition.guards, ["Nag"]);
    let stored = serde_json::to_string(&definition).unwrap();
    assert_eq!(serde_json::from_str::<Definition>(&stored).unwrap(), definition);
    assert_eq!(parse_definition(&stored).unwrap().states, definition.states, "it is stored as it is written");
}

#[test]
fn what_a_guard_or_a_static_wait_can_not_be() {
    let cases = [
        (
            r#""A": {"commandRequest": {"waitingType": "AnyOfCompletion"}}"#,
            "states.A.commandRequest.waitingType AnyOfCompletion needs at least one command",
        ),
        (
            r#""A": {"commandRequest": {"waitingType": "EmptyCommand", "timers": []}}"#,
            "states.A.commandRequest has the unknown key \"timers\"; known are waitingType, timerCommands, localQueueCommands, globalQueueCommands",
        ),
        (
            r#""A": {"skipWaitUntil": true, "commandRequest": {"waitingType": "EmptyCommand"}}"#,
            "states.A.commandRequest can't be given together with skipWaitUntil",
        ),
        (
            r#""A": {"waitUntilFunction": "f", "commandRequest": {"waitingType": "EmptyCommand"}}"#,
            "states.A.commandRequest can't be given together with waitUntilFunction",
        ),
        (
            r#""A": {"commandRequest": {"waitingType": "AnyOfCompletion", "globalQueueCommands": [{"queueName": "g"}]}}"#,
            "states.A.commandRequest names the unknown global queue \"g\"",
        ),
        (r#""A": {"guards": "B"}"#, "states.A.guards must be an array"),
        (r#""A": {"interrupting": 1}"#, "states.A.interrupting must be true or false"),
        (r#""A": {"compensationStateId": ""}"#, "states.A.compensationStateId is empty"),
        (
            r#""A": {"compensationStateId": "Undo"}"#,
            "states.A.compensationStateId \"Undo\" is not listed in states; known are A",
        ),
    ];
    for (states, why) in cases {
        assert_eq!(parse_definition(&format!("{{\"states\": {{{states}}}}}")).unwrap_err(), why);
    }
    let recovery = r#"{"states": {"B": {"skipWaitUntil": true}, "A": {"stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE",
        "stateFailureProceedStateId": "B", "stateFailureProceedStateConfig": {"commandRequest": {"waitingType": "EmptyCommand"}}}}}}"#;
    let why = "states.A.stateFailureRecoveryOptions.stateFailureProceedStateConfig.commandRequest can't be given together with skipWaitUntil";
    assert_eq!(parse_definition(recovery).unwrap_err(), why);
    let only = "startingStateConfig.guards is only allowed for the states of a definition";
    assert_eq!(parse_start_options(r#"{"startingStateConfig": {"guards": []}}"#).unwrap_err(), only);
}

#[test]
fn everything_is_optional_and_null_is_absent() {
    // By default a process type uses no global queue, and the stored definition shows this.
    let nothing = Definition::default();
    assert_eq!(parse_definition("{}").unwrap(), nothing);
    let nulls = r#"{"startingState":null,"states":null,"globalAttributes":null,"localAttributes":null,"localQueues":null,
        "globalQueues":null,"rpcs":null,"timeoutSeconds":null,"history":null}"#;
    assert_eq!(parse_definition(nulls).unwrap(), nothing);
    for (queues, knows) in [("{}", false), (r#"{"globalQueues":[]}"#, false), (r#"{"globalQueues":["*"]}"#, true)] {
        let definition = parse_definition(queues).unwrap();
        assert_eq!(definition.knows_global_queue("any"), knows, "{queues}");
        let stored = serde_json::to_string(&definition).unwrap();
        assert_eq!(serde_json::from_str::<Definition>(&stored).unwrap().knows_global_queue("any"), knows, "{stored}");
    }
    assert!(parse_definition(r#"{"localQueues":[]}"#).unwrap().local_queues.unwrap().is_empty());
}

#[test]
fn invalid_definitions_are_refused_with_the_reason() {
    for (text, message) in [
        ("[]", "the definition must be an object"),
        ("nonsense", "the definition is not JSON: expected ident at line 1 column 2"),
        (
            r#"{"startState":"A"}"#,
            r#"the definition has the unknown key "startState"; known are startingState, states, "#,
        ),
        (r#"{"startingState":"A"}"#, r#"startingState "A" is not listed in states; known are none"#),
        (
            r#"{"startingState":"A","states":{"C":{},"B":{}}}"#,
            r#"startingState "A" is not listed in states; known are B, C"#,
        ),
        (r#"{"startingState":7}"#, "startingState must be a string"),
        (r#"{"states":[]}"#, "states must be an object"),
        (r#"{"states":{"":{}}}"#, "states has a key that is empty"),
        (r#"{"states":{"A":{"skip":true}}}"#, r#"states.A has the unknown key "skip"; known are skipWaitUntil, "#),
        (r#"{"states":{"A":{"skipWaitUntil":1}}}"#, "states.A.skipWaitUntil must be true or false"),
        (
            r#"{"states":{"A":{"executeApiTimeoutSeconds":-1}}}"#,
            "states.A.executeApiTimeoutSeconds is -1; it must not be negative",
        ),
        (r#"{"states":{"A":{"executeApiTimeoutSeconds":"5"}}}"#, "states.A.executeApiTimeoutSeconds must be a number"),
        (
            r#"{"states":{"A":{"executeApiTimeoutSeconds":1e999}}}"#,
            "states.A.executeApiTimeoutSeconds is 1e999; it must be from -1e300 to 1e300",
        ),
        (
            r#"{"states":{"A":{"executeApiRetryPolicy":{"backoffCoefficient":0.9}}}}"#,
            "states.A.executeApiRetryPolicy.backoffCoefficient is 0.9; it must be at least 1",
        ),
        (
            r#"{"states":{"A":{"executeApiRetryPolicy":{"maximumAttempts":1.5}}}}"#,
            "states.A.executeApiRetryPolicy.maximumAttempts is 1.5; it must be a whole number",
        ),
        (
            r#"{"states":{"A":{"executeApiRetryPolicy":{"maximumAttempts":4294967296}}}}"#,
            "states.A.executeApiRetryPolicy.maximumAttempts is 4294967296; it must be at most 2147483647",
        ),
        (
            r#"{"states":{"A":{"waitUntilApiRetryPolicy":{"attempts":1}}}}"#,
            r#"states.A.waitUntilApiRetryPolicy has the unknown key "attempts""#,
        ),
        (
            r#"{"states":{"A":{"stateFailureRecoveryOptions":{"policy":"IGNORE"}}}}"#,
            r#"states.A.stateFailureRecoveryOptions.policy "IGNORE" is unknown; known are FAIL_PROCESS_ON_STATE_FAILURE, PROCEED_TO_CONFIGURED_STATE"#,
        ),
        (
            r#"{"states":{"A":{"stateFailureRecoveryOptions":{"policy":"PROCEED_TO_CONFIGURED_STATE"}}}}"#,
            "states.A.stateFailureRecoveryOptions.stateFailureProceedStateId is missing",
        ),
        (
            r#"{"states":{"A":{"stateFailureRecoveryOptions":{"policy":"PROCEED_TO_CONFIGURED_STATE","stateFailureProceedStateId":"B"}}}}"#,
            r#"states.A.stateFailureRecoveryOptions.stateFailureProceedStateId "B" is not listed in states; known are A"#,
        ),
        (
            r#"{"states":{"A":{"loadGlobalAttributes":{"policy":"SOME"}}}}"#,
            r#"states.A.loadGlobalAttributes.policy "SOME" is unknown; known are ALL, NONE, PARTIAL"#,
        ),
        (
            r#"{"states":{"A":{"loadLocalAttributes":{"lockType":"LOCK"}}}}"#,
            r#"states.A.loadLocalAttributes.lockType "LOCK" is unknown; known are NO_LOCKING, SHARE_LOCK, EXCLUSIVE_LOCK"#,
        ),
        (
            r#"{"states":{"A":{"loadGlobalAttributes":{"policy":"PARTIAL","names":["x"]}}}}"#,
            r#"states.A.loadGlobalAttributes names the unknown attribute "x""#,
        ),
        (
            r#"{"states":{"A":{"executeLoadLocalAttributes":{"policy":"PARTIAL","names":["x"]}}},"localAttributes":["y"]}"#,
            r#"states.A.executeLoadLocalAttributes names the unknown attribute "x""#,
        ),
        (
            r#"{"states":{"A":{"loadGlobalAttributes":{"names":["x"]}}}}"#,
            "states.A.loadGlobalAttributes.names needs the policy PARTIAL",
        ),
        (r#"{"globalAttributes":{}}"#, "globalAttributes must be an array"),
        (r#"{"globalAttributes":[null]}"#, "globalAttributes[0] must be an object"),
        (r#"{"globalAttributes":[{"primaryKey":"id","attributes":{}}]}"#, "globalAttributes[0].table is missing"),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":["a","b","a"],"attributes":{}}]}"#,
            r#"globalAttributes[0].primaryKey has the column "a" twice"#,
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":["a",""],"attributes":{}}]}"#,
            "globalAttributes[0].primaryKey[1] is empty",
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":"i","attributes":{"a":"x","b":"x"}}]}"#,
            r#"globalAttributes[0].attributes has the column "x" twice"#,
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":[],"attributes":{}}]}"#,
            "globalAttributes[0].primaryKey is empty",
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":1,"attributes":{}}]}"#,
            "globalAttributes[0].primaryKey must be a string or an array of strings",
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":"i","attributes":{"a":1}}]}"#,
            "globalAttributes[0].attributes.a must be a string",
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":"i","attributes":{},"pk":1}]}"#,
            r#"globalAttributes[0] has the unknown key "pk"; known are table, primaryKey, attributes"#,
        ),
        (
            r#"{"globalAttributes":[{"table":"t","primaryKey":"i","attributes":{"a":"a"}},{"table":"u","primaryKey":"i","attributes":{"a":"b"}}]}"#,
            r#"globalAttributes has the attribute "a" twice"#,
        ),
        (r#"{"localQueues":["a",""]}"#, "localQueues[1] is empty"),
        (r#"{"globalQueues":"g"}"#, "globalQueues must be an array"),
        (r#"{"rpcs":{"r":{"timeout":1}}}"#, r#"rpcs.r has the unknown key "timeout""#),
        (
            r#"{"rpcs":{"r":{"loadGlobalAttributes":{"policy":"PARTIAL","names":["x"]}}}}"#,
            r#"rpcs.r.loadGlobalAttributes names the unknown attribute "x""#,
        ),
        (r#"{"timeoutSeconds":-1}"#, "timeoutSeconds is -1; it must not be negative"),
        (r#"{"history":"some"}"#, r#"history "some" is unknown; known are full, none, {"keepLast": n}"#),
        (r#"{"history":{"keepLast":0}}"#, "history.keepLast must be a whole number from 1 to 1000000000"),
        (r#"{"history":{"keepLast":2.5}}"#, "history.keepLast must be a whole number from 1 to 1000000000"),
        (r#"{"history":{"keepLast":"5"}}"#, "history.keepLast must be a whole number from 1 to 1000000000"),
        (r#"{"history":{"keep":5}}"#, "history.keepLast is missing"),
        (r#"{"history":{"keepLast":5,"keep":5}}"#, r#"history has the unknown key "keep"; known are keepLast"#),
    ] {
        let error = parse_definition(text).unwrap_err();
        assert!(error.starts_with(message), "{text}\n found: {error}\nwanted: {message}");
    }
}

#[test]
fn a_definition_sets_the_retention() {
    let retention = |seconds: &str| {
        parse_definition(&format!(r#"{{"retentionSeconds": {seconds}}}"#)).map(|definition| definition.retention())
    };
    assert_eq!(parse_definition("{}").unwrap().retention(), Retention::BySetting);
    assert_eq!(retention("null"), Ok(Retention::BySetting));
    assert_eq!(retention("0"), Ok(Retention::For(Duration(0))));
    assert_eq!(retention("1.5"), Ok(Retention::For(Duration(1_500_000))));
    assert_eq!(retention("-1"), Ok(Retention::ForEver));
    assert_eq!(retention("-1.0"), Ok(Retention::ForEver));
    assert_eq!(retention("-2"), Err("retentionSeconds is -2; it must be -1, or not negative".to_owned()));
}

#[test]
fn start_options() {
    assert_eq!(parse_start_options("{}").unwrap(), Default::default());
    let options = parse_start_options(
        r#"{"globalAttributeKeys": {"public.users": {"user_id": "u1"}, "t": {"id": 12345678901234567890.10, "ok": true}},
            "globalAttributeConflictMode": "IGNORE_CONFLICT", "startingStateConfig": {"skipWaitUntil": true},
            "requestId": "r1", "history": "none",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#,
    )
    .unwrap();
    assert_eq!(options.global_attribute_keys["public.users"]["user_id"].as_str(), "\"u1\"");
    assert_eq!(options.global_attribute_keys["t"]["id"].as_str(), "12345678901234567890.10");
    assert_eq!(options.global_attribute_keys["t"]["ok"].as_str(), "true");
    assert_eq!(options.global_attribute_conflict_mode, ConflictMode::Ignore);
    assert_eq!(options.starting_state_config.unwrap().skip_wait_until, Some(true));
    assert_eq!(options.request_id.as_deref(), Some("r1"));
    assert_eq!(options.history, Some(HistoryPolicy::None));
    assert!(options.traceparent.unwrap().starts_with("00-4bf"));
    let options = parse_start_options(r#"{"history": {"keepLast": 5}}"#).unwrap();
    assert_eq!(options.history, Some(HistoryPolicy::KeepLast(5)));
    let options = parse_start_options(
        r#"{"startingState": "B", "shardKey": "k", "correlationKey": "c", "merge": {"input": "app.merge_report",
            "startAt": "LATEST", "withinSeconds": 3600, "atMostSeconds": 0.5}}"#,
    )
    .unwrap();
    assert_eq!((options.starting_state.as_deref(), options.shard_key.as_deref()), (Some("B"), Some("k")));
    let merge = MergeOptions {
        input: MergedInput::Function("app.merge_report".to_owned()),
        start_at: MergedStart::Latest,
        within: Some(Duration(3_600_000_000)),
        at_most: Some(Duration(500_000)),
    };
    assert_eq!(options.correlation, Some(Correlation { key: "c".to_owned(), merge }));
    let options = parse_start_options(r#"{"correlationKey": "c", "merge": null}"#).unwrap();
    assert_eq!(options.correlation.unwrap().merge, MergeOptions::default());
    for (text, message) in [
        (r#"{"merge":{}}"#, "merge needs a correlationKey"),
        (
            r#"{"correlationKey":"c","merge":{"input":"keep"}}"#,
            r#"merge.input is "keep": it must be one of KEEP, REPLACE, MERGE, or"#,
        ),
        (
            r#"{"correlationKey":"c","merge":{"startAt":"SOON"}}"#,
            r#"merge.startAt "SOON" is unknown; known are KEEP, REPLACE"#,
        ),
        (
            r#"{"correlationKey":"c","merge":{"atMostSeconds":1}}"#,
            "merge.atMostSeconds needs startAt REPLACE or LATEST",
        ),
        (r#"{"correlationKey":"c","merge":{"within":1}}"#, r#"merge has the unknown key "within""#),
        (r#"{"correlationKey":""}"#, "correlationKey is empty"),
        (r#"{"requestid":"a"}"#, r#"options has the unknown key "requestid"; known are globalAttributeKeys, "#),
        (r#"{"requestId":""}"#, "requestId is empty"),
        (
            r#"{"globalAttributeConflictMode":"UPSERT"}"#,
            r#"globalAttributeConflictMode "UPSERT" is unknown; known are RETURN_ERROR_ON_CONFLICT, IGNORE_CONFLICT, OVERRIDE_ON_CONFLICT"#,
        ),
        (r#"{"globalAttributeKeys":{"t":{}}}"#, "globalAttributeKeys.t names no column"),
        (
            r#"{"globalAttributeKeys":{"t":{"a":null}}}"#,
            "globalAttributeKeys.t.a must be a string, a number or a boolean",
        ),
        (r#"{"startingStateConfig":{"x":1}}"#, r#"startingStateConfig has the unknown key "x""#),
        (r#"{"history":{"keepLast":-5}}"#, "history.keepLast must be a whole number from 1 to 1000000000"),
        (r#"{"traceparent":"00-0-0-0"}"#, r#"traceparent "00-0-0-0" is not a W3C traceparent"#),
    ] {
        let error = parse_start_options(text).unwrap_err();
        assert!(error.starts_with(message), "{text}\n found: {error}\nwanted: {message}");
    }
}

#[test]
fn locks_are_names_or_objects_with_a_mode() {
    let text = r#"{"locks": ["account:42", {"name": "system", "mode": "SHARE"}, {"name": "m", "mode": "EXCLUSIVE"}, {"name": "n"}]}"#;
    let locks = [
        ("account:42", LockMode::Exclusive),
        ("m", LockMode::Exclusive),
        ("n", LockMode::Exclusive),
        ("system", LockMode::Share),
    ];
    let locks: ProcessLocks = locks.into_iter().map(|(name, mode)| (name.to_owned(), mode)).collect();
    let definition = parse_definition(text).unwrap();
    assert_eq!(definition.locks, locks);
    let stored = serde_json::to_string(&definition).unwrap();
    assert_eq!(serde_json::from_str::<Definition>(&stored).unwrap(), definition);
    assert_eq!(parse_start_options(text).unwrap().locks, locks);
    for none in [r#"{"locks": []}"#, r#"{"locks": null}"#] {
        assert!(parse_start_options(none).unwrap().locks.is_empty(), "{none}");
    }
    let listed = |count: usize, length: usize| {
        let names: Vec<_> = (0..count).map(|n| format!(r#""{n:0length$}""#)).collect();
        format!("[{}]", names.join(","))
    };
    assert_eq!(parse_start_options(&format!(r#"{{"locks": {}}}"#, listed(32, 1024))).unwrap().locks.len(), 32);
    for (locks, message) in [
        (listed(33, 1), "locks has 33 entries; at most 32 are allowed"),
        (listed(1, 1025), "locks[0] is 1025 bytes long; at most 1024 are allowed"),
        (r#"["a", ""]"#.to_owned(), "locks[1] is empty"),
        (r#"["a", {"name": "a", "mode": "SHARE"}]"#.to_owned(), r#"locks has the lock "a" twice"#),
        (r#"[{"name": "a", "mode": "X"}]"#.to_owned(), r#"locks[0].mode "X" is unknown; known are EXCLUSIVE, SHARE"#),
        (
            r#"[{"name": "a", "seconds": 5}]"#.to_owned(),
            r#"locks[0] has the unknown key "seconds"; known are name, mode"#,
        ),
        (r#"[{"mode": "SHARE"}]"#.to_owned(), "locks[0].name is missing"),
        ("[null]".to_owned(), "locks[0] must be a string or an object"),
        (r#""a""#.to_owned(), "locks must be an array"),
    ] {
        let text = format!(r#"{{"locks": {locks}}}"#);
        assert_eq!(parse_start_options(&text).unwrap_err(), message);
        assert_eq!(parse_definition(&text).unwrap_err(), message);
    }
}

#[test]
fn traceparents_follow_the_w3c_format() {
    for bad in [
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\\r\\nevil: 1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        "",
    ] {
        assert!(parse_start_options(&format!(r#"{{"traceparent":"{bad}"}}"#)).is_err(), "{bad}");
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let open = r#"{"stateFailureRecoveryOptions":{"stateFailureProceedStateConfig":"#.repeat(10_000);
    let close = "}".repeat(20_000);
    let error = parse_definition(&format!(r#"{{"states":{{"A":{open}{{}}{close}}}}}"#)).unwrap_err();
    assert_eq!(error, "the definition is nested deeper than 128 levels");
    let (open, close) =
        (r#"{"stateFailureRecoveryOptions":{"stateFailureProceedStateConfig":"#.repeat(16), "}}".repeat(16));
    parse_definition(&format!(r#"{{"states":{{"A":{open}{{}}{close}}}}}"#)).unwrap();
}

proptest! {
    #[test]
    fn parsers_never_panic(text in "\\PC*", at in any::<prop::sample::Index>(), put in "\\PC{0,4}") {
        let _ = parse_definition(&text);
        let _ = parse_start_options(&text);
        let mut chars: Vec<char> = FULL.chars().collect();
        let at = at.index(chars.len());
        chars.splice(at..=at, put.chars());
        let _ = parse_definition(&chars.into_iter().collect::<String>());
    }
}

#[test]
fn a_table_is_mapped_once_and_its_key_is_no_attribute() {
    let table = |name: &str, relation: u32, column: &str| TableMapping {
        table: name.to_owned(),
        relation,
        primary_key: vec!["id".to_owned()],
        attributes: BTreeMap::from([("a".to_owned(), column.to_owned())]),
    };
    assert_eq!(check_tables(&[table("t", 1, "x"), table("u", 2, "x")]), Ok(()));
    let twice = check_tables(&[table("t", 1, "x"), table("public.t", 1, "y")]);
    assert_eq!(twice.unwrap_err(), "table public.t is mapped twice");
    let key = check_tables(&[table("t", 1, "id")]);
    assert_eq!(key.unwrap_err(), "table t: the key \"id\" can't be an attribute");
}

#[test]
fn the_bytes_and_states_of_a_definition_are_limited() {
    let of_states = |count: usize| {
        let states: Vec<_> = (0..count).map(|number| format!(r#""s{number}":null"#)).collect();
        format!(r#"{{"states":{{{}}}}}"#, states.join(","))
    };
    let most = parse_definition(&of_states(MAX_STATES)).map(|definition| definition.states.len());
    assert_eq!(most, Ok(MAX_STATES));
    assert_eq!(
        parse_definition(&of_states(MAX_STATES + 1)).unwrap_err(),
        "states has 10001 entries; at most 10000 are allowed"
    );
    let of_bytes = |bytes: usize| format!("{{{}}}", " ".repeat(bytes - 2));
    assert!(parse_definition(&of_bytes(MAX_DEFINITION_BYTES)).is_ok());
    assert_eq!(
        parse_definition(&of_bytes(MAX_DEFINITION_BYTES + 1)).unwrap_err(),
        "the definition is 1048577 bytes long; at most 1048576 are allowed"
    );
}

#[test]
fn a_type_does_not_consume_its_own_changes() {
    let changes = |text: &str| parse_definition(text).map(|definition| definition.changes);
    assert_eq!(changes(r#"{"changes": "events", "globalQueues": ["others"]}"#), Ok(Some("events".to_owned())));
    for queues in [r#"["events"]"#, r#"["*"]"#] {
        let error = changes(&format!(r#"{{"changes": "events", "globalQueues": {queues}}}"#)).unwrap_err();
        assert_eq!(error, "changes is \"events\", which its processes may consume: globalQueues must not list it");
    }
}
