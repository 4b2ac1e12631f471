//! Unexpected values, as SQL and as JSON.

use serde_json::{Map, Value, json};
use xdb_cluster_tests::db::{jsonb, literal};
use xdb_cluster_tests::random::Random;

/// Words with a meaning: names that are in use, and words of the protocol.
pub const WORDS: &[&str] = &[
    "p0",
    "p1",
    "p2",
    "p3",
    "p4",
    "odd",
    "odd-pull",
    "odd-function",
    "worker-a",
    "worker-b",
    "worker-c",
    "Start",
    "Wait",
    "Start-1",
    "Wait-1",
    "Wait-2",
    "inbox",
    "orders",
    "ask",
    "t",
    "n",
    "counters",
    "public.counters",
    "id",
    "TERMINATE",
    "FAIL",
    "CANCEL",
    "ALLOW_IF_NO_RUNNING",
    "DISALLOW_REUSE",
    "TERMINATE_IF_RUNNING",
    "FULL",
    "ALL",
    "NONE",
    "FORCE_COMPLETE_PROCESS",
    "DEAD_END",
    "AnyOfCompletion",
    "*",
    "-",
    "null",
    "app",
    "other",
    "0",
    "Guard",
    "Guard-1",
    "changes",
    "SHARE",
    "LEAVE",
    "COMPENSATE_PROCESS",
    "Schedule",
    "@every 1 second",
    "Europe/Berlin",
];

/// The process types, and one that is not registered.
const TYPES: &[&str] = &["odd", "odd-2", "odd-2", "odd-pull", "odd-pull", "odd-function", "odd-function", "gone"];

/// A text: a word, or a text that is not a valid name.
pub fn text(random: &mut Random) -> String {
    match random.below(12) {
        0..=5 => (*random.pick(WORDS)).to_owned(),
        6 => String::new(),
        7 => "x".repeat(*random.pick(&[255, 1024, 1025, 70_000, 1_500_000])),
        8 => format!("p{}", random.below(40)),
        9 => (0..random.between(1, 8))
            .filter_map(|_| char::from_u32(random.below(0x11_0000) as u32))
            .filter(|c| *c != '\0')
            .collect(),
        10 => "'; DROP TABLE counters; --\\\"\u{202e}\n\t%s%n$1".to_owned(),
        _ => (*random.pick(&[
            "-1",
            "1e400",
            "NaN",
            "infinity",
            " ",
            "2027-02-30",
            "{}",
            "00000000-0000-0000-0000-000000000000",
        ]))
        .to_owned(),
    }
}

/// Any JSON of at most this depth.
pub fn any_json(random: &mut Random, depth: u32) -> Value {
    match random.below(if depth == 0 { 7 } else { 10 }) {
        0 => Value::Null,
        1 => json!(random.permille(500)),
        2 => json!(*random.pick(&[0_i64, -1, 1, 2_147_483_648, i64::MAX, i64::MIN])),
        3 => json!(*random.pick(&[0.5, -0.0, 1e300, 1e-300, 1e18])),
        4..=6 => json!(text(random)),
        7 => (0..random.below(4)).map(|_| any_json(random, depth - 1)).collect(),
        _ => (0..random.below(4)).map(|_| (text(random), any_json(random, depth - 1))).collect::<Map<_, _>>().into(),
    }
}

/// Changes a value in some places: a part is replaced, removed or added.
pub fn mutate(random: &mut Random, value: &mut Value) {
    match value {
        Value::Array(list) if !list.is_empty() && random.permille(800) => match random.below(5) {
            0 => {
                let copy = random.pick(list).clone();
                list.extend(vec![copy; *random.pick(&[1, 10, 1500])]);
            }
            1 => {
                let at = random.below(list.len() as u64) as usize;
                list.remove(at);
            }
            _ => {
                let at = random.below(list.len() as u64) as usize;
                mutate(random, &mut list[at]);
            }
        },
        Value::Object(members) if !members.is_empty() && random.permille(800) => {
            let keys: Vec<_> = members.keys().cloned().collect();
            let key = random.pick(&keys).clone();
            match random.below(6) {
                0 => {
                    members.remove(&key);
                }
                1 => {
                    members.insert(text(random), any_json(random, 3));
                }
                _ => {
                    if let Some(member) = members.get_mut(&key) {
                        mutate(random, member);
                    }
                }
            }
        }
        other => *other = any_json(random, 3),
    }
}

