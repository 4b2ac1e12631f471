//! Why the engine of this database does not run, for `xdb.status()`.

use crate::guc;
use crate::pg::catch::Result;
use crate::pg::process;
use crate::pg::shmem::{self, EngineState, Role, SCHEDULERS, Slot, SlotStatus};
use crate::pg::spi::Spi;
use crate::store::engine;

/// Why the engine is in the state in which it is, unless it runs. What is in the tables of a copy, or of another version, says its
/// reason itself.
pub fn reason(spi: &Spi, slot: &SlotStatus) -> Result<Option<String>> {
    let why = match slot.state {
        EngineState::Running | EngineState::Unused | EngineState::Copy | EngineState::OtherSchema => return Ok(None),
        EngineState::Paused => "xdb.pause() was called: nothing is begun before xdb.resume()".to_owned(),
        EngineState::Stopped => stopped(spi)?,
        EngineState::Starting => match error_of_now(slot) {
            Some(error) => error.to_owned(),
            None => "an engine process is being started; while somebody has locked the extension it waits".to_owned(),
        },
        EngineState::BackingOff => match error_of_now(slot) {
            Some(error) => error.to_owned(),
            None => "the last engine process has ended without a word, and is started again: the server's log has more"
                .to_owned(),
        },
    };
    Ok(Some(why))
}

/// The last error, if it is one of the last process that was started.
fn error_of_now(slot: &SlotStatus) -> Option<&str> {
    slot.last_error.as_deref().filter(|_| slot.last_error_at >= slot.started_at)
}

/// Why there is no process, and none is asked for: what the launcher looks at, in its order.
fn stopped(spi: &Spi) -> Result<String> {
    if process::is_in_recovery() {
        return Ok("this server is a standby: the engine starts when it is promoted".to_owned());
    }
    if !guc::ENABLED.get() {
        return Ok("xdb.enabled is off".to_owned());
    }
    let list = guc::text(&guc::DATABASES);
    match guc::listed_databases(&list) {
        None => return Ok(format!("xdb.databases can't be read: {list}")),
        Some(names) if !names.is_empty() && !names.contains(&*process::database_name()) => {
            return Ok("xdb.databases does not name this database".to_owned());
        }
        Some(_) => {}
    }
    let (is_template, is_closed) = engine::is_template_or_closed(spi)?;
    if is_template {
        return Ok("this database is a template: no engine runs in one".to_owned());
    }
    if is_closed {
        return Ok("this database allows no connections: ALTER DATABASE ... ALLOW_CONNECTIONS true".to_owned());
    }
    if shmem::held_until(process::database()).is_some() {
        return Ok("a statement is under way that needs the database without connections".to_owned());
    }
    if !shmem::has_launcher() {
        return Ok("the launcher of XDB does not run at the moment: the server starts it again".to_owned());
    }
    if Slot::all().filter(|slot| slot.role() == Role::Scheduler).count() >= SCHEDULERS {
        return Ok(format!("the engines of {SCHEDULERS} other databases run, and a server can have no more"));
    }
    Ok("no engine process was started yet: the launcher looks for what is missing every 5 seconds".to_owned())
}
