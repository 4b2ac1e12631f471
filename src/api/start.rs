//! `xdb.start_process`: starts a process in the caller's transaction.

use super::arguments::json;
use super::caller::{Caller, owner_name, refuse_own_step, session_traceparent, wrote};
use super::children::lock_parents_of;
use super::merge::merge_or_begin;
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::identity::{self, TableUse};
use crate::pg::process::{database, database_name};
use crate::pg::shmem::over::{self, Quota};
use crate::pg::spi::Spi;
use crate::store::app_functions::FunctionCalls;
use crate::store::app_tables::Tables;
use crate::store::attribute::Size;
use crate::store::loaded::{Loaded, Meta, new_id};
use crate::store::process::{self, FoundExecution};
use crate::store::registry::{Mapping, ProcessType, Registry, TypeId};
use crate::store::{execution, save, shard_of};
use crate::{clock, error, guc};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use xdb_engine::*;
use xdb_protocol::{GivenStart, StartContext, StartRequest, arguments};

/// The type of schedules. A deployer registers it once.
pub(super) const SCHEDULE: &str = "Schedule";

/// The caller, if the role may own processes.
pub(super) fn starter(function: &std::ffi::CStr) -> Result<Caller> {
    let caller = Caller::writing(function)?;
    if identity::is_superuser(caller.role) && !guc::ALLOW_SUPERUSER_PROCESSES.get() {
        return Err(error::superuser_process(&owner_name(caller)?, "start processes"));
    }
    Ok(caller)
}

/// `xdb.start_process()`: returns the id of the new execution, or of the one that the start repeats or was merged into.
pub fn start_process(args: &Args) -> Result<Value> {
    let caller = starter(c"xdb.start_process()")?;
    let given = GivenStart {
        process_id: args.text(0),
        process_type: args.text(1),
        input: json(args, 2, "input")?,
        global_attribute_pk: args.text(3),
        global_attributes: json(args, 4, "global_attributes")?,
        local_attributes: json(args, 5, "local_attributes")?,
        id_reuse_policy: args.text(6),
        timeout: args.interval(7),
        start_at: args.time(8),
        options: json(args, 9, "options")?,
    };
    start(caller, given)
}

/// Starts a process in the caller's transaction.
pub(super) fn start(caller: Caller, given: GivenStart) -> Result<Value> {
    let id = new_id();
    let request = read("", given, id)?;
    let begun = match &request.options.correlation {
        None => caller.on_system_tables(|spi, registry| begin(spi, registry, caller, &request, id)),
        Some(correlation) => merge_or_begin(caller, &request, correlation, id),
    }?;
    let loaded = match begun {
        StartResult::New(loaded) => *loaded,
        StartResult::Repeated(id) => return Ok(Value::of(id)),
    };
    // Before triggers of the application run: a wait in a trigger would wait for this very transaction.
    wrote();
    write_tables(caller, &[(0, &request, &loaded)], |_, error| error)?;
    crash::point("start");
    Ok(Value::of(id))
}

/// Writes the global attributes of starts to the application's tables and calls their functions, as the caller. `at` adds
/// to an error which start it is about, by the start's number.
pub(super) fn write_tables(
    caller: Caller,
    started: &[(usize, &StartRequest, &Loaded)],
    at: impl Fn(usize, PgError) -> PgError,
) -> Result<()> {
    let mut tables = Tables::default();
    let uses = |request: &StartRequest, loaded: &Loaded| {
        !loaded.meta.mapping.is_empty() || !request.start.call_functions.is_empty()
    };
    let writing: Vec<_> = started.iter().filter(|(_, request, loaded)| uses(request, loaded)).collect();
    if writing.is_empty() {
        return Ok(());
    }
    // Executions of a type share its mapping.
    let mut written: BTreeMap<_, (&Mapping, HashSet<&str>)> = BTreeMap::new();
    for (_, request, loaded) in &writing {
        let of_mapping = written.entry(loaded.meta.mapping_id);
        let (_, names) = of_mapping.or_insert_with(|| (&loaded.meta.mapping, HashSet::new()));
        names.extend(request.start.global_attributes.keys().map(String::as_str));
    }
    // Lookups under a lock come first, because another mapping may have the same table.
    for (mapping, names) in written.values() {
        caller.look_up(&mut tables, mapping, TableUse::Select, |attribute| names.contains(attribute))?;
    }
    for (mapping, names) in written.values() {
        caller.look_up_keys(&mut tables, mapping, |attribute| names.contains(attribute))?;
    }
    let calls = |(_, request, loaded): &&(usize, &StartRequest, &Loaded)| {
        FunctionCalls::look_up(&loaded.meta.definition(), &request.start.call_functions, || context(loaded))
    };
    let calls = caller.on_system_tables(|_, _| writing.iter().map(calls).collect::<Result<Vec<_>>>())?;
    Caller::on_app_tables(|spi| {
        writing.iter().zip(&calls).try_for_each(|((number, request, loaded), calls)| {
            let mode = request.options.global_attribute_conflict_mode;
            let written = tables.start(spi, &loaded.meta, &request.start.global_attributes, mode);
            written.and_then(|_| calls.run()).map_err(|error| at(*number, error))
        })
    })
}

