//! Administration.

use super::{Caller, engine_state, name};
use crate::clock;
use crate::error;
use crate::guc;
use crate::http::Authorities;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::descriptors::Descriptors;
use crate::pg::function::{Args, Value};
use crate::pg::identity;
use crate::pg::param::from_postgres;
use crate::pg::process;
use crate::pg::raw;
use crate::pg::shmem::{EngineState, Role, Slot, SlotStatus, call};
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::store::instance::{self, Ownership};
use crate::store::registry::{self, MissingType};
use crate::store::{
    adopt, crashes, engine, lines, owners, pull, registering, slow, subscription, to_json, usage, versions,
};
use pgrx::pg_sys;
use serde::Serialize;

pub fn pause_engine(_: &Args) -> Result<Value> {
    set_paused(true)
}

pub fn resume_engine(_: &Args) -> Result<Value> {
    set_paused(false)
}

/// Makes the processes of a copy this database's own, so that they run here.
pub fn adopt(_: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.adopt()")?;
    caller.on_system_tables(|spi, _| {
        let ownership = instance::ownership(spi)?;
        if matches!(ownership, Ownership::Copy { .. }) {
            let roles_by_name = !ownership.knows_roles();
            let writers = subscription::writers(spi)?;
            if !writers.is_empty() {
                return Err(error::subscribed(&writers));
            }
            let missing = adopt::missing_owners(spi, roles_by_name)?;
            if !missing.is_empty() {
                return Err(error::missing_owners(&missing));
            }
            let missing = adopt::missing_types(spi)?;
            if !missing.is_empty() {
                return Err(error::missing_types(&named(&missing)));
            }
            adopt::adopt(spi, roles_by_name)?;
            crash::point("adopt");
        }
        Ok(())
    })?;
    wake::wake_scheduler_at_commit();
    Ok(Value::Void)
}

