//! Functions that read a process, or wait for the end of a process or state.
//!
//! Limitations: unless its statement is only the call, a wait keeps a snapshot. Until the wait ends, vacuum removes no
//! row that was deleted after the snapshot.

use super::arguments::{name, needed};
use super::caller::{Caller, knows_roles};
use super::engine_state;
use super::pull::{LONGEST_WAIT, length};
use crate::clock;
use crate::error;
use crate::pg::catch::Result;
use crate::pg::function::{Args, Value};
use crate::pg::identity;
use crate::pg::shmem::held_up;
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::pg::wake::waiter::{Registration, wait_for_any};
use crate::row;
use crate::store::app_tables::object;
use crate::store::{self, attribute, check, process};
use crate::turn::why_unfit;
use pgrx::pg_sys;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, ProcessStatus, StateStatus};

/// `xdb.describe_process()`: everything about a process, as JSON.
pub fn describe_process(args: &Args) -> Result<Value> {
    let caller = Caller::asking()?;
    let process_id = name("process_id", args.text(0))?;
    let execution = args.execution_id(1);
    let text = caller.on_system_tables(|spi, _| {
        let found = caller.find(spi, &process_id, execution)?;
        let held_up = held_up::of(found.id.0);
        // In a copy from another server, no owner is known.
        let owner = if knows_roles()? { process::running_owner(spi, found.id)? } else { None };
        let unfit = owner.map_or(Ok(None), |(role, name)| why_unfit(role, &name))?;
        let problem = unfit.map(|unfit| unfit.why);
        // Only operators get here before the roles are known.
        let reader = Some(caller.role).filter(|role| !identity::is_administrator(*role));
        let now = clock::now();
        let not_called = engine_state::not_called(spi, found.id, now)?;
        identity::with_value_formats(|| process::describe(spi, found.id, problem, &held_up, &not_called, reader, now))?
            .ok_or_else(|| error::unknown_process(&process_id))
    })?;
    Ok(Value::Json(text))
}

/// `xdb.check_process()`: a row for each problem, none if the process is sound.
pub fn check_process(args: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    let process_id = name("process_id", args.text(0))?;
    let execution = args.execution_id(1);
    let problems = caller.on_system_tables(|spi, _| {
        // One snapshot for all reads, so that the changes of a step are seen together.
        spi.with_latest_snapshot(|spi| {
            // Reads only the owner, because all other values of the row are to be checked.
            let mut found: Option<(ExecutionId, pg_sys::Oid)> = process::find_as(spi, &process_id, execution)?;
            if found.is_none() && execution.is_none() {
                // The row that names the latest execution may be wrong.
                let newest = check::newest(spi, &process_id)?;
                found = process::find_as(spi, &process_id, newest)?;
            }
            match found {
                Some((id, owner)) if caller.may_drive(owner)? => check::problems(spi, id),
                _ => Err(error::unknown_process(&process_id)),
            }
        })
    })?;
    Ok(Value::Rows(problems.into_iter().map(|problem| row![problem]).collect()))
}

