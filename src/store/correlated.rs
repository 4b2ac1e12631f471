//! Starts that may be merged: the table `correlated_start`, and what a merge writes.

use super::loaded::Loaded;
use super::process_lock;
use super::registry::TypeId;
use super::state::State;
use super::table::{Gives, batch, insert, record, run, set_to_v, statements, table};
use crate::pg::catch::Result;
use crate::pg::param::{Jsonb, value};
use crate::pg::spi::Spi;
use pgrx::pg_sys;
use xdb_engine::{ExecutionId, FIRST_STATE, StateSeq, Timestamp};

table! {
    /// The latest start of a correlation key: the one that a new start may be merged into. A row is only a hint about
    /// where to look. If a row is missing, starts are not merged.
    pub struct CorrelatedStart<'a> in "correlated_start" {
        key { type_id: TypeId, owner: pg_sys::Oid, correlation_key: &'a str }
        other { execution_id: ExecutionId }
    }
}

record! {
    /// The input of the first state. Only a merge changes it.
    struct FirstInput<'a> of State<'a> { execution_id: ExecutionId, seq: StateSeq, input: Option<Jsonb<'a>> }
}

statements! {
    NEW = format!("{} ON CONFLICT DO NOTHING", insert::<CorrelatedStart>());
    LOCK = "SELECT execution_id FROM xdb.correlated_start \
        WHERE type_id = $1 AND owner = $2 AND correlation_key = $3 FOR UPDATE"
        => fn lock_latest(type_id: TypeId, owner: pg_sys::Oid, key: &str) -> Option<ExecutionId>;
    SET = "UPDATE xdb.correlated_start SET execution_id = $4 WHERE type_id = $1 AND owner = $2 AND correlation_key = $3"
        => fn set_latest(type_id: TypeId, owner: pg_sys::Oid, key: &str, id: ExecutionId) -> ();
    // A claim takes it with SKIP LOCKED: so the call is merged before it is claimed, or found under its lease.
    IS_UNTRIED = "SELECT t.attempt = 0 AND t.lease_until IS NULL AS is_untried FROM xdb.task t \
        WHERE t.execution_id = $1 AND t.seq = $2 FOR UPDATE";
    SET_INPUT = format!("UPDATE xdb.state_execution s SET {} FROM {} WHERE s.execution_id = v.execution_id AND s.seq = v.seq",
        set_to_v(&["input"]), batch::<FirstInput>());
    MOVE_TIMEOUT = "UPDATE xdb.process_execution SET timeout_at = $2 WHERE execution_id = $1"
        => fn move_timeout(id: ExecutionId, at: Timestamp) -> ();
    MOVE_TIMER = "UPDATE xdb.timer SET fire_at = $2 WHERE execution_id = $1 AND seq = 0 AND command = 0"
        => fn move_timer(id: ExecutionId, at: Timestamp) -> ();
}

/// Starts with the same key may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CorrelationKey<'a> {
    pub type_id: TypeId,
    pub owner: u32,
    pub key: &'a str,
}

/// Locks a key, so that only this transaction starts a process with it. A second transaction waits here for the first.
/// Returns the latest start. If there was none, returns None, and `new` is the latest start.
pub fn lock(spi: &Spi, key: CorrelationKey<'_>, new: ExecutionId) -> Result<Option<ExecutionId>> {
    let row =
        CorrelatedStart { type_id: key.type_id, owner: key.owner.into(), correlation_key: key.key, execution_id: new };
    loop {
        if run(spi, &NEW, std::slice::from_ref(&row))? == 1 {
            return Ok(None);
        }
        // None: the conflicting row was deleted meanwhile. Try again.
        if let Some(latest) = lock_latest(spi, key.type_id, key.owner.into(), key.key)? {
            return Ok(Some(latest));
        }
    }
}

/// Makes an execution the latest start of a locked key.
pub fn set(spi: &Spi, key: CorrelationKey<'_>, id: ExecutionId) -> Result<()> {
    set_latest(spi, key.type_id, key.owner.into(), key.key, id)
}

/// Locks the call of an execution's first state. True if no attempt of the call has begun. Waits for a transaction that
/// is claiming it.
pub fn is_untried(spi: &Spi, id: ExecutionId) -> Result<bool> {
    Gives::of(spi, &IS_UNTRIED, &[value(id), value(FIRST_STATE)])
}

/// Writes what merges have changed, besides what every step writes.
pub(super) fn write(spi: &Spi, merged: &[&Loaded]) -> Result<()> {
    for Loaded { before, execution, .. } in merged {
        let (execution_id, seq) = (execution.id, FIRST_STATE);
        let first = execution.states.get(&seq);
        let input = first.and_then(|state| state.input.as_ref()).map(Jsonb::from);
        run(spi, &SET_INPUT, &[FirstInput { execution_id, seq, input }])?;
        if let Some(at) = execution.timeout_at.filter(|_| execution.timeout_at != before.timeout_at) {
            move_timeout(spi, execution_id, at)?;
            move_timer(spi, execution_id, at)?;
        }
        if let Some(call) = execution.first_call().filter(|_| !execution.locks.is_empty()) {
            process_lock::move_request(spi, execution_id, call.not_before)?;
        }
    }
    Ok(())
}
