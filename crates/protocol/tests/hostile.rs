//! Hostile documents, made from valid ones: no decoder panics, and each message is short, printable, and names the
//! place.

mod common;

use common::{LIMITS, documents};
use proptest::prelude::*;
use serde_json::{Value, json};
use xdb_protocol::*;

/// The places of all members of objects, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            let at = format!("{at}/{key}");
            places(value, &at, found);
            found.push(at);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, item)| places(item, &format!("{at}/{n}"), found));
        }
        _ => {}
    }
}

/// Whether people can read a message.
fn is_readable(message: &str) -> bool {
    !message.is_empty() && message.chars().count() < 2000 && !message.contains(|c: char| c.is_control())
}

/// The places of the application's values. Any JSON that `jsonb` accepts is valid there.
const PAYLOADS: [&str; 10] = [
    "/stateInput",
    "/closeInput",
    "/output",
    "/payload",
    "/argument",
    "/writeToLocalAttributes/",
    "/writeToGlobalAttributes/",
    "/startProcesses/0/input",
    "/startProcesses/0/localAttributes/",
    "/startProcesses/0/globalAttributes/",
];

fn is_payload(place: &str) -> bool {
    PAYLOADS.iter().any(|payload| place.ends_with(payload) || payload.ends_with('/') && place.contains(payload))
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-z]{2000}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 30, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

#[test]
fn the_documents_are_right() {
    for (decode, document) in documents() {
        decode(&document.to_string()).unwrap_or_else(|error| panic!("{error}: {document}"));
    }
}

