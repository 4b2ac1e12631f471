//! Random commands and answers: every execution agrees with its history, and the same commands give the same lines.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use xdb_engine::Timestamp;
use xdb_sim::Simulator;

/// 2027-01-01T00:00:00Z
const BEGINNING: Timestamp = Timestamp(1_798_761_600_000_000);

/// Random numbers, the same for the same seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

const PROCESSES: &[&str] = &["p", "q", "r"];
/// Most of them are started by answers alone.
const CHILDREN: &[&str] = &["c", "d", "r"];
const STATES: &[&str] = &["A", "B", "C", "G"];
const QUEUES: &[&str] = &["x", "y"];

fn definition(locks: &str) -> Value {
    json!({
        "startingState": "A",
        "states": {
            "A": {"executeApiRetryPolicy": {"maximumAttempts": 1}, "stateFailureRecoveryOptions":
                {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "B"},
                "guards": ["G"], "compensationStateId": "B"},
            "G": {"interrupting": locks == "SHARE_LOCK", "commandRequest": {"waitingType": "AnyOfCompletion",
                "timerCommands": [{"delayInSeconds": 200}], "localQueueCommands": [{"queueName": "y", "count": 2}]}},
            "H": {"commandRequest": {"waitingType": "AnyOfCompletion",
                "timerCommands": [{"cron": "@every 2 hours"}], "localQueueCommands": [{"queueName": "x", "count": 9}]}},
            "B": {"skipWaitUntil": true, "executeApiRetryPolicy": {"maximumAttempts": 3}, "stateFailureRecoveryOptions":
                {"policy": "PROCEED_TO_CONFIGURED_STATE", "stateFailureProceedStateId": "C"}},
            "C": {"loadGlobalAttributes": {"policy": "ALL", "lockType": locks}, "waitUntilApiTimeoutSeconds": 3,
                "executeApiRetryPolicy": {"maximumAttempts": 2}, "stateFailureRecoveryOptions": {"policy": "RAISE_INCIDENT"},
                "loadLocalAttributes": {"policy": "PARTIAL", "names": ["a"], "lockType": locks}},
        },
        "globalAttributes": [{"table": "t", "primaryKey": "id", "attributes": {"n": "n"}}],
        "localQueues": QUEUES, "globalQueues": ["g"], "timeoutSeconds": 5000, "guards": ["H"],
        "locks": if locks == "NO_LOCKING" { json!(["one"]) } else { json!([]) },
    })
}

fn effects(random: &mut Random, answer: &mut Value) {
    if random.chance(30) {
        answer["writeToLocalAttributes"] = json!({random.one_of(&["a", "b"]): random.below(9)});
    }
    if random.chance(30) {
        answer["writeToGlobalAttributes"] = json!({"n": random.below(9)});
    }
    if random.chance(30) {
        let id = random.chance(50).then(|| random.below(5).to_string());
        answer["publishToLocalQueue"] = json!([{"queueName": random.one_of(QUEUES), "messageId": id, "payload": 1}]);
    }
    if random.chance(8) {
        let child = json!({"processType": random.one_of(&["P", "P", "P", "Q"]), "processId": random.one_of(CHILDREN),
            "onClose": random.one_of(QUEUES), "whenParentCloses": random.one_of(&["TERMINATE", "LEAVE"]),
            "globalAttributePk": "1", "globalAttributes": {"n": 1},
            "options": {"locks": [{"name": random.one_of(&["one", "two"]), "mode": random.one_of(&["SHARE", "EXCLUSIVE"])}]}});
        answer["startProcesses"] = json!([child]);
    }
    if answer["commandRequest"].is_null() && random.chance(10) {
        answer["abortStates"] = json!([random.one_of(&["*", "A", "B-1", "G", "none"])]);
    }
    if random.chance(20) {
        let ttl = random.chance(50).then(|| random.below(100));
        let id = random.chance(30).then(|| random.below(5).to_string());
        answer["publishToGlobalQueue"] =
            json!([{"queueName": "g", "key": random.one_of(&[None, Some("k")]), "messageId": id, "ttlSeconds": ttl}]);
    }
}

fn next_states(random: &mut Random) -> Value {
    let next = (0..=random.below(2)).map(|_| json!({"stateId": random.one_of(STATES)}));
    json!(next.collect::<Vec<_>>())
}

