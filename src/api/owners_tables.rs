//! Users' tables as the owner of a process, in a client's transaction.
//!
//! The session is the client's, who need not be trusted by the owner, nor the owner by the client. So the owner's code is restricted
//! as in a step, and besides:
//!
//! - Constraints that the client's statements have deferred are checked before, as the client: else its code would run as the owner.
//! - There is nothing in `pg_temp`, where the owner's code would look for every name first.
//! - Nor does that code leave anything there, or a cursor open: the client would find it, or run it by fetching.
//! - Errors say no more of the owner's rows than the client has written.
//!
//! What protects the owner is not done where the client has the owner's rights anyway, the third where the owner has the client's. What a
//! session-level advisory lock is, nobody can tell from the client's own: such a lock stays. Nor can the owner's code be kept from what
//! belongs to the session: cursors, descriptors of large objects, and locks that the client has opened or taken there.

use super::Caller;
use crate::error;
use crate::pg::catch::Result;
use crate::pg::identity::{self, Setting};
use crate::pg::spi::{self, Spi};
use crate::store::app_tables::defer_nothing;
use crate::store::{left_behind, role_settings};
use crate::turn::why_unfit;
use pgrx::pg_sys;

/// Whose tables, for whom.
pub(super) struct OwnersTables {
    owner: pg_sys::Oid,
    /// The owner's settings of custom parameters.
    own: Vec<Setting>,
    /// The client does not have the owner's rights.
    lacks_owners_rights: bool,
    /// The owner does not have the client's rights.
    may_leave_traps: bool,
}

impl OwnersTables {
    /// Of the process's owner, who had that name when the process was started. Nothing is in `pg_temp`, or it is an error.
    pub fn of(caller: Caller, owner: pg_sys::Oid, name: &str) -> Result<Self> {
        if let Some(unfit) = why_unfit(owner, name)? {
            return Err(error::owner_is_unfit(unfit.why));
        }
        let own = caller.on_system_tables(|spi, _| role_settings::custom_settings(spi, owner))?;
        let lacks_owners_rights = !identity::has_privileges_of(caller.role, owner);
        if lacks_owners_rights && has_temporary_objects(None)? {
            return Err(error::temporary_objects());
        }
        Ok(Self { owner, own, lacks_owners_rights, may_leave_traps: !identity::has_privileges_of(owner, caller.role) })
    }

    /// Reads, as the owner.
    pub fn read<T>(&self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        self.apart(body)
    }

    /// Locks or writes, as the owner.
    pub fn write<T>(&self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        identity::as_caller(|| spi::connect(defer_nothing))?;
        self.apart(body)
    }

    fn apart<T>(&self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        let as_owner = || {
            let done = identity::as_owner_in_session(self.owner, &self.own, || spi::connect(body));
            done.map_err(|error| if self.lacks_owners_rights { error.for_others() } else { error })
        };
        if !self.may_leave_traps {
            return as_owner();
        }
        let cursors = identity::as_engine(|| spi::connect(left_behind::cursors))?;
        let value = as_owner()?;
        if has_temporary_objects(Some(self.owner))? {
            return Err(error::left_temporary_objects());
        }
        identity::as_engine(|| spi::connect(|spi| left_behind::close_new_cursors(spi, &cursors)))?;
        Ok(value)
    }
}

/// Whether anything is in `pg_temp`; only what belongs to this role, if one is given.
fn has_temporary_objects(of: Option<pg_sys::Oid>) -> Result<bool> {
    let Some(schema) = identity::temporary_schema() else { return Ok(false) };
    identity::as_engine(|| spi::connect(|spi| left_behind::has_temporary_objects(spi, schema, of)))
}
