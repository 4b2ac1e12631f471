//! Tests `eligible`: each verdict for each asker, and the order of the checks. The facts are values in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use xdb_calls::*;
use xdb_engine::*;

const NOW: Timestamp = Timestamp(1_000_000_000);
const PULLS: Asker = Asker::PullWorker(7);
const ASKERS: [Asker; 4] = [Asker::Scheduler, Asker::Runner, PULLS, Asker::Session];
const DROPPED: Unfit = Unfit { why: "the role was dropped", for_good: true };
const SUPERUSER: Unfit = Unfit { why: "the role is a superuser", for_good: false };

/// The values that the facts of a call are made of.
struct World {
    execution: Execution,
    definition: Option<Definition>,
    worker: TypeWorker,
    type_pause: Option<Pause>,
    owner: Option<Unfit>,
    tables: Marked,
}

fn pause(until: Option<i64>) -> Pause {
    Pause { mode: PauseMode::Wait, until: until.map(Timestamp), reason: None }
}

impl World {
    /// A state whose call may be made by a worker.
    fn new(worker: TypeWorker) -> Self {
        let state = StateExecution {
            seq: StateSeq(1),
            id: StateExecutionId { state_id: "A".to_owned(), number: 1 },
            input: None,
            config: None,
            recovery: None,
            started_at: NOW,
            ended_at: None,
            phase: Phase::Execute { call: CallState::default(), results: None },
        };
        let mut execution = Execution::new(ExecutionId([1; 16]));
        execution.states.insert(StateSeq(1), Arc::new(state));
        let states = BTreeMap::from([("A".to_owned(), StateConfig::default())]);
        let definition = Some(Definition { states, ..Definition::default() });
        Self { execution, definition, worker, type_pause: None, owner: None, tables: Marked::Not }
    }

    fn with_function() -> Self {
        let mut world = Self::new(TypeWorker::Called);
        world.options().execute_function = Some("app.a".to_owned());
        world
    }

    fn options(&mut self) -> &mut StateConfig {
        self.definition.as_mut().unwrap().states.get_mut("A").unwrap()
    }

    fn facts<'a>(&'a self, called: CallOf<'a>) -> Facts<'a> {
        let definition = self.definition.as_ref();
        let pause = self.type_pause.as_ref();
        let registered = definition.map(|definition| TypeFacts { definition, worker: self.worker, pause });
        let facts = Facts::new(&self.execution, called, registered, NOW);
        Facts { owner: self.owner.as_ref(), tables: self.tables, ..facts }
    }

    fn judged(&self, asker: Asker) -> (Maker, Verdict<'_>) {
        let state = &self.execution.states[&StateSeq(1)];
        eligible(asker, &self.facts(CallOf::State(state, Api::Execute)))
    }

    fn verdict(&self, asker: Asker) -> Verdict<'_> {
        self.judged(asker).1
    }
}

/// Which asker makes a call that may be made. A session makes RPCs, if the engine would make the call of a state.
#[test]
fn each_call_has_one_maker() {
    let slow = |worker| World { tables: Marked::Slow, ..World::new(worker) };
    let (called, pulled) = (Maker::Worker { is_slow: false }, Maker::PullWorker(7));
    let cases = [
        (World::new(TypeWorker::Called), called, vec![Asker::Scheduler, Asker::Session]),
        (slow(TypeWorker::Called), Maker::Worker { is_slow: true }, vec![Asker::Runner, Asker::Session]),
        (World::new(TypeWorker::Pulls(7)), pulled, vec![PULLS]),
        (slow(TypeWorker::Pulls(7)), pulled, vec![PULLS]),
        (World::new(TypeWorker::Pulls(8)), Maker::PullWorker(8), vec![Asker::PullWorker(8)]),
        (World::with_function(), Maker::Function, vec![Asker::Runner, Asker::Session]),
    ];
    for (world, maker, makes) in cases {
        for asker in ASKERS.into_iter().chain([Asker::PullWorker(8)]) {
            let expected = if makes.contains(&asker) { Verdict::MayBeMade } else { Verdict::Elsewhere };
            assert_eq!(world.judged(asker), (maker, expected), "{asker:?}, {maker:?}");
        }
    }
}

