//! Registers and unregisters workers and process types.
//!
//! Limitations: a registration checks functions and tables as they are now. If they change later, the steps that use
//! them fail.

use super::answering;
use super::arguments::{json, name, name_if_given, needed};
use super::caller::{Caller, owner_name, wrote};
use super::schedule::is_of_schedules;
use super::start::SCHEDULE;
use crate::clock;
use crate::error;
use crate::guc;
use crate::http::{
    HostPolicy, Names, Notifier, WorkerUrl, check_secret, system_lookup, validate_headers, validate_url,
};
use crate::pg::catch::{Result, sqlstate};
use crate::pg::function::{Args, Value};
use crate::pg::identity;
use crate::pg::latch::wait_for_fd_or_latch;
use crate::pg::memory::room_for;
use crate::pg::param::{Jsonb, Regclass};
use crate::pg::spi::{self, Spi};
use crate::pg::timezone;
use crate::store::app_functions::{self, ReturnType};
use crate::store::catalog::{self, TableKind};
use crate::store::execution::Lock;
use crate::store::registering::{self, NewWorker, OwnedWorker, TypeToPut};
use crate::store::registry::{self, Registry, WorkerId};
use crate::store::worker_secret::{self, Secret};
use crate::store::{executions_of, lines, state};
use crate::transport::FailureKind;
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xdb_engine::{Command, Definition, Json, TableMapping};
use xdb_protocol::{MAX_DEFINITION_BYTES, check_tables, parse_definition};

/// Headers that the protocol sets itself.
const OWN_HEADERS: [&str; 3] = ["idempotency-key", "traceparent", "xdb-shard"];

/// `xdb.register_worker()`: registers a worker, or changes one of the caller's.
pub fn register_worker(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.register_worker()")?;
    let worker = name("name", args.text(0))?;
    let url = args.text(1);
    let role = pulling_role(url.is_some(), args.text(5))?;
    let not_found = match &url {
        Some(url) => check_host(&validate_url(url).map_err(|what| error::invalid_argument("url", what))?)?,
        None => None,
    };
    let secret = secret(args, 2, "secret")?;
    let headers = json(args, 3, "headers")?.filter(|text| text != "null");
    if let Some(text) = &headers {
        let pairs = headers_of(text)?;
        validate_headers(&pairs).map_err(|what| error::invalid_argument("headers", what))?;
        if let Some((own, _)) = pairs.iter().find(|(n, _)| OWN_HEADERS.contains(&n.to_ascii_lowercase().as_str())) {
            return Err(error::invalid_argument("headers", format_args!("\"{own}\" is set by the engine")));
        }
    }
    if url.is_none() && (secret.is_some() || headers.is_some()) {
        let argument = if secret.is_some() { "secret" } else { "headers" };
        return Err(error::invalid_argument(argument, "it can't be given for a worker without a URL"));
    }
    let max_concurrency = needed("max_concurrency", args.int(4))?;
    if max_concurrency < 1 {
        return Err(error::invalid_argument("max_concurrency", "it must be at least 1"));
    }
    let owner_name = owner_name(caller)?;
    caller.on_system_tables(|spi, _| {
        loop {
            let owner = registering::worker_to_put(spi, &worker)?.map_or(caller.role, |(_, owner)| owner);
            caller.own_registration("worker", &worker, owner)?;
            check_secrets(spi, caller, &worker, secret.as_slice())?;
            let new = NewWorker {
                name: &worker,
                url: url.as_deref(),
                headers: headers.as_deref().map(|text| Jsonb(text.into())),
                max_concurrency,
                owner: caller.role,
                owner_name: &owner_name,
                secrets: secret.is_some().into(),
                role: role.as_ref().map(|(oid, _)| *oid),
                role_name: role.as_ref().map(|(_, name)| name.as_str()),
            };
            if registering::put_worker(spi, new, secret.as_ref(), owner)? {
                return Ok(());
            }
        }
    })?;
    report_obstacles(&worker, role.as_ref(), not_found.as_deref())?;
    Ok(Value::Void)
}

