//! Functions for administration: pause and resume the engine, adopt a copy, status, registered workers and types.

use super::arguments::name;
use super::caller::{self, Caller};
use super::engine_state;
use crate::clock;
use crate::error;
use crate::guc;
use crate::http::Authorities;
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::descriptors::Descriptors;
use crate::pg::function::{Args, Value};
use crate::pg::identity;
use crate::pg::param::{Interval, from_postgres};
use crate::pg::process;
use crate::pg::raw;
use crate::pg::shmem::call::{CallStatistics, CountedWorkers, OpenBreaker};
use crate::pg::shmem::{EngineState, Role, Slot};
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::row;
use crate::store::instance::{self, Ownership};
use crate::store::lines::{self, Waiting};
use crate::store::registering::{self, ShownType, ShownWorker};
use crate::store::registry::{self, MissingType};
use crate::store::{adopt, crashes, engine, owners, pull, slow, subscription, usage, versions};
use crate::turn::Why;
use std::time::Duration;
use xdb_engine::Timestamp;

/// `xdb.pause_engine()`: the engine begins nothing new.
pub fn pause_engine(_: &Args) -> Result<Value> {
    set_paused(true)
}

/// `xdb.resume_engine()`: ends the pause of the engine.
pub fn resume_engine(_: &Args) -> Result<Value> {
    set_paused(false)
}

/// `xdb.adopt()`: makes the processes of a copy this database's own, so that they run here.
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

