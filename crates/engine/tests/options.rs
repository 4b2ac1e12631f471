//! State options of a movement or a start override the registered ones, and their names must exist. Tested with
//! examples of each place.

mod common;

use common::*;
use xdb_engine::*;

fn partial(name: &str) -> Option<Loading> {
    Some(Loading { policy: LoadPolicy::Partial, names: vec![name.to_owned()], ..Loading::default() })
}

/// Options that name something that does not exist, each in another place, with the message about them.
fn naming_nothing() -> Vec<(StateConfig, &'static str)> {
    let proceed = |state: &str, config: Option<StateConfig>| StateConfig {
        state_failure_recovery_options: Some(FailureRecovery {
            policy: FailurePolicy::ProceedToConfiguredState,
            state_failure_proceed_state_id: Some(state.to_owned()),
            state_failure_proceed_state_config: config.map(Box::new),
        }),
        ..plain()
    };
    let local = StateConfig { execute_load_local_attributes: partial("gone"), ..plain() };
    vec![
        (StateConfig { load_global_attributes: partial("gone"), ..plain() }, "loadGlobalAttributes names"),
        (
            StateConfig { wait_until_load_global_attributes: partial("gone"), ..plain() },
            "waitUntilLoadGlobalAttributes",
        ),
        (StateConfig { load_local_attributes: partial("gone"), ..plain() }, "loadLocalAttributes names"),
        (local.clone(), "executeLoadLocalAttributes names the unknown attribute \"gone\""),
        (proceed("Nowhere", None), "stateFailureRecoveryOptions.stateFailureProceedStateId \"Nowhere\" is not listed"),
        (
            proceed("B", Some(local)),
            "stateFailureRecoveryOptions.stateFailureProceedStateConfig.executeLoadLocalAttributes names",
        ),
    ]
}

fn listed() -> Definition {
    let mut definition = definition(&[("A", skipping()), ("B", plain())]);
    definition.local_attributes = Some(["known".to_owned()].into());
    definition
}

fn with(config: &StateConfig) -> StateMovement {
    StateMovement { config: Some(Box::new(config.clone())), ..movement("B") }
}

#[test]
fn options_of_a_movement_must_name_existing_things_wherever_it_comes_from() {
    for (config, message) in naming_nothing() {
        let refused = |rejection: Result<Vec<Event>, Rejection>| match rejection {
            Err(Rejection::InvalidOptions(what)) => assert!(what.contains(message), "{what}"),
            other => panic!("{message}: {other:?}"),
        };
        let world = World::started(listed());
        let otherwise = vec![movement("B"), with(&config)];
        refused(world.decide(&execute(1, Decision::NextStates(otherwise.clone()))));
        let close_type = CloseType::ForceComplete;
        let queues = vec!["q".to_owned()];
        let conditional = Decision::ConditionalClose { close_type, queues, output: None, otherwise: otherwise.clone() };
        refused(world.decide(&execute(1, conditional)));
        let answer = RpcAnswer { decision: Some(Decision::NextStates(otherwise)), ..RpcAnswer::default() };
        refused(world.decide(&Command::RpcAnswered { rpc_name: "r".to_owned(), answer }));

        let world = World::new(listed());
        let Command::Start(mut start) = start() else { panic!("a start") };
        start.local_attributes.clear();
        start.global_attributes.clear();
        start.starting_state_config = Some(Box::new(config));
        refused(world.decide(&Command::Start(start)));
    }
}

#[test]
fn options_may_name_existing_things() {
    let mut world = World::started(listed());
    let config = StateConfig { load_local_attributes: partial("known"), skip_wait_until: Some(true), ..plain() };
    world.execute(1, Decision::NextStates(vec![with(&config)]));
    assert_eq!(world.status(2), StateStatus::Execute);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_start_without_a_state_has_no_options_and_no_input_for_it() {
    let mut definition = listed();
    definition.starting_state = None;
    let world = World::new(definition);
    let Command::Start(mut start) = start() else { panic!("a start") };
    start.local_attributes.clear();
    start.global_attributes.clear();
    start.input = None;
    assert!(world.decide(&Command::Start(start.clone())).is_ok());
    let with_input = Start { input: Some(json("1")), ..(*start).clone() };
    assert_eq!(world.decide(&Command::Start(Box::new(with_input))), Err(Rejection::UnusedInput));
    start.starting_state_config = Some(Box::new(skipping()));
    assert!(matches!(world.decide(&Command::Start(start)), Err(Rejection::InvalidOptions(_))));
}

/// A function occupies an engine process, so a start or an answer can't give it a longer timeout than registered.
#[test]
fn the_time_of_a_function_can_be_shortened_and_not_lengthened() {
    let seconds = |wait_until: Option<f64>, execute: Option<f64>| StateConfig {
        wait_until_api_timeout_seconds: wait_until,
        execute_api_timeout_seconds: execute,
        ..plain()
    };
    let function = || Some("app.f".to_owned());
    let calls = |registered: StateConfig| StateConfig {
        wait_until_function: function(),
        execute_function: function(),
        ..registered
    };
    let of = |registered: StateConfig, own: StateConfig| {
        let options = definition(&[("A", registered)]).options_of("A", Some(&own));
        [Api::WaitUntil, Api::Execute].map(|api| options.timeout(api).as_std().as_secs_f64())
    };
    for (registered, own, expected) in [
        (calls(seconds(Some(5.0), Some(60.0))), seconds(Some(3600.0), Some(3600.0)), [5.0, 60.0]),
        (calls(seconds(Some(5.0), Some(60.0))), seconds(Some(1.0), Some(59.5)), [1.0, 59.5]),
        (calls(seconds(Some(5.0), Some(60.0))), seconds(None, Some(3600.0)), [5.0, 60.0]),
        // If no timeout is registered, the default is the limit.
        (calls(seconds(None, None)), seconds(Some(11.0), Some(9.0)), [10.0, 9.0]),
        (calls(seconds(None, Some(0.5))), seconds(None, None), [10.0, 0.5]),
        // A worker may get a longer timeout, even if the other call of the state has a function.
        (seconds(Some(5.0), Some(60.0)), seconds(Some(3600.0), Some(3600.0)), [3600.0, 3600.0]),
        (
            StateConfig { execute_function: function(), ..seconds(None, None) },
            seconds(Some(50.0), Some(50.0)),
            [50.0, 10.0],
        ),
    ] {
        assert_eq!(of(registered, own), expected);
    }
}
