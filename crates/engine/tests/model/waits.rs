//! The waits of states in the model, and how their commands complete.

use super::ops::SECOND;
use super::*;

impl Model {
    pub(super) fn begin_wait(&mut self, seq: StateSeq, request: &CommandRequest, context: &Context<'_>) {
        self.begin_wait_from(seq, request, context.now, context);
    }

    /// The delays of the timers count from `from`.
    pub(super) fn begin_wait_from(
        &mut self,
        seq: StateSeq,
        request: &CommandRequest,
        from: Timestamp,
        context: &Context<'_>,
    ) {
        self.waits_begun += 1;
        let fire_at = request.commands.iter().map(|command| match &command.kind {
            RequestedKind::TimerAfter(delay) => Some(from + *delay),
            RequestedKind::TimerAt(at) => Some(*at),
            RequestedKind::TimerCron(cron) => every_third_second(cron, from).ok(),
            _ => None,
        });
        let wait = Waiting {
            turn: self.waits_begun,
            since: context.now,
            request: request.clone(),
            fire_at: fire_at.collect(),
            status: vec![CommandStatus::Waiting; request.commands.len()],
        };
        let state = self.state_mut(seq);
        state.place = Place::Waiting;
        state.wait = Some(wait);
        self.complete_due_timers(seq, context);
        for waiting in self.waiting_in_order() {
            let others = Context { global_messages: &[], ..*context };
            self.serve(waiting, if waiting == seq { context } else { &others });
        }
    }

    fn waiting_in_order(&self) -> Vec<StateSeq> {
        let mut waiting: Vec<StateSeq> = self.seqs().into_iter().filter(|seq| self.waiting(*seq).is_some()).collect();
        waiting.sort_by_key(|seq| self.waiting(*seq).map(|wait| wait.turn));
        waiting
    }

    pub(super) fn complete_due_timers(&mut self, seq: StateSeq, context: &Context<'_>) {
        for (command, _, fire_at) in self.timers(seq) {
            if fire_at <= context.now {
                self.mark(seq, command as usize, CommandStatus::Completed);
            }
        }
    }

    /// Serves all waiting states from local queues, longest waiting first.
    pub(super) fn serve_all(&mut self, context: &Context<'_>) {
        for seq in self.waiting_in_order() {
            self.serve(seq, &Context { global_messages: &[], ..*context });
        }
    }

    /// Completes all commands that can complete, in request order. Then the state goes on, if its wait is satisfied.
    pub(super) fn serve(&mut self, seq: StateSeq, context: &Context<'_>) {
        let wait = self.waiting(seq).expect("it waits").clone();
        for (at, command) in wait.request.commands.iter().enumerate() {
            if wait.status[at] != CommandStatus::Waiting {
                continue;
            }
            let number = at as u32;
            match &command.kind {
                // Open: when a due timer completes. It completes when the wait begins or ends, because all commands
                // that can complete then do. Otherwise it completes when it fires.
                RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_) => {}
                RequestedKind::LocalQueue { queue, at_least, at_most } => {
                    let there = self.in_queue(queue);
                    if there.len() >= *at_least as usize {
                        for message in there.into_iter().take(*at_most as usize) {
                            self.received[message].taken = Some((seq, number));
                        }
                        self.mark(seq, at, CommandStatus::Completed);
                    }
                }
                RequestedKind::GlobalQueue { queue, key, at_least, at_most } => {
                    let there: Vec<&GlobalMessage> = context
                        .global_messages
                        .iter()
                        .filter(|message| message.queue == *queue && (key.is_none() || message.key == *key))
                        .filter(|message| self.taken_globally.iter().all(|(.., taken)| taken.number != message.number))
                        .collect();
                    if there.len() >= *at_least as usize {
                        for message in there.into_iter().take(*at_most as usize) {
                            self.taken_globally.push((seq, number, message.clone()));
                        }
                        self.mark(seq, at, CommandStatus::Completed);
                    }
                }
            }
        }
        self.go_on_if_satisfied(seq, context);
    }

    pub(super) fn mark(&mut self, seq: StateSeq, command: usize, status: CommandStatus) {
        self.state_mut(seq).wait.as_mut().expect("it waits").status[command] = status;
    }

    pub(super) fn go_on_if_satisfied(&mut self, seq: StateSeq, context: &Context<'_>) {
        if self.waits_as_guard(seq) {
            // At the end of the command.
            return;
        }
        if self.is_satisfied(seq) {
            self.complete_due_timers(seq, context);
            self.state_mut(seq).place = Place::Call(Api::Execute, Call::new(context.now));
        }
    }

    pub(super) fn is_satisfied(&self, seq: StateSeq) -> bool {
        let wait = self.waiting(seq).expect("it waits");
        let done: Vec<bool> = wait.status.iter().map(|status| *status != CommandStatus::Waiting).collect();
        match wait.request.waiting_type {
            WaitingType::Empty => true,
            WaitingType::All => done.iter().all(|done| *done),
            WaitingType::Any => done.iter().any(|done| *done),
            WaitingType::AnyCombination => {
                wait.request.combinations.iter().any(|ids| ids.iter().all(|command| done[*command as usize]))
            }
        }
    }

    /// The messages that a command consumed from its local queue.
    pub fn taken(&self, seq: StateSeq, command: u32) -> Vec<usize> {
        (0..self.received.len()).filter(|at| self.received[*at].taken == Some((seq, command))).collect()
    }

    /// When a static wait begins that has not begun.
    pub fn begins_at(&self, seq: StateSeq) -> Option<Timestamp> {
        match self.state(seq) {
            Some(State { place: Place::ToBegin(at), ended: None, .. }) => Some(*at),
            _ => None,
        }
    }

    /// The open timers of a state: position, id, and when each fires. A wait that has not begun has one.
    pub fn timers(&self, seq: StateSeq) -> Vec<(u32, Option<String>, Timestamp)> {
        if let Some(at) = self.begins_at(seq) {
            return vec![(STATE_BEGINS, None, at)];
        }
        let Some(wait) = self.waiting(seq) else { return Vec::new() };
        (0..wait.status.len())
            .filter(|at| wait.status[*at] == CommandStatus::Waiting)
            .filter_map(|at| Some((at as u32, wait.request.commands[at].command_id.clone(), wait.fire_at[at]?)))
            .collect()
    }
}

/// Cron expressions in the tests: a tick each third second. Error: the timer has a time zone.
pub fn every_third_second(cron: &Cron, after: Timestamp) -> Result<Timestamp, UnknownName> {
    match &cron.timezone {
        None => Ok(Timestamp((after.0.div_euclid(3 * SECOND) + 1) * 3 * SECOND)),
        Some(name) => Err(UnknownName { at: "timezone".to_owned(), what: format!("is unknown: {name:?}") }),
    }
}
