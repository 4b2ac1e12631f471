//! Invariants under random commands. The commands are valid, stale and doubled, and the process type has all kinds of
//! states.

mod common;

use common::*;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xdb_engine::*;

/// `A` waits. `B` does not. `C` gives up soon and is recovered by `R`. `R` gives up soon and is not recovered. `I`
/// gives up soon and raises incidents.
fn process_type() -> Definition {
    let recovery = FailureRecovery {
        policy: FailurePolicy::ProceedToConfiguredState,
        state_failure_proceed_state_id: Some("R".to_owned()),
        state_failure_proceed_state_config: Some(Box::new(skipping())),
    };
    let failing = StateConfig { state_failure_recovery_options: Some(recovery), ..attempts(2) };
    let states = [("A", plain()), ("B", skipping()), ("C", failing), ("R", attempts(3)), ("I", raising(attempts(2)))];
    Definition { timeout_seconds: Some(120.0), ..definition(&states) }
}

/// A random command. `pick` chooses one of the states that the command fits.
#[derive(Clone, Debug)]
enum Step {
    /// A worker answers the call that the state is at.
    Answer {
        pick: usize,
        request: CommandRequest,
        decision: Decision,
        effects: Effects,
    },
    /// Attempts fail, one after another.
    Fail {
        pick: usize,
        times: u32,
        refused: bool,
    },
    /// The values that the call loaded have changed.
    Repeat {
        pick: usize,
    },
    Fire {
        pick: usize,
        command: u32,
    },
    Publish(Vec<Publish>),
    /// Messages are published to global queues, by queue and key, and are offered to a state.
    Offer {
        pick: usize,
        messages: Vec<(String, Option<String>)>,
    },
    SetLocalAttributes(BTreeMap<String, Json>),
    SkipTimer {
        pick: usize,
        command_id: Option<String>,
    },
    /// Retries all states, at a call or not.
    RetryNow,
    Rpc(RpcAnswer),
    /// A command for any state, which may not exist or not fit.
    Stale {
        seq: u32,
        api: Api,
        attempt: u32,
        decision: Decision,
        request: CommandRequest,
    },
    /// The last command again.
    Again,
    Pass(i64),
    Timeout,
    /// A pause for this number of seconds, or for ever.
    Pause(Option<i64>),
    Resume,
    PauseEnds,
    Stop,
}

fn publish() -> impl Strategy<Value = Publish> {
    ("[qrs]", option::weighted(0.4, "[a-e]"), option::of("[0-9]{1,3}")).prop_map(|(queue, message_id, payload)| {
        Publish { queue, message_id, payload: payload.map(|digits| json(&format!("[1.{digits}0]"))) }
    })
}

fn effects() -> impl Strategy<Value = Effects> {
    let attributes = prop_oneof![3 => Just(BTreeMap::new()), 1 => btree_map("\\PC{1,4}", Just(json("null")), 1..3)];
    (prop_oneof![3 => Just(vec![]).boxed(), 2 => vec(publish(), 1..4).boxed()], attributes).prop_map(
        |(publish_to_local_queue, write_local_attributes)| Effects {
            abort_states: None,
            publish_to_global_queue: Vec::new(),
            publish_to_local_queue,
            write_local_attributes,
            write_global_attributes: BTreeMap::new(),
            start_processes: vec![],
            call_functions: vec![],
            warnings: vec![],
        },
    )
}

fn request() -> impl Strategy<Value = CommandRequest> {
    let command = prop_oneof![
        (0i64..60).prop_map(timer),
        (900i64..1100)
            .prop_map(|at| RequestedCommand { command_id: None, kind: RequestedKind::TimerAt(Timestamp(at * SECOND)) }),
        ("[qrs]", 1u32..4, 0u32..3).prop_map(|(queue, least, more)| from_queue(&queue, least, least + more)),
        ("[qrs]", 1u32..3).prop_map(|(queue, least)| from_queue(&queue, least, least)),
        ("[qr]", option::of("[kl]"), 1u32..4, 0u32..3).prop_map(|(queue, key, least, more)| from_global(
            &queue,
            key.as_deref(),
            least,
            least + more
        )),
    ];
    let waiting_type = prop_oneof![
        1 => Just(WaitingType::Empty),
        2 => Just(WaitingType::All),
        2 => Just(WaitingType::Any),
        2 => Just(WaitingType::AnyCombination),
    ];
    (waiting_type, vec(command, 1..5), vec(vec(any::<prop::sample::Index>(), 1..3), 1..3)).prop_map(
        |(waiting_type, commands, combinations)| match waiting_type {
            WaitingType::Empty => CommandRequest { waiting_type, commands: vec![], combinations: vec![] },
            WaitingType::AnyCombination => {
                let position = |index: &prop::sample::Index| index.index(commands.len()) as u32;
                let combinations = combinations.iter().map(|ids| ids.iter().map(position).collect()).collect();
                CommandRequest { waiting_type, commands, combinations }
            }
            _ => CommandRequest { waiting_type, commands, combinations: vec![] },
        },
    )
}

