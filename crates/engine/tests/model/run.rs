//! Carries out a plan on the engine and on the model at once.

use super::compare::differences;
use super::ops::*;
use super::waits::every_third_second;
use super::*;
use proptest::test_runner::TestCaseError;
use std::collections::BTreeSet;

/// One command, with everything that it depended on, and its outcome.
#[derive(Clone, Debug)]
pub struct Step {
    pub command: Command,
    pub now: Timestamp,
    pub jitter: f64,
    pub definition: usize,
    pub published_before: BTreeSet<(String, String)>,
    pub offered: Vec<GlobalMessage>,
    pub outcome: Result<Vec<Event>, Rejection>,
}

impl Step {
    pub fn context<'a>(&'a self, definitions: &'a [Definition; 2], mapping: &'a [TableMapping]) -> Context<'a> {
        Context {
            now: self.now,
            jitter: self.jitter,
            definition: &definitions[self.definition],
            mapping,
            published_before: &self.published_before,
            global_messages: &self.offered,
            child_ids: &CHILD_IDS,
            quotas: Quotas::NONE,
            global_queues_full: false,
            next_tick: every_third_second,
        }
    }
}

pub struct Run {
    pub definitions: [Definition; 2],
    pub mapping: Vec<TableMapping>,
    pub steps: Vec<Step>,
    start: Start,
    definition: usize,
    now: Timestamp,
    execution: Execution,
    model: Model,
    /// Messages of callers that have not come in yet.
    inbox: Vec<Publish>,
    /// Free messages of global queues.
    free: Vec<GlobalMessage>,
    global_numbers: u64,
}

pub const ID: ExecutionId = ExecutionId([7; 16]);

/// The executions of the children of each answer.
const CHILD_IDS: [ExecutionId; 3] = [ExecutionId([1; 16]), ExecutionId([2; 16]), ExecutionId([3; 16])];

type Outcome = Result<(), TestCaseError>;

/// Carries out the plan, and compares after each command. Returns the commands with their outcomes.
pub fn carry_out(plan: &Plan) -> Result<Run, TestCaseError> {
    let mut run = Run {
        definitions: plan.definitions.clone(),
        mapping: mapping(),
        steps: Vec::new(),
        start: plan.start.clone(),
        definition: 0,
        now: Timestamp(T0),
        execution: Execution::new(ID),
        model: Model::default(),
        inbox: Vec::new(),
        free: Vec::new(),
        global_numbers: 0,
    };
    if let Some(op) = &plan.before {
        run.perform(op)?;
    }
    run.submit(Command::Start(Box::new(run.start.clone())), 0.5, 0)?;
    for op in &plan.ops {
        run.perform(op)?;
    }
    Ok(run)
}