#[test]
fn calls_of_a_type_that_is_not_registered_have_no_maker() {
    let mut world = World::new(TypeWorker::Called);
    world.definition = None;
    world.execution.pause = Some(pause(None));
    for asker in ASKERS {
        assert_eq!(world.judged(asker), (Maker::Unregistered, Verdict::Elsewhere));
    }
}

#[test]
fn a_pause_parks_calls() {
    let mut world = World::new(TypeWorker::Called);
    world.type_pause = Some(pause(Some(NOW.0 + 1)));
    let of_type = pause(Some(NOW.0 + 1));
    assert_eq!(world.verdict(Asker::Scheduler), Verdict::Parked(Paused::Type(&of_type)));
    world.execution.pause = Some(pause(None));
    let own = pause(None);
    assert_eq!(world.verdict(Asker::Scheduler), Verdict::Parked(Paused::Process(&own)), "its own comes first");
}

#[test]
fn a_pause_of_a_type_ends_by_itself_and_that_of_a_process_by_a_timer() {
    let mut world = World::new(TypeWorker::Called);
    world.type_pause = Some(pause(Some(NOW.0)));
    assert_eq!(world.verdict(Asker::Scheduler), Verdict::MayBeMade);
    world.execution.pause = Some(pause(Some(NOW.0)));
    assert!(matches!(world.verdict(Asker::Scheduler), Verdict::Parked(Paused::Process(_))));
    assert_eq!(world.verdict(Asker::Session), Verdict::MayBeMade, "an RPC does not wait for the timer");
}

#[test]
fn the_pause_of_a_type_is_nothing_to_a_closed_process() {
    let mut world = World::new(TypeWorker::Called);
    world.type_pause = Some(pause(None));
    world.execution.status = ProcessStatus::Completed;
    assert_eq!(world.verdict(Asker::Session), Verdict::MayBeMade);
}

#[test]
fn a_pause_is_named_in_the_refusal_of_a_request() {
    let mut world = World::new(TypeWorker::Called);
    (world.execution.process_id, world.execution.process_type) = ("p".to_owned(), "P".to_owned());
    world.execution.pause = Some(pause(None));
    world.type_pause = Some(Pause { mode: PauseMode::Reject, ..pause(Some(NOW.0 + 1)) });
    let refusals = |world: &World| {
        let pauses = world.facts(CallOf::Rpc(None)).pauses(Asker::Session);
        pauses.map(|paused| (paused.pause().mode, paused.refusal(&world.execution).message)).collect::<Vec<_>>()
    };
    let own = (PauseMode::Wait, "process \"p\" is paused".to_owned());
    let of_type = (PauseMode::Reject, "process type \"P\" is paused".to_owned());
    assert_eq!(refusals(&world), [own.clone(), of_type]);
    world.type_pause = Some(pause(Some(NOW.0)));
    assert_eq!(refusals(&world), [own]);
}

#[test]
fn an_rpc_without_a_handler_is_refused_with_the_reason() {
    let refused = |world: &World| {
        let verdict = eligible(Asker::Session, &world.facts(CallOf::Rpc(None))).1;
        verdict.refuse_rpc("r").map_err(|refusal| (refusal.sqlstate(), refusal.message))
    };
    assert_eq!(refused(&World::new(TypeWorker::Called)), Ok(()));
    let paused = World { type_pause: Some(pause(None)), ..World::new(TypeWorker::Called) };
    assert_eq!(refused(&paused), Ok(()), "the session decides whether it waits for the end of the pause");
    let no_handler = Err(("XD026", "RPC \"r\" has no handler".to_owned()));
    assert_eq!(refused(&World::new(TypeWorker::None)), no_handler);
    assert_eq!(refused(&World::new(TypeWorker::Pulls(7))), Err(("XD026", "RPC \"r\" can't be called".to_owned())));
    for verdict in [Verdict::Waits(Reason::DeadlyTable), Verdict::Closes(DROPPED.why)] {
        assert_eq!(verdict.refuse_rpc("r").unwrap_err().sqlstate(), "XD010");
    }
}

