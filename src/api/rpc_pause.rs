//! RPCs of paused processes and types are refused, or wait for the end of the pause. RPCs of a process that waits for its
//! locks wait for the grant.

use super::caller::Caller;
use crate::calls::{self, Asker, CallOf};
use crate::clock;
use crate::pg::catch::Result;
use crate::pg::spi::Spi;
use crate::pg::wake::waiter::Registration;
use crate::store::execution::{self, Lock};
use crate::store::loaded::Loaded;
use crate::store::process_lock::{self, Missing};
use std::time::{Duration, Instant};
use xdb_engine::ExecutionId;
use xdb_protocol::refusal::{self, Refusal};

/// The end of a type's pause wakes up no session. So sessions poll at this interval.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Waits until the process can be called, or refuses the RPC. Returns whether it has waited.
pub(super) fn wait(caller: Caller, id: ExecutionId, deadline: Instant) -> Result<bool> {
    let Some(mut found) = obstacle(caller, id)? else { return Ok(false) };
    // Register before the next poll: an end of the pause or a grant after the poll then wakes up this session.
    let registration = Registration::register(&id.0);
    loop {
        let Obstacle { is_final, refusal } = found;
        let left = deadline.saturating_duration_since(Instant::now());
        if is_final || left.is_zero() {
            return Err(refusal.into());
        }
        registration.wait(left.min(POLL_EVERY).as_millis() as i64 + 1);
        match obstacle(caller, id)? {
            Some(still) => found = still,
            None => return Ok(true),
        }
    }
}

/// Why a process can't be called now.
struct Obstacle {
    /// Waiting is of no use.
    is_final: bool,
    refusal: Refusal,
}

/// Why the process can't be called now. Reads with the latest snapshot, at any isolation level.
fn obstacle(caller: Caller, id: ExecutionId) -> Result<Option<Obstacle>> {
    caller.on_system_tables(|spi, registry| {
        spi.with_latest_snapshot(|spi| {
            let mut loaded = execution::executions(spi, registry, &[id], Lock::None)?;
            let Some(mut loaded) = loaded.remove(&id) else { return Ok(None) };
            loaded.meta.process_type = registry.process_type_by_name(spi, &loaded.before.process_type)?;
            let now = clock::now();
            match calls::facts(&loaded, CallOf::Rpc(None), now).pauses(Asker::Session).next() {
                Some(paused) => {
                    let is_final = paused.pause().rejects(now);
                    Ok(Some(Obstacle { is_final, refusal: paused.refusal(&loaded.execution) }))
                }
                None => missing_lock(caller, spi, &loaded),
            }
        })
    })
}

/// A lock that the process waits for. Names the process that has it only if the caller may see that process.
fn missing_lock(caller: Caller, spi: &Spi, loaded: &Loaded) -> Result<Option<Obstacle>> {
    if loaded.execution.locks.is_empty() {
        return Ok(None);
    }
    let Some(Missing { name, holder, owner }) = process_lock::missing(spi, loaded.before.id)? else { return Ok(None) };
    let sees = owner.map(|owner| caller.may_drive(owner)).transpose()?.unwrap_or_default();
    let holder = holder.as_deref().filter(|_| sees);
    let refusal = refusal::waits_for_lock(&loaded.execution.process_id, &name, holder);
    Ok(Some(Obstacle { is_final: false, refusal }))
}
