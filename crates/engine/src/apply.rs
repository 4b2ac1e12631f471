//! What each event changes in an execution.

use crate::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state that a process starts in, if its start names a state.
pub const FIRST_STATE: StateSeq = StateSeq(1);

impl Execution {
    /// Changes the execution as the event says. If an event names a state that is not loaded, only the counters change.
    /// So an execution loaded in part and one loaded as a whole agree on their counters.
    // Long because there is one place for what each event changes, and the compiler checks that no event is missing.
    pub fn apply(&mut self, event: &Event, at: Timestamp) {
        let number = self.next_event;
        if event.is_recorded() {
            self.next_event += 1;
        }
        match event {
            Event::ProcessStarted { process_id, process_type, timeout_at, priority, started_by, locks } => {
                self.process_id.clone_from(process_id);
                self.process_type.clone_from(process_type);
                self.started_at = at;
                self.timeout_at = *timeout_at;
                self.priority = *priority;
                self.parent.clone_from(started_by);
                self.locks.clone_from(locks);
            }
            Event::StateStarted {
                seq,
                state_execution_id,
                input,
                config,
                recovery,
                skip_wait_until,
                static_wait,
                guard,
                compensates,
                not_before,
            } => {
                if compensates.is_some() {
                    self.compensation.noted.pop();
                    self.compensation.of.clone_from(compensates);
                }
                let call = CallState { not_before: *not_before, ..CallState::default() };
                self.timers += u32::from(*static_wait);
                self.start_state(StateExecution {
                    seq: *seq,
                    id: state_execution_id.clone(),
                    input: input.clone(),
                    config: config.clone(),
                    recovery: recovery.clone(),
                    started_at: at,
                    ended_at: None,
                    phase: match (static_wait, skip_wait_until) {
                        (true, _) => Phase::Waiting(Wait {
                            order: number,
                            since: at,
                            waiting_type: WaitingType::Any,
                            commands: Vec::new(),
                            combinations: Vec::new(),
                            begins_at: Some(*not_before),
                            guard: *guard,
                            guards: None,
                        }),
                        (false, true) => Phase::Execute { call, results: None },
                        (false, false) => Phase::WaitUntil(call),
                    },
                });
            }
            Event::StartMerged { input, without_input, not_before, timeout_at } => {
                self.timeout_at = *timeout_at;
                let changes = *without_input || input.is_some();
                self.with_state(FIRST_STATE, |state| {
                    if changes {
                        state.input.clone_from(input);
                    }
                    if let Phase::WaitUntil(call) | Phase::Execute { call, .. } = &mut state.phase {
                        call.not_before = *not_before;
                        // An attempt may have begun whose lease was lost in a crash. A new generation keeps its request
                        // key from being used again.
                        call.generation += u32::from(changes);
                    }
                });
            }
            Event::WaitStarted { seq, waiting_type, commands, combinations, .. } => {
                let guard = self.states.get(seq).is_some_and(|state| state.is_waiting_guard());
                let begins = self.states.get(seq).and_then(|state| state.begins_at()).is_some();
                self.timers = self.timers.saturating_sub(u32::from(begins));
                self.timers += commands.iter().filter(|command| command.kind.fire_at().is_some()).count() as u32;
                self.with_state(*seq, |state| {
                    state.phase = Phase::Waiting(Wait {
                        order: number,
                        since: at,
                        waiting_type: *waiting_type,
                        commands: commands.clone(),
                        combinations: combinations.clone(),
                        begins_at: None,
                        guard,
                        guards: None,
                    });
                });
            }
            Event::CommandCompleted { seq, command, messages } => self.complete_command(*seq, *command, messages),
            Event::GlobalMessagesTaken { seq, command, messages } => {
                if let Some(command) = command_of(&mut self.states, *seq, *command) {
                    command.status = CommandStatus::Completed;
                    command.global_messages.clone_from(messages);
                }
            }
            Event::TimerSkipped { seq, command } => {
                self.timers = self.timers.saturating_sub(1);
                if let Some(command) = command_of(&mut self.states, *seq, *command) {
                    command.status = CommandStatus::Skipped;
                }
            }
            Event::WaitCompleted { seq, guards } => {
                if self.states.get(seq).is_some_and(|state| state.is_waiting_guard()) {
                    self.waiting_guards = self.waiting_guards.saturating_sub(1);
                    self.live_threads += 1;
                }
                let left = self.states.get(seq).map_or(0, |state| state.open_timers().count());
                self.timers = self.timers.saturating_sub(left as u32);
                self.with_state(*seq, |state| {
                    if let Phase::Waiting(wait) = &state.phase {
                        state.phase = Phase::Execute {
                            call: CallState { not_before: at, ..CallState::default() },
                            results: Some(Wait { guards: guards.clone(), ..wait.clone() }),
                        };
                    }
                });
            }
            Event::StateCompleted { seq, .. } => self.end_state(*seq, StateStatus::Completed, None, at),
            Event::AttemptFailed { seq, api, attempt, failure, next_attempt_at, applied } => {
                let last = LastFailure { api: *api, attempt: *attempt, at, failure: failure.clone() };
                self.with_call(*seq, *api, |call| {
                    call.note_failure(last, *next_attempt_at);
                    if *applied {
                        call.recorded_attempts = *attempt;
                        call.generation += 1;
                    }
                });
            }
            Event::AttemptsFolded { seq, api, last_attempt, at, failure, .. } => {
                let last = LastFailure { api: *api, attempt: *last_attempt, at: *at, failure: failure.clone() };
                self.with_call(*seq, *api, |call| {
                    // The tables may have this failed attempt already; the history does not.
                    if last.attempt > call.failed_attempts {
                        let not_before = call.not_before;
                        call.note_failure(last, not_before);
                    }
                    call.recorded_attempts = *last_attempt;
                });
            }
            Event::CallRepeated { seq, api, next_call_at, same_request, failure } => {
                self.with_call(*seq, *api, |call| {
                    call.repeats += 1;
                    call.generation += u32::from(!same_request);
                    call.not_before = *next_call_at;
                    if let Some(failure) = failure {
                        call.note_unregistered(*api, failure.clone(), at);
                    }
                })
            }
            Event::RetryRequested { seq, api, resolves } => self.with_call(*seq, *api, |call| {
                call.not_before = at;
                if *resolves {
                    call.resolve_incident();
                }
            }),
            Event::IncidentRaised { seq, api, attempt, failure } => {
                let last = LastFailure { api: *api, attempt: *attempt, at, failure: failure.clone() };
                self.with_call(*seq, *api, |call| call.raise_incident(last));
            }
            Event::StateFailed { seq, api, attempt, failure } => {
                let last = LastFailure { api: *api, attempt: *attempt, at, failure: failure.clone() };
                self.end_state(*seq, StateStatus::Failed, Some(last), at);
            }
            Event::StateAborted { seq, .. } => self.abort_state(*seq, at),
            Event::LocalAttributesWritten { attributes } => {
                self.local_attributes.extend(attributes.iter().map(|(k, v)| (k.clone(), v.clone())));
            }
            Event::GlobalAttributesWritten { .. }
            | Event::GlobalMessagesPublished { .. }
            | Event::RpcApplied { .. }
            | Event::CommandRejected { .. } => {}
            Event::ChildrenStarted { .. } => self.has_children = true,
            Event::MessagesReceived { messages, .. } => messages.iter().for_each(|message| self.receive(message)),
            Event::CompletionRequested {} => self.completing = true,
            Event::Snapshot(snapshot) => self.restore(snapshot),
            Event::ResultGiven { seq, output } => {
                let state_execution_id = seq.and_then(|seq| self.states.get(&seq)).map(|state| state.id.clone());
                self.results.push(ProcessResult { state_execution_id, output: output.clone() });
            }
            Event::ProcessPaused { mode, until, reason } => {
                self.pause = Some(Pause { mode: *mode, until: *until, reason: reason.clone() });
            }
            Event::ProcessResumed {} => self.pause = None,
            Event::CompensationAdded { seq, of, state_id } => {
                let noted = NotedStep { seq: *seq, of: of.clone(), state_id: state_id.clone() };
                self.compensation.noted.push(noted);
            }
            Event::CompensationStarted { .. } => self.compensation.begun = true,
            Event::ProcessClosed { status, reason } => self.close(*status, reason.clone(), at),
        }
    }

