//! Random steps of a run. A step names states and timers by numbers, which are resolved when the step is made. So a
//! run can be shortened and stays valid.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;
use xdb_engine::*;

pub const SECOND: i64 = 1_000_000;

/// One step of a run.
#[derive(Clone, Debug)]
pub enum Op {
    /// A state's call is answered, whatever the call is.
    Answer {
        target: Target,
        request: CommandRequest,
        decision: Decision,
        effects: Effects,
        offer: usize,
    },
    Fail {
        target: Target,
        attempt: Attempt,
        failure: Failure,
        further: Further,
        applied: Option<Box<Effects>>,
        jitter: f64,
    },
    /// The worker refuses the call this number of times, and asks for it later.
    RepeatLater {
        target: Target,
        times: u32,
        after: Duration,
        jitter: f64,
    },
    /// The call fails this number of times, each time when it is due.
    FailAgain {
        target: Target,
        times: u32,
    },
    Repeat {
        target: Target,
        times: u32,
        jitter: f64,
    },
    /// The answer of a state is lost in a crash before it is applied.
    LoseAnswer {
        target: Target,
        decision: Decision,
        effects: Effects,
    },
    /// A timer of a state fires, `early` microseconds before its time.
    Fire {
        pick: usize,
        early: i64,
    },
    Pause(Pause),
    Resume,
    /// The pause ends, `early` microseconds before its time.
    PauseEnds {
        early: i64,
    },
    ProcessTimeout {
        early: i64,
    },
    /// A caller publishes a message to the inbox. The message comes in later.
    Send(Publish),
    /// This number of messages of the inbox come in.
    TakeIn(usize),
    /// Messages come in that were not in the inbox.
    Arrive(Vec<Publish>),
    SendGlobally(Vec<GlobalPublish>),
    /// This number of free messages of global queues are offered.
    Offer {
        target: Target,
        count: usize,
    },
    Rpc(RpcAnswer),
    SetAttributes(BTreeMap<String, Json>),
    SkipTimer {
        target: Target,
        command_id: Option<String>,
    },
    RetryNow(Vec<Target>),
    Move {
        target: Target,
        next: Vec<StateMovement>,
        reason: Option<String>,
    },
    Stop {
        stop_type: StopType,
        reason: Option<String>,
    },
    FailProcess,
    /// Another start is merged. It is due this number of microseconds after the beginning of the run.
    MergeStart(Option<Json>, i64),
    StartAgain,
    /// The last command is repeated.
    Again,
    /// The clock moves, forward or back.
    Clock(i64),
    /// The process type is registered again.
    Register,
}

/// The state execution of a step: one that fits, or any. Any other state execution may have ended, or not exist.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    Fitting(usize),
    Any(u32, Api),
}

/// The number of the failed attempt.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    Next,
    /// One attempt in between was lost in a crash.
    Skipped,
    /// A crash has lost the count, so the number is used again.
    Same,
}

/// A run.
#[derive(Clone)]
pub struct Plan {
    pub definitions: [Definition; 2],
    pub before: Option<Op>,
    pub start: Start,
    pub ops: Vec<Op>,
}

/// Shows the shortened run. The message of the failure shows what happened in it.
impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, definition) in self.definitions.iter().enumerate() {
            writeln!(f, "\n  definition {at}: {}", serde_json::to_string(definition).map_err(|_| std::fmt::Error)?)?;
        }
        for op in &self.ops {
            writeln!(f, "  {}", brief(op))?;
        }
        Ok(())
    }
}

/// The output of `Debug`, without absent values.
pub fn brief(what: &impl std::fmt::Debug) -> String {
    let mut text = format!("{what:?}");
    for absent in ["None", "{}", "[]"] {
        let mut from = 0;
        while let Some(found) = text[from..].find(&format!(": {absent}")).map(|at| at + from) {
            let end = found + 2 + absent.len();
            let begin = text[..found].rfind([' ', '{']).map_or(0, |at| at + 1);
            let end = if text[end..].starts_with(", ") { end + 2 } else { end };
            text.replace_range(begin..end, "");
            from = begin;
        }
    }
    text.replace(", }", " }")
}

