//! `xdb.schedule`: starts a process that waits for the ticks of a cron expression, and starts another one at each.
//!
//! Limitations: the handlers of that process are functions in `sql/always/functions.sql`.

use super::arguments::{json, name, needed};
use super::bulk::element_of;
use super::caller::owner_name;
use super::start::{SCHEDULE, TypeToStart, decide_start, keys, read, start, starter};
use crate::pg::catch::{PgError, Result};
use crate::pg::function::{Args, Value};
use crate::pg::timezone;
use crate::store::loaded::new_id;
use crate::{clock, error};
use xdb_engine::{Cron, Definition, IdReusePolicy, Json, UnknownName};
use xdb_protocol::{GivenStart, object, parse_definition};

/// The definition of [`SCHEDULE`]. Handlers run with the rights of the role that has called `xdb.schedule()`, so nothing
/// but the history, the retention and the priority may differ.
const DEFINITION: &str = r#"{"startingState": "Tick", "states": {"Tick": {"waitUntilFunction": "xdb.schedule_wait", "executeFunction": "xdb.schedule_tick"}}, "history": {"keepLast": 100}}"#;

/// Whether processes with this definition are schedules. Once it is registered, no other definition may take its place.
pub fn is_of_schedules(definition: &Definition) -> bool {
    let (history, retention_seconds, priority) =
        (definition.history, definition.retention_seconds, definition.priority);
    let own = parse_definition(DEFINITION).map(|own| Definition { history, retention_seconds, priority, ..own });
    own.as_ref() == Ok(definition)
}

/// `xdb.schedule()`: replaces the schedule of this name. Returns the id of the execution.
pub fn schedule(args: &Args) -> Result<Value> {
    let caller = starter(c"xdb.schedule()")?;
    let cron = Cron { expression: name("cron", args.text(1))?, timezone: Some(name("timezone", args.text(3))?) };
    timezone::next_tick(&cron, clock::now())
        .map_err(|UnknownName { at, what }| error::invalid_argument(&at, format_args!("it {what}")))?;
    let started = Json::from_trusted(needed("start", json(args, 2, "start")?)?);
    let id = new_id();
    let request = read("start.", element_of("start", &started)?, id)?;
    let owner_name = owner_name(caller)?;
    let process_id = name("name", args.text(0))?;
    caller.on_system_tables(|spi, registry| {
        let to_start = TypeToStart::find(spi, registry, &request.start.process_type)?;
        // What the type does not accept is refused now, and not at each tick.
        let keys = keys(&to_start.mapping, &request).map_err(in_start)?;
        decide_start(caller, owner_name, &to_start, keys, &request, id, clock::now()).map_err(in_start)?;
        let of_schedules = TypeToStart::find(spi, registry, SCHEDULE).map_err(unregistered)?;
        match is_of_schedules(of_schedules.definition()) {
            true => Ok(()),
            false => Err(unregistered(error::not_of_schedules(SCHEDULE))),
        }
    })?;
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let (expression, zone) = (quoted(&cron.expression), quoted(cron.timezone.as_deref().unwrap_or_default()));
    let input = [("cron", expression.as_str()), ("timezone", &zone), ("start", started.as_str())];
    let given = GivenStart {
        process_id: Some(process_id),
        process_type: Some(SCHEDULE.to_owned()),
        input: Some(object(input.iter().copied())),
        id_reuse_policy: Some(IdReusePolicy::TerminateIfRunning.to_string()),
        ..GivenStart::default()
    };
    start(caller, given)
}

fn in_start(mut error: PgError) -> PgError {
    error.detail.get_or_insert_with(|| "It is in start.".to_owned());
    error
}

fn unregistered(mut error: PgError) -> PgError {
    error.hint = Some(format!(
        "A deployer registers it once: SELECT xdb.register_process_type('{SCHEDULE}', NULL, '{DEFINITION}');"
    ));
    error
}
