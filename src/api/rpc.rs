//! `invoke_rpc`: the worker is called on behalf of the caller, and its answer is applied in the caller's transaction.

use super::answering::{self, Answering};
use super::rpc_deadline::{self, Deadline, locked_by};
use super::rpc_locks::Locking;
use super::{Caller, json, name, name_if_given, payload, session_traceparent, wrote};
use super::{rpc_client, rpc_pause};
use crate::calls;
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::identity::{self, TableUse};
use crate::pg::memory;
use crate::pg::process::database_name;
use crate::pg::spi::{self};
use crate::pg::wake;
use crate::store::app_functions::{self, Calls};
use crate::store::app_tables::{Tables, object};
use crate::store::attribute::{self, Found, Size};
use crate::store::execution::{self, Lock};
use crate::store::loaded::{Loaded, Meta};
use crate::store::registry::{ProcessType, Registry};
use crate::store::{locks, process};
use crate::transport::{Outcome, Request};
use crate::{clock, error, guc};
use pgrx::pg_sys;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use xdb_engine::*;
use xdb_protocol::*;
use xdb_sched::bytes::ByteBudget;

pub fn invoke_rpc(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.invoke_rpc()")?.outside_engine("invoke_rpc")?;
    let process_id = name("process_id", args.text(0))?;
    let rpc_name = name("rpc_name", args.text(1))?;
    let input = payload("input", json(args, 2, "input")?)?;
    let mut asked = timeout_given(args.interval(3))?.map(|timeout| Deadline::after(timeout.as_std()));
    let idempotency_key = name_if_given("idempotency_key", args.text(4))?;
    let execution = args.execution_id(5);

    let mut tables = Tables::default();
    let key = idempotency_key.as_deref().map(|key| (key, digest(&rpc_name, input.as_ref())));
    let mut target = match find(caller, &process_id, execution, &rpc_name, key, asked.as_mut())? {
        Target::Answered(output) => return Ok(output.map_or(Value::Null, Value::Json)),
        Target::ToCall(target) => *target,
    };
    let mut deadline = target.begin(caller, &process_id, &rpc_name, asked)?;
    let (meta, id) = (&target.loaded.meta, target.loaded.before.id);
    let (loading, loading_local) = target.loading();
    refuse_superuser(caller, uses_tables(meta, |attribute| loading.wants(attribute)))?;
    let locking = Locking {
        rpc_name: &rpc_name,
        meta,
        execution: id,
        global: &loading,
        local: &loading_local,
        deadline: deadline.at(),
    };
    deadline.wait("locks", |_| lock_process(caller, &locking, &process_id))?;
    let local = caller.on_system_tables(|spi, _| local_attributes(spi, id, &loading_local))?;
    caller.look_up(&mut tables, &meta.mapping, TableUse::Select, |attribute| loading.wants(attribute))?;
    let load = || Caller::on_users_tables(|spi| tables.load(spi, meta, &loading, loading.lock_type));
    let global = match loading.locks() {
        true => deadline.wait("locks", |_| locking.within(Locking::names, load))?,
        false => load()?,
    };
    if locking.is_wanted() {
        crash::point("rpc-locked");
    }
    let values = locking.is_wanted().then(|| fingerprint(&global, &local.members));
    let invocation = Invocation {
        process_id: &process_id,
        rpc_name: &rpc_name,
        input: input.as_ref(),
        timeout: deadline.left_for_call(&rpc_name)?,
        idempotency_key: idempotency_key.as_deref(),
        values,
    };
    let called = call(&target, &invocation, &global, &local.members);
    let (answer, context) = called.map_err(|error| deadline.explain(error))?;
    crash::point("rpc-answer");
    let warnings = answer.effects.warnings.clone();
    let output = answer.output.as_ref().map(|output| output.as_str().to_owned());
    let read = Read { size: local.size, locked: loading_local.locks().then_some((loading_local, local.versions)) };
    apply(caller, &invocation, id, answer, &context, &mut tables, read)?;
    // An answer that changes nothing has no event: its caller gets them as NOTICEs too.
    warnings.iter().for_each(|warning| pgrx::notice!("xdb: answer to RPC \"{rpc_name}\": {warning}"));
    Ok(output.map_or(Value::Null, Value::Json))
}