pub fn mapping() -> Vec<TableMapping> {
    let attributes = [("g", "g"), ("h", "h")].map(|(name, column)| (name.to_owned(), column.to_owned()));
    vec![TableMapping {
        table: "public.t".to_owned(),
        relation: 7,
        primary_key: vec!["id".to_owned()],
        attributes: attributes.into(),
    }]
}

/// Mostly one of the known names, rarely the unknown one.
fn name(known: &'static [&'static str], unknown: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![60 => prop::sample::select(known), 1 => Just(unknown)].prop_map(str::to_owned)
}

fn state_id() -> impl Strategy<Value = String> {
    prop_oneof![
        60 => prop::sample::select(&["A", "B", "C"][..]),
        3 => Just("D"),
        4 => prop::sample::select(&["N", "R", "P"][..]),
        1 => Just("Nowhere"),
    ]
    .prop_map(str::to_owned)
}

fn queue() -> impl Strategy<Value = String> {
    name(&["p", "q"], "unlisted")
}

fn global_queue() -> impl Strategy<Value = String> {
    prop_oneof![9 => name(&["G", "H"], "unlisted"), 1 => Just("unlisted".to_owned())]
}

fn key() -> impl Strategy<Value = Option<String>> {
    option::of(prop::sample::select(&["k", "l"][..]).prop_map(str::to_owned))
}

fn json() -> impl Strategy<Value = Json> {
    let texts = &["1", "\"a\"", "{\"n\":1.50}", "[1,[2]]", "true", "12345678901234567890.123"][..];
    prop::sample::select(texts).prop_map(Json::from_trusted)
}

fn attributes() -> impl Strategy<Value = BTreeMap<String, Json>> {
    btree_map(name(&["x", "y"], "z"), json(), 0..3)
}

fn global_attributes() -> impl Strategy<Value = BTreeMap<String, Json>> {
    btree_map(name(&["g", "h"], "i"), json(), 0..2)
}

fn message_id() -> impl Strategy<Value = Option<String>> {
    prop_oneof![2 => Just(None), 1 => prop::sample::select(&["m", "n", "o"][..]).prop_map(|id| Some(id.to_owned()))]
}

pub fn publish() -> impl Strategy<Value = Publish> {
    (queue(), message_id(), option::of(json())).prop_map(|(queue, message_id, payload)| Publish {
        queue,
        message_id,
        payload,
    })
}

fn publish_globally() -> impl Strategy<Value = GlobalPublish> {
    let ttl = option::of((0..3i64).prop_map(|seconds| Duration(seconds * SECOND)));
    (global_queue(), key(), message_id(), option::of(json()), ttl)
        .prop_map(|(queue, key, message_id, payload, ttl)| GlobalPublish { queue, key, message_id, payload, ttl })
}

/// All definitions list the function `f`, few list `g`.
fn function_calls() -> impl Strategy<Value = Vec<FunctionCall>> {
    let name = prop_oneof![12 => Just("f"), 1 => Just("g")];
    let call =
        (name, option::of(json())).prop_map(|(name, argument)| FunctionCall { function: name.to_owned(), argument });
    prop_oneof![3 => Just(vec![]), 1 => vec(call, 1..3)]
}

fn aborts() -> impl Strategy<Value = Option<AbortStates>> {
    let name = prop_oneof![
        40 => prop::sample::select(&["A", "B", "C", "A-1", "A-2", "B-1", "B-2", "C-1", "A-9"][..]),
        1 => prop::sample::select(&["Nowhere", "Nowhere-1", "A-", "-1"][..]),
    ];
    prop_oneof![
        6 => Just(None),
        1 => Just(Some(AbortStates::All)),
        3 => vec(name.prop_map(str::to_owned), 1..4).prop_map(|names| Some(AbortStates::Named(names.into_iter().collect()))),
    ]
}

fn effects() -> impl Strategy<Value = Effects> {
    let messages = (vec(publish(), 0..4), vec(publish_globally(), 0..2));
    let starts = (function_calls(), children());
    let some = (messages, attributes(), global_attributes(), starts, aborts()).prop_map(
        |(
            (local, global),
            write_local_attributes,
            write_global_attributes,
            (call_functions, start_processes),
            abort_states,
        )| Effects {
            publish_to_local_queue: local,
            publish_to_global_queue: global,
            write_local_attributes,
            write_global_attributes,
            start_processes,
            call_functions,
            abort_states,
            ..Effects::default()
        },
    );
    prop_oneof![2 => Just(Effects::default()), 1 => some]
}