    fn start_state(&mut self, state: StateExecution) {
        self.next_state = self.next_state.max(state.seq.0 + 1);
        self.state_numbers.insert(state.id.state_id.clone(), state.id.number);
        match state.is_waiting_guard() {
            true => self.waiting_guards += 1,
            false => self.live_threads += 1,
        }
        self.states.insert(state.seq, Arc::new(state));
    }

    fn receive(&mut self, message: &Message) {
        self.next_message = self.next_message.max(message.number + 1);
        if let Some(id) = &message.message_id {
            self.message_ids.insert((message.queue.clone(), id.clone()));
        }
        self.queued.add(message);
        self.queues.entry(message.queue.clone()).or_default().push_back(Arc::new(message.clone()));
    }

    fn close(&mut self, status: ProcessStatus, reason: Option<String>, at: Timestamp) {
        self.status = status;
        self.reason = reason;
        self.closed_at = Some(at);
        self.pause = None;
        self.compensation = Compensation::default();
        (self.live_threads, self.waiting_guards) = (0, 0);
        (self.queued, self.timers) = (QueuedTotal::default(), 0);
        self.queues.clear();
        for state in self.states.values_mut().filter(|state| state.status().is_live()) {
            Arc::make_mut(state).abort(at);
        }
    }

    fn abort_state(&mut self, seq: StateSeq, at: Timestamp) {
        match self.states.get(&seq).is_some_and(|state| state.is_waiting_guard()) {
            true => self.waiting_guards = self.waiting_guards.saturating_sub(1),
            false => self.live_threads = self.live_threads.saturating_sub(1),
        }
        let Some(state) = self.states.get_mut(&seq) else { return };
        self.timers = self.timers.saturating_sub(state.open_timers().count() as u32);
        let state = Arc::make_mut(state);
        for message in state.taken_messages().cloned() {
            self.queued.add(&message);
            let queue = self.queues.entry(message.queue.clone()).or_default();
            let place = queue.partition_point(|other| other.number < message.number);
            queue.insert(place, Arc::new(message));
        }
        state.abort(at);
    }

