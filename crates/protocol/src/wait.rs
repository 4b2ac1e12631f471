//! Reads what a state asks to wait for, in an answer to `waitUntil` or in its options.

use crate::cron::check_cron;
use crate::fields::{Fault, Object, Parsed, UnknownKeys, list, moment, name, quote, seconds, whole};
use std::collections::{BTreeMap, BTreeSet};
use xdb_engine::{CommandRequest, Cron, Duration, RequestedCommand, RequestedKind, WaitingType};

const COMMAND_REQUEST: &[&str] =
    &["waitingType", "timerCommands", "localQueueCommands", "globalQueueCommands", "combinations"];
const GLOBAL_QUEUE_COMMAND: &[&str] = &["commandId", "queueName", "key", "count", "atLeast", "atMost"];

/// Reads what a state waits for.
pub(crate) fn command_request(text: &str, unknown: UnknownKeys<'_>) -> Parsed<CommandRequest> {
    let mut object = Object::read(text, unknown)?.knowing(COMMAND_REQUEST);
    let waiting_type = object.required_word("waitingType", WaitingType::WORDS, WaitingType::parse)?;
    let mut commands = object.list_of("timerCommands", |text| timer_command(text, unknown))?;
    commands.extend(object.list_of("localQueueCommands", |text| local_queue_command(text, unknown))?);
    commands.extend(object.list_of("globalQueueCommands", |text| global_queue_command(text, unknown))?);
    let mut combinations = Vec::new();
    match waiting_type {
        WaitingType::Empty if !commands.is_empty() => {
            return Err(Fault::new("EmptyCommand waits for nothing, but commands are given").at("waitingType"));
        }
        WaitingType::Empty => {}
        _ if commands.is_empty() => {
            return Err(Fault::new(format!("{waiting_type} needs at least one command")).at("waitingType"));
        }
        WaitingType::All | WaitingType::Any => {}
        WaitingType::AnyCombination => {
            let positions = positions_by_id(&commands)?;
            combinations = object.list_of("combinations", |text| combination(text, &positions))?;
            if combinations.is_empty() {
                return Err(Fault::new("is empty: AnyOfCombination needs at least one").at("combinations"));
            }
        }
    }
    object.finish(CommandRequest { waiting_type, commands, combinations })
}

fn positions_by_id(commands: &[RequestedCommand]) -> Parsed<BTreeMap<&str, u32>> {
    let mut positions = BTreeMap::new();
    for (position, command) in (0u32..).zip(commands) {
        let Some(id) = &command.command_id else {
            return Err(Fault::new("has a command without commandId: AnyOfCombination needs them all"));
        };
        if positions.insert(id.as_str(), position).is_some() {
            return Err(Fault::new(format!(
                "has the commandId {} twice: AnyOfCombination needs unique ones",
                quote(id)
            )));
        }
    }
    Ok(positions)
}

fn combination(text: &str, positions: &BTreeMap<&str, u32>) -> Parsed<Vec<u32>> {
    let ids = list(text, |text| {
        let id = name(text)?;
        match positions.get(id.as_str()) {
            Some(position) => Ok(*position),
            None => Err(Fault::new(format!("names the unknown commandId {}", quote(&id)))),
        }
    })?;
    if ids.is_empty() {
        return Err(Fault::new("is empty: a combination needs at least one commandId"));
    }
    let unique: BTreeSet<u32> = ids.iter().copied().collect();
    Ok(unique.into_iter().collect())
}

fn timer_command(text: &str, unknown: UnknownKeys<'_>) -> Parsed<RequestedCommand> {
    let known = &["commandId", "delayInSeconds", "fireAt", "cron", "timezone"];
    let mut object = Object::read(text, unknown)?.knowing(known);
    let command_id = object.optional("commandId", name)?;
    let delay = object.optional("delayInSeconds", seconds)?;
    let fire_at = object.optional("fireAt", moment)?;
    let expression = object.optional("cron", name)?;
    let timezone = object.optional("timezone", name)?;
    let kind = match (delay, fire_at, expression) {
        (None, None, Some(expression)) => {
            check_cron(&expression).map_err(|what| Fault::new(what).at("cron"))?;
            RequestedKind::TimerCron(Cron { expression, timezone })
        }
        _ if timezone.is_some() => return Err(Fault::new("belongs to a cron").at("timezone")),
        (Some(delay), None, None) => RequestedKind::TimerAfter(Duration::from_seconds(delay)),
        (None, Some(at), None) => RequestedKind::TimerAt(at),
        (None, None, None) => return Err(Fault::new("has neither delayInSeconds nor fireAt nor cron")),
        (Some(_), Some(_), None) => return Err(Fault::new("has both delayInSeconds and fireAt")),
        (Some(_), _, Some(_)) => return Err(Fault::new("has both delayInSeconds and cron")),
        (None, Some(_), Some(_)) => return Err(Fault::new("has both fireAt and cron")),
    };
    object.finish(RequestedCommand { command_id, kind })
}

fn local_queue_command(text: &str, unknown: UnknownKeys<'_>) -> Parsed<RequestedCommand> {
    let mut object = Object::read(text, unknown)?.knowing(&["commandId", "queueName", "count", "atLeast", "atMost"]);
    let command_id = object.optional("commandId", name)?;
    let queue = object.required("queueName", name)?;
    let (at_least, at_most) = bounds(&mut object)?;
    object.finish(RequestedCommand { command_id, kind: RequestedKind::LocalQueue { queue, at_least, at_most } })
}

fn global_queue_command(text: &str, unknown: UnknownKeys<'_>) -> Parsed<RequestedCommand> {
    let mut object = Object::read(text, unknown)?.knowing(GLOBAL_QUEUE_COMMAND);
    let command_id = object.optional("commandId", name)?;
    let queue = object.required("queueName", name)?;
    let key = object.optional("key", name)?;
    let (at_least, at_most) = bounds(&mut object)?;
    object.finish(RequestedCommand { command_id, kind: RequestedKind::GlobalQueue { queue, key, at_least, at_most } })
}

/// The minimum and maximum of messages that a queue command takes.
fn bounds(object: &mut Object<'_>) -> Parsed<(u32, u32)> {
    let at_least_one = |text: &str| match whole(text)? {
        0 => Err(Fault::new("must be at least 1")),
        count => Ok(count),
    };
    let count = object.optional("count", at_least_one)?;
    let at_least = object.optional("atLeast", at_least_one)?;
    let at_most = object.optional("atMost", at_least_one)?;
    let (at_least, at_most) = match (count, at_least, at_most) {
        (Some(count), None, None) => (count, count),
        (Some(_), _, _) => return Err(Fault::new("has count together with atLeast or atMost")),
        (None, least, most) => (least.or(most).unwrap_or(1), most.or(least).unwrap_or(1)),
    };
    if at_most < at_least {
        return Err(Fault::new(format!("is less than atLeast: {at_most} < {at_least}")).at("atMost"));
    }
    Ok((at_least, at_most))
}