/// The caller's own timeout, if there is one.
fn timeout_given(argument: Option<Option<Duration>>) -> Result<Option<Duration>> {
    let timeout = match argument {
        Some(None | Some(Duration(0))) => return Err(error::invalid_argument("timeout", "it must be positive")),
        Some(timeout) => timeout,
        None => None,
    };
    match timeout.and_then(|timeout| LongerCall::of(timeout, guc::MAX_CALL_TIMEOUT)) {
        Some(longer) => Err(error::over_quota(longer.to_string())),
        None => Ok(timeout),
    }
}

/// Refuses to run somebody's code as a superuser: that of a function, or what the owner of a table has in it, a trigger or a policy.
fn refuse_superuser(caller: Caller, runs_code: bool) -> Result<()> {
    if runs_code && identity::is_superuser(caller.role) && !guc::ALLOW_SUPERUSER_PROCESSES.get() {
        return Err(error::superuser_rpc());
    }
    Ok(())
}

/// Whether a table has one of these attributes.
fn uses_tables(meta: &Meta, touched: impl Fn(&str) -> bool) -> bool {
    meta.mapping.iter().any(|table| table.attributes.keys().any(|attribute| touched(attribute)))
}

/// Stands for what an idempotency key is used for: the RPC and its input, as `jsonb` writes it. No input is the input null.
fn digest(rpc_name: &str, input: Option<&Json>) -> String {
    let request =
        Sha256::new().chain_update(rpc_name).chain_update([0]).chain_update(input.map_or("null", Json::as_str));
    request.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is to be called, unless the idempotency key has its answer already.
fn find(
    caller: Caller,
    process_id: &str,
    execution: Option<ExecutionId>,
    rpc_name: &str,
    key: Option<(&str, String)>,
    asked: Option<&mut Deadline>,
) -> Result<Target> {
    caller.on_system_tables(|spi, registry| {
        let found = caller.find(spi, process_id, execution)?;
        if let Some((key, digest)) = key {
            let claim = || process::claim_rpc_key(spi, found.id, key, &digest, clock::now());
            let used = || format!("a session that uses idempotency key \"{key}\"");
            let first = match asked {
                Some(deadline) => deadline.wait("an idempotency key", |at| locked_by(at, rpc_name, used, claim))?,
                None => claim()?,
            };
            match first {
                Some(first) if first.digest == digest => return Ok(Target::Answered(first.output)),
                Some(_) => return Err(error::key_of_another_rpc(key)),
                None => {}
            }
        }
        let target = target(spi, registry, process_id, rpc_name, found.id)?;
        Ok(Target::ToCall(Box::new(target)))
    })
}

/// Locks the process of an RPC that wants to be alone with it: before the call, so that nothing of it changes meanwhile.
fn lock_process(caller: Caller, locking: &Locking<'_>, process_id: &str) -> Result<()> {
    if locking.is_wanted() {
        // The other half of the time is for the locks and the call.
        let until = rpc_deadline::halfway(locking.deadline);
        Locking { deadline: until, ..*locking }.respect_marks(caller)?;
        wake::note_locked_attributes();
    }
    if locking.excludes() {
        let what = |_: &Locking<'_>| format!("process \"{process_id}\"");
        locking.within(what, || {
            caller.on_system_tables(|spi, registry| {
                execution::executions(spi, registry, &[locking.execution], Lock::Step).map(drop)
            })
        })?;
        wake::note_locked(locking.execution.0);
    }
    Ok(())
}

/// Local attributes that an RPC gets.
struct Local {
    /// The text of a JSON object.
    members: String,
    /// Of all that the execution has, if any were loaded.
    size: Size,
    /// Of those that it locks.
    versions: Versions,
}

/// What is known of the local attributes when the answer comes.
struct Read {
    size: Size,
    /// What was loaded under locks.
    locked: Option<(Loading, Versions)>,
}

type Versions = BTreeMap<String, String>;

fn local_attributes(spi: &spi::Spi, id: ExecutionId, loading: &Loading) -> Result<Local> {
    if loading.policy == LoadPolicy::None {
        return Ok(Local { members: String::from("{}"), size: Size::default(), versions: Versions::new() });
    }
    let read = attribute::with_versions(spi, &[id], ByteBudget::default())?;
    let (size, all) = match read.of(id) {
        Found::All(size, all) => (size, all),
        Found::TooLarge(size) => return Err(attribute::too_large(size)),
        // One alone never is.
        Found::LeftOut => return Err(PgError::internal("local attributes were left out")),
    };
    let wanted = all.iter().filter(|(key, _)| loading.wants(key));
    let members = object(wanted.map(|(key, entry)| (key.as_str(), entry.value.as_str())))?;
    let versions = locks::versions_of(loading, all.iter().map(|(name, entry)| (name, &entry.version)));
    Ok(Local { members, size, versions })
}

/// The versions now of what an RPC has loaded under locks.
fn versions_now(spi: &spi::Spi, id: ExecutionId, loading: &Loading) -> Result<Versions> {
    let versions = attribute::versions(spi, &[id])?.remove(&id).unwrap_or_default();
    Ok(locks::versions_of(loading, versions.iter()))
}

/// What the caller asks for.
struct Invocation<'a> {
    process_id: &'a str,
    rpc_name: &'a str,
    input: Option<&'a Json>,
    /// What the waits before the call have left of the RPC's.
    timeout: std::time::Duration,
    idempotency_key: Option<&'a str>,
    /// Stands for the loaded values, if some of them are locked.
    values: Option<u64>,
}