    /// The call of the first state, if none of its attempts has failed.
    pub fn first_call(&self) -> Option<&CallState> {
        let call = match &self.states.get(&FIRST_STATE)?.phase {
            Phase::WaitUntil(call) | Phase::Execute { call, results: None } => call,
            _ => return None,
        };
        (call.failed_attempts == 0 && call.repeats == 0).then_some(call)
    }

    /// When the first step is due: its first call, or its static wait that has not begun. None: neither is to come.
    pub fn first_is_due(&self) -> Option<Timestamp> {
        let begins_at = self.states.get(&FIRST_STATE).and_then(|state| state.begins_at());
        self.first_call().map(|call| call.not_before).or(begins_at)
    }

    fn with_state(&mut self, seq: StateSeq, change: impl FnOnce(&mut StateExecution)) {
        if let Some(state) = self.states.get_mut(&seq) {
            change(Arc::make_mut(state));
        }
    }

    fn with_call(&mut self, seq: StateSeq, api: Api, change: impl FnOnce(&mut CallState)) {
        if let Some(call) = self.states.get_mut(&seq).and_then(|state| Arc::make_mut(state).call_mut(api)) {
            change(call);
        }
    }

    fn complete_command(&mut self, seq: StateSeq, position: u32, numbers: &[u64]) {
        let Some(command) = command_of(&mut self.states, seq, position) else { return };
        command.status = CommandStatus::Completed;
        if command.kind.fire_at().is_some() {
            self.timers = self.timers.saturating_sub(1);
        }
        if let WaitKind::LocalQueue { queue, .. } = &command.kind
            && let Some(queued) = self.queues.get_mut(queue)
        {
            // The messages are the oldest of their queue: a command always takes a prefix.
            let taken = numbers.len().min(queued.len());
            queued.range(..taken).for_each(|message| self.queued.remove(message));
            command.messages = queued.drain(..taken).map(Arc::unwrap_or_clone).collect();
            if queued.is_empty() {
                self.queues.remove(&queue.clone());
            }
        }
    }

    fn end_state(&mut self, seq: StateSeq, status: StateStatus, failure: Option<LastFailure>, at: Timestamp) {
        self.live_threads = self.live_threads.saturating_sub(1);
        self.with_state(seq, |state| {
            state.phase = state.phase.ended(status, failure);
            state.ended_at = Some(at);
        });
    }
}

impl StateExecution {
    fn abort(&mut self, at: Timestamp) {
        let last_failure = self.current_call().and_then(|(_, call)| call.last_failure.clone());
        self.phase = self.phase.ended(StateStatus::Aborted, last_failure);
        self.ended_at = Some(at);
    }
}

/// A command of a waiting state, by its position.
fn command_of(
    states: &mut BTreeMap<StateSeq, Arc<StateExecution>>,
    seq: StateSeq,
    position: u32,
) -> Option<&mut WaitCommand> {
    match &mut Arc::make_mut(states.get_mut(&seq)?).phase {
        Phase::Waiting(wait) => wait.commands.get_mut(position as usize),
        _ => None,
    }
}

impl CallState {
    /// Records the failure of the current attempt, and keeps the time of its first such failure.
    fn note_unregistered(&mut self, api: Api, failure: Failure, at: Timestamp) {
        let at = self.unregistered_since().unwrap_or(at);
        let attempt = self.failed_attempts.saturating_add(1);
        self.last_failure = Some(LastFailure { api, attempt, at, failure });
    }

    fn note_failure(&mut self, last: LastFailure, not_before: Timestamp) {
        self.failed_attempts = last.attempt;
        self.not_before = not_before;
        if let Some(error) = &last.failure.app_database_error {
            self.app_database_error = Some(error.clone());
            self.generation += 1;
        }
        self.last_failure = Some(last);
    }

    fn raise_incident(&mut self, last: LastFailure) {
        let (attempt, not_before) = (last.attempt, self.not_before);
        self.note_failure(last, not_before);
        // This attempt is in the history, whatever its number: it has its own event.
        self.recorded_attempts = attempt;
        self.incident = true;
    }

    /// Restarts the count of attempts for the retry policy. The operator may have repaired the worker, so a new
    /// generation keeps the worker from answering with a stored answer.
    fn resolve_incident(&mut self) {
        self.incident = false;
        self.resolved_attempts = self.failed_attempts;
        self.generation += 1;
    }
}
