//! RPCs of paused processes and types are refused, or wait for the end of the pause.

use super::Caller;
use crate::calls::{self, Asker, CallOf};
use crate::clock;
use crate::pg::catch::Result;
use crate::pg::wake::waiter::Registration;
use crate::store::execution::{self, Lock};
use std::time::{Duration, Instant};
use xdb_engine::{ExecutionId, PauseMode};
use xdb_protocol::refusal::Refusal;

/// The end of a type's pause wakes up no session. So sessions poll at this interval.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Waits until the process can be called, or refuses the RPC. Returns whether it has waited.
pub(super) fn wait(caller: Caller, id: ExecutionId, deadline: Instant) -> Result<bool> {
    let Some(mut paused) = pause_of(caller, id)? else { return Ok(false) };
    // Register before the next poll: an end of the pause after the poll then wakes up this session.
    let registration = Registration::register(&id.0);
    loop {
        let (mode, refusal) = paused;
        let left = deadline.saturating_duration_since(Instant::now());
        if mode == PauseMode::Reject || left.is_zero() {
            return Err(refusal.into());
        }
        registration.wait(left.min(POLL_EVERY).as_millis() as i64 + 1);
        match pause_of(caller, id)? {
            Some(still) => paused = still,
            None => return Ok(true),
        }
    }
}

/// The mode of the pause that the process is in, and the refusal. Reads with the latest snapshot, at any isolation
/// level.
fn pause_of(caller: Caller, id: ExecutionId) -> Result<Option<(PauseMode, Refusal)>> {
    caller.on_system_tables(|spi, registry| {
        spi.with_latest_snapshot(|spi| {
            let mut loaded = execution::executions(spi, registry, &[id], Lock::None)?;
            let Some(mut loaded) = loaded.remove(&id) else { return Ok(None) };
            loaded.meta.process_type = registry.process_type_by_name(spi, &loaded.before.process_type)?;
            let paused = calls::facts(&loaded, CallOf::Rpc(None), clock::now()).pauses(Asker::Session).next();
            Ok(paused.map(|paused| (paused.pause().mode, paused.refusal(&loaded.execution))))
        })
    })
}
