//! Starts with a correlation key: each is merged into an earlier start that has not begun, or is a start of its own.
//!
//! ```text
//!   correlated_start ── lock the key: starts with one key wait for each other
//!        ▼ latest start
//!   process_execution ── lock: it runs, belongs to the caller, and its first state is at its first call
//!        ▼
//!   task ── lock: no attempt has begun, and none begins before this transaction ends
//!        ▼
//!   the caller's function merges the two inputs, as the caller
//!        ▼ still the same?  ── the function may have done anything
//!   StartMerged, or a start of its own that is the latest one from now on
//! ```
//!
//! Limitations: above `READ COMMITTED`, a start whose snapshot is too old to be merged fails with `40001`.

use super::arguments::payload;
use super::caller::{Caller, owner_name, wrote};
use super::start::{StartResult, TypeToStart, begin, decide_start, keys};
use crate::pg::catch::Result;
use crate::pg::crash;
use crate::pg::spi::Spi;
use crate::pg::wake;
use crate::store::app_functions::MergeFunction;
use crate::store::correlated::{self, CorrelationKey};
use crate::store::execution::{self, Lock};
use crate::store::loaded::Loaded;
use crate::store::registry::{Registry, TypeId};
use crate::store::{process_lock, save, state};
use crate::{clock, error};
use xdb_engine::*;
use xdb_protocol::{Correlation, StartRequest};

/// Locks the keys of these starts, in the same order in all transactions.
pub(super) fn lock_all(caller: Caller, starts: &[(&StartRequest, ExecutionId)]) -> Result<()> {
    caller.on_system_tables(|spi, registry| {
        let mut keys = Vec::with_capacity(starts.len());
        for (request, id) in starts {
            let Some(correlation) = &request.options.correlation else { continue };
            let to_start = TypeToStart::find(spi, registry, &request.start.process_type)?;
            keys.push((key(caller, to_start.id(), correlation), *id));
        }
        keys.sort();
        keys.dedup_by_key(|(key, _)| *key);
        keys.into_iter().try_for_each(|(key, id)| correlated::lock(spi, key, id).map(drop))
    })
}

fn key(caller: Caller, type_id: TypeId, correlation: &Correlation) -> CorrelationKey<'_> {
    CorrelationKey { type_id, owner: caller.role.to_u32(), key: &correlation.key }
}

/// Merges a start into the latest start of its key, or starts a new execution.
pub(super) fn merge_or_begin(
    caller: Caller,
    request: &StartRequest,
    correlation: &Correlation,
    id: ExecutionId,
) -> Result<StartResult> {
    let (type_id, found) = caller.on_system_tables(|spi, registry| {
        let to_start = TypeToStart::find(spi, registry, &request.start.process_type)?;
        if !to_start.starts_in_a_state(&request.start) {
            let what = "the process type has no starting state, so its starts can't be merged";
            return Err(error::invalid_argument("options.correlationKey", what));
        }
        // A start that would be refused on its own can't be merged either.
        let keys = keys(&to_start.mapping, request)?;
        let now = clock::now();
        to_start.refuse_if_paused(now)?;
        decide_start(caller, owner_name(caller)?, &to_start, keys, request, id, now)?;
        let latest = correlated::lock(spi, key(caller, to_start.id(), correlation), id)?;
        let pending = latest.map(|latest| pending(spi, registry, caller, latest)).transpose()?;
        Ok((to_start.id(), pending.flatten()))
    })?;
    if let Some(found) = found
        && let Some(merge) = merge_with(&found, request, correlation)?
        && caller.on_system_tables(|spi, registry| apply(spi, registry, caller, found.before.id, &merge))?
    {
        wrote();
        return Ok(StartResult::Repeated(found.before.id));
    }
    if let MergedInput::Function(name) = &correlation.merge.input {
        // A start whose merge function is invalid is refused too.
        Caller::on_functions(|spi| MergeFunction::find(spi, name))?;
    }
    caller.on_system_tables(|spi, registry| {
        let begun = begin(spi, registry, caller, request, id)?;
        correlated::set(spi, key(caller, type_id, correlation), id)?;
        Ok(begun)
    })
}

/// The start of this execution, if another start can be merged into it. Its locks keep it so until the transaction
/// ends.
fn pending(spi: &Spi, registry: &mut Registry, caller: Caller, id: ExecutionId) -> Result<Option<Loaded>> {
    // Waits for steps and RPCs, up to the caller's timeouts.
    let mut loaded = execution::executions(spi, registry, &[id], Lock::Step)?;
    wake::note_locked(id.0);
    let owner_name = owner_name(caller)?;
    let is_own = |Loaded { before, meta, .. }: &Loaded| {
        before.is_running() && meta.owner == caller.role && meta.owner_name == owner_name
    };
    if !loaded.get(&id).is_some_and(is_own) {
        return Ok(None);
    }
    // Before its task, so that the scheduler passes it over.
    process_lock::waiting(spi, loaded.values())?;
    if !correlated::is_untried(spi, id)? {
        return Ok(None);
    }
    state::states(spi, &mut loaded, &[(id, FIRST_STATE)])?;
    Ok(loaded.remove(&id).filter(|loaded| loaded.execution.first_call().is_some()))
}

/// The command that merges the two starts, as the options say. None: the starts stay separate.
fn merge_with(found: &Loaded, request: &StartRequest, correlation: &Correlation) -> Result<Option<Command>> {
    let command =
        merge_start(&found.execution, &request.start, &correlation.merge, clock::now(), |name, pending, new| {
            Caller::on_functions(|spi| MergeFunction::find(spi, name)?.call(pending, new))
        })?;
    if let Some(Command::MergeStart { input: Some(input), .. }) = &command {
        payload("input", Some(input.as_str().to_owned()))?;
    }
    Ok(command)
}

/// Applies the merge. False if the function's own changes make the merge impossible: then the start gets its own
/// execution.
fn apply(spi: &Spi, registry: &mut Registry, caller: Caller, into: ExecutionId, merge: &Command) -> Result<bool> {
    let Some(mut loaded) = pending(spi, registry, caller, into)? else { return Ok(false) };
    let now = clock::now();
    let Ok(events) = loaded.decide(merge, now, 0.5) else { return Ok(false) };
    loaded.apply(events, now)?;
    save::save(spi, std::iter::once(&loaded), now)?;
    crash::point("merge");
    Ok(true)
}