fn children() -> impl Strategy<Value = Vec<ChildStart>> {
    let words = prop::sample::select(&[WhenParentCloses::Terminate, WhenParentCloses::Leave][..]);
    let child = (option::of(Just("c-1".to_owned())), option::of(json()), option::of(queue()), words).prop_map(
        |(process_id, input, on_close, when_parent_closes)| ChildStart {
            process_type: "U".to_owned(),
            process_id,
            input,
            global_attribute_pk: None,
            global_attributes: None,
            local_attributes: None,
            options: None,
            id_reuse_policy: IdReusePolicy::AllowIfNoRunning,
            timeout: None,
            start_at: None,
            on_close,
            when_parent_closes,
        },
    );
    prop_oneof![4 => Just(Vec::new()), 1 => vec(child, 1..4)]
}

/// The parent of a run, if it has one.
fn started_by() -> impl Strategy<Value = Option<Box<StartedBy>>> {
    let step = option::of(Just(StateExecutionId { state_id: "S".to_owned(), number: 3 }));
    let words = prop::sample::select(&[WhenParentCloses::Terminate, WhenParentCloses::Leave][..]);
    let parent = (step, option::of(queue()), words).prop_map(|(state_execution_id, on_close, when_parent_closes)| {
        Box::new(StartedBy {
            process_id: "parent".to_owned(),
            process_execution_id: ExecutionId([8; 16]),
            state_execution_id,
            on_close,
            when_parent_closes,
        })
    });
    option::weighted(0.3, parent)
}

fn requested() -> impl Strategy<Value = RequestedCommand> {
    let bounds = || {
        (prop::sample::select(&[1, 1, 1, 2, 3][..]), 0..4u32)
            .prop_map(|(at_least, more): (u32, u32)| (at_least, at_least + more))
    };
    let kind = prop_oneof![
        3 => (0..6i64).prop_map(|seconds| RequestedKind::TimerAfter(Duration(seconds * SECOND))),
        1 => (-2..6i64).prop_map(|seconds| RequestedKind::TimerAt(Timestamp(T0 + seconds * SECOND))),
        1 => option::weighted(0.1, Just("nowhere".to_owned())).prop_map(|timezone| {
            RequestedKind::TimerCron(Cron { expression: "*".to_owned(), timezone })
        }),
        5 => (queue(), bounds()).prop_map(|(queue, (at_least, at_most))| RequestedKind::LocalQueue { queue, at_least, at_most }),
        2 => (global_queue(), key(), bounds()).prop_map(|(queue, key, (at_least, at_most))| {
            RequestedKind::GlobalQueue { queue, key, at_least, at_most }
        }),
    ];
    (option::of(prop::sample::select(&["t", "u"][..])), kind)
        .prop_map(|(command_id, kind)| RequestedCommand { command_id: command_id.map(str::to_owned), kind })
}

/// A decoded answer to `waitUntil`: timers come before local queues, and local queues before global ones.
fn request() -> impl Strategy<Value = CommandRequest> {
    let waiting_type = prop_oneof![
        1 => Just(WaitingType::Empty),
        5 => Just(WaitingType::All),
        5 => Just(WaitingType::Any),
        5 => Just(WaitingType::AnyCombination),
    ];
    (waiting_type, vec(requested(), 1..5), vec(vec(0..8u32, 1..3), 1..4)).prop_map(
        |(waiting_type, mut commands, mut combinations)| {
            commands.sort_by_key(|command| match command.kind {
                RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_) => 0,
                RequestedKind::LocalQueue { .. } => 1,
                RequestedKind::GlobalQueue { .. } => 2,
            });
            combinations.iter_mut().flatten().for_each(|at| *at %= commands.len() as u32);
            if waiting_type != WaitingType::AnyCombination {
                combinations.clear();
            }
            if waiting_type == WaitingType::Empty {
                commands.clear();
            }
            CommandRequest { waiting_type, commands, combinations }
        },
    )
}

/// Static waits are checked before they are stored, so their time zones are known.
fn in_utc(commands: &mut [RequestedCommand]) {
    for command in commands {
        if let RequestedKind::TimerCron(cron) = &mut command.kind {
            cron.timezone = None;
        }
    }
}