/// The context for functions that a start calls.
fn context(loaded: &Loaded) -> Result<String> {
    let execution = &loaded.execution;
    let context = StartContext {
        process_id: &execution.process_id,
        execution: execution.id,
        owner: Some(&loaded.meta.owner_name),
        database: &database_name(),
        process_started_at: execution.started_at,
    };
    Ok(context.encode())
}

/// Checks the parameters: see [`StartRequest::read`].
pub(super) fn read(place: &str, given: GivenStart, id: ExecutionId) -> Result<StartRequest> {
    let request = StartRequest::read(place, given, id, guc::max_payload_bytes())?;
    Size::of(&request.start.local_attributes).check()?;
    Ok(request)
}

/// The result of a start.
pub(super) enum StartResult {
    New(Box<Loaded>),
    /// The start was made before with the same request id, or was merged into this execution.
    Repeated(ExecutionId),
}

/// Decides under the lock of the process id, and writes the execution.
pub(super) fn begin(
    spi: &Spi,
    registry: &mut Registry,
    caller: Caller,
    request: &StartRequest,
    id: ExecutionId,
) -> Result<StartResult> {
    let process_id = &request.start.process_id;
    let to_start = TypeToStart::find(spi, registry, &request.start.process_type)?;
    let keys = keys(&to_start.mapping, request)?;
    let latest = match lock_process_id(spi, caller, request, id)? {
        LockedId::Repeated(repeated) => return Ok(StartResult::Repeated(repeated)),
        LockedId::New => None,
        LockedId::Known(latest) => Some(latest),
    };
    if let Some(repeated) = repeated(spi, caller, request)? {
        return Ok(StartResult::Repeated(repeated));
    }
    if let Some(latest) = latest {
        apply_reuse_policy(spi, registry, caller, request, &to_start, latest)?;
        process::set_latest(spi, process_id, id)?;
    }
    refuse_too_many(caller)?;
    let owner_name = owner_name(caller)?;
    let now = clock::now();
    to_start.refuse_if_paused(now)?;
    let loaded = decide_start(caller, owner_name, &to_start, keys, request, id, now)?;
    execution::insert_started(spi, &[(&loaded, request.options.request_id.as_deref())])?;
    save::save(spi, std::iter::once(&loaded), now)?;
    Ok(StartResult::New(Box::new(loaded)))
}

enum LockedId {
    New,
    /// With the id's latest execution.
    Known(ExecutionId),
    /// No lock: this execution is the result of the same request, made before.
    Repeated(ExecutionId),
}

/// Locks the process id, unless it belongs to another role. So a caller never waits for another role's process, and
/// learns nothing of its locks.
fn lock_process_id(spi: &Spi, caller: Caller, request: &StartRequest, id: ExecutionId) -> Result<LockedId> {
    let process_id = &request.start.process_id;
    loop {
        if process::claim_new_id(spi, process_id, id)? == 1 {
            return Ok(LockedId::New);
        }
        if let Some(found) = process::find(spi, process_id, None)?
            && !caller.may_drive(found.owner)?
        {
            let repeated = repeated(spi, caller, request)?;
            return repeated.map(LockedId::Repeated).ok_or_else(|| of_another(process_id));
        }
        // None: the conflicting row was deleted meanwhile. Try again.
        if let Some(latest) = process::lock_known_id(spi, process_id)? {
            return Ok(LockedId::Known(latest));
        }
    }
}

/// The error if the latest execution of a process id belongs to another role, in any status.
pub(super) fn of_another(process_id: &str) -> PgError {
    error::already_started(process_id, "It belongs to another role.", "Choose another process id.")
}

/// The execution that was started before with this request id.
pub(super) fn repeated(spi: &Spi, caller: Caller, request: &StartRequest) -> Result<Option<ExecutionId>> {
    let Some(request_id) = &request.options.request_id else { return Ok(None) };
    let process_id = &request.start.process_id;
    match process::by_request(spi, process_id, request_id)? {
        Some((repeated, owner)) if caller.may_drive(owner)? => Ok(Some(repeated)),
        Some(_) => {
            let why = "The request id was used by another role.";
            Err(error::already_started(process_id, why, "Choose another request id."))
        }
        None => Ok(None),
    }
}

/// A process type that stays registered until this transaction ends, and its present mapping.
pub(super) struct TypeToStart {
    process_type: Arc<ProcessType>,
    pub mapping: Mapping,
}

