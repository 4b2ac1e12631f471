//! Documents of all kinds, with all keys that they may have.

use serde_json::{Value, json};
use xdb_protocol::*;

pub const LIMITS: AnswerLimits = AnswerLimits { max_payload_bytes: 10_000, max_answer_bytes: usize::MAX };

pub type Decoder = fn(&str) -> Result<(), String>;

/// A reader of each kind of document, with a document that uses all of its keys.
pub fn documents() -> Vec<(Decoder, Value)> {
    let options = json!({
        "skipWaitUntil": false, "waitUntilApiTimeoutSeconds": 1.5, "executeApiTimeoutSeconds": 2,
        "waitUntilApiRetryPolicy": {"initialIntervalSeconds": 1, "backoffCoefficient": 2, "maximumIntervalSeconds": 3,
            "maximumAttempts": 4, "maximumAttemptsDurationSeconds": 5},
        "executeApiRetryPolicy": {"maximumAttempts": 1},
        "stateFailureRecoveryOptions": {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B",
            "stateFailureProceedStateConfig": {"skipWaitUntil": true}},
        "loadGlobalAttributes": {"policy": "PARTIAL", "names": ["g"], "lockType": "NO_LOCKING"},
        "loadLocalAttributes": {"policy": "ALL"},
        "waitUntilLoadGlobalAttributes": {"policy": "NONE"}, "executeLoadGlobalAttributes": {"policy": "ALL"},
        "waitUntilLoadLocalAttributes": {"policy": "PARTIAL", "names": ["l"]},
        "executeLoadLocalAttributes": {"policy": "NONE"},
        "commandRequest": {"waitingType": "AnyOfCombination",
            "timerCommands": [{"commandId": "t", "delayInSeconds": 1}, {"commandId": "u", "fireAt": "2030-01-01T00:00:00Z"},
                {"commandId": "c", "cron": "@hourly", "timezone": "UTC"}],
            "localQueueCommands": [{"commandId": "q", "queueName": "q", "atLeast": 1, "atMost": 2}],
            "combinations": [["t"], ["q", "u"]]},
    });
    let mut guarded = options.clone();
    guarded["guards"] = json!(["G"]);
    guarded["compensationStateId"] = json!("B");
    let called = json!({"waitUntilFunction": "s.f", "executeFunction": "s.f",
        "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}});
    let guard = json!({"interrupting": false, "commandRequest": {"waitingType": "AnyOfCompletion",
        "localQueueCommands": [{"queueName": "q", "count": 1}]}});
    let mut wait_until = json!({"commandRequest": {"waitingType": "AnyOfCombination",
        "timerCommands": [{"commandId": "t", "delayInSeconds": 1}, {"commandId": "u", "fireAt": "2030-01-01T00:00:00Z"},
            {"commandId": "c", "cron": "*/5 8-18 1,15 jan-jun mon", "timezone": "Europe/Berlin"}],
        "localQueueCommands": [{"commandId": "q", "queueName": "q", "count": 1},
            {"commandId": "r", "queueName": "q", "atLeast": 1, "atMost": 2}],
        "globalQueueCommands": [{"commandId": "g", "queueName": "q", "key": "k", "count": 1},
            {"commandId": "h", "queueName": "q", "atLeast": 1, "atMost": 2}],
        "combinations": [["t"], ["q", "u"]]}});
    let mut execute = json!({"stateDecision": {"nextStates": [
        {"stateId": "A", "stateInput": [1], "stateConfig": options, "delayInSeconds": 1}]}});
    let mut close = json!({"stateDecision": {"conditionalClose": {"closeType": "FORCE_COMPLETE_PROCESS",
        "whenLocalQueuesEmpty": ["q"], "closeInput": {"a": 1}},
        "nextStates": [{"stateId": "A", "startAt": "2030-01-01T00:00:00Z"}]}});
    let mut rpc = json!({"output": "x",
        "stateDecision": {"threadCloseDecision": {"closeType": "COMPENSATE_PROCESS", "closeInput": 1}}});
    for answer in [&mut execute, &mut close, &mut rpc] {
        answer["abortStates"] = json!(["A", "B-2"]);
    }
    for answer in [&mut wait_until, &mut execute, &mut close, &mut rpc] {
        answer["publishToLocalQueue"] = json!([{"queueName": "q", "messageId": "m", "payload": {"deep": [null]}}]);
        answer["publishToGlobalQueue"] =
            json!([{"queueName": "q", "key": "k", "messageId": "m", "payload": [1], "ttlSeconds": 1.5}]);
        answer["callFunctions"] = json!([{"function": "f", "argument": {"a": 1}}]);
        answer["writeToLocalAttributes"] = json!({"l": 1});
        answer["writeToGlobalAttributes"] = json!({"g": "x"});
        answer["startProcesses"] = json!([{"processType": "T", "processId": "c", "input": [1], "globalAttributePk": "k",
            "globalAttributes": {"g": 1}, "localAttributes": {"l": [null]}, "idReusePolicy": "DISALLOW_REUSE",
            "timeoutSeconds": 5, "startAt": "2030-01-01T00:00:00Z", "options": {"shardKey": "s", "priority": 1, "locks": ["a"]},
            "onClose": "q", "whenParentCloses": "LEAVE"}]);
    }
    let definition = json!({"startingState": "A", "states": {"A": guarded, "B": null, "C": called, "G": guard},
        "guards": ["G"],
        "globalAttributes": [{"table": "t", "primaryKey": ["a", "b"], "attributes": {"g": "c"}}],
        "localAttributes": ["l"], "localQueues": ["q"], "globalQueues": ["q"], "functions": {"f": "s.f"},
        "rpcs": {"r": {"timeoutSeconds": 1, "loadGlobalAttributes": {"policy": "PARTIAL", "names": ["g"]},
            "loadLocalAttributes": {"policy": "PARTIAL", "names": ["l"]}, "function": "s.f"}},
        "timeoutSeconds": 10, "retentionSeconds": -1, "history": {"keepLast": 100}, "strictAnswers": true,
        "priority": -1, "changes": "c", "locks": ["a", {"name": "b", "mode": "SHARE"}]});
    let start = json!({"globalAttributeKeys": {"t": {"a": 1, "b": "x"}}, "requestId": "r",
        "globalAttributeConflictMode": "IGNORE_CONFLICT", "startingState": "A", "startingStateConfig": options,
        "history": "none", "priority": 1, "shardKey": "s", "correlationKey": "k",
        "merge": {"input": "s.f", "startAt": "LATEST", "withinSeconds": 1, "atMostSeconds": 2},
        "locks": ["a", {"name": "b", "mode": "SHARE"}],
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"});
    vec![
        (|text| decode_wait_until(text.as_bytes(), &LIMITS).map(drop), wait_until),
        (|text| decode_execute(text.as_bytes(), &LIMITS).map(drop), execute),
        (|text| decode_execute(text.as_bytes(), &LIMITS).map(drop), close),
        (|text| decode_rpc(text.as_bytes(), &LIMITS).map(drop), rpc),
        (|text| parse_definition(text).map(drop), definition),
        (|text| parse_start_options(text).map(drop), start),
    ]
}