enum Target {
    /// The first answer to this idempotency key.
    Answered(Option<String>),
    ToCall(Box<ToCall>),
}

/// What is called.
struct ToCall {
    loaded: Loaded,
    process_type: Arc<ProcessType>,
    config: RpcConfig,
}

fn target(
    spi: &spi::Spi,
    registry: &mut Registry,
    process_id: &str,
    rpc_name: &str,
    id: ExecutionId,
) -> Result<ToCall> {
    let mut loaded = execution::executions(spi, registry, &[id], Lock::None)?;
    let mut loaded = loaded.remove(&id).ok_or_else(|| error::unknown_process(process_id))?;
    let type_name = loaded.before.process_type.clone();
    let Some(process_type) = registry.process_type_by_name(spi, &type_name)? else {
        return Err(error::unknown_process_type(&type_name));
    };
    loaded.meta.process_type = Some(process_type.clone());
    let Some(config) = process_type.definition.rpc(rpc_name) else {
        let known: Vec<_> =
            process_type.definition.rpcs.iter().flat_map(|rpcs| rpcs.keys().map(String::as_str)).collect();
        return Err(error::unknown_word("rpc_name", rpc_name, &known));
    };
    if config.function.is_none() && process_type.pulled_by().is_some() {
        return Err(error::worker_is_not_called(rpc_name));
    }
    Ok(ToCall { loaded, process_type, config })
}

impl ToCall {
    /// Waits until the pause is over, if it is in one. Gives the deadline: the one that the caller asked for, or its own from now on.
    fn begin(&mut self, caller: Caller, process_id: &str, rpc_name: &str, asked: Option<Deadline>) -> Result<Deadline> {
        refuse_superuser(caller, self.config.function.is_some())?;
        let id = self.loaded.before.id;
        let mut deadline = asked.unwrap_or_else(|| Deadline::after(self.timeout()));
        let is_paused = self.loaded.before.pause.is_some() || self.process_type.pause.is_some();
        let wait = |deadline| rpc_pause::wait(caller, process_id, id, deadline);
        if is_paused && deadline.wait("the end of a pause", wait)? {
            *self = caller.on_system_tables(|spi, registry| target(spi, registry, process_id, rpc_name, id))?;
            // It may have been registered with a function meanwhile.
            refuse_superuser(caller, self.config.function.is_some())?;
        }
        Ok(deadline)
    }

