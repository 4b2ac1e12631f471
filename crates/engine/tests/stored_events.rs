//! Events are read again as they were stored. Tested with random texts and numbers, and with invalid events.

mod common;

use common::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use xdb_engine::*;

/// A request with commands of all kinds.
fn static_request(text: &str, seconds: f64) -> CommandRequest {
    let kinds = [
        RequestedKind::TimerAfter(Duration::from_seconds(seconds)),
        RequestedKind::TimerAt(Timestamp((seconds * 1e11) as i64 - 40_000_000_000_000_000)),
        RequestedKind::LocalQueue { queue: text.to_owned(), at_least: 1, at_most: 7 },
        RequestedKind::GlobalQueue { queue: text.to_owned(), key: Some(text.to_owned()), at_least: 2, at_most: 2 },
    ];
    let command = |(at, kind)| RequestedCommand { command_id: Some(format!("{text}{at}")), kind };
    CommandRequest {
        waiting_type: WaitingType::AnyCombination,
        commands: kinds.into_iter().enumerate().map(command).collect(),
        combinations: vec![vec![0, 3], vec![2]],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn texts_of_any_kind_survive_in_events(text in any::<String>(), number in "-?[1-9][0-9]{0,40}\\.[0-9]{0,20}0", seconds in 0.0f64..1e6) {
        let text_json = json(&serde_json::to_string(&text).unwrap());
        let number = json(&number);
        let request = static_request(&text, seconds);
        let config = StateConfig {
            execute_api_timeout_seconds: Some(seconds),
            command_request: Some(Box::new(request)),
            ..attempts(3)
        };
        for event in [
            Event::ProcessStarted {
                process_id: text.clone(),
                process_type: text.clone(),
                timeout_at: None,
                priority: 0,
                started_by: None,
                locks: ProcessLocks::from([(text.clone(), LockMode::Share)]),
            },
            Event::StateStarted {
                seq: StateSeq(1),
                state_execution_id: StateExecutionId { state_id: text.clone(), number: 1 },
                input: Some(number.clone()),
                config: Some(Box::new(config)),
                recovery: None,
                skip_wait_until: false,
                static_wait: true,
                guard: true,
                compensates: Some(StateExecutionId { state_id: text.clone(), number: 2 }),
                not_before: Timestamp(-1),
            },
            Event::StartMerged { input: Some(number.clone()), without_input: false, not_before: Timestamp(5), timeout_at: Some(Timestamp(-7)) },
            Event::StartMerged { input: None, without_input: true, not_before: Timestamp(5), timeout_at: None },
            Event::LocalAttributesWritten { attributes: BTreeMap::from([(text.clone(), text_json.clone()), (format!("{text}2"), Json::null())]) },
            Event::MessagesReceived {
                publisher: Publisher::Rpc,
                messages: vec![Message { number: u64::MAX, queue: text.clone(), message_id: Some(text.clone()), payload: Some(number.clone()) }],
            },
            Event::ProcessStarted {
                process_id: "p".to_owned(),
                process_type: "t".to_owned(),
                timeout_at: None,
                priority: 3,
                started_by: Some(Box::new(StartedBy {
                    process_id: text.clone(),
                    process_execution_id: ExecutionId([0x5a; 16]),
                    state_execution_id: Some(StateExecutionId { state_id: text.clone(), number: 2 }),
                    on_close: Some(text.clone()),
                    when_parent_closes: WhenParentCloses::Leave,
                })),
                locks: ProcessLocks::new(),
            },
            Event::ChildrenStarted {
                children: vec![Child {
                    process_id: text.clone(),
                    process_execution_id: ExecutionId([0xa5; 16]),
                    process_type: text.clone(),
                }],
            },
            Event::ResultGiven { seq: None, output: Json::null() },
            Event::CompletionRequested {},
            Event::CompensationAdded { seq: StateSeq(3), of: StateExecutionId { state_id: text.clone(), number: 1 }, state_id: text.clone() },
            Event::CompensationStarted { reason: Some(text.clone()) },
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
