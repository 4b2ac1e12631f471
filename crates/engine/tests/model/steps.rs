//! The effects of each command on the model.

use super::ops::SECOND;
use super::*;
use std::collections::BTreeMap;

/// What begins a step.
enum Cause {
    /// A start, or a movement of an answer.
    Moved,
    MovedByHand,
    Recovers(Box<Recovery>),
    Undoes,
}

impl Model {
    /// Applies a command. Error: all reasons to refuse it. The engine may name any of them.
    pub fn step(&mut self, command: &Command, context: &Context<'_>) -> Result<(), Vec<Refusal>> {
        let mut after = self.clone();
        after.try_step(command, context)?;
        after.trigger_guards(&without_messages(context));
        *self = after;
        Ok(())
    }

    fn try_step(&mut self, command: &Command, context: &Context<'_>) -> Result<(), Vec<Refusal>> {
        if let Some(closed) = &self.closed {
            let read_only = matches!(command, Command::RpcAnswered { answer, .. }
                if answer.decision.is_none() && answer.effects == Effects::default());
            return if read_only { Ok(()) } else { Err(vec![Refusal::NotRunning(closed.status)]) };
        }
        // Open: which commands are refused before the start, and how a second start is refused.
        if self.begun.is_some() == matches!(command, Command::Start(_)) {
            return Err(vec![Refusal::Stale]);
        }
        match command {
            Command::Start(start) => self.start(start, context)?,
            Command::MergeStart { input, not_before } => self.merge_start(input, *not_before)?,
            Command::WaitUntilAnswered { seq, answer } => {
                self.at_call(*seq, Api::WaitUntil)?;
                let mut faults = request_faults(&answer.request, context);
                faults.extend(effect_faults(&answer.effects, context));
                none(faults)?;
                self.effects(Some(*seq), &answer.effects, context);
                self.begin_wait(*seq, &answer.request, context);
            }
            Command::ExecuteAnswered { seq, answer } => {
                self.at_call(*seq, Api::Execute)?;
                let mut faults = decision_faults(&answer.decision, context);
                faults.extend(effect_faults(&answer.effects, context));
                none(faults)?;
                self.effects(Some(*seq), &answer.effects, context);
                self.end_step(*seq, StateStatus::Completed, context);
                self.decide(Some(*seq), &answer.decision, context);
            }
            Command::CallFailed(failed) => {
                self.at_call(failed.seq, failed.api)?;
                // An attempt fails once. If its number has failed already, the failure is doubled.
                if self.call_mut(failed.seq).failures.iter().any(|last| last.attempt >= failed.attempt) {
                    return Err(vec![Refusal::Stale]);
                }
                none(failed.applied.as_ref().map_or_else(Vec::new, |effects| effect_faults(effects, context)))?;
                self.call_failed(failed, context);
            }
            Command::CallRepeated { seq, api } => {
                self.at_call(*seq, *api)?;
                let policy = self.retry_policy(*seq, *api, context);
                let call = self.call_mut(*seq);
                call.repeats += 1;
                call.not_before = match call.repeats {
                    ..=10 => context.now,
                    more => context.now + pause(&policy, more - 10, context.jitter),
                };
            }
            Command::TimerFired { seq, command: STATE_BEGINS } => {
                let due = self.begins_at(*seq).is_some_and(|at| at <= context.now);
                if !due {
                    return Err(vec![Refusal::Stale]);
                }
                let State { state_id, input, config, recovery, .. } = self.state(*seq).expect("it is there").clone();
                match static_wait(&state_id, config.as_deref(), context) {
                    Some(request) => self.begin_wait(*seq, &request, &without_messages(context)),
                    None => {
                        self.abort(*seq, context);
                        let cause = recovery.map_or(Cause::Moved, |recovery| Cause::Recovers(Box::new(recovery)));
                        self.start_state(&state_id, input, config, cause, context.now, context);
                    }
                }
            }
            Command::TimerFired { seq, command } => {
                let due =
                    self.timers(*seq).into_iter().any(|(at, _, fire_at)| at == *command && fire_at <= context.now);
                if !due {
                    return Err(vec![Refusal::Stale]);
                }
                self.complete_due_timers(*seq, context);
                self.go_on_if_satisfied(*seq, context);
            }
            Command::Pause(pause) => self.pause = Some(pause.clone()),
            Command::Resume => self.pause = None,
            Command::PauseEnds => {
                let until = self.pause.as_ref().and_then(|pause| pause.until);
                if until.is_none_or(|until| until > context.now) {
                    return Err(vec![Refusal::Stale]);
                }
                self.pause = None;
            }
            Command::ProcessTimeout => {
                let at = self.begun.as_ref().and_then(|begun| begun.timeout_at);
                if at.is_none_or(|at| context.now < at) {
                    return Err(vec![Refusal::Stale]);
                }
                self.close(ProcessStatus::Timeout, None, context);
            }
            Command::MessagesArrived(messages) => {
                // The queue may no longer be listed. But it was listed when the message was published, and the message
                // was accepted.
                let nothing = Default::default();
                self.publish(messages, &Context { published_before: &nothing, ..*context });
            }
            Command::GlobalMessagesArrived { seq } => {
                if self.waiting(*seq).is_none() {
                    return Err(vec![Refusal::Stale]);
                }
                self.serve(*seq, context);
            }
            Command::RpcAnswered { answer, .. } => {
                let mut faults = effect_faults(&answer.effects, context);
                if let Some(decision) = &answer.decision {
                    // The decoder of answers refuses conditional closes of RPCs.
                    faults.extend(decision_faults(decision, context));
                }
                none(faults)?;
                self.effects(None, &answer.effects, context);
                match &answer.decision {
                    Some(decision) => self.decide(None, decision, context),
                    None => self.complete_if_last(context),
                }
            }
            Command::SetLocalAttributes(attributes) => {
                none(local_faults(attributes, context))?;
                self.write(attributes);
            }
            Command::SkipTimer { seq, command_id } => {
                let mut timers = self.timers(*seq);
                timers.retain(|(at, ..)| *at != STATE_BEGINS);
                timers.retain(|(_, id, _)| command_id.is_none() || id == command_id);
                timers.sort_by_key(|(at, _, fire_at)| (*fire_at, *at));
                let Some((at, ..)) = timers.first() else { return Err(vec![Refusal::NoTimer]) };
                self.mark(*seq, *at as usize, CommandStatus::Skipped);
                self.go_on_if_satisfied(*seq, context);
            }
            Command::RetryNow(seqs) => {
                for seq in seqs {
                    let Some(State { place: Place::Call(_, call), ended: None, .. }) = self.state(*seq) else {
                        continue;
                    };
                    if call.stands {
                        let call = self.call_mut(*seq);
                        (call.stands, call.not_before) = (false, context.now);
                        call.resolved.push(call.failures.len());
                    } else if (!call.failures.is_empty() || call.repeats > 0) && call.not_before > context.now {
                        self.call_mut(*seq).not_before = context.now;
                    }
                }
            }
            Command::MoveState { seq, next, .. } => {
                if !self.live().contains(seq) {
                    return Err(vec![Refusal::Stale]);
                }
                none(if next.is_empty() { Vec::new() } else { movement_faults(next, context) })?;
                self.abort(*seq, context);
                self.serve_all(context);
                self.go_to(next, true, context);
                self.complete_if_last(context);
            }
            Command::Stop { stop_type, reason } => {
                let status = match stop_type {
                    StopType::Terminate => ProcessStatus::Terminated,
                    StopType::Fail => ProcessStatus::Failed,
                };
                self.close(status, Some(reason.clone()), context);
            }
            Command::Fail { reason } => self.close(ProcessStatus::Failed, Some(Some(reason.clone())), context),
        }
        Ok(())
    }