/// The engine's processes park paused calls that they find. The sessions of a pull worker park paused calls that they
/// claim.
#[test]
fn each_asker_parks_the_calls_that_it_claims() {
    let paused = |world: World| World { type_pause: Some(pause(None)), ..world };
    let is_parked = |world: &World, asker| matches!(world.verdict(asker), Verdict::Parked(_));
    let function = paused(World::with_function());
    let pulled = paused(World::new(TypeWorker::Pulls(7)));
    assert_eq!(ASKERS.map(|asker| is_parked(&function, asker)), [true, true, false, true]);
    assert_eq!(ASKERS.map(|asker| is_parked(&pulled, asker)), [false, false, true, false]);
}

#[test]
fn a_table_that_has_ended_a_process_is_waited_for() {
    let deadly = |world: World| World { tables: Marked::Deadly, ..world };
    let called = deadly(World::new(TypeWorker::Called));
    assert_eq!(called.verdict(Asker::Scheduler), Verdict::Elsewhere);
    assert_eq!(called.verdict(Asker::Runner), Verdict::Waits(Reason::DeadlyTable));
    assert_eq!(deadly(World::with_function()).verdict(Asker::Runner), Verdict::Waits(Reason::DeadlyTable));
}

#[test]
fn an_owner_that_may_not_own_processes_fails_the_attempt_or_the_process() {
    let owned = |owner| World { owner: Some(owner), ..World::new(TypeWorker::Called) };
    assert_eq!(owned(DROPPED).verdict(Asker::Scheduler), Verdict::Closes(DROPPED.why));
    let failure = Failure { detail: SUPERUSER.why.to_owned(), ..Failure::default() };
    assert_eq!(owned(SUPERUSER).verdict(Asker::Scheduler), Verdict::Fails(failure, Further::ByPolicy));
}

#[test]
fn an_unregistered_state_fails_the_attempt() {
    let fails = |world: &World, asker, what: &str| match world.verdict(asker) {
        Verdict::Fails(failure, Further::WhenRegistered) => assert_eq!(failure.detail, what),
        other => panic!("{other:?}"),
    };
    let mut unlisted = World::new(TypeWorker::Called);
    unlisted.definition.as_mut().unwrap().states.clear();
    fails(&unlisted, Asker::Scheduler, "unknown state \"A\": the process type does not list it");
    unlisted.worker = TypeWorker::Pulls(7);
    fails(&unlisted, PULLS, "unknown state \"A\": the process type does not list it");
    // Without a worker, the runners find out that no function answers.
    unlisted.worker = TypeWorker::None;
    fails(&unlisted, Asker::Runner, "unknown state \"A\": the process type does not list it");
    let none = World::new(TypeWorker::None);
    fails(&none, Asker::Runner, "state \"A\" has no executeFunction, and its process type has no worker");
    assert_eq!(none.verdict(Asker::Scheduler), Verdict::Elsewhere);
    assert_eq!(none.verdict(PULLS), Verdict::Elsewhere);
    let rpc = eligible(Asker::Session, &none.facts(CallOf::Rpc(None))).1;
    assert!(matches!(rpc, Verdict::Fails(_, Further::WhenRegistered)));
    assert_eq!(eligible(Asker::Session, &none.facts(CallOf::Rpc(Some("app.rpc")))).1, Verdict::MayBeMade);
}

