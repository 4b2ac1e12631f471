//! Pauses processes and process types, and refuses requests to paused ones.
//!
//! Limitations: a start or a publish from before a pause may commit during the pause.

use super::arguments::name;
use super::caller::Caller;
use super::manage::Change;
use crate::pg::catch::Result;
use crate::pg::function::{Args, Value};
use crate::pg::spi::Spi;
use crate::store::execution::Lock;
use crate::store::pauses;
use crate::store::registry::{ProcessType, TypeId};
use crate::{clock, error};
use xdb_engine::{Command, Pause, Timestamp};
use xdb_protocol::arguments;

/// `xdb.pause_process()`: pauses a process, or changes its pause.
pub fn pause_process(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.pause_process()", Lock::Step)?;
    let process_id = name("process_id", args.text(0))?;
    let pause = Command::Pause(asked(args)?);
    change.one(&process_id, args.execution_id(4), |_, _, _, _| Ok((0, pause)))?;
    Ok(Value::Void)
}

/// `xdb.resume_process()`: ends the pause of a process.
pub fn resume_process(args: &Args) -> Result<Value> {
    let change = Change::by(c"xdb.resume_process()", Lock::Step)?;
    let process_id = name("process_id", args.text(0))?;
    change.one(&process_id, args.execution_id(1), |_, _, _, _| Ok((0, Command::Resume)))?;
    Ok(Value::Void)
}

/// `xdb.pause_process_type()`: pauses all processes of a type, or changes the pause.
pub fn pause_process_type(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.pause_process_type()")?;
    let process_type = name("process_type", args.text(0))?;
    let pause = asked(args)?;
    caller.on_system_tables(|spi, _| pauses::put(spi, to_pause(caller, spi, &process_type)?, Some(&pause)))?;
    Ok(Value::Void)
}

/// `xdb.resume_process_type()`: ends the pause of a type.
pub fn resume_process_type(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.resume_process_type()")?;
    let process_type = name("process_type", args.text(0))?;
    caller.on_system_tables(|spi, _| pauses::put(spi, to_pause(caller, spi, &process_type)?, None))?;
    Ok(Value::Void)
}

/// The pause given by the second to the fourth parameter.
fn asked(args: &Args) -> Result<Pause> {
    Ok(arguments::pause(args.text(1), args.time(2), args.text(3), clock::now())?)
}

/// The type, if the caller may pause it: an operator, or a member of its owner.
fn to_pause(caller: Caller, spi: &Spi, name: &str) -> Result<TypeId> {
    let Some((id, owner)) = pauses::type_to_pause(spi, name)? else {
        return Err(error::unknown_process_type(name));
    };
    caller.operate_type(name, owner)?;
    Ok(id)
}

/// An error for a request to a paused process or type, if the pause rejects requests.
pub(super) fn refuse(what: &str, pause: Option<&Pause>, now: Timestamp) -> Result<()> {
    match pause.filter(|pause| pause.rejects(now)) {
        Some(pause) => Err(error::paused(what, pause)),
        None => Ok(()),
    }
}

/// An error for a request to a paused type, if the pause rejects requests.
pub(super) fn refuse_type(process_type: &ProcessType, now: Timestamp) -> Result<()> {
    match &process_type.pause {
        None => Ok(()),
        pause => refuse(&format!("process type \"{}\"", process_type.name), pause.as_ref(), now),
    }
}
