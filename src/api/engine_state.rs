//! For `xdb.status()`: why the engine of this database does not run, or which workers have no room for more calls. For
//! `xdb.describe_process()`: why calls of a process are not made.

use super::caller::Caller;
use crate::calls::{self, CallOf, Facts, Maker, NotCalled};
use crate::clock;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::descriptors::Descriptors;
use crate::pg::param::from_postgres;
use crate::pg::process;
use crate::pg::shmem::call::CountedWorkers;
use crate::pg::shmem::{self, EngineState, Role, SCHEDULERS, Slot, SlotStatus};
use crate::pg::spi::Spi;
use crate::store::execution::{self, Lock};
use crate::store::lines::{self, Waiting};
use crate::store::process::{NotMade, due_calls};
use crate::store::registering::{self, ShownWorker};
use crate::store::registry::Registry;
use crate::store::{engine, state};
use crate::turn::SlowTables;
use xdb_engine::{ExecutionId, Timestamp};
use xdb_sched::room::{is_full, places};

/// Calls that have waited for less time are about to be made, in microseconds.
const SHORT_WAIT: i64 = 1_000_000;

/// Why the engine is in its present state, unless it runs. Copies and other schema versions have reasons of their own.
pub fn reason(spi: &Spi, slot: &SlotStatus) -> Result<Option<String>> {
    let why = match slot.state {
        EngineState::Running | EngineState::Unused | EngineState::Copy | EngineState::OtherSchema => return Ok(None),
        EngineState::Paused => "xdb.pause_engine() was called: no work starts before xdb.resume_engine()".to_owned(),
        EngineState::Stopped => stopped(spi)?,
        EngineState::Starting => match error_of_now(slot) {
            Some(error) => error.to_owned(),
            None => {
                "an engine process is being started; it waits while another session has locked the extension".to_owned()
            }
        },
        EngineState::BackingOff => match error_of_now(slot) {
            Some(error) => error.to_owned(),
            None => "the engine process exited unexpectedly and is being restarted; see the server log".to_owned(),
        },
    };
    Ok(Some(why))
}

/// The last error, if it belongs to the last started process.
fn error_of_now(slot: &SlotStatus) -> Option<&str> {
    slot.last_error.as_deref().filter(|_| slot.last_error_at >= slot.started_at)
}

/// Why there is no engine process, and none is requested: the launcher's conditions, in their order.
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
        Some(names) if !names.is_empty() && !names.iter().any(|name| **name == *process::database_name()) => {
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
    if shmem::blocked_until(process::database()).is_some() {
        return Ok("a statement such as DROP DATABASE needs the database without connections".to_owned());
    }
    if !shmem::has_launcher() {
        return Ok("the launcher of xdb is not running: the server restarts it".to_owned());
    }
    if Slot::all().filter(|slot| slot.role() == Role::Scheduler).count() >= SCHEDULERS {
        return Ok(format!("the engines of {SCHEDULERS} other databases are running, the limit of a server"));
    }
    Ok("no engine process was started yet: the launcher checks every 5 seconds".to_owned())
}

/// Workers whose calls wait for a place, and the warning about them. Only workers that the caller may see, and only for
/// a running engine.
pub(super) fn full_workers(spi: &Spi, caller: Caller) -> Result<Vec<String>> {
    let now = clock::now();
    let waiting = lines::waiting(spi, now, clock::real())?;
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let workers = registering::shown_workers(spi)?;
    let called = workers.iter().filter(|worker| !worker.pulls).count();
    let counted = CountedWorkers::of_database(process::database());
    let under_way = |id| counted.get(id).map_or(0, |of| of.in_flight as usize);
    let all = counted.in_flight();
    let mut full = Vec::new();
    for worker in workers.iter().filter(|worker| !worker.pulls) {
        let waiting = waiting.iter().find(|waiting| waiting.worker_id == worker.worker_id);
        let waiting = waiting.filter(|waiting| now.since(waiting.since) >= SHORT_WAIT);
        let why = || no_place(worker, under_way(worker.worker_id), called, all);
        if let Some(waiting) = waiting
            && let Some(why) = why()
            && caller.may_drive(worker.owner)?
        {
            full.push(waits_for_places(&worker.name, waiting, &why));
        }
    }
    Ok(full)
}

/// Why there is no place for a call to a worker, or None.
fn no_place(worker: &ShownWorker, calls: usize, called: usize, all: usize) -> Option<String> {
    let (max_calls, limit) = (guc::MAX_IN_FLIGHT.get() as usize, worker.max_concurrency.max(0) as usize);
    let places = places(limit, max_calls, Descriptors::most(), called);
    let why = match is_full(calls, places) {
        true if places == limit => format!(
            "its max_concurrency is {limit}: raise it if the worker can handle more calls at a time, and give slow process types a worker of their own"
        ),
        true if called > 1 => format!(
            "it may have {places} calls under way, half of the engine's limit for all workers: raise xdb.max_in_flight and max_files_per_process"
        ),
        _ if is_full(all, max_calls) => format!("xdb.max_in_flight is {max_calls}, for all workers: raise it"),
        _ => return None,
    };
    Some(why)
}

fn waits_for_places(worker: &str, Waiting { calls, since, .. }: &Waiting, why: &str) -> String {
    let calls = if *calls == 1 { "1 call waits".to_owned() } else { format!("{calls} calls wait") };
    format!("{calls} for a place at worker \"{worker}\", the first since {}: {why}", since.iso8601())
}

/// Why due calls of an execution are not made now, for each state.
pub(super) fn not_called(spi: &Spi, id: ExecutionId, now: Timestamp) -> Result<Vec<NotMade>> {
    let keys = due_calls(spi, id, now)?;
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    // What the session has read of the type may be old.
    let mut loaded = execution::executions(spi, &mut Registry::default(), &[id], Lock::None)?;
    state::states_without_inputs(spi, &mut loaded, &keys)?;
    let (slow, counted) = (SlowTables::of_now(), CountedWorkers::of_database(process::database()));
    let engine = Slot::find(process::database(), Role::Scheduler).map(|slot| slot.status().state).unwrap_or_default();
    let is_held = process::is_in_recovery() || matches!(engine, EngineState::Paused | EngineState::Copy);
    let runs = |maker| match maker {
        // A pull worker needs no process of the engine.
        Maker::PullWorker(_) => !is_held,
        _ => matches!(engine, EngineState::Running | EngineState::Unused),
    };
    let mut not_made = Vec::new();
    for (loaded, key) in loaded.values().flat_map(|loaded| keys.iter().map(move |key| (loaded, key))) {
        let Some(state) = loaded.execution.states.get(&key.1) else { continue };
        let Some((api, _)) = state.current_call() else { continue };
        let tables = slow.marked(&loaded.meta, state, api);
        let facts = Facts { tables, ..calls::facts(loaded, CallOf::State(state, api), now) };
        let worker = loaded.meta.worker_of(facts.maker());
        let open = counted.get(worker).and_then(|of| of.open);
        let Some(why) = calls::not_called(&facts, runs, open.is_some()) else { continue };
        let since = open.filter(|_| why == NotCalled::Breaker).map(|open| from_postgres(open.since));
        not_made.push(NotMade { state_id: state.id.state_id.clone(), api, why: why.as_str(), since });
    }
    Ok(not_made)
}
