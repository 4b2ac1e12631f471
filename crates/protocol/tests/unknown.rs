//! Unknown keys of answers change nothing, and the warnings name their places. Each key of each answer is misspelt
//! once.

mod common;

use common::{LIMITS, documents};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use xdb_protocol::*;

fn wait_until(body: &Value) -> Result<Vec<String>, String> {
    decode_wait_until(body.to_string().as_bytes(), &LIMITS).map(|answer| answer.effects.warnings)
}

fn execute(body: &Value) -> Result<Vec<String>, String> {
    decode_execute(body.to_string().as_bytes(), &LIMITS).map(|answer| answer.effects().warnings.clone())
}

fn rpc(body: &Value) -> Result<Vec<String>, String> {
    decode_rpc(body.to_string().as_bytes(), &LIMITS).map(|answer| answer.effects.warnings)
}

type Reader = fn(&Value) -> Result<Vec<String>, String>;

/// Answers that use each of their keys.
fn answers() -> Vec<(Reader, Value)> {
    let documents = documents().into_iter().map(|(_, document)| document);
    [wait_until as Reader, execute, execute, rpc].into_iter().zip(documents).collect()
}

fn dead_end() -> Value {
    json!({"stateDecision": {"threadCloseDecision": {"closeType": "DEAD_END"}}})
}

/// Whether the application chooses the keys at this place, or the place is in the options of a child, where an unknown
/// key makes the answer invalid.
fn is_of_application(place: &str) -> bool {
    [
        "/stateInput",
        "/closeInput",
        "/output",
        "/payload",
        "/writeToLocalAttributes",
        "/writeToGlobalAttributes",
        "/startProcesses/0/input",
        "/startProcesses/0/localAttributes",
        "/startProcesses/0/globalAttributes",
        "/startProcesses/0/options",
        "/callFunctions/0/argument",
    ]
    .iter()
    .any(|users| place.split_inclusive('/').count() > 1 && place.contains(users))
}

/// Each object with keys of the protocol: its place as a JSON pointer, and as in a warning.
fn objects(value: &Value, pointer: &str, shown: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) if !is_of_application(pointer) => {
            found.push((pointer.to_owned(), shown.to_owned()));
            for (key, value) in members {
                let dot = if shown.is_empty() { "" } else { "." };
                objects(value, &format!("{pointer}/{key}"), &format!("{shown}{dot}{key}"), found);
            }
        }
        Value::Array(items) if !is_of_application(pointer) => {
            for (n, item) in items.iter().enumerate() {
                objects(item, &format!("{pointer}/{n}"), &format!("{shown}[{n}]"), found);
            }
        }
        _ => {}
    }
}

fn members<'d>(document: &'d mut Value, pointer: &str) -> &'d mut Map<String, Value> {
    document.pointer_mut(pointer).and_then(Value::as_object_mut).expect("an object of it")
}

#[test]
fn a_known_key_never_causes_a_warning() {
    for (read, document) in answers() {
        assert_eq!(read(&document), Ok(vec![]), "{document}");
    }
}