/// Sends NOTICEs about what prevents the worker's calls for the time being.
fn report_obstacles(worker: &str, role: Option<&(pg_sys::Oid, String)>, not_found: Option<&str>) -> Result<()> {
    if let Some((oid, name)) = role
        && !identity::may_use_xdb(*oid)?
    {
        let message =
            format!("role \"{name}\" may not use XDB yet, so it can't claim the calls of worker \"{worker}\"");
        notice(message, "Grant it usage with xdb.grant_usage().");
    }
    if let Some(why) = not_found {
        let message = format!("the host of worker \"{worker}\" can't be resolved now");
        notice(message, &format!("{why}. Calls of the worker fail until its host can be resolved."));
    }
    Ok(())
}

fn notice(message: String, detail: &str) {
    pgrx::ereport!(PgLogLevel::NOTICE, PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, detail);
}

/// The role whose members may claim the calls of a pull worker.
fn pulling_role(has_url: bool, role: Option<String>) -> Result<Option<(pg_sys::Oid, String)>> {
    match role {
        Some(_) if has_url => Err(error::invalid_argument("role", "the engine calls a worker that has a URL")),
        None if !has_url => {
            let what = "it must not be null for a worker without a URL: members of the role claim its calls";
            Err(error::invalid_argument("role", what))
        }
        Some(name) => match identity::role_named(&name)? {
            Some(oid) => Ok(Some((oid, name))),
            None => Err(error::invalid_argument("role", format_args!("there is no role \"{name}\""))),
        },
        None => Ok(None),
    }
}

/// `xdb.set_worker_secret()`: replaces the secrets of a worker by none, one or two.
pub fn set_worker_secret(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.set_worker_secret()")?;
    let worker = name("name", args.text(0))?;
    let (first, second) = (secret(args, 1, "secret")?, secret(args, 2, "second_secret")?);
    if first.is_none() && second.is_some() {
        return Err(error::invalid_argument("second_secret", "it can't be given without the first secret"));
    }
    let secrets: Vec<_> = first.into_iter().chain(second).collect();
    caller.on_system_tables(|spi, _| {
        let id = own_worker(caller, &worker, registering::worker_to_put(spi, &worker)?)?;
        check_secrets(spi, caller, &worker, &secrets)?;
        registering::put_secrets(spi, id, &secrets)
    })?;
    Ok(Value::Void)
}

/// Reads a secret from an argument.
fn secret(args: &Args, number: usize, argument: &str) -> Result<Option<Secret>> {
    let parse = |text: String| Secret::parse(&text).map_err(|what| error::invalid_argument(argument, what));
    args.text(number).map(parse).transpose()
}

/// Checks that calls can be signed with all of these secrets. Only superusers may name a secret in a file or in the
/// environment. Otherwise a role could sign calls with the secret of another role, and pass them off as that role's
/// calls. The owner of a worker may name a secret again that the worker has already.
fn check_secrets(spi: &Spi, caller: Caller, worker: &str, secrets: &[Secret]) -> Result<()> {
    let known = match secrets.iter().any(Secret::is_reference) && !identity::is_superuser(caller.role) {
        true => worker_secret::of_worker(spi, worker)?,
        false => secrets.to_vec(),
    };
    if secrets.iter().any(|secret| secret.is_reference() && !known.contains(secret)) {
        return Err(error::may_not_refer());
    }
    ["secret", "second_secret"].iter().zip(secrets).try_for_each(|(argument, secret)| {
        let usable = secret.read().and_then(|text| check_secret(&text));
        usable.map_err(|what| error::invalid_argument(argument, what))
    })
}

fn headers_of(text: &str) -> Result<Vec<(String, String)>> {
    let parsed: BTreeMap<String, Json> = serde_json::from_str(text)
        .map_err(|_| error::invalid_argument("headers", "they must be an object of strings"))?;
    let string = |(name, value): (String, Json)| match serde_json::from_str(value.as_str()) {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(error::invalid_argument("headers", format_args!("the value of {name:?} must be a string"))),
    };
    parsed.into_iter().map(string).collect()
}

/// How long a registration waits for the worker's name to be resolved.
const RESOLVE_FOR: Duration = Duration::from_secs(5);