    fn start(&mut self, start: &Start, context: &Context<'_>) -> Result<(), Vec<Refusal>> {
        let mut faults = local_faults(&start.local_attributes, context);
        faults.extend(global_faults(&start.global_attributes, context));
        faults.extend(function_faults(&start.call_functions, context));
        let first =
            if start.starting_state.is_some() { &start.starting_state } else { &context.definition.starting_state };
        match first {
            None if start.input.is_some() => faults.push(Refusal::UnusedInput),
            None if start.starting_state_config.is_some() => faults.push(Refusal::InvalidOptions),
            Some(state_id) if !context.definition.states.contains_key(state_id) => {
                faults.push(Refusal::UnknownState(state_id.clone()));
            }
            _ => {}
        }
        if let Some(config) = &start.starting_state_config {
            faults.extend(option_faults(config, context));
            let twice = first.as_ref().is_some_and(|state_id| twice(state_id, config, context));
            faults.extend(twice.then_some(Refusal::InvalidAnswer));
        }
        none(faults)?;
        let begin = start.start_at.filter(|at| *at > context.now).unwrap_or(context.now);
        let timeout = start.timeout.or_else(|| context.definition.timeout_seconds.map(Duration::from_seconds));
        self.begun = Some(Begun {
            process_id: start.process_id.clone(),
            process_type: start.process_type.clone(),
            at: context.now,
            timeout_at: timeout.filter(|timeout| timeout.0 > 0).map(|timeout| begin + timeout),
            priority: start.priority.unwrap_or(context.definition.priority),
            parent: start.started_by.clone(),
            locks: locks_of(start, context.definition),
        });
        self.write(&start.local_attributes);
        self.global_writes.extend(start.global_attributes.clone());
        if let Some(state_id) = first {
            let config = start.starting_state_config.clone();
            self.start_state(state_id, start.input.clone(), config, Cause::Moved, begin, context);
        }
        self.start_guards(&context.definition.guards, begin, context);
        Ok(())
    }

