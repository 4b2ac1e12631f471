//! Static waits: the options of a state say what it waits for, so that no handler is asked. Checks the option, begins
//! such waits, and has the stored form of the option.

use crate::decide::Draft;
use crate::*;
use serde::{Deserialize, Serialize};

/// The most commands of a wait.
pub const MOST_COMMANDS: usize = 1000;

impl CommandRequest {
    /// How many of its commands are timers.
    pub(crate) fn timers(&self) -> usize {
        self.commands.iter().filter(|command| command.is_timer()).count()
    }

    /// The most timers of a step that has this static wait: one begins the wait, if it begins later.
    pub(crate) fn most_timers(&self) -> usize {
        self.timers().max(1)
    }

    fn in_utc(&self) -> Self {
        let mut request = self.clone();
        for command in &mut request.commands {
            if let RequestedKind::TimerCron(cron) = &mut command.kind {
                cron.timezone = None;
            }
        }
        request
    }
}

impl Definition {
    /// What a step waits for without asking a handler.
    pub fn static_wait<'a>(&'a self, state_id: &str, own: Option<&'a StateConfig>) -> Option<&'a CommandRequest> {
        let registered = self.states.get(state_id);
        let of = |options: Option<&StateConfig>| options.and_then(|options| options.skip_wait_until);
        if of(own).or(of(registered)).unwrap_or(false) {
            return None;
        }
        let request = own.and_then(|own| own.command_request.as_ref());
        request.or(registered.and_then(|registered| registered.command_request.as_ref())).map(AsRef::as_ref)
    }

    /// Checks that the options of a step, its own over the registered ones, say in one way only what the step waits
    /// for.
    pub fn check_static_wait(&self, state_id: &str, own: Option<&StateConfig>) -> Result<(), UnknownName> {
        let options = self.options_of(state_id, own);
        let other = match (&options.command_request, options.skip_wait_until, &options.wait_until_function) {
            (Some(_), Some(true), _) => "skipWaitUntil",
            (Some(_), _, Some(_)) => "waitUntilFunction",
            _ => return Ok(()),
        };
        let at = "commandRequest".to_owned();
        Err(UnknownName { at, what: format!("can't be given together with {other}") })
    }

    /// Checks that each cron timer of its static waits has a next tick. The error says where, and what is wrong.
    pub fn check_ticks(&self, next_tick: NextTick, now: Timestamp) -> Result<(), String> {
        self.states.iter().try_for_each(|(state_id, options)| {
            let checked = options.check_ticks(next_tick, now);
            checked.map_err(|UnknownName { at, what }| format!("states.{state_id}.{at} {what}"))
        })
    }

    /// Checks the queues of a static wait, and the number of its commands.
    pub(crate) fn check_queues(&self, options: &StateConfig) -> Result<(), UnknownName> {
        let Some(request) = &options.command_request else { return Ok(()) };
        let fault = |what| Err(UnknownName { at: "commandRequest".to_owned(), what });
        let commands = request.commands.len();
        if commands > MOST_COMMANDS {
            return fault(format!("has {commands} commands; the limit is {MOST_COMMANDS}"));
        }
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
        let crons = commands.filter_map(|command| match &command.kind {
            RequestedKind::TimerCron(cron) => Some(cron),
            _ => None,
        });
        let within = |UnknownName { at, what }| UnknownName { at: format!("commandRequest.timerCommands.{at}"), what };
        let checked: Result<(), _> = crons.map(|cron| next_tick(cron, now).map(drop).map_err(within)).collect();
        let recovery = self.state_failure_recovery_options.as_ref();
        let next = recovery.and_then(|recovery| recovery.state_failure_proceed_state_config.as_ref());
        checked.and_then(|()| next.map_or(Ok(()), |options| options.check_ticks(next_tick, now)))
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
        self.start_state(&StateMovement { state_id, input, config, begin: Begin::AtOnce }, state.recovery.clone());
        Ok(())
    }
}

/// The stored form of a request: the form of an answer to `waitUntil`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredRequest {
    waiting_type: WaitingType,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    timer_commands: Vec<StoredTimer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    local_queue_commands: Vec<StoredQueue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    global_queue_commands: Vec<StoredQueue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    combinations: Vec<Vec<String>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredTimer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_in_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fire_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredQueue {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command_id: Option<String>,
    queue_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    at_least: u32,
    at_most: u32,
}