/// A valid definition of a process type.
pub fn definition() -> Value {
    json!({
        "startingState": "Start",
        "states": {"Start": {"skipWaitUntil": true, "executeApiTimeoutSeconds": 2, "executeApiRetryPolicy": {"maximumAttempts": 5},
                "stateFailureRecoveryOptions": {"policy": "COMPENSATE_PROCESS"}},
            "Wait": {"waitUntilApiTimeoutSeconds": 2, "guards": ["Guard"], "compensationStateId": "Start"},
            "Guard": {"interrupting": false, "commandRequest": {"waitingType": "AnyOfCompletion",
                "timerCommands": [{"delayInSeconds": 1}], "localQueueCommands": [{"queueName": "inbox", "count": 1}]}}},
        "guards": ["Guard"],
        "locks": [{"name": "all", "mode": "SHARE"}],
        "changes": "changes",
        "globalAttributes": [{"table": "public.counters", "primaryKey": ["id"], "attributes": {"n": "n"}}],
        "localQueues": ["inbox"],
        "globalQueues": ["orders"],
        "rpcs": {"ask": {"timeoutSeconds": 1}},
    })
}

/// The same, with functions that answer all calls.
pub fn definition_with_functions() -> Value {
    let mut definition = definition();
    for state in ["Start", "Wait", "Guard"] {
        definition["states"][state]["executeFunction"] = json!("public.decides");
    }
    definition["states"]["Wait"]["waitUntilFunction"] = json!("public.waits");
    definition["rpcs"]["ask"]["function"] = json!("public.asked");
    definition
}

/// Options of a start, of which some are valid for a child too, and some are never valid.
pub fn start_options(random: &mut Random) -> Value {
    let mut options = json!({});
    if random.permille(300) {
        let mode = *random.pick(&["EXCLUSIVE", "SHARE", "NONE"]);
        options["locks"] = json!([format!("l{}", random.below(20)), {"name": text(random), "mode": mode}]);
    }
    if random.permille(100) {
        options["parent"] = json!({"processId": "p1", "processExecutionId": "00000000-0000-0000-0000-000000000000"});
    }
    if random.permille(200) {
        options["startingStateConfig"] =
            json!({"executeApiTimeoutSeconds": 1, "commandRequest": command_request(random)});
    }
    if random.permille(100) {
        options["requestId"] = json!("r1");
    }
    if random.permille(200) {
        options["startingState"] = json!(*random.pick(&["Wait", "Start", "Guard", "Nowhere"]));
    }
    options
}

/// What a state waits for.
pub fn command_request(random: &mut Random) -> Value {
    json!({"waitingType": *random.pick(&["AnyOfCompletion", "AllOfCompletion", "EmptyCommand"]),
        "timerCommands": [cron_timer(random), {"delayInSeconds": 0.1}],
        "localQueueCommands": [{"queueName": *random.pick(&["inbox", "nowhere"])}]})
}

/// A timer with a cron expression, right or wrong.
pub fn cron_timer(random: &mut Random) -> Value {
    let cron =
        *random.pick(&["@every 1 second", "* * * * *", "0 0 31 2 *", "0 0 29 2 *", "@yearly", "@every 0 days", "x"]);
    json!({"cron": cron, "timezone": *random.pick(&["UTC", "Europe/Berlin", "Nowhere", "../UTC"])})
}

/// Children that an answer starts.
pub fn children(random: &mut Random) -> Value {
    let count = *random.pick(&[1, 2, 30, 1001]);
    let child = |_| {
        json!({"processType": *random.pick(TYPES), "processId": format!("p{}", random.below(4000)),
            "input": any_json(random, 1), "globalAttributePk": "k1", "globalAttributes": {"n": random.below(9)},
            "localAttributes": {"a": 1}, "idReusePolicy": *random.pick(&["ALLOW_IF_NO_RUNNING", "TERMINATE_IF_RUNNING"]),
            "timeoutSeconds": random.below(20), "startAt": *random.pick(&[Value::Null, json!("2030-01-01T00:00:00Z")]),
            "options": start_options(random), "onClose": *random.pick(&["inbox", "nowhere"]),
            "whenParentCloses": *random.pick(&["TERMINATE", "LEAVE"])})
    };
    (0..count).map(child).collect()
}