fn wait_until(random: &mut Random) -> Value {
    let mut request = json!({"waitingType": random.one_of(&["AnyOfCompletion", "AllOfCompletion"]),
    "timerCommands": [match random.chance(20) {
        true => json!({"cron": random.one_of(&["@hourly", "@every 90 seconds", "0 0 31 2 *"]), "timezone": "UTC"}),
        false => json!({"delayInSeconds": random.below(500)}),
    }]});
    if random.chance(60) {
        request["localQueueCommands"] = json!([{"queueName": random.one_of(QUEUES), "count": 1 + random.below(3)}]);
    }
    if random.chance(40) {
        let key = random.one_of(&[None, Some("k")]);
        request["globalQueueCommands"] =
            json!([{"queueName": "g", "key": key, "atLeast": 1, "atMost": 1 + random.below(3)}]);
    }
    json!({"commandRequest": request})
}

fn execute(random: &mut Random) -> Value {
    let close = random.one_of(&[
        "GRACEFUL_COMPLETE_PROCESS",
        "DEAD_END",
        "FORCE_COMPLETE_PROCESS",
        "FORCE_FAIL_PROCESS",
        "COMPENSATE_PROCESS",
    ]);
    json!({"stateDecision": match random.below(10) {
        0..6 => json!({"nextStates": next_states(random)}),
        6..8 => json!({"threadCloseDecision": {"closeType": close, "closeInput": 1}}),
        _ => json!({"nextStates": next_states(random), "conditionalClose":
            {"closeType": "GRACEFUL_COMPLETE_PROCESS", "whenLocalQueuesEmpty": [random.one_of(QUEUES)]}}),
    }})
}

/// A random answer to a call, valid or not.
fn answer(random: &mut Random, call: &Value) -> Value {
    let path = call["path"].as_str().unwrap();
    let (mut status, mut body) = (
        200,
        match path.rsplit('/').next().unwrap() {
            "wait-until" => wait_until(random),
            "execute" => execute(random),
            _ => json!({"output": random.below(9)}),
        },
    );
    effects(random, &mut body);
    match random.below(20) {
        0..3 => (status, body) = (500, json!({"errorType": "Broken"})),
        3 => body = json!({"odd": 1}),
        4 => body["odd"] = json!(1),
        5 => body["writeToGlobalAttributes"] = json!({"unknown": 1}),
        _ => {}
    }
    json!({"answer": {"call": call["call"], "status": status, "body": body.to_string()}})
}

/// The mode and the end of a pause. The end may be in the past.
fn pause(random: &mut Random) -> (&'static str, Option<&'static str>) {
    let until = random.one_of(&[None, Some("2027-01-01T00:01:00Z"), Some("2027-01-01T00:10:00Z")]);
    (random.one_of(xdb_engine::PauseMode::WORDS), until)
}

fn command(random: &mut Random, open: &mut Vec<Value>) -> Value {
    let process_id = random.one_of(PROCESSES);
    match random.below(30) {
        0..3 => {
            let policy = random.one_of(xdb_engine::IdReusePolicy::WORDS);
            let mode = random.one_of(xdb_protocol::ConflictMode::WORDS);
            let start_at = random.chance(20).then_some("2027-01-01T00:10:00Z");
            json!({"start": {"process_id": process_id, "process_type": "P", "id_reuse_policy": policy, "start_at": start_at,
                "global_attribute_pk": random.one_of(&["1", "2"]), "global_attributes": {"n": 1},
                "options": {"globalAttributeConflictMode": mode}}})
        }
        3..6 => json!({"calls": {}}),
        6..13 if !open.is_empty() => {
            let call = open.remove(random.below(open.len()));
            answer(random, &call)
        }
        13..15 => {
            let id = random.chance(50).then(|| random.below(5).to_string());
            json!({"publish": {"process_id": process_id, "queue_name": random.one_of(QUEUES), "message": 1, "message_id": id}})
        }
        15..17 => json!({"publish_global": {"queue_name": "g", "key": random.one_of(&[None, Some("k")]), "message": 1,
            "ttl": random.chance(50).then(|| random.below(50))}}),
        17 => {
            let key = random.chance(50).then(|| random.below(9).to_string());
            json!({"rpc": {"process_id": process_id, "rpc_name": "r", "idempotency_key": key}})
        }
        18 if random.chance(30) => json!({"stop": {"process_id": process_id}}),
        19 => {
            let state = format!("{}-{}", random.one_of(STATES), 1 + random.below(5));
            json!({"skip_timer": {"process_id": process_id, "state_execution_id": state}})
        }
        20 => json!({"retry_now": {"process_id": process_id}}),
        21 => {
            let row = random.one_of(&["1", "2"]);
            match random.chance(30) {
                true => json!({"rows": {"table": "t", "key": {"id": row}, "delete": true}}),
                false => json!({"rows": {"table": "t", "key": {"id": row}, "set": {"n": random.below(9)}}}),
            }
        }
        22 if random.chance(50) => {
            let state = format!("{}-{}", random.one_of(STATES), 1 + random.below(3));
            let next = if random.chance(50) { next_states(random) } else { json!([]) };
            json!({"move_state": {"process_id": process_id, "state_execution_id": state, "next_states": next}})
        }
        22 => json!({"set_local_attributes": {"process_id": process_id, "attributes": {"a": random.below(9)}}}),
        23 => {
            let (mode, until) = pause(random);
            json!({"pause_process": {"process_id": process_id, "mode": mode, "until": until}})
        }
        24 if random.chance(30) => {
            let (mode, until) = pause(random);
            json!({"pause_process_type": {"process_type": "P", "mode": mode, "until": until}})
        }
        25 => json!({"resume_process": {"process_id": process_id}}),
        26 => json!({"resume_process_type": {"process_type": "P"}}),
        _ if random.chance(50) => json!({"advance": {}}),
        _ => json!({"advance": {"by": random.below(100)}}),
    }
}

