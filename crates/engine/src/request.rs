//! What a state asks to wait for: by its answer to `waitUntil`, or by its options. Also the stored form of that.

use crate::{Duration, Timestamp, WaitingType};
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

    /// The same request with all cron timers in UTC.
    pub(crate) fn in_utc(&self) -> Self {
        let mut request = self.clone();
        for command in &mut request.commands {
            if let RequestedKind::TimerCron(cron) = &mut command.kind {
                cron.timezone = None;
            }
        }
        request
    }
}

/// What a state waits for. Commands are in the order of the request: timers, local queues, global queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredRequest", into = "StoredRequest")]
pub struct CommandRequest {
    pub waiting_type: WaitingType,
    /// In the order of the request: timers, local queues, global queues.
    pub commands: Vec<RequestedCommand>,
    /// Positions in `commands`, for `AnyCombination`.
    pub combinations: Vec<Vec<u32>>,
}

/// One command of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedCommand {
    /// The command's name in combinations and results.
    pub command_id: Option<String>,
    pub kind: RequestedKind,
}

impl RequestedCommand {
    /// Whether the command waits for a time.
    pub fn is_timer(&self) -> bool {
        matches!(self.kind, RequestedKind::TimerAfter(_) | RequestedKind::TimerAt(_) | RequestedKind::TimerCron(_))
    }
}

/// A cron expression and its time zone, as an answer or an option gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    pub expression: String,
    /// None: UTC.
    pub timezone: Option<String>,
}

/// What a command waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestedKind {
    /// A time, counted from the answer.
    TimerAfter(Duration),
    TimerAt(Timestamp),
    /// The first tick after the begin of the wait.
    TimerCron(Cron),
    LocalQueue {
        queue: String,
        at_least: u32,
        at_most: u32,
    },
    /// Without a key, the command takes messages with any key and without one.
    GlobalQueue {
        queue: String,
        /// Only messages with this key. None: all messages.
        key: Option<String>,
        at_least: u32,
        at_most: u32,
    },
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
    /// In place of `at_least` and `at_most`, if both are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_least: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_most: Option<u32>,
}

impl StoredQueue {
    fn of(command_id: Option<String>, queue_name: String, key: Option<String>, (least, most): (u32, u32)) -> Self {
        let (count, range) = if least == most { (Some(least), None) } else { (None, Some((least, most))) };
        let (at_least, at_most) = (range.map(|(least, _)| least), range.map(|(_, most)| most));
        Self { command_id, queue_name, key, count, at_least, at_most }
    }

    fn bounds(&self) -> (u32, u32) {
        let of = |bound: Option<u32>| bound.or(self.count).unwrap_or(1);
        (of(self.at_least), of(self.at_most))
    }
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
                    let command = StoredQueue::of(command_id, queue_name, None, (at_least, at_most));
                    stored.local_queue_commands.push(command);
                }
                RequestedKind::GlobalQueue { queue: queue_name, key, at_least, at_most } => {
                    stored.global_queue_commands.push(StoredQueue::of(
                        command_id,
                        queue_name,
                        key,
                        (at_least, at_most),
                    ));
                }
            }
        }
        stored
    }
}

impl TryFrom<StoredRequest> for CommandRequest {
    type Error = String;
    fn try_from(stored: StoredRequest) -> Result<Self, String> {
        let timer = |StoredTimer { command_id, delay_in_seconds, fire_at, cron, timezone }: StoredTimer| {
            let kind = match (delay_in_seconds, fire_at, cron) {
                // Rounded: seconds were made from whole microseconds.
                (Some(seconds), ..) => RequestedKind::TimerAfter(Duration((seconds * 1e6).round() as i64)),
                (_, Some(at), _) => RequestedKind::TimerAt(Timestamp::of_iso8601(&at).ok_or("fireAt is not a time")?),
                (_, _, Some(expression)) => RequestedKind::TimerCron(Cron { expression, timezone }),
                (None, None, None) => return Err("a timer command has no time".to_owned()),
            };
            Ok(RequestedCommand { command_id, kind })
        };
        let local = |command: StoredQueue| {
            let ((at_least, at_most), StoredQueue { command_id, queue_name: queue, .. }) = (command.bounds(), command);
            RequestedCommand { command_id, kind: RequestedKind::LocalQueue { queue, at_least, at_most } }
        };
        let global = |command: StoredQueue| {
            let ((at_least, at_most), StoredQueue { command_id, queue_name: queue, key, .. }) =
                (command.bounds(), command);
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