    fn merge_start(&mut self, input: &Option<Json>, not_before: Timestamp) -> Result<(), Vec<Refusal>> {
        let untried = |state: &&mut State| {
            let first = matches!(&state.place, Place::Call(_, call) if call.failures.is_empty() && call.repeats == 0);
            first && state.wait.is_none() && state.ended.is_none()
        };
        let first = self.states.first_mut().filter(untried).ok_or_else(|| vec![Refusal::Stale])?;
        let Place::Call(_, call) = &mut first.place else { return Err(vec![Refusal::Stale]) };
        let moved = not_before.0 - call.not_before.0;
        call.not_before = not_before;
        if first.input != *input {
            first.input.clone_from(input);
            call.merged += 1;
        }
        if let Some(begun) = &mut self.begun {
            begun.timeout_at = begun.timeout_at.map(|at| Timestamp(at.0 + moved));
        }
        Ok(())
    }

    fn at_call(&self, seq: StateSeq, api: Api) -> Result<(), Vec<Refusal>> {
        self.call(seq, api).map(|_| ()).ok_or_else(|| vec![Refusal::Stale])
    }

    fn start_state(
        &mut self,
        state_id: &str,
        input: Option<Json>,
        config: Option<Box<StateConfig>>,
        cause: Cause,
        not_before: Timestamp,
        context: &Context<'_>,
    ) {
        let skip = option(context.definition, state_id, config.as_deref(), |config| config.skip_wait_until);
        let wait = static_wait(state_id, config.as_deref(), context);
        let api = if skip == Some(true) { Api::Execute } else { Api::WaitUntil };
        let guard = wait.is_some() && matches!(cause, Cause::Moved) && self.starts_as_guard(state_id, context);
        let recovery = if let Cause::Recovers(recovery) = cause { Some(*recovery) } else { None };
        let place = match wait {
            Some(_) => Place::ToBegin(not_before),
            None => Place::Call(api, Call::new(not_before)),
        };
        let started_at = context.now;
        let state = State {
            state_id: state_id.to_owned(),
            number: 0,
            input,
            config,
            recovery,
            started_at,
            place,
            guard,
            guards: None,
            wait: None,
            ended: None,
        };
        let seq = self.push(state);
        self.start_guards(&guards_of(state_id, context), not_before, context);
        if let Some(request) = wait.filter(|_| not_before <= context.now) {
            self.begin_wait(seq, &request, &without_messages(context));
        }
    }

    fn push(&mut self, state: State) -> StateSeq {
        let number = 1 + self.states.iter().filter(|other| other.state_id == state.state_id).count() as u32;
        self.states.push(State { number, ..state });
        StateSeq(self.states.len() as u32)
    }

    /// The first live step that a guard guards.
    fn guarded(&self, guard: &str, context: &Context<'_>) -> Vec<StateSeq> {
        let lists = |seq: &StateSeq| guards_of(&self.id(*seq).state_id, context).iter().any(|other| other == guard);
        self.live().into_iter().filter(lists).collect()
    }

    fn starts_as_guard(&self, state_id: &str, context: &Context<'_>) -> bool {
        let of_process = context.definition.guards.iter().any(|guard| guard == state_id);
        of_process && !self.compensating || !self.guarded(state_id, context).is_empty()
    }

    fn start_guards(&mut self, guards: &[String], from: Timestamp, context: &Context<'_>) {
        for guard in guards {
            let waits = self.live().into_iter().any(|seq| self.waits_as_guard(seq) && self.id(seq).state_id == *guard);
            let Some(request) = static_wait(guard, None, context).filter(|_| !waits) else { continue };
            let state = State {
                state_id: guard.clone(),
                number: 0,
                input: None,
                config: None,
                recovery: None,
                started_at: context.now,
                place: Place::ToBegin(context.now),
                guard: true,
                guards: None,
                wait: None,
                ended: None,
            };
            let seq = self.push(state);
            self.begin_wait_from(seq, &request, from, &without_messages(context));
        }
    }