/// Everything is wrong at once, and is repaired in the order of the checks.
#[test]
fn the_order_of_the_checks() {
    let mut world = World { owner: Some(DROPPED), tables: Marked::Deadly, ..World::new(TypeWorker::Pulls(8)) };
    world.definition.as_mut().unwrap().states.clear();
    world.type_pause = Some(pause(None));
    world.execution.pause = Some(pause(None));
    let verdict =
        |world: &World| format!("{:?}", world.verdict(Asker::Scheduler)).split('(').next().unwrap().to_owned();
    let definition = world.definition.take();
    assert_eq!(world.judged(Asker::Scheduler), (Maker::Unregistered, Verdict::Elsewhere));
    world.definition = definition;
    assert_eq!(world.judged(Asker::Scheduler), (Maker::PullWorker(8), Verdict::Elsewhere));
    world.worker = TypeWorker::Called;
    assert_eq!(verdict(&world), "Parked");
    (world.type_pause, world.execution.pause) = (None, None);
    assert_eq!(verdict(&world), "Elsewhere");
    let of_runner = format!("{:?}", world.verdict(Asker::Runner));
    assert_eq!(of_runner, "Waits(DeadlyTable)");
    world.tables = Marked::Not;
    assert_eq!(verdict(&world), "Closes");
    world.owner = Some(SUPERUSER);
    assert!(format!("{:?}", world.verdict(Asker::Scheduler)).contains(SUPERUSER.why));
    world.owner = None;
    assert!(format!("{:?}", world.verdict(Asker::Scheduler)).contains("unknown state"));
    world.definition.as_mut().unwrap().states.insert("A".to_owned(), StateConfig::default());
    assert_eq!(verdict(&world), "MayBeMade");
}

/// Why a due call is not made: by what makes it, by what is marked, and by whether the engine and the worker are there.
#[test]
fn a_due_call_is_not_made_for_one_reason() {
    let marked = |tables, worker| World { tables, ..World::new(worker) };
    let function = |tables| World { tables, ..World::with_function() };
    let (called, pulls) = (TypeWorker::Called, TypeWorker::Pulls(7));
    let (engine, breaker) = (Some(NotCalled::Engine), Some(NotCalled::Breaker));
    let (slow, no_runner) = (Some(NotCalled::SlowTable), Some(NotCalled::NoRunner));
    // World; then the reason if everything is there, if the breaker is open, if the engine does not run.
    let cases = [
        (World::new(called), None, breaker, engine),
        (marked(Marked::Slow, called), slow, slow, engine),
        (marked(Marked::Deadly, called), slow, slow, engine),
        (function(Marked::Not), no_runner, no_runner, engine),
        (function(Marked::Deadly), slow, slow, engine),
        (World::new(pulls), None, None, engine),
        (marked(Marked::Slow, pulls), None, None, engine),
        // The attempt fails at once.
        (World { owner: Some(SUPERUSER), ..World::new(called) }, None, breaker, engine),
    ];
    for (number, (world, running, open, stopped)) in cases.into_iter().enumerate() {
        let state = &world.execution.states[&StateSeq(1)];
        let facts = world.facts(CallOf::State(state, Api::Execute));
        let reasons =
            [(true, false), (true, true), (false, false)].map(|(runs, is_open)| not_called(&facts, |_| runs, is_open));
        assert_eq!(reasons, [running, open, stopped], "{number}");
    }
}

#[test]
fn what_is_shown_elsewhere_is_no_reason_of_a_call() {
    let mut unregistered = World::new(TypeWorker::Called);
    unregistered.definition = None;
    let mut paused = World::with_function();
    paused.execution.pause = Some(pause(None));
    for world in [unregistered, paused] {
        let state = &world.execution.states[&StateSeq(1)];
        let facts = world.facts(CallOf::State(state, Api::Execute));
        assert_eq!(not_called(&facts, |_| false, true), None);
    }
    let world = World::new(TypeWorker::Called);
    let state = &world.execution.states[&StateSeq(1)];
    let facts = Facts { waits_for_locks: true, ..world.facts(CallOf::State(state, Api::Execute)) };
    assert_eq!(not_called(&facts, |_| false, true), None);
}
