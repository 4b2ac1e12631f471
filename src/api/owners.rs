//! `xdb.reassign_owned`: moves everything that a role owns to another role.
//!
//! Limitations: only the current database. Messages of global queues move only if a superuser or operator calls it.

use super::arguments::needed;
use super::caller::{Caller, knows_roles};
use crate::error;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::function::{Args, Value};
use crate::pg::{identity, process};
use crate::store::owners::{self, Moves};
use crate::store::process::owners as owners_of;
use pgrx::pg_sys;
use xdb_engine::ExecutionId;

/// `xdb.reassign_owned()`: for superusers, and members of both roles. Messages of global queues are moved only if the
/// caller is an operator.
pub fn reassign_owned(args: &Args) -> Result<Value> {
    let caller = Caller::writing(c"xdb.reassign_owned()")?;
    let old = needed("old", args.role(0))?;
    let new = needed("new", args.role(1))?;
    let Some(name) = identity::role_name(new)? else {
        let what = format_args!("there is no role with oid {}", new.to_u32());
        return Err(error::invalid_argument("new", what));
    };
    // A role that no longer exists has no members.
    let is_member = |role| identity::has_privileges_of(caller.role, role);
    if !(identity::is_superuser(caller.role) || is_member(old) && is_member(new)) {
        return Err(error::may_not_reassign());
    }
    if old == new {
        return Ok(Value::Void);
    }
    // The engine waits for locked messages. So only roles that could pause the engine may lock messages.
    let messages = identity::is_administrator(caller.role);
    let moves = Moves { from: (old != pg_sys::InvalidOid).then_some(old), to: new, name: &name, messages };
    caller.on_system_tables(|spi, _| {
        if !knows_roles()? {
            return Err(error::not_adopted());
        }
        if let Some(own) = process::in_step_of().map(ExecutionId)
            && owners_of(spi, &[own])?.get(&own) == moves.from.as_ref()
        {
            return Err(error::own_step("xdb.reassign_owned()"));
        }
        let running = owners::reassign(spi, &moves)?;
        if running > 0 && identity::is_superuser(new) && !guc::ALLOW_SUPERUSER_PROCESSES.get() {
            return Err(error::superuser_process(&name, "own running processes"));
        }
        Ok(())
    })?;
    Ok(Value::Void)
}
