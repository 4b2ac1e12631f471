//! `xdb.invoke_rpc`: calls the worker for the caller, and applies its answer in the caller's transaction.
//!
//! Limitations: an RPC that a pull worker would have to answer can't be called. The caller's transaction stays open
//! during the call.

use super::answering::{self, Answering, TablesInSession};
use super::arguments::{json, name, name_if_given, payload};
use super::caller::{Caller, owner_name, session_traceparent, wrote};
use super::rpc_deadline::{self, Deadline, locked_by};
use super::rpc_locks::Locking;
use super::{rpc_client, rpc_pause};
use crate::calls::{self, Asker, Attributes, CallOf, Loads, OutgoingCall, Verdict, eligible};
use crate::pg::catch::{PgError, Result};
use crate::pg::crash;
use crate::pg::function::{Args, Value};
use crate::pg::identity::{self, TableUse};
use crate::pg::shmem::counters::{self, CallEnd};
use crate::pg::spi::{self};
use crate::pg::wake;
use crate::store::app_functions::{self, FunctionCalls};
use crate::store::app_tables::Tables;
use crate::store::attribute::{self, LoadedLocals, Size, Versioned};
use crate::store::children::Starts;
use crate::store::execution::{self, Lock};
use crate::store::loaded::{Loaded, Meta};
use crate::store::registry::{NO_WORKER, ProcessType, Registry};
use crate::store::{counted, process};
use crate::transport::CallOutcome;
use crate::{clock, error, guc, pg};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use xdb_calls::{Written, read_rpc_answer};
use xdb_engine::*;
use xdb_protocol::*;
use xdb_sched::bytes::ByteBudget;

/// `xdb.invoke_rpc()`: the steps are find, wait for a pause, lock, load, call, apply.
pub fn invoke_rpc(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.invoke_rpc()")?.outside_engine("invoke_rpc")?;
    let process_id = name("process_id", args.text(0))?;
    let rpc_name = name("rpc_name", args.text(1))?;
    let input = payload("input", json(args, 2, "input")?)?;
    let asked = arguments::rpc_timeout(args.interval(3), guc::MAX_CALL_TIMEOUT)?;
    let mut asked = asked.map(|timeout| Deadline::after(timeout.as_std()));
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
    let loads = Loads::of_rpc(&target.config);
    let Loads { global: loading, local: loading_local } = &loads;
    refuse_superuser(caller, uses_tables(meta, |attribute| loading.wants(attribute)))?;
    let locking = Locking { rpc_name: &rpc_name, meta, execution: id, loads: &loads, deadline: deadline.at() };
    deadline.wait("locks", |_| lock_process(caller, &locking, &process_id))?;
    let (size, local) = caller.on_system_tables(|spi, _| local_attributes(spi, id, loading_local))?;
    caller.look_up(&mut tables, &meta.mapping, TableUse::Select, |attribute| loading.wants(attribute))?;
    let load = || Caller::on_app_tables(|spi| tables.load(spi, meta, loading, loading.lock_type));
    let global = match loading.locks() {
        true => deadline.wait("locks", |_| locking.within(Locking::names, load))?,
        false => load()?,
    };
    if loads.locks() {
        crash::point("rpc-locked");
    }
    let attributes = calls::attributes(&loads, global, local.iter().map(|(name, entry)| (name, &entry.value)))?;
    let invocation = Invocation {
        process_id: &process_id,
        rpc_name: &rpc_name,
        input: input.as_ref(),
        timeout: deadline.left_for_call(&rpc_name)?,
        idempotency_key: idempotency_key.as_deref(),
    };
    let (answer, context) = call(&target, &invocation, attributes).map_err(|error| deadline.explain(error))?;
    crash::point("rpc-answer");
    let warnings = answer.effects.warnings.clone();
    let output = answer.output.as_ref().map(|output| output.as_str().to_owned());
    let fingerprint = loads.fingerprint("", local.iter().map(|(name, entry)| (name, &entry.version)));
    let read = KnownLocals { size, loads, fingerprint };
    apply(caller, &invocation, id, answer, &context, &mut tables, read)?;
    // An answer that changes nothing has no event for its warnings. So the caller gets all warnings as NOTICEs.
    warnings.iter().for_each(|warning| pgrx::notice!("xdb: answer to RPC \"{rpc_name}\": {warning}"));
    Ok(output.map_or(Value::Null, Value::Json))
}