/// Texts that `jsonb` does not accept, or that are too deep or too large, in the place of each value of the
/// application.
#[test]
fn no_payload_is_let_through_that_jsonb_refuses() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let bad = [
        (deep(129), "nested deeper than 128 levels"),
        (format!(r#"{{"a":{}}}"#, deep(128)), "nested deeper than 128 levels"),
        (r#""a\u0000b""#.to_owned(), "NUL"),
        (r#"{"a\u0000":1}"#.to_owned(), "NUL"),
        (r#""\ud800""#.to_owned(), "half of a surrogate pair"),
        (r#""\udc00\ud800""#.to_owned(), "half of a surrogate pair"),
        (r#"{"\ud800x":1}"#.to_owned(), "half of a surrogate pair"),
        ("1e131072".to_owned(), "out of the range of numeric"),
        ("-1e999999999999999999999".to_owned(), "out of the range of numeric"),
        ("1e-16384".to_owned(), "out of the range of numeric"),
        ("[1e131071]".to_owned(), "written out"),
        (format!("\"{}\"", "x".repeat(9_999)), "10001 bytes long; at most 10000 are allowed"),
    ];
    let good = [deep(128), "1e9000".to_owned(), "-0".to_owned(), format!("\"{}\"", "x".repeat(9_998))];
    let mut tried = 0;
    for (decode, document) in documents() {
        let mut found = Vec::new();
        places(&document, "", &mut found);
        for place in found
            .into_iter()
            .filter(|place| PAYLOADS.iter().any(|p| place.ends_with(p)) || place.ends_with("Attributes/l"))
        {
            let with = |text: &str| {
                let mut document = document.clone();
                *document.pointer_mut(&place).expect("a place of it") = json!("<here>");
                document.to_string().replacen("\"<here>\"", text, 1)
            };
            let key = place.rsplit('/').next().expect("a key");
            for (text, what) in &bad {
                let error = decode(&with(text)).expect_err(text);
                assert!(error.contains(what) && error.contains(key), "{place}: {error}");
                assert!(is_readable(&error), "{error}");
            }
            for text in &good {
                decode(&with(text)).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            tried += 1;
        }
    }
    assert!(tried >= 10, "{tried} places");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_value_in_any_place_is_right_or_named(
        which in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), value in any_json(),
    ) {
        let documents = documents();
        let (decode, document) = &documents[which.index(documents.len())];
        let mut found = Vec::new();
        places(document, "", &mut found);
        let place = &found[place.index(found.len())];
        let mut changed = document.clone();
        *changed.pointer_mut(place).expect("a place of it") = value;
        if let Err(error) = decode(&changed.to_string()) {
            prop_assert!(is_readable(&error), "{error:?}");
            let names = |place: &str| {
                let key = place.rsplit('/').next().expect("a key").to_lowercase();
                error.to_lowercase().contains(&key)
            };
            // Or the message names a reference to the changed place, or the payload around it, which has become too
            // long.
            let refers = error.contains("names the unknown") || error.contains("is not listed in");
            let mut around = place.match_indices('/').map(|(end, _)| &place[..end]);
            let too_long = error.contains("bytes long") && around.any(|place| is_payload(place) && names(place));
            prop_assert!(refers || too_long || names(place), "{place}: {error}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_in_documents_and_ignored_in_answers(
        which in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), key in "[a-z]{8}", value in any_json(),
    ) {
        let documents = documents();
        let number = which.index(documents.len());
        let (decode, document) = &documents[number];
        let mut found = vec![String::new()];
        places(document, "", &mut found);
        // Objects whose keys the application chooses have no unknown keys.
        found.retain(|place| {
            let of_application = ["/states", "/rpcs", "/functions", "/attributes", "/globalAttributeKeys"].iter().any(|end| place.ends_with(end));
            document.pointer(place).is_some_and(Value::is_object) && !of_application && !is_payload(place)
                && !place.ends_with("Attributes") && !place.contains("/payload/") && !place.contains("Keys/")
        });
        prop_assume!(!found.is_empty());
        let place = &found[place.index(found.len())];
        let mut changed = document.clone();
        changed.pointer_mut(place).expect("a place of it")[&key] = value;
        let result = decode(&changed.to_string());
        // The options of a child are a document in an answer.
        if number < 4 && !place.ends_with("/options") {
            prop_assert_eq!(result, Ok(()));
        } else {
            let error = result.expect_err("an unknown key");
            prop_assert!(error.contains(&format!("has the unknown key \"{key}\"; known are ")), "{place}: {error}");
        }
    }

    #[test]
    fn no_text_makes_a_document_panic(text in any::<String>(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for (decode, document) in documents() {
            let document = document.to_string();
            let cut = text.len() % document.len();
            let within = document.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(0);
            for text in [text.clone(), format!("{}{text}{}", &document[..within], &document[within..])] {
                if let Err(error) = decode(&text) {
                    prop_assert!(is_readable(&error), "{error:?}");
                }
            }
        }
        for error in [decode_wait_until(&bytes, &LIMITS).err(), decode_execute(&bytes, &LIMITS).err(), decode_rpc(&bytes, &LIMITS).err()] {
            prop_assert!(error.is_none_or(|error| error.chars().count() < 2000 && !error.contains('\0')));
        }
    }

    /// `jsonb` writes numbers out. Accepted documents must be readable in that form.
    #[test]
    fn numbers_of_options_are_read_again(number in prop_oneof![any::<f64>(), Just(f64::MAX), Just(1e300), Just(5e-324)]) {
        let number = number.abs();
        prop_assume!(number.is_finite());
        let document = format!(r#"{{"startingStateConfig":{{"executeApiTimeoutSeconds":{number:e}}}}}"#);
        match parse_start_options(&document) {
            Ok(options) => {
                let config = options.starting_state_config.expect("it was given");
                let read = config.execute_api_timeout_seconds.unwrap_or(0.0);
                prop_assert_eq!(read, number);
                let written_out = format!(r#"{{"executeApiTimeoutSeconds":{number}}}"#);
                let again: xdb_engine::StateConfig = serde_json::from_str(&written_out).expect("it is read again");
                let again = again.execute_api_timeout_seconds.unwrap_or(0.0);
                prop_assert_eq!(again, number);
            }
            Err(error) => prop_assert!(number > 1e300 && error.contains("it must be from"), "{}", error),
        }
    }
}