/// Process types that are missing, with the numbers of their executions.
fn named(missing: &[MissingType]) -> String {
    let named = missing.iter().map(|missing| match missing.running {
        1 => format!("\"{}\" (1 process)", missing.name),
        running => format!("\"{}\" ({running} processes)", missing.name),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// What is wrong with the registrations, if running processes have no type.
fn without_type(spi: &Spi, ownership: Ownership) -> Result<Option<String>> {
    // Nothing runs in a copy, so that there is time to count all of them.
    let missing = match ownership {
        Ownership::Copy { .. } => adopt::missing_types(spi)?,
        _ => lines::missing_types(spi, clock::now())?,
    };
    let what = || format!("process types of running processes are not registered: {}", named(&missing));
    Ok((!missing.is_empty()).then(what))
}

/// What to do about subscriptions that write here.
fn subscribed(spi: &Spi) -> Result<Option<String>> {
    let writers = subscription::writers(spi)?;
    let what =
        || format!("the tables of XDB are replicated into by: {}; drop it before xdb.adopt()", writers.join(", "));
    Ok((!writers.is_empty()).then(what))
}

pub fn knows_roles(_: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    Ok(Value::of(caller.on_system_tables(|_, _| super::knows_roles())?))
}

fn set_paused(paused: bool) -> Result<Value> {
    let caller = Caller::writing(if paused { c"xdb.pause_engine()" } else { c"xdb.resume_engine()" })?;
    caller.on_system_tables(|spi, _| engine::set_paused(spi, paused))?;
    crash::point("pause");
    // Those too who wait for calls that they fetch.
    wake::wake_everybody_at_commit();
    Ok(Value::Void)
}

/// Also where the library is not preloaded: then it is the one that this session has loaded.
pub fn library_version(_: &Args) -> Result<Value> {
    Ok(Value::of(versions::OWN))
}

/// A moment for SQL, or null.
fn moment(at: i64) -> Option<String> {
    (at != 0).then(|| from_postgres(at).iso8601())
}

// Wide because each field is a column of xdb.status().
#[derive(Serialize)]
struct EngineFigures {
    engine_pid: Option<i32>,
    state: &'static str,
    in_flight: i64,
    backlog: Option<i64>,
    oldest_due: Option<String>,
    calls_per_second: f64,
    started_at: Option<String>,
    epoch: i64,
    slow_objects: Vec<String>,
    last_error: Option<String>,
    last_error_at: Option<String>,
    reason: Option<String>,
    /// Runners that run.
    runners: usize,
    /// Why one that is needed doesn't.
    runner_error: Option<String>,
    /// Running processes whose owner is gone.
    ownerless_processes: i64,
}

/// What every role that uses XDB may know: whether its processes go on, and if not, why.
#[derive(Serialize)]
struct KnownEngine {
    engine_pid: Option<i32>,
    state: &'static str,
    started_at: Option<String>,
    reason: Option<String>,
}

fn known_engine(caller: Caller, mut main: SlotStatus) -> Result<KnownEngine> {
    // An error may show what is in the tables of others.
    if main.last_error.take().is_some() {
        main.last_error = Some("the engine process failed and is being restarted: operators see the reason".to_owned());
    }
    let reason = caller.on_system_tables(|spi, _| {
        let of_tables = match versions::mismatch() {
            Some(mismatch) => Some(mismatch.to_string()),
            None => instance::ownership(spi)?.reason(),
        };
        let reasons: Vec<_> = engine_state::reason(spi, &main)?.into_iter().chain(of_tables).collect();
        Ok((!reasons.is_empty()).then(|| reasons.join("; ")))
    })?;
    Ok(KnownEngine { engine_pid: main.pid, state: main.state.as_str(), started_at: moment(main.started_at), reason })
}

pub fn engine_figures(_: &Args) -> Result<Value> {
    let caller = Caller::looking()?;
    let database = process::database();
    let main = Slot::find(database, Role::Scheduler).map(Slot::status).unwrap_or_default();
    if !identity::is_administrator(caller.role) && !identity::monitors(caller.role) {
        return Ok(Value::Json(to_json(&known_engine(caller, main)?)?));
    }
    let why_not = caller.on_system_tables(|spi, _| engine_state::reason(spi, &main))?;
    let (slow_objects, reason, (backlog, oldest_due), ownerless_processes) = match versions::mismatch() {
        Some(mismatch) => {
            let reasons: Vec<_> = why_not.into_iter().chain([mismatch.to_string()]).collect();
            (Vec::new(), Some(reasons.join("; ")), (None, None), 0)
        }
        None => caller.on_system_tables(|spi, _| {
            let ownership = instance::ownership(spi)?;
            // Counted now: an engine that rests, or is gone, brings no figure up to date.
            let is_running = main.state == EngineState::Running;
            let ((backlog, due), ownerless, without_type, unsigned, held, full) = spi.with_latest_snapshot(|spi| {
                let backlog = lines::backlog(spi, clock::now())?;
                let full = if is_running { engine_state::full_workers(spi, &Sees::of(caller)?)? } else { Vec::new() };
                let (ownerless, held) = (owners::ownerless(spi)?, crashes::reason(spi)?);
                Ok((backlog, ownerless, without_type(spi, ownership)?, without_secret(spi)?, held, full))
            })?;
            let of_tables = [ownership.reason(), without_type, subscribed(spi)?, unsigned, held];
            let reasons: Vec<_> = why_not.into_iter().chain(of_tables.into_iter().flatten()).chain(full).collect();
            let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
            Ok((slow::names(spi)?, reason, (Some(backlog), due), ownerless))
        })?,
    };
    let oldest_due = oldest_due.map(|due| due.iso8601());
    let runners = Role::runners().filter_map(|role| Slot::find(database, role)).map(Slot::status);
    let (running, not): (Vec<_>, Vec<_>) = runners.partition(|runner| runner.pid.is_some());
    let failed = not.into_iter().filter(|runner| runner.state == EngineState::BackingOff);
    let runner_error = failed.max_by_key(|runner| runner.last_error_at).and_then(|runner| runner.last_error);
    let waiting = main.waiting_calls + running.iter().map(|runner| runner.waiting_calls).sum::<i64>();
    let figures = EngineFigures {
        engine_pid: main.pid,
        state: main.state.as_str(),
        in_flight: main.in_flight + running.iter().map(|runner| runner.in_flight).sum::<i64>(),
        backlog,
        oldest_due,
        calls_per_second: main.calls_per_second,
        started_at: moment(main.started_at),
        epoch: main.epoch,
        slow_objects,
        last_error: main.last_error,
        last_error_at: moment(main.last_error_at),
        reason: reason.or_else(without_authorities).or_else(|| short_of_connections(waiting)),
        runners: running.len(),
        runner_error,
        ownerless_processes,
    };
    Ok(Value::Json(to_json(&figures)?))
}

/// Which workers are not called because calls to them can't be signed. Looked at here and now, as below.
fn without_secret(spi: &Spi) -> Result<Option<String>> {
    const NAMED: usize = 3;
    let unusable = registry::unusable_secrets(spi)?;
    let named = unusable.iter().take(NAMED).map(|(worker, why)| format!("\"{worker}\" ({why})"));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = unusable.len().saturating_sub(NAMED);
    let and_more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Ok((!unusable.is_empty()).then(|| format!("workers are not called whose secret can't be used: {named}{and_more}")))
}

/// Why no worker can be called over TLS. Looked at here and now: what an engine has found was so at the last reload.
fn without_authorities() -> Option<String> {
    let why = Authorities::read(&guc::text(&guc::SSL_CA_FILE)).err()?;
    Some(format!("Workers are not called over TLS: {why}. After it is mended, reload the configuration."))
}

/// What to raise when calls wait for connections.
fn short_of_connections(waiting: i64) -> Option<String> {
    let most = Descriptors::most();
    (waiting > 0).then(|| {
        format!(
            "{waiting} calls in flight wait for a connection. An engine can have {most} at a time, a third of \
            max_files_per_process: raise it, and the limit of the system if that is lower."
        )
    })
}

/// What everybody may know of a worker.
#[derive(Serialize)]
struct KnownWorker {
    worker_id: i32,
    name: String,
    owner: Option<String>,
    /// For members of its owner and operators.
    #[serde(flatten)]
    figures: Option<WorkerFigures>,
}

#[derive(Serialize)]
struct WorkerFigures {
    in_flight: i32,
    calls: i64,
    failures: i64,
    consecutive_failures: i64,
    /// None before the first call.
    average_latency_us: Option<i64>,
    last_error_at: Option<String>,
    /// None: it fetches its calls.
    breaker: Option<&'static str>,
    breaker_open_since: Option<String>,
    next_probe_at: Option<String>,
    waiting: i64,
    waiting_since: Option<String>,
}

pub fn worker_figures(_: &Args) -> Result<Value> {
    let caller = Caller::looking()?;
    if versions::mismatch().is_some() {
        return Ok(Value::Json("[]".to_owned()));
    }
    let counted = call::of_database(process::database());
    let (sees, workers, waiting) = caller.on_system_tables(|spi, _| {
        let waiting = spi.with_latest_snapshot(|spi| lines::waiting(spi, clock::now(), clock::real()))?;
        Ok((Sees::of(caller)?, registering::shown_workers(spi)?, waiting))
    })?;
    let workers: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            // None were counted of a worker that was never called.
            let of_worker = || counted.iter().find(|counted| counted.worker == worker.id).cloned().unwrap_or_default();
            let figures = match sees.all_of(worker.owner) {
                false => None,
                true if worker.pulls => Some(WorkerFigures::of_pulling(leased(caller, worker.id)?)),
                true => Some(WorkerFigures::of(&of_worker())),
            };
            let figures = figures.map(|figures| figures.with_waiting(waiting.get(&worker.id)));
            Ok(KnownWorker { worker_id: worker.id, owner: sees.name_of(worker.owner)?, name: worker.name, figures })
        })
        .collect::<Result<_>>()?;
    Ok(Value::Json(to_json(&workers)?))
}

/// Calls that a worker has fetched, and that are not over.
fn leased(caller: Caller, worker: registry::WorkerId) -> Result<i64> {
    caller.on_system_tables(|spi, _| spi.with_latest_snapshot(|spi| pull::leased(spi, worker, clock::real())))
}

impl WorkerFigures {
    fn with_waiting(self, waiting: Option<&lines::Waiting>) -> Self {
        let since = waiting.map(|waiting| waiting.since.iso8601());
        Self { waiting: waiting.map_or(0, |waiting| waiting.calls), waiting_since: since, ..self }
    }

    /// Nobody counts what it does but the tables.
    fn of_pulling(leased: i64) -> Self {
        let in_flight = leased.try_into().unwrap_or(i32::MAX);
        Self { in_flight, breaker: None, ..Self::of(&call::CallStatistics::default()) }
    }

    fn of(worker: &call::CallStatistics) -> Self {
        let now = raw::now_micros();
        Self {
            in_flight: worker.in_flight,
            calls: worker.calls,
            failures: worker.failures,
            consecutive_failures: worker.consecutive_failures,
            average_latency_us: (worker.calls > 0).then(|| worker.total_latency_us / worker.calls),
            last_error_at: moment(worker.last_error_at),
            breaker: Some(match worker.open {
                None => "closed",
                Some(call::OpenBreaker { next_probe: Some(at), .. }) if at > now => "open",
                Some(_) => "half-open",
            }),
            breaker_open_since: worker.open.and_then(|open| moment(open.since)),
            next_probe_at: worker.open.and_then(|open| moment(open.next_probe?)),
            waiting: 0,
            waiting_since: None,
        }
    }
}

/// What a role sees of what others have registered.
pub(super) struct Sees {
    caller: Caller,
    all: bool,
    knows_roles: bool,
}

impl Sees {
    /// On system tables.
    fn of(caller: Caller) -> Result<Self> {
        let all = identity::is_administrator(caller.role);
        Ok(Self { caller, all, knows_roles: super::knows_roles()? })
    }

    pub(super) fn all_of(&self, owner: pg_sys::Oid) -> bool {
        self.all || self.knows_roles && identity::has_privileges_of(self.caller.role, owner)
    }

    fn name_of(&self, owner: pg_sys::Oid) -> Result<Option<String>> {
        if self.knows_roles { identity::role_name(owner) } else { Ok(None) }
    }
}

/// What everybody may know of a process type.
#[derive(Serialize)]
struct KnownType {
    type_id: i32,
    process_type: String,
    worker: Option<String>,
    owner: Option<String>,
}

pub fn registered_type_ids(_: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    let types = caller.on_system_tables(|spi, _| registering::shown_types(spi))?;
    let ids: Vec<_> = types.iter().map(|shown| shown.id).collect();
    Ok(Value::Json(to_json(&ids)?))
}

pub fn process_type_names(_: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    let (sees, types) = caller.on_system_tables(|spi, _| Ok((Sees::of(caller)?, registering::shown_types(spi)?)))?;
    let types: Vec<_> = types
        .into_iter()
        .map(|shown| {
            let owner = sees.name_of(shown.owner)?;
            Ok(KnownType { type_id: shown.id, process_type: shown.name, worker: shown.worker, owner })
        })
        .collect::<Result<_>>()?;
    Ok(Value::Json(to_json(&types)?))
}

pub fn process_type_figures(args: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    let process_type = name("process_type", args.text(0))?;
    let usage = caller.on_system_tables(|spi, _| {
        let sees = Sees::of(caller)?;
        let types = registering::shown_types(spi)?;
        let shown = types.into_iter().find(|shown| shown.name == process_type);
        let shown = shown.ok_or_else(|| error::unknown_process_type(&process_type))?;
        if !sees.all_of(shown.owner) {
            return Err(error::not_of_operator(&process_type, sees.name_of(shown.owner)?.as_deref()));
        }
        usage::of_type(spi, shown.id)
    })?;
    Ok(Value::Json(to_json(&usage)?))
}