    /// Ends a step, and the guards that guard nothing any more.
    fn end_step(&mut self, seq: StateSeq, status: StateStatus, context: &Context<'_>) {
        self.end(seq, status, context);
        for guard in guards_of(&self.id(seq).state_id, context) {
            if !self.starts_as_guard(&guard, context) {
                let of = |seq: &StateSeq| self.waits_as_guard(*seq) && self.id(*seq).state_id == guard;
                let waiting: Vec<StateSeq> = self.live().into_iter().filter(of).collect();
                waiting.into_iter().for_each(|seq| self.abort(seq, context));
            }
        }
    }

    /// Ends the waits of guards, longest waiting first.
    fn trigger_guards(&mut self, context: &Context<'_>) {
        self.serve_all(context);
        loop {
            let satisfied =
                |seq: &StateSeq| self.waits_as_guard(*seq) && self.waiting(*seq).is_some() && self.is_satisfied(*seq);
            let first = self.live().into_iter().filter(satisfied).min_by_key(|seq| self.waiting(*seq).map(|w| w.turn));
            let Some(seq) = first else { return };
            let guard = self.id(seq).state_id;
            let of_process = context.definition.guards.contains(&guard);
            let guarded = self.guarded(&guard, context);
            self.complete_due_timers(seq, context);
            let guards = guarded.first().filter(|_| !of_process).map(|seq| self.id(*seq));
            let state = self.state_mut(seq);
            (state.place, state.guards) = (Place::Call(Api::Execute, Call::new(context.now)), guards);
            if context.definition.states.get(&guard).is_some_and(|state| state.interrupting == Some(false)) {
                continue;
            }
            let ended = if of_process { self.live() } else { guarded };
            for ended in ended.into_iter().filter(|ended| *ended != seq) {
                if self.live().contains(&ended) {
                    self.abort(ended, context);
                }
            }
            self.serve_all(context);
        }
    }

    fn end(&mut self, seq: StateSeq, status: StateStatus, context: &Context<'_>) {
        self.state_mut(seq).ended = Some((status, context.now));
    }

    fn close(&mut self, status: ProcessStatus, reason: Option<Option<String>>, context: &Context<'_>) {
        for seq in self.live() {
            self.end(seq, StateStatus::Aborted, context);
        }
        self.pause = None;
        (self.noted, self.compensating, self.undoes) = (Vec::new(), false, None);
        self.closed = Some(Closed { status, at: context.now, reason });
    }

    fn decide(&mut self, seq: Option<StateSeq>, decision: &Decision, context: &Context<'_>) {
        match decision {
            Decision::NextStates(movements) => {
                self.note(seq, context);
                self.go_to(movements, false, context);
                self.complete_if_last(context);
            }
            Decision::Close { close_type, output } => self.close_thread(seq, *close_type, output, context),
            Decision::ConditionalClose { close_type, queues, output, otherwise } => {
                let by_guard = |taken: Option<(StateSeq, u32)>| taken.is_some_and(|(by, _)| self.waits_as_guard(by));
                let held = self.received.iter().filter(|message| by_guard(message.taken));
                let held: Vec<_> = held.map(|message| message.queue.clone()).collect();
                if queues.iter().all(|queue| self.in_queue(queue).is_empty() && !held.contains(queue)) {
                    self.close_thread(seq, *close_type, output, context);
                } else {
                    self.note(seq, context);
                    self.go_to(otherwise, false, context);
                    self.complete_if_last(context);
                }
            }
        }
    }

    fn go_to(&mut self, movements: &[StateMovement], by_hand: bool, context: &Context<'_>) {
        for to in movements {
            let cause = if by_hand { Cause::MovedByHand } else { Cause::Moved };
            let not_before = match to.begin {
                Begin::At(at) if at > context.now => at,
                Begin::After(delay) => context.now + delay,
                Begin::AtOnce | Begin::At(_) => context.now,
            };
            self.start_state(&to.state_id, to.input.clone(), to.config.clone(), cause, not_before, context);
        }
    }