/// Its stored form has names in place of positions.
fn static_wait() -> impl Strategy<Value = CommandRequest> {
    request().prop_map(|mut request| {
        in_utc(&mut request.commands);
        if request.waiting_type == WaitingType::AnyCombination {
            for (at, command) in request.commands.iter_mut().enumerate() {
                command.command_id = Some(format!("c{at}"));
            }
        }
        request
    })
}

fn retry_policy() -> impl Strategy<Value = RetryPolicy> {
    (
        prop::sample::select(&[0.0, 0.5, 1.0][..]),
        prop::sample::select(&[1.0, 2.0, 3.0][..]),
        prop_oneof![4 => prop::sample::select(&[100.0, 5.0, 0.25][..]), 1 => 0.1..1e6f64],
        prop::sample::select(&[0, 0, 1, 2, 3, 12][..]),
        prop::sample::select(&[0.0, 0.0, 2.6, 20.6][..]),
    )
        .prop_map(|(initial, coefficient, maximum, attempts, duration)| RetryPolicy {
            initial_interval_seconds: initial,
            backoff_coefficient: coefficient,
            maximum_interval_seconds: maximum,
            maximum_attempts: attempts,
            maximum_attempts_duration_seconds: duration,
        })
}

fn loading() -> impl Strategy<Value = Option<Loading>> {
    let some = name(&["x", "y"], "z").prop_map(|name| Loading {
        policy: LoadPolicy::Partial,
        names: vec![name],
        lock_type: LockType::NoLocking,
    });
    prop_oneof![6 => Just(None), 1 => some.prop_map(Some)]
}

fn config() -> impl Strategy<Value = StateConfig> {
    let one = || {
        let policies = (option::of(retry_policy()), option::of(retry_policy()));
        let wait = option::weighted(0.15, static_wait().prop_map(Box::new));
        (option::of(any::<bool>()), policies, loading(), wait).prop_map(
            |(
                skip_wait_until,
                (wait_until_api_retry_policy, execute_api_retry_policy),
                execute_load_local_attributes,
                command_request,
            )| {
                StateConfig {
                    // Mostly, options say in one way only what the state waits for.
                    skip_wait_until: skip_wait_until.filter(|_| command_request.is_none()),
                    command_request,
                    wait_until_api_retry_policy,
                    execute_api_retry_policy,
                    execute_load_local_attributes,
                    ..StateConfig::default()
                }
            },
        )
    };
    let policy = prop_oneof![
        1 => Just(FailurePolicy::FailProcess),
        2 => Just(FailurePolicy::ProceedToConfiguredState),
        2 => Just(FailurePolicy::RaiseIncident),
        1 => Just(FailurePolicy::Compensate),
    ];
    let recovery = (policy, state_id(), option::of(one())).prop_map(|(policy, to, config)| FailureRecovery {
        policy,
        state_failure_proceed_state_id: Some(to),
        state_failure_proceed_state_config: config.map(Box::new),
    });
    (one(), option::of(recovery))
        .prop_map(|(config, recovery)| StateConfig { state_failure_recovery_options: recovery, ..config })
}

/// Options of a guard: it waits for any of its commands.
fn guard() -> impl Strategy<Value = StateConfig> {
    let commands = vec(prop_oneof![1 => requested(), 1 => requested_messages()], 1..3);
    (commands, option::of(any::<bool>())).prop_map(|(mut commands, interrupting)| {
        in_utc(&mut commands);
        commands.sort_by_key(|command| match command.kind {
            RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_) => 0,
            RequestedKind::LocalQueue { .. } => 1,
            RequestedKind::GlobalQueue { .. } => 2,
        });
        let request = CommandRequest { waiting_type: WaitingType::Any, commands, combinations: Vec::new() };
        StateConfig { command_request: Some(Box::new(request)), interrupting, ..StateConfig::default() }
    })
}

fn requested_messages() -> impl Strategy<Value = RequestedCommand> {
    queue().prop_map(|queue| RequestedCommand {
        command_id: None,
        kind: RequestedKind::LocalQueue { queue, at_least: 1, at_most: 1 },
    })
}

