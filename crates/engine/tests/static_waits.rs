//! Waits that the options of a state say, without a handler.

mod common;

use common::*;
use xdb_engine::StateStatus::*;
use xdb_engine::*;

/// A state that waits for these commands without a handler.
fn waiting(waiting_type: WaitingType, commands: Vec<RequestedCommand>) -> StateConfig {
    let request = CommandRequest { waiting_type, commands, combinations: vec![] };
    StateConfig { command_request: Some(Box::new(request)), ..StateConfig::default() }
}

fn any(commands: Vec<RequestedCommand>) -> StateConfig {
    waiting(WaitingType::Any, commands)
}

/// `Go` starts `Wait`, which waits for a message or a minute.
fn going() -> World {
    World::started(definition(&[("Go", skipping()), ("Wait", any(vec![timer(60), from_queue("q", 1, 2)]))]))
}

fn delayed(state_id: &str, seconds: i64) -> Decision {
    Decision::NextStates(vec![StateMovement { begin: Begin::After(Duration(seconds * SECOND)), ..movement(state_id) }])
}

#[test]
fn a_static_wait_begins_with_its_state_and_calls_no_handler() {
    let mut world = going();
    let events = world.run(execute(1, next(&["Wait"]))).unwrap();
    assert_eq!(names(&events), ["StateCompleted", "StateStarted", "WaitStarted"]);
    assert_eq!((world.status(2), world.execution.timers), (Waiting, 1));
    world.publish("q", &["1", "2"]);
    assert_eq!(world.status(2), Execute);
    assert_eq!(world.results(2)[1].1, ["1", "2"]);
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn a_process_can_begin_with_a_static_wait_that_ends_at_once() {
    let empty = World::started(definition(&[("A", waiting(WaitingType::Empty, vec![]))]));
    assert_eq!(empty.status(1), Execute);
    let due = World::started(definition(&[("A", any(vec![timer(0), timer(5)]))]));
    assert_eq!((due.status(1), due.execution.timers), (Execute, 0));
    assert_eq!(due.replayed(), due.execution);
}

#[test]
fn messages_that_are_there_already_serve_a_static_wait() {
    let mut world = going();
    world.publish("q", &["1", "2", "3"]);
    world.execute(1, next(&["Wait"]));
    assert_eq!((world.status(2), world.queued("q").len()), (Execute, 1));
    assert_eq!(world.results(2)[1].1, ["1", "2"]);
}

#[test]
fn a_delayed_static_wait_begins_by_a_timer_from_which_its_delays_count() {
    let mut world = going();
    world.publish("q", &["1"]);
    world.execute(1, delayed("Wait", 10));
    assert_eq!((world.status(2), world.execution.timers), (Waiting, 1), "its begin is a timer");
    assert_eq!(world.state(2).begins_at(), Some(world.now + Duration(10 * SECOND)));
    assert_eq!(world.queued("q"), ["1"], "it takes nothing before");
    assert_eq!(world.fire(2, STATE_BEGINS), Err(Rejection::Stale), "it is not due");
    let skip = Command::SkipTimer { seq: StateSeq(2), command_id: None };
    assert!(matches!(world.decide(&skip), Err(Rejection::NoTimer(_))), "no caller can begin it");
    world.pass(10);
    let events = world.fire(2, STATE_BEGINS).unwrap();
    assert_eq!(names(&events), ["WaitStarted", "CommandCompleted", "WaitCompleted"]);
    assert_eq!((world.status(2), world.execution.timers), (Execute, 0));
    assert_eq!(world.fire(2, STATE_BEGINS), Err(Rejection::Stale), "it has begun");
    assert_eq!(world.replayed(), world.execution);

    let mut world = going();
    world.execute(1, delayed("Wait", 10));
    world.pass(15);
    world.fire(2, STATE_BEGINS).unwrap();
    let due: Vec<_> = world.state(2).open_timers().collect();
    assert_eq!(due, [(0, world.now + Duration(60 * SECOND))], "the delay counts from the begin of the wait");
}

#[test]
fn a_state_that_is_registered_again_without_its_static_wait_starts_as_it_is_registered() {
    let mut world = going();
    world.execute(1, delayed("Wait", 10));
    world.definition.states.insert("Wait".to_owned(), plain());
    world.pass(10);
    let events = world.fire(2, STATE_BEGINS).unwrap();
    assert_eq!(names(&events), ["StateAborted", "StateStarted"]);
    assert_eq!((world.status(2), world.status(3), world.execution.live_threads), (Aborted, WaitUntil, 1));
    assert_eq!(world.replayed(), world.execution);
}

#[test]
fn options_of_a_movement_can_say_what_it_waits_for() {
    let mut world = World::started(definition(&[("Go", skipping()), ("B", plain())]));
    let with = |config: StateConfig| {
        execute(1, Decision::NextStates(vec![StateMovement { config: Some(Box::new(config)), ..movement("B") }]))
    };
    world.run(with(any(vec![timer(1)]))).unwrap();
    assert_eq!(world.status(2), Waiting);
}

/// A registration can cure an unknown name. It can't cure options that contradict themselves.
#[test]
fn a_static_wait_that_no_registration_can_cure_makes_an_answer_invalid() {
    let world = World::started(definition(&[("Go", skipping()), ("B", plain())]));
    let cron = |timezone: &str| RequestedCommand {
        command_id: None,
        kind: RequestedKind::TimerCron(Cron { expression: "*".to_owned(), timezone: Some(timezone.to_owned()) }),
    };
    let wrong = || {
        let skips = StateConfig { skip_wait_until: Some(true), ..any(vec![timer(1)]) };
        [
            (skips, "commandRequest can't be given together with skipWaitUntil"),
            (any(vec![timer(1); 1001]), "commandRequest has 1001 commands; the limit is 1000"),
            (any(vec![cron("Mars")]), "commandRequest.timerCommands[0].timezone is unknown: \"Mars\""),
        ]
    };
    let recovering = |config: StateConfig| StateConfig {
        state_failure_recovery_options: Some(FailureRecovery {
            policy: FailurePolicy::ProceedToConfiguredState,
            state_failure_proceed_state_id: Some("B".to_owned()),
            state_failure_proceed_state_config: Some(Box::new(config)),
        }),
        ..plain()
    };
    let inner = "stateFailureRecoveryOptions.stateFailureProceedStateConfig.";
    let outer = wrong().map(|(config, why)| (recovering(config), format!("{inner}{why}")));
    let deepest = wrong().map(|(config, why)| (recovering(recovering(config)), format!("{inner}{inner}{why}")));
    let all = wrong().map(|(config, why)| (config, why.to_owned())).into_iter().chain(outer).chain(deepest);
    for (config, why) in all {
        let to = StateMovement { config: Some(Box::new(config)), ..movement("B") };
        let refused = world.decide(&execute(1, Decision::NextStates(vec![to])));
        assert_eq!(refused, Err(Rejection::InvalidAnswer(format!("the options of state \"B\": {why}"))));
    }
    let mut world = World::started(definition(&[("Go", skipping()), ("B", plain())]));
    world.definition.local_queues = Some(["q".to_owned()].into());
    let to = StateMovement { config: Some(Box::new(any(vec![from_queue("nowhere", 1, 1)]))), ..movement("B") };
    let refused = world.decide(&execute(1, Decision::NextStates(vec![to])));
    let why = "the options of state \"B\": commandRequest names the unknown local queue \"nowhere\"";
    assert_eq!(refused, Err(Rejection::InvalidOptions(why.to_owned())));
}

/// The options of the state to proceed to are checked for that state, and not without end.
#[test]
fn a_state_may_proceed_to_itself_with_a_static_wait() {
    let recovery = FailureRecovery {
        policy: FailurePolicy::ProceedToConfiguredState,
        state_failure_proceed_state_id: Some("B".to_owned()),
        state_failure_proceed_state_config: Some(Box::new(any(vec![timer(1)]))),
    };
    let config = StateConfig { state_failure_recovery_options: Some(recovery), ..plain() };
    let world = World::started(definition(&[("Go", skipping()), ("B", config.clone())]));
    assert_eq!(world.definition.check_static_wait("B", None), Ok(()));
    assert_eq!(world.definition.check_static_wait("B", Some(&config)), Ok(()));
}

#[test]
fn timers_of_static_waits_count_against_the_limit() {
    let mut world = going();
    world.quotas.threads = 2;
    world.execute(1, next(&["Wait", "Wait"]));
    let mut world = going();
    world.quotas.threads = 3;
    let refused = world.decide(&execute(1, next(&["Wait", "Wait", "Wait", "Wait"])));
    assert!(matches!(refused, Err(Rejection::OverQuota(_))), "{refused:?}");
    let mut world = World::started(definition(&[("Go", skipping()), ("T", any(vec![timer(60), timer(61)]))]));
    world.quotas.threads = 3;
    let refused = world.decide(&execute(1, next(&["T", "T"]))).unwrap_err();
    assert_eq!(refused.to_string(), "the process would have 4 timers; the limit is 3");
}

#[test]
fn an_aborted_static_wait_loses_its_timers() {
    let mut world = going();
    world.execute(1, delayed("Wait", 10));
    let moved = Command::MoveState { seq: StateSeq(2), next: vec![movement("Wait")], reason: None };
    world.run(moved).unwrap();
    assert_eq!((world.status(2), world.status(3), world.execution.timers), (Aborted, Waiting, 1));
    assert_eq!(world.fire(2, STATE_BEGINS), Err(Rejection::Stale));
}