impl From<CommandRequest> for StoredRequest {
    fn from(request: CommandRequest) -> Self {
        let CommandRequest { waiting_type, commands, combinations } = request;
        let id = |position: &u32| commands.get(*position as usize).and_then(|command| command.command_id.clone());
        let names = |positions: Vec<u32>| positions.iter().map(|position| id(position).unwrap_or_default()).collect();
        let combinations = combinations.into_iter().map(names).collect();
        let mut stored = Self {
            waiting_type,
            timer_commands: Vec::new(),
            local_queue_commands: Vec::new(),
            global_queue_commands: Vec::new(),
            combinations,
        };
        for RequestedCommand { command_id, kind } in commands {
            match kind {
                RequestedKind::TimerAfter(delay) => {
                    let delay_in_seconds = Some(delay.0 as f64 / 1e6);
                    stored.timer_commands.push(StoredTimer { command_id, delay_in_seconds, ..StoredTimer::default() });
                }
                RequestedKind::TimerAt(at) => {
                    let fire_at = Some(at.iso8601());
                    stored.timer_commands.push(StoredTimer { command_id, fire_at, ..StoredTimer::default() });
                }
                RequestedKind::TimerCron(Cron { expression, timezone }) => {
                    let cron = Some(expression);
                    stored.timer_commands.push(StoredTimer { command_id, cron, timezone, ..StoredTimer::default() });
                }
                RequestedKind::LocalQueue { queue: queue_name, at_least, at_most } => {
                    let command = StoredQueue { command_id, queue_name, key: None, at_least, at_most };
                    stored.local_queue_commands.push(command);
                }
                RequestedKind::GlobalQueue { queue: queue_name, key, at_least, at_most } => {
                    stored.global_queue_commands.push(StoredQueue { command_id, queue_name, key, at_least, at_most });
                }
            }
        }
        stored
    }
}

impl TryFrom<StoredRequest> for CommandRequest {
    type Error = String;
    fn try_from(stored: StoredRequest) -> Result<Self, String> {
        let timer = |timer: StoredTimer| {
            let StoredTimer { command_id, delay_in_seconds, fire_at, cron, timezone } = timer;
            let kind = match (delay_in_seconds, fire_at, cron) {
                // Rounded: seconds were made from whole microseconds.
                (Some(seconds), ..) => RequestedKind::TimerAfter(Duration((seconds * 1e6).round() as i64)),
                (_, Some(at), _) => RequestedKind::TimerAt(Timestamp::of_iso8601(&at).ok_or("fireAt is not a time")?),
                (_, _, Some(expression)) => RequestedKind::TimerCron(Cron { expression, timezone }),
                (None, None, None) => return Err("a timer command has no time".to_owned()),
            };
            Ok(RequestedCommand { command_id, kind })
        };
        let local = |StoredQueue { command_id, queue_name: queue, at_least, at_most, .. }: StoredQueue| {
            RequestedCommand { command_id, kind: RequestedKind::LocalQueue { queue, at_least, at_most } }
        };
        let global = |StoredQueue { command_id, queue_name: queue, key, at_least, at_most }: StoredQueue| {
            RequestedCommand { command_id, kind: RequestedKind::GlobalQueue { queue, key, at_least, at_most } }
        };
        let mut commands = stored.timer_commands.into_iter().map(timer).collect::<Result<Vec<_>, String>>()?;
        commands.extend(stored.local_queue_commands.into_iter().map(local));
        commands.extend(stored.global_queue_commands.into_iter().map(global));
        let position = |id: String| {
            let found = commands.iter().position(|command| command.command_id.as_ref() == Some(&id));
            found.map(|position| position as u32).ok_or_else(|| format!("a combination names the unknown {id:?}"))
        };
        // Consumed one by one, so that both forms are never in memory as a whole.
        let positions = |ids: Vec<String>| ids.into_iter().map(position).collect::<Result<Vec<_>, String>>();
        let combinations = stored.combinations.into_iter().map(positions).collect::<Result<Vec<_>, String>>()?;
        Ok(Self { waiting_type: stored.waiting_type, commands, combinations })
    }
}
