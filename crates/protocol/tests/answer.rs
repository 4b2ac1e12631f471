//! Answers of workers: valid, invalid, and absurd ones, with the message about each.

use proptest::prelude::*;
use xdb_engine::*;
use xdb_protocol::{
    AnswerLimits, Executed, MAX_DETAIL_CHARS, Retried, bulk_start, decode_error, decode_execute, decode_failure,
    decode_rpc, decode_wait_until, rejected_answer, retry_after_seconds,
};

fn failure_of(status: u16, body: &[u8]) -> Failure {
    decode_error(status, None, body).0
}

const LIMITS: AnswerLimits = AnswerLimits { max_payload_bytes: 1000, max_answer_bytes: usize::MAX };

fn wait_until(body: &str) -> Result<WaitUntilAnswer, String> {
    decode_wait_until(body.as_bytes(), &LIMITS)
}

fn execute(body: &str) -> Result<ExecuteAnswer, String> {
    match decode_execute(body.as_bytes(), &LIMITS)? {
        Executed::Decided(answer) => Ok(answer),
        Executed::Retry(retried) => panic!("{retried:?}"),
    }
}

fn rpc(body: &str) -> Result<RpcAnswer, String> {
    decode_rpc(body.as_bytes(), &LIMITS)
}

fn json(text: &str) -> Json {
    Json::from_trusted(text)
}

fn queue_command(id: Option<&str>, queue: &str, at_least: u32, at_most: u32) -> RequestedCommand {
    RequestedCommand {
        command_id: id.map(str::to_owned),
        kind: RequestedKind::LocalQueue { queue: queue.to_owned(), at_least, at_most },
    }
}

fn global_command(id: Option<&str>, queue: &str, key: Option<&str>, at_least: u32, at_most: u32) -> RequestedCommand {
    let (queue, key) = (queue.to_owned(), key.map(str::to_owned));
    RequestedCommand {
        command_id: id.map(str::to_owned),
        kind: RequestedKind::GlobalQueue { queue, key, at_least, at_most },
    }
}

const WAIT_UNTIL: &str = r#"{"commandRequest": {"waitingType": "AnyOfCombination",
   "timerCommands": [{"commandId": "t", "delayInSeconds": 86400.5}, {"commandId": "f", "fireAt": "2030-01-02T03:04:05.000000001+01:00"}],
   "localQueueCommands": [{"commandId": "v", "queueName": "verify", "count": 2}, {"commandId": "w", "queueName": "w"}],
   "globalQueueCommands": [{"commandId": "g", "queueName": "prices", "key": "EUR", "atMost": 3}, {"commandId": "h", "queueName": "h", "key": null}],
   "combinations": [["w", "t"], ["v", "f", "v"], ["h", "g"]], "more": {"x": [1]}},
 "publishToLocalQueue": [{"queueName": "q", "messageId": "m1", "payload": {"a": 1.50}}, {"queueName": "q"}],
 "publishToGlobalQueue": [{"queueName": "g", "key": "k", "messageId": "m2", "payload": [1.50], "ttlSeconds": 1.5}, {"queueName": "h", "ttlSeconds": 0}],
 "writeToLocalAttributes": {"k": 1e2, "n": null}, "writeToGlobalAttributes": {"status": "waiting"}, "unknown": "\ud800"}"#;