/// Executes this number of random commands. Returns the lines that came back.
fn run(seed: u64, commands: usize) -> Vec<String> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut simulator = Simulator::new(BEGINNING);
    let locks = random.one_of(&["NO_LOCKING", "SHARE_LOCK", "EXCLUSIVE_LOCK"]);
    let mut lines =
        vec![simulator.line(&json!({"register": {"process_type": "P", "definition": definition(locks)}}).to_string())];
    let (mut open, mut checks) = (Vec::new(), BTreeSet::new());
    for number in 0..commands {
        let command = command(&mut random, &mut open);
        let line = simulator.line(&command.to_string());
        let reply: Value = serde_json::from_str(&line).unwrap();
        match &reply["result"] {
            Value::Array(calls) if command.get("calls").is_some() => open.extend(calls.iter().cloned()),
            Value::Object(rpc) if rpc.contains_key("call") => open.push(rpc["call"].clone()),
            _ => {}
        }
        let state = reply["error"]["sqlstate"].as_str().unwrap_or_default();
        assert!(!["XX000", "08P01"].contains(&state), "seed {seed}, command {number}: {command}\n{line}");
        if let (Some(start), Value::String(id)) = (command.get("start"), &reply["result"]) {
            checks.insert(json!({"check": {"process_id": start["process_id"], "execution_id": id}}).to_string());
        }
        for check in &checks {
            let problems = simulator.line(check);
            assert_eq!(problems, r#"{"result":[]}"#, "seed {seed}, command {number}: {command}");
        }
        lines.push(line);
    }
    lines.extend(checks.iter().map(|check| simulator.line(&check.replacen("check", "history", 1))));
    for process_id in CHILDREN {
        let of_process = |command: &str| json!({command: {"process_id": process_id}}).to_string();
        let check = simulator.line(&of_process("check"));
        assert!(check == r#"{"result":[]}"# || check.contains("XD001"), "seed {seed}: {check}");
        lines.push(simulator.line(&of_process("history")));
    }
    lines
}

#[test]
fn histories_replay_to_the_simulators_state_after_random_requests() {
    let mut seen = String::new();
    for seed in 1..=60 {
        seen.extend(run(seed, 300));
    }
    // The runs have reached everything that the test is about.
    for what in [
        "\"applied\":true",
        "\"applied\":false",
        "XD006",
        "XD007",
        "XD010",
        "XD023",
        "23505",
        "recoverFromApi",
        "globalQueueResults\\\":[{",
        "appDatabaseError",
        "StateAborted",
        "ChildrenStarted",
        "startedBy",
        "its parent closed",
        "CompensationStarted",
        "CompensationAdded",
        r#""guard":true"#,
        r#""cron":true"#,
        r#""locks":{"#,
    ] {
        assert!(seen.contains(what), "{what} did not happen");
    }
}

#[test]
fn the_same_commands_give_the_same_lines() {
    assert_eq!(run(7, 300), run(7, 300));
}
