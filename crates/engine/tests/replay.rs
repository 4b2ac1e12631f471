//! Histories that are cut: a snapshot and the events after it always give the same execution as all events.

mod common;

use common::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use xdb_engine::*;

/// A step of a thread in a loop: it may wait, write attributes, publish, fail, or give outputs.
#[derive(Clone, Debug)]
enum Step {
    /// The oldest live state goes on.
    Advance {
        wait: bool,
        locals: Option<u8>,
        publishes: Vec<(bool, Option<u8>)>,
    },
    /// Another thread begins, or a thread ends with an output.
    Fork(bool),
    Fail(u32),
    Publish(Vec<(bool, Option<u8>)>),
    Pass(i64),
    Complete,
}

fn publishes() -> impl Strategy<Value = Vec<(bool, Option<u8>)>> {
    vec((any::<bool>(), option::of(0u8..20)), 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<bool>(), option::of(0u8..4), publishes())
            .prop_map(|(wait, locals, publishes)| Step::Advance { wait, locals, publishes }),
        3 => any::<bool>().prop_map(Step::Fork),
        2 => prop_oneof![1u32..3, 10u32..13].prop_map(Step::Fail),
        4 => publishes().prop_map(Step::Publish),
        3 => (1i64..30).prop_map(Step::Pass),
        1 => prop_oneof![30 => Just(Step::Pass(1)), 1 => Just(Step::Complete)],
    ]
}

fn messages(of: &[(bool, Option<u8>)]) -> Vec<Publish> {
    let queue = |wanted: bool| if wanted { "wanted" } else { "left" };
    of.iter().map(|(wanted, id)| message(queue(*wanted), id.map(|id| format!("m{id}")).as_deref(), "1.50")).collect()
}

/// The stored history, which is cut as it grows.
struct Kept {
    keep: u32,
    next: u64,
    rows: Vec<(u64, Timestamp, &'static str, String)>,
    dropped: Vec<StateSeq>,
}

impl Kept {
    fn replay(&self, up_to: u64) -> Replay {
        let mut replay = Replay::new(ExecutionId([7; 16]));
        for (number, at, name, details) in self.rows.iter().filter(|row| row.0 <= up_to) {
            replay.event(*number, *at, name, details).unwrap();
        }
        replay
    }

    fn follow(&mut self, world: &World) {
        for (number, (event, at)) in (1..).zip(&world.history).skip(self.next as usize - 1) {
            let (name, details) = event.to_parts();
            self.rows.push((number, *at, name, details));
        }
        let next = world.history.len() as u64 + 1;
        if let Some(cut) = history_cut(self.keep, self.next, next) {
            let replay = self.replay(cut);
            assert_eq!(replay.execution.next_event, cut + 1);
            let (event, dropped) = replay.snapshot().expect("it was running");
            let (name, details) = event.to_parts();
            self.rows.retain(|row| row.0 >= cut);
            self.rows[0].2 = name;
            self.rows[0].3 = details;
            self.dropped.extend(dropped);
        }
        self.next = next;
    }