/// Refuses a host that the setting refuses already now: an address, or a name that resolves only to refused addresses.
/// A name that can't be resolved now is checked at each call. Then returns why it can't. A trigger inside the engine
/// does not wait for a name server, so its names are always checked at the call.
fn check_host(url: &WorkerUrl) -> Result<Option<String>> {
    let text = guc::text(&guc::ALLOWED_WORKER_HOSTS);
    let policy = HostPolicy::parse(&text).map_err(|what| {
        error::host_not_allowed(format!("the setting xdb.allowed_worker_hosts can't be read: {what}"))
    })?;
    let notifier = Arc::new(Notifier::new().map_err(|why| error::no_client(&why))?);
    if identity::is_engine() && url.host.parse::<IpAddr>().is_err() {
        return Ok(None);
    }
    let waker = notifier.clone();
    let names = Names::new(policy, system_lookup(), Box::new(move || waker.notify()));
    let until = Instant::now() + RESOLVE_FOR;
    loop {
        notifier.clear();
        match names.resolve(&url.host, url.port) {
            Some(Err(failure)) if failure.kind == FailureKind::Refused => {
                return Err(error::host_not_allowed(failure.message));
            }
            Some(Err(failure)) => return Ok(Some(failure.message)),
            Some(Ok(_)) => return Ok(None),
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = RESOLVE_FOR.as_secs();
            return Ok(Some(format!(
                "the worker host \"{}\" could not be looked up within {seconds} seconds",
                url.host
            )));
        }
        // A cancel of the statement makes the wait raise an error.
        wait_for_fd_or_latch(notifier.raw_fd(), left.as_millis() as i64 + 1);
    }
}

/// `xdb.unregister_worker()`: an error while process types use the worker.
pub fn unregister_worker(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.unregister_worker()")?;
    let worker = name("name", args.text(0))?;
    caller.on_system_tables(|spi, _| {
        let id = own_worker(caller, &worker, registering::worker_to_delete(spi, &worker)?)?;
        let types = registering::types_of_worker(spi, &worker)?;
        if !types.is_empty() {
            let why = format!("Process types that use it: {}.", types.join(", "));
            let hint = "Unregister these types, or register them with another worker.";
            return Err(error::in_use(format!("worker \"{worker}\" is still in use"), why, hint));
        }
        registering::delete_worker(spi, id)
    })?;
    Ok(Value::Void)
}

/// `xdb.register_process_type()`: registers a process type, or replaces one of the caller's.
pub fn register_process_type(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.register_process_type()")?;
    let process_type = name("process_type", args.text(0))?;
    let worker = name_if_given("worker", args.text(1))?;
    let text = needed("definition", json(args, 2, "definition")?)?;
    if text.len() <= MAX_DEFINITION_BYTES {
        room_for(Definition::weight(&text))?;
    }
    let mut definition = parse_definition(&text).map_err(error::invalid_definition)?;
    if let Some(longer) = definition.longer_call(guc::MAX_CALL_TIMEOUT) {
        return Err(error::over_quota(longer.to_string()));
    }
    if worker.is_none()
        && let Some(what) = definition.needs_worker()
    {
        return Err(error::invalid_definition(format!("{what}, and no worker is given")));
    }
    definition.check_ticks(timezone::next_tick, clock::now()).map_err(error::invalid_definition)?;
    // Names of tables are looked up with the caller's `search_path` and rights.
    let owner_name = owner_name(caller)?;
    spi::connect(|spi| {
        definition.global_attributes.iter_mut().try_for_each(|table| resolve_table(spi, table))?;
        name_functions(spi, &mut definition)
    })?;
    caller.on_system_tables(|spi, registry| {
        check_functions(spi, caller, &mut definition)?;
        check_tables(&definition.global_attributes).map_err(error::invalid_definition)?;
        definition.global_attributes.iter().try_for_each(|table| check_table(spi, caller, table))?;
        let worker_id = worker.as_deref().map(|worker| worker_to_use(spi, caller, worker)).transpose()?;
        let put = TypeToPut {
            name: &process_type,
            worker: worker_id,
            definition: &definition,
            role: caller.role,
            role_name: &owner_name,
            lost: None,
        };
        loop {
            let known = registering::type_to_put_in(spi, &process_type)?;
            let lost = if known.is_none() { registering::lost_type(spi, &process_type)? } else { None };
            if let Some(known) = &known {
                caller.own_registration("process type", &process_type, known.owner)?;
                keep_schedules(spi, registry, &process_type, &definition)?;
            } else if lost.is_some() {
                // The owner of the lost type is unknown, and its executions run with the rights of their owners. So
                // only superusers may register it again.
                caller.own_registration("process type", &process_type, pg_sys::InvalidOid)?;
            }
            if registering::put_process_type(spi, &TypeToPut { lost, ..put }, known.as_ref())? {
                return call_unregistered(spi, registry, &process_type);
            }
        }
    })?;
    Ok(Value::Void)
}