    /// How long the RPC may take where its caller does not say.
    fn timeout(&self) -> std::time::Duration {
        let own = self.config.timeout_seconds.filter(|s| *s > 0.0).map(Duration::from_seconds);
        let default = Duration(i64::from(guc::RPC_TIMEOUT_MS.get()) * 1000).min(guc::MAX_CALL_TIMEOUT);
        own.unwrap_or(default).as_std()
    }

    /// Of global and of local attributes.
    fn loading(&self) -> (Loading, Loading) {
        let config = &self.config;
        let own = |loading: &Option<Loading>| loading.clone().unwrap_or_default();
        (own(&config.load_global_attributes), own(&config.load_local_attributes))
    }
}

/// The answer, and what functions that it calls are told of the call.
fn call(target: &ToCall, invocation: &Invocation<'_>, global: &str, local: &str) -> Result<(RpcAnswer, String)> {
    let Invocation { rpc_name, input, timeout, idempotency_key, values, .. } = *invocation;
    let execution = &target.loaded.before;
    let failed = |what: String| error::worker_failed(rpc_name, what);
    let invocation = idempotency_key.map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned);
    let id = rpc_call_id(execution.id, rpc_name, &invocation);
    let (owner, shard) = (identity::role_name(target.loaded.meta.owner)?, target.loaded.meta.chosen_shard());
    // The call belongs to what its caller does.
    let traceparent = session_traceparent()?.or_else(|| target.loaded.meta.traceparent.clone());
    let request = RpcRequest {
        context: CallContext {
            process_id: &execution.process_id,
            execution: execution.id,
            owner: owner.as_deref(),
            database: &database_name(),
            process_started_at: execution.started_at,
            state_execution_id: None,
            attempt: 1,
            call_id: &id,
            first_attempt_at: clock::now(),
            timeout,
            shard,
            recovery: None,
        },
        process_type: &execution.process_type,
        rpc_name,
        input,
        loaded_global_attributes: global,
        loaded_local_attributes: local,
    };
    calls::check_size(request.payload_bytes())?;
    memory::room_for(request.payload_bytes())?;
    let context = |answer: &RpcAnswer| {
        if answer.effects.call_functions.is_empty() { String::new() } else { request.context.encode() }
    };
    if let Some(function) = &target.config.function {
        let ask = || app_functions::answer(app_functions::find(function, 1)?, &request.encode());
        let text = Caller::on_users_tables(|_| ask())?;
        let body = text.ok_or_else(|| failed("the function has answered with NULL".to_owned()))?.into_bytes();
        let answer = answered(target, rpc_name, Outcome::Answer { status: 200, retry_after: None, body })?;
        let context = context(&answer);
        return Ok((answer, context));
    }
    let worker = target.process_type.worker.as_ref().ok_or_else(|| error::no_worker_for_rpc(rpc_name))?;
    let unsigned = |why: Arc<str>| failed(format!("the worker's secret can't be used: {why}"));
    let secrets = worker.signing.clone().map_err(unsigned)?;
    let call = Request {
        tag: 0,
        url: calls::rpc_url(worker)?,
        headers: calls::headers(worker, request_key(&id, 0, values), shard, traceparent.as_deref()),
        body: request.encode().into_bytes(),
        timeout,
        secrets,
    };
    let answer = answered(target, rpc_name, rpc_client::call(call)?)?;
    let context = context(&answer);
    Ok((answer, context))
}