/// Refuses to run code of other roles as a superuser: functions, and triggers and policies of tables.
fn refuse_superuser(caller: Caller, runs_code: bool) -> Result<()> {
    if runs_code && identity::is_superuser(caller.role) && !guc::ALLOW_SUPERUSER_PROCESSES.get() {
        return Err(error::superuser_rpc(&owner_name(caller)?));
    }
    Ok(())
}

/// Whether a table has one of these attributes.
fn uses_tables(meta: &Meta, touched: impl Fn(&str) -> bool) -> bool {
    meta.mapping.iter().any(|table| table.attributes.keys().any(|attribute| touched(attribute)))
}

/// The digest of what an idempotency key is used for: the RPC and its input, as `jsonb` writes it. No input counts as
/// null.
fn digest(rpc_name: &str, input: Option<&Json>) -> String {
    let request =
        Sha256::new().chain_update(rpc_name).chain_update([0]).chain_update(input.map_or("null", Json::as_str));
    request.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The process and the RPC, or the answer that the idempotency key already has.
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

/// Locks the process for an RPC that excludes other changes. The lock is taken before the call, so that the process
/// does not change during the call.
fn lock_process(caller: Caller, locking: &Locking<'_>, process_id: &str) -> Result<()> {
    if locking.loads.locks() {
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

/// What was known of the local attributes before the call.
struct KnownLocals {
    size: Size,
    loads: Loads,
    fingerprint: Option<u64>,
}

/// All local attributes of an execution, if the RPC loads any.
fn local_attributes(spi: &spi::Spi, id: ExecutionId, loading: &Loading) -> Result<(Size, BTreeMap<String, Versioned>)> {
    if loading.policy == LoadPolicy::None {
        return Ok((Size::default(), BTreeMap::new()));
    }
    match attribute::with_versions(spi, &[id], ByteBudget::default())?.of(id) {
        LoadedLocals::All(size, all) => Ok((size, all.clone())),
        LoadedLocals::TooLarge(size) => Err(attribute::too_large(size)),
        // A single execution is never left out.
        LoadedLocals::LeftOut => Err(PgError::internal("local attributes were left out")),
    }
}

/// The caller's request.
struct Invocation<'a> {
    process_id: &'a str,
    rpc_name: &'a str,
    input: Option<&'a Json>,
    /// The time that the waits before the call have left.
    timeout: std::time::Duration,
    idempotency_key: Option<&'a str>,
}

enum Target {
    /// The first answer to this idempotency key.
    Answered(Option<String>),
    ToCall(Box<ToCall>),
}

/// The process and the RPC to call.
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
    let type_name = &loaded.before.process_type;
    let Some(process_type) = registry.process_type_by_name(spi, type_name)? else {
        return Err(error::unknown_process_type(type_name));
    };
    loaded.meta.process_type = Some(process_type.clone());
    let config = arguments::rpc(&process_type.definition, rpc_name)?;
    let target = ToCall { loaded, process_type, config };
    target.verdict().refuse_rpc(rpc_name)?;
    Ok(target)
}

impl ToCall {
    /// If the process or its type is paused, or the process waits for its locks, waits for the end of that. Returns the
    /// deadline: the caller's, or one that begins now.
    fn begin(&mut self, caller: Caller, process_id: &str, rpc_name: &str, asked: Option<Deadline>) -> Result<Deadline> {
        refuse_superuser(caller, self.config.function.is_some())?;
        let id = self.loaded.before.id;
        let mut deadline = asked.unwrap_or_else(|| Deadline::after(self.timeout()));
        let may_wait = matches!(self.verdict(), Verdict::Parked(_)) || !self.loaded.execution.locks.is_empty();
        let wait = |deadline| rpc_pause::wait(caller, id, deadline);
        if may_wait && deadline.wait("the end of a pause, or for locks of the process", wait)? {
            *self = caller.on_system_tables(|spi, registry| target(spi, registry, process_id, rpc_name, id))?;
            // Meanwhile the RPC may have been registered with a function.
            refuse_superuser(caller, self.config.function.is_some())?;
        }
        Ok(deadline)
    }

    /// The timeout of the RPC if the caller gives none.
    fn timeout(&self) -> std::time::Duration {
        let default = Duration(i64::from(guc::RPC_TIMEOUT_MS.get()) * 1000).min(guc::MAX_CALL_TIMEOUT);
        self.config.timeout().unwrap_or(default).as_std()
    }

    /// Whether this session may call the RPC now.
    fn verdict(&self) -> Verdict<'_> {
        let called = CallOf::Rpc(self.config.function.as_deref());
        eligible(Asker::Session, &calls::facts(&self.loaded, called, clock::now())).1
    }
}

