//! Compares the engine with a second, naive model of a process, in random runs. Also simulates a crash at every event.
//!
//! The tests make 16 times `PROPTEST_CASES` (256) runs, and twice `PROPTEST_CASES` runs with crashes. The runs are the
//! same each time, except in `make explore`. A failing run is written to `against_model.proptest-regressions`, and is
//! repeated first from then on. That file belongs into the repository.

mod model;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use std::collections::BTreeMap;
use xdb_engine::Event;

/// `factor` times the number of runs in `PROPTEST_CASES`, or in proptest's default.
fn config(factor: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let beside = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig {
        cases: default.cases.saturating_mul(factor),
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(beside)),
        ..default
    }
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn every_run_agrees_with_the_model(plan in model::ops::plan(40)) {
        model::run::carry_out(&plan)?;
    }
}

proptest! {
    #![proptest_config(config(2))]

    #[test]
    fn a_crash_at_any_event_changes_nothing(plan in model::ops::plan(25)) {
        let run = model::run::carry_out(&plan)?;
        model::recovery::check(&run)?;
    }
}

/// The runs reach all parts of the model. If nothing happened in the runs, any model would agree.
#[test]
fn the_runs_get_everywhere() {
    let mut runner = TestRunner::deterministic();
    let plans = model::ops::plan(40);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut longest = 0;
    for _ in 0..1500 {
        let plan = plans.new_tree(&mut runner).expect("a plan").current();
        let run = model::run::carry_out(&plan).expect("the model agrees");
        let accepted = run.steps.iter().filter(|step| step.outcome.is_ok());
        longest = longest.max(accepted.count());
        for step in &run.steps {
            match &step.outcome {
                Ok(events) => {
                    *seen.entry(step.command.name().to_owned()).or_default() += 1;
                    for event in events {
                        let what = match event {
                            Event::ProcessClosed { status, .. } => format!("{} as {status}", event.name()),
                            _ => event.name().to_owned(),
                        };
                        *seen.entry(what).or_default() += 1;
                    }
                }
                Err(rejection) => {
                    let refusal = format!("{:?}", model::Refusal::from(rejection));
                    let kind = refusal.split('(').next().unwrap_or_default();
                    *seen.entry(format!("refused as {kind}")).or_default() += 1;
                }
            }
        }
    }
    let everything = "Start WaitUntilAnswered ExecuteAnswered CallFailed CallRepeated TimerFired ProcessTimeout \
        MessagesArrived GlobalMessagesArrived RpcAnswered SetLocalAttributes SkipTimer RetryNow MoveState MergeStart Pause Resume PauseEnds Stop Fail ProcessStarted \
        StateStarted StartMerged WaitStarted CommandCompleted GlobalMessagesTaken TimerSkipped WaitCompleted StateCompleted \
        AttemptFailed AttemptsFolded CallRepeated RetryRequested IncidentRaised StateFailed StateAborted LocalAttributesWritten \
        GlobalAttributesWritten ChildrenStarted MessagesReceived GlobalMessagesPublished RpcApplied CompletionRequested ResultGiven ProcessPaused ProcessResumed \
        CompensationAdded CompensationStarted";
    let statuses = ["COMPLETED", "FAILED", "TIMEOUT", "TERMINATED"].map(|status| format!("ProcessClosed as {status}"));
    let refusals = "NotRunning Stale InvalidAnswer InvalidOptions UnusedInput UnknownState UnknownQueue \
        UnknownGlobalQueue UnknownLocalAttribute UnknownGlobalAttribute UnknownFunction NoTimer";
    let refusals = refusals.split_whitespace().map(|kind| format!("refused as {kind}"));
    let wanted = everything.split_whitespace().map(str::to_owned).chain(statuses).chain(refusals);
    let rare: Vec<_> = wanted.filter(|what| seen.get(what).is_none_or(|times| *times < 5)).collect();
    assert!(rare.is_empty(), "hardly seen: {rare:?}, of {seen:#?}");
    assert!(longest > 40, "the longest run took {longest} commands");
}