    fn close_thread(
        &mut self,
        seq: Option<StateSeq>,
        close_type: CloseType,
        output: &Option<Json>,
        context: &Context<'_>,
    ) {
        // Open: the output of a dead end, which closes nothing. The reference says that every output becomes a result.
        if let Some(output) = output {
            self.results.push((seq, output.clone()));
        }
        match close_type {
            CloseType::ForceComplete => return self.close(ProcessStatus::Completed, None, context),
            CloseType::ForceFail => return self.close(ProcessStatus::Failed, None, context),
            CloseType::Compensate => return self.compensate(context),
            CloseType::GracefulComplete => {
                self.note(seq, context);
                self.completing |= !self.compensating;
            }
            CloseType::DeadEnd => self.note(seq, context),
        }
        self.complete_if_last(context);
    }

    /// Notes a completed step, if a state undoes it.
    fn note(&mut self, seq: Option<StateSeq>, context: &Context<'_>) {
        let Some(seq) = seq.filter(|_| !self.compensating) else { return };
        let options = context.definition.states.get(&self.id(seq).state_id);
        let by = options.and_then(|options| options.compensation_state_id.clone());
        self.noted.extend(by.map(|state_id| (seq, state_id)));
    }

    fn compensate(&mut self, context: &Context<'_>) {
        if !self.compensating {
            self.compensating = true;
            for seq in self.live() {
                if self.live().contains(&seq) {
                    self.abort(seq, context);
                }
            }
        }
        self.complete_if_last(context);
    }

    fn complete_if_last(&mut self, context: &Context<'_>) {
        if self.compensating && self.threads() == 0 {
            match self.noted.pop() {
                Some((seq, state_id)) => {
                    self.undoes = Some(self.id(seq));
                    let input = self.state(seq).expect("it has completed").input.clone();
                    self.start_state(&state_id, input, None, Cause::Undoes, context.now, context);
                }
                None => self.close(ProcessStatus::Failed, Some(Some("compensated".to_owned())), context),
            }
            return;
        }
        if self.completing && self.threads() == 0 {
            self.close(ProcessStatus::Completed, None, context);
        }
    }

    fn retry_policy(&self, seq: StateSeq, api: Api, context: &Context<'_>) -> RetryPolicy {
        let state = self.state(seq).expect("there is such a state");
        option(context.definition, &state.state_id, state.config.as_deref(), |config| match api {
            Api::WaitUntil => config.wait_until_api_retry_policy.clone(),
            Api::Execute => config.execute_api_retry_policy.clone(),
        })
        .unwrap_or_default()
    }

    fn call_failed(&mut self, failed: &CallFailed, context: &Context<'_>) {
        let CallFailed { seq, api, attempt, failure, .. } = failed;
        let policy = self.retry_policy(*seq, *api, context);
        let too_late = |at: Timestamp| {
            let bound = policy.maximum_attempts_duration_seconds;
            bound > 0.0 && at > failed.first_attempt_at + Duration::from_seconds(bound)
        };
        if let Further::Repeat(asked) = failed.further {
            let call = self.call_mut(*seq);
            let by_policy = (call.repeats >= 10).then(|| pause(&policy, call.repeats - 9, context.jitter));
            let next = context.now + by_policy.unwrap_or_default().max(asked);
            if !too_late(next) {
                call.repeats += 1;
                call.same_requests += 1;
                call.not_before = next;
                return;
            }
        }
        let mut no_time_left = false;
        if failed.further == Further::WhenRegistered {
            let call = self.call_mut(*seq);
            let since = call.unregistered.as_ref().map_or(context.now, |last| last.at);
            let waited = context.now.since(since);
            let next = context.now + Duration(waited.clamp(10 * SECOND, 60 * SECOND));
            no_time_left = waited < 600 * SECOND && too_late(next);
            if waited < 600 * SECOND && !no_time_left {
                call.repeats += 1;
                call.same_requests += 1;
                call.not_before = next;
                let attempt = call.failures.last().map_or(1, |last| last.attempt + 1);
                call.unregistered =
                    Some(Box::new(LastFailure { api: *api, attempt, at: since, failure: failure.clone() }));
                return;
            }
        }
        if let Some(effects) = &failed.applied {
            self.effects(Some(*seq), effects, context);
        }
        let last = LastFailure { api: *api, attempt: *attempt, at: context.now, failure: failure.clone() };
        let call = self.call_mut(*seq);
        call.failures.push(last);
        call.unregistered = None;
        let counted = attempt - call.counted_after();
        let next = match failed.further {
            Further::After(asked) => context.now + asked.max(Duration(100_000)),
            _ => context.now + pause(&policy, counted, context.jitter),
        };
        let spent = no_time_left
            || matches!(failed.further, Further::Never | Further::Repeat(_))
            || (policy.maximum_attempts > 0 && counted >= policy.maximum_attempts)
            || too_late(next);
        if !spent {
            let call = self.call_mut(*seq);
            call.not_before = next;
            call.applied += u32::from(failed.applied.is_some());
            return;
        }
        let state = self.state(*seq).expect("there is such a state").clone();
        let recovery = option(context.definition, &state.state_id, state.config.as_deref(), |config| {
            config.state_failure_recovery_options.clone()
        });
        if recovery.as_ref().is_some_and(|recovery| recovery.policy == FailurePolicy::RaiseIncident) {
            self.call_mut(*seq).stands = true;
            return;
        }
        self.end_step(*seq, StateStatus::Failed, context);
        if recovery.as_ref().is_some_and(|recovery| recovery.policy == FailurePolicy::Compensate) {
            return self.compensate(context);
        }
        let to = recovery.filter(|recovery| recovery.policy == FailurePolicy::ProceedToConfiguredState).and_then(
            |recovery| Some((recovery.state_failure_proceed_state_id?, recovery.state_failure_proceed_state_config)),
        );
        match to {
            // Open: what happens if that state is no longer listed.
            Some((state_id, config)) if context.definition.states.contains_key(&state_id) => {
                let recovery = Recovery { state_execution_id: self.id(*seq), api: *api, failure: failure.clone() };
                self.start_state(
                    &state_id,
                    state.input,
                    config,
                    Cause::Recovers(Box::new(recovery)),
                    context.now,
                    context,
                );
            }
            _ => self.close(ProcessStatus::Failed, None, context),
        }
    }

