//! Compares an execution with the model.

use super::*;

/// All differences, one line each.
pub fn differences(model: &Model, execution: &Execution) -> Vec<String> {
    let mut found = Differences(Vec::new());
    let is = &mut found;
    is.same("status", execution.status, model.status());
    is.same("existence", execution.exists(), model.begun.is_some());
    if let Some(begun) = &model.begun {
        is.same("process id", &execution.process_id, &begun.process_id);
        is.same("process type", &execution.process_type, &begun.process_type);
        is.same("start", execution.started_at, begun.at);
        is.same("timeout", execution.timeout_at, begun.timeout_at);
    }
    is.same("close", execution.closed_at, model.closed.as_ref().map(|closed| closed.at));
    match &model.closed {
        None => is.same("reason", &execution.reason, &None),
        Some(Closed { reason: Some(reason), .. }) => is.same("reason", &execution.reason, reason),
        Some(Closed { reason: None, .. }) => {}
    }
    is.same("pause", &execution.pause, &model.pause);
    let noted = model.noted.iter().map(|(seq, state_id)| (*seq, model.id(*seq), state_id.clone()));
    let noted_here =
        execution.compensation.noted.iter().map(|noted| (noted.seq, noted.of.clone(), noted.state_id.clone()));
    is.same("noted steps", noted_here.collect::<Vec<_>>(), noted.collect());
    is.same("compensation", execution.compensation.begun, model.compensating);
    is.same("undone step", &execution.compensation.of, &model.undoes);
    let priority = model.begun.as_ref().map_or(0, |begun| begun.priority);
    is.same("priority", execution.priority, priority);
    is.same("parent", &execution.parent, &model.begun.as_ref().and_then(|begun| begun.parent.clone()));
    is.same("has children", execution.has_children, !model.children.is_empty());
    let locks = model.begun.as_ref().map(|begun| begun.locks.clone()).unwrap_or_default();
    is.same("locks", &execution.locks, &locks);
    is.same("graceful completion", execution.completing, model.completing);
    is.same("live threads", execution.live_threads as usize, model.threads());
    let guards = model.live().len() - model.threads();
    is.same("guards that wait", execution.waiting_guards as usize, guards);
    let timers: usize = model.live().into_iter().map(|seq| model.timers(seq).len()).sum();
    is.same("timers", execution.timers as usize, timers);
    is.same("next state", execution.next_state as usize, model.states.len() + 1);
    for state in &model.states {
        let last = model.states.iter().filter(|other| other.state_id == state.state_id).map(|other| other.number).max();
        is.same("last number of a state id", execution.state_numbers.get(&state.state_id).copied(), last);
    }
    is.same("next message", execution.next_message as usize, model.received.len() + 1);
    is.same("states", execution.states.keys().copied().collect(), model.seqs());
    for seq in model.seqs() {
        if let Some(state) = execution.states.get(&seq) {
            compare_state(is, model, seq, state);
        }
    }
    compare_order(is, model, execution);
    compare_queues(is, model, execution);
    for (key, value) in &execution.local_attributes {
        is.same("attribute", Some(value), model.attribute(key));
    }
    for (key, _) in &model.written {
        is.same("attribute", execution.local_attributes.get(key), model.attribute(key));
    }
    let results = execution.results.iter().map(|result| (result.state_execution_id.clone(), result.output.clone()));
    let expected = model.results.iter().map(|(seq, output)| (seq.map(|seq| model.id(seq)), output.clone()));
    is.same("results", results.collect::<Vec<_>>(), expected.collect());
    found.0
}

struct Differences(Vec<String>);

impl Differences {
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, is: T, should: T) {
        if is != should {
            self.0.push(format!("{what}: the engine has {is:?}, the model {should:?}"));
        }
    }

    /// Compares moments that may differ by rounding.
    fn close(&mut self, what: &str, is: Timestamp, should: Timestamp) {
        if is.since(should).abs() > 2 {
            self.same(what, is, should);
        }
    }
}

