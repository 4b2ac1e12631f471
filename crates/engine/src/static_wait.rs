//! Static waits: the options of a state say what it waits for, so that no handler is asked. Checks the option, and
//! begins such waits.

use crate::decide::{Cause, Draft};
use crate::*;

impl Definition {
    /// Whether a step has no `waitUntil`, by its own options or else by the registered ones.
    pub(crate) fn skips_wait_until(&self, state_id: &str, own: Option<&StateConfig>) -> bool {
        let of = |options: Option<&StateConfig>| options.and_then(|options| options.skip_wait_until);
        of(own).or(of(self.states.get(state_id))).unwrap_or(false)
    }

    /// What a step waits for without asking a handler.
    pub fn static_wait<'a>(&'a self, state_id: &str, own: Option<&'a StateConfig>) -> Option<&'a CommandRequest> {
        let registered = self.states.get(state_id);
        if self.skips_wait_until(state_id, own) {
            return None;
        }
        let request = own.and_then(|own| own.command_request.as_ref());
        request.or(registered.and_then(|registered| registered.command_request.as_ref())).map(AsRef::as_ref)
    }

    /// Checks that the options of a step, its own over the registered ones, say in one way only what the step waits
    /// for, with no more commands than allowed. So do the options of the state to proceed to.
    pub fn check_static_wait(&self, state_id: &str, own: Option<&StateConfig>) -> Result<(), UnknownName> {
        let options = self.options_of(state_id, own);
        let fault = |what| Err(UnknownName { at: "commandRequest".to_owned(), what });
        let commands = options.command_request.as_ref().map(|request| request.commands.len());
        match (commands, options.skip_wait_until, &options.wait_until_function) {
            (Some(_), Some(true), _) => return fault("can't be given together with skipWaitUntil".to_owned()),
            (Some(_), _, Some(_)) => return fault("can't be given together with waitUntilFunction".to_owned()),
            (Some(many), ..) if many > MOST_COMMANDS => {
                return fault(format!("has {many} commands; the limit is {MOST_COMMANDS}"));
            }
            _ => {}
        }
        // Not the recovery of the merged options: that of a state which proceeds to itself has no end.
        let given = own.or_else(|| self.states.get(state_id));
        let recovery = given.and_then(|options| options.state_failure_recovery_options.as_ref());
        let to = recovery.and_then(|recovery| {
            Some((
                recovery.state_failure_proceed_state_id.as_ref()?,
                recovery.state_failure_proceed_state_config.as_ref()?,
            ))
        });
        to.map_or(Ok(()), |(state_id, options)| self.check_static_wait(state_id, Some(options)))
            .map_err(|wrong| wrong.under("stateFailureRecoveryOptions.stateFailureProceedStateConfig"))
    }

    /// Checks that each cron timer of its static waits has a next tick. The error says where, and what is wrong.
    pub fn check_ticks(&self, next_tick: NextTick, now: Timestamp) -> Result<(), String> {
        self.states.iter().try_for_each(|(state_id, options)| {
            let checked = options.check_ticks(next_tick, now).map_err(|wrong| wrong.under(state_id).under("states"));
            checked.map_err(|UnknownName { at, what }| format!("{at} {what}"))
        })
    }

    /// Checks the queues of a static wait.
    pub(crate) fn check_queues(&self, options: &StateConfig) -> Result<(), UnknownName> {
        let Some(request) = &options.command_request else { return Ok(()) };
        let fault = |what| Err(UnknownName { at: "commandRequest".to_owned(), what });
        for command in &request.commands {
            match &command.kind {
                RequestedKind::LocalQueue { queue, .. } if !self.knows_queue(queue) => {
                    return fault(format!("names the unknown local queue {queue:?}"));
                }
                RequestedKind::GlobalQueue { queue, .. } if !self.knows_global_queue(queue) => {
                    return fault(format!("names the unknown global queue {queue:?}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl StateConfig {
    /// Checks that each cron timer of a static wait has a next tick.
    pub fn check_ticks(&self, next_tick: NextTick, now: Timestamp) -> Result<(), UnknownName> {
        let commands = self.command_request.iter().flat_map(|request| &request.commands);
        // Timers are the first commands.
        commands.enumerate().try_for_each(|(n, command)| match &command.kind {
            RequestedKind::TimerCron(cron) => next_tick(cron, now)
                .map(drop)
                .map_err(|wrong| wrong.under(&format!("commandRequest.timerCommands[{n}]"))),
            _ => Ok(()),
        })?;
        let recovery = self.state_failure_recovery_options.as_ref();
        match recovery.and_then(|recovery| recovery.state_failure_proceed_state_config.as_ref()) {
            Some(options) => options
                .check_ticks(next_tick, now)
                .map_err(|wrong| wrong.under("stateFailureRecoveryOptions.stateFailureProceedStateConfig")),
            None => Ok(()),
        }
    }
}

impl Draft<'_> {
    /// Begins the static wait of a step. Its cron timers were checked with the options. A time zone that the server has
    /// lost since then counts as UTC.
    pub(crate) fn begin_static_wait(&mut self, seq: StateSeq, request: &CommandRequest, from: Timestamp) {
        let commands = self.begin_commands(request, from).or_else(|_| self.begin_commands(&request.in_utc(), from));
        self.begin_wait(seq, request, commands.unwrap_or_default(), &[]);
    }

    /// The time has come at which the static wait of a step begins.
    pub(crate) fn static_wait_begins(&mut self, seq: StateSeq) -> Result<(), Rejection> {
        let now = self.context.now;
        let state = self.execution.states.get(&seq).filter(|state| state.begins_at().is_some_and(|at| at <= now));
        let Some(state) = state.cloned() else { return Err(Rejection::Stale) };
        if let Some(request) = self.context.definition.static_wait(&state.id.state_id, state.config.as_deref()) {
            self.begin_static_wait(seq, request, now);
            return Ok(());
        }
        // The type was registered again meanwhile. The state starts as it is registered now.
        self.abort(&[seq], Some("the state has no static wait any more"));
        let (state_id, input, config) = (state.id.state_id.clone(), state.input.clone(), state.config.clone());
        let cause = state.recovery.clone().map_or(Cause::Movement, Cause::Recovery);
        self.start_state(&StateMovement { state_id, input, config, begin: Begin::AtOnce }, cause);
        Ok(())
    }
}