    fn write(&mut self, attributes: &BTreeMap<String, Json>) {
        self.written.extend(attributes.clone());
    }

    /// The effects of an answer. `but`: the answering step.
    fn effects(&mut self, but: Option<StateSeq>, effects: &Effects, context: &Context<'_>) {
        self.write(&effects.write_local_attributes);
        self.global_writes.extend(effects.write_global_attributes.clone());
        self.children.extend(effects.start_processes.iter().zip(context.child_ids).map(|(start, id)| Child {
            process_id: start.process_id.clone().unwrap_or(id.to_string()),
            process_execution_id: *id,
            process_type: start.process_type.clone(),
        }));
        self.global_publishes.extend(effects.publish_to_global_queue.iter().map(|publish| PublishedGlobally {
            queue: publish.queue.clone(),
            key: publish.key.clone(),
            message_id: publish.message_id.clone(),
            payload: publish.payload.clone(),
            expires_at: publish.ttl.map(|ttl| context.now + ttl),
        }));
        self.receive(&effects.publish_to_local_queue, context);
        for seq in self.live().into_iter().filter(|seq| Some(*seq) != but) {
            let id = self.id(seq);
            let meant = match &effects.abort_states {
                None => false,
                Some(AbortStates::All) => true,
                Some(AbortStates::Named(names)) => names.contains(&id.state_id) || names.contains(&id.to_string()),
            };
            if meant && self.live().contains(&seq) {
                self.abort(seq, context);
            }
        }
        self.serve_all(context);
    }

    /// Ends a step whose messages go back to their places.
    fn abort(&mut self, seq: StateSeq, context: &Context<'_>) {
        self.end_step(seq, StateStatus::Aborted, context);
        let back = |by: Option<(StateSeq, u32)>| by.is_some_and(|(by, _)| by == seq);
        self.received.iter_mut().filter(|message| back(message.taken)).for_each(|message| message.taken = None);
        self.taken_globally.retain(|(by, ..)| *by != seq);
    }

    fn publish(&mut self, messages: &[Publish], context: &Context<'_>) {
        self.receive(messages, context);
        self.serve_all(context);
    }

    fn receive(&mut self, messages: &[Publish], context: &Context<'_>) {
        for Publish { queue, message_id, payload } in messages {
            if let Some(id) = message_id {
                let known = self.received.iter().any(|old| old.queue == *queue && old.message_id.as_ref() == Some(id));
                if known || context.published_before.contains(&(queue.clone(), id.clone())) {
                    continue;
                }
            }
            let (queue, message_id, payload) = (queue.clone(), message_id.clone(), payload.clone());
            self.received.push(Received { queue, message_id, payload, taken: None });
        }
    }
}

