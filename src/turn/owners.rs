//! Whether roles may own running processes.
//!
//! Limitations: roles are read in each turn that judges their calls, and not followed in between.

use crate::calls::Unfit;
use crate::guc;
use crate::pg::catch::Result;
use crate::pg::identity;
use crate::store::loaded::Meta;
use pgrx::pg_sys;
use std::collections::HashSet;

/// The roles among some owners that may not own running processes. There are few, if any.
pub struct UnfitOwners(Vec<(pg_sys::Oid, String, Unfit)>);

impl UnfitOwners {
    /// Reads which of these owners are unfit. Each comes with the name that the role had when its process was started.
    pub fn among(owners: HashSet<(pg_sys::Oid, &str)>) -> Result<Self> {
        let mut unfit = Vec::new();
        for (role, name) in owners {
            unfit.extend(why_unfit(role, name)?.map(|why| (role, name.to_owned(), why)));
        }
        Ok(Self(unfit))
    }

    /// Why the owner of this process is unfit. None: it may own running processes.
    pub fn of(&self, meta: &Meta) -> Option<&Unfit> {
        let unfit = self.0.iter().find(|(role, name, _)| *role == meta.owner && *name == meta.owner_name);
        unfit.map(|(.., why)| why)
    }
}

/// Why this role may not own a running process. `name`: the name that the role had when the process was started.
pub fn why_unfit(role: pg_sys::Oid, name: &str) -> Result<Option<Unfit>> {
    Ok(if identity::role_name(role)?.is_none() {
        Some(Unfit { why: "the role that owns the process no longer exists", for_good: true })
    } else if identity::role_named(name)?.is_some_and(|named| named != role) {
        let why = "the name of the role that owns the process belongs to another role now";
        Some(Unfit { why, for_good: true })
    } else if identity::is_superuser(role) && !guc::ALLOW_SUPERUSER_PROCESSES.get() {
        let why = "the role that owns the process is a superuser, and xdb.allow_superuser_processes is off";
        Some(Unfit { why, for_good: false })
    } else {
        None
    })
}
