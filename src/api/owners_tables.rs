//! Uses the application's tables as the owner of a process, in a client's transaction.
//!
//! The session is the client's. Neither role trusts the other. So the owner's code is restricted as in a step, and all
//! code of the client's runs before it:
//!
//! ```text
//!   constraints that the client has deferred, as the session's role, which defers nothing more
//!     ▼
//!   is anything in pg_temp?   the owner's code would find it first
//!     ▼
//!   the owner's code          its messages do not reach the client, but its error does, without values of rows
//!     ▼
//!   is anything new there?    the client would find it; a new cursor is closed: the client's FETCH would run it
//! ```
//!
//! The owner needs no protection from a client with the owner's rights. The client needs none from an owner with the
//! client's rights.
//!
//! Limitations: a session-level advisory lock that the owner's code takes stays, because it can't be told from the
//! client's locks. The owner's code can use the client's open cursors, descriptors of large objects, and locks.

use super::caller::Caller;
use crate::error;
use crate::pg::catch::Result;
use crate::pg::commit::leasing;
use crate::pg::identity::{self, Setting};
use crate::pg::spi::{self, Spi};
use crate::store::app_tables::defer_nothing;
use crate::store::{left_behind, role_settings};
use crate::turn::why_unfit;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// After this time, a session reads the server's configuration again.
const CONFIGURED_KEPT_FOR: Duration = Duration::from_secs(10);

thread_local! {
    /// The configuration of the server and the database, and when this session read it.
    static CONFIGURED: RefCell<Option<(Instant, Rc<[Setting]>)>> = const { RefCell::new(None) };
}

/// The tables of one owner, used in the session of one client.
pub(super) struct OwnersTables {
    owner: pg_sys::Oid,
    /// Settings that decide what statements mean.
    configured: Rc<[Setting]>,
    /// The owner's settings of custom parameters.
    own: Vec<Setting>,
    /// Whether the client lacks the owner's rights.
    lacks_owners_rights: bool,
    /// Whether the owner lacks the client's rights.
    may_leave_traps: bool,
}

impl OwnersTables {
    /// For the process's owner. `name`: the owner's name when the process was started. From here on, no code of the
    /// client runs. If `pg_temp` has any objects, that is an error.
    pub fn of(caller: Caller, owner: pg_sys::Oid, name: &str) -> Result<Self> {
        if let Some(unfit) = why_unfit(owner, name)? {
            return Err(error::owner_is_unfit(unfit.why));
        }
        let own = caller.on_system_tables(|spi, _| role_settings::custom_settings(spi, owner))?;
        let configured = configured(caller)?;
        // Both roles count: a function with the rights of another role may be the caller, and the session's objects
        // don't belong to that role.
        let clients = [caller.role, identity::session_role()];
        let lacks_owners_rights = clients.iter().any(|client| !identity::has_privileges_of(*client, owner));
        if lacks_owners_rights {
            identity::as_at_commit(true, || spi::connect(defer_nothing))?;
            if !temporary_objects()?.is_empty() {
                return Err(error::temporary_objects());
            }
        }
        let may_leave_traps = clients.iter().any(|client| !identity::has_privileges_of(owner, *client));
        Ok(Self { owner, configured, own, lacks_owners_rights, may_leave_traps })
    }

    /// Reads as the owner.
    pub fn read<T>(&self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        if self.lacks_owners_rights { identity::unheard(|| self.apart(body)) } else { self.apart(body) }
    }

    /// Locks or writes as the owner.
    pub fn write<T>(&self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        if !self.lacks_owners_rights {
            // Postgres refuses to defer what the owner's code does.
            identity::as_at_commit(false, || spi::connect(defer_nothing))?;
        }
        self.read(body)
    }

    fn apart<T>(&self, body: impl FnOnce(&Spi) -> Result<T>) -> Result<T> {
        let as_owner = || {
            let in_session = || spi::connect(body);
            let done = identity::as_owner_in_session(self.owner, &self.configured, &self.own, in_session);
            done.map_err(|error| if self.lacks_owners_rights { error.redacted() } else { error })
        };
        if self.lacks_owners_rights {
            identity::forget_seed();
        }
        if !self.may_leave_traps {
            return as_owner();
        }
        let (cursors, objects) = (identity::as_engine(|| spi::connect(left_behind::cursors))?, temporary_objects()?);
        let value = as_owner()?;
        identity::forget_seed();
        if !temporary_objects()?.is_subset(&objects) {
            return Err(error::left_temporary_objects());
        }
        identity::as_engine(|| spi::connect(|spi| left_behind::close_new_cursors(spi, &cursors)))?;
        Ok(value)
    }
}

fn configured(caller: Caller) -> Result<Rc<[Setting]>> {
    let is_fresh = |(read_at, _): &(Instant, Rc<[Setting]>)| read_at.elapsed() < CONFIGURED_KEPT_FOR;
    if let Some((_, settings)) = CONFIGURED.with_borrow(|known| known.clone().filter(is_fresh)) {
        return Ok(settings);
    }
    // If Postgres prunes a page of the catalog during the read, a claim need not wait until that is flushed.
    let read = || Ok((caller.on_system_tables(|spi, _| role_settings::configured(spi))?, true));
    let settings: Rc<[Setting]> = leasing(read)?.into();
    CONFIGURED.set(Some((Instant::now(), settings.clone())));
    Ok(settings)
}

/// The objects in `pg_temp`.
fn temporary_objects() -> Result<BTreeSet<String>> {
    let Some(schema) = identity::temporary_schema() else { return Ok(BTreeSet::new()) };
    identity::as_engine(|| spi::connect(|spi| left_behind::temporary_objects(spi, schema)))
}
