//! Events are read again as they were stored. Tested with random texts and numbers, and with invalid events.

mod common;

use common::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use xdb_engine::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn texts_of_any_kind_survive_in_events(text in any::<String>(), number in "-?[1-9][0-9]{0,40}\\.[0-9]{0,20}0", seconds in 0.0f64..1e6) {
        let text_json = json(&serde_json::to_string(&text).unwrap());
        let number = json(&number);
        let config = StateConfig { execute_api_timeout_seconds: Some(seconds), ..attempts(3) };
        for event in [
            Event::ProcessStarted {
                process_id: text.clone(),
                process_type: text.clone(),
                timeout_at: None,
                priority: 0,
                locks: ProcessLocks::from([(text.clone(), LockMode::Share)]),
            },
            Event::StateStarted {
                seq: StateSeq(1),
                state_execution_id: StateExecutionId { state_id: text.clone(), number: 1 },
                input: Some(number.clone()),
                config: Some(Box::new(config)),
                recovery: None,
                skip_wait_until: false,
                not_before: Timestamp(-1),
            },
            Event::StartMerged { input: Some(number.clone()), without_input: false, not_before: Timestamp(5), timeout_at: Some(Timestamp(-7)) },
            Event::StartMerged { input: None, without_input: true, not_before: Timestamp(5), timeout_at: None },
            Event::LocalAttributesWritten { attributes: BTreeMap::from([(text.clone(), text_json.clone()), (format!("{text}2"), Json::null())]) },
            Event::MessagesReceived {
                publisher: Publisher::Rpc,
                messages: vec![Message { number: u64::MAX, queue: text.clone(), message_id: Some(text.clone()), payload: Some(number.clone()) }],
            },
            Event::ResultGiven { seq: None, output: Json::null() },
            Event::CompletionRequested {},
            Event::ProcessClosed { status: ProcessStatus::Failed, reason: Some(text.clone()) },
        ] {
            let (name, details) = event.to_parts();
            prop_assert_eq!(name, event.name());
            prop_assert_eq!(&Event::from_parts(name, &details), &Ok(event.clone()));
            let whole = serde_json::to_string(&event).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Event>(&whole).unwrap(), &event);
            // `jsonb` returns the same value, formatted differently.
            let spaced = details.replacen('{', "{ ", 1);
            prop_assert_eq!(&Event::from_parts(name, &spaced), &Ok(event));
        }
    }

    #[test]
    fn no_stored_text_makes_reading_an_event_panic(name in "\\PC{0,12}", details in "\\PC{0,40}") {
        prop_assert!(Event::from_parts(&name, &details).is_err());
        prop_assert!(Event::from_parts("ProcessClosed", &details).is_err());
    }
}

#[test]
fn invalid_details_of_events_are_errors() {
    for (name, details) in [
        ("Unheard", "{}"),
        ("ProcessClosed", "{}"),
        ("ProcessClosed", "{\"status\":\"DONE\"}"),
        ("ProcessClosed", "{\"status\":\"FAILED\"},\"x\":{}"),
        ("WaitCompleted\":{\"seq\":1},\"x", "1"),
    ] {
        assert!(Event::from_parts(name, details).is_err(), "{name} {details}");
    }
    let later = "{\"status\":\"FAILED\",\"fieldOfALaterVersion\":[1]}";
    let closed = Event::ProcessClosed { status: ProcessStatus::Failed, reason: None };
    assert_eq!(Event::from_parts("ProcessClosed", later), Ok(closed));
}