/// `xdb.get_local_attributes()`: the local attributes, or only those with the given keys, as a JSON object.
pub fn get_local_attributes(args: &Args) -> Result<Value> {
    let caller = Caller::asking()?;
    let process_id = name("process_id", args.text(0))?;
    let keys = args.texts(1, usize::MAX)?.ok().flatten();
    let keys = keys.map(|keys| keys.into_iter().flatten().collect::<HashSet<_>>());
    let execution = args.execution_id(2);
    let text = caller.on_system_tables(|spi, _| {
        let found = caller.find(spi, &process_id, execution)?;
        let wanted = |key: &str| keys.as_ref().is_none_or(|keys| keys.contains(key));
        let all = attribute::of_one(spi, found.id, wanted)?;
        object(all.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    })?;
    Ok(Value::Json(text))
}

/// Reads a process of the caller's with the latest snapshot, at any isolation level: its execution, its status, and the
/// result of `read`.
fn read_now<T>(
    caller: Caller,
    process_id: &str,
    execution: Option<ExecutionId>,
    read: impl FnOnce(&Spi, ExecutionId) -> Result<T>,
) -> Result<(ExecutionId, ProcessStatus, T)> {
    caller.on_system_tables(|spi, _| {
        spi.with_latest_snapshot(|spi| {
            let found = caller.find(spi, process_id, execution)?;
            Ok((found.id, found.status, read(spi, found.id)?))
        })
    })
}

/// `xdb.wait_for_process()`: waits for the close of a process, or until the timeout.
pub fn wait_for_process(args: &Args) -> Result<Value> {
    let caller = Caller::asking()?.outside_engine("wait_for_process")?;
    let process_id = name("process_id", args.text(0))?;
    let timeout = wait_timeout(args, 1)?;
    let read = |id: Option<ExecutionId>| read_now(caller, &process_id, id, process::results);
    let (id, ..) = read(args.execution_id(2))?;
    let is_over = |(_, status, _): &(_, ProcessStatus, _)| *status != ProcessStatus::Running;
    let (_, status, results) = read_until(args, timeout, [&Registration::register(&id.0)], || read(Some(id)), is_over)?;
    Ok(Value::Json(outcome(status, &results)?))
}

/// `xdb.wait_for_state()`: waits for the end of a step or of its process, or until the timeout.
pub fn wait_for_state(args: &Args) -> Result<Value> {
    let caller = Caller::asking()?.outside_engine("wait_for_state")?;
    let process_id = name("process_id", args.text(0))?;
    let state = super::manage::state_execution_id(args.text(1))?;
    let timeout = wait_timeout(args, 2)?;
    let can_be = |spi: &Spi, id| process::state_can_be(spi, id, &state.state_id);
    let (id, _, known) = read_now(caller, &process_id, args.execution_id(3), can_be)?;
    if !known {
        return Err(error::unknown_state(&state.state_id));
    }
    let read = || {
        read_now(caller, &process_id, Some(id), |spi, id| {
            let status = store::state::by_name(spi, id, &state)?.map(|(_, status)| status);
            let was_deleted = status.is_none() && process::state_has_been(spi, id, &state)?;
            Ok((status, was_deleted))
        })
    };
    let is_over = |(_, process_status, (status, was_deleted)): &(_, ProcessStatus, (Option<StateStatus>, bool))| {
        *was_deleted || *process_status != ProcessStatus::Running || status.is_some_and(|status| !status.is_live())
    };
    // The close of the process ends its states without a wake-up for each. So this also waits for the close.
    let of_state = Registration::register_state(&id.0, &state.to_string());
    let found = read_until(args, timeout, [&of_state, &Registration::register(&id.0)], read, is_over)?;
    let (timed_out, (_, process_status, (status, _))) = (!is_over(&found), found);
    // A step that never existed has no status. Neither has one that is no longer kept.
    let status = status.map_or_else(|| "null".to_owned(), |status| format!("\"{status}\""));
    Ok(Value::Json(format!(r#"{{"status": {status}, "processStatus": "{process_status}", "timedOut": {timed_out}}}"#)))
}

/// Reads until the wait is over, or until the timeout. This does not poll: the end of a process or state wakes the
/// sessions that wait for it. The session registers before the first read, so it misses no end.
fn read_until<T, const N: usize>(
    args: &Args,
    timeout: Duration,
    places: [&Registration; N],
    read: impl Fn() -> Result<T>,
    is_over: impl Fn(&T) -> bool,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let found = read()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if is_over(&found) || left.is_zero() {
            return Ok(found);
        }
        args.sleep(|| wait_for_any(places, left.as_millis() as i64 + 1));
    }
}

/// The timeout of a wait. An error if the transaction has written: it would wait for its own changes.
fn wait_timeout(args: &Args, number: usize) -> Result<Duration> {
    let timeout = length("timeout", needed("timeout", args.interval(number))?, LONGEST_WAIT, "one hour")?;
    if wake::has_uncommitted_writes() {
        return Err(error::own_writes());
    }
    Ok(timeout.as_std())
}

/// The result of a wait as JSON. `results` is a JSON array of objects with an `output`.
fn outcome(status: ProcessStatus, results: &process::Results) -> Result<String> {
    let timed_out = if status == ProcessStatus::Running { "true" } else { "false" };
    let status = format!("\"{status}\"");
    let result = results.only.as_deref().unwrap_or("null");
    let reason = results.reason.as_deref().map(|reason| ("reason", reason));
    object(
        [("status", status.as_str()), ("result", result), ("results", &results.results), ("timedOut", timed_out)]
            .into_iter()
            .chain(reason),
    )
}