fn compare_state(is: &mut Differences, model: &Model, seq: StateSeq, state: &StateExecution) {
    let expected = model.state(seq).expect("it is one of the model's");
    let at = |what: &str| format!("{} {what}", expected.state_id);
    is.same(&at("seq"), state.seq, seq);
    is.same(&at("id"), &state.id, &model.id(seq));
    is.same(&at("input"), &state.input, &expected.input);
    is.same(&at("config"), &state.config, &expected.config);
    is.same(&at("recovery"), &state.recovery, &expected.recovery);
    is.same(&at("start"), state.started_at, expected.started_at);
    is.same(&at("end"), state.ended_at, expected.ended.map(|(_, at)| at));
    match (&state.phase, &expected.place, &expected.ended) {
        (Phase::Ended { status, last_failure, call }, place, Some((ended, _))) => {
            is.same(&at("status"), status, ended);
            // Attempts that were lost in a crash count too.
            let attempt = match place {
                Place::Call(_, call) => {
                    let failed = call.failures.last().map_or(0, |failure| failure.attempt);
                    Some(if *ended == StateStatus::Failed { failed } else { failed + 1 })
                }
                _ => None,
            };
            is.same(&at("attempt"), call.map(|call| call.attempt), attempt);
            if *ended == StateStatus::Failed
                && let Place::Call(_, call) = place
            {
                is.same(&at("last failure"), last_failure.as_ref(), call.failures.last());
            }
        }
        (Phase::WaitUntil(call), Place::Call(Api::WaitUntil, expected), None) => compare_call(is, call, expected),
        (Phase::Execute { call, results }, Place::Call(Api::Execute, there), None) => {
            compare_call(is, call, there);
            compare_wait(is, model, seq, results.as_ref(), expected.wait.as_ref());
        }
        (Phase::Waiting(wait), Place::ToBegin(at), None) => {
            is.same("begin of a wait", wait.begins_at, Some(*at));
            is.same("commands of a wait that has not begun", &wait.commands, &Vec::new());
        }
        (Phase::Waiting(wait), Place::Waiting, None) => {
            compare_wait(is, model, seq, Some(wait), expected.wait.as_ref())
        }
        (phase, place, ended) => is.0.push(format!("{}: {phase:?}, the model has {place:?} {ended:?}", at("place"))),
    }
}

fn compare_call(is: &mut Differences, call: &CallState, expected: &Call) {
    is.close("due time", call.not_before, expected.not_before);
    // Open: the count of failed attempts if an attempt's number does not follow the last one.
    let last = expected.failures.last();
    is.same("failed attempts", call.failed_attempts, last.map_or(0, |failure| failure.attempt));
    is.same("last failure", call.last_failure.as_ref(), expected.unregistered.as_deref().or(last));
    is.same("repeats", call.repeats, expected.repeats);
    let refused: Vec<_> =
        expected.failures.iter().filter_map(|last| last.failure.app_database_error.as_ref()).collect();
    is.same("refused write", call.app_database_error.as_ref(), refused.last().copied());
    is.same("incident", call.incident, expected.stands);
    is.same("resolved attempts", call.resolved_attempts, expected.counted_after());
    let others =
        expected.repeats - expected.same_requests + expected.applied + expected.merged + expected.resolved.len() as u32;
    is.same("generation", call.generation, refused.len() as u32 + others);
}