fn decision() -> impl Strategy<Value = Decision> {
    let movement = ("[AAABBCCIRX]", option::of("[1-9]")).prop_map(|(state_id, input)| StateMovement {
        state_id,
        input: input.as_deref().map(json),
        config: None,
        begin: Begin::AtOnce,
    });
    let output = || option::of(Just(json("\"done\"")));
    let conditional = prop_oneof![Just(CloseType::GracefulComplete), Just(CloseType::ForceComplete)];
    let close = prop_oneof![
        3 => Just(CloseType::GracefulComplete),
        6 => Just(CloseType::DeadEnd),
        1 => Just(CloseType::ForceComplete),
        1 => Just(CloseType::ForceFail),
    ];
    prop_oneof![
        8 => vec(movement.clone(), 1..4).prop_map(Decision::NextStates),
        3 => (close, output()).prop_map(|(close_type, output)| Decision::Close { close_type, output }),
        1 => (conditional, vec("[qrs]", 1..3), output(), vec(movement, 1..3)).prop_map(
            |(close_type, queues, output, otherwise)| {
                Decision::ConditionalClose { close_type, queues, output, otherwise }
            }
        ),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let api = || prop_oneof![Just(Api::WaitUntil), Just(Api::Execute)];
    prop_oneof![
        12 => (any::<usize>(), request(), decision(), effects())
            .prop_map(|(pick, request, decision, effects)| Step::Answer { pick, request, decision, effects }),
        3 => (any::<usize>(), prop_oneof![2 => 1u32..3, 1 => 9u32..14], any::<bool>())
            .prop_map(|(pick, times, refused)| Step::Fail { pick, times, refused }),
        2 => any::<usize>().prop_map(|pick| Step::Repeat { pick }),
        4 => (any::<usize>(), 0u32..5).prop_map(|(pick, command)| Step::Fire { pick, command }),
        5 => vec(publish(), 1..5).prop_map(Step::Publish),
        4 => (any::<usize>(), vec(("[qr]", option::of("[kl]")), 0..4))
            .prop_map(|(pick, messages)| Step::Offer { pick, messages }),
        1 => btree_map("\\PC{1,4}", Just(json("1.0")), 0..3).prop_map(Step::SetLocalAttributes),
        2 => (any::<usize>(), option::weighted(0.2, "[tu]"))
            .prop_map(|(pick, command_id)| Step::SkipTimer { pick, command_id }),
        1 => Just(Step::RetryNow),
        2 => (option::weighted(0.5, decision()), effects()).prop_map(|(decision, effects)| {
            Step::Rpc(RpcAnswer { output: Some(json("0")), decision, effects })
        }),
        3 => (0u32..20, api(), 0u32..15, decision(), request())
            .prop_map(|(seq, api, attempt, decision, request)| Step::Stale { seq, api, attempt, decision, request }),
        2 => Just(Step::Again),
        3 => (1i64..40).prop_map(Step::Pass),
        1 => Just(Step::Timeout),
        1 => option::of(1i64..30).prop_map(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::PauseEnds),
        1 => prop_oneof![20 => Just(Step::Pass(1)), 1 => Just(Step::Stop)],
    ]
}

/// The world, a replica that is built from its recorded events alone, and a list of all messages.
struct Watched {
    world: World,
    replica: Execution,
    last: Option<Command>,
    received: BTreeMap<String, Vec<u64>>,
    taken: BTreeMap<String, Vec<u64>>,
    failed: BTreeMap<(StateSeq, Api), u32>,
    /// The number of the last message of a global queue.
    global: u64,
}

impl Watched {
    fn new() -> Self {
        let world = World::new(process_type());
        let replica = Execution::new(world.execution.id);
        let (received, taken, failed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { world, replica, last: None, received, taken, failed, global: 0 }
    }

    fn step(&mut self, step: Step) {
        let live = |wanted: fn(&StateExecution) -> bool, pick: usize| {
            let states: Vec<_> = self.world.execution.states.values().filter(|state| wanted(state)).collect();
            if states.is_empty() { None } else { Some(StateExecution::clone(states[pick % states.len()])) }
        };
        let at_call = |state: &StateExecution| matches!(state.phase, Phase::WaitUntil(_) | Phase::Execute { .. });
        match step {
            Step::Answer { pick, request, decision, effects } => match live(at_call, pick) {
                Some(StateExecution { seq, phase: Phase::WaitUntil(_), .. }) => {
                    self.run(Command::WaitUntilAnswered { seq, answer: WaitUntilAnswer { request, effects } });
                }
                Some(StateExecution { seq, .. }) => {
                    self.run(Command::ExecuteAnswered { seq, answer: ExecuteAnswer { decision, effects } });
                }
                None => {}
            },
            Step::Fail { pick, times, refused } => {
                let Some(state) = live(at_call, pick) else { return };
                for _ in 0..times {
                    let state = &self.world.execution.states[&state.seq];
                    let api = if state.status() == StateStatus::WaitUntil { Api::WaitUntil } else { Api::Execute };
                    let Some(call) = state.call(api) else { return };
                    let error = AppDatabaseError { sql_state: "23505".to_owned(), ..AppDatabaseError::default() };
                    let failure = Failure {
                        detail: "no".to_owned(),
                        app_database_error: Some(error).filter(|_| refused),
                        ..Failure::default()
                    };
                    let (seq, attempt) = (state.seq, call.failed_attempts + 1);
                    let first_attempt_at = self.world.now;
                    let (further, applied) = (Further::ByPolicy, None);
                    let failed = CallFailed { seq, api, attempt, first_attempt_at, failure, further, applied };
                    self.run(Command::CallFailed(failed));
                    self.world.pass(1);
                }
            }
            Step::Repeat { pick } => {
                if let Some(state) = live(at_call, pick) {
                    let api = if state.status() == StateStatus::WaitUntil { Api::WaitUntil } else { Api::Execute };
                    self.run(Command::CallRepeated { seq: state.seq, api });
                }
            }
            Step::Fire { pick, command } => {
                if let Some(state) = live(|state| matches!(state.phase, Phase::Waiting(_)), pick) {
                    self.run(Command::TimerFired { seq: state.seq, command });
                }
            }
            Step::Offer { pick, messages } => {
                for (queue, key) in messages {
                    self.global += 1;
                    let message = global_message(self.global, &queue, key.as_deref(), "1.0");
                    self.world.free.push(message);
                }
                if let Some(state) = live(|state| matches!(state.phase, Phase::Waiting(_)), pick) {
                    self.run(Command::GlobalMessagesArrived { seq: state.seq });
                }
            }
            Step::SetLocalAttributes(attributes) => self.run(Command::SetLocalAttributes(attributes)),
            Step::SkipTimer { pick, command_id } => {
                if let Some(state) = live(|state| matches!(state.phase, Phase::Waiting(_)), pick) {
                    self.run(Command::SkipTimer { seq: state.seq, command_id });
                }
            }
            Step::RetryNow => {
                let states = self.world.execution.states.keys().copied().collect();
                self.run(Command::RetryNow(states));
            }
            Step::Publish(messages) => self.run(Command::MessagesArrived(messages)),
            Step::Rpc(answer) => self.run(Command::RpcAnswered { rpc_name: "rpc".to_owned(), answer }),
            Step::Stale { seq, api, attempt, decision, request } => {
                let seq = StateSeq(seq);
                self.run(failed(seq.0, api, attempt, self.world.now));
                self.run(match api {
                    Api::Execute => execute(seq.0, decision),
                    Api::WaitUntil => Command::WaitUntilAnswered {
                        seq,
                        answer: WaitUntilAnswer { request, effects: Effects::default() },
                    },
                });
            }
            Step::Again => {
                if let Some(command) = self.last.clone() {
                    self.run(command);
                }
            }
            Step::Pass(seconds) => self.world.pass(seconds),
            Step::Timeout => self.run(Command::ProcessTimeout),
            Step::Pause(seconds) => {
                let until = seconds.map(|seconds| self.world.now + Duration(seconds * SECOND));
                self.run(Command::Pause(Pause { mode: PauseMode::Wait, until, reason: None }));
            }
            Step::Resume => self.run(Command::Resume),
            Step::PauseEnds => self.run(Command::PauseEnds),
            Step::Stop => self.run(Command::Stop { stop_type: StopType::Terminate, reason: None }),
        }
    }

    fn run(&mut self, command: Command) {
        self.last = Some(command.clone());
        let before = self.world.execution.clone();
        let decided = self.world.decide(&command);
        assert_eq!(self.world.decide(&command), decided, "deciding is deterministic");
        self.check_part(&command, &decided);
        for event in decided.iter().flatten() {
            self.account(event);
            self.world.execution.apply(event, self.world.now);
            self.world.no_longer_free(event);
            let (name, details) = event.to_parts();
            let stored = Event::from_parts(name, &details).unwrap();
            assert_eq!(&stored, event);
            if stored.is_recorded() {
                self.world.history.push((stored.clone(), self.world.now));
                self.replica.apply(&stored, self.world.now);
            }
        }
        if let (Command::CallFailed(CallFailed { seq, attempt, api, .. }), Ok(_)) = (&command, &decided) {
            self.failed.insert((*seq, *api), *attempt);
        }
        if before.exists() && !before.is_running() {
            assert!(decided.is_err() || decided == Ok(vec![]), "{command:?}: {decided:?}");
        }
        if decided.is_err() {
            assert_eq!(self.world.execution, before);
        }
        self.check_messages();
        self.check_counters();
        self.check_history();
        assert_eq!(without_backoff(&self.world.execution), without_backoff_of(&self.replica, &self.world.execution));
    }

    fn account(&mut self, event: &Event) {
        match event {
            Event::MessagesReceived { messages, .. } => {
                for message in messages {
                    self.received.entry(message.queue.clone()).or_default().push(message.number);
                }
            }
            Event::CommandCompleted { seq, command, messages } if !messages.is_empty() => {
                let Phase::Waiting(wait) = &self.world.execution.states[seq].phase else { panic!("not waiting") };
                let WaitKind::LocalQueue { queue, at_least, at_most } = &wait.commands[*command as usize].kind else {
                    panic!("a timer takes no messages")
                };
                assert!((*at_least as usize..=*at_most as usize).contains(&messages.len()));
                self.taken.entry(queue.clone()).or_default().extend(messages);
            }
            // The event has the oldest free messages that the command wants, within its bounds.
            Event::GlobalMessagesTaken { seq, command, messages } => {
                let Phase::Waiting(wait) = &self.world.execution.states[seq].phase else { panic!("not waiting") };
                let WaitKind::GlobalQueue { queue, key, at_least, at_most } = &wait.commands[*command as usize].kind
                else {
                    panic!("it waits for something else")
                };
                assert!((*at_least as usize..=*at_most as usize).contains(&messages.len()));
                let wanted = |m: &&GlobalMessage| m.queue == *queue && (key.is_none() || m.key == *key);
                let oldest: Vec<_> = self.world.free.iter().filter(wanted).take(messages.len()).cloned().collect();
                assert_eq!(&oldest, messages);
            }
            _ => {}
        }
    }

    /// The messages that a queue received are the consumed ones and then the remaining ones, in order, each once.
    fn check_messages(&self) {
        let execution = &self.world.execution;
        for (queue, received) in &self.received {
            let taken = self.taken.get(queue).map_or(&[][..], |numbers| numbers);
            if execution.is_running() {
                let left = execution.queues.get(queue).into_iter().flatten().map(|message| message.number);
                let all: Vec<u64> = taken.iter().copied().chain(left).collect();
                assert_eq!(&all, received, "queue {queue}");
            } else {
                assert!(received.starts_with(taken), "queue {queue}");
                assert!(execution.queue_is_empty(queue));
            }
        }
        // Completed commands hold the messages that the events name.
        let waits = execution.states.values().filter_map(|state| match &state.phase {
            Phase::Waiting(wait) | Phase::Execute { results: Some(wait), .. } => Some(wait),
            _ => None,
        });
        let mut held = BTreeSet::new();
        for (command, message) in
            waits.flat_map(|wait| &wait.commands).flat_map(|c| c.messages.iter().map(move |m| (c, m)))
        {
            assert_eq!(command.status, CommandStatus::Completed);
            assert!(held.insert(message.number), "message {} is held twice", message.number);
            assert!(self.taken[&message.queue].contains(&message.number));
        }
        let mut ids = BTreeSet::new();
        for (event, _) in self.world.history.iter() {
            if let Event::MessagesReceived { messages, .. } = event {
                for message in messages.iter().filter(|message| message.message_id.is_some()) {
                    assert!(ids.insert((message.queue.clone(), message.message_id.clone())));
                }
            }
        }
    }

    fn check_counters(&self) {
        let execution = &self.world.execution;
        let live = execution.states.values().filter(|state| state.status().is_live()).count();
        let mut counted = execution.clone();
        counted.recount();
        assert_eq!(&counted, execution);
        let seqs: Vec<u32> = execution.states.keys().map(|seq| seq.0).collect();
        assert_eq!(seqs, (1..execution.next_state).collect::<Vec<_>>());
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        for state in execution.states.values() {
            let number = numbers.entry(&state.id.state_id).or_default();
            *number += 1;
            assert_eq!(state.id.number, *number);
            assert_eq!(state.ended_at.is_some(), !state.status().is_live());
        }
        let counted: BTreeMap<&str, u32> = execution.state_numbers.iter().map(|(id, n)| (id.as_str(), *n)).collect();
        assert_eq!(counted, numbers);
        assert_eq!(execution.is_running(), execution.closed_at.is_none());
        assert!(!(execution.is_running() && execution.completing && live == 0), "it should have completed");
    }

    /// The history contains all failed attempts of calls that are over, and a request to complete at most once.
    fn check_history(&self) {
        let mut recorded: BTreeMap<(StateSeq, Api), u32> = BTreeMap::new();
        let mut requests = 0;
        for (event, _) in &self.world.history {
            match event {
                Event::AttemptFailed { seq, api, attempt, .. }
                | Event::IncidentRaised { seq, api, attempt, .. }
                | Event::StateFailed { seq, api, attempt, .. } => {
                    recorded.insert((*seq, *api), *attempt);
                }
                Event::AttemptsFolded { seq, api, count, last_attempt, .. } => {
                    let before = recorded.get(&(*seq, *api)).copied().unwrap_or(0);
                    assert_eq!(*count, last_attempt - before.max(RECORDED_ATTEMPTS));
                    recorded.insert((*seq, *api), *last_attempt);
                }
                Event::CompletionRequested {} => requests += 1,
                _ => {}
            }
        }
        assert!(requests <= 1);
        for ((seq, api), attempt) in &self.failed {
            if self.world.execution.states[seq].call(*api).is_none() {
                assert_eq!(recorded[&(*seq, *api)], *attempt);
            }
        }
    }

    /// The decision for the part that a command needs is the decision for the whole execution.
    fn check_part(&self, command: &Command, decided: &Result<Vec<Event>, Rejection>) {
        let mut part = needed_part(&self.world.execution, command);
        assert_eq!(&decide(&part, command, self.world.context()), decided, "{command:?}");
        let mut whole = self.world.execution.clone();
        for event in decided.iter().flatten() {
            part.apply(event, self.world.now);
            whole.apply(event, self.world.now);
        }
        let counters = |e: &Execution| {
            (
                e.next_event,
                e.next_state,
                e.next_message,
                (e.live_threads, e.queued, e.timers),
                e.status,
                e.completing,
                e.state_numbers.clone(),
            )
        };
        assert_eq!(counters(&part), counters(&whole));
        for (seq, state) in &part.states {
            assert_eq!(state, &whole.states[seq]);
        }
        if whole.is_running() {
            for (queue, messages) in &part.queues {
                let newest = whole.queues[queue].iter().skip(whole.queues[queue].len() - messages.len());
                assert!(messages.iter().eq(newest));
            }
        }
    }
}

/// The part of an execution that a command needs:
/// - the state of the command
/// - the waiting states and message ids of the queues that it publishes to
/// - these queues, if they have enough messages for a waiting state, and the queues that it names
/// - the states with unrecorded failed attempts, because the command may close the process
fn needed_part(whole: &Execution, command: &Command) -> Execution {
    let no_effects = Effects::default();
    let (seq, effects, decision) = match command {
        Command::WaitUntilAnswered { seq, answer } => (Some(*seq), &answer.effects, None),
        Command::ExecuteAnswered { seq, answer } => (Some(*seq), &answer.effects, Some(&answer.decision)),
        Command::RpcAnswered { answer, .. } => (None, &answer.effects, answer.decision.as_ref()),
        Command::TimerFired { seq, .. }
        | Command::SkipTimer { seq, .. }
        | Command::GlobalMessagesArrived { seq }
        | Command::CallRepeated { seq, .. }
        | Command::CallFailed(CallFailed { seq, .. }) => (Some(*seq), &no_effects, None),
        _ => (None, &no_effects, None),
    };
    let publishes = match command {
        Command::MessagesArrived(messages) => messages,
        _ => &effects.publish_to_local_queue,
    };
    let published: BTreeSet<&str> = publishes.iter().map(|publish| publish.queue.as_str()).collect();
    let suffices = |queue: &&str| {
        let there = whole.queues.get(*queue).map_or(0, |messages| messages.len());
        let new = publishes.iter().filter(|publish| publish.queue == *queue).count();
        let waiting = whole.states.values().flat_map(|state| state.wanted_messages());
        let needed = waiting.filter(|(name, ..)| name == queue).map(|(_, at_least, _)| at_least as usize).min();
        needed.is_some_and(|needed| needed <= there + new)
    };
    let mut queues: BTreeSet<&str> = published.iter().copied().filter(suffices).collect();
    if let Some(Decision::ConditionalClose { queues: named, .. }) = decision {
        queues.extend(named.iter().map(String::as_str));
    }
    if let Command::WaitUntilAnswered { answer, .. } = command {
        queues.extend(answer.request.commands.iter().filter_map(|command| match &command.kind {
            RequestedKind::LocalQueue { queue, .. } => Some(queue.as_str()),
            _ => None,
        }));
    }
    let mut part = whole.clone();
    part.states.retain(|own, state| {
        let waits_for = |command: &WaitCommand| {
            command.status == CommandStatus::Waiting
                && matches!(&command.kind, WaitKind::LocalQueue { queue, .. } if published.contains(queue.as_str()))
        };
        Some(*own) == seq
            || matches!(command, Command::RetryNow(states) if states.contains(own))
            || unrecorded_attempts(state)
            || matches!(&state.phase, Phase::Waiting(wait) if wait.commands.iter().any(waits_for))
    });
    part.queues.retain(|queue, _| queues.contains(queue.as_str()));
    part.message_ids.retain(|(queue, _)| published.contains(queue.as_str()));
    part.local_attributes.clear();
    part.results.clear();
    part
}

fn unrecorded_attempts(state: &StateExecution) -> bool {
    [Api::WaitUntil, Api::Execute]
        .iter()
        .any(|api| state.call(*api).is_some_and(|call| call.failed_attempts > RECORDED_ATTEMPTS))
}

fn without_backoff(execution: &Execution) -> Execution {
    without_backoff_of(execution, execution)
}

/// The execution, with all calls reset that have unrecorded failed attempts in `other`.
fn without_backoff_of(execution: &Execution, other: &Execution) -> Execution {
    let mut plain = execution.clone();
    for state in plain.states.values_mut() {
        if other.states.get(&state.seq).is_some_and(|state| unrecorded_attempts(state))
            && let Phase::WaitUntil(call) | Phase::Execute { call, .. } = &mut Arc::make_mut(state).phase
        {
            *call = CallState::default();
        }
    }
    plain
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_run_keeps_every_promise(before in option::weighted(0.1, step()), steps in vec(step(), 1..60)) {
        let mut watched = Watched::new();
        if let Some(step) = before {
            watched.step(step);
        }
        watched.run(start());
        for step in steps {
            watched.step(step);
        }
    }
}