/// The pause after `after` attempts, with a jitter of at most a tenth.
fn pause(policy: &RetryPolicy, after: u32, jitter: f64) -> Duration {
    let mut seconds = policy.initial_interval_seconds;
    for _ in 1..after {
        seconds = (seconds * policy.backoff_coefficient).min(policy.maximum_interval_seconds);
    }
    Duration::from_seconds(seconds.min(policy.maximum_interval_seconds) * (0.9 + 0.2 * jitter))
}

/// Messages of global queues are offered to the state of the command alone.
fn without_messages<'a>(context: &Context<'a>) -> Context<'a> {
    Context { global_messages: &[], ..*context }
}

fn guards_of(state_id: &str, context: &Context<'_>) -> Vec<String> {
    context.definition.states.get(state_id).and_then(|state| state.guards.clone()).unwrap_or_default()
}

/// What a step waits for without a handler: one that skips the wait waits for nothing.
fn static_wait(state_id: &str, own: Option<&StateConfig>, context: &Context<'_>) -> Option<CommandRequest> {
    let skip = option(context.definition, state_id, own, |config| config.skip_wait_until);
    let request = option(context.definition, state_id, own, |config| config.command_request.clone());
    request.filter(|_| skip != Some(true)).map(|request| *request)
}

/// Options that say twice what the step waits for.
fn twice(state_id: &str, own: &StateConfig, context: &Context<'_>) -> bool {
    let skip = option(context.definition, state_id, Some(own), |config| config.skip_wait_until);
    let request = option(context.definition, state_id, Some(own), |config| config.command_request.clone());
    request.is_some() && skip == Some(true)
}

