//! Roles that processes belong to, and whether they may go on.

use crate::guc;
use crate::pg::catch::Result;
use crate::pg::identity;
use pgrx::pg_sys;
use std::collections::{HashMap, HashSet};

/// A role, and its name when the process was started.
pub type NamedRole = (pg_sys::Oid, String);

/// Why a role can't own running processes.
#[derive(Clone, Debug)]
pub struct Unfit {
    pub why: &'static str,
    /// It will not get better: the process fails.
    pub for_good: bool,
}

/// Which of these roles can't own running processes.
pub fn unfit(owners: HashSet<(pg_sys::Oid, &str)>) -> Result<HashMap<NamedRole, Unfit>> {
    let mut unfit = HashMap::new();
    for (role, name) in owners {
        if let Some(why) = why_unfit(role, name)? {
            unfit.insert((role, name.to_owned()), why);
        }
    }
    Ok(unfit)
}

/// Why this role, which had that name when the process was started, can't own a running one.
pub fn why_unfit(role: pg_sys::Oid, name: &str) -> Result<Option<Unfit>> {
    Ok(if identity::role_name(role)?.is_none() {
        Some(Unfit { why: "the role that owns the process is gone", for_good: true })
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