/// The answer of an RPC, or its caller's error.
fn answered(target: &ToCall, rpc_name: &str, outcome: Outcome) -> Result<RpcAnswer> {
    let failed = |what: String| error::worker_failed(rpc_name, what);
    match outcome {
        Outcome::Answer { status: 200, body, .. } => {
            let answer = calls::decode_rpc_answer(&body).map_err(failed)?;
            let warnings = &answer.effects.warnings;
            match target.process_type.definition.strict_answers && !warnings.is_empty() {
                true => Err(failed(warnings.join("; "))),
                false => Ok(answer),
            }
        }
        Outcome::Answer { status, retry_after, body } => {
            // What it says about further attempts is for the caller, who makes them.
            let (failure, _) = decode_error(status, retry_after, &body);
            Err(error::worker_refused(rpc_name, status, failure))
        }
        Outcome::Failed { message, .. } => Err(failed(message)),
    }
}

/// Applies the answer under the execution's lock, which is taken only now: no step waited while the worker worked.
fn apply(
    caller: Caller,
    invocation: &Invocation<'_>,
    id: ExecutionId,
    answer: RpcAnswer,
    context: &str,
    tables: &mut Tables,
    read: Read,
) -> Result<()> {
    let idempotency_key = invocation.idempotency_key;
    if answer.is_read_only() && idempotency_key.is_none() {
        return Ok(());
    }
    let output = answer.output.clone();
    let attributes = answer.effects.write_global_attributes.clone();
    let functions = answer.effects.call_functions.clone();
    let (loaded, now) =
        caller.on_system_tables(|spi, registry| decide(spi, registry, caller.role, invocation, id, answer, read))?;
    // Before the user's triggers run: what waits in them would wait for this very transaction.
    wrote();
    let changed = loaded.values().find(|entry| !entry.events.is_empty()).map(|entry| &entry.meta);
    if let Some(meta) = changed.filter(|_| !attributes.is_empty() || !functions.is_empty()) {
        refuse_superuser(caller, !functions.is_empty() || uses_tables(meta, |name| attributes.contains_key(name)))?;
        caller.look_up(tables, &meta.mapping, TableUse::Update, |attribute| attributes.contains_key(attribute))?;
        let definition = meta.definition();
        let look_up = || Calls::look_up(&definition, &functions, || Ok(context.to_owned()));
        let calls = caller.on_system_tables(|_, _| look_up())?;
        Caller::on_users_tables(|spi| {
            tables.update(spi, meta, &attributes)?;
            calls.run()
        })?;
    }
    caller.on_system_tables(|spi, _| {
        answering::save(spi, &loaded, now)?;
        if let Some(key) = idempotency_key {
            process::keep_rpc_answer(spi, id, key, output.as_ref().map(Json::as_str))?;
        }
        Ok(())
    })
}

/// Loads the execution under its lock, and decides about the answer in memory.
fn decide(
    spi: &spi::Spi,
    registry: &mut Registry,
    role: pg_sys::Oid,
    invocation: &Invocation<'_>,
    id: ExecutionId,
    answer: RpcAnswer,
    read: Read,
) -> Result<(BTreeMap<ExecutionId, Loaded>, Timestamp)> {
    let Invocation { process_id, rpc_name, .. } = *invocation;
    let closes = matches!(answer.decision, Some(Decision::Close { .. }));
    let command = Command::RpcAnswered { rpc_name: rpc_name.to_owned(), answer };
    let lock = if closes { Lock::Close } else { Lock::Step };
    let mut loaded = answering::lock(spi, registry, process_id, id, lock)?;
    // Under the lock: the times of events are in their order.
    let now = clock::now();
    if let Some((loading, versions)) = &read.locked
        && versions_now(spi, id, loading)? != *versions
    {
        return Err(error::local_attributes_changed(rpc_name));
    }
    if let Some(entry) = loaded.get_mut(&id) {
        entry.acting_as = Some(role);
    }
    let local_size = Some(read.size);
    let answering = Answering { id, command: &command, queues: Vec::new(), lock, local_size, without_arrivals: false };
    let decided = answering.decide(spi, registry, &mut loaded, now)?;
    decided.map_err(|rejection| error::rejected_rpc(process_id, rpc_name, &rejection))?;
    Ok((loaded, now))
}
