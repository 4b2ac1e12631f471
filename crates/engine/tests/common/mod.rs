//! The world of the tests: a process type, an execution of it, a clock, and all recorded events.
#![allow(dead_code, reason = "every test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xdb_engine::*;

pub const SECOND: i64 = 1_000_000;

static NOTHING_PUBLISHED: BTreeSet<(String, String)> = BTreeSet::new();

pub struct World {
    pub definition: Definition,
    pub execution: Execution,
    pub now: Timestamp,
    pub history: Vec<(Event, Timestamp)>,
    /// Free messages of global queues.
    pub free: Vec<GlobalMessage>,
    pub quotas: Quotas,
    pub global_queues_full: bool,
}

impl World {
    pub fn new(definition: Definition) -> Self {
        Self {
            definition,
            execution: Execution::new(ExecutionId([7; 16])),
            now: Timestamp(1_000 * SECOND),
            history: Vec::new(),
            free: Vec::new(),
            quotas: Quotas::NONE,
            global_queues_full: false,
        }
    }

    pub fn started(definition: Definition) -> Self {
        let Command::Start(mut start) = start() else { unreachable!() };
        // Without a starting state, an input is refused.
        start.input = start.input.filter(|_| definition.starting_state.is_some());
        let mut world = Self::new(definition);
        world.run(Command::Start(start)).unwrap();
        world
    }

    pub fn context(&self) -> Context<'_> {
        Context {
            now: self.now,
            jitter: 0.5,
            definition: &self.definition,
            mapping: &self.definition.global_attributes,
            published_before: &NOTHING_PUBLISHED,
            global_messages: &self.free,
            child_ids: &CHILD_IDS,
            quotas: self.quotas,
            global_queues_full: self.global_queues_full,
            next_tick: every_third_second,
        }
    }

    pub fn decide(&self, command: &Command) -> Result<Vec<Event>, Rejection> {
        decide(&self.execution, command, self.context())
    }

    /// Decides about a command and applies its events. A refused command changes nothing.
    pub fn run(&mut self, command: Command) -> Result<Vec<Event>, Rejection> {
        let events = self.decide(&command)?;
        for event in &events {
            self.execution.apply(event, self.now);
            self.no_longer_free(event);
            if event.is_recorded() {
                self.history.push((event.clone(), self.now));
            }
        }
        Ok(events)
    }

    pub fn no_longer_free(&mut self, event: &Event) {
        if let Event::GlobalMessagesTaken { messages, .. } = event {
            self.free.retain(|free| messages.iter().all(|taken| taken.number != free.number));
        }
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now.0 += seconds * SECOND;
    }

    pub fn wait_until(&mut self, seq: u32, waiting_type: WaitingType, commands: Vec<RequestedCommand>) {
        let request = CommandRequest { waiting_type, commands, combinations: vec![] };
        self.answer_wait_until(seq, request);
    }

    pub fn answer_wait_until(&mut self, seq: u32, request: CommandRequest) {
        let answer = WaitUntilAnswer { request, effects: Effects::default() };
        self.run(Command::WaitUntilAnswered { seq: StateSeq(seq), answer }).unwrap();
    }

    pub fn execute(&mut self, seq: u32, decision: Decision) {
        self.run(execute(seq, decision)).unwrap();
    }

    pub fn fail(&mut self, seq: u32, api: Api, attempt: u32) -> Vec<Event> {
        self.run(failed(seq, api, attempt, self.now)).unwrap()
    }

    pub fn publish(&mut self, queue: &str, payloads: &[&str]) -> Vec<Event> {
        let messages = payloads.iter().map(|payload| message(queue, None, payload)).collect();
        self.run(Command::MessagesArrived(messages)).unwrap()
    }

    /// Offers the free messages to a state.
    pub fn offer(&mut self, seq: u32) -> Result<Vec<Event>, Rejection> {
        self.run(Command::GlobalMessagesArrived { seq: StateSeq(seq) })
    }

    pub fn fire(&mut self, seq: u32, command: u32) -> Result<Vec<Event>, Rejection> {
        self.run(Command::TimerFired { seq: StateSeq(seq), command })
    }

    pub fn state(&self, seq: u32) -> &StateExecution {
        &self.execution.states[&StateSeq(seq)]
    }

    pub fn status(&self, seq: u32) -> StateStatus {
        self.state(seq).status()
    }

    /// The status and the payloads of each command of a state that waits, or is at `execute` after a wait.
    pub fn results(&self, seq: u32) -> Vec<(CommandStatus, Vec<String>)> {
        let wait = match &self.state(seq).phase {
            Phase::Waiting(wait) | Phase::Execute { results: Some(wait), .. } => wait,
            other => panic!("no results in {other:?}"),
        };
        let payload = |message: &Message| message.payload.as_ref().map_or("-", |json| json.as_str()).to_owned();
        let global = |message: &GlobalMessage| message.payload.as_ref().map_or("-", |json| json.as_str()).to_owned();
        let all = |c: &WaitCommand| {
            c.messages.iter().map(payload).chain(c.global_messages.iter().map(global)).collect::<Vec<_>>()
        };
        wait.commands.iter().map(|c| (c.status, all(c))).collect()
    }

    pub fn queued(&self, queue: &str) -> Vec<String> {
        let payload = |message: &Arc<Message>| message.payload.as_ref().map_or("-", |json| json.as_str()).to_owned();
        self.execution.queues.get(queue).into_iter().flatten().map(payload).collect()
    }

    /// The execution, rebuilt from the recorded events.
    pub fn replayed(&self) -> Execution {
        let mut execution = Execution::new(self.execution.id);
        for (event, at) in &self.history {
            execution.apply(event, *at);
        }
        execution
    }
}