/// Calls the worker or the function. Returns the answer, and the context for functions that the answer calls.
fn call(target: &ToCall, invocation: &Invocation<'_>, attributes: Attributes) -> Result<(RpcAnswer, String)> {
    let Invocation { rpc_name, input, timeout, idempotency_key, .. } = *invocation;
    let failed = |what: String| error::worker_failed(rpc_name, what);
    let invocation = idempotency_key.map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned);
    let origin = calls::origin(&target.loaded)?;
    let outgoing = OutgoingCall::of_rpc(origin, (rpc_name, input), &invocation, clock::now(), timeout);
    let request = outgoing.request(attributes, guc::max_request_bytes())?;
    let began = Instant::now();
    let called = match &target.config.function {
        Some(function) => {
            let body = calls::body(&request)?;
            let text = Caller::on_app_tables(|_| app_functions::answer(app_functions::find(function, 1)?, &body));
            text.and_then(|text| {
                let body = text.ok_or_else(|| failed("the function returned NULL".to_owned()))?.into_bytes();
                Ok(CallOutcome::Answer { status: 200, retry_after: None, body })
            })
        }
        None => {
            let worker = target.process_type.worker.as_ref().ok_or_else(|| error::no_worker_for_rpc(rpc_name))?;
            let unsigned = |why: Arc<str>| failed(format!("the worker's secret can't be used: {why}"));
            let secrets = worker.signing.clone().map_err(unsigned)?;
            // The call belongs to the trace of its caller.
            let traceparent = session_traceparent()?.or_else(|| target.loaded.meta.traceparent.clone());
            let meta = &target.loaded.meta;
            rpc_client::call(calls::to_worker(&request, meta, worker, &secrets, traceparent.as_deref())?)
        }
    };
    let answered = called.map(|outcome| answered(rpc_name, outcome));
    let end = answered.as_ref().map_or(CallEnd::WorkerError, |(end, _)| *end);
    let worker = target.config.function.as_ref().map_or(target.process_type.worker_id(), |_| NO_WORKER);
    counters::count_rpc(pg::process::database(), worker, end, began.elapsed());
    let answer = answered?.1?;
    let context =
        if answer.effects.call_functions.is_empty() { String::new() } else { request.call.context().encode() };
    Ok((answer, context))
}