/// The handlers of schedules run with the rights of all roles that have schedules, so the type's owner can't change them.
fn keep_schedules(spi: &Spi, registry: &mut Registry, process_type: &str, definition: &Definition) -> Result<()> {
    if process_type != SCHEDULE || is_of_schedules(definition) {
        return Ok(());
    }
    match registry.process_type_by_name(spi, process_type)? {
        Some(now) if is_of_schedules(&now.definition) => Err(error::invalid_definition(
            "it is the type of schedules: only history, retentionSeconds and priority can be changed",
        )),
        _ => Ok(()),
    }
}

/// Makes calls of this type due whose answers have named what was not registered. If another transaction has locked a
/// process, its calls are retried after their pauses.
fn call_unregistered(spi: &Spi, registry: &mut Registry, process_type: &str) -> Result<()> {
    let now = clock::now();
    let keys = lines::unregistered(spi, process_type, now)?;
    if keys.is_empty() {
        return Ok(());
    }
    let mut loaded = answering::executions(spi, registry, &executions_of(&keys), Lock::StepOrSkip)?;
    state::states_without_inputs(spi, &mut loaded, &keys)?;
    for entry in loaded.values_mut() {
        let states = entry.execution.states.keys().copied().collect();
        if let Ok(events) = entry.decide(&Command::RetryNow(states), now, 0.5) {
            entry.apply(events, now)?;
        }
    }
    answering::save(spi, &loaded, now)?;
    wrote();
    Ok(())
}

/// Replaces the names of functions by full names: schema and name.
fn name_functions(spi: &Spi, definition: &mut Definition) -> Result<()> {
    for name in definition.functions.values_mut() {
        *name = app_functions::named(spi, name)?;
    }
    for name in definition.handlers_mut() {
        *name = app_functions::named(spi, name)?;
    }
    Ok(())
}

/// Checks that the functions can be called, also by the caller.
fn check_functions(spi: &Spi, caller: Caller, definition: &mut Definition) -> Result<()> {
    let called: BTreeSet<_> = definition.functions.values().cloned().collect();
    let handlers: BTreeSet<_> = definition.handlers_mut().map(|name| name.clone()).collect();
    let check = |name: &String, arguments, gives| app_functions::check(spi, caller.role, name, arguments, gives);
    called.iter().try_for_each(|name| check(name, 2, ReturnType::JsonOrNothing))?;
    handlers.iter().try_for_each(|name| check(name, 1, ReturnType::Json))
}

/// The worker of a process type. It must belong to the caller, because the worker sees the type's processes and decides
/// what they do.
fn worker_to_use(spi: &Spi, caller: Caller, worker: &str) -> Result<WorkerId> {
    own_worker(caller, worker, registering::worker_to_use(spi, worker)?)
}

/// The worker that was found, if the caller may change or use it.
fn own_worker(caller: Caller, worker: &str, found: Option<OwnedWorker>) -> Result<WorkerId> {
    let (id, owner) = found.ok_or_else(|| error::unknown_worker(worker))?;
    caller.own_registration("worker", worker, owner)?;
    Ok(id)
}

/// SQLSTATEs for texts that can't name a table: too many parts, or another database.
const NOT_A_NAME: [i32; 2] = [sqlstate(b"42601"), sqlstate(b"0A000")];