fn movements() -> impl Strategy<Value = Vec<StateMovement>> {
    let begin = prop_oneof![
        8 => Just(Begin::AtOnce),
        1 => (0..3i64).prop_map(|seconds| Begin::After(Duration(seconds * SECOND / 2))),
        1 => (-2..6i64).prop_map(|seconds| Begin::At(Timestamp(T0 + seconds * SECOND))),
    ];
    let one = (state_id(), option::of(json()), option::weighted(0.3, config()), begin).prop_map(
        |(state_id, input, config, begin)| StateMovement { state_id, input, config: config.map(Box::new), begin },
    );
    prop_oneof![40 => vec(one, 1..4), 1 => Just(Vec::new())]
}

fn decision() -> impl Strategy<Value = Decision> {
    let close_type = |dead_end, graceful, force| {
        prop_oneof![
            dead_end => Just(CloseType::DeadEnd),
            graceful => Just(CloseType::GracefulComplete),
            force => Just(CloseType::ForceComplete),
            force => Just(CloseType::ForceFail),
            force => Just(CloseType::Compensate),
        ]
    };
    let conditional = (close_type(1, 30, 10), vec(queue(), 0..3), option::of(json()), movements()).prop_map(
        |(close_type, queues, output, otherwise)| {
            let fails = matches!(close_type, CloseType::ForceFail | CloseType::Compensate);
            let close_type = if fails { CloseType::ForceComplete } else { close_type };
            Decision::ConditionalClose { close_type, queues, output, otherwise }
        },
    );
    prop_oneof![
        16 => movements().prop_map(Decision::NextStates),
        5 => (close_type(10, 6, 1), option::of(json()))
            .prop_map(|(close_type, output)| Decision::Close { close_type, output }),
        5 => conditional,
    ]
}

fn api() -> impl Strategy<Value = Api> {
    prop::sample::select(&[Api::WaitUntil, Api::Execute][..])
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![15 => (0..100usize).prop_map(Target::Fitting), 1 => (0..10u32, api()).prop_map(|(seq, api)| Target::Any(seq, api))]
}

fn failure() -> impl Strategy<Value = Failure> {
    let refused = Just(AppDatabaseError {
        sql_state: "23505".to_owned(),
        message: "duplicate key".to_owned(),
        table: Some("public.t".to_owned()),
        constraint: None,
    });
    (option::of(Just(500u16)), option::weighted(0.3, refused)).prop_map(|(status, app_database_error)| Failure {
        status,
        detail: "it failed".to_owned(),
        app_database_error,
        ..Failure::default()
    })
}

/// The time that a worker asks for: zero, a fraction of a second, seconds, and longer than any policy.
fn asked() -> impl Strategy<Value = Duration> {
    prop::sample::select(&[0, 50_000, SECOND / 2, 3 * SECOND, 3 * SECOND, 90 * SECOND, 4_000 * SECOND][..])
        .prop_map(Duration)
}

fn further() -> impl Strategy<Value = Further> {
    prop_oneof![
        6 => Just(Further::ByPolicy),
        2 => asked().prop_map(Further::After),
        1 => Just(Further::Never),
        1 => asked().prop_map(Further::Repeat),
        2 => Just(Further::WhenRegistered),
    ]
}

fn jitter() -> impl Strategy<Value = f64> {
    prop::sample::select(&[0.5, 0.5, 0.0, 1.0, 0.25][..])
}

fn rpc() -> impl Strategy<Value = RpcAnswer> {
    (option::of(json()), option::weighted(0.3, decision()), effects())
        .prop_map(|(output, decision, effects)| RpcAnswer { output, decision, effects })
}

