//! Accepted options are stored, and must be the same when they are read again. Tested with nested options and random
//! numbers.

use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::*;
use xdb_protocol::*;

const LIMITS: AnswerLimits = AnswerLimits { max_payload_bytes: 1_000_000, max_answer_bytes: usize::MAX };

/// Options of a state that contain the options of the state to proceed to, and so on.
fn nested(levels: usize) -> String {
    let outer = r#"{"stateFailureRecoveryOptions":{"stateFailureProceedStateConfig":"#;
    format!("{}{{\"skipWaitUntil\":true}}{}", outer.repeat(levels), "}}".repeat(levels))
}

/// Reads the options in all places where options are allowed.
fn decoded(options: &str) -> Result<(Definition, StateConfig, StateConfig), String> {
    let definition = parse_definition(&format!(r#"{{"startingState":"A","states":{{"A":{options}}}}}"#))?;
    let start = parse_start_options(&format!(r#"{{"startingStateConfig":{options}}}"#))?;
    let answer = format!(r#"{{"stateDecision":{{"nextStates":[{{"stateId":"A","stateConfig":{options}}}]}}}}"#);
    let Executed::Decided(ExecuteAnswer { decision: Decision::NextStates(movements), .. }) =
        decode_execute(answer.as_bytes(), &LIMITS)?
    else {
        return Err("no next states".to_owned());
    };
    let moved = movements.into_iter().next().and_then(|movement| movement.config);
    Ok((definition, *start.starting_state_config.expect("options"), *moved.expect("options")))
}

/// Stores and reads the options in every form: by themselves, in a definition, in an event and in a snapshot.
fn assert_read_again(definition: &Definition, options: &StateConfig) {
    let again = |text: String| serde_json::from_str::<StateConfig>(&text);
    assert_eq!(again(serde_json::to_string(options).expect("JSON")).expect("options"), *options);
    let stored = serde_json::to_string(definition).expect("JSON");
    assert_eq!(serde_json::from_str::<Definition>(&stored).expect("a definition"), *definition);

    let start = Start {
        process_id: "p".to_owned(),
        process_type: "t".to_owned(),
        input: None,
        local_attributes: BTreeMap::new(),
        global_attributes: BTreeMap::new(),
        call_functions: vec![],
        timeout: None,
        starting_state: None,
        starting_state_config: Some(Box::new(options.clone())),
        start_at: None,
        priority: None,
        started_by: None,
        locks: ProcessLocks::new(),
    };
    let context = Context {
        now: Timestamp(1),
        jitter: 0.5,
        definition,
        mapping: &[],
        published_before: &BTreeSet::new(),
        global_messages: &[],
        child_ids: &[],
        quotas: Quotas::NONE,
        global_queues_full: false,
        next_tick: |_, _| unreachable!("no wait begins"),
    };
    let mut live = Execution::new(ExecutionId::default());
    let mut replay = Replay::new(ExecutionId::default());
    for event in decide(&live, &Command::Start(Box::new(start)), context).expect("it starts") {
        let (name, details) = event.to_parts();
        replay.event(live.next_event, Timestamp(1), name, &details).expect("it is replayed");
        live.apply(&event, Timestamp(1));
    }
    assert_eq!(replay.execution, live);
    let (snapshot, _) = replay.snapshot().expect("it runs");
    let (name, details) = snapshot.to_parts();
    let mut restored = Replay::new(ExecutionId::default());
    restored.event(live.next_event - 1, Timestamp(1), name, &details).expect("it is restored");
    assert_eq!(restored.execution, live);
}

#[test]
fn options_in_options_are_read_again_however_deep_they_are_accepted() {
    for levels in 0..=16 {
        let (definition, start, moved) = decoded(&nested(levels)).expect("that is not deep");
        assert_read_again(&definition, &start);
        assert_read_again(&definition, &moved);
    }
    for levels in [17, 50, 58, 62, 63, 64, 69] {
        let options = nested(levels);
        let answer = format!(r#"{{"stateDecision":{{"nextStates":[{{"stateId":"A","stateConfig":{options}}}]}}}}"#);
        let error = decode_execute(answer.as_bytes(), &LIMITS).expect_err("that is deep");
        assert!(error.ends_with(".stateFailureProceedStateConfig is nested more than 16 times"), "{error}");
        let error = decoded(&options).expect_err("that is deep");
        assert!(error.contains("nested"), "{error}");
    }
}

proptest! {
    /// A replay compares options from the history with options from the tables, so one text must always give one value.
    #[test]
    fn numbers_of_options_keep_all_their_digits(
        numbers in proptest::collection::vec(prop_oneof![0.0..1e6f64, any::<f64>().prop_map(f64::abs)], 4),
    ) {
        prop_assume!(numbers.iter().all(|number| *number <= 1e300));
        let [timeout, initial, coefficient, maximum] = numbers[..] else { unreachable!("there are four") };
        let options = json!({"executeApiTimeoutSeconds": timeout, "executeApiRetryPolicy": {
            "initialIntervalSeconds": initial, "backoffCoefficient": 1.0 + coefficient.fract(),
            "maximumIntervalSeconds": maximum, "maximumAttempts": 3}});
        let (definition, start, moved) = decoded(&options.to_string()).map_err(TestCaseError::fail)?;
        prop_assert_eq!(&start, &moved);
        prop_assert_eq!(&definition.states["A"], &start);
        prop_assert_eq!(start.execute_api_timeout_seconds.unwrap_or_default(), timeout);
        assert_read_again(&definition, &start);
    }
}
