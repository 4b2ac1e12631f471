//! Decides which events follow from a command, within the quotas. Commands of global queues are decided in
//! `global_queues.rs`.

use crate::guards::Standings;
use crate::process_locks::both;
use crate::retry::when_registered;
use crate::*;
use std::collections::{BTreeMap, BTreeSet};

/// What a decision depends on, besides the execution and the command.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// By the clock of processes.
    pub now: Timestamp,
    /// A random number in 0..1, for the jitter of backoff.
    pub jitter: f64,
    /// The process type as registered now.
    pub definition: &'a Definition,
    /// The attribute mapping as registered when the execution started.
    pub mapping: &'a [TableMapping],
    /// (queue, message id) of messages on record elsewhere: received before but not loaded, or waiting in the inbox. If
    /// a state or an RPC publishes such a message again, it is ignored. Messages of clients are not compared with this
    /// set, because it contains their own records.
    pub published_before: &'a BTreeSet<(String, String)>,
    /// Free messages of global queues that the state of the command may take, by number. The state can take no other
    /// messages.
    pub global_messages: &'a [GlobalMessage],
    /// The executions of the children that the command starts.
    pub child_ids: &'a [ExecutionId],
    pub quotas: Quotas,
    /// The publishing role has reached its limit of messages in global queues.
    pub global_queues_full: bool,
    pub next_tick: NextTick,
}

/// What begins a step.
pub(crate) enum Cause {
    /// A start, or a movement of an answer. Only this may begin a guard.
    Movement,
    /// `xdb.move_state`.
    ByHand,
    /// It takes over from a state that has failed.
    Recovery(Recovery),
    /// It undoes this step.
    Undo(StateExecutionId),
}

/// Finds the first tick of a cron expression after a moment. A function of the caller, because only the caller knows time
/// zones.
pub type NextTick = fn(&Cron, Timestamp) -> Result<Timestamp, UnknownName>;

/// Limits on one process. What was stored under higher limits stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Most commands in one wait.
    pub commands: usize,
    /// Most live threads. Next states in an answer and open timers of an execution have the same limit.
    pub threads: usize,
    /// The shortest time between two attempts. Shorter intervals are raised to this one.
    pub retry_interval: Duration,
    /// The longest timeout of a call that options may have.
    pub call_timeout: Duration,
    /// Most messages in the local queues of an execution, and in global queues for each role.
    pub queue_messages: usize,
    /// Most bytes of payloads in them.
    pub queue_bytes: usize,
}

impl Quotas {
    /// No limits.
    pub const NONE: Self = Self {
        commands: usize::MAX,
        threads: usize::MAX,
        retry_interval: Duration(0),
        call_timeout: Duration(i64::MAX),
        queue_messages: usize::MAX,
        queue_bytes: usize::MAX,
    };

    /// The limits that no setting changes. Queues are not limited.
    pub const FIXED: Self = Self {
        commands: MOST_COMMANDS,
        threads: 20_000,
        retry_interval: Duration(100_000),
        call_timeout: Duration(3_600_000_000),
        ..Self::NONE
    };

    /// The settings that limit queues, with their values, for a message.
    pub fn of_queues(&self) -> String {
        format!("xdb.max_queue_messages is {}, with {} bytes together", self.queue_messages, self.queue_bytes)
    }
}

impl QueuedTotal {
    /// Whether the messages reach `times` the limits.
    pub fn reaches(&self, times: usize, quotas: &Quotas) -> bool {
        self.messages as usize >= quotas.queue_messages.saturating_mul(times)
            || self.bytes >= quotas.queue_bytes.saturating_mul(times) as u64
    }
}

/// The events that follow from a command, or why the command is refused. The function is deterministic and changes
/// nothing.
pub fn decide(execution: &Execution, command: &Command, context: Context<'_>) -> Result<Vec<Event>, Rejection> {
    if execution.exists() && !execution.is_running() {
        return match command {
            // A closed process can still be read: a read-only answer has nothing to apply.
            Command::RpcAnswered { answer, .. } if answer.is_read_only() => Ok(Vec::new()),
            _ => Err(Rejection::NotRunning(execution.status)),
        };
    }
    if !execution.exists() && !matches!(command, Command::Start(_)) {
        return Err(Rejection::Stale);
    }
    let offered_to = match command {
        Command::WaitUntilAnswered { seq, .. } | Command::GlobalMessagesArrived { seq } => Some(*seq),
        _ => None,
    };
    let mut draft = Draft {
        execution: execution.clone(),
        context,
        events: Vec::new(),
        offered_to,
        unserved: false,
        standings: None,
    };
    draft.command(command)?;
    Ok(draft.events)
}