/// The SQLSTATE for wrong syntax of a name. Since Postgres 16, such a table just does not exist.
const INVALID_NAME: i32 = sqlstate(b"42602");

/// Whether the text is an oid. Postgres accepts oids as table names since version 16, but an oid is useless after a
/// restore.
fn is_oid(name: &str) -> bool {
    name == "-" || name.bytes().all(|byte| byte.is_ascii_digit())
}

fn resolve_table(spi: &Spi, table: &mut TableMapping) -> Result<()> {
    let relation = match catalog::find(spi, &table.table) {
        Ok(relation) => relation.filter(|_| !is_oid(&table.table)),
        Err(e) if e.code == INVALID_NAME => None,
        Err(e) if NOT_A_NAME.contains(&e.code) => {
            return Err(error::invalid_definition(format!("table {}: {}", table.table, e.message)));
        }
        Err(e) => return Err(e),
    };
    let missing = || error::invalid_definition(format!("table {} does not exist", table.table));
    table.relation = relation.ok_or_else(missing)?;
    Ok(())
}

/// Checks that the table is of the right kind, has the columns, and has the unique key. The caller must be allowed what
/// steps do in the table, because processes of other roles would do it for the caller.
fn check_table(spi: &Spi, caller: Caller, table: &TableMapping) -> Result<()> {
    let wrong = |what: String| Err(error::invalid_definition(format!("table {}: {what}", table.table)));
    match catalog::kind(spi, Regclass(table.relation))? {
        Some(TableKind { has_rows: true, is_of_system: false, is_temporary: false }) => {}
        Some(TableKind { is_temporary: true, .. }) => {
            return wrong("it is temporary: the engine can't see it".to_owned());
        }
        Some(TableKind { is_of_system: true, .. }) => return wrong("it belongs to the system".to_owned()),
        _ => return wrong("it is not an ordinary or partitioned table".to_owned()),
    }
    let columns = catalog::describe(spi, table.relation)?.map(|found| found.columns).unwrap_or_default();
    let wanted = table.attributes.values().chain(&table.primary_key);
    if let Some(missing) = wanted.into_iter().find(|column| !columns.contains_key(*column)) {
        return wrong(format!("column \"{missing}\" does not exist"));
    }
    let attributes: Vec<_> = table.attributes.values().cloned().collect();
    let relation = Regclass(table.relation);
    if let Some(Some(missing)) =
        catalog::missing_privileges(spi, caller.role, relation, &table.primary_key, &attributes)?
    {
        return Err(error::may_not_map(&table.table, &missing));
    }
    match catalog::unique_key(spi, table.relation, &table.primary_key)? {
        Some(_) => Ok(()),
        None => {
            let columns: Vec<_> = table.primary_key.iter().map(|column| format!("\"{column}\"")).collect();
            let are = if columns.len() == 1 { "is" } else { "together are" };
            wrong(format!("{} {are} neither its primary key nor a unique key", columns.join(", ")))
        }
    }
}

/// `xdb.unregister_process_type()`: an error while executions of the type run.
pub fn unregister_process_type(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.unregister_process_type()")?;
    let process_type = name("process_type", args.text(0))?;
    caller.on_system_tables(|spi, _| {
        let Some((id, owner)) = registering::type_to_delete(spi, &process_type)? else {
            return Err(error::unknown_process_type(&process_type));
        };
        caller.own_registration("process type", &process_type, owner)?;
        // Waits for open starts. New starts wait for this transaction.
        registry::lock_type(id, pg_sys::AccessExclusiveLock)?;
        match registering::running_of_type(spi, id)? {
            0 => registering::delete_process_type(spi, id),
            running => {
                let why = match running {
                    1 => "One of its executions is running.".to_owned(),
                    _ => format!("{running} of its executions are running."),
                };
                let hint = "Wait until they have ended, or stop them with xdb.stop_process().";
                Err(error::in_use(format!("process type \"{process_type}\" is still in use"), why, hint))
            }
        }
    })?;
    Ok(Value::Void)
}