impl TypeToStart {
    pub fn id(&self) -> TypeId {
        self.process_type.id
    }

    pub fn definition(&self) -> &Definition {
        &self.process_type.definition
    }

    /// An error if a pause of the type rejects starts.
    pub fn refuse_if_paused(&self, now: Timestamp) -> Result<()> {
        super::pause::refuse_type(&self.process_type, now)
    }

    /// Whether this start begins with a thread.
    pub fn starts_in_a_state(&self, start: &Start) -> bool {
        start.starting_state.is_some() || self.definition().starting_state.is_some()
    }

    pub fn find(spi: &Spi, registry: &mut Registry, name: &str) -> Result<Self> {
        let found = registry.process_type_to_start(spi, name)?;
        let process_type = found.ok_or_else(|| error::unknown_process_type(name))?;
        let mapping = registry.mapping(spi, process_type.mapping_id)?;
        Ok(Self { process_type, mapping })
    }
}

/// An error if the caller's role has too many running processes.
pub(super) fn refuse_too_many(caller: Caller) -> Result<()> {
    match over::limit(database(), caller.role, Quota::Running) {
        Some(limit) => Err(error::too_many_running(&owner_name(caller)?, limit)),
        None => Ok(()),
    }
}

/// The execution right after its start. Its type may be paused: see [`TypeToStart::refuse_if_paused`].
pub(super) fn decide_start(
    caller: Caller,
    owner_name: String,
    to_start: &TypeToStart,
    keys: Arc<[Vec<String>]>,
    request: &StartRequest,
    id: ExecutionId,
    now: Timestamp,
) -> Result<Loaded> {
    let process_id = &request.start.process_id;
    let process_type = &to_start.process_type;
    let history = request.options.history.unwrap_or(process_type.definition.history);
    let meta = Meta {
        shard: shard_of(request.options.shard_key.as_deref().unwrap_or(process_id)),
        shard_key: request.options.shard_key.clone(),
        type_id: process_type.id,
        owner: caller.role,
        owner_name,
        mapping_id: process_type.mapping_id,
        mapping: to_start.mapping.clone(),
        keys,
        history,
        traceparent: match &request.options.traceparent {
            Some(own) => Some(own.clone()),
            None => session_traceparent()?,
        },
        closing: false,
        process_type: Some(process_type.clone()),
    };
    let mut loaded = Loaded::new(meta, Execution::new(id));
    let command = Command::Start(Box::new(request.start.clone()));
    let events =
        loaded.decide(&command, now, 0.5).map_err(|rejection| error::rejected_start(process_id, &rejection))?;
    loaded.apply(events, now)?;
    Ok(loaded)
}

/// Refuses the start or makes way for it. The policy decides, by the latest execution of the id.
fn apply_reuse_policy(
    spi: &Spi,
    registry: &mut Registry,
    caller: Caller,
    request: &StartRequest,
    to_start: &TypeToStart,
    latest: ExecutionId,
) -> Result<()> {
    let process_id = &request.start.process_id;
    refuse_own_step(latest, "xdb.start_process()")?;
    match process::find(spi, process_id, Some(latest))? {
        None => return Ok(()),
        Some(found) if !caller.may_drive(found.owner)? => return Err(of_another(process_id)),
        Some(_) => {}
    }
    if request.policy.about(ProcessStatus::Running) == Reuse::Terminate {
        lock_parents_of(spi, &[latest])?;
    }
    // Waits for transactions that stop the execution, publish to it, or apply an RPC.
    let Some(found) = process::lock_for_close(spi, latest)? else { return Ok(()) };
    match request.policy.about(found.status) {
        Reuse::Follow => Ok(()),
        // Schedules have no policy that their caller chooses.
        Reuse::Terminate if request.start.process_type == SCHEDULE && found.type_id != to_start.id() => {
            let hint = "Give the schedule another name, or stop the process.";
            Err(error::already_started(process_id, "It runs, and is no schedule.", hint))
        }
        Reuse::Terminate => {
            terminate(spi, registry, process_id, &found, "another execution of the process id was started")
        }
        Reuse::Refuse(why) => Err(error::reuse_refused(process_id, latest, why)),
    }
}

fn terminate(spi: &Spi, registry: &mut Registry, process_id: &str, found: &FoundExecution, reason: &str) -> Result<()> {
    let command = Command::Stop { stop_type: StopType::Terminate, reason: Some(reason.to_owned()) };
    super::process::close(spi, registry, process_id, found.id, command)
}

/// The values of the key columns of each mapped table.
pub(super) fn keys(mapping: &[TableMapping], request: &StartRequest) -> Result<Arc<[Vec<String>]>> {
    let keys = arguments::row_keys(mapping, request.key.as_deref(), &request.options.global_attribute_keys)?;
    Ok(keys.into())
}