fn none(faults: Vec<Refusal>) -> Result<(), Vec<Refusal>> {
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn local_faults(attributes: &BTreeMap<String, Json>, context: &Context<'_>) -> Vec<Refusal> {
    let listed = &context.definition.local_attributes;
    let unknown = attributes.keys().filter(|key| listed.as_ref().is_some_and(|listed| !listed.contains(*key)));
    unknown.map(|key| Refusal::UnknownLocalAttribute(key.clone())).collect()
}

fn global_faults(attributes: &BTreeMap<String, Json>, context: &Context<'_>) -> Vec<Refusal> {
    let unknown = attributes.keys().filter(|name| !is_mapped(name, context));
    unknown.map(|name| Refusal::UnknownGlobalAttribute(name.clone())).collect()
}

fn is_mapped(name: &str, context: &Context<'_>) -> bool {
    context.mapping.iter().any(|table| table.attributes.contains_key(name))
}

fn queue_fault(queue: &str, context: &Context<'_>) -> Option<Refusal> {
    let listed = context.definition.local_queues.as_ref()?;
    (!listed.contains(queue)).then(|| Refusal::UnknownQueue(queue.to_owned()))
}

fn global_queue_fault(queue: &str, context: &Context<'_>) -> Option<Refusal> {
    let listed = &context.definition.global_queues;
    (!listed.contains(queue) && !listed.contains("*")).then(|| Refusal::UnknownGlobalQueue(queue.to_owned()))
}

fn function_faults(calls: &[FunctionCall], context: &Context<'_>) -> Vec<Refusal> {
    let unknown = calls.iter().filter(|call| !context.definition.functions.contains_key(&call.function));
    unknown.map(|call| Refusal::UnknownFunction(call.function.clone())).collect()
}

/// The states that an answer aborts, and that the definition does not list.
fn abort_faults(effects: &Effects, context: &Context<'_>) -> Vec<Refusal> {
    let Some(AbortStates::Named(names)) = &effects.abort_states else { return Vec::new() };
    let listed = |name: &str| context.definition.states.contains_key(name);
    let step = |name: &str| name.parse::<StateExecutionId>().is_ok_and(|id| listed(&id.state_id));
    let unknown = names.iter().filter(|name| !listed(name) && !step(name));
    unknown.map(|name| Refusal::UnknownState(name.clone())).collect()
}

fn effect_faults(effects: &Effects, context: &Context<'_>) -> Vec<Refusal> {
    let mut faults = local_faults(&effects.write_local_attributes, context);
    faults.extend(global_faults(&effects.write_global_attributes, context));
    faults.extend(effects.publish_to_local_queue.iter().filter_map(|message| queue_fault(&message.queue, context)));
    let answered_to = effects.start_processes.iter().filter_map(|start| start.on_close.as_ref());
    faults.extend(answered_to.filter_map(|queue| queue_fault(queue, context)));
    faults.extend(function_faults(&effects.call_functions, context));
    faults.extend(abort_faults(effects, context));
    let global = &effects.publish_to_global_queue;
    faults.extend(global.iter().filter_map(|message| global_queue_fault(&message.queue, context)));
    faults
}

fn movement_faults(movements: &[StateMovement], context: &Context<'_>) -> Vec<Refusal> {
    let mut faults = Vec::new();
    if movements.is_empty() {
        faults.push(Refusal::InvalidAnswer);
    }
    for to in movements {
        if !context.definition.states.contains_key(&to.state_id) {
            faults.push(Refusal::UnknownState(to.state_id.clone()));
        }
        if let Some(config) = &to.config {
            faults.extend(option_faults(config, context));
            faults.extend(twice(&to.state_id, config, context).then_some(Refusal::InvalidAnswer));
        }
    }
    faults
}

fn decision_faults(decision: &Decision, context: &Context<'_>) -> Vec<Refusal> {
    match decision {
        Decision::NextStates(movements) => movement_faults(movements, context),
        Decision::Close { .. } => Vec::new(),
        Decision::ConditionalClose { close_type, queues, otherwise, .. } => {
            let mut faults = movement_faults(otherwise, context);
            // Open: the meaning of a conditional close that names no queue.
            if queues.is_empty() {
                faults.push(Refusal::InvalidAnswer);
            }
            faults.extend(queues.iter().filter_map(|queue| queue_fault(queue, context)));
            if !matches!(close_type, CloseType::ForceComplete | CloseType::GracefulComplete) {
                faults.push(Refusal::InvalidAnswer);
            }
            faults
        }
    }
}

/// The names in options of a state that do not exist.
fn option_faults(config: &StateConfig, context: &Context<'_>) -> Vec<Refusal> {
    let listed = &context.definition.local_attributes;
    let local = [
        &config.load_local_attributes,
        &config.wait_until_load_local_attributes,
        &config.execute_load_local_attributes,
    ];
    let global = [
        &config.load_global_attributes,
        &config.wait_until_load_global_attributes,
        &config.execute_load_global_attributes,
    ];
    let names = |loadings: [&Option<Loading>; 3]| -> Vec<String> {
        loadings.into_iter().flatten().flat_map(|loading| loading.names.clone()).collect()
    };
    let bad_local = names(local).iter().any(|name| listed.as_ref().is_some_and(|listed| !listed.contains(name)));
    let bad_global = names(global).iter().any(|name| !is_mapped(name, context));
    let mut faults = vec![Refusal::InvalidOptions; usize::from(bad_local || bad_global)];
    let waits_for = config.command_request.iter().flat_map(|request| request_faults(request, context));
    // Options with an unknown name may be registered soon; nothing cures a wrong tick.
    faults.extend(waits_for.map(|fault| match fault {
        Refusal::InvalidAnswer => Refusal::InvalidAnswer,
        _ => Refusal::InvalidOptions,
    }));
    if let Some(recovery) = &config.state_failure_recovery_options {
        let to = &recovery.state_failure_proceed_state_id;
        if to.as_ref().is_some_and(|to| !context.definition.states.contains_key(to)) {
            faults.push(Refusal::InvalidOptions);
        }
        if let Some(config) = &recovery.state_failure_proceed_state_config {
            faults.extend(option_faults(config, context));
            let twice = to.as_ref().is_some_and(|to| twice(to, config, context));
            faults.extend(twice.then_some(Refusal::InvalidAnswer));
        }
    }
    faults
}

/// The faults of a request. The decoder checks that type, commands and combinations fit.
fn request_faults(request: &CommandRequest, context: &Context<'_>) -> Vec<Refusal> {
    request
        .commands
        .iter()
        .filter_map(|command| match &command.kind {
            RequestedKind::LocalQueue { queue, .. } => queue_fault(queue, context),
            RequestedKind::GlobalQueue { queue, .. } => global_queue_fault(queue, context),
            RequestedKind::TimerCron(Cron { timezone: Some(_), .. }) => Some(Refusal::InvalidAnswer),
            RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_) => None,
        })
        .collect()
}

/// The locks of a start and of its type. A lock is shared if every list that has it shares it.
fn locks_of(start: &Start, definition: &Definition) -> ProcessLocks {
    let lists = [&start.locks, &definition.locks];
    let names = lists.into_iter().flat_map(|locks| locks.keys());
    let mode = |name: &String| match lists.into_iter().any(|locks| locks.get(name) == Some(&LockMode::Exclusive)) {
        true => LockMode::Exclusive,
        false => LockMode::Share,
    };
    names.map(|name| (name.clone(), mode(name))).collect()
}