#[test]
fn a_timer_may_have_a_cron_expression_and_a_timezone() {
    let kind = |timer: &str| {
        let request = format!(r#"{{"commandRequest":{{"waitingType":"AllOfCompletion","timerCommands":[{timer}]}}}}"#);
        wait_until(&request).unwrap().request.commands.remove(0).kind
    };
    let cron = |expression: &str, timezone: Option<&str>| {
        RequestedKind::TimerCron(Cron { expression: expression.to_owned(), timezone: timezone.map(str::to_owned) })
    };
    assert_eq!(
        kind(r#"{"cron":"0 3 * * mon-fri","timezone":"Europe/Berlin"}"#),
        cron("0 3 * * mon-fri", Some("Europe/Berlin"))
    );
    assert_eq!(kind(r#"{"cron":"@every 90 seconds","timezone":null}"#), cron("@every 90 seconds", None));
}

#[test]
fn wait_until_with_everything() {
    let answer = wait_until(WAIT_UNTIL).unwrap();
    let fire_at = Timestamp(1_893_549_845_000_001);
    let timer = |id: &str, kind| RequestedCommand { command_id: Some(id.to_owned()), kind };
    assert_eq!(
        answer.request,
        CommandRequest {
            waiting_type: WaitingType::AnyCombination,
            commands: vec![
                timer("t", RequestedKind::TimerAfter(Duration(86_400_500_000))),
                timer("f", RequestedKind::TimerAt(fire_at)),
                queue_command(Some("v"), "verify", 2, 2),
                queue_command(Some("w"), "w", 1, 1),
                global_command(Some("g"), "prices", Some("EUR"), 3, 3),
                global_command(Some("h"), "h", None, 1, 1),
            ],
            combinations: vec![vec![0, 3], vec![1, 2], vec![4, 5]],
        }
    );
    let effects = answer.effects;
    assert_eq!(
        effects.publish_to_local_queue,
        [
            Publish { queue: "q".to_owned(), message_id: Some("m1".to_owned()), payload: Some(json(r#"{"a": 1.50}"#)) },
            Publish { queue: "q".to_owned(), message_id: None, payload: None },
        ]
    );
    let publish =
        |queue: &str| GlobalPublish { queue: queue.to_owned(), key: None, message_id: None, payload: None, ttl: None };
    let first = GlobalPublish {
        key: Some("k".to_owned()),
        message_id: Some("m2".to_owned()),
        payload: Some(json("[1.50]")),
        ttl: Some(Duration(1_500_000)),
        ..publish("g")
    };
    let at_once = GlobalPublish { ttl: Some(Duration(0)), ..publish("h") };
    assert_eq!(effects.publish_to_global_queue, [first, at_once]);
    assert_eq!(effects.write_local_attributes["k"].as_str(), "1e2");
    assert_eq!(effects.write_local_attributes["n"].as_str(), "null");
    assert_eq!(effects.write_global_attributes["status"].as_str(), "\"waiting\"");
}

#[test]
fn little_answers() {
    let answer = wait_until(r#"{"commandRequest":{"waitingType":"EmptyCommand"}}"#).unwrap();
    assert_eq!(answer.request.commands, []);
    assert!(answer.effects.is_empty());
    // Combinations are used with AnyOfCombination only. With another type they are ignored.
    let body = r#"{"commandRequest":{"waitingType":"AnyOfCompletion","localQueueCommands":[{"queueName":"q","atMost":3,"count":null}],"combinations":[["x"]]}}"#;
    let request = wait_until(body).unwrap().request;
    assert_eq!((request.commands, request.combinations), (vec![queue_command(None, "q", 3, 3)], vec![]));
    let least = wait_until(&body.replace("atMost", "atLeast")).unwrap().request;
    assert_eq!(least.commands, [queue_command(None, "q", 3, 3)]);
    let both = wait_until(&body.replace("\"atMost\"", "\"atLeast\":2,\"atMost\"")).unwrap().request;
    assert_eq!(both.commands, [queue_command(None, "q", 2, 3)]);
    assert_eq!(rpc("{}").unwrap(), RpcAnswer::default());
    assert!(rpc(r#"{"output":null,"stateDecision":null}"#).unwrap().is_read_only());
    assert_eq!(rpc(r#"{"output": 1.0 }"#).unwrap().output, Some(json("1.0")));
}

fn movement(state_id: &str) -> StateMovement {
    StateMovement { state_id: state_id.to_owned(), input: None, config: None, begin: Begin::AtOnce }
}

#[test]
fn movements_begin_at_once_later_or_at_a_time() {
    let begin = |fields: &str| {
        let body = format!(r#"{{"stateDecision":{{"nextStates":[{{"stateId":"B"{fields}}}]}}}}"#);
        execute(&body).map(|answer| match answer.decision {
            Decision::NextStates(next) => next[0].begin,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(begin(""), Ok(Begin::AtOnce));
    assert_eq!(begin(r#","delayInSeconds":null,"startAt":null"#), Ok(Begin::AtOnce));
    assert_eq!(begin(r#","delayInSeconds":2.5"#), Ok(Begin::After(Duration(2_500_000))));
    let at = Timestamp(1_764_028_800_000_000);
    assert_eq!(begin(r#","startAt":"2025-11-25T01:00:00+01:00""#), Ok(Begin::At(at)));
    let refused = |fields: &str| begin(fields).unwrap_err();
    let both = refused(r#","delayInSeconds":1,"startAt":"2025-11-25T00:00:00Z""#);
    assert_eq!(both, "stateDecision.nextStates[0] has both delayInSeconds and startAt");
    assert_eq!(
        refused(r#","delayInSeconds":-1"#),
        "stateDecision.nextStates[0].delayInSeconds is -1; it must not be negative"
    );
    assert!(refused(r#","startAt":"tomorrow""#).contains("\"tomorrow\" is not a time in RFC 3339"));
}

#[test]
fn decisions() {
    let next = execute(
        r#"{"stateDecision":{"nextStates":[{"stateId":"Verify","stateInput":{"n":10.0},"stateConfig":{"skipWaitUntil":true,"new":1}},
           {"stateId":"B","stateInput":null,"stateConfig":null}],"threadCloseDecision":null}}"#,
    );
    let config = Box::new(StateConfig { skip_wait_until: Some(true), ..StateConfig::default() });
    let b = movement("B");
    assert_eq!(
        next.unwrap().decision,
        Decision::NextStates(vec![
            StateMovement { input: Some(json("{\"n\":10.0}")), config: Some(config), ..movement("Verify") },
            b.clone(),
        ])
    );
    for close_type in CloseType::WORDS {
        let body = format!(
            r#"{{"stateDecision":{{"nextStates":[],"threadCloseDecision":{{"closeType":"{close_type}","closeInput":"done"}}}}}}"#
        );
        let close =
            Decision::Close { close_type: CloseType::parse(close_type).unwrap(), output: Some(json("\"done\"")) };
        assert_eq!(execute(&body).unwrap().decision, close);
        assert_eq!(rpc(&body).unwrap().decision, Some(close));
    }
    let conditional = r#"{"stateDecision":{"conditionalClose":{"closeType":"FORCE_COMPLETE_PROCESS","whenLocalQueuesEmpty":["verify"],"closeInput":null},"nextStates":[{"stateId":"B"}]}}"#;
    assert_eq!(
        execute(conditional).unwrap().decision,
        Decision::ConditionalClose {
            close_type: CloseType::ForceComplete,
            queues: vec!["verify".to_owned()],
            output: None,
            otherwise: vec![b],
        }
    );
    assert_eq!(rpc(conditional).unwrap_err(), "stateDecision.conditionalClose is not possible in the answer of an RPC");
}

#[test]
fn wrong_answers_to_wait_until() {
    let wrap = |text: &str| format!(r#"{{"commandRequest":{text}}}"#);
    let long = "x".repeat(1025);
    for (request, message) in [
        ("null".to_owned(), "commandRequest is missing"),
        ("[]".to_owned(), "commandRequest must be an object"),
        ("{}".to_owned(), "commandRequest.waitingType is missing; known are EmptyCommand, AllOfCompletion, "),
        (r#"{"waitingType":1}"#.to_owned(), "commandRequest.waitingType must be a string"),
        (
            r#"{"waitingType":"Foo"}"#.to_owned(),
            r#"commandRequest.waitingType "Foo" is unknown; known are EmptyCommand, AllOfCompletion, AnyOfCompletion, AnyOfCombination"#,
        ),
        (
            r#"{"waitingType":"EmptyCommand","timerCommands":[{"delayInSeconds":1}]}"#.to_owned(),
            "commandRequest.waitingType EmptyCommand waits for nothing, but commands are given",
        ),
        (
            r#"{"waitingType":"AnyOfCompletion"}"#.to_owned(),
            "commandRequest.waitingType AnyOfCompletion needs at least one command",
        ),
        (
            r#"{"waitingType":"AllOfCompletion","timerCommands":[]}"#.to_owned(),
            "commandRequest.waitingType AllOfCompletion needs at least one command",
        ),
        (
            r#"{"waitingType":"AnyOfCombination","combinations":[[]]}"#.to_owned(),
            "commandRequest.waitingType AnyOfCombination needs at least one command",
        ),
        (
            r#"{"waitingType":"Any","globalQueueCommands":[{}]}"#.to_owned(),
            r#"commandRequest.waitingType "Any" is unknown"#,
        ),
        (
            r#"{"waitingType":"AnyOfCompletion","globalQueueCommands":[{"queueName":"g","key":""}]}"#.to_owned(),
            "commandRequest.globalQueueCommands[0].key is empty",
        ),
    ] {
        let error = wait_until(&wrap(&request)).unwrap_err();
        assert!(error.starts_with(message), "{error}\n{message}");
    }
    let one = |command: &str, kind: &str| {
        wait_until(&wrap(&format!(r#"{{"waitingType":"AnyOfCompletion","{kind}":[{command}]}}"#))).unwrap_err()
    };
    for (command, message) in [
        ("null", "must be an object"),
        ("{}", "has neither delayInSeconds nor fireAt nor cron"),
        (r#"{"delayInSeconds":1,"cron":"@daily"}"#, "has both delayInSeconds and cron"),
        (r#"{"fireAt":"2030-01-01T00:00:00Z","cron":"@daily"}"#, "has both fireAt and cron"),
        (r#"{"fireAt":"2030-01-01T00:00:00Z","timezone":"UTC"}"#, ".timezone belongs to a cron"),
        (r#"{"cron":""}"#, ".cron is empty"),
        (r#"{"cron":"0 0 31 2 *"}"#, r#".cron is "0 0 31 2 *": no month has such a day"#),
        (r#"{"cron":"0 0 * * * *"}"#, r#".cron is "0 0 * * * *": it must have five fields"#),
        (r#"{"delayInSeconds":1,"fireAt":"2030-01-01T00:00:00Z"}"#, "has both delayInSeconds and fireAt"),
        (r#"{"delayInSeconds":1,"commandId":""}"#, ".commandId is empty"),
        (r#"{"delayInSeconds":-1}"#, ".delayInSeconds is -1; it must not be negative"),
        (r#"{"delayInSeconds":"1"}"#, ".delayInSeconds must be a number"),
        (r#"{"delayInSeconds":1e999}"#, ".delayInSeconds is 1e999; it must be from -1e300 to 1e300"),
        (r#"{"fireAt":"tomorrow"}"#, r#".fireAt "tomorrow" is not a time in RFC 3339"#),
        (r#"{"fireAt":"2030-01-01T00:00:00"}"#, r#".fireAt "2030-01-01T00:00:00" is not a time in RFC 3339"#),
        (r#"{"fireAt":"2030-02-30T00:00:00Z"}"#, r#".fireAt "2030-02-30T00:00:00Z" is not a time"#),
        (r#"{"fireAt":1893456000}"#, ".fireAt must be a string"),
    ] {
        let error = one(command, "timerCommands");
        let message =
            format!("commandRequest.timerCommands[0]{}{message}", if message.starts_with('.') { "" } else { " " });
        assert!(error.starts_with(&message), "{error}\n{message}");
    }
    for (command, message) in [
        ("{}".to_owned(), ".queueName is missing"),
        (r#"{"queueName":""}"#.to_owned(), ".queueName is empty"),
        (format!(r#"{{"queueName":"{long}"}}"#), ".queueName is 1025 bytes long; at most 1024 are allowed"),
        (r#"{"queueName":"a\u0000"}"#.to_owned(), ".queueName contains a NUL character"),
        (r#"{"queueName":"q","count":0}"#.to_owned(), ".count must be at least 1"),
        (r#"{"queueName":"q","count":-1}"#.to_owned(), ".count is -1; it must not be negative"),
        (r#"{"queueName":"q","count":1.5}"#.to_owned(), ".count is 1.5; it must be a whole number"),
        (r#"{"queueName":"q","count":1e10}"#.to_owned(), ".count is 1e10; it must be at most 2147483647"),
        (r#"{"queueName":"q","count":1,"atLeast":1}"#.to_owned(), " has count together with atLeast or atMost"),
        (r#"{"queueName":"q","atLeast":0}"#.to_owned(), ".atLeast must be at least 1"),
        (r#"{"queueName":"q","atLeast":3,"atMost":2}"#.to_owned(), ".atMost is less than atLeast: 2 < 3"),
    ] {
        let error = one(&command, "localQueueCommands");
        assert!(error.starts_with(&format!("commandRequest.localQueueCommands[0]{message}")), "{error}\n{message}");
    }
    let timers = r#"[{"commandId":"a","delayInSeconds":1},{"commandId":"b","delayInSeconds":1}]"#;
    for (timers, combinations, message) in [
        (timers, "null", "commandRequest.combinations is empty: AnyOfCombination needs at least one"),
        (timers, r#"["a"]"#, "commandRequest.combinations[0] must be an array"),
        (timers, r#"[["a"],[]]"#, "commandRequest.combinations[1] is empty"),
        (timers, r#"[["a","x"]]"#, r#"commandRequest.combinations[0][1] names the unknown commandId "x""#),
        (timers, r#"[[1]]"#, "commandRequest.combinations[0][0] must be a string"),
        (r#"[{"delayInSeconds":1}]"#, r#"[["a"]]"#, "commandRequest has a command without commandId"),
        (
            r#"[{"commandId":"a","delayInSeconds":1},{"commandId":"a","delayInSeconds":2}]"#,
            r#"[["a"]]"#,
            r#"commandRequest has the commandId "a" twice"#,
        ),
    ] {
        let body = wrap(&format!(
            r#"{{"waitingType":"AnyOfCombination","timerCommands":{timers},"combinations":{combinations}}}"#
        ));
        let error = wait_until(&body).unwrap_err();
        assert!(error.starts_with(message), "{error}\n{message}");
    }
}

#[test]
fn wrong_answers_to_execute() {
    for (body, message) in [
        ("", "the answer is empty"),
        (" \n", "the answer is empty"),
        ("<html>", "the answer is not JSON: expected value at line 1 column 1"),
        (r#"{"stateDecision":{"nextStates":["#, "the answer is not JSON: EOF while parsing a list"),
        ("null", "the answer must be an object"),
        ("{}", "stateDecision is missing"),
        (r#"{"stateDecision":{}}"#, "stateDecision decides nothing"),
        (r#"{"stateDecision":{"nextStates":[]}}"#, "stateDecision decides nothing"),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"A"}],"threadCloseDecision":{"closeType":"DEAD_END"}}}"#,
            "stateDecision has both nextStates and threadCloseDecision",
        ),
        (
            r#"{"stateDecision":{"threadCloseDecision":{"closeType":"DEAD_END"},"conditionalClose":{"closeType":"FORCE_COMPLETE_PROCESS","whenLocalQueuesEmpty":["q"]}}}"#,
            "stateDecision has both threadCloseDecision and conditionalClose",
        ),
        (
            r#"{"stateDecision":{"conditionalClose":{"closeType":"FORCE_COMPLETE_PROCESS","whenLocalQueuesEmpty":["q"]}}}"#,
            "stateDecision has a conditionalClose without nextStates",
        ),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"A"}],"conditionalClose":{"closeType":"FORCE_COMPLETE_PROCESS","whenLocalQueuesEmpty":[]}}}"#,
            "stateDecision.conditionalClose.whenLocalQueuesEmpty names no queue",
        ),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"A"}],"conditionalClose":{"closeType":"DEAD_END","whenLocalQueuesEmpty":["q"]}}}"#,
            r#"stateDecision.conditionalClose.closeType "DEAD_END" is unknown; known are GRACEFUL_COMPLETE_PROCESS, FORCE_COMPLETE_PROCESS"#,
        ),
        (
            r#"{"stateDecision":{"threadCloseDecision":{}}}"#,
            "stateDecision.threadCloseDecision.closeType is missing; known are GRACEFUL_COMPLETE_PROCESS, ",
        ),
        (
            r#"{"stateDecision":{"threadCloseDecision":{"closeType":"DONE"}}}"#,
            r#"stateDecision.threadCloseDecision.closeType "DONE" is unknown; known are GRACEFUL_COMPLETE_PROCESS, "#,
        ),
        (r#"{"stateDecision":{"nextStates":[{}]}}"#, "stateDecision.nextStates[0].stateId is missing"),
        (r#"{"stateDecision":{"nextStates":{"stateId":"A"}}}"#, "stateDecision.nextStates must be an array"),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"A"},{"stateId":"B","stateInput":"\u0000"}]}}"#,
            "stateDecision.nextStates[1].stateInput has the escape \\u0000 at byte 1",
        ),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"B","stateInput":1e200000}]}}"#,
            "stateDecision.nextStates[0].stateInput has a number at byte 0 that is out of the range of numeric",
        ),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"B","stateConfig":{"executeApiTimeoutSeconds":-1}}]}}"#,
            "stateDecision.nextStates[0].stateConfig.executeApiTimeoutSeconds is -1; it must not be negative",
        ),
        (
            r#"{"stateDecision":{"nextStates":[{"stateId":"B","stateConfig":{"loadGlobalAttributes":{"lockType":"SHARED"}}}]}}"#,
            r#"stateDecision.nextStates[0].stateConfig.loadGlobalAttributes.lockType "SHARED" is unknown"#,
        ),
    ] {
        let error = execute(body).unwrap_err();
        assert!(error.starts_with(message), "{body}\n{error}\n{message}");
    }
    let large = format!("\"{}\"", "x".repeat(1000));
    for (effects, message) in [
        (r#""publishToGlobalQueue":[{}]"#.to_owned(), "publishToGlobalQueue[0].queueName is missing"),
        (
            r#""publishToGlobalQueue":[{"queueName":"g","key":1}]"#.to_owned(),
            "publishToGlobalQueue[0].key must be a string",
        ),
        (
            r#""publishToGlobalQueue":[{"queueName":"g","ttlSeconds":-1}]"#.to_owned(),
            "publishToGlobalQueue[0].ttlSeconds is -1; it must not be negative",
        ),
        (
            r#""publishToGlobalQueue":[{"queueName":"g","payload":"\u0000"}]"#.to_owned(),
            "publishToGlobalQueue[0].payload ",
        ),
        (r#""publishToLocalQueue":[{"payload":1}]"#.to_owned(), "publishToLocalQueue[0].queueName is missing"),
        (
            r#""publishToLocalQueue":[{"queueName":"q","messageId":""}]"#.to_owned(),
            "publishToLocalQueue[0].messageId is empty",
        ),
        (
            r#""publishToLocalQueue":[{"queueName":"q","payload":"\ud800"}]"#.to_owned(),
            "publishToLocalQueue[0].payload has half of a surrogate pair",
        ),
        (
            format!(r#""publishToLocalQueue":[{{"queueName":"q","payload":{large}}}]"#),
            "publishToLocalQueue[0].payload is 1002 bytes long; at most 1000 are allowed",
        ),
        (r#""writeToLocalAttributes":[]"#.to_owned(), "writeToLocalAttributes must be an object"),
        (r#""writeToLocalAttributes":{"":1}"#.to_owned(), "writeToLocalAttributes has a key that is empty"),
        (format!(r#""writeToGlobalAttributes":{{"a":{large}}}"#), "writeToGlobalAttributes.a is 1002 bytes long"),
    ] {
        let body = format!(r#"{{"stateDecision":{{"threadCloseDecision":{{"closeType":"DEAD_END"}}}},{effects}}}"#);
        let error = execute(&body).unwrap_err();
        assert!(error.starts_with(message), "{body}\n{error}\n{message}");
    }
    assert!(decode_execute(b"\xff{}", &LIMITS).unwrap_err().starts_with("the answer is not UTF-8: "));
    assert_eq!(rpc(r#"{"stateDecision":{}}"#).unwrap_err().split(':').next(), Some("stateDecision decides nothing"));
}

#[test]
fn depth_bombs_are_errors() {
    let within = |levels: usize| {
        let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        (
            format!(r#"{{"stateDecision":{{"nextStates":[{{"stateId":"A","stateInput":{deep}}}]}}}}"#),
            format!(r#"{{"stateDecision":{{"threadCloseDecision":{{"closeType":"DEAD_END"}}}},"unknown":{deep}}}"#),
        )
    };
    let (input, unknown) = within(128);
    execute(&input).unwrap();
    execute(&unknown).unwrap();
    let error = execute(&within(129).0).unwrap_err();
    assert_eq!(error, "stateDecision.nextStates[0].stateInput is nested deeper than 128 levels");
    let closed = [within(1_000_000).0, within(1_000_000).1].map(|body| (body, "is nested deeper than 144 levels"));
    let cut_off =
        ["[".repeat(1_000_000), "{\"a\":".repeat(1_000_000)].map(|body| (body, "is not JSON: EOF while parsing"));
    for (body, fault) in closed.into_iter().chain(cut_off) {
        assert!(execute(&body).unwrap_err().contains(fault));
        assert!(rpc(&body).unwrap_err().contains(fault));
        assert!(failure_of(500, body.as_bytes()).detail.chars().count() <= MAX_DETAIL_CHARS);
    }
}

#[test]
fn errors_of_workers() {
    let failure = failure_of(409, br#"{"errorType":"Conflict","detail":"no seat\nleft","more":1}"#);
    assert_eq!(failure.status, Some(409));
    assert_eq!(failure.error_type.as_deref(), Some("Conflict"));
    assert_eq!(failure.detail, "no seat\nleft");
    for (body, error_type, detail) in [
        (&br#"{"detail":{"code":1}}"#[..], None, r#"{"code":1}"#),
        (br#"{"errorType":"E"}"#, Some("E"), r#"the worker answered with status 500 and error type "E""#),
        (br#"{"errorType":"E","detail":" "}"#, Some("E"), r#"the worker answered with status 500 and error type "E""#),
        (br#"{"errorType":5,"detail":"d"}"#, None, "d"),
        (br#"{"detail":"a\u0000b\u0007c\u009b"}"#, None, "a\u{fffd}b\u{fffd}c\u{fffd}"),
        (br#"{"detail":"\ud800"}"#, None, r#""\ud800""#),
        (b"", None, "the worker answered with status 500 and no body"),
        (b" \r\n", None, "the worker answered with status 500 and no body"),
        (b"{}", None, "the worker answered with status 500: {}"),
        (b"<h1>\n  Bad\0 gateway\n</h1>", None, "the worker answered with status 500: <h1> Bad\u{fffd} gateway </h1>"),
        (b"\xff\xfe", None, "the worker answered with status 500: \u{fffd}\u{fffd}"),
    ] {
        let failure = failure_of(500, body);
        assert_eq!((failure.error_type.as_deref(), &*failure.detail), (error_type, detail));
    }
    let long = format!(r#"{{"detail":"{}","errorType":"{0}"}}"#, "é".repeat(5000));
    let failure = failure_of(500, long.as_bytes());
    assert_eq!(failure.detail.chars().count(), MAX_DETAIL_CHARS);
    assert!(failure.detail.ends_with("é…"));
    assert_eq!(failure.error_type.unwrap().chars().count(), 200);
    let huge = failure_of(500, &[b'x'; 1 << 20]);
    assert_eq!(huge.detail.chars().count(), MAX_DETAIL_CHARS);
}

#[test]
fn workers_may_control_further_attempts() {
    let after = |seconds: f64| Further::After(Duration::from_seconds(seconds));
    for (body, expected) in [
        (r#"{"retryAfterSeconds": 1.5}"#, after(1.5)),
        (r#"{"retryAfterSeconds": 0}"#, after(0.0)),
        (r#"{"retryAfterSeconds": 315576000, "final": false}"#, after(315_576_000.0)),
        (r#"{"final": true}"#, Further::Never),
        (r#"{"final": true, "retryAfterSeconds": 5}"#, Further::Never),
        (r#"{"final": false, "retryAfterSeconds": null}"#, Further::ByPolicy),
        (r#"{"errorType": "E"}"#, Further::ByPolicy),
        (r#"[{"final": true}]"#, Further::ByPolicy),
        (r#"{"final": true"#, Further::ByPolicy),
    ] {
        let (failure, further) = decode_error(500, Some(5), body.as_bytes());
        assert_eq!(further, expected, "{body}");
        assert!(failure.detail.starts_with("the worker answered with status 500"), "{failure:?}");
    }
    for (body, warning) in [
        (r#"{"detail": "d", "retryAfterSeconds": -1}"#, "retryAfterSeconds is -1; it must not be negative"),
        (r#"{"detail": "d", "retryAfterSeconds": "5"}"#, "retryAfterSeconds must be a number"),
        (
            r#"{"detail": "d", "retryAfterSeconds": 315576001}"#,
            "retryAfterSeconds is 315576001; it must be at most 315576000, ten years",
        ),
        (r#"{"detail": "d", "final": 1}"#, "final must be true or false"),
    ] {
        let (failure, further) = decode_error(503, Some(5), body.as_bytes());
        assert_eq!((further, failure.detail), (Further::ByPolicy, format!("d; {warning}")), "{body}");
    }
}

#[test]
fn a_decision_to_retry_fails_the_attempt_and_keeps_its_effects() {
    let retried = |body: &str| match decode_execute(body.as_bytes(), &LIMITS) {
        Ok(Executed::Retry(retried)) => retried,
        other => panic!("{body}: {other:?}"),
    };
    let Retried { failure, further, effects } = retried(
        r#"{"stateDecision":{"retry":{"errorType":"Busy","detail":"not\u0000yet","retryAfterSeconds":2,"more":1},"nextStates":null},
           "writeToLocalAttributes":{"n":1}}"#,
    );
    let expected = Failure {
        status: Some(200),
        error_type: Some("Busy".to_owned()),
        detail: "not\u{fffd}yet".to_owned(),
        ..Failure::default()
    };
    assert_eq!((failure, further), (expected, Further::After(Duration::from_seconds(2.0))));
    assert_eq!(effects.write_local_attributes["n"].as_str(), "1");
    assert_eq!(effects.warnings, ["unknown key stateDecision.retry.more"]);
    let plain = retried(r#"{"stateDecision":{"retry":{}}}"#);
    assert_eq!((plain.further, plain.failure.error_type), (Further::ByPolicy, None));
    assert!(!plain.failure.detail.is_empty());
    assert_eq!(retried(r#"{"stateDecision":{"retry":{"final":true,"retryAfterSeconds":1}}}"#).further, Further::Never);
    for (decision, what) in [
        (r#"{"retry":{},"nextStates":[{"stateId":"A"}]}"#, "stateDecision has both retry and another decision"),
        (r#"{"retry":[]}"#, "stateDecision.retry must be an object"),
        (r#"{"retry":{"final":1}}"#, "stateDecision.retry.final must be true or false"),
        (
            r#"{"retry":{"retryAfterSeconds":-1}}"#,
            "stateDecision.retry.retryAfterSeconds is -1; it must not be negative",
        ),
        (r#"{"retry":{"errorType":1}}"#, "stateDecision.retry.errorType must be a string"),
    ] {
        let body = format!(r#"{{"stateDecision":{decision}}}"#);
        assert_eq!(decode_execute(body.as_bytes(), &LIMITS).err().as_deref(), Some(what));
    }
    let of_rpc = decode_rpc(br#"{"stateDecision":{"retry":{}}}"#, &LIMITS).unwrap_err();
    assert!(of_rpc.contains("unknown key stateDecision.retry"), "{of_rpc}");
}

#[test]
fn a_503_or_429_with_a_retry_time_is_no_attempt() {
    let further = |status, seconds, body: &str| decode_error(status, seconds, body.as_bytes()).1;
    let repeat = |seconds: f64| Further::Repeat(Duration::from_seconds(seconds));
    assert_eq!(further(503, Some(1), ""), repeat(1.0));
    assert_eq!(further(429, Some(1), ""), repeat(1.0));
    assert_eq!(further(429, Some(5), r#"{"retryAfterSeconds": 90}"#), Further::After(Duration::from_seconds(90.0)));
    assert_eq!(further(503, Some(60), r#"{"errorType": "Draining", "final": false}"#), repeat(60.0));
    for (status, seconds) in
        [(503, None), (503, Some(0)), (503, Some(61)), (429, None), (429, Some(0)), (429, Some(61)), (500, Some(5))]
    {
        assert_eq!(further(status, seconds, ""), Further::ByPolicy, "{status} {seconds:?}");
    }
    assert_eq!(further(503, Some(5), r#"{"final": true}"#), Further::Never);
    let asked = Further::After(Duration::from_seconds(90.0));
    assert_eq!(further(503, Some(5), r#"{"retryAfterSeconds": 90}"#), asked);
}

#[test]
fn a_worker_sends_the_retry_time_in_seconds_or_as_a_date() {
    let noon = "Sun, 06 Nov 1994 12:00:00 GMT";
    let now = 784_123_200;
    for (value, date, expected) in [
        ("7", None, Some(7)),
        (" 60 ", None, Some(60)),
        ("+7", None, None),
        ("", None, None),
        ("Sun, 06 Nov 1994 12:00:30 GMT", None, Some(30)),
        (" Sun, 06 Nov 1994 12:00:30 GMT ", Some("Sun, 06 Nov 1994 12:00:20 GMT"), Some(10)),
        ("Sun, 06 Nov 1994 12:00:30 GMT", Some("yesterday"), Some(30)),
        (noon, None, Some(1)),
        ("Sun, 06 Nov 1994 11:59:00 GMT", None, Some(1)),
        ("Sun, 06 Nov 1994 11:58:59 GMT", None, None),
        ("Mon, 07 Nov 1994 12:00:00 GMT", Some(noon), Some(86_400)),
        ("Sat, 06 Nov 9999 12:00:00 GMT", None, Some(252_613_382_400)),
        ("1994-11-06T12:00:30Z", None, None),
        ("tomorrow", None, None),
    ] {
        assert_eq!(retry_after_seconds(value, date, now), expected, "{value} {date:?}");
    }
}

fn every_decoder(body: &[u8]) {
    let all = [
        decode_wait_until(body, &LIMITS).err(),
        decode_execute(body, &LIMITS).err(),
        decode_rpc(body, &LIMITS).err(),
        Some(failure_of(500, body).detail),
    ];
    for message in all.into_iter().flatten() {
        assert!(message.chars().count() < 2000, "{message}");
        assert!(!message.contains('\0'), "{message}");
    }
}

const EXECUTE: &str = r#"{"stateDecision":{"conditionalClose":{"closeType":"FORCE_COMPLETE_PROCESS","whenLocalQueuesEmpty":["v"],"closeInput":[1]},
  "nextStates":[{"stateId":"A","stateInput":{"a":"\ud83d\ude00"},"stateConfig":{"executeApiRetryPolicy":{"maximumAttempts":3},
  "stateFailureRecoveryOptions":{"policy":"PROCEED_TO_CONFIGURED_STATE","stateFailureProceedStateId":"B"}}}]},
  "publishToLocalQueue":[{"queueName":"q","payload":1.5}],"output":[true]}"#;

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        every_decoder(&body);
    }

    #[test]
    fn no_changed_answer_makes_a_decoder_panic(
        base in prop_oneof![Just(WAIT_UNTIL), Just(EXECUTE)],
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(),
            prop_oneof![Just(""), Just("null"), Just("[]"), Just("{}"), Just("\""), Just("-1"), Just("1e400"), Just("\\u0000"), Just("\0"), Just(","), Just("\u{9b}é")]), 1..4),
    ) {
        let mut bytes = base.as_bytes().to_vec();
        for (from, length, put) in edits {
            let from = from.index(bytes.len());
            let to = (from + length.index(12)).min(bytes.len());
            bytes.splice(from..to, put.bytes());
            prop_assume!(!bytes.is_empty());
        }
        every_decoder(&bytes);
    }

    #[test]
    fn payloads_keep_every_byte(digits in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?") {
        let body = format!(r#"{{"output":{digits},"writeToLocalAttributes":{{"k":[ {digits} ]}}}}"#);
        let answer = rpc(&body).unwrap();
        prop_assert_eq!(answer.output.as_ref().map(Json::as_str), Some(&*digits));
        prop_assert_eq!(answer.effects.write_local_attributes["k"].as_str(), format!("[ {digits} ]"));
    }
}

/// The failure that a pull worker reports is an argument of a SQL function, so unknown keys are errors.
#[test]
fn a_failure_that_is_an_argument_is_read_strictly() {
    let (failure, further) =
        decode_failure(r#"{"errorType": "Busy", "detail": "later", "retryAfterSeconds": 2.5}"#).unwrap();
    assert_eq!((failure.status, failure.error_type.as_deref(), &*failure.detail), (None, Some("Busy"), "later"));
    assert_eq!(further, Further::After(Duration::from_seconds(2.5)));
    assert_eq!(decode_failure(r#"{"final": true, "retryAfterSeconds": 1}"#).unwrap().1, Further::Never);
    assert_eq!(decode_failure("{}").unwrap().1, Further::ByPolicy);
    for wrong in [
        "[]",
        "1",
        "{",
        r#"{"errorTyp": "x"}"#,
        r#"{"retryAfterSeconds": -1}"#,
        r#"{"final": "yes"}"#,
        r#"{"detail": 1}"#,
    ] {
        assert!(decode_failure(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_rejected_answer_costs_no_attempt_if_a_registration_could_cure_it() {
    let name = || "n".to_owned();
    let unregistered = [
        Rejection::UnknownState { name: name(), within: None, known: name() },
        Rejection::UnknownQueue { name: name(), within: None, known: name() },
        Rejection::UnknownGlobalQueue(name()),
        Rejection::UnknownLocalAttribute(name()),
        Rejection::UnknownGlobalAttribute(name()),
        Rejection::UnknownFunction(name()),
        Rejection::InvalidOptions(name()),
    ];
    for rejection in unregistered {
        let (failure, further) = rejected_answer(&rejection);
        assert_eq!((failure.status, failure.error_type.as_deref()), (Some(200), Some("NotRegistered")), "{rejection}");
        assert_eq!((failure.detail, further), (rejection.to_string(), Further::WhenRegistered));
    }
    for rejection in [Rejection::InvalidAnswer(name()), Rejection::OverQuota(name())] {
        let (failure, further) = rejected_answer(&rejection);
        assert_eq!((failure.error_type.as_deref(), further), (Some("InvalidAnswer"), Further::ByPolicy), "{rejection}");
    }
}

#[test]
fn a_pull_worker_reports_an_unregistered_name_by_an_error_type() {
    let further = |text: &str| decode_failure(text).expect("it can be read").1;
    assert_eq!(further(r#"{"errorType": "NotRegistered", "detail": "no Pack"}"#), Further::WhenRegistered);
    // A key about further attempts takes precedence over the error type.
    assert_eq!(further(r#"{"errorType": "NotRegistered", "final": true}"#), Further::Never);
    let after = Further::After(Duration::from_seconds(5.0));
    assert_eq!(further(r#"{"errorType": "NotRegistered", "retryAfterSeconds": 5}"#), after);
    assert_eq!(further(r#"{"errorType": "notregistered"}"#), Further::ByPolicy);
}

#[test]
fn children_become_the_argument_of_a_bulk_start() {
    let answer = r#"{"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}, "startProcesses": [
        {"processType": "T"},
        {"processType": "U", "processId": "c\"1", "input": {"n": 1.50}, "globalAttributePk": "k", "localAttributes": {"l": null},
         "idReusePolicy": "TERMINATE_IF_RUNNING", "timeoutSeconds": 1.5, "startAt": "2030-01-01T01:00:00+01:00",
         "options": {"shardKey": "s"}, "onClose": "q", "whenParentCloses": "LEAVE"}]}"#;
    let Ok(Executed::Decided(answer)) = decode_execute(answer.as_bytes(), &LIMITS) else { panic!("an answer") };
    let children = answer.effects.start_processes;
    assert_eq!(children[0].when_parent_closes, WhenParentCloses::Terminate);
    assert_eq!((children[1].on_close.as_deref(), children[1].when_parent_closes), (Some("q"), WhenParentCloses::Leave));
    let start: serde_json::Value = serde_json::from_str(&bulk_start(&children)).expect("JSON");
    let expected = serde_json::json!([
        {"process_type": "T", "id_reuse_policy": "ALLOW_IF_NO_RUNNING"},
        {"process_type": "U", "process_id": "c\"1", "input": {"n": 1.5}, "global_attribute_pk": "k",
         "local_attributes": {"l": null}, "id_reuse_policy": "TERMINATE_IF_RUNNING", "timeout": "1500000 microseconds",
         "start_at": "2030-01-01T00:00:00.000000Z", "options": {"shardKey": "s"}},
    ]);
    assert_eq!(start, expected);
}