fn compare_wait(is: &mut Differences, model: &Model, seq: StateSeq, wait: Option<&Wait>, expected: Option<&Waiting>) {
    let (wait, expected) = match (wait, expected) {
        (Some(wait), Some(expected)) => (wait, expected),
        (None, None) => return,
        (wait, expected) => return is.0.push(format!("command results: {wait:?}, the model has {expected:?}")),
    };
    let state = model.state(seq).expect("it is one of the model's");
    is.same("guard", wait.guard, state.guard);
    is.same("what it guards", &wait.guards, &state.guards);
    is.same("begin of the wait", wait.since, expected.since);
    is.same("waiting type", wait.waiting_type, expected.request.waiting_type);
    is.same("combinations", &wait.combinations, &expected.request.combinations);
    is.same("number of commands", wait.commands.len(), expected.request.commands.len());
    for (at, (command, requested)) in wait.commands.iter().zip(&expected.request.commands).enumerate() {
        is.same("command id", &command.command_id, &requested.command_id);
        is.same("command status", command.status, expected.status[at]);
        let kind = match &requested.kind {
            RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_) => WaitKind::Timer {
                fire_at: expected.fire_at[at].expect("a timer has a time"),
                cron: matches!(requested.kind, RequestedKind::TimerCron(_)),
            },
            RequestedKind::LocalQueue { queue, at_least, at_most } => {
                WaitKind::LocalQueue { queue: queue.clone(), at_least: *at_least, at_most: *at_most }
            }
            RequestedKind::GlobalQueue { queue, key, at_least, at_most } => {
                let (queue, key) = (queue.clone(), key.clone());
                WaitKind::GlobalQueue { queue, key, at_least: *at_least, at_most: *at_most }
            }
        };
        is.same("command", &command.kind, &kind);
        let taken = model.taken(seq, at as u32).into_iter().map(|message| as_message(model, message));
        is.same("messages taken", &command.messages, &taken.collect());
        let globally = model.taken_globally.iter().filter(|(by, command, _)| (*by, *command) == (seq, at as u32));
        let globally: Vec<_> = globally.map(|(.., message)| message.clone()).collect();
        is.same("global messages taken", &command.global_messages, &globally);
    }
}

fn as_message(model: &Model, at: usize) -> Message {
    let Received { queue, message_id, payload, .. } = model.received[at].clone();
    Message { number: at as u64 + 1, queue, message_id, payload }
}

fn compare_order(is: &mut Differences, model: &Model, execution: &Execution) {
    let mut order: Vec<_> = execution
        .states
        .values()
        .filter_map(|state| match &state.phase {
            Phase::Waiting(wait) if wait.begins_at.is_none() => Some((wait.order, state.seq)),
            _ => None,
        })
        .collect();
    order.sort();
    let mut expected: Vec<_> =
        model.seqs().into_iter().filter_map(|seq| Some((model.waiting(seq)?.turn, seq))).collect();
    expected.sort();
    let seqs = |order: Vec<(u64, StateSeq)>| order.into_iter().map(|(_, seq)| seq).collect::<Vec<_>>();
    is.same("order of waiting", seqs(order), seqs(expected));
}

fn compare_queues(is: &mut Differences, model: &Model, execution: &Execution) {
    let mut names: Vec<&String> = execution.queues.keys().collect();
    names.extend(model.received.iter().map(|message| &message.queue));
    for name in names {
        let there: Vec<Message> =
            execution.queues.get(name).into_iter().flatten().map(|message| Message::clone(message)).collect();
        let expected = match model.closed {
            None => model.in_queue(name).into_iter().map(|at| as_message(model, at)).collect(),
            Some(_) => Vec::new(),
        };
        is.same("queue", there, expected);
    }
    let open = model.received.iter().filter(|message| message.taken.is_none() && model.closed.is_none());
    let bytes = open.clone().map(|message| message.payload.as_ref().map_or(0, |payload| payload.as_str().len() as u64));
    let expected = QueuedTotal { messages: open.clone().count() as u32, bytes: bytes.sum() };
    is.same("queued messages", execution.queued, expected);
    let mut expected: Vec<_> = model
        .received
        .iter()
        .filter_map(|message| Some((message.queue.clone(), message.message_id.clone()?)))
        .collect();
    expected.sort();
    is.same("message ids", execution.message_ids.iter().cloned().collect(), expected);
}

impl Model {
    /// Adopts the rounded moments of the execution, so that later comparisons with them agree.
    pub fn round_as(&mut self, execution: &Execution) {
        for (seq, state) in self.seqs().into_iter().zip(&mut self.states) {
            if let Place::Call(api, call) = &mut state.place
                && let Some(rounded) = execution.states.get(&seq).and_then(|state| state.call(*api))
            {
                call.not_before = rounded.not_before;
            }
        }
    }
}