/// A decision in progress. Each event is applied to the working copy at once, so later parts of the decision see it.
pub(crate) struct Draft<'a> {
    pub(crate) execution: Execution,
    pub(crate) context: Context<'a>,
    pub(crate) events: Vec<Event>,
    /// The state that free messages of global queues are offered to.
    offered_to: Option<StateSeq>,
    /// Messages have come, or have come back from what was aborted, and waiting states were not served since.
    pub(crate) unserved: bool,
    /// None: no part of the decision has asked.
    pub(crate) standings: Option<Standings>,
}

impl Draft<'_> {
    pub(crate) fn emit(&mut self, event: Event) {
        self.unserved |= matches!(event, Event::MessagesReceived { .. } | Event::StateAborted { .. });
        self.recount(&event, usize::wrapping_sub);
        self.execution.apply(&event, self.context.now);
        self.recount(&event, usize::wrapping_add);
        self.events.push(event);
    }

    fn command(&mut self, command: &Command) -> Result<(), Rejection> {
        match command {
            Command::Start(start) => self.start(start)?,
            Command::MergeStart { input, not_before } => self.merge_start(input.clone(), *not_before)?,
            Command::WaitUntilAnswered { seq, answer } => self.wait_until_answered(*seq, answer)?,
            Command::ExecuteAnswered { seq, answer } => self.execute_answered(*seq, answer)?,
            Command::CallFailed(failed) => self.call_failed(failed)?,
            Command::CallRepeated { seq, api } => self.call_repeated(*seq, *api)?,
            Command::TimerFired { seq, command } => self.timer_fired(*seq, *command)?,
            Command::ProcessTimeout if self.execution.timeout_at.is_none_or(|at| at > self.context.now) => {
                return Err(Rejection::Stale);
            }
            Command::ProcessTimeout => self.close(ProcessStatus::Timeout, None),
            Command::MessagesArrived(messages) => {
                self.receive(Publisher::Client, messages);
                self.serve_waiting_states();
            }
            Command::GlobalMessagesArrived { seq } => self.global_messages_arrived(*seq)?,
            Command::RpcAnswered { rpc_name, answer } => self.rpc_answered(rpc_name, answer)?,
            Command::SetLocalAttributes(attributes) => {
                self.check_attributes(attributes, &BTreeMap::new())?;
                self.write_attributes(attributes, &BTreeMap::new());
            }
            Command::SkipTimer { seq, command_id } => self.skip_timer(*seq, command_id.as_deref())?,
            Command::RetryNow(states) => self.retry_now(states),
            Command::MoveState { seq, next, reason } => self.move_state(*seq, next, reason.as_deref())?,
            Command::Pause(pause) => self.pause(pause),
            Command::Resume => self.resume(),
            Command::PauseEnds => self.pause_ends()?,
            Command::Stop { stop_type: StopType::Terminate, reason } => {
                self.close(ProcessStatus::Terminated, reason.clone());
            }
            Command::Stop { stop_type: StopType::Fail, reason } => self.close(ProcessStatus::Failed, reason.clone()),
            Command::Fail { reason } => self.close(ProcessStatus::Failed, Some(reason.clone())),
        }
        self.trigger_guards();
        Ok(())
    }

    fn start(&mut self, start: &Start) -> Result<(), Rejection> {
        if self.execution.exists() {
            return Err(Rejection::Stale);
        }
        self.check_attributes(&start.local_attributes, &start.global_attributes)?;
        self.check_functions(&start.call_functions)?;
        let definition = self.context.definition;
        let timeout = match start.timeout {
            Some(own) => Some(own).filter(|t| t.0 > 0),
            None => definition.timeout(),
        };
        let locks = both(&definition.locks, &start.locks);
        if locks.len() > MOST_LOCKS {
            let what =
                format!("the process has {} locks, with those of its type; the limit is {MOST_LOCKS}", locks.len());
            return Err(Rejection::OverQuota(what));
        }
        // The timeout counts from the time when the first state may start.
        let begins_at = start.start_at.unwrap_or_default().max(self.context.now);
        self.emit(Event::ProcessStarted {
            process_id: start.process_id.clone(),
            process_type: start.process_type.clone(),
            timeout_at: timeout.map(|t| begins_at + t),
            priority: start.priority.unwrap_or(definition.priority),
            started_by: start.started_by.clone(),
            locks,
        });
        self.write_attributes(&start.local_attributes, &start.global_attributes);
        if let Some(state_id) = start.starting_state.as_ref().or(definition.starting_state.as_ref()) {
            let movement = StateMovement {
                state_id: state_id.clone(),
                input: start.input.clone(),
                config: start.starting_state_config.clone(),
                begin: Begin::At(begins_at),
            };
            self.check_movements(std::slice::from_ref(&movement))?;
            self.start_state(&movement, Cause::Movement);
            self.start_guards(&definition.guards, begins_at);
        } else if start.input.is_some() {
            return Err(Rejection::UnusedInput);
        } else if start.starting_state_config.is_some() {
            let what = "the process type has no starting state";
            return Err(Rejection::InvalidOptions(what.to_owned()));
        } else {
            self.start_guards(&definition.guards, begins_at);
        }
        Ok(())
    }

    fn merge_start(&mut self, input: Option<Json>, not_before: Timestamp) -> Result<(), Rejection> {
        let was_due = self.execution.first_call().ok_or(Rejection::Stale)?.not_before;
        let changes = self.execution.states.get(&FIRST_STATE).is_some_and(|state| state.input != input);
        let without_input = changes && input.is_none();
        // The timeout counts from the time when the first state may start.
        let timeout_at = self.execution.timeout_at.map(|at| at + Duration(not_before.since(was_due)));
        self.emit(Event::StartMerged { input: input.filter(|_| changes), without_input, not_before, timeout_at });
        Ok(())
    }

    fn wait_until_answered(&mut self, seq: StateSeq, answer: &WaitUntilAnswer) -> Result<(), Rejection> {
        self.open_call(seq, Api::WaitUntil)?;
        self.check_effects(&answer.effects)?;
        let (commands, most) = (answer.request.commands.len(), self.context.quotas.commands);
        if commands > most {
            let what = format!("the wait has {commands} commands; the limit is {most}");
            return Err(Rejection::OverQuota(what));
        }
        self.check_timers(answer.request.timers())?;
        for command in &answer.request.commands {
            match &command.kind {
                RequestedKind::LocalQueue { queue, .. } => self.check_queue(queue)?,
                RequestedKind::GlobalQueue { queue, .. } => self.check_global_queue(queue)?,
                RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_) => {}
            }
        }
        let commands = self.begin_commands(&answer.request, self.context.now)?;
        self.fold_attempts(seq, Api::WaitUntil);
        self.apply_effects(Publisher::State, &answer.effects);
        self.begin_wait(seq, &answer.request, commands, &answer.effects.warnings);
        Ok(())
    }

    pub(crate) fn begin_wait(
        &mut self,
        seq: StateSeq,
        request: &CommandRequest,
        commands: Vec<WaitCommand>,
        warnings: &[String],
    ) {
        self.emit(Event::WaitStarted {
            seq,
            waiting_type: request.waiting_type,
            commands,
            combinations: request.combinations.clone(),
            warnings: warnings.to_vec(),
        });
        self.complete_due_timers(seq);
        // States that have waited longer get new messages first. Without new ones, they need none.
        match self.unserved {
            true => self.serve_waiting_states(),
            false => self.serve(seq),
        }
    }

    /// The commands of a wait. Delays and ticks of timers count from `from`.
    pub(crate) fn begin_commands(
        &self,
        request: &CommandRequest,
        from: Timestamp,
    ) -> Result<Vec<WaitCommand>, Rejection> {
        let begin = |command: &RequestedCommand| {
            let kind = match &command.kind {
                RequestedKind::TimerAfter(delay) => WaitKind::Timer { fire_at: from + *delay, cron: false },
                RequestedKind::TimerAt(at) => WaitKind::Timer { fire_at: *at, cron: false },
                RequestedKind::TimerCron(cron) => {
                    let wrong = |UnknownName { at, what }| Rejection::InvalidAnswer(format!("a timer's {at} {what}"));
                    WaitKind::Timer { fire_at: (self.context.next_tick)(cron, from).map_err(wrong)?, cron: true }
                }
                RequestedKind::LocalQueue { queue, at_least, at_most } => {
                    WaitKind::LocalQueue { queue: queue.clone(), at_least: *at_least, at_most: *at_most }
                }
                RequestedKind::GlobalQueue { queue, key, at_least, at_most } => WaitKind::GlobalQueue {
                    queue: queue.clone(),
                    key: key.clone(),
                    at_least: *at_least,
                    at_most: *at_most,
                },
            };
            Ok(WaitCommand {
                command_id: command.command_id.clone(),
                kind,
                status: CommandStatus::Waiting,
                messages: Vec::new(),
                global_messages: Vec::new(),
            })
        };
        request.commands.iter().map(begin).collect()
    }

    fn execute_answered(&mut self, seq: StateSeq, answer: &ExecuteAnswer) -> Result<(), Rejection> {
        self.open_call(seq, Api::Execute)?;
        self.check_effects(&answer.effects)?;
        self.check_decision(&answer.decision)?;
        let aborted = self.steps_to_abort(&answer.effects, Some(seq))?;
        self.check_noted(seq, &answer.decision)?;
        self.check_threads(answer.decision.most_next_states(), 1 + aborted.len())?;
        self.fold_attempts(seq, Api::Execute);
        self.apply_effects(Publisher::State, &answer.effects);
        self.abort(&aborted, None);
        self.serve_waiting_states();
        self.follow(Some(seq), &answer.decision, &answer.effects.warnings);
        Ok(())
    }

    fn rpc_answered(&mut self, rpc_name: &str, answer: &RpcAnswer) -> Result<(), Rejection> {
        self.check_effects(&answer.effects)?;
        let aborted = self.steps_to_abort(&answer.effects, None)?;
        if let Some(decision) = &answer.decision {
            self.check_decision(decision)?;
            self.check_threads(decision.most_next_states(), aborted.len())?;
        }
        if answer.is_read_only() {
            return Ok(());
        }
        let warnings = answer.effects.warnings.clone();
        self.emit(Event::RpcApplied { rpc_name: rpc_name.to_owned(), warnings });
        self.apply_effects(Publisher::Rpc, &answer.effects);
        self.abort(&aborted, None);
        self.serve_waiting_states();
        match &answer.decision {
            Some(decision) => self.follow(None, decision, &[]),
            None => self.complete_if_last(),
        }
        Ok(())
    }

    /// One due timer fires all due timers of its state. So one decision and one copy of the state suffice for many
    /// timers.
    fn timer_fired(&mut self, seq: StateSeq, position: u32) -> Result<(), Rejection> {
        if position == STATE_BEGINS {
            return self.static_wait_begins(seq);
        }
        let command = match self.execution.states.get(&seq).map(|state| &state.phase) {
            Some(Phase::Waiting(wait)) => wait.commands.get(position as usize),
            _ => None,
        };
        if !command.is_some_and(|command| self.is_due(command)) {
            return Err(Rejection::Stale);
        }
        self.complete_due_timers(seq);
        self.end_wait_if_satisfied(seq);
        Ok(())
    }

    fn skip_timer(&mut self, seq: StateSeq, command_id: Option<&str>) -> Result<(), Rejection> {
        let open = self.execution.states.get(&seq).into_iter().flat_map(|state| state.open_commands());
        let is_meant = |command: &WaitCommand| command_id.is_none_or(|id| command.command_id.as_deref() == Some(id));
        let meant = open.filter(|(_, command)| is_meant(command));
        let timers = meant.filter_map(|(position, command)| Some((command.kind.fire_at()?, position)));
        let first = timers.min();
        let Some((_, command)) = first else {
            let which = command_id.map_or_else(|| "timer".to_owned(), |id| format!("timer \"{id}\""));
            return Err(Rejection::NoTimer(which));
        };
        self.emit(Event::TimerSkipped { seq, command });
        self.end_wait_if_satisfied(seq);
        Ok(())
    }

    /// Calls that are due, or wait for their start, are not in backoff. A retry resolves an incident.
    fn retry_now(&mut self, states: &[StateSeq]) {
        for seq in states {
            let Some(state) = self.execution.states.get(seq) else { continue };
            let in_backoff =
                |call: &CallState| call.failed_attempts + call.repeats > 0 && call.not_before > self.context.now;
            let stands = state.current_call().filter(|(_, call)| call.incident || in_backoff(call));
            if let Some((api, resolves)) = stands.map(|(api, call)| (api, call.incident)) {
                self.emit(Event::RetryRequested { seq: *seq, api, resolves });
            }
        }
    }

    fn call_failed(&mut self, failed: &CallFailed) -> Result<(), Rejection> {
        // Attempt numbers only grow: this failure is recorded already, or it is older than a recorded one.
        let is_recorded = |call: &CallState| failed.attempt <= call.failed_attempts;
        let call = self.open_call(failed.seq, failed.api)?;
        if is_recorded(call) {
            return Err(Rejection::Stale);
        }
        let (before, resolved, unregistered) = (call.repeats, call.resolved_attempts, call.unregistered_since());
        let mut aborted = Vec::new();
        if let Some(effects) = &failed.applied {
            self.check_effects(effects)?;
            aborted = self.steps_to_abort(effects, Some(failed.seq))?;
        }
        let config = self.config_of(failed.seq);
        let CallFailed { seq, api, attempt, first_attempt_at, failure, further, applied } = failed.clone();
        let policy = config.retry_policy(api);
        let now = self.context.now;
        let soonest = now + self.context.quotas.retry_interval;
        let is_unregistered = further == Further::WhenRegistered;
        let (further, repeats) = match is_unregistered {
            true => (when_registered(unregistered.unwrap_or(now), now), 0),
            false => (further, before),
        };
        let failed = FailedAttempt { attempt: attempt - resolved, first_attempt_at, repeats, further };
        let next = next_retry(&policy, failed, now, self.context.jitter);
        if let Retry::Repeat(at) = next {
            let failure = is_unregistered.then_some(failure);
            if failure.is_some() {
                // The event replaces the last failure, which is needed to sum up the attempts before it.
                self.fold_attempts(seq, api);
            }
            self.emit(Event::CallRepeated { seq, api, next_call_at: at.max(soonest), same_request: true, failure });
            return Ok(());
        }
        if let Some(effects) = &applied {
            self.fold_attempts(seq, api);
            self.apply_effects(Publisher::State, effects);
            self.abort(&aborted, None);
            self.serve_waiting_states();
        }
        match next {
            Retry::At(at) | Retry::Repeat(at) => {
                let (next_attempt_at, applied) = (at.max(soonest), applied.is_some());
                self.emit(Event::AttemptFailed { seq, api, attempt, failure, next_attempt_at, applied });
            }
            Retry::Spent => {
                self.fold_attempts(seq, api);
                self.recover(seq, api, attempt, failure, config.state_failure_recovery_options.unwrap_or_default());
            }
        }
        Ok(())
    }

    fn call_repeated(&mut self, seq: StateSeq, api: Api) -> Result<(), Rejection> {
        let repeat = self.open_call(seq, api)?.repeats + 1;
        let policy = self.config_of(seq).retry_policy(api);
        let next_call_at = next_repeat(&policy, repeat, self.context.now, self.context.jitter);
        self.emit(Event::CallRepeated { seq, api, next_call_at, same_request: false, failure: None });
        Ok(())
    }

    /// The retries of a state are spent: applies its failure policy.
    fn recover(&mut self, seq: StateSeq, api: Api, attempt: u32, failure: Failure, options: FailureRecovery) {
        if options.policy == FailurePolicy::RaiseIncident {
            self.emit(Event::IncidentRaised { seq, api, attempt, failure });
            return;
        }
        let Some(state) = self.execution.states.get(&seq) else { return };
        let failed_id = state.id.clone();
        let input = state.input.clone();
        self.emit(Event::StateFailed { seq, api, attempt, failure: failure.clone() });
        self.end_guards_of(seq);
        let proceed = match options.policy {
            FailurePolicy::ProceedToConfiguredState => options.state_failure_proceed_state_id,
            FailurePolicy::FailProcess | FailurePolicy::RaiseIncident | FailurePolicy::Compensate => None,
        };
        // A state that the current registration does not list can't be proceeded to.
        match proceed.filter(|state_id| self.context.definition.states.contains_key(state_id)) {
            Some(state_id) => {
                let config = options.state_failure_proceed_state_config;
                let recovery = Recovery { state_execution_id: failed_id, api, failure };
                let movement = StateMovement { state_id, input, config, begin: Begin::AtOnce };
                self.start_state(&movement, Cause::Recovery(recovery));
            }
            None => {
                let reason = format!("step {failed_id} failed at attempt {attempt}: {}", failure.detail);
                if options.policy == FailurePolicy::Compensate {
                    return self.compensate(reason);
                }
                self.close(ProcessStatus::Failed, Some(reason));
            }
        }
    }

    fn follow(&mut self, seq: Option<StateSeq>, decision: &Decision, warnings: &[String]) {
        let decision = match decision {
            Decision::ConditionalClose { close_type, queues, output, otherwise } => {
                if queues.iter().all(|queue| self.execution.queue_is_empty(queue) && !self.is_held_by_guard(queue)) {
                    &Decision::Close { close_type: *close_type, output: output.clone() }
                } else {
                    &Decision::NextStates(otherwise.clone())
                }
            }
            other => other,
        };
        match decision {
            Decision::NextStates(movements) => {
                self.note_for_compensation(seq, None);
                self.complete_state(seq, None, warnings);
                self.events.reserve(movements.len());
                for movement in movements {
                    self.start_state(movement, Cause::Movement);
                }
                self.complete_if_last();
            }
            Decision::Close { close_type, output } => {
                if let Some(output) = output {
                    self.emit(Event::ResultGiven { seq, output: output.clone() });
                }
                self.note_for_compensation(seq, Some(*close_type));
                self.complete_state(seq, Some(*close_type), warnings);
                match close_type {
                    CloseType::Compensate => self.compensate("the worker decided to compensate the process".to_owned()),
                    // Inside of a compensation, only the thread ends.
                    CloseType::GracefulComplete => {
                        if !self.execution.completing && !self.execution.compensation.begun {
                            self.emit(Event::CompletionRequested {});
                        }
                        self.complete_if_last();
                    }
                    CloseType::DeadEnd => self.complete_if_last(),
                    CloseType::ForceComplete => self.close(ProcessStatus::Completed, None),
                    CloseType::ForceFail => {
                        self.close(ProcessStatus::Failed, Some("the worker decided to fail the process".to_owned()));
                    }
                }
            }
            Decision::ConditionalClose { .. } => unreachable!("resolved above"),
        }
    }

    fn complete_state(&mut self, seq: Option<StateSeq>, close_type: Option<CloseType>, warnings: &[String]) {
        if let Some(seq) = seq {
            self.emit(Event::StateCompleted { seq, close_type, warnings: warnings.to_vec() });
            self.end_guards_of(seq);
        }
    }

    pub(crate) fn complete_if_last(&mut self) {
        if self.execution.compensation.begun && self.execution.live_threads == 0 {
            self.compensate_next();
        } else if self.execution.completing && self.execution.live_threads == 0 {
            self.close(ProcessStatus::Completed, None);
        }
    }

    /// Aborted calls keep their last failure. So unrecorded attempts are folded first, in the order of the states. For
    /// replay to agree, an execution that may close is loaded with each state that has failed more than
    /// [`RECORDED_ATTEMPTS`] times.
    pub(crate) fn close(&mut self, status: ProcessStatus, reason: Option<String>) {
        let states: Vec<_> = self.execution.states.keys().copied().collect();
        for seq in states {
            self.fold_attempts(seq, Api::WaitUntil);
            self.fold_attempts(seq, Api::Execute);
        }
        self.emit(Event::ProcessClosed { status, reason });
    }

    pub(crate) fn start_state(&mut self, movement: &StateMovement, cause: Cause) {
        let number = self.execution.state_numbers.get(&movement.state_id).map_or(1, |last| last + 1);
        let definition = self.context.definition;
        let wait = definition.static_wait(&movement.state_id, movement.config.as_deref());
        // Any other step is a thread, whatever lists its state. Otherwise the process could close before it.
        let guard = wait.is_some() && matches!(cause, Cause::Movement) && self.starts_as_guard(&movement.state_id);
        let (recovery, compensates) = match cause {
            Cause::Movement | Cause::ByHand => (None, None),
            Cause::Recovery(recovery) => (Some(recovery), None),
            Cause::Undo(of) => (None, Some(of)),
        };
        let seq = StateSeq(self.execution.next_state);
        let (now, not_before) = (self.context.now, movement.begin.not_before(self.context.now));
        self.emit(Event::StateStarted {
            seq,
            state_execution_id: StateExecutionId { state_id: movement.state_id.clone(), number },
            input: movement.input.clone(),
            config: movement.config.clone(),
            recovery,
            skip_wait_until: definition.skips_wait_until(&movement.state_id, movement.config.as_deref()),
            static_wait: wait.is_some(),
            guard,
            compensates,
            not_before,
        });
        // Guards begin to wait before what they guard, so messages serve them first.
        self.start_guards(definition.guards_of(&movement.state_id), not_before);
        if let Some(request) = wait.filter(|_| not_before <= now) {
            self.begin_static_wait(seq, request, now);
        }
    }

    /// The options of a step: its own over the registered ones.
    fn config_of(&self, seq: StateSeq) -> StateConfig {
        let Some(state) = self.execution.states.get(&seq) else { return StateConfig::default() };
        self.context.definition.options_of(&state.id.state_id, state.config.as_deref())
    }

    fn apply_effects(&mut self, publisher: Publisher, effects: &Effects) {
        self.write_attributes(&effects.write_local_attributes, &effects.write_global_attributes);
        self.start_children(&effects.start_processes);
        self.receive(publisher, &effects.publish_to_local_queue);
        self.publish_globally(publisher, &effects.publish_to_global_queue);
    }

    fn write_attributes(&mut self, local: &BTreeMap<String, Json>, global: &BTreeMap<String, Json>) {
        if !local.is_empty() {
            self.emit(Event::LocalAttributesWritten { attributes: local.clone() });
        }
        if !global.is_empty() {
            self.emit(Event::GlobalAttributesWritten { attributes: global.clone() });
        }
    }

    /// Receives messages in order. A message is ignored if its queue has received its id before.
    fn receive(&mut self, publisher: Publisher, publishes: &[Publish]) {
        let received = &self.execution.message_ids;
        let before = Some(self.context.published_before).filter(|_| publisher != Publisher::Client);
        let mut seen = BTreeSet::new();
        let mut number = self.execution.next_message;
        let mut messages = Vec::new();
        for publish in publishes {
            if let Some(id) = &publish.message_id {
                let key = (publish.queue.clone(), id.clone());
                if received.contains(&key) || before.is_some_and(|b| b.contains(&key)) || !seen.insert(key) {
                    continue;
                }
            }
            messages.push(Message {
                number,
                queue: publish.queue.clone(),
                message_id: publish.message_id.clone(),
                payload: publish.payload.clone(),
            });
            number += 1;
        }
        if !messages.is_empty() {
            self.emit(Event::MessagesReceived { publisher, messages });
        }
    }

    /// Serves waiting states with messages, longest waiting first, until no state can take more.
    pub(crate) fn serve_waiting_states(&mut self) {
        self.unserved = false;
        self.execution.waiting_in_order().into_iter().for_each(|seq| self.serve(seq));
    }

    fn serve(&mut self, seq: StateSeq) {
        // What one command takes never makes an earlier command completable, so each command is checked once.
        let mut from = 0;
        while let Some(Phase::Waiting(wait)) = self.execution.states.get(&seq).map(|state| &state.phase) {
            let Some((command, messages)) = self.execution.completable(wait, from) else { break };
            self.emit(Event::CommandCompleted { seq, command, messages });
            from = command + 1;
        }
        if self.offered_to == Some(seq) {
            self.take_global_messages(seq);
        }
        self.end_wait_if_satisfied(seq);
    }

    /// When a wait ends, all commands that can complete at that moment do. Queues are served as messages arrive, so
    /// only due timers that have not fired yet can be missing.
    pub(crate) fn end_wait_if_satisfied(&mut self, seq: StateSeq) {
        if let Some(Phase::Waiting(wait)) = self.execution.states.get(&seq).map(|state| &state.phase)
            && wait.is_satisfied()
            // The wait of a guard ends at the end of the command.
            && !wait.guard
        {
            self.complete_due_timers(seq);
            self.emit(Event::WaitCompleted { seq, guards: None });
        }
    }

    pub(crate) fn complete_due_timers(&mut self, seq: StateSeq) {
        let open = self.execution.states.get(&seq).into_iter().flat_map(|state| state.open_commands());
        let due: Vec<_> = open.filter(|(_, command)| self.is_due(command)).map(|(position, _)| position).collect();
        for command in due {
            self.emit(Event::CommandCompleted { seq, command, messages: Vec::new() });
        }
    }

    /// Whether the command is an open timer that is due.
    fn is_due(&self, command: &WaitCommand) -> bool {
        command.status == CommandStatus::Waiting && command.kind.fire_at().is_some_and(|at| at <= self.context.now)
    }

    /// Sums up failed attempts that were not recorded one by one. This happens before the call ends or changes
    /// something.
    pub(crate) fn fold_attempts(&mut self, seq: StateSeq, api: Api) {
        let Some(call) = self.execution.states.get(&seq).and_then(|state| state.call(api)) else { return };
        let count = call.unrecorded_attempts();
        if count > 0
            && let Some(last) = call.last_failure.clone()
        {
            let LastFailure { attempt: last_attempt, at, failure, .. } = last;
            self.emit(Event::AttemptsFolded { seq, api, count, last_attempt, at, failure });
        }
    }

    /// The call that an answer or a failure is about. `Rejection::Stale` if the state is at no such call.
    fn open_call(&self, seq: StateSeq, api: Api) -> Result<&CallState, Rejection> {
        let open = self.execution.states.get(&seq).and_then(|state| state.open_call());
        open.filter(|(at, _)| *at == api).map(|(_, call)| call).ok_or(Rejection::Stale)
    }

    fn check_effects(&self, effects: &Effects) -> Result<(), Rejection> {
        for publish in &effects.publish_to_local_queue {
            self.check_queue(&publish.queue)?;
            if self.is_full(&publish.queue) {
                let quota = self.context.quotas.of_queues();
                return Err(Rejection::OverQuota(format!("local queue \"{}\" is full: {quota}", publish.queue)));
            }
        }
        for publish in &effects.publish_to_global_queue {
            self.check_global_queue(&publish.queue)?;
            if self.context.global_queues_full {
                let quota = self.context.quotas.of_queues();
                let what = format!("the publishing role has reached its limit of messages in global queues: {quota}");
                return Err(Rejection::OverQuota(what));
            }
        }
        effects
            .start_processes
            .iter()
            .filter_map(|start| start.on_close.as_ref())
            .try_for_each(|queue| self.check_queue_in(Some("onClose"), queue))?;
        self.check_functions(&effects.call_functions)?;
        self.check_attributes(&effects.write_local_attributes, &effects.write_global_attributes)
    }

    /// Checks only that the definition lists the functions. The caller of `decide` calls them.
    fn check_functions(&self, calls: &[FunctionCall]) -> Result<(), Rejection> {
        match calls.iter().find(|call| !self.context.definition.functions.contains_key(&call.function)) {
            Some(call) => Err(Rejection::UnknownFunction(call.function.clone())),
            None => Ok(()),
        }
    }

    fn check_attributes(
        &self,
        local: &BTreeMap<String, Json>,
        global: &BTreeMap<String, Json>,
    ) -> Result<(), Rejection> {
        if let Some(key) = local.keys().find(|key| !self.context.definition.knows_local_attribute(key)) {
            return Err(Rejection::UnknownLocalAttribute(key.clone()));
        }
        let mapped = |name: &String| self.context.mapping.iter().any(|table| table.attributes.contains_key(name));
        match global.keys().find(|name| !mapped(name)) {
            Some(name) => Err(Rejection::UnknownGlobalAttribute(name.clone())),
            None => Ok(()),
        }
    }

    fn check_queue(&self, queue: &str) -> Result<(), Rejection> {
        self.check_queue_in(None, queue)
    }

    fn check_queue_in(&self, within: Option<&'static str>, queue: &str) -> Result<(), Rejection> {
        let definition = self.context.definition;
        if definition.knows_queue(queue) {
            return Ok(());
        }
        Err(Rejection::UnknownQueue { name: queue.to_owned(), within, known: definition.listed_queues() })
    }

    /// An empty queue accepts messages until all queues together hold twice the limit. So one full queue does not block
    /// the rest.
    fn is_full(&self, queue: &str) -> bool {
        let (queued, quotas) = (&self.execution.queued, &self.context.quotas);
        queued.reaches(2, quotas) || queued.reaches(1, quotas) && !self.execution.queue_is_empty(queue)
    }

    fn check_decision(&self, decision: &Decision) -> Result<(), Rejection> {
        match decision {
            Decision::NextStates(movements) => self.check_movements(movements),
            Decision::Close { .. } => Ok(()),
            Decision::ConditionalClose { close_type, queues, otherwise, .. } => {
                if !matches!(close_type, CloseType::GracefulComplete | CloseType::ForceComplete) {
                    return Err(Rejection::InvalidAnswer(format!("a conditional close can't be {close_type}")));
                }
                if queues.is_empty() {
                    return Err(Rejection::InvalidAnswer("a conditional close names no queue".to_owned()));
                }
                queues.iter().try_for_each(|queue| self.check_queue(queue))?;
                self.check_movements(otherwise)
            }
        }
    }

    /// Checks the limit on threads. A decision that ends at least as many threads as it begins is always allowed.
    pub(crate) fn check_threads(&self, begins: usize, ends: usize) -> Result<(), Rejection> {
        let (lives, most) = (self.execution.live_threads as usize, self.context.quotas.threads);
        let after = (lives + begins).saturating_sub(ends);
        if begins > ends && after > most {
            let what = format!("the process would have {after} threads; the limit is {most}");
            return Err(Rejection::OverQuota(what));
        }
        Ok(())
    }

    /// Checks the limit on timers.
    pub(crate) fn check_timers(&self, new: usize) -> Result<(), Rejection> {
        let most = self.context.quotas.threads;
        let after = self.execution.timers as usize + new;
        if new > 0 && after > most {
            let what = format!("the process would have {after} timers; the limit is {most}");
            return Err(Rejection::OverQuota(what));
        }
        Ok(())
    }

    pub(crate) fn check_movements(&self, movements: &[StateMovement]) -> Result<(), Rejection> {
        if movements.is_empty() {
            return Err(Rejection::InvalidAnswer("a decision names no next state".to_owned()));
        }
        let definition = self.context.definition;
        let mut timers = 0;
        for StateMovement { state_id, config, .. } in movements {
            if !definition.states.contains_key(state_id) {
                return Err(Rejection::UnknownState {
                    name: state_id.clone(),
                    within: None,
                    known: definition.listed_states(),
                });
            }
            if let Some(options) = config.as_deref() {
                let wrong = |UnknownName { at, what }| format!("the options of state \"{state_id}\": {at} {what}");
                let names = definition.check_options(options, self.context.mapping);
                names.map_err(|fault| Rejection::InvalidOptions(wrong(fault)))?;
                let wait = definition.check_static_wait(state_id, Some(options));
                let wait = wait.and_then(|()| options.check_ticks(self.context.next_tick, self.context.now));
                wait.map_err(|fault| Rejection::InvalidAnswer(wrong(fault)))?;
            }
            let limit = self.context.quotas.call_timeout;
            if let Some(longer) = config.as_ref().and_then(|options| options.longer_call(limit)) {
                return Err(Rejection::OverQuota(format!("the options of state \"{state_id}\": {longer}")));
            }
            timers += definition.static_wait(state_id, config.as_deref()).map_or(0, CommandRequest::most_timers);
            let guards = definition.guards_of(state_id).iter().filter_map(|guard| definition.static_wait(guard, None));
            timers += guards.map(CommandRequest::timers).sum::<usize>();
        }
        self.check_timers(timers)
    }

    fn pause(&mut self, pause: &Pause) {
        if self.execution.pause.as_ref() != Some(pause) {
            let Pause { mode, until, reason } = pause.clone();
            self.emit(Event::ProcessPaused { mode, until, reason });
        }
    }

    fn resume(&mut self) {
        if self.execution.pause.is_some() {
            self.emit(Event::ProcessResumed {});
        }
    }

    /// The end of a pause is due.
    fn pause_ends(&mut self) -> Result<(), Rejection> {
        if !self.execution.pause.as_ref().is_some_and(|pause| pause.is_over(self.context.now)) {
            return Err(Rejection::Stale);
        }
        self.emit(Event::ProcessResumed {});
        Ok(())
    }
}