/// An argument of this type, as SQL.
pub fn argument(random: &mut Random, of_type: &str, name: &str) -> String {
    if random.permille(60) {
        return format!("NULL::{of_type}");
    }
    match of_type {
        "text" => literal(&word(random, name)),
        "jsonb" => json_argument(random, name),
        "uuid" => format!(
            "'{}'::uuid",
            random.pick(&["00000000-0000-0000-0000-000000000000", "01a20502-8cd2-7026-9da3-a1d7a2a73a3b"])
        ),
        "interval" => format!(
            "'{}'::interval",
            random.pick(&[
                "0",
                "10 ms",
                "-1 s",
                "1 us",
                "100 ms",
                "1 day",
                "170000000 years",
                "-170000000 years",
                "1 mon"
            ])
        ),
        "timestamp with time zone" => format!(
            "'{}'::timestamptz",
            random.pick(&["infinity", "-infinity", "now", "4713-01-01 BC", "294276-12-31", "2000-01-01", "2100-01-01"])
        ),
        "integer" => format!("({})::int", random.pick(&["0", "1", "-1", "2147483647", "-2147483648", "7"])),
        "boolean" => (*random.pick(&["true", "false"])).to_owned(),
        "text[]" => {
            let some: Vec<_> = (0..random.below(4)).map(|_| literal(&text(random))).collect();
            match random.below(4) {
                0 => "ARRAY[NULL]::text[]".to_owned(),
                1 => "'{{a,b},{c,d}}'::text[]".to_owned(),
                _ => format!("ARRAY[{}]::text[]", some.join(", ")),
            }
        }
        "regrole" => format!("'{}'::regrole", random.pick(&["app", "other", "boss", "-", "stranger"])),
        other => format!("NULL::{other}"),
    }
}

/// A likely value for an argument of this name, most of the time.
fn word(random: &mut Random, name: &str) -> String {
    if random.permille(300) {
        return text(random);
    }
    match name {
        "process_id" => format!("p{}", random.below(400)),
        "process_type" => (*random.pick(TYPES)).to_owned(),
        "worker" | "name" => (*random.pick(&["worker-a", "worker-b", "worker-c"])).to_owned(),
        "queue_name" => (*random.pick(&["inbox", "orders"])).to_owned(),
        "rpc_name" => "ask".to_owned(),
        "id_reuse_policy" => {
            (*random.pick(&["ALLOW_IF_NO_RUNNING", "DISALLOW_REUSE", "TERMINATE_IF_RUNNING"])).to_owned()
        }
        "stop_type" => (*random.pick(&["TERMINATE", "FAIL", "CANCEL"])).to_owned(),
        "global_attribute_pk" => format!("k{}", random.below(10)),
        "state_execution_id" => (*random.pick(&["Start-1", "Wait-1", "Wait-2", "Guard-1"])).to_owned(),
        "cron" | "timezone" => cron_timer(random)[name].as_str().unwrap_or_default().to_owned(),
        "url" => {
            (*random.pick(&["http://127.0.0.1:9", "http://localhost", "https://127.0.0.1:1/a?b#c", "http://[::1]:80"]))
                .to_owned()
        }
        _ => text(random),
    }
}

fn json_argument(random: &mut Random, name: &str) -> String {
    match random.below(12) {
        // Too deep or too long for any reader, or with numbers that are long when they are written out. No deeper, because
        // Postgres crashes if the system can't give the stack of its `jsonb` reader more memory.
        0 => {
            let depth = random.pick(&["100", "128", "129", "300"]);
            format!("(repeat('[', {depth}) || repeat(']', {depth}))::jsonb")
        }
        1 => format!("to_jsonb(repeat('y', {}))", random.pick(&["1000000", "1100000", "20000000"])),
        2 => format!("'{}'::jsonb", random.pick(&["1e1000", "1e130000", "-1e-16000", "0.1e1"])),
        3 => format!(
            "(SELECT jsonb_object_agg('k' || n, n) FROM generate_series(1, {}) n)",
            random.pick(&["10", "11000"])
        ),
        4 | 5 => jsonb(&any_json(random, 4)),
        _ => {
            let mut value = match name {
                "definition" => definition(),
                "options" if random.permille(500) => start_options(random),
                "next_states" => {
                    json!([{"stateId": *random.pick(&["Start", "Wait", "Guard"]), "stateInput": 1, "delayInSeconds": 0.1}])
                }
                "start" => json!({"process_type": "odd", "process_id": *random.pick(&["p9-{time}", "p9"]),
                    "global_attribute_pk": "k1", "options": start_options(random)}),
                "options" => json!({"requestId": "r1", "globalAttributeKeys": {"public.counters": {"id": "k1"}},
                    "startingStateConfig": {"executeApiTimeoutSeconds": 1}, "globalAttributeConflictMode": "IGNORE_CONFLICT"}),
                "processes" => (0..random.below(20))
                    .map(|n| {
                        json!({"process_id": format!("p{}", n * 2), "process_type": *random.pick(TYPES), "global_attribute_pk": "k1",
                        "options": start_options(random)})
                    })
                    .collect(),
                "global_attributes" => json!({"n": 1}),
                "headers" => json!({"x-a": "b"}),
                _ => json!({"a": 1, "b": [1, 2, {"c": "d"}]}),
            };
            if random.permille(500) {
                mutate(random, &mut value);
            }
            jsonb(&value)
        }
    }
}