impl Run {
    fn perform(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Answer { target, request, decision, effects, offer } => {
                let Some((seq, api)) = self.at_call(*target) else { return Ok(()) };
                self.submit(answer(seq, api, request, decision, effects), 0.5, *offer)
            }
            Op::Fail { target, attempt, failure, further, applied, jitter } => {
                let fields = FailureFields { further: *further, applied: applied.clone() };
                self.fail(*target, *attempt, failure, fields, *jitter)
            }
            Op::RepeatLater { target, times, after, jitter } => {
                let Some((seq, api)) = self.at_call(*target) else { return Ok(()) };
                for _ in 0..*times {
                    if self.model.call(seq, api).is_none() {
                        break;
                    }
                    let failure = Failure { status: Some(503), ..Failure::default() };
                    let target = Target::Any(seq.0, api);
                    self.fail(
                        target,
                        Attempt::Next,
                        &failure,
                        FailureFields::further(Further::Repeat(*after)),
                        *jitter,
                    )?;
                }
                Ok(())
            }
            Op::FailAgain { target, times } => {
                let Some((seq, api)) = self.at_call(*target) else { return Ok(()) };
                for _ in 0..*times {
                    let Some(call) = self.model.call(seq, api) else { break };
                    self.now = self.now.max(call.not_before);
                    let failure = Failure { detail: "it failed again".to_owned(), ..Failure::default() };
                    self.fail(Target::Any(seq.0, api), Attempt::Next, &failure, FailureFields::default(), 0.5)?;
                }
                Ok(())
            }
            Op::Repeat { target, times, jitter } => {
                let Some((seq, api)) = self.at_call(*target) else { return Ok(()) };
                for _ in 0..*times {
                    if self.model.status() != ProcessStatus::Running {
                        break;
                    }
                    self.submit(Command::CallRepeated { seq, api }, *jitter, 0)?;
                }
                Ok(())
            }
            Op::LoseAnswer { target, decision, effects } => {
                let Some((seq, api)) = self.at_call(*target) else { return Ok(()) };
                let request =
                    CommandRequest { waiting_type: WaitingType::Empty, commands: Vec::new(), combinations: Vec::new() };
                let command = answer(seq, api, &request, decision, effects);
                // The command is decided, and the decision is lost.
                let lost = self.decide(&command, 0.5, &[]);
                self.now = self.now + Duration(SECOND);
                let failure = Failure { detail: "the server was gone".to_owned(), ..Failure::default() };
                self.fail(Target::Any(seq.0, api), Attempt::Skipped, &failure, FailureFields::default(), 0.5)?;
                // A decision now would be the same, unless it was the last attempt.
                if self.model.call(seq, api).is_some() {
                    let again = self.decide(&command, 0.5, &[]);
                    let same = again.is_ok() == lost.is_ok();
                    expect(same, || format!("{command:?} was {lost:?} and is {again:?}"))?;
                }
                Ok(())
            }
            Op::Fire { pick, early } => {
                let timers: Vec<(StateSeq, u32, Timestamp)> = self
                    .model
                    .live()
                    .into_iter()
                    .flat_map(|seq| self.model.timers(seq).into_iter().map(move |(at, _, fire_at)| (seq, at, fire_at)))
                    .collect();
                let Some((seq, command, fire_at)) = picked(&timers, *pick) else {
                    let seq = StateSeq(*pick as u32 % 4);
                    return self.submit(Command::TimerFired { seq, command: 0 }, 0.5, 0);
                };
                self.now = self.brought_to(fire_at, *early);
                self.submit(Command::TimerFired { seq, command }, 0.5, 0)
            }
            Op::Pause(pause) => self.submit(Command::Pause(pause.clone()), 0.5, 0),
            Op::Resume => self.submit(Command::Resume, 0.5, 0),
            Op::PauseEnds { early } => {
                if let Some(until) = self.model.pause.as_ref().and_then(|pause| pause.until) {
                    self.now = self.brought_to(until, *early);
                }
                self.submit(Command::PauseEnds, 0.5, 0)
            }
            Op::ProcessTimeout { early } => {
                if let Some(at) = self.model.begun.as_ref().and_then(|begun| begun.timeout_at) {
                    self.now = self.brought_to(at, *early);
                }
                self.submit(Command::ProcessTimeout, 0.5, 0)
            }
            Op::Send(publish) => {
                let on_record = publish.message_id.as_ref().is_some_and(|id| {
                    let known = (publish.queue.clone(), id.clone());
                    self.on_record().contains(&known) || self.execution.message_ids.contains(&known)
                });
                if !on_record {
                    self.inbox.push(publish.clone());
                }
                Ok(())
            }
            Op::TakeIn(count) => {
                let messages: Vec<Publish> = self.inbox.drain(..(*count).min(self.inbox.len())).collect();
                self.submit(Command::MessagesArrived(messages), 0.5, 0)
            }
            Op::Arrive(messages) => {
                let on_record = self.on_record();
                let fresh = messages.iter().filter(|message| {
                    message
                        .message_id
                        .as_ref()
                        .is_none_or(|id| !on_record.contains(&(message.queue.clone(), id.clone())))
                });
                self.submit(Command::MessagesArrived(fresh.cloned().collect()), 0.5, 0)
            }
            Op::SendGlobally(messages) => {
                for GlobalPublish { queue, key, message_id, payload, .. } in messages.iter().cloned() {
                    self.global_numbers += 1;
                    self.free.push(GlobalMessage { number: self.global_numbers, queue, key, message_id, payload });
                }
                Ok(())
            }
            Op::Offer { target, count } => {
                let waiting = self.model.live().into_iter().filter(|seq| self.model.waiting(*seq).is_some()).collect();
                let Some(seq) = fitting(*target, waiting) else { return Ok(()) };
                self.submit(Command::GlobalMessagesArrived { seq }, 0.5, *count)
            }
            Op::Rpc(answer) => {
                self.submit(Command::RpcAnswered { rpc_name: "r".to_owned(), answer: answer.clone() }, 0.5, 0)
            }
            Op::SetAttributes(attributes) => self.submit(Command::SetLocalAttributes(attributes.clone()), 0.5, 0),
            Op::SkipTimer { target, command_id } => {
                let timed = self.model.live().into_iter().filter(|seq| !self.model.timers(*seq).is_empty()).collect();
                let Some(seq) = fitting(*target, timed) else { return Ok(()) };
                self.submit(Command::SkipTimer { seq, command_id: command_id.clone() }, 0.5, 0)
            }
            Op::RetryNow(seqs) => {
                let seqs = seqs.iter().filter_map(|target| Some(self.at_call(*target)?.0));
                self.submit(Command::RetryNow(seqs.collect()), 0.5, 0)
            }
            Op::Move { target, next, reason } => {
                let Some(seq) = fitting(*target, self.model.live()) else { return Ok(()) };
                self.submit(Command::MoveState { seq, next: next.clone(), reason: reason.clone() }, 0.5, 0)
            }
            Op::Stop { stop_type, reason } => {
                self.submit(Command::Stop { stop_type: *stop_type, reason: reason.clone() }, 0.5, 0)
            }
            Op::FailProcess => self.submit(Command::Fail { reason: "its owner is gone".to_owned() }, 0.5, 0),
            Op::MergeStart(input, at) => {
                let not_before = Timestamp(T0 + at);
                self.submit(Command::MergeStart { input: input.clone(), not_before }, 0.5, 0)
            }
            Op::StartAgain => self.submit(Command::Start(Box::new(self.start.clone())), 0.5, 0),
            Op::Again => match self.steps.last() {
                Some(step) => self.submit(step.command.clone(), 0.5, 0),
                None => Ok(()),
            },
            Op::Clock(by) => {
                self.now = Timestamp(self.now.0 + by);
                Ok(())
            }
            Op::Register => {
                self.definition = 1 - self.definition;
                Ok(())
            }
        }
    }

    fn fail(
        &mut self,
        target: Target,
        attempt: Attempt,
        failure: &Failure,
        fields: FailureFields,
        jitter: f64,
    ) -> Outcome {
        let FailureFields { further, applied } = fields;
        let Some((seq, api)) = self.at_call(target) else { return Ok(()) };
        let failures = self.model.call(seq, api).map_or(&[][..], |call| &call.failures);
        let last = failures.last().map_or(0, |last| last.attempt);
        let attempt = match attempt {
            Attempt::Next => last + 1,
            Attempt::Skipped => last + 2,
            Attempt::Same => last.max(1),
        };
        let since = self.model.call(seq, api).and_then(|call| call.since_resolved().first());
        let first_attempt_at = since.map_or(self.now, |first| first.at);
        let failed = CallFailed { seq, api, attempt, first_attempt_at, failure: failure.clone(), further, applied };
        self.submit(Command::CallFailed(failed), jitter, 0)
    }

    fn at_call(&self, target: Target) -> Option<(StateSeq, Api)> {
        let at = |api| move |seq: &StateSeq| self.model.call(*seq, api).map(|_| (*seq, api));
        let calls: Vec<_> = self
            .model
            .live()
            .iter()
            .filter_map(|seq| at(Api::WaitUntil)(seq).or_else(|| at(Api::Execute)(seq)))
            .collect();
        match target {
            Target::Fitting(pick) => picked(&calls, pick),
            Target::Any(seq, api) => Some((StateSeq(seq), api)),
        }
    }

    /// The clock `early` before the moment at which something is due. It is not set back if `early` is not positive.
    fn brought_to(&self, due: Timestamp, early: i64) -> Timestamp {
        if early > 0 { Timestamp(due.0 - early) } else { self.now.max(Timestamp(due.0 - early)) }
    }

    fn on_record(&self) -> BTreeSet<(String, String)> {
        self.inbox.iter().filter_map(|message| Some((message.queue.clone(), message.message_id.clone()?))).collect()
    }

    fn step(&self, command: &Command, jitter: f64, offered: &[GlobalMessage]) -> Step {
        Step {
            command: command.clone(),
            now: self.now,
            jitter,
            definition: self.definition,
            published_before: self.on_record(),
            offered: offered.to_vec(),
            outcome: Ok(Vec::new()),
        }
    }

    fn decide(&self, command: &Command, jitter: f64, offered: &[GlobalMessage]) -> Result<Vec<Event>, Rejection> {
        let step = self.step(command, jitter, offered);
        decide(&self.execution, command, step.context(&self.definitions, &self.mapping))
    }

    fn submit(&mut self, command: Command, jitter: f64, offer: usize) -> Outcome {
        let offered = self.free[..offer.min(self.free.len())].to_vec();
        let mut step = self.step(&command, jitter, &offered);
        step.outcome = self.decide(&command, jitter, &offered);
        let expected = self.model.step(&command, &step.context(&self.definitions, &self.mapping));
        self.steps.push(step.clone());
        let events = match (&step.outcome, expected) {
            (Ok(events), Ok(())) => events.clone(),
            (Err(rejection), Err(refusals)) => {
                let fits = refusals.contains(&Refusal::from(rejection));
                return expect(fits, || format!("refused as {rejection:?}, the model as {refusals:?}\n{self}"));
            }
            (outcome, expected) => {
                return expect(false, || format!("the engine has {outcome:?}, the model {expected:?}\n{self}"));
            }
        };
        self.check_with_part_loaded(&step)?;
        let before = self.execution.clone();
        for event in &events {
            self.execution.apply(event, self.now);
        }
        check_folded(&step.command, &events, &before, &self.execution)
            .map_err(|what| TestCaseError::fail(format!("{what}\n{self}")))?;
        for event in &events {
            match event {
                Event::GlobalMessagesTaken { messages, .. } => {
                    self.free.retain(|free| messages.iter().all(|taken| taken.number != free.number));
                }
                Event::StateAborted { seq, .. } => {
                    let held = before.states.get(seq).into_iter().flat_map(|state| state.held_global_messages());
                    self.free.extend(held.map(|(_, message)| message.clone()));
                    self.free.sort_by_key(|message| message.number);
                }
                _ => {}
            }
        }
        let mut found = differences(&self.model, &self.execution);
        found.extend(self.different_writes());
        expect(found.is_empty(), || format!("{}\n{self}", found.join("\n")))?;
        self.model.round_as(&self.execution);
        Ok(())
    }

    /// The decision does not depend on what else is loaded.
    fn check_with_part_loaded(&self, step: &Step) -> Outcome {
        let target = match &step.command {
            Command::WaitUntilAnswered { seq, .. }
            | Command::ExecuteAnswered { seq, .. }
            | Command::CallFailed(CallFailed { seq, .. })
            | Command::CallRepeated { seq, .. }
            | Command::TimerFired { seq, .. }
            | Command::GlobalMessagesArrived { seq }
            | Command::SkipTimer { seq, .. }
            | Command::MoveState { seq, .. } => vec![*seq],
            Command::RetryNow(seqs) => seqs.clone(),
            Command::MergeStart { .. } => vec![FIRST_STATE],
            _ => Vec::new(),
        };
        let mut part = self.execution.clone();
        part.states.retain(|seq, state| {
            let counted = [Api::WaitUntil, Api::Execute]
                .iter()
                .any(|api| state.call(*api).is_some_and(|call| call.failed_attempts > RECORDED_ATTEMPTS));
            let aborts = step.command.effects().and_then(|effects| effects.abort_states.as_ref());
            let aborted = aborts.is_some_and(|aborts| aborts.includes(&state.id)) && state.status().is_live();
            // A guard that waits for no message of this execution is loaded only if the decision turns out to need it.
            let serves = state.status() == StateStatus::Waiting
                && (!state.is_waiting_guard() || state.wanted_messages().next().is_some());
            target.contains(seq) || counted || aborted || serves
        });
        part.local_attributes.clear();
        part.results.clear();
        let decided = self.decide_in_part(part, step);
        expect(decided == step.outcome, || format!("a part decides {decided:?}\n{self}"))
    }

    /// Loads what the decision lacks, and decides again.
    fn decide_in_part(&self, mut part: Execution, step: &Step) -> Result<Vec<Event>, Rejection> {
        let definition = &self.definitions[step.definition];
        let (mut whole, mut asked) = (BTreeSet::new(), false);
        loop {
            let decided = decide(&part, &step.command, step.context(&self.definitions, &self.mapping));
            let lacks = decided.as_ref().ok().and_then(|events| part.unloaded(events, definition, &whole));
            let Some(lacks) = lacks else { return decided };
            let live = self.execution.states.values().filter(|state| state.status().is_live());
            let mut missing: Vec<_> = live.filter(|state| !part.states.contains_key(&state.seq)).cloned().collect();
            match lacks {
                Unloaded::Every => {}
                Unloaded::Ended(seq) => missing = self.execution.states.get(&seq).cloned().into_iter().collect(),
                Unloaded::OneOf(ids) if !asked => {
                    missing.retain(|state| ids.contains(&state.id.state_id));
                    missing.truncate(1);
                    asked = !missing.is_empty();
                    if missing.is_empty() {
                        whole.extend(ids);
                    }
                }
                Unloaded::Of(ids) | Unloaded::OneOf(ids) => {
                    missing.retain(|state| ids.contains(&state.id.state_id));
                    whole.extend(ids);
                }
            }
            part.states.extend(missing.into_iter().map(|state| (state.seq, state)));
        }
    }

    /// Compares the writes of global attributes, and the messages to global queues, of the whole run.
    fn different_writes(&self) -> Vec<String> {
        let events = || self.steps.iter().filter_map(|step| step.outcome.as_ref().ok()).flatten();
        let writes: Vec<(String, Json)> = events()
            .filter_map(|event| match event {
                Event::GlobalAttributesWritten { attributes } => Some(attributes.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let publishes: Vec<PublishedGlobally> = events()
            .filter_map(|event| match event {
                Event::GlobalMessagesPublished { messages, .. } => Some(messages.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let children: Vec<Child> = events()
            .filter_map(|event| match event {
                Event::ChildrenStarted { children } => Some(children.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let mut found = Vec::new();
        if children != self.model.children {
            found.push(format!("children: {children:?}, the model has {:?}", self.model.children));
        }
        if writes != self.model.global_writes {
            found.push(format!("global attributes: {writes:?}, the model has {:?}", self.model.global_writes));
        }
        if publishes != self.model.global_publishes {
            found.push(format!("global messages: {publishes:?}, the model has {:?}", self.model.global_publishes));
        }
        found
    }
}

/// The commands of the run, for people.
impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for step in &self.steps {
            let seconds = (step.now.0 - T0) as f64 / SECOND as f64;
            writeln!(f, "at {seconds:.6}, definition {}: {}", step.definition, brief(&step.command))?;
            writeln!(f, "    {}", brief(&step.outcome))?;
        }
        Ok(())
    }
}

/// The failure that a worker reports.
#[derive(Clone, Default)]
struct FailureFields {
    further: Further,
    applied: Option<Box<Effects>>,
}

impl FailureFields {
    fn further(further: Further) -> Self {
        Self { further, ..Self::default() }
    }
}

/// Checks the events that stand for unrecorded failed attempts. Each ended call with such attempts has one event. Its
/// place:
/// - If the call was answered or has failed for good, the event comes before all events that follow from that,
///   including the close of the process.
/// - If an answer or a caller aborted the step, the event comes right before that.
/// - If a close aborted the call, the event comes right before the close, in the order of the states.
fn check_folded(command: &Command, events: &[Event], before: &Execution, after: &Execution) -> Result<(), String> {
    let own = match command {
        Command::WaitUntilAnswered { seq, .. } | Command::ExecuteAnswered { seq, .. } => Some(*seq),
        Command::CallFailed(failed) => Some(failed.seq),
        _ => None,
    };
    let aborted =
        |of: StateSeq| events.iter().position(|event| matches!(event, Event::StateAborted { seq, .. } if *seq == of));
    let (before_abort, others): (Vec<_>, Vec<_>) =
        uncounted(before, after, events).into_iter().partition(|(seq, _)| Some(*seq) != own && aborted(*seq).is_some());
    for (seq, event) in &before_abort {
        let place = aborted(*seq).and_then(|at| events.get(at.checked_sub(1)?));
        if place != Some(event) {
            return Err(format!("of {events:?}, {event:?} should come right before its state is aborted"));
        }
    }
    let (first, cut_off): (Vec<_>, Vec<_>) = others.into_iter().partition(|(seq, _)| Some(*seq) == own);
    let folded = |(_, event): (StateSeq, Event)| event;
    let first: Vec<Event> = first.into_iter().map(folded).collect();
    let cut_off: Vec<Event> = cut_off.into_iter().map(folded).collect();
    let count = events.iter().filter(|event| event.name() == "AttemptsFolded").count();
    let before_close = match events {
        [before_close @ .., Event::ProcessClosed { .. }] => before_close,
        _ => events,
    };
    if count == before_abort.len() + first.len() + cut_off.len()
        && events.starts_with(&first)
        && before_close.ends_with(&cut_off)
    {
        return Ok(());
    }
    Err(format!("of {events:?}, the first ones should be {first:?}, and those before a close {cut_off:?}"))
}

/// The expected events for unrecorded failed attempts whose call is over or has effects, in the order of states.
fn uncounted(before: &Execution, after: &Execution, events: &[Event]) -> Vec<(StateSeq, Event)> {
    let changes = |of: StateSeq| {
        events.iter().any(|event| match event {
            Event::AttemptFailed { seq, applied, .. } => *applied && *seq == of,
            Event::IncidentRaised { seq, .. } => *seq == of,
            // The new failure replaces the last one.
            Event::CallRepeated { seq, failure, .. } => failure.is_some() && *seq == of,
            _ => false,
        })
    };
    let mut events = Vec::new();
    for (seq, state) in &before.states {
        for api in [Api::WaitUntil, Api::Execute] {
            let over = after.states.get(seq).is_none_or(|state| state.call(api).is_none()) || changes(*seq);
            if let Some(call) = state.call(api).filter(|call| over && call.unrecorded_attempts() > 0)
                && let Some(last) = &call.last_failure
            {
                let event = Event::AttemptsFolded {
                    seq: *seq,
                    api,
                    count: call.unrecorded_attempts(),
                    last_attempt: last.attempt,
                    at: last.at,
                    failure: last.failure.clone(),
                };
                events.push((*seq, event));
            }
        }
    }
    events
}

pub fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(TestCaseError::fail(otherwise())) }
}

fn answer(seq: StateSeq, api: Api, request: &CommandRequest, decision: &Decision, effects: &Effects) -> Command {
    let effects = effects.clone();
    match api {
        Api::WaitUntil => {
            let effects = Effects { abort_states: None, ..effects };
            Command::WaitUntilAnswered { seq, answer: WaitUntilAnswer { request: request.clone(), effects } }
        }
        Api::Execute => Command::ExecuteAnswered { seq, answer: ExecuteAnswer { decision: decision.clone(), effects } },
    }
}

fn picked<T: Clone>(all: &[T], pick: usize) -> Option<T> {
    all.get(pick % all.len().max(1)).cloned()
}

fn fitting(target: Target, all: Vec<StateSeq>) -> Option<StateSeq> {
    match target {
        Target::Fitting(pick) => picked(&all, pick),
        Target::Any(seq, _) => Some(StateSeq(seq)),
    }
}