pub fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

/// A process type with these states and their options, and with all queues. The first state is the starting state.
pub fn definition(states: &[(&str, StateConfig)]) -> Definition {
    Definition {
        starting_state: states.first().map(|(name, _)| (*name).to_owned()),
        states: states.iter().map(|(name, config)| ((*name).to_owned(), config.clone())).collect(),
        global_queues: ["*".to_owned()].into(),
        ..Definition::default()
    }
}

pub fn plain() -> StateConfig {
    StateConfig::default()
}

pub fn skipping() -> StateConfig {
    StateConfig { skip_wait_until: Some(true), ..StateConfig::default() }
}

pub fn attempts(maximum_attempts: u32) -> StateConfig {
    let policy = RetryPolicy { maximum_attempts, ..RetryPolicy::default() };
    StateConfig {
        wait_until_api_retry_policy: Some(policy.clone()),
        execute_api_retry_policy: Some(policy),
        ..StateConfig::default()
    }
}

/// The options, changed to raise an incident when the retries are spent.
pub fn raising(config: StateConfig) -> StateConfig {
    let recovery = FailureRecovery { policy: FailurePolicy::RaiseIncident, ..FailureRecovery::default() };
    StateConfig { state_failure_recovery_options: Some(recovery), ..config }
}

/// The executions of the children of each answer.
pub const CHILD_IDS: [ExecutionId; 2] = [ExecutionId([0x11; 16]), ExecutionId([0x22; 16])];

/// A child to start.
pub fn child(process_type: &str) -> ChildStart {
    ChildStart {
        process_type: process_type.to_owned(),
        process_id: None,
        input: None,
        global_attribute_pk: None,
        global_attributes: None,
        local_attributes: None,
        options: None,
        id_reuse_policy: IdReusePolicy::AllowIfNoRunning,
        timeout: None,
        start_at: None,
        on_close: None,
        when_parent_closes: WhenParentCloses::Terminate,
    }
}

pub fn json(text: &str) -> Json {
    Json::from_trusted(text)
}

pub fn start() -> Command {
    Command::Start(Box::new(Start {
        process_id: "p".to_owned(),
        process_type: "T".to_owned(),
        input: Some(json("{\"n\":1.50}")),
        local_attributes: BTreeMap::new(),
        global_attributes: BTreeMap::new(),
        call_functions: vec![],
        timeout: None,
        starting_state: None,
        starting_state_config: None,
        start_at: None,
        priority: None,
        started_by: None,
        locks: ProcessLocks::new(),
    }))
}

pub fn execute(seq: u32, decision: Decision) -> Command {
    let answer = ExecuteAnswer { decision, effects: Effects::default() };
    Command::ExecuteAnswered { seq: StateSeq(seq), answer }
}

pub fn failed(seq: u32, api: Api, attempt: u32, now: Timestamp) -> Command {
    let failure = Failure { status: Some(500), detail: format!("attempt {attempt}"), ..Failure::default() };
    Command::CallFailed(CallFailed {
        seq: StateSeq(seq),
        api,
        attempt,
        first_attempt_at: now,
        failure,
        further: Further::ByPolicy,
        applied: None,
    })
}

pub fn movement(state_id: &str) -> StateMovement {
    StateMovement { state_id: state_id.to_owned(), input: None, config: None, begin: Begin::AtOnce }
}

pub fn next(states: &[&str]) -> Decision {
    Decision::NextStates(states.iter().map(|state_id| movement(state_id)).collect())
}

pub fn close(close_type: CloseType) -> Decision {
    Decision::Close { close_type, output: None }
}

pub fn timer(seconds: i64) -> RequestedCommand {
    RequestedCommand { command_id: None, kind: RequestedKind::TimerAfter(Duration(seconds * SECOND)) }
}

pub fn from_queue(queue: &str, at_least: u32, at_most: u32) -> RequestedCommand {
    let kind = RequestedKind::LocalQueue { queue: queue.to_owned(), at_least, at_most };
    RequestedCommand { command_id: None, kind }
}

pub fn from_global(queue: &str, key: Option<&str>, at_least: u32, at_most: u32) -> RequestedCommand {
    let (queue, key) = (queue.to_owned(), key.map(str::to_owned));
    RequestedCommand { command_id: None, kind: RequestedKind::GlobalQueue { queue, key, at_least, at_most } }
}

pub fn global_message(number: u64, queue: &str, key: Option<&str>, payload: &str) -> GlobalMessage {
    let (queue, key) = (queue.to_owned(), key.map(str::to_owned));
    GlobalMessage { number, queue, key, message_id: None, payload: Some(json(payload)) }
}

pub fn message(queue: &str, message_id: Option<&str>, payload: &str) -> Publish {
    Publish { queue: queue.to_owned(), message_id: message_id.map(str::to_owned), payload: Some(json(payload)) }
}

/// Cron expressions in the tests: a tick each third second. Error: the timer has a time zone.
pub fn every_third_second(cron: &Cron, after: Timestamp) -> Result<Timestamp, UnknownName> {
    match &cron.timezone {
        None => Ok(Timestamp((after.0.div_euclid(3 * SECOND) + 1) * 3 * SECOND)),
        Some(name) => Err(UnknownName { at: "timezone".to_owned(), what: format!("is unknown: {name:?}") }),
    }
}