/// Missing process types, with the numbers of their executions.
fn named(missing: &[MissingType]) -> String {
    let named = missing.iter().map(|missing| match missing.running {
        1 => format!("\"{}\" (1 process)", missing.process_type),
        running => format!("\"{}\" ({running} processes)", missing.process_type),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// The problem with the registrations, if running processes have no type.
fn without_type(spi: &Spi, ownership: Ownership) -> Result<Option<String>> {
    // Nothing runs in a copy, so there is time to count all executions.
    let missing = match ownership {
        Ownership::Copy { .. } => adopt::missing_types(spi)?,
        _ => lines::missing_types(spi, clock::now())?,
    };
    let what = || format!("process types of running processes are not registered: {}", named(&missing));
    Ok((!missing.is_empty()).then(what))
}

/// The advice about subscriptions that write here, if there are any.
fn subscribed(spi: &Spi) -> Result<Option<String>> {
    let writers = subscription::writers(spi)?;
    let what = || {
        format!("a subscription replicates into the tables of xdb: {}; drop it before xdb.adopt()", writers.join(", "))
    };
    Ok((!writers.is_empty()).then(what))
}

/// For views: whether the owners in the tables are roles of this server.
pub fn knows_roles(_: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    Ok(Value::of(caller.on_system_tables(|_, _| caller::knows_roles())?))
}

fn set_paused(paused: bool) -> Result<Value> {
    let caller = Caller::writing(if paused { c"xdb.pause_engine()" } else { c"xdb.resume_engine()" })?;
    caller.on_system_tables(|spi, _| engine::set_paused(spi, paused))?;
    crash::point("pause");
    // Also wakes up pull workers that wait for calls.
    wake::wake_all_at_commit();
    Ok(Value::Void)
}

/// The version of the library in this session. Works also if the library is not preloaded.
pub fn library_version(_: &Args) -> Result<Value> {
    Ok(Value::of(versions::OWN))
}

/// A time from shared memory. Zero means none.
fn moment(at: i64) -> Option<Timestamp> {
    (at != 0).then(|| from_postgres(at))
}

// Long because it gathers every column of one row.
pub fn status(_: &Args) -> Result<Value> {
    let caller = Caller::looking()?;
    let database = process::database();
    let sees_figures = identity::is_administrator(caller.role) || identity::monitors(caller.role);
    let mut main = Slot::find(database, Role::Scheduler).map(Slot::status).unwrap_or_default();
    if !sees_figures && main.last_error.is_some() {
        // An error may show data of other roles.
        main.last_error = Some("the engine process failed and is being restarted: operators see the reason".to_owned());
    }
    let (mut reasons, backlog, oldest_due, slow_objects, ownerless) = caller.on_system_tables(|spi, _| {
        let mut reasons: Vec<_> = engine_state::reason(spi, &main)?.into_iter().collect();
        if let Some(mismatch) = versions::mismatch() {
            reasons.push(mismatch.to_string());
            return Ok((reasons, None, None, Vec::new(), 0));
        }
        let ownership = instance::ownership(spi)?;
        if let Some(reason) = ownership.reason() {
            reasons.push(reason);
            if matches!(main.state, EngineState::Running | EngineState::Unused) {
                // A subscription has brought the row of the owner since the engine's last turn.
                main.state = EngineState::Copy;
            }
        }
        if !sees_figures {
            return Ok((reasons, None, None, Vec::new(), 0));
        }
        // Counted now: an idle or ended engine does not update figures.
        let ((backlog, oldest_due), ownerless) = spi.with_latest_snapshot(|spi| {
            let of_tables =
                [without_type(spi, ownership)?, subscribed(spi)?, without_secret(spi)?, crashes::reason(spi)?];
            reasons.extend(of_tables.into_iter().flatten());
            if main.state == EngineState::Running {
                reasons.extend(engine_state::full_workers(spi, caller)?);
            }
            Ok((lines::backlog(spi, clock::now())?.unwrap_or_default(), owners::ownerless(spi)?))
        })?;
        Ok((reasons, Some(backlog), oldest_due, slow::names(spi)?, ownerless))
    })?;
    let runners = Role::runners().filter_map(|role| Slot::find(database, role)).map(Slot::status);
    let (running, not): (Vec<_>, Vec<_>) = runners.partition(|runner| runner.pid.is_some());
    let failed = not.into_iter().filter(|runner| runner.state == EngineState::BackingOff);
    let runner_error = failed.max_by_key(|runner| runner.last_error_at).and_then(|runner| runner.last_error);
    let in_flight = main.in_flight + running.iter().map(|runner| runner.in_flight).sum::<i64>();
    let waiting = main.waiting_calls + running.iter().map(|runner| runner.waiting_calls).sum::<i64>();
    let next_turn_at = moment(main.next_turn_at).filter(|_| sees_figures);
    if sees_figures && reasons.is_empty() {
        reasons.extend(without_authorities().or_else(|| short_of_connections(waiting)));
    }
    Ok(Value::Rows(vec![row![
        main.pid,
        main.state.as_str(),
        sees_figures.then_some(in_flight as i32),
        backlog,
        oldest_due,
        sees_figures.then_some(main.calls_per_second),
        moment(main.started_at),
        sees_figures.then_some(main.epoch),
        sees_figures.then_some(slow_objects),
        main.last_error.filter(|_| sees_figures),
        moment(main.last_error_at).filter(|_| sees_figures),
        (!reasons.is_empty()).then(|| reasons.join("; ")),
        sees_figures.then_some(running.len() as i32),
        runner_error.filter(|_| sees_figures),
        sees_figures.then_some(ownerless),
        next_turn_at,
        next_turn_at.and(Why::WORDS.get(main.next_turn_why as usize).copied()),
    ]]))
}

/// Workers that are not called because their calls can't be signed. This session reads the secrets now, like the
/// authorities below.
fn without_secret(spi: &Spi) -> Result<Option<String>> {
    const NAMED: usize = 3;
    let unusable = registry::unusable_secrets(spi)?;
    let named = unusable.iter().take(NAMED).map(|(worker, why)| format!("\"{worker}\" ({why})"));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = unusable.len().saturating_sub(NAMED);
    let and_more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Ok((!unusable.is_empty())
        .then(|| format!("workers are not called because their secrets can't be used: {named}{and_more}")))
}

/// Why no worker can be called over TLS. This session reads the file now: the engine's result is from the last reload.
fn without_authorities() -> Option<String> {
    let why = Authorities::read(&guc::text(&guc::SSL_CA_FILE)).err()?;
    Some(format!("workers are not called over TLS: {why}; fix this, then reload the configuration"))
}

/// The warning if calls wait for connections.
fn short_of_connections(waiting: i64) -> Option<String> {
    let most = Descriptors::most();
    let calls =
        if waiting == 1 { "1 call under way waits".to_owned() } else { format!("{waiting} calls under way wait") };
    (waiting > 0).then(|| {
        format!(
            "{calls} for a connection: an engine can open {most} connections, a third of max_files_per_process; raise max_files_per_process, and the limit of the system if that is lower"
        )
    })
}

/// A row for each worker: its name and owner. Members of the owner and operators also see figures of its calls.
pub fn registered_workers(_: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    let counted = CountedWorkers::of_database(process::database());
    let workers = caller.on_system_tables(|spi, _| {
        spi.with_latest_snapshot(|spi| {
            let knows_roles = caller::knows_roles()?;
            let waiting = lines::waiting(spi, clock::now(), clock::real())?;
            let row = |ShownWorker { worker_id, name, owner, pulls, .. }| {
                let mut row = row![worker_id, name, if knows_roles { identity::role_name(owner)? } else { None }];
                if caller.may_drive(owner)? {
                    let leased = || pull::leased(spi, worker_id, clock::real());
                    let calls = match pulls {
                        true => Some(CallStatistics { in_flight: leased()? as i32, ..Default::default() }),
                        false => counted.get(worker_id),
                    };
                    row.extend(figures(calls, pulls, waiting.iter().find(|waiting| waiting.worker_id == worker_id)));
                }
                Ok(row)
            };
            registering::shown_workers(spi)?.into_iter().map(row).collect::<Result<Vec<_>>>()
        })
    })?;
    Ok(Value::Rows(workers))
}

/// The state of a breaker in a word.
pub(super) fn breaker(open: Option<OpenBreaker>) -> &'static str {
    match open {
        None => "closed",
        Some(OpenBreaker { next_probe: Some(at), .. }) if at > raw::now_micros() => "open",
        Some(_) => "half-open",
    }
}

/// The columns for members of the owner and operators. For a pull worker, only the tables have figures.
fn figures(of: Option<CallStatistics>, pulls: bool, waiting: Option<&Waiting>) -> Vec<Value> {
    let of = of.as_ref();
    let called = of.filter(|of| of.calls > 0);
    let open = of.and_then(|of| of.open);
    row![
        of.map(|of| of.in_flight),
        of.map(|of| of.calls),
        of.map(|of| of.failures),
        of.map(|of| of.consecutive_failures as i32),
        called.map(|of| Interval(Duration::from_micros((of.total_latency_us / of.calls) as u64))),
        of.and_then(|of| moment(of.last_error_at)),
        of.filter(|_| !pulls).map(|of| breaker(of.open)),
        open.and_then(|open| moment(open.since)),
        open.and_then(|open| moment(open.next_probe?)),
        waiting.map_or(0, |waiting| waiting.calls),
        waiting.map(|waiting| waiting.since),
    ]
}

/// A row for each process type: its name, worker and owner, and its pause.
pub fn registered_types(_: &Args) -> Result<Value> {
    // Not with `Caller::reading`: the view `processes` also shows processes in databases where nothing can run.
    let caller = Caller { role: identity::current_user() };
    let (knows_roles, types) =
        caller.on_system_tables(|spi, _| Ok((caller::knows_roles()?, registering::shown_types(spi)?)))?;
    let row = |of: ShownType| {
        let owner = if knows_roles { identity::role_name(of.owner)? } else { None };
        Ok(row![of.type_id, of.process_type, of.worker, owner, of.pause_mode, of.paused_until, of.pause_reason])
    };
    Ok(Value::Rows(types.into_iter().map(row).collect::<Result<_>>()?))
}

/// `xdb.process_type_usage()`: the states and queues in use, for operators and members of the type's owner.
pub fn process_type_usage(args: &Args) -> Result<Value> {
    let caller = Caller::reading()?;
    let process_type = name("process_type", args.text(0))?;
    let usage = caller.on_system_tables(|spi, _| {
        let types = registering::shown_types(spi)?;
        let shown = types.into_iter().find(|shown| shown.process_type == process_type);
        let shown = shown.ok_or_else(|| error::unknown_process_type(&process_type))?;
        caller.operate_type(&process_type, shown.owner)?;
        usage::of_type(spi, shown.type_id)
    })?;
    Ok(Value::Rows(usage.into_iter().map(|(kind, name, live)| row![kind, name, live]).collect()))
}