    fn check(&self, world: &World) {
        let replay = self.replay(u64::MAX);
        let mut whole = world.replayed();
        let mut ids = replay.earlier_message_ids;
        for (queue, id) in &replay.execution.message_ids {
            ids.add(queue, id);
        }
        let mut all_ids = MessageIds::default();
        for (queue, id) in &whole.message_ids {
            all_ids.add(queue, id);
        }
        assert_eq!(ids, all_ids);
        for (event, at) in &world.history {
            let Event::MessagesReceived { messages, .. } = event else { continue };
            for message in messages.iter().filter(|m| whole.queues.values().flatten().any(|q| q.number == m.number)) {
                assert_eq!(replay.received_at.get(&message.number), Some(at));
            }
        }
        let last_failure = |execution: &Execution| {
            let of = |state: &Arc<StateExecution>| match &state.phase {
                Phase::Ended { last_failure: Some(last), .. } => Some((last.at, state.seq, last.clone())),
                _ => None,
            };
            execution.states.values().filter_map(of).max_by_key(|(at, seq, _)| (*at, *seq))
        };
        assert_eq!(last_failure(&replay.execution), last_failure(&whole));
        for seq in &self.dropped {
            assert!(!whole.states[seq].status().is_live());
            whole.states.remove(seq);
        }
        whole.message_ids.clone_from(&replay.execution.message_ids);
        assert_eq!(replay.execution, whole);
        let events = self.rows.len() as u64;
        let all = world.history.len() as u64;
        assert!(events >= all.min(u64::from(self.keep)), "{events} of {all} are left");
    }
}

fn run(world: &mut World, step: Step) {
    let live: Vec<_> = world.execution.states.values().filter(|state| state.status().is_live()).cloned().collect();
    let Some(state) = live.first() else { return };
    let seq = state.seq.0;
    let effects = |locals: Option<u8>, publishes: &[(bool, Option<u8>)]| Effects {
        publish_to_local_queue: messages(publishes),
        write_local_attributes: locals.map(|key| (format!("k{key}"), json("[1, 2.0]"))).into_iter().collect(),
        ..Effects::default()
    };
    let command = match (step, &state.phase) {
        (Step::Advance { wait, locals, publishes }, Phase::WaitUntil(_)) => {
            let commands = if wait { vec![from_queue("wanted", 1, 2), timer(20)] } else { vec![] };
            let waiting_type = if wait { WaitingType::Any } else { WaitingType::Empty };
            let request = CommandRequest { waiting_type, commands, combinations: vec![] };
            let effects = effects(locals, &publishes);
            Command::WaitUntilAnswered { seq: state.seq, answer: WaitUntilAnswer { request, effects } }
        }
        (Step::Advance { .. }, Phase::Waiting(_)) => Command::TimerFired { seq: state.seq, command: 1 },
        (Step::Advance { locals, publishes, .. }, _) => {
            let answer =
                ExecuteAnswer { decision: next(&[&state.id.state_id.clone()]), effects: effects(locals, &publishes) };
            Command::ExecuteAnswered { seq: state.seq, answer }
        }
        (Step::Fork(more), Phase::Execute { .. }) => match more {
            true => execute(seq, next(&["A", "B"])),
            false if live.len() > 1 => {
                let output = Some(json("\"out\""));
                execute(seq, Decision::Close { close_type: CloseType::DeadEnd, output })
            }
            false => return,
        },
        (Step::Fail(times), Phase::WaitUntil(call) | Phase::Execute { call, .. }) => {
            let api = if state.status() == StateStatus::Execute { Api::Execute } else { Api::WaitUntil };
            for attempt in call.failed_attempts + 1..=call.failed_attempts + times {
                let _ = world.run(failed(seq, api, attempt, world.now));
                world.pass(1);
            }
            return;
        }
        (Step::Publish(publishes), _) => Command::MessagesArrived(messages(&publishes)),
        (Step::Pass(seconds), _) => return world.pass(seconds),
        (Step::Complete, Phase::Execute { .. }) => execute(seq, close(CloseType::ForceComplete)),
        _ => return,
    };
    let _ = world.run(command);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_does_not_need_the_events_that_were_cut_off(keep in 1u32..40, steps in vec(step(), 1..120)) {
        let recovery = FailureRecovery {
            policy: FailurePolicy::ProceedToConfiguredState,
            state_failure_proceed_state_id: Some("A".to_owned()),
            ..FailureRecovery::default()
        };
        let b = StateConfig { state_failure_recovery_options: Some(recovery), ..attempts(2) };
        let mut world = World::started(definition(&[("A", plain()), ("B", b)]));
        let mut kept = Kept { keep, next: 1, rows: Vec::new(), dropped: Vec::new() };
        kept.follow(&world);
        for step in steps {
            run(&mut world, step);
            kept.follow(&world);
        }
        kept.check(&world);
    }
}

#[test]
fn a_history_is_cut_in_slices_and_keeps_its_newest_events() {
    for keep in [1u32, 3, 10, 100, 10_000] {
        let (mut first, mut before) = (1, 1);
        for next in 2..25_000u64 {
            if let Some(cut) = history_cut(keep, before, next) {
                assert!(cut >= first && cut + u64::from(keep) < next, "{keep}: {first} {cut} {next}");
                first = cut;
            }
            before = next;
            let kept = next - first;
            assert!(kept <= u64::from(keep) + u64::from(keep / 4).min(1000) + 2, "{keep}: {kept} at {next}");
        }
        assert!(first > 1, "{keep}");
    }
}

#[test]
fn a_history_without_a_start_or_a_snapshot_at_its_begin_is_refused() {
    let mut world = World::started(definition(&[("A", skipping())]));
    world.execute(1, next(&["A"]));
    let parts: Vec<_> = world.history.iter().map(|(event, at)| (event.to_parts(), *at)).collect();
    let replay = |rows: &[usize]| {
        let mut replay = Replay::new(ExecutionId([7; 16]));
        rows.iter().try_for_each(|row| {
            let ((name, details), at) = &parts[*row];
            replay.event(*row as u64 + 1, *at, name, details)
        })
    };
    assert_eq!(replay(&[0, 1, 2]), Ok(()));
    assert_eq!(replay(&[1]).unwrap_err(), "event 1 is missing; the next one is 2");
    assert_eq!(replay(&[0, 2]).unwrap_err(), "event 2 is missing; the next one is 3");
    assert!(replay(&[0, 0]).unwrap_err().starts_with("event 2 is missing"));
    let mut replay = Replay::new(ExecutionId([7; 16]));
    let ((name, details), at) = &parts[1];
    assert!(replay.event(1, *at, name, details).unwrap_err().contains("the first one, and no other"));
    let mut whole = Replay::new(ExecutionId([7; 16]));
    whole.event(1, parts[0].1, parts[0].0.0, &parts[0].0.1).unwrap();
    let (snapshot, ended) = whole.snapshot().unwrap();
    assert!(ended.is_empty());
    let (name, details) = snapshot.to_parts();
    assert!(whole.event(2, *at, name, &details).unwrap_err().contains("the first one, and no other"));
    let attributes: BTreeMap<String, Json> = BTreeMap::new();
    assert_eq!(whole.execution.local_attributes, attributes);
}