fn pause() -> impl Strategy<Value = Pause> {
    let until = prop::sample::select(&[None, Some(-1), Some(2), Some(5)][..]);
    (any::<bool>(), until, option::of(Just("a reason".to_owned()))).prop_map(|(rejects, until, reason)| Pause {
        mode: if rejects { PauseMode::Reject } else { PauseMode::Wait },
        until: until.map(|seconds: i64| Timestamp(T0 + seconds * SECOND)),
        reason,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let attempt = prop_oneof![8 => Just(Attempt::Next), 1 => Just(Attempt::Skipped), 1 => Just(Attempt::Same)];
    let early = || prop_oneof![8 => Just(0), 2 => Just(-SECOND), 1 => Just(1), 1 => Just(SECOND)];
    let end = prop_oneof![
        4 => early().prop_map(|early| Op::ProcessTimeout { early }),
        1 => (prop::sample::select(&[StopType::Terminate, StopType::Fail][..]), option::of(Just("enough".to_owned())))
            .prop_map(|(stop_type, reason)| Op::Stop { stop_type, reason }),
        1 => Just(Op::FailProcess),
    ];
    let command_id = || option::of(prop::sample::select(&["t", "u", "v"][..]).prop_map(str::to_owned));
    prop_oneof![
        40 => (target(), request(), decision(), effects(), 0..8usize).prop_map(|(target, request, decision, effects, offer)| {
            Op::Answer { target, request, decision, effects, offer }
        }),
        6 => (target(), attempt, failure(), further(), option::weighted(0.2, effects().prop_map(Box::new)), jitter())
            .prop_map(|(target, attempt, failure, further, applied, jitter)| {
                Op::Fail { target, attempt, failure, further, applied, jitter }
            }),
        1 => (target(), 1..14u32, asked(), jitter())
            .prop_map(|(target, times, after, jitter)| Op::RepeatLater { target, times, after, jitter }),
        2 => (target(), 1..15u32).prop_map(|(target, times)| Op::FailAgain { target, times }),
        2 => (target(), 1..14u32, jitter()).prop_map(|(target, times, jitter)| Op::Repeat { target, times, jitter }),
        2 => (target(), decision(), effects())
            .prop_map(|(target, decision, effects)| Op::LoseAnswer { target, decision, effects }),
        9 => (0..100usize, early()).prop_map(|(pick, early)| Op::Fire { pick, early }),
        8 => publish().prop_map(Op::Send),
        8 => (1..4usize).prop_map(Op::TakeIn),
        6 => vec(publish(), 0..5).prop_map(Op::Arrive),
        7 => vec(publish_globally(), 1..4).prop_map(Op::SendGlobally),
        7 => (target(), 0..12usize).prop_map(|(target, count)| Op::Offer { target, count }),
        6 => rpc().prop_map(Op::Rpc),
        3 => attributes().prop_map(Op::SetAttributes),
        4 => (target(), command_id()).prop_map(|(target, command_id)| Op::SkipTimer { target, command_id }),
        4 => vec(target(), 0..5).prop_map(Op::RetryNow),
        3 => (target(), prop_oneof![3 => movements(), 1 => Just(Vec::new())], option::of(Just("moved".to_owned())))
            .prop_map(|(target, next, reason)| Op::Move { target, next, reason }),
        3 => pause().prop_map(Op::Pause),
        2 => Just(Op::Resume),
        2 => early().prop_map(|early| Op::PauseEnds { early }),
        2 => end,
        3 => (option::weighted(0.8, json()), 0..9i64).prop_map(|(input, at)| Op::MergeStart(input, at * SECOND)),
        1 => Just(Op::StartAgain),
        3 => Just(Op::Again),
        6 => prop_oneof![3 => 0..3i64, 1 => -3..0i64].prop_map(|seconds| Op::Clock(seconds * SECOND)),
        1 => Just(Op::Register),
    ]
}

/// When all runs begin.
pub const T0: i64 = 1_000 * SECOND;

/// The state that undoes another one.
fn undone_by() -> impl Strategy<Value = Option<String>> {
    prop::sample::select(vec![None, Some("B"), Some("C")]).prop_map(|state_id| state_id.map(str::to_owned))
}

/// Which guards a state lists.
fn guards_of() -> impl Strategy<Value = Option<Vec<String>>> {
    let lists = [None, None, Some(vec!["N"]), Some(vec!["R"]), Some(vec!["N", "R"]), Some(vec!["P"])];
    prop::sample::select(lists.to_vec())
        .prop_map(|guards: Option<Vec<&str>>| guards.map(|guards| guards.into_iter().map(str::to_owned).collect()))
}

fn definitions() -> impl Strategy<Value = [Definition; 2]> {
    let listed = |names: &'static [&'static str]| {
        option::of(Just(names.iter().map(|name| (*name).to_owned()).collect::<std::collections::BTreeSet<_>>()))
    };
    let one = (
        prop_oneof![24 => Just(Some("A".to_owned())), 1 => Just(None)],
        (config().boxed(), config().boxed(), config().boxed(), config().boxed(), any::<bool>()),
        (guard(), guard(), guard(), guards_of(), guards_of(), any::<bool>(), undone_by(), undone_by()).boxed(),
        listed(&["x", "y"]),
        listed(&["p", "q"]),
        listed(&["G", "H"]),
        prop::sample::select(&[None, Some(0.0), Some(9.0), Some(30.0)][..]),
        (prop::sample::select(&[0, 0, 7][..]), locks()),
    )
        .prop_map(
            |(
                starting_state,
                (mut a, mut b, c, d, has_d),
                (n, r, p, of_a, of_b, of_process, undo_a, undo_b),
                local_attributes,
                local_queues,
                global_queues,
                timeout_seconds,
                (priority, locks),
            )| {
                (a.guards, b.guards) = (of_a, of_b);
                (a.compensation_state_id, b.compensation_state_id) = (undo_a, undo_b);
                let states = [("A", a), ("B", b), ("C", c), ("N", n), ("R", r), ("P", p)];
                let mut states = BTreeMap::from(states.map(|(name, state)| (name.to_owned(), state)));
                if has_d {
                    states.insert("D".to_owned(), d);
                }
                Definition {
                    starting_state,
                    states,
                    global_attributes: mapping(),
                    local_attributes,
                    local_queues,
                    global_queues: global_queues.unwrap_or_else(|| ["*".to_owned()].into()),
                    rpcs: None,
                    functions: BTreeMap::from([("f".to_owned(), "app.f".to_owned())]),
                    timeout_seconds,
                    retention_seconds: None,
                    history: HistoryPolicy::Full,
                    strict_answers: false,
                    guards: if of_process { vec!["P".to_owned()] } else { Vec::new() },
                    priority,
                    locks,
                    changes: None,
                }
            },
        );
    (one.boxed(), config().boxed(), any::<bool>(), any::<bool>()).prop_map(|(first, other, lists, keeps_c)| {
        let mut second = first.clone();
        second.states.insert("A".to_owned(), other);
        if !keeps_c {
            second.states.remove("C");
        }
        if lists {
            second.local_queues = Some(["p".to_owned()].into());
        }
        [first, second]
    })
}

/// Seldom any.
fn locks() -> impl Strategy<Value = ProcessLocks> {
    let name = prop::sample::select(&["l", "m"][..]).prop_map(str::to_owned);
    let mode = prop_oneof![Just(LockMode::Exclusive), Just(LockMode::Share)];
    prop_oneof![2 => Just(ProcessLocks::new()), 1 => prop::collection::btree_map(name, mode, 1..=2)]
}

fn start() -> impl Strategy<Value = Start> {
    (
        option::weighted(0.9, json()),
        attributes(),
        global_attributes(),
        prop::sample::select(&[None, None, Some(0), Some(4), Some(20)][..]),
        (option::weighted(0.1, state_id()), option::weighted(0.2, config())),
        (prop::sample::select(&[None, None, None, Some(-2), Some(0), Some(3)][..]), started_by()),
        function_calls(),
        (prop::sample::select(&[None, None, Some(0), Some(-10)][..]), locks()),
    )
        .prop_map(
            |(
                input,
                local_attributes,
                global_attributes,
                timeout,
                (starting_state, config),
                (start_at, started_by),
                call_functions,
                (priority, locks),
            )| {
                Start {
                    priority,
                    locks,
                    process_id: "p-1".to_owned(),
                    process_type: "T".to_owned(),
                    input,
                    local_attributes,
                    global_attributes,
                    call_functions,
                    timeout: timeout.map(|seconds: i64| Duration(seconds * SECOND)),
                    starting_state,
                    starting_state_config: config.map(Box::new),
                    start_at: start_at.map(|seconds: i64| Timestamp(T0 + seconds * SECOND)),
                    started_by,
                }
            },
        )
}

/// A run of at most this number of steps.
pub fn plan(steps: usize) -> impl Strategy<Value = Plan> {
    // Boxed, because the values are large and would not fit into the stack of a test's thread.
    let op = op().boxed();
    (definitions().boxed(), option::weighted(0.1, op.clone()), start().boxed(), vec(op, 1..steps))
        .prop_map(|(definitions, before, start, ops)| Plan { definitions, before, start, ops })
}