/// How the call of an RPC has ended: its answer, or the error for its caller.
fn answered(rpc_name: &str, outcome: CallOutcome) -> (CallEnd, Result<RpcAnswer>) {
    match outcome {
        CallOutcome::Answer { status, retry_after, body } => {
            let answer = read_rpc_answer(rpc_name, (status, retry_after), &body, &calls::limits());
            let end = match &answer {
                Ok(_) => CallEnd::Ok,
                Err(_) if status == 200 => CallEnd::InvalidAnswer,
                Err(_) => CallEnd::WorkerError,
            };
            (end, answer.map_err(Into::into))
        }
        CallOutcome::Failed { kind, message } => {
            (counted::end(&calls::transport_failure(kind, &message)), Err(error::worker_failed(rpc_name, message)))
        }
    }
}

/// Applies the answer under the execution's lock. The lock is taken only now, so no step waits during the call.
fn apply(
    caller: Caller,
    invocation: &Invocation<'_>,
    id: ExecutionId,
    answer: RpcAnswer,
    context: &str,
    tables: &mut Tables,
    read: KnownLocals,
) -> Result<()> {
    let Invocation { process_id, rpc_name, idempotency_key, .. } = *invocation;
    // An answer with warnings goes on, because a strict type refuses it.
    if answer.is_read_only() && answer.effects.warnings.is_empty() && idempotency_key.is_none() {
        return Ok(());
    }
    let output = answer.output.clone();
    let closes = matches!(answer.decision, Some(Decision::Close { .. }));
    let command = Command::RpcAnswered { rpc_name: rpc_name.to_owned(), answer };
    let (lock, local_size) = (if closes { Lock::Close } else { Lock::Step }, Some(read.size));
    let tables = CallersTables { caller, context, tables, read };
    let mut answering = caller.on_system_tables(|spi, registry| {
        let mut loaded = answering::lock(spi, registry, process_id, id, lock)?;
        loaded.values_mut().for_each(|entry| entry.acting_as = Some(caller.role));
        let (command, now) = (&command, clock::now());
        let queues = Vec::new();
        let mut answering = Answering { caller, id, loaded, command, queues, lock, local_size, now, tables };
        answering.load(spi, false)?;
        Ok(answering)
    })?;
    // Before triggers of the application run: a wait in a trigger would wait for this very transaction.
    wrote();
    xdb_calls::apply(&mut answering, &command)?.of_rpc(process_id, rpc_name)?;
    caller.on_system_tables(|spi, _| {
        answering::save(spi, &answering.loaded, answering.now)?;
        if let Some(key) = idempotency_key {
            process::keep_rpc_answer(spi, id, key, output.as_ref().map(Json::as_str))?;
        }
        Ok(())
    })
}

/// The application's tables, for the answer to an RPC.
struct CallersTables<'a> {
    caller: Caller,
    /// The context of the call, for functions.
    context: &'a str,
    tables: &'a mut Tables,
    read: KnownLocals,
}

impl TablesInSession for CallersTables<'_> {
    /// Only local attributes are compared: rows of tables have been locked since they were loaded.
    fn reads(&mut self, _: &Loaded) -> Result<(Loads, String, Option<u64>)> {
        Ok((self.read.loads.clone(), String::new(), self.read.fingerprint))
    }

    fn write(&mut self, loaded: &Loaded, written: &Written<'_>) -> Result<()> {
        let (meta, Written { attributes, children, functions }) = (&loaded.meta, *written);
        let is_written = |name: &str| attributes.contains_key(name);
        refuse_superuser(self.caller, !functions.is_empty() || uses_tables(meta, is_written))?;
        self.caller.look_up(self.tables, &meta.mapping, TableUse::Update, is_written)?;
        let look_up = || FunctionCalls::look_up(&meta.definition(), functions, || Ok(self.context.to_owned()));
        let calls = self.caller.on_system_tables(|_, _| look_up())?;
        let calls = calls.after(children.as_ref().map(|children| Starts::of(loaded, children)));
        Caller::on_app_tables(|spi| {
            self.tables.update(spi, meta, attributes)?;
            calls.run()
        })
    }
}