#[test]
fn an_unknown_key_causes_a_warning_in_any_object() {
    let mut tried = 0;
    for (read, document) in answers() {
        let mut found = Vec::new();
        objects(&document, "", "", &mut found);
        for (pointer, shown) in found {
            let mut with = document.clone();
            members(&mut with, &pointer).insert("vaule".to_owned(), json!({"known": 1}));
            let dot = if shown.is_empty() { "" } else { "." };
            // If all items of a list have the key, the warning names the first item.
            assert_eq!(read(&with), Ok(vec![format!("unknown key {shown}{dot}vaule")]));
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried} objects");
}

/// The warning is there, whether the misspelt key makes the answer invalid or not.
#[test]
fn a_misspelt_key_causes_a_warning_with_or_without_a_failure() {
    let mut failures = 0;
    for (read, document) in answers() {
        let mut found = Vec::new();
        objects(&document, "", "", &mut found);
        for (pointer, shown) in found {
            let keys: Vec<_> = members(&mut document.clone(), &pointer).keys().cloned().collect();
            for key in keys {
                let mut with = document.clone();
                let members = members(&mut with, &pointer);
                let value = members.remove(&key).expect("it is there");
                members.insert(format!("{key}x"), value);
                let dot = if shown.is_empty() { "" } else { "." };
                let warning = format!("unknown key {shown}{dot}{key}x");
                match read(&with) {
                    Ok(warnings) => assert_eq!(warnings, [warning]),
                    Err(message) => {
                        failures += 1;
                        assert!(message.ends_with(&format!("; {warning}")), "{message}");
                    }
                }
            }
        }
    }
    assert!(failures > 10, "{failures} failures");
}

#[test]
fn a_key_of_many_items_causes_a_warning_for_the_first() {
    let item = |n: u32| if n < 3 { json!({"stateId": "A"}) } else { json!({"stateId": "A", "stateConfg": {}, "n": n}) };
    let many = json!({"stateDecision": {"nextStates": (0..10_000).map(item).collect::<Vec<_>>()}});
    let shown = ["unknown key stateDecision.nextStates[3].n", "unknown key stateDecision.nextStates[3].stateConfg"];
    assert_eq!(execute(&many), Ok(shown.map(str::to_owned).to_vec()));
    let lists = json!({"stateDecision": dead_end()["stateDecision"],
        "publishToLocalQueue": [{"queueName": "q", "x": 1}, {"queueName": "q", "y": 1}],
        "publishToGlobalQueue": [{"queueName": "q", "x": 1}]});
    let shown = ["publishToLocalQueue[0].x", "publishToLocalQueue[1].y", "publishToGlobalQueue[0].x"];
    assert_eq!(execute(&lists), Ok(shown.map(|place| format!("unknown key {place}")).to_vec()));
}

#[test]
fn keys_of_payloads_and_errors_are_the_workers_own() {
    let body = json!({"output": {"vaule": 1}, "writeToLocalAttributes": {"vaule": {"vaule": 1}}});
    assert_eq!(rpc(&body), Ok(vec![]));
    assert_eq!(decode_error(500, None, br#"{"detail": "no", "code": 7}"#).0.detail, "no");
}

#[test]
fn the_warnings_about_a_hostile_answer_are_short() {
    let mut body = dead_end();
    for n in 0..100_000 {
        body[format!("{n}{}", "k\u{1}ö".repeat(50))] = json!(null);
    }
    let warnings = execute(&body).unwrap();
    assert!(warnings.len() <= 9 && warnings.iter().map(String::len).sum::<usize>() < 1_000, "{warnings:?}");
    assert_eq!(warnings.last().unwrap(), "further unknown keys");
    assert!(warnings.iter().all(|warning| !warning.contains(char::is_control)));

    // Of a long place, the end is shown, because the key is there.
    let mut options = json!({"skipWaitUntill": true});
    for _ in 0..10 {
        options = json!({"stateFailureRecoveryOptions": {"stateFailureProceedStateConfig": options}});
    }
    let deep = json!({"stateDecision": {"nextStates": [{"stateId": "A", "stateConfig": options}]}});
    let warnings = execute(&deep).unwrap();
    assert!(warnings[0].starts_with("unknown key …") && warnings[0].ends_with("Config.skipWaitUntill"), "{warnings:?}");
    assert!(warnings[0].chars().count() < 150, "{warnings:?}");
}

proptest! {
    #[test]
    fn any_keys_cause_short_warnings_or_none(
        keys in proptest::collection::vec("\\PC{0,300}|[a-z]{1,3}", 0..30),
        which in 0usize..4, at in any::<prop::sample::Index>(),
    ) {
        let (read, mut document) = answers().swap_remove(which);
        let mut found = Vec::new();
        objects(&document, "", "", &mut found);
        let (pointer, _) = &found[at.index(found.len())];
        let before = members(&mut document, pointer).len();
        for key in &keys {
            members(&mut document, pointer).entry(key.clone()).or_insert(json!(1));
        }
        let added = members(&mut document, pointer).len() - before;
        let warnings = read(&document).unwrap();
        prop_assert_eq!(added == 0, warnings.is_empty());
        prop_assert!(warnings.len() <= 9 && warnings.len() <= added.max(1));
        prop_assert!(warnings.iter().map(String::len).sum::<usize>() < 1_000);
    }
}
